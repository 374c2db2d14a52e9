# SPDX-License-Identifier: Apache-2.0
"""An environment for TRL's GRPOTrainer. A script takes the place of the trainer and its model.

With a model: GRPOTrainer(model, train_dataset=rows, environment_factory=factory).
"""

from collections.abc import Mapping
from typing import Any

from rollbox import Sandbox
from rollbox.integrations.trl import CodeReward, EnvironmentFactory


def prepare(box: Sandbox, row: Mapping[str, Any]) -> str:
    box.write_file("/tmp/repo/add.py", row["program"])
    return "Repair /tmp/repo/add.py."


factory = EnvironmentFactory(
    policy={"max_memory": "256M"},
    setup="mkdir -p /tmp/repo",
    on_reset=prepare,
    reward="python3 /tmp/hidden/test.py",
    reward_files={
        "/tmp/hidden/test.py": "import sys; sys.path.insert(0, '/tmp/repo')\n"
        "from add import add; assert add(2, 3) == 5"
    },
    outputs=["/tmp/repo"],
)
ROW = {
    "prompt": [{"role": "user", "content": "A task."}],
    "program": "def add(a, b): return a - b\n",
}
ACTIONS = [
    "sed -i 's/a - b/a + b/' /tmp/repo/add.py",
    "mkdir /tmp/hidden; touch /tmp/hidden/test.py; ls /tmp/hidden",
]

environment = factory()
rewards = []
for action in ACTIONS:
    print(environment.reset(**ROW))
    print(">", action, environment.run_command(action))
    rewards.append(environment.get_reward())
print("rewards", rewards)
assert rewards == [1.0, 0.0]

reward = CodeReward(cases="tests")
answers = ["```python\nprint(int(input()) * 2)\n```", "```python\nprint(4)\n```"]
tests = [{"inputs": ["2", "3"], "outputs": ["4", "6"]}] * 2
print("code rewards", reward(answers, tests=tests))
