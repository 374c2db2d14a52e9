# SPDX-License-Identifier: Apache-2.0
"""The store by itself: what a kill at any point leaves, what damage does, what gc may remove; and
rollbox-store's jobs on layers: diff, commit, export, import."""

import base64
import fcntl
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from archives import entry, layer, oci_blobs
from harness import binaries, caller, place  # noqa: F401
from image_stores import BASE, open_up, Store, store  # noqa: F401

MORE = layer(entry("more", b"more"), *(entry(f"f{number}", b"f") for number in range(5)))


def faults():
    program = Path(os.environ["ROLLBOX_BUILD"]) / "rollbox-store"
    if not program.exists():
        return []
    return json.loads(subprocess.run([program, "faults", "--json"], capture_output=True, check=True).stdout)["faults"]


FAULTS = faults()


def of(*commands):
    return pytest.mark.parametrize(
        "fault", [row for row in FAULTS if row["command"] in commands], ids=lambda row: row["name"]
    )


# ---- the store
# ----------------------------------------------------------------------------------------------------------


def test_path(caller):  # noqa: F811
    env = caller.environment()
    for name in ("ROLLBOX_STORE", "XDG_DATA_HOME"):
        env.pop(name, None)
    default = "/var/lib/rollbox/store" if caller.uid == 0 else f"{caller.home}/.local/share/rollbox/store"
    assert caller.rollbox("store", "path", env=env).stdout.decode() == default + "\n"
    assert caller.rollbox("store", "path", env={**env, "ROLLBOX_STORE": "/x"}).stdout == b"/x\n"
    assert b"absolute" in caller.rollbox("store", "path", env={**env, "ROLLBOX_STORE": "x"}).stderr
    if caller.uid:
        assert caller.rollbox("store", "path", env={**env, "XDG_DATA_HOME": "/data"}).stdout == b"/data/rollbox/store\n"


def test_private(store):  # noqa: F811
    """A store is the caller's own directory that nobody else may enter."""
    store.bring("a", BASE)
    assert stat.S_IMODE(os.lstat(store.path).st_mode) == 0o700
    os.chmod(store.path, 0o755)
    done = store.call("image", "ls", "--json")
    assert json.loads(done.stderr)["error"]["code"] == "path_denied"
    os.chmod(store.path, 0o700)
    moved = store.path.with_name("moved")
    store.path.rename(moved)
    store.path.symlink_to(moved)
    assert json.loads(store.call("image", "ls", "--json").stderr)["error"]["code"] == "path_denied"


def test_rm_gc_df(store):  # noqa: F811
    store.bring("a", BASE)
    store.bring("b", BASE, MORE)
    usage = store.json("store", "df")
    assert (usage["images"], usage["layers"], usage["unused_layers"]) == (2, 2, 0) and usage["free_bytes"] > 0
    store.json("image", "rm", "b")
    assert store.json("store", "df")["unused_layers"] == 1
    assert store.json("store", "gc")["removed_layers"] == 1
    assert store.json("store", "gc")["removed_layers"] == 0
    assert [row["name"] for row in store.json("image", "ls")["images"]] == ["a"]
    assert b"there is no image b" in store.call("image", "rm", "b").stderr
    assert b"1 images" in store.call("store", "df").stdout
    store.clean()


def test_gc_keeps_used_data(store):  # noqa: F811
    """A shared lock on a layer's meta.json keeps it; the death of the locking process releases it."""
    store.bring("a", BASE)
    (layer_id,) = store.layers("a")
    with open(store.path / "layers" / layer_id / "meta.json", "rb") as meta:
        fcntl.flock(meta, fcntl.LOCK_SH)
        store.json("image", "rm", "a")
        assert store.json("store", "gc") == {
            "removed_layers": 0,
            "freed_bytes": 0,
            "in_use": 1,
            "removed_work": 0,
            "removed_asleep": 0,
            "removed_boxes": 0,
            "removed_images": [],
        }
    assert store.json("store", "gc")["removed_layers"] == 1


def test_gc_does_not_guess(store):  # noqa: F811
    """A manifest that cannot be read may name any layer: nothing is removed until it is gone."""
    store.bring("a", BASE)
    (store.path / "images" / "b.json").write_text("{")
    store.caller.own(store.path / "images" / "b.json")
    done = store.call("store", "gc", "--json")
    assert json.loads(done.stderr)["error"]["code"] == "damaged"
    assert store.json("store", "fsck", status=1)["manifests"][0]["name"] == "b"
    store.json("image", "rm", "b")
    assert store.json("store", "gc")["removed_layers"] == 0


def damage(store, layer_id):  # noqa: F811
    os.truncate(store.file(layer_id, "more"), 1)


def test_damage_is_found_named_and_mended(store):  # noqa: F811
    store.bring("a", BASE)
    store.bring("b", BASE, MORE)
    _, top = store.layers("b")
    damage(store, top)
    report = store.json("store", "fsck", status=1)
    assert [row["layer"] for row in report["damaged"]] == [top] and report["damaged"][0]["used_by"] == ["b"]
    assert b"DAMAGED" in store.call("image", "ls").stdout
    assert "problem" in store.json("image", "show", "b")["layers"][1]
    # The same bytes again: it is as it was.
    store.file(top, "more").write_bytes(b"more")
    store.clean()
    damage(store, top)
    store.json("store", "fsck", status=1)
    assert store.bring("b", BASE, MORE)["new_layers"] == 1
    store.clean()
    assert store.file(top, "more").read_bytes() == b"more"


@pytest.mark.parametrize("change", ["mode", "new", "gone", "link", "xattr"])
def test_fsck_sees(store, change):  # noqa: F811
    store.bring("a", MORE)
    (layer_id,) = store.layers("a")
    file = store.file(layer_id, "more")
    if change == "mode":
        os.chmod(file, 0o755)
    elif change == "new":
        store.file(layer_id, "new").write_bytes(b"")
    elif change == "gone":
        file.unlink()
    elif change == "link":
        file.unlink()
        file.symlink_to("elsewhere")
    else:
        os.setxattr(file, "user.new", b"1")
    assert len(store.json("store", "fsck", status=1)["damaged"]) == 1


def test_missing_layer(store):  # noqa: F811
    store.bring("a", MORE)
    (layer_id,) = store.layers("a")
    (store.path / "layers" / layer_id / "meta.json").unlink()
    assert store.json("store", "fsck", status=1)["damaged"][0]["reason"] == "it is missing"
    assert store.bring("a", MORE)["new_layers"] == 1
    store.clean()


def test_imports_at_once(store):  # noqa: F811
    """Two of one image, with gc beside them all the time: both succeed, and every layer is there once."""
    path = store.archive(oci_blobs([BASE, MORE, layer(entry("large", os.urandom(1 << 20)))]))
    store.bring("first", MORE)
    env = store.caller.environment(ROLLBOX_STORE=str(store.path))
    path = store.archive(oci_blobs([BASE, MORE, layer(entry("large", os.urandom(1 << 20)))]))
    running = [
        store.caller.popen(
            [binaries() / "rollbox", "image", "import", "--name", name, path],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name in ("a", "b")
    ]
    while any(process.poll() is None for process in running):
        store.json("store", "gc")
    for process in running:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert store.layers("a") == store.layers("b")
    store.clean()


# ---- fault points
# -------------------------------------------------------------------------------------------------------


def state(store):  # noqa: F811
    """The images and what is in them."""
    return {
        row["name"]: {name: what[:3] for name, what in store.merged(row["name"]).items()}
        for row in store.json("image", "ls")["images"]
    }


def settle(store):  # noqa: F811
    """After a kill: the store is whole, and gc removes all that was begun."""
    assert store.json("store", "fsck")["damaged"] == []
    store.json("store", "gc")
    assert os.listdir(store.path / "tmp") == [] and os.listdir(store.path / "trash") == []
    named = {layer_id for row in store.json("image", "ls")["images"] for layer_id in store.layers(row["name"])}
    assert set(os.listdir(store.path / "layers")) == named


@of("import")
def test_killed_while_importing(store, fault):  # noqa: F811
    first = fault["name"] == "store_created"
    before = {} if first else (store.bring("a", BASE), state(store))[1]
    path = store.archive(oci_blobs([BASE, MORE]))
    done = store.call("image", "import", "--name", "a", path, env={"ROLLBOX_FAULT": fault["name"]})
    assert done.returncode == -9, done.stderr
    after = state(store)
    assert ("more" in after["a"]) if fault["done"] else after == before
    settle(store)
    assert store.json("image", "import", "--name", "a", path)["layers"] == 2
    assert "more" in state(store)["a"]
    settle(store)


@of("rm", "gc", "fsck")
def test_killed_while_keeping_order(store, fault):  # noqa: F811
    store.bring("a", BASE)
    store.bring("b", BASE, MORE)
    if fault["command"] == "fsck":
        damage(store, store.layers("b")[1])
    elif fault["command"] == "gc":
        store.json("image", "rm", "b")
    command = ["image", "rm", "b"] if fault["command"] == "rm" else ["store", fault["command"]]
    assert store.call(*command, env={"ROLLBOX_FAULT": fault["name"]}).returncode == -9
    if fault["command"] == "fsck":
        assert len(store.json("store", "fsck", status=1)["damaged"]) == 1
        store.bring("b", BASE, MORE)
    settle(store)
    assert "a" in state(store)


# ---- jobs on layers
# -----------------------------------------------------------------------------------------------------


class Layers:
    """Trees by path: {"name": bytes (a file) | None (a directory) | ("link", target) | "gone" |
    ("opaque",) | ("mode", bytes, mode)}."""

    def __init__(self, caller):  # noqa: F811
        self.caller = caller
        self.home = caller.directory(0o755)

    def tree(self, name, content):
        root = os.fsencode(self.home / name)
        os.makedirs(root, exist_ok=True)
        for path, what in content.items():
            full = os.path.join(root, path if isinstance(path, bytes) else os.fsencode(path))
            os.makedirs(os.path.dirname(full), exist_ok=True)
            if what is None:
                os.makedirs(full, exist_ok=True)
            elif what == "gone":
                os.mknod(full, stat.S_IFCHR, os.makedev(0, 0))
            elif what == ("opaque",):
                os.makedirs(full, exist_ok=True)
                os.setxattr(full, "user.overlay.opaque", b"y")
            elif isinstance(what, bytes):
                Path(os.fsdecode(full)).write_bytes(what)
            elif what[0] == "link":
                os.symlink(what[1], full)
            elif what[0] == "hard":
                os.link(os.path.join(root, os.fsencode(what[1])), full)
            else:
                Path(os.fsdecode(full)).write_bytes(what[1])
                os.chmod(full, what[2])
        self.caller.own(self.home / Path(name).parts[0])
        for directory, directories, files in os.walk(root):
            for path in [directory, *(os.path.join(directory, each) for each in directories + files)]:
                if not os.path.islink(path):
                    mode = stat.S_IMODE(os.lstat(path).st_mode)
                os.chown(path, self.caller.uid, self.caller.uid, follow_symlinks=False)
                if not os.path.islink(path):
                    os.chmod(path, mode)
        return self.home / name

    def layer(self, name, content):
        """A layer with one place, p0."""
        self.tree(f"{name}/p0", content)
        return self.home / name

    def job(self, command, *arguments, lower=(), upper=(), places=None, base=None, status=0, env=None, **more):
        """Runs rollbox-store on layers; the answer, or the error."""
        fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (*lower, *upper)]
        try:
            places = places or [
                {
                    "part": "p0",
                    "path": "/place",
                    "base": str(base) if base else None,
                    "kind": "directory",
                }
            ]
            job = {"places": places, "lower": fds[:len(lower)], "upper": fds[len(lower):], **more}
            program = binaries() / "rollbox-store"
            done = self.caller.call(
                program,
                command,
                "--json",
                *arguments,
                input=json.dumps(job).encode(),
                pass_fds=fds,
                env=self.caller.environment(**(env or {})),
            )
        finally:
            for fd in fds:
                os.close(fd)
        assert done.returncode == status, (done.stdout, done.stderr)
        if status < 0:
            return None
        return json.loads(done.stderr)["error"] if status else json.loads(done.stdout)

    def diff(self, **arguments):
        return {row["path"]: row for row in self.job("diff", **arguments)["changes"]}

    def changes(self, **arguments):
        return [f"{row['change']} {path}" for path, row in self.diff(**arguments).items()]

    def content(self, path):
        """What a host directory holds."""
        found = {}
        for directory, directories, files in os.walk(path):
            for name in directories + files:
                full = os.path.join(directory, name)
                below = os.path.relpath(full, path)
                found[below] = (
                    ("link", os.readlink(full))
                    if os.path.islink(full)
                    else Path(full).read_bytes()
                    if os.path.isfile(full)
                    else None
                )
        return found


@pytest.fixture
def layers(caller):  # noqa: F811
    made = Layers(caller)
    probe = made.tree("probe", {"x": b""})
    try:
        os.setxattr(probe / "x", "user.probe", b"1")
    except OSError:
        pytest.skip("needs xattr: the tests' directory has no user attributes")
    yield made
    open_up(made.home)


HOST = {
    "kept": b"kept",
    "changed": b"old",
    "gone": b"gone",
    "touched": b"same",
    "dir/a": b"a",
    "dir/b": b"b",
    "hidden/x": b"x",
    "hidden/sub/y": b"y",
    "link": ("link", "kept"),
    "was-dir/in": b"in",
}
CHANGES = {
    "changed": b"newer",
    "gone": "gone",
    "touched": b"same",
    "dir/c": b"c",
    "dir/a": "gone",
    "hidden": ("opaque",),
    "hidden/new": b"new",
    "link": ("link", "changed"),
    "was-dir": b"file",
}
CHANGED = {
    "kept": b"kept",
    "changed": b"newer",
    "touched": b"same",
    "dir": None,
    "dir/b": b"b",
    "dir/c": b"c",
    "hidden": None,
    "hidden/new": b"new",
    "link": ("link", "changed"),
    "was-dir": b"file",
}
LISTED = [
    "M /place/changed",
    "D /place/dir/a",
    "A /place/dir/c",
    "D /place/gone",
    "A /place/hidden/new",
    "D /place/hidden/sub",
    "D /place/hidden/sub/y",
    "D /place/hidden/x",
    "M /place/link",
    "M /place/was-dir",
    "D /place/was-dir/in",
]


def test_diff(layers):
    base, upper = layers.tree("base", HOST), layers.layer("upper", CHANGES)
    found = layers.diff(base=base, upper=[upper])
    assert [f"{row['change']} {path}" for path, row in found.items()] == LISTED
    assert found["/place/changed"] == {
        "path": "/place/changed",
        "change": "M",
        "type": "file",
        "size": 5,
        "old_size": 3,
    }
    assert found["/place/was-dir"]["old_type"] == "directory" and found["/place/gone"]["old_size"] == 4
    assert layers.changes(base=base) == []


def test_diff_between_layers(layers):
    """The changes of the later layers to the earlier ones, over any base."""
    base = layers.tree("base", HOST)
    first, second = (
        layers.layer("first", CHANGES),
        layers.layer(
            "second",
            {
                "changed": b"old",
                "gone": b"back",
                "dir/c": "gone",
                "hidden": "gone",
                "new/deep/file": b"1",
            },
        ),
    )
    assert layers.changes(base=base, lower=[first], upper=[second]) == [
        "M /place/changed",
        "D /place/dir/c",
        "A /place/gone",
        "D /place/hidden",
        "D /place/hidden/new",
        "A /place/new",
        "A /place/new/deep",
        "A /place/new/deep/file",
    ]
    # Both together, over the base: what went back to what it was is no change.
    assert "M /place/changed" not in layers.changes(base=base, upper=[first, second])
    assert layers.changes(upper=[first]) == [
        "A /place/changed",
        "A /place/dir",
        "A /place/dir/c",
        "A /place/hidden",
        "A /place/hidden/new",
        "A /place/link",
        "A /place/touched",
        "A /place/was-dir",
    ]


def test_diff_of_texts(layers):
    base = layers.tree(
        "base",
        {
            "text": b"one\ntwo\nthree\n",
            "binary": b"\0\1",
            "large": b"x" * (2 << 20),
            "moved": b"gone\n",
        },
    )
    upper = layers.layer(
        "upper",
        {
            "text": b"one\n2\nthree\n",
            "binary": b"\0\2",
            "large": b"y" * (2 << 20),
            "moved": "gone",
            "new": b"fresh",
            b"\xff\n": b"odd\n",
        },
    )
    found = layers.diff(base=base, upper=[upper], text=True)
    assert (
        found["/place/text"]["diff"]
        == "--- a/place/text\n+++ b/place/text\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    )
    assert (
        found["/place/new"]["diff"]
        == "--- /dev/null\n+++ b/place/new\n@@ -0,0 +1 @@\n+fresh\n\\ No newline at end of file\n"
    )
    assert found["/place/moved"]["diff"].startswith("--- a/place/moved\n+++ /dev/null\n")
    assert found["/place/binary"]["binary"] is True and found["/place/large"]["too_large"] is True
    (odd,) = (row for row in found.values() if "path_base64" in row)
    assert base64.b64decode(odd["path_base64"]) == b"/place/\xff\n" and odd["path"] == "/place/\ufffd\n"


def test_diff_of_modes_and_holes(layers):
    base = layers.tree("base", {"mode": b"x", "dir/x": b"x", "holes": b""})
    upper = layers.layer("upper", {"mode": ("mode", b"x", 0o755), "dir": None, "holes": b"", "big": b""})
    os.chmod(upper / "p0" / "dir", 0o700)
    os.truncate(base / "holes", 1 << 40)
    os.truncate(upper / "p0" / "holes", 1 << 40)
    os.truncate(upper / "p0" / "big", 1 << 43)
    assert layers.changes(base=base, upper=[upper]) == ["A /place/big", "M /place/dir", "M /place/mode"]


def test_diff_of_unreadable_directories(layers):
    """Directories and files without any right for their owner are read all the same, and stay as they are."""
    upper = layers.layer("upper", {"closed/in/file": b"1", "secret": ("mode", b"2", 0)})
    os.chmod(upper / "p0" / "closed" / "in", 0)
    os.chmod(upper / "p0" / "closed", 0)
    base = layers.tree("base", {"secret": b"1"})
    assert layers.changes(base=base, upper=[upper], text=True) == [
        "A /place/closed",
        "A /place/closed/in",
        "A /place/closed/in/file",
        "M /place/secret",
    ]
    assert stat.S_IMODE(os.lstat(upper / "p0" / "closed").st_mode) == 0
    os.chmod(upper / "p0" / "closed", 0o700)


def test_malformed_jobs_are_refused(layers):
    for more in (
        {"places": [{"part": "../p0", "path": "/x", "kind": "directory"}]},
        {"places": [{"part": "p0", "path": "x", "kind": "directory"}]},
        {"places": [{"part": "p0", "path": "/x", "kind": "device"}]},
        {"upper": [0]},
        {"upper": [9999]},
        {"lower": "x"},
        {"shared": 1},
        {"shared": -1},
        {"shared": "0"},
    ):
        description = {
            "places": [{"part": "p0", "path": "/place", "kind": "directory"}],
            "lower": [],
            "upper": [],
            **more,
        }
        done = layers.caller.call(
            binaries() / "rollbox-store", "diff", "--json", input=json.dumps(description).encode()
        )
        assert done.returncode == 125 and json.loads(done.stderr)["error"]["code"] == "invalid_argument", done


def test_commit(layers):
    base, upper = layers.tree("host/base", HOST), layers.layer("upper", CHANGES)
    kept = os.lstat(base / "kept").st_ino
    mtime = os.lstat(base / "dir" / "b").st_mtime_ns
    answer = layers.job("commit", base=base, upper=[upper])
    assert layers.content(base) == CHANGED
    assert (
        answer["committed"][0]["changes"] == len(LISTED)
        and answer["committed"][0]["base_ino"] == os.lstat(base).st_ino
    )
    assert os.lstat(base / "kept").st_ino == kept, "what did not change is the same file"
    assert os.lstat(base / "dir" / "b").st_mtime_ns == mtime
    assert os.lstat(base / "dir" / "c").st_uid == os.lstat(base).st_uid
    assert os.listdir(base.parent) == ["base"]
    assert layers.job("commit", base=base, upper=[layers.layer("nothing", {})])["committed"][0]["changes"] == 0
    # The layer's own files are not the host's: what the sandbox writes later is not seen.
    (upper / "p0" / "changed").write_bytes(b"later")
    assert (base / "changed").read_bytes() == b"newer"


def test_commit_leaves_special_files_out(layers):
    """Setuid bits, devices and sockets stay behind; files belong to the host's owner, links are links."""
    base = layers.tree("host/base", {"a": b"a", "mine": b"1"})
    upper = layers.layer(
        "upper",
        {
            "su": ("mode", b"su", 0o6755),
            "a": ("mode", b"A", 0o4711),
            "out": ("link", "/etc/passwd"),
            "x": b"x",
            "y": ("hard", "x"),
        },
    )
    os.mkfifo(upper / "p0" / "fifo")
    layers.caller.own(upper / "p0" / "fifo")
    if os.geteuid() == 0:
        os.chown(upper / "p0" / "su", 54321, 54321)
        os.chmod(upper / "p0" / "su", 0o6755)
        if layers.caller.uid:
            os.chown(upper / "p0" / "su", layers.caller.uid, layers.caller.uid)
            os.chmod(upper / "p0" / "su", 0o6755)
    layers.job("commit", base=base, upper=[upper])
    assert stat.S_IMODE(os.lstat(base / "su").st_mode) == 0o755 and stat.S_IMODE(os.lstat(base / "a").st_mode) == 0o711
    assert {os.lstat(base / name).st_uid for name in ("su", "a", "out", "x", "fifo")} == {os.lstat(base).st_uid}
    assert os.readlink(base / "out") == "/etc/passwd" and os.lstat(base / "x").st_ino == os.lstat(base / "y").st_ino


def test_commit_conflicts(layers):
    """Only what is to be committed counts; each kind of change on the host is named."""
    base, upper = layers.tree("host/base", HOST), layers.layer("upper", CHANGES)
    since = max(os.lstat(path).st_ctime_ns for path in [base, *base.rglob("*")])
    place = {
        "part": "p0",
        "path": "/place",
        "base": str(base),
        "kind": "directory",
        "base_dev": os.lstat(base).st_dev,
        "base_ino": os.lstat(base).st_ino,
    }

    def conflict(**more):
        before = layers.content(base)
        error = layers.job("commit", places=[place], upper=[upper], since_ns=since, status=125, **more)
        assert error["code"] == "conflict" and layers.content(base) == before and os.listdir(base.parent) == ["base"]
        return error["message"]

    (base / "kept").write_bytes(b"host's own")
    (base / "gone").unlink()
    assert "gone (removed)" in conflict()
    (base / "gone").write_bytes(b"again")
    (base / "changed").write_bytes(b"by the host")
    assert "changed, gone" in conflict()
    (base / "hidden" / "by-the-host").write_bytes(b"1")
    assert "hidden/by-the-host" in conflict()
    layers.job("commit", places=[place], upper=[upper], since_ns=since, force=True)
    assert layers.content(base) == {**CHANGED, "kept": b"host's own"}
    base.rename(base.with_name("away"))
    place["base_ino"] = os.lstat(base.with_name("away")).st_ino
    assert layers.job("commit", places=[place], upper=[upper], status=125)["code"] == "conflict"
    layers.tree("host/base", HOST)
    assert "replaced" in layers.job("commit", places=[place], upper=[upper], status=125)["message"]
    assert layers.content(base).keys() == {*HOST, "dir", "hidden", "hidden/sub", "was-dir"}


def test_commit_of_a_single_file(layers):
    base = layers.tree("host", {"file": b"old", "other": b"other"}) / "file"
    os.chmod(base, 0o640)
    place = {"part": "p3", "path": "/home/file", "base": str(base), "kind": "file"}
    upper = layers.tree("upper", {"p3": ("mode", b"new", 0o640)})
    assert [
        f"{row['change']} {row['path']}"
        for row in layers.job("diff", places=[place], upper=[upper], text=True)["changes"]
    ] == ["M /home/file"]
    layers.job("commit", places=[place], upper=[upper])
    assert layers.content(base.parent) == {"file": b"new", "other": b"other"}
    assert stat.S_IMODE(os.lstat(base).st_mode) == 0o640


def test_commit_sweeps_only_its_own_leftovers(layers):
    """Leftovers of a killed commit go with the next one; a directory that only bears such a name stays."""
    base, upper = layers.tree("host/base", HOST), layers.layer("upper", CHANGES)
    layers.tree("host/.rollbox-commit-aaaa", {"precious": b"1"})
    os.chmod(base.parent / ".rollbox-commit-aaaa", 0o700)
    layers.tree("host/.rollbox-commit-bbbb", {"mark": b"rollbox commit 1\n", "new/x": b"1"})
    os.chmod(base.parent / ".rollbox-commit-bbbb", 0o700)
    (base.parent / ".rollbox-commit-cccc").symlink_to(base)
    layers.job("commit", base=base, upper=[upper])
    assert sorted(os.listdir(base.parent)) == [".rollbox-commit-aaaa", ".rollbox-commit-cccc", "base"]
    assert (base.parent / ".rollbox-commit-aaaa" / "precious").exists()


def test_disk_full(layers):
    """A commit, an export and an import of a snapshot onto a file system of one megabyte: an error
    that says so, and everything as it was."""
    caller = layers.caller
    upper, at, job = (
        layers.layer("upper", {"large": os.urandom(3 << 20), "a": b"new"}),
        caller.directory(),
        caller.home / "job.json",
    )
    (layers.home / "outside").mkdir()
    caller.own(layers.home / "outside")
    place = {"part": "p0", "path": "/place", "base": f"{at}/base", "kind": "directory"}
    caller.write(job, json.dumps({"places": [place], "lower": [], "upper": [3]}))
    program = binaries() / "rollbox-store"
    script = f"""mount -t tmpfs -o size=1m none {at} && mkdir {at}/base && echo old > {at}/base/a && exec 3< {upper}
        ! {program} commit --json < {job} || exit 3
        test "$(cat {at}/base/a)" = old && test "$(ls -A {at})" = base || exit 4
        ! {program} export --json {at}/snapshot < {job} || exit 5
        test "$(ls -A {at})" = base && {program} export {layers.home}/outside/snapshot < {job} || exit 6
        ! {program} import-snapshot --json --store {at}/store --name s {layers.home}/outside/snapshot || exit 7
        test -z "$(ls -A {at}/store/tmp {at}/store/layers {at}/store/snapshots | grep -v :)" || exit 8
        rm {upper}/p0/large && {program} commit --json < {job} && test "$(cat {at}/base/a)" = new || exit 9"""
    namespaces = ["--mount"] if caller.uid == 0 else ["--user", "--map-root-user", "--mount"]
    done = caller.call("unshare", *namespaces, "--propagation", "private", "sh", "-c", script)
    if b"mount" in done.stderr and b"permission denied" in done.stderr.lower():
        pytest.skip(f"needs userns: {done.stderr.decode()}")
    if b"cannot keep layers" in done.stderr:
        pytest.skip("needs xattr: tmpfs has user attributes from Linux 6.6 on")
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert [json.loads(line)["error"]["code"] for line in done.stderr.splitlines()] == ["resource_exhausted"] * 3


@of("commit")
def test_killed_while_committing(layers, fault):
    """The host's directory is the old or the new version, as a whole, and the next commit leaves
    nothing else beside it."""
    base, upper = layers.tree("host/base", HOST), layers.layer("upper", CHANGES)
    before = layers.content(base)
    layers.job("commit", base=base, upper=[upper], status=-9, env={"ROLLBOX_FAULT": fault["name"]})
    assert layers.content(base) == (CHANGED if fault["done"] else before)
    # One with nothing to do sweeps, too.
    layers.job("commit", base=base, upper=[layers.layer("nothing", {})])
    assert os.listdir(base.parent) == ["base"]
    layers.job("commit", base=base, upper=[upper])
    assert layers.content(base) == CHANGED and os.listdir(base.parent) == ["base"]


def test_commit_of_many_files(layers):
    base = layers.tree("host/base", {f"d{number % 50}/f{number}": b"" for number in range(600)})
    upper = layers.layer("upper", {f"d{number % 50}/f{number}": b"changed" for number in range(0, 600, 3)})
    assert layers.job("commit", base=base, upper=[upper])["committed"][0]["changes"] == 200
    assert (base / "d0" / "f0").read_bytes() == b"changed" and (base / "d1" / "f1").read_bytes() == b""


# ---- snapshots as files
# -------------------------------------------------------------------------------------------------

PLACES = [{"part": "p0", "path": "/work", "base": None, "kind": "directory"}]


def snapshot(layers):
    first = layers.layer(
        "first",
        {
            **CHANGES,
            b"\xff\n": b"odd",
            "su": ("mode", b"su", 0o4755),
            "x": b"x",
            "y": ("hard", "x"),
            "closed": ("mode", b"closed", 0),
            "e\u0301": b"1",
            "\u00e9": b"2",
        },
    )
    second = layers.layer("second", {"changed": "gone", "holes": b""})
    with open(second / "p0" / "holes", "r+b") as holes:
        holes.truncate(1 << 40)
        holes.seek(1 << 30)
        holes.write(b"in the middle")
    os.setxattr(first / "p0" / "x", "user.kept", b"1")
    os.setxattr(first / "p0" / "x", "user.overlay.origin", b"1")
    return first, second


def test_export_and_import(store, layers):  # noqa: F811
    first, second = snapshot(layers)
    layers.tree("first/w/p0/work", {"x": b"the overlay's own"})
    file = store.home / "snapshot"
    answer = layers.job("export", str(file), lower=[first], upper=[second], places=PLACES)
    assert answer["layers"] == 2 and answer["bytes"] == os.path.getsize(file) < 1 << 20
    assert os.listdir(store.home) == ["snapshot"]
    result = store.json("import", "--name", "s:1", file)
    assert (result["layers"], result["new_layers"]) == (2, 2)
    shown = store.json("image", "show", "snapshot:s:1")
    assert shown["places"] == [{"part": "p0", "path": "/work", "kind": "directory"}]
    one, two = (store.path / "layers" / row["id"] / "fs" / "p0" for row in shown["layers"])
    assert os.listdir(one.parent) == ["p0"]
    assert stat.S_ISCHR(os.lstat(one / "gone").st_mode) and os.lstat(one / "gone").st_rdev == 0
    assert os.getxattr(one / "hidden", "user.overlay.opaque") == b"y"
    assert os.listxattr(one / "x") == ["user.kept"] and os.lstat(one / "x").st_ino == os.lstat(one / "y").st_ino
    assert stat.S_IMODE(os.lstat(one / "su").st_mode) == 0o755 and os.getxattr(
        one / "su", "user.rollbox.owner"
    ).endswith(b":4755")
    assert (one / "e\u0301").read_bytes() == b"1" and (one / "\u00e9").read_bytes() == b"2"
    holes = os.stat(two / "holes")
    assert holes.st_size == 1 << 40 and holes.st_blocks * 512 < 1 << 20
    with open(two / "holes", "rb") as content:
        content.seek(1 << 30)
        assert content.read(13) == b"in the middle"
    store.clean()
    # Again: the layers are there. And what was imported exports to the same.
    assert store.json("import", "--name", "again", file)["new_layers"] == 0
    layers.job("export", str(store.home / "second"), lower=[one.parent, two.parent], places=PLACES)
    assert store.json("import", "--name", "third", store.home / "second")["new_layers"] == 0
    for name in ("s:1", "again", "third"):
        store.json("image", "rm", "snapshot:" + name)
    assert store.json("store", "gc")["removed_layers"] == 2


@of("export")
def test_killed_while_exporting(store, layers, fault):  # noqa: F811
    first, second = snapshot(layers)
    file = store.home / "snapshot"
    file.write_bytes(b"old")
    layers.caller.own(file)
    layers.job(
        "export",
        str(file),
        lower=[first],
        upper=[second],
        places=PLACES,
        status=-9,
        env={"ROLLBOX_FAULT": fault["name"]},
    )
    assert file.read_bytes() == b"old"


@of("import-snapshot")
def test_killed_while_importing_a_snapshot(store, layers, fault):  # noqa: F811
    first, second = snapshot(layers)
    file = store.home / "snapshot"
    layers.job("export", str(file), lower=[first], upper=[second], places=PLACES)
    store.bring("a", BASE)
    assert store.call("import", "--name", "s", file, env={"ROLLBOX_FAULT": fault["name"]}).returncode == -9
    assert store.json("image", "ls")["snapshots"] == []
    settle(store)
    assert store.json("import", "--name", "s", file)["layers"] == 2


def test_malformed_snapshot_files_are_refused(store, layers):  # noqa: F811
    """Cut off, changed, hostile, or files of another kind."""
    first, second = snapshot(layers)
    file = store.home / "snapshot"
    layers.job("export", str(file), lower=[first], upper=[second], places=PLACES)
    whole = file.read_bytes()

    def refused(content, **options):
        file.write_bytes(content)
        return store.refused("import", "--name", "s", file, **options)

    refused(whole[:len(whole) // 2])
    refused(b"")
    refused(b"something else" * 100)
    refused(layer(entry("x", b"x")))
    manifest = {
        "format": "rollbox-snapshot",
        "version": 1,
        "places": [{"part": "p0", "path": "/work", "kind": "directory"}],
        "layers": [{"tree": "0" * 64}],
    }

    def made(*entries, **more):
        return layer(entry("manifest.json", json.dumps({**manifest, **more}).encode()), *entries)

    assert "digest" in refused(made(entry("0/"), entry("0/x", b"x")), code="damaged")
    assert "version 2" in refused(made(version=2))
    assert "no layer" in refused(made(entry("7/x", b"x")))
    assert "no layer" in refused(made(entry("x", b"x")))
    assert '".."' in refused(made(entry("0/../../x", b"x")))
    assert "symbolic link" in refused(made(entry("0/out", b"", link="/etc"), entry("0/out/rollbox-evil", b"x")))
    assert "leads out" in refused(made(entry("0/h", b"", hard="/etc/passwd")))
    assert "leads out" in refused(made(entry("0/h", b"", hard="1/x")))
    for holes in ("1;0,2", "10;8,4", "10;5,1;2,1", "-1;0,1", "99999999999999999999;0,1", "x"):
        assert "holes" in refused(made(entry("0/s", b"x", xattrs={"user.rollbox.sparse": holes})))
    assert not os.path.lexists("/etc/rollbox-evil")


# ---- many files
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.environ.get("ROLLBOX_SOAK"), reason="takes minutes; make soak runs it")
@pytest.mark.timeout_s(1500)
def test_million_entries_are_handled(store):  # noqa: F811
    """A million files are imported within the limit; one more than the limit is refused."""
    million = layer(*(entry(f"d{number // 1000}/f{number}", b"") for number in range(1000000)))
    path = store.archive(oci_blobs([million], pack=bytes))
    done = store.call("image", "import", "--json", "--name", "m", path, timeout=1400)
    assert json.loads(done.stdout)["files"] == 1001000
    assert "999999" in store.refused(
        "image",
        "import",
        "--name",
        "n",
        "--max-entries",
        "999999",
        store.archive(oci_blobs([layer(entry("other", b"")), million], pack=bytes)),
        timeout=1400,
    )
    store.json("image", "rm", "m")
    assert json.loads(store.call("store", "gc", "--json", timeout=1400).stdout)["removed_layers"] == 1


def test_other_users_are_kept_out(store):  # noqa: F811
    """The directories above a layer let nobody but their owner in."""
    store.bring("a", BASE)
    for path in (store.path, store.path / "layers", store.path / "layers" / store.layers("a")[0], store.path / "tmp"):
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o700
