# SPDX-License-Identifier: Apache-2.0
"""Sessions, by the thousand and for long: make soak runs it."""

import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollbox import Engine, Policy, Sandbox

pytestmark = pytest.mark.skipif(not os.environ.get("ROLLBOX_SOAK"), reason="takes minutes; make soak runs it")

SESSIONS = 4000
FILES_EACH = 5          # descriptors of the engine, a sandbox


def available():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


@pytest.mark.timeout_s(900)
def test_thousands_open_and_each_answers():
    """4,000 at once; what each takes of the host's memory, the kernel's included, is at most 2 MiB (with 1,000)."""
    room = resource.getrlimit(resource.RLIMIT_NOFILE)[1] // FILES_EACH
    wanted = min(SESSIONS, room)
    before = available()
    with Engine() as engine:
        boxes = []
        for number in range(wanted):
            boxes.append(Sandbox(engine=engine))
            boxes[-1].exec(["true"])
            if number == 999:
                each = (before - available()) / 1000
                print(f"{each / 1024:.0f} KiB each of 1,000")
                assert each <= 2 << 20
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda box: box.exec(["sh", "-c", "echo $$"]).exit_code, boxes))
        assert answers == [0] * wanted and engine.status()["sessions"] == wanted
    if wanted < SESSIONS:
        pytest.skip(f"needs files: the limit of open files bears {wanted} sandboxes, which all answered")


@pytest.mark.timeout_s(600)
def test_thousand_nested_snapshots_work():
    with Sandbox() as box:
        snapshots = []
        for i in range(1000):
            box.exec(["sh", "-c", f"echo {i} > /tmp/last; echo {i} > /tmp/f{i}; rm -f /tmp/f{i - 3}"])
            snapshots.append(box.snapshot())
        look = "cat /tmp/last; ls /tmp | wc -l"
        assert box.exec(["sh", "-c", look], text=True).stdout == "999\n4\n"
        for i in (0, 1, 500, 998, 3):
            box.reset(snapshots[i])
            assert box.exec(["sh", "-c", look], text=True).stdout == f"{i}\n{min(i, 2) + 2}\n"


@pytest.mark.timeout_s(600)
def test_episodes_leave_nothing():
    """5,000 episodes of fork, work, reset and close in one engine: descriptors and memory end where
    they were after the first 500."""

    def size(pid):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return len(os.listdir(f"/proc/{pid}/fd")), next(
            int(line.split()[1]) for line in lines if line.startswith("VmRSS:")
        )

    with Engine() as engine, Sandbox(Policy(max_disk="16M"), engine=engine) as box:
        box.exec("mkdir /tmp/d; for i in 1 2 3 4 5 6 7 8 9; do echo $i > /tmp/d/$i; done")
        start = box.snapshot()
        for episode in range(5000):
            kid = box.fork(1, snapshot=start)[0] if episode % 2 else box
            kid.exec(["sh", "-c", "echo $$ >> /tmp/d/1; rm /tmp/d/2; echo > /tmp/new"])
            if kid is box:
                box.reset(start)
            else:
                kid.close()
            if episode == 500:
                files, memory = size(engine.pid)
        now = size(engine.pid)
        assert now[0] <= files + 8 and now[1] <= memory + 2048, (files, memory, now)
