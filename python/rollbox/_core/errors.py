# SPDX-License-Identifier: Apache-2.0
# Made by tools/gen_errors.py from the table in include/rollbox/rollbox.h; do not edit.
"""What rollbox could not do: one exception per row of the error table.

What the guest did is never an exception but a Result.
"""

from __future__ import annotations

from typing import Any, Optional

from .shown import shown


class RollboxError(Exception):
    """The base of every error of rollbox.

    Attributes:
        code: The error's name, such as "policy_invalid"; the same in JSON results.
        number: The error's number; the same in C.
        http_status: The status that a server answers with.
        stage: A short word for people: where rollbox failed (arguments, policy, connect, setup,
            exec, run, result), or what failed (files, snapshot, store and the like).
        message: What failed, where, and what to do about it.
        errno: The kernel's error number, or None.
    """

    code: str = "unknown"
    number: int = 0
    http_status: int = 500

    def __init__(self, message: str = "", *, stage: str = "", errno: Optional[int] = None) -> None:
        message = shown(message)  # it may have names that a guest chose
        super().__init__(message)
        self.message = message
        self.stage = stage
        self.errno = errno

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.stage, self.errno)


def _rebuild(
    cls: type[RollboxError], message: str, stage: str, errno: Optional[int]
) -> RollboxError:
    return cls(message, stage=stage, errno=errno)


class InvalidArgument(RollboxError, ValueError):
    """An argument of the call is not valid.

    Correct the call; the message names the argument and its allowed values.
    """

    code = "invalid_argument"
    number = 1
    http_status = 400


class PolicyInvalid(RollboxError, ValueError):
    """The policy is not valid; the message lists every problem with its line.

    Correct the policy. `rollbox policy check FILE` lists the same problems.
    """

    code = "policy_invalid"
    number = 2
    http_status = 400


class PathNotFound(RollboxError, FileNotFoundError):
    """A path that the policy grants does not exist.

    Correct the path, or make the file first. rollbox looks it up when a client prepares the policy.
    """

    code = "path_not_found"
    number = 3
    http_status = 400


class PathDenied(RollboxError, PermissionError):
    """A path that the policy grants cannot be used by the caller.

    Grant only paths that the user who runs rollbox may use; a sandbox never has more rights than
    its owner. A registry that refuses the credentials of `rollbox image pull` or `push` is this
    error, too: log in, or give `--authfile`.
    """

    code = "path_denied"
    number = 4
    http_status = 403


class FeatureMissing(RollboxError, NotImplementedError):
    """The policy asks for isolation or a limit that this kernel or user lacks.

    `rollbox doctor` shows which feature is missing and how to enable it. The code is also for a
    program of the host that is missing (skopeo), for keys of a policy that exclude each other, and
    for a process with a resource that no checkpoint can hold; the message names it. rollbox never
    continues with less isolation than the policy asks for.
    """

    code = "feature_missing"
    number = 5
    http_status = 501


class CommandNotFound(RollboxError, FileNotFoundError):
    """The program does not exist inside the sandbox.

    Look at `argv[0]`, at `PATH` inside the sandbox, and at whether `fs_readable` grants the
    program's directory.
    """

    code = "command_not_found"
    number = 6
    http_status = 422


class NotExecutable(RollboxError, PermissionError):
    """The program exists inside the sandbox but cannot be executed.

    Set the execute bit, or check the interpreter in the `#!` line and the program's architecture.
    """

    code = "not_executable"
    number = 7
    http_status = 422


class BadCwd(RollboxError, FileNotFoundError):
    """The working directory does not exist inside the sandbox.

    Grant the directory, or make it with `files`.
    """

    code = "bad_cwd"
    number = 8
    http_status = 422


class SetupFailed(RollboxError):
    """The kernel refused a step of setting the sandbox up.

    The message names the operation, its object and the errno. Run `rollbox doctor`. The code also
    means that a process of rollbox was killed from outside. If that was the dump worker, and it was
    making a system call in a process of the sandbox, all processes of the sandbox are killed and
    its commands end with this error.
    """

    code = "setup_failed"
    number = 9
    http_status = 500


class ResourceExhausted(RollboxError, OSError):
    """The host is out of memory, file descriptors, processes or disk; try again later.

    Try again later, or with fewer sandboxes at a time. `batch` and `run_many` retry by themselves.
    """

    code = "resource_exhausted"
    number = 10
    http_status = 503


class HostOutOfMemory(RollboxError, MemoryError):
    """The host had no memory left; the guest is not at fault.

    The host, or a control group that the engine is in, ran out of memory, and the OOM killer ended
    the sandbox or its command; the guest is not at fault.

    Run fewer sandboxes at a time, or lower `max_memory`. Never score this error.
    """

    code = "host_out_of_memory"
    number = 11
    http_status = 503


class EngineStartFailed(RollboxError, OSError):
    """The engine could not be started.

    The message names the program that was tried; `ROLLBOX_ENGINE` names another one.
    """

    code = "engine_start"
    number = 12
    http_status = 500


class EngineLost(RollboxError, ConnectionError):
    """The connection to the engine ended; the sandbox is gone.

    Hibernated sessions in the store are kept. In Python the next call starts another engine, or
    connects to the engine that serves the socket then. Repeat a run if that is safe, and open a
    session again. In C, close the handle and open another.
    """

    code = "engine_lost"
    number = 13
    http_status = 502


class EngineBusy(RollboxError):
    """Another engine is serving that socket.

    Use the running engine, or choose another socket path.
    """

    code = "engine_busy"
    number = 14
    http_status = 409


class ProtocolError(RollboxError):
    """Engine and library do not speak the same protocol version.

    Engine and library do not speak the same protocol version, or a message is malformed.

    Use the same version of library and engine; restart a shared engine after an upgrade.
    """

    code = "protocol"
    number = 15
    http_status = 502


class NotFound(RollboxError, LookupError):
    """The operation, sandbox or file does not exist.

    Check the name or id. The engine forgets an ended operation or sandbox after a while. The code
    is also for an image or volume that the store does not have, and for an image, tag or platform
    that a registry does not have.
    """

    code = "not_found"
    number = 16
    http_status = 404


class Cancelled(RollboxError):
    """The caller cancelled the operation.

    There is nothing to correct.
    """

    code = "cancelled"
    number = 17
    http_status = 499


class IOFailed(RollboxError, OSError):
    """Reading or writing a file of the host failed.

    The message names the file and the errno.
    """

    code = "io"
    number = 18
    http_status = 500


class InternalError(RollboxError):
    """A bug in rollbox; please report it.

    Report the message, and try again meanwhile.
    """

    code = "internal"
    number = 19
    http_status = 500


class Conflict(RollboxError):
    """The host's files changed since the sandbox read them; nothing was replaced.

    Look at the changes on the host; commit again with force to overwrite them. The code is also for
    a volume to which another sandbox writes, or which a sandbox uses while it is to be removed; for
    a name or address that is taken; and for a layer or file that changes while it is read. Nothing
    was done then: wait for the other one, or choose another name.
    """

    code = "conflict"
    number = 20
    http_status = 409


class Damaged(RollboxError):
    """A layer or snapshot of the store is damaged; its name is in the message.

    `rollbox store fsck` lists all damaged objects; import them or make them again.
    """

    code = "damaged"
    number = 21
    http_status = 500


class EngineUntrusted(RollboxError):
    """Another user serves the engine's socket, or could; nothing was sent to it.

    Use a socket in a directory that is yours alone, or start an engine of your own. If you trust
    that user, set `ROLLBOX_TRUST_UID` to the user's id.
    """

    code = "engine_untrusted"
    number = 22
    http_status = 403


class GuestInterfered(RollboxError):
    """Processes of the sandbox prevented it.

    The guest is at fault: score it as you score a guest that breaks its sandbox. Kill its processes
    (`kill`), or go back with `reset`, and repeat the call.
    """

    code = "guest_interfered"
    number = 23
    http_status = 409


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
    "GuestInterfered",
]
