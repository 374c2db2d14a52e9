# SPDX-License-Identifier: Apache-2.0
"""Shell: one shell of a session that takes command after command and keeps its state.

The shell (bash, else sh) reads its script from a pipe. It is sent two lines per command: an `eval`
of the command, and a `printf` of its number and status into a pipe of their own. Output goes to two
more pipes, which only the shell's commands write to and only this process reads. What is in them
when the status arrives belongs to that command: no marker is looked for in the output. The shell's
own reader goes from line to line, so a syntax error, `break` or `return` ends a command and not the
shell. While a command runs, the pipes of commands and statuses are closed to it, and its standard
input is /dev/null.

A command that is to end gets SIGINT, on which a trap breaks out of the shell's own loops. Then
everything that the shell started is killed; the shell itself only if it still does not answer.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import os
import secrets
import select
import signal
import termios
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, AnyStr, Callable, Literal, Optional, Union, overload

from ._core import ffi
from ._core.connection import DetachedRun
from ._core.errors import EngineLost, InvalidArgument, NotFound, ResourceExhausted
from ._core.handle import Handle
from ._core.request import AttachRequest, ExecRequest, Timeout, allowed_s
from ._core.result import OUTCOMES, Outcome, Result
from ._process import Pipes, finish_result, new_id

_CHUNK = 65536
_FOR_EVER_S = 1e9
_SLICE_S = 0.1
_PATIENCE_S = 1.0
"""How long a command is asked, then forced, to end, before the next harder way."""

_MAX_STATUS = 4096
"""Bytes of an unfinished status line that are kept. A guest may write there; it gains nothing."""


# The shell's own lines around a command; src/cli/play_shell.c has the same, and explains them.
_OPTIONS_ON = (
    rb"""{ \command eval "\\command unset -v _rollbox_was _rollbox_on; """
    rb"""\\command set ${_rollbox_on:-+x}"; } >/dev/null 2>&1"""
    b"\n"
)
_OPTIONS_OFF = (
    rb"""{ _rollbox_was=$?$-; \command set +xv; } >/dev/null 2>&1"""
    b"\n\n"
    rb"""{ case ${_rollbox_was=$?} in *v*x* | *x*v*) _rollbox_on=-xv;; *x*) _rollbox_on=-x;; """
    b"""*v*) _rollbox_on=-v;; esac; } >/dev/null 2>&1\n"""
)
_NO_EXEC = b") # set -n: this shell runs nothing any more, so it ends\n"
_END_BASH = (
    rb"{ \builtin read -r _rollbox_skipped; \builtin unset -v _rollbox_skipped; } >/dev/null 2>&1"
    b"\n" + _NO_EXEC
)
_END_SH = (
    b"\\command alias _rollbox_skip='#'\n_rollbox_skip "
    + _NO_EXEC
    + b"\\command unalias _rollbox_skip\n"
)


@dataclass(frozen=True, repr=False)
class ShellResult(Result[AnyStr]):
    """A Result of one command of a shell.

    cpu_ms, peak_memory_bytes and processes_peak are 0. network has all that the session did in the
    network since the command before.

    Attributes:
        ended: The command ended the shell, too (`exit`, `exec`, set -e, a kill), and with it its
            variables and directory.
        restarted: The shell had ended before, so this command ran in a new one.
    """

    ended: bool = False
    restarted: bool = False

    def _repr_more(self) -> list[str]:
        return [name for name in ("ended", "restarted") if getattr(self, name)]


class _Wake:
    """A pipe that becomes readable when something ended."""

    def __init__(self) -> None:
        self.wake_reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._lock = threading.Lock()
        self.called = False

    def call(self) -> None:
        with self._lock:
            self.called = True
            if self._writer >= 0:
                with contextlib.suppress(BlockingIOError):
                    os.write(self._writer, b"\0")

    def close(self) -> None:
        with self._lock:
            if self._writer >= 0:
                os.close(self.wake_reader)
                os.close(self._writer)
                self._writer = -1


class _ShellProcess:
    """One shell process and its pipes."""

    stdin: int
    status: int
    out: int
    err: int
    run: DetachedRun
    wake: _Wake

    def __init__(self, id: str) -> None:
        self.id = id
        self.unsent = b""
        self.statuses = bytearray()

    @classmethod
    def start(
        cls, handle: Handle, argv: list[str], status_fd: int, options: dict[str, Any]
    ) -> _ShellProcess:
        self = cls(new_id())
        with Pipes() as pipes:
            self.stdin, stdin = pipes.writer()
            self.status, status = pipes.reader()
            self.out, out = pipes.reader()
            self.err, err = pipes.reader()
            # /dev/stdin and /dev/stdout can be opened by any user of the guest.
            os.fchmod(stdin, 0o644)
            for fd in (out, err):
                os.fchmod(fd, 0o622)
            request = ExecRequest(
                argv,
                id=self.id,
                input_fd=stdin,
                extra_fds=(status, out, err),
                timeout=_FOR_EVER_S,
                detached=True,
                **options,
            )
            self._watch(handle.start(request))
        self.unsent = (
            f"exec {status_fd}>&3 1>&4 2>&5\n"
            "exec 3>&- 4>&- 5>&-\n"
            "trap 'break 999 2>/dev/null' INT\n"
        ).encode()
        return self

    @classmethod
    def claim(cls, handle: Handle, id: str) -> _ShellProcess:
        """A shell that continues in a fork, or after a reset."""
        self = cls(id)
        fds = handle.claim(id, 0, 3, 4, 5)
        if -1 in fds:
            for fd in fds:
                if fd >= 0:
                    os.close(fd)
            raise NotFound(
                f"command {id} is not a shell of a fork or reset, or it was taken already",
                stage="arguments",
            )
        self.stdin, self.status, self.out, self.err = fds
        try:
            self._watch(handle.start(AttachRequest(id)))
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return self

    def _watch(self, run: DetachedRun) -> None:
        self.run = run
        for fd in (self.stdin, self.status, self.out, self.err):
            os.set_blocking(fd, False)
        self.wake = _Wake()
        run.when_ended(self.wake.call)

    def close(self) -> None:
        if self.stdin >= 0:
            for fd in (self.stdin, self.status, self.out, self.err):
                os.close(fd)
            self.stdin = -1
            self.wake.close()

    def __del__(self) -> None:
        if hasattr(self, "wake"):
            self.close()


class _Output:
    """A stream's output, up to its limit."""

    def __init__(self, limit: int) -> None:
        self.data = bytearray()
        self.limit = limit
        self.truncated = False

    def add(self, data: bytes) -> None:
        room = self.limit - len(self.data)
        self.truncated = self.truncated or len(data) > room
        self.data += data[:room]


class Shell:
    """A shell of a session, made by `Sandbox.shell`.

    Variables, functions, the working directory and jobs are kept from one `run` to the next. It
    runs one command at a time; other threads wait. Forgetting or closing it ends the shell, but not
    the processes that it left in the background.
    """

    def __init__(
        self,
        handle: Handle,
        program: Callable[[], str],
        limit: int,
        timeout: Optional[float],
        options: dict[str, Any],
    ) -> None:
        self._handle, self._program, self._options = handle, program, options
        self._limit, self._timeout = limit, timeout
        self._lock = threading.Lock()
        self._live: Optional[_ShellProcess] = None
        self._lost = False  # there was a shell, and it ended
        self._number = 0
        self._closed = False
        # None: not known yet
        self._is_recorded: Optional[bool] = None
        self._has_network: Optional[bool] = None

    @classmethod
    def attach(
        cls,
        handle: Handle,
        id: str,
        program: Callable[[], str],
        limit: int,
        timeout: Optional[float],
    ) -> Shell:
        """(For this package.) Sandbox.shell with an id."""
        rows = handle.json("rollbox_sandbox_query", ffi.QUERY_EXECS)["execs"]
        row: dict[str, Any] = next((one for one in rows if one.get("id") == id), {})
        name = str(row.get("command") or "").partition(" ")[0]
        if row.get("state") != "running" or name not in ("bash", "sh"):
            raise NotFound(f"no shell {id} runs in sandbox {handle.name}", stage="arguments")
        self = cls(handle, program, limit, timeout, {"cwd": None, "env": None, "user": None})
        self._set_program(name)
        # A command that ran at the capture ends with its old number, which must not match.
        self._number = secrets.randbelow(1 << 48)
        self._live = _ShellProcess.claim(handle, id)
        return self

    @property
    def id(self) -> Optional[str]:
        """The id of the command that the shell is; None before a new shell is started."""
        live = self._live
        return None if live is None else live.id

    @overload
    def run(
        self,
        command: Union[str, bytes],
        timeout: Timeout = ...,
        *,
        text: Literal[False] = ...,
        check: bool = ...,
        max_output: Optional[int] = ...,
    ) -> ShellResult[bytes]: ...

    @overload
    def run(
        self,
        command: Union[str, bytes],
        timeout: Timeout = ...,
        *,
        text: Literal[True],
        check: bool = ...,
        max_output: Optional[int] = ...,
    ) -> ShellResult[str]: ...

    @overload
    def run(
        self,
        command: Union[str, bytes],
        timeout: Timeout = ...,
        *,
        text: bool,
        check: bool = ...,
        max_output: Optional[int] = ...,
    ) -> ShellResult[Any]: ...

    def run(
        self,
        command: Union[str, bytes],
        timeout: Timeout = None,
        *,
        text: bool = False,
        check: bool = False,
        max_output: Optional[int] = None,
    ) -> ShellResult[Any]:
        """Runs one command and waits for its end.

        A command that runs out of time or writes too much gets an interrupt, as by Ctrl-C, then is
        killed. The shell with its state continues if possible; `ended` of the result says so.
        Background processes are not affected unless the command has to be killed. Their output
        between two commands belongs to the next one.

        Args:
            command: Any text that the shell takes, of any number of lines.
            timeout: Seconds of wall clock, over the policy's.
            text: Make stdout and stderr str, with invalid UTF-8 replaced.
            check: Raise RunFailed unless the command ends with status 0.
            max_output: Bytes per stream, over the policy's.

        Returns:
            What the command did.

        Raises:
            InvalidArgument: The command has a NUL byte, or an argument is wrong.
            CommandNotFound: The sandbox has no shell.
            NotFound: The shell or the session is closed.
            EngineLost: The engine is gone.
            RunFailed: With check: the command failed.
        """
        script = (
            command.encode("utf-8", "surrogateescape")
            if isinstance(command, str)
            else bytes(command)
        )
        if b"\0" in script:
            raise InvalidArgument(
                f"the command has a NUL byte at offset {script.index(0)}; no shell accepts that",
                stage="arguments",
            )
        allowed = allowed_s(timeout, self._timeout)
        limit = self._limit if max_output is None else max_output
        with self._lock:
            if self._closed:
                raise NotFound("the shell is closed", stage="arguments")
            if self._live is not None and self._live.wake.called:
                self._end()
            restarted = self._live is None and self._lost
            if self._live is None:
                self._live = self._begin()
            try:
                result = self._run_script(self._live, script, allowed, limit)
            except BaseException:
                self._abort()
                raise
            result = replace(result, network=self._network(self._live))
            self._note(self._live, script, allowed, limit, result)
            if result.ended:
                self._end()
            result = replace(result, restarted=restarted)
        return finish_result(result, text, check)

    def _examine(self) -> None:
        """Learns what each command needs to know of the session, which stays the same."""
        row = self._handle.json("rollbox_sandbox_query", ffi.QUERY_INSPECT)
        self._is_recorded = self._handle.recording is not None or row.get("record") is not None
        self._has_network = (row.get("isolation") or {}).get("net") == "allow"

    def _network(self, live: _ShellProcess) -> Optional[dict[str, Any]]:
        """What happened in the network since the command before."""
        if self._has_network is None:
            self._examine()
        if not self._has_network:
            return None
        try:
            row = self._handle.json("rollbox_net_tally", live.id.encode())
        except NotFound:  # the command has ended the shell
            ended = live.run.wait(None)
            return None if ended is None else ended.network
        network: Optional[dict[str, Any]] = row.get("network")
        return network

    def _note(
        self,
        live: _ShellProcess,
        script: bytes,
        timeout: Optional[float],
        limit: int,
        result: ShellResult[bytes],
    ) -> None:
        """Adds a step to the session's trajectory, if it has one."""
        if self._is_recorded is None:
            self._examine()
        if not self._is_recorded:
            return
        note = ffi.ShellNote(
            size=ctypes.sizeof(ffi.ShellNote),
            operation_id=live.id.encode(),
            command=script,
            command_length=len(script),
            timeout_ms=-1 if timeout is None else max(1, round(timeout * 1000)),
            output_limit=limit,
            outcome=OUTCOMES.index(result.outcome),
            exit_code=result.exit_code or 0,
            signal=result.signal or 0,
            stdout_data=result.stdout,
            stderr_data=result.stderr,
            stdout_length=len(result.stdout),
            stderr_length=len(result.stderr),
            stdout_truncated=result.stdout_truncated,
            stderr_truncated=result.stderr_truncated,
            ended=result.ended,
            wall_ms=result.wall_ms,
        )
        self._handle.call("rollbox_note_shell", ctypes.byref(note))

    def _begin(self) -> _ShellProcess:
        program = self._program()
        self._set_program(program)
        return _ShellProcess.start(
            self._handle, [program, "-l", "-s"], self._status_fd, self._options
        )

    def _set_program(self, program: str) -> None:
        # A bash script has few descriptors of its own above 200; sh knows one digit only.
        self._status_fd, self._eval = (
            (247, "\\builtin eval") if program == "bash" else (9, "\\command eval")
        )

    def _end(self) -> None:
        live, self._live = self._live, None
        self._lost = True
        if live is not None:
            live.close()

    def _abort(self) -> None:
        """Ends the shell where the end of its command is not known.

        The caller was interrupted, or the engine is lost.
        """
        if self._live is not None:
            with contextlib.suppress(Exception):
                self._signal(self._live, signal.SIGKILL, "tree")
        self._end()

    def _signal(self, live: _ShellProcess, number: int, scope: str) -> None:
        # The shell has ended, or is not there yet: the signal is sent again.
        with contextlib.suppress(NotFound, ResourceExhausted):
            self._handle.call("rollbox_signal", live.id.encode(), int(number), ffi.SCOPES[scope])

    def _run_script(
        self, live: _ShellProcess, script: bytes, timeout: Optional[float], limit: int
    ) -> ShellResult[bytes]:
        self._number += 1
        number = str(self._number).encode()
        fd = str(self._status_fd).encode()
        quoted = b"'" + script.replace(b"'", b"'\\''") + b"'"
        check = b""
        if self._eval.startswith("\\builtin") and script.count(b"(") > script.count(b")"):
            # An open "$(" at the end of an eval corrupts bash 5.2's heap: test it in another bash.
            check = b"\\command bash -n -c " + quoted + b" </dev/null " + fd + b">&- && "
        live.unsent += (
            check
            + self._eval.encode()
            + b" '"
            + _OPTIONS_ON
            + quoted[1:]
            + b" </dev/null "
            + fd
            + b">&-; "
            + _OPTIONS_OFF
            + (_END_BASH if self._eval.startswith("\\builtin") else _END_SH)
            + b"{ \\command printf '%s %s\\n' "
            + number
            + b' "${_rollbox_was%%[!0-9]*}" >&'
            + fd
            + b"; } >/dev/null 2>&1\n"
        )
        connection = live.run.connection
        if not connection.use():
            raise EngineLost(
                f"the engine of sandbox {self._handle.name} was closed or lost, and the sandbox "
                f"with it",
                stage="run",
            )
        try:
            return self._wait_for_status(live, number, timeout, limit)
        finally:
            connection.release()

    def _wait_for_status(
        self, live: _ShellProcess, number: bytes, timeout: Optional[float], limit: int
    ) -> ShellResult[bytes]:
        streams = {live.out: _Output(limit), live.err: _Output(limit)}
        connection = live.run.connection
        begun = time.monotonic()
        why: Optional[Outcome] = None  # why the command is being ended
        stopping = signalled = 0.0
        status: Optional[int] = None
        open_fds = {live.status, live.out, live.err}
        while status is None and not live.wake.called:
            poll = select.poll()
            for fd in (*open_fds, live.wake.wake_reader, connection.fd):
                poll.register(fd, select.POLLIN)
            if live.unsent:
                poll.register(live.stdin, select.POLLOUT)
            now = time.monotonic()
            due = (
                _SLICE_S
                if timeout is None or why
                else min(_SLICE_S, max(0.0, begun + timeout - now))
            )
            for fd, _ in poll.poll(due * 1000 + 1):
                if fd == connection.fd:
                    connection.dispatch()
                elif fd == live.stdin:
                    self._send(live)
                elif fd != live.wake.wake_reader:
                    with contextlib.suppress(BlockingIOError):
                        data = os.read(fd, _CHUNK)
                        if not data:
                            open_fds.discard(fd)
                        elif fd == live.status:
                            status = self._status(live, data, number)
                        else:
                            streams[fd].add(data)
            if connection.retired:
                raise EngineLost(
                    f"the engine of sandbox {self._handle.name} was closed or lost, and the "
                    f"sandbox with it",
                    stage="run",
                )
            now = time.monotonic()
            if why is None:
                if any(stream.truncated for stream in streams.values()):
                    why = Outcome.OUTPUT_LIMIT
                elif timeout is not None and now - begun >= timeout:
                    why = Outcome.TIMEOUT
                stopping = now
            if why is not None and status is None and now - signalled >= _SLICE_S:
                signalled = now
                if now - stopping < _PATIENCE_S:
                    self._signal(live, signal.SIGINT, "tree")
                elif now - stopping < 2 * _PATIENCE_S:
                    self._signal(live, signal.SIGKILL, "children")
                else:
                    self._signal(live, signal.SIGKILL, "tree")
        wall_ms = (time.monotonic() - begun) * 1000
        if status is None:
            with contextlib.suppress(BlockingIOError):
                status = self._status(live, os.read(live.status, _CHUNK), number)
        for fd, stream in streams.items():
            _drain(fd, stream)
        if why is None and any(stream.truncated for stream in streams.values()):
            why = Outcome.OUTPUT_LIMIT
        out, err = streams[live.out], streams[live.err]
        plain: Result[Any] = Result(
            outcome=Outcome.EXIT, exit_code=status, signal=None, stdout=b"", stderr=b""
        )
        if status is None:
            ended = live.run.wait(None)
            assert ended is not None
            if ended.error is not None:
                raise ended.error
            plain = ended
        if why is not None:
            plain = replace(plain, outcome=why, exit_code=None, signal=None)
        return ShellResult(
            outcome=plain.outcome,
            exit_code=plain.exit_code,
            signal=plain.signal,
            stdout=bytes(out.data),
            stderr=bytes(err.data),
            stdout_truncated=out.truncated,
            stderr_truncated=err.truncated,
            wall_ms=wall_ms,
            ended=status is None or live.wake.called,
        )

    @staticmethod
    def _send(live: _ShellProcess) -> None:
        try:
            live.unsent = live.unsent[os.write(live.stdin, live.unsent[:_CHUNK]) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # the shell has ended; its result is about to arrive
            live.unsent = b""

    @staticmethod
    def _status(live: _ShellProcess, data: bytes, number: bytes) -> Optional[int]:
        live.statuses += data
        found = None
        *lines, rest = bytes(live.statuses).split(b"\n")
        live.statuses = bytearray(rest[-_MAX_STATUS:])
        for line in lines:
            whose, _, status = line.partition(b" ")
            if whose == number and status.isdigit():
                found = int(status) & 0xFF
        return found

    def close(self) -> None:
        """Ends the shell by the end of its input, or kills it. May be called twice."""
        with self._lock:
            self._closed = True
            live, self._live = self._live, None
            if live is None:
                return
            live.close()
            with contextlib.suppress(EngineLost, NotFound):
                if live.run.wait(_PATIENCE_S) is None:
                    self._signal(live, signal.SIGKILL, "main")

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<rollbox.Shell {self.id} of {self._handle.name}>"


def _drain(fd: int, stream: _Output) -> None:
    """Reads the data that is in a pipe now: others may continue to write."""
    left = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, left)
    while left[0] > 0:
        try:
            data = os.read(fd, min(left[0], _CHUNK))
        except BlockingIOError:
            return
        if not data:
            return
        stream.add(data)
        left[0] -= len(data)
