# SPDX-License-Identifier: Apache-2.0
"""Did-you-mean: the words that an error names for a name that does not exist."""

from __future__ import annotations

import difflib
import inspect
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional

# Names that other libraries have for a method here; difflib finds those that are only spelt wrong.
_OTHER_NAMES = {
    "execute": "exec", "exec_run": "exec", "run_command": "exec", "commands": "exec", "cmd": "exec", "system": "exec", "popen": "spawn",
    "kill": "close", "stop": "close", "destroy": "close", "delete": "close", "terminate": "close", "remove": "close", "shutdown": "close",
    "checkpoint": "snapshot", "save": "snapshot", "branch": "fork", "clone": "fork", "rollback": "reset", "revert": "reset", "restore": "reset",
    "put": "upload", "get": "download", "copy_to": "upload", "copy_from": "download", "write": "write_file", "read": "read_file", "ls": "list_files",
}


def nearest(name: str, names: Iterable[str]) -> Optional[str]:
    """The name that is most like `name`, or None."""
    found = difflib.get_close_matches(name, list(names), 1, 0.6)
    return found[0] if found else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """"; did you mean 'x'?", or "" if nothing is near."""
    near = nearest(name, names)
    return f"; did you mean {near!r}?" if near else ""


def refuse_unknown(what: str, given: Mapping[str, Any], names: Iterable[str], policy_keys: Iterable[str] = ()) -> None:
    """Raises TypeError for the first keyword of a call that is none of `names`, as Python would, with the name that was probably meant."""
    known = list(names)
    for name in given:
        if name in known:
            continue
        if name in policy_keys:
            raise TypeError(f"{what}() got an unexpected keyword argument {name!r}; it is a key of the policy: {what}(Policy({name}=...))")
        raise TypeError(f"{what}() got an unexpected keyword argument {name!r}{did_you_mean(name, known)}")


def no_attribute(obj: object, name: str) -> AttributeError:
    """The AttributeError for a name that `obj` does not have. (Python's own suggestion is only in tracebacks.)"""
    names = [one for one in dir(type(obj)) if not one.startswith("_")]
    other = _OTHER_NAMES.get(name)
    near = other if other in names else nearest(name, names) if not name.startswith("_") else None
    return AttributeError(f"{type(obj).__name__!r} object has no attribute {name!r}" + (f"; did you mean {near!r}?" if near else ""))


def signature(first: str, functions: Iterable[Callable[..., Any]], more: Iterable[inspect.Parameter] = ()) -> inspect.Signature:
    """The signature that a class shows whose `__new__` chooses among subclasses: the parameters of all, behind `first`."""
    parameters: Dict[str, inspect.Parameter] = {first: inspect.Parameter(first, inspect.Parameter.POSITIONAL_OR_KEYWORD)}
    for function in functions:
        for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                parameters.setdefault(name, parameter)
    for parameter in more:
        parameters.setdefault(parameter.name, parameter)
    ordered: List[inspect.Parameter] = sorted(parameters.values(), key=lambda one: one.kind)
    return inspect.Signature(ordered)


def option(name: str, annotation: str, default: Any = None) -> inspect.Parameter:
    """A keyword with a default, for `signature`."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
