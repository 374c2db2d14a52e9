#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""An agent of mini-swe-agent in a repository (docs/tutorials/repository-agent.md).

A script takes the place of the model. With --ray, each episode is a task of Ray: on a cluster, or
on this machine alone.
"""

import os
import sys

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from minisweagent.agents.default import DefaultAgent  # noqa: E402
from minisweagent.models.test_models import (  # noqa: E402
    DeterministicModel,
    make_output,
)
from rollbox import Sandbox  # noqa: E402
from rollbox.integrations.mini_swe_agent import RollboxEnvironment  # noqa: E402

SETUP = """
mkdir -p /tmp/repo && cd /tmp/repo
printf 'def add(a, b):\\n    return a - b\\n' > calc.py
printf 'from calc import add\\nassert add(2, 3) == 5\\n' > test_calc.py
"""
ANSWERS = [
    "python3 test_calc.py",
    "sed -i 's/a - b/a + b  # repaired/' calc.py",
    "python3 test_calc.py && echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo repaired",
]
GIVES_UP = ["echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo 'it is hopeless'"]
VERIFIER = """
import sys
sys.path.insert(0, "/tmp/repo")
from calc import add
assert add(1, 1) == 2
"""


def attempt(answers):
    """One episode: the agent works, then a verifier judges its files in a clean sandbox."""
    environment = RollboxEnvironment(cwd="/tmp/repo", setup=SETUP, policy={"max_memory": "256M"})
    outputs = [
        make_output(line, [{"command": line}]) for line in answers
    ]
    model = DeterministicModel(outputs=outputs)
    agent = DefaultAgent(
        model,
        environment,
        system_template="You repair programs.",
        instance_template="{{task}}",
        step_limit=5,
        cost_limit=0,
    )
    info = agent.run("Make test_calc.py pass.")
    box: Sandbox = environment.sandbox
    grade = box.grade(
        {"/tmp/verify.py": VERIFIER}, ["python3", "/tmp/verify.py"], outputs=["/tmp/repo/calc.py"]
    )
    environment.cleanup()
    return info["exit_status"], float(grade.ok)


def attempts(episodes):
    """The episodes' ends: here, or with --ray on the nodes of a cluster."""
    if "--ray" not in sys.argv:
        return [attempt(answers) for answers in episodes]
    import ray

    # A task's process has an engine of its own, on its node, and the sandboxes end with it.
    task = ray.remote(num_cpus=1, max_retries=3)(attempt)
    return ray.get([task.remote(answers) for answers in episodes])


def main():
    names, episodes = ("repairs", "gives up"), (ANSWERS, GIVES_UP)
    for name, (status, reward) in zip(names, attempts(episodes)):
        print(f"{name}: {status}, reward {reward}")


if __name__ == "__main__":
    main()
