# SPDX-License-Identifier: Apache-2.0
"""Hundreds of rollouts at once on one thread; one that fails does not disturb the others.

python examples/async_many.py [HOW_MANY]
"""

import asyncio
import collections
import sys
import time

from rollbox import AsyncSandbox, Policy, RollboxError

PROGRAMS = (
    "print(sum(range(100_000)))",
    "raise ValueError('wrong')",
    "import os; os.kill(os.getpid(), 11)",
    "x = bytearray(1 << 33)",
)


async def rollout(sandbox: AsyncSandbox, number: int) -> str:
    try:
        result = await sandbox.run(
            ["python3", "-c", PROGRAMS[number % len(PROGRAMS)]],
            timeout=30,
            env={"EPISODE": str(number)},
        )
    except RollboxError as error:  # rollbox's failure: never a reward
        return f"not run: {error.code}"
    if result.exit_code is not None:
        return f"exit {result.exit_code}"
    return f"signal {result.signal}" if result.signal is not None else str(result.outcome)


async def main(count: int) -> None:
    sandbox = AsyncSandbox(Policy(max_memory="64M", max_processes=8))
    begun = time.perf_counter()
    ends = collections.Counter(
        await asyncio.gather(*(rollout(sandbox, number) for number in range(count)))
    )
    elapsed = time.perf_counter() - begun
    for end, times in sorted(ends.items()):
        print(f"{times:6}  {end}")
    print(f"{count} rollouts in {elapsed:.2f} s, {count / elapsed:.0f}/s")


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
