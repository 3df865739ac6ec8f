"""Tests for users who bring an estimator or a distribution of their own."""

from tfp_rb.testing.unbiased import UnbiasednessReport, assert_unbiased

__all__ = ['UnbiasednessReport', 'assert_unbiased']
