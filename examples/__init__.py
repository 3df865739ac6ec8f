# SPDX-License-Identifier: Apache-2.0
"""Makes `examples` a package, so that no other package hides it.

The extra `benchmarks` installs storchastic, which also contains a package named
`examples`.
"""
