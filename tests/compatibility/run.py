#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make integrations`: the test suites of other people's packages, in each way in which a sandbox can run them.

    run.py [--update] [--only NAME...]

A suite runs with pytest or unittest, six times:

    bare      on the host
    sandbox   by `run`
    fork      in a sandbox whose interpreter, with pytest imported, waits for a line; its live fork gets the line
    woken     the same interpreter, after its sandbox was put to sleep on the disk and has woken
    virtual   under virtual time with a seed, twice

The outcome of a run is its counts of tests (passed, failed, skipped, ...), without times. The packages are wheels from PyPI that
hold their tests; they are installed once, in build/compatibility. CPython's suites come with Debian's libpython3.11-testsuite.
The exit status is 1 if a run has other counts than the bare one, unless DIFFERENCES explains it. --update writes the table into
docs/compatibility.md; results.json in build/compatibility has the counts of each run.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from rollbox import Policy, RollboxError, Sandbox

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / "build" / "compatibility"
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- packages: begin -->", "<!-- packages: end -->"
TIMEOUT_S = 150
WAYS = ["bare", "sandbox", "fork", "woken", "virtual", "virtual again"]
PYTEST = ["pytest", "-q", "-p", "no:cacheprovider", "--pyargs"]
# Name in the table, what pip installs, the module that runs the suite with its arguments.
SUITES = [
    ("toolz", "toolz==0.12.1", [*PYTEST, "toolz"]),
    ("simplejson", "simplejson==3.19.2", [*PYTEST, "simplejson"]),
    ("bitarray", "bitarray==2.9.2", ["unittest", "bitarray.test_util"]),
    ("regex", "regex==2024.5.15", ["unittest", "regex.test_regex"]),
    ("networkx (trees)", "networkx==3.3", [*PYTEST, "networkx.algorithms.tree"]),
    ("sympy (sets)", "sympy==1.12", [*PYTEST, "sympy.sets"]),
    ("CPython test_ftplib", None, ["unittest", "test.test_ftplib"]),
    ("CPython test_imaplib", None, ["unittest", "test.test_imaplib"]),
    ("CPython test_queue", None, ["unittest", "test.test_queue"]),
]
# (suite, way): the reason why its counts differ from the bare ones.
DIFFERENCES = {}
WAITING = """
import json, runpy, sys
import pytest, unittest
print("ready", flush=True)
sys.argv = json.loads(sys.stdin.readline())
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}


def say(text):
    print(f"compatibility: {text}", file=sys.stderr, flush=True)


def counts(output):
    """The counts that pytest or unittest tells at its end, in one order; None if it told none."""
    tail = "\n".join(output.splitlines()[-8:])
    ran = re.search(r"^Ran (\d+) tests?", tail, re.M)
    if ran:
        others = {name: int(number) for name, number in re.findall(r"([a-z ]+)=(\d+)", tail)}
        found = {"ran": int(ran.group(1)), **{name.strip(): number for name, number in others.items()}}
    else:
        told = re.findall(r"(\d+) (passed|failed|skipped|xfailed|xpassed|deselected|error)s?\b", tail)
        found = {name: int(number) for number, name in told}
    return ", ".join(f"{found[name]} {name}" for name in sorted(found)) or None


def waiting(policy, then, argv):
    """Runs argv in an interpreter that has been started, after `then` has made another sandbox of it, or the same one anew."""
    with Sandbox(policy) as box:
        process = box.spawn(["python3", "-c", WAITING])
        if process.stdout.readline() != b"ready\n":
            return process.stderr.read().decode(errors="replace")
        if then == "fork":
            [kid] = box.fork(1)
        else:
            box.hibernate()
            box.wake()
            kid = box
        with kid:
            copy = kid.process(process.id)
            copy.stdin.write(json.dumps(argv).encode() + b"\n")
            copy.stdin.flush()
            result = copy.wait(TIMEOUT_S)
            return (result.stdout + result.stderr).decode(errors="replace")


def run(way, python, argv):
    """The output of a suite."""
    policy = Policy(python=python, max_memory="2G", max_disk="1G", max_processes=256, max_output="16M", net="loopback",
                    timeout=TIMEOUT_S, env=ENVIRONMENT)
    if way == "bare":
        ended = subprocess.run([python, "-m", *argv], cwd=CACHE, env={**os.environ, **ENVIRONMENT}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S)
        return ended.stdout.decode(errors="replace")
    if way in ("fork", "woken"):
        return waiting(policy, way, argv)
    if way.startswith("virtual"):
        policy = policy.replace(random_seed=7, time_start="2025-01-01T00:00:00", time_mode="virtual")
    result = Sandbox(policy).run(["python3", "-m", *argv])
    if result.outcome != "exit":
        return result.outcome
    return (result.stdout + result.stderr).decode(errors="replace")


def outcome(way, python, argv):
    """The counts of one run, or in a few words why there are none."""
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        output = run(way, python, argv)
    except (subprocess.TimeoutExpired, TimeoutError):
        return "timeout"
    except RollboxError as error:
        return f"{type(error).__name__}: {error}"[:200]
    return counts(output) or "no counts: " + " ".join(output.split())[-120:]


def install():
    packages = ["pytest==8.2.0", "hypothesis", *(package for _, package, _ in SUITES if package)]
    subprocess.run([ROOT / "tools" / "setup", "venv", CACHE / "venv", *packages], check=True)
    return str(CACHE / "venv" / "bin" / "python")


def table(rows):
    lines = ["| suite | bare | sandbox | live fork | woken | virtual time | virtual time again |", "|---|---|---|---|---|---|---|"]
    for name, found in rows.items():
        cells = [found["bare"]] + ["same" if found[way] == found["bare"] else found[way] for way in WAYS[1:]]
        lines.append(f"| {name} | " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--only", nargs="+", default=[name for name, _, _ in SUITES])
    arguments = parser.parse_args()
    python = install()
    rows, unexplained = {}, 0
    for name, package, argv in SUITES:
        if name not in arguments.only:
            continue
        if not package and not Path("/usr/lib/python3.11/test/test_ftplib.py").exists():
            say(f"{name}: left out, libpython3.11-testsuite is not installed")
            continue
        rows[name] = {}
        for way in WAYS:
            begun = time.monotonic()
            rows[name][way] = outcome(way, python, argv)
            differs = rows[name][way] != rows[name]["bare"] or rows[name][way].startswith(("no counts", "timeout"))
            unexplained += differs and (name, way) not in DIFFERENCES
            say(f"{name}, {way}: {rows[name][way]} ({time.monotonic() - begun:.1f} s){' DIFFERS' if differs else ''}")
    (CACHE / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
    if arguments.update:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{rest.split(END)[1]}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
