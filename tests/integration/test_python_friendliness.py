# SPDX-License-Identifier: Apache-2.0
"""The parts of the package that people see: reprs, signatures, suggestions for wrong names, its log."""

import inspect
import logging
import os
import pickle
import signal
from pathlib import Path

import pytest

import rollbox
from rollbox import (
    AsyncSandbox,
    Engine,
    EngineLost,
    InvalidArgument,
    Policy,
    PolicyInvalid,
    Sandbox,
    WorkSandbox,
    run_many,
)


def test_result_repr_is_short_and_has_the_outcome():
    result = Sandbox().run("echo out; echo err >&2; exit 3", text=True)
    assert repr(result) == f"<Result exit 3, stdout='out\\n', stderr='err\\n', {result.wall_ms:.1f} ms>"
    long = Sandbox().run(["python3", "-c", "print('x' * 100000 + 'the end')"])
    assert len(repr(long)) < 300 and "the end" in repr(long) and repr(long).startswith("<Result exit 0, stdout=...b'x")
    failed, = run_many([{"id": "a", "argv": ["/no/such"]}])
    assert repr(failed).startswith("<Result error, id='a', error=command_not_found: ")
    with Sandbox() as box, box.shell() as shell:
        assert repr(shell.run("exit 2")).startswith("<ShellResult exit 2, ended, ")
    assert pickle.loads(pickle.dumps(result)) == result


@pytest.mark.parametrize(
    "cls, first",
    [
        (Sandbox, "policy"),
        (AsyncSandbox, "policy"),
        (Policy, "fs_readable"),
        (WorkSandbox, "policy"),
    ],
)
def test_classes_show_their_signature(cls, first):
    names = list(inspect.signature(cls).parameters)
    assert names[0] == first and "options" not in names or cls is WorkSandbox
    if cls in (Sandbox, AsyncSandbox):
        assert {"engine", "name", "hibernate_after", "record", "work_fn", "init_fn", "python"} <= set(names)


@pytest.mark.parametrize("call, words", [
    (lambda: Policy(max_mem="1G"), "did you mean 'max_memory'?"),
    (lambda: Sandbox(nme="x"), "did you mean 'name'?"),
    (lambda: AsyncSandbox(hibernate_aftr=1), "did you mean 'hibernate_after'?"),
    (lambda: Sandbox(max_memory="1G"), "key of the policy: Sandbox(Policy(max_memory=...))"),
])
def test_wrong_keyword_names_the_right_one(call, words):
    with pytest.raises(TypeError) as caught:
        call()
    assert words in str(caught.value)


def test_wrong_policy_key_names_the_right_one():
    for call in (lambda: Sandbox({"max_mem": "1G"}), lambda: Policy().replace(max_mem="1G")):
        with pytest.raises(InvalidArgument, match="no key 'max_mem'; did you mean 'max_memory'"):
            call()
    with pytest.raises(AttributeError, match="did you mean 'timeout'"):
        Policy().time_out


@pytest.mark.parametrize(
    "wrong, right",
    [
        ("execute", "exec"),
        ("kill", "close"),
        ("checkpoint", "snapshot"),
        ("writefile", "write_file"),
        ("run_cod", "run_code"),
    ],
)
def test_wrong_method_names_the_right_one(wrong, right):
    for box in (Sandbox(), AsyncSandbox()):
        with pytest.raises(AttributeError, match=f"did you mean '{right}'"):
            getattr(box, wrong)
        assert not hasattr(box, "zzzzz")


def test_problems_of_keywords_have_no_line_numbers_and_those_of_a_text_have():
    with pytest.raises(PolicyInvalid) as caught:
        Policy(max_memory="x", net="foo").check()
    assert "line" not in str(caught.value) and "max_memory: " in str(caught.value) and "net: " in str(caught.value)
    with pytest.raises(PolicyInvalid) as caught:
        Sandbox(Policy(net="foo")).run("true")
    assert str(caught.value).startswith("net: ")
    with pytest.raises(PolicyInvalid, match="line 2: net: "):
        Policy.from_json('{\n"net": "foo"}')


def test_dir_has_public_names_alone():
    assert set(rollbox.__all__) <= set(dir(rollbox))
    assert all(name in rollbox.__all__ or name.startswith("__") for name in dir(rollbox))


def test_lost_engine_is_logged_with_a_hint(caplog):
    caplog.set_level(logging.DEBUG, "rollbox")
    with Engine() as engine:
        box = Sandbox(engine=engine)
        with box:
            with engine.connection() as connection:
                pid = connection.pid
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineLost) as caught:
                box.exec(["sleep", "1000"])
                box.exec(["true"])
        assert "open a new one" not in str(caught.value)
        assert Sandbox(engine=engine).run(["true"]).ok, "the next call has another engine"
    levels = {record.levelno for record in caplog.records if str(pid) in record.getMessage()}
    assert levels == {logging.DEBUG, logging.WARNING}


def test_tree_is_drawn_as_by_the_command_line():
    with Sandbox() as box:
        box.write_file("/tmp/a", b"x" * 3000)
        box.snapshot("base")
        drawn = str(box.tree())
        assert ' "base"' in drawn and " file" in drawn and "KiB" not in drawn and "K, " in drawn
