# SPDX-License-Identifier: Apache-2.0
"""Traces of Python programs without a server: OTEL_EXPORTER_OTLP_ENDPOINT names a collector."""

import sys

from collector import collector  # noqa: F401
from harness import TREE, binaries, caller  # noqa: F401

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROGRAM = """
import rollbox
from rollbox import Sandbox
with rollbox.labels(rollout="7"):
    Sandbox().run(["sh", "-c", "exit 3"])
    with Sandbox() as box:
        box.exec(["/bin/true"])
Sandbox().run(["sleep", "9"], timeout=0.05)
rollbox.run_many([{"argv": ["true"]}, {"argv": ["true"]}])
"""


def python(caller, code, url, **more):  # noqa: F811
    """Runs a program of the caller's Python, with the package of this tree."""
    env = caller.environment(
        ROLLBOX_LIBRARY=str(binaries() / "librollbox.so"),
        OTEL_EXPORTER_OTLP_ENDPOINT=url,
        OTEL_BSP_SCHEDULE_DELAY="0",
        **{"ROLLBOX_OTLP": str(binaries() / "rollbox-otlp"), **more},
    )
    path = f"import sys\nsys.path.insert(0, {str(TREE / 'python')!r})\n"
    return caller.call(sys.executable, "-I", "-c", path + code, env=env)


def test_runs_and_commands_of_python_are_traced(caller, collector):  # noqa: F811
    done = python(caller, PROGRAM, collector.url, TRACEPARENT=f"00-{TRACE}-{PARENT}-01")
    assert (done.returncode, done.stderr) == (0, b"")
    collector.wait(20)
    tools = [span for span in collector.spans if span.name.startswith("execute_tool")]
    assert {(span.trace, span.parent) for span in tools} == {(TRACE, PARENT)}
    first, second, third, *jobs = tools
    assert first.attributes["process.exit.code"] == 3 and first.attributes["rollbox.label.rollout"] == "7"
    assert second.name == "execute_tool exec" and second.attributes["process.executable.name"] == "true"
    assert third.is_error and third.attributes["error.type"] == "timeout" and len(jobs) == 2
    for tool in tools:
        parts = [span for span in collector.spans if span.parent == tool.id]
        assert [part.name for part in parts] == ["rollbox.queue", "rollbox.setup", "rollbox.exec"]
        assert parts[0].start == tool.start and parts[2].end == tool.end


def test_python_without_its_collector_works_as_before(caller):  # noqa: F811
    for more in ({}, {"ROLLBOX_OTLP": "/no/such/program"}, {"OTEL_TRACES_SAMPLER": "always_off"}):
        code = "import rollbox; print(rollbox.Sandbox().run(['true']).ok)"
        done = python(caller, code, "http://127.0.0.1:1", **more)
        assert (done.returncode, done.stdout) == (0, b"True\n")
