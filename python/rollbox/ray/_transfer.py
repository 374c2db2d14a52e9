# SPDX-License-Identifier: Apache-2.0
"""Files and trees between the caller's machine and a sandbox on another node, as tar archives."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from typing import Any

from .._core.errors import InvalidArgument

_NAME = "content"


def pack(path: str) -> bytes:
    """A file or tree of this machine."""
    if not os.path.lexists(path):
        raise InvalidArgument(f"{path} does not exist on this machine", stage="files")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(path, _NAME)
    return buffer.getvalue()


def unpack(data: bytes, directory: str) -> str:
    """Writes a packed file or tree into a directory, as this user's; returns its path."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
        for member in members:
            member.uid, member.gid = os.getuid(), os.getgid()
            member.uname = member.gname = ""
            member.mode &= 0o777
        archive.extractall(directory, members, numeric_owner=True)
    return os.path.join(directory, _NAME)


def upload(box: Any, data: bytes, guest: str, options: dict[str, Any]) -> None:
    """Puts a packed file or tree into a sandbox of this node."""
    with tempfile.TemporaryDirectory(prefix="rollbox-ray-") as place:
        box.upload(unpack(data, place), guest, **options)


def download(box: Any, guest: str, max_bytes: Any) -> bytes:
    """Packs a file or tree of a sandbox of this node."""
    with tempfile.TemporaryDirectory(prefix="rollbox-ray-") as place:
        path = os.path.join(place, _NAME)
        box.download(guest, path, max_bytes=max_bytes)
        return pack(path)
