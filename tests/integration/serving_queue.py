# SPDX-License-Identifier: Apache-2.0
"""An HTTP server whose engine is easily full, for tests of requests that wait."""

import contextlib
import json

import pytest
from harness import DEADLINE, binaries, caller, until  # noqa: F401
from serving import Server

BUDGET = 300 << 20
HALF = {"max_memory": "150M"}  # of the budget: one runs at a time, because a rest is kept


@pytest.fixture
def small(caller):  # noqa: F811
    """A server of an engine with little memory."""
    path = caller.directory() / "engine.sock"
    engine = caller.popen(
        [binaries() / "rollbox-engine", "--socket", path, "--memory-budget", str(BUDGET)]
    )
    until(lambda: caller.rollbox("engine", "status", "--socket", path).returncode == 0)
    try:
        with Server(caller, "--engine", path) as one:
            one.box = one.new_token("gate")
            until(lambda: one.call("POST", "/v1/sandboxes", {"name": "gate"}, token=one.box)[0])
            yield one
    finally:
        engine.kill()
        engine.wait(DEADLINE)


def numbers(server, token):
    return server.call("GET", "/v1/quota", token=token)[1]


@contextlib.contextmanager
def full(server):
    """The engine is full of one run of another tenant until the end of the block."""
    token = server.new_token("filler")
    connection = server.connect()
    connection.request(
        "POST",
        "/v1/runs",
        json.dumps({"argv": ["sleep", "1000"], "policy": HALF}),
        {"Authorization": f"Bearer {token}"},
    )
    until(lambda: numbers(server, token)["started"] == 1)
    try:
        yield
    finally:
        connection.close()  # the run ends with its client
