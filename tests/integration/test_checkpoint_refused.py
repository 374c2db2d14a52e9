# SPDX-License-Identifier: Apache-2.0
"""States that could be dumped only in part, or not be restored: they are refused by name, at once,
and all processes continue. States that can be restored are in the corpus (live_corpus.py).

Each was once lost without an error, or led to a snapshot from which nothing could resume.
"""

import pytest
from live_corpus import PYTHON, asks

from rollbox import FeatureMissing, Policy, Sandbox

CLONED = """
pid = libc.syscall(56, {} | 17, 0, 0, 0, 0)
if not pid:
    while True: time.sleep(1000)
def check(): os.kill(pid, 0)
"""
APART = """
done, again, told = threading.Event(), threading.Event(), []
def apart():
    told.append(libc.unshare({}))
    {}
    done.set()
    again.wait()
threading.Thread(target=apart, daemon=True).start()
done.wait()
def check(): assert told == [0]
"""
CLOSED = """
os.mkdir("/tmp/d"); fd = os.open("/tmp/d/file", os.O_RDWR | os.O_CREAT, 0o600); os.ftruncate(fd, 8192); m = mmap.mmap(fd, 8192) if {} else None; os.chdir("/tmp/d" if {} else "/"); os.close(fd) if {} else None
os.chmod({!r}, {})
def check(): assert not m or m[0:1] == bytes(1)
"""
ODDITIES = {
    "memory_file_of_a_process": (
        "f = open('/proc/self/maps')\ndef check(): f.seek(0); assert f.read()",
        "file of a process's memory",
    ),
    "epoll_of_another_by_that_number": (
        """
a = os.eventfd(0); watching = select.epoll(); watching.register(a, select.EPOLLIN); kept = os.dup(a); os.close(a)
b = os.eventfd(5); assert a == b
def check(): assert watching.poll(0) == []
""",
        "has closed or never had",
    ),
    "packets_in_a_pipe": (
        """
r, w = os.pipe2(os.O_DIRECT); os.write(w, b"one"); os.write(w, b"two")
def check():
    assert os.read(r, 100) == b"one" and os.read(r, 100) == b"two"
    os.write(w, b"one"); os.write(w, b"two")
""",
        "unread packets",
    ),
    "a_short_packet_before_another": (
        """
r, w = os.pipe2(os.O_DIRECT); os.write(w, b"1"); os.write(w, b"two")
def check():
    assert os.read(r, 100) == b"1" and os.read(r, 100) == b"two"
    os.write(w, b"1"); os.write(w, b"two")
""",
        "unread packets",
    ),
    "one_packet": (
        "r, w = os.pipe2(os.O_DIRECT); os.write(w, b'one')\ndef check(): assert os.read(r, 100) == b'one'; os.write(w, b'one')",
        "unread packets",
    ),
    "both_ends_of_a_pipe": (
        "r, w = os.pipe(); both = os.open(f'/proc/self/fd/{r}', os.O_RDWR); os.close(r); os.close(w)\ndef check(): os.write(both, b'x'); assert os.read(both, 9) == b'x'",
        "open for reading and writing",
    ),
    "shared_descriptors": (CLONED.format(0x400), "shares its descriptors with process"),
    "shared_directory": (CLONED.format(0x200), "shares its working directory with process"),
    "descriptors_of_a_thread": (
        APART.format(0x400, "pass"),
        "one of its threads has descriptors of its own",
    ),
    "directory_of_a_thread": (
        APART.format(0x200, "os.chdir('/tmp')"),
        "one of its threads has a working directory of its own",
    ),
    "directory_closed_to_itself": (
        CLOSED.format(False, True, True, "/tmp/d", 0),
        "may no longer enter its working directory",
    ),
    "file_below_what_is_closed": (
        CLOSED.format(False, False, False, "/tmp/d", 0),
        "may no longer enter a directory of its path",
    ),
    "mapped_and_closed_to_itself": (
        CLOSED.format(True, False, True, "/tmp/d/file", 0o400),
        "maps /tmp/d/file, which it may no longer open",
    ),
    "socket_at_a_relative_path": (
        "os.chdir('/tmp'); s = socket.socket(socket.AF_UNIX); s.bind('here'); s.listen()\ndef check(): socket.socket(socket.AF_UNIX).connect('/tmp/here'); s.accept()",
        "relative path",
    ),
    "socket_that_was_renamed": (
        """
s = socket.socket(socket.AF_UNIX); s.bind("/tmp/new"); s.listen(); os.rename("/tmp/new", "/tmp/socket")
def check(): socket.socket(socket.AF_UNIX).connect("/tmp/socket"); s.accept()
""",
        "path has changed",
    ),
    "directory_that_is_being_listed": (
        """
os.mkdir("/tmp/many"); names = {os.mkfifo(f"/tmp/many/{n}") or str(n) for n in range(3000)}; listing = os.scandir("/tmp/many"); first = next(listing).name
def check():
    global listing
    assert {first, *(entry.name for entry in listing)} == names
    listing = os.scandir("/tmp/many"); assert next(listing).name == first
""",
        "/tmp/many: a directory that is being listed",
    ),
    "urgent_data": (
        """
a, b = socket.socketpair(); a.send(b"one"); a.send(b"!", socket.MSG_OOB); a.send(b"two")
def check():
    assert b.recv(1, socket.MSG_OOB) == b"!" and b.recv(3) == b"one" and b.recv(3) == b"two"
    a.send(b"one"); a.send(b"!", socket.MSG_OOB); a.send(b"two")
""",
        "urgent data",
    ),
    "memory_below_programs": (
        """
libc.mmap.restype = ctypes.c_void_p
at = libc.mmap(ctypes.c_void_p(0x300000), 0x100000, 3, 0x100022, -1, 0); ctypes.memset(at, 7, 0x100000)
def check(): assert ctypes.string_at(0x300000, 0x100000) == bytes([7]) * 0x100000
""",
        "maps memory at 0x300000",
    ),
    "datagrams_to_who_has_no_name": (
        """
c = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); c.bind("/tmp/c")
d = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); d.bind("/tmp/d"); e = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); e.connect("/tmp/d"); d.connect("/tmp/c"); c.connect("/tmp/d")
def check(): d.send(b"x"); assert c.recv(9) == b"x"
""",
        "without a name, or to one that is connected itself",
    ),
}
# Where the memory of a sandbox is not counted by a cgroup, there is none of this.
OF_SYSTEM_V = {
    "semaphores": "libc.semget(7, 1, 0o1600)",
    "message_queues": "libc.msgget(7, 0o1600)",
}


def begin(box, source):
    process = box.spawn(["python3", "-c", PYTHON.format(source)])
    return process, process.stdout.readline().decode().strip()


def is_refused(source, why):
    with Sandbox(Policy(max_memory="512M")) as box:
        process, said = begin(box, source)
        if said == "absent":
            pytest.skip("the sandbox has none of it")
        assert said == "ready" and asks(process) == ["ok"]
        for call in (box.snapshot, box.fork, box.hibernate):
            with pytest.raises(FeatureMissing, match=why):
                call()
        assert asks(process) == ["ok"] and box.exec("echo on", text=True).stdout == "on\n"
        assert box.snapshot(processes="drop").processes == 0


@pytest.mark.parametrize("name", ODDITIES)
def test_unrestorable_processes_are_refused(name):
    is_refused(*ODDITIES[name])


@pytest.mark.parametrize("what", OF_SYSTEM_V)
def test_system_v_objects_are_refused(what):
    is_refused(
        f"id = {OF_SYSTEM_V[what]}\nif id < 0: print('absent', flush=True); raise SystemExit\ndef check(): assert {OF_SYSTEM_V[what].replace('0o1600', '0')} == id",
        f"{what.replace('_', ' ')} of System V",
    )
