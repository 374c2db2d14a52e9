# SPDX-License-Identifier: Apache-2.0
"""mini-swe-agent: an environment whose commands run in a sandbox.

    environment:
      environment_class: rollbox.integrations.mini_swe_agent.RollboxEnvironment
      images: {"*": host}

mini-swe-agent's SWE-bench runners give an instance's image only to classes that they know by name.
`python -m rollbox.integrations.mini_swe_agent swebench ...` runs them with this class, which gets
the image.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import Any, Optional

from .._core.errors import (
    Cancelled,
    EngineLost,
    NotFound,
    RollboxError,
)
from .._core.options import PolicyLike
from .._sandbox import Sandbox
from ._common import EngineLike, Source, ended_by, one_stream, status_of

CLASS = "rollbox.integrations.mini_swe_agent.RollboxEnvironment"
_SUBMITTED = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class RollboxConfig(dict[str, Any]):
    """An environment's configuration: its keys are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """A copy that JSON has, by the name that mini-swe-agent's own configurations use."""
        return dict(self)


class RollboxEnvironment:
    """An Environment of mini-swe-agent. Its sandbox ends with it, or with the program.

    Args:
        cwd: The working directory of commands; "": the policy's or the image's.
        env: Variables of every command.
        timeout: Seconds for a command.
        image: The image, by way of `images`; None: the policy's.
        policy: Keys of docs/reference/policy.md.
        images: {mini-swe-agent's image: the store's}; "host" means the host's directories, "*" is
            for all names that are not there.
        setup: A line of shell to run once; every environment begins as a fork of its result.
        engine: A socket, the address of a server, an Engine, or None: this process's engine.
        token: The server's token; without one, the content of $ROLLBOX_TOKEN_FILE.
        labels: Names and values for the trajectories.
        record: Where the sandbox's trajectory goes.

    Raises:
        RollboxError: The sandbox cannot be made, for example because the store lacks the image.
    """

    def __init__(
        self,
        *,
        cwd: str = "",
        env: Optional[Mapping[str, str]] = None,
        timeout: float = 30,
        image: Optional[str] = None,
        policy: PolicyLike = None,
        images: Optional[Mapping[str, str]] = None,
        setup: Optional[str] = None,
        engine: EngineLike = None,
        token: Optional[str] = None,
        labels: Optional[Mapping[str, Any]] = None,
        record: Any = None,
    ) -> None:
        source = Source(
            policy=policy,
            image=image,
            images=images,
            setup=setup,
            engine=engine,
            token=token,
            labels=labels,
            record=record,
        )
        # What goes into the run's trajectory: never the token.
        self.config = RollboxConfig(
            cwd=cwd,
            env=dict(env or {}),
            timeout=timeout,
            image=image,
            policy=source.policy.to_dict(),
            setup=setup,
            engine=engine if isinstance(engine, str) else None,
            labels=source.labels,
        )
        self._lost: Optional[str] = None
        self._uname: Optional[dict[str, str]] = None
        self._lock = threading.Lock()
        self._box = source.open()

    @property
    def sandbox(self) -> Sandbox:
        """The session, for what mini-swe-agent has no call for: snapshot, fork, grade."""
        return self._box

    def execute(
        self, action: Mapping[str, Any], cwd: str = "", *, timeout: Optional[float] = None
    ) -> dict[str, Any]:
        """Runs a command in a new shell.

        Args:
            action: {"command": a line of shell}.
            cwd: The working directory, over the configuration's.
            timeout: Seconds, over the configuration's.

        Returns:
            {"output", "returncode", "exception_info"}. After a time-out, a memory kill, too much
            output or a lost sandbox the returncode is -1, and "extra" has "exception_type" and
            "exception".

        Raises:
            minisweagent.exceptions.Submitted: The command submitted the task's result.
            minisweagent.exceptions.InterruptAgentFlow: An earlier call has reported the sandbox as
                lost. The run ends with that as its exit status, and not with a wrong answer.
        """
        if self._lost is not None:
            raise _interrupt(self._lost)
        limit = timeout or self.config.timeout
        try:
            result = self._box.exec(
                one_stream(str(action.get("command", ""))),
                cwd=cwd or self.config.cwd or None,
                env=self.config.env or None,
                timeout=limit,
                text=True,
            )
        except RollboxError as problem:
            if isinstance(problem, (EngineLost, NotFound, Cancelled)):
                self._lost = f"{type(problem).__name__}: {problem}"
            return _failed("", type(problem).__name__, str(problem))
        except (ValueError, TypeError) as problem:
            return _failed("", type(problem).__name__, str(problem))
        kind = ended_by(result)
        if kind is not None:
            why = {
                "TimeoutExpired": f"the command reached its time-out of {limit} s",
                "OutOfMemory": "the command was killed at the sandbox's memory limit",
                "OutputLimitExceeded": "the command was killed at its limit of output",
            }[kind]
            return _failed(result.stdout, kind, why)
        output = {
            "output": result.stdout,
            "returncode": status_of(result),
            "exception_info": "",
        }
        _check_submitted(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """The configuration, and the sandbox's uname: what prompts may name."""
        with self._lock:
            if self._uname is None:
                self._uname = self._ask_uname()
        return {**self.config, **self._uname, **self.config.env, **kwargs}

    def _ask_uname(self) -> dict[str, str]:
        words = ("system", "node", "release", "version", "machine")
        result = self._box.exec(
            ["sh", "-c", "for i in s n r v m; do uname -$i; done"],
            text=True,
            timeout=60,
            check=True,
        )
        return {**dict(zip(words, result.stdout.splitlines())), "processor": ""}

    def serialize(self) -> dict[str, Any]:
        """What the run's trajectory has about its environment."""
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        return {
            "info": {"config": {"environment": self.config.model_dump(), "environment_type": kind}}
        }

    def cleanup(self) -> None:
        """Ends the sandbox. May be called twice."""
        self._box.close()


def _failed(output: str, kind: str, why: str) -> dict[str, Any]:
    return {
        "output": output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {why}",
        "extra": {"exception_type": kind, "exception": why},
    }


def _interrupt(why: str) -> Exception:
    from minisweagent.exceptions import InterruptAgentFlow

    kind = why.partition(":")[0]
    message = {
        "role": "exit",
        "content": f"the sandbox is lost: {why}",
        "extra": {"exit_status": kind, "submission": "", "exception_str": why},
    }
    made: Exception = InterruptAgentFlow(message)
    return made


def _check_submitted(output: dict[str, Any]) -> None:
    lines = output["output"].lstrip().splitlines(keepends=True)
    if not lines or lines[0].strip() != _SUBMITTED or output["returncode"] != 0:
        return
    from minisweagent.exceptions import Submitted

    rest = "".join(lines[1:])
    raise Submitted(
        {
            "role": "exit",
            "content": rest,
            "extra": {"exit_status": "Submitted", "submission": rest},
        }
    )


def use_in_swebench() -> None:
    """Makes mini-swe-agent's SWE-bench runners give an instance's image to this class.

    It also makes "rollbox" a name of the class, for `--environment-class rollbox`.
    """
    import minisweagent.environments as environments
    from minisweagent.run.benchmarks import swebench

    environments._ENVIRONMENT_MAPPING["rollbox"] = CLASS
    original = swebench.get_sb_environment
    if getattr(original, "rollbox", False):
        return

    def get_sb_environment(config: dict[str, Any], instance: dict[str, Any]) -> Any:
        given = dict(config.get("environment") or {})
        if given.get("environment_class") in ("rollbox", CLASS):
            given.setdefault("image", swebench.get_swebench_docker_image_name(instance))
            labels = {"instance_id": instance["instance_id"], **(given.get("labels") or {})}
            config = {**config, "environment": {**given, "labels": labels}}
        return original(config, instance)

    get_sb_environment.rollbox = True  # type: ignore[attr-defined]
    swebench.get_sb_environment = get_sb_environment
    single = sys.modules.get("minisweagent.run.benchmarks.swebench_single")
    if single is not None:
        single.get_sb_environment = get_sb_environment  # type: ignore[attr-defined]


def main(arguments: Optional[list[str]] = None) -> None:
    """Runs `swebench` or `swebench-single` of mini-swe-agent: the first argument says which."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] not in ("swebench", "swebench-single"):
        sys.exit(
            "usage: python -m rollbox.integrations.mini_swe_agent "
            "{swebench|swebench-single} [OPTION...]"
        )
    use_in_swebench()
    if words[0] == "swebench":
        from minisweagent.run.benchmarks.swebench import app
    else:
        from minisweagent.run.benchmarks.swebench_single import app
    chosen = any(
        word.startswith(("--environment-class", "environment.environment_class")) for word in words
    )
    app(args=words[1:] + ([] if chosen else ["--environment-class", "rollbox"]))


if __name__ == "__main__":
    main()
