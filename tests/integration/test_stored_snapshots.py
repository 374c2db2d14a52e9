# SPDX-License-Identifier: Apache-2.0
"""Snapshots that leave the engine: exported as one file, imported into a store, and the beginning
of sandboxes of another engine."""

import os
import subprocess

import pytest

from rollbox import Engine, FeatureMissing, NotFound, Policy, Sandbox
from harness import BUILD


@pytest.fixture
def store(tmp_path, monkeypatch):
    directory = tmp_path / "store"
    monkeypatch.setenv("ROLLBOX_STORE", str(directory))
    return directory


@pytest.fixture
def engine(store):
    with Engine() as engine:            # one that has the variable
        yield engine


def take_in(path, name):
    subprocess.run(
        [BUILD / "rollbox", "import", path, "--name", name],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def sh(box, script):
    return box.exec(["sh", "-c", script], text=True).check().stdout


def reachable(path):
    for at in (path, *path.parents):
        if at.stat().st_uid == os.getuid() and at != at.parent:
            at.chmod(at.stat().st_mode | 0o755)


def test_stored_snapshot_starts_sandboxes(engine, tmp_path):
    work, single = tmp_path / "work", tmp_path / "single"
    work.mkdir()
    for name in "ab":
        (work / name).write_text(name + "\n")
    single.write_text("single\n")
    reachable(work)
    granted = {"fs_writable": [str(work), str(single)]}
    with Sandbox(Policy(**granted), engine=engine) as box:
        sh(
            box,
            f"echo 1 > /tmp/f; mkdir -m 750 /tmp/d; echo x > /tmp/d/x; rm {work}/a; echo new > {work}/n; echo more >> {single}; ln -s x /tmp/d/link",
        )
        box.snapshot()
        sh(box, "rm /tmp/f; echo 2 > /tmp/g; mkdir /var/tmp/v")
        box.export(str(tmp_path / "one.snapshot"))
    take_in(tmp_path / "one.snapshot", "one")
    with Sandbox(Policy(image="snapshot:one", **granted), engine=engine) as box:
        assert sh(
            box,
            f"ls -I 'pytest-*' /tmp /tmp/d {work} /var/tmp/v; cat {work}/n {single} /tmp/g; stat -c %a /tmp/d; readlink /tmp/d/link",
        ) == (
            f"/tmp:\nd\ng\n\n/tmp/d:\nlink\nx\n\n{work}:\nb\nn\n\n/var/tmp/v:\nnew\nsingle\nmore\n2\n750\nx\n"
        )
        sh(box, "echo y >> /tmp/d/x; rm /tmp/g; touch /tmp/h")
        assert {(one.path, one.change) for one in box.diff() if one.path.startswith("/tmp")} == {
            ("/tmp/d/x", "M"),
            ("/tmp/g", "D"),
            ("/tmp/h", "A"),
        }
        kid = box.fork(1)[0]
        assert sh(kid, "cat /tmp/d/x; ls -I 'pytest-*' /tmp") == "x\ny\nd\nh\n"
        box.export(str(tmp_path / "two.snapshot"))
    take_in(tmp_path / "two.snapshot", "two")
    with Sandbox(Policy(image="snapshot:two", **granted), engine=engine) as box:
        assert sh(box, f"cat /tmp/d/x; ls -I 'pytest-*' /tmp {work}") == f"x\ny\n/tmp:\nd\nh\n\n{work}:\nb\nn\n"


def test_missing_stored_snapshot_is_an_error(engine, store, tmp_path):
    with pytest.raises(NotFound):
        Sandbox(Policy(image="snapshot:missing"), engine=engine).run(["true"])
    with Sandbox(engine=engine) as box:
        sh(box, "echo x > /tmp/f")
        box.export(str(tmp_path / "x.snapshot"))
    take_in(tmp_path / "x.snapshot", "x")
    with pytest.raises(NotFound):
        Sandbox(Policy(image="x"), engine=engine).run(["true"])
    assert Sandbox(Policy(image="snapshot:x"), engine=engine).run(["cat", "/tmp/f"]).stdout == b"x\n"


def test_imported_snapshot_is_exported_with_its_policy(engine, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    reachable(work)
    with Sandbox(Policy(fs_writable=[str(work)]), engine=engine) as box:
        sh(box, f"echo x > {work}/f; echo y > /dev/shm/g")
        box.export(str(tmp_path / "x.snapshot"))
    take_in(tmp_path / "x.snapshot", "x")
    with Sandbox(Policy(image="snapshot:x"), engine=engine) as box:
        assert sh(box, "cat /dev/shm/g") == "y\n"
        sh(box, "echo z > /tmp/h")
        with pytest.raises(FeatureMissing):
            box.export(str(tmp_path / "y.snapshot"))
        assert not (tmp_path / "y.snapshot").exists()


def test_session_from_a_stored_snapshot_commits_all_files(engine, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "a").write_text("a\n")
    reachable(work)
    policy = {"fs_writable": [str(work)]}
    with Sandbox(Policy(**policy), engine=engine) as box:
        sh(box, f"echo 1 > {work}/one; rm {work}/a")
        box.export(str(tmp_path / "x.snapshot"))
    take_in(tmp_path / "x.snapshot", "x")
    with Sandbox(Policy(image="snapshot:x", **policy), engine=engine) as box:
        sh(box, f"echo 2 > {work}/two")
        box.commit()
    assert {path.name: path.read_text() for path in work.iterdir()} == {"one": "1\n", "two": "2\n"}
