# SPDX-License-Identifier: Apache-2.0
"""Priority and queue_timeout in Python, on a server and on an engine of this machine."""

import asyncio

import pytest
import rollbox
from harness import caller, until  # noqa: F401
from rollbox import AsyncSandbox, Engine, FeatureMissing, InvalidArgument, Sandbox, run_many
from serving_queue import HALF, full, small  # noqa: F401


@pytest.fixture
def engine(small):  # noqa: F811
    """The Engine of a server with little memory."""
    with Engine(f"http://127.0.0.1:{small.port}", token=small.box) as one:
        yield one


def test_queue_timeout_ends_the_wait_and_not_the_run(small, engine):  # noqa: F811
    box = Sandbox(HALF, engine=engine, priority="low", queue_timeout=0.5)
    with full(small):
        with pytest.raises(rollbox.ResourceExhausted, match="queue_timeout"):
            box.run(["true"])
        (row,) = run_many(
            [{"argv": ["true"], "priority": "high", "queue_timeout_s": 0.5}],
            policy=HALF,
            engine=engine,
            retries=0,
        )
        assert isinstance(row.error, rollbox.ResourceExhausted)

        async def wait():
            await AsyncSandbox(HALF, engine=engine, queue_timeout=0.5).run(["true"])

        with pytest.raises(rollbox.ResourceExhausted, match="queue_timeout"):
            asyncio.run(wait())
    result = box.run(["sleep", "0.6"])
    assert result.ok and result.queue_ms is not None and result.queue_ms < result.wall_ms
    assert "queue_ms" not in result.to_dict()


def test_group_of_a_server_is_forked_at_one_moment(small, engine):  # noqa: F811
    policy = {"max_memory": "32M"}
    with Sandbox(policy, engine=engine) as a, Sandbox(policy, engine=engine) as b:
        a.write_file("/tmp/name", "a")
        b.write_file("/tmp/name", "b")
        for pair in engine.fork_group([a, b], 2):
            assert [box.read_file("/tmp/name") for box in pair] == [b"a", b"b"]
            for box in pair:
                box.close()


def test_engine_of_this_machine_has_priorities_and_no_queue_timeout():
    result = Sandbox(priority="high").run(["true"])
    assert result.ok and result.queue_ms >= 0
    with pytest.raises(FeatureMissing, match="needs a server"):
        Sandbox(queue_timeout=1).run(["true"])
    with pytest.raises(FeatureMissing, match="needs a server"), Sandbox(queue_timeout=1) as box:
        box.exec(["true"])
    for bad in ("urgent", 1, ["high"]):
        with pytest.raises(InvalidArgument, match="priority"):
            Sandbox(priority=bad)
    for bad in (0, -1, "none"):
        with pytest.raises(InvalidArgument):
            Sandbox(queue_timeout=bad)
