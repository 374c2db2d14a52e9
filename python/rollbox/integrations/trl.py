# SPDX-License-Identifier: Apache-2.0
"""TRL: environments whose tools work in a sandbox, and a reward for programs.

    from rollbox.integrations.trl import CodeReward, EnvironmentFactory

    GRPOTrainer(..., environment_factory=EnvironmentFactory(reward="pytest -q", outputs=["/tmp/r"]))
    GRPOTrainer(..., reward_funcs=[CodeReward(cases="tests")])

TRL resets an environment for each rollout and never closes it. A reset goes back to a snapshot. The
sandbox ends when nobody refers to the environment any more, or with the program.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional, Union

from .._core.errors import Cancelled, EngineLost, NotFound, RollboxError
from .._core.options import PolicyLike
from .._sandbox import Sandbox
from .._snapshots import Snapshot
from ._code_reward import cases_of, program_of, score_programs, text_of
from ._common import EngineLike, Source, ending_of, one_stream

_log = logging.getLogger(__name__)

OnReset = Callable[[Sandbox, Mapping[str, Any]], Optional[str]]
Reward = Union[str, Callable[[Sandbox, Mapping[str, Any]], Optional[float]]]


class EnvironmentFactory:
    """Makes environments for `environment_factory`.

    Picklable if its engine is a path or an address and its functions are of a module.

    Args:
        policy: The policy.
        image: The image, by way of `images`; None: the policy's.
        images: {name: the store's image}; "host" means the host's directories.
        setup: A line of shell to run once; every environment begins as a fork of its result.
        on_reset: A function of (Sandbox, row of the data set) that prepares a rollout, for example
            writes its files. The text that it returns goes to the end of the prompt.
        reward: A line of shell, whose exit status 0 is reward 1.0 and any other 0.0; or a function
            of (Sandbox, row). The line runs as for Sandbox.grade: in a clean sandbox that has only
            the outputs. None: the environments own no reward, so give the trainer `reward_funcs`.
        outputs: With a line as `reward`: the files and directories that it judges.
        reward_files: With a line as `reward`: {path: data} of the verifier.
        timeout: Seconds for a command and for the reward.
        cwd: The working directory of commands; None: the policy's or the image's.
        max_text: Characters of output that a tool returns, the middle being left out.
        engine: A socket, the address of a server, an Engine, or None: this process's engine.
        token: The server's token; without one, the content of $ROLLBOX_TOKEN_FILE.
        labels: Names and values for the trajectories and log lines.
        record: Where the sandboxes' trajectories go.
    """

    def __init__(
        self,
        *,
        policy: PolicyLike = None,
        image: Optional[str] = None,
        images: Optional[Mapping[str, str]] = None,
        setup: Optional[str] = None,
        on_reset: Optional[OnReset] = None,
        reward: Optional[Reward] = None,
        outputs: Optional[Sequence[str]] = None,
        reward_files: Optional[Mapping[str, Union[str, bytes]]] = None,
        timeout: float = 60,
        cwd: Optional[str] = None,
        max_text: int = 16_000,
        engine: EngineLike = None,
        token: Optional[str] = None,
        labels: Optional[Mapping[str, Any]] = None,
        record: Any = None,
    ) -> None:
        self.source = Source(
            policy=policy,
            image=image,
            images=images,
            setup=setup,
            engine=engine,
            token=token,
            labels=labels,
            record=record,
        )
        self.on_reset, self.reward = on_reset, reward
        self.outputs = None if outputs is None else list(outputs)
        self.reward_files = dict(reward_files or {})
        self.timeout, self.cwd, self.max_text = timeout, cwd, max_text

    def __call__(self) -> Any:
        """A RollboxEnvironment, with a reward a GradedEnvironment; `reset` makes its sandbox."""
        return (RollboxEnvironment if self.reward is None else GradedEnvironment)(self)

    def shorten(self, text: str) -> str:
        """The text without its middle, if it is too long."""
        if len(text) <= self.max_text:
            return text
        half = self.max_text // 2
        left_out = len(text) - 2 * half
        return f"{text[:half]}\n[{left_out} characters left out]\n{text[-half:]}"


class RollboxEnvironment:
    """An environment of TRL. Its public methods other than `reset` are the model's tools."""

    def __init__(self, factory: EnvironmentFactory) -> None:
        self._factory = factory
        self._box: Optional[Sandbox] = None
        self._base: Optional[Snapshot] = None
        self._task: Optional[Snapshot] = None
        self._row: dict[str, Any] = {}
        self._failure: Optional[str] = None

    @property
    def _sandbox(self) -> Sandbox:
        if self._box is None:
            raise NotFound("the environment has no sandbox: reset it first", stage="arguments")
        return self._box

    def reset(self, **row: Any) -> Optional[str]:
        """Begins a rollout: the sandbox is as at its beginning, and prepared for the row."""
        self._row, self._failure, self._task = row, None, None
        if self._box is not None:
            try:
                self._box.reset(self._base)
            except RollboxError as problem:
                _log.warning("the sandbox is lost, and another one is made: %s", problem)
                self._end()
        try:
            if self._box is None:
                self._box = self._factory.source.open()
                self._base = self._box.snapshot()
            if self._factory.on_reset is None:
                self._task = self._base
                return None
            observation = self._factory.on_reset(self._box, row)
            self._task = self._box.snapshot()
            return observation
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        box, self._box, self._base = self._box, None, None
        if box is not None:
            try:
                box.close()
            except RollboxError:
                pass  # The engine that had it is gone.

    def _failed(self, problem: RollboxError) -> None:
        """Notes a failure that is not the model's: the rollout then has no reward."""
        lost = isinstance(problem, (EngineLost, Cancelled))
        if isinstance(problem, NotFound):
            # A file that is not there, or the sandbox itself.
            try:
                self._sandbox.inspect()
            except RollboxError:
                lost = True
        if lost and self._failure is None:
            self._failure = f"{type(problem).__name__}: {problem}"

    def run_command(self, command: str) -> str:
        """Run a command in the sandbox's shell.

        Args:
            command: The command line for bash.

        Returns:
            The output of the command, with its exit status if that is not 0.
        """
        try:
            result = self._sandbox.exec(
                one_stream(command),
                cwd=self._factory.cwd,
                timeout=self._factory.timeout,
                text=True,
            )
        except RollboxError as problem:
            self._failed(problem)
            raise
        return self._factory.shorten(result.stdout) + ending_of(result)

    def read_file(self, path: str) -> str:
        """Read a text file of the sandbox.

        Args:
            path: The absolute path of the file.

        Returns:
            The content of the file.
        """
        try:
            data = self._sandbox.read_file(path)
        except RollboxError as problem:
            self._failed(problem)
            raise
        return self._factory.shorten(data.decode("utf-8", "replace"))

    def write_file(self, path: str, content: str) -> str:
        """Write a text file in the sandbox, replacing the file if it exists.

        Args:
            path: The absolute path of the file.
            content: The new content of the file.

        Returns:
            A confirmation.
        """
        try:
            self._sandbox.write_file(path, content)
        except RollboxError as problem:
            self._failed(problem)
            raise
        return f"wrote {len(content)} characters to {path}"


class GradedEnvironment(RollboxEnvironment):
    """An environment that owns its reward."""

    def get_reward(self) -> Optional[float]:
        """The rollout's reward; None, which TRL leaves out, if rollbox failed."""
        reward = self._factory.reward
        if self._failure is None:
            try:
                if not isinstance(reward, str):
                    assert reward is not None
                    return reward(self._sandbox, self._row)
                grade = self._sandbox.grade(
                    self._factory.reward_files,
                    reward,
                    outputs=self._factory.outputs,
                    base=self._task,
                    cwd=self._factory.cwd,
                    timeout=self._factory.timeout,
                )
                return 1.0 if grade.ok else 0.0
            except RollboxError as problem:
                self._failure = f"{type(problem).__name__}: {problem}"
        _log.warning(
            "no reward for a rollout, because rollbox failed: %s %s",
            self._failure,
            self._factory.source.labels or "",
        )
        return None


class CodeReward:
    """A reward function: the share of a row's cases that the program in the completion passes.

    A completion without a fenced block scores 0. If rollbox fails, the reward is None, which TRL
    leaves out. Picklable if its engine is a path or an address.

    Args:
        cases: The data set's column of cases: {"inputs", "outputs"}, a list of {"input", "output"},
            or the JSON of one of these.
        policy: The policy.
        timeout: Seconds for a case.
        all_or_nothing: 1.0 for a program that passes every case, else 0.0.
        concurrency: Programs at a time; None: as for run_many.
        engine: A socket, the address of a server, an Engine, or None: this process's engine.
        token: The server's token; without one, the content of $ROLLBOX_TOKEN_FILE.
        labels: Names and values for the log lines.
        pool: A rollbox.ray.Pool: the nodes of a Ray cluster run the programs, under its policy.
            Then policy, engine and concurrency are the pool's.
    """

    __name__ = "rollbox_code_reward"

    def __init__(
        self,
        *,
        cases: str = "cases",
        policy: PolicyLike = None,
        timeout: float = 10,
        all_or_nothing: bool = False,
        concurrency: Optional[int] = None,
        engine: EngineLike = None,
        token: Optional[str] = None,
        labels: Optional[Mapping[str, Any]] = None,
        pool: Any = None,
    ) -> None:
        self.pool = pool
        self.cases, self.policy, self.timeout = cases, policy, timeout
        self.all_or_nothing, self.concurrency = all_or_nothing, concurrency
        self.engine, self.token, self.labels = engine, token, dict(labels or {})

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[Optional[float]]:
        """The rewards of a batch of completions.

        Raises:
            InvalidArgument: The data set lacks the column, or its cases are malformed.
        """
        scores = score_programs(
            [program_of(text_of(completion)) for completion in completions],
            [cases_of(value) for value in columns.get(self.cases, [None] * len(completions))],
            policy=self.policy,
            engine=self.engine,
            token=self.token,
            timeout=self.timeout,
            concurrency=self.concurrency,
            pool=self.pool,
        )
        rewards: list[Optional[float]] = []
        for score in scores:
            if score.value is None:
                _log.warning(
                    "no reward for a completion, because rollbox failed: %s %s",
                    score.error,
                    self.labels or "",
                )
                rewards.append(None)
            elif self.all_or_nothing:
                rewards.append(float(score.passed == score.total))
            else:
                rewards.append(score.value)
        return rewards
