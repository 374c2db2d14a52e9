# SPDX-License-Identifier: Apache-2.0
"""Sandbox: runs under one policy, and one session under it.

A run has a fresh sandbox of its own, of which nothing is left. A session is one sandbox that stays
until it is closed. Two kinds of work go to a delegate that the sandbox holds:

- `fork` of a Sandbox with a `work_fn` goes to a CloneWork (_clones.py), which runs the function in
  clones of one interpreter.
- The sandboxes and the `run_code` of a Sandbox with a `template` come from a TemplateSource
  (_template.py).

Neither delegate refers to the sandbox: a session ends when nobody refers to its Sandbox any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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

from ._clone_result import Clone
from ._clones import MAX_VALUE, ClonePool, CloneWork
from ._core.errors import InvalidArgument
from ._core.handle import Handle
from ._core.hints import check_keywords
from ._core.options import AutoSnapshot, Path, PolicyLike, Processes, RecordLike, one_input
from ._core.policy import POLICY_KEYS, Policy
from ._core.request import (
    Argv,
    Data,
    Environment,
    Files,
    Priority,
    Request,
    Timeout,
    as_argv,
    code_argv,
)
from ._core.result import Result
from ._engine import Engine
from ._grade import Grade, grade
from ._session import Session, User
from ._snapshots import SnapshotLike
from ._template import TemplateSource

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    _R = DefaultTypeVar("_R", default="NoWork")
else:
    _R = TypeVar("_R")

_V = TypeVar("_V")
_S = TypeVar("_S", bound="Sandbox[NoWork]")
_Reduced = TypeVar("_Reduced")


class NoWork:
    """For type checkers: the parameter of a Sandbox without a work_fn."""


_SNAPSHOT_OPTIONS = {"snapshot": None, "processes": "keep", "record": True, "same_seed": False}
_CLONE_OPTIONS = {
    "timeout": None,
    "concurrency": None,
    "seed": None,
    "ordered": True,
    "progress": None,
    "retries": 2,
    "max_value": MAX_VALUE,
    "reduce": None,
}


def refuse_fork_options(has_work: bool, given: Mapping[str, Any]) -> None:
    """Raises TypeError for an argument of `fork` that belongs to the other kind of sandbox."""
    others = _SNAPSHOT_OPTIONS if has_work else _CLONE_OPTIONS
    for name, default in others.items():
        if given[name] != default:
            kind = "with a work_fn" if has_work else "without a work_fn"
            raise TypeError(f"fork() of a sandbox {kind} takes no {name}")


class Sandbox(Session, Generic[_R]):
    """Runs programs under a policy, each in its own sandbox or all in one session.

    `run` and `run_code` have a fresh sandbox each, of which nothing is left, unless a session is
    open: then they run in it. A session is one sandbox that stays. It begins with `with`, or with
    the first call other than these two. It ends by `close`, by leaving the `with`, or when nobody
    refers to the Sandbox any more.

    A Sandbox costs nothing to make. Any number of threads may use it at once. It is picklable
    while it has no session and no engine of its own.

    Args:
        policy: What programs may see and use: a Policy, a mapping of its keys, or None for the
            default policy.
        work_fn: A function that `fork` runs in clones of one interpreter; see `clones`, which says
            the same more plainly.
        init_fn: With work_fn: a function that prepares this interpreter.
        python: With work_fn: the interpreter's program in the sandbox.
        template: The name of a template that `rollbox template create` made on `engine`. The
            sandbox has the template's policy; its session begins as a fork of the template, and
            each `run_code` is another fork.
        engine: The engine to use; None: the one that this process shares.
        name: The session's name on the engine, 1 to 64 of A-Z a-z 0-9 _ . -; None: made up.
        detached: The session outlives this process (on a shared engine) and its `with`.
        idle: Seconds without a call after which the session is paused.
        ttl: Seconds without a call after which the session is closed.
        max_lifetime: Seconds after which the session is closed in any case.
        hibernate_after: Seconds without a call after which the session hibernates, if no command
            is waited for and its processes do little.
        auto_snapshot: "changed": take a snapshot after each command that has changed something.
        auto_keep: How many automatic snapshots are kept (16); named ones and those with branches
            do not count.
        priority: "high", "normal" or "low": the turn of its runs, and on a server of the session's
            creation, among those of the same client or tenant that wait; None: normal.
        queue_timeout: Seconds that a run, or the session's creation, may wait in a server's queue
            before it is ResourceExhausted; None: 60. Engines of this machine have no such limit.
            It does not count in timeout, and Result.queue_ms tells the wait.
        record: Where the trajectory goes: a path, a descriptor, a function or a Record. A run that
            is recorded is a session of one command. Forks are recorded likewise.

    Raises:
        InvalidArgument: An argument is wrong.
        TypeError: There is no such argument; the message names the one that was probably meant.
        NotFound: There is no such template.

    Example:
        >>> with Sandbox({"max_memory": "256M"}) as box:
        ...     box.write_file("/tmp/greeting", "hello")
        ...     box.run(["cat", "/tmp/greeting"], text=True).stdout
        'hello'
    """

    _work: Optional[CloneWork[_R]]
    _template: Optional[TemplateSource]

    @overload
    def __init__(
        self: Sandbox[NoWork],
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
        self: Sandbox[_V],
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

    @overload
    def __init__(
        self: Sandbox[NoWork],
        policy: None = ...,
        *,
        template: str,
        engine: Engine,
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
        template: Optional[str] = None,
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
        self._work, self._template = None, None
        if work_fn is not None or init_fn is not None:
            self._work = CloneWork(work_fn, init_fn, python)
        if template is not None:
            others = {
                "policy": policy,
                "work_fn": work_fn or init_fn,
                "name": name,
                "detached": detached or None,
                "idle": idle,
                "ttl": ttl,
                "max_lifetime": max_lifetime,
                "hibernate_after": hibernate_after,
                "auto_snapshot": auto_snapshot,
                "auto_keep": auto_keep,
                "priority": priority,
                "queue_timeout": queue_timeout,
            }
            self._template = TemplateSource.open(template, engine, others)
            policy = self._template.policy
        super().__init__(
            policy,
            engine=engine,
            name=name,
            detached=detached,
            idle=idle,
            ttl=ttl,
            max_lifetime=max_lifetime,
            hibernate_after=hibernate_after,
            auto_snapshot=auto_snapshot,
            auto_keep=auto_keep,
            priority=priority,
            queue_timeout=queue_timeout,
            record=record,
        )

    def __enter__(self: _Self) -> _Self:
        self._enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def __reduce__(self) -> Any:
        rebuild, arguments = super().__reduce__()
        return _rebuild, (rebuild, arguments, self._work)

    def _create_handle(self) -> Handle:
        if self._template is None:
            return super()._create_handle()
        return self._template.fork()

    # One program

    @overload
    def run(
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
    def run(
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
    def run(
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

    def run(
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
        r"""Runs a program and waits for its end.

        The program runs in the open session, where it sees what earlier calls left. Without a
        session it has a fresh sandbox; what still runs there is killed when the program ends. An
        interrupt (Ctrl-C) kills the sandbox.

        Args:
            argv: A list of str, bytes or PathLike, the program first (looked up in the sandbox's
                PATH); or a str, a line for `/bin/sh -c`. For the text of a Python program, use
                `run_code`.
            timeout: Seconds of wall clock, over the policy's; "none" is no limit. Without either,
                300.
            stdin: The program's standard input, str or bytes; None: empty.
            input: Another name of stdin, as in subprocess.
            env: {name: value}, over the policy's environment.
            cwd: The working directory, over the policy's.
            files: {path: str or bytes} to write before the program starts; a relative path is
                below cwd.
            text: Make stdout and stderr str, with invalid UTF-8 replaced.
            check: Raise RunFailed unless the program exits with status 0.
            max_output: Bytes per stream, over the policy's.

        Returns:
            The result of the program, for any outcome.

        Raises:
            InvalidArgument: An argument is wrong (also a ValueError).
            PolicyInvalid, PathNotFound, PathDenied: The policy cannot be used.
            CommandNotFound, NotExecutable, BadCwd: The program cannot be started.
            FeatureMissing, SetupFailed, ResourceExhausted, HostOutOfMemory: The host cannot do it.
            EngineStartFailed, EngineLost: The engine is gone.
            RunFailed: With check: the program failed.

        Example:
            >>> Sandbox().run(["echo", "hello"], text=True).stdout
            'hello\n'
        """
        data = one_input(stdin, input)
        options: dict[str, Any] = {"env": env, "cwd": cwd, "files": files, "max_output": max_output}
        if self._in_session() or self._record is not None:
            command, allowed = as_argv(argv), self._run_timeout(timeout)
            options.update(stdin=data, timeout=allowed, text=text)
            result: Result[Any]
            if self._in_session():
                result = self.exec(command, **options)
            else:
                with Sandbox(self._policy, engine=self._engine, record=self._record) as box:
                    result = box.exec(command, **options)
            return result.check() if check else result
        if self._template is not None:
            raise InvalidArgument(
                "a template's interpreter runs code: use run_code, or exec in a session",
                stage="arguments",
            )
        request = Request(argv, timeout=timeout, stdin=data, turn=self._turn, **options)
        return self._run(request, text, check)

    def run_code(
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
        r"""Runs a Python program by an interpreter that is kept warm.

        The same as run(["python3", "-c", code, *args]), but several times faster from the second
        call under a policy on: a Python that was started before, under the same policy, continues
        in a sandbox of this call's own. docs/explanation/interpreters.md lists the differences to a
        fresh one. A fresh one is started in an open session; with env; under a policy with a seed,
        a clock or isolation "process"; and wherever a warm one cannot be had.

        With a template, the code runs in a fork of it, where it finds what the template's code left
        in `__main__`; env, cwd, files and max_output are the template's, and an open session
        refuses the call.

        Args:
            code: The text of a program.
            args: The program's sys.argv[1:].
            timeout: As for `run`.
            stdin: As for `run`.
            input: As for `run`.
            env: As for `run`.
            cwd: As for `run`.
            files: As for `run`.
            text: As for `run`.
            check: As for `run`.
            max_output: As for `run`.

        Returns:
            What the program did.

        Raises:
            RollboxError: As for `run`.

        Example:
            >>> Sandbox().run_code("import sys; print(sys.argv[1:])", ["a"], text=True).stdout
            "['a']\n"
        """
        if self._template is not None:
            return self._run_in_template(
                self._template,
                code,
                args,
                {"env": env, "cwd": cwd, "files": files, "max_output": max_output},
                one_input(stdin, input),
                timeout,
                text,
                check,
            )
        options: dict[str, Any] = {
            "timeout": timeout,
            "env": env,
            "cwd": cwd,
            "files": files,
            "max_output": max_output,
        }
        command = code_argv(code, args)
        if self._record is not None or self._in_session():
            return self.run(command, stdin=stdin, input=input, text=text, check=check, **options)
        data = one_input(stdin, input)
        request = Request(command, stdin=data, is_code=True, turn=self._turn, **options)
        return self._run(request, text, check)

    def _run(self, request: Request, text: bool, check: bool) -> Result[Any]:
        result = self._get_engine().run(self._policy.to_json(), request, text)
        if result.error is not None:
            raise result.error
        return result.check() if check else result

    def _run_in_template(
        self,
        template: TemplateSource,
        code: Union[str, bytes],
        args: Sequence[Union[str, bytes]],
        others: Mapping[str, object],
        stdin: Optional[Data],
        timeout: Timeout,
        text: bool,
        check: bool,
    ) -> Result[Any]:
        for name, value in others.items():
            if value is not None:
                raise TypeError(f"run_code() of a template takes no {name}: it is the template's")
        if self._in_session():
            raise InvalidArgument(
                "each run_code of a template is a fork of its own and would not see this session's "
                'files; use exec(["python3", "-c", code]) in the session, or run_code of a '
                "Sandbox(template=...) without one",
                stage="arguments",
            )
        return template.run_code(self._policy, code, args, stdin, timeout, text, check)

    # Copies

    # Only the class's parameter distinguishes the second kind of fork from the first.
    @overload
    def fork(  # type: ignore[overload-overlap]
        self: _S,
        n: int = ...,
        *,
        snapshot: Optional[SnapshotLike] = ...,
        processes: Processes = ...,
        record: Union[RecordLike, bool] = ...,
        same_seed: bool = ...,
    ) -> list[_S]: ...

    @overload
    def fork(
        self: Sandbox[_V],
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
    def fork(
        self: Sandbox[_V],
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

    def fork(
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
        """Makes n new sessions in the state of a snapshot, files and processes.

        Each has a copy of every process; commands keep their ids (`process(id)`, `shell(id)`).
        Forks share nothing writable with this session or with each other. Each ends on its own:
        close it, or use it in a `with`. All n are made, or none. A command that starts in fork k
        (from 0) has CLONE_ID=k in its environment, unless it is given another.

        With a work_fn, it runs this function in n clones instead, as ClonePool.fork, and takes the
        arguments of that.

        Args:
            n: How many.
            snapshot: The snapshot to begin from; None: the present state.
            processes: "drop": copy the files alone.
            record: As of Sandbox (a path, descriptor or function alone keeps this session's rules
                for secrets); True: as this session is recorded; False: not.
            same_seed: Under a policy with random_seed: use this session's seed in each, in place of
                a seed of its own that follows from it.
            timeout: With a work_fn: as for ClonePool.fork.
            concurrency: With a work_fn: as for ClonePool.fork.
            seed: With a work_fn: as for ClonePool.fork.
            ordered: With a work_fn: as for ClonePool.fork.
            progress: With a work_fn: as for ClonePool.fork.
            retries: With a work_fn: as for ClonePool.fork.
            max_value: With a work_fn: as for ClonePool.fork.
            reduce: With a work_fn: as for ClonePool.fork.

        Returns:
            The new sessions; with a work_fn, the Clones, or what reduce returned.

        Raises:
            FeatureMissing: A process has something that cannot be captured; nothing has changed.
            SetupFailed: A process cannot be restored.
            NotFound: There is no such snapshot, or the session is closed.
            ResourceExhausted: The host has no room for it.

        Example:
            >>> with Sandbox() as box:
            ...     box.write_file("/tmp/a", "1")
            ...     kid, = box.fork()
            ...     with kid:
            ...         kid.read_file("/tmp/a")
            b'1'
        """
        refuse_fork_options(self._work is not None, locals())
        if self._work is None:
            return self._fork_sessions(n, snapshot, processes, record, same_seed)
        return self._work.fork(
            self,
            n,
            timeout=timeout,
            concurrency=concurrency,
            seed=seed,
            ordered=ordered,
            progress=progress,
            retries=retries,
            max_value=max_value,
            reduce=reduce,
        )

    def clones(
        self,
        work_fn: Callable[..., _V],
        *,
        init_fn: Optional[Callable[[], Any]] = None,
        python: str = "python3",
    ) -> ClonePool[_V]:
        """Prepares clones of one interpreter of this session, which run a function.

        The first fork of the pool starts an interpreter in the session, sends it both functions by
        value, runs init_fn and keeps that state. Each clone is a fork of it.

        Args:
            work_fn: The function that each clone runs. It is called with the clone's number and the
                value that init_fn returned, or with as many of these as it needs.
            init_fn: A function without arguments that prepares the interpreter, once.
            python: The interpreter's program in the sandbox. It needs this Python's minor version.

        Returns:
            A ClonePool: `fork(n)` returns a list of Clones.

        Raises:
            InvalidArgument: These are no functions that can be called so.

        Example:
            >>> with Sandbox() as box:
            ...     pool = box.clones(lambda number: number * number)
            ...     [clone.get() for clone in pool.fork(4)]
            [0, 1, 4, 9]
        """
        return ClonePool(self, work_fn, init_fn=init_fn, python=python)

    def _clone_work(self: Sandbox[_V]) -> CloneWork[_V]:
        if self._work is None:
            raise InvalidArgument(
                "this Sandbox has no work_fn: use clones(work_fn), and what that returns",
                stage="arguments",
            )
        return self._work

    def warm(self) -> None:
        """Runs init_fn and keeps the state, if that is not done yet. Needs a work_fn.

        Raises:
            InvalidArgument: The Sandbox has no work_fn.
            WorkFailed: init_fn failed.
            RollboxError: As for `fork`.
        """
        self._clone_work().warm(self)

    def iter_fork(
        self: Sandbox[_V],
        n: int,
        *,
        timeout: Timeout = None,
        concurrency: Optional[int] = None,
        seed: Optional[int] = None,
        ordered: bool = False,
        progress: Optional[bool] = None,
        retries: int = 2,
        max_value: int = MAX_VALUE,
    ) -> Iterator[Clone[bytes, _V]]:
        """Runs work_fn in n clones and yields each Clone as it ends. Needs a work_fn.

        Args:
            n: How many.
            timeout: As for ClonePool.iter_fork.
            concurrency: As for ClonePool.iter_fork.
            seed: As for ClonePool.iter_fork.
            ordered: As for ClonePool.iter_fork.
            progress: As for ClonePool.iter_fork.
            retries: As for ClonePool.iter_fork.
            max_value: As for ClonePool.iter_fork.

        Returns:
            An iterator. Closing it kills the clones that still run.

        Raises:
            InvalidArgument: The Sandbox has no work_fn, or an argument is wrong.
            RollboxError: As for `fork`.
        """
        return self._clone_work().iter_fork(
            self,
            n,
            timeout=timeout,
            concurrency=concurrency,
            seed=seed,
            ordered=ordered,
            progress=progress,
            retries=retries,
            max_value=max_value,
        )

    # Verdicts

    def grade(
        self,
        files: Mapping[str, Data],
        command: Argv,
        *,
        outputs: Optional[Sequence[str]] = None,
        base: Optional[SnapshotLike] = None,
        verifier: Optional[Policy] = None,
        distrust: Optional[Sequence[str]] = None,
        collect: Sequence[str] = (),
        unsafe_in_place: bool = False,
        policy: PolicyLike = None,
        env: Optional[Environment] = None,
        cwd: Optional[Path] = None,
        user: Optional[User] = None,
        timeout: Timeout = None,
        text: bool = False,
        max_output: Optional[int] = None,
        trace: bool = False,
    ) -> Grade[Any]:
        """Runs a verifier's command on the session's outputs, in a new sandbox.

        The new sandbox has nothing of this session but the outputs, copied as plain files. It ends
        with the verdict. This session sees neither the verifier's files nor the verdict.
        docs/how-to/verifiers.md tells how to write a verifier that the graded code cannot fool.

        Args:
            files: {path: data} of the verifier, which replace entries at these paths.
            command: As for `exec`, but a str is a line for `bash -c`.
            outputs: The files and directories that the graded code is to deliver. None: every file
                that changed since `base`, outside of the directories of programs; this is less
                safe, and warns once.
            base: The snapshot that the new sandbox begins with. Default: the first that `snapshot`
                took in this session or in the one that it is a fork of; without one, the session's
                beginning. Take it after setting the task up and before the first graded step.
            verifier: A policy for the new sandbox, such as one with an image of the verifier's own,
                in place of `base`.
            distrust: Name patterns of files that steer verifiers. They are not taken from
                directories of outputs, and stay as in `base`; a file that is itself named in
                outputs is taken. Default: rollbox.VERIFIER_CONTROL_FILES.
            collect: Paths that the command writes. Grade.files has those that are plain files once
                everything that the command started is dead.
            unsafe_in_place: Run the command in a copy of this session's files instead. Less safe;
                warns once.
            policy: Values of timeout, max_output, env, cwd and user for the command, and with net
                "allow" its own net_allow and net_allow_hosts (default: none). Other keys
                cannot differ from the session's.
            env: As for `exec`.
            cwd: As for `exec`.
            user: As for `exec`. With many users, no other user but root can read `files`.
            timeout: Seconds for the command; None: the policy's, else 300.
            text: As for `exec`.
            max_output: As for `exec`.
            trace: Let the command trace processes (gdb, strace, LeakSanitizer). By default neither
                it nor its children may, so that graded code which it runs cannot trace it.

        Returns:
            The verdict. A problem that the graded code causes (links and devices as outputs, too
            much output, a process that fights the copy) is a failed Grade with a `reason`.

        Raises:
            InvalidArgument: An argument is wrong.
            RollboxError: rollbox failed, as for `exec` and `fork`.

        Example:
            >>> with Sandbox() as box:
            ...     _ = box.exec("echo 42 > /tmp/answer")
            ...     box.grade({}, "test $(cat /tmp/answer) = 42", outputs=["/tmp/answer"]).ok
            True
        """
        return grade(
            self,
            files,
            command,
            outputs=outputs,
            base=base,
            verifier=verifier,
            distrust=distrust,
            collect=collect,
            unsafe_in_place=unsafe_in_place,
            policy=policy,
            env=env,
            cwd=cwd,
            user=user,
            timeout=timeout,
            text=text,
            max_output=max_output,
            trace=trace,
        )


_Self = TypeVar("_Self", bound=Sandbox[Any])


def _rebuild(
    make: Callable[..., Any], arguments: Sequence[Any], work: Optional[CloneWork[Any]]
) -> Any:
    made = make(*arguments)
    made._work = work
    return made
