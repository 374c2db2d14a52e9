# SPDX-License-Identifier: Apache-2.0
"""Templates of the operator (--template), and the network settings of E2B's clients."""

import json

import pytest
from e2b_wire import Box
from harness import caller  # noqa: F401
from serving import Server, server  # noqa: F401


def write(directory, name, policy):
    path = directory / name
    path.write_text(policy if isinstance(policy, str) else json.dumps(policy))
    path.chmod(0o644)
    return path


def test_template_has_what_a_client_may_not_ask_for(caller):  # noqa: F811
    directory = caller.directory()
    shared = directory / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    (shared / "data").write_text("of the host\n")
    policy = {"fs_readable_extra": [str(shared)], "env": {"A": "template", "B": "template"}}
    path = write(directory, "policy", policy)
    with Server(caller, "--template", f"with-data={path}") as one:
        box = Box(one, templateID="with-data", envVars={"B": "client"})
        assert box.run(f"cat {shared}/data; echo $A $B; pwd")[0] == (
            "of the host\ntemplate client\n/home/user\n"
        )
        row = box.control("GET", f"/sandboxes/{box.id}")[1]
        assert row["templateID"] == "with-data"
        plain = Box(one)
        assert plain.run(f"cat {shared}/data")[1]["exitCode"] == 1
        (kid,) = box.control("POST", f"/sandboxes/{box.id}/fork", {"count": 1, "timeout": 60})[1]
        assert Box(one, made=kid["sandbox"]).run("pwd")[0] == "/home/user\n"


def test_template_may_be_the_code_interpreter(caller):  # noqa: F811
    directory = caller.directory()
    path = write(directory, "policy", {"env": ["WHO=code", "HOME=/tmp"]})
    with Server(caller, "--template", f"code-interpreter-v1={path}") as one:
        box = Box(one, templateID="code-interpreter-v1", envVars={"C": "client"})
        code = "import os; print(os.environ['WHO'], os.environ['HOME'], os.environ['C'])"
        assert box.execute(code)[0]["text"] == "code /tmp client\n"
        assert Box(one).execute("import os; print('WHO' in os.environ)")[0]["text"] == "False\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "policy"),
        ("[]", "object"),
        ('{"no_such_key": 1}', "no_such_key"),
    ],
)
def test_bad_template_ends_the_start(caller, text, words):  # noqa: F811
    path = write(caller.directory(), "policy", text)
    done = caller.rollbox("serve", "--listen", "127.0.0.1:0", "--template", f"t={path}")
    assert done.returncode == 1 and words in done.stderr.decode(), done.stderr
    done = caller.rollbox("serve", "--listen", "127.0.0.1:0", "--template", "t")
    assert done.returncode == 1 and "NAME=FILE" in done.stderr.decode()


def test_aliases_of_templates_are_looked_up(caller):  # noqa: F811
    path = write(caller.directory(), "policy", {})
    with Server(caller, "--template", f"mine={path}") as one:
        box = Box(one)
        for name in ("base", "mine", "mine:default"):
            status, row = box.control("GET", f"/templates/aliases/{name}")
            assert (status, row["templateID"]) == (200, name.partition(":")[0])
        status, problem = box.control("GET", "/templates/aliases/none:default")
        assert (status, problem["code"]) == (404, 404) and problem["message"]
        for method, route in (("POST", "/v3/templates"), ("GET", "/templates/mine/tags")):
            status, problem = box.control(method, route, {} if method == "POST" else None)
            assert status == 400 and "image build" in problem["message"]


def test_network_settings_that_cannot_be_kept_are_refused(server):  # noqa: F811
    token = server.new_token("net", "run", "net")
    box = Box(server, token, allow_internet_access=False)
    for network, word in (
        ({"denyOut": ["192.0.2.1"]}, "denyOut"),
        ({"allowOut": ["example.org"], "denyOut": ["192.0.2.0/24"]}, "denyOut"),
        ({"rules": {"example.org": [{"transform": {}}]}}, "rules"),
        ({"egressProxy": {"host": "192.0.2.1"}}, "egressProxy"),
        ({"allowOut": "example.org"}, "allowOut"),
    ):
        body = {"templateID": "base", "network": network}
        status, problem = box.control("POST", "/v2/sandboxes", body)
        assert status == 400 and word in problem["message"], network
        status, problem = box.control("PUT", f"/sandboxes/{box.id}/network", network)
        assert status == 400 and word in problem["message"], network


def test_network_of_a_running_sandbox_is_changed(server):  # noqa: F811
    token = server.new_token("net", "run", "net")
    box = Box(server, token)

    def change(of, **body):
        return of.control("PUT", f"/sandboxes/{of.id}/network", body)[0]

    def allowed(of):
        return of.control("GET", f"/sandboxes/{of.id}")[1]["allowInternetAccess"]

    assert allowed(box)
    assert change(box, allow_internet_access=False) == 204 and not allowed(box)
    assert change(box, allowOut=["example.org"], denyOut=["0.0.0.0/0"]) == 204 and allowed(box)
    assert change(box, denyOut=["0.0.0.0/0"]) == 204 and not allowed(box)
    assert change(box) == 204 and allowed(box)
    closed = Box(server)
    assert not allowed(closed) and change(closed, allow_internet_access=False) == 204
    assert change(closed, allowOut=["example.org"]) == 400
