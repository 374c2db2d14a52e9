# SPDX-License-Identifier: Apache-2.0
"""AsyncSandbox: the calls of Sandbox for asyncio.

Runs and commands are awaited by the loop itself, thousands at once. The calls that ask the engine something and have the answer in a
millisecond go to a few threads; each shell has a thread of its own, for its commands take as long as they take.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import (TYPE_CHECKING, Any, AsyncIterator, Awaitable, Callable, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union,
                    overload)

from . import _async
from ._async import run
from ._base import AutoSnapshot, Base, Path, PolicyLike, RecordLike, has_work, one_input
from ._engine import Engine
from ._errors import CommandNotFound, InvalidArgument
from ._files import AsyncSessionFiles
from ._grade import Grade
from ._hints import option, refuse_unknown, signature
from ._policy import POLICY_KEYS, Policy
from ._process import Chunk, Process, Pty, Stream, conclude
from ._request import Argv, Data, Environment, ExecRequest, Files, Request, Timeout, as_argv, code_argv
from ._result import Result
from ._sandbox import Sandbox
from ._session import Change, Processes, Snapshot, SnapshotLike, Tree, User
from ._shell import Shell, ShellResult

if TYPE_CHECKING:
    from ._async_clones import AsyncWorkSandbox

_T = TypeVar("_T")
_CHUNK = 65536
_THREADS = 32

_executor: Optional[ThreadPoolExecutor] = None


def _after_fork() -> None:
    global _executor
    _executor = None


os.register_at_fork(after_in_child=_after_fork)


async def _in_thread(function: Callable[..., _T], *arguments: Any, **keywords: Any) -> _T:
    global _executor
    if _executor is None:
        _executor = ThreadPoolExecutor(_THREADS, "rollbox")
    return await asyncio.get_running_loop().run_in_executor(_executor, functools.partial(function, *arguments, **keywords))


async def _readable(*fds: int) -> List[int]:
    """Waits until one of them can be read, or is at its end."""
    loop = asyncio.get_running_loop()
    future: "asyncio.Future[None]" = loop.create_future()
    found: List[int] = []

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


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class AsyncReader:
    """A stream of a command. One reader at a time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_blocking(fd, False)

    async def read(self, most: int = -1) -> bytes:
        """The next bytes, at least one and up to `most`; all to the end without it; b"" at the end."""
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
        """Writes all of it, waiting for room. Raises BrokenPipeError when nobody reads any more."""
        left = memoryview(data)
        loop = asyncio.get_running_loop()
        while left:
            try:
                left = left[os.write(self._fd, left):]
            except BlockingIOError:
                room: "asyncio.Future[None]" = loop.create_future()
                loop.add_writer(self._fd, _settle, room)
                try:
                    await room
                finally:
                    loop.remove_writer(self._fd)


class AsyncProcess:
    """Process for asyncio. Attributes: `id`; `stdin` (`await stdin.write(data)`), None if it was given its input; `stdout`, `stderr`
    (`await stdout.read(most)`, `async for data in stdout`), the latter None with a terminal."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.id = process.id
        self.stdin = None if process.stdin is None else AsyncWriter(process.stdin.fileno())
        self.stdout = None if process.stdout is None else AsyncReader(process.stdout.fileno())
        self.stderr = None if process.stderr is None else AsyncReader(process.stderr.fileno())

    async def wait(self, timeout: Optional[float] = None, check: bool = False) -> Result[Any]:
        """As Process.wait. Cancelling the task leaves it running."""
        try:
            await asyncio.wait_for(_async.loose(self._process.run), timeout)
        except asyncio.TimeoutError:
            raise TimeoutError(f"command {self.id} still runs after {timeout} seconds") from None
        return self._process.wait(None, check)

    async def close_stdin(self) -> None:
        """The end of its input."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    async def kill(self, signal: int = 9, scope: str = "tree") -> None:
        """As Process.kill."""
        await _in_thread(self._process.kill, signal, scope)

    async def resize(self, rows: int, columns: int) -> None:
        """As Process.resize."""
        await _in_thread(self._process.resize, rows, columns)

    def close(self) -> None:
        """Closes its streams; the process runs on."""
        self._process.close()

    async def __aenter__(self) -> "AsyncProcess":
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.kill()
            with contextlib.suppress(Exception):
                await _async.loose(self._process.run)
        finally:
            self.close()


class AsyncStream:
    """Stream for asyncio: `async for stream, data in box.stream("make")`; then `result`."""

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
                stream.finish(await _async.loose(stream.run))
        finally:
            if stream.run is not None:
                stream.close()

    @property
    def result(self) -> Result[Any]:
        """The command's result, once the stream is at its end. Raises InvalidArgument before that."""
        if self._stream is None or self._stream.run is not None:
            raise InvalidArgument("the stream is not at its end yet, so there is no result", stage="result")
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

    async def run(self, command: Union[str, bytes], timeout: Timeout = None, *, text: bool = False, check: bool = False,
                  max_output: Optional[int] = None) -> ShellResult[Any]:
        """As Shell.run. A cancelled task does not wait any more; the command runs on to its end or time-out."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, functools.partial(
            self._shell.run, command, timeout, text=text, check=check, max_output=max_output))

    async def close(self) -> None:
        """As Shell.close."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._shell.close)
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> "AsyncShell":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Boxed(Base, AsyncSessionFiles):
    """With a Sandbox that does the work."""

    _box: Sandbox

    def __init__(self, policy: PolicyLike = None, *, engine: Optional[Engine] = None, name: Optional[str] = None, detached: bool = False,
                 idle: Optional[float] = None, ttl: Optional[float] = None, max_lifetime: Optional[float] = None, hibernate_after: Optional[float] = None,
                 auto_snapshot: AutoSnapshot = None, auto_keep: Optional[int] = None, record: RecordLike = None) -> None:
        super().__init__(policy, engine=engine, name=name, detached=detached, idle=idle, ttl=ttl, max_lifetime=max_lifetime, hibernate_after=hibernate_after,
                         auto_snapshot=auto_snapshot, auto_keep=auto_keep, record=record)
        self._box = Sandbox(self._policy, engine=engine, name=name, detached=detached, idle=idle, ttl=ttl, max_lifetime=max_lifetime, hibernate_after=hibernate_after,
                            auto_snapshot=auto_snapshot, auto_keep=auto_keep, record=self._record)


class AsyncSandbox(_Boxed):
    """Sandbox for asyncio (and loops like it that have add_reader, such as uvloop's). Usable from several loops in several threads at
    once; an async context manager, which is a session. Every call is as that of Sandbox, awaited."""

    @overload
    def __new__(cls, policy: PolicyLike = ..., *, engine: Optional[Engine] = ..., name: Optional[str] = ..., detached: bool = ..., idle: Optional[float] = ..., ttl: Optional[float] = ...,
                max_lifetime: Optional[float] = ..., hibernate_after: Optional[float] = ..., auto_snapshot: AutoSnapshot = ..., auto_keep: Optional[int] = ..., record: RecordLike = ...) -> "AsyncSandbox": ...

    @overload
    def __new__(cls, policy: PolicyLike = ..., *, work_fn: Callable[..., _T], init_fn: Optional[Callable[[], Any]] = ..., python: str = ..., engine: Optional[Engine] = ..., name: Optional[str] = ...,
                detached: bool = ..., idle: Optional[float] = ..., ttl: Optional[float] = ..., max_lifetime: Optional[float] = ..., hibernate_after: Optional[float] = ..., auto_snapshot: AutoSnapshot = ..., auto_keep: Optional[int] = ..., record: RecordLike = ...) -> "AsyncWorkSandbox[_T]": ...

    def __new__(cls, policy: PolicyLike = None, **options: Any) -> Any:
        if cls is AsyncSandbox and has_work(options):
            from ._async_clones import AsyncWorkSandbox

            return super().__new__(AsyncWorkSandbox)
        if cls is AsyncSandbox:
            refuse_unknown("AsyncSandbox", options, _SIGNATURE.parameters, POLICY_KEYS)
        return super().__new__(cls)

    @classmethod
    def _of(cls, box: Sandbox) -> "AsyncSandbox":
        made = cls(box.policy, engine=box._engine, record=box._record)
        made._box = box
        return made

    @classmethod
    async def open(cls, name: str, *, engine: Optional[Engine] = None) -> "AsyncSandbox":
        """As Sandbox.open."""
        return cls._of(await _in_thread(Sandbox.open, name, engine=engine))

    @property
    def sync(self) -> Sandbox:
        """The same session for blocking calls."""
        return self._box

    @property
    def recorded(self) -> Optional[Dict[str, Any]]:
        """As Sandbox.recorded."""
        return self._box.recorded

    def _in_session(self) -> bool:
        return self._box._in_session()

    def _take_plan(self, plan: Dict[str, Any]) -> None:
        self._plan = self._box._plan = plan

    async def __aenter__(self) -> "AsyncSandbox":
        await _in_thread(self._box._enter)
        return self

    async def __aexit__(self, *_: object) -> None:
        await _in_thread(self._box._leave)

    async def close(self) -> None:
        """As Sandbox.close."""
        await _in_thread(self._box.close)

    @property
    def name(self) -> Optional[str]:
        """Its name on the engine; None before the session has begun."""
        return self._box.name if self._box._in_session() else None

    @overload
    async def run(self, argv: Argv, *, timeout: Timeout = ..., stdin: Optional[Data] = ..., input: Optional[Data] = ...,
                  env: Optional[Environment] = ..., cwd: Optional[Union[str, "os.PathLike[str]"]] = ..., files: Optional[Files] = ...,
                  text: Literal[False] = ..., check: bool = ..., max_output: Optional[int] = ...) -> Result[bytes]: ...

    @overload
    async def run(self, argv: Argv, *, timeout: Timeout = ..., stdin: Optional[Data] = ..., input: Optional[Data] = ...,
                  env: Optional[Environment] = ..., cwd: Optional[Union[str, "os.PathLike[str]"]] = ..., files: Optional[Files] = ...,
                  text: Literal[True], check: bool = ..., max_output: Optional[int] = ...) -> Result[str]: ...

    @overload
    async def run(self, argv: Argv, *, timeout: Timeout = ..., stdin: Optional[Data] = ..., input: Optional[Data] = ...,
                  env: Optional[Environment] = ..., cwd: Optional[Union[str, "os.PathLike[str]"]] = ..., files: Optional[Files] = ...,
                  text: bool, check: bool = ..., max_output: Optional[int] = ...) -> Result[Any]: ...

    async def run(
        self,
        argv: Argv,
        *,
        timeout: Timeout = None,
        stdin: Optional[Data] = None,
        input: Optional[Data] = None,
        env: Optional[Environment] = None,
        cwd: Optional[Union[str, "os.PathLike[str]"]] = None,
        files: Optional[Files] = None,
        text: bool = False,
        check: bool = False,
        max_output: Optional[int] = None,
    ) -> Result[Any]:
        """As Sandbox.run, without blocking the loop. Cancelling the task kills the run, processes and files (in a session, its processes)."""
        if self._in_session():
            return await self.exec(as_argv(argv), timeout=self._run_timeout(timeout), stdin=one_input(stdin, input), env=env, cwd=cwd, files=files, text=text, check=check,
                                   max_output=max_output)
        if self._record is not None:
            async with AsyncSandbox(self._policy, engine=self._engine, record=self._record) as box:
                result = await box.exec(as_argv(argv), timeout=self._run_timeout(timeout), stdin=one_input(stdin, input), env=env, cwd=cwd, files=files, max_output=max_output, text=text)
            return result.check() if check else result
        request = Request(argv, timeout=timeout, stdin=one_input(stdin, input), env=env, cwd=cwd, files=files, max_output=max_output)
        return await self._run(request, text, check)

    async def run_code(
        self,
        code: Union[str, bytes],
        args: Sequence[Union[str, bytes]] = (),
        *,
        timeout: Timeout = None,
        stdin: Optional[Data] = None,
        input: Optional[Data] = None,
        env: Optional[Environment] = None,
        cwd: Optional[Union[str, "os.PathLike[str]"]] = None,
        files: Optional[Files] = None,
        text: bool = False,
        check: bool = False,
        max_output: Optional[int] = None,
    ) -> Result[Any]:
        """As Sandbox.run_code, without blocking the loop. Cancelling the task kills the run, processes and files."""
        if self._record is not None or self._in_session():
            return await self.run(code_argv(code, args), timeout=timeout, stdin=stdin, input=input, env=env, cwd=cwd, files=files, text=text, check=check, max_output=max_output)
        request = Request(code_argv(code, args), timeout=timeout, stdin=one_input(stdin, input), env=env, cwd=cwd, files=files, max_output=max_output, is_code=True)
        return await self._run(request, text, check)

    async def _run(self, request: Request, text: bool, check: bool) -> Result[Any]:
        result = await run(self._get_engine(), self._policy.to_json(), request, text)
        if result.error is not None:
            raise result.error
        return result.check() if check else result

    # Commands

    async def _session(self) -> Any:
        return self._box._session() if self._box._in_session() else await _in_thread(self._box._session)

    @overload
    async def exec(self, command: Argv, *, cwd: Optional[Path] = ..., env: Optional[Environment] = ..., user: Optional[User] = ..., stdin: Optional[Data] = ...,
                   input: Optional[Data] = ..., timeout: Timeout = ..., text: Literal[False] = ..., check: bool = ..., max_output: Optional[int] = ...,
                   files: Optional[Files] = ..., id: Optional[str] = ...) -> Result[bytes]: ...

    @overload
    async def exec(self, command: Argv, *, cwd: Optional[Path] = ..., env: Optional[Environment] = ..., user: Optional[User] = ..., stdin: Optional[Data] = ...,
                   input: Optional[Data] = ..., timeout: Timeout = ..., text: Literal[True], check: bool = ..., max_output: Optional[int] = ...,
                   files: Optional[Files] = ..., id: Optional[str] = ...) -> Result[str]: ...

    @overload
    async def exec(self, command: Argv, *, cwd: Optional[Path] = ..., env: Optional[Environment] = ..., user: Optional[User] = ..., stdin: Optional[Data] = ...,
                   input: Optional[Data] = ..., timeout: Timeout = ..., text: bool, check: bool = ..., max_output: Optional[int] = ...,
                   files: Optional[Files] = ..., id: Optional[str] = ...) -> Result[Any]: ...

    async def exec(
        self,
        command: Argv,
        *,
        cwd: Optional[Path] = None,
        env: Optional[Environment] = None,
        user: Optional[User] = None,
        stdin: Optional[Data] = None,
        input: Optional[Data] = None,
        timeout: Timeout = None,
        text: bool = False,
        check: bool = False,
        max_output: Optional[int] = None,
        files: Optional[Files] = None,
        id: Optional[str] = None,
    ) -> Result[Any]:
        """As Sandbox.exec. Cancelling the task kills the command with all it started."""
        options: Dict[str, Any] = {"cwd": cwd, "env": env, "user": user, "stdin": one_input(stdin, input), "timeout": timeout,
                                   "max_output": max_output, "files": files, "id": id}
        handle = await self._session()
        box = self._box
        for shell in ("bash", "sh"):
            argv = [box._shell or shell, "-lc", command] if isinstance(command, str) else command
            result = await _async.command(handle, ExecRequest(argv, **options), text)
            if not isinstance(command, str) or box._shell is not None:
                break
            if not isinstance(result.error, CommandNotFound):
                box._shell = shell
                break
        return conclude(result, text, check)

    def stream(self, command: Argv, **options: Any) -> AsyncStream:
        """As Sandbox.stream, with the same arguments."""
        return AsyncStream(lambda: _in_thread(self._box.stream, command, **options))

    async def spawn(self, command: Argv, *, pty: Pty = False, cwd: Optional[Path] = None, env: Optional[Environment] = None,
                    user: Optional[User] = None, stdin: Optional[Data] = None, timeout: Timeout = None, text: bool = False,
                    max_output: Optional[int] = None, files: Optional[Files] = None, id: Optional[str] = None) -> AsyncProcess:
        """As Sandbox.spawn."""
        return AsyncProcess(await _in_thread(self._box.spawn, command, pty=pty, cwd=cwd, env=env, user=user, stdin=stdin, timeout=timeout,
                                             text=text, max_output=max_output, files=files, id=id))

    async def process(self, id: str, *, text: bool = False) -> AsyncProcess:
        """As Sandbox.process."""
        return AsyncProcess(await _in_thread(self._box.process, id, text=text))

    async def shell(self, id: Optional[str] = None, *, cwd: Optional[Path] = None, env: Optional[Environment] = None,
                    user: Optional[User] = None) -> AsyncShell:
        """As Sandbox.shell."""
        return AsyncShell(await _in_thread(self._box.shell, id, cwd=cwd, env=env, user=user))

    # Its states

    async def snapshot(self, name: Optional[str] = None, *, processes: Processes = "keep") -> Snapshot:
        """As Sandbox.snapshot."""
        return await _in_thread(self._box.snapshot, name, processes=processes)

    async def fork(self, n: int = 1, *, snapshot: Optional[SnapshotLike] = None, processes: Processes = "keep",
                   record: Union[RecordLike, bool] = True, same_seed: bool = False) -> List["AsyncSandbox"]:
        """As Sandbox.fork."""
        forks = await _in_thread(self._box.fork, n, snapshot=snapshot, processes=processes, record=record, same_seed=same_seed)
        return [self._of(box) for box in forks]

    async def reset(self, snapshot: Optional[SnapshotLike] = None, *, processes: Processes = "keep") -> None:
        """As Sandbox.reset."""
        await _in_thread(self._box.reset, snapshot, processes=processes)

    async def discard(self) -> None:
        """As Sandbox.discard."""
        await _in_thread(self._box.discard)

    async def drop(self, snapshot: SnapshotLike) -> None:
        """As Sandbox.drop."""
        await _in_thread(self._box.drop, snapshot)

    async def note(self, data: Any) -> None:
        """As Sandbox.note."""
        await _in_thread(self._box.note, data)

    async def kill_all(self) -> None:
        """As Sandbox.kill_all."""
        await _in_thread(self._box.kill_all)

    async def tree(self) -> Tree:
        """As Sandbox.tree."""
        return await _in_thread(self._box.tree)

    async def show(self, snapshot: Optional[SnapshotLike] = None) -> Dict[str, Any]:
        """As Sandbox.show."""
        return await _in_thread(self._box.show, snapshot)

    async def verify(self, snapshot: Optional[SnapshotLike] = None) -> Dict[str, Any]:
        """As Sandbox.verify."""
        return await _in_thread(self._box.verify, snapshot)

    async def diff(self, start: Optional[SnapshotLike] = None, end: Optional[SnapshotLike] = None, *, text: bool = False) -> List[Change]:
        """As Sandbox.diff."""
        return await _in_thread(self._box.diff, start, end, text=text)

    async def commit(self, path: Optional[Path] = None, *, force: bool = False) -> List[Dict[str, Any]]:
        """As Sandbox.commit."""
        return await _in_thread(self._box.commit, path, force=force)

    async def export(self, host_path: Path, snapshot: Optional[SnapshotLike] = None, *, processes: Processes = "drop") -> None:
        """As Sandbox.export."""
        await _in_thread(self._box.export, host_path, snapshot, processes=processes)

    async def grade(self, files: Mapping[str, Data], command: Argv, **options: Any) -> Grade[Any]:
        """As Sandbox.grade, with the same arguments."""
        return await _in_thread(self._box.grade, files, command, **options)

    # Looking at it

    async def pause(self) -> None:
        """As Sandbox.pause."""
        await _in_thread(self._box.pause)

    async def resume(self) -> None:
        """As Sandbox.resume."""
        await _in_thread(self._box.resume)

    async def hibernate(self, *, processes: Processes = "keep") -> None:
        """As Sandbox.hibernate."""
        await _in_thread(self._box.hibernate, processes=processes)

    async def wake(self, *, processes: Processes = "keep") -> None:
        """As Sandbox.wake."""
        await _in_thread(self._box.wake, processes=processes)

    async def inspect(self) -> Dict[str, Any]:
        """As Sandbox.inspect."""
        return await _in_thread(self._box.inspect)

    async def processes(self) -> List[Dict[str, Any]]:
        """As Sandbox.processes."""
        return await _in_thread(self._box.processes)


_SIGNATURE = signature("cls", [Sandbox.__init__], [
    option("work_fn", "Optional[Callable[..., Any]]"), option("init_fn", "Optional[Callable[[], Any]]"), option("python", "str", "python3")])
AsyncSandbox.__new__.__signature__ = _SIGNATURE     # type: ignore[attr-defined]
