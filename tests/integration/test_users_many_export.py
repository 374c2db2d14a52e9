# SPDX-License-Identifier: Apache-2.0
"""Files of sandboxes of many users in snapshot files: owners, set-id bits and capabilities are the
same after an export and an import, by root and by an ordinary user."""

import pytest
from harness import binaries
from many_users import plain_callers


@pytest.fixture(params=plain_callers(), ids=repr)
def rollbox(request, monkeypatch):
    """The command line with an engine and a store of the test's own."""
    caller = request.param
    home = caller.directory()
    env = caller.environment(ROLLBOX_STORE=str(home / "store"), ROLLBOX_SOCKET=str(home / "socket"))

    def rollbox(*words, status=0):
        done = caller.call(binaries() / "rollbox", *words, env=env)
        assert done.returncode == status, done
        return (done.stdout if status == 0 else done.stderr).decode()

    rollbox.home = home
    rollbox("engine", "start", "--background")
    yield rollbox
    rollbox("engine", "stop")


MAKE = """
mkdir -m 2770 /tmp/team; chown 0:50 /tmp/team; echo a > /tmp/a; mkdir -m 700 /tmp/alices
echo secret > /tmp/alices/file; chmod 600 /tmp/alices/file; chown -R 1000:1001 /tmp/alices
cp /bin/true /tmp/setid; chown 1000 /tmp/setid; chmod 4755 /tmp/setid
ln /tmp/a /tmp/hard; ln -s a /tmp/link; chown 65534:7 /tmp/a
python3 -c 'import os; os.setxattr("/tmp/setid", "security.capability", b"\\1\\0\\0\\2\\0\\4" + bytes(14))'
"""
LOOK = """
cd /tmp; stat -c '%n %u:%g %a' a alices alices/file hard setid team; stat -c %h a; readlink link; cat alices/file
python3 -c 'import os; print(os.getxattr("/tmp/setid", "security.capability")[4:8].hex())'
"""
SEEN = """\
a 65534:7 644
alices 1000:1001 700
alices/file 1000:1001 600
hard 65534:7 644
setid 1000:0 4755
team 0:50 2770
2
a
secret
00040000
"""


def sh(rollbox, name, script):
    return rollbox("exec", name, "--", "sh", "-c", script)


def create(rollbox, name, *flags):
    rollbox("create", "--name", name, "--users", "many", *flags)


def export(rollbox, box, name):
    file = rollbox.home / f"{name}.snapshot"
    rollbox("export", box, file)
    rollbox("import", "--name", name, file)


def test_owners_are_the_same_after_export_and_import(rollbox):
    create(rollbox, "box")
    sh(rollbox, "box", MAKE)
    assert sh(rollbox, "box", LOOK) == SEEN
    export(rollbox, "box", "one")
    create(rollbox, "again", "--image", "snapshot:one")
    assert sh(rollbox, "again", LOOK) == SEEN
    # Once more, with changes to both layers.
    sh(rollbox, "again", "chown 1234:1235 /tmp/alices; touch /tmp/new; chown 77 /tmp/new")
    export(rollbox, "again", "two")
    create(rollbox, "third", "--image", "snapshot:two")
    changed = SEEN.replace("alices 1000:1001", "alices 1234:1235")
    assert sh(rollbox, "third", LOOK + "stat -c %u new") == changed + "77\n"
    assert " 0 damaged" in rollbox("store", "fsck")


def test_layers_that_differ_in_owners_alone_are_two(rollbox):
    for owner in ("1", "2"):
        create(rollbox, f"box{owner}")
        sh(rollbox, f"box{owner}", f"touch -d @0 /tmp/f /tmp; chown {owner} /tmp/f; touch -d @0 /tmp")
        export(rollbox, f"box{owner}", f"of{owner}")
    for owner in ("1", "2"):
        create(rollbox, f"again{owner}", "--image", f"snapshot:of{owner}")
        assert sh(rollbox, f"again{owner}", "stat -c %u /tmp/f") == f"{owner}\n"


def test_snapshots_are_collected_with_their_copies(rollbox):
    create(rollbox, "box")
    sh(rollbox, "box", MAKE)
    export(rollbox, "box", "one")
    create(rollbox, "again", "--image", "snapshot:one")
    rollbox("store", "gc")
    assert sh(rollbox, "again", LOOK) == SEEN
    rollbox("rm", "again")
    rollbox("engine", "stop")
    rollbox("image", "rm", "snapshot:one")
    rollbox("store", "gc")
    assert not list((rollbox.home / "store" / "layers").iterdir())
    rollbox("engine", "start", "--background")
