# SPDX-License-Identifier: Apache-2.0
"""Episodes of each framework's adapter, for tests that are the same for all of them.

An episode is a context manager of asyncio. It gives a function that runs a line of shell through
the adapter and returns the text that the framework shows, as the adapter words it. Options are
`policy`, `engine`, `labels`, `record`, and `image`, a name of the store.
"""

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import threading
import types
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("HARBOR_TELEMETRY", "off")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

POLICY = {"max_memory": "256M"}
HOST = "host"


def _options(options, image="image", engine="engine"):
    """Keywords of adapters, which spell the image in three ways."""
    made = {"policy": {**POLICY, **(options.get("policy") or {})}}
    if options.get("engine"):
        made[engine] = options["engine"]
    for name in ("labels", "record"):
        if options.get(name):
            made[name] = options[name]
    if image == "images":
        made["images"] = {"*": options.get("image") or HOST}
    elif options.get("image"):
        made[image] = options["image"]
    return made


@contextlib.asynccontextmanager
async def harbor(**options):
    import logging

    from harbor.models.task.config import EnvironmentConfig
    from harbor.models.trial.paths import TrialPaths
    from rollbox.integrations.harbor import RollboxEnvironment

    with tempfile.TemporaryDirectory() as place:
        trials = TrialPaths(Path(place) / "trial")
        trials.mkdir()
        made = RollboxEnvironment(
            environment_dir=Path(place),
            environment_name="episode",
            session_id="episode__env",
            trial_paths=trials,
            task_env_config=EnvironmentConfig(docker_image="any"),
            logger=logging.getLogger("episode"),
            **_options({"image": "base", **options}, "images"),
        )
        await made.start(False)

        async def run(command):
            done = await made.exec(command)
            return (done.stdout or "") + (done.stderr or "")

        try:
            yield run
        finally:
            await made.stop(True)


@contextlib.asynccontextmanager
async def nemo_gym(**options):
    from nemo_gym.sandbox.providers.base import SandboxSpec
    from rollbox.integrations.nemo_gym import RollboxProvider

    provider = RollboxProvider(**_options(options, "images"))
    handle = await provider.create(SandboxSpec(image="any"))

    async def run(command):
        done = await provider.exec(handle, command)
        return (done.stdout or "") + (done.stderr or "") + (done.error_type or "")

    try:
        yield run
    finally:
        await provider.aclose()


@contextlib.asynccontextmanager
async def verifiers(**options):
    from rollbox.integrations.verifiers import RollboxRuntime

    async with RollboxRuntime("any", workdir="/tmp", **_options(options, "images")) as runtime:

        async def run(command):
            done = await runtime.run(["sh", "-c", command], {})
            return done.stdout + done.stderr

        yield run


@contextlib.asynccontextmanager
async def openenv_server(**options):
    from rollbox.integrations import openenv_server as adapter
    from rollbox.integrations._common import Source

    made = adapter.ForkEnvironment(Source(**_options(options)))
    made.reset()

    def run(command):
        done = made.step(adapter.SandboxAction(command=command))
        return done.stdout + done.stderr + (done.limit or "")

    try:
        yield run
    finally:
        made.close()


@contextlib.asynccontextmanager
async def inspect_ai(**options):
    from rollbox.integrations.inspect_ai import RollboxConfig, RollboxSandboxEnvironment

    config = RollboxConfig(**_options(options))
    made = await RollboxSandboxEnvironment.sample_init("episode", config, {})

    async def run(command):
        done = await made["default"].exec(["sh", "-c", command])
        return done.stdout + done.stderr

    try:
        yield run
    finally:
        await RollboxSandboxEnvironment.sample_cleanup("episode", config, made, False)


def _enter_ares():
    """Its own __init__ asks the network for lists of data sets; its modules do without."""
    with _lock:
        if "ares" in sys.modules:
            return
        (place,) = importlib.util.find_spec("ares").submodule_search_locations
        for name, path in (("ares.containers", os.path.join(place, "containers")), ("ares", place)):
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = [path]


_lock = threading.Lock()


@contextlib.asynccontextmanager
async def ares(**options):
    _enter_ares()
    from rollbox.integrations.ares import ContainerFactory

    factory = ContainerFactory.configured(**_options(options, "images"))
    container = factory.from_image(image="any", name="episode")
    await container.start()

    async def run(command):
        return (await container.exec_run(command)).output

    try:
        yield run
    finally:
        await container.stop()


@contextlib.asynccontextmanager
async def tinker_cookbook(**options):
    from rollbox.integrations.tinker_cookbook import SandboxFactory

    box = await SandboxFactory(**_options(options, "images"))("tasks/one/environment", 600)

    async def run(command):
        done = await box.run_command(command, max_output_bytes=1 << 30)
        return done.stdout + done.stderr

    try:
        yield run
    finally:
        await box.cleanup()


@contextlib.asynccontextmanager
async def verl(**options):
    import uuid

    from rollbox.integrations.verl import RollboxTool
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.experimental.agent_loop.tool_parser import FunctionCall

    tool = RollboxTool({"type": "native", **_options(options)})
    loop = object.__new__(ToolAgentLoop)  # as its __init__ leaves it, without a model
    loop.tools, loop.max_tool_response_length = {tool.name: tool}, 4096
    loop.tool_response_truncate_side = "middle"
    request = f"episode-{uuid.uuid4().hex}"
    agent = SimpleNamespace(request_id=request, extra_fields={}, tools_kwargs={})

    async def run(command):
        call = FunctionCall(name=tool.name, arguments=json.dumps({"command": command}))
        response, _, _ = await loop._call_tool(call, {}, agent)
        if "rollbox_failure" in agent.extra_fields:  # the loop itself raises nothing
            raise RuntimeError(agent.extra_fields["rollbox_failure"])
        return response.text

    try:
        await run("true")  # the first call makes the sandbox
        yield run
    finally:
        tool.rollouts.end(request)


@contextlib.asynccontextmanager
async def skyrl_gym(**options):
    import skyrl_gym as gym
    from rollbox.integrations import skyrl

    skyrl.register()
    with gym.make("rollbox", env_config=_options(options), extras={"max_turns": 1 << 30}) as env:
        env.init([{"role": "user", "content": "go"}])

        def run(command):
            step = env.step(f"```bash\n{command}\n```")
            return step["observations"][0]["content"]

        yield run


@contextlib.asynccontextmanager
async def smolagents(**options):
    from rollbox.integrations.smolagents import RollboxExecutor

    with RollboxExecutor(**_options(options)) as executor:

        def run(command):
            code = f"import subprocess\nsubprocess.run({command!r}, shell=True, stderr=subprocess.STDOUT)"
            return executor(code).logs

        yield run


@contextlib.asynccontextmanager
async def trl(**options):
    from rollbox.integrations.trl import EnvironmentFactory

    made = EnvironmentFactory(**_options(options))()
    made.reset(prompt=[{"role": "user", "content": "go"}])
    try:
        yield made.run_command
    finally:
        made._end()


@contextlib.asynccontextmanager
async def mini_swe_agent(**options):
    from rollbox.integrations.mini_swe_agent import RollboxEnvironment

    made = RollboxEnvironment(**_options(options))

    def run(command):
        done = made.execute({"command": command})
        return done["output"] + done["exception_info"]

    try:
        yield run
    finally:
        made.cleanup()


@contextlib.asynccontextmanager
async def rllm(**options):
    from rollbox.integrations.rllm import RollboxSandbox

    with RollboxSandbox("episode", **_options(options, engine="socket")) as box:
        yield box.exec


PACKAGES = {
    harbor: "harbor",
    nemo_gym: "nemo_gym",
    verifiers: "verifiers",
    openenv_server: "openenv",
    inspect_ai: "inspect_ai",
    ares: "ares",
    tinker_cookbook: "tinker_cookbook",
    verl: "verl",
    skyrl_gym: "skyrl_gym",
    smolagents: "smolagents",
    trl: None,
    mini_swe_agent: None,
    rllm: None,
}
"""The package that an episode needs; None: the adapter works without its framework."""

SYNCHRONOUS = {openenv_server, skyrl_gym, smolagents, trl, mini_swe_agent, rllm}


def here():
    """The episodes whose packages are installed, of the framework that EPISODES_OF names."""
    only = os.environ.get("EPISODES_OF", "")
    return [
        episode
        for episode, package in PACKAGES.items()
        if episode.__name__.startswith(only)
        and (package is None or importlib.util.find_spec(package) is not None)
    ]
