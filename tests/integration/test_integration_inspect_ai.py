# SPDX-License-Identifier: Apache-2.0
"""rollbox.integrations.inspect_ai: its own self-check, all of it, in an image with many users."""

import asyncio
import importlib.util
import inspect
import os
import subprocess

import built_images
import pytest
from adapters import example, own_engine, own_server
from archives import busybox, entry, layer
from built_images import Builds, base, base_config

if importlib.util.find_spec("inspect_ai") is None:
    pytest.skip(
        "needs inspect_ai: its sandbox environments are classes of its own (make integrations)",
        allow_module_level=True,
    )
if os.geteuid() != 0:
    pytest.skip("needs root: its image has many users", allow_module_level=True)

import rollbox  # noqa: E402
from inspect_ai.util import SandboxEnvironmentSpec  # noqa: E402
from inspect_ai.util._sandbox import self_check  # noqa: E402
from rollbox.integrations.inspect_ai import RollboxConfig  # noqa: E402
from rollbox.integrations.inspect_ai import RollboxSandboxEnvironment as Environment  # noqa: E402

# The frameworks alone take long to import on a loaded machine.
pytestmark = pytest.mark.timeout_s(600)

ADDUSER = b"""#!/bin/sh
[ "$1" = --help ] && { echo BusyBox; exit 0; }
echo "$2:x:1001:1001::/home/$2:/bin/sh" >>/etc/passwd
echo "$2:x:1001:" >>/etc/group
"""
USERDEL = b"""#!/bin/sh
grep -v "^$2:" /etc/passwd >/tmp/passwd
cat /tmp/passwd >/etc/passwd
"""
WHOAMI = b"""#!/bin/sh
own=$(id -u)
while IFS=: read -r name password uid rest; do
    [ "$uid" = "$own" ] && echo "$name" && exit 0
done </etc/passwd
exit 1
"""
MANY = {"users": "many", "max_processes": 512}


@pytest.fixture(scope="module", autouse=True)
def store():
    applets = subprocess.run([busybox(), "--list"], capture_output=True, text=True).stdout.split()
    before, built_images.APPLETS = built_images.APPLETS, sorted({*applets} - {"busybox"})
    layers = [
        base(),
        layer(
            entry("usr"),
            entry("usr/bin"),
            entry("usr/bin/env", b"", mode=0o755),
            entry("bin/adduser", ADDUSER, mode=0o755),
            entry("bin/userdel", USERDEL, mode=0o755),
            entry("bin/whoami", WHOAMI, mode=0o755),
        ),
    ]
    built_images.APPLETS = before
    made = Builds()
    made.store.bring("full", *layers, config=base_config(layers))
    place = os.environ.get("ROLLBOX_STORE")
    os.environ["ROLLBOX_STORE"] = str(made.store.path)
    yield made
    if place is None:
        del os.environ["ROLLBOX_STORE"]
    else:
        os.environ["ROLLBOX_STORE"] = place


def test_every_check_of_its_suite_passes_with_many_users():
    checks = {
        name: check
        for name, check in vars(self_check).items()
        if name.startswith("test_") and inspect.iscoroutinefunction(check)
    }
    config = RollboxConfig(policy=MANY, image="full")

    async def main():
        failed = {}
        environments = await Environment.sample_init("task", config, {})
        try:
            for name, check in checks.items():
                try:
                    await check(environments["default"])
                except Exception as problem:
                    failed[name] = repr(problem)
        finally:
            await Environment.sample_cleanup("task", config, environments, False)
        return failed

    assert asyncio.run(main()) == {} and len(checks) >= 44


@pytest.fixture
def engine():
    """A shared engine, by its socket."""
    with own_engine() as (path, _):
        yield path


@pytest.mark.parametrize("arguments", [[], ["--ray"]], ids=["here", "ray"])
def test_the_tutorial_tells_time_outs_from_right_answers(arguments):
    assert "accuracy 0.33" in example("../tutorials/evaluation.py", *arguments)


def test_labels_are_in_the_trajectory_and_a_socket_names_the_engine(tmp_path, engine):
    config = RollboxConfig(
        engine=engine, labels={"run": "7"}, record=str(tmp_path / "{name}.jsonl")
    )

    async def main():
        environments = await Environment.sample_init("task", config, {"sample": "s1"})
        name = environments["default"].box.sync.name
        with rollbox.Engine(engine) as other:
            assert name in [one["name"] for one in other.sandboxes()]
        await environments["default"].exec(["true"])
        await Environment.sample_cleanup("task", config, environments, False)
        return name

    name = asyncio.run(main())
    text = (tmp_path / f"{name}.jsonl").read_text()
    assert '"run":"7"' in text.replace(": ", ":") and '"sample"' in text


def test_a_lost_engine_is_not_a_result(engine):
    import signal

    from inspect_ai.util import SandboxUnavailableError

    config = RollboxConfig(engine=engine)

    async def main():
        environments = await Environment.sample_init("task", config, {})
        with rollbox.Engine(engine) as other:
            os.kill(other.pid, signal.SIGKILL)
        with pytest.raises(SandboxUnavailableError):
            await environments["default"].exec(["true"])
        await Environment.sample_cleanup("task", config, environments, True)

    asyncio.run(main())


def test_a_sample_of_a_server_has_its_labels():
    async def main(url):
        config = RollboxConfig(engine=url, labels={"run": "7"}, policy={"max_memory": "64M"})
        environments = await Environment.sample_init("task", config, {})
        assert (await environments["default"].exec(["echo", "there"])).stdout == "there\n"
        (row,) = rollbox.Engine(url).sandboxes()
        assert row["labels"] == {"run": "7", "task": "task"}
        with pytest.raises(TimeoutError):
            await environments["default"].exec(["sleep", "60"], timeout=1)
        await Environment.sample_cleanup("task", config, environments, False)

    with own_server() as url:
        asyncio.run(main(url))
