# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 through rollbox-egress-tls: node's server and client, and curl."""

import json
import shutil
import subprocess

import pytest
from egress_tls import HOST, Authority, Gateway, Server, request
from harness import DEADLINE, skip

TOKEN = "s3cret-value"
RULES = [
    {
        "host": HOST,
        "requests": [{"methods": ["GET", "POST"], "paths": ["/open/*"]}],
        "inject": {"Authorization": "Bearer {token}"},
    }
]

SERVER = """
const http2 = require("http2"), fs = require("fs");
const server = http2.createSecureServer({cert: fs.readFileSync(process.argv[1]), key: fs.readFileSync(process.argv[2]), allowHTTP1: true});
server.on("stream", (stream, headers) => {
    const pieces = [];
    stream.on("error", () => {});
    if (headers[":path"] == "/open/never") return;
    if (headers[":path"] == "/open/reset") return stream.close(http2.constants.NGHTTP2_INTERNAL_ERROR);
    if (headers[":path"] == "/open/goaway") setImmediate(() => stream.session.close());
    if (headers[":path"] == "/open/large") {
        stream.respond({":status": 200});
        return stream.end("z".repeat(5000000));
    }
    for (let i = headers[":path"] == "/open/flood" ? 500 : 1; i > 0; i--)
        stream.additionalHeaders({":status": 103, "link": "</x>"});
    stream.on("data", piece => pieces.push(piece));
    stream.on("end", () => {
        stream.respond({":status": 200, "content-type": "application/json"}, {waitForTrailers: true});
        stream.on("wantTrailers", () => stream.sendTrailers({"grpc-status": "0"}));
        stream.end(JSON.stringify({headers, length: Buffer.concat(pieces).length}));
    });
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
"""

CLIENT = """
const http2 = require("http2"), fs = require("fs"), tls = require("tls");
const [ca, host, port, ...paths] = process.argv.slice(1);
const session = http2.connect(`https://${host}`, {createConnection: () => tls.connect(
    {host: "127.0.0.1", port, servername: host, ALPNProtocols: ["h2"], ca: fs.readFileSync(ca)})});
session.on("error", error => { console.log(JSON.stringify({error: error.message})); process.exit(); });
let left = paths.length;
for (const [number, path] of paths.entries()) {
    const told = {path, body: 0, text: ""};
    const headers = {":path": path, "authorization": "mine"};
    if (path.endsWith("body")) headers[":method"] = "POST";
    const stream = session.request(headers);
    stream.on("headers", headers => { told.interim = headers[":status"]; told.interims = (told.interims || 0) + 1; });
    stream.on("response", headers => { told.status = headers[":status"]; told.why = headers["rollbox-refused"]; });
    stream.on("trailers", trailers => told.trailer = trailers["grpc-status"]);
    stream.on("data", data => { told.body += data.length; if (told.body < 2000) told.text += data; });
    stream.on("error", error => told.error = error.code);
    stream.on("close", () => { console.log(JSON.stringify(told)); if (--left == 0) session.close(); });
    stream.end(path.endsWith("body") ? "y".repeat(1000000) : undefined);
}
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("roots"))


@pytest.fixture
def gateway(tmp_path, authority):
    gateway = Gateway(tmp_path, authority.certificate, RULES, {"token": TOKEN})
    yield gateway
    gateway.close()


@pytest.fixture
def server(authority):
    if shutil.which("node") is None:
        skip("needs node: it is the server and the client")
    process = subprocess.Popen(["node", "-e", SERVER, *authority.leaf(HOST)], stdout=subprocess.PIPE, text=True)
    yield "127.0.0.1", int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()


def ask(gateway, server, *paths, **more):
    """What node's client, which speaks HTTP/2 alone, says about each path; the requests are made at once."""
    port = gateway.listen(server, **more)
    command = ["node", "-e", CLIENT, gateway.certificate, HOST, str(port), *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return {one.get("path"): one for one in told} if told else done.stderr


def test_streams_are_checked_and_get_the_secret(gateway, server):
    told = ask(gateway, server, "/open/1", "/other", "/open/body", "/open/../x", "/open/large")
    assert told["/open/1"]["status"] == 200
    headers = json.loads(told["/open/1"]["text"])["headers"]
    assert headers["authorization"] == f"Bearer {TOKEN}" and headers[":authority"].split(":")[0] == HOST
    assert (told["/other"]["status"], told["/other"]["why"]) == (403, "method_path")
    assert told["/open/../x"]["status"] == 403
    assert json.loads(told["/open/body"]["text"])["length"] == 1000000
    assert told["/open/large"]["body"] == 5000000


def test_trailers_and_interim_answers_pass(gateway, server):
    told = ask(gateway, server, "/open/1")
    assert told["/open/1"]["trailer"] == "0"
    assert told["/open/1"]["interim"] == 103


def test_flood_of_interim_answers_is_bounded(gateway, server):
    told = ask(gateway, server, "/open/flood")
    assert told["/open/flood"]["interims"] <= 8
    assert told["/open/flood"]["status"] == 200


def test_reset_stream_leaves_the_others(gateway, server):
    told = ask(gateway, server, "/open/reset", "/open/1")
    assert told["/open/1"]["status"] == 200
    assert told["/open/reset"].get("status") == 502 or "error" in told["/open/reset"]


def test_server_that_goes_away_ends_the_session_in_order(gateway, server):
    assert ask(gateway, server, "/open/goaway")["/open/goaway"]["status"] == 200


def test_bad_certificate_is_502_on_each_stream(gateway, tmp_path):
    (tmp_path / "other").mkdir()
    other = Server(Authority(tmp_path / "other"))
    if shutil.which("node") is None:
        skip("needs node: it is the client")
    told = ask(gateway, other.address, "/open/1", "/open/2")
    assert [told[path]["status"] for path in ("/open/1", "/open/2")] == [502, 502]
    assert told["/open/1"]["why"] == "upstream_tls"
    other.close()


def test_events_name_the_requests(gateway, server):
    ask(gateway, server, "/open/1")
    assert gateway.event("injected")["path"] == "/open/1"
    event = gateway.event("http")
    assert (event["method"], event["path"], event["status"]) == ("GET", "/open/1", 200)
    assert event["down"] > 0


def test_guest_gets_the_version_that_the_server_chose(gateway, server, authority):
    with gateway.connect(server, alpn=("h2", "http/1.1")) as connection:
        assert connection.selected_alpn_protocol() == "h2"
    with gateway.connect(server, alpn=("http/1.1",)) as connection:
        assert connection.selected_alpn_protocol() == "http/1.1"
    with gateway.connect(server, alpn=()) as connection:
        assert connection.selected_alpn_protocol() is None
    old = Server(authority)
    with gateway.connect(old.address, alpn=("h2", "http/1.1")) as connection:
        assert connection.selected_alpn_protocol() == "http/1.1"
        assert "200 OK" in request(connection, f"GET /open/1 HTTP/1.1\r\nHost: {HOST}\r\n\r\n", close=False)
    old.close()


def test_curl_speaks_http2(gateway, server):
    if shutil.which("curl") is None:
        skip("needs curl: it is the client")
    port = gateway.listen(server)
    command = [
        "curl",
        "-sS",
        "--http2",
        "--cacert",
        gateway.certificate,
        "--connect-to",
        f"{HOST}:443:127.0.0.1:{port}",
        "-w",
        "%{http_version}",
    ]
    done = subprocess.run([*command, f"https://{HOST}/open/1"], capture_output=True, text=True, timeout=DEADLINE)
    assert TOKEN in done.stdout and done.stdout.endswith("2"), done.stderr
