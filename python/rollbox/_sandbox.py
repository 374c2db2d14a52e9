# SPDX-License-Identifier: Apache-2.0
"""Sandbox: one policy, and runs under it. Each run has a fresh sandbox of its own; nothing is left of it afterwards."""

from __future__ import annotations

import os
from typing import Any, Dict, Literal, Mapping, Optional, Union, overload

from ._engine import Engine, default_engine
from ._errors import InvalidArgument
from ._policy import Policy
from ._request import Argv, Data, Environment, Files, Request
from ._result import Result

PolicyLike = Union[Policy, Mapping[str, Any], None]


def as_policy(policy: PolicyLike) -> Policy:
    """A Policy from one, from a mapping of its keys, or from None (the default one)."""
    if policy is None:
        return Policy()
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, Mapping):
        return Policy().replace(**policy)
    raise InvalidArgument(f"policy must be a Policy, a mapping of its keys or None, not {policy!r}", stage="arguments")


def one_input(stdin: Optional[Data], input: Optional[Data]) -> Optional[Data]:
    if stdin is not None and input is not None:
        raise InvalidArgument("stdin and input are two names of one argument; give one of them", stage="arguments")
    return input if stdin is None else stdin


class _Base:
    """What Sandbox and AsyncSandbox have in common: a policy and, maybe, an engine of their own. Picklable without the latter."""

    def __init__(self, policy: PolicyLike = None, *, engine: Optional[Engine] = None) -> None:
        self._policy = as_policy(policy)
        self._engine = engine

    @property
    def policy(self) -> Policy:
        """The policy of every run."""
        return self._policy

    def _get_engine(self) -> Engine:
        return self._engine if self._engine is not None else default_engine()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._policy!r})"

    def __getstate__(self) -> Dict[str, Any]:
        if self._engine is not None:
            raise TypeError(f"a {type(self).__name__} with an engine of its own cannot be pickled")
        return {"_policy": self._policy, "_engine": None}


class Sandbox(_Base):
    """Runs programs under a policy (a Policy, a mapping of its keys, or None for the default one), on `engine` or the one this process
    shares.

    Cheap to make, usable from any number of threads at once, picklable (without an engine of its own), and a context manager.
    """

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @overload
    def run(self, argv: Argv, *, timeout: Optional[float] = ..., stdin: Optional[Data] = ..., input: Optional[Data] = ...,
            env: Optional[Environment] = ..., cwd: Optional[Union[str, "os.PathLike[str]"]] = ..., files: Optional[Files] = ...,
            text: Literal[False] = ..., check: bool = ..., max_output: Optional[int] = ...) -> Result[bytes]: ...

    @overload
    def run(self, argv: Argv, *, timeout: Optional[float] = ..., stdin: Optional[Data] = ..., input: Optional[Data] = ...,
            env: Optional[Environment] = ..., cwd: Optional[Union[str, "os.PathLike[str]"]] = ..., files: Optional[Files] = ...,
            text: Literal[True], check: bool = ..., max_output: Optional[int] = ...) -> Result[str]: ...

    @overload
    def run(self, argv: Argv, *, timeout: Optional[float] = ..., stdin: Optional[Data] = ..., input: Optional[Data] = ...,
            env: Optional[Environment] = ..., cwd: Optional[Union[str, "os.PathLike[str]"]] = ..., files: Optional[Files] = ...,
            text: bool, check: bool = ..., max_output: Optional[int] = ...) -> Result[Any]: ...

    def run(
        self,
        argv: Argv,
        *,
        timeout: Optional[float] = None,
        stdin: Optional[Data] = None,
        input: Optional[Data] = None,
        env: Optional[Environment] = None,
        cwd: Optional[Union[str, "os.PathLike[str]"]] = None,
        files: Optional[Files] = None,
        text: bool = False,
        check: bool = False,
        max_output: Optional[int] = None,
    ) -> Result[Any]:
        """Runs a program in a fresh sandbox and blocks until it has ended. When its main program ends, whatever else runs in the
        sandbox is killed.

        argv: a list of str, bytes or PathLike, the program first (looked up in the sandbox's PATH), or a str, which /bin/sh -c gets.
        timeout: seconds of wall clock, over the policy's. stdin (or input): str or bytes for its standard input; without, /dev/null.
        env: {name: value} over the policy's. cwd: over the policy's. files: {path: str or bytes}, put there before it starts; a
        relative path is below cwd.
        text: stdout and stderr as str, invalid UTF-8 replaced. max_output: bytes a stream, over the policy's.
        check: raise RunFailed unless the program exits with 0.

        What the program did is in the Result, whatever it was. What rollbox could not do is raised: InvalidArgument (ValueError),
        PolicyInvalid, PathNotFound and PathDenied (a granted path), CommandNotFound, NotExecutable, BadCwd, FeatureMissing,
        SetupFailed, ResourceExhausted, HostOutOfMemory, EngineStartFailed, EngineLost; all are RollboxErrors. An interrupt (Ctrl-C)
        kills the sandbox.
        """
        request = Request(argv, timeout=timeout, stdin=one_input(stdin, input), env=env, cwd=cwd, files=files, max_output=max_output)
        result = self._get_engine().run(self._policy.to_json(), request, text)
        if result.error is not None:
            raise result.error
        return result.check() if check else result
