# SPDX-License-Identifier: Apache-2.0
"""ARES (martian-ares): containers that are rollbox sandboxes.

    from rollbox.integrations.ares import ContainerFactory
    factory = ContainerFactory.configured(images={"*": "host"})
    env = ares.make("sbv-mswea", container_factory=factory)

A container is a session. With `setup`, this command runs once per image and policy, and every
container begins as a fork of the result.
"""

from __future__ import annotations

import os
import pathlib
import posixpath
from collections.abc import Mapping
from typing import Any, ClassVar, Optional, Union

from .._core.errors import FeatureMissing, InvalidArgument
from .._core.options import PolicyLike
from .._core.policy import Policy
from .._core.result import Outcome
from ..aio._sandbox import AsyncSandbox
from ..aio._threads import run_in_thread
from ._common import (
    EngineLike,
    engine_at,
    fork_of_setup,
    label_async,
    one_stream,
    policy_for,
    remark_on,
    status_of,
    with_resources,
)

LocalPath = Union[str, pathlib.Path]


class Container:
    """An ares Container. Relative paths are below `default_workdir`, or the policy's cwd."""

    def __init__(
        self,
        policy: Policy,
        *,
        name: Optional[str] = None,
        default_workdir: Optional[str] = None,
        setup: Optional[str] = None,
        engine: EngineLike = None,
        token: Optional[str] = None,
        labels: Optional[Mapping[str, Any]] = None,
        record: Any = None,
    ) -> None:
        self.name = name
        self.default_workdir = default_workdir
        self._policy, self._setup, self._engine, self._token = policy, setup, engine, token
        self._labels, self._record = dict(labels or {}), record
        self._box: Optional[AsyncSandbox] = None
        self._env: dict[str, str] = {}

    @property
    def sandbox(self) -> AsyncSandbox:
        """The session, for what ares has no call for: snapshot, fork, grade.

        Raises:
            InvalidArgument: The container is not started.
        """
        if self._box is None:
            raise InvalidArgument(f"container {self.name or ''} is not started", stage="arguments")
        return self._box

    async def start(self, env: Optional[dict[str, str]] = None) -> None:
        """Starts a new sandbox; one that ran is stopped.

        Args:
            env: Variables of every command.

        Raises:
            PathNotFound, NotFound: The store does not have the image.
            RollboxError: As for Sandbox.
        """
        await self.stop()
        self._env = dict(env or {})
        engine = await run_in_thread(engine_at, self._engine, self._token)
        if self._setup is None:
            box = AsyncSandbox(self._policy, engine=engine, record=self._record)
        else:
            box = AsyncSandbox.of(
                await run_in_thread(fork_of_setup, self._policy, self._setup, engine)
            )
        self._box = await box.__aenter__()
        await label_async(box, {**self._labels, **({"container": self.name} if self.name else {})})
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
        """Ends the sandbox without asyncio, for atexit."""
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
        """Runs a command.

        Args:
            command: A line of shell.
            workdir: The working directory.
            env: Variables, over those of `start`.
            timeout_s: Seconds.

        Returns:
            An ares ExecResult: both streams in the order of writing, and the exit status.

        Raises:
            TimeoutError: The command ran out of time; the message ends with its output.
        """
        from ares.containers import containers

        result = await self.sandbox.exec(
            one_stream(command),
            cwd=workdir or self.default_workdir,
            env={**self._env, **(env or {})},
            timeout=timeout_s,
        )
        if result.outcome is Outcome.TIMEOUT:
            raise TimeoutError(
                f"the command reached its time-out of {timeout_s} s; its output ends: "
                f"{result.text[-1000:]}"
            )
        return containers.ExecResult(
            output=result.text + remark_on(result), exit_code=status_of(result)
        )

    def _path(self, path: Any) -> str:
        base = self.default_workdir or self._policy.cwd or "/tmp"
        return posixpath.join(base, os.fspath(path))

    async def upload_files(self, local_paths: list[LocalPath], remote_paths: list[str]) -> None:
        """Copies files or trees into the sandbox, each to its path; parents are made."""
        _same_length(local_paths, remote_paths)
        for local, remote in zip(local_paths, remote_paths):
            await self.sandbox.upload(local, self._path(remote))

    async def download_files(self, remote_paths: list[str], local_paths: list[LocalPath]) -> None:
        """Copies files or trees to the host, each to its path; parents are made."""
        _same_length(local_paths, remote_paths)
        for remote, local in zip(remote_paths, local_paths):
            pathlib.Path(local).parent.mkdir(parents=True, exist_ok=True)
            await self.sandbox.download(self._path(remote), local)

    async def upload_file(self, local_path: LocalPath, remote_path: str) -> None:
        """Copies one file into the sandbox."""
        await self.upload_files([local_path], [remote_path])

    async def upload_dir(self, local_path: LocalPath, remote_path: str) -> None:
        """Copies a tree into the sandbox; what is at remote_path already stays."""
        await self.upload_files([local_path], [remote_path])

    async def download_file(self, remote_path: str, local_path: LocalPath) -> None:
        """Copies one file to the host."""
        await self.download_files([remote_path], [local_path])

    async def download_dir(self, remote_path: str, local_path: LocalPath) -> None:
        """Copies a tree to the host; what is at local_path already stays."""
        await self.download_files([remote_path], [local_path])


def _same_length(local_paths: list[LocalPath], remote_paths: list[str]) -> None:
    if len(local_paths) != len(remote_paths):
        raise ValueError(
            f"{len(local_paths)} local paths and {len(remote_paths)} remote paths do not go "
            f"together"
        )


class ContainerFactory:
    """An ares ContainerFactory.

    ares.make takes the class itself, or one that `configured` makes.
    """

    policy: ClassVar[PolicyLike] = None
    images: ClassVar[Mapping[str, str]] = {}
    setup: ClassVar[Optional[str]] = None
    engine: ClassVar[EngineLike] = None
    token: ClassVar[Optional[str]] = None
    labels: ClassVar[Mapping[str, Any]] = {}
    record: ClassVar[Any] = None

    @classmethod
    def configured(
        cls,
        *,
        policy: PolicyLike = None,
        images: Optional[Mapping[str, str]] = None,
        setup: Optional[str] = None,
        engine: EngineLike = None,
        token: Optional[str] = None,
        labels: Optional[Mapping[str, Any]] = None,
        record: Any = None,
    ) -> type[ContainerFactory]:
        """Makes a factory of its own.

        Args:
            policy: The policy; ares' resources go over it.
            images: {ares' name: the store's}; "host" means the host's directories, "*" is for all
                names that are not there.
            setup: A command to run once, whose result every container begins with.
            engine: An Engine, a socket, the address of a server, or None: the engine that this
                process shares.
            token: The server's token; without one, the content of $ROLLBOX_TOKEN_FILE.
            labels: Names and values for trajectories and for a server's costs.
            record: Where trajectories go, as for Sandbox; not with `setup`.

        Returns:
            The class.
        """
        chosen = {
            "policy": policy,
            "images": dict(images or {}),
            "setup": setup,
            "engine": engine,
            "token": token,
            "labels": dict(labels or {}),
            "record": record,
        }
        return type("ContainerFactory", (cls,), chosen)

    @classmethod
    def from_image(
        cls,
        *,
        image: str,
        name: Optional[str] = None,
        resources: Any = None,
        default_workdir: Optional[str] = None,
    ) -> Container:
        """Makes a Container, which is not started.

        Raises:
            FeatureMissing: GPUs are asked for.
        """
        policy = policy_for(cls.policy, image, cls.images)
        if resources is not None:
            policy = with_resources(
                policy, resources.cpu, resources.memory, resources.disk, resources.gpu
            )
        return Container(
            policy,
            name=name,
            default_workdir=default_workdir,
            setup=cls.setup,
            engine=cls.engine,
            token=cls.token,
            labels=cls.labels,
            record=cls.record,
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
        """Makes a Container for the image that `images` has for the Dockerfile's path.

        Raises:
            FeatureMissing: There is none: rollbox builds no images.
        """
        path = os.fspath(dockerfile_path)
        if path not in cls.images and "*" not in cls.images:
            raise FeatureMissing(
                f"rollbox builds no image of {path}: build it elsewhere, `rollbox image import` "
                f"it, and name it in "
                f"ContainerFactory.configured(images={{{path!r}: NAME}})",
                stage="policy",
            )
        return cls.from_image(
            image=path, name=name, resources=resources, default_workdir=default_workdir
        )
