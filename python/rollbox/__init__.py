# SPDX-License-Identifier: Apache-2.0
"""rollbox: run untrusted programs in sandboxes.

    from rollbox import Policy, Sandbox
    result = Sandbox(Policy(max_memory="256M")).run(["python3", "-c", code], timeout=10)
    print(result.outcome, result.text)

    with Sandbox() as box:                              # a session: a sandbox that lives
        box.exec("git init repo")
        base = box.snapshot()

What the program did is a Result; what rollbox could not do is a RollboxError. docs/python.md has the whole of it.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List

from . import _ffi
from ._async_clones import AsyncWorkSandbox
from ._async_sandbox import AsyncProcess, AsyncSandbox, AsyncShell, AsyncStream
from ._batch import code_job, iter_many, iter_many_async, run_many, run_many_async
from ._clones import Clone, WorkFailed, WorkSandbox
from ._engine import Engine, default_engine
from ._errors import *  # noqa: F403
from ._errors import __all__ as _errors
from ._files import FileInfo
from ._grade import VERIFIER_CONTROL_FILES, Grade, UnsafeGrading
from ._grade_outputs import DISTRUSTED
from ._policy import Policy
from ._process import Process, Stream
from ._record import Record, RecordWarning
from ._result import Outcome, Result, RunFailed
from ._sandbox import Sandbox
from ._session import Change, Node, Snapshot, Tree
from ._shell import Shell, ShellResult
from ._template import TemplateSandbox
from ._trajectory import Action, Child, Content, End, Header, Observation, Parent, Resources, Step, Trajectory

__version__ = _ffi.VERSION


def doctor() -> Dict[str, Any]:
    """What this kernel and user can give: {"kernel", "ok", "isolation": {"namespace", "process"}, "cgroup", "features": [{"name",
    "available", "needed_for", "hint"}]}.

    Features named in $ROLLBOX_KFEAT (-landlock,-userns,...) count as missing. Blocks for some milliseconds; needs no engine.
    """
    text = ctypes.c_void_p()
    error = _ffi.Error()
    if _ffi.lib().rollbox_doctor(ctypes.byref(text), ctypes.byref(error)) < 0:
        raise _ffi.exception(error)
    report: Dict[str, Any] = _ffi.take_json(text)
    return report


__all__ = [
    "Action", "AsyncProcess", "AsyncSandbox", "AsyncShell", "AsyncStream", "AsyncWorkSandbox", "Change", "Child", "Clone", "Content", "DISTRUSTED", "End", "Engine", "FileInfo", "Grade", "Header", "Node",
    "Observation", "Outcome", "Parent", "Policy", "Process", "Record", "RecordWarning", "Resources", "Result", "RunFailed", "Sandbox", "Shell", "ShellResult", "Snapshot", "Step",
    "Stream", "TemplateSandbox", "Trajectory", "Tree", "UnsafeGrading", "VERIFIER_CONTROL_FILES", "WorkFailed", "WorkSandbox",
    "code_job", "default_engine", "doctor", "iter_many", "iter_many_async", "run_many", "run_many_async", *_errors,
]


def __dir__() -> List[str]:
    return sorted({*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__", "__version__"})
