# SPDX-License-Identifier: Apache-2.0
"""WebSocket connections of the HTTP server: a command's streams, its terminal, and ports of a sandbox."""

import json
import os
import socket

import pytest
from harness import DEADLINE, caller, until  # noqa: F401
from rollbox import Engine, Sandbox
from rollbox._core import websocket
from serving import WEBSOCKET_KEY as KEY
from serving import Socket, server  # noqa: F401


@pytest.fixture
def box(server):  # noqa: F811
    """The path of a sandbox."""
    assert server.call("POST", "/v1/sandboxes", {"name": "box"})[0] == 201
    return "/v1/sandboxes/box"


def test_channel_has_the_streams_and_one_result(server, box):  # noqa: F811
    with Socket(server, box + "/channel") as one:
        assert one.status == 101
        assert f"Sec-WebSocket-Accept: {websocket_accept()}".encode() in one.head
        one.send({"start": {"argv": ["sh", "-c", "cat; echo e >&2; exit 3"], "streams": [0, 1, 2]}})
        assert one.next()["started"]["streams"] == {"0": "in", "1": "out", "2": "out"}
        one.send(b"\0some input")
        one.send(b"\0")
        messages = one.all()
    data = {number: b"" for number in (1, 2)}
    for message in messages:
        if isinstance(message, bytes):
            data[message[0]] += message[1:]
    assert data == {1: b"some input", 2: b"e\n"}
    results = [
        message["result"]
        for message in messages
        if isinstance(message, dict) and "result" in message
    ]
    assert [result["exit_code"] for result in results] == [3]


def websocket_accept():
    """What the server answers to KEY."""
    import base64
    import hashlib

    salt = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    return base64.b64encode(hashlib.sha1((KEY + salt).encode()).digest()).decode()


def test_terminal_has_keys_size_and_result(server, box):  # noqa: F811
    body = {
        "argv": ["sh", "-c", "read x; stty size; echo got $x"],
        "tty": {"rows": 20, "columns": 70},
    }
    assert server.call("PUT", box + "/execs/t", body, Prefer="respond-async")[0] == 202
    with Socket(server, box + "/execs/t/tty") as one:
        assert one.status == 101
        one.send({"resize": {"rows": 31, "columns": 99}})
        one.send(b"abc\r")
        messages = one.all()
    output = b"".join(message for message in messages if isinstance(message, bytes))
    assert b"31 99" in output and b"got abc" in output
    assert messages[-1]["result"]["exit_code"] == 0
    # A terminal whose command has ended still has its output.
    with Socket(server, box + "/execs/t/tty") as one:
        messages = one.all()
    assert b"got abc" in messages[0] and messages[-1]["result"]["exit_code"] == 0


def test_stream_that_nobody_reads_delays_no_other_one(server, box):  # noqa: F811
    with Socket(server, box + "/channel") as one:
        script = "head -c 3000000 /dev/zero & cat >&2; wait"
        one.send({"start": {"argv": ["sh", "-c", script], "streams": [0, 1, 2]}})
        one.next()
        got = 0
        while got < 256 << 10:  # all that the window allows
            got += len(one.next()) - 1
        one.send(b"\0still read")
        assert one.next() == b"\2still read"
        one.send({"credit": [1, 1000]})
        assert len(one.next()) == 1001


def test_input_above_the_window_ends_the_channel(server, box):  # noqa: F811
    with Socket(server, box + "/channel") as one:
        one.send({"start": {"argv": ["sleep", "1000"], "streams": [0]}})
        one.next()
        for _ in range(12):
            one.send(b"\0" + bytes(64 << 10))
        assert all("credit" in message for message in one.all())
        assert int.from_bytes(one.closed[:2], "big") == 1008
    until(lambda: server.call("GET", box + "/execs")[1]["execs"][0]["state"] == "ended")


def test_more_signals_than_the_sandbox_takes_end_the_channel(server, box):  # noqa: F811
    with Socket(server, box + "/channel") as one:
        one.send({"start": {"argv": ["sleep", "1000"], "streams": [1]}})
        one.next()
        signal = websocket.frame(websocket.TEXT, b'{"signal": "WINCH", "scope": "main"}')
        one.sock.sendall(signal * 20000)
        one.all()
        assert int.from_bytes(one.closed[:2], "big") == 1008
    assert server.call("GET", box)[0] == 200


def test_command_ends_with_its_channel_unless_it_is_detached(server, box):  # noqa: F811
    for detached in (False, True):
        with Socket(server, box + "/channel") as one:
            one.send(
                {"start": {"argv": ["sleep", "1000"], "id": f"c{detached}", "detached": detached}}
            )
            one.next()
    states = lambda: {
        row["id"]: row["state"] for row in server.call("GET", box + "/execs")[1]["execs"]
    }  # noqa: E731
    until(lambda: states()["cFalse"] == "ended")
    assert states()["cTrue"] != "ended"


MALFORMED = [
    b"\xff\xff",  # a reserved opcode and length
    bytes([0x81, 5]) + b"hello",  # not masked
    bytes([0xC1, 0x80, 1, 2, 3, 4]),  # a reserved bit
    bytes([0x81, 0x82, 0, 0, 0, 0, 0xFF, 0xFF]),  # text that is not UTF-8
    bytes([0x89, 0xFE, 1, 0, 0, 0, 0, 0]) + bytes(256),  # a long ping
    bytes([0x80, 0x80, 0, 0, 0, 0]),  # a continuation of nothing
    bytes([0x82, 0xFF]) + (1 << 40).to_bytes(8, "big") + bytes(9),  # a message without end
    websocket.frame(websocket.TEXT, b"no JSON"),
    websocket.frame(websocket.TEXT, b"[]"),
    websocket.frame(websocket.TEXT, b'{"start": {"argv": []}}'),
    websocket.frame(websocket.TEXT, b'{"start": {"argv": ["true"], "unknown": 1}}'),
    websocket.frame(websocket.TEXT, b'{"connect": 0}'),
    websocket.frame(websocket.TEXT, b'{"attach": {"id": "no-such"}}'),
]


def test_malformed_message_ends_its_channel_alone(server, box):  # noqa: F811
    for malformed in MALFORMED:
        with Socket(server, box + "/channel") as one:
            one.sock.sendall(malformed)
            assert all({"error", "started"} & set(message) for message in one.all()), malformed
    assert server.call("GET", box)[0] == 200


def test_handshake_is_checked(server, box):  # noqa: F811
    def status(head):
        return int(server.raw(head.replace("\n", "\r\n").encode()).split()[1])

    auth = f"Host: localhost\nAuthorization: Bearer {server.token}\n"
    upgrade = "Upgrade: websocket\nConnection: Upgrade\n"
    path = f"GET {box}/channel HTTP/1.1\n{auth}"
    assert status(f"{path}\n") == 426
    assert status(f"{path}{upgrade}\n") == 426
    assert status(f"{path}{upgrade}Sec-WebSocket-Key: {KEY}\nSec-WebSocket-Version: 8\n\n") == 426
    good = f"{upgrade}Sec-WebSocket-Key: {KEY}\nSec-WebSocket-Version: 13\n"
    assert status(f"{path}{good}\n") == 101
    assert status(f"{path}{good}Origin: http://elsewhere.example\n\n") == 403
    assert status(f"{path}{good}Origin: http://localhost:80\n\n") == 101
    assert status(f"{path}{good}Content-Length: 3\n\nabc") == 501
    assert status(f"{path}Upgrade: h2c\nConnection: Upgrade\n\n") == 501
    assert status(f"GET {box}/channel HTTP/1.1\nHost: localhost\n{good}\n") == 401
    assert status(f"GET {box}x/channel HTTP/1.1\n{auth}{good}\n") == 404
    other = server.new_token("two")
    assert Socket(server, box + "/channel", token=other).status == 404


def test_no_descriptor_is_left_of_channels(server, box):  # noqa: F811
    if os.geteuid() != 0:
        pytest.skip("needs root: the kernel shows nobody else the descriptors of the server")

    def descriptors():
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))

    before = descriptors()
    for body in (
        {"start": {"argv": ["cat"], "streams": [0, 1, 2]}},
        {"connect": 9},
        {"claim": {"id": "x"}},
    ):
        for _ in range(5):
            with Socket(server, box + "/channel") as one:
                one.send(body)
                one.next()
    until(lambda: descriptors() <= before)


def test_port_of_a_sandbox_is_reached_from_python(server):  # noqa: F811
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 8000)); print('ready', flush=True)\n"
        "while True:\n c = s.accept()[0]; c.sendall(b'got ' + c.recv(100)); c.close()"
    )
    with Engine(
        f"http://127.0.0.1:{server.port}", token=server.new_token("one", "run", "host")
    ) as engine:
        with Sandbox({"net": "loopback"}, engine=engine) as box:
            serving = box.spawn(["python3", "-c", code])
            assert serving.stdout.readline() == b"ready\n"
            with box.connect(8000) as sock:
                sock.sendall(b"hello")
                assert sock.makefile("rb").read() == b"got hello"
            port = int(box.url(8000).rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.sendall(b"by url")
                assert sock.makefile("rb").read() == b"got by url"
