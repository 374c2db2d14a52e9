# SPDX-License-Identifier: Apache-2.0
"""Shared memory of System V is there where a memory cgroup counts it, and where none does with a
bound for the whole sandbox."""

import glob

import pytest
from harness import caller, has_cgroup, skip  # noqa: F401
from rollbox import Engine, Policy, Sandbox

INSTALLED = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
SERVER = f"""
export LC_ALL=C PATH={"".join(INSTALLED[-1:])}:$PATH
initdb -D /tmp/data -A trust -U me >/tmp/log 2>&1 || {{ cat /tmp/log; exit 1; }}
pg_ctl -D /tmp/data -w -o "-k /tmp -c listen_addresses=''" -l /tmp/log start >/dev/null || {{ cat /tmp/log; exit 1; }}
"""
CALLS = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
def segment(size):
    id = libc.shmget(0, ctypes.c_size_t(size), 0o1600)
    return id if id >= 0 else errno.errorcode[ctypes.get_errno()]
"""
# What nobody has mapped any more, and holds its pages.
HOARD = """
ids = []
while isinstance(id := segment(1 << 20), int):
    at = libc.shmat(id, None, 0)
    ctypes.memset(at, 1, 1 << 20)
    libc.shmdt(ctypes.c_void_p(at))
    ids.append(id)
print(len(ids), id)
print(segment(4096))
libc.shmctl(ids[0], 0, None)
print(isinstance(segment(1 << 20), int))
"""


def printed(caller, code, *flags):
    result = caller.run(*flags, "--", "python3", "-c", CALLS + code)
    assert result.outcome == "exit" and result.exit_code == 0, result.told
    return result


@pytest.mark.parametrize("memory", [64, 512])
def test_uncounted_segments_are_bounded(caller, memory):
    """A segment that no process has mapped is charged to a memory cgroup alone; without one, all of
    them are a sixteenth of max_memory, and 16 MiB at the most."""
    result = caller.run("--memory", f"{memory}M", "--", "python3", "-c", CALLS + HOARD)
    if has_cgroup(result):
        assert result.outcome == "out_of_memory", result.told
        return
    assert result.stdout == f"{min(memory // 16, 16)} ENOSPC\nENOSPC\nTrue\n", result.told


def test_guest_cannot_raise_the_bound(caller):
    """Its file is covered by a copy, on a mount that is read-only."""
    code = """
import os
for path in ("/proc/sys/kernel/shmall", "/proc/self/root/proc/sys/kernel/shmall", "/proc/1/root/proc/sys/kernel/shmall"):
    try:
        os.write(os.open(path, os.O_WRONLY), b"1000000")
        print("raised by", path)
    except OSError as error:
        assert error.errno in (errno.EROFS, errno.EACCES, errno.EPERM), error
"""
    assert printed(caller, code).stdout == ""


def test_bound_is_reported(caller):
    """Programs look it up before they ask for a segment: by the call, or in /proc."""
    code = """
info = (ctypes.c_ulong * 16)()
assert libc.shmctl(0, 3, info) >= 0
print(info[4], open("/proc/sys/kernel/shmall").read().strip())
"""
    result = printed(caller, code, "--memory", "64M")
    called, read = result.stdout.split()
    assert called == read and (has_cgroup(result) or int(called) == 1024), result.told


def test_forks_and_woken_sessions_keep_the_bound(monkeypatch):
    """Each has an IPC namespace of its own, which its init bounds again."""
    monkeypatch.setenv("ROLLBOX_KFEAT", "-cgroup")
    code = CALLS + """
info = (ctypes.c_ulong * 16)()
libc.shmctl(0, 3, info)
print(info[4], segment(info[4] * 4096 + 4096))
"""

    def bound(box):
        return box.exec(["python3", "-c", code], text=True).stdout

    with Engine() as engine, Sandbox(Policy(max_memory="128M"), engine=engine) as box:
        box.spawn(["sleep", "1000"])
        assert bound(box) == "2048 ENOSPC\n"
        with box.fork(1)[0] as kid:
            assert bound(kid) == "2048 ENOSPC\n"
        box.hibernate()
        box.wake()
        assert bound(box) == "2048 ENOSPC\n"


def test_segments_are_shared_with_children_and_end_with_the_sandbox(caller):
    code = """
import os
id = segment(4096)
libc.shmget(7, 4096, 0o1600)
at = libc.shmat(id, None, 0)
if os.fork() == 0:
    ctypes.memmove(at, b"from the child", 14)
    os._exit(0)
os.wait()
print(ctypes.string_at(at, 14).decode(), libc.shmget(7, 4096, 0o3600) >= 0)
"""
    for _ in range(2):
        assert printed(caller, code).stdout == "from the child False\n"


ASK = "psql -h /tmp -U me -At -c 'select sum(n) from generate_series(1, 1000) n' postgres"


@pytest.fixture
def postgresql():
    if not INSTALLED:
        skip("PostgreSQL is not installed")


def test_postgresql_serves_a_query(caller, postgresql):
    """Its initdb and its server have a segment each, by which a second server would know of the first."""
    result = caller.run("--timeout", "120", "--", "sh", "-c", SERVER + ASK)
    assert (result.outcome, result.stdout) == ("exit", "500500\n"), result.told


def test_postgresql_in_a_session(postgresql):
    """Commands find the server of an earlier one. test_live_sysv_shm.py has its forks."""
    with Sandbox(Policy(max_memory="512M")) as box:
        assert box.exec(["sh", "-c", SERVER], timeout=120).exit_code == 0
        assert box.exec(["sh", "-c", ASK], text=True).stdout == "500500\n"
        assert box.snapshot().processes > 1
        assert box.exec(["sh", "-c", ASK], text=True).stdout == "500500\n"
