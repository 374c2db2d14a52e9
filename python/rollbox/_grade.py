# SPDX-License-Identifier: Apache-2.0
"""grade: a verifier's command on the files of a session, out of the reach of whoever made them.

The verdict is found in a fork in which nothing of the graded runs until the command itself runs it: first what steers verifiers goes
back to what it was, then the verifier's files are put in place, then the command runs with an environment of its own. All this is done by
the file calls, with the guest's own rights and inside its root, on real directories only, so no link leads it astray; and as
nothing else runs in the fork, nothing can change between a look and a write.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import posixpath
import tempfile
import uuid
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, AnyStr, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ._base import size_in_bytes
from ._errors import InvalidArgument, IOFailed, NotFound, PathDenied, RollboxError
from ._files import download, read_file, upload
from ._handle import Handle
from ._policy import Policy
from ._process import conclude
from ._request import ExecRequest, _data
from ._result import Result

if TYPE_CHECKING:
    from ._session import Change, Session

DISTRUSTED = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml", ".coveragerc",
    "sitecustomize.py", "usercustomize.py", "*.pth", "pyvenv.cfg", "entry_points.txt",
    ".git/config", ".git/config.worktree", ".git/commondir", ".git/hooks", ".git/hooks/*", ".git/info/attributes",
    ".bashrc", ".bash_profile", ".bash_login", ".profile", ".zshenv", ".npmrc",
)
"""Names of files that steer test runners, interpreters, git and shells, whoever runs them. A pattern without a slash is for the last
component of a path, one with slashes for its last components."""

_COLLECT_MOST = 16 << 20
_OPTIONS = ("timeout", "max_output", "env", "cwd", "user")
_CANNOT = (PathDenied, IOFailed, InvalidArgument)


@dataclass(frozen=True)
class Grade(Result[AnyStr]):
    """The Result of a verifier's command.

    Attributes: `files`: {path: bytes} of the `collect` paths that are files afterwards. `reset`: the paths that the graded had changed and
    that were put back or replaced, sorted; an honest solution has few or none.
    """

    files: Dict[str, bytes] = field(default_factory=dict, hash=False)
    reset: Tuple[str, ...] = ()


def _stat(handle: Handle, path: str) -> Optional[Dict[str, Any]]:
    """What is there, itself if it is a link; None if nothing."""
    try:
        found: Dict[str, Any] = handle.json("rollbox_file_stat", os.fsencode(path), False)
        return found
    except (NotFound, FileNotFoundError):
        return None


def _remove(handle: Handle, path: str) -> bool:
    """Removes whatever is there; False if nothing was."""
    if _stat(handle, path) is None:
        return False
    handle.call("rollbox_file_remove", os.fsencode(path), True)
    return True


def _prefixes(path: str) -> Iterator[str]:
    """The directories on the way to a path, from below the root on."""
    parts = path.split("/")[1:-1]
    for i in range(len(parts)):
        yield "/" + "/".join(parts[:i + 1])


def _real_parents(handle: Handle, path: str, reset: Set[str]) -> None:
    """Sees to it that what leads to a path are directories; whatever else is in the way is replaced."""
    for directory in _prefixes(path):
        found = _stat(handle, directory)
        if found is not None and found.get("type") == "directory":
            continue
        try:
            if found is not None:
                reset.add(directory)
                handle.call("rollbox_file_remove", os.fsencode(directory), False)
            handle.call("rollbox_file_mkdir", os.fsencode(directory), 0o755)
        except _CANNOT as problem:
            what = "made" if found is None else f"put in place of the {found.get('type')} that is there"
            raise PathDenied(f"grade: the directory {directory} cannot be {what}: {problem}; name {path} by a real path below a directory that "
                             "the sandbox may write", stage="arguments", errno=problem.errno) from None


def _unlocked(handle: Handle, paths: Sequence[str]) -> None:
    """Gives the directories on the way back the rights that their owner took from them."""
    wanted = sorted({directory for path in paths for directory in _prefixes(path)})
    for directory in wanted:
        found = _stat(handle, directory)
        if found is None or found.get("type") != "directory":
            continue
        if not isinstance(found.get("mode"), int) or found["mode"] & 0o700 == 0o700:
            continue
        handle.finish(ExecRequest(["/bin/chmod", "u+rwx", "--", directory], cwd="/", timeout=60), False)


def _shadows(path: str) -> Iterator[str]:
    """What Python would load instead of a module at this path: a package or an extension of its name, beside it."""
    directory, name = posixpath.split(path)
    stem, dot, suffix = name.rpartition(".")
    if suffix == "py" and stem and stem != "__init__":
        yield posixpath.join(directory, stem)
        yield posixpath.join(directory, stem + ".*")


def _absolute(what: str, path: object, cwd: str) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidArgument(f"grade: {what} must be a path (str), not {path!r}", stage="arguments")
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text or ".." in text.split("/"):
        raise InvalidArgument(f"grade: {what} {path!r} must be a path without '..' and NUL", stage="arguments")
    whole = posixpath.normpath(posixpath.join(cwd, text))
    whole = "/" + whole.lstrip("/")
    if whole == "/":
        raise InvalidArgument(f"grade: {what} cannot be the root directory", stage="arguments")
    return whole


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, "*/" + pattern) if "/" in pattern else fnmatch.fnmatchcase(posixpath.basename(path), pattern)
               for pattern in patterns)


def _carry(source: Handle, target: Handle, path: str, most: int, graded: bool = False) -> bool:
    """Copies a file or tree from one sandbox to the other, where nothing is at its path. False: it is of the graded, who have closed it."""
    with tempfile.TemporaryDirectory(prefix="rollbox-grade-") as between:
        copy = os.path.join(between, "copy")
        try:
            download(source, path, copy, max_bytes=most)
        except PathDenied:
            if not graded:
                raise
            return False
        upload(target, copy, path)
        return True


class _Origin:
    """A sandbox with the files of the base, made when it is needed."""

    def __init__(self, session: "Session", base: Optional[str], stack: contextlib.ExitStack) -> None:
        self._session, self._base, self._stack = session, base, stack
        self._made: Optional["Session"] = None
        self.most = size_in_bytes(session.policy.max_disk, 1 << 30)

    def make(self) -> "Session":
        if self._base is None:
            made = type(self._session)(self._session.policy, engine=self._session._engine)
        else:
            made = self._session.fork(1, snapshot=self._base, processes="drop", record=False)[0]
        self._stack.callback(made.close)
        return made

    @property
    def handle(self) -> Handle:
        if self._made is None:
            self._made = self.make()
        return self._made._session()


def _steering(changes: Mapping[str, "Change"], patterns: Sequence[str]) -> List[str]:
    """What of the changes steers verifiers, without what is below another of it. A `.git` that is no directory leads git to another one."""
    found: List[str] = []
    for path, change in sorted(changes.items()):
        if any(path.startswith(other + "/") for other in found):
            continue
        if _matches(path, patterns) or (patterns is DISTRUSTED and path.endswith("/.git") and change.type != "directory"):
            found.append(path)
    return found


def _restore(kid: Handle, changes: Mapping[str, "Change"], steering: Sequence[str], origin: _Origin, reset: Set[str]) -> None:
    """Puts what steers verifiers back to what it is in the base."""
    for path in steering:
        reset.add(path)
        _remove(kid, path)
        if changes[path].change != "A":
            _real_parents(kid, path, reset)
            _carry(origin.handle, kid, path, origin.most)


def _base_of(session: "Session", base: Any) -> Optional[str]:
    """The id of the clean snapshot; None: how the session began."""
    if base is not None:
        return base if isinstance(base, str) else str(base.id)
    return session._first if session._first is not None else next((node.id for node in session.tree() if node.parent is None), None)


def _options(session: "Session", policy: Any, given: Mapping[str, Any]) -> Dict[str, Any]:
    """What the command runs with: the call's arguments over those of the grading policy."""
    keys = policy.to_dict() if isinstance(policy, Policy) else dict(policy or {})
    own = session.policy.to_dict()
    other = sorted(key for key in keys if key not in _OPTIONS and keys[key] != own.get(key))
    if other:
        raise InvalidArgument(f"grade: the policy's {', '.join(other)} cannot differ from the session's, as a fork is of the same policy; "
                              f"{', '.join(_OPTIONS)} can", stage="policy")
    options = {key: keys[key] for key in _OPTIONS if key in keys}
    if "max_output" in options:
        options["max_output"] = size_in_bytes(options["max_output"], 0)
    options["env"] = {**options.get("env", {}), **(given.get("env") or {})}
    options.update((key, value) for key, value in given.items() if value is not None and key != "env")
    return options


def _environment(kid: Handle) -> Dict[str, str]:
    """Of the verifier alone: nothing that lies in the graded's home or caches has a say."""
    home = f"/tmp/.grade-{uuid.uuid4().hex}"
    try:
        kid.call("rollbox_file_mkdir", os.fsencode(home), 0o700)
    except RollboxError:
        home = "/nonexistent"
    return {
        "HOME": home, "XDG_CONFIG_HOME": home + "/.config", "XDG_CACHE_HOME": home + "/.cache",
        "PYTHONNOUSERSITE": "1", "PYTHONPYCACHEPREFIX": home + "/pycache",
        "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "core.hooksPath", "GIT_CONFIG_VALUE_0": "/dev/null",
        "GIT_CONFIG_KEY_1": "core.fsmonitor", "GIT_CONFIG_VALUE_1": "false",
    }


def grade(
    session: "Session",
    files: Mapping[str, Any],
    command: Any,
    *,
    outputs: Optional[Sequence[str]],
    base: Any,
    distrust: Optional[Sequence[str]],
    collect: Sequence[str],
    policy: Any,
    text: bool,
    **given: Any,
) -> Grade[Any]:
    """Session.grade."""
    for what, value in (("outputs", outputs), ("collect", collect), ("distrust", distrust)):
        if isinstance(value, (str, bytes)):
            raise InvalidArgument(f"grade: {what} must be a list, not one {type(value).__name__}", stage="arguments")
    if not isinstance(files, Mapping):
        raise InvalidArgument(f"grade: files must be a mapping of paths to contents, not {type(files).__name__}", stage="arguments")
    options = _options(session, policy, given)
    cwd = os.fspath(options.get("cwd") or session.policy.cwd or "/tmp")
    wanted = {_absolute("a path of files", path, cwd): _data(f"files[{path!r}]", data) for path, data in files.items()}
    taken = None if outputs is None else [_absolute("a path of outputs", path, cwd) for path in outputs]
    collected = {str(path): _absolute("a path of collect", path, cwd) for path in collect}
    patterns = DISTRUSTED if distrust is None else tuple(distrust)
    reset: Set[str] = set()

    with contextlib.ExitStack() as stack:
        origin = _Origin(session, _base_of(session, base), stack)
        begun = origin._base
        if taken is None:
            fork = session.fork(1, processes="drop", record=False)[0]
            stack.callback(fork.close)
        else:
            fork = origin.make()
        fork._shell = session._shell
        kid = fork._session()
        if taken is not None:
            _unlocked(session._session(), [*taken, *(posixpath.join(path, "x") for path in taken)])
            for path in taken:
                if _stat(session._session(), path) is not None:
                    _real_parents(kid, path, reset)
                    _remove(kid, path)
                    if not _carry(session._session(), kid, path, origin.most, True):
                        reset.add(path)
        changes = {change.path: change for change in fork.diff(begun)}
        steering = _steering(changes, patterns)
        _unlocked(kid, [posixpath.join(cwd, "x"), *wanted, *collected.values(), *steering])
        _restore(kid, changes, steering, origin, reset)
        for path in sorted(wanted):
            _real_parents(kid, path, reset)
            for shadow in _shadows(path):
                directory, name = posixpath.split(shadow)
                for entry in kid.json("rollbox_file_list", os.fsencode(directory))["entries"]:
                    beside = posixpath.join(directory, entry["name"])
                    if fnmatch.fnmatchcase(entry["name"], name) and not any(
                            other == beside or other.startswith(beside + "/") for other in wanted):
                        reset.add(beside)
                        _remove(kid, beside)
            if path in changes:
                reset.add(path)
            _remove(kid, path)
        for path, data in sorted(wanted.items()):
            kid.call("rollbox_file_write", os.fsencode(path), data, len(data), 0o444)
        for path in collected.values():
            _real_parents(kid, path, reset)
            if _remove(kid, path) and path in changes:
                reset.add(path)
        options["env"] = {**_environment(kid), **options["env"]}
        argv = [fork._shell_name(), "-c", command] if isinstance(command, str) else command
        result = conclude(kid.finish(ExecRequest(argv, **options), text), text, False)
        found: Dict[str, bytes] = {}
        for name, path in collected.items():
            entry = _stat(kid, path)
            if entry is not None and entry.get("type") == "file":
                found[name] = read_file(kid, path, _COLLECT_MOST)
    return Grade(**{one.name: getattr(result, one.name) for one in fields(Result)}, files=found, reset=tuple(sorted(reset)))

