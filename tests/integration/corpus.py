# SPDX-License-Identifier: Apache-2.0
"""What the tests of determinism share: programs that are run many times over by a batch, some of them side by side."""

import calendar
import shutil
import subprocess

from harness import GUESTS, guest, place, rounds

START = "2025-01-01T00:00:00"
START_S = calendar.timegm((2025, 1, 1, 0, 0, 0))
TIMES = rounds(10, 4)


def guest_in_ways(name):
    """A guest compiled in three ways, by their names; those that this machine can make."""
    static = guest(name)
    dynamic = static.parent / f"{name}-dynamic"
    subprocess.run(["gcc", "-std=gnu17", "-O1", "-pthread", "-o", dynamic, GUESTS / f"{name}.c"], check=True)
    found = {"static": static, "dynamic": dynamic}
    if shutil.which("musl-gcc"):
        found["musl"] = static.parent / f"{name}-musl"
        subprocess.run(["musl-gcc", "-std=gnu17", "-O1", "-static", "-pthread", "-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu", "-o", found["musl"], GUESTS / f"{name}.c"], check=True)
    for program in found.values():
        program.chmod(0o755)
    return found


def run_corpus(caller, corpus, programs, times, *flags):
    """What each program of a corpus (argv by name; the first word may be a way in which a guest is compiled) prints in each of its runs. Programs that this machine has not are left out."""
    jobs = []
    for name, argv in corpus.items():
        if argv[0] in ("static", "dynamic", "musl"):
            if argv[0] not in programs:
                continue
            argv = [str(programs[argv[0]]), *argv[1:]]
        if not shutil.which(argv[0]):
            continue
        jobs += [{"id": f"{name}/{i}", "argv": argv} for i in range(times)]
    jobs.sort(key=lambda job: job["id"][::-1])
    rows = caller.batch(jobs, *flags, "--readable", place() / "guests")
    texts = {}
    for job in jobs:
        row = rows[job["id"]]
        assert row["outcome"] == "exit" and row["exit_code"] == 0, row
        texts.setdefault(job["id"].split("/")[0], []).append(row["stdout"])
    return texts
