# SPDX-License-Identifier: Apache-2.0
"""Traces of the HTTP server: which spans there are, how they hang together, and what a bad collector costs."""

import json
import os
import socket

import pytest
from collector import collector  # noqa: F401
from harness import caller, children, until  # noqa: F401
from serving import Server

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = f"00-{TRACE}-{PARENT}-01"
PARTS = ["rollbox.queue", "rollbox.setup", "rollbox.exec"]


@pytest.fixture
def traced(caller, collector):  # noqa: F811
    """A server that sends its traces to the collector."""
    with Server(caller, "--otlp-endpoint", collector.url) as one:
        yield one


def ended(server, collector, n):  # noqa: F811
    """The spans, once the server has ended."""
    server.stop()
    return collector.wait(n)


def test_run_has_the_spans_of_its_parts(traced, collector):  # noqa: F811
    body = {"code": "print(1)", "labels": {"rollout": "r7"}}
    result = traced.call("POST", "/v1/runs", body, traceparent=CALLER)[1]
    spans = ended(traced, collector, 4)
    assert len(spans) == 4
    run = collector.named("execute_tool run")
    assert (run.trace, run.parent, run.links) == (TRACE, PARENT, [])
    assert run.resource["service.name"] == "rollbox"
    assert run.attributes["rollbox.outcome"] == "exit" and run.attributes["process.exit.code"] == 0
    assert run.attributes["rollbox.label.rollout"] == "r7"
    assert run.attributes["process.executable.name"] == "python"
    assert run.attributes["rollbox.cpu_s"] == pytest.approx(result["cpu_ms"] / 1000, abs=1e-4)
    queue, setup, execution = (collector.named(name) for name in PARTS)
    assert {part.parent for part in (queue, setup, execution)} == {run.id}
    assert run.start == queue.start and queue.end == setup.start
    assert setup.end == execution.start and execution.end == run.end
    assert execution.end - execution.start == pytest.approx(result["wall_ms"] * 1e6, rel=0.01)


def test_rollout_has_its_commands_and_calls_below_it(traced, collector):  # noqa: F811
    body = {"name": "box", "labels": {"rollout": "r7"}}
    traced.call("POST", "/v1/sandboxes", body, traceparent=CALLER)
    traced.call("PUT", "/v1/sandboxes/box/execs/e1", {"argv": ["sh", "-c", "exit 3"]})
    traced.call("POST", "/v1/sandboxes/box/snapshots", {"name": "s"}, traceparent=CALLER)
    traced.call("DELETE", "/v1/sandboxes/box")
    ended(traced, collector, 6)
    rollout, execution = collector.named("rollbox.rollout"), collector.named("execute_tool exec")
    assert (rollout.trace, rollout.parent) == (TRACE, PARENT)
    assert rollout.attributes["rollbox.commands"] == 1
    assert rollout.attributes["rollbox.label.rollout"] == "r7"
    assert (execution.trace, execution.parent) == (TRACE, rollout.id)
    assert execution.attributes["gen_ai.tool.call.id"] == "e1"
    assert execution.attributes["process.exit.code"] == 3 and not execution.is_error
    # The same context again is not another parent.
    assert collector.named("rollbox.snapshot").parent == rollout.id


def test_command_with_a_parent_of_its_own_links_to_the_rollout(traced, collector):  # noqa: F811
    traced.call("POST", "/v1/sandboxes", {"name": "box"}, traceparent=CALLER)
    own = f"00-{TRACE}-00f067aa0ba902b7-01"
    traced.call("POST", "/v1/sandboxes/box/execs", {"argv": ["true"]}, traceparent=own)
    ended(traced, collector, 5)
    execution = collector.named("execute_tool exec")
    assert execution.parent == "00f067aa0ba902b7"
    assert execution.links == [collector.named("rollbox.rollout").id]


def test_forks_link_to_their_parent(traced, collector):  # noqa: F811
    traced.call("POST", "/v1/sandboxes", {"name": "box"}, traceparent=CALLER)
    traced.call("POST", "/v1/sandboxes/box/execs", {"argv": ["true"]})
    kids = traced.call("POST", "/v1/sandboxes/box/fork", {"n": 2})[1]["sandboxes"]
    ended(traced, collector, 8)
    rollouts = {span.attributes["rollbox.sandbox"]: span for span in collector.spans if span.name == "rollbox.rollout"}
    fork = collector.named("rollbox.fork")
    assert fork.parent == rollouts["box"].id
    for kid in kids:
        assert rollouts[kid].links == [rollouts["box"].id, fork.id]
        assert (rollouts[kid].trace, rollouts[kid].parent) == (TRACE, PARENT)


def test_outcomes_that_are_faults_are_errors(traced, collector):  # noqa: F811
    body = {"argv": ["sleep", "9"], "timeout_ms": 50}
    traced.call("POST", "/v1/runs", body)
    ended(traced, collector, 4)
    run = collector.named("execute_tool run")
    assert run.is_error and run.attributes["error.type"] == "timeout" and run.parent == ""


def test_program_gets_the_context_if_asked(traced, collector):  # noqa: F811
    shown = {"argv": ["printenv", "TRACEPARENT"]}
    run = lambda **more: traced.call("POST", "/v1/runs", {**shown, **more}, traceparent=CALLER)[1]  # noqa: E731
    assert run()["stdout"] == ""
    got = run(trace=True)["stdout"].strip()
    traced.call("POST", "/v1/sandboxes", {"name": "box"})
    body = {**shown, "trace": True}
    inside = traced.call("POST", "/v1/sandboxes/box/execs", body, traceparent=CALLER)[1]["stdout"]
    ended(traced, collector, 13)
    by_id = {span.id: span for span in collector.spans}
    version, trace, span, flags = got.split("-")
    assert (version, trace, flags) == ("00", TRACE, "01")
    assert by_id[span].name == "execute_tool run"
    assert by_id[inside.strip().split("-")[2]].name == "execute_tool exec"


def test_context_is_handed_on_without_a_collector(caller):  # noqa: F811
    with Server(caller) as server:
        body = {"argv": ["printenv", "TRACEPARENT"], "trace": True}
        given = server.call("POST", "/v1/runs", body, traceparent=CALLER)[1]
        assert given["stdout"].strip() == CALLER
        assert server.call("POST", "/v1/runs", body)[1]["exit_code"] == 1
        assert server.call("POST", "/v1/runs", {**body, "trace": 1})[0] == 400


@pytest.mark.parametrize(
    "bad", ["", "00", CALLER[:-1], CALLER.upper(), "ff" + CALLER[2:], f"00-{'0' * 32}-{PARENT}-01", CALLER + "-x"]
)
def test_malformed_contexts_begin_a_trace(traced, collector, bad):  # noqa: F811
    assert traced.call("POST", "/v1/runs", {"argv": ["true"]}, traceparent=bad)[0] == 200
    ended(traced, collector, 4)
    run = collector.named("execute_tool run")
    assert run.parent == "" and run.trace != TRACE


def test_samplers_choose(caller, collector):  # noqa: F811
    not_sampled = CALLER[:-2] + "00"
    with Server(caller, "--otlp-endpoint", collector.url, "--otlp-sampler", "parentbased_traceidratio",
                "--otlp-sampler-arg", "0.25") as server:  # fmt: skip
        server.call("POST", "/v1/runs", {"argv": ["true"]}, traceparent=not_sampled)
        jobs = b'{"argv": ["true"]}\n' * 60
        connection = server.connect()
        connection.request("POST", "/v1/batches", jobs, {"Authorization": f"Bearer {server.token}"})
        assert len(connection.getresponse().read().splitlines()) == 60
        server.call("POST", "/v1/runs", {"argv": ["true"]}, traceparent=CALLER)
        server.stop()
    until(lambda: any(span.trace == TRACE for span in collector.spans))
    roots = [span for span in collector.spans if span.name == "execute_tool run"]
    assert 1 < len(roots) < 50


def test_unknown_sampler_is_refused(caller):  # noqa: F811
    done = caller.rollbox("serve", "--listen", "127.0.0.1:0", "--otlp-endpoint", "http://localhost:1",
                          "--otlp-sampler", "sometimes")  # fmt: skip
    assert done.returncode == 1 and b"sampler" in done.stderr


def test_headers_and_names_come_from_the_configuration(caller, collector):  # noqa: F811
    path = caller.directory() / "serve.toml"
    text = f'[otlp]\nendpoint = "{collector.url}/"\nheader = ["x-key=a%20b", "x-more=c"]\nservice-name = "farm"\n'
    caller.write(path, text)
    with Server(caller, "--config", path) as server:
        server.call("POST", "/v1/runs", {"argv": ["true"]})
        server.stop()
    collector.wait(4)
    assert collector.headers[0]["x-key"] == "a b" and collector.headers[0]["x-more"] == "c"
    assert collector.spans[0].resource["service.name"] == "farm"


def test_batches_have_512_spans_at_most(traced, collector):  # noqa: F811
    connection = traced.connect()
    connection.request(
        "POST", "/v1/batches", b'{"argv": ["true"]}\n' * 300, {"Authorization": f"Bearer {traced.token}"}
    )
    assert len(connection.getresponse().read().splitlines()) == 300
    ended(traced, collector, 1200)
    assert sum(collector.sizes) == 1200 and max(collector.sizes) <= 512


def test_collector_that_is_gone_or_hangs_holds_nothing_up(caller):  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for url in (f"http://127.0.0.1:{port}", "http://127.0.0.1:1"):
            with Server(caller, "--otlp-endpoint", url) as server:
                for _ in range(20):
                    assert server.call("POST", "/v1/runs", {"argv": ["true"]})[0] == 200
                assert server.stop() == 0


def test_spans_that_are_dropped_are_counted(caller, collector):  # noqa: F811
    collector.status = 400
    with Server(caller, "--otlp-endpoint", collector.url) as server:
        token = server.new_token("watcher", "metrics")
        server.call("POST", "/v1/runs", {"argv": ["true"]})

        def count(name):
            text = server.call("GET", "/metrics", token=token)[1].decode()
            return float(dict(line.rsplit(" ", 1) for line in text.splitlines())[name])

        until(lambda: count("rollbox_otlp_dropped_total") == 4)
        collector.status = 200
        server.call("POST", "/v1/runs", {"argv": ["true"]})
        until(lambda: count("rollbox_otlp_exported_total") == 4)


def test_server_runs_on_without_its_exporter(caller, collector):  # noqa: F811
    with Server(caller, "--otlp-endpoint", collector.url) as server:
        (exporter,) = children(server.process.pid, "rollbox-otlp")
        os.kill(exporter, 9)
        for _ in range(3):
            assert server.call("POST", "/v1/runs", {"argv": ["true"]})[0] == 200
        assert server.stop() == 0


def test_arguments_of_programs_are_not_in_spans(traced, collector):  # noqa: F811
    traced.call("POST", "/v1/runs", {"argv": ["sh", "-c", "true # hunter2"], "env": {"KEY": "hunter2"}})
    for span in ended(traced, collector, 4):
        assert "hunter2" not in json.dumps(span.attributes)
