# SPDX-License-Identifier: Apache-2.0
"""An HTTP server of rollbox for tests, and a client without a library of its own."""

import http.client
import json
import signal
import socket
import subprocess

import pytest
from harness import BUILD, DEADLINE, binaries, skip
from rollbox._core import websocket

WEBSOCKET_KEY = websocket.new_key()


class Server:
    """`rollbox serve` of `who`, a Caller, on a free port of 127.0.0.1. Usable as a context."""

    def __init__(self, who, *arguments, context=None, directory=None):
        self.context = context  # of TLS
        if not (BUILD / "rollbox-serve").exists():
            skip("needs llhttp: rollbox-serve is built where node-llhttp and libwslay-dev are")
        self.who = who
        self.directory = directory or who.directory()
        self.tokens = self.directory / "tokens"
        self.path = self.directory / "serve"
        self.token = self.new_token()
        self.process = who.popen(
            [
                binaries() / "rollbox",
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--listen",
                self.path,
                "--tokens",
                self.tokens,
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        lines = []
        while not lines or lines[-1] not in ("ready", ""):
            lines.append(self.process.stdout.readline().decode().strip())
        assert lines[-1] == "ready", self.process.stderr.read()
        self.port = int(lines[0].rpartition(":")[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE)
        self.process.stdout.close()
        self.process.stderr.close()

    def new_token(self, tenant="one", *scopes, arguments=()):
        """A new token of a tenant."""
        given = [word for scope in scopes or ("run",) for word in ("--scope", scope)]
        done = self.who.rollbox(
            "token", "create", "--tokens", self.tokens, "--tenant", tenant, *given, *arguments
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()

    def stop(self):
        """Ends it as a service manager does: the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE)

    def connect(self):
        """An http.client connection."""
        if self.context:
            return http.client.HTTPSConnection(
                "localhost", self.port, timeout=DEADLINE, context=self.context
            )
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)

    def call(self, method, path, body=None, token=None, **headers):
        """One request: (status, JSON or bytes). A body that is no bytes is sent as JSON."""
        connection = self.connect()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers["Authorization"] = f"Bearer {token or self.token}"
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            content = answer.read()
            self.headers = answer.headers
        finally:
            connection.close()
        is_json = "json" in answer.headers.get("Content-Type", "") and content
        if path.startswith("/v1/trajectories/") and answer.status < 300:
            is_json = False  # many lines; of a batch the tests ask for one
        return answer.status, json.loads(content) if is_json else content

    def raw(self, data):
        """What the server sends for these bytes, up to the end of the connection or a complete head."""
        with socket.create_connection(("127.0.0.1", self.port), DEADLINE) as s:
            s.sendall(data)
            got = b""
            while b"\r\n\r\n" not in got:
                more = s.recv(65536)
                if not more:
                    break
                got += more
            return got


class Socket:
    """A WebSocket connection of a test. `head` has more header lines."""

    def __init__(self, server, path, head="", token=None):
        self.sock = socket.create_connection(("127.0.0.1", server.port), DEADLINE)
        self.sock.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {WEBSOCKET_KEY}\r\nSec-WebSocket-Version: 13\r\n{head}"
            f"Authorization: Bearer {token or server.token}\r\n\r\n".encode()
        )
        self.sock.settimeout(DEADLINE / 4)
        self.data = bytearray()
        while b"\r\n\r\n" not in self.data:
            more = self.sock.recv(65536)
            if not more:
                break
            self.data += more
        self.head, _, rest = bytes(self.data).partition(b"\r\n\r\n")
        self.data, self.pongs = bytearray(rest), 0
        self.status = int(self.head.split()[1])

    def send(self, message):
        """Bytes, or JSON."""
        if isinstance(message, bytes):
            self.sock.sendall(websocket.frame(websocket.BINARY, message))
        else:
            self.sock.sendall(websocket.frame(websocket.TEXT, json.dumps(message).encode()))

    def next(self):
        """The next message: JSON, bytes, or None for the end."""
        while True:
            message = websocket.take_message(self.data)
            if message is None:
                more = self.sock.recv(65536)
                if not more:
                    return None
                self.data += more
            elif message[0] == websocket.TEXT:
                return json.loads(message[1])
            elif message[0] == websocket.BINARY:
                return message[1]
            elif message[0] == websocket.PONG:
                self.pongs += 1
            elif message[0] == websocket.CLOSE:
                self.closed = message[1]

    def all(self):
        """All messages up to the end."""
        return list(iter(self.next, None))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()


def events(text):
    """The events of a stream: (event, id, data)."""
    found = []
    for block in text.decode().split("\n\n"):
        fields = dict(
            line.split(": ", 1)
            for line in block.splitlines()
            if ": " in line and not line.startswith(":")
        )
        if "event" in fields:
            found.append((fields["event"], fields.get("id"), json.loads(fields["data"])))
    return found


@pytest.fixture
def server(caller):
    """A Server of the caller's, which must still run when the test has ended."""
    with Server(caller) as one:
        yield one
        assert one.process.poll() is None, one.process.stderr.read()
