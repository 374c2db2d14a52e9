# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin (-p remote_engine): the engine that a process shares is one behind `rollbox serve`.

So tests of Sandbox that name no engine run against a server, unchanged.
"""

import os
import pathlib
import subprocess
import tempfile

import pytest
import rollbox._engine
from rollbox import Engine

BUILD = pathlib.Path(os.environ.get("ROLLBOX_BUILD", pathlib.Path(__file__).parents[2] / "build"))


@pytest.fixture(scope="session", autouse=True)
def remote_default_engine():
    """Puts a server's engine where default_engine() looks."""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, "serve")
        server = subprocess.Popen(
            [BUILD / "rollbox", "serve", "--listen", path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        while server.stdout.readline() not in (b"ready\n", b""):
            pass
        rollbox._engine._default = Engine(f"unix:{path}")
        try:
            yield
        finally:
            rollbox._engine._default.close()
            server.terminate()
            server.wait(60)
            server.stdout.close()
