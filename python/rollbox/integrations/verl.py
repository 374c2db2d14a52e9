# SPDX-License-Identifier: Apache-2.0
"""verl: tools whose state is a sandbox of the rollout, function tools, and a reward for programs.

    tools:
      - class_name: rollbox.integrations.verl.RollboxTool
        config: {type: native, policy: {max_memory: 1G}}

    reward.custom_reward_function.path=pkg://rollbox.integrations.verl
    reward.custom_reward_function.name=compute_score

verl creates and releases a tool around every call and does not tell when a rollout ends. So a
sandbox belongs to the rollout's request id, and is closed after `idle` seconds without a call.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Optional

from .._core.errors import Cancelled, EngineLost, InvalidArgument, NotFound, RollboxError
from .._core.options import PolicyLike
from .._core.result import Result
from .._sandbox import Sandbox
from ..aio._threads import run_in_thread
from ._code_reward import cases_of, program_of, score_programs
from ._common import EngineLike, Source, ending_of, engine_at, one_stream, status_of

try:
    from verl.tools.base_tool import BaseTool as _Base
except ImportError:
    _Base = object

_log = logging.getLogger(__name__)

_REMEMBERED = 10_000

__all__ = [
    "RollboxPythonTool",
    "RollboxTool",
    "Rollouts",
    "Source",
    "compute_score",
    "function_tools",
]


class _Held:
    """The sandbox of one rollout."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held while the sandbox is made
        self.box: Optional[Sandbox] = None
        self.calls = 0
        self.used = time.monotonic()


class Rollouts:
    """The sandboxes of rollouts, by request id; those without a call for `idle` seconds are closed.

    Args:
        source: Where the sandboxes come from.
        idle: Seconds.
    """

    def __init__(self, source: Source, idle: float) -> None:
        self._source, self._idle = source, idle
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._reaper: Optional[threading.Thread] = None

    def __len__(self) -> int:
        return len(self._held)

    def run(self, request_id: str, command: str, timeout: float, cwd: Optional[str]) -> Result[str]:
        """Runs a line of shell in the rollout's sandbox, which the first call makes.

        Raises:
            NotFound: The sandbox was closed, because no call came for `idle` seconds.
            RollboxError: As for Sandbox and exec.
        """
        with self._lock:
            if request_id in self._ended:
                raise NotFound(
                    f"the sandbox of rollout {request_id} was closed after {self._idle:g} s "
                    "without a call; raise the tool's `idle`",
                    stage="arguments",
                )
            held = self._held.setdefault(request_id, _Held())
            held.calls += 1
            if self._reaper is None:
                self._reaper = threading.Thread(
                    target=self._reap, name="rollbox-verl-reaper", daemon=True
                )
                self._reaper.start()
        try:
            with held.lock:
                if held.box is None:
                    held.box = self._source.open({"request_id": request_id})
            return held.box.exec(one_stream(command), cwd=cwd, timeout=timeout, text=True)
        finally:
            with self._lock:
                held.calls -= 1
                held.used = time.monotonic()

    def end(self, request_id: str) -> None:
        """Closes a rollout's sandbox at once, where a program knows that the rollout has ended."""
        with self._lock:
            held = self._remove(request_id)
        _close(request_id, held)

    def _remove(self, request_id: str) -> Optional[_Held]:
        self._ended[request_id] = None
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        return self._held.pop(request_id, None)

    def _reap(self) -> None:
        while True:
            time.sleep(min(max(self._idle / 4, 0.01), 10))
            now = time.monotonic()
            with self._lock:
                old = [
                    name
                    for name, held in self._held.items()
                    if held.calls == 0 and now - held.used >= self._idle
                ]
                # Under the lock: a call that comes now finds the rollout ended.
                removed = [(name, self._remove(name)) for name in old]
                if last := not self._held:
                    self._reaper = None
            for name, one in removed:
                _close(name, one)
            if last:
                return


def _close(request_id: str, held: Optional[_Held]) -> None:
    if held is not None and held.box is not None:
        try:
            held.box.close()
        except RollboxError as problem:
            _log.warning("the sandbox of rollout %s was lost: %s", request_id, problem)


_rollouts: dict[str, Rollouts] = {}
_rollouts_lock = threading.Lock()


def _after_fork() -> None:
    global _rollouts, _rollouts_lock
    _rollouts, _rollouts_lock = {}, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)

_SOURCE_KEYS = ("policy", "image", "images", "setup", "engine", "token", "labels", "record")
_KEYS = {"type", "name", "description", "timeout", "idle", "cwd", *_SOURCE_KEYS}


def _shared(config: Mapping[str, Any]) -> Rollouts:
    """The Rollouts of a configuration: tools with the same one share a rollout's sandbox."""
    source = {key: config[key] for key in _SOURCE_KEYS if config.get(key) is not None}
    idle = float(config.get("idle", 600))
    key = json.dumps([source, idle], sort_keys=True, default=repr)
    with _rollouts_lock:
        if key not in _rollouts:
            _rollouts[key] = Rollouts(Source(**source), idle)
        return _rollouts[key]


def _schema(config: Mapping[str, Any], default: str, parameter: str, about: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": config.get("name", default),
            "description": config.get("description", about),
            "parameters": {
                "type": "object",
                "properties": {parameter: {"type": "string", "description": about}},
                "required": [parameter],
            },
        },
    }


class RollboxTool(_Base):  # type: ignore[misc]
    """A tool of verl that runs commands in the rollout's sandbox.

    Args:
        config: The keys policy, image, images, setup, engine, token, labels and record are as for
            the other adapters. timeout: seconds for a command (60). idle: seconds without a call
            after which a rollout's sandbox is closed (600). cwd: the working directory. name,
            description: what the model sees.
        tool_schema: verl's schema of a tool with the parameter `command`; None: made from config.

    Raises:
        InvalidArgument: The configuration has a key that the tool does not know.
    """

    parameter = "command"
    default_name = "run_command"
    about = "A command line for bash. Files stay from one command to the next."

    def __init__(self, config: Mapping[str, Any], tool_schema: Any = None) -> None:
        unknown = sorted(set(config) - _KEYS)
        if unknown:
            raise InvalidArgument(
                f"the tool's config has unknown keys: {', '.join(unknown)}; "
                f"it may have {', '.join(sorted(_KEYS))}",
                stage="arguments",
            )
        self.config = dict(config)
        if tool_schema is None:
            from verl.tools.schemas import OpenAIFunctionToolSchema

            tool_schema = OpenAIFunctionToolSchema.model_validate(
                _schema(config, self.default_name, self.parameter, self.about)
            )
        self.tool_schema = tool_schema
        self.name: str = tool_schema.function.name
        self.rollouts = _shared(config)
        self._timeout = float(config.get("timeout", 60))

    def get_openai_tool_schema(self) -> Any:
        """The tool's schema."""
        return self.tool_schema

    async def create(self, instance_id: Optional[str] = None, **_: Any) -> tuple[str, Any]:
        """Begins a call; the sandbox is made by `execute`, which knows the rollout."""
        from verl.tools.schemas import ToolResponse

        return instance_id or str(uuid.uuid4()), ToolResponse()

    def command_of(self, parameters: Mapping[str, Any]) -> str:
        """The line of shell for a call's parameters."""
        value = parameters.get(self.parameter)
        if not isinstance(value, str):
            raise InvalidArgument(
                f"the tool {self.name} needs the parameter {self.parameter!r}, a string",
                stage="arguments",
            )
        return value

    async def execute(
        self, instance_id: str, parameters: Mapping[str, Any], **kwargs: Any
    ) -> tuple[Any, float, dict[str, Any]]:
        """Runs a command.

        Returns:
            The output with a line about its end; reward 0.0; and the metrics rollbox_timeout,
            rollbox_out_of_memory and rollbox_exit_status.

        Raises:
            RollboxError: rollbox failed; verl shows the text to the model. The rollout's
                `extra_fields` then have `rollbox_failure`.
        """
        from verl.tools.schemas import ToolResponse

        agent = kwargs.get("agent_data")
        # Without a rollout to belong to, the call has a sandbox of its own.
        request_id = getattr(agent, "request_id", None)
        name = str(request_id or instance_id)
        command = self.command_of(parameters)
        try:
            result = await run_in_thread(
                self.rollouts.run, name, command, self._timeout, self.config.get("cwd")
            )
        except RollboxError as problem:
            if isinstance(problem, (EngineLost, NotFound, Cancelled)):
                _log.warning("rollout %s lost its sandbox: %s", name, problem)
                fields = getattr(agent, "extra_fields", None)
                if isinstance(fields, dict):
                    fields["rollbox_failure"] = f"{type(problem).__name__}: {problem}"
            raise
        finally:
            if request_id is None:
                await run_in_thread(self.rollouts.end, name)
        metrics = {
            "rollbox_exit_status": status_of(result),
            "rollbox_timeout": int(result.outcome.value == "timeout"),
            "rollbox_out_of_memory": int(result.outcome.value == "out_of_memory"),
        }
        return ToolResponse(text=(result.stdout + ending_of(result)) or "[no output]"), 0.0, metrics

    async def calc_reward(self, instance_id: str, **_: Any) -> float:
        """0.0: the reward is a reward function's."""
        return 0.0

    async def release(self, instance_id: str, **_: Any) -> None:
        """Ends a call. The sandbox stays for the rollout's next one."""


class RollboxPythonTool(RollboxTool):
    """A tool of verl that runs Python programs in the rollout's sandbox, each in a new process."""

    parameter = "code"
    default_name = "run_python"
    about = "A Python program. It prints its results; files stay for the next program."

    def command_of(self, parameters: Mapping[str, Any]) -> str:
        """The line of shell that runs the program."""
        code = super().command_of(parameters)
        mark = f"ROLLBOX_{uuid.uuid4().hex}"
        return f"python3 /dev/fd/3 3<<'{mark}'\n{code}\n{mark}"


def function_tools(
    *,
    policy: PolicyLike = None,
    engine: EngineLike = None,
    token: Optional[str] = None,
    timeout: float = 60,
) -> None:
    """Registers the function tool `run_code`, for a file that `function_tool_path` names.

    Each call has a new sandbox. Args as for the other adapters.
    """
    from verl.tools.function_tool import function_tool

    def run_code(code: str) -> str:
        """Run a Python program in a new sandbox.

        Args:
            code: The program's text.

        Returns:
            What the program printed.
        """
        box = Sandbox(policy, engine=engine_at(engine, token))
        result = box.run_code(code, timeout=timeout, text=True)
        return (result.stdout + result.stderr + ending_of(result)) or "[no output]"

    function_tool(run_code)


def compute_score(
    data_source: Any,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    policy: PolicyLike = None,
    engine: EngineLike = None,
    token: Optional[str] = None,
    timeout: float = 10,
    all_or_nothing: bool = False,
    failure_score: Optional[float] = None,
    **_: Any,
) -> dict[str, float]:
    """A reward function: the share of cases that the last fenced block of the answer passes.

    Args:
        data_source: The data set's name, for log lines.
        solution_str: The model's answer.
        ground_truth: The cases: {"inputs", "outputs"}, a list of {"input", "output"}, or the JSON
            of one of these. The expected outputs never enter a sandbox.
        extra_info: Unused.
        policy: The policy.
        engine: A socket, the address of a server, or None: this process's engine.
        token: A server's token; without one, the content of $ROLLBOX_TOKEN_FILE.
        timeout: Seconds for a case.
        all_or_nothing: 1.0 for an answer that passes every case, else 0.0.
        failure_score: The score if rollbox fails, with rollbox_failed 1.0 beside it; None: raise.

    Returns:
        {"score", "passed", "total", "rollbox_failed"}.

    Raises:
        InvalidArgument: The cases are malformed.
        RuntimeError: rollbox failed after its retries, and there is no `failure_score`: verl would
            take any number for the answer's score.
    """
    (score,) = score_programs(
        [program_of(solution_str)],
        [cases_of(ground_truth)],
        policy=_plain(policy),
        engine=engine,
        token=token,
        timeout=timeout,
    )
    found = {"passed": float(score.passed), "total": float(score.total)}
    if score.value is None:
        _log.warning("no score for an answer of %s: rollbox failed: %s", data_source, score.error)
        if failure_score is None:
            raise RuntimeError(f"rollbox failed, so there is no score: {score.error}")
        return {"score": failure_score, **found, "rollbox_failed": 1.0}
    value = float(score.passed == score.total) if all_or_nothing else score.value
    return {"score": value, **found, "rollbox_failed": 0.0}


def _plain(policy: Any) -> Any:
    """The policy as rollbox takes it: verl's reward_kwargs may hold omegaconf's containers."""
    if type(policy).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        return OmegaConf.to_container(policy, resolve=True)
    return policy
