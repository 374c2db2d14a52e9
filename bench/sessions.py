# SPDX-License-Identifier: Apache-2.0
"""Sessions, in `make bench`: bench/sessions.c, and the same without rollbox: copying the files and
starting bubblewrap, or mounting an overlay and starting crun."""

import json
import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import peers

TRUE = ["/bin/true"]
FILES = 1000
COPIES = 10
CHAIN = 100

# name of the row, unit of its limit, limit, of what
TARGETS = [
    (
        "create, one ready",
        "over_bare_us",
        1000,
        "create with one ready: p50 over that of bare fork and exec, us",
    ),
    (
        "exec /bin/true in a session",
        "of_bare",
        1.6,
        "exec of /bin/true in a session: p50 as a multiple of bare",
    ),
    ("snapshot, nothing running", "p50_us", 1000, "snapshot with nothing running: p50, us"),
    (
        "snapshot of 1,000 changed files, beside 3 processes",
        "p50_us",
        10000,
        "snapshot of 1,000 changed files beside running processes: p50, us",
    ),
    ("fork of 100 file states", "p50_us", 100000, "fork of 100 file states: p50, us"),
    ("reset, 1,000 copied-up files", "p50_us", 2000, "reset with 1,000 dirty files: p50, us"),
    (
        f"open and stat, chain of {CHAIN}",
        "of_depth_1",
        1.1,
        f"open and stat in a chain of {CHAIN}: as a multiple of depth 1",
    ),
    ("read_file 4 KiB", "p50_us", 300, "read_file of 4 KiB: p50, us"),
    ("write_file 4 KiB", "p50_us", 300, "write_file of 4 KiB: p50, us"),
    (
        "live: longest pause in the captured process",
        "p50_us",
        1500,
        "live snapshot of a python of 16 MB: pause of it, p50, us",
    ),
    (
        "live: fork of now, to the copy's answer",
        "p50_us",
        3000,
        "live fork of a python of 16 MB, from its third on, to the copy's answer: p50, us",
    ),
    (
        "live: reset to a snapshot, with files",
        "p50_us",
        1500,
        "reset of a python of 16 MB, with files: p50, us",
    ),
    (
        "live: reset to a snapshot, with files",
        "p99_us",
        5000,
        "reset of a python of 16 MB, with files: p99, us",
    ),
    (
        "live: 100 forks of a snapshot at once, to all answers",
        "p50_us",
        50000,
        "100 forks of a python of 16 MB to all answers: us",
    ),
    (
        "live: 1,000 clones of a warm python at once, to the last one at work",
        "p50_us",
        500000,
        "1,000 clones of a python of 16 MB, to the last one at work: us",
    ),
    (
        "live: 1,000 forks alive, memory of each",
        "kib_each",
        1024,
        "1,000 forks of a python of 16 MB, alive: memory of each, the kernel's included, KiB",
    ),
    (
        "live: bash and its children with pipes, fork of a snapshot, to its answer",
        "p50_us",
        5000,
        "fork of bash and its children with pipes: p50, us",
    ),
    (
        "live: python of 300 MB, fork of a snapshot, to its answer",
        "p50_us",
        3000,
        "fork of a python of 300 MB: p50, us",
    ),
]


def compile_program(build: Path, scratch: Path, project: Path) -> Path:
    program = scratch / "bench-sessions"
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
            str(Path(__file__).with_suffix(".c")),
            f"-I{project / 'include'}",
            f"-L{build}",
            "-lrollbox",
            f"-Wl,-rpath,{build}",
        ],
        check=True,
    )
    return program


def _times(repeats: int, work: Callable[[], None], prepare: Optional[Callable[[], None]] = None) -> Dict[str, Any]:
    values: List[float] = []
    for _ in range(repeats):
        if prepare:
            prepare()
        start = time.perf_counter()
        work()
        values.append((time.perf_counter() - start) * 1e6)
    return {"p50_us": statistics.median(values), "p99_us": max(values), "runs": repeats}


def _peers(identity: Any, directory: Path, tree: Path, prefix: List[str]) -> Dict[str, Any]:
    """By commands, as a harness would; the ordinary user's need user namespaces for an overlay, so
    crun's rows are root's."""
    rows: Dict[str, Any] = {}
    copy, copies = directory / "copy", directory / "copies"

    def call(*argv: str) -> None:
        with identity.popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            becomes=argv[0] == "unshare",
        ) as process:
            problem = process.communicate()[1]
            if process.returncode:
                raise RuntimeError(f"{' '.join(argv[:6])}: {problem.strip()[-300:]}")

    def shell(script: str) -> None:
        call("/bin/sh", "-c", script)

    def dirty() -> None:
        shell(f"cd '{copy}' && for f in *; do echo x >> $f; done")

    words = peers.bwrap(TRUE)
    shell(f"cp -r '{tree}' '{copy}'")
    if words:
        at = words.index("--proc")
        bound = words[:at] + ["--bind", str(copy), "/work"] + words[at:]
        # A harness keeps no process in bubblewrap: each command is a start.
        rows["bwrap: one command on a writable copy"] = _times(20, lambda: call(*bound))
        rows["cp -r: fresh copy over 1,000 dirty files"] = _times(
            5, lambda: shell(f"rm -rf '{copy}' && cp -r '{tree}' '{copy}'"), dirty
        )

        def restart() -> None:
            shell(f"rm -rf '{copy}' && cp -r '{tree}' '{copy}'")
            call(*bound)
        rows["bwrap + cp -r: reset, 1,000 dirty files, and a command in it"] = _times(5, restart, dirty)
    rows[f"cp -r: {COPIES} copies of 1,000 files"] = _times(
        1,
        lambda: shell(
            f"mkdir '{copies}' && for i in $(seq {COPIES}); do cp -r '{tree}' '{copies}'/$i; done"
        ),
        lambda: shell(f"rm -rf '{copies}'"),
    )
    shell(f"rm -rf '{copies}'")
    if identity.uid or not shutil.which("crun"):
        return rows
    bundle = peers.bundle(directory / "bundle", ["/bin/sleep", "1000"], 0, 0)
    config = json.loads((bundle / "config.json").read_text())
    upper, merged = directory / "upper", directory / "merged"
    config["mounts"].append({"destination": "/work", "type": "bind", "source": str(merged), "options": ["bind", "rw"]})
    (bundle / "config.json").write_text(json.dumps(config))
    (bundle / "rootfs" / "work").mkdir(exist_ok=True)
    merged.mkdir()
    crun = f"crun --root '{directory / 'state'}' --cgroup-manager=disabled"
    fresh = (f"umount -l '{merged}' 2>/dev/null; rm -rf '{upper}' && mkdir -p '{upper}/u' '{upper}/w' && "
             f"mount -t overlay -o lowerdir='{tree}',upperdir='{upper}/u',workdir='{upper}/w' overlay '{merged}'")
    start = f"{crun} run -d --bundle '{bundle}' bench >/dev/null 2>&1 </dev/null"
    stop = f"{crun} delete -f bench"
    script = directory / "crun.py"
    # All in one mount namespace, which takes its overlays along when it ends.
    script.write_text(f"""
import json, statistics, subprocess, time
def sh(text): subprocess.run(["/bin/sh", "-c", text], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
def times(repeats, work, prepare=None):
    values = []
    for _ in range(repeats):
        if prepare: prepare()
        begin = time.perf_counter(); work(); values.append((time.perf_counter() - begin) * 1e6)
    return {{"p50_us": statistics.median(values), "p99_us": max(values), "runs": repeats}}
rows = {{}}
sh({fresh!r}); sh({start!r})
rows["crun exec /bin/true in a running container"] = times(20, lambda: sh("exec {crun} exec bench /bin/true"))
def dirty(): sh("cd '{merged}' && for f in *; do echo x >> $f; done")
def reset(): sh({stop!r} + "; " + {fresh!r} + " && " + {start!r})
rows["crun + overlay: reset, 1,000 dirty files"] = times(5, reset, dirty)
sh({stop!r})
print(json.dumps(rows))
""")
    try:
        done = subprocess.run(
            (prefix or ["unshare", "--mount", "--propagation", "private"])
            + ["python3", str(script)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        rows.update(json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.SubprocessError, ValueError, IndexError) as problem:
        rows["crun + overlay"] = {"failed": (getattr(problem, "stderr", "") or str(problem)).strip()[-300:]}
    return rows


def _live(identity: Any, project: Path, repeats: int) -> Dict[str, Any]:
    """What bench/live.py says, of rollbox, of sandlock's fork and of CRIU, or why it says nothing of one."""
    rows: Dict[str, Any] = {}
    for name, venv in (("rollbox", ".venv"), ("sandlock", ".venv-bench"), ("criu", ".venv")):
        python = project / venv / "bin" / "python"
        if not python.exists():
            continue
        with identity.popen(
            [str(python), str(project / "bench" / "live.py"), name, str(repeats)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            out, problem = process.communicate()
        rows.update(
            json.loads(out)
            if process.returncode == 0
            else {f"live: {name}": {"failed": problem.strip()[-300:]}}
        )
    return rows


def measure(identity: Any, program: Path, project: Path, repeats: int, prefix: List[str]) -> Dict[str, Any]:
    directory = identity.scratch / "sessions"
    tree = directory / "tree"
    tree.mkdir(parents=True)
    for number in range(FILES):
        (tree / f"f{number}").write_text(f"{number} " + "x" * 1000 + "\n")
    identity.own(directory)
    with identity.popen(
        [str(program), str(repeats), str(tree), str(CHAIN)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, problem = process.communicate()
        if process.returncode:
            return {"sessions": {"failed": problem.strip()[-500:]}}
    rows: Dict[str, Any] = json.loads(out)
    rows.update(_live(identity, project, max(repeats // 8, 5)))
    try:
        rows.update(_peers(identity, directory, tree, prefix))
    except (OSError, RuntimeError) as failure:
        rows["peers"] = {"failed": str(failure)}
    os.sync()
    return rows
