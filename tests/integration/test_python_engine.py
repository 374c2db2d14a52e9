# SPDX-License-Identifier: Apache-2.0
"""Engine: its life and death, threads, forks, process pools, and what an interpreter leaves when it ends."""

import concurrent.futures
import gc
import multiprocessing
import os
import pathlib
import pickle
import select
import signal
import subprocess
import sys
import threading

import pytest
from harness import processes, until

import rollbox
from rollbox import Engine, EngineLost, PathNotFound, Policy, Sandbox, default_engine

MARK = f"86394.{os.getpid()}"
BLOCK = ["sleep", MARK]
"""A program that does not end by itself, and that no other run of the tests has."""


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def lost(engine):
    """Blocks until the end of the killed engine can be seen from here."""
    with engine.connection() as connection:
        # Its welcome may be unread yet, so that the connection is readable alive; a process closes
        # its sockets before it is dead.
        process = os.pidfd_open(connection.pid)
        os.kill(connection.pid, signal.SIGKILL)
        select.select([process], [], [], 60)
        os.close(process)


def test_one_shared_private_engine():
    assert default_engine() is default_engine()
    assert Sandbox().run(["true"]).ok and default_engine().pid != os.getpid()


def test_status_and_close():
    with Engine() as engine:
        status = engine.status()
        assert status["pid"] == engine.pid and status["version"] == rollbox.__version__
        assert engine.pid != default_engine().pid
        assert Sandbox(engine=engine).run(["true"]).ok
        pid = engine.pid
    assert not alive(pid)
    engine.close()
    for call in (engine.status, lambda: Sandbox(engine=engine).run(["true"])):
        with pytest.raises(EngineLost):
            call()


def test_dropped_engine_ends():
    engine = Engine()
    pid = engine.pid
    del engine
    gc.collect()
    assert not alive(pid)


def test_no_engine_at_that_socket(tmp_path):
    with pytest.raises(rollbox.RollboxError):
        Engine(tmp_path / "none")
    with pytest.raises(rollbox.InvalidArgument):
        Engine("a\0")


def test_not_picklable():
    with Engine() as engine:
        for one in (engine, Sandbox(engine=engine)):
            with pytest.raises(TypeError):
                pickle.dumps(one)


def test_killed_engine():
    with Engine() as engine:
        sandbox = Sandbox(engine=engine)
        assert sandbox.run(["true"]).ok
        for _ in range(3):
            old = engine.pid
            lost(engine)
            assert sandbox.run(["true"]).ok
            assert engine.pid != old and engine.status()["pid"] == engine.pid


def test_killed_default_engine():
    lost(default_engine())
    assert Sandbox().run(["true"]).ok
    lost(default_engine())
    assert default_engine().status()["pid"] > 0


def test_runs_under_way_of_a_killed_engine():
    with Engine() as engine:
        errors = []

        def work():
            try:
                Sandbox(engine=engine).run(BLOCK)
            except rollbox.RollboxError as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: len(processes(*BLOCK)) == 4)
        os.kill(engine.pid, signal.SIGKILL)
        for thread in threads:
            thread.join()
        assert len(errors) == 4 and all(
            isinstance(error, EngineLost) and isinstance(error, ConnectionError) for error in errors
        )
        until(lambda: not processes(*BLOCK))
        assert Sandbox(engine=engine).run(["true"]).ok


def test_closing_ends_runs_in_other_threads():
    errors = []
    engine = Engine()
    pid = engine.pid

    def work():
        try:
            Sandbox(engine=engine).run(BLOCK)
        except rollbox.RollboxError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: len(processes(*BLOCK)) == 1)
    engine.close()
    thread.join()
    assert len(errors) == 1 and isinstance(errors[0], (rollbox.Cancelled, EngineLost))
    until(lambda: not alive(pid) and not processes(*BLOCK))


def in_child(work):
    """os.fork; the exit status of work() in the child, 0 if it returned."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_fork():
    sandbox = Sandbox()
    assert sandbox.run(["true"]).ok
    parents = default_engine().pid

    def child():
        assert sandbox.run(["echo", "child"]).stdout == b"child\n"
        assert default_engine().pid != parents
        assert in_child(lambda: Sandbox().run(["true"], check=True)) == 0
        default_engine().close()

    assert in_child(child) == 0
    assert default_engine().pid == parents and sandbox.run(["true"]).ok


def test_fork_with_runs_under_way_in_other_threads():
    stop = threading.Event()
    problems = []

    def work():
        while not stop.is_set():
            try:
                assert Sandbox().run(["echo", "x"]).stdout == b"x\n"
            except BaseException as problem:
                problems.append(problem)
                return

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    statuses = [in_child(lambda: Sandbox().run(["true"], check=True)) for _ in range(20)]
    stop.set()
    for thread in threads:
        thread.join()
    assert statuses == [0] * 20 and not problems


def test_fork_of_an_explicit_engine():
    with Engine() as engine:
        def child():
            assert Sandbox(engine=engine).run(["true"]).ok
            engine.close()
        assert in_child(child) == 0
        assert Sandbox(engine=engine).run(["true"]).ok


def test_forked_child_does_not_keep_the_engine_alive():
    """The trainer dies by SIGKILL while a fork of it lives on: the engine must end nevertheless."""
    script = (
        "import os, sys, rollbox\n"
        "pid = rollbox.default_engine().pid\n"
        "read, write = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.close(write); os.read(read, 1); sys.stdin.read(); os._exit(0)\n"
        "print(pid, child, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    engine, child = map(int, process.stdout.readline().split())
    try:
        process.wait()
        until(lambda: not alive(engine))
        assert alive(child)
    finally:
        process.stdin.close()
        process.stdout.close()


def job(n):
    result = Sandbox(Policy(max_processes=20)).run(["echo", str(n)], text=True)
    return os.getpid(), default_engine().pid, result


@pytest.mark.once
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_process_pool(method):
    Sandbox().run(["true"])
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        rows = list(pool.map(job, range(12)))
    assert [row[2].stdout for row in rows] == [f"{n}\n" for n in range(12)]
    assert default_engine().pid not in {row[1] for row in rows}
    until(lambda: not any(alive(row[1]) for row in rows))


def run_script(script, *arguments):
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120)


def test_exit_with_runs_under_way():
    script = (
        "import sys, threading, time, pathlib, rollbox\n"
        "def work():\n"
        "    rollbox.Sandbox().run(['sleep', sys.argv[1]])\n"
        "for _ in range(3):\n"
        "    threading.Thread(target=work, daemon=True).start()\n"
        "def running():\n"
        "    n = 0\n"
        "    for p in pathlib.Path('/proc').iterdir():\n"
        "        try: n += p.name.isdigit() and (p / 'cmdline').read_bytes() == f'sleep\\0{sys.argv[1]}\\0'.encode()\n"
        "        except OSError: pass\n"
        "    return n\n"
        "while running() < 3: time.sleep(0.01)\n"
        "print(rollbox.default_engine().pid)\n"
    )
    done = run_script(script, MARK)
    assert done.returncode == 0 and not done.stderr, done.stderr
    until(lambda: not alive(int(done.stdout)) and not processes(*BLOCK))


def test_killed_interpreter():
    script = (
        "import threading, rollbox, sys\n"
        "print(rollbox.default_engine().pid, flush=True)\n"
        "rollbox.Sandbox().run(['sleep', sys.argv[1]])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, MARK], stdout=subprocess.PIPE, text=True)
    engine = int(process.stdout.readline())
    until(lambda: processes(*BLOCK))
    process.kill()
    process.communicate()
    until(lambda: not alive(engine) and not processes(*BLOCK))


def test_exit_without_any_use():
    done = run_script("import rollbox; rollbox.Policy(max_memory='1M')")
    assert done.returncode == 0 and not done.stderr


def test_exit_from_a_loop():
    script = (
        "import asyncio, rollbox, sys\n"
        "async def main():\n"
        "    asyncio.ensure_future(rollbox.AsyncSandbox().run(['sleep', sys.argv[1]]))\n"
        "    await rollbox.AsyncSandbox().run(['true'])\n"
        "    print(rollbox.default_engine().pid)\n"
        "asyncio.run(main())\n"
    )
    done = run_script(script, MARK)
    assert done.returncode == 0 and not done.stderr, done.stderr
    until(lambda: not alive(int(done.stdout)) and not processes(*BLOCK))


def test_missing_library():
    environment = {**os.environ, "ROLLBOX_LIBRARY": "/nonexistent/librollbox.so"}
    script = "import rollbox\ntry:\n    rollbox.Sandbox().run(['true'])\nexcept rollbox.EngineStartFailed as error:\n    print(error)\n"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert "/nonexistent/librollbox.so" in done.stdout and not done.stderr


def test_missing_engine():
    environment = {**os.environ, "ROLLBOX_ENGINE": "/nonexistent/engine"}
    script = "import rollbox\ntry:\n    rollbox.Sandbox().run(['true'])\nexcept rollbox.EngineStartFailed as error:\n    print(error)\n"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert "/nonexistent/engine" in done.stdout and not done.stderr


def test_module_becomes_the_cli():
    done = subprocess.run([sys.executable, "-m", "rollbox", "run", "--", "sh", "-c", "echo $0; exit 7"],
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (7, "sh\n"), done.stderr


def test_descriptors_are_not_inherited():
    """A program started by the trainer gets nothing of the engine's."""
    Sandbox().run(["true"])
    with default_engine().connection() as connection:
        fd = connection.fd
    done = subprocess.run(["test", "-e", f"/proc/self/fd/{fd}"], close_fds=False)
    assert done.returncode == 1


@pytest.mark.parametrize("kind", ["fs_readable", "fs_writable", "fs_shared"])
def test_policy_paths_are_resolved_for_each_run(kind, tmp_path):
    """A warm engine has a granted directory at hand: when the host has put another one, or another
    file, in its place, what begins later sees that, and what lives sees what it saw."""
    place, file = tmp_path / "place", tmp_path / "file"
    usual = ["/usr", "/bin", "/lib", "/lib64"]
    policy = Policy(**{"fs_readable": usual, kind: (usual if kind == "fs_readable" else []) + [str(place), str(file)]})
    look = ["sh", "-c", f"ls {place}; cat {file}"]
    place.mkdir()
    (place / "first").touch()
    file.write_text("1\n")
    with Engine() as engine, Sandbox(policy, engine=engine) as old:
        assert Sandbox(policy, engine=engine).run(look).stdout == old.exec(look).stdout == b"first\n1\n"
        place.rename(tmp_path / "moved")
        if kind == "fs_writable":
            assert Sandbox(policy, engine=engine).run(look).stdout == b"1\n", "one that is not there is empty"
        else:
            with pytest.raises(PathNotFound, match="place"):
                Sandbox(policy, engine=engine).run(look)
        place.mkdir()
        (place / "second").touch()
        (tmp_path / "new").write_text("2\n")
        (tmp_path / "new").rename(file)
        assert Sandbox(policy, engine=engine).run(look).stdout == b"second\n2\n"
        with Sandbox(policy, engine=engine) as new:
            assert new.exec(look).stdout == b"second\n2\n"
        assert old.exec(["ls", str(place)]).stdout == b"first\n"
        plans = engine.status()["plans"]
        assert [Sandbox(policy, engine=engine).run(look).outcome for _ in range(3)] == [
            "exit"
        ] * 3 and engine.status()["plans"] == plans


@pytest.mark.parametrize("link", [False, True])
def test_shared_directory_contents_are_not_searched(link, tmp_path):
    """Another sandbox may have put it there: a link that it makes does not lead a warm engine
    elsewhere. Nor if the policy names it by a link into that directory."""
    shared, secret, named = tmp_path / "shared", tmp_path / "secret", tmp_path / "named"
    for place, name in ((shared / "x", "mine"), (secret, "secret")):
        place.mkdir(parents=True)
        (place / name).touch()
    named.symlink_to(shared)
    path = (named if link else shared) / "x"
    usual = ["/usr", "/bin", "/lib", "/lib64"]
    with Engine() as engine:
        box = Sandbox(Policy(fs_readable=usual + [str(path)], fs_shared=[str(shared)]), engine=engine)
        assert box.run(["ls", str(path)]).stdout == b"mine\n"
        (shared / "x").rename(shared / "y")
        (shared / "x").symlink_to(secret)
        with pytest.raises(PathNotFound, match="has changed"):
            box.run(["ls", f"{path}/"])
