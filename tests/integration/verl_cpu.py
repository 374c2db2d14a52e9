# SPDX-License-Identifier: Apache-2.0
"""verl without a GPU: a platform "cpu", and a rollout server that answers by a script.

verl loads this module in each of its processes (VERL_USE_EXTERNAL_MODULES). Its trainer, workers,
agent loops, tools and reward managers are its own. A model with random weights writes no
programs, so the server has a script in the place of sampling. It holds the weights that the
trainer sends, to show that they arrive.
"""

import asyncio
import contextlib
import json
import os
import types

import ray
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.workers.rollout import base, replica

CALL = '<tool_call>\n{"name": "run_command", "arguments": {"command": "echo here > /tmp/f; cat /tmp/f"}}\n</tool_call>'
RIGHT = "```python\nprint(int(input()) * 2)\n```"
WRONG = "```python\nprint(int(input()) + 1)\n```"


class _Device(types.ModuleType):
    """torch.cpu, with what verl asks of torch.cuda: memory that is never counted."""

    def __getattr__(self, name):
        found = getattr(torch.cpu, name, None)
        if found is not None:
            return found
        if name.startswith("_"):
            raise AttributeError(name)
        if name == "mem_get_info":
            return lambda *_: (1 << 30, 1 << 30)
        if name == "get_device_name":
            return lambda *_: "cpu"
        if name in ("get_rng_state", "set_rng_state"):
            return getattr(torch, name)
        return lambda *_, **__: 0


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _Device("torch_cpu")

    def is_available(self):
        return True

    def current_device(self):
        return "cpu"

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg):
        return contextlib.nullcontext()

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None


class ScriptServer:
    """A rollout server: a call of the tool, then a right or a wrong program, in turns."""

    def __init__(self, path):
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self._asked = 0
        self._sums = []

    async def generate(self, request_id, prompt_ids, sampling_params, **_):
        text = self._tokenizer.decode(prompt_ids)
        if "<tool_response>" in text:
            self._asked += 1
            said = RIGHT if self._asked % 2 else WRONG
        else:
            said = CALL
        ids = [*self._tokenizer.encode(said), self._tokenizer.eos_token_id]
        return replica.TokenOutput(
            token_ids=ids,
            log_probs=[0.0] * len(ids),
            stop_reason="completed",
            extra_fields={"global_steps": len(self._sums)},
        )

    async def receive(self, checksum):
        self._sums.append(checksum)
        with open(os.environ["SCRIPT_SERVER_WEIGHTS"], "w") as file:
            json.dump(self._sums, file)

    async def nothing(self, *_, **__):
        pass

    wake_up = sleep = abort_all_requests = resume_generation = nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = nothing


def _once(function):
    """init_process_group, to which verl names a backend for the CPU and one for its device."""

    def init(backend=None, *arguments, **keywords):
        parts = dict.fromkeys((backend or "gloo").split(","))
        return function(",".join(parts), *arguments, **keywords)

    return init


torch.distributed.init_process_group = _once(torch.distributed.init_process_group)


class ScriptReplica(replica.RolloutReplica):
    async def launch_servers(self):
        actor = ray.remote(ScriptServer).options(name="script_server", num_cpus=0)
        server = actor.remote(self.model_config.path)
        self.servers = [server]
        self._server_handle, self._server_address = server, "script"


class ScriptRollout(base.BaseRollout):
    """The trainer's side: sends a checksum of the weights to the server."""

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, wire_format="named_tensors", **_):
        total = sum(float(tensor.double().abs().sum()) for _, tensor in weights)
        server = ray.get_actor("script_server")
        await asyncio.wrap_future(server.receive.remote(total).future())


base._ROLLOUT_REGISTRY["script", "async"] = "verl_cpu.ScriptRollout"
replica.RolloutReplicaRegistry.register("script", lambda: ScriptReplica)
