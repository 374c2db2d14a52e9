# SPDX-License-Identifier: Apache-2.0
"""The HTTP server has hardly any memory left: what needs more is refused, and all works afterwards."""

import re
from pathlib import Path

from harness import caller  # noqa: F401
from serving import Server

LITTLE = 12 << 20


def size_of(pid):
    """Its address space in bytes."""
    return int(re.search(r"VmSize:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) << 10


def limit(server, amount):
    """Its address space has at most this many bytes. By its own user, who may do so."""
    done = server.who.call("prlimit", "--pid", str(server.process.pid), f"--as={amount}:")
    assert done.returncode == 0, done.stderr


def test_server_without_memory_refuses_what_is_large(caller):  # noqa: F811
    large = {"argv": ["head", "-c", "9000000", "/dev/zero"]}
    with Server(caller) as server:
        assert server.call("POST", "/v1/runs", {"argv": ["true"]})[0] == 200
        limit(server, size_of(server.process.pid) + LITTLE)
        for _ in range(5):
            status, problem = server.call("POST", "/v1/runs", large)
            assert (status, problem["code"]) == (503, "resource_exhausted"), problem
            status, result = server.call("POST", "/v1/runs", {"argv": ["echo", "hi"]})
            assert (status, result["stdout"]) == (200, "hi\n")
        limit(server, "unlimited")
        status, result = server.call("POST", "/v1/runs", large)
        assert status == 200 and len(result["stdout"]) == 9000000
        assert server.stop() == 0
