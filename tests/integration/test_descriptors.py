# SPDX-License-Identifier: Apache-2.0
"""The engine where descriptors are short. Those on their way over sockets are counted by user, so
nothing else of that user's may run meanwhile."""

import contextlib
import os
import resource
import socket
import subprocess

import protocol
import pytest

from rollbox import Engine, ResourceExhausted, Sandbox
from harness import binaries, caller, serves, skip, until  # noqa: F401
from engines import SharedEngine, wait_running


def echo(process):
    process.stdin.write(b"there\n")
    process.stdin.flush()
    return process.stdout.readline() == b"there\n"


def test_output_without_a_descriptor_ends_the_run(caller):
    """Without a descriptor for it, output that comes before init's word of the start ends the run, not the engine."""
    if caller.uid != os.geteuid():
        skip("the limits of another user's engine are not ours to change")
    path = caller.directory() / "engine"
    with SharedEngine(caller, path) as engine, protocol.Client(path) as client:
        plan = client.prepare()
        pid = client.status()["pid"]
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        assert client.wait(client.run(plan, "true"))["OUTCOME"] == protocol.EXIT
        for room in range(1, 24):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")) + room, hard))
            for serial in [client.run(plan, "head", "-c", "60000", "/dev/zero") for _ in range(4)]:
                answer = client.wait(serial)
                assert answer["OUTCOME"] in (protocol.EXIT, protocol.ERROR), answer
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert client.wait(client.run(plan, "true"))["OUTCOME"] == protocol.EXIT
        assert engine.process.poll() is None


def test_result_waits_for_room_for_its_descriptors(caller):
    """Descriptors under way are counted by user: when others' leave no room for an answer's, it
    comes later, and the connection stays."""
    if os.geteuid() == 0 or caller.uid != os.geteuid():
        skip("root has no such limit")
    path = caller.directory() / "engine"
    ours, theirs = socket.socketpair()
    with SharedEngine(caller, path), protocol.Client(path) as client, protocol.Client(path) as watcher, ours:
        shared = caller.directory()
        serial = client.run(
            client.prepare(fs_shared=[str(shared)]),
            "sh",
            "-c",
            f"head -c 60000 /dev/zero; touch {shared}/written; exec sleep 1000",
        )
        until((shared / "written").exists)
        pid = watcher.status()["pid"]
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        with theirs:
            for _ in range(4):
                socket.send_fds(ours, [b"x"], [0] * 64)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (128, hard))
            client.kill(serial, protocol.TIMEOUT)
            wait_running(watcher, 0)
            client.socket.settimeout(0)
            with pytest.raises(BlockingIOError):
                client.wait(serial)
        client.socket.settimeout(60)
        answer = client.wait(serial)
        assert answer["OUTCOME"] == protocol.TIMEOUT and "STDOUT_FD" in answer, answer
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def test_request_without_room_for_its_descriptors_is_answered(caller):
    """The kernel drops the descriptors of a message that an engine without room receives: the
    engine replies with an error, and the connection stays."""
    if caller.uid != os.geteuid():
        skip("the limits of another user's engine are not ours to change")
    path = caller.directory() / "engine"
    with SharedEngine(caller, path), protocol.Client(path) as client:
        plan = client.prepare()
        pid = client.status()["pid"]
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, hard))
        for fields in ([("PLAN", plan), ("OPERATION", os.urandom(16)), ("ARG", "true")], []):
            answer = client.wait(client.send(protocol.RUN, fields, fds=[0, 1, 2]))
            assert (answer["type"], answer["ERROR_CODE"]) == (
                protocol.FAILED,
                10,
            ) and b"descriptor" in answer["ERROR_MESSAGE"], answer
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert client.wait(client.run(plan, "true"))["OUTCOME"] == protocol.EXIT


def test_results_leave_descriptors(caller):
    """Results kept for a retry hold memory files: fewer of them where few files may be open."""
    path = caller.directory() / "engine"
    argv = ["sh", "-c", 'ulimit -n 160; exec "$0" "$@"', binaries() / "rollbox-engine", "--socket", path]
    with caller.popen(argv) as process:
        try:
            until(lambda: serves(path))
            with protocol.Client(path) as client:
                plan = client.prepare()
                for _ in range(150):
                    answer = client.wait(client.run(plan, "head", "-c", "20000", "/dev/zero"))
                    assert answer["OUTCOME"] == protocol.EXIT and answer["STDOUT_FD"], answer
        finally:
            process.terminate()
    assert process.returncode == 0


@contextlib.contextmanager
def engine_of(path, most):
    """One that may have so many open files."""
    with subprocess.Popen(
        [
            "sh",
            "-c",
            f'ulimit -n {most}; exec "$0" --socket "$1"',
            binaries() / "rollbox-engine",
            path,
        ]
    ) as process:
        try:
            until(lambda: serves(path))
            with Engine(path) as engine:
                yield engine
        finally:
            process.terminate()


def test_snapshots_leave_descriptors_for_commands(tmp_path):
    """Snapshots of files and of processes. A snapshot without room is refused while commands still have some."""
    with engine_of(tmp_path / "engine", 512) as engine, contextlib.ExitStack() as stack:
        boxes = []
        with pytest.raises(ResourceExhausted, match="limit of open files bears"):
            while len(boxes) < 200:
                boxes.append(stack.enter_context(Sandbox(engine=engine)))
                boxes[-1].spawn(["sleep", "1000"])
                for _ in range(4):
                    assert boxes[-1].exec("echo x >> /tmp/file").ok
                    boxes[-1].snapshot()
        assert len(boxes) > 12
        assert all(box.exec(["wc", "-l", "/tmp/file"], text=True).ok for box in boxes[:-1])
        for box in boxes[:4]:
            for node in box.tree()[1:]:
                box.drop(node.id)
        assert boxes[-1].exec("echo x >> /tmp/file").ok and boxes[-1].snapshot().processes


def test_dirty_tracking_of_forks_leaves_descriptors(tmp_path):
    """An open file for each process of each sandbox that was forked once, of which few are forked again."""
    many = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sleep 1000 & done; while read -r line; do echo $line; done"
    with engine_of(tmp_path / "engine", 512) as engine, contextlib.ExitStack() as stack:
        for _ in range(44):
            box = stack.enter_context(Sandbox(engine=engine))
            shell = box.spawn(["sh", "-c", many])
            assert echo(shell)
            with box.fork(1)[0] as kid:
                assert echo(kid.process(shell.id))
