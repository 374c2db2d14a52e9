# SPDX-License-Identifier: Apache-2.0
"""Sandboxes with net "allow", from the program inside to a server outside, by the real gateway."""

import pytest
from harness import caller  # noqa: F401
from network_server import FETCH, server  # noqa: F401

MODES = {"tproxy": "", "ports": "-nft_tproxy"}


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


def fetch(caller, policy, mode, *urls):
    result = caller.run(
        "--policy",
        policy,
        "--",
        "python3",
        "-c",
        FETCH,
        *urls,
        env=caller.environment(ROLLBOX_KFEAT=MODES[mode]),
    )
    assert result.outcome == "exit", result.error
    assert result.network["mode"] == mode
    return result.stdout.splitlines(), result.network


def python(caller, policy, code, mode="tproxy"):
    result = caller.run(
        "--policy",
        policy,
        "--",
        "python3",
        "-c",
        code,
        env=caller.environment(ROLLBOX_KFEAT=MODES[mode]),
    )
    assert result.outcome == "exit" and result.exit_code == 0, (result.stderr, result.error)
    return result.stdout, result.network


def test_egress_name_allowed(caller, server, mode):
    lines, network = fetch(caller, server.policy(caller), mode, "http://site.test/")
    assert lines == ["hello site.test"]
    assert network["connections"] == 1 and network["refused"] == 0
    assert [(row["host"], row["port"], row["connections"]) for row in network["hosts"]] == [("site.test", 80, 1)]
    assert network["up"] > 0 and network["down"] > 0


def test_egress_name_not_allowed_is_nxdomain(caller, server, mode):
    lines, network = fetch(caller, server.policy(caller), mode, "http://other.test/")
    assert "Name or service not known" in lines[0] and network["connections"] == 0


def test_egress_wildcard_matches_subdomain_not_apex(caller, server, mode):
    lines, _ = fetch(
        caller,
        server.policy(caller),
        mode,
        "http://a.wild.test/",
        "http://b.a.wild.test/",
        "http://wild.test/",
    )
    assert lines[:2] == ["hello a.wild.test", "hello b.a.wild.test"]
    assert "Name or service not known" in lines[2]


def test_egress_literal_refused(caller, server, mode):
    urls = ["http://192.0.2.1/", "http://[2001:db8::1]/", "http://[::ffff:192.0.2.1]/", "http://169.254.169.254/"]
    lines, network = fetch(caller, server.policy(caller), mode, *urls)
    assert all("reset" in line or "refused" in line or "unreachable" in line for line in lines), lines
    assert network["connections"] == 0
    assert {row["why"] for row in network["refusals"]} == {"literal"}


def test_egress_port_not_allowed_refused(caller, server, mode):
    lines, network = fetch(caller, server.policy(caller), mode, "http://site.test:8080/")
    assert "reset" in lines[0] or "refused" in lines[0]
    if mode == "tproxy":
        assert [(row["port"], row["why"]) for row in network["refusals"]] == [(8080, "port")]


LOOPBACK = """
import socket, threading
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "127.9.9.9"), (socket.AF_INET, "10.0.2.15"), (socket.AF_INET6, "::1")):
    listener = socket.create_server((address, 0), family=family)
    client = socket.create_connection(listener.getsockname()[:2], 20)
    peer, name = listener.accept()
    client.send(b"x")
    assert peer.recv(1) == b"x" and name[0] == client.getsockname()[0]
"""


def test_egress_loopback_stays_inside(caller, server, mode):
    _, network = python(caller, server.policy(caller), LOOPBACK, mode)
    assert network["connections"] == 0 and network["refused"] == 0


HIJACK = """
import errno, socket
def attempt(kind, options, address):
    one = socket.socket(socket.AF_INET, kind)
    for option in options:
        one.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        one.bind(address)
        if kind == socket.SOCK_STREAM:
            one.listen()
        return "bound"
    except OSError as error:
        return errno.errorcode[error.errno]
for kind, port in ((socket.SOCK_STREAM, 1), (socket.SOCK_DGRAM, 53), (socket.SOCK_DGRAM, 5353), (socket.SOCK_STREAM, %d)):
    for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)):
        for host in ("", "127.0.0.1", "198.18.0.1"):
            print(kind, port, options, host, attempt(kind, options, (host, port)))
"""


def test_egress_gateway_listener_cannot_be_hijacked(caller, server, mode):
    policy = server.policy(
        caller,
        server.rule("site.test", 8088),
        {"host": "dns.test", "ports": ["5353/udp"], "to": "127.0.0.1:9"},
    )
    taken, _ = python(caller, policy, HIJACK % (8088 if mode == "ports" else 1), mode)
    assert not [line for line in taken.splitlines() if line.endswith("bound")], taken


def test_egress_direct_connect_to_port_1_refused(caller, server):
    code = """
import socket
for host in ("127.0.0.1", "10.0.2.15", "192.0.2.1", "::1"):
    try:
        socket.create_connection((host, 1), 20)
    except ConnectionRefusedError:
        print("refused")
"""
    out, network = python(caller, server.policy(caller), code)
    assert out.split() == ["refused"] * 4 and network["connections"] == network["refused"] == 0


def test_egress_own_server_on_allowed_port(caller, server):
    code = """
import socket, urllib.request
listener = socket.create_server(("127.0.0.1", 8088))
client = socket.create_connection(("127.0.0.1", 8088), 20)
listener.accept()[0].send(b"own")
assert client.recv(3) == b"own"
print(urllib.request.urlopen("http://site.test:8088/", timeout=20).read().decode())
"""
    out, _ = python(caller, server.policy(caller, server.rule("site.test", 8088)), code)
    assert out.strip() == "hello site.test:8088"


def test_egress_udp_refused_at_once(caller, server, mode):
    code = """
import socket
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.settimeout(20)
one.connect(("192.0.2.1", 4433))
one.send(b"x")
try:
    one.recv(1)
except ConnectionRefusedError:
    print("refused")
"""
    assert python(caller, server.policy(caller), code, mode)[0].strip() == "refused"


def test_egress_method_and_path_rules(caller, server):
    home = caller.directory()
    rule = {
        "host": "api.test",
        "ports": [443],
        "to": f"http://{server.address}",
        "requests": [{"methods": ["GET"], "paths": ["/ok*"]}],
    }
    urls = ["https://api.test/ok", "https://api.test/no"]
    result = caller.run(
        "--policy",
        server.policy(caller, rule),
        "--",
        "python3",
        "-c",
        FETCH,
        *urls,
        env=caller.environment(ROLLBOX_STORE=str(home / "store")),
    )
    assert result.stdout.splitlines() == ["hello api.test", "HTTPError HTTP Error 403: Forbidden"], result.error
    assert [(row["host"], row["why"]) for row in result.network["refusals"]] == [("api.test", "method_path")]


def test_egress_process_isolation_refused(caller, server):
    result = caller.run("--policy", server.policy(caller, isolation="process"), "--", "true")
    assert result.outcome == "error" and "net allow" in result.error["message"]
