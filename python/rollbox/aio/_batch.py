# SPDX-License-Identifier: Apache-2.0
"""Batches for asyncio: as many workers as jobs may run at a time, over aio._runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Literal, Optional, Union, overload

from .._batch import BatchRecorder, BatchTask, Job, tasks_of_jobs
from .._core.errors import RollboxError
from .._core.options import PolicyLike, as_policy
from .._core.record import Record, Target
from .._core.result import Result
from .._core.schedule import OrderedQueue, ProgressBar, check_concurrency
from .._engine import Engine, default_engine
from . import _runs


@overload
def iter_many_async(
    jobs: Iterable[Job],
    concurrency: Optional[int] = ...,
    policy: PolicyLike = ...,
    ordered: bool = ...,
    progress: Optional[bool] = ...,
    retries: int = ...,
    *,
    text: Literal[False] = ...,
    engine: Optional[Engine] = ...,
    record: Union[Record, Target, None] = ...,
) -> AsyncIterator[Result[bytes]]: ...


@overload
def iter_many_async(
    jobs: Iterable[Job],
    concurrency: Optional[int] = ...,
    policy: PolicyLike = ...,
    ordered: bool = ...,
    progress: Optional[bool] = ...,
    retries: int = ...,
    *,
    text: Literal[True],
    engine: Optional[Engine] = ...,
    record: Union[Record, Target, None] = ...,
) -> AsyncIterator[Result[str]]: ...


@overload
def iter_many_async(
    jobs: Iterable[Job],
    concurrency: Optional[int] = ...,
    policy: PolicyLike = ...,
    ordered: bool = ...,
    progress: Optional[bool] = ...,
    retries: int = ...,
    *,
    text: bool,
    engine: Optional[Engine] = ...,
    record: Union[Record, Target, None] = ...,
) -> AsyncIterator[Result[Any]]: ...


async def iter_many_async(
    jobs: Iterable[Job],
    concurrency: Optional[int] = None,
    policy: PolicyLike = None,
    ordered: bool = False,
    progress: Optional[bool] = None,
    retries: int = 2,
    *,
    text: bool = False,
    engine: Optional[Engine] = None,
    record: Union[Record, Target, None] = None,
) -> AsyncIterator[Result[Any]]:
    """As iter_many, to be used in `async for`."""
    base = as_policy(policy)
    width = check_concurrency(concurrency)
    source = tasks_of_jobs(jobs, base)
    loop = asyncio.get_running_loop()
    if engine is None:
        engine = await loop.run_in_executor(None, default_engine)
    await loop.run_in_executor(None, engine.warm, base.to_json())
    recorder = None if record is None else BatchRecorder(engine, width, record, retries, text)
    queue: asyncio.Queue[Union[tuple[BatchTask, Result[Any]], BaseException, None]] = asyncio.Queue(
        width
    )

    async def worker(engine: Engine) -> None:
        try:
            for task in source:
                if recorder is not None:
                    await queue.put(await loop.run_in_executor(recorder.pool, recorder.run, task))
                else:
                    await queue.put((task, await _attempt(engine, task, retries, text)))
            await queue.put(None)
        except Exception as error:  # the jobs' own iterator failed: the reader raises it
            await queue.put(error)

    workers = [asyncio.ensure_future(worker(engine)) for _ in range(width)]
    order = OrderedQueue(ordered)
    bar = ProgressBar(progress, jobs)
    at_work = width
    try:
        while at_work:
            item = await queue.get()
            if item is None:
                at_work -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                bar.step(item[1])
                for result in order.put(item[0].index, item[1]):
                    yield result
    finally:
        for one in workers:
            one.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        if recorder is not None:
            await loop.run_in_executor(None, recorder.close)
        bar.close()


async def _attempt(engine: Engine, task: BatchTask, retries: int, text: bool) -> Result[Any]:
    while True:
        try:
            if task.error is not None:
                return task.error_row(task.error, text)
            assert task.request is not None
            result = await _runs.run(engine, task.policy, task.request, text, task.id)
        except RollboxError as error:
            result = task.error_row(error, text)
        delay = task.next_delay(result.error, retries)
        if delay is None:
            return result
        await asyncio.sleep(delay)


@overload
async def run_many_async(
    jobs: Iterable[Job],
    concurrency: Optional[int] = ...,
    policy: PolicyLike = ...,
    ordered: bool = ...,
    progress: Optional[bool] = ...,
    retries: int = ...,
    *,
    text: Literal[False] = ...,
    engine: Optional[Engine] = ...,
    record: Union[Record, Target, None] = ...,
) -> list[Result[bytes]]: ...


@overload
async def run_many_async(
    jobs: Iterable[Job],
    concurrency: Optional[int] = ...,
    policy: PolicyLike = ...,
    ordered: bool = ...,
    progress: Optional[bool] = ...,
    retries: int = ...,
    *,
    text: Literal[True],
    engine: Optional[Engine] = ...,
    record: Union[Record, Target, None] = ...,
) -> list[Result[str]]: ...


@overload
async def run_many_async(
    jobs: Iterable[Job],
    concurrency: Optional[int] = ...,
    policy: PolicyLike = ...,
    ordered: bool = ...,
    progress: Optional[bool] = ...,
    retries: int = ...,
    *,
    text: bool,
    engine: Optional[Engine] = ...,
    record: Union[Record, Target, None] = ...,
) -> list[Result[Any]]: ...


async def run_many_async(
    jobs: Iterable[Job],
    concurrency: Optional[int] = None,
    policy: PolicyLike = None,
    ordered: bool = True,
    progress: Optional[bool] = None,
    retries: int = 2,
    *,
    text: bool = False,
    engine: Optional[Engine] = None,
    record: Union[Record, Target, None] = None,
) -> list[Result[Any]]:
    """As run_many, without blocking the loop."""
    return [
        result
        async for result in iter_many_async(
            jobs,
            concurrency,
            policy,
            ordered,
            progress,
            retries,
            text=text,
            engine=engine,
            record=record,
        )
    ]
