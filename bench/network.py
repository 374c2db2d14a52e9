# SPDX-License-Identifier: Apache-2.0
"""Network rules beside other ways to give a sandbox a network. run.py starts it as each user:

    network.py BUILD ROUNDS    prints {"start": rows, "https": rows, "idle": rows} as JSON

A TLS server on this host's loopback answers all. All contestants run the same client: it makes
fresh connections, and reads one large body. "direct" is the client outside of any sandbox.
Contestants take turns within each round. Decrypted connections have TLS on both sides, and resume
sessions as clients do.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

NAME = "bench.test"
BULK = 64 << 20
CONNECTIONS = 40
IDLE = 1000
LIMIT = 120
TARGETS = [
    (
        "start",
        "create with net allow",
        "of_loopback",
        1.35,
        True,
        "network: create with rules, time as a multiple of loopback",
    ),
    (
        "start",
        "run with net allow",
        "of_loopback",
        1.1,
        True,
        "network: `run` with rules, time as a multiple of loopback",
    ),
    (
        "https",
        "rollbox, checked",
        "of_direct",
        1.6,
        True,
        "network: fresh HTTPS connection, checked, time as a multiple of direct",
    ),
    (
        "https",
        "rollbox, decrypted, resumed",
        "of_direct",
        3,
        True,
        "network: fresh HTTPS connection, decrypted, session resumed, time as a multiple of direct",
    ),
    (
        "https",
        "rollbox, checked",
        "bulk_of_direct",
        0.8,
        False,
        "network: large body, checked, rate as a part of direct",
    ),
    (
        "https",
        "rollbox, decrypted, resumed",
        "bulk_of_direct",
        0.3,
        False,
        "network: large body, decrypted, rate as a part of direct",
    ),
    (
        "idle",
        "rollbox",
        "descriptors_each",
        3,
        True,
        f"network: descriptors of the engine and the gateway for each of {IDLE} idle sandboxes",
    ),
    (
        "idle",
        "rollbox",
        "kib_each",
        8,
        True,
        f"network: KiB of the gateway for each of {IDLE} idle sandboxes",
    ),
]

SERVER = """
import socket, ssl, sys, threading
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
listener = socket.create_server(("127.0.0.1", 0), backlog=512)
print(listener.getsockname()[1], flush=True)
block = bytes(1 << 20)
def serve(plain):
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with context.wrap_socket(plain, server_side=True) as tls:
            head = b""
            while b"\\r\\n\\r\\n" not in head:
                more = tls.recv(65536)
                if not more: return
                head += more
            size = int(head.split(b"/")[1].split()[0])
            tls.sendall(b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n" % size + block[:size])
            for at in range(len(block), size, len(block)):
                tls.sendall(block[:size - at])
            tls.unwrap()
    except OSError: pass
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
# ADDRESS PORT ROOTS RESUME COUNT SIZE: one line of microseconds, one for each connection.
CLIENT = """
import json, socket, ssl, sys, time
address, port, roots, resume, count, size = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "1", int(sys.argv[5]), int(sys.argv[6])
context = ssl.create_default_context(cafile=roots)
session, times = None, []
for _ in range(count):
    begin = time.perf_counter_ns()
    with context.wrap_socket(socket.create_connection((address, port)), server_hostname="bench.test", session=session if resume else None) as tls:
        tls.sendall(b"GET /%d HTTP/1.1\\r\\nHost: bench.test\\r\\nConnection: close\\r\\n\\r\\n" % size)
        got = 0
        while True:
            try: data = tls.recv(1 << 18)
            except OSError: break
            if not data: break
            got += len(data)
        session = tls.session
    times.append((time.perf_counter_ns() - begin) // 1000)
    if got < size: raise SystemExit(f"{got} of {size} bytes came")
print(json.dumps(times))
"""
Way = Callable[[int, int], List[int]]


def words(address: str, port: int, roots: str, resume: bool, count: int, size: int) -> List[str]:
    return [
        "/usr/bin/python3",
        "-c",
        CLIENT,
        address,
        str(port),
        roots,
        "1" if resume else "0",
        str(count),
        str(size),
    ]


def run(argv: List[str]) -> List[int]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as problems:
        done = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=problems, start_new_session=True
        )
        try:
            status = done.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, signal.SIGKILL)
            done.wait()
            raise RuntimeError(f"it did not end within {LIMIT} s") from None
        out.seek(0)
        problems.seek(0)
        if status != 0:
            raise RuntimeError(
                problems.read().decode(errors="replace").strip()[-200:] or f"status {status}"
            )
        return list(json.loads(out.read().decode().strip().splitlines()[-1]))


def certificates(directory: Path) -> None:
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    (directory / "names").write_text(f"subjectAltName=DNS:{NAME}")
    for command in (
        [
            "req",
            "-x509",
            *key,
            "-keyout",
            "root.key",
            "-out",
            "root.pem",
            "-days",
            "30",
            "-subj",
            "/CN=bench root",
        ],
        ["req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", f"/CN={NAME}"],
        [
            "x509",
            "-req",
            "-in",
            "server.csr",
            "-CA",
            "root.pem",
            "-CAkey",
            "root.key",
            "-CAcreateserial",
            "-days",
            "30",
            "-extfile",
            "names",
            "-out",
            "server.pem",
        ],
    ):
        subprocess.run(["openssl", *command], cwd=directory, check=True, capture_output=True)
    directory.chmod(0o755)
    (directory / "root.pem").chmod(0o644)


def timed(action: Callable[[], Any]) -> float:
    begin = time.perf_counter_ns()
    action()
    return (time.perf_counter_ns() - begin) / 1000


def quantiles(values: List[float]) -> Dict[str, Any]:
    ordered = sorted(values)
    return {
        "p50_us": statistics.median(ordered),
        "p99_us": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        "runs": len(ordered),
    }


def ratio(mine: List[float], others: List[float]) -> float:
    """The median over the rounds of the ratio within a round."""
    return statistics.median(one / other for one, other in zip(mine, others))


def measure_start(rounds: int) -> Dict[str, Any]:
    from rollbox import Policy, Sandbox

    def create(policy: Any) -> None:
        with Sandbox(policy) as box:
            box.exec(["/bin/true"])

    policies = {
        "loopback": Policy(net="loopback"),
        "net allow": Policy(net_allow_hosts=["pypi.org"]),
    }
    sandboxes = {name: Sandbox(policy) for name, policy in policies.items()}
    ways: Dict[str, Callable[[], Any]] = {}
    for name in policies:
        ways[f"create with {name}"] = lambda name=name: create(policies[name])
        ways[f"run with {name}"] = lambda name=name: sandboxes[name].run(["/bin/true"])
    every: Dict[str, List[float]] = {name: [] for name in ways}
    medians: Dict[str, List[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(rounds):
        for name, way in ways.items():
            values = [timed(way) for _ in range(30)]
            every[name] += values
            medians[name].append(statistics.median(values))
    rows = {name: quantiles(values) for name, values in every.items()}
    for what in ("create", "run"):
        rows[f"{what} with net allow"]["of_loopback"] = ratio(
            medians[f"{what} with net allow"], medians[f"{what} with loopback"]
        )
    return rows


def rollbox_way(
    rules: List[Dict[str, Any]], roots: str, resume: bool, readable: str
) -> Tuple[Way, Callable[[], None]]:
    from rollbox import Policy, Sandbox

    box = Sandbox(Policy(net_allow=rules, fs_readable_extra=[readable]))
    box.__enter__()

    def way(count: int, size: int) -> List[int]:
        result = box.exec(words(NAME, 443, roots, resume, count, size))
        if result.exit_code != 0:
            raise RuntimeError(f"{result.stderr}"[-200:])
        return list(json.loads(result.stdout))

    return way, lambda: box.__exit__(None, None, None)


def peers(port: int, roots: str, bench_venv: Path) -> Dict[str, Way]:
    """Other ways to give a client a network of its own.

    slirp4netns and pasta each make a tap device in the client's namespace. The host's loopback has
    an address in their networks.
    """
    found: Dict[str, Way] = {}
    if shutil.which("slirp4netns"):
        inner = 'while ! grep -q tap0 /proc/net/route; do sleep 0.01; done; exec "$@"'
        start = (
            'mkfifo "$0/there" "$0/go"; unshare -Urn sh -c \'echo > "$0/there"; read line < "$0/go"; '
            + inner.replace("'", "'\\''")
            + '\' "$0" "$@" & child=$!; read line < "$0/there"; '
            "slirp4netns --configure --mtu=65520 --userns-path=/proc/$child/ns/user --netns-type=path /proc/$child/ns/net tap0 >/dev/null 2>&1 & "
            'slirp=$!; echo > "$0/go"; wait $child; status=$?; kill $slirp; exit $status'
        )

        def slirp(count: int, size: int) -> List[int]:
            with tempfile.TemporaryDirectory(prefix="bench-slirp-") as directory:
                return run(
                    [
                        "timeout",
                        "-k",
                        "1",
                        str(LIMIT),
                        "sh",
                        "-c",
                        start,
                        directory,
                        *words("10.0.2.2", port, roots, False, count, size),
                    ]
                )

        found["slirp4netns"] = slirp
    if shutil.which("pasta"):
        gateway = subprocess.run(
            ["sh", "-c", "ip route | sed -n 's/^default via \\([0-9.]*\\).*/\\1/p'"],
            capture_output=True,
            text=True,
        ).stdout.split()
        if gateway:
            found["pasta"] = lambda count, size: run(
                [
                    "timeout",
                    "-k",
                    "1",
                    str(LIMIT // 4),
                    "pasta",
                    "--config-net",
                    "--foreground",
                    "--quiet",
                    "--",
                    *words(gateway[0], port, roots, False, count, size),
                ]
            )
    if bench_venv.exists():
        code = (
            f"import sys, sandlock\nr = sandlock.Sandbox(fs_readable=['/usr', '/bin', '/lib', '/lib64', '/etc', '/proc', '/dev/null', '/dev/urandom', {str(Path(roots).parent)!r}], "
            f"net_allow=['127.0.0.1:{port}'], clean_env=True).run(sys.argv[1:])\nout = r.stdout\nprint(out.decode() if isinstance(out, bytes) else out)\n"
            "if r.exit_code: sys.exit(str(r))\n"
        )
        found["sandlock"] = lambda count, size: run(
            [str(bench_venv), "-c", code, *words("127.0.0.1", port, roots, False, count, size)]
        )
    return found


def measure_https(rounds: int, directory: Path, port: int, bench_venv: Path) -> Dict[str, Any]:
    roots = str(directory / "root.pem")
    rule: Dict[str, Any] = {"host": NAME, "ports": [443], "to": f"127.0.0.1:{port}"}
    closers: List[Callable[[], None]] = []
    ways: Dict[str, Way] = {
        "direct": lambda count, size: run(words("127.0.0.1", port, roots, False, count, size)),
        "direct, resumed": lambda count, size: run(
            words("127.0.0.1", port, roots, True, count, size)
        ),
    }
    for name, rules, file, resume in (
        ("rollbox, checked", [rule], roots, False),
        ("rollbox, decrypted", [{**rule, "tls": "terminate"}], "/dev/rollbox-ca.pem", False),
        (
            "rollbox, decrypted, resumed",
            [{**rule, "tls": "terminate"}],
            "/dev/rollbox-ca.pem",
            True,
        ),
    ):
        ways[name], close = rollbox_way(rules, file, resume, str(directory))
        closers.append(close)
    ways.update(peers(port, roots, bench_venv))
    every: Dict[str, List[float]] = {name: [] for name in ways}
    medians: Dict[str, List[float]] = {name: [] for name in ways}
    rates: Dict[str, List[float]] = {name: [] for name in ways}
    failed: Dict[str, str] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            if name in failed:
                continue
            try:
                values = [float(value) for value in way(CONNECTIONS, 100)][
                    1:
                ]  # the first has no session to resume
                every[name] += values
                medians[name].append(statistics.median(values))
                rates[name].append(BULK / way(1, BULK)[0])
            except (RuntimeError, ValueError, OSError) as error:
                failed[name] = str(error)
    for close in closers:
        close()
    rows: Dict[str, Any] = {}
    for name in ways:
        if name in failed:
            rows[name] = {"failed": failed[name]}
            continue
        rows[name] = {
            **quantiles(every[name]),
            "bulk_mib_s": statistics.median(rates[name]) * 1e6 / (1 << 20),
        }
        if name != "direct" and "direct" not in failed:
            rows[name].update(
                of_direct=ratio(medians[name], medians["direct"]),
                bulk_of_direct=ratio(rates[name], rates["direct"]),
            )
    return rows


def gateway_of(engine: int) -> int:
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and (entry / "comm").read_text().strip() == "rollbox-egress"
                and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == engine
            ):
                return int(entry.name)
        except OSError:
            pass
    raise RuntimeError("no gateway of this engine is running")


def resident_kib(pid: int) -> int:
    fields = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if ":" in line
    )
    return int(fields["VmRSS"].split()[0])


def measure_idle() -> Dict[str, Any]:
    """Root alone sees another id's descriptors; an ordinary user's gateway hides them."""
    from rollbox import Policy, Sandbox, default_engine

    policy = Policy(net_allow_hosts=["pypi.org"])
    boxes = [Sandbox(policy)]
    boxes[0].__enter__()
    boxes[0].exec(["/bin/true"])
    gateway = gateway_of(default_engine().status()["pid"])

    def descriptors() -> Optional[int]:
        try:
            return len(os.listdir(f"/proc/{gateway}/fd"))
        except OSError:
            return None

    before, memory = descriptors(), resident_kib(gateway)
    for _ in range(IDLE):
        boxes.append(Sandbox(policy))
        boxes[-1].__enter__()
    boxes[-1].exec(["/bin/true"])
    row: Dict[str, Any] = {"kib_each": (resident_kib(gateway) - memory) / IDLE, "runs": IDLE}
    after = descriptors()
    if before is not None and after is not None:
        row["descriptors_each"] = (after - before) / IDLE
    for box in boxes:
        box.__exit__(None, None, None)
    return {"rollbox": row}


def main() -> None:
    rounds = int(sys.argv[2])
    bench_venv = Path(__file__).resolve().parent.parent / ".venv-bench" / "bin" / "python"
    with tempfile.TemporaryDirectory(prefix="bench-network-") as name:
        directory = Path(name)
        certificates(directory)
        store = directory / "store"
        os.environ["ROLLBOX_STORE"] = str(store)
        subprocess.run(
            [str(Path(sys.argv[1]) / "rollbox"), "store", "df"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        subprocess.run(
            [str(Path(sys.argv[1]) / "rollbox-egress-tls"), "--make-ca", str(store / "ca")],
            check=True,
        )
        shutil.copy(directory / "root.pem", store / "ca" / "roots.pem")
        server = subprocess.Popen(
            [
                sys.executable,
                "-c",
                SERVER,
                str(directory / "server.pem"),
                str(directory / "server.key"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline())
            print(
                json.dumps(
                    {
                        "https": measure_https(rounds, directory, port, bench_venv),
                        "start": measure_start(rounds),
                        "idle": measure_idle(),
                    }
                )
            )
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    main()
