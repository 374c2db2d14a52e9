# SPDX-License-Identifier: Apache-2.0
"""Traces of runs and commands on an engine of this machine, through the program rollbox-otlp.

They are made if OTEL_EXPORTER_OTLP_ENDPOINT names a collector. Nothing here waits: what the socket
to the program has no room for is dropped. On a server, the server makes the spans.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import time
from typing import Any, NamedTuple, Optional

from . import ffi, tracing

_OUTCOMES = ("exit", "signal", "timeout", "out_of_memory", "output_limit", "error")
_MESSAGES = 4 << 20
_PLACES = ("/usr/libexec/rollbox/rollbox-otlp", "/usr/local/libexec/rollbox/rollbox-otlp")


class _Begun(NamedTuple):
    is_exec: bool
    program: str
    parent: Optional[str]
    labels: dict[str, str]
    at_ns: int


_begun: dict[int, _Begun] = {}
_socket: Optional[socket.socket] = None
_tried = False


def _after_fork() -> None:
    global _socket, _tried
    _begun.clear()
    _socket, _tried = None, False


os.register_at_fork(after_in_child=_after_fork)


def _wanted() -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return any(os.environ.get(name) for name in names)


def _start() -> bool:
    """Starts the program at the first need."""
    global _socket, _tried
    if _tried:
        return _socket is not None
    _tried = True
    if not _wanted():
        return False
    named = os.environ.get("ROLLBOX_OTLP")
    found = [str(place) for place in ffi.find_binary("rollbox-otlp")]
    places = [named] if named else [*found, *_PLACES]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGES)
    ours.setblocking(False)
    with theirs:
        for place in places:
            with contextlib.suppress(OSError):
                os.posix_spawn(
                    place,
                    ["rollbox-otlp"],
                    os.environ,
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    ],
                    setsid=True,
                )
                _socket = ours
                return True
    ours.close()
    return False


def begin(run: int, is_exec: bool, program: Optional[bytes]) -> None:
    """A run or command was started."""
    if not (_socket or not _tried) or not _start():
        return
    name = os.fsdecode(program or b"").rpartition("/")[2]
    parent = tracing.current_parent()
    _begun[run] = _Begun(is_exec, name, parent, tracing.current_labels(), time.time_ns())


def _is_sampled(parent: Optional[str], trace: str) -> bool:
    name = os.environ.get("OTEL_TRACES_SAMPLER") or "parentbased_always_on"
    if name.startswith("parentbased_") and parent is not None:
        return bool(int(parent[53:55], 16) & 1)
    if name.endswith("always_off"):
        return False
    if not name.endswith("traceidratio"):
        return True
    try:
        ratio = float(os.environ.get("OTEL_TRACES_SAMPLER_ARG") or 1)
    except ValueError:
        ratio = 1.0
    return (int(trace[16:], 16) >> 1) < ratio * 2**63


def _id(bytes_: int) -> str:
    return f"{random.SystemRandom().getrandbits(8 * bytes_) or 1:0{2 * bytes_}x}"


def _span(trace: str, parent: str, name: str, start: int, end: int) -> dict[str, Any]:
    span = {
        "traceId": trace,
        "spanId": _id(8),
        "parentSpanId": parent,
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
    }
    if not parent:
        del span["parentSpanId"]
    return span


def _attributes(begun: _Begun, raw: Any, outcome: str) -> list[dict[str, Any]]:
    values: dict[str, Any] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "exec" if begun.is_exec else "run",
        "gen_ai.tool.type": "extension",
        "process.executable.name": begun.program,
        "rollbox.outcome": outcome,
        "rollbox.wall_s": raw.wall_ms / 1000,
        "rollbox.cpu_s": raw.cpu_ms / 1000,
        "rollbox.peak_memory_bytes": raw.peak_memory_bytes,
        "rollbox.output_bytes": raw.stdout_length + raw.stderr_length,
        **{f"rollbox.label.{name}": value for name, value in begun.labels.items()},
    }
    if outcome == "exit":
        values["process.exit.code"] = raw.exit_code
    else:
        values["error.type"] = outcome
    kinds = {str: "stringValue", int: "intValue", float: "doubleValue"}
    return [
        {"key": key, "value": {kinds[type(value)]: str(value) if type(value) is int else value}}
        for key, value in values.items()
    ]


def end(run: Optional[int], raw: Any) -> None:
    """A run or command has ended, with this result of the library."""
    begun = None if run is None else _begun.pop(run, None)
    if begun is None or _socket is None:
        return
    trace, parent = (begun.parent[3:35], begun.parent[36:52]) if begun.parent else (_id(16), "")
    if not _is_sampled(begun.parent, trace):
        return
    outcome = _OUTCOMES[raw.outcome]
    last = time.time_ns()
    started = last - int(raw.wall_ms * 1e6)
    taken = started - int(raw.setup_ms * 1e6)
    first = min(begun.at_ns, taken)
    name = "execute_tool exec" if begun.is_exec else "execute_tool run"
    whole = _span(trace, parent, name, first, last)
    whole["attributes"] = _attributes(begun, raw, outcome)
    spans = [whole]
    if outcome not in ("exit", "signal"):
        whole["status"] = {"code": 2, "message": outcome}
    if outcome != "error":
        for part, start, stop in (
            ("rollbox.queue", first, taken),
            ("rollbox.setup", taken, started),
            ("rollbox.exec", started, last),
        ):
            spans.append(_span(trace, whole["spanId"], part, start, stop))
    text = "".join(json.dumps(span, separators=(",", ":")) + "\n" for span in spans)
    with contextlib.suppress(OSError):
        _socket.send(text.encode())
