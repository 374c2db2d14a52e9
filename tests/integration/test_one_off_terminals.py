# SPDX-License-Identifier: Apache-2.0
"""One-off shells and runs on a terminal; leaving a command by the detach keys, and attaching to its terminal again."""

import os
import signal

from harness import DEADLINE, descendants, until
from cli_sessions import box, shared, shell, Terminal  # noqa: F401

PROMPT = ["--env", r"PS1=p\#> "]


def process(terminal, name):
    """The process of that name, of rollbox and what it has started."""
    for pid in [terminal.process.pid, *descendants(terminal.process.pid)]:
        if open(f"/proc/{pid}/comm").read().strip() == name:
            return pid
    raise AssertionError(name)


def test_shell_has_its_own_terminal(shared):
    """Job control, the size, and the shell's exit status; the caller's terminal is as it was."""
    with Terminal(shared, "shell", *PROMPT) as terminal:
        terminal.expect(rb"p\d+> |[$#] ")
        terminal.type("stty size; set -o | grep monitor; echo end-$((1+1))\r")
        terminal.expect(rb"31 117\r\n")
        terminal.expect(rb"monitor +\ton\r\n|monitor\s+on")      # job control
        terminal.expect(rb"end-2\r\n[^\x00]*(p\d+> |[$#] )")
        terminal.type("exit 23\r")
        assert terminal.process.wait(DEADLINE) == 23
        assert terminal.restored()


def test_job_control_in_a_shell_of_its_own(shared):
    """^C and ^Z reach the command in the foreground alone, and a job in the background can be killed."""
    with Terminal(shared, "shell", *PROMPT) as terminal:
        terminal.expect(rb"p\d+> |[$#] ")
        terminal.type("sleep 1000 &\r")
        terminal.type("kill %1; wait; echo killed-$((1+1))\r")
        terminal.expect(rb"killed-2\r\n")
        terminal.type("sh -c 'echo up-$((1+1)); exec sleep 1000'\r")
        terminal.expect(rb"up-2\r\n")
        terminal.type("\x03")
        terminal.type("echo status-$?\r")
        terminal.expect(rb"status-130\r\n")
        terminal.type("sh -c 'echo up-$((1+2)); exec sleep 1000'\r")
        terminal.expect(rb"up-3\r\n")
        terminal.type("\x1a")
        terminal.expect(rb"Stopped")
        terminal.type("kill %1; fg; echo after-$((1+1))\r")
        terminal.expect(rb"after-2\r\n")
        terminal.type("exit 5\r")
        assert terminal.process.wait(DEADLINE) == 5


def test_shell_without_terminal_reads_a_script(shared):
    done = shared("shell", input=b"echo one; test -t 0 || echo two\nexit 7\n")
    assert (done.stdout, done.returncode) == (b"one\ntwo\n", 7), done.stderr


def test_run_on_a_terminal(shared):
    with Terminal(shared, "run", "-it", *shell("tty; stty size; read line; echo got $line; exit 9")) as terminal:
        terminal.expect(rb"/dev/pts/\d+\r\n31 117\r\n")
        assert terminal.is_raw()
        terminal.type("word\r")
        terminal.expect(rb"got word\r\n")
        assert terminal.process.wait(DEADLINE) == 9
        assert terminal.restored()


def test_run_follows_the_size_of_the_terminal(shared):
    with Terminal(
        shared,
        "run",
        "-it",
        "--",
        "bash",
        "-c",
        "trap 'stty size' WINCH; echo ready; while :; do read -t 0.05 x; done",
    ) as terminal:
        terminal.expect(rb"ready\r\n")
        terminal.resize(40, 90)
        terminal.expect(rb"40 90\r\n")


def test_run_gives_no_terminal_to_a_pipe(shared):
    done = shared("run", "-it", "--", "cat", input=b"x")
    assert done.returncode == 125 and b"the input device is not a TTY" in done.stderr
    done = shared("run", "-i", "--", "cat", input=b"x")
    assert (done.stdout, done.returncode) == (b"x", 0)
    done = shared("run", "-t", *shell("test -t 1 && echo terminal"))
    assert (done.stdout, done.returncode) == (b"terminal\r\n", 0)


def test_terminal_is_restored_after_a_signal_or_lost_engine(shared):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGSEGV, None):
        with Terminal(shared, "run", "-it", *shell("echo ready; sleep 1000")) as terminal:
            terminal.expect(rb"ready\r\n")
            assert terminal.is_raw()
            if number is None:
                os.kill(process(terminal, "rollbox-engine"), signal.SIGKILL)
            else:
                os.kill(process(terminal, "rollbox"), number)
            assert terminal.process.wait(DEADLINE) != 0
            assert terminal.restored(), number


def test_stopped_client_returns_the_terminal_until_it_continues(shared):
    with Terminal(shared, "run", "-it", *shell("echo ready; read line; echo got $line")) as terminal:
        terminal.expect(rb"ready\r\n")
        rollbox = process(terminal, "rollbox")
        os.kill(rollbox, signal.SIGTSTP)
        until(terminal.restored)
        os.kill(rollbox, signal.SIGCONT)
        until(terminal.is_raw)
        terminal.type("word\r")
        terminal.expect(rb"got word\r\n")


def test_one_off_sandbox_cannot_be_left(shared):
    """Its keys are all the command's."""
    with Terminal(shared, "run", "-it", *shell("stty raw -echo; echo ready; head -c 3 | od -An -c")) as terminal:
        terminal.expect(rb"ready")
        terminal.type("\x10\x11")
        terminal.expect(rb"cannot detach: this sandbox ends with rollbox")
        terminal.type("x")
        terminal.expect(rb"020 +021 +x")
        assert terminal.process.wait(DEADLINE) == 0


def test_detach_and_attach_again(shared, box):
    command = shell("echo ready; while read line; do echo got $line; done; exit 5")
    with Terminal(shared, "exec", "-it", "--id", "left", box, *command) as terminal:
        terminal.expect(rb"ready\r\n")
        terminal.type("one\r")
        terminal.expect(rb"got one\r\n")
        terminal.type("\x10\x11")
        terminal.expect(rb"detached: left runs on in .*rollbox attach -it .*left")
        assert terminal.process.wait(DEADLINE) == 0
        assert terminal.restored()
    for arguments in ([box, "left"], [box]):
        with Terminal(shared, "attach", "-it", "--detach-keys", "ctrl-],q", *arguments) as terminal:
            terminal.expect(rb"got one\r\n")        # what came before is shown again
            terminal.type("\x10\x11two\r")
            terminal.expect(rb"got .*two\r\n")
            terminal.type("\x1dq")
            assert terminal.process.wait(DEADLINE) == 0
            assert terminal.restored()
    with Terminal(shared, "attach", "-it", box, "left") as terminal:
        terminal.expect(rb"ready\r\n")
        terminal.type("\x04")
        assert terminal.process.wait(DEADLINE) == 5


def test_keys_that_only_begin_the_sequence_are_the_commands(shared, box):
    with Terminal(shared, "exec", "-it", box, *shell("stty raw -echo; echo ready; head -c 4 | od -An -c")) as terminal:
        terminal.expect(rb"ready")
        terminal.type("\x10\x10a\x11")
        terminal.expect(rb"020 +020 +a +021")
        assert terminal.process.wait(DEADLINE) == 0


def test_two_clients_see_output_and_the_latest_has_the_input(shared, box):
    with Terminal(
        shared,
        "exec",
        "-it",
        "--id",
        "two",
        box,
        *shell("echo ready; while read line; do echo got $line; done"),
    ) as first:
        first.expect(rb"ready\r\n")
        with Terminal(shared, "attach", "-it", box, "two") as second:
            second.expect(rb"ready\r\n")
            second.type("word\r")
            second.expect(rb"got word\r\n")
            first.expect(rb"got word\r\n")
            first.type("x")
            first.expect(rb"takes no more keys from here")
            until(first.restored)
            second.type("again\r")
            first.expect(rb"got again\r+\n")
            second.type("\x04")
            assert second.process.wait(DEADLINE) == 0
        assert first.process.wait(DEADLINE) == 0


def test_attach_lists_ambiguous_commands(shared, box):
    done = shared("attach", box)
    assert done.returncode == 125 and b"no command runs" in done.stderr
    shared.ok("exec", "-d", "--id", "a", box, "sleep", "1000")
    shared.ok("exec", "-d", "--id", "b", box, "sleep", "1000")
    done = shared("attach", box)
    assert done.returncode == 125 and b"name one: " in done.stderr
    done = shared("attach", "-t", box, "a")
    assert done.returncode == 125 and b"a has no terminal" in done.stderr


def test_invalid_detach_keys_are_refused(shared, box):
    done = shared("exec", "--detach-keys", "ctrl-", box, "true")
    assert done.returncode == 125 and b"--detach-keys ctrl-: must be keys" in done.stderr
