# SPDX-License-Identifier: Apache-2.0
"""Options of sandboxes and of their states, as callers give them and as the library takes them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any, Literal, Optional, Union

from . import ffi
from .errors import InvalidArgument
from .policy import Policy
from .record import Record, Target
from .request import Data, milliseconds

PolicyLike = Union[Policy, Mapping[str, Any], None]
Path = Union[str, "os.PathLike[str]"]
RecordLike = Union[Record, Target, None]


def as_policy(policy: PolicyLike) -> Policy:
    """A Policy from one, from a mapping of its keys, or from None (the default policy)."""
    if policy is None:
        return Policy()
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, Mapping):
        return Policy().replace(**policy)
    raise InvalidArgument(
        f"policy must be a Policy, a mapping of its keys or None, not {policy!r}", stage="arguments"
    )


def one_input(stdin: Optional[Data], input: Optional[Data]) -> Optional[Data]:
    """The standard input from its two names."""
    if stdin is not None and input is not None:
        raise InvalidArgument(
            "stdin and input are two names of one argument; give one of them", stage="arguments"
        )
    return input if stdin is None else stdin


def duration_ms(what: str, seconds: Optional[float]) -> int:
    """A duration in milliseconds; 0 for None."""
    if seconds is None:
        return 0
    try:
        if isinstance(seconds, str):
            raise InvalidArgument("only a time-out can be None", stage="arguments")
        return milliseconds(seconds)
    except InvalidArgument:
        raise InvalidArgument(
            f"{what} must be a positive number of seconds or None, not {seconds!r}",
            stage="arguments",
        ) from None


AutoSnapshot = Optional[Literal["changed"]]
_KEPT = 16
_MAX_KEPT = 100000
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size_in_bytes(size: Union[int, str, None], default: int) -> int:
    """A policy's size ("512M", "1 GiB", a number) in bytes; the engine has checked it."""
    if size is None or isinstance(size, int):
        return default if size is None else size
    digits = size.rstrip("kKmMgGtTiIbB ")
    unit = size[len(digits) :].strip().lower()[:1]
    return int(digits) * _UNITS[unit if unit != "b" else ""]


def auto_snapshot_count(when: AutoSnapshot, keep: Optional[int]) -> int:
    """How many automatic snapshots are kept; 0: none is taken."""
    if when not in (None, "changed"):
        raise InvalidArgument(
            f'auto_snapshot must be None or "changed", not {when!r}', stage="arguments"
        )
    if keep is not None and (
        when is None
        or isinstance(keep, bool)
        or not isinstance(keep, int)
        or not 1 <= keep <= _MAX_KEPT
    ):
        raise InvalidArgument(
            f"auto_keep must be a number from 1 to {_MAX_KEPT}, with auto_snapshot, not {keep!r}",
            stage="arguments",
        )
    return 0 if when is None else _KEPT if keep is None else keep


Processes = Literal["keep", "drop"]


def state_options(
    processes: Processes, same_seed: bool = False, attached: bool = False
) -> ffi.StateOptions:
    """The struct rollbox_state_options of these arguments."""
    if processes not in ffi.PROCESSES:
        raise InvalidArgument(
            f'processes must be "keep" or "drop", not {processes!r}', stage="arguments"
        )
    return ffi.StateOptions(
        size=ctypes.sizeof(ffi.StateOptions),
        processes=ffi.PROCESSES[processes],
        same_seed=same_seed,
        attached=attached,
    )
