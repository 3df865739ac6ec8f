# SPDX-License-Identifier: Apache-2.0
"""Scripts that use `tfp_rb`; they are not part of the package."""
