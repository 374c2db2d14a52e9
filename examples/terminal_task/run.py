#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Builds a task of Harbor's form, solves it, grades it, and forks the solved environment.

    examples/terminal_task/run.py [--base IMAGE] [--forks N]

The environment is built from environment/Dockerfile. solution/solve.sh stands for the agent, and
tests/test.sh grades. Every fork has the servers that the solution has started, and is graded by
itself.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import rollbox

TASK = Path(__file__).parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--base", default="base", help="an image of the store with busybox and a user alice"
    )
    parser.add_argument("--forks", type=int, default=100)
    return parser.parse_args()


def policy() -> rollbox.Policy:
    return rollbox.Policy(
        image="terminal-task", users="many", net="loopback", max_memory="64M", max_processes=512
    )


def put(box: rollbox.Sandbox, task: Path) -> None:
    for name in ("solution/solve.sh", "tests/test.sh"):
        box.write_file("/" + name, (task / name).read_bytes())


def grade(box: rollbox.Sandbox) -> float:
    box.exec(["/bin/sh", "/tests/test.sh"], timeout=120)
    return float(box.read_file("/logs/verifier/reward.txt"))


def main() -> int:
    options = arguments()
    began = time.monotonic()
    image = rollbox.build_image(
        TASK / "environment",
        tag="terminal-task",
        build_args={"BASE": options.base},
    )
    print(f"built {image.name} ({image.layers} layers) in {time.monotonic() - began:.1f} s")
    with rollbox.Sandbox(policy()) as box:
        put(box, TASK)
        if grade(box) != 0:
            print("the task is solved before anybody has worked on it")
            return 1
        began = time.monotonic()
        solved = box.exec(["/bin/sh", "/solution/solve.sh"], timeout=900)
        if solved.exit_code != 0:
            print(solved.stderr.decode(errors="replace"))
            return 1
        print(f"solved in {time.monotonic() - began:.1f} s; reward {grade(box)}")
        began = time.monotonic()
        copies = box.fork(options.forks)
        print(f"forked {len(copies)} times in {time.monotonic() - began:.1f} s")
        rewards = [grade(copy) for copy in copies[:5]]
        print("rewards of forks:", rewards)
        for copy in copies:
            copy.close()
        return 0 if rewards == [1.0] * len(rewards) else 1


if __name__ == "__main__":
    sys.exit(main())
