# SPDX-License-Identifier: Apache-2.0
"""The memory of processes in checkpoints: copy-on-write forks, shared memory, guard pages.

The model is that of test_live.py. make check runs this file as root and as an ordinary user.
"""
import copy
import os
import signal
from pathlib import Path

import pytest
from asked import PYTHON, Asked, closing, restorer  # noqa: F401
from harness import children, skip, until
from rollbox import FeatureMissing, Outcome, Policy, Sandbox

COUNTER = """
import sys, threading
pages = bytearray(8 << 20)
def count():
    k = 0
    while True:
        k = (k + 1) % 256
        for at in range(0, len(pages), 4096):
            pages[at] = k
threading.Thread(target=count, daemon=True).start()
for line in sys.stdin:
    now = pages[::4096]
    step = next((i for i in range(1, len(now)) if now[i] != now[i - 1]), len(now))
    print(now == bytes([now[0]]) * step + bytes([(now[0] - 1) % 256]) * (len(now) - step) or (step, bytes(now)), flush=True)
"""

WAITER = """
import os, sys, threading
kept, met, pids = bytearray(b"x" * (8 << 20)), [], set()
def wait():
    while True:
        try:
            pid, _ = os.wait()
            if pid not in pids:
                met.append(pid)
            pids.discard(pid)
        except ChildProcessError:
            child = os.fork()
            if child == 0:
                os._exit(0)
            pids.add(child)
threading.Thread(target=wait, daemon=True).start()
for line in sys.stdin:
    print(met, flush=True)
"""


@pytest.mark.parametrize("code, answer", [(COUNTER, "True"), (WAITER, "[]")])
def test_copies_are_of_one_moment_and_have_no_parent(code, answer):
    with Sandbox(Policy(max_memory="1G")) as box:
        process = Asked(box.spawn([*PYTHON, code]))
        assert process("") == answer
        for _ in range(10):
            with closing(box.fork(1)) as kids:
                assert process.of(kids[0])("") == answer
            assert process("") == answer
        until(lambda: not [row for row in box.processes() if row["state"] in "tT"])


def test_copies_leave_nothing():
    with Sandbox(Policy(max_memory="1G")) as box:
        origin = Asked.begin(box, "x = bytearray(b'1' * (8 << 20))")
        for _ in range(20):
            box.drop(box.snapshot())
        until(lambda: len(box.processes()) == 1)
        assert origin("import os") == "done"
        assert origin("open('/proc/self/task/%d/children' % os.getpid()).read()") == "''"


@pytest.mark.parametrize("stands", [False, True], ids=["twin", "itself"])
def test_snapshot_does_not_copy_shared_data(stands):
    """A restored process has its memory by fork: looking at it is no reason for pages of its own,
    which its sandbox would pay for."""

    def shared(box):
        (pid,) = children(box.inspect()["pid"], "python3")
        return (
            sum(
                int(line.split()[1])
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                if line.startswith("Shared_Dirty")
            )
            << 10
        )

    with Sandbox(Policy(max_memory="1G")) as box:
        origin = Asked.begin(box, "import os", "x = bytearray(os.urandom(32 << 20))")
        with closing(box.fork(5)) as (kid, other, *_):      # of fewer it would be what has changed
            assert shared(kid) > 32 << 20
            if stands:
                kid.pause()
            taken = kid.snapshot()
            assert taken.memory_bytes > 32 << 20 and shared(kid) > 32 << 20
            kid.resume()
            assert origin.of(kid)("len(x)") == origin.of(other)("len(x)") == str(32 << 20)


def test_read_zero_pages_are_no_memory():
    """The kernel has them but once. Where an image is loaded while it is written, the size of its
    content is fixed before the pages are read."""
    with Sandbox(Policy(max_memory="1G")) as box:
        origin = Asked.begin(
            box,
            "import mmap, os, zlib",
            "x = os.urandom(16 << 20)",
            "y = mmap.mmap(-1, 512 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)",
        )
        assert origin("sum(y[i] for i in range(0, len(y), 4096))") == "0"
        origin("y[300 << 20] = 7")
        wanted = origin("(zlib.crc32(x), y[300 << 20], y[200 << 20])")
        for least in (16 << 20, 0):         # the second is what has changed
            with closing(box.fork(2)) as kids:
                for kid in kids:
                    assert origin.of(kid)("(zlib.crc32(x), y[300 << 20], y[200 << 20])") == wanted
                assert least < box.tree()[-1].memory_bytes < 64 << 20
            assert origin("y[100 << 20]") == "0"

MAPS = (
    "import ctypes, mmap, os",
    "libc = ctypes.CDLL(None)",
    "address = lambda m: ctypes.addressof(ctypes.c_char.from_buffer(m))",
)


def test_shared_memory_that_ends_before_its_mapping_does():
    """The dump has the part of the mapping that the file covers. For root, who can see the file,
    the error names the rest of the mapping."""
    with Sandbox() as box:
        origin = Asked.begin(
            box,
            *MAPS,
            "import zlib",
            "libc.mmap.restype = ctypes.c_void_p",
            "f = os.open('/tmp/f', os.O_CREAT | os.O_RDWR)",
            "os.unlink('/tmp/f')",
            "os.write(f, os.urandom(5 << 12))",
            "at = libc.mmap(None, ctypes.c_size_t(2 << 20), 3, mmap.MAP_SHARED, f, ctypes.c_long(0))",
            "os.close(f)",
        )
        look = "zlib.crc32(ctypes.string_at(at, 5 << 12))"
        wanted = origin(look)
        if os.geteuid() == 0:
            with pytest.raises(FeatureMissing, match="maps more of the shared memory"):
                box.fork(1)
        else:
            with closing(box.fork(1)) as (kid,):
                assert origin.of(kid)(look) == wanted
        assert origin(look) == wanted


class Guarded:
    """A Python with a megabyte of x, and guards in it at some of its pages. `holds`: it has just
    these, and what is between; one who touches them is ended."""

    def __init__(self, box, pages, flags="MAP_PRIVATE | mmap.MAP_ANONYMOUS", content="m[:] = b'x' * (1 << 20)"):
        self.pages, self.shown = pages, [-signal.SIGSEGV if page in pages else 0 for page in range(8)]
        self.asked = Asked.begin(
            box,
            *MAPS,
            "f = os.open('/tmp/f', os.O_CREAT | os.O_RDWR)",
            "os.write(f, b'x' * (1 << 20))",
            f"m = mmap.mmap({-1 if 'ANONYMOUS' in flags else 'f'}, 1 << 20, mmap.{flags})",
            content,
            "advise = lambda page, n, what: libc.madvise(ctypes.c_void_p(address(m) + (page << 12)), ctypes.c_size_t(n << 12), what)",
            "ends = lambda page: (lambda pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else os._exit(ctypes.string_at(address(m) + (page << 12), 1) != b'x'))(os.fork())",
        )
        for page in pages:
            if self.asked(f"advise({page}, 1, 102)") != "0":
                skip("needs guards: MADV_GUARD_INSTALL, of Linux 6.13 for anonymous memory, of 6.15 for files")

    def of(self, box):
        made = copy.copy(self)
        made.asked = self.asked.of(box)
        return made

    def holds(self):
        return (
            self.asked("[ends(page) for page in range(8)]") == str(self.shown)
            and self.asked("m[8 << 12:] == b'x' * ((1 << 20) - (8 << 12))") == "True"
        )


@pytest.fixture
def guardable():
    return Policy(max_memory="1G")


@pytest.mark.parametrize("kind", ["anonymous", "file", "shared-file"])
def test_guard_pages_are_kept_in_forks(guardable, kind):
    """And in copies of these, after a reset, and after sleep; where one is taken away, there is
    what the kernel puts there."""
    flags, content = {
        "anonymous": ("MAP_PRIVATE | mmap.MAP_ANONYMOUS", "m[:] = b'x' * (1 << 20)"),
        "file": ("MAP_PRIVATE", "m[0]"),
        "shared-file": ("MAP_SHARED", "m[0]"),
    }[kind]
    with Sandbox(guardable) as box:
        origin = Guarded(box, [0, 3, 4], flags, content)
        at = box.snapshot()
        with closing(box.fork(2)) as kids:
            first, second = (origin.of(kid) for kid in kids)
            assert first.holds() and second.holds() and origin.holds()
            with closing(kids[0].fork(1)) as (grandchild,):
                assert first.of(grandchild).holds()
            assert second.asked("advise(0, 8, 103)") == "0"
            assert second.asked("{m[page << 12] for page in (0, 3, 4)}") == str(
                {0 if kind == "anonymous" else ord("x")}
            )
            assert first.holds() and origin.holds()
        assert origin.asked("advise(0, 8, 103)") == "0"
        box.reset(at)
        again = origin.of(box)
        assert again.holds()
        box.hibernate()
        assert again.of(box).holds()


def test_guard_pages_without_neighbours(guardable):
    """In memory that nobody has touched, across mappings, in thousands of places."""
    with Sandbox(guardable) as box:
        asked = Guarded(box, [1]).asked
        asked("u = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)")
        asked(
            "guard = lambda page, n: libc.madvise(ctypes.c_void_p(address(u) + (page << 12)), ctypes.c_size_t(n << 12), 102)"
        )
        assert asked("guard(0, 8192), sum(guard(8192 + 2 * i, 1) for i in range(4000))") == "(0, 0)"
        assert asked("libc.mprotect(ctypes.c_void_p(address(u) + (16 << 20)), ctypes.c_size_t(8 << 20), 1)") == "0"
        asked("entries = lambda p: (os.pread(p, 64 << 11, address(u) >> 9), os.close(p))[0]")
        look = "''.join(str(byte >> 2 & 1) for byte in entries(os.open('/proc/self/pagemap', os.O_RDONLY))[7::8]) == '1' * 8192 + '10' * 4000 + '0' * 192"
        if asked(look) != "True":
            skip("needs guards: the kernel tells of guards since Linux 6.15")
        box.snapshot("guarded")
        assert box.show("guarded")["processes"][0]["guarded_bytes"] == (8192 + 4000 + 1) << 12
        assert all(check["ok"] for check in box.verify("guarded")["checks"])
        with closing(box.fork(1, snapshot="guarded")) as (kid,):
            assert asked.of(kid)(look) == "True" and asked(look) == "True"


@pytest.mark.parametrize("flags", ["MAP_SHARED | mmap.MAP_ANONYMOUS", "MAP_PRIVATE"], ids=["shared", "file"])
@pytest.mark.parametrize("pages", [[0], [3]], ids=["first", "between"])
def test_guard_pages_before_unmovable_memory_are_refused(guardable, flags, pages):
    """Shared memory that an ordinary user cannot read but where it is mapped, and a mapping of a
    file that is captured whole: what lies under the guard is not known. The file of shared memory
    is root's to read."""
    with Sandbox(guardable) as box:
        origin = Guarded(box, pages, flags)
        origin.asked("y = os.urandom(4 << 20)")
        if os.geteuid() == 0 and "SHARED" in flags:
            with closing(box.fork(1)) as (kid,):
                assert origin.of(kid).holds() and origin.holds()
            return
        for take in (box.snapshot, lambda: box.fork(1)):
            with pytest.raises(FeatureMissing, match="it has guard pages at 0x"):
                take()
        assert origin.holds()
        origin.asked("advise(0, 256, 103)")
        with closing(box.fork(1)) as (kid,):
            assert origin.asked.of(kid)("m[4 << 12:] == b'x' * ((1 << 20) - (4 << 12))") == "True"


def test_no_copies_when_memory_is_short():
    with Sandbox(Policy(max_memory="64M")) as box:
        origin = Asked.begin(box, "x = bytearray(40 << 20)", "x[::4096] = b'1' * (len(x) // 4096)")
        for _ in range(3):
            with closing(box.fork(1)) as kids:
                assert origin.of(kids[0])("x.count(b'1')") == str(40 << 8)
            assert origin("x.count(b'1')") == str(40 << 8)


def test_copy_is_limited_by_max_memory():
    """It is looked at first when it can have reached the limit; what its init keeps of it for a
    moment is nothing that it has."""
    for limit, fits in ("64M", 20), ("2G", 40):
        with Sandbox(Policy(max_memory=limit)) as box:
            origin = Asked.begin(box, f"x = bytearray(b'1' * ({fits} << 20))")
            with closing(box.fork(2, snapshot=box.snapshot())) as (within, over):
                copied = origin.of(within)
                assert copied("x[::4096] = b'2' * len(x[::4096])") == "done"
                assert {copied("len(x)") for _ in range(2000)} == {str(fits << 20)}
                if limit == "64M":
                    too_much = origin.of(over).process
                    too_much.stdin.write(b"y = bytearray(b'1' * (200 << 20))\n")
                    too_much.stdin.flush()
                    assert too_much.wait(60).outcome is Outcome.OUT_OF_MEMORY
            assert origin("len(x)") == str(fits << 20)


def test_agent_has_no_descriptors_of_init():
    """Right after a fork, when init has the memory of what it has made yet: a file is written and
    read by a fork of init."""
    with Sandbox(Policy(max_memory="1G")) as box:
        origin = Asked.begin(box, "x = bytearray(b'1' * (64 << 20))")
        state = box.snapshot()
        for _ in range(4):
            fork, = box.fork(1, snapshot=state)
            with fork:
                fork.write_file("/tmp/f", b"kept")
                assert fork.read_file("/tmp/f") == b"kept" and origin.of(fork)("len(x)") == str(64 << 20)
