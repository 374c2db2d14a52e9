# SPDX-License-Identifier: Apache-2.0
"""Sessions of an engine that is short of descriptors: the call fails with that reason, the session stays."""

import os
import resource
import signal

import protocol
from engines import engine, launcher_of, no_more_files, skip_if_other_user, stopped  # noqa: F401
from harness import caller, until  # noqa: F401
from protocol import SessionClient


def test_each_step_without_a_descriptor_keeps_the_files(caller, engine):
    """The engine runs out of descriptors at each step of making a box, starting a command or comparing files.

    Each request is answered, a failed one with that reason, and the snapshot is there afterwards.
    """
    skip_if_other_user(caller)
    with SessionClient(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        for room in range(1, 27):
            client.output(name, "sh", "-c", "echo kept >/tmp/kept")
            client.json(client.verb("SNAPSHOT", ("SANDBOX", name)))
            client.output(name, "touch", "/tmp/file")
            init = client.init_of(name)
            with stopped(init):
                resource.prlimit(
                    pid,
                    resource.RLIMIT_NOFILE,
                    (max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 1 + room, before[1]),
                )
                operations = [client.verb(verb, ("SANDBOX", name)) for verb in ("SNAPSHOT", "DIFF")]
                commands = [client.exec(name, "true") for _ in range(3)]
                client.json(client.verb("LIST"))
                os.kill(init, signal.SIGKILL)
            answers = [client.wait(serial) for serial in operations + commands]
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            assert {answer["ERROR_CODE"] for answer in answers if "ERROR_CODE" in answer} <= {
                protocol.EXHAUSTED
            }, (room, answers)
            assert client.output(name, "cat", "/tmp/kept") == b"kept\n"


def test_terminal_without_a_descriptor_fails_its_command(caller, engine):
    """A terminal for which the engine has no descriptor left fails its command; the session keeps
    its files and its init."""
    skip_if_other_user(caller)
    with SessionClient(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        client.output(name, "sh", "-c", "echo kept >/tmp/file")
        init = client.init_of(name)
        with no_more_files(pid):
            answer = client.wait(client.exec(name, "true", more=[("TERMINAL", 24 << 16 | 80)]))
        assert answer["OUTCOME"] == protocol.ERROR and answer["ERROR_CODE"] == protocol.EXHAUSTED, answer
        assert client.output(name, "cat", "/tmp/file") == b"kept\n"
        assert client.init_of(name) == init


def test_snapshot_without_a_descriptor_fails_alone(caller, engine):
    """A snapshot for whose copy or image the engine has no descriptor left fails; processes and launcher stay."""
    skip_if_other_user(caller)
    with SessionClient(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        running = client.exec(name, "sh", "-c", "echo $$ >/tmp/pid; sleep 1000")
        until(lambda: client.output(name, "sh", "-c", "cat /tmp/pid 2>/dev/null; true"))
        launcher = launcher_of(pid)
        with stopped(launcher):
            with no_more_files(pid):
                answer = client.wait(client.verb("SNAPSHOT", ("SANDBOX", name)))
            assert answer["type"] == protocol.FAILED and answer["ERROR_CODE"] == protocol.EXHAUSTED, answer
            taken = client.verb("SNAPSHOT", ("SANDBOX", name), ("DROPS", 1))
            until(
                lambda: (
                    "T"
                    in {
                        p["state"]
                        for p in client.json(client.verb("PROCESSES", ("SANDBOX", name)))[
                            "processes"
                        ]
                    }
                )
            )
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            client.json(client.verb("LIST"))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (4, before[1]))
        try:
            answer = client.wait(taken)
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        assert answer["type"] == protocol.FAILED and answer["ERROR_CODE"] == protocol.EXHAUSTED, answer
        assert launcher_of(pid) == launcher
        assert client.json(client.verb("SNAPSHOT", ("SANDBOX", name)))["processes"] >= 1
        client.kill(running)
        assert client.wait(running)["OUTCOME"] == protocol.ERROR
