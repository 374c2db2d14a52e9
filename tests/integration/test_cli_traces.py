# SPDX-License-Identifier: Apache-2.0
"""Traces of the command line without a server: OTEL_EXPORTER_OTLP_ENDPOINT names a collector."""

import json

from collector import collector  # noqa: F401
from harness import caller, until  # noqa: F401

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def environment(caller, url, **more):  # noqa: F811
    """That of a traced command."""
    return caller.environment(OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_BSP_SCHEDULE_DELAY="0", **more)


def test_run_of_the_command_line_is_traced(caller, collector):  # noqa: F811
    env = environment(caller, collector.url, TRACEPARENT=f"00-{TRACE}-{PARENT}-01", OTEL_SERVICE_NAME="me")
    done = caller.rollbox("run", "--json", "--label", "task=t", "--", "sh", "-c", "exit 3", env=env)
    result = json.loads(done.stdout)
    collector.wait(4)
    run = collector.named("execute_tool run")
    assert (run.trace, run.parent, run.resource["service.name"]) == (TRACE, PARENT, "me")
    assert run.attributes["process.exit.code"] == 3 == result["exit_code"]
    assert run.attributes["rollbox.label.task"] == "t" and run.attributes["process.executable.name"] == "sh"
    assert {span.parent for span in collector.spans if span.name != run.name} == {run.id}


def test_jobs_of_a_batch_are_traced(caller, collector):  # noqa: F811
    jobs = [{"id": i, "argv": ["true"]} for i in range(5)]
    text = "\n".join(json.dumps(job) for job in jobs).encode()
    done = caller.rollbox("batch", "-", input=text, env=environment(caller, collector.url))
    assert done.returncode == 0, done.stderr
    collector.wait(20)
    assert [span.name for span in collector.spans].count("execute_tool run") == 5


def test_run_without_its_collector_is_as_fast_and_silent(caller):  # noqa: F811
    done = caller.rollbox("run", "--", "echo", "hi", env=environment(caller, "http://127.0.0.1:1"))
    assert (done.returncode, done.stdout) == (0, b"hi\n")
    env = environment(caller, "http://127.0.0.1:1", ROLLBOX_OTLP="/no/such/program")
    done = caller.rollbox("run", "--", "echo", "hi", env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hi\n", b"")
