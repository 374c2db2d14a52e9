# SPDX-License-Identifier: Apache-2.0
"""The program `rollbox`, which does what has to do with images.

Its standard output and its standard error are read at the same time, so that none of them fills
its pipe while the other one is waited for.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Sequence
from typing import IO, Any, Callable, Optional

from . import errors, ffi

_KEPT_BYTES = 1 << 20  # of standard error: its last line says what has failed
_LINE_BYTES = 1 << 26


def program() -> str:
    """Its path."""
    for place in ffi.find_binary("rollbox"):
        if place.is_file():
            return str(place)
    raise errors.EngineStartFailed("the program rollbox is missing; install the whole package")


def program_error(text: bytes) -> errors.RollboxError:
    """The exception for its standard error, whose last line is the error as JSON."""
    try:
        found = json.loads(text.splitlines()[-1])["error"]
    except (IndexError, ValueError, KeyError, TypeError):
        return errors.InternalError(text.decode(errors="replace") or "the program was killed")
    cls = ffi.exception_class(found["code"]) or errors.RollboxError
    return cls(found["message"], stage=found.get("stage", ""), errno=found.get("errno") or None)


class _Messages:
    """The end of the standard error. `shown`: all of it goes to this process's, as it comes."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self.text = b""

    def add(self, data: bytes) -> None:
        self.text = (self.text + data)[-_KEPT_BYTES:]
        if self._shown:
            os.write(2, data)


def _pipes(data: Optional[bytes]) -> dict[str, Any]:
    return {
        "stdin": subprocess.DEVNULL if data is None else subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }


def _feed(to: IO[bytes], data: bytes) -> None:
    try:
        with to:
            to.write(data)
    except BrokenPipeError:  # it has ended, and its status says why
        pass


def _drain(source: IO[bytes], messages: _Messages) -> None:
    while data := os.read(source.fileno(), 65536):
        messages.add(data)


def run_program(
    words: Sequence[str],
    on_line: Callable[[bytes], None],
    *,
    data: Optional[bytes] = None,
    shown: bool = False,
) -> None:
    """Runs it to its end; `on_line` gets each line of its output, and `data` is its input.

    Raises:
        RollboxError: Its status is not 0. What `on_line` raises ends it, too.
    """
    messages = _Messages(shown)
    with subprocess.Popen(words, **_pipes(data)) as process:
        assert process.stdout is not None and process.stderr is not None
        work = [threading.Thread(target=_drain, args=(process.stderr, messages), daemon=True)]
        if data is not None and process.stdin is not None:
            feeding = (process.stdin, data)
            process.stdin = None
            work.append(threading.Thread(target=_feed, args=feeding, daemon=True))
        try:
            for thread in work:
                thread.start()
            for line in process.stdout:
                on_line(line)
        except BaseException:
            process.kill()
            raise
        finally:
            for thread in work:
                thread.join()
    if process.returncode:
        raise program_error(messages.text)


async def _feed_async(to: asyncio.StreamWriter, data: bytes) -> None:
    try:
        to.write(data)
        await to.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        to.close()


async def _drain_async(source: asyncio.StreamReader, messages: _Messages) -> None:
    while data := await source.read(65536):
        messages.add(data)


async def run_program_async(
    words: Sequence[str],
    on_line: Callable[[bytes], None],
    *,
    data: Optional[bytes] = None,
    shown: bool = False,
) -> None:
    """As run_program, for asyncio. A call that is cancelled kills the program."""
    messages = _Messages(shown)
    process = await asyncio.create_subprocess_exec(*words, limit=_LINE_BYTES, **_pipes(data))
    assert process.stdout is not None and process.stderr is not None
    work = [asyncio.ensure_future(_drain_async(process.stderr, messages))]
    if data is not None and process.stdin is not None:
        work.append(asyncio.ensure_future(_feed_async(process.stdin, data)))
    try:
        async for line in process.stdout:
            on_line(line)
        await asyncio.gather(*work)
        await process.wait()
    except BaseException:
        if process.returncode is None:
            process.kill()
        await asyncio.gather(*work, process.wait(), return_exceptions=True)
        raise
    if process.returncode:
        raise program_error(messages.text)
