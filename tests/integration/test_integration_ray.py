# SPDX-License-Identifier: Apache-2.0
"""rollbox.ray with Ray itself: several nodes on this machine, killed and added.

`make integrations` runs this with ray installed; `make check` has test_ray_schedule.py instead.
"""

import glob
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest

os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # on a loaded machine
ray = pytest.importorskip("ray", reason="needs ray: `make integrations` has it")
from ray.cluster_utils import Cluster  # noqa: E402

from harness import until  # noqa: E402
from rollbox import EngineLost, run_many  # noqa: E402
from rollbox.ray import Pool  # noqa: E402

# The frameworks alone take long to import on a loaded machine.
pytestmark = pytest.mark.timeout_s(600)

POLICY = {"max_memory": "256M"}


def leftovers():
    """Directories and processes of engines that actors started."""
    found = glob.glob("/tmp/rollbox-ray-*")
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                text = file.read()
        except OSError:
            continue
        if b"rollbox-ray-" in text and b"engine" in text:
            found.append(path)
    return found


@pytest.fixture(scope="module")
def cluster():
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=1, resources={"rollbox": 4})
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def pool(cluster):
    with Pool(POLICY, min_nodes=2) as made:
        yield made
    until(lambda: not leftovers())


def test_one_actor_a_node_with_its_own_engine(pool):
    nodes = pool.nodes()
    assert len({node["node"] for node in nodes}) == 2
    assert len({node["engine_pid"] for node in nodes}) == 2


def test_map_is_as_fast_as_one_engine(pool):
    jobs = [["true"]] * 400
    list(pool.map(jobs))
    run_many(jobs[:20], policy=POLICY)
    ratios = []
    for _ in range(3):
        begun = time.monotonic()
        assert all(row.ok for row in pool.map(jobs))
        over_ray = time.monotonic() - begun
        begun = time.monotonic()
        assert all(row.ok for row in run_many(jobs, concurrency=2, policy=POLICY))
        ratios.append((time.monotonic() - begun) / over_ray)
    print(f"Pool.map / run_many: {sorted(ratios)[1]:.2f} of its throughput")


def test_handles_work_in_tasks_of_the_cluster(pool):
    box = pool.sandbox()
    box.write_file("/tmp/f", "here")

    @ray.remote(num_cpus=0)
    def read(handle):
        handle.write_file("/tmp/g", "there")
        return handle.read_file("/tmp/f")

    assert ray.get(read.remote(box)) == b"here"
    assert pickle.loads(pickle.dumps(box)).read_file("/tmp/g") == b"there"


def test_a_snapshot_goes_through_the_object_store(pool):
    first, second = (node["node"] for node in pool.nodes())
    box = pool.sandbox(affinity=first)
    shell = box.shell()
    shell.run("count=41")
    published = pool.publish(box.snapshot())
    assert pool.warm(published, [second]) == [second]
    copy = pool.sandbox(affinity=published)
    assert copy.node == second
    assert copy.shell(shell.id).run("echo $((count + 1))", text=True).stdout == "42\n"
    kids = box.fork(64, spread="cluster")
    assert len(kids) == 64 and {kid.node for kid in kids} == {first, second}
    said = [kid.shell(shell.id).run("echo $count", text=True).stdout for kid in kids[:2] + kids[-2:]]
    assert said == ["41\n"] * 4


def test_ten_sessions_take_a_tenth_of_ten_actors(pool):
    @ray.remote(num_cpus=0)
    class Actor:
        def run(self):
            return subprocess.run(["true"]).returncode

    begun = time.monotonic()
    actors = [Actor.remote() for _ in range(10)]
    ray.get([actor.run.remote() for actor in actors])
    of_actors = time.monotonic() - begun
    for actor in actors:
        ray.kill(actor)
    begun = time.monotonic()
    boxes = [pool.sandbox() for _ in range(10)]
    assert all(box.exec("true").ok for box in boxes)
    of_boxes = time.monotonic() - begun
    print(f"ten sessions: {of_boxes:.2f} s; ten actors: {of_actors:.2f} s")


def test_a_large_output_comes_whole(pool):
    job = {"argv": ["head", "-c", "100000000", "/dev/zero"], "policy": {"max_output": "100M"}}
    row = pool.submit(job).result(120)
    assert row.ok and len(row.stdout) == 100_000_000


def test_a_killed_actor_costs_no_result(pool):
    rows = []
    for row in pool.map({"id": number, "argv": ["true"]} for number in range(600)):
        rows.append(row)
        if len(rows) == 100:
            os.kill(pool.nodes()[0]["pid"], signal.SIGKILL)
    assert sorted(row.id for row in rows) == list(range(600)) and all(row.ok for row in rows)
    until(lambda: len(pool.nodes()) == 2)


def test_a_killed_engine_costs_no_result(pool):
    rows = []
    for row in pool.map({"id": number, "argv": ["true"]} for number in range(600)):
        rows.append(row)
        if len(rows) == 100:
            os.kill(pool.nodes()[0]["engine_pid"], signal.SIGKILL)
    assert sorted(row.id for row in rows) == list(range(600)) and all(row.ok for row in rows)


def test_a_node_that_dies_costs_no_result_and_a_node_that_joins_is_used(cluster, pool):
    victim = cluster.add_node(num_cpus=1, resources={"rollbox": 4})
    until(lambda: len(pool.nodes()) == 3)
    facts = next(node for node in pool.nodes() if node["node"] == victim.node_id)
    box = pool.sandbox(affinity=victim.node_id)
    total = 10_000 if os.environ.get("ROLLBOX_SOAK") else 2000
    seen, last, gap = [], time.monotonic(), 0.0
    for row in pool.map({"id": number, "argv": ["true"]} for number in range(total)):
        now = time.monotonic()
        gap, last = max(gap, now - last), now
        assert row.ok
        seen.append(row.id)
        if len(seen) == total // 3:
            killer = threading.Thread(target=cluster.remove_node, args=(victim, False))
            killer.start()
    killer.join()
    assert sorted(seen) == list(range(total))
    print(f"one of three nodes killed in {total} jobs: longest gap {gap:.2f} s")
    with pytest.raises(EngineLost):
        box.exec("true")
    until(lambda: not os.path.exists(f"/proc/{facts['engine_pid']}"))


DRIVER = """
import ray, sys, time
ray.init(address=sys.argv[1], log_to_driver=False)
from rollbox.ray import Pool
pool = Pool(min_nodes=2)
box = pool.sandbox()
box.spawn(["sleep", "86390.77"])
print("ready", flush=True)
list(pool.map([["sleep", "86390.77"]] * 4))
"""


def test_nothing_is_left_of_a_killed_program(cluster):
    program = subprocess.Popen(
        [sys.executable, "-c", DRIVER, cluster.address], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    while program.stdout.readline() not in (b"ready\n", b""):
        pass
    until(leftovers)
    program.kill()
    program.wait()
    program.stdout.close()
    until(lambda: not leftovers())


EXAMPLES = [
    ("ray_rollouts.py", ["--rollouts", "20"], "20 rollouts, mean reward 0.65"),
    ("tutorials/ray_tree_search.py", [], "['+3', '*2', '*2', '+3', '+3']"),
    ("tutorials/ray_simulator.py", ["--episodes", "100"], "100 episodes"),
]


@pytest.mark.parametrize("name, arguments, said", EXAMPLES)
def test_an_example_runs(name, arguments, said):
    example = os.path.join(os.path.dirname(__file__), "../../examples", name)
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, example, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert said in done.stdout
