# SPDX-License-Identifier: Apache-2.0
"""An engine in a group with a limit of memory, as in a container: what that limit ends says nothing
of the guest, and what it leaves is what sandboxes are admitted by."""

import contextlib
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import caller, skip, until, wait_unmarked  # noqa: F401
from rollbox import Engine, Policy, Sandbox
from engines import SharedEngine

LIMIT = 96 << 20
EATS = "x = bytearray(b'x' * (200 << 20))"
FITS = "x = bytearray(b'x' * (8 << 20))"


def own_group():
    """The directory of our group for memory, and its file for a limit."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
    return Path("/sys/fs/cgroup" + path), "memory.max"


@contextlib.contextmanager
def in_a_group():
    if os.geteuid():
        skip("only root can make a group with a limit here")
    ours, limit = own_group()
    group = ours / f"rollbox-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(LIMIT))
    except OSError as problem:
        with contextlib.suppress(OSError):
            group.rmdir()
        skip(f"no group with a limit of memory can be made here: {problem}")
    try:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield lambda: (ours / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        (ours / "cgroup.procs").write_text(str(os.getpid()))

        def gone():
            with contextlib.suppress(OSError):
                group.rmdir()
            return not group.exists()
        until(gone)


@pytest.fixture
def engine(caller):
    path = caller.directory() / "engine"
    with in_a_group() as leave:
        with SharedEngine(caller, path):
            leave()
            yield path


@pytest.fixture
def ask(caller, engine):
    return lambda what, *arguments: caller.rollbox(what, "--socket", engine, *arguments)


def test_budget_is_the_free_memory_of_the_group(caller, engine):
    status = json.loads(caller.rollbox("engine", "status", "--json", "--socket", engine).stdout)
    assert 0 < status["memory_budget_bytes"] < LIMIT


def test_run_killed_by_group_oom_is_an_error(caller, engine):
    """It is an error of the infrastructure, whether the kernel takes the command or a child of it;
    the sandbox's own limit is an outcome as ever."""
    run = ("--engine", engine, "--memory", "512M", "--")
    result = caller.run(*run, "python3", "-c", EATS)
    assert (result.outcome, result.error["code"]) == ("error", "host_out_of_memory"), result
    if caller.uid == 0:         # by the count of the sandbox's own group
        result = caller.run(*run, "sh", "-c", f'python3 -c "{EATS}"; exit 0')
        assert (result.outcome, result.error["code"]) == ("error", "host_out_of_memory"), result
    assert caller.run(*run, "python3", "-c", FITS).exit_code == 0
    assert caller.run("--engine", engine, "--memory", "32M", "--", "python3", "-c", EATS).outcome == "out_of_memory"


def test_session_command_killed_by_group_oom_is_an_error(ask):
    def run(*argv):
        return json.loads(ask("exec", "--json", "box", "--", *argv).stdout)

    assert ask("create", "--name", "box", "--memory", "512M").returncode == 0
    assert run("sh", "-c", "echo kept > /tmp/kept")["exit_code"] == 0
    for _ in range(2):
        result = run("python3", "-c", EATS)
        assert (result["outcome"], result["error"]["code"]) == ("error", "host_out_of_memory"), result
    assert run("cat", "/tmp/kept")["stdout"] == "kept\n"


def test_sandbox_at_its_limit_by_page_cache_is_not_ended(caller, engine, ask):
    """The kernel tells all groups below the one that is out of memory; one that read more files
    than its limit bears has counted hits, and has lost nobody."""
    assert ask("create", "--name", "box", "--memory", "32M").returncode == 0
    assert ask("exec", "-d", "box", "--", "sleep", "1000").returncode == 0
    assert ask("exec", "box", "--", "sh", "-c", "cat /usr/lib/*/lib*.so* > /dev/null").returncode == 0
    for _ in range(3):
        result = caller.run("--engine", engine, "--memory", "512M", "--", "python3", "-c", EATS)
        assert (result.outcome, result.error["code"]) == ("error", "host_out_of_memory"), result
    assert b"sleep 1000" in ask("ps", "box").stdout


@contextlib.contextmanager
def unseen(engine, tmp_path):
    """A guest that waits for tmp_path/go reaches the limit of its sandbox, and has freed all memory
    before its engine can look."""
    go = os.open(tmp_path / "go", os.O_WRONLY)
    os.kill(engine.pid, signal.SIGSTOP)
    try:
        os.close(go)
        wait_unmarked(str(tmp_path))
        yield
    finally:
        os.kill(engine.pid, signal.SIGCONT)


@pytest.fixture
def eater(tmp_path):
    os.mkfifo(tmp_path / "go")
    return Policy(max_memory="64M", fs_shared=[str(tmp_path)]), [
        "python3",
        "-c",
        f"open('{tmp_path}/go').read(); {EATS}",
    ]


def test_limit_reached_while_the_engine_was_stopped(tmp_path, eater):
    """The command's own, though its group has been empty since."""
    policy, argv = eater
    with Engine() as engine, ThreadPoolExecutor(1) as pool:
        if Sandbox(policy, engine=engine).run(["true"]).isolation["limits"]["memory"] == "watcher":
            skip("no cgroup here: the engine asks itself, and does not get to")
        result = pool.submit(Sandbox(policy, engine=engine).run, argv)
        with unseen(engine, tmp_path):
            pass
        assert result.result().outcome == "out_of_memory", result.result()


def test_other_commands_of_the_session_end_too(tmp_path, eater):
    policy, argv = eater
    with Engine() as engine, Sandbox(policy, engine=engine) as box:
        if box.run(["true"]).isolation["limits"]["memory"] == "watcher":
            skip("no cgroup here: the engine asks itself, and does not get to")
        beside, eats = box.spawn(["sleep", "1000"]), box.spawn(argv)
        with unseen(engine, tmp_path):
            pass
        assert [process.wait().outcome for process in (eats, beside)] == ["out_of_memory"] * 2
        assert box.run(["true"]).exit_code == 0
