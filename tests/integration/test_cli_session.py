# SPDX-License-Identifier: Apache-2.0
"""Sessions on the command line: create, exec, attach, ps, kill, rm and related commands on a shared
engine, as each caller.

The model: one engine a caller for the whole file, started by `engine start --background` as a user
would; a test makes the sandboxes it needs and
removes them. What must not be disturbed by others (a killed engine) has an engine of its own.
Ordering is by handshakes over the command's own streams.
"""

import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest

from harness import DEADLINE, binaries, descendants, pidfds, processes, until, wait_gone, wait_unmarked
from cli_sessions import box, own, shared, shell, Terminal  # noqa: F401


# ---- the engine
# --------------------------------------------------------------------------------------------------------


def test_engine_in_the_background(own):
    """It answers when the command returns, is no child of anybody's, and holds nothing of its caller but its socket."""
    assert re.fullmatch(rf"engine {own.pid} serves {own.path}\n", own.started.stdout.decode())
    assert own.started.stderr == b""
    stat = open(f"/proc/{own.pid}/stat").read().rpartition(")")[2].split()
    assert int(stat[3]) == own.pid, "it leads a session of its own"
    assert os.readlink(f"/proc/{own.pid}/cwd") == "/"
    second = own("engine", "start", "--background")
    assert second.returncode == 125 and str(own.path).encode() in second.stderr
    assert own("ps").returncode == 0
    assert own("engine", "stop").returncode == 0
    assert not own.path.exists()


def test_ignored_signals_are_not_inherited_by_guests(own):
    """A background job of a shell ignores SIGINT and SIGQUIT, what nohup starts SIGHUP, a service
    of systemd SIGPIPE: Ctrl-C and a closed pipe would end nothing in a sandbox. To the engine
    itself they mean what they did."""

    def ignore():
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGCHLD, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        # One that the C library keeps for itself, by the call itself.
        assert ctypes.CDLL(None).syscall(13, 32, (ctypes.c_long * 4)(1, 0, 0, 0), None, 8) == 0

    own.ok("engine", "stop")
    own.ok("engine", "start", "--background", preexec_fn=ignore)
    with own.box() as name:
        seen = own.ok("exec", name, *shell("grep -E 'Sig(Ign|Blk)' /proc/self/status")).split()
        assert [int(word, 16) for word in seen[1::2]] == [0, 0], seen
        assert own("exec", name, *shell("kill -INT $$")).returncode == 128 + signal.SIGINT
        os.kill(own.pid, signal.SIGHUP)
        os.kill(own.pid, signal.SIGINT)
        assert own.ok("exec", name, *shell("echo on")) == "on"


def test_no_engine_says_how_to_start_one(shared):
    path = shared.who.directory() / "none"
    for arguments in (["create"], ["ps"], ["exec", "x", "true"], ["rm", "x"], ["tree", "x"]):
        done = shared.who.rollbox(*arguments, env=shared.who.environment(ROLLBOX_SOCKET=str(path)))
        assert (
            done.returncode == 125
            and done.stderr.count(b"\n") == 1
            and b"rollbox engine start" in done.stderr
            and str(path).encode() in done.stderr
        )
    done = shared("ps", "--socket", path)
    assert (
        done.returncode == 125
        and f"engine start --background --socket {path}".encode() in done.stderr
    ), "--socket goes before the variable"


def test_socket_is_found_below_the_runtime_directory(shared):
    home = shared.who.directory()
    environment = {
        key: value
        for key, value in shared.who.environment(XDG_RUNTIME_DIR=str(home)).items()
        if key != "ROLLBOX_SOCKET"
    }
    assert shared.who.rollbox("engine", "start", "--background", env=environment).returncode == 0
    try:
        assert (home / "rollbox.sock").is_socket()
        name = shared.who.rollbox("create", env=environment).stdout.decode().strip()
        assert shared.who.rollbox("exec", name, "echo", "hi", env=environment).stdout == b"hi\n"
    finally:
        assert shared.who.rollbox("engine", "stop", env=environment).returncode == 0


def test_socket_without_runtime_directory_is_in_a_private_one(tmp_path):
    """Neither variable, and a user whom logind gave no /run/user directory: a session works all the
    same, and nothing but a private directory is used."""
    if os.geteuid() != 0:
        pytest.skip("becomes a user without a login, which takes root")
    uid = 58231
    home = pathlib.Path(f"/tmp/rollbox-{uid}")
    assert not home.exists() and not pathlib.Path(f"/run/user/{uid}").exists()
    environment = {"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(tmp_path), "ROLLBOX_STORE": f"{home}/store"}

    def rollbox(*arguments):
        return subprocess.run(
            [binaries() / "rollbox", *arguments],
            env=environment,
            user=uid,
            group=uid,
            extra_groups=[],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE,
        )

    try:
        # Another user's directory, a directory that others may write to, a link, a file: each is
        # refused, and the variable that helps is named.
        for make in (
            home.mkdir,
            lambda: (home.mkdir(), home.chmod(0o777), os.chown(home, uid, uid)),
            lambda: home.symlink_to(tmp_path),
            home.touch,
        ):
            make()
            for command in (("engine", "start", "--background"), ("create",)):
                done = rollbox(*command)
                assert (
                    done.returncode == 125
                    and b"ROLLBOX_SOCKET" in done.stderr
                    and str(home).encode() in done.stderr
                ), done
            home.rmdir() if home.is_dir() and not home.is_symlink() else home.unlink()
        started = rollbox("engine", "start", "--background")
        assert started.returncode == 0 and f"serves {home}/rollbox.sock".encode() in started.stdout, started
        assert home.stat().st_mode & 0o777 == 0o700 and home.stat().st_uid == uid
        try:
            name = rollbox("create").stdout.decode().strip()
            assert rollbox("exec", name, "echo", "hi").stdout == b"hi\n"
        finally:
            assert rollbox("engine", "stop").returncode == 0
    finally:
        shutil.rmtree(home, ignore_errors=True)


def test_killed_engine(own):
    """Commands end with 125, and every process of the sandboxes is gone."""
    name = own.ok("create")
    with own.start("exec", name, *shell("echo up; sleep 1000")) as client:
        assert client.line() == "up"
        family = pidfds(descendants(own.pid))
        os.kill(own.pid, signal.SIGKILL)
        status, _, errors = client.finish()
        assert status == 125 and errors.count(b"\n") == 1, errors
        wait_gone(family)
    assert own("ps").returncode == 125


# ---- create, ps, inspect, rm
# -------------------------------------------------------------------------------------------


def test_names(shared):
    with shared.box("--name", "a-b.C_1") as name:
        assert name == "a-b.C_1"
        again = shared("create", "--name", name)
        assert again.returncode == 125 and name.encode() in again.stderr
        assert any(line.startswith(name + " ") for line in shared.ok("ps").splitlines())
        assert name in shared.ok("ps", "-q").splitlines()
        assert name in [row["name"] for row in shared.json("ps", "--json")["sandboxes"]]
        assert shared.json("inspect", name)["name"] == name
    assert name not in shared.ok("ps", "-q").splitlines()
    with shared.box() as one, shared.box() as two:
        assert one != two
    for bad in ("a b", "", "a/b", "x" * 65):
        done = shared("create", "--name", bad)
        assert done.returncode == 125 and done.stderr.count(b"\n") == 1
    assert json.loads(shared.ok("create", "--name", "made", "--json")) == {"name": "made"}
    assert shared("rm", "made").returncode == 0


def test_create_refuses_a_wrong_policy(shared):
    done = shared("create", "--memory", "much")
    assert done.returncode == 125 and b"--memory" in done.stderr
    done = shared("create", "--readable", "/no/such/place")
    assert done.returncode == 125 and b"/no/such/place" in done.stderr


def test_unknown_session_is_an_error(shared):
    for arguments in (
        ["exec", "no-such", "true"],
        ["ps", "no-such"],
        ["inspect", "no-such"],
        ["kill", "no-such"],
        ["pause", "no-such"],
        ["attach", "no-such", "x"],
    ):
        done = shared(*arguments)
        assert done.returncode == 125 and done.stderr.count(b"\n") == 1 and b"no-such" in done.stderr, done


def test_rm_continues_after_an_unknown_session(shared):
    one, two = shared.ok("create"), shared.ok("create")
    done = shared("rm", one, "no-such", two)
    assert done.returncode == 125 and done.stderr.count(b"\n") == 1 and b"no-such" in done.stderr
    left = shared.ok("ps", "-q").splitlines()
    assert one not in left and two not in left


def test_rm_ends_processes(shared):
    marker = "rm-ends-processes"
    with shared.box() as name:
        shared.ok("exec", "-d", name, *shell(f"sleep 1000; : {marker}"))
    wait_unmarked(marker)


def test_held_session_ends_with_its_command(shared):
    """--no-detach: it lives as long as the command that made it."""
    with shared.start("create", "--no-detach") as client:
        name = client.line()
        assert shared.ok("exec", name, "echo", "there") == "there"
        assert client.finish()[0] == 0
    until(lambda: name not in shared.ok("ps", "-q").splitlines())
    with shared.start("create", "--no-detach") as client:
        name = client.line()
        client.process.terminate()
        assert client.process.wait(DEADLINE) == -signal.SIGTERM
    until(lambda: name not in shared.ok("ps", "-q").splitlines())


@pytest.mark.parametrize("limit", ["--lifetime", "--ttl"])
def test_session_ends_at_its_time_limits(shared, limit):
    name = shared.ok("create", limit, "0.3")
    until(lambda: name not in shared.ok("ps", "-q").splitlines())


def test_pause_and_resume(shared, box):
    """A paused session runs nothing; the next command resumes it."""
    shared.ok("exec", "-d", "--id", "sleeper", box, *shell("sleep 1000"))
    shared.ok("pause", box)
    assert shared.json("inspect", box)["state"] == "paused"
    shared.ok("resume", box)
    assert shared.json("inspect", box)["state"] != "paused"
    shared.ok("pause", box)
    assert shared.ok("exec", box, "echo", "awake") == "awake"
    assert shared.json("inspect", box)["state"] != "paused"


# ---- exec
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, status",
    [
        (shell("exit 7"), 7),
        (shell("kill -9 $$"), 137),
        (shell("kill -15 $$"), 143),
        (["no-such-program"], 127),
        (["/etc/passwd"], 126),
        (["--timeout", "0.2", *shell("sleep 100")], 124),
        (["--output-limit", "10", *shell("echo 0123456789abc")], 141),
        (["--cwd", "/no/such", "true"], 125),
    ],
)
def test_exit_status(shared, box, arguments, status):
    flags = (
        arguments[: arguments.index("--")]
        if "--" in arguments
        else arguments[:2]
        if arguments[0].startswith("--")
        else []
    )
    done = shared("exec", *flags, box, *arguments[len(flags) :])
    assert done.returncode == status, done
    assert (done.stderr == b"") == (status in (7, 137, 143)), done.stderr
    assert shared.ok("exec", box, "echo", "well") == "well", "the sandbox lives on"


def test_options_may_stand_behind_the_name(shared, box):
    assert shared.ok("exec", box, "--env", "A=1", "--cwd", "/", "--", "sh", "-c", 'echo "$A $PWD"') == "1 /"
    assert shared.ok("exec", box, "echo", "--env", "-x") == "--env -x"


def test_files_stay_between_commands(shared, box):
    shared.ok("exec", box, *shell("mkdir -p /tmp/d; echo kept > /tmp/d/f"))
    assert shared.ok("exec", box, "cat", "/tmp/d/f") == "kept"


def test_streams_are_kept_apart_and_in_order(shared, box):
    done = shared("exec", box, *shell("for i in 1 2 3; do echo out $i; echo err $i >&2; done"))
    assert done.stdout == b"out 1\nout 2\nout 3\n" and done.stderr == b"err 1\nerr 2\nerr 3\n"


def test_output_arrives_while_the_command_runs(shared, box):
    """A dialogue: each line is there before the next is asked for."""
    with shared.start(
        "exec",
        "-i",
        box,
        *shell('echo first; read a; echo "got $a"; read b; echo "got $b"; exit 5'),
    ) as client:
        assert client.line() == "first"
        client.say("one")
        assert client.line() == "got one"
        client.say("two")
        assert client.line() == "got two"
        assert client.finish()[0] == 5


def test_standard_input(shared, box):
    data = os.urandom(3 << 20)
    assert shared("exec", "-i", box, "cat", input=data).stdout == data
    assert shared("exec", box, "cat", input=b"unseen").stdout == b"", "none unless it is asked for"
    assert shared("exec", "-i", box, "head", "-c", "3", input=data).stdout == data[:3], "nor need it be read"


def test_shell_string_is_run(shared, box):
    assert shared.ok("exec", "-c", 'x=1; echo "$((x + 1)) $0"; cd /; pwd', box).splitlines()[1] == "/"
    assert shared.ok("exec", box, "--shell", "shopt -q login_shell && echo login") == "login"
    assert shared("exec", "-c", "exit 9", box).returncode == 9
    done = shared("exec", "-c", "true", box, "false")
    assert done.returncode == 125 and done.stderr.count(b"\n") == 1


def test_nothing_to_run(shared, box):
    done = shared("exec", box)
    assert done.returncode == 125 and b"-it" in done.stderr and done.stderr.count(b"\n") == 1


def test_results_as_json(shared, box):
    done = shared("exec", "--json", box, *shell("echo out; echo err >&2; exit 3"))
    result = json.loads(done.stdout)
    assert done.returncode == 0 and done.stdout.count(b"\n") == 1
    assert (result["outcome"], result["exit_code"], result["stdout"], result["stderr"]) == ("exit", 3, "out\n", "err\n")
    assert result["isolation"]["level"] and result["id"]
    done = shared("exec", "--json", box, "no-such-program")
    assert done.returncode == 125 and json.loads(done.stdout)["error"]["code"] == "command_not_found"


def test_same_operation_id_is_the_same_command(shared, box):
    for _ in range(2):
        assert shared.ok("exec", "--id", "once", box, *shell("echo x >> /tmp/count; wc -l < /tmp/count")) == "1"


def test_timeout_ends_its_own_tree_only(shared, box):
    with shared.start("exec", "-i", box, *shell("echo up; read line; echo $line")) as other:
        assert other.line() == "up"
        assert (
            shared(
                "exec",
                "--timeout",
                "0.2",
                box,
                *shell("sleep 1000 & setsid sleep 1001 & sleep 1002"),
            ).returncode
            == 124
        )
        until(lambda: "sleep" not in shared.ok("ps", box))
        other.say("alive")
        assert other.line() == "alive"


def test_background_processes_outlive_their_command(shared, box):
    shared.ok("exec", box, *shell("sleep 1000 > /dev/null 2>&1 &"))
    until(
        lambda: (
            [row["command"] for row in shared.json("ps", "--json", box)["processes"]]
            == ["sleep 1000"]
        )
    )  # the shell's child becomes it some time after
    rows = shared.json("ps", "--json", box)["processes"]
    assert str(rows[0]["pid"]) in shared.ok("ps", "-q", box).splitlines()
    assert "sleep 1000" in shared.ok("ps", box)


def test_background_process_does_not_delay_the_result(shared, box):
    """It has the command's streams still, and the command has ended all the same."""
    done = shared("exec", box, *shell("sleep 1000 & echo out; echo err >&2"))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"out\n", b"err\n")
    until(lambda: "sleep 1000" in shared.ok("ps", box))     # it may be between two programs yet


def test_interrupt_works_while_output_is_unread(shared, box):
    with shared.start("exec", "--id", "wordy", box, *shell("head -c 4000000 /dev/zero | tr '\\0' x")) as client:
        until(lambda: shared.states(box).get("wordy", {}).get("state") == "ended")
        client.process.terminate()
        assert client.process.wait(DEADLINE) == -signal.SIGTERM


def test_closed_output_pipe_ends_the_command(shared, box):
    """As a pipe of the host's would."""
    with shared.start("exec", "--id", "endless", box, *shell("while :; do echo y; done")) as client:
        assert client.line() == "y"
        client.process.stdout.close()
        assert client.process.wait(DEADLINE) == 128 + signal.SIGPIPE


def test_output_to_a_full_disk(shared, box):
    with open("/dev/full", "wb") as full:
        done = shared("exec", box, "echo", "x", stdout=full)
    assert done.returncode == 125 and b"standard output" in done.stderr


# ---- signals, detaching, attaching
# -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_client_kills_its_command(shared, box, number):
    with shared.start("exec", "--id", "victim", box, *shell("echo up; sleep 1000")) as client:
        assert client.line() == "up"
        client.process.send_signal(number)
        assert client.process.wait(DEADLINE) == -number
    until(lambda: shared.states(box)["victim"]["state"] == "ended")
    until(lambda: "sleep" not in shared.ok("ps", box))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_command_survives_its_client(shared, box, number):
    """A client that attaches gets its output from the beginning and its exit status."""
    text = "echo before; until [ -e /tmp/go ]; do sleep 0.01; done; echo after; exit 6"
    with shared.start("exec", "--id", "survivor", box, *shell(text)) as client:
        assert client.line() == "before"
        client.process.send_signal(number)
        assert client.process.wait(DEADLINE) == -number
    until(
        lambda: shared.states(box)["survivor"]["state"] == "running"
    )  # "starting" until init has reported it to the engine
    with shared.start("attach", box, "survivor") as client:
        assert client.line() == "before"
        shared.ok("exec", box, "touch", "/tmp/go")
        assert client.line() == "after"
        assert client.finish()[0] == 6
    done = shared("attach", box, "survivor")
    assert done.returncode == 6 and done.stdout == b"before\nafter\n", "and again, now that it has ended"
    assert json.loads(shared("attach", "--json", box, "survivor").stdout)["exit_code"] == 6


def test_detached_from_the_beginning(shared, box):
    name = shared.ok("exec", "-d", box, *shell("echo hello; exit 4"))
    done = shared("attach", box, name)
    assert (done.returncode, done.stdout) == (4, b"hello\n")
    assert json.loads(shared.ok("exec", "-d", "--json", "--id", "mine", box, "true")) == {"id": "mine"}
    assert shared("attach", box, "mine").returncode == 0
    done = shared("exec", "-d", "-i", box, "true")
    assert done.returncode == 125 and done.stderr.count(b"\n") == 1
    done = shared("attach", box, "no-such-id")
    assert done.returncode == 125 and done.stderr.count(b"\n") == 1


def test_detaching_leaves_the_command_running(shared, box):
    shared.ok("exec", "-d", "--id", "stays", box, *shell("echo up; sleep 1000"))
    with shared.start("attach", box, "stays") as client:
        assert client.line() == "up"
        client.process.send_signal(signal.SIGINT)
        assert client.process.wait(DEADLINE) == -signal.SIGINT
    until(lambda: shared.states(box)["stays"]["state"] == "running")


def test_kill(shared, box):
    shared.ok("exec", "-d", "--id", "a", box, *shell("trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done"))
    shared.ok("exec", "-d", "--id", "b", box, *shell("sleep 1000; true"))
    with shared.start("attach", box, "a") as client:
        assert client.line() == "up"
        shared.ok("kill", "--signal", "TERM", "--scope", "main", box, "a")
        assert client.finish()[0] == 9
    gone = shared("kill", box, "a")
    assert gone.returncode == 125 and gone.stderr.count(b"\n") == 1
    shared.ok("kill", box, "-s", "SIGINT", "b")
    shared.ok("kill", box)
    done = shared("attach", box, "b")
    assert done.returncode in (128 + signal.SIGINT, 128 + signal.SIGKILL)
    done = shared("kill", "-s", "NONSENSE", box, "b")
    assert done.returncode == 125 and b"--signal" in done.stderr


def test_kill_of_everything(shared, box):
    """Without an id: background processes, whose command is long over, too."""
    shared.ok("exec", box, *shell("sleep 1000 > /dev/null 2>&1 &"))
    shared.ok("exec", "-d", "--id", "a", box, "sleep", "1001")
    shared.ok("kill", box)
    until(lambda: "sleep" not in shared.ok("ps", box))
    assert shared("attach", box, "a").returncode == 128 + signal.SIGKILL
    assert shared.ok("exec", box, "echo", "well") == "well"


def test_reset_cancels_running_commands(shared, box):
    with shared.start("exec", box, *shell("echo up; sleep 1000")) as client:
        assert client.line() == "up"
        shared.ok("reset", box)
        status, _, errors = client.finish()
        assert status == 125 and errors.count(b"\n") == 1
    assert shared.ok("exec", box, "echo", "well") == "well"


def test_out_of_memory_leaves_the_files(shared):
    with shared.box("--memory", "64M") as box:
        shared.ok("exec", box, *shell("echo kept > /tmp/f"))
        assert shared("exec", box, "python3", "-I", "-S", "-c", "bytearray(1 << 30)").returncode in (137, 1)
        assert shared.ok("exec", box, "cat", "/tmp/f") == "kept"


def test_process_names_are_escaped_on_a_terminal(shared, box):
    shared.ok("exec", "-d", box, "bash", "-c", r"exec -a $'\e[31mred\n' sleep 1000")
    until(lambda: "red" in shared.ok("ps", box))
    text = shared.ok("ps", box)
    assert "\x1b" not in text and len(text.splitlines()) == 2


# ---- terminals
# ---------------------------------------------------------------------------------------------------------


def test_shell_works_on_a_terminal(shared, box):
    """Size, job control, Ctrl-C and the exit status; our own terminal is raw meanwhile and then as it was."""
    with Terminal(shared, "exec", "-it", "--env", r"PS1=p\#> ", box, "bash", "--norc", "--noprofile", "-i") as terminal:
        terminal.expect(rb"p1> ")
        assert terminal.is_raw()
        terminal.type("stty size; tty; echo $TERM\r")
        terminal.expect(rb"31 117\r\n/dev/pts/\d+\r\nxterm\r\n")
        terminal.expect(rb"p2> ")
        # What is typed while bash still holds the terminal would reach cat unfinished: cat says when it is its turn.
        terminal.type("sh -c 'echo running; cat'\r")
        terminal.expect(rb"\rrunning\r\n|\nrunning\r\n")
        terminal.type("echoed\r")
        terminal.expect(rb"echoed\r\nechoed\r\n")
        terminal.type("\x03")
        terminal.expect(rb"\^C")
        terminal.expect(rb"p3> ")
        terminal.type("exit 23\r")
        assert terminal.process.wait(DEADLINE) == 23
        assert terminal.restored()


def test_terminal_size_follows(shared, box):
    with Terminal(
        shared,
        "exec",
        "-it",
        box,
        "bash",
        "--norc",
        "--noprofile",
        "-c",
        "trap 'stty size' WINCH; echo ready; while :; do read -t 0.05 x; done",
    ) as terminal:
        terminal.expect(rb"ready\r\n")
        terminal.resize(40, 90)
        terminal.expect(rb"40 90\r\n")


def test_terminal_is_restored_by_signals(shared, box):
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        with Terminal(shared, "exec", "-it", box, *shell("echo ready; sleep 1000")) as terminal:
            terminal.expect(rb"ready\r\n")
            assert terminal.is_raw()
            os.kill(terminal.pid, number)
            terminal.process.wait(DEADLINE)
            assert terminal.restored(), number


def test_terminal_option_without_a_local_terminal(shared, box):
    """-t alone: the command has a terminal of the usual size, independent of ours."""
    done = shared("exec", "-t", box, *shell("stty size; test -t 0 && test -t 1 && test -t 2 && echo all"))
    assert done.stdout == b"24 80\r\nall\r\n" and done.returncode == 0


def test_all_that_is_written_to_a_terminal_arrives(own):
    """More than the reading end of a terminal takes at once, by a command that is over before any of it is read."""
    script = "$SIG{USR1} = sub { print 'x' x 7000, 'last'; exit }; print 'ready'; sleep 1 while 1"
    argv = ["perl", "-e", f"$| = 1; {script} # {os.getpid()} {own.who!r}"]
    with own.box() as box, own.start("exec", "-t", box, *argv) as started:
        out = b""
        while not out.endswith(b"ready"):
            out += os.read(started.process.stdout.fileno(), 100)
        engine, (guest,) = own.pid, processes(*argv)
        os.kill(engine, signal.SIGSTOP)
        try:
            os.kill(guest, signal.SIGUSR1)
            until(lambda: not processes(*argv))
        finally:
            os.kill(engine, signal.SIGCONT)
        rest = started.process.communicate(timeout=DEADLINE)[0]
        assert rest == b"x" * 7000 + b"last" and started.process.returncode == 0


def test_attaching_to_a_terminal(shared, box):
    shared.ok(
        "exec",
        "-d",
        "-t",
        "--id",
        "term",
        box,
        *shell("echo ready; read line; echo got $line; stty size; exit 8"),
    )
    with Terminal(shared, "attach", "-i", box, "term", rows=50, columns=60) as terminal:
        terminal.expect(rb"ready\r\n")
        until(terminal.is_raw)
        terminal.type("word\r")
        terminal.expect(rb"got word\r\n")
        assert terminal.process.wait(DEADLINE) == 8
        assert terminal.restored()


# ---- snapshots of files
# ------------------------------------------------------------------------------------------------


def test_snapshots_contain_processes_unless_dropped(shared):
    with shared.box() as box:
        id = shared.ok(
            "exec",
            "-d",
            box,
            *shell(
                "echo up > /tmp/up; n=0; while sleep 0.01; do n=$((n + 1)); echo $n > /tmp/n.new; mv /tmp/n.new /tmp/n; done"
            ),
        )
        until(lambda: shared("exec", box, "cat", "/tmp/n").returncode == 0)
        at = shared.json("snapshot", box, "--json", "--as", "live")
        assert at["processes"] >= 1 and at["memory_bytes"] > 0
        assert "; 1 process, " in shared.ok("tree", box) or "; 2 processes, " in shared.ok("tree", box)
        kid, plain = shared.ok("fork", box), shared.ok("fork", "--drop-processes", box)
        try:
            assert (
                shared.json("inspect", kid)["execs"][0]["id"] == id
                and not shared.json("ps", "--json", plain)["processes"]
            )
            seen = shared.ok("exec", kid, "cat", "/tmp/n")
            until(lambda: shared.ok("exec", kid, "cat", "/tmp/n") != seen)
            shared.ok("kill", kid, id)
            shared.ok("reset", kid, "live")
            until(lambda: shared.json("ps", "--json", kid)["processes"])
            shared.ok("reset", "--drop-processes", kid, "live")
            assert not shared.json("ps", "--json", kid)["processes"]
        finally:
            shared.ok("rm", kid, plain)


def test_snapshot_reset_fork_and_tree(shared):
    with shared.box() as box:
        put = lambda name, text: shared.ok("exec", name, *shell(f"echo {text} > /tmp/f"))
        get = lambda name: shared.ok("exec", name, "cat", "/tmp/f")
        put(box, "one")
        first = shared.ok("snapshot", box, "--as", "base")
        put(box, "two")
        second = shared.json("snapshot", box, "--json")
        assert second["parent"] == first and second["id"] != first
        put(box, "three")
        shared.ok("discard", box)
        assert get(box) == "two"
        shared.ok("reset", box, "base")
        assert get(box) == "one"
        forks = shared.ok("fork", box, "-n", "2").splitlines()
        restored = shared.ok("restore", box, second["id"])
        try:
            assert len(set(forks)) == 2
            put(forks[0], "fork")
            assert [get(name) for name in (box, *forks, restored)] == ["one", "fork", "one", "two"]
            lines = shared.ok("tree", box).splitlines()
            assert [line for line in lines if '"base"' in line and line.endswith(", ".join([box, *forks]))], lines
            assert [line for line in lines if "`-- " + second["id"] in line and line.endswith("<- " + restored)], lines
            nodes = {node["id"]: node for node in shared.json("tree", "--json", box)["snapshots"]}
            assert nodes[second["id"]]["parent"] == first and restored in nodes[second["id"]]["sandboxes"]
        finally:
            shared.ok("rm", *forks, restored)
        done = shared("reset", box, "no-such")
        assert done.returncode == 125 and b"no-such" in done.stderr


def test_diff_and_commit(shared):
    # Its parent, too, is the caller's: a directory is published by exchanging it.
    place = shared.who.directory() / "work"
    place.mkdir()
    shared.who.own(place)
    shared.who.write(place / "kept", "old\n")
    shared.who.write(place / "gone", "x\n")
    with shared.box("--writable", place, "--cwd", place) as box:
        shared.ok("exec", box, *shell("echo new > kept; rm gone; echo more > added"))
        changes = {
            os.path.basename(row["path"]): row["change"]
            for row in shared.json("diff", "--json", box)["changes"]
        }
        assert {name: changes[name] for name in ("kept", "gone", "added")} == {"kept": "M", "gone": "D", "added": "A"}
        text = shared.ok("diff", box)
        assert (
            f"M {place}/kept" in text
            and f"D {place}/gone" in text
            and f"A {place}/added" in text
            and "\x1b" not in text
        )
        text = shared.ok("diff", "--text", box)
        assert "-old" in text and "+new" in text
        assert (place / "kept").read_text() == "old\n"
        assert shared.ok("commit", box).startswith(f"{place}: ")
    assert (
        (place / "kept").read_text() == "new\n"
        and (place / "added").read_text() == "more\n"
        and not (place / "gone").exists()
    )


def test_export(shared, box):
    place = shared.who.directory()
    shared.ok("exec", box, *shell("echo x > /tmp/f"))
    shared.ok("export", box, place / "state")
    assert (place / "state").stat().st_size > 0 and os.listdir(place) == ["state"]
    done = shared("export", box, place / "no" / "state")
    assert done.returncode == 125 and done.stderr.count(b"\n") == 1
