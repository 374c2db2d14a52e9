# SPDX-License-Identifier: Apache-2.0
"""Batches that are recorded: a trajectory for each job, with any id, a new one after another
attempt, and none left half when the batch is closed."""

import asyncio
import json
import os

import pytest

from rollbox import Engine, InvalidArgument, Record, iter_many, run_many, run_many_async
from harness import caller  # noqa: F401
from trajectory_files import read, verdict

JOBS = [
    {"id": "a/b", "argv": ["echo", "one"]},
    {"argv": ["sh", "-c", "cat; exit 3"], "stdin": "in", "files": {"f": "x"}, "timeout_s": 50},
    {"id": "..", "code": "print(6 * 7)", "language": "python"},
    ["sh", "-c", "echo shell"],
    {"id": 9, "nothing": 1},
    {"id": "env", "argv": ["env"], "env": {"A": "b"}, "policy": {"max_memory": "64M"}},
]


def expect(results, directory):
    assert [result.id for result in results] == ["a/b", 1, "..", 3, 9, "env"]
    assert [result.error is not None for result in results] == [False] * 4 + [True, False]
    assert results[1].exit_code == 3 and results[2].stdout == b"42\n"
    assert sorted(os.listdir(directory)) == ["%2E..jsonl", "1.jsonl", "3.jsonl", "a%2Fb.jsonl", "env.jsonl"]
    for result, name in zip(results, ("a%2Fb", "1", "%2E.", "3", None, "env")):
        if name is not None:
            header, [step], trajectory = read(directory / f"{name}.jsonl")
            assert (
                trajectory.complete
                and step.observation.stdout.data == result.stdout
                and step.observation.exit_code == result.exit_code
            )
    assert header.policy["max_memory"] == "64M" and step.action.env == ("A",)


def test_each_job_has_a_trajectory(tmp_path):
    expect(run_many(JOBS, 3, record=tmp_path / "{id}.jsonl"), tmp_path)


def test_async_batch_records_trajectories(tmp_path):
    expect(asyncio.run(run_many_async(JOBS, 3, record=Record(str(tmp_path / "{id}.jsonl"), keep=10000))), tmp_path)


def test_function_receives_steps_of_all_sandboxes():
    steps = []
    assert all(result.ok for result in run_many([["echo", str(i)] for i in range(10)], 4, record=steps.append))
    assert sorted(step.observation.stdout.data for step in steps) == sorted(b"%d\n" % i for i in range(10))


def test_single_record_path_is_refused_for_a_batch(tmp_path):
    for where in (1, tmp_path / "all.jsonl", str(tmp_path / "{name}.jsonl")):
        with pytest.raises(InvalidArgument, match="{id}"):
            run_many([["true"]], record=where)


def test_unwritable_record_file_is_an_error_row(tmp_path):
    (tmp_path / "1.jsonl").write_text("precious")
    results = run_many([["true"]] * 3, record=tmp_path / "{id}.jsonl")
    assert [result.outcome for result in results] == [
        "exit",
        "error",
        "exit",
    ] and "is not empty" in str(results[1].error)
    assert (tmp_path / "1.jsonl").read_text() == "precious"
    [result] = run_many([["true"]], record=tmp_path / "missing" / "{id}.jsonl")
    assert result.outcome == "error" and "No such file" in str(result.error)


def test_another_attempt_has_the_file_for_itself(tmp_path):
    """A job whose result had come when the engine was killed needs no other: its sandbox alone was not closed."""
    with Engine() as engine:
        rows = iter_many(
            [["sh", "-c", "echo begun; sleep 0.01; echo ended"]] * 20,
            2,
            engine=engine,
            record=tmp_path / "{id}.jsonl",
            ordered=True,
        )
        next(rows)
        os.kill(engine.pid, 9)
        assert all(result.ok for result in rows)
    for i in range(20):
        _, [step], trajectory = read(tmp_path / f"{i}.jsonl")
        assert (
            trajectory.end.reason in ("closed", "engine_lost")
            and trajectory.changed_line is None
            and step.observation.stdout.data == b"begun\nended\n"
        )


def test_closing_it_ends_what_is_under_way(tmp_path):
    rows = iter_many([["true"]] + [["sleep", "1000"]] * 5, 3, record=tmp_path / "{id}.jsonl")
    assert next(rows).ok
    rows.close()
    for path in tmp_path.iterdir():
        assert read(path)[2].complete


# The command line's

def test_command_line_runs_a_batch(caller):
    home = caller.directory()
    (home / "t").mkdir()
    caller.own(home / "t")
    rows = [
        {"id": "a/b", "argv": ["echo", "one"]},
        {
            "id": -2,
            "argv": ["sh", "-c", "cat; exit 3"],
            "stdin": "in",
            "files": {"f": "x"},
            "timeout_s": 50,
        },
        {"id": "..", "code": "print(6 * 7)", "language": "python"},
        {"id": 9, "nothing": 1},
        {
            "id": "gr\u00fc\u00df",
            "argv": ["env"],
            "env": {"KEY": "opensesame"},
            "policy": {"max_memory": "64M"},
        },
    ]
    caller.write(home / "jobs.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    arguments = [
        "batch",
        "--record",
        home / "t" / "{id}.jsonl",
        "--redact-env",
        "KEY",
        "-o",
        home / "out.jsonl",
        "--ordered",
        home / "jobs.jsonl",
    ]
    assert caller.rollbox(*arguments).returncode == 1, "one is no job"
    results = [json.loads(line) for line in (home / "out.jsonl").read_text().splitlines()]
    assert [row["outcome"] for row in results] == ["exit", "exit", "exit", "error", "exit"]
    names = {"a%2Fb": 0, "-2": 1, "%2E.": 2, "gr%C3%BC%C3%9F": 4}
    assert sorted(path.name for path in (home / "t").iterdir()) == sorted(f"{name}.jsonl" for name in names)
    for name, i in names.items():
        header, [step], trajectory = read(home / "t" / f"{name}.jsonl")
        assert (
            trajectory.complete
            and step.observation.exit_code == results[i]["exit_code"]
            and len(step.observation.stdout.text) >= len(results[i]["stdout"])
        )
        assert os.stat(home / "t" / f"{name}.jsonl").st_uid == caller.uid
    assert (
        header.policy["max_memory"] == "64M"
        and "KEY=[redacted:KEY]" in step.observation.stdout.text
        and results[4]["stdout"].count("opensesame") == 1
    )
    assert verdict(caller, home / "t" / "-2.jsonl", status=0)["verdict"] == "equal"
    # Those that are done are left alone, and others' files are not lost without --force.
    (home / "out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in results[:1]))
    caller.own(home / "out.jsonl")
    before = (home / "t" / "a%2Fb.jsonl").read_bytes()
    assert caller.rollbox(*arguments).returncode == 1
    assert (
        sum(
            "is not empty" in (json.loads(line)["error"] or {}).get("message", "")
            for line in (home / "out.jsonl").read_text().splitlines()
        )
        == 3
    )
    assert caller.rollbox(*arguments, "--force").returncode == 1
    assert sum(json.loads(line)["outcome"] == "exit" for line in (home / "out.jsonl").read_text().splitlines()) == 4
    assert (home / "t" / "a%2Fb.jsonl").read_bytes() == before


def test_many_jobs_at_once_and_their_trajectories(caller):
    home = caller.directory()
    caller.write(
        home / "jobs.jsonl",
        "".join(json.dumps({"id": i, "argv": ["echo", str(i)]}) + "\n" for i in range(200)),
    )
    done = caller.rollbox(
        "batch",
        "-j",
        "8",
        "--record",
        home / "{id}.trajectory",
        "-o",
        home / "out.jsonl",
        home / "jobs.jsonl",
    )
    assert done.returncode == 0, done
    for i in range(200):
        assert (
            read(home / f"{i}.trajectory")[1][0].observation.stdout.data == b"%d\n" % i
            and read(home / f"{i}.trajectory")[2].complete
        )


def test_batch_needs_a_record_file_per_job(caller):
    home = caller.directory()
    caller.write(home / "jobs.jsonl", '{"id": 1, "argv": ["true"]}\n')
    done = caller.rollbox("batch", "--record", home / "all.jsonl", home / "jobs.jsonl")
    assert done.returncode == 125 and b"{id}" in done.stderr and done.stdout == b""
    done = caller.rollbox("batch", "--record", home / "missing" / "{id}", home / "jobs.jsonl")
    assert done.returncode == 1 and json.loads(done.stdout)["outcome"] == "error"


def test_incomplete_batch_trajectory_is_reported(caller):
    home = caller.directory()
    os.symlink("/dev/full", home / "1.jsonl")
    caller.own(home / "1.jsonl")
    caller.write(home / "jobs.jsonl", '{"id": 1, "argv": ["echo", "on"]}\n{"id": 2, "argv": ["echo", "on"]}\n')
    done = caller.rollbox("batch", "--record", home / "{id}.jsonl", home / "jobs.jsonl")
    assert (
        done.returncode == 1
        and b"job 1: the trajectory is incomplete" in done.stderr
        and done.stdout.count(b'"on\\n"') == 2
    ), done
    assert read(home / "2.jsonl")[2].complete
