# SPDX-License-Identifier: Apache-2.0
"""rollbox-egress and names: its name servers change, sandboxes share it, and tables of names are large."""

import contextlib
import fcntl
import ipaddress
import json
import os
import resource

from egress_engine import Guest, NameServer, Server, alone, echo, egress, receive
from harness import caller  # noqa: F401

WILD = {
    "net_allow": [
        {"host": host, "ports": [8080], "private": True}
        for host in ("*.wild.test", "*.silent.test")
    ]
}


def says_hello(guest, name):
    with guest.connect(guest.lookup(name), 8080) as client:
        client.sendall(b"hello")
        return receive(client, 5) == b"hello"


@alone
def test_egress_follows_changed_name_servers():
    with egress(WILD, {"old.wild.test": ["127.0.0.1"]}) as (program, guest, first):
        Server(echo, 8080)
        assert says_hello(guest, "old.wild.test")
        waiting = guest.connect(guest.lookup("a.silent.test"), 8080)
        waiting.sendall(b"hello")
        NameServer({"new.wild.test": ["127.0.0.1"], "a.silent.test": ["127.0.0.1"]}, "127.0.0.2")
        program.send(
            {
                "do": "name-servers",
                "resolv_conf": "# changed\noptions ndots:2\nnameserver 127.0.0.2 \n",
            }
        )
        assert receive(waiting, 5) == b"hello"  # its lookup began again
        assert says_hello(guest, "new.wild.test")
        assert "new.wild.test" not in [name for name, _ in first.asked]
        # A file without servers changes nothing.
        program.send(
            {"do": "name-servers", "resolv_conf": "search example.org\nnameserver nonsense\n"}
        )
        assert says_hello(guest, "new.wild.test")


@alone
def test_egress_lookups_of_many_sandboxes_leave_some_for_another():
    resource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit(resource.RLIMIT_NOFILE)[1]] * 2)
    with egress(WILD, {"other.wild.test": ["127.0.0.1"]}) as (program, guest, _):
        Server(echo, 8080)
        clients = []
        for box in range(17):
            greedy = Guest(tcp_ports=(8080,))
            program.open(greedy, WILD, box=f"greedy-{box}")
            for i in range(64):
                with contextlib.suppress(ConnectionResetError):  # all lookups are taken
                    clients.append(greedy.connect(greedy.lookup(f"n{i}-{box}.silent.test"), 8080))
        assert says_hello(guest, "other.wild.test")


@alone
def test_egress_table_of_names_of_any_size():
    names = [
        [str(ipaddress.ip_address("198.18.128.1") + i), f"{i}-{'x' * 50}.{'y' * 60}.wild.test"]
        for i in range(4096)
    ]
    table = os.memfd_create("names", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    text = json.dumps(names).encode()
    assert len(text) > 500_000 and os.write(table, text) == len(text)
    fcntl.fcntl(
        table,
        fcntl.F_ADD_SEALS,
        fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL,
    )
    with egress(WILD, {}) as (program, _, _):
        guest = Guest()
        fds = [table, *(listener.fileno() for listener in guest.listeners)]
        policy = json.dumps({"net": "allow", **WILD})
        program.send(
            {"do": "open", "box": "b", "mode": "ports", "policy": policy, "names_fd": True}, fds
        )
        assert guest.lookup(names[4000][1]) == names[4000][0]
