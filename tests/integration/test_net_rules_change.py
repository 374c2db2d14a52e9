# SPDX-License-Identifier: Apache-2.0
"""Rules that replace those of the policy: they hold for the session's life, and for its forks.

make check runs this file as root and as an ordinary user.
"""

import json

import pytest
from engines import SharedEngine
from harness import caller, until  # noqa: F401
from network_server import FETCH, server  # noqa: F401
from stores import store  # noqa: F401
from two_stores import engine, other  # noqa: F401

from rollbox import Policy, Sandbox

NAMES = (
    "import socket; print([socket.gethostbyname(name) for name in ('b.wild.test', 'a.wild.test')])"
)


def reached(box, *hosts):
    """Which of the hosts answer."""
    lines = box.exec(
        ["python3", "-c", FETCH, *(f"http://{host}/" for host in hosts)], text=True
    ).stdout.splitlines()
    return [host for host, line in zip(hosts, lines) if line == f"hello {host}"]


def policy(server):  # noqa: F811
    return Policy(net_allow=[server.rule("site.test"), server.rule("*.wild.test")])


def test_new_rules_survive_reset_hibernation_and_forks(server):  # noqa: F811
    with Sandbox(policy(server)) as box:
        box.snapshot("one")
        box.net_set([server.rule("new.test")])
        assert reached(box, "site.test", "new.test") == ["new.test"]
        box.reset("one")
        assert reached(box, "site.test", "new.test") == ["new.test"]
        box.hibernate()
        assert reached(box, "site.test", "new.test") == ["new.test"]
        with box.fork(1)[0] as kid, kid.fork(1)[0] as grandkid:
            box.net_set([server.rule("site.test")])
            assert (
                reached(grandkid, "site.test", "new.test")
                == reached(kid, "site.test", "new.test")
                == ["new.test"]
            )
        assert reached(box, "site.test", "new.test") == ["site.test"]


def test_withdrawn_rules_stay_withdrawn_after_a_wake_without_processes(server):  # noqa: F811
    with Sandbox(policy(server)) as box:
        box.net_set([])
        box.hibernate(processes="drop")
        box.wake()
        assert reached(box, "site.test") == []


def test_egress_engine_killed_keeps_names_and_rules_of_hibernated_sandboxes(caller, server):  # noqa: F811
    place = caller.directory() / "engine"
    path = caller.write(
        caller.directory(0o755) / "policy.json", json.dumps(policy(server).to_dict())
    )
    rules = caller.write(
        caller.directory(0o755) / "rules.json",
        json.dumps([server.rule("new.test"), server.rule("*.wild.test")]),
    )

    def run(*words):
        done = caller.rollbox(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    def execute(*argv):
        return run("exec", "--socket", place, "sleeper", "--", "python3", "-c", *argv)

    with SharedEngine(caller, place) as first:
        run("create", "--socket", place, "--name", "sleeper", "--policy", path)
        execute("import socket; socket.gethostbyname('a.wild.test')")
        names = execute(NAMES)
        run("net", "set", "--socket", place, "--allow-file", rules, "sleeper")
        run("hibernate", "--socket", place, "sleeper")
        first.process.kill()
        first.process.wait()
    with SharedEngine(caller, place):
        assert execute(NAMES) == names
        lines = execute(
            FETCH, "http://new.test/", "http://a.wild.test/", "http://site.test/"
        ).splitlines()
        assert lines[:2] == ["hello new.test", "hello a.wild.test"] and "hello" not in lines[2]
        run("rm", "--socket", place, "sleeper")


def test_imported_copy_has_the_rules_of_its_policy(engine, other, server, tmp_path):  # noqa: F811
    """Rules in a file could allow more than the policy that its reader accepts."""
    with Sandbox(policy(server), engine=engine) as box:
        box.net_set([server.rule("new.test")])
        box.export(tmp_path / "box.live", processes="keep")
    own = tmp_path / "policy.json"
    own.write_text(json.dumps({"net_allow": [server.rule("site.test")]}))
    other.import_(tmp_path / "box.live", "copy", 0, (), "--policy", own)
    with other.engine() as there, Sandbox.open("copy", engine=there) as box:
        assert reached(box, "site.test", "new.test") == ["site.test"]


def test_decrypted_connection_ends_when_no_rule_decrypts_any_more(server):  # noqa: F811
    rule = {
        "host": "api.test",
        "ports": [443],
        "requests": [{"methods": ["GET"]}],
        "to": f"http://{server.address}",
    }
    code = """
import http.client
c = http.client.HTTPSConnection('api.test', timeout=20)
def get():
    try:
        c.request('GET', '/'); return c.getresponse().read().decode()
    except OSError as error:
        return type(error).__name__
print(get(), flush=True); input(); c.auto_open = 0; print(get(), flush=True)
"""
    for rules in [], [server.rule("site.test")], [{**rule, "to": "127.0.0.1:9"}]:
        with Sandbox(Policy(net_allow=[rule])) as box:
            with box.spawn(["python3", "-u", "-c", code]) as process:
                assert process.stdout.readline() == b"hello api.test\n"
                box.net_set(rules)
                process.stdin.write(b"\n")
                process.stdin.flush()
                assert b"hello" not in process.stdout.readline(), rules


@pytest.mark.parametrize(
    "words, problem",
    [
        (["--net", "host", "box"], "net set accepts only loopback"),
        (["box"], "--net loopback to withdraw all rules"),
        (["--net", "loopback", "--allow", "a.org", "box"], "either --net loopback or rules"),
    ],
)
def test_arguments_of_net_set(caller, words, problem):  # noqa: F811
    done = caller.rollbox("net", "set", *words)
    assert done.returncode == 125 and problem in done.stderr.decode()


def test_rules_are_withdrawn_by_the_command_line(caller, server):  # noqa: F811
    with SharedEngine(caller, caller.directory() / "engine") as shared:
        path = caller.write(
            caller.directory(0o755) / "policy.json", json.dumps(policy(server).to_dict())
        )
        assert (
            caller.rollbox(
                "create", "--socket", shared.path, "--name", "box", "--policy", path
            ).returncode
            == 0
        )
        done = caller.rollbox("net", "set", "--socket", shared.path, "--net", "loopback", "box")
        assert done.returncode == 0, done.stderr
        done = caller.rollbox(
            "exec",
            "--socket",
            shared.path,
            "box",
            "--",
            "python3",
            "-c",
            FETCH,
            "http://site.test/",
        )
        assert b"hello" not in done.stdout
        caller.rollbox("rm", "--socket", shared.path, "box")
        until(lambda: b"box" not in caller.rollbox("ps", "--socket", shared.path).stdout)
