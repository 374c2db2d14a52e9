# SPDX-License-Identifier: Apache-2.0
"""Labels and trace contexts of the calls within a block, for costs and traces of a server."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Optional

from .errors import InvalidArgument

_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")

_labels: ContextVar[dict[str, str]] = ContextVar("rollbox_labels", default={})  # noqa: B039
_parent: ContextVar[Optional[str]] = ContextVar("rollbox_traceparent", default=None)
_inside: ContextVar[bool] = ContextVar("rollbox_trace_inside", default=False)


@contextlib.contextmanager
def labels(**values: str) -> Iterator[None]:
    """Gives labels to the runs and sandboxes that the block makes.

    Labels are in a server's costs (`Engine.cost`), events and traces. The label `rollout` names
    the rollout. Blocks add to each other. A sandbox of a server keeps its labels after the block,
    and its forks have them too. Without a server they are in traces alone.

    Args:
        values: The labels, each a str.

    Raises:
        InvalidArgument: A value is no str.

    Example:
        >>> import rollbox
        >>> with rollbox.labels(rollout="17", task="sums"):
        ...     rollbox.Sandbox().run(["true"]).ok
        True
    """
    for name, value in values.items():
        if not isinstance(value, str):
            raise InvalidArgument(
                f"the label {name} must be a str, not {value!r}", stage="arguments"
            )
    token = _labels.set({**_labels.get(), **values})
    try:
        yield
    finally:
        _labels.reset(token)


@contextlib.contextmanager
def traceparent(parent: Optional[str] = None, *, inside: bool = False) -> Iterator[None]:
    """Makes the block's runs and sandboxes parts of a trace.

    Without this, they belong to the current span of the package opentelemetry if that is in use,
    else to that of the environment variable TRACEPARENT.

    Args:
        parent: The span to which they belong, as a W3C traceparent; None: as without this.
        inside: On a server: programs get TRACEPARENT of their own span in their environment.

    Raises:
        InvalidArgument: parent is malformed.
    """
    if parent is not None and not (isinstance(parent, str) and _PARENT.fullmatch(parent)):
        raise InvalidArgument(
            f"parent must be a traceparent, 00-TRACE-SPAN-FLAGS, not {parent!r}", stage="arguments"
        )
    first = _parent.set(_parent.get() if parent is None else parent)
    second = _inside.set(inside or _inside.get())
    try:
        yield
    finally:
        _inside.reset(second)
        _parent.reset(first)


def current_labels() -> dict[str, str]:
    """The labels of the present block."""
    return _labels.get()


def is_inside() -> bool:
    """Whether programs are to get TRACEPARENT."""
    return _inside.get()


def _of_opentelemetry() -> Optional[str]:
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def current_parent() -> Optional[str]:
    """The traceparent of the present block; None: there is none."""
    found = _parent.get() or _of_opentelemetry() or os.environ.get("TRACEPARENT")
    return found if found and _PARENT.fullmatch(found) else None
