# SPDX-License-Identifier: Apache-2.0
"""The processes that take a checkpoint are killed on the way, at each step that others can see: the
sandbox still runs, or is reported as gone, and nothing is left.

The model: guests/killer.c kills a process between two of its system calls, and says how many it
made. A first round counts; the others are spread over all that were counted, and each kills another
process: the dump worker, a
zygote, the init of a new sandbox, that of the sandbox itself, the engine. make soak takes more of them (ROLLBOX_SOAK).
"""

import contextlib
import os
import re
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import children, descendants, limited, pidfds, repeat_count, until, wait_gone, wait_groups_gone
from rollbox import Engine, Policy, ResourceExhausted, RollboxError, Sandbox, SetupFailed
from asked import Asked, images, node_of, sh
from killer import frozen, Killer

STEPS = repeat_count(16, 6, 1000)
NEVER = 1 << 30

pytestmark = pytest.mark.timeout_s(1800 if os.environ.get("ROLLBOX_SOAK") else 120)


def steps(count):
    """0, and others up to the number that was counted."""
    return range(0, count, max(1, count // STEPS))


def counted(killer):
    (number,) = re.findall(r"after (\d+)", killer.said) or ["0"]
    assert int(number) > 0, f"it was not seen: {killer.said}"
    return int(number)


def captured(engine):
    """The engine reports a snapshot when its image is written; the dump worker releases the
    processes after that, and may be killed meanwhile."""
    until(lambda: not children(engine.pid, "rollbox-capture"))


class Running:
    """A sandbox with a tree of processes that hold a state."""

    def __init__(self, box):
        self.box, self.asked = (
            box,
            Asked.begin(
                box,
                "import os, subprocess",
                "x = [1, 2, 3]",
                "r, w = os.pipe()",
                "os.write(w, b'kept')",
            ),
        )
        self.asked("child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)")

    def holds(self):
        said = self.asked("(x, child.stdin.write(b'on' + b'\\n'), child.stdin.flush(), child.stdout.readline())")
        return said == "([1, 2, 3], 3, None, b'on\\n')"


def test_dump_worker_killed_at_any_step():
    """No process stays paused, the snapshot is complete or there is none, and all processes run,
    except that one in which a call was being made may end with it; no image is left."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        running, lost = Running(box), []
        box.drop(box.snapshot())
        with Killer(engine.pid, "rollbox-capture", NEVER) as killer:
            box.drop(box.snapshot())
            captured(engine)
        tree = len(box.tree())
        assert not images(engine.pid)
        count = counted(killer)
        for step in steps(count):
            with Killer(engine.pid, "rollbox-capture", step) as killer:
                try:
                    box.drop(box.snapshot())
                except RollboxError as problem:
                    assert problem.code == "setup_failed" and "killed" in str(problem), (step, problem)
                captured(engine)
            assert killer.said.startswith(("killed", "ended")), killer.said
            until(lambda: not frozen(box.inspect()["pid"]))
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
        print(
            f"killed at {len(steps(count))} of {count} steps; one of its processes went with it at {len(lost)}: {lost}"
        )


@pytest.mark.long
def test_dump_worker_killed_at_any_step_of_a_fork():
    """A zygote that loads an image while it is written notices that the rest will never come: the
    fork fails, and nothing of it is left but the last image of the origin and its parent."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        running, refused = Running(box), 0
        with Killer(engine.pid, "rollbox-capture", NEVER) as killer:
            box.fork(1)[0].close()
            captured(engine)
        count = counted(killer)
        for step in steps(count):
            with Killer(engine.pid, "rollbox-capture", step) as killer:
                try:
                    box.fork(1)[0].close()
                except RollboxError as problem:
                    assert problem.code == "setup_failed" and "killed" in str(problem), (step, problem)
                    refused += 1
                captured(engine)
            until(lambda: not frozen(box.inspect()["pid"]))
            # Dirty tracking keeps its parent image, with the zygote; the last image may be an increment of it.
            until(lambda: len(children(engine.pid, "rollbox-hold")) <= 1 and len(images(engine.pid)) <= 2)
            try:
                holds = running.holds()
            except BrokenPipeError:
                holds = False
            if not holds:
                box.reset(processes="drop")
                running = Running(box)
            with box.fork(1)[0] as kid:
                assert running.asked.of(kid)("x") == "[1, 2, 3]", step
        assert refused and len(engine.sandboxes()) == 1


def helper_of(engine, name):
    """The process of the engine's that has this name, and not the inits of sandboxes, which are
    clones of it that have it, too."""
    found = []

    def is_there():
        for pid in children(engine.pid, name):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if len(re.search(r"\nNSpid:(.*)", Path(f"/proc/{pid}/status").read_text())[1].split()) == 1:
                    found.append(pid)
        return found

    until(is_there)
    return found[0]


def test_zygote_killed_at_any_step():
    """The forks are made, or refused in words; their origin runs on, and the next fork finds all that it needs."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        running = Running(box)
        with Killer(helper_of(engine, "rollbox-launch"), "rollbox-hold", NEVER) as killer:
            for kid in box.fork(2):
                kid.close()
        for step in steps(counted(killer)):
            with Killer(helper_of(engine, "rollbox-launch"), "rollbox-hold", step) as killer:
                with contextlib.suppress(RollboxError):
                    for kid in box.fork(2):
                        kid.close()
            assert running.holds(), step
            with box.fork(1)[0] as kid:
                assert running.asked.of(kid)("x") == "[1, 2, 3]", step
        assert len(engine.sandboxes()) == 1


def test_fork_whose_init_is_killed_at_any_step():
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
            assert forked(), step       # also if a prefork is dying by now
        assert len(engine.sandboxes()) == 1


def test_zygote_killed_while_a_prefork_waits_for_it():
    """A fork that waits for it, with a prefork or without, gets another box from a new zygote."""
    with Engine() as engine, Sandbox(engine=engine) as box, contextlib.ExitStack() as kids:
        running = Running(box)
        at = box.snapshot()

        def fork():
            return kids.enter_context(box.fork(1, snapshot=at)[0])

        for _ in range(2):
            fork()              # the second is followed by another prefork
        zygote = helper_of(engine, "rollbox-hold")

        def boxes():
            return [pid for pid in children(engine.pid, "rollbox-hold") if pid != zygote and len(descendants(pid)) > 1]

        until(
            lambda: (
                len(boxes()) == 2 + 1
                and Path(f"/proc/{zygote}/stat").read_text().rpartition(")")[2].split()[0] == "S"
            )
        )
        os.kill(zygote, signal.SIGSTOP)
        with ThreadPoolExecutor(2) as pool:
            # The box that is there is taken by one of them, unless it has waited too long; the
            # other waits for one that nobody makes.
            asked = [pool.submit(fork) for _ in range(2)]
            until(lambda: len(engine.sandboxes()) == 1 + 2 + 2 or len(boxes()) < 2 + 1)
            assert not all(fork.done() for fork in asked)
            os.kill(zygote, signal.SIGKILL)
            for kid in asked:
                assert running.asked.of(kid.result())("x") == "[1, 2, 3]"


@pytest.mark.parametrize("count", (1, 2))
def test_loading_zygote_cannot_write_to_its_image(count):
    """Not even while it is written."""
    name = "rollbox-hold"
    with Engine() as engine, Sandbox(Policy(max_memory="1G"), engine=engine) as box:
        running, seen = Running(box), []
        running.asked("y = os.urandom(200 << 20)")
        while not seen:
            with ThreadPoolExecutor(1) as pool:
                before = children(engine.pid, name)
                kids = pool.submit(box.fork, count)
                until(lambda: kids.done() or set(children(engine.pid, name)) - set(before))
                for loader in set(children(engine.pid, name)) - set(before):
                    with contextlib.suppress(
                        FileNotFoundError, ProcessLookupError
                    ):  # it may end, or close what is looked at, before it stops
                        os.kill(loader, signal.SIGSTOP)
                        for number, file in images(loader).items():
                            flags = re.search(r"flags:\s+(\d+)", Path(f"/proc/{loader}/fdinfo/{number}").read_text())[1]
                            seen.append((file, int(flags, 8) & os.O_ACCMODE))
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(loader, signal.SIGCONT)
            assert [running.asked.of(kid)("len(y)") for kid in kids.result()] == count * [str(200 << 20)]
            for kid in kids.result():
                kid.close()
        assert all(mode == os.O_RDONLY for _, mode in seen), seen


def test_launcher_killed_at_any_step():
    """Running processes still run, and the next fork has another launcher."""
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


def test_session_closed_while_a_refused_dump_ends():
    """The kernel reports the end of a killed process's first thread only after its tracer has
    waited for the other threads."""
    for _ in range(repeat_count(15, 5, 200)):
        with Engine() as engine:
            box = Sandbox({"max_processes": 60}, engine=engine)
            Asked.begin(
                box,
                "import threading",
                "go = threading.Event()",
                "[threading.Thread(target=go.wait, daemon=True).start() for _ in range(3)]",
                "x = bytearray(b'x' * (4 << 20))",
                "file = open('/tmp/file', 'w')",
                "file.write('x'), file.flush()",
            )
            os.kill(helper_of(engine, "rollbox-launch"), signal.SIGKILL)
            with contextlib.suppress(RollboxError):
                box.snapshot()
            box.close()


def test_dump_is_refused_at_once_when_init_holds_threads():
    """It waited its full time for each that did not stand when it was refused, since init holds it:
    until the engine lost patience, and said that. What it has done until then is counted, not the
    time."""
    with (
        Engine() as engine,
        Sandbox(
            {"time_start": "2025-01-01", "time_mode": "virtual", "max_processes": 400},
            engine=engine,
        ) as box,
    ):
        asked = Asked.begin(
            box,
            "import threading, time",
            "threads = [threading.Thread(target=time.sleep, args=(1000000,), daemon=True) for _ in range(300)]",
            "[thread.start() for thread in threads]",
        )
        with Killer(engine.pid, "rollbox-capture", 20000) as killer:
            with pytest.raises(RollboxError, match="it has more than 255 threads"):
                box.snapshot()
            captured(engine)
        assert killer.said.startswith("ended"), killer.said
        assert not frozen(box.inspect()["pid"]) and asked("sum(thread.is_alive() for thread in threads)") == "300"


def test_flattening_process_killed_at_any_step():
    """The caller gets an error, and the result with its next call."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        asked = Asked.begin(box, "big = bytearray(b'x' * (8 << 20))", "x = [1]")
        said = set()

        def shown(step):
            """Of a new snapshot, which has not been flattened: the text, and whether it was an error."""
            asked(f"x.append({step})")
            with box.fork(1)[0] as kid, Killer(engine.pid, "rollbox-whole", step) as killer:
                state = node_of(kid)
                assert state.memory_bytes < 4 << 20
                try:
                    memory = kid.show(state.id)["processes"][0]["memory_bytes"]
                except SetupFailed as problem:
                    assert "put the image of the processes together was killed from outside; try again" in str(problem)
                    said.add("refused")
                    memory = kid.show(state.id)["processes"][0]["memory_bytes"]
                assert memory > 8 << 20 and asked.of(kid)("x, sum(big) == 120 << 23") == asked("x, True")
            return killer

        for _ in range(2):
            box.fork(1)[0].close()
        for step in steps(counted(shown(NEVER))):
            assert shown(step).said.startswith(("killed", "ended"))
        assert said == {"refused"} and len(engine.sandboxes()) == 1


def test_missing_descriptors_for_dirty_tracking_are_reported():
    """The engine lacks them when the dump worker, which had enough, sends its own: the error once
    said that it was killed from outside."""
    with Engine() as engine, Sandbox(engine=engine) as box, ThreadPoolExecutor(1) as pool:
        asked = Asked.begin(
            box,
            "import subprocess",
            "kids = [subprocess.Popen(['cat'], stdin=subprocess.PIPE) for _ in range(19)]",
            "x = 1",
        )
        with contextlib.ExitStack() as stack:
            with Killer(engine.pid, "+", 0):
                before = set(children(engine.pid, "rollbox-engine"))
                forking = pool.submit(box.fork, 1)
                until(
                    lambda: forking.done() or set(children(engine.pid, "rollbox-engine")) - before
                )  # the dump worker, which is stopped at its start
                stack.enter_context(
                    limited(
                        engine.pid,
                        resource.RLIMIT_NOFILE,
                        max(int(fd) for fd in os.listdir(f"/proc/{engine.pid}/fd")) + 1,
                    )
                )
            with pytest.raises(ResourceExhausted, match="no descriptors left for dirty tracking"):
                forking.result()
        until(lambda: not frozen(box.inspect()["pid"]))
        for _ in range(3):
            with box.fork(1)[0] as kid:
                assert asked.of(kid)("x") == asked("x") == "1"


def test_preforks_end_with_their_launcher():
    """Files of a sandbox that it has made nobody else can copy."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        Asked.begin(box, "x = 1")
        box.fork(1)[0].close()
        until(
            lambda: len(children(engine.pid, "rollbox-launch")) > 2
        )  # it, that of this sandbox, and that of the next
        launcher = helper_of(engine, "rollbox-launch")
        os.kill(launcher, signal.SIGKILL)
        until(lambda: launcher not in children(engine.pid, "rollbox-launch"))
        for _ in range(2):
            with Sandbox(engine=engine) as other:
                asked = Asked.begin(other, "file = open('/tmp/file', 'w')", "file.write('x'), file.flush()")
                with other.fork(1)[0] as kid:
                    assert sh(kid, "cat /tmp/file").stdout == "x" and asked.of(kid)("file.tell()") == "1"


def test_init_killed_at_any_step_of_a_snapshot():
    """The snapshot is whole or refused; the sandbox's processes are gone, its files are not, and it works on."""
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


def test_engine_killed_at_any_step_of_a_fork(tmp_path):
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
                wait_groups_gone(pid)
            else:
                for fd in family.values():
                    os.close(fd)


GREEDY = """
import os, random
held = bytearray(os.urandom(20 << 20))
print("ready", flush=True)
while True:
    held[::4096] = os.urandom(len(held) // 4096)
    more = [bytearray(b"1") * (1 << 20) for _ in range(random.randrange(60))]
    del more
"""


@pytest.mark.long
def test_sandbox_ended_by_oom_during_a_dump():
    """Its snapshot is of what is left. An ordinary user's has no group: it is killed when it is
    looked at, most often as it stands there and is read, which said "Bad address"."""
    for _ in range(repeat_count(6, 6, 60)):
        with Sandbox(Policy(max_memory="64M")) as box:
            process, taken = box.spawn(["python3", "-c", GREEDY]), 1
            assert process.stdout.readline() == b"ready\n"
            while taken:
                try:
                    state = box.snapshot()
                    taken = state.processes
                    if taken:               # the last one may be the beginning, which nobody can drop
                        box.drop(state)
                except RollboxError as problem:     # nobody has looked yet
                    assert "more than 67108864 bytes of memory" in str(problem), problem
            assert process.wait().outcome == "out_of_memory"
