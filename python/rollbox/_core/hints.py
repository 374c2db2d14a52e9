# SPDX-License-Identifier: Apache-2.0
"""Did-you-mean: the words that an error names for a name that does not exist."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional, TypeVar, cast

# Names that other libraries have for a method; difflib finds those that are only misspelt.
_OTHER_NAMES = {
    "execute": "exec",
    "exec_run": "exec",
    "run_command": "exec",
    "commands": "exec",
    "cmd": "exec",
    "system": "exec",
    "popen": "spawn",
    "kill": "close",
    "stop": "close",
    "destroy": "close",
    "delete": "close",
    "terminate": "close",
    "remove": "close",
    "shutdown": "close",
    "checkpoint": "snapshot",
    "save": "snapshot",
    "branch": "fork",
    "clone": "fork",
    "rollback": "reset",
    "revert": "reset",
    "restore": "reset",
    "put": "upload",
    "get": "download",
    "copy_to": "upload",
    "copy_from": "download",
    "write": "write_file",
    "read": "read_file",
    "ls": "list_files",
}


def nearest(name: str, names: Iterable[str]) -> Optional[str]:
    """The name that is most like `name`, or None."""
    import difflib  # only for an error, and slow to load

    found = difflib.get_close_matches(name, list(names), 1, 0.6)
    return found[0] if found else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of an error text: "; did you mean 'x'?", or "" if nothing is near."""
    near = nearest(name, names)
    return f"; did you mean {near!r}?" if near else ""


def refuse_unknown(
    what: str, given: Mapping[str, Any], names: Iterable[str], policy_keys: Iterable[str] = ()
) -> None:
    """Raises TypeError for the first keyword that is none of `names`.

    The text is Python's, and names the keyword that was probably meant.
    """
    known = list(names)
    for name in given:
        if name in known:
            continue
        if name in policy_keys:
            raise TypeError(
                f"{what}() got an unexpected keyword argument {name!r}; it is a key of the policy: "
                f"{what}(Policy({name}=...))"
            )
        raise TypeError(
            f"{what}() got an unexpected keyword argument {name!r}{did_you_mean(name, known)}"
        )


def no_attribute(obj: object, name: str) -> AttributeError:
    """The AttributeError for a name that an object does not have.

    Python's own suggestion is only in tracebacks.
    """
    names = [one for one in dir(type(obj)) if not one.startswith("_")]
    other = _OTHER_NAMES.get(name)
    near = other if other in names else nearest(name, names) if not name.startswith("_") else None
    return AttributeError(
        f"{type(obj).__name__!r} object has no attribute {name!r}"
        + (f"; did you mean {near!r}?" if near else "")
    )


_F = TypeVar("_F", bound=Callable[..., None])


def check_keywords(policy_keys: Iterable[str] = ()) -> Callable[[_F], _F]:
    """Decorates an `__init__`, whose TypeError for an unknown keyword then names the one meant."""
    keys = frozenset(policy_keys)

    def decorate(init: _F) -> _F:
        names = frozenset(inspect.signature(init).parameters)

        @functools.wraps(init)
        def checked(self: object, *arguments: Any, **options: Any) -> None:
            if not names.issuperset(options):
                refuse_unknown(type(self).__name__, options, names, keys)
            init(self, *arguments, **options)

        return cast(_F, checked)

    return decorate
