# SPDX-License-Identifier: Apache-2.0
"""The jobs of one node: a thread runs them as they arrive and keeps the rows that ended.

Rows wait until the pool fetches them (`take`), many at a time. Errors that another attempt may
get past are rows, too: the pool repeats jobs, perhaps on another node.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional

from .._batch import BatchTask, RunningBatch
from .._core.connection import PendingRun
from .._core.errors import InternalError, RollboxError
from .._core.policy import Policy
from .._core.request import error_result
from .._engine import Engine

Row = tuple[int, Any, float]
"""A job's index, its Result, the seconds that it took."""

_LINGER_S = 0.02
_MANY = 128


class Rows:
    """The rows that the pool has not fetched."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rows: list[Row] = []
        self._open = 0

    def expect(self, number: int) -> None:
        """Counts jobs whose rows will come."""
        with self._changed:
            self._open += number

    def put(self, row: Optional[Row]) -> None:
        """Adds a row; None: a job that has none, as it was cancelled."""
        with self._changed:
            self._open -= 1
            if row is not None:
                self._rows.append(row)
            self._changed.notify_all()

    def take(self, wait_s: float) -> list[Row]:
        """The rows there are; waits up to wait_s for the first, and a little for more."""
        until = time.monotonic() + wait_s
        with self._changed:
            self._changed.wait_for(lambda: self._rows or not self._open, wait_s)
            linger = min(_LINGER_S, max(0.0, until - time.monotonic()))
            self._changed.wait_for(lambda: not self._open or len(self._rows) >= _MANY, linger)
            rows, self._rows = self._rows, []
        return rows


class Runner:
    """Runs jobs in sandboxes of their own, or in forks of a sandbox that was set up.

    Args:
        engine: The engine.
        policy: The policy of all jobs.
        width: How many run at a time.
        rows: Where the rows go.
        fork: Makes a fork of the sandbox that was set up; None: jobs have fresh sandboxes.
    """

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        width: int,
        rows: Rows,
        fork: Optional[Callable[[], Any]] = None,
    ) -> None:
        self.engine, self.policy, self.width, self.rows, self.fork = (
            engine,
            policy,
            width,
            rows,
            fork,
        )
        self._queue: collections.deque[tuple[int, Any, Any, bool]] = collections.deque()
        self._cancelled: set[int] = set()
        self._held: dict[int, Any] = {}  # jobs without a row: None, or the sandbox of a fork
        self._lock = threading.Lock()
        self._closed = False
        self._batch = RunningBatch(engine, False)
        self._pool = concurrent.futures.ThreadPoolExecutor(width, "rollbox-fork")
        self._thread = threading.Thread(target=self._run, name="rollbox-jobs", daemon=True)
        self._thread.start()

    def push(self, jobs: Sequence[tuple[int, Any, Any, bool]]) -> None:
        """Takes jobs: (index, number or id, job, text)."""
        with self._lock:
            self._held.update((job[0], None) for job in jobs)
        self.rows.expect(len(jobs))
        if self.fork is not None:
            for job in jobs:
                self._pool.submit(self._run_in_fork, *job)
            return
        self._queue.extend(jobs)
        self._wake()

    def cancel(self, indices: Iterable[int]) -> None:
        """Kills jobs. Their rows do not come."""
        with self._lock:
            known = [index for index in indices if index in self._held]
            self._cancelled.update(known)
            boxes = [self._held[index] for index in known if self._held[index] is not None]
        for box in boxes:
            with contextlib.suppress(RollboxError):
                box.close()
        self._wake()

    def close(self) -> None:
        """Kills what runs."""
        self._closed = True
        self._wake()
        self._thread.join(5)
        with self._lock:
            boxes = [box for box in self._held.values() if box is not None]
        for box in boxes:
            with contextlib.suppress(RollboxError):
                box.close()
        self._pool.shutdown(wait=False)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._batch.wake_writer.send(b"\0")

    def _end(self, index: int, row: Any, seconds: float) -> None:
        with self._lock:
            self._held.pop(index, None)
            cancelled = index in self._cancelled
            self._cancelled.discard(index)
        self.rows.put(None if cancelled else (index, row, seconds))

    def _run(self) -> None:
        begun: dict[BatchTask, tuple[int, float]] = {}
        try:
            while not self._closed:
                while self._queue and len(self._batch.running) < self.width:
                    self._begin(begun, *self._queue.popleft())
                for task, result in self._batch.wait(None):
                    index, start = begun.pop(task)
                    self._end(index, result, time.monotonic() - start)
                if self._cancelled:
                    self._drop_cancelled(begun)
        finally:
            self._batch.close()

    def _begin(self, begun: Any, index: int, number: Any, job: Any, text: bool) -> None:
        if index in self._cancelled:
            self._end(index, None, 0)
            return
        task = BatchTask(number, job, self.policy)
        error = task.error
        if error is None:
            try:
                self._batch.start(task, text)
                begun[task] = (index, time.monotonic())
                return
            except RollboxError as problem:
                error = problem
        self._end(index, task.error_row(error, text), 0)

    def _drop_cancelled(self, begun: dict[BatchTask, tuple[int, float]]) -> None:
        for pending, task in list(self._batch.running.items()):
            index = begun[task][0]
            if index in self._cancelled:
                _abandon(pending)
                del self._batch.running[pending]
                del begun[task]
                self._end(index, None, 0)

    def _run_in_fork(self, index: int, number: Any, job: Any, text: bool) -> None:
        start = time.monotonic()
        task = BatchTask(number, job, self.policy)
        try:
            row = self._row_of_fork(index, task, text)
        except RollboxError as error:
            row = task.error_row(error, text)
        except Exception as error:  # a row is owed for each job
            row = error_result(InternalError(repr(error), stage="run"), text, task.id)
        self._end(index, row, time.monotonic() - start)

    def _row_of_fork(self, index: int, task: BatchTask, text: bool) -> Any:
        if task.error is not None:
            raise task.error
        with self._lock:
            if self._closed or index in self._cancelled:
                return None
        assert self.fork is not None
        box = self.fork()
        with box:
            with self._lock:
                self._held[index] = box
                if self._closed or index in self._cancelled:
                    return None
            arguments = dict(task.arguments)
            arguments["timeout"] = box._run_timeout(arguments.get("timeout"))
            result = box.exec(arguments.pop("argv"), text=text, **arguments)
        return dataclasses.replace(result, id=task.id)


def _abandon(pending: PendingRun) -> None:
    with contextlib.suppress(RollboxError):
        pending.abandon()
