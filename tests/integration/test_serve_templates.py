# SPDX-License-Identifier: Apache-2.0
"""Templates of a server's tenants: /v1/templates, and `template` of a sandbox."""

import json

import pytest
import rollbox
from harness import caller, until  # noqa: F401
from serving import Server


@pytest.fixture
def server(caller):  # noqa: F811
    with Server(caller) as server:
        yield server


def run(server, box, *argv):
    status, result = server.call("POST", f"/v1/sandboxes/{box}/execs", {"argv": list(argv)})
    assert status == 200, result
    return result["stdout"]


def fork(server, template, **body):
    status, made = server.call("POST", "/v1/sandboxes", {"template": template, **body})
    assert status == 201, made
    return made["name"]


def test_template_of_a_command_is_made_listed_used_and_deleted(server):
    body = {
        "name": "base",
        "argv": ["sh", "-c", "echo ready >/tmp/made"],
        "policy": {"env": {"A": "1"}},
        "labels": {"kind": "t"},
    }
    status, made = server.call("POST", "/v1/templates", body)
    assert status == 201, made
    assert made["name"] == "base" and made["labels"] == {"kind": "t"}
    assert server.call("GET", "/v1/templates")[1]["templates"] == [made]
    assert server.call("GET", "/v1/templates/base") == (200, made)
    assert server.call("POST", "/v1/templates", body)[0] == 409
    first, second = fork(server, "base", name="mine", labels={"x": "y"}), fork(server, "base")
    assert first == "mine"
    assert run(server, first, "cat", "/tmp/made") == "ready\n"
    run(server, first, "sh", "-c", "echo other >/tmp/made")
    assert run(server, second, "cat", "/tmp/made") == "ready\n"
    assert server.call("GET", f"/v1/sandboxes/{first}")[1]["labels"] == {"x": "y"}
    assert server.call("DELETE", "/v1/templates/base")[0] == 204
    assert run(server, second, "cat", "/tmp/made") == "ready\n"
    status, problem = server.call("POST", "/v1/sandboxes", {"template": "base"})
    assert (status, problem["code"]) == (404, "not_found") and "again" in problem["detail"]


def test_template_of_a_sandboxs_snapshot_has_its_state(server):
    assert server.call("POST", "/v1/sandboxes", {"name": "box"})[0] == 201
    run(server, "box", "sh", "-c", "echo one >/tmp/f")
    assert server.call("POST", "/v1/sandboxes/box/snapshots", {"name": "s"})[0] == 201
    run(server, "box", "sh", "-c", "echo two >/tmp/f")
    body = {"name": "kept", "sandbox": "box", "snapshot": "s"}
    status, made = server.call("POST", "/v1/templates", body)
    assert status == 201, made
    assert server.call("DELETE", "/v1/sandboxes/box")[0] == 204
    assert run(server, fork(server, "kept"), "cat", "/tmp/f") == "one\n"
    status, problem = server.call("POST", "/v1/templates", {"name": "x", "sandbox": "no"})
    assert status == 404, problem


def test_set_up_that_fails_leaves_nothing(server):
    for body, word in (
        ({"argv": ["sh", "-c", "echo broken >&2; exit 3"]}, "broken"),
        ({"code": "raise ValueError('odd')"}, "ValueError: odd"),
        ({"code": "import os; os._exit(1)"}, "ended early"),
        ({"code": "import time; time.sleep(1000)", "timeout_ms": 200}, "timeout_ms"),
    ):
        status, problem = server.call("POST", "/v1/templates", {"name": "bad", **body})
        assert (status, problem["code"]) == (422, "template_failed"), problem
        assert word in problem["detail"]
        assert server.call("GET", "/v1/templates")[1]["templates"] == []
        assert server.call("GET", "/v1/sandboxes")[1]["sandboxes"] == []


@pytest.mark.parametrize(
    "set_up", [{"argv": ["sleep", "1000"]}, {"code": "import time; time.sleep(1000)"}]
)
def test_set_up_ends_with_its_client(server, set_up):
    def boxes():
        return server.call("GET", "/v1/sandboxes")[1]["sandboxes"]

    connection = server.connect()
    headers = {"Authorization": f"Bearer {server.token}"}
    connection.request("POST", "/v1/templates", json.dumps({"name": "a", **set_up}), headers)
    until(lambda: boxes() and server.call("GET", "/v1/sandboxes/template.a/execs")[1]["execs"])
    connection.close()
    until(lambda: not boxes())


def test_body_of_a_template_is_checked(server):
    for body in (
        {},
        {"name": "../x"},
        {"name": "n" * 39},
        {"name": "a", "code": "1", "argv": ["true"]},
        {"name": "a", "snapshot": "s"},
        {"name": "a", "sandbox": "b", "policy": {}},
        {"name": "a", "labels": 1},
        {"name": "a", "code": "", "cwd": "/"},
    ):
        assert server.call("POST", "/v1/templates", body)[0] == 400, body
    assert server.call("POST", "/v1/templates", {"name": "a", "code": "#" * 70000})[0] == 413
    assert server.call("POST", "/v1/templates", {"name": "a", "argv": ["true"]})[0] == 201
    status, problem = server.call("POST", "/v1/sandboxes", {"template": "a", "policy": {}})
    assert status == 400 and "policy" in problem["detail"]
    # A sandbox of that name is no template.
    assert server.call("POST", "/v1/sandboxes", {"name": "template.b"})[0] == 201
    assert server.call("POST", "/v1/sandboxes", {"template": "b"})[0] == 404


def test_template_belongs_to_its_tenant_and_counts_in_its_quotas(server):
    token = server.new_token("small", arguments=("--quota", "sandboxes=2"))
    body = {"name": "base", "argv": ["true"]}
    assert server.call("POST", "/v1/templates", body, token=token)[0] == 201
    assert server.call("POST", "/v1/templates", body)[0] == 201  # another tenant's own
    assert server.call("DELETE", "/v1/templates/base")[0] == 204
    assert server.call("GET", "/v1/templates/base")[0] == 404
    assert server.call("POST", "/v1/sandboxes", {"template": "base"})[0] == 404
    assert server.call("POST", "/v1/sandboxes", {"template": "base"}, token=token)[0] == 201
    status, problem = server.call("POST", "/v1/sandboxes", {"template": "base"}, token=token)
    assert (status, problem["code"]) == (429, "quota_exceeded")


def test_retry_with_a_key_makes_one_template(server):
    body = {"name": "base", "argv": ["true"]}
    first = server.call("POST", "/v1/templates", body, Idempotency_Key="k")
    assert first[0] == 201
    assert server.call("POST", "/v1/templates", body, Idempotency_Key="k") == first


def test_python_runs_code_in_forks_of_a_template(server):
    body = {"name": "base", "code": "import json; table = json.loads('[1, 2, 3]')"}
    status, made = server.call("POST", "/v1/templates", body)
    assert status == 201, made
    with rollbox.Engine(f"http://127.0.0.1:{server.port}", token=server.token) as engine:
        box = rollbox.Sandbox(template="base", engine=engine)
        for _ in range(2):
            assert box.run_code("print(sum(table)); table.append(1)").stdout == b"6\n"
        assert box.run_code("import sys; sys.exit(3)").exit_code == 3
        with rollbox.Sandbox(template="base", engine=engine) as session:
            assert session.exec(["echo", "hi"]).stdout == b"hi\n"
        with pytest.raises(rollbox.NotFound):
            rollbox.Sandbox(template="none", engine=engine)
