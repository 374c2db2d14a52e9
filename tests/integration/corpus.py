# SPDX-License-Identifier: Apache-2.0
"""Programs for the tests of determinism, which run each many times in a batch, some of them side by side."""

import calendar
import functools
import os
import shutil
import subprocess

from harness import GUESTS, guest, place, repeat_count

START = "2025-01-01T00:00:00"
START_S = calendar.timegm((2025, 1, 1, 0, 0, 0))
SOAK = bool(os.environ.get("ROLLBOX_SOAK"))
LIMIT_S = 3600 if SOAK else 60     # of a batch


def runs(whole, again):
    """How often a program of a corpus runs: as often as the documentation says in make soak, as
    repeat_count() says else."""
    return 50 if SOAK else repeat_count(whole, again)


TIMES = runs(6, 2)


def in_languages(directory):
    """{name: beginning of argv} of programs that print times and random values, in languages with
    large, slow compilers. Those that this machine has, in make soak."""
    found = {}
    if SOAK and shutil.which("go"):
        subprocess.run(
            ["go", "build", "-o", directory / "clocks-go", GUESTS / "clocks.go"],
            env={**os.environ, "GOCACHE": str(place() / "go"), "GOFLAGS": "", "CGO_ENABLED": "0"},
            check=True,
        )
        found["go"] = [directory / "clocks-go"]
    if SOAK and shutil.which("javac"):
        subprocess.run(["javac", "-d", directory, GUESTS / "Clocks.java"], check=True)
        found["java"] = ["java", "-cp", directory, "Clocks"]
    return found


@functools.lru_cache(maxsize=None)
def guest_in_ways(name):
    """A guest compiled in three ways, by their names; those that this machine can make. With them,
    what in_languages has."""
    static = guest(name)
    found = {"static": static, "dynamic": guest(name, "gcc", "-std=gnu17", "-O1", "-pthread", way="dynamic")}
    if shutil.which("musl-gcc"):
        found["musl"] = guest(
            name,
            "musl-gcc",
            "-std=gnu17",
            "-O1",
            "-static",
            "-pthread",
            "-idirafter",
            "/usr/include",
            "-idirafter",
            "/usr/include/x86_64-linux-gnu",
            way="musl",
        )
    return {**found, **in_languages(static.parent)}


def run_corpus(caller, corpus, programs, times, *flags):
    """What each program of a corpus (argv by name; the first word may be a way or a language in
    which a guest is compiled) prints in each of its runs. Programs that this machine has not are
    left out."""
    jobs = []
    for name, argv in corpus.items():
        if argv[0] in ("static", "dynamic", "musl", "go", "java"):
            if argv[0] not in programs:
                continue
            first = programs[argv[0]]
            argv = [*(map(str, first) if isinstance(first, list) else [str(first)]), *argv[1:]]
        if not shutil.which(argv[0]):
            continue
        jobs += [{"id": f"{name}/{i}", "argv": argv} for i in range(times)]
    jobs.sort(key=lambda job: job["id"][::-1])
    rows = caller.batch(jobs, *flags, "--readable", place() / "guests", timeout=LIMIT_S)
    texts = {}
    for job in jobs:
        row = rows[job["id"]]
        assert row["outcome"] == "exit" and row["exit_code"] == 0, row
        texts.setdefault(job["id"].split("/")[0], []).append(row["stdout"])
    return texts

VIRTUAL = ("--time-start", START, "--time-mode", "virtual")

PY = ["/usr/bin/python3", "-I", "-c"]

OUTSIDE = {
    "read": ["bash", "-c", "sleep 1000 & echo ready; read x; date +%s"],
    "poll": [
        *PY,
        "import select, time; print('ready', flush=True); p = select.poll(); p.register(0, select.POLLIN); p.poll(1000000); print(int(time.time()))",
    ],
    "select": [
        *PY,
        "import select, time; print('ready', flush=True); select.select([0], [], [], 1000); print(int(time.time()))",
    ],
    "epoll": [
        *PY,
        "import select, time; print('ready', flush=True); p = select.epoll(); p.register(0, select.EPOLLIN); p.poll(1000); print(int(time.time()))",
    ],
}
