# SPDX-License-Identifier: Apache-2.0
"""Owners of files that a client writes into a sandbox of many users, and a grader that the agent's
user cannot touch."""

import os

import pytest
from harness import Caller, binaries

from rollbox import FeatureMissing, InvalidArgument, PathDenied, Policy, Sandbox

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it is about sandboxes that root runs")


@pytest.fixture
def box():
    with Sandbox(Policy(users="many")) as box:
        box.exec("chmod 1777 /tmp; mkdir -m 700 /tmp/closed", check=True)
        yield box


def owner(box, *paths):
    return box.exec(["stat", "-c", "%u:%g", *paths], text=True, check=True).stdout.split()


def test_written_file_has_its_owner(box):
    box.write_file("/tmp/a", "1")
    box.write_file("/tmp/new/b", "2", owner="1001:50")
    box.write_file("/tmp/closed/c", "3", owner="1001")
    assert owner(box, "/tmp/a", "/tmp/new", "/tmp/new/b", "/tmp/closed/c") == ["0:0", "1001:50", "1001:50", "1001:0"]


def test_file_is_written_with_the_rights_of_its_user(box):
    """A link of the user's does not lead root's hand anywhere."""
    box.write_file("/tmp/mine", "1", user="1001:1001")
    assert owner(box, "/tmp/mine") == ["1001:1001"]
    box.exec(["ln", "-s", "/tmp/closed", "/tmp/link"], user=1001, check=True)
    for path in ("/tmp/closed/x", "/tmp/link/x", "/etc/x"):
        with pytest.raises(PathDenied):
            box.write_file(path, "2", user=1001)


def test_uploaded_tree_has_its_owner(box, tmp_path):
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "below" / "file").write_text("1")
    (tmp_path / "tree" / "link").symlink_to("below")
    box.upload(tmp_path / "tree", "/tmp/tree", owner="1001:1002")
    assert owner(box, "/tmp/tree", "/tmp/tree/below", "/tmp/tree/below/file", "/tmp/tree/link") == ["1001:1002"] * 4
    box.upload(tmp_path / "tree", "/tmp/user", user=1003)
    assert owner(box, "/tmp/user/below/file") == ["1003:0"]
    with pytest.raises(PathDenied):
        box.upload(tmp_path / "tree", "/tmp/closed/tree", user=1003)


def test_unknown_owner_is_refused_by_name(box):
    with pytest.raises(InvalidArgument, match='no owner "nosuch"'):
        box.write_file("/tmp/x", "1", owner="nosuch")
    with pytest.raises(InvalidArgument, match="must be USER"):
        box.write_file("/tmp/x", "1", owner="a b")
    with Sandbox() as one, pytest.raises(FeatureMissing, match="users many"):
        one.write_file("/tmp/x", "1", owner="1000")


def test_user_group_and_groups_of_a_command(box):
    script = ["sh", "-c", "id -u; id -g; id -G"]
    assert box.exec(script, user=1001, group=50, groups=[60, 70], text=True).stdout.split("\n")[
        :3
    ] == ["1001", "50", "50 60 70"]
    assert box.exec(script, user=1001, groups=[60], text=True).stdout.split("\n")[2] == "0 60"
    with pytest.raises(InvalidArgument):
        box.exec(script, group=50)


def test_grader_is_out_of_the_agents_reach(box):
    """The verifier runs as a user of its own: the agent's processes can neither signal nor trace
    it, nor change its files."""
    agent = "import os, signal, time\nwhile True:\n for pid in filter(str.isdigit, os.listdir('/proc')):\n  if int(pid) not in (1, os.getpid()):\n   try: os.kill(int(pid), 9)\n   except OSError: pass\n time.sleep(0.001)"
    with box.spawn(["python3", "-c", agent], user=1001):
        box.write_file("/tmp/grader/check", "echo verified", mode=0o600, owner="1002")
        result = box.exec("for i in 1 2 3; do sh /tmp/grader/check; done", user=1002, text=True)
        assert result.stdout == "verified\n" * 3, result
        assert box.exec(["sh", "-c", "echo > /tmp/grader/check"], user=1001).exit_code != 0
        grade = box.grade({"/tmp/v/check": "id -u"}, "sh /tmp/v/check", outputs=["/tmp/out"], user=1002, text=True)
        assert grade.stdout == "1002\n", grade


def test_cp_gives_files_to_their_owner(tmp_path):
    root = Caller("root", 0)
    env = root.environment(ROLLBOX_SOCKET=str(tmp_path / "socket"), ROLLBOX_STORE=str(tmp_path / "store"))

    def rollbox(*arguments, **options):
        return root.call(binaries() / "rollbox", *arguments, env=env, **options)

    assert rollbox("engine", "start", "--background").returncode == 0
    try:
        assert rollbox("create", "--name", "box", "--users", "many").returncode == 0
        (tmp_path / "file").write_text("1")
        assert rollbox("cp", "--chown", "1001:50", tmp_path / "file", "box:/tmp/file").returncode == 0
        assert rollbox("cp", "--chown", "1002", "-", "box:/tmp/stream", input=b"2").returncode == 0
        done = rollbox("exec", "box", "--", "stat", "-c", "%u:%g", "/tmp/file", "/tmp/stream")
        assert done.stdout.split() == [b"1001:50", b"1002:0"]
        refused = rollbox("cp", "--chown", "1", "box:/tmp/file", tmp_path / "out")
        assert refused.returncode == 125 and b"--chown" in refused.stderr
    finally:
        rollbox("engine", "stop")
