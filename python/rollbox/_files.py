# SPDX-License-Identifier: Apache-2.0
"""Files of a session: read, written and moved by rollbox-init inside the sandbox.

It acts with the guest's own rights and without any program of the guest. Paths in the sandbox are
absolute. Names are str; bytes that are not UTF-8 are as of os.fsdecode, so that a name from `list`
can be given back.

An error has the `errno` of the kernel: NotFound (ENOENT), PathDenied (EACCES, EPERM, EROFS),
InvalidArgument (EISDIR, ENOTDIR, EFBIG, ...), ResourceExhausted (ENOSPC, ...), IOFailed. Should the
guest kill the process that serves a call, the call is made again while the guest is frozen. It
is GuestInterfered when eight have been killed.
"""

from __future__ import annotations

import base64
import builtins
import errno
import os
import stat as modes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from ._core import ffi
from ._core.errors import InvalidArgument, RollboxError
from ._core.handle import Handle

User = Union[str, int]
AnyPath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Progress = Callable[[int, int], object]
"""Called with the bytes and files moved so far. An exception ends the transfer and is raised."""

_TYPES = {
    "file": modes.S_IFREG,
    "directory": modes.S_IFDIR,
    "symlink": modes.S_IFLNK,
    "fifo": modes.S_IFIFO,
    "socket": modes.S_IFSOCK,
    "block": modes.S_IFBLK,
    "char": modes.S_IFCHR,
}


@dataclass(frozen=True)
class FileInfo:
    """One file of a sandbox.

    Attributes:
        name: The last component of its path.
        type: "file", "directory", "symlink", "fifo", "socket", "block" or "char".
        size: Bytes.
        mode: Permission bits.
        mtime_ns: Time of its last change, in nanoseconds since 1970.
        target: Where a symlink leads to, else None.
    """

    name: str
    type: str
    size: int
    mode: int
    mtime_ns: int
    target: Optional[str] = None

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.type == "directory"

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.type == "file"

    @property
    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return self.type == "symlink"

    @property
    def st_mode(self) -> int:
        """The mode with the type's bits, as of os.stat."""
        return self.mode | _TYPES[self.type]

    @property
    def mtime(self) -> float:
        """Time of its last change, in seconds since 1970."""
        return self.mtime_ns / 1e9


def _encode(what: str, path: AnyPath) -> bytes:
    try:
        text = os.fspath(path)
        data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    except (TypeError, UnicodeEncodeError):
        raise InvalidArgument(
            f"{what} must be a path (str, bytes or os.PathLike), not {path!r}", stage="arguments"
        ) from None
    if not data or b"\0" in data:
        raise InvalidArgument(f"{what} is empty or has a NUL in it: {path!r}", stage="arguments")
    return data


def decode_name(row: Mapping[str, Any], key: str) -> str:
    """The name in a JSON row, which is there as base64 if it is not UTF-8."""
    raw = row.get(key + "_base64")
    text: str = (
        row[key] if raw is None else base64.b64decode(raw).decode("utf-8", "surrogateescape")
    )
    return text


def _info(row: Mapping[str, Any]) -> FileInfo:
    return FileInfo(
        decode_name(row, "name"),
        row["type"],
        row["size"],
        row["mode"],
        row["mtime_ns"],
        decode_name(row, "target") if "target" in row else None,
    )


def _limit(max_bytes: Optional[int]) -> int:
    if max_bytes is None:
        return 0
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or not 0 < max_bytes < 1 << 63:
        raise InvalidArgument(
            f"max_bytes must be a number above 0 or None, not {max_bytes!r}", stage="arguments"
        )
    return max_bytes


def _mode(mode: int) -> int:
    if isinstance(mode, bool) or not isinstance(mode, int) or not 0 < mode <= 0o1777:
        raise InvalidArgument(
            f"mode must be permission bits (up to 0o1777), not {mode!r}", stage="arguments"
        )
    return mode


def read_file(handle: Handle, path: AnyPath, max_bytes: Optional[int] = None) -> bytes:
    """Reads a regular file; links are followed as the guest would."""
    return handle.read_file(_encode("path", path), _limit(max_bytes))


def _as_user(options: ffi.FileOptions, user: Optional[User], owner: Optional[User]) -> None:
    if user is not None:
        options.user = _encode("user", str(user))
    if owner is not None:
        options.owner = _encode("owner", str(owner))


def write_file(
    handle: Handle,
    path: AnyPath,
    data: Union[bytes, bytearray, memoryview, str],
    mode: int = 0o644,
    user: Optional[User] = None,
    owner: Optional[User] = None,
) -> None:
    """Writes a file."""
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogateescape")
    elif isinstance(data, (bytearray, memoryview)):
        data = bytes(data)
    if not isinstance(data, bytes):
        raise InvalidArgument(
            f"data must be bytes or str, not {type(data).__name__}", stage="arguments"
        )
    if user is None and owner is None:
        handle.call("rollbox_file_write", _encode("path", path), data, len(data), _mode(mode))
        return
    options = ffi.FileOptions()
    options.mode = _mode(mode)
    _as_user(options, user, owner)
    handle.call("rollbox_file_write_as", _encode("path", path), data, len(data), options)


def list_files(handle: Handle, path: AnyPath) -> list[FileInfo]:
    """Lists a directory, by name."""
    rows = handle.json("rollbox_file_list", _encode("path", path))["entries"]
    return sorted((_info(row) for row in rows), key=lambda info: info.name)


def stat_file(handle: Handle, path: AnyPath, follow: bool = True) -> FileInfo:
    """Describes one path."""
    return _info(handle.json("rollbox_file_stat", _encode("path", path), bool(follow)))


def _transfer(
    handle: Handle,
    function: str,
    source: bytes,
    target: bytes,
    progress: Optional[Progress],
    max_bytes: Optional[int],
    options: Optional[ffi.FileOptions] = None,
) -> None:
    limit = _limit(max_bytes)
    raised: list[BaseException] = []

    def told(done: int, files: int, _: Any) -> int:
        try:
            if limit and done > limit:
                raise InvalidArgument(
                    f"the transfer has more than max_bytes ({limit})",
                    stage="files",
                    errno=errno.EFBIG,
                )
            if progress is not None:
                progress(done, files)
        except BaseException as problem:
            raised.append(problem)
            return 1
        return 0

    callback = ffi.PROGRESS(told) if progress is not None or limit else ffi.PROGRESS()
    try:
        if options is None:
            handle.call(function, source, target, callback, None)
        else:
            options.progress = callback
            handle.call(function, source, target, options)
    except RollboxError:
        if not raised:
            raise
    if raised:
        raise raised[0]


def upload(
    handle: Handle,
    host: AnyPath,
    guest: AnyPath,
    progress: Optional[Progress] = None,
    user: Optional[User] = None,
    owner: Optional[User] = None,
) -> None:
    """Copies a file or tree of the host into the sandbox."""
    source, target = _encode("host", host), _encode("guest", guest)
    if user is None and owner is None:
        _transfer(handle, "rollbox_upload", source, target, progress, None)
        return
    options = ffi.FileOptions()
    _as_user(options, user, owner)
    _transfer(handle, "rollbox_upload_as", source, target, progress, None, options)


def download(
    handle: Handle,
    guest: AnyPath,
    host: AnyPath,
    progress: Optional[Progress] = None,
    max_bytes: Optional[int] = None,
) -> None:
    """Copies a file or tree of the sandbox to the host."""
    _transfer(
        handle,
        "rollbox_download",
        _encode("guest", guest),
        _encode("host", host),
        progress,
        max_bytes,
    )


class SessionFiles:
    """The file calls of Sandbox. All block."""

    def _session(self) -> Handle:
        raise NotImplementedError

    def read_file(self, path: AnyPath, max_bytes: Optional[int] = None) -> bytes:
        """Reads a file in the sandbox.

        Args:
            path: An absolute path.
            max_bytes: The most to read; None: 1 GiB.

        Returns:
            The content.

        Raises:
            InvalidArgument: The file is larger (errno EFBIG), or is no regular file.
            NotFound: There is no such file.
            PathDenied: The guest may not read it.
        """
        return read_file(self._session(), path, max_bytes)

    def write_file(
        self,
        path: AnyPath,
        data: Union[bytes, bytearray, memoryview, str],
        mode: int = 0o644,
        *,
        user: Optional[User] = None,
        owner: Optional[User] = None,
    ) -> None:
        """Creates or replaces a file, with missing parent directories.

        A reader sees all of the old or all of the new content. A link is replaced, not followed.

        Args:
            path: An absolute path.
            data: The content; a str is written as UTF-8.
            mode: Permission bits.
            user: With users "many": the user whose rights the call has, and whose the new files
                are, as for `exec`. Default: root.
            owner: With users "many": root writes, and gives new files and directories to
                "USER[:GROUP]".

        Raises:
            PathDenied: The guest may not write there.
            ResourceExhausted: There is no room.

        Example:
            >>> from rollbox import Sandbox
            >>> with Sandbox() as box:
            ...     box.write_file("/tmp/new/greeting", "hello")
            ...     box.read_file("/tmp/new/greeting")
            b'hello'
        """
        write_file(self._session(), path, data, mode, user, owner)

    def list(self, path: AnyPath = "/") -> builtins.list[FileInfo]:
        """Lists a directory.

        Args:
            path: An absolute path.

        Returns:
            A FileInfo of each entry, by name.

        Raises:
            NotFound: There is no such directory.
            InvalidArgument: It is no directory.
        """
        return list_files(self._session(), path)

    def stat(self, path: AnyPath, follow: bool = True) -> FileInfo:
        """Describes the file at a path.

        Args:
            path: An absolute path.
            follow: Follow a link at its end.

        Returns:
            The FileInfo.

        Raises:
            NotFound: Nothing is there.
        """
        return stat_file(self._session(), path, follow)

    def exists(self, path: AnyPath) -> bool:
        """Tells whether something is at a path; a link counts, wherever it leads.

        Args:
            path: An absolute path.

        Returns:
            Whether something is there.

        Raises:
            PathDenied: The guest may not look there.
        """
        try:
            self.stat(path, follow=False)
        except RollboxError as problem:
            if problem.errno in (errno.ENOENT, errno.ENOTDIR):
                return False
            raise
        return True

    def mkdir(self, path: AnyPath, mode: int = 0o755) -> None:
        """Creates a directory with its parents; an existing one stays as it is.

        Args:
            path: An absolute path.
            mode: Permission bits.

        Raises:
            PathDenied: The guest may not write there.
            InvalidArgument: A file is in the way.
        """
        self._session().call("rollbox_file_mkdir", _encode("path", path), _mode(mode))

    def remove(self, path: AnyPath, recursive: bool = False) -> None:
        """Removes a file, a link or an empty directory.

        Args:
            path: An absolute path.
            recursive: Remove a directory with all that is in it.

        Raises:
            NotFound: Nothing is there.
            PathDenied: The guest may not write there.
        """
        self._session().call("rollbox_file_remove", _encode("path", path), bool(recursive))

    def upload(
        self,
        host: AnyPath,
        guest: AnyPath,
        progress: Optional[Progress] = None,
        *,
        user: Optional[User] = None,
        owner: Optional[User] = None,
    ) -> None:
        """Copies a file or tree of the host into the sandbox.

        Into an existing directory go the entries of a directory, or a file under its name. Missing
        parents are made. Holes, links and times are kept.

        Args:
            host: A path on the host.
            guest: An absolute path in the sandbox.
            progress: Called now and then with the bytes and files copied so far; an exception of it
                ends the transfer and is raised.
            user: With users "many": the user whose rights the call has, and whose the new files
                are, as for `exec`. Default: root.
            owner: With users "many": root writes, and gives new files and directories to
                "USER[:GROUP]".

        Raises:
            PathDenied: Something could not be read; everything else was copied.
            ResourceExhausted: There is no room.
        """
        upload(self._session(), host, guest, progress, user, owner)

    def download(
        self,
        guest: AnyPath,
        host: AnyPath,
        progress: Optional[Progress] = None,
        max_bytes: Optional[int] = None,
    ) -> None:
        """Copies a file or tree of the sandbox to the host.

        Nothing is followed out of `host`. Set-id bits are dropped, and the umask applies. The guest
        decides how much it is: bound it.

        Args:
            guest: An absolute path in the sandbox.
            host: A path on the host.
            progress: As for `upload`.
            max_bytes: The most to copy, give or take a MiB.

        Raises:
            InvalidArgument: There is more than max_bytes (errno EFBIG).
            NotFound: Nothing is there.
            PathDenied: The guest may not read it.
        """
        download(self._session(), guest, host, progress, max_bytes)
