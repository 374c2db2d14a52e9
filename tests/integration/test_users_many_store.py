# SPDX-License-Identifier: Apache-2.0
"""The store of an ordinary user who has sandboxes of many users: files of the user's range of ids,
and nothing left of them at the end."""

import json
import os
import signal
import subprocess

import pytest
from archives import busybox, configuration, entry, layer
from harness import binaries, pidfds, until, wait_gone
from image_stores import Store
from owned_stores import bring, foreign_files, leftovers, run, users


@pytest.fixture(params=users(), ids=repr)
def store(request):
    found = Store(request.param)
    yield found
    assert leftovers(found) == []


def test_copies_with_owners_are_made_once_and_only_for_many_users(store):
    bring(store)
    one = store.caller.run(
        "--image",
        "system",
        "--",
        "/bin/cat",
        "/home/alice/secret",
        env=store.caller.environment(ROLLBOX_STORE=str(store.path)),
    )
    assert one.stdout == "hers" and len(os.listdir(store.path / "layers")) == 1
    for _ in range(2):
        assert (
            run(
                store, "stat -c %u:%g:%a /home/alice/secret; su alice -c 'cat /home/alice/secret'"
            ).stdout
            == "1000:1000:600\nhers"
        )
    assert len(os.listdir(store.path / "layers")) == 2
    one = store.caller.run(
        "--image",
        "system",
        "--",
        "/bin/cat",
        "/home/alice/secret",
        env=store.caller.environment(ROLLBOX_STORE=str(store.path)),
    )
    assert one.stdout == "hers"


def test_gc_keeps_copies_of_images_and_removes_those_of_none(store):
    bring(store)
    assert run(store, "true").exit_code == 0 and foreign_files(store)
    assert store.json("store", "gc")["removed_layers"] == 0
    assert store.json("store", "fsck")["damaged"] == []
    store.json("image", "rm", "system")
    assert store.json("store", "gc")["removed_layers"] == 2 and foreign_files(store) == []


def test_copy_that_a_killed_process_left_is_removed(store):
    bring(store)
    env = store.caller.environment(ROLLBOX_STORE=str(store.path), ROLLBOX_FAULT="meta_written")
    killed = store.caller.call(
        binaries() / "rollbox-store",
        "own",
        "--json",
        "--store",
        store.path,
        "--",
        "system",
        env=env,
    )
    assert killed.returncode == -signal.SIGKILL and foreign_files(store)
    store.json("store", "gc")
    assert foreign_files(store) == [] and os.listdir(store.path / "tmp") == []
    assert run(store, "id -u").stdout == "0\n"


def test_owners_hard_links_times_and_modes_are_those_of_the_image(store):
    bring(
        store,
        "system",
        entry("a", b"text", mode=0o6755, uid=5, gid=6, mtime=1234567),
        entry("b", b"", hard="a"),
        entry("shut", mode=0, uid=7),
        entry("shut/x", b"", mode=0, uid=8, gid=9),
        entry("far", b"", mode=0o4755, uid=100000, gid=70000),
    )
    result = run(store, "stat -c '%n %u:%g %a %h %Y' /a /b; stat -c '%n %u:%g %a' /shut /shut/x /far")
    assert result.stdout.splitlines() == [
        "/a 5:6 6755 2 1234567",
        "/b 5:6 6755 2 1234567",
        "/shut 7:0 0",
        "/shut/x 8:9 0",
        "/far 65534:65534 755",
    ], result


def test_set_user_id_program_of_the_image_works(store):
    with open(busybox(), "rb") as program:
        bring(store, "system", entry("setid"), entry("setid/su", program.read(), mode=0o4755))
    assert run(store, "su alice -c '/setid/su -c id'").stdout.startswith("uid=0")


def test_damaged_copy_is_named_and_made_again(store):
    bring(store)
    assert run(store, "true").exit_code == 0
    secret = next(path for path in foreign_files(store) if path.endswith("secret"))
    with open(secret, "w") as file:
        file.write("else")
    done = store.call("store", "fsck", "--json")
    assert done.returncode == 1 and len(json.loads(done.stdout)["damaged"]) == 1
    result = run(store, "cat /home/alice/secret")
    assert result.stdout == "hers" or result.error["code"] == "damaged"


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_private_files_on_the_disk_are_removed_with_the_engine(store, how):
    bring(store)
    home = store.caller.directory()
    env = store.caller.environment(ROLLBOX_STORE=str(store.path), ROLLBOX_SOCKET=str(home / "socket"))

    def rollbox(*arguments):
        return store.caller.call(binaries() / "rollbox", *arguments, env=env)

    assert rollbox("engine", "start", "--background").returncode == 0
    try:
        made = rollbox("create", "--name", "box", "--users", "many", "--image", "system", "--disk-at", "store")
        assert made.returncode == 0, made.stderr
        script = "mkdir /opt; echo x > /opt/f; chown -R alice /opt; chmod 0 /opt; stat -c %u /opt"
        assert rollbox("exec", "box", "--", "/bin/sh", "-c", script).stdout == b"1000\n"
        assert rollbox("snapshot", "box").returncode == 0
        kid = rollbox("fork", "box").stdout.decode().strip()
        assert rollbox("exec", kid, "--", "/bin/stat", "-c", "%u %a", "/opt").stdout == b"1000 0\n"
        assert any("/boxes/" in path for path in foreign_files(store))
        if how == "killed":
            status = json.loads(rollbox("engine", "status", "--json").stdout)
            engine = pidfds([status["pid"]])
            os.kill(status["pid"], signal.SIGKILL)
            wait_gone(engine)
    finally:
        rollbox("engine", "stop")
    until(lambda: not list((store.path / "boxes").iterdir()))  # the janitor's work
