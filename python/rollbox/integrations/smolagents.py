# SPDX-License-Identifier: Apache-2.0
"""smolagents: an executor of an agent's Python in a sandbox.

    from rollbox.integrations.smolagents import RollboxExecutor
    agent = CodeAgent(tools=[...], model=model, executor=RollboxExecutor())

One Python runs in the sandbox and keeps its variables from step to step. Tools are sent there as
source, as to smolagents' other remote executors.
"""

from __future__ import annotations

import ast
import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.utils import AgentError

from .._core.errors import EngineLost, RollboxError
from .._core.options import PolicyLike
from .._process import Process
from .._sandbox import Sandbox
from ._common import EngineLike, Source

_log = logging.getLogger(__name__)

_PACKAGES = "/tmp/.packages"
"""Where pip puts packages in the sandbox."""


class RollboxExecutor(RemotePythonExecutor):
    """A PythonExecutor of smolagents. Use it for one agent; it is also a context manager.

    Args:
        policy: The policy.
        additional_imports: Packages to install in the sandbox by pip; the policy must allow it.
        logger: smolagents' logger.
        allow_pickle: As of RemotePythonExecutor; False: values are sent as JSON alone.
        timeout: Seconds for a step. After a time-out another interpreter begins.
        python: The interpreter's program in the sandbox.
        image: An image of the store; see `images`.
        images: {image: the store's}; "host" means the host's directories.
        setup: A line of shell to run once; each executor begins as a fork of its result.
        engine: An Engine, a socket, the address of a server, or None: this process's engine.
        token: The server's token.
        labels: Names and values for the trajectory and for a server's costs.
        record: Where the trajectory goes; not with setup.

    Attributes:
        failure: The RollboxError by which the sandbox was lost, or None. smolagents makes each
            error of an executor the step's; look here before you score a run.
    """

    def __init__(
        self,
        policy: PolicyLike = None,
        *,
        additional_imports: Optional[list[str]] = None,
        logger: Optional[AgentLogger] = None,
        allow_pickle: bool = False,
        timeout: float = 60,
        python: str = "python3",
        image: Optional[str] = None,
        images: Optional[Mapping[str, str]] = None,
        setup: Optional[str] = None,
        engine: EngineLike = None,
        token: Optional[str] = None,
        labels: Optional[Mapping[str, Any]] = None,
        record: Any = None,
    ) -> None:
        own = AgentLogger(level=LogLevel.ERROR)
        super().__init__(additional_imports or [], logger or own, allow_pickle)
        source = Source(
            policy=policy,
            image=image,
            images=images,
            setup=setup,
            engine=engine,
            token=token,
            labels=labels,
            record=record,
        )
        self._timeout, self._python = timeout, python
        self._process: Optional[Process] = None
        self._lock = threading.Lock()
        self._sending_tools = False
        self.failure: Optional[RollboxError] = None
        self.sandbox: Sandbox[Any] = source.open()
        if self.additional_imports:
            self._install(self.additional_imports)
        self.installed_packages = list(self.additional_imports)

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Defines the tools in the sandbox, from their source."""
        self._sending_tools = True
        try:
            super().send_tools(tools)
        finally:
            self._sending_tools = False

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Installs packages of tools by pip, for this sandbox alone.

        smolagents' own final_answer names numpy and pillow, which it can do without. So without a
        network nothing is installed, and a tool that needs a package fails when it is used.
        """
        if additional_imports and self.sandbox.policy.net not in (None, "none"):
            self._install(additional_imports)
        elif additional_imports:
            _log.debug("no network, so not installed: %s", ", ".join(additional_imports))
        return additional_imports

    def _install(self, packages: list[str]) -> None:
        words = [self._python, "-m", "pip", "install", "--quiet", "--target", _PACKAGES, *packages]
        result = self.sandbox.exec(words, text=True)
        if not result.ok:
            raise AgentError(f"pip failed: {result.stderr[-2000:]}", self.logger)

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Runs a program of the agent.

        Raises:
            AgentError: The program raised an exception, reached the time-out, or ended the
                interpreter. The text says which.
            RollboxError: The sandbox is lost; `failure` has it as well.
        """
        with self._lock:
            if self.failure is not None:
                raise self.failure
            try:
                return self._run(_optional_imports(code) if self._sending_tools else code)
            except RollboxError as problem:
                self.failure = problem
                _log.warning("the agent's sandbox is lost: %s", problem)
                raise

    def _run(self, code: str) -> CodeOutput:
        process = self._process = self._process or self._start()
        message = json.dumps({"code": code, "final": self.FINAL_ANSWER_EXCEPTION}) + "\n"
        timer = threading.Timer(self._timeout, _kill, [process])
        timer.start()
        try:
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(message.encode())
                process.stdin.flush()
                line = process.stdout.readline()
            except OSError as problem:
                if isinstance(problem, EngineLost):
                    raise
                line = b""
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            self._process = None
            raise AgentError(self._why_it_ended(process), self.logger)
        return self._output(line)

    def _start(self) -> Process:
        program = Path(__file__).with_name("_smolagents_guest.py").read_text("utf-8")
        env = {"PYTHONPATH": _PACKAGES}
        return self.sandbox.spawn([self._python, "-c", program], stdin=None, env=env)

    def _why_it_ended(self, process: Process) -> str:
        result = process.wait()
        if result.error is not None:
            raise result.error
        if getattr(process, "_rollbox_timed_out", False):
            return (
                f"The code reached its time-out of {self._timeout:g} s. The interpreter was "
                "replaced: its variables are gone, files are not."
            )
        how = {"out_of_memory": "was killed at the memory limit"}.get(
            result.outcome.value, f"ended ({result.outcome.value})"
        )
        return f"The interpreter {how}. It was replaced: its variables are gone, files are not."

    def _output(self, line: bytes) -> CodeOutput:
        try:
            found = json.loads(line)
            logs = str(found["logs"])
            kind, value = found["kind"], found["value"]
        except (ValueError, KeyError, TypeError):
            self._process = None
            raise AgentError("The interpreter's answer is malformed.", self.logger) from None
        if kind == "final":
            answer = self._deserialize_final_answer(str(value), self.allow_pickle)
            return CodeOutput(output=answer, logs=logs, is_final_answer=True)
        if kind == "error":
            raise AgentError(f"{logs}\nExecuting code yielded an error:\n{value}", self.logger)
        return CodeOutput(output=value, logs=logs, is_final_answer=False)

    def cleanup(self) -> None:
        """Ends the sandbox. May be called twice."""
        self.sandbox.close()

    def __enter__(self) -> RollboxExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def _optional_imports(code: str) -> str:
    """The program of tools, whose imports may fail: those of final_answer name what few need."""
    made = []
    for node in ast.parse(code).body:
        text = ast.unparse(node)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            text = f"try:\n    {text}\nexcept ImportError:\n    pass"
        made.append(text)
    return "\n".join(made)


def _kill(process: Any) -> None:
    process._rollbox_timed_out = True
    try:
        process.kill()
    except RollboxError:
        pass  # it has just ended
