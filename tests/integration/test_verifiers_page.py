# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/how-to/verifiers.md hold against programs that try to fool them.
test_documented_commands.py runs them as printed."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "how-to" / "verifiers.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
HONEST = '"print(sum(map(int, input().split())))\\n"'


def test_page_contains_its_examples():
    assert len(EXAMPLES) == 3 and sum(HONEST in example for example in EXAMPLES) == 2


ATTACKS = {
    "a daemon that rewrites the reward": """
import os
if os.fork() == 0:
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    while True:
        try:
            if open("/tmp/verifier/reward").read() == "0":
                open("/tmp/verifier/reward", "w").write("1")
        except OSError:
            pass
""",
    "the expected output in the verifier's files": """
import glob
for path in glob.glob("/tmp/verifier/*"):
    if "expected" in path:
        print(open(path).read(), end="")
""",
    "the expected output in the verifier's memory": """
import os, re
parent = os.getppid()
with open(f"/proc/{parent}/mem", "rb") as memory:
    for line in open(f"/proc/{parent}/maps"):
        print(line)
print(5)
""",
    "the verifier's descriptors": """
import os
for fd in os.listdir(f"/proc/{os.getppid()}/fd"):
    print(os.readlink(f"/proc/{os.getppid()}/fd/{fd}"))
print(5)
""",
    "the verifier killed": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
@pytest.mark.parametrize("example", EXAMPLES[1:], ids=["own sandbox", "child"])
def test_example_resists_a_cheating_program(example, attack):
    """Programs end with an error where the example holds them up, so the right answer that some
    print after it does not come."""
    assert "reward" in example
    kept = {}
    code = re.sub(r"assert .*", "pass", example.replace(HONEST, repr(attack)))
    exec(compile(code, str(PAGE), "exec"), kept)
    if "grade" in kept:
        assert not kept["grade"].ok and b"1" not in kept["grade"].files.values(), kept["grade"]
    else:
        assert kept["reward"] == 0
