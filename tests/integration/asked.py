# SPDX-License-Identifier: Apache-2.0
"""Guests whose state a test can ask for, for tests of checkpoints: `Asked` is a Python process in a
sandbox that executes the lines it
receives, `Typed` a shell on a terminal. Both have `of(box)`: the same process in a copy of its sandbox.
"""
import contextlib
import os
import re
import select
import time
from pathlib import Path

import pytest
from harness import DEADLINE, skip
from rollbox import FeatureMissing, Sandbox

ANSWERER = """
import sys
known = {}
for line in sys.stdin:
    try:
        print(repr(eval(line, known)), flush=True)
    except SyntaxError:
        exec(line, known)
        print("done", flush=True)
"""

PYTHON = ["python3", "-I", "-S", "-u", "-c"]


class Asked:
    """A Python process in a sandbox that executes the lines that it receives."""

    def __init__(self, process):
        self.process, self.id = process, process.id

    @classmethod
    def begin(cls, box, *setup):
        made = cls(box.spawn([*PYTHON, ANSWERER]))
        for line in setup:
            made(line)
        return made

    def __call__(self, line):
        if not self.process.stdin:
            raise BrokenPipeError("a copy that has ended before anybody asked it")
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().decode().rstrip("\n")

    def of(self, box):
        return Asked(box.process(self.id))


@pytest.fixture(scope="module", autouse=True)
def restorer():
    with Sandbox() as box:
        origin = Asked.begin(box, "x = 1")
        try:
            box.fork(1)[0].close()
        except FeatureMissing as problem:
            if "musl" in str(problem):
                skip("needs musl: the init that can hold processes is linked with it")
            raise
        assert origin("x") == "1"


def sh(box, script, **options):
    return box.exec(["sh", "-c", script], text=True, **options)


@contextlib.contextmanager
def closing(boxes):
    try:
        yield boxes
    finally:
        for box in boxes:
            box.close()


def process_state(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

SHELL = ["bash", "--norc", "--noprofile", "-i"]


class Typed:
    """A command with a terminal, and all that it has shown."""

    def __init__(self, process):
        self.process, self.id, self.shown = process, process.id, b""

    @classmethod
    def begin(cls, box, argv=SHELL, size=(31, 117)):
        made = cls(box.spawn(argv, pty=size, env={"PS1": "p> ", "TERM": "vt100"}))
        if argv is SHELL:
            made.shows(b"p> ")
        return made

    def shows(self, what):
        """Until it does: what came up to there."""
        deadline = time.monotonic() + DEADLINE
        while what not in self.shown:
            assert select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0], self.shown
            more = os.read(self.process.stdout.fileno(), 65536)
            assert more, self.shown
            self.shown += more
        before, _, self.shown = self.shown.partition(what)
        return before + what

    def __call__(self, text, what=b"p> "):
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()
        return self.shows(what)

    def of(self, box):
        return Typed(box.process(self.id))


def images(pid):
    """Those that a process has open: memory files, or files without a name in the place for them."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[entry.name] = os.readlink(entry)
    return {
        number: name
        for number, name in found.items()
        if "rollbox-image" in name or re.fullmatch(r"/#\d+ \(deleted\)", name)
    }


def node_of(box):
    return next(node for node in box.tree() if box.inspect()["name"] in node.sandboxes)


def noted(engine):
    found = 0
    for fd in os.listdir(f"/proc/{engine.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += "userfaultfd" in os.readlink(f"/proc/{engine.pid}/fd/{fd}")
    return found
