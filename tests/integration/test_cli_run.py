# SPDX-License-Identifier: Apache-2.0
"""rollbox run: streams, limits, exit statuses, --json, and options that are wrong."""

import json
import os
import re
import signal
import socket
import stat
import subprocess

import pytest

from harness import TREE

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


# ---- without --json
# ---------------------------------------------------------------------------------------------------


def test_streams_and_status(cli):
    done = cli("run", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")


def test_first_word_without_dashes_begins_the_command(cli):
    done = cli("run", "--timeout", "60", "echo", "--json", "-h", "--", "x")
    assert (done.returncode, done.stdout) == (0, b"--json -h -- x\n")


def test_arguments_arrive_as_they_are(cli):
    words = ["", " ", "'\"$(id)\\", "\n", "é", "*"]
    done = cli("run", "--", "sh", "-c", 'printf "<%s>" "$@"', "sh", *words)
    assert done.stdout.decode() == "".join(f"<{word}>" for word in words)


def test_any_number_of_arguments(cli):
    """init has the pointers to them, and to the environment, on its stack, up to some sixty; more
    of them in a mapping."""
    environments = set()
    for n in [*range(44, 56), 400]:
        words = [str(i) for i in range(n)]
        first, *rest = cli("run", "--", "sh", "-c", 'echo "$@"; env', "sh", *words).stdout.decode().splitlines()
        assert first.split() == words
        environments.add(tuple(rest))
    assert len(environments) == 1 and any(line.startswith("PATH=") for line in environments.pop())


def test_cover_includes_inner_mounts(cli):
    """/proc/sys is the template's, with one file of the kernel's in it."""
    lines = cli("run", "--", "sh", "-c", "cd /proc/sys/kernel; cat random/uuid random/uuid; cat ostype").stdout.split()
    assert [len(line) for line in lines] == [36, 36, 5] and lines[0] != lines[1]


def test_killed_by_a_signal(cli):
    assert cli("run", "--", "sh", "-c", "kill -SEGV $$").returncode == 128 + signal.SIGSEGV


def test_not_found(cli):
    done = cli("run", "--", "no-such-program")
    assert done.returncode == 127 and done.stderr.startswith(b"rollbox run: ") and done.stderr.count(b"\n") == 1


def test_not_executable(cli):
    done = cli("run", "--", "/etc/passwd")
    assert done.returncode == 126 and done.stderr.count(b"\n") == 1


def test_timeout(cli):
    done = cli("run", "--timeout", "2", "--", "sh", "-c", "echo before; while :; do :; done")
    assert (done.returncode, done.stdout) == (124, b"before\n")
    assert done.stderr == b"rollbox run: timed out after 2 s\n"


def test_out_of_memory(cli):
    done = cli("run", "--memory", "64M", "--", "python3", "-c", "x = bytearray(1 << 30); print(len(x))")
    assert done.returncode == 137 and b"--memory" in done.stderr and done.stdout == b""


def test_output_limit(cli):
    done = cli("run", "--output-limit", "1000", "--", "sh", "-c", "while :; do echo 0123456789; done")
    assert done.returncode == 141 and len(done.stdout) == 1000 and b"--output-limit" in done.stderr


def test_output_of_just_the_limit(cli):
    done = cli("run", "--output-limit", "1000", "--", "head", "-c", "1000", "/dev/zero")
    assert (done.returncode, len(done.stdout)) == (0, 1000)
    done = cli("run", "--output-limit", "1000", "--", "head", "-c", "1001", "/dev/zero")
    assert (done.returncode, len(done.stdout)) == (141, 1000)


@pytest.mark.parametrize("from_file", [True, False], ids=["file", "pipe"])
@pytest.mark.parametrize("to_file", [True, False], ids=["to-file", "to-pipe"])
def test_fifty_megabytes_through(cli, tmp_path, from_file, to_file):
    data = os.urandom(1 << 20) * 50
    given, got = tmp_path / "given", tmp_path / "got"
    given.write_bytes(data)
    arguments = ["run", "--output-limit", "100M", "--", "cat"]
    with open(given, "rb") as source, open(got, "wb") as target:
        options = {"stdin": source} if from_file else {"input": data}
        done = cli(*arguments, stdout=target if to_file else subprocess.PIPE, **options)
    assert done.returncode == 0
    assert (got.read_bytes() if to_file else done.stdout) == data


def test_input_that_nobody_reads(cli):
    assert cli("run", "--", "true", input=b"x" * 5_000_000).returncode == 0
    assert cli("run", "--", "sh", "-c", "exec 0<&-; echo closed", input=b"x" * 5_000_000).stdout == b"closed\n"


def test_streams_are_live(cli):
    """Each side waits for the other: nothing is held back until the end."""
    with cli.start("run", "--", "sh", "-c", "while read line; do echo got $line; done") as process:
        for word in (b"one", b"two"):
            process.stdin.write(word + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"got " + word + b"\n"
        process.stdin.close()
        assert process.wait() == 0


def test_lost_reader_is_survived(cli):
    with cli.start("run", "--", "sh", "-c", "yes; echo $? >&2") as process:
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        # 141 is what the guest's shell makes of SIGPIPE
        assert process.stderr.read() == b"141\n"
        process.stdin.close()
        assert process.wait() == 0


def test_full_disk_is_reported(cli):
    with open("/dev/full", "wb") as full:
        done = cli("run", "--", "echo", "hi", stdout=full)
    assert done.returncode == 125 and b"cannot write to standard output" in done.stderr


def test_closed_streams(cli):
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" run -- sh -c "cat; echo end" <&- 2>&-', cli.program],
        stdout=subprocess.PIPE,
        env=cli.environment(None),
    )
    assert (done.returncode, done.stdout) == (0, b"end\n")


def test_guest_has_only_pipes(cli, tmp_path):
    with open(tmp_path / "out", "wb") as out, open("/etc/passwd", "rb") as source:
        cli(
            "run",
            "--",
            "python3",
            "-c",
            "import os, stat; print(*[stat.S_IFMT(os.fstat(fd).st_mode) for fd in (0, 1, 2)])",
            stdin=source,
            stdout=out,
        )
    assert (tmp_path / "out").read_text().split() == [str(stat.S_IFIFO)] * 3


def test_output_into_a_socket(cli):
    ours, theirs = socket.socketpair()
    with ours, cli.start("run", "--", "head", "-c", "300000", "/dev/zero", stdout=theirs) as process:
        theirs.close()
        total = 0
        while data := ours.recv(65536):
            total += len(data)
        assert (total, process.wait()) == (300000, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_sandbox(cli, tmp_path, number):
    """The guest holds the write end of a FIFO: its end of file proves that it is gone."""
    shared = tmp_path / "shared"
    shared.mkdir()
    tmp_path.chmod(0o755)
    shared.chmod(0o777)
    fifo = shared / "fifo"
    os.mkfifo(fifo)
    fifo.chmod(0o666)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with cli.start(
        "run",
        "--shared",
        shared,
        "--",
        "sh",
        "-c",
        f"exec 3>{fifo}; echo ready; while :; do read x; done",
        restore_signals=True,
    ) as process:
        assert process.stdout.readline() == b"ready\n", process.stderr.read()
        process.send_signal(number)
        assert process.wait() == -number
        os.set_blocking(reader, True)
        assert os.read(reader, 1) == b""
    os.close(reader)


# ---- --json
# -----------------------------------------------------------------------------------------------------------


def test_json_fields(cli):
    result = cli.json("run", "--json", "--", "sh", "-c", "cat; echo err >&2; exit 3", input=b"in", status=0)
    assert list(result) == FIELDS
    assert (
        result["outcome"],
        result["exit_code"],
        result["signal"],
        result["stdout"],
        result["stderr"],
    ) == ("exit", 3, None, "in", "err\n")
    assert result["error"] is None and result["isolation"] and not result["stdout_truncated"]
    assert result["wall_ms"] > 0 and result["processes_peak"] >= 1


def test_json_is_one_line(cli):
    assert cli("run", "--json", "--", "printf", "a\\nb\\n").stdout.count(b"\n") == 1


def test_json_of_a_signal(cli):
    result = cli.json("run", "--json", "--", "sh", "-c", "kill -ABRT $$", status=0)
    assert (result["outcome"], result["exit_code"], result["signal"]) == ("signal", None, signal.SIGABRT)


def test_json_of_invalid_utf8(cli):
    result = cli.json("run", "--json", "--", "printf", "\\377ok", status=0)
    assert (result["stdout"], result["stdout_base64"]) == ("\ufffdok", "/29r")
    assert "stderr_base64" not in result


def test_json_timeout_keeps_what_was_written(cli):
    result = cli.json("run", "--json", "--timeout", "2", "--", "sh", "-c", "echo before; while :; do :; done", status=0)
    assert (result["outcome"], result["stdout"], result["exit_code"], result["signal"]) == (
        "timeout",
        "before\n",
        None,
        None,
    )


def test_json_output_limit(cli):
    result = cli.json(
        "run",
        "--json",
        "--output-limit",
        "10",
        "--",
        "sh",
        "-c",
        "printf abc >&2; printf 0123456789x",
        status=0,
    )
    assert (
        result["outcome"],
        result["stdout"],
        result["stdout_truncated"],
        result["stderr_truncated"],
    ) == ("output_limit", "0123456789", True, False)


def test_json_fifty_megabytes_of_input(cli):
    result = cli.json("run", "--json", "--", "wc", "-c", input=b"x" * 50_000_000, status=0)
    assert result["stdout"].strip() == "50000000"


def test_json_errors_exit_125(cli):
    result = cli.json("run", "--json", "--", "no-such-program", status=125)
    assert (result["outcome"], result["error"]["code"], result["exit_code"]) == ("error", "command_not_found", None)
    result = cli.json("run", "--json", "--readable", "/no/such/path", "--", "true", status=125)
    assert result["error"]["code"] == "path_not_found" and "/no/such/path" in result["error"]["message"]


def test_no_engine_is_an_error(cli):
    result = cli.json("run", "--json", "--", "true", env={"ROLLBOX_ENGINE": "/no/such/engine"}, status=125)
    assert result["error"]["code"] == "engine_start" and "/no/such/engine" in result["error"]["message"]
    done = cli("run", "--", "true", env={"ROLLBOX_ENGINE": "/no/such/engine"})
    assert done.returncode == 125 and b"/no/such/engine" in done.stderr


# ---- flags and the policy
# ---------------------------------------------------------------------------------------------


def test_environment_is_clean(cli):
    done = cli("run", "--env", "GIVEN=a=b", "--", "env", env={"SECRET_TOKEN": "x"})
    lines = done.stdout.decode().splitlines()
    assert "GIVEN=a=b" in lines and not [line for line in lines if line.startswith("SECRET_TOKEN")]
    done = cli("run", "--no-clean-env", "--", "env", env={"SECRET_TOKEN": "x"})
    assert b"SECRET_TOKEN=x" in done.stdout.splitlines()


def test_identity(cli):
    done = cli("run", "--hostname", "inside", "--cwd", "/", "--", "sh", "-c", "uname -n; pwd; id -u")
    assert done.stdout == b"inside\n/\n1000\n"


def test_relative_paths(cli, tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("here\n")
    (tmp_path / "other").mkdir()
    done = cli("run", "--readable", "../data/./", "--", "cat", tmp_path / "data" / "file", cwd=tmp_path / "other")
    assert done.stdout == b"here\n", done.stderr


def test_relative_path_without_a_working_directory(cli, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    done = cli("run", "--readable", "data", "--", "true", cwd=gone, preexec_fn=gone.rmdir)
    assert done.returncode == 125 and b"--readable data: the path is relative" in done.stderr, done.stderr


def test_readable_adds_to_the_default(cli, tmp_path):
    tmp_path.chmod(0o755)
    assert cli("run", "--readable", tmp_path, "--", "ls", "-d", tmp_path, "/usr").returncode == 0


def test_writable_is_private(cli, tmp_path):
    tmp_path.chmod(0o777)
    (tmp_path / "file").write_text("host\n")
    (tmp_path / "file").chmod(0o666)
    done = cli("run", "--writable", tmp_path, "--", "sh", "-c", f"echo guest > {tmp_path}/file; cat {tmp_path}/file")
    assert done.stdout == b"guest\n", done.stderr
    assert (tmp_path / "file").read_text() == "host\n"


def test_policy_file_and_flags(cli, tmp_path):
    policy = tmp_path / "policy.json"
    policy.write_text('{\n "hostname": "filed",\n "env": {"A": "1"}\n}\n')
    done = cli("run", "--policy", policy, "--env", "B=2", "--", "sh", "-c", "uname -n; echo $A$B")
    assert done.stdout == b"filed\n12\n", done.stderr
    done = cli("run", "--policy", policy, "--hostname", "flagged", "--", "uname", "-n")
    assert done.stdout == b"flagged\n"


def test_bad_policy_file(cli, tmp_path):
    policy = tmp_path / "policy.json"
    policy.write_text('{\n "hostname": "x",\n "fs_readible": []\n}\n')
    done = cli("run", "--policy", policy, "--", "true")
    assert done.returncode == 125 and done.stderr.startswith(f"{policy}:3: ".encode()) and b"fs_readible" in done.stderr
    done = cli("run", "--policy", tmp_path / "missing", "--", "true")
    assert done.returncode == 125 and b"missing" in done.stderr


@pytest.mark.parametrize("flags, words", [
    (["--memry", "1G"], ["--memry", "--memory"]),
    (["--frobnicate"], ["--frobnicate", "--help"]),
    (["--memory"], ["--memory", "SIZE"]),
    (["--memory", "12Q"], ["--memory"]),
    (["--memory", "99999999999999999999T"], ["--memory"]),
    (["--timeout", "0"], ["--timeout"]),
    (["--timeout", "-1"], ["--timeout"]),
    (["--timeout", "nan"], ["--timeout"]),
    (["--timeout", "1s"], ["--timeout"]),
    (["--processes", "many"], ["--processes"]),
    (["--processes", "0"], ["--processes"]),
    (["--cpus", "0"], ["--cpus"]),
    (["--net", "internet"], ["--net", "none|loopback|allow|host"]),
    (["--env", "NOVALUE"], ["--env", "NAME=VALUE"]),
    (["--json=yes"], ["--json"]),
    (["--seed", "18446744073709551616"], ["--seed"]),
    (["--time-start", "yesterday"], ["--time-start"]),
    (["-x"], ["-x"]),
])
def test_wrong_flags(cli, flags, words):
    done = cli("run", *flags, "--", "true")
    text = done.stderr.decode()
    assert done.returncode == 125 and done.stdout == b""
    assert text.startswith("rollbox run: ") and text.count("\n") == 1
    for word in words:
        assert word in text


def test_seeds_of_64_bits(cli, tmp_path):
    """A fork's own seed, which inspect and its record tell, is more than an int64 every other time:
    it is to be run again by --seed."""
    seen = {}
    for seed in ("9223372036854775807", "9223372036854775808", "18446744073709551615"):
        file = tmp_path / f"{seed}.jsonl"
        done = cli(
            "record",
            "-o",
            file,
            "--json",
            "--seed",
            seed,
            "--",
            "sh",
            "-c",
            "head -c 8 /dev/urandom | od -An -tx1",
        )
        row = json.loads(done.stdout)
        assert row["outcome"] == "exit" and row["isolation"]["determinism"]["random_seed"] == seed, done
        seen[seed] = row["stdout"]
        assert cli("verify", file).returncode == 0
        assert (
            json.loads(
                cli(
                    "run",
                    "--json",
                    "--seed",
                    seed,
                    "--",
                    "sh",
                    "-c",
                    "head -c 8 /dev/urandom | od -An -tx1",
                ).stdout
            )["stdout"]
            == seen[seed]
        )
    assert len(set(seen.values())) == 3


def test_nothing_to_run(cli):
    for arguments in (["run"], ["run", "--"], ["run", "--json"]):
        done = cli(*arguments)
        assert done.returncode == 125 and done.stderr.count(b"\n") == 1


def test_unknown_commands(cli):
    assert b"did you mean 'run'" in cli("rum").stderr
    assert b"did you mean 'policy check'" in cli("policy", "chek").stderr
    assert b"start" in cli("engine").stderr
    for arguments in ([], ["frobnicate"], ["policy"]):
        done = cli(*arguments)
        assert done.returncode == 125 and done.stderr.count(b"\n") == 1


# ---- help, man pages, completions
# --------------------------------------------------------------------------------------

SESSION = [
    "create",
    "exec",
    "attach",
    "logs",
    "forward",
    "port",
    "ps",
    "stats",
    "inspect",
    "kill",
    "rm",
    "pause",
    "resume",
    "hibernate",
    "wake",
]
SNAPSHOT = [
    "snapshot show",
    "snapshot verify",
    "snapshot",
    "fork",
    "restore",
    "reset",
    "tree",
    "diff",
    "commit",
    "discard",
    "export",
]
IMAGE = [
    "import",
    "image import",
    "image pull",
    "image push",
    "image export",
    "image commit",
    "image ls",
    "image build",
    "image rm",
    "image inspect",
    "image show",
]
STORE = [
    "store path",
    "store gc",
    "store fsck",
    "store df",
    "volume create",
    "volume ls",
    "volume rm",
    "volume inspect",
    "volume df",
    "volume snapshot",
]
TEMPLATE = ["template create", "template ls", "template rm"]
ENGINE = [
    "engine start",
    "engine status",
    "engine stop",
    "net log",
    "net test",
    "net set",
    "serve",
    "mcp",
    "cost",
    "token create",
    "token tenant",
    "token ls",
    "token rm",
    "debug dump",
]
RECORD = ["record", "replay", "verify"]
COMMANDS = [
    "run",
    "shell",
    *RECORD,
    "batch",
    "doctor",
    "policy check",
    "policy plan",
    "create",
    "exec",
    "attach",
    "logs",
    "forward",
    "port",
    "cp",
    *SESSION[6:],
    *SNAPSHOT,
    *IMAGE,
    *STORE,
    *TEMPLATE,
    *ENGINE,
    "completion",
    "version",
    "help",
]


def page_of(command):
    """The man page that a command's options are in."""
    first = command.split()[0]
    if command == "shell":
        return "rollbox-run.1.scd"
    if command == "debug dump":
        return "rollbox-engine.1.scd"
    if command == "image build":
        return "rollbox-image-build.1.scd"
    if first in ("serve", "token", "mcp"):
        return "rollbox-serve.1.scd"
    if first == "net":
        return "rollbox-session.1.scd"
    for group, commands in (("session", SESSION), ("snapshot", SNAPSHOT), ("image", IMAGE), ("record", RECORD)):
        if command in commands:
            return f"rollbox-{group}.1.scd"
    return (
        f"rollbox-{first}.1.scd"
        if first
        in ("run", "batch", "doctor", "cost", "policy", "cp", "store", "template", "engine", "volume")
        else "rollbox.1.scd"
    )


def test_version(cli):
    assert re.fullmatch(rb"rollbox \d+\.\d+\.\d+\n", cli("version").stdout)
    assert cli("--version").stdout == cli("version").stdout


@pytest.mark.parametrize("group", ["policy", "image", "store", "engine", "template"])
def test_help_of_half_a_command(cli, group):
    """--help lists the commands of a group, and does not complain that a word is missing."""
    done = cli(group, "--help")
    assert (done.returncode, done.stderr) == (0, b"") and f"Usage: rollbox {group} COMMAND".encode() in done.stdout
    assert cli(group).returncode == 125


def test_help_lists_the_commands(cli):
    text = cli("--help").stdout.decode()
    assert [line.split("  ")[1] for line in text.splitlines() if line.startswith("  ")] == COMMANDS
    assert cli("help").stdout.decode() == text


@pytest.mark.parametrize("command", COMMANDS)
def test_man_pages_have_the_options(cli, command):
    """The command's man page has the options of --help, with the same arguments, and no others."""
    done = cli(*command.split(), "--help")
    assert done.returncode == 0 and done.stderr == b""
    helped = set(
        re.findall(r"^  (?:-\w,|   ) --([a-z-]+)(?: (\S+))?", done.stdout.decode(), re.MULTILINE)
    ) - {("help", "")}
    first = command.split()[0]
    page = TREE / "man" / page_of(command)
    text = page.read_text().replace("\\", "")
    if " " in command:
        text = text[text.index(f"rollbox {command}*"):] if f"rollbox {command}*" in text else text
    told = {
        (name, argument or "")
        for name, argument in re.findall(
            r"^(?:\*-\w\*, )?\*--([a-z-]+)\*(?: _([^_]+)_)?$", text, re.MULTILINE
        )
    }
    assert helped <= told, f"not in {page.name}"
    if first in ("run", "batch", "doctor", "cp"):
        assert told <= helped, f"only in {page.name}"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_are_the_programs_own(cli, shell):
    done = cli("completion", shell)
    assert done.returncode == 0
    assert done.stdout == (TREE / "completions" / f"rollbox.{shell}").read_bytes(), (
        f"run: rollbox completion {shell} > completions/rollbox.{shell}"
    )


def test_bash_completion_works(cli):
    script = f"""
        source {TREE}/completions/rollbox.bash
        try() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _rollbox; echo "${{COMPREPLY[*]}}"; }}
        try rollbox ru; try rollbox policy c; try rollbox run --mem; try rollbox run --net lo
    """
    done = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.stderr == "" and done.stdout.split("\n")[:4] == ["run", "check", "--memory", "loopback"]


def test_help_goes_to_a_full_disk(cli):
    with open("/dev/full", "wb") as full:
        assert cli("run", "--help", stdout=full).returncode == 125


def test_shared_engine(cli, tmp_path):
    path = tmp_path / "engine.sock"
    with cli.start("engine", "start", "--socket", path) as engine:
        # The socket is there when the engine answers; its own error would end it.
        while cli("engine", "status", "--socket", path).returncode != 0:
            assert engine.poll() is None, engine.stderr.read()
        status = cli.json("engine", "status", "--socket", path, status=0)
        assert status["pid"] == engine.pid
        assert cli("run", "--engine", path, "--", "echo", "hi").stdout == b"hi\n"
        # Every command takes --engine, before or after its name.
        for words in (["--engine", path, "engine", "status"], ["engine", "status", "--engine", path]):
            assert cli.json(*words, status=0)["pid"] == engine.pid
        assert cli("--engine", path, "run", "--", "echo", "hi").stdout == b"hi\n"
        name = cli("--engine", path, "create").stdout.decode().strip()
        assert cli("exec", "--engine", path, name, "--", "echo", "hi").stdout == b"hi\n"
        assert cli("--engine", tmp_path / "other", "rm", "--engine", path, name).returncode == 0
        assert cli("--engine", path, "store", "df").returncode == 0
        assert cli("store", "df", "--engine", path).returncode == 0
        assert cli("engine", "stop", "--socket", path).returncode == 0
        assert engine.wait() in (0, -signal.SIGTERM)
    done = cli("run", "--engine", path, "--", "true")
    assert done.returncode == 125 and str(path).encode() in done.stderr
    assert json.loads(cli("run", "--json", "--engine", path, "--", "true").stdout)["outcome"] == "error"


def test_engine_needs_a_socket(cli, tmp_path):
    done = cli("engine", "status", env={"ROLLBOX_SOCKET": str(tmp_path / "none")})
    assert done.returncode == 125 and b"--socket" in done.stderr
