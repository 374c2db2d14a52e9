# SPDX-License-Identifier: Apache-2.0
"""The numbers by which programs choose sizes (sysconf, sysinfo, the files of a cgroup,
/proc/meminfo) show the sandbox's limits, not the host."""

import os
import shutil

import pytest
from harness import caller, skip  # noqa: F401
from rollbox import Policy, Sandbox

MIB = 1 << 20
START = ("--time-start", "2025-01-01T00:00:00")
KEYS = {
    "none": (),
    "seed": ("--seed", "7"),
    "offset": START,
    "virtual": ("--seed", "7", *START, "--time-mode", "virtual"),
    "serial": ("--seed", "7", *START, "--time-mode", "virtual", "--serial"),
}
SYSINFO = """
import ctypes, struct
buffer = ctypes.create_string_buffer(256)
assert ctypes.CDLL(None).sysinfo(buffer) == 0
uptime, *loads, total, free, shared, buffers, swap, free_swap = struct.unpack_from("q9Q", buffer)
procs, = struct.unpack_from("H", buffer, 80)
unit, = struct.unpack_from("I", buffer, 104)
print(total * unit >> 20, free <= total, loads, shared, buffers, swap, free_swap, procs, uptime)
"""
CHURN = """
public class Churn {
    public static void main(String[] arguments) {
        Object[] kept = new Object[64];
        long sum = 0;
        for (int i = 0; i < 20000; i++) {
            byte[] block = new byte[1 << 18];
            block[i & 1023] = 1;
            kept[i & 63] = block;
            sum += block[i & 1023];
        }
        System.out.println(sum);
    }
}
"""


def printed(caller, *arguments):
    result = caller.run(*arguments)
    assert result.outcome == "exit" and result.exit_code == 0, result.told
    return result.stdout.split()


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_sysconf_shows_the_memory_limit(caller, keys):
    assert printed(caller, *keys, "--memory", "256M", "--", "getconf", "_PHYS_PAGES") == [
        str(256 * MIB // os.sysconf("SC_PAGESIZE"))
    ]


def test_sysinfo_hides_the_hosts_memory(caller):
    total, fits, *rest, uptime = printed(caller, "--memory", "256M", "--", "/usr/bin/python3", "-I", "-c", SYSINFO)
    assert (total, fits, rest) == ("256", "True", ["[0,", "0,", "0]", "0", "0", "0", "0", "1"]) and int(uptime) < 60


def test_without_a_lower_limit_the_hosts_memory_is_shown(caller):
    pages = os.sysconf("SC_PHYS_PAGES")
    assert printed(caller, "--memory", "64T", "--", "getconf", "_PHYS_PAGES") == [str(pages)]


def test_cgroup_files_show_the_limits(caller):
    names = ("memory.max", "memory.swap.max", "pids.max", "cpu.max", "cgroup.controllers")
    words = printed(
        caller,
        "--memory",
        "256M",
        "--processes",
        "20",
        "--cpus",
        "1",
        "--",
        "sh",
        "-c",
        "cd /sys/fs/cgroup && cat " + " ".join(names),
    )
    assert words == [str(256 * MIB), "0", "20", "100000", "100000", "cpu", "memory", "pids"]
    assert printed(caller, "--", "cat", "/sys/fs/cgroup/cpu.max") == ["max", "100000"]


def test_session_commands_and_threads_see_the_limit():
    """In forks of what runs, too, and in processes that were there before."""
    loop = "import os, sys\nfor line in sys.stdin: print(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGESIZE') >> 20, flush=True)"
    with Sandbox(Policy(max_memory="256M")) as box:
        process = box.spawn(["/usr/bin/python3", "-c", loop])
        process.stdin.write(b"x\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"256\n"
        for kid in (*box.fork(2), box):
            copy = process if kid is box else kid.process(process.id)
            copy.stdin.write(b"x\n")
            copy.stdin.flush()
            assert copy.stdout.readline() == b"256\n"
            assert (
                kid.exec(["getconf", "_PHYS_PAGES"], text=True).stdout
                == f"{256 * MIB // os.sysconf('SC_PAGESIZE')}\n"
            )


def test_java_that_makes_garbage_keeps_to_its_limit(caller):
    if not shutil.which("java"):
        skip("needs java: no Java here")
    path = caller.directory(0o755) / "Churn.java"
    caller.write(path, CHURN)
    assert printed(caller, "--memory", "512M", "--readable", path, "--", "java", path) == ["20000"]
