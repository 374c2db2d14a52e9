# SPDX-License-Identifier: Apache-2.0
"""The Model Context Protocol: /mcp over HTTP, and `rollbox mcp` over standard input and output."""

import json
import subprocess
import threading

import pytest
from harness import BUILD, DEADLINE, binaries, caller, skip, until  # noqa: F401
from serving import server  # noqa: F401

MODERN, LEGACY = "2026-07-28", "2025-11-25"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


def message(method, params=None, number=1):
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}


def ask(server, method, params=None, **headers):  # noqa: F811
    """A request of the present era: (status, answer)."""
    params = {**(params or {}), "_meta": {**META, **(params or {}).get("_meta", {})}}
    head = {"MCP_Protocol_Version": MODERN, "Mcp_Method": method}
    if method == "tools/call":
        head["Mcp_Name"] = params["name"]
    return server.call("POST", "/mcp", message(method, params), **{**head, **headers})


def call(server, name, /, **arguments):  # noqa: F811
    """The result of a tool."""
    status, answer = ask(server, "tools/call", {"name": name, "arguments": arguments})
    assert status == 200 and answer["result"]["resultType"] == "complete", answer
    return answer["result"]


def found(result):
    assert not result["isError"], result
    return result["structuredContent"]


def test_tools_do_the_work_of_an_agent(server):  # noqa: F811
    assert found(call(server, "run", command="echo hi"))["stdout"] == "hi\n"
    box = found(call(server, "create_sandbox", policy={"max_memory": "256M"}))["name"]
    assert found(call(server, "exec", sandbox=box, code="print(6*7)"))["stdout"] == "42\n"
    found(call(server, "write_file", sandbox=box, path="/tmp/a b/ä", text="one\n"))
    assert found(call(server, "read_file", sandbox=box, path="/tmp/a b/ä"))["text"] == "one\n"
    names = [
        entry["name"]
        for entry in found(call(server, "list_files", sandbox=box, path="/tmp/a b"))["entries"]
    ]
    assert names == ["ä"]
    base = found(call(server, "snapshot", sandbox=box, name="base"))["id"]
    found(call(server, "exec", sandbox=box, argv=["rm", "/tmp/a b/ä"]))
    changes = found(call(server, "diff", sandbox=box, **{"from": base}))["changes"]
    assert any("ä" in json.dumps(change, ensure_ascii=False) for change in changes)
    found(call(server, "reset", sandbox=box, snapshot=base))
    kids = found(call(server, "fork", sandbox=box, n=2))["sandboxes"]
    for kid in kids:
        assert found(call(server, "exec", sandbox=kid, command="cat '/tmp/a b/ä'"))["stdout"] == (
            "one\n"
        )
    assert len(found(call(server, "list_sandboxes"))["sandboxes"]) == 3
    for name in [box, *kids]:
        found(call(server, "close_sandbox", sandbox=name))
    assert found(call(server, "list_sandboxes"))["sandboxes"] == []


def test_failure_of_a_guest_is_a_result_and_of_rollbox_an_error(server):  # noqa: F811
    result = call(server, "run", command="echo why >&2; exit 3")
    assert (found(result)["outcome"], found(result)["exit_code"]) == ("exit", 3)
    assert result["content"][0]["text"] == "[standard error]\nwhy\n[exit code 3]\n"
    assert found(call(server, "run", command="sleep 60", timeout_s=0.5))["outcome"] == "timeout"
    for name, arguments, word in (
        ("exec", {"sandbox": "nosuch", "command": "true"}, "not_found"),
        ("exec", {"command": "true"}, "sandbox"),
        ("run", {"command": 1}, "command"),
        ("run", {"nosuch": 1}, "nosuch"),
        ("run", {}, "invalid_argument"),
        ("write_file", {"sandbox": "x", "path": "/a"}, "text or base64"),
        ("read_file", {"sandbox": "x", "path": "../a"}, "absolute"),
    ):
        result = call(server, name, **arguments)
        assert result["isError"] and word in result["content"][0]["text"], (name, result)


def test_long_output_loses_its_middle_and_the_command_runs_on(server):  # noqa: F811
    program = "print('begin' + 'ä' * 200_000 + 'end'); open('/tmp/done', 'w')"
    result = found(call(server, "run", code=program, output_limit=1001))
    assert result["exit_code"] == 0 and result["stdout_truncated"]
    assert result["stdout"].startswith("beginä") and result["stdout"].endswith("äend\n")
    assert len(result["stdout"].encode()) < 1100 and "bytes are left out" in result["stdout"]


def test_file_is_read_in_pieces(server):  # noqa: F811
    box = found(call(server, "create_sandbox"))["name"]
    text = "äö" * 1000
    found(call(server, "write_file", sandbox=box, path="/tmp/t", text=text))
    got, offset = "", 0
    while offset is not None:
        piece = found(
            call(server, "read_file", sandbox=box, path="/tmp/t", offset=offset, limit=999)
        )
        assert piece["size"] == 4000
        got, offset = got + piece["text"], piece.get("next_offset")
    assert got == text
    found(call(server, "write_file", sandbox=box, path="/tmp/b", base64="AP8="))
    assert found(call(server, "read_file", sandbox=box, path="/tmp/b"))["base64"] == "AP8="


def test_agent_gets_nothing_of_the_host(server):  # noqa: F811
    """Also with a token of scope host, and for the user of the Unix socket."""
    host = server.new_token("one", "run", "host")
    for key in ({"fs_readable": ["/etc"]}, {"net": "host"}):
        status, answer = ask(
            server,
            "tools/call",
            {"name": "run", "arguments": {"command": "true", "policy": key}},
            Authorization=f"Bearer {host}",
        )
        assert status == 200 and answer["result"]["isError"], answer
        assert "policy_forbidden" in answer["result"]["content"][0]["text"]


def test_requests_of_the_present_era_are_strict(server):  # noqa: F811
    assert ask(server, "server/discover")[1]["result"]["supportedVersions"] == [MODERN]
    tools = ask(server, "tools/list")[1]["result"]
    assert tools["cacheScope"] == "public" and tools["ttlMs"] > 0
    for headers, code in (
        ({"Mcp_Method": "tools/call"}, -32020),
        ({"MCP_Protocol_Version": LEGACY}, -32020),
    ):
        status, answer = ask(server, "tools/list", **headers)
        assert (status, answer["error"]["code"]) == (400, code)
    status, answer = ask(
        server,
        "tools/list",
        {"_meta": {"io.modelcontextprotocol/protocolVersion": "2099-01-01"}},
        MCP_Protocol_Version="2099-01-01",
    )
    assert (status, answer["error"]["code"]) == (400, -32022)
    assert answer["error"]["data"] == {"requested": "2099-01-01", "supported": [MODERN]}
    status, answer = ask(server, "no/such")
    assert (status, answer["error"]["code"], answer["id"]) == (404, -32601, 1)
    for body, code in ((b"{", -32700), (b"[]", -32600), (b'{"jsonrpc": "2.0"}', -32600)):
        status, answer = server.call("POST", "/mcp", body, MCP_Protocol_Version=MODERN)
        assert (status, answer["error"]["code"]) == (400, code), body
    status, answer = server.call("POST", "/mcp", message("tools/list"), MCP_Protocol_Version=MODERN)
    assert (status, answer["error"]["code"]) == (400, -32602)


def test_pages_of_other_origins_are_refused(server):  # noqa: F811
    """The check of the origin once read the hosts of a table that was never set."""
    assert ask(server, "tools/list", Origin="http://evil.example")[0] == 403
    assert ask(server, "tools/list", Origin="null")[0] == 403
    # A page of a service in a sandbox.
    assert ask(server, "tools/list", Origin="http://3000-sb-1.localhost")[0] == 403
    assert ask(server, "tools/list", Origin="http://localhost:3000")[0] == 200
    assert server.call("DELETE", "/mcp", Origin="http://evil.example")[0] == 403


def begin(server, version=LEGACY):  # noqa: F811
    """Headers of a new session."""
    status, answer = server.call(
        "POST",
        "/mcp",
        message(
            "initialize",
            {
                "protocolVersion": version,
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "0"},
            },
        ),
    )
    assert status == 200 and answer["result"]["capabilities"]["tools"] is not None
    return {
        "Mcp_Session_Id": server.headers["Mcp-Session-Id"],
        "MCP_Protocol_Version": answer["result"]["protocolVersion"],
    }


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
def test_session_ends_with_its_sandboxes(server, version):  # noqa: F811
    session = begin(server, version)
    assert session["MCP_Protocol_Version"] == version

    def tool(name, /, **arguments):
        params = {"name": name, "arguments": arguments}
        answer = server.call("POST", "/mcp", message("tools/call", params), **session)
        assert answer[0] == 200, answer
        return answer[1]["result"]

    assert server.call("POST", "/mcp", message("ping"), **session)[1]["result"] == {}
    notified = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert server.call("POST", "/mcp", notified, **session) == (202, b"")
    box = tool("create_sandbox")["structuredContent"]["name"]
    assert server.call("GET", f"/v1/sandboxes/{box}")[0] == 200
    other = server.new_token("two")
    assert server.call("DELETE", "/mcp", token=other, **session)[0] == 404
    assert server.call("DELETE", "/mcp", **session)[0] == 204
    until(lambda: server.call("GET", f"/v1/sandboxes/{box}")[0] == 404)
    assert server.call("POST", "/mcp", message("ping"), **session)[0] == 404


def test_version_that_is_not_known_is_answered_with_one_that_is(server):  # noqa: F811
    assert begin(server, "1999-01-01")["MCP_Protocol_Version"] == LEGACY


def test_cancelled_call_ends_its_command(server):  # noqa: F811
    session = begin(server)
    box = server.call("POST", "/v1/sandboxes", {})[1]["name"]
    params = {"name": "exec", "arguments": {"sandbox": box, "command": "sleep 1000"}}
    answers = []
    waiter = threading.Thread(
        target=lambda: answers.append(
            server.call("POST", "/mcp", message("tools/call", params, 7), **session)
        )
    )
    waiter.start()

    def commands():
        return [
            row
            for row in server.call("GET", f"/v1/sandboxes/{box}/execs")[1]["execs"]
            if row["state"] == "running"
        ]

    until(commands)
    # Another session's request of the same number is none of this one's.
    cancel = {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": 7},
    }
    assert server.call("POST", "/mcp", cancel, **begin(server))[0] == 202
    assert commands()
    assert server.call("POST", "/mcp", cancel, **session)[0] == 202
    waiter.join(DEADLINE)
    assert answers[0][1]["error"]["code"] == -32800
    until(lambda: not commands())


def test_client_that_leaves_ends_its_call(server):  # noqa: F811
    box = server.call("POST", "/v1/sandboxes", {})[1]["name"]
    params = {"name": "exec", "arguments": {"sandbox": box, "command": "sleep 1000"}, "_meta": META}
    connection = server.connect()
    connection.request(
        "POST",
        "/mcp",
        json.dumps(message("tools/call", params)),
        {
            "Authorization": f"Bearer {server.token}",
            "MCP-Protocol-Version": MODERN,
            "Mcp-Method": "tools/call",
            "Mcp-Name": "exec",
        },
    )

    def running():
        rows = server.call("GET", f"/v1/sandboxes/{box}/execs")[1]["execs"]
        return [row for row in rows if row["state"] == "running"]

    until(running)
    connection.close()
    until(lambda: not running())


def test_progress_comes_before_the_result(server):  # noqa: F811
    params = {
        "name": "run",
        "arguments": {"command": "sleep 2; echo end"},
        "_meta": {"progressToken": "p"},
    }
    ask(server, "tools/call", params, Accept="application/json, text/event-stream")
    assert server.headers["Content-Type"] == "text/event-stream"
    status, text = ask(server, "tools/call", params, Accept="application/json, text/event-stream")
    messages = [
        json.loads(line[6:]) for line in text.decode().splitlines() if line.startswith("data: ")
    ]
    assert [one.get("method") for one in messages[:-1]] == ["notifications/progress"] * (
        len(messages) - 1
    ) and len(messages) > 1
    assert messages[0]["params"]["progressToken"] == "p"
    assert messages[-1]["result"]["structuredContent"]["stdout"] == "end\n"


# ---- standard input and output ----


class Bridge:
    """`rollbox mcp`."""

    def __init__(self, who, *arguments, env=None):
        if not (BUILD / "rollbox-serve").exists() or not (BUILD / "rollbox-http").exists():
            skip("needs llhttp: rollbox-serve and rollbox-http are built where their libraries are")
        self.process = who.popen(
            [
                "env",
                *(f"{name}={value}" for name, value in (env or {}).items()),
                binaries() / "rollbox",
                *arguments,
                "mcp",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def send(self, *messages):
        for one in messages:
            text = one if isinstance(one, bytes) else json.dumps(one).encode()
            self.process.stdin.write(text + b"\n")
        self.process.stdin.flush()

    def receive(self):
        return json.loads(self.process.stdout.readline())

    def ask(self, method, params=None, number=1):
        self.send(message(method, {**(params or {}), "_meta": META}, number))
        return self.receive()

    def end(self):
        """At the end of its input it exits with 0, and has written nothing else."""
        self.process.stdin.close()
        assert self.process.wait(DEADLINE) == 0
        assert self.process.stdout.read() == b""
        self.process.stdout.close()
        self.process.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(DEADLINE)


def test_private_server_gets_no_token_of_another(caller):  # noqa: F811
    """Its socket is the user's own."""
    token = caller.write(caller.directory() / "token", "of-another-server")
    with Bridge(caller, env={"ROLLBOX_TOKEN_FILE": token, "ROLLBOX_CA": token}) as bridge:
        assert bridge.ask("tools/list")["result"]["tools"]
        bridge.end()


def test_stdio_has_the_same_tools(caller):  # noqa: F811
    with Bridge(caller) as bridge:
        tools = bridge.ask("tools/list")["result"]["tools"]
        assert {"run", "exec", "fork", "snapshot"} <= {tool["name"] for tool in tools}
        run = {"name": "run", "arguments": {"command": "echo hi"}}
        result = bridge.ask("tools/call", run)["result"]
        assert result["structuredContent"]["stdout"] == "hi\n"
        host = {"name": "run", "arguments": {"command": "true", "policy": {"fs_readable": ["/etc"]}}}
        assert bridge.ask("tools/call", host)["result"]["isError"]
        bridge.send(b"this is no JSON")
        assert bridge.receive()["error"]["code"] == -32700
        assert bridge.ask("no/such")["error"]["code"] == -32601
        bridge.end()


def test_stdio_answers_out_of_order_and_cancels(caller):  # noqa: F811
    with Bridge(caller) as bridge:
        box = bridge.ask("tools/call", {"name": "create_sandbox"})["result"]["structuredContent"][
            "name"
        ]
        slow = {"name": "exec", "arguments": {"sandbox": box, "command": "sleep 1000"}}
        bridge.send(message("tools/call", {**slow, "_meta": META}, "slow"))
        assert bridge.ask("ping", number=2)["id"] == 2

        def running():
            probe = {
                "name": "exec",
                "arguments": {"sandbox": box, "command": "pgrep -c [s]leep; true"},
            }
            return bridge.ask("tools/call", probe, 3)["result"]["structuredContent"]["stdout"]

        until(lambda: running() == "1\n")
        bridge.send(
            {
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": "slow", "_meta": META},
            }
        )
        until(lambda: running() == "0\n")
        bridge.end()


def test_stdio_of_a_server_uses_its_sandboxes(server, caller):  # noqa: F811
    with Bridge(caller, "--engine", f"unix:{server.path}") as bridge:
        bridge.send(
            message(
                "initialize",
                {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "t"}},
                0,
            )
        )
        assert bridge.receive()["result"]["protocolVersion"] == LEGACY
        bridge.send(message("tools/call", {"name": "create_sandbox", "arguments": {"name": "b"}}))
        assert bridge.receive()["result"]["structuredContent"]["name"] == "b"
        connection = server.new_token("local")
        until(lambda: server.call("GET", "/v1/sandboxes/b", token=connection)[0] == 200)
        bridge.end()
        until(lambda: server.call("GET", "/v1/sandboxes/b", token=connection)[0] == 404)


def test_stdio_that_is_killed_leaves_no_server(caller):  # noqa: F811
    with Bridge(caller) as bridge:
        bridge.ask("ping")
        pid = bridge.process.pid
        below = [
            int(one)
            for one in subprocess.run(
                ["pgrep", "-P", str(pid)], capture_output=True, text=True
            ).stdout.split()
        ]
        assert below
    until(lambda: subprocess.run(["kill", "-0", str(below[0])], capture_output=True).returncode)
