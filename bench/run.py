# SPDX-License-Identifier: Apache-2.0
"""`make bench`: measures rollbox and its peers in one run, and writes bench/results/bench.json and
docs/reference/benchmarks.md.

Every contestant is a process (bench.c, or worker.py for Python libraries) that takes orders. The
driver goes round by round, and in each round lets all of them take a
turn, in an order that shifts, so that other load on the machine meets all alike. A ratio is the
median over the rounds of the ratios within a round.
"""
import argparse
import datetime
import gzip
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import peers
import report
import sessions

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
QUIET = 0.1      # what others may use of the CPUs
TRUE = ["/bin/true"]
PYTHON = ["/usr/bin/python3", "-c", "pass"]

# HumanEval by the two Python ways; both count an interpreter's start, and end with the number of programs that failed.
BARE_SCRIPT = """
import subprocess, sys
from concurrent.futures import ThreadPoolExecutor
def one(number):
    return subprocess.run(["/usr/bin/python3", f"{sys.argv[1]}/{number}.py"], stdin=subprocess.DEVNULL, capture_output=True).returncode != 0
with ThreadPoolExecutor(2) as pool:
    sys.exit(sum(pool.map(one, range(int(sys.argv[2])))))
"""
RUN_MANY_SCRIPT = """
import json, sys, rollbox
rows = rollbox.run_many([json.loads(line) for line in open(sys.argv[1])], concurrency=2)
sys.exit(sum(row.outcome != "exit" or row.exit_code != 0 for row in rows))
"""


class Identity:
    """The user that runs the contestants: root or an ordinary user. The driver as root plays both."""

    def __init__(self, uid: int, scratch: Path) -> None:
        self.uid = uid
        self.name = "root" if uid == 0 else "user"
        self.scratch = scratch / self.name
        self.scratch.mkdir()
        if uid != os.geteuid():
            os.chown(self.scratch, uid, uid)
        self.environment = {
            "PATH": os.environ.get("PATH", peers.PATH) + ":/usr/sbin:/sbin",
            "HOME": str(self.scratch),
            "XDG_RUNTIME_DIR": str(self.scratch),
            "TMPDIR": str(self.scratch),
            "LANG": "C.UTF-8",
        }

    def popen(self, argv: List[str], becomes: bool = False, **more: Any) -> "subprocess.Popen[str]":
        """`becomes`: the command itself takes the identity, after something that only root can do."""
        if self.uid != os.geteuid() and not becomes:
            more.update(user=self.uid, group=self.uid, extra_groups=[])
        return subprocess.Popen(argv, env={**self.environment, **more.pop("env", {})}, cwd="/", **more)

    def own(self, path: Path) -> None:
        if self.uid != os.geteuid():
            subprocess.run(["chown", "-R", f"{self.uid}:{self.uid}", str(path)], check=True)


class Contestant:
    def __init__(
        self,
        name: str,
        identity: Identity,
        argv: List[str],
        batch: int,
        env: Optional[Dict[str, str]] = None,
    ) -> None:
        self.name, self.batch = name, batch
        self.samples: List[List[float]] = []      # microseconds, a list a round
        self.failure = ""
        self.stderr = tempfile.TemporaryFile("w+")
        self.process = identity.popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
            env=env or {},
            becomes=argv[0] == "unshare",
        )

    def order(self, words: str) -> List[int]:
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(words + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.stderr.seek(0)
            self.failure = self.stderr.read().strip()[-500:] or f"ended with {self.process.wait()}"
            return []
        return [int(word) for word in line.split()]

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.stdout.close()
        self.process.wait()
        self.stderr.close()


class Driver:
    def __init__(self, arguments: argparse.Namespace, scratch: Path) -> None:
        self.arguments = arguments
        self.build = Path(arguments.build).resolve()
        self.scratch = scratch
        self.bench = self.compile()
        self.noise: List[float] = []
        self.patience = arguments.patience * 2

    def compile(self) -> Path:
        """The stopwatch, linked with the library under test. Beside the scratch files: the ordinary
        user must reach it."""
        program = self.scratch / "bench"
        subprocess.run(
            [
                "cc",
                "-std=gnu17",
                "-D_GNU_SOURCE",
                "-O2",
                "-Wall",
                "-Wextra",
                "-o",
                str(program),
                str(HERE / "bench.c"),
                f"-I{PROJECT / 'include'}",
                f"-L{self.build}",
                "-lrollbox",
                f"-Wl,-rpath,{self.build}",
                "-pthread",
            ],
            check=True,
        )
        return program

    def filter(self) -> Path:
        """What the default policy filters, as a file for bubblewrap."""
        program, path = self.scratch / "bench-filter", self.scratch / "filter"
        if not path.exists():
            sources = [HERE / "filter.c", PROJECT / "src" / "policy" / "filter.c", PROJECT / "src" / "base" / "buf.c"]
            subprocess.run(
                [
                    "cc",
                    "-std=gnu17",
                    "-D_GNU_SOURCE",
                    "-O2",
                    f"-I{PROJECT / 'src'}",
                    "-o",
                    str(program),
                    *map(str, sources),
                ],
                check=True,
            )
            path.write_bytes(subprocess.run([str(program)], capture_output=True, check=True).stdout)
        return path

    def look_around(self) -> None:
        """How busy the machine is without us: share of all CPUs over half a second. Looks again
        while it is busy, as long as the patience lasts."""

        def busy() -> List[int]:
            fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
            return [sum(fields) - fields[3] - fields[4], sum(fields)]
        before = busy()
        time.sleep(0.5)
        after = busy()
        share = (after[0] - before[0]) / max(1, after[1] - before[1])
        if share > QUIET and self.patience > 0:
            self.patience -= 1
            self.look_around()
        else:
            self.noise.append(share)

    # ---- contestants
    # ----------------------------------------------------------------------------------------------------

    def contestants(
        self, identity: Identity, argv: List[str], names: List[str], batches: Dict[str, int]
    ) -> List[Contestant]:
        made = []
        for name in names:
            words = self.words(identity, name, argv)
            if not words:
                continue
            made.append(
                Contestant(
                    name,
                    identity,
                    words,
                    batches.get(name, 20),
                    env={"ROLLBOX_LIBRARY": str(self.build / "librollbox.so")},
                )
            )
        return made

    def words(self, identity: Identity, name: str, argv: List[str]) -> Optional[List[str]]:
        spawn = [str(self.bench), "spawn"]
        venv = PROJECT / ".venv" / "bin" / "python"
        peer_venv = PROJECT / ".venv-bench" / "bin" / "python"
        directory = Path(tempfile.mkdtemp(prefix=f"{name}-".replace(" ", "-"), dir=identity.scratch))
        directory.chmod(0o755)
        if name == "bare":
            return spawn + argv
        if name == "rollbox":
            return [str(self.bench), "engine", "{}"] + argv
        if name == "rollbox code":
            return [str(self.bench), "code", "{}", "python3"] + argv[1:]
        if name == "rollbox CLI":
            return spawn + [str(self.build / "rollbox"), "run", "--"] + argv
        if name == "rollbox Python" and venv.exists():
            return [str(venv), str(HERE / "worker.py"), "rollbox"] + argv
        if name == "sandlock" and peer_venv.exists():
            return [str(peer_venv), str(HERE / "worker.py"), "sandlock"] + argv
        if name == "bwrap":
            words = peers.bwrap(argv)
            return words and spawn + words
        if name == "bwrap alike":
            words = peers.bwrap_alike(
                argv,
                subprocess.run(
                    [str(self.build / "rollbox"), "policy", "plan"],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout,
                directory,
            )
            return words and ["env", f"BENCH_STDIN={self.filter()}"] + spawn + words
        if name in ("crun", "runc"):
            words = (peers.crun if name == "crun" else peers.runc)(directory, argv, identity.uid, identity.uid)
            identity.own(directory)
            return words and self.without_unified(identity) + spawn + words
        return None

    def without_unified(self, identity: Identity) -> List[str]:
        """crun 1.8 refuses cgroups v1 beside a v2 mount that has controllers: there, its whole
        process tree lives in a mount namespace without that mount."""
        unified = Path("/sys/fs/cgroup/unified/cgroup.controllers")
        if os.geteuid() or not unified.exists() or not unified.read_text().strip():
            return []
        become = (
            ["setpriv", f"--reuid={identity.uid}", f"--regid={identity.uid}", "--clear-groups"]
            if identity.uid
            else []
        )
        identity_script = 'umount /sys/fs/cgroup/unified && exec "$@"'
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", identity_script, "sh"] + become

    # ---- measurements
    # ---------------------------------------------------------------------------------------------------

    def rounds(
        self,
        contestants: List[Contestant],
        rounds: int,
        turn: Callable[[Contestant], Optional[List[float]]],
    ) -> None:
        for number in range(-1, rounds):        # the first round warms up
            self.look_around()
            shift = number % len(contestants) if contestants else 0
            for contestant in contestants[shift:] + contestants[:shift]:
                if contestant.failure:
                    continue
                values = turn(contestant)
                if values and number >= 0:
                    contestant.samples.append(values)

    @staticmethod
    def finish(
        contestants: List[Contestant], summarise: Callable[[List[List[float]]], Dict[str, float]]
    ) -> Dict[str, Any]:
        results: Dict[str, Any] = {}
        bare = next((c for c in contestants if c.name == "bare" and c.samples), None)
        bwrap = next((c for c in contestants if c.name == "bwrap" and c.samples), None)
        alike = next((c for c in contestants if c.name == "bwrap alike" and c.samples), None)
        for contestant in contestants:
            if contestant.failure or not contestant.samples:
                results[contestant.name] = {"failed": contestant.failure or "no samples"}
                print(f"      {contestant.name}: {contestant.failure}", file=sys.stderr)
            else:
                row: Dict[str, Any] = summarise(contestant.samples)
                for other, key in ((bare, "of_bare"), (bwrap, "of_bwrap"), (alike, "of_alike")):
                    if other:
                        row[key] = statistics.median(
                            statistics.median(mine) / statistics.median(its)
                            for mine, its in zip(contestant.samples, other.samples)
                        )
                results[contestant.name] = row
            contestant.close()
        return results

    def latency(self, identity: Identity, argv: List[str], batches: Dict[str, int]) -> Dict[str, Any]:
        names = [
            "bare",
            "rollbox",
            *(["rollbox code"] if argv is PYTHON else []),
            "rollbox Python",
            "rollbox CLI",
            "bwrap",
            "bwrap alike",
            "crun",
            "runc",
            "sandlock",
        ]
        if self.arguments.only:
            names = [name for name in names if name in self.arguments.only]
        contestants = self.contestants(identity, argv, names, batches)
        self.rounds(contestants, self.arguments.rounds, lambda c: [ns / 1e3 for ns in c.order(f"latency {c.batch}")])
        return self.finish(contestants, summarise_times)

    def throughput(self, identity: Identity) -> Dict[str, Any]:
        contestants = self.contestants(identity, TRUE, ["bare", "rollbox", "bwrap", "bwrap alike"], {})

        def turn(contestant: Contestant) -> Optional[List[float]]:
            answer = contestant.order(f"throughput 2 {self.arguments.seconds * 1000}")
            return [answer[0] / (answer[1] / 1e9)] if answer else None
        self.rounds(contestants, max(3, self.arguments.rounds // 2), turn)
        return self.finish(
            contestants,
            lambda samples: {
                "per_second": statistics.median(values[0] for values in samples),
                "rounds": len(samples),
            },
        )

    def burst(self, identity: Identity) -> Dict[str, Any]:
        contestants = self.contestants(
            identity,
            TRUE,
            [
                "bare",
                "rollbox",
                "rollbox Python",
                "rollbox CLI",
                "bwrap",
                "crun",
                "runc",
                "sandlock",
            ],
            {},
        )
        self.rounds(
            contestants,
            max(3, self.arguments.rounds // 2),
            lambda c: [ns / 1e3 for ns in c.order("burst 100")],
        )
        return self.finish(contestants, summarise_times)

    def sessions(self, identity: Identity) -> Dict[str, Any]:
        self.look_around()
        program = (
            sessions.compile_program(self.build, self.scratch, PROJECT)
            if not (self.scratch / "bench-sessions").exists()
            else self.scratch / "bench-sessions"
        )
        return sessions.measure(identity, program, PROJECT, 40 * self.arguments.rounds, self.without_unified(identity))

    def neighbours(self, identity: Identity) -> Dict[str, Any]:
        self.look_around()
        storms = identity.scratch / "storms"
        subprocess.run(
            [
                "cc",
                "-std=gnu17",
                "-D_GNU_SOURCE",
                "-O2",
                "-Wall",
                "-Wextra",
                "-o",
                str(storms),
                str(HERE / "storms.c"),
            ],
            check=True,
        )
        rows, problem = self.measured(identity, "neighbours.py", storms)
        return {"spin": {"failed": problem}} if problem else rows

    def measured(self, identity: Identity, name: str, *words: Any) -> "tuple[Dict[str, Any], str]":
        """What a program of this directory prints as JSON, with the rounds as its last argument; or
        why it failed."""
        argv = [str(PROJECT / ".venv" / "bin" / "python"), str(HERE / name), *map(str, words)]
        with identity.popen(
            [*argv, str(self.arguments.rounds)],
            env={"ROLLBOX_LIBRARY": str(self.build / "librollbox.so")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            out, problem = process.communicate()
        if process.returncode != 0:
            return {}, problem.strip()[-300:] or f"status {process.returncode}"
        return dict(json.loads(out)), ""

    # ---- network
    # --------------------------------------------------------------------------------------------------------

    def network(self, identity: Identity) -> Dict[str, Any]:
        """Rows of all three tables of network.py, with the table's name before each."""
        self.look_around()
        tables, problem = self.measured(identity, "network.py", self.build)
        if problem:
            return {"https: direct": {"failed": problem}}
        return {f"{table}: {name}": row for table, rows in tables.items() for name, row in rows.items()}

    # ---- the HTTP server
    # --------------------------------------------------------------------------------------------

    def serving(self, identity: Identity) -> Dict[str, Any]:
        """Rows of all three tables of serving.py."""
        self.look_around()
        tables, problem = self.measured(identity, "serving.py", self.build, self.bench)
        if problem:
            return {"server": {"failed": problem}}
        return {name: row for rows in tables.values() for name, row in rows.items()}

    # ---- determinism
    # ----------------------------------------------------------------------------------------------------

    def determinism(self, identity: Identity, programs: List[str]) -> Dict[str, Any]:
        self.look_around()
        directory = Path(tempfile.mkdtemp(prefix="determinism-", dir=identity.scratch))
        clock = directory / "clock"
        subprocess.run(["cc", "-O2", "-o", str(clock), str(HERE / "clock.c")], check=True)
        jobs = [str(self.write_jobs(directory, programs))] if programs else []
        identity.own(directory)
        directory.chmod(0o755)
        words = [
            str(PROJECT / ".venv" / "bin" / "python"),
            str(HERE / "determinism.py"),
            str(self.build / "rollbox"),
            str(3 * self.arguments.rounds),
            str(120 * self.arguments.rounds),
            str(clock),
            *jobs,
        ]
        with identity.popen(
            words,
            env={"ROLLBOX_LIBRARY": str(self.build / "librollbox.so")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            out, problem = process.communicate()
        return json.loads(out) if process.returncode == 0 else {"determinism": {"failed": problem.strip()[-300:]}}

    # ---- HumanEval
    # ------------------------------------------------------------------------------------------------------

    @staticmethod
    def write_jobs(directory: Path, programs: List[str]) -> Path:
        jobs = directory / "jobs.jsonl"
        jobs.write_text(
            "".join(
                json.dumps({"id": str(number), "code": program, "language": "python"}) + "\n"
                for number, program in enumerate(programs)
            )
        )
        return jobs

    def humaneval(self, identity: Identity, programs: List[str]) -> Dict[str, Any]:
        directory = Path(tempfile.mkdtemp(prefix="humaneval-", dir=identity.scratch))
        jobs = self.write_jobs(directory, programs)
        for number, program in enumerate(programs):
            (directory / f"{number}.py").write_text(program)
        identity.own(directory)
        directory.chmod(0o755)
        venv = PROJECT / ".venv" / "bin" / "python"
        def bare() -> int:
            with identity.popen(
                ["/usr/bin/python3", "-c", BARE_SCRIPT, str(directory), str(len(programs))],
                stdin=subprocess.DEVNULL,
            ) as process:
                return process.wait()

        def xargs() -> int:
            names = "\n".join(str(directory / f"{number}.py") for number in range(len(programs)))
            with identity.popen(
                ["xargs", "-P", "2", "-n", "1", "/usr/bin/python3"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
            ) as process:
                process.communicate(names)
                return process.returncode

        def batch() -> int:
            out = directory / "results.jsonl"
            out.unlink(missing_ok=True)
            with identity.popen(
                [str(self.build / "rollbox"), "batch", str(jobs), "-o", str(out), "-j", "2"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as process:
                process.wait()
            rows = [json.loads(line) for line in open(out)]
            return len(programs) - sum(row["outcome"] == "exit" and row["exit_code"] == 0 for row in rows)

        def python() -> int:
            with identity.popen(
                [str(venv), "-c", RUN_MANY_SCRIPT, str(jobs)],
                env={"ROLLBOX_LIBRARY": str(self.build / "librollbox.so")},
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as process:
                return process.wait()
        ways = {"subprocess": bare, "xargs -P2": xargs, "rollbox batch -j2": batch, "rollbox run_many": python}
        times: Dict[str, List[float]] = {name: [] for name in ways}
        failures: Dict[str, int] = {}
        for number in range(-1, max(3, self.arguments.rounds // 2)):
            self.look_around()
            names = list(ways)
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                start = time.perf_counter()
                failures[name] = max(failures.get(name, 0), ways[name]())
                if number >= 0:
                    times[name].append(time.perf_counter() - start)
        results: Dict[str, Any] = {}
        # Against the faster of the two ways to do without a sandbox, whichever that is in a round.
        reference = [min(pair) for pair in zip(times["subprocess"], times["xargs -P2"])]
        for name in ways:
            results[name] = {
                "seconds": statistics.median(times[name]),
                "failed_programs": failures[name],
                "programs": len(programs),
                "of_bare": statistics.median(
                    mine / its for mine, its in zip(times[name], reference)
                ),
            }
        return results


def quantile(values: List[float], q: float) -> float:
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * q))]


def summarise_times(samples: List[List[float]]) -> Dict[str, float]:
    every = [value for values in samples for value in values]
    # The p99 of the typical round stands beside that of all: one bad moment of the machine spoils only the latter.
    return {
        "p50_us": statistics.median(every),
        "p99_us": quantile(every, 0.99),
        "p99_round_us": statistics.median(quantile(values, 0.99) for values in samples),
        "runs": len(every),
    }


def load_programs(path: Path) -> List[str]:
    programs = []
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
        for line in file:
            problem = json.loads(line)
            programs.append(
                f"{problem['prompt']}{problem['canonical_solution']}\n{problem['test']}\ncheck({problem['entry_point']})\n"
            )
    return programs


def machine() -> Dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")),
        platform.machine(),
    )
    memory = int(Path("/proc/meminfo").read_text().split()[1]) // 1024
    release = Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else ""
    name = next(
        (
            line.split("=", 1)[1].strip('"')
            for line in release.splitlines()
            if line.startswith("PRETTY_NAME=")
        ),
        "",
    )
    return {
        "cpu": model,
        "cpus": os.cpu_count(),
        "memory_mib": memory,
        "kernel": platform.release(),
        "system": name,
        "hypervisor": any("hypervisor" in line for line in cpuinfo),
        "lsm": Path("/sys/kernel/security/lsm").read_text().strip()
        if os.access("/sys/kernel/security/lsm", os.R_OK)
        else "",
    }


def commit() -> str:
    answer = subprocess.run(
        ["git", "-C", str(PROJECT), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
    )
    return answer.stdout.strip()


def versions(build: Path) -> Dict[str, str]:
    python = PROJECT / ".venv-bench" / "bin" / "python"
    sandlock = (
        subprocess.run(
            [str(python), "-c", "import sandlock; print(sandlock.__version__)"],
            capture_output=True,
            text=True,
        ).stdout.strip()
        if python.exists()
        else ""
    )
    return {
        "rollbox": f"{peers.version(str(build / 'rollbox'))} ({commit()})",
        "bwrap": peers.version("bwrap"),
        "crun": peers.version("crun"),
        "runc": peers.version(shutil.which("runc") or "/usr/sbin/runc"),
        "sandlock": sandlock,
        "python3": peers.version("/usr/bin/python3"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", default=str(PROJECT / "build"), help="where the programs under test are")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=2, help="of each measurement of throughput")
    parser.add_argument(
        "--patience",
        type=int,
        default=0,
        help="seconds to wait, in all, for a quiet machine between the rounds",
    )
    parser.add_argument("--uid", type=int, default=1000, help="the ordinary user, when run by root")
    parser.add_argument("--identity", choices=["root", "user", "both"], default="both")
    parser.add_argument(
        "--tests",
        default="true,python,throughput,burst,humaneval,determinism,sessions,neighbours,network,serving",
        help="which measurements, with commas between",
    )
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        help="contestants of the latency tests, with commas between",
    )
    parser.add_argument(
        "--humaneval",
        type=Path,
        default=PROJECT.parent / "shared" / "data" / "HumanEval.jsonl.gz",
        help="the problems; left out if there is no such file",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="results elsewhere than in bench/results/bench.json; docs/reference/benchmarks.md is left alone then",
    )
    arguments = parser.parse_args()
    tests = arguments.tests.split(",")
    with tempfile.TemporaryDirectory(prefix="rollbox-bench-") as name:
        scratch = Path(name)
        scratch.chmod(0o755)
        driver = Driver(arguments, scratch)
        uids = [0, arguments.uid] if os.geteuid() == 0 else [os.geteuid()]
        if arguments.identity != "both":
            uids = [uid for uid in uids if (uid == 0) == (arguments.identity == "root")]
        results: Dict[str, Any] = {
            "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": machine(),
            "versions": versions(driver.build),
            "rounds": arguments.rounds,
            "load_before": os.getloadavg(),
            "identities": {},
        }
        programs = (
            load_programs(arguments.humaneval)
            if {"humaneval", "determinism"} & set(tests) and arguments.humaneval.exists()
            else []
        )
        for uid in uids:
            identity = Identity(uid, scratch)
            row: Dict[str, Any] = {}
            measurements: Dict[str, Callable[[], Dict[str, Any]]] = {
                "true": lambda: driver.latency(
                    identity, TRUE, {"bare": 200, "rollbox": 200, "rollbox Python": 100, "runc": 6}
                ),
                "python": lambda: driver.latency(
                    identity,
                    PYTHON,
                    {
                        "bare": 20,
                        "rollbox": 20,
                        "rollbox code": 20,
                        "rollbox Python": 20,
                        "rollbox CLI": 12,
                        "bwrap": 12,
                        "bwrap alike": 12,
                        "crun": 12,
                        "runc": 6,
                        "sandlock": 12,
                    },
                ),
                "throughput": lambda: driver.throughput(identity),
                "burst": lambda: driver.burst(identity),
                "humaneval": lambda: driver.humaneval(identity, programs),
                "determinism": lambda: driver.determinism(identity, programs),
                "sessions": lambda: driver.sessions(identity),
                "neighbours": lambda: driver.neighbours(identity),
                "network": lambda: driver.network(identity),
                "serving": lambda: driver.serving(identity),
            }
            for test, measure in measurements.items():
                if test not in tests or (test == "humaneval" and not programs):
                    continue
                start = time.monotonic()
                row[test] = measure()
                print(f"{identity.name}: {test} ({time.monotonic() - start:.0f} s)", file=sys.stderr)
                report.print_test(test, row[test])
            results["identities"][identity.name] = row
        results["load_after"] = os.getloadavg()
        results["others_busy"] = (
            {"median": statistics.median(driver.noise), "worst": max(driver.noise)}
            if driver.noise
            else {}
        )
        results["targets"] = report.targets(results)
        report.print_targets(results)
    target = arguments.output or HERE / "results" / "bench.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(results, indent=1) + "\n")
    if not arguments.output:
        report.write(PROJECT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
