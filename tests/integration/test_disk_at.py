# SPDX-License-Identifier: Apache-2.0
"""Private files on the store's disk (disk_at store).

The model: what a sandbox writes is found below the store's boxes/, and nowhere else; all that is
done with states goes as with files in memory; what is too much ends
the commands; and however an engine ends, its directory goes. make check runs this file as root and as an ordinary user.
"""

import fcntl
import json
import os
import signal
import stat
import subprocess
import threading

import pytest

from conftest import BUILD
from harness import ORDINARY_UID, caller, comm, descendants, has_cgroup, repeat_count, skip, until  # noqa: F401
from rollbox import Engine, EngineLost, FeatureMissing, Policy, PolicyInvalid, ResourceExhausted, RollboxError, Sandbox
from stores import Shared, box, boxes, engine, failing, store, store_tells  # noqa: F401

MIB = 1 << 20
ON_DISK = Policy(disk_at="store")
SMALL = Policy(disk_at="store", max_disk="64M")


@pytest.fixture
def in_box():
    return ON_DISK


@pytest.fixture
def small(engine):
    with Sandbox(SMALL, engine=engine) as box:
        yield box


def uppers(store):
    return [path for engine in boxes(store) for path in engine.iterdir() if path.name != "gone"]


def python(box, code, **options):
    return box.exec(["python3", "-I", "-S", "-c", code], **options)


def ended_by_limit(result):
    return (result.outcome, result.signal) == ("signal", signal.SIGXFSZ)


def test_writes_are_on_the_disk(box, store):
    kind = os.popen(f"stat -f -c %T {store}").read().strip()
    if kind == "tmpfs":
        pytest.skip("needs disk: the tests' own directory is in memory")
    done = box.exec(
        "stat -f -c %T /tmp /var/tmp /dev/shm; for d in /tmp /var/tmp /dev/shm; do echo content > $d/file; done"
    )
    assert done.text.split() == [kind] * 3
    found = [path for path in store.rglob("file") if path.read_text() == "content\n"]
    assert len(found) == 3 and {path.parent.name for path in found} == {"p0", "p1", "p2"}
    assert not [
        line
        for line in box.exec("cat /proc/mounts").text.splitlines()
        if " tmpfs " in line and line.split()[1] in ("/tmp", "/var/tmp", "/dev/shm")
    ]


def test_default_place_is_memory(engine, store):
    with Sandbox(engine=engine) as box:
        assert box.exec("stat -f -c %T /tmp").text.strip() == "tmpfs"
    with Sandbox(Policy(disk_at="memory"), engine=engine) as box:
        assert box.exec("stat -f -c %T /tmp").text.strip() == "tmpfs"
    assert boxes(store) == []


def test_disk_at_from_the_command_line(caller, monkeypatch):
    monkeypatch.setenv("ROLLBOX_STORE", str(caller.directory() / "store"))
    done = caller.run("--disk-at", "store", "--", "sh", "-c", "stat -f -c %T /tmp; echo x > /tmp/f; cat /tmp/f")
    assert done.outcome == "exit" and done.stdout.split()[0] != "tmpfs" and done.stdout.split()[1] == "x", done
    assert done.isolation["limits"]["disk"] == "watcher"


@pytest.mark.parametrize("flag", ["--readable", "--writable", "--shared"])
def test_private_files_of_others_in_a_grant(caller, monkeypatch, flag):
    """A grant of what the store is below shows nothing of it, from its first sandbox on, which had the store made."""
    home = caller.directory(0o755)
    monkeypatch.setenv("ROLLBOX_STORE", str(home / "store"))
    look = f"ls {home}/store; find {home} -name secret"
    rows = caller.batch(
        [{"id": i, "argv": ["sh", "-c", f"echo x >/tmp/secret; {look}"]} for i in range(4)],
        "--disk-at",
        "store",
        flag,
        home,
        "-j",
        "4",
    )
    assert {(row["outcome"], row["stdout"]) for row in rows.values()} == {("exit", "")}, rows
    result = caller.run(flag, home, "--", "sh", "-c", look)
    assert (result.outcome, result.stdout) == ("exit", ""), result


@pytest.mark.parametrize("flag", ["--readable", "--writable", "--shared"])
def test_store_made_later_inside_a_grant(caller, monkeypatch, flag):
    """A policy's sandboxes from before there was a store say nothing of those that begin when it is there."""
    home = caller.directory(0o755)
    monkeypatch.setenv("ROLLBOX_STORE", str(home / "below" / "store"))
    (home / "below").mkdir()
    caller.own(home / "below")
    look = {"argv": ["sh", "-c", f"ls {home}/below/store; echo {home}/below/*"]}
    rows = caller.batch(
        [
            {"id": 0, **look},
            {"id": 1, "argv": ["true"], "policy": {"disk_at": "store"}},
            {"id": 2, **look},
        ],
        flag,
        home,
        "-j",
        "1",
    )
    assert [(row["outcome"], row["stdout"]) for _, row in sorted(rows.items())] == [
        ("exit", f"{home}/below/*\n"),
        ("exit", ""),
        ("exit", f"{home}/below/store\n"),
    ], rows


def test_snapshots_work_as_in_memory(box, store):
    box.exec(
        "mkdir -p /tmp/a/b; echo first > /tmp/a/b/f; ln /tmp/a/b/f /tmp/link; mkfifo /tmp/fifo; setfattr -n user.x -v y /tmp/a 2>/dev/null; dd if=/dev/zero of=/tmp/big bs=1M count=8 2>/dev/null"
    )
    base = box.snapshot()
    assert 8 * MIB < base.bytes < 9 * MIB and base.files >= 6
    box.exec("echo second >> /tmp/a/b/f; rm /tmp/big; mv /tmp/a /tmp/moved")
    assert box.exec("cat /tmp/moved/b/f; ls /tmp").text.split() == ["first", "second", "fifo", "link", "moved"]
    kids = box.fork(3)
    for i, kid in enumerate(kids):
        assert kid.exec(
            f"cat /tmp/moved/b/f; echo {i} > /tmp/own; stat -f -c %T /tmp"
        ).text.split()[:2] == ["first", "second"]
    assert [kid.read_file("/tmp/own") for kid in kids] == [b"0\n", b"1\n", b"2\n"]
    assert not any(path for path in box.list("/tmp") if path.name == "own")
    assert {change.path: change.change for change in box.diff(base)} == {
        "/tmp/a": "D",
        "/tmp/a/b": "D",
        "/tmp/a/b/f": "D",
        "/tmp/big": "D",
        "/tmp/moved": "A",
        "/tmp/moved/b": "A",
        "/tmp/moved/b/f": "A",
    }
    box.reset(base)
    assert box.exec("cat /tmp/a/b/f; stat -c %s /tmp/big; ls /tmp").text.split() == [
        "first",
        str(8 * MIB),
        "a",
        "big",
        "fifo",
        "link",
    ]
    for kid in kids:
        kid.close()


def test_unchanged_files_make_no_new_snapshot(box):
    first = box.snapshot()
    box.exec("true")
    assert box.snapshot().id == first.id
    box.exec("touch /tmp/new")
    second = box.snapshot()
    assert second.id != first.id
    box.exec("cat /tmp/new")
    assert box.snapshot().id == second.id


def test_long_chains_are_merged(box):
    for i in range(24):
        box.exec(f"echo {i} > /tmp/{i}; rm -f /tmp/{i - 3}")
        box.snapshot()
    assert box.exec("ls /tmp").text.split() == ["21", "22", "23"]


def test_processes_are_dumped_with_disk_files(box):
    process = box.spawn(["sh", "-c", "exec 5>/tmp/log; echo ready; read x; echo $x >&5; cat /tmp/log; read y"])
    assert process.stdout.readline() == b"ready\n"
    (kid,) = box.fork(1)
    theirs = kid.process(process.id)
    for one, word in ((process, b"ours"), (theirs, b"theirs")):
        one.stdin.write(word + b"\n")
        one.stdin.flush()
        assert one.stdout.readline() == word + b"\n"
    kid.close()


def test_hibernate_and_wake(box, store):
    box.exec("mkdir /tmp/d; echo kept > /tmp/d/f; chmod 400 /tmp/d/f")
    process = box.spawn(["sh", "-c", "echo ready; read x; echo woken $x"])
    assert process.stdout.readline() == b"ready\n"
    id = process.id
    box.hibernate()
    until(lambda: uppers(store) == [])
    assert box.exec("cat /tmp/d/f; stat -f -c %T /tmp").text.split()[0] == "kept"
    again = box.process(id)
    again.stdin.write(b"up\n")
    again.stdin.flush()
    assert again.stdout.readline() == b"woken up\n"
    assert uppers(store)


def test_commit_of_a_writable_grant(engine, tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    (place / "old").write_text("old")
    with Sandbox(ON_DISK.replace(fs_writable=[place]), engine=engine) as box:
        box.exec(f"echo new > {place}/new; rm {place}/old")
        assert sorted(os.listdir(place)) == ["old"]
        box.commit()
    assert os.listdir(place) == ["new"] and (place / "new").read_text() == "new\n"


# ---- the limit
# ----------------------------------------------------------------------------------------------------------


def test_disk_limit_over_many_files_ends_the_processes(small):
    background = small.spawn(["sleep", "1000"])
    done = small.exec(
        "i=0; while [ $i -lt 400 ]; do dd if=/dev/zero of=/tmp/$i bs=1M count=16 2>/dev/null; i=$((i + 1)); done; echo survived"
    )
    assert ended_by_limit(done) and done.stdout == b"", done
    assert background.wait().outcome == "signal"
    # What is there may be looked at and removed.
    assert int(small.exec("ls /tmp | wc -l").text) > 3
    small.exec("rm /tmp/*")
    until(lambda: small.inspect()["disk_bytes"] < MIB)
    assert small.exec(
        "dd if=/dev/zero of=/tmp/x bs=1M count=32 2>/dev/null; stat -c %s /tmp/x"
    ).text.strip() == str(32 * MIB)


def test_disk_limit_ends_a_single_run(engine):
    done = Sandbox(SMALL, engine=engine).run(
        "i=0; while [ $i -lt 400 ]; do dd if=/dev/zero of=/tmp/$i bs=1M count=16 2>/dev/null; i=$((i + 1)); done; echo survived"
    )
    assert ended_by_limit(done) and done.stdout == b"", done


def test_one_file_is_held_by_the_kernel(small):
    assert ended_by_limit(small.exec(["dd", "if=/dev/zero", "of=/tmp/x", "bs=1M"]))
    # With its directory the file is past the limit, which may be found only now. The agent that
    # reads it is not among the processes that are ended.
    until(lambda: small.stat("/tmp/x").size == 64 * MIB)


def test_readers_are_not_ended_with_writers_over_the_limit(small):
    small.exec(
        "mkdir /tmp/kept; for i in $(seq 200); do echo $i > /tmp/kept/$i; done; dd if=/dev/zero of=/tmp/large bs=1M count=24 2>/dev/null"
    )
    for _ in range(3):
        writer = small.spawn(
            [
                "sh",
                "-c",
                "i=0; while :; do dd if=/dev/zero of=/tmp/fill$i bs=1M count=4 2>/dev/null; i=$((i + 1)); done",
            ]
        )
        while writer.poll() is None:
            assert len(small.list("/tmp/kept")) == 200
            assert len(small.read_file("/tmp/large")) == 24 * MIB
        assert ended_by_limit(writer.wait())
        small.exec("rm /tmp/fill*")
        # Else the next writer would find it as it was, and be ended for that.
        until(lambda: small.inspect()["disk_bytes"] < 32 * MIB)


def test_writer_over_the_limit_is_ended(small):
    with pytest.raises(RollboxError):
        for i in range(400):
            small.write_file(f"/tmp/{i}", bytes(16 * MIB))
    # What is there may be looked at and removed.
    until(lambda: small.inspect()["disk_bytes"] > 64 * MIB)
    assert small.exec("rm /tmp/*; ls /tmp").text == ""


def test_removed_files_that_are_open_count(small):
    done = python(
        small,
        f"import os\nfor i in range(400):\n f = os.open('/tmp/u', os.O_CREAT | os.O_RDWR)\n os.unlink('/tmp/u')\n os.write(f, bytes({16 * MIB}))\nprint('survived')",
    )
    assert ended_by_limit(done) and done.stdout == b"", done


# Once descriptors are a thread's own, once the process's main thread, which is where one looks, has ended.
@pytest.mark.parametrize("ends", [False, True])
def test_removed_files_of_threads_count(small, ends):
    code = f"""
import ctypes, os, threading
libc = ctypes.CDLL(None)
go = threading.Event()
def fill():
    go.wait()
    if not {ends}: assert libc.unshare(0x400) == 0
    for i in range(400):
        f = os.open('/tmp/u', os.O_CREAT | os.O_RDWR)
        os.unlink('/tmp/u')
        os.write(f, bytes({16 * MIB}))
    os.write(1, b'survived')
    os._exit(0)
thread = threading.Thread(target=fill)
thread.start()
go.set()
if {ends}: libc.syscall(60, 0)
thread.join()
"""
    done = python(small, code)
    assert ended_by_limit(done) and done.stdout == b"", done


@pytest.mark.long
def test_removed_directories_that_are_open_count(engine):
    code = """
import os
for i in range(400):
    os.mkdir('/tmp/d')
    d = os.open('/tmp/d', os.O_RDONLY)
    for i in range(1000): os.close(os.open('n' * 240 + str(i), os.O_CREAT | os.O_WRONLY, dir_fd=d))
    for i in range(1000): os.unlink('n' * 240 + str(i), dir_fd=d)
    os.rmdir('/tmp/d')
print('survived')
"""
    with Sandbox(SMALL.replace(max_disk="8M"), engine=engine) as box:
        assert ended_by_limit(python(box, code))


def test_memory_files_do_not_count(small):
    done = python(
        small,
        f"import os\nfor i in range(4): os.write(os.memfd_create('x'), bytes({32 * MIB}))\nfor i in range(300): open('/tmp/f', 'w').write('x' * {MIB})\nprint('survived')",
    )
    if not has_cgroup(done):
        skip("no cgroup here: memory files are refused to the guest instead")
    assert done.text == "survived\n", done


def test_too_many_files(small):
    done = python(small, "for i in range(200000): open(f'/tmp/{i}', 'w').close()\nprint('survived')")
    assert ended_by_limit(done) and done.stdout == b"", done


def test_too_deep(small):
    done = python(
        small,
        "import os\nos.chdir('/tmp')\nfor i in range(600): os.mkdir('d'); os.chdir('d')\nimport signal; signal.pause()",
    )
    assert ended_by_limit(done), done


# Keeps its large directory where the walk was already: it sees the walk come to what lies between,
# and end where the directory is expected.
DODGES = f"""
import ctypes, os, struct
os.chdir('/tmp')
for name in 'abc': os.mkdir(name)
# As the walk will find them.
first, between, last = (entry.name for entry in os.scandir('.') if entry.name in 'abc')
for i in range(2000): open(f'{{between}}/{{i}}', 'w').close()
os.mkdir(last + '/large')
libc = ctypes.CDLL(None)
events = libc.inotify_init1(0)
IN_OPEN, IN_CLOSE_NOWRITE = 0x20, 0x10
begins = libc.inotify_add_watch(events, between.encode(), IN_OPEN)
libc.inotify_add_watch(events, last.encode(), IN_CLOSE_NOWRITE)
if os.fork() == 0:
    large = os.open(last + '/large', os.O_RDONLY | os.O_DIRECTORY)
    for i in range(60):
        f = os.open(str(i), os.O_CREAT | os.O_WRONLY, dir_fd=large)
        for _ in range(4): os.write(f, bytes({MIB}))
        os.close(f)
    os._exit(0)
while True:
    data, at = os.read(events, 65536), 0
    while at < len(data):
        watch, mask, cookie, length = struct.unpack_from('iIII', data, at)
        at += 16 + length
        here, there = (last, first) if watch == begins else (first, last)
        try: os.rename(here + '/large', there + '/large')
        except FileNotFoundError: pass
"""


def test_moved_directories_count_in_the_usage(small):
    done = python(small, DODGES, timeout=120)
    assert ended_by_limit(done), done
    until(lambda: small.inspect()["disk_bytes"] > 64 * MIB)
    assert small.exec("rm -r /tmp/*; ls /tmp").text == ""


def test_moved_directories_count_in_one_run(engine):
    done = Sandbox(SMALL, engine=engine).run(["python3", "-I", "-S", "-c", DODGES], timeout=120)
    assert ended_by_limit(done), done


def test_moving_directories_within_the_limit_is_allowed(small, engine):
    """While directories move, other sessions' disk usage could be this one's. So its processes are
    paused for a walk, and resumed."""
    small.exec("mkdir -p /tmp/a /tmp/b/x; for i in $(seq 500); do echo $i > /tmp/b/x/$i; done")
    process = small.spawn(
        [
            "sh",
            "-c",
            "echo ready; while [ ! -e /tmp/stop ]; do mv /tmp/b/x /tmp/a; mv /tmp/a/x /tmp/b; done; ls /tmp/b/x | wc -l",
        ]
    )
    assert process.stdout.readline() == b"ready\n"
    with Sandbox(ON_DISK, engine=engine) as other:
        for i in range(4):
            other.exec(f"dd if=/dev/zero of=/tmp/{i} bs=1M count=96 2>/dev/null")
            assert small.exec("true").exit_code == 0
        small.write_file("/tmp/stop", b"")
        assert process.stdout.readline() == b"500\n"
        assert process.wait().exit_code == 0


def test_measuring_leaves_a_paused_session_paused(engine):
    """The engine does not wait for an idle pause. So it freezes the idle session for a walk like
    any other, and the session resumes with the next call, not before."""
    with Sandbox(SMALL, engine=engine, idle=0.02) as box, Sandbox(ON_DISK, engine=engine) as other:
        box.exec(
            "mkdir -p /tmp/a /tmp/b/x; (while :; do mv /tmp/b/x /tmp/a; mv /tmp/a/x /tmp/b; done) >/dev/null 2>&1 & for i in $(seq 500); do echo $i > /tmp/b/$i; done"
        )
        for i in range(repeat_count(8, 3)):
            other.exec(f"dd if=/dev/zero of=/tmp/{i} bs=1M count=96 2>/dev/null")
            until(lambda: box.inspect()["state"] == "paused")
            assert box.exec("ls /tmp/b /tmp/a | grep -c '[0-9]'").text == "500\n"


def test_measuring_removed_files_delays_nothing(failing, engine, store, tmp_path):
    """During a job, a session is reset and then would be paused for a walk; the box of the reset
    need not be, and continues."""
    release, begun = tmp_path / "release", tmp_path / "begun"
    with Sandbox(SMALL, engine=engine) as small, Sandbox(ON_DISK, engine=engine) as other:
        small.exec("mkdir -p /tmp/a /tmp/b/x")
        small.spawn(
            [
                "sh",
                "-c",
                "while :; do mv -T /tmp/b/x /tmp/a/x; mv -T /tmp/a/x /tmp/b/x; head -c 8192 /dev/zero >>/tmp/grows; done",
            ]
        )
        kept = small.snapshot()
        assert kept.live
        failing.write_text(f": > {begun}; while [ ! -e {release} ]; do :; done\n")
        calls = [threading.Thread(target=small.diff), threading.Thread(target=small.reset, args=[kept])]
        calls[0].start()
        until(begun.exists)
        calls[1].start()
        other.exec("dd if=/dev/zero of=/tmp/f bs=1M count=96 2>/dev/null")
        seen = set()
        until(lambda: seen.add(small.inspect()["disk_bytes"]) or len(seen) > 3)
        failing.unlink()
        release.touch()
        for call in calls:
            call.join()
        assert small.exec("echo works", timeout=20).text == "works\n"


def test_unreadable_directories_count(small):
    done = python(
        small,
        f"import os\nos.mkdir('/tmp/d')\nos.chdir('/tmp/d')\nos.chmod('/tmp/d', 0o300)\nfor i in range(400): open(str(i), 'wb').write(bytes({16 * MIB}))\nprint('survived')",
    )
    assert ended_by_limit(done) and done.stdout == b"", done
    assert small.stat("/tmp/d").mode & 0o777 == 0o300


def test_room_is_not_reserved(small):
    code = """
import ctypes, fcntl, os, struct
f = os.open('/tmp/x', os.O_CREAT | os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
for mode in (0, 1, 0x10, 0x11):
    print(libc.fallocate(f, mode, ctypes.c_long(0), ctypes.c_long(1 << 20)), ctypes.get_errno(), os.fstat(f).st_blocks)
for request in (0x40305828, 0x4030582a, 0x40305839, 0x401c5820):
    try:
        fcntl.ioctl(f, request, struct.pack('hhqqiI4i', 0, 0, 0, 1 << 20, 0, 0, 0, 0, 0, 0))
        print('reserved')
    except OSError as e:
        print(e.errno)
os.write(f, bytes(1 << 20))
before = os.fstat(f).st_blocks
print(libc.fallocate(f, 3, ctypes.c_long(0), ctypes.c_long(1 << 20)), os.fstat(f).st_blocks < before)
os.posix_fallocate(f, 0, 1 << 20)
print(os.fstat(f).st_size)
"""
    assert python(small, code).text.split("\n") == ["-1 95 0"] * 4 + ["95"] * 4 + ["0 True", str(MIB), ""]


def test_no_directory_is_a_subvolume_or_encrypted(box):
    """Both are kept from a janitor: nothing is renamed out of the one, nor, without its key, out of
    the other. No file system here needs to know them: they are refused before."""
    code = """
import fcntl, os
d = os.open('/tmp', os.O_RDONLY)
for request in (0x50009401, 0x50009417, 0x5000940e, 0x50009418, 0x4008941a, 0x800c6613):
    try:
        fcntl.ioctl(d, request, bytes(512))
    except OSError as e:
        print(e.errno)
"""
    assert python(box, code).text.split() == ["95"] * 6


def test_layers_count(small):
    small.exec("dd if=/dev/zero of=/tmp/a bs=1M count=48 2>/dev/null")
    small.snapshot()
    done = small.exec(
        "for i in 1 2 3 4; do dd if=/dev/zero of=/tmp/b$i bs=1M count=8 2>/dev/null; done; sync; sleep 1000",
        timeout=60,
    )
    assert ended_by_limit(done), done
    (kid,) = small.fork(1)
    assert kid.stat("/tmp/a").size == 48 * MIB
    kid.close()


# ---- what cannot be
# ------------------------------------------------------------------------------------------------------


def test_impossible_settings_are_refused(engine, monkeypatch, tmp_path):
    def refusal(policy, kind):
        with pytest.raises(kind) as told:
            Sandbox(policy, engine=engine).run(["true"])
        assert "\n" not in str(told.value)
        return str(told.value)

    assert "disk_at" in refusal(ON_DISK.replace(isolation="process"), FeatureMissing)
    assert '"memory" or "store"' in refusal(Policy(disk_at="ram"), PolicyInvalid)


def test_invalid_store_is_refused(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / "other" / "file").write_text("mine")
    monkeypatch.setenv("ROLLBOX_STORE", str(tmp_path / "other"))
    with Engine() as engine, pytest.raises(RollboxError) as told:
        Sandbox(ON_DISK, engine=engine).run(["true"])
    assert str(tmp_path / "other") in str(told.value) and os.listdir(tmp_path / "other") == ["file"]


@pytest.fixture
def mounted(tmp_path):
    """Mounts something there; gone at the end."""
    if os.geteuid():
        pytest.skip("needs root: to mount a file system")
    done = []

    def mount(*words):
        place = tmp_path / f"mounted-{len(done)}"
        place.mkdir()
        subprocess.run(["mount", *words, place], check=True)
        done.append(place)
        place.chmod(0o700)
        return place

    yield mount
    for place in done:
        subprocess.run(["umount", "-l", place], check=True)


def test_file_system_without_overlay_support_is_refused(mounted, tmp_path, monkeypatch):
    for name in "luw":
        (tmp_path / name).mkdir()
    place = mounted(
        "-t",
        "overlay",
        "overlay",
        "-o",
        f"lowerdir={tmp_path}/l,upperdir={tmp_path}/u,workdir={tmp_path}/w",
    )
    monkeypatch.setenv("ROLLBOX_STORE", str(place / "store"))
    with Engine() as engine, pytest.raises(RollboxError) as told:
        Sandbox(ON_DISK, engine=engine).run(["true"])
    assert told.value.code in ("feature_missing", "io") and "ext4, xfs or btrfs" in str(told.value), told.value


def test_full_disk_is_reported(mounted, monkeypatch):
    place = mounted("-t", "tmpfs", "-o", "size=8m", "tmpfs")
    monkeypatch.setenv("ROLLBOX_STORE", str(place / "store"))
    with Engine() as engine:
        with Sandbox(ON_DISK, engine=engine) as box:
            done = box.exec("dd if=/dev/zero of=/tmp/x bs=1M count=100; rm /tmp/x; echo still here")
            assert b"No space left on device" in done.stderr and done.text == "still here\n"
            box.exec("cat /dev/zero > /tmp/x")
            process = box.spawn(["sleep", "1000"])
            with pytest.raises(ResourceExhausted) as told:
                box.snapshot()
            assert "No space left on device" in str(told.value) and "\n" not in str(told.value)
            box.exec("rm /tmp/x; echo y > /tmp/y")
            assert process.poll() is None
            box.snapshot()
            assert box.read_file("/tmp/y") == b"y\n"


# ---- its end
# -------------------------------------------------------------------------------------------------------------


def test_closed_session_leaves_no_files(engine, store):
    code = """
import os, socket
os.chdir('/tmp')
for i in range(3000): open(f'f{i}', 'w').close()
open('setuid', 'w').write('x'); os.chmod('setuid', 0o6755)
os.mkfifo('fifo'); socket.socket(socket.AF_UNIX).bind('socket'); os.symlink('/etc', 'link')
open(b'\\xff\\n', 'w').close()
os.mkdir('shut'); open('shut/in', 'w').close(); os.chmod('shut', 0)
for i in range(400): os.mkdir('d'); os.chdir('d')
open('end', 'w').close()
"""
    with Sandbox(ON_DISK, engine=engine) as box:
        assert python(box, code).exit_code == 0
        box.snapshot()
        for kid in box.fork(2):
            kid.exec("chmod 700 /tmp/shut; rm -r /tmp/f*")
            kid.close()
    until(
        lambda: (
            uppers(store) == []
            and not any((engine / "gone").iterdir() for engine in boxes(store))
            or [path for engine in boxes(store) for path in (engine / "gone").iterdir()] == []
        )
    )
    assert len(boxes(store)) == 1


def test_ended_engine_leaves_no_files(store):
    with Engine() as engine, Sandbox(ON_DISK, engine=engine) as box:
        box.exec("mkdir -m 0 /tmp/shut; echo > /tmp/f")
        assert len(uppers(store)) >= 1
    until(lambda: boxes(store) == [])


def is_free(directory):
    """Nobody has locked it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def janitors(pid):
    return [child for child in descendants(pid) if comm(child) == "rollbox-janitor"]


def test_killed_engine_leaves_no_files(store):
    engine = Engine()
    box = Sandbox(ON_DISK, engine=engine)
    box.exec("echo > /tmp/f")
    os.kill(engine.status()["pid"], signal.SIGKILL)
    until(lambda: boxes(store) == [])


def test_job_outliving_its_engine_finds_all_files(store, failing, tmp_path):
    """The engine is killed while rollbox-store writes what goes to sleep: that is whole, and then its files go."""
    socket = str(tmp_path / "socket")
    with Shared(socket) as first:
        box = Sandbox(ON_DISK, engine=first.engine, name="kept", detached=True)
        box.exec("for i in $(seq 2000); do echo $i > /tmp/$i; done")
        # The engine is dead, and its janitor at work, before the first file is read.
        failing.write_text("kill -9 $PPID; while [ -e /proc/$PPID/fd/0 ]; do :; done\n")
        with pytest.raises(EngineLost):
            box.hibernate()
        failing.unlink()
        first.process.wait()
    until(lambda: boxes(store) == [] and len(list((store / "asleep").iterdir())) == 1)
    with Shared(socket) as second:
        box = Sandbox.open("kept", engine=second.engine)
        assert box.exec("cat /tmp/* | wc -l").text.strip() == "2000"
        box.close()


@pytest.mark.parametrize("who", ["engine", "gc"])
def test_next_engine_sweeps_leftovers(store, who):
    engine = Engine()
    box = Sandbox(ON_DISK, engine=engine)
    box.exec("mkdir /tmp/d; echo > /tmp/d/f; chmod 0 /tmp/d")
    (left,) = boxes(store)
    pid = engine.status()["pid"]
    usage = store_tells("df")
    assert usage["engines"] == 1 and usage["boxes_bytes"] > 0
    assert store_tells("gc")["removed_boxes"] == 0 and store_tells("fsck")["damaged"] == [] and left.exists()
    for janitor in janitors(pid):
        os.kill(janitor, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_free(left))
    assert left.exists()
    if who == "gc":
        until(lambda: store_tells("gc")["removed_boxes"] == 1)
    else:
        with Engine() as other, Sandbox(ON_DISK, engine=other) as more:
            assert more.exec("ls /tmp").text == ""
            until(lambda: not left.exists())
            assert len(boxes(store)) == 1
    until(lambda: boxes(store) == [])


def test_killed_measurer_is_replaced(small, engine):
    small.exec("true")

    def measurers():
        return [child for child in descendants(engine.status()["pid"]) if comm(child) == "rollbox-measure"]

    until(measurers)
    for pid in measurers():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    done = small.exec(
        "i=0; while [ $i -lt 400 ]; do dd if=/dev/zero of=/tmp/$i bs=1M count=16 2>/dev/null; i=$((i + 1)); done; echo survived"
    )
    assert ended_by_limit(done) and done.stdout == b"", done


# ---- access to it
# ----------------------------------------------------------------------------------------------------------


def test_other_users_cannot_reach_the_files(engine, store):
    with Sandbox(ON_DISK.replace(user="root"), engine=engine) as box, Sandbox(ON_DISK, engine=engine) as other:
        box.exec("cp /bin/sh /tmp/sh; chmod 6755 /tmp/sh; echo secret > /tmp/secret; chmod 777 /tmp/secret")
        for path in (store, store / "boxes"):
            found = path.lstat()
            assert stat.S_IMODE(found.st_mode) == 0o700 and found.st_uid == os.geteuid()
        (planted,) = [path for path in store.rglob("p0/sh")]
        assert planted.stat().st_mode & stat.S_ISUID
        assert (
            os.geteuid() == 0
            and planted.stat().st_uid not in (0, ORDINARY_UID)
            or planted.stat().st_uid == os.geteuid()
        )
        assert (
            other.exec(
                f"cat {planted.parent}/secret /.rollbox/uppers/*/p0/secret /.rollbox/uppers/1/p0/secret; ls /.rollbox/uppers"
            ).stdout
            == b""
        )
        if os.geteuid() == 0:
            with pytest.raises(PermissionError):
                subprocess.run([planted, "-c", "id"], user=ORDINARY_UID, group=ORDINARY_UID, extra_groups=[], cwd="/")


@pytest.mark.parametrize("mask", ["-landlock"])
def test_other_users_cannot_reach_the_files_without_landlock(caller, mask, monkeypatch):
    """The mounts alone keep others' uppers out of sight."""
    monkeypatch.setenv("ROLLBOX_STORE", str(caller.directory() / "store"))
    monkeypatch.setenv("ROLLBOX_KFEAT", mask)
    code = "import os\nfor d, names, files in os.walk('/.rollbox'): print(d, names, files)\nprint(os.path.exists('/.rollbox/uppers'))"
    done = caller.run("--disk-at", "store", "--", "python3", "-I", "-S", "-c", code)
    assert done.stdout.split("\n")[-2] == "False" and "uppers" not in done.stdout, done
