# SPDX-License-Identifier: Apache-2.0
"""Labels, costs and trace contexts of a server, by the command line and by Python."""

import json
import sys
import types

import pytest
import rollbox
from collector import collector  # noqa: F401
from harness import BUILD, binaries, caller, skip  # noqa: F401
from rollbox import AsyncSandbox, Engine, Sandbox
from serving import Server

PRICES = {"cpu_s": 2.0, "gib_s": 3.0, "call": 0.25}
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = f"00-{TRACE}-b7ad6b7169203331-01"


class Client:
    """The command at a server."""

    def __init__(self, server):
        if not (BUILD / "rollbox-http").exists():
            skip("needs libcurl: rollbox-http is not built without libcurl4-openssl-dev")
        self.who, self.port = server.who, server.port
        self.token = self.who.write(server.directory / "my-token", server.token)

    def __call__(self, *arguments, status=0):
        """Its standard output."""
        first = ("--engine", f"http://127.0.0.1:{self.port}", "--token-file", self.token)
        done = self.who.call(binaries() / "rollbox", *first, *arguments)
        assert done.returncode == status, (arguments, done)
        self.err = done.stderr.decode()
        return done.stdout.decode()


@pytest.fixture
def prices(caller):  # noqa: F811
    """A file with prices."""
    return caller.write(caller.directory() / "prices.json", json.dumps(PRICES))


@pytest.fixture
def server(caller, collector):  # noqa: F811
    """A server that traces."""
    with Server(caller, "--otlp-endpoint", collector.url) as one:
        yield one


@pytest.fixture
def engine(server):
    """Python's own client."""
    with Engine(f"http://127.0.0.1:{server.port}", token=server.token) as one:
        yield one


def test_cost_of_rollouts_is_shown_and_summed(server, prices):
    client = Client(server)
    for rollout in ("a", "a", "b"):
        client("run", "--label", f"rollout={rollout}", "--", "true")
    client("create", "--name", "box", "--label", "rollout=c", "--label", "task=t")
    client("exec", "box", "true")
    answer = json.loads(client("cost", "--by", "rollout", "--prices", prices, "--per-million", "--json"))
    rows = {row["rollout"]: row for row in answer["rows"]}
    assert {name: row["runs"] + row["commands"] for name, row in rows.items()} == {"a": 2, "b": 1, "c": 1}
    for row in rows.values():
        expected = 2.0 * row["cpu_ms"] / 1000 + 3.0 * row["gib_s"] + 0.25 * (row["runs"] + row["commands"])
        assert row["cost"] == pytest.approx(expected)
    assert answer["count"] == 3
    assert answer["total"]["cost"] == pytest.approx(sum(row["cost"] for row in rows.values()))
    assert answer["per_million"] == pytest.approx(answer["total"]["cost"] / 3 * 1e6)
    table = client("cost", "--by", "rollout", "--prices", prices, "--per-million").splitlines()
    assert table[0].split()[:2] == ["NAME", "RUNS"] and table[-2].startswith("total")
    assert table[-1].startswith("per million: ")
    assert json.loads(client("cost", "--by", "task", "--json"))["rows"][0]["label"] == "task=t"
    assert json.loads(client("cost", "--json"))["rows"][0]["tenant"] == "one"
    client("cost", "--per-million", status=125)
    assert "--prices" in client.err


def test_cost_of_trajectories_is_summed_without_a_server(caller, prices):  # noqa: F811
    path = caller.directory() / "run.jsonl"
    assert caller.rollbox("record", "-o", path, "--", "python3", "-c", "sum(range(10**6))").returncode == 0
    done = caller.rollbox("cost", "--prices", prices, "--json", path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    (row,) = answer["rows"]
    assert row["trajectory"] == str(path) and row["commands"] == 1
    assert row["cpu_ms"] > 0 and row["gib_s"] > 0 and row["cost"] > 0.25
    assert caller.rollbox("cost", prices).returncode == 125
    assert caller.rollbox("cost").returncode == 125


def test_labels_of_a_block_are_on_runs_sandboxes_and_forks(server, engine):
    with rollbox.labels(rollout="r1"):
        with rollbox.labels(task="t"):
            Sandbox(engine=engine).run(["true"])
            box = Sandbox(engine=engine).__enter__()
        Sandbox(engine=engine).run(["true"])
    box.exec(["true"])
    (fork,) = box.fork(1)
    fork.exec(["true"])
    Sandbox(engine=engine).run(["true"])
    rows = {row["label"]: row for row in engine.usage("label")}
    assert (rows["rollout=r1"]["runs"], rows["rollout=r1"]["commands"]) == (2, 2)
    assert (rows["task=t"]["runs"], rows["task=t"]["commands"]) == (1, 2)
    assert engine.usage("tenant")[0]["runs"] == 3
    box.close()
    with pytest.raises(rollbox.InvalidArgument, match="rollout"), rollbox.labels(rollout=1):
        pass


def test_cost_in_python_has_a_price_per_million(server, engine):
    for rollout in ("a", "b"):
        with rollbox.labels(rollout=rollout):
            Sandbox(engine=engine).run(["true"])
    cost = engine.cost(prices={"call": 0.5})
    assert (cost["count"], cost["total"], cost["per_million"]) == (2, 1.0, 5e5)
    with pytest.raises(rollbox.InvalidArgument, match="prices"):
        engine.cost()
    with pytest.raises(rollbox.InvalidArgument, match="cpu_s"):
        engine.cost(prices={"cpu": 1})
    with pytest.raises(rollbox.InvalidArgument):
        engine.usage("moon")


def test_local_engines_keep_no_sums():
    with Engine() as engine, pytest.raises(rollbox.FeatureMissing):
        engine.usage()


def test_context_comes_from_a_block_the_environment_and_opentelemetry(
    server, engine, collector, monkeypatch  # noqa: F811
):
    run = lambda: Sandbox(engine=engine).run(["printenv", "TRACEPARENT"], text=True).stdout  # noqa: E731
    with rollbox.traceparent(CALLER):
        assert run() == ""
    with rollbox.traceparent(CALLER, inside=True):
        assert run().split("-")[1] == TRACE
    monkeypatch.setenv("TRACEPARENT", CALLER.replace("0af7", "1af7"))
    assert run() == ""
    context = types.SimpleNamespace(is_valid=True, trace_id=0x2AF7 << 112, span_id=7, trace_flags=1)
    span = types.SimpleNamespace(get_span_context=lambda: context)
    api = types.ModuleType("opentelemetry.trace")
    api.get_current_span = lambda: span
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", api)
    assert run() == ""
    server.stop()
    collector.wait(16)
    found = [span.trace for span in collector.spans if span.name == "execute_tool run"]
    assert found == [TRACE, TRACE, "1" + TRACE[1:], "2af7" + "0" * 28]
    with pytest.raises(rollbox.InvalidArgument), rollbox.traceparent("00-1-2-3"):
        pass


def test_context_reaches_threads_and_asyncio(server, engine, collector):  # noqa: F811
    import asyncio

    async def one(number):
        with rollbox.traceparent(CALLER), rollbox.labels(rollout=str(number)):
            await AsyncSandbox(engine=engine).run(["true"])
            async with AsyncSandbox(engine=engine) as box:
                await box.exec(["true"])

    async def both():
        await asyncio.gather(one(1), one(2))

    asyncio.run(both())
    rows = {row["rollout"]: row for row in engine.usage("rollout")}
    assert {name: (row["runs"], row["commands"]) for name, row in rows.items()} == {"1": (1, 1), "2": (1, 1)}
    server.stop()
    collector.wait(18)
    assert {span.trace for span in collector.spans} == {TRACE}


def test_command_line_hands_its_context_on(server, collector):  # noqa: F811
    client = Client(server)
    shown = client("--traceparent", CALLER, "run", "--trace", "--", "printenv", "TRACEPARENT")
    assert shown.split("-")[1] == TRACE
    server.stop()
    collector.wait(4)
    assert collector.named("execute_tool run").trace == TRACE
