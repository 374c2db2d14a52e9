# SPDX-License-Identifier: Apache-2.0
"""Checkpoints when a process that takes part in them is killed, or ends.

The model is that of test_live.py. make check runs this file as root and as an ordinary user.
"""
import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest
from asked import Asked, closing, process_state, restorer, sh  # noqa: F401
from harness import children, pidfds, until, wait_gone
from rollbox import Engine, RollboxError, Sandbox, SetupFailed


def test_killed_dump_worker_is_reported_and_leaves_nothing_paused():
    """A process in which it was making a call could not resume unchanged: its command fails with an
    error, and is not reported as ended by itself. Nothing waits for it."""
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
                except SetupFailed as problem:  # of a snapshot that was taken, while its dump worker restored registers
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
                    if twin and process_state(twin) == "t" and process_state(host_pid) == "S":
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
            (zygote,) = until(
                lambda: alone if len(alone := children(engine.pid, "rollbox-hold")) == 1 else None
            )  # the fork is gone
            family = pidfds([zygote])
            os.kill(zygote, signal.SIGKILL)
            wait_gone(family)


def held(engine):
    """The inits of forks and preforks, and the zygote."""
    return children(engine.pid, "rollbox-hold")


def test_prefork_serves_the_next_fork():
    """From the second fork of a state on there is one, for a second, which is nobody's: its death,
    or that of the state, is nobody's loss."""
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
    family = pidfds(
        [row["host_pid"] for one in (box, *kids) for row in one.processes()]
        + [one.inspect()["pid"] for one in (box, *kids)]
        + children(engine.pid, "rollbox-launch")
        + children(engine.pid, "rollbox-hold")
    )
    os.kill(engine.pid, signal.SIGKILL)
    wait_gone(family)


def test_mapped_file_writes_of_a_restored_process_are_seen():
    """They are copied up while it is restored: written to in place, they look as they did when its box was ready."""
    with Sandbox() as box:
        origin = Asked.begin(
            box,
            "import mmap",
            "f = open('/tmp/mapped', 'w+b')",
            "f.write(b'a' * 40960)",
            "f.flush()",
            "m = mmap.mmap(f.fileno(), 40960)",
        )
        at = box.snapshot()
        for i in range(6):
            with closing(box.fork(1, snapshot=at)) as kids:
                one = origin.of(kids[0])
                one(f"m[100] = {i}")
                with closing(kids[0].fork(1)) as grandkids:
                    assert one.of(grandkids[0])("m[100], open('/tmp/mapped', 'rb').read()[100]") == f"({i}, {i})"
