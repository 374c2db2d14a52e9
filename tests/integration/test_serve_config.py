# SPDX-License-Identifier: Apache-2.0
"""The HTTP server's configuration file, and sockets of a service manager."""

import http.client
import socket
import subprocess
import sys

import pytest
from harness import DEADLINE, binaries, caller, skip  # noqa: F401
from serving import Server


def write(who, name, text):
    """A file that the caller can read."""
    path = who.directory() / name
    path.write_text(text)
    path.chmod(0o644)
    return path


@pytest.fixture
def knows_toml(caller):  # noqa: F811
    """Skips a server that was built without a TOML parser."""
    done = caller.rollbox("serve", "--config", "/dev/null", "--listen", "/nonexistent/socket")
    if b"toml11" in done.stderr:
        skip("needs toml11: rollbox-serve is built without libtoml11-dev")
    assert done.returncode == 1, done.stderr


def test_options_come_from_a_file_and_the_command_line_wins(caller, knows_toml):  # noqa: F811
    path = write(
        caller,
        "serve.toml",
        'host = ["one.example", "two.example"]\ndrain = 1\n[tls]\nclient-required = false\n',
    )
    with Server(caller, "--config", path, "--host", "three.example") as server:

        def status(host):
            head = f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            return server.raw(head.encode()).split()[1]

        assert [status(f"{one}.example") for one in ("one", "three")] == [b"421", b"200"]
    with Server(caller, "--config", path) as server:
        assert [status(f"{one}.example") for one in ("one", "two")] == [b"200", b"200"]
        assert status("other.example") == b"421"


def test_faults_of_the_file_are_named_with_their_line(caller, knows_toml):  # noqa: F811
    for text, words in (
        ("\nnosuch = 1\n", (":2:", "nosuch")),
        ("drain = true\n", (":1:", "drain", "integer")),
        ("drain = -1\n", (":1:", "drain", "range")),
        ('tokens = ["a", "b"]\n', ("tokens",)),
        ("listen = [[1]]\n", ("listen", "array of strings")),
        ("started = 1979-05-27\n", ("started",)),
        ("drain = \n", ("serve.toml", "drain")),
        ('[tls]\ncert = "a"\n', ("--tls-cert", "--tls-key")),
    ):
        path = write(caller, "serve.toml", text)
        done = caller.rollbox("serve", "--listen", "127.0.0.1:0", "--config", path)
        assert done.returncode == 2, (text, done)
        assert all(word in done.stderr.decode() for word in words), (text, done.stderr)
    done = caller.rollbox("serve", "--config", "/nonexistent/serve.toml")
    assert done.returncode == 2 and b"/nonexistent/serve.toml" in done.stderr


PASS = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
"""


def passed(who, listener):
    """A server with a socket that is passed to it, and its first lines."""
    process = who.popen(
        [sys.executable, "-c", PASS, listener.fileno(), binaries() / "rollbox", "serve"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[listener.fileno()],
    )
    lines = []
    while not lines or lines[-1] not in ("ready", ""):
        lines.append(process.stdout.readline().decode().strip())
    return process, lines


def test_socket_of_the_service_manager_is_used(caller):  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        # The connection waits for the server, as with socket activation.
        waiting = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
        waiting.request("GET", "/healthz")
        process, lines = passed(caller, listener)
        try:
            assert lines == [f"listening on http://127.0.0.1:{port}", "ready"], (
                lines,
                process.stderr.read(),
            )
            assert waiting.getresponse().status == 200
            process.terminate()
            assert process.wait(DEADLINE) == 0
        finally:
            process.kill()
            process.communicate()


def test_passed_socket_that_other_machines_reach_needs_tls(caller):  # noqa: F811
    with socket.create_server(("0.0.0.0", 0)) as listener:
        process, _ = passed(caller, listener)
        assert process.wait(DEADLINE) == 1
        assert b"--tls-cert" in process.communicate()[1]
