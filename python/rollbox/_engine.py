# SPDX-License-Identifier: Apache-2.0
"""Engine: the process that owns sandboxes.

An Engine opens a Connection when it needs one, and another when that one is lost. After fork() the
child's engines have no connection; each opens its own on first use.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Callable, Optional, TypeVar, Union

from ._core.connection import LOST_ERRORS, Connection, PendingRun, forget_connections, pending_runs
from ._core.errors import EngineLost, InvalidArgument
from ._core.request import Request
from ._core.result import Result

_T = TypeVar("_T")


class Engine:
    """An engine of one's own: private to this process, or the shared one that listens on `socket`.

    Sandbox and run_many use one private engine a process unless given another. Usable from any number of threads, and as a context
    manager. When the engine process dies, runs under way raise EngineLost and the next call starts (or joins) another. After fork()
    the child's copy opens a connection of its own. An Engine is not picklable; a Sandbox without an explicit engine is.

    Raises EngineStartFailed, EngineLost, ProtocolError, ResourceExhausted.
    """

    def __init__(self, socket: Optional[Union[str, os.PathLike[str]]] = None) -> None:
        self._socket = None if socket is None else os.fsencode(socket)
        if self._socket is not None and b"\0" in self._socket:
            raise InvalidArgument("socket has a NUL byte", stage="arguments")
        self._lock = threading.Lock()
        self._connection: Optional[Connection] = None
        self._closed = False
        _engines.add(self)
        with self.connection():
            pass

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None:
            connection.retire()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("an Engine belongs to its process and cannot be pickled; open one there")

    @property
    def pid(self) -> int:
        """The engine's process id."""
        with self.connection() as connection:
            return connection.pid

    def status(self) -> dict[str, Any]:
        """The engine's state: pid, version, sandboxes, queued, plans, spares, memory_budget_bytes, cgroup and more. Blocks; raises
        EngineLost."""
        status: dict[str, Any] = self.attempt(
            lambda connection: connection.json("rollbox_engine_status")
        )
        return status

    def sandboxes(self) -> list[dict[str, Any]]:
        """The sessions that this process may use on it: name, state, execs, created and more of each. Blocks; raises EngineLost."""
        listing = self.attempt(lambda connection: connection.json("rollbox_sandbox_list"))
        sandboxes: list[dict[str, Any]] = listing["sandboxes"]
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
    def connection(self) -> Iterator[Connection]:
        """A live connection, counted as used meanwhile. (For this package.)"""
        connection = self.acquire()
        try:
            yield connection
        finally:
            connection.release()

    def acquire(self) -> Connection:
        """A live connection with a use that the caller gives back by `release`. (For this package.)"""
        with self._lock:
            if self._closed:
                raise EngineLost("the engine is closed", stage="connect")
            connection = self._connection
            if connection is not None and connection.use():
                return connection
            self._connection = connection = Connection(self._socket)
            connection.use()
            return connection

    def attempt(self, action: Callable[[Connection], _T]) -> _T:
        """action(connection), once more with a new connection if the engine turns out to be lost before a run was started. (For this
        package.)

        A run that was under way when the engine went is not repeated: only the caller knows whether that may be.
        """
        for last in (False, True):
            with self.connection() as connection:
                try:
                    return action(connection)
                except LOST_ERRORS as error:
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

    def start(
        self, policy: str, request: Request, on_end: Callable[[PendingRun], None]
    ) -> PendingRun:
        """Starts a run that no thread waits for. (For this package.)"""
        pending: PendingRun = self.attempt(
            lambda connection: connection.start(policy, request, on_end)
        )
        return pending

    def run(self, policy: str, request: Request, text: bool) -> Result[Any]:
        """Runs and blocks until the end. (For this package.)"""
        result: Result[Any] = self.attempt(lambda connection: connection.run(policy, request, text))
        return result

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._connection = None


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
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
    forget_connections()
    for engine in list(_engines):
        engine._after_fork()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _at_exit() -> None:
    """Closes what is idle. Where daemon threads wait for runs, they are left to it: our socket closes with the process, and the engine
    ends them and itself."""
    for pending in list(pending_runs.values()):
        pending.abandon()
    for engine in list(_engines):
        engine.close(kill=False)
