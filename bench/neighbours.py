# SPDX-License-Identifier: Apache-2.0
"""What a sandbox that computes has of the CPUs beside another that storms, in `make bench`: one
JSON object of rows on standard output.

    neighbours.py STORMS ROUNDS [KIND...]

STORMS: storms.c, compiled, where a sandbox may read it. Each round runs the neighbour beside every
kind of storm, in an order that shifts; the storm and the neighbour have an engine each.
"""
import json
import os
import subprocess
import sys
import time
from typing import Any, Dict, List

SPIN = "spin"
PROCESSES = "8"
NEIGHBOUR = ["/usr/bin/python3", "-Sc", "s = 0\nfor i in range(300000): s += i"]
PATIENCE = 20       # seconds; what takes longer counts as that

# name of the column's value in the row of all storms, limit, of what
TARGETS = [("of_spin", 2, "a neighbour that computes, beside {}: p99 as a multiple of beside one that computes, too")]


def quantile(values: List[float], q: float) -> float:
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * q))]


def measure(storms: str, rounds: int, kinds: List[str]) -> Dict[str, Dict[str, Any]]:
    from rollbox import Engine, Policy, Sandbox
    grants = [path for path in ("/usr", "/bin", "/lib", "/lib64", "/etc") if os.path.exists(path)]
    times: Dict[str, List[float]] = {kind: [] for kind in kinds}
    with Engine() as theirs, Engine() as ours:
        neighbour = Sandbox(Policy(), engine=ours)
        neighbour.run(NEIGHBOUR)
        for number in range(rounds):
            shift = number % len(kinds)
            for kind in kinds[shift:] + kinds[:shift]:
                with Sandbox(Policy(fs_readable=[*grants, storms]), engine=theirs) as box:
                    box.spawn([storms, kind, PROCESSES])
                    time.sleep(0.2)     # for it to be under way
                    for _ in range(3):
                        begin = time.perf_counter()
                        neighbour.run(NEIGHBOUR, timeout=PATIENCE)
                        times[kind].append((time.perf_counter() - begin) * 1e6)
    rows: Dict[str, Dict[str, Any]] = {}
    for kind, values in times.items():
        rows[kind] = {"p50_us": quantile(values, 0.5), "p99_us": quantile(values, 0.99), "runs": len(values)}
        rows[kind]["of_spin"] = rows[kind]["p99_us"] / rows[SPIN]["p99_us"]
    return rows


def main() -> int:
    storms, rounds, kinds = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    kinds = kinds or subprocess.run([storms], capture_output=True, text=True, check=True).stdout.splitlines()
    print(json.dumps(measure(storms, rounds, [SPIN, *(kind for kind in kinds if kind != SPIN)])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
