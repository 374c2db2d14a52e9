# SPDX-License-Identifier: Apache-2.0
"""Kills a process of an engine between two of its system calls (guests/killer.c), and shows whether
the processes of a sandbox are frozen."""
import contextlib
import subprocess
from pathlib import Path

import pytest
from harness import descendants, guest, skip


class Killer:
    """Of the next child of `pid` with that name, or ("-") of itself; `said` is its last line once the block is left."""

    def __init__(self, pid, name, step):
        self.process = subprocess.Popen(
            [guest("killer"), str(pid), name, str(step)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self.process.stdout.readline() != "ready\n":
            why = self.process.communicate()[1]
            if "Operation not permitted" in why:
                skip(f"what rollbox starts is not this caller's to trace: {why.strip()}")
            pytest.fail(why)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.said = self.process.stdout.read().strip()  # communicate() knows nothing of what came with the first line
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


def frozen(pid):
    """Processes of a sandbox that are stopped or traced."""
    found = {}
    for one in descendants(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{one}/status").read_text(errors="replace")
            if "\nState:\tT" in status or "\nState:\tt" in status or "\nTracerPid:\t0\n" not in status:
                found[one] = status.split("\n", 1)[0]
    return found
