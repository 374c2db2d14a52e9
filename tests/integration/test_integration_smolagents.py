# SPDX-License-Identifier: Apache-2.0
"""rollbox.integrations.smolagents with the package itself: whole runs of CodeAgent by a script."""

import importlib.util
import os
import signal

import pytest
from adapters import own_server
from harness import processes, until

if importlib.util.find_spec("smolagents") is None:
    pytest.skip(
        "needs smolagents: its executor is a class of its own (make integrations)",
        allow_module_level=True,
    )

import rollbox  # noqa: E402
from rollbox.integrations.smolagents import RollboxExecutor  # noqa: E402
from smolagents import CodeAgent, Model, tool  # noqa: E402
from smolagents.models import ChatMessage, MessageRole  # noqa: E402
from smolagents.utils import AgentError  # noqa: E402

# The frameworks alone take long to import on a loaded machine.
pytestmark = pytest.mark.timeout_s(600)

POLICY = {"max_memory": "256M"}


class Script(Model):
    """A model whose answers are written down."""

    def __init__(self, *programs):
        super().__init__(model_id="script")
        self.programs = list(programs)

    def generate(self, messages, **options):
        text = f"Thought: next.\n<code>\n{self.programs.pop(0)}\n</code>"
        return ChatMessage(role=MessageRole.ASSISTANT, content=text)


@tool
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: The number.
    """
    return number * 2


@pytest.fixture
def executor():
    with RollboxExecutor(POLICY, timeout=30) as made:
        yield made


def test_an_agent_uses_tools_and_variables_in_the_sandbox(executor):
    model = Script("x = double(number=4)\nprint('so far', x)", "final_answer({'x': x + 1})")
    agent = CodeAgent(tools=[double], model=model, executor=executor, max_steps=3, verbosity_level=0)
    assert agent.run("Count.") == {"x": 9}
    assert "so far 8" in agent.memory.steps[1].observations


def test_state_logs_and_values_of_steps(executor):
    executor.send_variables({"given": [1, 2]})
    assert executor("import os\nfound = sum(given)\nos.system('echo child')\nfound").output == 3
    assert executor("print('text'); found + 1").logs == "text\n"
    assert "child" in executor("os.system('echo child')").logs
    assert executor("object()").output.startswith("<object")


def test_a_failing_program_is_an_error_of_the_agent(executor):
    with pytest.raises(AgentError, match="ZeroDivisionError"):
        executor("print('before')\n1 / 0")
    with pytest.raises(AgentError, match="SyntaxError"):
        executor("def")
    assert executor("'next'").output == "next" and executor.failure is None


def test_a_limit_begins_a_new_interpreter_and_keeps_files():
    with RollboxExecutor(POLICY, timeout=1) as executor:
        executor("x = 1; open('/tmp/kept', 'w').write('file')")
        with pytest.raises(AgentError, match="time-out of 1 s"):
            executor("import time; time.sleep(600)")
        with pytest.raises(AgentError, match="NameError"):
            executor("x")
        assert executor("open('/tmp/kept').read()").output == "file"
        with pytest.raises(AgentError, match="memory limit|MemoryError"):
            executor("y = b'x' * (1 << 30)")
        assert executor("1").output == 1


def test_a_forged_answer_is_no_error_of_the_host(executor):
    with pytest.raises(AgentError):
        executor("import os, glob\nfor n in range(3, 20):\n    try: os.write(n, b'{}\\n')\n    except OSError: pass")
    assert executor("2").output == 2


def test_a_lost_engine_is_not_the_agents_error():
    with rollbox.Engine() as engine:
        executor = RollboxExecutor(POLICY, engine=engine)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(rollbox.RollboxError):
            executor("1")
        assert isinstance(executor.failure, rollbox.RollboxError)
        with pytest.raises(rollbox.RollboxError):
            executor("1")
        executor.cleanup()


def test_labels_are_in_the_trajectory(tmp_path):
    path = tmp_path / "t.jsonl"
    with RollboxExecutor(POLICY, labels={"episode": 5}, record=str(path)) as executor:
        executor("1")
    assert '"episode"' in path.read_text()


def test_cleanup_ends_the_sandbox():
    executor = RollboxExecutor(POLICY)
    executor("import subprocess; p = subprocess.Popen(['sleep', '86389.11'])")
    until(lambda: processes("sleep", "86389.11"))
    executor.cleanup()
    executor.cleanup()
    until(lambda: not processes("sleep", "86389.11"))


def test_an_executor_of_a_server():
    with own_server() as url:
        with RollboxExecutor(POLICY, engine=url, labels={"episode": 1}) as executor:
            executor("x = 20")
            assert executor("print('there'); x + 1").output == 21
            (row,) = rollbox.Engine(url).sandboxes()
            assert row["labels"] == {"episode": "1"}
