# SPDX-License-Identifier: Apache-2.0
"""SWE-ReX's own client against the server (`make integrations`)."""

import asyncio
import subprocess
import tempfile
from pathlib import Path

import pytest
from adapters import needs
from harness import BUILD, DEADLINE


@pytest.fixture
def runtime():
    needs("swerex", "its client is tested")
    from swerex.runtime.remote import RemoteRuntime

    with tempfile.TemporaryDirectory() as directory:
        tokens = f"{directory}/tokens"
        made = subprocess.run(
            [BUILD / "rollbox", "token", "create", "--tokens", tokens],
            capture_output=True,
            text=True,
            check=True,
        )
        process = subprocess.Popen(
            [BUILD / "rollbox", "serve", "--listen", "127.0.0.1:0", "--tokens", tokens],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            port = process.stdout.readline().strip().rpartition(":")[2]
            while process.stdout.readline() not in ("ready\n", ""):
                pass
            yield RemoteRuntime(
                host=f"http://127.0.0.1:{port}/swerex/task",
                port=None,
                auth_token=made.stdout.strip(),
            )
        finally:
            process.terminate()
            process.wait(DEADLINE)


def test_client_of_swe_rex_works_unchanged(runtime):
    import swerex.exceptions as exceptions
    from swerex.runtime.abstract import (
        BashAction,
        BashInterruptAction,
        CloseBashSessionRequest,
        Command,
        CreateBashSessionRequest,
        ReadFileRequest,
        UploadRequest,
        WriteFileRequest,
    )

    async def main():
        assert await runtime.is_alive()
        assert (await runtime.execute(Command(command=["echo", "hi"]))).stdout == "hi\n"
        with pytest.raises(exceptions.CommandTimeoutError):
            await runtime.execute(Command(command="sleep 100", shell=True, timeout=0.5))
        with pytest.raises(exceptions.NonZeroExitCodeError):
            await runtime.execute(Command(command="exit 3", shell=True, check=True))
        await runtime.create_session(CreateBashSessionRequest(startup_timeout=20))
        with pytest.raises(exceptions.SessionExistsError):
            await runtime.create_session(CreateBashSessionRequest())

        async def bash(command, **more):
            return await runtime.run_in_session(BashAction(command=command, timeout=20, **more))

        await bash("cd /usr; export A=1")
        assert (await bash("pwd; echo $A")).output == "/usr\n1\n"
        with pytest.raises(exceptions.BashIncorrectSyntaxError) as raised:
            await bash("if then")
        assert "bash_stderr" in raised.value.extra_info
        with pytest.raises(exceptions.CommandTimeoutError):
            await runtime.run_in_session(BashAction(command="sleep 100", timeout=0.5))
        assert (await runtime.run_in_session(BashInterruptAction(timeout=5))).exit_code == 0
        seen = await bash("python3 -q", is_interactive_command=True, expect=[">>> "])
        assert seen.expect_string == ">>> "
        assert "42" in (await bash("6*7", is_interactive_command=True, expect=[">>> "])).output
        await bash("quit()", is_interactive_quit=True)
        await runtime.write_file(WriteFileRequest(path="/tmp/a/b", content="ä"))
        assert (await runtime.read_file(ReadFileRequest(path="/tmp/a/b"))).content == "ä"
        with pytest.raises(FileNotFoundError):
            await runtime.read_file(ReadFileRequest(path="/no/such"))
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "sub").mkdir()
            (Path(directory) / "sub/x").write_text("X")
            await runtime.upload(UploadRequest(source_path=directory, target_path="/tmp/tree"))
        assert (await bash("cat /tmp/tree/sub/x")).output == "X"
        await runtime.close_session(CloseBashSessionRequest())
        with pytest.raises(exceptions.SessionDoesNotExistError):
            await bash("true")
        await runtime.close()

    asyncio.run(main())
