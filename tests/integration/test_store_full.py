# SPDX-License-Identifier: Apache-2.0
"""A full disk at pushes, commits and volumes, and registries that fail during a push: one clear error,
nothing half done, and the next attempt works."""

import json
import os
import subprocess

import pytest
from archives import configuration, entry, layer
from harness import Caller, binaries, skip
from image_stores import Store, system
from registries import closed_registry, registry  # noqa: F401

ROOM, MORE_ROOM = "12M", "60M"
BIG = layer(entry("big", os.urandom(5 << 20)))


class SmallStore(Store):
    """A store of root's on a file system of its own, in a mount namespace of its own."""

    def __init__(self):
        super().__init__(Caller("root", 0))
        self.disk = self.home / "disk"
        self.disk.mkdir()
        self.path = self.disk / "store"
        hold = f"mount -t tmpfs -o size={ROOM} none {self.disk} && mkdir -m 700 {self.path} && echo ready && read end"
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", hold]
        self.holder = self.caller.popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.holder.stdout.readline() != b"ready\n":
            skip("needs mount: a tmpfs cannot be mounted here")

    def inside(self, *words):
        env = self.caller.environment(ROLLBOX_STORE=str(self.path))
        return self.caller.call("nsenter", "--mount", f"--target={self.holder.pid}", *words, env=env)

    def call(self, *words, **options):
        return self.inside(binaries() / "rollbox", *words)

    def fails(self, *words):
        """The one line of the error, for want of room; no directory of work is left."""
        done = self.call(*words, "--json")
        assert done.returncode == 125 and done.stdout == b"", done
        error = json.loads(done.stderr)["error"]
        assert error["code"] == "resource_exhausted" and "No space left on device" in error["message"], error
        assert self.inside("ls", "-A", self.path / "tmp").stdout == b""
        return error["message"]

    def fill(self):
        self.inside("sh", "-c", f"cat /dev/zero > {self.disk}/fill")

    def make_room(self):
        assert self.inside("mount", "-o", f"remount,size={MORE_ROOM}", self.disk).returncode == 0

    def volumes(self):
        return [row["name"] for row in self.json("volume", "ls")["volumes"]]

    def run(self, script, *flags):
        done = self.call("run", "--json", *flags, "--", "/bin/sh", "-c", script)
        return json.loads(done.stdout)

    def close(self):
        self.holder.communicate(b"\n")


@pytest.fixture
def small():
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system")
    made = SmallStore()
    yield made
    made.close()


def test_push_on_a_full_disk_fails_and_works_with_room(small, registry):  # noqa: F811
    registry.put("source", "1", BIG)
    assert small.call("image", "pull", "--name", "big", registry.reference("source")).returncode == 0
    reference = registry.reference("pushed")
    small.fill()
    message = small.fails("image", "push", "--compression=none", "big", reference)
    assert "\n" not in message
    assert not [path for path in registry.gets("manifests") if "pushed" in path]
    small.make_room()
    assert small.json("image", "push", "--compression=none", "big", reference)["layers"] == 1


def test_volume_on_a_full_disk_is_made_completely_or_not_at_all(small):
    small.json("volume", "create", "data")
    assert small.run("head -c 1M /dev/zero > /data/f", "--volume", "data:/data")["exit_code"] == 0
    small.fill()
    small.fails("volume", "create", "other")
    small.fails("volume", "snapshot", "--name", "copy", "data")
    assert small.volumes() == ["data"]
    small.make_room()
    small.json("volume", "create", "other")
    small.json("volume", "snapshot", "--name", "copy", "data")
    assert sorted(small.volumes()) == ["copy", "data", "other"]
    assert small.run("stat -c %s /data/f", "--volume", "copy:/data")["stdout"] == "1048576\n"


def test_writes_to_a_volume_on_a_full_disk_fail_inside(small):
    small.json("volume", "create", "data")
    write = "cat /dev/zero > /data/f; echo $?; rm /data/f; echo fine > /data/g"
    done = small.run(write, "--volume", "data:/data")
    assert (done["outcome"], done["exit_code"], done["stdout"]) == ("exit", 0, "1\n"), done
    assert "No space left on device" in done["stderr"]
    small.fill()
    done = small.run("cat /data/g; echo more >> /data/g", "--volume", "data:/data")
    assert done["stdout"] == "fine\n"
    small.make_room()
    assert small.run("echo again > /data/h; cat /data/h", "--volume", "data:/data")["stdout"] == "again\n"


def test_private_copy_of_a_volume_on_a_full_disk_leaves_the_volume(small):
    small.json("volume", "create", "data")
    small.run("head -c 3M /dev/zero > /data/f", "--volume", "data:/data")
    flags = ["--volume", "data:/data:private", "--disk-at", "store"]
    done = small.run("cat /dev/zero >> /data/f; echo $?; rm /data/f; ls /data; echo end", *flags)
    assert done["outcome"] == "exit" and done["stdout"].endswith("end\n"), done
    assert "No space left on device" in done["stderr"]
    small.make_room()
    done = small.run("stat -c %s /data/f; echo x >> /data/f; stat -c %s /data/f", *flags)
    assert done["stdout"] == f"{3 << 20}\n{(3 << 20) + 2}\n"
    assert small.inside("ls", "-A", small.path / "boxes").stdout == b""


@pytest.fixture
def store():
    return Store(Caller("root", 0) if os.geteuid() == 0 else Caller("user", os.geteuid()))


@pytest.mark.parametrize("fault", ["close", 500, 403, 507])
@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT"])
def test_registry_that_fails_in_a_push_is_named_and_the_next_push_works(store, registry, method, fault):  # noqa: F811
    layers = [BIG, *system()]
    store.bring("app", *layers, config=configuration(layers))
    reference = registry.reference("app")
    registry.fault = lambda asked, path: fault if asked == method else None
    done = store.call("image", "push", "--json", "app", reference)
    assert done.returncode == 125 and done.stdout == b"", done
    error = json.loads(done.stderr)["error"]
    assert error["code"] == ("path_denied" if fault == 403 else "io"), error
    assert registry.address in error["message"] and "\n" not in error["message"]
    store.clean()
    assert registry.gets("blobs") == []
    registry.fault = lambda asked, path: None
    assert store.json("image", "push", "app", reference)["layers"] == 3


def test_push_with_wrong_credentials_is_refused_and_leaves_nothing(store, closed_registry):  # noqa: F811
    layers = [*system()]
    store.bring("app", *layers, config=configuration(layers))
    creds = store.caller.write(store.home / "creds", "me:wrong\n", 0o600)
    words = ["image", "push", "--creds", creds, "app", closed_registry.reference("app")]
    assert "wrong" not in store.refused(*words, code="path_denied")
