# SPDX-License-Identifier: Apache-2.0
"""rollbox cost, Engine.usage and Engine.cost, and labels from the command line and from Python."""

import json

import pytest
from harness import caller  # noqa: F401
from remote_engine import TOKEN_FILE  # noqa: F401
from serving import Server

PRICES = {"cpu_s": 2.0, "gib_s": 3.0, "call": 0.25}


@pytest.fixture
def prices(caller):  # noqa: F811
    return caller.write(caller.directory() / "prices.json", json.dumps(PRICES))
