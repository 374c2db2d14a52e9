# SPDX-License-Identifier: Apache-2.0
"""A full disk at pushes, commits, imports, copies with owners and volumes, and registries that fail
during a push: one clear error, nothing half done, and the next attempt works."""

import json
import os
import subprocess

import pytest
from archives import configuration, entry, layer
from harness import Caller, binaries, skip
from image_stores import Store, system
from many_users import plain_callers, system_entries
from registries import closed_registry, registry  # noqa: F401

ROOM, MORE_ROOM = "12M", "60M"
BIG = layer(entry("big", os.urandom(5 << 20)))


class SmallStore(Store):
    """A caller's store on a file system of its own, in a mount namespace of its own."""

    def __init__(self, caller=Caller("root", 0)):
        super().__init__(caller)
        self.root = Caller("root", 0)
        self.disk = self.home / "disk"
        self.disk.mkdir()
        self.path = self.disk / "store"
        hold = f"mount -t tmpfs -o size={ROOM} none {self.disk} && mkdir -m 700 {self.path}"
        hold += f" && chown {caller.uid}:{caller.uid} {self.path} && echo ready && read end"
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", hold]
        self.holder = self.root.popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.holder.stdout.readline() != b"ready\n":
            skip("needs mount: a tmpfs cannot be mounted here")

    def inside(self, *words):
        return self.root.call("nsenter", "--mount", f"--target={self.holder.pid}", *words)

    def call(self, *words, **options):
        env = [f"ROLLBOX_STORE={self.path}", f"ROLLBOX_SOCKET={self.home}/socket"]
        env += [f"{key}={value}" for key, value in self.caller.environment().items()]
        identity = ["setpriv", f"--reuid={self.caller.uid}", f"--regid={self.caller.uid}", "--clear-groups"]
        who = identity if self.caller.uid else []
        return self.inside(*who, "env", "-i", *env, binaries() / "rollbox", *words)

    def works(self, *words):
        done = self.call(*words)
        assert done.returncode == 0, done
        return done.stdout.decode()

    def fails(self, *words):
        """The one line of the error, for want of room; no directory of work is left."""
        done = self.call(*words, "--json")
        assert done.returncode == 125, done
        error = json.loads(done.stdout or done.stderr)["error"]
        assert error["code"] == "resource_exhausted" and "No space left on device" in error["message"], error
        assert "\n" not in error["message"]
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
    small.fails("image", "push", "--compression=none", "big", reference)
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


def with_engine(caller):
    """A small store with the image `system`, and an engine that uses it."""
    made = SmallStore(caller)
    layers = [layer(*system_entries())]
    config = configuration(layers)
    config["config"].update(User="", WorkingDir="/", Entrypoint=[])
    made.bring("system", *layers, config=config)
    made.works("engine", "start", "--background")
    yield made
    made.call("engine", "stop")
    for row in made.json("image", "ls")["images"]:
        made.json("image", "rm", row["name"])
    made.json("store", "gc")
    left = [made.inside("ls", "-A", made.path / part).stdout for part in ("layers", "tmp", "trash")]
    made.close()
    assert left == [b"", b"", b""]


@pytest.fixture(params=plain_callers(), ids=repr)
def machine(request):
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system")
    yield from with_engine(request.param)


def make_changed(machine):
    """A sandbox with more new files than the full disk has room for."""
    machine.works("create", "--name", "box", "--image", "system")
    machine.works("exec", "box", "--", "/bin/sh", "-c", "head -c 3000000 /dev/urandom > /new; echo last > /last")
    return machine.works("exec", "box", "--", "/bin/cat", "/last")


def test_commit_on_a_full_disk_makes_no_image_and_works_with_room(machine):
    last = make_changed(machine)
    machine.fill()
    machine.fails("image", "commit", "box", "mine")
    assert [row["name"] for row in machine.json("image", "ls")["images"]] == ["system"]
    assert machine.works("exec", "box", "--", "/bin/cat", "/last") == last
    machine.make_room()
    machine.json("image", "commit", "box", "mine")
    assert machine.works("run", "--image", "mine", "--", "/bin/cat", "/last") == last


@pytest.mark.parametrize("live", [[], ["--live"]], ids=["files", "live"])
def test_import_on_a_full_disk_leaves_nothing_and_works_with_room(machine, live):
    last = make_changed(machine)
    file = machine.home / "box.export"
    machine.works("export", *live, "box", file)
    machine.works("rm", "box")
    machine.fill()
    trust = ["--trust"] if live else []  # its policy grants the image
    machine.fails("import", *trust, "--name", "mine", file)
    assert [row["name"] for row in machine.json("image", "ls")["images"]] == ["system"]
    assert json.loads(machine.works("ps", "--json"))["sandboxes"] == []
    machine.make_room()
    machine.json("import", *trust, "--name", "mine", file)
    if live:
        assert machine.works("exec", "mine", "--", "/bin/cat", "/last") == last
        machine.works("rm", "mine")
    else:
        assert machine.works("run", "--image", "mine", "--", "/bin/cat", "/last") == last
        machine.json("image", "rm", "mine")


@pytest.fixture(params=[one for one in plain_callers() if one.uid], ids=repr)
def owner(request):
    """An ordinary user, whose sandboxes of many users need copies of layers with owners."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system")
    yield from with_engine(request.param)


def test_first_use_of_an_image_on_a_full_disk_fails_and_works_with_room(owner):
    layers = [layer(*system_entries(), entry("big", os.urandom(3 << 20), uid=1000, gid=1000))]
    config = configuration(layers)
    config["config"].update(User="", WorkingDir="/", Entrypoint=[])
    owner.bring("big", *layers, config=config)
    before = owner.inside("ls", owner.path / "layers").stdout
    owner.fill()
    many = ["--users", "many", "--image", "big"]
    owner.fails("create", "--name", "box", *many)
    assert owner.inside("ls", owner.path / "layers").stdout == before
    assert owner.works("run", "--image", "system", "--", "/bin/echo", "fine") == "fine\n"
    owner.make_room()
    owner.works("create", "--name", "box", *many)
    assert owner.works("exec", "box", "--", "/bin/stat", "-c", "%u %s", "/big") == f"1000 {3 << 20}\n"


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
