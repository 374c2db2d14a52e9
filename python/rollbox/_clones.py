# SPDX-License-Identifier: Apache-2.0
"""Clones: a function that runs in many copies of one interpreter.

A ClonePool, or a Sandbox with a work_fn, has a CloneWork. Its first fork starts an interpreter in
the session (_clone_guest.py), sends it the functions by value and lets it run init_fn. Then the
session is captured, and the interpreter, of which the snapshot has a copy, ends. Each fork is made
from this snapshot: as many sandboxes as may exist at a time, each told its number through a new
pipe in place of the one that the interpreter waited for. One thread serves all of them: it polls
their answers and the engine's descriptor.

The answers were written by a guest. They are read as data (_safe_values.py), their length is
bounded, and they are believed only as far as they concern that guest.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import functools
import inspect
import json
import os
import select
import signal
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import (
    Any,
    Callable,
    Generic,
    NamedTuple,
    Optional,
    TypeVar,
    overload,
)

from . import _safe_values
from ._clone_loop import Answer, CloneLoop, failure_of, iterate_clones
from ._clone_result import Clone, WorkFailed
from ._core import ffi
from ._core.connection import DetachedRun
from ._core.errors import FeatureMissing, InvalidArgument, NotFound
from ._core.handle import Handle
from ._core.options import state_options
from ._core.request import (
    RUN_TIMEOUT_S,
    ExecRequest,
    Timeout,
    allowed_s,
)
from ._core.result import Result, RunFailed
from ._core.schedule import OrderedQueue, ProgressBar, check_concurrency
from ._process import Pipes, new_id
from ._session import Session

_CHUNK = 1 << 16
_FOR_EVER_S = 1e9
_MAX_READY = 1 << 20
_WIDTH_PER_CPU = 16
MAX_VALUE = 4 << 20
_SLICE_MS = 100
_MAX_POSITIONAL = 2  # of work_fn: the clone's number, and the value of init_fn

_R = TypeVar("_R")

_Reduced = TypeVar("_Reduced")


# From the caller to the sandbox


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError as problem:
        raise FeatureMissing(
            "init_fn and work_fn go to the sandbox by cloudpickle, which is not installed here: "
            "pip install cloudpickle (the sandbox needs nothing but Python)",
            stage="arguments",
        ) from problem
    return cloudpickle


def _is_installed(module: Any) -> bool:
    """Whether a sandbox can be expected to have a module.

    These are Python's own modules and those of its site-packages.
    """
    path = getattr(module, "__file__", None)
    if path is None:
        return True
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(
        place and os.path.realpath(path).startswith(os.path.realpath(place) + os.sep)
        for place in places
    )


_by_value = threading.Lock()


@contextlib.contextmanager
def _pickle_by_value(cloudpickle: Any, functions: Sequence[Any]) -> Iterator[None]:
    """Has cloudpickle send functions of the caller's own modules by value.

    Otherwise it sends their names. What they refer to in their module goes along.
    """
    with _by_value:
        registered = []
        try:
            for function in functions:
                while isinstance(function, functools.partial):
                    function = function.func
                module = sys.modules.get(getattr(function, "__module__", None) or "")
                if (
                    module is not None
                    and module.__name__ != "__main__"
                    and not _is_installed(module)
                    and module.__name__ not in cloudpickle.list_registry_pickle_by_value()
                ):
                    cloudpickle.register_pickle_by_value(module)
                    registered.append(module)
            yield
        finally:
            for module in registered:
                cloudpickle.unregister_pickle_by_value(module)


def _sources(cloudpickle: Any) -> dict[str, str]:
    """The text of cloudpickle's modules, and of ours.

    A sandbox need not have either, and a pickle is read by the cloudpickle that wrote it.
    """
    texts = {"rollbox_safe_values": Path(_safe_values.__file__).read_text("utf-8")}
    root = Path(cloudpickle.__file__).parent
    for path in root.glob("*.py"):
        texts["cloudpickle" if path.stem == "__init__" else f"cloudpickle.{path.stem}"] = (
            path.read_text("utf-8")
        )
    return texts


def _argument_count(work_fn: Callable[..., Any]) -> int:
    """How many arguments work_fn has to be given."""
    try:
        parameters = inspect.signature(work_fn).parameters.values()
    except (TypeError, ValueError):
        return 0
    needed = sum(
        one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty
        for one in parameters
    )
    named = [
        one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty
    ]
    if needed > _MAX_POSITIONAL or named:
        raise InvalidArgument(
            "work_fn is called with at most two arguments: the clone's number, and what init_fn "
            "returned" + (f"; it needs {', '.join(named)}" if named else f"; it needs {needed}"),
            stage="arguments",
        )
    return needed


def _pack(init_fn: Optional[Callable[[], Any]], work_fn: Callable[..., Any]) -> bytes:
    """The message with both functions.

    They are in one pickle, so that globals which both use are the same.
    """
    cloudpickle = _cloudpickle()
    with _pickle_by_value(cloudpickle, (init_fn, work_fn)):
        try:
            functions = cloudpickle.dumps((init_fn, work_fn), protocol=4)
        except Exception as problem:
            raise InvalidArgument(
                f"init_fn and work_fn cannot go to the sandbox: {type(problem).__name__}: "
                f"{problem}; make what they need in init_fn",
                stage="arguments",
            ) from problem
    return encode_message(
        {
            "version": sys.version_info[:2],
            "modules": _sources(cloudpickle),
            "functions": base64.b64encode(functions).decode("ascii"),
            "takes": _argument_count(work_fn),
        }
    )


def encode_message(fields: dict[str, Any]) -> bytes:
    """A message to the guest: its length in 8 bytes, and JSON."""
    data = json.dumps(fields).encode("ascii")
    return len(data).to_bytes(8, "big") + data


# The pool


def _unknown() -> Any:
    """Stands for functions that are known by value alone."""


class _WarmState(NamedTuple):
    """The interpreter that has run init_fn: its command's id, and the snapshot that contains it."""

    handle: weakref.ref[Handle]
    command: str
    snapshot: str


class CloneWork(Generic[_R]):
    """The functions of clones, and the interpreter of a session that has run init_fn.

    It does not refer to the session, which every call is given. It is picklable without the
    interpreter.
    """

    def __init__(
        self,
        work_fn: Optional[Callable[..., _R]],
        init_fn: Optional[Callable[[], Any]] = None,
        python: str = "python3",
    ) -> None:
        if not callable(work_fn):
            raise InvalidArgument(f"work_fn must be a function, not {work_fn!r}", stage="arguments")
        if init_fn is not None and not callable(init_fn):
            raise InvalidArgument(f"init_fn must be a function, not {init_fn!r}", stage="arguments")
        _argument_count(work_fn)
        self._work_fn, self._init_fn, self._python = work_fn, init_fn, python
        self._packed: Optional[bytes] = None
        self._warming = threading.Lock()
        self._warm: Optional[_WarmState] = None

    def __reduce__(self) -> Any:
        return CloneWork, (self._work_fn, self._init_fn, self._python)

    def packed(self) -> bytes:
        """The functions by value, for another machine that lacks their modules."""
        if self._packed is not None:
            return self._packed
        assert self._work_fn is not None
        return _pack(self._init_fn, self._work_fn)

    @classmethod
    def of_packed(cls, functions: bytes, python: str) -> CloneWork[Any]:
        """The functions that `packed` gave."""
        made: CloneWork[Any] = CloneWork(_unknown, None, python)
        made._packed = functions
        return made

    def warm(self, box: Session) -> None:
        """Runs init_fn in the session and keeps the state, if that is not done yet."""
        self._warmed(box)

    def _warmed(self, box: Session) -> _WarmState:
        with self._warming:
            handle = box._session()
            if self._warm is None or self._warm.handle() is not handle:
                self._warm = self._start(box, handle)
            return self._warm

    def _start(self, box: Session, handle: Handle) -> _WarmState:
        functions, id = self.packed(), new_id()
        guest = Path(__file__).with_name("_clone_guest.py").read_text("utf-8")
        with Pipes() as pipes:
            control, control_read = pipes.writer()
            results, results_write = pipes.reader()
            request = ExecRequest(
                [self._python, "-c", guest],
                id=id,
                extra_fds=(control_read, results_write),
                timeout=_FOR_EVER_S,
                detached=True,
            )
            run = handle.start(request)
        allowed = allowed_s(box.policy.timeout)
        try:
            _send_functions(handle, id, self._python, run, control, results, functions, allowed)
            options = state_options("keep")
            state = handle.json("rollbox_snapshot", None, ctypes.byref(options))
            return _WarmState(weakref.ref(handle), id, state["id"])
        finally:
            os.close(control)  # the waiting interpreter ends at the end of its input
            os.close(results)

    def start_fork(
        self,
        box: Session,
        n: int,
        timeout: Timeout,
        concurrency: Optional[int],
        seed: Optional[int],
        ordered: bool,
        progress: Optional[bool],
        retries: int,
        max_value: int,
        numbers: Optional[Sequence[int]] = None,
    ) -> tuple[CloneLoop, Generator[Clone[bytes, _R], None, None]]:
        """Checks the arguments and warms up; returns the loop (to stop it) and its Clones."""
        for name, number, least in (
            ("n", n, 1),
            ("max_value", max_value, 1),
            ("retries", retries, 0),
        ):
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise InvalidArgument(
                    f"{name} must be a number and at least {least}, not {number!r}",
                    stage="arguments",
                )
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise InvalidArgument(f"seed must be an int or None, not {seed!r}", stage="arguments")
        # A subclass of int may print itself otherwise; clones are sent the digits of a plain int.
        seed = None if seed is None else int.__int__(seed)
        max_value = min(int.__int__(max_value), sys.maxsize)
        if concurrency is None:
            width = len(os.sched_getaffinity(0)) * _WIDTH_PER_CPU
        else:
            width = check_concurrency(concurrency)
        allowed = allowed_s(timeout, box.policy.timeout, RUN_TIMEOUT_S)
        warm = self._warmed(box)

        def make(count: int) -> Sequence[Session]:
            return box._forks(count, warm.snapshot, state_options("keep", attached=True))

        loop = CloneLoop(make, warm.command, seed, max_value, allowed)
        numbers = range(n) if numbers is None else numbers
        queue, bar = OrderedQueue(ordered), ProgressBar(progress, numbers)
        return loop, iterate_clones(loop, numbers, width, queue, bar, retries)

    def start_numbers(
        self,
        box: Session,
        numbers: Sequence[int],
        *,
        timeout: Timeout,
        seed: Optional[int],
        concurrency: int,
        max_value: int,
    ) -> tuple[CloneLoop, Generator[Clone[bytes, _R], None, None]]:
        """Clones of these numbers, which are a part of those of a fork; each is tried once."""
        return self.start_fork(
            box,
            len(numbers),
            timeout,
            concurrency,
            seed,
            False,
            False,
            0,
            max_value,
            numbers=numbers,
        )

    def iter_fork(
        self,
        box: Session,
        n: int,
        *,
        timeout: Timeout = None,
        concurrency: Optional[int] = None,
        seed: Optional[int] = None,
        ordered: bool = False,
        progress: Optional[bool] = None,
        retries: int = 2,
        max_value: int = MAX_VALUE,
    ) -> Iterator[Clone[bytes, _R]]:
        """ClonePool.iter_fork."""
        return self.start_fork(
            box, n, timeout, concurrency, seed, ordered, progress, retries, max_value
        )[1]

    def fork(
        self,
        box: Session,
        n: int,
        *,
        timeout: Timeout = None,
        concurrency: Optional[int] = None,
        seed: Optional[int] = None,
        ordered: bool = True,
        progress: Optional[bool] = None,
        retries: int = 2,
        max_value: int = MAX_VALUE,
        reduce: Optional[Callable[[Iterator[Clone[bytes, _R]]], Any]] = None,
    ) -> Any:
        """ClonePool.fork."""
        _, clones = self.start_fork(
            box, n, timeout, concurrency, seed, ordered, progress, retries, max_value
        )
        with contextlib.closing(clones):
            return list(clones) if reduce is None else reduce(clones)


class ClonePool(Generic[_R]):
    """A function and the interpreter whose clones run it. `Sandbox.clones` makes it.

    The interpreter belongs to the session of a sandbox, in which files can be put there first. The
    pool is also a context manager: a `with` opens and closes this session.

    Attributes:
        box: The sandbox.
    """

    def __init__(
        self,
        box: Session,
        work_fn: Callable[..., _R],
        *,
        init_fn: Optional[Callable[[], Any]] = None,
        python: str = "python3",
    ) -> None:
        self.box = box
        self._work = CloneWork(work_fn, init_fn, python)

    def __enter__(self) -> ClonePool[_R]:
        self.box._enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.box._leave()

    def __repr__(self) -> str:
        return f"ClonePool({self.box!r})"

    def close(self) -> None:
        """Ends the session of the sandbox, and with it the pool's interpreter."""
        self.box.close()

    def warm(self) -> None:
        """Starts the interpreter and runs init_fn, if that is not done yet.

        The first fork does it otherwise.

        Raises:
            WorkFailed: init_fn failed.
            RollboxError: As for `fork`.
        """
        self._work.warm(self.box)

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
        max_value: int = MAX_VALUE,
    ) -> Iterator[Clone[bytes, _R]]:
        """Runs work_fn in n clones and yields each Clone as it ends.

        Args:
            n: How many clones.
            timeout: As for `fork`.
            concurrency: As for `fork`.
            seed: As for `fork`.
            ordered: Yield the Clones by their numbers.
            progress: As for `fork`.
            retries: As for `fork`.
            max_value: As for `fork`.

        Returns:
            An iterator. Closing it kills the clones that still run.

        Raises:
            RollboxError: As for `fork`.
        """
        return self._work.iter_fork(
            self.box,
            n,
            timeout=timeout,
            concurrency=concurrency,
            seed=seed,
            ordered=ordered,
            progress=progress,
            retries=retries,
            max_value=max_value,
        )

    @overload
    def fork(
        self,
        n: int = ...,
        *,
        timeout: Timeout = ...,
        concurrency: Optional[int] = ...,
        seed: Optional[int] = ...,
        ordered: bool = ...,
        progress: Optional[bool] = ...,
        retries: int = ...,
        max_value: int = ...,
        reduce: None = ...,
    ) -> list[Clone[bytes, _R]]: ...

    @overload
    def fork(
        self,
        n: int = ...,
        *,
        timeout: Timeout = ...,
        concurrency: Optional[int] = ...,
        seed: Optional[int] = ...,
        ordered: bool = ...,
        progress: Optional[bool] = ...,
        retries: int = ...,
        max_value: int = ...,
        reduce: Callable[[Iterator[Clone[bytes, _R]]], _Reduced],
    ) -> _Reduced: ...

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
        max_value: int = MAX_VALUE,
        reduce: Optional[Callable[[Iterator[Clone[bytes, _R]]], Any]] = None,
    ) -> Any:
        """Runs work_fn in n clones, each in a sandbox of its own.

        Args:
            n: How many clones; their numbers are 0 to n - 1.
            timeout: Seconds for each clone, over the policy's; "none" is no limit.
            concurrency: How many clones exist at a time (16 per CPU).
            seed: Seed `random` and numpy.random of clone i from this number and i; None: from the
                kernel's randomness.
            ordered: Return the Clones by their numbers; else as they ended.
            progress: Show a bar on stderr; None: if that is a terminal.
            retries: How often a clone is repeated that rollbox could not run. A clone whose work_fn
                failed is never repeated.
            max_value: Bytes that a clone's value may have as JSON.
            reduce: A function of an iterator of the Clones, of which none is then kept, such as
                lambda clones: sum(clone.get() for clone in clones).

        Returns:
            The Clones, or what reduce returned. A Clone also has the `error` of a clone that
            rollbox could not run.

        Raises:
            WorkFailed: init_fn failed.
            FeatureMissing: cloudpickle is not installed, or the interpreter cannot be captured.
            InvalidArgument: The functions cannot be sent, or an argument is wrong.
            RollboxError: The interpreter cannot be started, as for `Sandbox.exec`.

        Example:
            >>> from rollbox import Sandbox
            >>> with Sandbox() as box:
            ...     box.clones(lambda number: 2 * number).fork(3, reduce=lambda clones: sum(
            ...         clone.get() for clone in clones))
            6
        """
        return self._work.fork(
            self.box,
            n,
            timeout=timeout,
            concurrency=concurrency,
            seed=seed,
            ordered=ordered,
            progress=progress,
            retries=retries,
            max_value=max_value,
            reduce=reduce,
        )


def _send_functions(
    handle: Handle,
    id: str,
    python: str,
    run: DetachedRun,
    control: int,
    results: int,
    functions: bytes,
    timeout: Optional[float],
) -> None:
    """Sends an interpreter its functions and waits until init_fn has returned."""
    for fd in (control, results):
        os.set_blocking(fd, False)
    answer, unsent = Answer(_MAX_READY), memoryview(functions)
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
                    unsent = unsent[os.write(control, unsent[:_CHUNK]) :]
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
        handle.call("rollbox_signal", id.encode(), int(signal.SIGKILL), ffi.SCOPES["tree"])
    ended = run.wait(None)
    assert ended is not None
    if ended.error is not None:
        raise ended.error
    there = message.get("version")
    if isinstance(there, list):
        versions = [
            ".".join(str(part)[:9] for part in version[:2]) for version in (there, sys.version_info)
        ]
        raise InvalidArgument(
            f"the sandbox's {python} is Python {versions[0]}, and this is {versions[1]}: functions "
            f"need the same version; name an interpreter of the sandbox with python=",
            stage="arguments",
        )
    raise failure_of(message, None) or WorkFailed(
        "",
        f"it reached the policy's timeout of {timeout:g} seconds"
        if late
        else f"its interpreter ended: {RunFailed(ended)}",
    )
