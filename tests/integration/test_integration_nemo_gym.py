# SPDX-License-Identifier: Apache-2.0
"""rollbox.integrations.nemo_gym with NeMo-Gym's own sandbox API."""

import asyncio
import importlib.util
import os
import subprocess
import sys
import urllib.request

import pytest
from built_images import Builds
from harness import BUILD, TREE

if importlib.util.find_spec("nemo_gym") is None:
    pytest.skip(
        "needs nemo_gym: its specifications are classes of its own (make integrations)",
        allow_module_level=True,
    )
if os.geteuid() != 0:
    pytest.skip("needs root: its images have many users", allow_module_level=True)

import rollbox  # noqa: E402
from nemo_gym.sandbox.api import AsyncSandbox  # noqa: E402
from nemo_gym.sandbox.providers import base, registry  # noqa: E402
from rollbox.integrations.nemo_gym import RollboxProvider  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def builds():
    made = Builds()
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


def driven(provider, check, **spec):
    async def main():
        async with AsyncSandbox(provider) as box:
            await box.start(base.SandboxSpec(**{"image": "base", **spec}))
            await check(box)

    asyncio.run(main())


@pytest.fixture
def provider(engine):
    return RollboxProvider(engine=engine, images={"*": "base"})


def test_provider_has_the_protocols():
    registry.register_provider("rollbox", RollboxProvider, override=True)
    made = registry.create_provider({"rollbox": {"images": {"*": "base"}}})
    for protocol in (
        base.SupportsSandboxPauseResume, base.SupportsSandboxEndpoint, base.SupportsSandboxPty,
        base.ConnectableProvider, base.SupportsSandboxBackgroundServices,
    ):  # fmt: skip
        assert isinstance(made, protocol), protocol


def test_commands_users_files_and_the_specification(provider, tmp_path):
    async def check(box):
        result = await box.exec("pwd; echo $A; id -u; echo err >&2; exit 3")
        assert (result.stdout, result.stderr, result.return_code) == ("/w\na\n0\n", "err\n", 3)
        assert result.error_type is None
        assert (await box.exec("id -u", user="alice")).stdout == "1000\n"
        assert (await box.exec("cat /in/file")).stdout == "text"
        await box.upload(tmp_path / "f", "there/f")
        assert (await box.exec("cat there/f")).stdout == "file"
        await box.download("there/f", tmp_path / "back/f")
        assert (tmp_path / "back/f").read_text() == "file"
        assert await box.status() is base.SandboxStatus.RUNNING

    (tmp_path / "f").write_text("file")
    driven(provider, check, workdir="/w", env={"A": "a"}, files={"/in/file": "text"})


def test_timeouts_and_memory_kills_have_their_own_error_types(provider):
    async def check(box):
        result = await box.exec("echo begun; sleep 100", timeout_s=1)
        assert (result.return_code, result.error_type) == (125, "timeout")
        assert result.stdout == "begun\n"
        result = await box.exec("x=$(cat /dev/zero | tr '\\0' a)")
        assert (result.return_code, result.error_type) == (137, "out_of_memory")
        assert (await box.exec("kill -9 $$")).return_code == 137

    driven(provider, check, resources={"memory_mib": 64})


def test_cancelled_command_ends(provider):
    async def check(box):
        task = asyncio.ensure_future(box.exec("echo $$ >/tmp/pid; exec sleep 1000"))
        while (await box.exec("test -s /tmp/pid")).return_code:
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ended = await box.exec("while kill -0 $(cat /tmp/pid); do sleep 0.01; done", timeout_s=60)
        assert ended.error_type is None

    driven(provider, check)


def test_lost_engine_is_an_error(provider, engine):
    async def main():
        handle = await provider.create(base.SandboxSpec(image="base"))
        os.kill(engine.pid, 9)
        with pytest.raises(rollbox.EngineLost):
            await provider.exec(handle, "true")
        assert await provider.status(handle) is base.SandboxStatus.ERROR
        await provider.close(handle)
        await provider.close(handle)

    asyncio.run(main())


def test_missing_image_is_a_create_error(engine):
    async def main():
        provider = RollboxProvider(engine=engine, images={"*": "none"})
        with pytest.raises(base.SandboxCreateError):
            await provider.create(base.SandboxSpec(image="x"))

    asyncio.run(main())


def test_pause_stops_the_processes(provider):
    async def main():
        handle = await provider.create(base.SandboxSpec(image="base"))
        await provider.pause(handle)
        assert await provider.status(handle) is base.SandboxStatus.PAUSED
        await provider.resume(handle)
        assert (await provider.exec(handle, "echo on")).stdout == "on\n"
        await provider.close(handle)
        assert await provider.status(handle) is base.SandboxStatus.STOPPED

    asyncio.run(main())


def test_endpoint_reaches_a_server(provider):
    async def check(box):
        await box.exec("mkdir /site; echo hello >/site/f; busybox httpd -p 127.0.0.1:8080 -h /site")
        found = await box.endpoint(8080)

        def read():
            with urllib.request.urlopen(found.endpoint.rstrip("/") + "/f", timeout=60) as page:
                return page.read()

        assert await asyncio.to_thread(read) == b"hello\n"

    driven(provider, check, ports=[8080])


def test_terminal_and_pipes(provider):
    async def check(box):
        result = await box.pty.exec("test -t 0 && echo terminal; exit 4")
        assert (result.stdout, result.return_code) == ("terminal\r\n", 4)
        result = await box.pty.exec("echo out; echo err >&2", pty=False)
        assert (result.stdout, result.stderr) == ("out\n", "err\n")
        async with await box.pty.create(rows=10, cols=20) as session:
            await session.resize(30, 40)
            assert (await box.pty.exec("cd /bin; X=1", session=session)).return_code == 0
            result = await box.pty.exec("pwd; echo $X", session=session)
            assert "/bin" in result.stdout and result.return_code == 0

    driven(provider, check)


def test_setup_runs_once_and_sandboxes_are_forks(engine):
    provider = RollboxProvider(engine=engine, images={"*": "base"}, setup="echo once >>/setup")

    async def check(box):
        assert (await box.exec("echo more >>/setup; cat /setup")).stdout == "once\nmore\n"

    driven(provider, check)
    driven(provider, check)


def test_example_ends_with_reward_1():
    program = TREE / "examples/integrations/nemo_gym_sandbox.py"
    done = subprocess.run(
        [sys.executable, str(program), "--image", "base"],
        capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["rewards: [0.0, 1.0]"]), done


def test_remote_engine_and_a_handle_of_another_provider(tmp_path):
    address = tmp_path / "serve"
    server = subprocess.Popen(
        [str(BUILD / "rollbox"), "serve", "--listen", str(address)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        while server.stdout.readline() not in (b"ready\n", b""):
            pass

        async def main():
            first = RollboxProvider(engine=f"unix:{address}", images={"*": "base"})
            handle = await first.create(base.SandboxSpec(image="x", env={"A": "a"}))
            second = RollboxProvider(engine=f"unix:{address}")
            other = await second.connect(await first.serialize_handle(handle))
            assert (await second.exec(other, "echo $A; echo x >/file")).stdout == "a\n"
            assert (await first.exec(handle, "cat /file")).stdout == "x\n"
            await first.aclose()
            with pytest.raises(base.SandboxCreateError):
                await second.connect({"name": handle.sandbox_id, "engine": f"unix:{address}"})

        asyncio.run(main())
    finally:
        server.terminate()
        server.wait(60)
        server.stdout.close()
