# SPDX-License-Identifier: Apache-2.0
"""net_record and net_replay: an episode with a network is repeated byte for byte without one."""

import base64
import contextlib
import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from engines import engine  # noqa: F401
from harness import DEADLINE, caller, until  # noqa: F401

TOKEN = "s3cret-" + "value-0123456789"


class Web:
    """Answers with what was asked, with the number of the request, and with the secret it got."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.n_requests = self.n_connections = 0
        self.in_half, self.goes_on = threading.Semaphore(0), threading.Event()
        self.threads = [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    def accept(self):
        while True:
            try:
                peer, _ = self.socket.accept()
            except OSError:
                return
            self.n_connections += 1
            threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer):
        with (
            contextlib.suppress(ConnectionResetError, BrokenPipeError),
            peer,
            peer.makefile("rwb") as file,
        ):
            while line := file.readline():
                headers = {}
                while (header := file.readline()) not in (b"\r\n", b""):
                    name, _, value = header.decode().partition(":")
                    headers[name.lower()] = value.strip()
                body = file.read(int(headers.get("content-length", 0)))
                self.n_requests += 1
                text = f"{line.decode().strip()} {self.n_requests} {len(body)} {headers.get('authorization', '-')}\n".encode()
                if b"chunked" in line:
                    file.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    for i in range(0, len(text), 7):
                        file.write(b"%x\r\n%s\r\n" % (len(text[i : i + 7]), text[i : i + 7]))
                    file.write(b"0\r\n\r\n")
                elif b"closing" in line:
                    file.write(b"HTTP/1.1 200 OK\r\n\r\n" + text)
                    return
                elif b"half" in line:
                    file.write(
                        b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + bytes(1500000)
                    )
                    file.flush()
                    self.in_half.release()
                    self.goes_on.wait()
                elif b"large" in line:
                    file.write(
                        b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n"
                        + bytes(range(250)) * 12000
                    )
                else:
                    file.write(
                        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)
                    )
                file.flush()

    def close(self):
        self.goes_on.set()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


@pytest.fixture
def web():
    one = Web()
    yield one
    one.close()


def policy(caller, rules, **keys):
    return caller.write(
        caller.directory(0o755) / "policy.json", json.dumps({"net_allow": rules, **keys})
    )


def environment(caller, **more):
    return caller.environment(ROLLBOX_STORE=str(caller.home / "store"), **more)


def run(caller, path, code, *options, **more):
    result = caller.run(
        "--policy", path, *options, "--", "python3", "-c", code, env=environment(caller, **more)
    )
    assert result.outcome == "exit", result.error
    return result


def rule(web, host="api.example.org", **more):
    return {"host": host, "to": f"http://{web.address}", "ports": [80, 443], **more}


REQUESTS = """
import ssl, sys, urllib.request
for url, data in (("https://api.example.org/a", None), ("https://api.example.org/a", None), ("http://api.example.org/b?c=d", b"x"),
                  ("https://api.example.org/chunked", None), ("https://api.example.org/closing", b"yy"), ("https://api.example.org/large", None)):
    answer = urllib.request.urlopen(url, data, timeout=20)
    body = answer.read()
    print(answer.status, len(body), hash(body) if len(body) > 1000 else body.decode(), flush=True)
"""


def test_http_is_repeated_without_a_network(caller, web):
    file = caller.directory(0o755) / "episode.jsonl"
    path = policy(caller, [rule(web)])
    first = run(caller, path, REQUESTS, "--net-record", str(file), "--env", "PYTHONHASHSEED=1")
    assert first.exit_code == 0 and "GET /a HTTP/1.1 2 0" in first.stdout, first.raw
    web.close()
    second = run(caller, path, REQUESTS, "--net-replay", str(file), "--env", "PYTHONHASHSEED=1")
    assert second.stdout == first.stdout, (second.raw, file.read_text()[:3000])
    assert (
        second.network["refused"] == 0
        and second.network["connections"] == first.network["connections"]
    )


def test_a_request_that_was_not_recorded_is_a_replay_miss(caller, web):
    file = caller.directory(0o755) / "episode.jsonl"
    path = policy(caller, [rule(web)])
    code = """
import sys, urllib.error, urllib.request
for text in sys.argv[1:]:
    try:
        print(urllib.request.urlopen("https://api.example.org/" + text, None, 20).read())
    except urllib.error.HTTPError as error:
        print(error.code, error.headers["Rollbox-Refused"])
"""
    run(caller, path, code.replace("sys.argv[1:]", "['a', 'b']"), "--net-record", str(file))
    n = web.n_requests
    result = run(
        caller,
        path,
        code.replace("sys.argv[1:]", "['b', 'b', 'a', 'c']"),
        "--net-replay",
        str(file),
    )
    lines = result.stdout.splitlines()
    assert (
        "GET /b" in lines[0]
        and lines[1] == "502 replay_miss"
        and "GET /a" in lines[2]
        and lines[3] == "502 replay_miss"
    ), result.raw
    assert [(row["why"], row["count"]) for row in result.network["refusals"]] == [
        ("replay_miss", 2)
    ]
    assert web.n_requests == n


def test_a_recording_has_no_secret(caller, web):
    file = caller.directory(0o755) / "episode.jsonl"
    secrets = {"net_secrets": {"token": {"from": "env:TOKEN"}}}
    path = policy(caller, [rule(web, inject={"Authorization": "Bearer {token}"})], **secrets)
    code = 'import urllib.request; print(urllib.request.urlopen("https://api.example.org/chunked", None, 20).read().decode())'
    first = run(
        caller, path, code.replace("chunked", "plain"), "--net-record", str(file), TOKEN=TOKEN
    )
    assert TOKEN in first.stdout  # the server echoes it
    bytes_of = b"".join(
        base64.b64decode(line["down"])
        for line in map(json.loads, filter(None, file.read_text().splitlines()))
        if "down" in line
    )
    assert (
        b"Bearer " + b"*" * len(TOKEN) in bytes_of
        and TOKEN.encode() not in bytes_of
        and TOKEN not in file.read_text()
    )
    # A replay needs no secret.
    second = run(
        caller,
        policy(caller, [rule(web)]),
        code.replace("chunked", "plain"),
        "--net-replay",
        str(file),
    )
    assert second.stdout == first.stdout.replace(TOKEN, "*" * len(TOKEN))


TALK = """
import socket
def talk(lines):
    peer = socket.create_connection(("db.example.org", 5432), 20)
    file = peer.makefile("rwb")
    for line in lines:
        file.write(line); file.flush()
        print(file.readline())
    peer.shutdown(socket.SHUT_WR)
    print(file.read())
talk([b"one\\n", b"two\\n"])
talk([b"three\\n"])
"""


def echo(listener, greeting):
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        with peer, peer.makefile("rwb") as file:
            file.write(greeting)
            file.flush()
            for line in file:
                file.write(b"you said " + line)
                file.flush()
            file.write(b"bye")


@pytest.mark.parametrize("greeting", [b"", b"hello\n"])
@pytest.mark.parametrize("tls", ["raw", None])
def test_raw_streams_are_repeated_without_a_network(caller, greeting, tls):
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=echo, args=(listener, greeting), daemon=True)
    thread.start()
    file = caller.directory(0o755) / "episode.jsonl"
    stream = {
        "host": "db.example.org",
        "ports": [5432],
        "to": f"127.0.0.1:{listener.getsockname()[1]}",
    }
    path = policy(caller, [{**stream, "tls": tls} if tls else stream])
    first = run(caller, path, TALK, "--net-record", str(file))
    assert first.exit_code == 0 and "bye" in first.stdout, first.raw
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    second = run(caller, path, TALK, "--net-replay", str(file))
    assert second.stdout == first.stdout, (second.raw, file.read_text())
    # Other bytes are refused by name.
    third = run(caller, path, TALK.replace("two", "2"), "--net-replay", str(file))
    assert third.exit_code != 0
    assert {row["why"] for row in third.network["refusals"]} == {"replay_miss"}, third.raw


def test_replay_finds_streams_in_another_order(caller):
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=echo, args=(listener, b""), daemon=True).start()
    file = caller.directory(0o755) / "episode.jsonl"
    path = policy(
        caller,
        [
            {
                "host": "db.example.org",
                "ports": [5432],
                "to": f"127.0.0.1:{listener.getsockname()[1]}",
            }
        ],
    )
    run(caller, path, TALK, "--net-record", str(file))
    listener.close()
    one, two = TALK.splitlines()[-2:]
    swapped = TALK.replace(one + "\n" + two, two + "\n" + one)
    result = run(caller, path, swapped, "--net-replay", str(file))
    assert result.exit_code == 0 and result.stdout.index("three") < result.stdout.index("two"), (
        result.raw
    )


@pytest.mark.parametrize(
    "content, why",
    [(b"", "not a recording"), (b"not one\n", "not a recording"), (None, "No such file")],
)
def test_a_file_that_is_no_recording_is_refused(caller, content, why):
    file = caller.directory(0o755) / "episode.jsonl"
    if content is not None:
        caller.write(file, content.decode())
    result = caller.run(
        "--allow", "a.example.org", "--net-replay", str(file), "--", "true", env=environment(caller)
    )
    assert result.outcome == "error" or result.error, result.raw
    assert why in json.dumps(result.raw) and "net_replay" in json.dumps(result.raw)


def test_rules_that_cannot_be_recorded_are_refused(caller):
    for text, why in (
        ({"host": "a.example.org", "tls": "check"}, "cannot be recorded"),
        ({"host": "a.example.org", "ports": ["53/udp"]}, "UDP"),
    ):
        result = caller.run(
            "--policy",
            policy(caller, [text]),
            "--net-record",
            "/tmp/x",
            "--",
            "true",
            env=environment(caller),
        )
        assert why in json.dumps(result.raw)


def test_websocket_like_switch_is_repeated(caller):
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer, peer.makefile("rwb") as file:
                while file.readline() not in (b"\r\n", b""):
                    pass
                file.write(
                    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhi\n"
                )
                file.flush()
                for line in file:
                    file.write(line.upper())
                    file.flush()

    threading.Thread(target=serve, daemon=True).start()
    code = """
import socket, ssl
peer = ssl.create_default_context().wrap_socket(socket.create_connection(("api.example.org", 443), 20), server_hostname="api.example.org")
file = peer.makefile("rwb")
file.write(b"GET / HTTP/1.1\\r\\nHost: api.example.org\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\nSec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\\r\\n\\r\\n")
file.flush()
while (line := file.readline()) != b"\\r\\n":
    print(line)
print(file.readline())
for word in (b"one\\n", b"two\\n"):
    file.write(word); file.flush()
    print(file.readline())
"""
    file = caller.directory(0o755) / "episode.jsonl"
    path = policy(
        caller,
        [
            {
                "host": "api.example.org",
                "to": f"http://127.0.0.1:{listener.getsockname()[1]}",
                "ports": [443],
            }
        ],
    )
    first = run(caller, path, code, "--net-record", str(file))
    assert first.exit_code == 0 and "TWO" in first.stdout, first.raw
    listener.close()
    second = run(caller, path, code, "--net-replay", str(file))
    assert second.stdout == first.stdout, (second.raw, file.read_text())


def decrypters(engine):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
            if (
                name == "rollbox-egress-"
                and rest.split()[0] != "Z"
                and int(rest.split()[1]) == engine.process.pid
            ):
                found.append(int(pid))
    return found


def test_a_gateway_that_is_killed_while_it_records_leaves_a_recording(engine, web):
    who, file = engine.who, engine.who.directory(0o755) / "episode.jsonl"
    path = policy(who, [rule(web)], net_record=str(file))

    def call(verb, *arguments):
        return who.rollbox(verb, "--socket", engine.path, *arguments)

    assert call("create", "--name", "killed", "--policy", path).returncode == 0
    fetch = 'import sys, urllib.request; print(len(urllib.request.urlopen("https://api.example.org/" + sys.argv[1], None, 20).read()))'
    done = call("exec", "killed", "--", "python3", "-c", fetch, "whole")
    assert done.returncode == 0, done.stderr
    with ThreadPoolExecutor(1) as pool:
        half = pool.submit(call, "exec", "killed", "--", "python3", "-c", fetch, "half")
        web.in_half.acquire(timeout=DEADLINE)
        for pid in decrypters(engine):
            os.kill(pid, signal.SIGKILL)
        assert half.result().returncode != 0  # a part is not taken for the whole
    until(lambda: call("exec", "killed", "--", "python3", "-c", fetch, "after").returncode == 0)
    call("rm", "killed")
    again = policy(who, [rule(web)], net_replay=str(file))
    for name, works in (("whole", True), ("after", True), ("half", False)):
        result = run(who, again, fetch.replace("sys.argv[1]", repr(name)))
        assert (result.exit_code == 0) == works, (name, result.raw)


def test_clients_of_http2_alone_are_refused_by_name(caller, web):
    file = caller.directory(0o755) / "episode.jsonl"
    path = policy(caller, [rule(web)])
    code = """
import socket, ssl
context = ssl.create_default_context()
context.set_alpn_protocols(["h2"])
try:
    context.wrap_socket(socket.create_connection(("api.example.org", 443), 20), server_hostname="api.example.org")
except OSError:
    print("refused")
"""
    for option, why in (("--net-record", "bad_request"), ("--net-replay", "replay_miss")):
        result = run(caller, path, code, option, str(file))
        assert result.stdout == "refused\n" and [
            row["why"] for row in result.network["refusals"]
        ] == [why], result.raw
