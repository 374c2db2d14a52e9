# SPDX-License-Identifier: Apache-2.0
"""Attempts of hostile guests: `refused` and `holds` judge their results, `TRY` is the beginning of
a guest that tries several things."""
import contextlib
import os
import signal

import pytest

ESCAPED = signal.SIGSYS  # death by the filter: refused, too


def holds(result):
    """A probe's attempts were all refused."""
    assert result.outcome in ("exit", "signal"), result.told
    if result.outcome == "signal":
        assert result.signal == ESCAPED, result.told
    else:
        assert result.exit_code == 0, result.stdout + result.stderr


def process_isolation():
    """The isolation level as flags; skips where what it consists of is masked."""
    if "landlock" in os.environ.get("ROLLBOX_KFEAT", ""):
        pytest.skip("isolation process is Landlock, which is masked")
    return ["--isolation", "process"]


def refused(result):
    """A Python guest that reports each attempt that worked as a line."""
    assert result.outcome == "exit" and result.exit_code == 0, result.told
    assert result.stdout == "", result.stdout

TRY = (
    "def attempt(what, *a, **k):\n    try:\n        got = what(*a, **k)\n    except (OSError, ValueError):\n        return None\n  "
    "  return got\n"
)


@contextlib.contextmanager
def fifo_in_grant(who):
    """A shared grant with a FIFO, opened for reading by the test: its end tells that no guest process is left."""
    grant = who.directory(0o777)
    path = grant / "fifo"
    os.mkfifo(path)
    who.own(path)
    os.chmod(path, 0o666)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(fd, True)
    try:
        yield grant, path, fd
    finally:
        os.close(fd)


def isolation_flags(level):
    return process_isolation() if level == "process" else []
