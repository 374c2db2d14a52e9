# SPDX-License-Identifier: Apache-2.0
"""rollbox.integrations.rllm with rLLM's own source, which `make integrations RLLM=DIR` names."""

import importlib.util

import pytest
from adapters import own_engine

if importlib.util.find_spec("rllm") is None:
    pytest.skip("needs rllm: it is not on PyPI (make integrations RLLM=DIR)", allow_module_level=True)

from rllm.sandbox import protocol, sandboxed_flow, snapshot  # noqa: E402
from rllm.types import Task  # noqa: E402
from rollbox.integrations.rllm import SnapshotHooks, create_rollbox_sandbox  # noqa: E402

POLICY = {"max_memory": "64M"}
HOST = {"*": "host"}


def setup_of(task):
    return f"echo {task.id} >/tmp/task"


@pytest.fixture
def hooks(monkeypatch, tmp_path):
    """rLLM with the lines for rollbox that docs/how-to/integrations.md shows."""
    monkeypatch.setenv("RLLM_HOME", str(tmp_path))
    made = SnapshotHooks(policy=POLICY, images=HOST, setup=setup_of)

    def create(backend, name, image, **_):
        assert backend == "rollbox"
        if image.startswith("rllm-env-"):
            return made.create(name, image)
        return create_rollbox_sandbox(name, image=image, images=HOST, policy=POLICY)

    monkeypatch.setattr(sandboxed_flow, "create_sandbox", create)
    for name in ("build_snapshot", "delete_snapshot", "snapshot_absent"):
        monkeypatch.setattr(sandboxed_flow, name, getattr(made, name))
    return made


@pytest.fixture
def task(tmp_path):
    return Task(id="t1", instruction="", metadata={}, dataset_dir=tmp_path, sub_dir=None)


def test_sandbox_has_the_protocol(hooks, task):
    box = snapshot.get_sandbox(task, "rollbox")
    assert isinstance(box, protocol.Sandbox) and box.is_alive()
    assert protocol._safe_exec(box, "echo said; exit 0") == "said\n"
    assert "ended with 3" in protocol._safe_exec(box, "exit 3")
    box.close()
    assert not box.is_alive()


def test_registry_boots_from_a_snapshot_and_falls_back(hooks, task):
    registry = snapshot.SnapshotRegistry.load()
    key = snapshot.env_key_for(task, "rollbox")
    ref = sandboxed_flow.build_snapshot("rollbox", task, key)
    row = {"id": task.id, "env_key": key, "ref": ref, "base_image": "x"}
    registry.record_group("set", "rollbox", {"kind": "all"}, [row])
    box = snapshot.get_sandbox(task, "rollbox", registry)
    assert box.exec("cat /tmp/task") == "t1\n" and box.baked_install == ""
    box.close()
    assert registry.sync("rollbox") == {"pruned": [], "kept": 1}
    hooks.delete_snapshot("rollbox", ref)
    cold = snapshot.get_sandbox(task, "rollbox", registry)
    assert cold.exec("ls /tmp") == "" and registry.lookup_env(key, "rollbox") is None
    cold.close()


def test_group_is_destroyed_with_its_snapshots(hooks, task):
    registry = snapshot.SnapshotRegistry.load()
    key = snapshot.env_key_for(task, "rollbox", "echo i >/tmp/installed")
    ref = hooks.build_snapshot("rollbox", task, key, install_script="echo i >/tmp/installed")
    row = {"id": task.id, "env_key": key, "ref": ref, "base_image": "x"}
    group = registry.record_group("set", "rollbox", {"kind": "all"}, [row])
    box = snapshot.get_sandbox(task, "rollbox", registry, "echo i >/tmp/installed")
    assert box.exec("cat /tmp/installed") == "i\n"
    assert box.baked_install == "echo i >/tmp/installed"
    assert registry.destroy_group(group)["deleted"] == [key]
    assert hooks.snapshot_absent("rollbox", ref)
    box.close()


def test_lost_engine_keeps_what_the_registry_knows(hooks, task):
    with own_engine() as (socket, kill):
        hooks.socket = socket
        key = snapshot.env_key_for(task, "rollbox")
        ref = hooks.build_snapshot("rollbox", task, key)
        registry = snapshot.SnapshotRegistry.load()
        row = {"id": task.id, "env_key": key, "ref": ref, "base_image": "x"}
        registry.record_group("set", "rollbox", {"kind": "all"}, [row])
        kill()
        assert registry.sync("rollbox") == {"pruned": [], "kept": 1}
        with pytest.raises(Exception) as caught:
            snapshot.get_sandbox(task, "rollbox", registry)
        assert not isinstance(caught.value, protocol.SnapshotNotFound)


