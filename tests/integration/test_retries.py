# SPDX-License-Identifier: Apache-2.0
"""A run with the operation id of another run is not started again: it waits for that one."""

import contextlib

import protocol
from engines import engine, launcher_of, stopped, wait_running  # noqa: F401
from harness import caller, until  # noqa: F401
from protocol import SessionClient


def test_retry_gets_the_failure_of_the_first_run(engine):
    """A client that waits for another client's run receives its failure, too."""
    with protocol.Client(engine.path) as first, protocol.Client(engine.path) as second:
        plan = first.prepare()
        started = first.run(plan, "sleep", "1000", operation=b"one")
        wait_running(first, 1)
        waiting = second.run(plan, "sleep", "1000", operation=b"one")
        assert second.status()["running"] == 1
        first.kill(started)
        answers = [first.wait(started), second.wait(waiting)]
        assert [a["OUTCOME"] for a in answers] == [protocol.ERROR] * 2, answers


def test_retry_of_a_client_that_leaves_ends_with_it(engine):
    """A client that waits for its own run and disconnects leaves no reference in the run."""
    with protocol.Client(engine.path) as watcher:
        plan = watcher.prepare()
        with protocol.Client(engine.path) as leaver:
            leaver.run(plan, "sleep", "1000", operation=b"one")
            wait_running(watcher, 1)
            leaver.run(plan, "sleep", "1000", operation=b"one")
            assert leaver.status()["running"] == 1
        wait_running(watcher, 0)


def test_retry_outlives_the_first_client(engine):
    """The run of a client that disconnects belongs to the client that waits for it."""
    with protocol.Client(engine.path) as second, contextlib.ExitStack() as stack:
        first = stack.enter_context(protocol.Client(engine.path))
        plan = second.prepare()
        first.run(plan, "sh", "-c", "sleep 1; echo done", operation=b"one")
        wait_running(second, 1)
        waiting = second.run(plan, "sh", "-c", "sleep 1; echo done", operation=b"one")
        assert second.status()["running"] == 1
        stack.close()
        assert second.wait(waiting)["STDOUT"] == b"done\n"


def test_cancelled_retry_leaves_the_first_run(engine):
    """A cancelled retry is answered; the run continues for the first client."""
    with protocol.Client(engine.path) as first, protocol.Client(engine.path) as second:
        plan = first.prepare()
        started = first.run(plan, "sh", "-c", "sleep 1; echo done", operation=b"one")
        wait_running(first, 1)
        waiting = second.run(plan, "true", operation=b"one")
        second.kill(waiting)
        assert second.wait(waiting)["OUTCOME"] == protocol.ERROR
        assert first.wait(started)["STDOUT"] == b"done\n"


def test_retry_of_a_command_that_waits_outlives_the_first_client(engine):
    """A command that waits for its sandbox keeps its place when its client leaves and another one waits for it."""
    with SessionClient(engine.path) as second, contextlib.ExitStack() as stack:
        first = stack.enter_context(SessionClient(engine.path))
        pid = second.status()["pid"]
        name = second.create(second.prepare())
        with stopped(launcher_of(pid)):
            forks = second.verb("FORK", ("SANDBOX", name), ("NUMBER", 1))
            made = [one["name"] for one in second.json(second.verb("LIST"))["sandboxes"] if one["name"] != name]
            operation = [("OPERATION", b"one")]
            first.exec(made[0], "sh", "-c", "echo done", more=operation)
            first.json(first.verb("LIST"))
            waiting = second.exec(made[0], "sh", "-c", "echo done", more=operation)
            second.json(second.verb("LIST"))
            stack.close()
            until(lambda: second.status()["clients"] == 1)
        assert second.json(forks)["sandboxes"] == made
        assert second.wait(waiting)["STDOUT"] == b"done\n"
