# SPDX-License-Identifier: Apache-2.0
"""run_many and iter_many: rows for jobs, order, retries, progress, and what is left when one stops early."""

import io
import itertools
import json
import os
import pathlib
import re
import signal
import sys
import threading

import pytest
from harness import processes, until

import rollbox
from rollbox import InvalidArgument, Outcome, Policy, iter_many, run_many

BLOCK = ["sleep", f"86393.{os.getpid()}"]
"""A program that does not end by itself, and that no other run of the tests has."""


def blocked():
    return len(processes(*BLOCK))


def test_rows_of_every_kind():
    jobs = [
        ["echo", "list"],
        ["sh", "-c", "echo shell | tr a-z A-Z"],
        {"id": "argv", "argv": ["cat"], "stdin": "in"},
        {
            "id": "code",
            "code": "import sys; print(sys.stdin.read(), open('data').read())",
            "language": "python",
            "stdin": "in",
            "files": {"data": "file"},
        },
        {"id": "sh", "code": "echo $A; pwd", "language": "sh", "env": {"A": "1"}},
        {"id": 7, "argv": ["sh", "-c", "while :; do :; done"], "timeout_s": 0.3},
        {"id": "policy", "argv": ["sh", "-c", "ulimit -n"], "policy": {"max_open_files": 77}},
        {"id": "Policy", "argv": ["hostname"], "policy": Policy(hostname="other")},
        {"id": "cwd", "argv": ["pwd"], "cwd": "/usr"},
    ]
    results = run_many(jobs, concurrency=3, policy=Policy(max_memory="128M"), text=True)
    assert [result.id for result in results] == [0, 1, "argv", "code", "sh", 7, "policy", "Policy", "cwd"]
    assert [result.stdout for result in results] == [
        "list\n",
        "SHELL\n",
        "in",
        "in file\n",
        "1\n/tmp\n",
        "",
        "77\n",
        "other\n",
        "/usr\n",
    ]
    assert [result.outcome for result in results] == ["exit"] * 5 + ["timeout"] + ["exit"] * 3


def test_invalid_job_is_an_error_row():
    bad = [
        {},
        {"argv": ["a"], "code": "x"},
        {"argv": []},
        {"argv": ["a\0"]},
        {"code": "x", "language": "cobol"},
        {"code": "x"},
        {"argv": ["true"], "language": "python"},
        {"argv": ["true"], "timeout": 1},
        {"argv": ["true"], "timeout_s": 0},
        {"argv": ["true"], "id": 1.5},
        {"argv": ["true"], "policy": {"max_procs": 1}},
        {"argv": ["true"], "policy": 3},
        {"code": "x", "language": "python", "files": 3},
        {"code": "x", "language": "python", "files": {"main.py": "y"}},
        {"code": 3, "language": "sh"},
        None,
        3,
        [],
        "echo a",
        b"echo a",
        {"argv": "echo a"},
        {"argv": ["true"], "timeout_s": "never"},
    ]
    results = run_many(bad + [["true"]], concurrency=4)
    for job, result in zip(bad, results):
        assert result.outcome is Outcome.ERROR and isinstance(result.error, InvalidArgument), job
    assert results[-1].ok
    invalid, missing = run_many([{"argv": ["true"], "policy": {"max_memory": "-5M"}}, ["no-such-program"]])
    assert isinstance(invalid.error, rollbox.PolicyInvalid) and isinstance(missing.error, rollbox.CommandNotFound)


def test_languages_are_those_of_the_command_line():
    table = pathlib.Path(__file__).resolve().parents[2] / "src" / "cli" / "job.c"
    rows = re.findall(r'^    \{ "(\w+)", "([\w.]+)", \{ (.*) \} \},$', table.read_text(), re.MULTILINE)
    assert {name: (file, json.loads(f"[{argv}]")) for name, file, argv in rows} == rollbox._batch.LANGUAGES


def test_arguments_of_the_call():
    with pytest.raises(rollbox.PolicyInvalid):
        run_many([["true"]], policy=Policy(max_memory="-5M"))
    for concurrency in (0, -1, 1.5, "2", True):
        with pytest.raises(InvalidArgument, match="concurrency"):
            run_many([["true"]], concurrency=concurrency)
    for jobs in ("echo a", {"argv": ["true"]}):
        with pytest.raises(InvalidArgument, match="jobs"):
            run_many(jobs)
    assert run_many([]) == []


def test_order():
    """The first job ends by its time-out, the second by itself."""
    jobs = [{"id": "slow", "argv": BLOCK, "timeout_s": 1.0}, {"id": "fast", "argv": ["true"]}]
    assert [result.id for result in iter_many(jobs, concurrency=2)] == ["fast", "slow"]
    assert [result.id for result in iter_many(jobs, concurrency=2, ordered=True)] == ["slow", "fast"]
    assert [result.id for result in run_many(jobs, concurrency=2)] == ["slow", "fast"]
    assert [result.id for result in run_many(jobs, concurrency=2, ordered=False)] == ["fast", "slow"]


def test_jobs_are_taken_as_they_are_needed():
    taken = []

    def jobs():
        for i in itertools.count():
            taken.append(i)
            yield ["echo", str(i)]

    rows = iter_many(jobs(), concurrency=3)
    assert len({next(rows).id for _ in range(20)}) == 20
    rows.close()
    assert len(taken) <= 23


def test_many():
    results = run_many((["echo", str(i)] for i in range(500)), concurrency=50, text=True)
    assert [result.stdout for result in results] == [f"{i}\n" for i in range(500)]


def test_leaving_early_kills_the_rest():
    before = blocked()
    rows = iter_many([["true"], BLOCK, BLOCK], concurrency=3)
    assert next(rows).ok
    until(lambda: blocked() == before + 2)
    rows.close()
    until(lambda: blocked() == before)
    assert not rollbox._core.connection.pending_runs


def test_exception_of_the_jobs_iterator_is_raised():
    def jobs():
        yield ["true"]
        yield BLOCK
        raise ZeroDivisionError

    before = blocked()
    with pytest.raises(ZeroDivisionError):
        run_many(jobs(), concurrency=3)
    until(lambda: blocked() == before)


def test_lost_engine_is_retried_without_a_row():
    with rollbox.Engine() as engine:
        rows = iter_many(
            [["true"]] + [["sh", "-c", "echo done"]] * 3 + [BLOCK],
            concurrency=1,
            engine=engine,
            text=True,
        )
        assert next(rows).ok
        os.kill(engine.pid, 9)
        assert [next(rows).stdout for _ in range(3)] == ["done\n"] * 3
        rows.close()


def test_retries_end():
    """Each attempt loses its engine; the row tells so."""
    known = set(processes(*BLOCK))
    with rollbox.Engine() as engine:
        rows = iter_many([BLOCK], engine=engine, retries=2)
        result = []
        reader = threading.Thread(target=lambda: result.extend(rows))
        reader.start()
        for _ in range(3):
            known |= until(
                lambda: set(processes(*BLOCK)) - known
            )  # the next attempt's: the moment between two may be short
            os.kill(engine.pid, 9)
        reader.join()
    assert [row.outcome for row in result] == ["error"] and isinstance(result[0].error, rollbox.EngineLost)


def test_several_batches_beside_each_other():
    problems = []

    def work(n):
        try:
            results = run_many((["echo", f"{n}-{i}"] for i in range(100)), concurrency=5, text=True)
            assert [result.stdout for result in results] == [f"{n}-{i}\n" for i in range(100)]
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress(monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    run_many([["true"]] * 5 + [["no-such-program"]])
    shown = sys.stderr.getvalue()
    assert "6/6" in shown and "100%" in shown and "1 errors" in shown and shown.endswith("\n")
    monkeypatch.setattr("sys.stderr", Terminal())
    run_many([["true"]], progress=False)
    assert not sys.stderr.getvalue()
    monkeypatch.setattr("sys.stderr", io.StringIO())
    run_many([["true"]])
    assert not sys.stderr.getvalue()
    run_many((job for job in [["true"]]), progress=True)
    assert "1 done" in sys.stderr.getvalue()


def test_no_descriptor_is_left():
    run_many([["true"]])
    before = set(os.listdir("/proc/self/fd"))
    run_many([["true"]] * 20, concurrency=4)
    for row in iter_many([["true"]] * 20, concurrency=4):
        break
    del row
    assert set(os.listdir("/proc/self/fd")) == before


class InterruptedAt:
    """SIGINT at the n-th beginning of a function of those that a batch waits in: there, and not at
    any line, the interpreter looks for signals."""

    WHERE = ("wait", "dispatch", "_tell_ended", "tell", "_on_end", "collect", "_free", "release")

    def __init__(self, n):
        self.left = n

    def __call__(self, frame, event, argument):
        if f"{os.sep}rollbox{os.sep}" not in frame.f_code.co_filename or frame.f_code.co_name not in self.WHERE:
            return
        self.left -= 1
        if self.left == 0:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)

    def __enter__(self):
        sys.settrace(self)

    def __exit__(self, *_):
        sys.settrace(None)


def test_interrupt_is_not_lost():
    """At any moment: once, a callback from the library reported the end of a run, in which an
    exception of a signal handler is printed and forgotten."""
    run_many([["true"]] * 2)
    for n in range(1, 25):
        with pytest.raises(KeyboardInterrupt), InterruptedAt(n):
            run_many([["true"]] * 10, concurrency=2)
    assert [result.exit_code for result in run_many([["true"]] * 3)] == [0, 0, 0]
    assert not blocked()
