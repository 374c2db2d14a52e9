# SPDX-License-Identifier: Apache-2.0
"""The first use of an image by an ordinary user's sandboxes of many users copies its layers with
owners. Other sandboxes of the engine run meanwhile, and one copy serves all starts."""

import json
import os
import signal
import subprocess
import sys

import pytest
from archives import entry
from harness import DEADLINE, TREE, binaries, pidfds, until, wait_gone
from image_stores import Store
from owned_stores import bring, leftovers, users

STARTS = 50
RUNS = """
import asyncio, sys
sys.path.insert(0, %r)
from rollbox import AsyncSandbox, Engine, Policy

async def main():
    sandbox = AsyncSandbox(Policy(image="system", users="many"), engine=Engine(%r))
    next_line = lambda: asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print((await sandbox.run(["/bin/echo", "one"])).text, end="", flush=True)
    await next_line()
    task = asyncio.ensure_future(sandbox.run(["/bin/echo", "two"]))
    await next_line()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        print("cancelled", flush=True)
    await next_line()
    print((await sandbox.run(["/bin/echo", "three"])).text, end="", flush=True)

asyncio.run(main())
"""


class FirstUse(Store):
    """A store, and an engine whose jobs `own` wait until the test lets them go."""

    def __init__(self, caller):
        super().__init__(caller)
        self.jobs, self.gate = self.home / "jobs", self.home / "gate"
        program = caller.write(
            self.home / "store-program",
            f"""#!/bin/sh
if [ "$1" = own ]; then
    echo $$ >> {self.jobs}
    read line < {self.gate} || exit 1
fi
exec {binaries()}/rollbox-store "$@"
""",
            0o755,
        )
        caller.write(self.jobs, "")
        os.mkfifo(self.gate)
        caller.own(self.gate)
        self.env = caller.environment(
            ROLLBOX_STORE=str(self.path),
            ROLLBOX_SOCKET=str(self.home / "socket"),
            ROLLBOX_STORE_PROGRAM=str(program),
        )

    def rollbox(self, *words):
        return self.caller.call(binaries() / "rollbox", *words, env=self.env)

    def start(self, *words):
        """A client in the background."""
        return self.caller.popen(
            [binaries() / "rollbox", *words],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def create(self, name, *words):
        return self.start("create", "--json", "--name", name, "--users", "many", "--image", "system", *words)

    def pids(self):
        return [int(line) for line in self.jobs.read_text().split()]

    def wait_for_jobs(self, n):
        until(lambda: len(self.pids()) >= n)
        return self.pids()

    def wait_for_requests(self, n):
        """Until the engine has so many unanswered requests, besides the one for its status."""
        until(lambda: sum(row["requests"] for row in self.status()["connections"]) > n)

    def status(self):
        return json.loads(self.rollbox("engine", "status", "--json").stdout)

    def let_go(self):
        with open(self.gate, "w") as gate:
            gate.write("go\n")


@pytest.fixture(params=users(), ids=repr)
def store(request):
    found = FirstUse(request.param)
    bring(found)
    assert found.rollbox("engine", "start", "--background").returncode == 0
    yield found
    found.rollbox("engine", "stop")
    assert leftovers(found) == []


def ended(client, status=0):
    out, err = client.communicate(timeout=DEADLINE)
    assert client.returncode == status, (out, err)
    return out, err


def test_sandboxes_run_while_an_image_is_copied(store):
    assert store.rollbox("create", "--name", "old").returncode == 0
    first = store.create("first")
    store.wait_for_jobs(1)
    assert store.rollbox("run", "--", "/bin/true").returncode == 0
    assert store.rollbox("exec", "old", "--", "/bin/echo", "here").stdout == b"here\n"
    assert store.rollbox("fork", "old").returncode == 0
    assert first.poll() is None
    store.let_go()
    ended(first)
    assert store.rollbox("exec", "first", "--", "/bin/stat", "-c", "%u", "/home/alice/secret").stdout == b"1000\n"


def test_many_starts_of_an_image_copy_it_once(store):
    starts = [store.create(f"box{i}") for i in range(STARTS)]
    store.wait_for_requests(STARTS)
    store.wait_for_jobs(1)
    store.let_go()
    for start in starts:
        ended(start)
    assert len(store.pids()) == 1
    assert len(os.listdir(store.path / "layers")) == 2


def test_processes_that_copy_an_image_at_once_copy_it_once(store):
    env = store.caller.environment(ROLLBOX_STORE=str(store.path))
    jobs = [
        store.caller.popen(
            [binaries() / "rollbox-store", "own", "--json", "--store", store.path, "--", "system"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(8)
    ]
    assert sum(json.loads(ended(job)[0])["new"] for job in jobs) == 1


def test_killed_copy_fails_its_starts_and_the_next_start_works(store):
    starts = [store.create("one"), store.create("two")]
    words = "run --json --users many --image system --engine".split()
    starts.append(store.start(*words, store.env["ROLLBOX_SOCKET"], "--", "id"))
    (pid,) = store.wait_for_jobs(1)
    store.wait_for_requests(len(starts))
    os.kill(pid, signal.SIGKILL)
    for start in starts:
        out, err = ended(start, 125)
        error = json.loads(out or err)["error"]
        assert "system: its files cannot be copied for sandboxes of many users" in error["message"], error
    assert os.listdir(store.path / "tmp") == []
    again = store.create("one")
    store.wait_for_jobs(2)
    store.let_go()
    ended(again)


def test_copy_that_fails_tells_every_start(store):
    layer = next((store.path / "layers").iterdir())
    (layer / "fs" / "etc" / "passwd").write_text("changed")
    start = store.create("one")
    store.wait_for_jobs(1)
    store.let_go()
    out, err = ended(start, 125)
    error = json.loads(out or err)["error"]
    assert error["code"] == "damaged" and "import it again" in error["message"], error


def test_copy_ends_when_nobody_waits_for_it(store):
    one, two = store.create("one"), store.create("two")
    job = pidfds(store.wait_for_jobs(1))
    store.wait_for_requests(2)
    one.kill()
    one.communicate()
    assert store.rollbox("run", "--", "/bin/true").returncode == 0
    assert two.poll() is None and len(store.pids()) == 1
    two.kill()
    two.communicate()
    wait_gone(job)
    third = store.create("one")
    store.wait_for_jobs(2)
    store.let_go()
    ended(third)


def test_copy_takes_nothing_of_the_time_limit_of_a_run(store):
    """The limit counts from the program's start."""
    limit = ["run", "--engine", store.env["ROLLBOX_SOCKET"], "--timeout", "0.3"]
    first = store.start(*limit, "--users", "many", "--image", "system", "--", "/bin/echo", "ran")
    store.wait_for_jobs(1)
    store.wait_for_requests(1)
    # The same limit passes meanwhile.
    assert store.rollbox(*limit, "--", "/bin/sleep", "60").returncode == 124
    assert first.poll() is None
    store.let_go()
    assert ended(first)[0] == b"ran\n"


def test_run_that_is_cancelled_while_an_image_is_copied_ends_at_once(store):
    """The name is given to another image after the policy was compiled, so that the run itself waits."""
    env = {**store.env, "ROLLBOX_LIBRARY": str(binaries() / "librollbox.so")}
    code = RUNS % (str(TREE / "python"), store.env["ROLLBOX_SOCKET"])
    words = [sys.executable, "-I", "-c", code]
    pipe = subprocess.PIPE
    client = store.caller.popen(words, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1)
    store.wait_for_jobs(1)
    store.let_go()
    assert client.stdout.readline() == "one\n", client.stderr.read()
    bring(store, "system", entry("other", b"other"))
    client.stdin.write("\n")
    job = pidfds(store.wait_for_jobs(2)[1:])
    store.wait_for_requests(1)
    client.stdin.write("\n")
    assert client.stdout.readline() == "cancelled\n"
    wait_gone(job)
    client.stdin.write("\n")
    store.wait_for_jobs(3)
    store.let_go()
    assert client.communicate(timeout=DEADLINE)[0] == "three\n"
