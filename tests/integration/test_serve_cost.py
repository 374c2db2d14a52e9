# SPDX-License-Identifier: Apache-2.0
"""What the HTTP server says that runs and sandboxes used, and what it costs."""

import json
import time

import pytest
from harness import caller, until  # noqa: F401
from serving import Server, server  # noqa: F401

PRICES = {"cpu_s": 3.0, "gib_s": 5.0, "disk_gib_s": 7.0, "snapshot_gib_s": 11.0, "call": 0.5}
BURN = "x = bytearray(50 << 20)\nfor i in range(2000000): pass"


@pytest.fixture
def priced(caller):  # noqa: F811
    """A server with prices."""
    path = caller.directory() / "prices.json"
    caller.write(path, json.dumps(PRICES))
    with Server(caller, "--prices", path) as one:
        yield one


def usage(server, by, name, **more):  # noqa: F811
    """The row of this name."""
    rows = server.call("GET", f"/v1/usage?by={by}", **more)[1]["usage"]
    found = [row for row in rows if row["name" if by == "tenant" else by] == name]
    assert len(found) <= 1
    return found[0] if found else None


def cost_of(row):
    """By the prices."""
    return (
        PRICES["cpu_s"] * row["cpu_ms"] / 1000
        + PRICES["gib_s"] * row["gib_s"]
        + PRICES["disk_gib_s"] * row["disk_gib_s"]
        + PRICES["snapshot_gib_s"] * row["snapshot_gib_s"]
        + PRICES["call"] * (row["runs"] + row["commands"])
    )


def test_costs_of_runs_are_the_sums_of_their_results(priced):
    results = []
    for rollout in ("a", "a", "b"):
        body = {"code": BURN, "labels": {"rollout": rollout, "task": "t"}}
        results.append((rollout, priced.call("POST", "/v1/runs", body)[1]))
    for rollout in ("a", "b"):
        own = [result for name, result in results if name == rollout]
        row = usage(priced, "rollout", rollout)
        assert row["runs"] == len(own)
        assert row["cpu_ms"] == pytest.approx(sum(one["cpu_ms"] for one in own), abs=0.01)
        assert row["wall_ms"] == pytest.approx(sum(one["wall_ms"] for one in own), abs=0.01)
        memory = sum(one["peak_memory_bytes"] * one["wall_ms"] for one in own) / 1000 / 2**30
        assert row["gib_s"] == pytest.approx(memory, rel=1e-4)
        assert row["cost"] == pytest.approx(cost_of(row)) and row["cost"] > PRICES["call"]
    tenant = usage(priced, "tenant", "one")
    parts = [usage(priced, "rollout", name)["cost"] for name in ("a", "b")]
    assert tenant["cost"] == pytest.approx(sum(parts))
    assert usage(priced, "label", "task=t")["cost"] == pytest.approx(tenant["cost"])


def test_short_sandboxes_are_measured(priced):
    priced.call("POST", "/v1/sandboxes", {"name": "box", "labels": {"rollout": "r"}})
    result = priced.call("POST", "/v1/sandboxes/box/execs", {"code": BURN})[1]
    assert result["outcome"] == "exit"
    priced.call("DELETE", "/v1/sandboxes/box")
    row = usage(priced, "rollout", "r")
    assert row["cpu_ms"] >= 20 and row["running_s"] > 0 and row["commands"] == 1
    again = usage(priced, "rollout", "r")
    assert again == row, "after its end it uses nothing"


@pytest.mark.parametrize("call, back", [("hibernate", "wake"), ("pause", "resume")])
def test_time_that_a_sandbox_sleeps_adds_neither_processor_nor_memory(priced, call, back):
    priced.call("POST", "/v1/sandboxes", {"name": "box", "labels": {"rollout": "r"}})
    hold = {"code": "x = bytearray(b'1') * (30 << 20)\nwhile True: pass"}
    priced.call("POST", "/v1/sandboxes/box/execs", hold, Prefer="respond-async")
    until(lambda: usage(priced, "rollout", "r")["gib_s"] > 0)
    assert priced.call("POST", f"/v1/sandboxes/box/{call}", {})[0] == 200
    field = "hibernated_s" if call == "hibernate" else "paused_s"
    before = usage(priced, "rollout", "r")
    until(lambda: usage(priced, "rollout", "r")[field] > before[field] + 0.3)
    after = usage(priced, "rollout", "r")
    for key in ("cpu_ms", "gib_s", "running_s"):
        assert after[key] == pytest.approx(before[key], abs=1e-6), key
    assert priced.call("POST", f"/v1/sandboxes/box/{back}", {})[0] == 200
    until(lambda: usage(priced, "rollout", "r")["running_s"] > after["running_s"])


def test_command_ends_the_free_time_of_a_paused_sandbox(priced):
    priced.call("POST", "/v1/sandboxes", {"name": "box"})
    priced.call("POST", "/v1/sandboxes/box/execs", {"argv": ["true"]})
    priced.call("POST", "/v1/sandboxes/box/pause", {})
    begun = time.monotonic()
    until(lambda: time.monotonic() > begun + 0.5)
    asleep = time.monotonic() - begun
    priced.call("POST", "/v1/sandboxes/box/execs", {"argv": ["true"]})
    assert usage(priced, "sandbox", "box")["paused_s"] >= asleep - 0.1


def test_wrong_prices_are_refused(caller):  # noqa: F811
    for text in ('{"cpu": 1}', '{"call": -1}', '{"call": "1"}', "[]", "{"):
        path = caller.directory() / "prices.json"
        caller.write(path, text)
        done = caller.rollbox("serve", "--listen", "127.0.0.1:0", "--prices", path)
        assert done.returncode != 0 and b"prices.json" in done.stderr, text


def test_administrators_see_the_sums_of_tenants_alone(server):  # noqa: F811
    body = {"argv": ["true"], "labels": {"rollout": "secret"}}
    server.call("POST", "/v1/runs", body)
    boss = server.new_token("boss", "run", "admin")
    assert usage(server, "tenant", "one", token=boss)["runs"] == 1
    assert server.call("GET", "/v1/usage?by=rollout", token=boss)[1]["usage"] == []


def test_labels_have_limits_and_push_out_no_other_tenant(server):  # noqa: F811
    many = {f"k{i}": "v" for i in range(65)}
    for labels in (many, {"k": "v" * 600}, {"k" * 600: "v"}):
        assert server.call("POST", "/v1/runs", {"argv": ["true"], "labels": labels})[0] == 400
        assert server.call("POST", "/v1/sandboxes", {"labels": labels})[0] == 400
    server.call("POST", "/v1/sandboxes", {"name": "own", "labels": dict(list(many.items())[:64])})
    assert server.call("PATCH", "/v1/sandboxes/own", {"labels": {"more": "v"}})[0] == 400
    assert server.call("PATCH", "/v1/sandboxes/own", {"labels": {"k0": None, "more": "v"}})[0] == 200
    mine = {"argv": ["true"], "labels": {"rollout": "mine"}}
    server.call("POST", "/v1/runs", mine)
    other = server.new_token("two")
    server.call("POST", "/v1/sandboxes", {"name": "box"}, token=other)
    for i in range(320):
        labels = {f"k{k}": str(i) for k in range(64)}
        server.call("PATCH", "/v1/sandboxes/box", {"labels": labels}, token=other)
        server.call("POST", "/v1/sandboxes/box/pause", {}, token=other)
    rows = server.call("GET", "/v1/usage?by=label", token=other)[1]["usage"]
    assert len(rows) <= 20000
    assert usage(server, "rollout", "mine")["runs"] == 1
