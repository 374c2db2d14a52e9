# SPDX-License-Identifier: Apache-2.0
"""What a recorded command did in the network is in its step."""

import json
import sys

from harness import caller  # noqa: F401
from network_server import FETCH, server  # noqa: F401

CODE = """
import json, sys
from rollbox import Policy, Sandbox

with Sandbox(Policy(**json.load(open(sys.argv[1]))), record=sys.argv[2]) as box:
    for urls in (["http://site.test/", "http://192.0.2.1/"], []):
        box.exec(["python3", "-c", sys.argv[3], *urls], timeout=60)
"""


def test_steps_have_what_their_commands_reached(caller, server):
    file = caller.directory(0o755) / "record.jsonl"
    done = caller.call(sys.executable, "-c", CODE, str(server.policy(caller)), str(file), FETCH)
    assert done.returncode == 0, done.stderr
    steps = [
        line
        for line in map(json.loads, file.read_text().splitlines())
        if line.get("action", {}).get("kind") == "exec"
    ]
    assert len(steps) == 2
    network = steps[0]["network"]
    assert [(row["host"], row["port"]) for row in network["hosts"]] == [("site.test", 80)]
    assert [(row["host"], row["why"]) for row in network["refusals"]] == [("192.0.2.1", "literal")]
    assert "network" not in steps[1]
