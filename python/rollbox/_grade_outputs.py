# SPDX-License-Identifier: Apache-2.0
"""Outputs of a graded session: from a state in which nothing runs into the verifier's root.

The copy has two steps. First the tree below an output is listed in the graded state: types, sizes
and names, no content. That decides what is taken, what is dropped and why, and whether it is too
much. Then the rest is copied by way of a private directory of the host, and everything that is not
taken is removed from there. Both states belong to this call alone and nothing of the graded code
runs in either of them, so what was listed is what is copied.

No link is followed on the way to an output or below it. Modes are 0644, or 0755 for programs and
directories; owners, set-id bits, extended attributes and links between files are not copied.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import stat as modes
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ._core.errors import InvalidArgument, NotFound, PathDenied, ResourceExhausted
from ._core.handle import Handle
from ._core.options import size_in_bytes
from ._core.policy import Policy
from ._files import FileInfo, download, list_files, stat_file, upload

DISTRUSTED = (
    # Python: test runners, start-up files, compiled files that are loaded instead of their
    # source, build scripts
    "conftest.py",
    "conftest",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "tox.ini",
    "tox.toml",
    "setup.cfg",
    "setup.py",
    "pyproject.toml",
    ".coveragerc",
    "noxfile.py",
    "sitecustomize",
    "sitecustomize.*",
    "usercustomize",
    "usercustomize.*",
    "*.pth",
    "pyvenv.cfg",
    "entry_points.txt",
    "__pycache__",
    "*.pyc",
    "*.pyo",
    # git
    ".git/config",
    ".git/config.worktree",
    ".git/commondir",
    ".git/gitdir",
    ".git/hooks",
    ".git/hooks/*",
    ".git/info/attributes",
    # shells
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".profile",
    ".zshenv",
    ".zshrc",
    ".inputrc",
    # build tools and other languages' test runners
    "gnumakefile",
    "makefile",
    "bsdmakefile",
    "justfile",
    ".justfile",
    "rakefile",
    ".rspec",
    "package.json",
    ".npmrc",
    ".yarnrc*",
    ".pnp.*",
    ".pnpmfile.*",
    ".mocharc*",
    ".nycrc*",
    ".babelrc*",
    "babel.config.*",
    "jest.config.*",
    "vitest.config.*",
    "vite.config.*",
    "karma.conf.*",
    "tsconfig.json",
    ".swcrc",
    ".cargo",
    "build.rs",
    "rust-toolchain",
    "rust-toolchain.toml",
    "go.work",
    "pom.xml",
    "build.gradle*",
    "settings.gradle*",
    "gradle.properties",
    "phpunit.xml*",
    ".perldb",
    ".proverc",
    ".gdbinit",
    ".lldbinit",
)
"""Names of files that steer test runners, interpreters, build tools, git and shells.

They are compared without regard to case. A pattern without a slash is for the last component of a
path, one with slashes for its last components.
"""

_TEST_DIRECTORIES = {
    "test",
    "tests",
    "testing",
    "spec",
    "specs",
    "__tests__",
    "unittests",
    "e2e",
    "hidden_tests",
    "verifier",
    "grader",
}
_TESTS = ("test_*", "*_test.*", "tests.py", "test.py", "*.test.*", "*.spec.*")
"""What test runners look for. In a directory of the verifier's files these are the verifier's."""

_SYSTEM = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix",
    "/opt",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var",
)
"""Where programs and their files are: only outputs that are named can be there."""

_KERNEL = ("/dev", "/proc", "/sys")

MAX_ENTRIES = 100_000
_MAX_BYTES = 256 << 20
_MAX_DEPTH = 64
_MAX_PATH = 2048
_RUNNERS = {
    "pytest",
    "_pytest",
    "py",
    "pluggy",
    "iniconfig",
    "packaging",
    "nose",
    "nose2",
    "hypothesis",
    "coverage",
    "setuptools",
    "pip",
}
_SHADOWABLE = ({name for name in getattr(sys, "stdlib_module_names", ())} | _RUNNERS) - {
    "test",
    "this",
    "__main__",
}


class OutputsRefused(Exception):
    """Outputs that cannot be graded: the guest caused it."""


def is_below(path: str, directory: str) -> bool:
    """Whether a path is a directory or below it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def parents(path: str) -> Iterator[str]:
    """The directories on the way to a path, from below the root on."""
    parts = path.split("/")[1:-1]
    for i in range(len(parts)):
        yield "/" + "/".join(parts[: i + 1])


def matches_any(path: str, patterns: Sequence[str]) -> bool:
    """Whether a path matches one of the name patterns."""
    path = path.lower()
    name = posixpath.basename(path)
    return any(
        fnmatch.fnmatchcase(path, "*/" + pattern.lower())
        if "/" in pattern
        else fnmatch.fnmatchcase(name, pattern.lower())
        for pattern in patterns
    )


def stat_path(handle: Handle, path: str) -> Optional[FileInfo]:
    """What is at a path, itself if it is a link; None if nothing is."""
    try:
        return stat_file(handle, os.fsencode(path), False)
    except (NotFound, FileNotFoundError):
        return None
    except InvalidArgument:  # a file on the way, or a name too long
        return None


def list_directory(handle: Handle, path: str) -> list[FileInfo]:
    """The entries of a directory."""
    return list_files(handle, os.fsencode(path))


def limit_of(policy: Policy) -> int:
    """How many bytes of outputs a sandbox of a policy can take.

    They must leave room for the verifier's own files and memory.
    """
    disk, memory = (
        size_in_bytes(policy.max_disk, 1 << 30),
        size_in_bytes(policy.max_memory, 512 << 20),
    )
    return min(disk // 2, disk if policy.disk_at == "store" else memory // 2, _MAX_BYTES)


@dataclass
class Rules:
    """Which files are not taken.

    Attributes:
        patterns: Name patterns of files that steer verifiers.
        exact: Outputs that were named as files, which are what was asked for.
        reserved: {path: reason} of paths that the grading itself fills.
        places: Directories that interpreters search for the verifier's modules.
        test_places: Directories that the verifier's files are in.
        modules: The verifier's Python files, without their suffix.
    """

    patterns: Sequence[str]
    exact: set[str]
    reserved: Mapping[str, str]
    places: set[str]
    test_places: set[str]
    modules: set[str]

    def is_own(self, path: str) -> bool:
        """Whether a path is in a test directory that the verifier has files in.

        Of the graded files, only those that were named as files belong there.
        """
        return (
            self.patterns is DISTRUSTED
            and path not in self.exact
            and any(
                path != place and is_below(path, place)
                for place in self.test_places
                if posixpath.basename(place).lower() in _TEST_DIRECTORIES
            )
        )

    def steers(self, path: str, info: FileInfo, in_base: Optional[bool]) -> Optional[str]:
        """Why a path steers the verifier and is no output; None if it is one.

        `in_base`: whether the clean root has it; None: unknown.
        """
        if path in self.reserved:
            return self.reserved[path]
        if path in self.exact:
            return None
        if matches_any(path, self.patterns):
            return "a file of this name steers verifiers"
        if self.patterns is not DISTRUSTED:
            return None
        directory, name = posixpath.split(path)
        if name.lower() == ".git" and info.type != "directory":
            return "it leads git to another repository"
        stem = name.partition(".")[0]
        if self.is_own(path):
            return "it is in a test directory of the verifier's"
        if posixpath.join(directory, stem) in self.modules and not any(
            is_below(one, path) for one in self.reserved
        ):
            return "it would be imported in place of a file of the verifier's"
        if directory in self.test_places:
            if stem == "__init__":
                return "it runs before the verifier's files in its directory"
            if info.type != "directory" and matches_any(path, _TESTS):
                return "it is among the verifier's tests"
        if directory in self.places and not in_base and (stem == "__init__" or stem in _SHADOWABLE):
            return "it would be imported in place of a module of the verifier's"
        return None


@dataclass
class CopyReport:
    """The result of copying outputs.

    Attributes:
        steering: Paths that steer verifiers and were not taken.
        dropped: {path: reason} of what was not taken, these as well.
        missing: Outputs that are not there.
        n_entries: Number of files and directories that were taken.
        n_bytes: Their size.
    """

    steering: set[str] = field(default_factory=set)
    dropped: dict[str, str] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    n_entries: int = 0
    n_bytes: int = 0


class OutputCopier:
    """Copies outputs from the graded state `source` into the verifier's root `target`."""

    def __init__(self, source: Handle, target: Handle, rules: Rules, max_bytes: int) -> None:
        self._source, self._target, self._rules, self._max_bytes = source, target, rules, max_bytes
        self.taken = CopyReport()

    def _drop(self, path: str, reason: str, steers: bool = False) -> None:
        if steers and self._is_unchanged(path):
            return
        self.taken.dropped[path] = reason
        # Every honest run of Python leaves a __pycache__.
        if steers and posixpath.basename(path) != "__pycache__":
            self.taken.steering.add(path)

    def _is_unchanged(self, path: str) -> bool:
        """Whether the graded code has not changed a file, as far as its size and time tell.

        This is for the report: the clean root's file is the one that stays.
        """
        ours, theirs = stat_path(self._target, path), stat_path(self._source, path)
        return (
            ours is not None
            and theirs is not None
            and (ours.type, ours.size, ours.mtime_ns) == (theirs.type, theirs.size, theirs.mtime_ns)
        )

    def _count(self, path: str, info: FileInfo) -> None:
        self.taken.n_entries += 1
        self.taken.n_bytes += info.size if info.type == "file" else 0
        if self.taken.n_entries > MAX_ENTRIES:
            raise OutputsRefused(
                f"the outputs are more than {MAX_ENTRIES} files and directories (at {path!r})"
            )
        if self.taken.n_bytes > self._max_bytes:
            raise OutputsRefused(
                f"the outputs are more than {self._max_bytes} bytes "
                f"(at {path!r}, {info.size} bytes long)"
            )

    def _list(self, path: str) -> tuple[list[tuple[str, FileInfo]], list[str]]:
        """(what is taken below a directory, relative paths of what is not)."""
        found: list[tuple[str, FileInfo]] = []
        unwanted: list[str] = []
        todo = [path]
        while todo:
            directory = todo.pop()
            try:
                inside = list_directory(self._source, directory)
            except PathDenied:
                self._drop(directory, "the directory may not be read")
                continue
            except InvalidArgument as problem:
                raise OutputsRefused(
                    f"the directory {directory!r} cannot be listed: {problem}"
                ) from None
            names = {info.name for info in inside}
            bare = posixpath.basename(directory) != ".git" and {"HEAD", "objects", "refs"} <= names
            base: Optional[set[str]] = None
            for info in inside:
                whole = posixpath.join(directory, info.name)
                if directory in self._rules.places and base is None:
                    base = self._names_in_base(directory)
                reason = self._rules.steers(whole, info, base is not None and info.name in base)
                if (
                    reason is None
                    and bare
                    and self._rules.patterns is DISTRUSTED
                    and info.name in ("config", "hooks", "commondir", "info")
                ):
                    reason = "it steers git in a bare repository"
                if reason is not None:
                    self._drop(whole, reason, True)
                elif info.type not in ("file", "directory"):
                    self._drop(whole, f"it is no plain file or directory but a {info.type}")
                else:
                    if (
                        len(os.fsencode(whole)) > _MAX_PATH
                        or whole.count("/") - path.count("/") > _MAX_DEPTH
                    ):
                        raise OutputsRefused(
                            f"the outputs have directories deeper than {_MAX_DEPTH} levels, or "
                            f"paths longer than {_MAX_PATH} bytes (below {path!r})"
                        )
                    if info.type == "file" and info.mode & 0o7000:
                        self.taken.dropped[whole] = "its set-id bits (the content is taken)"
                    self._count(whole, info)
                    found.append((whole[len(path) + 1 :], info))
                    if info.type == "directory":
                        todo.append(whole)
                    continue
                unwanted.append(whole[len(path) + 1 :])
        return found, unwanted

    def _names_in_base(self, directory: str) -> set[str]:
        info = stat_path(self._target, directory)
        return (
            {one.name for one in list_directory(self._target, directory)}
            if info is not None and info.type == "directory"
            else set()
        )

    def _keep(self, path: str) -> bool:
        """Whether the clean root's file at a path stays: one that steers verifiers."""
        return path not in self._rules.exact and matches_any(path, self._rules.patterns)

    def _clear(self, path: str) -> set[str]:
        """Removes what the clean root has at an output, except what steers verifiers.

        Returns the directories that stay.
        """
        info = stat_path(self._target, path)
        if info is None:
            return set()
        if info.type != "directory":
            if path not in self._rules.test_places and not self._keep(path):
                self._target.call("rollbox_file_remove", os.fsencode(path), False)
            return set()
        tree: dict[str, list[FileInfo]] = {}
        kept: set[str] = set()
        todo = [path]
        while todo:
            directory = todo.pop()
            tree[directory] = list_directory(self._target, directory)
            for one in tree[directory]:
                whole = posixpath.join(directory, one.name)
                if self._stays(whole, one):
                    kept.add(whole)
                elif one.type == "directory":
                    todo.append(whole)
        stays = {
            directory for one in kept for directory in parents(one) if is_below(directory, path)
        } | {path}
        for directory in sorted(stays & set(tree)):
            for one in tree[directory]:
                whole = posixpath.join(directory, one.name)
                if whole not in kept and whole not in stays:
                    self._target.call("rollbox_file_remove", os.fsencode(whole), True)
        return stays | kept

    def _stays(self, whole: str, info: FileInfo) -> bool:
        if self._keep(whole) or self._rules.is_own(whole):
            return True
        directory = posixpath.dirname(whole)
        return (
            self._rules.patterns is DISTRUSTED
            and whole not in self._rules.exact
            and directory in self._rules.test_places
            and (
                info.name.partition(".")[0] == "__init__"
                or (info.type != "directory" and matches_any(whole, _TESTS))
            )
        )

    def remove(self, path: str) -> None:
        """Removes from the verifier's root what the graded code has removed."""
        info = stat_path(self._target, path)
        if info is not None:
            if self._rules.steers(path, info, True):
                self._drop(path, "it steers verifiers and stays", True)
            elif info.type != "directory" or not self._clear(path) - {path}:
                self._target.call("rollbox_file_remove", os.fsencode(path), True)

    def copy_unnamed(self, path: str) -> None:
        """As copy, for a path that was not named: what cannot be taken is dropped."""
        counted = self.taken.n_entries, self.taken.n_bytes
        try:
            self.copy(path, named=False)
        except OutputsRefused as problem:
            self.taken.n_entries, self.taken.n_bytes = counted
            self._drop(path, str(problem))

    def copy(self, path: str, named: bool = True) -> None:
        """Copies one output. Raises OutputsRefused if it was named and cannot be taken."""
        for directory in parents(path):
            info = stat_path(self._source, directory)
            if info is None:
                self.taken.missing.add(path)
                self.remove(path)
                return
            if info.type != "directory":
                raise OutputsRefused(
                    f"output {path!r}: {directory!r} on the way to it is not a directory but a "
                    f"{info.type}"
                )
        try:
            info = stat_path(self._source, path)
        except PathDenied:
            raise OutputsRefused(
                f"output {path!r} is in a directory that may not be entered"
            ) from None
        if info is None:
            self.taken.missing.add(path)
            self.remove(path)
            return
        reason = (
            None
            if named and path not in self._rules.reserved
            else self._rules.steers(path, info, stat_path(self._target, path) is not None)
        )
        if reason is not None:
            self._drop(path, reason, True)
            return
        if info.type not in ("file", "directory"):
            reason = f"it is no plain file or directory but a {info.type}"
            if named:
                raise OutputsRefused(f"output {path!r}: {reason}")
            self._drop(path, reason)
            return
        self._count(path, info)
        found, unwanted = self._list(path) if info.type == "directory" else ([], [])
        stays = self._clear(path)
        if info.type == "directory" and path in self.taken.dropped:
            return  # the guest may not read the directory
        self._move(path, info, found, unwanted, stays, named)

    def _move(
        self,
        path: str,
        info: FileInfo,
        found: list[tuple[str, FileInfo]],
        unwanted: list[str],
        stays: set[str],
        named: bool,
    ) -> None:
        with tempfile.TemporaryDirectory(prefix="rollbox-grade-") as between:
            copy = os.fsencode(os.path.join(between, "copy"))
            try:
                download(
                    self._source, os.fsencode(path), copy, max_bytes=self._max_bytes + (1 << 20)
                )
            except PathDenied as problem:
                if info.type == "file":
                    if named:
                        raise OutputsRefused(
                            f"output {path!r} may not be read: {problem}"
                        ) from None
                    self._drop(path, "it may not be read")
                    return
            if info.type == "file":
                os.chmod(copy, 0o755 if info.mode & 0o100 else 0o644)
                upload(self._target, copy, os.fsencode(path))
                return
            os.chmod(copy, 0o755)
            found.sort()
            for name, one in found:  # a directory comes before its entries
                if one.type == "directory":
                    _open_directory(os.path.join(copy, os.fsencode(name)))
            for name in unwanted:
                _remove(os.path.join(copy, os.fsencode(name)))
            for name, one in found:
                there = os.path.join(copy, os.fsencode(name))
                whole = posixpath.join(path, name)
                try:
                    kind = os.lstat(there).st_mode
                except OSError:
                    self._drop(whole, "it may not be read")
                    continue
                if one.type == "file" and modes.S_ISREG(kind) and whole not in stays:
                    os.chmod(there, 0o755 if one.mode & 0o100 else 0o644)
                elif one.type != "directory" or not modes.S_ISDIR(kind):
                    self._drop(
                        whole,
                        "it is in the place of a directory with files that steer verifiers"
                        if whole in stays
                        else "it is no plain file",
                        whole in stays,
                    )
                    _remove(there)
            upload(self._target, copy, os.fsencode(path))


def _open_directory(path: bytes) -> None:
    try:
        if modes.S_ISDIR(os.lstat(path).st_mode):
            os.chmod(path, 0o755)
    except OSError:
        pass


def _remove(path: bytes) -> None:
    """Removes a file or tree of the host's copy, whose depth is bounded."""
    try:
        if not modes.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
        os.chmod(path, 0o700)
        for name in os.listdir(path):
            _remove(os.path.join(path, name))
        os.rmdir(path)
    except FileNotFoundError:
        pass


def is_system_path(path: str) -> bool:
    """Whether a path is where programs and their files are."""
    return any(is_below(path, directory) for directory in _SYSTEM)


def is_kernel_path(path: str) -> bool:
    """Whether a path is in a file system of the kernel's."""
    return any(is_below(path, directory) for directory in _KERNEL)


def is_out_of_space(problem: BaseException) -> bool:
    """Whether a write failed because there was no room."""
    return isinstance(problem, ResourceExhausted) or getattr(problem, "errno", None) in (
        27,
        28,
        122,
    )
