# SPDX-License-Identifier: Apache-2.0
"""Sandboxes of many users: root's rights inside, other users that are really others, and commands as any of them."""

import json
import os
from pathlib import Path

import pytest
from archives import configuration, entry, layer
from harness import binaries
from image_stores import Store
from many_users import plain_callers, system, system_entries

CAPABILITIES = "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw sys_chroot setfcap".split()


@pytest.fixture(params=plain_callers(), ids=repr, scope="module")
def caller(request):
    """Root, and an ordinary user with a range of ids."""
    return request.param


@pytest.fixture(scope="module")
def store(caller):
    found = Store(caller)
    layers = [system()]
    for name, user in (("system", ""), ("alices", "alice"), ("grouped", "1001:staff")):
        config = configuration(layers)
        config["config"].update(User=user, WorkingDir="/")
        found.bring(name, *layers, config=config)
    bare = layer(*(item for item in system_entries() if item[0].name != "etc/hosts"))
    config = configuration([bare])
    config["config"].update(User="", WorkingDir="/")
    found.bring("bare", bare, config=config)
    return found


def run(store, script, *flags, image="system"):
    env = store.caller.environment(ROLLBOX_STORE=str(store.path))
    return store.caller.run(
        "--users", "many", "--image", image, *flags, "--", "/bin/sh", "-c", script, env=env
    )


@pytest.fixture
def session(store):
    """`rollbox NAME ARGUMENTS` at an engine that has a sandbox `box` of many users."""
    env = store.caller.environment(
        ROLLBOX_STORE=str(store.path), ROLLBOX_SOCKET=str(store.caller.directory() / "socket")
    )

    def rollbox(*arguments):
        return store.caller.call(binaries() / "rollbox", *arguments, env=env)

    assert rollbox("engine", "start", "--background").returncode == 0
    try:
        made = rollbox("create", "--name", "box", "--users", "many", "--image", "system")
        assert made.returncode == 0, made.stderr
        yield rollbox
    finally:
        rollbox("engine", "stop")


def test_root_has_the_listed_capabilities_and_no_other(store):
    result = run(
        store, "grep -E 'Cap(Prm|Eff|Bnd)|NoNewPrivs' /proc/self/status; cat /proc/self/uid_map"
    )
    lines = dict(line.split(":\t") for line in result.stdout.splitlines() if ":" in line)
    assert lines["NoNewPrivs"] == "0"
    assert {int(lines[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {0x800425FB}
    inside, outside, count = map(int, result.stdout.splitlines()[-1].split())
    assert (inside, count) == (0, 65536) and outside > 0
    assert result.isolation["capabilities"] == CAPABILITIES and result.isolation["users"] == "many"
    assert result.isolation["no_new_privs"] is False


def test_one_user_stays_without_rights(store):
    env = store.caller.environment(ROLLBOX_STORE=str(store.path))
    result = store.caller.run(
        "--image", "system", "--", "/bin/grep", "CapBnd", "/proc/self/status", env=env
    )
    assert result.stdout.split()[1] == "0" * 16
    assert result.isolation["users"] == "one" and result.isolation["no_new_privs"] is True


def test_files_of_the_image_have_their_owners(store):
    result = run(
        store, "stat -c '%u:%g %a' /home/alice /home/alice/secret /high /etc/passwd /setid/su"
    )
    assert result.stdout.splitlines() == [
        "1000:1000 700",
        "1000:1000 600",
        "65533:65533 644",
        "0:0 644",
        "0:0 4755",
    ]


def test_root_changes_owners_and_users(store):
    result = run(
        store,
        "touch /tmp/f && chown bob:staff /tmp/f && stat -c %U:%G /tmp/f && su bob -c 'id -un; pwd' && chroot / id -u",
    )
    assert result.stdout.split("\n")[:2] == ["bob:staff", "bob"] and result.exit_code == 0, result


def test_users_are_others_to_each_other(store):
    result = run(
        store,
        "su bob -c 'cat /home/alice/secret; echo > /home/alice/x; chown bob /home/alice; echo > /etc/passwd'; sleep 60 & su bob -c \"kill $!\"; cat /etc/passwd",
    )
    assert "hers" not in result.stdout and "root::0" in result.stdout
    assert result.stderr.count("denied") + result.stderr.count("not permitted") == 5, result.stderr


def test_set_user_id_program_of_the_image_works(store):
    assert run(store, "su bob -c '/setid/su -c id'").stdout.startswith("uid=0")
    env = store.caller.environment(ROLLBOX_STORE=str(store.path))
    one = store.caller.run(
        "--image", "system", "--user", "1001", "--", "/setid/su", "-c", "id", env=env
    )
    assert "uid=0" not in one.stdout


PORT_AND_PING = """
import os, socket
os.setgroups([]); os.setresgid(1000, 1000, 1000); os.setresuid(1000, 1000, 1000)
server = socket.create_server(("127.0.0.1", 80))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as ping:
    ping.settimeout(10)
    ping.sendto(bytes([8, 0, 0, 0, 0, 0, 0, 1]) + b"hello", ("127.0.0.1", 0))
    print(ping.recv(100)[8:].decode())
try: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
except PermissionError: print("not raw")
"""


def test_every_user_has_low_ports_and_ping(caller):
    result = caller.python(PORT_AND_PING, "--users", "many", "--net", "loopback")
    assert result.stdout == "hello\nnot raw\n", result.stderr


def test_user_of_the_image(store):
    assert run(store, "id -un", image="alices").stdout == "alice\n"
    assert run(store, "id -u; id -gn; id -G", image="grouped").stdout == "1001\nstaff\n50\n"
    assert (
        run(store, "id -un; pwd; echo $HOME $USER", "--user", "bob", image="alices").stdout
        == "bob\n/\n/home/bob bob\n"
    )


def test_init_is_out_of_roots_reach(store):
    script = "kill -9 1; cat /proc/1/environ /proc/1/maps /proc/1/mem; ls /proc/1/fd/; echo 0 > /proc/1/oom_score_adj; echo 1 > /proc/sys/kernel/shmall; id -u"
    result = run(store, script)
    assert (
        result.stdout == "0\n"
        and result.stderr.count("denied") + result.stderr.count("ead-only") >= 5
    ), result


CHANGE_AND_FORK = """
import os, time
read, write = os.pipe()
for uid in (1000, 1001, 1002):
    if os.fork(): continue
    os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
    for _ in range(40):
        try: pid = os.fork()
        except OSError: break
        while not pid: time.sleep(60)
        os.write(write, b"x")
    os.write(write, b".")
    while True: time.sleep(60)
got = b""
while got.count(b".") < 3: got += os.read(read, 100)
print(got.count(b"x") + 4)
"""


@pytest.mark.parametrize("masked", ["", "-cgroup"])
def test_max_processes_holds_for_all_users_together(caller, masked):
    """Without a cgroup, too, where the kernel counts processes by user."""
    env = caller.environment(ROLLBOX_KFEAT=masked or os.environ.get("ROLLBOX_KFEAT", ""))
    # Of forks at the same moment the kernel may refuse one too many.
    assert (
        27
        <= int(caller.python(CHANGE_AND_FORK, "--users", "many", "--processes", "30", env=env).stdout)
        <= 30
    )


def test_each_sandbox_has_host_ids_of_its_own(store):
    """Where root runs them; an ordinary user's share the user's range."""
    env = store.caller.environment(ROLLBOX_STORE=str(store.path))
    jobs = [
        json.dumps({"id": str(i), "argv": ["/bin/sh", "-c", "cat /proc/self/uid_map; sleep 0.3"]})
        for i in range(3)
    ]
    done = store.caller.call(
        binaries() / "rollbox",
        "batch",
        "--users",
        "many",
        "--image",
        "system",
        store.caller.write(store.home / "jobs", "\n".join(jobs)),
        env=env,
    )
    maps = [json.loads(line)["stdout"].split() for line in done.stdout.splitlines()]
    assert len(maps) == 3 and (len({m[1] for m in maps}) > 1) == (store.caller.uid == 0), maps


def test_exec_as_users_by_name_and_number(session):
    def identity(user):
        return (
            session(
                "exec",
                "--user",
                user,
                "box",
                "--",
                "/bin/sh",
                "-c",
                "id -u; id -g; id -G; echo $HOME",
            )
            .stdout.decode()
            .split("\n")[:4]
        )

    assert identity("alice") == ["1000", "1000", "1000 10 50", "/home/alice"]
    assert identity("1001") == ["1001", "1001", "1001 50", "/home/bob"]
    assert identity("1001:staff")[:3] == ["1001", "50", "50"]
    assert identity("4321") == ["4321", "0", "0", "/"]
    assert identity("alice:bob:wheel,77")[:3] == ["1000", "1001", "1001 10 77"]


def test_exec_as_unknown_user_is_refused(session):
    for user, part in (
        ("nosuch", "user:"),
        ("alice:nosuch", "group:"),
        ("alice:bob:nosuch", "groups:"),
        ("65536", "user:"),
    ):
        done = session("exec", "--user", user, "box", "--", "/bin/id")
        assert done.returncode == 125 and part.encode() in done.stderr and done.stdout == b"", (
            user,
            done,
        )
    assert b"must be USER" in session("exec", "--user", "a b", "box", "--", "/bin/id").stderr


def test_passwd_that_is_no_file_names_nobody(session):
    """The agent's root may make anything of it; numbers still serve."""
    assert (
        session(
            "exec",
            "box",
            "--",
            "/bin/sh",
            "-c",
            "rm /etc/passwd && ln -s /proc/self/environ /etc/passwd",
        ).returncode
        == 0
    )
    assert session("exec", "--user", "alice", "box", "--", "/bin/id").returncode == 125
    assert session("exec", "--user", "1000", "box", "--", "/bin/id", "-u").stdout == b"1000\n"
    assert session("exec", "box", "--", "/bin/id", "-u").stdout == b"0\n"


def test_owners_are_kept_in_snapshots_forks_and_resets(session):
    def owner(box):
        return session("exec", box, "--", "/bin/stat", "-c", "%u:%g %a", "/opt/f").stdout

    session(
        "exec",
        "box",
        "--",
        "/bin/sh",
        "-c",
        "mkdir /opt && touch /opt/f && chown 1000:50 /opt/f && chmod 4750 /opt/f",
    )
    snapshot = session("snapshot", "box").stdout.decode().strip()
    kid = session("fork", "box").stdout.decode().strip()
    session("exec", "box", "--", "/bin/chown", "7:7", "/opt/f")
    assert owner(kid) == b"1000:50 4750\n" and owner("box").startswith(b"7:7")
    assert session("reset", "box", snapshot).returncode == 0
    assert owner("box") == b"1000:50 4750\n"
    assert session("exec", "--user", "bob", kid, "--", "/bin/rm", "-f", "/opt/f").returncode != 0


def test_owners_and_capabilities_survive_hibernation(session):
    script = "mkdir /opt && cp /bin/busybox /opt/f && chown 1000:50 /opt/f && chmod 6755 /opt/f && touch /opt/high && chown 65535 /opt/high"
    assert session("exec", "box", "--", "/bin/sh", "-c", script).returncode == 0
    done = session("hibernate", "box")
    assert done.returncode == 0, done.stderr
    assert (
        session("exec", "box", "--", "/bin/stat", "-c", "%u:%g %a", "/opt/f", "/opt/high").stdout
        == b"1000:50 6755\n65535:0 644\n"
    )


def test_host_name_resolves_where_the_image_has_no_hosts_file(store):
    assert "rollbox" in run(store, "grep rollbox /etc/hosts", image="bare").stdout
