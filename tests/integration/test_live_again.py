# SPDX-License-Identifier: Apache-2.0
"""Sandboxes that are forked again and again as they run: from the third time on a fork is what has changed since an earlier one (src/engine/tracking.h, src/guest/restore_amend.c).

The model: a guest changes all that it has, by numbers (guests/changer.c), and digests it. A fork has to answer as its origin does, at once and after it has gone on by itself; whatever was done to the origin in between.
"""

import contextlib
import random
import threading

import pytest

from rollbox import Engine, Policy, Sandbox
from harness import children, guest, rounds, until

PROGRAM = "/tmp/changer"


class Changer:
    def __init__(self, process):
        self.process, self.id = process, process.id

    @classmethod
    def begin(cls, box):
        box.upload(guest("changer"), PROGRAM)
        return cls(box.spawn([PROGRAM]))

    def __call__(self, what="?"):
        self.process.stdin.write(f"{what}\n".encode())
        self.process.stdin.flush()
        return self.process.stdout.readline().decode().strip()

    def of(self, box):
        return Changer(box.process(self.id))


def alike(changer, kid, chance):
    copy = changer.of(kid)
    assert copy() == changer()
    for _ in range(2):
        what = chance.randrange(1 << 40)
        assert copy(what) == changer(what)


@pytest.mark.parametrize("seed", range(6))
def test_forks_are_as_their_origin_whatever_it_did_since_the_last(seed):
    chance = random.Random(seed)
    with Sandbox() as box:
        changer = Changer.begin(box)
        for _ in range(chance.randrange(30)):
            changer(chance.randrange(1 << 40))
        for _ in range(rounds(200, 40)):
            with box.fork(1)[0] as kid:
                alike(changer, kid, chance)
            for _ in range(chance.choice([0, 1, 1, 3, 10])):
                changer(chance.randrange(1 << 40))
