# SPDX-License-Identifier: Apache-2.0
"""Requests of runs over the protocol: limits at their borders, malformed fields, killed launchers."""

import contextlib
import signal
import struct

import protocol
import pytest
from engines import engine  # noqa: F401
from harness import caller, children, pidfds, until, wait_gone  # noqa: F401


def test_output_limit_wins_over_exit(engine):
    """Output over the limit is output_limit, even if the command ends at that moment; output at the limit is not."""
    with protocol.Client(engine.path) as client:
        plan = client.prepare(max_output="16K")
        over = [client.run(plan, "head", "-c", "16385", "/dev/zero") for _ in range(30)]
        just = [client.run(plan, "head", "-c", "16384", "/dev/zero") for _ in range(10)]
        assert {client.wait(serial)["OUTCOME"] for serial in over} == {protocol.OUTPUT_LIMIT}
        assert {client.wait(serial)["OUTCOME"] for serial in just} == {protocol.EXIT}


def test_runs_of_killed_launchers_are_answered(engine):
    """After launchers and boxes are killed at any step, every run is answered and the next run gets
    another launcher."""
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
            wait_gone(victims)      # the engine cannot know of a launcher that is exiting
            plan = client.prepare()
            answers = [client.wait(client.run(plan, "true")) for _ in range(2)]
            assert protocol.EXIT in {answer["OUTCOME"] for answer in answers}, answers


def test_longest_timeout_is_accepted(engine):
    """The longest time limits are accepted or refused as invalid, and never expire at once."""
    with protocol.Client(engine.path) as client:
        plan = client.prepare()
        for timeout in (2**62 // 10**6, 2**63 // 10**6, 2**63 // 10**6 + 1, 2**63, 2**64 - 1):
            answer = client.wait(client.run(plan, "true", TIMEOUT=timeout))
            assert answer["OUTCOME"] == protocol.EXIT or answer["ERROR_CODE"] == 1, (timeout, answer)


def test_malformed_field_ends_only_its_connection(engine):
    """A field longer than its message ends the connection that it came on, and no other."""
    with protocol.Client(engine.path) as client, protocol.Client(engine.path) as other:
        client.socket.send(struct.pack("IIQII", protocol.PREPARE, 0, 2, protocol.TAGS["POLICY"], 100))
        with pytest.raises(EOFError):
            client.wait(2)
        assert other.status()["clients"] == 1
