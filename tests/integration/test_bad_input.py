# SPDX-License-Identifier: Apache-2.0
"""Bad input and bad luck: one clear error or the right outcome, and nothing left behind."""

import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import pytest
from engines import SharedEngine
from harness import (
    DEADLINE,
    PYTHON,
    TREE,
    Started,
    binaries,
    caller,
    comm,
    descendants,
    engine_of,
    marked,
    pidfds,
    skip,
    wait_gone,
    wait_unmarked,
)  # noqa: F401


def error(done, status=125):
    """One clear line on standard error, nothing on standard output, no trace of a crash; returns it."""
    assert done.returncode == status, done
    text = done.stderr.decode()
    assert done.stdout == b"" and text.startswith("rollbox") and text.count("\n") == 1 and text.endswith("\n"), done
    assert "Assertion" not in text and "Sanitizer" not in text
    return text


def error_result(result, code):
    assert (result.outcome, result.exit_code, result.signal, result.error["code"]) == (
        "error",
        None,
        None,
        code,
    ), result.told
    assert result.error["message"] and "\n" not in result.error["message"] and result.error["stage"], result.error
    return result.error["message"]


# ---- the command ----


def test_missing_program(caller):
    """A program that is not there: 127, and command_not_found in JSON, naming it."""
    assert "no-such-program" in error(caller.rollbox("run", "--", "no-such-program"), 127)
    assert "/usr/bin/no-such-program" in error(caller.rollbox("run", "--", "/usr/bin/no-such-program"), 127)
    assert "no-such-program" in error_result(caller.run("--", "no-such-program"), "command_not_found")


def test_program_that_is_not_executable(caller):
    """A file without the x bit, a directory, and a file of no known format: 126, not_executable."""
    grant = caller.directory(0o755)
    caller.write(grant / "plain", "echo hello\n", 0o644)
    caller.write(grant / "noformat", "\x7fELF but not really\n", 0o755)
    for name in ("plain", "noformat", ""):
        assert str(grant) in error(caller.rollbox("run", "--readable", grant, "--", f"{grant}/{name}"), 126)
        error_result(caller.run("--readable", grant, "--", f"{grant}/{name}"), "not_executable")


def test_script_without_its_interpreter(caller):
    """A script whose interpreter is not in the sandbox is not found, as for any shell."""
    grant = caller.directory(0o755)
    caller.write(grant / "script", "#!/no/such/interpreter\n", 0o755)
    done = caller.rollbox("run", "--readable", grant, "--", grant / "script")
    assert done.returncode in (126, 127) and b"script" in done.stderr, done


def test_program_outside_the_sandbox(caller):
    """A program of the host that was not granted is not found."""
    own = caller.directory(0o755)
    caller.write(own / "tool", "#!/bin/sh\necho harm\n", 0o755)
    error(caller.rollbox("run", "--", own / "tool"), 127)


def test_no_command(caller):
    """No command at all is an error that says so."""
    error(caller.rollbox("run"))
    error(caller.rollbox("run", "--"))


def test_empty_program_name(caller):
    """An empty program name is an error, not a crash."""
    done = caller.rollbox("run", "--", "")
    assert done.returncode in (125, 127) and done.stderr.count(b"\n") == 1, done


def test_missing_working_directory(caller):
    """A working directory that is not there: bad_cwd, naming it."""
    assert "/no/such" in error_result(caller.run("--cwd", "/no/such", "--", "true"), "bad_cwd")
    error(caller.rollbox("run", "--cwd", "/etc/passwd", "--", "true"))


@pytest.mark.parametrize("flag", ["--readable", "--writable", "--shared"])
def test_missing_path_in_a_grant(caller, flag):
    """A grant of what does not exist is path_not_found, naming the path; the program is not run."""
    assert "/no/such/path" in error(caller.rollbox("run", flag, "/no/such/path", "--", "echo", "ran"))
    assert "/no/such/path" in error_result(caller.run(flag, "/no/such/path", "--", "true"), "path_not_found")


@pytest.mark.parametrize("flag", ["--readable", "--writable", "--shared"])
def test_unreadable_path_in_a_grant(caller, flag):
    """A grant of what the caller may not enter is path_denied."""
    if caller.uid == 0:
        skip("root may read everything")
    closed = caller.directory(0o700)
    (closed / "inner").mkdir()
    os.chown(closed / "inner", os.geteuid(), -1)
    caller.own(closed)
    os.chmod(closed / "inner", 0)
    os.chmod(closed, 0)
    if os.geteuid() == 0:
        os.chown(closed, 0, 0)
    try:
        result = caller.run(flag, closed / "inner", "--", "true")
        assert str(closed) in error_result(result, "path_denied")
    finally:
        os.chmod(closed, 0o700)


def test_denied_path_that_does_not_exist(caller):
    """Denying what is not there is not an error: nothing is to be hidden."""
    assert caller.run("--denied", "/no/such/path", "--", "true").exit_code == 0


@pytest.mark.parametrize(
    "flags",
    [
        ["--memory", "99999999999999999999G"],
        ["--memory", "16777216T"],
        ["--memory", "-1"],
        ["--memory", "0"],
        ["--memory", "12Q"],
        ["--memory", ""],
        ["--memory", "1.5.2M"],
        ["--memory", "0x10"],
        ["--memory", "nan"],
        ["--memory", "1"],
        ["--memory", "4096"],
        ["--disk", "1"],
        ["--open-files", "3"],
        ["--disk", "18446744073709551616"],
        ["--disk", " 1M "],
        ["--output-limit", "-5"],
        ["--processes", "0"],
        ["--processes", "-3"],
        ["--processes", "4294967296"],
        ["--processes", "many"],
        ["--processes", "1e3"],
        ["--cpus", "0"],
        ["--cpus", "-1"],
        ["--cpus", "inf"],
        ["--cpus", "nan"],
        ["--open-files", "99999999999"],
        ["--timeout", "0"],
        ["--timeout", "-1"],
        ["--timeout", "nan"],
        ["--timeout", "inf"],
        ["--timeout", "1e300"],
        ["--timeout", "soon"],
        ["--timeout", ""],
        ["--env", "novalue"],
        ["--env", "=x"],
        ["--user", "nobody-here"],
        ["--user", "-1"],
        ["--net", "moon"],
        ["--isolation", "hope"],
        ["--hostname", "a" * 65],
        ["--hostname", ""],
        ["--time-start", "yesterday"],
        ["--seed", "-1"],
        ["--seed", "x"],
        ["--readable", ""],
        ["--policy", "/no/such/policy"],
        ["--unknown"],
        ["--memory"],
    ],
    ids=" ".join,
)
def test_bad_flag(caller, flags):
    """A flag's bad value is one line that names the flag; nothing is run."""
    done = caller.rollbox("run", *flags, *([] if flags == ["--memory"] else ["--", "echo", "ran"]))
    text = error(done)
    key = {
        "--memory": "memory",
        "--disk": "disk",
        "--output-limit": "output",
        "--open-files": "open",
        "--policy": "/no/such/policy",
    }.get(flags[0], flags[0].strip("-").split("-")[0])
    assert key in text, text


@pytest.mark.parametrize(
    "flags",
    [
        ["--memory", "4M"],
        ["--disk", "64K"],
        ["--open-files", "16"],
        ["--processes", "1"],
        ["--timeout", "0.001"],
        ["--cpus", "0.01"],
        ["--output-limit", "0"],
    ],
    ids=" ".join,
)
def test_limit_too_small_to_run(caller, flags):
    """A limit so small that hardly anything runs gives an outcome or one error: no hang, no crash,
    no exit of what did not run."""
    result = caller.run(*flags, "--", "sh", "-c", "exit 7", timeout=30)
    assert result.outcome in ("exit", "signal", "timeout", "out_of_memory", "output_limit", "error"), result.told
    if result.outcome == "error":
        assert flags[0] == "--cpus" and result.error["code"] == "feature_missing", result.told
    if flags[0] in ("--disk", "--processes", "--open-files", "--output-limit"):
        assert (result.outcome, result.exit_code) == ("exit", 7), result.told


# ---- the policy ----


@pytest.mark.parametrize(
    "text,what",
    [
        ('{\n "fs_readible": ["/usr"]\n}', "fs_readable"),
        ('{\n\n "max_memory": "99999999999999G"}', "max_memory"),
        ('{"max_memory": "12 potatoes"}', "max_memory"),
        ('{"timeout": 0}', "timeout"),
        ('{"timeout": -5}', "timeout"),
        ('{"net": "everything"}', "net"),
        ('{"fs_readable": "/usr"}', "fs_readable"),
        ('{"fs_readable": [1]}', "fs_readable"),
        ('{"fs_readable": ["usr"]}', "usr"),
        ('{"max_processes": 1.5}', "max_processes"),
        ('{"env": {"A": 1}}', "env"),
        ('{"env": {"A": "x\\u0000y"}}', "env"),
        ('{"fs_readable": ["/u\\u0000"]}', "fs_readable"),
        ("{", "JSON"),
        ("", "empty"),
        ("[]", "object"),
        ("null", "JSON"),
        ('{"net": "none", "net": "host"}', "net"),
        ('{"cwd": "x"} trailing', "JSON"),
        ("\xff", "UTF-8"),
        ('{"cwd": "relative"}', "cwd"),
    ],
    ids=range(21),
)
def test_bad_policy(caller, text, what):
    """A policy that is not valid is refused before anything runs, naming the key; an unknown one
    with the one that was meant."""
    path = caller.home / "policy.json"
    path.write_bytes(text.encode("latin-1"))
    caller.own(path)
    done = caller.rollbox("run", "--policy", path, "--", "echo", "ran")
    assert done.returncode == 125 and done.stdout == b"" and what.encode() in done.stderr, done
    assert caller.rollbox("policy", "check", path).returncode == 1


def test_bad_policy_with_json(caller):
    """With --json, a policy that is not valid is a result as every other error is: outcome error, policy_invalid."""
    result = caller.run("--policy", caller.write(caller.home / "bad.json", '{"fs_readible": []}'), "--", "true")
    assert (result.outcome, result.error["code"]) == ("error", "policy_invalid") and "fs_readible" in result.error[
        "message"
    ], result.told


def test_unknown_policy_key_has_its_line(caller):
    """`policy check` tells all problems at once, each with its line."""
    path = caller.write(caller.home / "two.json", '{\n  "fs_readible": [],\n  "net": "none",\n  "max_memry": "1M"\n}')
    done = caller.rollbox("policy", "check", "--json", path)
    assert done.returncode == 1
    text = (done.stdout + done.stderr).decode()
    assert "fs_readible" in text and "max_memry" in text and "fs_readable" in text and "max_memory" in text, text
    lines = [problem["line"] for problem in json.loads(done.stdout)] if done.stdout.startswith(b"[") else None
    assert lines is None or lines == [2, 4], lines


def test_policy_of_a_megabyte(caller):
    """A very large policy, and one nested very deeply, are an answer or an error, not a crash."""
    many = {"env": {f"V{i}": "x" * 100 for i in range(8000)}}
    done = caller.rollbox(
        "run",
        "--policy",
        caller.write(caller.home / "large.json", json.dumps(many)),
        "--",
        "sh",
        "-c",
        "echo ${#V7999}",
    )
    assert (
        done.returncode == 0
        and done.stdout == b"100\n"
        or done.returncode == 125
        and b"env" in done.stderr
        and len(done.stderr) < 1000
    ), done
    done = caller.rollbox("run", "--policy", caller.write(caller.home / "deep.json", "[" * 200000), "--", "true")
    assert done.returncode == 125 and b"nested" in done.stderr and len(done.stderr) < 1000, done


# ---- arguments and input ----


def test_arguments_of_two_megabytes(caller):
    """2 MB of arguments arrive whole, or are refused in one line: never cut, never a hang."""
    arguments = ["a" * 1000] * 1900
    try:
        done = caller.rollbox("run", "--", "sh", "-c", 'echo $# ${#1}', "sh", *arguments)
    except OSError:
        skip("the machine itself cannot pass so many arguments")
    if done.returncode == 0:
        assert done.stdout == b"1900 1000\n", done.stdout
    else:
        assert (
            done.returncode in (125, 126)
            and b"rgument" in done.stderr
            and done.stderr.count(b"\n") == 1
            and len(done.stderr) < 2000
        ), done.stderr[:300]


def test_input_of_fifty_megabytes(caller):
    """50 MB of standard input arrive whole, with and without --json."""
    data = b"0123456789abcde\n" * (50 * 65536)
    done = caller.rollbox("run", "--", "wc", "-c", input=data)
    assert done.stdout.strip() == str(len(data)).encode(), done
    assert caller.run("--", "md5sum", input=data).stdout == hashlib.md5(data).hexdigest() + "  -\n"


def test_unread_input_is_no_error(caller):
    """A guest that ends without reading its input does not hold anything up, nor kill the caller by SIGPIPE."""
    done = caller.rollbox("run", "--", "sh", "-c", "exec <&-; echo done; exit 3", input=b"x" * (50 << 20))
    assert (done.returncode, done.stdout) == (3, b"done\n"), done


def test_input_that_cannot_be_read(caller):
    """A command that would have seen a false end of its input has no result. An input that is not
    open for reading (nohup's) is empty."""
    for name, flags, status, told in (
        ("/etc", os.O_RDONLY, 125, b"cannot read standard input: Is a directory"),
        ("/proc/self/mem", os.O_RDONLY, 125, b"cannot read standard input: Input/output error"),
        ("/dev/null", os.O_WRONLY, 0, b""),
    ):
        fd = os.open(name, flags)
        done = caller.rollbox("run", "--", "cat", stdin=fd)
        os.close(fd)
        assert done.returncode == status and told in done.stderr, done


def test_closed_output_pipe_ends_the_run(caller):
    """A closed standard output ends the command, without a trace of the sandbox, and not as success."""
    marker = f"rollbox-marker-{os.getpid()}-closed"
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = caller.rollbox("run", "--", "yes", marker, stdout=write_end)
    finally:
        os.close(write_end)
    assert done.returncode != 0
    wait_unmarked(marker)


def test_full_device_as_output(caller):
    """A full disk under the result is an error with a line, not a success."""
    for arguments in (["run", "--json", "--", "true"], ["run", "--", "echo", "x"], ["doctor", "--json"]):
        with open("/dev/full", "wb") as full:
            done = caller.rollbox(*arguments, stdout=full)
        assert done.returncode not in (0, 134, 139) and b"No space left" in done.stderr, (arguments, done)


def test_batch_onto_a_full_disk(caller):
    """A batch whose results cannot be written says so and ends; it does not run everything for nothing."""
    source = caller.write(
        caller.home / "jobs.jsonl",
        "".join(
            json.dumps({"id": str(i), "argv": ["echo", "x" * 5000]}) + "\n" for i in range(100)
        ),
    )
    done = caller.rollbox("batch", source, "-o", "/dev/full")
    assert (
        done.returncode not in (0, 1, 134, 139)
        and b"No space left" in done.stderr
        or b"/dev/full" in done.stderr
    ), done
    program = [
        "unshare",
        "--mount",
        *([] if caller.uid == 0 else ["--user", "--map-root-user"]),
        "sh",
        "-c",
        'mount -t tmpfs -o size=64k none "$1" && exec "$2" batch "$3" -o "$1/rows.jsonl"',
        "sh",
        caller.directory(),
        binaries() / "rollbox",
        source,
    ]
    done = caller.call(*program)
    if b"unshare" in done.stderr or b"mount:" in done.stderr:
        skip("no mount namespace here")
    assert done.returncode not in (0, 134, 139) and done.stderr, done


def test_closed_standard_streams(caller):
    """Started with 0, 1 and 2 closed, rollbox neither crashes nor gives the guest a file of its own as a stream."""
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        status = caller.call(
            "sh",
            "-c",
            f'"$0" run -- {PYTHON[0]} -I -S -c "import os; os._exit(9 if any(os.path.exists(f\'/proc/self/fd/{{n}}\') and \'socket\' '
            f'in os.readlink(f\'/proc/self/fd/{{n}}\') for n in range(3)) else 4)" {closed}',
            binaries() / "rollbox",
        ).returncode
        assert status in (4, 125), (closed, status)


# ---- files of jobs ----


@pytest.mark.parametrize(
    "line",
    [
        '{',
        '{}',
        '[]',
        'null',
        '{"id": "a"}',
        '{"id": "a", "argv": []}',
        '{"id": "a", "argv": "true"}',
        '{"id": "a", "argv": [1]}',
        '{"id": "a", "argv": ["a\\u0000b"]}',
        '{"id": {}, "argv": ["true"]}',
        '{"id": "a", "argv": ["true"], "code": "x", "language": "python"}',
        '{"id": "a", "code": "x"}',
        '{"id": "a", "code": "x", "language": "klingon"}',
        '{"id": "a", "argv": ["true"], "timeout_s": 0}',
        '{"id": "a", "argv": ["true"], "timeout_s": -1}',
        '{"id": "a", "argv": ["true"], "timeout_s": "1"}',
        '{"id": "a", "argv": ["true"], "timeout_s": 1e400}',
        '{"id": "a", "argv": ["true"], "unknown": 1}',
        '{"id": "a", "argv": ["true"], "policy": {"fs_readible": []}}',
        '{"id": "a", "argv": ["true"], "files": {"": "x"}}',
        '{"id": "a", "argv": ["true"], "files": []}',
        '{"id": "a", "argv": ["true"], "env": {"A=B": "x"}}',
        '{"id": "a", "argv": ["true"], "env": []}',
        '{"id": "a", "argv": ["true"], "cwd": 3}',
        '\xff\xfe',
    ],
    ids=range(25),
)
def test_bad_job(caller, line):
    """A bad job is an error, its line named, and no job is lost for it: those beside it have
    results, or nothing was run at all."""
    home = caller.directory()
    source = home / "jobs.jsonl"
    source.write_bytes(
        b'{"id": "first", "argv": ["echo", "1"]}\n'
        + line.encode("latin-1")
        + b'\n{"id": "last", "argv": ["echo", "2"]}\n'
    )
    caller.own(source)
    done = caller.rollbox("batch", source, "-o", home / "rows.jsonl")
    assert done.returncode in (1, 125), done
    rows = (
        [json.loads(row) for row in (home / "rows.jsonl").read_text().splitlines()]
        if (home / "rows.jsonl").exists()
        else []
    )
    if done.returncode == 125:
        assert b"2" in done.stderr, done
    else:
        by_id = {str(row["id"]): row for row in rows}
        assert by_id["first"]["stdout"] == "1\n" and by_id["last"]["stdout"] == "2\n" and len(rows) == 3, rows
        bad = next(row for row in rows if row["outcome"] == "error")
        assert bad["error"]["code"] in ("invalid_argument", "policy_invalid"), bad


def test_duplicate_ids(caller):
    """Rows do not distinguish two jobs of one id: an error says so, or both have a row."""
    home = caller.directory()
    source = caller.write(
        home / "jobs.jsonl",
        '{"id": "a", "argv": ["echo", "1"]}\n{"id": "a", "argv": ["echo", "2"]}\n',
    )
    done = caller.rollbox("batch", source, "-o", home / "rows.jsonl")
    assert (
        done.returncode in (1, 125)
        and b"" != done.stderr
        or len((home / "rows.jsonl").read_text().splitlines()) == 2
    ), done


def test_empty_batch(caller):
    """An empty file of jobs is no error; a missing one is."""
    home = caller.directory()
    assert caller.rollbox("batch", caller.write(home / "none.jsonl", ""), "-o", home / "rows.jsonl").returncode == 0
    assert "missing.jsonl" in error(caller.rollbox("batch", home / "missing.jsonl"))
    error(caller.rollbox("batch", home))


# ---- engines and clients that die ----


def marker(name):
    return f"rollbox-marker-{os.getpid()}-{name}"


TREE_OF_PROCESSES = (
    "import os, signal, sys\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        while True: "
    "signal.pause()\nprint('up', flush=True)\nwhile True: signal.pause()"
)


@pytest.mark.parametrize("isolation", ["namespace", "process"])
def test_killed_engine(caller, isolation):
    """An engine killed in the middle of a run: the command says so and ends with 125, and no
    process of the sandbox is left."""
    with caller.start(
        "--isolation",
        isolation,
        "--processes",
        "1000",
        "--",
        *PYTHON,
        TREE_OF_PROCESSES,
        marker("engine"),
    ) as run:
        assert run.line() == "up"
        family = run.family()
        engine = engine_of(run.process.pid)
        assert len(family) >= 6
        os.kill(engine, signal.SIGKILL)
        status, out, err = run.finish()
        assert status == 125 and out == b"" and b"engine" in err and err.count(b"\n") == 1, (status, out, err)
        wait_gone(family)
        wait_unmarked(marker("engine"))


def test_killed_engine_json(caller):
    """The same with --json: outcome error, engine_lost, and what was written before."""
    grant = caller.directory(0o777)
    os.mkfifo(grant / "fifo")
    os.chmod(grant / "fifo", 0o666)
    with caller.start(
        "--json",
        "--shared",
        grant,
        "--",
        "sh",
        "-c",
        f"echo before; echo up > {grant}/fifo; sleep 1000",
    ) as run:
        with open(grant / "fifo") as fifo:
            assert fifo.read() == "up\n"
        family = run.family()
        os.kill(engine_of(run.process.pid), signal.SIGKILL)
        status, out, _ = run.finish()
        result = json.loads(out)
        assert result["outcome"] == "error" and result["error"]["code"] == "engine_lost" and status == 125, result
        assert result["stdout"] == "before\n", result
        wait_gone(family)


def test_stopped_engine_killed(caller):
    """An engine that was stopped and then killed takes its sandboxes along as well."""
    with caller.start("--", *PYTHON, TREE_OF_PROCESSES, marker("stopped")) as run:
        assert run.line() == "up"
        family, engine = run.family(), engine_of(run.process.pid)
        os.kill(engine, signal.SIGSTOP)
        os.kill(engine, signal.SIGKILL)
        assert run.finish()[0] == 125
        wait_gone(family)


@pytest.mark.parametrize("isolation", ["namespace", "process"])
def test_killed_client(caller, isolation):
    """A command killed with SIGKILL: its private engine and its sandbox are gone, setsid children included."""
    with caller.start(
        "--isolation",
        isolation,
        "--processes",
        "1000",
        "--",
        *PYTHON,
        TREE_OF_PROCESSES,
        marker("client"),
    ) as run:
        assert run.line() == "up"
        family = run.family()
        run.process.kill()
        wait_gone(family)
        wait_unmarked(marker("client"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_interrupted_client(caller, number):
    """A command ended by a signal cleans up, and its status tells of it."""
    with caller.start("--", *PYTHON, TREE_OF_PROCESSES, marker("interrupted")) as run:
        assert run.line() == "up"
        family = run.family()
        run.process.send_signal(number)
        status, _, _ = run.finish()
        assert status in (-number, 128 + number, 125), status
        wait_gone(family)
        wait_unmarked(marker("interrupted"))


def test_killed_batch_resumes(caller):
    """A batch killed in the middle leaves no process, and run again does what is missing and nothing twice."""
    home = caller.directory()
    grant = caller.directory(0o777)
    os.mkfifo(grant / "fifo")
    os.chmod(grant / "fifo", 0o666)
    jobs = [
        {
            "id": str(i),
            "argv": [
                "sh",
                "-c",
                f"echo {i} >> {grant}/log; echo {marker('batch')} >/dev/null; "
                + (f"[ -e {grant}/go ] || {{ echo up > {grant}/fifo; sleep 1000; }}; " if i == 20 else "")
                + f"echo {i}",
            ],
            "policy": {"fs_shared": [str(grant)]},
        }
        for i in range(40)
    ]
    source = caller.write(home / "jobs.jsonl", "".join(json.dumps(job) + "\n" for job in jobs))
    command = [binaries() / "rollbox", "batch", source, "-o", home / "rows.jsonl", "-j", "1"]
    with Started(caller.popen(command, stderr=subprocess.PIPE)) as run:
        with open(grant / "fifo") as fifo:
            assert fifo.read() == "up\n"
        family = run.family()
        run.process.kill()
        wait_gone(family)
    (grant / "go").touch()
    done = caller.call(*command)
    assert done.returncode == 0, done
    rows = [json.loads(line) for line in (home / "rows.jsonl").read_text().splitlines()]
    assert sorted(int(row["id"]) for row in rows) == list(range(40)) and all(
        row["stdout"] == row["id"] + "\n" for row in rows
    )
    ran = (grant / "log").read_text().split()
    assert len(ran) <= 42 and all(ran.count(str(i)) == 1 for i in range(19)), ran


def test_torn_result_row(caller):
    """A batch whose last row was torn by a crash is resumed: the torn row is done again, valid rows are kept."""
    home = caller.directory()
    source = caller.write(
        home / "jobs.jsonl", "".join(json.dumps({"id": str(i), "argv": ["echo", str(i)]}) + "\n" for i in range(4))
    )
    assert caller.rollbox("batch", source, "-o", home / "rows.jsonl", "-j", "1").returncode == 0
    text = (home / "rows.jsonl").read_text()
    (home / "rows.jsonl").write_text(text[:-30])
    assert caller.rollbox("batch", source, "-o", home / "rows.jsonl", "-j", "1").returncode == 0
    rows = [json.loads(line) for line in (home / "rows.jsonl").read_text().splitlines()]
    assert sorted(row["id"] for row in rows) == list("0123") and len(rows) == 4


# ---- shared engines ----


def test_two_engines_on_one_socket(caller):
    """The second engine on a socket is refused in one line, and the first works on."""
    path = caller.directory() / "engine"
    with SharedEngine(caller, path):
        text = caller.rollbox("engine", "start", "--socket", path)
        assert (
            text.returncode not in (0, 134, 139)
            and text.stderr.count(b"\n") == 1
            and str(path).encode() in text.stderr
        ), text
        assert caller.rollbox("run", "--engine", path, "--", "echo", "works").stdout == b"works\n"


def test_stale_socket(caller):
    """The socket that a killed engine left does not keep the next one from starting."""
    path = caller.directory() / "engine"
    with SharedEngine(caller, path) as first:
        first.process.kill()
        first.process.wait()
        error(caller.rollbox("run", "--engine", path, "--", "true"))
    with SharedEngine(caller, path):
        assert caller.rollbox("run", "--engine", path, "--", "echo", "works").stdout == b"works\n"


def test_shared_socket_is_private_to_its_user(caller):
    """The socket is of mode 0600: no other user can run anything there."""
    home = caller.directory(0o755)
    with SharedEngine(caller, home / "engine"):
        assert oct((home / "engine").stat().st_mode & 0o777) == "0o600"
        if os.geteuid() == 0:
            done = subprocess.run(
                [binaries() / "rollbox", "run", "--engine", home / "engine", "--", "echo", "x"],
                user=4321,
                group=4321,
                extra_groups=[],
                capture_output=True,
                cwd="/",
                env={},
            )
            assert done.returncode == 125 and done.stdout == b"", done


@pytest.mark.parametrize("grant", ["--readable", "--shared"])
def test_shared_socket_serves_no_guest(caller, grant):
    """A guest that finds the socket in what it was granted has the caller's id, and could have
    asked for any sandbox."""
    home = caller.directory(0o755)
    secret = caller.write(home / "secret", "reached\n")
    with SharedEngine(caller, home / "engine"):
        inside = (
            binaries() / "rollbox",
            "run",
            "--json",
            "--engine",
            home / "engine",
            "--readable",
            secret,
            "--",
            "cat",
            secret,
        )
        for engine in ((), ("--engine", home / "engine")):
            result = caller.run(*engine, grant, home / "engine", "--readable", binaries(), "--", *inside)
            assert result.exit_code == 125 and "reached" not in result.stdout, result.told
        assert caller.run("--engine", home / "engine", "--readable", secret, "--", "cat", secret).stdout == "reached\n"


# In a pid namespace of its own, whose ids no other process takes. Prints what the engine says to a
# process that inherited the connection of an ended one, whose id another process has by now.
LEFT = """
import os, signal, socket, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from protocol import HELLO, Client
path = sys.argv[3]
engine = subprocess.Popen([sys.argv[2], "engine", "start", "--socket", path])
while True:
    try:
        Client(path).socket.close()
        break
    except (FileNotFoundError, ConnectionRefusedError):
        os.sched_yield()
def connected_by_another():
    client = Client.__new__(Client)
    client.socket, client.serial, client.answers = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), 0, {}
    child = os.fork()
    if child == 0:
        client.socket.connect(path)
        os._exit(0)
    os.waitpid(child, 0)
    return client, child
os.kill(engine.pid, signal.SIGSTOP)
os.waitid(os.P_PID, engine.pid, os.WSTOPPED | os.WNOWAIT)
client, pid = connected_by_another()
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write(str(pid - 1))
other = os.fork()
if other == 0:
    signal.pause()
assert other == pid
os.kill(engine.pid, signal.SIGCONT)
try:
    print(client.ask(HELLO, VERSION=2)["type"])
except (EOFError, ConnectionError):
    print("closed")
os.kill(other, signal.SIGKILL)
engine.terminate()
engine.wait()
"""


def test_shared_socket_serves_nobody_by_another_s_id(caller):
    if os.geteuid() != 0 or caller.name != "root":
        skip("needs root: to choose process ids")
    done = caller.call(
        "unshare",
        "--pid",
        "--fork",
        "--mount-proc",
        *PYTHON,
        LEFT,
        TREE / "tests/integration",
        binaries() / "rollbox",
        caller.directory() / "engine",
    )
    assert done.stdout == b"closed\n", done


def test_shared_engine_survives_its_clients(caller):
    """A client of a shared engine that is killed loses its sandbox at once; the engine and the others continue."""
    path = caller.directory() / "engine"
    with SharedEngine(caller, path):
        with (
            caller.start("--engine", path, "--", *PYTHON, TREE_OF_PROCESSES, marker("one")) as one,
            caller.start("--engine", path, "--", "sh", "-c", "echo up; read line; echo $line") as two,
        ):
            assert one.line() == "up" and two.line() == "up"
            one.process.kill()
            wait_unmarked(marker("one"))
            two.say("still here")
            assert two.finish()[1] == b"still here\n"


def test_garbage_on_the_socket(caller):
    """A client of the same user sends any bytes; the engine still serves the others."""
    path = caller.directory() / "engine"
    with SharedEngine(caller, path):
        for message in (b"", b"\0", b"x" * 100000, bytes(range(256)) * 40, b"\xff" * 64, b"\x01\x00\x00\x00" * 16):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.settimeout(DEADLINE)
                client.connect(str(path))
                try:
                    client.send(message)
                    client.recv(65536)
                except OSError:
                    pass
        # One that sends descriptors, and one that connects and says nothing.
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as idle,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as giver,
        ):
            idle.connect(str(path))
            giver.connect(str(path))
            try:
                socket.send_fds(giver, [b"x" * 16], [0] * 200)
            except OSError:
                pass
            assert caller.rollbox("run", "--engine", path, "--", "echo", "works").stdout == b"works\n"


def test_engine_that_is_not_there(caller):
    """A socket path that does not exist, is a file, or is too long for a socket: one line that names it."""
    home = caller.directory()
    caller.write(home / "file", "")
    for path in (home / "none", home / "file", "/" + "x" * 200):
        error(caller.rollbox("run", "--engine", path, "--", "true"))


def test_engine_program_missing(caller):
    """Without its engine or its init, rollbox says what it looked for."""
    lonely = caller.directory(0o755)
    shutil.copy(binaries() / "rollbox", lonely / "rollbox")
    env = caller.environment(PATH="/usr/bin:/bin")
    env.pop("ROLLBOX_ENGINE", None)
    done = caller.call(lonely / "rollbox", "run", "--", "true", env=env)
    # An installed engine may be found instead.
    assert (
        done.returncode == 0
        or done.returncode == 125
        and b"engine" in done.stderr
        and done.stderr.count(b"\n") == 1
    ), done
    error(caller.rollbox("run", "--", "true", env=caller.environment(ROLLBOX_ENGINE="/no/such/engine")))
    error(caller.rollbox("run", "--", "true", env=caller.environment(ROLLBOX_ENGINE="/bin/true")))
    shutil.copy(binaries() / "rollbox-engine", lonely / "rollbox-engine")
    env["ROLLBOX_ENGINE"] = str(lonely / "rollbox-engine")
    done = caller.call(lonely / "rollbox", "run", "--", "true", env=env)
    assert done.returncode == 0 or done.returncode == 125 and b"init" in done.stderr, done


# ---- hosts that run out ----


def limited(who, number, value, *arguments):
    def set_limit():
        resource.setrlimit(number, (value, value))

    return who.rollbox(*arguments, preexec_fn=set_limit)


def fails_cleanly(done):
    if done.returncode == 0:
        return
    assert (
        done.returncode == 125
        and done.stderr
        and b"Sanitizer" not in done.stderr
        and done.stderr.count(b"\n") <= 2
    ), done


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 24, 28, 32, 40, 48, 64])
def test_few_descriptors(caller, count):
    """With too few descriptors for client and engine: one error, or the right result; never a hang."""
    done = limited(caller, resource.RLIMIT_NOFILE, count, "run", "--", "echo", "ran")
    fails_cleanly(done)
    assert done.returncode or done.stdout == b"ran\n"


@pytest.mark.parametrize("mib", [1, 2, 4, 6, 8, 12, 16, 24, 32, 64])
def test_little_address_space(caller, mib):
    """With too little memory for client or engine: one error, or the right result."""
    done = limited(caller, resource.RLIMIT_AS, mib << 20, "run", "--", "echo", "ran")
    if done.returncode < 0 or done.returncode in (126, 127):
        return  # the kernel could not even load the command, or the guest
    fails_cleanly(done)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 10])
def test_few_processes(caller, count):
    """Where the caller may have few processes: resource_exhausted or another error, or the right result."""
    if caller.uid == 0:
        skip("root has no such limit")
    mine = sum(1 for entry in os.listdir("/proc") if entry.isdigit() and _uid(entry) == caller.uid)
    done = limited(caller, resource.RLIMIT_NPROC, mine + count, "run", "--", "echo", "ran")
    fails_cleanly(done)


def _uid(entry):
    try:
        return os.stat(f"/proc/{entry}").st_uid
    except OSError:
        return -1


def test_no_file_size(caller):
    """RLIMIT_FSIZE of the caller: no SIGXFSZ takes the engine, and output of any size is kept."""
    done = limited(caller, resource.RLIMIT_FSIZE, 4096, "run", "--json", "--", "head", "-c", "1000000", "/dev/zero")
    result = json.loads(done.stdout)
    assert (
        result["outcome"] == "exit"
        and len(result["stdout"]) == 1000000
        or result["outcome"] == "error"
        and result["error"]["code"] in ("io", "resource_exhausted", "setup_failed")
    ), result["error"]


def test_batch_with_few_descriptors(caller):
    """-j 100 under 60 descriptors gives every job its result: what is short is waited for, and
    never the job's fault."""
    home = caller.directory()
    source = caller.write(
        home / "jobs.jsonl", "".join(json.dumps({"id": str(i), "argv": ["echo", str(i)]}) + "\n" for i in range(100))
    )

    def set_limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))

    done = caller.rollbox("batch", source, "-o", home / "rows.jsonl", "-j", "100", preexec_fn=set_limit)
    assert done.returncode in (0, 1, 125), done
    if done.returncode != 125:
        rows = [json.loads(line) for line in (home / "rows.jsonl").read_text().splitlines()]
        assert len(rows) == 100 and all(
            row["stdout"] == row["id"] + "\n"
            or row["error"]["code"] in ("resource_exhausted", "setup_failed")
            for row in rows
        ), rows[:3]


@pytest.mark.parametrize("mask", ["-userns", "-landlock", "-seccomp"])
def test_missing_isolation_is_an_error(caller, mask):
    """A missing kernel feature is an error that names it, never a weaker sandbox."""
    result = caller.run("--", "true", env=caller.environment(ROLLBOX_KFEAT=mask))
    if result.outcome == "error":
        assert result.error["code"] == "feature_missing" and result.error["message"], result.told
    else:
        assert (result.outcome, result.exit_code) == ("exit", 0) and mask != "-seccomp", result.told
        assert (
            mask[1:] not in json.dumps(result.isolation)
            or "landlock" not in result.isolation
            or not result.isolation.get("landlock")
        ), result.isolation


# ---- the Python package ----


@pytest.fixture(scope="session")
def rollbox():
    """The package, as installed or from this tree."""
    try:
        return importlib.import_module("rollbox")
    except Exception:
        sys.path.insert(0, str(TREE / "python"))
        os.environ.setdefault("ROLLBOX_LIBRARY", str(binaries() / "librollbox.so"))
        os.environ.setdefault("ROLLBOX_ENGINE", str(binaries() / "rollbox-engine"))
        return importlib.import_module("rollbox")


def test_python_nul_in_argv(rollbox):
    """A NUL in an argument, variable, path or working directory is InvalidArgument, which is a ValueError."""
    box = rollbox.Sandbox(rollbox.Policy())
    for arguments in (
        {"argv": ["echo", "a\0b"]},
        {"argv": ["a\0"]},
        {"argv": ["true"], "env": {"A": "\0"}},
        {"argv": ["true"], "env": {"A\0": "x"}},
        {"argv": ["true"], "cwd": "/\0"},
        {"argv": ["true"], "files": {"a\0": "x"}},
    ):
        with pytest.raises(rollbox.InvalidArgument):
            box.run(**arguments)
    with pytest.raises(ValueError):
        box.run(["echo", "\0"])


def test_python_bad_arguments(rollbox):
    """No argument, a wrong type, a time-out of 0, below, or none at all: InvalidArgument before anything runs."""
    box = rollbox.Sandbox(rollbox.Policy())
    for argv in ([], [1], [None], b"true", {"a": 1}, None):
        with pytest.raises((rollbox.InvalidArgument, TypeError)):
            box.run(argv)
    for timeout in (0, -1, float("nan"), float("inf"), "1", True):
        with pytest.raises((rollbox.InvalidArgument, TypeError)):
            box.run(["true"], timeout=timeout)


def test_python_errors_are_raised(rollbox):
    """A failure of rollbox is raised as an exception of its own, never returned as a program's failure."""
    box = rollbox.Sandbox(rollbox.Policy())
    for kind, arguments in (
        (rollbox.CommandNotFound, {"argv": ["no-such-program"]}),
        (rollbox.NotExecutable, {"argv": ["/etc/passwd"]}),
        (rollbox.BadCwd, {"argv": ["true"], "cwd": "/no/such"}),
    ):
        with pytest.raises(kind):
            box.run(**arguments)
    with pytest.raises(rollbox.PathNotFound):
        rollbox.Sandbox(rollbox.Policy(fs_readable=["/no/such"])).run(["true"])
    with pytest.raises((rollbox.PolicyInvalid, TypeError, ValueError)):
        rollbox.Sandbox(rollbox.Policy(max_memory="99999999999999999G")).run(["true"])


def test_python_two_megabytes(rollbox):
    """2 MB of arguments in one and in many: arrive whole or are refused."""
    box = rollbox.Sandbox(rollbox.Policy())
    for argv in (["sh", "-c", "echo $#", "sh"] + ["a" * 1000] * 2000, ["echo", "a" * (2 << 20)]):
        try:
            result = box.run(argv)
        except rollbox.RollboxError as problem:
            assert not isinstance(problem, (rollbox.InternalError, rollbox.EngineLost)) and str(problem)
        else:
            assert result.stdout == b"2000\n", result
    assert box.run(["echo", "works"]).stdout == b"works\n"


def test_python_fifty_megabytes(rollbox):
    """50 MB in, 10 MiB out, and an input that nobody reads."""
    box = rollbox.Sandbox(rollbox.Policy(max_output=60 << 20))
    data = b"0123456789abcde\n" * (50 * 65536)
    assert box.run(["wc", "-c"], stdin=data).text.strip() == str(len(data))
    assert box.run(["cat"], stdin=data).stdout == data
    assert box.run(["true"], stdin=data).exit_code == 0


def test_python_killed_engine(rollbox):
    """An engine killed under a run raises EngineLost there; the next run has a new engine."""
    engine = rollbox.Engine()
    box = rollbox.Sandbox(rollbox.Policy(), engine=engine)
    first = engine.pid
    problems = []

    def run():
        try:
            box.run(["sleep", "1000"])
        except rollbox.RollboxError as problem:
            problems.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    step = threading.Event()
    for _ in range(3000):
        if engine.status()["sandboxes"] >= 1 and any(comm(p) == "sleep" for p in descendants(first)):
            break
        step.wait(0.01)
    os.kill(first, signal.SIGKILL)
    thread.join(DEADLINE)
    assert [type(problem) for problem in problems] == [rollbox.EngineLost], problems
    assert box.run(["echo", "works"]).stdout == b"works\n" and engine.pid != first
    engine.close()


def test_python_killed_process(rollbox, tmp_path):
    """A Python process killed by SIGKILL in the middle of a thousand runs leaves no engine and no sandbox."""
    code = textwrap.dedent(f"""
        import sys
        sys.path[:0] = {[p for p in sys.path if p]!r}
        import rollbox
        print(rollbox.default_engine().pid, flush=True)
        rollbox.run_many([["sh", "-c", "sleep 1000; : {marker('many')}"]] * 50, concurrency=20)
    """)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=dict(os.environ))
    try:
        engine = int(process.stdout.readline())
        step = threading.Event()
        for _ in range(3000):
            if len(marked("sleep 1000; : " + marker("many"))) >= 5:
                break
            step.wait(0.01)
        family = pidfds(descendants(engine))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    wait_gone(family)
    wait_unmarked("sleep 1000; : " + marker("many"))
