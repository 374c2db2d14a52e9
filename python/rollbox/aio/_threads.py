# SPDX-License-Identifier: Apache-2.0
"""Threads for calls that block.

A call that the engine answers within a millisecond goes to a few threads of this package. A
transfer of files, which takes as long as its files, goes to the loop's own threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional, TypeVar

_T = TypeVar("_T")
_THREADS = 32

_executor: Optional[ThreadPoolExecutor] = None


def _after_fork() -> None:
    global _executor
    _executor = None


os.register_at_fork(after_in_child=_after_fork)


async def run_in_thread(function: Callable[..., _T], *arguments: Any, **keywords: Any) -> _T:
    """Calls a function in one of the package's threads."""
    global _executor
    if _executor is None:
        _executor = ThreadPoolExecutor(_THREADS, "rollbox")
    call = functools.partial(contextvars.copy_context().run, function, *arguments, **keywords)
    return await asyncio.get_running_loop().run_in_executor(_executor, call)


async def run_in_loop_thread(function: Callable[..., _T], *arguments: Any, **keywords: Any) -> _T:
    """Calls a function in one of the loop's own threads."""
    call = functools.partial(contextvars.copy_context().run, function, *arguments, **keywords)
    return await asyncio.get_running_loop().run_in_executor(None, call)
