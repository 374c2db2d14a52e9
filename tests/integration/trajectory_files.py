# SPDX-License-Identifier: Apache-2.0
"""Trajectories for tests: reading and comparing them, a shared engine for a caller, and its recorder process.
"""
import contextlib
import json
import pathlib
import time

from harness import DEADLINE, descendants
from rollbox import Trajectory


def read(path):
    with Trajectory.open(path) as trajectory:
        return trajectory.header, trajectory.steps(), trajectory


@contextlib.contextmanager
def shared_engine(who):
    path = who.directory() / "rollbox.sock"
    env = who.environment(ROLLBOX_SOCKET=str(path))

    def call(*arguments, status=0, **options):
        done = who.rollbox(*arguments, env=env, **options)
        assert done.returncode == status, done
        return done.stdout.decode().rstrip("\n")

    call("engine", "start", "--background")
    call.pid = json.loads(call("engine", "status"))["pid"]
    call.env = env
    try:
        yield call
    finally:
        who.rollbox("engine", "stop", env=env)


def verdict(who, *arguments, status):
    done = who.rollbox("verify", "--json", *arguments)
    assert done.returncode == status, done
    return json.loads(done.stdout)


def recorder_of(engine):
    """The process id of an engine's recorder, once it has its name."""
    deadline = time.monotonic() + DEADLINE
    while True:
        for pid in descendants(engine):
            with contextlib.suppress(OSError):
                if pathlib.Path(f"/proc/{pid}/comm").read_text() == "rollbox-record\n":
                    return pid
        assert time.monotonic() < deadline, "the engine has no recorder"
