# SPDX-License-Identifier: Apache-2.0
"""Records of sleeping sandboxes that lie, with right digests.

The model: an exported file is taken apart, one thing in it is made to disagree with another, and it
is put together again (record_fuzz.py). The error must
name the field, both of `rollbox import` and, where it was changed in the store, of the next call
for the sandbox; the engine continues.
make check runs this file as root and as an ordinary user.
"""

import signal
import subprocess

import pytest

import record_fuzz
from harness import DEADLINE, repeat_count

COMMAND = {
    "operation": "6f70",
    "terminal": False,
    "pid": 2,
    "description": "7368",
    "timeout_ms": 0,
    "output_limit": 100,
}

# What is done to the record, and what of it the message names.
LIES = {
    "a pipe twice": (
        lambda r: r["lives"][0]["pipes"].append(dict(r["lives"][0]["pipes"][0])),
        "lives[0].pipes[",
    ),
    "a pipe eight times": (
        lambda r: r["lives"][0]["pipes"].extend([dict(r["lives"][0]["pipes"][0])] * 8),
        "lives[0].pipes[",
    ),
    "a pipe too many": (
        lambda r: r["lives"][0]["pipes"].append({"command": 0, "slot": 7, "written": True}),
        "pipes (their number)",
    ),
    "a pipe of no command": (
        lambda r: r["lives"][0]["pipes"][0].update(command=5),
        "lives[0].pipes[0].command is 5",
    ),
    "an output that is read": (
        lambda r: r["lives"][0]["pipes"][0].update(written=False),
        "lives[0].pipes[0].written is false",
    ),
    "a terminal of a command with pipes": (
        lambda r: r["lives"][0]["terminals"].append(0),
        "lives[0].terminals[0] is 0",
    ),
    "a command twice": (
        lambda r: r["lives"][0]["commands"].append(dict(r["lives"][0]["commands"][0])),
        "lives[0].commands",
    ),
    "a command without a process": (
        lambda r: r["lives"][0]["commands"].append(COMMAND),
        "commands[1].pid is 2",
    ),
    "a command of another process": (
        lambda r: r["lives"][0]["commands"][0].update(pid=r["lives"][0]["commands"][0]["pid"] + 1),
        "commands[0].pid is",
    ),
    "a process too many": (
        lambda r: r["lives"][0].update(processes=3),
        "processes: 3 in the record, 2 in the image",
    ),
    "more commands than processes": (
        lambda r: r["lives"][0]["commands"].extend(
            [{**COMMAND, "pid": 100 + i} for i in range(1000)]
        ),
        "lives[0].commands",
    ),
    "a time-out past the end of time": (
        lambda r: r["lives"][0]["commands"][0].update(timeout_ms=2**63 - 1),
        "lives[0].commands[0].timeout_ms is 9223372036854775807",
    ),
    "a number of processes below zero": (
        lambda r: r["lives"][0].update(processes=-1),
        "lives[0].processes is -1",
    ),
    "a memory of its own size": (
        lambda r: r["lives"][0].update(bytes=2**62),
        "bytes: 4611686018427387904 in the record",
    ),
    "a state twice": (lambda r: r["nodes"][1].update(id="s0"), 'nodes[1].id is "s0"'),
    "a state that hangs on itself": (
        lambda r: r["nodes"][1].update(parent=1),
        "nodes[1].parent is 1",
    ),
    "ids that will be given again": (lambda r: r.update(next_name=1), 'nodes[1].id is "s1"'),
    "a layer that is not there": (lambda r: r["nodes"][1].update(layer=7), "nodes[1].layer is 7"),
    "nowhere to stand": (lambda r: r.update(at=9), "at is 9"),
    "an end of what runs": (
        lambda r: r["ended"].append(
            {
                "operation": r["lives"][0]["commands"][0]["operation"],
                "outcome": 0,
                "status": 0,
                "wall_ns": 0,
                "cpu_ns": 0,
            }
        ),
        "ended[",
    ),
    "two ends of one command": (
        lambda r: r["ended"].extend(
            [{"operation": "61", "outcome": 0, "status": 0, "wall_ns": 0, "cpu_ns": 0}] * 2
        ),
        "ended[",
    ),
    "no name": (lambda r: r.update(name="../x"), 'name is "../x"'),
    "a text that turns around": (lambda r: r.update(name="\u202egnp"), 'name is "\\u202Egnp"'),
    "a kernel in red": (
        lambda r: r["fingerprint"].update(kernel="\x1b[31m"),
        'fingerprint is "\\u001B[31m"',
    ),
    "no list of states": (lambda r: r.update(nodes=None), "nodes is null"),
}


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    engine = record_fuzz.Engine(tmp_path_factory.mktemp("records"))
    yield record_fuzz.Fuzzer(engine, 1)
    assert engine.end() == 0 and engine.reports() == []


@pytest.fixture
def engine(fuzzer):
    yield fuzzer.engine
    fuzzer.works_still()        # and is alive, and reports nothing
    assert fuzzer.engine.reports() == []


def lie(fuzzer, name):
    case = record_fuzz.Case(fuzzer.files[0])
    LIES[name][0](case.whole["record"])
    return case


@pytest.mark.parametrize("name", LIES)
def test_false_record_is_not_imported(fuzzer, engine, name):
    done = engine("import", "--name", "box", lie(fuzzer, name).write(engine.directory / "case.live"))
    assert done.returncode == 125 and LIES[name][1] in done.stderr, done.stderr
    assert not list((engine.store / "asleep").iterdir())


@pytest.mark.parametrize("name", [name for name in LIES if name not in ("no name", "a text that turns around")])
def test_record_falsified_in_the_store_is_not_woken(fuzzer, engine, name):
    path = record_fuzz.Case(fuzzer.files[0]).write(engine.directory / "case.live")
    assert engine("import", "--name", "box", path).returncode == 0
    fuzzer.tamper(lie(fuzzer, name))
    try:
        for command in ("exec", "wake"):
            done = engine(command, "box", *(["--", "true"] if command == "exec" else []))
            assert done.returncode == 125 and LIES[name][1] in done.stderr, done.stderr
    finally:
        assert engine("rm", "box").returncode == 0
    assert not list((engine.store / "asleep").iterdir())


@pytest.mark.long
def test_changed_live_files_are_refused_or_work(fuzzer):
    n = repeat_count(150, 60, 20000)
    for _ in range(n):
        fuzzer.one()
    assert fuzzer.bad == [] and len(fuzzer.seen) > 10 and any("works" in outcome for outcome in fuzzer.seen)


def test_signal_ends_a_command_whose_engine_does_not_answer(engine):
    assert engine("create", "--name", "still").returncode == 0
    for number in (signal.SIGTERM, signal.SIGINT):
        with subprocess.Popen(
            [
                record_fuzz.BUILD / "rollbox",
                "exec",
                "--socket",
                engine.socket,
                "still",
                "--",
                "sh",
                "-c",
                "echo up; sleep 100000",
            ],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        ) as command:
            assert command.stdout.readline() == b"up\n"
            engine.process.send_signal(signal.SIGSTOP)
            try:
                command.send_signal(number)
                assert command.wait(DEADLINE) == -number
            finally:
                engine.process.send_signal(signal.SIGCONT)
    assert engine("rm", "still").returncode == 0
