# SPDX-License-Identifier: Apache-2.0
"""rollbox inside containers: with the defaults of Docker and Kubernetes, with deploy/seccomp.json,
and as a pod's root."""

import json
import os
import shutil

import containers
import pytest
from containers import PROFILE, WAYS, container

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="needs root: containers are made by it"),
              pytest.mark.skipif(not shutil.which("crun"), reason="needs crun: containers are run by it")]


def table():
    """As docs/reference/compatibility.md has it."""
    lines = ["| container | isolation process | isolation namespace |", "|---|---|---|"]
    for name, (_, *refusals) in WAYS.items():
        cells = ["works" if refusal is None else f"refused: {refusal}" for refusal in refusals]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


@pytest.mark.parametrize("isolation", ["process", "namespace"])
@pytest.mark.parametrize("name", WAYS)
def test_runs_in_a_container_or_names_what_is_refused(tmp_path, name, isolation):
    refusal = WAYS[name][1 if isolation == "process" else 2]
    done = container(tmp_path, name).run("/rollbox/rollbox", "run", "--isolation", isolation, "--", "echo", "hello")
    if refusal is None:
        assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    else:
        assert (done.returncode, done.stdout) == (125, ""), done.stderr
        assert refusal in done.stderr


def test_doctor_agrees_with_run_in_a_container(tmp_path):
    done = container(tmp_path, "docker with SYS_ADMIN").run("/rollbox/rollbox", "doctor")
    assert done.returncode == 1
    assert any(line.split()[:2] == ["no", "pivot_root"] for line in done.stdout.splitlines()), done.stdout


def test_sandbox_in_a_pod_with_user_namespace_is_not_host_root(tmp_path):
    pod = container(tmp_path, "profile, pod with users of its own and SYS_ADMIN")
    done = pod.run("/rollbox/rollbox", "run", "--json", "--", "id", "-u")
    assert json.loads(done.stdout)["stdout"] == "1000\n", done.stderr


def test_sessions_and_live_forks_work_under_the_profile(tmp_path):
    script = """set -e
export ROLLBOX_SOCKET=/tmp/socket ROLLBOX_STORE=/tmp/store; mkdir -m 700 /tmp/store
r=/rollbox/rollbox; $r engine start --background >/dev/null
box=$($r create); $r exec $box -- sh -c 'cat /dev/zero | sleep 1000 & echo file > /tmp/file'
kid=$($r fork $box); $r exec $kid -- cat /tmp/file; $r ps >/dev/null; $r engine stop >/dev/null"""
    done = container(tmp_path, "profile, user").run("/bin/sh", "-c", script)
    assert (done.returncode, done.stdout) == (0, "file\n"), done.stderr


def test_shipped_profile_is_dockers_plus_the_needed_calls():
    assert json.loads(PROFILE.read_text()) == containers.default_profile([], also=containers.WANTED)


def test_docs_table_matches_the_runs():
    assert table() in (PROFILE.parents[1] / "docs" / "reference" / "compatibility.md").read_text()
