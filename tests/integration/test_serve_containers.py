# SPDX-License-Identifier: Apache-2.0
"""The HTTP server and the programs beside it in containers: each works, or one line names what is refused."""

import os
import shutil

import pytest
from containers import WAYS, container
from harness import BUILD, skip

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: containers are made by it"),
    pytest.mark.skipif(not shutil.which("crun"), reason="needs crun: containers are run by it"),
]

SERVE = """cd /tmp; r=/rollbox/rollbox
$r token create --tokens t --scope run --scope net --scope host >token; chmod 600 token
$r serve --listen 127.0.0.1:7420 --tokens t --otlp-endpoint http://127.0.0.1:1 >out 2>err & pid=$!
for i in $(seq 300); do grep -q ready out && break; kill -0 $pid || break; sleep 0.1; done
at="$r --engine http://127.0.0.1:7420 --token-file token"
"""
STOP = "kill $pid; wait $pid || echo failed; cat err >&2"


@pytest.fixture(autouse=True)
def programs():
    """The server and its client are there."""
    for name in ("serve", "http", "otlp"):
        if not (BUILD / f"rollbox-{name}").exists():
            skip("needs llhttp: rollbox-serve or its client is not built")


@pytest.mark.parametrize("isolation", ["process", "namespace"])
@pytest.mark.parametrize("name", WAYS)
def test_server_serves_in_a_container_or_names_what_is_refused(tmp_path, name, isolation):
    refusal = WAYS[name][1 if isolation == "process" else 2]
    commands = f"$at run --isolation {isolation} -- echo hello; $at ps >/dev/null || echo failed\n"
    done = container(tmp_path, name).run("/bin/sh", "-c", SERVE + commands + STOP)
    if refusal is None:
        assert done.stdout == "hello\n", done.stderr
    else:
        lines = [line for line in done.stderr.splitlines() if line.startswith("rollbox run: ")]
        assert done.stdout == "" and len(lines) == 1 and refusal in lines[0], done.stderr


def test_gateway_and_traces_work_under_the_profile(tmp_path):
    commands = "$at run --allow a.example.org -- echo net\n" + STOP
    done = container(tmp_path, "profile, user").run("/bin/sh", "-c", SERVE + commands)
    assert done.stdout == "net\n", done.stderr
    assert "rollbox-otlp: spans are not sent" in done.stderr


@pytest.mark.parametrize("name", ["docker, root", "kubernetes restricted", "profile, user"])
def test_image_is_built_in_a_container(tmp_path, name):
    commands = """cd /tmp; printf 'FROM scratch\\nCOPY x /x\\n' >Dockerfile; echo x >x
/rollbox/rollbox image build -t t ."""
    done = container(tmp_path, name).run("/bin/sh", "-c", commands)
    assert (done.returncode, done.stdout) == (0, "t\n"), done.stderr
