# SPDX-License-Identifier: Apache-2.0
"""What Sandbox and AsyncSandbox are made of: a policy, maybe an engine of their own, and what a session of theirs is to be like."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any, Dict, Literal, Mapping, Optional, Union

from . import _ffi
from ._engine import Engine, default_engine
from ._errors import InvalidArgument
from ._handle import Handle
from ._hints import no_attribute
from ._policy import Policy
from ._record import Record, Target
from ._request import RUN_TIMEOUT_S, Data, Timeout, milliseconds

PolicyLike = Union[Policy, Mapping[str, Any], None]
Path = Union[str, "os.PathLike[str]"]
RecordLike = Union[Record, Target, None]


def as_policy(policy: PolicyLike) -> Policy:
    """A Policy from one, from a mapping of its keys, or from None (the default one)."""
    if policy is None:
        return Policy()
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, Mapping):
        return Policy().replace(**policy)
    raise InvalidArgument(f"policy must be a Policy, a mapping of its keys or None, not {policy!r}", stage="arguments")


def has_work(options: Mapping[str, Any]) -> bool:
    """Whether a sandbox that is made with these is to run functions in clones."""
    return any(options.get(name) is not None for name in ("work_fn", "init_fn"))


def one_input(stdin: Optional[Data], input: Optional[Data]) -> Optional[Data]:
    if stdin is not None and input is not None:
        raise InvalidArgument("stdin and input are two names of one argument; give one of them", stage="arguments")
    return input if stdin is None else stdin


def _duration(what: str, seconds: Optional[float]) -> int:
    if seconds is None:
        return 0
    try:
        if isinstance(seconds, str):
            raise InvalidArgument("only a time-out may be that", stage="arguments")
        return milliseconds(seconds)
    except InvalidArgument:
        raise InvalidArgument(f"{what} must be a positive number of seconds or None, not {seconds!r}", stage="arguments") from None


AutoSnapshot = Optional[Literal["changed"]]
_KEPT = 16
_MOST_KEPT = 100000
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size_in_bytes(size: Union[int, str, None], default: int) -> int:
    """A policy's size ("512M", "1 GiB", a number) as a number; the engine has checked it."""
    if size is None or isinstance(size, int):
        return default if size is None else size
    digits = size.rstrip("kKmMgGtTiIbB ")
    unit = size[len(digits):].strip().lower()[:1]
    return int(digits) * _UNITS[unit if unit != "b" else ""]


def _auto_snapshots(when: AutoSnapshot, keep: Optional[int]) -> int:
    """How many snapshots that are taken by themselves are kept; 0: none is taken."""
    if when not in (None, "changed"):
        raise InvalidArgument(f'auto_snapshot must be None or "changed", not {when!r}', stage="arguments")
    if keep is not None and (when is None or isinstance(keep, bool) or not isinstance(keep, int) or not 1 <= keep <= _MOST_KEPT):
        raise InvalidArgument(f"auto_keep must be a number from 1 to {_MOST_KEPT}, with auto_snapshot, not {keep!r}", stage="arguments")
    return 0 if when is None else _KEPT if keep is None else keep


class Base:
    """Made with what a session is to be like; picklable without a session and without an engine of its own."""

    def __init__(
        self,
        policy: PolicyLike = None,
        *,
        engine: Optional[Engine] = None,
        name: Optional[str] = None,
        detached: bool = False,
        idle: Optional[float] = None,
        ttl: Optional[float] = None,
        max_lifetime: Optional[float] = None,
        hibernate_after: Optional[float] = None,
        auto_snapshot: AutoSnapshot = None,
        auto_keep: Optional[int] = None,
        record: RecordLike = None,
    ) -> None:
        self._policy = as_policy(policy)
        self._engine = engine
        self._record = Record.of(record)
        self._plan: Dict[str, Any] = {
            "name": name, "detached": bool(detached), "idle_ms": _duration("idle", idle), "ttl_ms": _duration("ttl", ttl),
            "lifetime_ms": _duration("max_lifetime", max_lifetime), "hibernate_ms": _duration("hibernate_after", hibernate_after),
            "auto_snapshots": _auto_snapshots(auto_snapshot, auto_keep)}
        if name is not None and not isinstance(name, str):
            raise InvalidArgument(f"name must be a str, not {name!r}", stage="arguments")

    @property
    def policy(self) -> Policy:
        """The policy of every run and of the session."""
        return self._policy

    def _run_timeout(self, timeout: Timeout) -> Timeout:
        """That of a run which is a command of a session, for those have no default."""
        if timeout is not None:
            return timeout
        return self._policy.timeout if self._policy.timeout is not None else RUN_TIMEOUT_S

    def _get_engine(self) -> Engine:
        return self._engine if self._engine is not None else default_engine()

    def _create(self) -> Handle:
        options = _ffi.SandboxOptions(size=ctypes.sizeof(_ffi.SandboxOptions), **{
            **self._plan, "name": None if self._plan["name"] is None else self._plan["name"].encode("utf-8", "replace")})
        handle = Handle.create(self._get_engine(), self._policy.to_json(), options)
        if self._record is not None:
            handle.record(self._record)
        return handle

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._policy!r})"

    if not TYPE_CHECKING:       # type checkers would take it for leave to use any name

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name)

    def __reduce__(self) -> Any:
        if self._engine is not None:
            raise TypeError(f"a {type(self).__name__} with an engine of its own cannot be pickled")
        if self._record is not None:
            raise TypeError(f"a {type(self).__name__} that is recorded cannot be pickled: each process records to a file of its own")
        if self._in_session():
            raise TypeError(f"a {type(self).__name__} with an open session cannot be pickled; send its name, and open that on a shared engine")
        return _rebuild, (type(self), self._policy, self._plan)

    def _in_session(self) -> bool:
        return False

    def _take_plan(self, plan: Dict[str, Any]) -> None:
        self._plan = plan


def _rebuild(cls: Any, policy: Policy, plan: Dict[str, Any]) -> Any:
    made = cls(policy)
    made._take_plan(plan)
    return made
