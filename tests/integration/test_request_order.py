# SPDX-License-Identifier: Apache-2.0
"""Requests to a session that arrive while another operation of it is under way, and processes killed then."""

import contextlib
import os
import signal
from pathlib import Path

import protocol
import pytest
from engines import engine, launcher_of, stopped  # noqa: F401
from harness import caller, until  # noqa: F401
from protocol import SessionClient


def test_closing_one_fork_fails_the_unfinished_request(engine):
    """The fork that is closed has a snapshot under way: the whole request fails, once, and nothing
    refers to the fork."""
    with SessionClient(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        with stopped(launcher_of(pid)):
            forks = client.verb("FORK", ("SANDBOX", name), ("NUMBER", 2))
            made = sorted({one["name"] for one in client.json(client.verb("LIST"))["sandboxes"]} - {name})
            command = client.exec(made[1], "true")
            taken = client.verb("SNAPSHOT", ("SANDBOX", made[1]))
            closed = client.verb("CLOSE", ("SANDBOX", made[1]))
            client.json(client.verb("LIST"))
        assert client.wait(forks)["type"] == protocol.FAILED
        assert client.wait(taken)["type"] == protocol.FAILED
        assert client.wait(command)["OUTCOME"] == protocol.ERROR
        assert client.json(closed) == {}
        assert client.output(name, "echo", "well") == b"well\n"
        assert len(client.json(client.verb("FORK", ("SANDBOX", name), ("NUMBER", 2)))["sandboxes"]) == 2
        assert client.json(client.verb("CLOSE", ("SANDBOX", name))) == {}


def test_requests_wait_for_an_unfinished_fork(engine):
    """Requests to a fork that is not ready yet wait for it."""
    with SessionClient(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        client.output(name, "touch", "/tmp/file")
        client.json(client.verb("SNAPSHOT", ("SANDBOX", name)))
        with stopped(launcher_of(pid)):
            forks = client.verb("FORK", ("SANDBOX", name), ("NUMBER", 2))
            made = sorted({one["name"] for one in client.json(client.verb("LIST"))["sandboxes"]} - {name})
            reset = [client.verb("RESET", ("SANDBOX", one)) for one in made]
            taken = client.verb("SNAPSHOT", ("SANDBOX", made[0]))
            client.json(client.verb("LIST"))
        assert client.json(forks)["sandboxes"] == made
        assert [client.json(serial) for serial in reset] == [{}, {}]
        client.json(taken)
        assert client.output(made[1], "ls", "/tmp/file") == b"/tmp/file\n"


def test_fork_is_answered_when_inits_are_killed(engine):
    """A fork request is answered when the inits that it waits for are killed."""
    with SessionClient(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        launcher = launcher_of(pid)
        for _ in range(20):
            forks = client.verb("FORK", ("SANDBOX", name), ("NUMBER", 4))
            client.json(client.verb("LIST"))
            for victim in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
                with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                    if victim != launcher and "janitor" not in Path(f"/proc/{victim}/comm").read_text():
                        os.kill(victim, signal.SIGKILL)
            client.wait(forks)
        assert client.output(name, "echo", "well") == b"well\n"


def test_cancelled_command_of_a_failed_set_up_has_one_answer(engine):
    """A command is cancelled while its box is made, and making the box fails then: one answer, and
    the engine serves."""
    with SessionClient(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        client.output(name, "true")
        client.json(client.verb("RESET", ("SANDBOX", name)))
        launcher = launcher_of(pid)
        with stopped(launcher):
            serials = [client.exec(name, "true") for _ in range(3)]
            client.kill(serials[1])
            client.json(client.verb("LIST"))
            os.kill(launcher, signal.SIGKILL)
        assert {client.wait(serial)["OUTCOME"] for serial in serials} == {protocol.ERROR}
        assert client.output(name, "echo", "well") == b"well\n"


def test_resume_waits_for_a_running_snapshot(engine):
    """A paused session that is resumed during a snapshot resumes when the copy is complete, not before."""
    with SessionClient(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        running = client.exec(name, "sh", "-c", "sleep 1000")
        # A shell that has just made a process waits for its execve in state D, paused or not.
        until(
            lambda: (
                [
                    (p["command"], p["state"])
                    for p in client.json(client.verb("PROCESSES", ("SANDBOX", name)))["processes"]
                ]
                == [("sh -c sleep 1000", "S"), ("sleep 1000", "S")]
            )
        )
        client.output(name, "touch", "/tmp/file")
        client.json(client.verb("PAUSE", ("SANDBOX", name)))
        states = lambda: {
            p["state"]
            for p in client.json(client.verb("PROCESSES", ("SANDBOX", name)))["processes"]
        }  # noqa: E731
        with stopped(launcher_of(pid)):
            taken = client.verb("SNAPSHOT", ("SANDBOX", name), ("DROPS", 1))
            client.json(client.verb("RESUME", ("SANDBOX", name)))
            assert states() == {"T"}
        assert client.json(taken)["live"]
        until(lambda: "T" not in states())
        client.kill(running)
        assert client.wait(running)["OUTCOME"] == protocol.ERROR


@pytest.mark.long
@pytest.mark.parametrize("when", ("running", "starting"))
def test_time_out_ends_a_command_whose_init_does_not_answer(engine, when):
    """A time-out ends a command whose init is stopped, with all processes of the session; its files stay."""
    with SessionClient(engine.path) as client:
        name = client.create(client.prepare())
        client.output(name, "touch", "/tmp/file")
        if when == "running":
            running = client.exec(name, "sh", "-c", "echo ready; sleep 1000", more=(("TIMEOUT", 5000),))
            # Its process is there before init has told of it.
            until(
                lambda: any(
                    one["state"] == "running" and one["output_bytes"]
                    for one in client.json(client.verb("INSPECT", ("SANDBOX", name)))["execs"]
                )
            )
            os.kill(client.init_of(name), signal.SIGSTOP)
            answer = client.wait(running)
            assert (answer["OUTCOME"], answer["STDOUT"]) == (protocol.TIMEOUT, b"ready\n")
        else:
            os.kill(client.init_of(name), signal.SIGSTOP)
            answer = client.wait(client.exec(name, "true"))
            assert answer["OUTCOME"] == protocol.ERROR and b"has not answered" in answer["ERROR_MESSAGE"], answer
        assert client.output(name, "ls", "/tmp") == b"file\n"
