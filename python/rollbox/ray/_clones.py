# SPDX-License-Identifier: Apache-2.0
"""Clones over a cluster: one interpreter a node has run init_fn, and its clones run work_fn."""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Callable, Optional

from .._clone_result import Clone, WorkFailed
from .._clones import MAX_VALUE, CloneWork
from .._core.errors import InvalidArgument, RollboxError
from .._core.request import Timeout, error_result
from .._core.result import Result

_open: weakref.WeakValueDictionary[str, PoolClones] = weakref.WeakValueDictionary()


def clone_of(number: int, found: Any) -> Any:
    """The Clone of a row: an error of rollbox is a Clone that was not run.

    Raises:
        WorkFailed: init_fn failed.
    """
    if isinstance(found, Clone):
        return found
    if isinstance(found, WorkFailed):
        raise found
    row = error_result(found, False, number) if isinstance(found, RollboxError) else found
    return Clone(**{field.name: getattr(row, field.name) for field in fields(Result)})


class PoolClones:
    """A function whose clones run over the nodes of a pool. `Pool.clones` makes it."""

    def __init__(self, pool: Any, work: CloneWork[Any], policy: str, python: str) -> None:
        self.key = f"clones-{uuid.uuid4().hex[:12]}"
        self._pool, self._policy, self._python = pool, policy, python
        self._functions = work.packed()
        self._nodes: dict[str, Any] = {}
        self._lock = threading.Lock()
        _open[self.key] = self

    @staticmethod
    def of(key: str) -> Optional[PoolClones]:
        """The PoolClones of a key."""
        return _open.get(key)

    @staticmethod
    def forget_node(node: Any) -> None:
        """The node's interpreters are gone."""
        for clones in list(_open.values()):
            with clones._lock:
                clones._nodes.pop(node.name, None)

    def begin_on(self, node: Any) -> Optional[tuple[str, bytes, str]]:
        """Policy, functions and program, the first time that clones are sent to a node."""
        with self._lock:
            if self._nodes.get(node.name) is node:
                return None
            self._nodes[node.name] = node
        return self._policy, self._functions, self._python

    def iter_fork(
        self,
        n: int,
        *,
        timeout: Timeout = None,
        seed: Optional[int] = None,
        ordered: bool = False,
        progress: Optional[bool] = None,
        retries: int = 3,
        max_value: int = MAX_VALUE,
    ) -> Iterator[Clone[bytes, Any]]:
        """Runs work_fn in n clones and yields each Clone as it ends; see ClonePool.iter_fork."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InvalidArgument(
                f"n must be a number and at least 1, not {n!r}", stage="arguments"
            )
        options = {"timeout": timeout, "seed": seed, "max_value": max_value, "retries": retries}
        yield from self._pool._iterate_clones(self, n, options, ordered, progress)

    def fork(
        self, n: int = 1, *, reduce: Optional[Callable[[Iterator[Any]], Any]] = None, **options: Any
    ) -> Any:
        """Runs work_fn in n clones, whose numbers are 0 to n - 1.

        Args:
            n: How many clones.
            reduce: A function of the iterator of Clones, whose result is returned instead.
            options: As for ClonePool.fork.

        Returns:
            A list of Clones, in the order of their numbers.

        Raises:
            WorkFailed: init_fn failed.
            RollboxError: As for ClonePool.fork.
        """
        clones = self.iter_fork(n, ordered=options.pop("ordered", True), **options)
        return list(clones) if reduce is None else reduce(clones)

    def close(self) -> None:
        """Ends the interpreters."""
        with self._lock:
            nodes, self._nodes = list(self._nodes.values()), {}
        for node in nodes:
            node.host.call("close_clones", self.key)

    def __enter__(self) -> PoolClones:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
