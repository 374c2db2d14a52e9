# SPDX-License-Identifier: Apache-2.0
"""Published ports: addresses of the host that lead to servers inside sandboxes."""

import base64
import contextlib
import hashlib
import http.client
import json
import os
import resource
import signal
import socket
import stat
import threading

import pytest
from harness import DEADLINE, comm, descendants, until
from cli_sessions import own, shared  # noqa: F401

# By its argument: "http" answers with the path; "echo" sends back what comes, in capitals; "web" is
# a WebSocket echo; "deaf" accepts connections and never reads.
SERVER = """
import base64, hashlib, http.server, socket, sys, threading, time
kind, port = sys.argv[1], int(sys.argv[2])
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = b"you asked for " + self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments):
        pass
def echo(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data.upper())
def web(connection):
    head = b""
    while not head.endswith(b"\\r\\n\\r\\n"):
        head += connection.recv(1)
    key = [line.split(b": ")[1] for line in head.split(b"\\r\\n") if line.startswith(b"Sec-WebSocket-Key")][0]
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    connection.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: " + accept + b"\\r\\n\\r\\n")
    while frame := connection.recv(2):
        length = frame[1] & 127
        rest = connection.recv(4 + length, socket.MSG_WAITALL)
        text = bytes(byte ^ rest[i % 4] for i, byte in enumerate(rest[4:]))
        connection.sendall(bytes([frame[0], length]) + text.upper())
kept = []
if kind == "http":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.request_queue_size = 64
    print("ready", flush=True)
    server.serve_forever()
listener = socket.create_server(("127.0.0.1", port), backlog=256)
print("ready", flush=True)
while True:
    kept.append(listener.accept()[0])
    if kind != "deaf":
        threading.Thread(target={"echo": echo, "web": web}[kind], args=[kept.pop()], daemon=True).start()
"""


@contextlib.contextmanager
def served(engine, kind, *flags, port=8080):
    """A sandbox with a server of that kind that listens."""
    with engine.box(*flags) as name:
        serve(engine, name, kind, port)
        yield name


def serve(engine, name, kind, port=8080):
    id = engine.ok("exec", "-d", name, "--", "python3", "-c", SERVER, kind, str(port))
    until(lambda: "ready" in engine.ok("logs", name, id))


def address_of(engine, name, port=8080):
    host, port = engine.ok("port", name, str(port)).rsplit(":", 1)
    return host, int(port)


def get(address, path="/x"):
    client = http.client.HTTPConnection(*address, timeout=DEADLINE)
    client.request("GET", path)
    answer = client.getresponse().read()
    client.close()
    return answer


def ask(connection, data):
    """What the echo answers, to its end."""
    connection.settimeout(DEADLINE)
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
    answer = b""
    while piece := connection.recv(1 << 20):
        answer += piece
    return answer


def is_over(connection):
    connection.settimeout(DEADLINE)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def gateway_of(engine):
    """The pid of its rollbox-egress."""
    found = [pid for pid in descendants(engine.pid) if comm(pid) == "rollbox-egress"]
    return found[0] if found else None


@pytest.mark.parametrize("net", ["none", "loopback", "allow"])
def test_published_port_serves_http(shared, net):
    rules = ["--allow", "a.example.org"] if net == "allow" else ["--net", net]
    with served(shared, "http", "--publish", "8080", *rules) as name:
        address = address_of(shared, name)
        assert address[0] == "127.0.0.1"
        assert shared.json("inspect", name)["published"] == [
            {"port": 8080, "address": "%s:%d" % address, "url": "http://%s:%d" % address}
        ]
        assert get(address, "/a/b") == b"you asked for /a/b"
        assert get(address) == b"you asked for /x"


def test_published_port_carries_bytes_both_ways(shared):
    data = os.urandom(1 << 20) * 8
    with served(shared, "echo", "--publish", "8080") as name:
        with socket.create_connection(address_of(shared, name)) as connection:
            sender = threading.Thread(
                target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR))
            )
            sender.start()
            connection.settimeout(DEADLINE)
            answer = bytearray()
            while piece := connection.recv(1 << 20):
                answer += piece
            sender.join()
        assert hashlib.sha256(answer).digest() == hashlib.sha256(data.upper()).digest()


def test_websocket_passes_a_published_port(shared):
    key = base64.b64encode(os.urandom(16))
    with served(shared, "web", "--publish", "8080") as name:
        with socket.create_connection(address_of(shared, name), timeout=DEADLINE) as client:
            client.sendall(
                b"GET /chat HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
                + key
                + b"\r\n\r\n"
            )
            answer = client.makefile("rb")
            head = []
            while (line := answer.readline()) != b"\r\n":
                head.append(line)
            accept = base64.b64encode(
                hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
            )
            assert (
                head[0].startswith(b"HTTP/1.1 101 ")
                and head[-1] == b"Sec-WebSocket-Accept: " + accept + b"\r\n"
            )
            for text in (b"first", b"second"):
                mask = os.urandom(4)
                client.sendall(
                    bytes([0x81, 0x80 | len(text)])
                    + mask
                    + bytes(byte ^ mask[i % 4] for i, byte in enumerate(text))
                )
                assert answer.read(2 + len(text)) == bytes([0x81, len(text)]) + text.upper()


def test_first_connections_wake_a_hibernated_server(shared):
    with served(shared, "http", "--publish", "8080") as name:
        address = address_of(shared, name)
        shared.ok("hibernate", name)
        assert address_of(shared, name) == address
        assert shared.json("inspect", name)["state"] == "asleep"
        answers = [None] * 20

        def client(number):
            answers[number] = get(address, f"/{number}")

        threads = [threading.Thread(target=client, args=[number]) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [b"you asked for /%d" % number for number in range(20)]


def test_connection_resumes_a_paused_server(shared):
    with served(shared, "http", "--publish", "8080") as name:
        shared.ok("pause", name)
        assert get(address_of(shared, name)) == b"you asked for /x"


def test_connection_without_a_server_is_reset(shared):
    with shared.box("--publish", "8080") as name:
        with socket.create_connection(address_of(shared, name)) as connection:
            assert is_over(connection)
        serve(shared, name, "echo")
        with socket.create_connection(address_of(shared, name)) as connection:
            assert ask(connection, b"now") == b"NOW"


def test_address_in_use_creates_nothing(shared):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        before = [row["name"] for row in shared.json("ps", "--json")["sandboxes"]]
        done = shared("create", "--publish", "8081", "--publish", f"{port}:8080", "--name", "half")
        assert done.returncode == 125 and b"127.0.0.1:%d is in use" % port in done.stderr
        assert [row["name"] for row in shared.json("ps", "--json")["sandboxes"]] == before
        with served(shared, "echo", "--publish", "8080") as name:
            address = address_of(shared, name)
            done = shared("port", name, "8080", "--listen", str(port))
            assert done.returncode == 125 and b"is in use" in done.stderr
            assert address_of(shared, name) == address
    with served(shared, "echo", "--publish", f"{port}:8080", "--name", "half") as name:
        assert address_of(shared, name) == ("127.0.0.1", port)


def test_unix_socket_is_for_its_owner_alone(shared):
    path = shared.who.directory() / "server"
    with served(shared, "echo", "--publish", f"{path}:8080") as name:
        assert shared.ok("port", name) == f"{path} leads to port 8080"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.stat().st_uid == shared.who.uid
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            assert ask(connection, b"unix" * 100000) == b"UNIX" * 100000
        shared.ok("hibernate", name)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            assert ask(connection, b"awake") == b"AWAKE"
    assert not path.exists()


def test_port_is_published_later_and_moved(shared):
    with served(shared, "echo", "--net", "loopback") as name:
        assert shared.ok("port", name) == ""
        first = address_of(shared, name)
        path = shared.who.directory() / "moved"
        assert shared.ok("port", name, "8080", "--listen", str(path)) == str(path)
        assert json.loads(shared.ok("port", "--json", name)) == {
            "port": 8080,
            "address": str(path),
            "url": None,
        }
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(first)


def test_forks_have_addresses_of_their_own(shared):
    with socket.create_server(("127.0.0.1", 0)) as free:
        fixed = free.getsockname()[1]
    with served(shared, "echo", "--publish", "8080", "--publish", f"{fixed}:8081") as name:
        forks = shared.ok("fork", name, "-n", "2").split()
        addresses = {address_of(shared, one) for one in [name, *forks]}
        assert len(addresses) == 3
        for address in addresses:
            with socket.create_connection(address) as connection:
                assert ask(connection, b"all") == b"ALL"
        for fork in forks:
            assert [row["port"] for row in shared.json("inspect", fork)["published"]] == [8080]
        shared.ok("rm", *forks)


def test_reset_keeps_the_address(shared):
    with served(shared, "echo", "--publish", "8080") as name:
        address = address_of(shared, name)
        state = shared.ok("snapshot", name)
        shared.ok("reset", name, state)
        assert address_of(shared, name) == address
        with socket.create_connection(address) as connection:
            assert ask(connection, b"again") == b"AGAIN"


def test_connections_end_with_their_sandbox(shared):
    with served(shared, "deaf", "--publish", "8080") as name:
        address = address_of(shared, name)
        connection = socket.create_connection(address)
    with connection:
        assert is_over(connection)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_guest_that_never_reads_holds_nobody_up(shared):
    with served(shared, "deaf", "--publish", "8080", "--publish", "8081") as name:
        serve(shared, name, "echo", 8081)
        stuck = [socket.create_connection(address_of(shared, name)) for _ in range(4)]
        for connection in stuck:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    connection.send(bytes(1 << 20))
        with socket.create_connection(address_of(shared, name, 8081)) as connection:
            assert ask(connection, b"free" * 10000) == b"FREE" * 10000
        for connection in stuck:  # reset: data that nobody has read is dropped
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()
        with socket.create_connection(address_of(shared, name, 8081)) as connection:
            assert ask(connection, b"still") == b"STILL"


def test_thousand_connections_of_one_sandbox(own):
    with contextlib.suppress(ValueError):
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
    with served(
        own, "deaf", "--publish", "8080", "--publish", "8081", "--open-files", "4096"
    ) as name:
        address = address_of(own, name)
        connections = []
        for _ in range(1000):
            connection = socket.create_connection(address, timeout=DEADLINE)
            connection.sendall(b"x")
            connections.append(connection)
        serve(own, name, "echo", 8081)
        with socket.create_connection(address_of(own, name, 8081), timeout=DEADLINE) as connection:
            assert ask(connection, b"room") == b"ROOM"
        for connection in connections:
            connection.close()


def test_killed_gateway_resets_connections_and_is_replaced(own):
    with served(own, "echo", "--publish", "8080") as name:
        address = address_of(own, name)
        connection = socket.create_connection(address, timeout=DEADLINE)
        connection.sendall(b"x")
        assert connection.recv(1) == b"X"
        os.kill(gateway_of(own), signal.SIGKILL)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        connection.close()
        with socket.create_connection(address) as connection:
            assert ask(connection, b"next") == b"NEXT"


def test_connection_that_a_killed_gateway_has_not_taken_is_the_next_ones(own):
    with served(own, "echo", "--publish", "8080") as name:
        address = address_of(own, name)
        with socket.create_connection(address) as connection:
            assert ask(connection, b"x") == b"X"
        gateway = gateway_of(own)
        os.kill(gateway, signal.SIGSTOP)
        with socket.create_connection(address, timeout=DEADLINE) as connection:
            # The engine has the connection inside, and sends both to the gateway, which is stopped.
            until(lambda: " 01 " in own.ok("exec", name, "--", "cat", "/proc/net/tcp"))
            os.kill(gateway, signal.SIGKILL)
            assert ask(connection, b"next") == b"NEXT"


def test_killed_engine_leaves_no_listener_and_no_socket_file(own):
    path = own.who.directory() / "server"
    name = own.ok("create", "--publish", "8080", "--publish", f"{path}:8081")
    address = address_of(own, name)
    serve(own, name, "echo")
    with socket.create_connection(address) as connection:
        assert ask(connection, b"x") == b"X"
    os.kill(own.pid, signal.SIGKILL)

    def is_refused():
        try:
            socket.create_connection(address).close()
        except ConnectionRefusedError:
            return True
        return False

    until(is_refused)
    until(lambda: not path.exists())


def test_woken_by_the_next_engine_it_has_its_address(own):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    name = own.ok("create", "--publish", f"{port}:8080")
    serve(own, name, "echo")
    own.ok("hibernate", name)
    own.ok("engine", "stop")
    assert own("engine", "start", "--background").returncode == 0
    assert address_of(own, name) == ("127.0.0.1", port)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        assert ask(connection, b"next") == b"NEXT"
    own.ok("rm", name)


def test_publish_is_refused_without_a_network_of_its_own(shared):
    for flags, text in (
        (["--net", "host"], b'net "host" has no ports inside'),
        (["--isolation", "process"], b'isolation "process" has no network inside'),
        (["--publish", "0"], b"is not a port to publish"),
        (["--publish", "somewhere:80"], b"is not a port to publish"),
        (["--publish", "8080"], b"port 8080 is there already"),
    ):
        done = shared("create", "--publish", "8080", *flags)
        assert done.returncode == 125 and text in done.stderr, (flags, done.stderr)
    with shared.box() as name:
        done = shared("port", name, "8080")
        assert done.returncode == 125 and b"no network of its own" in done.stderr


def test_single_run_refuses_published_ports(shared):
    policy = shared.who.write(shared.who.directory() / "policy.json", '{"publish": ["8080"]}')
    done = shared("run", "--policy", str(policy), "--", "true")
    assert done.returncode == 125 and b"a single run has no published ports" in done.stderr
