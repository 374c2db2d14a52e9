# SPDX-License-Identifier: Apache-2.0
"""Text that a guest may have chosen, safe for a terminal: the counterpart of utf8_shown.

The C function is in src/base/utf8.c.
"""

from __future__ import annotations

import re

_ACTING = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f"
    r"\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def shown(text: str, allowed: str = "\n\t") -> str:
    """Replaces characters that a terminal acts on, except `allowed` ones, by escapes.

    Also those that change the order of their neighbours, or cannot be encoded.
    """

    def escape(match: re.Match[str]) -> str:
        one = match.group()
        code = ord(one)
        if one in allowed:
            return one
        if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as os.fsdecode has it
            code -= 0xDC00
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _ACTING.sub(escape, text)
