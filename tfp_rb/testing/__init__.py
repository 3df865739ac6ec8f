# SPDX-License-Identifier: Apache-2.0
"""Provides tests for your own estimators and partitions."""

from tfp_rb.testing.unbiased import UnbiasednessReport, assert_unbiased

__all__ = ['UnbiasednessReport', 'assert_unbiased']
