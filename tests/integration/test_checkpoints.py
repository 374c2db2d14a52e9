# SPDX-License-Identifier: Apache-2.0
"""Snapshots that are taken by themselves, and what the tree says of snapshots.

The model: a sandbox is made with auto_snapshot, commands of which the test knows what they change
are run, and the tree has a node for each that
changed something and none for the others. Run as each caller; Python's side as the user who runs the tests.
"""

import json

import pytest

from harness import NO_FILES, until
from rollbox import InvalidArgument, Sandbox, Trajectory
from cli_sessions import own, shared, shell, started  # noqa: F401

CHANGED = ["--auto-snapshot", "changed"]


def tree(engine, box):
    return engine.json("tree", "--json", box)["snapshots"]


def automatic(engine, box):
    return [row["id"] for row in tree(engine, box) if row["automatic"]]


def told(engine, box):
    """The answer of inspect, after a snapshot of the client's, so that none is under way."""
    engine("diff", box)
    return engine.json("inspect", box)["auto_snapshot"]


def write(engine, box, *names):
    for name in names:
        engine.ok("exec", box, *shell(f"echo {name} > /tmp/{name}"))


def test_no_auto_snapshots_by_default(shared):
    with shared.box() as box:
        write(shared, box, "a")
        assert told(shared, box) is None and automatic(shared, box) == []


def test_only_changing_commands_make_an_auto_snapshot(shared):
    with shared.box(*CHANGED) as box:
        shared.ok("exec", box, "true")
        shared.ok(
            "exec",
            box,
            *shell(
                "cat /etc/passwd > /dev/null; cd /; ls -R /usr/bin > /dev/null; test ! -e /tmp/a"
            ),
        )
        assert shared("exec", box, "false").returncode == 1 and shared("exec", box, "/none").returncode == 127
        assert automatic(shared, box) == [] and told(shared, box)["unchanged"] == 3, "what never ran is none"
        write(shared, box, "a")
        assert told(shared, box)["last"] == "s1" and automatic(shared, box) == ["s1"]
        shared.ok("exec", box, "cat", "/tmp/a")
        shared.ok("exec", box, *shell("(exit 3); cat /tmp/a"))
        assert automatic(shared, box) == ["s1"]
        shared.ok("exec", box, *shell("echo more >> /tmp/a"))
        shared.ok("exec", box, "rm", "/tmp/a")
        shared.ok("exec", box, "mkdir", "/tmp/d")
        shared.ok("exec", box, "chmod", "700", "/tmp/d")
        assert told(shared, box)["taken"] == 5
        for id, there in zip(automatic(shared, box), ("a", "a", "", "d", "d")):
            shared.ok("reset", box, id)
            assert shared.ok("exec", box, "ls", "/tmp") == there
        assert shared.ok("exec", box, "stat", "-c", "%a", "/tmp/d") == "700"


def test_overwriting_in_place_in_a_new_box_is_a_change(shared):
    """After a snapshot the box stands on it, and has nothing of its own: the same bytes in the same
    file are a change."""
    with shared.box(*CHANGED) as box:
        write(shared, box, "a")
        assert told(shared, box)["taken"] == 1
        shared.ok("exec", box, *shell("printf A | dd of=/tmp/a conv=notrunc status=none"))
        assert told(shared, box)["taken"] == 2
        shared.ok("reset", box, "s1")
        assert shared.ok("exec", box, "cat", "/tmp/a") == "a"


def test_auto_snapshot_contains_running_processes(shared):
    with shared.box(*CHANGED) as box:
        started(shared, box, *shell("trap 'n=$((n+1)); echo $n > /tmp/n' USR1; echo up; while :; do sleep 0.01; done"))
        shared.ok("exec", box, "true")
        report = told(shared, box)
        assert report["taken"] == 1 and report["error"] is None
        (row,) = [row for row in tree(shared, box) if row["automatic"]]
        assert row["processes"] >= 1 and row["kind"] in ("live", "warm")
        shared.ok("exec", box, "true")
        assert told(shared, box)["taken"] == 2, "a comparison of memory is not possible"
        shared.ok("kill", box)
        until(lambda: not shared.json("ps", "--json", box)["processes"])
        shared.ok("exec", box, "true")
        told(shared, box)
        assert [row["processes"] for row in tree(shared, box)][-1] == 0, "nor that they ended to be nothing"
        before = told(shared, box)["taken"]
        shared.ok("exec", box, "true")
        assert told(shared, box)["taken"] == before


def test_undumpable_processes_are_reported_and_fail_no_command(shared):
    with shared.box(*CHANGED, "--serial", "--time-mode", "virtual", "--time-start", "2025-01-01T00:00:00") as box:
        started(shared, box, *shell("mkfifo /tmp/never; echo up; cat /tmp/never"))
        assert shared.ok("exec", box, "echo", "fine") == "fine"
        report = told(shared, box)
        assert report["taken"] == 0 and "cannot be captured" in report["error"]
        shared.ok("kill", box)
        write(shared, box, "a")
        report = told(shared, box)
        assert report["error"] is None and report["last"] == automatic(shared, box)[-1]


def test_latest_and_named_auto_snapshots_are_kept(shared):
    with shared.box(*CHANGED, "--auto-keep", "2") as box:
        write(shared, box, "a", "b")
        assert shared.ok("snapshot", "--as", "mine", box) == "s2", "the latest one is named, and no longer automatic"
        assert automatic(shared, box) == ["s1"]
        write(shared, box, "c", "d")
        kid = shared.ok("fork", "--from", "s3", box)
        write(shared, box, "e", "f", "g")
        told(shared, box)
        kept = automatic(shared, box)
        assert kept == ["s1", "s3", "s6", "s7"], (
            "the two latest, what the fork stands on, and what another than the next was made from"
        )
        shared.ok("exec", kid, *shell("test -e /tmp/c && ! test -e /tmp/d; echo > /tmp/k"))
        assert told(shared, kid)["taken"] == 1, "a fork does likewise"
        shared.ok("reset", box, "mine")
        assert shared.ok("exec", box, "ls", "/tmp") == "a\nb"
        shared.ok("rm", kid)


def test_hundred_commands_keep_the_requested_number(shared):
    with shared.box(*CHANGED, "--auto-keep", "3") as box:
        for turn in range(40):
            shared.ok("exec", box, *shell(f"echo {turn} > /tmp/n"))
        assert told(shared, box)["taken"] == 40 and len(automatic(shared, box)) == 3
        assert shared.ok("exec", box, "cat", "/tmp/n") == "39"


def test_bad_options(shared):
    for flags in (
        ["--auto-snapshot", "always"],
        ["--auto-keep", "3"],
        [*CHANGED, "--auto-keep", "0"],
        [*CHANGED, "--auto-keep", "x"],
    ):
        done = shared("create", *flags)
        assert done.returncode == 125 and done.stderr.count(b"\n") == 1, flags


def test_auto_snapshots_survive_hibernation(own):
    with own.box(*CHANGED, "--auto-keep", "2") as box:
        started(own, box, *shell("echo up; sleep 1000"))
        write(own, box, "a", "b")
        own.ok("fork", box)
        kinds = {row["id"]: row["kind"] for row in tree(own, box)}
        assert kinds["s0"] == "files" and "warm" in kinds.values() and "live" in kinds.values()
        own.ok("hibernate", box)
        rows = tree(own, box)
        assert {row["kind"] for row in rows} == {"asleep"} and rows[-1]["disk_bytes"] > rows[-1]["memory_bytes"] > 0
        assert "asleep" in own.ok("tree", box) and " on disk" in own.ok("tree", box)
        own.ok("wake", box)
        write(own, box, "c", "d", "e")
        assert len(automatic(own, box)) == 2 and own.json("inspect", box)["auto_snapshot"]["keep"] == 2


def test_trajectory_names_auto_snapshots_and_replays(shared):
    path = shared.who.directory() / "a.jsonl"
    box = shared.ok("create", *CHANGED, "--record", path)
    shared.ok("exec", box, "true")
    write(shared, box, "a", "b")
    shared.ok("reset", box, "s1")
    shared.ok("exec", box, "ls", "/tmp")
    shared.ok("rm", box)
    with Trajectory.open(path) as trajectory:
        steps = trajectory.steps()
    assert [(step.number, step.action.kind) for step in steps] == [
        (1, "exec"), (2, "exec"), (3, "snapshot"), (4, "exec"), (5, "snapshot"), (6, "reset"), (7, "exec")]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["step"]: line["after"] for line in lines if "after" in line} == {3: 2, 5: 4}
    assert [line["observation"]["snapshot"] for line in lines if "after" in line] == ["s1", "s2"]
    done = shared.who.rollbox("verify", path)
    assert (done.returncode, done.stdout) == (0, b"equal: 7 steps" + NO_FILES), done


def test_python():
    with Sandbox(auto_snapshot="changed", auto_keep=4) as box:
        for name in ("a", "b"):
            box.exec(["sh", "-c", f"echo {name} > /tmp/{name}"])
            box.exec(["ls", "/tmp"])
        latest = box.snapshot()
        assert latest.id == "s2" and not latest.automatic
        assert [(node.id, node.automatic, node.kind) for node in box.tree()] == [
            ("s0", False, "files"),
            ("s1", True, "files"),
            ("s2", False, "files"),
        ]
        assert "automatic" in str(box.tree())
        box.reset("s1")
        assert box.exec(["ls", "/tmp"]).stdout == b"a\n"
        (kid,) = box.fork()
        with kid:
            kid.exec(["touch", "/tmp/k"])
            until(lambda: kid.inspect()["auto_snapshot"]["taken"] == 1)
    for options in (
        {"auto_snapshot": "always"},
        {"auto_keep": 3},
        {"auto_snapshot": "changed", "auto_keep": 0},
        {"auto_snapshot": "changed", "auto_keep": True},
    ):
        with pytest.raises(InvalidArgument):
            Sandbox(**options)
