# SPDX-License-Identifier: Apache-2.0
"""Request: the arguments of one run, checked and laid out for the library; and its result."""

from __future__ import annotations

import ctypes
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional, Union

from . import ffi, spans
from .errors import FeatureMissing, InvalidArgument
from .result import OUTCOMES, JobId, Outcome, Result

Argument = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Argv = Union[str, Sequence[Argument]]
Data = Union[str, bytes, bytearray, memoryview]
Environment = Mapping[str, str]
Timeout = Union[float, Literal["none"], None]
Files = Mapping[Union[str, "os.PathLike[str]"], Data]

Priority = Literal["high", "normal", "low", None]
_PRIORITIES = {None: 0, "normal": 0, "high": 1, "low": 2}

_NO_CALLBACK = ffi.CALLBACK()
_ARGUMENT_MAX = 131072
"""MAX_ARG_STRLEN of the kernel."""
RUN_TIMEOUT_S = 300.0
"""Seconds for a run without a time-out of the call or the policy; the engine's default as well."""
_NO_TIMEOUT_MS = -(1 << 63)
"""ROLLBOX_NO_TIMEOUT."""


def _invalid(message: str) -> InvalidArgument:
    return InvalidArgument(message, stage="arguments")


def _encode(what: str, value: object) -> bytes:
    """A path or argument as the kernel takes it: file-system encoding, no NUL."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise _invalid(f"{what} must be str, bytes or os.PathLike, not {value!r}")
    try:
        raw = os.fsencode(value)
    except UnicodeEncodeError as problem:
        raise _invalid(f"{what} cannot be encoded: {problem}") from None
    if b"\0" in raw:
        raise _invalid(
            f"{what} has a NUL byte at offset {raw.index(0)}; the kernel ends strings there"
        )
    return raw


def as_bytes(what: str, value: object) -> bytes:
    """An input as bytes."""
    if isinstance(value, str):
        try:
            return value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as problem:
            raise _invalid(f"{what} cannot be encoded: {problem}") from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise _invalid(f"{what} must be str or bytes, not {type(value).__name__}")


def as_argv(argv: Argv) -> Argv:
    """What `run` takes a str for: a line of shell."""
    return ["/bin/sh", "-c", argv] if isinstance(argv, str) else argv


def _argv(argv: object) -> list[bytes]:
    if isinstance(argv, str):
        argv = as_argv(argv)
    if isinstance(argv, (bytes, os.PathLike, Mapping)) or not isinstance(argv, Sequence):
        raise _invalid(f"argv must be a list of arguments or a str for the shell, not {argv!r}")
    if not argv:
        raise _invalid("argv is empty: there is no program to run")
    return _arguments("argv", argv)


def _arguments(what: str, items: Sequence[object]) -> list[bytes]:
    return [_encode(f"{what}[{i}]", item) for i, item in enumerate(items)]


def code_argv(code: object, args: object = ()) -> list[bytes]:
    """The command of a run of code."""
    if not isinstance(code, (str, bytes)):
        raise _invalid(f"code must be str or bytes, not {type(code).__name__}")
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise _invalid(f"args must be a list of arguments, not {args!r}")
    raw = as_bytes("code", code)
    if b"\0" in raw:
        raise _invalid(
            f"code has a NUL byte at offset {raw.index(0)}, which Python source code cannot contain"
        )
    if len(raw) >= _ARGUMENT_MAX:
        raise _invalid(
            f"code has {len(raw)} bytes, and no argument may have {_ARGUMENT_MAX}: put it into "
            f"`files` and run that"
        )
    return [b"python3", b"-c", raw, *_arguments("args", args)]


def _env(env: object) -> Optional[list[bytes]]:
    if env is None:
        return None
    if not isinstance(env, Mapping):
        raise _invalid(f"env must be a mapping of names to values, not {env!r}")
    pairs = []
    for name, value in env.items():
        raw = _encode(f"env name {name!r}", name)
        if not raw or b"=" in raw:
            raise _invalid(f"env name {name!r} is empty or has a '='")
        pairs.append(raw + b"=" + _encode(f"env[{name!r}]", value))
    return pairs


def milliseconds(timeout: object) -> int:
    """A time-out in whole milliseconds, rounded up.

    -1 for None, the policy's; ROLLBOX_NO_TIMEOUT for "none".
    """
    if timeout is None:
        return -1
    if timeout == "none":
        return _NO_TIMEOUT_MS
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, (int, float))
        or not math.isfinite(timeout)
        or not 0 < timeout < 1e12
    ):
        raise _invalid(
            f'timeout must be a positive number of seconds, or "none" for no limit, not {timeout!r}'
        )
    return math.ceil(timeout * 1000)


def allowed_s(*timeouts: Timeout) -> Optional[float]:
    """The first time-out that is not None, in seconds; None if that is no limit."""
    first = next((milliseconds(one) for one in timeouts if one is not None), _NO_TIMEOUT_MS)
    return None if first == _NO_TIMEOUT_MS else first / 1000


def _limit(limit: object) -> int:
    if limit is None:
        return -1
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit < 1 << 63:
        raise _invalid(f"max_output must be a number of bytes, not {limit!r}")
    return limit


def _strings(items: list[bytes]) -> Any:
    return (ctypes.c_char_p * (len(items) + 1))(*items, None)


def _fill(
    options: Union[ffi.RunOptions, ffi.ExecOptions],
    argv: Argv,
    timeout: Timeout,
    stdin: Optional[Data],
    env: Optional[Environment],
    cwd: Optional[Union[str, os.PathLike[str]]],
    files: Optional[Files],
    max_output: Optional[int],
) -> tuple[Any, ...]:
    """Puts what runs and commands have in common into their options.

    Returns what must live as long as the options.
    """
    arguments = _strings(_argv(argv))
    environment = _env(env)
    environment_list = None if environment is None else _strings(environment)
    options.size = ctypes.sizeof(options)
    options.timeout_ms = milliseconds(timeout)
    options.output_limit = _limit(max_output)
    options.argv = arguments
    if environment_list is not None:
        options.env = environment_list
    if cwd is not None:
        options.cwd = _encode("cwd", cwd)
    if stdin is not None:
        raw = as_bytes("stdin", stdin)
        options.stdin_data = raw
        options.stdin_length = len(raw)
    items = None
    if files:
        if not isinstance(files, Mapping):
            raise _invalid(
                f"files must be a mapping of paths to contents, not {type(files).__name__}"
            )
        items = (ffi.File * len(files))()
        for item, (path, data) in zip(items, files.items()):
            item.path = _encode("a path of files", path)
            if not item.path:
                raise _invalid("files has an empty path")
            raw = as_bytes(f"files[{path!r}]", data)
            item.data = raw
            item.length = len(raw)
        options.files = items
        options.n_files = len(items)
    return arguments, environment_list, items


class Turn:
    """When a run or session starts among others that wait."""

    __slots__ = ("priority", "queue_timeout_ms")

    def __init__(self, priority: Priority = None, queue_timeout: Optional[float] = None) -> None:
        if not isinstance(priority, (str, type(None))) or priority not in _PRIORITIES:
            raise _invalid(f'priority must be "high", "normal" or "low", not {priority!r}')
        self.priority = priority
        self.queue_timeout_ms = None
        if queue_timeout is not None:
            if isinstance(queue_timeout, str):
                raise _invalid(f"queue_timeout must be seconds or None, not {queue_timeout!r}")
            self.queue_timeout_ms = milliseconds(queue_timeout)

    def body(self) -> dict[str, Any]:
        """The members of a server's request."""
        given = {"priority": self.priority, "queue_timeout_ms": self.queue_timeout_ms}
        return {key: value for key, value in given.items() if value is not None}

    def refuse_timeout(self) -> None:
        """Raises FeatureMissing for what an engine of this machine does not have."""
        if self.queue_timeout_ms is not None:
            raise FeatureMissing(
                "queue_timeout needs a server (Engine(URL)): an engine of this machine has no "
                "limit of the wait for memory",
                stage="arguments",
            )


NO_TURN = Turn()


def _start(function: str, *arguments: Any) -> int:
    """Calls a function of the library that outputs a run and an error; returns the run."""
    run = ctypes.c_void_p()
    error = ffi.Error()
    if getattr(ffi.lib(), function)(*arguments, ctypes.byref(run), ctypes.byref(error)) < 0:
        raise ffi.exception(error)
    assert run.value
    return run.value


class Request:
    """One run's arguments, valid for any number of starts.

    `options` points into Python's own bytes objects without copying them; `_alive` holds those that
    ctypes does not. The library copies everything when a run is started.
    """

    __slots__ = ("options", "turn", "_alive")

    def __init__(
        self,
        argv: Argv,
        *,
        timeout: Timeout = None,
        stdin: Optional[Data] = None,
        env: Optional[Environment] = None,
        cwd: Optional[Union[str, os.PathLike[str]]] = None,
        files: Optional[Files] = None,
        max_output: Optional[int] = None,
        is_code: bool = False,
        turn: Turn = NO_TURN,
    ) -> None:
        """Checks the arguments.

        Args:
            argv: As of Sandbox.run.
            timeout: As of Sandbox.run.
            stdin: As of Sandbox.run.
            env: As of Sandbox.run.
            cwd: As of Sandbox.run.
            files: As of Sandbox.run.
            max_output: As of Sandbox.run.
            is_code: argv is python3's, and a warm interpreter may take it.
            turn: When it starts among others.
        """
        self.options = ffi.RunOptions()
        self._alive = _fill(self.options, argv, timeout, stdin, env, cwd, files, max_output)
        self.options.is_code = is_code
        self.options.priority = _PRIORITIES[turn.priority]
        self.turn = turn

    def start(
        self, engine: Optional[int], plan: int, callback: Any = _NO_CALLBACK, userdata: int = 0
    ) -> int:
        """Calls rollbox_start; returns the run's address."""
        self.turn.refuse_timeout()
        self.options.callback = callback
        self.options.userdata = userdata
        run = _start("rollbox_start", engine, plan, ctypes.byref(self.options))
        spans.begin(run, False, self.options.argv[0])
        return run


def full_user(
    user: Optional[Union[str, int]],
    group: Optional[Union[str, int]],
    groups: Optional[Sequence[Union[str, int]]],
) -> Optional[Union[str, int]]:
    """USER[:GROUP[:GROUPS]], of a user and groups that are given apart."""
    if group is None and groups is None:
        return user
    if user is None or ":" in str(user):
        raise InvalidArgument(
            "group and groups need a user, which has none in it", stage="arguments"
        )
    if isinstance(groups, (str, int)):
        raise InvalidArgument("groups must be a list of names or numbers", stage="arguments")
    if groups is None:
        return f"{user}:{group}"
    return f"{user}:{'' if group is None else group}:{','.join(map(str, groups))}"


class ExecRequest:
    """One command of a session. Descriptors are borrowed until it is started."""

    __slots__ = ("options", "_alive")

    def __init__(
        self,
        argv: Argv,
        *,
        timeout: Timeout = None,
        stdin: Optional[Data] = None,
        env: Optional[Environment] = None,
        cwd: Optional[Union[str, os.PathLike[str]]] = None,
        files: Optional[Files] = None,
        max_output: Optional[int] = None,
        user: Optional[Union[str, int]] = None,
        id: Optional[str] = None,
        terminal: Optional[tuple[int, int]] = None,
        input_fd: int = -1,
        stream_fds: tuple[int, int] = (-1, -1),
        extra_fds: Sequence[int] = (),
        detached: bool = False,
        no_trace: bool = False,
    ) -> None:
        self.options = options = ffi.ExecOptions()
        alive = _fill(options, argv, timeout, stdin, env, cwd, files, max_output)
        if user is not None:
            options.user = _encode("user", str(user) if isinstance(user, int) else user)
        if id is not None:
            options.operation_id = _encode("id", id)
        size = None
        if terminal is not None:
            size = terminal_size(terminal)
            options.terminal = ctypes.pointer(size)
        extra = (ctypes.c_int * len(extra_fds))(*extra_fds)
        options.extra_fds = extra
        options.n_extra_fds = len(extra)
        options.input_fd = input_fd
        options.stream_fds[:] = stream_fds
        options.detached = detached
        options.no_trace = no_trace
        self._alive: tuple[Any, ...] = (*alive, size, extra)

    def start(self, sandbox: int, callback: Any = _NO_CALLBACK, userdata: int = 0) -> int:
        """Calls rollbox_exec; returns the run's address."""
        self.options.callback = callback
        self.options.userdata = userdata
        run = _start("rollbox_exec", sandbox, ctypes.byref(self.options))
        spans.begin(run, True, self.options.argv[0])
        return run


class AttachRequest:
    """An attachment to a command that runs or has run."""

    __slots__ = ("options",)

    def __init__(
        self, id: str, *, input_fd: int = -1, stream_fds: tuple[int, int] = (-1, -1)
    ) -> None:
        self.options = options = ffi.AttachOptions(
            size=ctypes.sizeof(ffi.AttachOptions), input_fd=input_fd
        )
        options.operation_id = _encode("id", id)
        options.stream_fds[:] = stream_fds

    def start(self, sandbox: int, callback: Any = _NO_CALLBACK, userdata: int = 0) -> int:
        """Calls rollbox_attach; returns the run's address."""
        self.options.callback = callback
        self.options.userdata = userdata
        return _start("rollbox_attach", sandbox, ctypes.byref(self.options))


SessionRequest = Union[ExecRequest, AttachRequest]
"""What a session can start."""


def terminal_size(size: tuple[int, int]) -> ffi.Terminal:
    """A terminal's size from (rows, columns)."""
    if len(size) != 2 or not all(isinstance(one, int) and 0 < one < 1 << 16 for one in size):
        raise _invalid(f"a terminal's size is (rows, columns), each 1 to 65535, not {size!r}")
    return ffi.Terminal(*size)


_isolation_cache: dict[bytes, dict[str, Any]] = {}


def _isolation(raw: Optional[bytes]) -> dict[str, Any]:
    """The isolation, parsed.

    The same text comes with every run of a plan, so the last few are kept. The caller gets a copy.
    """
    if not raw:
        return {}
    parsed = _isolation_cache.get(raw)
    if parsed is None:
        if len(_isolation_cache) >= 16:
            _isolation_cache.clear()
        parsed = _isolation_cache[raw] = json.loads(raw)
    return dict(parsed)


def copy_result(raw: Any, text: bool = False, id: Optional[JobId] = None) -> Result[Any]:
    """A Result from a rollbox_result, sharing no memory with it."""
    outcome = OUTCOMES[raw.outcome]
    streams: list[Any] = [
        ctypes.string_at(data, length) if data and length else b""
        for data, length in (
            (raw.stdout_data, raw.stdout_length),
            (raw.stderr_data, raw.stderr_length),
        )
    ]
    if text:
        streams = [stream.decode("utf-8", "replace") for stream in streams]
    return Result(
        outcome=outcome,
        exit_code=raw.exit_code if outcome is Outcome.EXIT else None,
        signal=raw.signal if outcome is Outcome.SIGNAL else None,
        stdout=streams[0],
        stderr=streams[1],
        stdout_truncated=raw.stdout_truncated,
        stderr_truncated=raw.stderr_truncated,
        wall_ms=raw.wall_ms,
        cpu_ms=raw.cpu_ms,
        peak_memory_bytes=raw.peak_memory_bytes,
        processes_peak=raw.processes_peak,
        isolation=_isolation(raw.isolation),
        error=ffi.exception(raw.error) if outcome is Outcome.ERROR else None,
        id=id,
        network=json.loads(raw.network) if raw.network else None,
        queue_ms=raw.queue_ms,
    )


def error_result(error: Any, text: bool = False, id: Optional[JobId] = None) -> Result[Any]:
    """The row of a job that could not be started."""
    empty: Any = "" if text else b""
    return Result(
        outcome=Outcome.ERROR,
        exit_code=None,
        signal=None,
        stdout=empty,
        stderr=empty,
        error=error,
        id=id,
    )
