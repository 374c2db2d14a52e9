# SPDX-License-Identifier: Apache-2.0
"""Sandboxes of many users that one ordinary user runs have the same ids, but each has the limits of
its policy for itself."""

import os
import sys

import pytest
from harness import ORDINARY_UID, TREE, Caller, binaries
from many_users import give_ids, has_ids

PROGRAM = """
import rollbox
with rollbox.Engine() as engine:
    policy = rollbox.Policy(users="many", max_processes=24)
    boxes = [rollbox.Sandbox(policy, engine=engine) for _ in range(4)]
    kids = boxes[0].fork(1)
    for box in boxes + kids:
        done = box.exec(["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1000 & done"], text=True)
        print(done.exit_code, done.stderr.strip())
    print(boxes[0].exec(["python3", "-c", '''
import os
def forked():
    try:
        pid = os.fork()
    except OSError:
        return False
    if pid == 0:
        import signal
        signal.pause()
    return True
print("bounded" if [forked() for _ in range(40)].count(True) < 24 else "unbounded")
''']).stdout.decode().strip())
"""


@pytest.fixture
def user():
    if os.geteuid() == 0:
        give_ids()
        return Caller("user", ORDINARY_UID)
    if not has_ids():
        pytest.skip("this user has no range of ids")
    return Caller("user", os.geteuid())


@pytest.mark.parametrize("masked", ["", "-cgroup"])
def test_processes_of_one_sandbox_leave_room_for_those_of_another(user, masked):
    """They were counted together, so 100 forks of an environment with servers could start nothing."""
    env = user.environment(
        ROLLBOX_LIBRARY=str(binaries() / "librollbox.so"),
        PYTHONPATH=str(TREE / "python"),
        ROLLBOX_KFEAT=masked,
    )
    done = user.call(sys.executable, "-c", PROGRAM, env=env)
    assert done.stdout.decode().split("\n") == ["0 "] * 5 + ["bounded", ""], done
