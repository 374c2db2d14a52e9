# SPDX-License-Identifier: Apache-2.0
"""A sandbox for tinker-cookbook's Harbor recipes. A script takes the place of the model.

Needs: pip install tinker-cookbook (for this program: pip install --no-deps tinker-cookbook chz)
"""

import asyncio

from rollbox.integrations.tinker_cookbook import SandboxFactory


async def main() -> None:
    """Writes a program, runs it, and reads what it left."""
    factory = SandboxFactory(policy={"max_memory": "256M"}, images={"*": "host"})
    sandbox = await factory("tasks/hello/environment", 600)
    try:
        await sandbox.write_file("/tmp/app/run.sh", "#!/bin/sh\necho hello > /tmp/app/out", True)
        result = await sandbox.run_command("/tmp/app/run.sh", workdir="/tmp/app")
        assert result.exit_code == 0, result.stderr
        print((await sandbox.read_file("/tmp/app/out")).stdout, end="")
    finally:
        await sandbox.cleanup()


asyncio.run(main())
