# SPDX-License-Identifier: Apache-2.0
"""Sandboxes that sleep.

The model: a guest that keeps its state in memory (test_live.Asked), and files of every kind, go to
the store and come back; what is left meanwhile is
an engine and nothing below it. With any process killed or any file cut off or changed on the way,
the session either runs as before or is hibernated, complete.
make check runs this file as root and as an ordinary user.
"""

import asyncio
import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from conftest import BUILD
from harness import binaries, caller, children, comm, descendants, until  # noqa: F401
from rollbox import (
    AsyncSandbox,
    Cancelled,
    Conflict,
    Damaged,
    Engine,
    EngineBusy,
    EngineLost,
    FeatureMissing,
    InvalidArgument,
    NotFound,
    Policy,
    RollboxError,
    Sandbox,
)
from stores import FAULTS, asleep, box, engine, failing, in_box, in_store, Shared, store, store_tells  # noqa: F401
from interpreters import by_name
from asked import Asked, sh


def kin(engine):
    """The processes below an engine, except its janitor."""
    found = []
    for pid in descendants(engine.status()["pid"]):
        if comm(pid) not in ("", "rollbox-janitor", "rollbox-engine"):
            found.append(pid)
    return found


def test_processes_and_files_survive_hibernation(box, engine, store):
    asked = Asked.begin(box, "x = {'a': 1}", "f = open('/tmp/log', 'w')")
    asked("print('before', file=f, flush=True)")
    box.hibernate()
    report = box.inspect()
    assert report["state"] == "asleep" and report["pid"] == 0 and report["processes"] == 0
    assert report["asleep"]["processes"] == 1 and report["asleep"]["bytes"] > report["asleep"]["memory_bytes"] > 0
    assert [row["state"] for row in report["execs"] if row["id"] == asked.id][0] == "asleep"
    assert "asleep" in [row["state"] for row in engine.sandboxes()]
    assert box.processes() == []
    until(lambda: not kin(engine))
    box.wake()
    assert box.inspect()["state"] == "running" and asleep(store) == []
    again = asked.of(box)
    assert again("x") == "{'a': 1}"
    again("print('after', file=f, flush=True)")
    assert box.read_file("/tmp/log") == b"before\nafter\n"


def test_commands_past_max_processes_and_daemons_wake(engine):
    """Guests fork up to max_processes; commands come on top, and the dead leaders of sessions and
    groups, which a restore creates again, are not counted."""
    with Sandbox(Policy(max_processes=8), engine=engine) as box:
        for _ in range(12):
            box.spawn(["sleep", "1000"])
        box.hibernate()
        box.wake()
        assert len(box.processes()) == 12
    with Sandbox(Policy(max_processes=8), engine=engine) as box:
        for n in range(1, 6):
            box.exec(["setsid", "-f", "sh", "-c", "sleep 1000 & exec true"])
            until(lambda: [row["command"].split()[0] for row in box.processes()] == n * ["sleep"])
        box.hibernate()
        box.wake()
        assert len(box.processes()) == 5


def test_requests_during_a_wake_wait_for_it(box):
    process = box.spawn(["sh", "-c", "while read line; do echo $line; done"])
    for _ in range(30):
        box.hibernate()
        waking = threading.Thread(target=box.wake)
        waking.start()
        again = box.process(process.id)
        waking.join()
        again.stdin.write(b"hello\n")
        again.stdin.flush()
        assert again.stdout.readline() == b"hello\n"


def test_waiting_commands_are_cancelled_and_their_processes_resume(box):
    process = box.spawn(["sh", "-c", "read line; echo $line; exit 7"])
    box.hibernate()
    with pytest.raises(Cancelled, match="hibernated while the command ran"):
        process.wait()
    again = box.process(process.id)     # which wakes it
    again.stdin.write(b"hello\n")
    again.stdin.close()
    assert again.wait().exit_code == 7
    assert again.stdout.read() == b"hello\n"


def test_deadlines_pass_during_hibernation(box):
    asked = Asked.begin(
        box,
        "import ctypes, os, struct, time; libc = ctypes.CDLL(None)",
        "def timer(flags, s): fd = libc.timerfd_create(time.CLOCK_REALTIME, os.O_NONBLOCK); libc.timerfd_settime(fd, flags, struct.pack('4q', 0, 0, s, 0), None); return fd",
        "def flags(fd): return [line for line in open(f'/proc/self/fdinfo/{fd}') if 'settime flags' in line]",
        "until, later, left = timer(1, int(time.time()) + 2), timer(3, int(time.time()) + 100000), timer(0, 100000)",
        "was = [flags(fd) for fd in (later, left)]",
    )
    due = int(time.time()) + 3
    box.hibernate()
    until(lambda: time.time() >= due)
    asked = asked.of(box)
    assert asked("struct.unpack('Q', os.read(until, 8))") == "(1,)"
    assert (
        asked("was, [flags(fd) for fd in (later, left)] == was")
        == "([['settime flags: 03\\n'], ['settime flags: 00\\n']], True)"
    )


def test_any_call_wakes(box):
    asked = Asked.begin(box, "x = 5")
    first = box.snapshot("first")
    calls = [
        lambda: box.exec(["true"]),
        lambda: box.write_file("/tmp/f", b"x"),
        lambda: box.read_file("/tmp/f"),
        lambda: box.snapshot(),
        lambda: box.fork(1)[0].close(),
        lambda: box.diff(),
        lambda: box.kill_all(),
        lambda: box.reset(first),
        lambda: box.drop(first),
    ]
    for call in calls:
        box.hibernate()
        assert box.inspect()["state"] == "asleep"
        call()
        assert box.inspect()["state"] != "asleep"
    box.hibernate()
    box.hibernate()
    box.pause()
    assert "s0" in str(box.tree()) and box.inspect()["state"] == "asleep"
    (sleeper,) = [node for node in box.tree() if node.sandboxes]
    told = box.inspect()["asleep"]
    assert (
        sleeper.kind == "asleep"
        and (sleeper.processes, sleeper.memory_bytes) == (told["processes"], told["memory_bytes"])
        and 0 < sleeper.disk_bytes <= told["bytes"]
    )
    box.wake()
    box.wake()
    assert asked.id


def test_snapshots_hibernate_with_their_session(box):
    asked = Asked.begin(box, "x = 1")
    sh(box, "echo one > /tmp/f")
    one = box.snapshot("one")
    asked("x = 2")
    sh(box, "echo two > /tmp/f")
    box.hibernate()
    assert "one" in str(box.tree())
    box.reset(one)
    assert box.read_file("/tmp/f") == b"one\n"
    assert asked.of(box)("x") == "1"


KINDS = r"""
cd /tmp; mkdir -p d/e; echo text > d/f; ln d/f d/hard; ln -s f d/link; mkfifo -m 600 d/fifo; chmod 2750 d/e; touch -d '2001-02-03 04:05:06.789' d/f
truncate -s 1G d/sparse; printf x | dd of=d/sparse bs=1 seek=500000000 conv=notrunc 2>/dev/null
python3 -c 'import os, socket; os.setxattr("d/f", "user.a", b"b\0c"); socket.socket(socket.AF_UNIX).bind("d/socket"); open(b"d/\xff\n", "w").close()'
mkdir closed; echo in > closed/f; chmod 0 closed/f; chmod 0 closed
"""
LOOK = r"""
cd /tmp; find d closed \( -type d -printf '%p %y %m %U %G %T@\n' \) -o -printf '%p %y %m %n %U %G %s %T@ %l\n' | sort; python3 -c 'import os; print(os.getxattr("d/f", "user.a"))'; md5sum < d/sparse; du d/sparse
stat -c %i d/f d/hard | uniq | wc -l; chmod 700 closed; chmod 600 closed/f; cat closed/f; chmod 0 closed/f closed
"""


def test_files_of_every_kind(box):
    assert sh(box, KINDS).exit_code == 0
    before = sh(box, LOOK).stdout
    for _ in range(2):
        box.hibernate()
        assert sh(box, LOOK).stdout == before


def test_hibernated_fork_keeps_its_index(box):
    kids = box.fork(2)
    for kid in kids:
        kid.hibernate()
    assert [kid.exec(["sh", "-c", "echo $CLONE_ID"], text=True).stdout for kid in kids] == ["0\n", "1\n"]
    for kid in kids:
        kid.close()


def test_closed_session_stays_closed_after_hibernation(engine, store, tmp_path):
    (tmp_path / "p" / "sub").mkdir(parents=True)
    (tmp_path / "p" / "gone").write_text("x")
    (tmp_path / "p" / "sub" / "kept").write_text("x")
    (tmp_path / "p").chmod(0o777)
    (tmp_path / "p" / "sub").chmod(0o777)
    with Sandbox({"fs_writable": [str(tmp_path / "p")]}, engine=engine) as box:
        assert sh(box, f"cd {tmp_path}/p && rm gone && mv sub other && mkdir sub && echo new > sub/new").exit_code == 0
        box.snapshot()
        assert sh(box, f"cd {tmp_path}/p && rm sub/new && echo more > sub/more").exit_code == 0
        before = [str(row) for row in box.diff()]
        box.hibernate()
        assert sh(box, f"cd {tmp_path}/p && find . | sort").stdout.split() == [
            ".",
            "./other",
            "./other/kept",
            "./sub",
            "./sub/more",
        ]
        assert [str(row) for row in box.diff()] == before and len(before) > 4


def test_many_sessions_hibernate_at_once(engine, store):
    with Sandbox(engine=engine) as parent:
        asked = Asked.begin(parent, "x = []")
        kids = parent.fork(8)
        for i, kid in enumerate(kids):
            kid.write_file("/tmp/i", str(i).encode())
            kid.hibernate()
        parent.hibernate()
        assert len(asleep(store)) == 9
        until(lambda: not kin(engine))
        for i, kid in enumerate(kids):
            again = asked.of(kid)
            assert again("x") == "[]" and kid.read_file("/tmp/i") == str(i).encode()
            kid.close()
        assert len(asleep(store)) == 1
    assert asleep(store) == []


def test_files_alone(box):
    asked = Asked.begin(box, "x = 1")
    sh(box, "echo kept > /tmp/f")
    box.hibernate(processes="drop")
    assert box.inspect()["asleep"]["processes"] == 0
    assert sh(box, "cat /tmp/f").stdout == "kept\n" and box.inspect()["processes"] == 0
    asked = Asked.begin(box, "x = 1")
    box.hibernate()
    box.wake(processes="drop")
    assert sh(box, "cat /tmp/f").stdout == "kept\n" and box.inspect()["processes"] == 0


def test_refused_hibernation_changes_nothing(box):
    asked = Asked.begin(box, "x = 3")
    box.spawn(["sh", "-c", "kill -STOP $$"])
    until(lambda: any(row["state"] == "T" for row in box.processes()))
    with pytest.raises(FeatureMissing):
        box.hibernate()
    assert box.inspect()["state"] == "running" and asked("x") == "3"


def test_hibernated_session_ends_with_its_client_and_by_close(store):
    engine = Engine()
    with Sandbox(engine=engine) as box, Sandbox(engine=engine) as other:
        box.hibernate()
        other.hibernate()
        assert len(asleep(store)) == 2
        box.close()
        assert len(asleep(store)) == 1
        engine.close()
        until(lambda: asleep(store) == [])


def test_async(store):
    async def main():
        async with AsyncSandbox(engine=Engine()) as box:
            await box.write_file("/tmp/f", b"x")
            await box.hibernate()
            assert (await box.inspect())["state"] == "asleep"
            await box.wake()
            assert await box.read_file("/tmp/f") == b"x"

    asyncio.run(main())


def test_idle_session_hibernates(engine):
    with Sandbox(engine=engine, hibernate_after=0.05) as box:
        box.write_file("/tmp/f", b"x")
        until(lambda: box.inspect()["state"] == "asleep")
        assert box.read_file("/tmp/f") == b"x"
        assert box.exec("sleep 0.3; echo done", text=True).stdout == "done\n"       # it is waited for
    with pytest.raises(InvalidArgument):
        Sandbox(engine=engine, hibernate_after=-1)


CALLS = {
    "exec": lambda box, state: box.exec(["true"]).check(),
    "files": lambda box, state: box.read_file("/tmp/pid"),
    "snapshot": lambda box, state: box.snapshot(),
    "fork": lambda box, state: box.fork(1)[0].close(),
    "diff": lambda box, state: box.diff(state),
    "shell": lambda box, state: box.shell().run("true"),
    "drop": lambda box, state: box.drop(state),
}


@pytest.mark.parametrize("call", CALLS)
def test_call_cancels_idle_hibernation(store, failing, tmp_path, call):
    """The same processes resume at once, even while rollbox-store, which is stopped here, takes long."""
    stopped = tmp_path / "stopped"
    with Engine() as engine, Sandbox(engine=engine, hibernate_after=0.05) as box:
        box.exec("sleep 1000 & echo $! > /tmp/pid")
        state = box.snapshot()
        pid = box.inspect()["pid"]
        failing.write_text(f"[ $1 = hibernate ] && echo $$ > {stopped} && kill -STOP $$\n")
        until(stopped.exists)
        CALLS[call](box, state)
        if call == "drop":                              # no other call sets its clock again
            failing.unlink()
            until(lambda: box.inspect()["state"] == "asleep")
            return
        assert box.inspect()["pid"] == pid and box.exec("kill -0 $(cat /tmp/pid)").exit_code == 0
        failing.unlink()
        until(lambda: box.inspect()["state"] == "asleep")
        until(lambda: len(asleep(store)) == 1)          # what was begun is gone
        assert box.exec("kill -0 $(cat /tmp/pid)").exit_code == 0
    until(lambda: not asleep(store))


def test_explicit_hibernation_completes_before_a_wake(store, failing, tmp_path):
    stopped = tmp_path / "stopped"
    with Engine() as engine, Sandbox(engine=engine) as box:
        box.exec("sleep 1000 & echo $! > /tmp/pid")
        pid = box.inspect()["pid"]
        failing.write_text(f"[ $1 = hibernate ] && echo $$ > {stopped} && kill -STOP $$\n")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            sleeping = pool.submit(box.hibernate)
            until(lambda: stopped.exists() and stopped.read_text())
            reading = pool.submit(box.read_file, "/tmp/pid")
            until(lambda: "T" in Path(f"/proc/{stopped.read_text().strip()}/stat").read_text().rpartition(")")[2][:3])
            os.kill(int(stopped.read_text()), signal.SIGCONT)
            sleeping.result()
            assert reading.result() and box.inspect()["pid"] != pid


def test_wake_during_the_hibernation_of_another_session(store, failing, tmp_path):
    """It runs with the launcher that made its layers: the launcher is kept meanwhile."""
    stopped = tmp_path / "stopped"
    with Engine() as engine, Sandbox(engine=engine) as box, Sandbox(engine=engine) as other:
        box.exec("sleep 1000 & echo $! > /tmp/pid")
        other.exec("sleep 1000 &")
        box.hibernate()
        failing.write_text(f"[ $1 = wake ] && echo $$ > {stopped} && kill -STOP $$\n")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waking = pool.submit(box.wake)
            until(lambda: stopped.exists() and stopped.read_text())
            other.hibernate()
            failing.unlink()
            until(lambda: "T" in Path(f"/proc/{stopped.read_text().strip()}/stat").read_text().rpartition(")")[2][:3])
            os.kill(int(stopped.read_text()), signal.SIGCONT)
            waking.result()
        assert box.exec("kill -0 $(cat /tmp/pid)").exit_code == 0 and other.exec("true").exit_code == 0


def test_launcher_killed_while_making_layers_is_replaced(engine, store):
    """Several, of which the first that is lost ends it: it sleeps on, and wakes when it is asked to again."""
    with Sandbox(engine=engine) as box, Sandbox(engine=engine) as other:
        other.exec("true")
        for i in range(4):
            box.exec(f"echo {i} > /tmp/{i}")
            box.snapshot()
        box.hibernate()
        for _ in range(5):
            launchers = by_name(engine, "rollbox-launch")
            for launcher in launchers:
                os.kill(launcher, signal.SIGSTOP)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                waking = pool.submit(box.wake)
                for _ in range(200):            # it has asked for them by then
                    engine.status()
                for launcher in launchers:
                    with contextlib.suppress(ProcessLookupError):       # one that the engine ended
                        os.kill(launcher, signal.SIGKILL)
                with contextlib.suppress(RollboxError):
                    waking.result()
            box.hibernate()
            with contextlib.suppress(RollboxError):
                other.exec("true")              # whose init the launcher's end has ended
            other.exec("true")
        assert box.exec("cat /tmp/?").stdout == b"0\n1\n2\n3\n"


def test_no_hibernation_during_a_file_transfer(store, tmp_path):
    """The client of the transfer is stopped in the middle: the idle session is not hibernated."""
    with (
        Shared(str(tmp_path / "socket")) as shared,
        Sandbox(engine=shared.engine, name="read", hibernate_after=0.05) as box,
        Sandbox(engine=shared.engine, hibernate_after=0.05) as other,
    ):

        def agents():
            return children(box.inspect()["pid"], "rollbox-files")

        def stopped_half_way():
            box.exec("head -c 64M /dev/urandom > /tmp/f")
            reader = subprocess.Popen(
                [BUILD / "rollbox", "cp", "read:/tmp/f", tmp_path / "f"],
                env={**os.environ, "ROLLBOX_SOCKET": shared.socket},
                stdin=subprocess.DEVNULL,
            )
            until(lambda: agents() or reader.poll() is not None)
            reader.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, reader.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if agents():
                return reader
            reader.send_signal(signal.SIGCONT)
            reader.wait()
            return None

        while not (reader := stopped_half_way()):
            pass
        for _ in range(4):              # of the two it is the one that was called later
            other.exec(["true"])
            until(lambda: other.inspect()["state"] == "asleep")
        assert box.inspect()["state"] != "asleep" and agents()
        reader.send_signal(signal.SIGCONT)
        assert (
            reader.wait() == 0
            and hashlib.sha256((tmp_path / "f").read_bytes()).hexdigest()
            == box.exec("sha256sum /tmp/f", text=True).stdout.split()[0]
        )
        until(lambda: box.inspect()["state"] == "asleep")


# ---- an engine's end
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_detached_hibernated_session_outlives_its_engine(store, tmp_path, how):
    socket = str(tmp_path / "socket")
    with Shared(socket) as first:
        box = Sandbox(engine=first.engine, name="kept", detached=True)
        asked = Asked.begin(box, "x = 41")
        sh(box, "echo one > /tmp/f")
        box.snapshot("one")
        box.hibernate()
        first.end(how)
    with Shared(socket) as second:
        with pytest.raises(InvalidArgument):
            with Sandbox(engine=second.engine, name="kept"):
                pass
        assert [(row["name"], row["state"]) for row in second.engine.sandboxes()] == [("kept", "asleep")]
        box = Sandbox.open("kept", engine=second.engine)
        again = asked.of(box)
        assert again("x + 1") == "42"
        sh(box, "echo two > /tmp/f")
        box.reset("one")
        assert box.read_file("/tmp/f") == b"one\n"
        box.close()
        assert asleep(store) == []
        with pytest.raises(NotFound):
            Sandbox.open("kept", engine=second.engine)


@pytest.mark.parametrize("replaced", ["by another", "by one of the same number", "not"])
def test_directory_replaced_during_hibernation_is_a_conflict(store, tmp_path, replaced):
    """The files in the directory are older than the sandbox, which another engine wakes. It is
    still another directory than the one at the start."""
    socket, granted, other = str(tmp_path / "socket"), tmp_path / "granted", tmp_path / "other"
    for path in (other, granted):
        path.mkdir(mode=0o755)
        (path / "a").write_text(f"{path.name}\n")
    policy = Policy(fs_writable=[str(granted)])
    with Shared(socket) as first:
        box = Sandbox(policy, engine=first.engine, name="kept", detached=True)
        sh(box, f"echo 1 > {granted}/a")
        box.commit()
        sh(box, f"echo 2 > {granted}/a")
        box.hibernate()
        first.end(signal.SIGKILL)
    if replaced == "by another":
        granted.rename(tmp_path / "moved")
        other.rename(granted)
    elif replaced != "not":
        number = granted.stat().st_ino
        shutil.rmtree(granted)
        granted.mkdir()
        (granted / "a").write_text("other\n")
        if granted.stat().st_ino != number:
            pytest.skip("the file system gives numbers of what is gone to nothing else at once")
    with Shared(socket) as second:
        with Sandbox.open("kept", engine=second.engine) as box:
            assert box.read_file(f"{granted}/a") == b"2\n"
            (fork,) = box.fork(1)
            for which in (box, fork):
                if replaced == "not":
                    which.commit()
                    sh(which, f"echo 2 > {granted}/a")
                    continue
                with pytest.raises(Conflict, match="replaced"):
                    which.commit()
                assert (granted / "a").read_text() == "other\n"
            box.commit(force=True)
            sh(box, f"echo 3 > {granted}/a")
            box.commit()
            assert (granted / "a").read_text() == "3\n"


def test_results_outlive_their_engine(store, tmp_path):
    """Results and output of commands that had ended are available without a wake, within the size limit."""
    socket = str(tmp_path / "socket")
    commands = {
        "small": "echo out; echo err >&2; exit 7",
        "spooled": "head -c 100000 /dev/zero; exit 3",
        "large": "head -c 3000000 /dev/zero; exit 4",
        "killed": "kill -9 $$",
    }

    def check(box, sleeps):
        results = {name: box.process(name).wait() for name in commands}
        small = results["small"]
        assert (small.exit_code, small.stdout, small.stderr, small.stdout_truncated) == (7, b"out\n", b"err\n", False)
        assert (results["spooled"].exit_code, len(results["spooled"].stdout)) == (3, 100000)
        assert results["large"].exit_code == 4 and results["killed"].signal == 9
        rows = {row["id"]: row for row in box.inspect()["execs"]}
        assert {name: rows[name]["state"] for name in commands} == dict.fromkeys(
            commands, "ended"
        ) and rows["small"]["exit_code"] == 7
        assert (box.inspect()["state"] == "asleep") == sleeps
        return results["large"]

    with Shared(socket) as first:
        box = Sandbox(engine=first.engine, name="kept", detached=True)
        asked = Asked.begin(box, "x = 1")
        for name, command in commands.items():
            box.spawn(["sh", "-c", command], id=name)
        until(lambda: sum(row["state"] == "ended" for row in box.inspect()["execs"]) == len(commands))
        box.hibernate()
        assert len(check(box, True).stdout) == 3000000
        first.end(signal.SIGKILL)
    with Shared(socket) as second:
        box = Sandbox.open("kept", engine=second.engine)
        assert check(box, True).stdout_truncated
        assert asked.of(box)("x") == "1"
        check(box, False)
        box.hibernate()
        second.end(signal.SIGTERM)
    with Shared(socket) as third:
        box = Sandbox.open("kept", engine=third.engine)
        check(box, True)
        with pytest.raises(NotFound):
            box.process("never").wait()
        box.close()


def test_unwakeable_data_is_collected(store):
    engine = Engine()
    box = Sandbox(engine=engine)
    box.write_file("/tmp/f", b"x")
    box.hibernate()
    assert store_tells("gc")["removed_asleep"] == 0 and len(asleep(store)) == 1
    assert store_tells("df")["asleep"] == 1 and store_tells("fsck")["asleep"] == 1
    size = sum(path.stat().st_size for path in in_store(store, "*"))
    assert store_tells("df")["asleep_bytes"] == size
    assert (
        b"1 hibernated sandboxes"
        in subprocess.run(
            [BUILD / "rollbox", "store", "df"], capture_output=True, check=True
        ).stdout
    )
    os.kill(engine.status()["pid"], signal.SIGKILL)
    until(lambda: store_tells("gc")["removed_asleep"] == 1)
    assert asleep(store) == [] and store_tells("df")["asleep_bytes"] == 0 and list((store / "trash").iterdir()) == []


def test_awake_session_of_a_killed_engine_is_not_offered_again(store, tmp_path):
    """Its last sleep is a state that it has run on from: it is over, as any that is awake then."""
    socket = str(tmp_path / "socket")
    fall_asleep(socket)
    with Shared(socket) as second:
        box = Sandbox.open("kept", engine=second.engine)
        box.wake()
        box.write_file("/tmp/f", b"more")
        assert asleep(store) == [] and len(list((store / "woken").iterdir())) == 1
        second.end(signal.SIGKILL)
    with Shared(socket) as third:
        assert list(third.engine.sandboxes()) == []
        with pytest.raises(NotFound):
            Sandbox.open("kept", engine=third.engine)
        until(lambda: store_tells("gc") and not list((store / "woken").iterdir()))


def test_failed_wake_leaves_the_session_hibernated(store, tmp_path):
    """Also when its wake was recorded already."""
    socket = str(tmp_path / "socket")
    fall_asleep(socket)
    path, image = in_store(store, "record.json")[0], in_store(store, "image-0")[0]
    content = bytearray(image.read_bytes())
    body = json.loads(path.read_text().splitlines()[0])
    wrong = bytes(content).replace(b"/usr/bin/python3", b"/usr/bin/qython3")
    assert wrong != bytes(content)
    image.write_bytes(wrong)
    body["images"][0]["sha256"] = hashlib.sha256(wrong).hexdigest()
    text = json.dumps(body)
    path.write_text(f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n")
    with Shared(socket) as second:
        box = Sandbox.open("kept", engine=second.engine)
        for _ in range(2):
            with pytest.raises(RollboxError):
                box.wake()
            assert box.inspect()["state"] == "asleep" and len(asleep(store)) == 1
        box.wake(processes="drop")
        assert box.read_file("/tmp/f") == b"x"
        box.close()


def version_two(content):
    text = content.splitlines()[0].replace(b'"version":1', b'"version":2').replace(b'"version": 1', b'"version": 2')
    return text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n"


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[:99] + bytes([content[99] ^ 1]) + content[100:],
        lambda content: content[:-70],
        version_two,
        lambda content: b"",
    ],
    ids=["flipped", "cut", "newer", "empty"],
)
def test_gc_keeps_unreadable_hibernated_sessions(store, tmp_path, change):
    """A bit flips in the record of a detached session, or a newer rollbox wrote it: that is no
    proof that the session is unwanted."""
    socket = str(tmp_path / "socket")
    fall_asleep(socket)
    path = in_store(store, "record.json")[0]
    content = path.read_bytes()
    path.write_bytes(change(content))
    told = store_tells("gc")
    assert told["removed_asleep"] == 0 and [
        (row["asleep"], row["file"]) for row in told["damaged"]
    ] == [(path.parent.name, "record.json")]
    assert (
        b"cannot be read, and is kept"
        in subprocess.run(
            [BUILD / "rollbox", "store", "gc"], capture_output=True, check=True
        ).stdout
    )
    assert store_tells("fsck", 1)["damaged"][0]["asleep"] == path.parent.name
    with Shared(socket) as second, pytest.raises(NotFound, match="store fsck"):
        Sandbox.open("kept", engine=second.engine)
    path.write_bytes(content)
    with Shared(socket) as third:
        box = Sandbox.open("kept", engine=third.engine)
        assert box.read_file("/tmp/f") == b"x"
        box.close()


def test_gc_keeps_directories_of_layers_that_it_does_not_know(store):
    with Engine():
        pass
    store_tells("gc")
    (store / "layers" / "v2-0123").mkdir()
    assert store_tells("gc")["damaged"] == [{"layer": "v2-0123", "reason": "it does not name its layer"}]
    assert (store / "layers" / "v2-0123").exists()


def test_gc_killed_while_it_collects_hibernated_data(store):
    fault = next(row["name"] for row in FAULTS if row["command"] == "gc-asleep")
    engine = Engine()
    box = Sandbox(engine=engine)
    box.hibernate()
    with open(in_store(store, "record.json")[0], "rb") as lock:
        os.kill(engine.status()["pid"], signal.SIGKILL)
        fcntl.flock(lock, fcntl.LOCK_EX)        # its engine's end gives it back
    store_tells("gc", -signal.SIGKILL, ROLLBOX_FAULT=fault)
    assert asleep(store) == [] and store_tells("fsck")["asleep"] == 0
    assert store_tells("gc")["removed_asleep"] == 0 and list((store / "trash").iterdir()) == []


# ---- what goes wrong
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [row for row in FAULTS if row["command"] in ("hibernate", "wake")],
    ids=lambda row: row["name"],
)
def test_store_job_killed_during_hibernation(store, failing, fault):
    with Engine() as engine, Sandbox(engine=engine) as box:
        asked = Asked.begin(box, "x = 3")
        sh(box, "echo kept > /tmp/f")
        failing.write_text(f"export ROLLBOX_FAULT={fault['name']}\n")
        if fault["command"] == "hibernate":
            with pytest.raises(RollboxError):
                box.hibernate()
            assert box.inspect()["state"] == "running" and asked("x") == "3"
            assert asleep(store) == []
            until(lambda: not os.listdir(store / "tmp"))        # which may be as large as the sandbox
            failing.unlink()
            box.hibernate()
        else:
            failing.unlink()
            box.hibernate()
            failing.write_text(f"export ROLLBOX_FAULT={fault['name']}\n")
            for call in (
                box.wake,
                lambda: box.exec(["true"]),
                lambda: box.process(asked.id).wait(),
                lambda: box.snapshot(),
            ):
                with pytest.raises(RollboxError):
                    call()
                assert box.inspect()["state"] == "asleep" and len(asleep(store)) == 1
            failing.unlink()
        assert asked.of(box)("x") == "3" and box.read_file("/tmp/f") == b"kept\n"
        subprocess.run([BUILD / "rollbox", "store", "fsck"], check=True, stdout=subprocess.DEVNULL)


def test_session_with_an_invalid_policy_can_be_removed(store, tmp_path):
    socket, granted = str(tmp_path / "socket"), tmp_path / "granted"
    granted.mkdir()
    with Shared(socket) as first:
        box = Sandbox(
            {"fs_readable": ["/usr", "/lib", "/lib64", "/etc", "/bin", str(granted)]},
            engine=first.engine,
            name="kept",
            detached=True,
        )
        box.write_file("/tmp/f", b"x")
        box.hibernate()
        first.end(signal.SIGTERM)
    granted.rmdir()
    with Shared(socket) as second:
        assert second.engine.sandboxes() == []
        with pytest.raises(RollboxError, match="granted"):
            Sandbox.open("kept", engine=second.engine)
        removed = subprocess.run([BUILD / "rollbox", "rm", "--socket", socket, "kept"], capture_output=True)
        assert removed.returncode == 0 and asleep(store) == []


@pytest.mark.parametrize("when", ["hibernate", "wake"])
def test_killed_engine_is_survived_on_the_way(store, failing, tmp_path, when):
    """The engine is killed when rollbox-store starts: written data is complete at its end, and data
    to be read is still there."""
    socket = str(tmp_path / "socket")
    with Shared(socket) as first:
        box = Sandbox(engine=first.engine, name="kept", detached=True)
        asked = Asked.begin(box, "x = 41")
        box.write_file("/tmp/f", b"x")
        if when == "wake":
            box.hibernate()
        failing.write_text("kill -9 $PPID\n")
        with pytest.raises(EngineLost):
            getattr(box, when)()
        failing.unlink()
        first.process.wait()
    until(lambda: len(asleep(store)) == 1 and not list((store / "tmp").iterdir()))
    with Shared(socket) as second:
        box = Sandbox.open("kept", engine=second.engine)
        assert asked.of(box)("x + 1") == "42" and box.read_file("/tmp/f") == b"x"
        box.close()
        assert asleep(store) == []


def test_full_disk_is_reported(store, failing):
    with Engine() as engine, Sandbox(engine=engine) as box:
        asked = Asked.begin(box, "x = 3")
        failing.write_text("ulimit -f 100; trap '' XFSZ\n")
        with pytest.raises(RollboxError, match="store"):
            box.hibernate()
        assert asked("x") == "3" and asleep(store) == []
        failing.unlink()
        box.hibernate()
        assert asked.of(box)("x") == "3"


@pytest.mark.parametrize("what", ["image-*", "layer-*", "record.json"])
@pytest.mark.parametrize("change", ["flipped", "cut", "gone"])
def test_damage_is_refused(box, store, what, change):
    asked = Asked.begin(box, "x = 3")
    sh(box, "echo kept > /tmp/f")
    box.hibernate()
    path = in_store(store, what)[0]
    content = path.read_bytes()
    if change == "gone":
        path.rename(store / "aside")
    elif change == "cut":
        os.truncate(path, len(content) // 2)
    else:
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1:])
    if what == "record.json" and change == "gone":
        shutil.copy(store / "aside", path)      # the engine reads what it has locked; rollbox-store looks, too
        os.truncate(path, 10)
    for _ in range(2):
        with pytest.raises(RollboxError) as failure:
            box.wake()
        assert isinstance(failure.value, Damaged) or change == "gone"
        assert box.inspect()["state"] == "asleep"
        (found,) = store_tells("fsck", 1)["damaged"]
        assert (found["asleep"], found["file"]) == (asleep(store)[0], path.name) and found["reason"]
        assert found["sandbox"] == (None if what == "record.json" else box.inspect()["name"])
    told = subprocess.run([BUILD / "rollbox", "store", "fsck"], capture_output=True)
    assert told.returncode == 1 and f"{path.name} is damaged".encode() in told.stdout
    if change == "gone":
        (store / "aside").rename(path)
    else:
        path.write_bytes(content)
    assert store_tells("fsck")["damaged"] == []
    assert asked.of(box)("x") == "3"


def fall_asleep(socket):
    """A sandbox of an engine that is gone: one process and a file."""
    with Shared(socket) as first:
        box = Sandbox(engine=first.engine, name="kept", detached=True)
        asked = Asked.begin(box, "x = 1")
        box.write_file("/tmp/f", b"x")
        box.hibernate()
        first.end(signal.SIGTERM)
        assert asked.id


def test_another_kernel_is_refused_in_words(store, tmp_path):
    socket = str(tmp_path / "socket")
    fall_asleep(socket)
    path = in_store(store, "record.json")[0]
    body = json.loads(path.read_text().splitlines()[0])
    body["record"]["fingerprint"]["kernel"] = "5.0.0 of old"
    text = json.dumps(body)
    path.write_text(f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n")
    with Shared(socket) as second:
        box = Sandbox.open("kept", engine=second.engine)
        with pytest.raises(FeatureMissing, match="5.0.0 of old"):
            box.wake()
        assert box.inspect()["state"] == "asleep"
        box.wake(processes="drop")
        assert box.read_file("/tmp/f") == b"x"
        box.close()


def test_image_of_another_version_is_refused_with_a_reason(store, tmp_path):
    """The format's version is its magic number, the last in the file; a session that an older
    rollbox hibernated is available without its processes."""
    socket = str(tmp_path / "socket")
    fall_asleep(socket)
    path, image = in_store(store, "record.json")[0], in_store(store, "image-0")[0]
    content = image.read_bytes()
    older = (int.from_bytes(content[-8:], "little") - (1 << 56)).to_bytes(8, "little")
    image.write_bytes(content[:-8] + older)
    body = json.loads(path.read_text().splitlines()[0])
    body["images"][0]["sha256"] = hashlib.sha256(content[:-8] + older).hexdigest()
    text = json.dumps(body)
    path.write_text(f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n")
    with Shared(socket) as second:
        box = Sandbox.open("kept", engine=second.engine)
        for _ in range(2):
            with pytest.raises(Damaged, match="another version of rollbox.*--drop-processes"):
                box.wake()
            assert box.inspect()["state"] == "asleep"
        box.wake(processes="drop")
        assert box.read_file("/tmp/f") == b"x"
        box.close()


def test_killed_dump_worker_fails_the_hibernation(store, failing, tmp_path):
    with Engine() as engine, Sandbox(engine=engine) as box:
        asked = Asked.begin(box, "x = 3")
        pid = engine.status()["pid"]
        # By the time rollbox-store starts, the dump worker holds everything.
        failing.write_text(
            f"for p in $(cat /proc/{pid}/task/{pid}/children); do [ \"$(cat /proc/$p/comm)\" = rollbox-capture ] && kill -9 $p; done\n"
        )
        with pytest.raises(RollboxError):
            box.hibernate()
        assert box.inspect()["state"] == "running" and asked("x") == "3"
        failing.unlink()
        box.hibernate()
        assert asked.of(box)("x") == "3"


def test_command_line(caller):  # noqa: F811
    directory = caller.directory()
    environment = caller.environment(ROLLBOX_STORE=str(directory / "store"))
    with caller.popen([binaries() / "rollbox-engine", "--socket", directory / "socket"], env=environment) as engine:
        def rollbox(command, *words):
            return caller.rollbox(command, "--socket", directory / "socket", *words)

        try:
            until(lambda: rollbox("ps").returncode == 0)
            assert rollbox("create", "--name", "a", "--hibernate-after", "100").returncode == 0
            assert (
                rollbox(
                    "exec",
                    "a",
                    "--",
                    "sh",
                    "-c",
                    "echo hi > /tmp/f; mkdir /tmp/d; chmod 0 /tmp/d; (echo >> /tmp/f; exec sleep 1000) &",
                ).returncode
                == 0
            )
            assert rollbox("hibernate", "a").returncode == 0
            assert b"asleep" in rollbox("ps").stdout and b"asleep" in rollbox("inspect", "a").stdout
            assert [path.stat().st_uid for path in (directory / "store" / "asleep").iterdir()] == [caller.uid]
            assert rollbox("wake", "a").returncode == 0
            assert rollbox("exec", "a", "--", "head", "-n", "1", "/tmp/f").stdout == b"hi\n"
            assert b"sleep 1000" in rollbox("ps", "a").stdout
            assert rollbox("hibernate", "--drop-processes", "a").returncode == 0
            assert rollbox("exec", "a", "--", "stat", "-c", "%a %U", "/tmp/d").stdout == b"0 box\n"
            assert b"sleep 1000" not in rollbox("ps", "a").stdout
        finally:
            engine.terminate()
            engine.wait()


def test_mode_changed_by_another_process_stays(store, tmp_path):  # noqa: F811
    """Another process changes the mode of a host file that a process of the sandbox has open:
    reopening the file sets another mode for a moment."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for parent in shared.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o111)
    with Sandbox(Policy(fs_shared=[str(shared)])) as box:
        asked = Asked.begin(box, "import os", f"f = open('{shared}/f', 'w+')", "f.write('in') and f.flush()")
        box.hibernate()
        (shared / "f").chmod(0o200)
        box.wake()
        assert asked.of(box)("f.seek(0), f.read()") == "(0, 'in')"
        assert (shared / "f").stat().st_mode & 0o7777 == 0o200


def test_session_locked_by_a_process_of_the_last_engine(store, tmp_path):
    """A fork of that may not have run yet: what sleeps is not told to be lost, and is found when that has gone."""
    socket = str(tmp_path / "socket")
    with Shared(socket) as first:
        Sandbox(engine=first.engine, name="kept", detached=True).hibernate()
        first.end(signal.SIGKILL)
    with Shared(socket) as second:
        with open(in_store(store, "record.json")[0], "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(EngineBusy, match="kept sleeps, and another process has it"):
                Sandbox.open("kept", engine=second.engine).inspect()
            with pytest.raises(EngineBusy):
                Sandbox(engine=second.engine, name="kept").inspect()
            assert second.engine.sandboxes() == []
        assert [row["name"] for row in second.engine.sandboxes()] == ["kept"]
        Sandbox.open("kept", engine=second.engine).close()
