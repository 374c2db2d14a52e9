# SPDX-License-Identifier: Apache-2.0
"""Policy: what a sandbox may see and use.

A policy is the set of keys of docs/reference/policy.md that were given; a key that was not given,
or is None, has the engine's default. It is immutable, and its JSON text is made once. The engine
knows a policy by this text, so equal policies share one compiled plan.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

from . import ffi
from .errors import InvalidArgument, IOFailed, PolicyInvalid
from .hints import check_keywords, did_you_mean

PathLike = Union[str, "os.PathLike[str]"]
Size = Union[int, str]

_PATH_LISTS = ("fs_readable", "fs_readable_extra", "fs_writable", "fs_shared", "fs_denied")
_KEYS = _PATH_LISTS + (
    "image",
    "cwd",
    "python",
    "env",
    "clean_env",
    "user",
    "users",
    "hostname",
    "max_memory",
    "max_processes",
    "max_cpu",
    "max_disk",
    "disk_at",
    "max_open_files",
    "max_output",
    "timeout",
    "net",
    "net_allow_hosts",
    "net_allow",
    "net_secrets",
    "net_max_connections",
    "net_max_requests",
    "net_max_upload",
    "net_max_download",
    "net_max_rate",
    "net_idle",
    "net_log",
    "net_log_file",
    "net_record",
    "net_replay",
    "publish",
    "network",
    "random_seed",
    "time_start",
    "time_mode",
    "serial",
    "isolation",
    "volumes",
    "devices",
    "gpus",
    "tmpfs",
    "shm_size",
    "ulimits",
)
POLICY_KEYS = frozenset(_KEYS)


def _path(key: str, value: object) -> str:
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise InvalidArgument(
            f"{key}: a path must be a str or os.PathLike[str], not {value!r}", stage="policy"
        )
    return text


def _list(key: str, value: object) -> list[object]:
    if isinstance(value, (str, bytes, os.PathLike, Mapping)) or not isinstance(value, Iterable):
        raise InvalidArgument(f"{key}: it must be a list, not {value!r}", stage="policy")
    return list(value)


def _time(value: object) -> object:
    if isinstance(value, datetime.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
        return value.isoformat(timespec="microseconds" if value.microsecond else "seconds") + "Z"
    return value


def _json_value(key: str, value: object) -> object:
    """The JSON value of a key.

    Whether it makes sense is for `check` and the engine to say: they know every rule.
    """
    if key in _PATH_LISTS:
        return [_path(f"{key}[{i}]", item) for i, item in enumerate(_list(key, value))]
    if key in ("net_allow_hosts", "net_allow", "publish", "devices"):
        return _list(key, value)
    if key in ("image", "cwd", "python", "net_log_file", "net_record", "net_replay"):
        return _path(key, value)
    if key == "gpus":
        return value if isinstance(value, str) else _list(key, value)
    if key == "volumes":
        if not isinstance(value, Mapping):
            raise InvalidArgument(
                f"volumes: it must be a mapping of names to paths, not {value!r}", stage="policy"
            )
        return {
            name: dict(item) if isinstance(item, Mapping) else _path(f"volumes[{name!r}]", item)
            for name, item in value.items()
        }
    if key == "tmpfs":
        if not isinstance(value, Mapping):
            raise InvalidArgument(
                f"tmpfs: it must be a mapping of paths to sizes, not {value!r}", stage="policy"
            )
        return {
            _path("tmpfs", path): dict(item) if isinstance(item, Mapping) else item
            for path, item in value.items()
        }
    if key == "ulimits":
        if not isinstance(value, Mapping):
            raise InvalidArgument(
                f"ulimits: it must be a mapping of names to limits, not {value!r}", stage="policy"
            )
        return dict(value)
    if key == "env":
        if not isinstance(value, Mapping):
            raise InvalidArgument(
                f"env: it must be a mapping of names to values, not {value!r}", stage="policy"
            )
        return dict(value)
    if key == "random_seed" and isinstance(value, int) and value >= 1 << 63:
        return str(value)  # beyond JSON's signed 64-bit numbers, it is written as text
    if key == "time_start":
        return _time(value)
    return value


class Policy:
    """What a sandbox may see and use.

    Immutable, hashable and picklable. All arguments are keywords, and None leaves the default. Each
    key is also an attribute.

    Args:
        fs_readable: Host paths that can be read; replaces the default, the system directories.
        fs_readable_extra: More host paths that can be read, besides fs_readable or its default.
        fs_writable: Host paths that can be read, and written to a private copy-on-write layer.
        fs_shared: Host paths that are written through to the host.
        fs_denied: Paths hidden although they are below a granted one; adds to the default.
        image: An image as the root file system.
        cwd: The working directory (/tmp).
        python: An interpreter of the host (of a venv, a conda environment, pyenv) that `python3` is
            inside, also for run_code, clones and templates; what it needs is granted.
        env: {name: value}, over the base environment.
        clean_env: False: keep the caller's environment underneath.
        user: "box" (user id 1000), "root" or a number; with users "many" also a name.
        users: "one" (without any rights) or "many" (65,536, of which root may change owners and
            users and install packages).
        hostname: The host name inside.
        max_memory: Bytes for the whole sandbox, or text such as "512M" (powers of 1024).
        max_processes: How many processes the sandbox may have.
        max_cpu: CPUs, such as 1.5.
        max_disk: Bytes of private files, or text.
        disk_at: Where private files are kept: "memory" or "store" (the store's disk).
        max_open_files: How many descriptors each process may have.
        max_output: Bytes per stream, or text.
        timeout: Seconds of wall clock for a run (300) and for each command of a session (no limit);
            "none" is no limit.
        net: "none", "loopback", "allow" or "host".
        net_allow_hosts: The hosts that may be reached, such as "pypi.org" or "*.example.org:8443";
            one entry sets net to "allow".
        net_allow: The same, and mappings with ports, methods, paths and headers
            (docs/reference/network.md).
        net_secrets: Names of secrets, and where to read each: {"github": "env:GITHUB_TOKEN"}.
        net_max_connections: Connections to outside at one time (64).
        net_max_requests: HTTP requests of the sandbox's life.
        net_max_upload: Bytes to outside of the sandbox's life, or text.
        net_max_download: Bytes from outside of the sandbox's life, or text.
        net_max_rate: Bytes a second in both directions together, or text.
        net_idle: Seconds without a byte after which a connection is closed (300).
        net_log: "connections", "requests" or "none": what the network log has a line for.
        net_log_file: A file to which the network log is appended as well.
        net_record: A file in which exchanges with hosts are recorded.
        net_replay: Such a file to answer from, without any network.
        publish: Ports of a session that can be reached from the host: 8080 (any free port of
            127.0.0.1), "5000:8080", "127.0.0.1:5000:8080" or "/path/of/a/socket:8080".
        network: A private network: sessions of the engine with the same text reach each other by
            their names.
        random_seed: 0 to 2**64-1: make randomness repeat.
        time_start: ISO text or a datetime (a naive one is UTC): where the clock begins.
        time_mode: "offset" (the real rate) or "virtual" (waits end at once, by a clock that jumps).
        serial: Run one thread at a time, in an order that repeats; needs time_mode "virtual".
        isolation: "namespace" or "process".
        volumes: Volumes of the store (docs/how-to/volumes.md): {"data": "/data"}, or with a mode
            {"data": {"path": "/data", "mode": "read-only"}} ("exclusive", "shared", "private").
        devices: Devices of the host: "/dev/kvm", or names of CDI files, "vendor.com/class=name".
        gpus: "none", "all" or numbers, [0, 2], of the CDI file of nvidia.com/gpu.
        tmpfs: Empty private directories: {"/scratch": "64M"}, {"/run": None}, or with options
            {"/scratch": {"size": "64M", "mode": "0700", "exec": False}}.
        shm_size: The least space of /dev/shm.
        ulimits: Limits of each process: {"nofile": 65536, "stack": "8388608:unlimited"}.

    Raises:
        InvalidArgument: A value has no place in JSON, or is of the wrong kind. `check`, and the
            engine on first use, find everything else.

    Example:
        >>> policy = Policy(max_memory="256M", net="none")
        >>> policy.max_memory, policy.replace(net=None).to_json()
        ('256M', '{"max_memory":"256M"}')
    """

    __slots__ = ("_values", "_json")

    _values: dict[str, Any]
    _json: str

    @check_keywords()
    def __init__(
        self,
        *,
        fs_readable: Optional[Iterable[PathLike]] = None,
        fs_readable_extra: Optional[Iterable[PathLike]] = None,
        fs_writable: Optional[Iterable[PathLike]] = None,
        fs_shared: Optional[Iterable[PathLike]] = None,
        fs_denied: Optional[Iterable[PathLike]] = None,
        image: Optional[PathLike] = None,
        cwd: Optional[PathLike] = None,
        python: Optional[PathLike] = None,
        env: Optional[Mapping[str, str]] = None,
        clean_env: Optional[bool] = None,
        user: Optional[Union[str, int]] = None,
        users: Optional[str] = None,
        hostname: Optional[str] = None,
        max_memory: Optional[Size] = None,
        max_processes: Optional[int] = None,
        max_cpu: Optional[float] = None,
        max_disk: Optional[Size] = None,
        disk_at: Optional[str] = None,
        max_open_files: Optional[int] = None,
        max_output: Optional[Size] = None,
        timeout: Union[float, str, None] = None,
        net: Optional[str] = None,
        net_allow_hosts: Optional[Iterable[str]] = None,
        net_allow: Optional[Iterable[Union[str, Mapping[str, Any]]]] = None,
        net_secrets: Optional[Mapping[str, Union[str, Mapping[str, str]]]] = None,
        net_max_connections: Optional[int] = None,
        net_max_requests: Optional[int] = None,
        net_max_upload: Optional[Size] = None,
        net_max_download: Optional[Size] = None,
        net_max_rate: Optional[Size] = None,
        net_idle: Optional[int] = None,
        net_log: Optional[str] = None,
        net_log_file: Optional[PathLike] = None,
        net_record: Optional[PathLike] = None,
        net_replay: Optional[PathLike] = None,
        publish: Optional[Iterable[Union[int, str]]] = None,
        network: Optional[str] = None,
        random_seed: Optional[int] = None,
        time_start: Optional[Union[str, datetime.datetime]] = None,
        time_mode: Optional[str] = None,
        serial: Optional[bool] = None,
        isolation: Optional[str] = None,
        volumes: Optional[Mapping[str, Union[PathLike, Mapping[str, Any]]]] = None,
        devices: Optional[Iterable[Union[str, Mapping[str, Any]]]] = None,
        gpus: Optional[Union[str, Iterable[int]]] = None,
        tmpfs: Optional[Mapping[PathLike, Union[Size, Mapping[str, Any], None]]] = None,
        shm_size: Optional[Size] = None,
        ulimits: Optional[Mapping[str, Union[int, str]]] = None,
    ) -> None:
        given = locals()
        values = {key: _json_value(key, given[key]) for key in _KEYS if given[key] is not None}
        try:
            text = json.dumps(values, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            text.encode("utf-8")
        except (TypeError, ValueError) as problem:
            raise InvalidArgument(
                f"the policy cannot be written as JSON: {problem}", stage="policy"
            ) from None
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_json", text)

    # Reading

    def __getattr__(self, name: str) -> Any:
        if name in _KEYS:
            value = self._values.get(name)
            return (
                tuple(value)
                if isinstance(value, list)
                else dict(value)
                if isinstance(value, dict)
                else value
            )
        raise AttributeError(f"a Policy has no key {name!r}{did_you_mean(name, _KEYS)}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Policy is immutable; use policy.replace(" + name + "=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a Policy is immutable")

    def __eq__(self, other: object) -> bool:
        return self._json == other._json if isinstance(other, Policy) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._json)

    def __repr__(self) -> str:
        return (
            "Policy(" + ", ".join(f"{key}={value!r}" for key, value in self._values.items()) + ")"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_values, (self.to_dict(),)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *_KEYS})

    # Conversion

    def replace(self, **changes: Any) -> Policy:
        """Makes a policy with some keys changed.

        Args:
            changes: New values; None: back to the default.

        Returns:
            The new policy.

        Raises:
            InvalidArgument: There is no such key, or a value is of the wrong kind.
        """
        unknown = sorted(set(changes) - set(_KEYS))
        if unknown:
            meant = did_you_mean(unknown[0], _KEYS) if len(unknown) == 1 else ""
            raise InvalidArgument(
                f"a Policy has no key "
                f"{', '.join(map(repr, unknown))}{meant or '; the keys are ' + ', '.join(_KEYS)}",
                stage="policy",
            )
        return Policy(**{**self._values, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Returns the keys that were given, as JSON-ready values (a copy)."""
        copy: dict[str, Any] = json.loads(self._json)
        return copy

    def to_json(self) -> str:
        """Returns the keys that were given as one line of JSON, which the engine is sent.

        Equal policies have equal text.
        """
        return self._json

    @classmethod
    def from_json(cls, text: Union[str, bytes]) -> Policy:
        """Makes the policy that JSON text describes.

        Args:
            text: A JSON object of keys.

        Returns:
            The policy.

        Raises:
            PolicyInvalid: The message lists every problem, each with its line.
        """
        raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)
        _check(raw)
        return _from_values(json.loads(raw))

    @classmethod
    def from_file(cls, path: PathLike) -> Policy:
        """Makes the policy that a JSON file describes.

        Args:
            path: The file.

        Returns:
            The policy.

        Raises:
            PolicyInvalid: As from_json; the message begins with the path.
            IOFailed: The file cannot be read.
        """
        try:
            with open(path, "rb") as file:
                raw = file.read()
        except OSError as problem:
            raise IOFailed(
                f"cannot read the policy {os.fspath(path)}: {problem.strerror}",
                stage="policy",
                errno=problem.errno,
            ) from problem
        try:
            return cls.from_json(raw)
        except PolicyInvalid as problem:
            raise PolicyInvalid(
                f"{os.fspath(path)}: {problem.message}", stage=problem.stage, errno=problem.errno
            ) from None

    # Checks

    def check(self) -> None:
        """Checks types, ranges, names and contradictions, without an engine.

        The host is not looked at.

        Raises:
            PolicyInvalid: The message lists all problems.
        """
        _check(self._json.encode("utf-8"))

    def problems(self) -> list[dict[str, Any]]:
        """Lists what `check` finds.

        Returns:
            [{"line", "key", "message", "hint"}]; empty if the policy is valid.
        """
        return _problems(self._json.encode("utf-8"))[1]

    def net_test(self, url: str, method: str = "GET") -> dict[str, Any]:
        """Says which network rule decides about a URL. Connects to nothing.

        Args:
            url: Of http, https, tcp or udp; the last two with a port.
            method: Of the request.

        Returns:
            {"url", "allowed", "rule", "host", "set", "why"}: the index of the rule in
            net_allow_hosts and net_allow together, its host and set, and the reason of a refusal.

        Raises:
            InvalidArgument: The text is no such URL.
            PolicyInvalid: The policy is not valid.
        """
        raw = self._json.encode("utf-8")
        answer = ctypes.c_void_p()
        error = ffi.Error()
        status = ffi.lib().rollbox_net_test(
            raw,
            len(raw),
            url.encode("utf-8"),
            method.encode("utf-8"),
            ctypes.byref(answer),
            ctypes.byref(error),
        )
        if status < 0:
            raise ffi.exception(error)
        found: dict[str, Any] = ffi.take_json(answer)
        return found


def _from_values(values: dict[str, Any]) -> Policy:
    return Policy(**values)


def _problems(raw: bytes) -> tuple[Optional[PolicyInvalid], list[dict[str, Any]]]:
    listing = ctypes.c_void_p()
    error = ffi.Error()
    status = ffi.lib().rollbox_policy_check(
        raw, len(raw), ctypes.byref(listing), ctypes.byref(error)
    )
    found = ffi.take_json(listing)
    if status >= 0:
        return None, []
    exception = ffi.exception(error)
    if not isinstance(exception, PolicyInvalid):
        raise exception
    return exception, found if isinstance(found, list) else []


def _check(raw: bytes) -> None:
    """Raises PolicyInvalid with every problem.

    The error's own message is of bounded size; the listing is not.
    """
    exception, found = _problems(raw)
    if exception is None:
        return
    lines = []
    for problem in found:
        line, key, hint = problem.get("line"), problem.get("key"), problem.get("hint")
        where = (f"line {line}: " if line and b"\n" in raw else "") + (f"{key}: " if key else "")
        lines.append(where + str(problem.get("message", "")) + (f" ({hint})" if hint else ""))
    message = (
        "\n".join(lines)
        if len(lines) > exception.message.count("\n") + 1 or not exception.message
        else exception.message
    )
    raise PolicyInvalid(message, stage=exception.stage, errno=exception.errno)
