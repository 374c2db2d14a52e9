# SPDX-License-Identifier: Apache-2.0
"""serial: threads and processes that race take turns, and what they print repeats; and guests that
keep a turn for themselves.

The corpus are programs whose output depends on who is first. Each runs four times, all side by side
on all processors. docs/explanation/determinism.md has the table of more runs, and of the corpus of
virtual time.
"""

import json

import pytest
from corpus import LIMIT_S, OUTSIDE, PY, SOAK, START, START_S, VIRTUAL, guest_in_ways, run_corpus, runs
from harness import caller, place  # noqa: F401

pytestmark = pytest.mark.timeout_s(2 * LIMIT_S)
SERIAL = (*VIRTUAL, "--serial")
TIMES = runs(4, 2)

CORPUS = {
    "xargs": ["bash", "-c", "seq 20 | xargs -P4 -I{} sh -c 'echo {} $$; date +%N'"],
    "bash-background": [
        "bash",
        "-c",
        "for i in 1 2 3 4 5 6; do (echo $i $BASHPID; ls / | head -$i | tail -1; echo $i $RANDOM) & done; wait; echo $EPOCHREALTIME",
    ],
    "bash-pipeline": [
        "bash",
        "-c",
        "seq 1000 | sort -R --random-source=/dev/urandom | head -100 | tee >(md5sum) | sort -n | md5sum; wait; date +%N",
    ],
    "bash-substitution": [
        "bash",
        "-c",
        "for i in 1 2 3; do diff <(ls /usr; date +%N) <(ls /; date +%N) | md5sum; done",
    ],
    "mktemp": [
        "bash",
        "-c",
        "for i in 1 2 3; do mktemp -u & done; wait; mktemp; mktemp -d; echo $RANDOM $SRANDOM",
    ],
    "make": [
        "bash",
        "-c",
        "cd /tmp; printf 'all: a b c d e f\\n%%: ; @echo $@ start; sh -c \"echo $@ mid; date +%%N\"; echo $@ end\\n' > Makefile; make -j4; date +%s.%N",
    ],
    "compiler": [
        "bash",
        "-c",
        "cd /tmp; for i in 1 2 3; do echo \"int main(){return $i;}\" > $i.c; (gcc -pipe $i.c -o $i; ./$i; echo $i $?) & done; wait; date +%N",
    ],
    "lock": [
        "bash",
        "-c",
        "for i in 1 2 3 4; do (for n in 1 2 3; do flock /tmp/l sh -c \"echo $i $n; date +%N\"; done) & done; wait",
    ],
    "signals": [
        "bash",
        "-c",
        "trap 'echo usr1 $(date +%N)' USR1; for i in 1 2 3; do (kill -USR1 $$; echo sent $i) & done; wait; wait; wait; wait; echo end",
    ],
    "fifo": [
        "bash",
        "-c",
        "mkfifo /tmp/f; for i in 1 2 3; do (for n in 1 2 3; do echo $i $n; done > /tmp/f) & done; cat /tmp/f; wait",
    ],
    "perl": [
        "perl",
        "-e",
        "$| = 1; for my $n (1..6) { if (!fork) { for (1..5) { print \"$n $_ \", rand(), qq(\\n) } exit } } 1 while wait > 0; print time",
    ],
    "python-threads": [
        *PY,
        """
import random, threading, time
def work(n):
    for i in range(5):
        time.sleep(random.random() / 50)
        print(n, i, round(time.time(), 4), flush=True)
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
[t.start() for t in threads], [t.join() for t in threads]
""",
    ],
    "python-busy-threads": [
        *PY,
        """
import threading
out = []
def work(n):
    for i in range(300): out.append(n)
    print("end", n, flush=True)
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
[t.start() for t in threads], [t.join() for t in threads]
print(out[::37])
""",
    ],
    "python-queue": [
        *PY,
        """
import queue, threading
jobs, done = queue.Queue(), []
def work(n):
    while (job := jobs.get()) is not None:
        done.append((n, job))
        jobs.task_done()
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[t.start() for t in threads]
for i in range(60): jobs.put(i)
jobs.join()
for t in threads: jobs.put(None)
[t.join() for t in threads]
print(done)
""",
    ],
    "python-pool": [
        *PY,
        """
import multiprocessing, os, time
def work(n): return n, os.getpid(), time.time()
with multiprocessing.Pool(4) as pool:
    for result in pool.imap_unordered(work, range(30)): print(result)
""",
    ],
    "python-executors": [
        *PY,
        """
import concurrent.futures as f, hashlib, time
with f.ThreadPoolExecutor(4) as e:
    print([x.result() for x in f.as_completed([e.submit(lambda n=n: (n, hashlib.md5(bytes(5000 * n)).hexdigest()[:6])) for n in range(20)])])
with f.ProcessPoolExecutor(3) as e: print(list(e.map(pow, range(9), range(9))), time.time())
""",
    ],
    "python-asyncio": [
        *PY,
        """
import asyncio, time
async def run(n):
    p = await asyncio.create_subprocess_exec("sh", "-c", f"echo {n} $$; sleep 0.{n}; date +%s.%N", stdout=-1)
    out, _ = await p.communicate()
    print(n, out.decode().split(), time.time())
async def main(): await asyncio.gather(*(run(n) for n in range(1, 7)))
asyncio.run(main())
""",
    ],
    "python-asyncio-threads": [
        *PY,
        """
import asyncio, random, time
def work(n): time.sleep(random.random()); return n, time.time()
async def main():
    for x in asyncio.as_completed([asyncio.to_thread(work, n) for n in range(8)]): print(await x)
asyncio.run(main())
""",
    ],
    "python-server": [
        *PY,
        """
import socket, threading, time
a = socket.socket(socket.AF_UNIX); a.bind("/tmp/s"); a.listen()
def serve():
    for n in range(6):
        c, _ = a.accept()
        threading.Thread(target=lambda c=c, n=n: (c.send(b"%d %s" % (n, c.recv(9))), c.close())).start()
def ask(n):
    c = socket.socket(socket.AF_UNIX); c.connect("/tmp/s"); c.send(b"%d" % n); print(n, c.recv(20), time.time())
threads = [threading.Thread(target=serve)] + [threading.Thread(target=ask, args=(n,)) for n in range(6)]
[t.start() for t in threads], [t.join() for t in threads]
""",
    ],
    "node": [
        "node",
        "-e",
        "const fs = require('fs'); for (let i = 0; i < 8; i++) fs.readFile('/etc/passwd', () => console.log(i, Date.now())); "
        "for (let i = 0; i < 4; i++) require('child_process').exec('echo ' + i, (e, o) => console.log(o.trim()))",
    ],
    "node-crypto": [
        "node",
        "-e",
        "const c = require('crypto'); for (let i = 0; i < 6; i++) c.pbkdf2('a', 'b', 1000 * (6 - i), 8, 'sha1', (e, k) => console.log(i, k.toString('hex')))",
    ],
}
if SOAK:
    CORPUS.update(
        {
            f"{language}-{what}": [language, what]
            for language, what in (
                ("go", "own-chance"),
                ("go", "time"),
                ("java", "chance"),
                ("java", "time"),
            )
        }
    )
for what in ("threads", "shared", "pipes"):
    for way in ("static", "dynamic", "musl"):
        CORPUS[f"c-{way}-{what}"] = [way, what]


@pytest.fixture(scope="module")
def programs():
    return guest_in_ways("race")


def outputs_of(caller, programs, name):
    outputs = run_corpus(caller, {name: CORPUS[name]}, programs, TIMES, "-j", "4", "--seed", "7", *SERIAL)
    if name not in outputs:
        pytest.skip("this machine has no such program")
    assert len(outputs[name]) == TIMES
    return outputs[name]


# Python's executors differ in some runs of a hundred (docs/explanation/determinism.md): nothing is claimed of them.
@pytest.mark.parametrize("name", sorted(set(CORPUS) - {"python-executors"}))
def test_program_repeats(caller, programs, name):
    texts = outputs_of(caller, programs, name)
    for text in texts:
        assert text == texts[0]


def test_sleepers_wake_up_in_order(caller, programs):
    times = [float(line.split()[2]) for line in outputs_of(caller, programs, "python-threads")[0].splitlines()]
    assert len(times) == 30 and times == sorted(times)


def test_result_names_the_level(caller):
    determinism = caller.run("--seed", "7", *SERIAL, "--", "true").isolation["determinism"]
    assert determinism == {"level": "serial", "random_seed": "7", "time_start": START, "time_mode": "virtual"}


def test_guest_sees_one_cpu(caller):
    code = "import os; print(os.sched_getaffinity(0)); os.sched_setaffinity(0, {0, 1}); print(os.sched_getaffinity(0))"
    assert caller.run(*SERIAL, "--", *PY, code).stdout == "{0}\n{0}\n"


@pytest.mark.parametrize(
    "flags",
    (["--serial"], ["--serial", "--time-start", START], ["--serial", "--time-mode", "virtual"]),
)
def test_serial_needs_a_virtual_clock(caller, flags):
    done = caller.rollbox("run", "--json", *flags, "--", "true")
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "policy_invalid" and "time_mode" in error["message"], error


@pytest.mark.parametrize("way", OUTSIDE)
def test_wait_for_input_from_outside_is_real(caller, way):
    with caller.start(*SERIAL, "--", *OUTSIDE[way]) as run:
        assert run.line() == "ready"
        assert caller.run(*SERIAL, "--", "sleep", "100").outcome == "exit"
        run.say()
        status, out, _ = run.finish()
    assert status == 0 and out == f"{START_S}\n".encode()


# Hostile guests

# A thread that spins while another waits takes a minute here; under virtual time alone
# (test_determinism_virtual.py) it is short.
@pytest.mark.long
@pytest.mark.parametrize(
    "trick",
    (
        "bad-times",
        "crowd",
        "storm",
        "traced",
        "many-timers",
        "dear-descriptor",
        *(("spinner",) if SOAK else ()),
    ),
)
def test_init_serves_on(caller, trick):
    result = caller.run(
        "--readable",
        place() / "guests",
        *SERIAL,
        "--processes",
        "500",
        "--",
        guest_in_ways("virtual")["static"],
        trick,
        timeout=1.5 * LIMIT_S,
    )
    assert result.outcome == "exit" and result.exit_code == 0, result.told
    assert result.stdout.splitlines()[-1] == "done 100", result.told


@pytest.mark.parametrize(
    "trick",
    ("stopped", "killed", "held", "affinity", "execute", "futexes", "crowded-futex", "epoll"),
)
def test_blocked_thread_gives_its_turn_up(caller, programs, trick):
    """Other threads get their turns, in every state of the one that has it."""
    result = caller.run(
        "--readable",
        place() / "guests",
        *SERIAL,
        "--processes",
        "300",
        "--",
        programs["static"],
        trick,
    )
    assert result.outcome == "exit" and result.exit_code == 0, result.told
    assert result.stdout.splitlines()[-1] == "done 100", result.told


def test_fork_bomb_is_ended_by_the_timeout(caller):
    code = "import os, time\nwhile True:\n  try:\n    os.fork(); time.sleep(0.001)\n  except OSError: pass\n"
    result = caller.run("--seed", "7", *SERIAL, "--timeout", "1", "--processes", "40", "--", *PY, code)
    assert result.outcome == "timeout"


# Sessions

SESSION = """
import sys
sys.path.insert(0, %r)
from rollbox import Policy, Sandbox
start = %d
policy = Policy(random_seed=7, time_start="2025-01-01T00:00:00", time_mode="virtual", serial=True)
race = "for i in 1 2 3 4; do (sleep 0.$((i %% 2)); echo $i; date +%%N; mktemp) & done; wait"
texts = set()
for _ in range(5):
    with Sandbox(policy) as box:
        text = box.exec(race, text=True).stdout
        sleeper = box.spawn(["/usr/bin/python3", "-Ic", "import threading; print(flush=True); input(); t = threading.Timer(50, print, ['late']); t.start(); t.join()"])
        sleeper.stdout.read(1)
        box.pause()
        box.resume()
        state = box.snapshot(processes="drop")
        kid = box.fork(1, processes="drop")[0]
        assert kid.exec("echo $$", text=True).outcome == "exit"
        sleeper.stdin.write(b"\\n")
        sleeper.stdin.flush()
        assert sleeper.stdout.read() == b"late\\n"
        text += box.exec("date +%%s; " + race, text=True).stdout
        assert box.exec(["/usr/bin/python3", "-Ic", "while True: pass"], timeout=0.5).outcome == "timeout"
        assert box.exec("sleep 3600; echo well", text=True).stdout == "well\\n"
        box.reset(state)
        assert box.exec("date +%%s", text=True).stdout == f"{start}\\n"
        shell = box.shell()
        assert shell.run("sleep 60 & wait; date +%%s").stdout == b"%%d\\n" %% (start + 60)
    texts.add(text)
assert len(texts) == 1, texts
print("done")
"""


@pytest.mark.once
def test_session_commands_repeat(caller):
    done = caller.script(SESSION, START_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"done\n"


def test_policy_plan_shows_what_is_asked(caller):
    text = (
        caller.rollbox("policy", "plan", *SERIAL)
        .stdout.decode()
        .partition("besides: what commands ask init about")[2]
    )
    assert "(getpid)" in text and "pidfd_getfd" in text
