# SPDX-License-Identifier: Apache-2.0
"""States that could not be restored are refused when they are taken.

The model: a guest makes a state of an odd kind, and then there is one of two ends. A snapshot of it
is refused, naming the process; or a fork of that snapshot
works, and so does waking it after a hibernation. make check runs this file as root and as an ordinary user.
"""

import pytest

from harness import binaries
from rollbox import FeatureMissing, Policy, RollboxError, Sandbox
from stores import engine, store  # noqa: F401

PROGRAM = str(binaries())

# Zombies, each of a session of its own whose leader has been waited for.
ZOMBIES = """import ctypes, os, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)        # PR_SET_CHILD_SUBREAPER
for i in range(int(sys.argv[1])):
    ready, tell = os.pipe()
    leader = os.fork()
    if not leader:
        os.setsid()
        if not os.fork():
            os._exit(0)
        os._exit(0)
    os.close(tell)
    os.waitpid(leader, 0)
    os.read(ready, 1)                           # its end: both have ended
    os.close(ready)
print("up", flush=True)
time.sleep(100000)
"""

# The launcher waits for a plan that never comes; with a child of its own.
INIT = """import os, socket, sys, time
ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
child = os.fork()
if not child:
    if sys.argv[2] == "parent" and not os.fork():
        time.sleep(100000)
    os.dup2(its.fileno(), 3)
    os.set_inheritable(3, True)
    os.execv(sys.argv[1], [sys.argv[1], "0", "l"])
while open(f"/proc/{child}/comm").read() != "rollbox-launch\\n":
    os.sched_yield()
print("up", flush=True)
time.sleep(100000)
"""


def begun(engine, program, *arguments, **policy):  # noqa: F811
    box = Sandbox(Policy(**policy), engine=engine).__enter__()
    process = box.spawn(["python3", "-ISc", program, *arguments])
    assert process.stdout.readline() == b"up\n"
    return box


def holds(box):
    """Either end. The words of the refusal, or None."""
    try:
        snapshot = box.snapshot()
    except FeatureMissing as refused:
        with pytest.raises(FeatureMissing):
            box.hibernate()
        assert box.exec(["echo", "on"]).stdout == b"on\n"      # it still runs
        return str(refused)
    for kid in box.fork(1, snapshot=snapshot):
        assert kid.exec(["echo", "on"]).stdout == b"on\n"
        kid.close()
    box.hibernate()
    box.wake()
    assert box.exec(["echo", "on"]).stdout == b"on\n"
    return None


@pytest.mark.parametrize("n", [1, 30, 62])
def test_zombies_of_sessions_whose_leader_is_gone(engine, n):  # noqa: F811
    box = begun(engine, ZOMBIES, str(n), max_processes=64)
    words = holds(box)
    assert (words is None) if n < 40 else ("(python3)" in words and "max_processes" in words), words
    box.close()


@pytest.mark.parametrize("kind", ["alone", "parent"])
def test_guest_running_rollbox_init_is_harmless(engine, kind):  # noqa: F811
    box = begun(
        engine,
        INIT,
        f"{PROGRAM}/rollbox-init",
        kind,
        fs_readable=["/usr", "/lib", "/lib64", "/bin", "/etc", PROGRAM],
    )
    words = holds(box)
    assert words is None or "process" in words, words
    box.close()


def test_permanent_refusal_is_not_exhaustion(engine):  # noqa: F811
    """A permanent refusal is not reported as missing resources, for which a client would try again."""
    box = begun(engine, ZOMBIES, "62", max_processes=64)
    with pytest.raises(RollboxError) as refused:
        box.fork(1)
    assert isinstance(refused.value, FeatureMissing) and "again" not in str(refused.value)
    box.close()
