# SPDX-License-Identifier: Apache-2.0
"""Clone: how one clone ended. WorkFailed: an exception of the functions of clones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import (
    Any,
    AnyStr,
    Generic,
    Optional,
    TypeVar,
    cast,
)

from ._core.result import Outcome, Result, RunFailed
from ._core.shown import shown

_R = TypeVar("_R")


class WorkFailed(Exception):
    """init_fn or work_fn raised an exception, or did not return.

    It is not a RollboxError: the functions did it. All texts are the guest's.

    Attributes:
        type_name: "ValueError", "mymodule.MyError"; "" if there was no exception.
        message: The exception's text.
        traceback: The traceback's text.
        id: The clone's number; None: init_fn.
    """

    def __init__(
        self, type_name: str, message: str, traceback: str = "", id: Optional[int] = None
    ) -> None:
        super().__init__(type_name, message, traceback, id)
        self.type_name, self.message, self.traceback, self.id = type_name, message, traceback, id

    def __str__(self) -> str:
        who = "init_fn" if self.id is None else f"work_fn of clone {self.id}"
        said = ": ".join(part for part in (self.type_name, self.message) if part)
        return shown(
            f"{who}: {said}" + (f"\n\n{self.traceback.rstrip()}" if self.traceback else "")
        )


@dataclass(frozen=True)
class Clone(Result[AnyStr], Generic[AnyStr, _R]):
    """How one clone ended: its interpreter's Result, and the value of its work_fn.

    `id` is the clone's number; `stdout` and `stderr` are what it wrote itself. If work_fn neither
    returned nor raised, `outcome` tells why: the interpreter was killed, ran out of time or memory,
    or ended; or "error": rollbox could not run it, which says nothing about work_fn.

    Attributes:
        value: What work_fn returned.
        returned: Whether work_fn returned.
        raised: The WorkFailed of its exception, or None.
    """

    value: Optional[_R] = None
    returned: bool = False
    raised: Optional[WorkFailed] = None

    @property
    def ok(self) -> bool:
        """Whether work_fn returned and the interpreter ended as it should."""
        return self.returned and super().ok

    def get(self) -> _R:
        """Returns the value.

        Raises:
            RollboxError: rollbox could not run the clone (`error`).
            WorkFailed: work_fn raised an exception (`raised`).
            RunFailed: The interpreter ended otherwise.
        """
        if self.ok:
            return cast(_R, self.value)  # None only if work_fn returned it
        if self.error is not None:
            raise self.error
        if self.raised is not None:
            raise self.raised
        if self.outcome is Outcome.EXIT and not self.exit_code:
            raise WorkFailed(
                "", "the interpreter ended with status 0 before work_fn returned", id=_number(self)
            )
        raise RunFailed(self)

    def check(self) -> Clone[AnyStr, _R]:
        """Returns the Clone itself if it is `ok`; raises as `get`."""
        self.get()
        return self


def _number(clone: Clone[Any, Any]) -> Optional[int]:
    return clone.id if isinstance(clone.id, int) else None
