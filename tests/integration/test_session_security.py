# SPDX-License-Identifier: Apache-2.0
"""Hostile guests in sessions: against init, out of a command's tree, against commands beside them,
against the snapshots of their files."""

import contextlib
import os

import pytest
from harness import guest, until

from rollbox import Outcome, Policy, ResourceExhausted, Sandbox


@pytest.fixture
def box():
    with Sandbox(Policy(max_disk="64M", max_processes=200)) as box:
        box.upload(guest("other_sandbox"), "/tmp/neighbour")
        yield box


def start(box, what, **options):
    process = box.spawn(["/tmp/neighbour", what], **options)
    assert process.stdout.readline() == b"ready\n"
    return process


def commands(box):
    return [process["command"] for process in box.processes() if process["state"] not in "ZX"]


def test_init_is_out_of_reach(box):
    result = box.exec(["/tmp/neighbour", "init"], text=True)
    assert (result.outcome, result.exit_code, result.stdout) == (Outcome.EXIT, 0, "")
    assert box.exec("echo well", text=True).stdout == "well\n"
    box.snapshot()
    assert box.exec("echo well", text=True).stdout == "well\n"


def test_memory_in_sockets_counts():
    """Data in sockets is memory without a limit of its own: a cgroup of version 1 does not count
    that of TCP, and without a cgroup none is counted."""
    code = """
import signal, socket
keep = [socket.create_server(("127.0.0.1", 0))]
for _ in range(1500):
    c = socket.create_connection(keep[0].getsockname())
    keep += [c, keep[0].accept()[0]]
    c.setblocking(False)
    try:
        while True:
            c.send(b"x" * 65536)
    except BlockingIOError:
        pass
signal.pause()
"""
    with Sandbox(Policy(max_memory="64M", net="loopback")) as box:
        for _ in range(2):
            assert box.exec(["python3", "-c", code], timeout=60).outcome == Outcome.OUT_OF_MEMORY
            assert box.exec("echo well", text=True).stdout == "well\n"


def test_commands_get_three_descriptors(box):
    code = "import os; print(sorted(int(fd) for fd in os.listdir('/proc/self/fd')))"
    assert box.exec(["python3", "-c", code], text=True).stdout == "[0, 1, 2, 3]\n", (
        "3 is the directory that is being read"
    )


def test_killing_a_main_process_does_not_free_its_tree(box):
    """A guest that sees the main process stop knows that a time-out is at work, and would become
    init's child if the main process died now."""
    for _ in range(5):
        result = box.exec(["/tmp/neighbour", "leave"], timeout=0.3)
        assert result.outcome is Outcome.TIMEOUT and result.stdout == b"ready\n"
        until(lambda: not commands(box))


def test_command_killed_by_another_is_no_error(box):
    """Also before it has executed its program: a guest must not make errors of infrastructure at will."""
    shooter = start(box, "shoot")
    ends = {(result.outcome, result.signal) for result in (box.exec(["/bin/true"]) for _ in range(60))}
    assert ends <= {(Outcome.EXIT, None), (Outcome.SIGNAL, 9)}
    shooter.kill()


def test_no_process_hides_from_a_listing(box):
    start(box, "hide")
    until(lambda: "hidden rest" in commands(box))
    odd = "import os; os.execv('/tmp/neighbour', ['/tmp/neighbour', 'hide', '\\n\\x1b\"}, {' * 9000])"
    assert box.spawn(["python3", "-c", odd]).stdout.readline() == b"ready\n"
    assert max(len(command.encode()) for command in commands(box)) == 4096


def test_copies_while_somebody_moves_on(box):
    """A stopped guest can continue by a timer that sends SIGCONT. The copy of its files is then not
    of one moment; it stays inside, ends, and a failure is attributed to the guest."""
    start(box, "move")
    taken = []
    for _ in range(12):
        try:
            taken.append(box.snapshot())
        except ResourceExhausted as problem:
            assert "resumes by itself" in str(problem)
    assert taken
    for snapshot in taken[-3:]:
        box.reset(snapshot)
        assert box.exec("find /tmp/t /tmp/u -type f -size +0", text=True).stdout == "", (
            "no file of the host's has come in through a link"
        )


def test_guest_overlay_attributes_are_ignored(box):
    """The first private files of a sandbox are no overlay, and the next ones' lower layer: what an
    overlay would read in them the guest can write there."""
    assert box.exec(["/tmp/neighbour", "mark"], text=True).stdout == ""
    box.snapshot()
    box.reset()
    script = "cd /tmp/d; ls -A sub; cat other hidden 2>/dev/null; echo x >new && cat new"
    assert box.exec(script, text=True).stdout == "x\n", "no mark leads anywhere"
    sleeper = box.spawn(["sleep", "1000"])
    box.snapshot()
    sleeper.kill()
    box.reset()
    assert box.exec(script, text=True).stdout == "x\n"


def engines():
    """The processes of our engines. Each layer that is kept is a descriptor of one."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                name, _, rest = stat.read().rpartition(")")
        except OSError:
            continue
        if name.endswith("(rollbox-engine") and rest.split()[1] == str(os.getpid()):
            found.append(pid)
    return found


def test_rewritten_snapshots_do_not_accumulate():
    """Each diff takes a state. A guest that rewrites its files in between must not make the host
    keep all it ever wrote."""

    def descriptors():
        n = 0
        for pid in engines():
            with contextlib.suppress(OSError):      # one of an earlier test that is just ending
                n += len(os.listdir(f"/proc/{pid}/fd"))
        return n

    with Sandbox(Policy(max_disk="16M")) as box:
        box.exec("true")
        before = descriptors()
        for i in range(60):
            box.exec(f"rm -f /tmp/f*; head -c 1000000 /dev/zero >/tmp/f{i}")
            box.diff()
        assert len(box.tree()) == 1, "nobody asked for these"
        assert descriptors() - before < 30
        sleeper = box.spawn(["sleep", "1000"])
        for i in range(40):
            box.exec(f"rm -f /tmp/f*; head -c 1000000 /dev/zero >/tmp/f{i}")
            box.diff()
            box.fork()[0].close()
        sleeper.kill()
        assert descriptors() - before < 40


def test_paths_without_end(box):
    code = """
import os
os.chdir("/tmp")
for _ in range(900):
    os.mkdir("d" * 250)
    os.chdir("d" * 250)
for i in range(1000):
    open(f"f{i}", "w").close()
"""
    box.exec(["python3", "-c", code], check=True)
    with pytest.raises(ResourceExhausted, match="paths"):
        box.diff()
    assert box.exec("echo well", text=True).stdout == "well\n"
    box.remove("/tmp/" + "d" * 250, recursive=True)
    assert [change.path for change in box.diff()] == ["/tmp/neighbour"]


def test_writers_in_the_background_are_cut_off_in_their_own_sandbox(box):
    """A process that writes after the end of its command costs the engine a descriptor. A sandbox
    with many such processes loses its first ones, and no other sandbox does."""
    writer = "(trap '' PIPE; until ! echo x 2>/dev/null; do sleep 0.02; done; touch /tmp/cut) & :"
    with Sandbox() as other:
        for each in (box, other):
            each.exec(writer, check=True)
        for _ in range(150):
            box.exec("sleep 1000 & :", check=True)
        until(lambda: box.exists("/tmp/cut"))
        assert not other.exists("/tmp/cut") and any(
            "until" in command or "bash" in command for command in commands(other)
        )


def test_background_flood_does_not_delay_other_runs(box):
    for _ in range(8):
        box.exec("yes & yes >&2 & :", check=True)
    with Sandbox() as other:
        assert [other.exec("echo well", text=True).stdout for _ in range(10)] == ["well\n"] * 10


def test_plugins_beside_the_tests():
    """Python finds the entry points of what looks installed in the working directory; git reads the
    config of a common directory."""
    with Sandbox() as box:
        box.exec("mkdir -p /tmp/repo/.git; cd /tmp/repo; echo base >.git/config", check=True)
        box.snapshot()
        box.exec(
            "cd /tmp/repo; mkdir evil-1.0.dist-info; echo '[pytest11]' >evil-1.0.dist-info/entry_points.txt; echo /tmp/evil >.git/commondir",
            check=True,
        )
        result = box.grade({}, "find /tmp/repo -type f", text=True)
        assert result.stdout == "/tmp/repo/.git/config\n"
        assert result.reset == ("/tmp/repo/.git/commondir", "/tmp/repo/evil-1.0.dist-info/entry_points.txt")


@pytest.mark.parametrize(
    "attack",
    [
        "chmod 0 /tmp",
        "chmod 0 /tmp/repo /tmp",
        "chmod 0 /tmp/repo/* /tmp/repo",
        "chmod 100 /tmp /tmp/repo",
        "mkdir -p /tmp/repo/d; chmod 0 /tmp/repo/d",
    ],
)
def test_grading_of_a_closed_session(attack):
    """A guest without a solution must not turn its verdict into an infrastructure error by closing directories."""
    with Sandbox(Policy(max_disk="64M")) as box:
        box.write_file("/tmp/repo/calc.py", "")
        box.snapshot()
        box.exec(attack, check=True)
        for outputs in (None, ["/tmp/repo"], ["/tmp/repo/calc.py"]):
            result = box.grade({"/tmp/repo/t.sh": "echo no; exit 1"}, "sh /tmp/repo/t.sh", outputs=outputs)
            assert (result.exit_code, result.stdout) == (1, b"no\n")


def test_nothing_of_a_guest_belongs_to_root(tmp_path):
    """Not what it writes to a directory that is shared, nor what is taken out of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root can make files of root's")
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, 1000, 1000)
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        os.chmod(parent, 0o755)
    with Sandbox(Policy(fs_shared=[str(shared)])) as box:
        box.exec(
            f"touch {shared}/f; cp /bin/true {shared}/s; chmod 6755 {shared}/s; cp /bin/true /tmp/s; chmod 6755 /tmp/s; true"
        )
        box.write_file(f"{shared}/g", b"", 0o755)
        box.download("/tmp/s", str(tmp_path / "s"))
    assert {(path.stat().st_uid, path.stat().st_mode & 0o6000) for path in shared.iterdir()} <= {
        (1000, 0),
        (1000, 0o6000),
    }
    assert (tmp_path / "s").stat().st_mode & 0o6000 == 0
