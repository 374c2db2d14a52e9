# SPDX-License-Identifier: Apache-2.0
"""Tenants of the HTTP server: quotas over every way to start something, and what gives them back."""

import json
import os
import re
import socket
import threading

import pytest
from harness import DEADLINE, caller, until  # noqa: F401
from serving import Server, Socket, server  # noqa: F401

POLICY = {"max_memory": "64M", "max_disk": "32M"}
CPUS = os.cpu_count()  # which a sandbox without max_cpu may use


def tenant(server, name, *quotas, arguments=()):
    """A token of a tenant with these quotas ("memory=1G")."""
    given = [word for quota in quotas for word in ("--quota", quota)]
    given += arguments
    if given:
        words = ("token", "tenant", "--tokens", server.tokens, *given, name)
        done = server.who.rollbox(*words)
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


def test_sandbox_that_ends_by_itself_gives_its_quota_back(server):
    token = tenant(server, "brief", "sandboxes=1")
    assert create(server, token, name="box", ttl_s=1)[0] == 201
    refused(create(server, token), "sandboxes", 1, 1)
    until(lambda: create(server, token)[0] == 201)
    assert server.call("GET", "/v1/sandboxes/box", token=token)[0] == 404


def test_route_with_a_name_of_another_tenant_is_404(server):
    """Every path of the OpenAPI document that names something."""
    lease = server.call("POST", "/v1/leases", {})[1]["id"]
    assert create(server, server.token, name="box", lease=lease)[0] == 201
    assert server.call("POST", "/v1/sandboxes/box/snapshots", {"name": "base"})[0] == 201
    body = {"argv": ["sleep", "1000"]}
    begun = server.call("PUT", "/v1/sandboxes/box/execs/e", body, Prefer="respond-async")
    assert begun[0] == 202
    assert server.call("POST", "/v1/runs", {"argv": ["true"], "id": "r"})[0] == 200
    other = server.new_token("two", "run", "net", "host", "admin")
    until(lambda: server.call("GET", "/v1/sandboxes", token=other)[0] == 200)
    names = {"sandbox": "box", "lease": lease, "snapshot": "base", "exec": "e", "path": "tmp"}
    assert server.call("POST", "/v1/sandboxes/box/fork", {})[0] == 201
    names.update(run="r", tree=server.call("GET", "/v1/trees")[1]["trees"][0]["id"])
    tried = 0
    for path, methods in server.call("GET", "/v1/openapi.json")[1]["paths"].items():
        if "{" not in path or not path.startswith("/v1/"):
            continue
        real = re.sub(r"\{(\w+)(\.\.\.)?\}", lambda m: names.get(m[1], "box"), path)
        for method in methods:
            sent = {} if method in ("post", "put", "patch") else None
            status = server.call(method.upper(), real, sent, token=other)[0]
            assert status == 404, (method, real, status)
            tried += 1
    assert tried > 30
    # And nothing of it has happened.
    assert server.call("GET", "/v1/sandboxes/box/execs/e?wait=0")[0] == 202
    assert server.call("PUT", f"/v1/leases/{lease}")[0] == 200
    for path in ("/v1/quota", "/v1/usage", "/v1/usage?by=sandbox", "/v1/usage?by=lease"):
        text = json.dumps(server.call("GET", path, token=server.new_token("three"))[1])
        assert "box" not in text.replace("sandbox", "") and lease not in text, text


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


def ceiling(server, name, value, *quotas):
    """A token of a tenant with this ceiling."""
    path = server.directory / f"ceiling-{name}"
    path.write_text(json.dumps(value))
    path.chmod(0o644)
    return tenant(server, name, *quotas, arguments=("--ceiling", path))


def run(server, token, policy=None, **more):
    body = {"argv": ["true"], **more}
    if policy is not None:
        body["policy"] = policy
    return server.call("POST", "/v1/runs", body, token=token)


@pytest.mark.parametrize(
    "most, policy, words",
    [
        ({"max_memory": "64M"}, {"max_memory": "65M"}, ("max_memory", "65M", "64M")),
        ({"max_open_files": 64}, {"ulimits": {"nofile": 65}}, ("ulimits nofile", "65", "64")),
        ({"max_open_files": 64}, {"ulimits": {"nofile": "32:unlimited"}}, ("nofile", "not limited")),
        ({"max_memory": "64M"}, {"max_memory": 67108865}, ("max_memory", "67108865", "64M")),
        ({"max_disk": "32M"}, {"max_disk": "33M"}, ("max_disk", "33M", "32M")),
        ({"max_cpu": 0.5}, {"max_cpu": 0.6}, ("max_cpu", "0.6", "0.5")),
        ({"max_processes": 10}, {"max_processes": 11}, ("max_processes", "11", "10")),
        ({"max_open_files": 100}, {"max_open_files": 101}, ("max_open_files", "101", "100")),
        ({"max_output": "1M"}, {"max_output": "2M"}, ("max_output", "2M", "1M")),
        ({"timeout": 5}, {"timeout": 6}, ("timeout", "6", "5")),
        ({"timeout": 5}, {"timeout": "none"}, ("timeout", "none", "5")),
        ({"net": ["none"]}, {"net": "loopback"}, ("net", "loopback", "none")),
        ({"image": ["python:*"]}, {"image": "debian:12"}, ("image", "debian:12", "python:*")),
    ],
)
def test_policy_above_the_ceiling_names_key_value_and_ceiling(server, most, policy, words):
    token = ceiling(server, "low", most)
    for answer in (
        run(server, token, policy),
        server.call("POST", "/v1/sandboxes", {"policy": policy}, token=token),
    ):
        assert (answer[0], answer[1]["code"]) == (403, "policy_forbidden"), answer
        assert all(word in answer[1]["detail"] for word in words), answer
    line = json.dumps({"argv": ["true"], "policy": policy}).encode() + b"\n"
    row = server.call("POST", "/v1/batches", line, token=token)[1]
    assert row["error"]["code"] == "policy_forbidden"


def test_ceiling_limits_grants_of_the_host(server):
    programs = ["/usr", "/bin", "/lib", "/lib64"]
    token = ceiling(
        server,
        "granted",
        {"fs_readable": programs, "devices": ["/dev/null"], "volumes": ["scratch-*"]},
    )
    host = server.new_token("granted", "run", "host")
    until(lambda: server.call("GET", "/v1/sandboxes", token=host)[0] == 200)
    assert run(server, host, {"fs_readable": [*programs, "/usr/share"]})[0] == 200
    for policy in (
        {"fs_readable": ["/usr", "/var"]},
        {"fs_readable": ["/usrx"]},
        {"fs_readable": ["/usr/../var"]},
        {"devices": ["/dev/zero"]},
        {"volumes": {"/data": "other"}},
    ):
        status, problem = run(server, host, policy)
        assert status == 403 and problem["code"] == "policy_forbidden", (policy, problem)
    assert run(server, token, {"fs_readable": ["/usr/share"]})[0] == 403  # by its scope


def test_ceiling_fills_what_a_policy_leaves_out(server):
    token = ceiling(
        server,
        "filled",
        {"max_memory": "100M", "max_output": "1K", "defaults": {"env": {"WHO": "me"}}},
        "memory=100M",
    )
    status, result = run(server, token, argv=["sh", "-c", "echo $WHO; yes | head -c 5000"])
    assert status == 200, result
    assert result["stdout"].startswith("me\n") and result["stdout_truncated"]
    assert server.call("POST", "/v1/sandboxes", {}, token=token)[0] == 201
    refused(server.call("POST", "/v1/sandboxes", {}, token=token), "memory", 100 << 20, 100 << 20)


def test_time_of_commands_is_below_the_ceiling(server):
    token = ceiling(server, "timed", {"timeout": 100})
    assert create(server, token, name="box")[0] == 201
    path = "/v1/sandboxes/box/execs"
    for timeout, status in ((100_000, 200), (100_001, 403), (None, 403)):
        body = {"argv": ["true"], "timeout_ms": timeout}
        assert server.call("POST", path, body, token=token)[0] == status
        assert run(server, token, timeout_ms=timeout)[0] == status
    body = {"code": "1", "language": "python", "run_timeout": 101}
    assert server.call("POST", "/run_code", body, token=token)[0] == 403


def test_output_of_a_command_is_below_the_ceiling(server):
    token = ceiling(server, "says", {"max_output": "1K"})
    run = {"argv": ["head", "-c", "9000", "/dev/zero"], "output_limit": 100000}
    status, answer = server.call("POST", "/v1/runs", run, token)
    assert (status, answer["outcome"], len(answer["stdout"])) == (200, "output_limit", 1024)
    code = {"code": "print('x' * 9000)", "language": "python"}
    answer = server.call("POST", "/run_code", code, token)[1]
    assert answer["status"] == "Failed" and len(answer["run_result"]["stdout"]) == 1024


def test_output_is_bounded_without_a_ceiling(server):
    """The engine keeps it in memory that is not the sandbox's."""
    run = {"argv": ["true"], "policy": {"max_output": "2G"}}
    status, answer = server.call("POST", "/v1/runs", run)
    assert (status, answer["code"]) == (403, "policy_forbidden"), answer
    assert "max_output" in answer["detail"] and "2G" in answer["detail"]
    status, answer = server.call("POST", "/v1/runs", {"argv": ["true"], "output_limit": 1 << 31})
    assert (status, answer["code"]) == (400, "invalid_argument"), answer
    run = {"argv": ["true"], "policy": {"max_output": "1G"}, "output_limit": 1 << 30}
    assert server.call("POST", "/v1/runs", run)[1]["outcome"] == "exit"


def test_fork_of_a_sandbox_above_a_new_ceiling_is_refused(server):
    token = tenant(server, "shrinks")
    assert create(server, token, name="box")[0] == 201
    fork = lambda: server.call("POST", "/v1/sandboxes/box/fork", {}, token=token)  # noqa: E731
    assert fork()[0] == 201
    ceiling(server, "shrinks", {"max_memory": "32M"})
    until(lambda: fork()[0] == 403)
    assert "max_memory" in fork()[1]["detail"]


def test_malformed_ceiling_is_refused(caller):  # noqa: F811
    path = caller.directory() / "ceiling"
    for text, word in (
        ('{"max_memroy": "1G"}', b"max_memroy"),
        ('{"max_memory": "1X"}', b"max_memory"),
        ('{"net": "none"}', b"net"),
        ("[]", b"object"),
        ('{"defaults": {"nonsense": 1}}', b"nonsense"),
    ):
        path.write_text(text)
        path.chmod(0o644)
        tokens = caller.directory() / "tokens"
        done = caller.rollbox("token", "tenant", "--tokens", tokens, "--ceiling", path, "x")
        assert done.returncode == 1 and word in done.stderr, done.stderr


# ---- tokens that end during a request ----


def removed(server, token):
    """The token is revoked."""
    done = server.who.rollbox(
        "token", "rm", "--tokens", server.tokens, token.split("_")[1]
    )
    assert done.returncode == 0, done.stderr


def open_stream(server, token, path):
    """A request whose answer has begun: its socket."""
    sock = socket.create_connection(("127.0.0.1", server.port), DEADLINE)
    sock.sendall(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    )
    got = b""
    while b"\r\n\r\n" not in got:
        got += sock.recv(65536)
    assert b" 200 " in got, got
    return sock


def rest(sock):
    """What comes up to the end."""
    with sock:
        return b"".join(iter(lambda: sock.recv(65536), b""))


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_token_that_ends_ends_its_streams(server, how):
    token = server.new_token(
        "ends", arguments=("--expires", "5") if how == "expired" else ()
    )
    keeper = server.new_token("ends")
    until(lambda: create(server, keeper, name="box")[0] in (201, 409))
    box = "/v1/sandboxes/box"
    body = {"argv": ["sleep", "1000"]}
    assert server.call("PUT", f"{box}/execs/e", body, token=token, Prefer="respond-async")[0] == 202
    stream = open_stream(server, token, f"{box}/execs/e/stream")
    feed = open_stream(server, token, "/v1/events")
    kept = open_stream(server, keeper, "/v1/events")
    with Socket(server, f"{box}/channel", token=token) as channel:
        channel.send({"start": body})
        assert "started" in channel.next()
        waiting = socket.create_connection(("127.0.0.1", server.port), DEADLINE)
        text = json.dumps(body)
        waiting.sendall(
            f"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Length: {len(text)}\r\n\r\n{text}".encode()
        )
        until(
            lambda: server.call("GET", "/v1/quota", token=keeper)[1]["running"] == 3
        )
        if how == "revoked":
            removed(server, token)
        assert b" 401 " in rest(waiting)
        output = rest(stream)
        assert b"event: result" not in output and not output.endswith(b"0\r\n\r\n")
        assert not rest(feed).endswith(b"0\r\n\r\n")
        assert not any("result" in message for message in channel.all())
    assert server.call("GET", "/v1/sandboxes", token=token)[0] == 401
    # The run and the channel's command have ended; the detached one and other tokens continue.
    until(lambda: server.call("GET", "/v1/quota", token=keeper)[1]["running"] == 1)
    assert server.call("GET", f"{box}/execs/e?wait=0", token=keeper)[0] == 202
    kept.setblocking(False)
    with pytest.raises(BlockingIOError):
        while kept.recv(65536):
            pass
    kept.close()


def test_hibernated_sandbox_counts_in_disk_and_sandboxes_alone(server):
    token = tenant(server, "sleeps", "memory=64M", f"cpus={CPUS}", "sandboxes=3")
    assert create(server, token, name="a")[0] == 201
    refused(create(server, token), "memory", 64 << 20, 64 << 20)
    assert server.call("POST", "/v1/sandboxes/a/hibernate", {}, token=token)[0] == 200
    used = server.call("GET", "/v1/quota", token=token)[1]["current"]
    assert (used["memory"], used["cpus"], used["sandboxes"]) == (0, 0, 1)
    assert used["disk"] == 32 << 20
    assert create(server, token, name="b")[0] == 201
    # Each request that would wake it needs the room again.
    for method, path, body in (
        ("POST", "wake", {}),
        ("POST", "execs", {"argv": ["true"]}),
        ("GET", "files/tmp?list=1", None),
        ("POST", "fork", {}),
    ):
        refused(
            server.call(method, f"/v1/sandboxes/a/{path}", body, token=token),
            "memory",
            64 << 20,
            64 << 20,
        )
    assert server.call("GET", "/v1/sandboxes/a", token=token)[1]["state"] == "asleep"
    assert server.call("DELETE", "/v1/sandboxes/b", token=token)[0] == 204
    assert server.call("POST", "/v1/sandboxes/a/wake", {}, token=token)[0] == 200
    refused(create(server, token), "memory", 64 << 20, 64 << 20)
    assert server.call("POST", "/v1/sandboxes/a/hibernate", {}, token=token)[0] == 200
    assert server.call("DELETE", "/v1/sandboxes/a", token=token)[0] == 204
    used = server.call("GET", "/v1/quota", token=token)[1]["current"]
    assert (used["memory"], used["cpus"], used["sandboxes"], used["disk"]) == (0, 0, 0, 0)


# ---- each way to wake a hibernated sandbox needs the room again ----

MEMORY = 64 << 20


def asleep(server, token, *names):
    for name in names:
        assert create(server, token, name=name)[0] == 201
    for name in names:
        box = f"/v1/sandboxes/{name}"
        assert server.call("POST", f"{box}/hibernate", {}, token=token)[0] == 200


def state(server, token, name="a"):
    return server.call("GET", f"/v1/sandboxes/{name}", token=token)[1]["state"]


@pytest.mark.parametrize("path", ["files/tmp/x", "snapshots/s"])
def test_deletion_within_a_hibernated_sandbox_needs_its_quota(server, path):
    token = tenant(server, "sleeps", "memory=64M")
    asleep(server, token, "a")
    assert create(server, token, name="b")[0] == 201
    answer = server.call("DELETE", f"/v1/sandboxes/a/{path}", token=token)
    refused(answer, "memory", MEMORY, MEMORY)
    assert state(server, token) == "asleep"
    assert server.call("DELETE", "/v1/sandboxes/a", token=token)[0] == 204


def test_fork_of_a_hibernated_group_needs_the_quota_of_its_members(server):
    token = tenant(server, "sleeps", "memory=192M")
    asleep(server, token, "a", "b")
    answer = server.call("POST", "/v1/forks", {"sandboxes": ["a", "b"]}, token=token)
    refused(answer, "memory", 2 * MEMORY, 3 * MEMORY)
    assert state(server, token) == state(server, token, "b") == "asleep"


def test_command_of_an_open_channel_needs_the_quota(server):
    token = tenant(server, "sleeps", "memory=64M")
    assert create(server, token, name="a")[0] == 201
    with Socket(server, "/v1/sandboxes/a/channel", token=token) as channel:
        assert channel.status == 101
        assert server.call("POST", "/v1/sandboxes/a/hibernate", {}, token=token)[0] == 200
        assert create(server, token, name="b")[0] == 201
        channel.send({"start": {"argv": ["true"]}})
        assert channel.next()["error"]["code"] == "quota_exceeded"
    assert state(server, token) == "asleep"
