# SPDX-License-Identifier: Apache-2.0
"""Plays the engine for rollbox-egress, without sandboxes.

A test that is marked with `alone` runs in a process with namespaces of its own: a network that
stands for the host's, with servers and a name server, and /etc/resolv.conf that names the latter.
`Guest` is a second network, in which every address leads to the listeners, as in a sandbox.
"""

import array
import contextlib
import ctypes
import functools
import json
import os
import queue
import socket
import struct
import subprocess
import tempfile
import threading
import traceback

from harness import BUILD, skip

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
IP_PKTINFO, IPV6_RECVPKTINFO, IP_TRANSPARENT, IPV6_TRANSPARENT = 8, 49, 19, 75
TIMEOUT = 20  # for what must come; a failing test ends

libc = ctypes.CDLL(None, use_errno=True)


def _call(result, name):
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def _ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _enter_namespaces(uid):
    flags = CLONE_NEWNS | CLONE_NEWNET
    if uid:
        gid = os.getgid() if os.geteuid() else uid
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            _call(libc.prctl(4, 1, 0, 0, 0), "prctl")  # PR_SET_DUMPABLE: /proc/self is ours again
        flags |= CLONE_NEWUSER
    _call(libc.unshare(flags), "unshare")
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _call(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "mount")
    _ip("link", "set", "lo", "up")
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write("nameserver 127.0.0.1\n")
        file.flush()
        os.chmod(file.name, 0o644)
        _call(libc.mount(file.name.encode(), b"/etc/resolv.conf", None, MS_BIND, None), "mount")


def alone(test):
    """The test in a process with namespaces of its own; `caller` says as whom."""

    @functools.wraps(test)
    def run(caller):
        report_in, report_out = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 0
            try:
                try:
                    _enter_namespaces(caller.uid)
                except (OSError, subprocess.CalledProcessError) as error:
                    os.write(report_out, f"skip {error}".encode())
                else:
                    test()
            except BaseException:  # noqa: BLE001
                os.write(report_out, traceback.format_exc()[-60000:].encode())
                status = 1
            os._exit(status)
        os.close(report_out)
        with os.fdopen(report_in, "rb") as file:
            report = file.read().decode()
        _, status = os.waitpid(pid, 0)
        if report.startswith("skip "):
            skip(f"needs userns: {report[5:]}")
        assert status == 0 and not report, report

    # pytest reads the signature of what it calls.
    del run.__wrapped__
    return run


class Guest:
    """A network in which all addresses are local. Sockets are made by a thread that is in it."""

    def __init__(self, tcp_ports=(53, 80, 443, 8080), udp_ports=(53,)):
        self._calls = queue.Queue()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()
        self.do(self._prepare)
        self.listeners = [self.do(lambda p=p: self._listener(p)) for p in tcp_ports]
        self.listeners += [self.do(lambda p=p: self._udp(p)) for p in udp_ports]

    def _main(self):
        while True:
            call, answer = self._calls.get()
            try:
                answer.put((call(), None))
            except BaseException as error:  # noqa: BLE001
                answer.put((None, error))

    def do(self, call):
        answer = queue.Queue()
        self._calls.put((call, answer))
        result, error = answer.get(timeout=TIMEOUT)
        if error:
            raise error
        return result

    @staticmethod
    def _prepare():
        _call(libc.unshare(CLONE_NEWNET), "unshare")
        _ip("link", "set", "lo", "up")
        _ip("addr", "add", "10.0.2.15/32", "dev", "lo")
        _ip("-6", "addr", "add", "fd00:2::15/128", "dev", "lo", "nodad")
        _ip("route", "add", "local", "default", "dev", "lo", "table", "local", "src", "10.0.2.15")
        _ip("-6", "route", "add", "local", "default", "dev", "lo", "table", "local")

    @staticmethod
    def _listener(port):
        listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", port))
        listener.listen(4096)
        return listener

    @staticmethod
    def _udp(port):
        listener = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        listener.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVPKTINFO, 1)
        listener.setsockopt(socket.IPPROTO_IPV6, IPV6_TRANSPARENT, 1)
        listener.bind(("::", port))
        return listener

    def connect(self, address, port, family=socket.AF_INET):
        def call():
            client = socket.socket(family, socket.SOCK_STREAM)
            client.settimeout(TIMEOUT)
            client.connect((address, port))
            return client

        return self.do(call)

    def udp(self, family=socket.AF_INET):
        client = self.do(lambda: socket.socket(family, socket.SOCK_DGRAM))
        client.settimeout(TIMEOUT)
        return client

    def query(self, name, kind=1, server="10.0.2.3", tcp=False, family=socket.AF_INET):
        """(code, [addresses]) of a DNS query."""
        question = b"".join(bytes([len(p)]) + p.encode() for p in name.split(".") if p)
        packet = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + question + b"\0" + struct.pack(">2H", kind, 1)
        if tcp:
            with self.connect(server, 53, family) as client:
                client.sendall(struct.pack(">H", len(packet)) + packet)
                answer = receive(client, struct.unpack(">H", receive(client, 2))[0])
        else:
            with self.udp(family) as client:
                client.connect((server, 53))  # answers of another address are not received
                client.send(packet)
                answer = client.recv(4096)
        flags, _, count = struct.unpack(">3H", answer[2:8])
        rest = answer[len(packet) :]
        addresses = [socket.inet_ntoa(rest[16 * i + 12 : 16 * i + 16]) for i in range(count)] if kind == 1 else rest
        return flags & 15, addresses

    def lookup(self, name):
        code, addresses = self.query(name)
        assert (code, len(addresses)) == (0, 1), (name, code)
        return addresses[0]


def receive(client, length=None):
    """So many bytes, or all up to the end."""
    data = b""
    while length is None or len(data) < length:
        more = client.recv(65536 if length is None else length - len(data))
        if not more:
            break
        data += more
    return data


def was_reset(client):
    """Does the connection end by a reset? Nothing may be received before it."""
    try:
        data = client.recv(65536)
    except ConnectionResetError:
        return True
    raise AssertionError(f"received {data!r}")


def is_refused(guest, address, port, data=b"", family=socket.AF_INET):
    """Is the connection reset, at once or after these bytes? The connect itself may see it already."""
    try:
        with guest.connect(address, port, family) as client:
            client.sendall(data)
            return was_reset(client)
    except (ConnectionResetError, BrokenPipeError):
        return True


class NameServer:
    """Answers A queries from a table; other names do not exist, and those below `silent.test` get
    no answer. Counts what it is asked."""

    def __init__(self, names, address="127.0.0.1"):
        self.names, self.asked = names, []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        threading.Thread(target=self._main, daemon=True).start()

    def _main(self):
        while True:
            query, peer = self._socket.recvfrom(4096)
            labels, at = [], 12
            while query[at]:
                labels.append(query[at + 1 : at + 1 + query[at]].decode())
                at += query[at] + 1
            kind = struct.unpack(">H", query[at + 1 : at + 3])[0]
            name = ".".join(labels)
            self.asked.append((name, kind))
            if name.endswith(".silent.test") and name not in self.names:
                continue
            found = self.names.get(name)
            addresses = found() if callable(found) else found or []
            family = socket.AF_INET if kind == 1 else socket.AF_INET6
            records = [
                b"\xc0\x0c"
                + struct.pack(">2HIH", kind, 1, 0, 4 if kind == 1 else 16)
                + socket.inet_pton(family, address)
                for address in addresses
                if (":" in address) == (kind == 28)
            ]
            code = 0 if found is not None else 3
            head = query[:2] + struct.pack(">5H", 0x8180 | code, 1, len(records), 0, 0)
            self._socket.sendto(head + query[12 : at + 5] + b"".join(records), peer)


class Server:
    """A TCP server of the host: `serve(connection)` in a thread for each."""

    def __init__(self, serve, port, address="127.0.0.1"):
        self.connections = 0
        self._listener = socket.create_server((address, port), backlog=512)
        self._serve = serve
        threading.Thread(target=self._main, daemon=True).start()

    def _main(self):
        while True:
            connection, _ = self._listener.accept()
            self.connections += 1
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection):
        with contextlib.suppress(OSError), connection:
            self._serve(connection)


def echo(connection):
    while data := connection.recv(65536):
        connection.sendall(data)


class Egress:
    """The program, and the engine's end of its socket."""

    def __init__(self):
        self.engine, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.engine.settimeout(TIMEOUT)
        at = child.fileno()
        path = str(BUILD / "rollbox-egress")

        def place():
            os.dup2(at, 3)

        self.process = subprocess.Popen(
            [path],
            stdin=subprocess.DEVNULL,
            pass_fds=(3,),
            close_fds=True,
            preexec_fn=place,
            env={},
        )
        child.close()
        self.events = []
        assert self.next("ready")
        self._tally = 0

    def send(self, message, fds=()):
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.engine.sendmsg([json.dumps(message).encode()], control)

    def next(self, event):
        """The next message of that kind; others are kept in `events`."""
        for kept in self.events:
            if kept["event"] == event:
                self.events.remove(kept)
                return kept
        while True:
            data = self.engine.recv(1 << 20)
            assert data, "rollbox-egress has ended"
            message = json.loads(data)
            if message["event"] == event:
                return message
            assert message["event"] != "error", message
            self.events.append(message)

    def open(self, guest, policy, box="a", names=(), log=None):
        fds = [listener.fileno() for listener in guest.listeners]
        if log:
            fds.append(log.fileno())
        text = json.dumps({"net": "allow", **policy})
        self.send(
            {
                "do": "open",
                "box": box,
                "mode": "ports",
                "policy": text,
                "names": list(names),
                "log": bool(log),
            },
            fds,
        )

    def rules(self, policy, box="a"):
        self.send({"do": "rules", "box": box, "policy": json.dumps({"net": "allow", **policy})})

    def start(self, box="a"):
        self._tally += 1
        self.send({"do": "start", "box": box, "tally": self._tally})
        return self._tally

    def end(self, tally, box="a"):
        self.send({"do": "end", "box": box, "tally": tally})
        answer = self.next("tally")
        assert (answer["box"], answer["tally"]) == (box, tally)
        return answer["network"]

    def close(self, box="a"):
        self.send({"do": "close", "box": box})
        return self.next("closed")["network"]

    def refusals(self, box="a"):
        """[(host, port, why, count)] in the life of the sandbox, which ends."""
        return [(r["host"], r["port"], r["why"], r["count"]) for r in self.close(box)["refusals"]]


@contextlib.contextmanager
def egress(policy, names=None, **options):
    """(program, guest, name server) with one sandbox "a"."""
    server = NameServer(names or {})
    program, guest = Egress(), Guest(**options)
    program.open(guest, policy)
    yield program, guest, server
    program.engine.close()
    assert program.process.wait(TIMEOUT) == 0
