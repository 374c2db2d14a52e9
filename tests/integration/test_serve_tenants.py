# SPDX-License-Identifier: Apache-2.0
"""Tenants of the HTTP server: quotas over every way to start something, and what gives them back."""

import json
import os
import threading

import pytest
from harness import caller, until  # noqa: F401
from serving import Server, Socket, server  # noqa: F401

POLICY = {"max_memory": "64M", "max_disk": "32M"}
CPUS = os.cpu_count()  # which a sandbox without max_cpu may use


def tenant(server, name, *quotas, arguments=()):
    """A token of a tenant with these quotas ("memory=1G")."""
    done = server.who.rollbox(
        "token",
        "tenant",
        "--tokens",
        server.tokens,
        *[word for quota in quotas for word in ("--quota", quota)],
        *arguments,
        name,
    )
    assert done.returncode == 0, done.stderr
    token = server.new_token(name)
    # The first request with a token that is not known makes the server read the file.
    until(lambda: server.call("GET", "/v1/sandboxes", token=token)[0] == 200)
    return token


def create(server, token, **more):
    return server.call("POST", "/v1/sandboxes", {"policy": POLICY, **more}, token=token)


def refused(answer, limit, current, maximum):
    status, problem = answer
    assert status == 429, answer
    assert problem["code"] == "quota_exceeded" and problem["retryable"], problem
    assert (problem["limit"], problem["current"], problem["maximum"]) == (
        limit,
        current,
        maximum,
    )


@pytest.mark.parametrize(
    "quota, limit, maximum, used",
    [
        ("sandboxes=2", "sandboxes", 2, 2),
        ("memory=128M", "memory", 128 << 20, 128 << 20),
        (f"cpus={2 * CPUS}", "cpus", 2.0 * CPUS, 2.0 * CPUS),
        ("disk=64M", "disk", 64 << 20, 64 << 20),
    ],
)
def test_quota_of_sandboxes_is_given_back_at_their_end(server, quota, limit, maximum, used):
    token = tenant(server, "small", quota)
    for name in ("a", "b"):
        assert create(server, token, name=name)[0] == 201
    refused(create(server, token), limit, used, maximum)
    assert server.headers["Retry-After"] == "1"
    assert server.call("DELETE", "/v1/sandboxes/a", token=token)[0] == 204
    assert create(server, token)[0] == 201


def test_forks_count_each_clone_of_all_limits(server):
    token = tenant(server, "forks", "memory=256M")
    assert create(server, token, name="box")[0] == 201
    fork = lambda n: server.call("POST", "/v1/sandboxes/box/fork", {"n": n}, token=token)  # noqa: E731
    status, problem = fork(64)
    assert (status, problem["limit"], problem["retryable"]) == (429, "memory", False)
    status, made = fork(3)
    assert status == 201
    refused(fork(1), "memory", 256 << 20, 256 << 20)
    assert server.call("DELETE", f"/v1/sandboxes/{made['sandboxes'][0]}", token=token)[0] == 204
    assert fork(1)[0] == 201


def test_end_of_a_lease_gives_its_quota_back(server):
    token = tenant(server, "leased", "sandboxes=1")
    lease = server.call("POST", "/v1/leases", {}, token=token)[1]["id"]
    assert create(server, token, lease=lease)[0] == 201
    refused(create(server, token), "sandboxes", 1, 1)
    assert server.call("DELETE", f"/v1/leases/{lease}", token=token)[0] == 204
    assert create(server, token)[0] == 201


def test_sandboxes_that_are_being_made_count(server):
    """Requests that come at once do not pass the quota together."""
    token = tenant(server, "race", "sandboxes=3")
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(create_apart(server, token)))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [201] * 3 + [429] * 9


def create_apart(server, token):
    """The status, without the server object's record of headers."""
    connection = server.connect()
    connection.request(
        "POST",
        "/v1/sandboxes",
        json.dumps({"policy": POLICY}),
        {"Authorization": f"Bearer {token}"},
    )
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_failed_creation_gives_its_quota_back(server):
    token = tenant(server, "fails", "sandboxes=1")
    for _ in range(3):
        status = create(server, token, policy={**POLICY, "max_memory": "nonsense"})[0]
        assert status == 400
    assert create(server, token, name="a")[0] == 201
    assert create(server, token, name="a")[0] in (409, 429)
    assert server.call("DELETE", "/v1/sandboxes/a", token=token)[0] == 204
    assert create(server, token, name="a")[0] == 201


def test_starts_and_rate_count_every_kind_of_start(server):
    token = tenant(server, "daily", "starts=6")
    true = {"argv": ["true"], "policy": POLICY}
    assert create(server, token, name="box")[0] == 201
    assert server.call("POST", "/v1/runs", true, token=token)[0] == 200
    assert server.call("POST", "/v1/sandboxes/box/execs", {"argv": ["true"]}, token=token)[0] == 200
    assert (
        server.call("PUT", "/v1/sandboxes/box/execs/e", {"argv": ["true"]}, token=token)[0] == 200
    )
    assert (
        server.call("POST", "/run_code", {"code": "1", "language": "python"}, token=token)[0] == 200
    )
    with Socket(server, "/v1/sandboxes/box/channel", token=token) as channel:
        channel.send({"start": {"argv": ["true"]}})
        assert any("result" in message for message in channel.all())
    refused(server.call("POST", "/v1/runs", true, token=token), "starts", 6, 6)
    assert int(server.headers["Retry-After"]) > 0
    refused(create(server, token), "starts", 6, 6)
    refused(server.call("POST", "/v1/sandboxes/box/fork", {}, token=token), "starts", 6, 6)
    refused(
        server.call("POST", "/v1/sandboxes/box/execs", {"argv": ["true"]}, token=token),
        "starts",
        6,
        6,
    )
    with Socket(server, "/v1/sandboxes/box/channel", token=token) as channel:
        channel.send({"start": {"argv": ["true"]}})
        assert channel.next()["error"]["code"] == "quota_exceeded"
    row = server.call("POST", "/v1/batches", b'{"id": 7, "argv": ["true"]}\n', token=token)[1]
    assert row["error"]["code"] == "quota_exceeded"

    rated = tenant(server, "rated", "rate=0.01", "burst=2")
    for _ in range(2):
        assert server.call("POST", "/v1/runs", true, token=rated)[0] == 200
    refused(server.call("POST", "/v1/runs", true, token=rated), "rate", 0.01, 0.01)
    assert int(server.headers["Retry-After"]) > 10


def test_quota_of_a_token_is_below_its_tenants(server):
    tenant(server, "both", "sandboxes=2")
    weak = server.new_token("both", arguments=("--quota", "sandboxes=1"))
    strong = server.new_token("both", arguments=("--quota", "sandboxes=9"))
    assert create(server, weak)[0] == 201
    refused(create(server, weak), "sandboxes", 1, 1)
    assert create(server, strong)[0] == 201
    refused(create(server, strong), "sandboxes", 2, 2)


def test_changed_quota_holds_without_a_restart(server):
    token = tenant(server, "grows", "sandboxes=1")
    assert create(server, token)[0] == 201
    refused(create(server, token), "sandboxes", 1, 1)
    tenant(server, "grows", "sandboxes=2")
    until(lambda: create(server, token)[0] == 201)
    tenant(server, "grows", "sandboxes=0")
    until(lambda: create(server, token)[1].get("maximum") == 0)


def test_default_quotas_are_of_tenants_without_their_own(caller):  # noqa: F811
    with Server(caller, "--quota", "sandboxes=1", "--quota", "memory=1G") as server:  # noqa: F811
        assert create(server, server.token)[0] == 201
        refused(create(server, server.token), "sandboxes", 1, 1)
        own = tenant(server, "own", "sandboxes=2")
        assert [create(server, own)[0] for _ in range(3)] == [201, 201, 429]
