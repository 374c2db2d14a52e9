# SPDX-License-Identifier: Apache-2.0
"""Sandbox.run and Result: what goes in, what comes out, what is raised."""

import base64
import importlib.metadata
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest

import rollbox
from rollbox import InvalidArgument, Outcome, Policy, Result, RollboxError, RunFailed, Sandbox

FIELDS = [
    "outcome",
    "exit_code",
    "signal",
    "stdout",
    "stderr",
    "stdout_truncated",
    "stderr_truncated",
    "wall_ms",
    "cpu_ms",
    "peak_memory_bytes",
    "processes_peak",
    "isolation",
    "error",
]

box = Sandbox()


def test_run_works():
    result = box.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (result.outcome, result.exit_code, result.signal, result.stdout, result.stderr) == (
        Outcome.EXIT,
        3,
        None,
        b"out\n",
        b"err\n",
    )
    assert result.outcome == "exit" and str(result.outcome) == "exit"
    assert not result.stdout_truncated and not result.stderr_truncated
    assert result.wall_ms > 0 and result.cpu_ms >= 0 and result.processes_peak >= 1
    assert result.error is None and result.id is None and isinstance(result.isolation, dict) and result.isolation
    assert not result.ok and box.run(["true"]).ok


def test_signal():
    result = box.run(["sh", "-c", "kill -SEGV $$"])
    assert (result.outcome, result.exit_code, result.signal) == (Outcome.SIGNAL, None, signal.SIGSEGV)


def test_timeout_keeps_what_was_written():
    result = box.run(["sh", "-c", "echo before; while :; do :; done"], timeout=2)
    assert (result.outcome, result.exit_code, result.signal, result.stdout) == (
        Outcome.TIMEOUT,
        None,
        None,
        b"before\n",
    )


def test_policy_timeout():
    assert Sandbox(Policy(timeout=0.3)).run(["sh", "-c", "while :; do :; done"]).outcome is Outcome.TIMEOUT


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "1", True, 1e30])
def test_bad_timeouts(timeout):
    with pytest.raises(InvalidArgument, match="timeout"):
        box.run(["true"], timeout=timeout)


def test_output_limit():
    result = box.run(["sh", "-c", "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyy; done"], max_output=1000, timeout=60)
    assert result.outcome is Outcome.OUTPUT_LIMIT and result.stdout_truncated and not result.stderr_truncated
    assert len(result.stdout) == 1000


def test_shell_string():
    assert box.run("echo a b | tr a-z A-Z").stdout == b"A B\n"


def test_kinds_of_arguments():
    assert box.run([pathlib.Path("/bin/echo"), b"b\xff", "s\u00e9", pathlib.Path("p")]).stdout == b"b\xff s\xc3\xa9 p\n"
    assert box.run(("echo", "")).stdout == b"\n"


@pytest.mark.parametrize(
    "argv",
    [
        [],
        (),
        ["a\0b"],
        [b"a\0"],
        ["echo", 3],
        [None],
        None,
        b"ls",
        3,
        {"ls": 1},
        ["\ud800"],
        [["ls"]],
    ],
)
def test_bad_argv(argv):
    with pytest.raises(InvalidArgument) as caught:
        box.run(argv)
    assert "argv" in caught.value.message and caught.value.stage == "arguments"


def test_nul_message_says_where():
    with pytest.raises(ValueError, match=r"argv\[1\] has a NUL byte at offset 3"):
        box.run(["echo", "abc\0def"])


def test_stdin():
    assert box.run(["cat"]).stdout == b""
    assert box.run(["cat"], stdin="text \u00e9").stdout == b"text \xc3\xa9"
    assert box.run(["cat"], input=b"\0\xff").stdout == b"\0\xff"
    assert box.run(["cat"], stdin=bytearray(b"ba")).stdout == b"ba"
    assert box.run(["cat"], stdin=memoryview(b"mv")[1:]).stdout == b"v"
    with pytest.raises(InvalidArgument):
        box.run(["cat"], stdin="a", input="b")
    with pytest.raises(InvalidArgument):
        box.run(["cat"], stdin=3)


def test_big_stdin():
    data = bytes(range(256)) * (50 << 12)       # 50 MiB
    assert box.run(["wc", "-c"], stdin=data, timeout=60).stdout.split()[0] == str(len(data)).encode()


def test_unread_stdin():
    assert box.run(["true"], stdin=b"x" * (8 << 20)).ok


def test_big_output():
    result = box.run(["head", "-c", str(9 << 20), "/dev/zero"], timeout=60)
    assert result.ok and result.stdout == bytes(9 << 20)


def test_env():
    assert box.run(["sh", "-c", "echo $A-$B"], env={"A": "1=2", "B": ""}).stdout == b"1=2-\n"
    for bad in ({"": "x"}, {"A=B": "x"}, {"A": "x\0"}, {"A": 1}, ["A=1"]):
        with pytest.raises(InvalidArgument, match="env"):
            box.run(["true"], env=bad)


def test_cwd():
    assert box.run(["pwd"], cwd="/usr").stdout == b"/usr\n"
    assert box.run(["pwd"], cwd=pathlib.Path("/usr")).stdout == b"/usr\n"
    with pytest.raises(rollbox.BadCwd):
        box.run(["pwd"], cwd="/usr/nonexistent")
    with pytest.raises(InvalidArgument, match="cwd"):
        box.run(["pwd"], cwd="/usr\0")


def test_files():
    files = {"a": "text \u00e9", pathlib.Path("b"): b"\0\xff", "deep/er/c": bytearray(b"c"), "empty": ""}
    assert box.run(["sh", "-c", "cat a b deep/er/c empty"], files=files).stdout == b"text \xc3\xa9\0\xffc"
    for bad in ({"a": 3}, {"": "x"}, {"a\0": "x"}, {3: "x"}, ["a"], "a"):
        with pytest.raises(InvalidArgument, match="files"):
            box.run(["true"], files=bad)


def test_runs_do_not_see_each_other():
    assert box.run("echo 1 > /tmp/mark; ls /tmp/mark").ok
    assert not box.run("ls /tmp/mark").ok


@pytest.mark.parametrize("max_output", [-1, 1.5, "1M", True])
def test_bad_max_output(max_output):
    with pytest.raises(InvalidArgument, match="max_output"):
        box.run(["true"], max_output=max_output)


def test_unexecutable_program_raises(tmp_path):
    with pytest.raises(rollbox.CommandNotFound) as caught:
        box.run(["no-such-program"])
    assert (
        isinstance(caught.value, FileNotFoundError)
        and caught.value.code == "command_not_found"
        and caught.value.message
    )
    with pytest.raises(rollbox.NotExecutable) as caught:
        box.run(["./data"], files={"data": "x"})
    assert isinstance(caught.value, PermissionError)


def test_text_and_invalid_utf8():
    raw = box.run(["printf", r"a\377b"])
    assert raw.stdout == b"a\xffb" and raw.text == "a\ufffdb"
    result = box.run(["printf", r"a\377b"], text=True)
    assert result.stdout == "a\ufffdb" and result.text == result.stdout and result.stderr == ""


def test_to_dict_is_what_the_cli_prints():
    row = box.run(["sh", "-c", r"printf 'a\377b'; echo ok >&2"]).to_dict()
    assert [key for key in row if not key.endswith("_base64")] == FIELDS
    assert row["stdout"] == "a\ufffdb" and base64.b64decode(row["stdout_base64"]) == b"a\xffb"
    assert row["stderr"] == "ok\n" and "stderr_base64" not in row
    line = box.run(["echo", "\u00e9"]).to_json()
    assert "\n" not in line and json.loads(line)["stdout"] == "\u00e9\n"
    error = Result(Outcome.ERROR, None, None, b"", b"", error=rollbox.EngineLost("gone", stage="run"), id="j").to_dict()
    assert list(error)[0] == "id" and error["error"] == {"code": "engine_lost", "stage": "run", "message": "gone"}


def test_cli_prints_the_same_fields():
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "rollbox",
            "run",
            "--json",
            "--",
            "sh",
            "-c",
            r"printf 'a\377b'; exit 3",
        ],
        capture_output=True,
        timeout=60,
    )
    row = json.loads(done.stdout)
    mine = box.run(["sh", "-c", r"printf 'a\377b'; exit 3"]).to_dict()
    assert list(row) == list(mine)
    for key in ("outcome", "exit_code", "signal", "stdout", "stdout_base64", "stderr", "isolation", "error"):
        assert row[key] == mine[key]


def test_check():
    assert box.run(["true"], check=True).ok
    with pytest.raises(RunFailed, match="status 3.*why") as caught:
        box.run("echo why >&2; exit 3", check=True)
    assert caught.value.result.exit_code == 3 and not isinstance(caught.value, RollboxError)
    assert pickle.loads(pickle.dumps(caught.value)).result == caught.value.result
    with pytest.raises(rollbox.EngineLost):
        Result(Outcome.ERROR, None, None, b"", b"", error=rollbox.EngineLost("gone")).check()


def test_result_is_picklable_and_frozen():
    result = box.run(["echo", "x"])
    assert pickle.loads(pickle.dumps(result)) == result
    with pytest.raises(AttributeError):
        result.exit_code = 0


def test_every_error_is_picklable():
    for name in rollbox._errors:
        error = getattr(rollbox, name)("what", stage="run", errno=2)
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.message, copy.stage, copy.errno, str(copy), copy.code) == (
            type(error),
            "what",
            "run",
            2,
            "what",
            error.code,
        )


def test_errors_keep_their_errno():
    with pytest.raises(rollbox.PathNotFound) as caught:
        Sandbox(Policy(fs_readable=["/nonexistent"])).run(["true"])
    assert caught.value.errno in (2, None) and caught.value.stage == "policy" or caught.value.stage == "setup"


def test_context_manager_and_pickle():
    with Sandbox(Policy(max_processes=9)) as one:
        assert one.run(["true"]).ok
    assert pickle.loads(pickle.dumps(one)).policy == one.policy


def test_sixteen_threads():
    problems = []

    def work(n):
        try:
            for i in range(20):
                result = box.run(["echo", f"{n}-{i}"], text=True)
                assert result.ok and result.stdout == f"{n}-{i}\n", result
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_interrupt_kills_the_sandbox(tmp_path):
    """Ctrl-C comes out of a blocked run, and the sandbox goes with it. The guest itself gives the
    cue, through its shared directory."""
    tmp_path.chmod(0o777)
    cue = tmp_path / "cue"
    mark = f"86391.{os.getpid()}"
    script = (
        "import sys, rollbox\n"
        "try:\n"
        "    rollbox.Sandbox(rollbox.Policy(fs_shared=[sys.argv[1]])).run('echo > ' + sys.argv[1] + '/cue; exec sleep ' + sys.argv[2])\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', rollbox.default_engine().status()['pid'] > 0)\n"
    )
    os.mkfifo(cue)
    cue.chmod(0o666)
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path), mark], stdout=subprocess.PIPE, text=True)
    with open(cue):
        pass
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert out == "interrupted True\n" and process.returncode == 0
    deadline = time.monotonic() + 30
    wanted = f"sleep\0{mark}\0".encode()
    while any(_cmdline(entry) == wanted for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()):
        assert time.monotonic() < deadline, "the sandbox outlived its run"
        time.sleep(0.01)


def _cmdline(entry):
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def test_version_and_doctor():
    try:
        assert importlib.metadata.version("rollbox") == rollbox.__version__
    except importlib.metadata.PackageNotFoundError:
        pass        # run from a source checkout
    report = rollbox.doctor()
    assert set(report) >= {"kernel", "ok", "isolation", "cgroup", "features"}
    assert isinstance(report["ok"], bool) and all(
        {"name", "available"} <= set(feature) for feature in report["features"]
    )


def test_public_names_have_documentation():
    for name in rollbox.__all__:
        assert getattr(rollbox, name).__doc__, name


def test_more_policies_than_the_engine_keeps_plans():
    """A policy of its own for each episode, and the first ones again."""
    for _ in range(2):
        for i in range(150):
            assert Sandbox(Policy(hostname=f"h{i}")).run(["hostname"], text=True).stdout == f"h{i}\n"
