# SPDX-License-Identifier: Apache-2.0
"""The HTTP server's side processes are killed: each is replaced, with one line about it."""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

import pytest
from collector import collector  # noqa: F401
from harness import DEADLINE, caller, descendants, until  # noqa: F401
from serving import Server


PR_SET_CHILD_SUBREAPER = 36


BEFORE = set()  # the children that this process had, such as an engine of other tests


@pytest.fixture(autouse=True)
def subreaper():
    """Processes whose parents are killed stay below this one, where side() looks."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    BEFORE.update(own_children())
    yield
    BEFORE.clear()
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


def own_children():
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def look(pid):
    """Its name, its letter in /proc, and its parent."""
    rest, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    letter, parent = after.split()[:2]
    return rest.partition("(")[2], letter, int(parent)


def state(pid):
    return look(pid)[1]


def side(name):
    """The process of this name; None: there is none. A child of the engine has the engine's name for a moment."""
    parents = {}
    for pid in [pid for child in own_children() - BEFORE for pid in descendants(child)]:
        with contextlib.suppress(OSError):
            named, letter, parent = look(pid)
            if named == name and letter != "Z":
                parents[pid] = parent
    return next((pid for pid, parent in parents.items() if parent not in parents), None)


def replaced(server, name):
    """Kills it: the pid of its replacement."""
    old = side(name)
    os.kill(old, signal.SIGKILL)
    until(lambda: side(name) not in (None, old))
    return side(name)


def complaints(server, *ends):
    """The lines on standard error after the end of the server; it still ran."""
    assert server.process.poll() is None
    server.stop()
    return server.process.stderr.read().decode().splitlines()


def gone(name):
    return f"rollbox-serve: {name} has ended; another one is started"


def test_killed_keeper_is_replaced_and_starts_engines(caller):  # noqa: F811
    with Server(caller) as server:
        assert server.call("POST", "/v1/sandboxes", {"name": "box"})[0] == 201
        for _ in range(2):
            replaced(server, "rollbox-keeper")
        assert server.call("POST", "/v1/sandboxes/box/execs", {"argv": ["true"]})[0] == 200
        engine = side("rollbox-engine")
        os.kill(engine, signal.SIGKILL)
        until(lambda: side("rollbox-engine") not in (None, engine))
        until(lambda: server.call("POST", "/v1/runs", {"argv": ["true"]})[0] == 200)
        lines = complaints(server)
        assert lines.count(gone("rollbox-keeper")) == 2 and len(lines) == 3, lines


def test_killed_keeper_with_a_request_for_an_engine_loses_none(caller):  # noqa: F811
    """The keeper is stopped, so the request for an engine is in its queue when it is killed."""
    with Server(caller) as server:
        keeper = side("rollbox-keeper")
        os.kill(keeper, signal.SIGSTOP)
        os.kill(side("rollbox-engine"), signal.SIGKILL)
        until(lambda: side("rollbox-engine") is None)
        os.kill(keeper, signal.SIGKILL)
        assert server.call("POST", "/v1/runs", {"argv": ["true"]})[0] == 200


def test_killed_store_process_is_replaced(caller):  # noqa: F811
    with Server(caller) as server:
        assert server.call("GET", "/v1/images")[0] == 200
        for _ in range(2):
            replaced(server, "rollbox-stores")
            assert server.call("GET", "/v1/images")[0] == 200
        assert complaints(server) == [gone("rollbox-stores")] * 2


def test_side_processes_leave_no_zombies(caller):  # noqa: F811
    with Server(caller) as server:
        for name in ("rollbox-stores", "rollbox-keeper"):
            replaced(server, name)
        server.call("GET", "/healthz")
        assert "Z" not in [state(pid) for pid in descendants(server.process.pid)]


def test_killed_exporter_is_replaced_and_its_spans_are_counted(caller, collector):  # noqa: F811
    collector.status = 503  # so that spans stay with the exporter
    with Server(caller, "--otlp-endpoint", collector.url) as server:
        metrics = server.new_token("op", "metrics")
        server.call("POST", "/v1/runs", {"argv": ["true"]})
        replaced(server, "rollbox-otlp")
        collector.status = 200
        server.call("POST", "/v1/runs", {"argv": ["true"]})

        def count(kind):
            text = server.call("GET", "/metrics", token=metrics)[1].decode()
            (line,) = [row for row in text.splitlines() if row.startswith(f"rollbox_otlp_{kind}")]
            return int(line.split()[1])

        until(lambda: count("exported_total") + count("dropped_total") == 8)
        assert len(collector.wait(4)) == count("exported_total")
        lines = complaints(server)
        assert gone("rollbox-otlp") in lines and len([row for row in lines if "ended" in row]) == 1


def test_server_without_side_processes_ends_and_the_next_has_its_sandboxes(caller):  # noqa: F811
    arguments = ("--state", caller.directory(), "--drain", "1")
    with Server(caller, *arguments) as server:
        body = {"name": "box", "detached": True}
        assert server.call("POST", "/v1/sandboxes", body)[0] == 201
        os.kill(server.process.pid, signal.SIGSTOP)
        for name in ("rollbox-keeper", "rollbox-stores"):
            os.kill(side(name), signal.SIGKILL)
        os.kill(server.process.pid, signal.SIGCONT)
        assert server.process.wait(DEADLINE) == 1
        # Its engine runs on, with the same standard error: there is no end of the file.
        while b"nothing can replace them" not in (line := server.process.stderr.readline()):
            assert line
        with Server(caller, *arguments, directory=server.directory) as second:
            box = "/v1/sandboxes/box"
            assert second.call("POST", f"{box}/execs", {"argv": ["true"]})[0] == 200
            assert second.call("DELETE", box)[0] in (200, 204)
            assert second.stop() == 0


def test_server_ends_after_its_last_spans_are_sent(caller, collector):  # noqa: F811
    """A service manager kills what the server leaves."""
    with Server(caller, "--otlp-endpoint", collector.url) as server:
        server.call("POST", "/v1/runs", {"argv": ["true"]})
        assert server.stop() == 0
        assert side("rollbox-otlp") is None and len(collector.spans) == 4
