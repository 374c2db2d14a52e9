#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Builds a task of Harbor's form, forks its environment, solves, grades, and forks the result.

    examples/terminal_task/run.py [--task DIRECTORY] [--base IMAGE] [--mirror HOST] [--forks N]

The environment is built from environment/Dockerfile. solution/solve.sh stands for the agent, and
tests/test.sh grades. A fork of the environment is one attempt. A fork of the solved environment
has the servers that the solution has started, and is graded by itself.

This directory's task installs packages of Debian from a mirror. ../web_task needs no network.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import rollbox

GRADED = 5  # forks of the result


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", type=Path, default=Path(__file__).parent)
    parser.add_argument(
        "--base", default="debian", help="the image of the store that the Dockerfile begins with"
    )
    parser.add_argument("--mirror", help="the host that packages are installed from")
    parser.add_argument("--memory", default="160M", help="of a sandbox")
    parser.add_argument("--forks", type=int, default=100)
    return parser.parse_args()


def network(options: argparse.Namespace) -> dict[str, Any]:
    if not options.mirror:
        return {"net": "loopback"}
    # The mirror may be in a private network.
    return {"net_allow": [{"host": options.mirror, "ports": [80, 443], "private": True}]}


def put(box: rollbox.Sandbox, task: Path) -> None:
    for name in ("solution/solve.sh", "tests/test.sh"):
        box.write_file("/" + name, (task / name).read_bytes())


def shell(box: rollbox.Sandbox, script: str, timeout: int) -> rollbox.Result[bytes]:
    shells = f"if [ -x /bin/bash ]; then exec bash {script}; else exec sh {script}; fi"
    return box.exec(shells, timeout=timeout)


def grade(box: rollbox.Sandbox) -> float:
    shell(box, "/tests/test.sh", 120)
    return float(box.read_file("/logs/verifier/reward.txt"))


def forks(box: rollbox.Sandbox, n: int, what: str) -> list[rollbox.Sandbox]:
    began = time.monotonic()
    copies = box.fork(n)
    print(f"forked {what} {len(copies)} times in {time.monotonic() - began:.1f} s")
    return copies


def main() -> int:
    options = arguments()
    began = time.monotonic()
    image = rollbox.build_image(
        options.task / "environment",
        tag="terminal-task",
        build_args={"BASE": options.base},
        policy=rollbox.Policy(max_memory="1G", **network(options)) if options.mirror else None,
    )
    print(f"built {image.name} ({image.layers} layers) in {time.monotonic() - began:.1f} s")
    policy = rollbox.Policy(
        image="terminal-task",
        users="many",
        disk_at="store",
        max_memory=options.memory,
        max_processes=512,
        **network(options),
    )
    with rollbox.Sandbox(policy) as built:
        put(built, options.task)
        attempts = forks(built, options.forks, "the environment")
        box = attempts[0]
        if grade(box) != 0:
            print("the task is solved before anybody has worked on it")
            return 1
        began = time.monotonic()
        solved = shell(box, "/solution/solve.sh", 900)
        if solved.exit_code != 0:
            print(solved.stderr.decode(errors="replace"))
            return 1
        reward = grade(box)
        print(f"solved in {time.monotonic() - began:.1f} s; reward {reward}")
        print("reward of another attempt, which nobody has worked on:", grade(attempts[-1]))
        for attempt in attempts[1:]:
            attempt.close()
        copies = forks(box, options.forks, "the result")
        rewards = [grade(copy) for copy in copies[:GRADED]]
        print("rewards of forks:", rewards)
        if rewards == [1.0] * len(rewards):
            return 0
        print(box.exec("tail -n 20 /logs/verifier/*").stdout.decode(errors="replace"))
        return 1


if __name__ == "__main__":
    sys.exit(main())
