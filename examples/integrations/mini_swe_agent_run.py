# SPDX-License-Identifier: Apache-2.0
"""mini-swe-agent repairs a program in a sandbox. A script takes the place of the model.

Needs: pip install mini-swe-agent
"""

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output

COMMANDS = [
    "cd /tmp && python3 test.py",
    "cd /tmp && sed -i 's/a - b/a + b/' add.py && python3 test.py",
    "cd /tmp && echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat add.py",
]
SETUP = """cd /tmp
echo 'def add(a, b): return a - b' > add.py
echo 'from add import add; assert add(2, 3) == 5; print("passed")' > test.py"""

environment = get_environment(
    {
        "environment_class": "rollbox.integrations.mini_swe_agent.RollboxEnvironment",
        "policy": {"max_memory": "256M"},
        "setup": SETUP,
        "labels": {"task": "add"},
    }
)
model = DeterministicModel(
    outputs=[make_output(command, [{"command": command}]) for command in COMMANDS]
)
agent = DefaultAgent(
    model,
    environment,
    system_template="You are on {{system}} {{machine}}.",
    instance_template="{{task}}",
    cost_limit=100,
)
result = agent.run("Make test.py pass.")
print(result["exit_status"], repr(result["submission"]))
assert result == {"exit_status": "Submitted", "submission": "def add(a, b): return a + b\n"}
environment.cleanup()
