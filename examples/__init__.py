# SPDX-License-Identifier: Apache-2.0
"""Makes `examples` a package, so that Python imports it first.

The extra `benchmarks` installs storchastic, which also contains a package named
`examples`.
"""
