# SPDX-License-Identifier: Apache-2.0
"""A contestant that is a Python library: takes the orders `latency N` and `burst N` of bench.c and answers as it does.

worker.py rollbox ARGV...     rollbox' Python package, a Sandbox used again and again
worker.py sandlock ARGV...    sandlock's, one Sandbox a run (a Sandbox holds one process), a new one
each time, as in a rollout
"""
import os
import shutil
import sys
import tempfile
import threading
import time
from typing import Callable, List


def rollbox(argv: List[str]) -> Callable[[], None]:
    from rollbox import Sandbox
    sandbox = Sandbox()

    def run() -> None:
        result = sandbox.run(argv)
        if result.outcome != "exit" or result.exit_code:
            raise SystemExit(f"worker: {argv}: {result}")
    return run


def sandlock(argv: List[str]) -> Callable[[], None]:
    from sandlock import Sandbox

    # What rollbox's default policy grants, as far as it can be said there. (Its wheel has no
    # command line, so the library is what there is.)
    readable = [
        path
        for path in (
            "/usr",
            "/bin",
            "/sbin",
            "/lib",
            "/lib64",
            "/etc",
            "/opt",
            "/proc",
            "/dev/null",
            "/dev/zero",
            "/dev/urandom",
        )
        if os.path.exists(path)
    ]
    denied = [path for path in ("/etc/shadow", "/etc/gshadow", "/etc/ssh") if os.path.exists(path)]
    private = tempfile.mkdtemp(prefix="bench-sandlock-")

    def run() -> None:
        sandbox = Sandbox(
            fs_readable=readable,
            fs_writable=[private],
            fs_denied=denied,
            max_memory="512M",
            max_processes=64,
            max_open_files=4096,
            clean_env=True,
        )
        result = sandbox.run(argv)
        if result.exit_code:
            raise SystemExit(f"worker: {argv}: {result}")
    run.done = lambda: shutil.rmtree(private, ignore_errors=True)   # type: ignore[attr-defined]
    return run


def timed(run: Callable[[], None]) -> int:
    start = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start


def burst(run: Callable[[], None], n: int) -> List[int]:
    times: List[int] = []
    gate = threading.Event()
    starts: List[int] = []

    def one() -> None:
        gate.wait()
        run()
        times.append(time.perf_counter_ns() - starts[0])
    threads = [threading.Thread(target=one) for _ in range(n)]
    for thread in threads:
        thread.start()
    starts.append(time.perf_counter_ns())
    gate.set()
    for thread in threads:
        thread.join()
    if len(times) != n:
        raise SystemExit("worker: a run of the burst failed")
    return times


def main() -> None:
    run = {"rollbox": rollbox, "sandlock": sandlock}[sys.argv[1]](sys.argv[2:])
    for line in sys.stdin:
        order, *numbers = line.split()
        if order == "latency":
            times = [timed(run) for _ in range(int(numbers[0]))]
        elif order == "burst":
            times = burst(run, int(numbers[0]))
        else:
            raise SystemExit(f"worker: no such order: {line}")
        print(*times, flush=True)
    if hasattr(run, "done"):
        run.done()


if __name__ == "__main__":
    main()
