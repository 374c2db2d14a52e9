# SPDX-License-Identifier: Apache-2.0
"""examples/serve_demo.py: a server, the clients that are installed, metrics, cost and a trace."""

import pathlib
import subprocess
import sys

import pytest
from harness import BUILD, skip

pytestmark = pytest.mark.once

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/serve_demo.py"


def test_every_installed_client_gets_what_it_expects():
    if not (BUILD / "rollbox-serve").exists():
        skip("needs llhttp: rollbox-serve is built where node-llhttp and libwslay-dev are")
    done = subprocess.run(
        [sys.executable, "-B", EXAMPLE, "--rollbox", BUILD / "rollbox"],
        capture_output=True,
        text=True,
        timeout=110,
    )
    shown = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 0 and "FAILED" not in done.stdout, shown
    assert "forks, 22 = " in done.stdout and "rollbox_sandboxes{" in done.stdout, shown
    for title in ("Metrics", "Cost", "A trace"):
        assert title in done.stdout, shown
