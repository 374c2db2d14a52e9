# SPDX-License-Identifier: Apache-2.0
"""Checkpoints, in `make bench`: the cost of snapshots, forks and resets of running processes, as
one JSON object of rows on standard output.

live.py rollbox REPEATS     rollbox' Python package
live.py sandlock REPEATS    sandlock's fork, of this process's own memory, without a pid namespace,
files or limits for each clone
live.py criu REPEATS        CRIU's dump and restore of the same Python, without any sandbox; by
root, where it runs on the kernel at hand
"""
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

CLONES = 100
MANY = 1000
LINE = 12  # forks of forks, without the first three, before dirty tracking begins with the start of a fork
ROUNDS = 5  # of so many: the first, which finds nothing that others have left to be used again, is not counted

# It has some 16 MB of anonymous memory, answers a line with a line, and knows the longest time for
# which it was not on: nothing else in it takes long.
GUEST = """
import sys, threading, time
kept = bytearray(b"x" * ({} << 20))
longest, looks = 0.0, 0
def watch():
    global longest, looks
    last = time.monotonic()
    while True:
        now = time.monotonic()
        longest = max(longest, now - last)
        last = now
        looks += 1
print("ready", flush=True)
for line in sys.stdin:
    if line == "watch\\n":
        threading.Thread(target=watch, daemon=True).start()
    if line == "longest\\n":
        before = looks          # a pause counts once the thread has looked at the clock
        while looks < before + 2:
            time.sleep(0)
        print(longest, flush=True)
        longest = 0.0
    else:
        print("here", flush=True)
"""
SHELLS = "for i in 1 2 3; do (while read -r x; do echo $x; done) < <(while :; do echo line; sleep 1000; done) > /dev/null & done; echo ready; while read -r line; do echo here; done"


def row(values: List[float]) -> Dict[str, Any]:
    return {
        "p50_us": statistics.median(values) * 1e6,
        "p99_us": sorted(values)[min(len(values) - 1, int(len(values) * 0.99))] * 1e6,
        "runs": len(values),
    }


def available() -> int:
    """KiB"""
    return next(
        int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    )


def timed(repeats: int, work: Callable[[], float]) -> Dict[str, Any]:
    work()
    return row([work() for _ in range(repeats)])


def of_rollbox(repeats: int) -> Dict[str, Any]:
    from rollbox import Sandbox
    rows: Dict[str, Any] = {}

    def ask(process: Any, what: bytes = b"hello\n") -> bytes:
        process.stdin.write(what)
        process.stdin.flush()
        answer: bytes = process.stdout.readline()
        return answer

    def begin(box: Any, argv: List[str]) -> Any:
        process = box.spawn(argv)
        if process.stdout.readline() != b"ready\n":
            raise SystemExit("live: the guest did not begin")
        return process

    def fork_kept(box: Any, process: Any, **options: Any) -> Tuple[Any, Any, float]:
        """The sandbox, the process's copy, and how long it took."""
        start = time.perf_counter()
        (kid,) = box.fork(1, **options)
        copy = kid.process(process.id)
        if ask(copy) != b"here\n":
            raise SystemExit("live: a copy does not answer")
        return kid, copy, time.perf_counter() - start

    def fork(box: Any, process: Any, **options: Any) -> float:
        kid, _, took = fork_kept(box, process, **options)
        kid.close()
        return took

    def fork_many(box: Any, process: Any, state: Any) -> float:
        start = time.perf_counter()
        kids = box.fork(CLONES, snapshot=state)
        copies = [
            kid.process(process.id) for kid in kids
        ]  # kept: one whose input is closed ends, and what that takes is not asked about
        for copy in copies:  # before anybody is listened to: they answer side by side
            copy.stdin.write(b"hello\n")
            copy.stdin.flush()
        if any(copy.stdout.readline() != b"here\n" for copy in copies):
            raise SystemExit("live: a copy does not answer")
        took = time.perf_counter() - start
        for kid in kids:
            kid.close()
        return took

    def last_clone() -> float:
        """Of so many, all of which are there at once: when the last one was at work."""
        with Sandbox(
            policy,
            init_fn=lambda: bytearray(b"x" * (8 << 20)),
            work_fn=lambda number, kept: time.time(),
        ) as box:
            box.warm()
            start = time.time()
            return max(clone.get() for clone in box.fork(MANY, concurrency=MANY)) - start

    def memory_of_each(box: Any, process: Any, state: Any) -> float:
        """KiB of memory for each running fork that has answered: its own pages, and those of the kernel for it."""
        kids, before = [], available()
        while len(kids) < MANY:
            kids += box.fork(CLONES, snapshot=state)
        for copy in [kid.process(process.id) for kid in kids]:
            if ask(copy) != b"here\n":
                raise SystemExit("live: a copy does not answer")
        each = (before - available()) / MANY
        for kid in kids:
            kid.close()
        return each

    def call(work: Callable[[], Any]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    policy = {"max_memory": "2G", "max_processes": 200}
    with Sandbox(policy) as box:
        process = begin(box, ["python3", "-c", GUEST.format(8)])
        rows["live: snapshot, python of 16 MB"] = timed(repeats, lambda: call(box.snapshot))
        rows["live: fork of now, to the copy's answer"] = timed(repeats, lambda: fork(box, process))
        state = box.snapshot()
        rows["live: fork of a snapshot, to the copy's answer"] = timed(
            repeats, lambda: fork(box, process, snapshot=state)
        )
        rows[f"live: {CLONES} forks of a snapshot at once, to all answers"] = timed(
            ROUNDS, lambda: fork_many(box, process, state)
        )
        rows["live: reset to a snapshot, with files"] = timed(repeats, lambda: call(lambda: box.reset(state)))
        process = box.process(process.id)
        ask(process, b"watch\n")
        pauses = []
        for _ in range(repeats):
            ask(process, b"longest\n")
            box.snapshot()
            pauses.append(float(ask(process, b"longest\n")))
        rows["live: longest pause in the captured process"] = row(pauses)
        rows[f"live: {MANY:,} forks alive, memory of each"] = {
            "kib_each": memory_of_each(box, process, state),
            "runs": MANY,
        }
    rows[f"live: {MANY:,} clones of a warm python at once, to the last one at work"] = timed(ROUNDS, last_clone)

    def first_forks() -> List[float]:
        """What the first, second and third fork of a new sandbox take: the first is captured whole,
        the others are what has changed since."""
        with Sandbox(policy) as box:
            process = begin(box, ["python3", "-c", GUEST.format(8)])
            return [fork(box, process) for _ in range(3)]

    for name, times in zip(("first", "second", "third"), zip(*(first_forks() for _ in range(repeats)))):
        rows[f"live: {name} fork of now of a sandbox"] = row(list(times))

    def line_of_forks() -> List[float]:
        """A search's: each is forked once, and the next from it."""
        with Sandbox(policy) as box, contextlib.ExitStack() as stack:
            process, at, times = begin(box, ["python3", "-c", GUEST.format(8)]), box, []
            for _ in range(LINE):
                at, process, took = fork_kept(at, process)
                stack.enter_context(at)
                times.append(took)
            return times[3:]

    rows["live: fork of now of a fork of a fork, each once"] = row(
        [one for _ in range(ROUNDS) for one in line_of_forks()]
    )
    with Sandbox(policy) as box:
        process = begin(box, ["bash", "-c", SHELLS])
        state = box.snapshot()
        rows["live: bash and its children with pipes, fork of a snapshot, to its answer"] = timed(
            repeats, lambda: fork(box, process, snapshot=state)
        )
    with Sandbox(policy) as box:
        process = begin(box, ["python3", "-c", GUEST.format(300)])
        state = box.snapshot()
        rows["live: python of 300 MB, fork of a snapshot, to its answer"] = timed(
            repeats, lambda: fork(box, process, snapshot=state)
        )
    return rows


def of_sandlock(repeats: int) -> Dict[str, Any]:
    from sandlock import Sandbox
    kept: List[bytearray] = []

    def once(n: int) -> float:
        sandbox = Sandbox(
            fs_readable=["/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev"],
            init_fn=lambda: kept.append(bytearray(b"x" * (8 << 20))),
            work_fn=lambda number: print("here"),
        )
        start = time.perf_counter()
        clones = sandbox.fork(n)
        if len(clones.pids) != n:
            raise SystemExit(f"live: sandlock made {len(clones.pids)} clones of {n}")
        return time.perf_counter() - start

    return {
        "sandlock: fork(1), init_fn included": timed(min(repeats, 10), lambda: once(1)),
        f"sandlock: fork({CLONES}), init_fn included": row([once(CLONES)]),
    }


def criu(*words: str) -> None:
    done = subprocess.run(["criu", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        # The first is the cause; but a helper's end is none.
        said = [line for line in (done.stderr + done.stdout).splitlines() if "Error" in line and "exited" not in line]
        raise SystemExit(f"criu {words[0]}: {said[0] if said else f'status {done.returncode}'}")


def of_criu(repeats: int) -> Dict[str, Any]:
    """The same guest, on FIFOs, which a restored process opens again by their names; each dump ends
    it, each restore brings it back."""
    if os.geteuid() != 0:
        raise SystemExit("criu: it takes root")
    try:
        criu("check")
    except FileNotFoundError:
        raise SystemExit("criu: it is not installed") from None
    dumps, restores = [], []
    with tempfile.TemporaryDirectory(prefix="rollbox-criu-") as name:
        place = Path(name)
        for fifo in ("in", "out"):
            os.mkfifo(place / fifo)
        to, said = (os.open(place / fifo, os.O_RDWR) for fifo in ("in", "out"))
        guest = subprocess.Popen(
            ["python3", "-c", GUEST.format(8)],
            stdin=to,
            stdout=said,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            os.read(said, 100)
            for n in range(repeats):
                images = place / str(n)
                images.mkdir()
                start = time.perf_counter()
                criu("dump", "--tree", str(guest.pid), "--images-dir", str(images))
                dumps.append(time.perf_counter() - start)
                guest.poll()    # the dead one's number is the restored one's
                start = time.perf_counter()
                criu("restore", "--restore-detached", "--images-dir", str(images))
                os.write(to, b"hello\n")
                os.read(said, 100)
                restores.append(time.perf_counter() - start)
        finally:
            os.kill(guest.pid, signal.SIGKILL)
    return {"criu: dump, python of 16 MB": row(dumps), "criu: restore of it, to the copy's answer": row(restores)}


if __name__ == "__main__":
    print(json.dumps({"rollbox": of_rollbox, "sandlock": of_sandlock, "criu": of_criu}[sys.argv[1]](int(sys.argv[2]))))
