# SPDX-License-Identifier: Apache-2.0
"""Sandboxes whose root is an image: what they see, what they may do, the owners of its files, and hostile images."""

import json
import os

import pytest
from archives import configuration, entry, layer
from harness import caller, place  # noqa: F401
from launch import Launcher, plan_of
from image_stores import run, system, system_store as store  # noqa: F401


def configured(store, name, **config):
    layers = system()
    whole = configuration(layers)
    whole["config"].update(config)
    store.bring(name, *layers, config=whole)


def test_root_is_the_image(store):
    """Its layers as one, writable, beside the sandbox's own /proc, /dev, /sys and names; nothing of
    the host's, nothing of rollbox's."""
    result = run(
        store,
        "/bin/sh",
        "-c",
        "ls / /data /sys; cat /etc/hostname; grep -c localhost /etc/hosts; ls /usr /.rollbox /dev/shm; ls -A /tmp",
        flags=["--user", "root"],
    )
    assert (
        result.stdout.split()
        == "/: bin data dev etc home other proc sys tmp /data: new /sys: class devices fs 2 /dev/shm:".split()
    ), result
    assert (
        "/usr: No such" in result.stderr
        and "/.rollbox: No such" in result.stderr
        and "hostname': No such" in result.stderr
    )
    result = run(
        store,
        "/bin/sh",
        "-c",
        "echo x > /bin/new && rm /bin/cat /data/new && mkdir /deep && mv /etc/passwd /deep && ls /bin/new /deep/passwd && echo > /dev/null",
        flags=["--user", "root"],
    )
    assert result.outcome == "exit" and result.exit_code == 0, result
    assert run(store, "/bin/cat", "/data/new").stdout == "new"


def test_settings_of_the_image(store):
    """Variables, directory and user are the image's where the policy says nothing."""
    result = run(store, "/bin/sh", "-c", "pwd; echo $NAME $PATH; id -u")
    assert result.stdout == "/data\nvalue /bin\n1000\n", result
    result = run(
        store,
        "/bin/sh",
        "-c",
        "pwd; echo $NAME; id -u",
        flags=["--cwd", "/tmp", "--env", "NAME=mine", "--user", "7"],
    )
    assert result.stdout == "/tmp\nmine\n7\n", result
    configured(store, "named", User="me", WorkingDir="")
    assert run(store, "/bin/sh", "-c", "pwd; id -u", image="named").stdout == "/\n1234\n"
    configured(store, "rooted", User="")
    assert run(store, "/bin/id", "-u", image="rooted").stdout == "0\n"
    configured(store, "nobody", User="unheard")
    result = run(store, "/bin/id", "-u", image="nobody")
    assert result.outcome == "error" and "unheard" in result.error["message"], result


def test_owners(store):
    """The caller's rights over the image's files end where the sandbox begins: as root what belongs
    to the guest's id is its own, all else is others'."""
    configured(store, "named", User="me", WorkingDir="/home/me")
    result = run(
        store,
        "/bin/sh",
        "-c",
        "echo 1 > f && cat f; cat /other; echo 1 > /etc/x; stat -c %u /home/me /etc",
        image="named",
    )
    if store.caller.uid == 0:
        assert result.stdout == "1\n1234\n65534\n" and result.stderr.count("ermission denied") == 2, result
    else:
        assert result.stdout == "1\nother1234\n1234\n", result
    assert [
        name
        for name in os.listdir(store.path / "layers")
        if (store.path / "layers" / name / "fs/home/me/f").exists()
    ] == []


def test_grants_in_an_image(store):
    """Directories of the host where a policy grants them; the defaults are not for images,
    whichever options there are."""
    home = store.caller.directory(0o755)
    result = run(store, "/bin/sh", "-c", "cat /etc/hosts /etc/passwd; ls /", flags=["--readable", home])
    assert "me:x:1234:" in result.stdout and "usr" not in result.stdout.split(), result
    for name in ("read", "copy", "shared"):
        (home / name).mkdir()
        store.caller.own(home / name)
        store.caller.write(home / name / "f", name)
    flags = ["--user", "root", "--readable", home / "read", "--writable", home / "copy", "--shared", home / "shared"]
    result = run(
        store,
        "/bin/sh",
        "-c",
        f"cd {home}; cat */f; for i in read copy shared; do echo new > $i/g; done; ls",
        flags=flags,
    )
    assert result.stdout == "copyreadsharedcopy\nread\nshared\n" and "read/g: Read-only" in result.stderr, result
    assert [(home / name / "g").exists() for name in ("read", "copy", "shared")] == [False, False, True]


def test_secrets_of_the_host_in_an_image(store):
    """The system is the image's; but what is granted of the host's has its secrets denied by default as elsewhere."""
    result = run(
        store,
        "/bin/sh",
        "-c",
        "stat -c %a /etc/passwd /etc/shadow; ls /etc/ssh /etc/apt/auth.conf.d",
        flags=["--readable", "/etc"],
    )
    assert (
        result.stdout.split() == ["644", "0", "/etc/apt/auth.conf.d:", "/etc/ssh:"]
        and result.stderr.count("ermission denied") == 2
    ), result  # the names are those it was asked for


@pytest.mark.parametrize("name", ("proc", "dev", "sys", "etc"))
def test_image_with_links_in_the_way(store, name):
    """The mounts of a sandbox are made in an image at their own places, or not at all."""
    target = store.caller.directory(0o755)
    below, _ = system()
    hostile = layer(entry(f".wh.{name}", b""))
    store.bring("hostile", below, hostile, layer(entry(name, b"", link="/data" if name != "etc" else str(target))))
    result = run(store, "/bin/ls", "/data", image="hostile", flags=["--shared", target])
    assert os.listdir(target) == []
    if name == "etc":
        assert result.outcome == "exit", result
    else:
        assert result.outcome == "error" and f"/{name}" in result.error["message"], result


def test_image_that_is_not_there(store):
    result = run(store, "/bin/true", image="nothing")
    assert result.outcome == "error" and "nothing" in result.error["message"], result
    result = run(store, "/bin/true", flags=["--isolation", "process"])
    assert result.outcome == "error" and "image" in result.error["message"], result


def test_plan_shows_the_image(store):
    text = store.call("policy", "plan", "--image", "system").stdout.decode()
    assert f"{store.path}/layers" in text and "PIVOT" in text and "/: execute read" in text, text[:3000]
    assert json.loads(store.call("run", "--image", "system", "--json", "--", "/bin/env").stdout)["exit_code"] == 0


def test_layers_on_an_image(store):
    """A sandbox on what another has left of the same image."""
    os.environ["ROLLBOX_STORE"] = str(store.path)
    try:
        plan = plan_of(store.caller, "--image", "system", "--user", "root")
    finally:
        del os.environ["ROLLBOX_STORE"]
    with Launcher(store.caller, plan) as launcher:
        with launcher.create() as first:
            first.sh("rm /data/new; mkdir /made; echo 1 > /made/f; echo 1 > /tmp/f; mv /bin/id /made")
        with launcher.create([first.layer]) as second:
            assert (
                second.sh("ls /data /made; cat /tmp/f; ls /bin/id", check=False)
                == "/data:\n\n/made:\nf\nid\n1\nls: /bin/id: No such file or directory\n"
            )
            second.sh("rm /made/f; echo 2 > /data/new")
        merged = launcher.copy([first.layer, second.layer]).fds[0]
        for layers in ([first.layer, second.layer], [merged]):
            with launcher.create(layers) as box:
                assert box.sh("ls /made; cat /data/new") == "id\n2\n"


def test_image_command_is_the_default(store):
    """Its entry point and command, where nothing else is named; else they are not used."""
    configured(store, "runs", Entrypoint=["/bin/echo", "entry"], Cmd=["and", "command"])
    environment = store.caller.environment(ROLLBOX_STORE=str(store.path))
    assert store.caller.run("--image", "runs", env=environment).stdout == "entry and command\n"
    assert run(store, "/bin/echo", "mine", image="runs").stdout == "mine\n"
    configured(store, "silent", Entrypoint=None, Cmd=None)
    nothing = store.caller.run("--image", "silent", env=environment)
    assert (
        nothing.outcome == "error"
        and nothing.error["code"] == "invalid_argument"
        and "image" in nothing.error["message"]
    )


def test_image_session_is_exported_with_processes(store):
    """Without --live, the export is of its files alone (test_image_commit.py)."""
    directory = store.caller.directory()
    environment = store.caller.environment(ROLLBOX_STORE=str(store.path), ROLLBOX_SOCKET=str(directory / "socket"))

    def rollbox(*words, status=0):
        done = store.caller.rollbox(*words, env=environment)
        assert done.returncode == status, done
        return done

    rollbox("engine", "start", "--background")
    try:
        rollbox("create", "--image", "system", "--name", "x")
        rollbox("exec", "x", "/bin/sh", "-c", "echo made > /tmp/made")
        rollbox("export", "--live", "x", str(directory / "file"))
        rollbox("import", "--name", "y", str(directory / "file"), "--trust")
        assert "made" in str(rollbox("exec", "y", "/bin/cat", "/tmp/made").stdout)
    finally:
        rollbox("engine", "stop")


def test_run_says_which_users_an_image_has(store):
    done = store.call("run", "-v", "--image", "system", "--", "/bin/sh", "-c", ":")
    assert b"one user without capabilities" in done.stderr and b"--users many" in done.stderr
    done = store.call("run", "--image", "system", "--", "/bin/sh", "-c", ":")
    assert (done.returncode, done.stderr) == (0, b"")
    done = store.call("run", "-v", "--", "/bin/true")
    assert (done.returncode, done.stderr) == (0, b"")
