# SPDX-License-Identifier: Apache-2.0
"""Provides helpers that have no mathematical meaning, such as checks."""
