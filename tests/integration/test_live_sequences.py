# SPDX-License-Identifier: Apache-2.0
"""Forks, snapshots, resets, sleeps and ends in any order, of sandboxes that come of each other:
each has what it should have.

The model: a tree of Pythons that hold values, memory, children and a file, and what each of them
should say if it is asked, which is kept here. The next step is random, by a seed; after each step
one of them is asked. State that a preparation
for the most likely next step has made must not appear in another step.
"""

import contextlib
import random

import pytest

from harness import repeat_count
from rollbox import Engine, Sandbox
from asked import Asked, restorer, sh  # noqa: F401

SETUP = "import os, subprocess", "said = []", "touched = bytearray(1 << 20)", "kids = []"
ASK = "(said, sum(touched), open('/tmp/file').read() if os.path.exists('/tmp/file') else '', [(kid.stdin.write(b'a\\n'), kid.stdin.flush(), kid.stdout.readline())[2] for kid in kids])"
MOST = 6


class One:
    def __init__(self, box, asked, family, should=([], 0, "", [])):
        self.box, self.asked, self.family, self.should = box, asked, family, should

    def check(self):
        assert self.asked(ASK) == repr(self.should)

    def change(self, rng):
        said, touched, file, kids = self.should
        what = rng.choice(["say"] * 8 + ["write", "child", "much"])
        if what == "say":
            value = rng.randrange(1000)
            self.asked(f"said.append({value}); touched[{len(said)} << 12] = 1")
            said, touched = [*said, value], touched + 1
        elif what == "write":
            sh(self.box, "printf x >> /tmp/file")
            file += "x"
        elif what == "much":
            self.asked(f"much = os.urandom(1 << 16) * {rng.randrange(16, 64)}")
        elif len(kids) < 3:
            self.asked("kids.append(subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE))")
            kids = [*kids, b"a\n"]
        else:
            self.asked("kid = kids.pop(); kid.kill(); kid.wait(); kid.stdin.close(); kid.stdout.close()")
            kids = kids[:-1]
        self.should = said, touched, file, kids


@pytest.mark.timeout_s(600)
@pytest.mark.parametrize("seed", range(repeat_count(10, 4, 300)))
def test_operations_in_random_order(seed):
    rng = random.Random(seed)
    with Engine() as engine, contextlib.ExitStack() as stack:
        box = stack.enter_context(Sandbox({"max_processes": 40}, engine=engine))
        all_, snapshots, n_families = [One(box, Asked.begin(box, *SETUP), 0)], [], 1
        one = all_[0]
        for _ in range(40):
            one = one if one in all_ and rng.random() < 0.8 else rng.choice(all_)
            own = [snapshot for snapshot in snapshots if snapshot[0] == one.family]
            what = rng.choice(
                ["change"] * 8
                + ["fork"] * 8
                + ["snapshot"] * 4
                + ["fork of"] * 5
                + ["reset"] * 2
                + ["drop", "sleep", "pause", "close"]
            )
            if what == "change":
                one.change(rng)
            elif what == "fork" or (what == "fork of" and own):
                family, id, asked, should = (
                    rng.choice(own[-2:])
                    if what == "fork of"
                    else (one.family, None, one.asked, one.should)
                )
                kids = [
                    One(stack.enter_context(kid), asked.of(kid), family, should)
                    for kid in one.box.fork(
                        rng.choice([1, 1, 1, 2, 3, 16 if id and rng.random() < 0.1 else 1]),
                        snapshot=id,
                    )
                ]
                for kid in kids:
                    kid.check()
                if len(kids) > 3 or rng.random() < 0.7:      # it was no good
                    for kid in kids:
                        kid.box.close()
                else:
                    all_ += kids
            elif what == "snapshot":
                snapshots.append((one.family, one.box.snapshot().id, one.asked, one.should))
            elif what == "reset" and own:
                _, id, asked, one.should = rng.choice(own[-2:])
                one.box.reset(id)
                one.asked = asked.of(one.box)
            elif what == "drop" and own:
                snapshots.remove(dropped := rng.choice(own))
                if dropped[:2] not in [snapshot[:2] for snapshot in snapshots]:
                    one.box.drop(dropped[1])
            elif what == "sleep":
                one.box.hibernate()
                one.asked, one.family, n_families = (
                    one.asked.of(one.box),
                    n_families,
                    n_families + 1,
                )  # its states have names of their own since
            elif what == "pause":
                one.box.pause()
                one.box.resume()
            while len(all_) > MOST or (what == "close" and len(all_) > 1):
                all_.pop(rng.randrange(len(all_))).box.close()
                what = ""
            rng.choice(all_).check()
        for one in all_:
            one.check()
