# SPDX-License-Identifier: Apache-2.0
"""ARES (martian-ares): containers that are rollbox sandboxes.

    from rollbox.integrations.ares import ContainerFactory
    env = ares.make("sbv-mswea", container_factory=ContainerFactory.configured(images={"*": "host"}))

A container is a session. With `setup`, the command is run once for each image and policy; every start is then a fork of what it left.
"""

from __future__ import annotations

import os
import pathlib
import posixpath
import threading
from collections.abc import Mapping
from typing import Any, ClassVar, Optional, Union

from .._core.errors import FeatureMissing, InvalidArgument
from .._core.options import PolicyLike
from .._core.policy import Policy
from .._core.result import Outcome
from .._engine import Engine
from .._sandbox import Sandbox
from ..aio._sandbox import AsyncSandbox
from ..aio._threads import run_in_thread
from ._common import policy_for, remark_on, status_of, with_resources

LocalPath = Union[str, pathlib.Path]


class _Templates:
    """Sandboxes that were set up once, to be forked. They live as long as their engine or this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[str, str, Optional[Engine]], Sandbox] = {}

    def fork(self, policy: Policy, setup: str, engine: Optional[Engine]) -> Sandbox:
        with self._lock:
            template = self._made.get((policy.to_json(), setup, engine))
            if template is not None and template._session().connection.retired:
                template = None
            if template is None:
                template = Sandbox(policy, engine=engine)
                template.exec(setup, check=True)
                template.snapshot()
                self._made[policy.to_json(), setup, engine] = template
        return template.fork(1)[0]


_templates = _Templates()


def _after_fork() -> None:
    global _templates
    _templates = _Templates()


os.register_at_fork(after_in_child=_after_fork)


class Container:
    """An ares Container. Paths that are relative are below `default_workdir`, or the policy's cwd."""

    def __init__(
        self,
        policy: Policy,
        *,
        name: Optional[str] = None,
        default_workdir: Optional[str] = None,
        setup: Optional[str] = None,
        engine: Optional[Engine] = None,
    ) -> None:
        self.name = name
        self.default_workdir = default_workdir
        self._policy, self._setup, self._engine = policy, setup, engine
        self._box: Optional[AsyncSandbox] = None
        self._env: dict[str, str] = {}

    @property
    def sandbox(self) -> AsyncSandbox:
        """The session, for what ares has no call for: snapshot, fork, grade. Raises InvalidArgument before `start`."""
        if self._box is None:
            raise InvalidArgument(f"container {self.name or ''} is not started", stage="arguments")
        return self._box

    async def start(self, env: Optional[dict[str, str]] = None) -> None:
        """A new sandbox; one that ran is stopped. `env` is of every command. Raises PathNotFound or NotFound for an image that the store has
        not, and what Sandbox raises."""
        await self.stop()
        self._env = dict(env or {})
        if self._setup is None:
            box = AsyncSandbox(self._policy, engine=self._engine)
        else:
            box = AsyncSandbox.of(
                await run_in_thread(_templates.fork, self._policy, self._setup, self._engine)
            )
        self._box = await box.__aenter__()
        if self.default_workdir is not None and not await box.exists(self.default_workdir):
            try:
                await box.mkdir(self.default_workdir)
            except BaseException:
                await self.stop()
                raise

    async def stop(self) -> None:
        """Ends the sandbox; harmless without one."""
        box, self._box = self._box, None
        if box is not None:
            await box.close()

    def stop_and_remove(self) -> None:
        """The same, not async, for atexit."""
        box, self._box = self._box, None
        if box is not None:
            box.sync.close()

    async def exec_run(
        self,
        command: str,
        *,
        workdir: Optional[str] = None,
        env: Optional[dict[str, str]] = None,
        timeout_s: Optional[float] = None,
    ) -> Any:
        """An ares ExecResult: both streams in the order of writing, and the exit status. Raises TimeoutError, with the output so far at
        its end."""
        from ares.containers import containers

        # In a line of its own, so that a heredoc at the command's end stays one.
        result = await self.sandbox.exec(
            "exec 2>&1\n" + command,
            cwd=workdir or self.default_workdir,
            env={**self._env, **(env or {})},
            timeout=timeout_s,
        )
        if result.outcome is Outcome.TIMEOUT:
            raise TimeoutError(
                f"the command ran into its time-out of {timeout_s} s; its output ends: {result.text[-1000:]}"
            )
        return containers.ExecResult(
            output=result.text + remark_on(result), exit_code=status_of(result)
        )

    def _path(self, path: Any) -> str:
        base = self.default_workdir or self._policy.cwd or "/tmp"
        return posixpath.join(base, os.fspath(path))

    async def upload_files(self, local_paths: list[LocalPath], remote_paths: list[str]) -> None:
        """Files, or trees, each to its path; directories on the way are made."""
        _same_length(local_paths, remote_paths)
        for local, remote in zip(local_paths, remote_paths):
            await self.sandbox.upload(local, self._path(remote))

    async def download_files(self, remote_paths: list[str], local_paths: list[LocalPath]) -> None:
        """The other way."""
        _same_length(local_paths, remote_paths)
        for remote, local in zip(remote_paths, local_paths):
            pathlib.Path(local).parent.mkdir(parents=True, exist_ok=True)
            await self.sandbox.download(self._path(remote), local)

    async def upload_file(self, local_path: LocalPath, remote_path: str) -> None:
        """One file."""
        await self.upload_files([local_path], [remote_path])

    async def upload_dir(self, local_path: LocalPath, remote_path: str) -> None:
        """A tree; what is at remote_path already stays."""
        await self.upload_files([local_path], [remote_path])

    async def download_file(self, remote_path: str, local_path: LocalPath) -> None:
        """One file."""
        await self.download_files([remote_path], [local_path])

    async def download_dir(self, remote_path: str, local_path: LocalPath) -> None:
        """A tree; what is at local_path already stays."""
        await self.download_files([remote_path], [local_path])


def _same_length(local_paths: list[LocalPath], remote_paths: list[str]) -> None:
    if len(local_paths) != len(remote_paths):
        raise ValueError(
            f"{len(local_paths)} local paths and {len(remote_paths)} remote paths do not go together"
        )


class ContainerFactory:
    """An ares ContainerFactory: the class itself, or one that `configured` makes, is what ares.make wants."""

    policy: ClassVar[PolicyLike] = None
    images: ClassVar[Mapping[str, str]] = {}
    setup: ClassVar[Optional[str]] = None
    engine: ClassVar[Optional[Engine]] = None

    @classmethod
    def configured(
        cls,
        *,
        policy: PolicyLike = None,
        images: Optional[Mapping[str, str]] = None,
        setup: Optional[str] = None,
        engine: Optional[Engine] = None,
    ) -> type[ContainerFactory]:
        """A factory of its own. policy: what ares' resources are laid over. images: ares' name to the store's; "host" means the host's
        directories, "*" is for all that are not named. setup: a command to be run once, whose work every container begins with."""
        return type(
            "ContainerFactory",
            (cls,),
            {"policy": policy, "images": dict(images or {}), "setup": setup, "engine": engine},
        )

    @classmethod
    def from_image(
        cls,
        *,
        image: str,
        name: Optional[str] = None,
        resources: Any = None,
        default_workdir: Optional[str] = None,
    ) -> Container:
        """A Container, not started. Raises FeatureMissing if GPUs are asked for."""
        policy = policy_for(cls.policy, image, cls.images)
        if resources is not None:
            policy = with_resources(
                policy, resources.cpu, resources.memory, resources.disk, resources.gpu
            )
        return Container(
            policy, name=name, default_workdir=default_workdir, setup=cls.setup, engine=cls.engine
        )

    @classmethod
    def from_dockerfile(
        cls,
        *,
        dockerfile_path: LocalPath,
        name: Optional[str] = None,
        resources: Any = None,
        default_workdir: Optional[str] = None,
    ) -> Container:
        """Raises FeatureMissing, unless `images` has something for the Dockerfile's path: rollbox builds no images."""
        path = os.fspath(dockerfile_path)
        if path not in cls.images and "*" not in cls.images:
            raise FeatureMissing(
                f"rollbox builds no image of {path}: build it elsewhere, `rollbox image import` it, and name it in "
                f"ContainerFactory.configured(images={{{path!r}: NAME}})",
                stage="policy",
            )
        return cls.from_image(
            image=path, name=name, resources=resources, default_workdir=default_workdir
        )
