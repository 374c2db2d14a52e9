# SPDX-License-Identifier: Apache-2.0
"""The content of a snapshot, and whether it is sound: rollbox snapshot show and verify.

The model: a sandbox with a small tree of processes, whose every number the test knows, is shown
awake and hibernated; then what its processes need is
taken away (a program on the host, bytes in the store), and verify names it and changes nothing. Run as each caller.
"""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from harness import until
from rollbox import AsyncSandbox, NotFound, Sandbox
from cli_sessions import box, own, shared, shell, started  # noqa: F401


def asleep_files(own, pattern):
    """Files of what sleeps in an engine's store."""
    directory = Path(own.ok("store", "path")) / "asleep"
    return [path for path in directory.glob(f"*/{pattern}")]


def shown(engine, *arguments):
    return json.loads(engine.ok("snapshot", "show", "--json", *arguments))


def verified(engine, *arguments):
    done = engine("snapshot", "verify", "--json", *arguments)
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["sound"] else 1), done
    return report


def outcome(report):
    return {check["what"]: check["ok"] for check in report["checks"]}


def names(report):
    return sorted(process["name"] for process in report["processes"])


def test_show_lists_files_and_processes(shared, box):
    id = started(shared, box)
    assert shared.ok("snapshot", "--as", "full", box) == "s1"
    held = shown(shared, box)
    assert held == shown(shared, box, "full") == shown(shared, box, "s1")
    assert (held["id"], held["name"], held["parent"], held["asleep"]) == ("s1", "full", "s0", False)
    by_name = {process["name"]: process for process in held["processes"]}
    assert set(by_name) == {"sh", "sleep", "cat"}
    top = by_name["sh"]
    assert (top["parent"], by_name["sleep"]["parent"], by_name["cat"]["parent"]) == (1, top["pid"], top["pid"])
    assert top["descriptors"]["file"] == 1 and by_name["cat"]["descriptors"]["pipe"] == 1
    assert by_name["sleep"]["command"] == "sleep 1000" and [thread["tid"] for thread in top["threads"]] == [top["pid"]]
    assert 0 < top["memory_bytes"] < top["mapped_bytes"] and held["memory_bytes"] > 0
    assert held["kernel"] == os.uname().release
    assert [(row["id"], row["pid"]) for row in held["commands"]] == [(id, top["pid"])]
    assert [(row["path"], row["change"]) for row in held["changes"]] == [("/tmp/held", "A")]
    text = shared.ok("snapshot", "show", box)
    assert f"{top['pid']} sh" in text and "|-- " in text and "`-- " in text and "A /tmp/held" in text and id in text
    beginning = shown(shared, box, "s0")
    assert (
        beginning["processes"],
        beginning["commands"],
        beginning["changes"],
        beginning["parent"],
    ) == ([], [], [], None)


def test_show_lists_added_files(shared, box):
    shared.ok("exec", box, *shell("echo 1 > /tmp/a"))
    shared.ok("snapshot", box)
    shared.ok("exec", box, *shell("echo 22 > /tmp/b; rm /tmp/a"))
    shared.ok("snapshot", box)
    assert [(row["path"], row["change"]) for row in shown(shared, box)["changes"]] == [("/tmp/a", "D"), ("/tmp/b", "A")]
    assert [(row["path"], row["change"]) for row in shown(shared, box, "s1")["changes"]] == [("/tmp/a", "A")]


def test_guest_text_is_escaped_on_a_terminal(shared, box):
    named = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'\\x1b[2J\\xff', 0, 0, 0); print('up', flush=True); time.sleep(1000)"
    started(shared, box, "--", "python3", "-c", named)
    shared.ok("snapshot", box)
    done = shared("snapshot", "show", box)
    assert done.returncode == 0 and b"\x1b" not in done.stdout and b"\\x1b[2J" in done.stdout
    (process,) = [row for row in shown(shared, box)["processes"] if row["name"].startswith("\x1b")]
    assert process["name"] == "\x1b[2J\ufffd"


def test_unknown_snapshots_are_refused(shared, box):
    for word in ("show", "verify"):
        done = shared("snapshot", word, box, "nope")
        assert done.returncode == 125 and b"there is no snapshot nope" in done.stderr
        assert shared("snapshot", word).returncode == 125
    assert shared.ok("snapshot", "--as", "show", box), "a name may be what a command is called"
    assert shown(shared, box, "show")["name"] == "show"


def test_verify_passes_for_a_sound_snapshot(shared, box):
    started(shared, box)
    shared.ok("snapshot", box)
    before = shared.json("tree", "--json", box)["snapshots"], shared.json("ps", "--json")["sandboxes"]
    report = verified(shared, box)
    assert outcome(report) == {"restoring": True, "tables": True, "kernel": True, "layers": True}
    assert names(report) == ["cat", "sh", "sleep"]
    after = shared.json("tree", "--json", box)["snapshots"], shared.json("ps", "--json")["sandboxes"]
    strip = lambda rows: [
        {
            key: value
            for key, value in row.items()
            if key not in ("idle_s", "kind", "age_s", "cpu_ms", "memory_bytes", "peak_memory_bytes")
        }
        for row in rows
    ]
    assert [strip(rows) for rows in before] == [strip(rows) for rows in after], (
        "a trial leaves nothing behind, but that it is warm"
    )
    assert outcome(verified(shared, box, "s0")) == {"layers": True}
    assert "ok        restoring" in shared.ok("snapshot", "verify", box)


def test_verify_trial_does_not_resume_processes(shared):
    """Resumed processes would write through to the host; nothing is written."""
    through = shared.who.directory()
    with shared.box("--shared", through) as name:
        started(
            shared,
            name,
            *shell(
                f"echo up; while sleep 0.01; do [ ! -e /tmp/held ] || echo went-on >> {through}/log; done"
            ),
        )
        shared.ok("exec", name, "touch", "/tmp/held")
        until((through / "log").exists)
        shared.ok("snapshot", name)
        shared.ok("kill", name)
        shared.ok("exec", name, "rm", through / "log")
        for _ in range(3):
            report = verified(shared, name)
            assert report["sound"], report
        assert os.listdir(through) == []


def test_verify_names_a_changed_program(own):
    directory = own.who.directory(0o755)
    program, kept = directory / "program", directory / "kept"
    shutil.copy(shutil.which("sh"), program)
    own.who.own(program)
    os.link(program, kept)

    def replace():
        shutil.copy(shutil.which("cat"), directory / "other")
        os.rename(directory / "other", program)

    def why(report, what):
        (found,) = [check["why"] for check in report["checks"] if check["what"] == what]
        return found

    with own.box("--readable", directory) as name:
        started(own, name, "--", program, "-c", "echo up; while :; do sleep 1000; done")
        own.ok("snapshot", "--as", "kept", name)
        own.ok("hibernate", name)
        assert verified(own, name)["sound"]
        replace()
        report = verified(own, name)
        assert (
            not report["sound"]
            and outcome(report)["mapped files"] is False
            and outcome(report)["digests"]
            and outcome(report)["restoring"] is None
        )
        assert str(program) in why(report, "mapped files")
        assert own.json("inspect", name)["state"] == "asleep"
        os.unlink(program)
        assert str(program) in why(verified(own, name), "mapped files")
        os.link(kept, program)
        assert verified(own, name)["sound"]
        own.ok("wake", name)
        assert verified(own, name, "kept")["sound"]
        replace()
        report = verified(own, name, "kept")
        assert not report["sound"] and outcome(report)["restoring"] is False
        assert "cannot resume in the sandbox; opening its files" in why(report, "restoring")
        done = own("snapshot", "verify", name, "kept")
        assert done.returncode == 1 and b"REFUSED   restoring: process" in done.stdout
        assert own.states(name), "and the sandbox itself is none the worse for it"


def test_show_reads_hibernated_sessions_in_the_store(own):
    with own.box() as name:
        started(own, name)
        own.ok("snapshot", "--as", "full", name)
        awake = shown(own, name, "full")
        own.ok("hibernate", name)
        held = shown(own, name, "full")
        assert held["asleep"] and held["changes"] is None
        for key in ("id", "name", "parent", "bytes", "files", "memory_bytes", "processes", "commands", "kernel"):
            assert held[key] == awake[key], key
        assert names(shown(own, name)) == ["cat", "sh", "sleep"]
        report = verified(own, name)
        assert report["sound"] and outcome(report) == {
            "writable places": True,
            "kernel and processor": True,
            "restoring": None,
            "digests": True,
            "tables": True,
            "kernel": True,
            "mapped files": True,
        }
        assert own("snapshot", "show", name, "nope").returncode == 125
        assert own.json("inspect", name)["state"] == "asleep", "none of this wakes it"
        own.ok("wake", name)
        assert verified(own, name)["sound"]


@pytest.mark.parametrize("file", ["image-0", "layer-0"])
def test_verify_finds_damage_in_the_store(own, file):
    with own.box() as name:
        started(own, name)
        own.ok("hibernate", name)
        (path,) = asleep_files(own, file)
        with open(path, "r+b") as damaged:
            byte = damaged.read(1)
            damaged.seek(0)
            damaged.write(bytes([byte[0] ^ 1]))
        report = verified(own, name)
        assert not report["sound"] and outcome(report)["digests"] is False
        (why,) = [check["why"] for check in report["checks"] if check["what"] == "digests"]
        assert file in why
        with open(path, "r+b") as damaged:
            damaged.write(byte)
        assert verified(own, name)["sound"]


def test_client_leaving_during_a_trial_is_harmless(own):
    with own.box() as name:
        started(own, name)
        own.ok("snapshot", name)
        for _ in range(5):
            with own.start("snapshot", "verify", name):
                pass            # which kills it
        assert verified(own, name)["sound"]
        until(lambda: len(own.json("ps", "--json")["sandboxes"]) == 1)


def test_python_shows_and_verifies(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLBOX_STORE", str(tmp_path / "store"))

    async def looks():
        async with AsyncSandbox() as box:
            await box.write_file("/tmp/a", b"1")
            made = await box.snapshot()
            held = await box.show()
            checked = await box.verify(made)
            return made, held, checked

    made, held, checked = asyncio.run(looks())
    assert held["id"] == made.id and [row["path"] for row in held["changes"]] == ["/tmp/a"] and checked["sound"]
    with Sandbox() as box:
        process = box.spawn(["sh", "-c", "echo up; cat"])
        process.stdin.write(b"on\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"up\n" and process.stdout.readline() == b"on\n"       # cat is there
        made = box.snapshot()
        assert names(box.show(made)) == ["cat", "sh"] and outcome(box.verify(made))["restoring"]
        box.hibernate()
        assert names(box.show()) == ["cat", "sh"] and outcome(box.verify(made))["digests"]
        with pytest.raises(NotFound):
            box.show("nope")
        assert box.inspect()["state"] == "asleep"
