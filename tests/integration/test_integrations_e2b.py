# SPDX-License-Identifier: Apache-2.0
"""E2B's own packages, e2b and e2b-code-interpreter, unchanged, against `rollbox serve`."""

import asyncio
import importlib
import io
import json
import sys

import pytest
from adapters import needs
from harness import caller  # noqa: F401
from serving import Server, server  # noqa: F401


@pytest.fixture
def e2b(server, monkeypatch):  # noqa: F811
    needs("e2b_code_interpreter", "it is the client")
    address = f"http://127.0.0.1:{server.port}"
    monkeypatch.setenv("E2B_API_URL", address)
    monkeypatch.setenv("E2B_SANDBOX_URL", address)
    monkeypatch.setenv("E2B_API_KEY", server.token)
    return importlib.import_module("e2b")


@pytest.fixture
def box(e2b):
    with importlib.import_module("e2b_code_interpreter").Sandbox.create(timeout=120) as box:
        yield box


def test_commands_and_their_exceptions(e2b, box):
    result = box.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
    with pytest.raises(e2b.CommandExitException) as error:
        box.commands.run("exit 3")
    assert error.value.exit_code == 3
    with pytest.raises(e2b.TimeoutException):
        box.commands.run("sleep 100", timeout=1)
    with pytest.raises(e2b.InvalidArgumentException):
        box.commands.run("true", cwd="/no/such")
    with pytest.raises(e2b.AuthenticationException):
        box.commands.run("true", user="nobody-there")
    with pytest.raises(e2b.NotFoundException):
        box.commands.send_stdin(99999, "x")


def test_background_commands_take_input(box):
    command = box.commands.run("cat", background=True, stdin=True)
    box.commands.stream_input(command.pid, (b"x" * 100000 for _ in range(10)))
    command.send_stdin("end")
    command.close_stdin()
    assert len(command.wait().stdout) == 1000003


def test_files(e2b, box):
    assert box.files.write("/tmp/a/b.txt", "text").path == "/tmp/a/b.txt"
    assert box.files.read("/tmp/a/b.txt") == "text"
    data = bytes(range(256)) * 4000
    box.files.write("/tmp/a/big", io.BytesIO(data))
    with box.files.read("/tmp/a/big", format="stream") as stream:
        assert b"".join(stream) == data
    assert {entry.name for entry in box.files.list("/tmp/a")} == {"b.txt", "big"}
    assert box.files.rename("/tmp/a/big", "/tmp/c").path == "/tmp/c"
    assert box.files.make_dir("/tmp/d") and not box.files.make_dir("/tmp/d")
    box.files.remove("/tmp/a")
    assert not box.files.exists("/tmp/a")
    with pytest.raises(e2b.FileNotFoundException):
        box.files.read("/tmp/a/b.txt")


def test_life_of_a_sandbox(e2b, box):
    assert box.is_running() and box.get_info().state == e2b.SandboxState.RUNNING
    box.files.write("/tmp/kept", "kept")
    (kid,) = box.fork(count=1, timeout=60)
    assert kid.files.read("/tmp/kept") == "kept" and kid.kill()
    snapshot = box.create_snapshot()
    other = e2b.Sandbox.create(snapshot.snapshot_id)
    assert other.files.read("/tmp/kept") == "kept"
    box.pause()
    assert not box.is_running()
    with pytest.raises(e2b.SandboxException):
        box.commands.run("true")
    again = e2b.Sandbox.connect(box.sandbox_id)
    assert again.files.read("/tmp/kept") == "kept"
    assert other.kill() and not other.kill()
    assert e2b.Sandbox.delete_snapshot(snapshot.snapshot_id)
    with pytest.raises(e2b.AuthenticationException):
        e2b.Sandbox.create(api_key="wrong")
    with pytest.raises(e2b.NotFoundException):
        e2b.Sandbox.connect("i" * 20)


def test_code_interpreter(box):
    box.run_code("x = 1")
    assert box.run_code("x + 1").text == "2"
    done = box.run_code("import sys; print('out'); print('err', file=sys.stderr); 1/0")
    assert (done.logs.stdout, done.logs.stderr) == (["out\n"], ["err\n"])
    assert done.error.name == "ZeroDivisionError"
    context = box.create_code_context(cwd="/usr")
    assert box.run_code("__import__('os').getcwd()", context=context).text == "/usr"
    box.restart_code_context(context)
    box.remove_code_context(context)
    assert box.run_code("echo $((6*7))", language="bash").logs.stdout == ["42\n"]


def test_async_clients(e2b):
    async def main():
        module = importlib.import_module("e2b_code_interpreter")
        async with await module.AsyncSandbox.create(timeout=60) as box:
            assert (await box.commands.run("echo hi")).stdout == "hi\n"
            assert (await box.run_code("40 + 2")).text == "42"
            found = await asyncio.gather(*[box.commands.run(f"echo {i}") for i in range(8)])
            assert [one.stdout for one in found] == [f"{i}\n" for i in range(8)]
            terminal = await box.pty.create(e2b.PtySize(rows=10, cols=40), on_data=lambda _: None)
            assert await terminal.kill()

    asyncio.run(main())


CHARTS = {
    "line": "plt.plot([1, 2, 3], label='l'); plt.title('T'); plt.xlabel('X')",
    "scatter": "plt.scatter([1, 2], [3, 4])",
    "bar": "plt.bar(['a', 'b'], [1, 2])",
    "pie": "plt.pie([1, 2], labels=['a', 'b'])",
    "box_and_whisker": "plt.boxplot([[1, 2, 3], [2, 3, 9]], patch_artist=True)",
    "superchart": "f, a = plt.subplots(1, 2); a[0].plot([1, 2]); a[1].bar(['a'], [1])",
}


def test_charts_and_data_frames(caller, monkeypatch):  # noqa: F811
    for package in ("e2b_code_interpreter", "IPython", "matplotlib", "pandas", "e2b_charts"):
        needs(package, "the code uses it")
    directory = caller.directory()
    policy = directory / "code.json"
    policy.write_text(json.dumps({"python": sys.executable, "max_memory": "1G"}))
    policy.chmod(0o644)
    with Server(caller, "--template", f"code-interpreter-v1={policy}") as one:
        address = f"http://127.0.0.1:{one.port}"
        for name, value in (
            ("E2B_API_URL", address),
            ("E2B_SANDBOX_URL", address),
            ("E2B_API_KEY", one.token),
        ):
            monkeypatch.setenv(name, value)
        with importlib.import_module("e2b_code_interpreter").Sandbox.create() as box:
            box.run_code("import matplotlib.pyplot as plt, pandas as pd")
            for kind, code in CHARTS.items():
                run = box.run_code(code + "\nplt.show()")
                assert run.error is None, run.error
                (result,) = [result for result in run.results if result.png]
                assert result.chart.type.value == kind
                assert {"png", "text", "chart"} <= set(result.formats())
            run = box.run_code("pd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})")
            assert run.results[0].data == {"a": [1, 2], "b": ["x", "y"]}
            assert "<table" in run.results[0].html
            run = box.run_code(
                "from IPython.display import HTML, Latex, Math, display\n"
                "display(HTML('<b>x</b>')); display(Latex('$y$'))\n%timeit -n1 -r1 1\nx = !echo hi\nx[0]"
            )
            assert run.error is None, run.error
            assert (run.results[0].html, run.results[1].latex, run.text) == (
                "<b>x</b>",
                "$y$",
                "hi",
            )
