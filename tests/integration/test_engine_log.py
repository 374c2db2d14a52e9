# SPDX-License-Identifier: Apache-2.0
"""The engine's log, and its counters of verbs: what happened is there, and the log is never a reason to fail."""

import json
import os
import subprocess

import pytest
from harness import binaries, until
from rollbox import Engine, NotFound, Policy, Sandbox


def lines(path):
    return path.read_text().splitlines()


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "log"
    monkeypatch.setenv("ROLLBOX_LOG", str(path))
    return path


def test_each_line_is_json_and_names_the_sandbox(log, monkeypatch):
    monkeypatch.setenv("ROLLBOX_LOG_FORMAT", "json")
    monkeypatch.setenv("ROLLBOX_LOG_LEVEL", "debug")
    with Engine() as engine:
        with Sandbox(engine=engine, name="logged") as box:
            box.exec(["true"])
            box.fork(1)[0].close()
            with pytest.raises(NotFound):
                box.reset("never-taken")
        engine.status()
    events = [json.loads(line) for line in lines(log)]
    assert {"ts", "level", "module", "msg"} <= set(events[0]) and events[0]["msg"].startswith("rollbox-engine")
    about = [event for event in events if event.get("sandbox") == "logged"]
    assert {"created", "is gone"} <= {event["msg"] for event in about}
    assert [event for event in about if event.get("op") == "fork" and event["msg"] == "done"]
    assert [
        event
        for event in about
        if event.get("op") == "reset" and event["level"] == "warn" and "never-taken" in event["msg"]
    ]


def test_log_file_is_private_and_appended_to(log):
    for _ in range(2):
        with Engine() as engine:
            engine.status()
    assert oct(log.stat().st_mode & 0o777) == "0o600"
    assert len([line for line in lines(log) if "starts" in line]) == 2


def test_nothing_is_logged_by_default(tmp_path):
    with Engine() as engine, Sandbox(engine=engine) as box:
        box.exec(["true"])
        assert engine.status()["log"] == {"error": 0, "warn": 0, "info": 0, "debug": 0, "dropped": 0}


def test_full_disk_drops_lines_and_nothing_else(monkeypatch):
    monkeypatch.setenv("ROLLBOX_LOG", "/dev/full")
    with Engine() as engine, Sandbox(engine=engine) as box:
        assert box.exec(["true"]).exit_code == 0
        assert engine.status()["log"]["dropped"] > 0


def test_requests_and_errors_are_counted_by_verb():
    with Engine() as engine, Sandbox(Policy(), engine=engine) as box:
        box.exec(["true"])
        for _ in range(3):
            box.snapshot()
        with pytest.raises(NotFound):
            box.reset("never-taken")
        verbs = engine.status()["verbs"]
    assert (
        verbs["snapshot"] == {"requests": 3, "errors": 0}
        and verbs["reset"] == {"requests": 1, "errors": 1}
        and verbs["create"]["requests"] == 1
    )


@pytest.mark.parametrize("option, value", [("--log-level", "loud"), ("--log-format", "xml"), ("--log", "/nowhere/log")])
def test_wrong_option_is_refused(tmp_path, option, value):
    arguments = [option, value] if option == "--log" else ["--log", "-", option, value]
    done = subprocess.run(
        [f"{binaries()}/rollbox-engine", "--socket", str(tmp_path / "socket"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ},
    )
    assert done.returncode != 0 and len(done.stderr.splitlines()) == 1 and not (tmp_path / "socket").exists()


def test_debug_dump_says_who_waits_for_what(tmp_path):
    socket = tmp_path / "socket"
    rollbox = f"{binaries()}/rollbox"
    environment = {**os.environ, "ROLLBOX_SOCKET": str(socket)}
    subprocess.run(
        [
            rollbox,
            "engine",
            "start",
            "--background",
            "--log",
            str(tmp_path / "log"),
            "--log-level",
            "debug",
        ],
        env=environment,
        check=True,
        capture_output=True,
        timeout=60,
    )
    try:
        with Engine(str(socket)) as engine, Sandbox(engine=engine, name="waiting") as box:
            box.spawn(["sleep", "1000"])

            def dumped():
                done = subprocess.run(
                    [rollbox, "debug", "dump"],
                    env=environment,
                    check=True,
                    capture_output=True,
                    timeout=60,
                )
                return [row for row in json.loads(done.stdout)["sandboxes"] if row["sandbox"] == "waiting"][0]

            until(
                lambda: dumped()["commands"][0]["state"] not in ("queued", "starting")
            )  # init says so, in its own time
            row = dumped()
            assert row["state"] == "live" and row["box"] == "ready" and row["ops"] == []
            assert [command["state"] for command in row["commands"]] == ["running"] and row[
                "commands"
            ][0]["since_ms"] >= 0
            box.snapshot()
    finally:
        subprocess.run([rollbox, "engine", "stop"], env=environment, check=True, timeout=60)
    waits = [line for line in lines(tmp_path / "log") if "sandbox=waiting op=snapshot wait=" in line]
    assert [line for line in waits if "wait=dump " in line]
