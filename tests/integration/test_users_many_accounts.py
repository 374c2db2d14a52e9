# SPDX-License-Identifier: Apache-2.0
"""Sandboxes of many users that an ordinary user runs have the same ids, and so have those of root
on older kernels. But each has the limits of its policy for itself."""

import sys

import pytest
from harness import TREE, binaries
from many_users import plain_callers

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


@pytest.mark.parametrize("masked", ["", "-cgroup", "-cgroup,-idmapped_mounts"])
@pytest.mark.parametrize("user", plain_callers(), ids=repr)
def test_processes_of_one_sandbox_leave_room_for_those_of_another(user, masked):
    """They were counted together, so 100 forks of an environment with servers could start nothing."""
    env = user.environment(
        ROLLBOX_LIBRARY=str(binaries() / "librollbox.so"),
        PYTHONPATH=str(TREE / "python"),
        ROLLBOX_KFEAT=masked,
    )
    done = user.call(sys.executable, "-c", PROGRAM, env=env)
    assert done.stdout.decode().split("\n") == ["0 "] * 5 + ["bounded", ""], done


FORKS = """
import rollbox
with rollbox.Engine() as engine:
    box = rollbox.Sandbox(rollbox.Policy(users="many", max_processes=4), engine=engine)
    box.exec(["touch", "/tmp/file"])
    print(len(box.fork(60)))
"""


@pytest.mark.parametrize("user", plain_callers(), ids=repr)
def test_more_sandboxes_than_processes_of_one_are_set_up_at_once(user):
    """The limit of a sandbox was that of all which were being set up, so some failed."""
    env = user.environment(
        ROLLBOX_LIBRARY=str(binaries() / "librollbox.so"), PYTHONPATH=str(TREE / "python")
    )
    done = user.call(sys.executable, "-c", FORKS, env=env)
    assert done.stdout == b"60\n", done
