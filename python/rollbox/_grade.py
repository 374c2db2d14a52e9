# SPDX-License-Identifier: Apache-2.0
"""grade: a verifier's command on the outputs of a session, in a new sandbox.

Nothing of the graded code runs there, and nothing of it is there but these outputs. Two sandboxes
are made for each verdict, and both end with it:

- the graded state: a fork of the session's files without its processes. Only the file calls look
  into it.
- the verifier's root: a new sandbox of the session's policy, of its clean snapshot, or of a policy
  of the verifier's own. It has no layer that was made after the clean snapshot. The outputs are
  copied into it as plain files (_grade_outputs.py), then the verifier's files are put in place,
  then the command runs.

What the guest can cause is a Grade with a `reason`. Exceptions are for wrong arguments and for what
rollbox itself could not do.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import posixpath
import tempfile
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, AnyStr, Optional

from ._core.errors import (
    Cancelled,
    CommandNotFound,
    EngineBusy,
    EngineLost,
    EngineStartFailed,
    FeatureMissing,
    GuestInterfered,
    HostOutOfMemory,
    InternalError,
    InvalidArgument,
    IOFailed,
    NotFound,
    PathDenied,
    PolicyInvalid,
    ProtocolError,
    RollboxError,
)
from ._core.handle import Handle
from ._core.options import PolicyLike, size_in_bytes
from ._core.policy import Policy
from ._core.request import RUN_TIMEOUT_S, Argv, Data, ExecRequest, as_bytes
from ._core.result import Outcome, Result
from ._files import download, read_file, upload, write_file
from ._grade_outputs import (
    DISTRUSTED,
    OutputCopier,
    OutputsRefused,
    Rules,
    is_below,
    is_kernel_path,
    is_out_of_space,
    is_system_path,
    limit_of,
    list_directory,
    matches_any,
    parents,
    stat_path,
)
from ._process import finish_result
from ._session import Session
from ._snapshots import Change, SnapshotLike

VERIFIER_CONTROL_FILES = DISTRUSTED

_MAX_COLLECT = 16 << 20
_OPTIONS = ("timeout", "max_output", "env", "cwd", "user")
_RULES = ("net_allow_hosts", "net_allow")
_CANNOT = (PathDenied, IOFailed, InvalidArgument, GuestInterfered)
_INFRASTRUCTURE = (
    EngineLost,
    EngineBusy,
    EngineStartFailed,
    ProtocolError,
    InternalError,
    Cancelled,
    HostOutOfMemory,
    FeatureMissing,
    PolicyInvalid,
)


class UnsafeGrading(UserWarning):
    """Grading took more from the graded code than named outputs.

    Warned once per process for each such way of grading.
    """


@dataclass(frozen=True)
class Grade(Result[AnyStr]):
    """The Result of a verifier's command, or why there is none.

    Attributes:
        files: {path: bytes} of the `collect` paths that are plain files afterwards.
        reset: The paths that steer verifiers and that the graded code had changed, sorted; the
            clean ones were used. An honest solution has few or none.
        reason: Why the graded code has failed regardless of the verifier's answer; else None.
        dropped: {path: reason} of output files that were not taken.
    """

    files: dict[str, bytes] = field(default_factory=dict, hash=False)
    reset: tuple[str, ...] = ()
    reason: Optional[str] = None
    dropped: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def ok(self) -> bool:
        """Whether the verifier exited with status 0, and there is no reason against it."""
        return self.reason is None and self.outcome is Outcome.EXIT and self.exit_code == 0

    def to_dict(self) -> dict[str, Any]:
        """Returns the object of Result.to_dict, with ok, reason, reset and dropped."""
        return {
            **super().to_dict(),
            "ok": self.ok,
            "reason": self.reason,
            "reset": list(self.reset),
            "dropped": dict(self.dropped),
        }

    def __repr__(self) -> str:
        how = {Outcome.EXIT: f"exit {self.exit_code}", Outcome.SIGNAL: f"signal {self.signal}"}.get(
            self.outcome, str(self.outcome)
        )
        parts = [("passed" if self.ok else "failed") + ("" if self.reason else f" ({how})")]
        parts += [f"reason={self.reason!r}"] if self.reason else []
        parts += [
            f"{name}={_short(value)}"
            for name in ("stdout", "stderr", "files", "reset", "dropped")
            for value in (getattr(self, name),)
            if value
        ]
        return f"<Grade {', '.join(parts)}>"


def _short(value: Any) -> str:
    if isinstance(value, dict):
        value = {
            key: one if isinstance(one, str) else one[:80] for key, one in list(value.items())[:8]
        }
    elif isinstance(value, tuple):
        value = list(value[:8])
    else:
        value = value[-200:]
    return repr(value)


_warned: set[str] = set()


def _warn_once(what: str) -> None:
    if what not in _warned:
        _warned.add(what)
        warnings.warn(what, UnsafeGrading, stacklevel=5)


def _failed_grade(
    reason: str,
    text: bool,
    reset: Sequence[str] = (),
    dropped: Optional[Mapping[str, str]] = None,
    result: Optional[Result[Any]] = None,
) -> Grade[Any]:
    """A Grade that failed by what the guest did."""
    if result is not None:
        return Grade(
            **_fields_of(result), reset=tuple(reset), reason=reason, dropped=dict(dropped or {})
        )
    message = f"grade: {reason}\n"
    return Grade(
        outcome=Outcome.EXIT,
        exit_code=1,
        signal=None,
        stdout="" if text else b"",
        stderr=message if text else message.encode("utf-8", "replace"),
        reset=tuple(reset),
        reason=reason,
        dropped=dict(dropped or {}),
    )


def _fields_of(result: Result[Any]) -> dict[str, Any]:
    return {one.name: getattr(result, one.name) for one in fields(Result)}


def _remove(handle: Handle, path: str) -> bool:
    """Removes the entry at a path; False if there is none."""
    if stat_path(handle, path) is None:
        return False
    handle.call("rollbox_file_remove", os.fsencode(path), True)
    return True


def _make_parents(handle: Handle, path: str, reset: set[str]) -> None:
    """Makes sure that the parents of a path are directories; replaces what is in the way."""
    for directory in parents(path):
        found = stat_path(handle, directory)
        if found is not None and found.type == "directory":
            continue
        try:
            if found is not None:
                reset.add(directory)
                handle.call("rollbox_file_remove", os.fsencode(directory), False)
            handle.call("rollbox_file_mkdir", os.fsencode(directory), 0o755)
        except _CANNOT as problem:
            what = "made" if found is None else f"put in place of the {found.type} that is there"
            raise PathDenied(
                f"grade: the directory {directory} cannot be {what}: {problem}; name {path} by a "
                f"real path below a directory that "
                "the sandbox may write",
                stage="arguments",
                errno=problem.errno,
            ) from None


def _shadowing_paths(path: str) -> Iterator[str]:
    """What Python would load in place of a module at this path.

    A package or an extension of its name, beside it.
    """
    directory, name = posixpath.split(path)
    stem, dot, suffix = name.rpartition(".")
    if suffix == "py" and stem and stem != "__init__":
        yield posixpath.join(directory, stem)
        yield posixpath.join(directory, stem + ".*")


def _absolute(what: str, path: object, cwd: str) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidArgument(
            f"grade: {what} must be a path (str), not {path!r}", stage="arguments"
        )
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text or ".." in text.split("/"):
        raise InvalidArgument(
            f"grade: {what} {path!r} must be a path without '..' and NUL", stage="arguments"
        )
    whole = posixpath.normpath(posixpath.join(cwd, text))
    whole = "/" + whole.lstrip("/")
    if whole == "/":
        raise InvalidArgument(f"grade: {what} cannot be the root directory", stage="arguments")
    if is_kernel_path(whole):
        raise InvalidArgument(
            f"grade: {what} {path!r} belongs to the kernel and is not a file of the sandbox",
            stage="arguments",
        )
    return whole


def _base_of(session: Session, base: Optional[SnapshotLike]) -> Optional[str]:
    """The id of the clean snapshot; None: the beginning of the session.

    An automatic snapshot, and one of hibernation, was taken among the graded code's steps.
    """
    if base is not None:
        return base if isinstance(base, str) else base.id
    if session._first is not None:
        return session._first
    root = next((node for node in session.tree() if node.parent is None), None)
    return root.id if root is not None and not root.automatic and root.kind != "asleep" else None


def _options(
    session: Session, policy: PolicyLike, verifier: Optional[Policy], given: Mapping[str, Any]
) -> dict[str, Any]:
    """What the command runs with: the call's arguments over those of the grading policy."""
    keys = policy.to_dict() if isinstance(policy, Policy) else dict(policy or {})
    own = session.policy.to_dict()
    other = sorted(
        key
        for key in keys
        if key not in _OPTIONS
        and keys[key] != own.get(key)
        and not (key in _RULES and _has_rules(session.policy))
    )
    if other:
        raise InvalidArgument(
            f"grade: the policy's {', '.join(other)} cannot differ from the session's; "
            f"{', '.join(_OPTIONS)} can. "
            "verifier=Policy(...) runs the command in a root of its own, with any policy",
            stage="policy",
        )
    options = {key: keys[key] for key in _OPTIONS if key in keys}
    if "max_output" in options:
        options["max_output"] = size_in_bytes(options["max_output"], 0)
    options["env"] = {**options.get("env", {}), **(given.get("env") or {})}
    options.update(
        (key, value) for key, value in given.items() if value is not None and key != "env"
    )
    if options.get("timeout") is None:
        # A verifier that runs the graded program has no more time than a run.
        allowed = (verifier or session.policy).timeout
        options["timeout"] = RUN_TIMEOUT_S if allowed is None else allowed
    return options


def _has_rules(policy: Policy) -> bool:
    """Whether a sandbox of that policy reaches hosts by rules."""
    keys = policy.to_dict()
    return keys.get("net") == "allow" or any(keys.get(key) for key in _RULES)


def _rules(policy: PolicyLike) -> list[Any]:
    """The hosts that the verifier may reach: those that its own policy names."""
    keys = policy.to_dict() if isinstance(policy, Policy) else dict(policy or {})
    return [rule for key in _RULES for rule in keys.get(key) or ()]


def _environment(root: Handle, owner: Optional[str]) -> dict[str, str]:
    """An environment of the verifier's own.

    Nothing in the home or the caches of the graded code has a say.
    """
    home = f"/tmp/.grade-{uuid.uuid4().hex}"
    try:
        if owner is None:
            root.call("rollbox_file_mkdir", os.fsencode(home), 0o700)
        else:
            _give_directory(root, home, owner)
    except RollboxError as problem:
        if isinstance(problem, _INFRASTRUCTURE):
            raise
        home = "/nonexistent"
    return {
        "HOME": home,
        "XDG_CONFIG_HOME": home + "/.config",
        "XDG_CACHE_HOME": home + "/.cache",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPYCACHEPREFIX": home + "/pycache",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_COUNT": "3",
        "GIT_CONFIG_KEY_0": "core.hooksPath",
        "GIT_CONFIG_VALUE_0": "/dev/null",
        "GIT_CONFIG_KEY_1": "core.fsmonitor",
        "GIT_CONFIG_VALUE_1": "false",
        "GIT_CONFIG_KEY_2": "safe.bareRepository",
        "GIT_CONFIG_VALUE_2": "explicit",
    }


@dataclass
class _Job:
    """The arguments of one call, checked."""

    session: Session
    files: dict[str, bytes]
    command: Argv
    outputs: Optional[list[str]]
    base: Optional[str]
    verifier: Optional[Policy]
    patterns: Sequence[str]
    collect: dict[str, str]
    cwd: str
    in_place: bool
    options: dict[str, Any]
    hosts: list[Any]
    text: bool
    trace: bool

    def owner(self, root: Session) -> Optional[str]:
        """The user whose files the verifier's are; None: readable to everybody.

        A policy of one user has no other that could read them.
        """
        user = self.options.get("user")
        return str(user) if user is not None and root.policy.users == "many" else None

    def rules(self) -> Rules:
        """The rules of what is taken."""
        reserved = {path: "the verifier has a file there" for path in self.files}
        reserved.update(
            (path, "the verifier's command writes it") for path in self.collect.values()
        )
        test_places = {posixpath.dirname(path) for path in self.files}
        places = (
            test_places
            | {directory for path in self.files for directory in parents(path)}
            | {self.cwd}
        )
        modules = {
            path[:-3]
            for path in self.files
            if path.endswith(".py") and posixpath.basename(path) != "__init__.py"
        }
        return Rules(self.patterns, set(self.outputs or ()), reserved, places, test_places, modules)


def _graded_state(session: Session, stack: contextlib.ExitStack) -> Session:
    """The session's present files, in a sandbox without processes.

    A guest that hinders the copy loses its processes.
    """

    def copy() -> Session:
        made = session._fork_sessions(1, None, "drop", False)[0]
        stack.callback(made.close)
        return made

    try:
        return copy()
    except RollboxError as problem:
        if isinstance(problem, (*_INFRASTRUCTURE, NotFound)):
            raise
    session.kill_all()
    return copy()


def _clean_root(job: _Job, stack: contextlib.ExitStack) -> Session:
    session = job.session
    if job.verifier is not None or job.base is None:
        made = type(session)(
            job.verifier if job.verifier is not None else session.policy, engine=session._engine
        )
    else:
        made = session._fork_sessions(1, job.base, "drop", False)[0]
    stack.callback(made.close)
    return made


def _copy_all_changes(job: _Job, copier: OutputCopier, state: Session) -> None:
    """Without named outputs: copies everything that changed since the clean snapshot.

    The directories of programs are left out.
    """
    changes = state.diff(job.base)
    added: list[str] = []
    for change in sorted(changes, key=lambda one: one.path):
        path = change.path
        if any(is_below(path, other) for other in added[-1:]):
            continue
        if is_system_path(path) and not is_below(path, job.cwd):
            if change.type != "directory":
                copier.taken.dropped[path] = "it is where programs are; name it as an output"
        elif change.change == "D":
            copier.remove(path)
        elif change.change == "A" or change.type != "directory":
            added.append(path)
            copier.copy_unnamed(path)


def _steering(changes: Mapping[str, Change], patterns: Sequence[str]) -> list[str]:
    """The changes that steer verifiers, without those below another one.

    A `.git` that is no directory leads git to another repository.
    """
    found: list[str] = []
    for path, change in sorted(changes.items()):
        if any(path.startswith(other + "/") for other in found):
            continue
        if matches_any(path, patterns) or (
            patterns is DISTRUSTED and path.endswith("/.git") and change.type != "directory"
        ):
            found.append(path)
    return found


def _prepare_in_place(
    job: _Job, kid: Session, stack: contextlib.ExitStack, reset: set[str]
) -> None:
    """For unsafe_in_place: restores what steers verifiers from the clean snapshot.

    Everything else stays.
    """
    handle = kid._session()
    changes = {change.path: change for change in kid.diff(job.base)}
    steering = _steering(changes, job.patterns)
    origin: Optional[Handle] = None
    for path in steering:
        reset.add(path)
        _remove(handle, path)
        if changes[path].change != "A":
            origin = origin or _clean_root(job, stack)._session()
            _make_parents(handle, path, reset)
            with _host_copy() as copy:
                download(origin, os.fsencode(path), copy, max_bytes=limit_of(job.session.policy))
                upload(handle, copy, os.fsencode(path))
    for path in job.files:
        _make_parents(handle, path, reset)
        for shadow in _shadowing_paths(path):
            directory, name = posixpath.split(shadow)
            for entry in list_directory(handle, directory):
                beside = posixpath.join(directory, entry.name)
                if fnmatch.fnmatchcase(entry.name, name) and not any(
                    is_below(other, beside) for other in job.files
                ):
                    reset.add(beside)
                    _remove(handle, beside)
    for path in (*job.files, *job.collect.values()):
        if path in changes:
            reset.add(path)


@contextlib.contextmanager
def _host_copy() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="rollbox-grade-") as between:
        yield os.path.join(between, "copy")


def _give_directory(root: Handle, path: str, owner: str) -> None:
    """Makes a directory of another user's, which is there and empty, or not there."""
    with tempfile.TemporaryDirectory(prefix="rollbox-grade-") as between:
        os.mkdir(os.path.join(between, "empty"), 0o700)
        upload(root, os.path.join(between, "empty"), os.fsencode(path), owner=owner)


def _put_files(job: _Job, root: Handle, reset: set[str], owner: Optional[str]) -> None:
    """Writes the verifier's files over existing ones.

    With a user of the verifier's own, no other user but root can read them. It also removes the
    entries at paths that the command will write.
    """
    for path in sorted(job.files):
        _make_parents(root, path, reset)
        _remove(root, path)
    for path, data in sorted(job.files.items()):
        write_file(root, path, data, 0o444 if owner is None else 0o400, owner=owner)
    for path in job.collect.values():
        if owner is not None and stat_path(root, posixpath.dirname(path)) is None:
            _make_parents(root, posixpath.dirname(path), reset)
            _give_directory(root, posixpath.dirname(path), owner)
        _make_parents(root, path, reset)
        _remove(root, path)


def _run(job: _Job, root: Session) -> Result[Any]:
    handle = root._session()
    options = {
        **job.options,
        "env": {**_environment(handle, job.owner(root)), **job.options["env"]},
        "no_trace": not job.trace,
    }
    if not isinstance(job.command, str):
        return finish_result(
            handle.finish(ExecRequest(job.command, **options), job.text), job.text, False
        )
    try:
        return finish_result(
            handle.finish(ExecRequest(["bash", "-c", job.command], **options), job.text),
            job.text,
            False,
        )
    except CommandNotFound:
        return finish_result(
            handle.finish(ExecRequest(["sh", "-c", job.command], **options), job.text),
            job.text,
            False,
        )


def _collected(job: _Job, root: Session) -> tuple[dict[str, bytes], Optional[str]]:
    """What the command has written, once nothing runs, and why that is no verdict."""
    left = [row for row in root.processes() if row.get("state") != "Z"]
    root.kill_all()
    if left and job.collect:
        return {}, (
            f"the verifier has left {len(left)} process(es) running (such as "
            f"{str(left[0].get('command'))[:80]!r}), which could have "
            "written what was to be collected"
        )
    found: dict[str, bytes] = {}
    for name, path in job.collect.items():
        try:
            if all(
                one is not None and one.type == "directory"
                for one in (stat_path(root._session(), directory) for directory in parents(path))
            ):
                entry = stat_path(root._session(), path)
                if entry is not None and entry.type == "file" and entry.size <= _MAX_COLLECT:
                    found[name] = read_file(root._session(), os.fsencode(path), _MAX_COLLECT)
        except (PathDenied, InvalidArgument, NotFound):
            continue  # not a plain file that may be read: not there
    return found, None


def _judge(job: _Job, stack: contextlib.ExitStack) -> Grade[Any]:
    reset: set[str] = set()
    dropped: dict[str, str] = {}
    n_copied = 0
    refused: Optional[str] = None
    state = _graded_state(job.session, stack)
    root = state if job.in_place else _clean_root(job, stack)
    # The graded code's rules are not the verifier's.
    if job.verifier is None and _has_rules(job.session.policy):
        root.net_set(job.hosts)
    try:
        if job.in_place:
            _prepare_in_place(job, root, stack, reset)
        else:
            copier = OutputCopier(
                state._session(), root._session(), job.rules(), limit_of(root.policy)
            )
            dropped, reset = copier.taken.dropped, copier.taken.steering
            try:
                if job.outputs is None:
                    _copy_all_changes(job, copier, state)
                else:
                    _check_roots(job, root)
                    for path in sorted(job.outputs):
                        copier.copy(path)
            finally:
                n_copied = copier.taken.n_entries
            state.close()
    except OutputsRefused as problem:  # the verifier still has its say, but cannot make it pass
        refused = str(problem)
    except (PathDenied, InvalidArgument, NotFound, OSError) as problem:
        if (
            isinstance(problem, _INFRASTRUCTURE)
            or getattr(problem, "stage", "") == "arguments"
            or (
                isinstance(problem, OSError)
                and not is_out_of_space(problem)
                and not isinstance(problem, (PathDenied, NotFound, InvalidArgument))
            )
        ):
            raise
        refused = f"the outputs cannot be copied: {problem}"
    try:
        _put_files(job, root._session(), reset, job.owner(root))
    except RollboxError as problem:
        if isinstance(problem, _INFRASTRUCTURE) or not (
            refused or job.in_place or (n_copied and is_out_of_space(problem))
        ):
            raise
        return _failed_grade(
            f"there is no room for the verifier's files beside the outputs: {problem}",
            job.text,
            sorted(reset),
            dropped,
        )
    result = _run(job, root)
    found, reason = _collected(job, root)
    order = tuple(sorted(reset))
    reason = refused or reason
    if reason is not None:
        return _failed_grade(reason, job.text, order, dropped, result)
    return Grade(**_fields_of(result), files=found, reset=order, dropped=dropped)


def _check_roots(job: _Job, root: Session) -> None:
    """Refuses an output that is named by way of a link in the clean root.

    This is the caller's mistake, not the graded code's.
    """
    for path in job.outputs or ():
        for directory in parents(path):
            found = stat_path(root._session(), directory)
            if found is not None and found.type == "symlink":
                raise InvalidArgument(
                    f"grade: the output {path} leads over {directory}, which is a link to "
                    f"{found.target}; name it by its real path",
                    stage="arguments",
                )


def grade(
    session: Session,
    files: Mapping[str, Data],
    command: Argv,
    *,
    outputs: Optional[Sequence[str]],
    base: Optional[SnapshotLike],
    verifier: Optional[Policy],
    distrust: Optional[Sequence[str]],
    collect: Sequence[str],
    unsafe_in_place: bool,
    policy: PolicyLike,
    text: bool,
    trace: bool,
    **given: Any,
) -> Grade[Any]:
    """Sandbox.grade."""
    for what, value in (("outputs", outputs), ("collect", collect), ("distrust", distrust)):
        if isinstance(value, (str, bytes)):
            raise InvalidArgument(
                f"grade: {what} must be a list, not one {type(value).__name__}", stage="arguments"
            )
    if not isinstance(files, Mapping):
        raise InvalidArgument(
            f"grade: files must be a mapping of paths to contents, not {type(files).__name__}",
            stage="arguments",
        )
    if verifier is not None and not isinstance(verifier, Policy):
        raise InvalidArgument(
            f"grade: verifier must be a Policy, not {verifier!r}", stage="arguments"
        )
    if verifier is not None and (outputs is None or base is not None or unsafe_in_place):
        raise InvalidArgument(
            "grade: a verifier's own root takes named outputs: give outputs, and neither base nor "
            "unsafe_in_place",
            stage="arguments",
        )
    if unsafe_in_place and outputs is not None:
        raise InvalidArgument(
            "grade: unsafe_in_place takes everything: give it without outputs", stage="arguments"
        )
    options = _options(session, policy, verifier, given)
    cwd = posixpath.normpath(os.fspath(options.get("cwd") or session.policy.cwd or "/tmp"))
    job = _Job(
        session,
        {
            _absolute("a path of files", path, cwd): as_bytes(f"files[{path!r}]", data)
            for path, data in files.items()
        },
        command,
        None
        if outputs is None
        else [_absolute("a path of outputs", path, cwd) for path in outputs],
        None,
        verifier,
        DISTRUSTED if distrust is None or distrust is DISTRUSTED else tuple(distrust),
        {str(path): _absolute("a path of collect", path, cwd) for path in collect},
        cwd,
        unsafe_in_place,
        options,
        _rules(policy),
        text,
        trace,
    )
    for shared in (verifier or session.policy).fs_shared or ():
        for path in (*job.files, *(job.outputs or ()), *job.collect.values()):
            if is_below(path, str(shared)) or is_below(str(shared), path):
                raise InvalidArgument(
                    f"grade: {path} is in {shared}, which is shared with the host and so with the "
                    f"graded; use a path outside of fs_shared",
                    stage="arguments",
                )
    job.base = _base_of(session, base) if verifier is None else None
    if unsafe_in_place:
        _warn_once(
            "grade(unsafe_in_place=True) runs the verifier among the files that the graded has "
            "left: programs, modules and data that "
            "it changed can decide the verdict. Name the outputs instead"
        )
    elif outputs is None:
        _warn_once(
            "grade without outputs takes every file that was changed since the clean snapshot. "
            "Name the files that the graded is to "
            "deliver (outputs=[...]), and nothing else that it left can matter"
        )
    with contextlib.ExitStack() as stack:
        return _judge(job, stack)
