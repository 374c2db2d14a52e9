# SPDX-License-Identifier: Apache-2.0
"""docs/reference/host-visibility.md lists all facts about the host that a sandbox can find out:
nothing else of /proc and /sys changes while the host does something else, and the files that tell
of the kernel's build are named there."""

import fcntl
import json
import os
import socket
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest
from harness import caller, until  # noqa: F401
from rollbox import Policy, Sandbox

LISTED = Path(__file__).resolve().parents[2].joinpath("docs/reference/host-visibility.md").read_text()

# Each of these names is in the list. Those that may change while the host works, and those that do not.
CHANGING = {"uptime", "net/softnet_stat", "net/stat/rt_cache", "net/sockstat", "net/protocols"}
STEADY = {
    "config.gz",
    "consoles",
    "crypto",
    "devices",
    "dma",
    "execdomains",
    "filesystems",
    "iomem",
    "ioports",
    "kallsyms",
    "misc",
    "modules",
    "tty",
    "version",
    "fb",
    "mtrr",
    "driver",
    "acpi",
    "dynamic_debug",
    "asound",
    "bootconfig",
    "cpu",
    "device-tree",
    "kcore",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "slabinfo",
    "sysrq-trigger",
    "vmallocinfo",
    "allocinfo",
    "pagetypeinfo",
}
# The sandbox's own, or made for it.
OWN = {"cpuinfo", "loadavg", "meminfo", "stat", "sys", "sysvipc", "mounts", "net", "self", "thread-self", "vmstat"}

WALK = """
import json, os, sys
def look(path, found):
    try:
        if os.path.isdir(path):
            for name in os.listdir(path):
                if not os.path.islink(path + '/' + name):
                    look(path + '/' + name, found)
            return
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        found[path] = os.read(fd, 65536).hex()
    except OSError:
        pass
    finally:
        os.close(fd)
for line in sys.stdin:
    found = {}
    for name in os.listdir('/proc'):
        if not name.isdigit() and not os.path.islink('/proc/' + name):
            look('/proc/' + name, found)
    look('/sys', found)
    look('/proc/self/net', found)
    print(json.dumps(found), flush=True)
"""


def work_on_the_host():
    """Processes begin and end, packets go over loopback."""
    for _ in range(50):
        subprocess.run(["true"], check=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(200):
            with socket.create_connection(server.getsockname()), server.accept()[0] as accepted:
                accepted.send(b"x" * 100)


def before_and_after_work(program, policy):
    """The answers of a guest's program before and after the host was busy. A first answer is not
    used, because it contains work of the program itself."""
    with Sandbox(policy) as box:
        process = box.spawn(["python3", "-c", program])

        def ask():
            process.stdin.write(b"\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        ask()
        before = ask()
        work_on_the_host()
        found = ask()
        process.stdin.close()
    return before, found


@pytest.mark.parametrize("net", ["none", "loopback"])
def test_host_dependent_facts_are_listed(net):
    before, found = before_and_after_work(WALK, Policy(net=net))
    changed = {path.removeprefix("/proc/").removeprefix("self/") for path in found if found[path] != before.get(path)}
    # The guest's own: new with each look, and the sockets that it has itself.
    assert changed - {"sys/kernel/random/uuid", "net/netlink"} <= CHANGING, changed - CHANGING
    for name in CHANGING:
        assert f"`/proc/{name}`" in LISTED, name


def test_files_of_proc_are_known(caller):
    """Each file of /proc that is not empty is the sandbox's own, or on the list."""
    code = "import os\nfor n in os.listdir('/proc'):\n p = '/proc/' + n\n try: print(n, len(os.listdir(p)) if os.path.isdir(p) else len(open(p, 'rb').read(1)))\n except OSError: pass"
    rows = dict(line.split() for line in caller.python(code).stdout.splitlines())
    told = {name for name, length in rows.items() if length != "0" and not name.isdigit()}
    assert told <= OWN | STEADY | {"uptime", "locks"}, told - OWN - STEADY
    for name in told & STEADY:
        assert f"`{name}`" in LISTED, name


def test_masked_files_of_proc_are_empty(caller):
    """Counters of the host's interrupts, memory, disks and groups."""
    code = "import os\nfor n in ('interrupts', 'softirqs', 'buddyinfo', 'zoneinfo', 'diskstats', 'cgroups', 'swaps', 'schedstat', 'cmdline', 'key-users', 'keys', 'partitions'):\n if os.path.exists('/proc/' + n): print(open('/proc/' + n).read(), end='')"
    assert caller.python(code).stdout == ""


CALLS = """
import ctypes, json, os, resource, socket, struct, sys, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def inode(fd):
    number = os.fstat(fd).st_ino
    os.close(fd)
    return number
def in_memory(path):
    fd = os.open(path, os.O_RDONLY)
    length = (os.fstat(fd).st_size + 4095) // 4096
    at, pages = libc.mmap(None, ctypes.c_size_t(length * 4096), 1, 1, fd, ctypes.c_long(0)), (ctypes.c_ubyte * length)()
    os.close(fd)
    libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(length * 4096), pages)
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(length * 4096))
    return bytes(page & 1 for page in pages).hex()
def look():
    found = {}
    raw = ctypes.create_string_buffer(128)
    libc.sysinfo(raw)
    found['sysinfo'] = raw.raw[8:].hex()             # but for the time since the start
    for path in ('/', '/usr', '/etc', '/tmp', '/dev', '/dev/shm', '/proc'):
        s = os.statvfs(path)
        found['statfs ' + path] = [s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree]
    found['times'] = os.times().elapsed
    found['sched_getaffinity'] = sorted(os.sched_getaffinity(0))
    found['limits'] = [resource.getrlimit(i) for i in range(16)]
    found['clock_getres'] = [time.clock_getres(clock) for clock in (0, 1, 2, 3, 4, 5, 6, 7)]
    found['mincore'] = in_memory(os.path.realpath('/usr/bin/python3'))
    found['mountinfo'] = open('/proc/self/mountinfo').read()
    found['namespaces'] = {name: os.stat('/proc/self/ns/' + name).st_ino for name in os.listdir('/proc/self/ns')}
    found['uname'] = list(os.uname())
    ends = os.pipe()
    found['number of a pipe'] = inode(ends[0])
    os.close(ends[1])
    try: found['number of a memory file'] = inode(os.memfd_create('x'))
    except OSError: pass                                # refused where no memory cgroup counts it
    found['number of an eventfd'] = inode(os.eventfd(0))
    with socket.socket(socket.AF_UNIX) as s:
        found['number of a socket'] = os.fstat(s.fileno()).st_ino
        found['cookie of a socket'] = struct.unpack('Q', s.getsockopt(socket.SOL_SOCKET, 57, 8))[0]
    child = os.fork()
    if child == 0:
        os._exit(0)
    found['number of a pidfd'] = inode(os.pidfd_open(child))
    found['number in /proc'] = os.stat('/proc/%d/status' % child).st_ino
    os.waitpid(child, 0)
    return found
for line in sys.stdin:
    print(json.dumps(look()), flush=True)
"""

# The entries of the list, by their words. Numbers of the sandbox's own also increase by one each time.
ANSWERS = {
    "sysinfo": "`sysinfo`",
    "statfs": "`statfs`",
    "times": "`times`",
    "mincore": "`mincore`",
    "number of a pipe": "of pipes and sockets",
    "number of a socket": "of pipes and sockets",
    "number of a memory file": "of memory files",
    "cookie of a socket": "`SO_COOKIE`",
    "number of a pidfd": "of pidfds",
    "number in /proc": "of files in `/proc`",
}


def test_host_dependent_call_results_are_listed():
    """The clocks, which are time, aside: nothing else that a guest can ask for differs when the
    host was busy in between."""
    before, found = before_and_after_work(CALLS, Policy())
    changed = {name for name in found if found[name] != before[name]}
    known = {name for name in changed if name in ANSWERS or name.split()[0] in ANSWERS}
    assert changed == known, {name: (before[name], found[name]) for name in changed - known}
    for name, words in ANSWERS.items():
        assert words in LISTED, name


def test_locks_of_the_host_are_hidden(caller):
    """Locks of open file descriptions belong to no process, so the kernel shows them, with file and
    range, in each pid namespace."""
    with tempfile.TemporaryFile() as file:
        fcntl.fcntl(file, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))         # F_OFD_SETLK
        lock = f":{os.fstat(file.fileno()).st_ino} "
        until(lambda: lock in Path("/proc/locks").read_text())  # long, changing lists lose lines
        assert caller.run("--", "cat", "/proc/locks").stdout == ""
