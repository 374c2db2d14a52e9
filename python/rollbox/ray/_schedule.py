# SPDX-License-Identifier: Apache-2.0
"""Which node runs which job: windows, repeated jobs, and one result a job.

This is pure: no Ray, no threads, no clock of its own. A job belongs to at most one node. A node
that is lost gives its jobs back, and a result that a node sends afterwards is not taken, so that
each job has exactly one result.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable
from typing import Any, Callable, Optional

from .._core.errors import EngineLost, RollboxError
from .._core.schedule import retry_delay

_AHEAD_S = 0.25
"""A node has jobs for so long in its queue, so that it is never idle for want of a message."""
_MOST_AHEAD = 256
_ASSUMED_S = 0.02
"""The length of a job before any has ended."""


class Item:
    """A job.

    Attributes:
        index: Its number among all jobs of the pool.
        kind: "run", or the key of clones.
        payload: What the node is given.
        deliver: Called once, with the result, or with the error that no attempt got past.
        retries: How often it is repeated.
        attempts: Attempts that failed.
        node: The node that has it, or None.
        due: When it may start again.
    """

    __slots__ = ("index", "kind", "payload", "deliver", "retries", "attempts", "node", "due")

    def __init__(
        self, index: int, kind: str, payload: Any, deliver: Callable[[Any], None], retries: int
    ) -> None:
        self.index, self.kind, self.payload = index, kind, payload
        self.deliver, self.retries = deliver, retries
        self.attempts = 0
        self.node: Optional[str] = None
        self.due = 0.0


class _Load:
    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.items: dict[int, Item] = {}
        self.average_s: Optional[float] = None

    def window(self, fixed: Optional[int]) -> int:
        if fixed is not None:
            return fixed
        length = max(self.average_s if self.average_s is not None else _ASSUMED_S, 1e-4)
        return self.slots + min(_MOST_AHEAD, max(1, math.ceil(self.slots * _AHEAD_S / length)))


class Schedule:
    """The jobs of a pool and the nodes that run them.

    Args:
        window: How many jobs a node may have at a time; None: its slots, and as many more as it
            runs in a quarter of a second.
    """

    def __init__(self, window: Optional[int] = None) -> None:
        self.window = window
        self._fresh: deque[Item] = deque()
        self._again: list[tuple[float, int, Item]] = []
        self._items: dict[int, Item] = {}
        self._nodes: dict[str, _Load] = {}

    def __len__(self) -> int:
        """Jobs without a result."""
        return len(self._items)

    @property
    def queued(self) -> int:
        """Jobs that no node has."""
        return len(self._items) - sum(len(load.items) for load in self._nodes.values())

    @property
    def nodes(self) -> dict[str, int]:
        """{node: its slots}."""
        return {name: load.slots for name, load in self._nodes.items()}

    def held(self, node: str) -> int:
        """How many jobs the node has."""
        load = self._nodes.get(node)
        return 0 if load is None else len(load.items)

    def room(self) -> int:
        """How many more jobs the nodes could take, less those that wait."""
        total = sum(
            max(0, load.window(self.window) - len(load.items)) for load in self._nodes.values()
        )
        return total - self.queued

    def add(self, item: Item) -> None:
        """Takes a job."""
        self._items[item.index] = item
        self._fresh.append(item)

    def add_node(self, node: str, slots: int) -> None:
        """Takes a node that runs `slots` jobs at a time."""
        self._nodes[node] = _Load(slots)

    def drop_node(self, node: str, now: float, why: str) -> None:
        """Gives the jobs of a lost node to others; ends those that were repeated too often."""
        load = self._nodes.pop(node, None)
        for item in load.items.values() if load is not None else ():
            item.node = None
            error = EngineLost(f"node {node} of the pool was lost: {why}", stage="run")
            self._repeat_or_end(item, error, error, now)

    def assign(self, now: float) -> dict[str, list[Item]]:
        """The jobs to send now, by node: each to the node with the least work for its slots."""
        sent: dict[str, list[Item]] = {}
        room = [
            (len(load.items) / load.slots, name)
            for name, load in self._nodes.items()
            if len(load.items) < load.window(self.window)
        ]
        heapq.heapify(room)
        while room:
            item = self._next(now)
            if item is None:
                break
            _, name = heapq.heappop(room)
            load = self._nodes[name]
            item.node = name
            load.items[item.index] = item
            sent.setdefault(name, []).append(item)
            if len(load.items) < load.window(self.window):
                heapq.heappush(room, (len(load.items) / load.slots, name))
        return sent

    def _next(self, now: float) -> Optional[Item]:
        while self._again and self._again[0][0] <= now:
            item = heapq.heappop(self._again)[2]
            if item.index in self._items:
                return item
        while self._fresh:
            item = self._fresh.popleft()
            if item.index in self._items:
                return item
        return None

    def next_due(self) -> Optional[float]:
        """When a job that is repeated may start; None without one."""
        return self._again[0][0] if self._again else None

    def finish(self, node: str, index: int, row: Any, seconds: float, now: float) -> None:
        """Takes a job's result from a node, if the node still has the job."""
        load = self._nodes.get(node)
        item = load.items.pop(index, None) if load is not None else None
        if load is None or item is None:
            return
        item.node = None
        if seconds > 0:
            past = load.average_s
            load.average_s = seconds if past is None else 0.9 * past + 0.1 * seconds
        error = row if isinstance(row, RollboxError) else getattr(row, "error", None)
        self._repeat_or_end(item, error, row, now)

    def _repeat_or_end(
        self, item: Item, error: Optional[RollboxError], row: Any, now: float
    ) -> None:
        item.attempts += 1
        delay = retry_delay(error, item.attempts, item.retries)
        if delay is None:
            self._items.pop(item.index, None)
            item.deliver(row)
            return
        item.due = now + delay
        heapq.heappush(self._again, (item.due, item.index, item))

    def cancel(self, indices: Iterable[int]) -> dict[str, list[int]]:
        """Forgets jobs; returns those that nodes have, by node."""
        running: dict[str, list[int]] = {}
        for index in indices:
            item = self._items.pop(index, None)
            if item is not None and item.node is not None:
                self._nodes[item.node].items.pop(index, None)
                running.setdefault(item.node, []).append(index)
        return running

    def fail_all(self, error: RollboxError) -> None:
        """Ends every job with this error."""
        items, self._items = list(self._items.values()), {}
        self._fresh.clear()
        self._again.clear()
        for load in self._nodes.values():
            load.items.clear()
        for item in items:
            item.deliver(error)
