# SPDX-License-Identifier: Apache-2.0
"""Persistent volumes: files outlive sandboxes and engines, one writer at a time, a size that holds, and nothing in a
volume that a hostile guest leaves there reaches the host or another sandbox."""

import json
import os
import signal
import stat
import subprocess

import pytest

from conftest import BUILD
from harness import caller, command_line, descendants, until  # noqa: F401
from rollbox import Conflict, Engine, NotFound, Policy, PolicyInvalid, RollboxError, Sandbox
from stores import Shared, engine, store  # noqa: F401

MIB = 1 << 20


def volume(*words, status=0):
    done = subprocess.run([BUILD / "rollbox", "volume", words[0], "--json", *words[1:]], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout) if status == 0 else json.loads(done.stderr)["error"]


def at(path="/data", mode=None, **more):
    return Policy(volumes={"data": {"path": path, "mode": mode} if mode else path}, **more)


def init_of(box):
    """The sandbox's init, as a process of the host: the parent of a command that waits."""

    with box.spawn(["sh", "-c", "echo $$; exec sleep 1001"]) as waiting:
        waiting.stdout.readline()
        until(lambda: any(command_line(pid) == "sleep 1001" for pid in descendants(os.getpid())))
        (found,) = [pid for pid in descendants(os.getpid()) if command_line(pid) == "sleep 1001"]
        return int(open(f"/proc/{found}/stat").read().rsplit(")", 1)[1].split()[1])


@pytest.fixture
def data(store):
    volume("create", "data")
    return store / "volumes" / "data" / "1"


def test_files_outlive_the_sandbox_and_its_engine(data):
    for text in ("one", "two"):
        with Engine() as own, Sandbox(at(), engine=own) as box:
            box.exec(f"echo {text} >> /data/f", check=True)
    with Engine() as own, Sandbox(at("/elsewhere/deep"), engine=own) as box:
        assert box.exec("cat /elsewhere/deep/f").text == "one\ntwo\n"
    assert (data / "f").read_text() == "one\ntwo\n"


def test_volume_from_the_command_line(caller, monkeypatch):
    monkeypatch.setenv("ROLLBOX_STORE", str(caller.directory() / "store"))
    assert caller.rollbox("volume", "create", "data").returncode == 0
    assert caller.run("--volume", "data:/data", "--", "sh", "-c", "echo x > /data/f").outcome == "exit"
    done = caller.run("--volume", "data:/data:ro", "--", "sh", "-c", "cat /data/f; touch /data/g")
    assert done.stdout == "x\n" and "Read-only" in done.stderr
    assert (
        caller.run(
            "--volume", "data:/data:private", "--", "sh", "-c", "echo y > /data/f; cat /data/f"
        ).stdout
        == "y\n"
    )
    assert caller.run("--volume", "data:/data:shared", "--", "cat", "/data/f").stdout == "x\n"
    assert caller.rollbox("volume", "rm", "data").returncode == 0


def test_second_writer_is_refused(engine, data):
    with Sandbox(at(), engine=engine) as one:
        one.exec("echo 1 > /data/f", check=True)
        for mode in ("exclusive", "shared"):
            with pytest.raises(Conflict, match="volume data is in use"):
                Sandbox(at(mode=mode), engine=engine).run("true")
        with Engine() as other, pytest.raises(Conflict):
            Sandbox(at(), engine=other).run("true")
        assert volume("inspect", "data")["use"] == "exclusive"
        for mode in ("read-only", "private"):
            assert Sandbox(at(mode=mode), engine=engine).run("cat /data/f").text == "1\n"
    assert Sandbox(at(), engine=engine).run("cat /data/f").text == "1\n"


def test_shared_writers_write_at_once(engine, data):
    with (
        Sandbox(at(mode="shared"), engine=engine) as one,
        Engine() as other,
        Sandbox(at(mode="shared"), engine=other) as two,
    ):
        one.exec("echo 1 > /data/f", check=True)
        two.exec("echo 2 >> /data/f", check=True)
        assert one.exec("cat /data/f").text == "1\n2\n" and volume("inspect", "data")["use"] == "shared"
        with pytest.raises(Conflict, match="shared"):
            Sandbox(at(), engine=engine).run("true")


def test_fork_of_a_writer_is_refused_and_others_fork(engine, data):
    with Sandbox(at(), engine=engine) as box:
        box.exec("echo 1 > /data/f", check=True)
        with pytest.raises(Conflict, match="volume data"):
            box.fork()
        assert box.exec("cat /data/f").text == "1\n"
    with Sandbox(at(mode="shared"), engine=engine) as box:
        box.exec("exec sleep 1000 3>> /data/f & ", check=True)
        (child,) = box.fork(1)
        with child:
            child.exec("echo child >> /data/f", check=True)
        assert box.exec("cat /data/f").text == "1\nchild\n"
    with Sandbox(at(mode="private"), engine=engine) as box:
        box.exec("echo mine > /data/f", check=True)
        (child,) = box.fork(1)
        with child:
            child.exec("echo more >> /data/f", check=True)
            assert child.exec("cat /data/f").text == "mine\nmore\n" and box.exec("cat /data/f").text == "mine\n"
        assert [(change.change, change.path) for change in box.diff()] == [("M", "/data/f")]
    assert (data / "f").read_text() == "1\nchild\n"


def test_reset_and_hibernation_of_a_writer(engine, data):
    with Sandbox(at(), engine=engine) as box:
        box.exec("echo 1 > /data/f; echo 1 > /tmp/f", check=True)
        state = box.snapshot()
        box.exec("echo 2 > /data/f; echo 2 > /tmp/f", check=True)
        box.reset(state)
        assert box.exec("cat /data/f /tmp/f").text == "2\n1\n"
        box.hibernate()
        until(lambda: volume("inspect", "data")["use"] == "free")
        with Sandbox(at(), engine=engine) as other:
            other.exec("echo 3 > /data/f", check=True)
            with pytest.raises(Conflict):
                box.exec("true")
        assert box.exec("cat /data/f /tmp/f").text == "3\n1\n"


def test_killed_engine_gives_the_volume_back(store, data, tmp_path):
    """Nobody gets it before the last process of the killed engine's sandbox is gone."""
    process = subprocess.Popen([BUILD / "rollbox-engine", "--socket", tmp_path / "socket"], stdin=subprocess.DEVNULL)
    until(lambda: (tmp_path / "socket").exists())
    engine = Engine(socket=str(tmp_path / "socket"))
    box = Sandbox(at(), engine=engine).__enter__()
    writer = box.spawn(["sh", "-c", "echo x > /data/f; echo ready; while :; do echo x >> /data/f; done"])
    assert writer.stdout.readline() == b"ready\n"
    process.kill()
    with Engine() as own:

        def may_write():
            try:
                return Sandbox(at(), engine=own).run("stat -c %s /data/f > /data/size")
            except Conflict:
                return None

        until(may_write)
        assert int((data / "size").read_text()) == (data / "f").stat().st_size
    process.wait()
    with pytest.raises(RollboxError):
        box.exec("true")


def test_killed_sandbox_gives_the_volume_back(engine, data):
    with Sandbox(at(), engine=engine) as box:
        box.exec("echo 1 > /data/f; sleep 1000 &", check=True)
        os.kill(init_of(box), signal.SIGKILL)

        def reads():
            try:
                return box.exec("cat /data/f").text
            except RollboxError:
                return None  # the engine does not know of the end yet

        assert until(reads) == "1\n"
    assert volume("inspect", "data")["use"] == "free"


def test_size_ends_the_writer_and_files_can_be_removed(engine, store):
    volume("create", "--size", "8M", "data")
    with Sandbox(at(), engine=engine) as box:
        done = box.exec("while :; do head -c 1M /dev/zero >> /data/f; done")
        assert (done.outcome, done.signal) == ("signal", signal.SIGXFSZ)
        assert box.exec("rm /data/f; echo fine > /data/g; cat /data/g").text == "fine\n"
        done = box.exec("i=0; while :; do i=$((i+1)); : > /data/e$i; done")
        assert (done.outcome, done.signal) == ("signal", signal.SIGXFSZ)
    done = Sandbox(at(), engine=engine).run("rm -f /data/*; while :; do head -c 1M /dev/zero >> /data/f; done")
    assert (done.outcome, done.signal) == ("signal", signal.SIGXFSZ)


def test_removed_while_in_use_is_refused(engine, data):
    for mode in ("exclusive", "read-only", "private"):
        with Sandbox(at(mode=mode), engine=engine) as box:
            box.exec("true", check=True)
            assert volume("rm", "data", status=125)["code"] == "conflict"
    volume("rm", "data")
    with pytest.raises(NotFound, match="rollbox volume create data"):
        Sandbox(at(), engine=engine).run("true")
    volume("create", "data")
    assert Sandbox(at(), engine=engine).run("ls /data; echo new > /data/f").text == ""
    assert (data / "f").read_text() == "new\n"


@pytest.mark.parametrize("path", ("/.rollbox", "/.rollbox/proc", "/var", "/var/tmp"))
def test_no_volume_holds_what_the_setup_makes(engine, data, path):
    """The setup would make directories among files that a guest has left there."""
    with pytest.raises(PolicyInvalid, match="every sandbox has"):
        Sandbox(at(path), engine=engine).run("true")
    assert list(data.iterdir()) == []


def test_names_and_paths_are_checked(engine, store):
    for name in ("../x", "a/b", "", ".x", "x" * 65, "ä"):
        assert volume("create", "--", name, status=125)["code"] == "invalid_argument", name
        with pytest.raises(PolicyInvalid):
            Policy(volumes={name: "/data"}).check()
    volume("create", "data")
    for path in ("/", "/proc/x", "/dev", "/dev/shm/x", "/sys", "/tmp", "relative", "/a/../b", "/etc/ssh", "/etc/ssh/x"):
        with pytest.raises(PolicyInvalid):
            Sandbox(at(path), engine=engine).run("true")
    for more in ({"fs_shared": ["/mnt"]}, {"fs_readable_extra": ["/mnt/data/x"]}):
        with pytest.raises(PolicyInvalid):
            Policy(volumes={"data": "/mnt/data"}, **more).check()
    with pytest.raises(PolicyInvalid, match="volume a"):
        Policy(volumes={"a": "/data", "b": "/data/b"}).check()
    with pytest.raises(PolicyInvalid):
        Policy(volumes={"a": "/data", "b": "/data"}).check()
    with pytest.raises(PolicyInvalid, match="no such directory"):
        Sandbox(at("/usr/rollbox-has-no-such"), engine=engine).run("true")


def test_snapshot_of_a_volume(engine, data):
    script = """cd /data; mkdir -p d/e; echo text > d/e/f; ln d/e/f hard; ln -s /etc/passwd link; mkfifo pipe; chmod 700 d/e
    head -c 100000 /dev/zero > sparse; mkdir closed; chmod 500 closed; touch -d @1000 d/e/f d/e closed d"""
    with Sandbox(at(), engine=engine) as box:
        box.exec(script, check=True)
        assert volume("snapshot", "--name", "copy", "data", status=125)["code"] == "conflict"
    volume("snapshot", "--name", "copy", "data")
    copy = data.parent.parent / "copy" / "1"
    assert os.readlink(copy / "link") == "/etc/passwd" and stat.S_ISFIFO((copy / "pipe").lstat().st_mode)
    assert (copy / "hard").stat().st_ino == (copy / "d/e/f").stat().st_ino and (copy / "d/e/f").stat().st_mtime == 1000
    assert [(copy / one).stat().st_mode & 0o777 for one in ("d/e", "closed")] == [0o700, 0o500]
    assert {(copy / one).stat().st_mtime for one in ("d", "d/e", "closed")} == {1000}
    policy = Policy(volumes={"copy": {"path": "/data", "mode": "private"}})
    assert Sandbox(policy, engine=engine).run(
        "cat /data/d/e/f; rm -r /data/d && ls /data"
    ).text.split() == ["text", "closed", "hard", "link", "pipe", "sparse"]
    assert volume("snapshot", "--name", "copy", "data", status=125)["code"] == "conflict"
    assert (copy / "d/e/f").exists()


def test_hostile_files_in_a_volume(engine, data):
    """Links, set-user-id files, devices and mounts that a guest leaves harm neither the host nor the next sandbox."""
    script = """cd /data; ln -s / root; ln -s /../../../../etc/shadow shadow; cp /bin/true suid; chmod 4755 suid; mknod null c 1 3
    mknod disk b 8 0; mkdir m; mount -t tmpfs none m; mount --bind /etc m; mkdir -m 0 locked; d=x; for i in $(seq 60); do mkdir -p $d; d=$d/x; done; true"""
    with Sandbox(at(), engine=engine) as box:
        box.exec(script, check=True)
    assert not (data / "null").exists() and not (data / "disk").exists()
    assert not (data / "suid").stat().st_mode & stat.S_ISUID
    if os.geteuid() == 0:
        os.mknod(data / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.chmod(data / "suid", 0o4755)
    with Sandbox(at(), engine=engine) as box:
        assert box.exec("cat /data/shadow").exit_code and box.exec("cat /data/root/etc/shadow").exit_code
        if os.geteuid() == 0:
            assert box.exec("cat /data/null").exit_code
            assert "Uid:\t1000\t1000" in box.exec("cp /bin/grep /data/g; /data/suid; grep Uid: /proc/self/status").text
    volume("df")
    volume("snapshot", "--name", "copy", "data")
    volume("rm", "copy")
    volume("rm", "data")
    assert not data.exists() and os.path.exists("/etc/passwd")


def test_store_commands_know_volumes(store, data):
    (data / "f").write_bytes(b"x" * 100000)

    def tells(command, status=0):
        done = subprocess.run([BUILD / "rollbox", "store", command, "--json"], capture_output=True)
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout)

    assert (tells("df")["volumes"], tells("df")["volume_bytes"] >= 100000) == (1, True)
    tells("gc")
    assert (data / "f").exists() and tells("fsck")["damaged"] == []
    (data.parent / "volume.json").write_text("{")
    assert tells("fsck", status=1)["damaged"] == [{"volume": "data", "reason": "volume.json is not valid"}]
    with Engine() as own, pytest.raises(RollboxError, match="volume.json"):
        Sandbox(at(), engine=own).run("true")


def test_two_volumes_and_a_private_place(engine, data):
    volume("create", "other")
    policy = Policy(volumes={"data": "/tmp/data", "other": {"path": "/srv/other", "mode": "shared"}})
    done = Sandbox(policy, engine=engine).run(
        "echo a > /tmp/data/f; echo b > /srv/other/f; cat /tmp/data/f /srv/other/f; ls /tmp"
    )
    assert done.text == "a\nb\ndata\n"
    plan = subprocess.run(
        [BUILD / "rollbox", "policy", "plan", "-"],
        input=policy.to_json(),
        capture_output=True,
        text=True,
    )
    assert "/volumes/data/1" in plan.stdout and "/volumes/other/1" in plan.stdout, plan
