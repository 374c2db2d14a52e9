# SPDX-License-Identifier: Apache-2.0
"""Rewards for programs: what share of cases of input and expected output a program answers.

The expected outputs stay outside of the sandboxes, so a program cannot read them, and its exit
status alone earns nothing.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

from .._batch import code_job, run_many
from .._core.errors import (
    FeatureMissing,
    InvalidArgument,
    PathDenied,
    PathNotFound,
    PolicyInvalid,
    RollboxError,
)
from .._core.options import PolicyLike
from .._core.result import Outcome, Result
from ._common import EngineLike, ended_by, engine_at

_FENCE = re.compile(r"```[ \t]*([\w+-]*)[^\n]*\n(.*?)```", re.DOTALL)

# The caller's mistakes, which no other answer would avoid. They are raised.
_MISTAKES = (InvalidArgument, PolicyInvalid, PathNotFound, PathDenied, FeatureMissing)


@dataclasses.dataclass(frozen=True)
class Score:
    """A program's score.

    Attributes:
        value: The share of cases that passed, 0 to 1; None if rollbox failed, which says nothing
            of the program.
        passed: Cases that passed.
        total: All cases.
        outcomes: For each case "passed", "wrong", "failed", a limit's name (TimeoutExpired,
            OutOfMemory, OutputLimitExceeded), or the name of rollbox's error.
        error: The text of rollbox's first error; None without one.
    """

    value: Optional[float]
    passed: int
    total: int
    outcomes: tuple[str, ...]
    error: Optional[str] = None


def program_of(text: str) -> Optional[str]:
    """The program in a model's answer: its last fenced block; None without one."""
    blocks = _FENCE.findall(text)
    return blocks[-1][1] if blocks else None


def text_of(completion: Any) -> str:
    """The text of a completion: a str, or the assistant's messages of a conversation."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Mapping):
        completion = [completion]
    parts = []
    for message in completion:
        content = message.get("content") if message.get("role") != "tool" else None
        if isinstance(content, str):
            parts.append(content)
        elif content:
            parts += [part["text"] for part in content if isinstance(part.get("text"), str)]
    return "\n".join(parts)


def cases_of(value: Any) -> list[tuple[str, str]]:
    """(input, expected output) of each case.

    Args:
        value: {"inputs": [...], "outputs": [...]}, a list of {"input", "output"}, or the JSON of
            one of these.

    Raises:
        InvalidArgument: It is none of these, or has no case.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as problem:
            raise InvalidArgument(f"the cases are not JSON: {problem}", stage="arguments") from None
    try:
        if isinstance(value, Mapping):
            inputs, outputs = value["inputs"], value["outputs"]
            if len(inputs) != len(outputs):
                raise InvalidArgument(
                    f"{len(inputs)} inputs and {len(outputs)} outputs are no cases",
                    stage="arguments",
                )
            found = [(str(one), str(other)) for one, other in zip(inputs, outputs)]
        else:
            found = [(str(case["input"]), str(case["output"])) for case in value]
    except (KeyError, TypeError) as problem:
        raise InvalidArgument(
            "cases are {inputs, outputs} or a list of {input, output}; "
            f"{type(problem).__name__}: {problem}",
            stage="arguments",
        ) from None
    if not found:
        raise InvalidArgument("there is no case to run the program with", stage="arguments")
    return found


def _same(found: str, wanted: str) -> bool:
    """Whether two outputs agree, apart from white space at the ends of lines and of the text."""
    lines = [[line.rstrip() for line in text.rstrip().splitlines()] for text in (found, wanted)]
    return lines[0] == lines[1]


def _outcome(result: Result[Any], wanted: str) -> str:
    if result.error is not None:
        return type(result.error).__name__
    limit = ended_by(result)
    if limit is not None:
        return limit
    if result.outcome is not Outcome.EXIT or result.exit_code != 0:
        return "failed"
    return "passed" if _same(result.stdout, wanted) else "wrong"


def _no_program(cases: Sequence[Any]) -> Score:
    return Score(0.0, 0, len(cases), ("no program",) * len(cases))


def score_programs(
    programs: Sequence[Optional[str]],
    cases: Iterable[Sequence[tuple[str, str]]],
    *,
    policy: PolicyLike = None,
    engine: EngineLike = None,
    token: Optional[str] = None,
    timeout: float = 10,
    concurrency: Optional[int] = None,
    pool: Any = None,
) -> list[Score]:
    """Runs Python programs with their cases, all in one batch.

    Args:
        programs: The programs; None scores 0.
        cases: The cases of each program.
        policy: The policy.
        engine: As for the adapters.
        token: A server's token.
        timeout: Seconds for a case.
        concurrency: As for run_many; a pool has its own (slots_per_node).
        pool: A rollbox.ray.Pool: its nodes run the programs, under its policy.

    Returns:
        The scores, in the order of the programs.

    Raises:
        InvalidArgument: A policy or an engine is given with a pool, or the policy is malformed.
    """
    if pool is not None and (policy is not None or engine is not None):
        raise InvalidArgument(
            "policy and engine belong to the pool: give them to rollbox.ray.Pool", stage="arguments"
        )
    given = list(cases)
    jobs = [
        code_job(program, stdin=case[0], timeout_s=timeout)
        for program, own in zip(programs, given)
        if program is not None
        for case in own
    ]
    try:
        if not jobs:
            results: Iterator[Result[Any]] = iter(())
        elif pool is not None:
            results = iter(pool.run_many(jobs, text=True))
        else:
            at = engine_at(engine, token)
            results = iter(
                run_many(jobs, concurrency, policy, engine=at, text=True, progress=False)
            )
    except _MISTAKES:
        raise
    except RollboxError as problem:
        name = type(problem).__name__
        return [
            Score(None, 0, len(own), (name,) * len(own), str(problem))
            if program is not None
            else _no_program(own)
            for program, own in zip(programs, given)
        ]
    scores = []
    for program, own in zip(programs, given):
        if program is None:
            scores.append(_no_program(own))
            continue
        ended = [(next(results), wanted) for _, wanted in own]
        outcomes = tuple(_outcome(result, wanted) for result, wanted in ended)
        passed = outcomes.count("passed")
        error = next((str(result.error) for result, _ in ended if result.error is not None), None)
        value = None if error is not None else passed / len(own)
        scores.append(Score(value, passed, len(own), outcomes, error))
    return scores
