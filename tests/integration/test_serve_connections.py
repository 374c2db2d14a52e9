# SPDX-License-Identifier: Apache-2.0
"""The most connections that `rollbox serve` may have, and what a client sees above them."""

import json
import resource
import socket

import pytest

from harness import DEADLINE, caller, until  # noqa: F401
from serving import Server


def head_of(connection):
    connection.settimeout(DEADLINE)
    got = b""
    while True:
        data = connection.recv(65536)
        if not data:
            return got
        got += data


def test_connection_above_the_limit_is_refused_with_words(caller):  # noqa: F811
    with Server(caller) as server:
        pid = server.process.pid
        try:
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, before[1]))
        except PermissionError:
            pytest.skip("the limits of another user's process are its own here")
        held = []
        try:
            while True:
                held.append(socket.create_connection(("127.0.0.1", server.port), DEADLINE))
                held[-1].settimeout(0.02 if len(held) > 20 else 0)
                try:
                    first = held[-1].recv(1)
                except OSError:
                    assert len(held) < 200
                    continue
                break
            head, _, body = (first + head_of(held[-1])).partition(b"\r\n\r\n")
            assert b" 503 " in head and b"Retry-After: " in head
            problem = json.loads(body)
            assert (problem["status"], problem["code"]) == (503, "resource_exhausted")
            assert "connections" in problem["detail"]
        finally:
            for connection in held:
                connection.close()
        # The refused ones have used nothing up.
        until(lambda: server.call("GET", "/v1/ping")[0] == 200)


def test_limit_follows_the_limit_of_open_files(caller):  # noqa: F811
    with Server(caller) as server:
        streams = []
        try:
            for _ in range(300):
                streams.append(socket.create_connection(("127.0.0.1", server.port), DEADLINE))
                streams[-1].sendall(
                    b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n"
                    b"Authorization: Bearer %s\r\n\r\n" % server.token.encode()
                )
            for stream in streams:
                stream.settimeout(DEADLINE)
                assert stream.recv(65536).startswith(b"HTTP/1.1 200 ")
            assert server.call("GET", "/v1/sandboxes")[0] == 200
        finally:
            for stream in streams:
                stream.close()
