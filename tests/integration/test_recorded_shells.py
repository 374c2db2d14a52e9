# SPDX-License-Identifier: Apache-2.0
"""Shells in trajectories: each run is a step, replay does it again in a shell that keeps its state,
and verify compares.

The model: Python's shells are recorded by the user who runs the tests, and replayed by the command line of this build.
"""

import json
import subprocess

import pytest

from harness import BUILD
from rollbox import Record, Sandbox, Trajectory


def recorded(path, commands, program=None, **options):
    """The results of commands that one shell was given, and the steps of the record."""
    with Sandbox(record=Record(path, **options)) as box:
        if program:
            box._shell = program
        shell = box.shell()
        results = [shell.run(*command) if isinstance(command, tuple) else shell.run(command) for command in commands]
        shell.close()
    with Trajectory.open(path) as trajectory:
        steps = trajectory.steps()
        assert trajectory.complete
    return results, [step for step in steps if step.action.kind != "exec" or step.action.fields.get("extra_fds")]


def cli(*arguments):
    return subprocess.run(
        [BUILD / "rollbox", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )


def verdict(*arguments):
    done = cli("verify", "--json", *arguments)
    assert done.returncode in (0, 1), done
    return json.loads(done.stdout)


COMMANDS = [
    "x=5; cd /tmp; f() { echo f:$1:$x; }; pwd",
    "x=$((x + 1)); f 'it''s'",
    "echo out; echo err >&2; (exit 3)",
    "printf 'no newline'",
    "cat <<'EOF'\nhere 'tis $x\nEOF",
    "cat; echo $?; echo 'unended",
    "seq 1 20000 | tail -1; true",
    "for i in 1 2 3; do echo $i > n$i; done; ls",
    "sleep 1000 & echo started; kill $!; wait",
    "break; return 4",
    "false",
]


@pytest.mark.parametrize("program", ["bash", "sh"])
def test_each_run_is_a_step_and_repeats(tmp_path, program):
    path = tmp_path / "a.jsonl"
    commands = [
        command for command in COMMANDS if program == "bash" or "return" not in command
    ]  # of which dash ends
    results, (shell, *steps) = recorded(path, commands, program)
    assert shell.number == 1 or program == "bash"
    assert [step.action.kind for step in steps] == ["shell"] * len(commands)
    assert [step.action.command.data.decode() for step in steps] == commands
    for result, step in zip(results, steps):
        assert (step.observation.outcome, step.observation.exit_code) == (result.outcome.value, result.exit_code)
        assert (step.observation.stdout.data, step.observation.stderr.data) == (result.stdout, result.stderr)
        assert step.action.exec == shell.number
    report = verdict(path)
    assert report["verdict"] == "equal" and report["whole"], report
    again = tmp_path / "again.jsonl"
    assert cli("replay", "-o", again, path).returncode == 0
    assert verdict(path, again)["verdict"] == "equal"


def test_differences_are_found_in_their_step(tmp_path):
    path = tmp_path / "a.jsonl"
    recorded(path, ["x=same", "echo $x", "head -c 8 /dev/urandom | od -An -tx1", "echo $x"])
    report = verdict(path)
    assert (
        report["verdict"] == "diverged"
        and report["divergence"]["kind"] == "shell"
        and report["divergence"]["where"] == "stdout"
    )
    assert verdict(path)["divergence"]["step"] == report["divergence"]["step"]


def test_seeded_shell_runs_repeat(tmp_path):
    path = tmp_path / "a.jsonl"
    with Sandbox({"random_seed": 7, "time_start": "2025-01-01T00:00:00"}, record=path) as box:
        with box.shell() as shell:
            first = shell.run("head -c 8 /dev/urandom | od -An -tx1").stdout
            shell.run("cat /proc/sys/kernel/random/uuid")
    assert first and verdict(path)["verdict"] == "equal"


def test_next_shell_works_after_an_ended_one(tmp_path):
    path = tmp_path / "a.jsonl"
    results, steps = recorded(path, ["x=1; echo $x", "exit 7", "echo \"<$x>\"", "kill -9 $$", "echo again"])
    assert [result.ended for result in results] == [False, True, False, True, False]
    assert [step.action.kind for step in steps] == ["exec", "shell", "shell", "exec", "shell", "shell", "exec", "shell"]
    assert (
        steps[2].observation.exit_code == 7
        and steps[5].observation.outcome == "signal"
        and steps[5].observation.signal == 9
    )
    assert verdict(path)["verdict"] == "equal"


def test_limits_repeat(tmp_path):
    path = tmp_path / "a.jsonl"
    results, steps = recorded(path, ["x=kept", ("while :; do :; done", 0.3), "yes | head -c 12000000", "echo $x"])
    assert [result.outcome.value for result in results] == ["exit", "timeout", "output_limit", "exit"]
    assert [step.observation.outcome for step in steps[1:]] == ["exit", "timeout", "output_limit", "exit"]
    again = tmp_path / "again.jsonl"
    assert cli("replay", "-o", again, path).returncode == 0
    with Trajectory.open(again) as trajectory:
        outcomes = [step.observation.outcome for step in trajectory.steps() if step.action.kind == "shell"]
    assert outcomes == ["exit", "timeout", "output_limit", "exit"]


def test_replay_of_dropped_content_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    recorded(path, ["echo hunter2", "echo 1"], redact=["hunter[0-9]"])
    assert "hunter2" not in path.read_text()
    done = cli("replay", "-o", tmp_path / "b.jsonl", path)
    assert done.returncode == 125 and b"redacted from its command" in done.stderr
    long = tmp_path / "long.jsonl"
    recorded(long, ["echo " + "a" * 2000], keep=1000)
    done = cli("replay", "-o", tmp_path / "c.jsonl", long)
    assert done.returncode == 125 and b"larger --keep" in done.stderr


def test_shell_of_a_fork_is_refused_by_name(tmp_path):
    with Sandbox(record=str(tmp_path / "{name}.jsonl")) as box:
        shell = box.shell()
        shell.run("x=5")
        (kid,) = box.fork()
        with kid:
            assert kid.shell(shell.id).run("echo $x", text=True).stdout == "5\n"
            child = tmp_path / f"{kid.inspect()['name']}.jsonl"
        parent = tmp_path / f"{box.inspect()['name']}.jsonl"
    with Trajectory.open(child) as trajectory:
        (step,) = [step for step in trajectory.steps() if step.action.kind == "shell"]
    assert step.action.exec is None and step.observation.stdout.data == b"5\n"
    done = cli("replay", "-o", tmp_path / "again.jsonl", "--parent", parent, child)
    assert done.returncode == 125 and b"the record has not started its shell" in done.stderr


def test_files_that_a_run_changed(tmp_path):
    path = tmp_path / "a.jsonl"
    recorded(path, ["echo 1 > /tmp/a", "true"], changes=True)
    with Trajectory.open(path) as trajectory:
        steps = trajectory.steps()
    shells = [step.number for step in steps if step.action.kind == "shell"]
    (first, *_) = [step for step in steps if step.action.kind == "files" and step.after == shells[0]]
    assert [row["path"] for row in first.observation.changes] == ["/tmp/a"]


def test_unrecorded_shell_has_no_steps():
    with Sandbox() as box, box.shell() as shell:
        assert shell.run("echo 1", text=True).stdout == "1\n"
        assert box.inspect()["record"] is None
