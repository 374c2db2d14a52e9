# SPDX-License-Identifier: Apache-2.0
"""The HTTP server beside the C library, on this machine. run.py starts it as each user:

    serving.py BUILD BENCH ROUNDS    prints {"rate": rows, "beside": rows, "streams": rows} as JSON

BENCH is the compiled bench.c. The HTTP client is wrk, of the distribution, with 64 connections; the
library has 64 threads. Both run the same programs, take turns within each round, and every answer
is looked at. "beside" is the time of one client's commands while another client asks for something
slow, and "streams" is the memory of the server.

"fusion" is SandboxFusion's own server beside this one: verl's code sends /run_code to both, in
turns. It is measured where bench/setup has installed it, or ROLLBOX_BENCH_FUSION names such a
directory: a virtual environment with `verl` and a checkout `SandboxFusion`.
"""

import http.client
import json
import os
import resource
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

CONNECTIONS = 64
SECONDS = 2
IDLE = 10_000
IDLE_COMMANDS = 11  # one takes 1,024 at most
FUSION = Path(os.environ.get("ROLLBOX_BENCH_FUSION") or Path(__file__).parent.parent / ".venv-fusion")
FUSION_THREADS = 8  # above this its requests time out on two CPUs
FUSION_SECONDS = 10
COMMANDS = 300
OUTPUT = 1 << 30
GONE = 30
CODE = "print(sum(range(1000)))"
TARGETS = [
    ("/bin/true, POST /v1/runs", "of_direct", 0.9, False,
     "server: runs of /bin/true a second, as a part of the C library's"),
    ("Python code, POST /v1/runs", "of_direct", 0.9, False,
     "server: runs of Python code a second, as a part of the C library's"),
    ("/bin/true, POST /v1/runs", "cpu_of_engine", 0.6, True,
     "server: its CPU for a run, as a part of the engine's"),
    ("/run_code of this server", "of_fusion", 10, False,
     "server: /run_code by verl's code, times SandboxFusion's own server"),
    ("idle streams", "kib_each", 2, True, "server: KiB of an idle event stream, without TLS"),
    ("idle streams of commands", "kib_each", 2, True, "server: KiB of a command's idle stream"),
    ("1 GiB of output", "grown_mib", 16, True, "server: MiB by which it grows while 1 GiB passes"),
    ("forks of 32 live Pythons", "added_p99_ms", 5, True,
     "server: ms added to the p99 of other clients' commands by forks"),
    ("hibernations", "added_p99_ms", 5, True,
     "server: ms added to the p99 of other clients' commands by hibernations"),
    ("client that goes away", "p99_ms", 100, True,
     "server: ms from the client's end to that of its run"),
]

# Each response is looked at: a benchmark of failures measures nothing.
SCRIPT = """
wrk.method = "POST"
wrk.path = "/v1/runs"
wrk.body = %s
wrk.headers["Authorization"] = "Bearer %s"
wrk.headers["Content-Type"] = "application/json"
local bad = 0
function setup(thread) thread:set("bad", 0); one = thread end
function response(status, headers, body)
    if status ~= 200 or not body:find('"exit_code": ?0') then bad = bad + 1 end
end
function done(summary, latency, requests)
    local wrong = summary.errors.status + summary.errors.connect + summary.errors.read
        + summary.errors.write + summary.errors.timeout + one:get("bad")
    print(string.format('{"n": %%d, "us": %%d, "wrong": %%d, "p50": %%d, "p99": %%d}',
        summary.requests, summary.duration, wrong, latency:percentile(50), latency:percentile(99)))
end
"""


class Server:
    """`rollbox serve` with a token of every scope."""

    def __init__(self, build: Path, directory: Path) -> None:
        self.tokens = directory / "tokens"
        scopes = [word for scope in ("run", "admin") for word in ("--scope", scope)]
        self.token = subprocess.run(
            [build / "rollbox", "token", "create", "--tokens", self.tokens, *scopes],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.process = subprocess.Popen(
            [build / "rollbox", "serve", "--listen", "127.0.0.1:0", "--tokens", self.tokens],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        lines: List[str] = []
        while not lines or lines[-1] not in ("ready", ""):
            lines.append(self.process.stdout.readline().strip())
        if lines[-1] != "ready":
            raise RuntimeError("the server did not start")
        self.port = int(lines[0].rpartition(":")[2])
        self.engine = int(self.call(self.connect(), "GET", "/v1/status")["engines"][0]["pid"])

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def call(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any = None
    ) -> Any:
        head = {"Authorization": f"Bearer {self.token}"}
        connection.request(method, path, None if body is None else json.dumps(body), head)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:200]!r}")
        return json.loads(content) if content else None

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def cpu_s(pid: int) -> float:
    """The process's own time; not that of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_kib(pid: int, which: str = "VmRSS") -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(which + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"process {pid} tells no {which}")


def quantile(values: List[float], q: float) -> float:
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * q))]


class Direct:
    """The stopwatch of bench.c, with 64 threads."""

    def __init__(self, bench: Path, words: List[str]) -> None:
        self.process = subprocess.Popen(
            [str(bench), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def rate(self) -> float:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"throughput {CONNECTIONS} {SECONDS * 1000}\n")
        self.process.stdin.flush()
        done, ns = self.process.stdout.readline().split()
        return int(done) / (int(ns) / 1e9)

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def through_server(server: Server, script: Path) -> Tuple[float, Dict[str, float]]:
    engine, own = cpu_s(server.engine), cpu_s(server.process.pid)
    done = subprocess.run(
        ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "--timeout", "30s", "-s", str(script),
         f"http://127.0.0.1:{server.port}"],
        check=True,
        capture_output=True,
        text=True,
    )
    row = json.loads(done.stdout.strip().splitlines()[-1])
    if row["wrong"] or not row["n"]:
        raise RuntimeError(f"{row['wrong']} of {row['n']} requests failed")
    spent = cpu_s(server.engine) - engine
    return row["n"] / (row["us"] / 1e6), {
        "p50_us": row["p50"],
        "p99_us": row["p99"],
        "cpu_of_engine": (cpu_s(server.process.pid) - own) / spent if spent else 0.0,
    }


def measure_rate(server: Server, bench: Path, rounds: int, directory: Path) -> Dict[str, Any]:
    rows: Dict[str, Any] = {}
    for name, words, body in (
        ("/bin/true", ["engine", "{}", "/bin/true"], {"argv": ["/bin/true"]}),
        ("Python code", ["code", "{}", "python3", "-c", CODE],
         {"code": CODE, "language": "python"}),
    ):
        script = directory / "wrk.lua"
        script.write_text(SCRIPT % (json.dumps(json.dumps(body)), server.token))
        direct = Direct(bench, words)
        alone: List[float] = []
        served: List[float] = []
        more: List[Dict[str, float]] = []
        for number in range(-1, rounds):
            first = direct.rate()
            rate, row = through_server(server, script)
            if number >= 0:
                alone.append(first)
                served.append(rate)
                more.append(row)
        direct.close()
        rows[f"{name}, C library"] = {"per_second": statistics.median(alone), "runs": rounds}
        rows[f"{name}, POST /v1/runs"] = {
            "per_second": statistics.median(served),
            "of_direct": statistics.median(a / b for a, b in zip(served, alone)),
            **{key: statistics.median(row[key] for row in more) for key in more[0]},
            "runs": rounds,
        }
    return rows


def measure_beside(server: Server) -> Dict[str, Any]:
    """Commands of one client, alone and while another asks for something slow all the time."""
    mine, other = server.connect(), server.connect()
    server.call(mine, "POST", "/v1/sandboxes", {"name": "mine"})
    server.call(mine, "POST", "/v1/sandboxes", {"name": "live"})
    script = "import time; held = bytearray(20 << 20)\nwhile True: time.sleep(1)"
    begin(server, "/v1/sandboxes/live/execs/python", ["/usr/bin/python3", "-c", script])

    def commands() -> List[float]:
        times = []
        for _ in range(COMMANDS):
            begin = time.perf_counter()
            server.call(mine, "POST", "/v1/sandboxes/mine/execs", {"argv": ["/bin/true"]})
            times.append((time.perf_counter() - begin) * 1e3)
        return times

    def forks() -> None:
        made = server.call(other, "POST", "/v1/sandboxes/live/fork", {"n": 32})
        for name in made["sandboxes"]:
            server.call(other, "DELETE", f"/v1/sandboxes/{name}")

    def hibernations() -> None:
        server.call(other, "POST", "/v1/sandboxes/live/hibernate", {})
        server.call(other, "POST", "/v1/sandboxes/live/wake", {})

    rows: Dict[str, Any] = {}
    ways: List[Tuple[str, Callable[[], None]]] = [
        ("alone", lambda: None),
        ("forks of 32 live Pythons", forks),
        ("hibernations", hibernations),
    ]
    for name, slow in ways:
        stop, failures, done = threading.Event(), [], [0]

        def repeat(slow: Callable[[], None] = slow) -> None:
            try:
                while not stop.is_set():
                    slow()
                    done[0] += 1
                    if slow is ways[0][1]:
                        return
            except (RuntimeError, OSError) as error:
                failures.append(str(error))

        thread = threading.Thread(target=repeat)
        thread.start()
        times = commands()
        stop.set()
        thread.join()
        if failures:
            rows[name] = {"failed": failures[0]}
            continue
        rows[name] = {
            "p50_us": statistics.median(times) * 1e3,
            "p99_us": quantile(times, 0.99) * 1e3,
            "runs": len(times),
        }
        if name != "alone":
            rows[name]["added_p99_ms"] = (rows[name]["p99_us"] - rows["alone"]["p99_us"]) / 1e3
            rows[name]["slow_calls"] = done[0]
    return rows


def begin(server: Server, path: str, argv: List[str]) -> None:
    """Starts a command that needs no client."""
    connection = server.connect()
    head = {"Authorization": f"Bearer {server.token}", "Prefer": "respond-async"}
    body = {"argv": argv, "output_limit": OUTPUT}
    connection.request("PUT", path, json.dumps(body), head)
    if connection.getresponse().status != 202:
        raise RuntimeError(f"{path} was not started")
    connection.close()


def attach(server: Server, path: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), 60)
    connection.sendall(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {server.token}\r\n\r\n".encode()
    )
    return connection


def measure_idle(server: Server, paths: List[str], wanted: int, word: bytes) -> Dict[str, Any]:
    """Streams of these paths, each after it has sent the word. The first ones do not count."""
    held: List[socket.socket] = []
    before = 0
    for number in range(wanted + 100):
        if number == 100:
            before = resident_kib(server.process.pid)
        held.append(attach(server, paths[number % len(paths)]))
        got = b""
        while word not in got:
            data = held[-1].recv(65536)
            if not data:
                raise RuntimeError(f"stream {number} ended: {got[-200:]!r}")
            got += data
    grown = resident_kib(server.process.pid) - before
    for connection in held:
        connection.close()
    return {"kib_each": grown / wanted, "runs": wanted}


def measure_streams(server: Server, fresh: Callable[[], Server]) -> Dict[str, Any]:
    """Memory that one measurement has given back would hide the growth of the next: so the stream
    comes first, and each kind of idle streams has a new server."""
    commands = "/v1/sandboxes/streams/execs/"
    server.call(server.connect(), "POST", "/v1/sandboxes", {"name": "streams"})
    before = resident_kib(server.process.pid)
    begin(server, commands + "output", ["sh", "-c", f"yes {'a' * 63} | head -c {OUTPUT}"])
    at, size, most, tail = time.perf_counter(), 0, before, b""
    with attach(server, commands + "output/stream") as connection:
        while b"event: result" not in tail:
            data = connection.recv(1 << 20)
            if not data:
                raise RuntimeError("the stream ended without its result")
            if size >> 26 != (size + len(data)) >> 26:
                most = max(most, resident_kib(server.process.pid))
            size += len(data)
            tail = (tail + data)[-4096:]
    if size < OUTPUT:
        raise RuntimeError(f"{size} of {OUTPUT} bytes came")
    rows: Dict[str, Any] = {
        "1 GiB of output": {
            "grown_mib": (most - before) / 1024,
            "mib_s": size / (1 << 20) / (time.perf_counter() - at),
            "runs": 1,
        },
        "client that goes away": measure_gone(server),
    }
    other = fresh()
    try:
        rows["idle streams"] = measure_idle(other, ["/v1/events"], IDLE, b"200 OK")
    finally:
        other.close()
    other = fresh()
    try:
        other.call(other.connect(), "POST", "/v1/sandboxes", {"name": "streams"})
        for number in range(IDLE_COMMANDS):
            begin(other, f"{commands}idle{number}", ["sh", "-c", "echo begun; sleep 1000"])
        # Each stream of a command has three descriptors of the server.
        room = min(IDLE, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 3 - 500)
        paths = [f"{commands}idle{number}/stream" for number in range(IDLE_COMMANDS)]
        rows["idle streams of commands"] = measure_idle(other, paths, room, b"begun")
    finally:
        other.close()
    return rows


def process_of(word: str) -> int:
    """The guest's process with this argument, as the host sees it."""
    while True:
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "cmdline").read_bytes().split(b"\0")[:2] == [
                    b"sleep",
                    word.encode(),
                ]:
                    return int(entry.name)
            except OSError:
                pass


def measure_gone(server: Server) -> Dict[str, Any]:
    """From the close of a client's connection to the end of the process of its run."""
    times = []
    for number in range(GONE):
        word = f"{os.getpid()}.{number}"
        connection = server.connect()
        head = {"Authorization": f"Bearer {server.token}"}
        connection.request("POST", "/v1/runs", json.dumps({"argv": ["sleep", word]}), head)
        descriptor = os.pidfd_open(process_of(word))
        at = time.perf_counter()
        connection.close()
        if not select.select([descriptor], [], [], 30)[0]:
            raise RuntimeError("the run of a client that went away did not end within 30 s")
        times.append((time.perf_counter() - at) * 1e3)
        os.close(descriptor)
    return {
        "p50_us": statistics.median(times) * 1e3,
        "p99_us": quantile(times, 0.99) * 1e3,
        "p99_ms": quantile(times, 0.99),
        "runs": GONE,
    }


def fusion_server() -> Tuple[subprocess.Popen, str]:
    """SandboxFusion's own server on a free port, and its address, once it runs a program."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        # With uvloop of today it does not see the ends of its programs.
        [FUSION / "bin/python", "-m", "uvicorn", "sandbox.server.server:app", "--loop", "asyncio",
         "--port", str(port)],
        cwd=FUSION / "SandboxFusion",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}/run_code"
    until = time.monotonic() + 90
    while time.monotonic() < until:
        try:
            if verl_client(url, 1, 0.1)["wrong"] == 0:
                return process, url
        except RuntimeError:
            pass
        time.sleep(0.5)
    os.killpg(process.pid, signal.SIGKILL)
    raise RuntimeError("SandboxFusion's server did not answer with the program's output")


def verl_client(url: str, threads: int, seconds: float) -> Dict[str, Any]:
    client = Path(__file__).parent / "fusion_client.py"
    done = subprocess.run(
        [FUSION / "bin/python", client, url, str(threads), str(seconds)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-200:])
    return json.loads(done.stdout)


def measure_fusion(server: Server, rounds: int) -> Dict[str, Any]:
    if not (FUSION / "SandboxFusion" / "sandbox").exists():
        reason = f"not measured: no SandboxFusion in {FUSION} (bench/setup installs it)"
        return {"/run_code of this server": {"failed": reason}}
    process, url = fusion_server()
    own = f"http://bench:{server.token}@127.0.0.1:{server.port}/run_code"
    sums: Dict[str, List[Dict[str, Any]]] = {own: [], url: []}
    try:
        for _ in range(rounds):
            for one in sums:
                sums[one].append(verl_client(one, FUSION_THREADS, FUSION_SECONDS))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def row(of: List[Dict[str, Any]]) -> Dict[str, Any]:
        return {
            "per_second": statistics.median(one["n"] / one["s"] for one in of),
            "p50_us": statistics.median(one["p50_ms"] for one in of) * 1e3,
            "p99_us": statistics.median(one["p99_ms"] for one in of) * 1e3,
            "wrong": sum(one["wrong"] for one in of),
            "runs": sum(one["n"] for one in of),
        }

    rows = {"/run_code of this server": row(sums[own]), "/run_code of SandboxFusion": row(sums[url])}
    ours, theirs = rows.values()
    if not ours["wrong"] and not theirs["wrong"]:
        ours["of_fusion"] = ours["per_second"] / theirs["per_second"]
    return rows


def main() -> None:
    build, bench, rounds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    if not shutil.which("wrk"):
        raise SystemExit("wrk is missing: apt-get install wrk")
    with tempfile.TemporaryDirectory(prefix="bench-serving-") as name:
        directory = Path(name)
        server = Server(build, directory)
        try:
            found = {
                "rate": measure_rate(server, bench, rounds, directory),
                "beside": measure_beside(server),
                "streams": measure_streams(server, lambda: Server(build, directory)),
                "fusion": measure_fusion(server, rounds),
            }
            print(json.dumps(found))
        finally:
            server.close()


if __name__ == "__main__":
    main()
