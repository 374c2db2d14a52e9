# SPDX-License-Identifier: Apache-2.0
"""Programs that check their own state: the corpus of checkpoints.

Each says "ready" (or "absent": the sandbox has not what it is about) once it has its state, and
then, for each line it reads, "ok" if all of that is still as it should be: in the process that was
captured, and in each that was made of it. At the end of its input it ends with 0.

PROGRAMS: by name, the command; `files` is what that needs in its sandbox, and `missing` what the machine lacks.
"""

import functools
import shutil
import tempfile
from pathlib import Path

import pytest
from harness import compiled
import contextlib
from live_corpus_languages import GO, JAVA, NODE, PERL, SHELL, SHELLS

# What a Python program of the corpus is: `begin` makes a state, `check` looks at it; both may use
# all that is imported here.
PYTHON = """
import asyncio, ctypes, fcntl, hashlib, io, json, mmap, os, queue, random, re, select, signal, socket, sqlite3, struct, subprocess, sys, tempfile, threading, time, zlib
from concurrent.futures import ThreadPoolExecutor
libc = ctypes.CDLL(None, use_errno=True)
{}
print("ready", flush=True)
for line in sys.stdin:
    try:
        check()
    except BaseException as problem:
        print("wrong:", type(problem).__name__, problem, flush=True)
    else:
        print("ok", flush=True)
os._exit(0)     # what ticks would kill an interpreter that takes itself apart
"""

# What is used on a terminal by a program that holds the other end.
PTY = """
import pty, shutil, termios
def begin(*argv, **more):
    if not shutil.which(argv[0]):
        print("absent", flush=True)
        raise SystemExit
    child, master = pty.fork()
    if not child:
        os.environ.update(TERM="vt100", PS1="p> ", **more); os.execvp(argv[0], argv)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    return child, master
def hear(what):
    got = b""
    while what not in got:
        assert select.select([master], [], [], 20)[0], (what, got)
        got += os.read(master, 1000)
    return got
def type(text): os.write(master, text.encode())
"""

TERMINALS = {
    "bash": """
child, master = begin("bash", "--norc", "--noprofile", "-i")
hear(b"p> "); type("x=7; sleep 100000 &\\n"); hear(b"p> "); type("cat\\n"); hear(b"cat\\r\\n")
import pathlib
while os.tcgetpgrp(master) == child or "cat" not in pathlib.Path(f"/proc/{os.tcgetpgrp(master)}/comm").read_text(): time.sleep(0.001)
def check():
    type("hello\\n"); hear(b"hello\\r\\nhello\\r\\n"); type("\\x1a"); hear(b"p> ")
    type("echo $x$x; jobs; stty size; tty\\n"); said = hear(b"/dev/pts/0"); assert b"77\\r\\n" in said and b"24 80" in said and b"Running" in said and b"Stopped" in said, said
    type("fg\\n"); hear(b"cat\\r\\n")
    while os.tcgetpgrp(master) == child: time.sleep(0.001)
""",
    "vim": """
open("/tmp/text", "w").write("one\\ntwo\\n")
child, master = begin("vim", "-u", "NONE", "-n", "-N", "/tmp/text", HOME="/tmp")
hear(b"one"); type("Gothree\\x1b"); hear(b"three"); type(":set noro\\r"); n = 0
def check():
    global n
    n += 1
    type(f"ggyyGp:s/one/line {n}/\\r:w! /tmp/out{n}\\r"); hear(b"written")
    assert open(f"/tmp/out{n}").read().split("\\n") == ["one", "two", "three", *(f"line {i}" for i in range(1, n + 1)), ""]
""",
    "less": """
open("/tmp/text", "w").write("".join(f"this is {n}.\\n" for n in range(1, 1000)))
child, master = begin("less", "/tmp/text")
hear(b"this is 23."); n = 23
def check():
    global n
    n += 1
    type("\\r"); hear(b"this is %d." % n)
""",
    "script": """
child, master = begin("script", "-q", "-c", "cat", "/tmp/typescript")
type("first\\n"); hear(b"first\\r\\nfirst\\r\\n"); type("behind\\n")
def check():
    type("again\\n"); got = b""
    while got.count(b"again\\r\\n") < 2: got += hear(b"\\n")       # what is typed may show before what cat says of the line before
""",
    "tmux": """
child, master = begin("tmux", "-f", "/dev/null", "-S", "/tmp/tmux", "new-session", "-s", "corpus", "cat", LC_ALL="C.UTF-8")
shows = lambda what: what in subprocess.run(["tmux", "-S", "/tmp/tmux", "capture-pane", "-p", "-t", "corpus"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
def wait(what):      # it draws when and as it likes
    while not shows(what):
        while select.select([master], [], [], 0.001)[0]: os.read(master, 10000)
hear(b"corpus"); type("first\\r"); wait("first\\nfirst"); n = 0
def check():
    global n
    n += 1
    type(f"line{n}\\r"); wait(f"line{n}\\nline{n}")
    while select.select([master], [], [], 0)[0]: os.read(master, 10000)
""",
}

SOURCES = {
    "objects": """
state = {"list": list(range(1000)), "text": "x" * 100000, "nested": [{}, {"a": {1, 2, 3}}]}
digest = hashlib.sha256(json.dumps(state["list"]).encode()).hexdigest()
def check():
    assert hashlib.sha256(json.dumps(state["list"]).encode()).hexdigest() == digest and state["text"] == "x" * 100000 and state["nested"][1]["a"] == {1, 2, 3}
""",
    "generator": """
def counting():
    n = 0
    while True:
        n += 1
        yield n
numbers, seen = counting(), 0
def check():
    global seen
    seen += 1
    assert next(numbers) == seen
""",
    "random_state": """
source, other = random.Random(5), random.Random(5)
[source.random() for _ in range(1000)]; [other.random() for _ in range(1000)]
def check():
    assert source.random() == other.random() and hash("a") == first
first = hash("a")
""",
    "digest_under_way": """
sha, whole = hashlib.sha256(), b""
packer, packed = zlib.compressobj(), b""
def check():
    global whole, packed
    data = os.urandom(1000)
    sha.update(data); whole += data
    packed += packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)
    assert sha.hexdigest() == hashlib.sha256(whole).hexdigest() and zlib.decompressobj().decompress(packed) == whole
""",
    "threads_that_count": """
lock, counts = threading.Lock(), [0] * 8
def work(i):
    while True:
        with lock:
            counts[i] += 1
        time.sleep(0.001)
for i in range(8):
    threading.Thread(target=work, args=(i,), daemon=True).start()
def check():
    before = list(counts)
    deadline = time.monotonic() + 20
    while not all(a > b for a, b in zip(counts, before)):
        assert time.monotonic() < deadline, (before, counts)
        time.sleep(0.001)
""",
    "threads_that_wait": """
condition, asked, answers = threading.Condition(), queue.Queue(), queue.Queue()
event = threading.Event()
def work():
    while True:
        answers.put(asked.get() * 2)
def waits():
    event.wait(100000)
    answers.put("event")
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
threading.Thread(target=waits, daemon=True).start()
def check():
    for n in range(20):
        asked.put(n)
    assert sorted(answers.get(timeout=20) for _ in range(20)) == [2 * n for n in range(20)]
""",
    "thread_in_poll": """
r, w = os.pipe()
heard = queue.Queue()
def work():
    poll = select.poll()
    poll.register(r, select.POLLIN)
    while True:
        for fd, what in poll.poll(100000000):
            heard.put(os.read(fd, 100))
threading.Thread(target=work, daemon=True).start()
def check():
    os.write(w, b"hello")
    assert heard.get(timeout=20) == b"hello"
""",
    "thread_pool": """
pool = ThreadPoolExecutor(4)
assert list(pool.map(abs, range(-10, 0))) == list(range(10, 0, -1))
def check():
    assert list(pool.map(abs, range(-10, 0))) == list(range(10, 0, -1))
""",
    "thread_locals": """
local, go, said = threading.local(), queue.Queue(), queue.Queue()
def work(i):
    local.mine = i
    while True:
        go.get()
        said.put(local.mine)
        time.sleep(0.01)
for i in range(3):
    threading.Thread(target=work, args=(i,), daemon=True).start()
local.mine = "main"
def check():
    for _ in range(3):
        go.put(None)
    assert {said.get(timeout=20) for _ in range(3)} <= {0, 1, 2} and local.mine == "main"
""",
    "asyncio_timers": """
loop, ticks = asyncio.new_event_loop(), [0]
async def tick():
    while True:
        ticks[0] += 1
        await asyncio.sleep(0.002)
threading.Thread(target=lambda: loop.run_until_complete(tick()), daemon=True).start()
def check():
    before, deadline = ticks[0], time.monotonic() + 20
    while ticks[0] < before + 3:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "done"), loop).result(20) == "done"
""",
    "asyncio_server": """
loop = asyncio.new_event_loop()
async def answer(reader, writer):
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()
async def serve():
    return await asyncio.start_unix_server(answer, "/tmp/server.sock")
threading.Thread(target=loop.run_forever, daemon=True).start()
server = asyncio.run_coroutine_threadsafe(serve(), loop).result()
kept = socket.socket(socket.AF_UNIX); kept.connect("/tmp/server.sock")
kept.sendall(b"a\\n"); assert kept.recv(10) == b"A\\n"
def check():
    kept.settimeout(20)
    kept.sendall(b"kept\\n"); assert kept.recv(10) == b"KEPT\\n"
    with socket.socket(socket.AF_UNIX) as fresh:
        fresh.settimeout(20)
        fresh.connect("/tmp/server.sock"); fresh.sendall(b"new\\n"); assert fresh.recv(10) == b"NEW\\n"
""",
    "asyncio_subprocess": """
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
async def start():
    return await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
cat = asyncio.run_coroutine_threadsafe(start(), loop).result()
async def ask():
    cat.stdin.write(b"line\\n")
    await cat.stdin.drain()
    return await cat.stdout.readline()
def check():
    assert asyncio.run_coroutine_threadsafe(ask(), loop).result(20) == b"line\\n"
""",
    "sqlite_in_memory": """
db = sqlite3.connect(":memory:", isolation_level=None)
db.execute("create table t (n)"); db.execute("begin"); db.executemany("insert into t values (?)", [(n,) for n in range(100)])
def check():
    assert db.execute("select count(*), sum(n) from t").fetchone() == (100, 4950) and db.in_transaction
""",
    "sqlite_in_a_transaction": """
db, other = sqlite3.connect("/tmp/t.db", isolation_level=None), sqlite3.connect("/tmp/t.db", isolation_level=None, timeout=0)
db.execute("create table t (n)"); db.execute("begin immediate"); db.execute("insert into t values (1)")
def check():
    global db
    assert db.in_transaction and db.execute("select count(*) from t").fetchone() == (1,)
    checker = "import sqlite3\\ntry: sqlite3.connect('/tmp/t.db', timeout=0, isolation_level=None).execute('begin immediate')\\nexcept sqlite3.OperationalError: print('locked')"
    assert subprocess.run([sys.executable, "-c", checker], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout == "locked\\n"
""",
    "locked_files": """
a, b = open("/tmp/flocked", "w"), open("/tmp/locked", "w+")
b.write("x" * 100); b.flush()
fcntl.flock(a, fcntl.LOCK_EX); fcntl.lockf(b, fcntl.LOCK_EX, 10, 20)
checker = "import fcntl\\nfor f, lock in ((open('/tmp/flocked', 'w'), lambda f: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)), (open('/tmp/locked', 'r+'), lambda f: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 22)), (open('/tmp/locked', 'r+'), lambda f: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 50))):\\n  try: lock(f); print('free')\\n  except OSError: print('locked')"
def check():
    assert subprocess.run([sys.executable, "-c", checker], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout.split() == ["locked", "locked", "free"]
""",
    "file_offsets": """
f = open("/tmp/text", "w+b", buffering=0)
f.write(b"".join(b"%06d\\n" % n for n in range(1000))); f.seek(0)
r = os.open("/tmp/text", os.O_RDONLY); other = os.dup(r)
log = os.open("/tmp/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
n = size = 0
def check():
    global n, size
    assert os.read(r if n % 2 else other, 7) == b"%06d\\n" % n and f.read(7) == b"%06d\\n" % n
    os.write(log, b"line\\n"); size += 5
    n += 1
    assert os.fstat(log).st_size == size and fcntl.fcntl(log, fcntl.F_GETFL) & os.O_APPEND
""",
    "offsets_shared_with_a_child": """
open("/tmp/numbers", "wb").write(b"".join(b"%d\\n" % (n % 10) for n in range(1000)))
f = os.open("/tmp/numbers", os.O_RDONLY)
child = subprocess.Popen([sys.executable, "-c", "import os, sys\\nfor line in sys.stdin: print(os.read(int(sys.argv[1]), 2).decode().strip(), flush=True)", str(f)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[f], text=True, bufsize=1)
n = 0
def check():
    global n
    assert os.read(f, 2) == b"%d\\n" % (n % 10)
    child.stdin.write("next\\n"); child.stdin.flush()
    assert child.stdout.readline() == "%d\\n" % ((n + 1) % 10)
    n += 2
""",
    "deleted_file": """
f = open("/tmp/gone", "w+b"); f.write(b"y" * 10000); f.flush(); os.chmod("/tmp/gone", 0o754); os.unlink("/tmp/gone"); f.seek(5000)
def check():
    assert f.tell() == 5000 and os.fstat(f.fileno()).st_nlink == 0 and os.fstat(f.fileno()).st_mode & 0o7777 == 0o754 and f.read() == b"y" * 5000 and not os.path.exists("/tmp/gone")
    f.seek(5000)
""",
    "temporary_directory": """
d = tempfile.TemporaryDirectory(); os.chdir(d.name)
open("mine", "w").write("here"); os.umask(0o027)
def check():
    assert os.getcwd() == d.name and open("mine").read() == "here" and os.umask(0o027) == 0o027
""",
    "listing_under_way": """
for n in range(50): open(f"/tmp/f{n:02}", "w").close()
def check():
    assert sum(name.startswith("f") for name in os.listdir(fd)) == 50
fd = os.open("/tmp", os.O_RDONLY | os.O_DIRECTORY)
""",
    "mapped_private": """
open("/tmp/mapped", "wb").write(b"a" * 40960)
f = open("/tmp/mapped", "r+b"); m = mmap.mmap(f.fileno(), 40960, flags=mmap.MAP_PRIVATE)
m[5000:5005] = b"hello"
def check():
    assert m[5000:5005] == b"hello" and m[:10] == b"a" * 10 and m[20000:20010] == b"a" * 10 and open("/tmp/mapped", "rb").read() == b"a" * 40960
""",
    "mapped_shared": """
open("/tmp/mapped", "wb").write(b"a" * 40960)
f = open("/tmp/mapped", "r+b"); m = mmap.mmap(f.fileno(), 40960)
n = 0
def check():
    global n
    assert m[100] == (n % 256 if n else 97)
    n += 1
    m[100] = n % 256
    assert open("/tmp/mapped", "rb").read()[100] == n % 256
""",
    "shared_memory_with_a_child": """
m = mmap.mmap(-1, 65536)
go_r, go_w = os.pipe(); done_r, done_w = os.pipe()
child = os.fork()
if not child:
    while os.read(go_r, 1):
        struct.pack_into("Q", m, 8, struct.unpack_from("Q", m, 0)[0] * 2)
        os.write(done_w, b"x")
    os._exit(0)
n = 0
def check():
    global n
    n += 1
    struct.pack_into("Q", m, 0, n)
    os.write(go_w, b"x"); assert os.read(done_r, 1) == b"x"
    assert struct.unpack_from("Q", m, 8)[0] == 2 * n
""",
    "memory_file": """
try:
    fd = os.memfd_create("mine", os.MFD_ALLOW_SEALING)
except OSError:
    print("absent", flush=True)     # without a memory cgroup sandboxes have no memory files
    raise SystemExit
os.write(fd, b"memory" * 1000)
fcntl.fcntl(fd, 1033, 2 | 4)
def check():
    assert os.pread(fd, 6, 600) == b"memory" and os.lseek(fd, 0, os.SEEK_CUR) == 6000 and fcntl.fcntl(fd, 1034) == 6
""",
    "sealed_memory_files": """
try:
    mine, program, mapped, read = [os.memfd_create("mine", flags) for flags in (8, 2, 2, 2)]     # 8: MFD_NOEXEC_SEAL, Linux 6.3
except OSError:
    print("absent", flush=True)
    raise SystemExit
def modes(): return [(fcntl.fcntl(fd, 1034), os.fstat(fd).st_mode & 0o7777) for fd in (mine, program, mapped, read)]
os.fchmod(program, 0o640)
os.ftruncate(mapped, 8192); m = mmap.mmap(mapped, 8192); fcntl.fcntl(mapped, 1033, 16 | 1)
os.write(read, b"read" * 1024); fcntl.fcntl(read, 1033, 8 | 4 | 2); r = mmap.mmap(read, 4096, prot=mmap.PROT_READ)
libc.mmap.restype = ctypes.c_void_p
shown = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, mapped, ctypes.c_long(0))
was, n = modes(), 0
def check():
    global n
    n += 1
    os.pwrite(mine, b"%d" % n, 0); m[5] = n; assert os.pread(mapped, 1, 5) == bytes([n]) and r[:4] == b"read" and modes() == was, (modes(), was)
    try: os.pwrite(mapped, b"x", 0)
    except PermissionError: pass
    else: raise AssertionError("it was sealed")
    assert libc.mprotect(ctypes.c_void_p(shown), ctypes.c_size_t(4096), 3) == -1, "what was mapped after that can be written to"
""",
    "given_back_memory": """
m = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m[:] = b"z" * (1 << 20); m.madvise(mmap.MADV_DONTNEED, 0, 1 << 19)
def check():
    assert m[:10] == bytes(10) and m[-10:] == b"z" * 10
    m[:4096] = b"q" * 4096; assert m[:10] == b"q" * 10
    m.madvise(mmap.MADV_DONTNEED, 0, 1 << 19); assert m[:10] == bytes(10)
    m.resize(2 << 20); assert m[-10:] == bytes(10) and m[(1 << 20) - 10:1 << 20] == b"z" * 10
    m.resize(1 << 20)
""",
    "protected_memory": """
page = mmap.PAGESIZE
libc.mmap.restype = ctypes.c_void_p
at = libc.mmap(None, 3 * page, 3, 0x22, -1, 0)
ctypes.memset(at, 7, 3 * page); libc.mprotect(ctypes.c_void_p(at + page), page, 0)
def check():
    assert ctypes.string_at(at, 10) == b"\\7" * 10
    child = os.fork()
    if not child:
        ctypes.string_at(at + page, 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
    libc.mprotect(ctypes.c_void_p(at + page), page, 1); assert ctypes.string_at(at + page, 4) == b"\\7" * 4; libc.mprotect(ctypes.c_void_p(at + page), page, 0)
""",
    "large_heap": """
blocks = [os.urandom(1 << 20) for _ in range(40)]
digest = hashlib.blake2b(b"".join(blocks)).digest()
def check():
    assert hashlib.blake2b(b"".join(blocks)).digest() == digest
""",
    "heap_of_300_mb": """
blocks = [bytearray(os.urandom(1 << 12) * 256) for _ in range(300)]
sums, n = [zlib.crc32(block) for block in blocks], 0
def check():
    global n
    assert [zlib.crc32(block) for block in blocks] == sums
    blocks[n % 300][:8] = struct.pack("Q", n); sums[n % 300] = zlib.crc32(blocks[n % 300])
    n += 7
""",
    "moved_memory": """
page = mmap.PAGESIZE
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
def new(pages): return libc.mmap(None, pages * page, 3, 0x22, -1, 0)
def fill(at, pages):
    for n in range(pages): ctypes.memset(at + n * page, n % 255 + 1, page)
def filled(at, pages, first=0): return all(ctypes.string_at(at + n * page, page) == bytes([(first + n) % 255 + 1]) * page for n in range(pages))
grown = new(32); fill(grown, 32); grown = libc.mremap(grown, 32 * page, 4096 * page, 1, None)
split = new(96); fill(split, 96); middle = new(64); middle = libc.mremap(split + 32 * page, 32 * page, 32 * page, 3, middle + 16 * page)
left = new(16); fill(left, 16); taken = libc.mremap(left, 16 * page, 16 * page, 5, None)
def check():
    assert filled(grown, 32) and ctypes.string_at(grown + 4095 * page, page) == bytes(page)
    assert filled(split, 32) and filled(middle, 32, 32) and filled(split + 64 * page, 32, 64)
    assert filled(taken, 16) and ctypes.string_at(left, 16 * page) == bytes(16 * page)
    assert libc.mremap(grown, 4096 * page, 40 * page, 1, None) == grown and filled(grown, 32)
    moved = libc.mremap(grown, 40 * page, 4096 * page, 1, None)
    assert moved == grown or filled(moved, 32)
    globals().update(grown=moved)
""",
    "memory_that_grows_downwards": """
libc.mmap.restype = ctypes.c_void_p
begin = at = libc.mmap(ctypes.c_void_p(0x600000000), 65536, 3, 0x100122, -1, 0)
ctypes.memset(at, 7, 65536)
def check():
    global at
    at -= 3 * mmap.PAGESIZE
    ctypes.memset(at, 7, 3 * mmap.PAGESIZE); assert ctypes.string_at(at, begin - at + 65536) == bytes([7]) * (begin - at + 65536)
""",
    "advised_memory": """
page = mmap.PAGESIZE
libc.mmap.restype = ctypes.c_void_p
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
def advised(size, advice):
    at = libc.mmap(None, size, 3, 0x22, -1, 0)
    ctypes.memset(at, 5, size)
    assert libc.madvise(at, size, advice) == 0, (advice, ctypes.get_errno())
    return at
free, huge, small, wiped, kept = advised(16 * page, 8), advised(4 << 20, 14), advised(16 * page, 15), advised(16 * page, 18), advised(16 * page, 16)
def seen_by_child(at):
    child = os.fork()
    if not child: os._exit(ctypes.string_at(at, 1)[0])
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def check():
    assert all(ctypes.string_at(free + n * page, page) in (bytes(page), bytes([5]) * page) for n in range(16))
    assert ctypes.string_at(huge, 4 << 20) == bytes([5]) * (4 << 20) and ctypes.string_at(small, page) == ctypes.string_at(kept, page) == bytes([5]) * page
    assert ctypes.string_at(wiped, page) in (bytes(page), bytes([5]) * page)     # a copy is a fork
    assert (seen_by_child(wiped), seen_by_child(kept)) == (0, 5)
""",
    "pipes_with_something_in_them": """
r, w = os.pipe(); os.write(w, b"1234567890" * 100); assert os.read(r, 5) == b"12345"
full_r, full_w = os.pipe(); os.set_blocking(full_w, False)
size = 0
try:
    while True: size += os.write(full_w, b"x" * 1000)
except BlockingIOError: pass
def check():
    assert os.read(r, 1000) == b"67890" + b"1234567890" * 99
    os.write(w, b"67890" + b"1234567890" * 99)
    got = b""
    while len(got) < size: got += os.read(full_r, 65536)
    assert got == b"x" * size
    try:
        while True: os.write(full_w, b"x" * 1000)
    except BlockingIOError: pass
""",
    "pipe_that_is_open_several_times": """
r, w = os.pipe(); os.write(w, b"data")
again = [os.open(f"/proc/self/fd/{fd}", access | os.O_NONBLOCK) for fd, access in ((r, os.O_RDONLY), (w, os.O_WRONLY))]
def check():
    assert [os.get_blocking(fd) for fd in (r, w, *again)] == [True, True, False, False]
    assert os.read(again[0], 10) == b"data"; os.write(w, b"da"); os.write(again[1], b"ta")
""",
    "fifo": """
os.mkfifo("/tmp/fifo")
r = os.open("/tmp/fifo", os.O_RDONLY | os.O_NONBLOCK); w = os.open("/tmp/fifo", os.O_WRONLY)
def check():
    os.write(w, b"fifo"); assert os.read(r, 10) == b"fifo"
    other = os.open("/tmp/fifo", os.O_WRONLY | os.O_NONBLOCK); os.write(other, b"more"); os.close(other); assert os.read(r, 10) == b"more"
""",
    "pipe_whose_writer_is_gone": """
r, w = os.pipe(); os.write(w, b"last"); os.close(w)
r2, w2 = os.pipe(); os.close(r2)
seen = False
def check():
    global seen
    if not seen: assert os.read(r, 10) == b"last"
    seen = True
    assert os.read(r, 10) == b""
    try: os.write(w2, b"x"); raise AssertionError
    except BrokenPipeError: pass
""",
    "socket_pairs": """
a, b = socket.socketpair(); a.sendall(b"waiting"); b.sendall(b"other way")
c, d = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); c.send(b"one"); c.send(b""); c.send(b"three")
e, f = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET); e.send(b"packet"); e.send(b"another")
for s in (a, b, c, d, e, f): s.settimeout(20)
def check():
    assert b.recv(100) == b"waiting" and a.recv(100) == b"other way"
    assert [d.recv(100) for _ in range(3)] == [b"one", b"", b"three"] and [f.recv(100) for _ in range(2)] == [b"packet", b"another"]
    a.sendall(b"waiting"); b.sendall(b"other way"); c.send(b"one"); c.send(b""); c.send(b"three"); e.send(b"packet"); e.send(b"another")
""",
    "sockets_that_are_full": """
a, b = socket.socketpair(); c, d = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET); n = 0
sender = os.fork()
if not sender:
    number = 0
    while True: a.sendall(struct.pack("Q", number) * 25000); number += 1
c.setblocking(False); size = 0
try:
    while True: size += c.send(b"x" * 9000)
except BlockingIOError: pass
import pathlib
while pathlib.Path(f"/proc/{sender}/stat").read_text().rsplit(")")[1].split()[0] != "S": os.sched_yield()
def check():
    global n, size
    for _ in range(5):
        assert b.recv(200000, socket.MSG_WAITALL) == struct.pack("Q", n) * 25000, n
        n += 1
    while size: size -= len(d.recv(10000))
    try:
        while True: size += c.send(b"x" * 9000)
    except BlockingIOError: pass
""",
    "sockets_that_tell_who_sent": """
pairs = [socket.socketpair(socket.AF_UNIX, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM)]
for one, other in pairs: other.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1); other.settimeout(20); one.send(b"data")
def check():
    for one, other in pairs:
        data, ((level, kind, sender),), *_ = other.recvmsg(10, 100)
        assert data == b"data" and kind == socket.SCM_CREDENTIALS and struct.unpack("3i", sender)[1:] == (os.getuid(), os.getgid()), sender
        one.send(b"data")
""",
    "socket_whose_other_end_is_gone": """
a, b = socket.socketpair(); a.sendall(b"last words"); a.close(); b.settimeout(20)
c, d = socket.socketpair(); c.shutdown(socket.SHUT_WR); d.settimeout(20); c.settimeout(20)
heard = False
def check():
    global heard
    if not heard: assert b.recv(100) == b"last words"
    heard = True
    assert b.recv(100) == b"" and d.recv(100) == b""
    d.sendall(b"still"); assert c.recv(10) == b"still"
""",
    "datagrams_one_way": """
there, here = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
there.bind("/tmp/datagrams"); here.connect("/tmp/datagrams"); here.bind("\\0here")
def check():
    here.send(b"a"); here.send(b"")
    assert there.recvfrom(10) == (b"a", b"\\0here") and there.recv(10) == b""
""",
    "packets_and_their_end": """
def pair(): return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
(a, b), (c, d), (e, f) = pair(), pair(), pair()
for one in (a, c, e): one.send(b"one"); one.send(b""); one.send(b"two")
a.shutdown(socket.SHUT_WR); c.close()
def check():
    for one in (b, d, f):
        got = [one.recv(100, socket.MSG_DONTWAIT) for _ in range(3)]
        assert got == [b"one", b"", b"two"] or got == [b""] * 3, got
    for one in (b, d):
        assert one.recv(100, socket.MSG_DONTWAIT) == b""
    assert not select.select([f], [], [], 0)[0]
    a2, c2 = pair(); globals().update(f=c2, e=a2); [e.send(part) for part in (b"one", b"", b"two")]
""",
    "patience_of_sockets": """
a, b = socket.socketpair(); u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("127.0.0.1", 0))
server = socket.create_server(("127.0.0.1", 0)); near = socket.create_connection(server.getsockname()); far = server.accept()[0]
for one in (a, u, near, server):
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 20000)); one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 3, 0))
def look(): return [one.getsockopt(socket.SOL_SOCKET, name, 16) for one in (a, b, u, near, far, server) for name in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)]
before = look()
def check():
    assert look() == before
    try: a.recv(1)
    except BlockingIOError: pass
""",
    "socket_whose_name_is_gone": """
server, packets = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); names = "/tmp/server", "/tmp/packets"
for one, name in zip((server, packets), names): one.bind(name); os.unlink(name)
server.listen()
def check():
    assert not any(map(os.path.exists, names)) and (server.getsockname(), packets.getsockname()) == names
""",
    "abstract_socket": """
server = socket.socket(socket.AF_UNIX); server.bind("\\0corpus"); server.listen(5)
def check():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\\0corpus")
        there, _ = server.accept()
        there.sendall(b"hello"); assert client.recv(10) == b"hello"; there.close()
""",
    "server_on_loopback": """
import http.server, urllib.request
os.makedirs("/tmp/www"); os.chdir("/tmp/www"); open("page", "w").write("served")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8123), http.server.SimpleHTTPRequestHandler)
server.RequestHandlerClass.log_message = lambda *_: None
threading.Thread(target=server.serve_forever, daemon=True).start()
six = socket.create_server(("::1", 8124), family=socket.AF_INET6); udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("127.0.0.1", 0)); free = socket.socket()
udp.settimeout(20)
address = udp.getsockname()
def check():
    assert urllib.request.urlopen("http://127.0.0.1:8123/page", timeout=20).read() == b"served"
    with socket.create_connection(("::1", 8124), 20) as client:
        there, _ = six.accept(); there.sendall(b"six"); assert client.recv(10) == b"six"; there.close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender: sender.sendto(b"datagram", address)
    assert udp.recv(100) == b"datagram" and udp.getsockname() == address
""",
    "connections": """
server = socket.create_server(("127.0.0.1", 8125)); six = socket.create_server(("::", 8126), family=socket.AF_INET6, dualstack_ipv6=True)
def pair(listening, *address, family=socket.AF_INET):
    client = socket.socket(family); client.settimeout(20); client.connect(address); there, _ = listening.accept(); there.settimeout(20)
    return client, there
a, b = pair(server, "127.0.0.1", 8125); c, d = pair(six, "127.0.0.1", 8126); e, f = pair(six, "::1", 8126, family=socket.AF_INET6); g, h = pair(server, "127.0.0.1", 8125); i, j = pair(server, "127.0.0.1", 8125)
a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1); b.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1); b.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77); a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
names = [(s.getsockname(), s.getpeername()) for s in (a, b, c, d, e, f, g, h)]
options = lambda: [s.getsockopt(*name) for s in (a, b, server, d) for name in ((socket.SOL_SOCKET, socket.SO_REUSEADDR), (socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_NODELAY), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), (socket.SOL_SOCKET, 72))] + [a.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)]
set_to = options()
g.sendall(b"last"); g.shutdown(socket.SHUT_WR); i.sendall(b"gone"); i.close()
udp = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
for s in udp: s.bind(("127.0.0.1", 0)); s.settimeout(20)
udp[0].connect(udp[1].getsockname()); udp[1].connect(udp[0].getsockname())
def put():
    for s in (a, b, c, d, e, f): s.sendall(b"waiting" * 5000)
def take(s, n):
    got = b""
    while len(got) < n: got += s.recv(n - len(got))
    return got
put(); n = 0
def check():
    global n
    n += 1
    assert names == [(s.getsockname(), s.getpeername()) for s in (a, b, c, d, e, f, g, h)] and set_to == options()
    for s in (a, b, c, d, e, f): assert take(s, 35000) == b"waiting" * 5000 and not select.select([s], [], [], 0)[0]
    put()
    if n == 1: assert take(h, 4) == b"last" and take(j, 4) == b"gone"
    assert h.recv(10) == b"" and j.recv(10) == b""
    h.sendall(b"back"); assert take(g, 4) == b"back"
    udp[0].send(b"to"); assert udp[1].recv(10) == b"to"; udp[1].send(b"fro"); assert udp[0].recv(10) == b"fro"
    more = [*pair(server, "127.0.0.1", 8125), *pair(six, "::1", 8126, family=socket.AF_INET6)]
    more[0].sendall(b"new"); assert take(more[1], 3) == b"new"
    for s in more: s.close()
""",
    "connections_that_have_ended": """
server = socket.create_server(("127.0.0.1", 8127)); six = socket.create_server(("::", 8128), family=socket.AF_INET6, dualstack_ipv6=True)
pairs = []
for listening, host in ((server, "127.0.0.1"), (server, "127.0.0.1"), (six, "127.0.0.1"), (six, "::1")):
    client = socket.create_connection((host, listening.getsockname()[1]), 20); pairs.append((client, listening.accept()[0]))
for one, other in pairs: one.sendall(b"last"); other.sendall(b"words")
for one, other in pairs[::2]: one.shutdown(socket.SHUT_WR); other.shutdown(socket.SHUT_WR)
for one, other in pairs[1::2]: other.shutdown(socket.SHUT_WR); one.shutdown(socket.SHUT_WR)
for s in sum(pairs, ()):
    s.settimeout(20)
    while s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != b"\7": os.sched_yield()       # closed
names = [s.getsockname() for s in sum(pairs, ())]; n = 0
def check():
    global n
    n += 1
    for one, other in pairs:
        if n == 1: assert one.recv(10) == b"words" and other.recv(10) == b"last"
        for s in (one, other):
            assert s.recv(10) == b""
            try: s.send(b"x"); raise AssertionError
            except BrokenPipeError: pass
    assert [s.getsockname() for s in sum(pairs, ())] == names
    with socket.create_connection(("127.0.0.1", 8127), 20) as client: server.accept()[0].close(); assert client.recv(1) == b""
""",
    "asyncio_server_on_loopback": """
loop = asyncio.new_event_loop()
async def answer(reader, writer):
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()
threading.Thread(target=loop.run_forever, daemon=True).start()
server = asyncio.run_coroutine_threadsafe(asyncio.start_server(answer, "127.0.0.1", 8127), loop).result()
async def connect(): return await asyncio.open_connection("127.0.0.1", 8127)
async def ask(client, line):
    client[1].write(line); await client[1].drain()
    return await client[0].readline()
clients = [asyncio.run_coroutine_threadsafe(connect(), loop).result() for _ in range(20)]
for client in clients: asyncio.run_coroutine_threadsafe(ask(client, b"\\n"), loop).result()
kept = socket.create_connection(("127.0.0.1", 8127), 20); kept.sendall(b"first\\n"); assert kept.recv(100) == b"FIRST\\n"; kept.sendall(b"half a ")
def check():
    assert [asyncio.run_coroutine_threadsafe(ask(client, b"line %d\\n" % n), loop).result(20) for n, client in enumerate(clients)] == [b"LINE %d\\n" % n for n in range(20)]
    kept.sendall(b"line\\nhalf a "); assert kept.recv(100) == b"HALF A LINE\\n"
    assert asyncio.run_coroutine_threadsafe(ask(asyncio.run_coroutine_threadsafe(connect(), loop).result(20), b"new\\n"), loop).result(20) == b"NEW\\n"
""",
    "server_with_a_kept_connection": """
import http.server, http.client
os.makedirs("/tmp/www"); os.chdir("/tmp/www"); open("page", "w").write("served" * 1000)
class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8128), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = http.client.HTTPConnection("127.0.0.1", 8128, timeout=20)
def get():
    client.request("GET", "/page"); answer = client.getresponse(); return answer.status, answer.read()
assert get() == (200, b"served" * 1000); client.auto_open = 0; kept = client.sock.getsockname()
client.request("GET", "/page")
def check():
    answer = client.getresponse(); assert (answer.status, answer.read()) == (200, b"served" * 1000)
    assert get() == (200, b"served" * 1000) and client.sock.getsockname() == kept
    client.request("GET", "/page")
""",
    "event_and_timer_descriptors": """
event = os.eventfd(7, os.EFD_NONBLOCK); large = os.eventfd(0, os.EFD_NONBLOCK); os.eventfd_write(large, 2 ** 64 - 2); semaphore = os.eventfd(3, os.EFD_SEMAPHORE | os.EFD_NONBLOCK)
timer = libc.timerfd_create(1, os.O_NONBLOCK); libc.timerfd_settime(timer, 0, struct.pack("qqqq", 0, 5000000, 0, 5000000), None)
epoll = select.epoll(); epoll.register(timer, select.EPOLLIN); r, w = os.pipe(); epoll.register(r, select.EPOLLIN | select.EPOLLET)
def check():
    assert os.eventfd_read(event) == 7; os.eventfd_write(event, 7)
    assert os.eventfd_read(large) == 2 ** 64 - 2; os.eventfd_write(large, 2 ** 64 - 2)
    assert [os.eventfd_read(semaphore) for _ in range(3)] == [1, 1, 1]; os.eventfd_write(semaphore, 3)
    seen = set()
    os.write(w, b"x")
    deadline = time.monotonic() + 20
    while seen != {r, timer}:
        assert time.monotonic() < deadline, seen
        for fd, _ in epoll.poll(1): seen.add(fd)
    assert struct.unpack("Q", os.read(timer, 8))[0] >= 1; os.read(r, 10)
""",
    "inotify": """
fd = libc.inotify_init1(os.O_NONBLOCK)
os.makedirs("/tmp/w/below/deep"); open("/tmp/w/file", "w").close()
add = lambda path, mask: libc.inotify_add_watch(fd, path.encode(), mask)
assert [add("/tmp", 0x100), add("/tmp/w/file", 2), add("/tmp/w", 0x340), add("/etc", 0x300)] == [1, 2, 3, 4]
libc.inotify_rm_watch(fd, 1)
for _ in range(50): libc.inotify_rm_watch(fd, add("/tmp/w/below", 0x100))
deep = add("/tmp/w/below/deep", 0x80000100); assert deep == 55
def events():
    found = []
    try: data = os.read(fd, 65536)
    except BlockingIOError: return found
    while data:
        number, mask, cookie, length = struct.unpack_from("iIII", data); found.append((number, mask, data[16:16 + length].rstrip(bytes(1)).decode())); data = data[16 + length:]
    return found
events(); n = 0
def check():
    global n
    n += 1
    assert events() == []
    with open("/tmp/w/file", "a") as f: f.write("x")
    open(f"/tmp/w/new{n}", "w").close(); os.rename(f"/tmp/w/new{n}", f"/tmp/w/moved{n}"); os.unlink(f"/tmp/w/moved{n}"); open(f"/tmp/w/below/{n}", "w").close()
    assert events() == [(2, 2, ""), (3, 0x100, f"new{n}"), (3, 0x40, f"new{n}"), (3, 0x200, f"moved{n}")]
    if n == 1:
        open("/tmp/w/below/deep/one", "w").close(); open("/tmp/w/below/deep/two", "w").close()
        assert events() == [(deep, 0x100, "one"), (deep, 0x8000, "")]
""",
    "followed_file": """
log = open("/tmp/log", "w", buffering=1)
tail = subprocess.Popen(["tail", "-n", "+1", "-F", "/tmp/log"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, bufsize=1)
n = 0
def check():
    global n
    n += 1
    print(f"line {n}", file=log)
    assert tail.stdout.readline() == f"line {n}\\n"
""",
    "signal_descriptor": """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
fd = libc.signalfd(-1, struct.pack("Q", 1 << (signal.SIGUSR2 - 1)), 0)
def check():
    os.kill(os.getpid(), signal.SIGUSR2)
    assert struct.unpack_from("I", os.read(fd, 128))[0] == signal.SIGUSR2
""",
    "process_descriptor": """
child = subprocess.Popen(["sleep", "100000"]); fd = os.pidfd_open(child.pid)
def check():
    signal.pidfd_send_signal(fd, 0)
    assert select.select([fd], [], [], 0)[0] == []
""",
    "signals": """
heard = []
signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number)); signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, 40]); os.kill(os.getpid(), signal.SIGTERM); libc.sigqueue(os.getpid(), 40, ctypes.c_void_p(77))
def check():
    assert signal.sigpending() == {signal.SIGTERM, 40} and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    os.kill(os.getpid(), signal.SIGUSR1); os.kill(os.getpid(), signal.SIGHUP); assert heard.pop() == signal.SIGUSR1
    info = signal.sigwaitinfo([40]); assert info.si_signo == 40 and info.si_pid == os.getpid(); libc.sigqueue(os.getpid(), 40, ctypes.c_void_p(77))
""",
    "children_that_nobody_waits_for": """
class Action(ctypes.Structure): _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * 16), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p)]
assert libc.sigaction(signal.SIGCHLD, ctypes.byref(Action(flags=2)), None) == 0     # SA_NOCLDWAIT, with what a signal does by default
def check():
    child = os.fork()
    if not child: os._exit(3)
    try: os.waitpid(child, 0); raise AssertionError
    except ChildProcessError: pass
""",
    "child_that_ends_with_another_signal": """
told = []
for number in (signal.SIGUSR1, signal.SIGCHLD): signal.signal(number, lambda number, frame: told.append(number))
def begin(number):
    child = libc.syscall(56, number, 0, 0, 0, 0)
    if not child:
        while True: signal.pause()
    return child
children = [begin(number) for number in (signal.SIGUSR1, 0)]
def check():
    told.clear()
    for n, child in enumerate(children):
        try: os.waitpid(child, os.WNOHANG); raise AssertionError
        except ChildProcessError: pass
        os.kill(child, signal.SIGKILL); os.waitpid(child, 0x40000000)       # __WALL
        assert told == [signal.SIGUSR1]
    children[:] = [begin(number) for number in (signal.SIGUSR1, 0)]
""",
    "interval_timer": """
ticks = [0]
def tick(number, frame): ticks[0] += 1
signal.signal(signal.SIGALRM, tick); signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
def check():
    before, deadline = ticks[0], time.monotonic() + 20
    while ticks[0] < before + 3: assert time.monotonic() < deadline
""",
    "posix_timers": """
ticks = [0, 0]
def tick(number, frame): ticks[number == 42] += 1
signal.signal(41, tick); signal.signal(42, tick)
ids = [ctypes.c_int(), ctypes.c_int(), ctypes.c_int()]
for n, (number, id) in enumerate(zip((41, 43, 42), ids)):
    event = struct.pack("qii48x", n, number, 0)
    assert libc.syscall(222, 1, event, ctypes.byref(id)) == 0
libc.syscall(226, ids[1])
for id in (ids[0], ids[2]): libc.syscall(223, id, 0, struct.pack("qqqq", 0, 3000000, 0, 3000000), None)
def check():
    before, deadline = list(ticks), time.monotonic() + 20
    while not all(a > b for a, b in zip(ticks, before)): assert time.monotonic() < deadline
    left = ctypes.create_string_buffer(32)
    assert libc.syscall(224, ids[2], left) == 0 and libc.syscall(224, ids[1], left) == -1
""",
    "clocks": """
begun, last = time.monotonic(), time.monotonic()
def check():
    global last
    now = time.monotonic()
    assert last <= now < last + 600 and begun <= last, (begun, last, now)
    last = now
""",
    "subprocess_tree": """
children = [subprocess.Popen(["sh", "-c", "while read line; do echo \\"$0 $line\\" | cat; done", str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) for n in range(4)]
def check():
    for n, child in enumerate(children):
        child.stdin.write("asked\\n"); child.stdin.flush()
        assert child.stdout.readline() == f"{n} asked\\n"
""",
    "zombies": """
children = [subprocess.Popen(["sh", "-c", "exit 5"]), subprocess.Popen(["sh", "-c", "kill -9 $$"])]
import pathlib
for child in children:
    while "Z" not in pathlib.Path(f"/proc/{child.pid}/stat").read_text().rsplit(")")[1]: time.sleep(0.001)
told = []
signal.signal(signal.SIGCHLD, lambda number, frame: told.append(1))
def check():
    assert [child.wait(20) for child in children] == [5, -9] and not told
""",
    "sessions_and_groups": """
shell = subprocess.Popen(["sh", "-c", "sleep 100000 & sleep 100000 & wait"], start_new_session=True)
daemon_r, daemon_w = os.pipe()
if not os.fork():
    os.setsid()
    if os.fork(): os._exit(0)
    os.setpgid(0, 0); os.write(daemon_w, b"%d" % os.getpid()); time.sleep(100000)
os.wait(); daemon = int(os.read(daemon_r, 20))
mine = (os.getpid(), os.getppid(), os.getsid(0), os.getpgrp()); its = (os.getsid(daemon), os.getpgid(daemon), os.getsid(shell.pid))
def check():
    assert (os.getpid(), os.getppid(), os.getsid(0), os.getpgrp()) == mine and (os.getsid(daemon), os.getpgid(daemon), os.getsid(shell.pid)) == its
    assert its[0] != daemon and its[1] == daemon
""",
    "group_whose_leader_is_gone": """
leader = subprocess.Popen(["sleep", "100000"], process_group=0) if sys.version_info >= (3, 11) else subprocess.Popen(["sleep", "100000"], preexec_fn=lambda: os.setpgid(0, 0))
member = subprocess.Popen(["sleep", "100000"], preexec_fn=lambda: os.setpgid(0, leader.pid))
leader.kill(); leader.wait()
def check():
    assert os.getpgid(member.pid) == leader.pid
    os.killpg(leader.pid, 0)
""",
    "multiprocessing_pool": """
import multiprocessing
pool = multiprocessing.get_context("fork").Pool(3)
assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]
def check():
    assert pool.map(abs, list(range(-20, 0))) == list(range(20, 0, -1))
""",
    "multiprocessing_queue": """
import multiprocessing
context = multiprocessing.get_context("fork")
there, back = context.Queue(), context.Queue()
def work():
    while True: back.put(there.get() ** 2)
process = context.Process(target=work, daemon=True); process.start()
there.put(3); assert back.get(timeout=20) == 9
def check():
    there.put(5); assert back.get(timeout=20) == 25
""",
    "limits": """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200)); resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.nice(0)
high = os.dup2(0, 99)
def check():
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (100, 200) and os.fstat(99) and fcntl.fcntl(99, fcntl.F_GETFD) == 0
""",
    "no_more_descriptors": """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
for _ in range(2): threading.Thread(target=threading.Event().wait, daemon=True).start()
def check():
    try: os.pipe()
    except OSError as e: assert e.errno == 24 and resource.getrlimit(resource.RLIMIT_NOFILE) == (0, 0)
    else: raise AssertionError("it may have one more")
""",
    "limits_below_what_there_is": """
import resource
told, has = [], threading.Event()
signal.pthread_sigmask(signal.SIG_BLOCK, [40, 41])
def waits():
    told.append(threading.get_native_id()); has.set(); threading.Event().wait()
threading.Thread(target=waits, daemon=True).start(); has.wait()
for _ in range(5): threading.Thread(target=threading.Event().wait, daemon=True).start()
for _ in range(3): libc.syscall(234, os.getpid(), told[0], 40); libc.sigqueue(os.getpid(), 41, ctypes.c_void_p(7))
def pending(): return [re.findall("(?:SigPnd|ShdPnd):\\t(.*)", open(f"/proc/self/task/{tid}/status").read()) for tid in (os.getpid(), told[0])]
low = {resource.RLIMIT_AS: 1 << 20, resource.RLIMIT_DATA: 4096, resource.RLIMIT_NPROC: 0, 11: 0, resource.RLIMIT_MEMLOCK: 0}
was = pending(); assert was[1][0].strip("0"), was
for number, to in low.items(): resource.setrlimit(number, (to, to))
def check(): assert pending() == was and all(resource.getrlimit(number) == (to, to) for number, to in low.items())
""",
    "odd_names": """
libc.prctl(15, b"a) R (\\n\\\\n", 0, 0, 0)
name = "/tmp/new\\nline (deleted)"
open(name, "w").write("text"); file = open(name); os.mkdir(name + "d"); os.chdir(name + "d")
def check():
    assert open("/proc/self/comm", "rb").read() == b"a) R (\\n\\\\n\\n" and file.seek(0) == 0 and file.read() == "text" and os.getcwd() == name + "d"
""",
    "files_closed_to_itself": """
fds = [os.open(f"/tmp/closed{mode}", os.O_RDWR | os.O_CREAT, mode) for mode in (0, 0o400, 0o444)]
os.mkdir("/tmp/closed", 0); os.chmod("/tmp/closed", 0o700); directory = os.open("/tmp/closed", os.O_RDONLY); os.chmod("/tmp/closed", 0o300)
modes = [os.fstat(fd).st_mode for fd in (*fds, directory)]; n = 0
def check():
    global n
    n += 1
    for fd in fds:
        os.write(fd, b"x")
        assert os.pread(fd, 1000, 0) == b"x" * n
    assert os.listdir(directory) == [] and [os.fstat(fd).st_mode for fd in (*fds, directory)] == modes
""",
    "barriers": """
register, use, absent = 16, 8, libc.syscall(324, 0, 0, 0) < 0 or libc.syscall(324, 512, 0, 0) < 0
if absent: print("absent", flush=True); raise SystemExit
assert not libc.syscall(324, register, 0, 0)
def check():
    assert not libc.syscall(324, use, 0, 0)
""",
    "names": """
libc.prctl(15, b"renamed", 0, 0, 0)
def check():
    assert open("/proc/self/comm").read() == "renamed\\n" and os.readlink("/proc/self/exe").startswith("/usr/bin/python3") and open("/proc/self/cmdline").read().startswith("python3")
    assert any("[heap]" in line for line in open("/proc/self/maps")) and any("[stack]" in line for line in open("/proc/self/maps")) and any("[vdso]" in line for line in open("/proc/self/maps"))
    assert os.environ["PATH"] and sys.argv[0] == "-c"
""",
    "clears_a_tid": """
done = []
threads = [threading.Thread(target=lambda: (time.sleep(0.0), event.wait(1000), done.append(1))) for _ in range(3)]
event = threading.Event()
for t in threads: t.start()
def check():
    event.set()
    for t in threads: t.join(20); assert not t.is_alive()
    assert len(done) == 3
""",
    "terminals": """
import termios, tty
a, b, c = os.openpty(), os.openpty(), os.openpty(); os.close(b[0]); os.close(b[1])
first, second = a[1], os.open(os.ttyname(c[1]), os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
tty.setraw(first); fcntl.ioctl(c[0], termios.TIOCSWINSZ, struct.pack("HHHH", 11, 22, 33, 44)); fcntl.ioctl(c[0], termios.TIOCPKT, struct.pack("i", 1))
modes = termios.tcgetattr(c[1]); modes[0] |= 0o40000; modes[3] &= ~termios.ECHO; modes[6][termios.VINTR] = b"\\x07"; termios.tcsetattr(c[1], termios.TCSANOW, modes)
set_to = termios.tcgetattr(first), termios.tcgetattr(second)
os.write(first, b"as it is\\n"); os.write(second, b"line\\n" * 1000)
def check():
    assert (os.ttyname(first), os.ttyname(second)) == ("/dev/pts/0", "/dev/pts/2") and (termios.tcgetattr(first), termios.tcgetattr(second)) == set_to
    assert struct.unpack("HHHH", fcntl.ioctl(second, termios.TIOCGWINSZ, bytes(8))) == (11, 22, 33, 44) and fcntl.fcntl(second, fcntl.F_GETFL) & os.O_NONBLOCK
    assert os.read(a[0], 100) == b"as it is\\n"
    got = b""
    while len(got) < 6000:
        packet = os.read(c[0], 1000); assert packet[0] == 0; got += packet[1:]
    assert got == b"line\\r\\n" * 1000
    os.write(a[0], b"\\x03"); assert os.read(first, 10) == b"\\x03"
    os.write(c[0], b"typed\\n"); assert os.read(second, 10) == b"typed\\n"
    os.write(first, b"as it is\\n"); os.write(second, b"line\\n" * 1000)
    fd, other = os.openpty(); assert os.ttyname(other) == "/dev/pts/1"; os.close(fd); os.close(other)
""",
    "terminals_with_input": """
import tty
lines, raw = os.openpty(), os.openpty(); tty.setraw(raw[1])
def put():
    os.write(lines[0], b"one\\n" + b"t\\x16\\x03o\\x04\\x04four\\rthr\\x16\\x04ee"); os.write(raw[0], bytes(range(256)))
    select.select([lines[1]], [], [], 20); select.select([raw[1]], [], [], 20)
    seen = b""
    while not seen.endswith(b"ee"): seen += os.read(lines[0], 100)
put()
def check():
    assert os.read(lines[1], 100) == b"one\\n" and os.read(lines[1], 100) == b"t\\x03o" and os.read(lines[1], 100) == b"" and os.read(lines[1], 100) == b"four\\n"
    assert not select.select([lines[1]], [], [], 0)[0]
    os.write(lines[0], b"\\x7f\\x7fen\\n"); assert os.read(lines[1], 100) == b"thr\\x04en\\n"
    assert os.read(raw[1], 1000) == bytes(range(256)) and not select.select([raw[1]], [], [], 0)[0]
    while select.select([lines[0]], [], [], 0)[0]: os.read(lines[0], 1000)
    put()
""",
    "terminal_that_controls": """
import pty, termios
child, master = pty.fork()
if not child:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    group = os.fork()
    if not group:
        os.setpgid(0, 0)
        while True: signal.sigwait([signal.SIGINT]); os.write(1, b"interrupted;")
    signal.signal(signal.SIGTTOU, signal.SIG_IGN); os.setpgid(group, group); own = os.open("/dev/tty", os.O_RDWR); os.tcsetpgrp(own, group)
    os.write(own, b"begun;")
    while True: time.sleep(100)
heard = b""
def hear(what):
    global heard
    while what not in heard: heard += os.read(master, 100)
    heard = b""
hear(b"begun;")
import pathlib
fields = lambda: pathlib.Path(f"/proc/{child}/stat").read_text().rsplit(")")[1].split()[4:6]
before = fields()
def check():
    assert fields() == before and before[1] != str(child) and os.tcgetpgrp(master) == int(before[1])
    os.write(master, b"\\x03"); hear(b"interrupted;")
""",
    "terminal_that_hung_up": """
r, w = os.pipe()
master, slave = os.openpty()
child = os.fork()
if not child:
    signal.signal(signal.SIGHUP, signal.SIG_IGN); os.close(master); os.setsid(); fcntl.ioctl(slave, 0x540e, 0)
    os.write(w, b"x")
    while True: time.sleep(100)
assert os.read(r, 1) == b"x"
os.close(master)
def check():
    assert os.read(slave, 10) == b"" and select.select([slave], [], [], 0)[0] == [slave]
    try: os.write(slave, b"x"); raise AssertionError
    except OSError as problem: assert problem.errno == 5
""",
    **{f"{name}_on_a_terminal": PTY + source for name, source in TERMINALS.items()},
    "spinning_thread": """
n = [0]
def spin():
    while True: n[0] += 1
threading.Thread(target=spin, daemon=True).start()
def check():
    before, deadline = n[0], time.monotonic() + 20
    while n[0] == before: assert time.monotonic() < deadline; time.sleep(0.001)
""",
}


PROGRAMS = {
    **{name: ["python3", "-c", PYTHON.format(source)] for name, source in SOURCES.items()},
    **{f"bash_{name}": ["bash", "-c", SHELL.format(source)] for name, source in SHELLS.items()},
    "perl": ["perl", "-e", PERL],
    "node": ["node", "-e", NODE],
    "go": ["/tmp/corpus"],
    "java": ["java", "-Xmx256m", "/tmp/Corpus.java"],
}

# By the name of a program: what has to be installed for it, where that is not its first word.
TOOLS = {"go": "go"}


@functools.lru_cache(maxsize=None)
def files(name):
    """The files that a program needs in its sandbox, by path."""
    if name == "java":
        return {"/tmp/Corpus.java": JAVA.encode()}
    if name != "go":
        return {}
    with tempfile.TemporaryDirectory(prefix="rollbox-corpus-") as place:
        source = Path(place, "corpus.go")
        source.write_text(GO)
        return {"/tmp/corpus": compiled(("go", "build"), source, CGO_ENABLED="0", GOTOOLCHAIN="local").read_bytes()}


def missing(name):
    """The tool without which there is no such program, or None."""
    tool = TOOLS.get(name, PROGRAMS[name][0])
    return None if shutil.which(tool) else tool


def begin(box, name):
    """The program, in a sandbox that has its files, once it has its state; the test is skipped
    where that is not to be had."""
    process = box.spawn(PROGRAMS[name])
    first = process.stdout.readline()
    if first == b"absent\n":
        pytest.skip("the sandbox has not what the program is about")
    assert first == b"ready\n", (first, process.wait(20).stderr.decode()[-2000:])
    return process


def asks(process, times=1):
    """Its answers to that many questions, and the end of its standard error if it has ended."""
    said = []
    for _ in range(times):
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"check\n")
            process.stdin.flush()
        said.append(process.stdout.readline().decode().rstrip("\n"))
        if not said[-1]:
            said.append(process.stderr.read().decode()[-1000:])     # it has ended
            break
    return said
