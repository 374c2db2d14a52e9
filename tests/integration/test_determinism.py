# SPDX-License-Identifier: Apache-2.0
"""random_seed and time_start: a corpus of programs that differ from run to run on a bare machine,
and guests that trick init, which serves them.

The model: every program of the corpus is run six times with one seed, by a batch that runs two at
once, and once with another. What a program prints must be one text
for the one seed and another for the other. Times of day are printed in seconds and compared with
what must be true, never with a duration.
"""

import calendar
import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
from corpus import LIMIT_S, SOAK, START, START_S, TIMES, guest_in_ways, run_corpus
from harness import caller, place  # noqa: F401
from rollbox import Policy, Sandbox

pytestmark = pytest.mark.timeout_s(2 * LIMIT_S)
PY = ["/usr/bin/python3", "-I", "-c"]
OFFSET = ("--time-start", START, "--time-mode", "offset")

CORPUS = {
    "python-hash": [*PY, "print({'a', 'b', 'c', 'd', 'e', 'f', 'g'}, hash('x'))"],
    "python-random": [*PY, "import random; print(random.random(), random.sample(range(99), 5))"],
    "python-urandom": [
        *PY,
        "import os; print(os.urandom(8).hex(), os.getrandom(8).hex(), os.getpid())",
    ],
    "python-uuid": [*PY, "import uuid; print(uuid.uuid4(), uuid.uuid4())"],
    "python-secrets": [
        *PY,
        "import secrets, tempfile; print(secrets.token_hex(), tempfile.mkdtemp())",
    ],
    "python-address": [*PY, "print(id(object()), [object() for _ in range(3)])"],
    "python-children": [
        *PY,
        "import subprocess, sys\nfor _ in range(3): print(subprocess.run([sys.executable, '-Ic', 'import random; print(random.random())'], capture_output=True).stdout)",
    ],
    "python-racing-children": [
        *PY,
        """
import os
ends = []
for _ in range(6):
    r, w = os.pipe()
    if os.fork() == 0:
        os.write(w, os.urandom(4).hex().encode())
        os._exit(0)
    os.close(w)
    ends.append(r)
print([os.read(r, 99) for r in ends])
""",
    ],
    "bash-srandom": ["bash", "-c", "echo $SRANDOM $$; (echo $SRANDOM); echo $(echo $SRANDOM)"],
    "bash-mktemp": ["bash", "-c", "for i in 1 2 3; do mktemp -u; done"],
    "bash-background": [
        "bash",
        "-c",
        "for i in 1 2 3 4; do mktemp -u > /tmp/o$i & done; wait; cat /tmp/o?",
    ],
    "bash-pipe": [
        "bash",
        "-c",
        "mktemp -u | cat; (mktemp -u & mktemp -u > /tmp/b; wait); cat /tmp/b",
    ],
    "sh-uuid": ["sh", "-c", "cat /proc/sys/kernel/random/uuid"],
    "sh-urandom": [
        "sh",
        "-c",
        "head -c 32 /dev/urandom | od -x; tr -dc a-z < /dev/random | head -c 8",
    ],
    "shuf": ["shuf", "-i", "1-100"],
    "sort-random": ["sort", "-R", "/etc/group"],
    "perl-rand": ["perl", "-e", "print rand(), ' ', $$, ' ', rand()"],
    "perl-hash": ["perl", "-e", "my %h = map { $_ => 1 } 1 .. 20; print join ',', keys %h"],
    "perl-children": [
        "perl",
        "-e",
        "$| = 1; for (1 .. 3) { if (!fork) { print rand(), qq(\\n); exit } wait }",
    ],
}
for what in ("canary", "tree", "orphans", "threads", "large"):
    CORPUS[f"c-static-{what}"] = ["static", what]
    CORPUS[f"c-dynamic-{what}"] = ["dynamic", what]
    CORPUS[f"c-musl-{what}"] = ["musl", what]
if SOAK:
    CORPUS["go"] = ["go", "chance"]
if shutil.which("node", path="/usr/bin"):
    CORPUS["node"] = [
        "node",
        "-e",
        "console.log(Math.random(), require('crypto').randomBytes(8).toString('hex'), require('crypto').randomUUID(), process.pid)",
    ]
if shutil.which("sqlite3", path="/usr/bin"):
    CORPUS["sqlite"] = ["sqlite3", ":memory:", "select random(), hex(randomblob(8))"]
if shutil.which("openssl", path="/usr/bin"):
    CORPUS["openssl"] = ["openssl", "rand", "-hex", "16"]


@pytest.fixture(scope="module")
def programs():
    return guest_in_ways("randomness")


def chance(caller, programs, what, *flags, kind="static"):
    flags = flags or ("--seed", "7", *OFFSET)
    return caller.run("--readable", place() / "guests", *flags, "--", programs[kind], what)


@pytest.fixture(scope="module")
def outputs(caller, programs):
    """For each program of the corpus: what its runs printed with one seed, and what one printed with another."""
    def run(seed, times):
        texts = run_corpus(caller, CORPUS, programs, times, "-j", "2", "--seed", str(seed), *OFFSET)
        # The branches of a tree race for the output; what each draws is its own.
        return {
            name: [sorted(text.splitlines()) if name.endswith("-tree") else text for text in found]
            for name, found in texts.items()
        }

    return run(7, TIMES), run(8, 1)


@pytest.mark.parametrize("name", sorted(CORPUS))
def test_seed_makes_a_program_repeat(outputs, name):
    same, other = outputs
    if name not in same:
        pytest.skip("this machine has no such program")
    assert len(same[name]) == TIMES
    for text in same[name]:
        assert text == same[name][0]
    if name != "python-address":        # no randomness is in the addresses at all
        assert other[name][0] != same[name][0]


@pytest.mark.parametrize("shell", (["dash"], ["busybox", "sh"]), ids=("dash", "busybox"))
@pytest.mark.parametrize("level", ([], ["--time-start", START, "--time-mode", "virtual"]), ids=("seeded", "virtual"))
def test_no_signal_comes_between_a_fork_and_its_child(caller, shell, level):
    """A shell with a handler for SIGCHLD, in which one child dies while the next one is forked:
    that fork does not fail, and the next child gets its own random stream."""
    if not shutil.which(shell[0]):
        pytest.skip(f"needs {shell[0]}")
    script = "i=0; while [ $i -lt 200 ]; do echo $i | { read x; mktemp -u $x.XXXXXX; }; i=$((i + 1)); done"
    runs = [caller.run("--seed", "7", *level, "--", *shell, "-c", script) for _ in range(3)]
    for run in runs:
        assert run.exit_code == 0 and not run.stderr and len(run.stdout.split()) == 200, run.told
        assert run.stdout == runs[0].stdout


def test_streams_of_a_tree_are_all_different(outputs):
    same, _ = outputs
    numbers = [line.split()[1] for line in same["c-static-tree"][0]]
    assert len(numbers) == 13 and len(set(numbers)) == 13
    numbers = [line.split()[1] for line in same["c-static-orphans"][0].splitlines()]
    assert len(numbers) == 3 and len(set(numbers)) == 3


def test_result_names_the_level(caller):
    result = caller.run("--seed", "7", *OFFSET, "--", "true")
    assert result.isolation["determinism"] == {
        "level": "seeded",
        "random_seed": "7",
        "time_start": START,
        "time_mode": "offset",
    }
    result = caller.run("--seed", "7", "--time-start", START, "--", "true")
    assert result.isolation["determinism"] == {
        "level": "virtual",
        "random_seed": "7",
        "time_start": START,
        "time_mode": "virtual",
    }
    assert (
        caller.run("--seed", "7", "--time-start", START, "--net", "host", "--", "true").isolation[
            "determinism"
        ]["level"]
        == "seeded"
    )
    assert caller.run("--time-start", START, "--", "true").isolation["determinism"]["level"] == "offset"
    assert "determinism" not in caller.run("--", "true").isolation


def test_same_seed_and_time_repeat_the_run(caller):
    """All that the example of the docs prints, the clock's small digits included."""
    code = 'import time,random,os,uuid;print(time.time(),random.random(),os.urandom(4).hex(),uuid.uuid4(),id(object()),os.getpid(),{"a","b","c"})'
    texts = {
        seed: {
            caller.run("--seed", seed, "--time-start", START, "--", "python3", "-c", code).stdout
            for _ in range(4)
        }
        for seed in ("7", "8")
    }
    assert len(texts["7"]) == len(texts["8"]) == 1 and texts["7"] != texts["8"], texts
    assert texts["7"].pop().startswith(f"{START_S}.")


def test_urandom_has_the_bytes_that_it_always_had(caller):
    """All of it, to its end: results that were kept are compared with those of a later version."""
    digest = "8ccf53b57508446219c9c20c38248b41821233904f402ac1f27224ef05bbfb3e"
    assert caller.run(
        "--seed", "7", "--", "sh", "-c", "wc -c < /dev/random; sha256sum < /dev/urandom"
    ).stdout.split() == ["1048576", digest, "-"]
    assert digest not in caller.run("--seed", "8", "--", "sha256sum", "/dev/urandom").stdout


def test_job_clock_follows_its_policy(caller):
    """A job's own settings override those for all jobs; a policy of its own is used unchanged."""
    jobs = {
        "plain": {},
        "seeded": {"random_seed": 3},
        "offset": {"time_mode": "offset"},
        "host": {"net": "host"},
        "none": {"random_seed": None},
    }
    rows = caller.batch(
        [{"id": name, "argv": ["true"], "policy": policy} for name, policy in jobs.items()],
        "--seed",
        "7",
        "--time-start",
        START,
    )
    modes = {name: row["isolation"]["determinism"]["time_mode"] for name, row in rows.items()}
    assert modes == {"plain": "virtual", "seeded": "virtual", "offset": "offset", "host": "offset", "none": "offset"}
    assert (
        Sandbox(Policy(random_seed=7, time_start=START))
        .run(["true"])
        .isolation["determinism"]["time_mode"]
        == "offset"
    )


# Clocks

@pytest.mark.parametrize("kind", ("static", "dynamic", "musl"))
@pytest.mark.parametrize("flags", ([], ["--seed", "7"]), ids=("clock", "clock-and-seed"))
def test_every_clock_starts_at_time_start(caller, programs, kind, flags):
    if kind not in programs:
        pytest.skip("needs musl-gcc: it is not installed")
    before = time.monotonic()
    result = chance(caller, programs, "clocks", *flags, *OFFSET, kind=kind)
    passed = time.monotonic() - before + 1
    assert result.outcome == "exit" and result.exit_code == 0, result.told
    lines = result.stdout.splitlines()
    assert len(lines) >= 3 * 12
    for line in lines:
        assert START_S <= int(line.split()[-1]) <= START_S + passed, line


@pytest.mark.parametrize("text, seconds", (
    ("2001-02-03", calendar.timegm((2001, 2, 3, 0, 0, 0))),
    ("2038-01-19T03:14:07Z", 2**31 - 1),
    ("1970-01-01T00:00:00", 0),
    ("2199-12-31T23:00:00.5", calendar.timegm((2199, 12, 31, 23, 0, 0))),
    ("2024-02-29T12:30:15+01:30", calendar.timegm((2024, 2, 29, 11, 0, 15))),
    ("2024-03-01T00:00-05:00", calendar.timegm((2024, 3, 1, 5, 0, 0))),
))
def test_any_time_can_be_the_start(caller, text, seconds):
    before = time.monotonic()
    result = caller.run("--time-start", text, "--", "date", "+%s")
    assert seconds <= int(result.stdout) <= seconds + time.monotonic() - before + 1


def test_times_of_processes(caller):
    result = caller.run("--time-start", START, "--", "grep", "btime", "/proc/stat")
    assert result.stdout == f"btime {START_S}\n", result.told
    assert int(caller.run("--", "grep", "btime", "/proc/stat").stdout.split()[1]) > START_S


CLOCKS = """
import ctypes, os, time
libc = ctypes.CDLL(None)
UPTIMES, DATES, ALARMS, CALLS = (1, 4, 6, 7), (0, 5, 11), (8, 9), (libc.clock_gettime, lambda clock, t: libc.syscall(228, clock, t))
def read(call, clock):
    t = (ctypes.c_long * 2)()
    assert call(clock, t) == 0, clock
    return t[0] + t[1] / 1e9
def counted():
    info, t = (ctypes.c_long * 20)(), (ctypes.c_long * 2)()
    libc.sysinfo(info)
    return [float(open("/proc/uptime").read().split()[0]), info[0], os.times().elapsed, libc.syscall(100, 0) / os.sysconf("SC_CLK_TCK")]
def dates():
    t = (ctypes.c_long * 2)()
    libc.syscall(96, t, 0)
    return [time.time(), t[0] + t[1] / 1e6, libc.time(0), libc.syscall(201, 0)] + [read(call, clock) for clock in DATES for call in CALLS]
def agree(name, values, now, early, late):
    before, values, after = now(), values(), now()
    print(name, all(before - early <= value <= after + late for value in values) or (before, values, after))
for _ in range(3):
    agree("uptimes", lambda: [read(call, clock) for clock in UPTIMES for call in CALLS], time.monotonic, 1, 0)       # one is a tick behind
    agree("counted", counted, time.monotonic, 1, 1)
    agree("dates", dates, time.time, 1, 0)
readings = [read(call, clock) for clock in (1, 4, 7) * 20 for call in CALLS]
print("in order", readings == sorted(readings) and readings[0] >= 0)
print("alarms", [(libc.clock_getres(clock, 0) == libc.clock_gettime(clock, (ctypes.c_long * 2)()) == libc.syscall(228, clock, (ctypes.c_long * 2)())) for clock in ALARMS])
while time.process_time() < 0.2:
    pass
t, used = os.times(), time.process_time()
print("processor", used - 0.05 < t.user + t.system < used + 0.05 or (t, used), t.children_user, t.children_system)
"""


@pytest.mark.parametrize("mode", ("offset", "virtual"))
def test_all_clocks_agree(caller, mode):
    """Every process and every call sees one uptime and one time of day. CLOCK_MONOTONIC_RAW began
    elsewhere, before 0 perhaps, and times() with the machine."""
    result = caller.python(CLOCKS, "--time-start", START, "--time-mode", mode)
    assert result.stdout.splitlines() == ["uptimes True", "counted True", "dates True"] * 3 + [
        "in order True",
        "alarms [True, True]",
        "processor True 0.0 0.0",
    ], result.told


def test_waits_until_a_time_of_day(caller, programs):
    result = chance(caller, programs, "waits", "--time-start", START)
    assert result.stdout == "0 waited\n110 waited\n", result.told
    result = chance(caller, programs, "waits", "--time-start", "2150-01-01")
    assert result.stdout == "0 waited\n110 waited\n", result.told


def test_waits_until_a_time_of_day_end_early(caller, programs):
    assert chance(caller, programs, "woken").stdout == "woken 0\ninterrupted 1\n"


# Hostile guests

# They end by drawing once more and telling the time.
TRICKS = ("second-listener", "moved-vdso", "bad-memory", "limits", "killed", "undumpable", "foreign", "storm")


@pytest.mark.parametrize("trick", TRICKS)
def test_init_serves_other_requests_during_a_query(caller, programs, trick):
    result = chance(caller, programs, trick)
    assert result.outcome == "exit" and result.exit_code == 0, result.told
    assert "done 17356896" in result.stdout, result.told
    if trick == "second-listener":
        assert "errno 16" in result.stdout, "EBUSY: one that is asked has a listener already"


def test_asking_fork_bomb_is_ended_by_the_timeout(caller):
    code = "import os\nwhile True:\n  try:\n    os.fork(); os.urandom(8)\n  except OSError: pass\n"
    result = caller.run("--seed", "7", *OFFSET, "--timeout", "1", "--processes", "40", "--", *PY, code)
    assert result.outcome == "timeout"


def test_killed_client_of_the_clock_does_not_disturb_the_next_run(caller):
    for _ in range(3):
        result = caller.run("--seed", "7", "--", "sh", "-c", "while :; do mktemp -u; done >/dev/null & kill -9 $$")
        assert result.outcome == "signal" and result.signal == 9
    assert (
        caller.run("--seed", "7", "--", "mktemp", "-u").stdout
        == caller.run("--seed", "7", "--", "mktemp", "-u").stdout
    )


def test_proc_is_still_read_only(caller):
    code = """
import os
for path in ("/proc/self/mem", "/proc/1/mem", "/proc/sys/kernel/random/uuid", "/dev/urandom"):
    try:
        os.open(path, os.O_WRONLY)
        print(path)
    except OSError:
        pass
"""
    result = caller.python(code, "--seed", "7", *OFFSET)
    assert result.exit_code == 0 and result.stdout == "", result.told


def test_random_bytes_of_another_command_are_unreachable():
    """A guest cannot take init's place as the one who answers: neither its descriptors nor its
    memory can be reached."""
    code = """
import ctypes, os
for path in ("/proc/1/fd", "/proc/1/mem", "/proc/1/auxv", "/proc/1/maps"):
    try:
        print(path, os.listdir(path) if path.endswith("fd") else open(path, "rb").read(8))
    except OSError:
        pass
libc = ctypes.CDLL(None, use_errno=True)
print("pidfd_getfd", libc.syscall(438, libc.syscall(434, 1, 0), 5, 0))
"""
    from harness import callers
    for who in callers():
        for flags in (("--seed", "7"), ("--time-start", "2025-01-01T00:00:00")):
            result = who.python(code, *flags)
            assert result.stdout == "pidfd_getfd -1\n", result.told


FUTEX = """
import ctypes, errno, signal, threading, time
libc = ctypes.CDLL(None, use_errno=True)
word = ctypes.c_int(5)
def wait(seconds, expected=5):
    at = time.clock_gettime_ns(time.CLOCK_REALTIME) + int(seconds * 1e9)
    until = (ctypes.c_long * 2)(at // 10**9, at % 10**9)
    r = libc.syscall(202, ctypes.byref(word), 9 | 128 | 256, expected, until, None, -1)    # FUTEX_WAIT_BITSET, private, until a time of day
    return r if r == 0 else errno.errorcode[ctypes.get_errno()], time.clock_gettime_ns(time.CLOCK_REALTIME) >= at
for n in range(8):
    print(*wait(0.01 * n))
print(*wait(10, 4))
caught = []
signal.signal(signal.SIGALRM, lambda *_: caught.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.02)
print(*wait(3600), caught)
def wake():
    word.value = 6
    libc.syscall(202, ctypes.byref(word), 1 | 128, 1, None, None, 0)
timer = threading.Timer(0.02, wake)
timer.start()
print(*wait(3600), word.value)
timer.join()
"""


@pytest.mark.parametrize("start", ("2025-01-01T00:00:00", "2040-01-01T00:00:00"))
def test_futex_waits_until_its_time(caller, start):
    """A caller without a C library gets the results of a kernel: no EAGAIN while the word is as expected."""
    result = caller.python(FUTEX, "--time-start", start)
    assert result.stdout.splitlines() == ["ETIMEDOUT True"] * 8 + [
        "EAGAIN False",
        "EINTR False [1]",
        "0 False 6",
    ], result.told


TIMERFD = """
import ctypes, errno, os, select, threading, time
libc = ctypes.CDLL(None, use_errno=True)
Setting = ctypes.c_long * 4
def arm(fd, at, interval=0, flags=1, old=None):
    setting = Setting(interval // 10**9, interval % 10**9, at // 10**9, at % 10**9)
    return 0 if libc.timerfd_settime(fd, flags, setting, old) == 0 else errno.errorcode[ctypes.get_errno()]
def left(fd):
    setting = Setting()
    libc.timerfd_gettime(fd, setting)
    return setting[2] * 10**9 + setting[3]
def fires(fd, seconds):
    return bool(select.select([fd], [], [], seconds)[0])
for clock in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC):
    now = lambda: time.clock_gettime_ns(clock)
    fd = libc.timerfd_create(clock, 0)
    at = now() + 50_000_000
    print(arm(fd, at), fires(fd, 20), now() >= at, int.from_bytes(os.read(fd, 8), "little"))
    print(arm(fd, now() + 3600 * 10**9), 0 < 3600 * 10**9 - left(fd) < 600 * 10**9, fires(fd, 0.01))
    old = Setting()
    print(arm(fd, max(now() - 10**9, 1), old=old), 3000 < old[2] <= 3600, fires(fd, 20))
    print(arm(fd, 1), fires(fd, 20), arm(fd, 0), fires(fd, 0), left(fd))
    at = now() + 10_000_000
    arm(fd, at, 10_000_000)
    count = 0
    while count < 5:
        count += int.from_bytes(os.read(fd, 8), "little")
    print(now() >= at + 10_000_000 * (count - 1))
    thread = threading.Thread(target=lambda: print(arm(fd, now() + 20_000_000), fires(fd, 20)))
    thread.start()
    thread.join()
    print(arm(fd, 10**9 * 2**53), fires(fd, 0), arm(99, 10**9), arm(0, 10**9), libc.timerfd_settime(fd, 1, None, None), arm(fd, 10**9, flags=64 | 1))
"""


@pytest.mark.parametrize("start", ("2025-01-01T00:00:00", "2040-01-01T00:00:00"))
def test_timerfd_expires_at_its_time_of_day(caller, start):
    """One that the kernel has for a time that is long past there, or years ahead."""
    result = caller.python(TIMERFD, "--time-start", start)
    of_a_clock = [
        "0 True True 1",
        "0 True False",
        "0 True True",
        "0 True 0 False 0",
        "True",
        "0 True",
        "0 False EBADF EINVAL -1 EINVAL",
    ]
    assert result.stdout.splitlines() == of_a_clock * 2, result.told


TIMER = """
import ctypes, errno, signal, time, threading
libc = ctypes.CDLL(None, use_errno=True)
Setting = ctypes.c_long * 4
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_long), ("signal", ctypes.c_int), ("notify", ctypes.c_int), ("thread", ctypes.c_int), ("rest", ctypes.c_char * 44)]
def create(clock, notify=0):
    timer = ctypes.c_void_p()
    event = Event(42, signal.SIGUSR1, notify)
    assert libc.timer_create(clock, ctypes.byref(event), ctypes.byref(timer)) == 0
    return timer
def arm(timer, at, interval=0, flags=1, old=None):
    setting = Setting(interval // 10**9, interval % 10**9, at // 10**9, at % 10**9)
    r = libc.timer_settime(timer, flags, setting, old)
    assert setting[2] * 10**9 + setting[3] == at
    return 0 if r == 0 else errno.errorcode[ctypes.get_errno()]
def left(timer):
    setting = Setting()
    libc.timer_gettime(timer, setting)
    return setting[2] * 10**9 + setting[3]
def fires(seconds):
    info = signal.sigtimedwait([signal.SIGUSR1], seconds)
    return info and (info.si_code == -2)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
for clock in (time.CLOCK_REALTIME, time.CLOCK_TAI, time.CLOCK_MONOTONIC):
    now = lambda: time.clock_gettime_ns(clock)
    others = [create(time.CLOCK_MONOTONIC), create(time.CLOCK_REALTIME)]
    timer = create(clock)
    others.append(create(time.CLOCK_MONOTONIC))
    at = now() + 50_000_000
    print(arm(timer, at), fires(20), now() >= at)
    print(arm(timer, now() + 3600 * 10**9), 0 < 3600 * 10**9 - left(timer) < 600 * 10**9, fires(0.01))
    old = Setting()
    print(arm(timer, max(now() - 10**9, 1), old=old), 3000 < old[2] <= 3600, fires(20))
    print(arm(timer, 1), fires(20), arm(timer, 0), fires(0), left(timer))
    at = now() + 10_000_000
    arm(timer, at, 10_000_000)
    count = 0
    while count < 5:
        fires(20)
        count += 1 + libc.timer_getoverrun(timer)
    print(now() >= at + 10_000_000 * (count - 1), arm(timer, 0))
    fires(0)
    thread = threading.Thread(target=lambda: print(arm(timer, now() + 20_000_000), fires(20)))
    thread.start()
    thread.join()
    print(arm(timer, 10**9 * 2**53), fires(0), libc.timer_settime(timer, 1, None, None), arm(timer, 10**9, flags=64 | 1), libc.timer_delete(timer), arm(timer, now()))
    others = [libc.timer_delete(other) for other in others]
timer = create(time.CLOCK_REALTIME)
others = [create(time.CLOCK_MONOTONIC) for _ in range(200)]
print(arm(timer, time.time_ns() + 20_000_000), fires(20))
"""


@pytest.mark.parametrize("start", ("2025-01-01T00:00:00", "2040-01-01T00:00:00"))
def test_process_timer_expires_at_its_time_of_day(caller, start):
    """Beside others, set by any thread; and what it was set to is what it was."""
    result = caller.python(TIMER, "--time-start", start)
    of_a_clock = [
        "0 True True",
        "0 True None",
        "0 True True",
        "0 True 0 None 0",
        "True 0",
        "0 True",
        "0 None -1 0 0 EINVAL",
    ]
    assert result.stdout.splitlines() == of_a_clock * 3 + ["0 True"], result.told


@pytest.mark.parametrize("flags", ((), ("--time-mode", "virtual")), ids=("offset", "virtual"))
def test_only_init_takes_descriptors_of_processes(caller, flags):
    """Not even its own: where the policy's filter leaves the call to init, the second refuses it."""
    code = "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True); print(libc.syscall(438, os.pidfd_open(os.getpid()), 1, 0), ctypes.get_errno())"
    assert caller.python(code, "--time-start", "2025-01-01T00:00:00", *flags).stdout == "-1 1\n"


# Sessions

SLEEPER = """
import ctypes, os, time
libc = ctypes.CDLL(None)
until = (ctypes.c_long * 2)(int(time.time()) + 3600, 0)
if os.fork() == 0:
    os.close(1), os.close(2)
    while True:
        libc.clock_nanosleep(0, 1, until, None)
"""

GREEDY = """
import os
for _ in range(8):
    if os.fork() == 0:
        os.closerange(0, 3)
        while True:
            os.getrandom(1 << 24)
"""

SESSION = """
import sys
sys.path.insert(0, %r)
from rollbox import Policy, Sandbox
with Sandbox(Policy(random_seed=7, time_start="2025-01-01T00:00:00", time_mode="offset")) as box:
    draw = ["/usr/bin/python3", "-Ic", "import os, random, time; print(random.random(), os.urandom(4).hex(), int(time.time()) // 3600)"]
    first, second = (box.exec(draw, text=True).stdout for _ in range(2))
    assert first != second
    kids = box.fork(2) + box.fork(1, same_seed=True)
    mine = [kid.exec(draw, text=True).stdout for kid in kids]
    assert len(set(mine)) == 3 and mine[2] == first, mine
    # Processes that ask, or wait until a time of day, are paused for a snapshot.
    box.exec(["sh", "-c", "(while :; do mktemp -u; done) > /dev/null & :"])
    box.exec(["/usr/bin/python3", "-Ic", %r])
    assert box.processes()
    kids += box.fork(1, processes="drop")
    # Nor does init forget the engine over guests that ask for all they can get.
    box.exec(["/usr/bin/python3", "-Ic", %r])
    for _ in range(3):
        assert box.exec(["echo", "here"], text=True).stdout.strip() == "here"
    print(first, second, mine)
"""


def test_sessions_repeat(caller):
    texts = set()
    for _ in range(3):
        done = caller.script(SESSION, SLEEPER, GREEDY)
        assert done.returncode == 0, done.stderr
        texts.add(done.stdout)
    assert len(texts) == 1


# What is not asked for

def test_without_seed_and_time_nothing_changes(caller):
    plans = {flags: caller.rollbox("policy", "plan", *flags.split()).stdout.decode() for flags in ("", "--seed 7")}
    assert "ask" not in plans[""].split("# seccomp")[1]
    assert "ask init" in plans["--seed 7"] and "ask supervisor" in plans["--seed 7"]
    result = caller.run("--", "bash", "-c", "grep Seccomp_filters /proc/self/status; ulimit -m; ulimit -x")
    assert result.stdout.split() == ["Seccomp_filters:", "2", "unlimited", "unlimited"], (
        result.told
    )  # the policy's, and that of sysinfo
    result = caller.run("--seed", "7", "--", "grep", "Seccomp_filters", "/proc/self/status")
    assert result.stdout.split() == ["Seccomp_filters:", "2"]


@pytest.mark.parametrize("flags, word", (
    (["--seed", "7", "--isolation", "process"], "random_seed"),
    (["--time-start", START, "--isolation", "process"], "time_start"),
))
def test_missing_kernel_features_are_refused(caller, flags, word):
    done = caller.rollbox("run", "--json", *flags, "--", "true")
    text = done.stdout + done.stderr
    assert b"feature_missing" in text and word.encode() in text, text
    assert json.loads(done.stdout)["outcome"] == "error"


def test_with_an_image(caller):
    from image_stores import Store, run, system
    store = Store(caller)
    store.bring("system", *system())
    code = "busybox date +%s; cat /proc/sys/kernel/random/uuid; busybox head -c 8 /dev/urandom | busybox od -x; ls -l /dev/random"
    texts = {
        run(
            store, "/bin/sh", "-c", code, flags=["--seed", "7", "--time-start", START]
        ).stdout.partition("\n")
        for _ in range(3)
    }
    assert {text[0][:8] for text in texts} == {str(START_S)[:8]} and len({text[2] for text in texts}) == 1, texts


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: init's descriptors are to be seen")
def test_commands_killed_at_start_leave_init_nothing():
    """A command's child has init's descriptors until it has the one that init is asked by."""
    killer = """
import os, random, signal, time
def kill(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
print(flush=True)
last = os.getpid()
while True:
    # The next existing process: some come and go while this one is off its CPU.
    new = next((pid for pid in range(last + 1, last + 100) if kill(pid, 0)), None)
    if new:
        end = time.perf_counter_ns() + random.randrange(300000)
        while time.perf_counter_ns() < end:
            pass
        kill(new, signal.SIGKILL)
        last = new
"""
    with Sandbox(Policy(random_seed=7)) as box:
        space = box.exec(["readlink", "/proc/self/ns/pid"]).stdout.decode().strip()
        init = next(pid for pid in filter(str.isdigit, os.listdir("/proc")) if is_init_of(pid, space))
        box.exec(["/bin/true"])
        before = len(os.listdir(f"/proc/{init}/fd"))
        stream = box.stream([*PY, killer])
        next(stream)
        outcomes = {box.exec(["/bin/true"]).outcome for _ in range(1000)}
        stream.close()
        assert "signal" in outcomes
        box.exec(["/bin/true"])
        assert len(os.listdir(f"/proc/{init}/fd")) <= before + 1       # the killer's own, perhaps


def is_init_of(pid, space):
    try:
        status = Path("/proc", pid, "status").read_text()
        return os.readlink(f"/proc/{pid}/ns/pid") == space and re.search(r"^NSpid:.*\t1$", status, re.M) is not None
    except OSError:
        return False
