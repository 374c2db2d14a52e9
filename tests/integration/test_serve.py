# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: runs, sandboxes, commands, files and snapshots over real sockets."""

import json
import os
import re
import signal
import socket

import pytest
from harness import DEADLINE, TREE, caller, descendants, engine_of, until  # noqa: F401
from serving import Server, events, server  # noqa: F401


def test_run_gives_the_result(server):
    status, result = server.call(
        "POST", "/v1/runs", {"argv": ["sh", "-c", "cat; echo bad >&2; exit 3"], "stdin": "text"}
    )
    assert status == 200
    assert (result["outcome"], result["exit_code"], result["stdout"], result["stderr"]) == (
        "exit",
        3,
        "text",
        "bad\n",
    )
    status, result = server.call(
        "POST", "/v1/runs", {"code": "print(open('a').read())", "files": {"a": {"base64": "aGk="}}}
    )
    assert (status, result["stdout"]) == (200, "hi\n")


def test_guest_that_fails_gives_status_200(server):
    status, result = server.call("POST", "/v1/runs", {"argv": ["sleep", "1000"], "timeout_ms": 50})
    assert (status, result["outcome"]) == (200, "timeout")
    status, result = server.call("POST", "/v1/runs", {"argv": ["sh", "-c", "kill -9 $$"]})
    assert (status, result["outcome"], result["signal"]) == (200, "signal", 9)
    status, problem = server.call("POST", "/v1/runs", {"argv": ["no-such-program"]})
    assert (status, problem["code"], problem["stage"], problem["status"]) == (
        422,
        "command_not_found",
        "exec",
        422,
    )
    assert server.headers["Content-Type"] == "application/problem+json"
    assert problem["result"]["outcome"] == "error"


def test_bad_requests_name_their_fault(server):
    for body, word in (
        ({"argv": ["true"], "nosuch": 1}, "nosuch"),
        ({"argv": []}, "argv"),
        ({"argv": ["a\0b"]}, "argv"),
        ({"argv": ["true"], "code": "1"}, "argv or code"),
        ({"argv": ["true"], "timeout_ms": 0}, "timeout_ms"),
        ({"argv": ["true"], "env": {"A=B": "c"}}, "env"),
        ({"argv": ["true"], "files": {"a": {"base64": "?"}}}, "files"),
        ({"code": "1", "language": "cobol"}, "language"),
        ({"argv": ["true"], "policy": {"max_memory": -1}}, "max_memory"),
        (b'{"argv": ["true"], "argv": ["false"]}', "object"),
        (b"[1]", "object"),
        (b"{", "object"),
    ):
        status, problem = server.call("POST", "/v1/runs", body)
        assert status == 400 and word in problem["detail"], (body, problem)


def test_sandbox_has_commands_files_snapshots_forks(server):
    status, made = server.call("POST", "/v1/sandboxes", {"name": "box", "labels": {"task": "7"}})
    assert (status, made["name"], server.headers["Location"]) == (201, "box", "/v1/sandboxes/box")
    assert server.call("POST", "/v1/sandboxes", {"name": "box"})[0] == 409
    box = "/v1/sandboxes/box"
    assert server.call("PUT", f"{box}/files/tmp/dir/a%20b", b"\0data")[0] == 204
    assert server.call("GET", f"{box}/files/tmp/dir/a%20b") == (200, b"\0data")
    assert [e["name"] for e in server.call("GET", f"{box}/files/tmp/dir?list=1")[1]["entries"]] == [
        "a b"
    ]
    assert server.call("GET", f"{box}/files/tmp/none")[1]["code"] == "not_found"
    status, snapshot = server.call("POST", f"{box}/snapshots", {"name": "base"})
    assert (status, snapshot["name"]) == (201, "base")
    assert (
        server.call("POST", f"{box}/execs", {"argv": ["rm", "-r", "/tmp/dir"]})[1]["exit_code"] == 0
    )
    status, forks = server.call("POST", f"{box}/fork", {"snapshot": "base", "n": 3})
    assert status == 201 and len(forks["sandboxes"]) == 3
    for name in forks["sandboxes"]:
        assert server.call("GET", f"/v1/sandboxes/{name}/files/tmp/dir/a%20b") == (200, b"\0data")
    assert [c["change"] for c in server.call("GET", f"{box}/diff?from=base")[1]["changes"]] != []
    assert server.call("POST", f"{box}/reset", {"snapshot": "base"})[0] == 200
    assert server.call("GET", f"{box}/files/tmp/dir/a%20b")[0] == 200
    listed = {row["name"]: row for row in server.call("GET", "/v1/sandboxes")[1]["sandboxes"]}
    assert set(listed) == {"box", *forks["sandboxes"]} and listed["box"]["labels"] == {"task": "7"}
    tree = server.call("GET", f"{box}/snapshots")[1]["snapshots"]
    assert {name for row in tree for name in row["sandboxes"]} == set(listed)
    for name in listed:
        assert server.call("DELETE", f"/v1/sandboxes/{name}")[0] == 204
    assert server.call("GET", box)[0] == 404
    assert server.call("GET", "/v1/sandboxes")[1] == {"sandboxes": []}


def test_stream_is_resumed_at_every_offset(server):
    server.call("POST", "/v1/sandboxes", {"name": "box"})
    exec_path = "/v1/sandboxes/box/execs/e1"
    script = "for i in 1 2 3; do echo $i; done; printf '\\377' >&2"
    assert server.call(
        "PUT", exec_path, {"argv": ["sh", "-c", script]}, Prefer="respond-async"
    ) == (202, {"id": "e1", "state": "running"})
    for offset in range(7):
        status, text = server.call("GET", f"{exec_path}/stream", Last_Event_ID=f"{offset}.0")
        found = events(text)
        assert status == 200 and [name for name, _, _ in found].count("result") == 1
        assert found[-1][0] == "result" and found[-1][2]["exit_code"] == 0
        assert (
            "".join(data["data"] for name, _, data in found if name == "stdout")
            == "1\n2\n3\n"[offset:]
        )
        assert [data for name, _, data in found if name == "stderr"] == [{"base64": "/w=="}]
        assert [at for name, at, _ in found if name != "result"][-1] == "6.1"
    assert server.call("GET", exec_path)[1]["stdout"] == "1\n2\n3\n"
    assert server.call("GET", f"{exec_path}/stream", Last_Event_ID="x")[0] == 400
    assert server.call("GET", "/v1/sandboxes/box/execs/none?wait=1")[0] == 404


def test_running_command_is_waited_for_and_signalled(server):
    server.call("POST", "/v1/sandboxes", {"name": "box"})
    exec_path = "/v1/sandboxes/box/execs/e1"
    assert server.call("PUT", exec_path, {"argv": ["sleep", "1000"]}, Prefer="wait=0")[0] == 202
    assert server.call("GET", f"{exec_path}?wait=0") == (202, {"id": "e1", "state": "running"})
    assert server.call("POST", f"{exec_path}/signal", {"signal": "TERM"})[0] == 200
    assert server.call("GET", exec_path)[1]["signal"] == signal.SIGTERM


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/sandboxes/box/execs"])
def test_client_that_leaves_ends_its_command(server, path):
    server.call("POST", "/v1/sandboxes", {"name": "box"})
    connection = server.connect()
    connection.request(
        "POST",
        path,
        json.dumps({"argv": ["sleep", "4711"]}),
        {"Authorization": f"Bearer {server.token}"},
    )
    sleeping = lambda: [
        p
        for p in descendants(server.process.pid)
        if b"4711" in open(f"/proc/{p}/cmdline", "rb").read()
    ]  # noqa: E731
    until(lambda: safely(sleeping))
    connection.close()
    until(lambda: not safely(sleeping))


def safely(look):
    """The value, or true while processes come and go."""
    try:
        return look()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_retry_with_a_key_gets_the_first_answer(server):
    body = {"argv": ["sh", "-c", "cat /proc/sys/kernel/random/uuid"]}
    first = server.call("POST", "/v1/runs", body, Idempotency_Key="k1")
    again = server.call("POST", "/v1/runs", body, Idempotency_Key="k1")
    assert first == again and server.headers["Idempotency-Replayed"] == "true"
    assert (
        server.call("POST", "/v1/runs", {"argv": ["true"]}, Idempotency_Key="k1")[1]["code"]
        == "idempotency_conflict"
    )
    other = server.new_token("two")
    assert (
        server.call("POST", "/v1/runs", body, token=other, Idempotency_Key="k1")[1]["stdout"]
        != first[1]["stdout"]
    )


def test_retry_while_the_first_runs_waits_for_it(server):
    server.call("POST", "/v1/sandboxes", {"name": "box"})
    body = json.dumps(
        {
            "argv": [
                "sh",
                "-c",
                "while ! [ -e /tmp/go ]; do sleep 0.01; done; cat /proc/sys/kernel/random/uuid",
            ]
        }
    )
    waiting = []
    for _ in range(3):
        connection = server.connect()
        connection.request(
            "POST",
            "/v1/sandboxes/box/execs",
            body,
            {"Authorization": f"Bearer {server.token}", "Idempotency-Key": "k"},
        )
        waiting.append(connection)
    # The client of the first one leaves; what has a key continues.
    waiting.pop(0).close()
    assert server.call("PUT", "/v1/sandboxes/box/files/tmp/go", b"")[0] == 204
    answers = {json.loads(connection.getresponse().read())["stdout"] for connection in waiting}
    assert len(answers) == 1 and len(server.call("GET", "/v1/sandboxes/box/execs")[1]["execs"]) == 1


def test_command_id_with_another_body_is_refused(server):
    """Another request under the same id never gets the first one's result."""
    server.call("POST", "/v1/sandboxes", {"name": "box"})
    path = "/v1/sandboxes/box/execs/e1"
    first = server.call("PUT", path, {"argv": ["cat", "/proc/sys/kernel/random/uuid"]})
    assert server.call("PUT", path, {"argv": ["cat", "/proc/sys/kernel/random/uuid"]}) == first
    assert server.call("PUT", path, {"argv": ["true"]})[1]["code"] == "idempotency_conflict"
    server.call("DELETE", "/v1/sandboxes/box")
    server.call("POST", "/v1/sandboxes", {"name": "box"})
    assert server.call("PUT", path, {"argv": ["true"]})[1]["stdout"] == ""


def test_lease_ends_its_sandboxes_and_their_forks(server):
    lease = server.call("POST", "/v1/leases", {"ttl_s": 600})[1]["id"]
    assert server.call("POST", "/v1/sandboxes", {"name": "kept"})[0] == 201
    assert server.call("POST", "/v1/sandboxes", {"name": "box", "lease": lease})[0] == 201
    server.call("POST", "/v1/sandboxes/box/fork", {"n": 2})
    assert len(server.call("GET", "/v1/sandboxes")[1]["sandboxes"]) == 4
    assert server.call("PUT", f"/v1/leases/{lease}")[0] == 200
    assert server.call("PUT", f"/v1/leases/{lease}", token=server.new_token("two"))[0] == 404
    assert server.call("DELETE", f"/v1/leases/{lease}")[0] == 204
    until(
        lambda: (
            [row["name"] for row in server.call("GET", "/v1/sandboxes")[1]["sandboxes"]] == ["kept"]
        )
    )
    assert server.call("POST", "/v1/sandboxes", {"lease": lease})[1]["code"] == "lease_expired"


def test_lease_expires_without_its_client(server):
    lease = server.call("POST", "/v1/leases", {"ttl_s": 1})[1]["id"]
    server.call("POST", "/v1/sandboxes", {"name": "box", "lease": lease})
    until(lambda: server.call("GET", "/v1/sandboxes")[1]["sandboxes"] == [])
    assert server.call("PUT", f"/v1/leases/{lease}")[0] == 404


def test_tenant_sees_nothing_of_another_one(server):
    """Every route with a sandbox in it says 404 to another tenant, as if the sandbox did not exist."""
    server.call("POST", "/v1/sandboxes", {"name": "box"})
    server.call("POST", "/v1/sandboxes/box/snapshots", {"name": "base"})
    fork = server.call("POST", "/v1/sandboxes/box/fork", {})[1]["sandboxes"][0]
    other = server.new_token("two", "run", "net", "host", "admin")
    assert server.call("GET", "/v1/sandboxes", token=other) == (200, {"sandboxes": []})
    paths = server.call("GET", "/v1/openapi.json")[1]["paths"]
    tried = 0
    for path, methods in paths.items():
        for name in ("box", fork, "one.box"):
            if not path.startswith("/v1/sandboxes/{sandbox}"):
                continue
            real = (
                path.replace("{sandbox}", name)
                .replace("{snapshot}", "base")
                .replace("{exec}", "e")
                .replace("{path}", "tmp")
            )
            for method in methods:
                body = (
                    {"argv": ["true"]}
                    if "exec" in path and method in ("post", "put") and "signal" not in path
                    else {}
                )
                assert (
                    server.call(
                        method.upper(),
                        real,
                        body if method in ("post", "put") else None,
                        token=other,
                    )[0]
                    == 404
                ), (method, real)
                tried += 1
    assert tried > 60
    # The same name is free for the other tenant.
    assert server.call("POST", "/v1/sandboxes", {"name": "box"}, token=other)[0] == 201
    assert server.call("DELETE", "/v1/sandboxes/box", token=other)[0] == 204
    assert server.call("GET", "/v1/sandboxes/box")[0] == 200


def test_token_is_needed_and_revoked(server):
    for token in (
        "x",
        "rbx_x_y",
        server.token[:-1] + ("0" if server.token[-1] != "0" else "1"),
        server.token + "0",
    ):
        assert server.call("GET", "/v1/sandboxes", token=token)[0] == 401
    assert b" 401 " in server.raw(b"GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\n\r\n")
    status, problem = server.call("GET", "/v1/status")
    assert status == 403 and 'scope "admin"' in problem["detail"]
    admin = server.new_token("ops", "admin")
    until(lambda: server.call("GET", "/v1/status", token=admin)[0] == 200)
    tokens = json.loads(server.tokens.read_text())["tokens"]
    assert (
        server.token.split("_")[2] not in server.tokens.read_text()
        and server.tokens.stat().st_mode & 0o77 == 0
    )
    assert [
        json.loads(line)["id"]
        for line in server.who.rollbox("token", "ls", "--tokens", server.tokens).stdout.splitlines()
    ] == [one["id"] for one in tokens]
    done = server.who.rollbox("token", "rm", "--tokens", server.tokens, tokens[0]["id"])
    assert done.returncode == 0, done.stderr
    until(lambda: server.call("GET", "/v1/sandboxes")[0] == 401)


def test_quota_is_429_with_its_numbers(caller):  # noqa: F811
    with Server(caller) as server:  # noqa: F811
        small = server.new_token("small", arguments=("--max-sandboxes", "1"))
        until(lambda: server.call("POST", "/v1/sandboxes", {}, token=small)[0] == 201)
        status, problem = server.call("POST", "/v1/sandboxes", {}, token=small)
        assert (
            status,
            problem["code"],
            problem["limit"],
            problem["current"],
            problem["maximum"],
        ) == (429, "quota_exceeded", "sandboxes", 1, 1)
        assert server.headers["Retry-After"] == "1"


def test_policy_of_a_client_grants_nothing_of_the_host(server):
    for policy in (
        {"fs_readable": ["/etc"]},
        {"fs_writable": ["/tmp"]},
        {"fs_shared": ["/tmp"]},
        {"net": "host"},
        {"net": "allow", "net_allow_hosts": ["example.org"]},
        {"clean_env": False},
        {"image": "/var/lib/image"},
        {"image": "snapshot:of-another-tenant"},
        {"devices": ["/dev/kvm"]},
        {"isolation": "process"},
    ):
        status, problem = server.call("POST", "/v1/runs", {"argv": ["true"], "policy": policy})
        assert (status, problem["code"]) == (403, "policy_forbidden"), policy
    assert (
        server.call(
            "POST",
            "/v1/runs",
            {"argv": ["true"], "policy": {"max_memory": "64M", "net": "loopback"}},
        )[0]
        == 200
    )
    host = server.new_token("hosts", "run", "host")
    until(lambda: server.call("GET", "/v1/sandboxes", token=host)[0] == 200)
    assert (
        server.call(
            "POST",
            "/v1/runs",
            {"argv": ["true"], "policy": {"fs_readable": ["/usr", "/lib", "/lib64", "/bin"]}},
            token=host,
        )[0]
        == 200
    )


def test_wrong_method_names_the_right_ones(server):
    status, problem = server.call("PUT", "/v1/runs", {})
    assert (status, problem["code"], server.headers["Allow"]) == (405, "request_invalid", "POST")
    server.call("PUT", "/v1/sandboxes/none", {})
    assert server.headers["Allow"].split(", ") == ["GET", "PATCH", "DELETE"]


def test_tenants_do_not_see_process_numbers_of_the_host(server):
    name = server.call("POST", "/v1/sandboxes", {})[1]["name"]
    path = f"/v1/sandboxes/{name}"
    server.call("POST", f"{path}/execs", {"argv": ["sleep", "60"]}, Prefer="respond-async")
    assert "pid" not in server.call("GET", path)[1]
    until(lambda: server.call("GET", f"{path}/processes")[1]["processes"])
    rows = server.call("GET", f"{path}/processes")[1]["processes"]
    assert all("pid" in row and "host_pid" not in row for row in rows)


def test_unknown_policy_key_is_the_clients_mistake(server):
    status, problem = server.call("POST", "/v1/runs", {"argv": ["true"], "policy": {"max_memry": "1G"}})
    assert (status, problem["code"]) == (400, "policy_invalid")
    assert problem["detail"] == 'unknown key "max_memry": did you mean "max_memory"?'
    status, problem = server.call("POST", "/v1/runs", {"argv": ["true"], "polcy": {}})
    assert (status, problem["code"]) == (400, "request_invalid")
    assert problem["detail"] == 'unknown member "polcy": did you mean "policy"?'


def test_network_rules_of_a_client_lead_to_nothing_of_the_host(server):
    token = server.new_token("net", "run", "net")
    until(lambda: server.call("GET", "/v1/sandboxes", token=token)[0] == 200)
    rules = [
        {"host": "x.test", "ports": [80], "to": "127.0.0.1:22"},
        {"host": "x.test", "ports": [80], "private": True},
    ]
    for key in ("net_allow", "net_allow_hosts"):
        for rule in rules:
            status, problem = server.call(
                "POST",
                "/v1/runs",
                {"argv": ["true"], "policy": {key: ["x.test", rule]}},
                token=token,
            )
            assert (status, problem["code"]) == (403, "policy_forbidden"), rule
            assert problem["detail"].endswith("scope host")
    for policy in (
        {"net_record": "/tmp/a"},
        {"net_log_file": "/tmp/a"},
        {"net_secrets": {"a": "file:/etc/shadow"}},
    ):
        status, problem = server.call(
            "POST",
            "/v1/runs",
            {"argv": ["true"], "policy": {"net_allow_hosts": ["x.test"], **policy}},
            token=token,
        )
        assert (status, problem["detail"].rpartition(" ")[2]) == (403, "host")
    assert (
        server.call(
            "POST",
            "/v1/runs",
            {"argv": ["true"], "policy": {"net_allow_hosts": ["x.test"]}},
            token=token,
        )[0]
        == 200
    )


@pytest.mark.once
def test_policies_of_many_episodes_are_all_taken(server):
    """A seed for each episode makes each policy another one; the server does not run out of them."""
    for seed in range(520):
        body = {"policy": {"random_seed": seed}, "name": f"box{seed}"}
        assert server.call("POST", "/v1/sandboxes", body)[0] == 201
        assert server.call("DELETE", f"/v1/sandboxes/box{seed}")[0] == 204
    assert (
        server.call("POST", "/v1/runs", {"policy": {"random_seed": 0}, "argv": ["true"]})[1][
            "outcome"
        ]
        == "exit"
    )


def test_own_user_needs_no_token_on_the_unix_socket(server):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(server.path))
        s.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: s.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_sigterm_ends_what_runs_and_leaves_nothing(caller):  # noqa: F811
    with Server(caller) as server:  # noqa: F811
        server.call("POST", "/v1/sandboxes", {"name": "box"})
        connection = server.connect()
        connection.request(
            "POST",
            "/v1/sandboxes/box/execs",
            json.dumps({"argv": ["sh", "-c", "touch /tmp/begun; sleep 1; echo done"]}),
            {"Authorization": f"Bearer {server.token}"},
        )
        until(lambda: server.call("GET", "/v1/sandboxes/box/files/tmp/begun")[0] == 200)
        below = list(descendants(server.process.pid))
        server.process.send_signal(signal.SIGTERM)
        answer = connection.getresponse()
        assert (
            answer.status,
            json.loads(answer.read())["stdout"],
            answer.headers["Connection"],
        ) == (200, "done\n", "close")
        assert server.process.wait(DEADLINE) == 0
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below))


def test_openapi_has_every_route_of_the_server(server):
    """The document that is served and the table of the program name the same methods and paths."""
    document = server.call("GET", "/v1/openapi.json")[1]
    assert document["openapi"] == "3.1.0"
    told = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    source = (TREE / "src/serve/router.c").read_text()
    for name, path in re.findall(r'#define (BOX|REX) "([^"]+)"', source):
        source = source.replace(f'{name} "', f'"{path}').replace(f"{name},", f'"{path}",')
    table = set(re.findall(r'\{\s*"([A-Z]+)",\s*"([^"]+)",', source))
    assert {(method, path.replace("...", "")) for method, path in table} == told


def test_refused_command_is_answered_once(server):
    """The headers of a request were read after its refusal had freed it."""
    server.call("POST", "/v1/sandboxes", {"name": "box"})
    for _ in range(50):
        for body in ({"argv": []}, {"argv": [""], "code": ""}, {"argv": ["true"], "timeout_ms": 0}):
            for method, path in (("POST", "execs"), ("PUT", "execs/e")):
                answer = server.call(method, f"/v1/sandboxes/box/{path}", body, Prefer="wait=1")
                assert answer[0] in (400, 409)
    assert server.call("GET", "/healthz")[0] == 200
