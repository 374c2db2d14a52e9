# SPDX-License-Identifier: Apache-2.0
"""rollbox-egress-tls by itself: the tests are its engine, its rollbox-egress, its guests and their servers."""

import json
import os
import shutil
import socket
import ssl
import struct
import subprocess

import egress_tls
import pytest
from egress_tls import HOST, Authority, Gateway, Server, request
from harness import DEADLINE, skip

TOKEN = "s3cret-value"
RULES = [
    {
        "host": HOST,
        "requests": [{"methods": ["GET", "HEAD", "POST"], "paths": ["/open/*", "/ws"]}],
        "inject": {"Authorization": "Bearer {token}"},
    }
]


def get(path, *headers, method="GET", body=""):
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines) + "\r\n\r\n" + body


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("roots"))


@pytest.fixture
def server(authority):
    server = Server(authority)
    yield server
    server.close()


@pytest.fixture
def gateway(tmp_path, authority):
    gateway = Gateway(tmp_path, authority.certificate, RULES, {"token": TOKEN})
    yield gateway
    gateway.close()


def test_request_gets_the_secret_and_the_guest_does_not(gateway, server):
    with gateway.connect(server.address) as connection:
        answer = request(connection, get("/open/x", "Authorization: mine", "X-Other: {token}"), close=False)
    head = json.loads(answer.partition("\r\n\r\n")[2])["head"]
    assert f"Authorization: Bearer {TOKEN}\r\n" in head
    assert "mine" not in head
    # A placeholder elsewhere is text.
    assert "X-Other: {token}\r\n" in head
    assert gateway.event("injected")["path"] == "/open/x"
    event = gateway.event("http")
    assert (event["method"], event["path"], event["status"], event["rule"]) == ("GET", "/open/x", 200, 0)
    closed = gateway.event("close")
    assert closed["up"] > 0 and closed["down"] >= len(answer)
    assert all(TOKEN not in json.dumps(event) for event in gateway.events)


def test_requests_outside_the_rules_are_403(gateway, server):
    for text in (
        get("/other"),
        get("/open/x", method="DELETE"),
        get("/open/../other"),
        get("/open/%2e%2e/other"),
        get("/open//x"),
    ):
        with gateway.connect(server.address) as connection:
            answer = request(connection, text)
        assert answer.startswith("HTTP/1.1 403 Forbidden\r\n")
        assert "Rollbox-Refused: method_path\r\n" in answer and answer.endswith("\n")
        event = gateway.event("http-refused")
        assert (event["why"], event["status"]) == ("method_path", 403)
    assert server.heads == []


def test_every_request_of_a_connection_is_checked(gateway, server):
    with gateway.connect(server.address) as connection:
        assert "200 OK" in request(connection, get("/open/1"), close=False)
        assert "200 OK" in request(connection, get("/open/2"), close=False)
        answer = request(connection, get("/open/3").replace(HOST, "other.example.org"))
    assert answer.startswith("HTTP/1.1 403 ") and "host_other" in answer
    assert len(server.heads) == 2


def test_pipelined_requests_are_answered_in_order(gateway, server):
    with gateway.connect(server.address) as connection:
        answer = request(connection, get("/open/1") + get("/open/2") + get("/other") + get("/open/4"))
    assert [part.split()[0] for part in answer.split("HTTP/1.1 ")[1:]] == ["200", "200", "403"]
    assert len(server.heads) == 2


@pytest.mark.parametrize(
    "text",
    [
        get("/open/x", "Content-Length: 5", "Transfer-Encoding: chunked", method="POST"),
        get("/open/x", "X: 1\n Y: 2"),
        get("/open/x").replace("/open", f"http://{HOST}/open"),
        get("/open/x", "Transfer-Encoding: chunked", method="POST") + "5;x\r\nhello\r\n0\r\n\r\n",
        get("/open/x", f"Host: {HOST}"),
    ],
)
def test_smuggling_is_400(gateway, server, text):
    with gateway.connect(server.address) as connection:
        answer = request(connection, text)
    assert answer.startswith("HTTP/1.1 400 ") and "bad_request" in answer


def test_bodies_pass(gateway, server):
    body = "x" * 300000
    with gateway.connect(server.address) as connection:
        answer = request(connection, get("/open/x", method="POST", body=body), close=False)
        assert json.loads(answer.partition("\r\n\r\n")[2])["body"] == body
        answer = request(
            connection,
            get("/open/x", "Transfer-Encoding: chunked", method="POST") + "3\r\nabc\r\n0\r\n\r\n",
            close=False,
        )
        assert json.loads(answer.partition("\r\n\r\n")[2])["body"] == "abc"
        assert request(connection, get("/open/x", "Connection: close", method="HEAD")).startswith("HTTP/1.1 200 OK")


def test_missing_secret_is_502(gateway, server):
    gateway.open_box(values=False)
    with gateway.connect(server.address) as connection:
        answer = request(connection, get("/open/x"))
    assert answer.startswith("HTTP/1.1 502 ") and "secret_missing" in answer and '"token"' in answer
    assert server.heads == []


@pytest.mark.parametrize("case", ["other name", "other root"])
def test_bad_certificate_of_the_server_is_502(gateway, authority, tmp_path, case):
    if case == "other name":
        server = Server(authority, name="other.example.org")
    else:
        (tmp_path / "other").mkdir()
        server = Server(Authority(tmp_path / "other"))
    with gateway.connect(server.address) as connection:
        answer = request(connection, get("/open/x"))
    assert answer.startswith("HTTP/1.1 502 ") and "upstream_tls" in answer and "certificate" in answer
    assert server.heads == []
    assert gateway.event("upstream_tls")["why"] == "upstream_tls"
    server.close()


def test_server_without_tls_is_502(gateway):
    server = Server()
    with gateway.connect(server.address) as connection:
        answer = request(connection, get("/open/x"))
    assert answer.startswith("HTTP/1.1 502 ")
    assert server.heads == []
    server.close()


def test_plain_server_of_a_rule_with_to(gateway):
    server = Server()
    with gateway.connect(server.address, to_is_plain=True) as connection:
        answer = request(connection, get("/open/x"), close=False)
    assert TOKEN in answer
    server.close()


def test_plain_guest_is_checked_as_well(tmp_path, authority):
    rules = [{"host": HOST, "ports": [80], "requests": [{"methods": ["GET"], "paths": ["/open/*"]}]}]
    gateway = Gateway(tmp_path, authority.certificate, rules)
    server = Server()
    with gateway.connect(server.address, is_tls=False, port=80) as connection:
        assert "200 OK" in request(connection, get("/open/x"), close=False)
        assert request(connection, get("/x")).startswith("HTTP/1.1 403 ")
    server.close()
    gateway.close()


def test_secret_is_not_sent_without_tls(tmp_path, authority):
    gateway = Gateway(tmp_path, authority.certificate, [{**RULES[0], "ports": [80, 8443]}], {"token": TOKEN})
    server = Server()
    for port in (80, 8443):
        with gateway.connect(server.address, is_tls=False, port=port) as connection:
            answer = request(connection, get("/open/x"), close=False)
        assert answer.startswith("HTTP/1.1 403 ") and "Rollbox-Refused: secret_in_clear" in answer
    assert not server.heads
    assert gateway.event("http-refused")["why"] == "secret_in_clear"
    server.close()
    gateway.close()


def test_guest_certificate_names_the_host_and_is_valid_at_any_time(gateway, server):
    with gateway.connect(server.address) as connection:
        certificate = connection.getpeercert()
    assert certificate["subjectAltName"] == (("DNS", HOST),)
    assert certificate["notBefore"].endswith("1970 GMT") and certificate["notAfter"].endswith("2199 GMT")


def test_guest_that_does_not_trust_the_authority_is_refused(gateway, server):
    with pytest.raises(ssl.SSLCertVerificationError):
        gateway.connect(server.address, context=ssl.create_default_context())


def test_sessions_are_resumed_on_both_sides(gateway, server):
    context = gateway.client()
    with gateway.connect(server.address, context=context) as connection:
        request(connection, get("/open/1"), close=False)
        session = connection.session
    with gateway.connect(server.address, context=context, session=session) as connection:
        assert connection.session_reused
        request(connection, get("/open/2"), close=False)
    assert server.resumed == [False, True]


def test_web_sockets_pass(gateway, authority):
    def answer(connection, head, body):
        connection.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello"
        )
        while data := connection.recv(100):
            connection.sendall(b"<" + data + b">")
        return False

    server = Server(authority, answer=answer)
    with gateway.connect(server.address) as connection:
        connection.sendall(get("/ws", "Connection: Upgrade", "Upgrade: websocket").encode())
        data = b""
        while not data.endswith(b"hello"):
            data += connection.recv(1000)
        assert b"101 Switching" in data
        connection.sendall(b"\x81\x02ab")
        assert connection.recv(100).startswith(b"<\x81")
    server.close()


def test_upgrade_to_other_protocols_is_not_passed(gateway, server):
    with gateway.connect(server.address) as connection:
        answer = request(
            connection,
            get(
                "/open/x",
                "Connection: Upgrade, HTTP2-Settings",
                "Upgrade: h2c",
                "HTTP2-Settings: x",
            ),
            close=False,
        )
    assert "h2c" not in json.loads(answer.partition("\r\n\r\n")[2])["head"]


def test_endless_headers_of_a_server_are_502(gateway, authority):
    def answer(connection, head, body):
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(b"X: " + b"a" * 1000 + b"\r\n")

    server = Server(authority, answer=answer)
    with gateway.connect(server.address) as connection:
        text = request(connection, get("/open/x"))
    assert text.startswith("HTTP/1.1 502 ") and "upstream_http" in text
    server.close()


def test_half_an_answer_resets_the_guest(tmp_path, authority):
    gateway = Gateway(tmp_path, authority.certificate, [{"host": HOST, "tls": "terminate"}])
    def answer(connection, head, body):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        return False

    # Python takes the reset of a TLS connection for its end.
    server = Server(answer=answer)
    with gateway.connect(server.address, is_tls=False) as connection, pytest.raises(ConnectionResetError):
        request(connection, get("/open/x"))
    server.close()
    gateway.close()


def test_server_that_closes_without_an_answer_is_502(gateway, authority):
    server = Server(authority, answer=lambda *_: False)
    with gateway.connect(server.address) as connection:
        text = request(connection, get("/open/x"))
    assert text.startswith("HTTP/1.1 502 ") and "upstream_closed" in text
    server.close()


def test_answer_until_close_passes(gateway, authority):
    def answer(connection, head, body):
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + b"y" * 500000)
        connection.unwrap()
        return False

    server = Server(authority, answer=answer)
    with gateway.connect(server.address) as connection:
        assert request(connection, get("/open/x")).endswith("y" * 500000)
    server.close()


def test_slow_reader_is_waited_for(gateway, authority):
    size = 20_000_000

    def answer(connection, head, body):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        connection.sendall(b"z" * size)

    server = Server(authority, answer=answer)
    with gateway.connect(server.address) as slow:
        slow.sendall(get("/open/x").encode())
        # Another connection is served meanwhile.
        with gateway.connect(server.address) as other:
            other.sendall(get("/open/x", "Connection: close").encode())
            left = size
            while left > 0:
                left -= len(other.recv(1 << 16))
        resident = int(open(f"/proc/{gateway.process.pid}/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert resident < 30_000_000
        data = slow.recv(1 << 16)
        while len(data) < size:
            piece = slow.recv(1 << 20)
            assert piece
            data += piece
    server.close()


def test_limits_end_requests(tmp_path, authority, server):
    gateway = Gateway(
        tmp_path,
        authority.certificate,
        [{"host": HOST, "tls": "terminate"}],
        policy={"net_max_requests": 2},
    )
    with gateway.connect(server.address) as connection:
        assert "200 OK" in request(connection, get("/1"), close=False)
        assert "200 OK" in request(connection, get("/2"), close=False)
        answer = request(connection, get("/3"))
    assert answer.startswith("HTTP/1.1 429 ") and "limit_requests" in answer
    gateway.close()


def test_bytes_over_the_limit_are_not_sent(tmp_path, authority):
    size = 3_000_000

    def answer(connection, head, body):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        connection.sendall(b"z" * size)

    server = Server(answer=answer)
    gateway = Gateway(
        tmp_path,
        authority.certificate,
        [{"host": HOST, "tls": "terminate"}],
        policy={"net_max_download": "1M"},
    )
    with gateway.connect(server.address, is_tls=False) as connection, pytest.raises(ConnectionResetError):
        request(connection, get("/1"))
    assert gateway.event("http-refused")["why"] == "limit_bytes"
    assert gateway.event("close")["down"] < 2_500_000
    with gateway.connect(server.address) as connection:
        assert request(connection, get("/1")).startswith("HTTP/1.1 429 ")
    gateway.close()
    server.close()


def test_limited_rate_passes_everything(tmp_path, authority):
    size = 400_000

    def answer(connection, head, body):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        connection.sendall(b"z" * size)
        return False

    server = Server(answer=answer)
    gateway = Gateway(
        tmp_path,
        authority.certificate,
        [{"host": HOST, "tls": "terminate"}],
        policy={"net_max_rate": "400K"},
    )
    with gateway.connect(server.address, to_is_plain=True) as connection:
        assert len(request(connection, get("/1"), close=False)) > size
    gateway.close()
    server.close()


def test_changed_rules_hold_for_open_connections(gateway, server):
    with gateway.connect(server.address) as connection:
        assert "200 OK" in request(connection, get("/open/1"), close=False)
        rules = [{"host": HOST, "requests": [{"methods": ["GET"], "paths": ["/new"]}]}]
        egress_tls.send(gateway.engine, {"do": "rules", "box": "b", "policy": gateway.policy(rules)})
        # The engine's and the guest's messages have no order; a box that is opened has been read.
        egress_tls.send(gateway.engine, {"do": "rules", "box": "unknown", "policy": gateway.policy(rules)})
        assert gateway.receive(gateway.engine)["event"] == "error"
        assert request(connection, get("/open/2")).startswith("HTTP/1.1 403 ")
    with gateway.connect(server.address) as connection:
        egress_tls.send(
            gateway.engine,
            {"do": "rules", "box": "b", "policy": gateway.policy([{"host": "other.example.org"}])},
        )
        with pytest.raises(OSError):
            assert connection.recv(1) == b"", "closed in order"
            raise OSError


def test_changed_rules_keep_connections_to_allowed_addresses(tmp_path, authority):
    rules = [{"host": "192.0.2.7", "ports": [80], "tls": "terminate"}]
    gateway = Gateway(tmp_path, authority.certificate, rules)
    server = Server()
    with gateway.connect(server.address, is_tls=False, name="192.0.2.7", port=80) as connection:
        for number in range(2):
            assert "200 OK" in request(connection, get(f"/{number}").replace(HOST, "192.0.2.7"), close=False)
            egress_tls.send(gateway.engine, {"do": "rules", "box": "b", "policy": gateway.policy(rules)})
            egress_tls.send(gateway.engine, {"do": "rules", "box": "unknown", "policy": gateway.policy(rules)})
            assert gateway.receive(gateway.engine)["event"] == "error"
    server.close()
    gateway.close()


@pytest.mark.parametrize(
    "before, after",
    [
        ({"to": "127.0.0.1:1"}, {"to": "127.0.0.1:2"}),
        ({"to": "127.0.0.1:1"}, {}),
        ({}, {"to": "127.0.0.1:1"}),
        ({"private": True}, {}),
    ],
)
def test_changed_rules_that_lead_elsewhere_reset_connections(tmp_path, authority, before, after):
    gateway = Gateway(tmp_path, authority.certificate, [{"host": HOST, "tls": "terminate", **before}])
    server = Server(authority)
    with gateway.connect(server.address) as connection:
        for rule in before, after:
            assert "200 OK" in request(connection, get("/1"), close=False)
            egress_tls.send(
                gateway.engine,
                {
                    "do": "rules",
                    "box": "b",
                    "policy": gateway.policy([{"host": HOST, "tls": "terminate", **rule}]),
                },
            )
            egress_tls.send(gateway.engine, {"do": "rules", "box": "unknown", "policy": gateway.policy([])})
            assert gateway.receive(gateway.engine)["event"] == "error"
        with pytest.raises(OSError):
            assert connection.recv(1) == b"", "closed in order"
            raise OSError
    server.close()
    gateway.close()


def test_rule_number_of_other_rules_does_not_send_the_secret(gateway, server, authority):
    rules = [{"host": "other.example.org", "tls": "terminate"}, *RULES]
    egress_tls.send(gateway.engine, {"do": "rules", "box": "b", "policy": gateway.policy(rules)})
    egress_tls.send(gateway.engine, {"do": "rules", "box": "unknown", "policy": gateway.policy(rules)})
    assert gateway.receive(gateway.engine)["event"] == "error"
    # rollbox-egress has not read the new rules yet, in which 1 is the rule of another host.
    other = Server(authority, name="other.example.org")
    context = gateway.client()
    context.check_hostname = False
    with gateway.connect(other.address, context=context, name="other.example.org", rule=1) as connection:
        request(connection, get("/open/x").replace(HOST, "other.example.org"), close=False)
    assert all(TOKEN not in head for head in other.heads)
    # A host that no rule names is not served at all.
    with pytest.raises(OSError):
        gateway.connect(other.address, name="third.example.org", rule=1)
    other.close()


def test_closed_box_resets_its_connections(gateway, server):
    with gateway.connect(server.address) as connection:
        assert "200 OK" in request(connection, get("/open/1"), close=False)
        egress_tls.send(gateway.engine, {"do": "close", "box": "b"})
        with pytest.raises(OSError):
            connection.recv(1)
            raise OSError
    gateway.event("close")


def test_connection_of_an_unknown_box_is_closed(gateway, server):
    with pytest.raises(OSError):
        gateway.connect(server.address, box="other")
    assert gateway.event("close")["box"] == "other"


def test_program_is_confined(gateway, server):
    with gateway.connect(server.address) as connection:
        request(connection, get("/open/1"), close=False)
    status = dict(line.split(":", 1) for line in open(f"/proc/{gateway.process.pid}/status").read().splitlines())
    assert status["Seccomp"].strip() == "2" and status["NoNewPrivs"].strip() == "1"
    assert "0" not in set(status["Uid"].split()) and status["CapPrm"].strip() == "0" * 16
    # Neither root's programs without capabilities nor those of its own user can read its memory.
    assert os.stat(f"/proc/{gateway.process.pid}/mem").st_uid == 0 or os.getuid() != 0


def test_program_ends_with_its_engine(gateway):
    gateway.engine.shutdown(socket.SHUT_RDWR)
    assert gateway.process.wait(DEADLINE) == 0


def test_garbage_from_the_guest_ends_its_connection_alone(gateway, server):
    for garbage in (b"\x00" * 1000, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"a" * 70000):
        mine, theirs = egress_tls.tcp_pair()
        gateway.hand_over(theirs, server.address)
        with mine:
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            try:
                mine.sendall(garbage)
                while mine.recv(1000):
                    pass
            except OSError:
                pass
        gateway.event("close")
    with gateway.connect(server.address) as connection:
        assert "200 OK" in request(connection, get("/open/1"), close=False)


def test_authority_is_kept_and_its_key_private(tmp_path):
    directory = tmp_path / "ca"
    makers = [subprocess.Popen([egress_tls.PROGRAM, "--make-ca", str(directory)]) for _ in range(8)]
    assert [maker.wait(DEADLINE) for maker in makers] == [0] * 8
    assert sorted(os.listdir(tmp_path)) == ["ca"]
    assert sorted(os.listdir(directory)) == ["bundle.jks", "bundle.pem", "cert.pem", "key.pem"]
    assert (directory / "key.pem").stat().st_mode & 0o777 == 0o600
    before = (directory / "key.pem").read_bytes()
    assert (directory / "bundle.pem").read_text().endswith((directory / "cert.pem").read_text())
    subprocess.run([egress_tls.PROGRAM, "--make-ca", str(directory)], check=True, timeout=DEADLINE)
    assert (directory / "key.pem").read_bytes() == before
    done = subprocess.run(
        [egress_tls.PROGRAM, "--make-ca", str(tmp_path / "no" / "ca")],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 1 and "cannot make the certificate authority" in done.stderr


def test_curl_through_the_gateway(gateway, server):
    if shutil.which("curl") is None:
        skip("needs curl: it is the client")
    port = gateway.listen(server.address)
    command = ["curl", "-sS", "--cacert", gateway.certificate, "--connect-to", f"{HOST}:443:127.0.0.1:{port}"]
    done = subprocess.run(
        [*command, f"https://{HOST}/open/1", f"https://{HOST}/open/2"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.stdout.count(TOKEN) == 2, done.stderr
    done = subprocess.run([*command, f"https://{HOST}/other"], capture_output=True, text=True, timeout=DEADLINE)
    assert done.stdout.startswith("rollbox: no rule"), done.stderr
