# SPDX-License-Identifier: Apache-2.0
"""rollbox.integrations.verifiers with the package itself."""

import asyncio
import http.server
import importlib.util
import os
import subprocess
import sys
import threading

import pytest
from built_images import Builds
from harness import TREE

if importlib.util.find_spec("verifiers") is None:
    pytest.skip(
        "needs verifiers: its runtimes are classes of its own (make integrations)",
        allow_module_level=True,
    )
if os.geteuid() != 0:
    pytest.skip("needs root: its images have many users", allow_module_level=True)

import rollbox  # noqa: E402
from pydantic import TypeAdapter  # noqa: E402
from rollbox.integrations.verifiers import RollboxRuntime  # noqa: E402
from verifiers.v1.errors import SandboxError  # noqa: E402
from verifiers.v1.runtimes import RuntimeInfo  # noqa: E402


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


def driven(check, **options):
    async def main():
        with rollbox.Engine() as engine:
            async with RollboxRuntime(
                "x", images={"*": "base"}, engine=engine, workdir="/w", **options
            ) as box:
                await check(box, engine)
            box.cleanup()
            with pytest.raises(SandboxError):
                await box.run(["true"], {})

    asyncio.run(main())


def test_programs_users_and_environment():
    async def check(box, engine):
        done = await box.run(["sh", "-c", "pwd; echo $A; echo err >&2; exit 3"], {"A": "a"})
        assert (done.exit_code, done.stdout, done.stderr) == (3, "/w\na\n", "err\n")
        assert (await box.with_env({"A": "b"}).run(["sh", "-c", "echo $A"], {})).stdout == "b\n"
        alice = box.with_user("alice", "/home/alice")
        assert (
            await alice.run(["sh", "-c", "id -u; echo $HOME"], {})
        ).stdout == "1000\n/home/alice\n"
        assert (await box.run(["no-such-program"], {})).exit_code == 127
        TypeAdapter(RuntimeInfo).validate_python(box.info.model_dump())

    driven(check)


def test_files_and_bounded_reads():
    async def check(box, engine):
        data = bytes(range(256)) * 10
        await box.write("deep/file", data)
        assert await box.read("deep/file") == data and await box.read("/w/deep/file", 2560) == data
        with pytest.raises(SandboxError, match="limit"):
            await box.read("deep/file", 2559)
        for path in ("none", "/none/none"):
            with pytest.raises(SandboxError):
                await box.read(path)
            with pytest.raises(SandboxError):
                await box.read(path, 10)
        alice = box.with_user("alice", "/home/alice")
        await alice.write("/home/alice/f", b"mine")
        assert await alice.read("/home/alice/f", 4) == b"mine"
        await box.run(["sh", "-c", "echo secret >/root/f; chmod 600 /root/f"], {})
        with pytest.raises(SandboxError, match="denied"):
            await alice.read("/root/f")

    driven(check)


def test_processes_with_pipes_and_in_the_background():
    async def check(box, engine):
        process = await box.open_process(["cat"], {})
        await process.write(b"line\n")
        assert await anext(process.stdout) == b"line\n" and await process.poll() is None
        await process.kill()
        assert await process.wait() == 137
        await box.run_background(["sh", "-c", "echo begun; sleep 1000"], {}, "log")
        wait = "until grep -q begun log; do sleep 0.01; done"
        assert (await box.run(["sh", "-c", wait], {})).exit_code == 0

    driven(check)


def test_memory_kill_time_out_and_lost_engine_have_their_own_errors():
    async def check(box, engine):
        done = await box.run(["sh", "-c", "x=$(cat /dev/zero | tr '\\0' a)"], {})
        assert done.exit_code == 137 and "out of memory" in done.stderr
        with pytest.raises(SandboxError, match="timeout"):
            await box.run(["sleep", "100"], {})
        os.kill(engine.pid, 9)
        with pytest.raises(SandboxError, match="engine_lost"):
            await box.run(["true"], {})
        assert not await box.alive()

    driven(check, policy={"max_memory": "64M", "timeout": 5})


class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_):
        pass


def test_server_of_the_host_is_reached_by_host_url_alone():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]

    async def check(box, engine):
        get = ["busybox", "wget", "-q", "-O", "-"]
        url = box.host_url(f"http://127.0.0.1:{port}/v1")
        assert (await box.run([*get, url], {})).stdout == "hello"
        await box.prepare_execution([url])
        assert (await box.run([*get, url], {})).stdout == "hello"
        assert (await box.run([*get, f"http://127.0.0.1:{port}/"], {})).exit_code != 0

    driven(check, allow=[])
    server.shutdown()
    server.server_close()


def test_setup_runs_once_and_runtimes_are_forks():
    async def main():
        with rollbox.Engine() as engine:
            for _ in range(2):
                async with RollboxRuntime(
                    "base", images={"*": "base"}, engine=engine, setup="echo once >>/setup"
                ) as box:
                    done = await box.run(["sh", "-c", "echo more >>/setup; cat /setup"], {})
                    assert done.stdout == "once\nmore\n"

    asyncio.run(main())


def test_example_ends_with_reward_1():
    program = TREE / "examples/integrations/verifiers_runtime.py"
    done = subprocess.run(
        [sys.executable, str(program), "--image", "base"],
        capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["rewards: [0.0, 1.0]"]), done
