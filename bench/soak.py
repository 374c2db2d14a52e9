# SPDX-License-Identifier: Apache-2.0
"""`make soak`: many clients, one shared engine, tens of thousands of sandboxes; afterwards there
must be no more of anything than before.

Measured are the engine (descriptors, resident memory), its mount namespace and its launcher's,
processes of its session, cgroup directories, and as root the kernel's unreclaimable slab. Before
and
after are both taken with the engine warm and idle, all clients gone, when its teardown has settled.
Writes bench/results/soak.json, ends with 1 if something grew.
"""
import argparse
import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import report

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
CGROUPS = Path("/sys/fs/cgroup")
POOL = 128  # struct launcher.free_netns


def children(pid: int) -> List[int]:
    return [
        int(word)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for word in (task / "children").read_text().split()
    ]


def ending(pid: int) -> bool:
    """Are there children that are about to end by themselves: unused zygotes, processes that close
    sandboxes, and those not waited for yet? Under load they need longer than the time between two
    looks."""
    for child in children(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = Path(f"/proc/{child}/stat").read_text().partition("(")[2].rpartition(")")
            if name in ("rollbox-hold", "rollbox-close") or rest.split()[0] == "Z":
                return True
    return False


def told(values: Dict[str, Callable[[], int]]) -> Dict[str, int]:
    """Those that the kernel tells us: of the launcher, which has rights of its own, an ordinary
    user learns no descriptors and no mounts."""
    known = {}
    for name, value in values.items():
        with contextlib.suppress(PermissionError):
            known[name] = value()
    return known


def targets(pid: int) -> List[str]:
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(entry))
    return found


def pooled(pid: int) -> int:
    """Network namespaces that the engine keeps for the next sandboxes: at most 128, as many as were
    once given back together."""
    return sum(name.startswith("net:[") for name in targets(pid))


def descriptors(pid: int) -> int:
    return len(targets(pid)) - pooled(pid)


def resident_kib(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(fields["VmRSS"].split()[0])


def mounts(pid: int) -> int:
    return len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())


def cgroup_directories(engine: int) -> int:
    """Those of one engine: their top has its process id in its name."""
    found = subprocess.run(
        ["find", str(CGROUPS), "-type", "d", "-path", f"*/rollbox-*-{engine}-*"],
        capture_output=True,
        text=True,
    )
    return len(found.stdout.splitlines())


def slab_kib() -> int:
    """What the kernel cannot reclaim. Emptying its caches first makes it give back what is merely
    lying around in them."""
    subprocess.run(["sync"], check=True)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("2")
    except OSError:
        pass
    time.sleep(0.5)
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["SUnreclaim"].split()[0])


class Soak:
    def __init__(self, build: Path, scratch: Path) -> None:
        self.bench = scratch / "bench"
        self.socket = scratch / "engine.sock"
        subprocess.run(
            [
                "cc",
                "-std=gnu17",
                "-D_GNU_SOURCE",
                "-O2",
                "-o",
                str(self.bench),
                str(HERE / "bench.c"),
                f"-I{PROJECT / 'include'}",
                f"-L{build}",
                "-lrollbox",
                f"-Wl,-rpath,{build}",
                "-pthread",
            ],
            check=True,
        )
        self.engine = subprocess.Popen(
            [str(build / "rollbox-engine"), "--socket", str(self.socket)], stdin=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 10
        while not self.socket.exists():
            if self.engine.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("soak: the engine does not start")
            time.sleep(0.01)
        self.runner = subprocess.Popen(
            [str(self.bench), "engine", "{}", "/bin/true"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "ROLLBOX_BENCH_SOCKET": str(self.socket)},
        )

    def order(self, words: str) -> str:
        assert self.runner.stdin and self.runner.stdout
        self.runner.stdin.write(words + "\n")
        self.runner.stdin.flush()
        line = self.runner.stdout.readline()
        if not line:
            raise SystemExit(f"soak: the clients ended with {self.runner.wait()}")
        return line

    def settle(self) -> Dict[str, Any]:
        """Until nothing but spares is left, and those have idled out, so that before and after are alike."""
        deadline = time.monotonic() + 90
        while True:
            status: Dict[str, Any] = json.loads(self.order("status"))
            slots = sum("memory.usage_in_bytes" in name for name in targets(self.engine.pid))
            if (status["sandboxes"] == 0 and slots == 0 and not ending(self.engine.pid)) or time.monotonic() > deadline:
                return status
            time.sleep(0.5)

    def measure(self) -> Dict[str, int]:
        self.settle()
        engine = self.engine.pid
        launchers = [pid for pid in children(engine) if "rollbox-launch" in Path(f"/proc/{pid}/comm").read_text()]
        values: Dict[str, Callable[[], int]] = {
            "engine: descriptors": lambda: descriptors(engine),
            "engine: network namespaces kept": lambda: pooled(engine),
            "engine: resident memory, KiB": lambda: resident_kib(engine),
            "engine: child processes": lambda: len(children(engine)),
            "engine: mounts in its namespace": lambda: mounts(engine),
            "launcher: descriptors": lambda: sum(descriptors(pid) for pid in launchers),
            "launcher: resident memory, KiB": lambda: sum(resident_kib(pid) for pid in launchers),
            "launcher: mounts in its namespace": lambda: sum(mounts(pid) for pid in launchers),
            "cgroup directories": lambda: cgroup_directories(engine),
        }
        if os.geteuid() == 0:
            values["kernel: unreclaimable slab, KiB"] = slab_kib
        return told(values)

    def close(self) -> None:
        assert self.runner.stdin
        self.runner.stdin.close()
        self.runner.wait()
        self.engine.terminate()
        self.engine.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", default=str(PROJECT / "build"))
    parser.add_argument("--runs", type=int, default=20000)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--warm-up", type=int, default=4000)
    parser.add_argument(
        "--output",
        type=Path,
        help="results elsewhere than in bench/results/soak.json; docs/reference/benchmarks.md is left alone then",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollbox-soak-") as name:
        soak = Soak(Path(arguments.build).resolve(), Path(name))
        try:
            soak.order(f"clients {arguments.clients} {arguments.warm_up}")
            before = soak.measure()
            start = time.monotonic()
            times = [int(word) for word in soak.order(f"clients {arguments.clients} {arguments.runs}").split()]
            seconds = time.monotonic() - start
            after = soak.measure()
        finally:
            soak.close()
    # Memory may differ by what an allocator and the kernel's per-CPU caches hold, and the pool may
    # fill up; all other counts must be equal.
    allowed = {
        "engine: network namespaces kept": POOL - before["engine: network namespaces kept"],
        "engine: resident memory, KiB": 512,
        "launcher: resident memory, KiB": 64,
        "kernel: unreclaimable slab, KiB": 4096,
    }
    good = sorted(value / 1e6 for value in times if value)
    measures = {
        name: {
            "before": before[name],
            "after": after[name],
            "allowed": allowed.get(name, 0),
            "ok": after[name] - before[name] <= allowed.get(name, 0),
        }
        for name in before
    }
    results = {
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "runs": arguments.runs,
        "clients": arguments.clients,
        "warm_up": arguments.warm_up,
        "seconds": seconds,
        "failures": len(times) - len(good),
        "p50_ms": statistics.median(good),
        "p99_ms": good[int(len(good) * 0.99)],
        "measures": measures,
    }
    print(
        f"{arguments.runs} sandboxes, {arguments.clients} clients, {seconds:.1f} s, {arguments.runs / seconds:.0f}/s, p50 {results['p50_ms']:.1f} ms, p99 {results['p99_ms']:.1f} ms, "
        f"{results['failures']} failures"
    )
    for name, entry in measures.items():
        print(f"{'ok' if entry['ok'] else 'GROWS':6} {name}: {entry['before']} -> {entry['after']}")
    output = arguments.output or HERE / "results" / "soak.json"
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps(results, indent=1) + "\n")
    if not arguments.output and (HERE / "results" / "bench.json").exists():
        report.write(PROJECT)
    return 0 if results["failures"] == 0 and all(entry["ok"] for entry in measures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
