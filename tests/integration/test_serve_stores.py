# SPDX-License-Identifier: Apache-2.0
"""Images, volumes and imports of the server's machine over HTTP."""

import uuid

import pytest
from harness import caller  # noqa: F401
from serving import server  # noqa: F401


@pytest.fixture
def host(server):  # noqa: F811
    """A token of the same tenant that may change the machine's store."""
    return server.new_token("one", "run", "host")


@pytest.fixture
def name():
    return f"t{uuid.uuid4().hex[:12]}"


def test_volume_is_made_seen_and_removed(server, host, name):  # noqa: F811
    def call(method, path="", body=None, token=host):
        return server.call(method, f"/v1/volumes{path}", body, token=token)

    assert call("POST", body={"name": name, "size": "16M"})[0] == 201
    assert name in [row["name"] for row in call("GET")[1]["volumes"]]
    assert call("GET", f"/{name}")[1]["name"] == name
    box = {"name": name, "policy": {"volumes": [{"name": name, "at": "/data"}]}}
    for token in (server.token, server.new_token("one", "run", "net")):
        for method, path in (("GET", ""), ("GET", f"/{name}"), ("DELETE", f"/{name}")):
            assert call(method, path, token=token)[0] == 403
        assert server.call("POST", "/v1/sandboxes", box, token=token)[0] == 403
    assert call("DELETE", f"/{name}") == (204, b"")
    assert call("GET", f"/{name}")[0] == 404
    for body in ({"name": "../x"}, {"name": "a", "size": "much"}, {}, {"name": 1}):
        assert call("POST", body=body)[0] == 400, body


def test_exported_snapshot_is_imported_as_an_image(server, host, name):  # noqa: F811
    server.call("POST", "/v1/sandboxes", {"name": "box"})
    assert server.call("PUT", "/v1/sandboxes/box/files/tmp/new", b"kept" * 100_000)[0] == 204
    status, exported = server.call("GET", "/v1/sandboxes/box/export")
    assert status == 200
    assert server.call("POST", f"/v1/imports?name={name}", exported)[0] == 403
    assert server.call("POST", "/v1/imports", exported, token=host)[0] == 400
    status, made = server.call("POST", f"/v1/imports?name={name}", exported, token=host)
    assert status == 201, made
    rows = server.call("GET", "/v1/images")[1]["snapshots"]
    assert name in [row["name"] for row in rows]
    run = {"argv": ["wc", "-c", "/tmp/new"], "policy": {"image": f"snapshot:{name}"}}
    assert server.call("POST", "/v1/runs", run)[0] == 403
    assert server.call("POST", "/v1/runs", run, token=host)[1]["stdout"] == "400000 /tmp/new\n"
    assert server.call("DELETE", f"/v1/images/snapshot:{name}")[0] == 403
    assert server.call("DELETE", f"/v1/images/snapshot:{name}", token=host)[0] == 204
    status, problem = server.call("POST", f"/v1/imports?name={name}", b"junk" * 1000, token=host)
    assert 400 <= status < 500, problem


def test_image_that_is_not_there_is_404_and_a_pull_needs_a_registry(server, host):  # noqa: F811
    assert server.call("GET", "/v1/images/no/such:1")[0] == 404
    assert server.call("DELETE", "/v1/images/no/such:1", token=host)[0] == 404
    assert server.call("POST", "/v1/images", {"reference": "docker://x/y"})[0] == 403
    for body in ({}, {"reference": "/etc/passwd"}, {"reference": "oci:/tmp"}, {"nosuch": 1}):
        assert server.call("POST", "/v1/images", body, token=host)[0] == 400, body
    # Nothing listens there.
    body = {"reference": "docker://127.0.0.1:1/none/such:1"}
    status, problem = server.call("POST", "/v1/images", body, token=host)
    assert status >= 400 and problem["code"] and problem["detail"]
    for path in ("--help", "-x"):
        assert server.call("GET", f"/v1/images/{path}")[0] in (400, 404)
