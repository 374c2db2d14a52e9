# SPDX-License-Identifier: Apache-2.0
"""Snapshots of sandboxes of many users as OCI images: owners, set-id bits and capabilities are in the
layers that a registry, skopeo and crun get."""

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from harness import binaries
from many_users import plain_callers
from registries import registry  # noqa: F401

CAPABILITY = b"\1\0\0\2\0\4" + bytes(14)
MAKE = """
mkdir -m 2770 /tmp/team; chown 0:50 /tmp/team; mkdir -m 700 /tmp/alices; echo secret > /tmp/alices/file
chmod 600 /tmp/alices/file; chown -R 1000:1001 /tmp/alices; cp /bin/true /tmp/setid; chown 1000 /tmp/setid
chmod 4755 /tmp/setid; echo a > /tmp/a; chown 65534:7 /tmp/a; ln /tmp/a /tmp/hard; ln -s a /tmp/link
python3 -c 'import os; os.setxattr("/tmp/setid", "security.capability", b"\\1\\0\\0\\2\\0\\4" + bytes(14))'
"""
OWNERS = {
    "tmp/team": (0, 50, 0o2770),
    "tmp/alices": (1000, 1001, 0o700),
    "tmp/alices/file": (1000, 1001, 0o600),
    "tmp/setid": (1000, 0, 0o4755),
    "tmp/a": (65534, 7, 0o644),
}


@pytest.fixture(params=plain_callers(), ids=repr)
def snapshot(request):
    """The command line, with the snapshot `s` in its store."""
    caller = request.param
    home = caller.directory()
    env = caller.environment(ROLLBOX_STORE=str(home / "store"), ROLLBOX_SOCKET=str(home / "socket"))

    def rollbox(*words, **more):
        done = caller.call(binaries() / "rollbox", *words, env={**env, **more})
        assert done.returncode == 0, done
        return done.stdout.decode()

    rollbox.home, rollbox.caller = home, caller
    rollbox("engine", "start", "--background")
    rollbox("create", "--name", "box", "--users", "many")
    rollbox("exec", "box", "--", "sh", "-c", MAKE)
    rollbox("export", "box", home / "file")
    rollbox("import", "--name", "s", home / "file")
    yield rollbox
    rollbox("engine", "stop")


def check(members):
    """Of a layer's tar."""
    for name, wanted in OWNERS.items():
        member = members[name]
        assert (member.uid, member.gid, member.mode) == wanted, name
    assert members["tmp/link"].linkname == "a"
    pair = [members["tmp/a"], members["tmp/hard"]]
    assert sorted(member.islnk() for member in pair) == [False, True]
    value = members["tmp/setid"].pax_headers["SCHILY.xattr.security.capability"]
    assert value.encode("utf-8", "surrogateescape") == CAPABILITY


def members_of(directory):
    """The entries of all layers that `skopeo copy ... dir:` has written."""
    found = {}
    for row in json.loads((directory / "manifest.json").read_text())["layers"]:
        data = (directory / row["digest"].partition(":")[2]).read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            found.update({member.name.strip("/"): member for member in tar})
    return found


def test_pushed_snapshot_has_the_owners_of_its_users(snapshot, registry):  # noqa: F811
    reference = registry.reference("snapshot")
    snapshot("image", "push", "snapshot:s", reference)
    directory = snapshot.home / "copy"
    words = ["skopeo", "copy", "--quiet", "--src-tls-verify=false", reference, f"dir:{directory}"]
    subprocess.run(words, check=True)
    check(members_of(directory))
    other = {"ROLLBOX_STORE": str(snapshot.home / "other")}
    snapshot("image", "pull", "--name", "s", reference, **other)
    snapshot("image", "export", "--compression=none", "s", f"{snapshot.home}/again/", **other)
    subprocess.run(
        ["skopeo", "copy", "--quiet", f"oci:{snapshot.home}/again:latest", f"dir:{snapshot.home}/third"], check=True
    )
    check(members_of(snapshot.home / "third"))


def test_podman_reads_an_exported_snapshot(snapshot):
    if os.geteuid() != 0 or not shutil.which("podman"):
        pytest.skip("podman's store is root's")
    archive = snapshot.home / "s.tar"
    snapshot("image", "export", "snapshot:s", archive)
    options = ["--root", snapshot.home / "podman", "--runroot", snapshot.home / "run", "--storage-driver", "vfs"]
    loaded = subprocess.run(["podman", *options, "load", "-q", "-i", archive], capture_output=True, text=True)
    assert loaded.returncode == 0, loaded.stderr
    name = loaded.stdout.strip().rpartition(" ")[2]
    made = subprocess.run(
        ["podman", *options, "create", name, "/none"], capture_output=True, text=True, check=True
    )
    try:
        mounted = subprocess.run(
            ["podman", *options, "mount", made.stdout.strip()], capture_output=True, text=True, check=True
        )
        root = Path(mounted.stdout.strip())
        for name, wanted in OWNERS.items():
            st = os.lstat(root / name)
            assert (st.st_uid, st.st_gid, st.st_mode & 0o7777) == wanted, name
        assert os.path.samefile(root / "tmp/a", root / "tmp/hard")
        assert os.getxattr(root / "tmp/setid", "security.capability") == CAPABILITY
    finally:
        subprocess.run(["podman", *options, "rm", "-fa"], capture_output=True, check=True)
