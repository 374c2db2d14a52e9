# SPDX-License-Identifier: Apache-2.0
"""Sandboxes that have an image, as images: by `rollbox image commit`, and by an export to a file
that another store imports. Owners, modes, attributes, links, deletions and the configuration stay."""

import json
import os
import shutil
import subprocess

import pytest
from archives import configuration, entry, layer
from harness import binaries
from image_stores import Store
from many_users import plain_callers, system_entries
from registries import registry  # noqa: F401

CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")  # net_raw, revision 2
CONFIG = {
    "Env": ["PATH=/bin", "NAME=value"],
    "Cmd": ["/bin/pwd"],
    "Entrypoint": ["/bin/env"],
    "WorkingDir": "/data",
    "User": "alice",
    "Labels": {"k": "v"},
}
BASE = layer(
    *system_entries(),
    entry("data", uid=1000, gid=1000),
    entry("data/gone", b"gone"),
    entry("data/opaque"),
    entry("data/opaque/old", b"old"),
    entry("data/changed", b"before", uid=1001, gid=1001, mode=0o600),
)
MORE = layer(
    entry("capable", b"program", mode=0o755, xattrs={"security.capability": CAPABILITY.decode("latin-1")}),
    entry("attributes", b"", xattrs={"user.key": "value"}),
    entry("linked", b"one"),
    entry("hard", b"", hard="linked"),
    entry("setid/.wh.su", b""),
)
MAKE = """
rm /data/gone; rm -r /data/opaque; mkdir /data/opaque; echo new > /data/opaque/new
echo after >> /data/changed; chmod 640 /data/changed
cp /bin/busybox /data/setid; chown 1000:1001 /data/setid; chmod 6755 /data/setid
mkdir -m 2770 /data/team; chown 0:50 /data/team; echo a > /data/a; chown 65534:7 /data/a
ln /data/a /data/b; ln -s a /data/link
"""
LOOK = """
stat -c '%n %u:%g %a' /data /data/* /high /home/alice /linked | grep -v link; stat -c %h /data/a /linked
echo $(ls /setid) $(ls /data/opaque) $(cat /data/changed /linked /home/alice/secret); ls -l /data/link | grep -c 'a$'
"""
SEEN = """\
/data 1000:1000 755
/data/a 65534:7 644
/data/b 65534:7 644
/data/changed 1001:1001 640
/data/opaque 0:0 755
/data/setid 1000:1001 6755
/data/team 0:50 2770
/high 65533:65533 644
/home/alice 1000:1000 700
2
2
new beforeafter onehers
1
"""


class Machine(Store):
    """A store with an engine."""

    def __init__(self, caller):
        super().__init__(caller)
        self.env = caller.environment(
            ROLLBOX_STORE=str(self.path), ROLLBOX_SOCKET=str(self.home / "socket")
        )

    def __enter__(self):
        self.rollbox("engine", "start", "--background")
        return self

    def __exit__(self, *_):
        self.rollbox("engine", "stop")
        for row in self.json("image", "ls")["images"]:
            self.json("image", "rm", row["name"])
        self.json("store", "gc")
        left = [str(path) for part in ("layers", "tmp", "trash") for path in (self.path / part).glob("*")]
        assert left == []

    def rollbox(self, *words, status=0):
        done = self.caller.call(binaries() / "rollbox", *words, env=self.env)
        assert done.returncode == status, (words, done.stdout, done.stderr)
        return (done.stdout or done.stderr if status else done.stdout).decode()

    def sh(self, name, script, *flags):
        return self.rollbox("exec", *flags, name, "--", "/bin/sh", "-c", script)

    def make(self, name="box", image="base", users="many"):
        flags = ["--users", "many"] if users == "many" else []
        self.rollbox("create", "--name", name, *flags, "--image", image)

    def shows(self, image):
        """What a sandbox of many users sees in it."""
        self.make("look", image)
        seen = self.sh("look", LOOK, "--user", "root")
        attributes = self.sh("look", "cat /proc/self/status | grep -c CapEff")
        self.rollbox("rm", "look")
        assert attributes == "1\n"
        return seen

    def config(self, image):
        return self.json("image", "show", image)["oci"]["config"]


@pytest.fixture(params=plain_callers(), ids=repr)
def machine(request):
    with Machine(request.param) as made:
        layers = [BASE, MORE]
        made.bring("base", *layers, config={**configuration(layers), "config": CONFIG})
        yield made


@pytest.fixture
def other(machine):
    with Machine(machine.caller) as made:
        yield made


def changed(machine):
    machine.make()
    machine.sh("box", MAKE, "--user", "root")
    assert machine.sh("box", LOOK, "--user", "root") == SEEN


def attributes(machine, image):
    """Of files in the layers of an image: user.key, and a capability that is in effect or recorded."""
    found = {}
    for one in machine.layers(image):
        for name in ("attributes", "capable"):
            path = machine.file(one, name)
            if path.exists():
                found[name] = {key: os.getxattr(path, key) for key in os.listxattr(path)}
    capability = found["capable"]
    return found["attributes"]["user.key"], [
        value for key, value in capability.items() if key.endswith("capability")
    ]


def test_commit_makes_an_image_of_the_same_files_and_configuration(machine):
    changed(machine)
    done = json.loads(machine.rollbox("image", "commit", "--json", "box", "made"))
    assert (done["name"], done["kind"], done["layers"], done["new_layers"]) == ("made", "image", 3, 1)
    assert machine.layers("made")[:2] == machine.layers("base")
    assert machine.shows("made") == SEEN
    assert machine.config("made") == machine.config("base") == CONFIG
    assert "dev" not in os.listdir(machine.file(machine.layers("made")[2], "."))
    # Of a snapshot, and of a sandbox that stands on that image.
    machine.make("next", "made")
    snapshot = machine.rollbox("snapshot", "next").strip()
    machine.sh("next", "echo later > /data/later", "--user", "root")
    machine.rollbox("image", "commit", "--from", snapshot, "next", "same")
    assert machine.shows("same") == SEEN and machine.layers("same") == machine.layers("made")
    machine.rollbox("image", "commit", "next", "later")
    assert "/data/later 0:0 644" in machine.shows("later")
    machine.clean()


def test_export_and_import_on_another_store_are_equal(machine, other):
    changed(machine)
    file = machine.home / "box.snapshot"
    machine.rollbox("export", "box", file)
    done = json.loads(other.rollbox("import", "--json", "--name", "copy", file))
    assert (done["name"], done["kind"], done["layers"]) == ("copy", "image", 3)
    assert other.shows("copy") == SEEN
    assert other.config("copy") == CONFIG
    assert attributes(other, "copy") == attributes(machine, "base") == (b"value", [CAPABILITY])
    layers = other.layers("copy")
    again = json.loads(other.rollbox("import", "--json", "--name", "copy", file))
    assert (again["layers"], other.layers("copy")) == (3, layers)
    other.clean()


def test_changes_of_a_sandbox_of_one_user_belong_to_that_user(machine, other):
    machine.make(users="one")
    machine.sh("box", "echo x > /data/mine; rm /data/gone")
    file = machine.home / "box.snapshot"
    machine.rollbox("export", "box", file)
    other.rollbox("import", "--name", "copy", file)
    machine.rollbox("image", "commit", "box", "made")
    for store, image in ((machine, "made"), (other, "copy")):
        store.make("look", image)
        seen = store.sh("look", "stat -c %u /data/mine; stat -c %u:%a /home/alice; ls /data", "--user", "root")
        assert seen == "1000\n1000:700\nchanged\nmine\nopaque\n"
        assert store.config(image) == CONFIG


def test_committed_image_is_pushed_and_read_by_others(machine, other, registry):  # noqa: F811
    changed(machine)
    machine.rollbox("image", "commit", "box", "made")
    reference = registry.reference("made")
    machine.rollbox("image", "push", "made", reference)
    other.rollbox("image", "pull", "--name", "copy", reference)
    assert other.shows("copy") == SEEN
    if not shutil.which("skopeo"):
        pytest.skip("needs skopeo")
    shown = subprocess.run(
        ["skopeo", "inspect", "--tls-verify=false", reference], capture_output=True, check=True
    )
    assert len(json.loads(shown.stdout)["Layers"]) == 3
    machine.rollbox("image", "export", "made", f"{machine.home}/made.tar")
    archive = f"{machine.home}/docker.tar"
    subprocess.run(
        ["skopeo", "copy", "--quiet", f"oci-archive:{machine.home}/made.tar", f"docker-archive:{archive}:made:1"],
        check=True,
    )
    machine.caller.own(archive)
    other.rollbox("image", "import", "--name", "docker", archive)
    assert other.shows("docker") == SEEN
    assert {**other.config("docker"), **CONFIG} == other.config("docker")


def test_sandbox_without_an_image_is_no_image(machine):
    machine.rollbox("create", "--name", "plain")
    error = json.loads(machine.rollbox("image", "commit", "--json", "plain", "made", status=125))["error"]
    assert error["code"] == "invalid_argument" and "has no image" in error["message"]
    error = json.loads(machine.rollbox("image", "commit", "--json", "none", "made", status=125))["error"]
    assert error["code"] == "not_found"
    machine.make()
    error = json.loads(machine.rollbox("image", "commit", "--json", "box", "../made", status=125))["error"]
    assert error["code"] == "invalid_argument" and "is not a name" in error["message"]
    machine.clean()


def test_damaged_export_of_a_sandbox_with_an_image_is_refused(machine, other):
    changed(machine)
    file = machine.home / "box.snapshot"
    machine.rollbox("export", "box", file)
    text = subprocess.run(["zstd", "-dcq", file], capture_output=True, check=True).stdout
    text = text.replace(b"beforeafter", b"beforeAFTER")
    damaged = machine.home / "damaged"
    damaged.write_bytes(text)
    machine.caller.own(damaged)
    error = json.loads(other.rollbox("import", "--json", "--name", "copy", damaged, status=125))["error"]
    assert error["code"] == "damaged", error
    other.clean()


def test_export_to_a_pipe_has_the_changes_and_needs_the_image(machine, other):
    changed(machine)
    script = f"{binaries()}/rollbox export box /dev/stdout | cat > {machine.home}/changes"
    done = machine.caller.call("sh", "-c", script, env=machine.env)
    assert done.returncode == 0, done.stderr
    file = machine.home / "changes"
    machine.rollbox("import", "--name", "copy", file)
    assert machine.layers("copy")[:2] == machine.layers("base") and machine.shows("copy") == SEEN
    error = json.loads(other.rollbox("import", "--json", "--name", "copy", file, status=125))["error"]
    assert error["code"] == "not_found" and "export it to a file" in error["message"]
    other.clean()
