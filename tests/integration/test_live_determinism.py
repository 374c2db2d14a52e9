# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of sandboxes with random_seed and time_start: forked, reset and woken processes
resume where they were, with the same random stream and clocks.

The model: the same is asked of several copies of one state, each on its own, and what they answer
is compared: with the same seed and a virtual clock it is the same to the byte, and the same as what
the captured
one itself answers. make check runs this file as root and as an ordinary user.
"""

import contextlib
import re
import select
import socket
import time

import pytest

from harness import repeat_count, sample_cases, until
from live_corpus import PROGRAMS, asks, begin, files, missing
from rollbox import Engine, FeatureMissing, Sandbox
from asked import Asked, closing, restorer, sh, Typed  # noqa: F401 (restorer: a fixture)

START = "2025-01-01T00:00:00"
START_S = 1735689600
SEEDED = {"random_seed": 7}
OFFSET = {"time_start": START, "time_mode": "offset"}
VIRTUAL = {"random_seed": 7, "time_start": START, "time_mode": "virtual"}
LEVELS = [SEEDED, OFFSET, {**SEEDED, **OFFSET}, {"time_start": START, "time_mode": "virtual"}, VIRTUAL]
NAMES = ["seed", "offset", "seed and offset", "virtual", "seed and virtual"]
IMPORTS = "import asyncio, ctypes, os, queue, random, select, signal, socket, subprocess, sys, tempfile, threading, time, uuid; libc = ctypes.CDLL(None)"

# Programs that begin with b"ready\n" while something of theirs is under way, and tell at the end of
# their input what has come of it. Under a virtual clock no real time passes.
UNDER_WAY = {
    "sleep": "t = time.time(); print('ready', flush=True); time.sleep(3000); print(time.time() - t, time.monotonic(), sys.stdin.read())",
    "poll": "a, b = os.pipe(); p = select.poll(); p.register(a, 1); print('ready', flush=True); print(p.poll(3000000), time.time(), sys.stdin.read())",
    "select": "a, b = os.pipe(); print('ready', flush=True); print(select.select([a], [], [], 3000), time.time(), sys.stdin.read())",
    "condition": "c = threading.Condition(); c.acquire(); print('ready', flush=True); print(c.wait(3000), time.time(), sys.stdin.read())",
    "threads": """
said = queue.Queue()
def work(n):
    for i in range(3):
        time.sleep(1000 + n)
        said.put((n, i, round(time.monotonic(), 2), os.urandom(2).hex() if n == 0 else ""))
threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]
[t.start() for t in threads]
print('ready', flush=True)
[t.join() for t in threads]
print([said.get() for _ in range(15)], sys.stdin.read())
""",
    "asyncio": """
async def late(n):
    await asyncio.sleep(1000 * n)
    return n, round(time.time(), 2), random.SystemRandom().random()
async def main():
    said = [asyncio.ensure_future(late(n)) for n in (3, 1, 2)]
    await asyncio.sleep(0)
    print('ready', flush=True)
    print([await s for s in said], sys.stdin.read())
asyncio.run(main())
""",
    "processes": """
kids = [subprocess.Popen(['sh', '-c', f'sleep {n}000; date +%s; tr -d - < /proc/sys/kernel/random/uuid'], stdout=subprocess.PIPE) for n in (3, 1, 2)]
time.sleep(1)
print('ready', flush=True)
print([kid.communicate()[0] for kid in kids], round(time.time(), 3), sys.stdin.read())
""",
    "alarm": "rung = []; signal.signal(signal.SIGALRM, lambda *_: rung.append(time.time())); signal.setitimer(signal.ITIMER_REAL, 3000, 1000); print('ready', flush=True); [signal.pause() for _ in range(3)]; print(rung, sys.stdin.read())",
    "timer": """
class Event(ctypes.Structure):
    _fields_ = [('value', ctypes.c_void_p), ('signal', ctypes.c_int), ('notify', ctypes.c_int), ('rest', ctypes.c_char * 48)]
rung, id, times = [], ctypes.c_void_p(), (ctypes.c_long * 4)(1000, 0, 3000, 0)
rt = ctypes.CDLL('librt.so.1')
signal.signal(signal.SIGUSR1, lambda *_: rung.append(time.time()))
assert rt.timer_create(1, ctypes.byref(Event(None, signal.SIGUSR1, 0)), ctypes.byref(id)) == 0 and rt.timer_settime(id, 0, times, None) == 0
print('ready', flush=True)
[signal.pause() for _ in range(3)]
print(rung, sys.stdin.read())
""",
    "timerfd": """
timers = [libc.timerfd_create(1, 0) for _ in range(3)]
for n, fd in enumerate(timers):
    assert libc.timerfd_settime(fd, 0, (ctypes.c_long * 4)(500, 0, 1000 * (n + 1), 0), None) == 0
assert select.select(timers, [], [])[0] == timers[:1]
time.sleep(1200)                # and has expired twice since
print('ready', flush=True)      # the first can be read, and is not yet
print([(os.read(fd, 8), time.time()) for fd in (timers[2], timers[0], timers[1], timers[0])], sys.stdin.read())
""",
}


@contextlib.contextmanager
def asked(policy, *setup, engine=None):
    with Sandbox(policy, engine=engine) as box:
        yield box, Asked.begin(box, IMPORTS, *setup)


def future(one):
    """The further behaviour of a copy, as text."""
    return [
        one(line)
        for line in (
            "os.urandom(8).hex()",
            "random.random()",
            "uuid.uuid4()",
            "hash('x')",
            "open('/dev/urandom', 'rb').read(4)",
            "time.time()",
            "time.monotonic()",
            "id(object())",
            "tempfile.mkdtemp()",
            "subprocess.run(['sh', '-c', 'echo $$; date +%s.%N; sleep 3600; date +%s.%N; head -c4 /dev/urandom | od -An -tx1'], capture_output=True).stdout",
            "time.sleep(86400)",
            "time.time()",
            "[os.waitpid(os.fork() or os._exit(0), 0)[0] for _ in range(3)]",
            "os.urandom(8).hex()",
            "select.select([], [], [], 100), time.time()",
            "signal.alarm(50), signal.sigtimedwait([14], 100) and time.time()",
        )
    ]


SETUP = (
    "random.seed()",
    "first = os.urandom(8).hex(), uuid.uuid4(), random.random()",
    "signal.pthread_sigmask(signal.SIG_BLOCK, [14])",
)


# Futures

def test_two_forks_of_a_snapshot_behave_alike():
    with asked(VIRTUAL, *SETUP) as (box, origin), closing(box.fork(3, same_seed=True)) as kids:
        copies = [origin.of(kid) for kid in kids]       # one that is dropped ends, and asks for the time on its way out
        futures = [future(copy) for copy in copies]
        assert futures[0] == futures[1] == futures[2] == future(origin)
        assert [sh(kid, "date +%s.%N; echo $$; mktemp -u").stdout for kid in kids] == [
            sh(box, "date +%s.%N; echo $$; mktemp -u").stdout
        ] * 3
        assert float(origin("time.time()")) > START_S + 3600 + 86400


def test_same_run_has_the_same_forks():
    def run():
        with (
            asked(VIRTUAL, *SETUP) as (box, origin),
            closing(box.fork(2)) as kids,
            closing(kids[1].fork(1)) as grandkids,
        ):
            return [[one("first"), *future(one)] for one in map(origin.of, (*kids, *grandkids))], [
                one.inspect()["random_seed"] for one in (*kids, *grandkids)
            ]

    assert run() == run()


def test_derived_seeds_are_those_of_forks_without_processes():
    with asked(SEEDED, "first = os.urandom(8).hex()") as (box, origin):
        with closing(box.fork(2)) as kids:
            seeds = [kid.inspect()["random_seed"] for kid in kids]
            said = [origin.of(kid)("first, os.urandom(8).hex(), uuid.uuid4()") for kid in kids]
            assert len(set(seeds)) == 2 and said[0] != said[1] and said[0][:20] == said[1][:20]
            assert len({sh(one, "head -c8 /dev/urandom | od -An -tx1").stdout for one in (box, *kids)}) == 3
    with Sandbox(SEEDED) as box, closing(box.fork(2)) as kids:
        assert [kid.inspect()["random_seed"] for kid in kids] == seeds


def test_random_streams_continue_in_a_fork():
    with asked(SEEDED) as (box, origin):
        whole = [origin("os.urandom(3).hex()") for _ in range(4)]
    with asked(SEEDED) as (box, origin):
        begun = [origin("os.urandom(3).hex()") for _ in range(2)]
        state = box.snapshot()
        assert begun + [origin("os.urandom(3).hex()") for _ in range(2)] == whole
        box.reset(state)
        again = origin.of(box)
        assert begun + [again("os.urandom(3).hex()") for _ in range(2)] == whole
        with closing(box.fork(1, snapshot=state, same_seed=True)) as (kid,):
            again = origin.of(kid)
            assert begun + [again("os.urandom(3).hex()") for _ in range(2)] == whole


def test_addresses_are_those_of_the_origin():
    """New mappings of a copy have the addresses that they would have in the origin, not random ones."""
    told = set()
    for n in (3, 1):
        with (
            Engine() as engine,
            asked(SEEDED, engine=engine) as (box, origin),
            closing(box.fork(n, same_seed=True)) as kids,
        ):  # an engine's first: it has a launcher ready for any plan
            told |= {
                one(
                    "[hex(id(x)) for x in (bytearray(1 << 20), bytes(1 << 26), [0] * 99999)], libc.malloc(1 << 22)"
                )
                for one in (origin, *map(origin.of, kids))
            }
    assert len(told) == 1, told


def test_fork_has_no_handler_of_init():
    """Under virtual time init has one for SIGALRM; what a program has not set does what it does by default."""
    with asked(VIRTUAL) as (box, origin), closing(box.fork(1)) as (kid,):
        copy, line = origin.of(kid), "[line for line in open('/proc/self/status') if line.startswith('SigCgt')]"
        assert copy(line) == origin(line)
        copy.process.stdin.write(b"os.kill(os.getpid(), signal.SIGALRM)\n")
        copy.process.stdin.flush()
        assert copy.process.wait().signal == 14


def test_commands_of_forks_are_numbered_on():
    with asked(SEEDED) as (box, origin):
        told = {sh(box, "od -An -tx1 -N1 /proc/self/auxv; echo $SRANDOM").stdout for _ in range(2)}
        draw = ["python3", "-I", "-S", "-c", "import os; print(os.urandom(8).hex(), os.getpid())"]
        first = box.exec(draw, text=True).stdout
        with closing(box.fork(2, same_seed=True)) as kids:
            said = [[one.exec(draw, text=True).stdout for _ in range(2)] for one in (box, *kids)]
        assert told and said[0] == said[1] == said[2] and len({first, *said[0]}) == 3


def test_reset_restores_the_clock():
    with asked(VIRTUAL, *SETUP) as (box, origin):
        state = box.snapshot()
        first = future(origin)
        for _ in range(2):
            box.reset(state)
            assert future(origin.of(box)) == first


@pytest.mark.parametrize("policy", LEVELS, ids=NAMES)
def test_seeded_session_survives_hibernation(policy, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLBOX_STORE", str(tmp_path / "store"))
    with Engine() as engine, Sandbox(policy, engine=engine) as box:
        origin = Asked.begin(
            box,
            IMPORTS,
            "before = os.urandom(8), time.time(), time.monotonic()",
            "draw = lambda: (os.urandom(8), uuid.uuid4())",
        )
        with closing(box.fork(1, same_seed="random_seed" in policy)) as (kid,):
            box.hibernate()
            box.wake()
            again, other = origin.of(box), origin.of(kid)
            assert again("before") == other("before")
            on = "time.time() >= before[1] and time.monotonic() >= before[2]"
            assert again(on) == other(on) == "True"
            if "random_seed" in policy:
                assert again("draw()") == other("draw()")
            if "time_start" in policy:
                assert START_S <= float(again("time.time()")) < START_S + 300
                other("time.time()")
            if policy.get("time_mode") == "virtual":
                assert again("time.time(), time.sleep(1000), time.time()") == other(
                    "time.time(), time.sleep(1000), time.time()"
                )


# Clocks

def test_time_of_day_continues_from_the_snapshot():
    with asked(OFFSET) as (box, origin):
        apart = "[time.clock_gettime(c) - time.monotonic() for c in (time.CLOCK_REALTIME, time.CLOCK_TAI)], time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)"
        here = eval(origin(apart))
        taken = float(origin("time.time()"))
        state = box.snapshot()
        before = float(origin("time.time()"))
        until(lambda: float(origin("time.time()")) > before + 1.5)
        with closing(box.fork(2, snapshot=state)) as kids:
            for kid in kids:
                one = origin.of(kid)
                there = eval(one(apart))
                assert [*there[0], there[1]] == pytest.approx([*here[0], here[1]], abs=0.2)
                assert taken - 0.5 < float(one("time.time()")) and START_S <= taken
                assert float(
                    one("float(subprocess.run(['date', '+%s.%N'], capture_output=True).stdout)")
                ) == pytest.approx(float(one("time.time()")), abs=1)


def test_raw_calls_and_the_vdso_agree():
    raw = "t = (ctypes.c_long * 2)(); libc.syscall(228, 0, t); vdso = time.time(); raw = t[0] + t[1] / 1e9"
    for policy in (OFFSET, VIRTUAL):
        with asked(policy, raw) as (box, origin), closing(box.fork(1)) as (kid,):
            one = origin.of(kid)
            one(raw)
            assert one("0 <= vdso - raw < 1 and raw > 1735689600 and vdso < 1735689600 + 300") == "True"


@pytest.mark.parametrize("name", UNDER_WAY)
def test_pending_waits_end_at_their_time(name):
    """And when it does where nobody looked on."""
    argv = ["python3", "-I", "-c", IMPORTS + "\n" + UNDER_WAY[name]]

    def end(process):
        process.stdin.close()
        result = process.wait(60)
        assert result.exit_code == 0, result.stderr
        return result.stdout.removeprefix(b"ready\n")

    def begin(box):
        process = box.spawn(argv)
        assert process.stdout.readline() == b"ready\n"
        return process

    with Sandbox(VIRTUAL) as box:
        alone = end(begin(box))
    with Sandbox(VIRTUAL) as box:
        process = begin(box)
        with closing(box.fork(2, same_seed=True)) as kids, closing(kids[0].fork(1, same_seed=True)) as grandkids:
            said = [end(one) for one in [process, *(kid.process(process.id) for kid in (*kids, *grandkids))]]
    assert said[1:] == [said[0]] * 3
    if name not in ("asyncio",):        # a pause interrupts epoll, and the program reads the time once more
        assert said[0] == alone


def test_clock_of_an_idle_fork_does_not_advance():
    with (
        asked(
            VIRTUAL,
            "t = threading.Thread(target=time.sleep, args=(100000,), daemon=True)",
            "t.start()",
        ) as (box, origin),
        closing(box.fork(1)) as (kid,),
    ):
        one = origin.of(kid)
        first = float(one("time.time()"))
        time.sleep(0.3)         # nothing can be waited for: what is looked for is that nothing happens
        assert float(one("time.time()")) - first < 1 and float(origin("time.time()")) < START_S + 10


# While it runs

BUSY = {
    "draws": "n = 0\nwhile True:\n    os.urandom(8); n += 1",
    "forks": "while True:\n    subprocess.run(['/bin/true'])",
    "clocks": "t = (ctypes.c_long * 2)()\nwhile True:\n    libc.syscall(228, 0, t); time.time()",
    "sleeps": "while True:\n    time.sleep(0.0001)",
    "threads": "e = threading.Event()\ndef spin():\n    while True:\n        e.wait(0.001); os.urandom(4)\n[threading.Thread(target=spin).start() for _ in range(4)]",
    "timers": "def spin():\n    timer = ctypes.c_void_p()\n    libc.timer_create(0, None, ctypes.byref(timer))\n    while True:\n        libc.timer_settime(timer, 1, (ctypes.c_long * 4)(0, 0, int(time.time()) + 1000, 0), None)\n[threading.Thread(target=spin).start() for _ in range(3)]",
    "starts": "while True:\n    subprocess.run(['python3', '-I', '-S', '-c', 'import os; os.urandom(4)'])",
}


@pytest.mark.parametrize("policy", [{**SEEDED, **OFFSET}, VIRTUAL], ids=["offset", "virtual"])
@pytest.mark.parametrize("name", BUSY)
def test_snapshot_at_any_moment_repeats(name, policy):
    """A process that queries init all the time is dumped and resumes, as its copies do."""
    with Sandbox(policy) as box:
        box.spawn(["python3", "-I", "-c", IMPORTS + "\n" + BUSY[name]])
        origin = Asked.begin(box, IMPORTS, "n = 0")
        moments = repeat_count(5, 2, 50)
        for i in range(moments):
            with closing(box.fork(2, same_seed=True)) as kids:
                assert [origin.of(kid)("n") for kid in kids] == [str(i)] * 2
                assert sh(kids[0], "echo here").stdout == "here\n"
            origin("n += 1")
        assert origin("n") == str(moments) and len(box.processes()) >= 1


CORPUS = [
    "objects",
    "random_state",
    "digest_under_way",
    "generator",
    "inotify",
    "connections",
    "asyncio_server_on_loopback",
    "server_with_a_kept_connection",
    "spinning_thread",
    "java",
    "terminals_with_input",
    "bash_on_a_terminal",
    "tmux_on_a_terminal",
    "datagrams_one_way",
    "packets_and_their_end",
    "patience_of_sockets",
    "odd_names",
    "files_closed_to_itself",
    "barriers",
    "no_more_descriptors",
]
SOME = [name for name in PROGRAMS if name not in CORPUS][::4]
# Captured or not, a virtual clock holds these up or overtakes them: what the kernel does by itself,
# between the ends of a terminal or of TCP, looks like rest, so that time-outs are over first; and
# where a thread spins, or in a JVM, others may not get their turn.
OF_REAL_TIME = {
    "server_with_a_kept_connection",
    "spinning_thread",
    "java",
    *[name for name in PROGRAMS if name.endswith("on_a_terminal")],
}


def test_descriptors_in_flight_survive_a_full_descriptor_table():
    """An ordinary user's, as its sandboxes' processes are."""
    name = "no_more_descriptors"
    ours, theirs = socket.socketpair()
    with ours, theirs, Sandbox({**VIRTUAL, "max_processes": 200, "net": "loopback"}) as box:
        socket.send_fds(ours, [b"nobody takes it"], [0])
        origin = begin(box, name)
        with closing(box.fork(1)) as kids:
            assert asks(kids[0].process(origin.id)) == ["ok"]


@pytest.mark.parametrize("name", sample_cases([*CORPUS, *SOME]))
def test_corpus_is_restored(name):
    if missing(name):
        pytest.skip(f"{missing(name)} is not installed")
    with Sandbox(
        {
            **({**SEEDED, **OFFSET} if name in OF_REAL_TIME else VIRTUAL),
            "max_processes": 200,
            "max_memory": "1G",
            "net": "loopback",
        }
    ) as box:
        for path, content in files(name).items():
            box.write_file(path, content, mode=0o755)
        origin = begin(box, name)
        with closing(box.fork(2, same_seed=True)) as kids:
            for process in [kid.process(origin.id) for kid in kids] + [origin]:
                for _ in range(2):
                    process.stdin.write(b"check\n")
                    process.stdin.flush()
                    assert process.stdout.readline() == b"ok\n"
                process.stdin.close()
                assert process.wait(60).exit_code == 0


def test_shell_works_on_a_terminal():
    """The same input has the same effect on its copies and takes the same time. The position of the
    echo within the output of a job may differ."""

    def typed(shell):
        shell.process.stdin.write(b"wait; head -c4 /dev/urandom | od -An -tx1; echo en''d\n")
        shell.process.stdin.flush()
        return re.findall(rb"[0-9]{10}\.[0-9]{9}|(?: [0-9a-f]{2}){4}", shell.shows(b"end\r\n"))

    with Sandbox(VIRTUAL) as box:
        shell = Typed.begin(box)
        shell("(sleep 3000; date +%s.%N; sleep 1000; date +%s.%N) & sleep 10\n")
        with closing(box.fork(2, same_seed=True)) as kids:
            said = [typed(one) for one in [shell.of(kid) for kid in kids] + [shell]]
        assert (
            said[0] == said[1] == said[2]
            and len(said[0]) == 3
            and said[0][1].startswith(str(START_S + 4000).encode())
        )


# Its last child signals it each 3000 seconds, after a moment of computing: before 4000 of them are
# over, which the kernel, whose waits for a descriptor end by the real clock at the latest, does not
# get to however busy the machine is. Those between have the first to be stopped stand a while
# before the last.
SIGNALLED = """
import ctypes, os, signal, time
libc, me = ctypes.CDLL(None), os.getpid()
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.siginterrupt(signal.SIGUSR1, True)
between = [pid for pid in (os.fork() for _ in range(20)) if pid or signal.pause()]
last = os.fork()
for _ in range(0 if last else 400):
    time.sleep(3000)
    sum(range(50000))
    os.kill(me, signal.SIGUSR1)
    sum(range(10000))
if not last:
    os._exit(0)
print("ready", flush=True)
(end, _), length, early = os.pipe(), (ctypes.c_long * 2)(), 0
ends, polled = (ctypes.c_ulong * 16)(), (ctypes.c_int * 2)(end, 1)
while True:
    length[0], length[1], ends[0] = 4000, 0, 1 << end
    if WAIT == 0:
        if os.waitpid(last, os.WNOHANG)[0]:
            break
        early += 1
[os.kill(pid, signal.SIGKILL) for pid in between]
print(early, flush=True)
"""


# Waits that init holds, that the kernel starts again from the beginning, and that it continues.
A_WHILE = {
    "of nothing": "libc.select(0, None, None, None, length)",
    "of a descriptor": "libc.select(end + 1, ends, None, None, length)",
    "of a descriptor, by poll": "libc.poll(polled, 1, 4000000)",
    "asleep": "libc.nanosleep(length, None)",
}


@pytest.mark.long
@pytest.mark.parametrize("wait", sample_cases(A_WHILE.values()), ids=sample_cases(A_WHILE))
def test_interrupted_wait_is_not_resumed(wait):
    """Broken off for a snapshot, and ended by a signal, here and in copies: the next like it was
    over when that would have been."""
    with Sandbox({**VIRTUAL, "max_processes": 64}) as box:
        process = box.spawn(["python3", "-I", "-c", SIGNALLED.replace("WAIT", wait)])
        assert process.stdout.readline() == b"ready\n"
        kids, taken = [], 0
        while process.poll() is None and taken < repeat_count(12, 8, 64):
            for _ in range(4):
                box.snapshot()
            taken += 4
            kids += box.fork(1) if process.poll() is None and len(kids) < 3 else []
        with closing(kids):
            if kids and process.poll() is not None:     # it may have ended before the last one
                kids.pop().close()
            assert [
                one.wait(60).stdout.split()[-1]
                for one in (process, *(kid.process(process.id) for kid in kids))
            ] == [b"0"] * (len(kids) + 1)


MANY = """
import ctypes, threading
libc, wrong = ctypes.CDLL(None, use_errno=True), []
def sleep(n):
    if libc.nanosleep((ctypes.c_long * 2)(1 + n % 50, 0), None):
        wrong.append((n, ctypes.get_errno()))
print("ready", flush=True)
for _ in range(4):
    threads = [threading.Thread(target=sleep, args=(n,)) for n in range(100)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print(wrong, flush=True)
"""
# A process is blocked in vfork, because its child's file is opened after a long computation of
# another one; so all the others are stopped, resumed and stopped again.
SPAWNS = """
import os, select, time
os.mkfifo("/tmp/fifo")
(asked, ask), (end, _), wrong = os.pipe(), os.pipe(), []
if not os.fork():
    while os.read(asked, 1):
        sum(range(1000000))
        os.close(os.open("/tmp/fifo", os.O_WRONLY))
if not os.fork():
    while True:
        os.write(ask, b"x")
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, "/tmp/fifo", os.O_RDONLY, 0)]), 0)
        time.sleep(0.7)
print("ready", flush=True)
for _ in range(20):
    begun = time.monotonic()
    select.select([end], [], [], 2)
    wrong += [took for took in [time.monotonic() - begun] if abs(took - 2) > 0.001]
print(wrong, flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("program", [MANY, SPAWNS], ids=["many threads", "beside vfork"])
def test_waits_that_snapshots_break_off_last_as_long_as_they_would(program):
    with Sandbox({**VIRTUAL, "max_processes": 200}) as box:
        process = box.spawn(["python3", "-I", "-c", program])
        assert process.stdout.readline() == b"ready\n"
        for _ in range(repeat_count(100, 30, 400)):
            if select.select([process.stdout], [], [], 0)[0]:
                break
            box.drop(box.snapshot())
        assert process.stdout.readline() == b"[]\n"


ASKED_UNDER_SIGNALS = """
import ctypes, os, signal
libc, asked, now, wrong = ctypes.CDLL(None, use_errno=True), os.getpid(), (ctypes.c_long * 2)(), 0
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.siginterrupt(signal.SIGUSR1, True)
sender = os.fork()
while not sender:
    os.kill(asked, signal.SIGUSR1)
for _ in range(%d):
    for clock in (2, 3, ~asked << 3 | 2):
        wrong += libc.clock_gettime(clock, now) != 0
os.kill(sender, 9)
print(wrong)
"""


@pytest.mark.parametrize("policy", LEVELS[3:], ids=NAMES[3:])
def test_signals_do_not_interrupt_clock_queries(policy):
    """A signal that comes before init has taken the question up ended clock_gettime with EINTR,
    which it does not know. The first query of a program is a question, and each of a clock that
    counts a processor's time."""
    with Sandbox(policy) as box:
        assert (
            box.exec(
                ["python3", "-I", "-S", "-c", ASKED_UNDER_SIGNALS % repeat_count(2000, 500)],
                text=True,
            ).stdout
            == "0\n"
        )


# Limits

def test_serial_is_refused_by_name():
    with asked({**VIRTUAL, "serial": True}, "x = 1") as (box, origin):
        with pytest.raises(FeatureMissing, match="serial"):
            box.snapshot()
        assert box.snapshot(processes="drop").processes == 0 and origin("x") == "1"


def test_own_seccomp_filter_is_refused_by_name():
    program = "struct.pack('<HxxxxxxQ', 1, ctypes.addressof(code))"
    with asked(
        SEEDED,
        "import struct",
        "code = ctypes.create_string_buffer(struct.pack('<HBBI', 6, 0, 0, 0x7fff0000))",
        f"of = ctypes.create_string_buffer({program})",
    ) as (box, origin):
        box.snapshot()
        assert origin("libc.prctl(22, 2, of)") == "0"
        with pytest.raises(FeatureMissing, match="a seccomp filter of its own"):
            box.snapshot()
        assert origin("len(os.urandom(4))") == "4"


def test_depth():
    with asked(VIRTUAL, "path = []") as (box, origin), contextlib.ExitStack() as stack:
        at = box
        for depth in range(6):
            origin(f"path.append(({depth}, os.urandom(2).hex(), time.sleep(10)))")
            at = stack.enter_context(at.fork(1, same_seed=True)[0])
            origin = origin.of(at)
        here = origin("path, time.time()")
    with asked(VIRTUAL, "path = []") as (box, origin):
        for depth in range(6):
            origin(f"path.append(({depth}, os.urandom(2).hex(), time.sleep(10)))")
        assert origin("path, time.time()") == here
