# SPDX-License-Identifier: Apache-2.0
"""Under a virtual clock every time-out comes, also if its thread is busy when it is due.

The kernel never ends a wait until an absolute time here, because its own clock is years behind. So a wait that init
loses track of hangs for ever. Python's locks, events and conditions wait like that, and so do the threads of glibc.
"""

import contextlib

import pytest

from harness import repeat_count
from rollbox import Engine, Outcome, Policy, Sandbox
from asked import closing, restorer     # noqa: F401 (restorer: a fixture)

VIRTUAL = {"time_start": "2025-01-01T00:00:00", "time_mode": "virtual", "timeout": 60}
SEEDED = {**VIRTUAL, "random_seed": 7}
LOCKED = "import os, signal, threading, time\nlock = threading.Lock()\nlock.acquire()\n"

# Each is due while its thread is still on its way into the kernel.
SHORT = LOCKED + """
for _ in range(100):
    for us in (1, 2, 5, 10, 100):
        assert not lock.acquire(timeout=us / 1e6)
print("over")
"""

# The same where time passes because a thread queries it again and again, not because all wait.
BESIDE_QUERIES = LOCKED + """
def ask():
    while True:
        for _ in range(1000):
            time.monotonic()
        time.sleep(0)
threading.Thread(target=ask, daemon=True).start()
for _ in range(40):
    for us in (10, 1000, 2000, 5000):
        assert not lock.acquire(timeout=us / 1e6)
print("over")
"""

# A signal without a handler interrupts a wait, and the kernel continues it with restart_syscall.
BROKEN_OFF = LOCKED + """
child = os.fork()
if not child:
    for _ in range(200):
        assert not lock.acquire(timeout=0.003)
    print("over", flush=True)
    os._exit(0)
while os.waitpid(child, os.WNOHANG) == (0, 0):
    for number in SIGNALS:
        os.kill(child, number)
    time.sleep(PAUSE)
"""

COUNTER = """
import sys, threading
numbers, never = [0], threading.Event()
def count():
    while True:
        numbers[0] += 1
        never.wait(0.01)
threading.Thread(target=count, daemon=True).start()
print("up", flush=True)
for line in sys.stdin:
    before = numbers[0]
    while numbers[0] < before + 2:
        never.wait(0.01)
    print("counts", flush=True)
"""


def is_over(program, policy):
    result = Sandbox(Policy(**policy)).run(["python3", "-I", "-c", program])
    assert (result.outcome, result.stdout, result.stderr) == (Outcome.EXIT, b"over\n", b"")


@contextlib.contextmanager
def counting(**options):
    with Sandbox(Policy(**SEEDED), **options) as box:
        process = box.spawn(["python3", "-I", "-c", COUNTER])
        assert process.stdout.readline() == b"up\n"
        yield box, process


def counts(process):
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"counts\n"


@pytest.mark.parametrize("policy", [VIRTUAL, SEEDED], ids=["virtual", "seed and virtual"])
def test_time_outs_of_microseconds_come(policy):
    is_over(SHORT, policy)


def test_short_time_outs_come_beside_queries_of_the_clock():
    is_over(BESIDE_QUERIES, VIRTUAL)


@pytest.mark.parametrize("pause", [0, 0.001])
@pytest.mark.parametrize(
    "signals",
    ["[signal.SIGCONT]", "[signal.SIGSTOP, signal.SIGCONT]"],
    ids=["continued", "stopped"],
)
def test_time_outs_come_where_signals_break_waits_off(signals, pause):
    for _ in range(repeat_count(2, 1, 50)):
        is_over(f"import signal\nSIGNALS, PAUSE = {signals}, {pause}\n" + BROKEN_OFF, VIRTUAL)


def test_forks_of_a_counting_thread_count_on():
    with counting() as (box, origin):
        for _ in range(repeat_count(6, 2, 200)):
            with closing(box.fork(3)) as kids:
                for kid in kids:
                    counts(kid.process(origin.id))
                counts(origin)


def test_counting_thread_continues_after_a_reset():
    with counting() as (box, process):
        state = box.snapshot()
        for _ in range(repeat_count(6, 2, 200)):
            counts(process)
            box.reset(state)
            process = box.process(process.id)
            counts(process)


def test_counting_thread_continues_after_hibernation(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLBOX_STORE", str(tmp_path / "store"))
    with Engine() as engine, counting(engine=engine) as (box, process):
        for _ in range(repeat_count(4, 2, 100)):
            box.hibernate()
            box.wake()
            process = box.process(process.id)
            counts(process)


def test_paused_sandbox_continues_to_count():
    with counting() as (box, process):
        for _ in range(repeat_count(20, 5, 500)):
            box.pause()
            box.resume()
            counts(process)
