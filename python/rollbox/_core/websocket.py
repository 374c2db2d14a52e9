# SPDX-License-Identifier: Apache-2.0
"""WebSocket: the client's side of RFC 6455, as far as channels of a server need it.

The package has no dependencies, and the standard library has no WebSocket; what is left of it for a
client of one known server are these two functions. The server is `rollbox serve`, which the caller
has authenticated by its address. Its messages are not fragmented and not masked; anything else, and
a message above MESSAGE_MAX, ends the connection.
"""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from typing import Optional

from .errors import ProtocolError

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
MESSAGE_MAX = 256 << 20
"""A result has the whole output of a command."""
_SALT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def new_key() -> str:
    """The key of a handshake."""
    return base64.b64encode(os.urandom(16)).decode("ascii")


def is_accepted(key: str, answer: Optional[str]) -> bool:
    """Whether a server's Sec-WebSocket-Accept answers this key."""
    digest = hashlib.sha1(key.encode("ascii") + _SALT, usedforsecurity=False).digest()
    return answer == base64.b64encode(digest).decode("ascii")


def _mask(data: bytes, key: bytes) -> bytes:
    length = len(data)
    stream = (key * (length // 4 + 1))[:length]
    masked = int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")
    return masked.to_bytes(length, "big")


def frame(kind: int, data: bytes) -> bytes:
    """One message of a client, masked as the RFC demands."""
    length = len(data)
    head = bytes([0x80 | kind])
    if length < 126:
        head += bytes([0x80 | length])
    elif length < 1 << 16:
        head += struct.pack("!BH", 0x80 | 126, length)
    else:
        head += struct.pack("!BQ", 0x80 | 127, length)
    key = os.urandom(4)
    return head + key + _mask(data, key)


def take_message(data: bytearray) -> Optional[tuple[int, bytes]]:
    """Takes the first message out of what was received; None if it is not complete.

    Raises ProtocolError.
    """
    if len(data) < 2:
        return None
    length, start = data[1], 2
    if length == 126:
        start = 4
    elif length == 127:
        start = 10
    if len(data) < start:
        return None
    if start > 2:
        length = int.from_bytes(data[2:start], "big")
    if not data[0] & 0x80 or data[0] & 0x70 or data[1] & 0x80 or length > MESSAGE_MAX:
        raise ProtocolError("the server sent a frame of another kind", stage="connect")
    if len(data) < start + length:
        return None
    kind, message = data[0] & 15, bytes(data[start : start + length])
    del data[: start + length]
    return kind, message
