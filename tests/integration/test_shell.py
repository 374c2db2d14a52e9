# SPDX-License-Identifier: Apache-2.0
"""Shells of a session: state that is kept, output and status that are each command's own, and what
would confuse a shell that is driven by markers.

Each test is run with bash and with the POSIX sh of the system.
"""

import os
import signal
import threading

import pytest

from rollbox import Cancelled, InvalidArgument, NotFound, Outcome, Policy, RunFailed, Sandbox


@pytest.fixture(scope="module")
def box():
    with Sandbox(Policy(max_processes=64)) as box:
        yield box


@pytest.fixture(params=["bash", "sh"])
def shell(box, request):
    box._shell = request.param
    with box.shell() as shell:
        yield shell


def out(shell, command, **options):
    result = shell.run(command, **options)
    assert result.outcome is Outcome.EXIT and not result.ended and not result.restarted, result
    return result.stdout


def test_state_is_kept(shell):
    result = shell.run("cd /usr; x='a b'; export Y=3; f() { echo \"f $1\"; }", text=True)
    assert result.ok and (result.stdout, result.stderr) == ("", "")
    assert out(shell, "pwd; echo \"$x\"; f 7; env | grep ^Y=", text=True) == "/usr\na b\nf 7\nY=3\n"


def test_streams_and_statuses_are_each_commands_own(shell):
    result = shell.run("echo out; echo err >&2; false")
    assert (result.exit_code, result.stdout, result.stderr) == (1, b"out\n", b"err\n")
    result = shell.run("(exit 37)")
    assert (result.exit_code, result.stdout, result.stderr, result.signal) == (37, b"", b"", None)
    assert shell.run("sh -c 'kill -9 $$'").exit_code == 128 + signal.SIGKILL
    assert out(shell, ":") == b"" and shell.run("").ok and shell.run("# nothing").ok


def test_two_hundred_commands(shell):
    assert [out(shell, f"echo {i}") for i in range(200)] == [b"%d\n" % i for i in range(200)]


def test_heredocs_quotes_and_lines(shell):
    assert (
        out(shell, "x=5\ncat <<EOF\nhello $x 'q' \"d\" \\\\\nEOF\ncat <<'EOF'\n$x\nEOF")
        == b"hello 5 'q' \"d\" \\\n$x\n"
    )
    assert out(shell, "printf '%s\\n' 'it'\\''s' \"a\nb\"; echo \\\n continued") == b"it's\na\nb\ncontinued\n"
    assert out(shell, "if true; then\n  echo yes\nfi\n\n\n") == b"yes\n"
    assert out(shell, b"printf '%s' '\xff\xfe'") == b"\xff\xfe"


def test_binary_output_without_a_last_newline(shell):
    assert out(shell, "printf 'a\\000b\\377\\033[0m'") == b"a\0b\xff\x1b[0m"
    assert out(shell, "printf 'no newline'") == b"no newline"
    assert out(shell, "echo next") == b"next\n"


def test_marker_like_text_is_output(shell):
    for text in ("1 0", "2 0\\n3 0", "$ ", "bash-5.2$ ", "exit 0"):
        assert out(shell, f"printf '%b' '{text}'") == text.replace("\\n", "\n").encode()


def test_much_output(shell):
    result = shell.run("head -c 3000000 /dev/zero; head -c 200000 /dev/zero >&2")
    assert result.ok and (len(result.stdout), len(result.stderr)) == (3000000, 200000)
    assert out(shell, "echo next") == b"next\n"


def test_long_command_is_accepted(shell):
    text = "x" * 300000
    assert out(shell, f"printf '%s' '{text}' | wc -c").strip() == b"300000"


def test_unread_and_wanted_input(shell):
    assert out(shell, "cat; read line; echo \"[$line]\"") == b"[]\n"
    assert out(shell, "echo alive") == b"alive\n"
    assert shell.run("read -p 'Continue? ' answer; echo $answer").outcome is Outcome.EXIT


@pytest.mark.parametrize(
    "broken",
    ["if then", "echo 'unclosed", "cat <<", "fi", ")", "for", "case x", "a() {", "$(", "echo \"$("],
)
def test_syntax_errors_end_the_command_alone(shell, broken):
    shell.run("kept=1")
    result = shell.run(broken)
    assert result.exit_code and result.stderr and not result.ended, result
    assert out(shell, "echo $kept") == b"1\n"


def test_errors_of_expansion(shell):
    result = shell.run("echo $((1/0)); echo more")
    assert result.exit_code and b"" == result.stdout and not result.ended
    assert out(shell, "echo alive") == b"alive\n"


def test_exit_ends_it_and_the_next_says_so(shell):
    first = shell.id
    shell.run("x=1")
    result = shell.run("echo bye; exit 7; echo never")
    assert (result.exit_code, result.stdout, result.ended, result.restarted) == (7, b"bye\n", True, False)
    assert shell.id is None
    result = shell.run("echo \"[$x]\"")
    assert (result.exit_code, result.stdout, result.ended, result.restarted) == (0, b"[]\n", False, True)
    assert shell.id not in (None, first)
    assert not shell.run(":").restarted


def test_exec_of_a_program_and_of_descriptors(shell):
    assert out(shell, "exec 3>/tmp/three; echo x >&3; exec 3>&-; cat /tmp/three") == b"x\n"
    assert out(shell, "exec 2>&1; echo err >&2") == b"err\n"
    result = shell.run("exec sh -c 'echo replaced; exit 5'")
    assert (result.exit_code, result.stdout, result.ended) == (5, b"replaced\n", True)
    assert shell.run("echo new").restarted


def test_set_e_u_x(shell):
    assert out(shell, "set -e; true") == b""
    result = shell.run("false; echo never")
    assert (result.exit_code, result.stdout, result.ended) == (1, b"", True)
    result = shell.run("set -x; echo traced; set +x")
    assert (
        result.restarted
        and result.stdout == b"traced\n"
        and b"echo traced" in result.stderr
        and b"printf" not in result.stderr
    )
    result = shell.run("set -u; echo $nothing_of_that_name")
    assert result.exit_code and b"nothing_of_that_name" in result.stderr
    assert shell.run("echo again").stdout == b"again\n"


ECHOED = {"bash": b"echo one\n", "sh": b""}
"""By -v: other shells than bash do not show the text of an eval."""


def streams(shell, command):
    result = shell.run(command)
    assert result.ok and not result.ended, result
    return result.stdout, result.stderr


def test_set_v_shows_the_users_lines_alone(box, shell):
    assert streams(shell, "set -v") == (b"", b"")
    for _ in range(2):
        assert streams(shell, "echo one") == (b"one\n", ECHOED[box._shell])
    streams(shell, "echo one; set +v")
    assert streams(shell, "echo one") == (b"one\n", b"")


def test_set_x_traces_the_users_commands_alone(shell):
    assert streams(shell, "set -x") == (b"", b"")
    for _ in range(2):
        out, err = streams(shell, "echo one")
        assert out == b"one\n" and err.lstrip(b"+") == b" echo one\n"
    streams(shell, "set +x")
    assert streams(shell, "echo one") == (b"one\n", b"")


def test_set_x_and_v_at_once_and_into_one_stream(box, shell):
    assert streams(shell, "exec 2>&1; set -xv") == (b"", b"")
    for _ in range(2):
        out, err = streams(shell, "echo one")
        assert out.replace(b"++", b"+") == ECHOED[box._shell] + b"+ echo one\none\n" and err == b""
    assert b"x" in streams(shell, "echo $-")[0].splitlines()[-1]
    streams(shell, "set +xv")
    assert streams(shell, "set | grep -c '^_rollbox' || :")[0] == b"0\n"


@pytest.mark.parametrize("ps4", ["PS4='%$((n=n+1)) '", "readonly PS4", "readonly PS4; set -x", "unset PS4"])
def test_set_x_leaves_the_users_ps4_alone(shell, ps4):
    """Also a read-only one: an assignment to it would end the shell."""
    before = streams(shell, ps4 + "; set +x; echo \"${PS4-none}\"")[0]
    streams(shell, "set -x")
    for _ in range(2):
        out, err = streams(shell, "echo one")
        assert out == b"one\n" and err.endswith(b"echo one\n") and err.count(b"\n") == 1
    assert streams(shell, "set +x; echo \"${PS4-none}\"")[0] == before
    assert streams(shell, "echo one") == (b"one\n", b"")


def test_set_u_meets_no_variable_of_the_wrapper(shell):
    streams(shell, "set -u; unset PS4; unset REPLY")
    assert streams(shell, "echo one") == (b"one\n", b"")
    result = shell.run("set -x; false; echo $none")
    assert result.exit_code and b"none" in result.stderr and b"_rollbox" not in result.stderr


def test_set_e_and_x_end_the_shell_at_the_users_failure(shell):
    streams(shell, "set -ex; echo one")
    result = shell.run("false")
    assert (result.exit_code, result.ended) == (1, True) and result.stderr.lstrip(b"+") == b" false\n"


def test_set_n_ends_the_shell_and_says_so(shell):
    result = shell.run("echo one; set -n; echo never")
    assert result.ended and result.stdout == b"one\n" and result.exit_code and b"yntax error" in result.stderr
    assert shell.run("echo new").stdout == b"new\n"


@pytest.mark.parametrize("failing", ["echo $((1/0))", "break", "eval 'echo \"'", "if"])
def test_options_outlast_commands_that_fail(shell, failing):
    streams(shell, "set -x")
    assert b"_rollbox" not in shell.run(failing).stderr
    out, err = streams(shell, "echo one")
    assert out == b"one\n" and err.lstrip(b"+") == b" echo one\n"


def test_debug_trap_does_not_print_for_the_wrapper(box, shell):
    if box._shell == "sh":
        return          # other shells have no such trap
    assert streams(shell, "trap 'echo \"[$BASH_COMMAND]\"' DEBUG") == (b"", b"")
    lines = streams(shell, "echo one")[0].splitlines()
    assert (
        lines[0].startswith(b"[\\builtin eval ")
        and lines[-2:] == [b"[echo one]", b"one"]
        and b"printf" not in b"".join(lines)
    )


def test_traps_aliases_and_ifs(shell):
    assert out(shell, "trap 'echo bye' EXIT; IFS=x; alias eval=false; set -f") == b""
    assert out(shell, "echo one") == b"one\n"
    result = shell.run("exit 3")
    assert (result.exit_code, result.stdout, result.ended) == (3, b"bye\n", True)


def test_break_and_continue_outside_of_a_loop(shell):
    shell.run("kept=1; break; continue 2")
    assert out(shell, "echo $kept") == b"1\n"


def test_background_jobs_live_on(shell):
    result = shell.run("sleep 86391 & echo $!", text=True)
    pid = int(result.stdout)
    assert out(shell, f"kill -0 {pid} && echo there") == b"there\n"
    result = shell.run("sleep 86390", timeout=0.2)
    assert result.outcome is Outcome.TIMEOUT and not result.ended
    assert out(shell, f"kill -0 {pid} && echo there") == b"there\n", "a time-out ends its own command"
    assert out(shell, f"kill {pid}; wait {pid} 2>/dev/null; echo gone") == b"gone\n"


def test_background_output_is_the_next_commands(shell):
    shell.run("mkfifo /tmp/go; (read x </tmp/go; echo late; echo >/tmp/done) & mkfifo /tmp/done")
    assert shell.run("echo >/tmp/go; read x </tmp/done; rm /tmp/go /tmp/done").stdout == b"late\n"


def test_background_job_with_open_streams_delays_nothing(shell):
    assert out(shell, "sleep 86389 & echo now") == b"now\n"
    assert out(shell, "kill $!") == b""


@pytest.mark.parametrize(
    "busy",
    [
        "sleep 86388",
        "while :; do :; done",
        "while :; do sleep 1; done",
        "sleep 86387; sleep 86386",
        "sh -c 'sleep 86385 & wait'",
    ],
)
def test_timeout_keeps_the_shell(shell, busy):
    shell.run("kept=1; cd /usr")
    result = shell.run(f"echo begun; {busy}", timeout=2)
    assert (
        result.outcome is Outcome.TIMEOUT
        and result.exit_code is None
        and result.stdout.startswith(b"begun\n")
        and not result.ended
    )
    assert out(shell, "echo $kept; pwd") == b"1\n/usr\n"


def test_timeout_of_a_command_that_ignores_interrupts(shell):
    shell.run("kept=1")
    result = shell.run("sh -c 'trap \"\" INT; while :; do sleep 1; done'", timeout=0.2)
    assert result.outcome is Outcome.TIMEOUT and not result.ended
    assert out(shell, "echo $kept") == b"1\n"


def test_shell_ignoring_interrupts_is_ended_by_the_timeout(shell):
    result = shell.run("trap '' INT; while :; do :; done", timeout=0.2)
    assert result.outcome is Outcome.TIMEOUT and result.ended
    assert shell.run("echo new").restarted


def test_output_limit(shell):
    shell.run("kept=1")
    result = shell.run("while :; do echo yyyyyyyyyyyyyyyyyyy; done", max_output=1000, timeout=60)
    assert (
        result.outcome is Outcome.OUTPUT_LIMIT
        and result.stdout_truncated
        and len(result.stdout) == 1000
        and not result.stderr_truncated
    )
    assert out(shell, "echo $kept") == b"1\n"
    assert shell.run("printf 12345", max_output=5).ok


def test_dev_stdout_and_stderr_can_be_opened(shell):
    result = shell.run("echo a >/dev/stdout; echo b >/dev/stderr; echo c | tee /dev/stderr")
    assert (result.stdout, result.stderr) == (b"a\nc\n", b"b\nc\n")


def test_command_does_not_inherit_control_descriptors(shell):
    assert out(shell, "ls -l /proc/self/fd | grep -c pipe").strip() == b"2", "1 and 2"
    result = shell.run("echo '99 0' >&9; echo still")
    assert result.stdout.endswith(b"still\n")


def test_statuses_that_the_guest_forges(box):
    box._shell = "bash"
    with box.shell() as shell:
        shell.run("(exec 3>/proc/$PPID/fd/247) 2>/dev/null; printf '%s 0\\n' 2 3 4 5 6 7 8 9 >/proc/$$/fd/247")
        assert shell.run("sleep 0.1; echo a").stdout in (b"a\n", b""), "a forger loses its own output and no more"


def test_kill_of_the_shell(shell):
    result = shell.run("kill -KILL $$")
    assert (result.outcome, result.signal, result.ended) == (Outcome.SIGNAL, signal.SIGKILL, True)
    assert shell.run("echo new").restarted


def test_check_text_and_arguments(shell):
    with pytest.raises(RunFailed) as caught:
        shell.run("echo no >&2; exit 3", check=True, text=True)
    assert caught.value.result.exit_code == 3 and caught.value.result.stderr == "no\n" and caught.value.result.ended
    with pytest.raises(InvalidArgument, match="NUL"):
        shell.run("echo \0")
    with pytest.raises(InvalidArgument, match="timeout"):
        shell.run("true", timeout=0)
    shell.close()
    shell.close()
    with pytest.raises(NotFound, match="closed"):
        shell.run("true")


def test_shell_starts_with_the_requested_environment(box):
    box._shell = None
    with box.shell(cwd="/usr", env={"FOO": "bar baz"}) as shell:
        assert out(shell, "pwd; echo $FOO") == b"/usr\nbar baz\n"
    with box.shell(cwd="/nonexistent") as shell:
        with pytest.raises(FileNotFoundError):
            shell.run("true")


def test_two_shells_and_the_session_see_the_same_files(box):
    with box.shell() as one, box.shell() as two:
        one.run("x=1; echo from one >/tmp/shared-by-shells")
        assert out(two, "echo \"[$x]\"; cat /tmp/shared-by-shells") == b"[]\nfrom one\n"
        assert box.exec(["cat", "/tmp/shared-by-shells"]).stdout == b"from one\n"


def test_two_threads_take_turns(shell):
    results = []
    threads = [
        threading.Thread(target=lambda i=i: results.append((i, shell.run(f"echo {i}").stdout)))
        for i in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [(i, b"%d\n" % i) for i in range(20)]


def test_closing_the_session_under_it():
    box = Sandbox()
    shell = box.shell()
    assert shell.run("echo a").ok
    box.close()
    with pytest.raises((Cancelled, NotFound)):
        shell.run("echo b")


def test_close_leaves_the_background_alone(box):
    with box.shell() as shell:
        pid = int(shell.run("nohup sleep 86384 >/dev/null 2>&1 & echo $!", text=True).stdout)
    assert box.exec(["kill", "-0", str(pid)]).ok
    assert box.exec(["kill", str(pid)]).ok


def test_interrupted_caller_ends_the_shell(box):
    shell = box.shell()
    shell.run("kept=1")

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            shell.run("sleep 86383")
    finally:
        signal.signal(signal.SIGUSR1, before)
    result = shell.run("echo \"[$kept]\"")
    assert result.restarted and result.stdout == b"[]\n"
    shell.close()
