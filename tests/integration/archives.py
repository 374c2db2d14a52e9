# SPDX-License-Identifier: Apache-2.0
"""Image archives for the tests: layers as tars with any content, packed as OCI layouts or as docker
save does; and what an overlay of layers shows."""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

PACKERS = {"none": bytes, "gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


def entry(name, content=None, **fields):
    """One member: bytes are a file, None is a directory; fields are TarInfo's, `link` and `hard`
    the targets of links."""
    info = tarfile.TarInfo(os.fsdecode(name) if isinstance(name, bytes) else name)
    info.mode = 0o755 if content is None else 0o644
    info.mtime = 1000000000
    if content is None:
        info.type = tarfile.DIRTYPE
    else:
        info.size = len(content)
    for key, kind in (("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE)):
        if key in fields:
            info.type, info.linkname, info.size, info.mode = kind, os.fsdecode(fields.pop(key)), 0, 0o777
    xattrs = fields.pop("xattrs", {})
    info.pax_headers = {f"SCHILY.xattr.{name}": value for name, value in xattrs.items()}
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def layer(*entries):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content) if content and info.isreg() else None)
    return out.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


BASE_CONFIG = {"os": "linux", "architecture": ARCHITECTURE, "config": {}}


def configuration(layers, **more):
    config = {
        "Env": ["PATH=/bin", "NAME=value"],
        "Cmd": ["/bin/sh"],
        "Entrypoint": ["/bin/env"],
        "WorkingDir": "/data",
        "User": "1000:1000",
    }
    return {
        "os": "linux",
        "architecture": ARCHITECTURE,
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [digest(data) for data in layers]},
        **more,
    }


def oci_blobs(layers, pack=gzip.compress, tag=None, config=None, tamper=None):
    """The files of an OCI layout. `tamper` may change the blobs (a dict) before the index is made."""
    blobs = {}

    def blob(data, **more):
        blobs["blobs/" + digest(data).replace(":", "/")] = data
        return {"digest": digest(data), "size": len(data), **more}

    packed = [blob(pack(data), mediaType="application/vnd.oci.image.layer.v1.tar") for data in layers]
    manifest = {
        "schemaVersion": 2,
        "config": blob(json.dumps(config or configuration(layers)).encode()),
        "layers": packed,
    }
    if tamper:
        tamper(blobs, packed)
    top = blob(json.dumps(manifest).encode(), mediaType="application/vnd.oci.image.manifest.v1+json")
    if tag:
        top["annotations"] = {"org.opencontainers.image.ref.name": tag}
    blobs["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [top]}).encode()
    return blobs


def docker_members(images):
    """The members of docker save's older format: {tag: layers}. A layer that was there before is a link to it."""
    members, listed, seen = [], [], {}
    for number, (tag, layers) in enumerate(images.items()):
        config = json.dumps(configuration(layers)).encode()
        name = digest(config)[7:] + ".json"
        members.append(entry(name, config))
        paths = []
        for index, data in enumerate(layers):
            path = f"{number}-{index}/layer.tar"
            members.append(entry(path, data) if data not in seen else entry(path, b"", link=f"../{seen[data]}"))
            seen.setdefault(data, path)
            paths.append(path)
        listed.append({"Config": name, "RepoTags": [tag], "Layers": paths})
    members.append(entry("manifest.json", json.dumps(listed).encode()))
    return members


def write_tar(path, members, mode="w"):
    with tarfile.open(path, mode) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content) if content and info.isreg() else None)
    return path


def write_oci(path, blobs, mode="w"):
    return write_tar(path, [entry(name, data) for name, data in blobs.items()], mode)


def write_layout(directory, blobs):
    for name, data in blobs.items():
        target = Path(directory, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return directory


LIST = r"""
import json, os, stat, sys
found = {}
def walk(path, name):
    for entry in sorted(os.listdir(path)):
        full, below = os.path.join(path, entry), (name + "/" + entry).lstrip("/")
        st = os.lstat(full)
        kind = stat.S_ISDIR(st.st_mode) and "d" or stat.S_ISLNK(st.st_mode) and "l" or stat.S_ISREG(st.st_mode) and "f" or stat.S_ISFIFO(st.st_mode) and "p" or "?"
        what = os.readlink(full) if kind == "l" else open(full, "rb").read().decode("latin-1") if kind == "f" else None
        found[below] = [kind, stat.S_IMODE(st.st_mode), what, st.st_uid, st.st_nlink, int(st.st_mtime)]
        if kind == "d":
            walk(full, below)
walk(sys.argv[1], "")
print(json.dumps(found))
"""


def merged(caller, store, layers):
    """What the kernel's overlay of layers (bottom first) shows: {path: [kind, mode, content or
    target, uid, links, mtime]}."""
    mount = caller.directory()
    (mount / "empty").mkdir()
    (mount / "at").mkdir()
    caller.own(mount / "empty", mount / "at")
    lower = ":".join([f"{name}/fs" for name in reversed(layers)] + [str(mount / "empty")])
    script = f'mount -i -n -t overlay -o "ro,userxattr,lowerdir={lower}" none {mount}/at && exec python3 -I -S -c "$0" {mount}/at'
    namespaces = ["--mount"] if caller.uid == 0 else ["--user", "--map-root-user", "--mount"]
    done = caller.call(
        "unshare",
        *namespaces,
        "--propagation",
        "private",
        "sh",
        "-c",
        script,
        LIST,
        cwd=Path(store, "layers"),
    )
    if done.returncode and b"ermission" in done.stderr:
        pytest.skip(f"needs userns: {done.stderr.decode()}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def busybox():
    """The path of a static busybox, for an image of its own."""
    for path in ("/bin/busybox", "/usr/bin/busybox"):
        if (
            os.path.exists(path)
            and b"dynamically"
            not in subprocess.run(["file", "-L", path], capture_output=True, check=False).stdout
        ):
            return path
    pytest.skip("needs busybox: install busybox-static")
