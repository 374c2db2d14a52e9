# SPDX-License-Identifier: Apache-2.0
"""examples/terminal_task: a task in Harbor's form is built, solved and graded, and its forks have the server."""

import os
import sys

import pytest
from built_images import Builds
from harness import TREE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it builds as root")


def test_terminal_task_is_built_solved_graded_and_forked():
    builds = Builds()
    environment = {**os.environ, "ROLLBOX_STORE": str(builds.store.path)}
    program = TREE / "examples" / "terminal_task" / "run.py"
    done = builds.store.caller.call(sys.executable, program, "--forks", "100", env=environment)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert b"forked 100 times" in done.stdout
    assert b"[1.0, 1.0, 1.0, 1.0, 1.0]" in done.stdout
