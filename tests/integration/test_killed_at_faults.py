# SPDX-License-Identifier: Apache-2.0
"""The engine is killed together with rollbox-store, at each of its fault points, or just before the
job begins, which then continues alone: files on the host and in the store are complete, and nothing
else is left.

The model: rollbox-store is a script that does as a file says, once: "point NAME" dies there and
takes its parent, the engine, along; "first" kills the engine and then does the work.
"""

import json
import os

import pytest

from conftest import BUILD
from harness import until
from rollbox import EngineLost, NotFound, Policy, Sandbox
from stores import FAULTS, Shared, store, store_tells  # noqa: F401

COUNTING = "import time\nmemory = bytearray(1 << 20)\nn = 0\nwhile True:\n    n += 1\n    open('/tmp/n.new', 'w').write(str(n))\n    __import__('os').rename('/tmp/n.new', '/tmp/n')\n    time.sleep(0.01)"
WORK = {
    "commit": lambda box, to: box.commit(),
    "export": lambda box, to: box.export(to),
    "export-live": lambda box, to: box.export(to, processes="keep"),
    "hibernate": lambda box, to: box.hibernate(),
    "hibernate-again": lambda box, to: box.hibernate(),
    "wake": lambda box, to: box.wake(),
    "wake-again": lambda box, to: box.wake(),
}
CASES = [
    (row["command"], f"point {row['name']}", row["done"])
    for row in FAULTS
    if row["command"] in WORK
] + [(command, "first", None) for command in WORK]


@pytest.fixture
def fault(tmp_path, monkeypatch):
    program, fault = tmp_path / "store-program", tmp_path / "fault"
    store_program = f"{BUILD}/rollbox-store"
    program.write_text(f"""#!/bin/sh
if [ -e {fault} ]; then
    read how point < {fault}
    echo $$ > {fault}.pid
    rm {fault}
    case $how in
    point) ROLLBOX_FAULT=$point {store_program} "$@"; kill -9 $PPID; exit 1;;
    first) kill -9 $PPID;;
    esac
fi
exec {store_program} "$@"
""")
    program.chmod(0o755)
    monkeypatch.setenv("ROLLBOX_STORE_PROGRAM", str(program))
    return fault


def counts_on(box):
    begun = int(box.read_file("/tmp/n"))
    until(lambda: int(box.read_file("/tmp/n")) > begun)


def beside(work):
    """The files that commits and exports may leave."""
    return [name for name in os.listdir(work.parent) if name.startswith((".rollbox", "file."))]


def is_a_difference(store):
    """Whether the store has a hibernated image as a difference."""
    (record,) = (store / "asleep").glob("*/record.json")
    return any("over" in image for image in json.loads(record.read_text().splitlines()[0])["images"])


@pytest.mark.parametrize(
    "command, how, done",
    CASES,
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_engine_and_store_are_killed(command, how, done, fault, store, tmp_path):  # noqa: F811
    work, to, socket = tmp_path / "work", tmp_path / "file", tmp_path / "socket"
    work.mkdir()
    (work / "a").write_text("old\n")
    (work / "gone").touch()
    to.write_text("before")
    with Shared(socket) as shared:
        box = Sandbox(Policy(fs_writable=[str(work)]), engine=shared.engine, name="box", detached=True)
        box.exec(
            [
                "sh",
                "-c",
                f"cd {work}; echo new > a; rm gone; mkdir d; echo d > d/d; head -c 200000 /dev/urandom > /tmp/much",
            ],
            check=True,
        )
        box.spawn(["python3", "-c", COUNTING], stdin=b"")
        until(lambda: box.exists("/tmp/n"))
        for _ in range({"wake": 1, "hibernate-again": 1, "wake-again": 2}.get(command, 0)):
            box.hibernate()
            if command.endswith("again"):
                box.exec(["sh", "-c", "echo more > /tmp/more"])
        if command.startswith("wake"):
            box.hibernate()
        # An image of which most has happened to change is written in full.
        if command == "wake-again":
            until(lambda: is_a_difference(store) or box.wake() or box.hibernate())
        (tmp_path / "next").write_text(how + "\n")
        os.rename(tmp_path / "next", fault)     # complete for every reader
        with pytest.raises(EngineLost):
            WORK[command](box, str(to))
        assert not fault.exists(), "the point was reached"
        shared.process.wait()
    number = fault.with_suffix(".pid").read_text().strip()       # of the script, then of rollbox-store
    until(lambda: not os.path.exists(f"/proc/{number}"))

    new = (work / "a").read_text() == "new\n"
    assert sorted(os.listdir(work)) == (["a", "d"] if new else ["a", "gone"]) and (
        new or (work / "a").read_text() == "old\n"
    )
    if command != "commit" or how != "first":
        assert new == (command == "commit" and bool(done))
    assert command.startswith("export") or to.read_text() == "before"
    if how != "first":
        assert to.read_bytes()[:6] == b"before", "a file appears when it is whole"
    until(lambda: beside(work) == [])       # without another commit
    with Shared(socket) as shared:
        try:
            with Sandbox.open("box", engine=shared.engine) as box:
                counts_on(box)
                box.close()
            there = True
        except NotFound:
            there = False
        if command.startswith("wake") or (command == "hibernate" and done):
            assert there
        elif how != "first":
            assert not there
        if command == "commit":
            with Sandbox(Policy(fs_writable=[str(work)]), engine=shared.engine) as next_one:
                next_one.exec(["sh", "-c", f"echo next > {work}/a"])
                next_one.commit()
            assert (work / "a").read_text() == "next\n"
    store_tells("gc")
    assert store_tells("fsck")["damaged"] == []
    assert [
        entry
        for part in ("tmp", "trash", "woken", "asleep", "boxes")
        if (store / part).is_dir()
        for entry in os.listdir(store / part)
    ] == []
    until(lambda: beside(work) == [])
