# SPDX-License-Identifier: Apache-2.0
"""A guest cannot hold up the host's other programs by leases or by writing out their data."""

import pytest
from harness import PYTHON, binaries, caller, skip  # noqa: F401

# Also run with kernel features masked (ROLLBOX_KFEAT): where a promise has two layers, either must hold it.
pytestmark = pytest.mark.masked


def test_guest_cannot_lease_a_granted_file(caller):
    """A lease on a readable file would delay every program of the host that opens the file for writing."""
    top = caller.directory(0o755)
    caller.write(top / "file", "text")
    result = caller.python(
        f"import fcntl\nwith open('{top}/file') as f:\n    try: print(fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_RDLCK))\n    except OSError: pass",
        "--readable",
        top,
    )
    assert (result.outcome, result.exit_code, result.stdout) == ("exit", 0, ""), result.told


DIRTY = """
import ctypes, os, subprocess, sys
libc, room = ctypes.CDLL(None), (ctypes.c_uint64 * 5)()
def dirty(file):
    # cachestat: of the file's pages, how many are to be written yet
    if libc.syscall(451, file, (ctypes.c_uint64 * 2)(0, 0), room, 0): sys.exit("no cachestat")
    return room[1]
def left():
    file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(file, b"x" * 4096)
    if not dirty(file): sys.exit("nothing waits on this file system")
    subprocess.run(sys.argv[2:], check=True)
    return dirty(file)
print(any(left() for i in range(5)))
"""


@pytest.mark.parametrize("level", ["namespace", "process"])
def test_sync_does_not_write_the_hosts_disks(caller, level):
    """sync and syncfs would write the data of all programs of the host.

    A process in that call cannot be killed, so no time-out would end it.
    """
    sync = "import os, ctypes; os.sync(); ctypes.CDLL(None).syncfs(os.open('/usr', os.O_RDONLY))"
    run = (binaries() / "rollbox", "run", "--isolation", level, "--", *PYTHON, sync)
    done = caller.call("/usr/bin/python3", "-c", DIRTY, caller.directory() / "waiting", *run)
    if done.returncode == 1 and done.stderr.startswith(b"no"):
        skip(f"needs cachestat: {done.stderr.decode().strip()}")
    assert (done.returncode, done.stdout) == (0, b"True\n"), done
