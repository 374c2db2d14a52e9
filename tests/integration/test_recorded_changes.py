# SPDX-License-Identifier: Apache-2.0
"""Files that commands change, by digest, in trajectories without a snapshot.

The model: commands whose every change the test knows are recorded with --record-changes; the record
has a step for each that changed something, in
order, with the digests that hashlib gives. Run as each caller.
"""

import hashlib
import json

import pytest

from rollbox import Record, Sandbox, Trajectory
from cli_sessions import shared, shell, started  # noqa: F401


class Recorded:
    """A sandbox of the command line that is recorded to a file."""

    def __init__(self, engine, *flags):
        self.engine = engine
        self.path = engine.who.directory() / "record.jsonl"
        self.name = engine.ok("create", "--record", self.path, "--record-changes", *flags)

    def __call__(self, text):
        return self.engine.ok("exec", self.name, *shell(text))

    def end(self):
        """The lines of the record, all but header and end."""
        self.engine.ok("rm", self.name)
        with Trajectory.open(self.path) as trajectory:
            trajectory.steps()
            assert trajectory.complete
        return [json.loads(line) for line in self.path.read_text().splitlines()][1:-1]


def changes(lines):
    """By the step of the command: {path: (change, sha256)}."""
    return {line["after"]: {row["path"]: (row["change"], row.get("sha256")) for row in line["observation"]["changes"]}
            for line in lines if line["action"]["kind"] == "files"}


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_each_command_records_its_changed_files(shared):
    box = Recorded(shared)
    box("true")
    box("echo one > /tmp/a")
    box("cat /tmp/a")
    box("printf ONE | dd of=/tmp/a conv=notrunc status=none; ln -s a /tmp/l; mkdir /tmp/d")
    box("rm /tmp/a")
    lines = box.end()
    assert [line["action"]["kind"] for line in lines] == [
        "exec",
        "exec",
        "files",
        "exec",
        "exec",
        "files",
        "exec",
        "files",
    ]
    assert changes(lines) == {
        2: {"/tmp/a": ("A", sha("one\n"))},
        5: {"/tmp/a": ("M", sha("ONE\n")), "/tmp/l": ("A", sha("a")), "/tmp/d": ("A", None)},
        7: {"/tmp/a": ("D", None)},
    }
    assert not any("cumulative" in line["observation"] for line in lines)


def test_change_recording_leaves_no_snapshot(shared):
    box = Recorded(shared)
    for turn in range(12):
        box(f"echo {turn} > /tmp/n")
    assert [row["id"] for row in shared.json("tree", "--json", box.name)["snapshots"]] == ["s0"]
    lines = box.end()
    assert [row["/tmp/n"] for row in changes(lines).values()] == [
        ("A" if turn == 0 else "M", sha(f"{turn}\n")) for turn in range(12)
    ]


def test_replay_repeats_changes_and_verify_finds_differences(shared):
    box = Recorded(shared)
    box("echo same > /tmp/same")
    box("cat /proc/sys/kernel/random/uuid > /tmp/other")
    box("true")
    lines = box.end()
    assert len(lines) == 5
    done = shared.who.rollbox("verify", "--json", box.path)
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"], report["steps"]) == (1, "diverged", 3)
    assert (
        report["divergence"]["step"],
        report["divergence"]["kind"],
        report["divergence"]["path"],
        report["files"],
    ) == (4, "files", "/tmp/other", "commands")
    again = shared.who.directory() / "again.jsonl"
    assert shared.who.rollbox("replay", "-o", again, box.path).returncode == 0
    assert [
        line["action"]
        for line in map(json.loads, again.read_text().splitlines())
        if "action" in line
    ] == [line["action"] for line in lines]


def test_verify_describes_a_differing_file(shared):
    """It shows the digest of the record, and the content of the replay's file unless that was written again since."""
    box = Recorded(shared)
    box("echo one; cat /proc/sys/kernel/random/uuid > /tmp/b; echo same > /tmp/a")
    box("echo other > /tmp/c")
    box.end()
    seen = json.loads(shared.who.rollbox("verify", "--json", box.path).stdout)["divergence"]
    first, second = seen["first"]["value"], seen["second"]["value"]
    assert (seen["where"], seen["path"], seen["offset"], seen["source"]) == (
        "changes[1].sha256",
        "/tmp/b",
        None,
        "unknown",
    ) and "--twice" in seen["hint"]
    assert (
        first["bytes"] == second["bytes"] == 37
        and sha(second["begins"]) == second["sha256"] != first["sha256"]
        and "begins" not in first
    )
    box = Recorded(shared)
    box("cat /proc/sys/kernel/random/uuid > /tmp/b")
    box("echo > /tmp/b")
    box.end()
    seen = json.loads(shared.who.rollbox("verify", "--json", box.path).stdout)["divergence"]
    assert seen["path"] == "/tmp/b" and "begins" not in seen["second"]["value"]


def test_verify_names_files_that_are_in_one_alone(shared):
    box = Recorded(shared)
    box("echo 1 > /tmp/a$(cat /proc/sys/kernel/random/uuid)")
    lines = box.end()
    seen = json.loads(shared.who.rollbox("verify", "--json", box.path).stdout)["divergence"]
    assert (seen["where"], seen["first"]["value"]) == ("changes[0].path", lines[1]["observation"]["changes"][0]["path"])
    assert seen["second"]["value"].startswith("/tmp/a")
    box = Recorded(shared)
    box("echo 1 > /tmp/a")
    lines = box.end()
    box.path.write_text(box.path.read_text().replace('echo 1 > /tmp/a', 'true'))
    done = shared.who.rollbox("verify", box.path)
    assert done.returncode == 1 and done.stdout.startswith(b'diverged at step 2 (files): step of "/tmp/a"\n'), done


def test_processes_are_paused_for_change_recording(shared):
    box = Recorded(shared)
    box("echo before > /tmp/before")
    started(shared, box.name, *shell("echo up; sleep 1000"))
    box("echo first > /tmp/first")
    box("echo second > /tmp/second")
    lines = box.end()
    found = [line for line in lines if line["action"]["kind"] == "files"]
    assert changes(found[:1]) == {1: {"/tmp/before": ("A", sha("before\n"))}}
    assert set(changes(found[1:2]).popitem()[1]) == {"/tmp/first"} and "cumulative" not in found[1]["observation"]
    assert (
        set(changes(found[2:3]).popitem()[1]) == {"/tmp/first", "/tmp/second"}
        and found[2]["observation"]["cumulative"] is True
    )


def test_idle_processes_add_no_step(shared):
    """And the files that it writes then, without a command of its own, appear with the next command."""
    box = Recorded(shared)
    box("mkfifo /tmp/f; echo here > /tmp/a")
    box("(cat /tmp/f > /tmp/b; echo > /tmp/done; sleep 1000) > /dev/null 2>&1 &")
    box("true")
    box("echo later > /tmp/f; until [ -e /tmp/done ]; do :; done")
    lines = box.end()
    found = changes(lines)
    assert "/tmp/b" in found[max(found)] and found[max(found)]["/tmp/b"][1] == sha("later\n")


def test_changes_beside_running_processes(shared):
    box = Recorded(shared)
    box("sleep 1000 > /dev/null 2>&1 &")
    for _ in range(3):
        box("cat /etc/hostname")
    box("echo one > /tmp/a")
    lines = box.end()
    assert [line["action"]["kind"] for line in lines] == ["exec"] * 5 + ["files"]
    assert changes(lines) == {5: {"/tmp/a": ("A", sha("one\n"))}}


def test_with_snapshots_by_themselves_and_resets(shared):
    box = Recorded(shared, "--auto-snapshot", "changed")
    box("echo 1 > /tmp/a")
    box("echo 2 > /tmp/b")
    shared.ok("reset", box.name, "s1")
    box("echo 3 > /tmp/c")
    lines = box.end()
    assert [line["action"]["kind"] for line in lines] == [
        "exec",
        "files",
        "snapshot",
        "exec",
        "files",
        "snapshot",
        "reset",
        "exec",
        "files",
        "snapshot",
    ]
    assert changes(lines) == {
        1: {"/tmp/a": ("A", sha("1\n"))},
        4: {"/tmp/b": ("A", sha("2\n"))},
        8: {"/tmp/c": ("A", sha("3\n"))},
    }
    assert shared.who.rollbox("verify", box.path).stdout == b"equal: 10 steps\n"


def test_changes_are_bounded_by_the_line_limit(shared):
    box = Recorded(shared, "--disk", "600M", "--memory", "1G")
    box("cd /tmp && mkdir m && cd m && seq 10050 | xargs touch")
    box("cd /tmp && for i in 1 2 3; do truncate -s 100M big$i; done")
    many, big = [line for line in box.end() if line["action"]["kind"] == "files"]
    assert len(many["observation"]["changes"]) == 10000 and many["observation"]["omitted"] == 51
    assert [("sha256" in row, row.get("too_large")) for row in big["observation"]["changes"]] == [
        (True, None),
        (True, None),
        (False, True),
    ]


def test_secrets_in_names_are_taken_out(shared):
    box = Recorded(shared, "--redact", "hunter[0-9]", "--env", "HOME=/tmp")
    box("echo > /tmp/hunter2")
    lines = box.end()
    assert "hunter2" not in box.path.read_text() and list(changes(lines)[1]) == ["/tmp/[redacted]"]


def test_change_recording_for_one_command(shared):
    path = shared.who.directory() / "one.jsonl"
    assert (
        shared.who.rollbox(
            "record", "-o", path, "--record-changes", "--", "sh", "-c", "echo 1 > /tmp/a"
        ).returncode
        == 0
    )
    lines = [json.loads(line) for line in path.read_text().splitlines()][1:-1]
    assert changes(lines) == {1: {"/tmp/a": ("A", sha("1\n"))}}, "its end waits for that"


def test_python(tmp_path):
    with Sandbox(record=Record(tmp_path / "a.jsonl", changes=True)) as box:
        box.write_file("/tmp/given", b"1")
        box.exec(["true"])
        box.exec(["cp", "/tmp/given", "/tmp/made"])
    with Trajectory.open(tmp_path / "a.jsonl") as trajectory:
        steps = trajectory.steps()
    assert [step.action.kind for step in steps] == ["write_file", "exec", "files", "exec", "files"]
    assert [
        [row["path"] for row in step.observation.changes]
        for step in steps
        if step.action.kind == "files"
    ] == [["/tmp/given"], ["/tmp/made"]]
    assert [step.after for step in steps] == [None, None, 2, None, 4]


@pytest.mark.parametrize("flags", [["batch"], ["fork"]])
def test_change_recording_is_an_option_of_each_interface(shared, flags):
    done = shared(*flags, "--record-changes", "--help")
    assert (done.returncode == 0) == (flags == ["fork"])
