# SPDX-License-Identifier: Apache-2.0
"""The ids of an ordinary user's sandboxes of many users: where they come from, and what is refused without them."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from harness import ORDINARY_UID, Caller, binaries
from many_users import give_ids

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it gives an ordinary user other files than the host has")


@pytest.fixture(scope="module")
def user():
    give_ids()
    return Caller("user", ORDINARY_UID)


@pytest.fixture
def on_host(user, tmp_path):
    """`on_host({PATH: TEXT}, COMMAND...)`: a command of the user's where the host's files have
    other contents. None: an executable file becomes none."""

    def call(files, *command, modes=(), mode=None):
        script, n = ["mount --make-rprivate /"], 0
        for path, text in files.items():
            n += 1
            other = tmp_path / str(n)
            other.write_bytes(b"" if text is None else text if isinstance(text, bytes) else text.encode())
            os.chmod(other, mode or 0o644)
            script.append(f"mount --bind {other} {path}")
        script.append(f'exec setpriv --reuid {user.uid} --regid {user.uid} --clear-groups "$@"')
        return subprocess.run(
            ["unshare", "-m", "sh", "-ec", "\n".join(script), "sh", *map(str, command)],
            env=user.environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )

    return call


def is_shell(cmdline):
    try:
        text = cmdline.read_bytes()
    except OSError:
        return False
    return text.startswith(b"sh\0-c\0") and b"of-many-users" in text


def name_of(uid):
    return subprocess.run(["id", "-un", str(uid)], capture_output=True, text=True).stdout.strip()


def refusal(on_host, files, **options):
    """What `run` says, which is what `doctor` says."""
    done = on_host(files, binaries() / "rollbox", "run", "--json", "--users", "many", "--", "true", **options)
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "feature_missing", error
    report = json.loads(on_host(files, binaries() / "rollbox", "doctor", "--json", **options).stdout)
    feature = next(f for f in report["features"] if f["name"] == "subids")
    assert not feature["available"] and feature["hint"] in error["message"]
    return error["message"]


def test_ids_are_the_users_range_and_root_is_not_the_user(user):
    result = user.run(
        "--users",
        "many",
        "--",
        "sh",
        "-c",
        "id -u; cut -c1-80 /proc/self/uid_map; cat /proc/self/setgroups",
    )
    inside, _, count = result.stdout.split()[1:4]
    assert (inside, count) == ("0", "65536") and result.stdout.split()[-1] == "allow"
    assert result.isolation["users"] == "many" and result.isolation["host_user"] == "subordinate range"
    argv = [
        binaries() / "rollbox",
        "run",
        "--users",
        "many",
        "--",
        "sh",
        "-c",
        "echo $(id -u); read line # of-many-users",
    ]
    with user.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as probe:
        assert probe.stdout.readline() == b"0\n"
        owners = {status.stat().st_uid for status in Path("/proc").glob("[0-9]*/cmdline") if is_shell(status)}
        first = int(
            next(
                line.split(":")[1]
                for line in open("/etc/subuid")
                if line.startswith(name_of(user.uid) + ":")
            )
        )
        probe.kill()
    assert first in owners and user.uid not in owners


def test_no_range_is_refused_with_the_command_that_mends_it(on_host, user):
    message = refusal(on_host, {"/etc/subuid": "somebody:100000:65536\n"})
    assert "/etc/subuid has no line" in message and "usermod --add-subuids" in message and name_of(user.uid) in message
    message = refusal(on_host, {"/etc/subgid": ""})
    assert "/etc/subgid has no line" in message and "usermod --add-subgids" in message


def test_suggested_range_is_free(on_host, user):
    assert "--add-subuids 300000-365535" in refusal(
        on_host, {"/etc/subuid": "a:100000:65536\nb:200000:100000\n", "/etc/subgid": ""}
    )


def test_range_that_is_too_small_is_refused(on_host, user):
    message = refusal(on_host, {"/etc/subuid": f"{name_of(user.uid)}:500000:65535\n"})
    assert "only 65535 ids" in message and "usermod --add-subuids" in message


def test_range_by_number_is_found(on_host, user):
    files = {path: f"{user.uid}:700000:65536\n" for path in ("/etc/subuid", "/etc/subgid")}
    done = on_host(files, binaries() / "rollbox", "run", "--users", "many", "--", "id", "-u")
    assert done.stdout == b"0\n", done.stderr


def test_range_with_the_users_own_id_is_refused(on_host, user):
    assert "contains his own id" in refusal(on_host, {"/etc/subuid": f"{name_of(user.uid)}:{user.uid - 10}:65536\n"})


def test_missing_newuidmap_is_named(on_host):
    assert "newuidmap is not installed" in refusal(on_host, {"/usr/bin/newuidmap": None})
    assert "apt-get install uidmap" in refusal(on_host, {"/usr/bin/newgidmap": None})


def test_newuidmap_without_rights_is_named(on_host):
    program = open("/usr/bin/newuidmap", "rb").read()
    assert "is not set-user-id root" in refusal(on_host, {"/usr/bin/newuidmap": program}, mode=0o755)


def test_newuidmap_that_fails_is_quoted(on_host):
    program = "#!/bin/sh\necho no such range here >&2\nexit 1\n"
    assert "has failed: no such range here" in refusal(on_host, {"/usr/bin/newuidmap": program}, mode=0o4755)


def test_no_new_privs_is_named(user):
    done = subprocess.run(
        [
            "setpriv",
            "--no-new-privs",
            "--reuid",
            str(user.uid),
            "--regid",
            str(user.uid),
            "--clear-groups",
            binaries() / "rollbox",
            "run",
            "--users",
            "many",
            "--",
            "true",
        ],
        env=user.environment(),
        capture_output=True,
    )
    assert done.returncode == 125 and b"no_new_privs" in done.stderr


def test_doctor_names_another_user_of_the_same_ids(on_host, user):
    lines = f"{name_of(user.uid)}:500000:65536\nneighbour:550000:10\n"
    files = {"/etc/subuid": lines, "/etc/subgid": lines}
    done = on_host(files, binaries() / "rollbox", "doctor", "--json")
    assert json.loads(done.stdout)["facts"]["subids_shared_with"] == "neighbour"
    assert b"also those of neighbour" in on_host(files, binaries() / "rollbox", "doctor").stdout


def test_directories_of_the_host_to_write_are_refused(user):
    directory = user.directory()
    for flag in ("--writable", "--shared"):
        error = user.run(flag, str(directory), "--users", "many", "--", "true").error
        assert error["code"] == "feature_missing" and "rollbox cp" in error["message"]
