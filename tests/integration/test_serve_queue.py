# SPDX-License-Identifier: Apache-2.0
"""The fair queue of the HTTP server: turns between tenants, priorities, bounds, waiting."""

import json
import threading

from harness import DEADLINE, caller, until  # noqa: F401
from serving import Server, server  # noqa: F401
from serving_queue import BUDGET, HALF, full, numbers, small  # noqa: F401


class Call:
    """A request in a thread of its own; `answer` is set at its end."""

    def __init__(self, server, token, body, path="/v1/runs"):
        self.answer = None
        self.arguments = (server, token, body, path)
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        server, token, body, path = self.arguments
        connection = server.connect()
        data = body if isinstance(body, bytes) else json.dumps(body)
        connection.request("POST", path, data, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        self.answer = answer.status, answer.read(), answer.headers
        connection.close()

    def end(self):
        self.thread.join(DEADLINE)
        assert self.answer is not None
        return self.answer[0]


def queued(server, token, n):
    until(lambda: numbers(server, token)["current"]["queued"] == n)


def test_flood_of_one_tenant_leaves_the_other_its_turns(server):
    flood = server.new_token("flood")
    jobs = b'{"argv": ["true"]}\n' * 400
    batch = Call(server, flood, jobs, path="/v1/batches")
    until(lambda: numbers(server, flood)["current"]["queued"] > 20)
    before = []
    for _ in range(10):
        begun = numbers(server, flood)["started"]
        assert server.call("POST", "/v1/runs", {"argv": ["true"]})[0] == 200
        before.append(numbers(server, flood)["started"] - begun)
    assert batch.end() == 200
    # Without turns each run waits for all 64 jobs that are under way.
    assert sorted(before)[5] < 40, before


def test_higher_priority_starts_first(small):
    token = small.new_token("prio")
    calls = {}
    with full(small):
        for i, priority in enumerate(("low", "normal", "high", "normal")):
            body = {"argv": ["date", "+%s%N"], "policy": HALF, "priority": priority}
            calls[f"{priority}{i}"] = Call(small, token, body)
            queued(small, token, i + 1)
        told = numbers(small, token)["queued"]
        assert told == {"high": 1, "normal": 2, "low": 1}
    assert [call.end() for call in calls.values()] == [200] * 4
    # The times at which the programs ran: the answers' threads may wake in another order.
    times = {name: int(json.loads(call.answer[1])["stdout"]) for name, call in calls.items()}
    assert sorted(times, key=times.get) == ["high2", "normal1", "normal3", "low0"]
    bad = {"argv": ["true"], "priority": "highest"}
    assert small.call("POST", "/v1/runs", bad, token=token)[0] == 400


def test_large_run_does_not_block_small_ones(small):
    token, other = small.new_token("large"), small.new_token("other")
    with full(small):
        large = Call(small, token, {"argv": ["true"], "policy": HALF})
        queued(small, token, 1)
        little = {"argv": ["true"], "policy": {"max_memory": "16M"}}
        for who in (token, other):
            assert small.call("POST", "/v1/runs", little, token=who)[0] == 200
        assert large.answer is None
    assert large.end() == 200


def test_large_run_is_not_passed_for_ever(small):
    """Small runs are held back once others had four times its memory."""
    token, other = small.new_token("large"), small.new_token("other")
    with full(small):
        large = Call(small, token, {"argv": ["true"], "policy": HALF})
        queued(small, token, 1)
        little = {"argv": ["true"], "policy": {"max_memory": "64M"}, "queue_timeout_ms": 300}
        statuses = []
        while 503 not in statuses and len(statuses) < 40:
            statuses.append(small.call("POST", "/v1/runs", little, token=other)[0])
        assert 3 < len(statuses) < 20 and set(statuses) == {200, 503}, statuses
    assert large.end() == 200
    assert small.call("POST", "/v1/runs", little, token=other)[0] == 200


def test_queue_is_bounded_for_each_tenant(small):
    token = small.new_token("bounded", arguments=("--quota", "queued=2"))
    body = {"argv": ["true"], "policy": HALF}
    with full(small):
        calls = [Call(small, token, body) for _ in range(2)]
        queued(small, token, 2)
        status, problem = small.call("POST", "/v1/runs", body, token=token)
        assert (status, problem["code"], problem["retryable"]) == (429, "quota_exceeded", True)
        assert (problem["limit"], problem["current"], problem["maximum"]) == ("queued", 2, 2)
        assert small.headers["Retry-After"]
        assert numbers(small, token)["refused"]["queued"] == 1
        other = small.new_token("free")
        waits = Call(small, other, body)
        queued(small, other, 1)
    assert [call.end() for call in (*calls, waits)] == [200] * 3


def test_request_waits_no_longer_than_it_says(small):
    token = small.new_token("brief")
    with full(small):
        body = {"argv": ["true"], "policy": HALF, "queue_timeout_ms": 50}
        status, problem = small.call("POST", "/v1/runs", body, token=token)
        assert (status, problem["code"], problem["retryable"]) == (503, "queue_timeout", True)
        assert small.headers["Retry-After"]
        assert numbers(small, token)["running"] == 0
    bad = {"argv": ["true"], "queue_timeout_ms": 0}
    assert small.call("POST", "/v1/runs", bad, token=token)[0] == 400


def test_client_that_leaves_the_queue_is_not_run(small):
    token = small.new_token("leaves")
    with full(small):
        connection = small.connect()
        body = json.dumps({"argv": ["true"], "policy": HALF})
        connection.request("POST", "/v1/runs", body, {"Authorization": f"Bearer {token}"})
        queued(small, token, 1)
        connection.close()
        queued(small, token, 0)
    until(lambda: numbers(small, token)["running"] == 0)
    assert numbers(small, token)["started"] == 0


def test_jobs_of_a_batch_wait_for_their_tenants_quota(server):
    token = server.new_token("batch", arguments=("--quota", "running=2", "--quota", "memory=128M"))
    jobs = b"".join(
        json.dumps({"id": i, "argv": ["true"], "policy": {"max_memory": "64M"}}).encode() + b"\n"
        for i in range(20)
    )
    until(lambda: server.call("GET", "/v1/sandboxes", token=token)[0] == 200)
    call = Call(server, token, jobs, path="/v1/batches")
    assert call.end() == 200
    rows = [json.loads(line) for line in call.answer[1].splitlines()]
    assert sorted(row["id"] for row in rows) == list(range(20))
    assert {row["outcome"] for row in rows} == {"exit"}
    large = b'{"argv": ["true"], "policy": {"max_memory": "129M"}}\n'
    assert server.call("POST", "/v1/batches", large, token=token)[1]["error"]["code"] == (
        "quota_exceeded"
    )


def test_jobs_of_a_batch_wait_for_the_rate(server):
    token = server.new_token("rated", arguments=("--quota", "rate=40", "--quota", "burst=1"))
    until(lambda: server.call("GET", "/v1/sandboxes", token=token)[0] == 200)
    jobs = b'{"argv": ["true"]}\n' * 12
    call = Call(server, token, jobs, path="/v1/batches")
    assert call.end() == 200
    rows = [json.loads(line) for line in call.answer[1].splitlines()]
    assert [row["outcome"] for row in rows] == ["exit"] * 12, rows


def test_status_tells_quotas_queues_and_refusals(server):
    token = server.new_token("told")
    done = server.who.rollbox(
        "token",
        "tenant",
        "--tokens",
        server.tokens,
        "--quota",
        "sandboxes=1",
        "--weight",
        "7",
        "told",
    )
    assert done.returncode == 0, done.stderr
    admin = server.new_token("ops", "admin")
    create = lambda: server.call("POST", "/v1/sandboxes", {}, token=token)[0]  # noqa: E731
    until(lambda: create() == 429)
    rows = server.call("GET", "/v1/status", token=admin)[1]["tenants"]
    row = next(row for row in rows if row["tenant"] == "told")
    assert row["quotas"]["sandboxes"] == 1 and row["quotas"]["memory"] is None
    assert row["current"]["sandboxes"] == 1 and row["current"]["memory"] == 512 << 20
    assert row["refused"]["sandboxes"] == 1 and row["refused"]["rate"] == 0
    assert row["weight"] == 7 and row["started"] == 1
    assert server.call("GET", "/v1/quota", token=token)[1]["current"] == row["current"]
    assert server.call("GET", "/v1/status", token=token)[0] == 403
