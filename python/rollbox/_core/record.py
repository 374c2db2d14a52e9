# SPDX-License-Identifier: Apache-2.0
"""Record: how the trajectories of sandboxes are to be recorded.

The engine's recorder writes to a descriptor of this process: that of a file, one that the caller
has, or a pipe from which a thread reads steps for the caller's function. A sandbox's Handle has its
Recording, which knows, after the close, whether the trajectory is complete.
"""

from __future__ import annotations

import copy
import ctypes
import fcntl
import json
import os
import stat
import threading
import urllib.parse
import warnings
from collections.abc import Sequence
from typing import Any, Callable, Optional, Protocol, Union

from . import ffi
from .errors import InvalidArgument, RollboxError
from .trajectory import Step, Trajectory

Target = Union[str, "os.PathLike[str]", int, Callable[[Step], Any]]

_JOIN_SECONDS = 10.0


class RecordWarning(RuntimeWarning):
    """A trajectory is not complete: its target was full, too slow, or gone.

    The commands were not affected.
    """


class Recordable(Protocol):
    """A Handle, as far as recording goes."""

    name: str
    recording: Optional[Recording]

    def json(self, function: str, *arguments: Any) -> Any:
        """Calls a function of the library."""


class Record:
    """Where a trajectory goes, and what is in it.

    `Sandbox(policy, record=Record("run.jsonl", redact=[...]))`; record="run.jsonl" alone is
    Record("run.jsonl").

    Args:
        to: A path; a descriptor, which stays the caller's; or a function that is called with each
            Step in a thread of its own, soon after the step has ended. In a path, {name} is the
            sandbox's name. Without {name} the first sandbox gets the path; others (forks, and later
            runs of the same Sandbox) get it with their name before the suffix: run.jsonl,
            run.box-2.jsonl. A file must be new or empty. Forks of a sandbox that is recorded to a
            descriptor are not recorded.
        keep: Bytes kept of each stream and file (256 KiB); of longer ones there are the length and
            a digest.
        max_bytes: Bytes of the whole trajectory (1 GiB).
        redact: Extended regular expressions; what they match in a line becomes "[redacted]".
        redact_env: Names of variables whose values are removed wherever they occur.
        env_values: Record the values of variables, not their names alone.
        files: Record with each snapshot the files that the sandbox did not have in the beginning,
            by digest. It takes as long as reading them.
        changes: Record after each command the files that it has changed, by digest. It costs a
            command that changed none almost nothing, and others a snapshot and reading these files.
        force: Replace what is in the file.

    Raises:
        InvalidArgument: An argument is wrong.
    """

    def __init__(
        self,
        to: Target,
        *,
        keep: Optional[int] = None,
        max_bytes: Optional[int] = None,
        redact: Sequence[str] = (),
        redact_env: Sequence[str] = (),
        env_values: bool = False,
        files: bool = False,
        changes: bool = False,
        force: bool = False,
    ) -> None:
        if isinstance(to, bool) or not (isinstance(to, (str, int, os.PathLike)) or callable(to)):
            raise InvalidArgument(
                f"record must be a path, a descriptor or a function, not {to!r}", stage="arguments"
            )
        for what, value in (("keep", keep), ("max_bytes", max_bytes)):
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or value <= 0
            ):
                raise InvalidArgument(
                    f"{what} must be a number of bytes above 0, not {value!r}", stage="arguments"
                )
        for what, words in (("redact", redact), ("redact_env", redact_env)):
            if isinstance(words, str) or not all(
                isinstance(word, str) and word and "\0" not in word for word in words
            ):
                raise InvalidArgument(
                    f"{what} must be a list of str, not {words!r}", stage="arguments"
                )
        self.to = to
        self._options: dict[str, Any] = {
            "stream_bytes": keep or 0,
            "file_bytes": max_bytes or 0,
            "env_values": bool(env_values),
            "files": bool(files),
            "changes": bool(changes),
        }
        self._lists = {"redact_names": tuple(redact_env), "redact_patterns": tuple(redact)}
        self._force = force
        self._lock = threading.Lock()
        self._used = False

    @classmethod
    def of(
        cls, record: Union[Record, Target, None], rules_of: Optional[Record] = None
    ) -> Optional[Record]:
        """(For this package.) A Record from any value of `record=`.

        A plain destination has the rules for secrets of another Record.
        """
        if record is None or isinstance(record, Record):
            return record
        made = cls(record)
        if rules_of is not None:
            made._lists = rules_of._lists
        return made

    def check_batch(self) -> None:
        """(For this package.) Raises InvalidArgument unless each job has its own file."""
        if isinstance(self.to, int) or (
            isinstance(self.to, (str, os.PathLike)) and "{id}" not in os.fspath(self.to)
        ):
            raise InvalidArgument(
                f"record: the jobs of a batch need a file each: put {{id}} into the path, not "
                f"{self.to!r}",
                stage="arguments",
            )

    def of_job(self, id: Union[str, int], again: bool) -> Record:
        """(For this package.) The Record of a job; another attempt replaces its file."""
        if not isinstance(self.to, (str, os.PathLike)):
            return self
        name = urllib.parse.quote(str(id), safe="")
        record = copy.copy(self)
        record.to = os.fspath(self.to).replace(
            "{id}", "%2E" + name[1:] if name.startswith(".") else name
        )
        record._force = self._force or again
        record._lock, record._used = threading.Lock(), False
        return record

    def _path(self, to: Union[str, os.PathLike[str]], name: str) -> str:
        path = os.fspath(to)
        if "{name}" in path:
            return path.replace("{name}", name)
        with self._lock:
            first, self._used = not self._used, True
        if first:
            return path
        base, suffix = os.path.splitext(path)
        return f"{base}.{name}{suffix}"

    def _open(self, to: Union[str, os.PathLike[str]], name: str) -> int:
        path = self._path(to, name)
        fd = os.open(
            path,
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC,
            0o666,
        )
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                self._claim(fd, path)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _claim(self, fd: int, path: str) -> None:
        """Makes this process the only user of a file.

        The recorder has the same open file, and with it the lock, until it has written the end.
        """
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgument(
                f"record: another sandbox is recorded to {path}", stage="arguments"
            ) from None
        except OSError:
            pass  # a file system without locks
        if os.fstat(fd).st_size:
            if not self._force:
                raise InvalidArgument(
                    f"record: the file {path} is not empty; remove it, or use "
                    f"Record({path!r}, force=True)",
                    stage="arguments",
                )
            os.ftruncate(fd, 0)

    def start(self, handle: Recordable, child: bool = False) -> None:
        """(For this package.) Records a sandbox; with `child`, a fork of a recorded one."""
        if isinstance(self.to, int):
            if not child:
                handle.recording = Recording(handle, self, os.dup(self.to))
        elif isinstance(self.to, (str, os.PathLike)):
            handle.recording = Recording(handle, self, self._open(self.to, handle.name))
        else:
            ours, theirs = os.pipe()
            try:
                recording = Recording(handle, self, theirs)
            except BaseException:
                os.close(ours)
                raise
            recording.call_back(ours, self.to)
            handle.recording = recording

    def options(self, fd: int) -> ffi.RecordOptions:
        """(For this package.) The options of rollbox_record."""
        options = ffi.RecordOptions(size=ctypes.sizeof(ffi.RecordOptions), fd=fd, **self._options)
        for key, words in self._lists.items():
            array = (ctypes.c_char_p * (len(words) + 1))(
                *(word.encode("utf-8", "surrogateescape") for word in words), None
            )
            setattr(options, key, array)
        return options


class Recording:
    """One sandbox that is recorded. `state` is what `Sandbox.recorded` returns."""

    def __init__(self, handle: Recordable, record: Record, take_fd: int) -> None:
        self.state: dict[str, Any] = {}
        self._thread: Optional[threading.Thread] = None
        try:
            options = record.options(take_fd)
            self.state = handle.json("rollbox_record", ctypes.byref(options))
        finally:
            os.close(take_fd)  # the engine has its own

    def call_back(self, take_fd: int, function: Callable[[Step], Any]) -> None:
        """Calls a function with the steps that come out of a pipe."""
        self._thread = threading.Thread(
            target=_follow, args=(take_fd, function, self.state), name="rollbox-record", daemon=True
        )
        self._thread.start()

    def end(self, answer: Optional[dict[str, Any]]) -> None:
        """The sandbox is closed. `answer` is what the engine said of the record.

        None: the sandbox had ended before; the last line tells whether the record is complete.
        """
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)
            if self._thread.is_alive():
                self.state.setdefault(
                    "problem",
                    "the record's function has not returned yet: it has not seen all steps",
                )
        problem = self.state.get("problem")
        if answer is None:
            self.state.update(complete=None, error=None)
        else:
            self.state.update(
                answer.get("record") or {"complete": False, "error": "the engine is gone"}
            )
        if problem is not None:
            self.state.update(complete=False, error=problem)
        if self.state["complete"] is False:
            warnings.warn(
                f"the trajectory {self.state.get('id')} is incomplete: "
                f"{self.state.get('error') or 'its end could not be written'}",
                RecordWarning,
                stacklevel=4,
            )


def _follow(fd: int, function: Callable[[Step], Any], state: dict[str, Any]) -> None:
    """Calls a function with the steps that come out of a pipe.

    If it raises, the calls end; later steps are dropped.
    """
    try:
        with open(fd, "rb") as file:
            for step in Trajectory(file, "the record"):
                function(step)
    except RollboxError as problem:
        state.setdefault("problem", str(problem))
    except BaseException as problem:  # SystemExit, too: nothing else would report it
        state.setdefault(
            "problem", f"the record's function raised {type(problem).__name__}: {problem}"
        )


def close_answer(text: str) -> dict[str, Any]:
    """The answer of rollbox_sandbox_finish."""
    answer: dict[str, Any] = json.loads(text) if text else {}
    return answer
