#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make integrations`: the test suites of other people's packages, in each way in which a sandbox can run them.

    run.py [--update] [--only NAME...]

A suite runs in six ways:

    bare      on the host
    sandbox   by `run`
    fork      a process of the suite has started in a sandbox and waits for a line; a fork of it gets the line
    woken     the same process, after its sandbox was hibernated and woken
    virtual   under virtual time with a seed, twice

Root runs all of them a second time as an ordinary user (ROLLBOX_TEST_UID, 1000). The outcome of a run is its counts of
tests (passed, failed, skipped, ...), without times. Each run has TIMEOUT_S seconds.

The packages come from PyPI and npm, in versions that hold their tests, and are installed once, in build/compatibility.
CPython's suites and the Rust crate are Debian packages (`tools/setup compatibility`). A suite that lacks its package or
program is left out, with a message.

The exit status is 1 if a run has other counts than the bare one, unless DIFFERENCES explains it. --update writes the
table into docs/reference/compatibility.md; results.json in build/compatibility has the counts of each suite's last run.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, Sequence

from rollbox import Policy, RollboxError, Sandbox

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / "build" / "compatibility"
PYTHON = str(CACHE / "venv" / "bin" / "python")
MODULES = CACHE / "npm" / "node_modules"
BEGIN, END = "<!-- packages: begin -->", "<!-- packages: end -->"
TIMEOUT_S = 150
WAYS = ["bare", "sandbox", "fork", "woken", "virtual", "virtual again"]
ORDINARY_UID = int(os.environ.get("ROLLBOX_TEST_UID", "1000"))

# An interpreter that has imported its first argument's modules, waits for a line, and runs the module of the second.
WAITING = """
import importlib, runpy, sys
for name in sys.argv[1].split(","):
    importlib.import_module(name)
print("ready", flush=True)
sys.stdin.readline()
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
# The crate is copied, as a build writes into its directory. Debian keeps crates as a directory registry.
CARGO = """set -e
work=$(mktemp -d)
cp -r /usr/share/cargo/registry/semver-* "$work/crate"
cd "$work/crate"
export CARGO_HOME="$work/home" PATH=/usr/bin:/bin
mkdir "$CARGO_HOME"
printf '[source.crates-io]\\nreplace-with = "d"\\n[source.d]\\ndirectory = "/usr/share/cargo/registry"\\n' \\
    >"$CARGO_HOME/config.toml"
status=0
cargo test --offline 2>&1 || status=$?
rm -rf "$work"
exit $status
"""
ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONPATH": str(HERE),
    "NODE_PATH": str(MODULES),
    "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1",
}


class Suite(NamedTuple):
    name: str
    argv: Sequence[str]
    # A process that prints "ready", waits for a line, and then runs the suite.
    waiting: Sequence[str]
    pip: Sequence[str] = ()
    # A file that the suite needs, besides what is installed from PyPI.
    needs: str = ""


def python_suite(name, pip, argv, imports="pytest,unittest", needs=""):
    return Suite(name, ["python3", "-m", *argv], ["python3", "-c", WAITING, imports, *argv], pip, needs)


def pytest_suite(name, pip, module):
    return python_suite(name, [pip], ["pytest", "-q", "-p", "no:cacheprovider", "--pyargs", module])


def cpython_suite(module):
    needs = f"/usr/lib/python3.11/test/{module}.py"
    return python_suite(f"CPython {module}", [], ["unittest", f"test.{module}"], needs=needs)


def npm_suite(package):
    script = ["node", str(HERE / "npm_suite.js"), package]
    return Suite(f"{package} (npm)", script, [*script, "wait"], needs=str(MODULES / package / "test"))


SUITES = [
    pytest_suite("toolz", "toolz==0.12.1", "toolz"),
    pytest_suite("simplejson", "simplejson==3.19.2", "simplejson"),
    python_suite("bitarray", ["bitarray==2.9.2"], ["unittest", "bitarray.test_util"]),
    python_suite("regex", ["regex==2024.5.15"], ["unittest", "regex.test_regex"]),
    pytest_suite("networkx (trees)", "networkx==3.3", "networkx.algorithms.tree"),
    pytest_suite("sympy (sets)", "sympy==1.12", "sympy.sets"),
    cpython_suite("test_ftplib"),
    cpython_suite("test_imaplib"),
    cpython_suite("test_queue"),
    npm_suite("minimist"),
    npm_suite("qs"),
    Suite("semver (cargo)", ["bash", "-c", CARGO], ["bash", "-c", "echo ready; read line\n" + CARGO],
          needs="/usr/share/cargo/registry/semver-1.0.14"),
    # Own suites of programs that have none to run here. Importing them opens the database, or starts the runtime.
    python_suite("DuckDB", ["duckdb==1.4.2"], ["unittest", "duckdb_suite"], imports="unittest,duckdb_suite"),
    python_suite(".NET Core 3.1", ["dotnetcore2==3.1.23", "pythonnet==3.0.5"], ["unittest", "dotnet_suite"],
                 imports="unittest,dotnet_suite"),
]
# The packages whose tests run, and what these tests need.
NPM = ["minimist@1.2.8", "qs@6.11.2", "tape@5.7.5", "es-value-fixtures@1.7.1", "for-each@0.3.3", "iconv-lite@0.5.1",
       "has-override-mistake@1.0.1", "has-property-descriptors@1.0.2", "has-symbols@1.1.0", "mock-property@1.1.2",
       "object-inspect@1.14.0", "qs-iconv@1.0.4", "safer-buffer@2.1.2"]
# (suite, way): the reason why its counts differ from the bare ones.
DIFFERENCES = {}


def say(text):
    print(f"compatibility: {text}", file=sys.stderr, flush=True)


def counts(output):
    """The counts that a test runner prints, in one order; None if it printed none."""
    tail = "\n".join(output.splitlines()[-8:])
    ran = re.search(r"^Ran (\d+) tests?", tail, re.M)
    found = {}
    if ran:                                                         # unittest
        found["ran"] = int(ran.group(1))
        found.update((name.strip(), int(number)) for name, number in re.findall(r"([a-z ]+)=(\d+)", tail))
    elif "\ntest result: " in output:                               # cargo: a line for each test program
        for line in re.findall(r"^test result: .*", output, re.M):
            for number, name in re.findall(r"(\d+) (passed|failed|ignored)", line):
                found[name] = found.get(name, 0) + int(number)
    elif "\n# tests " in output:                                    # TAP
        found.update((name, int(number)) for name, number in re.findall(r"^# (pass|fail) +(\d+)", output, re.M))
    else:
        told = re.findall(r"(\d+) (passed|failed|skipped|xfailed|xpassed|deselected|error)s?\b", tail)
        found.update((name, int(number)) for number, name in told)
    return ", ".join(f"{found[name]} {name}" for name in sorted(found) if found[name]) or None


def text_of(result):
    output = (result.stdout + result.stderr).decode(errors="replace")
    return output if result.outcome == "exit" else f"{output}\n{result.outcome}"


def run_waiting(policy, way, argv):
    """The output of a suite whose process has started before its sandbox was forked, or was hibernated and woken."""
    with Sandbox(policy) as box:
        process = box.spawn(argv)
        if process.stdout.readline() != b"ready\n":
            return process.stderr.read().decode(errors="replace")
        if way == "fork":
            [kid] = box.fork(1)
        else:
            box.hibernate()
            box.wake()
            kid = box
        with kid:
            copy = kid.process(process.id)
            copy.stdin.write(b"go\n")
            copy.stdin.flush()
            return text_of(copy.wait(TIMEOUT_S))


def run(way, suite):
    """The output of a suite."""
    policy = Policy(python=PYTHON, fs_readable_extra=[HERE, *([MODULES] if MODULES.exists() else [])], max_memory="2G",
                    max_disk="1G", max_processes=256, max_output="16M", net="loopback", timeout=TIMEOUT_S,
                    env=ENVIRONMENT)
    if way == "bare":
        path = f"{Path(PYTHON).parent}:{os.environ['PATH']}"
        with tempfile.TemporaryDirectory() as home:
            ended = subprocess.run(suite.argv, cwd=home, env={**os.environ, **ENVIRONMENT, "PATH": path, "HOME": home},
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   timeout=TIMEOUT_S)
        return ended.stdout.decode(errors="replace")
    if way in ("fork", "woken"):
        return run_waiting(policy, way, suite.waiting)
    if way.startswith("virtual"):
        policy = policy.replace(random_seed=7, time_start="2025-01-01T00:00:00", time_mode="virtual")
    return text_of(Sandbox(policy).run(suite.argv))


def outcome(way, suite):
    """The counts of one run, or in a few words why there are none."""
    try:
        output = run(way, suite)
    except (subprocess.TimeoutExpired, TimeoutError):
        return "timeout"
    except RollboxError as error:
        return f"{type(error).__name__}: {error}"[:200]
    found = counts(output)
    if not found or re.search(r"\b(fail|error)", found):
        say(f"{suite.name}, {way}, the end of the output:\n{output[-1500:]}")
    return found or "no counts: " + " ".join(output.split())[-120:]


def install(suites):
    CACHE.mkdir(parents=True, exist_ok=True)
    pip = ["pytest==8.2.0", "hypothesis", *(package for suite in SUITES for package in suite.pip)]
    subprocess.run([ROOT / "tools" / "setup", "venv", CACHE / "venv", *pip], check=True)
    stamp = CACHE / "npm" / ".packages"
    if any("(npm)" in suite.name for suite in suites) and shutil.which("npm") and \
            not (stamp.exists() and stamp.read_text() == " ".join(NPM)):
        shutil.rmtree(CACHE / "npm", ignore_errors=True)
        (CACHE / "npm").mkdir()
        command = [
            "npm",
            "install",
            "--silent",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--prefix",
            CACHE / "npm",
        ]
        subprocess.run([*command, *NPM], check=True, timeout=300)
        stamp.write_text(" ".join(NPM))


def measure(suites):
    """{suite: {way: outcome}} for the calling user."""
    rows = {}
    user = "root" if os.geteuid() == 0 else "user"
    for suite in suites:
        if suite.needs and not Path(suite.needs).exists() or not shutil.which(suite.argv[0]):
            say(f"{suite.name}: left out, {suite.needs} or {suite.argv[0]} is not installed")
            continue
        rows[suite.name] = {}
        for way in WAYS:
            begun = time.monotonic()
            rows[suite.name][way] = outcome(way, suite)
            differs = differing(rows[suite.name], way)
            taken = time.monotonic() - begun
            say(f"{user}, {suite.name}, {way}: {rows[suite.name][way]} ({taken:.1f} s){' DIFFERS' * differs}")
    return rows


def measure_as_user(names):
    """The same by an ordinary user, in a process of its own."""
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, ORDINARY_UID, ORDINARY_UID)
        command = [sys.executable, "-B", __file__, "--rows", f"{home}/rows.json", "--only", *names]
        environment = {**os.environ, "HOME": home, "TMPDIR": home}
        environment.pop("XDG_RUNTIME_DIR", None)
        subprocess.run(command, env=environment, user=ORDINARY_UID, group=ORDINARY_UID, extra_groups=[], check=True)
        return json.loads(Path(f"{home}/rows.json").read_text())


def differing(row, way):
    return row[way] != row["bare"] or row[way].startswith(("no counts", "timeout"))


def table(found):
    """The rows of all users: a cell is "same" where each user's counts are those of the bare run."""
    lines = [
        "| suite | bare | sandbox | live fork | woken | virtual time | virtual time again |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in [suite.name for suite in SUITES if any(suite.name in rows for rows in found.values())]:
        of = {user: rows[name] for user, rows in found.items() if name in rows}
        cells = ["; ".join(dict.fromkeys(row["bare"] for row in of.values()))]
        for way in WAYS[1:]:
            others = [f"{user}: {row[way]}" for user, row in of.items() if differing(row, way)]
            cells.append("; ".join(others) or "same")
        lines.append(f"| {name} | " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)


def page():
    """The page that has the table; it is found by the table's marks, as pages move."""
    return next(path for path in sorted((ROOT / "docs").rglob("*.md")) if BEGIN in path.read_text())


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--rows", help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[suite.name for suite in SUITES])
    arguments = parser.parse_args()
    suites = [suite for suite in SUITES if suite.name in arguments.only]
    if arguments.rows:
        Path(arguments.rows).write_text(json.dumps(measure(suites)))
        return 0
    install(suites)
    found = {"root" if os.geteuid() == 0 else "user": measure(suites)}
    if os.geteuid() == 0:
        found["user"] = measure_as_user([suite.name for suite in suites])
    results = CACHE / "results.json"
    kept = json.loads(results.read_text()) if results.exists() else {}
    kept = {user: {**kept.get(user, {}), **rows} for user, rows in found.items()}
    results.write_text(json.dumps(kept, indent=1) + "\n")
    if arguments.update:
        before, rest = page().read_text().split(BEGIN)
        page().write_text(f"{before}{BEGIN}\n{table(kept)}\n{END}{rest.split(END)[1]}")
    unexplained = [(name, way) for rows in found.values() for name, row in rows.items() for way in WAYS
                   if differing(row, way) and (name, way) not in DIFFERENCES]
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
