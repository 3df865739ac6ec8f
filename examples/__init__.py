"""Scripts that use `tfp_rb`; they are not part of the package."""
