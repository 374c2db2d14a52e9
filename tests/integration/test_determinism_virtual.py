# SPDX-License-Identifier: Apache-2.0
"""time_mode virtual: waits end at once, and agree with every clock; a corpus whose output has the
time in it; and guests that lie to the clock, or keep it from moving.

The model is that of test_determinism.py: each program of the corpus runs six times, four side by
side on all processors, and prints one text. None of them ends in time if a sleep is slept:
hours are in them.
"""

import json
import time

import pytest
from corpus import LIMIT_S, OUTSIDE, PY, SOAK, START, START_S, TIMES, VIRTUAL, guest_in_ways, run_corpus
from harness import caller, place  # noqa: F401

pytestmark = pytest.mark.timeout_s(2 * LIMIT_S)


CORPUS = {
    "bash-hour": ["bash", "-c", "date; sleep 3600; date; date +%s.%N"],
    "bash-random": ["bash", "-c", "echo $RANDOM $RANDOM $EPOCHREALTIME; sleep 1; echo $SECONDS"],
    "bash-mktemp": ["bash", "-c", "mktemp; mktemp -d; sleep 0.5; mktemp"],
    "bash-time": ["bash", "-c", "time sleep 1.5; TIMEFORMAT=%R; time (sleep 60 & sleep 90; wait)"],
    "bash-sleep-sort": [
        "bash",
        "-c",
        "for i in 5 3 9 1 7 2 8 4 6; do (sleep $i; echo $i) & done; wait; date +%s.%N",
    ],
    "bash-sleep-sort-short": [
        "bash",
        "-c",
        "for i in 5 3 9 1 7 2 8 4 6; do (sleep 0.0$i; echo $i) & done; wait",
    ],
    "bash-same-time": [
        "bash",
        "-c",
        "for i in 1 2 3 4 5 6 7; do (sleep 1; echo $i) & done; wait; date +%N",
    ],
    "bash-timeout": [
        "bash",
        "-c",
        "timeout 5 sleep 100; echo $?; timeout 100 sleep 5; echo $?; timeout -s KILL 1 sleep 2; echo $?; date +%s",
    ],
    "bash-read-timeout": [
        "bash",
        "-c",
        "mkfifo /tmp/f; exec 3<>/tmp/f; read -t 10 x <&3; echo $(($? > 128)); date +%s.%N",
    ],
    "bash-pipeline": [
        "bash",
        "-c",
        "(for i in 1 2 3; do date +%s; sleep 10; done) | while read x; do echo $x $(date +%s); done",
    ],
    "bash-background": [
        "bash",
        "-c",
        "for i in 1 2 3; do (while :; do sleep 0.$i; echo $i; done) & done; sleep 3.05; kill %1 %2 %3; date +%s",
    ],
    "bash-infinity": [
        "bash",
        "-c",
        "sleep infinity & sleep 5; kill $!; wait $!; echo $?; date +%s",
    ],
    "xargs": [
        "bash",
        "-c",
        "printf '%s\\n' 4 2 3 1 | xargs -P4 -I{} sh -c 'sleep {}; echo {}'; date +%s",
    ],
    "python-hour": [
        *PY,
        "import time; t = time.monotonic(); time.sleep(3600); print(time.monotonic() - t, time.time(), time.perf_counter_ns(), time.process_time())",
    ],
    "python-now": [
        *PY,
        "import datetime, time, uuid; print(datetime.datetime.now(), time.time_ns(), uuid.uuid1())",
    ],
    "python-random-by-time": [
        *PY,
        "import random, time; random.seed(time.time_ns()); print(random.random())",
    ],
    "python-threads": [
        *PY,
        """
import threading, time
start = time.time()
def work(n):
    time.sleep(n / 10)
    print(n, round(time.time() - start, 3))
threads = [threading.Thread(target=work, args=(n,)) for n in (5, 3, 9, 1, 7)]
for t in threads: t.start()
for t in threads: t.join()
print(round(time.time() - start, 3))
""",
    ],
    "python-event": [
        *PY,
        "import threading, time; t = time.time(); print(threading.Event().wait(3600), threading.Lock().acquire(timeout=5), time.time() - t)",
    ],
    "python-timer": [
        *PY,
        "import threading, time; t = time.time(); x = threading.Timer(30, lambda: print('fired', round(time.time() - t, 3))); x.start(); x.join(); print(round(time.time() - t, 3))",
    ],
    "python-queue": [
        *PY,
        "import queue, time\ntry: queue.Queue().get(timeout=30)\nexcept queue.Empty: print(time.time())",
    ],
    "python-select": [
        *PY,
        """
import os, select, time
r, w = os.pipe()
t, poll, epoll = time.time(), select.poll(), select.epoll()
poll.register(r, select.POLLIN)
epoll.register(r, select.EPOLLIN)
print(select.select([r], [], [], 60), poll.poll(60000), epoll.poll(60), time.time() - t)
""",
    ],
    "python-socket": [
        *PY,
        "import socket, time\na, b = socket.socketpair()\na.settimeout(7)\ntry: a.recv(1)\nexcept TimeoutError: print(time.time())",
    ],
    "python-asyncio": [
        *PY,
        """
import asyncio, time
async def work(n):
    await asyncio.sleep(n)
    print(n, time.time())
async def main():
    await asyncio.gather(*map(work, (5, 3600, 0.5, 1, 70)))
    try:
        await asyncio.wait_for(asyncio.sleep(100), 5)
    except TimeoutError:
        print('late', time.time())
asyncio.run(main())
""",
    ],
    "python-subprocess": [
        *PY,
        "import subprocess, time\ntry: subprocess.run(['sleep', '100'], timeout=5)\nexcept subprocess.TimeoutExpired: print('late', time.time())",
    ],
    "python-sched": [
        *PY,
        "import sched, time; s = sched.scheduler(); [s.enter(n, 1, lambda n=n: print(n, time.time())) for n in (3, 1, 2)]; s.run()",
    ],
    "python-alarm": [
        *PY,
        "import signal, time; signal.signal(signal.SIGALRM, lambda *_: print('alarm', time.time())); signal.setitimer(signal.ITIMER_REAL, 2, 3); time.sleep(9.5); print(time.time(), signal.getitimer(signal.ITIMER_REAL))",
    ],
    "python-sigwait": [
        *PY,
        "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); print(signal.sigtimedwait([signal.SIGUSR1], 40), time.time())",
    ],
    "python-pool": [
        *PY,
        "import multiprocessing, time\ndef work(n): time.sleep(n); return n, round(time.time(), 2)\nwith multiprocessing.Pool(3) as pool: print(pool.map(work, [3, 1, 2]))",
    ],
    "python-executor": [
        *PY,
        "import concurrent.futures as f, time\nwith f.ThreadPoolExecutor(3) as e: print([(x.result(), round(time.time(), 2)) for x in f.as_completed([e.submit(lambda n=n: time.sleep(n) or n) for n in (3, 1, 2)])])",
    ],
    "python-logging": [
        *PY,
        "import logging, sys, time; logging.basicConfig(format='%(asctime)s %(relativeCreated)d %(message)s', stream=sys.stdout, level=10); logging.info('a'); time.sleep(1.25); logging.info('b')",
    ],
    "python-timeit": [
        *PY,
        "import timeit; print(timeit.repeat('sum(range(99))', number=100, repeat=3))",
    ],
    "python-rusage": [
        *PY,
        "import os, resource; print(os.times(), resource.getrusage(resource.RUSAGE_SELF))",
    ],
    "python-spin": [
        *PY,
        "import time\nt = time.time()\nwhile time.time() < t + 0.05: pass\nprint(time.time())",
    ],
    "perl-time": [
        "perl",
        "-e",
        "use Time::HiRes; print Time::HiRes::time, ' ', rand(), qq(\\n); select undef, undef, undef, 100; $SIG{ALRM} = sub { print 'alarm ' }; alarm 7; sleep 100; print Time::HiRes::time",
    ],
    "perl-children": [
        "perl",
        "-e",
        "$| = 1; for my $n (3, 1, 2) { if (!fork) { sleep $n; print time, qq( $n\\n); exit } } 1 while wait > 0",
    ],
    "awk-srand": ["awk", "BEGIN { srand(); print rand(), systime() }"],
    "flock": ["bash", "-c", "exec 9>/tmp/l; flock 9; flock -w 20 /tmp/l true; echo $?; date +%s"],
    "git": [
        "bash",
        "-c",
        "cd /tmp; git init -q g; cd g; echo a > a; git add a; git -c user.name=n -c user.email=e commit -qm m; sleep 100; git -c user.name=n -c user.email=e commit -q --allow-empty -m n; git log --format='%H %cd'",
    ],
    "make": [
        "bash",
        "-c",
        "cd /tmp; printf 'all: a b c\\na:\\n\\t@sleep 3; echo a\\nb:\\n\\t@sleep 1; echo b\\nc:\\n\\t@sleep 2; echo c\\n' > Makefile; make -j3; date +%s",
    ],
    "node-timers": [
        "node",
        "-e",
        "setTimeout(() => console.log('b', Date.now()), 7200000); setTimeout(() => console.log('a', Date.now()), 3600000); let n = 0; const i = setInterval(() => { console.log(n, Date.now()); if (++n == 5) clearInterval(i) }, 100)",
    ],
    "node-promises": [
        "node",
        "-e",
        "const {setTimeout: wait} = require('timers/promises'); Promise.all([3, 1, 2].map(async n => { await wait(n * 1000); console.log(n, Date.now()) })).then(() => console.log(process.uptime() > 2, Math.random()))",
    ],
    "sqlite-now": [
        "sqlite3",
        ":memory:",
        "select datetime('now'), strftime('%f', 'now'), random()",
    ],
}
if SOAK:
    CORPUS.update({"go-chance": ["go", "chance"], "go-time": ["go", "time"], "java-time": ["java", "time"]})
for what in ("waits", "timers", "early", "clocks", "order", "same-time"):
    for way in ("static", "dynamic", "musl"):
        CORPUS[f"c-{way}-{what}"] = [way, what]


@pytest.fixture(scope="module")
def programs():
    return guest_in_ways("virtual")


@pytest.fixture(scope="module")
def outputs(caller, programs):
    return run_corpus(caller, CORPUS, programs, TIMES, "-j", "4", "--seed", "7", *VIRTUAL)


@pytest.mark.parametrize("name", sorted(CORPUS))
def test_program_repeats(outputs, name):
    if name not in outputs:
        pytest.skip("this machine has no such program")
    assert len(outputs[name]) == TIMES
    for text in outputs[name]:
        assert text == outputs[name][0]


def virtual(caller, programs, what, *flags, kind="static"):
    return caller.run("--readable", place() / "guests", *VIRTUAL, *flags, "--", programs[kind], what)


def test_sleeping_loops_keep_their_order(caller):
    """Slow programs, as on an overloaded machine, that come to rest again and again: a long sleep
    ends in its turn, although by the real clock it would have ended long before."""
    begun = time.perf_counter()
    sum(range(5_000_000))
    work = int(5_000_000 * 0.1 / (time.perf_counter() - begun))
    result = caller.run(*VIRTUAL, "--", *PY, f"""
import threading, time
n = 0
def step():
    global n
    while True:
        time.sleep(0.05)
        n += 1
        sum(range({work}))
threading.Thread(target=step, daemon=True).start()
time.sleep(2.02)
print(n, flush=True)
""")
    assert result.stdout == "40\n", result.told


def test_waiting_for_a_processor_takes_no_virtual_time(caller):
    """Waiting for a processor, also because of the sandbox's own limit, does not count as endless
    computing: a sleep beside it does not end early."""
    result = caller.run("--cpus", "0.04", *VIRTUAL, "--", *PY, """
import os, time
if not os.fork():
    time.sleep(1)
    os.write(1, b"slept\\n")
    os._exit(0)
sum(range(25_000_000))
os.write(1, b"computed\\n")
os.wait()
""")
    if result.outcome == "error" and result.error["code"] == "feature_missing":
        pytest.skip("a part of a processor is a cgroup's to give")
    assert result.stdout == "computed\nslept\n", result.told


EXPIRATIONS = """
import ctypes, os, select, signal, struct, time
libc = ctypes.CDLL(None, use_errno=True)
REPEATED = (ctypes.c_long * 4)
start = time.monotonic()
def now():
    return int(time.monotonic() - start + 0.01)
def timer(flags=0, value=2, interval=2, absolute=0):
    fd = libc.timerfd_create(1, flags)
    value += start if absolute else 0
    assert libc.timerfd_settime(fd, absolute, REPEATED(interval, 0, int(value), int(value % 1 * 1e9)), None) == 0
    return fd
def ticks(fd):
    try:
        return f"{struct.unpack('Q', os.read(fd, 8))[0]}@{now()}"
    except BlockingIOError:
        return f"-@{now()}"
def left(fd):
    spec = REPEATED()
    assert libc.timerfd_gettime(fd, spec) == 0
    return round(spec[2] + spec[3] / 1e9, 2)

fd = timer()
print("reads", ticks(fd), ticks(fd), end=" ")
time.sleep(7)
print(ticks(fd), ticks(fd))
os.close(fd)

start = time.monotonic()
fd = timer()
time.sleep(11)
print("left", left(fd), ticks(fd), left(fd))
os.close(fd)

start = time.monotonic()
fd = timer(os.O_NONBLOCK)
print("nonblock", ticks(fd), end=" ")
time.sleep(5)
print(ticks(fd), ticks(fd), select.select([fd], [], [], 0)[0] == [], end=" ")
time.sleep(2)
print(select.select([fd], [], [], 0)[0] == [fd], left(fd), ticks(fd))
os.close(fd)

start = time.monotonic()
fd, epoll = timer(value=3), select.epoll()
epoll.register(fd, select.EPOLLIN)
for n in range(3):
    print("epoll", len(epoll.poll(10)), end=" ")
    time.sleep(3 * n)
    print(ticks(fd), end=" ")
print()
epoll.close()
os.close(fd)

start = time.monotonic()
time.sleep(10.5)
fd = timer(os.O_NONBLOCK, value=1, interval=2, absolute=1)
time.sleep(0.001)
print("past", ticks(fd), left(fd), ticks(fd))
os.close(fd)
start = time.monotonic()
fd = timer(value=4, interval=3, absolute=1)
time.sleep(20)
libc.timerfd_settime(fd, 0, REPEATED(5, 0, 5, 0), None)
print("again", ticks(fd))
os.close(fd)

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGALRM])
start = time.monotonic()
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_char * 48)]
def posix_left():
    spec = REPEATED()
    assert libc.timer_gettime(ident, spec) == 0
    return round(spec[2] + spec[3] / 1e9, 2)
ident = ctypes.c_void_p()
assert libc.timer_create(1, ctypes.byref(Event(None, signal.SIGUSR1, 0)), ctypes.byref(ident)) == 0
assert libc.timer_settime(ident, 0, REPEATED(2, 0, 2, 0), None) == 0
time.sleep(11)
print("overrun", libc.timer_getoverrun(ident), posix_left(), end=" ")
print(signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1, libc.timer_getoverrun(ident), now(), end=" ")
print(signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1, libc.timer_getoverrun(ident), now())
libc.timer_delete(ident)

start = time.monotonic()
signal.setitimer(signal.ITIMER_REAL, 2, 2)
time.sleep(11)
print("itimer", [round(x, 2) for x in signal.getitimer(signal.ITIMER_REAL)], end=" ")
for n in range(3):
    signal.sigwait([signal.SIGALRM])
    print(now(), round(signal.getitimer(signal.ITIMER_REAL)[0], 2), end=" ")
print()

start = time.monotonic()
fd = libc.timerfd_create(1, 0)
assert libc.timerfd_settime(fd, 0, REPEATED(0, 1000000, 0, 1000000), None) == 0
time.sleep(3000000)
print("many", ticks(fd), len(select.select([fd], [], [], 0)[0]))
"""


@pytest.mark.parametrize("serial", (False, True))
def test_unread_timer_expirations_are_counted(caller, serial):
    """As on a bare kernel: the number at each read or signal, and the time of the next one. The
    last timer is never read, so three thousand million expirations are one jump."""
    result = caller.run("--seed", "7", *VIRTUAL, *(("--serial",) if serial else ()), "--", *PY, EXPIRATIONS)
    assert result.stdout.splitlines() == [
        "reads 1@2 1@4 3@11 1@12",
        "left 1.0 5@11 1.0",
        "nonblock -@0 2@5 -@5 True True 1.0 1@7",
        "epoll 1 1@3 epoll 1 2@8 epoll 1 4@15 ",
        "past 5@10 0.5 -@10",
        "again 1@25",
        "overrun 0 1.0 True 4 11 True 0 12",
        "itimer [0.0, 2.0] 11 1.0 12 2.0 14 2.0 ",
        "many 3000000000@3000000 0",
    ], result.told


LEFT = '''
import ctypes, os, signal, time
libc = ctypes.CDLL(None, use_errno=True)
SELECT, PPOLL, PSELECT = 23, 271, 270
def call(number, reads, seconds, sleeps=False):
    """The raw call, which writes back: what it returns, what is left of its time, and what it says of the descriptor."""
    left = (ctypes.c_long * 2)(seconds, 0)
    if number == PPOLL:
        polled = (ctypes.c_int * 2)(reads, 1)
        n = libc.syscall(number, None if sleeps else polled, 0 if sleeps else 1, left, None, 8)
        said = polled[1] >> 16
    else:
        bits = (ctypes.c_ulong * 16)(1 << reads)
        n = libc.syscall(number, 0 if sleeps else reads + 1, None if sleeps else bits, None, None, left, None)
        said = bits[0] >> reads
    return f"{n}: {left[0] + left[1] / (1e6 if number == SELECT else 1e9):.4f} left, {said}"
r, w = os.pipe()
def later(seconds, what):
    if not os.fork():
        time.sleep(seconds)
        what()
        os._exit(0)
signal.signal(signal.SIGUSR1, lambda *_: None)
def tell():
    os.kill(os.getppid(), signal.SIGUSR1)
for number in SELECT, PSELECT, PPOLL:
    print("sleep", call(number, r, 3, True))
    print("time-out", call(number, r, 3))
    later(1, tell)
    print("signal", call(number, r, 3, True))
    os.wait()
    later(1, tell)
    print("signal", call(number, r, 3))
    os.wait()
    later(2, lambda: os.write(w, b"x"))
    print("byte", call(number, r, 5))
    print("at once", call(number, r, 5))
    os.read(r, 1)
    os.wait()
'''


@pytest.mark.parametrize("serial", (False, True))
def test_remaining_wait_time_follows_the_sandbox_clock(caller, serial):
    """The same as from a bare kernel, except for the microseconds that pass there. Without serial,
    waits for descriptors that end for another reason are not covered."""
    result = caller.run("--seed", "7", *VIRTUAL, *(("--serial",) if serial else ()), "--", *PY, LEFT)
    expected = []
    for unchanged in (1, 1, 0):  # a set has the descriptor in it, a pollfd has nothing yet
        expected += [
            f"sleep 0: 0.0000 left, {unchanged}",
            "time-out 0: 0.0000 left, 0",
            f"signal -1: 2.0000 left, {unchanged}",
            f"signal -1: 2.0000 left, {unchanged}",
            "byte 1: 3.0000 left, 1",
            "at once 1: 5.0000 left, 1",
        ]
    lines = result.stdout.splitlines()
    assert len(lines) == len(expected), result.told
    for n, (line, wanted) in enumerate(zip(lines, expected)):
        assert line == wanted or (not serial and n % 6 in (3, 4, 5)), result.told


@pytest.mark.parametrize("kind", ("static", "dynamic", "musl"))
def test_every_wait_takes_its_time(outputs, kind):
    if f"c-{kind}-waits" not in outputs:
        pytest.skip("needs musl-gcc: it is not installed")
    lines = outputs[f"c-{kind}-waits"][0].splitlines()
    lines = [line for line in lines if not line.endswith("its set 0")]
    assert [int(line.split()[0]) for line in lines] == [10000 * n for n in range(1, 20)]
    for line in outputs[f"c-{kind}-clocks"][0].splitlines():
        number = line.replace(",", "").split()
        if number[0] == "clock":
            assert number[2] == number[6] == "3600000", line
        elif number[0] in ("gettimeofday", "time", "times", "sysinfo"):
            assert number[1] == "3600", line


def test_order_is_by_time(outputs):
    assert outputs["bash-sleep-sort"][0].split()[:9] == list("123456789")
    assert outputs["xargs"][0].split() == ["1", "2", "3", "4", str(START_S + 4)]
    assert outputs["c-static-order"][0].split()[::3] == [str(100 * n) for n in range(1, 10)]
    assert outputs["bash-timeout"][0].split() == ["124", "0", "137", str(START_S + 11)]


def test_timer_set_by_another_thread_expires(caller):
    """It is its process'; the kernel's own would come in an hour of ours."""
    code = (
        "import signal, threading, time; signal.signal(signal.SIGALRM, lambda *_: print('alarm', int(time.time())))\n"
        "t = threading.Thread(target=signal.alarm, args=(3600,)); t.start(); t.join(); time.sleep(10000); print(signal.alarm(0), int(time.time()))"
    )
    assert caller.run(*VIRTUAL, "--", *PY, code).stdout == f"alarm {START_S + 3600}\n0 {START_S + 10000}\n"


def test_ended_processes_do_not_stop_the_clock(caller):
    """Children that nobody has asked about: what the kernel tells of them is root's."""
    code = "import os, time\nfor i in range(130):\n  if os.fork() == 0: os._exit(0)\ntime.sleep(1000000)\nprint(int(time.time()))"
    assert (
        caller.run(*VIRTUAL, "--processes", "200", "--timeout", "30", "--", *PY, code).stdout
        == f"{START_S + 1000000}\n"
    )


def test_without_a_seed(caller):
    texts = {caller.run(*VIRTUAL, "--", "bash", "-c", "date +%s.%N; sleep 86400; date +%s.%N").stdout for _ in range(5)}
    assert len(texts) == 1
    assert [int(time.split(".")[0]) - START_S for time in texts.pop().split()] == [0, 86400]


def test_result_names_the_level(caller):
    determinism = caller.run("--seed", "7", *VIRTUAL, "--", "true").isolation["determinism"]
    assert determinism == {"level": "virtual", "random_seed": "7", "time_start": START, "time_mode": "virtual"}


def test_timeout_is_in_real_time(caller):
    assert caller.run(*VIRTUAL, "--timeout", "60", "--", "sleep", "1000000").outcome == "exit"
    assert (
        caller.run(
            *VIRTUAL, "--timeout", "1", "--", "sh", "-c", "sleep 1000000 & while :; do :; done"
        ).outcome
        == "timeout"
    )


@pytest.mark.once
def test_busy_wait_for_the_clock_ends(caller):
    """It takes the time twice and doubles what it does in between until that has taken long enough."""
    result = caller.run(*VIRTUAL, "--", *PY, "import timeit; n, t = timeit.Timer('pass').autorange(); print(t >= 0.2)")
    assert result.stdout == "True\n", result.told


def test_uptime(caller):
    text = caller.run(
        *VIRTUAL,
        "--",
        "sh",
        "-c",
        "cut -d. -f1 /proc/uptime; grep btime /proc/stat; ps -o lstart= -p $$",
    ).stdout.splitlines()
    assert 10000000 <= int(text[0]) < 10000060
    assert text[1] == f"btime {START_S - 10000000}"
    assert text[2].split()[-1] == "2025"


@pytest.mark.parametrize("flags", ((), ("--disk-at", "store")))
def test_uptime_goes_with_the_clock(caller, flags):
    code = """
import os, subprocess, time
def told():
    print(open("/proc/uptime").read(), end="")
    return float(open("/proc/uptime").read().split()[0]) - time.clock_gettime(time.CLOCK_BOOTTIME)
assert abs(told()) < 0.1
subprocess.run(["sleep", "3600"])
assert abs(told()) < 0.1
while time.monotonic() < 3602 + 1e7:    # by asking alone
    pass
os.times()                              # which init is asked
assert abs(told()) < 0.1
"""
    fill = "" if flags else "dd if=/dev/zero of=/tmp/full bs=1M 2> /dev/null; "
    done = caller.run(
        *VIRTUAL,
        "--disk",
        "16M",
        *flags,
        "--",
        "sh",
        "-c",
        f"{fill}sleep 1; echo x 2> /dev/null > /proc/uptime; exec /usr/bin/python3 -Ic \"$0\"",
        code,
    )
    assert done.stderr == "" and done.stdout == "".join(f"{10000000 + s}.00 0.00\n" for s in (1, 3601, 3602)), done


def test_no_time_passes_until_output_is_taken(caller):
    """More than a pipe holds: the writer waits for us, not for the sleeping process beside it."""
    code = "(sleep 1; echo late $(date +%s) >&2) & head -c 3000000 /dev/zero; echo written $(date +%s) >&2; wait"
    texts = {caller.run(*VIRTUAL, "--", "sh", "-c", code).stderr for _ in range(5)}
    assert texts == {f"written {START_S}\nlate {START_S + 1}\n"}


@pytest.mark.parametrize("way", OUTSIDE)
def test_wait_for_input_from_outside_is_real(caller, way):
    """No time passes while the user of the command does nothing."""
    with caller.start(*VIRTUAL, "--", *OUTSIDE[way]) as run:
        assert run.line() == "ready"
        # Runs of others, so that some time has passed.
        assert caller.run(*VIRTUAL, "--", "sleep", "100").outcome == "exit"
        run.say()
        status, out, _ = run.finish()
    assert status == 0 and out == f"{START_S}\n".encode()


BESIDE_OUTSIDE = {
    "select-until": [
        *PY,
        "import select, time; t = time.time()\nwhile time.time() < t + 0.3: select.select([0], [], [], 0.3)\nprint(int(time.time()))",
    ],
    "short-select-until": [
        *PY,
        "import select, time; t = time.time()\nwhile time.time() < t + 0.01: select.select([0], [], [], 0.01)\nprint(int(time.time()))",
    ],
    "asyncio": [
        *PY,
        """
import asyncio, time
async def work():
    asyncio.get_running_loop().add_reader(0, lambda: None)
    await asyncio.sleep(0.3)
asyncio.run(work())
print(int(time.time()))
""",
    ],
    "short-sleeps": [
        "bash",
        "-c",
        "cat <&0 >/dev/null & python3 -I -c 'import time; t = time.time()\nwhile time.time() < t + 0.03: time.sleep(0.01)\nprint(int(time.time()))'",
    ],
}


@pytest.mark.parametrize("way", BESIDE_OUTSIDE)
def test_waits_beside_a_blocked_reader_end(caller, way):
    """A loop that waits for its time, and looks at its clock: it would for ever, as no time passes meanwhile."""
    with caller.start(*VIRTUAL, "--", *BESIDE_OUTSIDE[way]) as run:
        assert run.line() == str(START_S)
        status, _, _ = run.finish()
    assert status == 0


# Hostile guests

@pytest.mark.parametrize(
    "trick",
    (
        "lying-page",
        "sealed-page",
        "bad-times",
        "crowd",
        "storm",
        "traced",
        "many-timers",
        "spinner",
        "exec-race",
        "dear-descriptor",
    ),
)
def test_init_serves_on(caller, programs, trick):
    result = virtual(caller, programs, trick, "--processes", "500")
    assert result.outcome == "exit" and result.exit_code == 0, result.told
    assert result.stdout.splitlines()[-1] == "done 100", result.told


def test_bomb_of_sleeping_processes_is_ended_by_the_timeout(caller):
    code = "import os, time\nwhile True:\n  try:\n    os.fork(); time.sleep(0.001)\n  except OSError: pass\n"
    result = caller.run("--seed", "7", *VIRTUAL, "--timeout", "1", "--processes", "40", "--", *PY, code)
    assert result.outcome == "timeout"


# Sessions

SESSION = """
import sys
sys.path.insert(0, %r)
from rollbox import Policy, Sandbox
start = %d
with Sandbox(Policy(random_seed=7, time_start="2025-01-01T00:00:00", time_mode="virtual")) as box:
    def now(of=box):
        return int(of.exec(["date", "+%%s"], text=True).stdout) - start
    assert now() == 0
    box.exec(["sleep", "3600"])
    assert now() == 3600
    # What is left running gets on only while a command runs.
    box.exec("(while sleep 1; do echo x >> /tmp/x; done) > /dev/null 2>&1 &")
    assert now() == 3600
    box.exec(["sleep", "10.5"])
    assert box.exec("wc -l < /tmp/x", text=True).stdout.strip() == "10"
    # A fork and a reset begin again.
    kid = box.fork(1, processes="drop")[0]
    assert now(kid) == 0
    kid.exec(["sleep", "100"])
    assert (now(kid), now()) == (100, 3610)
    # Sleeping processes are paused for a snapshot and a pause, and then continue to sleep.
    sleeper = box.spawn(["/usr/bin/python3", "-Ic", "import time; print(flush=True); input(); time.sleep(50); print(int(time.time()))"])
    sleeper.stdout.read(1)
    state = box.snapshot(processes="drop")
    box.pause()
    box.resume()
    sleeper.stdin.write(b"\\n")
    sleeper.stdin.flush()
    assert int(sleeper.stdout.read()) - start == 3660, now()
    # A command that is ended, with its sleeping threads, leaves the clock to the others.
    code = "import threading, time; threading.Thread(target=time.sleep, args=(100,)).start()\\nwhile True: pass"
    assert box.exec(["/usr/bin/python3", "-Ic", code], timeout=0.5).outcome == "timeout"
    before = now()
    box.exec(["sleep", "5"])
    assert now() == before + 5
    box.reset(state)
    assert now() == 0
    shell = box.shell()
    assert shell.run("sleep 60; date +%%s").stdout == b"%%d\\n" %% (start + 60)
    assert shell.run("sleep 1000 & date +%%s").stdout == b"%%d\\n" %% (start + 60)
    assert shell.run("date +%%s; wait; date +%%s").stdout == b"%%d\\n%%d\\n" %% (start + 60, start + 1060)
print("done")
"""


def test_session_commands_share_the_clock(caller):
    done = caller.script(SESSION, START_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"done\n"


ENDS = """
import sys
sys.path.insert(0, %r)
from rollbox import Policy, Sandbox
for _ in range(6):
    with Sandbox(Policy(random_seed=7, time_start="2025-01-01T00:00:00", time_mode="virtual")) as box:
        box.exec("(while sleep 1; do :; done) > /dev/null 2>&1 &")
        for _ in range(50):
            box.exec("wc -c /etc/hostname; :")
        print(int(box.exec(["date", "+%%s"]).stdout) - %d)
"""


def test_no_time_passes_when_a_command_ends(caller):
    """One that is dead, which init has not heard yet, is no command that waits."""
    done = caller.script(ENDS, START_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"0\n" * 6


# Ends when what waits is ended by the real clock, as nobody rests there.
RESTLESS = """
import subprocess
sleeper = subprocess.Popen(["sleep", "1"])
while sleeper.poll() is None:
    pass
"""
STANDS = """
import sys
sys.path.insert(0, %r)
from rollbox import Policy, Sandbox
restless = %r
policy = Policy(random_seed=7, time_start="2025-01-01T00:00:00", time_mode="virtual")
with Sandbox(policy.replace(serial=%r)) as box, Sandbox(policy) as other:
    def long_enough():
        assert other.exec(["/usr/bin/python3", "-Ic", restless]).exit_code == 0
    def told():
        return int(box.exec(["date", "+%%s"]).stdout) - %d, int(box.exec("wc -l < /tmp/x").stdout)
    box.exec("(while sleep 1; do echo x >> /tmp/x; done) > /dev/null 2>&1 &")
    box.exec(["/usr/bin/python3", "-c", "import os, time; os.fork() or os.execvp('sh', ['sh', '-c', 'sleep 7; echo x >> /tmp/x'])"])
    box.exec(["sleep", "2.5"])
    long_enough()
    print(*told())
    state = box.snapshot(processes="drop")
    long_enough()
    print(*told())
    box.pause()
    long_enough()
    box.resume()
    print(*told())
    with box.spawn(["sleep", "3"]) as sleeper:
        box.pause()
        long_enough()
        box.resume()
        assert sleeper.wait().exit_code == 0
    print(*told())
    box.exec(["sleep", "2"])
    print(*told())
    with box.spawn(["cat"]) as sleeper:     # waits for us, so that the clock does not
        box.pause()
        sleeper.kill()
        assert sleeper.wait().signal == 9
        box.resume()
    print(*told())
"""


@pytest.mark.once
@pytest.mark.parametrize("serial", (False, True))
def test_clock_stands_between_commands(caller, serial):
    """Time and the processes that wait for it stop while an agent works, for any length of time."""
    done = caller.script(STANDS, RESTLESS, serial, START_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [b"2 2", b"2 2", b"2 2", b"5 5", b"7 8", b"7 8"]


HELD = """
import os, select, sys, tempfile
sys.path.insert(0, %r)
from rollbox import Policy, Sandbox
shared = tempfile.mkdtemp()
os.chmod(shared, 0o777)
log, others = shared + "/log", shared + "/others"
for name in log, others:
    os.close(os.open(name, os.O_CREAT))
    os.chmod(name, 0o666)
def await_growth(name):
    size = os.path.getsize(name)
    while os.path.getsize(name) < size + 20:
        select.select([], [], [], 0.005)        # as until() does
python = ["/usr/bin/python3", "-Ic"]
what, guest = %r, %r
for serial in (False, True):
    policy = Policy(random_seed=7, time_start="2025-01-01T00:00:00", time_mode="virtual", serial=serial, max_processes=400, fs_shared=[shared])
    with Sandbox(policy) as box, Sandbox(policy) as other:
        with box.spawn([*python, guest, log]) as process, other.spawn([*python, guest, others]) as second:
            process.stdout.readline()
            victim = box.spawn(["sleep", "100000"])
            for _ in range(8):
                box.pause()
                if what == "killed":
                    victim.kill()
                    assert victim.wait().signal == 9
                before = os.path.getsize(log)
                await_growth(others)    # in which it would get on, if it could
                assert os.path.getsize(log) == before
                box.resume()
                if what == "killed":
                    break
                box.list("/")
                await_growth(log)       # to where it is somewhere else
            process.kill()
            second.kill()
"""
BESIDE_A_THREAD = """
import select, sys, threading
def work():
    while True:
        open(sys.argv[1], "a").write("x")
threading.Thread(target=work, daemon=True).start()
print(flush=True)
select.select([], [], [], 10**6)        # held by init, as any sleep
"""
BESIDE_A_SIGNAL = """
import select, sys
print(flush=True)
while True:
    select.select([], [], [], 0.05)
    open(sys.argv[1], "a").write("x")
"""
# A thread that executes a program gets the id of the first thread, which slept; and init, with so
# many sleeping threads, looks at each now and then.
UNDER_ANOTHERS_ID = """
import os, select, sys, threading, time
guest = sys.argv[2] if len(sys.argv) > 2 else open("/proc/self/cmdline").read().split(chr(0))[2]
def again():
    for _ in range(3000000):
        pass
    os.execv(sys.executable, [sys.executable, "-Ic", guest, sys.argv[1], guest])
if len(sys.argv) == 2:
    if not os.fork():
        for _ in range(250):
            threading.Thread(target=time.sleep, args=(10**6,)).start()
        select.select([], [], [], 10**6)
    print(flush=True)
log = open(sys.argv[1], "a", buffering=1)
for _ in range(200):
    log.write("x\\n")
    for _ in range(10000):
        pass
threading.Thread(target=again).start()
select.select([], [], [], 10**6)
"""


@pytest.mark.parametrize(
    "what, guest",
    (("thread", BESIDE_A_THREAD), ("killed", BESIDE_A_SIGNAL), ("id", UNDER_ANOTHERS_ID)),
)
def test_process_that_waits_for_init_counts_as_waiting(caller, what, guest):
    """In a pause: threads beside it, when another command is killed, and no other process that has got its id."""
    done = caller.script(HELD, what, guest)
    assert done.returncode == 0, done.stderr


BESIDE_MANY = """
import sys
sys.path.insert(0, %r)
from rollbox import Policy, Sandbox
with Sandbox(Policy(random_seed=7, time_start="2025-01-01T00:00:00", time_mode="virtual")) as box:
    box.exec("sleep 1000000 > /dev/null 2>&1 &")
    with box.spawn(["sh", "-c", "echo; read x; date +%%s"]) as reader:
        assert reader.stdout.readline() == b"\\n"
        for _ in range(150):
            box.exec(["true"])
        print(box.exec(["date", "+%%s"]).stdout)
        with box.fork(1)[0] as kid:
            for _ in range(150):
                kid.exec(["true"])
            print(kid.exec(["date", "+%%s"]).stdout)
        reader.stdin.write(b"\\n")
        reader.stdin.flush()
        print(reader.stdout.readline())
        assert reader.wait().exit_code == 0
"""


def test_wait_for_the_client_beside_many_commands(caller):
    """After any number of commands meanwhile, they and the waiting process have seen the same time pass."""
    done = caller.script(BESIDE_MANY)
    assert done.returncode == 0, done.stderr
    assert done.stdout == 3 * (b"b'%d\\n'\n" % START_S)


LENT = """
import sys
sys.path.insert(0, %r)
from rollbox import Policy, Sandbox
takes, gives = %r, %r
python = ["/usr/bin/python3", "-Ic"]
with Sandbox(Policy(random_seed=7, time_start="2025-01-01T00:00:00", time_mode="virtual")) as box:
    with box.spawn([*python, takes]) as taker:
        assert taker.stdout.readline() == b"listens\\n"
        with box.spawn([*python, gives]) as giver:
            assert taker.stdout.readline() == b"has it\\n"
            assert giver.wait().exit_code == 0
            box.exec("sleep 1000000 > /dev/null 2>&1 &")
            for _ in range(50):
                box.exec(["true"])
            giver.stdin.write(b"x")
            giver.stdin.flush()
            print(taker.stdout.readline())
        assert taker.wait().exit_code == 0
"""
TAKES = """
import os, socket, time
s = socket.socket(socket.AF_UNIX)
s.bind("/tmp/s")
s.listen()
print("listens", flush=True)
c = s.accept()[0]
fds = socket.recv_fds(c, 1, 1)[1]
c.send(b"k")
print("has it", flush=True)
os.read(fds[0], 1)
print(int(time.time()), flush=True)
"""
GIVES = """
import socket
s = socket.socket(socket.AF_UNIX)
s.connect("/tmp/s")
socket.send_fds(s, [b"x"], [0])
s.recv(1)
"""


def test_stream_outlives_its_command_in_another(caller):
    """The command that received the stream still waits for the client."""
    done = caller.script(LENT, TAKES, GIVES)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"b'%d\\n'\n" % START_S


STOPPED = """
import sys
sys.path.insert(0, %r)
from rollbox import Policy, Sandbox
guest = %r
with Sandbox(Policy(random_seed=7, time_start="2025-01-01T00:00:00", time_mode="virtual")) as box:
    def is_stopped():
        return b") T " in box.exec(["cat", "/proc/" + child + "/stat"]).stdout
    with box.spawn(["/usr/bin/python3", "-Ic", guest]) as process:
        def told(word):
            process.stdin.write(word)
            process.stdin.flush()
            return process.stdout.readline().decode().strip()
        for _ in range(10):
            child = told(b"stop\\n")
            box.pause()
            box.resume()
            assert any(is_stopped() for _ in range(100))
            told(b"continue\\n")
            assert not all(is_stopped() for _ in range(100))
        process.kill()
"""
STOPS = """
import os, select, signal, subprocess, sys
child = os.fork()
if not child:
    select.select([], [], [], 10**6)
for line in sys.stdin:
    subprocess.run(["sleep", "1"])      # over when init holds the child, and not before
    os.kill(child, signal.SIGSTOP if line == "stop\\n" else signal.SIGCONT)
    print(child, flush=True)
"""


def test_stopped_sleeping_process_stays_stopped(caller):
    """Init handles the guest's SIGSTOP; a pause meanwhile must not take it for its own."""
    done = caller.script(STOPPED, STOPS)
    assert done.returncode == 0, done.stderr


LOOP = """
import asyncio, time
async def work():
    for _ in range(3):
        await asyncio.sleep(0.1)
asyncio.run(work())
print(int(time.time()), flush=True)
"""
BESIDE_A_CLIENT = """
import sys
sys.path.insert(0, %r)
from rollbox import Policy, Sandbox
loop = %r
with Sandbox(Policy(random_seed=7, time_start="2025-01-01T00:00:00", time_mode="virtual")) as box:
    python = ["/usr/bin/python3", "-Ic"]
    # One command waits for us, who write nothing; another, or a thread of its own, for a time.
    with box.spawn(["cat"]) as reader:
        print(box.exec([*python, loop], text=True).stdout, end="")
        box.exec(["sleep", "1"])
    with box.spawn([*python, "import sys, threading; threading.Thread(target=exec, args=(sys.argv[1], {})).start(); input()", loop]) as reader:
        print(reader.stdout.readline().decode(), end="")
        reader.stdin.write(b"\\n")
        reader.stdin.flush()
        assert reader.wait().exit_code == 0
"""


def test_waits_beside_a_command_that_waits_for_its_client_end(caller):
    """With a stopped clock, an event loop of another command or thread would wait for ever."""
    done = caller.script(BESIDE_A_CLIENT, LOOP)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"%d\n%d\n" % (START_S, START_S + 1)


# What is refused

@pytest.mark.parametrize("flags, code, word", (
    (["--time-mode", "virtual"], "policy_invalid", "time_start"),
    ([*VIRTUAL, "--net", "host"], "feature_missing", "net host"),
    ([*VIRTUAL, "--isolation", "process"], "feature_missing", "isolation process"),
))
def test_impossible_combinations_are_refused(caller, flags, code, word):
    done = caller.rollbox("run", "--json", *flags, "--", "true")
    error = json.loads(done.stdout)["error"]
    assert error["code"] == code and word in error["message"], error


def test_kernel_without_time_namespaces_is_refused(caller):
    done = caller.rollbox("run", "--json", *VIRTUAL, "--", "true", env=caller.environment(ROLLBOX_KFEAT="-timens"))
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "feature_missing" and "timens is missing" in error["message"], error


def test_policy_plan_shows_what_is_asked(caller):
    text = (
        caller.rollbox("policy", "plan", *VIRTUAL)
        .stdout.decode()
        .partition("besides: what commands ask init about")[2]
    )
    for name in ("clock_nanosleep", "epoll_wait", "futex", "timerfd_settime", "setitimer", "rt_sigtimedwait"):
        assert f"({name})" in text, name
