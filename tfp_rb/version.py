# SPDX-License-Identifier: Apache-2.0
"""Holds the version of the package, which setup.py also reads."""

__version__ = '0.2.0'
