# SPDX-License-Identifier: Apache-2.0
"""AsyncWorkSandbox: WorkSandbox for asyncio. A fork's loop has a thread while it goes on; a cancelled task stops that, and with it the clones."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, AsyncIterator, Callable, Generic, Iterator, List, Optional, TypeVar, overload

from ._async_sandbox import AsyncSandbox, _in_thread
from ._base import PolicyLike
from ._clones import VALUE_MOST, Clone, WorkSandbox, _Loop
from ._request import Timeout

_R = TypeVar("_R")
_T = TypeVar("_T")
_Reduced = TypeVar("_Reduced")


async def _stoppable(loop: _Loop, function: Callable[..., _T], *arguments: Any) -> _T:
    future = asyncio.ensure_future(_in_thread(function, *arguments))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        loop.stop()
        with contextlib.suppress(Exception):
            await future
        raise


class AsyncWorkSandbox(AsyncSandbox, Generic[_R]):
    """WorkSandbox for asyncio: what AsyncSandbox(policy, init_fn=..., work_fn=...) makes."""

    _box: WorkSandbox[_R]

    def __init__(self, policy: PolicyLike = None, *, work_fn: Callable[..., _R], init_fn: Optional[Callable[[], Any]] = None, python: str = "python3", **options: Any) -> None:
        super().__init__(policy, **options)
        self._box = WorkSandbox(self._policy, work_fn=work_fn, init_fn=init_fn, python=python, **options)

    def __reduce__(self) -> Any:
        super().__reduce__()
        return _rebuild, (self._box,)

    async def __aenter__(self) -> "AsyncWorkSandbox[_R]":
        await super().__aenter__()
        return self

    async def warm(self) -> None:
        """As WorkSandbox.warm. Cancelling the task does not end init_fn; closing the sandbox does."""
        await _in_thread(self._box.warm)

    async def iter_fork(self, n: int, *, timeout: Timeout = None, concurrency: Optional[int] = None, seed: Optional[int] = None, ordered: bool = False, progress: Optional[bool] = None, retries: int = 2,
                        max_value: int = VALUE_MOST) -> AsyncIterator[Clone[bytes, _R]]:
        """As WorkSandbox.iter_fork: `async for clone in box.iter_fork(n)`."""
        loop, clones = await _in_thread(self._box._forking, n, timeout, concurrency, seed, ordered, progress, retries, max_value)
        try:
            while True:
                clone: Optional[Clone[bytes, _R]] = await _stoppable(loop, next, clones, None)
                if clone is None:
                    break
                yield clone
        finally:
            await _in_thread(clones.close)

    @overload  # type: ignore[override]
    async def fork(self, n: int = ..., *, timeout: Timeout = ..., concurrency: Optional[int] = ..., seed: Optional[int] = ..., ordered: bool = ..., progress: Optional[bool] = ...,
                   retries: int = ..., max_value: int = ..., reduce: None = ...) -> List[Clone[bytes, _R]]: ...

    @overload
    async def fork(self, n: int = ..., *, timeout: Timeout = ..., concurrency: Optional[int] = ..., seed: Optional[int] = ..., ordered: bool = ..., progress: Optional[bool] = ...,
                   retries: int = ..., max_value: int = ..., reduce: Callable[[Iterator[Clone[bytes, _R]]], _Reduced]) -> _Reduced: ...

    async def fork(self, n: int = 1, *, timeout: Timeout = None, concurrency: Optional[int] = None, seed: Optional[int] = None, ordered: bool = True, progress: Optional[bool] = None, retries: int = 2,
                   max_value: int = VALUE_MOST, reduce: Optional[Callable[[Iterator[Clone[bytes, _R]]], Any]] = None) -> Any:
        """As WorkSandbox.fork. Cancelling the task kills the clones. reduce is called in another thread."""
        loop, clones = await _in_thread(self._box._forking, n, timeout, concurrency, seed, ordered, progress, retries, max_value)

        def gather() -> Any:
            with contextlib.closing(clones):
                return list(clones) if reduce is None else reduce(clones)

        return await _stoppable(loop, gather)


def _rebuild(box: WorkSandbox[_R]) -> AsyncWorkSandbox[_R]:
    made: AsyncWorkSandbox[_R] = AsyncWorkSandbox(box.policy, work_fn=box._work_fn, init_fn=box._init_fn, python=box._python)
    made._box = box
    made._plan = box._plan
    return made
