# SPDX-License-Identifier: Apache-2.0
"""POST /v1/policies: a policy's plan, and what is wrong with a policy."""

import json

from harness import caller, until  # noqa: F401
from serving import Server, server  # noqa: F401


def test_plan_is_that_of_the_command_line(server):  # noqa: F811
    policy = {"max_memory": "64M", "env": {"A": "b"}}
    status, answer = server.call("POST", "/v1/policies", policy)
    assert (status, answer["policy"]) == (200, policy)
    path = server.directory / "policy.json"
    path.write_text(json.dumps(policy))
    path.chmod(0o644)
    told = server.who.rollbox("policy", "plan", "--json", path)
    assert answer["plan"] == json.loads(told.stdout)["plan"]
    assert server.call("GET", "/v1/quota")[1]["started"] == 0


def test_unknown_key_is_named_with_the_one_that_was_meant(server):  # noqa: F811
    for path, body in (
        ("/v1/policies", {"max_memoy": "64M"}),
        ("/v1/runs", {"argv": ["true"], "policy": {"max_memoy": "64M"}}),
        ("/v1/sandboxes", {"policy": {"max_memoy": "64M"}}),
    ):
        status, problem = server.call("POST", path, body)
        assert (status, problem["code"]) == (400, "policy_invalid"), problem
        assert 'did you mean "max_memory"?' in problem["detail"]
    assert server.call("POST", "/v1/policies", {"max_memory": -1})[1]["code"] == "policy_invalid"
    status, problem = server.call("POST", "/v1/policies", {"fs_readable": ["/etc"]})
    assert (status, problem["code"]) == (403, "policy_forbidden")


def test_answer_has_the_ceiling_of_the_tenant(server):  # noqa: F811
    path = server.directory / "ceiling"
    path.write_text('{"max_memory": "32M"}')
    path.chmod(0o644)
    words = ("token", "tenant", "--tokens", server.tokens, "--ceiling", path, "low")
    assert server.who.rollbox(*words).returncode == 0
    token = server.new_token("low")
    until(lambda: server.call("GET", "/v1/sandboxes", token=token)[0] == 200)
    assert server.call("POST", "/v1/policies", {}, token=token)[1]["policy"]["max_memory"] == "32M"
    status, problem = server.call("POST", "/v1/policies", {"max_memory": "64M"}, token=token)
    assert (status, problem["code"]) == (403, "policy_forbidden")
