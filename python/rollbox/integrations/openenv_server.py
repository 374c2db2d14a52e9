# SPDX-License-Identifier: Apache-2.0
"""OpenEnv: a server of environments whose reset is a fork.

    app = create_app(setup="git clone ... /tmp/repo", policy={"max_memory": "1G"})
    uvicorn.run(app, port=8000)
    python -m rollbox.integrations.openenv_server --port 8000 --setup "..."

The set-up runs once. Each session of a client has an environment; each of its resets is a fork of
the set-up with its running processes, which takes milliseconds.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Mapping
from typing import Any, Callable, Optional

import openenv.core.env_server as env_server
from openenv.core.env_server.types import Action, Observation, State

from .._core.errors import RollboxError
from .._core.options import PolicyLike
from .._sandbox import Sandbox
from ._common import EngineLike, Source, ended_by, status_of


class SandboxAction(Action):
    """A command: `command` for a shell, or `code` for Python."""

    command: Optional[str] = None
    code: Optional[str] = None
    timeout_s: Optional[float] = None


class SandboxObservation(Observation):
    """What a command wrote, and how it ended.

    Attributes:
        limit: TimeoutExpired, OutOfMemory or OutputLimitExceeded; None: it ended by itself.
    """

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    limit: Optional[str] = None


class ForkEnvironment(env_server.Environment):
    """An environment whose reset is a fork of a set-up sandbox.

    Args:
        source: Where sandboxes come from.
        timeout: Seconds for a command.
        on_reset: Called with the sandbox and reset's keyword arguments after each fork; a text that
            it returns is the observation's stdout.
        reward: Called with the sandbox and the observation after each command; returns a reward,
            or (reward, done).
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self,
        source: Source,
        timeout: float = 60,
        on_reset: Optional[Callable[..., Optional[str]]] = None,
        reward: Optional[Callable[..., Any]] = None,
    ) -> None:
        super().__init__()
        self._source, self._timeout = source, timeout
        self._on_reset, self._reward = on_reset, reward
        self._box: Optional[Sandbox[Any]] = None
        self._state = State(episode_id=None, step_count=0)

    def reset(
        self, seed: Optional[int] = None, episode_id: Optional[str] = None, **kwargs: Any
    ) -> SandboxObservation:
        """Begins an episode in a fork."""
        self.close()
        episode = episode_id or uuid.uuid4().hex
        self._state = State(episode_id=episode, step_count=0)
        self._box = self._source.open({"episode_id": episode})
        said = None
        if self._on_reset is not None:
            said = self._on_reset(self._box, **kwargs)
        return SandboxObservation(stdout=said or "", done=False, reward=None)

    def step(
        self, action: SandboxAction, timeout_s: Optional[float] = None, **_: Any
    ) -> SandboxObservation:
        """Runs a command in the episode's sandbox.

        Raises:
            RuntimeError: rollbox failed, or there was no reset; a client gets an error, and no
                observation.
        """
        if self._box is None:
            raise RuntimeError("there is no episode; reset begins one")
        if (action.command is None) == (action.code is None):
            raise RuntimeError("an action has either command or code")
        argv: Any = action.command
        if action.code is not None:
            argv = ["python3", "-c", action.code]
        allowed = action.timeout_s or timeout_s or self._timeout
        try:
            result = self._box.exec(argv, timeout=allowed, text=True)
        except RollboxError as problem:
            raise RuntimeError(f"{problem.code}: {problem}") from problem
        self._state.step_count += 1
        made = SandboxObservation(
            stdout=result.stdout,
            stderr=result.stderr,
            exit_code=status_of(result),
            limit=ended_by(result),
            done=False,
            reward=None,
        )
        if self._reward is not None:
            found = self._reward(self._box, made)
            made.reward, made.done = found if isinstance(found, tuple) else (found, False)
        return made

    @property
    def state(self) -> State:
        """The episode's id, and how many commands it had."""
        return self._state

    def close(self) -> None:
        """Ends the episode's sandbox. May be called twice."""
        box, self._box = self._box, None
        if box is not None:
            try:
                box.close()
            except RollboxError:
                pass  # its engine is gone, and the sandbox with it


def create_app(
    *,
    policy: PolicyLike = None,
    image: Optional[str] = None,
    images: Optional[Mapping[str, str]] = None,
    setup: Optional[str] = None,
    engine: EngineLike = None,
    token: Optional[str] = None,
    labels: Optional[Mapping[str, Any]] = None,
    timeout: float = 60,
    on_reset: Optional[Callable[..., Optional[str]]] = None,
    reward: Optional[Callable[..., Any]] = None,
    max_concurrent_envs: int = 256,
    name: str = "rollbox",
) -> Any:
    """Makes the FastAPI application.

    Args:
        policy: The policy.
        image: An image, by way of `images`; None: the policy's.
        images: {image: the store's}.
        setup: A line of shell that runs once; every reset forks its result.
        engine: An Engine, a socket, the address of a server, or None: this process's engine.
        token: The server's token.
        labels: Names and values for trajectories and costs, besides the episode's id.
        timeout: Seconds for a command, unless an action says otherwise.
        on_reset: As of ForkEnvironment.
        reward: As of ForkEnvironment.
        max_concurrent_envs: Sessions at a time; another one is refused with CAPACITY_REACHED.
        name: The environment's name.

    Returns:
        The application.
    """
    source = Source(
        policy=policy,
        image=image,
        images=images,
        setup=setup,
        engine=engine,
        token=token,
        labels=labels,
    )
    return env_server.create_app(
        lambda: ForkEnvironment(source, timeout, on_reset, reward),
        SandboxAction,
        SandboxObservation,
        env_name=name,
        max_concurrent_envs=max_concurrent_envs,
    )


def main() -> None:
    """Serves environments until it is interrupted."""
    import uvicorn

    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--policy", help="a policy's file")
    parser.add_argument("--image")
    parser.add_argument("--setup")
    parser.add_argument("--engine", help="a socket, or the address of a server")
    options = parser.parse_args()
    from .._core.policy import Policy

    policy = None if options.policy is None else Policy.from_file(options.policy)
    app = create_app(policy=policy, image=options.image, setup=options.setup, engine=options.engine)
    uvicorn.run(app, host=options.host, port=options.port)


if __name__ == "__main__":
    main()
