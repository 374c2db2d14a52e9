# SPDX-License-Identifier: Apache-2.0
"""A real registry (docker-registry) on loopback, behind a server of the test that counts requests,
and cuts, stalls, or changes answers where a test says so."""

import base64
import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from archives import digest, oci_blobs

PROGRAM = shutil.which("docker-registry") or shutil.which("registry")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
PASSWORD, HASHED = "secret-word", "$2b$04$vhI7qtrNJNUwxURhlV3r5uB8OdBnviVWBycR0d.iUhuli1CDcKb/m"  # bcrypt
INDEX = "application/vnd.oci.image.index.v1+json"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Front(BaseHTTPRequestHandler):
    """Passes requests on. The server's `fault(method, path)` may answer "close" (no answer), "cut",
    "stall", "lie" or a status."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self):
        registry = self.server.registry
        registry.requests.append((self.command, self.path))
        fault = registry.fault(self.command, self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else self.chunks()
        if isinstance(fault, int):
            return self.reply(fault, [], b'{"errors": []}')
        if fault == "close":
            self.close_connection = True
            return None
        backend = http.client.HTTPConnection("127.0.0.1", registry.backend_port, timeout=60)
        headers = {
            key: ", ".join(self.headers.get_all(key))
            for key in self.headers
            if key.lower() != "transfer-encoding"
        }
        headers["Content-Length"] = str(len(body))
        backend.request(self.command, self.path, body, headers)
        response = backend.getresponse()
        data = response.read()
        fields = response.getheaders()
        backend.close()
        if fault == "lie":
            data = bytes(byte ^ 1 for byte in data)
        if fault in ("cut", "stall"):
            self.start(response.status, fields, len(data))
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            if fault == "stall":
                registry.released.wait(60)
            self.close_connection = True
            return None
        if callable(fault):
            data = fault(data)
        return self.reply(response.status, fields, data)

    def chunks(self):
        body = b""
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        return body

    def start(self, status, fields, length):
        self.send_response_only(status)
        for key, value in fields:
            if key.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(key, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def reply(self, status, fields, data):
        length = dict((key.lower(), value) for key, value in fields).get("content-length")
        self.start(status, fields, length if self.command == "HEAD" and length else len(data))
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = answer


class Registry:
    """`address` is HOST:PORT; `requests` are those that arrived."""

    def __init__(self, password=None):
        if not PROGRAM:
            pytest.skip("needs docker-registry")
        if not shutil.which("skopeo"):
            pytest.skip("needs skopeo")
        self.directory = Path(tempfile.mkdtemp(prefix="rollbox-registry-"))
        self.password = password
        self.requests, self.fault, self.released = [], lambda method, path: None, threading.Event()
        self.backend_port = free_port()
        self.process = subprocess.Popen(
            [PROGRAM, "serve", self.configuration()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.directory / "log").open("wb"),
        )
        self.front = ThreadingHTTPServer(("127.0.0.1", 0), Front)
        self.front.daemon_threads = True
        self.front.registry = self
        self.address = f"127.0.0.1:{self.front.server_port}"
        threading.Thread(target=self.front.serve_forever, daemon=True).start()
        self.wait()
        self.requests.clear()

    def configuration(self):
        lines = [
            "version: 0.1",
            "storage:",
            f"  filesystem: {{rootdirectory: {self.directory}/data}}",
            f"http: {{addr: '127.0.0.1:{self.backend_port}'}}",
        ]
        if self.password:
            (self.directory / "users").write_text(f"me:{HASHED}\n")
            lines.append(f"auth: {{htpasswd: {{realm: test, path: {self.directory}/users}}}}")
        path = self.directory / "config.yml"
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    def wait(self):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", self.backend_port), 1).close()
                return
            except OSError:
                assert self.process.poll() is None, (self.directory / "log").read_text()
                os.sched_yield()
        pytest.fail("the registry does not listen")

    def close(self):
        self.released.set()
        self.front.shutdown()
        self.front.server_close()
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.directory)

    def call(self, method, path, body=b"", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.backend_port, timeout=60)
        if self.password:
            text = base64.b64encode(f"me:{self.password}".encode()).decode()
            headers["Authorization"] = f"Basic {text}"
        connection.request(method, path, body, {key.replace("_", "-"): value for key, value in headers.items()})
        response = connection.getresponse()
        data = response.read()
        assert response.status < 300, (method, path, response.status, data)
        location = response.getheader("Location")
        connection.close()
        return location, data

    def blob(self, name, data):
        location, _ = self.call("POST", f"/v2/{name}/blobs/uploads/")
        path = location.partition(f"127.0.0.1:{self.backend_port}")[2] or location
        self.call("PUT", f"{path}&digest={digest(data)}", data)

    def manifest(self, name, tag, data, kind=MANIFEST):
        self.call("PUT", f"/v2/{name}/manifests/{tag}", data, Content_Type=kind)

    def put(self, name, tag, *layers, **options):
        """Puts an image there, past the front; returns its manifest's digest."""
        blobs = oci_blobs(layers, **options)
        top = json.loads(blobs["index.json"])["manifests"][0]["digest"]
        manifest = json.loads(blobs["blobs/" + top.replace(":", "/")])
        manifest["mediaType"] = MANIFEST
        for path, data in blobs.items():
            if path.startswith("blobs/") and not path.endswith(top[7:]):
                self.blob(name, data)
        data = json.dumps(manifest).encode()
        self.manifest(name, tag, data)
        return digest(data)

    def put_index(self, name, tag, platforms):
        """{platform: a manifest's digest}"""
        manifests = []
        for platform, found in platforms.items():
            words = platform.split("/")
            size = len(self.call("GET", f"/v2/{name}/manifests/{found}", Accept=MANIFEST)[1])
            described = dict(zip(("os", "architecture", "variant"), words))
            manifests.append({"mediaType": MANIFEST, "digest": found, "size": size, "platform": described})
        data = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}).encode()
        self.manifest(name, tag, data, INDEX)
        return digest(data)

    def reference(self, name, tag="1"):
        return f"docker://{self.address}/{name}:{tag}"

    def gets(self, kind):
        return [path for method, path in self.requests if method == "GET" and f"/{kind}/" in path]


@pytest.fixture
def registry():
    made = Registry()
    yield made
    made.close()


@pytest.fixture
def closed_registry():
    made = Registry(PASSWORD)
    yield made
    made.close()
