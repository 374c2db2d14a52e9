# SPDX-License-Identifier: Apache-2.0
"""rollbox-egress serves on when the disk of its log and of a recording is full, and tells what is missing."""

import ctypes
import json
import os
import tempfile

from egress_engine import Guest, Server, alone, echo, egress, libc, receive
from harness import caller  # noqa: F401

RULES = {
    "net_allow": [{"host": "allowed.test", "ports": [8080], "private": True}],
    "net_record": "/record",
}
FIRST_LINE = b'{"rollbox_recording":1}\n'


def small_disk():
    directory = tempfile.mkdtemp()
    if libc.mount(b"small", directory.encode(), b"tmpfs", 0, b"size=16k") < 0:
        raise OSError(ctypes.get_errno(), "mount")
    return directory


def exchange(guest, data):
    with guest.connect(guest.lookup("allowed.test"), 8080) as client:
        client.sendall(data)
        assert receive(client, len(data)) == data
        client.shutdown(1)
        assert receive(client) == b""


@alone
def test_egress_full_disk_of_log_and_recording():
    disk = small_disk()
    log, record = (
        os.open(f"{disk}/{name}", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        for name in ("log", "record")
    )
    os.write(record, FIRST_LINE)
    with egress({"net_allow": []}, {"allowed.test": ["127.0.0.1"]}) as (program, _, _):
        Server(echo, 8080)
        guest = Guest()
        fds = [*(listener.fileno() for listener in guest.listeners), log, record]
        policy = json.dumps({"net": "allow", **RULES})
        program.send(
            {
                "do": "open",
                "box": "b",
                "mode": "ports",
                "policy": policy,
                "names": [],
                "log": True,
                "record": True,
            },
            fds,
        )
        exchange(guest, b"fits" * 10)
        filler = os.open(f"{disk}/filler", os.O_WRONLY | os.O_CREAT)
        with tempfile.TemporaryDirectory():
            try:
                while os.write(filler, b"x" * 512):
                    pass
            except OSError:
                pass
        for _ in range(40):
            exchange(guest, bytes(range(33, 126)) * 100)
        tally = program.start("b")
        exchange(guest, b"still")
        assert program.end(tally, "b")["connections"] == 1
        os.unlink(f"{disk}/filler")
        os.close(filler)
        exchange(guest, b"again")
        program.send({"do": "close", "box": "b"})
        program.next("closed")
        lines = []
        for line in os.pread(record, 1 << 20, 0).splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                continue  # cut short by the full disk
        complete = [line["id"] for line in lines if line.get("end")]
        assert len(complete) >= 2  # the first and the last
        assert all(
            any(line.get("id") == one and "begin" in line for line in lines) for one in complete
        )
        events = [
            json.loads(line)
            for line in os.pread(log, 1 << 20, 0).splitlines()
            if line.endswith(b"}") and line.startswith(b"{")
        ]
        assert any(
            event["event"] == "full" and event["dropped"] > 0
            for event in events
            if "dropped" in event
        )
