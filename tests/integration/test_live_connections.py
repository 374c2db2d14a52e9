# SPDX-License-Identifier: Apache-2.0
"""TCP connections in checkpoints: some are refused by name, and continue here; and the relation of
a copy's connections to those of its origin.

The model: a Python of the sandbox has both ends of a connection over loopback; what a connection
brings in a copy is in the corpus (live_corpus.py). make check runs this file as root and as an
ordinary user.
"""

import pytest
from asked import Asked

from rollbox import FeatureMissing, Policy, Sandbox

SERVER = "import os, socket, struct; server = socket.create_server(('127.0.0.1', 8000)); a = socket.create_connection(('127.0.0.1', 8000)); b, _ = server.accept()"

# As much as there is room for: on a busy machine what was sent arrives later, and makes room for
# more than one call can send.
SENDING = """
def send(data):
    n = 0
    while n < len(data) and select.select([], [a], [], 1)[1]:
        n += a.send(data[n:])
    return n
"""
SEND = f"exec({SENDING!r})"


@pytest.mark.parametrize(
    "state, problem, why, after",
    [
        (
            "c = socket.create_connection(('127.0.0.1', 8000))",
            FeatureMissing,
            "not been accepted",
            "server.accept() and None",
        ),
        (
            "a.send(b'now', socket.MSG_OOB)",
            FeatureMissing,
            "urgent",
            "b.recv(10, socket.MSG_OOB) and b.recv(10) and None",
        ),
        (
            "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('127.0.0.1', 0)); u.sendto(b'x', u.getsockname())",
            FeatureMissing,
            "sender is unknown",
            "u.recv(10) and None",
        ),
    ],
)
def test_refused_connections_continue(state, problem, why, after):
    with Sandbox(Policy(net="loopback")) as box:
        origin = Asked.begin(box, SERVER, f"exec({state!r}.replace(chr(92) + 'n', chr(10)))", "x = 1")
        with pytest.raises(problem, match=why):
            box.snapshot()
        assert origin("x") == "1" and origin(after) == "None"
        assert origin("b.send(b'there') and a.recv(10)") == "b'there'"
        box.snapshot()


@pytest.mark.parametrize("size, end", [(150000, ""), (400000, "; a.shutdown(socket.SHUT_WR)")])
def test_data_beyond_the_receivers_buffer(size, end):
    with Sandbox(Policy(net="loopback")) as box:
        origin = Asked.begin(
            box,
            SERVER,
            "import os, hashlib, select",
            SEND,
            f"data = os.urandom({size}); a.setblocking(False); n = send(data); a.setblocking(True){end}",
            "reuse = a.getsockopt(1, 2), b.getsockopt(1, 2)",
        )
        sent = origin("n")
        assert int(sent) > 66000
        with box.fork(1)[0] as kid, kid.fork(1)[0] as grandkid:
            for one in (origin, origin.of(kid), origin.of(grandkid)):
                assert (
                    one("b.recv(n, socket.MSG_WAITALL) == data[:n]") == "True"
                    and one("(a.getsockopt(1, 2), b.getsockopt(1, 2)) == reuse") == "True"
                )
                assert one("b.recv(1)" if end else "a.send(b'more') and b.recv(4)") == ("b''" if end else "b'more'")


def test_forks_have_connections_of_their_own():
    with Sandbox(Policy(net="loopback")) as box:
        origin = Asked.begin(box, SERVER, "a.send(b'common ')")
        kids = box.fork(3)
        copies = [origin.of(kid) for kid in kids]
        for i, one in enumerate([origin, *copies]):
            one(f"a.send(b'{i}')")
        for i, one in enumerate([origin, *copies]):
            assert one("b.recv(100)") == f"b'common {i}'"
        assert (
            len(
                {
                    one("a.getsockname(), a.getpeername(), b.getsockname(), b.getpeername()")
                    for one in [origin, *copies]
                }
            )
            == 1
        )
        for kid in kids:
            kid.close()


def test_between_processes_after_a_reset_and_in_the_store():
    server = "import socket; s = socket.create_server(('127.0.0.1', 8000)); n = 0"
    with Sandbox(Policy(net="loopback")) as box:
        listening = Asked.begin(box, server)
        client = Asked.begin(box, "import socket; c = socket.create_connection(('127.0.0.1', 8000))")
        listening("there, _ = s.accept()")
        client("c.send(b'before ')")
        at = box.snapshot()
        for i in range(3):
            client(f"c.send(b'{i}')")
            assert listening("there.recv(100)") == f"b'before {i}'"
            box.reset(at)
            listening, client = listening.of(box), client.of(box)
        box.hibernate()
        box.wake()
        listening, client = listening.of(box), client.of(box)
        client("c.send(b'awake')")
        assert listening("there.recv(100)") == "b'before awake'"
        client.process.kill()
        client.process.wait()
        assert listening("there.recv(100)") == "b''"
