# SPDX-License-Identifier: Apache-2.0
"""Makes `examples` a package, which is found before others of this name.

The extra `benchmarks` installs storchastic, which has a package `examples`.
"""
