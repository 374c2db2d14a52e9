#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A thousand clones of a simulator, on a Ray cluster (docs/tutorials/ray-rollouts.md).

The simulator is loaded once on each node. Each episode is a clone of the loaded interpreter.
"""

import argparse
import statistics
import time

from rollbox import Policy
from rollbox.ray import Pool

track: list[float] = []


def load():
    """Loads the simulator: once a node, however long it takes."""
    track[:] = [((x * 7919) % 101 - 50) / 50 for x in range(20_000)]


def episode(number):
    """One episode. Its random numbers come from the fork's seed and the clone's number."""
    import random

    position, speed = 0, 0.0
    for _ in range(200):
        speed = 0.9 * speed + track[position] + random.choice((-1, 0, 1))
        position = int(position + abs(speed) + 1) % len(track)
    return position


def run(pool, episodes):
    with pool.clones(episode, init_fn=load) as clones:
        begun = time.monotonic()
        values, failures = [], 0
        for clone in clones.iter_fork(episodes, seed=7, timeout=60):
            if clone.error is not None:
                failures += 1                 # rollbox failed: not an episode
            else:
                values.append(clone.get())
        return values, failures, time.monotonic() - begun


def main():
    parser = argparse.ArgumentParser(description="Clones of a simulator on a Ray cluster.")
    parser.add_argument("--address", default="local", help="the cluster; local: start Ray here")
    parser.add_argument("--episodes", type=int, default=1000)
    options = parser.parse_args()
    resource = None if options.address == "local" else "rollbox"
    policy = Policy(max_memory="256M")
    with Pool(policy, address=options.address, resource=resource, slots_per_node=2) as pool:
        values, failures, seconds = run(pool, options.episodes)
    print(
        f"{len(values)} episodes in {seconds:.1f} s, {failures} failures of rollbox, "
        f"mean end {statistics.mean(values):.0f}"
    )


if __name__ == "__main__":
    main()
