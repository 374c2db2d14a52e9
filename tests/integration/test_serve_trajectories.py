# SPDX-License-Identifier: Apache-2.0
"""Trajectories that the HTTP server keeps: /v1/trajectories, and `record` of a sandbox."""

import http.client
import json
import os
import signal

import pytest
from harness import DEADLINE, caller, until  # noqa: F401
from rollbox import Trajectory
from serving import Server


@pytest.fixture
def state(caller):  # noqa: F811
    """A state directory. Its engines end with their server: nothing is detached."""
    return caller.directory()


@pytest.fixture
def server(caller, state):  # noqa: F811
    with Server(caller, "--state", state) as server:
        yield server


def recorded(server, record=True, **body):
    """A recorded sandbox: its name and its trajectory's id."""
    status, made = server.call("POST", "/v1/sandboxes", {"record": record, **body})
    assert status == 201, made
    return made["name"], made["trajectory"]


def say(server, box, *words):
    status, result = server.call("POST", f"/v1/sandboxes/{box}/execs", {"argv": ["echo", *words]})
    assert status == 200, result


def rows(server, token=None, query=""):
    status, answer = server.call("GET", f"/v1/trajectories{query}", token=token)
    assert status == 200, answer
    return answer["trajectories"]


def lines(content):
    return [json.loads(line) for line in content.splitlines()]


def test_trajectory_of_a_sandbox_is_listed_read_and_deleted(server, tmp_path):
    box, trajectory = recorded(server, labels={"rollout": "7"})
    say(server, box, "hello")
    (row,) = rows(server)
    assert (row["id"], row["sandbox"], row["ended"]) == (trajectory, box, False)
    assert row["labels"] == {"rollout": "7"} and row["created"] > 1e9
    assert server.call("DELETE", f"/v1/trajectories/{trajectory}")[0] == 409
    assert server.call("POST", f"/v1/sandboxes/{box}/notes", {"note": {"reward": 1}})[0] == 204
    status, answer = server.call("DELETE", f"/v1/sandboxes/{box}")
    assert status == 200 and answer["record"]["complete"]
    (row,) = rows(server, query=f"?sandbox={box}")
    assert row["ended"] and row["bytes"] > 0
    status, content = server.call("GET", f"/v1/trajectories/{trajectory}")
    assert status == 200 and len(content) == row["bytes"]
    assert server.headers["Content-Type"] == "application/x-ndjson"
    assert server.headers["Rollbox-State"] == "ended"
    (tmp_path / "t.jsonl").write_bytes(content)
    with Trajectory.open(tmp_path / "t.jsonl") as read:
        steps = list(read)
        assert [step.action.kind for step in steps] == ["exec", "note"]
        assert read.complete
    status, part = server.call("GET", f"/v1/trajectories/{trajectory}", Range="bytes=5-9")
    assert (status, part) == (206, content[5:10])
    status, part = server.call("GET", f"/v1/trajectories/{trajectory}?offset=7&length=3")
    assert (status, part) == (200, content[7:10])
    assert server.call("GET", f"/v1/trajectories/{trajectory}?offset=99999999")[0] == 416
    assert server.call("DELETE", f"/v1/trajectories/{trajectory}")[0] == 204
    assert rows(server) == []
    assert server.call("GET", f"/v1/trajectories/{trajectory}")[0] == 404


def test_follower_gets_lines_as_they_are_written(server):
    box, trajectory = recorded(server)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)
    connection.request(
        "GET",
        f"/v1/trajectories/{trajectory}?follow=1",
        headers={"Authorization": f"Bearer {server.token}"},
    )
    answer = connection.getresponse()
    assert answer.status == 200 and answer.headers["Rollbox-State"] == "running"
    answer.readline()  # the head of the file
    say(server, box, "one")
    step = json.loads(answer.readline())
    assert step["observation"]["stdout"] is not None
    assert server.call("DELETE", f"/v1/sandboxes/{box}")[0] == 200
    assert lines(answer.read())[-1]["end"]["reason"] == "closed"
    connection.close()


def test_trajectory_belongs_to_its_tenant(server):
    box, trajectory = recorded(server)
    other = server.new_token("two")
    assert rows(server, other) == []
    for method in ("GET", "DELETE"):
        status, problem = server.call(method, f"/v1/trajectories/{trajectory}", token=other)
        assert (status, problem["code"]) == (404, "not_found")
    for id in ("..", "..%2Fone%2F" + trajectory, trajectory + ".json", "%2e%2e%2fjournal"):
        assert server.call("GET", f"/v1/trajectories/{id}")[0] in (400, 404)


def test_retry_with_a_key_makes_one_trajectory(server):
    body = {"record": True, "name": "one"}
    first = server.call("POST", "/v1/sandboxes", body, Idempotency_Key="k")
    assert first[0] == 201
    assert server.call("POST", "/v1/sandboxes", body, Idempotency_Key="k") == first
    assert [row["id"] for row in rows(server)] == [first[1]["trajectory"]]


def test_options_of_a_record_are_checked_and_used(server):
    for record in (1, "yes", {"path": "/etc/x"}, {"file_bytes": 0}, {"redact_names": [1]}):
        status, problem = server.call("POST", "/v1/sandboxes", {"record": record})
        assert (status, problem["code"]) == (400, "invalid_argument"), record
    status, problem = server.call(
        "POST", "/v1/sandboxes", {"record": {"redact_patterns": ["(unclosed"]}}
    )
    assert status == 400 and "unclosed" in problem["detail"]
    assert server.call("GET", "/v1/sandboxes")[1]["sandboxes"] == [] and rows(server) == []
    box, trajectory = recorded(server, {"redact_patterns": ["hunter[0-9]"]})
    say(server, box, "hunter2")
    assert server.call("DELETE", f"/v1/sandboxes/{box}")[0] == 200
    content = server.call("GET", f"/v1/trajectories/{trajectory}")[1]
    assert b"[redacted]" in content and b"hunter2" not in content
    status, made = server.call("POST", "/v1/sandboxes", {"record": False})
    assert status == 201 and "trajectory" not in made


def test_trajectories_count_in_the_quota_of_disk(server):
    token = server.new_token("small", arguments=("--quota", "disk=100M"))
    body = {"record": {"file_bytes": 60 << 20}, "policy": {"max_disk": "10M"}}
    status, made = server.call("POST", "/v1/sandboxes", body, token=token)
    assert status == 201, made
    status, problem = server.call("POST", "/v1/sandboxes", body, token=token)
    assert (status, problem["code"]) == (429, "quota_exceeded") and "disk" in problem["detail"]
    assert server.call("DELETE", f"/v1/sandboxes/{made['name']}", token=token)[0] == 200
    until(lambda: rows(server, token)[0]["ended"])
    status, made = server.call("POST", "/v1/sandboxes", body, token=token)
    assert status == 201, made


def test_detached_sandbox_whose_record_has_no_room_is_ended(server):
    token = server.new_token("small", arguments=("--quota", "disk=100M"))
    body = {"record": {"file_bytes": 200 << 20}, "policy": {"max_disk": "10M"}, "detached": True}
    for _ in range(3):
        status, problem = server.call("POST", "/v1/sandboxes", body, token=token)
        assert (status, problem["code"]) == (429, "quota_exceeded"), problem
    assert server.call("GET", "/v1/sandboxes", token=token)[1]["sandboxes"] == []
    assert server.process.poll() is None


def test_killed_server_leaves_lines_that_the_next_one_lists(server, state):
    box, trajectory = recorded(server, labels={"a": "b"})
    say(server, box, "before")
    until(lambda: len(lines(server.call("GET", f"/v1/trajectories/{trajectory}")[1])) == 2)
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(DEADLINE)
    with Server(server.who, "--state", state, directory=server.directory) as second:
        until(lambda: rows(second)[0]["ended"])
        (row,) = rows(second)
        assert (row["id"], row["sandbox"], row["labels"]) == (trajectory, box, {"a": "b"})
        content = second.call("GET", f"/v1/trajectories/{trajectory}")[1]
        assert content.endswith(b"\n") and b"before" in content
        assert second.call("DELETE", f"/v1/trajectories/{trajectory}")[0] == 204
    assert not list((state / "trajectories").rglob("*.json*"))


def test_server_without_a_directory_names_the_option(caller):  # noqa: F811
    with Server(caller) as server:
        for answer in (
            server.call("POST", "/v1/sandboxes", {"record": True}),
            server.call("GET", "/v1/trajectories"),
        ):
            status, problem = answer
            assert (status, problem["code"]) == (501, "feature_missing")
            assert "--state" in problem["detail"]
        status, problem = server.call("GET", "/v1/trajectories/0123456789abcdef")
        assert status == 404 and "--state" in problem["detail"]
