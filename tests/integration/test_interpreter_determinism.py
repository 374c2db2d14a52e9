# SPDX-License-Identifier: Apache-2.0
"""Interpreters that are kept started, with random_seed and time_start: what a program prints is of
its seed and its clock alone, and not one byte tells whether the interpreter was kept or is started
for it, or what ran before or beside.

The model: the same code is run by an engine that has no interpreter yet (each time under a policy
of its own, which differs in a limit), by one that has, and as `python3 -c`. The first two are
compared as they are, addresses included; the last
one without the addresses. make check runs this file as root and as an ordinary user; tests with a
caller compare what both see.
"""

import contextlib
import itertools
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from corpus import START
from harness import caller, repeat_count, sample_cases  # noqa: F401
from interpreters import FILES, INPUT, POLICY, PROGRAMS, SHELVED, by_name, count, told, wait_until_ready

import rollbox
from rollbox import Engine, Sandbox, run_many

SEEDED = {"random_seed": 7}
OFFSET = {"random_seed": 7, "time_start": START}
VIRTUAL = {**OFFSET, "time_mode": "virtual"}
TIMED = {"time_start": START, "time_mode": "virtual"}
LEVELS = {"seed": SEEDED, "offset": OFFSET, "virtual": VIRTUAL}
LIMITS = itertools.count(300)

# Random values, and values that depend on addresses.
CHANCE = """
import os, random, secrets, sys, tempfile, uuid
print(random.random(), os.urandom(4).hex(), uuid.uuid4(), hash("a"), {"a", "b", "c", "d"}, secrets.token_hex(4), tempfile.mktemp(), os.getpid(), open("/dev/urandom", "rb").read(4).hex())
"""
ADDRESSES = """
class A: pass
print(A(), object(), sys._getframe(), [hex(id(x)) for x in (A, A(), {}, bytes(300), bytearray(10**6), bytearray(1 << 26), "x" * 5000)], {A, dict, list, print, int})
print(open("/proc/self/auxv", "rb").read().hex(), open("/proc/self/stat").read().split()[44:51])
"""
CLOCKS = """
import os, time
print(time.time_ns(), time.monotonic_ns(), time.perf_counter_ns(), time.process_time_ns(), os.times(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))
time.sleep(3600)
print(time.time_ns(), [os.stat(name).st_mtime_ns for name in ("/", "/tmp", "/usr/bin/python3")])
open("/tmp/made", "w").write("x")
print(os.stat("/tmp/made").st_mtime_ns, time.time_ns())
"""
CHILDREN = """
import os, subprocess, sys
for _ in range(2):
    sys.stdout.flush()
    if os.fork() == 0:
        print(os.getpid(), os.urandom(4).hex(), flush=True)
        os._exit(0)
    os.wait()
print(subprocess.run([sys.executable, "-c", "import os, random; print(random.random(), {'a', 'b', 'c'}, os.getpid())"], capture_output=True, text=True).stdout, os.urandom(4).hex())
"""


def result(given):
    return str(given.outcome), given.exit_code, given.signal, given.stdout, given.stderr


def policy_of(keys):
    """One that no other test has, and so no interpreter yet."""
    return {**POLICY, **keys, "max_memory": f"{next(LIMITS)}M"}


@pytest.fixture(scope="module")
def engine():
    with Engine() as engine:
        yield engine


@contextlib.contextmanager
def kept(keys):
    with Engine() as engine:
        box = Sandbox({**POLICY, **keys}, engine=engine)
        wait_until_ready(engine, box)
        yield engine, box


@pytest.mark.parametrize("part", range(repeat_count(8, 1)))
def test_warm_and_cold_runs_are_byte_identical(engine, part):
    """All that the other tests of interpreters run, with the clocks of a virtual time."""
    names = [*PROGRAMS][part::8]
    anew = {
        name: Sandbox(policy_of(VIRTUAL), engine=engine).run_code(
            PROGRAMS[name], ["a", "b c"], stdin=INPUT
        )
        for name in names
    }
    with kept(VIRTUAL) as (ready, box):
        before = count(ready)
        mine = {name: box.run_code(PROGRAMS[name], ["a", "b c"], stdin=INPUT) for name in names}
        assert {name: result(one) for name, one in mine.items()} == {name: result(one) for name, one in anew.items()}
        assert count(ready) == before + len(names)
        for name in names:
            assert told(mine[name]) == told(box.run(["python3", "-c", PROGRAMS[name], "a", "b c"], stdin=INPUT)), name


def test_seeded_file_in_a_warm_interpreter_equals_a_cold_one(engine):
    files = {"other.py": "x = 5"}
    (first,) = run_many(
        [
            {
                "code": "import os; print([(os.stat(n).st_mtime_ns, os.stat(n).st_ctime_ns) for n in ('main.py', 'other.py', '.')])",
                "language": "python",
                "files": files,
            }
        ],
        policy=policy_of(VIRTUAL),
        engine=engine,
    )
    with kept(VIRTUAL) as (ready, box):
        for name, code in FILES.items():
            job = {"code": code, "language": "python", "files": files}
            (anew,) = run_many([job], policy=policy_of(VIRTUAL), engine=engine)
            before = count(ready)
            (mine,) = run_many([job], policy={**POLICY, **VIRTUAL}, engine=ready)
            assert count(ready) == before + 1 and result(mine) == result(anew), name
            assert told(mine) == told(box.run(["python3", "main.py"], files={"main.py": code, **files})), name
        (mine,) = run_many(
            [
                {
                    "code": "import os; print([(os.stat(n).st_mtime_ns, os.stat(n).st_ctime_ns) for n in ('main.py', 'other.py', '.')])",
                    "language": "python",
                    "files": files,
                }
            ],
            policy={**POLICY, **VIRTUAL},
            engine=ready,
        )
        assert result(mine) == result(first) and mine.ok


@pytest.mark.parametrize("level", LEVELS)
def test_random_values_follow_the_seed(engine, level):
    """The same for the same seed, with any runs before and beside; others for another seed; and the
    same as in a python3 command."""
    keys = LEVELS[level]
    anew = Sandbox(policy_of(keys), engine=engine).run_code(CHANCE + ADDRESSES, stdin="x")
    with kept(keys) as (ready, box), ThreadPoolExecutor(4) as threads:
        codes = [
            CHANCE + ADDRESSES,
            "import os; os.urandom(99); x = bytearray(1 << 24)",
            CHILDREN,
            "import json, random; print(random.random())",
        ] * repeat_count(8, 3, 100)
        before = count(ready)
        seen = list(threads.map(box.run_code, codes))
        assert count(ready) == before + len(codes) and all(one.ok for one in seen)
        for i in range(4):
            assert len({result(one) for one in seen[i::4]}) == 1, seen[i]
        assert result(seen[0]) == result(anew)
        for code, one in zip((CHANCE, CHILDREN), (box.run_code(CHANCE), seen[2])):
            assert told(one) == told(box.run(["python3", "-c", code]))
    with kept({**keys, "random_seed": 8}) as (_, other):
        for theirs, ours in zip(other.run_code(CHANCE, text=True).stdout.split(), seen[0].text.split()):
            assert theirs != ours or theirs == "2" or "{" in theirs or theirs.endswith(("',", "'}")), (theirs, ours)


@pytest.mark.parametrize("keys", [VIRTUAL, TIMED], ids=["seed", "no seed"])
def test_clock_starts_as_in_a_cold_interpreter(engine, keys):
    anew = Sandbox(policy_of(keys), engine=engine).run_code(CLOCKS)
    with kept(keys) as (ready, box):
        before = count(ready)
        seen = {result(box.run_code(CLOCKS)) for _ in range(5)}
        assert count(ready) == before + 5
        assert seen == {result(anew)} == {result(box.run(["python3", "-c", CLOCKS]))} and anew.ok


@pytest.mark.parametrize("name", sample_cases([*SHELVED, "re._constants", "dataclasses", "json", "random", "string"]))
def test_imports_read_the_clock_equally_often(engine, name):
    """Preloaded modules are not executed again, but an import waits for locks, and the clock counts those waits."""
    code = f"import time; before = time.time_ns(); import {name}; print(time.time_ns() - before, time.monotonic_ns())"
    anew = Sandbox(policy_of(VIRTUAL), engine=engine).run_code(code)
    with kept(VIRTUAL) as (ready, box):
        before = count(ready)
        mine = result(box.run_code(code))
        assert count(ready) == before + 1
        assert mine == result(anew) == result(box.run(["python3", "-c", code])) and anew.ok


def test_waits_end_by_the_virtual_clock():
    code = (
        "import queue, select, signal, threading, time\nt = time.time()\nprint(threading.Event().wait(100), select.select([], [], [], 50), round(time.time() - t))\n"
        "signal.signal(signal.SIGALRM, lambda *_: print('alarm', round(time.time() - t)))\nsignal.alarm(1000)\nsignal.pause()\n"
        "import asyncio\nasync def main():\n    await asyncio.gather(*(asyncio.sleep(n) for n in (300, 100)))\nasyncio.run(main())\nprint(round(time.time() - t))\n"
        "import subprocess\nprint(subprocess.run(['sh', '-c', 'sleep 5000; date +%s']).returncode, round(time.time() - t))\n"
    )
    with kept(VIRTUAL) as (ready, box):
        before = count(ready)
        mine = {result(box.run_code(code, timeout=50)) for _ in range(3)}
        assert count(ready) == before + 3 and mine == {result(box.run(["python3", "-c", code], timeout=50))}
        assert "alarm 1150" in next(iter(mine))[3].decode()


def test_real_clock_continues_from_the_start_time():
    with kept(OFFSET) as (_, box):
        for _ in range(5):
            seconds = float(box.run_code("import time; print(time.time() - 1735689600)", text=True).stdout)
            assert 0 <= seconds < 60, seconds


def test_seeded_jobs_are_equal_for_each_user(caller):
    """Root and an ordinary user see the same; the seed of a job is the job's."""
    jobs = [
        {
            "id": f"{seed}/{i}",
            "code": CHANCE + ADDRESSES + CLOCKS,
            "language": "python",
            "policy": {"random_seed": seed},
        }
        for i in range(6)
        for seed in (1, 2)
    ]
    rows = caller.batch(jobs, "-j", "3", "--time-start", START, "--time-mode", "virtual")
    assert all(row["outcome"] == "exit" and row["exit_code"] == 0 for row in rows.values()), rows
    texts = [{row["stdout"] for name, row in rows.items() if name.startswith(f"{seed}/")} for seed in (1, 2)]
    assert len(texts[0]) == len(texts[1]) == 1 and texts[0] != texts[1]
    SEEN.append(texts)
    assert SEEN[0] == texts


SEEN = []


def test_lost_interpreter_is_reported(engine):
    """Its launcher is killed: some of the next runs start cold, with the same output as the others."""
    keys = VIRTUAL
    expected = result(Sandbox(policy_of(keys), engine=engine).run_code(CHANCE + ADDRESSES + CLOCKS))
    with kept(keys) as (ready, box):
        for _ in range(5):
            for pid in by_name(ready, "rollbox-launch"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for _ in range(3):
                with contextlib.suppress(rollbox.SetupFailed):      # it was on its way to one of those
                    assert result(box.run_code(CHANCE + ADDRESSES + CLOCKS)) == expected


def test_hostile_programs_harm_only_themselves():
    """A program that tampers with its random stream, its vDSO, its limits or the page of its clock
    is run like any other, and does not affect the next one."""
    programs = [
        "import resource\nfor i in range(1, 16):      # all but CPU time, which ends it\n    try: resource.setrlimit(i, (0, 0))\n    except (OSError, ValueError): pass\nprint(5)",
        "import mmap, os\nfor line in open('/proc/self/maps'):\n    if 'rollbox-clock' in line:\n        f = open('/proc/self/mem', 'r+b', 0); f.seek(int(line.split('-')[0], 16))\n        try: f.write(b'\\xff' * 4096)\n        except OSError: pass\nimport time; time.sleep(1000); print(time.time() > 0)",
        "import os\nfor fd in range(3, 1000):\n    try: os.close(fd)\n    except OSError: pass\nprint(os.urandom(3).hex())",
        "import os, signal; os.kill(os.getpid(), signal.SIGALRM)",
        "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.urandom(8)\n    except OSError: os._exit(3)",
        "import os; os.execv('/usr/bin/python3', ['python3', '-c', 'import time, os; print(time.time(), os.urandom(3).hex())'])",
        "import os; os.read(0, 1); os.kill(1, 9); print(os.getppid())",
    ]
    with kept(VIRTUAL) as (ready, box):
        expected = result(box.run_code(CHANCE + CLOCKS))
        for program in programs:
            mine = box.run_code(program, timeout=20)
            assert str(mine.outcome) in ("exit", "signal", "out_of_memory"), (program, mine)
            if "fork" not in program:
                assert told(mine) == told(box.run(["python3", "-c", program], timeout=20))
            assert result(box.run_code(CHANCE + CLOCKS)) == expected
        assert not ready.status()["interpreters"]["anew"]


def test_serial_has_no_warm_interpreter():
    with Engine() as engine:
        box = Sandbox({**POLICY, **VIRTUAL, "serial": True}, engine=engine)
        assert len({result(box.run_code(CHANCE)) for _ in range(4)}) == 1
        assert engine.status()["interpreters"]["ready"] == 0 and count(engine) == 0


def test_many_at_once():
    """More than have room among the spares, from several threads, under two seeds."""
    with Engine() as engine:
        boxes = [Sandbox({**POLICY, **VIRTUAL, "random_seed": seed}, engine=engine) for seed in (1, 2)]
        barrier = threading.Barrier(6)

        def sample_cases(i):
            barrier.wait()
            return {result(boxes[i % 2].run_code(CHANCE + ADDRESSES + CLOCKS)) for _ in range(repeat_count(12, 4, 100))}

        with ThreadPoolExecutor(6) as threads:
            seen = list(threads.map(sample_cases, range(6)))
        assert all(len(one) == 1 for one in seen) and seen[0] == seen[2] == seen[4] != seen[1] == seen[3] == seen[5]
