# SPDX-License-Identifier: Apache-2.0
"""Plain data as JSON, and back, with its types: the values of functions in sandboxes.

A pickle is a program that runs when it is loaded, so pickles of guests are never loaded. A value
that JSON does not have is an object with one key, its type's name: {"tuple": [...]},
{"bytes": BASE64}, {"array": [DTYPE, SHAPE, BASE64]}.

`encode` runs in the sandbox, to which the text of this file is sent, so it imports nothing of the
package. `decode` reads what a hostile guest made up, and raises ValueError for values that `encode`
does not make. Its cost is in proportion to the text: numbers are short or hexadecimal, nesting ends
with Python's own limit, and keys that collide are refused.
"""

import base64
import datetime
import json
import math
import re
import sys
from itertools import groupby
from typing import Any, Callable, Dict, List

_DIGITS = 20
_COLLIDING = 64
"""How many keys of a mapping or set may have one hash. More would make it quadratic on purpose."""

_DTYPE = re.compile(r"[<>|=][biufcSU][1-9][0-9]{0,8}")


# In the sandbox


def _raise_type_error(value: Any, where: str) -> Any:
    kind = type(value)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    raise TypeError(
        f"work_fn must return plain data: {where} is of type {name}, and not of None, bool, int, "
        f"float, complex, str, bytes, list, tuple, set, frozenset, dict, datetime's or a numpy "
        f"array of numbers or text"
    )


def encode(value: Any, where: str = "the value") -> Any:
    """A value as what json.dumps takes.

    An instance of a subclass counts as one of the type itself. Raises TypeError for what is not
    plain data; the message says where in the value it is.
    """
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else {"int": hex(value)}
    if isinstance(value, list):
        return [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {"dict": {key: encode(item, f"{where}[{key!r}]") for key, item in value.items()}}
        return {
            "items": [
                [encode(key, f"a key of {where}"), encode(item, f"{where}[{key!r}]")]
                for key, item in value.items()
            ]
        }
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (datetime.date, datetime.time)):
        name = (
            "datetime"
            if isinstance(value, datetime.datetime)
            else "date"
            if isinstance(value, datetime.date)
            else "time"
        )
        return {name: value.isoformat()}
    if isinstance(value, datetime.timedelta):
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    numpy = sys.modules.get("numpy")
    if (
        numpy is not None
        and isinstance(value, (numpy.ndarray, numpy.generic))
        and _DTYPE.fullmatch(value.dtype.str)
    ):
        if isinstance(value, numpy.generic):
            return encode(value.item(), where)
        return {
            "array": [
                value.dtype.str,
                list(value.shape),
                base64.b64encode(value.tobytes()).decode("ascii"),
            ]
        }
    return _raise_type_error(value, where)


# In the caller's process


def _parse_int(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError("a number is too long")
    return int(digits)


def loads(data: bytes) -> Any:
    """JSON from a guest. Raises ValueError."""
    try:
        return json.loads(data, parse_int=_parse_int)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def decode(item: Any) -> Any:
    """The value that `encode` was given.

    Raises ValueError for what `encode` cannot have made, ImportError for an array if numpy is not
    installed here.
    """
    try:
        return _decode(item)
    except (TypeError, ValueError, OverflowError, AttributeError) as problem:
        raise ValueError(f"it is not plain data: {problem}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _decode(item: Any) -> Any:
    if isinstance(item, list):
        return [_decode(one) for one in item]
    if not isinstance(item, dict):
        return item
    ((name, body),) = item.items()
    return _DECODERS[name](body) if name in _DECODERS else _unknown(name)


def _unknown(name: str) -> Any:
    raise ValueError(f"there is no type {name[:40]!r}")


def _decode_list(body: Any) -> List[Any]:
    if not isinstance(body, list):
        raise ValueError("a list is missing")
    return [_decode(one) for one in body]


def _check_hashes(keys: List[Any]) -> List[Any]:
    if any(len(list(same)) > _COLLIDING for _, same in groupby(sorted(map(hash, keys)))):
        raise ValueError("too many keys have the same hash")
    return keys


def _dict(body: Any) -> Dict[str, Any]:
    return {key: _decode(value) for key, value in body.items()}


def _items(body: Any) -> Dict[Any, Any]:
    pairs = _decode_list(body)
    _check_hashes([key for key, _ in pairs])
    return {key: value for key, value in pairs}


def _integer(body: Any) -> int:
    return int(body, 16)  # linear in its length, unlike decimal digits


def _bytes(body: Any) -> bytes:
    return base64.b64decode(body, validate=True)


def _array(body: Any) -> Any:
    import numpy

    dtype, shape, data = body
    if (
        not isinstance(dtype, str)
        or not _DTYPE.fullmatch(dtype)
        or not isinstance(shape, list)
        or not all(type(side) is int and 0 <= side < 1 << 62 for side in shape)
    ):
        raise ValueError("an array's type or shape")
    raw, kind = _bytes(data), numpy.dtype(dtype)
    if math.prod(shape) * kind.itemsize != len(raw):
        raise ValueError("an array's size")
    return numpy.frombuffer(bytearray(raw), kind).reshape(shape)


_DECODERS: Dict[str, Callable[[Any], Any]] = {
    "int": _integer,
    "tuple": lambda body: tuple(_decode_list(body)),
    "set": lambda body: set(_check_hashes(_decode_list(body))),
    "frozenset": lambda body: frozenset(_check_hashes(_decode_list(body))),
    "dict": _dict,
    "items": _items,
    "bytes": _bytes,
    "complex": lambda body: complex(*body),
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timedelta": lambda body: datetime.timedelta(*body),
    "array": _array,
}
