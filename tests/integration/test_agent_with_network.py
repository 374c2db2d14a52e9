# SPDX-License-Identifier: Apache-2.0
"""examples/agent_with_network.py: allowed hosts work, all else is refused, and the key is not seen inside."""

import json
import shutil
import sys

import pytest
from harness import DEADLINE, TREE, binaries, callers, skip


@pytest.fixture(params=callers(), ids=repr, scope="module")
def played(request):
    caller = request.param
    if shutil.which("git", path="/usr/bin:/bin") is None:
        skip("needs git: the agent clones a repository")
    if caller.call("/usr/bin/python3", "-c", "import pip").returncode != 0:
        skip("needs pip: the agent installs a package")
    environment = caller.environment(
        PYTHONPATH=str(TREE / "python"),
        ROLLBOX_LIBRARY=str(binaries() / "librollbox.so"),
        ROLLBOX_STORE=str(caller.home / "store"),
    )
    done = caller.call(
        sys.executable,
        "-B",
        TREE / "examples/agent_with_network.py",
        "--json",
        env=environment,
        timeout=2 * DEADLINE,
    )
    assert done.returncode == 0, done.stdout.decode()[-3000:] + done.stderr.decode()[-3000:]
    return json.loads(done.stdout)


def test_allowed_steps_work(played):
    said = {step["step"]: step["said"] for step in played["steps"] if step["ok"]}
    assert set(said) == {"install", "use", "clone", "model", "key"}
    assert (said["use"], said["model"]) == ("bonjour", '{"text": "bonjour"}')


def test_other_steps_are_refused_with_a_reason(played):
    refused = {(refusal["host"], refusal["port"]): refusal["why"] for refusal in played["network"]["refusals"]}
    assert refused[("169.254.169.254", 80)] == refused[("203.0.113.9", 443)] == "literal"
    assert refused[("git.example.org", 443)] == refused[("model.example.org", 443)] == "method_path"
    said = {step["step"]: step["said"] for step in played["steps"] if not step["ok"]}
    assert set(said) == {"push", "delete", "metadata", "tunnel by name", "tunnel by address"}
    assert "403" in said["push"] and "allows DELETE /v1/files/1" in said["delete"]
    assert "not known" in said["tunnel by name"]


def test_audit_has_the_hosts_that_were_reached(played):
    reached = {host["host"]: host for host in played["network"]["hosts"]}
    assert set(reached) == {"pypi.org", "git.example.org", "model.example.org"}
    assert all(host["port"] == 443 and host["up"] > 0 and host["down"] > 0 for host in reached.values())


def test_key_is_not_seen_inside(played):
    assert not played["key_seen"]
    assert played["steps"][-1]["said"] == "rollbox-secret-model"
