# SPDX-License-Identifier: Apache-2.0
"""rollbox.integrations.skyrl with SkyRL-Gym itself: episodes of a scripted policy."""

import importlib.util
import json
import os
import signal

import pytest
from adapters import own_server

if importlib.util.find_spec("skyrl_gym") is None:
    pytest.skip(
        "needs skyrl_gym: its environments are classes of its own (make integrations)",
        allow_module_level=True,
    )

import rollbox  # noqa: E402
import skyrl_gym  # noqa: E402
from rollbox.integrations import skyrl  # noqa: E402

# The frameworks alone take long to import on a loaded machine.
pytestmark = pytest.mark.timeout_s(600)

POLICY = {"max_memory": "128M"}
CASES = {"inputs": ["1\n", "2\n"], "outputs": ["2", "4"]}
RIGHT = "```python\nprint(int(input()) * 2)\n```"
PROMPT = [{"role": "user", "content": "Solve it."}]

skyrl.register()


def made(config=None, **extras):
    config = {"policy": POLICY, **(config or {})}
    return skyrl_gym.make("rollbox", env_config=config, extras={"max_turns": 4, **extras})


def test_an_episode_keeps_its_sandbox_and_ends_without_a_block():
    with made({"reward": "test -f /tmp/f"}) as env:
        prompt, info = env.init(PROMPT)
        assert prompt == PROMPT and info["sandbox"]
        step = env.step("```bash\necho hello > /tmp/f; false\n```")
        assert step["observations"] == [{"role": "user", "content": "\n[status 1]"}]
        assert not step["done"]
        assert env.step("```bash\ncat /tmp/f\n```")["observations"][0]["content"] == "hello\n"
        last = env.step("I am done.")
        assert last["done"] and last["reward"] == 1.0 and last["observations"] == []
        env.init(PROMPT)
        assert env.step("Nothing.")["reward"] == 0.0


def test_a_reward_of_outputs_ignores_what_the_agent_planted():
    judged = {
        "reward": "sh /tmp/judge && cat /tmp/repo/answer",
        "reward_files": {"/tmp/judge": "! [ -e /tmp/planted ] && grep -qx 42 /tmp/repo/answer"},
        "outputs": ["/tmp/repo"],
    }
    plant = "mkdir -p /tmp/repo; touch /tmp/planted; echo exit 0 >/tmp/judge; (while :; do sleep 1; done) &"
    for answer, reward in (("41", 0.0), ("42", 1.0)):
        with made(judged) as env:
            env.init(PROMPT)
            env.step(f"```bash\n{plant}\necho {answer} >/tmp/repo/answer\n```")
            assert env.step("Done.")["reward"] == reward


def test_the_last_program_is_scored_by_cases():
    with made(reward_spec={"ground_truth": json.dumps(CASES)}) as env:
        env.init(PROMPT)
        assert env.step(RIGHT.replace("* 2", "* 3"))["done"] is False
        assert env.step(RIGHT)["done"] is False
        assert env.step("That is it.")["reward"] == 1.0
        env.init(PROMPT)
        assert env.step("No program.")["reward"] == 0.0


def test_observation_names_the_limit_of_an_action():
    with made({"timeout": 1}, max_turns=2) as env:
        env.init(PROMPT)
        assert "[killed: time-out]" in env.step("```sh\nsleep 60\n```")["observations"][0]["content"]
        last = env.step("```python\nx = b'x' * (1 << 30)\n```")
        assert last["done"]
        assert env.get_metrics() == {
            "rollbox_timeouts": 1,
            "rollbox_out_of_memory": last["metadata"]["rollbox_out_of_memory"],
            "rollbox_actions": 2,
        }


def test_a_lost_engine_is_no_reward(tmp_path):
    with rollbox.Engine() as engine:
        env = made({"engine": engine, "reward": "true", "labels": {"group": 3}})
        env.init(PROMPT)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(rollbox.RollboxError):
            env.step("Done.")
        env.close()
        env.close()


def test_an_episode_of_a_server():
    with own_server() as url:
        with made({"engine": url, "labels": {"group": 3}, "reward": "test -f /tmp/f"}) as env:
            env.init(PROMPT)
            (row,) = rollbox.Engine(url).sandboxes()
            assert row["labels"] == {"group": "3"}
            env.step("```bash\ntouch /tmp/f\n```")
            assert env.step("Done.")["reward"] == 1.0
