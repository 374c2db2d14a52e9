# SPDX-License-Identifier: Apache-2.0
"""Timed waits in checkpoints: those that the kernel continues with restart_syscall (src/dump/syscall_restart.c).

The model: a Python with a thread in each kind of such a wait, which ends by what it waits for, or
by a signal that is handled, and by nothing else, after any earlier interruption, in the origin and
in copies of any generation.
"""

import ast
import contextlib

import pytest

from rollbox import Sandbox
from harness import until
from asked import Asked, restorer  # noqa: F401

LONG = 100000
WAITS = """
import ctypes, os, signal, threading, time
libc, over, known = ctypes.CDLL(None, use_errno=True), {}, {}
(end, into), words, times, left = os.pipe(), (ctypes.c_uint32 * 8)(), [], (ctypes.c_long * 2)()
polled = (ctypes.c_int * 2)(end, 1)
def at(thing, i=0):
    return ctypes.addressof(thing) + i * 4
def lasting(seconds, clock=None):
    times.append((ctypes.c_long * 2)(*divmod(int(seconds * 10 ** 9) + (time.clock_gettime_ns(clock) if clock is not None else 0), 10 ** 9)))
    return at(times[-1])
def wait(begun, name, number, *arguments):
    result = libc.syscall(number, *map(ctypes.c_long, arguments))
    over[name] = (result, ctypes.get_errno() if result < 0 else 0, clock_of(name)() - begun)
def clock_of(name):
    return time.time if "day" in name else time.monotonic
def begin(seconds, without=()):
    into_itself = lasting(seconds)
    begun = time.monotonic(), time.time()
    for name, *call in (
        ("poll", 7, at(polled), 1, int(seconds * 1000)), ("poll of nothing", 7, 0, 0, int(seconds * 1000)),
        ("nanosleep", 35, lasting(seconds), 0), ("nanosleep with a rest", 35, lasting(seconds), at(left)), ("nanosleep into itself", 35, into_itself, into_itself),
        ("clock_nanosleep", 230, 1, 0, lasting(seconds), 0), ("clock_nanosleep by the day", 230, 0, 0, lasting(seconds), 0),
        ("futex", 202, at(words, 0), 0x80, 0, lasting(seconds), 0, 0), ("futex of all", 202, at(words, 1), 0, 0, lasting(seconds), 0, 0),
        ("futex until", 202, at(words, 2), 0x89, 0, lasting(seconds, 1), 0, 0xffffffff), ("futex until a time of day", 202, at(words, 3), 0x189, 0, lasting(seconds, 0), 0, 0xffffffff),
    ):
        if name not in without:
            thread = threading.Thread(target=wait, args=(begun["day" in name], name, *call), daemon=True)
            thread.start()
            known[name] = (thread, call)
def where(name):
    thread, (number, *arguments) = known[name]
    if name in over:
        return over[name]
    try:
        what = open(f"/proc/self/task/{thread.native_id}/syscall").read().split()
    except OSError:
        return "?"
    # One that is over waits for the interpreter, by a call of its own.
    return "waits" if what[0] in (str(number), "219") and what[1:1 + len(arguments)] == [hex(argument) for argument in arguments] else "?"
def state():
    return {name: where(name) for name in known}
def wake():
    os.write(into, b"x")
    for name, (thread, call) in known.items():
        if call[0] == 202:
            ctypes.c_uint32.from_address(call[1]).value = 1
            libc.syscall(202, ctypes.c_long(call[1]), call[2] & ~0x100 & 0x80 | 1, 1)
        elif name != "poll":
            signal.pthread_kill(thread.ident, signal.SIGUSR1)
    return ends()
def ends():
    [thread.join() for thread, call in known.values()]
    return over
signal.signal(signal.SIGUSR1, lambda *_: None)
"""
STOPS = """
import os, signal, sys
pid = int(sys.argv[1])
def until(letter, sign):
    os.kill(pid, sign)
    while {open(f"/proc/{pid}/task/{tid}/stat").read().rsplit(") ", 1)[1][0] for tid in os.listdir(f"/proc/{pid}/task")} != {letter}:
        pass
until("T", signal.SIGSTOP)
until("S", signal.SIGCONT)
"""
ENDS = {
    "poll": (1, 0),
    "futex": (0, 0),
    "futex of all": (0, 0),
    "futex until": (0, 0),
    "futex until a time of day": (0, 0),
}


def told(asked, question):
    return ast.literal_eval(asked(question))


def settled(asked):
    """The state of the threads, once each is in its wait or has ended."""
    def look():
        state = told(asked, "state()")
        return "?" not in state.values() and state

    return until(look)


def all_wait(asked):
    assert settled(asked) == dict.fromkeys(told(asked, "[*known]"), "waits")


def fork_thrice(box, origin):
    for _ in range(3):
        box.fork(1)[0].close()


def stop(box, origin):
    assert box.exec(["python3", "-I", "-c", STOPS, origin("os.getpid()")]).exit_code == 0


def freeze(box, origin):
    box.snapshot(processes="drop")


def stop_between(box, origin):
    fork_thrice(box, origin)
    stop(box, origin)


BREAKS = {"forked": fork_thrice, "stopped": stop, "frozen": freeze, "forked and stopped": stop_between}
PLAIN = ({}, ())
OFFSET = ({"time_start": "2025-01-01T00:00:00", "time_mode": "offset"}, ())
# Below a virtual clock that futex looks for itself all the time.
VIRTUAL = (
    {"random_seed": 7, "time_start": "2025-01-01T00:00:00", "time_mode": "virtual"},
    ("futex until a time of day",),
)
CASES = {
    **{name: (*PLAIN, breaks_off) for name, breaks_off in BREAKS.items()},
    "forked, by a clock of its own": (*OFFSET, fork_thrice),
    "forked, by a virtual clock": (*VIRTUAL, fork_thrice),
}


@pytest.mark.parametrize(("policy", "without", "breaks_off"), CASES.values(), ids=CASES)
def test_interrupted_waits_resume_in_forks_of_any_generation(policy, without, breaks_off):
    with Sandbox(policy) as box, contextlib.ExitStack() as stack:
        origin = Asked.begin(box, f"exec({WAITS!r})", f"begin({LONG}, {without})")
        all_wait(origin)
        breaks_off(box, origin)
        all_wait(origin)
        kid = stack.enter_context(box.fork(1)[0])
        first = origin.of(kid)
        all_wait(first)
        breaks_off(kid, first)
        second = first.of(stack.enter_context(kid.fork(1)[0]))
        for one in (second, first, origin):
            all_wait(one)
            assert {name: end[:2] for name, end in told(one, "wake()").items()} == {
                name: ENDS.get(name, (-1, 4)) for name in told(one, "[*known]")
            }


@pytest.mark.parametrize(("policy", "without"), [PLAIN, VIRTUAL], ids=["plain", "by a virtual clock"])
def test_waits_that_are_broken_off_last_no_shorter_than_they_were_to(policy, without):
    with Sandbox(policy) as box, contextlib.ExitStack() as stack:
        origin = Asked.begin(box, f"exec({WAITS!r})", f"begin(2, {without})")
        fork_thrice(box, origin)
        kid = stack.enter_context(box.fork(1)[0])
        further = stack.enter_context(kid.fork(1)[0])
        for one in (origin.of(further), origin.of(kid), origin):
            over = told(one, "ends()")
            assert (
                over
                and {
                    name: end
                    for name, end in over.items()
                    if end[:2] not in ((0, 0), (-1, 110)) or end[2] < 2
                }
                == {}
            )
