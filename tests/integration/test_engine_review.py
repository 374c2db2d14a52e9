# SPDX-License-Identifier: Apache-2.0
"""The engine under clients and events that are not as they should be: retries of what fails, processes killed from outside, too few descriptors."""

import contextlib
import os
import signal
import struct

import protocol
import pytest
from harness import caller, children, pidfds, until, wait_gone  # noqa: F401
from test_bad_input import SharedEngine


@pytest.fixture
def engine(caller):
    path = caller.directory() / "engine"
    with SharedEngine(caller, path) as shared:
        yield shared


def running(client, n):
    until(lambda: client.status()["running"] == n)


def test_retry_of_a_run_that_fails(engine):
    """Whoever waits for another's run hears of its failure, too."""
    with protocol.Client(engine.path) as first, protocol.Client(engine.path) as second:
        plan = first.prepare()
        started = first.run(plan, "sleep", "1000", operation=b"one")
        running(first, 1)
        waiting = second.run(plan, "sleep", "1000", operation=b"one")
        assert second.status()["running"] == 1
        first.kill(started)
        answers = [first.wait(started), second.wait(waiting)]
        assert [a["OUTCOME"] for a in answers] == [protocol.ERROR] * 2, answers


def test_retry_of_a_client_that_leaves(engine):
    """A client that waits for its own run and goes leaves nothing of itself in the run."""
    with protocol.Client(engine.path) as watcher:
        plan = watcher.prepare()
        with protocol.Client(engine.path) as leaver:
            leaver.run(plan, "sleep", "1000", operation=b"one")
            running(watcher, 1)
            leaver.run(plan, "sleep", "1000", operation=b"one")
            assert leaver.status()["running"] == 1
        running(watcher, 0)


def test_retry_outlives_the_first_client(engine):
    """The run of a client that goes belongs to whoever waits for it."""
    with protocol.Client(engine.path) as second, contextlib.ExitStack() as stack:
        first = stack.enter_context(protocol.Client(engine.path))
        plan = second.prepare()
        first.run(plan, "sh", "-c", "sleep 1; echo done", operation=b"one")
        running(second, 1)
        waiting = second.run(plan, "sh", "-c", "echo again", operation=b"one")
        assert second.status()["running"] == 1
        stack.close()
        assert second.wait(waiting)["STDOUT"] == b"done\n"


def test_cancelled_retry(engine):
    """A retry that is cancelled is answered; the run goes on for the one who began it."""
    with protocol.Client(engine.path) as first, protocol.Client(engine.path) as second:
        plan = first.prepare()
        started = first.run(plan, "sh", "-c", "sleep 1; echo done", operation=b"one")
        running(first, 1)
        waiting = second.run(plan, "true", operation=b"one")
        second.kill(waiting)
        assert second.wait(waiting)["OUTCOME"] == protocol.ERROR
        assert first.wait(started)["STDOUT"] == b"done\n"


def test_output_limit_and_exit_at_once(engine):
    """More output than is kept is output_limit, also when the command ends in the same moment; just as much as is kept is none."""
    with protocol.Client(engine.path) as client:
        plan = client.prepare(max_output="16K")
        over = [client.run(plan, "head", "-c", "16385", "/dev/zero") for _ in range(30)]
        just = [client.run(plan, "head", "-c", "16384", "/dev/zero") for _ in range(10)]
        assert {client.wait(serial)["OUTCOME"] for serial in over} == {protocol.OUTPUT_LIMIT}
        assert {client.wait(serial)["OUTCOME"] for serial in just} == {protocol.EXIT}


def test_killed_launchers(engine):
    """After launchers and sandboxes are killed from outside, whatever they were at, every run is answered and the next one finds another launcher."""
    with protocol.Client(engine.path) as client:
        pid = client.status()["pid"]
        plan = None
        for _ in range(3):
            until(lambda: children(pid, "rollbox-launch"))
            started = [client.run(plan, "sleep", "1000") for _ in range(4)] if plan else []
            victims = pidfds(children(pid, "rollbox-launch"))
            for victim in victims.values():
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(victim, signal.SIGKILL)
            for serial in started:
                client.kill(serial)
            assert {client.wait(serial)["OUTCOME"] for serial in started} <= {protocol.ERROR}
            wait_gone(victims)      # nobody could know of one that is on its way out
            plan = client.prepare()
            answers = [client.wait(client.run(plan, "true")) for _ in range(2)]
            assert protocol.EXIT in {answer["OUTCOME"] for answer in answers}, answers


def test_longest_timeout(engine):
    """The longest time limit that can be said is long."""
    with protocol.Client(engine.path) as client:
        plan = client.prepare()
        for timeout in (2**62 // 10**6, 2**63 // 10**6, 2**63 // 10**6 + 1, 2**63, 2**64 - 1):
            answer = client.wait(client.run(plan, "true", TIMEOUT=timeout))
            assert answer["OUTCOME"] == protocol.EXIT or answer["ERROR_CODE"] == 1, (timeout, answer)


def test_malformed_field_ends_the_connection(engine):
    """A field longer than its message ends the connection that it came on, and no other."""
    with protocol.Client(engine.path) as client, protocol.Client(engine.path) as other:
        client.socket.send(struct.pack("IIQII", protocol.PREPARE, 0, 2, protocol.TAGS["POLICY"], 100))
        with pytest.raises(EOFError):
            client.wait(2)
        assert other.status()["clients"] == 1
