# SPDX-License-Identifier: Apache-2.0
"""Clients that programs inside sandboxes use for the network, and a server that answers all of them.

    python3 -B tests/integration/network_clients.py --update [--python DIRECTORY]

runs every client that this machine has, and writes the table of docs/reference/network-clients.md.
DIRECTORY has the Python packages of the table. test_network_clients.py runs the same clients.
"""

import argparse
import base64
import hashlib
import http.server
import io
import json
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HOST, INDEX, NPM, GIT, APT, GRPC = (
    "site.test",
    "index.test",
    "npm.test",
    "git.test",
    "apt.test",
    "grpc.test",
)
HOSTS = [HOST, INDEX, NPM, GIT, APT]
HELLO = f"hello from {HOST}"
PAGE = Path(__file__).resolve().parents[2] / "docs/reference/network-clients.md"
# The variables by which clients find their roots; the gateway sets the same where it decrypts.
ROOT_VARIABLES = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
]

GO = """package main
import ("fmt"; "io"; "net/http"; "os")
func main() {
	answer, err := http.Get(os.Args[1])
	if err != nil { fmt.Println(err); os.Exit(1) }
	body, _ := io.ReadAll(answer.Body)
	fmt.Println(string(body))
}
"""
JAVA = """import java.net.URI;
import java.net.http.*;
public class Fetch {
    public static void main(String[] words) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(words[0])).build();
        System.out.println(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
    }
}
"""
MUSL = """#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int count, char **words) {
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found;
    char text[4096];
    ssize_t length;
    int fd, error = getaddrinfo(words[count - 1], "80", &hints, &found);
    if (error) { puts(gai_strerror(error)); return 1; }
    fd = socket(found->ai_family, SOCK_STREAM, 0);
    if (connect(fd, found->ai_addr, found->ai_addrlen) < 0) { perror("connect"); return 1; }
    dprintf(fd, "GET /hello HTTP/1.1\\r\\nHost: %s\\r\\nConnection: close\\r\\n\\r\\n", words[count - 1]);
    while ((length = read(fd, text, sizeof(text))) > 0)
        fwrite(text, 1, length, stdout);
    return 0;
}
"""
GRPC_CLIENT = """import os, sys, grpc
roots = open(os.environ["SSL_CERT_FILE"], "rb").read()
with grpc.secure_channel("grpc.test:443", grpc.ssl_channel_credentials(roots)) as channel:
    print(channel.unary_unary("/test.Echo/Say")(b"hello from site.test", timeout=60).decode())
"""


@dataclass
class Client:
    name: str
    command: list[str]  # {url} is https://site.test/hello
    program: str = ""  # needed on the host; "": the first word of the command
    packages: list[str] = field(default_factory=list)
    modes: tuple[str, ...] = ("checked", "decrypted")
    said: str = HELLO
    build: tuple[str, str] = ("", "")  # name and text of a source
    keys: dict[str, str] = field(default_factory=dict)  # of its rules where TLS is checked
    quick: bool = False  # part of make check
    note: str = ""


def fetch(code: str) -> list[str]:
    return ["/usr/bin/python3", "-c", code, "{url}"]


CLIENTS = [
    Client("curl", ["curl", "-sS", "{url}"], quick=True),
    Client(
        "wget",
        ["wget", "-qO-", "--ca-certificate={roots}", "{url}"],
        note="GnuTLS: reads `/etc/ssl/certs`, or `--ca-certificate`",
        quick=True,
    ),
    Client(
        "Python urllib",
        fetch(
            "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"
        ),
        quick=True,
    ),
    Client(
        "requests",
        fetch("import sys, requests; print(requests.get(sys.argv[1]).text)"),
        packages=["requests"],
    ),
    Client(
        "httpx", fetch("import sys, httpx; print(httpx.get(sys.argv[1]).text)"), packages=["httpx"]
    ),
    Client(
        "httpx, HTTP/2 offered",
        fetch("import sys, httpx; print(httpx.Client(http2=True).get(sys.argv[1]).text)"),
        packages=["httpx", "h2"],
    ),
    Client(
        "aiohttp",
        fetch(
            "import sys, asyncio, aiohttp\n"
            "async def main():\n"
            "    async with aiohttp.ClientSession() as session, session.get(sys.argv[1]) as answer: print(await answer.text())\n"
            "asyncio.run(main())"
        ),
        packages=["aiohttp"],
    ),
    Client(
        "aiodns",
        fetch(
            "import asyncio, aiodns\n"
            "async def main():\n"
            "    print('hello from site.test' if (await aiodns.DNSResolver().query('site.test', 'A')) else '')\n"
            "asyncio.run(main())"
        ),
        packages=["aiodns"],
        modes=("checked",),
        note="asks for the name alone",
    ),
    Client(
        "Node.js fetch",
        ["node", "-e", "fetch(process.argv[1]).then(a => a.text()).then(console.log)", "{url}"],
        quick=True,
    ),
    Client("Go net/http", ["{built}", "{url}"], program="go", build=("fetch.go", GO)),
    Client(
        "Java HttpClient",
        ["java", "-cp", "{built}", "Fetch", "{url}"],
        program="javac",
        build=("Fetch.java", JAVA),
    ),
    Client(
        "git", ["git", "ls-remote", "https://git.test/repo.git"], said="refs/heads/main", quick=True
    ),
    Client(
        "pip",
        [
            "/usr/bin/python3",
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--no-cache-dir",
            "install",
            "-q",
            "--target",
            "/tmp/site",
            "--index-url",
            "https://index.test/simple",
            "greetings",
            "--progress-bar=off",
            "--no-color",
            "-v",
        ],
        said="Successfully installed greetings",
        program="/usr/bin/pip3",
    ),
    Client(
        "npm",
        [
            "npm",
            "install",
            "--prefix",
            "/tmp/npm",
            "--cache",
            "/tmp/npm-cache",
            "--no-audit",
            "--no-fund",
            "--registry=https://npm.test/",
            "greetings",
        ],
        said="added 1 package",
    ),
    Client(
        "apt",
        [
            "sh",
            "-c",
            "mkdir -p /tmp/apt/lists/partial /tmp/apt/cache/archives/partial && echo 'deb [trusted=yes] https://apt.test/ ./' > /tmp/apt/sources && cd /tmp/apt && "
            "o='-o Dir::Etc::SourceList=/tmp/apt/sources -o Dir::Etc::SourceParts=/nonexistent -o Dir::State::Lists=/tmp/apt/lists -o Dir::Cache=/tmp/apt/cache "
            "-o APT::Sandbox::User= -o Debug::NoLocking=1 -o Acquire::https::CAInfo={roots}'; apt-get $o update && apt-get $o download greetings && ls",
        ],
        said="greetings_1.0_all.deb",
        program="apt-get",
        note="GnuTLS: `Acquire::https::CAInfo`",
    ),
    Client(
        "musl, without TLS",
        ["{built}", HOST],
        program="musl-gcc",
        build=("musl_fetch.c", MUSL),
        modes=("plain",),
        quick=True,
    ),
    Client(
        "Chromium",
        [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--ignore-certificate-errors",
            "--user-data-dir=/tmp/chromium",
            "--dump-dom",
            "{url}",
        ],
        keys={"ech": "allow"},
        note='checked: needs `"ech": "allow"`; see below',
    ),
    Client(
        "gRPC",
        fetch(GRPC_CLIENT),
        packages=["grpc"],
        modes=("checked",),
        note="HTTP/2, passes through",
    ),
]


def wheel() -> tuple[str, bytes]:
    where = "greetings-1.0.dist-info"
    files = {
        "greetings.py": "SPOKEN = 'bonjour'\n",
        f"{where}/METADATA": "Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\n",
        f"{where}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{where}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{where}/RECORD"])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return "greetings-1.0-py3-none-any.whl", packed.getvalue()


def npm_package() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        content = json.dumps({"name": "greetings", "version": "1.0.0"}).encode()
        member = tarfile.TarInfo("package/package.json")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def pages(directory: Path) -> dict[tuple[str, str], bytes]:
    """(host, path) -> body, for every client."""
    name, content = wheel()
    package = npm_package()
    found = {
        (HOST, "/hello"): HELLO.encode(),
        (
            INDEX,
            "/simple/greetings/",
        ): f'<a href="/files/{name}#sha256={hashlib.sha256(content).hexdigest()}">{name}</a>'.encode(),
        (INDEX, f"/files/{name}"): content,
        (NPM, "/greetings"): json.dumps(
            {
                "name": "greetings",
                "dist-tags": {"latest": "1.0.0"},
                "versions": {
                    "1.0.0": {
                        "name": "greetings",
                        "version": "1.0.0",
                        "dist": {
                            "tarball": f"https://{NPM}/greetings.tgz",
                            "shasum": hashlib.sha1(package).hexdigest(),
                            "integrity": "sha512-"
                            + base64.b64encode(hashlib.sha512(package).digest()).decode(),
                        },
                    }
                },
            }
        ).encode(),
        (NPM, "/greetings.tgz"): package,
    }
    if shutil.which("git"):
        work, bare = directory / "work", directory / "repo.git"
        git = [
            "git",
            "-c",
            "init.defaultBranch=main",
            "-c",
            "user.name=Test",
            "-c",
            "user.email=test@example.org",
            "-c",
            "safe.directory=*",
        ]
        subprocess.run([*git, "init", "-q", work], check=True)
        subprocess.run(
            [*git, "-C", work, "commit", "-q", "--allow-empty", "-m", "First"], check=True
        )
        subprocess.run([*git, "clone", "-q", "--bare", work, bare], check=True)
        subprocess.run([*git, "-C", bare, "update-server-info"], check=True)
        for path in bare.rglob("*"):
            if path.is_file():
                found[(GIT, f"/repo.git/{path.relative_to(bare)}")] = path.read_bytes()
    if shutil.which("dpkg-deb"):
        control = directory / "deb/DEBIAN/control"
        control.parent.mkdir(parents=True)
        control.parent.chmod(0o755)
        fields = "Package: greetings\nVersion: 1.0\nArchitecture: all\nMaintainer: Test <test@example.org>\nDescription: says bonjour\n"
        control.write_text(fields)
        package_file = directory / "greetings_1.0_all.deb"
        subprocess.run(
            ["dpkg-deb", "--build", "--root-owner-group", directory / "deb", package_file],
            check=True,
            capture_output=True,
        )
        deb = package_file.read_bytes()
        found[(APT, "/greetings_1.0_all.deb")] = deb
        found[(APT, "/Packages")] = (
            f"{fields}Filename: ./greetings_1.0_all.deb\nSize: {len(deb)}\nSHA256: {hashlib.sha256(deb).hexdigest()}\n\n".encode()
        )
    return {(host, path.replace("/./", "/")): body for (host, path), body in found.items()}


class Servers:
    """A server with TLS and one without, on this host's loopback; and one of gRPC where the package is here."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.make_certificates()
        bodies = pages(directory)

        class Answer(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0].replace("/./", "/")
                body = bodies.get((self.headers["Host"].partition(":")[0], path))
                self.send_response(404 if body is None else 200)
                kind = (
                    "text/html"
                    if path.endswith("/") or path == "/hello"
                    else "application/json"
                    if path == "/greetings"
                    else "application/octet-stream"
                )
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *_: object) -> None:
                pass

        self.plain = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.tls = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / "server.pem", directory / "server.key")
        context.set_alpn_protocols(["http/1.1"])
        self.tls.socket = context.wrap_socket(
            self.tls.socket, server_side=True, do_handshake_on_connect=False
        )
        self.threads = [
            threading.Thread(target=server.serve_forever) for server in (self.plain, self.tls)
        ]
        for thread in self.threads:
            thread.start()
        self.grpc, self.grpc_port = self.start_grpc()

    def make_certificates(self) -> None:
        def openssl(*words: str) -> None:
            subprocess.run(["openssl", *words], cwd=self.directory, check=True, capture_output=True)

        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        openssl(
            "req",
            "-x509",
            *key,
            "-keyout",
            "root.key",
            "-out",
            "root.pem",
            "-days",
            "30",
            "-subj",
            "/CN=test root",
        )
        openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", f"/CN={HOST}")
        (self.directory / "names").write_text(
            "subjectAltName=" + ",".join(f"DNS:{host}" for host in [*HOSTS, GRPC])
        )
        openssl(
            "x509",
            "-req",
            "-in",
            "server.csr",
            "-CA",
            "root.pem",
            "-CAkey",
            "root.key",
            "-CAcreateserial",
            "-days",
            "30",
            "-extfile",
            "names",
            "-out",
            "server.pem",
        )
        if shutil.which("keytool"):
            subprocess.run(
                [
                    "keytool",
                    "-importcert",
                    "-noprompt",
                    "-storetype",
                    "PKCS12",
                    "-keystore",
                    "roots.p12",
                    "-storepass",
                    "changeit",
                    "-alias",
                    "root",
                    "-file",
                    "root.pem",
                ],
                cwd=self.directory,
                check=True,
                capture_output=True,
            )
            (self.directory / "roots.p12").chmod(0o644)
        (self.directory / "root.pem").chmod(0o644)

    def start_grpc(self) -> tuple[object, int]:
        try:
            from concurrent import futures

            import grpc
        except ImportError:
            return None, 0

        class Echo(grpc.GenericRpcHandler):
            def service(self, details: object) -> object:
                return grpc.unary_unary_rpc_method_handler(lambda request, _: request)

        server = grpc.server(futures.ThreadPoolExecutor(1))
        server.add_generic_rpc_handlers((Echo(),))
        secure = grpc.ssl_server_credentials(
            [
                (
                    (self.directory / "server.key").read_bytes(),
                    (self.directory / "server.pem").read_bytes(),
                )
            ]
        )
        port = server.add_secure_port("127.0.0.1:0", secure)
        server.start()
        return server, port

    def policy(self, mode: str, readable: list[str], keys: dict[str, str]) -> dict[str, object]:
        tls, plain = (f"127.0.0.1:{server.server_port}" for server in (self.tls, self.plain))
        rule: Callable[[str], dict[str, object]] = {
            "checked": lambda host: {"host": host, "ports": [443], "to": tls, **keys},
            "decrypted": lambda host: {
                "host": host,
                "ports": [443],
                "tls": "terminate",
                "to": f"http://{plain}",
            },
            "plain": lambda host: {"host": host, "ports": [80], "to": plain},
        }[mode]
        rules = [rule(host) for host in HOSTS]
        if mode == "checked" and self.grpc:
            rules.append({"host": GRPC, "ports": [443], "to": f"127.0.0.1:{self.grpc_port}"})
        environment = {"HOME": "/tmp", "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        if mode == "checked":
            environment |= dict.fromkeys(ROOT_VARIABLES, str(self.directory / "root.pem"))
            environment["JAVA_TOOL_OPTIONS"] = (
                f"-Djavax.net.ssl.trustStore={self.directory}/roots.p12 -Djavax.net.ssl.trustStorePassword=changeit"
            )
        return {
            "net_allow": rules,
            "fs_readable_extra": [str(self.directory), *readable],
            "env": environment,
            "max_processes": 300,
            "max_memory": "4G",
            "timeout": 120,
        }

    def roots(self, mode: str) -> str:
        return str(self.directory / "root.pem") if mode == "checked" else "/dev/rollbox-ca.pem"

    def close(self) -> None:
        for server in (self.plain, self.tls):
            server.shutdown()
            server.server_close()
        for thread in self.threads:
            thread.join()
        if self.grpc:
            self.grpc.stop(None).wait()


def build(client: Client, directory: Path) -> str:
    """The path of the compiled client: for Java, of the directory with its class."""
    name, text = client.build
    source = directory / name
    source.write_text(text)
    target = directory / source.stem
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=mod",
        "HOME": str(directory),
        "GOCACHE": str(directory / "go-cache"),
    }
    if name.endswith(".go"):
        subprocess.run(
            ["go", "build", "-o", target, source],
            env=environment,
            cwd=directory,
            check=True,
            capture_output=True,
        )
    elif name.endswith(".java"):
        subprocess.run(["javac", "-d", directory, source], check=True, capture_output=True)
        return str(directory)
    else:
        subprocess.run(
            ["musl-gcc", "-static", "-o", target, source], check=True, capture_output=True
        )
    return str(target)


def missing(client: Client, python: str) -> str:
    """What this machine lacks for the client; empty if nothing."""
    program = client.program or client.command[0]
    if shutil.which(program) is None:
        return program
    absent = [name for name in client.packages if not python or not (Path(python) / name).exists()]
    return absent[0] if absent else ""


def words(client: Client, servers: Servers, mode: str, built: str) -> list[str]:
    values = {"{url}": f"https://{HOST}/hello", "{roots}": servers.roots(mode), "{built}": built}
    filled = []
    for word in client.command:
        for name, value in values.items():
            word = word.replace(name, value)
        filled.append(word)
    return filled


def write_page(rows: list[tuple[str, str, str, str]]) -> None:
    lines = [
        "# Clients that work with network rules",
        "",
        "`make integrations` runs each client inside a sandbox and writes this table. *Checked*: TLS passes through, and the",
        "gateway compares its name. *Decrypted*: the gateway decrypts, and the client trusts its certificate by the variables",
        "and files that [network.md](network.md) lists.",
        "",
        "| client | checked | decrypted | note |",
        "|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    lines += [
        "",
        "Chromium has roots of its own, so the run above has `--ignore-certificate-errors`. It always sends the ECH extension,",
        'with or without an encrypted name in it. Where TLS is only checked, its rule needs `"ech": "allow"`.',
    ]
    PAGE.write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--update", action="store_true", help="write the table of the documentation"
    )
    parser.add_argument(
        "--python", default="", help="directory with the Python packages of the table"
    )
    arguments = parser.parse_args()
    if arguments.python:
        sys.path.insert(0, arguments.python)
    from harness import Caller, binaries

    caller = Caller("root" if os.geteuid() == 0 else "user", os.geteuid())
    directory = caller.directory(0o755)
    servers = Servers(directory / "servers")
    rows, failed = [], 0
    try:
        for client in CLIENTS:
            cells = {}
            for mode in client.modes:
                lacks = missing(client, arguments.python)
                if lacks:
                    cells[mode] = f"not run: no `{lacks}` here"
                    continue
                built = build(client, directory) if client.build[0] else ""
                ok, said = run_client(
                    caller, binaries(), servers, client, mode, arguments.python, built, directory
                )
                cells[mode] = "works" if ok else "**fails**"
                failed += not ok
                print(
                    f"{client.name}, {mode}: {cells[mode]}" + ("" if ok else f"\n{said}"),
                    flush=True,
                )
            if "plain" in cells:
                cells = {"checked": cells["plain"], "decrypted": "no TLS"}
            rows.append(
                (
                    client.name,
                    cells.get("checked", ""),
                    cells.get("decrypted", "passes through only"),
                    client.note,
                )
            )
    finally:
        servers.close()
    if arguments.update:
        write_page(rows)
    return failed > 0


def run_client(
    caller,
    programs: Path,
    servers: Servers,
    client: Client,
    mode: str,
    python: str,
    built: str,
    directory: Path,
) -> tuple[bool, str]:
    policy = servers.policy(mode, [python] if python else [], client.keys)
    if built:
        policy["fs_readable_extra"].append(built)
    if python:
        policy["env"]["PYTHONPATH"] = python
    file = caller.write(directory / f"policy-{mode}.json", json.dumps(policy))
    done = caller.call(
        programs / "rollbox",
        "run",
        "--policy",
        file,
        "--",
        *words(client, servers, mode, built),
        timeout=180,
    )
    text = (done.stdout + done.stderr).decode(errors="replace")
    return client.said in text, text[-2000:]


if __name__ == "__main__":
    sys.exit(main())
