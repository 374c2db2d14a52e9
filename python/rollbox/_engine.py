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
import urllib.parse
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional, TypeVar, Union, cast

from ._core.connection import LOST_ERRORS, Connection, PendingRun, forget_connections, pending_runs
from ._core.errors import EngineLost, FeatureMissing, InvalidArgument
from ._core.handle import Handle
from ._core.options import state_options
from ._core.remote import Remote, RemoteHandle, is_url
from ._core.request import Request
from ._core.result import Result

_T = TypeVar("_T")
_Path = Union[str, "os.PathLike[str]"]


_AMOUNTS: dict[str, Callable[[dict[str, Any]], float]] = {
    "cpu_s": lambda row: row["cpu_ms"] / 1000,
    "gib_s": lambda row: row["gib_s"],
    "disk_gib_s": lambda row: row["disk_gib_s"],
    "snapshot_gib_s": lambda row: row["snapshot_gib_s"],
    "call": lambda row: row["runs"] + row["commands"],
}
"""What has a price, and its amount in a row of usage."""


def _pair(
    certificate: Optional[Union[_Path, tuple[_Path, _Path]]],
) -> Optional[tuple[str, Optional[str]]]:
    """The files of a client's certificate and of its key, if that is another one."""
    if certificate is None:
        return None
    if not isinstance(certificate, tuple):
        return os.fspath(certificate), None
    if len(certificate) != 2:
        raise InvalidArgument(
            "certificate is a file, or a tuple of two: certificate and key", stage="arguments"
        )
    return os.fspath(certificate[0]), os.fspath(certificate[1])


class Engine:
    """The process that owns sandboxes: a private engine, or a shared one on a socket.

    Sandbox and run_many use one private engine per process unless they are given another. Any
    number of threads may use an Engine; it is a context manager. When the engine process dies, runs
    raise EngineLost and the next call starts, or joins, another one. After fork() the child's copy
    opens a connection of its own. An Engine cannot be pickled; a Sandbox without an engine of its
    own can.

    Args:
        socket: The path on which a shared engine listens, or the address of a server (`rollbox
            serve`): http://HOST[:PORT], https://HOST[:PORT] or unix:PATH. None: start a private
            engine.
        token: The server's token. On its Unix socket, the server's own user needs none.
        ca: A PEM file of the authorities that may have signed the server's certificate, instead of
            the system's.
        certificate: The client's own certificate: a PEM file with its key, or the two files.

    Raises:
        EngineStartFailed: No engine could be started or reached.
        EngineLost: The engine ended at once.
        ProtocolError: The engine has another version.
        ResourceExhausted: The host has no room for it.

    Example:
        >>> from rollbox import Engine, Sandbox
        >>> with Engine() as engine:
        ...     Sandbox(engine=engine).run(["true"]).ok
        True
    """

    def __init__(
        self,
        socket: Optional[Union[str, os.PathLike[str]]] = None,
        *,
        token: Optional[str] = None,
        ca: Optional[_Path] = None,
        certificate: Optional[Union[_Path, tuple[_Path, _Path]]] = None,
    ) -> None:
        self.remote: Optional[Remote] = None
        self._connection: Optional[Connection] = None
        self._closed = False
        self._lock = threading.Lock()
        if isinstance(socket, str) and is_url(socket):
            self._socket = None
            self.remote = Remote(
                socket, token, None if ca is None else os.fspath(ca), _pair(certificate)
            )
            self.remote.ask("GET", "/v1/sandboxes")
            _engines.add(self)
            return
        if token is not None or ca is not None or certificate is not None:
            raise InvalidArgument(
                "token, ca and certificate are for the address of a server: http://, https:// or "
                "unix:",
                stage="arguments",
            )
        self._socket = None if socket is None else os.fsencode(socket)
        if self._socket is not None and b"\0" in self._socket:
            raise InvalidArgument("socket has a NUL byte", stage="arguments")
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
        """Describes the engine.

        Returns:
            A dict with pid, version, sandboxes, queued, plans, spares, memory_budget_bytes, cgroup
            and more.

        Raises:
            EngineLost: The engine is gone.
        """
        status: dict[str, Any] = (
            self.remote.ask("GET", "/v1/status")
            if self.remote is not None
            else self.attempt(lambda connection: connection.json("rollbox_engine_status"))
        )
        return status

    def sandboxes(self) -> list[dict[str, Any]]:
        """Lists the sessions of the engine that this process may use.

        Returns:
            For each a dict with name, state, execs, created and more.

        Raises:
            EngineLost: The engine is gone.
        """
        listing = (
            self.remote.ask("GET", "/v1/sandboxes")
            if self.remote is not None
            else self.attempt(lambda connection: connection.json("rollbox_sandbox_list"))
        )
        sandboxes: list[dict[str, Any]] = listing["sandboxes"]
        return sandboxes

    def stats(self) -> list[dict[str, Any]]:
        """Lists what each session uses now.

        Returns:
            For each session of `sandboxes` a dict as of Sandbox.stats.

        Raises:
            EngineLost: The engine is gone.
        """
        listing = self.attempt(lambda connection: connection.json("rollbox_sandbox_stats"))
        sandboxes: list[dict[str, Any]] = listing["sandboxes"]
        return sandboxes

    def usage(self, by: str = "tenant", label: Optional[str] = None) -> list[dict[str, Any]]:
        """Sums what runs and sandboxes on a server have used.

        Args:
            by: "rollout", "label", "tenant", "sandbox" or "lease". "rollout" is the label of that
                name (`labels`).
            label: With "label": the values of this label alone.

        Returns:
            For each a dict with cpu_ms, gib_s, disk_gib_s, snapshot_gib_s, wall_ms, runs,
            commands, running_s, paused_s, hibernated_s, bytes_in and bytes_out, and with cost if
            the server has prices.

        Raises:
            FeatureMissing: This is an engine of this machine, which keeps no sums.
            InvalidArgument: by is not known.
            EngineLost: The server is gone.
        """
        if self.remote is None:
            raise FeatureMissing(
                "an engine of this machine keeps no sums of what was used; a server does, and "
                "`rollbox cost` reads those of trajectories",
                stage="arguments",
            )
        query = {"by": by} if label is None else {"by": by, "label": label}
        answer = self.remote.ask("GET", "/v1/usage?" + urllib.parse.urlencode(query))
        rows: list[dict[str, Any]] = answer["usage"]
        return rows

    def cost(
        self,
        by: str = "rollout",
        *,
        label: Optional[str] = None,
        prices: Optional[Mapping[str, float]] = None,
    ) -> dict[str, Any]:
        """Sums what runs and sandboxes on a server cost.

        Args:
            by: As for `usage`.
            label: As for `usage`.
            prices: Prices of cpu_s, gib_s, disk_gib_s, snapshot_gib_s and call; None: the server's.

        Returns:
            A dict with rows (as of `usage`, each with cost), count, total, and per_million: the
            cost of a million of these rows at their mean.

        Raises:
            FeatureMissing: As for `usage`.
            InvalidArgument: There are no prices, or a key of them is not known.

        Example:
            >>> engine.cost(prices={"cpu_s": 1.4e-5})["per_million"]  # doctest: +SKIP
            3.1
        """
        if prices is not None and not set(prices) <= set(_AMOUNTS):
            raise InvalidArgument(
                f"prices may have {', '.join(_AMOUNTS)}, not {', '.join(prices)}", stage="arguments"
            )
        rows = self.usage(by, label)
        for row in rows:
            if prices is not None:
                row["cost"] = sum(prices.get(key, 0) * of(row) for key, of in _AMOUNTS.items())
            elif "cost" not in row:
                raise InvalidArgument(
                    "the server has no prices: give some, or start it with --prices",
                    stage="arguments",
                )
        total = sum(row["cost"] for row in rows)
        mean = total / len(rows) if rows else 0.0
        return {"rows": rows, "count": len(rows), "total": total, "per_million": mean * 1e6}

    def fork_group(
        self, boxes: Sequence[Any], n: int = 1, *, same_seed: bool = False
    ) -> list[list[Any]]:
        """Forks several sessions at one moment.

        The processes of all are paused until the states of all are taken. Forks of members of a
        private network (the policy's key `network`) with the same index are a network of their own
        and have the names of the originals there. Connections between sessions are reset in the
        copies. All forks are made, or none. They are not recorded.

        Args:
            boxes: Sandboxes of one engine, such as an application and its database.
            n: How many forks of each.
            same_seed: As for Sandbox.fork.

        Returns:
            A list for each index: the forks in the order of boxes.

        Raises:
            FeatureMissing: A process has something that cannot be captured; nothing has changed.
            NotFound: A session is closed.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1 or not boxes:
            raise InvalidArgument(
                "boxes must name a sandbox, and n be a positive number", stage="arguments"
            )
        if self.remote is not None:
            group = [box._session() for box in boxes]
            forks = RemoteHandle.fork_group(self.remote, group, n, same_seed)
        else:
            with self.connection():
                handles = [box._session() for box in boxes]
                forks = Handle.fork_group(handles, n, state_options("keep", same_seed))
        made = [box._adopt(copies, None) for box, copies in zip(boxes, forks)]
        return [list(copies) for copies in zip(*made)]

    def debug(self) -> dict[str, Any]:
        """Says what the engine is in the middle of, for a bug report.

        Returns:
            A dict with sandboxes, their operations and commands, what each waits for and since
            when. Its keys may change with any version.

        Raises:
            EngineLost: The engine is gone.
        """
        dump: dict[str, Any] = self.attempt(
            lambda connection: connection.json("rollbox_engine_debug")
        )
        return dump

    def close(self, kill: bool = True) -> None:
        """Kills every sandbox of this engine and ends it. May be called twice.

        Runs of other threads end as an error. A shared engine continues without this process's
        sandboxes.

        Args:
            kill: False: let runs end that are under way, and the engine with the last of them.
        """
        if self.remote is not None:
            self.remote.close()
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.closed = True
            connection.retire(kill)

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        """(For this package.) An open connection, counted as used within the block."""
        connection = self.acquire()
        try:
            yield connection
        finally:
            connection.release()

    def acquire(self) -> Connection:
        """(For this package.) An open connection, which the caller releases."""
        if self.remote is not None:
            raise FeatureMissing(
                f"a server ({self.remote.url}) does not offer this yet; use an engine of this "
                "machine",
                stage="connect",
            )
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
        """(For this package.) Calls action(connection), again if the engine is lost.

        A run that was under way when the engine went is not repeated: only the caller knows whether
        that may be.
        """
        for last in (False, True):
            with self.connection() as connection:
                try:
                    return action(connection)
                except LOST_ERRORS as error:
                    connection.mark_lost(error)
                    if last:
                        raise
        raise AssertionError

    def warm(self, policy: str) -> None:
        """(For this package.) Connects and compiles a policy, blocking."""
        if self.remote is not None:
            return
        self.attempt(lambda connection: connection.plan(policy))

    def is_warm(self, policy: str) -> bool:
        """(For this package.) Whether a run of this policy can start without blocking."""
        connection = self._connection
        if self.remote is not None:
            return True
        return connection is not None and not connection.retired and connection.has_plan(policy)

    def start(
        self, policy: str, request: Request, on_end: Callable[[PendingRun], None]
    ) -> PendingRun:
        """(For this package.) Starts a run that no thread waits for."""
        if self.remote is not None:
            return cast(PendingRun, self.remote.start(policy, request, on_end))
        pending: PendingRun = self.attempt(
            lambda connection: connection.start(policy, request, on_end)
        )
        return pending

    def run(self, policy: str, request: Request, text: bool) -> Result[Any]:
        """(For this package.) Runs and waits for the end."""
        if self.remote is not None:
            return self.remote.run(policy, request, text)
        result: Result[Any] = self.attempt(lambda connection: connection.run(policy, request, text))
        return result

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        if self.remote is not None:
            self.remote.after_fork()
        self._connection = None


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_default: Optional[Engine] = None
_default_lock = threading.Lock()


def default_engine() -> Engine:
    """Returns the engine that this process shares among sandboxes.

    It is started on first use and closed at exit.

    Returns:
        The engine.

    Raises:
        EngineStartFailed: It cannot be started.
    """
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
    """Closes what is idle.

    Daemon threads that wait for runs continue to wait: the socket closes with the process, and the
    engine then ends them and itself.
    """
    for pending in list(pending_runs.values()):
        pending.abandon()
    for engine in list(_engines):
        engine.close(kill=False)
