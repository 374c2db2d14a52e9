# SPDX-License-Identifier: Apache-2.0
"""Private networks: sandboxes that reach each other by name, and forks of the whole group."""

import json
import os
import signal

import pytest
from harness import comm, descendants, until
from rollbox import FeatureMissing, InvalidArgument, Policy, Sandbox, default_engine
from cli_sessions import own, shared  # noqa: F401

# A database of one number: "add" answers with the number after it was added to, "get" with the
# number. It has two numbers in fact, and writes one after the other.
DATABASE = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 5432), backlog=256)
first = second = 0
lock = threading.Lock()
print("ready", flush=True)
def serve(connection):
    global first, second
    with connection:
        for line in connection.makefile("rb"):
            with lock:
                if line == b"add\\n":
                    first += 1
                    second += 1
                connection.sendall(b"%d %d\\n" % (first, second))
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"""
ASK = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60) as connection:
        connection.sendall(sys.argv[3].encode() + b"\\n")
        print(connection.makefile().readline().strip())
except OSError as error:
    print(type(error).__name__)
"""
# Connects to both, tells when the first connection has ended, and uses the second one.
KEEP = """
import socket, sys
both = [socket.create_connection((name, 5432)) for name in sys.argv[1:]]
for connection in both:
    connection.sendall(b"get\\n")
answers = [connection.makefile() for connection in both]
print(*[answer.readline().strip() for answer in answers], flush=True)
try:
    ended = both[0].recv(1) == b""
except ConnectionResetError:
    ended = True
print("gone" if ended else "there", flush=True)
sys.stdin.readline()
both[1].sendall(b"add\\n")
print(answers[1].readline().strip(), flush=True)
"""
# Adds for ever, and notes each answer; after a reset it says so and connects again.
APPLICATION = """
import socket
print("ready", flush=True)
while True:
    try:
        with socket.create_connection(("db", 5432)) as connection:
            answers = connection.makefile()
            while True:
                connection.sendall(b"add\\n")
                answer = answers.readline()
                if not answer:
                    break
                open("/tmp/answer.new", "w").write(answer)
                import os; os.rename("/tmp/answer.new", "/tmp/answer")
    except OSError:
        pass
    open("/tmp/reset", "w").close()
"""


def gateway_of(engine):
    """The pid of its rollbox-egress."""
    return next(pid for pid in descendants(engine.pid) if comm(pid) == "rollbox-egress")


def start(box, code):
    process = box.spawn(["python3", "-c", code])
    assert process.stdout.readline() == b"ready\n"
    return process


def ask(box, name, what="get", port=5432):
    return box.exec(["python3", "-c", ASK, name, str(port), what], text=True).stdout.strip()


@pytest.fixture
def shop():
    """An application and its database, in a network of their own."""
    policy = Policy(network=f"shop-{os.getpid()}")
    with Sandbox(policy, name=f"app-{os.getpid()}") as app, Sandbox(policy, name="db") as database:
        start(database, DATABASE)
        yield app, database


def test_members_reach_each_other_by_name(shop):
    app, database = shop
    assert ask(app, "db", "add") == "1 1"
    assert ask(app, "DB", "add") == "2 2"
    assert ask(database, "db") == "2 2"
    assert app.inspect()["private_network"]["members"] == [app.name, "db"]
    done = app.exec(["python3", "-c", ASK, "db", "5432", "get"])
    assert [(row["host"], row["port"], row["connections"]) for row in done.network["hosts"]] == [
        ("db", 5432, 1)
    ]


def test_nothing_else_is_reachable(shop):
    app, _ = shop
    with Sandbox(Policy(network="other")) as stranger, Sandbox(Policy(net="allow")) as lone:
        for box in (stranger, lone):
            assert ask(box, "db") == "gaierror"
            # The address that the name has for members leads nowhere here.
            assert ask(box, "198.18.128.1") == "ConnectionResetError"
    assert ask(app, "example.org", port=80) == "gaierror"
    assert ask(app, "db", port=5433) == "ConnectionResetError"
    for address in ("169.254.169.254", "10.0.0.1", "1.1.1.1"):
        assert ask(app, address, port=80) == "ConnectionResetError"


def test_members_come_and_go(shop):
    app, _ = shop
    assert ask(app, "cache") == "gaierror"
    with Sandbox(app.policy, name="cache") as cache:
        start(cache, DATABASE)
        assert ask(app, "cache") == "0 0"
        kept = app.spawn(["python3", "-c", KEEP, "cache", "db"])
        assert kept.stdout.readline() == b"0 0 0 0\n"
    # Connections to the one that has gone end, and no other.
    assert kept.stdout.readline() == b"gone\n"
    kept.stdin.write(b"\n")
    kept.stdin.close()
    assert kept.stdout.readline() == b"1 1\n"
    assert ask(app, "cache") == "gaierror"


def test_connection_wakes_a_hibernated_member(shop):
    app, database = shop
    assert ask(app, "db", "add") == "1 1"
    database.hibernate()
    assert ask(app, "db") == "1 1"


def test_reset_and_woken_members_stay_in_their_network(shop):
    app, _ = shop
    state = app.snapshot()
    app.reset(state)
    assert ask(app, "db", "add") == "1 1"
    app.hibernate()
    app.wake()
    assert ask(app, "db") == "1 1"


def test_fork_of_one_member_is_alone(shop):
    app, _ = shop
    assert ask(app, "db", "add") == "1 1"
    (fork,) = app.fork()
    with fork:
        assert fork.inspect()["private_network"]["members"] == [app.name]
        assert ask(fork, "db") in ("gaierror", "ConnectionResetError")


def test_group_is_forked_with_networks_of_its_own(shop):
    app, database = shop
    assert ask(app, "db", "add") == "1 1"
    groups = default_engine().fork_group([app, database], 2)
    for number, (app_copy, database_copy) in enumerate(groups):
        for _ in range(number + 1):
            ask(app_copy, "db", "add")
        assert ask(app_copy, "db") == f"{number + 2} {number + 2}"
        assert ask(database_copy, "db") == f"{number + 2} {number + 2}"
    assert ask(app, "db") == "1 1"
    for group in groups:
        for box in group:
            box.close()


def test_group_is_forked_at_one_moment(shop):
    """No copy of the application knows of a sum that its database's copy has not made."""
    app, database = shop
    start(app, APPLICATION)
    until(lambda: app.exec(["cat", "/tmp/answer"]).exit_code == 0)
    for _ in range(5):
        ((app_copy, database_copy),) = default_engine().fork_group([app, database])
        with app_copy, database_copy:
            # Its connection was reset in the copy. What it had been told before is in the file.
            text = app_copy.read_file("/tmp/answer").decode().split()
            known = int(text[0])
            first, second = map(int, ask(database_copy, "db").split())
            assert first == second and first >= known > 0
    assert app.exec(["test", "-e", "/tmp/reset"]).exit_code == 1, (
        "the originals keep their connection"
    )


def test_group_is_forked_whole_or_not_at_all(shop):
    app, database = shop
    before = len(default_engine().sandboxes())
    for boxes, error in (([app, app], InvalidArgument), ([], InvalidArgument)):
        with pytest.raises(error):
            default_engine().fork_group(boxes)
    # A connection that is not accepted cannot be captured.
    keeps = start(
        database,
        "import socket, os; server = socket.create_server(('127.0.0.1', 9999)); client = socket.create_connection(('127.0.0.1', 9999)); print('ready', flush=True); os.read(0, 1)",
    )
    with pytest.raises(FeatureMissing, match="descriptor"):
        default_engine().fork_group([app, database])
    keeps.kill()
    assert len(default_engine().sandboxes()) == before
    assert ask(app, "db") == "0 0"


def test_command_line_forks_a_group(shared):
    with (
        shared.box("--network", "shop", "--name", "app") as app,
        shared.box("--network", "shop", "--name", "db") as database,
    ):
        id = shared.ok("exec", "-d", database, "--", "python3", "-c", DATABASE)
        until(lambda: "ready" in shared.ok("logs", database, id))
        assert shared.ok("exec", app, "--", "python3", "-c", ASK, "db", "5432", "add") == "1 1"
        lines = shared.ok("fork", app, database, "-n", "2").split("\n")
        assert [len(line.split()) for line in lines] == [2, 2]
        for line in lines:
            copy = line.split()[0]
            assert shared.ok("exec", copy, "--", "python3", "-c", ASK, "db", "5432", "add") == "2 2"
            members = shared.json("inspect", copy)["private_network"]["members"]
            assert sorted(members) == ["app", "db"]
        shared.ok("rm", *" ".join(lines).split())
        lists = json.loads(shared.ok("fork", "--json", app, database))["sandboxes"]
        assert [len(names) for names in lists] == [1, 1]
        shared.ok("rm", *[name for names in lists for name in names])


def test_killed_gateway_is_replaced_for_members(own):
    with (
        own.box("--network", "shop", "--name", "app") as app,
        own.box("--network", "shop", "--name", "db") as database,
    ):
        id = own.ok("exec", "-d", database, "--", "python3", "-c", DATABASE)
        until(lambda: "ready" in own.ok("logs", database, id))
        assert own.ok("exec", app, "--", "python3", "-c", ASK, "db", "5432", "add") == "1 1"
        os.kill(gateway_of(own), signal.SIGKILL)
        until(lambda: own.ok("exec", app, "--", "python3", "-c", ASK, "db", "5432", "get") == "1 1")


def test_network_is_refused_where_it_has_no_meaning(shared):
    for flags, text in (
        (["--net", "host"], b'net "host" has no private network'),
        (["--isolation", "process"], b'isolation "process" has no private network'),
        (["--network", "no name"], b"is no name for a network"),
    ):
        done = shared("create", "--network", "shop", *flags)
        assert done.returncode == 125 and text in done.stderr, (flags, done.stderr)
    policy = shared.who.write(shared.who.directory() / "policy.json", '{"network": "shop"}')
    done = shared("run", "--policy", str(policy), "--", "true")
    assert done.returncode == 125 and b"a single run is in no private network" in done.stderr
