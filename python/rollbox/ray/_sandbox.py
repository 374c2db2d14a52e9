# SPDX-License-Identifier: Apache-2.0
"""Handles of sandboxes on the nodes of a pool: picklable, for blocking callers and for asyncio.

A handle has the methods of Sandbox. A process or shell that a method returns is such a handle, too.
The process that holds a handle renews its lease, so a sandbox ends soon after the last process that
knows of it, however that process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import tempfile
import threading
import time
import weakref
from typing import Any, Optional

from .. import _process, _sandbox, _shell
from .._core.errors import EngineLost, FeatureMissing, InvalidArgument, RollboxError
from .._snapshots import Snapshot
from ._objects import Reference
from ._transfer import pack, unpack

_CLASSES: dict[str, Any] = {
    "Sandbox": _sandbox.Sandbox,
    "Process": _process.Process,
    "Shell": _shell.Shell,
    "Stream": _process.Stream,
}


@dataclasses.dataclass(frozen=True)
class PoolSnapshot:
    """A snapshot of a sandbox of a pool.

    Attributes:
        box: The sandbox.
        snapshot: The Snapshot.
    """

    box: PoolSandbox
    snapshot: Snapshot

    @property
    def id(self) -> str:
        """Its id on its node."""
        return self.snapshot.id


@dataclasses.dataclass(frozen=True)
class Published:
    """A snapshot that any node of the cluster can fork, once it has it. Picklable.

    Attributes:
        digest: The SHA-256 of its content.
        bytes: The size of its content.
        source: The object of Ray's store, or the path or URI of a file.
        processes: "keep" or "drop".
        home: The node on which it was taken.
    """

    digest: str
    bytes: int
    source: Any
    processes: str
    home: str


_OWN = ("fork", "upload", "download", "export", "connect")
"""Methods of a PoolSandbox that are more than a call on its node."""


def _plain(value: Any) -> Any:
    """An argument as its node takes it."""
    if isinstance(value, (PoolSnapshot, Snapshot)):
        return value.id
    return value


class Handle:
    """An object on a node. Its attributes and methods are those of the object's class."""

    def __init__(self, host: Any, node: str, reference: Reference, lease_s: float) -> None:
        self._host, self._node, self._reference, self._lease_s = host, node, reference, lease_s
        self._closed = False
        _renewer.add(self)

    def __reduce__(self) -> Any:
        return type(self), (self._host, self._node, self._reference, self._lease_s)

    def __repr__(self) -> str:
        kind, target = self._reference.kind, self._reference.target
        return f"{type(self).__name__}({kind} {target} on node {self._node[:12]})"

    @property
    def node(self) -> str:
        """The id of its node."""
        return self._node

    def _made(self, value: Any) -> Any:
        """A value of the node as the caller gets it."""
        if isinstance(value, Reference):
            kind = PoolSandbox if value.kind == "Sandbox" else Handle
            return kind(self._host, self._node, value, self._lease_s)
        if isinstance(value, list) and value and isinstance(value[0], Reference):
            return [self._made(one) for one in value]
        if isinstance(value, Snapshot) and isinstance(self, PoolSandbox):
            return PoolSnapshot(self, value)
        return value

    def _start(self, name: str, arguments: Any, options: Any) -> Any:
        plain = [_plain(value) for value in arguments]
        return self._host.call(
            "call",
            self._reference.target,
            name,
            plain,
            {key: _plain(value) for key, value in options.items()},
        )

    def _value(self, answer: tuple[bool, Any]) -> Any:
        good, value = answer
        if not good:
            raise value
        return self._made(value)

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        return self._value(self._start(name, arguments, options).result())

    async def _call_async(self, name: str, *arguments: Any, **options: Any) -> Any:
        return self._value(await asyncio.wrap_future(self._start(name, arguments, options)))

    def _is_method(self, name: str) -> bool:
        found = getattr(_CLASSES.get(self._reference.kind), name, None)
        if callable(found):
            return True
        if found is None and self._reference.kind == "Sandbox":
            raise AttributeError(f"a sandbox of a pool has no {name}")
        return found is None and self._reference.kind not in _CLASSES

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if not self._is_method(name):
            return self._call(name)

        def method(*arguments: Any, **options: Any) -> Any:
            return self._call(name, *arguments, **options)

        method.__name__ = name
        return method

    @property
    def aio(self) -> AsyncHandle:
        """The same object for asyncio: its methods are coroutines."""
        return AsyncHandle(self)

    def close(self) -> None:
        """Ends the object on its node. May be called twice; a lost node is fine."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(EngineLost):
                self._host.call("drop", [self._reference.target]).result()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> AsyncHandle:
        return self.aio

    async def __aexit__(self, *_: object) -> None:
        await self.aio.close()


class PoolSandbox(Handle):
    """A sandbox on a node of a pool, with the methods of Sandbox."""

    _pool: Any = None
    _release: Any = None

    def fork(self, n: int = 1, *, spread: str = "local", **options: Any) -> list[PoolSandbox]:
        """Makes copies of the sandbox, with its processes.

        Args:
            n: How many.
            spread: "local": on the sandbox's node; "cluster": over all nodes of the pool, by their
                slots. The state then goes through the object store once.
            options: As for Sandbox.fork.

        Returns:
            The copies.

        Raises:
            InvalidArgument: An argument is wrong, or the handle came from another process and
                spread is "cluster".
            RollboxError: As for Sandbox.fork.
        """
        if spread == "local":
            made: list[PoolSandbox] = self._call("fork", n, **options)
            pool = self._pool() if self._pool is not None else None
            return pool._adopt_forks(made) if pool is not None else made
        if spread != "cluster":
            raise InvalidArgument(
                f'spread must be "local" or "cluster", not {spread!r}', stage="arguments"
            )
        pool = self._pool() if self._pool is not None else None
        if pool is None:
            raise InvalidArgument(
                'fork with spread "cluster" is for the process that has the Pool',
                stage="arguments",
            )
        forks: list[PoolSandbox] = pool._fork_over_cluster(self, n, **options)
        return forks

    def upload(self, host: Any, guest: Any, **options: Any) -> None:
        """Copies a file or tree of this machine into the sandbox; see Sandbox.upload.

        It goes through the memory of both machines.
        """
        target, data = self._reference.target, pack(os.fspath(host))
        self._value(self._host.call("upload", target, data, os.fspath(guest), options).result())

    def download(self, guest: Any, host: Any, *, max_bytes: Optional[int] = None) -> None:
        """Copies a file or tree of the sandbox to this machine; `host` must not exist.

        It goes through the memory of both machines.
        """
        if os.path.lexists(host):
            raise InvalidArgument(f"{host} exists; name a new path", stage="files")
        target = self._reference.target
        call = self._host.call("download", target, os.fspath(guest), max_bytes)
        parent = os.path.dirname(os.path.abspath(host))
        with tempfile.TemporaryDirectory(prefix=".rollbox-", dir=parent) as place:
            os.rename(unpack(self._value(call.result()), place), host)

    def export(self, *_: Any, **__: Any) -> None:
        """Raises FeatureMissing: Pool.publish is for this."""
        raise FeatureMissing(
            "the file would be on another machine; use Pool.publish", stage="files"
        )

    def connect(self, port: int) -> None:
        """Raises FeatureMissing: a socket cannot leave its node."""
        raise FeatureMissing(
            f"a connection to port {port} cannot leave its node; `url(port)` has an address",
            stage="connect",
        )

    def _adopt_pool(self, pool: Any, release: Any) -> PoolSandbox:
        """Belongs to a pool: release() is called when it is closed or collected."""
        self._pool = weakref.ref(pool)
        self._release = weakref.finalize(self, release)
        self._release.atexit = False
        return self

    def close(self) -> None:
        """Ends the sandbox. May be called twice; a lost node is fine."""
        super().close()
        if self._release is not None:
            self._release()

    def __del__(self) -> None:
        # The lease ends by itself; the pool's thread may do it sooner.
        pool = self._pool() if self.__dict__.get("_pool") is not None else None
        if pool is not None and not self._closed:
            pool._drop_later(self._host, self._reference.target)


class AsyncHandle:
    """An object on a node whose methods are coroutines."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __reduce__(self) -> Any:
        return AsyncHandle, (self._handle,)

    def __repr__(self) -> str:
        return f"Async{self._handle!r}"

    @property
    def sync(self) -> Handle:
        """The handle for blocking callers."""
        return self._handle

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        async def method(*arguments: Any, **options: Any) -> Any:
            if name in _OWN and isinstance(self._handle, PoolSandbox):
                loop = asyncio.get_running_loop()
                own: Any = getattr(self._handle, name)
                found = await loop.run_in_executor(None, lambda: own(*arguments, **options))
            else:
                found = await self._handle._call_async(name, *arguments, **options)
            if isinstance(found, list):
                return [one.aio if isinstance(one, Handle) else one for one in found]
            return found.aio if isinstance(found, Handle) else found

        method.__name__ = name
        return method

    async def close(self) -> None:
        """Ends the object on its node."""
        handle = self._handle
        if not handle._closed:
            handle._closed = True
            with contextlib.suppress(EngineLost):
                await asyncio.wrap_future(handle._host.call("drop", [handle._reference.target]))
            if isinstance(handle, PoolSandbox) and handle._release is not None:
                handle._release()

    async def __aenter__(self) -> AsyncHandle:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Renewer:
    """Renews the leases of this process's handles, from one thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._thread: Optional[threading.Thread] = None
        self._added = threading.Event()

    def add(self, handle: Handle) -> None:
        with self._lock:
            self._handles.add(handle)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="rollbox-leases", daemon=True
                )
                self._thread.start()
        self._added.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                handles = [one for one in self._handles if not one._closed]
            hosts: dict[str, tuple[Any, list[int]]] = {}
            for handle in handles:
                host = hosts.setdefault(handle._host.name, (handle._host, []))
                host[1].append(handle._reference.target)
            shortest = min((handle._lease_s for handle in handles), default=60.0)
            del handles
            for host, targets in hosts.values():
                with contextlib.suppress(RollboxError):
                    host.call("renew", targets)
            self._added.wait(shortest / 3)
            time.sleep(min(0.1, shortest / 4))  # many handles are often made at once
            self._added.clear()


_renewer = _Renewer()
