# SPDX-License-Identifier: Apache-2.0
"""The seeds of forks: a child's follows from its parent's and from the number of earlier children,
on any machine, for any caller and engine; or it is the same, on request.

The model: one program in each sandbox prints random values from every source.
"""

import asyncio
import json
import subprocess

import pytest

from rollbox import AsyncSandbox, CommandNotFound, Policy, Sandbox
from harness import NO_FILES, binaries, caller  # noqa: F401
from trajectory_files import read, shared_engine

DRAW = [
    "python3",
    "-c",
    "import os, random, uuid; print(os.urandom(4).hex(), random.randrange(10**6), open('/dev/urandom', 'rb').read(4).hex(), open('/dev/random', 'rb').read(70000)[-2:].hex(), open('/proc/sys/kernel/random/uuid').read()[:8], hash('x') % 1000)",
]
POLICY = Policy(random_seed=7)
# Of seed 7, its first and second child, and the first one's first. A change of them changes the
# results of users' experiments.
SEEDS = [7, 7047731020437584910, 9190010582942298968, 2949222839903684161]
DRAWN = [
    "714c4cec 146890 6312c5b2 5b48 7c77c3af 11",
    "3c68f45d 781194 2eb18e6c 94c8 673f89b1 576",
    "db69a66f 110199 2ee14f42 dff8 8cad5da8 954",
    "167664c0 545988 58fa2f3d a0be 0d602a48 228",
]


def draw(box):
    return box.exec(DRAW, text=True).stdout.strip()


def seed_of(box):
    return box.inspect()["random_seed"]


def test_seeded_clone_is_the_same_everywhere(caller):
    """By another caller, another engine, the command line; after other commands, from a snapshot,
    in any order, beside others."""
    with shared_engine(caller) as call:
        box = call("create", "--seed", "7")
        call("exec", box, "--", "sh", "-c", "echo base > f")
        names = call("fork", "-n", "2", box).split()
        names += call("fork", names[0]).split()
        got = [call("exec", name, "--", *DRAW) for name in (box, *names)]
        assert [json.loads(call("inspect", name))["random_seed"] for name in (box, *names)] == SEEDS
        assert got[1:] == DRAWN[1:]
        call("rm", *names, box)


def test_children_of_children_and_later_ones_differ():
    with Sandbox(POLICY) as box:
        assert seed_of(box) == SEEDS[0] and draw(box) == DRAWN[0]
        first = box.fork(2)
        snapshot = box.snapshot()
        box.reset()
        later = box.fork(2, snapshot=snapshot)
        grand = first[0].fork(2)
        every = [box, *first, *later, *grand]
        assert [seed_of(one) for one in (box, *first, grand[0])] == SEEDS
        assert [draw(one) for one in (*first, grand[0])] == DRAWN[1:]
        assert len({seed_of(one) for one in every}) == len(every)
        again = first[1]
        again.reset()
        assert draw(again) == DRAWN[2], "a reset begins with the same seed"
        kids = box.fork(2, same_seed=True)
        assert [seed_of(kid) for kid in kids] == [7, 7] and draw(kids[0]) == draw(kids[1]) == DRAWN[0]
        same = again.fork(1, same_seed=True)[0]
        assert seed_of(same) == SEEDS[2] and draw(same) == DRAWN[2]
    # As a policy with that seed has it, but for where /dev/urandom ends.
    with Sandbox(Policy(random_seed=SEEDS[1])) as box:
        alone, forked = draw(box).split(), DRAWN[1].split()
        assert alone[:3] + alone[4:] == forked[:3] + forked[4:]


def test_unseeded_forks_differ():
    with Sandbox() as box:
        kids = box.fork(2)
        assert seed_of(box) is None and seed_of(kids[0]) is None and draw(kids[0]) != draw(kids[1])


def test_fork_random_state_is_read_only():
    with Sandbox(POLICY) as box:
        kid = box.fork()[0]
        for path in ("/dev/urandom", "/proc/sys/kernel/random/uuid"):
            assert kid.exec(f"echo x > {path} || chmod 666 {path} || rm {path} || umount {path}").exit_code
        assert draw(kid).split()[1] != ""


@pytest.mark.once
def test_thousand_clones_have_a_thousand_seeds():
    with Sandbox(POLICY.replace(max_memory="16M")) as box:
        kids = [kid for _ in range(10) for kid in box.fork(100)]
        seeds = [seed_of(kid) for kid in kids]
        assert len(set(seeds)) == 1000 and seeds[:2] == SEEDS[1:3] and all(0 <= seed < 1 << 63 for seed in seeds)
        assert (
            kids[999].exec(["head", "-c", "4", "/dev/urandom"]).stdout
            != kids[0].exec(["head", "-c", "4", "/dev/urandom"]).stdout
        )


def test_asynchronous_forks_too():
    async def main():
        async with AsyncSandbox(POLICY) as box:
            kids = await box.fork(2)
            same = await box.fork(1, same_seed=True)
            return [(await kid.inspect())["random_seed"] for kid in (*kids, *same)]

    assert asyncio.run(main()) == [*SEEDS[1:3], 7]


def test_seeds_are_recorded_and_children_replayed_with_theirs(tmp_path):
    with Sandbox(POLICY, record=tmp_path / "a.jsonl") as box:
        box.exec(["true"])
        box.fork(3, record=False)
        kids = box.fork(2)
        same = box.fork(1, same_seed=True)[0]
        box.exec(["true"])
        with pytest.raises(CommandNotFound):
            box.exec(["no-program-of-that-name"])
        box.exec(["true"])
        box.reset()
        box.exec(["true"])
        names = [kid.name for kid in (*kids, same)]
        for kid in (*kids, same):
            draw(kid)
            kid.close()
    header, steps, _ = read(tmp_path / "a.jsonl")
    assert [(step.chance.seed, step.chance.stream) for step in steps if step.chance] == [
        (7, 0),
        (7, 1),
        (7, None),
        (7, 3),
        (7, 0),
    ]
    assert header.random_seed == 7 and [step.action.fields.get("seed") for step in steps] == [
        None,
        "derived",
        "derived",
        "same",
        None,
        None,
        None,
        None,
        None,
    ]
    seen = set()
    for index, name in enumerate(names):
        path = tmp_path / f"a.{name}.jsonl"
        kid, [step], trajectory = read(path)
        assert (
            trajectory.complete
            and kid.parent.index == index % 2
            and kid.random_seed == steps[2 + index // 2].children[index % 2].random_seed
        )
        assert step.chance.seed == kid.random_seed and step.chance.stream == 0
        assert (kid.random_seed == 7) == (name == names[2])
        seen.add(step.digest)
        done = subprocess.run(
            [binaries() / "rollbox", "verify", "--parent", tmp_path / "a.jsonl", path],
            capture_output=True,
        )
        assert done.stdout == b"equal: 1 step" + NO_FILES, done
    assert len(seen) == 3
