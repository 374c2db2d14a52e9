# SPDX-License-Identifier: Apache-2.0
"""FROM and COPY --from= of images that a registry has, and ADD of URLs."""

import hashlib
import http.server
import os
import threading

import pytest
from built_images import Builds
from registries import registry  # noqa: F401

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: images with owners are made")


@pytest.fixture
def builds():
    return Builds()


@pytest.fixture
def pushed(builds, registry):  # noqa: F811
    """The name of an image that the registry has and the store lacks."""
    name = f"{registry.address}/some/base:1"
    builds.store.json("image", "push", "base", f"docker://{name}")
    registry.requests.clear()
    return name


def test_from_pulls_an_image_that_the_store_lacks(builds, pushed, registry):  # noqa: F811
    result = builds.made(f"FROM {pushed}\nRUN echo x > /f\n")
    assert result["cached"] == 0 and builds.run("cat /f") == "x\n"
    registry.requests.clear()
    assert builds.made(f"FROM {pushed}\nRUN echo x > /f\n")["cached"] == 1
    assert registry.requests == []


def test_copy_pulls_the_image_that_it_copies_from(builds, pushed):
    builds.made(f"FROM base\nCOPY --from={pushed} /etc/group /of-the-image\n")
    assert "staff" in builds.run("cat /of-the-image")


def test_pull_asks_the_registry_once_in_a_build_for_an_image_that_is_there(builds, pushed, registry):  # noqa: F811
    text = f"FROM {pushed}\nRUN echo x > /f\nFROM {pushed}\nCOPY --from=0 /f /f\n"
    builds.made(text)
    registry.requests.clear()
    builds.made(text, None, "--pull")
    manifests = [path for method, path in registry.requests if "/manifests/" in path and method == "GET"]
    assert len(set(manifests)) == len(manifests) > 0


def test_no_pull_asks_nobody(builds, pushed, registry):  # noqa: F811
    message = builds.refused(f"FROM base\nFROM {pushed}\n", None, "--no-pull")["message"]
    assert message.startswith("Dockerfile:2: ") and "not in the store" in message
    assert registry.requests == []


def test_an_image_that_no_registry_has_fails_with_its_line(builds, registry):  # noqa: F811
    error = builds.refused(f"FROM base AS a\nFROM {registry.address}/none:1\n")
    assert error["code"] == "not_found" and error["message"].startswith("Dockerfile:2: ")
    builds.store.clean()


@pytest.mark.parametrize("fault", ("cut", "lie"))
def test_a_registry_that_fails_in_a_layer_leaves_no_image(builds, pushed, registry, fault):  # noqa: F811
    registry.fault = lambda method, path: fault if "/blobs/" in path and method == "GET" else None
    error = builds.refused(f"FROM {pushed}\nRUN echo new-{fault} > /f\n")
    assert error["message"].startswith("Dockerfile:1: "), error
    names = [row["name"] for row in builds.store.json("image", "ls")["images"]]
    assert pushed not in names
    registry.fault = lambda method, path: None
    builds.made(f"FROM {pushed}\nRUN echo new-{fault} > /f\n")
    builds.store.clean()


# ---- ADD ----


class Server:
    def __init__(self):
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.paths.append(self.path)
                if self.path == "/moved":
                    self.send_response(302)
                    self.send_header("Location", "/dir/file.txt")
                    self.end_headers()
                    return
                if self.path == "/none":
                    self.send_error(404)
                    return
                body = b"0" * (64 << 20) if self.path == "/large" else b"served " + self.path.encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                try:
                    self.wfile.write(body)
                except OSError:
                    pass

            def log_message(self, *arguments):
                pass

        self.paths = []
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.allow = f"--allow=127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server():
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def test_add_downloads_what_the_policy_allows(builds, server):
    sum_ = hashlib.sha256(b"served /dir/file.txt").hexdigest()
    builds.made(
        f"""
        FROM base
        ADD {server.url}/dir/file.txt?query /a/
        ADD --checksum=sha256:{sum_} --chmod=0640 --chown=alice {server.url}/moved /b/named
        """,
        None,
        "--net=host",
    )
    assert builds.run("cat /a/file.txt; echo; cat /b/named; stat -c ' %a %U' /b/named") == (
        "served /dir/file.txt?query\nserved /dir/file.txt 640 alice\n"
    )


def test_add_reaches_nothing_that_the_policy_does_not_allow(builds, server):
    for flags in ((), ("--allow=example.org",)):
        message = builds.refused(f"FROM base\nADD {server.url}/dir/file.txt /\n", None, *flags)["message"]
        assert message.startswith("Dockerfile:2: ") and "cannot be downloaded" in message
    assert server.paths == []
    builds.store.clean()


@pytest.mark.parametrize(
    "line, words",
    [
        ("ADD --checksum=sha256:00 {url}/dir/file.txt /", "has the digest"),
        ("ADD --checksum=md5:00 {url}/dir/file.txt /", "has the digest"),
        ("ADD {url}/none /", "404"),
        ("ADD {url}/ /a/", "no file name"),
        ("ADD {url}/large /", "too large"),
        ("ADD https://example.org/repository.git /src", "does not clone"),
        ("ADD git@example.org:repository.git /src", "does not clone"),
        ("ADD https://example.org/repository.git#main:dir /src", "does not clone"),
        ("ADD ssh://example.org/repository /src", "does not clone"),
        ("ADD ftp://example.org/file /src", "http"),
    ],
)
def test_add_that_cannot_be_done_names_its_line(builds, server, line, words):
    text = "FROM base\n" + line.format(url=server.url) + "\n"
    message = builds.refused(text, None, "--net=host", "--max-bytes=1000000")["message"]
    assert message.startswith("Dockerfile:2: ") and words in message, message
    builds.store.clean()
