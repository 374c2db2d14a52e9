# SPDX-License-Identifier: Apache-2.0
"""Hundreds to thousands of queued requests that end at once are answered one after the other."""

import os
import signal

import protocol
from engines import engine, no_more_files, skip_if_other_user, stopped  # noqa: F401
from harness import caller  # noqa: F401
from protocol import SessionClient

MANY = 12000


def test_thousands_of_resets_that_end_at_once(engine):
    """Resets that waited for a slow operation are answered in turn, not recursively."""
    with SessionClient(engine.path) as client:
        name = client.create(client.prepare())
        with stopped(client.init_of(name)):
            command = client.exec(name, "true")
            # Of the files alone: where the command runs yet, each reset would bring it back.
            snapshot = client.verb("SNAPSHOT", ("SANDBOX", name), ("DROPS", 1))
            serials = [client.verb("RESET", ("SANDBOX", name)) for _ in range(MANY)]
            client.json(client.verb("LIST"))
        assert client.wait(command)["type"] == protocol.RESULT
        assert client.wait(snapshot)["type"] == protocol.TEXT
        assert {client.wait(serial)["type"] for serial in serials} == {protocol.TEXT}
        assert client.output(name, "echo", "well") == b"well\n"


def test_thousands_of_commands_fail_without_descriptors(caller, engine):
    """The commands fail in turn, and the session works when the engine has descriptors again."""
    skip_if_other_user(caller)
    with SessionClient(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        client.output(name, "touch", "/tmp/file")
        init = client.init_of(name)
        with stopped(init), no_more_files(pid):
            taken = client.verb("SNAPSHOT", ("SANDBOX", name))
            serials = [client.exec(name, "true") for _ in range(MANY)]
            client.json(client.verb("LIST"))
            os.kill(init, signal.SIGKILL)
            assert client.wait(taken)["type"] == protocol.TEXT
            assert {client.wait(serial)["ERROR_CODE"] for serial in serials} == {protocol.EXHAUSTED}
        assert client.output(name, "echo", "well") == b"well\n"


def test_waiting_commands_outlive_a_killed_init(engine):
    """Commands that init has not received run in the next box; no command runs that was reported as failed."""
    with SessionClient(engine.path) as client:
        name = client.create(client.prepare())
        init = client.init_of(name)
        with stopped(init):
            serials = [client.exec(name, "sh", "-c", "echo >>/tmp/done") for _ in range(600)]
            client.json(client.verb("LIST"))
            os.kill(init, signal.SIGKILL)
        outcomes = [client.wait(serial)["OUTCOME"] for serial in serials]
        assert set(outcomes) == {protocol.EXIT, protocol.ERROR}, "some were sent, others waited"
        assert int(client.output(name, "grep", "-c", "", "/tmp/done")) == outcomes.count(protocol.EXIT)
