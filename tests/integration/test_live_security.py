# SPDX-License-Identifier: Apache-2.0
"""Hostile guests against the capturing and restoring of processes (guests/captive.c): what they run early, what they lie about, what they break.

The model: a captive brings itself into an awkward state; beside it runs a bystander in the same sandbox. Whatever a snapshot does about the captive, it ends soon and in words, both of them go on where they were, and so does
whatever comes of it in a fork. make check runs this file as root and as an ordinary user.
"""

import pytest
from harness import guest

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
        box.upload(guest("captive"), PROGRAM)
        yield box


def forked(box, *captives):
    """What they say in a fork; there, as here, all else goes on."""
    bystander = Captive.begin(box, "plain")
    kid, = box.fork(1)
    with kid:
        said = [captive.of(kid)() for captive in captives]
        assert bystander.of(kid)() == "as it was" and kid.exec("echo on", text=True).stdout == "on\n"
    assert bystander() == "as it was"
    return said


def refused(box, *captives):
    """What a snapshot says; they are as they were."""
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
def test_a_filter_of_a_guests_own_neither_lies_nor_kills(box, verdict):
    captive = Captive(box.spawn([PROGRAM, f"filter-{verdict}"]))
    assert [captive.process.stdout.readline() for _ in range(2)] == [b"before\n", b"ready\n"]
    assert "a seccomp filter of its own" in refused(box, captive)


def test_a_dispatcher_of_a_guests_own_tells_no_lies(box):
    captive = Captive(box.spawn([PROGRAM, "dispatch"]))
    assert [captive.process.stdout.readline() for _ in range(2)] == [b"before\n", b"ready\n"]
    assert "answers system calls itself" in refused(box, captive)


@pytest.mark.parametrize("what", ["narrow", "no-vdso", "closed-vdso", "read-vdso", "own-vdso", "stop", "traces", "vfork"])
def test_what_cannot_be_captured_is_as_it_was(box, what):
    assert refused(box, Captive.begin(box, what))


@pytest.mark.parametrize("flags", ["100", "400", "4000", "40000"])
def test_flags_of_the_processor(box, flags):
    """Single steps, backward strings, nested tasks, alignment."""
    assert forked(box, Captive.begin(box, "flags", flags)) == ["as it was"]


@pytest.mark.parametrize("words", [("reserve", 65536), ("sparse", 4096), ("sparse", 2 << 20), ("descriptors", 10000), ("mappings", 2000), ("threads", 50)])
def test_large_and_many(box, words):
    captive = Captive.begin(box, *words)
    assert forked(box, captive) == ["as it was"] and captive() == "as it was"


@pytest.mark.parametrize("what", ["forks", "chain", "executes", "stops-and-goes", "names"])
def test_processes_that_come_and_go(box, what):
    """Either they stand still, or they are refused; those that ended while the others were looked for are no reason."""
    captive = Captive.begin(box, what)
    for _ in range(3):
        try:
            assert forked(box, captive) == ["as it was"]
        except RollboxError as error:
            assert any(word in str(error) for word in ("stopped by a signal", "does not stand still", "multiply", "is traced"))
        assert captive() == "as it was"


def test_programs_in_files_that_the_sandbox_wrote(box):
    """Copies of files for a snapshot have other numbers."""
    box.exec("for i in 1 2 3 4 5; do echo $i > /tmp/$i; done; rm /tmp/2; mkdir /tmp/d; cp /tmp/captive /tmp/d/captive")
    process = box.spawn(["/tmp/d/captive", "plain"])
    assert process.stdout.readline() == b"ready\n"
    assert forked(box, Captive(process)) == ["as it was"]


@pytest.mark.parametrize("what", ["stale-epoll", "reused-epoll"])
def test_an_epoll_that_watches_what_is_closed_is_refused(box, what):
    assert "watches what was closed" in refused(box, Captive.begin(box, what))


def test_an_epoll_that_a_child_has(box):
    """The numbers of what it watches are its parent's."""
    assert forked(box, Captive.begin(box, "child-epoll")) == ["as it was"]


def test_a_copy_that_kills_all_others_at_once_is_no_failure_of_ours(box):
    """They may be told to go on after it."""
    captive = Captive.begin(box, "kill-others")
    for _ in range(5):
        kid, = box.fork(1)
        with kid:
            assert captive.of(kid).process.wait().signal == 9
            assert kid.exec("echo on", text=True).exit_code in (0, None)
    assert captive() == "as it was"
