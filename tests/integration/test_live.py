# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: processes and files together, in snapshots, forks and resets.

The model: a guest that keeps its state in memory alone answers questions line by line (`Asked`); what it answers in a fork, or after a reset, says
whether it is the one that was captured. make check runs this file as root and as an ordinary user.
"""

import asyncio
import contextlib
import copy
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from rollbox import AsyncSandbox, Cancelled, Engine, FeatureMissing, InvalidArgument, NotFound, Outcome, Policy, ResourceExhausted, RollboxError, Sandbox, SetupFailed
from harness import children, groups_of, pidfds, repeat_count, skip, until, wait_gone

ANSWERER = """
import sys
known = {}
for line in sys.stdin:
    try:
        print(repr(eval(line, known)), flush=True)
    except SyntaxError:
        exec(line, known)
        print("done", flush=True)
"""
PYTHON = ["python3", "-I", "-S", "-u", "-c"]


class Asked:
    """A Python process in a sandbox that executes the lines that it receives."""

    def __init__(self, process):
        self.process, self.id = process, process.id

    @classmethod
    def begin(cls, box, *setup):
        made = cls(box.spawn([*PYTHON, ANSWERER]))
        for line in setup:
            made(line)
        return made

    def __call__(self, line):
        if not self.process.stdin:
            raise BrokenPipeError("a copy that has ended before anybody asked it")
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().decode().rstrip("\n")

    def of(self, box):
        return Asked(box.process(self.id))


@pytest.fixture(scope="module", autouse=True)
def restorer():
    with Sandbox() as box:
        origin = Asked.begin(box, "x = 1")
        try:
            box.fork(1)[0].close()
        except FeatureMissing as problem:
            if "musl" in str(problem):
                skip("needs musl: the init that can hold processes is linked with it")
            raise
        assert origin("x") == "1"


def sh(box, script, **options):
    return box.exec(["sh", "-c", script], text=True, **options)


@contextlib.contextmanager
def closing(boxes):
    try:
        yield boxes
    finally:
        for box in boxes:
            box.close()


# Forks

def test_fork_resumes_where_its_origin_was():
    with Sandbox() as box:
        origin = Asked.begin(box, "x = [1, 2, 3]")
        with closing(box.fork(2)) as kids:
            first, second = (origin.of(kid) for kid in kids)
            assert first("x.append(4)") == "None" and second("x.clear()") == "None" and origin("x.pop()") == "3"
            assert (first("x"), second("x"), origin("x")) == ("[1, 2, 3, 4]", "[]", "[1, 2]")


def test_forks_have_memory_and_files_of_one_moment():
    with Sandbox() as box:
        origin = Asked.begin(box, "f = open('/tmp/log', 'w+')", "f.write('common ')", "f.flush()", "n = 0")
        with closing(box.fork(8)) as kids:
            asked = [origin.of(kid) for kid in kids]
            for i, one in enumerate(asked):
                one(f"n = {i}")
                one(f"f.write('of {i}')")
                one("f.flush()")
            for i, (kid, one) in enumerate(zip(kids, asked)):
                assert one("n") == str(i)
                assert sh(kid, "cat /tmp/log").stdout == f"common of {i}"
            assert origin("n") == "0" and sh(box, "cat /tmp/log").stdout == "common "


def test_forks_are_forked_again_to_any_depth():
    with Sandbox() as box, contextlib.ExitStack() as stack:
        asked = Asked.begin(box, "path = []")
        at = box
        for depth in range(12):
            asked(f"path.append({depth})")
            sh(at, f"echo {depth} >> /tmp/path")
            at = stack.enter_context(at.fork(1)[0])
            asked = asked.of(at)
        assert asked("path") == str(list(range(12)))
        assert sh(at, "cat /tmp/path").stdout.split() == [str(depth) for depth in range(12)]


def test_forks_of_forks_know_how_children_ended():
    with Sandbox() as box:
        origin = Asked.begin(
            box,
            "import os, signal",
            "def ended(how): pid = os.fork(); pid or (os.kill(os.getpid(), how) if how > 0 else os._exit(-how)); os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT); return pid",
            "pids = [ended(how) for how in (signal.SIGKILL, signal.SIGTERM, -5)]",
        )
        (kid,) = box.fork(1)
        with kid, kid.fork(1)[0] as grandchild:
            assert origin.of(grandchild)("[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]") == "[-9, -15, 5]"


@pytest.mark.long
def test_many_sessions_do_not_load_the_engine():
    """Whose memory no cgroup counts is looked at; however many live, and do nothing, that is a part of the engine's time: a third, and what else it does."""
    def used(engine):
        fields = Path(f"/proc/{engine.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    with Engine() as engine, Sandbox(engine=engine) as box:
        origin = Asked.begin(box, "x = 20")
        with contextlib.ExitStack() as stack:
            kids = [stack.enter_context(kid) for _ in range(4) for kid in box.fork(250)]
            cpu, begun = used(engine), time.monotonic()
            until(lambda: time.monotonic() - begun > 2)
            cpu, elapsed = used(engine) - cpu, time.monotonic() - begun
            assert origin.of(kids[-1])("x") == "20"
            assert cpu < 0.6 * elapsed, f"{cpu} s of {elapsed}"


def test_fifty_forks_at_once():
    with Sandbox() as box:
        origin = Asked.begin(box, "import os", "x = 20")
        with closing(box.fork(50)) as kids:
            asked = [origin.of(kid) for kid in kids]
            assert [one(f"x + {i}") for i, one in enumerate(asked)] == [str(20 + i) for i in range(50)]
            assert {one("os.getpid()") for one in asked} == {origin("os.getpid()")}, "pids inside are those of the origin"


def test_many_forks_in_a_row_use_the_same_groups():
    """Groups of sandboxes that ended are looked over each second, and those that are ending still have theirs: so not each round finds all of them."""
    def groups():
        return {name for top in groups_of(engine.pid) for name in os.listdir(top) if os.path.isdir(os.path.join(top, name))}

    def are_mostly_reused():
        before = groups()
        with closing(box.fork(40, snapshot=state)):
            return len(groups() - before) < 12

    with Engine() as engine, Sandbox(engine=engine) as box:
        Asked.begin(box, "x = 20")
        state = box.snapshot()
        if not groups():
            skip("does not apply: without control groups there are none to use again")
        until(are_mostly_reused)


def test_forks_share_nothing():
    with Sandbox() as box:
        origin = Asked.begin(box, "import mmap", "m = mmap.mmap(-1, 4096)", "m[0] = 1")
        with closing(box.fork(2)) as kids:
            first, second = (origin.of(kid) for kid in kids)
            first("m[0] = 2")
            assert (origin("m[0]"), first("m[0]"), second("m[0]")) == ("1", "2", "1")
            host = {row["host_pid"] for kid in kids for row in kid.processes()} | {row["host_pid"] for row in box.processes()}
            assert len(host) == 3


def test_fork_of_a_snapshot_has_the_memory_of_that_moment():
    with Sandbox() as box:
        origin = Asked.begin(box, "x = 'then'")
        then = box.snapshot("then")
        assert then.processes == 1 and then.memory_bytes > 0 and then.live
        origin("x = 'now'")
        for _ in range(2):
            with closing(box.fork(2, snapshot=then)) as kids:
                assert [origin.of(kid)("x") for kid in kids] == ["'then'", "'then'"]
        assert origin("x") == "'now'"


def test_command_in_a_fork_ends_like_any_command():
    with Sandbox() as box:
        origin = Asked.begin(box, "import sys")
        with closing(box.fork(3)) as kids:
            one, two, three = (origin.of(kid) for kid in kids)
            one.process.stdin.write(b"sys.exit(7)\n")
            one.process.stdin.flush()
            result = one.process.wait()
            assert (result.outcome, result.exit_code, result.stdout) == (Outcome.EXIT, 7, b"")
            two.process.kill(signal.SIGTERM)
            assert two.process.wait().signal == signal.SIGTERM
            assert three("1 + 1") == "2"
            three.process.stdin.close()
            result = three.process.wait()
            assert (result.exit_code, result.stdout) == (0, b"2\n"), "its output is what the copy wrote"
        origin.process.stdin.close()
        assert origin.process.wait().stdout == b"done\n"


def test_forked_command_is_found_after_its_end():
    """The fork's copy of a process object needs no request for its properties, only for whether it runs and whether its input is taken."""
    with Sandbox() as box:
        origin = Asked.begin(box, "import sys")
        with closing(box.fork(2)) as kids:
            runs, ends = (origin.of(kid) for kid in kids)
            again = kids[0].process(origin.id)
            assert again.stdin is None, "it is somebody's"
            assert runs("1 + 1") == "2" and again.stdout.readline() == b"2\n"
            ends("print('said')")
            ends.process.stdin.write(b"sys.exit(7)\n")
            ends.process.stdin.flush()
            ends.process.wait()
            for _ in range(2):
                ended = kids[1].process(origin.id)
                assert (ended.stdin, ended.stdout.read(), ended.wait().exit_code) == (None, b"said\nNone\n", 7)
        with pytest.raises(NotFound):
            kids[0].process(origin.id)


def test_forks_of_more_snapshots_than_zygotes():
    with Engine() as engine, Sandbox(engine=engine) as box:
        origin, states = Asked.begin(box, "x = 0"), []
        for i in range(36):
            origin(f"x = {i}")
            box.pause()         # else most images are incremental, with one zygote
            states.append(box.snapshot())
            box.resume()
        for i in (*range(36), 0, 35, 1):
            with closing(box.fork(1, snapshot=states[i])) as kids:
                assert origin.of(kids[0])("x") == str(i)
        until(lambda: len(children(engine.pid, "rollbox-hold")) <= 32)
        for state in states:
            box.drop(state)
        until(lambda: not children(engine.pid, "rollbox-hold"))


def test_more_pipes_than_a_message_brings_are_refused():
    with Sandbox(Policy(max_processes=200)) as box:
        waiting = [box.spawn(["sleep", "1000"]) for _ in range(70)]
        with pytest.raises(FeatureMissing, match="more than 199 pipes"):
            box.snapshot()
        for process in waiting[:20]:
            process.kill()
            process.wait()
        assert box.snapshot().processes == 50


def test_endless_poll_resumes_in_a_fork_of_a_second_snapshot():
    """By then the kernel has it as restart_syscall, of which nobody could tell what it is."""
    poll = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); print('ready', flush=True); print(libc.poll((ctypes.c_int * 2)(0, 1), 1, -1), ctypes.get_errno(), flush=True)"
    with Sandbox() as box:
        process = box.spawn(["python3", "-c", poll])
        assert process.stdout.readline() == b"ready\n"
        for _ in range(3):
            box.snapshot()
        with box.fork(1)[0] as kid:
            for one in (kid.process(process.id), process):
                one.stdin.write(b"x\n")
                one.stdin.flush()
                assert one.stdout.readline() == b"1 0\n"


def test_timeout_continues_in_a_fork():
    with Sandbox() as box:
        process = box.spawn([*PYTHON, "import time; print('up', flush=True); time.sleep(1000)"], timeout=8)
        assert process.stdout.readline() == b"up\n"
        with closing(box.fork(1)) as kids:
            copy = kids[0].process(process.id)
            assert copy.wait().outcome is Outcome.TIMEOUT
        assert process.wait().outcome is Outcome.TIMEOUT


# Shells

def test_shell_resumes_in_a_fork():
    with Sandbox() as box:
        shell = box.shell()
        shell.run("x=5; f() { echo \"f $x $PWD\"; }; mkdir -p /tmp/d && cd /tmp/d; exec 9> /tmp/d/open")
        with closing(box.fork(2)) as kids:
            for i, kid in enumerate(kids):
                with kid.shell(shell.id) as copy:
                    assert copy.id == shell.id
                    copy.run(f"x={i}")
                    result = copy.run("f; echo $x >&9; cat open", text=True)
                    assert (result.stdout, result.restarted, result.exit_code) == (f"f {i} /tmp/d\n{i}\n", False, 0)
                    assert copy.run("exit 3").ended
                    assert copy.run("echo $x", text=True).restarted
            assert shell.run("f", text=True).stdout == "f 5 /tmp/d\n"
            with pytest.raises(NotFound):
                box.shell(shell.id)
        with pytest.raises(NotFound):
            box.shell("none")
        with pytest.raises(InvalidArgument):
            box.shell(shell.id, cwd="/")


def test_shell_resumes_after_a_reset():
    with Sandbox() as box:
        shell = box.shell()
        shell.run("n=1; echo one > /tmp/f")
        name, at = shell.id, box.snapshot()
        for i in range(3):
            with box.shell(name) if i else shell as same:
                same.run(f"n={i}; echo changed > /tmp/f; touch /tmp/more")
                box.reset(at)
        with box.shell(name) as same:
            assert same.run("echo $n; cat /tmp/f; ls /tmp/more", text=True).stdout == "1\none\n"


# Resets

def test_reset_restores_memory_and_files():
    with Sandbox() as box:
        origin = Asked.begin(box, "f = open('/tmp/f', 'w+')", "f.write('one')", "f.flush()", "x = {'a': 1}")
        at, asked = box.snapshot(), origin
        for i in range(5):
            asked("x.clear()")
            asked("f.write(' and more')")
            asked("f.flush()")
            sh(box, "rm -f /tmp/f; echo other > /tmp/g; sleep 1000 & :")
            box.reset(at)
            if not i:
                with pytest.raises(Cancelled):
                    origin.process.wait()
            assert len(box.processes()) == 1
            asked = origin.of(box)
            assert asked("x") == "{'a': 1}" and asked("f.tell()") == "3" and asked("f.seek(0) or f.read()") == "'one'"
            assert sh(box, "cat /tmp/f; ls /tmp").stdout == "onef\n"


def test_reset_without_a_name_uses_the_last_snapshot():
    with Sandbox() as box:
        origin = Asked.begin(box, "x = 1")
        box.snapshot()
        origin("x = 2")
        box.discard()
        origin = origin.of(box)
        assert origin("x") == "1"
        with closing(box.fork(1)) as kids:
            asked = origin.of(kids[0])
            asked("x = 3")
            kids[0].reset()
            assert origin.of(kids[0])("x") == "1"


def test_reset_between_snapshots_with_and_without_processes():
    with Sandbox() as box:
        empty = box.snapshot()
        origin = Asked.begin(box, "x = 1")
        full = box.snapshot()
        for _ in range(3):
            box.reset(empty)
            assert not box.processes() and box.snapshot().processes == 0
            box.reset(full)
            assert origin.of(box)("x") == "1"


# Without processes

def test_files_alone():
    with Sandbox() as box:
        origin = Asked.begin(box, "open('/tmp/f', 'w').write('x')")
        full, files = box.snapshot(), box.snapshot(processes="drop")
        assert (full.processes, files.processes) == (1, 0)
        with closing([*box.fork(1, processes="drop"), *box.fork(1, snapshot=full, processes="drop"), *box.fork(1, snapshot=files)]) as kids:
            for kid in kids:
                assert not kid.processes() and sh(kid, "cat /tmp/f").stdout == "x"
                with closing(kid.fork(1)) as grandkids:
                    assert not grandkids[0].processes()
                assert kid.snapshot().processes == 0
        assert origin("1") == "1"
        box.reset(full, processes="drop")
        assert not box.processes() and sh(box, "cat /tmp/f").stdout == "x"
        assert box.snapshot().processes == 0
        with closing(box.fork(1)) as kids:
            assert not kids[0].processes()
        with pytest.raises(InvalidArgument):
            box.snapshot(processes="none")


def test_snapshot_of_an_idle_session_has_no_processes():
    with Sandbox() as box:
        sh(box, "echo x > /tmp/f")
        box.write_file("/tmp/g", b"y")
        one = box.snapshot()
        assert one.processes == 0 and not one.live and box.snapshot().id == one.id
        origin = Asked.begin(box)
        assert box.snapshot().processes == 1
        origin.process.kill()
        origin.process.wait()
        two = box.snapshot()
        assert two.processes == 0 and not two.live


def test_file_operations_pause_nothing():
    with Sandbox() as box:
        origin = Asked.begin(box, "x = 1", "open('/tmp/f', 'w').write('x')")
        assert [change.path for change in box.diff()] == ["/tmp/f"]
        result = box.grade({"/tmp/check": b"exit 0"}, ["sh", "/tmp/check"])
        assert result.exit_code == 0 and origin("x") == "1"


# What runs

def test_tree_with_pipes_is_restored():
    with Sandbox() as box:
        line = box.spawn(["sh", "-c", "cat | sed -u 's/^/one: /' | (n=0; while read -r line; do n=$((n + 1)); echo \"$n $line\"; done)"])
        line.stdin.write(b"a\n")
        line.stdin.flush()
        assert line.stdout.readline() == b"1 one: a\n"
        n = len(box.processes())
        with closing(box.fork(3)) as kids:
            for kid in kids:
                copy = kid.process(line.id)
                copy.stdin.write(b"b\nc\n")
                copy.stdin.close()
                assert len(kid.processes()) <= n
                assert copy.wait().stdout == b"2 one: b\n3 one: c\n"
        line.stdin.close()
        assert line.wait().stdout == b"1 one: a\n"


def test_background_processes_resume_in_a_fork():
    server = "import os, time\nfor i in range(1 << 30):\n    print(i, flush=True)\n    open('/tmp/at.new', 'w').write(str(i)); os.rename('/tmp/at.new', '/tmp/at')\n    time.sleep(0.01)\n"
    with Sandbox() as box:
        box.write_file("/tmp/server.py", server.encode())
        assert sh(box, "python3 -I -S /tmp/server.py & :").exit_code == 0
        until(lambda: sh(box, "cat /tmp/at 2>/dev/null").stdout not in ("", "0"))
        with closing(box.fork(2)) as kids:
            for one in (*kids, box):
                at = int(sh(one, "cat /tmp/at").stdout)
                until(lambda: int(sh(one, "cat /tmp/at").stdout) > at)


def test_threads():
    with Sandbox() as box:
        origin = Asked.begin(
            box, "import threading, queue", "asked, told = queue.Queue(), queue.Queue()",
            "work = lambda i: [told.put((i, asked.get())) for _ in range(1000)]",
            "threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(6)]",
            "[thread.start() for thread in threads] and None", "lock = threading.Lock()", "lock.acquire()")
        with closing(box.fork(2)) as kids:
            for one in (*(origin.of(kid) for kid in kids), origin):
                one("[asked.put(i) for i in range(20)] and None")
                assert one("sorted(told.get()[1] for _ in range(20))") == str(list(range(20)))
                assert one("lock.locked() and lock.acquire(timeout=0)") == "False"
                assert one("threading.active_count()") == "7"


def test_busy_program_is_snapshotted():
    with Sandbox() as box:
        process = box.spawn([*PYTHON, "n = 0\nwhile True:\n    n += 1\n    if n % 100000 == 0: print(f'{n}\\n', end='', flush=True)"])
        process.stdout.readline()
        with closing(box.fork(2)) as kids:
            for kid in kids:
                copy = kid.process(process.id)
                first = int(copy.stdout.readline())
                assert first > 0 and first % 100000 == 0


def test_programs_that_come_and_go():
    """Some are found as they end, some before they have executed anything, while who started them waits for that."""
    with Sandbox() as box:
        sh(box, "(while :; do n=$((n + 1)); echo $n > /tmp/new; mv /tmp/new /tmp/n; done) > /dev/null 2>&1 &")
        until(lambda: box.exists("/tmp/n"))
        for _ in range(40):
            with closing(box.fork(1)) as kids:
                at = kids[0].read_file("/tmp/n")
                until(lambda: kids[0].read_file("/tmp/n") != at)


def test_bash_with_children():
    with Sandbox() as box:
        shell = box.shell()
        shell.run("sleep 1000 & sleep 1000 & jobs=$(jobs -p | wc -l); coproc cat")
        with closing(box.fork(1)) as kids, kids[0].shell(shell.id) as copy:
            assert copy.run("echo $jobs; echo hello >&${COPROC[1]}; read -r said <&${COPROC[0]}; echo $said", text=True).stdout == "2\nhello\n"
            assert copy.run("kill %1; wait %1; echo $?", text=True).stdout == "143\n"
            assert len(box.processes()) > len(kids[0].processes())


def test_files_in_use_by_an_agent_do_not_matter():
    with Sandbox() as box:
        origin = Asked.begin(box, "x = 1")
        box.write_file("/tmp/f", b"1")
        with closing(box.fork(1)) as kids:
            kids[0].write_file("/tmp/f", b"2")
            assert origin.of(kids[0])("open('/tmp/f').read()") == "'2'" and origin("open('/tmp/f').read()") == "'1'"


# What is refused

def test_refused_snapshot_names_the_cause_and_changes_nothing():
    with Sandbox() as box:
        origin = Asked.begin(box, "x = 1")
        other = Asked.begin(box, "import os", "fd = os.open('/tmp', os.O_PATH)")
        with other.process:
            before = len(box.tree())
            for call in (box.snapshot, box.fork):
                with pytest.raises(FeatureMissing) as caught:
                    call()
                assert "python3" in str(caught.value) and "O_PATH" in str(caught.value) and 'processes="drop"' in str(caught.value)
            assert len(box.tree()) == before and origin("x") == "1" and other("os.readlink(f'/proc/self/fd/{fd}')") == "'/tmp'"
            assert box.snapshot(processes="drop").processes == 0
            box.fork(1, processes="drop")[0].close()
        assert box.snapshot().processes == 1


@pytest.mark.parametrize("state, problem, why, after", [
    ("open('/tmp/w/new', 'w').close()", ResourceExhausted, "unread inotify events", "os.read(fd, 1000) and None"),
    ("f = open('/tmp/w/gone', 'w'); l.inotify_add_watch(fd, b'/tmp/w/gone', 2); os.unlink('/tmp/w/gone'); os.read(fd, 1000)", FeatureMissing, "inotify watch 2 .*was not found", "f.close()"),
    ("[l.inotify_rm_watch(fd, l.inotify_add_watch(fd, b'/tmp', 2)) for _ in range(65536)]; os.read(fd, 1 << 20); l.inotify_add_watch(fd, b'/tmp', 2)", FeatureMissing, "too many", "os.close(fd)"),
])
def test_watches_that_are_refused(state, problem, why, after):
    with Sandbox() as box:
        origin = Asked.begin(box, "import ctypes, os; l = ctypes.CDLL(None); os.mkdir('/tmp/w'); fd = l.inotify_init(); l.inotify_add_watch(fd, b'/tmp/w', 0x300)", f"{state}; x = 1")
        with pytest.raises(problem, match=why):
            box.snapshot()
        assert origin("x") == "1" and origin(after) == "None"
        if "gone" in state:
            assert origin("os.read(fd, 1000) and None") == "None"
        box.snapshot()


# Killed

def test_killed_dump_worker_is_reported_and_leaves_nothing_paused():
    """A process in which it was making a call could not resume unchanged: its command fails with an error, and is not reported as ended by itself. Nothing waits for it."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        setup = ("x = bytearray(64 << 20)", "x[::4096] = b'1' * (len(x) // 4096)")
        origin, over, failed = Asked.begin(box, *setup), threading.Event(), 0

        def hunt():
            while not over.is_set():
                for pid in children(engine.pid, "rollbox-capture"):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

        hunter = threading.Thread(target=hunt)
        hunter.start()
        try:
            while failed < 5:
                try:
                    box.snapshot()
                except RollboxError as problem:
                    assert problem.code == "setup_failed" and "killed" in str(problem)
                    failed += 1
                try:
                    assert sh(box, "echo on").stdout == "on\n"
                except SetupFailed as problem:      # of a snapshot that was taken, while its dump worker restored registers
                    assert "killed from outside while it made calls" in str(problem)
                said = ""
                with contextlib.suppress(BrokenPipeError):
                    said = origin("len(x)")
                if said != str(64 << 20):
                    assert said == ""
                    with pytest.raises(RollboxError, match="killed from outside while it made calls"):
                        origin.process.wait()
                    origin = Asked.begin(box, *setup)
        finally:
            over.set()
            hunter.join()
        assert box.snapshot().processes == 1 and origin("len(x)") == str(64 << 20)
        until(lambda: not children(engine.pid, "rollbox-capture"))


def state_of(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_dump_worker_killed_beside_a_copy_leaves_no_process():
    with Engine() as engine, Sandbox(engine=engine) as box:
        origin = Asked.begin(box, "x = bytearray(b'1' * (96 << 20))")
        host_pid, = (row["host_pid"] for row in box.processes())
        told = []
        for _ in range(20):
            over = threading.Event()

            def hunt():
                while not over.is_set():
                    twin = Path(f"/proc/{host_pid}/task/{host_pid}/children").read_text().strip()
                    if twin and state_of(twin) == "t" and state_of(host_pid) == "S":
                        for pid in children(engine.pid, "rollbox-capture"):
                            with contextlib.suppress(ProcessLookupError):
                                os.kill(pid, signal.SIGKILL)
                        return

            hunter = threading.Thread(target=hunt)
            hunter.start()
            try:
                box.snapshot()
            except RollboxError as problem:
                told.append(str(problem))
            finally:
                over.set()
                hunter.join()
            until(lambda: all(row["state"] == "Z" for row in box.processes() if row["host_pid"] != host_pid))
            assert origin("len(x)") == str(96 << 20)
            if told:
                break
        assert "was killed from outside" in told[0]
        with closing(box.fork(1)) as kids:
            assert origin.of(kids[0])("len(x)") == str(96 << 20)


def test_killed_zygote_is_restarted():
    with Engine() as engine, Sandbox(engine=engine) as box:
        origin = Asked.begin(box, "x = 1")
        at = box.snapshot()
        for _ in range(5):
            with closing(box.fork(1, snapshot=at)) as kids:
                assert origin.of(kids[0])("x") == "1"
            zygote, = until(lambda: alone if len(alone := children(engine.pid, "rollbox-hold")) == 1 else None)     # the fork is gone
            family = pidfds([zygote])
            os.kill(zygote, signal.SIGKILL)
            wait_gone(family)


def held(engine):
    """The inits of forks and preforks, and the zygote."""
    return children(engine.pid, "rollbox-hold")


def test_prefork_serves_the_next_fork():
    """From the second fork of a state on there is one, for a second, which is nobody's: its death, or that of the state, is nobody's loss."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        origin = Asked.begin(box, "x = 1")
        at = box.snapshot()
        box.fork(1, snapshot=at)[0].close()
        until(lambda: len(held(engine)) == 1)
        zygote, = held(engine)
        killed = 0
        for i in range(500):
            with closing(box.fork(1, snapshot=at)) as kids:
                one = origin.of(kids[0])
                assert one("x") == "1" and one(f"x = {i}") == "done"
                known, waiting = {zygote, kids[0].inspect()["pid"]}, set()
                for _ in range(100 * (i % 2)):
                    waiting = waiting or set(held(engine)) - known
                for init in waiting:
                    family = pidfds([init])
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(init, signal.SIGKILL)
                    wait_gone(family)
                    killed += 1
                assert one("x") == str(i)
            if killed >= 4:
                break
        assert killed >= 4
        for _ in range(4):
            box.reset(at)
            assert origin.of(box)("x") == "1"
        until(lambda: len(held(engine)) == 2)           # nobody came for it
        box.reset(at)
        with closing(box.fork(1)) as kids:              # of another state, which has none yet
            assert origin.of(kids[0])("x") == "1"
        assert origin.of(box)("x") == "1"
        box.reset(at)
        box.drop(at)
        until(lambda: len(held(engine)) <= 2)
        at = box.snapshot()
        for _ in range(3):
            box.reset(at)
        family = pidfds(held(engine))
    wait_gone(family)


def test_killed_init_of_a_fork_ends_only_that_fork():
    with Sandbox() as box:
        origin = Asked.begin(box, "x = 1")
        with closing(box.fork(2)) as kids:
            asked = [origin.of(kid) for kid in kids]
            os.kill(kids[0].inspect()["pid"], signal.SIGKILL)
            with pytest.raises(RollboxError):
                asked[0].process.wait()
            assert asked[1]("x") == "1" and origin("x") == "1"
            assert sh(kids[0], "echo on").stdout == "on\n" and not kids[0].processes()


def test_init_killed_during_a_dump():
    with Sandbox() as box:
        for _ in range(10):
            Asked.begin(box, "x = bytearray(32 << 20)", "x[::4096] = b'1' * (len(x) // 4096)")
            pid = box.inspect()["pid"]
            killer = threading.Thread(target=os.kill, args=(pid, signal.SIGKILL))
            killer.start()
            with contextlib.suppress(RollboxError):
                box.snapshot()
            killer.join()
            until(lambda: box.inspect()["pid"] != pid)
            assert sh(box, "echo on").stdout == "on\n"


def test_everything_ends_with_the_engine():
    engine = Engine()
    box = Sandbox(engine=engine)
    origin = Asked.begin(box, "x = 1")
    kids = box.fork(4)
    assert [origin.of(kid)("x") for kid in kids] == ["1"] * 4
    family = pidfds([row["host_pid"] for one in (box, *kids) for row in one.processes()] + [one.inspect()["pid"] for one in (box, *kids)] + children(engine.pid, "rollbox-launch") + children(engine.pid, "rollbox-hold"))
    os.kill(engine.pid, signal.SIGKILL)
    wait_gone(family)


def test_mapped_file_writes_of_a_restored_process_are_seen():
    """They are copied up while it is restored: written to in place, they look as they did when its box was ready."""
    with Sandbox() as box:
        origin = Asked.begin(box, "import mmap", "f = open('/tmp/mapped', 'w+b')", "f.write(b'a' * 40960)", "f.flush()", "m = mmap.mmap(f.fileno(), 40960)")
        at = box.snapshot()
        for i in range(6):
            with closing(box.fork(1, snapshot=at)) as kids:
                one = origin.of(kids[0])
                one(f"m[100] = {i}")
                with closing(kids[0].fork(1)) as grandkids:
                    assert one.of(grandkids[0])("m[100], open('/tmp/mapped', 'rb').read()[100]") == f"({i}, {i})"


# Copy-on-write forks: a process runs while its memory is copied

COUNTER = """
import sys, threading
pages = bytearray(8 << 20)
def count():
    k = 0
    while True:
        k = (k + 1) % 256
        for at in range(0, len(pages), 4096):
            pages[at] = k
threading.Thread(target=count, daemon=True).start()
for line in sys.stdin:
    now = pages[::4096]
    step = next((i for i in range(1, len(now)) if now[i] != now[i - 1]), len(now))
    print(now == bytes([now[0]]) * step + bytes([(now[0] - 1) % 256]) * (len(now) - step) or (step, bytes(now)), flush=True)
"""
WAITER = """
import os, sys, threading
kept, met, pids = bytearray(b"x" * (8 << 20)), [], set()
def wait():
    while True:
        try:
            pid, _ = os.wait()
            if pid not in pids:
                met.append(pid)
            pids.discard(pid)
        except ChildProcessError:
            child = os.fork()
            if child == 0:
                os._exit(0)
            pids.add(child)
threading.Thread(target=wait, daemon=True).start()
for line in sys.stdin:
    print(met, flush=True)
"""


@pytest.mark.parametrize("code, answer", [(COUNTER, "True"), (WAITER, "[]")])
def test_copies_are_of_one_moment_and_have_no_parent(code, answer):
    with Sandbox(Policy(max_memory="1G")) as box:
        process = Asked(box.spawn([*PYTHON, code]))
        assert process("") == answer
        for _ in range(10):
            with closing(box.fork(1)) as kids:
                assert process.of(kids[0])("") == answer
            assert process("") == answer
        until(lambda: not [row for row in box.processes() if row["state"] in "tT"])


def test_copies_leave_nothing():
    with Sandbox(Policy(max_memory="1G")) as box:
        origin = Asked.begin(box, "x = bytearray(b'1' * (8 << 20))")
        for _ in range(20):
            box.drop(box.snapshot())
        until(lambda: len(box.processes()) == 1)
        assert origin("import os") == "done"
        assert origin("open('/proc/self/task/%d/children' % os.getpid()).read()") == "''"


@pytest.mark.parametrize("stands", [False, True], ids=["twin", "itself"])
def test_snapshot_does_not_copy_shared_data(stands):
    """A restored process has its memory by fork: looking at it is no reason for pages of its own, which its sandbox would pay for."""
    def shared(box):
        (pid,) = children(box.inspect()["pid"], "python3")
        return sum(int(line.split()[1]) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Shared_Dirty")) << 10

    with Sandbox(Policy(max_memory="1G")) as box:
        origin = Asked.begin(box, "import os", "x = bytearray(os.urandom(32 << 20))")
        with closing(box.fork(5)) as (kid, other, *_):      # of fewer it would be what has changed
            assert shared(kid) > 32 << 20
            if stands:
                kid.pause()
            taken = kid.snapshot()
            assert taken.memory_bytes > 32 << 20 and shared(kid) > 32 << 20
            kid.resume()
            assert origin.of(kid)("len(x)") == origin.of(other)("len(x)") == str(32 << 20)


def test_read_zero_pages_are_no_memory():
    """The kernel has them but once. Where an image is loaded while it is written, the size of its content is fixed before the pages are read."""
    with Sandbox(Policy(max_memory="1G")) as box:
        origin = Asked.begin(box, "import mmap, os, zlib", "x = os.urandom(16 << 20)", "y = mmap.mmap(-1, 512 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)")
        assert origin("sum(y[i] for i in range(0, len(y), 4096))") == "0"
        origin("y[300 << 20] = 7")
        wanted = origin("(zlib.crc32(x), y[300 << 20], y[200 << 20])")
        for least in (16 << 20, 0):         # the second is what has changed
            with closing(box.fork(2)) as kids:
                for kid in kids:
                    assert origin.of(kid)("(zlib.crc32(x), y[300 << 20], y[200 << 20])") == wanted
                assert least < box.tree()[-1].memory_bytes < 64 << 20
            assert origin("y[100 << 20]") == "0"


MAPS = ("import ctypes, mmap, os", "libc = ctypes.CDLL(None)", "address = lambda m: ctypes.addressof(ctypes.c_char.from_buffer(m))")


def test_shared_memory_that_ends_before_its_mapping_does():
    """The dump has the part of the mapping that the file covers. For root, who can see the file, the error names the rest of the mapping."""
    with Sandbox() as box:
        origin = Asked.begin(box, *MAPS, "import zlib", "libc.mmap.restype = ctypes.c_void_p", "f = os.open('/tmp/f', os.O_CREAT | os.O_RDWR)", "os.unlink('/tmp/f')", "os.write(f, os.urandom(5 << 12))",
                             "at = libc.mmap(None, ctypes.c_size_t(2 << 20), 3, mmap.MAP_SHARED, f, ctypes.c_long(0))", "os.close(f)")
        look = "zlib.crc32(ctypes.string_at(at, 5 << 12))"
        wanted = origin(look)
        if os.geteuid() == 0:
            with pytest.raises(FeatureMissing, match="maps more of the shared memory"):
                box.fork(1)
        else:
            with closing(box.fork(1)) as (kid,):
                assert origin.of(kid)(look) == wanted
        assert origin(look) == wanted


class Guarded:
    """A Python with a megabyte of x, and guards in it at some of its pages. `holds`: it has just these, and what is between; one who touches them is ended."""

    def __init__(self, box, pages, flags="MAP_PRIVATE | mmap.MAP_ANONYMOUS", content="m[:] = b'x' * (1 << 20)"):
        self.pages, self.shown = pages, [-signal.SIGSEGV if page in pages else 0 for page in range(8)]
        self.asked = Asked.begin(box, *MAPS, "f = os.open('/tmp/f', os.O_CREAT | os.O_RDWR)", "os.write(f, b'x' * (1 << 20))", f"m = mmap.mmap({-1 if 'ANONYMOUS' in flags else 'f'}, 1 << 20, mmap.{flags})",
                                 content, "advise = lambda page, n, what: libc.madvise(ctypes.c_void_p(address(m) + (page << 12)), ctypes.c_size_t(n << 12), what)",
                                 "ends = lambda page: (lambda pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else os._exit(ctypes.string_at(address(m) + (page << 12), 1) != b'x'))(os.fork())")
        for page in pages:
            if self.asked(f"advise({page}, 1, 102)") != "0":
                skip("needs guards: MADV_GUARD_INSTALL, of Linux 6.13 for anonymous memory, of 6.15 for files")

    def of(self, box):
        made = copy.copy(self)
        made.asked = self.asked.of(box)
        return made

    def holds(self):
        return self.asked("[ends(page) for page in range(8)]") == str(self.shown) and self.asked("m[8 << 12:] == b'x' * ((1 << 20) - (8 << 12))") == "True"


@pytest.fixture
def guardable():
    return Policy(max_memory="1G")


@pytest.mark.parametrize("kind", ["anonymous", "file", "shared-file"])
def test_guard_pages_are_kept_in_forks(guardable, kind):
    """And in copies of these, after a reset, and after sleep; where one is taken away, there is what the kernel puts there."""
    flags, content = {"anonymous": ("MAP_PRIVATE | mmap.MAP_ANONYMOUS", "m[:] = b'x' * (1 << 20)"), "file": ("MAP_PRIVATE", "m[0]"), "shared-file": ("MAP_SHARED", "m[0]")}[kind]
    with Sandbox(guardable) as box:
        origin = Guarded(box, [0, 3, 4], flags, content)
        at = box.snapshot()
        with closing(box.fork(2)) as kids:
            first, second = (origin.of(kid) for kid in kids)
            assert first.holds() and second.holds() and origin.holds()
            with closing(kids[0].fork(1)) as (grandchild,):
                assert first.of(grandchild).holds()
            assert second.asked("advise(0, 8, 103)") == "0"
            assert second.asked("{m[page << 12] for page in (0, 3, 4)}") == str({0 if kind == "anonymous" else ord("x")})
            assert first.holds() and origin.holds()
        assert origin.asked("advise(0, 8, 103)") == "0"
        box.reset(at)
        again = origin.of(box)
        assert again.holds()
        box.hibernate()
        assert again.of(box).holds()


def test_guard_pages_without_neighbours(guardable):
    """In memory that nobody has touched, across mappings, in thousands of places."""
    with Sandbox(guardable) as box:
        asked = Guarded(box, [1]).asked
        asked("u = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)")
        asked("guard = lambda page, n: libc.madvise(ctypes.c_void_p(address(u) + (page << 12)), ctypes.c_size_t(n << 12), 102)")
        assert asked("guard(0, 8192), sum(guard(8192 + 2 * i, 1) for i in range(4000))") == "(0, 0)"
        assert asked("libc.mprotect(ctypes.c_void_p(address(u) + (16 << 20)), ctypes.c_size_t(8 << 20), 1)") == "0"
        asked("entries = lambda p: (os.pread(p, 64 << 11, address(u) >> 9), os.close(p))[0]")
        look = "''.join(str(byte >> 2 & 1) for byte in entries(os.open('/proc/self/pagemap', os.O_RDONLY))[7::8]) == '1' * 8192 + '10' * 4000 + '0' * 192"
        if asked(look) != "True":
            skip("needs guards: the kernel tells of guards since Linux 6.15")
        box.snapshot("guarded")
        assert box.show("guarded")["processes"][0]["guarded_bytes"] == (8192 + 4000 + 1) << 12
        assert all(check["ok"] for check in box.verify("guarded")["checks"])
        with closing(box.fork(1, snapshot="guarded")) as (kid,):
            assert asked.of(kid)(look) == "True" and asked(look) == "True"


@pytest.mark.parametrize("flags", ["MAP_SHARED | mmap.MAP_ANONYMOUS", "MAP_PRIVATE"], ids=["shared", "file"])
@pytest.mark.parametrize("pages", [[0], [3]], ids=["first", "between"])
def test_guard_pages_before_unmovable_memory_are_refused(guardable, flags, pages):
    """Shared memory that an ordinary user cannot read but where it is mapped, and a mapping of a file that is captured whole: what lies under the guard is not known. The file of shared memory is root's to read."""
    with Sandbox(guardable) as box:
        origin = Guarded(box, pages, flags)
        origin.asked("y = os.urandom(4 << 20)")
        if os.geteuid() == 0 and "SHARED" in flags:
            with closing(box.fork(1)) as (kid,):
                assert origin.of(kid).holds() and origin.holds()
            return
        for take in (box.snapshot, lambda: box.fork(1)):
            with pytest.raises(FeatureMissing, match="it has guard pages at 0x"):
                take()
        assert origin.holds()
        origin.asked("advise(0, 256, 103)")
        with closing(box.fork(1)) as (kid,):
            assert origin.asked.of(kid)("m[4 << 12:] == b'x' * ((1 << 20) - (4 << 12))") == "True"


def test_no_copies_when_memory_is_short():
    with Sandbox(Policy(max_memory="64M")) as box:
        origin = Asked.begin(box, "x = bytearray(40 << 20)", "x[::4096] = b'1' * (len(x) // 4096)")
        for _ in range(3):
            with closing(box.fork(1)) as kids:
                assert origin.of(kids[0])("x.count(b'1')") == str(40 << 8)
            assert origin("x.count(b'1')") == str(40 << 8)


def test_copy_is_limited_by_max_memory():
    """It is looked at first when it can have reached the limit; what its init keeps of it for a moment is nothing that it has."""
    for limit, fits in ("64M", 20), ("2G", 40):
        with Sandbox(Policy(max_memory=limit)) as box:
            origin = Asked.begin(box, f"x = bytearray(b'1' * ({fits} << 20))")
            with closing(box.fork(2, snapshot=box.snapshot())) as (within, over):
                copied = origin.of(within)
                assert copied("x[::4096] = b'2' * len(x[::4096])") == "done"
                assert {copied("len(x)") for _ in range(2000)} == {str(fits << 20)}
                if limit == "64M":
                    too_much = origin.of(over).process
                    too_much.stdin.write(b"y = bytearray(b'1' * (200 << 20))\n")
                    too_much.stdin.flush()
                    assert too_much.wait(60).outcome is Outcome.OUT_OF_MEMORY
            assert origin("len(x)") == str(fits << 20)


def test_agent_has_no_descriptors_of_init():
    """Right after a fork, when init has the memory of what it has made yet: a file is written and read by a fork of init."""
    with Sandbox(Policy(max_memory="1G")) as box:
        origin = Asked.begin(box, "x = bytearray(b'1' * (64 << 20))")
        state = box.snapshot()
        for _ in range(4):
            fork, = box.fork(1, snapshot=state)
            with fork:
                fork.write_file("/tmp/f", b"kept")
                assert fork.read_file("/tmp/f") == b"kept" and origin.of(fork)("len(x)") == str(64 << 20)


# Reports

def test_snapshots_report_what_they_contain():
    with Sandbox() as box:
        origin = Asked.begin(box, "x = 1")
        at = box.snapshot("with")
        node = next(node for node in box.tree() if node.id == at.id)
        assert (node.processes, node.memory_bytes) == (1, at.memory_bytes) and "1 process, " in str(box.tree())
        row = next(row for row in box.inspect()["execs"])
        assert row["state"] == "running" and row["command"].startswith("python3")
        assert origin("x") == "1"


def test_paused_session_is_snapshotted_and_stays_paused():
    with Sandbox() as box:
        origin = Asked.begin(box, "x = 1")
        box.pause()
        at = box.snapshot()
        assert at.processes == 1 and box.inspect()["state"] == "paused"
        until(lambda: box.processes()[0]["state"] == "T")
        box.resume()
        assert origin("x") == "1"
        with closing(box.fork(1, snapshot=at)) as kids:
            assert origin.of(kids[0])("x") == "1"


def test_dropped_snapshot_cannot_be_used():
    with Sandbox() as box:
        origin = Asked.begin(box, "x = 1")
        at = box.snapshot()
        box.snapshot(processes="drop")
        box.drop(at)
        with pytest.raises(NotFound):
            box.fork(1, snapshot=at)
        assert origin("x") == "1"


def test_checkpoints_work_with_asyncio():
    async def line(stream):
        text = b""
        while not text.endswith(b"\n"):
            text += await stream.read(1)
        return text

    async def go():
        async with AsyncSandbox() as box:
            process = await box.spawn([*PYTHON, ANSWERER])
            await process.stdin.write(b"x = 5\n")
            assert await line(process.stdout) == b"done\n"
            at = await box.snapshot()
            kids = await box.fork(2)
            for kid in kids:
                copy = await kid.process(process.id)
                await copy.stdin.write(b"x + 1\n")
                assert await line(copy.stdout) == b"6\n"
                await kid.reset(at)
                assert len(await kid.processes()) == 1
                await kid.reset(at, processes="drop")
                assert not await kid.processes()
                await kid.close()
            shell = await box.shell()
            await shell.run("x=3")
            kid, = await box.fork()
            async with await kid.shell(shell.id) as copy:
                assert (await copy.run("echo $x", text=True)).stdout == "3\n"
            await kid.close()

    asyncio.run(go())


# Nothing is left

def counts(engine):
    fds = [os.readlink(entry) for entry in Path(f"/proc/{engine.pid}/fd").iterdir() if entry.is_symlink()]
    return len(fds), sum("memfd" in fd for fd in fds), len(Path(f"/proc/{engine.pid}/task/{engine.pid}/children").read_text().split())


@pytest.mark.long
def test_many_rounds_leave_nothing():
    with Engine() as engine, Sandbox(engine=engine) as box:
        origin = Asked.begin(box, "x = 0")
        before = []
        for i in range(repeat_count(100, 40, 1000)):
            if i % 3 == 0:
                at = box.snapshot()
                box.drop(at)
            with closing(box.fork(2)) as kids:
                assert origin.of(kids[i % 2])("x") == "0"
            if i >= 20:
                # What is done in the background ends some time.
                if not before:
                    before = counts(engine)
        until(lambda: all(now <= then for now, then in zip(counts(engine), before)))
        assert origin("x") == "0"


STOPPER = """
import ctypes, os, select, signal, subprocess
libc = ctypes.CDLL(None, use_errno=True)
nothing, events = select.epoll(), ctypes.create_string_buffer(12)
child = subprocess.Popen(["sleep", "1000"])
os.kill(child.pid, signal.SIGSTOP)
os.waitpid(child.pid, os.WUNTRACED)
print("stopped", flush=True)
assert libc.epoll_wait(nothing.fileno(), events, 1, -1) == -1       # EINTR: the process was paused and resumed
os.kill(child.pid, signal.SIGCONT)
print("resumed", flush=True)
child.wait()
"""


def test_briefly_stopped_process_is_waited_for():
    with Sandbox() as box:
        process = box.spawn([*PYTHON, STOPPER])
        assert process.stdout.readline() == b"stopped\n"
        taken = box.snapshot()
        assert process.stdout.readline() == b"resumed\n"
        assert sorted(row["name"] for row in box.show(taken)["processes"]) == ["python3", "sleep"]
        with box.fork(1, snapshot=taken)[0] as kid:
            assert kid.process(process.id)


def test_mappings_with_holes_between_them_stay_separate():
    """Small pieces of memory that are near each other are one mapping on the way (guest/restore/load.c): in the copy they end where they did, what is between them is not there, and what must not be written to is not."""
    protected, first, file, second, beside = 0, 2, 4, 8, 9      # pages; 0 may be read alone
    with Sandbox() as box:
        guest = Asked.begin(
            box, "import ctypes, os", "libc = ctypes.CDLL(None, use_errno=True)", "libc.mmap.restype = ctypes.c_void_p", "libc.mmap.argtypes, libc.mprotect.argtypes, libc.munmap.argtypes = ([ctypes.c_long] * n for n in (6, 3, 2))",
            "whole = libc.mmap(0, 4 << 20, 0, 0x22, -1, 0)", "at = (whole + (2 << 20) - 1) // (2 << 20) * (2 << 20)", "assert libc.munmap(whole, 4 << 20) == 0",
            "place = lambda page, n=1, fd=-1: libc.mmap(at + page * 4096, n * 4096, 1 if fd >= 0 else 3, 0x12 if fd >= 0 else 0x32, fd, 0)",
            f"placed = [place(page) for page in ({protected}, {first}, {second}, {beside})]", f"place({file}, 2, os.open('/bin/sh', os.O_RDONLY)) == at + {file} * 4096",
            "[ctypes.memset(page, 65 + n, 4096) for n, page in enumerate(placed)]", f"libc.mprotect(at + {protected} * 4096, 4096, 1)", f"libc.mprotect(at + {beside} * 4096, 4096, 0)",
            "maps = lambda: [line.split()[:2] for line in open('/proc/self/maps') if at <= int(line.split('-')[0], 16) < at + (1 << 20)]",
            "contents = lambda: [ctypes.string_at(page, 4096) == bytes([65 + n]) * 4096 for n, page in enumerate(placed[:3])]",
            """exec("def ends(page):\\n pid = os.fork()\\n if not pid:\\n  ctypes.memset(at + page * 4096, 1, 1); os._exit(0)\\n return os.waitpid(pid, 0)[1]")""")
        asked = ["maps()", "contents()", *(f"ends({page})" for page in range(11))]
        before = [guest(question) for question in asked]
        assert before[1] == "[True, True, True]" and [page for page in range(11) if before[2 + page] == "0"] == [first, second], before
        with closing(box.fork(2)) as kids:
            for kid in kids:
                copied = guest.of(kid)
                assert [copied(question) for question in asked] == before


@pytest.mark.parametrize("how", ["reset", "close"])
def test_discarded_box_does_not_see_end_of_input(tmp_path, how):
    """Those of a struck sandbox die of its init's end; who was woken by the end of its input before that ran for as long as it liked, when others waited for the processor."""
    tmp_path.chmod(0o777)
    with Sandbox(Policy(fs_shared=[str(tmp_path)])) as box:
        process = box.spawn([*PYTHON, f"import sys; print('ready', flush=True); sys.stdin.read(); open('{tmp_path}/woken', 'w')"])
        assert process.stdout.readline() == b"ready\n"
        state = box.snapshot()
        if how == "reset":
            for _ in range(repeat_count(20, 5, 200)):
                box.reset(state)
        else:
            for _ in range(repeat_count(20, 5, 200)):
                for kid in box.fork(2, snapshot=state):
                    kid.close()
        assert not (tmp_path / "woken").exists()


# A timer expires once while the process waits for it; if all processes are paused just then, its signal is pending.
# A tenth of a second: if it expires before the wait begins, because of load or a pause, this program itself waits for ever.
RINGS = """
import ctypes, os, signal
rung, libc, pair, byte = [], ctypes.CDLL(None), os.pipe(), ctypes.create_string_buffer(1)
signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
print("ready", flush=True)
for _ in range(10):
    signal.setitimer(signal.ITIMER_REAL, 0.25)
    {}
assert len(rung) == 10, len(rung)
"""


@pytest.mark.parametrize("wait", ["libc.pause()", "libc.select(0, None, None, None, None)", "libc.read(pair[0], byte, 1)"])
def test_signal_during_a_dump_ends_a_wait(wait):
    """Made again after the signal was handled, it waited for ever, here and in copies."""
    with Sandbox() as box:
        process = box.spawn(["python3", "-I", "-c", RINGS.format(wait)])
        assert process.stdout.readline() == b"ready\n"
        kids = []
        while process.poll() is None and len(kids) < 6:
            for _ in range(6):
                box.snapshot()
            kids += box.fork(1)
        with closing(kids):
            for one in [process, *(kid.process(process.id) for kid in kids)]:
                result = one.wait(30)
                assert result.exit_code == 0, result.stderr


# The timers expire one after the other, each once; their signals are pending until the test asks for their count.
EXPIRES = """
import ctypes, sys
libc, number, clock, never = ctypes.CDLL(None), 40, 1, (ctypes.c_long * 2)()

class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_long), ("signal", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_char * 48)]

signals, timers, info = (ctypes.c_ulong * 16)(1 << number - 1), [], (ctypes.c_int * 32)()
libc.sigprocmask(0, signals, None)
for i in range(200):
    timers.append(ctypes.c_void_p())
    assert libc.timer_create(clock, ctypes.byref(Event(i, number)), ctypes.byref(timers[i])) == 0
for i, timer in enumerate(timers):
    assert libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, 0, 5000000 + i * 500000), None) == 0
print("ready", flush=True)
sys.stdin.readline()
expired = [0] * len(timers)
while 0 in expired:
    assert libc.sigwaitinfo(signals, info) == number
    expired[info[6]] += 1
while libc.sigtimedwait(signals, info, never) == number:
    expired[info[6]] += 1
print(max(expired), flush=True)
"""


def test_timer_that_expires_during_a_dump_expires_once():
    """Asked what was left when that was something still, and for its signals when one waited, its copy got it twice."""
    with Sandbox() as box:
        process = box.spawn(["python3", "-I", "-c", EXPIRES])
        assert process.stdout.readline() == b"ready\n"
        with closing([kid for _ in range(8) for kid in box.fork(1)]) as kids:
            for one in [process, *(kid.process(process.id) for kid in kids)]:
                one.stdin.write(b"\n")
                one.stdin.close()
                assert one.stdout.readline() == b"1\n", one.wait(30).stderr
