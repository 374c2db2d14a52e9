# SPDX-License-Identifier: Apache-2.0
"""The HTTP server's state directory: what outlives the server and its engines, killed or not."""

import contextlib
import os
import re
import signal
import threading
from pathlib import Path

import pytest
from harness import DEADLINE, binaries, caller, descendants, until  # noqa: F401
from serving import Server


@pytest.fixture
def state(caller):  # noqa: F811
    """A state directory. Engines that use it have ended when the test has."""
    path = caller.directory()
    yield path
    for process in engines(path):
        os.kill(process, signal.SIGKILL)


def engines(directory):
    """The engines whose socket is in the directory, without the processes that they have forked."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if words[0].endswith(b"rollbox-engine") and bytes(directory) in b" ".join(words):
            found[int(entry)] = parent
    return [pid for pid, parent in found.items() if parent not in found]


def kill(server):
    """The server ends at once."""
    server.process.kill()
    server.process.wait(DEADLINE)


def again(server, *arguments):
    """Another server with the same state and tokens."""
    return Server(server.who, *arguments, directory=server.directory)


def keyed(server, key, body, path="/v1/runs"):
    """A POST with an Idempotency-Key: the status, the answer, and whether it was a replay."""
    status, answer = server.call("POST", path, body, Idempotency_Key=key)
    return status, answer, server.headers.get("Idempotency-Replayed") == "true"


def test_answers_are_kept_over_the_end_of_the_server(caller, state):  # noqa: F811
    body = {"argv": ["sh", "-c", "head -c 8 /dev/urandom | od -An -tx1"]}
    arguments = ("--state", state)
    with Server(caller, *arguments) as server:
        first = keyed(server, "a", body)
        assert (first[0], first[2]) == (200, False)
        failed = keyed(server, "b", {"argv": []})
        kill(server)
        with again(server, *arguments) as second:
            assert keyed(second, "a", body) == (200, first[1], True)
            assert keyed(second, "b", {"argv": []}) == (*failed[:2], True)
            assert keyed(second, "a", {"argv": ["true"]})[0] == 409
            assert (
                second.call(
                    "POST", "/v1/runs", body, token=second.new_token("two"), Idempotency_Key="a"
                )[0]
                == 200
            )
            assert second.headers.get("Idempotency-Replayed") is None
            assert second.stop() == 0
        with again(server, *arguments) as third:
            assert keyed(third, "a", body) == (200, first[1], True)


def test_request_that_a_killed_server_did_not_finish_is_not_done_again(caller, state):  # noqa: F811
    mark = caller.directory() / "mark"
    mark.touch()
    os.chown(mark, caller.uid, caller.uid)
    body = {
        "argv": ["sh", "-c", f"echo run >> {mark}; sleep 1000"],
        "policy": {"fs_shared": [str(mark)]},
    }
    with Server(caller, "--state", state) as server:
        token = server.new_token("one", "run", "host")
        thread = threading.Thread(
            target=lambda: pytest.raises(
                OSError, server.call, "POST", "/v1/runs", body, token, Idempotency_Key="a"
            )
        )
        thread.start()
        until(lambda: mark.read_text() == "run\n" or not thread.is_alive())
        kill(server)
        thread.join(DEADLINE)
        with again(server, "--state", state) as second:
            status, problem = second.call("POST", "/v1/runs", body, token, Idempotency_Key="a")
            assert (status, problem["code"]) == (410, "idempotency_lost")
        assert mark.read_text() == "run\n"


def test_torn_and_damaged_ends_of_the_journal_are_cut_off(caller, state):  # noqa: F811
    body = {"argv": ["echo", "hi"]}
    journal = state / "journal"
    with Server(caller, "--state", state) as server:
        assert keyed(server, "a", body)[0] == 200
        kill(server)
        for damage in (b"0123456789abcdef {", b"\0" * 100, b"0123456789abcdef {}\n", b"x\n"):
            with open(journal, "ab") as file:
                file.write(damage)
            with again(server, "--state", state) as second:
                assert keyed(second, "a", body)[2]
                kill(second)


def test_journal_is_rewritten_while_the_server_runs(caller, state):  # noqa: F811
    """The filter of system calls once forbade it, so the file grew, and each line cost a try."""
    journal = state / "journal"
    with Server(caller, "--state", state) as server:
        first = journal.stat().st_ino
        body = {"code": "print('x' * 1_000_000)"}
        for number in range(24):
            assert keyed(server, f"k{number}", body)[0] == 200
            if journal.stat().st_ino != first:
                break
        assert journal.stat().st_ino != first and not (state / "journal.new").exists()
        kill(server)
        with again(server, "--state", state) as second:
            assert keyed(second, "k0", body)[2]


def test_state_has_one_server(caller, state):  # noqa: F811
    with Server(caller, "--state", state):
        done = caller.rollbox("serve", "--listen", "127.0.0.1:0", "--state", state)
        assert done.returncode == 1 and b"another server" in done.stderr


def test_detached_sandbox_outlives_a_killed_server(caller, state):  # noqa: F811
    with Server(caller, "--state", state) as server:
        body = {"name": "box", "detached": True, "labels": {"task": "7"}}
        assert server.call("POST", "/v1/sandboxes", body)[0] == 201
        assert server.call("POST", "/v1/sandboxes", {"name": "other"})[0] == 201
        box = "/v1/sandboxes/box"
        assert server.call("PUT", f"{box}/files/tmp/a", b"kept")[0] == 204
        begun = server.call(
            "PUT", f"{box}/execs/long", {"argv": ["sleep", "1000"]}, Prefer="respond-async"
        )
        assert begun[0] == 202
        fork = server.call("POST", f"{box}/fork", {})[1]["sandboxes"][0]
        kill(server)
        with again(server, "--state", state) as second:
            assert second.call("GET", f"{box}/files/tmp/a") == (200, b"kept")
            assert second.call("GET", f"/v1/sandboxes/{fork}/files/tmp/a") == (200, b"kept")
            assert second.call("GET", box)[1]["labels"] == {"task": "7"}
            assert second.call("GET", f"{box}/execs/long?wait=0")[0] == 202
            assert second.call("GET", "/v1/sandboxes/other")[0] == 404
            assert second.call("GET", box, token=second.new_token("two"))[0] == 404
            for name in ("box", fork):
                assert second.call("DELETE", f"/v1/sandboxes/{name}")[0] == 204
            assert second.stop() == 0
    until(lambda: not engines(state))


def test_durable_lease_outlives_the_server_and_ends_its_sandboxes(caller, state):  # noqa: F811
    with Server(caller, "--state", state) as server:
        lease = server.call("POST", "/v1/leases", {"ttl_s": 60, "durable": True})[1]["id"]
        short = server.call("POST", "/v1/leases", {"ttl_s": 1, "durable": True})[1]["id"]
        for name, of in (("box", lease), ("brief", short)):
            assert server.call("POST", "/v1/sandboxes", {"name": name, "lease": of})[0] == 201
        kill(server)
        with again(server, "--state", state) as second:
            assert second.call("PUT", f"/v1/leases/{lease}")[0] == 200
            assert second.call("GET", "/v1/sandboxes/box")[0] == 200
            until(lambda: second.call("GET", "/v1/sandboxes/brief")[0] == 404)
            assert second.call("DELETE", f"/v1/leases/{lease}")[0] == 204
            assert second.call("GET", "/v1/sandboxes/box")[0] == 404
            kill(second)
        with again(server, "--state", state) as third:
            assert third.call("PUT", f"/v1/leases/{lease}")[0] == 404


def test_without_state_nothing_can_be_detached(caller):  # noqa: F811
    with Server(caller) as server:
        for path, body in (("sandboxes", {"detached": True}), ("leases", {"durable": True})):
            status, problem = server.call("POST", f"/v1/{path}", body)
            assert (status, problem["code"]) == (501, "feature_missing")
            assert "--state" in problem["detail"]


@pytest.mark.parametrize("with_state", (False, True), ids=("private", "state"))
def test_lost_engine_is_replaced_while_the_server_serves(caller, state, with_state):  # noqa: F811
    arguments = ("--state", state) if with_state else ()
    with Server(caller, *arguments) as server:
        admin = server.new_token("one", "run", "admin")
        assert server.call("POST", "/v1/sandboxes", {"name": "box"})[0] == 201

        def pid():
            rows = server.call("GET", "/v1/status", token=admin)[1]["engines"]
            return rows[0].get("pid")

        first = pid()
        answers = []
        thread = threading.Thread(
            target=lambda: answers.append(keyed(server, "a", {"argv": ["sleep", "1000"]}))
        )
        thread.start()
        until(lambda: server.call("GET", "/v1/status", token=admin)[1]["tenants"][0]["running"])
        os.kill(first, signal.SIGKILL)
        thread.join(DEADLINE)
        assert (answers[0][0], answers[0][1]["code"]) == (502, "engine_lost")
        assert server.call("POST", "/v1/runs", {"argv": ["echo", "hi"]})[1]["stdout"] == "hi\n"
        assert pid() != first
        assert server.call("GET", "/v1/sandboxes/box")[0] == 404
        assert keyed(server, "a", {"argv": ["sleep", "1000"]})[2]  # not run again
        assert server.call("POST", "/v1/sandboxes", {"name": "box"})[0] == 201
        assert server.stop() == 0


def test_hibernated_sandbox_outlives_the_engine(caller, state):  # noqa: F811
    with Server(caller, "--state", state) as server:
        assert server.call("POST", "/v1/sandboxes", {"name": "box", "detached": True})[0] == 201
        box = "/v1/sandboxes/box"
        assert server.call("PUT", f"{box}/files/tmp/a", b"kept")[0] == 204
        assert server.call("POST", f"{box}/hibernate", {})[0] == 200
        (engine,) = engines(state)
        os.kill(engine, signal.SIGKILL)
        until(lambda: server.call("GET", f"{box}/files/tmp/a") == (200, b"kept"))
        assert server.call("DELETE", box)[0] == 204


def test_server_attaches_to_an_engine_that_is_started_again(caller):  # noqa: F811
    path = caller.directory() / "engine.sock"

    def start():
        engine = caller.popen([binaries() / "rollbox-engine", "--socket", path])
        until(lambda: caller.rollbox("engine", "status", "--socket", path).returncode == 0)
        return engine

    engine = start()
    try:
        with Server(caller, "--engine", path) as server:
            assert server.call("POST", "/v1/runs", {"argv": ["true"]})[0] == 200
            engine.kill()
            engine.wait(DEADLINE)
            assert server.call("GET", "/healthz")[0] == 200
            engine = start()
            status, answer = server.call("POST", "/v1/runs", {"argv": ["echo", "hi"]})
            assert (status, answer["stdout"]) == (200, "hi\n")
            assert server.stop() == 0
        assert caller.rollbox("engine", "status", "--socket", path).returncode == 0
    finally:
        engine.terminate()
        engine.wait(DEADLINE)


def test_several_engines_share_the_sandboxes(caller):  # noqa: F811
    with Server(caller, "--engines", "3") as server:
        admin = server.new_token("one", "run", "admin")
        for i in range(6):
            assert server.call("POST", "/v1/sandboxes", {"name": f"box{i}"})[0] == 201
        rows = server.call("GET", "/v1/status", token=admin)[1]["engines"]
        assert [row["load"] for row in rows] == [2, 2, 2]
        assert len({row["pid"] for row in rows}) == 3
        listing = server.call("GET", "/v1/sandboxes")[1]["sandboxes"]
        assert {row["name"] for row in listing} == {f"box{i}" for i in range(6)}
        os.kill(rows[0]["pid"], signal.SIGKILL)
        until(lambda: len(server.call("GET", "/v1/sandboxes")[1]["sandboxes"]) == 4)
        assert server.call("POST", "/v1/runs", {"argv": ["true"]})[0] == 200
        assert server.stop() == 0


def test_tenants_have_engines_of_their_own(caller):  # noqa: F811
    with Server(caller, "--engine-per-tenant") as server:
        admin, two = server.new_token("one", "run", "admin"), server.new_token("two")
        for token in (admin, two):
            assert server.call("POST", "/v1/sandboxes", {"name": "box"}, token=token)[0] == 201
        rows = server.call("GET", "/v1/status", token=admin)[1]["engines"]
        assert {row["tenant"] for row in rows} == {"one", "two"}
        pids = {row["tenant"]: row["pid"] for row in rows}
        assert pids["one"] != pids["two"]
        os.kill(pids["two"], signal.SIGKILL)
        assert server.call("GET", "/v1/sandboxes/box", token=admin)[0] == 200
        until(lambda: server.call("GET", "/v1/sandboxes/box", token=two)[0] == 404)
        assert server.call("POST", "/v1/runs", {"argv": ["true"]}, token=two)[0] == 200
        assert server.stop() == 0


def test_nothing_is_left_after_kills_under_load(caller, state):  # noqa: F811
    with Server(caller, "--state", state) as server:
        ended = threading.Event()

        def run():
            while not ended.is_set():
                try:
                    server.call("POST", "/v1/runs", {"argv": ["sleep", "0.05"]})
                except OSError:
                    return

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        (engine,) = engines(state)
        until(lambda: len(descendants(engine)) > 4)
        os.kill(engine, signal.SIGKILL)
        until(lambda: engines(state) and engines(state) != [engine])
        until(lambda: any(len(descendants(engine)) > 4 for engine in engines(state)))
        kill(server)
        ended.set()
        for thread in threads:
            thread.join(DEADLINE)
        (engine,) = engines(state)
        runs = re.compile(rb"sleep\x000\.05")

        def left():
            found = []
            for entry in filter(str.isdigit, os.listdir("/proc")):
                with contextlib.suppress(OSError):
                    if runs.match(Path(f"/proc/{entry}/cmdline").read_bytes()):
                        found.append(entry)
            return found

        until(lambda: not left())
        with again(server, "--state", state) as second:
            assert second.call("POST", "/v1/runs", {"argv": ["true"]})[0] == 200
            assert second.stop() == 0
    until(lambda: not engines(state))


def test_quotas_are_recounted_after_a_kill(caller, state):  # noqa: F811
    with Server(caller, "--state", state) as server:
        token = server.new_token("lasting", arguments=("--quota", "memory=192M", "--quota", "starts=5"))
        create = lambda server, **more: server.call(  # noqa: E731
            "POST", "/v1/sandboxes", {"policy": {"max_memory": "64M"}, **more}, token=token
        )
        until(lambda: create(server, detached=True, name="box")[0] in (201, 409))
        status, made = server.call("POST", "/v1/sandboxes/box/fork", {}, token=token)
        assert status == 201, made
        assert create(server)[0] == 201
        assert create(server)[1]["limit"] == "memory"
        until(lambda: b'"n": 3' in (state / "journal").read_bytes() or b'"n":3' in (state / "journal").read_bytes())
        kill(server)
        with again(server, "--state", state) as second:
            # The attached sandbox has ended with the server. The detached ones still count.
            assert create(second)[0] == 201
            assert create(second)[1]["limit"] == "memory"
            for name in ("box", *made["sandboxes"]):
                assert second.call("DELETE", f"/v1/sandboxes/{name}", token=token)[0] == 204
            assert create(second)[0] == 201
            status, problem = create(second)
            assert (status, problem["limit"], problem["current"]) == (429, "starts", 5)
            assert second.stop() == 0
