# SPDX-License-Identifier: Apache-2.0
"""Result: how a run ended. The fields are those of `rollbox run --json`."""

from __future__ import annotations

import base64
import enum
import json
import re
from dataclasses import dataclass, field
from typing import Any, AnyStr, Generic, Optional, Union

from .errors import RollboxError
from .shown import shown

JobId = Union[str, int]


class Outcome(str, enum.Enum):
    """How a run ended.

    A str, so that `result.outcome == "timeout"` and JSON work as expected.
    """

    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"
    ERROR = "error"

    def __str__(self) -> str:
        return self.value


OUTCOMES = tuple(Outcome)
"""By their C number."""


class RunFailed(Exception):
    """A program did not exit with status 0.

    Raised by `Result.check` and `run(check=True)`. The program did it, so it is not a RollboxError.

    Attributes:
        result: The whole Result.
    """

    def __init__(self, result: Result[Any]) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        result = self.result
        what = {
            Outcome.EXIT: f"the program exited with status {result.exit_code}",
            Outcome.SIGNAL: f"the program was killed by signal {result.signal}",
            Outcome.TIMEOUT: f"the program reached its time-out after {result.wall_ms:.0f} ms",
            Outcome.OUT_OF_MEMORY: "the program ran out of memory",
            Outcome.OUTPUT_LIMIT: "the program wrote more than its output limit",
        }.get(result.outcome, f"outcome {result.outcome}")
        tail = _text(result.stderr).strip()[-400:]
        what += f"; stderr ends: {shown(tail)}" if tail else ""
        return what + "".join(f" ({hint})" for hint in _network_hints(result))


def _text(data: Union[bytes, str]) -> str:
    return data if isinstance(data, str) else data.decode("utf-8", "replace")


_REPR_TAIL = 200

NO_NETWORK = (
    "the sandbox has no network (net none); choose net loopback for a private network, net allow "
    "for hosts that you name, or net host for the host's"
)
# What programs say that want a network; src/cli/outcome.c has the same. Without one, bind and
# connect are EACCES, which alone may as well be about a file.
_WANTS_NETWORK = re.compile(
    "Cannot assign requested address|EADDRNOTAVAIL|Network is unreachable|ENETUNREACH"
    "|Temporary failure in name resolution|Name or service not known|Could not resolve host"
    "|EAI_AGAIN"
)
_DENIED = re.compile("[Pp]ermission denied|EACCES")
_NETWORK_CALLS = re.compile("bind|listen|connect|socket")


def _wants_network(result: Result[Any]) -> bool:
    """Whether a program failed that has no network, and wrote last that it wanted one."""
    if result.outcome is not Outcome.EXIT or not result.exit_code:
        return False
    if result.isolation.get("net") != "none":
        return False
    tail = _text(result.stderr[-1024:])
    if _WANTS_NETWORK.search(tail):
        return True
    return bool(_DENIED.search(tail) and _NETWORK_CALLS.search(tail))


def _network_hints(result: Result[Any]) -> list[str]:
    """What the program's failure has to do with its network, where that is known."""
    hints = [NO_NETWORK] if _wants_network(result) else []
    refusals = (result.network or {}).get("refusals", [])
    if result.outcome is Outcome.EXIT and result.exit_code and refusals:
        some = [
            f"{one['host']}{':' + str(one['port']) if one['port'] else ''} ({one['why']})"
            for one in refusals[:3]
        ]
        more = f" and {len(refusals) - 3} more" if len(refusals) > 3 else ""
        hints.append(f"the network rules refused {', '.join(some)}{more}")
    return hints


def _tail(data: Union[bytes, str]) -> str:
    """The end of a stream for a repr: errors stand there."""
    return ("..." if len(data) > _REPR_TAIL else "") + repr(data[-_REPR_TAIL:])


@dataclass(frozen=True, repr=False)
class Result(Generic[AnyStr]):
    """How a run ended. Immutable and picklable.

    Attributes:
        outcome: exit, signal, timeout, out_of_memory, output_limit or error. "error" says nothing
            about the program: rollbox could not run it.
        exit_code: The exit status; None unless the outcome is exit.
        signal: The signal's number; None unless the outcome is signal.
        stdout: bytes, or str of a run with text=True; also what was written before a time-out or
            kill.
        stderr: Likewise.
        stdout_truncated: There was more than stdout has.
        stderr_truncated: There was more than stderr has.
        wall_ms: Milliseconds from the program's start to its end.
        cpu_ms: Milliseconds of user and system time of all processes.
        peak_memory_bytes: The most memory that the sandbox had at once.
        processes_peak: The most processes that the sandbox had at once.
        isolation: The isolation that was applied.
        error: The RollboxError of an outcome "error", else None.
        id: In a batch, the job's id; else None.
        network: With net "allow", what the command did in the network: a dict with connections,
            refused, up, down (bytes), hosts, refusals and mode. Else None.
        queue_ms: How long a run waited in the queues of the engine and its server before it began;
            None if that is not known. It is not in wall_ms, nor in to_dict.
    """

    outcome: Outcome
    exit_code: Optional[int]
    signal: Optional[int]
    stdout: AnyStr
    stderr: AnyStr
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    peak_memory_bytes: int = 0
    processes_peak: int = 0
    isolation: dict[str, Any] = field(default_factory=dict, hash=False)
    error: Optional[RollboxError] = None
    id: Optional[JobId] = None
    network: Optional[dict[str, Any]] = field(default=None, hash=False)
    queue_ms: Optional[float] = field(default=None, hash=False, compare=False)

    def __repr__(self) -> str:
        """One short line: how it ended, the ends of its streams, how long it took."""
        parts = [
            {Outcome.EXIT: f"exit {self.exit_code}", Outcome.SIGNAL: f"signal {self.signal}"}.get(
                self.outcome, str(self.outcome)
            )
        ]
        parts += [] if self.id is None else [f"id={self.id!r}"]
        parts += (
            [f"error={self.error.code}: {self.error.message!r}"] if self.error is not None else []
        )
        for name in ("stdout", "stderr"):
            data = getattr(self, name)
            parts += (
                [
                    f"{name}={_tail(data)}"
                    + (" (truncated)" if getattr(self, name + "_truncated") else "")
                ]
                if data
                else []
            )
        parts += _network_hints(self)
        parts += self._repr_more()
        return f"<{type(self).__name__} {', '.join(parts)}, {self.wall_ms:.1f} ms>"

    def _repr_more(self) -> list[str]:
        """More words for the repr of a subclass."""
        return []

    @property
    def text(self) -> str:
        """Standard output as str, with invalid UTF-8 replaced."""
        return _text(self.stdout)

    @property
    def ok(self) -> bool:
        """Whether the program exited with status 0."""
        return self.outcome is Outcome.EXIT and self.exit_code == 0

    def check(self) -> Result[AnyStr]:
        """Returns the Result itself if it is `ok`.

        Raises:
            RollboxError: rollbox could not run the program (`error`).
            RunFailed: The program failed.
        """
        if self.ok:
            return self
        if self.error is not None:
            raise self.error
        raise RunFailed(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns the object that `rollbox run --json` prints.

        Streams are str; stdout_base64 and stderr_base64 are there, too, where the bytes are not
        UTF-8.
        """
        row: dict[str, Any] = {} if self.id is None else {"id": self.id}
        row.update(outcome=self.outcome.value, exit_code=self.exit_code, signal=self.signal)
        for name, data in (("stdout", self.stdout), ("stderr", self.stderr)):
            row[name] = _text(data)
            if isinstance(data, bytes) and row[name].encode("utf-8") != data:
                row[name + "_base64"] = base64.b64encode(data).decode("ascii")
        row.update(
            stdout_truncated=self.stdout_truncated,
            stderr_truncated=self.stderr_truncated,
            wall_ms=round(self.wall_ms, 3),
            cpu_ms=round(self.cpu_ms, 3),
            peak_memory_bytes=self.peak_memory_bytes,
            processes_peak=self.processes_peak,
            isolation=self.isolation,
            error=None
            if self.error is None
            else {
                "code": self.error.code,
                "stage": self.error.stage,
                "message": self.error.message,
            },
        )
        if self.network is not None:
            row["network"] = self.network
        return row

    def to_json(self) -> str:
        """Returns `to_dict` as one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)
