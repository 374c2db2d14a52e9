# SPDX-License-Identifier: Apache-2.0
"""OpenEnv: a provider whose containers are rollbox sandboxes.

Client.from_docker_image("echo-env:latest", provider=RollboxProvider())
"""

from __future__ import annotations

import contextlib
import time
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from openenv.core.containers.runtime.providers import ContainerProvider

from .. import images as store_images
from .._core.errors import RollboxError
from .._core.options import PolicyLike, as_policy
from .._core.policy import Policy
from .._core.record import Record
from .._process import Process
from .._sandbox import Sandbox
from ._common import EngineLike, engine_at, label, policy_for

_LOG_BYTES = 2000


class RollboxProvider(ContainerProvider):
    """A ContainerProvider of OpenEnv; one sandbox at a time.

    Args:
        policy: Keys of docs/reference/policy.md.
        images: {image: image of the store}; "*" is for all others. None is pulled then.
        cmd: The server's program and arguments. Default: the image's entry point and command.
        engine: An Engine, a socket's path or a server's URL. Default: this process's engine.
        token: The server's token.
        labels: Names and values for the trajectory.
        record: A path for the trajectory; {name} in it is the sandbox's name.
    """

    def __init__(
        self,
        *,
        policy: PolicyLike = None,
        images: Optional[Mapping[str, str]] = None,
        cmd: Optional[Sequence[str]] = None,
        engine: EngineLike = None,
        token: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        record: Optional[str] = None,
    ) -> None:
        self._labels, self._record = dict(labels or {}), record
        self._policy, self._images = as_policy(policy), dict(images or {})
        self._cmd = None if cmd is None else list(cmd)
        self._engine_given, self._token = engine, token
        self._box: Optional[Sandbox[Any]] = None
        self._server: Optional[Process] = None

    def start_container(
        self,
        image: str,
        port: Optional[int] = None,
        env_vars: Optional[dict[str, str]] = None,
        **kwargs: Any,
    ) -> str:
        """Starts the image's server; returns its URL.

        Args:
            image: The image.
            port: The server's port in the sandbox. Default: 8000.
            env_vars: Variables of the server.
            **kwargs: `cmd`, as of the class.

        Raises:
            RuntimeError: It cannot be started; the cause is the rollbox error.
        """
        if self._box is not None:
            raise RuntimeError("this provider has a sandbox already; call stop_container first")
        cmd = kwargs.pop("cmd", self._cmd)
        if kwargs:
            raise RuntimeError(f"rollbox has no options {', '.join(sorted(kwargs))}")
        try:
            return self._start(image, port or 8000, dict(env_vars or {}), cmd)
        except RollboxError as problem:
            self.stop_container()
            raise RuntimeError(f"{image} was not started: {problem}") from problem
        except BaseException:
            self.stop_container()
            raise

    def _start(
        self, image: str, port: int, env: dict[str, str], cmd: Optional[Sequence[str]]
    ) -> str:
        engine = engine_at(self._engine_given, self._token)
        keys: dict[str, Any] = {"users": "many", "max_processes": 2048, "publish": [port]}
        policy = Policy().replace(**{**keys, **self._policy.to_dict()})
        policy = policy_for(policy, image, self._images)
        local = engine is None or engine.remote is None
        mapped = image in self._images or "*" in self._images
        if local and not mapped and policy.image is not None:
            store_images.pull(policy.image, missing=True)
        if cmd is None and local and policy.image is not None:
            cmd = _command_of(store_images.inspect(policy.image))
        if not cmd:
            raise RuntimeError(f"{image} names no command that is known here; give cmd")
        record = None if self._record is None else Record(self._record)
        box = self._box = Sandbox(policy, engine=engine, record=record)
        label(box, self._labels)
        self._server = box.spawn(list(cmd), env=env, stdin=b"")
        url = box.url(port)
        return (url if "://" in url else f"http://{url}").rstrip("/")

    def stop_container(self) -> None:
        """Ends the sandbox. May be called twice."""
        box, self._box, self._server = self._box, None, None
        if box is not None:
            box.close()

    def close(self) -> None:
        """Ends the sandbox."""
        self.stop_container()

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Waits until the server answers /health with 200.

        Raises:
            TimeoutError: It did not within the time.
            RuntimeError: The server has ended, or the engine is lost.
        """
        until = time.monotonic() + timeout_s
        # A proxy of this process's environment is for other machines.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < until:
            self._check_server()
            with contextlib.suppress(OSError):
                with opener.open(base_url + "/health", timeout=2) as answer:
                    if answer.status == 200:
                        return
            time.sleep(0.05)
        raise TimeoutError(f"{base_url} was not ready within {timeout_s} s")

    def _check_server(self) -> None:
        if self._server is None:
            raise RuntimeError("no server is running; call start_container first")
        try:
            result = self._server.poll()
        except RollboxError as problem:
            raise RuntimeError(f"the server's sandbox is lost: {problem}") from problem
        if result is not None:
            raise RuntimeError(
                f"the server has ended ({result.outcome.value}, status {result.exit_code}); its "
                f"output ends: {result.text[-_LOG_BYTES:]}"
            )


def _command_of(image: Mapping[str, Any]) -> list[str]:
    config = (image.get("oci") or {}).get("config") or {}
    return [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])]
