# SPDX-License-Identifier: Apache-2.0
"""What the adapters share: from images and resources to policies, from Results to statuses."""

from __future__ import annotations

import logging
import os
import pathlib
import threading
from collections.abc import Mapping
from typing import Any, Optional, Union

from .._core.errors import EngineLost, FeatureMissing, InvalidArgument, NotFound
from .._core.options import PolicyLike, as_policy
from .._core.policy import Policy
from .._core.result import Outcome, Result
from .._engine import Engine
from .._sandbox import Sandbox
from ..aio._sandbox import AsyncSandbox
from ..aio._threads import run_in_thread

EngineLike = Union[Engine, str, None]
"""An Engine, the socket of one, the address of a server, or None: this process's own engine."""

_log = logging.getLogger(__name__)

HOST = "host"
"""The image that stands for the host's own directories, read-only: no image at all."""


def policy_for(policy: PolicyLike, image: Optional[str], images: Mapping[str, str]) -> Policy:
    """The policy with the image that `images` has for a framework's image.

    Without an entry it is the image of this name in the store. Nothing is fetched: the engine
    reports an image that the store does not have.
    """
    made = as_policy(policy)
    name = images.get(image, images.get("*", image)) if image is not None else made.image
    if name is None or name == HOST:
        return made.replace(image=None)
    return made.replace(image=name)


def with_resources(
    policy: Policy, cpu: Any = None, memory_gib: Any = None, disk_gib: Any = None, gpu: Any = None
) -> Policy:
    """The policy with a framework's limits, where it has any."""
    if gpu:
        raise FeatureMissing(f"{gpu} GPUs were asked for; sandboxes have none", stage="policy")
    changes = {"max_cpu": cpu, "max_memory": _gib(memory_gib), "max_disk": _gib(disk_gib)}
    return policy.replace(**{key: value for key, value in changes.items() if value is not None})


def _gib(value: Any) -> Optional[int]:
    return None if value is None else int(value * (1 << 30))


def status_of(result: Result[Any]) -> int:
    """The exit status that a shell would report.

    128 + n for signal n, 137 for what was killed at a limit, 124 for a time-out.
    """
    if result.exit_code is not None:
        return result.exit_code
    if result.outcome is Outcome.SIGNAL and result.signal is not None:
        return 128 + result.signal
    return 124 if result.outcome is Outcome.TIMEOUT else 137


def remark_on(result: Result[Any]) -> str:
    """A line for the output of what was ended by a limit; "" for everything else."""
    return {
        Outcome.OUT_OF_MEMORY: "\n[killed: out of memory]\n",
        Outcome.OUTPUT_LIMIT: "\n[killed: more output than its limit]\n",
        Outcome.TIMEOUT: "\n[killed: time-out]\n",
    }.get(result.outcome, "")


def ending_of(result: Result[Any]) -> str:
    """What a tool's text says at its end: the limit, or the exit status unless it is 0."""
    status = status_of(result)
    return remark_on(result) or (f"\n[status {status}]" if status != 0 else "")


def ended_by(result: Result[Any]) -> Optional[str]:
    """The name of the limit that ended a command; None if the command ended by itself."""
    return {
        Outcome.OUT_OF_MEMORY: "OutOfMemory",
        Outcome.OUTPUT_LIMIT: "OutputLimitExceeded",
        Outcome.TIMEOUT: "TimeoutExpired",
    }.get(result.outcome)


def one_stream(command: str) -> str:
    """The line of shell with standard error in standard output.

    The command begins a line of its own, so that a here-document at its end stays one.
    """
    return "exec 2>&1\n" + command


class _Templates:
    """Sandboxes that were set up once, to be forked.

    They live as long as their engine or this process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[str, str, Optional[Engine]], Sandbox] = {}

    def fork(self, policy: Policy, setup: str, engine: Optional[Engine]) -> Sandbox:
        """A fork of the sandbox in which `setup` has run."""
        key = (policy.to_json(), setup, engine)
        template = self._made.get(key)
        if template is not None:
            try:
                return template.fork(1)[0]
            except (EngineLost, NotFound):
                pass  # The engine that had it is gone: another one makes it again.
        with self._lock:
            if self._made.get(key) is template:
                made = Sandbox(policy, engine=engine)
                try:
                    made.exec(setup, check=True)
                    made.snapshot()
                except BaseException:
                    made.close()
                    raise
                self._made[key] = made
            template = self._made[key]
        return template.fork(1)[0]


_templates = _Templates()
_engines: dict[tuple[str, Optional[str]], Engine] = {}
_engines_lock = threading.Lock()


def _after_fork() -> None:
    global _templates, _engines, _engines_lock
    _templates, _engines, _engines_lock = _Templates(), {}, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def fork_of_setup(policy: Policy, setup: str, engine: Optional[Engine]) -> Sandbox:
    """A fork of a sandbox in which `setup` has run; it runs once per policy and engine."""
    return _templates.fork(policy, setup, engine)


def engine_at(engine: EngineLike, token: Optional[str] = None) -> Optional[Engine]:
    """The Engine that a configuration names; this process opens each of them once.

    A server's token is `token`, or the content of the file that $ROLLBOX_TOKEN_FILE names.
    """
    if engine is None or isinstance(engine, Engine):
        return engine
    if not isinstance(engine, str):
        raise InvalidArgument(
            f"engine must be an Engine, a path or an address, not {engine!r}", stage="arguments"
        )
    file = os.environ.get("ROLLBOX_TOKEN_FILE")
    if token is None and file and engine.startswith(("http://", "https://")):
        token = pathlib.Path(file).read_text().strip()
    with _engines_lock:
        if (engine, token) not in _engines:
            _engines[engine, token] = Engine(engine, token=token)
        return _engines[engine, token]


def label(box: Sandbox, labels: Mapping[str, Any]) -> None:
    """Puts a framework's labels on a sandbox: on its trajectory, and on a server's costs."""
    if not labels:
        return
    made = {str(name): str(value) for name, value in labels.items()}
    box.note({"labels": made})
    remote = box._get_engine().remote
    if remote is None:
        return
    try:
        remote.ask("PATCH", f"/v1/sandboxes/{box.name}", {"labels": made})
    except InvalidArgument as problem:  # a framework's metadata is no reason to fail an episode
        _log.warning("sandbox %s has no labels on its server: %s", box.name, problem)


async def label_async(box: AsyncSandbox, labels: Mapping[str, Any]) -> None:
    """As label, for asyncio."""
    if labels:
        await run_in_thread(label, box.sync, labels)


class Source:
    """Where an adapter's sandboxes come from. Picklable if its engine is a path or an address.

    Args:
        policy: The policy.
        image: The framework's image, by way of `images`; None: the policy's.
        images: {framework's image: the store's}; see `policy_for`.
        setup: A line of shell to run once. Every sandbox begins as a fork of its result.
        engine: An Engine, a socket, the address of a server, or None: this process's engine.
        token: The server's token; without one, the content of $ROLLBOX_TOKEN_FILE.
        labels: Names and values that say which rollout it is, for the sandbox's trajectory, for
            a server's costs, and on the adapter's log lines.
        record: Where the trajectory goes, as for Sandbox; not with `setup`.
    """

    def __init__(
        self,
        *,
        policy: PolicyLike = None,
        image: Optional[str] = None,
        images: Optional[Mapping[str, str]] = None,
        setup: Optional[str] = None,
        engine: EngineLike = None,
        token: Optional[str] = None,
        labels: Optional[Mapping[str, Any]] = None,
        record: Any = None,
    ) -> None:
        if record is not None and setup is not None:
            raise InvalidArgument(
                "record and setup do not go together: a fork's trajectory is its parent's",
                stage="arguments",
            )
        self.policy = policy_for(policy, image, images or {})
        self.setup, self.engine, self.token = setup, engine, token
        self.labels = {str(name): str(value) for name, value in (labels or {}).items()}
        self.record = record

    def open(self, labels: Optional[Mapping[str, Any]] = None) -> Sandbox:
        """A new sandbox, whose session is open.

        Args:
            labels: More labels, over those of the source.

        Raises:
            RollboxError: As for Sandbox; RunFailed if the set-up failed.
        """
        engine = engine_at(self.engine, self.token)
        if self.setup is not None:
            box = fork_of_setup(self.policy, self.setup, engine)
        else:
            box = Sandbox(self.policy, engine=engine, record=self.record)
            box._enter()
        label(box, {**self.labels, **(labels or {})})
        return box
