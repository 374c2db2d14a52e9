# SPDX-License-Identifier: Apache-2.0
"""rollbox.integrations.trl with TRL's own trainer, on a tiny model with random weights."""

import importlib.util
import os
import sys

import pytest

if importlib.util.find_spec("trl") is None or importlib.util.find_spec("torch") is None:
    pytest.skip("needs trl: its trainer does the steps (make integrations)", allow_module_level=True)

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "WANDB_DISABLED": "true",
}
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../examples/tutorials"))

import grpo_code_reward as tutorial  # noqa: E402

# The frameworks alone take long to import on a loaded machine.
pytestmark = pytest.mark.timeout_s(600)


def test_the_trainer_learns_from_rewards_of_programs(tmp_path):
    history = tutorial.train(steps=2, output=str(tmp_path))
    assert len(history) == 2 and all("reward" in row for row in history), history


def test_a_ray_cluster_runs_the_programs_of_the_rewards(tmp_path):
    with tutorial.ray_pool() as pool:
        reward = tutorial.code_reward(pool)
        tests = [{"inputs": ["1", "2"], "outputs": ["2", "4"]}] * 3
        programs = ["print(int(input()) * 2)", "print(2)", "import sys; sys.exit(1)"]
        answers = [[{"role": "assistant", "content": f"```python\n{one}\n```"}] for one in programs]
        assert reward(answers, tests=tests) == [1.0, 0.5, 0.0]
        history = tutorial.train(steps=1, output=str(tmp_path), pool=pool)
    assert len(history) == 1 and "reward" in history[0], history


def test_the_trainer_drives_pooled_environments(tmp_path):
    history = tutorial.train_with_tools(steps=1, output=str(tmp_path))
    assert len(history) == 1 and "reward" in history[0], history
