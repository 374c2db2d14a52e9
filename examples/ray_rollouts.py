#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Rollouts over a Ray cluster: rewards of programs, a forked state, clones of a simulator.

    pip install 'rollbox[ray]'
    ./ray_rollouts.py                 starts Ray on this machine
    ./ray_rollouts.py --address auto  joins a cluster, whose nodes offer the resource "rollbox":
                                      ray start --address=HEAD:6379 --resources '{"rollbox": 8}'

A node may die at any time: its jobs run again elsewhere, and no reward is made up for them.
"""

import argparse
import random

from rollbox import Policy, code_job
from rollbox.ray import Pool


def rewards(pool, n):
    """Runs n programs. Every third one is wrong; an error of rollbox has no reward."""
    jobs = [
        {**code_job(f"print({number} ** 2 + {int(number % 3 == 0)})", timeout_s=10), "id": number}
        for number in range(n)
    ]
    found: dict[object, object] = {}
    for result in pool.map(jobs, text=True):
        if result.error is not None:
            found[result.id] = None
        else:
            found[result.id] = float(result.stdout == f"{result.id**2}\n")
    return found


def forks(pool, n):
    """Continues one running shell in n sandboxes, on all nodes."""
    with pool.sandbox() as box:
        shell = box.shell()
        shell.run("position=10")
        kids = box.fork(n, spread="cluster")
        moves = random.Random(1).choices(range(1, 7), k=n)
        ends = []
        for kid, move in zip(kids, moves):
            said = kid.shell(shell.id).run(f"echo $((position + {move}))", text=True)
            ends.append(int(said.stdout))
        nodes = {kid.node for kid in kids}
    return ends, nodes


world: list[float] = []


def prepare():
    """Runs once on each node."""
    import math

    world[:] = [math.sin(x / 100) for x in range(10_000)]


def episode(number):
    """Runs in a clone of the prepared interpreter."""
    return max(world[number * 7 % 9_000 :][:500])


def main():
    parser = argparse.ArgumentParser(description="Rollouts over a Ray cluster.")
    parser.add_argument("--address", default="local", help="the cluster; local: start Ray here")
    parser.add_argument("--rollouts", type=int, default=60)
    options = parser.parse_args()
    local = options.address == "local"
    policy = Policy(max_memory="256M", max_processes=32)
    with Pool(
        policy, address=options.address, resource=None if local else "rollbox", slots_per_node=2
    ) as pool:
        found = rewards(pool, options.rollouts)
        scored = [value for value in found.values() if isinstance(value, float)]
        print(f"{len(found)} rollouts, mean reward {sum(scored) / len(scored):.2f}")
        ends, nodes = forks(pool, 8)
        print(f"{len(ends)} forks on {len(nodes)} nodes, positions {sorted(ends)}")
        with pool.clones(episode, init_fn=prepare) as clones:
            values = [clone.get() for clone in clones.fork(options.rollouts)]
        print(f"{len(values)} clones, best value {max(values):.3f}")


if __name__ == "__main__":
    main()
