# SPDX-License-Identifier: Apache-2.0
"""Text that a guest may have chosen, as a terminal shows it: the twin of utf8_shown (src/base/utf8.c)."""

from __future__ import annotations

import re

_ACTING = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]")


def shown(text: str, allowed: str = "\n\t") -> str:
    """The text with an escape for each character, except those of `allowed`, that a terminal acts on, that changes the order of
    its neighbours, or that cannot be encoded."""

    def escape(match: "re.Match[str]") -> str:
        one = match.group()
        code = ord(one)
        if one in allowed:
            return one
        if 0xdc80 <= code <= 0xdcff:        # a byte that is not UTF-8, as os.fsdecode has it
            code -= 0xdc00
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _ACTING.sub(escape, text)
