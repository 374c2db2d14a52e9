# SPDX-License-Identifier: Apache-2.0
"""What holds for the episodes of every framework: its end, its limits, its labels.

In `make check` these tests have the adapters that work without their framework; `make integrations`
has all of them.
"""

import asyncio
import concurrent.futures
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import time

import episodes
import pytest
from adapters import own_server
from collector import collector  # noqa: F401
from harness import DEADLINE, comm, descendants, processes, until, wait_groups_gone

from rollbox import Engine

# The frameworks alone take long to import on a loaded machine.
pytestmark = pytest.mark.timeout_s(600)

HERE = os.path.dirname(os.path.abspath(__file__))
# Other tests on this machine have seconds of their own.
SECONDS = [f"{86400 + os.getpid()}.{number}" for number in range(1, 5)]
NEED_AN_IMAGE = ("harbor", "nemo_gym", "verifiers")
FOUND = episodes.here()
ASYNCHRONOUS = [episode for episode in FOUND if episode not in episodes.SYNCHRONOUS]


def each(found):
    if not found:  # an empty list of parameters would be a skipped test
        return lambda _: None
    return pytest.mark.parametrize("episode", found, ids=[one.__name__ for one in found])


@pytest.fixture(autouse=True)
def image(episode, request, monkeypatch):
    """The options of an episode whose adapter wants an image with many users: it is in a store."""
    if episode.__name__ not in NEED_AN_IMAGE:
        return {}
    if os.geteuid() != 0:
        pytest.skip("needs root: its images have many users")
    builds = request.getfixturevalue("builds")
    monkeypatch.setenv("ROLLBOX_STORE", str(builds.store.path))
    return {"image": "base"}


@pytest.fixture(scope="module")
def builds():
    from built_images import Builds

    return Builds()


async def step(run, command):
    """One step; that of a synchronous adapter in a thread."""
    if inspect.iscoroutinefunction(run):
        return await run(command)
    return await asyncio.to_thread(run, command)


def ran(episode, command, **options):
    async def main():
        async with episode(**options) as run:
            return await step(run, command)

    return asyncio.run(main())


KILLED = """
import asyncio, inspect, sys
sys.path.insert(0, sys.argv[1])
import episodes

async def main():
    async with getattr(episodes, sys.argv[2])(**eval(sys.argv[3])) as run:
        one, two = sys.argv[4:]
        for command in (f"sleep {one} >/dev/null 2>&1 & echo x >/tmp/left", f"exec sleep {two}"):
            answer = run(command)
            if inspect.isawaitable(answer):
                await answer

asyncio.run(main())
"""


@each(FOUND)
def test_nothing_is_left_of_a_killed_framework(episode, image, tmp_path):
    program = subprocess.Popen(
        [sys.executable, "-c", KILLED, HERE, episode.__name__, repr(image), *SECONDS[:2]],
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        while not (processes("sleep", SECONDS[0]) and processes("sleep", SECONDS[1])):
            assert program.poll() is None  # an import may take longer than a test waits for others
            time.sleep(0.02)
        (engine,) = [pid for pid in descendants(program.pid) if comm(pid) == "rollbox-engine"]
    finally:
        program.kill()
        program.wait()
    until(lambda: not processes("sleep", SECONDS[0]) and not processes("sleep", SECONDS[1]))
    until(lambda: not os.path.exists(f"/proc/{engine}"))
    wait_groups_gone(engine)
    assert [name for name in os.listdir(tmp_path) if "rollbox" in name] == []


@each(ASYNCHRONOUS)
def test_a_cancelled_step_ends_its_command(episode, image):
    async def main():
        async with episode(**image) as run:
            task = asyncio.ensure_future(run(f"exec sleep {SECONDS[2]}"))
            while not processes("sleep", SECONDS[2]):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            end = time.monotonic() + DEADLINE
            while processes("sleep", SECONDS[2]):
                assert time.monotonic() < end
                await asyncio.sleep(0.01)
            assert "after" in await run("echo after")

    asyncio.run(main())


@each(ASYNCHRONOUS)
def test_the_end_of_an_event_loop_ends_its_episodes(episode, image):
    async def main():
        context = episode(**image)
        run = await context.__aenter__()
        task = asyncio.ensure_future(run(f"exec sleep {SECONDS[3]}"))
        while not processes("sleep", SECONDS[3]):
            await asyncio.sleep(0.01)
        return context, task

    kept = asyncio.run(main())
    until(lambda: not processes("sleep", SECONDS[3]))
    assert "again" in ran(episode, "echo again", **image) and kept


@each(FOUND)
def test_a_missing_image_is_an_error_that_names_it(episode):
    with pytest.raises(Exception, match="no-such-image"):
        ran(episode, "echo never", image="no-such-image")


LARGE = "h=head; command -v head >/dev/null || h='busybox head'; $h -c 100000000 /dev/zero"


@each(FOUND)
def test_a_large_output_is_whole_or_told_to_be_cut(episode, image):
    """A step that writes 100 MB ends, and another one follows."""

    async def main():
        async with episode(**image) as run:
            try:
                said = await step(run, LARGE)
            except Exception as problem:
                said = str(problem)
            assert len(said) >= 100_000_000 or re.search(
                "more output|output_limit|OutputLimit|left out|truncated|output", said[-5000:] + said[:5000]
            ), said[-300:]
            assert "after" in await step(run, "echo after")

    asyncio.run(main())


def begins_many(one):
    """smolagents is left out: each of its episodes has a Python of its own, which is the load."""
    return importlib.util.find_spec(episodes.PACKAGES[one] or one.__name__) and one is not episodes.smolagents


@each([one for one in FOUND if begins_many(one)])
def test_five_hundred_episodes_begin_at_once(episode, image):
    """They wait for their turn, and each has the answer of its own."""

    def one(number):
        return ran(episode, f"echo {number}=", **image)

    with concurrent.futures.ThreadPoolExecutor(500) as pool:
        said = list(pool.map(one, range(500)))
    assert [f"{number}=" in text for number, text in enumerate(said)] == [True] * 500


@each(FOUND)
def test_labels_are_on_a_server_s_sandbox_its_costs_and_spans(episode, image, collector):  # noqa: F811
    async def main(url):
        async with episode(engine=url, labels={"run": "17"}, **image) as run:
            (row,) = Engine(url).sandboxes()
            assert row["labels"]["run"] == "17"
            assert "there" in await step(run, "echo there")
        rows = {row["label"]: row for row in Engine(url).usage("label")}
        assert rows["run=17"]["commands"] >= 1

    with own_server("--otlp-endpoint", collector.url) as url:
        asyncio.run(main(url))
    label = "rollbox.label.run"
    until(lambda: [span for span in collector.spans if span.attributes.get(label) == "17"])


@each(FOUND)
def test_labels_are_in_the_trajectory(episode, image, tmp_path):
    record = tmp_path / "run.jsonl"
    ran(episode, "true", labels={"run": "17"}, record=str(record), **image)
    assert re.search(r'"run": ?"17"', record.read_text())
