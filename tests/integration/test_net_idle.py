# SPDX-License-Identifier: Apache-2.0
"""Sandboxes with net "allow" that do nothing: what they cost the gateway, and that nothing of them is left.

make soak has a thousand of them.
"""

import os

from harness import repeat_count, until
from network_server import server  # noqa: F401

from rollbox import Engine, Policy, Sandbox

GET = [
    "python3",
    "-c",
    "import urllib.request; print(urllib.request.urlopen('http://site.test/', timeout=20).read().decode())",
]


def stat(pid):
    """(parent, name, resident pages) of a process."""
    with open(f"/proc/{pid}/stat") as file:
        name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
    fields = rest.split()
    return int(fields[1]), name, int(fields[21])


def gateway_of(engine):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent, name, *_ = stat(pid)
        except OSError:
            continue
        if name == "rollbox-egress" and parent == engine:
            return int(pid)
    return None


def files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_egress_idle_sandboxes_are_small_and_leave_nothing(server):  # noqa: F811
    n = repeat_count(30, 10, soak=1000)
    policy = Policy(net_allow=[server.rule("site.test")], net_log="none")
    with Engine() as engine:
        pid = engine.status()["pid"]
        first = Sandbox(policy, engine=engine)
        first.__enter__()
        assert first.exec(GET, text=True).stdout == "hello site.test\n"
        gateway = gateway_of(pid)
        try:
            before = files(gateway), stat(gateway)[2]
        except PermissionError:
            before = None  # it is not dumpable, so root alone may look
        boxes = []
        for _ in range(n):
            box = Sandbox(policy, engine=engine)
            box.__enter__()
            box.exec(["true"])
            boxes.append(box)
        if before:
            assert files(gateway) - before[0] <= 3 * n
            assert (stat(gateway)[2] - before[1]) * os.sysconf("SC_PAGE_SIZE") <= 8192 * n + (
                1 << 20
            )
        for box in boxes[:10]:
            assert box.exec(GET, text=True).stdout == "hello site.test\n"
        for box in boxes:
            box.close()
        assert first.exec(GET, text=True).stdout == "hello site.test\n"
        if before:
            until(lambda: files(gateway) <= before[0])
        first.close()
        until(lambda: gateway_of(pid) is None)
        assert engine.status()["sessions"] == 0
