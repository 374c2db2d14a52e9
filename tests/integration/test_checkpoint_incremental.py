# SPDX-License-Identifier: Apache-2.0
"""Sessions that are dumped repeatedly while they run: from the second dump on, a fork or snapshot
has an incremental image (src/engine/checkpoint/dirty_tracking.h, src/guest/restore/incremental.c).

The model: a guest changes its memory in numbered ways (guests/dirty_pages.c) and digests it. A fork
has to answer as its origin does, at once and after further changes of its own, after any changes to
the origin in between.
"""

import contextlib
import os
import random
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollbox import Engine, RollboxError, Sandbox, SetupFailed
from harness import BUILD, children, guest, repeat_count, serves, until
from asked import ANSWERER, PYTHON, Asked, closing, images, node_of, noted, restorer  # noqa: F401

PROGRAM = "/tmp/changer"


class Changer:
    def __init__(self, process):
        self.process, self.id = process, process.id

    @classmethod
    def begin(cls, box):
        box.upload(guest("dirty_pages"), PROGRAM)
        return cls.another(box)

    @classmethod
    def another(cls, box):
        """Returns once the guest has started; until then its memory changes at random."""
        made = cls(box.spawn([PROGRAM]))
        made()
        return made

    def __call__(self, what="?"):
        self.process.stdin.write(f"{what}\n".encode())
        self.process.stdin.flush()
        return self.process.stdout.readline().decode().strip()

    def of(self, box):
        return Changer(box.process(self.id))


def alike(changer, kid, chance):
    copy = changer.of(kid)
    assert copy() == changer()
    for _ in range(2):
        what = chance.randrange(1 << 40)
        assert copy(what) == changer(what)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_forks_equal_their_origin(seed):
    chance = random.Random(seed)
    with Sandbox() as box:
        changer = Changer.begin(box)
        for _ in range(chance.randrange(30)):
            changer(chance.randrange(1 << 40))
        for _ in range(repeat_count(30, 8, 1000)):
            with box.fork(1)[0] as kid:
                alike(changer, kid, chance)
            for _ in range(chance.choice([0, 1, 1, 3, 10])):
                changer(chance.randrange(1 << 40))


@pytest.mark.parametrize("seed", range(3))
def test_third_generation_fork_equals_its_origin(seed):
    """Each is forked for the first time; dirty tracking begins with its start."""
    chance = random.Random(1000 + seed)
    with Sandbox() as box, contextlib.ExitStack() as stack:
        changers = [Changer.begin(box)] + [Changer.another(box) for _ in range(seed % 2)]
        for _ in range(chance.randrange(30)):
            chance.choice(changers)(chance.randrange(1 << 40))
        at = box
        for _ in range(repeat_count(20, 8, 400)):
            kid = stack.enter_context(at.fork(1)[0])
            copies = [changer.of(kid) for changer in changers]
            for changer, copy in zip(changers, copies):
                assert copy() == changer()
                what = chance.randrange(1 << 40)
                assert copy(what) == changer(what)
            if chance.random() < 0.3:
                with at.fork(1)[0] as other:
                    assert [changer.of(other)() for changer in changers] == [changer() for changer in changers]
            for _ in range(chance.choice([0, 1, 1, 3, 10])):
                chance.choice(copies)(chance.randrange(1 << 40))
            at, changers = kid, copies


def test_several_forks_at_once_of_several_processes():
    chance = random.Random(77)
    with Sandbox() as box:
        one, other = Changer.begin(box), Changer.another(box)
        for _ in range(repeat_count(12, 4, 300)):
            kids = box.fork(3)
            try:
                copies = [(one.of(kid), other.of(kid)) for kid in kids]     # one whose input is closed ends
                for copy in copies:
                    assert (copy[0](), copy[1]()) == (one(), other())
                for kid, copy in zip(kids, copies):     # and none of them has anything of another's
                    what = chance.randrange(1 << 40)
                    with kid.fork(1)[0] as further:
                        assert one.of(further)(what) == copy[0](what)
            finally:
                for kid in kids:
                    kid.close()
            for changer in (one, other, one):
                changer(chance.randrange(1 << 40))


def forked_thrice(box, origin, *lines):
    """The last of three forks. Its image and that of the second are increments of the first one's."""
    for line in lines:
        origin(line)
    for _ in range(2):
        box.fork(1)[0].close()
    return box.fork(1)[0]


def test_second_fork_uses_an_incremental_image():
    with Sandbox() as box:
        origin = Asked.begin(box, "big = bytearray(b'x' * (8 << 20))", "x = []")
        for n in range(3):
            origin(f"x.append({n})")
            with box.fork(1)[0] as kid:
                assert origin.of(kid)("x, sum(big) == 120 << 23") == str((list(range(n + 1)), True))
                assert node_of(kid).memory_bytes > 8 << 20 if n == 0 else node_of(kid).memory_bytes < 4 << 20


SHELL = "touch /tmp/notes; sleep 1000 & while read -r n; do echo $n $(cat /tmp/notes); echo $n >> /tmp/notes; done"


def test_fork_of_a_fork_uses_an_incremental_image():
    with Sandbox() as box, contextlib.ExitStack() as stack:
        origin, at, sizes = Asked.begin(box, "big = bytearray(b'x' * (8 << 20))", "x = []"), box, []
        for generation in range(8):
            origin(f"x.append({generation})")
            at = stack.enter_context(at.fork(1)[0])
            origin = origin.of(at)
            assert origin("x, sum(big) == 120 << 23") == str((list(range(generation + 1)), True))
            sizes.append(node_of(at).memory_bytes)
        assert sizes[0] > 8 << 20 and max(sizes[1:]) < 4 << 20


def test_fork_of_a_fork_is_confined_and_has_no_more_descriptors():
    """It gets its filter by itself, after the userfaultfd that it has not any more."""
    def seen(process):
        return process(
            "sorted(os.listdir('/proc/self/fd')), [line.split()[1] for who in ('self', 1) for line in open(f'/proc/{who}/status') if line.startswith(('Seccomp', 'NoNewPrivs', 'Cap'))], libc.syscall(323, 0x80001), ctypes.get_errno()"
        )

    with Sandbox() as box, contextlib.ExitStack() as stack:
        origin, at = Asked.begin(box, "import ctypes, os", "libc = ctypes.CDLL(None, use_errno=True)"), box
        first = seen(origin)
        assert "'2', '2'" in first and first.endswith("-1, 38)")
        for _ in range(5):
            at = stack.enter_context(at.fork(1)[0])
            origin = origin.of(at)
            assert seen(origin) == first


def test_guest_cannot_clear_dirty_tracking():
    """PAGEMAP_SCAN with PM_SCAN_WP_MATCHING would: what was written before that would not be in the next fork."""
    with Sandbox() as box, contextlib.ExitStack() as stack:
        origin, at = (
            Asked.begin(
                box,
                "import ctypes, os, struct",
                "libc = ctypes.CDLL(None, use_errno=True)",
                "x = ctypes.create_string_buffer(b'1' * (1 << 20), 1 << 20)",
                "at = ctypes.addressof(x)",
                "found = ctypes.create_string_buffer(1536)",
            ),
            box,
        )
        for generation in range(5):
            at = stack.enter_context(at.fork(1)[0])
            origin = origin.of(at)
            assert origin("x.raw.count(b'2')") == str(generation)
            origin(f"x[{generation} * 8192] = b'2'")
            origin("fd = os.open('/proc/self/pagemap', os.O_RDONLY)")
            scan = "libc.ioctl(fd, ctypes.c_ulong(0xc0606610), struct.pack('<12Q', 96, 1, at & ~4095, (at & ~4095) + (1 << 20), 0, ctypes.addressof(found), 64, 0, 0, 2, 0, 2)), ctypes.get_errno()"
            assert origin(scan) == "(-1, 1)"
            origin("os.close(fd)")
            with at.fork(1)[0] as kid:
                assert origin.of(kid)("x.raw.count(b'2')") == str(generation + 1)


def test_fork_of_a_fork_has_several_processes():
    with Sandbox() as box, contextlib.ExitStack() as stack:
        process, at, said = box.spawn(["bash", "-c", SHELL]), box, []
        for generation in range(8):
            process.stdin.write(f"{generation}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().decode().split() == [str(generation), *said]
            said.append(str(generation))
            at = stack.enter_context(at.fork(1)[0])
            process = at.process(process.id)
        assert len(at.exec(["ps", "-C", "sleep", "-o", "pid="]).stdout.split()) == 1


def test_incremental_fork_can_be_snapshotted_and_forked():
    with Sandbox() as box:
        origin = Asked.begin(box, "big = bytearray(b'x' * (8 << 20))", "x = [1]")
        with forked_thrice(box, origin, "x.append(2)") as kid:
            state = node_of(kid)
            assert state.memory_bytes < 4 << 20
            assert box.show(state.id)["processes"][0]["memory_bytes"] > 8 << 20
            assert all(check["ok"] is not False for check in box.verify(state.id)["checks"])
            with box.fork(1, snapshot=state.id)[0] as other:
                copy = origin.of(other)
                assert copy("x, len(big)") == "([1, 2], 8388608)"
                copy("x.append(3)")
                other.reset()
                copy = origin.of(other)
                assert copy("x, sum(big) == 120 << 23") == "([1, 2], True)"
                with other.fork(1)[0] as further:
                    assert origin.of(further)("x") == "[1, 2]"
            origin("x.append(4)")
            kid.hibernate()
            kid.wake()
            assert origin.of(kid)("x, sum(big) == 120 << 23") == "([1, 2], True)" and origin("x") == "[1, 2, 4]"


@pytest.mark.parametrize("then", ["fork", "forks", "reset"])
def test_snapshot_after_forks_has_the_present_memory(then):
    """A prefork with the processes of the parent image waits for the next fork. After a full dump
    for a snapshot, forks once still used it: they had the state of an earlier fork."""
    with Sandbox() as box:
        origin = Asked.begin(box, "x = [1]", "y = bytearray(1 << 20)")
        for i in range(6):
            forked_thrice(box, origin, f"x.append({i})").close()
            origin("x.append('since'); y[len(x) << 12] = 1")
            told = origin("x, sum(y)")
            at = box.snapshot()
            origin("x.append('after'); y[len(x) << 12] = 1")
            if then == "reset":
                box.reset(at)
                origin = origin.of(box)
                assert origin("x, sum(y)") == told
            with closing(box.fork(3 if then == "forks" else 1, snapshot=at)) as kids:
                assert [origin.of(kid)("x, sum(y)") for kid in kids] == [told] * len(kids)
            with box.fork(1)[0] as kid:
                assert origin.of(kid)("x, sum(y)") == origin("x, sum(y)")


def test_repeated_snapshots_are_incremental():
    """They work in any order of resets, once or often, for one fork or many, after hibernation, and
    when the snapshots with their parent images are dropped."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        origin, said = Asked.begin(box, "big = bytearray(b'x' * (8 << 20))", "x = []"), {}

        def holds(sandbox, state):      # whose processes end: their input is closed
            return origin.of(sandbox)("x, sum(big)") == said[state.id]

        def step(n):
            origin(f"x.append({n}); big[{n} << 12] = {n}")
            state = box.snapshot()
            said[state.id] = origin("x, sum(big)")
            return state

        states = [step(n) for n in range(5)]
        assert states[0].memory_bytes > 8 << 20 and all(state.memory_bytes < 2 << 20 for state in states[1:])
        for state in (*states[::-1], *states, *states):
            with closing(box.fork(2, snapshot=state)) as kids:
                assert all(holds(kid, state) for kid in kids)
        until(lambda: len(children(engine.pid, "rollbox-hold")) > 3)        # what is wanted often needs no other
        assert all(box.show(state)["processes"][0]["memory_bytes"] > 8 << 20 for state in states)
        box.drop(states[0])
        for state in states[1:]:
            with closing(box.fork(1, snapshot=state)) as kids:
                assert holds(kids[0], state)
        box.reset(states[3])
        origin = origin.of(box)
        assert origin("x, sum(big)") == said[states[3].id]
        for n in range(5, 8):
            states.append(step(n))
        box.hibernate()
        box.wake()
        origin = origin.of(box)
        assert origin("x, sum(big)") == said[states[-1].id]
        states.append(step(8))


@pytest.mark.parametrize("n", [4, 16])
def test_many_forks_at_once_use_a_flattened_image(n):
    """The increment is not applied in each of so many forks: the image is flattened first."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        origin = Asked.begin(box, "big = bytearray(b'x' * (8 << 20))", "x = []")
        box.snapshot()
        origin("x.append(1); big[7] = 7")
        state, wanted = box.snapshot(), origin("x, sum(big)")
        with closing(box.fork(n, snapshot=state)) as kids:
            copies = [origin.of(kid) for kid in kids]
            assert [copy("x, sum(big)") for copy in copies] == [wanted] * n
            for i, (kid, copy) in enumerate(
                zip(kids[:4], copies)
            ):  # few of many: others are not noted from their start
                copy(f"x.append({i})")
                taken = kid.snapshot()
                assert (taken.memory_bytes < 2 << 20) == (n == 4)
                copy("x.append('after')")
                with closing(kid.fork(1, snapshot=taken)) as further:
                    assert copy.of(further[0])("x") == f"[1, {i}]"


def test_dropped_snapshot_frees_its_memory():
    """Dirty tracking since it ends, so the next image is full. While another image is an increment of it, it stays."""
    with Sandbox() as box:
        origin = Asked.begin(box, "big = bytearray(b'x' * (8 << 20))", "x = []")
        first = box.snapshot()
        assert first.memory_bytes > 8 << 20
        box.drop(first)
        origin("x.append(1)")
        second, third = box.snapshot(), (origin("x.append(2)"), box.snapshot())[1]
        assert second.memory_bytes > 8 << 20 > third.memory_bytes
        box.drop(second)
        origin("x.append(3)")
        fourth = box.snapshot()
        assert fourth.memory_bytes < 2 << 20
        for state, wanted in ((third, "[1, 2]"), (fourth, "[1, 2, 3]")):
            with closing(box.fork(1, snapshot=state)) as kids:
                assert origin.of(kids[0])("x") == wanted


def beside(call):
    """The result of the call, made in another thread."""
    pool = ThreadPoolExecutor(1)
    made = pool.submit(call)
    pool.shutdown(wait=False)
    return made


def forked_or_unknown(forks, origin, wanted, n):
    """A fork of a named snapshot has its processes, or fails because there is no such snapshot."""
    try:
        with closing(forks.result()) as kids:
            copies = [origin.of(kid) for kid in kids]
            assert [copy("x") for copy in copies] == [wanted] * n
    except RollboxError as problem:
        assert "no snapshot" in str(problem), problem


def put_together_for_forks(times):
    """Sixteen forks of what has changed are under way: what it is with its base is being made."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        origin = Asked.begin(box, "x = []", "big = bytearray(b'x' * (48 << 20))")
        box.snapshot()
        for i in range(times):
            origin(f"x.append({i})")
            state, wanted = box.snapshot(), origin("x")
            forks = beside(lambda: box.fork(16, snapshot=state.id))
            until(lambda: forks.done() or children(engine.pid, "rollbox-whole"))
            yield engine, box, origin, state, wanted, forks


def test_snapshot_dropped_while_it_is_flattened():
    for _, box, origin, state, wanted, forks in put_together_for_forks(3):
        box.drop(state)
        forked_or_unknown(forks, origin, wanted, 16)


def test_snapshot_dropped_before_its_queued_fork():
    with Engine() as engine, Sandbox(engine=engine) as box:
        origin = Asked.begin(box, "x = []", "big = b''")
        for i in range(6):
            origin(f"x.append({i}); big = os.urandom(1 << 20) * 48" if i else "import os")
            state, wanted = box.snapshot(), origin("x")
            origin("big = os.urandom(1 << 20) * 48")
            other = beside(box.snapshot)
            until(lambda: other.done() or children(engine.pid, "rollbox-capture"))
            forks = beside(lambda: box.fork(1, snapshot=state.id))
            until(lambda: forks.running() or forks.done())
            box.drop(state)
            forked_or_unknown(forks, origin, wanted, 1)
            other.result()


def test_forks_work_when_flattening_fails():
    """Each fork applies the increment by itself then."""
    for engine, _, origin, _, wanted, forks in put_together_for_forks(4):
        for child in children(engine.pid, "rollbox-whole"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with closing(forks.result()) as kids:
            copies = [origin.of(kid) for kid in kids]
            assert [copy("x") for copy in copies] == [wanted] * 16


@pytest.mark.parametrize("what", ["show", "verify", "export"])
def test_only_the_requested_incremental_image_is_flattened(what, tmp_path):
    with Engine() as engine, Sandbox(engine=engine) as box:
        origin = Asked.begin(box, "x = []", "big = bytearray(b'x' * (8 << 20))")
        states = [(origin(f"x.append({i})"), box.snapshot())[1] for i in range(4)]
        before = len(images(engine.pid))
        for state in (states[0], states[2]):
            if what == "show":
                assert box.show(state)["processes"][0]["memory_bytes"] > 8 << 20
            elif what == "verify":
                assert all(check["ok"] is not False for check in box.verify(state.id)["checks"])
            else:
                box.export(tmp_path / state.id, snapshot=state.id, processes="keep")
            assert len(images(engine.pid)) == before + (state is states[2])
        box.export(tmp_path / "files", snapshot=states[3].id)
        assert len(images(engine.pid)) == before + 1


@pytest.mark.long
def test_mappings_and_pages_are_dumped_at_one_moment():
    """A child of the dump worker reads the pages, and may do so late on a busy machine. Meanwhile
    the resumed guest calls madvise for a region, and the child once saw the new setting with the
    old pages."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        box.upload(guest("wipeonfork"), PROGRAM)
        process = box.spawn([PROGRAM])
        assert process.stdout.readline() == b"ready\n"
        state = box.snapshot()
        with busy(3):
            for _ in range(repeat_count(40, 20, 300)):
                before, state = state, box.snapshot()
                with box.fork(1, snapshot=state)[0] as kid:
                    copy = kid.process(process.id)
                    copy.stdin.write(b"?")
                    copy.stdin.flush()
                    assert copy.stdout.readline() == b"0\n"
                    copy.stdin.close()
                box.drop(before)        # tracked since the look at it, and found to be too much


@contextlib.contextmanager
def busy(n):
    """So many who always want the same processor."""
    one = {max(os.sched_getaffinity(0))}
    with contextlib.ExitStack() as stack:
        for _ in range(n):
            process = stack.enter_context(subprocess.Popen(["sh", "-c", "while :; do :; done"]))
            stack.callback(process.kill)
            os.sched_setaffinity(process.pid, one)
        yield


def test_process_trees_are_dumped_incrementally():
    """Shells with children, pipes between them, one whose group's leader is gone."""
    script = "x=0; (sleep 1000 | cat) & sleep 1000 & (sh -c 'sleep 1000 & sleep 1000 & exit 3'); while read -r line; do x=$((x + 1)); echo $x $line; done"
    with Sandbox({"max_processes": 100}) as box:
        shell, origin = box.spawn(["bash", "-c", script]), Asked.begin(box, "x = bytearray(b'x' * (6 << 20))")

        def say(process, text):
            process.stdin.write(text.encode() + b"\n")
            process.stdin.flush()
            return process.stdout.readline().decode().strip()

        assert say(shell, "a") == "1 a"
        for i in range(6):
            with box.fork(1)[0] as kid:
                copy, other = kid.process(shell.id), origin.of(kid)
                assert say(copy, "b") == f"{i + 2} b" and other("sum(x)") == origin("sum(x)")
                assert kid.exec(["ps", "-eo", "pid,ppid,pgid,sid,stat,comm"], text=True).stdout.count("sleep") == 4
                assert i < 2 or node_of(kid).memory_bytes < 2 << 20
            say(shell, "c")
            origin("x[len(x) // 2] = 7")


def test_changes_between_forks_are_in_the_next_fork():
    """Threads, children, another program, other states of the sandbox: changes that an increment
    cannot express cause a full image."""
    with Sandbox() as box:
        origin = Asked.begin(box, "import os, signal, threading", "x = [0]", "go = threading.Event()")
        steps = [
            "x.append('thread'); waiter = threading.Thread(target=go.wait, daemon=True); waiter.start()",
            "child = os.fork() or signal.pause()",
            "os.kill(child, 9); os.waitpid(child, 0)",
            "x.append('file'); f = open('/tmp/f', 'w+'); f.write('written'); f.flush()",
            "os.chdir('/'); os.umask(0o22); signal.signal(signal.SIGUSR1, lambda *_: x.append('signal'))",
            "r, w = os.pipe(); os.write(w, b'waiting')",
            "go.set(); waiter.join(); x.append('alone')",
        ]
        say = "x, threading.active_count(), os.getcwd(), len(os.listdir('/proc/self/fd'))"
        for step in [None, None, None, *steps]:
            if step:
                origin(step)
            for between in (
                lambda: None,
                box.snapshot,
                lambda: box.fork(1, processes="drop")[0].close(),
                lambda: (box.pause(), box.resume()),
            ):
                between()
                with box.fork(1)[0] as kid:
                    assert origin.of(kid)(say) == origin(say), step
        with box.fork(1)[0] as kid:
            copy = origin.of(kid)
            assert copy("os.read(r, 100), f.seek(0), f.read()") == "(b'waiting', 0, 'written')"
            copy("os.kill(os.getpid(), signal.SIGUSR1)")
            assert copy("x[-1]") == "'signal'" and origin("x[-1]") == "'alone'"


def test_mappings_that_become_one_keep_what_each_had():
    """An area of the base ends where it was protected otherwise, or forgot; what lies behind that was another's."""
    place, pages = 0x150000000000, 64
    with Sandbox() as box:
        origin = Asked.begin(
            box,
            "import ctypes, mmap",
            "libc = ctypes.CDLL(None)",
            "libc.mmap.restype = ctypes.c_void_p",
            f"at = lambda page: ctypes.c_void_p({place} + 4096 * page)",
            "length = lambda pages: ctypes.c_size_t(4096 * pages)",
            f"found = libc.mmap(at(0), length({pages}), 3, 0x100022, -1, ctypes.c_long(0))",
            f"kept = ctypes.memset(at(0), 7, 4096 * {pages})",
            "protect = lambda page, pages, how: libc.mprotect(at(page), length(pages), how)",
            "advise = lambda page, pages, how: libc.madvise(at(page), length(pages), how)",
            f"look = lambda: [ctypes.string_at(at(i).value, 4096).count(7) for i in range({pages})]",
        )
        assert origin("protect(0, 16, 1), advise(40, 8, 18)") == "(0, 0)"       # MADV_WIPEONFORK
        forked_thrice(box, origin).close()
        for step in (
            "advise(40, 8, 19)",
            "protect(0, 16, 3)",
            "protect(8, 8, 1)",
            "protect(0, 64, 3)",
            "protect(20, 1, 1)",
            "protect(20, 1, 3)",
        ):
            assert origin(step) == "0"
            with box.fork(1)[0] as kid:
                assert origin.of(kid)("look()") == origin("look()"), step


def test_executing_a_program_restarts_dirty_tracking():
    """The tracking of the old program does not cover the new one, but once counted as valid: each
    fork was a full dump, with the processes paused for it."""
    with Sandbox() as box:
        origin = Asked.begin(box, "import os")
        forked_thrice(box, origin).close()
        origin.process.stdin.write(
            f"print(1, flush=True), os.execvp('python3', {[*PYTHON, 'print(2, flush=True)' + ANSWERER]!r})\n".encode()
        )
        origin.process.stdin.flush()
        assert [origin.process.stdout.readline() for _ in range(2)] == [b"1\n", b"2\n"]
        origin("big = bytearray(b'x' * (8 << 20))")
        sizes = []
        for i in range(3):
            origin(f"y = {i}")
            with box.fork(1)[0] as kid:
                assert origin.of(kid)("y, sum(big) == 120 << 23") == f"({i}, True)"
                sizes.append(node_of(kid).memory_bytes)
        assert sizes[0] > 8 << 20 > 2 * sizes[2]


def test_new_threads_since_the_parent_image():
    """A process may have new threads since. Restore has a start stack for each thread; once it made
    only as many as the parent image had threads, and a fork crashed behind them."""
    with Sandbox() as box:
        other = Asked.begin(box, "x = 0")
        origin = Asked.begin(box, "import threading", "go = threading.Event()")
        forked_thrice(box, origin).close()
        for n in (2, 3, 20, 20, 3, 2):
            origin("go.set(); [t.join() for t in threading.enumerate()[1:]]; go.clear()")
            origin(f"for _ in range({n - 1}): threading.Thread(target=go.wait, daemon=True).start()")
            with box.fork(1)[0] as kid:
                copy = origin.of(kid)
                assert copy("threading.active_count()") == origin("threading.active_count()") == str(n)
                assert copy(
                    "go.set(), [t.join() for t in threading.enumerate()[1:]], threading.active_count()"
                ).endswith(", 1)")
                assert other.of(kid)("x") == "0"


@pytest.mark.parametrize(
    "change",
    [
        "m.close() or os.unlink('/tmp/m')",
        "m.close() or os.truncate('/tmp/m', 5000)",
        "os.pwrite(f, b'b', 0)",
        "m.close() or os.chmod('/tmp/m', 0)",
        "m.close() or os.rename('/tmp/m', '/tmp/n')",
    ],
)
def test_mapped_files_that_changed_since_the_parent_image(change):
    """A fork that is prepared from the parent image maps them again, although it resumes without
    them, or with their present content."""
    with Sandbox() as box:
        origin = Asked.begin(
            box,
            "import mmap, os",
            "f = os.open('/tmp/m', os.O_RDWR | os.O_CREAT)",
            "os.truncate(f, 8192)",
            "m = mmap.mmap(f, 8192, mmap.MAP_PRIVATE, mmap.PROT_READ)",
            "seen = m[:1]",
        )
        forked_thrice(box, origin).close()
        origin(change)
        for i in range(3):
            origin(f"x = {i}")
            with box.fork(1)[0] as kid:
                copy = origin.of(kid)
                look = "x, os.path.exists('/tmp/m'), None if m.closed else m[:1]"
                assert copy(look) == origin(look)


def test_replaced_memory_counts_as_dirty():
    """As much memory as before, and all of it new: a full dump by a copy-on-write fork becomes the
    parent image of the next fork."""
    with Sandbox() as box:
        origin = Asked.begin(box, "big = bytearray(b'x' * (48 << 20))")
        forked_thrice(box, origin).close()
        for i in range(2):
            origin(f"big = None; big = bytearray(bytes([{i}]) * (48 << 20))")
            for least, most in ((48 << 20, 1 << 40), (0, 8 << 20)):
                with box.fork(1)[0] as kid:
                    assert origin.of(kid)("len(big), big[-1]") == f"({48 << 20}, {i})"
                    assert least < node_of(kid).memory_bytes < most


def test_no_incremental_image_over_conflicting_memory():
    """It is put beside the region that its base was loaded to (IMAGE_REGIONS), while the processes
    have what they had then: what the base had there was found in the way, by every fork from then
    on."""
    with Sandbox() as box:
        origin = Asked.begin(
            box,
            "import ctypes",
            "libc = ctypes.CDLL(None)",
            "place = ctypes.c_void_p(0x200040000000), ctypes.c_size_t(1 << 30)",
            "big = bytearray(b'x' * (8 << 20))",
            "libc.mmap.restype = ctypes.c_void_p",
        )
        assert origin("libc.mmap(*place, 3, 0x104022, -1, ctypes.c_long(0)) == place[0].value") == "True"
        with forked_thrice(box, origin) as kid:
            assert node_of(kid).memory_bytes > 8 << 20
        assert origin("libc.munmap(*place)") == "0"
        for least, most in ((8 << 20, 1 << 40), (0, 4 << 20)):
            with box.fork(1)[0] as kid:
                assert origin.of(kid)("sum(big) == 120 << 23") == "True"
                assert least < node_of(kid).memory_bytes < most


def test_clocks_do_not_go_back():
    with Sandbox() as box:
        origin = Asked.begin(
            box,
            "import time",
            "read = lambda: (time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))",
        )
        for _ in range(12):
            monotonic, boottime = eval(origin("read()"))
            with box.fork(1)[0] as kid, kid.fork(1)[0] as further:
                for copy in (origin.of(kid), origin.of(further)):
                    its_monotonic, its_boottime = eval(copy("read()"))
                    assert its_monotonic >= monotonic and its_boottime >= boottime


def test_dirty_tracking_is_invisible_to_the_guest():
    with Sandbox() as box:
        origin = Asked.begin(
            box,
            "import ctypes, errno, os, threading",
            "libc = ctypes.CDLL(None, use_errno=True)",
            "threading.Thread(target=threading.Event().wait, daemon=True).start()",
        )
        look = "sorted(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task'))"
        where = "[sorted(os.sched_getaffinity(int(task))) for task in os.listdir('/proc/self/task')]"
        before, there = origin(look), origin(where)
        ask = "libc.syscall(323, 0x80001), ctypes.get_errno() == errno.ENOSYS"
        with forked_thrice(box, origin) as kid:
            copy = origin.of(kid)
            assert origin(look) == before == copy(look)
            box.snapshot()
            assert origin(where) == there == copy(where)
            assert origin(ask) == copy(ask) == "(-1, True)"


def test_fork_works_without_its_zygote():
    with Engine() as engine, Sandbox(engine=engine) as box:
        origin = Asked.begin(box, "x = [1]")
        forked_thrice(box, origin).close()
        for i in range(3):
            for holder in children(engine.pid, "rollbox-hold"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(holder, signal.SIGKILL)
            origin(f"x.append({i})")
            with contextlib.suppress(SetupFailed):
                box.fork(1)[0].close()
            with box.fork(1)[0] as kid:
                assert origin.of(kid)("x") == origin("x")


HUNTER = """
import os, sys
for line in sys.stdin:
    pid, prey = int(line), []
    while not prey:
        prey = open(f"/proc/{pid}/task/{pid}/children").read().split()
    os.kill(int(prey[0]), 9)
    print("killed", flush=True)
"""


@pytest.mark.long
def test_unfinished_image_is_never_a_parent():
    """A guest ends the copy of itself that its image is written from. The fork fails; another,
    which waits its turn meanwhile, found in the place of that image what there was of it, and was
    half of what it should be."""
    with Sandbox() as box:
        origin = Asked.begin(
            box,
            "import hashlib, os",
            "big = bytearray(os.urandom(1 << 20) * 64)",
            "pid = os.getpid()",
        )
        hunter = box.spawn([*PYTHON, HUNTER])
        pid, digest = origin("pid"), "hashlib.sha256(big).hexdigest()"
        box.fork(1)[0].close()
        killed = 0
        for i in range(repeat_count(12, 4, 100)):
            origin(f"big[:] = bytes(x ^ {i + 1} for x in big[:1 << 12]) + bytes(big[1 << 12:])")
            was = origin(digest)
            hunter.stdin.write(f"{pid}\n".encode())
            hunter.stdin.flush()
            with ThreadPoolExecutor(2) as pool:
                first = pool.submit(box.fork, 2)
                other = pool.submit(box.fork, 1)
                for forking in (first, other):
                    try:
                        kids = forking.result()
                    except RollboxError as problem:
                        assert "its copy-on-write fork was killed" in str(problem)
                        killed += 1
                        continue
                    for kid in kids:
                        with kid:
                            assert origin.of(kid)(digest) == was
            hunter.stdout.readline()
        assert killed


def test_simultaneous_requests_share_one_image():
    """Each of them has the same state's image put together, and the engine kept each of these for good."""
    with Engine() as engine:

        def images():
            return sum(size_of(f"/proc/{engine.pid}/fd/{fd}") > 24 << 20 for fd in os.listdir(f"/proc/{engine.pid}/fd"))

        with Sandbox(engine=engine) as box:
            origin = Asked.begin(box, "big = bytearray(b'x' * (24 << 20))")
            forked_thrice(box, origin).close()
            kids = box.fork(3)
            state = node_of(kids[0])
            with ThreadPoolExecutor(4) as pool:
                for shown in pool.map(lambda asker: asker.show(state.id), [*kids, box]):
                    assert shown["processes"][0]["memory_bytes"] > 24 << 20
            for kid in kids:
                kid.close()
        until(lambda: images() == 0)


def size_of(path):
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def test_repeated_forks_leave_nothing():
    with Engine() as engine, Sandbox(engine=engine) as box:
        origin = Asked.begin(box, "x = [1]")

        def left():
            return (
                len(children(engine.pid, "rollbox-hold")),
                len(children(engine.pid, "rollbox-launch")),
                len(os.listdir(f"/proc/{engine.pid}/fd")),
            )

        forked_thrice(box, origin).close()
        for i in range(repeat_count(100, 20, 300)):
            origin(f"x.append(bytes({i % 7} << 20))")       # now and then it is too much for an increment
            kids = box.fork(1 + i % 3)
            assert origin.of(kids[-1])("len(x)") == origin("len(x)")
            for kid in kids:
                kid.close()
        box.reset(processes="drop")
        until(lambda: left()[0] == 0 and left()[1] <= 4)


def test_dirty_tracking_counts_as_descriptors(tmp_path):
    """One for each process: of many sandboxes with many it is given up where there is no room for
    it. They took the last that the engine had, and forks failed."""
    path = tmp_path / "engine"
    raises = (
        ["setpriv", "--bounding-set=-sys_resource"] if os.geteuid() == 0 else []
    )  # root's engine would have more
    with (
        subprocess.Popen(
            [
                *raises,
                "sh",
                "-c",
                'ulimit -n 256; exec "$0" --socket "$1"',
                BUILD / "rollbox-engine",
                path,
            ]
        ) as process,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(process.terminate)
        until(lambda: serves(path))
        engine, most = stack.enter_context(Engine(path)), 0
        for _ in range(12):
            box = stack.enter_context(Sandbox(engine=engine))
            origin = Asked.begin(
                box,
                "import subprocess",
                "kids = [subprocess.Popen(['cat'], stdin=subprocess.PIPE) for _ in range(19)]",
                "x = 1",
            )
            for _ in range(3):
                with box.fork(1)[0] as kid:
                    assert origin.of(kid)("x") == "1"
            most = max(most, noted(engine))
        assert 20 <= most < 120
