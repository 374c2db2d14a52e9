# SPDX-License-Identifier: Apache-2.0
"""What batches and clones share: retries, the order of results, the progress bar."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import sys
import time
from collections.abc import Iterator, Sized
from typing import Any, Callable, Optional, TypeVar

from .errors import (
    EngineLost,
    EngineStartFailed,
    HostOutOfMemory,
    InvalidArgument,
    ResourceExhausted,
    RollboxError,
    SetupFailed,
)
from .result import Result

_Row = TypeVar("_Row")

_RETRIED = (EngineLost, EngineStartFailed, HostOutOfMemory, ResourceExhausted, SetupFailed)
"""Errors that say nothing of the job and may not be there the next time."""

_BUSY = f"the sandbox cannot be made: {os.strerror(errno.EAGAIN)}"
_PATIENCE_S = 60


def retry_delay(error: Optional[RollboxError], attempts: int, retries: int) -> Optional[float]:
    """Seconds before the next attempt after so many; None: that was the last.

    An exhausted host is given time; a new engine needs none.
    """
    if not isinstance(error, _RETRIED) or attempts > retries:
        return None
    return 0.0 if isinstance(error, EngineLost) else min(0.05 * 2 ** (attempts - 1), 2.0)


def patiently(make: Callable[[], _Row]) -> _Row:
    """Makes sandboxes, and waits while the engine has more to make than it can take in.

    Hundreds of clients that begin at the same moment are no failure of the host.
    """
    until, pause = time.monotonic() + _PATIENCE_S, 0.01
    while True:
        try:
            return make()
        except ResourceExhausted as error:
            if _BUSY not in error.message or time.monotonic() > until:
                raise
        time.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(2 * pause, 0.2)


def check_concurrency(concurrency: Optional[int]) -> int:
    """How many jobs run at a time: the argument, or one per CPU."""
    if concurrency is None:
        return len(os.sched_getaffinity(0))
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise InvalidArgument(
            f"concurrency must be a positive number, not {concurrency!r}", stage="arguments"
        )
    return concurrency


class ProgressBar:
    """A line on stderr, drawn ten times a second at most: done, rate, time left, errors."""

    def __init__(self, show: Optional[bool], jobs: object) -> None:
        self.show = sys.stderr is not None and sys.stderr.isatty() if show is None else show
        self.total = len(jobs) if isinstance(jobs, Sized) else None
        self.done = self.errors = 0
        self.begun = time.monotonic()
        self.drawn = 0.0

    def step(self, result: Result[Any]) -> None:
        """Counts a result."""
        self.done += 1
        self.errors += result.error is not None
        now = time.monotonic()
        if self.show and now - self.drawn >= 0.1:
            self.drawn = now
            self._draw(now)

    def _draw(self, now: float, end: str = "") -> None:
        elapsed = max(now - self.begun, 1e-9)
        rate = self.done / elapsed
        line = f"{self.done}"
        if self.total:
            filled = 24 * self.done // self.total
            left = int((self.total - self.done) / rate) if rate else 0
            line = (
                f"[{'#' * filled}{'.' * (24 - filled)}] {self.done}/{self.total} "
                f"{100 * self.done // self.total:3d}%"
                f"  {rate:.1f}/s  {left // 60:02d}:{left % 60:02d} left"
            )
        else:
            line = f"{self.done} done  {rate:.1f}/s"
        if self.errors:
            line += f"  {self.errors} errors"
        with contextlib.suppress(OSError, ValueError):  # a closed stderr must not end a batch
            sys.stderr.write("\r" + line + "\x1b[K" + end)
            sys.stderr.flush()

    def close(self) -> None:
        """Draws the last state."""
        if self.show and self.done:
            self._draw(time.monotonic(), "\n")


class OrderedQueue:
    """Yields rows as they come, or holds each until the rows before it are out."""

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered
        self.next = 0
        self.held: dict[int, Any] = {}

    def put(self, index: int, result: _Row) -> Iterator[_Row]:
        """The rows that can go out after this one."""
        if not self.ordered:
            yield result
            return
        self.held[index] = result
        while self.next in self.held:
            self.next += 1
            yield self.held.pop(self.next - 1)
