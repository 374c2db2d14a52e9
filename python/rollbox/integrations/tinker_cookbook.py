# SPDX-License-Identifier: Apache-2.0
"""tinker-cookbook: a SandboxInterface, and the factory that its Harbor recipes take.

sandbox_factory=rollbox.integrations.tinker_cookbook.sandbox_factory
"""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from .._build import build_image
from .._core.errors import Cancelled, EngineLost, NotFound, RollboxError
from .._core.options import PolicyLike
from .._core.result import Outcome, Result
from .._sandbox import Sandbox
from ..aio._threads import run_in_thread
from ._common import EngineLike, Source, ended_by, remark_on, status_of

_DEFAULT_OUTPUT = 128 << 10


class RollboxSandbox:
    """A sandbox of tinker-cookbook.

    Args:
        box: The session.
        max_output: Bytes of a stream that a command returns, if the call does not say.
    """

    def __init__(self, box: Sandbox, max_output: int = _DEFAULT_OUTPUT) -> None:
        self.sandbox = box
        self._max_output = max_output

    @property
    def sandbox_id(self) -> str:
        """The sandbox's name on its engine."""
        return self.sandbox.name

    async def send_heartbeat(self, timeout: int = 30) -> None:
        """Asks whether the sandbox is there.

        Raises:
            SandboxTerminatedError: It is not.
        """
        try:
            await asyncio.wait_for(run_in_thread(self.sandbox.inspect), timeout)
        except RollboxError as problem:
            raise _terminated(problem) from problem

    def _exec(
        self,
        command: str,
        cwd: Optional[str],
        stdin: Union[str, bytes, None],
        timeout: float,
    ) -> Result[str]:
        return self.sandbox.exec(command, cwd=cwd, stdin=stdin, timeout=timeout, text=True)

    async def run_command(
        self,
        command: str,
        workdir: Optional[str] = None,
        timeout: int = 60,
        max_output_bytes: Optional[int] = None,
    ) -> Any:
        """Runs a line of bash.

        Returns:
            A SandboxResult. Its metrics have `ended_by` after a limit: TimeoutExpired (exit code
            124) or OutOfMemory (137).

        Raises:
            SandboxTerminatedError: The sandbox or its engine is gone.
        """
        most = self._max_output if max_output_bytes is None else max_output_bytes
        try:
            result = await run_in_thread(self._exec, command, workdir, None, timeout)
        except (EngineLost, NotFound, Cancelled) as problem:
            raise _terminated(problem) from problem
        except RollboxError as problem:
            return _result("", str(problem), -1, type(problem).__name__)
        output_limit = result.outcome is Outcome.OUTPUT_LIMIT
        return _result(
            _first(result.stdout, most),
            _first(result.stderr, most) + remark_on(result),
            137 if output_limit else status_of(result),
            ended_by(result),
        )

    async def read_file(self, path: str, max_bytes: Optional[int] = None, timeout: int = 60) -> Any:
        """Reads a file: a SandboxResult with the text, or exit code 1 with the reason."""
        return await self.run_command(
            f"{'cat' if max_bytes is None else f'head -c {int(max_bytes)}'} -- {_quoted(path)}",
            timeout=timeout,
            max_output_bytes=max_bytes if max_bytes is not None else 16 << 20,
        )

    async def write_file(
        self, path: str, content: Union[str, bytes], executable: bool = False, timeout: int = 60
    ) -> Any:
        """Writes a file, whose directories are made: a SandboxResult."""
        directory = posixpath.dirname(path)
        name = _quoted(path)
        command = f"cat > {name} && chmod {'755' if executable else '644'} {name}"
        if directory:
            command = f"mkdir -p -- {_quoted(directory)} && {command}"
        try:
            result = await run_in_thread(self._exec, command, None, content, timeout)
        except (EngineLost, NotFound, Cancelled) as problem:
            raise _terminated(problem) from problem
        except RollboxError as problem:
            return _result("", str(problem), -1, type(problem).__name__)
        return _result(
            result.stdout, result.stderr + remark_on(result), status_of(result), ended_by(result)
        )

    async def cleanup(self) -> None:
        """Ends the sandbox. May be called twice."""
        try:
            await run_in_thread(self.sandbox.close)
        except (EngineLost, NotFound):
            pass  # It is gone already.


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"


def _first(text: str, most: int) -> str:
    data = text.encode("utf-8", "replace")
    return text if len(data) <= most else data[:most].decode("utf-8", "ignore")


def _result(stdout: str, stderr: str, exit_code: int, limit: Optional[str]) -> Any:
    from tinker_cookbook.sandbox.sandbox_interface import SandboxResult

    metrics = {} if limit is None else {"ended_by": limit}
    return SandboxResult(stdout=stdout, stderr=stderr, exit_code=exit_code, metrics=metrics)


def _terminated(problem: RollboxError) -> Exception:
    from tinker_cookbook.sandbox.sandbox_interface import SandboxTerminatedError

    made: Exception = SandboxTerminatedError(f"{type(problem).__name__}: {problem}")
    return made


class SandboxFactory:
    """Makes sandboxes of Harbor tasks: `await factory(env_dir, timeout)`.

    Args:
        policy: The policy.
        images: {task's name: the store's image}; "host" means the host's directories, "*" is for
            all tasks that are not there. Without an entry, the task's Dockerfile is built.
        setup: A line of shell to run once per image; the sandboxes are forks of its result.
        engine: A socket, the address of a server, an Engine, or None: this process's engine.
        token: The server's token; without one, the content of $ROLLBOX_TOKEN_FILE.
        labels: Names and values for the trajectories; the task's name is added.
        record: Where the sandboxes' trajectories go.
        build_allow: Hosts that the steps of a Dockerfile may reach.
    """

    def __init__(
        self,
        *,
        policy: PolicyLike = None,
        images: Optional[Mapping[str, str]] = None,
        setup: Optional[str] = None,
        engine: EngineLike = None,
        token: Optional[str] = None,
        labels: Optional[Mapping[str, Any]] = None,
        record: Any = None,
        build_allow: Sequence[str] = (),
    ) -> None:
        self._images = dict(images or {})
        self._build_allow = tuple(build_allow)
        self._options: dict[str, Any] = {
            "policy": policy,
            "setup": setup,
            "engine": engine,
            "token": token,
            "record": record,
        }
        self._labels = dict(labels or {})

    async def __call__(self, env_dir: Union[str, os.PathLike[str]], timeout: int) -> RollboxSandbox:
        """A sandbox for the task whose environment directory this is.

        Args:
            env_dir: The task's environment directory.
            timeout: Unused: the sandbox ends by `cleanup`, or with the program.

        Raises:
            RollboxError: The image cannot be built, or the sandbox cannot be made.
        """
        return RollboxSandbox(await run_in_thread(self._open, os.fspath(env_dir)))

    def _open(self, directory: str) -> Sandbox:
        task = os.path.basename(os.path.dirname(os.path.abspath(directory)))
        image = self._images.get(task, self._images.get("*"))
        if image is None:
            image = build_image(directory, allow=self._build_allow).name
        source = Source(**self._options, image=image, labels={**self._labels, "task": task})
        return source.open()


sandbox_factory = SandboxFactory()
"""The factory without options, for recipes that take an import path."""
