# SPDX-License-Identifier: Apache-2.0
"""Attacks of guests during a dump of their copy-on-write forks (src/dump/cow_fork.c), and the fate of preforks.

A thread of each guest waits for a child that its process has not made. That child, the copy, exists
from the moment at which the process resumes; the thread strikes then.
"""

import contextlib
import os
import resource
import signal
import threading
from pathlib import Path

import pytest

from harness import repeat_count, until
from rollbox import Engine, Policy, RollboxError, Sandbox
from asked import PYTHON, Asked, closing, process_state, restorer  # noqa: F401 (restorer: for this module, too)

ROOM = Policy(max_memory="1G")
# Enough to copy for everything that is done meanwhile.
STRIKER = """
import os, sys, threading
kept, met = bytearray(b"x" * (128 << 20)), []
def children():
    return [int(pid) for pid in open(f"/proc/self/task/{os.getpid()}/children").read().split()]
def watch():
    while not met:
        met.extend(children())
    strike(met[0])
def begin():
    threading.Thread(target=watch, daemon=True).start()
    print("ready", flush=True)
"""


def strike(box, how, striker=STRIKER):
    """A process that does this as soon as a copy of it exists."""
    process = box.spawn([*PYTHON, striker + how])
    assert process.stdout.readline() == b"ready\n"
    return process


def ask(process, line=b"\n"):
    process.stdin.write(line)
    process.stdin.flush()
    return process.stdout.readline().decode().rstrip("\n")


EXECUTES = """
def strike(copy):
    os.execv(sys.executable, ["python3", "-I", "-S", "-c", '''
import faulthandler, os, sys
faulthandler.enable()
for line in sys.stdin:
    caught, = (int(line.split()[1], 16) for line in open("/proc/self/status") if line.startswith("SigCgt"))
    print(caught >> 10 & 1, open(f"/proc/self/task/{os.getpid()}/children").read(), flush=True)
'''])
begin()
threading.Event().wait()
"""


def test_exec_during_a_dump_keeps_signal_handlers():
    with Sandbox(ROOM) as box:
        process = strike(box, EXECUTES)
        box.snapshot()
        until(lambda: ask(process) == "1 ")


FILTERS = """
import ctypes, struct
def strike(copy):
    # From here on wait4 kills its caller.
    code = struct.pack("<" + "HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, 61, 6, 0, 0, 0x80000000, 6, 0, 0, 0x7fff0000)
    at = ctypes.create_string_buffer(code)
    program = struct.pack("<HxxxxxxQ", 4, ctypes.addressof(at))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(38, 1, 0, 0, 0)
    # For all threads: SECCOMP_FILTER_FLAG_TSYNC
    done.append(ctypes.CDLL(None).syscall(317, 1, 1, program))
done = []
begin()
for line in sys.stdin:
    print(done, flush=True)
"""


def test_process_that_installs_a_filter_is_not_made_to_call():
    with Sandbox(ROOM) as box:
        process = strike(box, FILTERS)
        box.snapshot()
        until(lambda: all(row["state"] not in "tT" for row in box.processes()))
        assert ask(process) == "[0]"
        with pytest.raises(RollboxError, match="seccomp filter of its own"):
            box.snapshot()
        assert ask(process) == "[0]"


LOOKS = """
seen = []
def strike(copy):
    seen.append(os.listdir(f"/proc/{copy}/fd"))
begin()
for line in sys.stdin:
    print(seen, flush=True)
"""


def test_copies_hold_no_descriptors_open():
    with Sandbox(ROOM) as box:
        process = strike(box, LOOKS)
        box.snapshot()
        assert ask(process) == "[[]]"


MAPS = """
import mmap
file = open("/tmp/mapped", "w+b")
file.write(b"a" * (64 << 12))
file.flush()
mapped = mmap.mmap(file.fileno(), 64 << 12, access=mmap.ACCESS_COPY)
mapped[0] = 98
""" + STRIKER + """
def strike(copy):
    os.pwrite(file.fileno(), b"c" * (64 << 12), 0)
begin()
for line in sys.stdin:
    print({name: mapped[:].count(name) for name in (b"a", b"b", b"c")}, flush=True)
"""


def test_mapped_files_match_the_files_of_the_snapshot():
    with Sandbox(ROOM) as box:
        process = strike(box, MAPS, "")
        with closing(box.fork(1)) as kids:
            assert ask(kids[0].process(process.id)) == str({b"a": (64 << 12) - 1, b"b": 1, b"c": 0})


KILLS = """
def strike(copy):
    os.kill(copy, 9)
begin()
for line in sys.stdin:
    print(len(children()), flush=True)
"""


def test_killed_copy_is_reported():
    with Sandbox(ROOM) as box:
        process = strike(box, KILLS)
        with pytest.raises(RollboxError, match="its copy-on-write fork was killed before it was dumped; try again"):
            box.snapshot()
        until(lambda: ask(process) == "0")
        box.snapshot()


KILLS_LATER = """
import os, signal, sys, threading, time
kept = bytearray(b"x" * (4 << 20))
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, lambda *_: None)
def children():
    return [int(pid) for pid in open(f"/proc/self/task/{os.getpid()}/children").read().split()]
def watch():
    for after_us in range(0, 1 << 30, 37):
        while not (met := children()):
            pass
        until = time.perf_counter() + after_us % 1500 / 1e6
        while time.perf_counter() < until:
            pass
        try:
            os.kill(met[0], 9)
        except ProcessLookupError:
            pass
        while children():
            pass
threading.Thread(target=watch, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""


def test_copy_killed_during_a_request_is_reported():
    """Wherever it is struck, in one of its calls or between two."""
    with Sandbox(ROOM) as box:
        strike(box, KILLS_LATER, "")
        told = set()
        for _ in range(repeat_count(200, 50, 1000)):
            try:
                box.drop(box.snapshot())
            except RollboxError as problem:
                told.add(str(problem))
        assert told and all(
            "its copy-on-write fork was killed before it was dumped; try again" in one
            for one in told
        ), told


ENDS = """
def strike(copy):
    os._exit(3)
begin()
threading.Event().wait()
"""


def test_process_that_ends_during_a_dump_is_in_the_snapshot():
    with Sandbox(ROOM) as box:
        process = strike(box, ENDS)
        taken = box.snapshot()
        assert taken.processes == 1 and process.wait(60).exit_code == 3
        until(lambda: not box.processes())
        with closing(box.fork(1)) as kids:
            assert len(kids[0].processes()) <= 1


# What copies take

def test_unwritten_pages_are_not_in_a_copy():
    """If every other page of many small areas was written, a copy has these pages and not those between them."""
    scattered = (
        "import ctypes, mmap",
        "libc = ctypes.CDLL(None)",
        "areas = [mmap.mmap(-1, 33 << 12, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(500)]",
        "[libc.mprotect(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(area)) + (32 << 12)), 4096, 0) for area in areas]",
        "[area.__setitem__(at, 1) for area in areas for at in range(0, 32 << 12, 2 << 12)]",
    )
    taken = "[int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('RssAnon')][0]"
    with Sandbox(ROOM) as box:
        origin = Asked.begin(box, *scattered)
        for count in (1, 2):
            with closing(box.fork(count)) as kids:
                for kid in kids:
                    assert int(origin.of(kid)(taken)) < int(origin(taken)) * 1.2


# Boxes that wait

def waiting(engine, box, taken):
    """The host's pids of what is in the box that waits for the next fork of a state. The forks
    before make it wait, for a second: there is none if that is over."""
    before = family(engine.pid)
    for _ in range(2):
        with closing(box.fork(1, snapshot=taken)):
            pass
    return family(engine.pid) - before


def family(pid):
    found = set()
    for task in Path("/proc").glob(f"{pid}/task/*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, task.read_text().split()):
                found |= {child} | family(child)
    return found


def held(pid):
    """The processes of which it has pidfds."""
    found = set()
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found |= {int(line.split()[1]) for line in info.read_text().splitlines() if line.startswith("Pid:")}
    return found


def test_killed_prefork_is_replaced():
    with Engine() as engine, Sandbox(engine=engine) as box:
        origin = Asked.begin(box, "x = 1")
        taken = box.snapshot()
        with closing(box.fork(1, snapshot=taken)):
            pass                # its zygote exists from here on
        for _ in range(10):
            victims = waiting(engine, box, taken)
            until(lambda: not victims & family(engine.pid) or victims & held(engine.pid))
            os.kill(engine.pid, signal.SIGSTOP)     # so that it is asked before it has heard
            try:
                forked = []
                asking = threading.Thread(target=lambda: forked.extend(box.fork(1, snapshot=taken)))
                asking.start()
                until(
                    lambda: (
                        Path(f"/proc/self/task/{asking.native_id}/stat")
                        .read_text()
                        .rpartition(")")[2]
                        .split()[0]
                        == "S"
                    )
                )
                for pid in victims:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                until(lambda: all(process_state(pid) in (None, "Z") for pid in victims))
            finally:
                os.kill(engine.pid, signal.SIGCONT)
            asking.join()
            with closing(forked):
                assert [origin.of(one)("x") for one in forked] == ["1"]


def test_prefork_gives_way_when_descriptors_are_short():
    with Engine() as engine, Sandbox(engine=engine) as box:
        origin = Asked.begin(box, "x = 1")
        taken, pid, told = box.snapshot(), engine.pid, []
        for _ in range(20):
            waiting(engine, box, taken)
            until(lambda: box.exec(["true"]).exit_code == 0)
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (5, before[1]))      # it has more open
            try:
                with closing(box.fork(2, snapshot=taken)):
                    pass
            except RollboxError as problem:
                told.append(str(problem))
            finally:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            assert engine.pid == pid
        assert told and all("Too many open files; all 5 files" in one for one in told)
        with closing(box.fork(1, snapshot=taken)) as kids:
            assert origin.of(kids[0])("x") == "1"
