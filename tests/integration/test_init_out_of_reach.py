# SPDX-License-Identifier: Apache-2.0
"""Init is process 1 of its sandbox. Its root can neither change nor read it, so no result of a
command is another than the command's own. docs/explanation/users.md has the list.
"""

import os

import pytest
from asked import Asked
from many_users import give_ids, has_ids
from rollbox import Policy, Sandbox

CALLS = r"""
import ctypes, errno, os, signal, struct
libc = ctypes.CDLL(None, use_errno=True)
longs = lambda *n: (ctypes.c_ulong * len(n))(*n)
buf = ctypes.create_string_buffer(256)
def call(*a):
    r = libc.syscall(*a)
    return r if r >= 0 else errno.errorcode[ctypes.get_errno()]
def opened(path, flags):
    try: os.close(os.open(path, flags))
    except OSError as e: return errno.errorcode[e.errno]
    return "opened"
"""
REFUSED = {
    "prlimit": "call(302, 1, 7, longs(3, 3), None)",
    "prlimit of a number with high bits": "call(302, ctypes.c_ulong(1 | 1 << 32), 9, longs(4096, 4096), None)",
    "prlimit reads": "call(302, 1, 7, None, buf)",
    "setpriority": "call(141, 0, 1, 19)",
    "setpriority of its user": "call(141, 2, 0, 19)",
    "ioprio_set": "call(251, 1, 1, 3 << 13)",
    "sched_setscheduler": "call(144, 1, 5, buf)",
    "sched_setparam": "call(142, 1, buf)",
    "sched_setattr": "call(314, 1, ctypes.create_string_buffer(struct.pack('II', 56, 5), 56), 0)",
    "pidfd_open": "call(434, 1, 0)",
    "process_vm_readv": "call(310, 1, longs(ctypes.addressof(buf), 8), 1, longs(0x200000, 8), 1, 0)",
    "process_vm_writev": "call(311, 1, longs(ctypes.addressof(buf), 8), 1, longs(0x200000, 8), 1, 0)",
    "ptrace": "call(101, 16, 1, 0, 0)",
    "ptrace seize": "call(101, 0x4206, 1, 0, 0)",
    "kcmp": "call(312, 1, os.getpid(), 0, 0, 0)",
    "migrate_pages": "call(256, 1, 64, longs(1), longs(1))",
    "move_pages": "call(279, 1, 1, longs(0x200000), None, buf, 0)",
    "get_robust_list": "call(274, 1, buf, ctypes.byref(buf, 8))",
    "perf_event_open": "call(298, ctypes.create_string_buffer(128), 1, -1, -1, 0)",
}
CLOSED_TO_READERS = """mem maps environ auxv stack syscall pagemap smaps io fd/0 ns/pid ns/mnt root cwd exe
    map_files personality""".split()
CLOSED_TO_WRITERS = """mem oom_score_adj oom_adj comm clear_refs timerslack_ns sched autogroup
    coredump_filter uid_map gid_map setgroups timens_offsets""".split()
SHOWN = ("State", "Cpus_allowed:", "Sig", "Cap", "Threads")
STATE = f"[line for line in open('/proc/1/status') if line.startswith({SHOWN})]"
SETTINGS = f"""(open('/proc/1/limits').read(), open('/proc/1/stat').read().split()[17:20],
    open('/proc/1/oom_score_adj').read(), [line for line in {STATE} if not line.startswith(('SigQ', 'State'))])"""


@pytest.fixture(params=["one", "many"])
def box(request):
    if request.param == "many" and os.geteuid() == 0:
        give_ids()
    elif request.param == "many" and not has_ids():
        pytest.skip("this ordinary user has no range of ids for sandboxes of many users")
    with Sandbox(Policy(users=request.param)) as box:
        yield box


def begin(box):
    return Asked.begin(box, f"exec({CALLS!r}, globals())")


def ends_as_it_should(box):
    for number in (0, 7, 255):
        assert box.exec(["sh", "-c", f"exit {number}"]).exit_code == number
    return box.exec(["sh", "-c", "kill -USR1 $$"]).signal == 10


def test_calls_that_name_init_are_refused(box):
    asked = begin(box)
    before = asked(SETTINGS.replace("\n", " "))
    answers = {what: asked(line) for what, line in REFUSED.items()}
    assert set(answers.values()) <= {"'EPERM'", "'EACCES'"}, answers
    assert asked("call(203, 1, 8, longs(1))") == "0"  # sched_setaffinity: success without effect
    assert asked(SETTINGS.replace("\n", " ")) == before
    assert ends_as_it_should(box)


def test_limits_of_other_processes_are_only_read(box):
    """Else a command's limits could be lowered before init has started its program, and the caller
    would get setup_failed."""
    asked = begin(box)
    asked("kid = __import__('subprocess').Popen(['sleep', '60'])")
    assert asked("call(302, kid.pid, 7, longs(0, 0), None)") == "'EPERM'"
    assert asked("call(302, os.getpid(), 7, longs(64, 64), None)") == "'EPERM'"
    assert asked("call(302, kid.pid, 7, None, buf)") == "0"
    assert asked("call(302, 0, 7, longs(64, 64), None)") == "0"


def test_files_of_init_are_closed(box):
    asked = begin(box)
    read = {name: asked(f"opened('/proc/1/{name}', os.O_RDONLY)") for name in CLOSED_TO_READERS}
    write = {name: asked(f"opened('/proc/1/{name}', os.O_WRONLY)") for name in CLOSED_TO_WRITERS}
    for answers in (read, write):
        assert set(answers.values()) <= {"'EACCES'", "'EROFS'", "'ENOENT'", "'EPERM'"}, answers


def test_signals_to_init_change_no_result(box):
    """All are blocked or, as it is process 1, never delivered. A forged SIGCHLD makes it look for
    ended processes, and the kernel says which have ended."""
    asked = begin(box)
    for round in range(3):
        asked("[call(62, 1, number) for number in range(1, 65)]")
        forged = "struct.pack('iiiiiii', 17, 0, -1, 0, 2, 0, 0) + bytes(100)"
        assert asked(f"call(129, 1, 17, ctypes.create_string_buffer({forged}, 128))") == "0"
        assert ends_as_it_should(box), round
    assert "stopped" not in asked("open('/proc/1/status').read()")


TRACED = "import ctypes, os\nctypes.CDLL(None).ptrace(0, 0, 0, 0)\nos.{}"


@pytest.mark.parametrize(
    "end, expected",
    [
        ("_exit(7)", ("exit", 7, None)),
        ("kill(os.getpid(), 10)", ("signal", None, 10)),
        ("execvp('sh', ['sh', '-c', 'exit 9'])", ("exit", 9, None)),
    ],
)
def test_command_that_init_traces_ends_as_it_ends(box, end, expected):
    """PTRACE_TRACEME makes init the tracer, and it then sees each signal as a stop."""
    done = box.exec(["python3", "-c", TRACED.format(end)])
    assert (str(done.outcome), done.exit_code, done.signal) == expected
    assert ends_as_it_should(box)


def test_pidfd_of_init_from_a_restored_socket_gives_no_right(box):
    """Init makes the sockets of a copy, so their peer is init, and the kernel hands out its pidfd."""
    asked = begin(box)
    asked("import socket; x, y = socket.socketpair()")
    kid, = box.fork(1)
    with kid:
        copy = asked.of(kid)
        assert copy("struct.unpack('3i', x.getsockopt(1, 17, 12))[0]") == "1"
        copy("fd = struct.unpack('i', x.getsockopt(1, 77, 4))[0]")  # SO_PEERPIDFD, Linux 6.5
        if not copy("fd").isdigit():
            pytest.skip("this kernel has no SO_PEERPIDFD")
        advise, get, enter = "440, fd, longs(0x200000, 4096), 1, 4, 0", "438, fd, 0, 0", "308, fd, 0x20000000"
        for line in (f"call({arguments})" for arguments in (advise, get, enter)):
            assert copy(line) in ("'EPERM'", "'EACCES'"), line
        assert copy("[n for n in range(1, 12) if isinstance(call(16, fd, 0xff00 + n, 0), int)]") == "[]"
        assert copy("call(424, fd, 9, None, 0), call(424, fd, 19, None, 0)") == "(0, 0)"
        assert copy("call(448, fd, 0)") in ("'EINVAL'", "'EPERM'")  # process_mrelease: it does not end
        assert ends_as_it_should(kid)
