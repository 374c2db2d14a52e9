# SPDX-License-Identifier: Apache-2.0
"""The gateway of net "allow" as a process of the engine, and what it tells of sandboxes."""

import json
import os
import signal

from engines import SharedEngine, engine  # noqa: F401
from harness import caller, until  # noqa: F401
from network_server import FETCH, server  # noqa: F401


class Box:
    """A sandbox of the shared engine, by the command line."""

    def __init__(self, engine, name, policy=None):
        self.who, self.socket, self.name = engine.who, engine.path, name
        if policy:
            self.call("create", "--name", name, "--policy", policy, name=False)

    def call(self, *arguments, name=True):
        done = self.who.rollbox(arguments[0], "--socket", self.socket, *arguments[1:])
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    def fetch(self, *urls):
        done = self.who.rollbox(
            "exec",
            "--socket",
            self.socket,
            "--json",
            self.name,
            "--",
            "python3",
            "-c",
            FETCH,
            *urls,
        )
        result = json.loads(done.stdout)
        assert result["outcome"] == "exit", result
        return result["stdout"].splitlines(), result["network"]


def gateways(engine):
    """Ids of the engine's gateways."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        if name == "rollbox-egress" and rest.split()[0] != "Z" and int(rest.split()[1]) == engine.process.pid:
            found.append(int(pid))
    return found


def test_egress_gateway_is_there_while_needed(engine, server):
    assert gateways(engine) == []
    box = Box(engine, "needs", server.policy(engine.who))
    assert box.fetch("http://site.test/")[0] == ["hello site.test"]
    assert len(gateways(engine)) == 1
    box.call("rm", "needs")
    until(lambda: not gateways(engine))


def test_egress_gateway_killed_is_started_again(engine, server):
    box = Box(engine, "again", server.policy(engine.who))
    assert box.fetch("http://a.wild.test/")[0] == ["hello a.wild.test"]
    (first,) = gateways(engine)
    os.kill(first, signal.SIGKILL)
    until(lambda: gateways(engine) not in ([], [first]))
    lines, network = box.fetch("http://a.wild.test/", "http://site.test/", "http://other.test/")
    assert lines[:2] == ["hello a.wild.test", "hello site.test"] and "Name or service" in lines[2]
    assert network["connections"] == 2


def test_egress_engine_killed_leaves_no_gateway(caller, server):
    with SharedEngine(caller, caller.directory() / "engine") as engine:
        Box(engine, "orphan", server.policy(caller)).fetch("http://site.test/")
        (pid,) = gateways(engine)
        engine.process.kill()
        until(lambda: not os.path.exists(f"/proc/{pid}"))


def test_egress_fork_keeps_name_table(engine, server):
    look = "import socket; print([socket.gethostbyname(name) for name in ('b.wild.test', 'a.wild.test')])"
    box = Box(engine, "origin", server.policy(engine.who))
    box.fetch("http://a.wild.test/")
    first = box.call("exec", "origin", "--", "python3", "-c", look)
    copy = Box(engine, box.call("fork", "origin").split()[0])
    assert box.call("exec", copy.name, "--", "python3", "-c", look) == first
    assert copy.fetch("http://a.wild.test/")[0] == ["hello a.wild.test"]


def test_egress_hibernate_keeps_name_table(caller, server):
    with SharedEngine(caller, caller.directory() / "engine") as engine:
        look = "import socket; print([socket.gethostbyname(name) for name in ('b.wild.test', 'a.wild.test')])"
        box = Box(engine, "sleeper", server.policy(caller))
        box.fetch("http://a.wild.test/")
        first = box.call("exec", "sleeper", "--", "python3", "-c", look)
        box.call("hibernate", "sleeper")
        assert box.call("exec", "sleeper", "--", "python3", "-c", look) == first
        assert box.fetch("http://a.wild.test/")[0] == ["hello a.wild.test"]


def test_egress_reset_to_snapshot_has_a_network(engine, server):
    box = Box(engine, "back", server.policy(engine.who))
    box.fetch("http://site.test/")
    box.call("snapshot", "back")
    box.call("reset", "back")
    assert box.fetch("http://site.test/")[0] == ["hello site.test"]


def test_egress_set_rules_while_running(engine, server):
    box = Box(engine, "rules", server.policy(engine.who))
    rules = engine.who.write(engine.who.directory() / "rules.json", json.dumps([server.rule("new.test")]))
    assert "Name or service" in box.fetch("http://new.test/")[0][0]
    done = box.who.rollbox("net", "set", "--socket", box.socket, "--allow-file", rules, "rules")
    assert done.returncode == 0, done.stderr
    lines, _ = box.fetch("http://new.test/", "http://site.test/")
    assert lines[0] == "hello new.test" and "hello" not in lines[1]


def test_egress_log_has_connections_and_refusals(engine, server):
    box = Box(engine, "log", server.policy(engine.who))
    box.fetch("http://site.test/", "http://192.0.2.1/")
    done = box.who.rollbox("net", "log", "--socket", box.socket, "log")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["box"] for row in events} == {"log"}
    assert [row["event"] for row in events if row["event"] in ("connect", "refused")] == ["connect", "refused"]


def test_egress_sandboxes_do_not_share_tallies(engine, server):
    policy = server.policy(engine.who)
    one, other = Box(engine, "one", policy), Box(engine, "other", policy)
    one.fetch("http://site.test/")
    assert other.fetch("http://other.test/")[1]["connections"] == 0
