# SPDX-License-Identifier: Apache-2.0
"""Many sandboxes that live, and few descriptors: what belongs to those in which nothing is under way is held by processes of the engine's, and is there when it is wanted.

The model: an engine with a low limit of open files, and several times as many clones as it could hold by itself. make check runs this file as root and as an ordinary user, and nothing beside it: descriptors under
way are counted by user, and held against that low limit.
"""

import contextlib
import os
import re
import resource
import signal
from pathlib import Path

import pytest
from harness import binaries, children, descendants, groups_of, limited, pidfds, skip, until, wait_gone
from rollbox import Engine, NotFound, Policy, ResourceExhausted, RollboxError, Sandbox
from test_live import Asked, restorer  # noqa: F401

FILES = 320
CLONES = 120        # at seven descriptors each
ONE_MORE = 26       # of a sandbox that is made, until it lives


def files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def shelves(pid):
    return children(pid, "rollbox-shelf")


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


def clones(box, snapshot, n=CLONES):
    return [kid for _ in range(n // 10) for kid in box.fork(10, snapshot=snapshot)]


def test_each_answers_and_nothing_is_left(engine):
    pid = engine.status()["pid"]
    with Sandbox(engine=engine) as box:
        asked = Asked.begin(box, "x = 7")
        box.write_file("/tmp/f", b"before")
        base = box.snapshot()
        for kid in box.fork(2, snapshot=base):
            kid.close()
        kids = clones(box, base)
        assert shelves(pid) and files(pid) < FILES
        for n, kid in enumerate(kids):
            copy = asked.of(kid)
            assert copy(f"(globals().update(x=x + {n}), x)[1]") == str(7 + n)
            kid.write_file("/tmp/f", str(n).encode())
        for n, kid in enumerate(kids):
            assert kid.read_file("/tmp/f") == str(n).encode() and kid.exec(["sh", "-c", "echo $0", str(n)], text=True).stdout == f"{n}\n"
            assert kid.inspect()["state"] in ("running", "idle")
        grandchild = kids[5].fork(1)[0]
        assert grandchild.read_file("/tmp/f") == b"5"
        kids[6].reset(base)
        assert kids[6].read_file("/tmp/f") == b"before" and asked.of(kids[6])("x") == "7"
        for kid in [*kids, grandchild]:
            kid.close()
        until(lambda: not shelves(pid))
        until(lambda: files(pid) < FILES // 4)
        assert asked("x") == "7"


def test_none_is_refused_while_others_can_rest(engine):
    """Room is made among those that hold their descriptors, however many rest already: who is refused finds no more of it by asking again but what a spare sandbox gives back."""
    boxes = []

    def add():
        boxes.append(Sandbox(engine=engine))
        boxes[-1].exec(["true"])

    with pytest.raises(ResourceExhausted):
        for _ in range(FILES):
            add()
    assert shelves(engine.status()["pid"])
    later = 0
    for _ in range(FILES // 4):
        with contextlib.suppress(ResourceExhausted):
            add()
            later += 1
    assert later <= ONE_MORE
    for box in boxes:
        box.close()


def test_what_they_do_there_is_seen(engine, tmp_path):
    """What is printed, and how a command ends, while the engine holds nothing of it."""
    (tmp_path / "shared").mkdir(mode=0o777)
    (tmp_path / "shared").chmod(0o777)
    wait = f"import os, sys, time\nprint('early', flush=True)\nwhile not os.path.exists('{tmp_path}/shared/go'): time.sleep(0.05)\nprint('late'); sys.exit(7)"
    with Sandbox(Policy(fs_shared=[str(tmp_path / "shared")]), engine=engine) as box:
        process = box.spawn(["python3", "-I", "-S", "-c", wait])
        assert process.stdout.readline() == b"early\n"
        kids = clones(box, box.snapshot(), 60)
        assert shelves(engine.status()["pid"])
        (tmp_path / "shared" / "go").touch()
        for kid in kids:
            done = kid.process(process.id).wait(60)
            assert (done.exit_code, done.stdout) == (7, b"late\n")


@pytest.mark.parametrize("ends", ["stop", "kill"])
def test_the_end_of_the_engine_is_theirs(few, ends):
    engine = Engine()
    pid = engine.status()["pid"]
    groups = groups_of(pid)
    box = Sandbox(engine=engine)
    Asked.begin(box, "x = 1")
    kids = clones(box, box.snapshot())
    assert shelves(pid) and len(kids) == CLONES
    family = pidfds(descendants(pid))
    if ends == "stop":
        engine.close()
    else:
        os.kill(pid, signal.SIGKILL)
    wait_gone(family)
    until(lambda: not groups or groups_of(pid) == [])
    if ends == "kill":
        engine.close()


def test_a_shelf_that_is_killed(engine):
    """Its sandboxes are gone with what it held of them, and told to be; nobody else's, and nothing is left."""
    pid = engine.status()["pid"]
    with Sandbox(engine=engine) as box:
        asked = Asked.begin(box, "x = 1")
        base = box.snapshot()
        kids = clones(box, base)
        before, killed = engine.status()["sessions"], pidfds(shelves(pid))
        for shelf in killed:
            os.kill(shelf, signal.SIGKILL)
        wait_gone(killed, "shelves")
        lost = 0
        for kid in kids:
            try:
                assert asked.of(kid)("x") == "1"
            except NotFound:
                lost += 1
        assert 0 < lost < len(kids)
        until(lambda: engine.status()["sessions"] == before - lost)
        assert asked("x") == "1"
        for kid in kids:
            kid.close()
        assert [asked.of(kid)("x") for kid in box.fork(2, snapshot=base)] == ["1"] * 2
        until(lambda: len(descendants(pid)) < 30)


def test_a_shelf_that_is_stopped(engine):
    """Who waits for it in vain is told, and it is ended, so that all else it held is known to be gone without being asked for."""
    pid = engine.status()["pid"]
    boxes = [Sandbox(engine=engine) for _ in range(FILES // 4)]
    for box in boxes:
        box.exec(["true"])
    before, stopped = engine.status()["sessions"], shelves(pid)
    family = pidfds(stopped)
    for shelf in stopped:
        os.kill(shelf, signal.SIGSTOP)
    with pytest.raises(NotFound):
        for box in boxes:
            box.exec(["true"])
    wait_gone(family, "shelves")
    until(lambda: 0 < engine.status()["sessions"] < before - 1)
    for box in boxes:
        box.close()
    with Sandbox(engine=engine) as box:
        assert box.exec(["true"]).exit_code == 0


def test_no_room_is_told_with_what_to_do(few):
    """Whatever it is that finds no descriptor, the message says what to do, all that was taken is given back, and the engine goes on."""
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


def test_a_slow_reader_misses_nothing_where_no_descriptor_is_left():
    """What a command that has ended leaves to its reader is shared with the result, by another descriptor; where there is none, copied."""
    with Engine() as engine, Sandbox(Policy(max_output="8M"), engine=engine) as box:
        process = box.spawn(["sh", "-c", "head -c 3000000 /dev/zero; touch /tmp/written; read line"])
        until(lambda: box.exists("/tmp/written"))
        with limited(engine.status()["pid"], resource.RLIMIT_NOFILE, 1):
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.wait().outcome == "exit"
        assert len(process.stdout.read()) == 3000000


def test_a_command_that_finds_no_descriptor_is_told_why():
    with Engine() as engine, Sandbox(engine=engine) as box:
        box.exec(["true"])
        with limited(engine.status()["pid"], resource.RLIMIT_NOFILE, 1), pytest.raises(ResourceExhausted, match="no descriptor left .*ulimit -n"):
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


@pytest.mark.parametrize("limit, step", [(resource.RLIMIT_NOFILE, 1), (resource.RLIMIT_AS, 16 << 10), (resource.RLIMIT_AS, 128 << 10)])
def test_what_cannot_be_looked_for_is_not_taken_for_nothing(limit, step):
    """A capturer without a descriptor or memory says so: it does not miss processes or threads, and does not look for ever for those that are said to be there."""
    with Engine() as engine, Sandbox(engine=engine) as box:
        box.spawn(["python3", "-c", FOUR])
        until(lambda: len(box.exec(["ls", "/tmp"]).stdout.split()) == 4)
        pid, refused = engine.status()["pid"], 0
        assert box.snapshot().processes == 4
        for more in range(40):
            used = files(pid) if limit == resource.RLIMIT_NOFILE else int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
            with limited(pid, limit, used + more * step):
                try:
                    box.write_file("/tmp/written", bytes([more]))
                    assert box.snapshot().processes == 4
                except ResourceExhausted:
                    refused += 1
        assert refused and box.snapshot().processes == 4
        until(lambda: len(box.processes()) == 4)        # and no twin stays


def test_a_limit_of_a_moment_does_not_stay():
    """A launcher that was born while its engine had little room for addresses makes sandboxes that can be captured all the same: the room was raised again."""
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
