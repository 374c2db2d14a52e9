# SPDX-License-Identifier: Apache-2.0
"""The adapter to tinker-cookbook, with the real package's interface."""

import asyncio
import importlib

import pytest
from adapters import example, needs, own_engine, own_server

from rollbox.integrations.tinker_cookbook import RollboxSandbox, SandboxFactory

HOST = {"policy": {"max_memory": "128M"}, "images": {"*": "host"}}


@pytest.fixture
def interface():
    """tinker_cookbook.sandbox.sandbox_interface."""
    needs("tinker_cookbook", "its results are a class of its own")
    needs("chz", "its results are made by it")
    return importlib.import_module("tinker_cookbook.sandbox.sandbox_interface")


async def make(**options):
    return await SandboxFactory(**{**HOST, **options})("tasks/one/environment", 600)


def test_sandbox_has_the_whole_interface(interface):
    async def main():
        box = await make(setup="echo s >/tmp/s")
        assert isinstance(box, interface.SandboxInterface) and box.sandbox_id
        await box.send_heartbeat()
        result = await box.run_command("cat /tmp/s; echo err >&2; pwd; exit 3", workdir="/usr")
        assert (result.stdout, result.stderr, result.exit_code) == ("s\n/usr\n", "err\n", 3)
        assert (await box.run_command("printf 12345", max_output_bytes=3)).stdout == "123"
        assert (await box.write_file("/tmp/it's/new/f", b"a\nb")).exit_code == 0
        assert (await box.read_file("/tmp/it's/new/f")).stdout == "a\nb"
        assert (await box.read_file("/tmp/it's/new/f", max_bytes=1)).stdout == "a"
        await box.write_file("/tmp/x", "#!/bin/sh\necho ran", executable=True)
        assert (await box.run_command("/tmp/x")).stdout == "ran\n"
        assert (await box.read_file("/tmp/none")).exit_code == 1
        assert (await box.write_file("/usr/none", "x")).exit_code != 0
        late = await box.run_command("echo begun; sleep 100", timeout=1)
        assert late.stdout == "begun\n" and late.exit_code == 124
        assert late.metrics == {"ended_by": "TimeoutExpired"}
        await box.cleanup()
        await box.cleanup()
        with pytest.raises(interface.SandboxTerminatedError):
            await box.send_heartbeat()

    asyncio.run(main())


def test_lost_engine_is_a_terminated_sandbox(interface):
    async def main():
        with own_engine() as (socket, kill):
            box = await make(engine=socket)
            assert (await box.run_command("true")).exit_code == 0
            kill()
            with pytest.raises(interface.SandboxTerminatedError, match="EngineLost"):
                await box.run_command("true")
            await box.cleanup()

    asyncio.run(main())


def test_sandbox_of_a_server(interface):
    async def main():
        with own_server() as address:
            box = await make(engine=address, labels={"episode": 1})
            assert isinstance(box, RollboxSandbox)
            await box.write_file("/tmp/d/f", "text")
            assert (await box.read_file("/tmp/d/f")).stdout == "text"
            await box.cleanup()

    asyncio.run(main())


def test_example_reads_what_a_program_left(interface):
    assert example("tinker_sandbox.py") == "hello\n"
