# SPDX-License-Identifier: Apache-2.0
"""time_mode virtual: the clock does not pass what the kernel still has to deliver (segments of TCP,
bytes of terminals), and does not wait for ever for what it never will."""

import pytest
from harness import caller, repeat_count  # noqa: F401

START = "2025-01-01T00:00:00"
VIRTUAL = ("--net", "loopback", "--seed", "7", "--time-start", START, "--time-mode", "virtual")

POSTS = """
import http.client, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = http.client.HTTPConnection(*server.server_address, timeout=5)
late = 0
for i in range(30):
    try:
        client.request("POST", "/", body=b"k")
        client.getresponse().read()
    except OSError:
        late += 1
        client.close()
print("late", late)
"""

# The second byte of each pair is held back until the first one is acknowledged.
PAIRS = """
import socket, sys
family, host = (socket.AF_INET6, "::1") if sys.argv[1] == "6" else (socket.AF_INET, sys.argv[1])
server = socket.socket(family)
server.bind((host, 0))
server.listen()
client = socket.socket(family)
client.connect(server.getsockname()[:2])
ends = client, server.accept()[0]
late = 0
for i in range(40):
    sender, receiver = ends if i % 2 else ends[::-1]
    receiver.settimeout(0.2)
    sender.send(b"a")
    sender.send(b"b")
    got = b""
    while len(got) < 2:
        try:
            got += receiver.recv(2)
        except TimeoutError:
            late += 1
print("late", late)
"""

ECHOES = """
import os, pty, select, threading, time
late = 0
master, slave = pty.openpty()
for i in range(200):
    for end, text in (master, b"a\\n"), (slave, None), (slave, b"b"):
        if text:
            os.write(end, text)
        for reader in (slave,) if text is None else (master,):
            if not select.select([reader], [], [], 0.2)[0]:
                late += 1
                select.select([reader], [], [], 60)
            os.read(reader, 100)
print("late", late)
"""

# The reader has nothing but the slave, as standard input, the writer nothing but the master.
SHELL = """
import os, pty, select, signal
pid, master = pty.fork()
if not pid:
    os.execlp("bash", "bash", "--norc", "-c", "stty -echo; for i in {1..100}; do read -t 0.3 x || echo late; echo got; done")
while True:
    try:
        text = os.read(master, 1000)
    except OSError:
        break
    if not text:
        break
    print(text.decode().replace("\\r", ""), end="")
    os.write(master, b"x\\n" * text.count(b"got"))
"""

BACKLOG = """
import socket, time
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen(0)
kept = []
begun = time.monotonic()
try:
    for i in range(8):
        kept.append(socket.create_connection(server.getsockname(), timeout=30))
except TimeoutError:
    print("timed out after", round(time.monotonic() - begun))
"""

SLEEPS = """
import socket, time
pair = socket.create_server(("127.0.0.1", 0))
begun = time.monotonic()
for i in range(1000):
    time.sleep(10)
print(round(time.monotonic() - begun))
"""


def told(caller, code, *words, flags=VIRTUAL, times=2):
    """The output of a program, which is the same each time."""
    texts = set()
    for _ in range(times):
        result = caller.run(*flags, "--", "/usr/bin/python3", "-I", "-c", code, *words)
        assert result.outcome == "exit" and result.exit_code == 0, result.told
        texts.add(result.stdout)
    assert len(texts) == 1, texts
    return texts.pop()


def test_posts_on_a_kept_connection_do_not_time_out(caller):
    assert told(caller, POSTS) == "late 0\n"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.77", "6"])
def test_bytes_held_back_by_nagle_arrive_before_a_time_out(caller, host):
    assert told(caller, PAIRS, host) == "late 0\n"


def test_bytes_in_a_terminal_arrive_before_a_time_out(caller):
    assert told(caller, ECHOES, times=repeat_count(4, 2, 40)) == "late 0\n"


def test_terminal_shell_receives_a_line_before_a_timeout(caller):
    text = told(caller, SHELL, times=repeat_count(4, 2, 40))
    assert "late" not in text.split("got", 1)[1] and text.count("got") == 100, text


def test_connection_to_a_full_backlog_times_out(caller):
    """Its retransmission timer runs for minutes."""
    assert told(caller, BACKLOG) == "timed out after 30\n"


def test_sleeps_beside_a_listening_socket_pass_at_once(caller):
    assert told(caller, SLEEPS) == "10000\n"


def test_commands_cannot_copy_descriptors_of_others(caller):
    """Init may, to see what terminals have; the second filter keeps it from commands."""
    code = "import ctypes, os; c = ctypes.CDLL(None, use_errno=True); p = os.pidfd_open(os.getpid()); print(c.syscall(438, p, 0, 0), ctypes.get_errno())"
    assert told(caller, code) == "-1 1\n"
