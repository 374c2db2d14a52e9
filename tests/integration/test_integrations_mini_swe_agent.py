# SPDX-License-Identifier: Apache-2.0
"""The adapter to mini-swe-agent, with the real package where it is installed."""

import json

import pytest
from adapters import example, needs, own_engine, own_server
from rollbox import RollboxError
from rollbox.integrations.mini_swe_agent import CLASS, RollboxEnvironment

HOST = {"images": {"*": "host"}, "policy": {"max_memory": "128M"}}


def run(environment, command, **options):
    return environment.execute({"command": command}, **options)


def test_command_gives_merged_output_and_status():
    environment = RollboxEnvironment(**HOST, image="any", env={"A": "b"}, cwd="/tmp")
    assert run(environment, "echo $A; echo err >&2; pwd; exit 3") == {
        "output": "b\nerr\n/tmp\n",
        "returncode": 3,
        "exception_info": "",
    }
    assert run(environment, "X=1")["returncode"] == 0
    assert run(environment, "echo [$X]", cwd="/usr")["output"] == "[]\n"
    assert run(environment, "cat <<E\nlast\nE")["output"] == "last\n"
    assert run(environment, "kill -9 $$")["returncode"] == 137
    environment.cleanup()
    environment.cleanup()


def test_command_tells_its_limits_apart():
    environment = RollboxEnvironment(**HOST)
    late = run(environment, "echo begun; sleep 100", timeout=0.5)
    assert late["output"] == "begun\n" and late["returncode"] == -1
    assert late["extra"]["exception_type"] == "TimeoutExpired" and "0.5 s" in late["exception_info"]
    killed = run(environment, "exec python3 -c 'x = bytearray(1 << 30)'", timeout=60)
    assert killed["returncode"] != 0
    assert killed["returncode"] != -1 or killed["extra"]["exception_type"] == "OutOfMemory"
    assert run(environment, "x", cwd="/none")["extra"]["exception_type"] == "BadCwd"
    assert run(environment, "a\0b")["returncode"] == -1
    assert run(environment, "echo alive")["output"] == "alive\n"


def test_lost_engine_is_reported_and_then_ends_the_run():
    needs("minisweagent", "its exceptions end the run")
    from minisweagent.exceptions import InterruptAgentFlow, Submitted

    with own_engine() as (socket, kill):
        environment = RollboxEnvironment(**HOST, engine=socket)
        assert run(environment, "true")["returncode"] == 0
        kill()
        lost = run(environment, "true")
        assert lost["returncode"] == -1 and lost["extra"]["exception_type"] == "EngineLost"
        with pytest.raises(InterruptAgentFlow) as caught:
            run(environment, "true")
        assert not isinstance(caught.value, Submitted)
        (message,) = caught.value.messages
        assert message["role"] == "exit" and message["extra"]["exit_status"] == "EngineLost"


def test_setup_runs_once_and_environments_are_forks():
    setup = "echo $RANDOM$RANDOM >/tmp/once"
    found = [run(RollboxEnvironment(**HOST, setup=setup), "cat /tmp/once") for _ in range(3)]
    assert len({one["output"] for one in found}) == 1 and found[0]["returncode"] == 0


def test_labels_are_on_the_trajectory(tmp_path):
    path = tmp_path / "trajectory"
    environment = RollboxEnvironment(**HOST, labels={"episode": 7}, record=str(path))
    run(environment, "true")
    environment.cleanup()
    assert '"episode": "7"' in path.read_text() or '"episode":"7"' in path.read_text()


def test_environment_of_a_server():
    with own_server() as address:
        environment = RollboxEnvironment(**HOST, engine=address, setup="echo made >/tmp/f")
        assert run(environment, "cat /tmp/f")["output"] == "made\n"
        late = run(environment, "sleep 100", timeout=0.5)
        assert late["extra"]["exception_type"] == "TimeoutExpired"
        assert environment.serialize()["info"]["config"]["environment"]["engine"] == address
        environment.cleanup()


def test_missing_image_is_refused():
    with pytest.raises(RollboxError, match="image"):
        RollboxEnvironment(image="no-such-image")


def test_variables_of_prompts_are_the_sandbox_s(monkeypatch):
    monkeypatch.setenv("HOST_SECRET", "x")
    environment = RollboxEnvironment(**HOST, token="secret", env={"SHOWN": "y"})
    found = environment.get_template_vars(task="t")
    assert found["system"] == "Linux" and found["task"] == "t" and found["SHOWN"] == "y"
    assert all(found[name] for name in ("release", "version", "machine"))
    assert "HOST_SECRET" not in found and "token" not in found
    info = json.loads(json.dumps(environment.serialize()))["info"]["config"]
    assert info["environment_type"] == CLASS and "secret" not in json.dumps(info)


def test_agent_submits():
    needs("minisweagent", "it is its agent that runs")
    assert "Submitted" in example("mini_swe_agent_run.py")


@pytest.mark.parametrize("arguments", [[], ["--ray"]], ids=["here", "ray"])
def test_the_tutorial_rewards_repairs_alone(arguments):
    needs("minisweagent", "it is its agent that runs")
    if arguments:
        needs("ray", "the episodes are its tasks")
    said = example("../tutorials/repository_agent.py", *arguments)
    assert "repairs: Submitted, reward 1.0\ngives up: Submitted, reward 0.0\n" in said


def test_swebench_runner_gives_the_image():
    needs("minisweagent", "it is its runner")
    from minisweagent.run.benchmarks import swebench
    from rollbox.integrations.mini_swe_agent import use_in_swebench

    use_in_swebench()
    use_in_swebench()
    image = "docker.io/swebench/sweb.eval.x86_64.a_1776_b-1:latest"
    config = {"environment": {"environment_class": "rollbox", "images": {image: "host"}}}
    environment = swebench.get_sb_environment(config, {"instance_id": "a__b-1"})
    assert environment.config.image == image and "image" not in config["environment"]
    assert environment.config.labels == {"instance_id": "a__b-1"}
    with pytest.raises(RollboxError, match="image"):
        swebench.get_sb_environment(
            {"environment": {"environment_class": CLASS}}, {"instance_id": "a__b-1"}
        )
