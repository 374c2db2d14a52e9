# SPDX-License-Identifier: Apache-2.0
"""net_log_file: what several sandboxes did in their networks, in one file."""

import json

from harness import caller  # noqa: F401
from network_server import FETCH, server  # noqa: F401


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def run(caller, policy, file, *urls):
    result = caller.run(
        "--policy", policy, "--net-log", str(file), "--", "python3", "-c", FETCH, *urls
    )
    assert result.outcome == "exit", result.error


def test_runs_append_to_one_file(caller, server):
    file = caller.directory(0o755) / "net.log"
    policy = server.policy(caller)
    run(caller, policy, file, "http://site.test/")
    run(caller, policy, file, "http://a.wild.test/", "http://192.0.2.1/")
    events = lines_of(file)
    reached = [(event["box"], event["host"]) for event in events if event["event"] == "connect"]
    assert [host for _, host in reached] == ["site.test", "a.wild.test"] and all(
        box.startswith("run-") for box, _ in reached
    )
    assert [(event["host"], event["why"]) for event in events if event["event"] == "refused"] == [
        ("192.0.2.1", "literal")
    ]


def test_a_log_file_that_cannot_be_opened_is_an_error(caller, server):
    result = caller.run(
        "--policy", server.policy(caller), "--net-log", "/proc/none/net.log", "--", "true"
    )
    assert result.outcome == "error" and "net_log_file" in result.error["message"]
