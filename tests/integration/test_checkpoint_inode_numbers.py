# SPDX-License-Identifier: Apache-2.0
"""Inode numbers of files that are open in what is captured.

The model: a guest with files open compares what its descriptors say with what its paths say, as
SQLite does before each transaction, in copies of
every kind, and in copies of those.
make check runs this file as root and as an ordinary user.
"""

import signal

import pytest

from rollbox import Sandbox
from stores import Shared, box, engine, in_box, store  # noqa: F401
from asked import Asked, closing, restorer  # noqa: F401
from two_stores import Other, other  # noqa: F401

MODES = ["delete", "truncate", "persist", "wal", "memory"]
# Files in odd orders, with gaps, and numbers that were given to files which are gone.
FILES = [
    "import os",
    "kept = {}",
    "for name in 'cab': kept[name] = open('/tmp/' + name, 'w'); open('/tmp/gone', 'w').close(); os.unlink('/tmp/gone')",
    "os.mkdir('/tmp/d')",
    "for i in range(300): open(f'/tmp/d/{(i * 7) % 300}', 'w').close()",
    "for i in range(0, 300, 3): os.unlink(f'/tmp/d/{i}')",
    "for name in ('d/z', 'y', 'd/x', 'd/a'): kept[name] = open('/tmp/' + name, 'w')",
    "open('/tmp/d/first', 'w').close(); os.link('/tmp/d/first', '/tmp/another'); kept['linked'] = open('/tmp/d/first')",
    "kept['rights'] = open('/tmp/rights', 'w'); os.fchmod(kept['rights'].fileno(), 0o4751); os.utime('/tmp/rights', (5, 6))",
    "paths = {name: '/tmp/' + {'linked': 'd/first'}.get(name, name) for name in kept}",
    "def numbers(): return [(name, os.fstat(file.fileno()).st_ino, os.stat(paths[name]).st_ino) for name, file in sorted(kept.items())]",
    "def write(): return [file.write(name) and file.flush() for name, file in kept.items() if file.writable()] and None",
    "def read(): return [open(paths[name]).read() for name in sorted(kept)]",
]


def connected(box, mode):  # noqa: F811
    asked = Asked.begin(box, "import sqlite3", "[open(f'/tmp/before-{i}', 'w').close() for i in range(20)] and None",
                        "db = sqlite3.connect('/tmp/db', isolation_level=None)")
    assert asked(f"db.execute('pragma journal_mode={mode}').fetchone()[0]") == repr(mode)
    asked("db.execute('create table t(x integer)') and None")
    asked("def add(): db.execute('begin'); db.execute('insert into t values(1)'); db.execute('commit'); return rows()")
    asked("def rows(): return db.execute('select count(*) from t').fetchone()[0]")
    assert asked("add()") == "1"
    return asked


@pytest.mark.parametrize("mode", MODES)
def test_sqlite_keeps_writing_in_forks_of_forks(box, mode):  # noqa: F811
    asked = connected(box, mode)
    with closing(box.fork(2)) as copies:
        for copy in copies:
            of_copy = asked.of(copy)
            assert of_copy("add()") == "2"
            with closing(copy.fork(1)) as further:
                assert asked.of(further[0])("add()") == "3"
            assert of_copy("add()") == "3"
    assert asked("add()") == "2"


@pytest.mark.parametrize("mode", MODES)
def test_sqlite_keeps_writing_after_resets_and_in_forks_of_snapshots(box, mode):  # noqa: F811
    asked = connected(box, mode)
    held = box.snapshot()
    assert asked("add()") == "2"
    for _ in range(2):
        box.reset(held)
        asked = asked.of(box)
        assert asked("rows()") == "1" and asked("add()") == "2"
    with closing(box.fork(2, snapshot=held)) as copies:
        assert [asked.of(copy)("add()") for copy in copies] == ["2", "2"]
    assert asked("add()") == "3"


@pytest.mark.parametrize("mode", MODES)
def test_sqlite_keeps_writing_after_hibernation(box, mode):  # noqa: F811
    asked = connected(box, mode)
    for n in (2, 4):
        box.hibernate()
        asked = asked.of(box)
        assert asked("add()") == str(n)
        with closing(box.fork(1)) as copies:
            assert asked.of(copies[0])("add()") == str(n + 1)
        assert asked("add()") == str(n + 1)


def test_numbers_in_copies_of_every_kind(box):  # noqa: F811
    asked = Asked.begin(box, *FILES)
    before = asked("numbers()")
    assert len({number for _, number, _ in eval(before)}) == len(eval(before))
    held = box.snapshot()
    with closing(box.fork(1)) as copies:
        copy = asked.of(copies[0])
        assert copy("numbers()") == before
        assert (
            copy(
                "[oct(os.stat('/tmp/rights').st_mode), os.stat('/tmp/another').st_nlink, os.path.samefile('/tmp/another', '/tmp/d/first')]"
            )
            == "['0o104751', 2, True]"
        )
        assert copy("write()") == "None" and copy("numbers()") == before
        with closing(copies[0].fork(1)) as further:
            again = asked.of(further[0])
            assert again("numbers()") == before
            assert again("read()") == copy("[name if kept[name].writable() else '' for name in sorted(kept)]")
            # Nothing waits there any more.
            assert again("sorted(os.listdir('/tmp'))") == copy("sorted(os.listdir('/tmp'))")
    box.reset(held)
    asked = asked.of(box)
    assert asked("numbers()") == before
    assert asked("int(os.stat('/tmp/rights').st_mtime)") == "6"
    for _ in range(2):
        box.hibernate()
        asked = asked.of(box)
        assert asked("numbers()") == before
        assert asked("write()") == "None"
    box.reset(held)
    assert asked.of(box)("numbers()") == before


def test_numbers_when_many_layers_become_one(box):  # noqa: F811
    """Every layer has new versions of some files; copied files are copied again in the background."""
    asked = Asked.begin(box, *FILES)
    before, nodes = asked("numbers()"), []
    for n in range(12):
        nodes.append(box.snapshot())
        box.reset(nodes[-1])
        asked = asked.of(box)
        assert asked("numbers()") == before
        name = sorted("abcy")[n % 4]
        asked(f"kept['{name}'].write('{n}') and kept['{name}'].flush()")
    for held in nodes:
        with closing(box.fork(1, snapshot=held)) as copies:
            copy = asked.of(copies[0])
            assert copy("numbers()") == before
            assert copy("write()") == "None" and copy("numbers()") == before


def test_numbers_after_an_engine_restart(store, tmp_path):  # noqa: F811
    socket = str(tmp_path / "socket")
    with Shared(socket) as first:
        box = Sandbox(engine=first.engine, name="kept", detached=True)  # noqa: F811
        asked = Asked.begin(box, *FILES)
        before = asked("numbers()")
        box.hibernate()
        first.end(signal.SIGKILL)
    with Shared(socket) as second:
        box = Sandbox.open("kept", engine=second.engine)
        asked = asked.of(box)
        assert asked("numbers()") == before
        assert asked("write()") == "None" and asked("numbers()") == before
        box.close()


@pytest.mark.parametrize("asleep", [False, True], ids=["running", "asleep"])
def test_numbers_after_an_import_elsewhere(engine, other, tmp_path, asleep):  # noqa: F811
    with Sandbox(engine=engine) as box:  # noqa: F811
        asked = Asked.begin(box, *FILES)
        before = asked("numbers()")
        if asleep:
            box.hibernate()
        box.export(tmp_path / "box.live", processes="keep")
    other.import_(tmp_path / "box.live")
    with other.engine() as there:
        copy = Sandbox.open("copy", engine=there)
        assert asked.of(copy)("numbers()") == before
        copy.close()


def test_unreachable_numbers_differ(box):  # noqa: F811
    """Nobody waits for thousands of files to be made; what is below the bound is kept beside them."""
    asked = Asked.begin(
        box,
        "import os",
        "low = open('/tmp/low', 'w')",
        "for i in range(5000): open('/tmp/n', 'w').close(); os.unlink('/tmp/n')",
        "high = open('/tmp/high', 'w')",
    )
    numbers = "[os.fstat(low.fileno()).st_ino, os.fstat(high.fileno()).st_ino, os.stat('/tmp/high').st_ino]"
    low, high, _ = eval(asked(numbers))
    assert high > 5000
    with closing(box.fork(1)) as copies:
        copied = eval(asked.of(copies[0])(numbers))
        assert copied[0] == low and copied[1] == copied[2]


def test_numbers_of_files_with_one_name_that_were_made_in_one_moment(box):  # noqa: F811
    """They have the same times and size; few of them are open."""
    asked = Asked.begin(
        box,
        "import os",
        "[os.mkdir(f'/tmp/{i}') for i in range(300)] and None",
        "[open(f'/tmp/{i}/LOCK', 'w').close() for i in range(300)] and None",
        "kept = {i: open(f'/tmp/{i}/LOCK') for i in range(0, 300, 9)}",
        "def numbers(): return [(os.fstat(file.fileno()).st_ino, os.stat(f'/tmp/{i}/LOCK').st_ino) for i, file in kept.items()]",
    )
    before = asked("numbers()")
    for _ in range(2):
        box.reset(box.snapshot())
        asked = asked.of(box)
        assert asked("numbers()") == before


def test_hard_links_take_no_number_of_an_open_file(box):  # noqa: F811
    """Files that are made after a reset could get the numbers of earlier files that are open."""
    asked = Asked.begin(
        box,
        "import os",
        "os.mkdir('/tmp/d')",
        "[open(f'/tmp/d/{i}', 'w').close() for i in range(100)] and None",
        "kept = open('/tmp/kept', 'w')",
        "def numbers(): return os.fstat(kept.fileno()).st_ino, os.stat('/tmp/kept').st_ino",
    )
    before = asked("numbers()")
    box.reset(box.snapshot())
    asked = asked.of(box)
    asked("[(open(f'/tmp/{i}', 'w').close(), os.link(f'/tmp/{i}', f'/tmp/{i}-too')) for i in range(300)] and None")
    box.reset(box.snapshot())
    assert asked.of(box)("numbers()") == before


@pytest.mark.parametrize("path", ["/tmp", "/tmp/file"])
def test_attributes_leave_no_room_for_numbers(box, path):  # noqa: F811
    """A layer has a number for each file that is open, besides what the guest has filled to the limit."""
    asked = Asked.begin(
        box,
        "import os",
        "file = open('/tmp/file', 'w')",
        "def filled(n): return 17 * (8 + 4 + 59999) + 7 + 4 + n",
        f"def fill(): return [os.setxattr('{path}', f'user.{{i:02}}', bytes(60000 - 1)) for i in range(17)] and os.setxattr('{path}', 'user.z', bytes((1 << 20) - filled(8)))",
    )
    assert asked("fill()") == "None"
    box.hibernate()
    assert asked.of(box)("file.write('on')") == "2"


def test_guest_attributes_of_these_names_are_ignored(box):  # noqa: F811
    """A sandbox's first files may be in no overlay. Then a guest can give them attributes with the overlay's names."""
    number, listed = "user.overlay.number", "user.overlay.numbers"
    script = f"import os; open('/tmp/a', 'w').close(); os.setxattr('/tmp', '{listed}', (77).to_bytes(8, 'little') + bytes(16)); os.setxattr('/tmp/a', '{number}', (77).to_bytes(8, 'little'))"
    box.exec(["python3", "-c", script], check=True)
    box.hibernate()
    assert box.exec(["stat", "-c", "%i", "/tmp/a"], check=True, text=True).stdout != "77\n"
