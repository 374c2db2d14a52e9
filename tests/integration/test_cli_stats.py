# SPDX-License-Identifier: Apache-2.0
"""rollbox stats and ps: what sandboxes use, on the command line, in the engine's status and in
Python; as each caller."""

import asyncio
import json
import os
import pty
import re

from harness import until
from rollbox import AsyncSandbox, Engine, Policy, Sandbox
from cli_sessions import own, Shared, shared, shell  # noqa: F401

FIGURES = {
    "memory_bytes",
    "peak_memory_bytes",
    "max_memory_bytes",
    "disk_bytes",
    "max_disk_bytes",
    "processes",
    "max_processes",
    "cpu_ms",
    "age_s",
}
MIB = 1 << 20


def row_of(answer, name):
    return next(row for row in answer if row["name"] == name)


def test_stats_shows_what_a_busy_sandbox_uses(shared):
    with shared.box("--memory", "64M", "--disk", "32M", "--processes", "9") as busy, shared.box() as idle:
        shared.ok("exec", busy, *shell("head -c 4000000 /dev/zero > /tmp/file"))
        shared.ok("exec", "-d", busy, *shell("while :; do :; done"))
        answer = shared.json("stats", "--once", "--json", "--interval", "0.3")
        row = row_of(answer["sandboxes"], busy)
        assert FIGURES | {"cpu_percent"} <= set(row)
        assert row["state"] == "running" and row["cpu_percent"] > 0 and row["cpu_ms"] > 0 and row["age_s"] > 0
        assert (row["max_memory_bytes"], row["max_disk_bytes"], row["max_processes"]) == (64 * MIB, 32 * MIB, 9)
        assert 4000000 <= row["disk_bytes"] < 8 * MIB and 0 < row["memory_bytes"] <= 64 * MIB and row["processes"] == 1
        assert row_of(answer["sandboxes"], idle)["processes"] == 0
        table = shared.ok("stats", "--once", "--interval", "0.1", busy).splitlines()
        assert re.split(r"  +", table[0]) == ["NAME", "STATE", "CPU", "MEMORY / LIMIT", "DISK / LIMIT", "PROCESSES"]
        assert len(table) == 2 and re.search(
            rf"^{busy} +running +[\d.]+% +\S+ / 64M +\S+ / 32M +1 / 9$", table[1]
        ), table


def test_engine_status_has_the_same_figures(shared):
    with shared.box() as name:
        rows = shared.json("engine", "status", "--json")["stats"], shared.json("ps", "--json")["sandboxes"]
        for row in (row_of(one, name) for one in rows):
            assert FIGURES <= set(row) and row["max_processes"] == 64


def test_ps_has_memory_and_age(shared):
    with shared.box() as name:
        title, *lines = shared.ok("ps").splitlines()
        assert re.split(r"  +", title) == ["NAME", "STATE", "COMMANDS", "MEMORY", "AGE", "CREATED"]
        line, = [line for line in lines if line.startswith(name + " ")]
        assert re.search(r"  [\d.]+[KM]?  +[\d.]+(ms|s)  \d{4}-", line), line


def test_stats_without_a_terminal_is_lines(shared):
    with shared.box() as name:
        with shared.start("stats", "--json", "--interval", "0.05", name) as client:
            for _ in range(3):
                assert [row["name"] for row in json.loads(client.line())["sandboxes"]] == [name]


def test_stats_ends_with_the_named_sessions(shared):
    name = shared.ok("create")
    with shared.start("stats", "--interval", "0.05", name) as client:
        assert client.line().startswith("NAME")
        shared.ok("rm", name)
        assert client.finish()[0] == 0


def test_stats_on_a_terminal_redraws(shared):
    with shared.box() as name:
        master, slave = pty.openpty()
        try:
            with shared.start("stats", "--interval", "0.05", name, stdout=slave) as client:
                os.close(slave)
                seen = b""
                while seen.count(b"\033[H\033[J") < 3:
                    seen += os.read(master, 4096)
                assert seen.startswith(b"\033[H\033[JNAME")
                client.process.kill()
        finally:
            os.close(master)


def test_stats_of_an_unknown_session(shared):
    done = shared("stats", "--once", "no-such")
    assert done.returncode == 125 and b"no-such" in done.stderr and done.stdout == b""
    done = shared("stats", "--interval", "0")
    assert done.returncode == 125 and b"--interval" in done.stderr


def test_stats_neither_wakes_nor_counts_as_a_call(own):
    name = own.ok("create")
    own.ok("exec", name, *shell("echo content > /tmp/file"))
    own.ok("hibernate", name)
    row, = own.json("stats", "--once", "--json", "--interval", "0.1")["sandboxes"]
    assert (row["state"], row["memory_bytes"], row["processes"]) == ("asleep", 0, 0) and row["disk_bytes"] > 0
    own.ok("wake", name)
    before = own.json("ps", "--json")["sandboxes"][0]["idle_s"]
    assert own.json("ps", "--json")["sandboxes"][0]["idle_s"] > before


def test_stats_in_python():
    with Engine() as engine, Sandbox(Policy(max_memory="64M"), engine=engine) as box:
        box.exec(["true"])
        figures = box.stats()
        assert FIGURES <= set(figures) and figures["max_memory_bytes"] == 64 * MIB and figures["name"] == box.name
        assert [row["name"] for row in engine.stats()] == [box.name]

    async def asynchronously():
        async with AsyncSandbox() as box:
            return await box.stats()

    assert FIGURES <= set(asyncio.run(asynchronously()))


def test_memory_falls_when_a_process_ends():
    """The figure is of now, and not the most that there was."""
    with Sandbox(Policy(max_memory="256M")) as box:
        with box.spawn(["python3", "-c", "x = bytearray(64 << 20); print(flush=True); input()"]) as process:
            process.stdout.readline()
            assert box.stats()["memory_bytes"] > 64 * MIB
            process.stdin.close()
            process.wait()
        until(lambda: box.stats()["memory_bytes"] < 48 * MIB)
        assert box.inspect()["memory_bytes"] < 48 * MIB
