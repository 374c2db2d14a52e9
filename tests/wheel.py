#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A wheel gives a user everything: the server with TLS, its clients, MCP and traces.

    wheel.py WHEEL [PYTHON]

The wheel is installed into a new virtual environment. An ordinary user (ROLLBOX_TEST_UID when root
starts this) then works with the environment alone, as after `pip install`. Needs `openssl`.
"""

import contextlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

DEADLINE_S = 120
CLIENT = """
import sys
from rollbox import Engine, Policy, Sandbox
engine = Engine(sys.argv[1], token=open("token").read().strip(), ca="cert.pem")
with Sandbox(Policy(timeout=60), engine=engine) as box:
    box.write_file("/tmp/a", "from a client")
    kid, = box.fork(1)
    print(kid.exec(["cat", "/tmp/a"]).stdout.decode())
"""
HANDSHAKE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
    "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
}}


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes the spans of any program."""

    received = threading.Event()

    def do_POST(self):
        """One request of OTLP/HTTP."""
        if b'"execute_tool run"' in self.rfile.read(int(self.headers["Content-Length"])):
            self.received.set()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Nothing is printed."""


def output(*command, **options):
    """Its standard output; it must succeed."""
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S, **options
    )
    if done.returncode:
        sys.exit(f"wheel.py: {' '.join(map(str, command))}: status {done.returncode}")
    return done.stdout


@contextlib.contextmanager
def server(rollbox, *arguments):
    """A running server: its address."""
    process = subprocess.Popen(
        [str(rollbox), "serve", "--listen", "127.0.0.1:0", *arguments], stdout=subprocess.PIPE, text=True
    )
    lines = []
    try:
        while not lines or lines[-1] not in ("ready", ""):
            lines.append(process.stdout.readline().strip())
        if lines[-1] != "ready":
            sys.exit("wheel.py: the server has not started")
        yield "https://localhost:" + lines[0].rpartition(":")[2]
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def work(rollbox):
    """All of it, in the working directory."""
    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    output(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"),
        stderr=subprocess.DEVNULL,
    )
    token = output(rollbox, "token", "create", "--tokens", "tokens", "--tenant", "one", "--scope", "run")
    Path("token").touch(0o600)
    Path("token").write_text(token)
    options = ("--tokens", "tokens", "--tls-cert", "cert.pem", "--tls-key", "key.pem")
    Path("options.toml").write_text("drain = 5\n")
    options += ("--config", "options.toml")
    with server(rollbox, *options, "--otlp-endpoint", f"http://127.0.0.1:{collector.server_port}") as url:
        command = (rollbox, "--engine", url, "--token-file", "token", "--ca", "cert.pem")
        assert output(*command, "run", "--", "echo", "hello") == "hello\n"
        assert output(rollbox.parent / "python", "-c", CLIENT, url) == "from a client\n"
        answer = output(*command, "mcp", input=json.dumps(HANDSHAKE) + "\n")
        assert json.loads(answer)["result"]["serverInfo"]["name"] == "rollbox", answer
        assert Collector.received.wait(DEADLINE_S), "no spans have come"
    answer = output(rollbox, "mcp", input=json.dumps(HANDSHAKE) + "\n")
    assert json.loads(answer)["result"]["serverInfo"]["name"] == "rollbox", answer
    print("the wheel: serve with TLS, --engine, client, mcp and traces work")


def become(user):
    """An ordinary user, if this is root."""
    if user is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)


def main():
    """Installs the wheel, and does the work by another process, in the environment's own Python."""
    wheel, python = Path(sys.argv[1]).resolve(), (sys.argv[2:] or ["/usr/bin/python3"])[0]
    user = int(os.environ.get("ROLLBOX_TEST_UID", 1000)) if os.geteuid() == 0 else None
    directory = Path(tempfile.mkdtemp(prefix="rollbox-wheel-"))
    try:
        directory.chmod(0o755)
        output(python, "-m", "venv", directory / "venv")
        output(
            *(directory / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-index", "--no-deps", wheel),
        )
        home = directory / "home"
        home.mkdir()
        shutil.copy(__file__, directory / "work.py")
        if user is not None:
            os.chown(home, user, user)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ROLLBOX_", "PYTHON", "XDG_", "OTEL_"))
        }
        return subprocess.run(
            [str(directory / "venv/bin/python"), "-B", str(directory / "work.py"), "--work"],
            cwd=home,
            env={**environment, "HOME": str(home), "TMPDIR": str(home)},
            preexec_fn=lambda: become(user),
        ).returncode
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(work(Path(sys.prefix, "bin/rollbox")) if sys.argv[1] == "--work" else main())
