# SPDX-License-Identifier: Apache-2.0
"""SIGKILL from outside for each process that an engine has: its sandboxes work again, with their
files, and it serves new runs.

The model: a sandbox is prepared in one of several ways, then processes of its engine are killed, in
several orders, each waited for. The first call
may say that a process was killed, as what was under way is lost; then the files are there, commands
run, what was snapshotted can be had again, and
a new run of the same policy works. Run as each caller, in a process of its own; one combination is
one line of its output.
"""

import pytest

from harness import caller  # noqa: F401

PREPARATIONS = [
    "idle",
    "written",
    "process",
    "layers",
    "live",
    "forked",
    "hibernated",
    "woken",
    "recorded",
    "code",
    "disk",
]

# Of names of processes: those of the engine's children that are killed, one after the other. "init"
# is the sandbox's own.
KILLS = [
    "init",
    "launch",
    "launch init",
    "init launch",
    "init launch init launch",
    "hold",
    "hold launch",
    "record",
    "measure",
    "janitor",
    "every",
]

SCRIPT = """
import os, select, signal, sys, tempfile
sys.path.insert(0, %r)
from rollbox import Engine, Policy, RollboxError, Sandbox

preparation, all_kills = %r
os.environ["ROLLBOX_STORE"] = os.path.join(tempfile.mkdtemp(), "store")


def children(engine):
    # name and pid of each; an init, whose comm is its launcher's, is known by its pid inside
    found = []
    for pid in map(int, open(f"/proc/{engine.pid}/task/{engine.pid}/children").read().split()):
        try:
            name = open(f"/proc/{pid}/comm").read().strip()
            inside = [line for line in open(f"/proc/{pid}/status") if line.startswith("NSpid")][0].split()[1:]
        except (OSError, IndexError):
            continue            # it has ended since
        found.append(("init" if len(inside) > 1 and inside[-1] == "1" else name.removeprefix("rollbox-"), pid))
    return found


def kill(pid):
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except ProcessLookupError:
        pass                    # it ended by itself just now
    select.select([fd], [], [])
    os.close(fd)


def patiently(call):
    # what was under way is lost, and told of as that; then it works
    told = []
    for _ in range(3):
        try:
            return call()
        except RollboxError as error:
            told.append(f"{type(error).__name__}: {error}")
            text = str(error)
            assert "killed from outside" in text or "may have killed it" in text or "has ended" in text or "was killed" in text, told
    raise AssertionError(told)


def prepare(box, engine):
    box.write_file("/tmp/v", "x")
    assert box.exec(["/bin/true"]).ok
    if preparation == "written":
        assert box.exec(["sh", "-c", "mkdir /tmp/d && echo y >/tmp/d/w"]).ok
    if preparation in ("process", "live", "forked", "woken", "hibernated"):
        # ready before it is captured
        process = box.spawn(["sh", "-c", "echo up; exec sleep 1000"])
        assert process.stdout.readline() == b"up\\n"
    if preparation == "layers":
        for i in range(3):
            box.write_file("/tmp/layer", str(i))
            box.snapshot()
            assert box.exec(["sh", "-c", "echo >>/tmp/layer"]).ok
    if preparation in ("live", "forked"):
        box.snapshot("at")
    if preparation == "forked":
        return box.fork(2)
    if preparation in ("hibernated", "woken"):
        box.hibernate()
    if preparation == "woken":
        box.wake()
    if preparation == "code":
        for _ in range(3):
            assert Sandbox(policy, engine=engine).run_code("print(1)").stdout == b"1\\n"
    return []


def round(kills, engine, box):
    kids = prepare(box, engine)
    if kills != "every" and not {name for name, _ in children(engine)} & set(kills.split()):
        return                  # this preparation needs none of them
    for which in [name for name, _ in children(engine)] if kills == "every" else kills.split():
        for name, pid in children(engine):
            if name == which:
                kill(pid)
    for one in [box, *kids]:
        assert patiently(lambda: one.read_file("/tmp/v")) == b"x"
        assert patiently(lambda: one.exec(["cat", "/tmp/v"])).stdout == b"x"
        one.write_file("/tmp/v", "z")
        assert one.exec(["cat", "/tmp/v"]).stdout == b"z"
    if preparation in ("live", "forked"):
        patiently(lambda: box.reset("at"))
        assert box.read_file("/tmp/v") == b"x"
    if preparation == "layers":
        assert box.read_file("/tmp/layer") == b"2\\n"
    fork = patiently(lambda: box.fork(1))[0]
    assert fork.exec(["cat", "/tmp/v"]).ok
    for kid in [fork, *kids]:
        kid.close()
    if preparation != "recorded":
        box.hibernate()
        assert box.exec(["cat", "/tmp/v"]).ok
    result = Sandbox(policy, engine=engine).run(["/bin/true"])
    assert result.ok, result
    result = Sandbox(policy, engine=engine).run_code("print(1)")
    assert result.stdout == b"1\\n", result


policy = Policy(max_disk="32M", **({"disk_at": "store"} if preparation == "disk" else {}))
for kills in all_kills:
    record = os.path.join(tempfile.mkdtemp(), "trajectory") if preparation == "recorded" else None
    print("kills:", kills, file=sys.stderr, flush=True)
    with Engine() as engine, Sandbox(policy, engine=engine, record=record) as box:
        round(kills, engine, box)
"""


@pytest.mark.parametrize("preparation", PREPARATIONS)
def test_session_works_again_after_each_kill(caller, preparation):
    done = caller.script(SCRIPT, (preparation, KILLS))
    assert done.returncode == 0, done.stderr.decode()[-3000:]
