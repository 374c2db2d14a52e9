# SPDX-License-Identifier: Apache-2.0
"""TemplateSandbox: Sandbox(template=NAME), on what `rollbox template create` made.

A template is the sandbox template.NAME of a shared engine, with a snapshot in which an interpreter waits for a program (src/cli/template.c). A session begins as a fork of that, and so does each run of code, whose interpreter gets the code.
"""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import replace
from typing import Any, Optional, Sequence, Union

from . import _ffi
from ._base import PolicyLike, RecordLike, one_input
from ._clones import _message
from ._engine import Engine, LooseRun
from ._errors import InvalidArgument, NotFound
from ._handle import Handle
from ._policy import Policy
from ._process import conclude
from ._request import RUN_TIMEOUT_S, AttachRequest, Data, Timeout, _data, allowed_s, code_argv
from ._result import Outcome, Result
from ._sandbox import Sandbox
from ._session import _state

_COMMAND = "python"
_SNAPSHOT = b"template"
_SLICE_S = 0.1


class TemplateSandbox(Sandbox):
    """What Sandbox(template=NAME, engine=...) makes: its policy is the template's, its session begins as a fork of the template, and `run_code` runs in another fork each time."""

    def __init__(self, policy: PolicyLike = None, *, template: str, engine: Optional[Engine] = None, record: RecordLike = None, **options: Any) -> None:
        given = sorted(name for name, value in {"policy": policy, **options}.items() if value is not None)
        if given:
            raise InvalidArgument(f"{', '.join(given)} cannot be given with template: its policy and its life are the template's", stage="arguments")
        if engine is None:
            raise InvalidArgument("templates are a shared engine's: give engine=Engine(SOCKET), the one that rollbox template create spoke to", stage="arguments")
        if not isinstance(template, str) or not template or "\0" in template:
            raise InvalidArgument(f"template must be a str, not {template!r}", stage="arguments")
        self._template = template
        try:
            self._origin = Handle.open(engine, f"template.{template}".encode("utf-8", "surrogateescape"))
        except NotFound:
            raise NotFound(f"there is no template {template}; rollbox template ls lists those there are", stage="arguments") from None
        row = self._origin.json("rollbox_sandbox_query", _ffi.QUERY_INSPECT).get("policy")
        super().__init__(Policy().replace(**row) if isinstance(row, dict) else None, engine=engine, record=record)

    def __enter__(self) -> "TemplateSandbox":
        self._enter()
        return self

    def _fork(self) -> Handle:
        return self._origin.fork(_SNAPSHOT, 1, _state("keep", attached=True))[0]

    def _create(self) -> Handle:
        handle = self._fork()
        if self._record is not None:
            handle.record(self._record)
        return handle

    def _kin(self, record: Any) -> Sandbox:  # type: ignore[override]
        return Sandbox(self._policy, engine=self._engine, record=record)

    def run(self, *args: Any, **options: Any) -> Any:
        """As Sandbox.run in an open session. Without one it is refused: a template's interpreter is for run_code."""
        if self._in_session():
            return super().run(*args, **options)
        raise InvalidArgument("a template's interpreter runs code: use run_code, or exec in a session", stage="arguments")

    def run_code(self, code: Union[str, bytes], args: Sequence[Union[str, bytes]] = (), *, timeout: Timeout = None, stdin: Optional[Data] = None, input: Optional[Data] = None, text: bool = False,  # type: ignore[override]
                 check: bool = False) -> Result[Any]:
        """As Sandbox.run_code, in the template's interpreter: the code finds what the template's left in `__main__`. env, cwd and files are the template's. Refused in an open
        session, whose interpreter is the template's one that still waits: each run of code is a fork of its own."""
        if self._in_session():
            raise InvalidArgument("each run_code of a template is a fork of its own and would not see this session's files; use exec([\"python3\", \"-c\", code]) in the session, "
                                  "or run_code of a Sandbox(template=...) without one", stage="arguments")
        words = [word.decode("utf-8", "surrogateescape") for word in code_argv(code, args)[1:]]
        data = one_input(stdin, input)
        allowed = allowed_s(timeout, self._policy.timeout, RUN_TIMEOUT_S)
        handle = self._fork()
        try:
            standard, control, results = handle.claim(_COMMAND, 0, 3, 4)
            try:
                run = handle.start(AttachRequest(_COMMAND))
                end = None if allowed is None else time.monotonic() + allowed
                _feed(run, control, _message({"argv": words}), end)
                control = -1
                _feed(run, standard, b"" if data is None else _data("stdin", data), end)
                standard = -1
            finally:
                for fd in (standard, control, results):
                    if fd >= 0:
                        os.close(fd)
            result = run.wait(None if end is None else max(0.0, end - time.monotonic()))
            if result is None:
                handle.call("rollbox_signal", _COMMAND.encode(), int(signal.SIGKILL), _ffi.SCOPES["tree"])
                result = run.wait(None)
                assert result is not None
                if result.outcome is Outcome.SIGNAL:
                    result = replace(result, outcome=Outcome.TIMEOUT, signal=None)
        finally:
            handle.close()
        return conclude(result, text, check)


def _feed(run: LooseRun, fd: int, data: bytes, end: Optional[float]) -> None:
    """Writes what a command reads, as long as it runs and has time, and closes the descriptor."""
    if fd < 0:
        raise NotFound("the interpreter of the template has ended", stage="run")
    left = memoryview(data)
    try:
        os.set_blocking(fd, False)
        while left and not (end is not None and time.monotonic() > end) and run.wait(0) is None:
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            if poll.poll(_SLICE_S * 1000):
                left = left[os.write(fd, left[:1 << 16]):]
    except BrokenPipeError:
        pass
    finally:
        os.close(fd)
