# SPDX-License-Identifier: Apache-2.0
"""Holes that a review of the finished isolation `namespace` found, each named after what it let a guest do."""

import os
import tempfile
from pathlib import Path

import pytest
from harness import PYTHON, binaries, caller, skip  # noqa: F401

# Also run with kernel features masked (ROLLBOX_KFEAT): where a promise has two layers, either must hold it.
pytestmark = pytest.mark.masked


@pytest.mark.parametrize("grant", ["--readable", "--shared", "--writable"])
def test_denied_is_not_readable_where_late_grants_are_kept(caller, grant):
    """A grant below /var/tmp is kept aside and put in place in each sandbox: what is denied in it must not be open at the other place."""
    top = caller.directory(0o755)
    (top / "private").mkdir()
    caller.own(top / "private")
    caller.write(top / "secret", "secret")
    caller.write(top / "private/file", "secret")
    result = caller.run(
        grant, top, "--denied", top / "secret", "--denied", top / "private", "--", "sh", "-c",
        "find / -xdev -name secret -o -path '*/private/file' 2>/dev/null; cat /.rollbox/*/secret /.rollbox/*/private/file",
    )  # fmt: skip
    assert "secret" not in result.stdout.replace(str(top / "secret"), ""), result.told
    assert "private/file" not in result.stdout, result.told


def test_no_lease_on_a_granted_file(caller):
    """A guest with its owner's id could take a lease on a file that it may only read, and hold up whoever opens that file for writing."""
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
def test_nobody_writes_out_the_hosts_disks(caller, level):
    """sync and syncfs of any file write what all programs of the host have written; who waits for that cannot be killed, so no time-out ends it."""
    sync = "import os, ctypes; os.sync(); ctypes.CDLL(None).syncfs(os.open('/usr', os.O_RDONLY))"
    run = (binaries() / "rollbox", "run", "--isolation", level, "--", *PYTHON, sync)
    done = caller.call("/usr/bin/python3", "-c", DIRTY, caller.directory() / "waiting", *run)
    if done.returncode == 1 and done.stderr.startswith(b"no"):
        skip(f"needs cachestat: {done.stderr.decode().strip()}")
    assert (done.returncode, done.stdout) == (0, b"True\n"), done


def test_cgroup_paths_tell_nothing(caller):
    """The paths of the host's cgroups (a session's, a container's, the engine's with its process id) could be read from /proc/self/cgroup."""
    if not os.path.exists("/proc/self/ns/cgroup"):
        skip("needs cgroup namespaces")
    result = caller.run("--", "cat", "/proc/self/cgroup")
    assert result.exit_code == 0 and {line.split(":", 2)[2] for line in result.stdout.splitlines()} <= {"/"}, result.told


NOTE = (
    "import socket\n"
    "print(open('/proc/net/snmp').read(), open('/proc/net/snmp6').read(), open('/proc/net/ip6_flowlabel').read())\n"
    "for family, to in ((socket.AF_INET, '192.0.2.1'), (socket.AF_INET6, '2001:db8::1')):\n"
    "    try: s = socket.socket(family, socket.SOCK_DGRAM)\n"
    "    except PermissionError: continue\n"
    "    with s:\n"
    "        if family == socket.AF_INET6:\n"
    "            try: s.setsockopt(socket.IPPROTO_IPV6, 32, socket.inet_pton(family, to) + bytes.fromhex('00012345 00 ff 0100 0600 0600 00000000'))\n"
    "            except OSError: pass\n"
    "        for i in range(42):\n"
    "            try: s.sendto(b'x', (to, 9))\n"
    "            except OSError: pass\n"
)


def test_network_namespace_carries_no_note(caller):
    """A network namespace that is used again had counters of failed packets and flow labels of the guest before: a message to the next one."""
    rows = caller.batch([{"id": str(i), "argv": [*PYTHON, NOTE]} for i in range(12)], "-j", "1")
    assert rows["0"]["exit_code"] == 0, rows["0"]
    assert {row["stdout"] for row in rows.values()} == {rows["0"]["stdout"]}


# A bound socket goes into a queue of a pair that is itself in that queue: nobody holds any of them any more, and the kernel's collector has them until it comes.
IN_FLIGHT = (
    "import array, os, socket\n"
    "seen = open('/proc/net/unix').read().count('@note')\n"
    "a, b = socket.socketpair()\n"
    "s = socket.socket(socket.AF_UNIX)\n"
    "s.bind('\\0note')\n"
    "a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [a.fileno(), b.fileno(), s.fileno()]))])\n"
    "print(seen)\n"
)


def test_sockets_in_flight_carry_no_note(caller):
    """Nor has the next guest the name of a socket that outlives its process."""
    rows = caller.batch([{"id": str(i), "argv": [*PYTHON, IN_FLIGHT]} for i in range(12)], "-j", "1")
    assert [(row["stdout"], row["stderr"]) for row in rows.values()] == [("0\n", "")] * 12


@pytest.mark.parametrize("kind", ["--denied", "--readable"])
@pytest.mark.parametrize("place", ["/var/tmp", "/opt"])
def test_parents_inside_a_shared_grant_cannot_be_moved(caller, kind, place):
    """A directory of a shared grant that holds something denied or read-only could be renamed: open under its new name in the next run, and replaced under its old one."""
    if place == "/opt" and not os.access("/opt", os.W_OK):
        skip("/opt cannot be written to")
    with tempfile.TemporaryDirectory(dir=place, prefix="rollbox-test-") as name:
        top = Path(name)
        (top / "a/b/c").mkdir(parents=True)
        caller.own(top, top / "a", top / "a/b", top / "a/b/c")
        caller.write(top / "a/b/c/file", "original")
        caller.write(top / "a/b/d", "also")
        flags = ["--shared", top, kind, top / "a/b/c/file", kind, top / "a/b/d"]
        moved = caller.python(
            f"import os\nos.chdir('{top}')\n"
            "for old, new in (('a', 'z'), ('a/b', 'z'), ('a/b', 'a/z'), ('a/b/c', 'a/b/z'), ('a/b/c/file', 'z'), ('a/b/d', 'a/b/z'), ('z', 'a/b/d')):\n"
            "    try: os.rename(old, new)\n    except OSError: pass\n"
            "for new in ('new', 'a/b/c/new'): open(new, 'w').write('fine')\n",
            *flags,
        )
        assert moved.exit_code == 0, moved.told
        assert sorted(str(p.relative_to(top)) for p in top.rglob("*")) == ["a", "a/b", "a/b/c", "a/b/c/file", "a/b/c/new", "a/b/d", "new"], moved.told
        assert (top / "a/b/c/file").read_text() == "original" and (top / "a/b/c/new").read_text() == "fine"
