# SPDX-License-Identifier: Apache-2.0
"""Two stores, each with a shared engine, that stand for two machines: `engine` uses the fixture
`store`, `other` the second one."""
import contextlib
import json
import os
import subprocess

import pytest
from conftest import BUILD
from stores import Shared, asleep


class Other:
    """Another store, and an engine of its own."""

    def __init__(self, tmp_path, monkeypatch):
        self.store, self.socket, self.monkeypatch = tmp_path / "other", str(tmp_path / "other.socket"), monkeypatch

    def import_(self, path, name="copy", status=0, environment=(), *words):
        done = subprocess.run(
            [
                BUILD / "rollbox",
                "import",
                "--json",
                "--socket",
                self.socket,
                "--name",
                name,
                *words,
                path,
            ],
            capture_output=True,
            env={**os.environ, "ROLLBOX_STORE": str(self.store), **dict(environment)},
        )
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout) if status == 0 else json.loads(done.stderr)["error"] if status > 0 else None

    def refuses(self, path, *words, name="copy"):
        error = self.import_(path, name, 125, (), *words)
        assert not asleep(self.store) and not os.listdir(self.store / "tmp")
        return error["code"], error["message"]

    @contextlib.contextmanager
    def engine(self):
        self.monkeypatch.setenv("ROLLBOX_STORE", str(self.store))
        with Shared(self.socket) as shared:
            yield shared.engine


@pytest.fixture
def other(tmp_path, monkeypatch, store):  # noqa: F811
    return Other(tmp_path, monkeypatch)


@pytest.fixture
def engine(store, tmp_path):  # noqa: F811
    with Shared(str(tmp_path / "socket")) as shared:
        yield shared.engine
