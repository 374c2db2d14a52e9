# SPDX-License-Identifier: Apache-2.0
"""Run by root, every sandbox has an id of its own on the host: what the kernel counts by user, one sandbox cannot use up for another.

The hog takes all of something and says how much; its neighbour, of the same policy, must find what it finds beside nobody.
"""

import itertools
import os

import pytest
from harness import processes, until
from rollbox import Engine, Policy, Sandbox

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="an ordinary user has one id, which all sandboxes share")

PIPES = """
import fcntl, os
held = []
while True:
    held.append(os.pipe())
    if fcntl.fcntl(held[-1][1], 1032) < 65536:
        break
print("full", flush=True)
"""
RIGHTS = """
import os, socket
held = []
try:
    while True:
        held.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
        socket.send_fds(held[-1][0], [b"x"], [0] * 250)
except OSError as error:
    print("full" if error.errno == 109 else error, flush=True)
"""
NUMBERS = itertools.count()
HOGS = {"pipes": PIPES, "rights": RIGHTS}
NEIGHBOUR = """
import fcntl, os, socket
print(fcntl.fcntl(os.pipe()[1], 1032))
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
socket.send_fds(a, [b"x"], [0, 1])
"""


@pytest.fixture(scope="module")
def engine():
    with Engine() as engine:
        yield engine


def fill(box, kind):
    """The process holds what it took until the box is closed."""
    hog = box.spawn(["python3", "-c", HOGS[kind] + "\nimport signal\nsignal.pause()"])
    assert hog.stdout.readline() == b"full\n"


def look(run):
    result = run(["python3", "-c", NEIGHBOUR], timeout=60, text=True)
    assert (result.stdout, result.stderr) == ("65536\n", "")


@pytest.mark.parametrize("kind", HOGS)
def test_sessions_do_not_share_per_user_counts(engine, kind):
    with Sandbox(Policy(), engine=engine) as box, Sandbox(Policy(), engine=engine) as other:
        other.exec(["true"])
        fill(box, kind)
        look(other.exec)
        look(Sandbox(Policy(), engine=engine).run)


@pytest.mark.parametrize("kind", HOGS)
def test_forks_do_not_share_per_user_counts(engine, kind):
    with Sandbox(Policy(), engine=engine) as box:
        box.write_file("/tmp/file", b"of the parent")
        _living = box.spawn(["sleep", "1000"])
        kids = box.fork(2)
        fill(kids[0], kind)
        for one in (kids[1], box):
            look(one.exec)
            assert one.exec(["stat", "-c", "%u %g", "/tmp/file"]).stdout == one.exec("echo $(id -u) $(id -g)").stdout
            assert one.exec("echo more >> /tmp/file && chmod 600 /tmp/file && rm /tmp/file").exit_code == 0
        for kid in kids:
            kid.close()


def host_ids(boxes):
    """The user ids on the host of a process that runs in each box."""
    found = []
    for box in boxes:
        argv = ["sleep", f"{os.getpid()}.{next(NUMBERS)}"]
        box.spawn(argv)
        until(lambda argv=argv: processes(*argv))
        found += [os.stat(f"/proc/{pid}").st_uid for pid in processes(*argv)]
    return found


def test_every_sandbox_has_an_id_of_its_own(engine):
    boxes = [Sandbox(Policy(), engine=engine) for _ in range(3)]
    boxes[0].write_file("/tmp/file", b"")
    boxes += boxes[0].fork(2)
    ids = host_ids(boxes)
    assert len(set(ids)) == len(boxes) == len(ids) and not set(ids) & {0, 65534}
    for box in boxes:
        box.close()


@pytest.mark.parametrize("key", ["fs_writable", "fs_shared", "disk_at"])
def test_sandboxes_that_share_an_id_are_of_one_policy(engine, key, tmp_path):
    """What of the host they own is mounted once, for one id (docs/reference/security-limits.md); a policy that differs in a word has another."""
    tmp_path.chmod(0o755)
    more = {key: "store" if key == "disk_at" else [str(tmp_path)]}
    boxes = [Sandbox(Policy(hostname=name, **more), engine=engine) for name in ("one", "one", "other")]
    one, same, other = host_ids(boxes)
    assert one == same != other and not {one, other} & {0, 65534}
    for box in boxes:
        box.close()


def test_ids_stay_unique_after_many_sandboxes(engine):
    with Sandbox(Policy(), engine=engine) as box:
        (first,) = host_ids([box])
        for _ in range(40):
            with Sandbox(Policy(), engine=engine) as other:
                assert other.exec(["true"]).exit_code == 0
        with Sandbox(Policy(), engine=engine) as other:
            assert host_ids([other]) != [first]
