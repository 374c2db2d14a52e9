# SPDX-License-Identifier: Apache-2.0
"""Handle: a session as one process knows it, a name on one connection to an engine.

A handle is counted as used while a thread is in a call on it, because the C handle may only be
freed when no thread is. A call uses the connection as well. Between calls nothing is held, so that
closing an engine closes all that it has. A forked child's handles are dead.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

from . import ffi
from .connection import Connection, Connector, DetachedRun, PendingRun
from .errors import EngineLost, NotFound, RollboxError
from .record import Record, Recording, close_answer
from .request import SessionRequest
from .result import Result


class Handle:
    """One sandbox. `ours`: it ends when nobody refers to the handle any more."""

    def __init__(self, engine: Connector, connection: Connection, address: int, ours: bool) -> None:
        self.engine = engine  # kept: a collected engine closes its connection
        self.connection = connection
        self.ours = ours
        self.process = os.getpid()
        self.name: str = connection.library.rollbox_sandbox_name(address).decode("ascii")
        self._lock = threading.RLock()
        self._address: Optional[int] = address
        self._users = 0
        self._closed = False
        self.recording: Optional[Recording] = None
        # The Process objects in use, here or in the sandbox that this one was forked from.
        self.processes: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    @classmethod
    def create(cls, engine: Connector, policy: str, options: ffi.SandboxOptions) -> Handle:
        """Makes a sandbox under a policy. Raises what rollbox_sandbox_create reports."""

        def action(connection: Connection) -> Handle:
            plan = connection.plan(policy)
            return cls(
                engine,
                connection,
                _output("rollbox_sandbox_create", connection.handle, plan, ctypes.byref(options)),
                not options.detached,
            )

        handle: Handle = engine.attempt(action)
        return handle

    @classmethod
    def open(cls, engine: Connector, name: bytes) -> Handle:
        """A sandbox that exists. Raises NotFound."""
        handle: Handle = engine.attempt(
            lambda connection: cls(
                engine, connection, _output("rollbox_sandbox_open", connection.handle, name), False
            )
        )
        return handle

    @contextlib.contextmanager
    def use(self) -> Iterator[int]:
        """The C handle, for calls within the block."""
        if self.process != os.getpid():
            raise EngineLost(
                f"sandbox {self.name} belongs to the process that this one was forked from; open "
                f"one of your own",
                stage="connect",
            )
        with self._lock:
            address = self._address
            if self._closed or address is None:
                raise NotFound(f"sandbox {self.name} is closed", stage="arguments")
            if not self.connection.use():
                raise EngineLost(
                    f"the engine of sandbox {self.name} was closed or lost, and the sandbox with "
                    f"it",
                    stage="connect",
                )
            self._users += 1
        try:
            yield address
        except EngineLost as error:
            self.connection.mark_lost(error)
            raise
        finally:
            with self._lock:
                self._users -= 1
                if self._closed and self._users == 0:
                    self._free()
            self.connection.release()

    def call(self, function: str, *arguments: Any) -> None:
        """Calls function(handle, *arguments, &error) of the library; raises what it reports."""
        error = ffi.Error()
        with self.use() as address:
            if (
                getattr(self.connection.library, function)(address, *arguments, ctypes.byref(error))
                < 0
            ):
                raise ffi.exception(error)

    def json(self, function: str, *arguments: Any) -> Any:
        """Calls function(handle, *arguments, &json, &error); returns the parsed JSON."""
        text = ctypes.c_void_p()
        self.call(function, *arguments, ctypes.byref(text))
        return ffi.take_json(text)

    def read_file(self, path: bytes, most: int) -> bytes:
        """The content of a file of at most so many bytes; 0: 1 GiB."""
        data, length = ctypes.c_void_p(), ctypes.c_size_t()
        self.call("rollbox_file_read", path, most, ctypes.byref(data), ctypes.byref(length))
        return ffi.take_bytes(data, length.value)

    def fork(self, snapshot: Optional[bytes], n: int, options: ffi.StateOptions) -> list[Handle]:
        """Makes n sandboxes in the state of a snapshot."""
        addresses = (ctypes.c_void_p * n)()
        try:
            self.call("rollbox_fork", snapshot, n, ctypes.byref(options), addresses)
        except BaseException:
            # A signal handler raises once the call has returned. Nothing else knows these forks.
            for address in filter(None, addresses):
                Handle(self.engine, self.connection, address, True).close()
            raise
        forks = [
            Handle(self.engine, self.connection, address, True) for address in addresses if address
        ]
        for fork in forks:
            fork.processes = self.processes
        return forks

    @staticmethod
    def fork_group(
        handles: Sequence[Handle], n: int, options: ffi.StateOptions
    ) -> list[list[Handle]]:
        """Makes n sandboxes in the present state of each, at one moment."""
        made = (ctypes.c_void_p * (len(handles) * n))()
        error = ffi.Error()
        connection = handles[0].connection
        with contextlib.ExitStack() as stack:
            addresses = [stack.enter_context(handle.use()) for handle in handles]
            result = connection.library.rollbox_fork_group(
                (ctypes.c_void_p * len(handles))(*addresses),
                len(handles),
                n,
                ctypes.byref(options),
                made,
                ctypes.byref(error),
            )
            if result < 0:
                raise ffi.exception(error)
        forks = [
            [
                Handle(handle.engine, connection, address, True)
                for address in made[i * n : i * n + n]
                if address
            ]
            for i, handle in enumerate(handles)
        ]
        for handle, copies in zip(handles, forks):
            for copy in copies:
                copy.processes = handle.processes
        return forks

    def claim(self, id: str, *slots: int) -> list[int]:
        """The other ends of a restored command's pipes; the caller closes them.

        They come in the order of the slots, the descriptors that the command was started with; -1
        where there is none.
        """
        fds = (ctypes.c_int * ffi.CLAIM_FDS)()
        self.call(
            "rollbox_claim",
            id.encode("utf-8", "surrogateescape"),
            sum(1 << slot for slot in slots),
            fds,
        )
        return [fds[slot] for slot in slots]

    def record(self, record: Record, child: bool = False) -> None:
        """Records the sandbox from now on. Closes it if that fails."""
        try:
            record.start(self, child)
        except BaseException:
            with contextlib.suppress(RollboxError):
                self.close()
            raise

    def finish(self, request: SessionRequest, text: bool) -> Result[Any]:
        """Runs a command and waits for its end. The result may have outcome "error"."""

        def starter(*callback: Any) -> int:
            with self.use() as address:
                started: int = request.start(address, *callback)
                return started

        if not self.connection.use():
            raise EngineLost(
                f"the engine of sandbox {self.name} was closed or lost, and the sandbox with it",
                stage="connect",
            )
        try:
            return self.connection.finish(starter, text)
        finally:
            self.connection.release()

    def begin(self, request: SessionRequest, on_end: Callable[[PendingRun], None]) -> PendingRun:
        """Starts a command that no thread waits for."""
        with self.use() as address:
            return self.connection.begin(
                lambda *callback: request.start(address, *callback), on_end
            )

    def start(self, request: SessionRequest) -> DetachedRun:
        """Starts a command that any thread may wait for."""
        with self.use() as address:
            return DetachedRun(self.connection, lambda *callback: request.start(address, *callback))

    def close(self) -> None:
        """Ends the sandbox.

        It does nothing the second time, in a forked child, and when the engine is gone, except that
        it reports a record that ended with the engine.
        """
        with self._lock:
            if self._closed or self.process != os.getpid():
                return
            self._closed = True
            address, busy = self._address, self._users > 0
            if not busy:
                self._address = None
        if address is None:
            return
        answer = self._finish(address, busy)
        if self.recording is not None:
            self.recording.end(answer)

    def _finish(self, address: int, busy: bool) -> Optional[dict[str, Any]]:
        """What the engine says of the sandbox's end; {} if the engine is lost.

        None if the sandbox had ended already (by its lifetime, by another handle, with the engine).
        """
        if not self.connection.use():
            if not busy:
                self.connection.library.rollbox_sandbox_free(address)
            return None if self.connection.closed else {}
        try:
            if busy:  # by another handle, because this one is freed by its last user
                try:
                    address = _output(
                        "rollbox_sandbox_open", self.connection.handle, self.name.encode("ascii")
                    )
                except NotFound:
                    return None
            error, text = ffi.Error(), ctypes.c_void_p()
            if (
                self.connection.library.rollbox_sandbox_finish(
                    address, ctypes.byref(text), ctypes.byref(error)
                )
                == 0
            ):
                answer = close_answer(ffi.take_text(text))
                return {} if answer.get("lost") else answer or None
            problem = ffi.exception(error)
            if isinstance(problem, NotFound):
                return None
            if not isinstance(problem, EngineLost):
                raise problem
            self.connection.mark_lost(problem)
            return {}
        finally:
            self.connection.release()

    def leave(self) -> None:
        """Lets go of the sandbox without ending it."""
        with self._lock:
            self._closed = True
            if self._users == 0 and self.process == os.getpid():
                self._free()

    def _free(self) -> None:
        address, self._address = self._address, None
        if address is not None:
            self.connection.library.rollbox_sandbox_free(address)

    def __del__(self) -> None:
        if getattr(self, "_address", None) is None:
            return
        if self.ours:
            with contextlib.suppress(RollboxError):
                self.close()
        else:
            self.leave()


def _output(function: str, *arguments: Any) -> int:
    """Calls a function of the library that outputs a handle and an error; returns the handle."""
    handle = ctypes.c_void_p()
    error = ffi.Error()
    if getattr(ffi.lib(), function)(*arguments, ctypes.byref(handle), ctypes.byref(error)) < 0:
        raise ffi.exception(error)
    assert handle.value
    return handle.value
