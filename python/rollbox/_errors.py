# SPDX-License-Identifier: Apache-2.0
# Made by tools/gen_errors.py from the table in include/rollbox/rollbox.h; do not edit.
"""What rollbox could not do, one exception a row of the error table. What the guest did is never an exception but a Result."""

from __future__ import annotations

from typing import Any, Optional, Tuple, Type


class RollboxError(Exception):
    """The base of every error of rollbox.

    Attributes: `code` (str: "policy_invalid", ...; as in JSON results), `number` (int: the same on the wire), `http_status` (int), `stage` (str: a short
    word for people, where it failed: arguments, policy, connect, setup, exec, run, result, or what failed: files, snapshot, store), `message` (str: what, where, how to mend it), `errno` (int or None).
    """

    code: str = "unknown"
    number: int = 0
    http_status: int = 500

    def __init__(self, message: str = "", *, stage: str = "", errno: Optional[int] = None) -> None:
        super().__init__(message)
        self.message = message
        self.stage = stage
        self.errno = errno

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> Tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.stage, self.errno)


def _rebuild(cls: Type[RollboxError], message: str, stage: str, errno: Optional[int]) -> RollboxError:
    return cls(message, stage=stage, errno=errno)


class InvalidArgument(RollboxError, ValueError):
    """An argument of the call is not valid."""

    code = "invalid_argument"
    number = 1
    http_status = 400


class PolicyInvalid(RollboxError, ValueError):
    """The policy is not valid; the message lists every problem with its line."""

    code = "policy_invalid"
    number = 2
    http_status = 400


class PathNotFound(RollboxError, FileNotFoundError):
    """A path that the policy grants does not exist."""

    code = "path_not_found"
    number = 3
    http_status = 400


class PathDenied(RollboxError, PermissionError):
    """A path that the policy grants cannot be used by the caller."""

    code = "path_denied"
    number = 4
    http_status = 403


class FeatureMissing(RollboxError, NotImplementedError):
    """The policy asks for isolation or a limit that this kernel or user cannot give."""

    code = "feature_missing"
    number = 5
    http_status = 501


class CommandNotFound(RollboxError, FileNotFoundError):
    """The program does not exist inside the sandbox."""

    code = "command_not_found"
    number = 6
    http_status = 422


class NotExecutable(RollboxError, PermissionError):
    """The program exists inside the sandbox but cannot be executed."""

    code = "not_executable"
    number = 7
    http_status = 422


class BadCwd(RollboxError, FileNotFoundError):
    """The working directory does not exist inside the sandbox."""

    code = "bad_cwd"
    number = 8
    http_status = 422


class SetupFailed(RollboxError):
    """The kernel refused a step of setting the sandbox up."""

    code = "setup_failed"
    number = 9
    http_status = 500


class ResourceExhausted(RollboxError, OSError):
    """The host is out of memory, file descriptors, processes or disk; try again later."""

    code = "resource_exhausted"
    number = 10
    http_status = 503


class HostOutOfMemory(RollboxError, MemoryError):
    """The host, or a control group that the engine is in, had no memory left, and the OOM killer ended the sandbox or its command; the guest is not at fault."""

    code = "host_out_of_memory"
    number = 11
    http_status = 503


class EngineStartFailed(RollboxError, OSError):
    """The engine could not be started."""

    code = "engine_start"
    number = 12
    http_status = 500


class EngineLost(RollboxError, ConnectionError):
    """The connection to the engine ended; the sandbox is gone."""

    code = "engine_lost"
    number = 13
    http_status = 502


class EngineBusy(RollboxError):
    """Another engine is serving that socket."""

    code = "engine_busy"
    number = 14
    http_status = 409


class ProtocolError(RollboxError):
    """Engine and library do not speak the same protocol version, or a message is malformed."""

    code = "protocol"
    number = 15
    http_status = 502


class NotFound(RollboxError, LookupError):
    """No such operation, sandbox or file."""

    code = "not_found"
    number = 16
    http_status = 404


class Cancelled(RollboxError):
    """The caller cancelled the operation."""

    code = "cancelled"
    number = 17
    http_status = 499


class IOFailed(RollboxError, OSError):
    """Reading or writing a file of the host failed."""

    code = "io"
    number = 18
    http_status = 500


class InternalError(RollboxError):
    """A bug in rollbox; please report it."""

    code = "internal"
    number = 19
    http_status = 500


class Conflict(RollboxError):
    """What is to be replaced on the host was changed meanwhile."""

    code = "conflict"
    number = 20
    http_status = 409


class Damaged(RollboxError):
    """A layer or snapshot of the store is damaged; its name is in the message."""

    code = "damaged"
    number = 21
    http_status = 500


class EngineUntrusted(RollboxError):
    """Another user serves the engine's socket, or could; nothing was sent to it."""

    code = "engine_untrusted"
    number = 22
    http_status = 403


__all__ = [
    "RollboxError",
    "InvalidArgument",
    "PolicyInvalid",
    "PathNotFound",
    "PathDenied",
    "FeatureMissing",
    "CommandNotFound",
    "NotExecutable",
    "BadCwd",
    "SetupFailed",
    "ResourceExhausted",
    "HostOutOfMemory",
    "EngineStartFailed",
    "EngineLost",
    "EngineBusy",
    "ProtocolError",
    "NotFound",
    "Cancelled",
    "IOFailed",
    "InternalError",
    "Conflict",
    "Damaged",
    "EngineUntrusted",
]
