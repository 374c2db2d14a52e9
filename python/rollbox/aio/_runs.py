# SPDX-License-Identifier: Apache-2.0
"""Runs for asyncio, thousands at once on one thread.

While a loop has runs on a connection, it watches the engine's descriptor and dispatches. Any
thread's dispatch may end any loop's run, so an end only schedules the collection on the loop that
owns the run; everything else here happens on that loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import Any, Callable, Optional, Union

from .._core.connection import Connection, DetachedRun, PendingRun
from .._core.errors import EngineLost
from .._core.handle import Handle
from .._core.request import Request
from .._core.result import JobId, Result
from .._engine import Engine


class _Watch:
    """One loop's reader of one connection.

    It exists as long as the loop has runs on the connection, which keep that open.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        self.loop = loop
        self.connection = connection
        self.runs: set[Union[PendingRun, DetachedRun]] = set()
        self.reading = False

    def enter(self, pending: Union[PendingRun, DetachedRun]) -> None:
        """Adds a run."""
        if not self.runs:
            self.loop.add_reader(self.connection.fd, self.dispatch)
            self.reading = True
        self.runs.add(pending)

    def leave(self, pending: Union[PendingRun, DetachedRun]) -> None:
        """Removes a run."""
        self.runs.discard(pending)
        if not self.runs:
            self.stop()
            _watches.pop((self.loop, self.connection), None)

    def stop(self) -> None:
        """Ends the reading."""
        if self.reading:
            self.reading = False
            if not self.loop.is_closed():
                self.loop.remove_reader(self.connection.fd)

    def dispatch(self) -> None:
        """Handles what has arrived."""
        if not self.connection.dispatch():
            self.stop()


_watches: dict[tuple[asyncio.AbstractEventLoop, Connection], _Watch] = {}
os.register_at_fork(after_in_child=_watches.clear)


def _watch(loop: asyncio.AbstractEventLoop, connection: Connection) -> _Watch:
    watch = _watches.get((loop, connection))
    if watch is None:
        # Loops may have been closed without cancelling their tasks.
        for other in list(_watches.values()):
            if other.loop.is_closed():
                for pending in list(other.runs):
                    other.leave(pending)
                    pending.abandon()
        watch = _watches[loop, connection] = _Watch(loop, connection)
    return watch


async def _wait_for_end(
    begin: Callable[[Callable[[PendingRun], None]], PendingRun],
    text: bool,
    id: Optional[JobId] = None,
) -> Result[Any]:
    """Begins a run and returns its result, which may have outcome "error".

    `begin` is given the function to call at the end. A cancelled task kills the run.
    """
    loop = asyncio.get_running_loop()
    thread = threading.get_ident()
    future: asyncio.Future[None] = loop.create_future()

    def done() -> None:
        if not future.done():
            future.set_result(None)

    def on_end(pending: PendingRun) -> None:
        try:
            (loop.call_soon if threading.get_ident() == thread else loop.call_soon_threadsafe)(done)
        except RuntimeError:  # the loop was closed with the run under way
            pending.abandon()

    pending = begin(on_end)
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


async def run(
    engine: Engine, policy: str, request: Request, text: bool, id: Optional[JobId] = None
) -> Result[Any]:
    """Runs a request; the result may have outcome "error". A cancelled task kills the run."""
    if not engine.is_warm(policy):
        await asyncio.get_running_loop().run_in_executor(None, engine.warm, policy)
    return await _wait_for_end(lambda on_end: engine.start(policy, request, on_end), text, id)


async def detached(run: DetachedRun) -> Result[bytes]:
    """The result of a DetachedRun. A cancelled task leaves it running. Raises EngineLost."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def done() -> None:
        if not future.done():
            future.set_result(None)

    def ended() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(done)

    if run.connection.use():
        try:
            run.when_ended(ended)
            watch = _watch(loop, run.connection)
            watch.enter(run)
            try:
                await future
            finally:
                watch.leave(run)
        finally:
            run.connection.release()
    result = run.wait(0)
    if result is None:
        raise EngineLost(
            "the engine was closed or lost, and with it the sandbox and this command",
            stage="result",
        )
    return result


async def command(handle: Handle, request: Any, text: bool) -> Result[Any]:
    """Runs a command of a session. A cancelled task kills the processes of it."""
    return await _wait_for_end(lambda on_end: handle.begin(request, on_end), text)
