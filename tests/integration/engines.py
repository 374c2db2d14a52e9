# SPDX-License-Identifier: Apache-2.0
"""Shared engines for tests, and the means to stop, starve or find their processes."""

import contextlib
import os
import resource
import signal
import subprocess
import threading

import pytest
from harness import DEADLINE, binaries, children, limited, skip, until


class SharedEngine:
    """An engine on the socket `path` that `who`, a Caller, has started. Usable as a context."""

    def __init__(self, who, path):
        self.who, self.path = who, path
        self.process = who.popen([binaries() / "rollbox", "engine", "start", "--socket", path], stderr=subprocess.PIPE)
        end = threading.Event()
        # It has no way to say that it listens but the socket itself: ask until it answers or ends.
        for _ in range(600):
            if who.rollbox("engine", "status", "--socket", path).returncode == 0 or self.process.poll() is not None:
                return
            end.wait(0.02)
        pytest.fail("the engine does not listen")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.process.stderr.close()


@pytest.fixture
def engine(caller):
    """A SharedEngine of the caller's, which must still run when the test has ended."""
    with SharedEngine(caller, caller.directory() / "engine") as shared:
        yield shared
        assert shared.process.poll() is None


def wait_running(client, n):
    """Waits until the engine runs `n` commands."""
    until(lambda: client.status()["running"] == n)


@contextlib.contextmanager
def stopped(pid):
    """Stops a process by SIGSTOP for the length of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def no_more_files(pid):
    """The process gets no new descriptor within the block."""
    return limited(pid, resource.RLIMIT_NOFILE, 4)


def skip_if_other_user(caller):
    """Only the limits of a process of the same user can be changed."""
    if caller.uid != os.geteuid():
        skip("the limits of another user's engine are not ours to change")


def launcher_of(pid):
    """The engine's oldest child of that name: boxes have the launcher's name at first."""
    return until(lambda: children(pid, "rollbox-launch"))[0]
