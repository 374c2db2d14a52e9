# SPDX-License-Identifier: Apache-2.0
"""rollbox.ray without Ray: which node runs which job, lost nodes, one result a job, handles."""

import asyncio
import collections
import random
import threading

import pytest
from harness import processes, until
from ray_fakes import FakeCluster

from rollbox import (
    EngineLost,
    EngineStartFailed,
    FeatureMissing,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from rollbox._core.request import error_result
from rollbox.ray import Pool
from rollbox.ray._pool import _shares
from rollbox.ray._schedule import Item, Schedule

GOOD = "a result"


def schedule_of(jobs, nodes, retries=3, window=None):
    results = collections.defaultdict(list)
    made = Schedule(window)
    for name, slots in nodes.items():
        made.add_node(name, slots)
    for index in range(jobs):
        made.add(Item(index, "run", index, results[index].append, retries))
    return made, results


def test_jobs_go_to_the_node_with_the_least_work_for_its_slots():
    schedule, _ = schedule_of(12, {"small": 1, "large": 3}, window=9)
    sent = schedule.assign(0)
    assert {name: len(items) for name, items in sent.items()} == {"small": 3, "large": 9}


def test_a_window_bounds_the_jobs_of_a_node():
    schedule, results = schedule_of(10, {"a": 1}, window=4)
    assert len(schedule.assign(0)["a"]) == 4 and schedule.queued == 6
    assert schedule.assign(0) == {}
    schedule.finish("a", 0, GOOD, 0.1, 1)
    assert [item.index for item in schedule.assign(1)["a"]] == [4] and results[0] == [GOOD]


def test_long_jobs_are_not_hoarded_by_a_node():
    schedule, _ = schedule_of(100, {"a": 2}, window=None)
    for item in schedule.assign(0)["a"]:
        schedule.finish("a", item.index, GOOD, 30, 1)
    assert len(schedule.assign(2)["a"]) == 3


def test_jobs_of_a_lost_node_run_on_another():
    schedule, results = schedule_of(4, {"a": 2, "b": 2}, window=2)
    schedule.assign(0)
    schedule.drop_node("a", 0, "gone")
    for index in list(range(4)):
        schedule.finish("b", index, GOOD, 1, 1)
    for item in schedule.assign(1)["b"]:
        schedule.finish("b", item.index, GOOD, 1, 2)
    assert dict(results) == {index: [GOOD] for index in range(4)} and len(schedule) == 0


def test_a_late_result_of_a_lost_node_is_not_taken():
    schedule, results = schedule_of(1, {"a": 1}, window=1)
    schedule.assign(0)
    schedule.drop_node("a", 0, "gone")
    schedule.finish("a", 0, "late", 1, 1)
    schedule.add_node("a", 1)
    schedule.finish("a", 0, "late", 1, 1)
    assert results[0] == []
    assert [item.index for item in schedule.assign(1)["a"]] == [0]
    schedule.finish("a", 0, GOOD, 1, 1)
    schedule.finish("a", 0, "twice", 1, 1)
    assert results[0] == [GOOD]


def test_a_job_that_loses_every_node_ends_as_an_error():
    schedule, results = schedule_of(1, {}, retries=2)
    for turn in range(3):
        schedule.add_node("a", 1)
        assert schedule.assign(turn)
        schedule.drop_node("a", turn, "it burns")
    assert isinstance(results[0][0], EngineLost) and "it burns" in str(results[0][0])
    assert len(schedule) == 0 and len(results[0]) == 1


def test_errors_of_a_host_are_repeated_and_a_program_is_not():
    schedule, results = schedule_of(2, {"a": 2}, retries=1)
    schedule.assign(0)
    exhausted = error_result(ResourceExhausted("no room"), False, 0)
    schedule.finish("a", 0, exhausted, 0, 0)
    schedule.finish("a", 1, error_result(NotFound("no image"), False, 1), 0, 0)
    assert results[0] == [] and results[1][0].error.code == "not_found"
    assert schedule.assign(0) == {} and schedule.next_due() > 0
    assert [item.index for item in schedule.assign(schedule.next_due())["a"]] == [0]
    schedule.finish("a", 0, exhausted, 0, 10)
    assert results[0] == [exhausted]


def test_cancelled_jobs_have_no_result():
    schedule, results = schedule_of(3, {"a": 1}, window=1)
    schedule.assign(0)
    assert schedule.cancel([0, 2, 77]) == {"a": [0]}
    schedule.finish("a", 0, GOOD, 1, 1)
    assert [item.index for item in schedule.assign(1)["a"]] == [1]
    assert not results[0] and not results[2] and len(schedule) == 1


def test_random_losses_leave_one_result_a_job():
    chance = random.Random(33)
    schedule, results = schedule_of(300, {"a": 2, "b": 4}, retries=10**6)
    running = collections.defaultdict(list)
    for turn in range(100000):
        if not len(schedule):
            break
        for name, items in schedule.assign(turn).items():
            running[name] += [item.index for item in items]
        event = chance.random()
        name = chance.choice("ab")
        if event < 0.02:
            schedule.drop_node(name, turn, "gone")
            schedule.add_node(name, chance.choice([1, 4]))
        elif running[name]:
            index = running[name].pop(chance.randrange(len(running[name])))
            schedule.finish(name, index, GOOD, chance.choice([0.001, 0.2]), turn)
            schedule.finish(name, index, GOOD, 0.1, turn)
    assert dict(results) == {index: [GOOD] for index in range(300)}


def test_shares_are_by_slots():
    assert _shares(10, {"a": 4, "b": 1}) == {"a": 8, "b": 2}
    assert _shares(1, {"a": 4, "b": 1}) == {"a": 1}
    assert sum(_shares(64, {"a": 3, "b": 5, "c": 7}).values()) == 64


@pytest.fixture
def cluster():
    return FakeCluster(first=1, second=1)


@pytest.fixture
def pool(cluster):
    with Pool({"max_memory": "128M"}, min_nodes=2, _cluster=cluster) as made:
        yield made


def test_rows_of_a_map_have_the_ids_of_their_jobs(pool):
    jobs = [{"id": f"job-{number}", "argv": ["echo", str(number)]} for number in range(40)]
    rows = list(pool.map(jobs, text=True))
    assert {row.id: row.stdout for row in rows} == {f"job-{n}": f"{n}\n" for n in range(40)}
    ordered = pool.run_many([["sh", "-c", f"exit {n % 7}"] for n in range(20)])
    assert [row.exit_code for row in ordered] == [n % 7 for n in range(20)]
    assert [row.id for row in ordered] == list(range(20))


def test_bad_jobs_are_errors_of_their_own(pool):
    with pytest.raises(InvalidArgument):
        list(pool.map("true"))
    with pytest.raises(InvalidArgument):
        list(pool.map(["true", ["true"]]))
    rows = pool.run_many([["true"], {"argv": ["true"], "oops": 1}, ["/no/such"]])
    assert [row.outcome for row in rows] == ["exit", "error", "error"]
    assert [row.error and row.error.code for row in rows] == [None, "invalid_argument", "command_not_found"]


def test_a_node_that_dies_costs_no_result(cluster, pool):
    rows = []
    for row in pool.map(({"id": number, "argv": ["true"]} for number in range(200)), window=64):
        rows.append(row)
        if len(rows) == 30:
            cluster.kill("first")
            cluster.cpus["third"] = 1
    assert sorted(row.id for row in rows) == list(range(200))
    assert all(row.ok for row in rows)
    until(lambda: {node["node"] for node in pool.nodes()} == {"second", "third"})


def test_jobs_wait_for_a_node_and_end_without_one():
    lone = FakeCluster(only=1)
    with Pool(_cluster=lone, start_timeout=1.5) as pool:
        lone.kill("only")
        row = pool.submit(["true"]).result(30)
        assert row.outcome == "error" and isinstance(row.error, EngineLost)


def test_a_pool_without_nodes_says_why():
    with pytest.raises(EngineStartFailed, match='offers "rollbox"'):
        Pool(_cluster=FakeCluster(), start_timeout=0.1)
    with pytest.raises(EngineStartFailed, match="status 9|exit"):
        Pool(_cluster=FakeCluster(bad=1), setup="exit 9", start_timeout=3)


def test_a_closed_map_kills_its_jobs(pool):
    block = ["sleep", "86391.33"]
    rows = pool.map([["true"], block, block])
    assert next(rows).ok
    until(lambda: len(processes(*block)) == 2)
    rows.close()
    until(lambda: not processes(*block))


def test_a_cancelled_task_kills_its_job(pool):
    block = ["sleep", "86391.34"]

    async def go():
        task = asyncio.ensure_future(pool.run_async(block))
        while not processes(*block):
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await pool.run_async(["echo", "next"], text=True)).stdout == "next\n"

    asyncio.run(go())
    until(lambda: not processes(*block))


def test_handles_have_the_methods_of_a_sandbox(pool):
    with pool.sandbox() as box:
        assert box.exec("echo a > /tmp/f; cat /tmp/f", text=True).stdout == "a\n"
        base = box.snapshot()
        box.write_file("/tmp/f", "b")
        box.reset(base)
        assert box.read_file("/tmp/f") == b"a\n"
        process = box.spawn(["cat"])
        process.stdin.write(b"through\n")
        process.stdin.close()
        assert process.stdout.read() == b"through\n" and process.wait().ok
        shell = box.shell()
        shell.run("x=3")
        kids = box.fork(2)
        assert [kid.shell(shell.id).run("echo $x", text=True).stdout for kid in kids] == ["3\n"] * 2
        with pytest.raises(NotFound):
            box.reset("no-such")
        with pytest.raises(AttributeError):
            box.no_such_method()
    with pytest.raises(NotFound, match="closed"):
        box.exec("true")


def test_files_go_to_and_from_the_machine_of_the_caller(pool, tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/run").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "tree/run").chmod(0o755)
    (tmp_path / "tree/link").symlink_to("run")
    box = pool.sandbox()
    box.upload(tmp_path / "tree", "/tmp/tree")
    assert box.exec(["/tmp/tree/link"], text=True).stdout == "ran\n"
    box.write_file("/tmp/tree/new", "made")
    box.download("/tmp/tree", tmp_path / "back")
    assert (tmp_path / "back/new").read_text() == "made"
    assert (tmp_path / "back/link").readlink().name == "run"
    box.download("/tmp/tree/new", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "made"
    with pytest.raises(InvalidArgument, match="exists"):
        box.download("/tmp/tree", tmp_path / "back")
    with pytest.raises(NotFound):
        box.download("/tmp/none", tmp_path / "none")
    with pytest.raises(FeatureMissing, match="publish"):
        box.export(tmp_path / "x")
    asyncio.run(box.aio.upload(tmp_path / "file", "/tmp/again"))
    assert box.read_file("/tmp/again") == b"made"


def test_a_fork_over_the_cluster_continues_processes(pool):
    box = pool.sandbox(affinity="first")
    shell = box.shell()
    shell.run("count=41")
    kids = box.fork(4, spread="cluster")
    assert sorted(kid.node for kid in kids) == ["first", "first", "second", "second"]
    said = [kid.shell(shell.id).run("echo $((count + 1))", text=True).stdout for kid in kids]
    assert said == ["42\n"] * 4
    assert shell.run("echo $count", text=True).stdout == "41\n"


def test_a_published_snapshot_is_forked_where_it_is(cluster, pool, tmp_path):
    box = pool.sandbox(affinity="first")
    box.write_file("/tmp/f", "kept")
    published = pool.publish(box.snapshot(), store=str(tmp_path))
    assert pool.warm(published, ["second"]) == ["second"]
    copies = [pool.sandbox(affinity=published) for _ in range(3)]
    assert {copy.node for copy in copies} == {"second"}
    assert [copy.read_file("/tmp/f") for copy in copies] == [b"kept"] * 3
    cluster.kill("second")
    again = pool.sandbox(affinity=published)      # it is warmed where a node is left
    assert again.node == "first" and again.read_file("/tmp/f") == b"kept"
    with pytest.raises(EngineLost):
        copies[0].exec("true")


def test_a_lease_ends_without_renewal(pool):
    box = pool.sandbox(lease_ttl=0.5)
    box._closed = True                            # as if this process knew it no longer
    until(lambda: not any(node["sandboxes"] for node in pool.nodes()))
    with pytest.raises(NotFound, match="lease"):
        box.exec("true")


def test_a_lease_is_renewed_while_a_handle_lives(pool):
    box = pool.sandbox(lease_ttl=0.6)
    threading.Event().wait(2.5)
    assert box.exec("true").ok


def test_jobs_begin_as_forks_of_the_setup():
    with Pool(setup="echo ready > /tmp/state", _cluster=FakeCluster(one=2)) as pool:
        rows = pool.run_many([["cat", "/tmp/state"], ["sh", "-c", "echo x >> /tmp/state; cat /tmp/state"]], text=True)
        assert [row.stdout for row in rows] == ["ready\n", "ready\nx\n"]
        assert pool.sandbox().read_file("/tmp/state") == b"ready\n"
        assert pool.sandbox({"max_memory": "64M"}).exists("/tmp/state") is False


def test_clones_have_their_numbers_over_the_cluster(pool):
    pytest.importorskip("cloudpickle", reason="needs cloudpickle: functions go to clones by it")

    def square(number):
        if number == 7:
            raise ValueError("seven")
        return number * number

    with pool.clones(square) as clones:
        made = clones.fork(20, retries=1)
    assert [clone.id for clone in made] == list(range(20))
    assert [clone.value for clone in made if clone.id != 7] == [n * n for n in range(20) if n != 7]
    assert made[7].raised.type_name == "ValueError"


def test_a_failed_init_fn_is_raised(pool):
    pytest.importorskip("cloudpickle", reason="needs cloudpickle: functions go to clones by it")

    def fail():
        raise RuntimeError("no simulator")

    with pytest.raises(Exception, match="no simulator"):
        pool.clones(int, init_fn=fail).fork(3)


def test_scale_hint_asks_for_nodes_that_jobs_would_fill(cluster, pool):
    futures = [pool.submit(["sleep", "2"]) for _ in range(6)]
    until(lambda: len(pool._schedule) == 6)
    assert pool.scale_hint() == 6 and cluster.asked == 6
    for future in futures:
        future.cancel()


def test_a_node_that_joins_does_not_get_every_new_sandbox(cluster, pool):
    for _ in range(6):
        pool.sandbox().close()
    assert [node.boxes for node in pool._ready_nodes()] == [0, 0]
    cluster.cpus["third"] = 1
    until(lambda: len(pool._ready_nodes()) == 3)
    boxes = [pool.sandbox() for _ in range(6)]
    assert sorted(box.node for box in boxes) == ["first", "first", "second", "second", "third", "third"]
    kids = boxes[0].fork(2)
    assert max(node.boxes for node in pool._ready_nodes()) == 4
    del kids
    until(lambda: max(node.boxes for node in pool._ready_nodes()) == 2)
