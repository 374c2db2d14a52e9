# SPDX-License-Identifier: Apache-2.0
"""SIGTERM ends an engine, and a client of one, also while other processes are stopped.

The model: processes are stopped by SIGSTOP from outside, so that they answer nothing; then one is
sent SIGTERM and waited for. Each caller.
"""

import contextlib
import os
import signal
import subprocess

import pytest

from harness import caller, children, comm, until  # noqa: F401
from cli_sessions import Shared


@pytest.fixture
def engine(caller):
    directory = caller.directory()
    shared = Shared(caller, directory / "rollbox.sock", directory / "store")
    assert shared.started.returncode == 0, shared.started
    pid = shared.pid
    yield shared
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    shared("engine", "stop")


def ended(process, number=signal.SIGTERM):
    with process:
        process.terminate()
        assert process.wait(60) == -number


def started(engine, *arguments, **options):
    options.setdefault("stdout", subprocess.PIPE)
    return engine.start(*arguments, **options).process


@pytest.mark.parametrize("command", [["exec", "box"], ["run", "--engine", "SOCKET"]])
def test_client_of_a_stopped_engine_ends_on_sigterm(engine, command):
    engine.ok("create", "--name", "box")
    process = started(
        engine,
        *(str(engine.path) if word == "SOCKET" else word for word in command),
        "--",
        "sh",
        "-c",
        "echo up; exec sleep 1000",
    )
    assert process.stdout.readline() == b"up\n"
    os.kill(engine.pid, signal.SIGSTOP)
    ended(process)


@pytest.mark.parametrize("command", [["exec", "box"], ["run", "--engine", "SOCKET"], ["run"]])
def test_client_with_blocked_output_ends_on_sigterm(engine, command):
    engine.ok("create", "--name", "box")
    process = started(engine, *(str(engine.path) if word == "SOCKET" else word for word in command), "--", "yes")
    assert process.stdout.read(1) == b"y"
    ended(process)


@pytest.mark.parametrize("arguments", [["cp", "box:/tmp/large", "TO"], ["cp", "/bin/sh", "box:/tmp/sh"]])
def test_copy_with_a_stopped_sandbox_ends_on_sigterm(engine, arguments):
    engine.ok("create", "--name", "box")
    engine.ok("exec", "-c", "head -c 100000000 /dev/zero >/tmp/large", "box")
    for pid in children(engine.pid, "rollbox-launch"):
        os.kill(pid, signal.SIGSTOP)
    process = started(engine, *(engine.who.directory() / "to" if word == "TO" else word for word in arguments))
    until(lambda: b"SigCgt:\t0000000000000000" not in open(f"/proc/{process.pid}/status", "rb").read())
    ended(process)


@pytest.mark.parametrize("which", ["launch", "hold", "record", "janitor", "measure", "every"])
def test_engine_with_stopped_children_ends_on_sigterm(caller, engine, which):
    engine.ok("create", "--name", "box", "--record", caller.directory() / "trajectory")
    engine.ok("exec", "box", "--", "true")
    engine.ok("exec", "-d", "box", "--", "sleep", "1000")
    engine.ok("fork", "box")
    engine.ok("create", "--name", "stored", "--disk-at", "store")
    engine.ok("exec", "stored", "--", "true")
    client = started(engine, "exec", "box", "--", "sh", "-c", "echo up; exec sleep 1000")
    assert client.stdout.readline() == b"up\n"
    pid = engine.pid
    stopped = []
    for child in map(int, open(f"/proc/{pid}/task/{pid}/children").read().split()):
        if which == "every" or comm(child) == f"rollbox-{which}":
            with contextlib.suppress(ProcessLookupError):
                stopped.append(os.pidfd_open(child))
                os.kill(child, signal.SIGSTOP)
    try:
        os.kill(pid, signal.SIGTERM)
        until(lambda: not is_there(pid))
        with client:
            assert client.wait(60) == 125
    finally:
        for one in stopped:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(one, signal.SIGCONT)
            os.close(one)


def is_there(pid):
    """The process that adopts a background engine reaps it."""
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
