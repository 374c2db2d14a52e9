# SPDX-License-Identifier: Apache-2.0
"""Seeds and clocks in sandboxes of many users: processes of every user and set-user-id programs have
them, and init shows and changes no file that the caller may not."""

import pytest
from archives import configuration
from harness import binaries
from image_stores import Store
from many_users import plain_callers, system

START = ["--seed", "7", "--time-start", "2025-01-01T00:00:00"]
MODES = {
    "offset": ["--time-mode", "offset"],
    "virtual": ["--time-mode", "virtual"],
    "serial": ["--time-mode", "virtual", "--serial"],
}


@pytest.fixture(params=plain_callers(), ids=repr, scope="module")
def caller(request):
    """Root, and an ordinary user with a range of ids."""
    return request.param


@pytest.fixture(scope="module")
def store(caller):
    found = Store(caller)
    layers = [system()]
    config = configuration(layers)
    config["config"].update(User="", WorkingDir="/")
    found.bring("system", *layers, config=config)
    return found


def run(store, script, *flags, command=("/bin/sh", "-c")):
    env = store.caller.environment(ROLLBOX_STORE=str(store.path))
    result = store.caller.run("--users", "many", *START, *flags, "--", *command, script, env=env)
    assert result.exit_code == 0, result
    return result.stdout


def run_python(store, program, *flags):
    return run(store, PROGRAM + program, *flags, command=("python3", "-I", "-S", "-c"))


BEGIN = (
    'nohup python3 -I -S -c "$0" > /dev/null 2>&1 & until [ -e /tmp/begun ]; do sleep 0.01; done'
)

# A child of another user does what is asked, and its parent waits for it.
PROGRAM = r"""
import os, time
def say(*words): print(*words, flush=True)
def attempt(call, *arguments):
    try: say("done", call(*arguments))
    except OSError as error: say(error.strerror)
def as_user(uid, work, before=lambda: None):
    pid = os.fork()
    if pid == 0:
        before(); os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
        work(); os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.parametrize("mode", MODES)
def test_programs_of_all_users_have_seed_and_clock(store, mode):
    ask = "id -u; busybox head -c 8 /dev/urandom | busybox od -An -tx4; busybox date +%F; "
    ask += "echo x > /tmp/$(id -u); stat -c %y /tmp/$(id -u) | busybox cut -c1-10"
    script = f"{ask}; /setid/su alice -c '{ask}'; /setid/su bob -c '{ask}; echo $$'"
    first, second = (run(store, script, "--image", "system", *MODES[mode]) for _ in range(2))
    lines = first.split()
    assert first == second and lines.count("2025-01-01") == 6, first
    assert {"0", "1000", "1001"} < set(lines), first


@pytest.mark.parametrize("mode", ["offset", "virtual"])
def test_streams_and_waits_of_other_users(store, mode):
    program = r"""
def work():
    say(os.getrandom(8).hex(), time.strftime("%F", time.gmtime()))
    time.sleep(0.05)
    if os.fork() == 0: say(os.getrandom(8).hex()); os._exit(0)
    os.wait()
say(os.getrandom(8).hex())
as_user(1001, work); as_user(1002, work)
"""
    first, second = (run_python(store, program, *MODES[mode]) for _ in range(2))
    assert first == second, (first, second)
    assert len(set(first.split())) == 6 and first.split().count("2025-01-01") == 2, first


# Init looks at files in place of the guest, and is root inside.
@pytest.mark.parametrize("mode", ["offset", "virtual"])
def test_init_shows_and_sets_no_times_that_the_user_may_not(store, mode):
    program = r"""
os.makedirs("/tmp/closed", 0o700); open("/tmp/closed/file", "w").close(); open("/tmp/roots", "w").close()
os.mkdir("/tmp/group", 0o710); os.chown("/tmp/group", 0, 1001); open("/tmp/group/file", "w").close()
def work():
    attempt(os.stat, "/tmp/closed/file")
    attempt(os.utime, "/tmp/roots", (1, 1))
    attempt(os.utime, "/tmp/roots", (5e9, 5e9))
    attempt(lambda: os.stat("/tmp/group/file").st_size)
    open("/tmp/own", "w").close()
    attempt(os.utime, "/tmp/own", (5e9, 5e9))
    say(os.stat("/tmp/own").st_mtime)
as_user(1001, work)
say(time.strftime("%F", time.gmtime(os.stat("/tmp/roots").st_mtime)))
"""
    assert run_python(store, program, *MODES[mode]).splitlines() == [
        "Permission denied", "Operation not permitted", "Operation not permitted",
        "done 0", "done None", "5000000000.0", "2025-01-01",
    ]  # fmt: skip


def test_init_shows_no_file_outside_of_a_chroot(store):
    program = r"""
os.makedirs("/tmp/inner/tmp"); open("/tmp/outside", "w").close(); os.symlink("/tmp/outside", "/tmp/inner/link")
def enter(): os.chroot("/tmp/inner"); os.chdir("/")
def work():
    attempt(os.stat, "/tmp/outside"); attempt(os.stat, "link"); attempt(os.utime, "/tmp/outside", (5e9, 5e9))
    attempt(lambda: os.stat("/tmp").st_size >= 0)
as_user(1001, work, before=enter)
"""
    missing = "No such file or directory"
    assert run_python(store, program, *MODES["offset"]).splitlines() == [missing] * 3 + ["done True"]


def test_init_reads_times_of_segments_with_the_users_rights(store):
    program = r"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def look(segment):
    ctypes.set_errno(0)
    return libc.shmctl(segment, 2, ctypes.create_string_buffer(256)), os.strerror(ctypes.get_errno())
closed, shared = libc.shmget(1, 4096, 0o1600), libc.shmget(2, 4096, 0o1644)
as_user(1001, lambda: say(look(closed)[1], look(shared)[0]))
"""
    assert run_python(store, program, *MODES["offset"]) == "Permission denied 0\n"


@pytest.mark.parametrize("mode", ["offset", "virtual"])
def test_copies_of_processes_of_other_users_keep_stream_and_clock(caller, mode):
    env = caller.environment(ROLLBOX_SOCKET=str(caller.directory() / "socket"))

    def rollbox(*arguments):
        result = caller.call(binaries() / "rollbox", *arguments, env=env)
        assert result.returncode == 0, result
        return result.stdout.decode()

    program = r'''
WORK = """
import os, time
open("/tmp/begun", "w").close()
while not os.path.exists("/tmp/go"): time.sleep(0.05)
text = os.getrandom(8).hex() + time.strftime(" %F", time.gmtime())
with open("/tmp/drawing", "w") as to: to.write(text)
os.rename("/tmp/drawing", "/tmp/drawn")
"""
as_user(1001, lambda: os.execlp("python3", "python3", "-I", "-S", "-c", WORK))
'''
    begin = "chmod 1777 /tmp; " + BEGIN
    draw = "touch /tmp/go; until [ -e /tmp/drawn ]; do sleep 0.01; done; cat /tmp/drawn; "
    draw += "stat -c ' %u' /tmp/drawn"
    rollbox("engine", "start", "--background")
    try:
        rollbox("create", "--name", "box", "--users", "many", *START, *MODES[mode])
        rollbox("exec", "box", "--", "sh", "-c", begin, PROGRAM + program)
        copy = rollbox("fork", "--same-seed", "box").split()[0]
        rollbox("hibernate", copy)
        drawn = [rollbox("exec", name, "--", "sh", "-c", draw) for name in ("box", copy)]
        assert drawn[0] == drawn[1] and drawn[0].endswith(" 2025-01-01 1001\n"), drawn
    finally:
        rollbox("engine", "stop")


def test_snapshot_of_a_process_that_init_could_not_answer_is_refused(caller):
    env = caller.environment(ROLLBOX_SOCKET=str(caller.directory() / "socket"))

    def rollbox(*arguments):
        return caller.call(binaries() / "rollbox", *arguments, env=env)

    program = r"""
def work():
    open("/tmp/begun", "w").close()
    while True: time.sleep(0.05)
os.chmod("/tmp", 0o1777); as_user(1001, work)
"""
    assert rollbox("engine", "start", "--background").returncode == 0
    try:
        rollbox("create", "--name", "box", "--users", "many", *START)
        rollbox("exec", "box", "--", "sh", "-c", BEGIN, PROGRAM + program)
        refused = rollbox("fork", "box")
        assert refused.returncode == 125, refused
        assert b"it has changed its user and executed no program since" in refused.stderr, refused
        assert rollbox("fork", "--drop-processes", "box").returncode == 0
        assert rollbox("exec", "box", "--", "true").returncode == 0
    finally:
        rollbox("engine", "stop")


# Init has sys_admin, sys_ptrace and sys_resource in the sandbox's user namespace.
@pytest.mark.parametrize("mode", ["offset", "virtual"])
def test_commands_have_none_of_inits_rights(store, mode):
    program = r"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
lines = dict(line.split(":\t") for line in open("/proc/self/status").read().splitlines())
say([name for name in ("CapPrm", "CapEff", "CapBnd") if int(lines[name], 16) & (1 << 19 | 1 << 21 | 1 << 24)])
limits = (ctypes.c_ulong * 2)(10, 10)
say([libc.ptrace(0x4206, 1, 0, 0), libc.prlimit(1, 7, limits, None), libc.unshare(0x20000),
     libc.mount(b"none", b"/tmp", b"tmpfs", 0, None), libc.syscall(317, 1, 8, None)])
for name in ("mem", "environ", "maps", "auxv", "fd", "root"):
    attempt(os.listdir if name in ("fd", "root") else open, "/proc/1/" + name)
"""
    expected = ["[]", "[-1, -1, -1, -1, -1]", *["Permission denied"] * 6]
    assert run_python(store, program, *MODES[mode]).splitlines() == expected
