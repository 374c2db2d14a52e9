# SPDX-License-Identifier: Apache-2.0
"""What a sandbox can find out about the host is on the list of docs/security.md: nothing else of /proc and /sys changes while the host does something else, and the files that tell of the kernel's build are named there."""

import json
import socket
import subprocess
from pathlib import Path

import pytest
from harness import caller  # noqa: F401
from rollbox import Policy, Sandbox

LISTED = Path(__file__).resolve().parents[2].joinpath("docs/security.md").read_text().split("## What is not covered")[1]

# Each of these names is in the list. Those that may change while the host works, and those that do not.
CHANGING = {"uptime", "locks", "net/softnet_stat", "net/sockstat", "net/protocols"}
STEADY = {"config.gz", "consoles", "crypto", "devices", "dma", "execdomains", "filesystems", "iomem", "ioports", "kallsyms", "misc", "modules", "tty", "version", "fb", "mtrr", "driver", "acpi", "dynamic_debug",
          "asound", "bootconfig", "cpu", "device-tree", "kcore", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "locks", "slabinfo", "sysrq-trigger", "vmallocinfo", "allocinfo", "pagetypeinfo"}
# The sandbox' own, or made for it.
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


@pytest.mark.parametrize("net", ["none", "loopback"])
def test_what_changes_with_the_host_is_listed(net):
    with Sandbox(Policy(net=net)) as box:
        process = box.spawn(["python3", "-c", WALK])

        def walk():
            process.stdin.write(b"\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        walk()
        before = walk()
        work_on_the_host()
        found = walk()
        process.stdin.close()
    changed = {path.removeprefix("/proc/").removeprefix("self/") for path in found if found[path] != before.get(path)}
    # The guest's own: new with each look, and the sockets that it has itself.
    assert changed - {"sys/kernel/random/uuid", "net/netlink"} <= CHANGING, changed - CHANGING
    for name in CHANGING:
        assert f"`/proc/{name}`" in LISTED, name


def test_files_of_proc_are_known(caller):
    """Each file of /proc that is not empty is the sandbox' own, or on the list."""
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
