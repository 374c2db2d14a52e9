# SPDX-License-Identifier: Apache-2.0
"""rollbox: run untrusted programs in sandboxes.

    from rollbox import Policy, Sandbox
    result = Sandbox(Policy(max_memory="256M")).run(["python3", "-c", code], timeout=10)
    print(result.outcome, result.text)

    with Sandbox() as box:                              # a session: a sandbox that stays
        box.exec("git init repo")
        base = box.snapshot()

What a program did is a Result; what rollbox could not do is a RollboxError.
docs/reference/python.md describes the whole package.
"""

from __future__ import annotations

import ctypes
from typing import Any

from . import images
from ._batch import code_job, iter_many, run_many
from ._build import BuiltImage, BuiltStep, build_image, build_image_async
from ._clone_result import Clone, WorkFailed
from ._clones import ClonePool
from ._core import ffi
from ._core.errors import *  # noqa: F403
from ._core.errors import __all__ as _errors
from ._core.policy import Policy
from ._core.record import Record, RecordWarning
from ._core.result import Outcome, Result, RunFailed
from ._core.tracing import labels, traceparent
from ._core.trajectory import (
    Action,
    Child,
    Content,
    End,
    Header,
    Observation,
    Parent,
    Resources,
    Step,
    Trajectory,
)
from ._engine import Engine, default_engine
from ._files import FileInfo
from ._grade import VERIFIER_CONTROL_FILES, Grade, UnsafeGrading
from ._grade_outputs import DISTRUSTED
from ._process import Process, Stream
from ._sandbox import Sandbox
from ._shell import Shell, ShellResult
from ._snapshots import Change, Node, Snapshot, Tree
from .aio._batch import iter_many_async, run_many_async
from .aio._process import AsyncProcess, AsyncShell, AsyncStream
from .aio._sandbox import AsyncClonePool, AsyncSandbox

__version__ = ffi.VERSION

# Older names of one class; they stay for a release.
WorkSandbox = TemplateSandbox = Sandbox
AsyncWorkSandbox = AsyncSandbox


def doctor() -> dict[str, Any]:
    """Tells what this kernel and user can give.

    Needs no engine, and blocks for some milliseconds. Features named in $ROLLBOX_KFEAT
    (-landlock,-userns,...) count as missing.

    Returns:
        {"kernel", "ok", "isolation": {"namespace", "process"}, "cgroup", "features": [{"name",
        "available", "needed_for", "hint"}]}.

    Raises:
        EngineStartFailed: The library is missing.

    Example:
        >>> import rollbox
        >>> sorted(rollbox.doctor()["isolation"])
        ['namespace', 'process']
    """
    text = ctypes.c_void_p()
    error = ffi.Error()
    if ffi.lib().rollbox_doctor(ctypes.byref(text), ctypes.byref(error)) < 0:
        raise ffi.exception(error)
    report: dict[str, Any] = ffi.take_json(text)
    return report


__all__ = [
    "Action",
    "AsyncClonePool",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncShell",
    "AsyncStream",
    "AsyncWorkSandbox",
    "BuiltImage",
    "BuiltStep",
    "Change",
    "Child",
    "Clone",
    "ClonePool",
    "Content",
    "DISTRUSTED",
    "End",
    "Engine",
    "FileInfo",
    "Grade",
    "Header",
    "Node",
    "Observation",
    "Outcome",
    "Parent",
    "Policy",
    "Process",
    "Record",
    "RecordWarning",
    "Resources",
    "Result",
    "RunFailed",
    "Sandbox",
    "Shell",
    "ShellResult",
    "Snapshot",
    "Step",
    "Stream",
    "TemplateSandbox",
    "Trajectory",
    "Tree",
    "UnsafeGrading",
    "VERIFIER_CONTROL_FILES",
    "WorkFailed",
    "WorkSandbox",
    "build_image",
    "build_image_async",
    "code_job",
    "default_engine",
    "doctor",
    "images",
    "iter_many",
    "iter_many_async",
    "labels",
    "run_many",
    "run_many_async",
    "traceparent",
    *_errors,
]


def __dir__() -> list[str]:
    return sorted(
        {*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__", "__version__"}
    )
