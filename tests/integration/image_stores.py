# SPDX-License-Identifier: Apache-2.0
"""The fixture `store`: a store of a caller, into which a test brings images and whose layers it looks at.
"""
import json
import os
from pathlib import Path

import pytest
from archives import busybox, entry, layer, merged, oci_blobs, write_oci
from harness import binaries


class Store:
    """A caller's store; `image` and `store` are the commands, with --json."""

    def __init__(self, caller):
        self.caller = caller
        self.home = caller.directory(0o755)
        self.path = self.home / "store"

    def call(self, *arguments, **options):
        more = options.pop("env", {})
        return self.caller.rollbox(
            *arguments, env=self.caller.environment(ROLLBOX_STORE=str(self.path), **more), **options
        )

    def json(self, *arguments, status=0, **options):
        done = self.call(*arguments, "--json", **options)
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout)

    def refused(self, *arguments, code="invalid_argument", **options):
        """The message of an error, which is one line of JSON; nothing is left of what was begun."""
        done = self.call(*arguments, "--json", **options)
        assert done.returncode == 125, (done.stdout, done.stderr)
        assert done.stdout == b""
        error = json.loads(done.stderr)["error"]
        assert error["code"] == code, error
        self.clean()
        return error["message"]

    def clean(self):
        if self.path.exists():
            assert os.listdir(self.path / "tmp") == []
            assert self.json("store", "fsck")["damaged"] == []

    def layers(self, name):
        return [row["id"] for row in self.json("image", "show", name)["layers"]]

    def merged(self, name):
        return merged(self.caller, self.path, self.layers(name))

    def bring(self, name, *layers, **options):
        """Imports an image of these layers."""
        return self.json("image", "import", "--name", name, self.archive(oci_blobs(layers, **options)))

    def program(self, *arguments, **options):
        """A job of rollbox-store, with --json."""
        env = self.caller.environment(ROLLBOX_STORE=str(self.path), **options.pop("env", {}))
        return self.caller.call(binaries() / "rollbox-store", *arguments, "--json", env=env, **options)

    def archive(self, blobs):
        path = write_oci(self.home / "image.tar", blobs)
        self.caller.own(path)
        return path

    def file(self, layer_id, path):
        return self.path / "layers" / layer_id / "fs" / path


def open_up(directory):
    """So that who is not root can remove it: layers have directories that their owner may not write
    to, or not even enter."""
    for path, directories, _ in os.walk(directory):
        for name in directories:
            if not os.path.islink(os.path.join(path, name)):
                os.chmod(os.path.join(path, name), 0o700)


@pytest.fixture
def store(caller):  # noqa: F811
    made = Store(caller)
    yield made
    open_up(made.home)

BASE = layer(
    entry("etc"),
    entry("etc/passwd", b"root\n"),
    entry("etc/gone", b"x"),
    entry("dir"),
    entry("dir/a", b"a"),
    entry("dir/sub"),
    entry("dir/sub/deep", b"deep"),
    entry("file-then-dir", b"was a file"),
    entry("dir-then-file"),
    entry("dir-then-file/x", b"x"),
    entry("link", b"", link="/etc/passwd"),
    entry("kept", b"kept"),
)

APPLETS = "sh ls cat id touch mkdir rm rmdir mv ln stat pwd grep echo env chmod".split()
PASSWD = b"root:x:0:0::/root:/bin/sh\nme:x:1234:1234::/home/me:/bin/sh\n"


def system(*more):
    """A small system in two layers: the second takes something of the first away."""
    program = Path(busybox()).read_bytes()
    below = layer(
        entry("bin"),
        entry("bin/busybox", program, mode=0o755),
        *(entry(f"bin/{name}", b"", link="busybox") for name in APPLETS),
        entry("etc"),
        entry("etc/passwd", PASSWD),
        entry("etc/hosts", b"mine\n"),
        entry("tmp", mode=0o1777),
        entry("home/me", uid=1234, gid=1234),
        entry("data"),
        entry("data/old", b"old"),
        entry("gone", b"gone"),
        entry("other", b"other", mode=0o600, uid=77),
    )
    above = layer(entry(".wh.gone", b""), entry("data/.wh..wh..opq", b""), entry("data/new", b"new"), *more)
    return below, above


def run(store, *arguments, image="system", flags=()):
    return store.caller.run(
        "--image",
        image,
        *flags,
        "--",
        *arguments,
        env=store.caller.environment(ROLLBOX_STORE=str(store.path)),
    )


@pytest.fixture
def system_store(caller):
    """A store with that system."""
    found = Store(caller)
    found.bring("system", *system())
    return found
