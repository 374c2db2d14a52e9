# SPDX-License-Identifier: Apache-2.0
"""Warm interpreters: no program can distinguish one from an interpreter that is started from
scratch; and the promises of each sandbox hold there, too."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from harness import sample_cases, until

import rollbox
from rollbox import AsyncSandbox, Engine, Sandbox, run_many
from interpreters import FILES, INPUT, POLICY, PROGRAMS, by_name, count, told, wait_until_ready

SYSTEM_MINOR = int(
    subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print(sys.version_info.minor)"],
        capture_output=True,
        check=True,
    ).stdout
)


@pytest.fixture(scope="module")
def engine():
    with Engine() as engine:
        wait_until_ready(engine, Sandbox(POLICY, engine=engine))
        yield engine


@pytest.fixture
def sandbox(engine):
    return Sandbox(POLICY, engine=engine)


@pytest.mark.parametrize("name", sample_cases(PROGRAMS))
def test_warm_interpreter_equals_a_cold_one(engine, sandbox, name):
    code = PROGRAMS[name]
    before = count(engine)
    mine = sandbox.run_code(code, ["a", "b c"], stdin=INPUT)
    assert count(engine) == before + 1, engine.status()["interpreters"]
    other = sandbox.run(["python3", "-c", code, "a", "b c"], stdin=INPUT)
    assert told(mine) == told(other)


TIMES = re.compile(rb"\d+\.\d+s")


@pytest.mark.parametrize("name", FILES)
def test_file_in_a_warm_interpreter_equals_a_cold_one(engine, name):
    files = {"other.py": "x = 5"}
    before = count(engine)
    (mine,) = run_many([{"code": FILES[name], "language": "python", "files": files}], policy=POLICY, engine=engine)
    assert count(engine) == before + 1, engine.status()["interpreters"]
    other = Sandbox(POLICY, engine=engine).run(["python3", "main.py"], files={"main.py": FILES[name], **files})
    assert {**told(mine), "stderr": TIMES.sub(b"", mine.stderr)} == {
        **told(other),
        "stderr": TIMES.sub(b"", other.stderr),
    }


def test_changed_library_is_imported_in_its_new_form(engine):
    """The preloaded module is not used in its place, nor modules that need it."""
    if os.geteuid() != 0:
        pytest.skip("of root's files an ordinary user's sandbox can change none, nor its own copies")
    library = f"/usr/lib/python3.{SYSTEM_MINOR}"
    box = Sandbox({**POLICY, "fs_writable": [library]}, engine=engine)
    wait_until_ready(engine, box, count(engine, "ready") + 1)
    before = count(engine)
    code = f"open('{library}/functools.py', 'a').write('mine = 5\\n')\nimport typing, functools; print(functools.mine, typing.functools is functools)"
    for _ in range(2):
        result = box.run_code(code, text=True)
        assert result.stdout == "5 True\n" and not result.stderr, result
    assert box.run_code("import functools; print(hasattr(functools, 'mine'))", text=True).stdout == "False\n"
    assert count(engine) == before + 3


def test_random_values_differ_between_runs(sandbox):
    code = "import os, random, uuid, tempfile; print(os.urandom(8).hex(), random.random(), uuid.uuid4(), tempfile.mktemp())"
    seen = [sandbox.run_code(code, text=True).stdout.split() for _ in range(20)]
    assert all(len(set(column)) == 20 for column in zip(*seen)), seen


def test_runs_leave_nothing_in_the_interpreter(engine, sandbox):
    """A program does not see the changes that an earlier one made to its interpreter."""
    before = count(engine)
    for i in range(10):
        result = sandbox.run_code(
            "import builtins, os, sys\nprint(hasattr(builtins, 'mine'), hasattr(os, 'mine'), os.path.exists('/tmp/mine'), 'json' in sys.modules, sys.path[-1] == 'mine', os.environ.get('MINE'), len.__doc__[:6])\n"
            "import json; builtins.mine = os.mine = 1; open('/tmp/mine', 'w').close(); sys.path.append('mine'); os.environ['MINE'] = 'x'\n"
            "import ctypes; ctypes.memset(id(len.__doc__) + sys.getsizeof('') - 1, ord('X'), 1)",
            text=True,
        )
        assert result.stdout == "False False False False False None Return\n" and not result.stderr, result
    assert count(engine) == before + 10


def test_many_at_once(engine):
    """Each has its own code, arguments, input and end."""

    async def all_of_them():
        box = AsyncSandbox(POLICY, engine=engine)

        async def one(i):
            result = await box.run_code(
                f"import sys; print({i}, sys.argv[1], sys.stdin.read()); sys.exit({i % 7})",
                [str(i)],
                stdin=f"in{i}",
                text=True,
            )
            return result.stdout == f"{i} {i} in{i}\n" and result.exit_code == i % 7

        return await asyncio.gather(*(one(i) for i in range(300)))

    before = count(engine)
    assert all(asyncio.run(all_of_them()))
    assert count(engine) == before + 300


def test_runs_wait_while_the_interpreter_is_made(sandbox):
    """A burst of runs does not start a Python for each, which would keep the one that all could
    have from being made."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:2])
    try:
        with Engine() as engine:
            results = run_many(
                [{"code": f"print({i})", "language": "python"} for i in range(40)],
                policy=POLICY,
                concurrency=40,
                text=True,
                engine=engine,
            )
            assert [result.stdout for result in results] == [f"{i}\n" for i in range(40)]
            assert count(engine) >= 20 and not count(engine, "anew"), engine.status()["interpreters"]
    finally:
        os.sched_setaffinity(0, before)


def test_packages_of_the_run(engine):
    """Directories that come with the run are looked at as at a start."""
    box = Sandbox({**POLICY, "env": {"PYTHONPATH": "/tmp/lib"}}, engine=engine)
    for _ in range(4):
        assert (
            box.run_code(
                "import mine; print(mine.x)", files={"/tmp/lib/mine.py": "x = 5"}, text=True
            ).stdout
            == "5\n"
        )
    home = Sandbox({**POLICY, "env": {"HOME": "/tmp"}}, engine=engine)
    for _ in range(3):
        assert home.run_code("pass").ok
    code = "import site, sys; print(site.USER_SITE in sys.path)\nimport mine; print(mine.x)"
    for _ in range(3):
        version = home.run_code("import sys; print(*sys.version_info[:2], sep='.')", text=True).stdout.strip()
        result = home.run_code(
            code,
            files={f"/tmp/.local/lib/python{version}/site-packages/mine.py": "x = 6"},
            text=True,
        )
        assert result.stdout == "True\n6\n", result


@pytest.mark.parametrize("policy, options", [
    ({}, {"env": {"A": "b"}}),
    ({"time_start": "2025-01-01T00:00:00", "time_mode": "virtual", "serial": True}, {}),
    ({"isolation": "process"}, {}),
], ids=["env", "serial", "process"])
def test_warm_interpreter_is_not_used_where_it_would_differ(engine, policy, options):
    """There a new one is started."""
    box = Sandbox({**POLICY, **policy}, engine=engine)
    before = count(engine)
    for _ in range(4):
        assert (
            box.run_code("import os; print(os.environ.get('A'))", text=True, **options).stdout
            == f"{options.get('env', {}).get('A')}\n"
        )
    assert count(engine) == before


@pytest.mark.parametrize(
    "policy",
    [
        {"max_open_files": 16},
        {"max_processes": 3},
        {"net": "loopback"},
        {"net": "host"},
        {"max_memory": "64M"},
        {"fs_writable": ["/opt"]},
        {"cwd": "/usr"},
        {"hostname": "other"},
        {"max_processes": 1},
        {"env": {"PYTHONUTF8": "1", "PYTHONHASHSEED": "5", "LANG": "C.UTF-8"}},
        {"user": 7, "max_cpu": 1},
        {"fs_denied": ["/usr/lib/python3"]},
    ],
    ids=str,
)
def test_policies(policy):
    """Each policy has its own interpreter, which runs under it: what comes of a program is the same."""
    code = (
        "import os, resource, socket, sys\nprint(resource.getrlimit(resource.RLIMIT_NOFILE), os.getcwd(), socket.gethostname(), sys.flags, os.getuid(), {'a', 'b', 'c'} if sys.flags.hash_randomization == 0 else 0, "
        "os.cpu_count(), len(os.sched_getaffinity(0)), sorted(os.environ))\ntry:\n    print(sorted(os.listdir('/opt')), open('/opt/mine', 'w').write('x'))\nexcept OSError as e:\n    print(e)\n"
    )
    with Engine() as engine:
        box = Sandbox({**POLICY, **policy}, engine=engine)
        wait_until_ready(engine, box)
        for _ in range(3):
            assert told(box.run_code(code)) == told(box.run(["python3", "-c", code]))
        state = engine.status()["interpreters"]
        assert state["restored"] >= 3 and not state["anew"], state


def test_limits(engine, sandbox):
    assert (
        sandbox.run_code(
            "print('before', flush=True)\nwhile True: pass", timeout=0.3, text=True
        ).outcome
        == "timeout"
    )
    result = sandbox.run_code("print('x' * 100)\nx = []\nwhile True: x.append(bytearray(1 << 20))", text=True)
    assert result.outcome == "out_of_memory" or "MemoryError" in result.stderr, result
    assert sandbox.run_code("while True: print('x' * 1000)", max_output=100000).outcome == "output_limit"
    forks = "import os, time\nn = 0\ntry:\n    while n < 200:\n        if os.fork() == 0: time.sleep(100)\n        n += 1\nexcept BlockingIOError: print('limited', flush=True)\nos._exit(0)"
    assert sandbox.run_code(forks, text=True).stdout == "limited\n"
    left = sandbox.run_code(
        "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        import time; time.sleep(86400.25)\n    os._exit(0)\nprint('left')",
        text=True,
    )
    assert left.stdout == "left\n"


def test_killed_launchers():
    """The interpreter is loaded again into the next one."""
    with Engine() as engine:
        box = Sandbox(POLICY, engine=engine)
        wait_until_ready(engine, box)
        for _ in range(5):
            for pid in by_name(engine, "rollbox-launch"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for _ in range(3):
                try:
                    assert box.run_code("print(5)", text=True).stdout == "5\n"
                except rollbox.SetupFailed:
                    pass        # it was on its way to one of those
        before = count(engine)
        wait_until_ready(engine, box)
        assert box.run_code("print(6)", text=True).stdout == "6\n" and count(engine) > before


FAKE = """#!/usr/bin/python3
import ctypes, mmap, os, sys, threading, time
if "gc.freeze" not in sys.argv[2]:
    exec(sys.argv[2])
    raise SystemExit
{}
os.write(4, b"ready\\n")
os.close(4)
os.read(3, 1)
os.write(1, b"restored?")
"""


@pytest.mark.parametrize(
    "trick, why",
    [
        ("threading.Thread(target=time.sleep, args=(1000,)).start()", "threads"),
        ("m = mmap.mmap(-1, 4096)", "shares memory"),
        ("x = b'x' * (100 << 20)", "bytes of memory"),
        ("os.dup2(1, 77)", "descriptor 77"),
        (
            "open('/tmp/d', 'w').write('x' * 4096); f = open('/tmp/d'); ctypes.CDLL(None).mmap(0, 4096, 1, 2, f.fileno(), 0); os.unlink('/tmp/d'); f.close()",
            "deleted",
        ),
        ("os.fork() or time.sleep(1000)", "2 processes"),
        (
            "os.write(1, b'ready\\n'); time.sleep(0.05); libc = ctypes.CDLL(None); os.fork() or (os.fork() and os._exit(0)) or time.sleep(1000); os.wait()",
            "only one",
        ),
        ("os.write(1, b'ready\\n'); time.sleep(1000)", "does not wait"),
        ("sys.exit('not today')", "not today"),
        ("os.kill(os.getpid(), 9)", "ended at its start"),
        (
            "libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p; libc.mmap(0x200000, 4096, 3, 0x32, -1, 0)",
            "memory at 0x200000",
        ),
    ],
    ids=lambda value: value if " " in value and len(value) < 30 else "",
)
def test_undumpable_interpreter_runs_cold(trick, why):
    """It is refused in words, and the code is run all the same. The guest, which may be anything,
    can make an interpreter that is of no use, and nothing worse."""
    place = Path("/var/tmp") / f"fake-{os.getpid()}-{abs(hash(trick))}"
    place.mkdir(mode=0o755)
    try:
        (place / "python3").write_text(FAKE.format(trick))
        (place / "python3").chmod(0o755)
        policy = {
            **POLICY,
            "max_memory": "400M",
            "fs_readable": ["/usr", "/lib", "/lib64", "/etc", "/bin", str(place)],
            "env": {"PATH": f"{place}:/usr/bin:/bin"},
        }
        with Engine() as engine:
            box = Sandbox(policy, engine=engine)
            pause = threading.Event()
            for _ in range(2):
                assert box.run_code("print(5)", text=True).stdout == "5\n"
            for _ in range(2000):
                state = engine.status()["interpreters"]
                if state["problem"] or state["ready"]:
                    break
                pause.wait(0.01)
            assert box.run_code("print(5)", text=True).stdout == "5\n"
            assert why in state["problem"] and not state["ready"] and not state["restored"], state
            until(lambda: not by_name(engine, "rollbox-capture"))   # one that has told is still to be waited for
    finally:
        (place / "python3").unlink()
        place.rmdir()


def test_runs_do_not_wait_for_an_interpreter_that_never_starts():
    """A run that came while it was made does not wait for one beside it, which could take for ever."""
    place = Path("/var/tmp") / f"slow-{os.getpid()}"
    place.mkdir(mode=0o755)
    before = os.sched_getaffinity(0)
    try:
        (place / "python3").write_text(FAKE.format("os.read(os.pipe()[0], 1)"))
        (place / "python3").chmod(0o755)
        policy = {
            **POLICY,
            "timeout": 15,
            "fs_readable": ["/usr", "/lib", "/lib64", "/etc", "/bin", str(place)],
            "env": {"PATH": f"{place}:/usr/bin:/bin"},
        }
        os.sched_setaffinity(0, sorted(before)[:2])
        with Engine() as engine:
            def take_long():
                with contextlib.suppress(rollbox.RollboxError):
                    Sandbox(policy, engine=engine).run_code("import signal; signal.pause()")

            first = threading.Thread(target=take_long)
            first.start()
            until(lambda: engine.status()["running"])
            assert Sandbox(policy, engine=engine).run_code("print(5)", text=True).stdout == "5\n"
            assert first.is_alive()
            assert not engine.status()["interpreters"]["ready"]
        first.join()
    finally:
        os.sched_setaffinity(0, before)
        (place / "python3").unlink()
        place.rmdir()


def test_interpreter_killed_during_its_dump():
    """With any helper process killed, code is run, and nothing stays behind."""
    for victim in ("rollbox-capture", "rollbox-launch"):
        with Engine() as engine:
            box = Sandbox(POLICY, engine=engine)
            assert box.run_code("pass").ok and box.run_code("pass").ok
            for _ in range(400):
                for pid in by_name(engine, victim):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                state = engine.status()["interpreters"]
                if state["ready"] or state["problem"]:
                    break
            for _ in range(3):
                try:
                    assert box.run_code("print(5)", text=True).stdout == "5\n"
                except rollbox.SetupFailed:
                    pass
            assert box.run_code("print(5)", text=True).stdout == "5\n"


def test_commit_while_there_is_one():
    """Runs with a directory that was replaced, by any process, use a new interpreter."""
    place = Path("/var/tmp") / f"commit-{os.getpid()}"
    (place / "d").mkdir(parents=True)
    try:
        policy = {**POLICY, "fs_writable": [str(place / "d")]}
        (place / "d" / "a").write_text("0")
        for path in (place, place / "d"):
            path.chmod(0o777)
        with Engine() as engine:
            box = Sandbox(policy, engine=engine)
            for i in range(1, 4):
                wait_until_ready(engine, box)
                with Sandbox({**policy, "timeout": 59}, engine=engine) as other:
                    other.exec(["sh", "-c", f"echo {i} > {place}/d/a"])
                    other.commit()
                assert box.run_code(f"print(open('{place}/d/a').read())", text=True).stdout == f"{i}\n\n"
    finally:
        shutil.rmtree(place, ignore_errors=True)


def test_python_that_is_replaced():
    """The old image is not restored any more, and a new one is made."""
    place = Path("/var/tmp") / f"python-{os.getpid()}"
    place.mkdir(mode=0o755)
    try:
        shutil.copy(os.path.realpath("/usr/bin/python3"), place / "python3")
        policy = {
            **POLICY,
            "fs_readable": ["/usr", "/lib", "/lib64", "/etc", str(place)],
            "env": {"PATH": f"{place}:/usr/bin:/bin"},
        }
        with Engine() as engine:
            box = Sandbox(policy, engine=engine)
            wait_until_ready(engine, box)
            os.utime(place / "python3", (1, 1))
            pause = threading.Event()
            for _ in range(1000):
                assert box.run_code("import sys; print(sys.executable)", text=True).stdout == f"{place}/python3\n"
                state = engine.status()["interpreters"]
                if state["anew"] and state["ready"] and state["restored"]:
                    before = state["restored"]
                    assert box.run_code("print(5)", text=True).stdout == "5\n"
                    if count(engine) > before:
                        break
                pause.wait(0.01)
            else:
                pytest.fail(f"{state}")
    finally:
        shutil.rmtree(place, ignore_errors=True)
