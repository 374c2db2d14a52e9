# SPDX-License-Identifier: Apache-2.0
"""TemplateSource: where a Sandbox with a template gets its sandboxes from.

A template is the sandbox template.NAME of a shared engine, with a snapshot in which an interpreter
waits for a program (src/cli/template.c). A session begins as a fork of this snapshot, and so does
each run of code, whose interpreter is sent the code.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional, Union

from ._clones import encode_message
from ._core import ffi
from ._core.connection import DetachedRun
from ._core.errors import InvalidArgument, NotFound
from ._core.handle import Handle
from ._core.options import state_options
from ._core.policy import Policy
from ._core.remote import open_handle
from ._core.request import (
    RUN_TIMEOUT_S,
    AttachRequest,
    Data,
    Timeout,
    allowed_s,
    as_bytes,
    code_argv,
)
from ._core.result import Outcome, Result
from ._engine import Engine
from ._process import finish_result

_COMMAND = "python"
_SNAPSHOT = b"template"
_SLICE_S = 0.1


class TemplateSource:
    """The template of a Sandbox.

    Attributes:
        policy: The template's policy; None if the engine does not say it.
    """

    def __init__(self, origin: Handle) -> None:
        self._origin = origin
        row = origin.json("rollbox_sandbox_query", ffi.QUERY_INSPECT).get("policy")
        self.policy = Policy().replace(**row) if isinstance(row, dict) else None

    @classmethod
    def open(
        cls, template: str, engine: Optional[Engine], others: Mapping[str, object]
    ) -> TemplateSource:
        """The template of that name; `others` are arguments that cannot go with it.

        Raises:
            InvalidArgument: An argument is missing, wrong or one too many.
            NotFound: There is no such template.
        """
        given = sorted(name for name, value in others.items() if value is not None)
        if given:
            raise InvalidArgument(
                f"{', '.join(given)} cannot be given with template: the template's policy and "
                "lifetime apply",
                stage="arguments",
            )
        if engine is None:
            raise InvalidArgument(
                "templates belong to a shared engine: give engine=Engine(SOCKET), the engine of "
                "rollbox template create",
                stage="arguments",
            )
        if not isinstance(template, str) or not template or "\0" in template:
            raise InvalidArgument(f"template must be a str, not {template!r}", stage="arguments")
        try:
            return cls(open_handle(engine.remote, engine, f"template.{template}"))
        except NotFound:
            raise NotFound(
                f"there is no template {template}; rollbox template ls lists them",
                stage="arguments",
            ) from None

    def fork(self) -> Handle:
        """A new sandbox in the state of the template."""
        return self._origin.fork(_SNAPSHOT, 1, state_options("keep", attached=True))[0]

    def run_code(
        self,
        policy: Policy,
        code: Union[str, bytes],
        args: Sequence[Union[str, bytes]],
        stdin: Optional[Data],
        timeout: Timeout,
        text: bool,
        check: bool,
    ) -> Result[Any]:
        """Sandbox.run_code in a fork of the template."""
        words = [word.decode("utf-8", "surrogateescape") for word in code_argv(code, args)[1:]]
        data = b"" if stdin is None else as_bytes("stdin", stdin)
        allowed = allowed_s(timeout, policy.timeout, RUN_TIMEOUT_S)
        handle = self.fork()
        try:
            standard, control, results = handle.claim(_COMMAND, 0, 3, 4)
            try:
                run = handle.start(AttachRequest(_COMMAND))
                end = None if allowed is None else time.monotonic() + allowed
                _feed(run, control, encode_message({"argv": words}), end)
                control = -1
                _feed(run, standard, data, end)
                standard = -1
            finally:
                for fd in (standard, control, results):
                    if fd >= 0:
                        os.close(fd)
            result = run.wait(None if end is None else max(0.0, end - time.monotonic()))
            if result is None:
                kill = (_COMMAND.encode(), int(signal.SIGKILL), ffi.SCOPES["tree"])
                handle.call("rollbox_signal", *kill)
                result = run.wait(None)
                assert result is not None
                if result.outcome is Outcome.SIGNAL:
                    result = replace(result, outcome=Outcome.TIMEOUT, signal=None)
        finally:
            handle.close()
        return finish_result(result, text, check)


def _feed(run: DetachedRun, fd: int, data: bytes, end: Optional[float]) -> None:
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
                left = left[os.write(fd, left[: 1 << 16]) :]
    except BrokenPipeError:
        pass
    finally:
        os.close(fd)
