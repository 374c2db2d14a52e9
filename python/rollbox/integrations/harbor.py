# SPDX-License-Identifier: Apache-2.0
"""Harbor: environments of tasks are rollbox sandboxes.

    harbor run -p TASK -a oracle -e rollbox.integrations.harbor:RollboxEnvironment

The image is built from the task's Dockerfile, or pulled. With `setup`, the command runs once for
an image and policy, and every environment begins as a fork of the result.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import json
import pathlib
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Optional, Union

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.environments.definition import (
    require_agent_environment_definition,
    should_use_prebuilt_docker_image,
)
from harbor.models.task.config import NetworkMode, NetworkPolicy

from .. import doctor
from .._build import build_image_async
from .._core.errors import CommandNotFound, InvalidArgument
from .._core.options import PolicyLike, as_policy
from .._core.policy import Policy
from .._core.record import Record
from .._core.remote import is_url
from .._core.result import Outcome, Result
from ..aio._sandbox import AsyncSandbox
from ._common import EngineLike, engine_at, label_async, remark_on, status_of
from ._task_sandboxes import (
    PUBLIC,
    exec_shell_async,
    open_box,
    policy_with_image,
    refuse_remote_build,
)

_MEMORY_PART_FOR_FILES = 0.75  # of max_memory; the engine allows no more files in memory
_builds: dict[tuple[Any, str], asyncio.Task[str]] = {}


class CommandTimeout(RuntimeError):
    """A command ran out of its own time.

    A RuntimeError, as Harbor's Docker environment raises: Harbor takes a TimeoutError for the end
    of the agent's or verifier's time.
    """


class RollboxEnvironment(BaseEnvironment):
    """One sandbox of a trial.

    Args:
        policy: Keys of docs/reference/policy.md, as a mapping; they override the task's limits.
        images: {docker_image of the task, or the task's name: image of the store}. "*" is for all
            others. Neither is pulled or built then.
        setup: A line of shell that runs once for an image and policy; trials are forks of it.
        engine: An Engine, a socket's path or a server's URL. Default: this process's engine.
        token: The server's token.
        build_args: Values of the Dockerfile's ARG.
        build_allow: Hosts that the steps of a build may reach. Default: all.
        labels: Names and values for logs and the trajectory.
        record: A path for the trajectory; {name} in it is the sandbox's name.
    """

    _shells: ClassVar[tuple[str, str]] = ("bash", "sh")

    def __init__(
        self,
        *args: Any,
        policy: PolicyLike = None,
        images: Optional[Mapping[str, str]] = None,
        setup: Optional[str] = None,
        engine: EngineLike = None,
        token: Optional[str] = None,
        build_args: Optional[Mapping[str, str]] = None,
        build_allow: Sequence[str] = ("*",),
        labels: Optional[Mapping[str, str]] = None,
        record: Optional[str] = None,
        **kwargs: Any,
    ) -> None:
        self._given = policy
        self._images = dict(images or {})
        self._setup = setup
        self._engine_given, self._token = engine, token
        self._build_args, self._build_allow = dict(build_args or {}), tuple(build_allow)
        self._labels = {str(key): str(value) for key, value in (labels or {}).items()}
        self._record = record
        self._box: Optional[AsyncSandbox[Any]] = None
        super().__init__(*args, **kwargs)

    # Definition

    @staticmethod
    def type() -> str:
        """The name of this kind of environment."""
        return "rollbox"

    @classmethod
    def preflight(cls, kwargs: Optional[dict[str, Any]] = None) -> None:
        """Ends the program if this machine cannot run sandboxes."""
        super().preflight(kwargs)
        engine = (kwargs or {}).get("engine")
        if engine is not None and not isinstance(engine, str):
            return
        if isinstance(engine, str) and is_url(engine):
            return
        if not doctor()["ok"]:
            raise SystemExit("rollbox cannot run sandboxes on this machine; see `rollbox doctor`")

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """What the base class need not refuse."""
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv6_addresses=True,
            network_allowlist_ipv4_cidrs=True,
            network_allowlist_ipv6_cidrs=True,
            dynamic_network_policy=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """CPUs and memory are limits, never reservations."""
        return EnvironmentResourceCapabilities(
            cpu_limit=True, memory_limit=True, fractional_cpus=True
        )

    def _validate_definition(self) -> None:
        if self._mapped_image() is None:
            require_agent_environment_definition(
                self.environment_dir, docker_image=self.task_env_config.docker_image
            )
        if (
            not self.task_env_config.docker_image
            and not (self.environment_dir / "Dockerfile").exists()
            and self._mapped_image() is None
        ):
            raise InvalidArgument(
                f"the task {self.environment_name} has a Docker Compose file and no Dockerfile; "
                "rollbox runs tasks of one container",
                stage="arguments",
            )
        if self._host_mounts:
            raise InvalidArgument(
                "mounts: rollbox mounts no directory of the host for Harbor; use the policy's keys "
                "fs_shared or volumes",
                stage="arguments",
            )

    @property
    def sandbox(self) -> AsyncSandbox[Any]:
        """The session, for calls that Harbor lacks: snapshot, fork, grade.

        Raises:
            InvalidArgument: The environment is not started.
        """
        if self._box is None:
            raise InvalidArgument(
                f"the environment {self.session_id} is not started; call start first",
                stage="arguments",
            )
        return self._box

    def _mapped_image(self) -> Optional[str]:
        for name in (self.task_env_config.docker_image, self.environment_name, "*"):
            if name is not None and name in self._images:
                return self._images[name]
        return None

    # Start and stop

    async def _build(self, force: bool) -> str:
        name = re.sub(r"[^a-z0-9._-]+", "-", self.environment_name.lower()).strip("-._") or "task"
        tag = f"harbor-{name}-{self.environment_id[:12]}"
        if self._build_args:
            given = json.dumps(self._build_args, sort_keys=True)
            tag += "-" + hashlib.sha256(given.encode()).hexdigest()[:8]
        key = (asyncio.get_running_loop(), tag)
        task = _builds.get(key)
        if task is None or (force and task.done()) or (task.done() and _has_failed(task)):

            async def build() -> str:
                built = await build_image_async(
                    self.environment_dir,
                    tag=tag,
                    build_args=self._build_args,
                    allow=self._build_allow,
                    no_cache=force,
                )
                return built.name

            task = _builds[key] = asyncio.ensure_future(build())
        # Other trials wait for the same build: cancelling this trial does not end it.
        return await asyncio.shield(task)

    def _limits(self) -> dict[str, Any]:
        """The task's limits, over which the given policy's keys go."""
        limits: dict[str, Any] = {
            "users": "many",
            "max_processes": 2048,
            "max_output": "64M",
        }
        memory = self._resource_value("memory")
        cpus = self._resource_value("cpu")
        storage = self._effective_storage_mb
        if memory:
            limits["max_memory"] = int(memory) << 20
        if cpus:
            limits["max_cpu"] = cpus
        if storage:
            limits["max_disk"] = int(storage) << 20
            if not memory or storage > memory * _MEMORY_PART_FOR_FILES:
                limits["disk_at"] = "store"
        return limits

    def _policy_now(self) -> Policy:
        given = as_policy(self._given).to_dict()
        policies = [self._network_policy, *self._phase_network_policies]
        network: dict[str, Any] = {}
        if not {"net", "net_allow", "net_allow_hosts"} & given.keys():
            if all(one.network_mode == NetworkMode.NO_NETWORK for one in policies):
                network = {"net": "loopback"}
            else:
                network = {"net": "allow", "net_allow": _rules(self._network_policy)}
        return Policy().replace(**{**self._limits(), **network, **given})

    async def start(self, force_build: bool) -> None:
        """Builds or pulls the image, and opens the sandbox.

        Raises:
            FeatureMissing: The kernel, the user or a remote engine lacks something.
            RollboxError: As for Sandbox, build_image and images.pull.
        """
        await self.stop(delete=True)
        engine = await asyncio.to_thread(engine_at, self._engine_given, self._token)
        policy = self._policy_now()
        mapped = self._mapped_image()
        image = self.task_env_config.docker_image
        if mapped is not None:
            policy = await policy_with_image(policy, "*", {"*": mapped}, engine)
        elif should_use_prebuilt_docker_image(
            self.environment_dir, docker_image=image, force_build=force_build
        ):
            policy = await policy_with_image(policy, image, {}, engine)
        else:
            refuse_remote_build(engine, f"task {self.environment_name}")
            policy = policy.replace(image=await self._build(force_build))
        record = None if self._record is None else Record(self._record)
        self._box = await open_box(policy, self._setup, engine, record)
        try:
            await self._begin()
        except BaseException:
            await self.stop(delete=True)
            raise

    async def _begin(self) -> None:
        box = self.sandbox
        if self._labels:
            self.logger.info("sandbox %s of %s: %s", box.name, self.session_id, self._labels)
            await label_async(box, {**self._labels, "session_id": self.session_id})
        workdir = self.task_env_config.workdir
        if workdir and not await box.exists(workdir):
            await box.mkdir(workdir)
        made = await self.ensure_dirs(self._mount_targets(writable_only=True))
        if made is not None and made.return_code != 0:
            raise RuntimeError(f"the log directories could not be made: {made.stderr}")
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """Ends the sandbox. It is never kept: with delete=False a line of the log says so."""
        box, self._box = self._box, None
        if box is not None:
            if not delete:
                self.logger.warning("the sandbox of %s ends; rollbox keeps none", self.session_id)
            await box.close()

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        if self.sandbox.policy.net != "allow":
            raise InvalidArgument(
                f"the network of {self.session_id} has net {self.sandbox.policy.net!r} by the "
                "given policy, and cannot change",
                stage="policy",
            )
        await self.sandbox.net_set(_rules(network_policy))

    # Commands

    async def exec(
        self,
        command: str,
        cwd: Optional[str] = None,
        env: Optional[dict[str, str]] = None,
        timeout_sec: Optional[int] = None,
        user: Union[str, int, None] = None,
    ) -> ExecResult:
        """Runs a command in bash, or in sh if the image has no bash.

        Raises:
            CommandTimeout: The command ran out of time; the message ends with its output.
            EngineLost: The engine has ended: nothing is known about the command.
        """
        box = self.sandbox
        options = {
            "cwd": cwd or self.task_env_config.workdir,
            "env": self._merge_env(env),
            "user": self._resolve_user(user),
            "timeout": timeout_sec,
        }
        callback = self._output_callback()
        if callback is None:
            result = await exec_shell_async(box, command, **options)
        else:
            result = await self._streamed(callback, command, options)
        stdout, stderr = _text(result.stdout), _text(result.stderr)
        if result.outcome is Outcome.TIMEOUT:
            raise CommandTimeout(
                f"Command timed out after {timeout_sec} seconds; its output ends: "
                f"{stdout[-1000:]}{stderr[-1000:]}"
            )
        if result.outcome is Outcome.OUT_OF_MEMORY:
            self.logger.warning(
                "%s: a command was killed at the memory limit %s", self.session_id, self._labels
            )
        return ExecResult(
            stdout=stdout, stderr=stderr + remark_on(result), return_code=status_of(result)
        )

    async def _streamed(self, callback: Any, command: str, options: Any) -> Result[Any]:
        # One decoder for each stream: a character may lie in two chunks.
        decoders = {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")
        }
        for shell in self._shells:
            stream = self.sandbox.stream([shell, "-c", command], **options)
            try:
                async for name, data in stream:
                    await callback(decoders[name].decode(data), name)
            except CommandNotFound:
                if shell == self._shells[-1]:
                    raise
                continue
            break
        return stream.result

    # Files

    def _path(self, path: Any) -> str:
        base = self.task_env_config.workdir or self.sandbox.policy.cwd or "/"
        return posixpath.join(base, str(path))

    async def upload_file(self, source_path: Union[pathlib.Path, str], target_path: str) -> None:
        """Copies a file into the sandbox; parents are made."""
        await self.sandbox.upload(source_path, self._path(target_path))

    async def upload_dir(self, source_dir: Union[pathlib.Path, str], target_dir: str) -> None:
        """Copies a tree into the sandbox; files that are there already stay."""
        await self.sandbox.upload(source_dir, self._path(target_dir))

    async def download_file(self, source_path: str, target_path: Union[pathlib.Path, str]) -> None:
        """Copies a file to the host."""
        pathlib.Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        await self.sandbox.download(self._path(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Union[pathlib.Path, str]) -> None:
        """Copies a tree to the host, over the files that are there."""
        pathlib.Path(target_dir).mkdir(parents=True, exist_ok=True)
        await self.sandbox.download(self._path(source_dir), target_dir)


def _has_failed(task: asyncio.Task[str]) -> bool:
    return task.cancelled() or task.exception() is not None


def _text(data: Union[bytes, str]) -> str:
    return data if isinstance(data, str) else data.decode(errors="replace")


def _rules(network: NetworkPolicy) -> list[str]:
    """The hosts of docs/reference/network.md for Harbor's policy."""
    if network.network_mode == NetworkMode.PUBLIC:
        return list(PUBLIC)
    if network.network_mode == NetworkMode.NO_NETWORK:
        return []
    return [f"[{host}]" if host.count(":") > 1 else host for host in network.allowed_hosts]
