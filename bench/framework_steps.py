# SPDX-License-Identifier: Apache-2.0
"""One framework's step through its adapter beside the same step of the package alone.

    framework_steps.py NAME STORE ROUNDS

bench/frameworks.py runs this with the Python of the framework's virtual environment. Both calls
run the command `true` in the same sandbox and take turns. The last line is JSON: the pairs of
times in milliseconds.
"""

import asyncio
import contextlib
import json
import logging
import os
import sys
import tempfile
import time
from types import SimpleNamespace

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HARBOR_TELEMETRY": "off", "HF_HUB_OFFLINE": "1"}
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "ROLLBOX_STORE": sys.argv[2]}

from rollbox import AsyncSandbox  # noqa: E402

POLICY = {"max_memory": "256M"}
MERGED = "exec 2>&1\ntrue"
WARM_UP = 30


def aio(box):
    """The same sandbox for asyncio."""
    return AsyncSandbox.of(box)


@contextlib.asynccontextmanager
async def harbor():
    from harbor.models.task.config import EnvironmentConfig
    from harbor.models.trial.paths import TrialPaths
    from pathlib import Path
    from rollbox.integrations.harbor import RollboxEnvironment

    with tempfile.TemporaryDirectory() as place:
        trials = TrialPaths(Path(place) / "trial")
        trials.mkdir()
        made = RollboxEnvironment(
            environment_dir=Path(place),
            environment_name="bench",
            session_id="bench__env",
            trial_paths=trials,
            task_env_config=EnvironmentConfig(docker_image="base"),
            logger=logging.getLogger("bench"),
            images={"*": "base"},
        )
        await made.start(False)
        options = {"env": {}, "user": made._resolve_user(None), "cwd": None, "timeout": None}
        yield (
            lambda: made.exec("true"),
            lambda: made.sandbox.exec(["bash", "-c", "true"], **options),
        )
        await made.stop(True)


@contextlib.asynccontextmanager
async def nemo_gym():
    from nemo_gym.sandbox.providers.base import SandboxSpec
    from rollbox.integrations.nemo_gym import RollboxProvider

    provider = RollboxProvider(images={"*": "base"})
    handle = await provider.create(SandboxSpec(image="base"))
    box = handle.raw.box
    yield lambda: provider.exec(handle, "true"), lambda: box.exec(["bash", "-c", "true"])
    await provider.aclose()


@contextlib.asynccontextmanager
async def verifiers():
    from rollbox.integrations.verifiers import RollboxRuntime

    async with RollboxRuntime("base", images={"*": "base"}, workdir="/tmp") as runtime:
        box = runtime.sandbox
        yield (
            lambda: runtime.run(["true"], {}),
            lambda: box.exec(["true"], cwd="/tmp", env={}, user=None),
        )


@contextlib.asynccontextmanager
async def ares():
    import importlib.util
    import types

    # Its own __init__ asks the network for lists of data sets.
    (place,) = importlib.util.find_spec("ares").submodule_search_locations
    for name, path in (("ares", place), ("ares.containers", os.path.join(place, "containers"))):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [path]
    from rollbox.integrations.ares import ContainerFactory

    factory = ContainerFactory.configured(policy=POLICY, images={"*": "host"})
    container = factory.from_image(image="any")
    await container.start()
    yield lambda: container.exec_run("true"), lambda: container.sandbox.exec(MERGED, env={})
    await container.stop()


@contextlib.asynccontextmanager
async def verl():
    from rollbox.integrations.verl import RollboxTool
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.experimental.agent_loop.tool_parser import FunctionCall

    tool = RollboxTool({"type": "native", "policy": POLICY})
    loop = object.__new__(ToolAgentLoop)  # as its __init__ leaves it, without a model
    loop.tools, loop.max_tool_response_length = {tool.name: tool}, 4096
    loop.tool_response_truncate_side = "middle"
    agent = SimpleNamespace(request_id="bench", extra_fields={}, tools_kwargs={})
    call = FunctionCall(name=tool.name, arguments=json.dumps({"command": "true"}))
    await loop._call_tool(call, {}, agent)
    box = aio(tool.rollouts._held["bench"].box)
    yield (
        lambda: loop._call_tool(call, {}, agent),
        lambda: box.exec(MERGED, timeout=60, text=True),
    )
    tool.rollouts.end("bench")


@contextlib.asynccontextmanager
async def inspect_ai():
    from rollbox.integrations.inspect_ai import RollboxSandboxEnvironment as Environment

    made = await Environment.sample_init("bench", None, {})
    one = made["default"]
    yield lambda: one.exec(["true"]), lambda: one.box.exec(["true"])
    await Environment.sample_cleanup("bench", None, made, False)


@contextlib.asynccontextmanager
async def skyrl_gym():
    import skyrl_gym as gym
    from rollbox.integrations import skyrl

    skyrl.register()
    config = {"policy": POLICY}
    with gym.make("rollbox", env_config=config, extras={"max_turns": 1 << 30}) as env:
        env.init([{"role": "user", "content": "go"}])
        box = env.sandbox
        yield (
            lambda: env.step("```bash\ntrue\n```"),
            lambda: box.exec(MERGED, timeout=60, text=True),
        )


@contextlib.asynccontextmanager
async def trl():
    from rollbox.integrations.trl import EnvironmentFactory

    made = EnvironmentFactory(policy=POLICY)()
    made.reset(prompt=[{"role": "user", "content": "go"}])
    box = made._sandbox
    yield (
        lambda: made.run_command("true"),
        lambda: box.exec(MERGED, timeout=60, text=True),
    )


@contextlib.asynccontextmanager
async def mini_swe():
    from rollbox.integrations.mini_swe_agent import RollboxEnvironment

    made = RollboxEnvironment(policy=POLICY)
    box = made.sandbox
    yield (
        lambda: made.execute({"command": "true"}),
        lambda: box.exec(MERGED, timeout=30, text=True),
    )
    made.cleanup()


async def measured(name, rounds):
    """[(adapter, alone), ...] in milliseconds."""
    pairs = []
    async with globals()[name]() as calls:
        for number in range(WARM_UP + rounds):
            times = [0.0, 0.0]
            # The two begin in turns, so that neither has the other's warm caches alone.
            for place in (0, 1) if number % 2 else (1, 0):
                begun = time.perf_counter_ns()
                answer = calls[place]()
                if asyncio.iscoroutine(answer):
                    await answer
                times[place] = (time.perf_counter_ns() - begun) / 1e6
            if number >= WARM_UP:
                pairs.append(times)
    return pairs


def main():
    print(json.dumps(asyncio.run(measured(sys.argv[1], int(sys.argv[3])))))


if __name__ == "__main__":
    main()
