#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One server, and the clients that trainers and agents have already.

    make demo-serve                       installs the clients, and runs this
    serve_demo.py                         with the clients that are installed; says which are not

It starts `rollbox serve` with a token, a price table and a collector of traces, and then
- scores programs by verl's own reward function, which speaks SandboxFusion,
- uses a sandbox through E2B's package, and Python with state through its code interpreter,
- calls the tools of the MCP server as an agent does,
- searches a tree of forks of a running Python through rollbox's own client,
- prints the server's metrics, the cost of each rollout, and the trace of one of them.

Exit status: 0 if every client that is installed got what it expects.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Callable, Optional

from rollbox import Engine, Sandbox, labels

PROJECT = Path(__file__).resolve().parent.parent
PRICES = {"cpu_s": 0.000014, "gib_s": 0.0000045, "disk_gib_s": 0.00000003}
# An agent's answers to "read two numbers, print their sum", with what verl's reward should be.
ANSWERS = [
    ("a, b = map(int, input().split())\nprint(a + b)", 1.0),
    ("a, b = map(int, input().split())\nprint(a - b)", 0.0),
    ("while True: pass", 0.0),
]
CASES = {"inputs": ["1 2\n", "20 22\n"], "outputs": ["3\n", "42\n"]}


class Skipped(Exception):
    """The client is not installed."""


class Collector(ThreadingHTTPServer):
    """Takes traces as an OpenTelemetry collector does (OTLP by HTTP, JSON), and keeps them."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for resource in body.get("resourceSpans", []):
                    for scope in resource["scopeSpans"]:
                        spans.extend(scope["spans"])
                answer = b'{"partialSuccess":{}}'
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Server:
    """`rollbox serve` on a free port of this host, with a token."""

    def __init__(self, program: str, directory: Path, collector: str) -> None:
        tokens, prices = directory / "tokens", directory / "prices.json"
        prices.write_text(json.dumps(PRICES))
        scopes = [word for scope in ("run", "admin", "metrics") for word in ("--scope", scope)]
        self.token = subprocess.run(
            [program, "token", "create", "--tokens", tokens, "--tenant", "research", *scopes],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        self.process = subprocess.Popen(
            [program, "serve", "--listen", "127.0.0.1:0", "--tokens", tokens, "--prices", prices],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector},
        )
        self.errors = threading.Thread(target=self.show_errors)
        self.errors.start()
        assert self.process.stdout is not None
        first = line = self.process.stdout.readline()
        while line and line.strip() != "ready":
            line = self.process.stdout.readline()
        if not line:
            raise SystemExit("serve_demo: the server did not start")
        self.host = "127.0.0.1:" + first.strip().rpartition(":")[2]
        self.url = f"http://{self.host}"

    def get(self, path: str) -> str:
        request = urllib.request.Request(
            self.url + path, headers={"Authorization": f"Bearer {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())

    def show_errors(self) -> None:
        """Until the last of the server's processes has ended: that is the one that sends spans."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            print(line, end="", file=sys.stderr)

    def stop(self) -> None:
        """Open requests end first."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.errors.join()


def need(module: str, package: str) -> None:
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise Skipped(f"the package {package} is not installed")


def show_verl(server: Server) -> None:
    """verl's reward for code, with its own HTTP client. Only its part for SandboxFusion is
    loaded: the whole package wants torch."""
    need("verl", "verl")
    found = importlib.util.find_spec("verl")
    assert found is not None and found.submodule_search_locations
    base = Path(found.submodule_search_locations[0]) / "utils" / "reward_score" / "sandbox_fusion"
    spec = importlib.util.spec_from_file_location(
        "verl_reward", base / "__init__.py", submodule_search_locations=[str(base)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["verl_reward"] = module
    spec.loader.exec_module(module)
    url = f"http://token:{server.token}@{server.host}/run_code"
    for code, expected in ANSWERS:
        score, rows = module.compute_score(
            url, None, 256, f"```python\n{code}\n```", json.dumps(CASES), timeout=2
        )
        print(f"  {code.splitlines()[-1]:32} reward {score:.1f}  {[row['status'] for row in rows]}")
        assert score == expected, (code, score, expected)


def show_e2b(server: Server) -> None:
    """E2B's packages: a sandbox with commands and files, and an interpreter with state."""
    need("e2b_code_interpreter", "e2b-code-interpreter")
    os.environ.update(
        E2B_API_URL=server.url, E2B_SANDBOX_URL=server.url, E2B_API_KEY=server.token
    )
    from e2b_code_interpreter import Sandbox as CodeSandbox

    with CodeSandbox.create(timeout=60, metadata={"rollout": "e2b"}) as box:
        box.files.write("/tmp/numbers", "1\n2\n39\n")
        out = box.commands.run("awk '{ s += $1 } END { print s }' /tmp/numbers").stdout
        print(f"  commands.run: {out.strip()}")
        box.run_code("total = sum(int(line) for line in open('/tmp/numbers'))")
        result = box.run_code("total")
        print(f"  run_code:     {result.text}")
        assert out.strip() == result.text == "42"


def show_mcp(server: Server) -> None:
    """What an agent sees: a list of tools, and what they answer."""
    need("mcp", "mcp")
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async def talk() -> None:
        http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {server.token}"}, timeout=60
        )
        async with Client(streamable_http_client(server.url + "/mcp", http_client=http)) as client:
            tools = (await client.list_tools()).tools
            print(f"  tools: {', '.join(tool.name for tool in tools)}")
            answer = await client.call_tool("run", {"argv": ["sh", "-c", "echo $((6 * 7))"]})
            text = "".join(getattr(part, "text", "") for part in answer.content)
            print(f"  run:   {text.strip()[:100]}")
            assert "42" in text, answer

    asyncio.run(talk())


def show_forks(server: Server) -> None:
    """A search over forks of a running Python: each node is a live process on the server."""
    world = (
        "import sys\nn, path = 1, []\n"
        "for line in sys.stdin:\n    exec(line)\n    print(n, path, flush=True)\n"
    )
    moves = ["n *= 2; path.append('double')", "n += 3; path.append('add')"]
    target, depth, n_forks = 22, 5, 0
    with Engine(server.url, token=server.token) as engine:
        with labels(rollout="tree"), Sandbox({"max_memory": "128M"}, engine=engine) as box:
            # A node keeps its process, too: a stream that nobody holds is closed.
            edge = [(box, box.spawn(["python3", "-c", world], id="world"))]
            for _ in range(depth):
                following = []
                for node, _ in edge:
                    for kid, move in zip(node.fork(len(moves)), moves):
                        process = kid.process("world")
                        assert process.stdin and process.stdout
                        process.stdin.write(move.encode() + b"\n")
                        process.stdin.flush()
                        value, _, path = process.stdout.readline().decode().partition(" ")
                        following.append((kid, process))
                        n_forks += 1
                        if int(value) == target:
                            print(f"  {n_forks} forks, {target} = {path.strip()}")
                            return
                edge = following
    raise AssertionError(f"{target} was not found")


def show_metrics(server: Server) -> None:
    shown = [
        line
        for line in server.get("/metrics").splitlines()
        if line.startswith(("rollbox_runs_total", "rollbox_execs_total", "rollbox_sandboxes"))
    ]
    print("\n".join("  " + line for line in shown))
    assert shown


def show_cost(server: Server, program: str, token_file: Path) -> None:
    done = subprocess.run(
        [program, "--engine", server.url, "--token-file", token_file, "cost", "--by", "rollout"],
        check=True,
        capture_output=True,
        text=True,
    )
    print("\n".join("  " + line for line in done.stdout.splitlines()))


def show_trace(collector: Collector) -> None:
    """A trace of a sandbox, as a tree."""
    traces: dict[str, list[dict[str, Any]]] = {}
    for span in collector.spans:
        traces.setdefault(span["traceId"], []).append(span)
    assert traces, "no span came"
    spans = max(
        traces.values(),
        key=lambda some: (any(one["name"] == "rollbox.rollout" for one in some), len(some)),
    )
    ids = {span["spanId"] for span in spans}

    def show(parent: Optional[str], depth: int) -> None:
        for span in sorted(spans, key=lambda one: int(one["startTimeUnixNano"])):
            above = span.get("parentSpanId") or None
            if above == parent or (parent is None and above not in ids):
                ms = (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e6
                print(f"  {'  ' * depth}{span['name']:{30 - 2 * depth}} {ms:8.2f} ms")
                show(span["spanId"], depth + 1)

    show(None, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rollbox", help="the program; default: that of build/, or of PATH")
    arguments = parser.parse_args()
    built = PROJECT / "build" / "rollbox"
    program = arguments.rollbox or (str(built) if built.exists() else shutil.which("rollbox"))
    if not program:
        parser.error("rollbox is neither in build/ nor in PATH: name it by --rollbox")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="rollbox-serve-") as name:
        collector, directory = Collector(), Path(name)
        server = Server(program, directory, f"http://127.0.0.1:{collector.server_port}")
        token_file = directory / "token"
        token_file.write_text(server.token)
        parts: dict[str, Callable[[], None]] = {
            "verl's reward function": lambda: show_verl(server),
            "E2B's sandbox and code interpreter": lambda: show_e2b(server),
            "An agent's tools by MCP": lambda: show_mcp(server),
            "A tree of forks by rollbox's client": lambda: show_forks(server),
            "Metrics": lambda: show_metrics(server),
            "Cost": lambda: show_cost(server, program, token_file),
        }
        try:
            for title, show in parts.items():
                print(title, flush=True)
                try:
                    show()
                except Skipped as problem:
                    print(f"  skipped: {problem}")
                except Exception as problem:
                    failed += 1
                    print(f"  FAILED: {type(problem).__name__}: {problem}")
        finally:
            server.stop()
        print("A trace")
        try:
            show_trace(collector)
        except AssertionError as problem:
            failed += 1
            print(f"  FAILED: {problem}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
