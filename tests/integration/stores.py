# SPDX-License-Identifier: Apache-2.0
"""For tests of the store and of hibernated sessions: a store of the test's own, an engine that uses
it, and a sandbox there."""

import json
import os
import signal
import subprocess

import pytest

from conftest import BUILD
from harness import until
from rollbox import Engine, RollboxError, Sandbox


def boxes(store):
    """The engines' directories of private files."""
    return sorted((store / "boxes").iterdir()) if (store / "boxes").exists() else []


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLBOX_STORE", str(tmp_path / "store"))
    yield tmp_path / "store"
    until(lambda: boxes(tmp_path / "store") == [])


@pytest.fixture
def engine(store):
    with Engine() as engine:
        yield engine


@pytest.fixture
def in_box():
    """The policy of `box`: a module that wants another has a fixture of this name."""
    return None


@pytest.fixture
def box(engine, in_box):
    with Sandbox(in_box, engine=engine) as box:
        yield box


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """rollbox-store as the engine starts it, with a fault while `fault` says so."""
    program, fault = tmp_path / "store-program", tmp_path / "fault"
    program.write_text(f"#!/bin/sh\n[ -e {fault} ] && . {fault}\nexec {BUILD}/rollbox-store \"$@\"\n")
    program.chmod(0o755)
    monkeypatch.setenv("ROLLBOX_STORE_PROGRAM", str(program))
    return fault


def store_tells(command, status=0, **environment):
    done = subprocess.run(
        [BUILD / "rollbox", "store", command, "--json"],
        capture_output=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout) if status != -signal.SIGKILL else None


class Shared:
    def __init__(self, socket):
        self.socket = socket

    def __enter__(self):
        self.process = subprocess.Popen([BUILD / "rollbox-engine", "--socket", self.socket], stdin=subprocess.DEVNULL)
        self.engine = None
        until(self._connects)
        return self

    def _connects(self):
        try:
            self.engine = Engine(socket=self.socket)
            self.engine.status()
            return True
        except RollboxError:
            return False

    def end(self, signal):
        self.process.send_signal(signal)
        self.process.wait()

    def __exit__(self, *_):
        self.engine.close()
        self.end(signal.SIGTERM)

FAULTS = json.loads(
    subprocess.run(
        [BUILD / "rollbox-store", "faults", "--json"], capture_output=True, check=True
    ).stdout
)["faults"]


def asleep(store):
    return sorted(path.name for path in (store / "asleep").iterdir()) if (store / "asleep").exists() else []


def in_store(store, pattern):
    (id,) = asleep(store)
    return sorted((store / "asleep" / id).glob(pattern))
