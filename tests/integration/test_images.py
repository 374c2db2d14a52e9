# SPDX-License-Identifier: Apache-2.0
"""Importing images: what they become in the store, as the kernel's overlay shows it; and hostile
archives, which are refused or contained."""

import json
import os
import pty
import stat
import subprocess
from pathlib import Path

import pytest
from archives import (
    ARCHITECTURE,
    PACKERS,
    busybox,
    configuration,
    digest,
    docker_members,
    entry,
    layer,
    oci_blobs,
    write_layout,
    write_oci,
    write_tar,
)
from harness import binaries, caller, place  # noqa: F401
from image_stores import BASE, Store, open_up, run, store  # noqa: F401
from registries import registry  # noqa: F401


def test_whiteouts_opaque_and_types(store):
    """A second layer deletes, hides and replaces; what it deletes without reason leaves no trace."""
    store.bring("a", BASE, layer(
        entry("etc/.wh.gone", b""),
        entry("etc/.wh.never", b""),
        entry("nowhere/.wh.nothing", b""),
        entry("dir"),
        entry("dir/.wh..wh..opq", b""),
        entry("dir/b", b"b"),
        entry("file-then-dir"),
        entry("file-then-dir/x", b"x"),
        entry(".wh.dir-then-file", b""),
        entry("dir-then-file", b"now a file"),
        entry(".wh..wh.plnk", b""),
    ))
    found = store.merged("a")
    assert sorted(found) == [
        "dir",
        "dir-then-file",
        "dir/b",
        "etc",
        "etc/passwd",
        "file-then-dir",
        "file-then-dir/x",
        "kept",
        "link",
    ]
    assert found["dir-then-file"][2] == "now a file"
    assert found["link"][:3:2] == ["l", "/etc/passwd"]
    assert found["kept"][5] == 1000000000
    # A directory that the second layer only goes through keeps the mode that it has below.
    assert found["etc"][1] == 0o755


@pytest.mark.parametrize("order", [0, 1])
def test_deletion_and_entry_of_one_name(store, order):
    """A deletion is about the layers below, whether it stands before or after the layer's own entry."""
    entries = [entry(".wh.dir", b""), entry("dir"), entry("dir/new", b"new")]
    store.bring("a", BASE, layer(*(entries if order == 0 else entries[1:] + entries[:1])))
    assert [name for name in store.merged("a") if name.startswith("dir/")] == ["dir/new"]


def test_directories_without_an_entry_keep_what_they_are_below(store):
    store.bring(
        "a",
        layer(entry("secret", mode=0o700, mtime=5), entry("secret/a", b"a")),
        layer(entry("secret/b", b"b"), entry("fresh/c", b"c")),
    )
    found = store.merged("a")
    assert found["secret"][1] == 0o700 and found["fresh"][1] == 0o755
    assert {"secret/a", "secret/b", "fresh/c"} <= set(found)


def test_owners_and_modes(store, caller):  # noqa: F811
    """Root's store has the ids and set-id bits themselves, in a directory that is closed; an
    ordinary user's notes them. Nobody loses the right to read their own."""
    result = store.bring("a", layer(
        entry("su", b"su", mode=0o4755),
        entry("hard", b"", hard="su"),
        entry("secret", b"secret", mode=0o000),
        entry("of-somebody", b"1", uid=1234, gid=5678, mode=0o640),
        entry("of-nobody", b"1", uid=4000000000, gid=7),
        entry("closed", mode=0o000),
        entry("closed/in", b"in"),
        entry("sticky", mode=0o1777),
        entry("dev/null", b"", type=b"3", devmajor=1, devminor=3, size=0),
        entry("fifo", b"", type=b"6", size=0),
    ))
    assert "1 device files were left out" in result["notes"]
    assert ("1 files lost their setuid or setgid bit" in result["notes"]) == (caller.uid != 0)
    (layer_id,) = store.layers("a")
    su, secret, somebody = (os.lstat(store.file(layer_id, name)) for name in ("su", "secret", "of-somebody"))
    assert stat.S_IMODE(su.st_mode) == (0o4755 if caller.uid == 0 else 0o755) and su.st_nlink == 2
    assert stat.S_ISFIFO(os.lstat(store.file(layer_id, "fifo")).st_mode)
    assert not os.path.lexists(store.file(layer_id, "dev/null"))
    assert stat.S_IMODE(os.lstat(store.file(layer_id, "sticky")).st_mode) == 0o1777
    if caller.uid == 0:
        assert (somebody.st_uid, somebody.st_gid, stat.S_IMODE(somebody.st_mode)) == (1234, 5678, 0o640)
        assert os.lstat(store.file(layer_id, "of-nobody")).st_uid == 65534
        assert stat.S_IMODE(secret.st_mode) == 0
        assert stat.S_IMODE(os.stat(store.path / "layers").st_mode) == 0o700
    else:
        assert os.getxattr(store.file(layer_id, "su"), "user.rollbox.owner") == b"0:0:4755"
        assert somebody.st_uid == caller.uid
        assert os.getxattr(store.file(layer_id, "of-somebody"), "user.rollbox.owner") == b"1234:5678:640"
        assert stat.S_IMODE(secret.st_mode) == 0o400
    assert os.getxattr(store.file(layer_id, "of-nobody"), "user.rollbox.owner").startswith(b"4000000000:7:")
    store.clean()


def test_names_are_bytes(store):
    """Newlines, invalid UTF-8, and two spellings of one letter, which stay two files."""
    names = [b"new\nline", b"\xff\xfe", "e\u0301".encode(), "\u00e9".encode(), b"-rf", b"x" * 255, b"a\\b", b"*"]
    store.bring(
        "a",
        layer(
            *(entry(name, b"%d" % number) for number, name in enumerate(names)),
            entry(b"link", b"", link=b"\xff\xfe"),
            entry(b"hard", b"", hard="e\u0301".encode()),
        ),
    )
    (layer_id,) = store.layers("a")
    root = os.fsencode(store.file(layer_id, ""))
    for number, name in enumerate(names):
        assert Path(os.fsdecode(os.path.join(root, name))).read_bytes() == b"%d" % number
    assert os.readlink(os.path.join(root, b"link")) == b"\xff\xfe"
    assert os.stat(os.path.join(root, b"hard")).st_ino == os.stat(os.path.join(root, "e\u0301".encode())).st_ino


def test_extended_attributes(store):
    """Users' attributes are kept. Those of the overlay and of rollbox are not: an archive could
    make directories opaque or redirected with them."""
    store.bring(
        "a",
        BASE,
        layer(
            entry(
                "dir",
                xattrs={
                    "user.overlay.opaque": "y",
                    "user.overlay.redirect": "/etc",
                    "user.rollbox.owner": "1:1:777",
                    "user.mime": "text",
                    "trusted.overlay.opaque": "y",
                },
            )
        ),
    )
    _, top = store.layers("a")
    assert os.getxattr(store.file(top, "dir"), "user.mime") == b"text"
    assert os.listxattr(store.file(top, "dir")) == ["user.mime"]
    assert "dir/a" in store.merged("a")


def test_layers_are_shared_by_digest(store):
    """The same layers cost nothing the second time, with any compression; one that deletes is
    shared over the same layers alone."""
    more, deleting = layer(entry("more", b"more")), layer(entry("dir/.wh.a", b""))
    assert store.bring("a", BASE, more, deleting)["new_layers"] == 3
    assert store.bring("b", BASE, more, deleting, pack=bytes)["new_layers"] == 0
    assert store.layers("a") == store.layers("b")
    assert store.layers("a")[0] == digest(BASE)[7:]
    # Over something else the same deletion is another one: there, nothing was to delete, and nothing is left of it.
    other = layer(entry("dir"), entry("dir/b", b"b"))
    assert store.bring("c", other, deleting)["new_layers"] == 1
    assert sorted(store.merged("c")) == ["dir", "dir/b"]
    assert "dir/a" not in store.merged("a")
    # Empty layers are dropped, doubles kept once: an overlay has room for so many, and takes none twice.
    assert store.bring("d", BASE, layer(), more, BASE)["layers"] == 2


@pytest.mark.parametrize("pack", PACKERS)
def test_compressions(store, pack):
    store.bring("a", BASE, pack=PACKERS[pack])
    assert store.layers("a") == [digest(BASE)[7:]]


def test_configuration(store):
    store.bring("a/b:1", BASE)
    shown = store.json("image", "show", "a/b:1")
    assert shown["config"] == {
        "env": ["PATH=/bin", "NAME=value"],
        "cwd": "/data",
        "user": "1000:1000",
        "entrypoint": ["/bin/env"],
        "cmd": ["/bin/sh"],
        "architecture": ARCHITECTURE,
    }
    result = store.bring("foreign", BASE, config=configuration([BASE], architecture="s390x"))
    assert any("s390x" in note for note in result["notes"])
    text = store.call("image", "show", "a/b:1").stdout.decode()
    assert "a/b:1 (image)" in text and "/data" in text
    assert [row["name"] for row in store.json("image", "ls")["images"]] == ["a/b:1", "foreign"]


def test_docker_archive(store, caller):  # noqa: F811
    """Several images in one, layers as links to others."""
    more = layer(entry("more", b"more"))
    path = write_tar(store.home / "docker.tar", docker_members({"one:1": [BASE], "two:2": [BASE, more]}))
    caller.own(path)
    assert "one:1, two:2" in store.refused("image", "import", "--name", "x", path)
    assert "three" in store.refused(
        "image", "import", "--name", "x", "--tag-of-archive", "three", path, code="not_found"
    )
    assert store.json("image", "import", "--name", "x", "--tag-of-archive", "two:2", path)["layers"] == 2
    assert store.merged("x")["more"][2] == "more"
    packed = write_tar(store.home / "docker.tar.gz", docker_members({"one:1": [BASE, more]}), "w:gz")
    caller.own(packed)
    assert store.json("image", "import", "--name", "y", packed)["new_layers"] == 0


def test_layout_directory_and_index_of_platforms(store, caller):  # noqa: F811
    blobs = oci_blobs([BASE], tag="v1")
    (manifest,) = json.loads(blobs["index.json"])["manifests"]
    del manifest["annotations"]
    foreign = {**manifest, "digest": "sha256:" + "0" * 64, "platform": {"os": "linux", "architecture": "s390x"}}
    inner = json.dumps(
        {
            "schemaVersion": 2,
            "manifests": [
                foreign,
                {**manifest, "platform": {"os": "linux", "architecture": ARCHITECTURE}},
            ],
        }
    ).encode()
    blobs["blobs/" + digest(inner).replace(":", "/")] = inner
    index = {
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "digest": digest(inner),
        "size": len(inner),
        "annotations": {"org.opencontainers.image.ref.name": "v1"},
    }
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [index]}).encode()
    directory = write_layout(caller.directory(), blobs)
    for path in [directory, *directory.rglob("*")]:
        caller.own(path)
    assert store.json("image", "import", "--name", "a", "--tag-of-archive", "v1", directory)["layers"] == 1
    assert "v1" in store.refused(
        "image", "import", "--name", "a", "--tag-of-archive", "v2", directory, code="not_found"
    )


def test_busybox(store):
    program = Path(busybox()).read_bytes()
    store.bring(
        "busybox",
        layer(
            entry("bin"),
            entry("bin/busybox", program, mode=0o755),
            *(entry(f"bin/{name}", b"", hard="bin/busybox") for name in ("sh", "ls", "cat")),
        ),
    )
    (layer_id,) = store.layers("busybox")
    assert os.lstat(store.file(layer_id, "bin/sh")).st_nlink == 4
    done = subprocess.run([store.file(layer_id, "bin/busybox"), "echo", "hello"], capture_output=True, check=True)
    assert done.stdout == b"hello\n"


def test_deep_paths(store):
    """Deeper than a path can be long, there and gone again."""
    depth = 995
    store.bring("a", layer(entry("/".join(["directory"] * depth) + "/file", b"deep")))
    store.clean()
    store.json("image", "rm", "a")
    assert store.json("store", "gc")["removed_layers"] == 1
    assert os.listdir(store.path / "layers") == []
    message = store.refused(
        "image",
        "import",
        "--name",
        "b",
        store.archive(oci_blobs([layer(entry("/".join(["d"] * 1002), b""))])),
    )
    assert "too many directories" in message


def test_duplicate_entries(store):
    """The last one counts, after earlier ones of any type."""
    store.bring("a", layer(
        entry("x", b"first"), entry("x", b"second"),
        entry("d"), entry("d/in", b"in"), entry("d", b"file"),
        entry("f", b"file"), entry("f"), entry("f/in", b"in"),
        entry("l", b"", link="/etc/passwd"), entry("l", b"plain"),
        entry("m", mode=0o700), entry("m", mode=0o711),
    ))
    found = store.merged("a")
    assert [found[name][2] for name in ("x", "d", "f/in", "l")] == ["second", "file", "in", "plain"]
    assert found["m"][1] == 0o711 and "d/in" not in found


# ---- hostile archives
# ---------------------------------------------------------------------------------------------------

REFUSED = {
    "dot dot": ([entry("a/../../../../etc/rollbox-evil", b"x")], '".."'),
    "dot dot directory": ([entry("..")], '".."'),
    "through a link": (
        [entry("out", b"", link="/etc"), entry("out/rollbox-evil", b"x")],
        "symbolic link",
    ),
    "through a relative link": (
        [entry("out", b"", link="../../../../../../../../etc"), entry("out/rollbox-evil", b"x")],
        "symbolic link",
    ),
    "through a link in the middle": (
        [entry("a"), entry("a/out", b"", link="/"), entry("a/out/etc/rollbox-evil", b"x")],
        "symbolic link",
    ),
    "directory through a link": (
        [entry("out", b"", link="/etc"), entry("out/sub/rollbox-evil")],
        "symbolic link",
    ),
    "through a file": ([entry("a", b""), entry("a/b", b"")], "not a directory"),
    "hard link out": ([entry("h", b"", hard="../../../../etc/passwd")], "leads out"),
    "hard link to the host": ([entry("h", b"", hard="/etc/passwd")], "not in its layer"),
    "hard link through a link": (
        [entry("out", b"", link="/etc"), entry("h", b"", hard="out/passwd")],
        "symbolic link",
    ),
    "hard link to a directory": ([entry("d"), entry("h", b"", hard="d")], "directory"),
    "hard link to nothing": ([entry("h", b"", hard="nothing")], "not in its layer"),
    "no name deleted": ([entry("a/.wh.", b"")], "deletes"),
    "dot dot deleted": ([entry("a/.wh...", b"")], "deletes"),
    "top directory a file": ([entry(".", b"x")], "top directory"),
    "top directory a link": ([entry(".", b"", link="/etc")], "top directory"),
    "name too long": ([entry("n" * 256, b"")], "too long"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_hostile_layers_are_refused(store, what):
    entries, says = REFUSED[what]
    message = store.refused(
        "image",
        "import",
        "--name",
        "evil",
        store.archive(oci_blobs([BASE, layer(entry("ok", b"ok"), *entries)])),
    )
    assert says in message
    assert not os.path.lexists("/etc/rollbox-evil")
    assert store.json("image", "ls")["images"] == []


def test_absolute_names_are_contained(store):
    store.bring("a", layer(entry("/etc/rollbox-evil", b"x"), entry("//a//./b", b"b")))
    assert not os.path.lexists("/etc/rollbox-evil")
    assert set(store.merged("a")) == {"etc", "etc/rollbox-evil", "a", "a/b"}


def test_whiteout_devices_are_no_whiteouts(store):
    """A device 0:0 in a layer's tar is no deletion."""
    store.bring("a", BASE, layer(entry("kept", b"", type=b"3", devmajor=0, devminor=0, size=0), entry("new", b"")))
    assert "kept" in store.merged("a")


def swap_layer(blobs, packed):
    blobs["blobs/" + packed[-1]["digest"].replace(":", "/")] = PACKERS["gzip"](layer(entry("other", b"other")))


def drop_layer(blobs, packed):
    del blobs["blobs/" + packed[-1]["digest"].replace(":", "/")]


def cut_layer(blobs, packed):
    name = "blobs/" + packed[-1]["digest"].replace(":", "/")
    blobs[name] = blobs[name][:len(blobs[name]) // 2]


@pytest.mark.parametrize(
    "tamper, says",
    [(swap_layer, "layer 2 "), (drop_layer, "missing"), (cut_layer, "truncated")],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_damaged_layers_are_refused(store, tamper, says):
    message = store.refused(
        "image",
        "import",
        "--name",
        "a",
        store.archive(oci_blobs([BASE, layer(entry("x", os.urandom(20000)))], tamper=tamper)),
    )
    assert says in message


def test_wrong_diff_id_is_refused(store):
    config = configuration([BASE, layer(entry("other", b""))])
    assert "layer 2 " in store.refused(
        "image",
        "import",
        "--name",
        "a",
        store.archive(oci_blobs([BASE, layer(entry("x", b"x"))], config=config)),
    )


def test_invalid_images_are_refused(store, caller):  # noqa: F811
    path = store.home / "x.tar"
    for content in (
        b"",
        b"\0" * 10240,
        b"no tar at all" * 1000,
        layer(entry("a", b"a")),
        write_oci(path, {"index.json": b"[[[["}).read_bytes(),
        write_oci(path, {"manifest.json": b"[]"}).read_bytes(),
        write_oci(path, {"index.json": b'{"manifests":[{"digest":"md5:x"}]}'}).read_bytes(),
    ):
        path.write_bytes(content)
        caller.own(path)
        store.refused("image", "import", "--name", "a", path)
    path.write_bytes(write_oci(path, oci_blobs([BASE])).read_bytes()[:-9000])
    store.refused("image", "import", "--name", "a", path)
    store.refused("image", "import", "--name", "a", store.home / "nothing", code="not_found")
    os.mkfifo(store.home / "fifo")
    caller.own(store.home / "fifo")
    store.refused("image", "import", "--name", "a", store.home / "fifo")


def test_limits(store):
    many = store.archive(oci_blobs([layer(*(entry(f"f{number}", b"") for number in range(100)))]))
    assert "99 entries" in store.refused("image", "import", "--name", "a", "--max-entries", "99", many)
    assert store.json("image", "import", "--name", "a", "--max-entries", "100", many)["files"] == 100
    large = store.archive(oci_blobs([layer(entry("x", b"x" * 5000))]))
    assert "4999 bytes" in store.refused("image", "import", "--name", "b", "--max-bytes", "4999", large)
    deep = store.archive(oci_blobs([layer(entry("a/b/c/d", b""))]))
    assert "--max-depth" in store.refused("image", "import", "--name", "b", "--max-depth", "2", deep)


def test_bomb(store):
    """A few hundred kilobytes that unpack to 300 MB of zeros, in a layer and behind the end of one."""
    head = layer(entry("ok", b"ok"))
    bomb = head + b"\0" * (300 << 20)
    blobs = oci_blobs([BASE, head], pack=lambda data: PACKERS["gzip"](bomb if data == head else data))
    assert "unpacks to more than" in store.refused("image", "import", "--name", "a", store.archive(blobs))


def test_disk_full(store, caller):  # noqa: F811
    """On a file system of two megabytes: the error says what to do, and what was there still is."""
    small = store.archive(oci_blobs([BASE]))
    large = store.home / "large.tar"
    write_oci(large, oci_blobs([BASE, layer(entry("x", os.urandom(8 << 20)))], pack=bytes))
    caller.own(large)
    at = caller.directory()
    program = binaries() / "rollbox"
    script = f"""mount -t tmpfs -o size=2m none {at} && export ROLLBOX_STORE={at}/store && {program} image import --name a {small} && ! {program} image import --json --name b {large} &&
        {program} store fsck && test -z "$(ls {at}/store/tmp)" && {program} image ls && {program} image import --name c {small}"""
    namespaces = ["--mount"] if caller.uid == 0 else ["--user", "--map-root-user", "--mount"]
    done = caller.call("unshare", *namespaces, "--propagation", "private", "sh", "-ec", script)
    if b"mount" in done.stderr and b"permission denied" in done.stderr.lower():
        pytest.skip(f"needs userns: {done.stderr.decode()}")
    if b"cannot keep layers" in done.stderr:
        pytest.skip("needs xattr: tmpfs has user attributes from Linux 6.6 on")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert json.loads(done.stderr)["error"]["code"] == "resource_exhausted"
    assert b"0 damaged" in done.stdout


def test_bar_on_a_terminal(store):
    path = store.archive(oci_blobs([layer(entry("x", os.urandom(1 << 20)))]))
    ours, theirs = pty.openpty()
    try:
        done = store.call("image", "import", "--name", "a", path, stderr=theirs, stdout=subprocess.PIPE)
        assert done.returncode == 0 and done.stdout.startswith(b"a: 1 layer (1 new)")
    finally:
        os.close(theirs)
        os.close(ours)


@pytest.mark.parametrize("feature", ["-landlock"])
def test_without_landlock(store, feature):
    """The second layer of confinement is missing, and the result says so."""
    path = store.archive(oci_blobs([BASE]))
    result = store.json("image", "import", "--name", "a", path, env={"ROLLBOX_KFEAT": feature})
    assert result["isolation"] == {"landlock": False, "seccomp": True}


def test_names_that_are_refused(store):
    path = store.archive(oci_blobs([BASE]))
    for name in ("../x", "snapshot:x", "", "a b", "/etc/passwd"):
        store.refused("image", "import", f"--name={name}", path)
    assert "--name" in store.refused("image", "import", path)


@pytest.mark.skipif(not os.environ.get("ROLLBOX_SOAK"), reason="takes minutes and the network; make soak runs it")
@pytest.mark.timeout_s(1500)
def test_debootstrap(store, place_of_root):
    """A Debian with python and git, in two layers: imported, every file as it was made, and nothing
    changed by an overlay of it."""
    first, second = store.home / "base.tar", store.home / "more.tar"
    subprocess.run(
        [
            "tar",
            "-C",
            place_of_root,
            "--sort=name",
            "--exclude=./usr/lib/git-core",
            "-cf",
            first,
            ".",
        ],
        check=True,
    )
    subprocess.run(["tar", "-C", place_of_root, "--sort=name", "-cf", second, "./usr/lib/git-core"], check=True)
    path = store.archive(oci_blobs([first.read_bytes(), second.read_bytes()], pack=bytes))
    result = store.json("image", "import", "--name", "debian", path, timeout=600)
    assert result["layers"] == 2
    found = store.merged("debian")
    expected = {}
    for directory, directories, files in os.walk(place_of_root):
        for name in directories + files:
            full = os.path.join(directory, name)
            st = os.lstat(full)
            if stat.S_ISREG(st.st_mode) or stat.S_ISLNK(st.st_mode) or stat.S_ISDIR(st.st_mode):
                expected[os.path.relpath(full, place_of_root)] = (
                    stat.S_IFMT(st.st_mode),
                    os.readlink(full)
                    if stat.S_ISLNK(st.st_mode)
                    else st.st_size
                    if stat.S_ISREG(st.st_mode)
                    else None,
                )
    kinds = {"d": stat.S_IFDIR, "f": stat.S_IFREG, "l": stat.S_IFLNK}
    assert {
        name: (kinds[what[0]], len(what[2]) if what[0] == "f" else what[2])
        for name, what in found.items()
        if what[0] in kinds
    } == expected
    store.clean()
    assert store.json("image", "import", "--name", "again", path, timeout=600)["new_layers"] == 0


@pytest.mark.skipif(not os.environ.get("ROLLBOX_SOAK"), reason="takes minutes and the network; make soak runs it")
@pytest.mark.timeout_s(1500)
def test_debootstrap_through_a_registry(store, registry, place_of_root):
    """A Debian with python is pushed and pulled elsewhere: the same files, and its python runs."""
    file = store.home / "base.tar"
    subprocess.run(
        [
            "tar",
            "-C",
            place_of_root,
            "--sort=name",
            "--xattrs",
            "--xattrs-include=*",
            "-cf",
            file,
            ".",
        ],
        check=True,
    )
    store.json(
        "image",
        "import",
        "--name",
        "debian",
        store.archive(oci_blobs([file.read_bytes()], pack=bytes)),
        timeout=600,
    )
    store.json("image", "push", "debian", registry.reference("debian"), timeout=600)
    other = Store(store.caller)
    done = other.call("image", "pull", "--name", "debian", registry.reference("debian"), timeout=600)
    assert done.returncode == 0, done.stderr
    assert other.merged("debian") == store.merged("debian")
    assert run(other, "/usr/bin/python3", "-c", "print(6 * 7)", image="debian").stdout == "42\n"
    open_up(other.home)


@pytest.fixture(scope="module")
def place_of_root():
    """What debootstrap makes, which takes root."""
    if os.geteuid() != 0:
        pytest.skip("needs root: debootstrap")
    target = place() / "debian"
    subprocess.run(
        ["debootstrap", "--variant=minbase", "--include=python3-minimal,git", "bookworm", target],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=1200,
    )
    return target


def test_parallel_imports_unpack_a_layer_once(store):
    """Imports of one archive at the same time: one unpacks, and the others use its layer."""
    files = layer(*(entry(f"f{i}", b"x" * 1000) for i in range(300)))
    archive = store.archive(oci_blobs([files]))
    words = [binaries() / "rollbox-store", "import", "--json", "--name"]
    environment = store.caller.environment(ROLLBOX_STORE=str(store.path))
    store.json("store", "df")  # the store is there
    jobs = [
        store.caller.popen([*words, f"image{i}", archive], env=environment, stdout=subprocess.PIPE)
        for i in range(8)
    ]
    answers = [json.loads(job.communicate(timeout=120)[0]) for job in jobs]
    assert sum(answer["new_layers"] for answer in answers) == 1
