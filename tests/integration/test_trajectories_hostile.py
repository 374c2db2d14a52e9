# SPDX-License-Identifier: Apache-2.0
"""Trajectories from strangers, rules that a guest works against, and files that two processes want.

The model: the author of a record knows how it is read and wants it to reach the host, the terminal,
or all memory; a guest whose streams are recorded wants its secret in the file or the recorder
blocked.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from rollbox import Engine, InvalidArgument, Policy, Record, RecordWarning, Sandbox
from harness import DEADLINE, NO_FILES, binaries, caller, repeat_count  # noqa: F401
from trajectory_files import read, recorder_of


def rows_of(path):
    return [json.loads(row) for row in pathlib.Path(path).read_text().splitlines()]


def settled(*boxes):
    """All steps are written: on a machine with much to do that takes longer than a close waits for."""
    deadline = time.monotonic() + 2 * DEADLINE
    while any(
        record["written"] < record["steps"] and not record["error"]
        for record in (box.inspect()["record"] for box in boxes)
    ):
        assert time.monotonic() < deadline


def is_locked(path):
    """Looked up, not tried: locking a file as a test would delay the process that wants the lock."""
    return path.exists() and f":{path.stat().st_ino} " in pathlib.Path("/proc/locks").read_text()


def forge(who, path, change):
    """A record of `echo hi` that is what `change` makes of its lines."""
    home = who.directory()
    assert who.rollbox("record", "-o", home / "true.jsonl", "--", "echo", "hi").returncode == 0
    rows = rows_of(home / "true.jsonl")
    change(rows)
    who.write(path, "".join(json.dumps(row) + "\n" for row in rows))
    return path


# What a record asks of the host

@pytest.mark.parametrize("key, value, words", [
    ("fs_readable", ["/usr", "/lib", "/lib64", "/bin", "/var"], "fs_readable /var"),
    ("fs_readable", ["/usr", "/etc/shadow"], "fs_readable /etc/shadow"),
    ("fs_readable", ["/"], "fs_readable /"),
    ("fs_writable", ["/var/tmp"], "fs_writable /var/tmp"),
    ("fs_shared", ["/var/tmp"], "fs_shared /var/tmp"),
    ("clean_env", False, "clean_env false"),
    ("net", "host", "net host"),
    ("isolation", "process", "isolation process"),
    ("image", "snapshot:mine", "image snapshot:mine"),
    ("max_memory", "600M", "max_memory 629145600"),
    ("max_processes", 65, "max_processes 65"),
    ("max_disk", "2G", "max_disk 2147483648"),
])
def test_extra_grants_of_a_record_are_reported_and_not_given(caller, key, value, words):
    home = caller.directory()
    forge(caller, home / "a.jsonl", lambda rows: rows[0]["policy"].update({key: value}))
    for command in (["verify"], ["replay", "-o", home / "b.jsonl"]):
        done = caller.rollbox(*command, home / "a.jsonl")
        assert (
            done.returncode == 125
            and words.encode() in done.stderr
            and b"--trust" in done.stderr
            and b"--policy" in done.stderr
        ), done


def test_default_grants_need_no_trust(caller):
    home = caller.directory()
    forge(
        caller,
        home / "a.jsonl",
        lambda rows: rows[0]["policy"].update(
            fs_readable=["/usr", "/lib", "/lib64", "/bin", "/etc", "/usr/share"],
            max_memory="64M",
            net="loopback",
            random_seed=3,
        ),
    )
    assert caller.rollbox("verify", home / "a.jsonl").returncode == 0


def test_link_below_a_default_directory_leads_to_its_grant(tmp_path):
    link = pathlib.Path("/opt") / f"rollbox-test-{os.getpid()}"
    try:
        link.symlink_to(tmp_path)
    except OSError:
        pytest.skip("only for who may write to /opt")
    try:
        with Sandbox(record=tmp_path / "a.jsonl") as box:
            box.exec(["true"])
        rows = rows_of(tmp_path / "a.jsonl")
        rows[0]["policy"]["fs_readable"] = ["/usr", str(link)]
        (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = subprocess.run([binaries() / "rollbox", "verify", tmp_path / "b.jsonl"], capture_output=True)
        assert done.returncode == 125 and f"fs_readable {link}".encode() in done.stderr, done
    finally:
        link.unlink()


def test_replay_uses_the_callers_policy(caller):
    home = caller.directory()
    forge(
        caller,
        home / "a.jsonl",
        lambda rows: (
            rows[0]["policy"].update(fs_readable=["/usr", "/lib", "/lib64", "/bin", "/var"]),
            rows[1]["action"].update(argv=["ls", "/var/lib"]),
        ),
    )
    caller.write(home / "policy.json", json.dumps({"max_memory": "64M"}))
    done = caller.rollbox("replay", "--policy", home / "policy.json", "-o", home / "b.jsonl", home / "a.jsonl")
    assert done.returncode == 0, done
    header, [step], _ = read(home / "b.jsonl")
    assert header.policy == {"max_memory": "64M"} and step.observation.exit_code == 2, "there is no /var"
    assert (
        caller.rollbox(
            "replay", "--policy", home / "missing.json", "-o", home / "c.jsonl", home / "a.jsonl"
        ).returncode
        == 125
    )


# What a record does to who reads it

def test_record_text_is_escaped_on_a_terminal(caller):
    home = caller.directory()
    changes = (
        lambda rows: rows[-1]["end"].update(reason="\x1b[31mred\nrollbox: fake"),
        lambda rows: rows[1]["observation"].update({"\x1b[31mkey": 1}),
        lambda rows: rows[1]["observation"].update({"x" * 59 + "\u00fc\u009b" * 40: 1}),
        lambda rows: rows[1]["action"].update(kind="\x1b[31mkind"),
        lambda rows: rows[0]["policy"].update(env={"\x1b[31mA": None}),
        lambda rows: rows[0].update(parent={"id": "\x1b[31m", "step": 1}),
    )
    plain = forge(caller, home / "plain.jsonl", lambda rows: None)
    for i, change in enumerate(changes):
        path = forge(caller, home / f"{i}.jsonl", change)
        for arguments in ([path], ["--parent", plain, path], [plain, path], ["--json", plain, path]):
            done = caller.rollbox("verify", *arguments)
            shown = done.stdout + done.stderr
            assert b"\x1b" not in shown and b"\xc2\x9b" not in shown and b"\nrollbox: fake" not in shown, shown
            if arguments[0] == "--json":
                assert done.returncode in (0, 1) and json.loads(done.stdout)["verdict"] in ("equal", "diverged")


def test_record_patterns_do_not_exhaust_memory(caller):
    home = caller.directory()
    for pattern in (
        "((((a{1,250}){1,250}){1,250}){1,250}){1,250}",
        "(" * 50 + "a" + ")+" * 50,
        "(" * 70 + "a" + ")" * 70,
        "[a]]{30000}",
    ):
        path = forge(caller, home / "a.jsonl", lambda rows: rows[0].update(redact={"names": [], "patterns": [pattern]}))
        done = caller.rollbox("replay", "--force", "-o", home / "b.jsonl", path)
        assert done.returncode == 125 and b"too large with its repetitions" in done.stderr, done
    path = forge(
        caller,
        home / "a.jsonl",
        lambda rows: rows[0].update(
            redact={"names": [], "patterns": ["[A-Za-z0-9]{20,64}\\.([A-Z]{6,32}|x+)"]}
        ),
    )
    assert caller.rollbox("replay", "--force", "-o", home / "b.jsonl", path).returncode == 0


def test_lines_too_long_or_with_too_many_values(caller):
    home = caller.directory()
    plain = forge(caller, home / "plain.jsonl", lambda rows: None)
    header = plain.read_text().splitlines(True)[0]
    for text, words in ((b"[],", b"too many values"), (b'"' + b"x" * 1000 + b'",', b"too long")):
        with open(home / "a.jsonl", "wb") as file:
            file.write(header.encode() + b'{"step":1,"x":[')
            for _ in range(70 << 10):
                file.write(text * (100 if text[:1] == b"[" else 1))
            file.write(b"0]}\n")
        caller.own(home / "a.jsonl")
        done = caller.rollbox("verify", plain, home / "a.jsonl")
        assert done.returncode == 125 and b"a.jsonl:2: " in done.stderr and words in done.stderr, done
    with pytest.raises(InvalidArgument, match="too long"):
        read(home / "a.jsonl")


@pytest.mark.parametrize(
    "row",
    [
        '{"step": 1, "step": 2, "begun_at": 0, "action": {"kind": "exec"}, "observation": {"outcome": "exit"}, "digest": "0"}',
        '{"step": 1, "begun_at": 0, "time_ns": 1%s, "action": {"kind": "exec"}, "observation": {"outcome": "exit"}, "digest": "0"}'
        % ("0" * 400),
        '{"step": 1, "begun_at": 0, "action": {"kind": "exec", "timeout_ms": 1%s}, "observation": {"outcome": "exit"}, "digest": "0"}'
        % ("0" * 400),
        '{"step": 1, "begun_at": 0, "action": {"kind": "exec", "x": %s1%s}, "observation": {"outcome": "exit"}, "digest": "0"}'
        % ("[" * 1500, "]" * 1500),
        '\xff',
    ],
)
def test_false_line_is_its_own_error(tmp_path, row):
    with Sandbox(record=tmp_path / "a.jsonl") as box:
        box.exec(["true"])
    (tmp_path / "b.jsonl").write_bytes(
        (tmp_path / "a.jsonl").read_bytes().splitlines(True)[0] + row.encode("latin-1") + b"\n"
    )
    with pytest.raises(InvalidArgument, match=r"b\.jsonl:2: "):
        read(tmp_path / "b.jsonl")
    done = subprocess.run(
        [binaries() / "rollbox", "verify", tmp_path / "a.jsonl", tmp_path / "b.jsonl"],
        capture_output=True,
    )
    assert done.returncode in (1, 125) and (b"b.jsonl:2: " in done.stderr), done


def test_endless_command_is_interrupted(caller):
    home = caller.directory()
    forge(
        caller,
        home / "a.jsonl",
        lambda rows: rows[1]["action"].update(
            argv=["sh", "-c", "echo begun > /proc/self/fd/1; exec sleep 100000"]
        ),
    )
    os.mkfifo(home / "out")
    caller.own(home / "out")
    ours = os.open(home / "out", os.O_RDWR)
    with caller.popen(
        [binaries() / "rollbox", "replay", "-o", home / "out", home / "a.jsonl"],
        stderr=subprocess.PIPE,
    ) as process:
        assert os.read(ours, 1).startswith(b"{"), "the sandbox is there, and the command is the next thing"
        process.send_signal(signal.SIGINT)
        assert b"interrupted" in process.stderr.read()
        assert process.wait(DEADLINE) == -signal.SIGINT
    os.close(ours)


def test_pipe_cannot_be_read_twice(tmp_path):
    with Sandbox(record=tmp_path / "a.jsonl") as box:
        box.exec(["true"])
    raw = (tmp_path / "a.jsonl").read_bytes()
    done = subprocess.run([binaries() / "rollbox", "verify", "/dev/stdin"], input=raw, capture_output=True)
    assert done.returncode == 125 and b"read twice" in done.stderr, done
    assert (
        subprocess.run(
            [binaries() / "rollbox", "replay", "-o", tmp_path / "b.jsonl", "/dev/stdin"], input=raw
        ).returncode
        == 0
    )


def test_special_record_paths_are_refused(caller):
    home = caller.directory()
    done = caller.rollbox("record", "-o", "/dev/full", "--", "echo", "hi")
    assert (
        done.returncode == 125
        and done.stdout == b"hi\n"
        and b"0 of 1 steps" in done.stderr
        and b"No space left" in done.stderr
    )
    assert caller.rollbox("record", "-o", home, "--", "true").returncode == 125
    assert caller.rollbox("record", "-o", "/dev/null", "--", "true").returncode == 0
    for path in ("/dev/zero", home):
        assert caller.rollbox("verify", path).returncode == 125
    os.symlink(home / "real.jsonl", home / "link.jsonl")
    caller.own(home / "link.jsonl")
    assert caller.rollbox("record", "-o", home / "link.jsonl", "--", "true").returncode == 0
    assert read(home / "real.jsonl")[2].complete


def test_record_is_not_replayed_onto_itself(caller):
    home = caller.directory()
    path = forge(caller, home / "a.jsonl", lambda rows: None)
    os.link(path, home / "same.jsonl")
    before = path.read_bytes()
    done = caller.rollbox("replay", "--force", "-o", home / "same.jsonl", path)
    assert done.returncode == 125 and b"file of its own" in done.stderr and path.read_bytes() == before


def test_withheld_contents_are_not_called_equal_in_silence(caller):
    home = caller.directory()
    for name, letter in (("a", "x"), ("b", "y")):
        done = caller.rollbox(
            "record",
            "--redact",
            "secret",
            "-o",
            home / f"{name}.jsonl",
            "--",
            "sh",
            "-c",
            "head -c 2000000 /dev/zero | tr '\\0' $(printf %s " + letter + ")",
        )
        assert done.returncode == 0
    rows = rows_of(home / "b.jsonl")
    rows[1]["action"] = rows_of(home / "a.jsonl")[1]["action"]
    caller.write(home / "b.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    done = caller.rollbox("verify", "--json", home / "a.jsonl", home / "b.jsonl")
    assert (
        done.returncode == 0
        and json.loads(done.stdout)["whole"] is False
        and b"1 of the equal steps had something that was not compared: a content that was withheld"
        in done.stderr
    ), done


# Two that want one file

def test_one_file_has_one_record(tmp_path, caller):
    home = caller.directory()
    with caller.popen(
        [binaries() / "rollbox", "record", "-i", "-o", home / "a.jsonl", "--", "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        while not is_locked(home / "a.jsonl"):
            assert process.poll() is None
        done = caller.rollbox("record", "--force", "-o", home / "a.jsonl", "--", "true")
        assert done.returncode == 125 and b"another sandbox is recorded to it" in done.stderr, done
        with pytest.raises(InvalidArgument, match="another sandbox is recorded"):
            Sandbox(record=Record(home / "a.jsonl", force=True)).exec(["true"])
        process.communicate(b"typed")
    assert read(home / "a.jsonl")[1][0].action.stdin.data == b"typed"
    with Sandbox(record=Record(home / "a.jsonl", force=True)) as box:
        with pytest.raises(InvalidArgument, match="another sandbox is recorded"):
            Sandbox(record=Record(home / "a.jsonl", force=True)).exec(["true"])
        box.exec(["true"])
    assert read(home / "a.jsonl")[2].complete


# Secrets

def test_secrets_of_the_policy_are_known_before_the_first_command(tmp_path):
    record = Record(tmp_path / "a.jsonl", redact_env=["TOKEN"], redact=["sk-[a-z]+"], env_values=True, force=True)
    with Sandbox(Policy(env={"TOKEN": "policysecret", "OTHER": "shown"}, hostname="sk-host"), record=record) as box:
        box.write_file("/tmp/policysecret", "has policysecret in it")
        box.note({"sk-key": ["policysecret", {"sk-abc": "sk-def"}]})
        box.exec(["true"])
    raw = (tmp_path / "a.jsonl").read_bytes()
    assert (
        b"policysecret" not in raw
        and b"sk-abc" not in raw
        and b"sk-def" not in raw
        and b"sk-key" not in raw
        and b"sk-host" not in raw
    )
    header, steps, trajectory = read(tmp_path / "a.jsonl")
    assert trajectory.complete and header.policy["env"] == {"TOKEN": "[redacted:TOKEN]", "OTHER": "shown"}
    done = subprocess.run([binaries() / "rollbox", "verify", tmp_path / "a.jsonl"], capture_output=True)
    assert done.returncode == 125 and b"--env TOKEN=VALUE" in done.stderr, done


def test_variables_in_a_list_are_recorded_without_their_values(caller):
    home = caller.directory()
    caller.write(home / "policy.json", json.dumps({"env": ["A=listvalue", "B=x", "A=other"]}))
    assert (
        caller.rollbox(
            "record", "-o", home / "a.jsonl", "--policy", home / "policy.json", "--", "true"
        ).returncode
        == 0
    )
    assert b"listvalue" not in (home / "a.jsonl").read_bytes() and read(home / "a.jsonl")[0].policy[
        "env"
    ] == {"A": None, "B": None}
    assert caller.rollbox("verify", "--env", "A=other", "--env", "B=x", home / "a.jsonl").returncode == 0


def test_secret_at_the_end_of_a_truncated_stream_is_redacted(tmp_path):
    with Sandbox(
        Policy(env={"TOKEN": "opensesame"}, max_output=108),
        record=Record(tmp_path / "a.jsonl", redact_env=["TOKEN"]),
    ) as box:
        assert box.exec("head -c 100 /dev/zero | tr '\\0' .; printf $TOKEN; echo more").outcome == "output_limit"
        assert box.exec("printf '...opense'").ok
    raw = (tmp_path / "a.jsonl").read_bytes()
    steps = read(tmp_path / "a.jsonl")[1]
    assert steps[0].observation.stdout.text == "." * 100 + "[redacted:TOKEN]"
    assert steps[1].observation.stdout.text == "...opense" and raw.count(b"opense") == 2, (
        "what was not cut is what it is"
    )


def test_names_of_variables_that_are_no_text(tmp_path):
    with Sandbox(record=Record(tmp_path / "a.jsonl", env_values=True)) as box:
        box.exec(["true"], env={b"\xff\xfe\xf0": "x", "gr\u00fcn": "y"})
    [step] = read(tmp_path / "a.jsonl")[1]
    assert (
        step.action.env_values == {"\ufffd\ufffd\ufffd": "x", "gr\u00fcn": "y"}
        and read(tmp_path / "a.jsonl")[2].complete
    )


def test_guest_cannot_keep_the_recorder_busy(tmp_path):
    """glibc tries "a.*b" at every a of a line, each time to the line's end: of a megabyte of them
    it would take hours, with everybody's records waiting."""
    with Engine() as engine:
        other = Sandbox(engine=engine, record=tmp_path / "other.jsonl")
        with Sandbox(engine=engine, record=Record(tmp_path / "a.jsonl", redact=["a.*b", "sk-[a-z]+"])) as box:
            for size in (1000000, 50000, 3000):
                assert box.exec(f"head -c {size} /dev/zero | tr '\\0' a").ok
            assert box.exec("seq 20000; echo sk-cde").ok
            other.exec(["true"])
            recorder = recorder_of(engine.status()["pid"])
            assert pathlib.Path(f"/proc/{recorder}/comm").exists()
            settled(box, other)
            other.close()
    assert other.recorded["complete"] and box.recorded["complete"]
    steps = read(tmp_path / "a.jsonl")[1]
    assert steps[0].observation.stdout.withheld and not steps[2].observation.stdout.withheld
    assert steps[3].observation.stdout.text.endswith("20000\n[redacted]\n")


@pytest.mark.long
@pytest.mark.once
def test_redaction_pattern_states_are_bounded(tmp_path):
    """glibc keeps every set of states that it has met; which ones these are, texts say."""
    with (
        Engine() as engine,
        Sandbox(
            engine=engine, record=Record(tmp_path / "a.jsonl", redact=["(a|b)*a(a|b){12}c"])
        ) as box,
    ):
        box.exec(["true"])
        recorder = recorder_of(engine.status()["pid"])
        for _ in range(repeat_count(20, 10, 600)):
            assert box.exec("head -c 4000 /dev/urandom | tr '\\0-\\177' a | tr -c a b").ok
        settled(box)
        resident = int(pathlib.Path(f"/proc/{recorder}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    assert box.recorded["complete"] and resident < 400 << 20


def test_too_long_step_keeps_its_digests(tmp_path):
    with Sandbox(Policy(max_output="40M"), record=Record(tmp_path / "a.jsonl", keep=16 << 20)) as box:
        files = {f"/tmp/{i}": "\u20ac" * (5 << 20) for i in range(3)}
        assert box.exec("cat /tmp/0; cat /tmp/1 >&2", files=files).ok
        box.exec(["echo", "on"])
        settled(box)
    _, steps, trajectory = read(tmp_path / "a.jsonl")
    assert trajectory.complete and (tmp_path / "a.jsonl").stat().st_size < 1 << 20
    out = steps[0].observation.stdout
    assert (
        out.size == 15 << 20
        and out.truncated
        and out.data == b""
        and out.sha256
        and steps[1].observation.stdout.data == b"on\n"
    )


# Callbacks

def test_callback_that_exits_or_blocks_is_reported(monkeypatch):
    from rollbox._core import record as _record

    def leave(step):
        sys.exit(3)

    with pytest.warns(RecordWarning, match="SystemExit"):
        with Sandbox(record=leave) as box:
            box.exec(["true"])
    monkeypatch.setattr(_record, "_JOIN_SECONDS", 0.1)
    free = threading.Event()
    with pytest.warns(RecordWarning, match="not returned"):
        with Sandbox(record=lambda step: free.wait(DEADLINE)) as box:
            box.exec(["true"])
    free.set()


# Many

def test_ten_thousand_steps(tmp_path):
    with Sandbox(record=tmp_path / "a.jsonl") as box:
        for i in range(10000):
            box.note(i)
        settled(box)
    _, steps, trajectory = read(tmp_path / "a.jsonl")
    assert trajectory.complete and [step.action.data for step in steps] == list(range(10000))
    done = subprocess.run([binaries() / "rollbox", "verify", tmp_path / "a.jsonl"], capture_output=True)
    assert done.stdout == b"equal: 10000 steps" + NO_FILES, done
