# SPDX-License-Identifier: Apache-2.0
"""Adapters to frameworks, with the real packages where they are installed (`make integrations` installs them)."""

import asyncio
import concurrent.futures
import contextlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import pickle
import subprocess
import sys
import threading
import types
import urllib.request

import pytest

from rollbox import EngineLost, FeatureMissing, Policy, RollboxError
from rollbox.integrations import _common
from adapters import own_engine, own_server
from harness import BUILD, DEADLINE, processes, serves, until

INSPECT_EXCEPTIONS = {
    # adduser as root of the sandbox, then whoami as the new user: a sandbox has the one user of its
    # policy, and nobody may write its /etc.
    "test_exec_as_user",
}


def needs(package, why):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: {why}")


def test_importing_rollbox_imports_no_framework():
    code = (
        "import sys, rollbox, rollbox.integrations.mini_swe_agent\n"
        "import rollbox.integrations.tinker_cookbook, rollbox.integrations.trl\n"
        "frameworks = 'ares', 'rllm', 'inspect_ai', 'minisweagent', 'tinker_cookbook', 'trl', 'verl'\n"
        "print([m for m in sys.modules if m.split('.')[0] in frameworks])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_images_and_resources_become_policies():
    base = Policy(max_memory="64M")
    assert _common.policy_for(base, "python:3.12", {}).image == "python:3.12"
    assert _common.policy_for(base, "a", {"a": "host"}) == base and _common.policy_for(base, "b", {"*": "host"}) == base
    assert _common.policy_for(base, "a", {"a": "store-name", "*": "host"}).image == "store-name"
    assert _common.policy_for(base.replace(image="kept"), None, {}).image == "kept"
    made = _common.with_resources(base, cpu=2, memory_gib=4, disk_gib=None)
    assert (made.max_cpu, made.max_memory, made.max_disk) == (2, 4 << 30, None)
    with pytest.raises(FeatureMissing, match="GPU"):
        _common.with_resources(base, gpu=1)


def test_image_missing_in_the_store_is_refused():
    from rollbox.integrations.ares import ContainerFactory
    from rollbox.integrations.rllm import RollboxSandbox
    with pytest.raises(RollboxError, match="image"):
        asyncio.run(ContainerFactory.from_image(image="no-such-image").start())
    with pytest.raises(RollboxError, match="image"):
        RollboxSandbox("x", image="no-such-image")


PICKLED = """
import pickle, sys
made = pickle.loads(bytes.fromhex(sys.argv[1]))
exec(sys.argv[2])
"""


def test_pickled_factories_work_in_other_processes():
    from rollbox.integrations.tinker_cookbook import SandboxFactory
    from rollbox.integrations.trl import CodeReward, EnvironmentFactory

    answer = [{"role": "assistant", "content": "```python\nprint(5)\n```"}]
    with own_engine() as (socket, _):
        for made, use, said in (
            (EnvironmentFactory(engine=socket), "e = made(); e.reset(); print(e.run_command('echo a'))", "a\n\n"),
            (
                CodeReward(engine=socket),
                f"print(made([{answer}], cases=[[{{'input': '', 'output': '5'}}]]))",
                "[1.0]\n",
            ),
            (
                SandboxFactory(engine=socket, images={"*": "host"}),
                "print(made._open('t/environment').exec('echo b', text=True).stdout)",
                "b\n\n",
            ),
        ):
            done = subprocess.run(
                [sys.executable, "-c", PICKLED, pickle.dumps(made).hex(), use],
                capture_output=True,
                text=True,
                timeout=DEADLINE,
            )
            assert done.stdout == said, done.stderr


# inspect_ai

def test_inspect_ai_finds_the_sandbox_provider():
    needs("inspect_ai", "its sandbox environments are classes of its own")
    from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
    import rollbox.integrations.inspect_ai as adapter
    assert registry_find_sandboxenv("rollbox") is not None
    assert adapter.RollboxSandboxEnvironment.config_deserialize(
        {"policy": {"max_memory": "1G"}}
    ).policy == {"max_memory": "1G"}


def test_entry_point_is_declared():
    try:
        points = importlib.metadata.entry_points()
        importlib.metadata.distribution("rollbox")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("it is about the installed package")
    group = points.select(group="inspect_ai") if hasattr(points, "select") else points.get("inspect_ai", [])
    assert "rollbox.integrations.inspect_ai" in [point.value for point in group]


@pytest.mark.timeout_s(200)
def test_inspect_ai_self_check():
    needs("inspect_ai", "it is its own conformance suite")
    from inspect_ai.util._sandbox import self_check
    from rollbox.integrations.inspect_ai import RollboxSandboxEnvironment as Environment
    # A function that runs them all came and went with versions; the checks stay.
    checks = {
        name: check
        for name, check in vars(self_check).items()
        if name.startswith("test_") and inspect.iscoroutinefunction(check)
    }

    async def main():
        failed = {}
        environments = await Environment.sample_init("task", None, {})
        try:
            for name, check in checks.items():
                try:
                    await check(environments["default"])
                except Exception as problem:
                    failed[name] = repr(problem)
        finally:
            await Environment.sample_cleanup("task", None, environments, False)
        return failed
    failed = asyncio.run(main())
    assert len(checks) >= 44 and set(failed) == INSPECT_EXCEPTIONS, failed


def test_inspect_ai_setup_is_run_once_and_forked(tmp_path):
    needs("inspect_ai", "its sandbox environments are classes of its own")
    from rollbox.integrations.inspect_ai import RollboxConfig, RollboxSandboxEnvironment as Environment
    config = RollboxConfig(policy={"max_memory": "128M"}, setup="echo once >>/tmp/setup; echo $RANDOM >/tmp/random")

    async def main():
        await Environment.task_init("task", config)
        samples = [(await Environment.sample_init("task", config, {}))["default"] for _ in range(3)]
        seen = [await sample.read_file("/tmp/random") for sample in samples]
        assert len(set(seen)) == 1 and await samples[0].read_file("setup") == "once\n"
        await samples[0].write_file("mine", "x")
        with pytest.raises(FileNotFoundError):
            await samples[1].read_file("mine")
        for sample in samples:
            await Environment.sample_cleanup("task", config, {"default": sample}, False)
        await Environment.task_cleanup("task", config, True)
    asyncio.run(main())

    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"env": {"A": "b"}}))

    async def from_file():
        sample = (await Environment.sample_init("task", str(policy), {}))["default"]
        assert (await sample.exec(["sh", "-c", "echo $A"])).stdout == "b\n"
        assert (await sample.exec(["no-such-program"])).returncode == 127
        await Environment.sample_cleanup("task", str(policy), {"default": sample}, False)
    asyncio.run(from_file())


# ARES

@pytest.fixture
def ares_result(monkeypatch):
    """The module of the installed package that has its containers. `import ares` itself asks the
    network for lists of data sets, so the packages
    above that module are entered without running them."""
    needs("ares", "its results are a class of its own")
    place = list(importlib.util.find_spec("ares").submodule_search_locations)
    for name, path in (("ares", place), ("ares.containers", [os.path.join(one, "containers") for one in place])):
        package = types.ModuleType(name)
        package.__path__ = path
        monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.delitem(sys.modules, "ares.containers.containers", raising=False)
    module = importlib.import_module("ares.containers.containers")
    yield module
    sys.modules.pop("ares.containers.containers", None)


def test_ares_container(ares_result, tmp_path):
    from rollbox.integrations.ares import ContainerFactory

    factory = ContainerFactory.configured(
        policy={"max_memory": "256M"},
        images={"*": "host"},
        setup="mkdir -p /tmp/app && echo set >/tmp/app/up",
    )
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/f").write_text("file")
    (tmp_path / "tree/sub/g").write_text("deep")

    async def main():
        container = factory.from_image(
            image="swebench/any:latest",
            resources=ares_result.Resources(cpu=1, memory=1),
            default_workdir="/tmp/app",
        )
        await container.start(env={"E": "env"})
        result = await container.exec_run("cat up; echo $E $F; pwd; echo err >&2; exit 3", env={"F": "more"})
        assert result == ares_result.ExecResult(output="set\nenv more\n/tmp/app\nerr\n", exit_code=3)
        assert (await container.exec_run("cat <<X\nheredoc\nX")).output == "heredoc\n"
        assert (await container.exec_run("if then")).exit_code != 0
        assert (await container.exec_run("kill -9 $$")).exit_code == 137
        assert (await container.exec_run("pwd", workdir="/usr")).output == "/usr\n"
        with pytest.raises(TimeoutError, match="begun"):
            await container.exec_run("echo begun; sleep 100", timeout_s=0.3)
        await container.upload_file(tmp_path / "tree/f", "/tmp/app/new/f")
        await container.upload_dir(tmp_path / "tree", "/tmp/app/tree")
        assert (await container.exec_run("cat new/f tree/f tree/sub/g")).output == "filefiledeep"
        await container.download_file("/tmp/app/tree/sub/g", tmp_path / "back/g")
        await container.download_dir("/tmp/app/tree", tmp_path / "whole")
        assert (tmp_path / "back/g").read_text() == "deep" and (tmp_path / "whole/sub/g").read_text() == "deep"
        await container.stop()
        await container.start()
        assert (await container.exec_run("ls; echo [$E]")).output == "up\n[]\n", "each start is the set-up again"
        assert (await container.sandbox.snapshot()).id
        container.stop_and_remove()
        container.stop_and_remove()
        await container.stop()
    asyncio.run(main())
    with pytest.raises(FeatureMissing, match="GPU"):
        factory.from_image(image="x", resources=ares_result.Resources(gpu=1))
    with pytest.raises(FeatureMissing, match="Dockerfile"):
        ContainerFactory.from_dockerfile(dockerfile_path="/x/Dockerfile")


def test_ares_accepts_the_factory(ares_result):
    """Every method of ARES's protocols, with its parameters."""
    from rollbox.integrations.ares import Container, ContainerFactory
    for ours, theirs in ((Container, ares_result.Container), (ContainerFactory, ares_result.ContainerFactory)):
        for name, method in vars(theirs).items():
            if name.startswith("_") or not callable(getattr(theirs, name, None)):
                continue
            wanted = [p for p in inspect.signature(getattr(theirs, name)).parameters if p not in ("self", "cls")]
            assert [
                p
                for p in inspect.signature(getattr(ours, name)).parameters
                if p not in ("self", "cls")
            ] == wanted, name


# rLLM (not on PyPI: by its protocol)

def test_rllm_sandbox(tmp_path):
    from rollbox.integrations.rllm import CommandTimeout, create_rollbox_sandbox
    (tmp_path / "f").write_text("file")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/g").write_text("deep")
    with create_rollbox_sandbox("task-1", policy={"max_memory": "128M"}) as box:
        assert box.is_alive() and box.exec("echo $0; echo err >&2") == "bash\n"
        with pytest.raises(RuntimeError, match="(?s)ended with 3.*oops"):
            box.exec("echo oops >&2; exit 3")
        with pytest.raises(CommandTimeout, match="(?s)time-out.*begun"):
            box.exec("echo begun; sleep 100", timeout=2)
        box.upload_file(str(tmp_path / "f"), "/tmp/new/f")
        box.upload_dir(str(tmp_path / "d"), "/tmp/d")
        assert box.exec("cat /tmp/new/f /tmp/d/g") == "filedeep" and box.download_file("/tmp/d/g") == b"deep"
        with pytest.raises(FileNotFoundError):
            box.download_file("/tmp/none")
        box.start_agent_process("echo $PORT >/tmp/port; sleep 1000", 8100)
        assert box.exec("until [ -s /tmp/port ]; do sleep 0.01; done; cat /tmp/port", timeout=DEADLINE) == "8100\n"
        with pytest.raises(FeatureMissing):
            box.get_endpoint(8100)
    assert not box.is_alive()
    box.close()


def test_rllm_reaches_a_program_of_the_sandbox():
    from rollbox.integrations.rllm import RollboxSandbox

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def read(url):
        try:
            with opener.open(url, timeout=DEADLINE) as answer:
                return answer.read()
        except OSError:
            return None  # it does not listen yet

    with RollboxSandbox("served", policy={"net": "loopback"}) as box:
        box.exec("echo hello >/tmp/f")
        box.start_agent_process("cd /tmp; exec python3 -m http.server --bind 127.0.0.1 $PORT", 8100)
        url, headers = box.get_endpoint(8100)
        assert until(lambda: read(f"{url}/f")) == b"hello\n" and headers == {}


def setup_of(task):
    return f"echo {task} >/tmp/task"


def snapshots(hooks):
    from rollbox.integrations import rllm
    missing = rllm._snapshot_not_found()
    ref = hooks.build_snapshot("rollbox", "t1", "rllm-env-0123", None, install_script="echo i >/tmp/installed")
    assert ref == "rllm-env-0123" and not hooks.snapshot_absent("rollbox", ref)
    assert hooks.build_snapshot("rollbox", "t1", ref, ref) == ref, "it is there already"
    boxes = [hooks.create(f"box-{i}", ref) for i in range(3)]
    for box in boxes:
        assert box.exec("cat /tmp/task /tmp/installed") == "t1\ni\n"
        box.exec("echo changed >/tmp/task")
    assert hooks.create("again", ref).exec("cat /tmp/task") == "t1\n"
    assert hooks.build_snapshot("rollbox", "t2", ref, ref, force=True) == ref
    assert hooks.create("again", ref).exec("cat /tmp/task") == "t2\n"
    assert (
        hooks.delete_snapshot("rollbox", ref)
        and hooks.snapshot_absent("rollbox", ref)
        and hooks.delete_snapshot("rollbox", ref)
    )
    with pytest.raises(missing):
        hooks.create("none", ref)
    assert hooks.build_snapshot(
        "rollbox", "t", "fails", install_script="exit 1"
    ) is None and hooks.snapshot_absent("rollbox", "fails")
    for box in boxes:
        assert box.exec("cat /tmp/task") == "changed\n"
        box.close()


def test_rllm_snapshots_of_a_private_engine():
    from rollbox.integrations.rllm import SnapshotHooks
    snapshots(SnapshotHooks(setup=setup_of, policy={"max_memory": "64M"}))


def test_rllm_snapshots_of_a_shared_engine(tmp_path):
    """Hooks that were pickled to other processes find the same snapshots."""
    from rollbox.integrations._common import _engines
    from rollbox.integrations.rllm import SnapshotHooks
    socket = str(tmp_path / "engine")
    process = subprocess.Popen([str(BUILD / "rollbox-engine"), "--socket", socket])
    try:
        while not serves(socket):
            assert process.poll() is None
        hooks = SnapshotHooks(socket, setup=setup_of)
        snapshots(pickle.loads(pickle.dumps(hooks)))
        code = ("import pickle, sys; hooks = pickle.loads(bytes.fromhex(sys.argv[1])); "
                "print(hooks.build_snapshot('rollbox', 't', 'kept', None))")
        plain = pickle.dumps(SnapshotHooks(socket)).hex()
        assert (
            subprocess.run(
                [sys.executable, "-c", code, plain],
                capture_output=True,
                text=True,
                timeout=DEADLINE,
            ).stdout
            == "kept\n"
        )
        assert not hooks.snapshot_absent("rollbox", "kept")
        with hooks.create("here", "kept") as box:
            assert box.is_alive()
        assert hooks.delete_snapshot("rollbox", "kept")
        process.kill()
        process.wait()
        assert (
            hooks.snapshot_absent("rollbox", "kept") is False
            and hooks.delete_snapshot("rollbox", "kept") is False
        ), "an engine that cannot be asked has said nothing"
        with pytest.raises(EngineLost):
            hooks.build_snapshot("rollbox", "t", "kept", None)
    finally:
        for engine in _engines.values():
            engine.close()
        _engines.clear()
        process.terminate()
        process.wait()


@pytest.mark.parametrize("served", [False, True])
def test_five_hundred_episodes_begin_at_once(served):
    """An engine that has more to make than it takes in makes its callers wait; it refuses none."""
    from rollbox.integrations.rllm import RollboxSandbox

    episodes = 500
    begun = threading.Barrier(episodes)

    def episode(number, engine):
        options = {"policy": {"max_memory": "64M"}, "socket": engine, "labels": {"number": number}}
        try:
            with RollboxSandbox(f"task-{number}", **options) as box:
                begun.wait(DEADLINE)
                return box.exec(f"echo {number}", timeout=DEADLINE)
        except Exception:
            begun.abort()
            raise

    with own_server() if served else contextlib.nullcontext() as engine:
        with concurrent.futures.ThreadPoolExecutor(episodes) as pool:
            said = list(pool.map(lambda number: episode(number, engine), range(episodes)))
    assert said == [f"{number}\n" for number in range(episodes)]


def test_rllm_sandbox_of_a_server_has_its_labels():
    from rollbox import Engine
    from rollbox.integrations.rllm import RollboxSandbox

    with own_server() as url:
        with RollboxSandbox("task-9", socket=url, labels={"episode": 4}) as box:
            assert box.exec("echo there") == "there\n"
            (row,) = Engine(url).sandboxes()
            assert row["labels"] == {"episode": "4", "name": "task-9"}
        with RollboxSandbox("task-10", socket=url, labels={"x" * 5000: "y" * 100_000}) as box:
            assert box.exec("echo there") == "there\n", "labels that a server refuses fail nothing"


KILLED = """
import sys
from rollbox.integrations.rllm import RollboxSandbox
box = RollboxSandbox("killed")
box.start_agent_process("exec sleep 86388.5", 1)
print("ready", flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_of_a_framework_that_is_killed():
    program = subprocess.Popen([sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with program:
        assert program.stdout.readline() == b"ready\n"
        until(lambda: processes("sleep", "86388.5"))
        program.kill()
    until(lambda: not processes("sleep", "86388.5"))
