# SPDX-License-Identifier: Apache-2.0
"""Batches of the HTTP server: jobs stream in, rows stream out, and every line has exactly one row."""

import http.client
import json

import pytest
from harness import DEADLINE, caller, until  # noqa: F401
from serving import server  # noqa: F401


class Batch:
    """One POST /v1/batches, both ways at once."""

    def __init__(self, server, query="", token=None):  # noqa: F811
        self.connection = server.connect()
        self.connection.putrequest("POST", "/v1/batches" + query)
        self.connection.putheader("Authorization", f"Bearer {token or server.token}")
        self.connection.putheader("Transfer-Encoding", "chunked")
        self.connection.endheaders()
        self.answer = None

    def send(self, *lines):
        data = b"".join(
            (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n"
            for line in lines
        )
        self.connection.send(b"%x\r\n%s\r\n" % (len(data), data))

    def end(self):
        self.connection.send(b"0\r\n\r\n")

    def row(self):
        if self.answer is None:
            self.answer = self.connection.getresponse()
            assert self.answer.status == 200
        line = self.answer.readline()
        return json.loads(line) if line else None

    def rows(self):
        return list(iter(self.row, None))


def test_every_line_has_one_row(server):  # noqa: F811
    batch = Batch(server)
    batch.send(
        {"id": "a", "argv": ["echo", "a"]},
        {"id": 7, "argv": ["sh", "-c", "exit 3"]},
        b"no json",
        b"[1]",
        b"",
        {"id": "none", "argv": ["no-such-program"]},
        {"id": "bad", "argv": []},
        {"id": "policy", "argv": ["true"], "policy": {"fs_readable": ["/etc"]}},
        {"id": "unknown", "argv": ["true"], "unknown": 1},
        {"argv": ["echo", "without id"]},
    )
    batch.end()
    rows = {row["id"]: row for row in batch.rows()}
    assert set(rows) == {"a", 7, 3, 4, "none", "bad", "policy", "unknown", 9}
    assert (rows["a"]["outcome"], rows["a"]["stdout"], rows[7]["exit_code"]) == ("exit", "a\n", 3)
    assert rows[9]["stdout"] == "without id\n"
    for id, code in (
        (3, "request_invalid"),
        (4, "request_invalid"),
        ("none", "command_not_found"),
        ("bad", "invalid_argument"),
        ("policy", "policy_forbidden"),
        ("unknown", "request_invalid"),
    ):
        assert (rows[id]["outcome"], rows[id]["error"]["code"]) == ("error", code)


def test_rows_come_while_jobs_are_sent(server):  # noqa: F811
    batch = Batch(server)
    for number in range(5):
        batch.send({"id": number, "argv": ["echo", str(number)]})
        assert batch.row()["stdout"] == f"{number}\n"
    batch.end()
    assert batch.row() is None


def test_ordered_rows_have_the_order_of_the_jobs(server):  # noqa: F811
    batch = Batch(server, "?ordered=1")
    batch.send(
        {"id": 0, "argv": ["sleep", "0.3"]}, *({"id": n, "argv": ["true"]} for n in range(1, 30))
    )
    batch.end()
    assert [row["id"] for row in batch.rows()] == list(range(30))


def test_batch_keeps_to_the_quota_of_its_token(server):  # noqa: F811
    token = server.new_token("two", arguments=("--max-running", "2"))
    batch = Batch(server, token=token)
    batch.send(*({"id": n, "argv": ["sleep", "0.02"]} for n in range(30)))
    batch.end()
    rows = batch.rows()
    assert sorted(row["id"] for row in rows) == list(range(30))
    assert {row["outcome"] for row in rows} == {"exit"}


def test_large_batch_is_streamed(server):  # noqa: F811
    batch = Batch(server)
    code = {"argv": ["head", "-c", "20000", "/dev/zero"]}
    sent, got = 0, set()
    while len(got) < 600:
        while sent < min(600, len(got) + 100):
            batch.send({"id": sent, **code})
            sent += 1
        if sent == 600 and sent >= 0:
            batch.end()
            sent = 601
        row = batch.row()
        assert row["id"] not in got and len(row["stdout"]) == 20000
        got.add(row["id"])
    assert batch.row() is None


def test_jobs_end_with_their_client(server):  # noqa: F811
    token = server.new_token("admin", "run", "admin")

    def running():
        tenants = server.call("GET", "/v1/status", token=token)[1]["tenants"]
        return {row["tenant"]: row["running"] for row in tenants}.get("one", 0)

    batch = Batch(server)
    batch.send(*({"argv": ["sleep", "1000"]} for _ in range(10)))
    until(lambda: running() == 10)
    batch.connection.close()
    until(lambda: running() == 0)


def test_line_without_end_breaks_the_stream(server):  # noqa: F811
    batch = Batch(server)
    with pytest.raises((http.client.HTTPException, OSError)):
        for _ in range(40):
            data = b"x" * (1 << 19)
            batch.connection.send(b"%x\r\n%s\r\n" % (len(data), data))
        batch.connection.getresponse().read()
    assert server.call("GET", "/healthz")[0] == 200
