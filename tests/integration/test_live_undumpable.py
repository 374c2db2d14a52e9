# SPDX-License-Identifier: Apache-2.0
"""Processes that are not dumpable (ssh-agent, gpg-agent) are captured as others are, and are not
dumpable afterwards."""

import json

import pytest
from harness import caller  # noqa: F401

GUEST = """import ctypes, sys
call = ctypes.CDLL(None).prctl
call(4, 0, 0, 0, 0)
print("ready", flush=True)
word = sys.stdin.readline()
print(word.strip(), call(3, 0, 0, 0, 0), flush=True)
"""

TRIAL = """import sys
sys.path.insert(0, %r)
import json
from rollbox import Sandbox
way, guest = %r, %r
with Sandbox() as box:
    process = box.spawn(["python3", "-c", guest], id="p")
    assert process.stdout.readline() == b"ready\\n"
    told = []
    if way == "fork":
        copy = box.fork(1)[0].process("p")
        copy.stdin.write(b"copy\\n"); copy.stdin.close()
        told.append(copy.wait().text.split()[-2])
        again = box.fork(1)[0].process("p")
        again.stdin.write(b"again\\n"); again.stdin.close()
        told.append(again.wait().text.split()[-2])
    else:
        box.hibernate()
        box.wake()
        process = box.process("p")
    process.stdin.write(b"origin\\n"); process.stdin.close()
    told += process.wait().text.split()[-2:]
print(json.dumps(told))
"""


@pytest.mark.parametrize("way, told", [("fork", ["copy", "again", "origin", "0"]), ("wake", ["origin"])])
def test_undumpable_process_resumes_in_forks(caller, way, told):
    """Its flag in a copy is not specified; the origin keeps its own."""
    done = caller.script(TRIAL, way, GUEST)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)[: len(told)] == told
