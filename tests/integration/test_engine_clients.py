# SPDX-License-Identifier: Apache-2.0
"""Clients of one engine: none delays the others by a long queue or a large run, and none makes the
engine grow by not reading.

The model: connections that speak the protocol by hand share an engine with a small memory budget.
Commands end by themselves at once or never, so that
which of them runs is decided by the engine's order and not by time. Run as each caller's engine.
"""

import array
import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import threading

import pytest

import protocol
from harness import Started, binaries, caller, serves, skip, until  # noqa: F401
from protocol import ERROR, EXIT, FAILED, PREPARE, RESULT, RUN, STATUS

RESOURCE_EXHAUSTED, INVALID_ARGUMENT = 10, 1


@contextlib.contextmanager
def engine(caller, *flags, budget="2G", nofile=None):
    path = caller.directory() / "engine.sock"
    limit = ["prlimit", f"--nofile={nofile}:{nofile}"] if nofile else []
    process = caller.popen(
        [
            *limit,
            binaries() / "rollbox-engine",
            "--socket",
            path,
            "--memory-budget",
            budget,
            *flags,
        ],
        stderr=subprocess.PIPE,
    )
    with Started(process):
        until(lambda: path.exists() and serves(path))
        yield path
        process.terminate()
        assert process.wait(60) == 0


def connection(client, of=None):
    """What the status says of the connection that has most to do (all are of this process)."""
    return max(client.status()["connections"], key=of or (lambda c: c["requests"]))


# ---- shares
# ------------------------------------------------------------------------------------------------------------


def test_long_queue_delays_no_other_client(caller):
    """All of one client's runs last for ever, and fill what one client may have of the budget."""
    with engine(caller) as path, protocol.Client(path) as first, protocol.Client(path) as second:
        plan = first.prepare(max_memory="512M")
        for _ in range(1000):
            first.run(plan, "sleep", "1000")
        until(lambda: second.status()["running"] == 3)
        assert second.wait(second.run(second.prepare(), "true"))["OUTCOME"] == EXIT
        with protocol.Client(path) as newcomer:
            assert newcomer.wait(newcomer.run(newcomer.prepare(), "true"))["OUTCOME"] == EXIT
        status = second.status()
        assert (status["running"], status["queued"]) == (3, 997)
        busiest = connection(second)
        assert (busiest["queued"], busiest["running"], busiest["memory_reserved_bytes"]) == (
            997,
            3,
            3 << 29,
        ) and busiest["uid"] == os.geteuid(), busiest
        assert busiest["requests"] == 1000 and busiest["pid"] == os.getpid()


def test_clients_take_turns(caller):
    """Two queues of runs, each as large as the budget, are served in turns."""
    with engine(caller, budget="256M") as path, protocol.Client(path) as first, protocol.Client(path) as second:
        plan = first.prepare(max_memory="256M")
        for _ in range(20):
            first.run(plan, "true")
        serials = [second.run(plan, "true") for _ in range(3)]
        for serial in serials:
            assert second.wait(serial)["OUTCOME"] == EXIT
        last = first.serial
        assert first.wait(last)["OUTCOME"] == EXIT


def test_large_and_small_runs_both_start(caller):
    """The small ones never leave room for the large one by themselves: as one ends, the next is there."""
    with engine(caller, budget="1G") as path, protocol.Client(path) as large, protocol.Client(path) as small:
        plan, whole = small.prepare(max_memory="128M"), large.prepare(max_memory="1G")
        under_way = [small.run(plan, "true") for _ in range(16)]
        wanted = large.run(whole, "true")
        large.socket.setblocking(False)
        n = 0
        while wanted not in large.answers:
            assert small.wait(under_way.pop(0))["OUTCOME"] == EXIT
            under_way.append(small.run(plan, "true"))
            n += 1
            assert n < 5000, "the large run waits for ever"
            with contextlib.suppress(BlockingIOError):
                answer = protocol.parse(large.socket.recv(65536))
                large.answers[answer["serial"]] = answer
        assert large.answers[wanted]["OUTCOME"] == EXIT
        # and the other way round: a queue of large ones holds no small one up for ever
        large.socket.setblocking(True)
        for _ in range(30):
            large.run(whole, "true")
        for serial in under_way:
            assert small.wait(serial)["OUTCOME"] == EXIT
        assert large.wait(large.serial)["OUTCOME"] == EXIT


def test_queued_runs_of_a_lost_client_block_no_other(caller):
    """It goes with a queue, runs, and the first turn."""
    with engine(caller, budget="1G") as path, protocol.Client(path) as second:
        for _ in range(5):
            with protocol.Client(path) as first:
                plan = first.prepare(max_memory="1G")
                for _ in range(50):
                    first.run(plan, "sleep", "1000")
                until(lambda: second.status()["running"] == 1)
            assert second.wait(second.run(plan, "true"))["OUTCOME"] == EXIT
        status = second.status()
        assert (
            status["queued"],
            status["running"],
            status["memory_reserved_bytes"],
            len(status["connections"]),
        ) == (0, 0, 0, 1), status


@pytest.mark.parametrize("is_running", [False, True])
def test_run_moves_to_the_client_that_waits(caller, is_running):
    """With its place in a queue, or the memory that it has; a client that leaves takes nothing along."""
    with engine(caller, budget="256M") as path, protocol.Client(path) as third, contextlib.ExitStack() as stack:
        plan = third.prepare(max_memory="256M")
        if not is_running:
            blocker = third.run(plan, "sleep", "1000")
            until(lambda: third.status()["running"] == 1)
        first, second = stack.enter_context(protocol.Client(path)), protocol.Client(path)
        first.run(plan, "sh", "-c", "sleep 0.5; echo done", operation=b"one")
        until(lambda: third.status()["running" if is_running else "queued"] == 1)
        serial = second.run(plan, "sh", "-c", "sleep 0.5; echo done", operation=b"one")
        assert second.status()["pid"]
        stack.close()
        until(lambda: len(third.status()["connections"]) == 2)
        moved = connection(third, lambda c: c["running" if is_running else "queued"])
        assert (moved["queued"], moved["running"]) == ((0, 1) if is_running else (1, 0)), moved
        if not is_running:
            third.kill(blocker)
        assert second.wait(serial)["STDOUT"] == b"done\n"
        second.socket.close()
        until(lambda: third.status()["memory_reserved_bytes"] == 0)


# ---- clients that do not
# read-----------------------------------------------------------------------------------------------


class Flood:
    """Sends requests from a thread, and reads nothing until the test asks it to read all."""

    def __init__(self, path, n, kind, *fields):
        self.client, self.n = protocol.Client(path), n
        self.thread = threading.Thread(target=self.send, args=(kind, fields), daemon=True)
        self.thread.start()

    def send(self, kind, fields):
        with contextlib.suppress(OSError):
            self.client.socket.settimeout(None)
            for _ in range(self.n):
                self.client.send(kind, fields)

    def read_all(self):
        """Each request has its answer."""
        got = {self.client.wait(serial)["serial"] for serial in range(2, self.n + 2)}
        assert len(got) == self.n
        self.thread.join()


def resident(pid):
    fields = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
    return int(fields["VmRSS"].split()[0]) << 10


def settled(client):
    """The unread bytes of the one that does not read, once they grow no more."""
    seen = []

    def same():
        seen.append(connection(client, lambda c: c["unread_bytes"])["unread_bytes"])
        return seen[-1] and seen[-50:].count(seen[-1]) == 50

    until(same)
    return seen[-1]


@pytest.mark.parametrize("kind", ["status", "explain"])
def test_replies_to_a_client_that_never_reads_are_bounded(caller, kind):
    """Its answers are bounded, others are served meanwhile, and once it reads it has all of them."""
    fields = [("POLICY", json.dumps({"env": {f"V{i}": "x" * 60 for i in range(300)}}))] if kind == "explain" else []
    n, request = (1000, protocol.EXPLAIN) if kind == "explain" else (20000, STATUS)
    with engine(caller) as path, protocol.Client(path) as other:
        before = resident(other.status()["pid"])
        flood = Flood(path, n, request, *fields)
        assert settled(other) < 16 << 20 and flood.thread.is_alive()
        if "ASAN_OPTIONS" not in os.environ:    # which keeps what was freed
            assert resident(other.status()["pid"]) - before < 100 << 20
        assert other.wait(other.run(other.prepare(), "true"))["OUTCOME"] == EXIT
        flood.read_all()
        assert connection(other, lambda c: c["unread_bytes"])["unread_bytes"] == 0
        flood.client.socket.close()


def test_unread_results_stop_new_runs(caller):
    """A megabyte each, in memory files: what was started ends, the rest waits until they are read."""
    with engine(caller) as path, protocol.Client(path) as other:
        client = protocol.Client(path)
        plan = client.prepare(max_memory="64M")
        # none of them runs before all are there: the engine would stop reading them
        blocker = other.run(other.prepare(max_memory="2G"), "sleep", "1000")
        until(lambda: other.status()["running"] == 1)
        serials = [client.run(plan, "head", "-c", "1000000", "/dev/zero") for _ in range(300)]
        until(lambda: other.status()["queued"] == 300)
        other.kill(blocker)
        assert other.wait(blocker)["OUTCOME"] == ERROR
        until(lambda: (status := other.status())["running"] == 0 and status["queued"] > 0)
        stuck = other.status()["queued"]
        assert 100 < stuck < 300 and other.wait(other.run(plan, "true"))["OUTCOME"] == EXIT
        assert other.status()["queued"] == stuck
        for serial in serials:
            assert client.wait(serial)["OUTCOME"] == EXIT
        client.socket.close()


def test_unread_results_of_a_lost_client_are_freed(caller):
    with engine(caller) as path, protocol.Client(path) as other:
        flood = Flood(path, 20000, STATUS)
        settled(other)
        flood.client.socket.shutdown(socket.SHUT_RDWR)
        until(lambda: len(other.status()["connections"]) == 1)
        flood.client.socket.close()


# ---- bounds
# ------------------------------------------------------------------------------------------------------------


def send_large(client, kind, *fields):
    """A request whose fields travel in a memory file."""
    client.serial += 1
    fd = os.memfd_create("request", os.MFD_ALLOW_SEALING)
    with open(fd, "wb", closefd=False) as file:
        for name, value in fields:
            file.write(protocol.field(name, value))
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    client.socket.sendmsg(
        [struct.pack("IIQ", kind, 1, client.serial)],
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))],
    )
    os.close(fd)
    return client.serial


def test_requests_that_wait_have_a_bound_in_bytes(caller):
    with engine(caller, budget="64M") as path, protocol.Client(path) as client:
        plan = client.prepare(max_memory="64M")
        client.run(plan, "sleep", "1000")
        until(lambda: client.status()["running"] == 1)
        large = bytes(60 << 20)
        serials = [
            send_large(
                client,
                RUN,
                ("PLAN", plan),
                ("ARG", "true"),
                ("FILE_PATH", "/tmp/f"),
                ("FILE_MODE", 0o644),
                ("FILE_DATA", large),
            )
            for _ in range(5)
        ]
        answer = client.wait(serials[-1])
        assert (answer["OUTCOME"], answer["ERROR_CODE"]) == (
            ERROR,
            RESOURCE_EXHAUSTED,
        ) and b"256 MiB of one connection" in answer["ERROR_MESSAGE"], answer
        assert client.status()["queued"] == 4
        client.kill(serials[0])
        assert client.wait(serials[0])["OUTCOME"] == ERROR
        send_large(
            client,
            RUN,
            ("PLAN", plan),
            ("ARG", "true"),
            ("FILE_PATH", "/tmp/f"),
            ("FILE_MODE", 0o644),
            ("FILE_DATA", large),
        )
        assert client.status()["queued"] == 4


def test_other_requests_have_a_bound(caller):
    with engine(caller) as path, protocol.Client(path) as client:
        answer = client.wait(send_large(client, PREPARE, ("POLICY", " " * (17 << 20) + "{}")))
        assert (answer["type"], answer["ERROR_CODE"]) == (
            FAILED,
            INVALID_ARGUMENT,
        ) and b"may have 16777216" in answer["ERROR_MESSAGE"], answer
        assert client.prepare()


def test_requests_that_wait_have_a_bound_in_descriptors(caller):
    if caller.uid == 0:
        skip("root's engine raises its limit of open files")
    with (
        engine(caller, budget="64M", nofile=256) as path,
        protocol.Client(path) as client,
        protocol.Client(path) as other,
    ):
        plan = client.prepare(max_memory="64M")
        sleeper = client.run(plan, "sleep", "1000")
        until(lambda: client.status()["running"] == 1)
        with open("/dev/null", "rb") as null:
            serials = [
                client.send(
                    RUN, [("PLAN", plan), ("ARG", "true"), ("STDIO", 1)], [null.fileno()] * 3
                )
                for _ in range(22)
            ]
        answer = client.wait(serials[-1])
        assert (answer["OUTCOME"], answer["ERROR_CODE"]) == (
            ERROR,
            RESOURCE_EXHAUSTED,
        ) and b"64 of one connection" in answer["ERROR_MESSAGE"], answer
        waiting = other.run(plan, "true")
        client.kill(sleeper)
        assert other.wait(waiting)["OUTCOME"] == EXIT
        for serial in serials[:-1]:
            assert client.wait(serial)["type"] == RESULT


def test_connections_have_a_bound(caller):
    if caller.uid == 0:
        skip("root's engine raises its limit of open files")
    with engine(caller, nofile=512) as path, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(protocol.Client(path)) for _ in range(64)]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.connect(str(path))
            answer = protocol.parse(one.recv(65536))
            assert (answer["type"], answer["ERROR_CODE"]) == (FAILED, RESOURCE_EXHAUSTED), answer
        done = caller.rollbox("run", "--json", "--engine", path, "--", "true")
        assert (
            done.returncode == 125
            and b"resource_exhausted" in done.stdout
            and b"as many connections as it keeps" in done.stdout
        ), done
        clients[0].socket.close()
        until(lambda: len(clients[1].status()["connections"]) == 63)
        assert caller.rollbox("run", "--engine", path, "--", "true").returncode == 0
