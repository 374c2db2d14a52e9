# SPDX-License-Identifier: Apache-2.0
"""NeMo-Gym: the sandbox provider "rollbox", found by its entry point.

    sandbox:
      rollbox: {policy: {max_memory: 2G}, setup: "pip install -q numpy"}

With `setup`, the command runs once for an image and policy, and every sandbox begins as a fork of
the result.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
import signal as signals
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Optional, Union

from nemo_gym.sandbox.providers.base import (
    SandboxCreateError,
    SandboxEndpoint,
    SandboxExecResult,
    SandboxHandle,
    SandboxPtyError,
    SandboxPtySpec,
    SandboxSpec,
    SandboxStatus,
)

from .._core.errors import EngineLost, InvalidArgument, NotFound, RollboxError
from .._core.options import PolicyLike, as_policy
from .._core.policy import Policy
from .._core.record import Record
from .._core.result import Outcome, Result
from ..aio._process import AsyncProcess, AsyncReader
from ..aio._sandbox import AsyncSandbox
from ._common import EngineLike, engine_at, label_async, remark_on, status_of
from ._task_sandboxes import (
    exec_shell_async,
    open_box,
    policy_with_image,
)

RUNTIME_FAILURE = 125
"""The return code of a command without an exit code of its own, as of NeMo-Gym's providers."""

_log = logging.getLogger(__name__)
_ERROR_TYPES = {
    Outcome.TIMEOUT: "timeout",
    Outcome.OUT_OF_MEMORY: "out_of_memory",
    Outcome.OUTPUT_LIMIT: "output_limit",
}


class _Raw:
    """The provider's part of a handle."""

    def __init__(self, box: AsyncSandbox[Any], spec: Optional[SandboxSpec], ours: bool) -> None:
        self.box, self.ours = box, ours
        self.env = dict(spec.env) if spec is not None else {}
        self.workdir = spec.workdir if spec is not None else None
        self.paused = self.closed = False
        self._expiry: Optional[asyncio.Task[None]] = None

    def expire_after(self, seconds: float) -> None:
        async def expire() -> None:
            await asyncio.sleep(seconds)
            await self.box.close()

        self._expiry = asyncio.ensure_future(expire())

    async def close(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        await self.box.close()

    def path(self, path: Any) -> str:
        return posixpath.join(self.workdir or self.box.policy.cwd or "/", str(path))


class RollboxProvider:
    """A SandboxProvider of NeMo-Gym.

    Args:
        policy: Keys of docs/reference/policy.md; the spec's resources go over them.
        images: {image of a spec: image of the store}; "*" is for all others. None is pulled then.
        image: The image of specs without one. Default: the policy's.
        setup: A line of shell that runs once for an image and policy; sandboxes are forks of it.
        engine: An Engine, a socket's path or a server's URL. Default: this process's engine.
        token: The server's token.
        labels: Names and values for the log and the trajectory, besides a spec's metadata.
        record: A path for trajectories; {name} in it is the sandbox's name.
    """

    name = "rollbox"

    def __init__(
        self,
        *,
        policy: PolicyLike = None,
        images: Optional[Mapping[str, str]] = None,
        image: Optional[str] = None,
        setup: Optional[str] = None,
        engine: EngineLike = None,
        token: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        record: Optional[str] = None,
    ) -> None:
        self._policy = as_policy(policy)
        self._images, self._image = dict(images or {}), image
        self._setup, self._labels, self._record = setup, dict(labels or {}), record
        self._engine_given, self._token = engine, token
        self._live: dict[str, _Raw] = {}

    # Life

    def _policy_of(self, spec: SandboxSpec) -> Policy:
        unknown = set(spec.provider_options) - {"policy", "setup"}
        if unknown:
            raise InvalidArgument(
                f"provider_options: unknown keys {', '.join(sorted(unknown))}; rollbox has policy "
                "and setup",
                stage="arguments",
            )
        keys: dict[str, Any] = {"users": "many", "max_processes": 2048, "net": "loopback"}
        if self._policy.net_allow or self._policy.net_allow_hosts or self._policy.network:
            del keys["net"]
        keys.update(self._policy.to_dict())
        wanted = spec.resources
        assert not isinstance(wanted, Mapping)
        if wanted.gpu:
            raise InvalidArgument(
                f"resources: {wanted.gpu} GPUs were asked for; give devices by the policy's gpus",
                stage="policy",
            )
        if wanted.cpu is not None:
            keys["max_cpu"] = wanted.cpu
        if wanted.memory_mib is not None:
            keys["max_memory"] = wanted.memory_mib << 20
        if wanted.disk_gib is not None:
            keys.update(max_disk=wanted.disk_gib << 30, disk_at="store")
        if spec.ports:
            keys["publish"] = [*keys.get("publish", []), *spec.ports]
        keys.update(spec.provider_options.get("policy") or {})
        return Policy().replace(**keys)

    async def _make(self, spec: SandboxSpec) -> SandboxHandle:
        engine = await asyncio.to_thread(engine_at, self._engine_given, self._token)
        policy = self._policy_of(spec)
        policy = await policy_with_image(policy, spec.image or self._image, self._images, engine)
        setup = spec.provider_options.get("setup", self._setup)
        record = None if self._record is None else Record(self._record)
        box = await open_box(policy, setup, engine, record, spec.ttl_s)
        try:
            raw = _Raw(box, spec, True)
            if setup is not None and spec.ttl_s is not None:
                # The engine gives a lifetime to new sandboxes alone.
                raw.expire_after(spec.ttl_s)
            labels = {**self._labels, **spec.metadata}
            if labels:
                _log.info("sandbox %s: %s", box.name, labels)
                await label_async(box, labels)
            if spec.workdir and not await box.exists(spec.workdir):
                await box.mkdir(spec.workdir)
            if spec.entrypoint:
                await box.spawn(list(spec.entrypoint), cwd=spec.workdir, env=raw.env, stdin=b"")
        except BaseException:
            await box.close()
            raise
        name = box.name
        assert name is not None
        self._live[name] = raw
        return SandboxHandle(sandbox_id=name, provider_name=self.name, raw=raw)

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Makes a sandbox, which is ready on return.

        Raises:
            SandboxCreateError: It could not be made; the cause is the rollbox error.
        """
        try:
            return await asyncio.wait_for(self._make(spec), spec.ready_timeout_s)
        except RollboxError as problem:
            raise SandboxCreateError(str(problem)) from problem
        except asyncio.TimeoutError as problem:
            raise SandboxCreateError(
                f"the sandbox was not ready within {spec.ready_timeout_s} s"
            ) from problem

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """The sandbox's state, as the engine tells it."""
        if handle.raw.closed:
            return SandboxStatus.STOPPED
        if handle.raw.paused:
            return SandboxStatus.PAUSED
        try:
            await handle.raw.box.inspect()
        except EngineLost:
            return SandboxStatus.ERROR
        except RollboxError:
            return SandboxStatus.STOPPED
        return SandboxStatus.RUNNING

    async def close(self, handle: SandboxHandle) -> None:
        """Ends the sandbox. A connected handle is only forgotten. May be called twice."""
        raw: _Raw = handle.raw
        if not raw.closed:
            raw.closed = True
            self._live.pop(handle.sandbox_id, None)
            await raw.close()

    async def aclose(self) -> None:
        """Ends all sandboxes of this provider."""
        for name, raw in list(self._live.items()):
            await self.close(SandboxHandle(name, self.name, raw))

    # Commands

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: Optional[str] = None,
        env: Optional[dict[str, str]] = None,
        timeout_s: Union[int, float, None] = None,
        user: Union[str, int, None] = None,
    ) -> SandboxExecResult:
        """Runs a command in bash, or in sh if the image has no bash.

        Cancelling the task kills the command. What ended a command that has no exit code is in
        error_type: "timeout", "out_of_memory", "output_limit".

        Raises:
            EngineLost: The engine has ended: nothing is known about the command.
        """
        raw: _Raw = handle.raw
        result = await exec_shell_async(
            raw.box,
            command,
            cwd=cwd or raw.workdir,
            env={**raw.env, **(env or {})},
            timeout=timeout_s,
            user=user,
        )
        return _exec_result(result)

    async def exec_with_background_services(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: Optional[str] = None,
        timeout_s: Union[int, float, None] = None,
    ) -> SandboxExecResult:
        """As exec: processes in the background run on after any command."""
        return await self.exec(handle, command, cwd=cwd, timeout_s=timeout_s)

    # Files

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        """Copies a file into the sandbox; parents are made."""
        await handle.raw.box.upload(source_path, handle.raw.path(target_path))

    async def download_file(
        self, handle: SandboxHandle, source_path: str, target_path: Path
    ) -> None:
        """Copies a file to the host; parents are made."""
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        await handle.raw.box.download(handle.raw.path(source_path), target_path)

    # Optional protocols

    async def pause(self, handle: SandboxHandle) -> None:
        """Stops the sandbox's processes; memory and files stay."""
        await handle.raw.box.pause()
        handle.raw.paused = True

    async def resume(self, handle: SandboxHandle) -> None:
        """Lets the processes run again."""
        await handle.raw.box.resume()
        handle.raw.paused = False

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint:
        """The address of a port, which SandboxSpec.ports need not name."""
        url = await handle.raw.box.url(port)
        return SandboxEndpoint(url if "://" in url else f"http://{url}")

    async def serialize_handle(
        self, handle: SandboxHandle, *, scope: Optional[str] = None
    ) -> dict[str, Any]:
        """What another process needs for `connect`.

        Raises:
            InvalidArgument: The engine is this process's own.
        """
        if not isinstance(self._engine_given, str):
            raise InvalidArgument(
                "another process cannot reach this engine; give the provider the socket or URL of "
                "a shared engine",
                stage="arguments",
            )
        raw: _Raw = handle.raw
        return {
            "name": handle.sandbox_id,
            "engine": self._engine_given,
            "env": raw.env,
            "workdir": raw.workdir,
        }

    async def connect(self, descriptor: Mapping[str, Any]) -> SandboxHandle:
        """A handle of a sandbox that another process has made.

        Raises:
            SandboxCreateError: There is no such sandbox.
        """
        engine = await asyncio.to_thread(engine_at, descriptor["engine"], self._token)
        try:
            box: AsyncSandbox[Any] = await AsyncSandbox.open(descriptor["name"], engine=engine)
        except NotFound as problem:
            raise SandboxCreateError(str(problem)) from problem
        raw = _Raw(box, None, False)
        raw.env, raw.workdir = dict(descriptor.get("env") or {}), descriptor.get("workdir")
        return SandboxHandle(descriptor["name"], self.name, raw)

    async def create_pty(self, handle: SandboxHandle, spec: SandboxPtySpec) -> RollboxPtySession:
        """Starts a command, or a shell, on a terminal or on pipes."""
        raw: _Raw = handle.raw
        shell = "bash" if await raw.box.exists("/bin/bash") else "sh"
        argv = [shell] if spec.command is None else [shell, "-c", spec.command]
        process = await raw.box.spawn(
            argv,
            pty=(spec.rows, spec.cols) if spec.pty else False,
            cwd=spec.cwd or raw.workdir,
            env={**raw.env, **(spec.env or {})},
            user=spec.user,
        )
        return RollboxPtySession(process, spec.pty)


class RollboxPtySession:
    """A SandboxPtySession of NeMo-Gym."""

    def __init__(self, process: AsyncProcess, pty: bool) -> None:
        self._process = process
        self._closed = False
        self.session_id = process.id
        self.mode: Optional[str] = "pty" if pty else "pipe"

    @property
    def closed(self) -> bool:
        """Whether close has run."""
        return self._closed

    async def _read(self, reader: Optional[AsyncReader], timeout_s: Optional[float]) -> bytes:
        if self._closed:
            raise SandboxPtyError(f"the session {self.session_id} is closed")
        if reader is None:
            await self.wait_exit(timeout_s=timeout_s)
            return b""
        try:
            return await asyncio.wait_for(reader.read(65536), timeout_s)
        except asyncio.TimeoutError:
            raise TimeoutError(f"no output within {timeout_s} s") from None

    async def read(self, *, timeout_s: Optional[float] = None) -> bytes:
        """The next output; b"" at the end."""
        return await self._read(self._process.stdout, timeout_s)

    async def read_stderr(self, *, timeout_s: Optional[float] = None) -> bytes:
        """The next output on standard error, of a session on pipes."""
        return await self._read(self._process.stderr, timeout_s)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            data = await self.read()
            if not data:
                return
            yield data

    async def write(self, data: bytes) -> None:
        """Sends bytes to the standard input."""
        if self._closed or self._process.stdin is None:
            raise SandboxPtyError(f"the session {self.session_id} is closed")
        try:
            await self._process.stdin.write(data)
        except BrokenPipeError as problem:
            raise SandboxPtyError(f"the session {self.session_id} has ended") from problem

    async def resize(self, rows: int, cols: int) -> None:
        """Changes the size of the terminal."""
        await self._process.resize(rows, cols)

    async def send_signal(self, signal: str) -> None:
        """Sends a signal to the foreground group of the terminal, or to all on pipes."""
        scope = "group" if self.mode == "pty" else "tree"
        await self._process.kill(int(signals.Signals[signal]), scope)

    async def wait_exit(self, *, timeout_s: Optional[float] = None) -> int:
        """Waits for the end; returns the exit status.

        Raises:
            SandboxPtyError: The engine was lost.
        """
        try:
            return status_of(await self._process.wait(timeout_s))
        except EngineLost as problem:
            raise SandboxPtyError(str(problem)) from problem

    async def run_detached(
        self, command: str, *, poll_interval_s: float = 15.0
    ) -> tuple[bytes, Optional[int]]:
        """Refused: a session holds no connection that could be saved."""
        raise NotImplementedError("rollbox has no detached commands in a session; use exec")

    async def close(self) -> None:
        """Ends the command. May be called twice."""
        if not self._closed:
            self._closed = True
            await self._process.__aexit__()

    async def __aenter__(self) -> RollboxPtySession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _text(data: Union[bytes, str]) -> str:
    return data if isinstance(data, str) else data.decode(errors="replace")


def _exec_result(result: Result[Any]) -> SandboxExecResult:
    error = _ERROR_TYPES.get(result.outcome)
    return SandboxExecResult(
        stdout=_text(result.stdout),
        stderr=_text(result.stderr) + remark_on(result),
        return_code=RUNTIME_FAILURE if error == "timeout" else status_of(result),
        error_type=error,
    )
