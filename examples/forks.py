#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A world that takes long to load, loaded once, and a thousand episodes in it.

    forks.py                   1000 clones, all at once
    forks.py -n 5000 -c 32     5000, 32 at a time

init_fn imports numpy and makes a table of 8 MB in an interpreter in a sandbox. Each clone has this
table from its first moment on, by copy-on-write, and plays an episode with it: a walk whose steps
its own random numbers choose. It returns what it found, when it began, and how much memory is its
own.

Where numpy is missing, the table is a large dictionary instead. ROLLBOX_NUMPY names the directory
in which the sandbox finds numpy, if it is not the system's.

Exit status: 0 if every clone returned the right sum of its own walk.
"""

import argparse
import os
import sys
import time

from rollbox import Policy, Sandbox

ROWS = 1 << 20


def load():
    """Runs once, in the sandbox, and imports what clones use: else each would import it again."""
    begun = time.monotonic()
    import random  # noqa: F401

    try:
        import numpy
    except ImportError:
        table, what = {i: i * i % 9973 for i in range(ROWS // 8)}, "a dict"
    else:
        table, what = numpy.arange(ROWS, dtype="int64") ** 2 % 9973, f"numpy {numpy.__version__}"
    return table, what, time.monotonic() - begun


def own_memory():
    """Bytes that this process has and no other one: what it wrote since it is a clone."""
    with open("/proc/self/smaps_rollup") as file:
        return sum(
            int(line.split()[1]) * 1024 for line in file if line.startswith("Private_Dirty:")
        )


def episode(number, loaded):
    """Runs in each clone."""
    began = time.time()
    import random

    table, what, load_s = loaded
    steps = [random.randrange(len(table)) for _ in range(100)]
    print(f"clone {number} of {what}")
    return {
        "began": began,
        "steps": steps,
        "found": sum(int(table[step]) for step in steps),
        "own": own_memory(),
        "what": what,
        "load_s": load_s,
        "id": os.environ["CLONE_ID"],
    }


def middle(values, part=0.5):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-n", type=int, default=1000, help="clones (default 1000)")
    parser.add_argument(
        "-c", "--concurrency", type=int, help="how many are there at a time (default: all)"
    )
    options = parser.parse_args()

    policy = Policy(max_memory="256M", max_processes=16, timeout=300)
    place = os.environ.get("ROLLBOX_NUMPY")
    if place:
        policy = policy.replace(fs_readable_extra=[place], env={"PYTHONPATH": place})
    with Sandbox(policy, init_fn=load, work_fn=episode) as box:
        begun = time.time()
        box.warm()
        warm = time.time() - begun
        begun = time.time()
        clones = box.fork(options.n, concurrency=options.concurrency or options.n)
        took = time.time() - begun

    good = [clone for clone in clones if clone.ok]
    values = [clone.get() for clone in good]
    right = sum(
        value["id"] == str(clone.id)
        and value["found"] == sum(step * step % 9973 for step in value["steps"])
        and clone.text == f"clone {clone.id} of {value['what']}\n"
        for clone, value in zip(good, values)
    )
    different = len({tuple(value["steps"]) for value in values})
    if values:
        first = [(value["began"] - begun) * 1000 for value in values]
        modules = values[0]["what"]
        print(
            f"loaded {modules} once in {values[0]['load_s'] * 1000:.0f} ms ({warm * 1000:.0f} ms "
            f"with the start of the interpreter and the capture)"
        )
        print(
            f"{len(clones)} clones: first one at work after {min(first):.0f} ms, all of them after "
            f"{max(first):.0f} ms, all done after {took * 1000:.0f} ms "
            f"({took / len(clones) * 1000:.2f} ms each)"
        )
        print(
            f"memory of its own, each: {middle([value['own'] for value in values]) / 1024:.0f} KiB "
            f"in the middle, {max(value['own'] for value in values) / 1024:.0f} KiB at the most"
        )
    print(
        f"{right} of {len(clones)} right, {different} different walks, {len(clones) - len(good)} "
        f"failed"
    )
    for clone in [clone for clone in clones if not clone.ok][:3]:
        print(
            f"  clone {clone.id}: {clone.outcome}: {clone.error or clone.raised or clone.stderr!r}",
            file=sys.stderr,
        )
    return 0 if right == different == len(clones) else 1


if __name__ == "__main__":
    sys.exit(main())
