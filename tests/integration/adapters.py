# SPDX-License-Identifier: Apache-2.0
"""What the tests of adapters share: an engine of their own to lose, and a server."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from harness import BUILD, DEADLINE, serves

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/integrations"


def needs(package, why):
    """Skips the test where a framework is not installed."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: {why}")


@contextlib.contextmanager
def own_engine():
    """(socket, kill): a shared engine, and a function that kills it."""
    with tempfile.TemporaryDirectory() as directory:
        socket = f"{directory}/engine"
        process = subprocess.Popen([str(BUILD / "rollbox-engine"), "--socket", socket])

        def kill():
            process.send_signal(signal.SIGKILL)
            process.wait(DEADLINE)

        try:
            while not serves(socket):
                assert process.poll() is None
            yield socket, kill
        finally:
            process.terminate()
            process.wait(DEADLINE)


@contextlib.contextmanager
def own_server(*options):
    """The address of a server on a Unix socket, with options of `rollbox serve`."""
    if not (BUILD / "rollbox-serve").exists():
        pytest.skip("needs llhttp: rollbox-serve is built where node-llhttp and libwslay-dev are")
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(
            [BUILD / "rollbox", "serve", "--listen", f"{directory}/serve", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        try:
            while process.stdout.readline() not in (b"ready\n", b""):
                pass
            yield f"unix:{directory}/serve"
        finally:
            process.terminate()
            process.wait(DEADLINE)
            process.stdout.close()


def example(name, *arguments):
    """Runs an example: its output."""
    done = subprocess.run(
        [sys.executable, "-B", EXAMPLES / name, *arguments],
        capture_output=True,
        text=True,
        env={
            "RAY_raylet_start_wait_time_s": "300",  # on a loaded machine
            **{key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"},
        },
        timeout=3 * DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
