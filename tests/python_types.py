# SPDX-License-Identifier: Apache-2.0
"""What type checkers take the public names for. Never run: mypy reads it (check_python_lint.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollbox import (
    AsyncSandbox,
    Clone,
    ClonePool,
    Result,
    Sandbox,
    Snapshot,
    Stream,
    run_many,
)
from typing_extensions import assert_type


def number(index: int) -> int:
    return index


def runs(box: Sandbox) -> None:
    assert_type(box.run(["true"]), Result[bytes])
    assert_type(box.run("true", text=True), Result[str])
    assert_type(box.exec("true", stream=True), Stream)
    assert_type(box.fork(2), list[Sandbox])
    assert_type(box.snapshot(), Snapshot)
    assert_type(box.clones(number), ClonePool[int])
    assert_type(run_many([["true"]], text=True), list[Result[str]])
    with Sandbox() as session:
        assert_type(session, Sandbox)


def clones() -> None:
    box = Sandbox(work_fn=number)
    assert_type(box, Sandbox[int])
    assert_type(box.fork(2), list[Clone[bytes, int]])
    assert_type(box.fork(2, reduce=lambda found: sum(one.get() for one in found)), int)
    assert_type(box.iter_fork(2), Iterator[Clone[bytes, int]])
    assert_type(Sandbox().clones(number).fork(2), list[Clone[bytes, int]])


async def awaited(box: AsyncSandbox) -> None:
    assert_type(await box.run(["true"]), Result[bytes])
    assert_type(await box.exec("true", text=True), Result[str])
    assert_type(await box.read_file("/tmp/a"), bytes)
    assert_type(await box.processes(), list[dict[str, Any]])
    assert_type(await box.fork(2), list[AsyncSandbox])
    assert_type(await AsyncSandbox(work_fn=number).fork(2), list[Clone[bytes, int]])
    async with AsyncSandbox() as session:
        assert_type(session, AsyncSandbox)
