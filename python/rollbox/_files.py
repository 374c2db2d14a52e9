# SPDX-License-Identifier: Apache-2.0
"""Files of a session: read, written and moved by rollbox-init inside the sandbox, with the guest's own rights and without a program of the guest's.

Paths in the sandbox are absolute. Names are str; bytes that are no UTF-8 are in them as os.fsdecode has them, so that a name from
`list` can be given back. What goes wrong has `errno`: NotFound (ENOENT), PathDenied (EACCES, EPERM, EROFS), InvalidArgument (EISDIR, ENOTDIR,
EFBIG, ...), ResourceExhausted (ENOSPC, ...), IOFailed (also: the guest has killed or stopped what served the call).
"""

from __future__ import annotations

import base64
import builtins
import ctypes
import errno
import os
import stat as modes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from ._core import ffi
from ._core.errors import InvalidArgument, RollboxError
from ._core.handle import Handle

AnyPath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Progress = Callable[[int, int], object]
"""Called now and then with the bytes and files moved so far. What it raises ends the transfer and comes out of the call."""

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

    Attributes: `name` (the last component), `type` (file, directory, symlink, fifo, socket, block or char), `size` (bytes), `mode` (permission bits),
    `mtime_ns` (since the epoch), `target` (of a symlink, else None).
    """

    name: str
    type: str
    size: int
    mode: int
    mtime_ns: int
    target: Optional[str] = None

    @property
    def is_dir(self) -> bool:
        return self.type == "directory"

    @property
    def is_file(self) -> bool:
        return self.type == "file"

    @property
    def is_symlink(self) -> bool:
        return self.type == "symlink"

    @property
    def st_mode(self) -> int:
        """The mode with its type, as os.stat has it."""
        return self.mode | _TYPES[self.type]

    @property
    def mtime(self) -> float:
        """Seconds since the epoch."""
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
    """The content of a regular file; links are followed as the guest would."""
    data, length = ctypes.c_void_p(), ctypes.c_size_t()
    handle.call(
        "rollbox_file_read",
        _encode("path", path),
        _limit(max_bytes),
        ctypes.byref(data),
        ctypes.byref(length),
    )
    return ffi.take_bytes(data, length.value)


def write_file(
    handle: Handle, path: AnyPath, data: Union[bytes, bytearray, memoryview, str], mode: int = 0o644
) -> None:
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogateescape")
    elif isinstance(data, (bytearray, memoryview)):
        data = bytes(data)
    if not isinstance(data, bytes):
        raise InvalidArgument(
            f"data must be bytes or str, not {type(data).__name__}", stage="arguments"
        )
    handle.call("rollbox_file_write", _encode("path", path), data, len(data), _mode(mode))


def list_files(handle: Handle, path: AnyPath) -> list[FileInfo]:
    rows = handle.json("rollbox_file_list", _encode("path", path))["entries"]
    return sorted((_info(row) for row in rows), key=lambda info: info.name)


def stat_file(handle: Handle, path: AnyPath, follow: bool = True) -> FileInfo:
    return _info(handle.json("rollbox_file_stat", _encode("path", path), bool(follow)))


def _transfer(
    handle: Handle,
    function: str,
    source: bytes,
    target: bytes,
    progress: Optional[Progress],
    max_bytes: Optional[int],
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
        handle.call(function, source, target, callback, None)
    except RollboxError:
        if not raised:
            raise
    if raised:
        raise raised[0]


def upload(
    handle: Handle, host: AnyPath, guest: AnyPath, progress: Optional[Progress] = None
) -> None:
    _transfer(
        handle, "rollbox_upload", _encode("host", host), _encode("guest", guest), progress, None
    )


def download(
    handle: Handle,
    guest: AnyPath,
    host: AnyPath,
    progress: Optional[Progress] = None,
    max_bytes: Optional[int] = None,
) -> None:
    _transfer(
        handle,
        "rollbox_download",
        _encode("guest", guest),
        _encode("host", host),
        progress,
        max_bytes,
    )


class SessionFiles:
    """The file calls of Sandbox. All block; each raises what the module says, or NotFound and EngineLost if the session is gone."""

    def _session(self) -> Handle:
        raise NotImplementedError

    def read_file(self, path: AnyPath, max_bytes: Optional[int] = None) -> bytes:
        """The content of a file in the sandbox. Raises InvalidArgument (errno EFBIG) if it has more than max_bytes (1 GiB)."""
        return read_file(self._session(), path, max_bytes)

    def write_file(
        self, path: AnyPath, data: Union[bytes, bytearray, memoryview, str], mode: int = 0o644
    ) -> None:
        """Makes or replaces a file, a link included, with missing parents: who reads it sees all of the old or all of the new. A str is written as UTF-8."""
        write_file(self._session(), path, data, mode)

    def list(self, path: AnyPath = "/") -> builtins.list[FileInfo]:
        """What is in a directory, by name."""
        return list_files(self._session(), path)

    def stat(self, path: AnyPath, follow: bool = True) -> FileInfo:
        """What a path is; `follow` follows a link at its end."""
        return stat_file(self._session(), path, follow)

    def exists(self, path: AnyPath) -> bool:
        """Whether something is at the path; a link counts, wherever it leads."""
        try:
            self.stat(path, follow=False)
        except RollboxError as problem:
            if problem.errno in (errno.ENOENT, errno.ENOTDIR):
                return False
            raise
        return True

    def mkdir(self, path: AnyPath, mode: int = 0o755) -> None:
        """Makes a directory with its parents; one that is there stays as it is."""
        self._session().call("rollbox_file_mkdir", _encode("path", path), _mode(mode))

    def remove(self, path: AnyPath, recursive: bool = False) -> None:
        """Removes a file, a link or an empty directory; a whole tree if `recursive`."""
        self._session().call("rollbox_file_remove", _encode("path", path), bool(recursive))

    def upload(self, host: AnyPath, guest: AnyPath, progress: Optional[Progress] = None) -> None:
        """A file or tree of the host into the sandbox. Into a directory that is there go the entries of a directory, or a file by its name; parents are made.
        Holes, links and times are kept. What cannot be read is left out, and told by PathDenied when all else is done."""
        upload(self._session(), host, guest, progress)

    def download(
        self,
        guest: AnyPath,
        host: AnyPath,
        progress: Optional[Progress] = None,
        max_bytes: Optional[int] = None,
    ) -> None:
        """A file or tree of the sandbox to the host, likewise. Nothing is followed out of `host`; set-id bits are dropped and the umask holds. The guest decides
        how much it is: `max_bytes` is a bound, give or take a MiB; more raises InvalidArgument (errno EFBIG)."""
        download(self._session(), guest, host, progress, max_bytes)
