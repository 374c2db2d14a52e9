# SPDX-License-Identifier: Apache-2.0
"""Clones: a function that runs in many copies of one interpreter.

WorkSandbox is what `Sandbox(policy, init_fn=..., work_fn=...)` gives. The first fork starts an interpreter in its session (_clone_guest.py), which gets the functions by value and runs init_fn; then the session is captured, and the interpreter, of
which the state has a copy, goes. Each fork is of that state: as many sandboxes as may be there at a time, each told its number through a new pipe in the place of the one that the interpreter waited for. One thread looks after all of them: it polls
their answers and the engine's descriptor.

What comes back was written by a guest. It is read as data (_plain.py), its length is bounded, and nothing of it is believed but for what it says of that guest.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import ctypes
import functools
import hashlib
import inspect
import json
import os
import select
import signal
import socket
import sys
import sysconfig
import threading
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, AnyStr, Callable, Deque, Dict, Generator, Generic, Iterator, List, Optional, Sequence, Tuple, TypeVar, overload

from . import _ffi, _plain
from ._base import PolicyLike
from ._batch import _concurrency, _Order, _Progress, retry_delay
from ._engine import LooseRun, PendingRun
from ._errors import EngineLost, FeatureMissing, InvalidArgument, NotFound, RollboxError
from ._handle import Handle
from ._policy import Policy
from ._process import Pipes, new_id
from ._request import RUN_TIMEOUT_S, AttachRequest, ExecRequest, Timeout, allowed_s, error_result
from ._result import Outcome, Result, RunFailed
from ._sandbox import Sandbox
from ._session import Session, _state

_CHUNK = 1 << 16
_FOR_EVER_S = 1e9
_READY_MOST = 1 << 20
_TEXT_MOST = 1 << 16
_WIDTH_PER_CPU = 16
_AT_ONCE = 32
VALUE_MOST = 4 << 20
_SLICE_MS = 100
_BY_PLACES = 2      # what work_fn can be called with: the clone's number and what init_fn returned

_R = TypeVar("_R")
_Reduced = TypeVar("_Reduced")


class WorkFailed(Exception):
    """init_fn or work_fn ended with an exception, or without an end. Not a RollboxError: the functions did it.

    Attributes: `type_name` ("ValueError", "mymodule.MyError"; "" if there was no exception), `message`, `traceback` (text), `id`, the clone's number (None: init_fn). All three texts are the guest's.
    """

    def __init__(self, type_name: str, message: str, traceback: str = "", id: Optional[int] = None) -> None:
        super().__init__(type_name, message, traceback, id)
        self.type_name, self.message, self.traceback, self.id = type_name, message, traceback, id

    def __str__(self) -> str:
        who = "init_fn" if self.id is None else f"work_fn of clone {self.id}"
        said = ": ".join(part for part in (self.type_name, self.message) if part)
        return f"{who}: {said}" + (f"\n\n{self.traceback.rstrip()}" if self.traceback else "")


@dataclass(frozen=True)
class Clone(Result[AnyStr], Generic[AnyStr, _R]):
    """What one clone came to: the Result of its interpreter (`id` is the clone's number, `stdout` and `stderr` what it wrote itself), and of its work_fn.

    Attributes: `returned`: whether work_fn did. `value`: what it returned. `raised`: the WorkFailed of an exception. Where neither is there, `outcome` tells why: it was killed, ran out of time or memory, ended the interpreter, or `error`: rollbox
    could not run it, which says nothing of work_fn.
    """

    value: Optional[_R] = None
    returned: bool = False
    raised: Optional[WorkFailed] = None

    @property
    def ok(self) -> bool:
        """work_fn returned, and the interpreter ended as it should."""
        return self.returned and super().ok

    def get(self) -> Any:
        """The value. Raises `error` (rollbox's failure), `raised` (an exception of work_fn), or RunFailed (its interpreter's end)."""
        if self.ok:
            return self.value
        if self.error is not None:
            raise self.error
        if self.raised is not None:
            raise self.raised
        if self.outcome is Outcome.EXIT and not self.exit_code:
            raise WorkFailed("", "the interpreter ended with status 0 before work_fn returned", id=_number(self))
        raise RunFailed(self)

    def check(self) -> "Clone[AnyStr, _R]":
        """Returns itself if `ok`; raises as get."""
        self.get()
        return self


def _number(clone: Clone[Any, Any]) -> Optional[int]:
    return clone.id if isinstance(clone.id, int) else None


# The way in

def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError as problem:
        raise FeatureMissing("init_fn and work_fn go to the sandbox by cloudpickle, which is not installed here: pip install cloudpickle (the sandbox needs nothing but Python)",
                             stage="arguments") from problem
    return cloudpickle


def _is_installed(module: Any) -> bool:
    """Whether the sandbox may be expected to have a module: one of Python's own or of its site-packages'."""
    path = getattr(module, "__file__", None)
    if path is None:
        return True
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(place and os.path.realpath(path).startswith(os.path.realpath(place) + os.sep) for place in places)


_by_value = threading.Lock()


@contextlib.contextmanager
def _own_modules(cloudpickle: Any, functions: Sequence[Any]) -> Iterator[None]:
    """cloudpickle's way with functions of modules is their names; those of the caller's own modules are to go by value, with what they refer to there."""
    with _by_value:
        registered = []
        try:
            for function in functions:
                while isinstance(function, functools.partial):
                    function = function.func
                module = sys.modules.get(getattr(function, "__module__", None) or "")
                if module is not None and module.__name__ != "__main__" and not _is_installed(module) and module.__name__ not in cloudpickle.list_registry_pickle_by_value():
                    cloudpickle.register_pickle_by_value(module)
                    registered.append(module)
            yield
        finally:
            for module in registered:
                cloudpickle.unregister_pickle_by_value(module)


def _sources(cloudpickle: Any) -> Dict[str, str]:
    """The text of cloudpickle's modules, and of ours: a sandbox need not have either, and a pickle is read by the cloudpickle that wrote it."""
    texts = {"rollbox_plain": Path(_plain.__file__).read_text("utf-8")}
    root = Path(cloudpickle.__file__).parent
    for path in root.glob("*.py"):
        texts["cloudpickle" if path.stem == "__init__" else f"cloudpickle.{path.stem}"] = path.read_text("utf-8")
    return texts


def _takes(work_fn: Callable[..., Any]) -> int:
    """How many arguments it has to be given."""
    try:
        parameters = inspect.signature(work_fn).parameters.values()
    except (TypeError, ValueError):
        return 0
    needed = sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty for one in parameters)
    named = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    if needed > _BY_PLACES or named:
        raise InvalidArgument("work_fn is called with at most two arguments: the clone's number, and what init_fn returned" + (f"; it needs {', '.join(named)}" if named else f"; it needs {needed}"), stage="arguments")
    return needed


def _pack(init_fn: Optional[Callable[[], Any]], work_fn: Callable[..., Any]) -> bytes:
    """The message with both functions. They go in one pickle, so that globals which both use are the same."""
    cloudpickle = _cloudpickle()
    with _own_modules(cloudpickle, (init_fn, work_fn)):
        try:
            functions = cloudpickle.dumps((init_fn, work_fn), protocol=4)
        except Exception as problem:
            raise InvalidArgument(f"init_fn and work_fn cannot go to the sandbox: {type(problem).__name__}: {problem}; make what they need in init_fn", stage="arguments") from problem
    return _message({"version": sys.version_info[:2], "modules": _sources(cloudpickle), "functions": base64.b64encode(functions).decode("ascii"), "takes": _takes(work_fn)})


def _message(fields: Dict[str, Any]) -> bytes:
    data = json.dumps(fields).encode("ascii")
    return len(data).to_bytes(8, "big") + data


# The way out

class _Answer:
    """A message of a guest on its way, up to a length."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.data = bytearray()
        self.length: Optional[int] = None

    def read(self, fd: int) -> bool:
        """Takes what is there. False at the end, of the message or of its writers."""
        while not self.is_whole:
            try:
                data = os.read(fd, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.data += data
            if self.length is None and len(self.data) >= 8:
                self.length = int.from_bytes(self.data[:8], "big")
                if self.length > self.most:
                    raise ValueError(f"it is said to have {self.length} bytes, and may have {self.most}")
        return False

    @property
    def is_whole(self) -> bool:
        return self.length is not None and len(self.data) >= 8 + self.length

    def message(self) -> Dict[str, Any]:
        """What it says; {} if it never came to its end. Raises ValueError."""
        if self.length is None or not self.is_whole:
            return {}
        found = _plain.loads(bytes(self.data[8:8 + self.length]))
        if not isinstance(found, dict):
            raise ValueError("it is no object")
        return found


def _raised(message: Dict[str, Any], id: Optional[int]) -> Optional[WorkFailed]:
    told = message.get("raised")
    if not isinstance(told, dict):
        return None
    name, said, traceback = (str(told.get(key, ""))[:_TEXT_MOST] for key in ("type", "message", "traceback"))
    return WorkFailed(name, said, traceback, id)


def _chance(seed: Optional[int], number: int) -> str:
    """What the random generators of a clone begin with."""
    return "-" if seed is None else hashlib.sha512(f"{seed}:{number}".encode("ascii")).hexdigest()


# One clone

class _Task:
    """A clone to be made, under way or done."""

    __slots__ = ("index", "attempts", "due", "box", "results", "answer", "pending", "deadline", "timed_out", "problem")

    def __init__(self, index: int) -> None:
        self.index = index
        self.attempts = 0
        self.due = 0.0
        self.forget()

    def forget(self) -> None:
        self.box: Optional[Session] = None
        self.results = -1
        self.pending: Optional[PendingRun] = None
        self.deadline: Optional[float] = None
        self.timed_out = False
        self.problem: Optional[str] = None

    def begin(self, box: Session, command: str, seed: Optional[int], most: int, on_end: Callable[[PendingRun], None], timeout: Optional[float]) -> None:
        """Lets it go on, in a sandbox of its own."""
        self.box = box
        self.answer = _Answer(most)
        handle = box._session()
        control, self.results = handle.claim(command, 3, 4)
        try:
            if control < 0 or self.results < 0:
                raise NotFound(f"the interpreter of clone {self.index} has ended", stage="run")
            os.set_blocking(self.results, False)
            self.pending = handle.begin(AttachRequest(command), on_end)
            with contextlib.suppress(BrokenPipeError):      # it has ended, which is about to be told
                os.write(control, f"{self.index} {most} {_chance(seed, self.index)}\n".encode("ascii"))
        finally:
            if control >= 0:
                os.close(control)
        if timeout is not None:
            self.deadline = time.monotonic() + timeout

    def read(self) -> bool:
        """False when there is nothing more to come."""
        try:
            return self.answer.read(self.results)
        except ValueError as problem:
            self.problem = f"its answer cannot be read: {problem}"
            return False

    def kill(self, timed_out: bool) -> None:
        assert self.box is not None
        self.timed_out, self.deadline = timed_out, None
        with contextlib.suppress(RollboxError):     # it has ended meanwhile, or is lost: that is about to be told
            self.box.kill_all()

    def conclude(self, result: Result[bytes]) -> Clone[bytes, Any]:
        """What it came to."""
        value, returned, raised, error, outcome = None, False, None, result.error, result.outcome
        if error is None:
            try:
                self.read()
                if self.problem is None:
                    message = self.answer.message()
                    raised = _raised(message, self.index)
                    if "value" in message:
                        value, returned = _plain.decode(message["value"]), True
            except ValueError as problem:
                self.problem = f"its answer cannot be read: {problem}"
            except ImportError as problem:
                error, outcome = FeatureMissing(f"clone {self.index} returned a numpy array, and numpy cannot be imported here: {problem}", stage="result"), Outcome.ERROR
            if self.problem is not None:
                raised = WorkFailed("", self.problem, id=self.index)
            if self.timed_out and outcome is Outcome.SIGNAL:
                outcome, result = Outcome.TIMEOUT, replace(result, signal=None)
        known = {field.name: getattr(result, field.name) for field in fields(Result)}
        return Clone(**{**known, "id": self.index, "outcome": outcome, "error": error}, value=value, returned=returned, raised=raised)

    def close(self) -> None:
        """Forgets its sandbox, which ends."""
        if self.pending is not None:
            self.pending.abandon()
        if self.results >= 0:
            os.close(self.results)
        box = self.box
        self.forget()
        if box is not None:
            with contextlib.suppress(RollboxError):
                box.close()


# All of them

class _Loop:
    """The clones under way of one fork. Used by one thread; `stop` may be called by any."""

    def __init__(self, make: Callable[[int], Sequence[Session]], command: str, seed: Optional[int], most: int, timeout: Optional[float]) -> None:
        self.make, self.command, self.seed, self.most, self.timeout = make, command, seed, most, timeout
        self.process = os.getpid()
        self.running: Dict[PendingRun, _Task] = {}
        self.reading: Dict[int, _Task] = {}
        self.ended: Deque[PendingRun] = collections.deque()
        self.done: List[Tuple[_Task, Clone[bytes, Any]]] = []
        self.dispatcher: Optional[int] = None
        self.connection: Any = None
        self.stopped = False
        self.ear, self.mouth = socket.socketpair()
        self.ear.setblocking(False)
        self.mouth.setblocking(False)
        self.poll = select.epoll()
        self.poll.register(self.ear, select.EPOLLIN)

    def begin(self, tasks: Sequence[_Task]) -> None:
        """Makes sandboxes for tasks and lets them go on. What cannot be is in `done`."""
        try:
            boxes = self.make(len(tasks))
        except RollboxError as problem:
            for task in tasks:
                self.fail(task, problem)
            return
        for task, box in zip(tasks, boxes):
            try:
                task.begin(box, self.command, self.seed, self.most, self.on_end, self.timeout)
            except RollboxError as problem:
                self.fail(task, problem)
                continue
            assert task.pending is not None
            self.running[task.pending] = task
            self.reading[task.results] = task
            self.poll.register(task.results, select.EPOLLIN)
            if self.connection is None:
                self.connection = task.pending.connection
                self.poll.register(self.connection.fd, select.EPOLLIN)

    def fail(self, task: _Task, problem: RollboxError) -> None:
        task.close()
        self.done.append((task, _not_run(task.index, problem)))

    def on_end(self, pending: PendingRun) -> None:
        self.ended.append(pending)
        if self.dispatcher != threading.get_ident():
            self.wake()

    def wake(self) -> None:
        with contextlib.suppress(OSError):          # full: it will be heard anyway; closed: nobody waits
            self.mouth.send(b"\0")

    def stop(self) -> None:
        self.stopped = True
        self.wake()

    def unread(self, task: _Task) -> None:
        if self.reading.pop(task.results, None) is not None:
            self.poll.unregister(task.results)

    def first_due(self) -> Optional[_Task]:
        """The one whose time is over first: all have the same, so the one that was begun first."""
        return next((task for task in self.running.values() if task.deadline is not None), None)

    def wait(self, until: Optional[float]) -> None:
        """Blocks until something has ended, or until then."""
        if not self.ended:
            first = self.first_due()
            due = min((one for one in (until, first.deadline if first is not None else None) if one is not None), default=None)
            ready = self.poll.poll(-1 if due is None else max(0.0, due - time.monotonic()))
            self.dispatcher = threading.get_ident()
            try:
                for fd, _ in ready:
                    task = self.reading.get(fd)
                    if task is not None:
                        if not task.read():
                            self.unread(task)
                            if task.problem is not None:
                                task.kill(False)
                    elif self.connection is not None and fd == self.connection.fd:
                        if not self.connection.dispatch():
                            self.poll.unregister(fd)
                            self.connection = None
                    else:
                        with contextlib.suppress(BlockingIOError):
                            self.ear.recv(4096)
                while True:
                    late = self.first_due()
                    if late is None or late.deadline is None or late.deadline > time.monotonic():
                        break
                    late.kill(True)
            finally:
                self.dispatcher = None
        while self.ended:
            pending = self.ended.popleft()
            task = self.running.pop(pending, None)
            if task is None:            # told twice
                continue
            self.unread(task)
            result = pending.collect(False, task.index)
            task.pending = None
            self.done.append((task, task.conclude(result)))
            task.close()

    def close(self) -> None:
        for task in self.running.values():
            task.close()
        self.running.clear()
        self.poll.close()
        self.ear.close()
        self.mouth.close()


def _not_run(index: int, problem: RollboxError) -> Clone[bytes, Any]:
    row = error_result(problem, False, index)
    return Clone(**{field.name: getattr(row, field.name) for field in fields(Result)})


def _iterate(loop: _Loop, n: int, width: int, order: _Order, bar: _Progress, retries: int) -> Generator[Clone[bytes, Any], None, None]:
    fresh = collections.deque(_Task(index) for index in range(n))
    waiting: List[_Task] = []       # to be tried again when they are due
    try:
        while (fresh or waiting or loop.running) and not loop.stopped:
            if loop.process != os.getpid():     # whose epoll this is, too: what is done to one is done to both
                raise EngineLost("these clones belong to the process that this one was forked from; make some of your own", stage="connect")
            now = time.monotonic()
            room = max(0, width - len(loop.running))
            batch = [task for task in waiting if task.due <= now][:room]
            for task in batch:
                waiting.remove(task)
            while fresh and len(batch) < min(room, _AT_ONCE):
                batch.append(fresh.popleft())
            if batch:
                loop.begin(batch)
            if not loop.done:
                due = now if fresh else min((task.due for task in waiting), default=None)
                loop.wait(due if len(loop.running) < width else None)
            done, loop.done = loop.done, []
            for task, clone in done:
                task.attempts += 1
                delay = retry_delay(clone.error, task.attempts, retries)
                if delay is not None:
                    task.due = time.monotonic() + delay
                    waiting.append(task)
                    continue
                bar.step(clone)
                yield from order.put(task.index, clone)
    finally:
        loop.close()
        bar.close()


# The sandbox

class WorkSandbox(Sandbox, Generic[_R]):
    """A Sandbox with a work_fn: what Sandbox(policy, init_fn=..., work_fn=...) makes. Its `fork` runs work_fn in clones; the rest of it is the session in which init_fn runs, so that files can be put there first."""

    def __init__(self, policy: PolicyLike = None, *, work_fn: Callable[..., _R], init_fn: Optional[Callable[[], Any]] = None, python: str = "python3", **options: Any) -> None:
        for name, function in (("work_fn", work_fn), ("init_fn", init_fn)):
            if not callable(function) and (function is not None or name == "work_fn"):
                raise InvalidArgument(f"{name} must be a function, not {function!r}", stage="arguments")
        super().__init__(policy, **options)
        self._work_fn, self._init_fn, self._python = work_fn, init_fn, python
        self._warming = threading.Lock()
        self._warm: Optional[Tuple[str, str]] = None        # the interpreter's id, and that of the state that has it
        _takes(work_fn)

    def __reduce__(self) -> Any:
        _, (_, policy, plan) = super().__reduce__()
        return _rebuild, (policy, plan, self._work_fn, self._init_fn, self._python)

    def __enter__(self) -> "WorkSandbox[_R]":
        self._enter()
        return self

    def _enter(self) -> None:
        if self._ended:
            self._warm = None
        super()._enter()

    def _kin(self, record: Any) -> Sandbox:  # type: ignore[override]
        return Sandbox(self._policy, engine=self._engine, record=record)

    def warm(self) -> None:
        """Starts the interpreter, runs init_fn and keeps the state, if that is not done yet; `fork` does it else. Raises WorkFailed for init_fn, and as `fork`."""
        self._warmed()

    def _warmed(self) -> Tuple[str, str]:
        with self._warming:
            if self._warm is None:
                self._warm = self._begin(_pack(self._init_fn, self._work_fn))
            return self._warm

    def _begin(self, functions: bytes) -> Tuple[str, str]:
        handle, id = self._session(), new_id()
        guest = Path(__file__).with_name("_clone_guest.py").read_text("utf-8")
        with Pipes() as pipes:
            control, control_read = pipes.writer()
            results, results_write = pipes.reader()
            run = handle.start(ExecRequest([self._python, "-c", guest], id=id, extra_fds=(control_read, results_write), timeout=_FOR_EVER_S, detached=True))
        try:
            _exchange(handle, id, self._python, run, control, results, functions, allowed_s(self._policy.timeout))
            state: Dict[str, Any] = handle.json("rollbox_snapshot", None, ctypes.byref(_state("keep")))
            return id, state["id"]
        finally:
            os.close(control)       # on which it ends, if it waits
            os.close(results)

    def iter_fork(
        self,
        n: int,
        *,
        timeout: Timeout = None,
        concurrency: Optional[int] = None,
        seed: Optional[int] = None,
        ordered: bool = False,
        progress: Optional[bool] = None,
        retries: int = 2,
        max_value: int = VALUE_MOST,
    ) -> Iterator[Clone[bytes, _R]]:
        """As fork, yielding each Clone when it is there, by default in the order of their ends. Closing the iterator kills what is under way."""
        return self._forking(n, timeout, concurrency, seed, ordered, progress, retries, max_value)[1]

    def _forking(self, n: int, timeout: Timeout, concurrency: Optional[int], seed: Optional[int], ordered: bool, progress: Optional[bool], retries: int,
                 max_value: int) -> Tuple[_Loop, Generator[Clone[bytes, _R], None, None]]:
        for name, number, least in (("n", n, 1), ("max_value", max_value, 1), ("retries", retries, 0)):
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise InvalidArgument(f"{name} must be a number and at least {least}, not {number!r}", stage="arguments")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise InvalidArgument(f"seed must be an int or None, not {seed!r}", stage="arguments")
        # Of a number's own kind: what a clone is told has its digits, whatever a subclass makes of them.
        seed, max_value = None if seed is None else int.__int__(seed), min(int.__int__(max_value), sys.maxsize)
        width = len(os.sched_getaffinity(0)) * _WIDTH_PER_CPU if concurrency is None else _concurrency(concurrency)
        allowed = allowed_s(timeout, self._policy.timeout, RUN_TIMEOUT_S)
        command, state = self._warmed()
        loop = _Loop(lambda count: self._forks(count, state, _state("keep", attached=True)), command, seed, max_value, allowed)
        return loop, _iterate(loop, n, width, _Order(ordered), _Progress(progress, range(n)), retries)

    @overload  # type: ignore[override]
    def fork(self, n: int = ..., *, timeout: Timeout = ..., concurrency: Optional[int] = ..., seed: Optional[int] = ..., ordered: bool = ..., progress: Optional[bool] = ...,
             retries: int = ..., max_value: int = ..., reduce: None = ...) -> List[Clone[bytes, _R]]: ...

    @overload
    def fork(self, n: int = ..., *, timeout: Timeout = ..., concurrency: Optional[int] = ..., seed: Optional[int] = ..., ordered: bool = ..., progress: Optional[bool] = ...,
             retries: int = ..., max_value: int = ..., reduce: Callable[[Iterator[Clone[bytes, _R]]], _Reduced]) -> _Reduced: ...

    def fork(
        self,
        n: int = 1,
        *,
        timeout: Timeout = None,
        concurrency: Optional[int] = None,
        seed: Optional[int] = None,
        ordered: bool = True,
        progress: Optional[bool] = None,
        retries: int = 2,
        max_value: int = VALUE_MOST,
        reduce: Optional[Callable[[Iterator[Clone[bytes, _R]]], Any]] = None,
    ) -> Any:
        """Runs work_fn in n clones of the interpreter in which init_fn has run, each in a sandbox of its own, and returns a Clone of each, by their numbers (or as they end: ordered=False).

        timeout: seconds for each, over the policy's. concurrency: how many are there at a time (default: 16 a CPU). seed: `random` and numpy.random begin in clone i with what follows from it and i; without one,
        with chance. progress: a bar on stderr; None shows it on a terminal. retries: of what rollbox could not do; what work_fn did is never done again. max_value: bytes that a clone's value may have as JSON.
        reduce: instead of the list, what this function makes of an iterator of the Clones, of which none is then kept: reduce=lambda clones: sum(clone.get() for clone in clones).

        What a clone did is in its Clone, and what rollbox could not do for it, too (`error`). Raised is WorkFailed for init_fn; FeatureMissing without cloudpickle, and for what cannot be captured; InvalidArgument for functions
        that cannot be sent; and as `exec` for starting the interpreter.
        """
        clones = self._forking(n, timeout, concurrency, seed, ordered, progress, retries, max_value)[1]
        with contextlib.closing(clones):
            return list(clones) if reduce is None else reduce(clones)


def _rebuild(policy: Policy, plan: Dict[str, Any], work_fn: Any, init_fn: Any, python: str) -> WorkSandbox[Any]:
    made: WorkSandbox[Any] = WorkSandbox(policy, work_fn=work_fn, init_fn=init_fn, python=python)
    made._take_plan(plan)
    return made


def _exchange(handle: Handle, id: str, python: str, run: LooseRun, control: int, results: int, functions: bytes, timeout: Optional[float]) -> None:
    """Gives an interpreter its functions and waits until init_fn has returned."""
    for fd in (control, results):
        os.set_blocking(fd, False)
    answer, unsent = _Answer(_READY_MOST), memoryview(functions)
    end = None if timeout is None else time.monotonic() + timeout
    result: Optional[Result[bytes]] = None
    try:
        going = True
        while going and result is None and not (end is not None and time.monotonic() > end):
            poll = select.poll()
            poll.register(results, select.POLLIN)
            if unsent:
                poll.register(control, select.POLLOUT)
            ready = dict(poll.poll(_SLICE_MS))
            if control in ready:
                try:
                    unsent = unsent[os.write(control, unsent[:_CHUNK]):]
                except BrokenPipeError:
                    unsent = memoryview(b"")
            if results in ready:
                going = answer.read(results)
            elif not ready:
                result = run.wait(0)
        message = answer.message()
    except ValueError as problem:
        message = {"raised": {"message": f"the interpreter's answer cannot be read: {problem}"}}
    if message.get("ready") is True:
        return
    late = end is not None and time.monotonic() > end and not message
    with contextlib.suppress(NotFound):
        handle.call("rollbox_signal", id.encode(), int(signal.SIGKILL), _ffi.SCOPES["tree"])
    ended = run.wait(None)
    assert ended is not None
    if ended.error is not None:
        raise ended.error
    there = message.get("version")
    if isinstance(there, list):
        versions = [".".join(str(part)[:9] for part in version[:2]) for version in (there, sys.version_info)]
        raise InvalidArgument(f"the sandbox' {python} is Python {versions[0]}, and this is {versions[1]}: functions go between equal ones only; name one that the sandbox has by python=", stage="arguments")
    raise _raised(message, None) or WorkFailed("", f"it ran into the policy's timeout of {timeout:g} seconds" if late else f"its interpreter ended: {RunFailed(ended)}")
