#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""An evaluation with inspect_ai (docs/tutorials/evaluation.md).

A solver that is written down takes the place of the model. With --ray, each sample is evaluated by
a task of Ray: on a cluster, or on this machine alone.
"""

import sys
import tempfile

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import solver
from inspect_ai.util import SandboxEnvironmentSpec, sandbox
from rollbox.integrations.inspect_ai import RollboxConfig

SAMPLES = [
    Sample(input="print(6 * 7)", target="42"),
    Sample(input="print('forty-two')", target="42"),
    Sample(input="while True: pass", target="42"),
]


@solver
def writes_the_program():
    async def solve(state, generate):
        await sandbox().write_file("answer.py", state.input_text)
        return state

    return solve


@scorer(metrics=[accuracy()])
def output_of_the_program():
    async def score(state, target):
        try:
            result = await sandbox().exec(["python3", "answer.py"], timeout=2)
        except TimeoutError:
            return Score(value=0, explanation="the program reached its time-out")
        return Score(value=int(result.stdout.strip() == target.text), answer=result.stdout)

    return score


def evaluate(logs, samples=SAMPLES):
    config = RollboxConfig(policy={"max_memory": "256M"}, setup="echo ready > note")
    task = Task(
        dataset=list(samples),
        solver=writes_the_program(),
        scorer=output_of_the_program(),
        sandbox=SandboxEnvironmentSpec("rollbox", config),
    )
    (log,) = eval(task, model="mockllm/model", display="none", log_dir=logs)
    if log.status != "success":
        raise RuntimeError(log.error)
    return log.results.scores[0].metrics["accuracy"].value


def evaluate_one(sample):
    """One sample on a node: a sample that fails is an error of its task, and no wrong answer."""
    with tempfile.TemporaryDirectory() as logs:
        return evaluate(logs, [sample])


def evaluate_on_ray():
    import ray

    task = ray.remote(num_cpus=1, max_retries=3)(evaluate_one)
    values = ray.get([task.remote(sample) for sample in SAMPLES])
    return sum(values) / len(values)


def main():
    if "--ray" in sys.argv:
        print(f"accuracy {evaluate_on_ray():.2f}")
        return
    with tempfile.TemporaryDirectory() as logs:
        print(f"accuracy {evaluate(logs):.2f}")


if __name__ == "__main__":
    main()
