# SPDX-License-Identifier: Apache-2.0
"""A sandbox cannot take the CPUs from another. (How well it does is measured by `make bench`.)"""

import itertools
import os
from pathlib import Path

import pytest
from harness import caller, processes, skip, until  # noqa: F401
from rollbox import Engine, Policy, Sandbox

NUMBERS = itertools.count()
GROUPS = Path("/sys/fs/cgroup")


def cpu_group(pid):
    """The directory of its CPU control group, and the file there that says its weight. None: there
    are no such groups."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return Path(f"{GROUPS}/cpu{path}"), "cpu.shares", "1024"
    v2 = Path(f"{GROUPS}{path}")
    return (v2, "cpu.weight", "100") if (v2 / "cpu.weight").exists() else None


def groups_of(boxes):
    for box in boxes:
        argv = ["sleep", f"{os.getpid()}.{next(NUMBERS)}"]
        box.spawn(argv)
        until(lambda argv=argv: processes(*argv))
        yield cpu_group(processes(*argv)[0])


@pytest.mark.skipif(os.getuid() != 0, reason="an ordinary user has CPU control groups only where they are delegated")
def test_every_sandbox_has_a_cpu_group_of_normal_weight():
    with Engine() as engine:
        boxes = [Sandbox(Policy(), engine=engine) for _ in range(2)]
        boxes += boxes[0].fork(1)
        found = list(groups_of(boxes))
        if None in found:
            skip("there is no CPU controller here")
        assert len({path for path, _, _ in found}) == len(boxes)
        for path, file, normal in found:
            assert path.parent.name.startswith("rollbox-") and (path / file).read_text().strip() == normal
        weight = int((found[0][0].parent / found[0][1]).read_text())
        assert weight == int(found[0][2]) * os.cpu_count()
        for box in boxes:
            box.close()


PIN = """
import os
before = os.sched_getaffinity(0)
for cpu in before:
    os.sched_setaffinity(0, {cpu})
    assert os.sched_getaffinity(0) == before
    os.sched_setaffinity(os.getpid(), {cpu})
    assert os.sched_getaffinity(0) == before
print("as before")
"""


@pytest.mark.parametrize("flags", [[], ["--cpus", "1"], ["--isolation", "process"]], ids=" ".join)
def test_pinning_to_a_cpu_succeeds_and_does_nothing(caller, flags):
    """Each hop is made by the kernel's own thread, ahead of everybody and charged to nobody."""
    result = caller.python(PIN, *flags)
    assert result.stdout == "as before\n", result.told
