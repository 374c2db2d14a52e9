# SPDX-License-Identifier: Apache-2.0
"""rollbox logs: the output of commands that run in a sandbox or have run there, as each caller."""

import json

from harness import until
from cli_sessions import own, Shared, shared, shell  # noqa: F401


def wait_output(shared, box, id, size):
    until(lambda: shared.states(box)[id].get("output_bytes", size) >= size)


def test_logs_of_a_running_command_come_at_once(shared):
    with shared.box() as box:
        id = shared.ok("exec", "-d", box, *shell("echo one; echo two; echo bad >&2; sleep 1000"))
        wait_output(shared, box, id, 12)
        done = shared("logs", box, id)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"one\ntwo\n", b"bad\n")
        assert shared.ok("logs", box, "--tail", "1") == "two"
        assert shared.states(box)[id]["state"] == "running"


def test_logs_of_a_command_that_has_ended(shared):
    with shared.box() as box:
        id = shared.ok("exec", "-d", box, *shell("seq 5; exit 3"))
        until(lambda: shared.states(box)[id]["state"] == "ended")
        assert shared.ok("logs", box, id) == "1\n2\n3\n4\n5"
        assert shared.ok("logs", "--tail", "2", box, id) == "4\n5"


def test_logs_follow_until_the_end(shared):
    with shared.box() as box:
        id = shared.ok("exec", "-d", box, *shell("seq 3; while ! [ -e /tmp/go ]; do sleep 0.01; done; echo end"))
        wait_output(shared, box, id, 6)
        with shared.start("logs", "-f", "--tail", "1", box, id) as client:
            assert client.line() == "3"
            shared.ok("exec", box, "touch", "/tmp/go")
            assert client.line() == "end" and client.finish()[0] == 0


def test_logs_of_all_commands_have_titles(shared):
    with shared.box() as box:
        for id in ("first", "second"):
            shared.ok("exec", "--id", id, box, "echo", f"of {id}")
        assert shared.ok("logs", box) == "==> first <==\nof first\n\n==> second <==\nof second"
        done = shared("logs", "-f", box)
        assert done.returncode == 125 and b"--follow" in done.stderr


def test_logs_as_json_are_lines(shared):
    with shared.box() as box:
        shared.ok("exec", "--id", "x", box, *shell("echo out; printf '\\377' >&2"))
        rows = [json.loads(line) for line in shared.ok("logs", "--json", box).splitlines()]
        assert rows == [
            {"id": "x", "stream": "stdout", "text": "out\n"},
            {"id": "x", "stream": "stderr", "text": "\ufffd"},
        ]


def test_logs_report_dropped_output(shared):
    with shared.box() as box:
        shared("exec", "--id", "x", "--output-limit", "1000", box, "head", "-c", "5000", "/dev/zero")
        done = shared("logs", box, "x")
        assert len(done.stdout) == 1000 and b"dropped" in done.stderr


def test_logs_of_an_unknown_session(shared):
    assert b"no-such" in shared("logs", "no-such").stderr
    with shared.box() as box:
        done = shared("logs", "--json", box, "none")
        assert done.returncode == 125 and json.loads(done.stdout)["error"]["code"] == "not_found"
