# SPDX-License-Identifier: Apache-2.0
"""The temporary files of commits beside a directory go away without another commit there, with any
process killed. (rollbox-store and the engine together: test_killed_at_faults.py.)"""

import os
import signal

import pytest
from harness import children, until
from rollbox import Policy, RollboxError, Sandbox
from stores import FAULTS, engine, failing, Shared, store  # noqa: F401
from killer import frozen, Killer


@pytest.fixture
def work(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "a").write_text("old\n")
    return work


def left(work):
    return [name for name in os.listdir(work.parent) if name.startswith(".rollbox-commit-")]


def changed(work, engine, text):  # noqa: F811
    box = Sandbox(Policy(fs_writable=[str(work)]), engine=engine)
    box.exec(["sh", "-c", f"echo {text} > {work}/a"], check=True)
    return box


# As the engine has it keep the old directory, it comes to no removing.
@pytest.mark.parametrize(
    "fault",
    [row for row in FAULTS if row["command"] == "commit" and row["name"] != "commit_removing"],
    ids=lambda row: row["name"],
)
def test_leftovers_of_a_killed_store_job_are_swept(fault, failing, engine, work):  # noqa: F811
    with changed(work, engine, "new") as box:
        failing.write_text(f"export ROLLBOX_FAULT={fault['name']}\n")
        with pytest.raises(RollboxError, match="rollbox-store was killed"):
            box.commit()
        until(lambda: not left(work))
        assert (work / "a").read_text() == ("new\n" if fault["done"] else "old\n")


def test_leftovers_of_a_killed_engine_with_a_session_on_them_are_swept(store, work):  # noqa: F811
    with Shared(work.parent / "socket") as shared:
        first, second = changed(work, shared.engine, "first"), changed(work, shared.engine, "second")
        first.commit()
        assert len(left(work)) == 1 and second.exec(["cat", f"{work}/a"]).stdout == b"second\n"
        shared.end(signal.SIGKILL)
        until(lambda: not left(work))
        assert (work / "a").read_text() == "first\n"


def who_sees_the_next_closer(engine):
    """A killer that is there before the engine's next fork for what is slow to close, which lives
    for a while and is used again."""
    while True:
        until(lambda: not children(engine, "rollbox-close"))
        killer = Killer(engine, "+", 0)
        if not children(engine, "rollbox-close") or frozen(engine).keys() - {engine}:
            return killer
        with killer:
            pass


def test_leftovers_beside_a_fork_are_swept(engine, work):  # noqa: F811
    """A fork of the engine has the lock on what was replaced until it comes to closing what it is not to have."""
    with changed(work, engine, "new") as box:
        box.commit()
        with who_sees_the_next_closer(engine.pid):
            box.close()
            until(lambda: frozen(engine.pid).keys() - {engine.pid})
            until(lambda: not left(work))
