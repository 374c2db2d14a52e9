#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Two scripted agents in runtimes of verifiers. Needs verifiers; no model and no GPU.

verifiers_runtime.py [--image IMAGE]

Each agent writes a file, and a check gives the reward. Both runtimes are forks of one set-up.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from rollbox.integrations.verifiers import RollboxRuntime

AGENTS = (["echo 5 >answer"], ["cat question", "echo 42 >answer"])


async def episode(image: str, commands: list[str]) -> float:
    async with RollboxRuntime(
        image,
        images={image: image},
        workdir="/tmp",
        setup="echo '6 * 7' >/tmp/question",
        labels={"example": "verifiers"},
    ) as box:
        for command in commands:
            await box.run(["sh", "-c", command], {})
        # A lost sandbox is a SandboxError here, and never a reward.
        graded = await box.run(["sh", "-c", 'test "$(cat answer)" = 42'], {})
        return 1.0 if graded.exit_code == 0 else 0.0


async def run(image: str) -> list[float]:
    return list(await asyncio.gather(*(episode(image, commands) for commands in AGENTS)))


def main() -> int:
    parser = argparse.ArgumentParser(description="Two scripted agents of verifiers.")
    parser.add_argument("--image", default="host", help="an image of the store")
    rewards = asyncio.run(run(parser.parse_args().image))
    print("rewards:", rewards)
    return 0 if rewards == [0.0, 1.0] else 1


if __name__ == "__main__":
    sys.exit(main())
