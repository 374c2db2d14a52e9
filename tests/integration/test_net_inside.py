# SPDX-License-Identifier: Apache-2.0
"""What a program in a sandbox with net "allow" meets, and what it cannot see: other sandboxes, the
host's names, secrets."""

import ctypes
import errno
import json
import os
import socket
import struct
import subprocess

import pytest
from egress_tls import Server as SecretServer
from engines import SharedEngine
from harness import Started, binaries, caller  # noqa: F401
from network_server import server  # noqa: F401

MODES = {"tproxy": "", "ports": "-nft_tproxy"}
TOKEN = "t0ken-" + "of-the-test-987654321"


def python(caller, policy, code, **features):  # noqa: F811
    result = caller.run(
        "--policy", policy, "--", "python3", "-c", code, env=caller.environment(**features)
    )
    assert result.outcome == "exit" and result.exit_code == 0, (result.stderr, result.error)
    return result.stdout


@pytest.mark.parametrize("mode", MODES)
def test_egress_ping_refused_not_answered(caller, server, mode):  # noqa: F811
    code = """
import errno, socket
for kind in socket.SOCK_DGRAM, socket.SOCK_RAW:
    try:
        one = socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP)
        one.settimeout(1)
        one.sendto(b"\\x08\\0\\xf7\\xff\\0\\0\\0\\0", ("192.0.2.1", 0))
        print("answered", one.recv(100))
    except OSError as error:
        print(errno.errorcode.get(error.errno, "no answer"))
"""
    assert "answered" not in python(caller, server.policy(caller), code, ROLLBOX_KFEAT=MODES[mode])


def test_egress_bind_without_reuseaddr_while_connected(caller, server):  # noqa: F811
    """A connection to port P of a host takes *:P inside from servers that do not set SO_REUSEADDR."""
    code = """
import errno, socket
client = socket.create_connection(("site.test", 8088), 20)
client.send(b"GET / HTTP/1.1\\r\\nHost: site.test:8088\\r\\n\\r\\n")
assert client.recv(12) == b"HTTP/1.1 200"
for reuse in 0, 1:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    try:
        one.bind(("", 8088))
        one.listen()
        print("bound")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    assert python(caller, server.policy(caller, server.rule("site.test", 8088)), code).split() == [
        "EADDRINUSE",
        "bound",
    ]


def test_egress_guest_cannot_see_other_boxes_connections(caller, server):  # noqa: F811
    hold = "import socket; c = socket.create_connection(('site.test', 80), 20); print(c.getsockname()[1], flush=True); input()"
    look = "print(open('/proc/net/tcp').read() + open('/proc/net/tcp6').read() + open('/proc/net/unix').read())"
    with SharedEngine(caller, caller.directory() / "engine") as engine:
        for name in "one", "other":
            done = caller.rollbox(
                "create", "--socket", engine.path, "--name", name, "--policy", server.policy(caller)
            )
            assert done.returncode == 0, done.stderr
        held = [
            binaries() / "rollbox",
            "exec",
            "--socket",
            engine.path,
            "-i",
            "one",
            "--",
            "python3",
            "-u",
            "-c",
            hold,
        ]
        with Started(
            caller.popen(
                held, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        ) as holding:
            port = int(holding.line())
            seen = caller.rollbox(
                "exec", "--socket", engine.path, "one", "--", "python3", "-c", look
            ).stdout.decode()
            assert f":{port:04X} " in seen
            seen = caller.rollbox(
                "exec", "--socket", engine.path, "other", "--", "python3", "-c", look
            ).stdout.decode()
            assert f":{port:04X} " not in seen and "rollbox" not in seen
            holding.say()


def test_egress_hosts_file_of_host_not_seen(caller, server):  # noqa: F811
    with open("/etc/hosts") as file:
        names = {name for line in file for name in line.partition("#")[0].split()[1:]} - {
            "localhost",
            "ip6-localhost",
            "ip6-loopback",
            "rollbox",
        }
    seen = python(
        caller,
        server.policy(caller),
        "print(open('/etc/hosts').read(), open('/etc/resolv.conf').read())",
    )
    assert not names & set(seen.split()) and "127.0.0.1" in seen and "nameserver 10.0.2.3" in seen


@pytest.mark.parametrize("mode", MODES)
def test_ports_may_overlap_and_include_that_of_names(caller, server, mode):  # noqa: F811
    rules = [
        server.rule("site.test"),
        {**server.rule("site.test"), "ports": ["53-90", "53/udp"]},
        {**server.rule("b.test"), "ports": [53, "80-82"]},
    ]
    code = "import urllib.request; print(urllib.request.urlopen('http://b.test:82/', timeout=20).read().decode())"
    assert (
        python(caller, server.policy(caller, *rules), code, ROLLBOX_KFEAT=MODES[mode])
        == "hello b.test:82\n"
    )


def test_egress_without_nft_a_rule_for_many_ports_is_refused(caller, server):  # noqa: F811
    """Each port has a listener there, so there is a limit."""
    path = server.policy(caller, {**server.rule("site.test"), "ports": ["1000-2000"]})
    result = caller.run(
        "--policy", path, "--", "true", env=caller.environment(ROLLBOX_KFEAT="-nft_tproxy")
    )
    assert (
        result.outcome == "error"
        and result.error["code"] == "feature_missing"
        and "nft_tproxy" in result.error["message"]
    ), result


# Secrets


@pytest.fixture
def judge():
    server = SecretServer()
    yield server
    server.close()


def secret_policy(caller, judge, **keys):  # noqa: F811
    rules = [
        {
            "host": "api.test",
            "ports": [443],
            "to": f"http://127.0.0.1:{judge.address[1]}",
            "inject": {"Authorization": "Bearer {token}"},
        },
        {
            "host": "other.test",
            "ports": [443],
            "to": f"http://127.0.0.1:{judge.address[1]}",
            "tls": "terminate",
        },
    ]
    text = {
        "net_allow": rules,
        "net_secrets": {"token": {"from": "env:TOKEN", "as": "API_TOKEN"}},
        **keys,
    }
    return caller.write(caller.directory(0o755) / "policy.json", json.dumps(text))


def with_token(caller, **more):  # noqa: F811
    return {"TOKEN": TOKEN, "ROLLBOX_STORE": str(caller.directory() / "store"), **more}


def test_egress_secret_only_to_its_host(caller, judge):  # noqa: F811
    """Also after a redirect: a client keeps its own header, and the gateway adds none elsewhere."""
    code = """
import os, urllib.request
for host in "api.test", "other.test":
    urllib.request.urlopen(urllib.request.Request(f"https://{host}/{host}", headers={"Authorization": "Bearer " + os.environ["API_TOKEN"]}), timeout=20).read()
"""
    python(caller, secret_policy(caller, judge), code, **with_token(caller))
    to_api, to_other = judge.heads
    assert (
        "/api.test" in to_api
        and f"Authorization: Bearer {TOKEN}\r\n" in to_api
        and "rollbox-secret" not in to_api
    )
    assert (
        "/other.test" in to_other
        and TOKEN not in to_other
        and "Authorization: Bearer rollbox-secret-token\r\n" in to_other
    )


def test_egress_placeholder_outside_header_is_text(caller, judge):  # noqa: F811
    code = """
import os, urllib.request
mine = os.environ["API_TOKEN"]
urllib.request.urlopen(urllib.request.Request(f"https://api.test/{mine}?q={mine}", data=mine.encode(), headers={"X-Mine": mine}), timeout=20).read()
"""
    python(caller, secret_policy(caller, judge), code, **with_token(caller))
    (head,) = judge.heads
    assert head.count("rollbox-secret-token") == 3 and head.count(TOKEN) == 1


def test_egress_time_start_terminated_certificate_valid(caller, judge):  # noqa: F811
    code = "import datetime, urllib.request; urllib.request.urlopen('https://api.test/', timeout=20).read(); print(datetime.date.today().year)"
    for start in "1971-01-01T00:00:00Z", "2198-12-31T00:00:00Z":
        assert (
            python(
                caller, secret_policy(caller, judge, time_start=start), code, **with_token(caller)
            ).strip()
            == start[:4]
        )


def test_egress_secret_missing_after_an_engine_that_had_it(caller, judge):  # noqa: F811
    """Secrets are nowhere on the disk: an engine that has not been given one says so, and the rest works."""
    code = """
import sys, urllib.error, urllib.request
for host in "api.test", "other.test":
    try:
        print(urllib.request.urlopen(f"https://{host}/", timeout=20).status)
    except urllib.error.HTTPError as error:
        print(error.code, error.headers["Rollbox-Refused"])
"""
    place, path, store = (
        caller.directory() / "engine",
        secret_policy(caller, judge),
        caller.directory() / "store",
    )

    def rollbox(*words, **more):
        done = caller.rollbox(
            words[0], "--socket", place, *words[1:], env=caller.environment(**more)
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().split("\n")

    with SharedEngine(caller, place) as first:
        rollbox("create", "--name", "keyed", "--policy", path, TOKEN=TOKEN)
        assert rollbox("exec", "keyed", "--", "python3", "-c", code)[:2] == ["200", "200"]
        rollbox("hibernate", "keyed")
        first.process.kill()
        first.process.wait()
    with SharedEngine(caller, place):
        assert rollbox("exec", "keyed", "--", "python3", "-c", code)[:2] == [
            "502 secret_missing",
            "200",
        ]
        rollbox("rm", "keyed")
    assert not store.exists() or caller.call("grep", "-r", TOKEN, store).stdout == b""


# Hosts without IPv6


def _refuse_ipv6():
    """From now on socket(AF_INET6) is EAFNOSUPPORT here and in all children, as on a kernel without IPv6."""
    libc = ctypes.CDLL(None, use_errno=True)
    program = [
        (0x20, 0, 0, 0),  # the number of the call
        (0x15, 0, 3, 41),  # socket
        (0x20, 0, 0, 16),  # its first argument
        (0x15, 0, 1, socket.AF_INET6),
        (0x06, 0, 0, 0x50000 | errno.EAFNOSUPPORT),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in program))
    head = ctypes.create_string_buffer(struct.pack("<H6xQ", len(program), ctypes.addressof(code)))
    if libc.prctl(38, 1, 0, 0, 0) < 0 or libc.prctl(22, 2, head, 0, 0) < 0:
        os._exit(99)


@pytest.mark.skipif(
    os.uname().machine != "x86_64", reason="the numbers of system calls are those of x86-64"
)
@pytest.mark.parametrize("mode", MODES)
def test_egress_without_ipv6(caller, server, mode):  # noqa: F811
    code = "import urllib.request; print(urllib.request.urlopen('http://site.test/', timeout=20).read().decode())"
    done = caller.call(
        binaries() / "rollbox",
        "run",
        "--policy",
        server.policy(caller),
        "--",
        "python3",
        "-c",
        code,
        env=caller.environment(ROLLBOX_KFEAT=MODES[mode]),
        preexec_fn=_refuse_ipv6,
    )
    assert done.stdout == b"hello site.test\n", done.stderr
