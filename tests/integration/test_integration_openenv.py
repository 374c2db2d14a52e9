# SPDX-License-Identifier: Apache-2.0
"""rollbox.integrations.openenv with the package itself."""

import importlib.util
import os
import subprocess
import sys
import urllib.request

import pytest
from built_images import Builds, base, base_config
from harness import TREE

if importlib.util.find_spec("openenv") is None:
    pytest.skip(
        "needs openenv: its provider is a class of its own (make integrations)",
        allow_module_level=True,
    )
if os.geteuid() != 0:
    pytest.skip("needs root: its images have many users", allow_module_level=True)

import rollbox  # noqa: E402
from openenv.core.containers.runtime.providers import ContainerProvider  # noqa: E402
from rollbox.integrations.openenv import RollboxProvider  # noqa: E402

SERVER = ["sh", "-c", "mkdir /s; echo $WORD >/s/health; busybox httpd -f -p 127.0.0.1:8000 -h /s"]


@pytest.fixture(scope="module", autouse=True)
def builds():
    made = Builds()
    layers = [base()]
    config = base_config(layers)
    config["config"]["Cmd"] = SERVER
    made.store.bring("server", *layers, config=config)
    before = os.environ.get("ROLLBOX_STORE")
    os.environ["ROLLBOX_STORE"] = str(made.store.path)
    yield made
    if before is None:
        del os.environ["ROLLBOX_STORE"]
    else:
        os.environ["ROLLBOX_STORE"] = before


@pytest.fixture
def engine():
    with rollbox.Engine() as made:
        yield made


def test_server_of_the_image_is_reached_until_it_is_stopped(engine):
    with RollboxProvider(engine=engine) as provider:
        assert isinstance(provider, ContainerProvider)
        url = provider.start_container("server", env_vars={"WORD": "well"})
        provider.wait_for_ready(url, timeout_s=60)
        with urllib.request.urlopen(url + "/health", timeout=60) as page:
            assert page.read() == b"well\n"
        provider.stop_container()
        provider.stop_container()
        with pytest.raises(OSError):
            urllib.request.urlopen(url + "/health", timeout=60)
        assert provider.start_container("server", cmd=SERVER)


def test_ended_server_missing_image_and_lost_engine_are_runtime_errors(engine):
    provider = RollboxProvider(engine=engine, images={"none": "none", "base": "base"})
    with pytest.raises(RuntimeError, match="none"):
        provider.start_container("none", cmd=["true"])
    url = provider.start_container("base", cmd=["sh", "-c", "echo reason; exit 3"])
    with pytest.raises(RuntimeError, match="(?s)status 3.*reason"):
        provider.wait_for_ready(url, timeout_s=60)
    provider.stop_container()
    url = provider.start_container("base", cmd=["sleep", "1000"])
    with pytest.raises(TimeoutError):
        provider.wait_for_ready(url, timeout_s=0.3)
    os.kill(engine.pid, 9)
    with pytest.raises(RuntimeError, match="lost|ended"):
        provider.wait_for_ready(url, timeout_s=60)
    provider.close()


def test_example_ends_with_reward_1():
    program = TREE / "examples/integrations/openenv_provider.py"
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "reward: 1.0\n"), done
