# SPDX-License-Identifier: Apache-2.0
"""AsyncSandbox: Sandbox for asyncio, thousands of runs in flight on one thread.

While a loop has runs under way on a connection, it watches the engine's descriptor and dispatches. Any thread's dispatch may end any
loop's run, so an end only schedules the collection on the loop that owns the run; everything else here happens on that loop's thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, Dict, Literal, Optional, Set, Tuple, Union, overload

from ._engine import Engine, PendingRun, _Connection
from ._request import Argv, Data, Environment, Files, Request
from ._result import JobId, Result
from ._sandbox import _Base, one_input


class _Watch:
    """One loop's reader of one connection. It is there as long as the loop has runs on it, and they keep the connection open."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: _Connection) -> None:
        self.loop = loop
        self.connection = connection
        self.runs: Set[PendingRun] = set()
        self.reading = False

    def enter(self, pending: PendingRun) -> None:
        if not self.runs:
            self.loop.add_reader(self.connection.fd, self.dispatch)
            self.reading = True
        self.runs.add(pending)

    def leave(self, pending: PendingRun) -> None:
        self.runs.discard(pending)
        if not self.runs:
            self.stop()
            _watches.pop((self.loop, self.connection), None)

    def stop(self) -> None:
        if self.reading:
            self.reading = False
            if not self.loop.is_closed():
                self.loop.remove_reader(self.connection.fd)

    def dispatch(self) -> None:
        if not self.connection.dispatch():
            self.stop()


_watches: Dict[Tuple[asyncio.AbstractEventLoop, _Connection], _Watch] = {}
os.register_at_fork(after_in_child=_watches.clear)


def _watch(loop: asyncio.AbstractEventLoop, connection: _Connection) -> _Watch:
    watch = _watches.get((loop, connection))
    if watch is None:
        for other in list(_watches.values()):       # loops that were closed without cancelling their tasks
            if other.loop.is_closed():
                for pending in list(other.runs):
                    other.leave(pending)
                    pending.abandon()
        watch = _watches[loop, connection] = _Watch(loop, connection)
    return watch


async def run(engine: Engine, policy: str, request: Request, text: bool, id: Optional[JobId] = None) -> Result[Any]:
    """Runs a request; the result may have outcome error. A cancelled task kills the run."""
    loop = asyncio.get_running_loop()
    if not engine.is_warm(policy):
        await loop.run_in_executor(None, engine.warm, policy)
    thread = threading.get_ident()
    future: "asyncio.Future[None]" = loop.create_future()

    def done() -> None:
        if not future.done():
            future.set_result(None)

    def on_end(pending: PendingRun) -> None:
        try:
            (loop.call_soon if threading.get_ident() == thread else loop.call_soon_threadsafe)(done)
        except RuntimeError:        # the loop was closed with the run under way
            pending.abandon()

    pending = engine.start(policy, request, on_end)
    watch = _watch(loop, pending.connection)
    watch.enter(pending)
    try:
        await future
    except BaseException:
        watch.leave(pending)
        pending.abandon()
        raise
    watch.leave(pending)
    return pending.collect(text, id)


class AsyncSandbox(_Base):
    """Sandbox for asyncio (and loops like it that have add_reader, such as uvloop's). Usable from several loops in several threads at
    once; an async context manager."""

    async def __aenter__(self) -> "AsyncSandbox":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    @overload
    async def run(self, argv: Argv, *, timeout: Optional[float] = ..., stdin: Optional[Data] = ..., input: Optional[Data] = ...,
                  env: Optional[Environment] = ..., cwd: Optional[Union[str, "os.PathLike[str]"]] = ..., files: Optional[Files] = ...,
                  text: Literal[False] = ..., check: bool = ..., max_output: Optional[int] = ...) -> Result[bytes]: ...

    @overload
    async def run(self, argv: Argv, *, timeout: Optional[float] = ..., stdin: Optional[Data] = ..., input: Optional[Data] = ...,
                  env: Optional[Environment] = ..., cwd: Optional[Union[str, "os.PathLike[str]"]] = ..., files: Optional[Files] = ...,
                  text: Literal[True], check: bool = ..., max_output: Optional[int] = ...) -> Result[str]: ...

    @overload
    async def run(self, argv: Argv, *, timeout: Optional[float] = ..., stdin: Optional[Data] = ..., input: Optional[Data] = ...,
                  env: Optional[Environment] = ..., cwd: Optional[Union[str, "os.PathLike[str]"]] = ..., files: Optional[Files] = ...,
                  text: bool, check: bool = ..., max_output: Optional[int] = ...) -> Result[Any]: ...

    async def run(
        self,
        argv: Argv,
        *,
        timeout: Optional[float] = None,
        stdin: Optional[Data] = None,
        input: Optional[Data] = None,
        env: Optional[Environment] = None,
        cwd: Optional[Union[str, "os.PathLike[str]"]] = None,
        files: Optional[Files] = None,
        text: bool = False,
        check: bool = False,
        max_output: Optional[int] = None,
    ) -> Result[Any]:
        """As Sandbox.run, without blocking the loop. Cancelling the task kills the run, processes and files."""
        request = Request(argv, timeout=timeout, stdin=one_input(stdin, input), env=env, cwd=cwd, files=files, max_output=max_output)
        result = await run(self._get_engine(), self._policy.to_json(), request, text)
        if result.error is not None:
            raise result.error
        return result.check() if check else result
