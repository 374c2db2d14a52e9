# SPDX-License-Identifier: Apache-2.0
"""Trajectories: what is recorded of what is done, what becomes of the record when something dies or
is full, replay and verify.

The model: the commands are run as each caller; Python's side as the user who runs the tests. A
record is read by rollbox.Trajectory, which checks its digests, and by
`rollbox verify`, which has a reader of its own.
"""

import asyncio
import base64
import json
import os
import pathlib
import signal
import subprocess
import threading
import time
import warnings

import pytest

import rollbox
from rollbox import (
    AsyncSandbox,
    Engine,
    EngineLost,
    FeatureMissing,
    InvalidArgument,
    Policy,
    Record,
    RecordWarning,
    Sandbox,
    Trajectory,
)
from harness import DEADLINE, NO_FILES, binaries, caller, descendants, pidfds, wait_gone  # noqa: F401
from trajectory_files import read, recorder_of, shared_engine, verdict

HOSTILE = b'\xff\xfe\x00{"step": 1, "digest": "x"}\n\x1b[2J\xed\xa0\x80\r\n{"end": {}}\n\xc2\x9b31m'


def kinds(steps):
    return [step.action.kind for step in steps]


# What is recorded

def test_record_has_command_and_result(caller):
    home = caller.directory()
    done = caller.rollbox(
        "record",
        "-o",
        home / "a.jsonl",
        "--seed",
        "7",
        "--env",
        "NAME=value",
        "--timeout",
        "50",
        "--",
        "sh",
        "-c",
        "echo out; echo err >&2; exit 3",
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    header, steps, trajectory = read(home / "a.jsonl")
    assert trajectory.complete and trajectory.end.steps == 1
    assert (
        header.random_seed == 7
        and header.parent is None
        and header.policy["env"] == {"NAME": None}
        and header.from_beginning
    )
    [step] = steps
    assert (
        step.action.argv == ("sh", "-c", "echo out; echo err >&2; exit 3")
        and step.action.timeout == 50
        and step.action.stdin is None
    )
    seen = step.observation
    assert (seen.outcome, seen.exit_code, seen.signal, seen.stdout.data, seen.stderr.data) == (
        "exit",
        3,
        None,
        b"out\n",
        b"err\n",
    )
    assert step.resources.wall_ms > 0 and step.resources.processes_peak >= 1
    assert os.stat(home / "a.jsonl").st_uid == caller.uid


def test_reads_and_writes_are_counted(caller):
    home = caller.directory()
    with shared_engine(caller) as call:
        box = call("create", "--record", home / "a.jsonl")
        call("exec", box, "--", "true")
        call(
            "exec",
            box,
            "--",
            "sh",
            "-c",
            "head -c 3000000 /dev/zero > f; cat f | cat > /dev/null; (exec cat f > /dev/null)",
        )
        call("exec", box, "--timeout", "0.2", "--", "sleep", "1000", status=124)
        call("exec", "-d", box, "--", "sleep", "1000")
        call("rm", box)
    steps = read(home / "a.jsonl")[1]
    idle, busy, killed, lost = (step.resources for step in steps)
    assert idle.read_bytes < 100000 and idle.written_bytes == 0
    assert 12000000 <= busy.read_bytes < 12200000 and 12000000 <= busy.written_bytes < 12200000
    assert killed.read_bytes is not None and killed.written_bytes == 0 and lost.read_bytes is None


def test_concurrent_reads_are_not_counted_for_a_command(caller):
    home = caller.directory()
    caller.write(home / "up", "x" * 3000000)
    waits = "read line < gate; exit 3"
    with shared_engine(caller) as call:
        box = call("create", "--record", home / "a.jsonl")

        def run(script):
            call("exec", box, "--", "sh", "-c", script)

        def waiting(*work):
            """A command that waits for a line while something else is done."""
            running = call("exec", "-d", box, "--", "sh", "-c", waits)
            for one in work:
                one()
            run("echo line > gate")
            call("attach", box, running, status=3)

        def copy():
            call("cp", home / "up", f"{box}:/tmp/up")
            call("cp", f"{box}:/tmp/up", home / "down")

        def busy():
            run("cat up up up > /dev/null")

        def orphan():
            run("(cat up > /dev/null; exec 3> went) & exec true")
            run("read x < went; :")

        run("mkfifo gate went")
        waiting()
        waiting(copy)
        waiting(busy)
        waiting(copy, orphan, busy)
        call("exec", box, "--", "sleep", "0")
        running = call("exec", "-d", box, "--", "sleep", "1000")
        call("kill", box, running)      # init looks for its tree
        call("attach", box, running, status=137)
        call("rm", box)
    steps = read(home / "a.jsonl")[1]
    ended, killed = [
        step.resources.read_bytes
        for step in steps
        if step.action.kind == "exec" and step.action.argv[0] == "sleep"
    ]
    assert 0 < killed <= ended  # it may be killed before it has read its libraries
    seen = [
        (step.resources.read_bytes, step.resources.written_bytes)
        for step in steps
        if step.action.kind == "exec" and step.action.argv[-1] == waits
    ]
    assert len(seen) == 4 and len(set(seen)) == 1 and None not in seen[0]


def test_record_gives_input_and_json(caller):
    home = caller.directory()
    done = caller.rollbox("record", "-i", "--json", "-o", home / "a.jsonl", "--", "cat", input=b"some\xff input")
    assert done.returncode == 0 and base64.b64decode(json.loads(done.stdout)["stdout_base64"]) == b"some\xff input"
    [step] = read(home / "a.jsonl")[1]
    assert step.action.stdin.data == b"some\xff input" and step.observation.stdout.data == b"some\xff input"
    assert verdict(caller, home / "a.jsonl", status=0)["verdict"] == "equal"


def test_every_kind_of_action_of_every_client_is_in_one_file(caller):
    home = caller.directory()
    caller.write(home / "up", "uploaded")
    with shared_engine(caller) as call:
        box = call("create", "--record", home / "a.jsonl", "--seed", "1")
        call("exec", box, "--", "sh", "-c", "echo one > f; cat /proc/sys/kernel/random/uuid")
        call("cp", home / "up", f"{box}:/tmp/up")
        call("snapshot", "--as", "first", box)
        running = call("exec", "-d", box, "--", "sh", "-c", "read x < /dev/zero; sleep 1000")
        call("exec", box, "--", "cat", "up")
        call("fork", "-n", "2", "--from", "first", box)
        call("kill", box, running)
        call("attach", box, running, status=137)
        call("reset", box, "first")
        call("exec", box, "--", "ls")
        record = json.loads(call("inspect", box))["record"]
        assert record["steps"] == 9 and record["error"] is None
        call("rm", box)
        header, steps, trajectory = read(home / "a.jsonl")
    assert trajectory.complete and header.name == box
    assert kinds(steps) == ["exec", "upload", "snapshot", "exec", "exec", "fork", "signal", "reset", "exec"]
    assert [step.number for step in steps] == list(range(1, 10))
    assert steps[1].action.content.data == b"uploaded" and steps[1].action.path == "/tmp/up"
    assert steps[2].observation.snapshot == steps[5].action.snapshot == steps[7].action.snapshot
    assert steps[3].observation.signal == 9 and steps[3].begun_at == 3 and steps[4].begun_at == 3
    assert steps[6].action.fields["exec"] == 4
    assert len(steps[5].children) == 2 and steps[8].observation.stdout.data == b"f\nup\n"


def test_files_written_are_steps_with_their_content(tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "one").write_bytes(b"1")
    with Sandbox(record=tmp_path / "a.jsonl") as box:
        box.exec(["sh", "-c", "cat > in"], stdin=b"given", files={"/tmp/f\udcff": b"\xff", "g": "text"}, cwd="/tmp")
        box.write_file("/tmp/w", HOSTILE, 0o600)
        box.mkdir("/tmp/d/e")
        box.remove("/tmp/d", recursive=True)
        box.upload(tmp_path / "tree", "/tmp/tree")
        with pytest.raises(rollbox.PathDenied):
            box.write_file("/usr/bin/never", b"no")
        assert box.read_file("/tmp/w") == HOSTILE
    _, steps, trajectory = read(tmp_path / "a.jsonl")
    assert trajectory.complete
    assert kinds(steps) == ["exec", "write_file", "mkdir", "remove", "upload", "write_file"]
    assert {path: content.data for path, content in steps[0].action.files.items()} == {
        "/tmp/f\udcff": b"\xff",
        "g": b"text",
    }
    assert steps[0].action.stdin.data == b"given"
    assert steps[1].action.content.data == HOSTILE and steps[1].action.fields["mode"] == 0o600
    assert steps[3].action.fields["recursive"] is True
    assert steps[4].action.content is None and steps[4].action.fields["entries"] == 1
    assert steps[5].observation.outcome == "error" and steps[5].observation.error == "path_denied"


def test_hostile_output_is_data(caller):
    home = caller.directory()
    octal = "".join(f"\\{byte:03o}" for byte in HOSTILE)
    done = caller.rollbox("record", "-o", home / "a.jsonl", "--", "printf", octal.replace("%", "%%"))
    assert done.returncode == 0 and done.stdout == HOSTILE
    raw = (home / "a.jsonl").read_bytes()
    assert raw.count(b"\n") == 3 and all(byte == 10 or 32 <= byte < 127 for byte in raw)
    assert read(home / "a.jsonl")[1][0].observation.stdout.data == HOSTILE
    assert verdict(caller, home / "a.jsonl", status=0)["verdict"] == "equal"


def test_lone_surrogates_and_controls_in_arguments(tmp_path):
    words = ["printf", "%s", "\x1b[0m\x7f\u202e\u2028\\u0000\"", b"\xed\xa0\x80\xff"]
    with Sandbox(record=tmp_path / "a.jsonl") as box:
        box.exec(words)
    [step] = read(tmp_path / "a.jsonl")[1]
    assert [os.fsencode(word) for word in step.action.argv] == [
        word if isinstance(word, bytes) else word.encode() for word in words
    ]


def test_large_streams_have_a_head_and_a_digest(caller):
    home = caller.directory()
    done = caller.rollbox(
        "record",
        "--keep",
        "1000",
        "-o",
        home / "a.jsonl",
        "--output-limit",
        "20M",
        "--",
        "sh",
        "-c",
        "head -c 10485760 /dev/zero | tr '\\0' a",
    )
    assert done.returncode == 0 and len(done.stdout) == 10 << 20
    out = read(home / "a.jsonl")[1][0].observation.stdout
    assert out.size == 10 << 20 and out.data == b"a" * 1000 and out.truncated
    assert (
        out.sha256
        == subprocess.run(["sha256sum"], input=done.stdout, capture_output=True, check=True)
        .stdout.decode()
        .split()[0]
    )
    assert (home / "a.jsonl").stat().st_size < 8192
    assert verdict(caller, "--trust", home / "a.jsonl", status=0)["verdict"] == "equal"


def test_recording_does_not_delay_results(tmp_path):
    """The kernel does not seal a memory file that is being read: once a result could not be sent,
    and the connection ended."""
    with Engine() as engine, Sandbox(engine=engine, record=tmp_path / "a.jsonl") as box:
        for _ in range(150):
            assert len(box.exec(["head", "-c", "1000000", "/dev/zero"]).stdout) == 1000000
    _, steps, trajectory = read(tmp_path / "a.jsonl")
    assert trajectory.complete and len(steps) == 150 and len({step.observation.stdout.sha256 for step in steps}) == 1


def test_digests_do_not_depend_on_how_much_is_kept(tmp_path):
    last = []
    for keep in (10, 100000):
        with Sandbox(Policy(random_seed=4), record=Record(tmp_path / f"{keep}.jsonl", keep=keep)) as box:
            box.exec(["head", "-c", "5000", "/dev/urandom"])
        last.append(read(tmp_path / f"{keep}.jsonl")[1][-1].digest)
    assert last[0] == last[1]


def test_secrets_are_nowhere_in_the_file(tmp_path):
    record = Record(tmp_path / "a.jsonl", redact_env=["TOKEN"], redact=["sk-[a-z]+"])
    with Sandbox(Policy(env={"TOKEN": "policysecret"}), record=record) as box:
        box.exec(
            ["sh", "-c", "echo $TOKEN sk-abcdef; echo argument-secret >&2; env"],
            env={"TOKEN": "argument-secret"},
            stdin=b"stdin sk-xyz",
        )
        box.exec(["sh", "-c", "echo $TOKEN; head -c 3000000 /dev/zero; echo $TOKEN"])
        box.write_file("/tmp/f", "key: sk-inafile")
    raw = (tmp_path / "a.jsonl").read_bytes()
    for secret in (b"policysecret", b"argument-secret", b"sk-abcdef", b"sk-xyz", b"sk-inafile"):
        assert secret not in raw
    _, steps, trajectory = read(tmp_path / "a.jsonl")
    assert trajectory.complete and steps[0].observation.stdout.text.startswith("[redacted:TOKEN] [redacted]\n")
    assert steps[1].observation.stdout.withheld, "a line too long for patterns"
    assert steps[2].action.content.text == "key: [redacted]"


def test_values_of_variables_only_where_asked(tmp_path):
    for asked in (False, True):
        with Sandbox(
            Policy(env={"A": "policyvalue"}),
            record=Record(tmp_path / f"{asked}.jsonl", env_values=asked),
        ) as box:
            box.exec(["true"], env={"B": "ownvalue"})
        header, [step], _ = read(tmp_path / f"{asked}.jsonl")
        assert step.action.env == ("B",) and step.action.env_values == ({"B": "ownvalue"} if asked else None)
        assert header.policy["env"] == {"A": "policyvalue" if asked else None}
        assert (b"ownvalue" in (tmp_path / f"{asked}.jsonl").read_bytes()) == asked


def test_concurrent_commands_record_their_start(tmp_path):
    with Sandbox(record=tmp_path / "a.jsonl") as box:
        os.mkfifo(tmp_path / "unused")
        box.exec(["mkfifo", "/tmp/gate"])
        waiting = box.spawn(["cat", "/tmp/gate"])
        box.exec(["echo", "two"])
        box.exec(["sh", "-c", "echo go > /tmp/gate"])
        waiting.wait()
    with Trajectory.open(tmp_path / "a.jsonl") as trajectory:
        as_ended = [step.number for step in trajectory]
        steps = trajectory.steps()
    assert sorted(as_ended) == [1, 2, 3, 4] and as_ended[:2] == [1, 3]
    assert [step.begun_at for step in steps[:3]] == [0, 1, 1]


# Where it goes

def test_cli_refuses_a_nonempty_record_file(caller):
    home = caller.directory()
    caller.write(home / "a.jsonl", "precious\n")
    done = caller.rollbox("record", "-o", home / "a.jsonl", "--", "true")
    assert done.returncode == 125 and b"is not empty" in done.stderr
    assert (home / "a.jsonl").read_text() == "precious\n"
    assert caller.rollbox("record", "--force", "-o", home / "a.jsonl", "--", "true").returncode == 0
    assert read(home / "a.jsonl")[2].complete
    assert caller.rollbox("record", "-o", "/proc/version", "--", "true").returncode == 125
    assert caller.rollbox("record", "--", "true").returncode == 125


def test_standard_output_is_the_command_s(caller):
    """And a pipe of the caller's is a place like any other."""
    done = caller.rollbox("record", "-o", "-", "--", "true")
    assert done.returncode == 125 and b"/dev/fd/3" in done.stderr
    done = caller.call(
        "bash",
        "-c",
        'exec 3>&1; "$0" record -o >(cat >&3) -- echo hi > /dev/null',
        binaries() / "rollbox",
    )
    assert [sorted(json.loads(line))[0] for line in done.stdout.splitlines()][
        -1
    ] == "digest" and done.stdout.count(b"\n") == 3


def test_pipe_without_a_reader_is_refused(caller):
    home = caller.directory()
    os.mkfifo(home / "p")
    caller.own(home / "p")
    done = caller.rollbox("record", "-o", home / "p", "--", "true")
    assert done.returncode == 125 and b"the pipe has no reader" in done.stderr


def test_python_to_a_path_a_pattern_a_descriptor_and_a_function(tmp_path):
    with Sandbox(name="fox", record=f"{tmp_path}/{{name}}.jsonl") as box:
        box.exec(["true"])
        assert box.recorded["id"] and "complete" not in box.recorded
    assert box.recorded["complete"] and box.recorded["steps"] == 1
    assert read(tmp_path / "fox.jsonl")[0].name == "fox"
    with pytest.raises(InvalidArgument, match="is not empty"):
        Sandbox(record=tmp_path / "fox.jsonl").exec(["true"])
    with open(tmp_path / "fd.jsonl", "wb") as file, Sandbox(record=file.fileno()) as box:
        box.exec(["true"])
    assert read(tmp_path / "fd.jsonl")[2].complete
    seen = []
    with Sandbox(record=seen.append) as box:
        for word in "abc":
            box.exec(["echo", word])
    assert [step.observation.stdout.data for step in seen] == [b"a\n", b"b\n", b"c\n"]
    with pytest.raises(InvalidArgument):
        Sandbox(record=True)
    with pytest.raises(InvalidArgument, match="regular expression"):
        Sandbox(record=Record(tmp_path / "never.jsonl", redact=["("])).exec(["true"])


def test_runs_are_recorded_too(tmp_path):
    box = Sandbox(record=tmp_path / "run.jsonl")
    assert box.run("echo $0; exit 4", text=True).exit_code == 4
    assert box.run(["echo", "again"], text=True).stdout == "again\n"
    first, = [path for path in tmp_path.iterdir() if path.name == "run.jsonl"]
    others = [path for path in tmp_path.iterdir() if path != first]
    assert read(first)[1][0].action.argv == ("/bin/sh", "-c", "echo $0; exit 4")
    assert len(others) == 1 and read(others[0])[1][0].action.argv == ("echo", "again")


def test_async_sandboxes_are_recorded(tmp_path):
    async def main():
        async with AsyncSandbox(record=tmp_path / "a.jsonl") as box:
            await asyncio.gather(*(box.exec(["echo", str(i)]) for i in range(10)))
            await box.write_file("/tmp/f", "x")
        assert box.recorded["complete"]
        assert (await AsyncSandbox(record=tmp_path / "b.jsonl").run(["echo", "b"])).stdout == b"b\n"

    asyncio.run(main())
    _, steps, trajectory = read(tmp_path / "a.jsonl")
    assert trajectory.complete and kinds(steps) == ["exec"] * 10 + ["write_file"]
    assert read(tmp_path / "b.jsonl")[2].complete


def test_forks_have_trajectories_of_their_own_and_equal_ones_equal_digests(tmp_path):
    with Sandbox(Policy(random_seed=1), record=tmp_path / "a.jsonl") as box:
        box.exec(["sh", "-c", "echo base > f"])
        kids = box.fork(3)
        outputs = []
        for i, kid in enumerate(kids):
            with kid:
                outputs.append(kid.exec(["sh", "-c", "cat f" if i < 2 else "cat f f"]).stdout)
        grand = box.fork(1)[0].fork(1)[0]
        grand.close()
        box.fork(1, record=False)[0].close()
        [apart] = box.fork(1, record=tmp_path / "apart.jsonl")
        apart.close()
    files = {read(path)[0].name: read(path) for path in tmp_path.glob("a.*.jsonl")}
    assert len(files) == 5 and all(one[2].complete for one in files.values())
    parent, steps, _ = read(tmp_path / "a.jsonl")
    fork = steps[1]
    lasts = []
    for child in fork.children:
        header, own, _ = files[child.name]
        assert (
            header.id == child.id
            and header.parent.id == parent.id
            and header.parent.step == fork.number
            and header.parent.digest == fork.digest
        )
        lasts.append(own[-1].digest)
    assert outputs[0] == outputs[1] and lasts[0] == lasts[1] != lasts[2]
    assert read(tmp_path / "apart.jsonl")[0].parent.id == parent.id


def test_forks_are_recorded_from_the_command_line(caller):
    home = caller.directory()
    with shared_engine(caller) as call:
        box = call("create", "--record", home / "a.jsonl")
        call("exec", box, "--", "sh", "-c", "echo base > f")
        call("fork", "-n", "2", "--record", home / "all.jsonl", box, status=125)
        names = call("fork", "-n", "2", "--record", home / "{name}.jsonl", box).split()
        for name in names:
            assert call("exec", name, "--", "cat", "f") == "base"
        call("rm", *names, box)
    assert not (home / "all.jsonl").exists()
    lasts = set()
    for name in names:
        header, steps, trajectory = read(home / f"{name}.jsonl")
        assert trajectory.complete and header.parent.id == read(home / "a.jsonl")[0].id
        lasts.add(steps[-1].digest)
        assert verdict(caller, "--parent", home / "a.jsonl", home / f"{name}.jsonl", status=0)["verdict"] == "equal"
    assert len(lasts) == 1


def test_forks_are_recorded_as_what_they_are_forked_from(caller):
    """The command line makes the fork and does not know the rules of the record: the fork's record
    must not have data that they remove."""
    home = caller.directory()
    with shared_engine(caller) as call:
        box = call(
            "create",
            "--record",
            home / "a.jsonl",
            "--redact",
            "hush[0-9]+",
            "--redact-env",
            "TOKEN",
            "--keep",
            "200",
            "--max-record",
            "1M",
            "--env-values",
            "--record-changes",
        )
        plain = call("fork", box)
        kids = {
            "same": call("fork", "--record", home / "same.jsonl", box),
            "other": call(
                "fork",
                "--record",
                home / "other.jsonl",
                "--keep",
                "100",
                "--redact",
                "p[s]st",
                "--redact",
                "hush[0-9]+",
                box,
            ),
        }
        kids["grandchild"] = call("fork", "--record", home / "grandchild.jsonl", plain)
        state = call("snapshot", kids["other"])
        kids["restored"] = call("restore", "--record", home / "restored.jsonl", kids["other"], state)
        for name in kids.values():
            call(
                "exec",
                "--env",
                "TOKEN=sesame",
                "--env",
                "PLAIN=seen",
                name,
                "--",
                "sh",
                "-c",
                "echo hush123 $TOKEN psst; seq 100; touch /tmp/f",
            )
        call("rm", *kids.values(), plain, box)
    rules = {"names": ["TOKEN"], "patterns": ["hush[0-9]+"]}
    more = {"names": ["TOKEN"], "patterns": ["hush[0-9]+", "p[s]st"]}
    for name, keep, redacted in (
        ("same", 200, rules),
        ("other", 100, more),
        ("grandchild", 200, rules),
        ("restored", 100, more),
    ):
        text = (home / f"{name}.jsonl").read_text()
        header, *steps = [json.loads(line) for line in text.splitlines()]
        assert (
            header["limits"] == {"stream_bytes": keep, "file_bytes": 1 << 20}
            and header["redact"] == redacted
            and header["env_values"]
            and header["changes"]
        ), header
        assert (
            "hush123" not in text
            and "sesame" not in text
            and ("psst" in text) == (redacted == rules)
            and "seen" in text
        )
        assert [
            row["path"]
            for step in steps
            if "after" in step
            for row in step["observation"]["changes"]
        ] == ["/tmp/f"], steps


def test_redaction_continues_after_hibernation(caller):
    """The sandbox's own record ends with its engine; forks of it, made by the next engine that
    wakes it, are recorded by the same rules."""
    home = caller.directory()
    with shared_engine(caller) as call:
        box = call("create", "--record", home / "a.jsonl", "--redact", "hush[0-9]+", "--keep", "200")
        call("hibernate", box)
        for _ in range(2):
            call("engine", "stop")
            call("engine", "start", "--background")
            call("wake", box)
            call("hibernate", box)
        call("wake", box)
        fork = call("fork", "--record", home / "fork.jsonl", box)
        call("exec", fork, "--", "echo", "hush123", "seen")
        call("rm", fork, box)
    text = (home / "fork.jsonl").read_text()
    header = json.loads(text.splitlines()[0])
    assert (
        header["redact"] == {"names": [], "patterns": ["hush[0-9]+"]}
        and header["limits"]["stream_bytes"] == 200
        and "hush123" not in text
        and "seen" in text
    ), text


def test_changed_files_by_digest_where_asked(tmp_path):
    for name in ("a", "b"):
        with Sandbox(
            Policy(random_seed=1),
            record=Record(tmp_path / f"{name}.jsonl", files=True, redact=["se[c]ret"]),
        ) as box:
            box.exec(
                [
                    "sh",
                    "-c",
                    "cd /tmp; echo one > one; ln -s one link; mkdir d; head -c 100000 /dev/urandom > d/random; echo x > s$(echo ecret)",
                ]
            )
            box.snapshot()
            box.exec(["sh", "-c", "echo two > /tmp/one; truncate -s 2G /tmp/sparse"])
            box.snapshot()
    _, steps, trajectory = read(tmp_path / "a.jsonl")
    assert trajectory.complete and kinds(steps) == ["exec", "snapshot", "files", "exec", "snapshot", "files"]
    first, second = ({row["path"]: row for row in steps[i].observation.changes} for i in (2, 5))
    sha = lambda data: (
        subprocess.run(["sha256sum"], input=data, capture_output=True, check=True)
        .stdout.decode()
        .split()[0]
    )
    assert first["/tmp/one"]["sha256"] == sha(b"one\n") and second["/tmp/one"]["sha256"] == sha(b"two\n")
    assert (
        first["/tmp/link"]["sha256"] == sha(b"one")
        and first["/tmp/d/random"]["sha256"] == second["/tmp/d/random"]["sha256"]
    )
    assert "sha256" not in first["/tmp/d"] and second["/tmp/sparse"]["too_large"] and "/tmp/[redacted]" in first
    assert steps[-1].digest == read(tmp_path / "b.jsonl")[1][-1].digest
    done = subprocess.run([binaries() / "rollbox", "verify", tmp_path / "a.jsonl"], capture_output=True)
    assert (
        done.stdout
        == b"equal: 6 steps (not whole, see standard error; files were compared at snapshots alone)\n"
        and b"too large" in done.stderr
    ), done


def test_different_file_is_named(tmp_path):
    with Sandbox(record=Record(tmp_path / "a.jsonl", files=True)) as box:
        box.exec(["sh", "-c", "echo same > /tmp/a; head -c 9 /dev/urandom > /tmp/b"])
        box.snapshot()
    done = subprocess.run([binaries() / "rollbox", "verify", "--json", tmp_path / "a.jsonl"], capture_output=True)
    seen = json.loads(done.stdout)["divergence"]
    assert done.returncode == 1 and (seen["step"], seen["where"], seen["path"]) == (3, "changes[1].sha256", "/tmp/b")


def test_notes_are_steps(tmp_path):
    with Sandbox(record=Record(tmp_path / "a.jsonl", redact=["sk-[a-z]+"])) as box:
        box.exec(["true"])
        box.note({"reward": 0.1 + 0.2, "text": "gr\u00fc\u00df sk-abc", "list": [1, None, True]})
        with pytest.raises(InvalidArgument):
            box.note(float("nan"))
        with pytest.raises(InvalidArgument):
            box.note(object())
    _, steps, trajectory = read(tmp_path / "a.jsonl")
    assert trajectory.complete and steps[1].action.data == {
        "reward": 0.3,
        "text": "gr\u00fc\u00df [redacted]",
        "list": [1, None, True],
    }
    assert verdict_of(tmp_path / "a.jsonl") == b"equal: 2 steps" + NO_FILES
    with Sandbox() as box:
        box.note("nobody records it")


def verdict_of(path):
    return subprocess.run([binaries() / "rollbox", "verify", path], capture_output=True, check=True).stdout


def test_grade_is_not_recorded(tmp_path):
    with Sandbox(record=tmp_path / "a.jsonl") as box:
        box.exec(["true"])
        assert box.grade({"/tmp/check": "true"}, ["sh", "/tmp/check"]).ok
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_recorded_sandbox_is_not_pickled(tmp_path):
    import pickle

    with pytest.raises(TypeError, match="recorded"):
        pickle.dumps(Sandbox(record=tmp_path / "a.jsonl"))


def test_late_record_is_marked(tmp_path):
    with Engine() as engine, Sandbox(engine=engine) as box:
        box.exec(["true"])
        box._session().record(Record(tmp_path / "late.jsonl"))
        box.exec(["true"])
        with pytest.raises(InvalidArgument, match="recorded already"):
            Record(tmp_path / "twice.jsonl").start(box._session())
    header, steps, _ = read(tmp_path / "late.jsonl")
    assert not header.from_beginning and len(steps) == 1


# When something dies, or is full

def test_killed_engine_keeps_ended_results(caller):
    home = caller.directory()
    with shared_engine(caller) as call:
        box = call("create", "--record", home / "a.jsonl")
        for i in range(20):
            call("exec", box, "--", "echo", str(i))
        family = pidfds(descendants(call.pid))
        os.kill(call.pid, signal.SIGKILL)
        wait_gone(family)
    _, steps, trajectory = read(home / "a.jsonl")
    assert [step.observation.stdout.data for step in steps] == [b"%d\n" % i for i in range(20)]
    assert trajectory.end.reason == "engine_lost" and not trajectory.complete and not trajectory.torn


@pytest.mark.parametrize("noticed", [False, True])
def test_close_reports_a_killed_engine(tmp_path, noticed):
    """Whether or not a call has said so before: a record that ended with it is not whole."""
    with Engine() as engine, pytest.warns(RecordWarning, match="the engine is gone"):
        box = Sandbox(engine=engine, record=tmp_path / "a.jsonl")
        box.exec(["true"])
        os.kill(engine.pid, signal.SIGKILL)
        if noticed:
            with pytest.raises(EngineLost):
                box.exec(["true"])
        box.close()
    assert box.recorded["complete"] is False


@pytest.mark.parametrize("how", ["engine", "handle"])
def test_session_ended_before_close_has_a_complete_record(tmp_path, how):
    with Engine() as engine, warnings.catch_warnings():
        warnings.simplefilter("error", RecordWarning)
        box = Sandbox(engine=engine, record=tmp_path / "a.jsonl")
        box.exec(["true"])
        if how == "engine":
            engine.close()
        else:
            Sandbox.open(box.name, engine=engine).close()
        box.close()
    assert box.recorded["complete"] is None


def test_killed_recorder_only_costs_the_record(caller):
    home = caller.directory()
    with shared_engine(caller) as call:
        box = call("create", "--record", home / "a.jsonl")
        call("exec", box, "--", "echo", "one")
        recorder = recorder_of(call.pid)
        deadline = time.monotonic() + DEADLINE
        while json.loads(call("inspect", box))["record"]["written"] < 1:
            assert time.monotonic() < deadline
        os.kill(recorder, signal.SIGKILL)
        assert call("exec", box, "--", "echo", "two") == "two"
        while not (record := json.loads(call("inspect", box))["record"])["error"]:
            assert time.monotonic() < deadline
        assert "killed" in record["error"]
        assert call("exec", box, "--", "echo", "three") == "three"
        call("rm", box, status=125)
        other = call("create", "--record", home / "b.jsonl")
        call("exec", other, "--", "true")
        call("rm", other)
    steps, trajectory = read(home / "a.jsonl")[1:]
    assert len(steps) >= 1 and not trajectory.complete
    assert read(home / "b.jsonl")[2].complete


def test_stopped_recorder_delays_nothing_and_the_largest_record_ends_first(tmp_path):
    with Engine() as engine:
        greedy, modest = (Sandbox(engine=engine, record=tmp_path / name) for name in ("greedy.jsonl", "modest.jsonl"))
        with pytest.warns(RecordWarning, match="does not keep up"):
            modest.exec(["echo", "first"])
            greedy.exec(["true"])
            recorder = recorder_of(engine.status()["pid"])
            os.kill(recorder, signal.SIGSTOP)
            try:
                for i in range(1000):
                    assert len(greedy.exec(["head", "-c", "20000", "/dev/zero"]).stdout) == 20000
                    if greedy.inspect()["record"]["error"]:
                        break
                assert modest.exec(["echo", "last"]).ok and not modest.inspect()["record"]["error"]
            finally:
                os.kill(recorder, signal.SIGCONT)
            modest.close()
            greedy.close()
    assert modest.recorded["complete"] and not greedy.recorded["complete"]
    _, steps, trajectory = read(tmp_path / "modest.jsonl")
    assert trajectory.complete and [step.observation.stdout.data for step in steps] == [b"first\n", b"last\n"]
    _, steps, trajectory = read(tmp_path / "greedy.jsonl")
    assert (
        trajectory.end.reason == "lost"
        and trajectory.changed_line is None
        and [step.number for step in steps] == list(range(1, len(steps) + 1))
    )


def test_killed_client_ends_record_and_sandbox(caller):
    home = caller.directory()
    process = caller.popen(
        [
            binaries() / "rollbox",
            "record",
            "-o",
            home / "a.jsonl",
            "--",
            "sh",
            "-c",
            "echo on; exec sleep 1000",
        ],
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout.readline() == b"on\n"
        family = pidfds(descendants(process.pid))
        process.kill()
    wait_gone(family)
    _, steps, trajectory = read(home / "a.jsonl")
    assert [step.observation.error for step in steps] == ["cancelled"] and steps[0].observation.stdout.data == b"on\n"
    assert trajectory.end.reason == "closed"


FULL = """
import os, sys, ctypes, json, warnings
libc = ctypes.CDLL(None, use_errno=True)
if os.geteuid():
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(0x10000000 | 0x20000): sys.exit(77)
    open("/proc/self/setgroups", "w").write("deny")
    open("/proc/self/uid_map", "w").write(f"{uid} {uid} 1"); open("/proc/self/gid_map", "w").write(f"{gid} {gid} 1")
elif libc.unshare(0x20000): sys.exit(77)
libc.mount(None, b"/", None, 0x44000, None)
if libc.mount(b"full", sys.argv[1].encode(), b"tmpfs", 0, b"size=256k,mode=0777"): sys.exit(77)
import rollbox
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as told:
    with rollbox.Sandbox(record=sys.argv[1] + "/a.jsonl") as box:
        results = [box.exec(["sh", "-c", "head -c 20000 /dev/zero | tr '\\\\0' " + str(i % 10)]) for i in range(50)]
with rollbox.Trajectory.open(sys.argv[1] + "/a.jsonl") as t:
    steps = t.steps()
print(json.dumps({"ok": all(r.ok and len(r.stdout) == 20000 for r in results), "steps": len(steps), "complete": t.complete, "changed": t.changed_line, "recorded": box.recorded,
                  "told": [str(w.message) for w in told if w.category is rollbox.RecordWarning]}))
"""


def test_full_disk_is_reported_and_loses_no_command(tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    package = pathlib.Path(rollbox.__file__).parent.parent
    done = subprocess.run(
        [os.sys.executable, "-c", FULL, full],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(package)},
        timeout=DEADLINE * 2,
    )
    if done.returncode == 77:
        pytest.skip("needs mount: a tmpfs of its own cannot be mounted here")
    assert done.returncode == 0, done.stderr.decode()
    seen = json.loads(done.stdout)
    assert seen["ok"], "every command has its result"
    assert 5 < seen["steps"] < 15 and not seen["complete"] and seen["changed"] is None
    assert "No space left" in seen["recorded"]["error"] and seen["recorded"]["written"] == seen["steps"]
    assert len(seen["told"]) == 1 and "incomplete" in seen["told"][0]


def test_stalled_reader_delays_nothing(tmp_path):
    ours, theirs = os.pipe()
    try:
        with pytest.warns(RecordWarning, match="incomplete"):
            with Sandbox(record=Record(theirs, keep=1 << 20)) as box:
                for i in range(200):
                    assert len(box.exec(["head", "-c", "700000", "/dev/zero"]).stdout) == 700000
        assert not box.recorded["complete"] and box.recorded["error"]
    finally:
        os.close(theirs)
        os.close(ours)


def test_slow_reader_gets_all_of_it():
    ours, theirs = os.pipe()
    got = []

    def drain():
        with open(ours, "rb") as file:
            for step in Trajectory(file):
                got.append(step.number)

    with Sandbox(record=theirs) as box:
        os.close(theirs)
        for i in range(20):
            box.exec(["head", "-c", "100000", "/dev/zero"])
        thread = threading.Thread(target=drain)
        thread.start()      # only now does anybody read
    thread.join(DEADLINE)
    assert got == list(range(1, 21)) and box.recorded["complete"]


def test_lost_reader_only_costs_the_record():
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        with pytest.warns(RecordWarning, match="Broken pipe"):
            with Sandbox(record=theirs) as box:
                assert box.exec(["echo", "on"]).stdout == b"on\n"
                assert box.exec(["echo", "on"]).stdout == b"on\n"
    finally:
        os.close(theirs)


def test_exception_of_the_callback_is_reported():
    def broken(step):
        raise ValueError("no thanks")

    with pytest.warns(RecordWarning, match="no thanks"):
        with Sandbox(record=broken) as box:
            assert box.exec(["echo", "on"]).stdout == b"on\n"


def test_trajectory_ends_at_its_limit_and_says_so(tmp_path):
    with pytest.warns(RecordWarning, match="reached its size limit"):
        with Sandbox(record=Record(tmp_path / "a.jsonl", max_bytes=10000)) as box:
            for _ in range(30):
                assert box.exec(["echo", "on"]).ok
    _, steps, trajectory = read(tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").stat().st_size <= 10000
    assert 5 < len(steps) < 30 and trajectory.end.reason == "file_limit" and not trajectory.complete


def test_terminal_stays_blocking(tmp_path):
    import pty

    master, slave = pty.openpty()
    try:
        with Sandbox(record=slave) as box:
            box.exec(["true"])
        assert os.get_blocking(slave)
        assert b"rollbox-trajectory/1" in os.read(master, 4096)
    finally:
        os.close(master)
        os.close(slave)


# The reader

def test_every_cut_of_a_file_is_read(tmp_path):
    with Sandbox(record=tmp_path / "a.jsonl") as box:
        box.exec(["echo", "one"])
        box.snapshot()
    raw = (tmp_path / "a.jsonl").read_bytes()
    ends = [i + 1 for i, byte in enumerate(raw) if byte == 10]
    for length in [*range(0, len(raw), 37), *ends, *(end - 1 for end in ends)]:
        (tmp_path / "cut").write_bytes(raw[:length])
        if length < ends[0]:
            with pytest.raises(InvalidArgument, match="cut:1: "):
                read(tmp_path / "cut")
            continue
        _, steps, trajectory = read(tmp_path / "cut")
        assert len(steps) == sum(length >= end for end in ends[1:3]) and trajectory.torn == (length not in ends)
        assert trajectory.complete == (length == len(raw)) and trajectory.changed_line is None


@pytest.mark.parametrize("change, line", [
    (lambda rows: rows[1]["observation"].update(exit_code=1), 2),
    (lambda rows: rows[1]["observation"]["stdout"].update(sha256="0" * 64), 2),
    (lambda rows: rows[2]["action"].update(name="x"), 3),
    (lambda rows: rows[0].update(policy_sha256="0" * 64), 1),
    (lambda rows: rows.pop(1), 2),
])
def test_changed_record_is_noticed(tmp_path, change, line):
    with Sandbox(record=tmp_path / "a.jsonl") as box:
        box.exec(["echo", "one"])
        box.snapshot()
    rows = [json.loads(row) for row in (tmp_path / "a.jsonl").read_text().splitlines()]
    change(rows)
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trajectory = read(tmp_path / "b.jsonl")[2]
    assert trajectory.changed_line == line and not trajectory.complete


@pytest.mark.parametrize(
    "row",
    [
        "{}",
        "[]",
        "nothing",
        '{"step": "x"}',
        '{"end": 3}',
        '{"step": 1, "action": [], "observation": {}, "begun_at": 0, "digest": "0"}',
        '{"step": [], "action": {"kind": "exec"}, "observation": {"outcome": "exit"}, "begun_at": 0, "digest": "0"}',
        "[" * 5000,
    ],
)
def test_invalid_line_is_refused_by_number(tmp_path, row):
    with Sandbox(record=tmp_path / "a.jsonl") as box:
        box.exec(["true"])
    lines = (tmp_path / "a.jsonl").read_text().splitlines(True)
    (tmp_path / "b.jsonl").write_text(lines[0] + row + "\n")
    with pytest.raises(InvalidArgument, match=r"b\.jsonl:2: "):
        read(tmp_path / "b.jsonl")


def test_tables(tmp_path):
    with Sandbox(Policy(random_seed=(1 << 64) - 1), record=tmp_path / "a.jsonl") as box:
        box.exec(["echo", b"\xff"])
        box.write_file("/tmp/x", b"y")
        box.note({"reward": 0.5})
    with Trajectory.open(tmp_path / "a.jsonl") as trajectory:
        rows = trajectory.to_rows()
        assert (
            [row["kind"] for row in rows] == ["exec", "write_file", "note"]
            and rows[0]["stdout"] == b"\xff\n"
            and rows[0]["wall_ms"] > 0
        )
        assert set(rows[0]) == set(rows[1])
        assert (rows[0]["seed"], rows[0]["stream"]) == (str((1 << 64) - 1), 0) and json.loads(
            rows[2]["data"]
        ) == {"reward": 0.5}
        assert {row["policy_sha256"] for row in rows} == {trajectory.header.policy_sha256} and rows[0]["parent"] is None
        try:
            import pyarrow.parquet
        except ImportError:
            with pytest.raises(FeatureMissing, match="pyarrow"):
                trajectory.to_arrow()
            return
        table = trajectory.to_arrow()
        assert table.num_rows == 3 and table["stdout"][0].as_py() == b"\xff\n"
        trajectory.to_parquet(tmp_path / "a.parquet")
        assert pyarrow.parquet.read_table(tmp_path / "a.parquet").equals(table)
