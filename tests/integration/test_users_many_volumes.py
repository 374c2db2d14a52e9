# SPDX-License-Identifier: Apache-2.0
"""Volumes of sandboxes of many users, run by root and by an ordinary user, whose volumes have files
of the user's range of ids."""

import json

import pytest
from many_users import plain_callers


@pytest.fixture(params=plain_callers(), ids=repr)
def run(request, monkeypatch):
    """`rollbox run` with a volume `data` in a store of the test's own."""
    caller = request.param
    monkeypatch.setenv("ROLLBOX_STORE", str(caller.directory() / "store"))
    assert caller.rollbox("volume", "create", "data").returncode == 0

    def run(script, mode="", *flags, users="many", name="data"):
        options = ["--users", users, "--volume", f"{name}:/data{mode}", *flags]
        return caller.run(*options, "--", "sh", "-c", script)

    run.caller = caller
    run.volume = lambda *words: caller.rollbox("volume", *words)
    return run


WRITE = (
    "umask 022; echo roots > /data/a; mkdir -m 700 /data/d; echo hers > /data/d/b; "
    "chown -R 1000:1001 /data/d; ln /data/a /data/c; chown 65534:0 /data/a"
)
LOOK = "cd /data; stat -c '%n %u:%g %a' . a c d d/b; cat d/b"
OWNERS = ". 0:0 755\na 65534:0 644\nc 65534:0 644\nd 1000:1001 700\nd/b 1000:1001 644\nhers\n"


def test_owners_are_kept_between_sandboxes(run):
    assert run(WRITE).outcome == "exit"
    for mode in ("", ":ro", ":shared", ":private"):
        looked = run(LOOK, mode)
        assert looked.stdout == OWNERS, looked
    assert run("echo x > /data/a; rm -r /data/d; ls /data", ":private").stdout == "a\nc\n"
    assert "Read-only" in run("echo x > /data/a", ":ro").stderr
    assert run(LOOK).stdout == OWNERS


def test_volume_is_copied_measured_and_removed_with_its_owners(run):
    assert run(WRITE).outcome == "exit"
    shown = run.volume("inspect", "--json", "data")
    assert json.loads(shown.stdout)["files"] == 4, shown
    assert run.volume("snapshot", "data", "--name", "copy").returncode == 0
    assert run(LOOK, name="copy").stdout == OWNERS
    for name in ("data", "copy"):
        removed = run.volume("rm", name)
        assert removed.returncode == 0, removed
    assert json.loads(run.volume("ls", "--json").stdout)["volumes"] == []


def test_size_ends_the_writer(run):
    assert run.volume("create", "small", "--size", "1M").returncode == 0
    script = "while :; do head -c 100000 /dev/zero >> /data/f; done"
    result = run(script, name="small")
    assert (result.outcome, result.signal) == ("signal", 25), result


def test_root_of_the_volume_is_the_sandboxes_root_and_nobody_of_the_host(run):
    script = "cp /bin/sh /data/s; chmod 4755 /data/s; stat -c '%u %a' /data/s; "
    script += "setpriv --reuid 1000 --clear-groups /data/s -pc 'id -u'"
    assert run(script).stdout == "0 4755\n1000\n"


def test_volume_with_files_of_one_user_is_refused_by_name(run):
    if not run.caller.uid:
        pytest.skip("root's volumes serve both kinds of sandboxes")
    for first, second in (("one", "many"), ("many", "one")):
        name = f"of-{first}"
        assert run.volume("create", name).returncode == 0
        assert run("echo x > /data/f", users=first, name=name).outcome == "exit"
        refused = run("cat /data/f", users=second, name=name)
        assert refused.error["code"] == "conflict", refused
        assert f"has files of sandboxes with users {first}" in refused.error["message"], refused
        assert run("cat /data/f", users=first, name=name).stdout == "x\n"


def test_empty_volume_serves_the_first_kind_that_writes(run):
    for users in ("one", "many", "one", "many"):
        result = run("echo x > /data/f && rm /data/f && echo done", users=users)
        assert result.stdout == "done\n", result
