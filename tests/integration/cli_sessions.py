# SPDX-License-Identifier: Apache-2.0
"""Sessions on the command line: `shared`, an engine for each caller and test file; `own`, an engine
and a store for one test; `box`, a
session of `shared`; `Terminal`, a command on a terminal of the test's own.
"""
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

import pytest
from harness import DEADLINE, Started, binaries, callers, descendants, until


class Shared:
    """A shared engine of one caller."""

    def __init__(self, who, path, store=None):
        self.who, self.path = who, path
        self.store = {"ROLLBOX_STORE": str(store)} if store else {}
        self.started = self("engine", "start", "--background")

    def environment(self, **more):
        return self.who.environment(ROLLBOX_SOCKET=str(self.path), **{**self.store, **more})

    def __call__(self, *arguments, **options):
        """A command to its end: a CompletedProcess of bytes."""
        return self.who.rollbox(*arguments, env=self.environment(), **options)

    def ok(self, *arguments, **options):
        """What a command that must succeed printed, without the last newline."""
        done = self(*arguments, **options)
        assert done.returncode == 0, done
        return done.stdout.decode().rstrip("\n")

    def json(self, *arguments):
        return json.loads(self.ok(*arguments))

    def start(self, *arguments, **options):
        for stream in ("stdin", "stdout", "stderr"):
            options.setdefault(stream, subprocess.PIPE)
        return Started(self.who.popen([binaries() / "rollbox", *arguments], env=self.environment(), **options))

    @property
    def pid(self):
        return self.json("engine", "status")["pid"]

    @contextlib.contextmanager
    def box(self, *flags):
        name = self.ok("create", *flags)
        try:
            yield name
        finally:
            self("rm", name)

    def states(self, name):
        """The commands of a sandbox, by id."""
        return {row["id"]: row for row in self.json("inspect", name)["execs"]}


@pytest.fixture(params=callers(), ids=repr, scope="module")
def shared(request):
    who = request.param
    engine = Shared(who, who.directory() / "rollbox.sock")
    assert engine.started.returncode == 0, engine.started
    yield engine
    engine("engine", "stop")


@pytest.fixture
def own(shared):
    """An engine and a store for one test: the caller's own has sessions that other tests hibernate at the same time."""
    directory = shared.who.directory()
    engine = Shared(shared.who, directory / "rollbox.sock", directory / "store")
    assert engine.started.returncode == 0, engine.started
    yield engine
    engine("engine", "stop")


@pytest.fixture
def box(shared):
    with shared.box() as name:
        yield name


def shell(text):
    return ["--", "sh", "-c", text]


class Terminal:
    """A command on a terminal of its own, whose other side we hold."""

    def __init__(self, shared, *arguments, rows=31, columns=117):
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        command = ["setsid", "-c", "-w", binaries() / "rollbox", *arguments]
        self.process = shared.who.popen(
            command,
            env=shared.environment(TERM="xterm"),
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=False,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    @property
    def pid(self):
        """The command's own, behind setsid's."""
        return descendants(self.process.pid)[-1]

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def expect(self, pattern):
        """Reads until the pattern has come."""
        end = time.monotonic() + DEADLINE
        while not (found := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self.master], [], [], max(0.0, end - time.monotonic()))
            assert ready, self.seen
            self.seen += os.read(self.master, 65536)
        self.seen = self.seen[found.end() :]
        return found

    def type(self, text):
        os.write(self.master, text.encode())

    def is_raw(self):
        return not termios.tcgetattr(self.slave)[3] & termios.ICANON

    def restored(self):
        return termios.tcgetattr(self.slave) == self.before

TREE = "sleep 1000 | cat & exec 7>/tmp/held; echo up; wait"


def started(engine, box, *argv):
    """A command that runs, by its id, once it has said that it does."""
    id = engine.ok("exec", "-d", box, *(argv or shell(TREE)))
    with engine.start("attach", box, id) as client:
        assert client.line() == "up"
    if not argv:  # the others have executed what they are, too
        until(
            lambda: (
                {"cat", "sleep"}
                <= {
                    row["command"].split()[0]
                    for row in engine.json("ps", "--json", box)["processes"]
                }
            )
        )
    return id
