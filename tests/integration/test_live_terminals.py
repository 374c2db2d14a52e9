# SPDX-License-Identifier: Apache-2.0
"""Terminals in checkpoints: those of commands, whose masters are the engine's, and what a guest does with its own.

The model: what is typed into a copy of a command's terminal, and what that shows, says whether it
is the terminal that it was. What programs do between two ends that are both theirs is in the corpus
(live_corpus.py).
make check runs this file as root and as an ordinary user.
"""

import time

import pytest
from harness import DEADLINE

from rollbox import Outcome, ResourceExhausted, Sandbox
from asked import Typed


PYTHON = ["python3", "-I", "-S", "-u", "-c"]


def await_cat(box):
    """Until the shell has given it the terminal, and its modes: what is typed before is not typed to it."""
    shell = box.processes()[0]["pid"]
    while (
        b"cat"
        not in box.exec(
            [
                "sh",
                "-c",
                f"read -r _ _ _ _ _ _ _ group _ < /proc/{shell}/stat; cat /proc/$group/comm",
            ]
        ).stdout
    ):
        time.sleep(0.005)


def test_terminal_shell_resumes_in_a_fork():
    with Sandbox() as box:
        shell = Typed.begin(box)
        shell("x=5\n")
        with box.fork(1)[0] as kid:
            copy = shell.of(kid)
            assert b"5 31 117\r\n" in copy("echo $x $(stty size < /dev/tty)\n")
            assert b"/dev/pts/0\r\n" in copy("tty; x=6\n") and b"0\r\n" in copy("test -t 0 && test -t 1; echo $?\n")
            with kid.fork(1)[0] as grandkid:
                again = copy.of(grandkid)
                assert b"6\r\n" in again("echo $x\n")
                again.process.resize(40, 90)
                again("stty size\n", b"40 90\r\n")
                again.process.stdin.write(b"exit 7\n")
                again.process.stdin.flush()
                assert again.process.wait(DEADLINE).exit_code == 7
            assert b"31 117\r\n" in copy("stty size\n")
        assert b"5\r\n" in shell("echo $x\n")


def test_job_control_continues_in_a_fork():
    with Sandbox() as box:
        shell = Typed.begin(box)
        shell("cat\n", b"cat\r\n")
        await_cat(box)
        shell("begun\n", b"begun\r\nbegun\r\n")
        with box.fork(1)[0] as kid:
            copy = shell.of(kid)
            copy("in the copy\n", b"in the copy\r\nin the copy\r\n")
            assert b"Stopped" in copy("\x1a") and b"Stopped" in copy("jobs\n")
            copy("fg\n", b"cat\r\n")
            await_cat(kid)
            copy("more\n", b"more\r\nmore\r\n")
            assert b"130\r\n" in copy("\x03") + copy("echo $?\n")
        shell("here\n", b"here\r\nhere\r\n")


def test_terminal_settings_are_kept_in_a_fork():
    with Sandbox() as box:
        shell = Typed.begin(box, size=(5, 6))
        shell("stty -echo intr ^G susp ^H; trap 'echo interrupted' INT; echo set\n", b"set\r\n")
        before = shell("stty -a | grep -v '^$'; echo en''d\n", b"end\r\n").partition(b"speed")
        with box.fork(1)[0] as kid:
            copy = shell.of(kid)
            assert (
                copy("stty -a | grep -v '^$'; echo en''d\n", b"end\r\n").partition(b"speed")[2]
                == before[2]
                and b"intr = ^G" in before[2]
                and b"rows 5" in before[2]
            )
            copy("sleep 1000\n", b"\n")
            while b"sleep" not in kid.exec(["sh", "-c", "cat /proc/[0-9]*/comm"]).stdout:
                time.sleep(0.005)
            copy("\x07")


def test_terminal_survives_reset_and_hibernation():
    with Sandbox() as box:
        shell = Typed.begin(box)
        shell("n=1\n")
        at = box.snapshot()
        for i in range(3):
            shell(f"n={i + 5}\n")
            box.reset(at)
            shell = shell.of(box)
            assert b"1\r\n" in shell("echo $n\n")
        shell("n=9\n")
        box.hibernate()
        box.wake()
        shell = shell.of(box)
        assert b"9 31 117\r\n" in shell("echo $n $(stty size)\n")


def test_terminal_is_shown_and_verified():
    with Sandbox() as box:
        shell = Typed.begin(box)
        at = box.snapshot()
        held = box.show(at)
        assert held["processes"][0]["descriptors"]["terminal"] >= 3, held["processes"]
        found = box.verify(at)
        assert found["sound"], found["checks"]
        assert b"p> " in shell("true\n")


def test_background_process_of_a_terminal_command_is_restored():
    """The leader of its session has ended, and in a copy of a copy nobody reads its terminal any more."""
    with Sandbox() as box:
        shell = Typed.begin(box, ["bash", "-c", "trap '' HUP; (while :; do sleep 0.01; echo more; done) & echo left"])
        result = shell.process.wait(DEADLINE)
        assert result.outcome is Outcome.EXIT and b"left" in result.stdout
        with box.fork(2)[0] as kid:
            assert any("bash" in row["command"] for row in kid.processes())
            with kid.fork(1)[0] as grandkid:
                assert any("bash" in row["command"] for row in grandkid.processes())
            other = Typed.begin(kid)
            assert b"p> " in other("tty\n")


def test_output_that_is_under_way_is_the_origins():
    with Sandbox() as box:
        one = Typed.begin(box, ["sh", "-c", "echo before; n=0; while read line; do n=$((n + 1)); echo $n; done"])
        one.shows(b"before\r\n")
        with box.fork(1)[0] as kid:
            copy = one.of(kid)
            assert copy("x\n", b"1\r\n") == b"x\r\n1\r\n"


STOPPED = """
import os, sys, termios, fcntl, struct, select
master, slave = os.openpty()
{}
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


@pytest.mark.parametrize(
    "before, why, after",
    [
        (
            "os.write(master, b'\\x13'); os.write(master, b'x\\n'); select.select([slave], [], [], 20)",
            "stopped by",
            "os.write(master, b'\\x11')",
        ),
        (
            "fcntl.ioctl(master, 0x5420, struct.pack('i', 1)); termios.tcflush(slave, termios.TCIFLUSH)",
            "status change",
            "os.read(master, 100)",
        ),
    ],
)
def test_refused_terminal_states_are_named(before, why, after):
    with Sandbox() as box:
        process = box.spawn([*PYTHON, STOPPED.format(before)])
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(ResourceExhausted, match=f"/dev/pts/0.*{why}"):
            box.snapshot()
        process.stdin.write(after.encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"done\n"
        box.snapshot()


@pytest.mark.parametrize(
    "state, check",
    [
        (
            "fcntl.ioctl(master, 0x540c, 0)",
            "fcntl.ioctl(master, 0x80045440, bytes(4)) == struct.pack('i', 1)",
        ),
        (
            "fcntl.ioctl(master, 0x40045431, struct.pack('i', 1))",
            "fcntl.ioctl(master, 0x80045439, bytes(4)) == struct.pack('i', 1)",
        ),
        (
            "os.close(slave); slave = os.open('/dev/pts/ptmx', os.O_RDWR | os.O_NOCTTY)",
            "select.select([slave], [], [], 0)[0] == [] and select.select([master], [], [], 0)[0] == [master]",
        ),
        (
            "slaves = [os.openpty() for _ in range(63)]",
            "os.ttyname(slaves[-1][1]) == '/dev/pts/63'",
        ),
        (
            "slaves = [os.openpty() for _ in range(63)]; [os.close(fd) for pair in slaves[:-1] for fd in pair]",
            "os.ttyname(slaves[-1][1]) == '/dev/pts/63'",
        ),
    ],
)
def test_odd_terminal_states_are_kept_in_a_fork(state, check):
    with Sandbox() as box:
        process = box.spawn([*PYTHON, STOPPED.format(state)])
        said = process.stdout.readline()
        assert said == b"ready\n", process.wait(DEADLINE).stderr
        with box.fork(1)[0] as kid:
            for one in (kid.process(process.id), process):
                one.stdin.write(f"assert {check}\n".encode())
                one.stdin.flush()
                said = one.stdout.readline()
                assert said == b"done\n", one.wait(DEADLINE).stderr
