# SPDX-License-Identifier: Apache-2.0
"""Isolation `process`: what it holds without namespaces, as root and as an ordinary user.

What both levels promise is in test_hostile.py. Here is what this one does by other means: ends
without a pid namespace, private files in a directory of the host,
a limit of processes that the kernel counts for the whole user, and refusals of what it cannot give.
"""
import contextlib
import json
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from harness import *

pytestmark = pytest.mark.skipif(
    "landlock" in os.environ.get("ROLLBOX_KFEAT", ""),
    reason="isolation process is Landlock, which is masked",
)
PROCESS = ["--isolation", "process"]


def masked(caller, *features):
    given = os.environ.get("ROLLBOX_KFEAT", "")
    return caller.environment(ROLLBOX_KFEAT=",".join(filter(None, [given, *("-" + f for f in features)])))


def leftovers(caller):
    """Directories of private files of the caller's engines, below every place that may have them:
    one belongs to the user of its engine, whose ids the sandboxes in it may have."""
    places = {"/tmp", "/var/tmp", caller.environment()["TMPDIR"]}
    found = set()
    for place in places:
        for path in Path(place).glob("rollbox-[0-9]*-*-*-*"):
            with contextlib.suppress(FileNotFoundError):        # another user's, which may go at any time
                if stat.S_ISDIR(path.lstat().st_mode) and path.lstat().st_uid == caller.uid:
                    found.add(str(path))
    return found


def wait_removed(path):
    """Waits for a directory to go, by its parent's end of life: a watch, not a poll, would need
    more than the standard library, so this looks each time that a short process has run."""
    for _ in range(2000):
        if not Path(path).exists():
            return
        subprocess.run(["sleep", "0.01"], check=True)
    pytest.fail(f"{path} is still there: {list(Path(path).rglob('*'))[:5]}")


# ---- what it applies ----

@pytest.mark.parametrize(
    "mask",
    [
        (),
        ("userns",),
        ("cgroup",),
        ("userns", "cgroup"),
        ("pidns", "mountns", "overlayfs", "netns"),
    ],
)
def test_runs_without_namespaces(caller, mask):
    """With everything masked that a locked-down container lacks."""
    result = caller.run(*PROCESS, "--", "sh", "-c", "echo hello; pwd > f && cat f", env=masked(caller, *mask))
    assert result.outcome == "exit" and result.exit_code == 0, result.told
    assert result.stdout.startswith("hello\n/"), result.told
    assert (
        result.isolation["level"] == "process"
        and result.isolation["namespaces"] == []
        and result.isolation["seccomp"] is True
        and result.isolation["landlock_abi"] > 0
    ), result.isolation


def test_namespace_names_what_is_missing(caller):
    result = caller.run("--", "true", env=masked(caller, "userns"))
    assert (
        result.error["code"] == "feature_missing"
        and "userns" in result.error["message"]
        and "isolation process" in result.error["message"]
    ), result.told


def test_doctor(caller):
    """`doctor` says that it is available exactly when it is."""
    for mask in (
        (),
        ("userns",),
        ("landlock",),
        ("landlock_scope",),
        ("seccomp",),
        ("pidfd",),
        ("close_range",),
        ("openat2",),
        ("cgroup", "proc_children"),
    ):
        env = masked(caller, *mask)
        told = json.loads(caller.rollbox("doctor", "--json", env=env).stdout)["isolation"]["process"]
        result = caller.run(*PROCESS, "--", "true", env=env)
        assert told == (result.outcome == "exit"), (mask, told, result.told)
        if not told:
            assert result.error["code"] == "feature_missing" and any(
                f in result.error["message"] for f in mask
            ), (mask, result.told)


def test_signal_scope_is_needed_by_users(caller):
    """Without it an ordinary user's sandbox could signal all that is theirs; root's have ids of their own."""
    result = caller.run(*PROCESS, "--", "sh", "-c", "kill -0 $PPID", env=masked(caller, "landlock_scope"))
    if caller.uid:
        assert result.error["code"] == "feature_missing" and "landlock_scope" in result.error["message"], result.told
    else:
        assert (result.outcome, result.exit_code) == ("exit", 1) and result.isolation[
            "signal_scope"
        ] is False, result.told


@pytest.mark.parametrize(
    "flags, word",
    [
        (["--net", "loopback"], "loopback"),
        (["--writable", "/usr"], "fs_writable"),
        (["--hostname", "x"], "hostname"),
        (["--user", "root"], "user"),
        (["--user", "1234"], "user"),
    ],
)
def test_unsupported_policy_is_refused(caller, flags, word):
    result = caller.run(*PROCESS, *flags, "--", "true")
    assert (
        result.outcome == "error"
        and result.error["code"] == "feature_missing"
        and word in result.error["message"]
    ), result.told


def test_plan_shows_process_isolation(caller):
    policy = caller.write(caller.home / "process.json", '{"isolation": "process"}')
    text = caller.rollbox("policy", "plan", policy).stdout.decode()
    assert (
        "without namespaces" in text
        and "(private files)" in text
        and "/etc/shadow" not in text
        and "no signals" in text
        or caller.uid == 0
    ), text[:2000]


# ---- processes ----

def test_identity(caller):
    """Never the host's root: as root an id of its own, no groups, no capabilities."""
    result = caller.python("import os\nprint(*os.getresuid(), *os.getresgid(), len(os.getgroups()))", *PROCESS)
    numbers = [int(n) for n in result.stdout.split()]
    assert len(set(numbers[:6])) == 1 and numbers[6] <= 1, result.told
    assert numbers[0] == caller.uid if caller.uid else numbers[0] >= 10000, result.told


def test_two_sandboxes_have_two_ids():
    """Run by root, so that ordinary permissions separate them too."""
    caller = next((c for c in callers() if c.uid == 0), None)
    if not caller:
        skip("needs root")
    with (
        caller.start(*PROCESS, "--", "sh", "-c", "id -u; read line") as first,
        caller.start(*PROCESS, "--", "sh", "-c", "id -u; read line") as second,
    ):
        assert first.line() != second.line()


SIGNALS = """
import os, signal, sys
victims = [int(a) for a in sys.argv[1:]]
parent = os.getppid()
for pid in victims + [parent, 1]:
    for number in (0, signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT):
        try:
            os.kill(pid, number)
            print('signalled', pid, number)
        except PermissionError:
            pass
    try:
        fd = os.pidfd_open(pid)
        signal.pidfd_send_signal(fd, 0)
        print('signalled by pidfd', pid)
    except PermissionError:
        pass
try:
    os.kill(-1, signal.SIGTERM)
except (PermissionError, ProcessLookupError):
    pass
"""


def test_others_cannot_be_signalled(caller):
    """A process of the same user, another sandbox, its own init, the engine, pid 1; and kill(-1)."""
    with (
        caller.popen(["sleep", "1000"]) as victim,
        caller.start(*PROCESS, "--", "sh", "-c", "echo $$; read line; echo survived") as other,
    ):
        pid = other.line()
        family = [str(p) for p in descendants(other.process.pid)]
        result = caller.run(*PROCESS, "--", *PYTHON, SIGNALS, str(victim.pid), pid, *family)
        assert result.stdout == "" and result.outcome in ("exit", "signal"), result.told
        other.say()
        status, out, _ = other.finish()
        assert (status, out) == (0, b"survived\n")
        assert victim.poll() is None
        victim.kill()


PEEK = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for pid in (int(a) for a in sys.argv[1:]):
    for name in ('environ', 'mem', 'maps', 'cmdline', 'stat', 'status', 'auxv', 'fd', 'root', 'cwd', 'exe', 'root/etc/hostname', 'cwd/.', 'ns/mnt', 'task'):
        path = f'/proc/{pid}/{name}'
        for attempt in (lambda: os.open(path, os.O_RDONLY), lambda: os.listdir(path), lambda: os.readlink(path)):
            try:
                attempt()
                print('read', path)
            except OSError:
                pass
    if libc.ptrace(16, pid, 0, 0) == 0:
        print('traced', pid)
    buffer = ctypes.create_string_buffer(8)
    class Iovec(ctypes.Structure):
        _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
    local, remote = Iovec(ctypes.addressof(buffer), 8), Iovec(0x400000, 8)
    if libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) > 0:
        print('memory of', pid)
    if libc.prlimit(pid, 7, ctypes.byref((ctypes.c_ulong * 2)(0, 0)), None) == 0:
        print('limited', pid)
    try:
        before = os.sched_getaffinity(pid)
        os.sched_setaffinity(pid, {max(before)})
        if os.sched_getaffinity(pid) != before:
            print('pinned', pid)
    except OSError:
        pass
    try:
        os.setpriority(os.PRIO_PROCESS, pid, 19)
        print('slowed', pid)
    except OSError:
        pass
try:
    print('listed', os.listdir('/proc'))
except OSError:
    pass
"""


def test_others_cannot_be_looked_into(caller):
    """No /proc/PID, ptrace, memory or limits of a process of the same user, of the engine and of init."""
    with (
        caller.popen(["sleep", "1000"], env={"SECRET": "secret"}) as victim,
        caller.start(*PROCESS, "--", "sh", "-c", "echo up; read line") as other,
    ):
        other.line()
        family = [str(p) for p in descendants(other.process.pid)]
        result = caller.run(*PROCESS, "--", *PYTHON, PEEK, str(victim.pid), "1", *family)
        assert (result.outcome, result.exit_code, result.stdout) == ("exit", 0, ""), result.told
        victim.kill()


def test_programs_work_without_proc(caller):
    result = caller.python(
        "import os, subprocess, tempfile, threading\n"
        "assert subprocess.run(['cat'], input=b'x', capture_output=True).stdout == b'x'\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
        "tempfile.NamedTemporaryFile().write(b'x')\n"
        "assert os.getcwd() == os.environ['HOME'] == os.environ['TMPDIR'] == tempfile.gettempdir()\n"
        "print(open('/proc/cpuinfo').read(9), open('/proc/sys/kernel/random/uuid').read(0))",
        *PROCESS,
    )
    assert (result.outcome, result.exit_code) == ("exit", 0) and result.stdout.startswith("thread\n"), result.told
    result = caller.run(
        *PROCESS,
        "--",
        "bash",
        "-c",
        "cat <(echo process substitution) - <<< here; x=$(seq 10 | sort -n | tail -1); echo $x > f; cat f /dev/null",
    )
    assert result.stdout == "process substitution\nhere\n10\n", result.told


# ---- the end ----

BOMB = ":(){ :|:& };:; sleep 1000"


@pytest.mark.parametrize("mask", [(), ("cgroup",)])
def test_fork_bomb_times_out(caller, mask):
    fifo = caller.directory(0o777)
    os.mkfifo(fifo / "fifo")
    os.chmod(fifo / "fifo", 0o666)
    fd = os.open(fifo / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(fd, True)
    result = caller.run(
        *PROCESS,
        "--shared",
        fifo,
        "--processes",
        "20",
        "--timeout",
        "1",
        "--",
        "bash",
        "-c",
        f"exec 9> {fifo}/fifo; " + BOMB,
        env=masked(caller, *mask),
    )
    assert result.outcome in ("timeout", "signal") and result.wall_ms < 20000, result.told
    wait_writers_gone(fd)
    os.close(fd)


ESCAPES = ("import os, signal\n"
           "for _ in range(4):\n"
           "    if os.fork() == 0:\n"
           "        os.setsid()\n"
           "        if os.fork() == 0:\n"
           "            while True: signal.pause()\n"
           "        os._exit(0)\n"
           "while True:\n"
           "    try: os.wait()\n"
           "    except ChildProcessError: break\n"
           "print('up', flush=True)\n"
           "while True: signal.pause()")


def init_with(run, count):
    """An init that `count` processes are of, itself among them; None: there is none yet. (A
    launcher has its name for a moment, too: they are one program.)"""
    return next(
        (
            p
            for p in descendants(run.process.pid)
            if comm(p) == "rollbox-init" and len(descendants(p)) >= count
        ),
        None,
    )


def test_killed_init(caller):
    """An init killed from outside is an error, and the engine ends what it left."""
    before = leftovers(caller)
    with caller.start("--json", *PROCESS, "--", *PYTHON, ESCAPES) as run:
        # The line of output comes with the result only, so the tree itself tells that it is
        # complete: init, the program, four daemons.
        while (init := init_with(run, 6)) is None:
            assert run.process.poll() is None
        guests = pidfds([p for p in descendants(init) if p != init])
        os.kill(init, signal.SIGKILL)
        status, out, _ = run.finish()
        result = json.loads(out)
        assert result["outcome"] == "error" and status == 125, result
        wait_gone(guests)
    for path in leftovers(caller) - before:
        wait_removed(path)


def test_killed_engine_leaves_no_files(caller):
    before = leftovers(caller)
    with caller.start(
        *PROCESS,
        "--",
        "sh",
        "-c",
        "mkdir -p a/b/c; echo x > a/b/c/f; ln -s / link; echo up; sleep 1000",
    ) as run:
        assert run.line() == "up"
        made = leftovers(caller) - before
        family = run.family()
        assert made
        for pid in descendants(run.process.pid):
            if comm(pid) == "rollbox-engine":
                os.kill(pid, signal.SIGKILL)
                break
        run.finish()
        wait_gone(family)
        for path in made:
            wait_removed(path)


def test_next_engine_sweeps(caller):
    """The next engine removes the leftovers of a killed engine and janitor, and neither other
    directories nor those of live engines."""
    space = os.stat("/proc/self/ns/pid").st_ino
    place = caller.environment()["TMPDIR"] if caller.uid else "/tmp"
    dead = Path(place, f"rollbox-{space}-999999999-1-00112233aabbccdd")
    living = Path(
        place,
        f"rollbox-{space}-{os.getpid()}-{Path('/proc/self/stat').read_text().rpartition(')')[2].split()[19]}-00112233aabbccdd",
    )
    strange = Path(place, f"rollbox-{space}-999999999-1-nothex")
    try:
        for path in (dead, living, strange):
            path.mkdir(0o700)
            (path / "1").mkdir()
            (path / "1" / "file").write_text("x")
            caller.own(path / "1" / "file", path / "1", path)
        assert caller.run(*PROCESS, "--", "true").outcome == "exit"
        assert not dead.exists() and living.exists() and strange.exists()
    finally:
        for path in (dead, living, strange):
            subprocess.run(["rm", "-rf", path], check=True)


def test_files_are_removed(caller):
    """With all modes, names, depths and links that a guest can give them."""
    before = leftovers(caller)
    outside = caller.directory(0o777)
    caller.write(outside / "kept", "kept")
    result = caller.python(
        "import os\n"
        f"os.symlink('{outside}', 'link'); os.symlink('/', 'root'); os.mkfifo('fifo'); open(b'\\xff\\n name', 'w').close()\n"
        "for mode in (0, 0o100, 0o200, 0o300, 0o400, 0o500):\n"
        "    os.mkdir(f'm{mode}', 0o700); os.mkdir(f'm{mode}/inner'); open(f'm{mode}/inner/f', 'w').close(); os.chmod(f'm{mode}', mode)\n"
        "old = os.umask(0o777 & ~0o300)\nos.mkdir('unreadable'); open('unreadable/f', 'w').close(); os.mkdir('unreadable/d'); open('unreadable/d/f', 'w').close()\nos.umask(old)\n"
        f"os.symlink('{outside}', 'unreadable/link')\n"
        "for i in range(300):\n    os.mkdir('d'); os.chdir('d')\n"
        "open('bottom', 'w').close()\nprint('done')",
        *PROCESS,
    )
    assert (result.outcome, result.stdout) == ("exit", "done\n"), result.told
    assert leftovers(caller) <= before
    assert (outside / "kept").read_text() == "kept"


# ---- files ----

def test_private_files(caller):
    """Each sandbox has its own, others' cannot be opened, /tmp itself neither."""
    with caller.start(*PROCESS, "--", "sh", "-c", "echo secret > f; pwd; read line") as first:
        home = first.line()
        assert stat.S_IMODE(os.stat(home).st_mode) == 0o700
        result = caller.run(
            *PROCESS,
            "--",
            "sh",
            "-c",
            f"cat {home}/f; ls {home}; echo x > {home}/g; rm -rf {home}/f; ls /tmp; echo x > /tmp/rollbox-mark; echo x > /dev/shm/rollbox-mark; mkdir {home}/../x; pwd",
        )
        assert result.stdout.count("\n") == 1 and result.stdout.strip() != home, result.told
        assert not Path("/tmp/rollbox-mark").exists() and not Path("/dev/shm/rollbox-mark").exists()
        assert Path(home, "f").read_text() == "secret\n" and os.listdir(home) == ["f"]


def test_denied_beside_granted(caller):
    """A denied path below a grant: neither it nor what is put beside it later; what is there already, yes."""
    grant = caller.directory(0o755)
    for name in ("a", "d/keep", "d/secret/x", "d/e/deep"):
        (grant / name).parent.mkdir(parents=True, exist_ok=True)
        caller.write(grant / name, name, 0o644)
    policy = caller.write(
        caller.home / "denied.json",
        json.dumps(
            {
                "isolation": "process",
                "fs_readable": ["/usr", "/lib", "/lib64", "/bin", str(grant)],
                "fs_denied": [str(grant / "d/secret"), str(grant / "d/missing")],
            }
        ),
    )
    script = f"cd {grant}; for f in a d/keep d/e/deep d/secret/x d/missing d/late; do cat $f && echo; done 2>/dev/null; ls d/e; ls {grant} d d/secret 2>/dev/null; true"
    result = caller.run("--policy", policy, "--", "sh", "-c", script)
    assert result.stdout == "a\nd/keep\nd/e/deep\ndeep\n", result.told
    caller.write(grant / "d" / "missing", "came later")
    result = caller.run("--policy", policy, "--", "sh", "-c", script)
    assert "later" not in result.stdout, result.told


def test_files_of_a_job_stay_inside(caller):
    """Files that come with a job are put in place with the guest's rights: not through a link in a
    shared directory, not elsewhere."""
    shared = caller.directory(0o777)
    outside = caller.directory(0o777)
    os.symlink(outside, shared / "link")
    policy = {"isolation": "process", "fs_shared": [str(shared)]}
    rows = caller.batch(
        [
            {"id": "inside", "argv": ["cat", "a/b"], "files": {"a/b": "text"}, "policy": policy},
            {
                "id": "link",
                "argv": ["true"],
                "files": {f"{shared}/link/x": "text"},
                "policy": policy,
            },
            {
                "id": "outside",
                "argv": ["true"],
                "files": {f"{outside}/x": "text"},
                "policy": policy,
            },
        ]
    )
    assert rows["inside"]["stdout"] == "text", rows["inside"]
    assert rows["link"]["outcome"] == "error" and rows["outside"]["outcome"] == "error", rows
    assert os.listdir(outside) == []


def test_metadata_of_the_callers_files(caller):
    """Landlock does not hold chmod and utime: the filter does, where the guest has the caller's own id."""
    mine = caller.write(caller.directory(0o755) / "mine", "mine", 0o644)
    before = os.stat(mine)
    caller.python(
        f"import os\nfor f in (lambda: os.chmod('{mine}', 0o777), lambda: os.utime('{mine}', (1, 1)), lambda: os.chown('{mine}', os.getuid(), -1), lambda: os.setxattr('{mine}', 'user.x', b'x'), "
        f"lambda: os.truncate('{mine}', 0), lambda: os.unlink('{mine}'), lambda: os.rename('{mine}', 'x'), lambda: os.link('{mine}', 'y')):\n    try: f()\n    except OSError: pass",
        *PROCESS,
    )
    after = os.stat(mine)
    assert (after.st_mode, after.st_mtime, after.st_ctime, after.st_size, after.st_nlink) == (
        before.st_mode,
        before.st_mtime,
        before.st_ctime,
        before.st_size,
        before.st_nlink,
    )


def test_shared(caller):
    """Writes through where the guest's id may write; run by root, refused where it may not."""
    shared = caller.directory(0o777)
    result = caller.run(*PROCESS, "--shared", shared, "--", "sh", "-c", f"echo text > {shared}/f")
    assert result.exit_code == 0 and (shared / "f").read_text() == "text\n", result.told
    closed = caller.directory(0o755)
    result = caller.run(*PROCESS, "--shared", closed, "--", "sh", "-c", f"echo text > {closed}/f")
    if caller.uid:
        assert (closed / "f").read_text() == "text\n", result.told
    else:
        assert result.error["code"] == "path_denied" and str(closed) in result.error["message"], result.told


# ---- limits ----

@pytest.mark.parametrize("mask", [(), ("cgroup",)])
def test_max_processes(caller, mask):
    code = "import os, signal\nn = 0\ntry:\n    while n < 100:\n        if os.fork() == 0:\n            signal.pause()\n        n += 1\nexcept BlockingIOError:\n    print(n, flush=True)\nos._exit(0)"
    result = caller.python(code, *PROCESS, "--processes", "10", env=masked(caller, *mask))
    # Without cgroups an ordinary user's other processes count, and may come and go meanwhile: then
    # the test sees only that there is a limit.
    assert result.outcome == "exit" and int(result.stdout) in (
        (8, 9, 10) if not caller.uid or has_cgroup(result) else range(100)
    ), result.told


def test_max_disk(caller):
    one = caller.python("open('f', 'wb').write(bytes(3 << 20))", *PROCESS, "--disk", "1M")
    assert one.outcome == "exit" and one.exit_code == 1 and "File too large" in one.stderr, one.told
    many = caller.python(
        "import signal\nfor i in range(40): open(f'f{i}', 'wb').write(bytes(100 << 10))\nprint('written', flush=True)\nwhile True: signal.pause()",
        *PROCESS,
        "--disk",
        "1M",
        "--timeout",
        "30",
    )
    assert (many.outcome, many.signal) == ("signal", signal.SIGXFSZ), many.told
    entries = caller.python(
        "import signal\nfor i in range(3000): open(f'f{i}', 'w').close()\nwhile True: signal.pause()",
        *PROCESS,
        "--disk",
        "1M",
        "--timeout",
        "30",
    )
    assert (entries.outcome, entries.signal) == ("signal", signal.SIGXFSZ), entries.told


@pytest.mark.parametrize("mask", [(), ("cgroup",)])
def test_max_memory(caller, mask):
    result = caller.python("x = bytearray(1 << 30)", *PROCESS, "--memory", "64M", env=masked(caller, *mask))
    assert result.outcome == "out_of_memory", result.told


def test_many_at_once(caller):
    """Some hundred runs through one engine, eight at a time: none meets another, and nothing is left."""
    before = leftovers(caller)
    jobs = [
        {
            "id": str(i),
            "argv": ["sh", "-c", f"echo {i} > f; sleep 0.0{i % 7}; cat f; setsid sleep 1000 &"],
            "policy": {"isolation": "process"},
        }
        for i in range(200)
    ]
    rows = caller.batch(jobs, "-j", "8")
    assert all(rows[str(i)]["stdout"] == f"{i}\n" for i in range(200)), next(
        r for r in rows.values() if r["stdout"] != r["id"] + "\n"
    )
    assert leftovers(caller) <= before
