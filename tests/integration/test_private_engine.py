# SPDX-License-Identifier: Apache-2.0
"""The command's private engine, which is a fork of the command: what it has kept of it, and what is
left when either dies."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from harness import *

UP = ["--", "sh", "-c", "echo up; read line"]


def engine_of(run):
    """The engine's pid: the one child of the command."""
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    assert len(children) == 1, children
    return int(children[0])


def test_engine_shows_nothing_of_the_caller(caller):
    """It has a process name of its own, and none of the command's arguments and environment except
    the variables for engines."""
    environment = caller.environment(ROLLBOX_KFEAT="", SECRET="from-the-environment")
    with caller.start("--env", "WORD=from-an-argument", *UP, env=environment) as run:
        assert run.line() == "up"
        engine = Path(f"/proc/{engine_of(run)}")
        assert (engine / "comm").read_text() == "rollbox-engine\n"
        shown = (engine / "cmdline").read_bytes()
        assert shown.startswith(b"rollbox-engine\0") and not shown.strip(b"\0")[14:], shown
        kept = [entry for entry in (engine / "environ").read_bytes().split(b"\0") if entry]
        assert (
            all(
                entry.startswith((b"ROLLBOX_", b"TMPDIR=", b"HOME=", b"XDG_DATA_HOME="))
                for entry in kept
            )
            and b"ROLLBOX_KFEAT=" in kept
        ), kept
        run.say()
        assert run.finish()[0] == 0


def test_descriptors_of_the_caller_are_not_inherited(caller):
    """A descriptor that the command inherits is in neither its engine, nor the launcher, nor the sandbox."""
    read_end, write_end = os.pipe()
    with caller.start(*UP, pass_fds=(write_end,)) as run:
        assert run.line() == "up"
        name = os.readlink(f"/proc/self/fd/{write_end}")
        for pid in descendants(run.process.pid)[1:]:
            try:
                held = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
            except PermissionError:  # of a sandbox, for an ordinary user
                assert pid != engine_of(run)
                continue
            assert name not in held, (pid, command_line(pid))
        run.say()
        assert run.finish()[0] == 0
    os.close(write_end)
    assert os.read(read_end, 1) == b""
    os.close(read_end)


def test_own_session_and_plain_signals(caller):
    """A terminal's signals reach the command alone; what the caller ignores, engine and guest do not."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with caller.start(
            "--",
            "sh",
            "-c",
            "grep SigIgn /proc/self/status; echo up; read line",
            start_new_session=True,
        ) as run:
            # (32 and 33 are the C library's own.)
            assert int(run.line().split()[1], 16) & ~(3 << 31) == 0
            assert run.line() == "up"
            engine = engine_of(run)
            assert os.getsid(engine) == engine != os.getsid(run.process.pid)
            ignored = [
                line
                for line in Path(f"/proc/{engine}/status").read_text().splitlines()
                if line.startswith("SigIgn")
            ]
            assert int(ignored[0].split()[1], 16) & 1 << signal.SIGUSR1 - 1 == 0
            family = run.family()
            os.killpg(run.process.pid, signal.SIGINT)
            assert run.finish()[0] in (-signal.SIGINT, 128 + signal.SIGINT)
            wait_gone(family)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_killed_engine_leaves_no_groups(caller):
    """The command removes what its engine had no time for, before it ends."""
    with caller.start("--", "sh", "-c", "echo up; sleep 1000 & sleep 1000") as run:
        assert run.line() == "up"
        family, engine = run.family(), engine_of(run)
        os.kill(engine, signal.SIGKILL)
        assert run.finish()[0] == 125
        assert groups_of(engine) == []
        wait_gone(family)


@pytest.mark.parametrize("first", ["command", "engine"])
def test_killed_command_leaves_no_groups(caller, first):
    """Killed alone, the command leaves the rest to its engine. Killed both, groups are left at
    most, for the next engine."""
    with caller.start("--", "sh", "-c", "echo up; sleep 1000") as run:
        assert run.line() == "up"
        family, engine = run.family(), engine_of(run)
        # Stopped, it cannot get ahead of its own death.
        if first == "engine":
            os.kill(run.process.pid, signal.SIGSTOP)
            os.kill(engine, signal.SIGKILL)
        run.process.kill()
        run.process.wait()
        wait_gone(family)
    if first == "engine":
        # Its janitor, that is; among the command's descendants, since there is something to sweep.
        with caller.start(*UP) as run:
            assert run.line() == "up"
            family = run.family()
            run.say()
            run.finish()
        wait_gone(family)
    assert groups_of(engine) == []


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_standard_streams(caller, closed):
    """Whichever stream is closed, nothing else takes its place in engine or sandbox."""
    shell = ["sh", "-c", 'exec "$@" ' + " ".join(f"{fd}>&-" for fd in closed), "sh"]
    done = caller.call(*shell, binaries() / "rollbox", "run", "--", "sh", "-c", "ls /proc/self/fd >&2; exit 7")
    assert done.returncode == 7, done
    if 2 not in closed:
        assert done.stderr.split() == [b"0", b"1", b"2", b"3"], done


def test_engine_of_the_environment(caller):
    """ROLLBOX_ENGINE names a program that is executed instead."""
    with caller.start(*UP, env=caller.environment(ROLLBOX_ENGINE=str(binaries() / "rollbox-engine"))) as run:
        assert run.line() == "up"
        assert os.readlink(f"/proc/{engine_of(run)}/exe").endswith("/rollbox-engine")
        run.say()
        assert run.finish()[0] == 0


@pytest.mark.parametrize("limits", ["-n 64", "-v 200000", "-s 512", "-c 0 -l 64"])
def test_under_limits_of_the_caller(caller, limits):
    """Limits that the shell set are no reason to fail for a small command."""
    done = caller.call(
        "sh",
        "-c",
        f'ulimit {limits}; exec "$@"',
        "sh",
        binaries() / "rollbox",
        "run",
        "--",
        "echo",
        "fine",
    )
    assert (done.returncode, done.stdout) == (0, b"fine\n"), done


def test_no_process_for_the_engine(caller):
    """If no process can be made, the command says so in one line."""
    if caller.uid == 0:
        pytest.skip("for an ordinary user: root's processes are not counted")
    done = caller.call("bash", "-c", 'ulimit -u 1; exec "$@"', "sh", binaries() / "rollbox", "run", "--", "true")
    assert done.returncode == 125 and done.stderr.count(b"\n") == 1 and b"engine" in done.stderr, done


def test_no_engine_is_left_by_a_bad_policy(caller):
    """The engine was started before the policy was read; it has ended when the command has."""
    policy = caller.write(caller.directory() / "policy.json", '{"no_such_key": 1}')
    process = caller.popen([binaries() / "rollbox", "run", "--policy", policy, "--", "true"], stderr=subprocess.PIPE)
    _, stderr = process.communicate()
    assert process.returncode == 125 and b"no_such_key" in stderr
    assert not marked(str(policy))


def test_batch_gets_another_engine(caller):
    """An engine that is killed under a batch is replaced by another fork, and the first one's
    groups are gone by then."""
    grant = caller.directory(0o777)
    os.mkfifo(grant / "fifo")
    os.chmod(grant / "fifo", 0o666)
    script = f"if mkdir {grant}/life; then echo up > {grant}/fifo; sleep 1000; else echo second; fi"
    job = caller.write(grant / "jobs.jsonl", '{"id": "a", "argv": ["sh", "-c", "%s"]}\n' % script)
    rows = caller.directory() / "rows.jsonl"
    command = [binaries() / "rollbox", "batch", job, "-o", rows, "--shared", grant]
    with Started(caller.popen(command, stderr=subprocess.PIPE, stdin=subprocess.PIPE, stdout=subprocess.PIPE)) as run:
        with open(grant / "fifo") as reader:
            assert reader.readline() == "up\n"
        engine = engine_of(run)
        os.kill(engine, signal.SIGKILL)
        status, _, err = run.finish()
    assert status == 0 and '"stdout":"second\\n"' in rows.read_text(), (err, rows.read_text())
    assert groups_of(engine) == []
