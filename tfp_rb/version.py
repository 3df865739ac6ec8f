"""The version of the package, also read by setup.py."""

__version__ = '0.1.0'
