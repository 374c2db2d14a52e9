# SPDX-License-Identifier: Apache-2.0
"""Running processes of many users in snapshots, forks, resets and hibernated sandboxes.

The model: a Python process forks one process for each kind of rights, and answers each line on its
input with the state of all, as the kernel
has it. The answers of a copy are those of the original.
"""

import inspect
import os
import struct
import sys

import pytest

import record_fuzz
from harness import ORDINARY_UID, Caller, binaries
from many_users import give_ids

from rollbox import FeatureMissing, Policy, RollboxError, Sandbox

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it is about sandboxes that root runs")

COMMON = r"""
import ctypes, os, socket, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
PEER = struct.Struct("3i")
def become(uid, groups=()):
    os.setgroups(groups); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
def rights():
    kept = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")
    lines = dict(line.rstrip("\n").split(":\t", 1) for line in open("/proc/thread-self/status"))
    return [" ".join(lines[name].split()) for name in kept] + [libc.prctl(27, 0, 0, 0, 0), libc.prctl(3, 0, 0, 0, 0), os.getcwd()]
def peer_of(end): return PEER.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[1:]
def serve(answer):
    print("ready", flush=True)
    for line in sys.stdin: print(answer(line.strip()), flush=True)
"""

KINDS = (
    COMMON
    + r"""
class Header(ctypes.Structure): _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
def set_capabilities(effective, permitted, inheritable):
    assert libc.capset(ctypes.byref(Header(0x20080522, 0)), (ctypes.c_uint32 * 6)(effective, permitted, inheritable, 0, 0, 0)) == 0
def dropped(): become(1001, [50, 60])
def changed():
    os.setresgid(1002, 0, 1002); libc.prctl(8, 1, 0, 0, 0); os.setresuid(1002, 0, 1002)
def no_new(): libc.prctl(38, 1, 0, 0, 0)
def bounded(): libc.prctl(24, 13, 0, 0, 0); libc.prctl(28, 0x3f, 0, 0, 0)
def ambient():
    set_capabilities(0x81, 0x81, 0x81); libc.prctl(47, 2, 7, 0, 0)
def of_files(): libc.setfsgid(77); libc.setfsuid(1003)
def closed(): libc.prctl(4, 0, 0, 0, 0)
def open_again(): become(1004); libc.prctl(4, 1, 0, 0, 0)
def elsewhere(): os.makedirs("/root/inner", 0o700); os.chmod("/root", 0o700); os.chdir("/root/inner"); become(1005)
kinds = [dropped, changed, no_new, bounded, ambient, of_files, closed, open_again, elsewhere]
ends = []
for kind in kinds:
    ours, theirs = socket.socketpair()
    if not os.fork():
        ours.close(); kind()
        while theirs.recv(10): theirs.sendall(repr((kind.__name__, rights())).encode())
        os._exit(0)
    ends.append(ours)
def answer(line):
    texts = []
    for end in ends:
        end.sendall(b"?"); texts.append(end.recv(10000).decode())
    return " ".join(texts)
serve(answer)
"""
)


class Captive:
    def __init__(self, process):
        self.process, self.id = process, process.id

    @classmethod
    def begin(cls, box, program, *words, **options):
        made = cls(box.spawn(["python3", "-I", "-S", "-c", program, *words], **options))
        line = made.process.stdout.readline()
        assert line == b"ready\n", (line, made.process.stderr.read() if not line else "")
        return made

    def __call__(self, line="?"):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().decode().rstrip("\n")

    def of(self, box):
        return Captive(box.process(self.id))


@pytest.fixture
def box():
    with Sandbox(Policy(users="many", fs_writable=["/root"])) as box:
        yield box


def test_rights_of_each_process_are_kept_in_all_copies(box):
    captive = Captive.begin(box, KINDS)
    before = captive()
    assert before.count("(") == 9, before
    base = box.snapshot()
    assert captive() == before
    for kid in box.fork(3):
        with kid:
            copy = captive.of(kid)
            assert copy() == before
            for grandchild in kid.fork(2):
                with grandchild:
                    assert captive.of(grandchild)() == before
    box.reset(base)
    at_reset = captive.of(box)
    assert at_reset() == before
    box.hibernate()
    woken = captive.of(box)
    assert woken() == before
    kid, = box.fork(1)
    with kid:
        assert captive.of(kid)() == before


def test_restored_root_has_no_capability_more(box):
    """Restoring takes one that no command has."""
    captive = Captive.begin(box, COMMON + "serve(lambda line: rights())")
    kid, = box.fork(1)
    with kid:
        answer = captive.of(kid)()
        assert "00000000800425fb" in answer and answer == captive()
        assert kid.exec(["grep", "CapBnd", "/proc/self/status"], text=True).stdout.split()[1] == "00000000800425fb"


THREADS = (
    COMMON
    + r"""
ask, told = threading.Semaphore(0), threading.Semaphore(0)
seen = []
def other(uid):
    libc.syscall(117, uid, uid, uid)  # setresuid of this thread alone
    told.release()
    while True:
        ask.acquire(); seen.append(rights()); told.release()
for uid in (1001, 1002):
    threading.Thread(target=other, args=(uid,), daemon=True).start()
    told.acquire()
def answer(line):
    seen.clear()
    for _ in range(2): ask.release()
    for _ in range(2): told.acquire()
    return sorted(map(repr, seen)) + [rights()]
serve(answer)
"""
)


def test_threads_of_different_users_keep_theirs(box):
    captive = Captive.begin(box, THREADS)
    uids = ["1001 1001 1001 1001", "1002 1002 1002 1002", "0 0 0 0"]
    kid, = box.fork(1)
    with kid:
        copy = captive.of(kid)
        answers = "".join(copy() for _ in range(3))
        assert all(uid in answers for uid in uids), answers


READER = r"""
import ctypes, os, sys
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
os.setgroups([]); os.setresgid(1001, 1001, 1001); os.setresuid(1001, 1001, 1001)
for file in ("mem", "environ", "maps"):
    try: open(f"/proc/{pid}/{file}", "rb").read(1); print("read", file)
    except (PermissionError, FileNotFoundError): pass
print(libc.ptrace(16, pid, 0, 0), ctypes.get_errno(), os.path.exists(f"/proc/{sys.argv[2]}/exe"))
"""


def test_process_that_gave_up_root_stays_closed_to_its_user(box):
    """What root left in its memory is none of the user's, in a copy either: restored processes were dumpable."""
    program = COMMON + "become(1001); print(os.getpid(), flush=True); serve(lambda line: libc.prctl(3, 0, 0, 0, 0))"
    process = box.spawn(["python3", "-I", "-S", "-c", program])
    pid, ready = process.stdout.readline().decode().strip(), process.stdout.readline()
    assert ready == b"ready\n"
    captive = Captive(process)

    def read(sandbox):
        return sandbox.exec(["python3", "-c", READER, pid, pid], text=True).stdout

    assert read(box) == "-1 1 False\n"
    for kid in box.fork(2):
        with kid:
            assert captive.of(kid)() == "0" and read(kid) == "-1 1 False\n"


PEERS = (
    COMMON
    + r"""
os.chmod("/tmp", 0o1777)
listener = socket.socket(socket.AF_UNIX); listener.bind("/tmp/socket"); os.chown("/tmp/socket", 7, 8); listener.listen(5)
os.chmod("/tmp/socket", 0o777)
pairs = []
for uid in (1001, 1002, 0):
    if not os.fork():
        become(uid)
        end = socket.socket(socket.AF_UNIX); end.connect("/tmp/socket")
        end.sendall(b"waiting"); end.recv(1)
        while end.recv(1): end.sendall(repr(peer_of(end)).encode())
        os._exit(0)
    end, _ = listener.accept(); end.sendall(b"."); pairs.append(end)
os.setresgid(-1, 1003, -1); os.setresuid(-1, 1003, -1)
pairs.extend(socket.socketpair()); other = socket.socket(socket.AF_UNIX); other.bind("\0other"); other.listen(5)
os.setresuid(-1, 0, -1); os.setresgid(-1, 0, -1)
def answer(line):
    st = os.stat("/tmp/socket")
    texts = [str(peer_of(end)) for end in [*pairs, listener, other]] + [str((st.st_uid, st.st_gid, oct(st.st_mode)))]
    for end in pairs[:3]:
        end.setblocking(False)
        try: end.recv(7)
        except BlockingIOError: pass
        end.setblocking(True)
        end.sendall(b"?"); texts.append(end.recv(100).decode())
    return " ".join(texts)
serve(answer)
"""
)


def test_peers_of_sockets_are_those_who_connected(box):
    """SO_PEERCRED named root at every socket of a copy, so that a service would have served any user as root."""
    captive = Captive.begin(box, PEERS)
    kid, = box.fork(1)
    before = captive()
    assert "(1001, 1001) (1002, 1002) (0, 0) (1003, 1003)" in before and "(7, 8, '0o140777')" in before
    with kid:
        assert captive.of(kid)() == before


SENDERS = (
    COMMON
    + r"""
pairs = []
for uid in (1001, 0):
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    if not os.fork():
        become(uid); b.send(b"x" * 10); os._exit(0)
    os.wait(); pairs.append((a, b))
def answer(line):
    out = []
    for a, b in pairs:
        data, control, flags, _ = a.recvmsg(100, 1000); out.append((len(data), PEER.unpack(control[0][2])[1:]))
    return out
serve(answer)
"""
)


def test_unread_data_have_their_senders(box):
    """Root sends it again in a copy, so a service would take an order of any user for one of root."""
    captive = Captive.begin(box, SENDERS)
    kid, = box.fork(1)
    with kid:
        assert captive.of(kid)() == "[(10, (1001, 1001)), (10, (0, 0))]" == captive()


FILES = (
    COMMON
    + r"""
os.makedirs("/root/log", 0o700); os.chmod("/root", 0o700)
log = os.open("/root/log/file", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
gone = os.open("/root/log/gone", os.O_CREAT | os.O_RDWR, 0o640); os.write(gone, b"content"); os.fchown(gone, 1002, 50)
os.unlink("/root/log/gone")
script = os.open("/root/log/script", os.O_CREAT | os.O_RDWR, 0o600); os.write(script, b"lines"); os.close(script)
script = os.open("/root/log/script", os.O_RDONLY); os.unlink("/root/log/script")
memory = os.memfd_create("m"); os.fchown(memory, 1003, 1003); os.write(memory, b"memory")
become(1001)
def answer(line):
    os.write(log, b"line\n")
    try: os.write(script, b"more"); changed = "written"
    except OSError as error: changed = error.errno
    st, ms = os.fstat(gone), os.fstat(memory)
    return (os.fstat(log).st_uid, os.fstat(log).st_size, st.st_uid, st.st_gid, oct(st.st_mode), os.pread(gone, 100, 0), ms.st_uid, os.pread(memory, 10, 0), changed, os.pread(script, 10, 0))
serve(answer)
"""
)


def test_files_of_other_users_stay_open_as_they_were(box):
    """A log that root opened, in a directory that the process may not enter; removed files with
    their owners, and read-only where they were."""
    captive = Captive.begin(box, FILES)
    kid, = box.fork(1)
    before = captive()
    with kid:
        assert captive.of(kid)() == before == "(0, 5, 1002, 50, '0o100640', b'content', 1003, b'memory', 9, b'lines')"


ROOTED = (
    COMMON
    + r"""
os.makedirs("/root/jail/inner"); os.chmod("/root", 0o755)
listener = socket.socket(socket.AF_UNIX); listener.bind("/root/jail/socket"); listener.listen(5)
os.chroot("/root/jail"); os.chdir("/inner"); become(1001)
serve(lambda line: (sorted(os.listdir("/")), os.getcwd(), os.getresuid(), listener.getsockname()))
"""
)


def test_process_keeps_its_root_directory(box):
    captive = Captive.begin(box, ROOTED)
    before = captive()
    assert before == "(['inner', 'socket'], '/inner', (1001, 1001, 1001), '/root/jail/socket')"
    for kid in box.fork(2):
        with kid:
            assert captive.of(kid)() == before


TERMINAL = (
    COMMON
    + r"""
import pty
master, slave = pty.openpty(); path = os.ttyname(slave); os.chown(path, 1001, 5); os.chmod(path, 0o620)
serve(lambda line: (os.stat(path).st_uid, os.stat(path).st_gid, oct(os.stat(path).st_mode)))
"""
)


def test_terminal_belongs_to_the_one_who_logged_in(box):
    captive = Captive.begin(box, TERMINAL)
    kid, = box.fork(1)
    with kid:
        assert captive.of(kid)() == captive() == "(1001, 5, '0o20620')"


SIGNALLED = (
    COMMON
    + r"""
import fcntl, signal
SIGNAL = signal.SIGRTMIN + 3
ours, theirs = socket.socketpair()
got = []
signal.signal(SIGNAL, lambda *_: got.append(1))
fcntl.fcntl(ours, fcntl.F_SETOWN, os.getpid()); fcntl.fcntl(ours, 10, SIGNAL)
fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
if len(sys.argv) > 1: become(1001)
def answer(line):
    got.clear(); theirs.send(b"x")
    while not got: signal.sigtimedwait([], 1)
    return (len(got), fcntl.fcntl(ours, fcntl.F_GETOWN) == os.getpid(), bool(fcntl.fcntl(ours, fcntl.F_GETFL) & os.O_ASYNC), ours.recv(10))
serve(answer)
"""
)


@pytest.mark.parametrize("users", ["one", "many"])
def test_file_signals_its_owner_in_a_copy(users):
    """As the sockets between nginx and its workers do; snapshots of such processes were refused."""
    with Sandbox(Policy(users=users)) as box:
        captive = Captive.begin(box, SIGNALLED)
        for kid in box.fork(2):
            with kid:
                assert captive.of(kid)() == "(1, True, True, b'x')"
        assert captive() == "(1, True, True, b'x')"


def test_owner_that_another_user_has_named_is_refused(box):
    """A copy would signal with the rights of the one who restores it."""
    captive = Captive.begin(box, SIGNALLED, "as a user")
    with pytest.raises(FeatureMissing, match="another user has named"):
        box.snapshot()
    assert captive.process.id  # it is kept until here


FLICKER = (
    COMMON
    + r"""
if not os.fork():
    while True:
        for uid in (1001, 1002, 0): os.setresgid(-1, uid, -1); os.setresuid(-1, uid, -1); os.setresuid(-1, 0, -1); os.setresgid(-1, 0, -1)
if not os.fork():
    while True:
        if not os.fork(): become(1003); os._exit(0)
        os.wait()
serve(lambda line: "as it was")
"""
)


def test_processes_that_change_users_while_they_are_dumped(box):
    captive = Captive.begin(box, FLICKER)
    made = 0
    for _ in range(8):
        try:
            kids = box.fork(1)
        except RollboxError as error:
            assert "cannot be checkpointed" in str(error), error
            continue
        made += 1
        with kids[0] as kid:
            assert captive.of(kid)() == "as it was"
    assert made and captive() == "as it was"


AS_ORDINARY_USER = r"""
with Sandbox(Policy(users="many")) as box:
    captive = Captive.begin(box, KINDS.replace("/root", "/tmp/root"))
    before, base = captive(), box.snapshot()
    for kid in box.fork(2):
        with kid:
            copy = captive.of(kid)
            assert copy() == before
            for grandchild in kid.fork(1):
                with grandchild: assert captive.of(grandchild)() == before
    box.reset(base)
    at_reset = captive.of(box)
    assert at_reset() == before
print("all the same")
"""


def test_ordinary_users_processes_keep_their_rights():
    """His engine has rights over them in the user namespace of their ids alone; a restored process
    that is not dumpable was out of its reach."""
    give_ids()
    user = Caller("user", ORDINARY_UID)
    paths = os.pathsep.join(path for path in sys.path if path)
    script = f"from rollbox import Policy, Sandbox\nKINDS = {KINDS!r}\n{inspect.getsource(Captive)}\n{AS_ORDINARY_USER}"
    done = user.call(sys.executable, "-c", script, env=user.environment(PYTHONPATH=paths))
    assert done.stdout == b"all the same\n", done.stderr


# ---- forged images ----


def live_file(directory, users):
    """Exports a sandbox with one process; returns the command that imports the file."""
    root = Caller("root", 0)
    env = root.environment(ROLLBOX_STORE=str(directory / "store"), ROLLBOX_SOCKET=str(directory / "socket"))

    def rollbox(*arguments):
        return root.call(binaries() / "rollbox", *arguments, env=env)

    assert rollbox("engine", "start", "--background").returncode == 0
    assert rollbox("create", "--name", "box", "--users", users).returncode == 0
    assert rollbox("exec", "--detach", "box", "--", "/bin/sleep", "1000").returncode == 0
    done = rollbox("export", "--live", "box", directory / "file")
    assert done.returncode == 0, done.stderr
    return rollbox


@pytest.fixture(scope="module")
def forge(tmp_path_factory):
    directory = tmp_path_factory.mktemp("forged")
    os.chmod(directory, 0o755)
    rollbox = live_file(directory, "many")
    yield rollbox, directory
    rollbox("engine", "stop")


HEADER_BYTES = 552
PART_OF_CREDENTIALS = 18
CREDENTIALS = struct.Struct("<8I2I5Q2I")  # struct image_credentials


def credentials_of(image):
    """The offset of the first credentials of an image, whose header is at its end."""
    length, = struct.unpack_from("<Q", image, len(image) - 16)
    assert length == len(image)
    at, n = struct.unpack_from("<2Q", image, len(image) - HEADER_BYTES + 16 * PART_OF_CREDENTIALS)
    assert n == 1
    return at


FORGERIES = {
    "a user outside": lambda c: c.__setitem__(1, 65536),
    "the caller's user": lambda c: c.__setitem__(2, 2**32 - 1),
    "a group outside": lambda c: c.__setitem__(5, 100000),
    "groups past the table": lambda c: c.__setitem__(9, 1),
    "CAP_SYS_ADMIN": lambda c: (c.__setitem__(10, c[10] | 1 << 21), c.__setitem__(11, c[11] | 1 << 21)),
    "CAP_SYS_PTRACE to inherit": lambda c: c.__setitem__(12, 1 << 19),
    "all capabilities in the bounding set": lambda c: c.__setitem__(14, 2**41 - 1),
    "effective and not permitted": lambda c: (c.__setitem__(10, 0), c.__setitem__(11, 1)),
    "ambient and not inheritable": lambda c: c.__setitem__(13, 1),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_rights_are_not_imported(forge, name):
    rollbox, directory = forge
    case = record_fuzz.Case(record_fuzz.members_of(directory / "file"))
    image = bytearray(case.files["image-0"])
    at = credentials_of(image)
    fields = list(CREDENTIALS.unpack_from(image, at))
    assert fields[:8] == [0] * 8 and fields[10] == 0x800425FB, fields
    FORGERIES[name](fields)
    CREDENTIALS.pack_into(image, at, *fields)
    case.files["image-0"] = bytes(image)
    done = rollbox("import", "--trust", "--name", "forged", case.write(directory / "forged"))
    assert done.returncode == 125 and b"is not a process image" in done.stderr, done


def test_exported_processes_of_many_users_are_imported(forge):
    rollbox, directory = forge
    assert rollbox("import", "--trust", "--name", "again", directory / "file").returncode == 0
    done = rollbox("exec", "again", "--", "/bin/sh", "-c", "grep -H CapPrm /proc/[0-9]*/status | grep -c 800425fb")
    assert done.returncode == 0 and int(done.stdout) >= 2, done
    assert rollbox("rm", "again").returncode == 0


@pytest.mark.parametrize("users", ["one", "many"])
def test_image_of_the_other_kind_of_sandbox_is_not_woken(forge, users, tmp_path):
    """Processes without rights of their own would be root with all that restoring takes; those with
    rights have no such ids."""
    rollbox, directory = forge
    case = record_fuzz.Case(record_fuzz.members_of(directory / "file"))
    if users == "one":
        policy = case.whole["record"]["policy"]
        assert '"many"' in policy
        case.whole["record"]["policy"] = policy.replace('"many"', '"one"')
    else:
        image = bytearray(case.files["image-0"])
        at = credentials_of(image)
        header = len(image) - HEADER_BYTES
        struct.pack_into("<2Q", image, header + 16 * PART_OF_CREDENTIALS, at, 0)
        threads, n = struct.unpack_from("<2Q", image, header + 16)
        assert n == 1
        word = image.rindex(struct.pack("<I", 1) + bytes(4), threads, threads + 520)
        image[word : word + 4] = bytes(4)
        case.files["image-0"] = bytes(image)
    done = rollbox("import", "--trust", "--name", "other", case.write(directory / "other"))
    if done.returncode == 0:
        done = rollbox("exec", "other", "--", "/bin/true")
        rollbox("rm", "other")
    assert done.returncode == 125, done
