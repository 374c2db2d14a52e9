# SPDX-License-Identifier: Apache-2.0
"""A reward function and a rollout's state for verl. A script takes the place of the model.

With verl: reward.custom_reward_function.path=pkg://rollbox.integrations.verl
           reward.custom_reward_function.name=compute_score
"""

from rollbox.integrations.verl import Rollouts, Source, compute_score

CASES = {"inputs": ["1", "2"], "outputs": ["2", "4"]}
ANSWERS = [
    "```python\nprint(int(input()) * 2)\n```",
    "```python\nprint(2)\n```",
    "I do not know.",
]
scores = [compute_score("doubling", answer, CASES)["score"] for answer in ANSWERS]
print("scores", scores)
assert scores == [1.0, 0.5, 0.0]

# What RollboxTool keeps between a rollout's calls.
rollouts = Rollouts(Source(policy={"max_memory": "256M"}), idle=600)
rollouts.run("rollout-1", "echo 42 > /tmp/state", 60, None)
assert rollouts.run("rollout-1", "cat /tmp/state", 60, None).stdout == "42\n"
assert rollouts.run("rollout-2", "cat /tmp/state", 60, None).exit_code == 1
for name in ("rollout-1", "rollout-2"):
    rollouts.end(name)
