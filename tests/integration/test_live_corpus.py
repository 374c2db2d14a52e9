# SPDX-License-Identifier: Apache-2.0
"""The corpus of checkpoints (live_corpus.py): each program is dumped, in forks and in forks of
forks, and finds its state unchanged everywhere."""

import contextlib
import os
import subprocess
import sys

import pytest

from live_corpus import PROGRAMS, asks, begin, files, missing
from rollbox import Sandbox

POLICY = {"max_processes": 200, "max_memory": "1G", "net": "loopback"}


@pytest.fixture
def program(name):
    """The files of a program, made in advance because a compiler may take longer than a test."""
    if missing(name):
        pytest.skip(f"{missing(name)} is not installed")
    return files(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_state_is_restored(name, program):
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


# In a pid namespace of its own, for which the default of memory files can be changed: prints their
# modes, here and in a fork.
NOT_EXECUTED = """
from rollbox import Sandbox
GUEST = '''
import os, sys
files = [os.memfd_create("m", flags) for flags in (2, 2 | 8, 2 | 16)]
for line in sys.stdin:
    print([oct(os.fstat(fd).st_mode & 0o7777) for fd in files], flush=True)
'''
with open("/proc/sys/vm/memfd_noexec", "w") as default:
    default.write("1")
with Sandbox() as box:
    origin = box.spawn(["python3", "-c", GUEST])
    def ask(process):
        process.stdin.write(b"?\\n")
        process.stdin.flush()
        return process.stdout.readline()
    first = ask(origin)
    with box.fork(1)[0] as kid:
        print(first.decode(), ask(kid.process(origin.id)).decode(), sep="", end="")
"""


def test_memory_files_where_they_are_not_executed_by_default():
    if os.geteuid() != 0:
        pytest.skip("needs root: to change vm.memfd_noexec of a pid namespace")
    if not os.path.exists("/proc/sys/vm/memfd_noexec"):
        pytest.skip("the kernel has no vm.memfd_noexec: Linux 6.3")
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", NOT_EXECUTED],
        capture_output=True,
        check=False,
    )
    first, copy = done.stdout.decode().splitlines()
    assert first == copy == "['0o666', '0o666', '0o777']", done
