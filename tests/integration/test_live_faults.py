# SPDX-License-Identifier: Apache-2.0
"""Who takes a live state is killed on the way, at each step that others can see: the sandbox runs on, or is told to be gone, and nothing is left.

The model: guests/killer.c kills a process between two of its system calls, and says how many it made. A first round counts; the others are spread over all that were counted, and each is another process' end: the capturer's, a
holder's, a new sandbox' init, that of the sandbox itself, the engine's. make soak takes more of them (ROLLBOX_SOAK).
"""

import contextlib
import os
import re
import subprocess
from pathlib import Path

import pytest
from harness import descendants, guest, groups_of, pidfds, rounds, skip, until, wait_gone
from rollbox import Engine, RollboxError, Sandbox
from test_live import Asked, children, sh

STEPS = 1000 if os.environ.get("ROLLBOX_SOAK") else rounds(24, 10)
NEVER = 1 << 30

pytestmark = pytest.mark.timeout_s(1800 if os.environ.get("ROLLBOX_SOAK") else 120)


class Killer:
    """Of the next child of `pid` with that name, or ("-") of itself; `said` is its last line once the block is left."""

    def __init__(self, pid, name, step):
        self.process = subprocess.Popen([guest("killer"), str(pid), name, str(step)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            why = self.process.communicate()[1]
            if "Operation not permitted" in why:
                skip(f"what rollbox starts is not this caller's to trace: {why.strip()}")
            pytest.fail(why)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.said = self.process.communicate()[0].strip()


def steps(count):
    """0, and others up to the number that was counted."""
    return range(0, count, max(1, count // STEPS))


def counted(killer):
    (number,) = re.findall(r"after (\d+)", killer.said) or ["0"]
    assert int(number) > 0, f"it was not seen: {killer.said}"
    return int(number)


def frozen(pid):
    """Processes of a sandbox that are stopped or traced."""
    found = {}
    for one in descendants(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{one}/status").read_text(errors="replace")
            if "\nState:\tT" in status or "\nState:\tt" in status or "\nTracerPid:\t0\n" not in status:
                found[one] = status.split("\n", 1)[0]
    return found


def images(pid):
    """Those that a process has open: memory files, or files without a name in the place for them."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(entry))
    return [name for name in found if "rollbox-image" in name or re.fullmatch(r"/#\d+ \(deleted\)", name)]


class Running:
    """A sandbox with a tree of processes that hold a state."""

    def __init__(self, box):
        self.box, self.asked = box, Asked.begin(box, "import os, subprocess", "x = [1, 2, 3]", "r, w = os.pipe()", "os.write(w, b'kept')")
        self.asked("child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)")

    def holds(self):
        said = self.asked("(x, child.stdin.write(b'on' + b'\\n'), child.stdin.flush(), child.stdout.readline())")
        return said == "([1, 2, 3], 3, None, b'on\\n')"


def test_a_capturer_that_is_killed_at_any_step():
    """Nobody stands still, the snapshot is whole or there is none, and what ran runs, but for a process in which a call was being made, which may go with it; no image is left."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        running, lost = Running(box), []
        box.drop(box.snapshot())
        with Killer(engine.pid, "rollbox-capture", NEVER) as killer:
            box.drop(box.snapshot())
        tree = len(box.tree())
        assert not images(engine.pid)
        count = counted(killer)
        for step in steps(count):
            with Killer(engine.pid, "rollbox-capture", step) as killer:
                try:
                    box.drop(box.snapshot())
                except RollboxError as problem:
                    assert problem.code == "setup_failed" and "killed" in str(problem), (step, problem)
            assert killer.said.startswith(("killed", "ended")), killer.said
            until(lambda: not children(engine.pid, "rollbox-capture") and not frozen(box.inspect()["pid"]))
            assert sh(box, "echo on").stdout == "on\n" and len(box.tree()) == tree
            try:
                holds = running.holds()
            except BrokenPipeError:
                holds = False
            if not holds:
                lost.append(step)
                box.reset(processes="drop")
                running = Running(box)
                assert running.holds()
        assert not images(engine.pid)
        assert box.snapshot().processes == 2 and running.holds() and images(engine.pid)
        print(f"killed at {len(steps(count))} of {count} steps; one of its processes went with it at {len(lost)}: {lost}")


def helper_of(engine, name):
    """The process of the engine's that has this name, and not the inits of sandboxes, which are clones of it that have it, too."""
    found = []

    def is_there():
        for pid in children(engine.pid, name):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if len(re.search(r"\nNSpid:(.*)", Path(f"/proc/{pid}/status").read_text())[1].split()) == 1:
                    found.append(pid)
        return found

    until(is_there)
    return found[0]


def test_a_holder_that_is_killed_at_any_step():
    """The fork is made, or is refused in words; its origin runs on, and the next fork finds all that it needs."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        running = Running(box)
        with Killer(helper_of(engine, "rollbox-launch"), "rollbox-hold", NEVER) as killer:
            box.fork(1)[0].close()
        for step in steps(counted(killer)):
            with Killer(helper_of(engine, "rollbox-launch"), "rollbox-hold", step) as killer:
                with contextlib.suppress(RollboxError):
                    box.fork(1)[0].close()
            assert running.holds(), step
            with box.fork(1)[0] as kid:
                assert running.asked.of(kid)("x") == "[1, 2, 3]", step
        assert len(engine.sandboxes()) == 1


def test_a_fork_whose_init_is_killed_at_any_step():
    with Engine() as engine, Sandbox(engine=engine) as box:
        running = Running(box)
        at = box.snapshot()

        def forked():
            with box.fork(1, snapshot=at)[0] as kid:
                return running.asked.of(kid)("x") == "[1, 2, 3]"

        assert forked()
        with Killer(helper_of(engine, "rollbox-hold"), "*", NEVER) as killer:
            assert forked()
        for step in steps(counted(killer)):
            with Killer(helper_of(engine, "rollbox-hold"), "*", step) as killer:
                with contextlib.suppress(RollboxError, BrokenPipeError):
                    forked()
            assert running.holds(), step
            with contextlib.suppress(RollboxError, BrokenPipeError):     # it may get the box that was made ahead, and is dying
                forked()
            assert forked(), step
        assert len(engine.sandboxes()) == 1


def test_a_launcher_that_is_killed_at_any_step():
    """What runs runs on, and the next fork has another launcher."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        running = Running(box)
        with Killer(helper_of(engine, "rollbox-launch"), "-", NEVER) as killer:
            box.fork(1)[0].close()
        for step in steps(counted(killer)):
            with Killer(helper_of(engine, "rollbox-launch"), "-", step) as killer:
                with contextlib.suppress(RollboxError):
                    box.fork(1)[0].close()
            assert running.holds(), step
            with contextlib.suppress(RollboxError):     # which may be the first to hear of it
                box.fork(1)[0].close()
            with box.fork(1)[0] as kid:
                assert running.asked.of(kid)("x") == "[1, 2, 3]", step
        assert len(engine.sandboxes()) == 1


def test_an_init_that_is_killed_at_any_step_of_a_snapshot():
    """The snapshot is whole or refused; the sandbox' processes are gone, its files are not, and it works on."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        running = Running(box)
        with Killer(box.inspect()["pid"], "-", NEVER) as killer:
            box.snapshot()
        sh(box, "echo kept > /tmp/kept")
        for step in steps(counted(killer)):
            with Killer(box.inspect()["pid"], "-", step) as killer:
                with contextlib.suppress(RollboxError):
                    box.snapshot()
            if killer.said.startswith("killed"):
                with pytest.raises(RollboxError, match="init was killed"):
                    running.asked.process.wait()
                running = Running(box)
            assert sh(box, "cat /tmp/kept").stdout == "kept\n", step
            assert running.holds() and box.snapshot().processes == 2, step


def test_an_engine_that_is_killed_at_any_step_of_a_fork(tmp_path):
    """Everything that was below it is gone, and so are its groups."""
    count = step = 0
    while step <= count:
        with Engine() as engine:
            box = Sandbox(engine=engine)
            running = Running(box)
            assert running.holds()
            with Killer(engine.pid, "-", step if count else NEVER) as killer:
                family, pid = pidfds(descendants(engine.pid)[1:]), engine.pid
                with contextlib.suppress(RollboxError):
                    for kid in box.fork(1):
                        kid.close()
            if not count:
                count = counted(killer)
                for fd in family.values():
                    os.close(fd)
                continue
            step += max(1, count // STEPS)
            if killer.said.startswith("killed"):
                wait_gone(family)
                until(lambda: not groups_of(pid))
            else:
                for fd in family.values():
                    os.close(fd)
