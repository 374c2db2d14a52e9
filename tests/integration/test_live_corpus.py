# SPDX-License-Identifier: Apache-2.0
"""The corpus of live states (live_corpus.py): each program is captured, in forks and in forks of forks, and is what it was everywhere."""

import contextlib

import pytest

from live_corpus import PROGRAMS, begin, files, missing
from rollbox import Sandbox

POLICY = {"max_processes": 200, "max_memory": "1G", "net": "loopback"}


def asks(process, times=1):
    """What it says to that many questions; the last words of its standard error where that is not "ok"."""
    said = []
    for _ in range(times):
        process.stdin.write(b"check\n")
        process.stdin.flush()
        said.append(process.stdout.readline().decode().rstrip("\n"))
    return said


@pytest.fixture
def program(name):
    """What it needs, which a compiler may take longer to make than a test has."""
    if missing(name):
        pytest.skip(f"{missing(name)} is not installed")
    return files(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_it_was(name, program):
    with Sandbox(POLICY) as box, contextlib.ExitStack() as stack:
        for path, content in program.items():
            box.write_file(path, content, mode=0o755)
        origin = begin(box, name)
        kids = box.fork(2)
        for kid in kids:
            stack.enter_context(kid)
        copies = [kid.process(origin.id) for kid in kids]
        assert asks(copies[0], 2) == ["ok"] * 2
        assert asks(origin, 2) == ["ok"] * 2
        (grandchild,) = kids[0].fork(1)
        stack.enter_context(grandchild)
        again = grandchild.process(origin.id)
        assert asks(again) == ["ok"] and asks(copies[1]) == ["ok"] and asks(copies[0]) == ["ok"]
        for process in (again, origin):
            process.stdin.close()
            assert process.wait(60).exit_code == 0
