#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tree search over the states of running shells, on a Ray cluster (docs/tutorials/ray-rollouts.md).

The state is a variable of a running shell. The best nodes are forked over all nodes of the cluster.
"""

import argparse
import heapq
from typing import Any

from rollbox import Policy
from rollbox.ray import Pool

MOVES = {"+3": "total=$((total + 3))", "*2": "total=$((total * 2))"}


def search(pool, goal, most=40):
    """The moves from 1 to the goal."""
    root = pool.sandbox()
    shell = root.shell()
    shell.run("total=1")
    frontier: list[tuple[int, int, list[str], Any]] = [(goal - 1, 0, [], root)]
    seen, made = {1}, 0
    while frontier and made < most:
        _, _, path, box = heapq.heappop(frontier)
        for (name, command), kid in zip(MOVES.items(), box.fork(len(MOVES), spread="cluster")):
            copy = kid.shell(shell.id)
            value = int(copy.run(f"{command}; echo $total", text=True, timeout=10).stdout)
            made += 1
            if value == goal:
                return [*path, name]
            if value > goal or value in seen:
                kid.close()
            else:
                seen.add(value)
                heapq.heappush(frontier, (goal - value, made, [*path, name], kid))
        box.close()
    return None


def main():
    parser = argparse.ArgumentParser(description="Tree search on a Ray cluster.")
    parser.add_argument("--address", default="local", help="the cluster; local: start Ray here")
    options = parser.parse_args()
    resource = None if options.address == "local" else "rollbox"
    policy = Policy(max_memory="128M")
    with Pool(policy, address=options.address, resource=resource, slots_per_node=2) as pool:
        print(search(pool, 22))


if __name__ == "__main__":
    main()
