# SPDX-License-Identifier: Apache-2.0
"""An engine that meets its limit of open files.

The engine refuses what it has no descriptors for, says which limit to raise, gives back what it took, and keeps every
sandbox that it has. make check runs this file as root and as an ordinary user, with nothing beside
it: descriptors under
way are counted by user, and limited by that low number.
"""

import os
import re
import resource
import signal
from pathlib import Path

import pytest
from harness import binaries, limited, skip, until
from rollbox import Engine, Policy, ResourceExhausted, RollboxError, Sandbox
from asked import Asked, restorer  # noqa: F401

FILES = 320


def files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.fixture
def few(tmp_path, monkeypatch):
    """Engines with FILES descriptors, and not more."""
    program = tmp_path / "engine"
    program.write_text(f'#!/bin/sh\nulimit -n {FILES}\nexec {binaries()}/rollbox-engine "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("ROLLBOX_ENGINE", str(program))
    with Engine() as engine:
        limit = re.search(r"Max open files +(\d+)", Path(f"/proc/{engine.status()['pid']}/limits").read_text())[1]
    if int(limit) != FILES:
        skip("root may have more files open than it was given here")


@pytest.fixture
def engine(few):
    with Engine() as engine:
        yield engine


def test_sessions_stay_when_the_engine_is_full(engine):
    """The engine refuses clones at its limit; those that it has still answer, and closed ones make room for others."""
    with Sandbox(engine=engine) as box:
        asked = Asked.begin(box, "x = 7")
        base, kids = box.snapshot(), []
        with pytest.raises(ResourceExhausted, match="ulimit -n"):
            for _ in range(FILES):
                kids += box.fork(1, snapshot=base)
        assert len(kids) > 20
        for _ in range(10):                     # to attach to a command takes descriptors, too
            kids.pop().close()
        for n, kid in enumerate(kids):
            assert asked.of(kid)(f"(globals().update(x=x + {n}), x)[1]") == str(7 + n)
        assert asked("x") == "7"
        for kid in kids[:len(kids) // 2]:
            kid.close()
        with box.fork(1, snapshot=base)[0] as kid:
            assert asked.of(kid)("x") == "7"
        for kid in kids:
            kid.close()
        until(lambda: files(engine.status()["pid"]) < FILES // 4)


def test_full_engine_error_says_what_to_do(few):
    """At every step that lacks a descriptor, the message says what to do, all resources are given
    back, and the engine continues."""
    with Engine() as engine:
        pid = engine.status()["pid"]
        _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        with Sandbox(engine=engine) as box:
            asked = Asked.begin(box, "x = 1")
            base = box.snapshot()
            box.fork(1, snapshot=base)[0].close()
            until(lambda: engine.status()["sessions"] == 1)
            before, said = files(pid), set()
            for room in range(0, 60):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (files(pid) + room, most))
                try:
                    for kid in box.fork(2, snapshot=base):
                        kid.exec(["true"])
                        kid.close()
                    with Sandbox(Policy(hostname="other"), engine=engine) as other:
                        other.exec(["true"])
                except ResourceExhausted as problem:
                    said.add(str(problem))
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
                for name in [row["name"] for row in engine.sandboxes() if row["name"] != box.name]:
                    Sandbox.open(name, engine=engine).close()
            assert said and not [text for text in said if "ulimit -n" not in text]
            assert asked("x") == "1" and box.exec(["true"]).exit_code == 0
            until(lambda: files(pid) <= before + 8)


def test_files_outlive_an_init_that_is_killed_where_no_descriptor_is_left():
    """They are held by the one that the sandbox has of its place for files: a second is not needed for that."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        box.exec(["sh", "-c", "echo kept > /tmp/kept"])
        process = box.spawn(["sh", "-c", "echo up; exec sleep 1000"])
        assert process.stdout.readline() == b"up\n"
        with limited(engine.status()["pid"], resource.RLIMIT_NOFILE, 1):
            os.kill(box.inspect()["pid"], signal.SIGKILL)
            with pytest.raises(RollboxError, match="its files are kept"):
                process.wait()
        assert box.exec(["cat", "/tmp/kept"]).stdout == b"kept\n"


def test_slow_reader_misses_nothing_without_descriptors():
    """The output of an ended command is shared between its reader and the result by a second
    descriptor; without a free one it is copied."""
    with Engine() as engine, Sandbox(Policy(max_output="8M"), engine=engine) as box:
        process = box.spawn(["sh", "-c", "head -c 3000000 /dev/zero; touch /tmp/written; read line"])
        until(lambda: box.exists("/tmp/written"))
        with limited(engine.status()["pid"], resource.RLIMIT_NOFILE, 1):
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.wait().outcome == "exit"
        assert len(process.stdout.read()) == 3000000


def test_command_without_a_descriptor_has_the_reason():
    with Engine() as engine, Sandbox(engine=engine) as box:
        box.exec(["true"])
        with (
            limited(engine.status()["pid"], resource.RLIMIT_NOFILE, 1),
            pytest.raises(ResourceExhausted, match="no descriptor left .*ulimit -n"),
        ):
            box.spawn(["true"]).wait()
        assert box.exec(["true"]).exit_code == 0


# Four processes, of two threads each: one waits for the other, and that for what nobody does.
FOUR = """
import os, threading
for _ in range(3):
    if os.fork() == 0:
        break
threading.Thread(target=threading.Event().wait).start()
open(f'/tmp/{os.getpid()}', 'w').close()
"""


@pytest.mark.parametrize(
    "limit, step",
    [(resource.RLIMIT_NOFILE, 1), (resource.RLIMIT_AS, 16 << 10), (resource.RLIMIT_AS, 128 << 10)],
)
def test_dump_worker_without_descriptors_is_reported(limit, step):
    """A dump worker without descriptors or memory reports that: it misses no processes or threads,
    and its search for them ends."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        box.spawn(["python3", "-c", FOUR])
        until(lambda: len(box.exec(["ls", "/tmp"]).stdout.split()) == 4)
        pid, refused = engine.status()["pid"], 0
        assert box.snapshot().processes == 4
        for more in range(40):
            used = (
                files(pid)
                if limit == resource.RLIMIT_NOFILE
                else int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
            )
            with limited(pid, limit, used + more * step):
                try:
                    box.write_file("/tmp/written", bytes([more]))
                    assert box.snapshot().processes == 4
                except ResourceExhausted:
                    refused += 1
        assert refused and box.snapshot().processes == 4
        until(lambda: len(box.processes()) == 4)        # and no copy stays


def test_temporary_limit_does_not_stay():
    """A launcher that was born while its engine had little room for addresses makes sandboxes that
    can be captured all the same: the room was raised again."""
    with Engine() as engine:
        Sandbox(engine=engine).run(["true"])        # has the launcher that was started with the engine
        pid = engine.status()["pid"]
        soft, hard = resource.prlimit(pid, resource.RLIMIT_AS)
        size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (size + (2 << 20), hard))
        with Sandbox(Policy(hostname="early"), engine=engine) as box:
            try:
                box.exec(["true"])
            except RollboxError:
                skip("nothing can be made where there is so little room")
            resource.prlimit(pid, resource.RLIMIT_AS, (soft, hard))
            asked = Asked.begin(box, "x = 1")
            assert [asked.of(kid)("x") for kid in box.fork(2)] == ["1"] * 2
