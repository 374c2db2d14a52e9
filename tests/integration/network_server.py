# SPDX-License-Identifier: Apache-2.0
"""`server`: an HTTP server on the host's loopback interface, for policies that lead names to it with `to`."""

import http.server
import json
import threading

import pytest

# Prints what each URL of the arguments answers: its text, or the error's class and text.
FETCH = """
import sys, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=20).read().decode(), flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = f"hello {self.headers['Host']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server:
    def __init__(self):
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.thread = threading.Thread(target=self.http.serve_forever)
        self.thread.start()
        self.address = f"127.0.0.1:{self.http.server_port}"

    def rule(self, host, *ports):
        return {"host": host, "ports": list(ports or [80]), "to": self.address}

    def policy(self, caller, *rules, **keys):
        """The path of a policy file."""
        policy = {"net_allow": list(rules) or [self.rule("site.test"), self.rule("*.wild.test")], **keys}
        return caller.write(caller.directory(0o755) / "policy.json", json.dumps(policy))

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server():
    one = Server()
    yield one
    one.close()
