# SPDX-License-Identifier: Apache-2.0
"""The adapter to verl, with the tool classes, schemas and registry of the real package.

`import verl` itself needs torch and Ray (6 GB), so its packages are entered without running them.
"""

import asyncio
import importlib.util
import pickle
import sys
import types

import pytest
from adapters import example, needs, own_engine, own_server
from rollbox import EngineLost, InvalidArgument, NotFound
from rollbox.integrations import verl as adapter

POLICY = {"max_memory": "128M"}
CASES = {"inputs": ["1\n", "2\n"], "outputs": ["2", "4"]}
RIGHT = "```python\nprint(int(input()) * 2)\n```"


@pytest.fixture
def tools(monkeypatch):
    """verl.tools.tool_registry, whose load_all_tools makes tools of configurations."""
    for package in ("verl", "transformers", "omegaconf"):
        needs(package, "its tools are made by it")
    (place,) = importlib.util.find_spec("verl").submodule_search_locations
    for name in ("verl", "verl.tools", "verl.utils"):
        package = types.ModuleType(name)
        package.__path__ = [place + name[4:].replace(".", "/")]
        monkeypatch.setitem(sys.modules, name, package)
    trace = types.ModuleType("verl.utils.rollout_trace")
    trace.rollout_trace_op = lambda function: function
    monkeypatch.setitem(sys.modules, trace.__name__, trace)
    # The module as verl itself loads it, below the class that is there now.
    monkeypatch.delitem(sys.modules, adapter.__name__)
    yield importlib.import_module("verl.tools.tool_registry")
    for name in [name for name in sys.modules if name.startswith("verl.")]:
        monkeypatch.delitem(sys.modules, name)


def load(tools, tmp_path, *classes, **config):
    import yaml

    path = tmp_path / "tools.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "tools": [
                    {
                        "class_name": f"rollbox.integrations.verl.{name}",
                        "config": {"type": "native", "policy": POLICY, **config},
                    }
                    for name in classes
                ]
            }
        )
    )
    return tools.load_all_tools(str(path), None)


def rollout(name):
    return types.SimpleNamespace(request_id=name, extra_fields={})


async def call(tool, agent, **parameters):
    """One call, as ToolAgentLoop does it."""
    instance, _ = await tool.create(create_kwargs={})
    try:
        return await tool.execute(instance, parameters, agent_data=agent)
    finally:
        await tool.release(instance)


def test_tool_keeps_its_state_in_one_rollout_only(tools, tmp_path):
    shell, python = load(tools, tmp_path, "RollboxTool", "RollboxPythonTool")
    assert isinstance(shell, importlib.import_module("verl.tools.base_tool").BaseTool)
    assert shell.tool_schema.model_dump(exclude_none=True)["function"]["name"] == "run_command"
    a, b = rollout("a"), rollout("b")

    async def main():
        response, reward, metrics = await call(shell, a, command="echo kept >/tmp/f; exit 3")
        assert response.text == "\n[status 3]" and reward == 0.0
        assert metrics["rollbox_exit_status"] == 3
        assert (await call(python, a, code="print(open('/tmp/f').read())"))[0].text == "kept\n\n"
        assert "No such file" in (await call(shell, b, command="cat /tmp/f"))[0].text
        found = await asyncio.gather(
            *[call(shell, rollout(f"p{i}"), command="id") for i in range(8)]
        )
        assert all("uid" in response.text for response, _, _ in found)
        with pytest.raises(InvalidArgument, match="command"):
            await call(shell, a, nonsense=1)
        await call(shell, None, command="true")

    asyncio.run(main())
    assert len(shell.rollouts) == 10, "a call without a rollout leaves nothing"
    for name in ("a", "b", *[f"p{i}" for i in range(8)]):
        shell.rollouts.end(name)
    assert len(shell.rollouts) == 0


def test_time_out_is_a_metric_and_the_output_stays(tools, tmp_path):
    (tool,) = load(tools, tmp_path, "RollboxTool", timeout=0.5)
    response, _, metrics = asyncio.run(call(tool, rollout("t"), command="echo begun; sleep 100"))
    assert response.text == "begun\n\n[killed: time-out]\n" and metrics["rollbox_timeout"] == 1
    tool.rollouts.end("t")


def test_tool_of_a_lost_engine_raises_and_marks_the_rollout(tools, tmp_path):
    with own_engine() as (socket, kill):
        (tool,) = load(tools, tmp_path, "RollboxTool", engine=socket)
        agent = rollout("x")
        asyncio.run(call(tool, agent, command="true"))
        kill()
        with pytest.raises(EngineLost):
            asyncio.run(call(tool, agent, command="true"))
        assert agent.extra_fields["rollbox_failure"].startswith("EngineLost")
        tool.rollouts.end("x")


def test_tool_of_a_server(tools, tmp_path):
    with own_server() as address:
        (tool,) = load(tools, tmp_path, "RollboxTool", engine=address, setup="echo s >/tmp/s")
        response, _, _ = asyncio.run(call(tool, rollout("r"), command="cat /tmp/s"))
        assert response.text == "s\n"
        tool.rollouts.end("r")


def test_function_tool_runs_programs(tools, tmp_path):
    path = tmp_path / "functions.py"
    path.write_text(
        "from rollbox.integrations.verl import function_tools\n"
        "function_tools(policy={'max_memory': '128M'})\n"
    )
    (tool,) = tools.load_all_tools(None, str(path))
    assert tool.name == "run_code"
    assert asyncio.run(tool.call({"code": "print(5)"})) == "5\n"
    assert "ZeroDivisionError" in asyncio.run(tool.call({"code": "1 / 0"}))


def test_rollout_without_calls_ends_and_is_not_begun_again():
    rollouts = adapter.Rollouts(adapter.Source(policy=POLICY), idle=0.2)
    assert rollouts.run("one", "echo up", 60, None).stdout == "up\n"
    reaper = rollouts._reaper
    if reaper is not None:
        reaper.join(100)
    assert len(rollouts) == 0
    with pytest.raises(NotFound, match="idle"):
        rollouts.run("one", "echo up", 60, None)
    assert rollouts.run("two", "echo up", 60, None).stdout == "up\n"
    rollouts.end("two")


def test_config_with_unknown_key_is_refused():
    with pytest.raises(InvalidArgument, match="tiemout"):
        adapter.RollboxTool({"type": "native", "tiemout": 3}, object())


def test_score_is_the_share_of_cases():
    score = pickle.loads(pickle.dumps(adapter.compute_score))
    found = score("set", RIGHT, CASES, {}, policy=POLICY)
    assert found == {"score": 1.0, "passed": 2.0, "total": 2.0, "rollbox_failed": 0.0}
    assert score("set", "```\nprint(2)\n```", CASES)["score"] == 0.5
    assert score("set", "```\nprint(2)\n```", CASES, all_or_nothing=True)["score"] == 0.0
    assert score("set", "no program", CASES, new_argument=1)["score"] == 0.0
    with pytest.raises(InvalidArgument):
        score("set", RIGHT, "not JSON")


def test_score_of_a_lost_engine_is_no_silent_zero():
    with own_engine() as (socket, kill):
        assert adapter.compute_score("set", RIGHT, CASES, engine=socket)["score"] == 1.0
        kill()
        with pytest.raises(RuntimeError, match="rollbox failed"):
            adapter.compute_score("set", RIGHT, CASES, engine=socket)
        found = adapter.compute_score("set", RIGHT, CASES, engine=socket, failure_score=-1.0)
        assert found["score"] == -1.0 and found["rollbox_failed"] == 1.0


def test_example_scores_answers():
    assert "scores [1.0, 0.5, 0.0]" in example("verl_reward.py")
