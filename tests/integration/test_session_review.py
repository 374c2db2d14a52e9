# SPDX-License-Identifier: Apache-2.0
"""The engine's side of sandboxes that live, where one thing's end is another's: what is asked of it in the wrong order, thousands of requests at once, processes killed and descriptors short at bad moments."""

import contextlib
import json
import os
import resource
import signal
import struct
from pathlib import Path

import protocol
import pytest
from harness import caller, children, limited, skip, until  # noqa: F401
from test_bad_input import SharedEngine

EXEC, ATTACH, SANDBOX = 12, 13, 14
VERBS = "CREATE OPEN INSPECT PROCESSES TREE PAUSE RESUME CLOSE LIST SIGNAL RESIZE FILES SNAPSHOT FORK RESET DROP DIFF COMMIT EXPORT".split()
MORE = "SANDBOX VERB USER INPUT TERMINAL STREAM EXTRA DETACHED IDLE TTL LIFETIME EXEC NUMBER SCOPE NAME SNAPSHOT TO TEXTUAL PATH FORCE CODE STREAM_MOST FILE_MOST ENV_VALUES RULE_NAME RULE_PATTERN BYTES FILES DIGESTS SAME_SEED DROPS".split()
TAGS = {**protocol.TAGS, **{name: number for number, name in enumerate(MORE, len(protocol.TAGS) + 1)}}
EXHAUSTED = 10
MANY = 12000


def text(value):
    return value.encode() + b"\0"


class Client(protocol.Client):
    """Speaks of sandboxes, too. `post` only sends."""

    def post(self, kind, *fields, fds=()):
        self.serial += 1
        message = struct.pack("IIQ", kind, 0, self.serial)
        for name, value in fields:
            value = struct.pack("Q", value) if isinstance(value, int) else text(value) if isinstance(value, str) else value
            message += struct.pack("II", TAGS[name], len(value)) + value + bytes(-len(value) % 8)
        self.socket.sendmsg([message], [(protocol.socket.SOL_SOCKET, protocol.socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else [])
        return self.serial

    def verb(self, verb, *fields, fds=()):
        return self.post(SANDBOX, ("VERB", VERBS.index(verb) + 1), *fields, fds=fds)

    def exec(self, name, *argv, more=(), fds=()):
        return self.post(EXEC, ("SANDBOX", name), *(("ARG", word) for word in argv), *more, fds=fds)

    def json(self, serial):
        answer = self.wait(serial)
        assert answer["type"] == protocol.TEXT, answer
        return json.loads(answer["TEXT_DATA"].rstrip(b"\0"))

    def create(self, plan):
        return self.json(self.verb("CREATE", ("PLAN", plan)))["name"]

    def init_of(self, name):
        return self.json(self.verb("INSPECT", ("SANDBOX", name)))["pid"]

    def output(self, name, *argv):
        answer = self.wait(self.exec(name, *argv))
        assert answer["OUTCOME"] == protocol.EXIT, answer
        return answer["STDOUT"]


@pytest.fixture
def engine(caller):
    with SharedEngine(caller, caller.directory() / "engine") as shared:
        yield shared
        assert shared.process.poll() is None


@contextlib.contextmanager
def standing(pid):
    """A process that does nothing meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def no_more_files(pid):
    return limited(pid, resource.RLIMIT_NOFILE, 4)


def of_this_user(caller):
    if caller.uid != os.geteuid():
        skip("the limits of another user's engine are not ours to change")


def drain(client, serials):
    return [client.wait(serial) for serial in serials]


def launcher_of(pid):
    """The oldest: what it clones has its name at first."""
    return until(lambda: children(pid, "rollbox-launch"))[0]


def test_closing_a_fork_in_the_making(engine):
    """That has a snapshot of its own under way: the fork as a whole fails, once, and nothing points to it any more."""
    with Client(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        with standing(launcher_of(pid)):
            forks = client.verb("FORK", ("SANDBOX", name), ("NUMBER", 2))
            made = sorted({one["name"] for one in client.json(client.verb("LIST"))["sandboxes"]} - {name})
            command = client.exec(made[1], "true")
            taken = client.verb("SNAPSHOT", ("SANDBOX", made[1]))
            closed = client.verb("CLOSE", ("SANDBOX", made[1]))
            client.json(client.verb("LIST"))
        assert client.wait(forks)["type"] == protocol.FAILED
        assert client.wait(taken)["type"] == protocol.FAILED
        assert client.wait(command)["OUTCOME"] == protocol.ERROR
        assert client.json(closed) == {}
        assert client.output(name, "echo", "well") == b"well\n"
        assert len(client.json(client.verb("FORK", ("SANDBOX", name), ("NUMBER", 2)))["sandboxes"]) == 2
        assert client.json(client.verb("CLOSE", ("SANDBOX", name))) == {}


def test_requests_to_a_fork_in_the_making(engine):
    """They wait until it is made."""
    with Client(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        client.output(name, "touch", "/tmp/file")
        client.json(client.verb("SNAPSHOT", ("SANDBOX", name)))
        with standing(launcher_of(pid)):
            forks = client.verb("FORK", ("SANDBOX", name), ("NUMBER", 2))
            made = sorted({one["name"] for one in client.json(client.verb("LIST"))["sandboxes"]} - {name})
            reset = [client.verb("RESET", ("SANDBOX", one)) for one in made]
            taken = client.verb("SNAPSHOT", ("SANDBOX", made[0]))
            client.json(client.verb("LIST"))
        assert client.json(forks)["sandboxes"] == made
        assert [client.json(serial) for serial in reset] == [{}, {}]
        client.json(taken)
        assert client.output(made[1], "ls", "/tmp/file") == b"/tmp/file\n"


def test_forks_whose_inits_are_killed(engine):
    """A fork is answered whenever the inits that it waits for are killed."""
    with Client(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        launcher = launcher_of(pid)
        for _ in range(20):
            forks = client.verb("FORK", ("SANDBOX", name), ("NUMBER", 4))
            client.json(client.verb("LIST"))
            for victim in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
                with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                    if victim != launcher and "janitor" not in Path(f"/proc/{victim}/comm").read_text():
                        os.kill(victim, signal.SIGKILL)
            client.wait(forks)
        assert client.output(name, "echo", "well") == b"well\n"


def test_thousands_of_requests_that_end_at_once(engine):
    """They wait for one that takes long, and are then answered one after the other, not one inside the other."""
    with Client(engine.path) as client:
        name = client.create(client.prepare())
        with standing(client.init_of(name)):
            command = client.exec(name, "true")
            # Of the files alone: where the command runs yet, each reset would bring it back.
            snapshot = client.verb("SNAPSHOT", ("SANDBOX", name), ("DROPS", 1))
            serials = [client.verb("RESET", ("SANDBOX", name)) for _ in range(MANY)]
            client.json(client.verb("LIST"))
        assert client.wait(command)["type"] == protocol.RESULT
        assert client.wait(snapshot)["type"] == protocol.TEXT
        assert {answer["type"] for answer in drain(client, serials)} == {protocol.TEXT}
        assert client.output(name, "echo", "well") == b"well\n"


def test_thousands_of_commands_without_a_box(caller, engine):
    """They fail one after the other, and the sandbox is there when there is room again."""
    of_this_user(caller)
    with Client(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        client.output(name, "touch", "/tmp/file")
        init = client.init_of(name)
        with standing(init), no_more_files(pid):
            taken = client.verb("SNAPSHOT", ("SANDBOX", name))
            serials = [client.exec(name, "true") for _ in range(MANY)]
            client.json(client.verb("LIST"))
            os.kill(init, signal.SIGKILL)
            assert client.wait(taken)["type"] == protocol.TEXT
            assert {answer["ERROR_CODE"] for answer in drain(client, serials)} == {EXHAUSTED}
        assert client.output(name, "echo", "well") == b"well\n"


def test_little_room(caller, engine):
    """Whichever step of making a box, starting commands or comparing files finds no descriptor left: each is answered, with that as the reason if it failed, and what was kept is there afterwards."""
    of_this_user(caller)
    with Client(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        for room in range(1, 27):
            client.output(name, "sh", "-c", "echo kept >/tmp/kept")
            client.json(client.verb("SNAPSHOT", ("SANDBOX", name)))
            client.output(name, "touch", "/tmp/file")
            init = client.init_of(name)
            with standing(init):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 1 + room, before[1]))
                works = [client.verb(verb, ("SANDBOX", name)) for verb in ("SNAPSHOT", "DIFF")]
                commands = [client.exec(name, "true") for _ in range(3)]
                client.json(client.verb("LIST"))
                os.kill(init, signal.SIGKILL)
            answers = [client.wait(serial) for serial in works + commands]
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            assert {answer["ERROR_CODE"] for answer in answers if "ERROR_CODE" in answer} <= {EXHAUSTED}, (room, answers)
            assert client.output(name, "cat", "/tmp/kept") == b"kept\n"


def test_cancelled_before_a_set_up_that_fails(engine):
    """A command that is cancelled while its box is made, and the box then is not to be: one answer, and the engine goes on."""
    with Client(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        client.output(name, "true")
        client.json(client.verb("RESET", ("SANDBOX", name)))
        launcher = launcher_of(pid)
        with standing(launcher):
            serials = [client.exec(name, "true") for _ in range(3)]
            client.kill(serials[1])
            client.json(client.verb("LIST"))
            os.kill(launcher, signal.SIGKILL)
        assert {client.wait(serial)["OUTCOME"] for serial in serials} == {protocol.ERROR}
        assert client.output(name, "echo", "well") == b"well\n"


def test_init_killed_with_commands_that_wait(engine):
    """What init has not got yet is done by the next one; nothing is done that was said to have failed."""
    with Client(engine.path) as client:
        name = client.create(client.prepare())
        init = client.init_of(name)
        with standing(init):
            serials = [client.exec(name, "sh", "-c", "echo >>/tmp/done") for _ in range(600)]
            client.json(client.verb("LIST"))
            os.kill(init, signal.SIGKILL)
        outcomes = [client.wait(serial)["OUTCOME"] for serial in serials]
        assert set(outcomes) == {protocol.EXIT, protocol.ERROR}, "some were sent, others waited"
        assert int(client.output(name, "grep", "-c", "", "/tmp/done")) == outcomes.count(protocol.EXIT)


def test_retired_program_whose_last_sandbox_fails(engine, caller):
    """After a commit its program ends with its last sandbox, also when that is closed while its box is made and the launcher is killed."""
    place = caller.directory() / "work"
    place.mkdir()
    os.chown(place, caller.uid, caller.uid)
    with Client(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare(fs_writable=[str(place)]))
        client.output(name, "touch", f"{place}/file")
        client.json(client.verb("COMMIT", ("SANDBOX", name)))
        launcher = launcher_of(pid)
        with standing(launcher):
            command = client.exec(name, "true")
            closed = client.verb("CLOSE", ("SANDBOX", name))
            client.json(client.verb("LIST"))
            os.kill(launcher, signal.SIGKILL)
        assert client.wait(command)["OUTCOME"] == protocol.ERROR
        assert client.json(closed) == {}
        assert client.status()["sessions"] == 0


def test_replaced_directory_is_kept_for_other_policies(engine, caller):
    """Who sees the directory that a commit has replaced goes on to do so, whatever its policy, and when the one who committed is gone."""
    place = caller.directory() / "work"
    place.mkdir()
    (place / "old").write_text("old\n")
    for path in (place, place / "old"):
        os.chown(path, caller.uid, caller.uid)
    with Client(engine.path) as client:
        other = client.create(client.prepare(fs_writable=[str(place)], max_processes=77))
        name = client.create(client.prepare(fs_writable=[str(place)]))
        for content in ("1", "2"):
            client.output(name, "sh", "-c", f"echo {content} >{place}/new; rm -f {place}/old")
            client.json(client.verb("COMMIT", ("SANDBOX", name)))
        client.json(client.verb("CLOSE", ("SANDBOX", name)))
        late = client.create(client.prepare(fs_writable=[str(place)]))
        client.output(late, "touch", f"{place}/late")
        client.json(client.verb("COMMIT", ("SANDBOX", late)))
        client.json(client.verb("CLOSE", ("SANDBOX", late)))
        assert client.output(other, "cat", f"{place}/old") == b"old\n"
        assert client.output(other, "ls", str(place)) == b"old\n"
        client.json(client.verb("CLOSE", ("SANDBOX", other)))
        until(lambda: sorted(path.name for path in place.parent.iterdir() if path.name != "engine") == ["work"])


def test_stream_that_cannot_be_written(engine, caller):
    """Is the failure of that command alone: its program still ends with its last sandbox."""
    place = caller.directory() / "work"
    place.mkdir()
    os.chown(place, caller.uid, caller.uid)
    with Client(engine.path) as client, open("/dev/null", "rb") as null:
        pid = client.status()["pid"]
        name = client.create(client.prepare(fs_writable=[str(place)]))
        answer = client.wait(client.exec(name, "true", more=[("STREAM", 1)], fds=[null.fileno()]))
        assert answer["OUTCOME"] == protocol.ERROR and b"stream_fds[0]" in answer["ERROR_MESSAGE"]
        client.output(name, "touch", f"{place}/file")
        client.json(client.verb("COMMIT", ("SANDBOX", name)))
        assert client.output(name, "echo", "well") == b"well\n"
        client.json(client.verb("CLOSE", ("SANDBOX", name)))
        until(lambda: not children(pid, "rollbox-launch"))


def test_terminal_without_room(caller, engine):
    """A terminal for which the engine has no descriptor left fails its command; the sandbox keeps its files and goes on."""
    of_this_user(caller)
    with Client(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        client.output(name, "sh", "-c", "echo kept >/tmp/file")
        init = client.init_of(name)
        with no_more_files(pid):
            answer = client.wait(client.exec(name, "true", more=[("TERMINAL", 24 << 16 | 80)]))
        assert answer["OUTCOME"] == protocol.ERROR and answer["ERROR_CODE"] == EXHAUSTED, answer
        assert client.output(name, "cat", "/tmp/file") == b"kept\n"
        assert client.init_of(name) == init


def test_copy_without_room(caller, engine):
    """A copy, or a place for images, for which the engine has no descriptor left is no snapshot; the sandbox runs on, and others' launcher with it."""
    of_this_user(caller)
    with Client(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        running = client.exec(name, "sh", "-c", "echo $$ >/tmp/pid; sleep 1000")
        until(lambda: client.output(name, "sh", "-c", "cat /tmp/pid 2>/dev/null; true"))
        launcher = launcher_of(pid)
        with standing(launcher):
            with no_more_files(pid):
                answer = client.wait(client.verb("SNAPSHOT", ("SANDBOX", name)))
            assert answer["type"] == protocol.FAILED and answer["ERROR_CODE"] == EXHAUSTED, answer
            taken = client.verb("SNAPSHOT", ("SANDBOX", name), ("DROPS", 1))
            until(lambda: "T" in {p["state"] for p in client.json(client.verb("PROCESSES", ("SANDBOX", name)))["processes"]})
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            client.json(client.verb("LIST"))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (4, before[1]))
        try:
            answer = client.wait(taken)
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        assert answer["type"] == protocol.FAILED and answer["ERROR_CODE"] == EXHAUSTED, answer
        assert launcher_of(pid) == launcher
        assert client.json(client.verb("SNAPSHOT", ("SANDBOX", name)))["processes"] >= 1
        client.kill(running)
        assert client.wait(running)["OUTCOME"] == protocol.ERROR


def test_resume_during_a_snapshot(engine):
    """A sandbox that is paused and copied goes on when the copy is there, not before."""
    with Client(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare())
        running = client.exec(name, "sh", "-c", "sleep 1000")
        # A shell that has just made a process waits for its execve in state D, paused or not.
        until(lambda: [(p["command"], p["state"]) for p in client.json(client.verb("PROCESSES", ("SANDBOX", name)))["processes"]] == [("sh -c sleep 1000", "S"), ("sleep 1000", "S")])
        client.output(name, "touch", "/tmp/file")
        client.json(client.verb("PAUSE", ("SANDBOX", name)))
        states = lambda: {p["state"] for p in client.json(client.verb("PROCESSES", ("SANDBOX", name)))["processes"]}  # noqa: E731
        with standing(launcher_of(pid)):
            taken = client.verb("SNAPSHOT", ("SANDBOX", name), ("DROPS", 1))
            client.json(client.verb("RESUME", ("SANDBOX", name)))
            assert states() == {"T"}
        assert client.json(taken)["live"]
        until(lambda: "T" not in states())
        client.kill(running)
        assert client.wait(running)["OUTCOME"] == protocol.ERROR


@pytest.mark.long
@pytest.mark.parametrize("when", ("running", "starting"))
def test_an_init_that_does_not_answer(engine, when):
    """Whatever keeps init from it, a time-out ends the command, with all else in the sandbox; its files stay."""
    with Client(engine.path) as client:
        name = client.create(client.prepare())
        client.output(name, "touch", "/tmp/file")
        if when == "running":
            running = client.exec(name, "sh", "-c", "echo ready; sleep 1000", more=(("TIMEOUT", 5000),))
            # Its process is there before init has told of it.
            until(lambda: any(one["state"] == "running" and one["output_bytes"] for one in client.json(client.verb("INSPECT", ("SANDBOX", name)))["execs"]))
            os.kill(client.init_of(name), signal.SIGSTOP)
            answer = client.wait(running)
            assert (answer["OUTCOME"], answer["STDOUT"]) == (protocol.TIMEOUT, b"ready\n")
        else:
            os.kill(client.init_of(name), signal.SIGSTOP)
            answer = client.wait(client.exec(name, "true"))
            assert answer["OUTCOME"] == protocol.ERROR and b"has not answered" in answer["ERROR_MESSAGE"], answer
        assert client.output(name, "ls", "/tmp") == b"file\n"
