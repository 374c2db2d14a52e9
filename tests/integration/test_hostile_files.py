# SPDX-License-Identifier: Apache-2.0
"""Files of the host and of other sandboxes that a guest tries to reach. Each test is named after
the hole it holds shut."""
import os
import stat
from pathlib import Path

import pytest
from attempts import TRY, isolation_flags, process_isolation, refused
from harness import binaries
from many_users import caller  # noqa: F401

# Also run with kernel features masked (ROLLBOX_KFEAT): each promise has two layers, and the other one must hold it.
pytestmark = pytest.mark.masked

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
    """A read-only grant cannot be written, truncated, renamed, re-moded or re-opened for writing
    through /proc/self/fd."""
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
    """Everything done below a private copy-on-write grant is gone with the run: the host and the
    next run see the original."""
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
        "--writable",
        grant,
        "--",
        "sh",
        "-c",
        f"ln -s {outside} {grant}/link; rm -rf {grant}/link/*; echo x > {grant}/link/kept",
    )
    assert (outside / "kept").read_text() == "kept" and os.listdir(grant) == []


def test_shared_grant_writes_through(caller):
    """The host sees the files that a guest writes below a shared grant, and the caller can handle them."""
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
    """A set-id file that a guest leaves in a shared directory never gives root's rights on the
    host, nor do capabilities or devices."""
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
    """A FIFO, left where the next job's file goes, does not make its set-up wait for ever: it ends
    as an error, a time-out or a run."""
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
    """A job's file paths with `..` or outside writable places are errors of that job, or stay
    inside; nothing appears on the host."""
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
    """A denied file or directory cannot be read, listed, renamed round, or reached by a second
    path, even inside a grant of any kind."""
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
    """A directory that only the caller may enter is hidden, too, also where it can be covered only
    from inside (below /tmp and /var/tmp)."""
    grant = caller.directory(0o755)
    (grant / "shut").mkdir(mode=0o700)
    caller.own(grant / "shut")
    for flag in ("--readable", "--writable", "--shared"):
        result = caller.run(
            flag,
            grant,
            "--denied",
            grant / "shut",
            "--",
            "sh",
            "-c",
            f"stat -c %a {grant}/shut; ls {grant}",
        )
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
    """A grant of a directory above the store gives nothing of it: it has images, memory of
    hibernated sandboxes, and private files of others."""
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
        refused(
            caller.python(
                TRY + LOOK_INTO_A_STORE.replace("%s", str(grant)),
                *isolation_flags(level),
                flag,
                grant,
                env=caller.environment(),
            )
        )
        (store / "version").read_text()
        assert sorted(os.listdir(grant)) == ["above", "beside"] and not (store / "made").exists()


def test_private_files_in_a_grant(caller):
    """Under isolation process a caller's sandboxes have one user id: what has the private files of
    all of them is not granted to one. What root runs has ids of its own."""
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
                    assert (result.outcome, result.error["code"]) == (
                        "error",
                        "policy_invalid",
                    ) and str(temporary) in result.error["message"], result.told
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
    """A link does not get round a denial: a grant that leads below it is refused, and a default one
    that does is left out."""
    flags, place = isolation_flags(level), caller.directory(0o755)
    inside, link = place / "denied" / "inside", place / "link"
    inside.mkdir(parents=True)
    caller.write(inside / "key", "secret")
    link.symlink_to(inside)
    for denied in (inside.parent, inside):
        done = caller.rollbox(
            "run",
            *flags,
            "--readable",
            link,
            "--denied",
            denied,
            "--",
            "cat",
            inside / "key",
            text=True,
        )
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
