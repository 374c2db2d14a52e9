# SPDX-License-Identifier: Apache-2.0
"""Hostile guests against dumps and restores (guests/awkward_states.c): code that they run early, false data, damage.

The model: a captive brings itself into an awkward state; beside it runs a bystander in the same
sandbox. A snapshot with the captive ends soon, with an error text if it fails; both processes
resume where they were, and so do
their copies in a fork. make check runs this file as root and as an ordinary user.
"""

import contextlib
import json
import os

import pytest
from harness import guest, skip

from rollbox import Policy, RollboxError, Sandbox

PROGRAM = "/tmp/captive"


class Captive:
    def __init__(self, process):
        self.process, self.id = process, process.id

    @classmethod
    def begin(cls, box, *words):
        made = cls(box.spawn([PROGRAM, *map(str, words)]))
        assert made.process.stdout.readline() == b"ready\n"
        return made

    def __call__(self):
        self.process.stdin.write(b"?\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().decode().rstrip("\n")

    def of(self, box):
        return Captive(box.process(self.id))


@pytest.fixture
def box():
    with Sandbox(Policy(max_memory="512M", max_processes=400)) as box:
        box.upload(guest("awkward_states"), PROGRAM)
        yield box


def forked(box, *captives):
    """Their answers in a fork; there, as here, all other processes continue."""
    bystander = Captive.begin(box, "plain")
    kid, = box.fork(1)
    with kid:
        said = [captive.of(kid)() for captive in captives]
        assert bystander.of(kid)() == "as it was" and kid.exec("echo on", text=True).stdout == "on\n"
    assert bystander() == "as it was"
    return said


def refused(box, *captives):
    """The error of a snapshot, after which the processes are unchanged."""
    bystander = Captive.begin(box, "plain")
    with pytest.raises(RollboxError) as told:
        box.snapshot()
    assert [captive() for captive in captives] == ["as it was"] * len(captives) and bystander() == "as it was"
    assert box.exec("echo on", text=True).stdout == "on\n"
    return str(told.value)


def test_no_handler_runs_while_processes_are_restored(box):
    """Signals that wait are there again before all is, those included that C libraries do not block with all others."""
    captive = Captive.begin(box, "pending")
    assert forked(box, captive) == ["before 0, after 57, early 0"]
    assert captive() == "before 0, after 57, early 0"


@pytest.mark.parametrize("verdict", ["kill", "trap", "errno"])
def test_guest_seccomp_filter_neither_deceives_nor_kills(box, verdict):
    captive = Captive(box.spawn([PROGRAM, f"filter-{verdict}"]))
    assert [captive.process.stdout.readline() for _ in range(2)] == [b"before\n", b"ready\n"]
    assert "a seccomp filter of its own" in refused(box, captive)


def test_guest_syscall_dispatcher_does_not_deceive(box):
    captive = Captive(box.spawn([PROGRAM, "dispatch"]))
    assert [captive.process.stdout.readline() for _ in range(2)] == [b"before\n", b"ready\n"]
    assert "answers system calls itself" in refused(box, captive)


@pytest.mark.parametrize("what", ["narrow", "no-vdso", "closed-vdso", "read-vdso", "own-vdso", "traces", "vfork"])
def test_refused_processes_are_unchanged(box, what):
    assert refused(box, Captive.begin(box, what))


def test_stop_signal_at_any_moment_of_a_dump(box):
    """A process that is stopped, or is about to be, is refused, and dumped otherwise; in both cases it is unchanged."""
    captive = Captive.begin(box, "stop")
    with contextlib.suppress(RollboxError):
        box.snapshot()
    assert captive() == "as it was" and box.exec("echo on", text=True).stdout == "on\n"


@pytest.mark.parametrize("flags", ["100", "400", "4000", "40000"])
def test_flags_of_the_processor(box, flags):
    """Single steps, backward strings, nested tasks, alignment."""
    assert forked(box, Captive.begin(box, "flags", flags)) == ["as it was"]


@pytest.mark.parametrize(
    "words",
    [
        ("reserve", 65536),
        ("sparse", 4096),
        ("sparse", 2 << 20),
        ("descriptors", 10000),
        ("mappings", 2000),
        ("threads", 50),
    ],
)
def test_large_and_many(box, words):
    captive = Captive.begin(box, *words)
    assert forked(box, captive) == ["as it was"] and captive() == "as it was"


@pytest.mark.parametrize("what", ["forks", "chain", "executes", "stops-and-goes", "names"])
def test_processes_that_come_and_go(what):
    """Either they are paused, or the dump is refused; processes that ended during the search are no
    reason. What the kernel has of a process is given back some time after its end: on a busy
    machine that of many thousands
    is more than an ordinary sandbox may have."""
    with Sandbox(Policy(max_memory="4G", max_processes=400)) as box:
        box.upload(guest("awkward_states"), PROGRAM)
        captive = Captive.begin(box, what)
        for _ in range(3):
            try:
                assert forked(box, captive) == ["as it was"]
            except RollboxError as error:
                assert any(
                    word in str(error)
                    for word in (
                        "about to stop or kill",
                        "cannot be paused",
                        "faster than they can be stopped",
                        "traces it",
                    )
                )
            assert captive() == "as it was"


def test_programs_in_files_that_the_sandbox_wrote(box):
    """Copies of files for a snapshot have other numbers."""
    box.exec("for i in 1 2 3 4 5; do echo $i > /tmp/$i; done; rm /tmp/2; mkdir /tmp/d; cp /tmp/captive /tmp/d/captive")
    process = box.spawn(["/tmp/d/captive", "plain"])
    assert process.stdout.readline() == b"ready\n"
    assert forked(box, Captive(process)) == ["as it was"]


@pytest.mark.parametrize("what", ["stale-epoll", "reused-epoll"])
def test_epoll_with_a_closed_descriptor_is_refused(box, what):
    assert "has closed or never had" in refused(box, Captive.begin(box, what))


def test_epoll_of_a_child_is_restored(box):
    """The numbers of what it watches are its parent's."""
    assert forked(box, Captive.begin(box, "child-epoll")) == ["as it was"]


def test_fork_that_kills_all_processes_is_no_error(box):
    """Processes may get their resume request after their end."""
    captive = Captive.begin(box, "kill-others")
    for _ in range(5):
        kid, = box.fork(1)
        with kid:
            assert captive.of(kid).process.wait().signal == 9
            assert kid.exec("echo on", text=True).exit_code in (0, None)
    assert captive() == "as it was"


def test_fork_keeps_write_only_descriptors_write_only(tmp_path):
    """A file of another's in a shared directory, removed while it is open: what is captured of it
    would be the copy's own."""
    if os.geteuid():
        skip("does not apply to an ordinary user, whose engine reads no more files than the sandbox")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for parent in shared.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o111)
    secret = shared / "secret"
    secret.write_text("secret")
    os.chown(secret, 12345, 12345)
    secret.chmod(0o622)
    with Sandbox(Policy(fs_shared=[str(shared)])) as box:
        box.upload(guest("awkward_states"), PROGRAM)
        assert box.exec(["cat", str(secret)]).exit_code == 1
        captive = Captive.begin(box, "written-only", secret)
        assert "open for writing only" in refused(box, captive)


def test_memory_at_every_address_is_restored(box):
    """Where the region for restoring could be."""
    assert forked(box, Captive.begin(box, "everywhere", 3000)) == ["as it was"]


def test_init_of_a_copy_is_out_of_reach(box):
    """For what was restored, what that starts, and what is started after."""
    box.upload(guest("other_sandbox"), "/tmp/neighbour")
    shell = box.shell()
    shell.run("true")
    kid, = box.fork(1)
    with kid, kid.shell(shell.id) as copy:
        for result in (copy.run("/tmp/neighbour init", text=True), kid.exec(["/tmp/neighbour", "init"], text=True)):
            assert (result.exit_code, result.stdout) == (0, "")
        # And they are one guest, as in any session.
        assert kid.exec(["sh", "-c", f"kill -0 {copy.run('echo $$', text=True).stdout}"]).exit_code == 0


LOOK = """
import json, os, sys
def look(keys):
    status = dict(line.rstrip().split(":", 1) for line in open("/proc/thread-self/status"))
    seen = {key: status[key].strip() for key in keys}
    seen["namespaces"] = {name: os.readlink(f"/proc/thread-self/ns/{name}") for name in os.listdir("/proc/thread-self/ns")}
    for name in ("limits", "cgroup", "oom_score_adj", "coredump_filter", "personality", "uid_map", "setgroups", "timens_offsets", "mountinfo"):
        seen[name] = open(f"/proc/self/{name}").read()
    seen["owner"], seen["fds"] = os.stat("/proc/self").st_uid, [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
    seen["tty"] = open("/proc/self/stat").read().rsplit(")", 1)[1].split()[4:6]
    return seen
def size():
    size, low = 0, []
    for line in open("/proc/self/maps"):
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        if start < 0x400000:
            low.append(line.split()[1])
        elif end < 1 << 47:
            size += end - start
    return size, low
import threading
here, there, told = threading.Event(), threading.Event(), []
def in_thread(keys):
    thread = threading.Thread(target=lambda: told.append(look(keys)))
    thread.start()
    thread.join()
    return told.pop()
def wait():
    while here.wait():
        here.clear()
        told.append(look(asked))
        there.set()
threading.Thread(target=wait, daemon=True).start()
def in_old_thread(keys):
    global asked
    asked = keys
    there.clear()
    here.set()
    there.wait()
    return told.pop()
print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""
STATUS = [
    "Umask",
    "Uid",
    "Gid",
    "Groups",
    "SigBlk",
    "SigIgn",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
    "TracerPid",
    "CoreDumping",
]


def test_restored_process_equals_a_new_one(box):
    """Rights, filter, namespaces, limits, groups, descriptors, of its threads as well; and of the
    program that restored it nothing is mapped but what is documented."""

    def start(where):
        process = where.spawn(["python3", "-I", "-S", "-u", "-c", LOOK])
        assert process.stdout.readline() == b"ready\n"
        return process

    def ask(process, what):
        process.stdin.write(what.encode() + b"\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    origin = start(box)
    for _ in range(2):
        kid, = box.fork(1)
        with kid:
            restored, new = kid.process(origin.id), start(kid)
            size, low = ask(restored, "size()")
            assert size <= ask(origin, "size()")[0] + (4 << 20) and low == ["rw-p", "rw-p", "r-xp"]
            expected = ask(new, f"look({STATUS})")
            for how in ("look", "in_thread", "in_old_thread"):
                assert ask(restored, f"{how}({STATUS})") == expected
            own = ask(origin, f"look({STATUS})")["namespaces"]
            assert not set(own.values()) & set(expected["namespaces"].values())
