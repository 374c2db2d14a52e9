# SPDX-License-Identifier: Apache-2.0
"""Sandbox: one policy; runs under it, each in a fresh sandbox of its own of which nothing is left; and a session under it, a sandbox that lives."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Literal, Optional, Sequence, TypeVar, Union, overload

from ._base import AutoSnapshot, PolicyLike, RecordLike, as_policy, has_work, one_input
from ._engine import Engine
from ._hints import option, refuse_unknown, signature
from ._policy import POLICY_KEYS
from ._request import Argv, Data, Environment, Files, Request, Timeout, as_argv, code_argv
from ._result import Result
from ._session import Session

if TYPE_CHECKING:
    from ._clones import WorkSandbox
    from ._template import TemplateSandbox

_Value = TypeVar("_Value")

__all__ = ["PolicyLike", "Sandbox", "as_policy"]


class Sandbox(Session):
    """Programs under a policy (a Policy, a mapping of its keys, or None for the default one), on `engine` or the one this process shares.

    Without a session, each `run` and `run_code` has a fresh sandbox, of which nothing is left. In an open session they run in it. A session
    is one sandbox that lives: it is opened on entering `with`, or by the first call other than these two, and ended by `close`, by leaving
    the `with`, or when nobody refers to it any more. For it: `name` (1 to 64 of
    A-Z a-z 0-9 _ . -, unique on the engine; else one is made up); `detached`: it outlives this process, on a shared engine, so that the
    `with` does not end it; `idle`, `ttl`, `max_lifetime`: seconds without a call after which it is paused, or closed, and seconds
    after which it is closed whatever happens; `hibernate_after`: seconds without a call after which `hibernate` is called for it, if no
    command is waited for and its processes do little; auto_snapshot="changed": after each command that has changed something a snapshot is
    taken, and the latest `auto_keep` (16) of these are kept, with what has a name or branches.

    record: where its trajectory goes, a path, a descriptor, a function or a Record, which see; a run's, too, which is then a session of
    one command. Forks are recorded likewise.

    With a work_fn it is a WorkSandbox, whose `fork` runs that function in clones of an interpreter in which init_fn has run. With a template, the name of one that `rollbox template
    create` made on a shared engine, it is a TemplateSandbox, which begins where that is.

    Cheap to make, usable from any number of threads at once, picklable (without a session or an engine of its own).
    """

    @overload
    def __new__(cls, policy: PolicyLike = ..., *, engine: Optional[Engine] = ..., name: Optional[str] = ..., detached: bool = ..., idle: Optional[float] = ..., ttl: Optional[float] = ...,
                max_lifetime: Optional[float] = ..., hibernate_after: Optional[float] = ..., auto_snapshot: AutoSnapshot = ..., auto_keep: Optional[int] = ..., record: RecordLike = ...) -> "Sandbox": ...

    @overload
    def __new__(cls, policy: PolicyLike = ..., *, work_fn: Callable[..., _Value], init_fn: Optional[Callable[[], Any]] = ..., python: str = ..., engine: Optional[Engine] = ..., name: Optional[str] = ...,
                detached: bool = ..., idle: Optional[float] = ..., ttl: Optional[float] = ..., max_lifetime: Optional[float] = ..., hibernate_after: Optional[float] = ..., auto_snapshot: AutoSnapshot = ..., auto_keep: Optional[int] = ..., record: RecordLike = ...) -> "WorkSandbox[_Value]": ...

    @overload
    def __new__(cls, policy: None = ..., *, template: str, engine: Engine, record: RecordLike = ...) -> "TemplateSandbox": ...

    def __new__(cls, policy: PolicyLike = None, **options: Any) -> Any:
        if cls is Sandbox and has_work(options):
            from ._clones import WorkSandbox

            return super().__new__(WorkSandbox)
        if cls is Sandbox and options.get("template") is not None:
            from ._template import TemplateSandbox

            return super().__new__(TemplateSandbox)
        if cls is Sandbox:
            refuse_unknown("Sandbox", options, _SIGNATURE.parameters, POLICY_KEYS)
        return super().__new__(cls)

    def __enter__(self) -> "Sandbox":
        self._enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    @overload
    def run(self, argv: Argv, *, timeout: Timeout = ..., stdin: Optional[Data] = ..., input: Optional[Data] = ...,
            env: Optional[Environment] = ..., cwd: Optional[Union[str, "os.PathLike[str]"]] = ..., files: Optional[Files] = ...,
            text: Literal[False] = ..., check: bool = ..., max_output: Optional[int] = ...) -> Result[bytes]: ...

    @overload
    def run(self, argv: Argv, *, timeout: Timeout = ..., stdin: Optional[Data] = ..., input: Optional[Data] = ...,
            env: Optional[Environment] = ..., cwd: Optional[Union[str, "os.PathLike[str]"]] = ..., files: Optional[Files] = ...,
            text: Literal[True], check: bool = ..., max_output: Optional[int] = ...) -> Result[str]: ...

    @overload
    def run(self, argv: Argv, *, timeout: Timeout = ..., stdin: Optional[Data] = ..., input: Optional[Data] = ...,
            env: Optional[Environment] = ..., cwd: Optional[Union[str, "os.PathLike[str]"]] = ..., files: Optional[Files] = ...,
            text: bool, check: bool = ..., max_output: Optional[int] = ...) -> Result[Any]: ...

    def run(
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
        """Runs a program and blocks until it has ended: in the session if one is open, where the files of earlier calls are and what it
        leaves behind stays, else in a fresh sandbox, in which whatever still runs is killed when its main program ends.

        argv: a list of str, bytes or PathLike, the program first (looked up in the sandbox's PATH), or a str, which is a line for
        /bin/sh -c (text of a Python program is for `run_code`).
        timeout: seconds of wall clock, over the policy's; without either, 300. "none" is no limit. stdin (or input): str or bytes for its standard input; without, /dev/null.
        env: {name: value} over the policy's. cwd: over the policy's. files: {path: str or bytes}, put there before it starts; a
        relative path is below cwd.
        text: stdout and stderr as str, invalid UTF-8 replaced. max_output: bytes a stream, over the policy's.
        check: raise RunFailed unless the program exits with 0.

        What the program did is in the Result, whatever it was. What rollbox could not do is raised: InvalidArgument (ValueError),
        PolicyInvalid, PathNotFound and PathDenied (a granted path), CommandNotFound, NotExecutable, BadCwd, FeatureMissing,
        SetupFailed, ResourceExhausted, HostOutOfMemory, EngineStartFailed, EngineLost; all are RollboxErrors. An interrupt (Ctrl-C)
        kills the sandbox.
        """
        if self._in_session():
            return self.exec(as_argv(argv), timeout=self._run_timeout(timeout), stdin=one_input(stdin, input), env=env, cwd=cwd, files=files, text=text, check=check,
                             max_output=max_output)
        if self._record is not None:
            with Sandbox(self._policy, engine=self._engine, record=self._record) as box:
                result = box.exec(as_argv(argv), timeout=self._run_timeout(timeout), stdin=one_input(stdin, input), env=env, cwd=cwd, files=files, max_output=max_output, text=text)
            return result.check() if check else result
        request = Request(argv, timeout=timeout, stdin=one_input(stdin, input), env=env, cwd=cwd, files=files, max_output=max_output)
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
        cwd: Optional[Union[str, "os.PathLike[str]"]] = None,
        files: Optional[Files] = None,
        text: bool = False,
        check: bool = False,
        max_output: Optional[int] = None,
    ) -> Result[Any]:
        """As run(["python3", "-c", code, *args]), and without a session several times faster: from the second call under a policy on, in a Python that
        was started before, under the same policy, and goes on in a sandbox of this call's own. In an open session each call starts a Python there. docs/interpreters.md says what tells it from one that is started
        anew; with env, a seed or a clock of the policy's, under isolation process, and wherever it cannot be had, a new one is started.

        code: a program's text (of str, UTF-8). args: sys.argv[1:]. The rest is as for run, and so are the result and what is raised.
        """
        if self._record is not None or self._in_session():
            return self.run(code_argv(code, args), timeout=timeout, stdin=stdin, input=input, env=env, cwd=cwd, files=files, text=text, check=check, max_output=max_output)
        request = Request(code_argv(code, args), timeout=timeout, stdin=one_input(stdin, input), env=env, cwd=cwd, files=files, max_output=max_output, is_code=True)
        return self._run(request, text, check)

    def _run(self, request: Request, text: bool, check: bool) -> Result[Any]:
        result = self._get_engine().run(self._policy.to_json(), request, text)
        if result.error is not None:
            raise result.error
        return result.check() if check else result


# What inspect.signature and help show: __new__ itself takes any keyword, for the subclasses that it makes.
_SIGNATURE = signature("cls", [Session.__init__], [
    option("work_fn", "Optional[Callable[..., Any]]"), option("init_fn", "Optional[Callable[[], Any]]"), option("python", "str", "python3"), option("template", "Optional[str]")])
Sandbox.__new__.__signature__ = _SIGNATURE      # type: ignore[attr-defined]
