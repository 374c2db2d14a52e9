# SPDX-License-Identifier: Apache-2.0
"""Secrets of a policy, from the client's environment to the server's log, and nowhere else."""

import json
import shutil

import pytest
from egress_tls import Server
from harness import caller, skip  # noqa: F401

TOKEN = "s3cret-" + "value-0123456789"
HOST = "api.example.org"


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def policy(caller, server, source, **more):
    rule = {
        "host": HOST,
        "to": f"http://127.0.0.1:{server.address[1]}",
        "requests": [{"methods": ["GET"], "paths": ["/open/*"]}],
        "inject": {"Authorization": "Bearer {token}"},
    }
    text = {"net_allow": [rule], "net_secrets": {"token": {"from": source, "as": "API_TOKEN"}}, **more}
    return caller.write(caller.home / "policy.json", json.dumps(text))


def environment(caller, **more):
    return caller.environment(ROLLBOX_STORE=str(caller.home / "store"), **more)


def run(caller, path, command, **more):
    if shutil.which("curl") is None:
        skip("needs curl: it is the client inside the sandbox")
    return caller.run("--policy", path, "--", "sh", "-c", command, env=environment(caller, **more))


def test_secret_reaches_the_server_and_not_the_guest(caller, server):
    command = f"env; cat /proc/*/environ /proc/*/cmdline; curl -sS -H 'Authorization: mine' https://{HOST}/open/x -o /dev/null && echo went"
    result = run(caller, policy(caller, server, "env:TOKEN"), command, TOKEN=TOKEN)
    assert "went" in result.stdout, result.raw
    assert f"Authorization: Bearer {TOKEN}\r\n" in server.heads[0] and "mine" not in server.heads[0]
    assert "API_TOKEN=rollbox-secret-token" in result.stdout
    assert TOKEN not in json.dumps(result.raw)
    # The store and all that the client and the engine left behind.
    found = caller.call("grep", "-r", TOKEN, caller.home)
    assert found.stdout == b""


def test_secret_of_a_file_loses_its_line_end(caller, server):
    secret = caller.write(caller.home / "secret", TOKEN + "\n", 0o600)
    run(caller, policy(caller, server, f"file:{secret}"), f"curl -sS https://{HOST}/open/x")
    assert f"Authorization: Bearer {TOKEN}\r\n" in server.heads[0]


def test_refused_request_gets_a_line_that_says_why(caller, server):
    result = run(
        caller,
        policy(caller, server, "env:TOKEN"),
        f"curl -sS -w ' %{{http_code}}' https://{HOST}/other",
        TOKEN=TOKEN,
    )
    assert "no rule for api.example.org allows GET /other" in result.stdout
    assert result.stdout.endswith("403")
    assert server.heads == []


@pytest.mark.parametrize(
    ("source", "value", "problem"),
    [
        ("env:TOKEN", None, "is not set"),
        ("env:TOKEN", "", "is empty"),
        ("env:TOKEN", "a\nb", "one line"),
        ("file:/nonexistent", None, "No such file"),
    ],
)
def test_missing_secret_is_an_error_with_its_name(caller, server, source, value, problem):
    more = {} if value is None else {"TOKEN": value}
    done = caller.rollbox(
        "run",
        "--policy",
        policy(caller, server, source),
        "--",
        "true",
        env=environment(caller, **more),
    )
    assert done.returncode == 125
    assert b"net_secrets.token" in done.stderr and problem.encode() in done.stderr


def test_secret_of_the_command_line_has_a_placeholder(caller, server):
    rules = caller.write(
        caller.home / "rules.json",
        json.dumps([{"host": HOST, "to": f"http://127.0.0.1:{server.address[1]}"}]),
    )
    options = [
        "--allow-file",
        rules,
        "--secret",
        "token:API_TOKEN=env:TOKEN",
        "--inject",
        f"{HOST}:443:Authorization=Bearer {{token}}",
    ]
    result = caller.run(*options, "--", "sh", "-c", "echo $API_TOKEN", env=environment(caller, TOKEN=TOKEN))
    assert result.stdout == "rollbox-secret-token\n", result.raw
    refused = caller.run("--secret", ":API_TOKEN=env:TOKEN", "--", "true", env=environment(caller, TOKEN=TOKEN))
    assert "NAME:VARIABLE=SOURCE" in str(refused.raw) + str(refused.stderr)
