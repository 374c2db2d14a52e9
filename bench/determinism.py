# SPDX-License-Identifier: Apache-2.0
"""What determinism and recording cost, in `make bench`: each against the same without, in turns,
one JSON object of rows on standard output.

    determinism.py ROLLBOX ROUNDS COMMANDS CLOCK [JOBS]

ROLLBOX: the CLI. COMMANDS: executions of /bin/true in a session for each row. CLOCK: a program that
queries the clock as often as its argument says. JOBS: of `rollbox batch`, run ROUNDS times.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List

START = "2025-01-01T00:00:00"
OFF = "off"
LEVELS: Dict[str, Dict[str, Any]] = {
    OFF: {},
    "seed": {"random_seed": 7},
    "seed, time at the real rate": {"random_seed": 7, "time_start": START},
    "seed, virtual time": {"random_seed": 7, "time_start": START, "time_mode": "virtual"},
    "serial": {"random_seed": 7, "time_start": START, "time_mode": "virtual", "serial": True},
}
RECORDED = "off, recorded"
QUERIES = 5_000_000

# name of the column's value in a row, limit, of what; for all rows that have it and are not OFF, or for one
TARGETS = [
    (
        "of_off",
        1.05,
        "HumanEval, `rollbox batch -j 2`, {}: time as a multiple of off",
        ("seed", "seed, time at the real rate", "seed, virtual time"),
    ),
    (
        "exec_added_us",
        200,
        "exec of /bin/true in a session, {}: p50 over off, us",
        ("seed", "seed, time at the real rate", "seed, virtual time"),
    ),
    (
        "query_ns",
        150,
        "a query of the clock, {}: ns",
        ("seed, time at the real rate", "seed, virtual time"),
    ),
    ("exec_added_us", 50, "exec of /bin/true in a session, {}: p50 over off, us", (RECORDED,)),
]


def options(level: Dict[str, Any]) -> List[str]:
    """Of the CLI, which has virtual time with a seed unless an option says otherwise."""
    words = ["--seed", str(level["random_seed"])] if "random_seed" in level else []
    return words + (
        ["--time-start", level["time_start"], "--time-mode", level.get("time_mode", "offset")]
        if "time_start" in level
        else []
    )


def turns(names: List[str], number: int) -> List[str]:
    """One after the other, each first as often as the others, and in either direction: what one
    leaves to be tidied up falls on no other more often."""
    shift = number % len(names)
    turned = names[shift:] + names[:shift]
    return turned[::-1] if number // len(names) % 2 else turned


def of_batch(rollbox: str, jobs: str, rounds: int, rows: Dict[str, Dict[str, Any]]) -> None:
    names = [name for name in LEVELS if name != "serial"]
    times: Dict[str, List[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "results.jsonl"
        for number in range(-1, rounds):
            for name in turns(names, number):
                out.unlink(missing_ok=True)
                begin = time.perf_counter()
                subprocess.run(
                    [rollbox, "batch", jobs, "-o", str(out), "-j", "2", *options(LEVELS[name])],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=True,
                )
                took = time.perf_counter() - begin
                wrong = [
                    row["id"]
                    for row in map(json.loads, open(out))
                    if row["outcome"] != "exit" or row["exit_code"]
                ]
                if wrong:
                    sys.exit(f"{name}: not all jobs end well: {wrong[:3]}")
                if number >= 0:
                    times[name].append(took)
    for name in names:
        rows[name]["batch_seconds"] = statistics.median(times[name])
        rows[name]["of_off"] = statistics.median(mine / its for mine, its in zip(times[name], times[OFF]))


def of_commands(commands: int, rows: Dict[str, Dict[str, Any]]) -> None:
    from rollbox import Policy, Sandbox
    with tempfile.TemporaryDirectory() as directory:
        boxes = {name: Sandbox(Policy(**level)) for name, level in LEVELS.items()}
        boxes[RECORDED] = Sandbox(Policy(), record=os.path.join(directory, "record.jsonl"))
        times: Dict[str, List[float]] = {name: [] for name in boxes}
        for number in range(-commands // 10, commands):
            for name in turns(list(boxes), number):
                begin = time.perf_counter()
                boxes[name].exec(["/bin/true"])
                if number >= 0:
                    times[name].append((time.perf_counter() - begin) * 1e6)
        for name, box in boxes.items():
            rows[name]["exec_us"] = statistics.median(times[name])
            rows[name]["exec_added_us"] = rows[name]["exec_us"] - statistics.median(times[OFF])
            box.close()


def of_clock(program: str, rows: Dict[str, Dict[str, Any]]) -> None:
    """By the time that the real clock shows, as the sandbox's is not to be asked."""
    from rollbox import Policy, Sandbox
    for name, level in LEVELS.items():
        if name == "serial":
            continue            # each is a system call there, and a question
        with Sandbox(Policy(fs_readable=["/usr", "/lib", "/lib64", "/bin", os.path.dirname(program)], **level)) as box:
            def run(n: int) -> float:
                begin = time.perf_counter()
                if box.exec([program, str(n)]).exit_code != 0:
                    sys.exit(f"{name}: the clock's program fails")
                return time.perf_counter() - begin
            run(QUERIES)
            rows[name]["query_ns"] = min((run(QUERIES) - run(0)) / QUERIES * 1e9 for _ in range(5))


def main() -> None:
    rollbox, rounds, commands, program = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    rows: Dict[str, Dict[str, Any]] = {name: {} for name in [*LEVELS, RECORDED]}
    if len(sys.argv) > 5:
        of_batch(rollbox, sys.argv[5], rounds, rows)
    of_commands(commands, rows)
    of_clock(program, rows)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
