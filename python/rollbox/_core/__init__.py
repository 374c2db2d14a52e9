# SPDX-License-Identifier: Apache-2.0
"""The lower half of the package: the library, its arguments, results and connections."""
