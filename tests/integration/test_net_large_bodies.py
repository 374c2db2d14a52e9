# SPDX-License-Identifier: Apache-2.0
"""Plain HTTP bodies of many chunks pass the gateway, in both directions."""

import http.server

import pytest
from harness import caller  # noqa: F401
from network_server import Server

SIZE = 20 << 20
CLIENT = f"""
import urllib.request
print(len(urllib.request.urlopen("http://site.test/", data=bytes({SIZE}), timeout=20).read()))
"""


class Echo(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def echo():
    one = Server()
    one.http.RequestHandlerClass = Echo
    yield one
    one.close()


def test_large_http_bodies_arrive(caller, echo):
    result = caller.run("--policy", echo.policy(caller), "--memory", "512M", "--", "python3", "-c", CLIENT)
    assert result.stdout == f"{SIZE}\n", result.stderr
    assert result.network["up"] > SIZE and result.network["down"] > SIZE
