# SPDX-License-Identifier: Apache-2.0
"""rollbox on Ray: jobs and sandboxes over the nodes of a cluster.

    from rollbox.ray import Pool
    with Pool(policy) as pool:
        for result in pool.map(jobs):
            ...

Ray is imported when the first Pool is made. docs/how-to/ray.md describes the package.
"""

from __future__ import annotations

from ._clones import PoolClones
from ._pool import Pool
from ._sandbox import AsyncHandle, Handle, PoolSandbox, PoolSnapshot, Published

__all__ = [
    "AsyncHandle",
    "Handle",
    "Pool",
    "PoolClones",
    "PoolSandbox",
    "PoolSnapshot",
    "Published",
]
