# SPDX-License-Identifier: Apache-2.0
"""Engine: the process that owns sandboxes, and who may use its handle when.

An Engine opens a _Connection (a C handle) when it needs one and opens another when that one is lost. A handle may only be closed when
nobody is in a call on it, so every use is counted (`use` / `release`): a retired connection is closed by whoever leaves it last. Runs
that are not waited for by a thread of their own are kept in `pending` under a token; whoever dispatches takes those out that have
ended and tells their owners, who collect them on a thread of their own choosing.

After fork() the child's engines have no connection: the child closes its copies of the descriptors, which is nothing to the parent,
and opens its own on first use.
"""

from __future__ import annotations

import atexit
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
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, Union

from . import _ffi
from ._errors import EngineLost, EngineStartFailed, InternalError, InvalidArgument
from ._request import Request, copy_result
from ._result import JobId, Result

_WAIT_SLICE_MS = 100
"""A blocked wait comes back to Python this often, so that Ctrl-C and close() are heard."""

_PLANS_KEPT = 4096

_LOST = (EngineLost, EngineStartFailed)
_log = logging.getLogger("rollbox")
_log.addHandler(logging.NullHandler())       # what is logged is for whoever asks: nothing goes to stderr by itself
"""What a call on a connection says when its engine is gone: the latter if that never answered."""

Starter = Callable[..., int]
"""Starts a run, given maybe a callback and its userdata, and returns its address."""

_tokens = itertools.count(1)
_pending: Dict[int, Any] = {}
"""PendingRuns, and LooseRuns by a weak reference, of all connections, by token. Who pops one owns its end."""


class PendingRun:
    """A run under way that no thread waits for. `on_end()` is called from any thread when its result is there, once, or again where that was interrupted; it must not block.

    The owner then calls `collect`, or `abandon` at any time, on one thread. Either gives the use of the connection back.
    """

    __slots__ = ("connection", "on_end", "token", "run")

    def __init__(self, connection: "_Connection", on_end: Callable[["PendingRun"], None]) -> None:
        self.connection = connection
        self.on_end = on_end
        self.token = next(_tokens)
        self.run: Optional[int] = None

    def collect(self, text: bool = False, id: Optional[JobId] = None) -> Result[Any]:
        """The result of a run that has ended; frees the run."""
        assert self.run is not None
        try:
            return self.connection.wait(self.run, text, id)
        finally:
            self._free()

    def abandon(self) -> None:
        """Kills the run if it is under way and forgets it; harmless for one that has ended."""
        _pending.pop(self.token, None)
        self._free()

    def _free(self) -> None:
        run, self.run = self.run, None
        if run is not None:
            self.connection.free(run)
            self.connection.release()


class _Loosely:
    """What `_pending` has of a LooseRun, which may be forgotten before its end."""

    __slots__ = ("_run",)

    def __init__(self, run: "LooseRun") -> None:
        self._run = weakref.ref(run)

    def on_end(self, _: Any) -> None:
        run = self._run()
        if run is not None:
            run.on_end()

    def abandon(self) -> None:
        pass


class LooseRun:
    """A run under way that anybody may wait for, any number of times. It holds no use of its connection but while somebody waits; when the
    connection goes, it is lost. Forgetting it frees the run, which kills the command unless it was started detached.

    Made with a use of the connection held.
    """

    __slots__ = ("connection", "token", "run", "_ended", "_callbacks", "_result", "_lock", "__weakref__")

    def __init__(self, connection: "_Connection", starter: Starter) -> None:
        self.connection = connection
        self.token = next(_tokens)
        self.run: Optional[int] = None
        self._ended = False
        self._callbacks: List[Callable[[], None]] = []
        self._result: Optional[Result[bytes]] = None
        self._lock = threading.Lock()
        _pending[self.token] = _Loosely(self)
        try:
            self.run = starter(connection.callback, self.token)
        except BaseException:
            _pending.pop(self.token, None)
            raise
        connection.loose[self.run] = self.token

    def on_end(self) -> None:
        with self._lock:
            self._ended = True
        while self._callbacks:          # nobody adds one any more; told twice, what is left of them
            self._callbacks[0]()
            with contextlib.suppress(IndexError):
                self._callbacks.pop(0)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Has callback() called once from any thread that dispatches, or at once; it must not block."""
        with self._lock:
            if not self._ended:
                self._callbacks.append(callback)
                return
        callback()

    def abandon(self) -> None:
        """Nobody waits any more; it runs on."""
        _pending.pop(self.token, None)

    def wait(self, timeout_s: Optional[float]) -> Optional[Result[bytes]]:
        """The result, which may have outcome error; None if there is none after timeout_s (None: for ever). Blocks. Raises EngineLost."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while self._result is None:
            left = _WAIT_SLICE_MS if end is None else max(0, min(_WAIT_SLICE_MS, math.ceil((end - time.monotonic()) * 1000)))
            if self.connection.process != os.getpid() or not self.connection.use():
                raise EngineLost("the engine was closed or lost, and with it the sandbox and this command", stage="result")
            try:
                raw = ctypes.POINTER(_ffi.RawResult)()
                status = self.connection.library.rollbox_wait(self.run, left, ctypes.byref(raw))
                if status >= 0:
                    self._result = result = copy_result(raw.contents)
                    self.connection.tell(self.token)
                    if isinstance(result.error, _LOST):
                        self.connection.lose(result.error)
                    break
                if status != -errno.ETIMEDOUT:
                    raise InternalError(f"waiting for a command failed: {os.strerror(-status)}", stage="result", errno=-status)
            finally:
                self.connection.release()
            if end is not None and time.monotonic() >= end:
                break
        return self._result

    def __del__(self) -> None:
        run, self.run = self.run, None
        _pending.pop(self.token, None)
        if run is None or self.connection.process != os.getpid() or not self.connection.use():
            return                          # it is freed with the connection
        try:
            if self.connection.loose.pop(run, None) is not None:
                self.connection.library.rollbox_run_free(run)
        finally:
            self.connection.release()


class _Connection:
    """A handle and the count of those who use it. Made with one use, the maker's."""

    def __init__(self, socket: Optional[bytes]) -> None:
        self.library = _ffi.lib()
        # Of all runs. None of ours: what a handler of a signal raises in one would be printed by ctypes, and be lost, with the run's end.
        self.callback = ctypes.cast(self.library.rollbox_queued, _ffi.CALLBACK)
        self.process = os.getpid()
        self._lock = threading.RLock()      # reentrant, for Engine.__del__ may retire it wherever the collector strikes
        self._telling = threading.RLock()   # one thread at a time tells owners of ends
        self._users = 1
        self.retired = False
        self.closed = False         # by whoever uses it, not lost
        self._runs: Dict[int, None] = {}
        self.loose: Dict[int, int] = {}     # of LooseRuns, with their tokens: freed at the latest with the handle
        self._plans: "OrderedDict[str, int]" = OrderedDict()
        options = _ffi.EngineOptions(size=ctypes.sizeof(_ffi.EngineOptions), socket_path=socket)
        handle = ctypes.c_void_p()
        error = _ffi.Error()
        if self.library.rollbox_engine_open(ctypes.byref(options), ctypes.byref(handle), ctypes.byref(error)) < 0:
            raise _ffi.exception(error)
        self.handle: Optional[int] = handle.value
        self.fd: int = self.library.rollbox_engine_fd(handle)
        self.pid: int = self.library.rollbox_engine_pid(handle)
        _log.debug("engine %d %s", self.pid, f"serves {os.fsdecode(socket)}" if socket else "started")
        _connections.add(self)

    def use(self) -> bool:
        """Counts the caller in; False if the connection is retired."""
        with self._lock:
            if self.retired:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        if self.process != os.getpid():
            return
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self._close()

    def retire(self, kill: bool = False) -> None:
        """No new users; with `kill`, ends the runs of the present ones. Gives up the maker's use, once."""
        with self._lock:
            if self.retired:
                return
            self.retired = True
            if kill:
                for run in self._runs:
                    self.library.rollbox_kill(run, _ffi.OUTCOME_ERROR)
            lost = [_pending.pop(token, None) for token in self.loose.values()]
        for loose in lost:
            if loose is not None:
                loose.on_end(None)
        self.release()

    def _close(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            if self.process == os.getpid():
                for run, token in list(self.loose.items()):
                    _pending.pop(token, None)
                    self.library.rollbox_run_free(run)
                self.loose.clear()
            self.library.rollbox_engine_close(handle)
        _connections.discard(self)

    def after_fork(self) -> None:
        """In a forked child, which has no use of this: closes the child's copies of the descriptors. The lock may be held for ever, so
        it isn't taken."""
        self.retired = True
        self._close()

    # Each of these is called with a use held.

    def plan(self, policy: str) -> int:
        """The compiled policy; asks the engine, and blocks, the first time."""
        with self._lock:
            plan = self._plans.get(policy)
            if plan is not None:
                self._plans.move_to_end(policy)
                return plan
        raw = policy.encode("utf-8")
        compiled = ctypes.c_void_p()
        error = _ffi.Error()
        if self.library.rollbox_prepare(self.handle, raw, len(raw), ctypes.byref(compiled), ctypes.byref(error)) < 0:
            raise _ffi.exception(error)
        assert compiled.value
        with self._lock:
            self._plans[policy] = compiled.value
            if len(self._plans) > _PLANS_KEPT:
                self._plans.popitem(last=False)
        return compiled.value

    def json(self, function: str) -> Any:
        """What a function of the library that takes the handle answers."""
        text = ctypes.c_void_p()
        error = _ffi.Error()
        if getattr(self.library, function)(self.handle, ctypes.byref(text), ctypes.byref(error)) < 0:
            raise _ffi.exception(error)
        return _ffi.take_json(text)

    def has_plan(self, policy: str) -> bool:
        return policy in self._plans

    def track(self, run: int) -> None:
        with self._lock:
            self._runs[run] = None
            late = self.retired
        if late:
            self.library.rollbox_kill(run, _ffi.OUTCOME_ERROR)

    def free(self, run: int) -> None:
        """Frees a run, killing it if it is under way."""
        if self.process != os.getpid():
            return
        with self._lock:
            self._runs.pop(run, None)
        self.library.rollbox_run_free(run)

    def wait(self, run: int, text: bool, id: Optional[JobId] = None) -> Result[Any]:
        """The result of a run; blocks until its end."""
        raw = ctypes.POINTER(_ffi.RawResult)()
        while True:
            status = self.library.rollbox_wait(run, _WAIT_SLICE_MS, ctypes.byref(raw))
            if status >= 0:
                break
            if status != -errno.ETIMEDOUT:
                raise InternalError(f"waiting for a run failed: {os.strerror(-status)}", stage="result", errno=-status)
        result = copy_result(raw.contents, text, id)
        if isinstance(result.error, _LOST):
            self.lose(result.error)
        return result

    def lose(self, error: BaseException) -> None:
        """Retires it for an error that says that the engine is gone."""
        if not self.retired and not self.closed:
            _log.warning("engine %d is lost: %s", self.pid, error)
        self.retire()

    def begin(self, starter: Starter, on_end: Callable[[PendingRun], None]) -> PendingRun:
        """Starts a run that no thread waits for. It holds a use of its own."""
        pending = PendingRun(self, on_end)
        with self._lock:
            self._users += 1
        _pending[pending.token] = pending
        try:
            pending.run = starter(self.callback, pending.token)
        except BaseException:
            _pending.pop(pending.token, None)
            self.release()
            raise
        self.track(pending.run)
        return pending

    def finish(self, starter: Starter, text: bool) -> Result[Any]:
        """Runs and blocks until the end."""
        run = starter()
        try:
            self.track(run)
            return self.wait(run, text)
        finally:
            self.free(run)

    def start(self, policy: str, request: Request, on_end: Callable[[PendingRun], None]) -> PendingRun:
        plan = self.plan(policy)
        return self.begin(lambda *callback: request.start(self.handle, plan, *callback), on_end)

    def run(self, policy: str, request: Request, text: bool) -> Result[Any]:
        plan = self.plan(policy)
        return self.finish(lambda *callback: request.start(self.handle, plan, *callback), text)

    def dispatch(self) -> bool:
        """Handles what has arrived, without blocking. False once the engine is lost; every run of it is then ended."""
        with self._lock:
            self._users += 1
        try:
            lost = self.library.rollbox_dispatch(self.handle) < 0
            self._tell_ended()
            if lost:
                self.retire()
            return not lost
        finally:
            self.release()

    def _tell_ended(self) -> None:
        """Tells the owners of runs that have ended, perhaps twice: where a handler of a signal raises in the middle of it, whoever dispatches next begins with the same one."""
        while True:
            token = self.library.rollbox_next_ended(self.handle)
            if token is None:
                return
            self.tell(token)

    def tell(self, token: int) -> None:
        """The owner of this run that it has ended."""
        with self._telling:
            pending = _pending.get(token)
            if pending is not None:
                pending.on_end(pending)
            _pending.pop(token, None)
            self.library.rollbox_told(self.handle, token)       # last: until then it is found again


_connections: Set[_Connection] = set()
"""Those not closed yet."""


class Engine:
    """An engine of one's own: private to this process, or the shared one that listens on `socket`.

    Sandbox and run_many use one private engine a process unless given another. Usable from any number of threads, and as a context
    manager. When the engine process dies, runs under way raise EngineLost and the next call starts (or joins) another. After fork()
    the child's copy opens a connection of its own. An Engine is not picklable; a Sandbox without an explicit engine is.

    Raises EngineStartFailed, EngineLost, ProtocolError, ResourceExhausted.
    """

    def __init__(self, socket: Optional[Union[str, "os.PathLike[str]"]] = None) -> None:
        self._socket = None if socket is None else os.fsencode(socket)
        if self._socket is not None and b"\0" in self._socket:
            raise InvalidArgument("socket has a NUL byte", stage="arguments")
        self._lock = threading.Lock()
        self._connection: Optional[_Connection] = None
        self._closed = False
        _engines.add(self)
        with self.connection():
            pass

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None:
            connection.retire()

    def __reduce__(self) -> Tuple[Any, ...]:
        raise TypeError("an Engine belongs to its process and cannot be pickled; open one there")

    @property
    def pid(self) -> int:
        """The engine's process id."""
        with self.connection() as connection:
            return connection.pid

    def status(self) -> Dict[str, Any]:
        """The engine's state: pid, version, sandboxes, queued, plans, spares, memory_budget_bytes, cgroup and more. Blocks; raises
        EngineLost."""
        status: Dict[str, Any] = self.attempt(lambda connection: connection.json("rollbox_engine_status"))
        return status

    def sandboxes(self) -> List[Dict[str, Any]]:
        """The sessions that this process may use on it: name, state, execs, created and more of each. Blocks; raises EngineLost."""
        listing = self.attempt(lambda connection: connection.json("rollbox_sandbox_list"))
        sandboxes: List[Dict[str, Any]] = listing["sandboxes"]
        return sandboxes

    def close(self, kill: bool = True) -> None:
        """Kills every sandbox of this engine; what is under way in other threads ends as an error. A private engine ends. May be
        called twice.

        kill=False: lets runs that are under way end, and the engine with the last of them.
        """
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.closed = True
            connection.retire(kill)

    @contextlib.contextmanager
    def connection(self) -> Iterator[_Connection]:
        """A live connection, counted as used meanwhile. (For this package.)"""
        connection = self.acquire()
        try:
            yield connection
        finally:
            connection.release()

    def acquire(self) -> _Connection:
        """A live connection with a use that the caller gives back by `release`. (For this package.)"""
        with self._lock:
            if self._closed:
                raise EngineLost("the engine is closed", stage="connect")
            connection = self._connection
            if connection is not None and connection.use():
                return connection
            self._connection = connection = _Connection(self._socket)
            connection.use()
            return connection

    def attempt(self, action: Callable[[_Connection], Any]) -> Any:
        """action(connection), once more with a new connection if the engine turns out to be lost before a run was started. (For this
        package.)

        A run that was under way when the engine went is not repeated: only the caller knows whether that may be.
        """
        for last in (False, True):
            with self.connection() as connection:
                try:
                    return action(connection)
                except _LOST as error:
                    connection.lose(error)
                    if last:
                        raise
        raise AssertionError

    def warm(self, policy: str) -> None:
        """Connects and compiles a policy, blocking. (For this package.)"""
        self.attempt(lambda connection: connection.plan(policy))

    def is_warm(self, policy: str) -> bool:
        """Whether a run of that policy can start without blocking. (For this package.)"""
        connection = self._connection
        return connection is not None and not connection.retired and connection.has_plan(policy)

    def start(self, policy: str, request: Request, on_end: Callable[[PendingRun], None]) -> PendingRun:
        """Starts a run that no thread waits for. (For this package.)"""
        pending: PendingRun = self.attempt(lambda connection: connection.start(policy, request, on_end))
        return pending

    def run(self, policy: str, request: Request, text: bool) -> Result[Any]:
        """Runs and blocks until the end. (For this package.)"""
        result: Result[Any] = self.attempt(lambda connection: connection.run(policy, request, text))
        return result

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._connection = None


_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()
_default: Optional[Engine] = None
_default_lock = threading.Lock()


def default_engine() -> Engine:
    """The engine that this process shares among all sandboxes without one of their own; started on first use, closed at exit."""
    global _default
    with _default_lock:
        if _default is None or _default._closed:
            _default = Engine()
        return _default


def _after_fork() -> None:
    global _default_lock
    _default_lock = threading.Lock()
    _pending.clear()
    for connection in list(_connections):
        connection.after_fork()
    for engine in list(_engines):
        engine._after_fork()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _at_exit() -> None:
    """Closes what is idle. Where daemon threads wait for runs, they are left to it: our socket closes with the process, and the engine
    ends them and itself."""
    for pending in list(_pending.values()):
        pending.abandon()
    for engine in list(_engines):
        engine.close(kill=False)
