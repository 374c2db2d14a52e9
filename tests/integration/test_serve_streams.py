# SPDX-License-Identifier: Apache-2.0
"""What streams of the HTTP server keep in memory: of large output, of readers that do not read, and of idle ones."""

import json
import select
import socket

from harness import DEADLINE, caller, until  # noqa: F401
from rollbox._core import websocket
from serving import Socket, server  # noqa: F401

MIB = 1 << 20


def memory(server):  # noqa: F811
    """The server's own memory, in bytes."""
    with open(f"/proc/{server.process.pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


def sandbox(server):  # noqa: F811
    """A sandbox whose output may be large."""
    status, _ = server.call(
        "POST", "/v1/sandboxes", {"name": "box", "policy": {"max_memory": "1G"}}
    )
    assert status == 201


def start(server, script, name="e", **more):  # noqa: F811
    """A command that runs on without a client. `more`: members of its body."""
    status, _ = server.call(
        "PUT",
        f"/v1/sandboxes/box/execs/{name}",
        {"argv": ["sh", "-c", script], "output_limit": MIB << 10, **more},
        Prefer="respond-async",
    )
    assert status == 202


def attach(server, name="e"):  # noqa: F811
    """A socket with the stream's request sent."""
    connection = socket.create_connection(("127.0.0.1", server.port), DEADLINE)
    connection.sendall(
        f"GET /v1/sandboxes/box/execs/{name}/stream HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {server.token}\r\n\r\n".encode()
    )
    return connection


def lines(n):
    """A script that writes n bytes."""
    return f"yes {'a' * 63} | head -c {n}"


def test_large_output_passes_in_bounded_memory(server):  # noqa: F811
    sandbox(server)
    before = memory(server)
    # While the command runs; after its end, of an output that the engine keeps.
    for name, n in (("live", 100 * MIB), ("ended", 40 * MIB)):
        start(server, lines(n), name)
        if name == "ended":
            until(lambda: server.call("GET", "/v1/sandboxes/box/execs/ended?wait=30")[0] == 200)
        with attach(server, name) as connection:
            got, peak, tail = 0, 0, b""
            while not tail.endswith(b"0\r\n\r\n"):
                piece = connection.recv(MIB)
                assert piece
                if got >> 23 != (got + len(piece)) >> 23:
                    peak = max(peak, memory(server))
                got += len(piece)
                tail = (tail + piece)[-4096:]
            assert got > n and peak - before < 8 * MIB
            row = json.loads(tail.rpartition(b"event: result\ndata: ")[2].partition(b"\n")[0])
            assert (row["outcome"], row["exit_code"], row["stdout"]) == ("exit", 0, "")


def test_reader_that_does_not_read_holds_little(server):  # noqa: F811
    sandbox(server)
    start(server, lines(40 * MIB))
    until(lambda: server.call("GET", "/v1/sandboxes/box/execs/e?wait=30")[0] == 200)
    before = memory(server)
    with attach(server) as first, attach(server) as second:
        for one in (first, second):
            assert one.recv(1)
        # Others are served meanwhile.
        for _ in range(20):
            assert server.call("GET", "/healthz")[0] == 200
        assert memory(server) - before < 16 * MIB


def test_idle_streams_take_less_than_three_kib(server):  # noqa: F811
    sandbox(server)
    start(server, "echo begun; sleep 1000")
    n = 300
    before, streams = None, []
    try:
        for i in range(n + 50):
            if i == 50:
                before = memory(server)
            streams.append(attach(server))
            got = b""
            while b"begun" not in got:
                got += streams[-1].recv(65536)
        assert (memory(server) - before) / n < 3072
    finally:
        for one in streams:
            one.close()


def start_and_end(server, script, **more):  # noqa: F811
    """A command that has ended; its output is not in the server."""
    start(server, script, **more)
    rows = lambda: server.call("GET", "/v1/sandboxes/box/execs")[1]["execs"]  # noqa: E731
    until(lambda: [row["state"] for row in rows()] == ["ended"])


def credit(*one):
    return websocket.frame(websocket.TEXT, json.dumps({"credit": one}).encode())


def send_what_is_taken(sock, data):
    """Sends until the server takes nothing for a second: how many bytes."""
    sent = 0
    sock.setblocking(False)
    while sent < len(data) and select.select([], [sock], [], 1)[1]:
        sent += sock.send(data[sent : sent + MIB])
    sock.settimeout(DEADLINE / 4)
    return sent


def test_channel_of_an_ended_command_passes_in_bounded_memory(server):  # noqa: F811
    """The client gives all credit at once and reads nothing, and then reads all."""
    sandbox(server)
    n = 40 * MIB
    start_and_end(server, lines(n))
    before = memory(server)
    with Socket(server, "/v1/sandboxes/box/channel") as one:
        one.send({"attach": {"id": "e", "streams": [1, 2]}})
        assert "started" in one.next()
        one.sock.sendall(credit(1, 256 << 10) * 2000)
        until(lambda: select.select([one.sock], [], [], 0)[0])
        assert server.call("GET", "/healthz")[0] == 200
        assert memory(server) - before < 16 * MIB
        got, result = 0, None
        while (message := one.next()) is not None:
            if isinstance(message, dict):
                result = message["result"]
            elif message[0] == 1:
                got += len(message) - 1
                one.sock.sendall(credit(1, max(1, len(message) - 1)))
        assert got == n and memory(server) - before < 16 * MIB
        assert (result["outcome"], result["exit_code"], result["stdout"]) == ("exit", 0, "")


def test_terminal_of_an_ended_command_passes_in_bounded_memory(server):  # noqa: F811
    sandbox(server)
    start_and_end(server, lines(20 * MIB), tty={"rows": 20, "columns": 70})
    before = memory(server)
    with Socket(server, "/v1/sandboxes/box/execs/e/tty") as one:
        first = one.next()
        assert server.call("GET", "/healthz")[0] == 200
        assert memory(server) - before < 16 * MIB
        messages = [first, *one.all()]
    output = b"".join(message for message in messages if isinstance(message, bytes))
    assert output.count(b"a" * 63 + b"\r\n") == 20 * MIB // 64
    assert messages[-1]["result"]["exit_code"] == 0


def test_credit_of_a_client_that_does_not_read_is_not_used(server):  # noqa: F811
    sandbox(server)
    with Socket(server, "/v1/sandboxes/box/channel") as one:
        one.send({"start": {"argv": ["yes"], "streams": [1]}})
        one.next()
        before = memory(server)
        # Singly, so that the server may send after each.
        one.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one_credit = credit(1, 32 << 10)
        for _ in range(3000):
            if send_what_is_taken(one.sock, one_credit) < len(one_credit):
                break
        assert server.call("GET", "/healthz")[0] == 200
        assert memory(server) - before < 16 * MIB


def test_pings_of_a_client_that_does_not_read_are_not_answered(server):  # noqa: F811
    sandbox(server)
    ping = websocket.frame(websocket.PING, bytes(125))
    with Socket(server, "/v1/sandboxes/box/channel") as one:
        before = memory(server)
        data = ping * (64 * MIB // len(ping))
        sent = send_what_is_taken(one.sock, data)
        assert server.call("GET", "/healthz")[0] == 200
        assert memory(server) - before < 16 * MIB
        # Once it reads, all are answered, and the channel works.
        rest = data[sent : sent + -sent % len(ping)] + websocket.frame(
            websocket.TEXT, b'{"start": {"argv": ["true"]}}'
        )
        got = one.data
        while rest:
            readable, writable, _ = select.select([one.sock], [one.sock], [], DEADLINE)
            if readable:
                got += one.sock.recv(MIB)
            if writable:
                one.sock.setblocking(False)
                rest = rest[one.sock.send(rest) :]
                one.sock.settimeout(DEADLINE / 4)
        messages = one.all()
        assert one.pongs == -(-sent // len(ping))
        assert [set(message) for message in messages] == [{"started"}, {"result"}]
