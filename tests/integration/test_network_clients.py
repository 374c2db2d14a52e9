# SPDX-License-Identifier: Apache-2.0
"""Clients of this machine reach an allowed host, with TLS checked and decrypted. `make
integrations` runs all of network_clients.py."""

import tempfile
from pathlib import Path

import pytest
from harness import binaries, caller, place, skip  # noqa: F401
from network_clients import CLIENTS, Servers, build, missing, run_client

CASES = [(client, mode) for client in CLIENTS if client.quick for mode in client.modes]


@pytest.fixture(scope="module")
def servers():
    directory = Path(tempfile.mkdtemp(prefix="servers-", dir=place()))
    directory.chmod(0o755)
    one = Servers(directory)
    yield one
    one.close()


@pytest.mark.parametrize(("client", "mode"), CASES, ids=[f"{c.name}, {m}" for c, m in CASES])
def test_client_reaches_an_allowed_host(caller, servers, client, mode):
    lacks = missing(client, "")
    if lacks:
        skip(f"no {lacks} here")
    directory = caller.directory(0o755)
    built = build(client, directory) if client.build[0] else ""
    ok, said = run_client(caller, binaries(), servers, client, mode, "", built, directory)
    assert ok, said
