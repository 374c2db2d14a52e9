# SPDX-License-Identifier: Apache-2.0
"""The official Python SDK of the Model Context Protocol as a client, in both eras (`make integrations`)."""

import asyncio
import os

import pytest
from adapters import needs, own_server
from harness import BUILD

MODERN, LEGACY = "2026-07-28", "2025-11-25"


@pytest.fixture(scope="module")
def command():
    needs("mcp", "the SDK is the client of these tests")
    with own_server() as address:
        yield [address]


async def work(client, version):
    from jsonschema import Draft202012Validator

    assert client.protocol_version == version
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    for tool in tools.values():
        Draft202012Validator.check_schema(tool.input_schema)
        Draft202012Validator.check_schema(tool.output_schema)

    async def call(name, **arguments):
        result = await client.call_tool(name, arguments)
        assert not result.is_error, result
        Draft202012Validator(tools[name].output_schema).validate(result.structured_content)
        return result.structured_content

    assert (await call("run", command="exit 3"))["exit_code"] == 3
    box = (await call("create_sandbox"))["name"]
    await call("write_file", sandbox=box, path="/tmp/a", text="one")
    base = (await call("snapshot", sandbox=box))["id"]
    kids = (await call("fork", sandbox=box, n=3))["sandboxes"]
    results = await asyncio.gather(
        *[call("exec", sandbox=kid, command="cat /tmp/a") for kid in kids]
    )
    assert [result["stdout"] for result in results] == ["one"] * 3
    await call("exec", sandbox=box, command="rm /tmp/a")
    assert (await call("diff", sandbox=box))["changes"] is not None
    await call("reset", sandbox=box, snapshot=base)
    assert (await call("read_file", sandbox=box, path="/tmp/a"))["text"] == "one"
    assert (await client.call_tool("exec", {"sandbox": "nosuch", "command": "true"})).is_error


@pytest.mark.parametrize("mode, version", [("auto", MODERN), ("legacy", LEGACY)])
@pytest.mark.parametrize("served", [False, True], ids=["own engine", "server"])
def test_sdk_works_over_stdio(command, mode, version, served):
    from mcp import Client, StdioServerParameters

    words = ["--engine", command[0]] if served else []
    parameters = StdioServerParameters(
        command=str(BUILD / "rollbox"), args=[*words, "mcp"], env=dict(os.environ)
    )

    async def main():
        async with Client(parameters, mode=mode) as client:
            await work(client, version)

    asyncio.run(main())
