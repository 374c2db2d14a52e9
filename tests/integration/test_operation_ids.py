# SPDX-License-Identifier: Apache-2.0
"""Ids of operations: a retry gets the first one's answer, and another request is refused."""

import pytest
from cli_sessions import box, shared, shell  # noqa: F401


def used_for_another(done):
    """Whether the command was refused, because its id is another one's."""
    return done.returncode == 125 and b"was used for another request" in done.stderr


@pytest.mark.parametrize(
    "other",
    (
        ("echo", "b"),
        ("--timeout", "5", "echo", "a"),
        ("--cwd", "/", "echo", "a"),
        ("--env", "A=1", "echo", "a"),
        ("--output-limit", "100", "echo", "a"),
    ),
    ids=("argv", "timeout", "cwd", "env", "output"),
)
def test_id_of_another_command_is_refused(shared, box, other):  # noqa: F811
    words = [word for word in other if word not in ("echo", "a", "b")]
    assert shared.ok("exec", "--id", "one", box, "echo", "a") == "a"
    assert shared.ok("exec", "--id", "one", box, "echo", "a") == "a"
    assert used_for_another(shared("exec", "--id", "one", *words, box, *other[-2:]))
    assert shared.ok("exec", "--id", "one", box, "echo", "a") == "a"


def test_id_of_a_running_command_is_refused_to_another_request(shared, box):  # noqa: F811
    shared.ok("exec", "-d", "--id", "one", box, "sleep", "1000")
    assert used_for_another(shared("exec", "--id", "one", box, "sleep", "1"))
    shared.ok("kill", box, "one")
    assert shared("exec", "--id", "one", box, "sleep", "1000").returncode == 137


def test_two_sandboxes_may_use_the_same_id(shared, box):  # noqa: F811
    other = shared.ok("create")
    try:
        assert shared.ok("exec", "--id", "one", box, "echo", "a") == "a"
        assert shared.ok("exec", "--id", "one", other, "echo", "b") == "b"
    finally:
        shared.ok("rm", other)
