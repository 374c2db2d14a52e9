# SPDX-License-Identifier: Apache-2.0
"""Gradings that end early: a full sandbox or a loop is the fault of the graded code, and a failed
Grade; a lost engine is an exception."""

import asyncio
import os
import signal
import threading

import pytest
from stores import store  # noqa: F401

from rollbox import AsyncSandbox, Engine, EngineLost, Outcome, Policy, Sandbox

OUT = "/tmp/w/out.txt"
FILL = "mkdir -p /tmp/w; echo 42 >/tmp/w/out.txt; head -c 1G /dev/zero >/tmp/w/big 2>/dev/null; for i in $(seq 200); do echo x >/tmp/w/$i || break; done 2>/dev/null; true"


@pytest.mark.filterwarnings("ignore::rollbox.UnsafeGrading")
@pytest.mark.parametrize("keys", [{}, {"disk_at": "store"}], ids=["memory", "store"])
def test_session_with_a_full_disk_is_graded(store, keys):  # noqa: F811
    """Its outputs are there to be read; what has no room is a reason. The named file is small, and passes."""
    with Engine() as engine, Sandbox(Policy(max_disk="24M", **keys), engine=engine) as box:
        box.snapshot("task")
        box.exec(FILL)
        assert box.grade(
            {"/tmp/t/expected": "42\n"},
            "cmp /tmp/w/out.txt /tmp/t/expected",
            outputs=[OUT],
            timeout=60,
        ).ok
        for options in ({"outputs": ["/tmp/w"]}, {"outputs": None}, {"unsafe_in_place": True}):
            grade = box.grade({"/tmp/t/verifier": "x" * (4 << 20)}, "false", timeout=60, **options)
            assert not grade.ok, grade


def test_session_without_free_memory_is_graded():
    with Sandbox(Policy(max_memory="64M", max_disk="32M")) as box:
        box.snapshot("task")
        box.exec(
            "mkdir /tmp/w; echo 42 >/tmp/w/out.txt; head -c 30M /dev/zero >/tmp/w/big; python3 -c 'x = bytearray(1 << 30)'"
        )
        assert box.grade(
            {"/tmp/t/expected": "42\n"},
            "cmp /tmp/w/out.txt /tmp/t/expected",
            outputs=[OUT],
            timeout=60,
        ).ok
        assert not box.grade({}, "python3 -c 'x = bytearray(1 << 30)'", outputs=[OUT], timeout=60).ok


def test_grade_without_timeout_uses_the_policys():
    with Sandbox(Policy(timeout=0.5)) as box:
        assert box.grade({}, "sleep 100", outputs=[OUT]).outcome is Outcome.TIMEOUT
    with Sandbox() as box:
        assert box.grade({}, "sleep 100", outputs=[OUT], verifier=Policy(timeout=0.5)).outcome is Outcome.TIMEOUT


def test_grade_without_any_timeout_uses_the_runs(monkeypatch):
    import rollbox._grade
    monkeypatch.setattr(rollbox._grade, "RUN_TIMEOUT_S", 0.5)
    with Sandbox() as box:
        assert box.grade({}, "sleep 100", outputs=[OUT]).outcome is Outcome.TIMEOUT
        assert box.grade({}, "sleep 1", outputs=[OUT], timeout="none").ok


@pytest.fixture
def doomed(tmp_path):
    """A shared engine's socket; what opens the FIFO for reading says that the verifier runs, upon
    which the engine is killed."""
    from stores import Shared
    with Shared(str(tmp_path / "socket")) as shared:
        yield shared, Policy(fs_shared=[str(tmp_path / "word")])


def killed_when_it_runs(shared, fifo):
    def kill():
        with open(fifo, "rb") as said:
            said.read(1)
        os.kill(shared.process.pid, signal.SIGKILL)
    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_engine_killed_while_grading_raises(tmp_path, doomed, is_async):
    shared, policy = doomed
    (tmp_path / "word").mkdir(mode=0o777)
    (tmp_path / "word").chmod(0o777)
    os.mkfifo(tmp_path / "word" / "fifo")
    (tmp_path / "word" / "fifo").chmod(0o666)
    verifier = f"echo x >{tmp_path}/word/fifo; sleep 100"

    def judged():
        with Sandbox(policy, engine=Engine(socket=shared.socket)) as box:
            box.grade({"/tmp/t/x": "x"}, verifier, outputs=[OUT])

    async def judged_async():
        async with AsyncSandbox(policy, engine=Engine(socket=shared.socket)) as box:
            await box.grade({"/tmp/t/x": "x"}, verifier, outputs=[OUT])

    thread = killed_when_it_runs(shared, tmp_path / "word" / "fifo")
    with pytest.raises(EngineLost):
        asyncio.run(judged_async()) if is_async else judged()
    thread.join()
