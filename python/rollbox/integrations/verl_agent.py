# SPDX-License-Identifier: Apache-2.0
"""verl: an agent loop that ends its sandboxes, and a reward manager that knows lost ones.

    # the file that actor_rollout_ref.rollout.agent.agent_loop_config_path names
    - name: rollbox_agent
      _target_: rollbox.integrations.verl_agent.RollboxAgentLoop

    reward.reward_manager.source=importlib
    reward.reward_manager.name=RollboxRewardManager
    reward.reward_manager.module.path=pkg://rollbox.integrations.verl_agent

The tools are those of rollbox.integrations.verl. Their sandboxes belong to a rollout's request id;
with this loop they end with the rollout, and not only after `idle` seconds.
"""

from __future__ import annotations

import contextvars
import logging
from typing import Any

from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from ..aio._threads import run_in_thread
from .verl import RollboxTool, compute_score

_log = logging.getLogger(__name__)
_requests: contextvars.ContextVar[list[str]] = contextvars.ContextVar("rollbox_requests")

FAILURE = "rollbox_failure"
"""The extra field of a rollout whose sandbox was lost: the error's name and text."""


class RollboxAgentLoop(ToolAgentLoop):
    """verl's ToolAgentLoop, whose sandboxes end with the rollout, however it ends.

    A rollout that lost its sandbox has the extra field `rollbox_failure`, and a response mask of
    zeros: nothing is learned from it.
    """

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> Any:
        """Runs a rollout."""
        requests: list[str] = []
        token = _requests.set(requests)
        try:
            output = await super().run(sampling_params, priority, **kwargs)
        finally:
            _requests.reset(token)
            for tool in self.tools.values():
                if isinstance(tool, RollboxTool):
                    for request_id in requests:
                        await run_in_thread(tool.rollouts.end, request_id)
        if output.extra_fields.get(FAILURE):
            _log.warning("a rollout is masked: %s", output.extra_fields[FAILURE])
            output.response_mask = [0] * len(output.response_mask)
        return output

    async def _handle_pending_state(self, agent_data: Any, sampling_params: dict[str, Any]) -> Any:
        _requests.get([]).append(agent_data.request_id)
        return await super()._handle_pending_state(agent_data, sampling_params)


class RollboxRewardManager(NaiveRewardManager):
    """verl's naive reward manager, with rewards for programs and for lost sandboxes.

    Without a custom reward function, the score is that of rollbox.integrations.verl.compute_score.
    A rollout that lost its sandbox is not scored by it: it has `reward.rollbox.failure_score` and
    rollbox_failed 1.0 beside it, or raises RuntimeError without that key.
    """

    def __init__(
        self, config: Any, tokenizer: Any, compute_score: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(config, tokenizer, compute_score, **kwargs)
        chosen = config.reward.get("rollbox", None) or {}
        self._options = {key: chosen[key] for key in chosen}
        if not (config.reward.get("custom_reward_function", None) or {}).get("path"):
            self.compute_score = self._score
            self.is_async_reward_score = False

    def _score(self, **kwargs: Any) -> dict[str, float]:
        return compute_score(**kwargs, **self._options)

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Scores one rollout."""
        fields = data[-1:][0].non_tensor_batch.get("tool_extra_fields", None) or {}
        failure = fields.get(FAILURE)
        if not failure:
            scored: dict[str, Any] = await super().run_single(data)
            scored["reward_extra_info"].setdefault("rollbox_failed", 0.0)
            return scored
        score = self._options.get("failure_score")
        if score is None:
            raise RuntimeError(f"the rollout lost its sandbox, so there is no score: {failure}")
        return {
            "reward_score": float(score),
            "reward_extra_info": {"score": float(score), "rollbox_failed": 1.0},
        }
