# SPDX-License-Identifier: Apache-2.0
"""rollbox.integrations.harbor with Harbor itself: whole trials, and each call of an environment."""

import asyncio
import importlib.util
import logging
import os
import shutil
import subprocess
import sys

import pytest
from built_images import Builds
from harness import BUILD, TREE

if importlib.util.find_spec("harbor") is None:
    pytest.skip(
        "needs harbor: its environments are classes of its own (make integrations)",
        allow_module_level=True,
    )
if os.geteuid() != 0:
    pytest.skip("needs root: it builds images as root", allow_module_level=True)
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its import asks the network otherwise
os.environ["HARBOR_TELEMETRY"] = "off"

import rollbox  # noqa: E402
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy  # noqa: E402
from harbor.models.trial.paths import TrialPaths  # noqa: E402
from rollbox.integrations.harbor import CommandTimeout, RollboxEnvironment  # noqa: E402


@pytest.fixture(scope="module")
def builds():
    made = Builds()
    before = os.environ.get("ROLLBOX_STORE")
    os.environ["ROLLBOX_STORE"] = str(made.store.path)
    yield made
    if before is None:
        del os.environ["ROLLBOX_STORE"]
    else:
        os.environ["ROLLBOX_STORE"] = before


@pytest.fixture
def engine(builds):
    with rollbox.Engine() as made:
        yield made


@pytest.fixture
def environment(engine, tmp_path):
    """Makes environments of a task with a small Dockerfile."""
    context = tmp_path / "environment"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM base\nRUN mkdir -p /work\nWORKDIR /work\n")
    trials = TrialPaths(tmp_path / "trial")
    trials.mkdir()

    def make(config=None, network=None, phases=None, **kwargs):
        mounts = [
            {"type": "bind", "source": "/nowhere", "target": f"/logs/{name}"}
            for name in ("agent", "verifier", "artifacts")
        ]
        return RollboxEnvironment(
            environment_dir=context,
            environment_name="org/Small Task",
            session_id="small__env",
            trial_paths=trials,
            task_env_config=EnvironmentConfig(**(config or {})),
            logger=logging.getLogger("test"),
            network_policy=network,
            phase_network_policies=phases,
            auto_mounts=mounts,
            **{"engine": engine, **kwargs},
        )

    return make


def started(environment, check, **options):
    async def main():
        made = environment(**options)
        await made.start(False)
        try:
            await check(made)
        finally:
            await made.stop(True)

    asyncio.run(main())


def test_oracle_trial_has_reward_1(builds, tmp_path):
    program = TREE / "examples/integrations/harbor_oracle.py"
    done = subprocess.run(
        [sys.executable, str(program), "--jobs", str(tmp_path / "jobs")],
        capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["rewards: [1.0]"]), done


def test_wrong_solution_has_reward_0_and_a_missing_image_is_an_error(builds, tmp_path):
    program = TREE / "examples/integrations/harbor_oracle.py"
    task = tmp_path / "task"
    shutil.copytree(TREE / "examples/web_task", task)
    (task / "solution/solve.sh").write_text("#!/bin/sh\ntrue\n")
    for base, answer in (("base", "rewards: [0.0]"), ("no-such-image", "no-such-image")):
        words = [sys.executable, str(program), "--task", str(task), "--base", base]
        done = subprocess.run(
            [*words, "--jobs", str(tmp_path / base)],
            capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 1 and answer in done.stdout.splitlines()[-1], done


def test_reward_files_that_the_agent_plants_give_no_reward(builds, tmp_path):
    """Files are removed before the verifier runs; a directory in their place is an exception."""
    program = TREE / "examples/integrations/harbor_oracle.py"
    task = tmp_path / "task"
    shutil.copytree(TREE / "examples/web_task", task)
    plant = "#!/bin/sh\ncd /logs/verifier; echo 1 >reward.txt; echo '{\"reward\": 1}' >%s/reward.json\n"
    for place, answer in ((".", "rewards: [0.0]"), ("reward.json", "")):
        text = plant % place
        if place != ".":
            text = text.replace("; echo '", "; mkdir reward.json; echo '")
        (task / "solution/solve.sh").write_text(text)
        words = [sys.executable, str(program), "--task", str(task)]
        done = subprocess.run(
            [*words, "--jobs", str(tmp_path / place.replace(".", "_"))],
            capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 1 and answer in done.stdout and "1.0]" not in done.stdout, done


def test_commands_users_and_directories(environment):
    async def check(made):
        result = await made.exec("pwd; id -u; echo err >&2; exit 3")
        assert (result.stdout, result.stderr, result.return_code) == ("/work\n0\n", "err\n", 3)
        assert (await made.exec("id -u", user="alice")).stdout == "1000\n"
        with made.with_default_user("alice"):
            assert (await made.exec("id -u")).stdout == "1000\n"
            assert (await made.exec("id -u", user="root")).stdout == "0\n"
        assert (await made.exec("echo $A $B", env={"B": "b"})).stdout == "a b\n"
        assert (await made.exec("pwd", cwd="/tmp")).stdout == "/tmp\n"
        assert (await made.exec("kill -9 $$")).return_code == 137
        assert (await made.exec("touch /logs/agent/x", user="alice")).return_code == 0
        await made.exec("sleep 1000 & echo $! >/tmp/pid")
        assert (await made.exec("kill -0 $(cat /tmp/pid)")).return_code == 0
        assert await made.is_dir("/work") and not await made.is_file("/work")

    started(environment, check, persistent_env={"A": "a"})


def test_time_out_is_an_error_with_the_output(environment):
    async def check(made):
        with pytest.raises(CommandTimeout, match="(?s)timed out after 1 seconds.*begun") as caught:
            await made.exec("echo begun; sleep 100", timeout_sec=1)
        assert not isinstance(caught.value, TimeoutError), "Harbor would end the agent's phase"
        assert (await made.exec("echo alive")).stdout == "alive\n"

    started(environment, check)


def test_memory_kill_has_status_137_and_a_remark(environment):
    async def check(made):
        result = await made.exec("x=$(cat /dev/zero | tr '\\0' a)")
        assert result.return_code == 137 and "out of memory" in result.stderr

    started(environment, check, policy={"max_memory": "64M"})


def test_lost_engine_is_an_error(environment, engine):
    async def main():
        made = environment()
        await made.start(False)
        os.kill(engine.pid, 9)
        with pytest.raises(rollbox.EngineLost):
            await made.exec("true")
        await made.stop(True)

    asyncio.run(main())


def test_files_come_and_go(environment, tmp_path):
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "f").write_text("file")
    (tree / "sub/g").write_text("deep")

    async def check(made):
        await made.upload_file(tree / "f", "/new/place/f")
        await made.upload_dir(tree, "/tests")
        await made.upload_dir(str(tree), "/tests")
        assert (await made.exec("cat /new/place/f /tests/f /tests/sub/g")).stdout == "filefiledeep"
        await made.download_file("/tests/sub/g", tmp_path / "back/deep/g")
        assert (tmp_path / "back/deep/g").read_text() == "deep"
        (tmp_path / "whole").mkdir()
        (tmp_path / "whole/f").write_text("old")
        await made.download_dir("/tests", tmp_path / "whole")
        assert (tmp_path / "whole/f").read_text() == "file"
        assert (tmp_path / "whole/sub/g").read_text() == "deep"

    started(environment, check)


def test_output_reaches_the_callback_while_the_command_runs(environment):
    async def check(made):
        seen = []

        async def callback(text, stream):
            seen.append((stream, text))

        with made.scoped_output_callback(callback):
            result = await made.exec("echo out; echo err >&2; exit 5")
        assert sorted(seen) == [("stderr", "err\n"), ("stdout", "out\n")]
        assert (result.stdout, result.stderr, result.return_code) == ("out\n", "err\n", 5)

    started(environment, check)


def test_network_policy_can_change(environment):
    allowed = NetworkPolicy(
        network_mode=NetworkMode.ALLOWLIST,
        allowed_hosts=["example.org", "*.example.com", "192.0.2.1", "2001:db8::1", "2001:db8::/32"],
    )
    nothing = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)

    async def check(made):
        assert made.sandbox.policy.net == "allow"
        await made.set_network_policy(nothing)
        await made.set_network_policy(allowed)
        await made.set_network_policy(NetworkPolicy())

    started(environment, check, network=allowed, phases=[allowed, nothing])

    async def alone(made):
        assert made.sandbox.policy.net == "loopback"

    started(environment, alone, network=nothing)


def test_limits_of_the_task_become_the_policy(environment):
    async def check(made):
        policy = made.sandbox.policy
        assert (policy.max_cpu, policy.max_memory) == (0.5, 100 << 20)

    started(environment, check, config={"cpus": 0.5, "memory_mb": 100})
    with pytest.raises(RuntimeError, match="GPU"):
        environment(config={"gpus": 1})


def test_setup_runs_once_and_environments_are_forks(environment):
    async def main():
        made = [environment(setup="echo once >>/setup; sleep 1000 &") for _ in range(3)]
        for one in made:
            await one.start(False)
        for number, one in enumerate(made):
            assert (
                await one.exec(f"echo {number} >>/setup; cat /setup")
            ).stdout == f"once\n{number}\n"
            await one.stop(True)

    asyncio.run(main())


def test_image_of_the_store_replaces_the_build(environment):
    async def check(made):
        assert made.sandbox.policy.image == "base"

    started(environment, check, images={"*": "base"})
    with pytest.raises(rollbox.RollboxError):
        started(environment, check, config={"docker_image": "127.0.0.1:1/none:1"})


def test_labels_are_in_the_trajectory(environment, tmp_path):
    async def check(made):
        await made.exec("true")

    record = tmp_path / "run.jsonl"
    started(environment, check, labels={"run": "17"}, record=str(record))
    assert '"run": "17"' in record.read_text() or '"run":"17"' in record.read_text()


def test_remote_engine_runs_an_image_of_its_store_and_builds_nothing(builds, environment, tmp_path):
    address = tmp_path / "serve"
    server = subprocess.Popen(
        [str(BUILD / "rollbox"), "serve", "--listen", str(address)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        while server.stdout.readline() not in (b"ready\n", b""):
            pass

        async def check(made):
            assert (await made.exec("id -u; exit 3", user="alice")).stdout == "1000\n"
            await made.upload_file(__file__, "/tmp/test")
            assert (await made.exec("test -s /tmp/test")).return_code == 0

        remote = {"engine": f"unix:{address}"}
        started(environment, check, images={"*": "base"}, **remote)
        with pytest.raises(rollbox.FeatureMissing, match="rollbox image build"):
            started(environment, check, **remote)
    finally:
        server.terminate()
        server.wait(60)
        server.stdout.close()
