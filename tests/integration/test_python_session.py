# SPDX-License-Identifier: Apache-2.0
"""Sessions in Python: their life cycle, commands, processes, streams, snapshots and forks, blocking
and with asyncio."""

import asyncio
import gc
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading

import pytest

import rollbox
from rollbox import (
    AsyncSandbox,
    Cancelled,
    CommandNotFound,
    Engine,
    EngineLost,
    InvalidArgument,
    NotFound,
    Outcome,
    Policy,
    RunFailed,
    Sandbox,
)
from harness import BUILD, DEADLINE, pidfds, serves, until, wait_gone

PYTHON = ["python3", "-I", "-S", "-c"]


@pytest.fixture
def box():
    with Sandbox() as box:
        yield box


def names(engine=None):
    return {one["name"] for one in (engine or rollbox.default_engine()).sandboxes()}


def commands_of(box):
    """Its processes but for the one of ours that serves file calls."""
    return [one["command"] for one in box.processes() if not one["command"].startswith("rollbox-")]


# Life

def test_commands_see_files_of_earlier_commands(box):
    assert box.exec("cd /tmp && echo one >f && pwd", text=True).stdout == "/tmp\n"
    assert box.exec(["cat", "/tmp/f"]).stdout == b"one\n"
    assert box.run(["cat", "/tmp/f"]).stdout == b"one\n", "in an open session run acts in it"
    assert Sandbox().run(["cat", "/tmp/f"]).exit_code == 1, "without one it is for a fresh sandbox"


def test_session_starts_with_the_first_call_and_ends_once():
    box = Sandbox()
    before = names()
    assert box.run(["true"]).ok and names() == before
    box.exec(["true"])
    assert box.name in names()
    name = box.name
    box.close()
    box.close()
    assert name not in names()
    with pytest.raises(NotFound, match="closed"):
        box.exec(["true"])
    assert box.run(["true"]).ok
    with box:
        assert box.exec(["true"]).ok and box.name != name


def test_unstarted_session_can_be_closed():
    Sandbox().close()


def test_session_ends_with_its_last_reference():
    box = Sandbox()
    name = box.name
    del box
    gc.collect()
    assert name not in names()


def test_session_ends_with_its_block_and_by_an_exception():
    with pytest.raises(ZeroDivisionError):
        with Sandbox(name="to-fail") as box:
            assert box.name == "to-fail" and "to-fail" in names()
            1 / 0
    assert "to-fail" not in names()


def test_name_is_unique(box):
    with pytest.raises(InvalidArgument):
        Sandbox(name=box.name).exec(["true"])
    for name in ("", "a b", "a/b", "x" * 65):
        with pytest.raises(InvalidArgument, match="name"):
            Sandbox(name=name).exec(["true"])
    with pytest.raises(InvalidArgument):
        Sandbox(name=3)


def test_open_by_name(box):
    box.write_file("/tmp/f", b"data")
    with Sandbox.open(box.name) as other:
        assert other.read_file("/tmp/f") == b"data" and other.name == box.name
    assert box.exec(["true"]).ok, "leaving one that was opened does not end it"
    with pytest.raises(NotFound):
        Sandbox.open("no-such-sandbox")
    Sandbox.open(box.name).close()
    with pytest.raises(NotFound):
        box.exec(["true"])


def test_pickling(box):
    assert pickle.loads(pickle.dumps(Sandbox(Policy(max_memory="64M"), ttl=5))).policy.max_memory == "64M"
    with pytest.raises(TypeError, match="session"):
        pickle.dumps(box)


def test_close_under_a_running_command(box):
    errors = []

    def wait():
        try:
            box.exec(["sleep", "86379"])
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: any(one["state"] == "running" for one in box.inspect()["execs"]))
    box.close()
    thread.join(DEADLINE)
    assert [type(error) for error in errors] == [Cancelled]


def test_many_threads_on_one_box(box):
    results = []
    threads = [
        threading.Thread(target=lambda i=i: results.append(int(box.exec(["echo", str(i)]).stdout)))
        for i in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(results) == list(range(40))


def test_closing_the_engine_closes_its_sandboxes():
    engine = Engine()
    box = Sandbox(engine=engine)
    process = box.spawn(["sleep", "86378"])
    shell = box.shell()
    shell.run("x=1")
    gone = pidfds([engine.pid])
    engine.close()
    wait_gone(gone, "the engine, though a Process and a Shell are still referred to,")
    for call in (
        lambda: box.exec(["true"]),
        lambda: process.wait(5),
        lambda: shell.run("true"),
        lambda: box.snapshot(),
    ):
        with pytest.raises(EngineLost):
            call()
    box.close()


def test_killed_engine_is_survived():
    engine = Engine()
    box = Sandbox(engine=engine)
    box.exec(["true"])
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineLost):
        box.exec(["true"])
    with pytest.raises(EngineLost):
        box.exec(["true"])
    box.close()
    with Sandbox(engine=engine) as other:
        assert other.exec(["true"]).ok
    engine.close()


def test_fork_of_the_process(box):
    """A forked child has no part in its parent's sessions, and does not end them."""
    box.write_file("/tmp/f", b"x")
    shell = box.shell()
    shell.run("kept=1")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            try:
                box.exec(["true"])
            except EngineLost:
                with Sandbox() as own:
                    status = 0 if own.exec(["true"]).ok else 2
            box.close()
            del box, shell
            gc.collect()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert box.read_file("/tmp/f") == b"x" and shell.run("echo $kept").stdout == b"1\n"


def test_at_exit_nothing_is_left_and_nothing_hangs():
    code = """if True:
        from rollbox import Sandbox
        box = Sandbox(); box.exec(["true"])
        process = box.spawn(["sleep", "86377"]); shell = box.shell(); shell.run("sleep 86377 &")
        kids = box.fork(2); stream = box.stream(["sleep", "86377"])
        print(box._session().connection.pid, flush=True)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    wait_gone(pidfds([int(done.stdout)]) if pathlib.Path("/proc", done.stdout.strip()).exists() else {}, "the engine")


# exec

def test_arguments_of_exec(box):
    result = box.exec(
        ["sh", "-c", "cat; pwd; echo $A; cat f"],
        cwd="/usr/../tmp",
        env={"A": "é"},
        input="in\n",
        files={"f": b"file\n"},
        text=True,
    )
    assert result.ok and result.stdout == "in\n/tmp\né\nfile\n"
    with pytest.raises(InvalidArgument, match="stdin and input"):
        box.exec(["true"], stdin=b"", input=b"")
    with pytest.raises(RunFailed):
        box.exec(["false"], check=True)
    with pytest.raises(CommandNotFound):
        box.exec(["no-such-program"])
    with pytest.raises(rollbox.BadCwd):
        box.exec(["true"], cwd="/nonexistent")
    assert box.exec(["id", "-u"], user="box").stdout == box.exec(["id", "-u"]).stdout
    with pytest.raises(rollbox.RollboxError):
        box.exec(["true"], user="nobody-of-that-name")


def test_string_is_run_by_a_login_shell(box):
    assert box.exec("echo $0; shopt -q login_shell && echo login", text=True).stdout == "bash\nlogin\n"
    assert box.exec("exit 5").exit_code == 5


def test_string_works_without_bash(box, monkeypatch):
    monkeypatch.setattr(box, "_shell", "sh")
    assert box.exec("echo $0", text=True).stdout == "sh\n"


def test_timeout_ends_this_command_and_nothing_else(box):
    other = box.spawn(["sleep", "86376"])
    result = box.exec("echo begun; sleep 86375 & sleep 86375", timeout=2)
    assert (result.outcome, result.exit_code, result.stdout) == (Outcome.TIMEOUT, None, b"begun\n")
    until(lambda: not any("86375" in command for command in commands_of(box)))
    assert any("86376" in command for command in commands_of(box))
    assert other.poll() is None
    other.kill()
    assert other.wait(DEADLINE).signal == signal.SIGKILL


def test_output_limit(box):
    result = box.exec("while :; do echo yyyyyyyyyyyyy; done", max_output=1000)
    assert result.outcome is Outcome.OUTPUT_LIMIT and len(result.stdout) == 1000
    assert box.exec(["true"]).ok


def test_background_processes_stay_between_commands(box):
    pid = int(box.exec("nohup sleep 86374 >/dev/null 2>&1 & echo $!").stdout)
    assert box.exec(["kill", "-0", str(pid)]).ok


def test_same_id_returns_the_same_result(box):
    first = box.exec(["sh", "-c", "echo once >>/tmp/log; cat /tmp/log"], id="step-1")
    assert box.exec(["sh", "-c", "echo once >>/tmp/log; cat /tmp/log"], id="step-1").stdout == first.stdout == b"once\n"


def test_interrupt_ends_the_command(box):
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(KeyboardInterrupt):
            box.exec(["sleep", "86373"])
    finally:
        signal.signal(signal.SIGUSR1, before)
    until(lambda: not any("86373" in one["command"] for one in box.processes()))
    assert box.exec(["true"]).ok


# Streams

def test_output_comes_while_it_runs(box):
    stream = box.stream(
        "echo one; read x </tmp/go || until [ -e /tmp/go ]; do sleep 0.01; done; echo two >&2; exit 3",
        text=True,
    )
    assert next(stream) == ("stdout", "one\n")
    box.write_file("/tmp/go", b"x")
    rest = list(stream)
    assert "".join(data for name, data in rest if name == "stderr").endswith("two\n")
    assert stream.result.exit_code == 3 and stream.result.stdout == "one\n"
    with box.exec(["true"], stream=True, id="by-name") as stream:
        assert stream.id == "by-name" and stream.result.ok and box.process("by-name").wait(DEADLINE).ok


def test_stream_of_split_characters_is_decoded(box):
    pieces = [
        data
        for _, data in box.exec(
            ["sh", "-c", r"printf '\303'; sleep 0.05; printf '\251\n'"], stream=True, text=True
        )
    ]
    assert "".join(pieces) == "é\n"


def test_stream_raises_at_its_end(box):
    with pytest.raises(CommandNotFound):
        list(box.stream(["no-such-program"]))
    stream = box.stream("echo x; exit 2", check=True)
    with pytest.raises(RunFailed):
        for _ in stream:
            pass
    assert stream.result.exit_code == 2


def test_closing_a_stream_ends_its_command(box):
    with box.stream("echo begun; sleep 86372") as stream:
        assert next(stream) == ("stdout", b"begun\n")
    until(lambda: not any("86372" in one["command"] for one in box.processes()))
    with pytest.raises(InvalidArgument, match="closed"):
        stream.result
    stream = box.stream("sleep 86371")
    until(lambda: any("86371" in one["command"] for one in box.processes()))
    del stream
    gc.collect()
    until(lambda: not any("86371" in one["command"] for one in box.processes()))


def test_much_streamed_output(box):
    total = sum(len(data) for _, data in box.stream(["head", "-c", "8000000", "/dev/zero"]))
    assert total == 8000000
    assert box.stream(["head", "-c", "300000", "/dev/zero"]).result.stdout == bytes(300000), "chunks need not be taken"


# Processes

def test_spawn(box):
    with box.spawn(["sh", "-c", "read x; echo got $x; echo err >&2; exit 4"]) as process:
        assert process.poll() is None
        with pytest.raises(TimeoutError):
            process.wait(0.05)
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        assert process.stdout.read() == b"got hello\n" and process.stderr.read() == b"err\n"
        result = process.wait(DEADLINE)
        assert (result.exit_code, result.stdout, result.stderr) == (4, b"got hello\n", b"err\n")
        assert process.poll() == result


def test_spawn_with_its_input(box):
    process = box.spawn(["cat"], stdin="text", text=True)
    assert process.stdin is None and process.wait(DEADLINE).stdout == "text"
    with pytest.raises(CommandNotFound):
        box.spawn(["no-such-program"]).wait(DEADLINE)


def test_kill_with_scopes(box):
    process = box.spawn("trap 'echo caught; exit 9' TERM; sleep 86370 & echo $!; wait")
    child = process.stdout.readline().decode().strip()
    process.kill(signal.SIGTERM, scope="main")
    assert process.wait(DEADLINE).exit_code == 9
    assert box.exec(["kill", "-0", child]).ok, "only the main process was signalled"
    process = box.spawn("sleep 86369; echo on")
    until(lambda: any("sleep 86369" == one["command"] for one in box.processes()))
    process.kill(signal.SIGKILL, scope="children")
    assert process.wait(DEADLINE).stdout == b"on\n"
    process.kill()
    with pytest.raises(InvalidArgument, match="scope"):
        process.kill(scope="all")


def test_process_outlives_its_object_and_is_found_again(box):
    id = box.spawn("echo begun; until [ -e /tmp/end ]; do sleep 0.01; done; echo ended; exit 6").id
    gc.collect()
    found = box.process(id)
    assert found.stdout.readline() == b"begun\n"
    box.write_file("/tmp/end", b"")
    assert found.wait(DEADLINE).exit_code == 6 and found.stdout.read() == b"ended\n"
    late = box.process(id, text=True)
    assert late.wait(DEADLINE).stdout == "begun\nended\n" and late.stdout.read() == b"begun\nended\n"
    with pytest.raises(NotFound):
        box.process("no-such-command").wait(DEADLINE)


def test_leaving_the_block_of_a_process_kills_it(box):
    with box.spawn("sleep 86368 & sleep 86368"):
        until(lambda: sum("sleep 86368" == one["command"] for one in box.processes()) == 2)
    until(lambda: not any("86368" in one["command"] for one in box.processes()))


def test_terminal_works(box):
    with box.spawn(["sh"], pty=(30, 90)) as process:
        assert process.stderr is None
        process.stdin.write(b"stty -echo; stty size; tty; test -t 1 && echo is-'one'\n")
        process.stdin.flush()
        seen = b""
        while b"is-one\r\n" not in seen:
            seen += process.stdout.read1(4096)
        assert b"30 90" in seen and b"/dev/pts/" in seen
        process.resize(40, 100)
        process.stdin.write(b"stty size; sleep 86367\n")
        process.stdin.flush()
        while b"40 100" not in seen:
            seen += process.stdout.read1(4096)
        until(lambda: any("86367" in one["command"] for one in box.processes()))
        process.stdin.write(b"\x03echo back; exit 5\n")
        process.stdin.flush()
        assert process.wait(DEADLINE).exit_code == 5
    with pytest.raises(InvalidArgument):
        box.spawn(["true"], pty=(0, 1))


def test_resize_before_it_has_begun(box):
    with box.spawn(
        ["sh", "-c", "until [ $(stty size | cut -d' ' -f1) = 50 ]; do sleep 0.01; done; echo yes"],
        pty=True,
    ) as process:
        process.resize(50, 50)
        assert b"yes" in process.wait(DEADLINE).stdout
    with box.spawn(["cat"]) as process:
        with pytest.raises(InvalidArgument, match="terminal"):
            process.resize(10, 10)


# Snapshots of files

def test_snapshot_fork_reset(box):
    box.write_file("/tmp/repo/f", "0")
    base = box.snapshot("base")
    assert base.name == "base" and base.id != "base" and base.files >= 1 and not base.live
    box.write_file("/tmp/repo/f", "1")
    box.write_file("/tmp/repo/g", "1")
    kids = box.fork(3)
    try:
        for i, kid in enumerate(kids):
            assert kid.read_file("/tmp/repo/f") == b"1"
            kid.write_file("/tmp/repo/f", f"kid {i}")
        assert [kid.exec("cat /tmp/repo/f", text=True).stdout for kid in kids] == ["kid 0", "kid 1", "kid 2"]
        assert box.read_file("/tmp/repo/f") == b"1"
        old, = box.fork(snapshot=base)
        with old:
            assert old.read_file("/tmp/repo/f") == b"0" and not old.exists("/tmp/repo/g")
        sleeper = kids[0].spawn(["sleep", "86366"])
        kids[0].reset("base")
        with pytest.raises(Cancelled):
            sleeper.wait(DEADLINE)
        assert kids[0].read_file("/tmp/repo/f") == b"0" and commands_of(kids[0]) == []
        box.reset(base.id)
        assert box.read_file("/tmp/repo/f") == b"0" and not box.exists("/tmp/repo/g")
    finally:
        for kid in kids:
            kid.close()
    with pytest.raises(InvalidArgument):
        box.fork(0)
    with pytest.raises(NotFound):
        box.reset("no-such-snapshot")


def test_snapshot_under_a_running_process(box):
    box.spawn("i=0; while :; do i=$((i+1)); echo $i >/tmp/m; mv /tmp/m /tmp/n; done")
    until(lambda: box.exists("/tmp/n"))
    state = box.snapshot(processes="drop")
    assert state.live and not state.processes
    kid, = box.fork(snapshot=state)
    with kid:
        assert commands_of(kid) == [] and kid.read_file("/tmp/n").strip().isdigit()
    state = box.snapshot()
    assert state.live and state.processes
    kid, = box.fork(snapshot=state)
    with kid:
        until(lambda: commands_of(kid)[:1] == commands_of(box)[:1])


def test_file_written_right_after_a_snapshot_is_in_the_next():
    """The engine once took its mark of an unwritten box after the first file call had been served in it."""
    for _ in range(40):
        with Sandbox() as box:
            box.write_file("/tmp/a", "a")
            one = box.snapshot()
            box.write_file("/tmp/b", "b")
            two = box.snapshot()
            assert one.id != two.id
            assert {change.path for change in box.diff(one, two)} == {"/tmp/b"}


def test_discard(box):
    box.snapshot()
    box.write_file("/tmp/f", "x")
    box.discard()
    assert not box.exists("/tmp/f")


def test_tree(box):
    box.write_file("/tmp/a", "a")
    one = box.snapshot("one")
    kid, = box.fork()
    with kid:
        kid.write_file("/tmp/b", "b")
        two = kid.snapshot("two")
        tree = box.tree()
        assert {one.id, two.id} <= {node.id for node in tree}
        order = [node.id for node in tree]
        assert all(node.parent is None or order.index(node.parent) < order.index(node.id) for node in tree)
        drawn = str(tree)
        assert f'{one.id} "one"' in drawn and f'`-- {two.id} "two"' in drawn and kid.name in drawn


def test_deep_tree_is_drawn(box):
    nodes = [rollbox.Node(f"s{i}", None, f"s{i - 1}" if i else None, 1 << (i % 40), i, None, ()) for i in range(3000)]
    assert len(str(rollbox.Tree(nodes)).splitlines()) == 3000


def test_diff_of_states(box):
    box.exec("mkdir /tmp/d && echo a >/tmp/d/gone && echo b >/tmp/d/changed", check=True)
    base = box.snapshot()
    box.exec("cd /tmp/d && rm gone && echo bb >changed && echo new >new", check=True)
    changes = {change.path: change for change in box.diff(base)}
    assert {path: changes[path].change for path in ("/tmp/d/gone", "/tmp/d/changed", "/tmp/d/new")} == {
        "/tmp/d/gone": "D", "/tmp/d/changed": "M", "/tmp/d/new": "A"}
    assert (
        changes["/tmp/d/new"].size == 4
        and changes["/tmp/d/new"].type == "file"
        and changes["/tmp/d/changed"].old_size == 2
    )
    assert box.diff(base, base) == []
    text = {change.path: change.diff for change in box.diff(base, text=True)}
    assert "+bb" in text["/tmp/d/changed"] and "-b" in text["/tmp/d/changed"]


def changed(changes):
    return {change.path: change.change for change in changes}


def test_diff_of_unrelated_snapshots(tmp_path):
    """Any two: such as those that were taken while something ran, or of two branches, or a state
    and what was made of it."""
    os.chmod(tmp_path, 0o755)
    work = tmp_path / "work"
    (work / "untouched").mkdir(parents=True)
    for name in ("written", "removed", "untouched/file"):
        (work / name).write_text("host\n")
    with Sandbox(Policy(fs_writable=[work])) as box:
        box.exec("mkdir -p /tmp/old/in /tmp/kept; echo 1 >/tmp/kept/f; echo o >/tmp/old/in/o", check=True)
        box.spawn(["sleep", "1000"])
        before = box.snapshot()
        assert before.live
        box.exec(
            f"rm -r /tmp/old {work}/removed; mkdir /tmp/old; echo x >>{work}/written; echo n >/tmp/kept/new",
            check=True,
        )
        expected = {
            "/tmp/old/in": "D",
            "/tmp/old/in/o": "D",
            "/tmp/kept/new": "A",
            f"{work}/removed": "D",
            f"{work}/written": "M",
        }
        assert changed(box.diff(before)) == expected
        after = box.snapshot()
        assert changed(box.diff(before, after)) == expected
        assert changed(box.diff(after, before)) == {
            path: {"A": "D", "D": "A", "M": "M"}[change] for path, change in expected.items()
        }
        assert "+x" in {change.path: change.diff for change in box.diff(before, after, text=True)}[f"{work}/written"]
        assert {row["path"]: row["change"] for row in box.show(after)["changes"]} == expected
        box.reset(before, processes="drop")
        box.exec("echo 2 >/tmp/kept/f", check=True)
        branch = box.snapshot()
        assert changed(box.diff(before, branch)) == {"/tmp/kept/f": "M"}
        assert changed(box.diff(branch, before)) == {"/tmp/kept/f": "M"}
        assert changed(box.diff(after, branch)) == {
            "/tmp/kept/f": "M",
            "/tmp/kept/new": "D",
            "/tmp/old/in": "A",
            "/tmp/old/in/o": "A",
            f"{work}/removed": "A",
            f"{work}/written": "M",
        }


def test_diff_of_a_file_that_is_granted_by_itself(tmp_path):
    os.chmod(tmp_path, 0o755)
    file = tmp_path / "file"
    file.write_text("host\n")
    with Sandbox(Policy(fs_writable=[file])) as box:
        box.exec("touch /tmp/first", check=True)
        first = box.snapshot()
        box.exec(f"echo one >{file}", check=True)
        one = box.snapshot()
        assert changed(box.diff(first, one)) == changed(box.diff(one, first)) == {str(file): "M"}
        with pytest.raises(rollbox.FeatureMissing, match="cannot be compared"):
            box.diff(one, "s0")
        box.exec(f"echo two >{file}", check=True)
        two = box.snapshot()
        assert changed(box.diff(two, one)) == {str(file): "M"}


def test_session_is_idle_after_a_snapshot(box):
    box.exec("echo x >/tmp/x", check=True)
    box.snapshot()
    assert box.inspect()["state"] == "idle"
    box.reset()
    assert box.inspect()["state"] == "idle"


def test_commit(tmp_path):
    os.chmod(tmp_path, 0o755)
    (tmp_path / "granted").mkdir()
    (tmp_path / "granted/f").write_text("old")
    with Sandbox(Policy(fs_writable=[tmp_path / "granted"])) as box:
        box.exec(f"echo new >{tmp_path}/granted/g", check=True)
        assert not (tmp_path / "granted/g").exists()
        committed = box.commit()
        assert [one["path"] for one in committed] == [str(tmp_path / "granted")]
    assert (tmp_path / "granted/g").read_text() == "new\n" and (tmp_path / "granted/f").read_text() == "old"


# Pause

def test_pause_and_resume(box):
    counter = box.spawn("while :; do echo x; sleep 0.01; done")
    counter.stdout.read1(1)
    box.pause()
    assert box.inspect()["state"] == "paused"
    assert box.exec(["true"]).ok, "a call resumes it"
    box.pause()
    box.resume()
    box.resume()
    assert counter.stdout.read1(1)


# Shared engines

@pytest.fixture
def shared(tmp_path):
    socket = tmp_path / "engine"
    process = subprocess.Popen([str(BUILD / "rollbox-engine"), "--socket", str(socket)])
    try:
        until(lambda: serves(socket))
        yield str(socket)
    finally:
        process.terminate()
        process.wait()


def test_detached_session_outlives_its_client(shared):
    code = f"""if True:
        from rollbox import Engine, Sandbox
        box = Sandbox(engine=Engine({shared!r}), detached=True, name="kept")
        with box:
            box.write_file("/tmp/f", "kept")
            box.spawn("until [ -e /tmp/end ]; do sleep 0.01; done; echo done; exit 3", id="job")
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE)
    with Engine(shared) as engine:
        assert names(engine) == {"kept"}
        with Sandbox.open("kept", engine=engine) as box:
            assert box.read_file("/tmp/f") == b"kept"
            job = box.process("job")
            box.write_file("/tmp/end", "")
            assert job.wait(DEADLINE).exit_code == 3 and job.stdout.read() == b"done\n"
        Sandbox.open("kept", engine=engine).close()
        assert names(engine) == set()


def test_detached_session_needs_a_shared_engine():
    with pytest.raises(InvalidArgument, match="shared"):
        Sandbox(detached=True).exec(["true"])


# asyncio

def test_async_session():
    async def main():
        async with AsyncSandbox() as box:
            assert (await box.exec("echo hi", text=True)).stdout == "hi\n"
            await box.write_file("/tmp/f", "x")
            base = await box.snapshot()
            results = await asyncio.gather(*(box.exec(["echo", str(i)]) for i in range(50)))
            assert [int(result.stdout) for result in results] == list(range(50))
            kids = await box.fork(2, snapshot=base)
            assert [await kid.read_file("/tmp/f") for kid in kids] == [b"x", b"x"]
            for kid in kids:
                await kid.close()
            seen = [chunk async for chunk in box.stream("echo a; echo b >&2")]
            assert sorted(seen) == [("stderr", b"b\n"), ("stdout", b"a\n")]
            async with await box.spawn("read x; echo got $x; cat >/dev/null") as process:
                await process.stdin.write(b"y\n")
                assert await process.stdout.read(100) == b"got y\n"
                with pytest.raises(TimeoutError):
                    await process.wait(0.05)
                await process.close_stdin()
                assert (await process.wait(DEADLINE)).ok
                assert (await box.process(process.id)).id == process.id
            async with await box.shell() as shell:
                await shell.run("x=1")
                assert (await shell.run("echo $x")).stdout == b"1\n"
            assert (await box.inspect())["name"] == box.name and str(await box.tree())
            with pytest.raises(CommandNotFound):
                await box.exec(["no-such-program"])
            await box.reset(base)
        with pytest.raises(NotFound):
            await box.exec(["true"])
    asyncio.run(main())
    assert not rollbox.aio._runs._watches


def test_cancelled_task_ends_its_command():
    async def main():
        async with AsyncSandbox() as box:
            task = asyncio.ensure_future(box.exec(["sleep", "86365"]))
            while not any("86365" in one["command"] for one in await box.processes()):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while any("86365" in one["command"] for one in await box.processes()):
                await asyncio.sleep(0.01)
    asyncio.run(main())


def test_abandoned_async_stream_ends_its_command():
    async def main():
        async with AsyncSandbox() as box:
            stream = box.stream("echo a; sleep 86364")
            chunks = stream.__aiter__()
            assert await chunks.__anext__() == ("stdout", b"a\n")
            await chunks.aclose()
            with pytest.raises(InvalidArgument):
                stream.result
            while any("86364" in one["command"] for one in await box.processes()):
                await asyncio.sleep(0.01)
    asyncio.run(main())


def test_lost_engine_ends_async_waits():
    async def main():
        engine = Engine()
        async with AsyncSandbox(engine=engine) as box:
            process = await box.spawn(["sleep", "86363"])
            waiting = asyncio.ensure_future(process.wait())
            running = asyncio.ensure_future(box.exec(["sleep", "86363"]))
            await asyncio.sleep(0)
            while not any("86363" in one["command"] for one in await box.processes()):
                await asyncio.sleep(0.01)
            os.kill(engine.pid, signal.SIGKILL)
            for task in (waiting, running):
                with pytest.raises(EngineLost):
                    await asyncio.wait_for(task, DEADLINE)
        engine.close()
    asyncio.run(main())


def test_sessions_of_many_tasks():
    async def episode(i):
        async with AsyncSandbox(Policy(max_memory="64M", max_disk="16M")) as box:
            await box.write_file("/tmp/i", str(i))
            return int((await box.exec(["cat", "/tmp/i"])).stdout)

    async def main():
        return await asyncio.gather(*(episode(i) for i in range(60)))
    assert asyncio.run(main()) == list(range(60))
