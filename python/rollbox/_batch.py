# SPDX-License-Identifier: Apache-2.0
"""Batches: many jobs, some at a time, from one thread.

A job becomes a BatchTask once, when its turn comes: a policy's text and a Request, or the error
that kept it from becoming one. The result of a task is a row. The blocking batch polls the engine's
descriptor and dispatches by itself; a socket pair reports ends that other threads
dispatched. The asyncio batch (aio/_batch.py) is a number of workers. Both share the retry rule and
the rest of BatchTask.

A batch that is recorded has a number of threads, each with a session of one command at a time,
because trajectories belong to sessions.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import (
    Any,
    Literal,
    Optional,
    Union,
    overload,
)

from ._core.connection import Connection, PendingRun
from ._core.errors import Cancelled, InvalidArgument, IOFailed, RollboxError
from ._core.options import PolicyLike, as_policy
from ._core.policy import Policy
from ._core.record import Record, Target
from ._core.request import Argument, Request, Turn, error_result
from ._core.result import Result
from ._core.schedule import OrderedQueue, ProgressBar, check_concurrency, retry_delay
from ._engine import Engine, default_engine
from ._sandbox import Sandbox

Job = Union[Mapping[str, Any], Sequence[Argument]]

_KEYS = frozenset(
    (
        *("id", "argv", "code", "language", "stdin", "files", "cwd", "env", "timeout_s", "policy"),
        *("priority", "queue_timeout_s"),
    )
)

LANGUAGES: dict[str, tuple[str, list[str]]] = {
    "python": ("main.py", ["python3", "main.py"]),
    "bash": ("main.sh", ["bash", "main.sh"]),
    "sh": ("main.sh", ["sh", "main.sh"]),
    "node": ("main.js", ["node", "main.js"]),
    "javascript": ("main.js", ["node", "main.js"]),
    "perl": ("main.pl", ["perl", "main.pl"]),
    "ruby": ("main.rb", ["ruby", "main.rb"]),
    "c": ("main.c", ["sh", "-c", "cc -O2 -o main main.c -lm && exec ./main"]),
    "cpp": ("main.cpp", ["sh", "-c", "c++ -O2 -o main main.cpp && exec ./main"]),
}
"""{language: (the file for a job's code, the argv that runs it)}; `rollbox batch` has the same."""

_log = logging.getLogger("rollbox")


def _invalid(message: str) -> InvalidArgument:
    return InvalidArgument(message, stage="arguments")


class BatchTask:
    """A job of a batch."""

    __slots__ = (
        "index",
        "id",
        "policy",
        "arguments",
        "request",
        "error",
        "attempts",
        "due",
        "text",
    )

    def __init__(self, index: int, job: Job, base: Policy) -> None:
        self.index = index
        self.text = False
        self.id: Any = index
        self.policy = base.to_json()
        self.arguments: dict[str, Any] = {}
        self.request: Optional[Request] = None
        self.error: Optional[RollboxError] = None
        self.attempts = 0
        self.due = 0.0
        try:
            self._compile(job, base)
        except RollboxError as error:
            self.error = error

    def _compile(self, job: Job, base: Policy) -> None:
        if isinstance(job, (str, bytes)):
            raise _bare_text(job)
        if not isinstance(job, Mapping):
            self.arguments = {"argv": job}
            self.request = Request(job)
            return
        id = job.get("id")
        if id is not None:
            if isinstance(id, bool) or not isinstance(id, (str, int)):
                raise _invalid(f"a job's id must be a str or int, not {id!r}")
            self.id = id
        unknown = sorted(str(key) for key in set(job) - _KEYS)
        if unknown:
            raise _invalid(
                f"unknown job key {', '.join(map(repr, unknown))}; the keys are "
                f"{', '.join(sorted(_KEYS))}"
            )
        argv, code, language, files = (
            job.get("argv"),
            job.get("code"),
            job.get("language"),
            job.get("files"),
        )
        if (argv is None) == (code is None):
            raise _invalid(
                "a job has either argv or code" + (", not both" if code is not None else "")
            )
        if code is None:
            if isinstance(argv, (str, bytes)):
                raise _invalid(
                    f"argv must be a list of arguments, not {type(argv).__name__}: the text of a "
                    f'program is "code", with its "language", and a line of shell is '
                    '["sh", "-c", ...]'
                )
            if language is not None:
                raise _invalid("language goes with code, not with argv")
        else:
            if language not in LANGUAGES:
                raise _invalid(f"language must be one of {', '.join(LANGUAGES)}, not {language!r}")
            name, argv = LANGUAGES[language]
            if files is not None and not isinstance(files, Mapping):
                raise _invalid(
                    f"files must be a mapping of paths to contents, not {type(files).__name__}"
                )
            if files and name in files:
                raise _invalid(f"files has a {name}, which is where code goes")
            files = {**(files or {}), name: code}
        overrides = job.get("policy")
        if overrides:
            if not isinstance(overrides, (Policy, Mapping)):
                raise _invalid(
                    f"a job's policy must be a Policy or a mapping of its keys, not {overrides!r}"
                )
            changes = overrides.to_dict() if isinstance(overrides, Policy) else dict(overrides)
            self.policy = base.replace(**changes).to_json()
        assert argv is not None
        self.arguments = {
            "argv": argv,
            "timeout": job.get("timeout_s"),
            "stdin": job.get("stdin"),
            "env": job.get("env"),
            "cwd": job.get("cwd"),
            "files": files,
        }
        turn = Turn(job.get("priority"), job.get("queue_timeout_s"))
        self.request = Request(**self.arguments, is_code=language == "python", turn=turn)

    def next_delay(self, error: Optional[RollboxError], retries: int) -> Optional[float]:
        """The delay in seconds before another attempt; None: this was the last."""
        self.attempts += 1
        delay = retry_delay(error, self.attempts, retries)
        if delay is not None:
            _log.warning(
                "job %r is tried again in %.2f s (%d of %d): %s",
                self.id,
                delay,
                self.attempts,
                retries,
                error,
            )
        return delay

    def error_row(self, error: RollboxError, text: bool) -> Result[Any]:
        """The row of a job that could not be run."""
        return error_result(error, text, self.id)


def _bare_text(job: object) -> InvalidArgument:
    """The error for a job that is bare text.

    A shell and a program would read it differently, and a program that a shell fails on would be
    scored as a wrong answer.
    """
    return _invalid(
        f'a job is not a bare {type(job).__name__}: {{"code": ..., "language": "python"}}, or '
        f"rollbox.code_job(...), is for the text of a program, "
        '["sh", "-c", ...] for a line of shell'
    )


def code_job(code: Union[str, bytes], language: str = "python", **more: Any) -> dict[str, Any]:
    r"""Makes a job of run_many from the text of a program.

    Args:
        code: The program's text.
        language: python, bash, sh, node, javascript, perl, ruby, c or cpp.
        more: The other keys of a job, such as id, stdin and timeout_s.

    Returns:
        The job.

    Example:
        >>> from rollbox import code_job, run_many
        >>> [result.text for result in run_many([code_job("print(6 * 7)")])]
        ['42\n']
    """
    return {"code": code, "language": language, **more}


def tasks_of_jobs(jobs: Iterable[Job], base: Policy) -> Iterator[BatchTask]:
    """The tasks of jobs, as they are needed.

    Bare text as the first job is a caller's mistake, raised before anything has run; later it is
    the row of that job.
    """
    refuse_one_job(jobs)
    for index, job in enumerate(jobs):
        if index == 0:
            refuse_bare_text(job)
        yield BatchTask(index, job, base)


def refuse_one_job(jobs: object) -> None:
    """Raises InvalidArgument for one job where jobs are wanted."""
    if isinstance(jobs, (str, bytes, Mapping)):
        raise _invalid("jobs must be an iterable of jobs, not one job")


def refuse_bare_text(job: object) -> None:
    """Raises InvalidArgument for a job that is bare text."""
    if isinstance(job, (str, bytes)):
        raise _bare_text(job)


class RunningBatch:
    """The runs of a blocking batch that are under way."""

    def __init__(self, engine: Engine, text: bool) -> None:
        self.engine = engine
        self.text = text
        self.running: dict[PendingRun, BatchTask] = {}
        self.ended: deque[PendingRun] = deque()
        self.dispatcher: Optional[int] = None  # the thread that dispatches for this batch
        self.wake_reader, self.wake_writer = socket.socketpair()
        self.wake_reader.setblocking(False)
        self.wake_writer.setblocking(False)

    def start(self, task: BatchTask, text: Optional[bool] = None) -> None:
        assert task.request is not None
        task.text = self.text if text is None else text
        pending = self.engine.start(task.policy, task.request, self._on_end)
        self.running[pending] = task

    def _on_end(self, pending: PendingRun) -> None:
        self.ended.append(pending)
        if self.dispatcher != threading.get_ident():
            # Full: the batch wakes anyway. Closed: nothing waits.
            with contextlib.suppress(OSError):
                self.wake_writer.send(b"\0")

    def wait(self, timeout_s: Optional[float]) -> Iterator[tuple[BatchTask, Result[Any]]]:
        """Waits until a task has ended, up to timeout_s; yields the ended tasks and results."""
        if not self.ended:
            connections: dict[int, Connection] = {
                pending.connection.fd: pending.connection for pending in self.running
            }
            poll = select.poll()
            for fd in (self.wake_reader.fileno(), *connections):
                poll.register(fd, select.POLLIN)
            ready = poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)
            self.dispatcher = threading.get_ident()
            try:
                for fd, _ in ready:
                    if fd in connections:
                        connections[fd].dispatch()
                    else:
                        with contextlib.suppress(BlockingIOError):
                            self.wake_reader.recv(4096)
            finally:
                self.dispatcher = None
        while self.ended:
            pending = self.ended.popleft()
            task = self.running.pop(pending, None)
            if task is None:  # its end was notified twice
                continue
            yield task, pending.collect(task.text, task.id)

    def close(self) -> None:
        for pending in self.running:
            pending.abandon()
        self.running.clear()
        self.wake_reader.close()
        self.wake_writer.close()


class BatchRecorder:
    """The sandboxes of a batch that is recorded: sessions of one command in `width` threads."""

    def __init__(
        self, engine: Engine, width: int, record: Union[Record, Target], retries: int, text: bool
    ) -> None:
        self.record = Record.of(record)
        assert self.record is not None
        self.record.check_batch()
        self.engine, self.retries, self.text = engine, retries, text
        self.pool = concurrent.futures.ThreadPoolExecutor(width, "rollbox-batch")
        self._lock = threading.Lock()
        self._boxes: set[Sandbox] = set()
        self._closed = threading.Event()

    def run(self, task: BatchTask) -> tuple[BatchTask, Result[Any]]:
        """Runs a task to its last attempt."""
        while True:
            result = self._attempt(task)
            delay = task.next_delay(result.error, self.retries)
            if delay is None or self._closed.wait(delay):
                return task, result

    def _attempt(self, task: BatchTask) -> Result[Any]:
        if task.error is not None:
            return task.error_row(task.error, self.text)
        assert self.record is not None
        box = None
        try:
            box = Sandbox(
                Policy.from_json(task.policy),
                engine=self.engine,
                record=self.record.of_job(task.id, task.attempts > 0),
            )
            arguments = dict(task.arguments)
            with box:
                # close() closes the sandboxes of this set, so one is added before it begins.
                with self._lock:
                    if self._closed.is_set():
                        raise Cancelled("the batch was closed", stage="arguments")
                    self._boxes.add(box)
                arguments["timeout"] = box._run_timeout(arguments.get("timeout"))
                result = box.exec(arguments.pop("argv"), text=self.text, **arguments)
            return dataclasses.replace(result, id=task.id)
        except RollboxError as error:
            return task.error_row(error, self.text)
        except OSError as error:  # the record's file
            return task.error_row(
                IOFailed(
                    f"the record of job {task.id}: {error}", stage="arguments", errno=error.errno
                ),
                self.text,
            )
        finally:
            if box is not None:
                with self._lock:
                    self._boxes.discard(box)

    def close(self) -> None:
        """Closes the sandboxes that are open, and the threads."""
        with self._lock:
            self._closed.set()
            boxes = list(self._boxes)
        for box in boxes:
            with contextlib.suppress(RollboxError):
                box.close()
        self.pool.shutdown()


def _iterate_recorded(
    source: Iterator[BatchTask],
    width: int,
    recorder: BatchRecorder,
    order: OrderedQueue,
    bar: ProgressBar,
) -> Iterator[Result[Any]]:
    running: set[concurrent.futures.Future[tuple[BatchTask, Result[Any]]]] = set()
    try:
        while True:
            while len(running) < width:
                task = next(source, None)
                if task is None:
                    break
                running.add(recorder.pool.submit(recorder.run, task))
            if not running:
                return
            ended, running = concurrent.futures.wait(
                running, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in ended:
                task, result = future.result()
                bar.step(result)
                yield from order.put(task.index, result)
    finally:
        recorder.close()
        bar.close()


@overload
def iter_many(
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
) -> Iterator[Result[bytes]]: ...


@overload
def iter_many(
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
) -> Iterator[Result[str]]: ...


@overload
def iter_many(
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
) -> Iterator[Result[Any]]: ...


def iter_many(
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
) -> Iterator[Result[Any]]:
    """Runs many jobs and yields each Result as it is there.

    Args:
        jobs: As for `run_many`. Jobs are taken as they are needed, so this may be an endless
            generator.
        concurrency: As for `run_many`.
        policy: As for `run_many`.
        ordered: Yield the results in the order of the jobs; else as they end (`result.id` tells).
        progress: As for `run_many`.
        retries: As for `run_many`.
        text: As for `run_many`.
        engine: As for `run_many`.
        record: As for `run_many`.

    Returns:
        An iterator. Closing it kills the jobs that still run.

    Raises:
        RollboxError: As for `run_many`.
    """
    base = as_policy(policy)
    width = check_concurrency(concurrency)
    source = tasks_of_jobs(jobs, base)
    engine = engine if engine is not None else default_engine()
    engine.warm(base.to_json())
    if record is not None:
        return _iterate_recorded(
            source,
            width,
            BatchRecorder(engine, width, record, retries, text),
            OrderedQueue(ordered),
            ProgressBar(progress, jobs),
        )
    return _iterate(
        source, width, engine, OrderedQueue(ordered), ProgressBar(progress, jobs), retries, text
    )


def _iterate(
    source: Iterator[BatchTask],
    width: int,
    engine: Engine,
    order: OrderedQueue,
    bar: ProgressBar,
    retries: int,
    text: bool,
) -> Iterator[Result[Any]]:
    batch = RunningBatch(engine, text)
    waiting: list[BatchTask] = []  # repeated at their due times
    exhausted = False
    try:
        while True:
            finished: list[tuple[BatchTask, Result[Any]]] = []
            while len(batch.running) < width:
                now = time.monotonic()
                task = next((one for one in waiting if one.due <= now), None)
                if task is not None:
                    waiting.remove(task)
                elif exhausted or len(waiting) >= width:
                    break  # a failing host gets no more jobs than it has failed
                else:
                    task = next(source, None)
                    if task is None:
                        exhausted = True
                        break
                if task.error is None:
                    try:
                        batch.start(task)
                        continue
                    except RollboxError as error:
                        finished.append((task, task.error_row(error, text)))
                else:
                    finished.append((task, task.error_row(task.error, text)))
                break  # yield this row before the next start: many bad jobs must not pile up
            if not finished:
                if not batch.running and not waiting:
                    break
                due = (
                    min((one.due for one in waiting), default=None)
                    if len(batch.running) < width
                    else None
                )
                finished.extend(batch.wait(None if due is None else due - time.monotonic()))
            for task, result in finished:
                delay = task.next_delay(result.error, retries)
                if delay is not None:
                    task.due = time.monotonic() + delay
                    waiting.append(task)
                    continue
                bar.step(result)
                yield from order.put(task.index, result)
    finally:
        batch.close()
        bar.close()


@overload
def run_many(
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
def run_many(
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
def run_many(
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


def run_many(
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
    """Runs many jobs, each in a sandbox of its own.

    A job is a list of arguments, or a mapping of argv (or code and language), id, stdin, files,
    cwd, env, timeout_s, policy (keys over the batch's), priority and queue_timeout_s. `code_job`
    makes one from the text of a program. Without timeout_s or a timeout of the policy, a job has
    300 seconds; "none" is no limit.

    A job that rollbox could not run is repeated where another attempt may succeed (engine lost,
    host exhausted, set-up refused). Its program may have run in part before; that sandbox is gone.

    Args:
        jobs: The jobs, any iterable.
        concurrency: How many run at a time; None: one per CPU.
        policy: The policy of all jobs.
        ordered: Return the results in the order of the jobs; else as they ended.
        progress: Show a bar on stderr; None: if that is a terminal.
        retries: How often a job is repeated that rollbox could not run. A job whose program failed
            is never repeated.
        text: Make stdout and stderr str, with invalid UTF-8 replaced.
        engine: The engine; None: the one that this process shares.
        record: Keep a trajectory of each job, which takes a thread for each that runs: a path with
            {id} in it (unusual characters of an id become %XX), a function that is called with each
            Step, or a Record of either. The trajectory of a repeated job is that of its last
            attempt.

    Returns:
        A Result per job. `id` is the job's, or its number from 0. A job that rollbox could not run
        has outcome "error" and `error`, which say nothing about its program.

    Raises:
        InvalidArgument: The jobs are one job, or bare text; or an argument is wrong.
        PolicyInvalid: The policy is not valid.
        EngineStartFailed: The engine cannot be started.

    Example:
        >>> from rollbox import run_many
        >>> jobs = [{"id": "a", "argv": ["echo", "1"]}, ["false"]]
        >>> [(result.id, result.ok) for result in run_many(jobs)]
        [('a', True), (1, False)]
    """
    return list(
        iter_many(
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
    )
