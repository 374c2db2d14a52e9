# SPDX-License-Identifier: Apache-2.0
"""The engine's and rollbox-egress' part for rollbox-egress-tls, and servers behind it.

`Gateway.listen()` stands for the sandbox's side: what connects there is handed over with a connection to the server.
"""

import array
import contextlib
import fcntl
import json
import os
import re
import select
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading

from harness import BUILD, DEADLINE, skip

PROGRAM = os.path.join(BUILD, "rollbox-egress-tls")
HOST = "api.example.org"


class Authority:
    """Another authority, of the servers."""

    def __init__(self, directory):
        if shutil.which("openssl") is None:
            skip("needs openssl: certificates of servers are made with it")
        self.directory = str(directory)
        self.certificate = os.path.join(self.directory, "root.pem")
        self.run(
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            "root.key",
            "-out",
            "root.pem",
            "-subj",
            "/CN=test root",
            "-days",
            "30",
        )

    def run(self, *arguments):
        subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True, timeout=DEADLINE)

    def leaf(self, name, days="30"):
        """Paths of a certificate for the name, and of its key."""
        certificate, key = (os.path.join(self.directory, f"{name}.{end}") for end in ("pem", "key"))
        if not os.path.exists(certificate):
            with open(os.path.join(self.directory, f"{name}.cnf"), "w") as config:
                config.write(f"subjectAltName=DNS:{name}\n")
            self.run(
                "req",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-keyout",
                key,
                "-out",
                f"{name}.csr",
                "-subj",
                "/CN=leaf",
            )
            self.run(
                "x509",
                "-req",
                "-in",
                f"{name}.csr",
                "-CA",
                "root.pem",
                "-CAkey",
                "root.key",
                "-CAcreateserial",
                "-days",
                days,
                "-extfile",
                f"{name}.cnf",
                "-out",
                certificate,
            )
        return certificate, key


class Server:
    """An HTTP/1.1 server that tells what it was sent. `answer(connection, head, body)` may answer
    otherwise: it returns False then."""

    def __init__(self, authority=None, name=HOST, answer=None):
        self.context = None
        if authority is not None:
            self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self.context.load_cert_chain(*authority.leaf(name))
            self.context.set_alpn_protocols(["http/1.1"])
        self.answer = answer
        self.heads, self.resumed = [], []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.converse, args=(connection,), daemon=True).start()

    def converse(self, connection):
        with contextlib.suppress(OSError, ValueError), connection:
            if self.context is not None:
                connection = self.context.wrap_socket(connection, server_side=True)
                self.resumed.append(connection.session_reused)
            with connection, connection.makefile("rb") as stream:
                while self.exchange(connection, stream):
                    pass

    def exchange(self, connection, stream):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = stream.readline()
            if not line:
                return False
            head += line
        head = head.decode("latin-1")
        self.heads.append(head)
        body = self.read_body(head, stream)
        if self.answer is not None and self.answer(connection, head, body) is False:
            return False
        told = json.dumps({"head": head, "body": body.decode("latin-1")}).encode()
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(told)
            + (b"" if head.startswith("HEAD ") else told)
        )
        return "connection: close" not in head.lower()

    @staticmethod
    def read_body(head, stream):
        length = re.search(r"(?i)\r\ncontent-length: *(\d+)", head)
        if length:
            return stream.read(int(length.group(1)))
        body = b""
        if re.search(r"(?i)\r\ntransfer-encoding: *chunked", head):
            while size := int(stream.readline(), 16):
                body += stream.read(size)
                stream.readline()
            stream.readline()
        return body

    def close(self):
        self.listener.close()


def memory_file(data):
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    return fd


def send(to, message, fds=()):
    to.sendmsg(
        [json.dumps(message).encode()],
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [],
    )


class Gateway:
    """The program, with one sandbox that has these rules."""

    def __init__(self, directory, roots, rules, secrets=None, policy=None):
        self.authority = os.path.join(str(directory), "ca")
        subprocess.run([PROGRAM, "--make-ca", self.authority], check=True, timeout=DEADLINE)
        self.certificate = os.path.join(self.authority, "cert.pem")
        self.engine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.egress, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.errors = tempfile.TemporaryFile()
        saved = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 100)

        def place():
            os.dup2(saved, 3)

        self.process = subprocess.Popen(
            [PROGRAM],
            preexec_fn=place,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stderr=self.errors,
        )
        theirs.close()
        os.close(saved)
        with contextlib.ExitStack() as files:
            paths = [os.path.join(self.authority, "key.pem"), self.certificate, roots]
            fds = [files.enter_context(open(path, "rb")).fileno() for path in paths]
            send(self.engine, {"do": "begin"}, [other.fileno(), *fds])
        other.close()
        self.secrets = secrets
        self.rules = rules
        self.more = policy or {}
        assert self.receive(self.engine) == {"event": "ready"}, self.stderr()
        self.open_box()
        self.connections = 0
        self.listeners = []
        self.events = []

    def policy(self, rules):
        text = {"net": "allow", "net_allow": rules, **self.more}
        if self.secrets is not None:
            text["net_secrets"] = {name: "fd:0" for name in self.secrets}
        return json.dumps(text)

    def open_box(self, values=True):
        message = {"do": "open", "box": "b", "policy": self.policy(self.rules)}
        if self.secrets is None or not values:
            send(self.engine, message)
            return
        fd = memory_file(json.dumps(self.secrets).encode())
        send(self.engine, {**message, "secrets": True}, [fd])
        os.close(fd)

    def stderr(self):
        self.errors.seek(0)
        return self.errors.read().decode()

    def receive(self, channel):
        assert select.select([channel], [], [], DEADLINE)[0], "no message"
        data = channel.recv(1 << 18)
        return json.loads(data) if data else None

    def event(self, *names):
        """The next event with one of the names."""
        while True:
            event = self.receive(self.egress)
            assert event is not None, self.stderr()
            self.events.append(event)
            if event["event"] in names:
                return event

    def hand_over(self, guest, address, **more):
        self.connections += 1
        with socket.create_connection(address) as upstream:
            message = {
                "box": "b",
                "connection": self.connections,
                "name": HOST,
                "port": 443,
                "rule": 0,
                "is_tls": True,
                "to_is_plain": False,
            }
            send(self.egress, {**message, **more}, [guest.fileno(), upstream.fileno()])
        guest.close()

    def listen(self, address, **more):
        """The port of 127.0.0.1 that stands for the host's."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.listeners.append(listener)

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    self.hand_over(listener.accept()[0], address, **more)

        threading.Thread(target=serve, daemon=True).start()
        return listener.getsockname()[1]

    def connect(self, address, alpn=("http/1.1",), context=None, session=None, **more):
        """A TLS connection through the gateway, or a plain one."""
        mine, theirs = tcp_pair()
        self.hand_over(theirs, address, **more)
        mine.settimeout(DEADLINE)
        if more.get("is_tls", True) is False:
            return mine
        if context is None:
            context = self.client(alpn)
        return context.wrap_socket(mine, server_hostname=HOST, session=session)

    def client(self, alpn=("http/1.1",)):
        context = ssl.create_default_context(cafile=self.certificate)
        if alpn:
            context.set_alpn_protocols(list(alpn))
        return context

    def close(self):
        for listener in self.listeners:
            listener.close()
        self.engine.close()
        self.process.wait(DEADLINE)
        self.egress.close()


def tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mine = socket.create_connection(listener.getsockname())
        return mine, listener.accept()[0]


def request(connection, text, close=True):
    """Sends the request and reads the answer: all of it until the end of the connection, or by its Content-Length."""
    connection.sendall(text.encode("latin-1"))
    data = b""
    while True:
        if (
            not close
            and (
                match := re.search(
                    rb"(?i)\r\ncontent-length: *(\d+)", data.partition(b"\r\n\r\n")[0]
                )
            )
            and b"\r\n\r\n" in data
        ):
            body = data.partition(b"\r\n\r\n")[2]
            if len(body) >= int(match.group(1)):
                return data.decode("latin-1")
        piece = connection.recv(1 << 16)
        if not piece:
            return data.decode("latin-1")
        data += piece
