# SPDX-License-Identifier: Apache-2.0
"""rollbox.integrations.verl and verl_agent with verl itself, torch and Ray's packages included."""

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

if importlib.util.find_spec("verl") is None or importlib.util.find_spec("torch") is None:
    pytest.skip("needs verl: its loops are classes of its own (make integrations)", allow_module_level=True)

os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

import numpy  # noqa: E402
import rollbox  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from rollbox.integrations import verl as adapter  # noqa: E402
from rollbox.integrations.verl_agent import RollboxAgentLoop, RollboxRewardManager  # noqa: E402
from verl import DataProto  # noqa: E402
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput  # noqa: E402
from verl.experimental.agent_loop.tool_agent_loop import AgentState, FunctionCall  # noqa: E402
from verl.tools.tool_registry import load_all_tools  # noqa: E402
from verl.trainer.ppo.reward import get_custom_reward_fn, load_reward_manager  # noqa: E402

# The frameworks alone take long to import on a loaded machine.
pytestmark = pytest.mark.timeout_s(600)

POLICY = {"max_memory": "128M"}
RIGHT = "```python\nprint(int(input()) * 2)\n```"
CASES = json.dumps({"inputs": ["1\n", "2\n"], "outputs": ["2", "4"]})


class ScriptedLoop(RollboxAgentLoop):
    """The loop with a script in the place of the model and its server."""

    script: list = []

    async def _handle_generating_state(self, data, sampling_params, ignore_termination=False):
        if not self.script:
            return AgentState.TERMINATED
        data.tool_calls = [FunctionCall(name="run_command", arguments=json.dumps({"command": self.script.pop(0)}))]
        return AgentState.PROCESSING_TOOLS

    async def _handle_processing_tools_state(self, data):
        for call in data.tool_calls:
            response, _, _ = await self._call_tool(call, {}, data)
            self.said.append(response.text)
            data.response_mask += [1, 1]
        return AgentState.GENERATING

    async def run(self, sampling_params, priority=0, **kwargs):
        self.said = []
        return await super().run(sampling_params, priority, **kwargs)

    async def process_multi_modal_info(self, messages):
        return {}

    def _get_mm_processor_kwargs(self, audios):
        return None

    async def ct_build_initial_tokens(self, *_, **__):
        return [7]

    def build_sglang_video_payload(self, *_):
        return None

    def _assert_mm_supported(self, _):
        pass


def loop(tmp_path, **config):
    path = tmp_path / "tools.yaml"
    entry = {
        "class_name": "rollbox.integrations.verl.RollboxTool",
        "config": {"type": "native", "policy": POLICY, **config},
    }
    path.write_text(yaml.safe_dump({"tools": [entry]}))
    tools = load_all_tools(str(path), None)
    made = object.__new__(ScriptedLoop)
    made.tools = {tool.name: tool for tool in tools}
    made.tool_schemas = []
    made.max_tool_response_length, made.tool_response_truncate_side = 4096, "middle"
    made.rollout_config = SimpleNamespace(full_determinism=False)
    made.response_length = 100
    return made


def run(made, *script):
    made.script = list(script)
    return asyncio.run(made.run({}, raw_prompt=[{"role": "user", "content": "go"}]))


def test_a_rollout_keeps_its_sandbox_and_ends_it(tmp_path):
    made = loop(tmp_path)
    output = run(made, "echo hello > f", "cat f")
    assert isinstance(output, AgentLoopOutput) and made.said == ["[no output]", "hello\n"]
    assert output.response_mask == [1, 1, 1, 1]
    assert len(made.tools["run_command"].rollouts) == 0
    run(made, "cat f")
    assert "No such file" in made.said[0]


def test_a_rollout_that_lost_its_sandbox_is_masked(tmp_path):
    made = loop(tmp_path, idle=601)
    rollouts = made.tools["run_command"].rollouts
    with rollbox.Engine() as engine:
        rollouts._source.engine = engine
        kill = made._call_tool
        calls = []

        async def call(*arguments):
            if calls:
                os.kill(engine.pid, signal.SIGKILL)
            calls.append(1)
            return await kill(*arguments)

        made._call_tool = call
        output = run(made, "echo x", "echo y")
    assert output.extra_fields["rollbox_failure"].startswith(("EngineLost", "NotFound"))
    assert output.response_mask == [0, 0, 0, 0]


class Tokenizer:
    def decode(self, ids, skip_special_tokens=True):
        return RIGHT if int(ids[0]) else "no program"


def rewards(**rollbox_options):
    return OmegaConf.create(
        {
            "reward": {
                "custom_reward_function": {"path": None, "name": None},
                "reward_manager": {
                    "source": "importlib",
                    "name": "RollboxRewardManager",
                    "module": {"path": "pkg://rollbox.integrations.verl_agent"},
                },
                "sandbox_fusion": None,
                "rollbox": rollbox_options,
            }
        }
    )


def batch(right, **fields):
    non_tensors = {
        "data_source": ["mine"],
        "reward_model": [{"ground_truth": CASES}],
        "extra_info": [{}],
        "tool_extra_fields": [fields],
    }
    tensors = {
        "responses": torch.tensor([[int(right), 5]]),
        "prompts": torch.tensor([[1]]),
        "attention_mask": torch.tensor([[1, 1, 1]]),
    }
    return DataProto.from_dict(tensors=tensors, non_tensors={
        key: numpy.array(value, dtype=object) for key, value in non_tensors.items()
    })


def scored(config, data):
    async def main():
        manager = load_reward_manager(config, Tokenizer())
        assert isinstance(manager, RollboxRewardManager)
        manager.loop = asyncio.get_running_loop()
        return await manager.run_single(data)

    return asyncio.run(main())


def test_the_reward_manager_scores_programs():
    found = scored(rewards(policy=POLICY), batch(True))
    assert found["reward_score"] == 1.0 and found["reward_extra_info"]["rollbox_failed"] == 0.0
    assert scored(rewards(policy=POLICY), batch(False))["reward_score"] == 0.0


def test_the_reward_manager_does_not_score_a_lost_sandbox():
    lost = {"rollbox_failure": "EngineLost: gone"}
    with pytest.raises(RuntimeError, match="EngineLost: gone"):
        scored(rewards(), batch(True, **lost))
    found = scored(rewards(failure_score=0.25), batch(True, **lost))
    assert found == {"reward_score": 0.25, "reward_extra_info": {"score": 0.25, "rollbox_failed": 1.0}}


def test_the_reward_function_by_its_path():
    config = OmegaConf.create(
        {
            "reward": {
                "custom_reward_function": {
                    "path": "pkg://rollbox.integrations.verl",
                    "name": "compute_score",
                    "reward_kwargs": {"policy": POLICY},
                }
            }
        }
    )
    function = get_custom_reward_fn(config)
    answer = function(data_source="x", solution_str=RIGHT, ground_truth=CASES, extra_info={})
    assert answer["score"] == 1.0 and adapter.compute_score is not None


@pytest.mark.timeout_s(1800)
def test_two_steps_of_its_trainer_learn_from_the_rewards(tmp_path):
    """Its Ray workers, agent loops, tools, rewards and updates are all verl's, on the CPU."""
    done = subprocess.run(
        [sys.executable, "-B", os.path.join(os.path.dirname(__file__), "verl_training.py"), tmp_path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"metrics"')))
    steps = [row["data"] for row in told["metrics"]]
    # In each group of two answers, one passes both cases and one passes one.
    assert [step["critic/score/mean"] for step in steps] == [0.75, 0.75]
    assert all(step["actor/grad_norm"] > 0 and step["num_turns/mean"] == 4 for step in steps)
    assert len(set(told["weights"])) == 3, "the updated weights reach the rollout server"
