# SPDX-License-Identifier: Apache-2.0
"""Processes, streams and shells for asyncio.

The loop itself waits for output and for the end of commands. Each shell has a thread of its own,
since its commands take as long as they take.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional, Union

from .._core.errors import InvalidArgument
from .._core.request import Timeout
from .._core.result import Result
from .._process import Chunk, Process, Stream
from .._shell import Shell, ShellResult
from . import _runs
from ._threads import run_in_thread

_CHUNK = 65536


async def _readable(*fds: int) -> list[int]:
    """Waits until a descriptor can be read, or is at its end; returns those."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    found: list[int] = []

    def ready(fd: int) -> None:
        found.append(fd)
        loop.remove_reader(fd)
        if not future.done():
            future.set_result(None)

    for fd in fds:
        loop.add_reader(fd, ready, fd)
    try:
        await future
    finally:
        for fd in fds:
            loop.remove_reader(fd)
    return found


def _set_result(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class AsyncReader:
    """A stream of a command. One reader at a time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_blocking(fd, False)

    async def read(self, most: int = -1) -> bytes:
        """Reads the next bytes.

        Args:
            most: Up to how many; negative: all to the end.

        Returns:
            At least one byte; b"" at the end.
        """
        parts = []
        while self._fd >= 0:
            try:
                data = os.read(self._fd, _CHUNK if most < 0 else most)
            except BlockingIOError:
                await _readable(self._fd)
                continue
            if not data:
                break
            if most >= 0:
                return data
            parts.append(data)
        return b"".join(parts)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            data = await self.read(_CHUNK)
            if not data:
                return
            yield data


class AsyncWriter:
    """The standard input of a command."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_blocking(fd, False)

    async def write(self, data: bytes) -> None:
        """Writes all of the data, waiting for room.

        Args:
            data: The bytes.

        Raises:
            BrokenPipeError: The command does not read any more.
        """
        left = memoryview(data)
        loop = asyncio.get_running_loop()
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                room: asyncio.Future[None] = loop.create_future()
                loop.add_writer(self._fd, _set_result, room)
                try:
                    await room
                finally:
                    loop.remove_writer(self._fd)


class AsyncProcess:
    """Process for asyncio.

    Attributes:
        id: As of Process.
        stdin: `await stdin.write(data)`; None if the command was given its input.
        stdout: `await stdout.read(most)`, `async for data in stdout`.
        stderr: Likewise; None with a terminal.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self.id = process.id
        self.stdin = None if process.stdin is None else AsyncWriter(process.stdin.fileno())
        self.stdout = None if process.stdout is None else AsyncReader(process.stdout.fileno())
        self.stderr = None if process.stderr is None else AsyncReader(process.stderr.fileno())

    async def wait(self, timeout: Optional[float] = None, check: bool = False) -> Result[Any]:
        """As Process.wait. Cancelling the task leaves the command running."""
        try:
            await asyncio.wait_for(_runs.detached(self._process.run), timeout)
        except asyncio.TimeoutError:
            raise TimeoutError(f"command {self.id} still runs after {timeout} seconds") from None
        return self._process.wait(None, check)

    async def close_stdin(self) -> None:
        """Ends the command's input."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    async def kill(self, signal: int = 9, scope: str = "tree") -> None:
        """As Process.kill."""
        await run_in_thread(self._process.kill, signal, scope)

    async def resize(self, rows: int, columns: int) -> None:
        """As Process.resize."""
        await run_in_thread(self._process.resize, rows, columns)

    def close(self) -> None:
        """Closes its streams; the command runs on."""
        self._process.close()

    async def __aenter__(self) -> AsyncProcess:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.kill()
            with contextlib.suppress(Exception):
                await _runs.detached(self._process.run)
        finally:
            self.close()


class AsyncStream:
    """Stream for asyncio: `async for stream, data in box.stream("make")`."""

    def __init__(self, make: Callable[[], Awaitable[Stream]]) -> None:
        self._make = make
        self._stream: Optional[Stream] = None

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        stream = self._stream = await self._make()
        try:
            while stream.fds():
                for fd in await _readable(*stream.fds()):
                    stream.take(fd)
                for chunk in stream.ready():
                    yield chunk
            if stream.run is not None:
                stream.finish(await _runs.detached(stream.run))
        finally:
            if stream.run is not None:
                stream.close()

    @property
    def result(self) -> Result[Any]:
        """The command's result, once the stream is at its end.

        Raises:
            InvalidArgument: The stream is not at its end.
        """
        if self._stream is None or self._stream.run is not None:
            raise InvalidArgument(
                "the stream is not at its end yet, so there is no result", stage="result"
            )
        return self._stream.result


class AsyncShell:
    """Shell for asyncio."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._thread = ThreadPoolExecutor(1, "rollbox-shell")

    @property
    def id(self) -> Optional[str]:
        """As Shell.id."""
        return self._shell.id

    async def run(
        self,
        command: Union[str, bytes],
        timeout: Timeout = None,
        *,
        text: bool = False,
        check: bool = False,
        max_output: Optional[int] = None,
    ) -> ShellResult[Any]:
        """As Shell.run.

        A cancelled task does not wait any more; the command runs on to its end or time-out.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._thread,
            functools.partial(
                self._shell.run, command, timeout, text=text, check=check, max_output=max_output
            ),
        )

    async def close(self) -> None:
        """As Shell.close."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._shell.close)
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> AsyncShell:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
