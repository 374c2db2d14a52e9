# SPDX-License-Identifier: Apache-2.0
"""The calls of rollbox for asyncio. Their public names are in `rollbox` itself."""
