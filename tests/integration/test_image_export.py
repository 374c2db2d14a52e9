# SPDX-License-Identifier: Apache-2.0
"""Images and snapshots as OCI images: in files, which other programs read, and in a registry."""

import json
import os
import shutil
import subprocess
import tarfile

import pytest
from archives import ARCHITECTURE, digest, entry, layer, write_tar
from harness import binaries, caller, place  # noqa: F401
from image_stores import BASE, Store, open_up, store, system  # noqa: F401
from registries import closed_registry, registry  # noqa: F401

ABOVE = layer(
    entry("etc/.wh.gone", b""),
    entry("dir", mode=0o750, uid=3, gid=4),
    entry("dir/.wh..wh..opq", b""),
    entry("dir/n", b"n", uid=1234, gid=4321, mode=0o640),
    entry("dir/hard", b"", hard="dir/n"),
    entry("dir/link", b"", link="n", uid=7, gid=8),
    entry("dir/same", b"", hard="dir/link", uid=7, gid=8),
    entry("setid", b"s", mode=0o4755),
    entry("attributes", b"a", xattrs={"user.key": "value"}),
    entry("fifo", b"", type=b"6", size=0),
    entry("empty"),
    entry(b"\xff\n", b"odd name"),
)
CONFIG = {
    "os": "linux",
    "architecture": ARCHITECTURE,
    "config": {
        "Env": ["A=1"],
        "Labels": {"k": "v"},
        "ExposedPorts": {"80/tcp": {}},
        "Healthcheck": {"Test": ["CMD", "true"]},
        "Volumes": {"/v": {}},
        "StopSignal": "SIGINT",
        "Shell": ["/bin/sh", "-c"],
    },
}


def with_config(layers):
    diff_ids = [digest(data) for data in layers]
    return {**CONFIG, "rootfs": {"type": "layers", "diff_ids": diff_ids}}


def trees(store, name):
    """The digest of each layer's tree, and the owners that its files have or have noted."""
    found = []
    for one in store.layers(name):
        directory = store.path / "layers" / one
        owners = {}
        for path, names, files in os.walk(directory / "fs"):
            for leaf in names + files:
                full = os.path.join(path, leaf)
                st = os.lstat(full)
                noted = None
                if not os.path.islink(full) and store.caller.uid:
                    try:
                        noted = os.getxattr(full, "user.rollbox.owner")
                    except OSError:
                        pass
                relative = os.path.relpath(full, directory / "fs")
                owners[relative] = (st.st_uid, st.st_gid, st.st_mode, st.st_nlink, noted)
        found.append((json.loads((directory / "meta.json").read_text())["tree"], owners))
    return found


def second_store(caller):  # noqa: F811
    return Store(caller)


@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
def test_export_and_import_elsewhere_are_equal(store, caller, compression):  # noqa: F811
    """Files, owners, deletions, links, attributes and the whole configuration."""
    layers = [BASE, ABOVE]
    store.bring("a", *layers, config=with_config(layers))
    file = store.home / "a.tar"
    done = store.json("image", "export", "--compression", compression, "a", file)
    assert done["layers"] == 2
    other = second_store(caller)
    other.json("image", "import", "--name", "b", file)
    assert trees(other, "b") == trees(store, "a")
    assert other.merged("b") == store.merged("a")
    assert other.json("image", "show", "b")["oci"] == CONFIG | {"history": [{"created_by": "rollbox image export"}] * 2}
    open_up(other.home)


def test_same_image_becomes_the_same_bytes(store):
    """So that a registry or another store recognizes its layers."""
    store.bring("a", BASE, ABOVE)
    first = store.json("image", "export", "a", store.home / "one")
    again = store.json("image", "export", "a", f"oci:{store.home}/two:tag")
    assert first["digest"] == again["digest"]
    index = json.loads((store.home / "two" / "index.json").read_text())
    assert index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"] == "tag"


def test_hard_links_have_the_owner_and_mode_of_their_file(store):
    """Docker and podman give the owner and mode of a link's entry to the file or symbolic link."""
    store.bring("a", ABOVE)
    store.json("image", "export", "--compression", "none", "a", f"{store.home}/layout/")
    (name,) = ordered_layers(store.home / "layout")
    with tarfile.open(store.home / "layout" / "blobs" / "sha256" / name) as tar:
        members = {member.name: member for member in tar}
    # An ordinary user's store has no place for the owner of a symbolic link.
    of_link = (0, 0) if store.caller.uid else (7, 8)
    for names, owner, target in (
        (("dir/n", "dir/hard"), (1234, 4321, 0o640), ""),
        (("dir/link", "dir/same"), (*of_link, 0o777), "n"),
    ):
        first, second = sorted((members[name] for name in names), key=tarfile.TarInfo.islnk)
        assert [(one.uid, one.gid, one.mode) for one in (first, second)] == [owner, owner]
        assert (first.islnk(), first.linkname) == (False, target)
        assert (second.islnk(), second.linkname) == (True, first.name)


def test_skopeo_reads_an_export(store):
    if not shutil.which("skopeo"):
        pytest.skip("needs skopeo")
    layers = [BASE, ABOVE]
    store.bring("a", *layers, config=with_config(layers))
    store.json("image", "export", "a", f"{store.home}/layout/")
    store.json("image", "export", "a", f"{store.home}/a.tar")
    for reference in (f"oci:{store.home}/layout:latest", f"oci-archive:{store.home}/a.tar"):
        done = subprocess.run(["skopeo", "inspect", reference], capture_output=True, check=True)
        shown = json.loads(done.stdout)
        assert shown["Labels"] == {"k": "v"} and len(shown["Layers"]) == 2
        done = subprocess.run(["skopeo", "inspect", "--config", reference], capture_output=True, check=True)
        # Builders refuse to add a layer to an image whose history has another number of steps.
        assert len(json.loads(done.stdout)["history"]) == 2


def test_crun_runs_an_export(store):
    """Its layers, unpacked in order by tar, are a root file system."""
    if store.caller.uid or not shutil.which("crun"):
        pytest.skip("needs root and crun")
    store.bring("system", *system())
    directory = store.home / "layout"
    store.json("image", "export", "--compression", "none", "system", f"{directory}/")
    root = store.home / "bundle" / "rootfs"
    root.mkdir(parents=True)
    for name in ordered_layers(directory):
        with tarfile.open(directory / "blobs" / "sha256" / name) as tar:
            for member in tar:
                leaf = member.name.rpartition("/")[2]
                target = root / member.name.replace(".wh.", "")
                if leaf == ".wh..wh..opq":
                    continue
                if leaf.startswith(".wh."):
                    shutil.rmtree(target) if target.is_dir() else target.unlink()
                else:
                    tar.extract(member, root)
    for name in ("proc", "dev", "sys"):
        (root / name).mkdir(exist_ok=True)
    subprocess.run(["crun", "spec"], cwd=root.parent, check=True)
    spec = json.loads((root.parent / "config.json").read_text())
    spec["process"].update(args=["/bin/cat", "/data/new"], terminal=False)
    (root.parent / "config.json").write_text(json.dumps(spec))
    # crun 1.8 refuses cgroups v1 beside a v2 mount with controllers, so it does not see that one.
    hide = 'umount -l /sys/fs/cgroup/unified 2>/dev/null; exec "$@"'
    words = ["crun", "--cgroup-manager=disabled", "run", f"export-{os.getpid()}"]
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", hide, "sh", *words],
        cwd=root.parent,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.stdout == b"new", done.stderr


def ordered_layers(layout):
    index = json.loads((layout / "index.json").read_text())
    top = index["manifests"][0]["digest"][7:]
    manifest = json.loads((layout / "blobs" / "sha256" / top).read_text())
    return [row["digest"][7:] for row in manifest["layers"]]


def test_stored_snapshot_becomes_an_image(store, caller):  # noqa: F811
    """Its places are directories of the image; the configuration comes from another one."""
    manifest = {
        "format": "rollbox-snapshot", "version": 1, "created": 1,
        "places": [{"part": "p0", "path": "/repo", "kind": "directory"}],
        "layers": [],
    }
    probe = write_tar(store.home / "s.tar", [entry("manifest.json", json.dumps(manifest).encode())])
    caller.own(probe)
    store.json("import", "--name", "s", probe)
    layers = [BASE]
    store.bring("base", *layers, config=with_config(layers))
    done = store.call("image", "export", "--json", "--config-of", "base", "snapshot:s", store.home / "o")
    assert done.returncode == 0, done.stderr


def test_file_whose_name_means_a_deletion_is_refused(store):
    """An image cannot have one, but a guest can make one in a snapshot."""
    store.bring("a", BASE)
    (store.file(store.layers("a")[0], ".wh.kept")).write_bytes(b"")
    message = store.call("image", "export", "a", store.home / "o").stderr.decode()
    assert ".wh.kept" in message and "rename it" in message


def test_push_and_pull_elsewhere_are_equal(store, caller, registry):  # noqa: F811
    """The second push sends only the manifest."""
    layers = [BASE, ABOVE]
    store.bring("a", *layers, config=with_config(layers))
    reference = registry.reference("pushed")
    pushed = store.json("image", "push", "a", reference)
    assert pushed["digest"].startswith("sha256:")
    registry.requests.clear()
    assert store.json("image", "push", "a", reference)["digest"] == pushed["digest"]
    assert [method for method, _ in registry.requests if method in ("POST", "PATCH")] == []
    other = second_store(caller)
    done = other.call(
        "image",
        "pull",
        "--name",
        "b",
        "--json",
        f"docker://{registry.address}/pushed@{pushed['digest']}",
    )
    assert done.returncode == 0, done.stderr
    assert trees(other, "b") == trees(store, "a")
    assert other.json("image", "show", "b")["oci"] == CONFIG | {"history": [{"created_by": "rollbox image export"}] * 2}
    open_up(other.home)


def test_push_is_refused_without_credentials(store, closed_registry):
    store.bring("a", BASE)
    reference = closed_registry.reference("a")
    assert "--authfile" in store.refused("image", "push", "a", reference, code="path_denied")
    creds = store.caller.write(store.home / "creds", "me:secret-word\n", 0o600)
    assert store.json("image", "push", "--creds", creds, "a", reference)["layers"] == 1


def test_refused_exports(store):
    """The names of what is missing, and targets that are taken."""
    store.bring("a", BASE)
    (store.home / "full").mkdir()
    (store.home / "full" / "x").write_text("x")
    store.refused("image", "export", "nothing", store.home / "o", code="not_found")
    store.refused("image", "export", "a", "/nonexistent/o", code="not_found")
    store.refused("image", "export", "a", store.home / "full", code="io")
    assert store.call("image", "export", "--compression", "x", "a", "/o").returncode == 125
    store.refused("image", "push", "a", "oci:x")
    assert sorted(os.listdir(store.home / "full")) == ["x"]
    assert not [name for name in os.listdir(store.home) if name.startswith(".rollbox")]


@pytest.mark.parametrize("point", ["layout_half", "layout_written"])
def test_killed_export_leaves_the_old_file(store, point):
    store.bring("a", BASE, ABOVE)
    file = store.home / "o.tar"
    file.write_text("old")
    store.caller.own(file)
    done = store.call("image", "export", "a", file, env={"ROLLBOX_FAULT": point})
    assert done.returncode == -9 and file.read_text() == "old"
    store.bring("b", BASE)
    store.clean()


@pytest.mark.parametrize("full", ["target", "store"])
def test_export_to_a_full_disk_fails_and_leaves_no_half_of_a_file(store, full):
    """The file's disk, or the store's, in which the archive is prepared, has no room for the image."""
    if store.caller.uid:
        pytest.skip("only root mounts a file system")
    store.bring("large", layer(entry("big", os.urandom(6 << 20))))
    mount = store.home / "mount"
    mount.mkdir()
    copy = f"cp -a {store.path} {mount}/store && chmod 700 {mount}/store &&" if full == "store" else ""
    size = "8M" if full == "store" else "3M"
    script = (
        f'mount -t tmpfs -o size={size} none {mount} && {copy} "$@"; status=$?; '
        f"ls -A {mount} {mount}/store/tmp 2>/dev/null; exit $status"
    )
    file = mount / "o.tar" if full == "target" else store.home / "o.tar"
    done = store.caller.call(
        "unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh",
        binaries() / "rollbox", "image", "export", "--json", "--compression=none", "large", file,
        env=store.caller.environment(ROLLBOX_STORE=f"{mount}/store" if copy else str(store.path)),
    )  # fmt: skip
    if b"mount:" in done.stderr:
        pytest.skip(f"needs a mount namespace: {done.stderr.decode()}")
    if done.returncode == 0:
        assert full == "store" and file.stat().st_size > 6 << 20  # it needs no room there
    else:
        assert json.loads(done.stderr)["error"]["code"] == "resource_exhausted", done
        assert b"o.tar" not in done.stdout and not file.exists()
