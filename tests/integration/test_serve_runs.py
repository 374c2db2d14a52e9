# SPDX-License-Identifier: Apache-2.0
"""Runs of the HTTP server under an id: started without waiting, asked for, cancelled, read in parts."""

import json
import os
import threading

import pytest
from harness import DEADLINE, caller, descendants, until  # noqa: F401
from serving import Server, server  # noqa: F401
from serving_queue import HALF, full, small  # noqa: F401

ASYNC = {"Prefer": "respond-async"}


def ended(server, id):  # noqa: F811
    """The answer once the run has ended."""
    while True:
        status, answer = server.call("GET", f"/v1/runs/{id}?wait=30")
        if status != 202:
            return status, answer


@pytest.fixture
def gate(caller):  # noqa: F811
    """A directory of the host, for runs that wait until a file is in it, and the token's policy."""
    path = caller.directory()
    os.chown(path, caller.uid, caller.uid)
    return path


def waits(gate):
    """A run that begins with a line in `began` and ends when `go` is there."""
    script = f"echo run >> {gate}/began; until test -e {gate}/go; do sleep 0.02; done; echo done"
    return {"argv": ["sh", "-c", script], "policy": {"fs_shared": [str(gate)]}}


def began(gate):
    """Whether the run has begun."""
    path = gate / "began"
    return path.exists() and path.read_text() == "run\n"


@pytest.fixture
def host(server):  # noqa: F811
    """The server, whose token may share paths of the host."""
    server.token = server.new_token("one", "run", "host")
    until(lambda: server.call("GET", "/v1/sandboxes")[0] == 200)
    return server


def test_run_continues_after_202_and_its_id_has_the_result(host, gate):
    status, told = host.call("POST", "/v1/runs", {**waits(gate), "id": "r1"}, **ASYNC)
    assert (status, told["id"], host.headers["Location"]) == (202, "r1", "/v1/runs/r1")
    assert told["state"] in ("queued", "running")
    until(lambda: host.call("GET", "/v1/runs/r1?wait=0")[1]["state"] == "running")
    assert host.call("GET", "/v1/runs/r1/output")[0] == 202
    (gate / "go").touch()
    status, result = ended(host, "r1")
    assert (status, result["outcome"], result["stdout"]) == (200, "exit", "done\n")
    assert host.headers.get("Idempotency-Replayed") is None
    assert ended(host, "r1") == (200, result)
    assert host.call("POST", "/v1/runs", {**waits(gate), "id": "r1"}, **ASYNC) == (200, result)
    assert host.headers["Idempotency-Replayed"] == "true"
    assert (gate / "began").read_text() == "run\n"


def test_run_without_an_id_gets_one(server):  # noqa: F811
    status, told = server.call("POST", "/v1/runs", {"argv": ["echo", "hi"]}, **ASYNC)
    if status == 202:
        assert ended(server, told["id"])[1]["stdout"] == "hi\n"
    status, result = server.call("POST", "/v1/runs", {"argv": ["echo", "hi"]}, Prefer="wait=60")
    assert (status, result["stdout"]) == (200, "hi\n")


def test_id_and_idempotency_key_are_one(host, gate):
    body = {"argv": ["echo", "hi"]}
    assert (
        host.call("POST", "/v1/runs", body, Idempotency_Key="k 1/ä".encode().decode("latin-1"))[0]
        == 200
    )
    assert host.call("GET", "/v1/runs/k%201%2F%C3%A4")[1]["stdout"] == "hi\n"
    assert host.call("POST", "/v1/runs", {**body, "id": "b"}, Idempotency_Key="b")[0] == 200
    status, problem = host.call("POST", "/v1/runs", {**body, "id": "b"}, Idempotency_Key="c")
    assert status == 400 and "Idempotency-Key" in problem["detail"]
    status, problem = host.call("POST", "/v1/runs", {"argv": ["false"], "id": "b"})
    assert (status, problem["code"]) == (409, "idempotency_conflict")
    for bad in ("", "a/b", "a b", "x" * 65, 7):
        assert host.call("POST", "/v1/runs", {**body, "id": bad})[0] == 400
    # A key of another kind of request is no run.
    assert host.call("POST", "/v1/sandboxes", {"name": "s"}, Idempotency_Key="box")[0] == 201
    assert host.call("GET", "/v1/runs/box")[0] == 404
    assert host.call("GET", "/v1/runs/none")[0] == 404


def test_retry_of_a_running_run_waits_for_as_long_as_it_prefers(host, gate):
    body = {**waits(gate), "id": "r"}
    assert host.call("POST", "/v1/runs", body, **ASYNC)[0] == 202
    assert host.call("POST", "/v1/runs", body, **ASYNC)[0] == 202
    found = []
    thread = threading.Thread(target=lambda: found.append(post_apart(host, body)))
    thread.start()
    until(lambda: began(gate))
    (gate / "go").touch()
    thread.join(DEADLINE)
    assert found == [200]
    assert (gate / "began").read_text() == "run\n"


def post_apart(server, body):  # noqa: F811
    """The status, without the server object's record of headers."""
    connection = server.connect()
    connection.request(
        "POST", "/v1/runs", json.dumps(body), {"Authorization": f"Bearer {server.token}"}
    )
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_cancelled_run_ends_and_does_not_begin_again(host, gate):
    body = {**waits(gate), "id": "r"}
    assert host.call("POST", "/v1/runs", body, **ASYNC)[0] == 202
    until(lambda: began(gate))
    assert host.call("DELETE", "/v1/runs/r")[0] == 204
    status, problem = ended(host, "r")
    assert (status, problem["code"], problem["result"]["outcome"]) == (499, "cancelled", "error")
    assert host.call("POST", "/v1/runs", body)[1]["code"] == "cancelled"
    assert host.call("DELETE", "/v1/runs/r")[0] == 204
    assert host.call("GET", "/v1/runs/r")[1]["code"] == "idempotency_expired"
    assert host.call("POST", "/v1/runs", body)[0] == 410
    assert (gate / "began").read_text() == "run\n"


def test_run_that_waits_in_the_queue_is_cancelled_before_it_begins(small):  # noqa: F811
    with full(small):
        body = {"argv": ["true"], "policy": HALF, "id": "b"}
        assert small.call("POST", "/v1/runs", body, **ASYNC)[0] == 202
        until(lambda: small.call("GET", "/v1/runs/b?wait=0")[1].get("queue_position") == 1)
        assert small.call("DELETE", "/v1/runs/b")[0] == 204
        assert ended(small, "b")[1]["code"] == "cancelled"


def test_end_in_the_queue_is_kept_for_a_client_that_was_told_202(small):  # noqa: F811
    with full(small):
        body = {"argv": ["true"], "policy": HALF, "id": "b", "queue_timeout_ms": 500}
        assert small.call("POST", "/v1/runs", body, **ASYNC)[0] == 202
        assert ended(small, "b")[1]["code"] == "queue_timeout"
        assert small.call("POST", "/v1/runs", body)[1]["code"] == "queue_timeout"


def test_runs_and_their_ends_outlive_a_killed_server(caller, gate):  # noqa: F811
    state = caller.directory()
    with Server(caller, "--state", state) as server:  # noqa: F811
        server.token = server.new_token("one", "run", "host")
        assert server.call("POST", "/v1/runs", {"argv": ["echo", "hi"], "id": "a"})[0] == 200
        body = {**waits(gate), "id": "b"}
        assert server.call("POST", "/v1/runs", body, **ASYNC)[0] == 202
        until(lambda: began(gate))
        server.process.kill()
        server.process.wait(DEADLINE)
        with Server(caller, "--state", state, directory=server.directory) as second:
            second.token = server.token
            assert second.call("GET", "/v1/runs/a")[1]["stdout"] == "hi\n"
            for answer in (
                second.call("GET", "/v1/runs/b"),
                second.call("POST", "/v1/runs", body),
            ):
                assert (answer[0], answer[1]["code"]) == (410, "idempotency_lost")
        assert (gate / "began").read_text() == "run\n"


def test_killed_engine_ends_a_run_that_is_asked_for_by_its_id(host, gate):
    assert host.call("POST", "/v1/runs", {**waits(gate), "id": "r"}, **ASYNC)[0] == 202
    until(lambda: began(gate))
    for pid in descendants(host.process.pid):
        try:
            name = open(f"/proc/{pid}/comm").read().strip()
        except OSError:
            continue
        if name == "rollbox-engine":
            os.kill(pid, 9)
    assert ended(host, "r")[1]["code"] == "engine_lost"
    assert host.call("POST", "/v1/runs", {**waits(gate), "id": "r"})[1]["code"] == "engine_lost"
    assert (gate / "began").read_text() == "run\n"


@pytest.mark.parametrize("kind", ["run", "exec"])
def test_parts_of_output(server, kind):  # noqa: F811
    script = {"argv": ["sh", "-c", "printf 0123456789; printf '\\377\\0x' >&2"]}
    if kind == "run":
        path = "/v1/runs/r/output"
        assert server.call("POST", "/v1/runs", {**script, "id": "r"})[0] == 200
    else:
        path = "/v1/sandboxes/box/execs/e/output"
        server.call("POST", "/v1/sandboxes", {"name": "box"})
        assert server.call("PUT", "/v1/sandboxes/box/execs/e", script)[0] == 200
    assert server.call("GET", path) == (200, b"0123456789")
    assert server.headers["Rollbox-State"] == "ended"
    assert server.call("GET", f"{path}?stream=stderr") == (200, b"\xff\0x")
    for offset in range(11):
        assert server.call("GET", f"{path}?offset={offset}&length=4") == (
            200,
            b"0123456789"[offset : offset + 4],
        )
        assert server.headers["Rollbox-Offset"] == str(offset)
        assert server.headers["Rollbox-Next-Offset"] == str(min(offset + 4, 10))
    for field, part, told in (
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=8-", b"89", "bytes 8-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=0-18446744073709551615", b"0123456789", "bytes 0-9/10"),
        (f"bytes=1-{'9' * 30}", b"123456789", "bytes 1-9/10"),
    ):
        assert server.call("GET", path, Range=field) == (206, part)
        assert server.headers["Content-Range"] == told
    assert server.call("GET", path, Range="bytes=10-")[0] == 416
    assert server.call("GET", f"{path}?offset=11")[0] == 416
    # Other units, several ranges and malformed ones are ignored.
    for field in ("bytes=2--1", "bytes= 2-4", "bytes=1-2,4-5", "lines=1-2"):
        assert server.call("GET", path, Range=field) == (200, b"0123456789")
    for query in ("stream=none", "offset=-1", "offset=x", "length=-1", "offset=%20-1"):
        assert server.call("GET", f"{path}?{query}")[0] == 400
    assert server.call("GET", path.replace("/r/", "/no/").replace("/e/", "/no/"))[0] == 404


def test_output_of_a_running_command_is_read_in_parts(server):  # noqa: F811
    server.call("POST", "/v1/sandboxes", {"name": "box"})
    path = "/v1/sandboxes/box/execs/e"
    body = {"argv": ["sh", "-c", "printf abc; read x; printf $x; read x"], "stdin_open": True}
    assert server.call("PUT", path, body, **ASYNC)[0] == 202
    until(lambda: server.call("GET", f"{path}/output") == (200, b"abc"))
    assert server.headers["Rollbox-State"] == "running"
    assert server.call("GET", f"{path}/output?offset=3") == (200, b"")
    assert server.call("GET", f"{path}/output?offset=4")[0] == 416
    server.call("POST", f"{path}/stdin", b"defg\n")
    until(lambda: server.call("GET", f"{path}/output?offset=3") == (200, b"defg"))
    assert server.call("GET", f"{path}/output?offset=1&length=4") == (200, b"bcde")
    server.call("POST", f"{path}/stdin?eof=1", b"\n")
    assert server.call("GET", f"{path}?wait=30")[1]["stdout"] == "abcdefg"
    assert server.call("GET", f"{path}/output?offset=3") == (200, b"defg")
