# SPDX-License-Identifier: Apache-2.0
"""Grading by named outputs: what the graded leaves is a plain file in a fresh root, or a Grade that
has failed with a reason, never an exception."""

import asyncio

import pytest

from rollbox import VERIFIER_CONTROL_FILES, AsyncSandbox, Grade, InvalidArgument, Outcome, Policy, Sandbox

HIDDEN = {"/tmp/t/expected.txt": "4242\n", "/tmp/t/check.sh": "cmp /tmp/w/out.txt /tmp/t/expected.txt && echo PASSED"}
COMMAND = "sh /tmp/t/check.sh"
OUT = "/tmp/w/out.txt"


@pytest.fixture
def box():
    with Sandbox(Policy(max_disk="64M")) as box:
        box.exec("mkdir -p /tmp/w", check=True)
        box.snapshot("task")
        yield box


NOT_PLAIN = {
    "a link to the answer": f"ln -s /tmp/t/expected.txt {OUT}",
    "a directory that is a link": "rm -r /tmp/w; ln -s /tmp/t /tmp/w",
    "a FIFO": f"mkfifo {OUT}",
    "a socket": f"python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"{OUT}\")'",
    "a closed file": f"echo 4242 >{OUT}; chmod 000 {OUT}",
    "a closed directory": f"echo 4242 >{OUT}; chmod 000 /tmp/w",
    "sparse and enormous": f"truncate -s 7E {OUT}",
}


@pytest.mark.parametrize("attack", NOT_PLAIN.values(), ids=NOT_PLAIN.keys())
def test_special_file_as_output_fails_with_a_reason(box, attack):
    box.exec(attack, check=True)
    grade = box.grade(HIDDEN, COMMAND, outputs=[OUT], timeout=30)
    assert isinstance(grade, Grade) and not grade.ok and grade.reason and grade.outcome is Outcome.EXIT
    assert "reason=" in repr(grade) and grade.to_dict()["reason"] == grade.reason


INSIDE = {
    "a link": f"ln -s /tmp/t/expected.txt {OUT}",
    "a FIFO": f"mkfifo {OUT}",
    "names that are no text": "touch \"$(printf '/tmp/w/\\377')\"",
    "a deep tree": "cd /tmp/w; for i in $(seq 200); do mkdir d; cd d; done",
    "sparse and enormous": "truncate -s 7E /tmp/w/big",
    "a closed tree": "mkdir -p /tmp/w/a/b; chmod 000 /tmp/w/a",
    "set-id": "cp /bin/true /tmp/w/t; chmod 6755 /tmp/w/t",
}


@pytest.mark.parametrize("attack", INSIDE.values(), ids=INSIDE.keys())
def test_directory_with_special_files_never_raises(box, attack):
    box.exec(attack, check=True)
    for outputs in (["/tmp/w"], None):
        grade = box.grade(HIDDEN, COMMAND, outputs=outputs, timeout=30)
        assert not grade.ok and (grade.reason or grade.exit_code), grade


def test_honest_output_passes_in_asyncio_too(box):
    box.exec(f"echo 4242 >{OUT}", check=True)
    grade = box.grade(HIDDEN, COMMAND, outputs=[OUT])
    assert grade.ok and grade.reason is None and not grade.dropped and repr(grade).startswith("<Grade passed (exit 0)")

    async def judged():
        async with AsyncSandbox() as other:
            await other.exec(f"mkdir -p /tmp/w; ln -s /tmp/t/expected.txt {OUT}")
            return await other.grade(HIDDEN, COMMAND, outputs=[OUT])
    assert asyncio.run(judged()).reason


def test_reward_from_a_leftover_process_is_not_collected(box):
    verifier = "mkdir /tmp/v; (while :; do echo 1 >/tmp/v/reward; done) >/dev/null 2>&1 & sleep 0.1; echo 0 >/tmp/v/reward"
    grade = box.grade({}, verifier, outputs=[OUT], collect=["/tmp/v/reward"])
    assert not grade.ok and grade.files == {} and "running" in grade.reason


@pytest.mark.parametrize(
    "planted",
    [
        "tests/__init__.py",
        "__init__.py",
        "sitecustomize/__init__.py",
        "SiteCustomize.PYC",
        "GNUmakefile",
        "package.json",
        "setup.py",
        "pytest.py",
        "json.py",
        "tests/unittest.py",
        "tests/test_evil.py",
        ".git/config",
        "bare/config",
        "x/__pycache__/a.pyc",
    ],
)
def test_verifier_control_files_are_not_taken_from_a_directory(box, planted):
    box.exec(
        f"mkdir -p /tmp/w/bare/objects /tmp/w/bare/refs; touch /tmp/w/bare/HEAD; mkdir -p $(dirname /tmp/w/{planted}); echo evil >/tmp/w/{planted}",
        check=True,
    )
    for outputs in (["/tmp/w"], None):
        grade = box.grade(
            {"/tmp/w/tests/hidden.py": ""},
            f"test -e /tmp/w/bare/HEAD && ! test -e /tmp/w/{planted}",
            outputs=outputs,
        )
        assert grade.ok, grade
        assert any(f"/tmp/w/{planted}".startswith(path) for path in (*grade.reset, *grade.dropped))
    if "tests" not in planted:
        assert box.grade({}, f"test -e /tmp/w/{planted}", outputs=[f"/tmp/w/{planted}"]).ok, (
            "a file that is named is taken"
        )
    assert "conftest.py" in VERIFIER_CONTROL_FILES


def test_verifier_has_a_root_of_its_own(box):
    box.exec(f"echo 4242 >{OUT}; echo x >/tmp/w/other", check=True)
    assert box.grade(
        HIDDEN,
        COMMAND + " && test $(ls /tmp/w | wc -l) = 1",
        outputs=[OUT],
        verifier=Policy(max_memory="256M"),
    ).ok
    for bad in ({"outputs": None}, {"outputs": [OUT], "base": "task"}, {"outputs": [OUT], "unsafe_in_place": True}):
        with pytest.raises(InvalidArgument):
            box.grade(HIDDEN, COMMAND, verifier=Policy(), **bad)


@pytest.mark.parametrize("path", ["../etc/passwd", "/proc/self/environ", "/dev/null", "/sys/x", "/tmp/../etc"])
def test_outputs_that_are_no_files_of_the_sandbox_are_refused(box, path):
    with pytest.raises(InvalidArgument):
        box.grade({}, "true", outputs=[path])


def test_grading_in_place_is_asked_for_and_warns():
    with Sandbox() as box:
        box.exec("echo x >/tmp/x; ln -s x /tmp/l", check=True)
        assert box.grade({}, "test -L /tmp/l", unsafe_in_place=True).ok
        with pytest.raises(InvalidArgument):
            box.grade({}, "true", outputs=["/tmp/x"], unsafe_in_place=True)
