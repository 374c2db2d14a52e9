# SPDX-License-Identifier: Apache-2.0
"""What a policy says of the machine that programs see: empty directories, the room in /dev/shm,
limits of each process, the host's name; and that snapshots, forks, resets and hibernation keep it."""

import json

import pytest

from asked import Asked, closing, sh
from harness import caller  # noqa: F401
from rollbox import Policy, PolicyInvalid, Sandbox
from stores import engine, store  # noqa: F401

MACHINE = Policy(
    tmpfs={"/scratch": {"size": "1M", "mode": "0750"}, "/run": None, "/srv/a/b": None},
    shm_size="8M",
    ulimits={"nofile": "100:200", "stack": "unlimited", "fsize": 1 << 20, "nproc": 10**6},
    hostname="machine",
)
SHOW = (
    "stat -c '%n %a' /scratch /run /srv/a/b; ulimit -Sn; ulimit -Hn; ulimit -s; ulimit -f; "
    "cat /proc/sys/kernel/hostname"
)
SHOWN = "/scratch 750\n/run 1777\n/srv/a/b 1777\n100\n200\nunlimited\n2048\nmachine\n"
LIMITS = "__import__('subprocess').check_output('ulimit -Sn; ulimit -Hn; ulimit -s; ulimit -f', shell=True)"


def run(caller, *arguments):
    done = caller.rollbox("run", *arguments)
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    return done


def test_options_and_policies_make_the_same_machine(caller):
    asked = [
        *("--tmpfs", "/scratch:size=1M,mode=0750", "--tmpfs", "/run:rw,nosuid", "--tmpfs", "/srv/a/b"),
        *("--shm-size", "8M", "--hostname", "machine", "--ulimit", "nofile=100:200"),
        *("--ulimit", "stack=unlimited", "--ulimit", "fsize=1048576", "--ulimit", "nproc=1000000"),
    ]
    done = run(caller, *asked, "--", "sh", "-c", SHOW)
    assert (done.returncode, done.stdout) == (0, SHOWN), done.stderr


def test_a_tmpfs_hides_what_the_host_has_and_is_writable(caller):
    script = "ls /usr/share; echo a >/usr/share/f; cat /usr/share/f"
    done = run(caller, "--tmpfs", "/usr/share", "--", "sh", "-c", script)
    assert done.stdout == "a\n", done.stderr


def test_noexec_of_a_tmpfs_holds(caller):
    script = "cp /bin/true /scratch/t; /scratch/t"
    assert run(caller, "--tmpfs", "/scratch", "--", "sh", "-c", script).returncode == 0
    assert run(caller, "--tmpfs", "/scratch:noexec", "--", "sh", "-c", script).returncode == 126


def test_sizes_raise_the_default_disk_and_are_refused_above_a_given_one(caller):
    script = "head -c 40M /dev/zero >/dev/shm/f && stat -c %s /dev/shm/f"
    small = ["--memory", "48M"]
    assert run(caller, *small, "--", "sh", "-c", script).returncode != 0
    done = run(caller, *small, "--disk-at", "memory", "--shm-size", "44M", "--", "stat", "-fc", "%b %S", "/dev/shm")
    blocks, size = map(int, done.stdout.split())
    assert blocks * size >= 44 << 20
    done = run(caller, "--disk", "1M", "--tmpfs", "/scratch:size=2M", "--", "true")
    assert done.returncode == 125 and "raise max_disk" in done.stderr


@pytest.mark.parametrize(
    "policy, tells",
    [
        ({"tmpfs": {"/": None}}, "a root of its own"),
        ({"tmpfs": {"/proc/x": None}}, "/proc of its own"),
        ({"tmpfs": {"/dev/x": None}}, "/dev of its own"),
        ({"tmpfs": {"scratch": None}}, "not an absolute path"),
        ({"tmpfs": {"/a/../b": None}}, '".."'),
        ({"tmpfs": {"/a": None, "/a/": None}}, "named twice"),
        ({"tmpfs": {"/a": {"uid": 3}}}, "unknown member"),
        ({"tmpfs": {"/a": {"mode": "9"}}}, "not a mode"),
        ({"tmpfs": {"/a": {"mode": "4777"}}}, "not a mode"),
        ({"tmpfs": {"/a": "1"}}, "at least 4K"),
        ({"tmpfs": ["/a"]}, "must be an object"),
        ({"tmpfs": {"/var": None}}, "would hide /var/tmp"),
        ({"tmpfs": {"/a": None}, "fs_writable": ["/a"]}, "fs_writable, too"),
        ({"tmpfs": {"/a/b": None}, "fs_denied": ["/a"]}, "fs_denied, too"),
        ({"tmpfs": {"/a": None}, "volumes": {"v": "/a"}}, "path of volume v"),
        ({"shm_size": 1}, "at least 4K"),
        ({"ulimits": {"nofiles": 1}}, "nofile"),
        ({"ulimits": {"nofile": "2:1"}}, "above the hard one"),
        ({"ulimits": {"nofile": 1}}, "at least 16"),
        ({"ulimits": {"nofile": -2}}, "must be a number"),
        ({"ulimits": {"nofile": "12x"}}, "not a limit"),
        ({"ulimits": {"nofile": "99999999999999999999"}}, "not a limit"),
        ({"ulimits": {"core": "0:unlimited"}}, "core dumps"),
        ({"ulimits": {"nice": 5}}, "priority"),
        ({"ulimits": [1]}, "must be an object"),
    ],
)
@pytest.mark.once
def test_wrong_values_of_a_machine_are_refused_by_name(policy, tells):
    with pytest.raises(PolicyInvalid) as refused:
        Policy.from_json(json.dumps(policy)).check()
    assert tells in str(refused.value)


def test_results_say_that_max_disk_limits_sizes_of_directories(caller):
    """No size limits its directory alone, so results and plans say which limit holds."""
    asked = ["--disk", "8M", "--tmpfs", "/scratch:size=1M", "--shm-size", "2M"]
    script = "head -c 3M /dev/zero >/scratch/f && head -c 9M /dev/zero >/dev/shm/f"
    done = run(caller, "--json", *asked, "--", "sh", "-c", script)
    result = json.loads(done.stdout)
    assert result["exit_code"] == 1 and "No space left on device" in result["stderr"], result
    applied = result["isolation"]
    assert (applied["tmpfs"], applied["shm_size"]) == ({"/scratch": 1 << 20}, 2 << 20)
    assert (applied["limits"]["tmpfs"], applied["limits"]["shm_size"]) == ("max_disk", "max_disk")
    plan = caller.rollbox("policy", "plan", *asked).stdout.decode()
    assert f"ask for {3 << 20} bytes, and are no limits of their own; max_disk, {8 << 20} bytes" in plan
    plain = json.loads(run(caller, "--json", "--", "true").stdout)["isolation"]
    assert not {"tmpfs", "shm_size"} & {*plain, *plain["limits"]}


def test_a_tmpfs_in_a_directory_of_the_host_needs_a_directory_there(caller):
    done = run(caller, "--tmpfs", "/usr/no-such", "--", "true")
    assert done.returncode == 125 and "has no such directory" in done.stderr


def test_limits_of_the_sandbox_hold_beside_those_of_the_policy(caller):
    done = run(caller, "--json", "--processes", "20", "--memory", "64M", "--ulimit", "nproc=1000000",
               "--ulimit", "memlock=-1", "--ulimit", "core=0", "--", "true")
    told = json.loads(done.stdout)["isolation"]["ulimits"]
    assert told["nproc"] == "21:21"
    assert int(told["memlock"].split(":")[1]) <= 64 << 20
    assert told["core"] == "1:1"  # 0 would start the host's handler of core dumps


def test_the_name_of_the_host_is_read_only_as_in_docker(caller):
    done = run(caller, "--hostname", "name", "--", "sh", "-c",
               "cat /proc/sys/kernel/hostname /proc/sys/kernel/domainname; echo x >/proc/sys/kernel/hostname")
    assert done.stdout == "name\n(none)\n"
    assert "Read-only file system" in done.stderr


def change(sandbox):
    sh(sandbox, "echo one >/scratch/f; mkdir /run/d; echo two >/run/d/g; echo three >/srv/a/b/h")


def is_changed(sandbox):
    done = sh(sandbox, "cat /scratch/f /run/d/g /srv/a/b/h; " + SHOW)
    return done.stdout == "one\ntwo\nthree\n" + SHOWN


def test_snapshots_forks_and_resets_keep_the_machine():
    with Sandbox(MACHINE) as sandbox:
        assert sh(sandbox, SHOW).stdout == SHOWN
        change(sandbox)
        snapshot = sandbox.snapshot()
        with closing(sandbox.fork(1)) as (fork,):
            assert is_changed(fork)
        sh(sandbox, "rm -r /scratch/* /run/* /srv/a/b/*")
        assert not is_changed(sandbox)
        sandbox.reset(snapshot)
        assert is_changed(sandbox)


def test_live_processes_keep_their_limits_and_files_of_a_tmpfs():
    with Sandbox(MACHINE) as sandbox:
        change(sandbox)
        asked = Asked.begin(sandbox, "f = open('/scratch/open', 'w+')", "f.write('kept')", "f.flush()")
        limits = asked(LIMITS)
        assert limits.startswith("b'100\\n200\\nunlimited")
        with closing(sandbox.fork(1)) as (fork,):
            again = asked.of(fork)
            assert again(LIMITS) == limits
            assert again("(f.seek(0), f.read())") == "(0, 'kept')"
            assert is_changed(fork)


def test_hibernation_keeps_the_machine(engine):
    with Sandbox(MACHINE, engine=engine) as sandbox:
        change(sandbox)
        sandbox.hibernate()
        assert is_changed(sandbox)


@pytest.mark.once
def test_python_policies_have_the_keys():
    assert MACHINE.ulimits["nofile"] == "100:200"
    assert Policy.from_json(MACHINE.to_json()) == MACHINE
    assert MACHINE.replace(tmpfs=None, ulimits=None).tmpfs is None
    MACHINE.check()
