# SPDX-License-Identifier: Apache-2.0
"""What streams of the HTTP server keep in memory: of large output, of readers that do not read, and of idle ones."""

import json
import socket

from harness import DEADLINE, caller, until  # noqa: F401
from serving import server  # noqa: F401

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


def start(server, script, name="e"):  # noqa: F811
    """A command that runs on without a client."""
    status, _ = server.call(
        "PUT",
        f"/v1/sandboxes/box/execs/{name}",
        {"argv": ["sh", "-c", script], "output_limit": MIB << 10},
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


def test_idle_streams_take_less_than_four_kib(server):  # noqa: F811
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
        assert (memory(server) - before) / n < 4096
    finally:
        for one in streams:
            one.close()
