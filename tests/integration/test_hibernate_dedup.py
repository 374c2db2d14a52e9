# SPDX-License-Identifier: Apache-2.0
"""Sandboxes that sleep more than once: only what has changed is written.

The model: a guest has memory that cannot be made smaller (random bytes), changes a part of it,
sleeps and wakes, and tells what it has in the end. What
the store has of the sleep before is shared by links, so after any removal, kill or damage, each
hibernated session is complete or is refused by name.
make check runs this file as root and as an ordinary user.
"""

import json
import os
import signal
import subprocess

import pytest

from harness import repeat_count, until
from rollbox import Damaged, Engine, RollboxError, Sandbox
from stores import FAULTS, asleep, box, engine, failing, in_box, in_store, Shared, store, store_tells  # noqa: F401
from asked import Asked, node_of, noted, sh

MB = 1 << 20
MEMORY = 6 * MB
BEGIN = ("import hashlib, os", f"b = bytearray(os.urandom({MEMORY}))", "d = lambda: hashlib.sha256(b).hexdigest()")


def change(asked, first, last):
    asked(f"for i in range({first}, {last}, 4096): b[i] ^= 1")


def woken(store):  # noqa: F811
    return sorted(path.name for path in (store / "woken").iterdir()) if (store / "woken").exists() else []


def written(box):  # noqa: F811
    return box.inspect()["asleep"]["written_bytes"]


def test_only_changed_data_is_written(box, store):  # noqa: F811
    asked = Asked.begin(box, *BEGIN)
    box.write_file("/tmp/large", os.urandom(MB))
    box.hibernate()
    first = box.inspect()["asleep"]
    assert first["written_bytes"] == first["bytes"] > MEMORY + MB
    box.wake()
    assert len(woken(store)) == 1 and asleep(store) == []
    asked = asked.of(box)
    change(asked, 0, MB)
    before = asked("d()")
    box.write_file("/tmp/small", b"x")
    box.hibernate()
    second = box.inspect()["asleep"]
    assert MB <= second["written_bytes"] < 3 * MB and second["bytes"] > first["bytes"]
    until(lambda: woken(store) == [] and list((store / "trash").iterdir()) == [])
    assert asked.of(box)("d()") == before
    assert box.read_file("/tmp/small") == b"x" and len(box.read_file("/tmp/large")) == MB


def test_unchanged_session_writes_nothing(box):
    """A woken layer is not taken for the empty one that it was made from: once there was no room
    for it the next time."""
    sh(box, "head -c 3000000 /dev/urandom > /tmp/f")
    box.hibernate()
    assert written(box) > 3000000
    box.wake()
    box.hibernate()
    assert written(box) < 100000 and box.inspect()["asleep"]["bytes"] > 3000000
    assert len(box.read_file("/tmp/f")) == 3000000


def test_moved_memory_is_deduplicated(box):
    """New memory before it moves the rest within the image."""
    asked = Asked.begin(box, *BEGIN)
    box.hibernate()
    asked = asked.of(box)
    asked("more = [os.urandom(4096) for i in range(64)]")
    before = asked("d()")
    box.hibernate()
    assert written(box) < 2 * MB
    assert asked.of(box)("d()") == before


def test_chain_is_bounded(box, store):  # noqa: F811
    """Each sleep changes another part; files are never many, nor much more than what is needed of them."""
    asked = Asked.begin(box, *BEGIN)
    box.hibernate()
    whole = written(box)
    total = 0
    for i in range(24):
        asked = asked.of(box)
        part = i % 12 * MEMORY // 12
        change(asked, part, part + MEMORY // 12)
        before = asked("d()")
        box.hibernate()
        total += written(box)
        record = json.loads(in_store(store, "record.json")[0].read_text().splitlines()[0])
        assert all(len(row.get("over", [])) <= 8 for row in record["images"])
        assert box.inspect()["asleep"]["bytes"] < 3 * whole
        assert len(json.dumps(record)) < 20000
    assert total < 24 * whole / 2
    assert asked.of(box)("d()") == before


def test_fully_changed_image_is_written_as_a_full_image(box, store):  # noqa: F811
    asked = Asked.begin(box, *BEGIN)
    box.hibernate()
    asked = asked.of(box)
    asked(f"b[:] = os.urandom({MEMORY})")
    before = asked("d()")
    box.hibernate()
    assert [path.name for path in in_store(store, "base-*")] == []
    assert asked.of(box)("d()") == before


def test_snapshots_and_forks_keep_their_data(engine, store):  # noqa: F811
    """Removing one leaves the shared data to the others."""
    with Sandbox(engine=engine) as parent:
        asked = Asked.begin(parent, *BEGIN)
        parent.snapshot("one")
        one = asked("d()")
        parent.hibernate()
        again = asked.of(parent)
        change(again, 0, MB // 2)
        two = again("d()")
        kid = parent.fork(1, snapshot="one")[0]
        parent.hibernate()
        assert written(parent) < 3 * MB
        kid.hibernate()
        assert written(kid) < 3 * MB
        unique = store_tells("df")
        assert (
            unique["asleep"] == 2
            and unique["asleep_bytes"]
            < parent.inspect()["asleep"]["bytes"] + kid.inspect()["asleep"]["bytes"] - MEMORY
        )
        assert store_tells("fsck")["damaged"] == [] and store_tells("gc")["removed_asleep"] == 0
        assert asked.of(parent)("d()") == two
        parent.close()
        store_tells("gc")
        again = asked.of(kid)
        assert again("d()") == one
        kid.hibernate()
        assert written(kid) < 3 * MB and asked.of(kid)("d()") == one
        kid.close()
    until(lambda: asleep(store) == [] and woken(store) == [])


def test_closing_leaves_nothing(engine, store):  # noqa: F811
    with Sandbox(engine=engine) as box:  # noqa: F811
        asked = Asked.begin(box, *BEGIN)
        box.hibernate()
        box.wake()
        assert (
            asked.id
            and len(woken(store)) == 1
            and store_tells("df")["woken"] == 1
            and store_tells("df")["woken_bytes"] > MEMORY
        )
        assert store_tells("gc")["removed_asleep"] == 0 and len(woken(store)) == 1
    until(lambda: woken(store) == [] and list((store / "trash").iterdir()) == [])


def test_data_woken_by_a_killed_engine_is_collected(store):  # noqa: F811
    engine = Engine()  # noqa: F811
    box = Sandbox(engine=engine)  # noqa: F811
    asked = Asked.begin(box, *BEGIN)
    box.hibernate()
    box.wake()
    assert asked.id and len(woken(store)) == 1
    os.kill(engine.status()["pid"], signal.SIGKILL)

    def collected():
        store_tells("gc")
        return woken(store) == []

    until(collected)
    assert store_tells("df")["woken_bytes"] == 0


def test_after_an_engine_restart(store, tmp_path):  # noqa: F811
    socket = str(tmp_path / "socket")
    with Shared(socket) as first:
        box = Sandbox(engine=first.engine, name="kept", detached=True)  # noqa: F811
        asked = Asked.begin(box, *BEGIN)
        box.hibernate()
        asked = asked.of(box)
        change(asked, 0, MB)
        before = asked("d()")
        box.hibernate()
        size = box.inspect()["asleep"]["bytes"]
        first.end(signal.SIGKILL)
    with Shared(socket) as second:
        box = Sandbox.open("kept", engine=second.engine)
        assert box.inspect()["asleep"]["bytes"] == size
        asked = asked.of(box)
        assert asked("d()") == before
        change(asked, MB, 2 * MB)
        before = asked("d()")
        box.hibernate()
        assert written(box) < 3 * MB
        assert asked.of(box)("d()") == before
        box.close()


@pytest.mark.parametrize(
    "fault",
    [
        row
        for row in FAULTS
        if row["command"] in ("hibernate", "hibernate-again", "wake", "wake-again")
    ],
    ids=lambda row: row["name"],
)
def test_killed_on_the_way(store, failing, fault):  # noqa: F811
    with Engine() as engine, Sandbox(engine=engine) as box:  # noqa: F811
        asked = Asked.begin(box, *BEGIN)
        box.write_file("/tmp/f", b"x" * 10000)
        box.hibernate()
        asked = asked.of(box)
        box.write_file("/tmp/g", b"y" * 10000)
        change(asked, 0, MB)
        before = asked("d()")
        if fault["command"].startswith("hibernate"):
            failing.write_text(f"export ROLLBOX_FAULT={fault['name']}\n")
            with pytest.raises(RollboxError):
                box.hibernate()
            assert box.inspect()["state"] == "running" and asked("d()") == before and asleep(store) == []
            failing.unlink()
            box.hibernate()
            assert written(box) < 3 * MB
        else:
            box.hibernate()
            failing.write_text(f"export ROLLBOX_FAULT={fault['name']}\n")
            with pytest.raises(RollboxError):
                box.wake()
            assert box.inspect()["state"] == "asleep" and len(asleep(store)) == 1
            failing.unlink()
        assert store_tells("fsck")["damaged"] == []
        assert asked.of(box)("d()") == before and box.read_file("/tmp/g") == b"y" * 10000


def test_full_disk_is_reported(store, failing):  # noqa: F811
    with Engine() as engine, Sandbox(engine=engine) as box:  # noqa: F811
        asked = Asked.begin(box, *BEGIN)
        box.hibernate()
        asked = asked.of(box)
        change(asked, 0, MB)
        before = asked("d()")
        failing.write_text("ulimit -f 100; trap '' XFSZ\n")
        with pytest.raises(RollboxError, match="store"):
            box.hibernate()
        failing.unlink()
        assert asked("d()") == before and asleep(store) == [] and list((store / "tmp").iterdir()) == []
        box.hibernate()
        assert asked.of(box)("d()") == before


@pytest.mark.parametrize("what", ["image-*", "base-*", "layer-*"])
def test_damage_is_refused(box, store, what):  # noqa: F811
    """Also what lies unchanged since the first sleep is compared with what was written then."""
    asked = Asked.begin(box, *BEGIN)
    box.write_file("/tmp/f", b"x" * 10000)
    box.hibernate()
    asked = asked.of(box)
    change(asked, 0, MB)
    before = asked("d()")
    box.hibernate()
    path = in_store(store, what)[0]
    content = path.read_bytes()
    path.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    with pytest.raises(Damaged, match=path.name):
        box.wake()
    (found,) = store_tells("fsck", 1)["damaged"]
    assert found["file"] == path.name
    path.write_bytes(content)
    assert asked.of(box)("d()") == before


def test_missing_backing_data_is_written_again(box, store):  # noqa: F811
    """Nothing depends on woken/: without it all is written."""
    asked = Asked.begin(box, *BEGIN)
    box.write_file("/tmp/f", b"x")
    box.hibernate()
    box.wake()
    subprocess.run(["rm", "-rf", *map(str, (store / "woken").iterdir())], check=True)
    asked = asked.of(box)
    before = asked("d()")
    box.hibernate()
    assert written(box) == box.inspect()["asleep"]["bytes"] > MEMORY
    assert asked.of(box)("d()") == before and box.read_file("/tmp/f") == b"x"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_fork_of_a_fork_wakes_in_another_engine(store, tmp_path, how):  # noqa: F811
    """Its image is incremental and is flattened for the store, and its memory has dirty tracking.
    After the wake neither exists; its forks start with a full image."""
    socket = str(tmp_path / "socket")

    def tells(asked):
        return asked(
            "d(), file.tell(), seen, [(kid.stdin.write(b'on' + b'\\n'), kid.stdin.flush(), kid.stdout.readline()) for kid in kids]"
        )

    with Shared(socket) as first:
        box = Sandbox(engine=first.engine, name="origin", detached=True)
        asked = Asked.begin(
            box,
            *BEGIN,
            "import subprocess",
            "kids = [subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]",
            "file, seen = open('/tmp/file', 'w'), []",
        )
        for generation in range(20):
            box = box.fork(1)[0]
            asked = asked.of(box)
            change(asked, generation << 13, (generation << 13) + 8192)
            asked(f"seen.append({generation}); file.write('x'), file.flush()")
            if generation > 3 and noted(first.engine) and node_of(box).memory_bytes < MEMORY // 2:
                break
        else:
            pytest.fail("no fork is what has changed")
        name, told = box.inspect()["name"], tells(asked)
        assert "[0, 1, 2, 3, 4" in told
        box.hibernate()
        first.end(how)
    with Shared(socket) as second:
        assert [(row["name"], row["state"]) for row in second.engine.sandboxes()] == [(name, "asleep")]
        box = Sandbox.open(name, engine=second.engine)
        asked = asked.of(box)
        assert tells(asked) == told
        chain = [box]
        for generation in range(10):
            chain.append(chain[-1].fork(1)[0])
            copy = asked.of(chain[-1])
            for one in (asked, copy):
                change(one, generation << 14, (generation << 14) + 4096)
                one(f"seen.append({generation}); file.write('y'), file.flush()")
            assert tells(copy) == tells(asked)
            asked = copy
        assert noted(second.engine) and min(node_of(one).memory_bytes for one in chain) < MEMORY // 2
        for one in chain:
            one.close()
    assert asleep(store) == []


@pytest.mark.long
def test_session_with_hundreds_of_snapshots_wakes(box):
    """Each with files of its own, for which its launcher makes layers: more than its socket has room for."""
    asked, n = Asked.begin(box, "x = 0"), repeat_count(300, 20)
    for i in range(n):
        asked(f"x = {i}; open('/tmp/f{i}', 'w').write('x')")
        box.snapshot()
    box.hibernate()
    box.wake()
    assert asked.of(box)("x") == str(n - 1) and len(box.tree()) > n
