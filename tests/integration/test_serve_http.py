# SPDX-License-Identifier: Apache-2.0
"""What the HTTP server takes for a request, and what not: framing, hosts, limits, pipelines."""

import json
import socket

import pytest
from harness import DEADLINE, caller  # noqa: F401
from serving import server  # noqa: F401

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\n"

SMUGGLING = {
    "content_length_and_chunked": POST
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two_content_lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "two_equal_content_lengths": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "content_length_list": POST + b"Content-Length: 2, 2\r\n\r\n{}",
    "negative_content_length": POST + b"Content-Length: -1\r\n\r\n",
    "signed_content_length": POST + b"Content-Length: +2\r\n\r\n{}",
    "hexadecimal_content_length": POST + b"Content-Length: 0x2\r\n\r\n{}",
    "huge_content_length": POST + b"Content-Length: 99999999999999999999\r\n\r\n",
    "space_before_colon": GET + b"X : y\r\n\r\n",
    "folded_line": GET + b"X: y\r\n z\r\n\r\n",
    "line_feed_alone": b"GET /healthz HTTP/1.1\nHost: localhost\n\n",
    "carriage_return_alone": GET + b"X: a\rb\r\n\r\n",
    "nul_byte": GET + b"X: a\0b\r\n\r\n",
    "xchunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked_identity": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunked_twice": POST
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no_host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two_hosts": GET + b"Host: localhost\r\n\r\n",
    "http_1_0": b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n",
    "http_2_preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "absolute_target": b"GET http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "connect": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "empty_line_first": b"\r\n" + GET + b"\r\n",
}


@pytest.mark.parametrize("name", SMUGGLING)
def test_ambiguous_request_is_refused(server, name):
    answer = server.raw(SMUGGLING[name])
    assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 401", b"HTTP/1.1 501", b"HTTP/1.1 505"), (
        answer
    )
    assert b"Connection: close" in answer


def test_bad_chunks_are_refused(server):
    head = (
        POST
        + f"Authorization: Bearer {server.token}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    )
    for body in (
        b"fffffffffffffffff\r\n",
        b"-1\r\n",
        b"2\n{}\r\n0\r\n\r\n",
        b"2 \r\n{}\r\n0\r\n\r\n",
        b"2\r\n{}x\r\n",
        b"g\r\n",
    ):
        answer = server.raw(head + body)
        assert answer.startswith(b"HTTP/1.1 400") and b"Connection: close" in answer, body


def test_host_that_is_not_served_is_refused(server):
    """A page of another site whose name leads to 127.0.0.1 reaches nothing."""
    for host in (
        b"evil.example",
        b"localhost.evil.example",
        b"127.0.0.1:x",
        b"localhost:80:80",
        b"",
    ):
        answer = server.raw(b"GET /healthz HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        assert answer.startswith((b"HTTP/1.1 421", b"HTTP/1.1 400")), host
    for host in (b"localhost", b"LOCALHOST:80", b"127.0.0.1:7420", b"[::1]:80"):
        assert server.raw(b"GET /healthz HTTP/1.1\r\nHost: " + host + b"\r\n\r\n").startswith(
            b"HTTP/1.1 200"
        ), host


def test_large_heads_and_bodies_are_refused(server):
    assert server.raw(GET + b"X: " + b"a" * 70000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431")
    assert server.raw(GET + b"".join(b"X%d: y\r\n" % i for i in range(120)) + b"\r\n").startswith(
        b"HTTP/1.1 431"
    )
    body = b'{"argv": ["' + b"a" * (17 << 20) + b'"]}'
    status, problem = server.call("POST", "/v1/runs", body)
    assert (status, problem["code"]) == (413, "too_large")


def test_request_in_pieces_is_the_same_request(server):
    whole = (
        POST
        + f'Authorization: Bearer {server.token}\r\nContent-Length: 18\r\n\r\n{{"argv": ["true"]}}'.encode()
    )
    for at in range(1, len(whole), 7):
        with socket.create_connection(("127.0.0.1", server.port), DEADLINE) as s:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            s.sendall(whole[:at])
            s.sendall(whole[at:])
            assert s.recv(12) == b"HTTP/1.1 200", at


def test_pipelined_requests_are_answered_in_order(server):
    auth = f"Authorization: Bearer {server.token}\r\n".encode()
    data = b""
    for i in range(5):
        body = json.dumps({"argv": ["echo", f"answer-{i}"]}).encode()
        data += POST + auth + b"Content-Length: %d\r\n\r\n" % len(body) + body
    data += b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), DEADLINE) as s:
        s.sendall(data)
        answer = b"".join(iter(lambda: s.recv(65536), b""))
    assert [answer.index(b"answer-%d" % i) for i in range(5)] == sorted(
        answer.index(b"answer-%d" % i) for i in range(5)
    )
    assert answer.count(b"HTTP/1.1 200") == 6


def test_client_may_wait_for_100_continue(server):
    with socket.create_connection(("127.0.0.1", server.port), DEADLINE) as s:
        body = b'{"argv": ["true"]}'
        s.sendall(
            POST
            + f"Authorization: Bearer {server.token}\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        assert s.recv(65536).startswith(b"HTTP/1.1 100")
        s.sendall(body)
        assert s.recv(65536).startswith(b"HTTP/1.1 200")
    # Without a token no body is asked for.
    assert server.raw(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n").startswith(
        b"HTTP/1.1 401"
    )


def test_head_request_has_no_body(server):
    answer = server.raw(b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"\r\n\r\n")


@pytest.mark.long
def test_slow_heads_are_cut_off(server):
    """Clients that never complete a head do not keep their connections; others are served meanwhile."""
    slow = [socket.create_connection(("127.0.0.1", server.port), DEADLINE) for _ in range(20)]
    for number, s in enumerate(slow):
        s.sendall(GET + b"X: y" * number)
    assert server.call("POST", "/v1/runs", {"argv": ["true"]})[0] == 200
    for s in slow:
        assert s.recv(65536).startswith(b"HTTP/1.1 408")
        assert s.recv(65536) == b""
    for s in slow:
        s.close()


def test_paths_lead_nowhere_else(server):
    for path in (
        "/v1/sandboxes/%2e%2e/files/etc/passwd",
        "/v1/sandboxes/..%2f..",
        "/v1/../v1/sandboxes",
        "/v1/sandboxes/%zz",
        "/v1/sandboxes/a%00b",
        "//healthz",
    ):
        assert server.call("GET", path)[0] == 404, path
    server.call("POST", "/v1/sandboxes", {"name": "box"})
    status, content = server.call("GET", "/v1/sandboxes/box/files/../../../../root/.profile")
    assert status in (400, 403, 404), content
    assert server.call("POST", "/v1/sandboxes", {"name": "../x"})[0] == 400
