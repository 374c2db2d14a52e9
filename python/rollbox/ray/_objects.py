# SPDX-License-Identifier: Apache-2.0
"""What stays on a node, and what stands for it elsewhere."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

Target = int
"""The number of an object on its node."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """An object on a node: the name of its class, and its number."""

    kind: str
    target: Target


class Kept:
    """An object on its node, and the lease by which it lives."""

    def __init__(self, value: Any, lease_s: float) -> None:
        self.value = value
        self.lease_s = lease_s
        self.calls = 0
        self.used = time.monotonic()

    def has_expired(self, now: float) -> bool:
        """Whether no handle has renewed the lease in time, and no call is under way."""
        return self.calls == 0 and now - self.used > self.lease_s
