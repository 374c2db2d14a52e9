# SPDX-License-Identifier: Apache-2.0
"""Connections from the host to a server in a sandbox."""

import contextlib
import json
import socket

import pytest
from harness import until
from rollbox import FeatureMissing, NotFound, Policy, Sandbox
from cli_sessions import shared  # noqa: F401

# Answers each connection with what it sent, in capitals, and says on which family it listens.
SERVER = """
import socket, sys, threading
family, address = (socket.AF_INET6, "::1") if sys.argv[1] == "6" else (socket.AF_INET, "127.0.0.1")
listener = socket.socket(family)
listener.bind((address, 8080))
listener.listen()
print("ready", flush=True)
def serve(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data.upper())
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"""


def start_server(box, family="4"):
    server = box.spawn(["python3", "-c", SERVER, family])
    assert server.stdout.readline() == b"ready\n"
    return server


def ask(connection, data):
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
    answer = b""
    while piece := connection.recv(65536):
        answer += piece
    return answer


@pytest.mark.parametrize("family", ["4", "6"])
def test_connect_reaches_a_server_inside(family):
    with Sandbox(Policy(net="loopback")) as box:
        start_server(box, family)
        for _ in range(3):
            with box.connect(8080) as connection:
                assert ask(connection, b"hello" * 20000) == b"HELLO" * 20000


def test_connect_to_a_port_without_server_is_not_found():
    with Sandbox(Policy(net="loopback")) as box:
        with pytest.raises(NotFound, match="nothing listens on port 8081"):
            box.connect(8081)


def test_connect_needs_a_network():
    with Sandbox() as box:
        with pytest.raises(FeatureMissing, match="net loopback or allow"):
            box.connect(8080)


def test_connect_wakes_a_hibernated_server():
    with Sandbox(Policy(net="loopback")) as box:
        start_server(box)
        box.hibernate()
        with box.connect(8080) as connection:
            assert ask(connection, b"awake") == b"AWAKE"


def test_connection_ends_with_its_sandbox():
    box = Sandbox(Policy(net="loopback"))
    with box:
        start_server(box)
        connection = box.connect(8080)
    with connection, contextlib.suppress(ConnectionResetError):
        assert connection.recv(1) == b""


@pytest.fixture
def served(shared):
    """The name of a sandbox of a shared engine that runs the server."""
    with shared.box("--net", "loopback") as name:
        id = shared.ok("exec", "-d", name, "--", "python3", "-c", SERVER, "4")
        until(lambda: "ready" in shared.ok("logs", name, id))
        yield name


@contextlib.contextmanager
def forwarded(shared, name, *flags):
    with shared.start("forward", "--json", *flags, name, "8080") as forward:
        yield json.loads(forward.line())["address"]


def test_forward_serves_many_connections(shared, served):
    with forwarded(shared, served) as address:
        host, port = address.rsplit(":", 1)
        connections = [socket.create_connection((host, int(port))) for _ in range(8)]
        for number, connection in enumerate(connections):
            with connection:
                assert ask(connection, b"number %d" % number) == b"NUMBER %d" % number


def test_forward_from_a_unix_socket(shared, served):
    path = shared.who.directory() / "server"
    with forwarded(shared, served, "--listen", str(path)):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            assert ask(connection, b"unix") == b"UNIX"


def test_forward_of_standard_streams(shared, served):
    done = shared("forward", "--listen", "-", served, "8080", input=b"streams")
    assert (done.returncode, done.stdout) == (0, b"STREAMS")


def test_forward_refuses_a_bad_port_or_address(shared, served):
    for flags, port in (([], "0"), ([], "http"), (["--listen", "nowhere"], "80")):
        done = shared("forward", *flags, served, port)
        assert done.returncode == 125 and b"must be" in done.stderr
