# SPDX-License-Identifier: Apache-2.0
"""inspect_ai: the sandbox environment "rollbox", found by its entry point.

    Task(..., sandbox="rollbox")
    Task(..., sandbox=("rollbox", "policy.json"))       # keys: docs/reference/policy.md
    config = RollboxConfig(policy={"max_memory": "2G"}, setup="pip install ...")
    Task(..., sandbox=SandboxEnvironmentSpec("rollbox", config))

A sample has a session. A set-up command runs once per task; the samples' sandboxes are forks of the
result.
"""

from __future__ import annotations

import errno
import posixpath
from typing import Any, Literal, Optional, Union, overload

import inspect_ai.util
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    sandboxenv,
)
from pydantic import BaseModel

from .._core.errors import (
    CommandNotFound,
    EngineLost,
    FeatureMissing,
    InvalidArgument,
    NotFound,
    PathDenied,
    RollboxError,
)
from .._core.policy import Policy
from .._core.record import Record
from .._core.result import Outcome
from ..aio._sandbox import AsyncSandbox
from ..aio._threads import run_in_thread
from ._common import engine_at, label_async, policy_for, remark_on, status_of

# Not in every version of inspect_ai.
_UserUnsupported: Any = getattr(inspect_ai.util, "SandboxUserUnsupportedError", None)
_Unavailable: Any = getattr(inspect_ai.util, "SandboxUnavailableError", None)


class RollboxConfig(BaseModel):
    """The configuration of sandboxes.

    Attributes:
        policy: Keys of docs/reference/policy.md.
        image: An image of the store; None or "host": the host's directories.
        setup: A line of shell to run once per task.
        engine: The socket of an engine or the address of a server; None: this process's engine.
            The server's token is the content of the file that $ROLLBOX_TOKEN_FILE names.
        labels: Names and values for the trajectory and for a server's costs; the name of the task
            and the sample's metadata are labels, too.
        record: A path for the trajectory; {name} in it is the sandbox's name. Not with setup.
    """

    model_config = {"frozen": True}

    policy: dict[str, Any] = {}
    image: Optional[str] = None
    setup: Optional[str] = None
    engine: Optional[str] = None
    labels: dict[str, str] = {}
    record: Optional[str] = None

    def __hash__(self) -> int:
        """inspect_ai keeps configurations in sets."""
        return hash(self.model_dump_json())


def _config(config: Any) -> RollboxConfig:
    if config is None:
        return RollboxConfig()
    if isinstance(config, RollboxConfig):
        return config
    if isinstance(config, str):
        return RollboxConfig(policy=Policy.from_file(config).to_dict())
    raise InvalidArgument(
        f"the sandbox's config must be a RollboxConfig or the path of a policy, not "
        f"{type(config).__name__}",
        stage="arguments",
    )


_templates: dict[str, AsyncSandbox] = {}
"""What a set-up left, by the config's JSON."""


@sandboxenv(name="rollbox")
class RollboxSandboxEnvironment(SandboxEnvironment):
    """One sandbox of a sample. Relative paths are below the policy's cwd."""

    def __init__(self, box: AsyncSandbox) -> None:
        super().__init__()
        self.box = box

    # Life

    @classmethod
    async def _make(cls, config: RollboxConfig) -> AsyncSandbox:
        engine = await run_in_thread(engine_at, config.engine)
        record = None if config.record is None else Record(config.record)
        policy = policy_for(config.policy, config.image, {})
        box = AsyncSandbox(policy, engine=engine, record=record)
        try:
            await box.__aenter__()
            if config.setup:
                await box.exec(config.setup, check=True)
                await box.snapshot()
        except BaseException:
            await box.close()
            raise
        return box

    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        """Runs the set-up, if there is one and it was not run yet."""
        given = _config(config)
        if given.setup and given.model_dump_json() not in _templates:
            _templates[given.model_dump_json()] = await cls._make(given)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """A sandbox: a fork of the set-up, or a new one."""
        given = _config(config)
        template = _templates.get(given.model_dump_json())
        if template is not None:
            box = (await template.fork(1))[0]
        else:
            box = await cls._make(given)
        await label_async(box, {**metadata, **given.labels, "task": task_name})
        return {"default": cls(box)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: Any,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Ends the sample's sandboxes."""
        for environment in environments.values():
            await environment.as_type(RollboxSandboxEnvironment).box.close()

    @classmethod
    async def task_cleanup(cls, task_name: str, config: Any, cleanup: bool) -> None:
        """Ends the set-up. Nothing outlives this process in any case."""
        template = _templates.pop(_config(config).model_dump_json(), None)
        if template is not None:
            await template.close()

    @classmethod
    def config_files(cls) -> list[str]:
        """The names of files that inspect_ai finds by itself."""
        return ["rollbox.json"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """A config from the JSON of a log."""
        return RollboxConfig(**config)

    def default_polling_interval(self) -> float:
        """Seconds between two looks at a sandbox's services."""
        return 0.2

    # Calls

    def _path(self, path: str) -> str:
        return posixpath.join(self.box.policy.cwd or "/tmp", path)

    async def exec(
        self,
        cmd: list[str],
        input: Optional[Union[str, bytes]] = None,
        cwd: Optional[str] = None,
        env: Optional[dict[str, str]] = None,
        user: Optional[str] = None,
        timeout: Optional[int] = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command, as inspect_ai wants it.

        A time-out is never retried: here it is the command's, not a transport's. A user other than
        the policy's is SandboxUserUnsupportedError, or in older versions of inspect_ai a failed
        result.
        """
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            result = await self.box.exec(
                cmd,
                input=input,
                cwd=self._path(cwd or ""),
                env=env,
                user=user,
                timeout=timeout,
                max_output=limit,
                text=True,
            )
        except CommandNotFound as problem:
            return ExecResult(False, 127, "", f"{problem}\n")
        except FeatureMissing as problem:
            if user is None:
                raise
            message = f"cannot run as user {user}: {problem}"
            if _UserUnsupported is not None:
                raise _UserUnsupported(message) from problem
            return ExecResult(False, 126, "", message + "\n")
        except InvalidArgument as problem:
            if user is None or not str(problem).startswith("user"):
                raise
            return ExecResult(False, 126, "", f"cannot run as user {user}: {problem}\n")
        except (EngineLost, NotFound) as problem:
            raise (_Unavailable or RuntimeError)(str(problem)) from problem
        if result.outcome is Outcome.TIMEOUT:
            raise TimeoutError(
                f"the command reached its time-out of {timeout} s; its output ends: "
                f"{result.stdout[-1000:]}"
                f"{result.stderr[-1000:]}"
            )
        if result.outcome is Outcome.OUTPUT_LIMIT:
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR,
                result.stdout if result.stdout_truncated else result.stderr,
            )
        return ExecResult(
            result.ok, status_of(result), result.stdout, result.stderr + remark_on(result)
        )

    async def write_file(self, file: str, contents: Union[str, bytes]) -> None:
        """Writes a file.

        An existing file keeps its mode. One that its owner may not write is refused, as for a
        program of the sandbox.
        """
        path = self._path(file)
        mode = 0o644
        try:
            found = await self.box.stat(path)
            if found.is_dir:
                raise IsADirectoryError(errno.EISDIR, "is a directory", file)
            if not found.mode & 0o200:
                raise PermissionError(errno.EACCES, "is not writable", file)
            mode = found.mode & 0o777 or mode
        except RollboxError as problem:
            if problem.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise _as_oserror(problem, file) from problem
        try:
            await self.box.write_file(path, contents, mode)
        except RollboxError as problem:
            raise _as_oserror(problem, file) from problem

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> Union[str, bytes]:
        """Reads a file, as text or bytes.

        One that nobody may read is refused, also where the sandbox's root could read it.
        """
        try:
            if self.box.policy.users == "many":
                found = await self.box.stat(self._path(file))
                if not found.is_dir and not found.mode & 0o444:
                    raise PermissionError(errno.EACCES, "is not readable", file)
            data = await self.box.read_file(
                self._path(file), SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
            )
        except RollboxError as problem:
            if problem.errno == errno.EFBIG:
                raise OutputLimitExceededError(
                    SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None
                ) from problem
            raise _as_oserror(problem, file) from problem
        return data.decode("utf-8") if text else data


def _as_oserror(problem: RollboxError, file: str) -> Exception:
    """The OSError that inspect_ai wants for the error of a file call.

    The error itself if there is none.
    """
    if problem.errno in (errno.ENOENT, errno.ENOTDIR):
        return FileNotFoundError(problem.errno, str(problem), file)
    if problem.errno == errno.EISDIR:
        return IsADirectoryError(problem.errno, str(problem), file)
    if isinstance(problem, PathDenied):
        return PermissionError(problem.errno or errno.EACCES, str(problem), file)
    return problem
