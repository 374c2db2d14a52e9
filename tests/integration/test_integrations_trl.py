# SPDX-License-Identifier: Apache-2.0
"""The adapter to TRL, by its trainer's contract: TRL itself needs torch (5 GB)."""

import inspect
import pickle
import typing

import pytest
from adapters import example, own_engine, own_server
from rollbox import EngineLost, InvalidArgument, NotFound
from rollbox.integrations.trl import CodeReward, EnvironmentFactory

POLICY = {"max_memory": "128M"}
DOUBLE = "```python\nprint(int(input()) * 2)\n```"
CASES = {"inputs": ["1\n", "2\n"], "outputs": ["2", "4\n"]}


def prepare(box, row):
    box.write_file("/tmp/task", row["task"])
    return f"The file is /tmp/task ({row['task']})."


def tools(environment):
    """The methods that the trainer takes as tools."""
    return {
        name: getattr(environment, name)
        for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction)
        if name not in ("reset", "get_reward") and not name.startswith("_")
    }


def test_tools_have_types_and_documented_parameters():
    found = tools(EnvironmentFactory(reward="true")())
    assert set(found) == {"run_command", "read_file", "write_file"}
    for tool in found.values():
        hints = typing.get_type_hints(tool)
        for name in inspect.signature(tool).parameters:
            assert hints[name] is str and f"{name}: " in tool.__doc__


def test_reset_goes_back_and_prepares_the_row():
    environment = EnvironmentFactory(policy=POLICY, setup="echo s >/tmp/s", on_reset=prepare)()
    assert not hasattr(environment, "get_reward")
    assert environment.reset(task="one", prompt=[]) == "The file is /tmp/task (one)."
    assert environment.run_command("cat /tmp/s /tmp/task; rm /tmp/s; touch /tmp/left") == "s\none"
    environment.reset(task="two")
    assert environment.run_command("cat /tmp/s /tmp/task; ls /tmp/left; exit 3").startswith(
        "s\ntwo"
    )
    assert environment.write_file("/tmp/w", "text") and environment.read_file("/tmp/w") == "text"
    with pytest.raises(NotFound):
        environment.read_file("/tmp/none")
    assert environment._failure is None, "a file that is missing is no failure of rollbox"


def test_tool_tells_how_a_command_ended():
    environment = EnvironmentFactory(policy=POLICY, timeout=0.5, max_text=100)()
    environment.reset()
    assert environment.run_command("exit 3") == "\n[status 3]"
    assert environment.run_command("echo begun; sleep 100") == "begun\n\n[killed: time-out]\n"
    assert "900 characters left out" in environment.run_command("printf %01000d 0")


def test_reward_is_graded_in_a_clean_sandbox():
    factory = EnvironmentFactory(
        policy=POLICY,
        on_reset=prepare,
        reward="sh /tmp/check",
        reward_files={"/tmp/check": "grep -q right /tmp/answer"},
        outputs=["/tmp/answer"],
    )
    environment = factory()
    environment.reset(task="t")
    environment.run_command("echo exit 0 >/tmp/check; echo wrong >/tmp/answer")
    assert environment.get_reward() == 0.0
    environment.run_command("echo right >/tmp/answer")
    assert environment.get_reward() == 1.0
    environment.reset(task="t")
    assert environment.get_reward() == 0.0, "the answer of the former rollout is gone"


def test_reward_of_a_function_gets_the_row():
    factory = EnvironmentFactory(policy=POLICY, reward=lambda box, row: float(row["wanted"]))
    environment = factory()
    environment.reset(wanted="0.25")
    assert environment.get_reward() == 0.25


def test_lost_engine_gives_no_reward_and_the_next_reset_another_sandbox(caplog):
    with own_engine() as (socket, kill):
        factory = EnvironmentFactory(
            policy=POLICY, reward="true", engine=socket, labels={"episode": 7}
        )
        environment = pickle.loads(pickle.dumps(factory))()
        environment.reset()
        assert environment.run_command("echo up") == "up\n"
        kill()
        with pytest.raises(EngineLost):
            environment.run_command("echo up")
        assert environment.get_reward() is None and "'episode': '7'" in caplog.text
        with pytest.raises(OSError):
            environment.reset()
    local = EnvironmentFactory(policy=POLICY, reward=lambda box, row: 1.0)()
    local.reset()
    local._box.close()
    local.reset()
    assert local.run_command("echo again") == "again\n" and local.get_reward() == 1.0


def test_environment_of_a_server():
    with own_server() as address:
        environment = EnvironmentFactory(
            policy=POLICY, engine=address, reward="test -e /tmp/a", outputs=["/tmp/a"]
        )()
        environment.reset()
        environment.run_command("touch /tmp/a")
        assert environment.get_reward() == 1.0
        environment.reset()
        assert environment.get_reward() == 0.0
        assert CodeReward(engine=address)([DOUBLE], cases=[CASES]) == [1.0]


def test_code_reward_scores_the_last_block():
    reward = pickle.loads(pickle.dumps(CodeReward(policy=POLICY, cases="tests")))
    completions = [
        DOUBLE,
        [{"role": "assistant", "content": "```\nnonsense\n```\nrather\n" + DOUBLE}],
        "```python\nprint(2)\n```",
        "no program",
        "```python\nimport os; os._exit(0)\n```",
        "```python\nraise SystemExit(1)\n```",
    ]
    tests = [CASES, '{"inputs": ["3"], "outputs": ["6"]}', *[CASES] * 4]
    assert reward(completions, tests=tests, prompts=[""] * 6) == [1.0, 1.0, 0.5, 0.0, 0.0, 0.0]
    strict = CodeReward(policy=POLICY, all_or_nothing=True)
    listed = [{"input": "1", "output": "2"}, {"input": "5", "output": "5"}]
    assert strict([DOUBLE], cases=[listed]) == [0.0]
    assert CodeReward(timeout=0.5)(["```\nwhile 1: pass\n```"], cases=[listed]) == [0.0]
    with pytest.raises(InvalidArgument):
        strict([DOUBLE])
    with pytest.raises(InvalidArgument):
        strict([DOUBLE], cases=[{"inputs": [], "outputs": []}])


def test_code_reward_of_a_lost_engine_is_none(caplog):
    with own_engine() as (socket, kill):
        reward = CodeReward(engine=socket)
        assert reward([DOUBLE], cases=[CASES]) == [1.0]
        kill()
        assert reward([DOUBLE], cases=[CASES]) == [None]
        assert reward([DOUBLE, "no program"], cases=[CASES] * 2) == [None, 0.0]
        assert "rollbox failed" in caplog.text


def test_example_trains_on_two_rollouts():
    assert "rewards [1.0, 0.0]" in example("trl_environment.py")
