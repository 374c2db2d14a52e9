# SPDX-License-Identifier: Apache-2.0
"""rollbox-egress by itself: the test plays the engine, the guest, the name server and the servers."""

import contextlib
import json
import os
import socket
import ssl
import struct
import tempfile
import threading
from pathlib import Path

from egress_engine import Guest, Server, alone, echo, egress, is_refused, receive, was_reset
from harness import caller  # noqa: F401

LOCAL = {"allowed.test": ["127.0.0.1"], "x.wild.test": ["127.0.0.1"]}


def allow(*hosts, **more):
    """Rules for hosts of the test's own network, which is private."""
    rules = [{"host": host, "private": True, **more} for host in hosts]
    return {"net_allow": rules}


def client_hello(name):
    """The first bytes of a TLS client."""
    given, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    client = context.wrap_bio(given, sent, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return sent.read()


def in_records(hello, size):
    """The same handshake message in records of at most so many bytes."""
    body = hello[5:]
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"\x16\x03\x01" + struct.pack(">H", len(part)) + part for part in parts)


def with_extension(hello, kind, data):
    """The same handshake message in one record, with one more extension at its end."""
    body = bytearray(hello[5:])
    at = 4 + 2 + 32
    at += 1 + body[at]
    at += 2 + struct.unpack_from(">H", body, at)[0]
    at += 1 + body[at]
    body += struct.pack(">2H", kind, len(data)) + data
    struct.pack_into(">H", body, at, len(body) - at - 2)
    body[1:4] = (len(body) - 4).to_bytes(3, "big")
    return b"\x16\x03\x01" + struct.pack(">H", len(body)) + body


@alone
def test_egress_name_allowed_443():
    hello = client_hello("allowed.test")
    with egress(allow("allowed.test"), LOCAL) as (program, guest, _):
        Server(echo, 443)
        tally = program.start()
        with guest.connect(guest.lookup("allowed.test"), 443) as client:
            client.sendall(hello)
            assert receive(client, len(hello)) == hello
            client.shutdown(socket.SHUT_WR)
            assert receive(client) == b""
        network = program.end(tally)
        size = len(hello)
        assert network["connections"] == 1 and network["refused"] == 0
        assert network["hosts"] == [{"host": "allowed.test", "port": 443, "connections": 1, "up": size, "down": size}]


@alone
def test_egress_name_not_allowed_is_nxdomain():
    with egress(allow("allowed.test", "*.wild.test"), LOCAL) as (program, guest, server):
        assert guest.query("other.test") == (3, [])
        assert guest.query("sub.allowed.test") == (3, [])
        assert guest.query("wild.test") == (3, [])
        assert guest.query("secret-data.other.test", tcp=True) == (3, [])
        assert server.asked == []


@alone
def test_egress_wildcard_matches_subdomain_not_apex():
    with egress(allow("*.wild.test", ports=[8080]), LOCAL) as (program, guest, _):
        Server(echo, 8080)
        address = guest.lookup("x.wild.test")
        assert address == "198.18.128.1"
        assert guest.lookup("X.Wild.test") == address
        name = program.next("name")
        assert (name["box"], name["name"], name["address"]) == ("a", "x.wild.test", address)
        assert guest.query("wild.test") == (3, [])
        with guest.connect(address, 8080) as client:
            client.sendall(b"\0binary")
            assert receive(client, 7) == b"\0binary"


@alone
def test_egress_literal_v4_v6_mapped_refused():
    with egress(allow("allowed.test", ports=[8080]), LOCAL) as (program, guest, _):
        Server(echo, 8080)
        tally = program.start()
        for family, address in (
            (2, "127.0.0.1"),
            (2, "1.1.1.1"),
            (10, "2606:4700::1"),
            (10, "::ffff:1.1.1.1"),
            (2, "198.18.9.9"),
        ):
            assert is_refused(guest, address, 8080, family=family)
        refusals = {(r["host"], r["why"]): r["count"] for r in program.end(tally)["refusals"]}
        assert refusals == {
            ("127.0.0.1", "literal"): 1,
            ("1.1.1.1", "literal"): 2,
            ("2606:4700::1", "literal"): 1,
            ("198.18.9.9", "name"): 1,
        }


@alone
def test_egress_port_not_allowed_refused():
    with egress(allow("allowed.test"), LOCAL) as (program, guest, _):
        assert is_refused(guest, guest.lookup("allowed.test"), 8080)
        assert program.refusals() == [("allowed.test", 8080, "port", 1)]


@alone
def test_egress_metadata_by_name_refused():
    names = {
        "a.test": ["169.254.169.254"],
        "b.test": ["fd00:ec2::254"],
        "c.test": ["168.63.129.16", "100.100.100.200"],
        "d.test": ["::ffff:127.0.0.1"],
        "e.test": ["64:ff9b::a9fe:a9fe"],
        "f.test": ["127.0.0.1"],
        "g.test": ["0.0.0.0"],
    }
    rules = {"net_allow": [{"host": name, "ports": [8080]} for name in names]}
    with egress(rules, names) as (program, guest, _):
        server = Server(echo, 8080)
        for name in names:
            assert is_refused(guest, guest.lookup(name), 8080), name
        assert program.refusals() == [(name, 8080, "private_address", 1) for name in names]
        assert server.connections == 0


@alone
def test_egress_hosts_own_addresses_refused():
    os.system("ip addr add 8.8.4.4/32 dev lo")
    with egress({"net_allow": ["own.test:8080"]}, {"own.test": ["8.8.4.4"]}) as (program, guest, _):
        server = Server(echo, 8080, "8.8.4.4")
        assert is_refused(guest, guest.lookup("own.test"), 8080)
        assert program.refusals() == [("own.test", 8080, "private_address", 1)]
        assert server.connections == 0


@alone
def test_egress_rebinding_between_resolve_and_connect():
    answers = iter([["127.0.0.1"]])
    names = {"rebind.test": lambda: next(answers, ["169.254.169.254"])}
    with egress(allow("rebind.test", ports=[8080]), names) as (_, guest, server):
        Server(echo, 8080)
        with guest.connect(guest.lookup("rebind.test"), 8080) as client:
            client.sendall(b"\1")
            assert receive(client, 1) == b"\1"
        assert server.asked == [("rebind.test", 1)]


@alone
def test_egress_to_reaches_host_loopback_only_at_that_port():
    rules = {"net_allow": [{"host": "judge.test", "ports": [80, 8080], "tls": "raw", "to": "127.0.0.1:9000"}]}
    with egress(rules) as (_, guest, server):
        Server(lambda c: c.sendall(b"judge"), 9000)
        other = Server(echo, 8080)
        with guest.connect(guest.lookup("judge.test"), 8080) as client:
            assert receive(client) == b"judge"
        assert other.connections == 0 and server.asked == []


@alone
def test_egress_sni_other_missing_and_split():
    with egress(allow("allowed.test", ports=[443, 8080]), LOCAL) as (program, guest, _):
        servers = [Server(echo, 443), Server(echo, 8080)]
        address = guest.lookup("allowed.test")
        good = in_records(client_hello("allowed.test"), 40)
        for port in (443, 8080):
            with guest.connect(address, port) as client:
                for i in range(len(good)):
                    client.sendall(good[i : i + 1])
                assert receive(client, len(good)) == good
        for hello in (
            client_hello("other.test"),
            client_hello(None),
            in_records(client_hello("other.test"), 7),
            b"\x16\x03\1\x40\0\1\0\x44\0",
        ):
            for port in (443, 8080):
                assert is_refused(guest, address, port, hello)
        assert is_refused(guest, address, 443, b"GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
        assert program.refusals() == [
            ("allowed.test", 443, "sni_other", 2),
            ("allowed.test", 8080, "sni_other", 2),
            ("allowed.test", 443, "sni_missing", 2),
            ("allowed.test", 8080, "sni_missing", 1),
            ("allowed.test", 443, "bad_request", 1),
            ("allowed.test", 8080, "bad_request", 1),
        ]
        assert servers[0].connections == 1


@alone
def test_egress_ech_refused():
    hello = with_extension(client_hello("allowed.test"), 0xFE0D, b"outer")
    rules = allow("allowed.test")
    rules["net_allow"] += allow("other.test", ech="allow")["net_allow"]
    with egress(rules, {**LOCAL, "other.test": ["127.0.0.1"]}) as (program, guest, _):
        Server(echo, 443)
        assert is_refused(guest, guest.lookup("allowed.test"), 443, hello)
        hello = with_extension(client_hello("other.test"), 0xFE0D, b"outer")
        with guest.connect(guest.lookup("other.test"), 443) as client:
            client.sendall(hello)
            assert receive(client, len(hello)) == hello
        assert program.refusals() == [("allowed.test", 443, "ech", 1)]


def http_server(connection):
    """Answers each request with its target, and keeps the connection."""
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            more = connection.recv(65536)
            if not more:
                return
            data += more
        head, data = data.split(b"\r\n\r\n", 1)
        target = head.split()[1]
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(target), target))


def get(target, host="allowed.test", version="1.1"):
    return f"GET {target} HTTP/{version}\r\nHost: {host}\r\n\r\n".encode()


def answer(client):
    """(status, body) of an answer with a length."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = client.recv(1)
        assert byte, head
        head += byte
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    return int(head.split()[1]), receive(client, int(lengths[0]))


@alone
def test_egress_host_header_other_every_request_of_a_connection():
    with egress(allow("allowed.test", ports=[80, 8080]), LOCAL) as (program, guest, _):
        for port in (80, 8080):
            server = Server(http_server, port)
            with guest.connect(guest.lookup("allowed.test"), port) as client:
                host = "allowed.test" if port == 80 else f"allowed.test:{port}"
                client.sendall(get("/one", host) + get("/two", host))
                assert answer(client) == (200, b"/one")
                assert answer(client) == (200, b"/two")
                client.sendall(get("/three", "other.test"))
                assert answer(client)[0] == 403
                assert receive(client) == b""
            with guest.connect(guest.lookup("allowed.test"), port) as client:
                client.sendall(get("/", "other.test"))
                assert answer(client)[0] == 403
            if port == 80:  # on others the server is connected to at once, as it may speak first
                assert server.connections == 1
        assert [r[2:] for r in program.refusals()] == [("host_other", 2), ("host_other", 2)]


@alone
def test_egress_http_smuggling_refused():
    tricks = [
        b"GET / HTTP/1.1\nHost: allowed.test\n\n",
        b"GET http://other.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: allowed.test\r\nHost: other.test\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: allowed.test\r\nX: a\r\n b\r\n\r\n",
        b"\r\nnothing\r\n\r\n",
        b"CONNECT other.test:80 HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
    ]
    with egress(allow("allowed.test"), LOCAL) as (_, guest, _dns):
        server = Server(http_server, 80)
        for trick in tricks:
            with guest.connect(guest.lookup("allowed.test"), 80) as client:
                client.sendall(trick)
                assert answer(client)[0] == 400, trick
        assert server.connections == 0


@alone
def test_egress_host_is_checked_after_empty_lines_and_for_any_method():
    lines = [
        b"\r\nGET / HTTP/1.1",
        b"\n\n\nGET / HTTP/1.1",
        b"A_B / HTTP/1.1",
        b"get / HTTP/1.1",
        b"M7 / HTTP/1.0",
        b"GET\t/ HTTP/1.1",
        b"GET / http/1.1",
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZ / HTTP/1.1",
        b"0 /\0 HTTP/1.1",
    ]
    seen = []

    def serve(connection):
        while data := connection.recv(65536):
            seen.append(data)

    with egress(allow("allowed.test", ports=[8080]), LOCAL) as (program, guest, _):
        Server(serve, 8080)
        for line in lines:
            head = line + b"\r\nHost: other.test\r\n\r\n"
            for pieces in ([head], [head[i : i + 1] for i in range(len(head))]):
                with contextlib.suppress(OSError), guest.connect(guest.lookup("allowed.test"), 8080) as client:
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    for piece in pieces:
                        client.sendall(piece)
                    receive(client)
        assert b"other.test" not in b"".join(seen)
        assert sum(r[3] for r in program.refusals()) == 2 * len(lines)


@alone
def test_egress_other_protocols_are_passed_without_waiting_for_a_line():
    with egress(allow("allowed.test", ports=[8080]), LOCAL) as (_, guest, _dns):
        Server(echo, 8080)
        for piece in (b"hello", b"0032git-upload-pack /x\0", b"\r\nh", b"SSH-2.0-x y\r\nGET / HTTP/1.1\r\n"):
            with guest.connect(guest.lookup("allowed.test"), 8080) as client:
                client.sendall(piece)
                assert receive(client, len(piece)) == piece


@alone
def test_egress_upstream_down_is_answered_or_reset():
    with egress(allow("allowed.test", ports=[80, 8080]), LOCAL) as (program, guest, _):
        with guest.connect(guest.lookup("allowed.test"), 80) as client:
            client.sendall(get("/"))
            assert answer(client)[0] == 502
        assert is_refused(guest, guest.lookup("allowed.test"), 8080)
        assert [r[2] for r in program.refusals()] == ["upstream_refused"] * 2


@alone
def test_egress_dns_any_server_address():
    with egress(allow("allowed.test"), LOCAL) as (_, guest, _dns):
        for server, family in (("8.8.8.8", 2), ("127.0.0.53", 2), ("2001:4860:4860::8888", 10)):
            assert guest.query("allowed.test", server=server, family=family) == (0, ["198.18.0.1"])
            assert guest.query("allowed.test", server=server, family=family, tcp=True) == (0, ["198.18.0.1"])
        assert guest.query("allowed.test", kind=28) == (0, b"")
        code, record = guest.query("1.0.18.198.in-addr.arpa", kind=12)
        assert code == 0 and record.endswith(b"\x07allowed\x04test\0")


@alone
def test_egress_dns_flood_is_bounded():
    with egress(allow("allowed.test"), LOCAL) as (_, guest, _dns), guest.udp() as client:
        client.connect(("10.0.2.3", 53))
        query = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + b"\x05other\0\0\1\0\1"
        for _ in range(3000):
            client.send(query)
        answers = 0
        client.settimeout(3)
        try:
            while client.recv(512):
                answers += 1
        except TimeoutError:
            pass
        assert 100 <= answers < 2500


@alone
def test_egress_server_speaks_first_and_half_close():
    def serve(connection):
        connection.sendall(b"220 ready\r\n")
        connection.sendall(str(len(receive(connection))).encode())

    with egress(allow("allowed.test", ports=[8080]), LOCAL) as (_, guest, _dns):
        Server(serve, 8080)
        with guest.connect(guest.lookup("allowed.test"), 8080) as client:
            assert receive(client, 11) == b"220 ready\r\n"
            client.sendall(b"USER anonymous\r\n" + b"x" * 1000000)
            client.shutdown(socket.SHUT_WR)
            assert receive(client) == b"1000016"


@alone
def test_egress_slow_reader_does_not_hold_others():
    data = os.urandom(1 << 20) * 16

    with egress(allow("allowed.test", ports=[8080]), LOCAL) as (_, guest, _dns):
        Server(lambda c: c.sendall(data), 8080)
        address = guest.lookup("allowed.test")
        with guest.connect(address, 8080) as slow, guest.connect(address, 8080) as fast:
            assert receive(fast) == data
            assert receive(slow) == data


@alone
def test_egress_server_reset_is_no_end_of_file():
    def serve(connection):
        connection.sendall(b"part")
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with egress(allow("allowed.test", ports=[8080]), LOCAL) as (_, guest, _dns):
        Server(serve, 8080)
        with guest.connect(guest.lookup("allowed.test"), 8080) as client:
            assert receive(client, 4) == b"part"
            client.sendall(b"\0")
            assert was_reset(client)


@alone
def test_egress_answer_of_a_server_that_closes_early_arrives():
    def serve(connection):
        connection.recv(1)
        connection.sendall(b"too large")

    with egress(allow("allowed.test", ports=[8080]), LOCAL) as (_, guest, _dns):
        Server(serve, 8080)
        with guest.connect(guest.lookup("allowed.test"), 8080) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(bytes(20 << 20))
            assert receive(client, 9) == b"too large"


@alone
def test_egress_limit_connections():
    rules = {**allow("allowed.test", ports=[8080]), "net_max_connections": 2}
    with egress(rules, LOCAL) as (program, guest, _):
        Server(echo, 8080)
        address = guest.lookup("allowed.test")
        first, second = guest.connect(address, 8080), guest.connect(address, 8080)
        for client in (first, second):
            client.sendall(b"\0")
            assert receive(client, 1) == b"\0"
        assert is_refused(guest, address, 8080)
        first.close()
        second.close()
        assert program.refusals() == [("allowed.test", 8080, "limit_connections", 1)]


@alone
def test_egress_limit_bytes():
    rules = {**allow("allowed.test", ports=[8080]), "net_max_upload": 100000}
    with egress(rules, LOCAL) as (program, guest, _):
        Server(echo, 8080)
        with guest.connect(guest.lookup("allowed.test"), 8080) as client:
            client.sendall(b"\0" * 100000)
            assert len(receive(client, 100000)) == 100000
            client.sendall(b"\0")
            with contextlib.suppress(ConnectionResetError):
                receive(client)
        assert program.refusals() == [("allowed.test", 8080, "limit_bytes", 1)]


@alone
def test_egress_limit_idle():
    with egress({**allow("allowed.test", ports=[8080]), "net_idle": 1}, LOCAL) as (program, guest, _):
        Server(echo, 8080)
        with guest.connect(guest.lookup("allowed.test"), 8080) as client:
            client.sendall(b"\0")
            assert receive(client, 1) == b"\0"
            assert was_reset(client)
        assert program.refusals() == [("allowed.test", 8080, "limit_idle", 1)]


@alone
def test_egress_limit_requests():
    with egress({**allow("allowed.test"), "net_max_requests": 2}, LOCAL) as (program, guest, _):
        Server(http_server, 80)
        with guest.connect(guest.lookup("allowed.test"), 80) as client:
            client.sendall(get("/1") + get("/2") + get("/3"))
            assert [answer(client)[0] for _ in range(3)] == [200, 200, 429]
        assert program.refusals() == [("allowed.test", 80, "limit_requests", 1)]


@alone
def test_egress_names_of_a_snapshot_keep_their_addresses():
    with egress({}, LOCAL) as (program, guest, _):
        program.close()
        names = [["198.18.128.7", "x.wild.test"], ["198.18.0.3", "allowed.test"]]
        program.open(guest, allow("allowed.test", "*.wild.test", ports=[8080]), names=names)
        Server(echo, 8080)
        # A program that has cached the address reaches the name without asking again.
        for address, _name in names:
            with guest.connect(address, 8080) as client:
                client.sendall(b"\0")
                assert receive(client, 1) == b"\0"
        assert guest.lookup("x.wild.test") == "198.18.128.7"
        assert guest.lookup("y.wild.test") == "198.18.128.8"


@alone
def test_egress_set_rules_while_running_resets_what_is_not_allowed():
    names = {"one.test": ["127.0.0.1"], "two.test": ["127.0.0.1"]}
    with egress(allow("one.test", "two.test", ports=[8080]), names) as (program, guest, _):
        Server(echo, 8080)
        clients = [guest.connect(guest.lookup(name), 8080) for name in names]
        for client in clients:
            client.sendall(b"\0")
            assert receive(client, 1) == b"\0"
        program.rules(allow("three.test", "two.test", ports=[8080]))
        assert was_reset(clients[0])
        clients[1].sendall(b"\1")
        assert receive(clients[1], 1) == b"\1"
        # The name keeps its address, the new one gets another.
        assert guest.lookup("two.test") == "198.18.0.2"
        assert guest.lookup("three.test") == "198.18.0.3"
        assert guest.query("one.test") == (3, [])


@alone
def test_egress_set_rules_without_private_resets_connections_to_private_addresses():
    with egress(allow("one.test", ports=[8080]), {"one.test": ["127.0.0.1"]}) as (program, guest, _):
        Server(echo, 8080)
        with guest.connect(guest.lookup("one.test"), 8080) as client:
            client.sendall(b"\0")
            assert receive(client, 1) == b"\0"
            program.rules({"net_allow": ["one.test:8080"]})
            assert was_reset(client)
        assert [r[2] for r in program.refusals()] == ["private_address"]


@alone
def test_egress_set_rules_with_another_to_resets_connections():
    rules = {"net_allow": [{"host": "judge.test", "ports": [8080, "5353/udp"], "to": "127.0.0.1:9000"}]}
    with egress(rules, udp_ports=(53, 5353)) as (program, guest, _):
        Server(echo, 9000)
        Server(echo, 9001)
        with guest.connect(guest.lookup("judge.test"), 8080) as client:
            client.sendall(b"\0")
            assert receive(client, 1) == b"\0"
            program.rules(rules)
            client.sendall(b"\1")
            assert receive(client, 1) == b"\1"
            rules["net_allow"][0]["to"] = "127.0.0.1:9001"
            program.rules(rules)
            assert was_reset(client)
        with guest.connect(guest.lookup("judge.test"), 8080) as client:
            client.sendall(b"\0")
            assert receive(client, 1) == b"\0"
            # Without `to` the connection would lead to the host of that name.
            program.rules({"net_allow": ["judge.test:8080"]})
            assert was_reset(client)


@alone
def test_egress_log_has_connections_requests_and_refusals():
    rules = {**allow("allowed.test", ports=[80, 8080]), "net_log": "requests"}
    with tempfile.TemporaryFile() as log, egress({}, LOCAL) as (program, guest, _):
        program.close()
        program.open(guest, rules, log=log)
        Server(http_server, 80)
        address = guest.lookup("allowed.test")
        with guest.connect(address, 80) as client:
            client.sendall(get("/quote\"d"))
            assert answer(client)[0] == 200
        assert is_refused(guest, address, 443)
        program.close()
        log.seek(0)
        events = [json.loads(line) for line in log.read().decode().splitlines()]
        kinds = [(event["event"], event.get("why")) for event in events]
        assert ("connect", None) in kinds and ("http", None) in kinds and ("close", None) in kinds
        assert ("refused", "port") in kinds
        assert all(event["box"] == "a" and event["t"] > 1e9 for event in events)


@alone
def test_egress_udp_to_named_port():
    rules = {"net_allow": [{"host": "allowed.test", "ports": ["5353/udp"], "private": True}]}
    with egress(rules, LOCAL, udp_ports=(53, 5353)) as (program, guest, _):
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind(("127.0.0.1", 5353))
        with guest.udp() as client:
            client.connect((guest.lookup("allowed.test"), 5353))
            client.send(b"question")
            data, peer = server.recvfrom(100)
            server.sendto(data.upper(), peer)
            assert client.recv(100) == b"QUESTION"
        with guest.udp() as client:
            client.sendto(b"question", ("9.9.9.9", 5353))
            client.sendto(b"question", ("9.9.9.9", 5353))
        assert program.refusals()[0][:3] == ("9.9.9.9", 5353, "literal")


@alone
def test_egress_url_is_judged_by_rules():
    with egress({}) as (program, _, _dns):
        policy = json.dumps({"net": "allow", **allow("allowed.test")})
        for url, allowed, rule, why in (
            ("https://allowed.test/x", True, 0, ""),
            ("https://other.test/x", False, None, "name"),
        ):
            program.send({"do": "test", "serial": 7, "policy": policy, "url": url})
            found = program.next("test")
            assert found == {"event": "test", "serial": 7, "allowed": allowed, "rule": rule, "why": why}


@alone
def test_egress_other_guest_is_served_during_flood():
    rules = {**allow("allowed.test", ports=[8080]), "net_max_connections": 500}
    with egress(rules, LOCAL) as (program, flooding, _):
        other = Guest()
        program.open(other, rules, box="b")
        Server(echo, 8080)
        address = flooding.lookup("allowed.test")
        assert other.lookup("allowed.test") == address
        is_over = threading.Event()
        flood = []

        def connect_all():
            while not is_over.is_set():
                with contextlib.suppress(OSError):
                    flood.append(flooding.connect(address, 8080))
                    flood[-1].sendall(b"x")
                del flood[:-400]

        threads = [threading.Thread(target=connect_all) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(100):
                with other.connect(address, 8080) as client:
                    client.sendall(b"y")
                    assert receive(client, 1) == b"y"
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        assert program.close("b")["connections"] == 100


@alone
def test_egress_gateway_killed_resets():
    with egress(allow("allowed.test", ports=[8080]), LOCAL) as (program, guest, _):
        Server(lambda c: (c.sendall(b"part"), c.recv(1)), 8080)
        client = guest.connect(guest.lookup("allowed.test"), 8080)
        assert receive(client, 4) == b"part"
        program.process.kill()
        assert was_reset(client)
        program.process.wait()
        program.process.returncode = 0


@alone
def test_egress_gateway_confined():
    with egress({}) as (program, _, _dns):
        status = Path(f"/proc/{program.process.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        assert fields["Seccomp"].strip() == "2"
        assert fields["NoNewPrivs"].strip() == "1"
        assert int(fields["CapEff"], 16) == 0 and int(fields["CapPrm"], 16) == 0
        program.engine.close()
        assert program.process.wait(20) == 0
