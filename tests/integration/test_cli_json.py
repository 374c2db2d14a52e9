# SPDX-License-Identifier: Apache-2.0
"""--json of every command: one object on standard output, after success and after an error."""

import json
import os
import subprocess

import pytest

from conftest import BUILD
from harness import binaries, caller  # noqa: F401
from stores import Shared

FOR_PEOPLE = {"help", "completion"}     # texts, for a person and for a shell
OF_A_RUN = {"run", "shell", "exec", "attach", "record"}


def commands():
    lines = subprocess.run(
        [BUILD / "rollbox", "--help"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = [line[2:].split("  ")[0].strip() for line in lines if line.startswith("  ")]
    assert {"run", "policy plan", "engine status", "inspect", "store df"} <= set(names)
    return [name for name in names if name not in FOR_PEOPLE]


def rollbox(*words, status=None, **environment):
    done = subprocess.run(
        [BUILD / "rollbox", *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    assert status is None or done.returncode == status, done
    return done


@pytest.mark.parametrize("command", commands())
@pytest.mark.parametrize("wrong", ["before", "after"])
def test_wrong_options_are_reported_as_json(command, wrong):
    words = ["--no-such-option", "--json"] if wrong == "before" else ["--json", "--no-such-option"]
    done = rollbox(*command.split(), *words, status=125)
    told = json.loads(done.stdout)
    assert (
        told["error"]["code"] == "invalid_argument"
        and told["error"]["stage"] == "arguments"
        and "--no-such-option" in told["error"]["message"]
    )
    assert ("outcome" in told) == (command in OF_A_RUN) and told.get("outcome", "error") == "error"
    assert "--no-such-option" in done.stderr


@pytest.mark.parametrize("command", commands())
def test_help_names_the_json_option(command):
    assert "--json" in rollbox(*command.split(), "--help", status=0).stdout


def test_options_after_the_command_are_the_commands():
    assert rollbox("run", "--no-such-option", "--", "echo", "--json", status=125).stdout == ""
    assert rollbox("exec", "--timeout", "0", "name", "echo", "--json", status=125).stdout == ""
    assert json.loads(
        rollbox("exec", "--json", "--timeout", "0", "name", "echo", status=125).stdout
    )["error"]["message"].startswith("--timeout 0")


def test_unknown_commands_are_reported_as_json():
    assert "no-such" in json.loads(rollbox("no-such", "--json", status=125).stdout)["error"]["message"]
    assert "check" in json.loads(rollbox("policy", "--json", status=125).stdout)["error"]["message"]


@pytest.mark.parametrize(
    "words",
    [
        "ps",
        "inspect x",
        "kill x y",
        "rm x",
        "pause x",
        "resume x",
        "hibernate x",
        "wake x",
        "reset x y",
        "export x y",
        "engine status",
        "engine stop",
        "exec x true",
        "tree x",
    ],
)
def test_no_engine(words, tmp_path):
    told = json.loads(
        rollbox(
            *words.split()[: 1 + words.startswith("engine")],
            "--json",
            *words.split()[1 + words.startswith("engine") :],
            status=125,
            ROLLBOX_SOCKET=str(tmp_path / "none"),
        ).stdout
    )
    assert (
        told["error"]["code"] == "engine_lost"
        and told["error"]["stage"] == "connect"
        and "no engine serves" in told["error"]["message"]
    )


def test_answers_are_objects(tmp_path):
    assert set(json.loads(rollbox("version", "--json", status=0).stdout)) == {"version"}
    plan = json.loads(rollbox("policy", "plan", "--json", status=0).stdout)["plan"]
    assert plan == rollbox("policy", "plan", status=0).stdout.splitlines()
    with Shared(str(tmp_path / "socket")) as shared:
        def told(*words):
            return json.loads(
                rollbox(
                    *words,
                    "--json",
                    status=0,
                    ROLLBOX_SOCKET=shared.socket,
                    ROLLBOX_STORE=str(tmp_path / "store"),
                ).stdout
            )

        assert told("engine", "status")["pid"] == shared.process.pid
        assert told("create", "--name", "x") == {"name": "x"}
        assert told("inspect", "x")["name"] == "x"
        for command in ("pause", "resume", "hibernate", "wake"):
            assert told(command, "x") == {}, command
        assert told("export", "x", str(tmp_path / "file")) == {}
        assert told("rm", "x") == {}
        gone = rollbox("rm", "--json", "x", "y", status=125, ROLLBOX_SOCKET=shared.socket)
        assert json.loads(gone.stdout)["error"]["code"] == "not_found" and len(gone.stderr.splitlines()) == 2
        assert told("engine", "stop") == {}


def test_paths_need_not_be_utf8(tmp_path):
    odd = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(odd)
    os.symlink(odd, tmp_path / "link")
    words = ["policy", "plan", "--readable", str(tmp_path / "link")]
    plain = (
        subprocess.run([BUILD / "rollbox", *words], capture_output=True, check=True)
        .stdout.decode(errors="replace")
        .splitlines()
    )
    assert any(f"{tmp_path}/\\xff" in line for line in plain)
    assert json.loads(rollbox(*words, "--json", status=0).stdout)["plan"] == plain
    started = subprocess.run(
        [BUILD / "rollbox", "engine", "start", "--background", "--json", "--socket", odd + b"/s"],
        capture_output=True,
        check=True,
    )
    try:
        told = json.loads(started.stdout)
        assert told["pid"] > 1 and told["socket"] == str(tmp_path / "\ufffd" / "s")
    finally:
        subprocess.run([BUILD / "rollbox", "engine", "stop", "--socket", odd + b"/s"], check=True)


def test_options_after_names_of_templates(tmp_path):
    with Shared(str(tmp_path / "socket")) as shared:
        gone = rollbox("template", "rm", "x", "y", "--json", status=125, ROLLBOX_SOCKET=shared.socket)
        assert "template x" in json.loads(gone.stdout)["error"]["message"] and len(gone.stderr.splitlines()) == 2
