# SPDX-License-Identifier: Apache-2.0
"""Provides tools with no counterpart in the mathematics, such as checks."""
