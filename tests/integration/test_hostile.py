# SPDX-License-Identifier: Apache-2.0
"""What a guest that knows this code tries against the host and against other sandboxes. Each test is named after the hole it holds shut."""

import base64
import contextlib
import hashlib
import json
import os
import pty
import resource
import select
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest
from harness import PYTHON, binaries, caller, guest, skip, wait_unmarked, wait_writers_gone  # noqa: F401

# Also run with kernel features masked (ROLLBOX_KFEAT): each promise has two layers, and the other one must hold it.
pytestmark = pytest.mark.masked

ESCAPED = signal.SIGSYS  # death by the filter: refused, too


def holds(result):
    """A probe's attempts were all refused."""
    assert result.outcome in ("exit", "signal"), result.told
    if result.outcome == "signal":
        assert result.signal == ESCAPED, result.told
    else:
        assert result.exit_code == 0, result.stdout + result.stderr


def process_isolation():
    """The isolation level as flags; skips where what it consists of is masked."""
    if "landlock" in os.environ.get("ROLLBOX_KFEAT", ""):
        pytest.skip("isolation process is Landlock, which is masked")
    return ["--isolation", "process"]


def isolation_flags(level):
    return process_isolation() if level == "process" else []


def refused(result):
    """A Python guest that reports each attempt that worked as a line."""
    assert result.outcome == "exit" and result.exit_code == 0, result.told
    assert result.stdout == "", result.stdout


TRY = (
    "def attempt(what, *a, **k):\n    try:\n        got = what(*a, **k)\n    except (OSError, ValueError):\n        return None\n  "
    "  return got\n"
)


# ---- files ----

SECRETS = [
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/security/opasswd",
    "/etc/ssl/private",
    "/etc/ssh/ssh_host_rsa_key",
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/krb5.keytab",
]


def test_etc_secrets_unreadable(caller):
    """The password hashes and keys below /etc cannot be read, for any user of rollbox."""
    refused(
        caller.python(
            TRY + "import os\n"
            f"for name in {SECRETS}:\n"
            "    for got in (attempt(lambda: open(name, 'rb').read(1)), attempt(os.listdir, name)):\n"
            "        if got: print(name)"
        )
    )


def test_cat_etc_shadow_fails(caller):
    """The plain way: `rollbox run -- cat /etc/shadow` ends with a failure and prints nothing."""
    done = caller.rollbox("run", "--", "cat", "/etc/shadow")
    assert done.returncode not in (0, 125) and done.stdout == b""


def test_shadow_unreadable_as_sandbox_root(caller):
    """Neither can they by the user `root` of a sandbox."""
    result = caller.run("--user", "root", "--", "sh", "-c", "id -u; cat /etc/shadow /etc/gshadow")
    assert result.outcome == "exit" and result.exit_code != 0 and result.stdout == "0\n", result.told


def test_host_directories_absent(caller):
    """Homes, run-time state, logs, boot files and this tree are not in a sandbox."""
    secret = caller.write(caller.home / "secret", "secret")
    names = [
        "/root",
        "/home",
        "/var/log",
        "/var/lib",
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/run/dbus",
        "/boot",
        "/srv",
        "/mnt",
        "/media",
        "/var/spool",
        "/sys/kernel",
        "/sys/fs/bpf",
        "/sys/firmware",
        "/lost+found",
        str(secret),
        str(caller.home),
        str(binaries()),
        str(Path.cwd() / "meson.build"),
    ]
    refused(
        caller.python(
            TRY
            + f"import os\nfor name in {names}:\n    got = attempt(lambda: open(name).read(1)) or attempt(os.listdir, name)\n    if "
            f"got: print(name, got)"
        )
    )


def test_host_files_unreachable_by_proc(caller):
    """No /proc link of any process leads out of the sandbox's root."""
    secret = caller.write(caller.home / "secret2", "secret")
    refused(
        caller.python(
            TRY + "import os\n"
            "for pid in ['1', 'self', 'thread-self', str(os.getppid())]:\n"
            "    for way in ('root', 'cwd', 'root/..', 'root/../..', 'cwd/../../..', 'task/1/root', 'fd/0', 'fd/3', 'fd/4', 'fd/5', "
            "'fd/6', 'fd/7'):\n"
            f"        if attempt(lambda: open(f'/proc/{{pid}}/{{way}}{secret}').read()): print(pid, way)"
        )
    )


def test_dot_dot_does_not_leave_the_root(caller):
    """Any number of `..` ends at the sandbox's own root, also from a directory that was removed or opened before."""
    secret = caller.write(caller.home / "secret3", "secret")
    refused(
        caller.python(
            TRY + "import os\n"
            "os.mkdir('/tmp/d'); os.chdir('/tmp/d'); os.rmdir('/tmp/d')\n"
            f"up = '../' * 40 + '{secret}'[1:]\n"
            "if attempt(open, up): print('removed directory')\n"
            "os.chdir('/'); root = os.open('/', os.O_RDONLY)\n"
            "if attempt(os.open, up, os.O_RDONLY, dir_fd=root): print('dir_fd')"
        )
    )


def test_symlink_in_grant_stays_inside(caller):
    """A symlink in a granted directory that points outside leads nowhere."""
    grant = caller.directory(0o755)
    secret = caller.write(caller.home / "secret4", "secret", 0o644)
    (grant / "link").symlink_to(secret)
    (grant / "up").symlink_to("../" * 30 + str(secret)[1:])
    (grant / "dir").symlink_to(caller.home)
    for flag in ("--readable", "--writable", "--shared"):
        refused(
            caller.python(
                TRY
                + f"for name in ('link', 'up', 'dir/secret4'):\n    if attempt(lambda: open('{grant}/' + name).read()): print(name)\n"
                f"    if attempt(lambda: open('{grant}/' + name, 'a').write('x')): print(name, 'written')",
                flag,
                grant,
            )
        )
    assert secret.read_text() == "secret"


def test_readable_grant_is_read_only(caller):
    """A read-only grant cannot be written, truncated, renamed, re-moded or re-opened for writing through /proc/self/fd."""
    grant = caller.directory(0o777)
    caller.write(grant / "file", "original", 0o666)
    result = caller.python(
        TRY + "import os, mmap\n"
        f"g = '{grant}'; f = g + '/file'\n"
        "fd = os.open(f, os.O_RDONLY)\n"
        "path = os.open(f, os.O_PATH)\n"
        "def way(name, *a, **k):\n"
        "    try: name(*a, **k)\n"
        "    except OSError: return\n"
        "    print(name.__name__, a)\n"
        "way(open, f, 'w'); way(open, f, 'r+'); way(open, g + '/new', 'w'); way(os.truncate, f, 0); way(os.unlink, f)\n"
        "way(os.rename, f, g + '/other'); way(os.chmod, f, 0o600); way(os.utime, f, (0, 0)); way(os.mkdir, g + '/d'); "
        "way(os.symlink, '/', g + '/s')\n"
        "way(os.link, f, g + '/hard'); way(os.link, f, '/tmp/hard'); way(os.setxattr, f, 'user.x', b'1')\n"
        "way(open, f'/proc/self/fd/{fd}', 'r+'); way(open, f'/proc/self/fd/{path}', 'r+'); way(os.open, f, os.O_RDONLY | os.O_TRUNC)\n"
        "way(mmap.mmap, fd, 8, mmap.MAP_SHARED, mmap.PROT_WRITE); way(os.fchmod, fd, 0o600); way(os.ftruncate, fd, 0)",
        "--readable",
        grant,
    )
    refused(result)
    assert (grant / "file").read_text() == "original" and os.listdir(grant) == ["file"]


def test_system_directories_read_only(caller):
    """The host's programs, libraries and configuration cannot be changed, nor through a copy seen by the next run."""
    refused(
        caller.python(
            TRY + "import os\n"
            "for d in ('/', '/usr', '/usr/bin', '/usr/lib', '/etc', '/bin', '/lib', '/sbin', '/opt', '/proc', '/sys', '/usr/local/bin'):\n"
            "    try: open(d + '/rollbox-was-here', 'w').write('x'); ok = d not in ('/',)\n"
            "    except OSError: ok = False\n"
            "    if ok: print(d)\n"
        )
    )
    result = caller.run("--", "sh", "-c", "ls / /etc /usr/bin | grep rollbox-was-here")
    assert result.exit_code == 1, result.told
    assert not any(Path(d, "rollbox-was-here").exists() for d in ("/", "/usr", "/etc", "/usr/bin", "/opt"))


def test_writable_grant_never_changes_the_host(caller):
    """Everything done below a private copy-on-write grant is gone with the run: the host and the next run see the original."""
    grant = caller.directory(0o755)
    caller.write(grant / "file", "original")
    caller.write(grant / "gone", "original")
    (grant / "sub").mkdir()
    caller.own(grant / "sub")
    before = sorted(os.listdir(grant))
    result = caller.run(
        "--writable",
        grant,
        "--",
        "sh",
        "-c",
        f"cd {grant} && echo changed > file && rm gone && echo new > new && echo x > sub/x && chmod 4777 file && cat file && ls",
    )
    assert result.exit_code == 0 and result.stdout == "changed\nfile\nnew\nsub\n", result.told
    assert sorted(os.listdir(grant)) == before and os.listdir(grant / "sub") == []
    assert (grant / "file").read_text() == "original" and stat.S_IMODE((grant / "file").stat().st_mode) == 0o644
    again = caller.run("--writable", grant, "--", "sh", "-c", f"cd {grant} && cat file && ls")
    assert again.stdout == "originalfile\ngone\nsub\n", again.told


def test_writable_grant_symlink_out(caller):
    """A guest's own symlink in a copy-on-write grant does not make the clean-up or a later run touch its target."""
    grant = caller.directory(0o755)
    outside = caller.directory(0o755)
    caller.write(outside / "kept", "kept")
    caller.run(
        "--writable", grant, "--", "sh", "-c", f"ln -s {outside} {grant}/link; rm -rf {grant}/link/*; echo x > {grant}/link/kept"
    )
    assert (outside / "kept").read_text() == "kept" and os.listdir(grant) == []


def test_shared_grant_writes_through(caller):
    """What a guest writes below a shared grant is there for the host, as a file that the caller can handle."""
    grant = caller.directory(0o755)
    caller.write(grant / "in", "from the host")
    result = caller.run(
        "--shared",
        grant,
        "--",
        "sh",
        "-c",
        f"cat {grant}/in && echo from the guest > {grant}/out && mkdir {grant}/d && echo x >> {grant}/in",
    )
    assert result.exit_code == 0 and result.stdout == "from the host", result.told
    assert (grant / "out").read_text() == "from the guest\n" and (grant / "in").read_text() == "from the hostx\n"
    assert caller.call("rm", "-r", grant / "d", grant / "out").returncode == 0


@pytest.mark.parametrize("user", ["box", "root"])
def test_shared_grant_leaves_no_setuid_root_file(caller, user):
    """A set-id file that a guest leaves in a shared directory never gives root's rights on the host, nor do capabilities or devices."""
    grant = caller.directory(0o777)
    caller.run(
        "--shared",
        grant,
        "--user",
        user,
        "--",
        "sh",
        "-c",
        f"cd {grant}; cp /bin/sh su; chown 0:0 su; chmod 6777 su; cp /bin/sh cap; setcap cap_setuid+ep cap; mknod disk b 8 0; mknod "
        f"mem c 1 1; mkdir -m 2777 sg; touch sg/x; true",
    )
    for name in os.listdir(grant):
        found = os.lstat(grant / name)
        assert not (stat.S_ISBLK(found.st_mode) or stat.S_ISCHR(found.st_mode)), name
        if stat.S_ISREG(found.st_mode):
            assert not (found.st_uid == 0 and found.st_mode & stat.S_ISUID), name
            assert not (found.st_gid == 0 and found.st_mode & stat.S_ISGID), name
            attributes = os.listxattr(grant / name)
            if "security.capability" in attributes:
                raw = os.getxattr(grant / name, "security.capability")
                # Revision 3 names the user namespace's root; anything else is valid on the host.
                assert raw[3] == 3 and int.from_bytes(raw[20:24], "little") != 0, name


def test_shared_symlink_does_not_lead_files_out(caller):
    """A symlink left in a shared directory does not make rollbox, which puts a job's files there, write to the host."""
    grant, outside = caller.directory(0o777), caller.directory(0o777)
    caller.run("--shared", grant, "--", "ln", "-s", outside, grant / "out")
    caller.run("--shared", grant, "--", "ln", "-s", outside / "made", grant / "file")
    assert (grant / "out").is_symlink()
    caller.batch(
        [
            {"id": str(i), "argv": ["true"], "files": {path: "harm"}, "policy": {"fs_shared": [str(grant)]}}
            for i, path in enumerate([f"{grant}/out/made", f"{grant}/file", f"{grant}/out/sub/made"])
        ]
    )
    assert os.listdir(outside) == []


def test_fifo_in_a_shared_grant_does_not_hold_up_the_next_job(caller):
    """A FIFO, left where the next job's file goes, does not make its set-up wait for ever: it ends as an error, a time-out or a run."""
    grant = caller.directory(0o777)
    caller.run("--shared", grant, "--", "sh", "-c", f"mkfifo -m 666 {grant}/main.py; mkfifo -m 777 {grant}/run")
    rows = caller.batch(
        [
            {
                "id": "file",
                "argv": ["true"],
                "files": {f"{grant}/main.py": "x"},
                "policy": {"fs_shared": [str(grant)]},
                "timeout_s": 2,
            },
            {"id": "program", "argv": [f"{grant}/run"], "policy": {"fs_shared": [str(grant)]}, "timeout_s": 2},
        ],
        "--retries",
        "0",
        timeout=20,
    )
    assert set(rows) == {"file", "program"} and rows["program"]["outcome"] == "error", rows


def test_job_files_stay_in_the_sandbox(caller):
    """A job's file paths with `..` or outside writable places are errors of that job, or stay inside; nothing appears on the host."""
    outside = caller.directory(0o777)
    rows = caller.batch(
        [
            {"id": name, "argv": ["true"], "files": {name: "harm"}}
            for name in [
                "../" * 20 + str(outside)[1:] + "/made",
                str(outside / "made"),
                "/usr/bin/rollbox-was-here",
                "/proc/sys/kernel/hostname",
                "/../etc/rollbox-was-here",
            ]
        ]
    )
    assert os.listdir(outside) == []
    assert not Path("/usr/bin/rollbox-was-here").exists() and not Path("/etc/rollbox-was-here").exists()
    assert rows["/usr/bin/rollbox-was-here"]["outcome"] == "error", rows


def test_denied_hides_inside_a_grant(caller):
    """A denied file or directory cannot be read, listed, renamed round, or reached by a second path, even inside a grant of any kind."""
    grant = caller.directory(0o755)
    (grant / "sub").mkdir()
    (grant / "plain").mkdir()
    for name in ("key", "sub/key", "plain/seen"):
        caller.write(grant / name, "secret")
    caller.own(grant / "sub", grant / "plain")
    (grant / "alias").symlink_to("sub")
    for flag in ("--readable", "--writable", "--shared"):
        refused(
            caller.python(
                TRY + "import os\n"
                f"os.chdir('{grant}')\n"
                "if open('plain/seen').read() != 'secret': print('the rest is gone')\n"
                "for name in ('key', 'sub/key', 'alias/key', 'plain/../key', './sub/./key'):\n"
                "    if attempt(lambda: open(name).read()): print(name)\n"
                "if attempt(os.listdir, 'sub'): print('listed')\n"
                "attempt(os.rename, 'sub', 'moved'); attempt(os.link, 'key', 'hard'); attempt(os.rename, 'key', 'moved2')\n"
                "for name in ('moved/key', 'hard', 'moved2'):\n"
                "    if attempt(lambda: open(name).read()): print(name)",
                flag,
                grant,
                "--denied",
                grant / "key",
                "--denied",
                grant / "sub",
            )
        )
    assert (grant / "key").read_text() == "secret" and (grant / "sub/key").read_text() == "secret"


def test_denied_directory_that_the_sandbox_may_not_enter(caller):
    """What only the caller may enter is hidden as all else is, also where it can be covered only from inside (below /tmp and /var/tmp)."""
    grant = caller.directory(0o755)
    (grant / "shut").mkdir(mode=0o700)
    caller.own(grant / "shut")
    for flag in ("--readable", "--writable", "--shared"):
        result = caller.run(flag, grant, "--denied", grant / "shut", "--", "sh", "-c", f"stat -c %a {grant}/shut; ls {grant}")
        assert (result.outcome, result.stdout) == ("exit", "0\nshut\n"), result.told


LOOK_INTO_A_STORE = """
import os
grant = "%s"
attempt(lambda: print("listed", os.listdir(grant + "/above/store")))
for top, _, names in os.walk(grant):
    for name in names:
        if name in ("version", "secret"): attempt(lambda: print(name, open(os.path.join(top, name)).read()))
attempt(lambda: print("made", open(grant + "/above/store/made", "w")))
attempt(lambda: print("moved", os.rename(grant + "/above", grant + "/aside")))
if open(grant + "/beside/seen").read() != "seen": print("the rest is gone")
"""


@pytest.mark.parametrize("level", ["namespace", "process"])
def test_store_is_excluded_from_grants(caller, level, monkeypatch):
    """A grant of a directory above the store gives nothing of it: it has images, memory of hibernated sandboxes, and private files of others."""
    grant = caller.directory(0o755)
    store = grant / "above" / "store"
    store.parent.mkdir()
    (grant / "beside").mkdir()
    caller.own(store.parent, caller.write(grant / "beside" / "seen", "seen").parent)
    if level == "process":
        grant.chmod(0o777)
    assert caller.call(binaries() / "rollbox-store", "ls", "--store", store).returncode == 0
    monkeypatch.setenv("ROLLBOX_STORE", str(store))
    for flag in ("--readable", "--shared") if level == "process" else ("--readable", "--writable", "--shared"):
        refused(caller.python(TRY + LOOK_INTO_A_STORE.replace("%s", str(grant)), *isolation_flags(level), flag, grant, env=caller.environment()))
        (store / "version").read_text()
        assert sorted(os.listdir(grant)) == ["above", "beside"] and not (store / "made").exists()


def test_private_files_in_a_grant(caller):
    """Under isolation process a caller's sandboxes have one user id: what has the private files of all of them is not granted to one. What root runs has ids of its own."""
    flags, around = process_isolation(), caller.directory(0o755)
    temporary = around / "temporary"
    temporary.mkdir(mode=0o755)
    (around / "beside").mkdir()
    caller.own(temporary, around / "beside")
    caller.write(temporary / "given", "given")
    env = caller.environment(TMPDIR=str(temporary))
    look = 'cat "$0"/rollbox-*/*/secret 2>/dev/null; echo forged 2>/dev/null >"$0"/rollbox-*/1/secret; true'
    with caller.start(*flags, "--", "sh", "-c", 'echo private >secret; echo; read -r _; cat secret', env=env) as other:
        assert other.line() == ""
        for grant in (temporary, around):
            for flag in ("--readable", "--shared"):
                if not caller.uid and flag == "--shared":
                    continue
                result = caller.run(*flags, flag, grant, "--", "sh", "-c", look, temporary, env=env)
                if caller.uid:
                    assert (result.outcome, result.error["code"]) == ("error", "policy_invalid") and str(temporary) in result.error["message"], result.told
                else:
                    assert (result.outcome, result.stdout) == ("exit", ""), result.told
        for more in (["--readable", temporary / "given"], ["--readable", around, "--denied", temporary]):
            result = caller.run(*flags, *more, "--", "sh", "-c", look, temporary, env=env)
            assert (result.outcome, result.stdout) == ("exit", ""), result.told
        other.say()
        assert other.finish()[:2] == (0, b"private\n")


def test_denied_survives_being_a_system_path(caller):
    """--denied holds for a file and a directory below the default grants."""
    result = caller.run(
        "--denied",
        "/etc/login.defs",
        "--denied",
        "/usr/lib/python3",
        "--",
        "sh",
        "-c",
        "cat /etc/login.defs; ls /usr/lib/python3; cat /etc/group >/dev/null && echo rest",
    )
    assert result.stdout == "rest\n", result.told


@pytest.mark.parametrize("level", ["namespace", "process"])
def test_denied_holds_for_grants_that_lead_into_it(caller, level):
    """A link does not get round a denial: a grant that leads below it is refused, and a default one that does is left out."""
    flags, place = isolation_flags(level), caller.directory(0o755)
    inside, link = place / "denied" / "inside", place / "link"
    inside.mkdir(parents=True)
    caller.write(inside / "key", "secret")
    link.symlink_to(inside)
    for denied in (inside.parent, inside):
        done = caller.rollbox("run", *flags, "--readable", link, "--denied", denied, "--", "cat", inside / "key", text=True)
        assert (done.returncode, done.stdout) == (125, ""), done
        assert f"{link}: leads to {inside}, and {denied} is denied (fs_denied); " in done.stderr, done.stderr
    if os.path.islink("/bin"):
        result = caller.run(*flags, "--denied", "/usr", "--", "/bin/true")
        assert result.outcome == "error" and result.error["stage"] == "exec", result.told


def test_device_files(caller):
    """/dev has the harmless devices only, they work, and no other device of the host can be opened."""
    refused(
        caller.python(
            TRY + "import os, stat\n"
            "harmless = {'null', 'zero', 'full', 'random', 'urandom', 'tty', 'ptmx', 'pts', 'shm', 'fd', 'stdin', 'stdout', "
            "'stderr', 'mqueue'}\n"
            "for name in os.listdir('/dev'):\n"
            "    if name not in harmless: print(name)\n"
            "for name in ('mem', 'kmem', 'port', 'kmsg', 'kvm', 'fuse', 'sda', 'vda', 'loop0', 'loop-control', 'net/tun', "
            "'vhost-net', 'console', 'tty0', 'tty1', 'nvme0n1', 'dri/card0'):\n"
            "    if attempt(os.open, '/dev/' + name, os.O_RDONLY) is not None: print(name)\n"
            "open('/dev/null', 'w').write('x')\n"
            "if open('/dev/zero', 'rb').read(4) != bytes(4) or len(open('/dev/urandom', 'rb').read(8)) != 8: print('broken')\n"
        )
    )


def test_dev_not_writable(caller):
    """A guest cannot replace /dev/null or add to /dev."""
    refused(
        caller.python(
            TRY + "import os\n"
            "for what, a in ((os.unlink, ('/dev/null',)), (os.rename, ('/dev/null', '/dev/x')), (os.symlink, ('/etc', '/dev/x')), "
            "(os.mkdir, ('/dev/d',)), (os.chmod, ('/dev/null', 0))):\n"
            "    try: what(*a); print(what.__name__)\n"
            "    except OSError: pass\n"
        )
    )


# ---- /proc and /sys ----


def test_proc_dangerous_files_masked(caller):
    """The kernel's memory, keys, timers and triggers are neither readable nor writable in /proc."""
    refused(
        caller.python(
            TRY + "import os\n"
            "for name in ('kcore', 'keys', 'key-users', 'timer_list', 'sched_debug', 'kmsg', 'sysrq-trigger', 'latency_stats', "
            "'vmallocinfo', 'slabinfo', 'kpagecount',\n"
            "             'kpageflags', 'mtrr', 'scsi', 'acpi', 'bus', 'driver', 'vmcore', 'asound'):\n"
            "    got = attempt(lambda: open('/proc/' + name, 'rb').read(64)) or attempt(os.listdir, '/proc/' + name)\n"
            "    if got: print(name, got)\n"
            "for name in ('kallsyms', 'iomem', 'ioports', 'modules'):\n"
            "    for line in attempt(lambda: open('/proc/' + name).readlines()) or []:\n"
            "        if any(len(word) > 7 and int(word, 16) for word in __import__('re').findall('[0-9a-f]{8,}', line)): print(name, "
            "'has addresses'); break\n"
        )
    )


def test_proc_sys_not_writable(caller):
    """No sysctl, core pattern, uevent helper, trigger or /proc setting of the machine can be written."""
    before = {
        name: Path("/proc/sys", name).read_text()
        for name in ("kernel/core_pattern", "kernel/hostname", "kernel/modprobe")
        if Path("/proc/sys", name).exists()
    }
    refused(
        caller.python(
            TRY + "import os\n"
            "for name in ('sys/kernel/core_pattern', 'sys/kernel/modprobe', 'sys/kernel/hostname', 'sys/kernel/domainname', "
            "'sys/kernel/sysrq', 'sys/vm/drop_caches', 'sys/vm/overcommit_memory',\n"
            "             'sys/net/ipv4/ip_forward', 'sys/net/core/somaxconn', 'sys/net/ipv4/ping_group_range', "
            "'sys/net/ipv4/ip_unprivileged_port_start', 'sys/user/max_user_namespaces',\n"
            "             'sys/fs/binfmt_misc/register', 'sys/kernel/ns_last_pid', 'sys/kernel/shmmax', 'sys/kernel/msgmax', "
            "'sysrq-trigger', 'irq/0/smp_affinity', 'mtrr', 'acpi/wakeup', 'timer_stats',\n"
            "             '1/oom_score_adj', '1/uid_map', '1/attr/current', '1/comm', '1/clear_refs', '1/timens_offsets', "
            "'1/coredump_filter', 'self/uid_map', 'self/gid_map', 'self/setgroups'):\n"
            "    try: fd = os.open('/proc/' + name, os.O_WRONLY)\n"
            "    except OSError: continue\n"
            "    try: os.write(fd, b'1'); print(name)\n"
            "    except OSError: pass\n"
        )
    )
    assert all(Path("/proc/sys", name).read_text() == text for name, text in before.items())


def test_sys_not_writable(caller):
    """/sys, where there is one, has nothing to write and no cgroup, kernel or firmware files."""
    refused(
        caller.python(
            TRY + "import os\n"
            "for name in ('/sys/kernel/uevent_helper', '/sys/power/state', '/sys/fs/cgroup/memory/release_agent', "
            "'/sys/fs/cgroup/release_agent', '/sys/fs/cgroup/cgroup.procs', '/sys/kernel/mm/transparent_hugepage/enabled'):\n"
            "    if attempt(os.open, name, os.O_WRONLY) is not None: print(name)\n"
            "for name in ('/sys/kernel/debug', '/sys/kernel/tracing', '/sys/kernel/security', '/sys/firmware', '/sys/fs/bpf', "
            "'/sys/module'):\n"
            "    if attempt(os.listdir, name): print(name)\n"
            "own = {'cgroup.controllers', 'memory.max', 'memory.high', 'memory.swap.max', 'cpu.max', 'pids.max'}\n"
            "print(*set(attempt(os.listdir, '/sys/fs/cgroup') or ()) - own, end='')\n"
            "for name in own:\n"
            "    if attempt(os.open, '/sys/fs/cgroup/' + name, os.O_WRONLY) is not None: print(name)\n"
        )
    )


def test_oom_score_cannot_be_lowered(caller):
    """A guest cannot make the host's OOM killer prefer others."""
    result = caller.run("--", "sh", "-c", "echo -1000 > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj")
    assert int(result.stdout) >= 0, result.told


def test_host_processes_invisible(caller):
    """Only the sandbox's own processes are in /proc; the first one is our init."""
    result = caller.python(
        "import os; print(len([d for d in os.listdir('/proc') if d.isdigit()]), os.getppid(), max(int(d) for d in "
        "os.listdir('/proc') if d.isdigit()))"
    )
    count, parent, highest = map(int, result.stdout.split())
    assert count <= 3 and parent <= 2 and highest < 50, result.told


def test_host_processes_unkillable(caller):
    """A process of the caller's on the host cannot be signalled by its number, a group or everyone."""
    with caller.popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim:
        for code in (
            f"os.kill({victim.pid}, 9)",
            f"os.killpg({victim.pid}, 9)",
            f"os.kill(-{victim.pid}, 9)",
            "os.kill(-1, 9)",
            "os.kill(0, 0)",
        ):
            caller.python(f"import os\ntry: {code}\nexcept OSError: pass")
        victim.stdin.write(b"alive")
        victim.stdin.close()
        assert victim.stdout.read() == b"alive" and victim.wait() == 0


def test_kill_minus_one_keeps_the_outcome(caller):
    """kill(-1, 9) ends the guest's other processes, not init: the main program's status is still told."""
    result = caller.python(
        "import os, sys\n"
        "r, w = os.pipe()\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n        os.close(r)\n        while True: os.read(0, 1) or __import__('signal').pause()\n"
        "os.close(w)\nos.kill(-1, 9)\nos.read(r, 1)\nsys.exit(7)"
    )
    assert (result.outcome, result.exit_code) == ("exit", 7), result.told


def test_own_kill_is_a_signal_not_a_limit(caller):
    """A guest that kills itself is a signal outcome, never out_of_memory or an error that would be retried."""
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGSYS, signal.SIGXCPU, 34, 64):
        result = caller.python(f"import os; os.kill(os.getpid(), {int(number)})")
        assert (result.outcome, result.signal, result.exit_code) == ("signal", number, None), result.told


def test_limits_of_init_cannot_make_an_error(caller):
    """A guest that lowers pid 1's limits and keeps it busy does not make its own result an error, which would be retried and not scored."""
    result = caller.python(
        "import os, resource\n"
        "for r in range(16):\n"
        "    try: resource.prlimit(1, r, (0, 0) if r != resource.RLIMIT_CPU else (1, 1))\n    except (OSError, ValueError): pass\n"
        "for f, a in ((os.setpriority, (os.PRIO_PROCESS, 1, 19)), (os.sched_setscheduler, (1, os.SCHED_IDLE, os.sched_param(0)))):\n"
        "    try: f(*a)\n    except OSError: pass\n"
        "for i in range(200):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        for _ in range(10):\n"
        "            try:\n"
        "                if os.fork() == 0: os._exit(0)\n"
        "            except OSError: pass\n"
        "        os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
        "os._exit(6)"
    )
    assert (result.outcome, result.exit_code) == ("exit", 6), result.told


@pytest.mark.parametrize("status", [0, 1, 124, 125, 126, 127, 128, 137, 255])
def test_exit_statuses_cannot_forge_outcomes(caller, status):
    """A guest that exits with a status that rollbox uses itself is an exit, nothing else."""
    result = caller.run("--", "sh", "-c", f"exit {status}")
    assert (result.outcome, result.exit_code, result.signal, result.error) == ("exit", status, None, None), result.told


def test_printed_result_is_not_the_result(caller):
    """A guest that prints a result object has it in its stdout, nowhere else."""
    fake = json.dumps({"outcome": "exit", "exit_code": 0, "stdout": "", "stderr": ""})
    result = caller.python(f"print({fake!r}); raise SystemExit(3)")
    assert (result.outcome, result.exit_code, result.stdout) == ("exit", 3, fake + "\n"), result.told


# ---- system calls: each probe is a group of attempts in guests/probe.c ----


@pytest.mark.parametrize(
    "probe",
    [
        "unshare",
        "clone",
        "clone3",
        "setns",
        "mount",
        "chroot",
        "handles",
        "mknod",
        "io_uring",
        "bpf",
        "keys",
        "machine",
        "int80",
        "x32",
        "init",
        "signal_init",
        "rights",
        "odd_sockets",
        "raw_sockets",
        "descriptors",
        "memfd_secret",
        "setuid_file",
    ],
)
def test_system_call(caller, probe):
    """No namespace, mount, root, handle, device, io_uring, bpf, key, machine, other-ABI, init, right or odd socket by system call."""
    holds(caller.guest("escape_probe", probe))


@pytest.mark.parametrize(
    "probe",
    ["unshare", "clone", "clone3", "mount", "chroot", "handles", "mknod", "bpf", "machine", "rights", "raw_sockets", "init"],
)
def test_system_call_as_sandbox_root(caller, probe):
    """User `root` of a sandbox has no more rights than any other."""
    holds(caller.guest("escape_probe", probe, flags=["--user", "root"]))


REACH_FOR_A_PROCESS = """
import fcntl, os, resource, signal, socket
victim = @PID@
def attempt(name, what):
    try: got = what()
    except (OSError, ValueError): return
    print(name, got)
for name in ("environ", "mem", "maps", "fd", "fd/0", "cwd/.", "root/etc/shadow", "syscall", "stack", "io", "auxv"):
    path = f"/proc/{victim}/{name}"
    attempt("read " + name, lambda: os.read(os.open(path, os.O_RDONLY), 1) if name != "fd" else os.listdir(path))
attempt("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(victim), signal.SIGKILL))
attempt("prlimit", lambda: resource.prlimit(victim, resource.RLIMIT_NOFILE, (0, 0)))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, victim, 19))
try: os.sched_setaffinity(victim, [0])          # succeeds, and does nothing: see the caller
except OSError: pass
attempt("scheduler", lambda: os.sched_setscheduler(victim, os.SCHED_IDLE, os.sched_param(0)))
attempt("killpg", lambda: os.killpg(os.getpgid(victim), signal.SIGKILL))
def by_descriptor():
    a, b = socket.socketpair()
    fcntl.fcntl(a, fcntl.F_SETOWN, victim)
    fcntl.fcntl(a, 10, int(signal.SIGKILL))     # F_SETSIG
    fcntl.fcntl(a, fcntl.F_SETFL, fcntl.fcntl(a, fcntl.F_GETFL) | os.O_ASYNC)
    b.send(b"x")
try: by_descriptor()
except OSError: pass
"""


@pytest.mark.parametrize("level", ["namespace", "process"])
def test_process_of_the_host_is_out_of_reach(caller, level):
    """No file of /proc, pidfd, limit, priority, scheduler or descriptor's owner lets a process of the same user be read or changed."""
    with caller.popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=caller.environment(SECRET="x")) as victim:
        settings = [
            Path(f"/proc/{victim.pid}/limits").read_text(),
            os.sched_getaffinity(victim.pid),
            os.getpriority(os.PRIO_PROCESS, victim.pid),
        ]
        refused(caller.python(REACH_FOR_A_PROCESS.replace("@PID@", str(victim.pid)), *isolation_flags(level)))
        assert settings == [
            Path(f"/proc/{victim.pid}/limits").read_text(),
            os.sched_getaffinity(victim.pid),
            os.getpriority(os.PRIO_PROCESS, victim.pid),
        ]
        victim.stdin.write(b"alive")
        victim.stdin.close()
        assert victim.stdout.read() == b"alive" and victim.wait() == 0


def test_init_binary_overwrite(caller):
    """No process can open rollbox's own programs for writing through /proc/*/exe, by any of the known detours."""
    digest = {
        name: hashlib.sha256((binaries() / name).read_bytes()).digest() for name in ("rollbox", "rollbox-engine", "rollbox-init")
    }
    refused(
        caller.python(
            "import os\n"
            "for pid in ('1', 'self', str(os.getppid())):\n"
            "    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):\n"
            "        try: os.open(f'/proc/{pid}/exe', flags); print('opened', pid)\n"
            "        except OSError: pass\n"
            "    try:\n"
            "        fd = os.open(f'/proc/{pid}/exe', os.O_PATH)\n"
            "        os.open(f'/proc/self/fd/{fd}', os.O_RDWR); print('opened by O_PATH', pid)\n"
            "    except OSError: pass\n"
        )
    )
    script = caller.directory(0o755)
    caller.write(script / "run", "#!/proc/self/exe\n", 0o755)
    caller.run("--readable", script, "--timeout", "5", "--", script / "run")
    for argv in (["/proc/self/exe"], ["/proc/1/exe"], ["/proc/self/exe", "--help"]):
        result = caller.run("--timeout", "5", "--", *argv)
        assert result.outcome in ("exit", "signal", "error", "timeout"), result.told
    assert digest == {name: hashlib.sha256((binaries() / name).read_bytes()).digest() for name in digest}


def test_terminal_injection(caller):
    """With a terminal as standard input, TIOCSTI (in any disguise) cannot type into the caller's shell."""
    master, slave = pty.openpty()
    try:
        program = guest("escape_probe")
        os.chown(os.ttyname(slave), caller.uid, -1)
        done = caller.rollbox("run", "--readable", program.parent, "--", program, "tiocsti", stdin=slave)
        assert done.returncode == 0, done.stdout
        assert not select.select([slave], [], [], 0)[0], "something was typed"
    finally:
        os.close(master)
        os.close(slave)


def test_no_controlling_terminal(caller):
    """The guest has a session of its own: /dev/tty is not the caller's terminal."""
    result = caller.python(
        "import os\ntry: os.open('/dev/tty', os.O_RDWR); print('opened')\nexcept OSError: pass\nprint(os.getsid(0) != 0)"
    )
    assert "opened" not in result.stdout, result.told


# ---- what the caller has must not leak in ----


def test_inherited_descriptors(caller):
    """Of the caller's open files the guest has 0, 1 and 2 only, however high their number."""
    secret = os.open(caller.write(caller.home / "secret6", "secret"), os.O_RDONLY)
    high = []
    try:
        for number in (3, 9, 77, 500, 1023):
            with contextlib.suppress(OSError):
                os.fstat(number)
                continue
            os.dup2(secret, number)
            high.append(number)
        directory = os.open("/", os.O_RDONLY)
        high.append(directory)
        program = guest("escape_probe")
        done = caller.rollbox("run", "--readable", program.parent, "--", program, "descriptors", pass_fds=high)
        assert done.returncode == 0, done.stdout
    finally:
        for number in {*high, secret}:
            os.close(number)


def test_environment_does_not_leak(caller):
    """No variable of the caller's environment is seen: not in environ, not in /proc, not in init's."""
    result = caller.python(
        "import os, json\nfound = dict(os.environ)\n"
        "for pid in ('self', '1', str(os.getppid())):\n"
        "    try: found[pid] = open(f'/proc/{pid}/environ').read()\n    except OSError: pass\n"
        "print(json.dumps(found))",
        env=caller.environment(API_KEY="sk-secret-value", LD_PRELOAD="/nonexistent.so", PYTHONPATH="/nonexistent"),
    )
    assert "sk-secret-value" not in result.stdout and "nonexistent" not in result.stdout, result.stdout
    seen = json.loads(result.stdout)
    assert seen["HOME"] == "/tmp" and seen["LANG"] == "C.UTF-8" and "TMPDIR" not in seen, seen


def test_identity_does_not_leak(caller):
    """Host name, user and groups are the sandbox's."""
    result = caller.python(
        "import os, socket; print(socket.gethostname(), os.getuid(), os.getgid(), os.getgroups(), os.getcwd())"
    )
    name, uid, gid, *groups, cwd = result.stdout.split()
    assert (name, uid, cwd) == ("rollbox", "1000", "/tmp") and "0" not in "".join(groups).strip("[]").split(","), result.stdout


def test_run_by_root_is_not_root(caller):
    """Run by root, a guest's processes have an unprivileged uid of the host; root's files stay closed even where a grant shows them."""
    if caller.uid != 0:
        skip("needs root")
    grant = caller.directory(0o755)
    caller.write(grant / "mine", "secret", 0o600)
    for user in ("box", "root"):
        with caller.start(
            "--user", user, "--readable", grant, "--", *PYTHON, "import os; print('up', flush=True); input()"
        ) as run:
            assert run.line() == "up"
            family = run.family()
            uids = set()
            for pid, fd in family.items():
                os.close(fd)
                status = Path(f"/proc/{pid}/status").read_text(errors="replace")
                if "python3" in status.splitlines()[0]:
                    uids |= set(next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:])
            assert uids and "0" not in uids, uids
            run.say("x")
            run.finish()


def test_mount_table_shows_no_ungranted_place(caller):
    """The mount table does not show places of the caller's that were not granted."""
    result = caller.run("--", "cat", "/proc/self/mountinfo")
    assert str(caller.home) not in result.stdout, result.stdout


# ---- processes that outlive ----


@contextlib.contextmanager
def fifo_in_grant(who):
    """A shared grant with a FIFO, opened for reading by the test: its end tells that no guest process is left."""
    grant = who.directory(0o777)
    path = grant / "fifo"
    os.mkfifo(path)
    who.own(path)
    os.chmod(path, 0o666)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(fd, True)
    try:
        yield grant, path, fd
    finally:
        os.close(fd)


DAEMON = (
    "import os, signal, sys\n"
    "ready_r, ready_w = os.pipe()\n"
    "for _ in range(3):\n"
    "    if os.fork() == 0:\n"
    "        os.setsid()\n"
    "        if os.fork() == 0:\n"
    "            for s in range(1, 65):\n"
    "                try: signal.signal(s, signal.SIG_IGN)\n"
    "                except (OSError, ValueError): pass\n"
    "            os.open('@FIFO@', os.O_WRONLY)\n"
    "            os.write(ready_w, b'x')\n"
    "            while True: signal.pause()\n"
    "        os._exit(0)\n"
    "left = 3\n"
    "while left: left -= len(os.read(ready_r, left))\n"
)


@pytest.mark.parametrize("isolation", ["namespace", "process"])
def test_daemons_die_with_the_main_program(caller, isolation):
    """Double-forked, setsid, signal-proof daemons are gone when the main program ends, and do not hold its result up."""
    with fifo_in_grant(caller) as (grant, path, fd):
        result = caller.python(
            DAEMON.replace("@FIFO@", str(path)) + "print('done')", "--shared", grant, *isolation_flags(isolation)
        )
        assert (result.outcome, result.exit_code, result.stdout) == ("exit", 0, "done\n"), result.told
        wait_writers_gone(fd)


@pytest.mark.parametrize("isolation", ["namespace", "process"])
def test_daemons_die_at_the_timeout(caller, isolation):
    """A time-out kills every descendant, not just the main program."""
    with fifo_in_grant(caller) as (grant, path, fd):
        result = caller.python(
            DAEMON.replace("@FIFO@", str(path)) + "while True: signal.pause()",
            "--shared",
            grant,
            *isolation_flags(isolation),
            "--timeout",
            "1",
        )
        assert result.outcome == "timeout", result.told
        wait_writers_gone(fd)


def test_daemons_holding_the_streams(caller):
    """A daemon that holds the output open does not keep the caller waiting once the main program has ended."""
    done = caller.rollbox("run", "--", "sh", "-c", "setsid sleep 1000 & setsid sleep 1000 & echo done")
    assert (done.returncode, done.stdout) == (0, b"done\n"), done


def test_stopped_guest_times_out(caller):
    """A guest that stops itself and all its children is still ended by the time-out."""
    result = caller.python(
        "import os, signal\nfor _ in range(3):\n    if os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)\nos.kill(os.getpid(), "
        "signal.SIGSTOP)",
        "--timeout",
        "0.5",
    )
    assert result.outcome == "timeout", result.told


def test_signal_proof_guest_times_out(caller):
    """So is one that blocks and ignores every signal."""
    result = caller.python(
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('here', flush=True)\nwhile True: pass",
        "--timeout",
        "0.7",
    )
    assert (result.outcome, result.stdout) == ("timeout", "here\n"), result.told


def test_vfork_and_trace_stops_time_out(caller):
    """So is one whose parent waits in vfork, and one that traces its own child."""
    result = caller.run(
        "--timeout",
        "0.7",
        "--",
        "sh",
        "-c",
        "exec python3 -I -S -c 'import os\nos.posix_spawn(\"/bin/sleep\", [\"sleep\", \"1000\"], {})\nos.wait()'",
    )
    assert result.outcome == "timeout", result.told


# ---- one sandbox against another ----


def test_private_tmp_and_shm(caller):
    """Two runs, one after the other and at once, share no file of /tmp, /dev/shm, /var/tmp or a SysV or POSIX object."""
    mark = (
        "for d in /tmp /dev/shm /var/tmp /run /dev/mqueue; do echo x > $d/rollbox-mark; done 2>/dev/null; ls /tmp /dev/shm "
        "/var/tmp /run 2>/dev/null | grep -c rollbox-mark; "
    )
    with caller.start("--", "sh", "-c", mark + "read line") as first:
        count = int(first.line())
        assert count >= 2
        again = caller.run("--", "sh", "-c", "ls -A /tmp /dev/shm /var/tmp /run 2>/dev/null | grep rollbox-mark")
        assert again.stdout == "" and again.exit_code == 1, again.told
        first.say()
        first.finish()
    assert not any(Path(d, "rollbox-mark").exists() for d in ("/tmp", "/dev/shm", "/var/tmp", "/run"))


def test_sysv_and_mqueue_private(caller):
    """SysV shared memory and POSIX queues of one sandbox are not another's, nor the host's."""
    with caller.start(
        "--", "sh", "-c", "ipcmk -M 4096 >/dev/null 2>&1; ipcmk -S 1 >/dev/null 2>&1; ipcs -m | grep -c 0x; read line"
    ) as first:
        first.line()  # 0 where a sandbox without a memory cgroup has no such memory at all
        result = caller.run("--", "sh", "-c", "ipcs -m -s | grep -c 0x")
        assert result.stdout == "0\n", result.told
        first.say()
        first.finish()


def test_posix_queues_are_missing(caller):
    """Not EACCES, which a program takes for a fault of its own, with Landlock or without."""
    code = (
        "import ctypes, errno, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "for name in (b'/of-ours', b'/of-the-host'):\n"
        "    print(libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None), errno.errorcode[ctypes.get_errno()])\n"
    )
    result = caller.run("--", "python3", "-c", code)
    assert result.stdout == "-1 ENOSYS\n" * 2, result.told


def test_disks_and_swap_of_the_host_are_hidden(caller):
    """Names and sizes of the one, and how much is used of the other, which tells what the host and other sandboxes do."""
    result = caller.run("--", "cat", "/proc/partitions", "/proc/swaps", "/proc/diskstats", "/proc/interrupts")
    assert (result.outcome, result.exit_code, result.stdout) == ("exit", 0, ""), result.told
    result = caller.run("--memory", "64M", "--", "grep", "-v", " 0$", "/proc/vmstat")
    assert result.stdout == "nr_free_pages 16384\n", result.told


def abstract_sockets_can_be_held(net):
    if net == "host" and "landlock" in os.environ.get("ROLLBOX_KFEAT", ""):
        pytest.skip(
            "without Landlock's scopes (before kernel 6.12) net host includes the host's abstract sockets: docs/reference/security-limits.md"
        )


# Tests run beside each other, and on the host's network there is one such name.
MEETING = f"rollbox-meeting-{os.getpid()}"
ABSTRACT_SERVER = (
    "import socket, sys\ns = socket.socket(socket.AF_UNIX)\n"
    f"try: s.bind('\\0{MEETING}'); s.listen(); print('bound', flush=True)\nexcept OSError as e: print('refused', flush=True)\n"
    "sys.stdin.readline()"
)
ABSTRACT_CLIENT = (
    "import socket\nfor kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):\n"
    f"    try: socket.socket(socket.AF_UNIX, kind).connect('\\0{MEETING}'); print('met')\n    except OSError: pass\n"
    f"try:\n    if '{MEETING}' in open('/proc/net/unix').read(): print('seen in /proc/net/unix')\nexcept OSError: pass\n"
)


@pytest.mark.parametrize("net", ["none", "loopback", "host"])
def test_abstract_sockets_between_sandboxes(caller, net):
    """An abstract socket of one sandbox cannot be reached from another, even where they share a network namespace."""
    abstract_sockets_can_be_held(net)
    with caller.start("--net", net, "--", *PYTHON, ABSTRACT_SERVER) as first:
        first.line()
        result = caller.python(ABSTRACT_CLIENT, "--net", net)
        assert "met" not in result.stdout, result.told
        if net != "host":
            assert result.stdout == "", result.told
        first.say()
        first.finish()


@pytest.mark.parametrize("net", ["none", "loopback", "host"])
def test_abstract_sockets_of_the_host(caller, net):
    """Nor can one of the host's, such as a session bus or X."""
    abstract_sockets_can_be_held(net)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{MEETING}")
        server.listen()
        result = caller.python(ABSTRACT_CLIENT, "--net", net)
        assert "met" not in result.stdout, result.told


@pytest.mark.parametrize("net", ["none", "loopback"])
def test_netlink_between_sandboxes(caller, net):
    """Two sandboxes cannot pass messages by netlink's user sockets in a network namespace that they share."""
    result = caller.python(
        "import socket\ntry: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 2).bind((4242, 0)); print('bound')\nexcept OSError: pass",
        "--net",
        net,
    )
    assert result.stdout == "", result.told


@pytest.mark.parametrize("net", ["none", "loopback"])
def test_ports_are_private(caller, net):
    """A port bound in one sandbox is free in another, and does not lead to it."""
    server = (
        "import socket, sys\n"
        "try:\n    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0); s.bind(('127.0.0.1', 34567)); "
        "s.listen(); print('bound', flush=True)\n"
        "except OSError as e: print('refused', e.errno, flush=True)\nsys.stdin.readline()"
    )
    with caller.start("--net", net, "--", *PYTHON, server) as first:
        said = first.line()
        result = caller.python(
            "import socket\ntry: socket.create_connection(('127.0.0.1', 34567), 2); print('met')\nexcept OSError: pass\n"
            "try: socket.socket().bind(('127.0.0.1', 34567)); print('bound')\nexcept OSError as e: print('refused', e.errno)",
            "--net",
            net,
        )
        assert "met" not in result.stdout, result.told
        if said == "bound":
            assert result.stdout == "bound\n", result.told
        first.say()
        first.finish()
    if net == "loopback":
        assert said == "bound", said


def test_loopback_works_inside(caller):
    """`--net loopback` has a loopback of its own that carries TCP and UDP."""
    result = caller.python(
        "import socket\ns = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname(), 5); "
        "s.accept()[0].sendall(b'hi'); print(c.recv(2).decode())\n"
        "u = socket.socket(type=socket.SOCK_DGRAM); u.bind(('127.0.0.1', 0)); u.sendto(b'x', u.getsockname()); print(u.recv(1).decode())",
        "--net",
        "loopback",
    )
    assert result.stdout == "hi\nx\n", result.told


@pytest.mark.parametrize("net", ["none", "loopback"])
def test_host_loopback_unreachable(caller, net):
    """A service on the host's loopback is reached by no transport: TCP, IPv6, MPTCP, SCTP, SMC, UDP, fast open."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        port = server.getsockname()[1]
        datagrams.bind(("127.0.0.1", port))
        holds(caller.guest("escape_probe", "netconnect", port, flags=["--net", net]))
        assert not select.select([server, datagrams], [], [], 0)[0], "something arrived"


def test_network_none_has_no_way_out(caller):
    """Without a network there is no interface that is up, no route and no address but, at most, an idle loopback."""
    result = caller.python(
        "import socket\nfor a in (('1.1.1.1', 53), ('8.8.8.8', 53), ('169.254.169.254', 80)):\n"
        "    try: socket.create_connection(a, 1); print('connected', a)\n    except OSError: pass\n"
        "    try: socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', a); print('sent', a)\n    except OSError: pass\n"
        "try: names = [n for _, n in socket.if_nameindex()]\nexcept OSError: names = []\nprint(*[n for n in names if n != 'lo'])"
    )
    assert result.stdout == "\n", result.told


def test_host_unix_sockets_unreachable(caller):
    """A Unix socket of the host is reachable only below a shared grant; a readable one does not let the guest talk to a service."""
    grant = caller.directory(0o777)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(grant / "service"))
        os.chmod(grant / "service", 0o777)
        server.listen()
        server.setblocking(False)
        for flags in ([], ["--readable", grant]):
            result = caller.python(
                f"import socket\ntry: socket.socket(socket.AF_UNIX).connect('{grant}/service'); print('met')\nexcept OSError: pass",
                *flags,
            )
            if not flags:
                assert result.stdout == "", result.told
        if result.stdout:
            pytest.xfail("a socket file below a readable grant can be connected to: documented in docs/reference/security-limits.md")


def test_parallel_runs_are_isolated(caller):
    """Eight runs at once, all writing the same names in /tmp and in a copy-on-write grant, each read back their own."""
    grant = caller.directory(0o755)
    caller.write(grant / "file", "original")
    code = (
        f"import sys\nfor i in range(20):\n    for f in ('/tmp/file', '/dev/shm/file', '{grant}/file'):\n        open(f, "
        f"'w').write(sys.argv[1]); assert open(f).read() == sys.argv[1]\nprint(sys.argv[1])"
    )
    rows = caller.batch(
        [{"id": str(i), "argv": [*PYTHON, code, str(i)], "policy": {"fs_writable": [str(grant)]}} for i in range(16)], "-j", "8"
    )
    assert {i: row["stdout"] for i, row in rows.items()} == {str(i): f"{i}\n" for i in range(16)}
    assert (grant / "file").read_text() == "original"


def test_job_cannot_change_the_next_jobs_files(caller):
    """A warm engine gives the next job of the same policy nothing that the last one left: files, processes, limits, umask, cwd."""
    first = "umask 0; touch /tmp/a /dev/shm/b; mkdir /tmp/c; setsid sleep 1000 & sleep 1000 & ulimit -n 64; cd /tmp/c; echo x"
    second = "umask; ls -A /tmp /dev/shm; pwd; ulimit -n; ps -e -o comm= 2>/dev/null | grep -c sleep"
    rows = caller.batch([{"id": "1", "argv": ["sh", "-c", first]}, {"id": "2", "argv": ["sh", "-c", second]}], "-j", "1")
    assert rows["1"]["exit_code"] == 0, rows
    assert rows["2"]["stdout"].split() == ["0022", "/dev/shm:", "/tmp:", "/tmp", "4096", "0"], rows["2"]


# ---- output ----


def test_output_of_any_bytes(caller):
    """Bytes that are no UTF-8 are replaced in the text and kept, exactly, in base64; valid text has no base64."""
    raw = bytes(range(256)) + b"\xed\xa0\x80\xc0\xaf\xf5\x80\x80\x80\xf0\x9f\x98" + "é😀".encode()
    result = caller.python(f"import os\nos.write(1, {raw!r})\nos.write(2, 'gültig 😀'.encode())")
    assert base64.b64decode(result.raw["stdout_base64"]) == raw
    assert result.stdout == raw.decode("utf-8", "replace") or "\ufffd" in result.stdout
    assert result.stderr == "gültig 😀" and "stderr_base64" not in result.raw


def test_characters_across_reads(caller):
    """A character whose bytes arrive apart is one character."""
    result = caller.python(
        "import os\nfor byte in ('é😀' * 50).encode(): os.write(1, bytes([byte]))\nos.write(1, ('é' * 200000).encode())"
    )
    assert result.stdout == "é😀" * 50 + "é" * 200000 and "stdout_base64" not in result.raw


def test_nul_and_control_characters(caller):
    """NUL, escape sequences, quotes and line separators come through JSON unharmed."""
    text = "\0\x01\x1b]0;title\x07\"\\/\b\f\n\r\t\x7f\x85\u2028\u2029\ufeff\uffff"
    result = caller.python(f"import sys\nsys.stdout.buffer.write({text!r}.encode())")
    assert result.stdout == text, result.told


def test_closed_streams(caller):
    """A guest that closes its streams at once is a normal run, with its own status."""
    result = caller.python("import os\nos.closerange(0, 64)\nos._exit(5)")
    assert (result.outcome, result.exit_code, result.stdout, result.stderr) == ("exit", 5, "", ""), result.told


def test_closed_streams_then_loop(caller):
    """A program that closes them and continues is ended by its time-out, not forgotten."""
    result = caller.python("import os\nos.write(1, b'before')\nos.closerange(0, 64)\nwhile True: pass", "--timeout", "3")
    assert (result.outcome, result.stdout) == ("timeout", "before"), result.told


def test_output_before_the_timeout_is_kept(caller):
    """What was written before a time-out is in the result, from all processes."""
    result = caller.python(
        "import os, time\nif os.fork() == 0:\n    os.write(2, b'child')\n    while True: time.sleep(9)\nos.write(1, b'parent')\n"
        "while True: time.sleep(9)",
        "--timeout",
        "3",
    )
    assert (result.outcome, result.stdout, result.stderr) == ("timeout", "parent", "child"), result.told


# ---- starving others ----


def test_fork_bomb_is_contained(caller):
    """A fork bomb stops at the limit and ends with the run; the sandbox beside it works on."""
    result = caller.guest("memory_load", "bomb", flags=["--processes", "20", "--timeout", "2"])
    assert result.outcome == "timeout" and result.processes_peak <= 21, result.told
    assert caller.run("--", "true").exit_code == 0


def test_shell_fork_bomb(caller):
    """The classic one in bash: it ends, one way or another, as an outcome of the guest."""
    result = caller.run("--processes", "20", "--timeout", "3", "--", "bash", "-c", ":(){ :|:& };:")
    assert result.outcome in ("exit", "signal", "timeout", "out_of_memory"), result.told
    wait_unmarked(":(){ :|:& };:")


def test_two_hundred_at_once(caller):
    """200 runs at once on one engine: every one has its own right result."""
    rows = caller.batch([{"id": str(i), "argv": ["sh", "-c", f"echo {i}; exit {i % 100}"]} for i in range(200)], "-j", "200")
    assert len(rows) == 200
    wrong = {
        i: row for i, row in rows.items() if (row["outcome"], row["exit_code"], row["stdout"]) != ("exit", int(i) % 100, f"{i}\n")
    }
    assert not wrong, list(wrong.values())[:3]


def few_files():
    """As a login has them: a small soft limit, and a hard one that is no more than a sandbox's own."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))


@pytest.mark.parametrize(
    "kind,honest",
    [
        ("inotify", "import ctypes; print(ctypes.CDLL(None).inotify_init1(0) >= 0)"),
        ("timers", "import ctypes; t = ctypes.c_void_p(); print(ctypes.CDLL(None).timer_create(1, None, ctypes.byref(t)) == 0)"),
    ],
    ids=["inotify", "timers"],
)
def test_per_user_kernel_counts_are_not_used_up(caller, kind, honest):
    """Inotify instances and timers are counted for a user as a whole: one sandbox cannot take those of another or of the caller."""
    program = guest("memory_load")
    with caller.start("--readable", program.parent, "--", program, kind, "200000") as first:
        taken = first.line()
        result = caller.run("--", "python3", "-c", honest)
        assert (result.outcome, result.stdout) == ("exit", "True\n"), (taken, result.told)
        assert caller.call("/usr/bin/python3", "-c", honest).stdout == b"True\n", taken
        first.finish()


def test_descriptors_in_flight_do_not_stop_the_engine(caller):
    """So are descriptors sent and not received: a sandbox full of them does not keep an engine of the same user from passing its own."""
    program = guest("memory_load")
    with caller.start("--readable", program.parent, "--", program, "inflight", "200000", preexec_fn=few_files) as first:
        taken = first.line()
        result = caller.run("--", "echo", "works", preexec_fn=few_files)
        assert (result.outcome, result.stdout) == ("exit", "works\n"), (taken, result.told)
        first.finish()


GRANTS = (
    "import os\nfor p in ('/proc/1/environ', '/etc/shadow', '/dev/mem', '/dev/kmsg', '/proc/kcore', '/proc/sysrq-trigger'):\n"
    "    try: fd = os.open(p, os.O_RDONLY)\n    except OSError: continue\n    if os.read(fd, 1): print(p)\n"
    "print(max(int(d) for d in os.listdir('/proc') if d.isdigit()) < 50)\n"
    "try: open('/etc/rollbox-was-here', 'w').write('x'); print('written')\nexcept OSError: pass\n"
)


@pytest.mark.parametrize("path", ["/", "/proc", "/sys", "/dev", "/tmp", "/run", "/etc", "/dev/shm", "/usr/bin/../.."])
def test_sweeping_grants(caller, path):
    """A grant of / or of a special directory is refused, or shows the sandbox's own /proc and /dev and none of the host's secrets."""
    done = caller.rollbox("run", "--readable", path, "--", *PYTHON, GRANTS)
    assert done.returncode == 0 and done.stdout == b"True\n" or done.returncode == 125 and done.stderr, done


def test_grants_within_grants(caller):
    """Of grants within each other the innermost holds, and a denied path within any of them stays denied."""
    top = caller.directory(0o755)
    for name in ("a/b/c/d", "a/other"):
        (top / name).mkdir(parents=True)
    for place in ("", "a", "a/b", "a/b/c", "a/b/c/d", "a/other"):
        caller.own(top / place)
        caller.write(top / place / "file", "original")
    result = caller.run(
        "--readable",
        top,
        "--shared",
        top / "a",
        "--readable",
        top / "a/b",
        "--writable",
        top / "a/b/c",
        "--denied",
        top / "a/b/c/d",
        "--",
        "sh",
        "-c",
        f"cd {top}; for d in . a a/b a/b/c a/b/c/d a/other; do (cat $d/file; echo changed > $d/file) >/dev/null 2>&1 && echo $d; done",
    )
    assert result.stdout.split() == ["a", "a/b/c", "a/other"], result.told
    assert [
        place for place in ("", "a", "a/b", "a/b/c", "a/b/c/d", "a/other") if (top / place / "file").read_text() != "original"
    ] == ["a", "a/other"]


def test_hostile_neighbours(caller):
    """Good jobs among bombs, floods and loops: each good one has the right result."""
    program = guest("memory_load")
    grant = {
        "fs_readable": ["/usr", "/bin", "/lib", "/lib64", "/etc", str(program.parent)],
        "max_processes": 16,
        "max_memory": "64M",
        "max_output": 65536,
    }
    bad = [
        [str(program), "bomb"],
        ["yes"],
        [str(program), "private", "512"],
        [str(program), "spin", "4"],
        ["sh", "-c", "kill -9 -1"],
    ]
    jobs = []
    for i in range(30):
        jobs.append(
            {"id": f"good{i}", "argv": ["sh", "-c", f"echo {i}"]}
            if i % 3
            else {"id": f"bad{i}", "argv": bad[i // 3 % 5], "policy": grant, "timeout_s": 0.5}
        )
    rows = caller.batch(jobs, "-j", "6")
    assert {i: row["stdout"] for i, row in rows.items() if i.startswith("good")} == {
        f"good{i}": f"{i}\n" for i in range(30) if i % 3
    }
    assert not (errors := [(i, row["error"]["message"]) for i, row in rows.items() if row["outcome"] == "error"]), errors
