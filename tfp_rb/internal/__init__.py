"""Provides tools with no counterpart in the mathematics, such as checks."""
