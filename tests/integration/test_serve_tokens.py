# SPDX-License-Identifier: Apache-2.0
"""The tokens file: faults of its content, and of the command line that changes it."""

import json
import signal

from harness import DEADLINE, binaries, caller, until  # noqa: F401
from serving import Server, server  # noqa: F401


def test_malformed_tokens_file_leaves_the_tokens_before_it(caller):  # noqa: F811
    with Server(caller) as server:  # noqa: F811
        metrics = server.new_token("one", "metrics")
        until(lambda: server.call("GET", "/metrics", token=metrics)[0] == 200)
        good = server.tokens.read_bytes()
        stream = server.connect()
        stream.request("GET", "/v1/events", headers={"Authorization": f"Bearer {server.token}"})
        events = stream.getresponse()
        for text in (b"{", b"", b"[]", b'{"tokens": [{"id": 7}]}', b'{"tokens": [], "tenants": 1}'):
            server.tokens.write_bytes(text)
            until(lambda: "tokens" in server.call("GET", "/readyz")[1])
            assert server.call("GET", "/v1/sandboxes")[0] == 200
            text = server.call("GET", "/metrics", token=metrics)[1]
            assert b"\nrollbox_tokens_valid 0\n" in text
            server.tokens.write_bytes(good)
            until(lambda: server.call("GET", "/readyz")[1] == {"status": "ready"})
        assert b"\nrollbox_tokens_valid 1\n" in server.call("GET", "/metrics", token=metrics)[1]
        assert server.call("POST", "/v1/sandboxes", {"name": "box"})[0] == 201
        while b"box" not in (line := events.readline()):
            assert line, "the stream of events has ended"
        stream.close()
        server.tokens.write_bytes(b'{"tokens": [], "tenants": {}}')
        until(lambda: server.call("GET", "/v1/sandboxes")[0] == 401)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE) == 0
        log = server.process.stderr.read().decode()
        assert "row 1 of" in log and "line 1" in log and str(server.tokens) in log


def test_server_does_not_start_with_a_malformed_tokens_file(caller):  # noqa: F811
    path = caller.directory() / "tokens"
    path.write_text('{"tokens": [{"id": 7}]}')
    path.chmod(0o644)
    done = caller.rollbox("serve", "--listen", "127.0.0.1:0", "--tokens", path)
    assert done.returncode == 1
    assert b"is not valid: the row 1" in done.stderr, done.stderr


def test_tenant_that_does_not_exist_is_an_error(caller):  # noqa: F811
    tokens = caller.directory() / "tokens"
    assert caller.rollbox("token", "create", "--tokens", tokens, "--tenant", "teama").returncode == 0
    done = caller.rollbox("token", "tenant", "--tokens", tokens, "teams")
    assert done.returncode == 1 and done.stdout == b""
    assert b"no tenant teams" in done.stderr and b"did you mean teama?" in done.stderr
    done = caller.rollbox("token", "tenant", "--tokens", tokens, "teama")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"quota": {}})
    new = ("token", "tenant", "--tokens", tokens, "--quota", "cpus=4", "later")
    assert caller.rollbox(*new).returncode == 0
    assert caller.rollbox("token", "tenant", "--tokens", tokens, "later").returncode == 0


def test_wrong_quota_is_named_with_those_that_exist(caller):  # noqa: F811
    tokens = caller.directory() / "tokens"
    for quota, words in (
        ("foo=1", (b"--quota foo=1", b'no quota "foo"', b"sandboxes, running")),
        ("sandboxs=1", (b'did you mean "sandboxes"?',)),
        ("memory=much", (b"a size", b'"much"')),
        ("rate", (b"rate=VALUE",)),
    ):
        for words_before in (("token", "tenant", "--tokens", tokens), ("serve",)):
            more = ("one",) if words_before[0] == "token" else ("--listen", "127.0.0.1:0")
            done = caller.rollbox(*words_before, "--quota", quota, *more)
            assert done.returncode == 2, done
            for word in words:
                assert word.replace(b"--quota", b"quota") in done.stderr, (quota, done.stderr)
