# SPDX-License-Identifier: Apache-2.0
"""Replay and verification of trajectories: equal sessions, planted differences, forks, secrets."""

import json
import subprocess

import pytest

from rollbox import Policy, Record, Sandbox
from harness import NO_FILES, binaries, caller  # noqa: F401
from trajectory_files import read, shared_engine, verdict


def kinds(steps):
    return [step.action.kind for step in steps]


def test_verify_is_equal_for_a_seeded_session(caller):
    home = caller.directory()
    caller.write(home / "up", "data")
    with shared_engine(caller) as call:
        box = call(
            "create",
            "--record",
            home / "a.jsonl",
            "--seed",
            "5",
            "--time-start",
            "2025-01-01T00:00:00",
            "--time-mode",
            "offset",
        )
        call(
            "exec",
            box,
            "--",
            "python3",
            "-c",
            "import os, random, uuid; print(os.urandom(8), random.random(), uuid.uuid4(), {'a', 'b', 'c'}, hash('x'), id(object()), os.getpid())",
        )
        call("cp", home / "up", f"{box}:/tmp/")
        call("exec", box, "--env", "A=b", "--", "sh", "-c", "cat up; echo $A $RANDOM; exit 5", status=5)
        call("snapshot", box)
        call("exec", box, "--timeout", "0.2", "--", "sleep", "1000", status=124)
        call("exec", box, "--", "nothing-of-that-name", status=127)
        call("reset", box)
        call("exec", "-d", box, "--", "sleep", "1000")
        call("fork", "--drop-processes", box)
        call("rm", box)
    assert caller.rollbox("verify", home / "a.jsonl").returncode == 125, "the value of A was not recorded"
    seen = verdict(caller, "--env", "A=b", home / "a.jsonl", status=0)
    # Of the command that could not be started there is nothing to compare.
    assert seen == {"verdict": "equal", "steps": 9, "whole": False, "files": "none", "divergence": None}
    done = caller.rollbox("replay", "--env", "A=b", "-o", home / "b.jsonl", home / "a.jsonl")
    assert done.returncode == 0 and done.stderr == b"rollbox replay: 9 steps\n"
    assert verdict(caller, home / "a.jsonl", home / "b.jsonl", status=0)["verdict"] == "equal"
    digests = [read(home / name)[1][-2].digest for name in ("a.jsonl", "b.jsonl")]
    assert read(home / "b.jsonl")[2].complete and digests[0] == digests[1]


@pytest.mark.parametrize("code, where, source", [
    ("echo $RANDOM-$RANDOM-$RANDOM-$RANDOM", "stdout", "randomness"),
    ("date +%s%N >&2", "stderr", "time"),
    ("exit $((RANDOM % 250 + 1))", "exit_code", None),
])
def test_verify_finds_a_planted_divergence(caller, code, where, source):
    home = caller.directory()
    assert (
        caller.rollbox(
            "record", "-o", home / "a.jsonl", "--", "bash", "-c", "echo same; " + code
        ).returncode
        < 125
        or where == "exit_code"
    )
    while True:
        done = caller.rollbox("verify", "--json", home / "a.jsonl")
        if done.returncode == 1 or where != "exit_code":
            break
    seen = json.loads(done.stdout)
    assert seen["verdict"] == "diverged" and seen["divergence"]["step"] == 1 and seen["divergence"]["where"] == where
    assert source in (None, seen["divergence"]["source"])
    if where == "stdout":
        assert seen["divergence"]["offset"] >= 5
        assert seen["divergence"]["first"]["value"].startswith("same\n") and seen["divergence"][
            "second"
        ]["value"].startswith("same\n")


def test_verify_names_the_step_the_stream_and_the_byte(caller):
    home = caller.directory()
    with shared_engine(caller) as call:
        box = call("create", "--record", home / "a.jsonl")
        for i in range(5):
            call("exec", box, "--", "sh", "-c", f"echo count {i}; echo count {i} >&2")
        call("rm", box)
    rows = (home / "a.jsonl").read_text().splitlines(True)
    planted = rows[4].replace('"text":"count 3\\n"}},"res', '"text":"count 7\\n"}},"res')
    assert planted != rows[4]
    caller.write(home / "b.jsonl", "".join(rows[:4] + [planted] + rows[5:]))
    done = caller.rollbox("verify", home / "b.jsonl")
    assert done.returncode == 1
    assert done.stdout.decode().splitlines()[:3] == [
        "diverged at step 4 (exec): stderr, byte 6",
        '  record  "count 7\\n"',
        '  replay  "count 3\\n"',
    ]
    seen = verdict(caller, home / "a.jsonl", home / "b.jsonl", status=1)
    assert (
        seen["steps"],
        seen["divergence"]["step"],
        seen["divergence"]["where"],
        seen["divergence"]["offset"],
    ) == (3, 4, "stderr", 6)


def test_non_text_bytes_are_compared(caller):
    home = caller.directory()
    caller.write(home / "data", "")     # the caller's own
    for name, content in (("a", b"ab\xff"), ("b", b"ab\xfe"), ("c", b"ab")):
        (home / "data").write_bytes(content)
        done = caller.rollbox(
            "record",
            "-o",
            home / f"{name}.jsonl",
            "--readable",
            home / "data",
            "--",
            "cat",
            home / "data",
        )
        assert (done.returncode, done.stdout) == (0, content), done
    told = caller.rollbox("verify", home / "a.jsonl", home / "b.jsonl").stdout.decode().splitlines()
    assert (
        told[0] == "diverged at step 1 (exec): stdout, byte 2"
        and told[1].endswith('"ab\\uFFFD" (byte 0xff)')
        and told[2].endswith('"ab\\uFFFD" (byte 0xfe)')
    )
    seen = verdict(caller, home / "a.jsonl", home / "b.jsonl", status=1)["divergence"]
    assert (seen["offset"], seen["first"]["byte"], seen["second"]["byte"]) == (2, 255, 254)
    seen = verdict(caller, home / "b.jsonl", home / "c.jsonl", status=1)["divergence"]
    assert (seen["offset"], seen["first"]["byte"], seen["second"]["byte"]) == (2, 254, None)


def test_verify_reports_a_changed_record(caller):
    home = caller.directory()
    caller.rollbox("record", "-o", home / "a.jsonl", "--", "echo", "one")
    caller.write(home / "b.jsonl", (home / "a.jsonl").read_text().replace('"exit_code":0', '"exit_code":1'))
    done = caller.rollbox("verify", home / "b.jsonl")
    assert done.returncode == 1 and b"b.jsonl:2: its digest does not match" in done.stderr
    assert done.stdout.startswith(b"diverged at step 1 (exec): exit_code\n  record  1\n  replay  0\n")


def test_verify_twice(caller):
    python = ["python3", "-c", "import os; print(os.urandom(16).hex())"]
    assert caller.rollbox("verify", "--twice", "--seed", "3", "--", *python).stdout == b"equal: 1 step\n"
    done = caller.rollbox("verify", "--twice", "--", *python)
    assert (
        done.returncode == 1
        and done.stdout.startswith(b"diverged at step 1 (exec): stdout, byte ")
        and b"--seed" in done.stdout
    ), done


def test_verify_twice_of_a_command_that_is_not_there(caller):
    """There is no answer: 125 and an error object, not the 127 of run and nothing."""
    done = caller.rollbox("verify", "--json", "--twice", "--", "/nope")
    assert done.returncode == 125 and json.loads(done.stdout)["error"]["code"] == "command_not_found", done


PORT = ["python3", "-c", "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname())"]


@pytest.mark.parametrize(
    "flags, command, source, hint",
    [
        (["--net", "host", "--seed", "7"], PORT, "network", None),
        (["--net", "loopback"], PORT, "network", None),
        ([], ["mktemp"], "randomness", "--seed"),
        ([], ["head", "-c", "64", "/dev/urandom"], "randomness", "--seed"),
        ([], ["sh", "-c", "echo > $(mktemp)"], "randomness", "--seed"),
        (
            ["--seed", "7"],
            [
                "python3",
                "-c",
                "import time; print('%016x' % (time.time_ns() * 0x9e3779b97f4a7c15 % 2**64))",
            ],
            "randomness",
            "--time-start",
        ),
    ],
    ids=["host", "loopback", "mktemp", "bytes", "file", "clock"],
)
def test_verify_names_unseeded_randomness_as_a_cause(caller, flags, command, source, hint):
    while True:         # the kernel may choose a port twice
        done = caller.rollbox("verify", "--json", "--twice", *flags, "--", *command)
        if done.returncode:
            break
    seen = json.loads(done.stdout)["divergence"]
    assert seen["source"] == source, seen
    assert hint is None and seen["hint"] is None or hint in seen["hint"], seen


def test_record_and_verify_have_the_clock_that_run_has(caller):
    """With a seed and a time the virtual one, and what run repeats is no divergence; unless another is given."""
    file, flags, command = (
        caller.directory() / "a.jsonl",
        ["--seed", "7", "--time-start", "2025-01-01T00:00:00"],
        ["date", "+%N"],
    )
    run, recorded = (
        caller.rollbox("run", *flags, "--", *command),
        caller.rollbox("record", "-o", file, *flags, "--", *command),
    )
    assert (recorded.returncode, recorded.stdout) == (0, run.stdout), recorded
    assert verdict(caller, file, status=0)["verdict"] == "equal"
    assert verdict(caller, "--twice", *flags, "--", *command, status=0)["verdict"] == "equal"
    seen = verdict(caller, "--twice", *flags, "--time-mode", "offset", "--", "date", "+%s.%N", status=1)["divergence"]
    assert seen["source"] == "time" and "--time-mode virtual" in seen["hint"]


@pytest.mark.parametrize("flags", [[], ["--record-changes"]])
def test_verify_twice_compares_files(caller, flags):
    """And what is in them, as it was when the sandboxes were still there."""
    writes = ["bash", "-c", "echo same > /tmp/a; mkdir /tmp/d; echo took $(date +%N) s > /tmp/d/b"]
    done = caller.rollbox("verify", "--twice", *flags, "--", *writes)
    assert done.returncode == 1 and done.stdout.startswith(
        b'diverged at step 2 (files): changes[2].sha256 of "/tmp/d/b", byte '
    ), done
    assert (
        b'\n  first run   "took ' in done.stdout
        and b"likely source: time" in done.stdout
        and b"--time-start" in done.stdout
    )
    seen = verdict(caller, "--twice", *flags, "--", *writes, status=1)["divergence"]
    assert seen["path"] == "/tmp/d/b" and seen["offset"] >= 5 and seen["first"]["value"].startswith("took ")
    done = caller.rollbox("verify", "--twice", *flags, "--", "sh", "-c", "echo same > /tmp/a")
    assert (done.returncode, done.stdout) == (0, b"equal: 2 steps\n"), done
    seen = verdict(
        caller,
        "--twice",
        *flags,
        "--",
        "sh",
        "-c",
        "ln -s $$-$(cat /proc/sys/kernel/random/uuid) /tmp/l",
        status=1,
    )["divergence"]
    assert seen["path"] == "/tmp/l" and seen["first"]["value"] != seen["second"]["value"] and seen["offset"] is not None


def test_verify_twice_without_files(caller):
    writes = ["sh", "-c", "cat /proc/sys/kernel/random/uuid > /tmp/a"]
    done = caller.rollbox("verify", "--twice", "--no-files", "--", *writes)
    assert (done.returncode, done.stdout) == (0, b"equal: 1 step" + NO_FILES), done
    assert verdict(caller, "--twice", "--no-files", "--", *writes, status=0)["files"] == "none"
    assert b"opposites" in caller.rollbox("verify", "--twice", "--no-files", "--record-changes", "--", *writes).stderr
    caller.rollbox("record", "-o", caller.directory() / "a.jsonl", "--", *writes)
    for flag in ("--no-files", "--record-changes"):
        done = caller.rollbox("verify", flag, caller.directory() / "a.jsonl")
        assert done.returncode == 125 and b"are for --twice" in done.stderr


def test_secrets_of_a_sandbox_are_ones_in_its_forks(tmp_path):
    """Its forks have its files and memory. A record of theirs that says only where to is by its rules."""
    with Sandbox(
        Policy(),
        record=Record(tmp_path / "parent.jsonl", redact_env=["TOKEN"], redact=["tok_[0-9]+"]),
    ) as box:
        box.exec("echo $TOKEN > /tmp/kept", env={"TOKEN": "very-secret-1"})
        for record in (True, tmp_path / "other.jsonl"):
            with box.fork(1, record=record)[0] as fork:
                assert fork.exec("cat /tmp/kept; echo tok_12").stdout == b"very-secret-1\ntok_12\n"
        with (
            box.fork(1, record=False)[0] as between,
            between.fork(
                1,
                record=Record(
                    tmp_path / "third.jsonl", redact_env=["TOKEN"], redact=["tok_[0-9]+"]
                ),
            )[0] as fork,
        ):
            assert fork.exec("cat /tmp/kept").stdout == b"very-secret-1\n"
    written = [path.read_text() for path in tmp_path.iterdir()]
    assert len(written) == 4 and not any("very-secret" in text or "tok_12" in text for text in written)


def test_secrets_in_files_are_not_shown(caller):
    """Files are not shown to a user who has secrets removed from records."""
    done = caller.rollbox(
        "verify",
        "--twice",
        "--redact",
        "hunter[0-9]",
        "--",
        "sh",
        "-c",
        "echo hunter2 $(cat /proc/sys/kernel/random/uuid) > /tmp/a",
    )
    assert done.returncode == 1 and b'of "/tmp/a"\n' in done.stdout and b"hunter" not in done.stdout, done


def test_equal_does_not_speak_of_files_that_were_not_recorded(caller):
    home = caller.directory()
    for flags, files, words in (([], "none", NO_FILES), (["--record-changes"], "commands", b"\n")):
        path = home / f"{files}.jsonl"
        assert caller.rollbox("record", "-o", path, *flags, "--", "true").returncode == 0
        assert caller.rollbox("verify", path).stdout == b"equal: 1 step" + words
        assert verdict(caller, path, status=0)["files"] == files
    assert caller.rollbox("verify", home / "none.jsonl", home / "commands.jsonl").stdout == b"equal: 1 step" + NO_FILES


def test_truncated_record_is_verified_up_to_its_end(caller):
    home = caller.directory()
    with shared_engine(caller) as call:
        box = call("create", "--record", home / "a.jsonl")
        for i in range(4):
            call("exec", box, "--", "echo", str(i))
        call("rm", box)
    raw = (home / "a.jsonl").read_bytes()
    (home / "b.jsonl").write_bytes(raw[:raw.index(b'{"step":3')+50])
    caller.own(home / "b.jsonl")
    for files in (["b.jsonl"], ["a.jsonl", "b.jsonl"]):
        done = caller.rollbox("verify", *(home / name for name in files))
        assert (done.returncode, done.stdout) == (
            0,
            b"equal: 2 steps (not whole, see standard error; files were not compared: they were not recorded)\n",
        ), done
        assert b"its last line is truncated" in done.stderr and b"it has no end" in done.stderr
        assert verdict(caller, *(home / name for name in files), status=0)["whole"] is False


@pytest.mark.parametrize("reason", ["file_limit", "engine_lost", None])
def test_truncated_record_is_not_reported_as_complete(caller, reason):
    """After any kind of end its steps are compared with themselves and with a longer record;
    without any steps, that is no success."""
    home = caller.directory()
    with shared_engine(caller) as call:
        box = call("create", "--record", home / "whole.jsonl", "--record-changes")
        for i in range(3):
            call("exec", box, "--", "echo", str(i))
        call("rm", box)
    rows = (home / "whole.jsonl").read_text().splitlines(True)
    for steps in (2, 0):
        digest = json.loads(rows[steps])["digest"]
        end = json.dumps({"end": {"reason": reason, "steps": steps}, "digest": digest}) + "\n" if reason else ""
        caller.write(home / f"{steps}.jsonl", "".join(rows[:1 + steps]) + end)
        for files in ([f"{steps}.jsonl"], ["whole.jsonl", f"{steps}.jsonl"], [f"{steps}.jsonl", "whole.jsonl"]):
            done = caller.rollbox("verify", *(home / name for name in files))
            told = f"it ends early: {reason}" if reason else "it has no end"
            assert told.encode() in done.stderr, done
            if steps:
                assert (done.returncode, done.stdout) == (0, b"equal: 2 steps (not whole, see standard error)\n"), done
                assert verdict(caller, *(home / name for name in files), status=0)["whole"] is False
            else:
                assert (done.returncode, done.stdout) == (
                    125,
                    b"",
                ) and b"no step that could be compared" in done.stderr, done
                assert "error" in verdict(caller, *(home / name for name in files), status=125)


def test_complete_empty_record_is_equal(caller):
    home = caller.directory()
    with shared_engine(caller) as call:
        call("rm", call("create", "--record", home / "a.jsonl"))
    assert caller.rollbox("verify", home / "a.jsonl").stdout == b"equal: 0 steps" + NO_FILES


def test_forks_are_replayed_from_their_parents(tmp_path):
    who = [binaries() / "rollbox"]
    with Sandbox(Policy(random_seed=2), record=tmp_path / "a.jsonl") as box:
        box.exec(["sh", "-c", "echo base > f"])
        [kid] = box.fork()
        box.exec(["sh", "-c", "echo later > f"])
        kid.exec(["sh", "-c", "cat f; echo kid >> f"])
        [grand] = kid.fork()
        grand.exec(["cat", "f"])
        names = [kid.name, grand.name]
        grand.close()
        kid.close()
    parent, kid, grand = tmp_path / "a.jsonl", *(tmp_path / f"a.{name}.jsonl" for name in names)
    for child, parents, status in (
        (kid, [parent], 0),
        (grand, [parent, kid], 0),
        (grand, [parent], 125),
        (kid, [kid], 125),
        (kid, [], 125),
    ):
        done = subprocess.run(
            [*who, "verify", *(word for one in parents for word in ("--parent", one)), child],
            capture_output=True,
        )
        assert done.returncode == status, done
        assert status or done.stdout == b"equal: %d step%s%s" % (
            (1, b"", NO_FILES) if child == grand else (2, b"s", NO_FILES)
        )


def test_replayed_fork_is_the_same(tmp_path):
    with Sandbox(record=tmp_path / "a.jsonl") as box:
        kids = box.fork(3)
        assert kids[1].exec(["sh", "-c", "echo $CLONE_ID"], text=True).stdout == "1\n"
        name = kids[1].name
        for kid in kids:
            kid.close()
    done = subprocess.run(
        [
            binaries() / "rollbox",
            "verify",
            "--parent",
            tmp_path / "a.jsonl",
            tmp_path / f"a.{name}.jsonl",
        ],
        capture_output=True,
    )
    assert done.returncode == 0 and done.stdout == b"equal: 1 step" + NO_FILES, done


@pytest.mark.parametrize("what, words", [
    (lambda box: box.spawn(["cat"], pty=True).kill(), b"terminal"),
    (lambda box: box.spawn(["cat"]).stdin.close(), b"pipe or a terminal"),
    (lambda box: box.exec(["cat"], stdin=b"x" * 3000), b"larger --keep"),
    (lambda box: box.exec(["true"], env={"V": "x"}), b"--env V=VALUE"),
    (lambda box: box.exec(["echo", "sk-secret"]), b"redacted from an argument"),
    (lambda box: box.kill_all(), b"signal"),
    (lambda box: box.upload("/etc/alternatives", "/tmp/a"), b"tree"),
])
def test_unreplayable_steps_are_refused_by_name(tmp_path, what, words):
    with Sandbox(record=Record(tmp_path / "a.jsonl", keep=1000, redact=["sk-[a-z]+"])) as box:
        box.exec(["true"])
        what(box)
    done = subprocess.run(
        [binaries() / "rollbox", "replay", "-o", tmp_path / "b.jsonl", tmp_path / "a.jsonl"],
        capture_output=True,
    )
    assert done.returncode == 125 and words in done.stderr and b"step 2 cannot be replayed" in done.stderr, done


def test_upload_is_replayed_with_its_name_and_mode(caller):
    """Into a directory a file goes by its own name, which the replay has to give it again."""
    home = caller.directory()
    caller.write(home / "up", "uploaded")
    with shared_engine(caller) as call:
        box = call("create", "--record", home / "a.jsonl")
        call("exec", box, "--", "mkdir", "/tmp/d")
        call("cp", home / "up", f"{box}:/tmp/d")
        call("cp", home / "up", f"{box}:/tmp/other")
        listed = call("exec", box, "--", "sh", "-c", "cd /tmp; stat -c '%n %a %s' d/* other; cat d/up other")
        assert "d/up " in listed and listed.endswith("uploadeduploaded")
        call("rm", box)
    assert verdict(caller, home / "a.jsonl", status=0)["verdict"] == "equal"


def test_commits_are_not_replayed(tmp_path):
    (tmp_path / "w").mkdir()
    with Sandbox(Policy().replace(fs_writable=[str(tmp_path / "w")]), record=tmp_path / "a.jsonl") as box:
        box.exec(["touch", str(tmp_path / "w" / "f")])
        box.commit()
    assert kinds(read(tmp_path / "a.jsonl")[1]) == ["exec", "commit"]
    done = subprocess.run([binaries() / "rollbox", "verify", "--trust", tmp_path / "a.jsonl"], capture_output=True)
    assert done.returncode == 125 and b"changes the host" in done.stderr


def test_replay_does_not_trust_a_policy_with_host_access(caller):
    home = caller.directory()
    assert (
        caller.rollbox(
            "record", "-o", home / "a.jsonl", "--shared", home, "--", "touch", home / "made"
        ).returncode
        == 0
    )
    (home / "made").unlink()
    done = caller.rollbox("verify", home / "a.jsonl")
    assert (
        done.returncode == 125
        and b"fs_shared" in done.stderr
        and b"--trust" in done.stderr
        and not (home / "made").exists()
    )
    assert caller.rollbox("verify", "--trust", home / "a.jsonl").returncode == 0 and (home / "made").exists()


def test_no_colours_or_progress_without_a_terminal(caller):
    home = caller.directory()
    caller.rollbox("record", "-o", home / "a.jsonl", "--", "echo", "one")
    for arguments in (["verify", home / "a.jsonl"], ["replay", "-o", home / "b.jsonl", home / "a.jsonl"]):
        done = caller.rollbox(*arguments)
        assert b"\x1b" not in done.stdout + done.stderr and b"\r" not in done.stderr


def test_invalid_trajectory_is_reported(caller):
    home = caller.directory()
    for name, text, words in (
        ("empty", "", b"empty:1: it has no complete line"),
        ("other", '{"a": 1}\n', b"other:1: is not a trajectory"),
        ("text", "hello\n", b"text:1: is not a JSON object"),
        ("newer", '{"format": "rollbox-trajectory/2"}\n', b"newer:1: has another format version"),
    ):
        caller.write(home / name, text)
        done = caller.rollbox("verify", home / name)
        assert done.returncode == 125 and words in done.stderr, done
    assert caller.rollbox("verify", home / "missing").returncode == 125
    assert caller.rollbox("verify", "--seed", "3", home / "text").returncode == 125
