# SPDX-License-Identifier: Apache-2.0
"""The program `rollbox`, which does what has to do with images."""

from __future__ import annotations

import json

from . import errors, ffi


def program() -> str:
    """Its path."""
    for place in ffi.find_binary("rollbox"):
        if place.is_file():
            return str(place)
    raise errors.EngineStartFailed("the program rollbox is missing; install the whole package")


def program_error(text: bytes) -> errors.RollboxError:
    """The exception for its standard error, whose last line is the error as JSON."""
    try:
        found = json.loads(text.splitlines()[-1])["error"]
    except (IndexError, ValueError, KeyError, TypeError):
        return errors.InternalError(text.decode(errors="replace") or "the program was killed")
    cls = ffi.exception_class(found["code"]) or errors.RollboxError
    return cls(found["message"], stage=found.get("stage", ""), errno=found.get("errno") or None)
