# SPDX-License-Identifier: Apache-2.0
"""rollbox.integrations.openenv_server with OpenEnv's own server and client."""

import contextlib
import importlib.util
import os
import signal
import threading

import pytest
from adapters import own_server

if importlib.util.find_spec("openenv") is None:
    pytest.skip(
        "needs openenv: its server is made by it (make integrations)", allow_module_level=True
    )

import rollbox  # noqa: E402
import uvicorn  # noqa: E402
from openenv.core.generic_client import GenericEnvClient  # noqa: E402
from rollbox.integrations.openenv_server import create_app  # noqa: E402

# The frameworks alone take long to import on a loaded machine.
pytestmark = pytest.mark.timeout_s(600)

POLICY = {"max_memory": "128M"}


@contextlib.contextmanager
def served(**options):
    config = uvicorn.Config(create_app(policy=POLICY, **options), port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        threading.Event().wait(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)


def test_each_reset_is_a_fork_of_the_setup():
    with served(setup="echo x >> /tmp/runs; echo $RANDOM > /tmp/random") as url:
        seen = set()
        with GenericEnvClient(base_url=url).sync() as client:
            for _ in range(3):
                assert client.reset().done is False
                said = client.step({"command": "cat /tmp/runs /tmp/random; echo y >> /tmp/runs"})
                seen.add(said.observation["stdout"])
                assert client.step({"command": "wc -l < /tmp/runs"}).observation["stdout"] == "2\n"
        assert len(seen) == 1
        with GenericEnvClient(base_url=url).sync() as other:
            other.reset()
            assert other.step({"command": "cat /tmp/runs"}).observation["stdout"] == "x\n"


def test_rewards_limits_and_bad_actions():
    def reward(box, observation):
        return (1.0, True) if box.exists("/tmp/done") else (0.0, False)

    with served(reward=reward, timeout=1) as url, GenericEnvClient(base_url=url).sync() as client:
        client.reset()
        assert client.step({"code": "print(6 * 7)"}).observation["stdout"] == "42\n"
        assert client.step({"command": "sleep 60"}).observation["limit"] == "TimeoutExpired"
        with pytest.raises(Exception, match="command or code"):
            client.step({})
        last = client.step({"command": "touch /tmp/done"})
        assert last.done and last.reward == 1.0
        assert client.state()["step_count"] == 3


def test_a_lost_engine_is_an_error_of_the_client():
    with rollbox.Engine() as engine, served(engine=engine) as url:
        with GenericEnvClient(base_url=url).sync() as client:
            client.reset()
            os.kill(engine.pid, signal.SIGKILL)
            with pytest.raises(Exception, match="engine_lost|not_found"):
                client.step({"command": "true"})


def test_environments_of_a_server():
    with own_server() as address, served(engine=address, setup="echo x > /tmp/f") as url:
        with GenericEnvClient(base_url=url).sync() as client:
            for _ in range(2):
                client.reset()
                assert client.step({"command": "cat /tmp/f"}).observation["stdout"] == "x\n"
