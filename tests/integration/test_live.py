# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: processes and files together, in snapshots, forks and resets.

The model: a guest that keeps its state in memory alone answers questions line by line (`Asked`);
what it answers in a fork, or after a reset, says
whether it is the one that was captured. make check runs this file as root and as an ordinary user.
"""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from rollbox import (
    AsyncSandbox,
    Cancelled,
    Engine,
    FeatureMissing,
    InvalidArgument,
    NotFound,
    Outcome,
    Policy,
    ResourceExhausted,
    Sandbox,
)
from harness import children, groups_of, repeat_count, skip, until
from asked import ANSWERER, PYTHON, Asked, closing, process_state, restorer, sh  # noqa: F401


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
            assert (
                origin.of(grandchild)(
                    "[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]"
                )
                == "[-9, -15, 5]"
            )


@pytest.mark.long
def test_many_sessions_do_not_load_the_engine():
    """The engine polls the memory of sandboxes without a cgroup. With any number of idle sessions
    this takes a bounded part of its time, about a third."""

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
            assert {one("os.getpid()") for one in asked} == {origin("os.getpid()")}, (
                "pids inside are those of the origin"
            )


def test_many_forks_in_a_row_use_the_same_groups():
    """Groups of sandboxes that ended are looked over each second, and those that are ending still
    have theirs: so not each round finds all of them."""

    def groups():
        return {
            name
            for top in groups_of(engine.pid)
            for name in os.listdir(top)
            if os.path.isdir(os.path.join(top, name))
        }

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
            host = {row["host_pid"] for kid in kids for row in kid.processes()} | {
                row["host_pid"] for row in box.processes()
            }
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
    """The fork's copy of a process object needs no request for its properties, only for whether it
    runs and whether its input is taken."""
    with Sandbox() as box:
        origin = Asked.begin(box, "import sys")
        with closing(box.fork(2)) as kids:
            runs, ends = (origin.of(kid) for kid in kids)
            again = kids[0].process(origin.id)
            assert again.stdin is None, "another client has it"
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
    """By then the kernel continues it as restart_syscall, which hides the original call."""
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
        with closing(
            [
                *box.fork(1, processes="drop"),
                *box.fork(1, snapshot=full, processes="drop"),
                *box.fork(1, snapshot=files),
            ]
        ) as kids:
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
        line = box.spawn(
            [
                "sh",
                "-c",
                "cat | sed -u 's/^/one: /' | (n=0; while read -r line; do n=$((n + 1)); echo \"$n $line\"; done)",
            ]
        )
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
        process = box.spawn(
            [
                *PYTHON,
                "n = 0\nwhile True:\n    n += 1\n    if n % 100000 == 0: print(f'{n}\\n', end='', flush=True)",
            ]
        )
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
            assert (
                copy.run(
                    "echo $jobs; echo hello >&${COPROC[1]}; read -r said <&${COPROC[0]}; echo $said",
                    text=True,
                ).stdout
                == "2\nhello\n"
            )
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
                assert (
                    "python3" in str(caught.value)
                    and "O_PATH" in str(caught.value)
                    and 'processes="drop"' in str(caught.value)
                )
            assert (
                len(box.tree()) == before
                and origin("x") == "1"
                and other("os.readlink(f'/proc/self/fd/{fd}')") == "'/tmp'"
            )
            assert box.snapshot(processes="drop").processes == 0
            box.fork(1, processes="drop")[0].close()
        assert box.snapshot().processes == 1


@pytest.mark.parametrize(
    "state, problem, why, after",
    [
        (
            "open('/tmp/w/new', 'w').close()",
            ResourceExhausted,
            "unread inotify events",
            "os.read(fd, 1000) and None",
        ),
        (
            "f = open('/tmp/w/gone', 'w'); l.inotify_add_watch(fd, b'/tmp/w/gone', 2); os.unlink('/tmp/w/gone'); os.read(fd, 1000)",
            FeatureMissing,
            "inotify watch 2 .*was not found",
            "f.close()",
        ),
        (
            "[l.inotify_rm_watch(fd, l.inotify_add_watch(fd, b'/tmp', 2)) for _ in range(65536)]; os.read(fd, 1 << 20); l.inotify_add_watch(fd, b'/tmp', 2)",
            FeatureMissing,
            "too many",
            "os.close(fd)",
        ),
    ],
)
def test_watches_that_are_refused(state, problem, why, after):
    with Sandbox() as box:
        origin = Asked.begin(
            box,
            "import ctypes, os; l = ctypes.CDLL(None); os.mkdir('/tmp/w'); fd = l.inotify_init(); l.inotify_add_watch(fd, b'/tmp/w', 0x300)",
            f"{state}; x = 1",
        )
        with pytest.raises(problem, match=why):
            box.snapshot()
        assert origin("x") == "1" and origin(after) == "None"
        if "gone" in state:
            assert origin("os.read(fd, 1000) and None") == "None"
        box.snapshot()


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
    return (
        len(fds),
        sum("memfd" in fd for fd in fds),
        len(Path(f"/proc/{engine.pid}/task/{engine.pid}/children").read_text().split()),
    )


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
    """Small pieces of memory that are near each other are one mapping on the way
    (guest/restore/load.c): in the copy they end where they did, what is between them is not there,
    and what must not be written to is not."""
    protected, first, file, second, beside = 0, 2, 4, 8, 9      # pages; 0 may be read alone
    with Sandbox() as box:
        guest = Asked.begin(
            box,
            "import ctypes, os",
            "libc = ctypes.CDLL(None, use_errno=True)",
            "libc.mmap.restype = ctypes.c_void_p",
            "libc.mmap.argtypes, libc.mprotect.argtypes, libc.munmap.argtypes = ([ctypes.c_long] * n for n in (6, 3, 2))",
            "whole = libc.mmap(0, 4 << 20, 0, 0x22, -1, 0)",
            "at = (whole + (2 << 20) - 1) // (2 << 20) * (2 << 20)",
            "assert libc.munmap(whole, 4 << 20) == 0",
            "place = lambda page, n=1, fd=-1: libc.mmap(at + page * 4096, n * 4096, 1 if fd >= 0 else 3, 0x12 if fd >= 0 else 0x32, fd, 0)",
            f"placed = [place(page) for page in ({protected}, {first}, {second}, {beside})]",
            f"place({file}, 2, os.open('/bin/sh', os.O_RDONLY)) == at + {file} * 4096",
            "[ctypes.memset(page, 65 + n, 4096) for n, page in enumerate(placed)]",
            f"libc.mprotect(at + {protected} * 4096, 4096, 1)",
            f"libc.mprotect(at + {beside} * 4096, 4096, 0)",
            "maps = lambda: [line.split()[:2] for line in open('/proc/self/maps') if at <= int(line.split('-')[0], 16) < at + (1 << 20)]",
            "contents = lambda: [ctypes.string_at(page, 4096) == bytes([65 + n]) * 4096 for n, page in enumerate(placed[:3])]",
            """exec("def ends(page):\\n pid = os.fork()\\n if not pid:\\n  ctypes.memset(at + page * 4096, 1, 1); os._exit(0)\\n return os.waitpid(pid, 0)[1]")""",
        )
        asked = ["maps()", "contents()", *(f"ends({page})" for page in range(11))]
        before = [guest(question) for question in asked]
        assert before[1] == "[True, True, True]" and [
            page for page in range(11) if before[2 + page] == "0"
        ] == [first, second], before
        with closing(box.fork(2)) as kids:
            for kid in kids:
                copied = guest.of(kid)
                assert [copied(question) for question in asked] == before


@pytest.mark.parametrize("how", ["reset", "close"])
def test_discarded_box_does_not_see_end_of_input(tmp_path, how):
    """The processes of a killed box end with its init. One that saw the end of its input before
    that once ran on, while others waited for the processor."""
    tmp_path.chmod(0o777)
    with Sandbox(Policy(fs_shared=[str(tmp_path)])) as box:
        process = box.spawn(
            [
                *PYTHON,
                f"import sys; print('ready', flush=True); sys.stdin.read(); open('{tmp_path}/woken', 'w')",
            ]
        )
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
# A tenth of a second: if it expires before the wait begins, because of load or a pause, this
# program itself waits for ever.
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


@pytest.mark.parametrize(
    "wait",
    ["libc.pause()", "libc.select(0, None, None, None, None)", "libc.read(pair[0], byte, 1)"],
)
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
