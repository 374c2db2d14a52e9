# SPDX-License-Identifier: Apache-2.0
"""Trees of forks by HTTP, and forks of several sandboxes at one moment."""

from harness import caller, until  # noqa: F401
from serving import server  # noqa: F401

BOX = "/v1/sandboxes/a"


def test_tree_has_forks_of_forks_and_those_that_have_ended(server):  # noqa: F811
    assert server.call("POST", "/v1/sandboxes", {"name": "a"})[0] == 201
    assert server.call("GET", "/v1/trees") == (200, {"trees": []})
    assert server.call("GET", "/v1/trees/a")[0] == 404
    server.call("POST", f"{BOX}/snapshots", {"name": "base"})
    server.call("POST", f"{BOX}/notes", {"note": {"reward": 1}})
    body = {"snapshot": "base", "n": 2}
    first, second = server.call("POST", f"{BOX}/fork", body)[1]["sandboxes"]
    (third,) = server.call("POST", f"/v1/sandboxes/{first}/fork", {})[1]["sandboxes"]
    server.call("POST", f"/v1/sandboxes/{third}/notes", {"note": {"reward": 0.5}})
    assert server.call("DELETE", f"/v1/sandboxes/{second}")[0] == 204
    (row,) = server.call("GET", "/v1/trees")[1]["trees"]
    assert (row["root"], row["sandboxes"], row["nodes"]) == ("a", 3, 4)
    tree = server.call("GET", f"/v1/trees/{row['id']}")[1]
    nodes = {node["sandbox"]: node for node in tree["nodes"]}
    assert {name: node["parent"] for name, node in nodes.items()} == {
        "a": None,
        first: "a",
        second: "a",
        third: first,
    }
    assert nodes["a"]["note"] == {"reward": 1} and nodes[third]["note"] == {"reward": 0.5}
    assert nodes[first]["snapshot"] == "base" and nodes[first]["ended"] is None
    assert nodes[second]["ended"] >= nodes[second]["created"]
    assert "base" in [one["name"] for one in tree["snapshots"]]
    assert server.call("GET", f"/v1/trees/{third}") == (200, tree)
    assert server.call("GET", BOX)[1]["tree"] == row["id"]
    for name in ("a", first, third):
        server.call("DELETE", f"/v1/sandboxes/{name}")
    tree = server.call("GET", f"/v1/trees/{row['id']}")[1]
    assert tree["snapshots"] == [] and all(node["ended"] for node in tree["nodes"])


def test_tree_of_another_tenant_does_not_exist(server):  # noqa: F811
    other = server.new_token("two")
    until(lambda: server.call("GET", "/v1/sandboxes", token=other)[0] == 200)
    server.call("POST", "/v1/sandboxes", {"name": "a"})
    server.call("POST", f"{BOX}/fork", {})
    (row,) = server.call("GET", "/v1/trees")[1]["trees"]
    assert server.call("GET", "/v1/trees", token=other)[1] == {"trees": []}
    for id in (row["id"], "a"):
        assert server.call("GET", f"/v1/trees/{id}", token=other)[0] == 404
    assert server.call("POST", "/v1/forks", {"sandboxes": ["a"]}, token=other)[0] == 404


def test_group_is_forked_at_one_moment(server):  # noqa: F811
    for name in ("a", "b"):
        assert server.call("POST", "/v1/sandboxes", {"name": name})[0] == 201
        server.call("PUT", f"/v1/sandboxes/{name}/files/tmp/name", name.encode())
    body = {"sandboxes": ["a", "b"], "n": 2}
    status, made = server.call("POST", "/v1/forks", body, Idempotency_Key="k")
    assert status == 201 and [len(names) for names in made["sandboxes"]] == [2, 2]
    for name, forks in zip("ab", made["sandboxes"]):
        for fork in forks:
            path = f"/v1/sandboxes/{fork}/files/tmp/name"
            assert server.call("GET", path) == (200, name.encode())
    assert server.call("POST", "/v1/forks", body, Idempotency_Key="k") == (201, made)
    assert len(server.call("GET", "/v1/sandboxes")[1]["sandboxes"]) == 6
    assert server.call("GET", "/v1/quota")[1]["current"]["sandboxes"] == 6
    for bad, status in (
        ({"sandboxes": []}, 400),
        ({"sandboxes": ["a", "none"]}, 404),
        ({"sandboxes": ["a", "a"]}, 409),
        ({"sandboxes": ["a"], "n": 0}, 400),
    ):
        assert server.call("POST", "/v1/forks", bad)[0] == status
    for row in server.call("GET", "/v1/sandboxes")[1]["sandboxes"]:
        assert server.call("DELETE", f"/v1/sandboxes/{row['name']}")[0] == 204
    now = server.call("GET", "/v1/quota")[1]["current"]
    assert (now["sandboxes"], now["memory"], now["disk"]) == (0, 0, 0)


def test_group_counts_in_the_quotas_of_each_of_its_forks(server):  # noqa: F811
    small = {"max_memory": "64M", "max_disk": "32M"}
    words = ("token", "tenant", "--tokens", server.tokens, "--quota", "memory=256M", "few")
    assert server.who.rollbox(*words).returncode == 0
    token = server.new_token("few")
    until(lambda: server.call("GET", "/v1/sandboxes", token=token)[0] == 200)
    for name in ("a", "b"):
        server.call("POST", "/v1/sandboxes", {"name": name, "policy": small}, token=token)
    body = {"sandboxes": ["a", "b"], "n": 2}
    status, problem = server.call("POST", "/v1/forks", body, token=token)
    assert (status, problem["limit"]) == (429, "memory")
    assert server.call("POST", "/v1/forks", {**body, "n": 1}, token=token)[0] == 201
    assert server.call("POST", "/v1/forks", {**body, "n": 1}, token=token)[0] == 429
