# SPDX-License-Identifier: Apache-2.0
"""verifiers: a Runtime that is a rollbox sandbox.

    async with RollboxRuntime(image="python:3.12") as box:
        trace = await agent.run(task, runtime=box)

The kinds of runtimes that a configuration may name are a closed list of verifiers. A RollboxRuntime
is therefore given as `runtime`, and traces describe it as a Docker container with its image.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import posixpath
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, ClassVar, Optional
from urllib.parse import urlsplit

from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes.base import ProgramResult, Runtime, RuntimeProcess, register
from verifiers.v1.runtimes.docker import DockerConfig, DockerRuntimeInfo

from .._core.errors import CommandNotFound, FeatureMissing, InvalidArgument, RollboxError
from .._core.options import PolicyLike, as_policy
from .._core.policy import Policy
from .._core.record import Record
from .._core.result import Outcome, Result
from ..aio._process import AsyncProcess, AsyncReader
from ..aio._sandbox import AsyncSandbox
from ._common import HOST, EngineLike, engine_at, label_async, remark_on, status_of
from ._task_sandboxes import PUBLIC, open_box, policy_with_image

HOST_NAME = "host.rollbox.internal"
"""The name in a sandbox for the machine that runs verifiers."""


@contextlib.contextmanager
def _as_sandbox_error() -> Iterator[None]:
    try:
        yield
    except RollboxError as problem:
        raise SandboxError(f"{problem.code}: {problem}") from problem


class RollboxRuntime(Runtime):
    """A Runtime of verifiers.

    Args:
        image: The image; "host" means the host's directories.
        policy: Keys of docs/reference/policy.md.
        images: {image: image of the store}; "*" is for all others. None is pulled then.
        setup: A line of shell that runs once for an image and policy; runtimes are forks of it.
        workdir: The working directory, which is made. Default: the policy's.
        allow: Hosts that the agent may reach; ["*"]: all public ones.
        engine: An Engine, a socket's path or a server's URL. Default: this process's engine.
        token: The server's token.
        labels: Names and values for the trajectory.
        record: A path for the trajectory; {name} in it is the sandbox's name.
        name: The runtime's name.
    """

    supports_user: ClassVar[bool] = True

    def __init__(
        self,
        image: str = HOST,
        *,
        policy: PolicyLike = None,
        images: Optional[Mapping[str, str]] = None,
        setup: Optional[str] = None,
        workdir: Optional[str] = None,
        allow: Optional[list[str]] = None,
        engine: EngineLike = None,
        token: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        record: Optional[str] = None,
        name: Optional[str] = None,
    ) -> None:
        super().__init__(name)
        self.config = DockerConfig(
            image=image, workdir=workdir, allow=["*"] if allow is None else allow
        )
        self.info = DockerRuntimeInfo(**self.config.model_dump())
        self._given, self._images, self._setup = as_policy(policy), dict(images or {}), setup
        self._engine_given, self._token = engine, token
        self._labels, self._record = dict(labels or {}), record
        self._box: Optional[AsyncSandbox[Any]] = None
        self._base: list[Any] = list(PUBLIC)
        self._ports: set[int] = set()

    async def __aenter__(self) -> RollboxRuntime:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def sandbox(self) -> AsyncSandbox[Any]:
        """The session, for calls that verifiers lacks: snapshot, fork, grade.

        Raises:
            SandboxError: The runtime is not started, or has been stopped.
        """
        if self._box is None:
            raise SandboxError(f"the runtime {self.name} is not started, or has been stopped")
        return self._box

    # Life

    async def start(self) -> None:
        """Opens the sandbox.

        Raises:
            SandboxError: It cannot be made; the cause is the rollbox error.
        """
        with _as_sandbox_error():
            engine = await asyncio.to_thread(engine_at, self._engine_given, self._token)
            keys: dict[str, Any] = {"users": "many", "max_processes": 2048}
            given = self._given.to_dict()
            if not {"net", "net_allow", "net_allow_hosts"} & given.keys():
                keys.update(net="allow", net_allow=list(PUBLIC))
            policy = await policy_with_image(
                Policy().replace(**{**keys, **given}), self.config.image, self._images, engine
            )
            record = None if self._record is None else Record(self._record)
            box = self._box = await open_box(policy, self._setup, engine, record)
            register(self)
            self.info.id = box.name
            await label_async(box, self._labels)
            if self.config.workdir and not await box.exists(self.config.workdir):
                await box.mkdir(self.config.workdir)

    def cleanup(self) -> None:
        """Ends the sandbox. May be called twice."""
        box, self._box = self._box, None
        if box is not None:
            box.sync.close()

    # Commands

    def _options(self, env: dict[str, str]) -> dict[str, Any]:
        return {"cwd": self.config.workdir, "env": self.process_env(env), "user": self.user}

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Runs a program. Cancelling the task kills it.

        Raises:
            SandboxError: The policy's time-out was reached, or the engine is lost.
        """
        with _as_sandbox_error():
            try:
                result = await self.sandbox.exec(argv, **self._options(env))
            except CommandNotFound as problem:
                return ProgramResult(127, "", f"{problem}\n")
        if result.outcome is Outcome.TIMEOUT:
            raise SandboxError(f"timeout: {argv[0]} reached the time-out of the policy")
        return ProgramResult(
            status_of(result), _text(result.stdout), _text(result.stderr) + remark_on(result)
        )

    async def open_process(self, argv: list[str], env: dict[str, str]) -> RuntimeProcess:
        """Starts a program with pipes."""
        with _as_sandbox_error():
            return _Process(await self.sandbox.spawn(argv, **self._options(env)))

    async def run_background(self, argv: list[str], env: dict[str, str], log: str) -> None:
        """Starts a program that runs until the sandbox ends; its output goes to a file."""
        words = ["sh", "-c", 'exec "$@" >"$0" 2>&1', self._path(log), *argv]
        with _as_sandbox_error():
            await self.sandbox.spawn(words, stdin=b"", **self._options(env))

    # Files

    def _path(self, path: str) -> str:
        return posixpath.join(self.config.workdir or self.sandbox.policy.cwd or "/tmp", path)

    async def _read(self, path: str, max_bytes: Optional[int] = None) -> bytes:
        target = self._path(path)
        try:
            if self.user is None:
                return await self.sandbox.read_file(target, max_bytes)
            # The call for files has root's rights; cat has the user's.
            done = await self.sandbox.exec(["cat", target], user=self.user, max_output=max_bytes)
        except RollboxError as problem:
            if problem.errno == errno.EFBIG:
                raise SandboxError(f"read {path!r}: it is over the limit") from problem
            raise SandboxError(f"read {path!r}: {problem.code}: {problem}") from problem
        if done.outcome is Outcome.OUTPUT_LIMIT:
            raise SandboxError(f"read {path!r}: it is over the limit")
        if not done.ok:
            raise SandboxError(f"read {path!r}: {_text(done.stderr).strip()}")
        data: bytes = done.stdout
        return data

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file; parents are made."""
        with _as_sandbox_error():
            target = self._path(path)
            parent = posixpath.dirname(target)
            if not await self.sandbox.exists(parent):
                done = await self.sandbox.exec(["mkdir", "-p", parent], user=self.user)
                if not done.ok:
                    raise SandboxError(f"write {path!r}: {_text(done.stderr).strip()}")
            await self.sandbox.write_file(target, data, user=self.user)

    # Network

    def _apply_rules(self) -> None:
        rules = [*self._base]
        for port in sorted(self._ports):
            to = f"127.0.0.1:{port}"
            rules.append({"host": HOST_NAME, "ports": [port], "tls": "raw", "to": to})
        self.sandbox.sync.net_set(rules)

    def host_url(self, url: str) -> str:
        """The URL in the sandbox of a server on this machine's loopback interface.

        Raises:
            SandboxError: The engine is remote, or the policy's network is not "allow".
        """
        parts = urlsplit(url)
        if parts.hostname not in ("127.0.0.1", "localhost", "::1", "0.0.0.0"):
            return url
        with _as_sandbox_error():
            engine = self.sandbox.sync._get_engine()
            if engine.remote is not None:
                raise FeatureMissing(
                    f"{url}: a sandbox of a remote engine cannot reach this machine",
                    stage="policy",
                )
            if self.sandbox.policy.net == "host":
                return url
            if self.sandbox.policy.net != "allow":
                raise InvalidArgument(
                    f'{url}: a sandbox needs net "allow" to reach this machine', stage="policy"
                )
            port = parts.port or (443 if parts.scheme == "https" else 80)
            if port not in self._ports:
                self._ports.add(port)
                self._apply_rules()
        return parts._replace(netloc=f"{HOST_NAME}:{port}").geturl()

    async def prepare_execution(self, routes: Optional[list[str]]) -> None:
        """Restricts the network to `allow` and the framework's servers; None: opens it again."""
        if not self.network_restricted:
            return
        if self.config.block not in ([], ["*"]):
            raise SandboxError("rollbox has no lists of blocked hosts; name the allowed ones")
        hosts = {urlsplit(route).hostname for route in routes or []} - {None, HOST_NAME}
        allowed = [*self.config.allow, *sorted(map(str, hosts))]
        self._base = list(PUBLIC) if routes is None else allowed
        with _as_sandbox_error():
            await asyncio.to_thread(self._apply_rules)

    async def expose(self, port: int) -> str:
        """The URL, on this machine, of a server in the sandbox."""
        with _as_sandbox_error():
            url = await self.sandbox.url(port)
        return url if "://" in url else f"http://{url}"


class _Process(RuntimeProcess):
    def __init__(self, process: AsyncProcess) -> None:
        self._process = process
        assert process.stdout is not None and process.stderr is not None
        self.stdout = _chunks(process.stdout)
        self.stderr = _chunks(process.stderr)

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            await self._process.stdin.write(data)
        except BrokenPipeError as problem:
            raise SandboxError("the process has ended") from problem

    async def wait(self) -> int:
        with _as_sandbox_error():
            return status_of(await self._process.wait())

    async def poll(self) -> Optional[int]:
        with _as_sandbox_error():
            result: Optional[Result[Any]] = self._process._process.poll()
        return None if result is None else status_of(result)

    async def terminate(self) -> None:
        await self._signal(15)

    async def kill(self) -> None:
        await self._signal(9)

    async def _signal(self, number: int) -> None:
        with _as_sandbox_error():
            await self._process.kill(number)


async def _chunks(reader: AsyncReader) -> AsyncIterator[bytes]:
    async for data in reader:
        yield data


def _text(data: Any) -> str:
    return data if isinstance(data, str) else data.decode(errors="replace")
