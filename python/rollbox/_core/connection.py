# SPDX-License-Identifier: Apache-2.0
"""Connection: one C handle of an engine, and the runs that are under way on it.

A handle may only be closed when no thread is in a call on it, so every use is counted (`use` and
`release`): a retired connection is closed by its last user. Runs that no thread waits for are kept
in `pending` under a token. The thread that dispatches takes out the runs that have ended and tells
their owners, which collect them on a thread of their own choosing.

A forked child has no connection: it closes its copies of the descriptors, which the parent does
not notice.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import logging
import math
import os
import threading
import time
import weakref
from collections import OrderedDict
from typing import Any, Callable, Optional, Protocol, TypeVar, Union

from . import ffi, spans
from .errors import EngineLost, EngineStartFailed, InternalError
from .request import Request, copy_result
from .result import JobId, Result

_T = TypeVar("_T")

_WAIT_SLICE_MS = 100
"""A blocked wait comes back to Python this often, so that Ctrl-C and close() are heard."""

_PLANS_KEPT = 4096

LOST_ERRORS = (EngineLost, EngineStartFailed)
"""The errors of a call whose engine is gone; EngineStartFailed if it never answered."""

_log = logging.getLogger("rollbox")
# Nothing goes to stderr unless the caller configures logging.
_log.addHandler(logging.NullHandler())

Starter = Callable[..., int]
"""Starts a run, given maybe a callback and its userdata, and returns its address."""

_tokens = itertools.count(1)
pending_runs: dict[int, Union[PendingRun, _DetachedEntry]] = {}
"""The runs of all connections by token. The thread that removes a run owns its end."""


class PendingRun:
    """A run that no thread waits for.

    `on_end(run)` is called from any thread when its result is there: once, or again if that was
    interrupted. It must not block. The owner then calls `collect`, or `abandon` at any time, on one
    thread. Either gives the use of the connection back.
    """

    __slots__ = ("connection", "on_end", "token", "run")

    def __init__(self, connection: Connection, on_end: Callable[[PendingRun], None]) -> None:
        self.connection = connection
        self.on_end = on_end
        self.token = next(_tokens)
        self.run: Optional[int] = None

    def ended(self) -> None:
        """Tells the owner that the run has ended."""
        self.on_end(self)

    def collect(self, text: bool = False, id: Optional[JobId] = None) -> Result[Any]:
        """The result of a run that has ended; frees the run."""
        assert self.run is not None
        try:
            return self.connection.wait(self.run, text, id)
        finally:
            self._free()

    def abandon(self) -> None:
        """Kills the run if it is under way, and frees it."""
        pending_runs.pop(self.token, None)
        self._free()

    def _free(self) -> None:
        run, self.run = self.run, None
        if run is not None:
            self.connection.free(run)
            self.connection.release()


class _DetachedEntry:
    """The entry of a DetachedRun in `pending_runs`, which does not keep it alive."""

    __slots__ = ("_run",)

    def __init__(self, run: DetachedRun) -> None:
        self._run = weakref.ref(run)

    def ended(self) -> None:
        """Tells the run, if it is still there."""
        run = self._run()
        if run is not None:
            run.on_end()

    def abandon(self) -> None:
        """Nothing: the run continues."""
        pass


class DetachedRun:
    """A run that any thread may wait for, any number of times.

    It holds a use of its connection only while a thread waits; when the connection goes, it is
    lost. Forgetting it frees the run, which kills the command unless that was started detached.
    Made with a use of the connection held.
    """

    __slots__ = (
        "connection",
        "token",
        "run",
        "_ended",
        "_callbacks",
        "_result",
        "_lock",
        "__weakref__",
    )

    def __init__(self, connection: Connection, starter: Starter) -> None:
        self.connection = connection
        self.token = next(_tokens)
        self.run: Optional[int] = None
        self._ended = False
        self._callbacks: list[Callable[[], None]] = []
        self._result: Optional[Result[bytes]] = None
        self._lock = threading.Lock()
        pending_runs[self.token] = _DetachedEntry(self)
        try:
            self.run = starter(connection.callback, self.token)
        except BaseException:
            pending_runs.pop(self.token, None)
            raise
        connection.detached[self.run] = self.token

    def on_end(self) -> None:
        """Calls the callbacks. It is repeated if it was interrupted."""
        with self._lock:
            self._ended = True
        # No thread adds a callback any more. A repeated call continues with the remaining ones.
        while self._callbacks:
            self._callbacks[0]()
            with contextlib.suppress(IndexError):
                self._callbacks.pop(0)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Has callback() called once from any thread, or at once; it must not block."""
        with self._lock:
            if not self._ended:
                self._callbacks.append(callback)
                return
        callback()

    def abandon(self) -> None:
        """No thread waits any longer; the run continues."""
        pending_runs.pop(self.token, None)

    def wait(self, timeout_s: Optional[float]) -> Optional[Result[bytes]]:
        """The result, which may have outcome "error"; None if there is none after timeout_s.

        Blocks. Raises EngineLost.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while self._result is None:
            left = (
                _WAIT_SLICE_MS
                if end is None
                else max(0, min(_WAIT_SLICE_MS, math.ceil((end - time.monotonic()) * 1000)))
            )
            if self.connection.process != os.getpid() or not self.connection.use():
                raise EngineLost(
                    "the engine was closed or lost, and with it the sandbox and this command",
                    stage="result",
                )
            try:
                raw = ctypes.POINTER(ffi.RawResult)()
                status = self.connection.library.rollbox_wait(self.run, left, ctypes.byref(raw))
                if status >= 0:
                    spans.end(self.run, raw.contents)
                    self._result = result = copy_result(raw.contents)
                    self.connection.notify_end(self.token)
                    if isinstance(result.error, LOST_ERRORS):
                        self.connection.mark_lost(result.error)
                    break
                if status != -errno.ETIMEDOUT:
                    raise InternalError(
                        f"waiting for a command failed: {os.strerror(-status)}",
                        stage="result",
                        errno=-status,
                    )
            finally:
                self.connection.release()
            if end is not None and time.monotonic() >= end:
                break
        return self._result

    def __del__(self) -> None:
        run, self.run = self.run, None
        pending_runs.pop(self.token, None)
        if run is None or self.connection.process != os.getpid() or not self.connection.use():
            return  # the run is freed with the connection
        try:
            if self.connection.detached.pop(run, None) is not None:
                self.connection.library.rollbox_run_free(run)
        finally:
            self.connection.release()


class Connection:
    """A C handle and the count of its users. Made with one use, the maker's."""

    def __init__(self, socket: Optional[bytes]) -> None:
        self.library = ffi.lib()
        # All runs have this callback, and none has one in Python: ctypes would print, and lose, an
        # exception of a signal handler there, with the run's end.
        self.callback = ctypes.cast(self.library.rollbox_queued, ffi.CALLBACK)
        self.process = os.getpid()
        # Reentrant: Engine.__del__ may retire the connection wherever the collector runs.
        self._lock = threading.RLock()
        self._notifying = threading.RLock()  # one thread at a time notifies owners
        self._users = 1
        self.retired = False
        self.closed = False  # by its user; a lost engine does not set it
        self._runs: dict[int, None] = {}
        # DetachedRuns and their tokens; freed at the latest with the handle.
        self.detached: dict[int, int] = {}
        self._plans: OrderedDict[str, int] = OrderedDict()
        options = ffi.EngineOptions(size=ctypes.sizeof(ffi.EngineOptions), socket_path=socket)
        handle = ctypes.c_void_p()
        error = ffi.Error()
        if (
            self.library.rollbox_engine_open(
                ctypes.byref(options), ctypes.byref(handle), ctypes.byref(error)
            )
            < 0
        ):
            raise ffi.exception(error)
        self.handle: Optional[int] = handle.value
        self.fd: int = self.library.rollbox_engine_fd(handle)
        self.pid: int = self.library.rollbox_engine_pid(handle)
        _log.debug(
            "engine %d %s", self.pid, f"serves {os.fsdecode(socket)}" if socket else "started"
        )
        _connections.add(self)

    def use(self) -> bool:
        """Counts the caller in; False if the connection is retired."""
        with self._lock:
            if self.retired:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """Counts the caller out. The last one closes the connection."""
        if self.process != os.getpid():
            return
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self._close()

    def retire(self, kill: bool = False) -> None:
        """Refuses new users, and gives up the maker's use, once.

        With `kill`, it ends the runs of the present users.
        """
        with self._lock:
            if self.retired:
                return
            self.retired = True
            if kill:
                for run in self._runs:
                    self.library.rollbox_kill(run, ffi.OUTCOME_ERROR)
            lost = [pending_runs.pop(token, None) for token in self.detached.values()]
        for detached in lost:
            if detached is not None:
                detached.ended()
        self.release()

    def _close(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            if self.process == os.getpid():
                for run, token in list(self.detached.items()):
                    pending_runs.pop(token, None)
                    self.library.rollbox_run_free(run)
                self.detached.clear()
            self.library.rollbox_engine_close(handle)
        _connections.discard(self)

    def after_fork(self) -> None:
        """Closes a forked child's copies of the descriptors.

        The lock may be held for ever there, so it is not taken.
        """
        self.retired = True
        self._close()

    # The caller of the following holds a use.

    def plan(self, policy: str) -> int:
        """The compiled policy; asks the engine, and blocks, the first time."""
        with self._lock:
            plan = self._plans.get(policy)
            if plan is not None:
                self._plans.move_to_end(policy)
                return plan
        raw = policy.encode("utf-8")
        compiled = ctypes.c_void_p()
        error = ffi.Error()
        if (
            self.library.rollbox_prepare(
                self.handle, raw, len(raw), ctypes.byref(compiled), ctypes.byref(error)
            )
            < 0
        ):
            raise ffi.exception(error)
        assert compiled.value
        with self._lock:
            self._plans[policy] = compiled.value
            if len(self._plans) > _PLANS_KEPT:
                self._plans.popitem(last=False)
        return compiled.value

    def json(self, function: str) -> Any:
        """Calls a function of the library that takes the handle; returns the parsed JSON."""
        text = ctypes.c_void_p()
        error = ffi.Error()
        if (
            getattr(self.library, function)(self.handle, ctypes.byref(text), ctypes.byref(error))
            < 0
        ):
            raise ffi.exception(error)
        return ffi.take_json(text)

    def has_plan(self, policy: str) -> bool:
        """Whether the policy is compiled."""
        return policy in self._plans

    def track(self, run: int) -> None:
        """Remembers a run, to be killed when the connection is retired."""
        with self._lock:
            self._runs[run] = None
            late = self.retired
        if late:
            self.library.rollbox_kill(run, ffi.OUTCOME_ERROR)

    def free(self, run: int) -> None:
        """Frees a run, killing it if it is under way."""
        if self.process != os.getpid():
            return
        with self._lock:
            self._runs.pop(run, None)
        self.library.rollbox_run_free(run)

    def wait(self, run: int, text: bool, id: Optional[JobId] = None) -> Result[Any]:
        """The result of a run; blocks until its end."""
        raw = ctypes.POINTER(ffi.RawResult)()
        while True:
            status = self.library.rollbox_wait(run, _WAIT_SLICE_MS, ctypes.byref(raw))
            if status >= 0:
                break
            if status != -errno.ETIMEDOUT:
                raise InternalError(
                    f"waiting for a run failed: {os.strerror(-status)}",
                    stage="result",
                    errno=-status,
                )
        spans.end(run, raw.contents)
        result = copy_result(raw.contents, text, id)
        if isinstance(result.error, LOST_ERRORS):
            self.mark_lost(result.error)
        return result

    def mark_lost(self, error: BaseException) -> None:
        """Retires the connection for an error that says that the engine is gone."""
        if not self.retired and not self.closed:
            _log.warning("engine %d is lost: %s", self.pid, error)
        self.retire()

    def begin(self, starter: Starter, on_end: Callable[[PendingRun], None]) -> PendingRun:
        """Starts a run that no thread waits for. It holds a use of its own."""
        pending = PendingRun(self, on_end)
        with self._lock:
            self._users += 1
        pending_runs[pending.token] = pending
        try:
            pending.run = starter(self.callback, pending.token)
        except BaseException:
            pending_runs.pop(pending.token, None)
            self.release()
            raise
        self.track(pending.run)
        return pending

    def finish(self, starter: Starter, text: bool) -> Result[Any]:
        """Runs and waits for the end."""
        run = starter()
        try:
            self.track(run)
            return self.wait(run, text)
        finally:
            self.free(run)

    def start(
        self, policy: str, request: Request, on_end: Callable[[PendingRun], None]
    ) -> PendingRun:
        """Starts a run of a policy that no thread waits for."""
        plan = self.plan(policy)
        return self.begin(lambda *callback: request.start(self.handle, plan, *callback), on_end)

    def run(self, policy: str, request: Request, text: bool) -> Result[Any]:
        """Runs under a policy and waits for the end."""
        plan = self.plan(policy)
        return self.finish(lambda *callback: request.start(self.handle, plan, *callback), text)

    def dispatch(self) -> bool:
        """Handles what has arrived, without blocking.

        False once the engine is lost; every run of it is then ended.
        """
        with self._lock:
            self._users += 1
        try:
            lost = self.library.rollbox_dispatch(self.handle) < 0
            self._notify_ended()
            if lost:
                self.retire()
            return not lost
        finally:
            self.release()

    def _notify_ended(self) -> None:
        """Tells the owners of runs that have ended, perhaps twice.

        If a signal handler raises in the middle of it, the next dispatch begins with the same run.
        """
        while True:
            token = self.library.rollbox_next_ended(self.handle)
            if token is None:
                return
            self.notify_end(token)

    def notify_end(self, token: int) -> None:
        """Tells the owner of a run that it has ended."""
        with self._notifying:
            pending = pending_runs.get(token)
            if pending is not None:
                pending.ended()
            pending_runs.pop(token, None)
            self.library.rollbox_told(self.handle, token)  # last: until then the run is found again


_connections: set[Connection] = set()
"""Those not closed yet."""


class Connector(Protocol):
    """Something that opens connections: an Engine, for modules below it."""

    def attempt(self, action: Callable[[Connection], _T]) -> _T:
        """Calls action(connection), once more with a new connection if the engine is lost."""


def forget_connections() -> None:
    """Closes every connection of a forked child, where none can be used."""
    pending_runs.clear()
    for connection in list(_connections):
        connection.after_fork()
