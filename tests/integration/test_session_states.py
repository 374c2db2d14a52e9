# SPDX-License-Identifier: Apache-2.0
"""Sessions after limits, after the end of their init or engine, with long chains of snapshots, and
with readers during commits."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollbox import Conflict, Engine, InvalidArgument, NotFound, Outcome, Policy, RollboxError, Sandbox
from harness import BUILD, pidfds, serves, until, wait_gone
from stores import Shared
from asked import closing


def shell(box, script, **options):
    return box.exec(["sh", "-c", script], text=True, **options)


# Limits

def test_out_of_memory_ends_the_processes_and_keeps_the_files():
    with Sandbox(Policy(max_memory="64M")) as box:
        shell(box, "echo kept > /tmp/f; sleep 1000 & :")
        result = box.exec(["python3", "-I", "-S", "-c", "x = bytearray(1 << 30)"])
        assert result.outcome is Outcome.OUT_OF_MEMORY and result.exit_code is None
        assert shell(box, "cat /tmp/f").stdout == "kept\n"


def test_kill_after_out_of_memory_is_a_signal():
    with Sandbox(Policy(max_memory="64M")) as box:
        for _ in range(2):
            assert box.exec(["python3", "-I", "-S", "-c", "x = bytearray(1 << 30)"]).outcome is Outcome.OUT_OF_MEMORY
            result = shell(box, "kill -9 $$")
            assert result.outcome is Outcome.SIGNAL and result.signal == 9


def test_limits_start_at_zero_in_a_reused_cgroup():
    """The counts, limits and leftovers of a sandbox do not affect the next one, which may get its control group."""
    with Engine() as engine:
        for _ in range(4):
            with Sandbox(Policy(max_memory="64M"), engine=engine) as box:
                result = box.exec(
                    [
                        "python3",
                        "-I",
                        "-S",
                        "-c",
                        "x = bytearray(b'1' * (24 << 20)); open('/tmp/f', 'wb').write(x); print('fits')",
                    ],
                    text=True,
                )
                assert (result.outcome, result.stdout) == (Outcome.EXIT, "fits\n"), result
                assert box.inspect()["memory_bytes"] > 24 << 20
                assert (
                    box.exec(["python3", "-I", "-S", "-c", "x = bytearray(1 << 30)"]).outcome
                    is Outcome.OUT_OF_MEMORY
                )
            with Sandbox(Policy(max_memory="64M"), engine=engine) as box:
                assert shell(box, "echo begins").stdout == "begins\n"
                assert box.inspect()["memory_bytes"] < 24 << 20


def test_session_full_of_processes_can_be_signalled():
    with Sandbox(Policy(max_processes=12)) as box:
        shell(box, "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sleep 1000 & done; :", timeout=30)
        assert shell(box, "echo runs").stdout == "runs\n"
        box.write_file("/tmp/f", b"written")
        assert box.read_file("/tmp/f") == b"written"
        box.kill_all()
        until(lambda: not box.processes())
        assert shell(box, "true & wait; echo free").stdout == "free\n"


def test_layers_count_as_disk():
    with Sandbox(Policy(max_disk="16M")) as box:
        shell(box, "head -c 12M /dev/zero > /tmp/a")
        base = box.snapshot()
        result = shell(box, "head -c 12M /dev/zero > /tmp/b")
        assert result.exit_code != 0 and "space" in result.stderr
        kid = box.fork(1)[0]
        assert shell(kid, "head -c 12M /dev/zero > /tmp/b").exit_code != 0
        assert (
            shell(kid, "rm /tmp/a && rm /tmp/b && echo more > /tmp/c && cat /tmp/c").stdout
            == "more\n"
        ), "a full sandbox can delete"
        kid.close()
        box.reset(base)
        assert shell(box, "ls /tmp").stdout == "a\n"


# Killed

def test_files_survive_the_death_of_init():
    with Sandbox() as box:
        shell(box, "echo kept > /tmp/f; mkdir /tmp/d; echo deep > /tmp/d/g; sleep 1000 & :")
        init = box.inspect()["pid"]
        family = pidfds([init])
        os.kill(init, signal.SIGKILL)
        wait_gone(family)
        until(lambda: box.inspect()["pid"] != init)
        assert shell(box, "cat /tmp/f /tmp/d/g").stdout == "kept\ndeep\n" and not box.processes()


def test_running_command_reports_the_death_of_init():
    with Sandbox() as box:
        with box.spawn(["sleep", "1000"]) as process:
            until(lambda: box.processes())
            os.kill(box.inspect()["pid"], signal.SIGKILL)
            with pytest.raises(RollboxError) as caught:
                process.wait()
            assert caught.value.code == "setup_failed"


def test_snapshots_work_after_init_was_killed():
    with Sandbox() as box:
        shell(box, "echo one > /tmp/f")
        one = box.snapshot()
        shell(box, "echo two > /tmp/f; sleep 1000 & :")
        os.kill(box.inspect()["pid"], signal.SIGKILL)
        until(lambda: not box.processes())
        two = box.snapshot()
        box.reset(one)
        assert shell(box, "cat /tmp/f").stdout == "one\n"
        box.reset(two)
        assert shell(box, "cat /tmp/f").stdout == "two\n"


# Stacked

def test_long_chain_has_the_same_files_as_a_short_one():
    with Sandbox() as box:
        shell(box, "mkdir /tmp/d; for i in $(seq 50); do echo $i > /tmp/d/$i; done")
        middle = None
        for i in range(60):
            shell(
                box,
                f"echo {i} > /tmp/d/last; echo {i} > /tmp/n{i}; rm -f /tmp/n{i - 2} /tmp/d/{i}; mkdir -p /tmp/e{i % 7}; rm -rf /tmp/e{(i + 3) % 7}; ln -sf {i} /tmp/link",
            )
            snapshot = box.snapshot()
            middle = snapshot if i == 30 else middle
        state = "cd /tmp; ls . d e*; cat d/last; readlink link"
        now = shell(box, state).stdout
        assert now == shell(box.fork(1)[0], state).stdout
        box.reset(middle)
        assert shell(box, "cat /tmp/d/last; readlink /tmp/link; ls /tmp | grep -c '^n'").stdout == "30\n30\n2\n"


def test_snapshot_without_writes_is_the_same_snapshot():
    with Sandbox() as box:
        shell(box, "echo x > /tmp/f")
        one = box.snapshot()
        shell(box, "cat /tmp/f; ls -la /tmp; stat /tmp/f")
        assert box.snapshot().id == one.id
        shell(box, "touch /tmp/g; rm /tmp/g")
        assert box.snapshot().id != one.id


def test_second_name_leaves_the_first():
    with Sandbox() as box:
        shell(box, "echo 1 > /tmp/f")
        for name in "aab":
            box.snapshot(name)
        shell(box, "echo 2 > /tmp/f")
        box.snapshot("c")
        assert box.diff("a", "b") == [] and [change.path for change in box.diff("b", "c")] == [
            change.path for change in box.diff("a", "c")
        ] == ["/tmp/f"]
        for name in "acbac":
            box.reset(name)
            assert shell(box, "cat /tmp/f").stdout == ("2\n" if name == "c" else "1\n")
        other = box.fork(1)[0]
        other.snapshot("d")
        box.reset("c")
        box.drop("a")
        box.reset("b")
        assert shell(box, "cat /tmp/f").stdout == "1\n"


def test_first_write_in_a_new_box_is_a_change():
    """With many at once, an engine learns late that a box is ready: by then the command must not
    have written, or its files count as untouched."""
    lost = []

    def work():
        with Sandbox() as box:
            box.write_file("/tmp/f", "old")
            box.snapshot("start")
            for i in range(8):
                box.reset("start")
                box.exec("echo new > /tmp/f", check=True)
                box.snapshot(f"end-{i}")
                box.reset(f"end-{i}")
                lost.extend([i] if box.read_file("/tmp/f") != b"new\n" else [])

    with ThreadPoolExecutor(32) as pool:
        for done in [pool.submit(work) for _ in range(32)]:
            done.result()
    assert lost == []


STOPPER = """
import os, signal, sys, threading
def work():
    while True:
        pass
children = []
for n in range(8):
    child = os.fork()
    if not child:
        if n % 2:
            threading.Thread(target=work).start()
        work()
    children.append(child)
for line in sys.stdin:
    for child in children:
        os.kill(child, signal.SIGSTOP if line == "stop\\n" else signal.SIGCONT)
    print(*children, flush=True)
"""


def test_resume_leaves_guest_stopped_processes_stopped():
    """With more that runs than there are processors, a stop takes its time: the pause finds it under way."""
    with Sandbox() as box, box.spawn(["/usr/bin/python3", "-Ic", STOPPER]) as process:
        def told(word):
            process.stdin.write(word)
            process.stdin.flush()
            return process.stdout.readline().decode().split()

        def states():
            return [
                box.exec(["cat", f"/proc/{child}/stat"], text=True)
                .stdout.rsplit(")", 1)[1]
                .split()[0]
                for child in children
            ]

        for _ in range(5):
            children = told(b"stop\n")
            box.pause()
            box.resume()
            assert states() == ["T"] * len(children)
            told(b"continue\n")
            until(lambda: "T" not in states())
        box.pause()
        box.resume()
        assert "T" not in states()
        process.kill()


def test_fork_index_is_in_the_environment():
    """The index among the forks of one request. A request can set another value; the policy, which
    all share, cannot."""
    told = ["sh", "-c", "echo ${CLONE_ID-none}"]
    with Sandbox(Policy(env={"CLONE_ID": "of all"})) as box:
        assert box.exec(told, text=True).stdout == "of all\n" and box.inspect()["clone_id"] is None
        with closing(box.fork(3)) as kids:
            assert [kid.exec(told, text=True).stdout for kid in kids] == ["0\n", "1\n", "2\n"]
            assert [kid.inspect()["clone_id"] for kid in kids] == [0, 1, 2]
            assert kids[2].exec(told, text=True, env={"CLONE_ID": "mine"}).stdout == "mine\n"
            with kids[2].shell() as shell:
                assert shell.run("echo $CLONE_ID", text=True).stdout == "2\n"
            with closing(kids[2].fork(2)) as grandchildren:
                assert [kid.exec(told, text=True).stdout for kid in grandchildren] == ["0\n", "1\n"]
            base = kids[1].snapshot()
            kids[1].reset(base)
            assert kids[1].exec(told, text=True).stdout == "1\n"
    with Sandbox() as box:
        assert box.exec(told, text=True).stdout == "none\n"


def test_dropping_a_snapshot_keeps_later_ones():
    with Sandbox() as box:
        ids = []
        for i in range(3):
            shell(box, f"echo {i} > /tmp/f{i}")
            ids.append(box.snapshot())
        box.drop(ids[1])
        assert ids[1].id not in [node.id for node in box.tree()]
        with pytest.raises(NotFound):
            box.reset(ids[1])
        box.reset(ids[2])
        assert shell(box, "cat /tmp/f*").stdout == "0\n1\n2\n"


def test_snapshot_id_is_not_reused_after_a_drop():
    with Sandbox() as box:
        shell(box, "echo 1 > /tmp/file")
        first = box.snapshot()
        box.drop(first)
        second = box.snapshot()
        assert second.id != first.id and [(node.id, node.parent) for node in box.tree()][1:] == [
            (second.id, box.tree()[0].id)
        ]
        assert box.snapshot().id == second.id
        with box.fork(1, snapshot=second)[0] as kid:
            assert shell(kid, "cat /tmp/file").stdout == "1\n"


@pytest.mark.parametrize("processes", ["keep", "drop"])
def test_snapshot_under_writers_is_atomic(processes):
    """Two files are always written in the same order: a copy may not have the second one's newer."""
    with Sandbox() as box:
        with box.spawn(["python3", "-I", "-S", "-c", """
import os
a, b = os.open("/tmp/a", os.O_RDWR | os.O_CREAT), os.open("/tmp/b", os.O_RDWR | os.O_CREAT)
n = 0
while True:
    n += 1
    os.pwrite(a, b"%08d" % n, 0)
    os.pwrite(b, b"%08d" % n, 0)
    if n == 1: print("on", flush=True)
"""]) as writer:
            writer.stdout.readline()
            for _ in range(10):
                kid = box.fork(1, snapshot=box.snapshot(processes=processes), processes="drop")[0]
                a, b = int(kid.read_file("/tmp/a")), int(kid.read_file("/tmp/b"))
                assert a - b in (0, 1)
                kid.close()


# Published

@pytest.fixture
def granted(tmp_path):
    directory = tmp_path / "work"
    directory.mkdir()
    (directory / "a").write_text("a\n")
    (directory / "b").write_text("b\n")
    (directory / "sub").mkdir()
    (directory / "sub" / "c").write_text("c\n")
    for at in (tmp_path, *tmp_path.parents):
        if at.stat().st_uid == os.getuid() and at != at.parent:
            at.chmod(at.stat().st_mode | 0o755)
    return directory


def test_commits_one_after_the_other(granted):
    with Sandbox(Policy(fs_writable=[str(granted)])) as box:
        shell(box, f"cd {granted}; echo 1 > a; rm b; echo n > sub/n")
        box.commit()
        assert (
            (granted / "a").read_text() == "1\n"
            and not (granted / "b").exists()
            and (granted / "sub" / "n").read_text() == "n\n"
        )
        assert shell(box, f"cd {granted}; cat a sub/c sub/n").stdout == "1\nc\nn\n", (
            "the sandbox still sees what did not change"
        )
        shell(box, f"cd {granted}; echo 2 > a; echo c2 > sub/c; rm sub/n")
        box.commit()
        assert (
            (granted / "a").read_text() == "2\n"
            and (granted / "sub" / "c").read_text() == "c2\n"
            and not (granted / "sub" / "n").exists()
        )
        with Sandbox(Policy(fs_writable=[str(granted)])) as other:
            assert shell(other, f"cd {granted}; cat a sub/c; ls").stdout == "2\nc2\na\nsub\n", (
                "a later sandbox sees the published version"
            )
    until(lambda: sorted(os.listdir(granted.parent)) == ["work"])


def test_commit_does_not_overwrite_the_hosts_work(granted):
    with Sandbox(Policy(fs_writable=[str(granted)])) as box:
        shell(box, f"cd {granted}; echo mine > a")
        box.commit()
        (granted / "a").write_text("theirs\n")
        shell(box, f"cd {granted}; echo mine again > a")
        with pytest.raises(Conflict) as caught:
            box.commit()
        assert "a" in str(caught.value) and (granted / "a").read_text() == "theirs\n"
        box.commit(force=True)
        assert (granted / "a").read_text() == "mine again\n"


def test_older_session_keeps_its_view_after_a_commit(granted):
    policy = Policy(fs_writable=[str(granted)])
    with Sandbox(policy) as old, Sandbox(policy) as box:
        assert shell(old, f"cat {granted}/a").stdout == "a\n"
        shell(box, f"echo new > {granted}/a; rm {granted}/b")
        box.commit()
        assert shell(old, f"cat {granted}/a {granted}/b").stdout == "a\nb\n"
        old.reset()
        assert shell(old, f"cat {granted}/a {granted}/b").stdout == "a\nb\n"


def test_missing_directory_is_a_conflict(granted):
    with Sandbox(Policy(fs_writable=[str(granted)])) as box:
        shell(box, f"echo x > {granted}/a")
        granted.rename(granted.with_name("moved"))
        with pytest.raises(Conflict):
            box.commit()
        assert sorted(os.listdir(granted.parent)) == ["moved"]


@pytest.mark.parametrize("commits", [0, 1])
def test_another_directory_in_its_place_is_a_conflict(granted, commits):
    """Its files were not changed since, but it is another directory than the one at the start."""
    other = granted.with_name("other")
    other.mkdir()
    (other / "a").write_text("of another")
    with Sandbox(Policy(fs_writable=[str(granted)])) as box:
        for i in range(commits + 1):
            shell(box, f"echo {i} > {granted}/a")
            if i < commits:
                box.commit()
        granted.rename(granted.with_name("moved"))
        for _ in range(2):
            with pytest.raises(Conflict):
                box.commit()
        other.rename(granted)
        for _ in range(2):
            with pytest.raises(Conflict, match="replaced"):
                box.commit()
        assert (granted / "a").read_text() == "of another" and os.listdir(granted) == ["a"]
        box.commit(force=True)
        assert (granted / "a").read_text() == f"{commits}\n"
        shell(box, f"echo again > {granted}/a")
        box.commit()
        assert (granted / "a").read_text() == "again\n"


@pytest.mark.parametrize("granted_as", ["fs_readable", "fs_writable"])
def test_another_directory_while_the_template_is_built(granted, tmp_path, monkeypatch, granted_as):
    """It exists only at the moment at which a launcher starts. Boxes of that launcher still see it,
    no others do, and a commit does not write to it."""
    other, armed, init = tmp_path / "other", tmp_path / "armed", tmp_path / "init"
    other.mkdir(mode=0o755)
    (other / "a").write_text("of another\n")
    # By the first that is started for a policy (one that is started ahead of need is not "late");
    # and at once: a path that is gone for a moment is an error.
    exchange = f"import ctypes; raise SystemExit(ctypes.CDLL(None).renameat2(-100, b'{granted}', -100, b'{other}', 2))"
    init.write_text(
        f"#!/bin/sh\n[ $2 = late ] && rm {armed} 2> /dev/null && {sys.executable} -I -c \"{exchange}\"\nexec {BUILD}/rollbox-init \"$@\"\n"
    )
    init.chmod(0o755)
    monkeypatch.setenv("ROLLBOX_INIT", str(init))
    system = [] if granted_as == "fs_writable" else ["/usr", "/lib", "/lib64", "/bin", "/etc"]
    policy = Policy(
        **{granted_as: [*system, str(granted)]}, random_seed=1
    )  # with which no launcher is started ahead of need
    with Shared(str(tmp_path / "socket")) as shared:
        armed.touch()
        with Sandbox(policy, engine=shared.engine) as box:
            assert shell(box, f"cat {granted}/a").stdout == "of another\n" and not armed.exists()
            subprocess.run([sys.executable, "-I", "-c", exchange], check=True)
            with Sandbox(policy, engine=shared.engine) as later:
                assert shell(later, f"cat {granted}/a").stdout == "a\n"
            assert shell(box, f"cat {granted}/a").stdout == "of another\n"
            if granted_as == "fs_writable":
                shell(box, f"echo mine > {granted}/a")
                with pytest.raises(Conflict, match="replaced"):
                    box.commit()
                assert (granted / "a").read_text() == "a\n"


def test_another_directory_behind_a_link_is_a_conflict(granted):
    """The policy names a link: what counts is the directory it leads to when the sandbox begins. A
    link that leads elsewhere later changes nothing for it."""
    link, other = granted.with_name("link"), granted.with_name("other")
    link.symlink_to(granted.parent)
    other.mkdir()
    (other / "a").write_text("of another")
    with Sandbox(Policy(fs_writable=[str(link / granted.name)])) as box:
        for i in range(2):
            shell(box, f"echo {i} > {granted}/a")
            box.commit()
        link.unlink()
        link.symlink_to(other)
        shell(box, f"echo 2 > {granted}/a")
        box.commit()
        assert (granted / "a").read_text() == "2\n"
        shell(box, f"echo 3 > {granted}/a")
        granted.rename(granted.with_name("moved"))
        other.rename(granted)
        with pytest.raises(Conflict, match="replaced"):
            box.commit()
        assert (granted / "a").read_text() == "of another"
        box.commit(force=True)
        assert (granted / "a").read_text() == "3\n"
        shell(box, f"echo again > {granted}/a")
        box.commit()
        assert (granted / "a").read_text() == "again\n"


def test_sandboxes_commit_to_one_directory_by_turns(granted):
    """For the kernel, the published directory is another one. For the other sandboxes, including
    those that began in between, it replaces the earlier one."""
    policy = Policy(fs_writable=[str(granted)])
    with Sandbox(policy) as one, Sandbox(policy) as two:
        for i, box in enumerate((one, two, one, two)):
            shell(box, f"echo {i} > {granted}/f{i}")
            box.commit()
            if i == 1:
                with Sandbox(policy) as later:
                    shell(later, f"echo later > {granted}/later")
                    later.commit()
        assert sorted(os.listdir(granted)) == ["a", "b", "f0", "f1", "f2", "f3", "later", "sub"]


def test_nothing_granted_nothing_to_commit():
    with Sandbox() as box:
        with pytest.raises(InvalidArgument):
            box.commit()


# Owners

OWNER = """
import os, sys
from rollbox import Engine, Sandbox
engine = Engine(socket=sys.argv[1])
box = Sandbox(engine=engine, name="owned")
box.exec("sleep 1000 & :")
print(box.inspect()["pid"], flush=True)
sys.stdin.read()
"""


def test_killed_owner_ends_its_sandboxes(tmp_path):
    socket = tmp_path / "socket"
    with subprocess.Popen([BUILD / "rollbox-engine", "--socket", socket], stdin=subprocess.DEVNULL) as engine:
        try:
            until(lambda: serves(socket))
            with subprocess.Popen(
                [sys.executable, "-c", OWNER, str(socket)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as owner:
                family = pidfds([int(owner.stdout.readline())])
                owner.kill()
            wait_gone(family)
            until(lambda: "owned" not in [one["name"] for one in Engine(socket=socket).sandboxes()])
        finally:
            engine.terminate()


def test_killed_engine_leaves_nothing():
    engine = Engine()
    boxes = [Sandbox(engine=engine) for _ in range(5)]
    for box in boxes:
        shell(box, "echo x > /tmp/f; setsid sleep 1000 & :")
        box.snapshot()
    family = pidfds([box.inspect()["pid"] for box in boxes])
    os.kill(engine.pid, signal.SIGKILL)
    wait_gone(family)
    with pytest.raises(RollboxError):
        shell(boxes[0], "true")
