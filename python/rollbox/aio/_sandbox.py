# SPDX-License-Identifier: Apache-2.0
"""AsyncSandbox: the calls of Sandbox for asyncio.

The loop itself waits for runs and commands, thousands at once. The other calls run in threads:
their methods are in _calls.py, which tools/gen_async.py makes from those of Sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Generic,
    Literal,
    Optional,
    TypeVar,
    Union,
    overload,
)

from .._clone_loop import CloneLoop
from .._clone_result import Clone
from .._clones import MAX_VALUE, CloneWork
from .._core.errors import CommandNotFound
from .._core.handle import Handle
from .._core.hints import check_keywords, no_attribute
from .._core.options import AutoSnapshot, Path, PolicyLike, Processes, RecordLike, one_input
from .._core.policy import POLICY_KEYS, Policy
from .._core.request import (
    Argv,
    Data,
    Environment,
    ExecRequest,
    Files,
    Priority,
    Request,
    Timeout,
    as_argv,
    code_argv,
    full_user,
)
from .._core.result import Result
from .._engine import Engine
from .._process import Pty, finish_result
from .._sandbox import NoWork, Sandbox, refuse_fork_options
from .._session import User
from .._snapshots import SnapshotLike
from . import _runs
from ._calls import AsyncCalls
from ._process import AsyncProcess, AsyncShell, AsyncStream
from ._threads import run_in_thread

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    _R = DefaultTypeVar("_R", default=NoWork)
else:
    _R = TypeVar("_R")

_T = TypeVar("_T")
_V = TypeVar("_V")
_Reduced = TypeVar("_Reduced")


async def _stoppable(loop: CloneLoop, function: Callable[..., _T], *arguments: Any) -> _T:
    """Calls a function that waits for clones in a thread; a cancelled task stops the clones."""
    future = asyncio.ensure_future(run_in_thread(function, *arguments))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        loop.stop()
        with contextlib.suppress(Exception):
            await future
        raise


async def _iterate(
    work: CloneWork[_V], box: Sandbox[Any], n: int, *arguments: Any
) -> AsyncIterator[Clone[bytes, _V]]:
    loop, clones = await run_in_thread(work.start_fork, box, n, *arguments)
    try:
        while True:
            clone: Optional[Clone[bytes, _V]] = await _stoppable(loop, next, clones, None)
            if clone is None:
                break
            yield clone
    finally:
        await run_in_thread(clones.close)


async def _gather(
    work: CloneWork[_V],
    box: Sandbox[Any],
    reduce: Optional[Callable[[Iterator[Clone[bytes, _V]]], Any]],
    n: int,
    *arguments: Any,
) -> Any:
    loop, clones = await run_in_thread(work.start_fork, box, n, *arguments)

    def gather() -> Any:
        with contextlib.closing(clones):
            return list(clones) if reduce is None else reduce(clones)

    return await _stoppable(loop, gather)


class AsyncClonePool(Generic[_V]):
    """ClonePool for asyncio: what `AsyncSandbox.clones` returns.

    Attributes:
        box: The sandbox.
    """

    def __init__(self, box: AsyncSandbox[Any], work: CloneWork[_V]) -> None:
        self.box = box
        self._work = work

    async def __aenter__(self) -> AsyncClonePool[_V]:
        await self.box.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.box.__aexit__()

    async def close(self) -> None:
        """As ClonePool.close."""
        await self.box.close()

    async def warm(self) -> None:
        """As ClonePool.warm. Cancelling the task does not end init_fn; `close` does."""
        await run_in_thread(self._work.warm, self.box.sync)

    def iter_fork(
        self,
        n: int,
        *,
        timeout: Timeout = None,
        concurrency: Optional[int] = None,
        seed: Optional[int] = None,
        ordered: bool = False,
        progress: Optional[bool] = None,
        retries: int = 2,
        max_value: int = MAX_VALUE,
    ) -> AsyncIterator[Clone[bytes, _V]]:
        """As ClonePool.iter_fork: `async for clone in pool.iter_fork(n)`."""
        rest = (timeout, concurrency, seed, ordered, progress, retries, max_value)
        return _iterate(self._work, self.box.sync, n, *rest)

    @overload
    async def fork(
        self,
        n: int = ...,
        *,
        timeout: Timeout = ...,
        concurrency: Optional[int] = ...,
        seed: Optional[int] = ...,
        ordered: bool = ...,
        progress: Optional[bool] = ...,
        retries: int = ...,
        max_value: int = ...,
        reduce: None = ...,
    ) -> list[Clone[bytes, _V]]: ...

    @overload
    async def fork(
        self,
        n: int = ...,
        *,
        timeout: Timeout = ...,
        concurrency: Optional[int] = ...,
        seed: Optional[int] = ...,
        ordered: bool = ...,
        progress: Optional[bool] = ...,
        retries: int = ...,
        max_value: int = ...,
        reduce: Callable[[Iterator[Clone[bytes, _V]]], _Reduced],
    ) -> _Reduced: ...

    async def fork(
        self,
        n: int = 1,
        *,
        timeout: Timeout = None,
        concurrency: Optional[int] = None,
        seed: Optional[int] = None,
        ordered: bool = True,
        progress: Optional[bool] = None,
        retries: int = 2,
        max_value: int = MAX_VALUE,
        reduce: Optional[Callable[[Iterator[Clone[bytes, _V]]], Any]] = None,
    ) -> Any:
        """As ClonePool.fork. Cancelling the task kills the clones.

        reduce is called in another thread.
        """
        rest = (timeout, concurrency, seed, ordered, progress, retries, max_value)
        return await _gather(self._work, self.box.sync, reduce, n, *rest)


class AsyncSandbox(AsyncCalls, Generic[_R]):
    r"""Sandbox for asyncio, and for loops with add_reader such as uvloop's.

    Its calls are those of Sandbox, awaited. Several loops in several threads may use it at once.
    `async with` opens a session.

    Args:
        policy: As of Sandbox.
        work_fn: As of Sandbox.
        init_fn: As of Sandbox.
        python: As of Sandbox.
        engine: As of Sandbox.
        name: As of Sandbox.
        detached: As of Sandbox.
        idle: As of Sandbox.
        ttl: As of Sandbox.
        max_lifetime: As of Sandbox.
        hibernate_after: As of Sandbox.
        auto_snapshot: As of Sandbox.
        auto_keep: As of Sandbox.
        priority: As of Sandbox.
        queue_timeout: As of Sandbox.
        record: As of Sandbox.

    Raises:
        InvalidArgument: An argument is wrong.
        TypeError: There is no such argument.

    Example:
        >>> import asyncio
        >>> async def hello():
        ...     return await AsyncSandbox().run(["echo", "hello"], text=True)
        >>> asyncio.run(hello()).stdout
        'hello\n'
    """

    _box: Sandbox[_R]

    @overload
    def __init__(
        self: AsyncSandbox[NoWork],
        policy: PolicyLike = ...,
        *,
        engine: Optional[Engine] = ...,
        name: Optional[str] = ...,
        detached: bool = ...,
        idle: Optional[float] = ...,
        ttl: Optional[float] = ...,
        max_lifetime: Optional[float] = ...,
        hibernate_after: Optional[float] = ...,
        auto_snapshot: AutoSnapshot = ...,
        auto_keep: Optional[int] = ...,
        priority: Priority = ...,
        queue_timeout: Optional[float] = ...,
        record: RecordLike = ...,
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncSandbox[_V],
        policy: PolicyLike = ...,
        *,
        work_fn: Callable[..., _V],
        init_fn: Optional[Callable[[], Any]] = ...,
        python: str = ...,
        engine: Optional[Engine] = ...,
        name: Optional[str] = ...,
        detached: bool = ...,
        idle: Optional[float] = ...,
        ttl: Optional[float] = ...,
        max_lifetime: Optional[float] = ...,
        hibernate_after: Optional[float] = ...,
        auto_snapshot: AutoSnapshot = ...,
        auto_keep: Optional[int] = ...,
        priority: Priority = ...,
        queue_timeout: Optional[float] = ...,
        record: RecordLike = ...,
    ) -> None: ...

    @check_keywords(POLICY_KEYS)
    def __init__(
        self,
        policy: PolicyLike = None,
        *,
        work_fn: Optional[Callable[..., Any]] = None,
        init_fn: Optional[Callable[[], Any]] = None,
        python: str = "python3",
        engine: Optional[Engine] = None,
        name: Optional[str] = None,
        detached: bool = False,
        idle: Optional[float] = None,
        ttl: Optional[float] = None,
        max_lifetime: Optional[float] = None,
        hibernate_after: Optional[float] = None,
        auto_snapshot: AutoSnapshot = None,
        auto_keep: Optional[int] = None,
        priority: Priority = None,
        queue_timeout: Optional[float] = None,
        record: RecordLike = None,
    ) -> None:
        options: dict[str, Any] = {
            "engine": engine,
            "name": name,
            "detached": detached,
            "idle": idle,
            "ttl": ttl,
            "max_lifetime": max_lifetime,
            "hibernate_after": hibernate_after,
            "auto_snapshot": auto_snapshot,
            "auto_keep": auto_keep,
            "priority": priority,
            "queue_timeout": queue_timeout,
            "record": record,
        }
        if work_fn is not None or init_fn is not None:
            options.update(work_fn=work_fn, init_fn=init_fn, python=python)
        self._box = Sandbox(policy, **options)

    @classmethod
    def of(cls: type[_Async], box: Sandbox[Any]) -> _Async:
        """Makes an AsyncSandbox with the session of a Sandbox; `sync` is the way back.

        Args:
            box: The Sandbox.

        Returns:
            The AsyncSandbox.
        """
        made = cls(box.policy, engine=box._engine, record=box._record)
        made._box = box
        return made

    @classmethod
    async def open(cls: type[_Async], name: str, *, engine: Optional[Engine] = None) -> _Async:
        """As Sandbox.open."""
        return cls.of(await run_in_thread(Sandbox.open, name, engine=engine))

    @property
    def sync(self) -> Sandbox[_R]:
        """The same session for blocking calls."""
        return self._box

    @property
    def policy(self) -> Policy:
        """The policy of every run and of the session."""
        return self._box.policy

    @property
    def recorded(self) -> Optional[dict[str, Any]]:
        """As Sandbox.recorded."""
        return self._box.recorded

    @property
    def name(self) -> Optional[str]:
        """The session's name on the engine; None before it has begun."""
        return self._box.name if self._box._in_session() else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._box.policy!r})"

    if not TYPE_CHECKING:  # type checkers would then allow any name

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name)

    def __reduce__(self) -> Any:
        self._box._refuse_pickling(type(self).__name__)
        return _rebuild, (type(self), self._box)

    async def __aenter__(self: _Async) -> _Async:
        await run_in_thread(self._box._enter)
        return self

    async def __aexit__(self, *_: object) -> None:
        await run_in_thread(self._box._leave)

    async def close(self) -> None:
        """As Sandbox.close."""
        await run_in_thread(self._box.close)

    # One program

    @overload
    async def run(
        self,
        argv: Argv,
        *,
        timeout: Timeout = ...,
        stdin: Optional[Data] = ...,
        input: Optional[Data] = ...,
        env: Optional[Environment] = ...,
        cwd: Optional[Path] = ...,
        files: Optional[Files] = ...,
        text: Literal[False] = ...,
        check: bool = ...,
        max_output: Optional[int] = ...,
    ) -> Result[bytes]: ...

    @overload
    async def run(
        self,
        argv: Argv,
        *,
        timeout: Timeout = ...,
        stdin: Optional[Data] = ...,
        input: Optional[Data] = ...,
        env: Optional[Environment] = ...,
        cwd: Optional[Path] = ...,
        files: Optional[Files] = ...,
        text: Literal[True],
        check: bool = ...,
        max_output: Optional[int] = ...,
    ) -> Result[str]: ...

    @overload
    async def run(
        self,
        argv: Argv,
        *,
        timeout: Timeout = ...,
        stdin: Optional[Data] = ...,
        input: Optional[Data] = ...,
        env: Optional[Environment] = ...,
        cwd: Optional[Path] = ...,
        files: Optional[Files] = ...,
        text: bool,
        check: bool = ...,
        max_output: Optional[int] = ...,
    ) -> Result[Any]: ...

    async def run(
        self,
        argv: Argv,
        *,
        timeout: Timeout = None,
        stdin: Optional[Data] = None,
        input: Optional[Data] = None,
        env: Optional[Environment] = None,
        cwd: Optional[Path] = None,
        files: Optional[Files] = None,
        text: bool = False,
        check: bool = False,
        max_output: Optional[int] = None,
    ) -> Result[Any]:
        """As Sandbox.run, without blocking the loop.

        Cancelling the task kills the run with its processes and files; in a session, its processes.
        """
        if self._box._in_session():
            return await self.exec(
                as_argv(argv),
                timeout=self._box._run_timeout(timeout),
                stdin=one_input(stdin, input),
                env=env,
                cwd=cwd,
                files=files,
                text=text,
                check=check,
                max_output=max_output,
            )
        if self._box._record is not None:
            async with AsyncSandbox(
                self._box.policy, engine=self._box._engine, record=self._box._record
            ) as box:
                result = await box.exec(
                    as_argv(argv),
                    timeout=self._box._run_timeout(timeout),
                    stdin=one_input(stdin, input),
                    env=env,
                    cwd=cwd,
                    files=files,
                    max_output=max_output,
                    text=text,
                )
            return result.check() if check else result
        request = Request(
            argv,
            timeout=timeout,
            stdin=one_input(stdin, input),
            env=env,
            cwd=cwd,
            files=files,
            max_output=max_output,
            turn=self._box._turn,
        )
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
        cwd: Optional[Path] = None,
        files: Optional[Files] = None,
        text: bool = False,
        check: bool = False,
        max_output: Optional[int] = None,
    ) -> Result[Any]:
        """As Sandbox.run_code, without blocking. Cancelling the task kills the run."""
        if self._box._record is not None or self._box._in_session():
            return await self.run(
                code_argv(code, args),
                timeout=timeout,
                stdin=stdin,
                input=input,
                env=env,
                cwd=cwd,
                files=files,
                text=text,
                check=check,
                max_output=max_output,
            )
        request = Request(
            code_argv(code, args),
            timeout=timeout,
            stdin=one_input(stdin, input),
            env=env,
            cwd=cwd,
            files=files,
            max_output=max_output,
            is_code=True,
            turn=self._box._turn,
        )
        return await self._run(request, text, check)

    async def _run(self, request: Request, text: bool, check: bool) -> Result[Any]:
        result = await _runs.run(self._box._get_engine(), self._box.policy.to_json(), request, text)
        if result.error is not None:
            raise result.error
        return result.check() if check else result

    # Commands

    async def _session(self) -> Handle:
        return (
            self._box._session()
            if self._box._in_session()
            else await run_in_thread(self._box._session)
        )

    @overload
    async def exec(
        self,
        command: Argv,
        *,
        cwd: Optional[Path] = ...,
        env: Optional[Environment] = ...,
        user: Optional[User] = ...,
        group: Optional[User] = ...,
        groups: Optional[Sequence[User]] = ...,
        stdin: Optional[Data] = ...,
        input: Optional[Data] = ...,
        timeout: Timeout = ...,
        text: Literal[False] = ...,
        check: bool = ...,
        max_output: Optional[int] = ...,
        files: Optional[Files] = ...,
        id: Optional[str] = ...,
    ) -> Result[bytes]: ...

    @overload
    async def exec(
        self,
        command: Argv,
        *,
        cwd: Optional[Path] = ...,
        env: Optional[Environment] = ...,
        user: Optional[User] = ...,
        group: Optional[User] = ...,
        groups: Optional[Sequence[User]] = ...,
        stdin: Optional[Data] = ...,
        input: Optional[Data] = ...,
        timeout: Timeout = ...,
        text: Literal[True],
        check: bool = ...,
        max_output: Optional[int] = ...,
        files: Optional[Files] = ...,
        id: Optional[str] = ...,
    ) -> Result[str]: ...

    @overload
    async def exec(
        self,
        command: Argv,
        *,
        cwd: Optional[Path] = ...,
        env: Optional[Environment] = ...,
        user: Optional[User] = ...,
        group: Optional[User] = ...,
        groups: Optional[Sequence[User]] = ...,
        stdin: Optional[Data] = ...,
        input: Optional[Data] = ...,
        timeout: Timeout = ...,
        text: bool,
        check: bool = ...,
        max_output: Optional[int] = ...,
        files: Optional[Files] = ...,
        id: Optional[str] = ...,
    ) -> Result[Any]: ...

    async def exec(
        self,
        command: Argv,
        *,
        cwd: Optional[Path] = None,
        env: Optional[Environment] = None,
        user: Optional[User] = None,
        group: Optional[User] = None,
        groups: Optional[Sequence[User]] = None,
        stdin: Optional[Data] = None,
        input: Optional[Data] = None,
        timeout: Timeout = None,
        text: bool = False,
        check: bool = False,
        max_output: Optional[int] = None,
        files: Optional[Files] = None,
        id: Optional[str] = None,
    ) -> Result[Any]:
        """As Sandbox.exec. Cancelling the task kills the command with all that it started."""
        options: dict[str, Any] = {
            "cwd": cwd,
            "env": env,
            "user": full_user(user, group, groups),
            "stdin": one_input(stdin, input),
            "timeout": timeout,
            "max_output": max_output,
            "files": files,
            "id": id,
        }
        handle = await self._session()
        box = self._box
        for shell in ("bash", "sh"):
            argv = [box._shell or shell, "-lc", command] if isinstance(command, str) else command
            result = await _runs.command(handle, ExecRequest(argv, **options), text)
            if not isinstance(command, str) or box._shell is not None:
                break
            if not isinstance(result.error, CommandNotFound):
                box._shell = shell
                break
        return finish_result(result, text, check)

    def stream(
        self,
        command: Argv,
        *,
        cwd: Optional[Path] = None,
        env: Optional[Environment] = None,
        user: Optional[User] = None,
        group: Optional[User] = None,
        groups: Optional[Sequence[User]] = None,
        stdin: Optional[Data] = None,
        input: Optional[Data] = None,
        timeout: Timeout = None,
        text: bool = False,
        check: bool = False,
        max_output: Optional[int] = None,
        files: Optional[Files] = None,
    ) -> AsyncStream:
        """As Sandbox.stream; not a coroutine."""
        return AsyncStream(
            lambda: run_in_thread(
                self._box.stream,
                command,
                cwd=cwd,
                env=env,
                user=user,
                group=group,
                groups=groups,
                stdin=one_input(stdin, input),
                timeout=timeout,
                text=text,
                check=check,
                max_output=max_output,
                files=files,
            )
        )

    async def spawn(
        self,
        command: Argv,
        *,
        pty: Pty = False,
        cwd: Optional[Path] = None,
        env: Optional[Environment] = None,
        user: Optional[User] = None,
        group: Optional[User] = None,
        groups: Optional[Sequence[User]] = None,
        stdin: Optional[Data] = None,
        timeout: Timeout = None,
        text: bool = False,
        max_output: Optional[int] = None,
        files: Optional[Files] = None,
        id: Optional[str] = None,
    ) -> AsyncProcess:
        """As Sandbox.spawn."""
        return AsyncProcess(
            await run_in_thread(
                self._box.spawn,
                command,
                pty=pty,
                cwd=cwd,
                env=env,
                user=user,
                group=group,
                groups=groups,
                stdin=stdin,
                timeout=timeout,
                text=text,
                max_output=max_output,
                files=files,
                id=id,
            )
        )

    async def process(self, id: str, *, text: bool = False) -> AsyncProcess:
        """As Sandbox.process."""
        return AsyncProcess(await run_in_thread(self._box.process, id, text=text))

    async def shell(
        self,
        id: Optional[str] = None,
        *,
        cwd: Optional[Path] = None,
        env: Optional[Environment] = None,
        user: Optional[User] = None,
        group: Optional[User] = None,
        groups: Optional[Sequence[User]] = None,
    ) -> AsyncShell:
        """As Sandbox.shell."""
        return AsyncShell(
            await run_in_thread(
                self._box.shell, id, cwd=cwd, env=env, user=user, group=group, groups=groups
            )
        )

    # Copies

    # Only the class's parameter distinguishes the second kind of fork from the first.
    @overload
    async def fork(  # type: ignore[overload-overlap]
        self: AsyncSandbox[NoWork],
        n: int = ...,
        *,
        snapshot: Optional[SnapshotLike] = ...,
        processes: Processes = ...,
        record: Union[RecordLike, bool] = ...,
        same_seed: bool = ...,
    ) -> list[AsyncSandbox[NoWork]]: ...

    @overload
    async def fork(
        self: AsyncSandbox[_V],
        n: int = ...,
        *,
        timeout: Timeout = ...,
        concurrency: Optional[int] = ...,
        seed: Optional[int] = ...,
        ordered: bool = ...,
        progress: Optional[bool] = ...,
        retries: int = ...,
        max_value: int = ...,
        reduce: None = ...,
    ) -> list[Clone[bytes, _V]]: ...

    @overload
    async def fork(
        self: AsyncSandbox[_V],
        n: int = ...,
        *,
        timeout: Timeout = ...,
        concurrency: Optional[int] = ...,
        seed: Optional[int] = ...,
        ordered: bool = ...,
        progress: Optional[bool] = ...,
        retries: int = ...,
        max_value: int = ...,
        reduce: Callable[[Iterator[Clone[bytes, _V]]], _Reduced],
    ) -> _Reduced: ...

    async def fork(
        self,
        n: int = 1,
        *,
        snapshot: Optional[SnapshotLike] = None,
        processes: Processes = "keep",
        record: Union[RecordLike, bool] = True,
        same_seed: bool = False,
        timeout: Timeout = None,
        concurrency: Optional[int] = None,
        seed: Optional[int] = None,
        ordered: bool = True,
        progress: Optional[bool] = None,
        retries: int = 2,
        max_value: int = MAX_VALUE,
        reduce: Optional[Callable[[Iterator[Clone[bytes, Any]]], Any]] = None,
    ) -> Any:
        """As Sandbox.fork. With a work_fn, as AsyncClonePool.fork."""
        refuse_fork_options(self._box._work is not None, locals())
        if self._box._work is not None:
            rest = (timeout, concurrency, seed, ordered, progress, retries, max_value)
            return await _gather(self._box._work, self._box, reduce, n, *rest)
        forks = await run_in_thread(
            self._box._fork_sessions, n, snapshot, processes, record, same_seed
        )
        return [self.of(box) for box in forks]

    def iter_fork(
        self: AsyncSandbox[_V],
        n: int,
        *,
        timeout: Timeout = None,
        concurrency: Optional[int] = None,
        seed: Optional[int] = None,
        ordered: bool = False,
        progress: Optional[bool] = None,
        retries: int = 2,
        max_value: int = MAX_VALUE,
    ) -> AsyncIterator[Clone[bytes, _V]]:
        """As Sandbox.iter_fork: `async for clone in box.iter_fork(n)`."""
        rest = (timeout, concurrency, seed, ordered, progress, retries, max_value)
        return _iterate(self._box._clone_work(), self._box, n, *rest)

    def clones(
        self,
        work_fn: Callable[..., _V],
        *,
        init_fn: Optional[Callable[[], Any]] = None,
        python: str = "python3",
    ) -> AsyncClonePool[_V]:
        """As Sandbox.clones; not a coroutine."""
        return AsyncClonePool(self, CloneWork(work_fn, init_fn, python))


_Async = TypeVar("_Async", bound=AsyncSandbox[Any])


def _rebuild(cls: type[_Async], box: Sandbox[Any]) -> _Async:
    return cls.of(box)
