# SPDX-License-Identifier: Apache-2.0
"""What the HTTP server tells besides answers: events, usage, labels; and standard input by requests."""

import json

import pytest
from harness import DEADLINE, caller, until  # noqa: F401
from serving import server  # noqa: F401


@pytest.fixture
def box(server):  # noqa: F811
    """The path of a sandbox."""
    body = {"name": "box", "labels": {"rollout": "7"}}
    assert server.call("POST", "/v1/sandboxes", body)[0] == 201
    return "/v1/sandboxes/box"


class Events:
    """GET /v1/events."""

    def __init__(self, server, after=None, token=None):  # noqa: F811
        self.connection = server.connect()
        path = "/v1/events" + ("" if after is None else f"?after={after}")
        self.connection.request(
            "GET", path, headers={"Authorization": f"Bearer {token or server.token}"}
        )
        self.answer = self.connection.getresponse()
        self.status = self.answer.status

    def next(self):
        """The next event: (type, number, data)."""
        fields = {}
        while True:
            line = self.answer.readline().decode().rstrip("\n")
            if not line and "event" in fields:
                return fields["event"], int(fields["id"]), json.loads(fields["data"])
            if ": " in line and not line.startswith(":"):
                name, value = line.split(": ", 1)
                fields[name] = value


def test_events_tell_the_life_of_a_sandbox_and_are_resumed(server):  # noqa: F811
    other = Events(server, token=server.new_token("two"))
    stream = Events(server)
    server.call("POST", "/v1/sandboxes", {"name": "box", "labels": {"a": "b"}})
    server.call("PUT", "/v1/sandboxes/box/execs/e", {"argv": ["sh", "-c", "exit 3"]})
    server.call("POST", "/v1/sandboxes/box/notes", {"note": {"reward": 1}})
    server.call("POST", "/v1/sandboxes/box/snapshots", {"name": "base"})
    fork = server.call("POST", "/v1/sandboxes/box/fork", {})[1]["sandboxes"][0]
    server.call("DELETE", "/v1/sandboxes/box")
    expected = [
        "sandbox.created",
        "exec.started",
        "exec.ended",
        "sandbox.note",
        "sandbox.snapshot",
        "sandbox.created",
        "sandbox.ended",
    ]
    found = [stream.next() for _ in expected]
    assert [event[0] for event in found] == expected
    assert found[0][2]["sandbox"] == "box" and found[0][2]["labels"] == {"a": "b"}
    assert (found[2][2]["exec"], found[2][2]["exit_code"]) == ("e", 3)
    assert found[3][2]["note"] == {"reward": 1}
    assert (found[5][2]["sandbox"], found[5][2]["fork_of"]) == (fork, "box")
    again = Events(server, after=found[2][1])
    assert [again.next() for _ in expected[3:]] == found[3:]
    assert Events(server, after=10**9).status == 410
    server.call("POST", "/v1/sandboxes", {"name": "mine"}, token=server.new_token("two"))
    assert other.next()[2]["sandbox"] == "mine", "another tenant's events are not seen"


def test_end_of_a_command_without_a_client_is_an_event(server, box):  # noqa: F811
    stream = Events(server)
    server.call("PUT", box + "/execs/e", {"argv": ["sleep", "0.1"]}, Prefer="respond-async")
    assert [stream.next()[0] for _ in range(2)] == ["exec.started", "exec.ended"]


def test_usage_is_summed_by_tenant_label_and_sandbox(server, box):  # noqa: F811
    burn = {"argv": ["python3", "-c", "x = bytearray(50 << 20)\nfor i in range(2000000): pass"]}
    for label in ("a", "a", "b"):
        server.call("POST", "/v1/runs", {**burn, "labels": {"rollout": label}})
    server.call("POST", box + "/execs", {"argv": ["head", "-c", "1000", "/dev/zero"]})
    by = lambda kind, more="": {  # noqa: E731
        row[kind if kind != "tenant" else "name"]: row
        for row in server.call("GET", f"/v1/usage?by={kind}{more}")[1]["usage"]
    }
    labels = by("label", "&label=rollout")
    assert set(labels) == {"rollout=a", "rollout=b", "rollout=7"}
    assert (labels["rollout=a"]["runs"], labels["rollout=b"]["runs"]) == (2, 1)
    assert labels["rollout=a"]["cpu_ms"] > 10 and labels["rollout=a"]["gib_s"] > 0
    assert labels["rollout=7"]["bytes_out"] == 1000
    assert by("sandbox")["box"]["commands"] == 1
    assert by("tenant")["one"]["runs"] == 3
    assert server.call("GET", "/v1/usage", token=server.new_token("two"))[1] == {"usage": []}
    assert server.call("GET", "/v1/usage?by=moon")[0] == 400
    until(lambda: by("sandbox")["box"]["gib_s"] > 0)


def test_labels_are_changed(server, box):  # noqa: F811
    body = {"labels": {"rollout": None, "reward": "1"}}
    assert server.call("PATCH", box, body)[1]["labels"] == {"reward": "1"}
    assert server.call("GET", box)[1]["labels"] == {"reward": "1"}
    assert server.call("PATCH", box, {})[0] == 400


def test_standard_input_comes_by_requests(server, box):  # noqa: F811
    body = {"argv": ["cat"], "stdin_open": True}
    server.call("PUT", box + "/execs/e", body, Prefer="respond-async")
    path = box + "/execs/e/stdin"
    assert server.call("POST", path, b"hello ") == (200, {"accepted": 6})
    # A retry writes nothing twice, also if only a part of it is new.
    assert server.call("POST", path + "?offset=0", b"hello ") == (200, {"accepted": 6})
    assert server.call("POST", path + "?offset=2", b"llo you") == (200, {"accepted": 9})
    assert server.call("POST", path + "?offset=10", b"x")[0] == 416
    large = b"z" * 300000
    assert server.call("POST", path + "?eof=1", large) == (200, {"accepted": 300009})
    result = server.call("GET", box + "/execs/e?wait=60")[1]
    assert result["stdout"] == "hello you" + large.decode()
    assert server.call("POST", path, b"more")[0] == 404
    assert server.call("POST", box + "/execs/no/stdin", b"x")[0] == 404


def test_standard_input_that_is_not_read_is_let_go(server, box):  # noqa: F811
    body = {"argv": ["sh", "-c", "exec <&-; sleep 1000"], "stdin_open": True}
    server.call("PUT", box + "/execs/e", body, Prefer="respond-async")
    path = box + "/execs/e/stdin"
    until(lambda: server.call("POST", path, b"x" * 100000)[0] == 404)


def test_export_is_streamed(server, box):  # noqa: F811
    server.call(
        "POST", box + "/execs", {"argv": ["sh", "-c", "head -c 5000000 /dev/urandom >/tmp/f"]}
    )
    status, data = server.call("GET", box + "/export")
    assert status == 200 and len(data) > 5000000
    assert server.call("GET", box + "/export?snapshot=none")[0] == 404
