# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of sandboxes with an open connection to outside: a copy's connection is reset, and
the origin keeps its own.

The model: a Python of the sandbox (`Asked`) has a connection through the gateway to a server of the
test, which echoes lines.
make check runs this file as root and as an ordinary user.
"""

import contextlib
import json
import socketserver
import threading

import pytest
from asked import Asked
from stores import store  # noqa: F401
from two_stores import engine, other  # noqa: F401

from rollbox import Engine, Policy, Sandbox

MODES = {"tproxy": "", "ports": "-nft_tproxy"}

# A question that raises an error is answered by its class.
SAFE = """
def safe(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return type(error).__name__
"""
CONNECT = [
    "import os, select, socket, threading",
    f"exec({SAFE!r})",
    "c = socket.create_connection(('echo.test', 7000), 20)",
    "c.settimeout(20)",
]


class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        with contextlib.suppress(ConnectionResetError):
            for line in self.rfile:
                self.wfile.write(line)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Echo)
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    def policy(self, **keys):
        address = f"127.0.0.1:{self.server_address[1]}"
        rules = [
            {"host": "echo.test", "ports": [7000, "7001/udp"], "to": address},
            {"host": "*.wild.test", "ports": [7000], "to": address},
        ]
        return Policy(net_allow=rules, **keys)


@pytest.fixture
def echo():
    with Server() as server:
        yield server
        server.shutdown()
        server.thread.join()


@pytest.fixture(params=MODES)
def mode_engine(request, monkeypatch):
    monkeypatch.setenv("ROLLBOX_KFEAT", MODES[request.param])
    with Engine() as engine:
        yield engine


def goes_on(one):
    assert one("c.send(b'more\\n') and c.recv(100)") == "b'more\\n'"


def is_reset(one):
    assert one("safe(c.recv, 100)") == "'ConnectionResetError'"
    assert one("safe(c.recv, 100)") == "b''"
    assert one("socket.create_connection(('echo.test', 7000), 20).close()") == "None"


def test_fork_resets_copy_keeps_origin(echo, mode_engine):
    with Sandbox(echo.policy(), engine=mode_engine) as box:
        origin = Asked.begin(box, *CONNECT)
        goes_on(origin)
        name = origin("c.getsockname()")
        kids = box.fork(2)
        for kid in kids:
            copy = origin.of(kid)
            assert copy("c.getsockname()") == name
            is_reset(copy)
            kid.close()
        goes_on(origin)


def test_hibernation_resets_connections(echo, mode_engine):
    with Sandbox(echo.policy(), engine=mode_engine) as box:
        origin = Asked.begin(box, *CONNECT)
        goes_on(origin)
        box.hibernate()
        box.wake()
        is_reset(origin.of(box))


def test_reset_to_snapshot_resets_connections(echo):
    with Sandbox(echo.policy()) as box:
        origin = Asked.begin(box, *CONNECT)
        at = box.snapshot()
        goes_on(origin)
        for _ in range(2):
            box.reset(at)
            is_reset(origin.of(box))


def test_data_that_has_arrived_is_read_before_the_reset(echo):
    with Sandbox(echo.policy()) as box:
        origin = Asked.begin(
            box, *CONNECT, "c.send(b'early\\n') and select.select([c], [], [], 20)[0] == [c]"
        )
        with box.fork(1)[0] as kid:
            copy = origin.of(kid)
            assert copy("c.recv(100)") == "b'early\\n'"
            is_reset(copy)
        assert origin("c.recv(100)") == "b'early\\n'"
        goes_on(origin)


def test_copy_of_a_copy_with_an_error_that_is_not_read_yet(echo):
    with Sandbox(echo.policy()) as box:
        origin = Asked.begin(box, *CONNECT)
        with box.fork(1)[0] as kid, kid.fork(1)[0] as grandkid:
            copy = origin.of(kid)
            is_reset(origin.of(grandkid))
            is_reset(copy)
            # The error is read: the connection is an ended one.
            with kid.fork(1)[0] as last:
                assert copy.of(last)("safe(c.recv, 100)") == "b''"


def test_process_that_waits_for_an_answer_gets_the_reset(echo):
    with Sandbox(echo.policy()) as box:
        origin = Asked.begin(
            box,
            *CONNECT,
            "got = []",
            "t = threading.Thread(target=lambda: got.append(safe(c.recv, 100)))",
            "t.start()",
        )
        with box.fork(1)[0] as kid:
            assert origin.of(kid)("t.join() or got") == "['ConnectionResetError']"
        assert origin("c.send(b'x\\n') and t.join() or got") == "[b'x\\n']"


def test_epoll_and_shut_down_connections(echo):
    with Sandbox(echo.policy()) as box:
        origin = Asked.begin(
            box,
            *CONNECT,
            "e = select.epoll()",
            "e.register(c, select.EPOLLIN | select.EPOLLET)",
            "e.poll(0)",
            "d = socket.create_connection(('echo.test', 7000), 20)",
            "d.shutdown(socket.SHUT_WR)",
            "d.recv(10)",
        )
        with box.fork(1)[0] as kid:
            copy = origin.of(kid)
            assert (
                copy("[mask & select.EPOLLERR for fd, mask in e.poll(20) if fd == c.fileno()]")
                == "[8]"
            )
            assert copy("safe(d.recv, 10)") == "b''"
            is_reset(copy)
        goes_on(origin)


def test_stream_that_the_server_has_ended(echo):
    ended = [
        "import socket",
        "d = socket.create_connection(('echo.test', 7000), 20)",
        "d.send(b'last\\n')",
        "e = d.dup()",
        "import select",
        "select.select([d], [], [], 20)",
    ]
    with Sandbox(echo.policy()) as box:
        origin = Asked.begin(
            box,
            *CONNECT,
            *ended,
            "e.shutdown(socket.SHUT_WR)",
            "select.select([d], [], [], 20)[0] and e.recv(4, socket.MSG_PEEK)",
            "p = select.poll()",
            "p.register(d, select.POLLRDHUP) or p.poll(20000) and None",
        )
        with box.fork(1)[0] as kid:
            for one in origin.of(kid), origin:
                assert one("d.recv(100), d.recv(100)") == "(b'last\\n', b'')"


def test_listener_and_inside_connections_survive(echo):
    inside = [
        "s = socket.create_server(('127.0.0.1', 8000))",
        "a = socket.create_connection(('127.0.0.1', 8000))",
        "b, _ = s.accept()",
    ]
    with Sandbox(echo.policy()) as box:
        origin = Asked.begin(box, *CONNECT, *inside)
        with box.fork(1)[0] as kid:
            for one in origin, origin.of(kid):
                assert one("a.send(b'in') and b.recv(10)") == "b'in'"
                assert (
                    one(
                        "socket.create_connection(('127.0.0.1', 8000)).close() or s.accept()[0].recv(1)"
                    )
                    == "b''"
                )


def test_udp_socket_to_outside(echo):
    ask = [
        "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "u.settimeout(20)",
        "u.connect(('198.18.0.1', 53))",
        "q = b'\\x01\\x02\\x01\\0\\0\\1\\0\\0\\0\\0\\0\\0\\4echo\\4test\\0\\0\\1\\0\\1'",
    ]
    with Sandbox(echo.policy()) as box:
        origin = Asked.begin(
            box,
            *CONNECT,
            *ask,
            "u.send(q) and select.select([u], [], [], 20)[0] == [u]",
            "v = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
            "v.settimeout(20)",
            "v.sendto(q, ('192.0.2.1', 53)) and select.select([v], [], [], 20)[0] == [v]",
        )
        name = origin("u.getsockname(), u.getpeername()")
        with box.fork(1)[0] as kid:
            copy = origin.of(kid)
            assert copy("u.getsockname(), u.getpeername()") == name
            # The unread answers are lost; another question is answered.
            assert copy("[len(select.select([one], [], [], 0)[0]) for one in (u, v)]") == "[0, 0]"
            assert copy("u.send(q) and u.recv(100)[-4:]") == copy("bytes([198, 18, 0, 1])")
        assert origin("u.recv(100)[-4:], v.recv(100)[-4:]") == origin(
            "(bytes([198, 18, 0, 1]),) * 2"
        )


def test_connection_that_is_being_opened_is_refused_in_the_copy(echo):
    """The gateway's listener is full: the kernel drops requests to connect."""
    fill = "more = [socket.socket() for _ in range(400)]"
    begin = (
        "[one.setblocking(False) or one.connect_ex(('198.18.0.1', 7000)) for one in more] and None"
    )
    with Sandbox(echo.policy(net_max_connections=1024)) as box:
        origin = Asked.begin(box, *CONNECT, fill, begin)
        with box.fork(1)[0] as kid:
            copy = origin.of(kid)
            states = "{one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for one in more if select.select([], [one], [], 20)}"
            assert copy(states) in ("{104}", "{104, 111}", "{111, 104}", "{111}")


def test_connection_from_outside_is_reset_in_the_copy():
    with Sandbox(Policy(net="loopback")) as box:
        origin = Asked.begin(
            box,
            "import socket, threading, select",
            f"exec({SAFE!r})",
            "s = socket.create_server(('127.0.0.1', 8000))",
            "got = []",
            "t = threading.Thread(target=lambda: got.append(s.accept()[0]))",
            "t.start()",
        )
        with box.connect(8000) as outside:
            origin("t.join()")
            outside.sendall(b"ask")
            assert origin("got[0].recv(10)") == "b'ask'"
            with box.fork(1)[0] as kid:
                assert origin.of(kid)("safe(got[0].recv, 10)") == "'ConnectionResetError'"
            origin("got[0].send(b'answer')")
            assert outside.recv(100) == b"answer"


def test_connections_from_outside_that_are_not_accepted_stay_with_the_origin():
    with Sandbox(Policy(net="loopback")) as box:
        origin = Asked.begin(
            box,
            "import socket, select",
            f"exec({SAFE!r})",
            "s = socket.create_server(('127.0.0.1', 8000))",
            "s.settimeout(20)",
        )
        with box.connect(8000) as first, box.connect(8000) as second:
            first.sendall(b"first")
            second.sendall(b"second")
            origin("select.select([s], [], [], 20)[0] == [s]")
            with box.fork(1)[0] as kid:
                copy = origin.of(kid)
                assert copy("select.select([s], [], [], 0)[0]") == "[]"
                with kid.connect(8000) as third:
                    third.sendall(b"third")
                    assert copy("s.accept()[0].recv(10)") == "b'third'"
            for said in b"first", b"second":
                assert origin("s.accept()[0].recv(10)") == repr(said)


def test_import_elsewhere_resets_connections_and_keeps_names(engine, other, echo, tmp_path):  # noqa: F811
    look = "[socket.gethostbyname(n + '.wild.test') for n in 'cba']"
    with Sandbox(echo.policy(), engine=engine) as box:
        origin = Asked.begin(box, *CONNECT, "socket.gethostbyname('a.wild.test')")
        names = origin(look)
        goes_on(origin)
        box.export(tmp_path / "box.live", processes="keep")
        goes_on(origin)
    other.import_(tmp_path / "box.live", "copy", 0, (), "--trust")
    with other.engine() as there:
        with Sandbox.open("copy", engine=there) as box:
            copy = origin.of(box)
            is_reset(copy)
            assert copy(look) == names


def test_import_with_another_policy_keeps_names_that_its_rules_allow(engine, other, echo, tmp_path):  # noqa: F811
    with Sandbox(echo.policy(), engine=engine) as box:
        origin = Asked.begin(
            box, *CONNECT, "names = [socket.gethostbyname(n + '.wild.test') for n in 'ba']"
        )
        box.export(tmp_path / "box.live", processes="keep")
    policy = tmp_path / "policy.json"
    policy.write_text(
        json.dumps(
            {
                "net_allow": [
                    {
                        "host": "*.wild.test",
                        "ports": [7000],
                        "to": f"127.0.0.1:{echo.server_address[1]}",
                    }
                ]
            }
        )
    )
    other.import_(tmp_path / "box.live", "copy", 0, (), "--policy", policy)
    with other.engine() as there:
        with Sandbox.open("copy", engine=there) as box:
            copy = origin.of(box)
            assert copy("names == [socket.gethostbyname(n + '.wild.test') for n in 'ba']") == "True"
            assert copy("socket.create_connection((names[1], 7000), 20).close()") == "None"
            assert copy("safe(socket.create_connection, ('echo.test', 7000), 20)") == "'gaierror'"


def test_import_with_a_policy_without_hosts(engine, other, echo, tmp_path):  # noqa: F811
    with Sandbox(echo.policy(), engine=engine) as box:
        udp = [
            "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
            "u.connect(('198.18.0.1', 53))",
        ]
        origin = Asked.begin(box, *CONNECT, *udp)
        box.export(tmp_path / "box.live", processes="keep")
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"net": "loopback"}))
    other.import_(tmp_path / "box.live", "copy", 0, (), "--policy", policy)
    with other.engine() as there:
        with Sandbox.open("copy", engine=there) as box:
            copy = origin.of(box)
            assert copy("[safe(one, b'x') for one in (c.send, u.send)]").count("Error") == 2
