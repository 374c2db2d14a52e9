# SPDX-License-Identifier: Apache-2.0
"""Limits hold for the whole sandbox, each ends a run with its own outcome or errno, and what the
guest reads of the machine is its own."""

import os
import re
import shutil
import tempfile
import threading
from pathlib import Path

import pytest
from harness import binaries, caller, guest, has_cgroup, skip, wait_writers_gone  # noqa: F401
from rollbox import Policy, Sandbox
from attempts import (fifo_in_grant)

# Also run with kernel features masked (ROLLBOX_KFEAT): without a cgroup, rlimits and the watcher must hold the limits.
pytestmark = pytest.mark.masked

MIB = 1 << 20


def got(result):
    """The count that the guest reached, and the errno that ended it."""
    assert result.outcome == "exit" and result.exit_code == 0, result.told
    count, number = re.fullmatch(r"got (\d+) errno (\d+)\n", result.stdout).groups()
    return int(count), int(number)


# ---- memory ----


@pytest.mark.parametrize("kind", ["private", "mapshared", "hidden", "locked", "memfd", "children", "sysv"])
def test_memory(caller, kind):
    """Eight times the limit is never had at once: private, shared, out of sight, locked, memfd, of
    many processes, of none."""
    result = caller.guest("memory_load", kind, 512, flags=["--memory", "64M"])
    assert "SURVIVED" not in result.stdout, result.told
    assert result.outcome in ("out_of_memory", "exit", "signal"), result.told
    assert result.exit_code != 0 and result.peak_memory_bytes < 128 * MIB, result.told


@pytest.mark.parametrize("level", ["namespace", "process"])
@pytest.mark.parametrize("kind", ["leaderless", "hiddenleaderless", "unseen", "unreadable"])
def test_hidden_memory_counts(caller, kind, level):
    """Memory is not hidden by a process whose main thread has ended, or that an ordinary user may
    not inspect, by its own choice or because its program is unreadable."""
    result = caller.guest("memory_load", kind, 512, flags=["--memory", "64M", "--isolation", level])
    assert "SURVIVED" not in result.stdout and result.outcome == "out_of_memory", result.told


@pytest.mark.parametrize("kind", ["private", "mapshared", "children"])
def test_memory_outcome(caller, kind):
    """Memory that a program touches beyond the limit ends it as out_of_memory, where a cgroup holds it."""
    result = caller.guest("memory_load", kind, 512, flags=["--memory", "64M"])
    if not has_cgroup(result) and kind != "private":
        skip("no cgroup here: rlimits refuse the memory to the guest instead")
    assert result.outcome == "out_of_memory", result.told


def test_memory_bytearray(caller):
    """The way it is reported in the wild: a bytearray of 1 GiB under 64 MiB is out_of_memory."""
    result = caller.run("--memory", "64M", "--", "python3", "-c", "x=bytearray(1<<30)")
    assert (result.outcome, result.exit_code, result.signal) == ("out_of_memory", None, None), result.told


@pytest.mark.parametrize("path", ["/tmp/large", "/dev/shm/large"])
def test_memory_of_tmpfs(caller, path):
    """Files in memory count: they cannot be used to have more than the limit."""
    result = caller.guest("memory_load", "file", 512, path, flags=["--memory", "64M", "--disk", "1G"])
    assert "SURVIVED" not in result.stdout, result.told
    assert result.outcome in ("out_of_memory", "exit"), result.told


@pytest.mark.parametrize("kind", ["pipes", "sockets", "tables"])
def test_memory_of_the_kernel(caller, kind):
    """Buffers in the kernel (pipes, sockets, page tables) are charged to the sandbox or limited in another way."""
    result = caller.guest("memory_load", kind, 1024, flags=["--memory", "64M", "--open-files", "1024"])
    assert "SURVIVED" not in result.stdout, result.told


@pytest.mark.parametrize("level", ["namespace", "process"])
@pytest.mark.parametrize("kind", ["futexes", "rulesets", "programs", "placements"])
def test_memory_in_tables_of_the_kernel(caller, kind, level):
    """Kernel objects of a process beside its memory are refused if nothing would charge them to the sandbox."""
    result = caller.guest("memory_load", kind, 128, flags=["--memory", "64M", "--isolation", level])
    assert "SURVIVED" not in result.stdout, result.told


FILL = """
import errno, signal, socket, sys
keep, made = [], [0]


def fill(s):
    s.setblocking(False)
    try:
        while True:
            s.send(b"x" * 65536)
    except BlockingIOError:
        pass


def held():
    a, b = socket.socketpair()
    fill(a)
    keep.extend([a, b])


def sender_gone():
    a, b = socket.socketpair()
    fill(a)
    a.close()
    keep.append(b)


def packets_of_nothing():
    a, b = socket.socketpair(type=socket.SOCK_SEQPACKET)
    a.setblocking(False)
    try:
        while True:
            a.send(b"")
    except BlockingIOError:
        pass
    a.close()
    keep.append(b)


def on_their_way():
    a, b = socket.socketpair()
    for _ in range(100):
        c, d = socket.socketpair()
        fill(c)
        socket.send_fds(a, [b"x"], [c.fileno(), d.fileno()])
        c.close(), d.close()
    keep.extend([a, b])


def not_accepted():
    if not keep:
        keep.append(socket.socket(socket.AF_UNIX))
        keep[0].bind("\\0listener")
        keep[0].listen(4096)
    c = socket.socket(socket.AF_UNIX)
    c.connect("\\0listener")
    fill(c)
    c.close()


def datagrams():
    r = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    r.bind("\\0%d" % len(keep))
    keep.append(r)
    for i in range(8):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        s.sendto(b"x" * 190000 * (i > 0), r.getsockname())
        s.close()


def tcp():
    if not keep:
        keep.append(socket.create_server(("127.0.0.1", 0), backlog=1024))
    c = socket.create_connection(keep[0].getsockname())
    a, _ = keep[0].accept()
    fill(c)
    keep.extend([a, c])


def ended():
    for _ in range(1000):
        if not keep or len(keep) * 15000 < made[0]:
            keep.append(socket.create_server(("127.0.0.1", 0)))
        c = socket.create_connection(keep[-1].getsockname())
        a, _ = keep[-1].accept()
        c.close(), a.close()
        made[0] += 1


def udp():
    r, s = socket.socket(type=socket.SOCK_DGRAM), socket.socket(type=socket.SOCK_DGRAM)
    r.bind(("127.0.0.1", 0))
    for _ in range(8):
        s.sendto(b"x" * 50000, r.getsockname())
    keep.append(r)


def netlink():
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    for _ in range(100):
        s.send(bytes([32, 0, 0, 0, 18, 0, 1, 3] + 24 * [0]))
    keep.append(s)


try:
    for _ in range(int(sys.argv[2])):
        globals()[sys.argv[1]]()
except OSError as error:
    if error.errno == errno.ENOBUFS:
        sys.exit(3)
if int(sys.argv[2]) > 100:
    signal.pause()
print("filled")
"""


@pytest.mark.parametrize(
    "kind",
    [
        "held",
        "sender_gone",
        "packets_of_nothing",
        "on_their_way",
        "not_accepted",
        "datagrams",
        "tcp",
        "udp",
        "netlink",
    ],
)
def test_memory_in_sockets(caller, kind):
    """Data in sockets counts, also in sockets that no process has any more or not yet, with a
    cgroup or without: a guest cannot take gigabytes of the host that way."""
    flags = ["--memory", "64M", "--timeout", "60"] + (
        ["--net", "loopback"] if kind in ("tcp", "udp", "netlink") else []
    )
    result = caller.run(*flags, "--", "python3", "-c", FILL, kind, "1500")
    refused = (
        result.exit_code == 3 and kind == "datagrams" and has_cgroup(result)
    )  # a group without room for so large a message
    assert result.outcome == "out_of_memory" or refused, result.told


PAGES = """
import ctypes, mmap, os, socket, sys
libc, keep, held = ctypes.CDLL(None, use_errno=True), [], 0
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
def spliced(to):
    pages = mmap.mmap(-1, 16 * 4096)
    first = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    for n in range(16):
        pages[n * 4096] = 1
    vectors = (Vector * 16)(*[Vector(first + n * 4096, 1) for n in range(16)])
    read, write = os.pipe()
    try:
        return libc.vmsplice(write, vectors, 16, 0) == 16 and libc.splice(read, None, to, None, 16, 2) > 0
    finally:
        os.close(read)
        os.close(write)
def sent(to):
    with open("/tmp/pages", "w+b") as file:
        file.write(bytes(16 * 4096))
        file.flush()
        try:
            return all(os.sendfile(to, file.fileno(), n * 4096, 1) == 1 for n in range(16))
        except OSError:
            return False
for _ in range(60):
    keep.append(socket.socketpair())
    keep[-1][0].setblocking(False)
    while globals()[sys.argv[1]](keep[-1][0].fileno()):
        held += 1
print(held)
"""


@pytest.mark.parametrize("how", ["spliced", "sent"])
def test_pages_in_sockets(caller, how):
    """A socket is charged for the bytes, and holds the pages that these are in."""
    result = caller.run("--memory", "64M", "--timeout", "60", "--", "python3", "-c", PAGES, how)
    assert (
        result.outcome == "out_of_memory"
        if has_cgroup(result)
        else (result.outcome, result.stdout) == ("exit", "0\n")
    ), result.told


@pytest.mark.parametrize("kind", ["held", "datagrams", "tcp"])
def test_few_sockets_are_not_counted(caller, kind):
    """Ordinary programs have far fewer than the limit."""
    result = caller.run("--memory", "128M", "--net", "loopback", "--", "python3", "-c", FILL, kind, "8")
    assert (result.outcome, result.stdout) == ("exit", "filled\n"), result.told


def test_sockets_for_datagrams_are_no_load_as_long_as_they_are_empty():
    """Any number of them: each could have eleven waiting messages, and none has."""
    many = "import socket, sys; kept = [socket.socketpair(type=socket.SOCK_DGRAM) for _ in range(400)]; print('made', flush=True); sys.stdin.read()"
    with Sandbox(Policy(max_memory="64M")) as box:
        process = box.spawn(["python3", "-c", many])
        assert process.stdout.readline() == b"made\n"
        assert box.inspect()["memory_bytes"] < 64 << 20
        process.stdin.close()
        assert process.wait().exit_code == 0


def test_connections_that_have_ended_are_no_load(caller):
    """The kernel keeps little of each, but for a minute: a program that makes many one after the
    other has none of that memory."""
    result = caller.run(
        "--memory",
        "64M",
        "--timeout",
        "60",
        "--net",
        "loopback",
        "--",
        "python3",
        "-c",
        FILL,
        "ended",
        "45",
    )
    assert (result.outcome, result.stdout) == ("exit", "filled\n"), result.told


def test_memory_bomb_of_many_processes(caller):
    """Children that each eat memory end, and the sandbox beside them has all of its own."""
    code = "import os\nfor _ in range(6): os.fork()\nx = []\nwhile True: x.append(bytearray(1 << 20))"
    result = caller.python(code, "--memory", "96M", "--processes", "80", "--timeout", "10")
    assert result.outcome in ("out_of_memory", "exit", "timeout"), result.told
    assert caller.python("x = bytearray(200 << 20); print(len(x))", "--memory", "400M").stdout == f"{200 << 20}\n"


def test_memory_within_the_limit(caller):
    """A guest can allocate and touch 3/4 of the limit."""
    result = caller.guest("memory_load", "private", 96, flags=["--memory", "128M"])
    assert (result.outcome, result.stdout) == ("exit", "SURVIVED\n"), result.told
    assert 90 * MIB < result.peak_memory_bytes <= 128 * MIB, result.told


def test_memory_is_given_back(caller):
    """A run that ate memory leaves the next one of the same engine its whole limit."""
    program = guest("memory_load")
    policy = {"fs_readable": [str(program.parent), "/lib", "/lib64", "/usr", "/bin"], "max_memory": "64M"}
    jobs = [
        {
            "id": str(i),
            "argv": [str(program), "private", "512" if i % 2 else "40"],
            "policy": policy,
        }
        for i in range(8)
    ]
    rows = caller.batch(jobs, "-j", "1")
    assert [rows[str(i)]["outcome"] for i in range(8)] == ["exit", "out_of_memory"] * 4, rows


# ---- processes ----


def test_process_limit(caller):
    """The limit counts every process, and one more is EAGAIN."""
    count, number = got(caller.guest("memory_load", "forks", 200, flags=["--processes", "20"]))
    assert 15 <= count <= 20 and number == 11


def test_thread_limit(caller):
    """Threads count as processes do."""
    count, number = got(caller.guest("memory_load", "threads", 500, flags=["--processes", "20"]))
    assert 15 <= count <= 20 and number == 11


def test_zombies_are_counted(caller):
    """Children that nobody waits for do not pile up beyond the limit."""
    count, number = got(caller.guest("memory_load", "zombies", 2000, flags=["--processes", "30"]))
    assert count <= 30 and number == 11


def test_orphans_are_reaped(caller):
    """Orphans are: a program may leave any number of them, one after the other."""
    result = caller.python(
        "import os\nfor i in range(300):\n    pid = os.fork()\n    if pid == 0:\n        r, w = os.pipe()\n        if os.fork() == "
        "0: os._exit(0)\n        os._exit(0)\n    os.waitpid(pid, 0)\nprint('done')",
        "--processes",
        "40",
    )
    # Init may be behind for a moment, so fork is allowed to fail once in a while; it must not be for good.
    assert result.outcome == "exit" and (result.stdout == "done\n" or "BlockingIOError" in result.stderr), result.told


def test_process_limits_are_apart(caller):
    """Each sandbox has its own count, though all are of one user."""
    program = guest("memory_load")
    with caller.start(
        "--processes", "20", "--readable", program.parent, "--", "sh", "-c", f"{program} forks 200; read line"
    ) as first:
        assert first.line().startswith("got")
        count, _ = got(caller.guest("memory_load", "forks", 200, flags=["--processes", "20"]))
        assert count >= 15
        first.say()
        first.finish()


def test_process_limit_cannot_be_raised(caller):
    """A guest cannot raise its own limits."""
    result = caller.python(
        "import resource\nfor r in (resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_FSIZE, "
        "resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK):\n"
        "    soft, hard = resource.getrlimit(r)\n"
        "    if hard == resource.RLIM_INFINITY: continue\n"
        "    try: resource.setrlimit(r, (hard + 1, hard + 1)); print(r, hard)\n    except (ValueError, OSError): pass\n"
    )
    assert result.stdout == "", result.told


# ---- descriptors, disk, output ----


def test_open_files_limit(caller):
    """Descriptors end with EMFILE at the limit; the engine has its own."""
    count, number = got(caller.guest("memory_load", "descriptors", 100000, flags=["--open-files", "64"]))
    assert count == 64 - 3 and number == 24
    count, number = got(caller.guest("memory_load", "descriptors", 100000))
    assert count == 4096 - 3 and number == 24


@pytest.mark.parametrize("path", ["/tmp/large", "/dev/shm/large"])
def test_disk_limit(caller, path):
    """Writes end with ENOSPC at the limit, in every private writable place."""
    result = caller.guest("memory_load", "file", 64, path, flags=["--disk", "16M", "--memory", "256M"])
    assert result.outcome == "exit" and "SURVIVED" not in result.stdout, result.told
    count, number = map(int, re.fullmatch(r"got (\d+) errno (\d+)\n", result.stdout).groups())
    assert count <= 16 and number == 28, result.told


def test_disk_limit_of_a_writable_grant(caller):
    """So does what it writes into a private copy of a grant; the host's disk is not used."""
    grant = caller.directory(0o755)
    result = caller.guest(
        "memory_load", "file", 64, f"{grant}/large", flags=["--disk", "16M", "--memory", "256M", "--writable", grant]
    )
    assert result.stdout.startswith("got ") and "errno 28" in result.stdout, result.told
    assert os.listdir(grant) == []


def test_disk_limit_is_one_for_all_places(caller):
    """The limit is the sandbox's: /tmp, /dev/shm and a copy-on-write grant together do not hold three times it."""
    grant = caller.directory(0o755)
    result = caller.python(
        f"import os\ntotal = 0\nfor p in ('/tmp/a', '/dev/shm/a', '{grant}/a', '/var/tmp/a', '/run/a'):\n    try:\n        with "
        f"open(p, 'wb', 0) as f:\n"
        "            while True: total += f.write(bytes(1 << 20))\n    except OSError: pass\nprint(total >> 20)",
        "--disk",
        "16M",
        "--memory",
        "256M",
        "--writable",
        grant,
    )
    assert int(result.stdout) <= 24, result.told


def test_inode_bomb(caller):
    """Empty files are bounded as well."""
    program = guest("memory_load")
    result = caller.run(
        "--disk", "4M", "--readable", program.parent, "--timeout", "30", "--", program, "inodes", "400000", "/tmp"
    )
    count, number = got(result)
    assert count < 400000 and number in (28, 12), result.told


@pytest.mark.parametrize("stream", [1, 2])
def test_output_limit(caller, stream):
    """Output without end on one stream ends the run as output_limit, with exactly the limit kept."""
    result = caller.run("--output-limit", "100000", "--", "sh", "-c", f"exec yes >&{stream}")
    kept, other = (result.stdout, result.stderr) if stream == 1 else (result.stderr, result.stdout)
    assert result.outcome == "output_limit" and result.exit_code is None and other == "", result.told
    assert kept == ("y\n" * 50000)[:100000] and len(kept) == 100000
    assert (result.stdout_truncated, result.stderr_truncated) == (stream == 1, stream == 2)


def test_output_limit_on_both(caller):
    """Two streams flooded at once: both kept to the limit."""
    result = caller.run("--output-limit", "1M", "--", "sh", "-c", "yes & exec yes >&2")
    assert result.outcome == "output_limit" and len(result.stdout) <= MIB and len(result.stderr) <= MIB


def test_output_of_ten_gigabytes(caller):
    """10 GB on standard output are an output_limit with 10 MiB kept, not a full disk or memory."""
    result = caller.run("--", "head", "-c", "10G", "/dev/zero")
    assert result.outcome == "output_limit" and len(result.stdout) == 10 * MIB and result.stdout_truncated
    assert result.peak_memory_bytes < 64 * MIB


def test_output_exactly_at_the_limit(caller):
    """The limit itself is still a normal run."""
    result = caller.run("--output-limit", "1000", "--", "head", "-c", "1000", "/dev/zero")
    assert (result.outcome, result.exit_code, len(result.stdout), result.stdout_truncated) == (
        "exit",
        0,
        1000,
        False,
    ), result.told
    result = caller.run("--output-limit", "1000", "--", "head", "-c", "1001", "/dev/zero")
    assert (result.outcome, len(result.stdout), result.stdout_truncated) == ("output_limit", 1000, True), result.told


def test_output_limit_cuts_a_character(caller):
    """A limit in the middle of a character still gives a result that is valid JSON, the exact bytes in base64."""
    result = caller.python("print('é' * 1000, end='')", "--output-limit", "999")
    assert result.outcome == "output_limit" and result.stdout == "é" * 499 + "\ufffd", result.told
    assert "stdout_base64" in result.raw


def test_output_limit_in_a_batch(caller):
    """The same for a job, whose output goes by the engine."""
    rows = caller.batch(
        [
            {"id": "a", "argv": ["yes"], "policy": {"max_output": 5000}},
            {"id": "b", "argv": ["sh", "-c", "yes >&2"], "policy": {"max_output": 0}},
            {"id": "c", "argv": ["true"], "policy": {"max_output": 0}},
        ]
    )
    assert (
        rows["a"]["outcome"] == "output_limit"
        and len(rows["a"]["stdout"]) == 5000
        and rows["a"]["stdout_truncated"]
    ), str(rows["a"]["error"])
    assert rows["b"]["outcome"] == "output_limit" and rows["b"]["stderr"] == "", str(rows["b"])
    assert rows["c"]["outcome"] == "exit", rows["c"]


# ---- time and CPUs ----


def test_timeout(caller):
    """A busy loop ends as timeout, with the wall clock told."""
    result = caller.run("--timeout", "1", "--", "python3", "-c", "while True: pass")
    assert (result.outcome, result.exit_code, result.signal) == (
        "timeout",
        None,
        None,
    ) and result.wall_ms >= 1000, result.told


def test_timeout_status(caller):
    """Without --json: status 124 and what was written before."""
    done = caller.rollbox("run", "--timeout", "2", "--", "sh", "-c", "echo before; echo problem >&2; sleep 1000")
    assert done.returncode == 124 and done.stdout == b"before\n" and done.stderr.startswith(b"problem\n"), done


def test_timeout_leaves_others_alone(caller):
    """A time-out of one run does not end another of the same engine."""
    rows = caller.batch(
        [
            {"id": "slow", "argv": ["sh", "-c", "while :; do :; done"], "timeout_s": 0.5},
            {"id": "fine", "argv": ["sh", "-c", "sleep 1; echo fine"], "timeout_s": 30},
        ],
        "-j",
        "2",
    )
    assert (rows["slow"]["outcome"], rows["fine"]["outcome"], rows["fine"]["stdout"]) == (
        "timeout",
        "exit",
        "fine\n",
    ), rows


def test_cpu_limit(caller):
    """Two busy processes under one CPU get one CPU's time between them."""
    if (os.cpu_count() or 1) < 2:
        skip("needs two CPUs")
    result = caller.guest("memory_load", "spin", 4, flags=["--cpus", "1", "--timeout", "1"])
    assert result.outcome == "timeout" and result.cpu_ms <= 1.3 * result.wall_ms + 100, result.told


def test_cpu_limit_cannot_be_widened(caller):
    """A guest under one CPU that sets its own affinity wider gets no more."""
    if (os.cpu_count() or 1) < 2:
        skip("needs two CPUs")
    result = caller.python(
        "import os\ntry: os.sched_setaffinity(0, range(os.cpu_count() + 64))\nexcept OSError: pass\nfor _ in range(3): os.fork()\n"
        "while True: pass",
        "--cpus",
        "1",
        "--timeout",
        "1",
    )
    assert result.outcome == "timeout" and result.cpu_ms <= 1.3 * result.wall_ms + 100, result.told


def test_priority_cannot_be_raised(caller):
    """Nice values, real-time classes and I/O priority cannot be raised over other sandboxes'."""
    result = caller.python(
        "import os\nfor what in (lambda: os.nice(-5), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)), lambda: "
        "os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))):\n"
        "    try: what(); print('raised')\n    except OSError: pass"
    )
    assert result.stdout == "", result.told


def test_usage_of_the_whole_tree(caller):
    """CPU time is that of all processes, also of those that nobody waited for."""
    result = caller.python(
        "import os, time\n"
        "def burn():\n    while time.process_time() < 0.3: pass\n"
        "r, w = os.pipe()\nfor _ in range(2):\n    if os.fork() == 0:\n        os.close(r)\n        if os.fork() == 0: burn(); "
        "os._exit(0)\n        os._exit(0)\n"
        "os.close(w)\nos.read(r, 1)\n"
    )
    assert result.outcome == "exit" and result.cpu_ms >= 550, result.told


# ---- what the guest sees of its machine ----


def test_cpus_seen(caller):
    """nproc, cpuinfo, /proc/stat and Python's count tell the sandbox's CPUs."""
    result = caller.run(
        "--cpus",
        "1",
        "--",
        "sh",
        "-c",
        "nproc; grep -c ^processor /proc/cpuinfo; grep -c '^cpu[0-9]' /proc/stat; python3 -c 'import os; print(os.cpu_count())'",
    )
    assert result.stdout.split()[:2] == ["1", "1"], result.told
    assert result.stdout.split() == ["1"] * 4, result.told


def test_memory_seen(caller):
    """meminfo and free tell the limit, not the host's memory."""
    result = caller.run("--memory", "256M", "--", "cat", "/proc/meminfo")
    fields = {line.split(":")[0]: int(line.split()[1]) for line in result.stdout.splitlines()}
    assert (
        fields["MemTotal"] == 256 * 1024
        and fields["MemFree"] <= fields["MemTotal"]
        and fields["MemAvailable"] <= fields["MemTotal"]
    ), result.stdout
    assert fields.get("SwapTotal", 0) == 0, result.stdout


def test_uptime_seen(caller):
    """uptime is the sandbox's."""
    host = float(Path("/proc/uptime").read_text().split()[0])
    if host < 120:
        skip("the machine has just started")
    result = caller.run("--", "cat", "/proc/uptime")
    assert 0 <= float(result.stdout.split()[0]) < 60, result.told


def test_load_and_disk_seen(caller):
    """df tells the disk limit; the load is not the host's business to tell."""
    result = caller.run(
        "--disk",
        "64M",
        "--",
        "sh",
        "-c",
        "df -k --output=size /tmp | tail -1; cat /proc/loadavg | wc -w",
    )
    assert result.stdout.split() == ["65536", "5"], result.told


# ---- the limits are those of the policy ----


def test_defaults(caller):
    """The documented defaults: 512 MiB, 64 processes, 4,096 open files."""
    result = caller.run("--", "sh", "-c", "grep MemTotal /proc/meminfo; ulimit -n")
    assert result.stdout.split() == ["MemTotal:", str(512 * 1024), "kB", "4096"], result.told
    count, _ = got(caller.guest("memory_load", "forks", 500))
    assert 55 <= count <= 64


def test_grant_below_tmp(caller):
    """A grant below /tmp shows in the sandbox's private /tmp, beside its own files."""
    grant = Path(tempfile.mkdtemp(prefix="rollbox-test-", dir="/tmp"))
    try:
        caller.own(grant)
        caller.write(grant / "file", "original")
        result = caller.run(
            "--writable",
            grant,
            "--",
            "sh",
            "-c",
            f"cat {grant}/file; echo x > {grant}/file; echo y > /tmp/own; ls /tmp | wc -l",
        )
        assert result.stdout == "original2\n" and (grant / "file").read_text() == "original", result.told
    finally:
        shutil.rmtree(grant)


def test_honest_programs_work(caller):
    """Ordinary programs find what they need: terminals, semaphores, threads, sub-processes,
    descriptors by name, sockets, an account."""
    result = caller.run(
        "--",
        "bash",
        "-c",
        """python3 - <<'END'
import asyncio, getpass, multiprocessing, os, pty, socket, subprocess, tempfile, threading
if __name__ == "__main__":
    master, slave = pty.openpty(); os.write(slave, b"x"); assert os.read(master, 1) == b"x" and os.ttyname(slave).startswith("/dev/pts/")
    with multiprocessing.get_context("fork").Pool(3) as pool: assert pool.map(abs, [-1, -2]) == [1, 2]
    assert multiprocessing.Semaphore(1).acquire()
    a, b = socket.socketpair(); a.sendall(b"x"); assert b.recv(1) == b"x"
    async def main():
        process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
        assert (await process.communicate(b"hello"))[0] == b"hello"
        await asyncio.gather(*(asyncio.to_thread(sum, [1]) for _ in range(5)))
    asyncio.run(main())
    with tempfile.NamedTemporaryFile() as f: assert f.name.startswith("/tmp/")
    thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
    assert subprocess.check_output("tty; echo $$ | tee /dev/stderr >/dev/null; exit 0", shell=True) == b"not a tty\\n"
    assert getpass.getuser() == "box" and os.path.expanduser("~") == "/tmp"
    for name in ("/dev/stdin", "/dev/fd/1", "/dev/stderr"): os.stat(name)
    print("über")
END
cat <(echo substituted); mkfifo f; (echo fifo > f &) ; cat f; ln -s f l; echo $HOME $PWD $(id -un)""",
    )
    assert (result.outcome, result.exit_code, result.stdout) == (
        "exit",
        0,
        "thread\nüber\nsubstituted\nfifo\n/tmp /tmp box\n",
    ), result.told


def test_many_waits_at_once(caller):
    """Clients in threads, each with an engine of its own, with a limit hit in every second: outcomes do not mix."""
    outcomes = [None] * 8

    def one(i):
        outcomes[i] = (
            caller.run("--timeout", "0.5", "--", "sh", "-c", "sleep 1000").outcome
            if i % 2
            else caller.run("--", "sh", "-c", "exit 3").exit_code
        )

    threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [3, "timeout"] * 4


def test_output_limit_kills_the_rest(caller):
    """An output limit kills every descendant as a time-out does."""
    with fifo_in_grant(caller) as (grant, path, fd):
        result = caller.run(
            "--shared",
            grant,
            "--output-limit",
            "1000",
            "--",
            "sh",
            "-c",
            f"(exec 9>{path}; setsid sleep 1000) & exec 9>{path}; exec yes",
        )
        assert result.outcome == "output_limit"
        wait_writers_gone(fd)


def test_no_core_file(caller):
    """A crash leaves no core file behind in a shared grant."""
    grant = caller.directory(0o777)
    caller.python("import os; os.abort()", "--shared", grant, "--cwd", str(grant))
    assert os.listdir(grant) == []


def test_granted_files_do_not_count_as_memory(caller):
    """Files of the host's file system do not count as the sandbox's own, by any path."""
    for path in ("/tmp", "/var/tmp"):
        done = caller.rollbox(
            "run",
            "--memory",
            "32M",
            "--readable",
            path,
            "--",
            "sh",
            "-c",
            "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done; echo done",
            env=caller.environment(ROLLBOX_KFEAT="-cgroup"),
        )
        assert done.returncode == 0 and done.stdout == b"done\n", done


def test_stricter_limit_of_the_caller_holds(caller):
    """A hard limit that cannot be raised does not prevent a run: it applies to the guest, too."""
    code = "ulimit -c 0; ulimit -i 100; ulimit -l 64; exec \"$0\" run -- sh -c 'grep -E \"core|pending|locked\" /proc/self/limits'"
    done = caller.call("bash", "-c", code, binaries() / "rollbox")
    assert done.returncode == 0, done.stderr
    assert [line.split()[-3:-1] for line in done.stdout.decode().splitlines()] == [
        ["0", "0"],
        ["65536", "65536"],
        ["100", "100"],
    ]


INOTIFY = """
import sys
sys.path.insert(0, %r)
from rollbox import Policy, Sandbox

program = '''
import ctypes, errno, os, signal
libc, n = ctypes.CDLL(None, use_errno=True), 0
while libc.inotify_init() >= 0:
    n += 1
print(n, errno.errorcode[ctypes.get_errno()], flush=True)
if os.fork() == 0:
    os.closerange(0, 3)
    signal.pause()
'''
with Sandbox(Policy()) as one, Sandbox(Policy()) as other:
    print(*(box.exec(["python3", "-c", program]).stdout.decode().strip() for box in (one, other)))
"""


def test_inotify_is_counted_for_each_sandbox(caller):
    """Two of one launcher, both alive, whose user is the same to the kernel: what one has used up
    the other has still."""
    done = caller.script(INOTIFY)
    assert done.stdout == b"16 EMFILE 16 EMFILE\n", done
