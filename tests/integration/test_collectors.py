# SPDX-License-Identifier: Apache-2.0
"""A real collector of OpenTelemetry and a real Prometheus take what the HTTP server tells.

The collector is built from the Go proxy, which takes minutes: `make integrations` runs this with ROLLBOX_SOAK=1.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from harness import BUILD, DEADLINE, caller, skip, until  # noqa: F401
from serving import Server, server  # noqa: F401

SOURCE = Path(__file__).parents[1] / "otelcol"
TRACE = "0af7651916cd43dd8448eb211c80319c"
COLLECTOR = """
receivers:
  otlp:
    protocols:
      http: {endpoint: "127.0.0.1:%d"}
exporters:
  debug: {verbosity: detailed}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    traces: {receivers: [otlp], exporters: [debug]}
"""
PROMETHEUS = """
scrape_configs:
  - job_name: rollbox
    scrape_interval: 500ms
    scrape_timeout: 500ms
    authorization: {credentials: %s}
    static_configs: [{targets: ["127.0.0.1:%d"]}]
"""


def free_port():
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def answers(port):
    """Whether something listens."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def otelcol():
    """The collector's program, built once."""
    if not os.environ.get("ROLLBOX_SOAK"):
        pytest.skip("a long test: make integrations builds the collector")
    if not shutil.which("go"):
        pytest.skip("a long test: there is no go")
    place = BUILD / "otelcol"
    if not (place / "otelcol").exists():
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(SOURCE, place)
        for command in (["mod", "tidy"], ["build", "-p", "2", "-o", "otelcol", "."]):
            subprocess.run(["go", *command], cwd=place, check=True, timeout=1800)
    return place / "otelcol"


def test_real_collector_takes_the_spans_of_a_fork_tree(caller, otelcol, tmp_path):  # noqa: F811
    port, config, log = free_port(), tmp_path / "config.yaml", tmp_path / "log"
    config.write_text(COLLECTOR % port)
    with open(log, "wb") as out:
        process = subprocess.Popen([otelcol, "--config", config], stdout=out, stderr=out)
    try:
        until(lambda: answers(port))
        with Server(caller, "--otlp-endpoint", f"http://127.0.0.1:{port}") as server:  # noqa: F811
            parent = f"00-{TRACE}-b7ad6b7169203331-01"
            server.call("POST", "/v1/sandboxes", {"name": "box"}, traceparent=parent)
            server.call("POST", "/v1/sandboxes/box/execs", {"argv": ["true"]})
            server.call("POST", "/v1/sandboxes/box/fork", {"n": 2})
            server.stop()
        until(lambda: log.read_text().count("Name           : rollbox.rollout") == 3)
    finally:
        process.kill()
        process.wait(DEADLINE)
    text = log.read_text()
    assert set(re.findall(r"Trace ID\s+: (\w+)", text)) == {TRACE}
    assert text.count("Links:") == 2 and "service.name: Str(rollbox)" in text
    assert "Name           : execute_tool exec" in text


def test_real_prometheus_scrapes_the_metrics(server, tmp_path):  # noqa: F811
    if not shutil.which("prometheus"):
        skip("needs prometheus: it is in Debian's package of that name")
    port, config = free_port(), tmp_path / "prometheus.yml"
    config.write_text(PROMETHEUS % (server.new_token("watcher", "metrics"), server.port))
    for argv in (["true"], ["true"], ["false"]):
        server.call("POST", "/v1/runs", {"argv": argv})
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def query(expression):
        """The values of a query; none before Prometheus has started."""
        url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(expression)}"
        try:
            with urllib.request.urlopen(url) as answer:
                return [float(row["value"][1]) for row in json.load(answer)["data"]["result"]]
        except urllib.error.HTTPError:
            return []

    try:
        until(lambda: answers(port))
        until(lambda: query("up") == [1])
        assert query('sum by (outcome) (rollbox_runs_total{tenant="one"})') == [3]
        (p99,) = query("histogram_quantile(0.99, sum by (le) (rollbox_start_seconds_bucket))")
        assert 0 < p99 < 10
    finally:
        process.kill()
        process.wait(DEADLINE)
