# SPDX-License-Identifier: Apache-2.0
"""Archives of strangers, in layers of images and in ADD: sparse files whose holes would fill the disk,
entries without end, and device files."""

import gzip
import os
import subprocess
import tarfile

import pytest
from archives import entry, layer, oci_blobs
from built_images import Builds
from harness import caller  # noqa: F401
from image_stores import store  # noqa: F401

TERA = 1 << 40


def sparse_tar(store, form):  # noqa: F811
    """A tar of a file of a TiB that is a hole, by the kind of tar's sparse entries."""
    directory = store.home / f"sparse-{form}"
    directory.mkdir()
    with open(directory / "hole", "wb") as file:
        file.truncate(TERA)
    kind = ["--format=gnu"] if form == "gnu" else ["--format=pax", f"--sparse-version={form}"]
    command = ["tar", "-C", directory, "-S", *kind, "-c", "hole"]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    assert len(data) < 1 << 20
    return data


@pytest.mark.parametrize("form", ["gnu", "0.0", "0.1", "1.0"])
def test_sparse_file_of_a_layer_does_not_fill_the_disk(store, form):  # noqa: F811
    blobs = oci_blobs([sparse_tar(store, form)])
    message = store.refused("image", "import", "--name", "evil", store.archive(blobs))
    assert "--max-bytes" in message or "unpacks to more than" in message or "bytes" in message, message
    assert store.json("image", "ls")["images"] == []


@pytest.fixture
def builds():
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's builds are in test_image_build.py")
    return Builds()


@pytest.mark.parametrize("form", ["gnu", "1.0"])
def test_sparse_file_that_is_added_does_not_fill_the_disk(builds, form):
    tar = sparse_tar(builds.store, form)
    error = builds.refused("FROM base\nADD x.tgz /x/\n", {"x.tgz": gzip.compress(tar)})
    assert error["message"].startswith("Dockerfile:2: ") and error["code"] == "invalid_argument", error
    builds.store.clean()


def test_archive_that_is_added_has_no_more_entries_than_allowed(builds):
    many = gzip.compress(layer(*(entry(f"d/{n}", b"") for n in range(2000))))
    error = builds.refused("FROM base\nADD x.tgz /x/\n", {"x.tgz": many}, "--max-entries", "1000")
    assert error["message"].startswith("Dockerfile:2: ") and "--max-entries" in error["message"], error
    builds.store.clean()


def test_device_files_that_are_added_are_left_out_or_refused(builds):
    disk = entry("sda", b"", type=tarfile.BLKTYPE, devmajor=8, devminor=0)
    memory = entry("mem", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=1)
    tar = gzip.compress(layer(disk, memory, entry("f", b"f")))
    context = builds.context("FROM base\nADD x.tgz /x/\n", {"x.tgz": tar})
    done = builds.store.call("image", "build", "--json", "--progress=quiet", "-t", "made", context)
    if done.returncode == 0:
        assert builds.run("ls /x") == "f\n"
    else:
        assert b"Dockerfile:2: " in done.stderr
        builds.store.clean()


def test_owners_that_no_sandbox_has_are_nobody(store):  # noqa: F811
    """Above 65534, which is the last id of a sandbox; set-user-id bits of such a file go."""
    far = [entry("far", b"x", uid=100000, gid=70000, mode=0o6755), entry("last", b"", uid=4294967294, gid=4294967294)]
    store.bring("far", layer(entry("bin"), *far))
    assert store.json("store", "fsck")["damaged"] == []
    path = store.file(store.layers("far")[0], "far")
    assert os.lstat(path).st_mode & 0o6000 == 0 or os.lstat(path).st_uid == store.caller.uid
