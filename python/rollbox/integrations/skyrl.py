# SPDX-License-Identifier: Apache-2.0
"""SkyRL: an environment of SkyRL-Gym whose actions run in a sandbox.

    from rollbox.integrations.skyrl import register
    register()                                      # environment.env_class=rollbox

The last fenced block of each message is run: bash, or Python. A message without one ends the
episode and is scored.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Optional

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from .._core.errors import RollboxError
from .._sandbox import Sandbox
from ._code_reward import cases_of, program_of, score_programs
from ._common import Source, ended_by, ending_of, one_stream, status_of

_log = logging.getLogger(__name__)
_BLOCK = re.compile(r"```[ \t]*(bash|sh|shell|python|py)[^\n]*\n(.*?)```", re.DOTALL)
_SOURCE_KEYS = ("policy", "image", "images", "setup", "engine", "token", "labels", "record")


_ENTRY_POINT = "rollbox.integrations.skyrl:RollboxEnv"


def register(name: str = "rollbox") -> None:
    """Registers the environment under a name for `environment.env_class`. May be called twice."""
    import skyrl_gym
    from skyrl_gym.envs.registration import registry

    if getattr(registry.get(name), "entry_point", None) != _ENTRY_POINT:
        skyrl_gym.register(id=name, entry_point=_ENTRY_POINT)


def _plain(value: Any) -> Any:
    if type(value).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        return OmegaConf.to_container(value, resolve=True)
    return value


class RollboxEnv(BaseTextEnv):
    """A sandbox that a model uses by blocks of bash or Python.

    Args:
        env_config: The keys policy, image, images, setup, engine, token, labels and record are as
            for the other adapters. timeout: seconds for an action (30). reward: a line of shell
            that is run at the end; exit status 0 is 1.0. outputs: directories and files to judge:
            the line then runs in a clean sandbox that has only these and reward_files, {path:
            text}. Without outputs it runs in the episode's sandbox, as the agent left it.
        extras: SkyRL's: `max_turns`; `reward_spec` with `ground_truth`, the cases by which the last
            Python program is scored, if env_config has no `reward`.
    """

    def __init__(self, env_config: Any = None, extras: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__()
        config = dict(_plain(env_config) or {})
        given = dict(extras or {})
        self.max_turns = int(given.get("max_turns") or config.get("max_turns") or 8)
        chosen = {key: config[key] for key in _SOURCE_KEYS if config.get(key) is not None}
        self._options: dict[str, Any] = {
            key: chosen.get(key) for key in ("policy", "engine", "token")
        }
        self._source = Source(**chosen)
        self._timeout = float(config.get("timeout", 30))
        self._reward = config.get("reward")
        self._outputs = config.get("outputs")
        self._reward_files = dict(config.get("reward_files") or {})
        self._cases = (given.get("reward_spec") or {}).get("ground_truth")
        self._box: Optional[Sandbox[Any]] = None
        self._program: Optional[str] = None
        self._metrics = {"rollbox_timeouts": 0, "rollbox_out_of_memory": 0, "rollbox_actions": 0}

    @property
    def sandbox(self) -> Sandbox[Any]:
        """The episode's sandbox, which `init` or the first action makes."""
        if self._box is None:
            self._box = self._source.open()
        return self._box

    def init(self, prompt: Any) -> tuple[Any, dict[str, Any]]:
        """Begins an episode in a new sandbox, or a fork of the set-up."""
        self.close()
        self.turns, self._program = 0, None
        return prompt, {"sandbox": self.sandbox.name}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Runs the action's last block; without one, or after max_turns, scores the episode.

        Raises:
            RollboxError: rollbox failed, which says nothing about the model: do not score it.
        """
        self.turns += 1
        blocks = _BLOCK.findall(action)
        said = ""
        if blocks:
            said = self._run(*blocks[-1])
            self._program = program_of(action) if blocks[-1][0] in ("python", "py") else None
        done = not blocks or self.turns >= self.max_turns
        reward = self._score(action) if done else 0.0
        return BaseTextEnvStepOutput(
            observations=[] if done else [{"role": "user", "content": said}],
            reward=reward,
            done=done,
            metadata=dict(self._metrics),
        )

    def _run(self, language: str, text: str) -> str:
        self._metrics["rollbox_actions"] += 1
        if language in ("python", "py"):
            result = self.sandbox.exec(["python3", "-c", text], timeout=self._timeout, text=True)
            said = result.stdout + result.stderr
        else:
            result = self.sandbox.exec(one_stream(text), timeout=self._timeout, text=True)
            said = result.stdout
        limit = ended_by(result)
        self._metrics["rollbox_timeouts"] += limit == "TimeoutExpired"
        self._metrics["rollbox_out_of_memory"] += limit == "OutOfMemory"
        return (said + ending_of(result)) or "[no output]"

    def _score(self, action: str) -> float:
        if self._reward is not None and self._outputs is not None:
            grade = self.sandbox.grade(
                self._reward_files, self._reward, outputs=self._outputs, timeout=self._timeout
            )
            return float(grade.ok)
        if self._reward is not None:
            result = self.sandbox.exec(self._reward, timeout=self._timeout)
            return float(status_of(result.check() if result.error else result) == 0)
        if self._cases is None:
            return 0.0
        program = program_of(action) or self._program
        (score,) = score_programs([program], [cases_of(_plain(self._cases))], **self._options)
        if score.value is None:
            raise RollboxError(f"rollbox failed, so there is no score: {score.error}", stage="run")
        return score.value

    def get_metrics(self) -> dict[str, Any]:
        """How many actions there were, and how many ended at a limit."""
        return dict(self._metrics)

    def close(self) -> None:
        """Ends the sandbox. May be called twice."""
        box, self._box = self._box, None
        if box is not None:
            try:
                box.close()
            except RollboxError as problem:
                _log.warning("the sandbox was lost: %s", problem)
