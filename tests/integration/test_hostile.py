# SPDX-License-Identifier: Apache-2.0
"""Attacks of a guest that knows this code on the host: /proc and /sys, system calls, leaks,
processes that outlive, output. Each test is named after
the hole it holds shut. Attacks on files are in test_hostile_files.py, those on other sandboxes in
test_hostile_neighbours.py.
"""

import base64
import contextlib
import errno
import hashlib
import json
import os
import pty
import select
import signal
import subprocess
from pathlib import Path

import pytest
from harness import PYTHON, binaries, guest, skip, wait_unmarked, wait_writers_gone
from attempts import TRY, fifo_in_grant, holds, isolation_flags, refused
from many_users import caller  # noqa: F401

# Also run with kernel features masked (ROLLBOX_KFEAT): each promise has two layers, and the other one must hold it.
pytestmark = pytest.mark.masked


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
    """A guest that lowers pid 1's limits and keeps it busy does not make its own result an error,
    which would be retried and not scored."""
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
    """No namespace, mount, root, handle, device, io_uring, bpf, key, machine, other-ABI, init,
    right or odd socket by system call."""
    if caller.has_many_users and probe in ("chroot", "rights"):
        pytest.skip("many users have a root with capabilities: test_users_many.py")
    holds(caller.guest("escape_probe", probe))


@pytest.mark.parametrize(
    "probe",
    [
        "unshare",
        "clone",
        "clone3",
        "mount",
        "chroot",
        "handles",
        "mknod",
        "bpf",
        "machine",
        "rights",
        "raw_sockets",
        "init",
    ],
)
def test_system_call_as_sandbox_root(caller, probe):
    """User `root` of a sandbox has no more rights than any other."""
    if caller.has_many_users and probe in ("chroot", "rights"):
        pytest.skip("many users have a root with capabilities: test_users_many.py")
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
    """No file of /proc, pidfd, limit, priority, scheduler or descriptor's owner lets a process of
    the same user be read or changed."""
    with caller.popen(
        ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=caller.environment(SECRET="x")
    ) as victim:
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
        name: hashlib.sha256((binaries() / name).read_bytes()).digest()
        for name in ("rollbox", "rollbox-engine", "rollbox-init")
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


def copy_descriptor(descriptor, number):
    """False: that number is in use. EBUSY: another thread waits in open() and has reserved it."""
    with contextlib.suppress(OSError):
        os.fstat(number)
        return False
    try:
        os.dup2(descriptor, number)
        return True
    except OSError as problem:
        if problem.errno != errno.EBUSY:
            raise
        return False


def test_inherited_descriptors(caller):
    """The guest has only descriptors 0, 1 and 2 of the caller's open files, and none with a high number."""
    secret = os.open(caller.write(caller.home / "secret6", "secret"), os.O_RDONLY)
    high = []
    try:
        for number in (3, 9, 77, 500, 1023):
            if copy_descriptor(secret, number):
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
    assert (
        seen["HOME"] == ("/root" if caller.has_many_users else "/tmp")
        and seen["LANG"] == "C.UTF-8"
        and "TMPDIR" not in seen
    ), seen


def test_identity_does_not_leak(caller):
    """Host name, user and groups are the sandbox's."""
    result = caller.python(
        "import os, socket; print(socket.gethostname(), os.getuid(), os.getgid(), os.getgroups(), os.getcwd())"
    )
    name, uid, gid, *groups, cwd = result.stdout.split()
    assert (name, uid, cwd) == (
        "rollbox",
        "0" if caller.has_many_users else "1000",
        "/tmp",
    ) and "0" not in "".join(groups).strip("[]").split(","), result.stdout


def test_run_by_root_is_not_root(caller):
    """Run by root, a guest's processes have an unprivileged uid of the host; root's files stay
    closed even where a grant shows them."""
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
    """Double-forked, setsid, signal-proof daemons are gone when the main program ends, and do not
    hold its result up."""
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
    result = caller.python(
        "import os\nos.write(1, b'before')\nos.closerange(0, 64)\nwhile True: pass",
        "--timeout",
        "3",
    )
    assert (result.outcome, result.stdout) == ("timeout", "before"), result.told


def test_output_before_the_timeout_is_kept(caller):
    """The result has the output of all processes before the time-out."""
    result = caller.python(
        "import os, time\nif os.fork() == 0:\n    os.write(2, b'child')\n    while True: time.sleep(9)\nos.write(1, b'parent')\n"
        "while True: time.sleep(9)",
        "--timeout",
        "3",
    )
    assert (result.outcome, result.stdout, result.stderr) == ("timeout", "parent", "child"), result.told
