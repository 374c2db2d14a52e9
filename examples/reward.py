#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Scores programs that a language model might have written, each in a sandbox of its own.

    reward.py                                     the problems beside this file, all answers
    reward.py --problems HumanEval.jsonl.gz       a file in HumanEval's schema, its solutions

A problem and an answer make a job: checker.py in a sandbox, with the task on its standard input.
The job's result makes a reward. The reward is 1 only if the checker printed this job's own token
with "passed". It is 0 for anything else that the program did, and None, never 0, if rollbox itself
failed. README.md tells what a hostile answer can try and what stops it.

While the batch runs, a file, a process and a listening port of the host serve as bait: the hostile
answers know them and try to change, kill and reach them. At the end all three must be unharmed.

Exit status: 0 if every right answer got 1, every other one 0, and the bait is unharmed; else 1.
"""

import argparse
import contextlib
import gzip
import json
import math
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

HERE = Path(__file__).resolve().parent
CHECKER = (HERE / "checker.py").read_text()
POLICY = {"max_memory": "256M", "max_processes": 32, "max_output": 1 << 20, "max_disk": "64M"}
KINDS = ["right", "wrong", "crash", "syntax", "looping", "memory", "flood", "hostile"]


class Answer(NamedTuple):
    task: dict[str, Any]
    kind: str
    name: str
    code: str
    token: str


class Row(NamedTuple):
    """What is needed of a result, whichever way it came."""

    outcome: str
    exit_code: Optional[int]
    stdout: str
    stderr: str
    wall_ms: float
    cpu_ms: float
    error: str


def read_problems(path: Path) -> list[dict[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def answers_of(
    problems: list[dict[str, Any]], which: str, bait: dict[str, str]
) -> Iterator[Answer]:
    for task in problems:
        listed = task.get("answers", []) if which == "all" else []
        if not listed:
            listed = [
                {
                    "kind": "right",
                    "name": "canonical",
                    "code": task["prompt"] + task["canonical_solution"],
                }
            ]
        for answer in listed:
            code = answer["code"]
            for placeholder, value in bait.items():
                code = code.replace(placeholder, value)
            yield Answer(
                task,
                answer["kind"],
                answer.get("name", answer["kind"]),
                code,
                secrets.token_hex(16),
            )


def job_of(number: int, answer: Answer, timeout: float) -> dict[str, Any]:
    task = {key: answer.task[key] for key in ("prompt", "entry_point", "test")}
    task.update(token=answer.token, answer=answer.code)
    return {
        "id": str(number),
        "code": CHECKER,
        "language": "python",
        "stdin": json.dumps(task),
        "timeout_s": timeout,
        "policy": POLICY,
    }


def run_by_package(jobs: list[dict[str, Any]], parallel: int) -> list[Row]:
    import rollbox

    rows: dict[str, Row] = {}
    for result in rollbox.run_many(jobs, concurrency=parallel):
        rows[str(result.id)] = Row(
            str(result.outcome),
            result.exit_code,
            result.stdout.decode("utf-8", "replace"),
            result.stderr.decode("utf-8", "replace"),
            result.wall_ms,
            result.cpu_ms,
            str(result.error or ""),
        )
    return [rows[job["id"]] for job in jobs]


def run_by_command(command: str, jobs: list[dict[str, Any]], parallel: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="reward-") as place:
        source, results = Path(place, "jobs.jsonl"), Path(place, "results.jsonl")
        source.write_text("".join(json.dumps(job) + "\n" for job in jobs))
        ended = subprocess.run(
            [command, "batch", str(source), "-o", str(results), "-j", str(parallel)]
        )
        if ended.returncode not in (0, 1):
            sys.exit(f"reward.py: {command} batch ended with status {ended.returncode}")
        rows = {}
        for line in results.read_text().splitlines():
            row = json.loads(line)
            rows[row["id"]] = Row(
                row["outcome"],
                row["exit_code"],
                row["stdout"],
                row["stderr"],
                row["wall_ms"],
                row["cpu_ms"],
                (row["error"] or {}).get("message", ""),
            )
    return [rows[job["id"]] for job in jobs]


def run_jobs(jobs: list[dict[str, Any]], parallel: int) -> list[Row]:
    """By the Python package where it is installed, else by the command `rollbox`."""
    try:
        import rollbox  # noqa: F401
    except ImportError:
        built = HERE.parent / "build" / "rollbox"
        command = str(built) if built.exists() else shutil.which("rollbox")
        if command is None:
            sys.exit(
                "reward.py: neither the Python package rollbox nor the command is installed; see "
                "README.md"
            )
        return run_by_command(command, jobs, parallel)
    return run_by_package(jobs, parallel)


def verdict_of(answer: Answer, row: Row) -> dict[str, Any]:
    """The checker's verdict; the token, not the exit status, tells that it is the checker's."""
    token, _, text = row.stdout.partition(" ")
    if (
        row.outcome != "exit"
        or row.exit_code != 0
        or not secrets.compare_digest(token.encode(), answer.token.encode())
    ):
        status = "" if row.exit_code is None else f" {row.exit_code}"
        return {"passed": False, "why": f"no verdict: {row.outcome}{status}"}
    verdict: dict[str, Any] = json.loads(text)
    return verdict


def reward_of(answer: Answer, row: Row) -> Optional[int]:
    if row.outcome == "error":
        return None
    return int(verdict_of(answer, row)["passed"] is True)


class Bait:
    """Objects of the host whose names hostile answers get."""

    def __init__(self, place: str) -> None:
        self.file = Path(place, "file")
        self.file.write_text("untouched")
        os.chmod(place, 0o777)
        os.chmod(self.file, 0o666)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        # Lives until its standard input closes.
        self.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def placeholders(self) -> dict[str, str]:
        return {
            "@CANARY_FILE@": str(self.file),
            "@CANARY_PORT@": str(self.listener.getsockname()[1]),
            "@CANARY_PID@": str(self.process.pid),
        }

    def harm(self) -> list[str]:
        found = []
        if not self.file.exists() or self.file.read_text() != "untouched":
            found.append("a file of the host was changed")
        if self.process.poll() is not None:
            found.append("a process of the host was killed")
        with contextlib.suppress(BlockingIOError):
            self.listener.accept()
            found.append("a port of the host was reached")
        return found

    def close(self) -> None:
        self.listener.close()
        self.process.communicate()  # closes its input


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def summarise(
    answers: list[Answer], rows: list[Row], seconds: float, harm: list[str]
) -> dict[str, Any]:
    rewards = [reward_of(answer, row) for answer, row in zip(answers, rows)]
    surprises = [
        {
            "task_id": answer.task["task_id"],
            "kind": answer.kind,
            "name": answer.name,
            "reward": reward,
            "outcome": row.outcome,
            "why": row.error if reward is None else verdict_of(answer, row)["why"],
            "stderr": row.stderr[-300:],
        }
        for answer, row, reward in zip(answers, rows, rewards)
        if reward != int(answer.kind == "right")
    ]
    kinds = {}
    for kind in sorted(
        {answer.kind for answer in answers}, key=lambda kind: (KINDS + [kind]).index(kind)
    ):
        mine = [i for i, answer in enumerate(answers) if answer.kind == kind]
        kinds[kind] = {
            "programs": len(mine),
            "reward_1": sum(rewards[i] == 1 for i in mine),
            "reward_0": sum(rewards[i] == 0 for i in mine),
            "unscored": sum(rewards[i] is None for i in mine),
            "outcomes": dict(Counter(rows[i].outcome for i in mine).most_common()),
        }
    return {
        "ok": not surprises and not harm,
        "problems": len({answer.task["task_id"] for answer in answers}),
        "programs": len(answers),
        "seconds": round(seconds, 3),
        "programs_per_second": round(len(answers) / seconds, 1) if seconds else 0.0,
        "wall_ms": {
            "p50": round(percentile([row.wall_ms for row in rows], 0.5), 2),
            "p99": round(percentile([row.wall_ms for row in rows], 0.99), 2),
        },
        "cpu_ms": {
            "p50": round(percentile([row.cpu_ms for row in rows], 0.5), 2),
            "p99": round(percentile([row.cpu_ms for row in rows], 0.99), 2),
        },
        "timed_out": sum(row.outcome == "timeout" for row in rows),
        "others_cpu_ms": round(sum(row.cpu_ms for row in rows if row.outcome != "timeout"), 1),
        "kinds": kinds,
        "surprises": surprises,
        "harm": harm,
    }


def print_table(summary: dict[str, Any]) -> None:
    line = "{:<9} {:>9} {:>9} {:>9} {:>9}  {}"
    print(line.format("answers", "programs", "reward 1", "reward 0", "unscored", "outcomes"))
    for kind, row in summary["kinds"].items():
        outcomes = ", ".join(f"{name} {count}" for name, count in row["outcomes"].items())
        print(
            line.format(
                kind, row["programs"], row["reward_1"], row["reward_0"], row["unscored"], outcomes
            )
        )
    print()
    print(
        f"{summary['programs']} programs for {summary['problems']} problems in "
        f"{summary['seconds']:.1f} s: "
        f"{summary['programs_per_second']:.0f} a second"
    )
    if summary["timed_out"]:
        print(
            f"{summary['timed_out']} of them ran into their time-out; the others took "
            f"{summary['others_cpu_ms'] / 1000:.1f} s of CPU "
            f"time, Python's start included"
        )
    for name, what in (("wall_ms", "wall clock"), ("cpu_ms", "CPU time")):
        print(f"{what:<10}  p50 {summary[name]['p50']:.1f} ms, p99 {summary[name]['p99']:.1f} ms")
    for surprise in summary["surprises"]:
        print(
            f"NOT AS EXPECTED: {surprise['task_id']} {surprise['kind']} ({surprise['name']}): "
            f"reward {surprise['reward']}, "
            f"{surprise['why']}"
        )
    for harm in summary["harm"]:
        print(f"HARM: {harm}")
    if summary["ok"]:
        print("Every right answer scored 1 and every other 0; nothing of the host was harmed.")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        epilog="Exit status 0 if all went as expected, else 1.",
    )
    parser.add_argument(
        "file", type=Path, nargs="?", metavar="FILE", help="the same as --problems FILE"
    )
    parser.add_argument(
        "--problems",
        type=Path,
        default=HERE / "problems.jsonl",
        metavar="FILE",
        help="HumanEval's schema, .gz or not (default: problems.jsonl beside this program)",
    )
    parser.add_argument(
        "--answers",
        choices=["canonical", "all"],
        default="all",
        help="canonical: one right answer a problem; all: those listed with it (default)",
    )
    parser.add_argument(
        "-j",
        "--jobs",
        type=int,
        default=2 * len(os.sched_getaffinity(0)),
        metavar="N",
        help="how many run at once (default: twice the CPUs, as some only wait)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=2.0,
        metavar="S",
        help="seconds for one program (default 2)",
    )
    parser.add_argument("--json", action="store_true", help="print the table as one JSON object")
    options = parser.parse_args()
    if options.jobs < 1 or not options.timeout > 0:
        parser.error("-j and --timeout must be above 0")
    path = options.file or options.problems
    try:
        problems = read_problems(path)
    except (OSError, ValueError) as problem:
        parser.error(f"{path}: {problem}")
    with tempfile.TemporaryDirectory(prefix="bait-") as place:
        bait = Bait(place)
        try:
            answers = list(answers_of(problems, options.answers, bait.placeholders()))
            jobs = [
                job_of(number, answer, options.timeout) for number, answer in enumerate(answers)
            ]
            started = time.monotonic()
            rows = run_jobs(jobs, options.jobs)
            summary = summarise(answers, rows, time.monotonic() - started, bait.harm())
        finally:
            bait.close()
    if options.json:
        print(json.dumps(summary))
    else:
        print_table(summary)
    return 0 if summary["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
