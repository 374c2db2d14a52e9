# SPDX-License-Identifier: Apache-2.0
"""GET /metrics of the HTTP server: what it counts, who may read it, and that Prometheus accepts it."""

import os
import re
import shutil
import signal
import subprocess

import pytest
from harness import DEADLINE, caller, skip, until  # noqa: F401
from serving import Server, server  # noqa: F401

LINE = re.compile(r'^(\w+)(?:\{((?:\w+="[^"]*",?)*)\})? (\S+)$')


class Metrics:
    """The series of one answer."""

    def __init__(self, text):
        self.text = text
        self.rows = []
        for line in text.splitlines():
            if not line.startswith("#"):
                name, labels, value = LINE.match(line).groups()
                self.rows.append(
                    (name, dict(re.findall(r'(\w+)="([^"]*)"', labels or "")), float(value))
                )

    def get(self, name, **labels):
        """The sum of the series with these labels; None: there is none."""
        found = [row[2] for row in self.rows if row[0] == name and labels.items() <= row[1].items()]
        return sum(found) if found else None


def metrics_of(server, token):  # noqa: F811
    """What /metrics answers now."""
    status, body = server.call("GET", "/metrics", token=token)
    assert status == 200, body
    assert server.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return Metrics(body.decode())


@pytest.fixture
def token(server):  # noqa: F811
    """A token that may read metrics, and nothing else."""
    return server.new_token("watcher", "metrics")


def test_metrics_need_their_scope(server, token):  # noqa: F811
    assert server.call("GET", "/metrics")[0] == 403
    assert server.call("GET", "/metrics", token=server.new_token("boss", "admin"))[0] == 200
    assert server.call("GET", "/metrics", token=token)[0] == 200
    assert server.call("GET", "/v1/status", token=token)[0] == 403
    assert server.call("POST", "/v1/runs", {"argv": ["true"]}, token=token)[0] == 403


def test_metrics_count_outcomes_of_each_tenant(server, token):  # noqa: F811
    other = server.new_token("two")
    for argv in (["true"], ["false"], ["sh", "-c", "kill -9 $$"]):
        server.call("POST", "/v1/runs", {"argv": argv})
    server.call("POST", "/v1/runs", {"argv": ["sleep", "9"], "timeout_ms": 50}, token=other)
    server.call("POST", "/v1/sandboxes", {"name": "box"})
    server.call("POST", "/v1/sandboxes/box/execs", {"argv": ["true"]})
    server.call("POST", "/v1/batches", b'{"argv": ["true"]}\n')
    server.call("POST", "/run_code", {"code": "print(1)", "language": "python"})
    found = metrics_of(server, token)
    assert found.get("rollbox_runs_total", tenant="one", outcome="exit") == 4
    assert found.get("rollbox_runs_total", tenant="one", outcome="signal") == 1
    assert found.get("rollbox_runs_total", tenant="two", outcome="timeout") == 1
    assert found.get("rollbox_execs_total", tenant="one", outcome="exit") == 1
    for name in ("exec", "start", "queue"):
        assert found.get(f"rollbox_{name}_seconds_count", tenant="one") == 6
        assert found.get(f"rollbox_{name}_seconds_bucket", tenant="one", le="+Inf") == 6
    assert 0.04 < found.get("rollbox_exec_seconds_sum", tenant="two") < 9
    assert found.get("rollbox_start_seconds_sum", tenant="one") > 0
    assert found.get("rollbox_cpu_seconds_total", tenant="one") > 0
    assert found.get("rollbox_sandboxes", tenant="one", state="idle") == 1
    assert found.get("rollbox_engine_up", engine="0") == 1
    assert found.get("rollbox_memory_budget_bytes") > 0


def test_metrics_count_requests_and_refusals(server, token):  # noqa: F811
    server.call("GET", "/v1/sandboxes/none")
    server.call("POST", "/v1/runs", {"argv": []})
    server.call("GET", "/v1/sandboxes", token="wrong")
    server.raw(b"GET / HTTP/1.1\r\n\r\n")
    found = metrics_of(server, token)
    route = "/v1/sandboxes/{sandbox}"
    assert found.get("rollbox_http_requests_total", route=route, method="GET", status="404") == 1
    assert found.get("rollbox_http_requests_total", route="/v1/runs", status="400") == 1
    assert found.get("rollbox_http_requests_total", route="/v1/sandboxes", status="401") == 1
    assert found.get("rollbox_http_requests_total", route="", status="400") == 1
    assert found.get("rollbox_http_request_seconds_count", route="/v1/runs") == 1
    assert found.get("rollbox_refused_total", tenant="one", code="not_found") == 1
    assert found.get("rollbox_refused_total", tenant="one", code="invalid_argument") == 1
    assert "none" not in found.text, "no name of a sandbox is a label"


def test_metrics_show_the_state_of_sandboxes(server, token):  # noqa: F811
    for name in ("a", "b", "c"):
        server.call("POST", "/v1/sandboxes", {"name": name})
        server.call("POST", f"/v1/sandboxes/{name}/execs", {"argv": ["true"]})
    server.call("POST", "/v1/sandboxes/a/pause", {})
    server.call("POST", "/v1/sandboxes/b/hibernate", {})
    found = metrics_of(server, token)
    for state, n in (("idle", 1), ("paused", 1), ("asleep", 1), ("running", 0)):
        assert found.get("rollbox_sandboxes", tenant="one", state=state) == n, state


def test_metrics_count_engines_that_were_lost(caller):  # noqa: F811
    with Server(caller, "--engines", "2") as server:  # noqa: F811
        token = server.new_token("watcher", "metrics", "admin")
        engines = server.call("GET", "/v1/status", token=token)[1]["engines"]
        os.kill(engines[1]["pid"], signal.SIGKILL)
        until(
            lambda: metrics_of(server, token).get("rollbox_engine_restarts_total", engine="1") == 1
        )
        until(lambda: metrics_of(server, token).get("rollbox_engine_up", engine="1") == 1)
        found = metrics_of(server, token)
        assert found.get("rollbox_engine_restarts_total", engine="0") == 0
        assert found.get("rollbox_queue_length", engine="0") == 0


def test_metrics_pass_promtool(server, token):  # noqa: F811
    if not shutil.which("promtool"):
        skip("needs promtool: it is in Debian's package prometheus")
    server.call("POST", "/v1/runs", {"argv": ["true"]})
    server.call("GET", "/v1/sandboxes/none")
    text = metrics_of(server, token).text
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text.encode(),
        capture_output=True,
        timeout=DEADLINE,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
