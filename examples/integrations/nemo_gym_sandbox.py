#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Two scripted agents in sandboxes of NeMo-Gym's API. Needs nemo_gym; no model and no GPU.

nemo_gym_sandbox.py [--image IMAGE]

Each agent writes a file, and a check gives the reward. Both sandboxes are forks of one set-up.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from nemo_gym.sandbox.api import AsyncSandbox
from nemo_gym.sandbox.providers.base import SandboxSpec
from rollbox.integrations.nemo_gym import RollboxProvider

AGENTS = (["echo 5 >answer"], ["cat question", "echo 42 >answer"])
CHECK = 'test "$(cat answer)" = 42'


async def episode(provider: RollboxProvider, commands: list[str]) -> float:
    box = AsyncSandbox(provider, owns_provider=False)
    await box.start(SandboxSpec(workdir="/task"))
    try:
        for command in commands:
            await box.exec(command, timeout_s=30)
        graded = await box.exec(CHECK, timeout_s=30)
        if graded.error_type is not None:
            raise RuntimeError(f"the check was not carried out: {graded.error_type}")
        return 1.0 if graded.return_code == 0 else 0.0
    finally:
        await box.stop()


async def run(image: str) -> list[float]:
    provider = RollboxProvider(
        images={image: image},
        image=image,
        setup="mkdir -p /task; echo '6 * 7' >/task/question",
        labels={"example": "nemo_gym"},
    )
    try:
        return list(await asyncio.gather(*(episode(provider, one) for one in AGENTS)))
    finally:
        await provider.aclose()


def main() -> int:
    parser = argparse.ArgumentParser(description="Two scripted agents of NeMo-Gym.")
    parser.add_argument("--image", default="host", help="an image of the store")
    rewards = asyncio.run(run(parser.parse_args().image))
    print("rewards:", rewards)
    return 0 if rewards == [0.0, 1.0] else 1


if __name__ == "__main__":
    sys.exit(main())
