# SPDX-License-Identifier: Apache-2.0
"""A guest learns nothing of the host from cgroup paths, nor of the guest before from reused namespaces."""

import os

import pytest
from harness import PYTHON, caller, skip  # noqa: F401

# Also run with kernel features masked (ROLLBOX_KFEAT): where a promise has two layers, either must hold it.
pytestmark = pytest.mark.masked


def test_cgroup_paths_are_hidden(caller):
    """The paths of the host's cgroups (a session's, a container's, the engine's with its process
    id) could be read from /proc/self/cgroup."""
    if not os.path.exists("/proc/self/ns/cgroup"):
        skip("needs cgroup namespaces")
    result = caller.run("--", "cat", "/proc/self/cgroup")
    assert result.exit_code == 0 and {
        line.split(":", 2)[2] for line in result.stdout.splitlines()
    } <= {"/"}, result.told


NOTE = (
    "import socket\n"
    "print(open('/proc/net/snmp').read(), open('/proc/net/snmp6').read(), open('/proc/net/ip6_flowlabel').read())\n"
    "for family, to in ((socket.AF_INET, '192.0.2.1'), (socket.AF_INET6, '2001:db8::1')):\n"
    "    try: s = socket.socket(family, socket.SOCK_DGRAM)\n"
    "    except PermissionError: continue\n"
    "    with s:\n"
    "        if family == socket.AF_INET6:\n"
    "            try: s.setsockopt(socket.IPPROTO_IPV6, 32, socket.inet_pton(family, to) + bytes.fromhex('00012345 00 ff 0100 0600 0600 00000000'))\n"
    "            except OSError: pass\n"
    "        for i in range(42):\n"
    "            try: s.sendto(b'x', (to, 9))\n"
    "            except OSError: pass\n"
)


def test_network_namespace_carries_no_message_to_the_next_guest(caller):
    """Counters of failed packets and flow labels in a reused network namespace would be a message to the next guest."""
    rows = caller.batch([{"id": str(i), "argv": [*PYTHON, NOTE]} for i in range(12)], "-j", "1")
    assert rows["0"]["exit_code"] == 0, rows["0"]
    assert {row["stdout"] for row in rows.values()} == {rows["0"]["stdout"]}


# A bound socket goes into the queue of a pair that is itself in that queue. No process holds any of them then; the
# kernel's garbage collector frees them later.
IN_FLIGHT = (
    "import array, os, socket\n"
    "seen = open('/proc/net/unix').read().count('@note')\n"
    "a, b = socket.socketpair()\n"
    "s = socket.socket(socket.AF_UNIX)\n"
    "s.bind('\\0note')\n"
    "a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [a.fileno(), b.fileno(), s.fileno()]))])\n"
    "print(seen)\n"
)


def test_socket_in_flight_is_not_seen_by_the_next_guest(caller):
    """The name of a socket that outlives its process is not shown to the next guest."""
    rows = caller.batch([{"id": str(i), "argv": [*PYTHON, IN_FLIGHT]} for i in range(12)], "-j", "1")
    assert [(row["stdout"], row["stderr"]) for row in rows.values()] == [("0\n", "")] * 12
