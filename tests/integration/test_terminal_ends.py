# SPDX-License-Identifier: Apache-2.0
"""A reader of a terminal whose input has ended gets an end of file: shells and interpreters leave, and nothing hangs.

A terminal has no end of its own. The character that stands for one is lost when the reader changes
the terminal's mode as it starts."""

import json
import os
import signal

from harness import DEADLINE, caller, repeat_count  # noqa: F401
from cli_sessions import box, shared, shell, Terminal  # noqa: F401

READERS = [
    ["bash", "--norc"],
    ["python3"],
    ["cat"],
    ["sh", "-c", "cat; cat; read line; echo done"],
    ["sh", "-c", "stty raw; echo raw; head -c 1 >/dev/null; stty sane; cat"],
]

READ = """import sys
sys.path.insert(0, %r)
import json
from rollbox import Sandbox
ends = []
with Sandbox() as box:
    for argv in %r:
        for given in (b"", b"x=1\\n", b"echo unfinished"):
            for attached in (False, True):
                process = box.spawn(argv, pty=True, timeout=%d)
                if attached:
                    process = box.process(process.id)
                process.stdin.write(given)
                process.stdin.close()
                result = process.wait()
                ends.append([argv, given.decode(), attached, result.outcome, result.text[-300:]])
print(json.dumps(ends))
"""


def test_end_of_terminal_input_ends_its_reader(caller):
    for _ in range(repeat_count(2, 1)):
        done = caller.script(READ, READERS, DEADLINE)
        assert done.returncode == 0, done.stderr.decode()
        for end in json.loads(done.stdout):
            assert end[3] == "exit", end


def test_input_that_is_no_terminal_is_not_typed(shared, box):
    """The same as with docker; -t alone is a terminal without input."""
    shared.ok("exec", "-d", "-t", "--id", "typed-into", box, *shell("read line"))
    for command in (["exec", "-it", box, "bash"], ["attach", "-i", box, "typed-into"]):
        done = shared(*command, input=b"exit\n")
        assert done.returncode == 125 and b"the input device is not a TTY" in done.stderr, command


def test_killed_client_ends_no_input(shared, box):
    """Its command reads on, from the next client that attaches."""
    with Terminal(
        shared,
        "exec",
        "-it",
        "--id",
        "left",
        box,
        *shell("echo ready; while read line; do echo got $line; done; echo ended"),
    ) as terminal:
        terminal.expect(rb"ready\r\n")
        os.kill(terminal.pid, signal.SIGKILL)
        terminal.process.wait(DEADLINE)
    with Terminal(shared, "attach", "-i", box, "left") as terminal:
        terminal.expect(rb"ready\r\n")
        terminal.type("word\r")
        terminal.expect(rb"got word\r\n")
        terminal.type("\x04")
        terminal.expect(rb"ended\r\n")
