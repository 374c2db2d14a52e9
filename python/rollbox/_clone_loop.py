# SPDX-License-Identifier: Apache-2.0
"""CloneLoop: the clones of one fork that run, served by one thread.

It polls their answers and the engine's descriptor. An answer was written by a guest: it is read as
data (_safe_values.py), its length is bounded, and it is believed only as far as it concerns that
guest.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
import select
import socket
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import fields, replace
from typing import (
    Any,
    Callable,
    Optional,
)

from . import _safe_values
from ._clone_result import Clone, WorkFailed
from ._core.connection import PendingRun
from ._core.errors import EngineLost, FeatureMissing, NotFound, RollboxError
from ._core.request import (
    AttachRequest,
    error_result,
)
from ._core.result import Outcome, Result
from ._core.schedule import OrderedQueue, ProgressBar, retry_delay
from ._session import Session

_CHUNK = 1 << 16
_MAX_TEXT = 1 << 16
_BATCH_SIZE = 32


# From the sandbox to the caller


class Answer:
    """A message of a guest that is arriving, up to a length."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.data = bytearray()
        self.length: Optional[int] = None

    def read(self, fd: int) -> bool:
        """Reads what is there. False at the end of the message, or of its writers."""
        while not self.is_whole:
            try:
                data = os.read(fd, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.data += data
            if self.length is None and len(self.data) >= 8:
                self.length = int.from_bytes(self.data[:8], "big")
                if self.length > self.max_bytes:
                    raise ValueError(
                        f"it announces {self.length} bytes, and may have {self.max_bytes}"
                    )
        return False

    @property
    def is_whole(self) -> bool:
        """Whether all of it has arrived."""
        return self.length is not None and len(self.data) >= 8 + self.length

    def message(self) -> dict[str, Any]:
        """The parsed message; {} if it is incomplete. Raises ValueError."""
        if self.length is None or not self.is_whole:
            return {}
        found = _safe_values.loads(bytes(self.data[8 : 8 + self.length]))
        if not isinstance(found, dict):
            raise ValueError("it is not an object")
        return found


def failure_of(message: dict[str, Any], id: Optional[int]) -> Optional[WorkFailed]:
    told = message.get("raised")
    if not isinstance(told, dict):
        return None
    name, said, traceback = (
        str(told.get(key, ""))[:_MAX_TEXT] for key in ("type", "message", "traceback")
    )
    return WorkFailed(name, said, traceback, id)


def _seed_text(seed: Optional[int], number: int) -> str:
    """The text from which a clone seeds its random generators."""
    return "-" if seed is None else hashlib.sha512(f"{seed}:{number}".encode("ascii")).hexdigest()


# One clone


class _Task:
    """A clone that is to be made, runs or has ended."""

    __slots__ = (
        "index",
        "attempts",
        "due",
        "box",
        "results",
        "answer",
        "pending",
        "deadline",
        "timed_out",
        "problem",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.attempts = 0
        self.due = 0.0
        self.forget()

    def forget(self) -> None:
        """Sets the state of a clone without a sandbox."""
        self.box: Optional[Session] = None
        self.results = -1
        self.pending: Optional[PendingRun] = None
        self.deadline: Optional[float] = None
        self.timed_out = False
        self.problem: Optional[str] = None

    def begin(
        self,
        box: Session,
        command: str,
        seed: Optional[int],
        max_value: int,
        on_end: Callable[[PendingRun], None],
        timeout: Optional[float],
    ) -> None:
        """Lets the clone run in a sandbox of its own."""
        self.box = box
        self.answer = Answer(max_value)
        handle = box._session()
        control, self.results = handle.claim(command, 3, 4)
        try:
            if control < 0 or self.results < 0:
                raise NotFound(f"the interpreter of clone {self.index} has ended", stage="run")
            os.set_blocking(self.results, False)
            self.pending = handle.begin(AttachRequest(command), on_end)
            # A broken pipe: the interpreter has ended, and its result is about to arrive.
            with contextlib.suppress(BrokenPipeError):
                os.write(
                    control,
                    f"{self.index} {max_value} {_seed_text(seed, self.index)}\n".encode("ascii"),
                )
        finally:
            if control >= 0:
                os.close(control)
        if timeout is not None:
            self.deadline = time.monotonic() + timeout

    def read(self) -> bool:
        """Reads its answer. False when nothing more comes."""
        try:
            return self.answer.read(self.results)
        except ValueError as problem:
            self.problem = f"its answer cannot be read: {problem}"
            return False

    def kill(self, timed_out: bool) -> None:
        """Kills its processes."""
        assert self.box is not None
        self.timed_out, self.deadline = timed_out, None
        # An error: the clone has ended meanwhile, or is lost; its result is about to arrive.
        with contextlib.suppress(RollboxError):
            self.box.kill_all()

    def finish_result(self, result: Result[bytes]) -> Clone[bytes, Any]:
        """What it came to."""
        value, returned, raised, error, outcome = None, False, None, result.error, result.outcome
        if error is None:
            try:
                self.read()
                if self.problem is None:
                    message = self.answer.message()
                    raised = failure_of(message, self.index)
                    if "value" in message:
                        value, returned = _safe_values.decode(message["value"]), True
            except ValueError as problem:
                self.problem = f"its answer cannot be read: {problem}"
            except ImportError as problem:
                error, outcome = (
                    FeatureMissing(
                        f"clone {self.index} returned a numpy array, and numpy cannot be imported "
                        f"here: {problem}",
                        stage="result",
                    ),
                    Outcome.ERROR,
                )
            if self.problem is not None:
                raised = WorkFailed("", self.problem, id=self.index)
            if self.timed_out and outcome is Outcome.SIGNAL:
                outcome, result = Outcome.TIMEOUT, replace(result, signal=None)
        known = {field.name: getattr(result, field.name) for field in fields(Result)}
        return Clone(
            **{**known, "id": self.index, "outcome": outcome, "error": error},
            value=value,
            returned=returned,
            raised=raised,
        )

    def close(self) -> None:
        """Ends its sandbox."""
        if self.pending is not None:
            self.pending.abandon()
        if self.results >= 0:
            os.close(self.results)
        box = self.box
        self.forget()
        if box is not None:
            with contextlib.suppress(RollboxError):
                box.close()


# All of them


class CloneLoop:
    """The clones of one fork that run. One thread uses it; any thread may call `stop`."""

    def __init__(
        self,
        make: Callable[[int], Sequence[Session]],
        command: str,
        seed: Optional[int],
        max_value: int,
        timeout: Optional[float],
    ) -> None:
        self.make, self.command, self.seed, self.max_value, self.timeout = (
            make,
            command,
            seed,
            max_value,
            timeout,
        )
        self.process = os.getpid()
        self.running: dict[PendingRun, _Task] = {}
        self.reading: dict[int, _Task] = {}
        self.ended: collections.deque[PendingRun] = collections.deque()
        self.done: list[tuple[_Task, Clone[bytes, Any]]] = []
        self.dispatcher: Optional[int] = None
        self.connection: Any = None
        self.stopped = False
        self.wake_reader, self.wake_writer = socket.socketpair()
        self.wake_reader.setblocking(False)
        self.wake_writer.setblocking(False)
        self.poll = select.epoll()
        self.poll.register(self.wake_reader, select.EPOLLIN)

    def begin(self, tasks: Sequence[_Task]) -> None:
        """Makes sandboxes for tasks and resumes them. Failed tasks are in `done`."""
        try:
            boxes = self.make(len(tasks))
        except RollboxError as problem:
            for task in tasks:
                self.fail(task, problem)
            return
        for task, box in zip(tasks, boxes):
            try:
                task.begin(box, self.command, self.seed, self.max_value, self.on_end, self.timeout)
            except RollboxError as problem:
                self.fail(task, problem)
                continue
            assert task.pending is not None
            self.running[task.pending] = task
            self.reading[task.results] = task
            self.poll.register(task.results, select.EPOLLIN)
            if self.connection is None:
                self.connection = task.pending.connection
                self.poll.register(self.connection.fd, select.EPOLLIN)

    def fail(self, task: _Task, problem: RollboxError) -> None:
        """Ends a task that rollbox could not run."""
        task.close()
        self.done.append((task, _not_run(task.index, problem)))

    def on_end(self, pending: PendingRun) -> None:
        """Notes the end of a run, in any thread."""
        self.ended.append(pending)
        if self.dispatcher != threading.get_ident():
            self.wake()

    def wake(self) -> None:
        """Ends the waiting of the loop's thread."""
        # Full: the loop wakes anyway. Closed: nothing waits.
        with contextlib.suppress(OSError):
            self.wake_writer.send(b"\0")

    def stop(self) -> None:
        """Ends the loop."""
        self.stopped = True
        self.wake()

    def unread(self, task: _Task) -> None:
        """Reads no more of a task's answer."""
        if self.reading.pop(task.results, None) is not None:
            self.poll.unregister(task.results)

    def next_deadline(self) -> Optional[_Task]:
        """The clone whose time-out comes first: the one that began first, as all have the same."""
        return next((task for task in self.running.values() if task.deadline is not None), None)

    def wait(self, until: Optional[float]) -> None:
        """Waits until a clone has ended, or until a time."""
        if not self.ended:
            first = self.next_deadline()
            due = min(
                (
                    one
                    for one in (until, first.deadline if first is not None else None)
                    if one is not None
                ),
                default=None,
            )
            ready = self.poll.poll(-1 if due is None else max(0.0, due - time.monotonic()))
            self.dispatcher = threading.get_ident()
            try:
                for fd, _ in ready:
                    task = self.reading.get(fd)
                    if task is not None:
                        if not task.read():
                            self.unread(task)
                            if task.problem is not None:
                                task.kill(False)
                    elif self.connection is not None and fd == self.connection.fd:
                        if not self.connection.dispatch():
                            self.poll.unregister(fd)
                            self.connection = None
                    else:
                        with contextlib.suppress(BlockingIOError):
                            self.wake_reader.recv(4096)
                while True:
                    late = self.next_deadline()
                    if late is None or late.deadline is None or late.deadline > time.monotonic():
                        break
                    late.kill(True)
            finally:
                self.dispatcher = None
        while self.ended:
            pending = self.ended.popleft()
            task = self.running.pop(pending, None)
            if task is None:  # its end was notified twice
                continue
            self.unread(task)
            result = pending.collect(False, task.index)
            task.pending = None
            self.done.append((task, task.finish_result(result)))
            task.close()

    def close(self) -> None:
        """Ends all clones."""
        for task in self.running.values():
            task.close()
        self.running.clear()
        self.poll.close()
        self.wake_reader.close()
        self.wake_writer.close()


def _not_run(index: int, problem: RollboxError) -> Clone[bytes, Any]:
    row = error_result(problem, False, index)
    return Clone(**{field.name: getattr(row, field.name) for field in fields(Result)})


def iterate_clones(
    loop: CloneLoop,
    numbers: Iterable[int],
    width: int,
    order: OrderedQueue,
    bar: ProgressBar,
    retries: int,
) -> Generator[Clone[bytes, Any], None, None]:
    fresh = collections.deque(_Task(index) for index in numbers)
    waiting: list[_Task] = []  # repeated at their due times
    try:
        while (fresh or waiting or loop.running) and not loop.stopped:
            # A forked child shares the epoll instance: its changes would be the parent's.
            if loop.process != os.getpid():
                raise EngineLost(
                    "these clones belong to the process that this one was forked from; make some "
                    "of your own",
                    stage="connect",
                )
            now = time.monotonic()
            room = max(0, width - len(loop.running))
            batch = [task for task in waiting if task.due <= now][:room]
            for task in batch:
                waiting.remove(task)
            while fresh and len(batch) < min(room, _BATCH_SIZE):
                batch.append(fresh.popleft())
            if batch:
                loop.begin(batch)
            if not loop.done:
                due = now if fresh else min((task.due for task in waiting), default=None)
                loop.wait(due if len(loop.running) < width else None)
            done, loop.done = loop.done, []
            for task, clone in done:
                task.attempts += 1
                delay = retry_delay(clone.error, task.attempts, retries)
                if delay is not None:
                    task.due = time.monotonic() + delay
                    waiting.append(task)
                    continue
                bar.step(clone)
                yield from order.put(task.index, clone)
    finally:
        loop.close()
        bar.close()
