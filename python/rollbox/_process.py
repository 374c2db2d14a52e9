# SPDX-License-Identifier: Apache-2.0
"""Process: a command of a session that runs beside its caller. Stream: its output as it comes.

Both read from pipes whose write ends the engine has. The engine copies what the command writes, so
a slow reader delays nothing but its own stream. A Process runs on when nobody refers to it (it is
started `detached`); a Stream ends its command when it is closed.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import errno
import os
import select
import signal as signals
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import (
    Any,
    BinaryIO,
    Callable,
    Optional,
    TypeVar,
    Union,
)

from ._core import ffi
from ._core.connection import DetachedRun
from ._core.errors import InvalidArgument, NotFound, ResourceExhausted
from ._core.handle import Handle
from ._core.request import AttachRequest, ExecRequest, terminal_size
from ._core.result import Result

Chunk = tuple[str, Any]
Pty = Union[bool, tuple[int, int]]

_CHUNK = 65536
_PATIENCE = 5000
_AnyResult = TypeVar("_AnyResult", bound=Result[Any])


class Pipes:
    """Pipes of which one end each is given away.

    Leaving the `with` closes the given ends; after an exception, the kept ends as well.
    """

    def __init__(self) -> None:
        self._given: list[int] = []
        self._kept: list[int] = []

    def reader(self) -> tuple[int, int]:
        """(kept read end, given write end)."""
        kept, given = os.pipe()
        self._kept.append(kept)
        self._given.append(given)
        return kept, given

    def writer(self) -> tuple[int, int]:
        """(kept write end, given read end)."""
        given, kept = os.pipe()
        self._kept.append(kept)
        self._given.append(given)
        return kept, given

    def __enter__(self) -> Pipes:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], *_: object) -> None:
        for fd in self._given:
            os.close(fd)
        if kind is not None:
            for fd in self._kept:
                os.close(fd)


def new_id() -> str:
    """An operation id that nobody else has."""
    return uuid.uuid4().hex


def as_text(result: _AnyResult, text: bool) -> _AnyResult:
    """A result with str instead of bytes."""
    if not text or isinstance(result.stdout, str):
        return result
    return replace(
        result,
        stdout=result.stdout.decode("utf-8", "replace"),
        stderr=result.stderr.decode("utf-8", "replace"),
    )


def finish_result(result: _AnyResult, text: bool, check: bool) -> _AnyResult:
    """Returns the result of a call, or raises what it is to raise."""
    if result.error is not None:
        raise result.error
    result = as_text(result, text)
    if check:
        result.check()
    return result


def pty_size(pty: Pty) -> Optional[tuple[int, int]]:
    """(rows, columns) of a `pty` argument; None: no terminal."""
    if pty is False:
        return None
    if pty is True:
        return 24, 80
    terminal_size(pty)
    return pty


class Stream:
    """An iterator over the output of a command, as the command writes it.

    It yields ("stdout", b"...") and ("stderr", b"..."), or str with text=True. At the end it raises
    what `exec` would raise. Closing it before the end, leaving its `with`, or forgetting it kills
    the command and all that it started.

    Attributes:
        id: The command's id.
    """

    def __init__(
        self,
        handle: Handle,
        make: Callable[..., ExecRequest],
        text: bool,
        check: bool,
        id: Optional[str] = None,
    ) -> None:
        self._text, self._check = text, check
        with Pipes() as pipes:
            out, out_write = pipes.reader()
            err, err_write = pipes.reader()
            self.id = id or new_id()
            self._run: Optional[DetachedRun] = handle.start(
                make(id=self.id, stream_fds=(out_write, err_write))
            )
        self._fds: dict[int, str] = {out: "stdout", err: "stderr"}
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: decoder("replace") for name in self._fds.values()}
        self._ready: list[Chunk] = []
        self._result: Optional[Result[Any]] = None

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        while not self._ready:
            if not self._fds:
                self._end()
                raise StopIteration
            poll = select.poll()
            for fd in self._fds:
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll():
                self.take(fd)
        return self._ready.pop(0)

    def fds(self) -> list[int]:
        """(For this package.) The descriptors that may become readable."""
        return list(self._fds)

    def take(self, fd: int) -> None:
        """(For this package.) Reads what a descriptor has, or its end."""
        name = self._fds[fd]
        data: Any = os.read(fd, _CHUNK)
        if not data:
            del self._fds[fd]
            os.close(fd)
        if self._text:
            data = self._decoders[name].decode(data, final=not data)
        if data:
            self._ready.append((name, data))

    def ready(self) -> list[Chunk]:
        """(For this package.) Takes the chunks that were read."""
        chunks, self._ready = self._ready, []
        return chunks

    @property
    def run(self) -> Optional[DetachedRun]:
        """(For this package.) The command, until the stream is closed."""
        return self._run

    def _end(self) -> None:
        if self._result is None and self._run is not None:
            result = self._run.wait(None)
            assert result is not None
            self.finish(result)

    def finish(self, result: Result[bytes]) -> None:
        """(For this package.) Takes the result; raises what is to be raised."""
        self._run = None
        self._result = as_text(result, self._text)
        finish_result(self._result, self._text, self._check)

    @property
    def result(self) -> Result[Any]:
        """The command's result, with all of its output. Blocks.

        It reads to the end of the stream first and drops the chunks that were not taken.
        """
        if self._result is None:
            if self._run is None:
                raise InvalidArgument(
                    "the stream was closed before the command's end, so there is no result",
                    stage="result",
                )
            with contextlib.suppress(Exception):
                for _ in self:
                    pass
        if self._result is None:
            self._end()
        assert self._result is not None
        return self._result

    def close(self) -> None:
        """Kills the command if it still runs. May be called twice."""
        self._run = None
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self._ready.clear()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_fds"):
            self.close()


def _file_of(data: bytes) -> int:
    """A descriptor that reads as data."""
    with os.fdopen(os.memfd_create("rollbox-output"), "wb") as file:
        file.write(data)
        file.flush()
        fd = os.dup(file.fileno())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


class Process:
    """A command that runs in a session.

    Nobody has to read the streams: the result has all output as well, up to max_output. The command
    runs on when this object is forgotten, until the session ends. Leaving its `with` kills it.

    Attributes:
        id: Its id, by which `Sandbox.process` finds it again.
        stdin: A binary file; None if the command was given its input. Flush it: it is buffered.
        stdout: A binary file.
        stderr: A binary file; None with a terminal, which has one stream.
    """

    def __init__(
        self,
        handle: Handle,
        id: str,
        run: DetachedRun,
        stdin: Optional[int],
        stdout: Optional[int],
        stderr: Optional[int],
        text: bool = False,
        pty: bool = False,
    ) -> None:
        self.id = id
        self.stdin: Optional[BinaryIO] = None if stdin is None else os.fdopen(stdin, "wb")
        self.stdout: Optional[BinaryIO] = None if stdout is None else os.fdopen(stdout, "rb")
        self.stderr: Optional[BinaryIO] = None if stderr is None else os.fdopen(stderr, "rb")
        self._handle, self._run, self._text, self._pty = handle, run, text, pty
        self._lock = threading.Lock()
        handle.processes[id] = self

    @classmethod
    def spawn(
        cls,
        handle: Handle,
        make: Callable[..., ExecRequest],
        id: Optional[str],
        pty: Pty,
        feed: bool,
        text: bool,
    ) -> Process:
        """(For this package.) Sandbox.spawn."""
        id, size = id or new_id(), pty_size(pty)
        with Pipes() as pipes:
            stdin, stdin_read = pipes.writer() if feed else (None, -1)
            stdout, stdout_write = pipes.reader()
            stderr, stderr_write = pipes.reader() if size is None else (None, -1)
            run = handle.start(
                make(
                    id=id,
                    terminal=size,
                    input_fd=stdin_read,
                    stream_fds=(stdout_write, stderr_write),
                    detached=True,
                )
            )
        return cls(handle, id, run, stdin, stdout, stderr, text, size is not None)

    @classmethod
    def attach(cls, handle: Handle, id: str, text: bool) -> Process:
        """(For this package.) Sandbox.process."""
        known = handle.processes.get(id)
        if known is not None and not known._pty:
            # The origin tells whether the copy has a terminal, and the claim whether it runs: the
            # engine need not be asked first. The output is attached before anything is written
            # to the copy.
            run, _, stdout, stderr = cls._join(handle, id)
            try:
                (fd,) = handle.claim(id, 0)
                return cls(handle, id, run, fd if fd >= 0 else None, stdout, stderr, text)
            except BaseException as problem:
                for end in (stdout, stderr):
                    if end is not None:
                        os.close(end)
                if not isinstance(problem, NotFound):
                    raise
        rows = handle.json("rollbox_sandbox_query", ffi.QUERY_EXECS)["execs"]
        row: dict[str, Any] = next((one for one in rows if one.get("id") == id), {})
        terminal = bool(row.get("terminal"))
        if row.get("state") == "ended":  # its output is in the result alone
            run = handle.start(AttachRequest(id))
            result = run.wait(None)
            assert result is not None
            return cls(
                handle, id, run, None, _file_of(result.stdout), _file_of(result.stderr), text
            )
        run, stdin, stdout, stderr = cls._join(handle, id, terminal)
        if row and not terminal:
            with contextlib.suppress(NotFound):  # it has ended meanwhile
                (fd,) = handle.claim(id, 0)
                stdin = fd if fd >= 0 else None
        return cls(handle, id, run, stdin, stdout, stderr, text, terminal)

    @staticmethod
    def _join(
        handle: Handle, id: str, terminal: bool = False
    ) -> tuple[DetachedRun, Optional[int], int, Optional[int]]:
        """Attaches to a command: (run, stdin, stdout, stderr). A terminal has stdin, too."""
        with Pipes() as pipes:
            stdin, stdin_read = pipes.writer() if terminal else (None, -1)
            stdout, stdout_write = pipes.reader()
            stderr, stderr_write = pipes.reader() if not terminal else (None, -1)
            run = handle.start(
                AttachRequest(id, input_fd=stdin_read, stream_fds=(stdout_write, stderr_write))
            )
        return run, stdin, stdout, stderr

    def wait(self, timeout: Optional[float] = None, check: bool = False) -> Result[Any]:
        """Waits for the command's end.

        Args:
            timeout: Seconds to wait; None: as long as it takes. The command runs on after a
                time-out.
            check: Raise RunFailed unless the command exits with status 0.

        Returns:
            The result.

        Raises:
            TimeoutError: The command still runs.
            RunFailed: With check: the command failed.
            CommandNotFound: The program does not exist.
            NotFound: There is no command of this id.
            EngineLost: The engine is gone.
        """
        result = self._run.wait(timeout)
        if result is None:
            raise TimeoutError(f"command {self.id} still runs after {timeout} seconds")
        return finish_result(result, self._text, check)

    def poll(self) -> Optional[Result[Any]]:
        """Returns the result if the command has ended, else None. Raises as `wait`."""
        result = self._run.wait(0)
        return None if result is None else finish_result(result, self._text, False)

    @property
    def run(self) -> DetachedRun:
        """(For this package.) The run."""
        return self._run

    def kill(self, signal: int = signals.SIGKILL, scope: str = "tree") -> None:
        """Sends a signal. Nothing happens if the command has ended.

        Args:
            signal: The signal's number.
            scope: "main": its main process; "tree": that and all that it started; "children": only
                what it started; "group": the foreground process group of its terminal.

        Raises:
            InvalidArgument: An argument is wrong.
            EngineLost: The engine is gone.
        """
        if scope not in ffi.SCOPES:
            raise InvalidArgument(
                f"scope must be one of {', '.join(ffi.SCOPES)}, not {scope!r}", stage="arguments"
            )
        with contextlib.suppress(NotFound):
            self._call("rollbox_signal", int(signal), ffi.SCOPES[scope])

    def _call(self, function: str, *arguments: Any) -> None:
        """Calls the library about a command that may still be on its way into the sandbox.

        Such a call is repeated until the command is there.
        """
        patience = _PATIENCE
        while True:
            try:
                return self._handle.call(function, self.id.encode(), *arguments)
            except (InvalidArgument, ResourceExhausted) as problem:
                early = problem.errno == errno.EAGAIN or (
                    problem.errno == errno.ENOTTY and self._pty
                )
                patience -= 1
                if not early or not patience or self._run.wait(0.002) is not None:
                    raise

    def resize(self, rows: int, columns: int) -> None:
        """Changes the size of its terminal.

        Args:
            rows: Rows of characters.
            columns: Columns of characters.

        Raises:
            InvalidArgument: It has no terminal.
            NotFound: It has ended.
        """
        size = terminal_size((rows, columns))
        self._call("rollbox_resize", ctypes.byref(size))

    def close(self) -> None:
        """Closes its files; the command runs on. May be called twice."""
        with self._lock:
            for file in (self.stdin, self.stdout, self.stderr):
                if file is not None:
                    with contextlib.suppress(BrokenPipeError):
                        file.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._run.wait(0) is None:
                self.kill()
                self._run.wait(None)
        finally:
            self.close()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()

    def __repr__(self) -> str:
        return f"<rollbox.Process {self.id} of {self._handle.name}>"
