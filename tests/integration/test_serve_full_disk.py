# SPDX-License-Identifier: Apache-2.0
"""The disk of the HTTP server's state is full: what cannot be promised is refused, and nothing is lost."""

import ctypes
import os
import threading

import pytest
from harness import DEADLINE, caller, skip, until  # noqa: F401
from serving import Server

LIBC = ctypes.CDLL(None, use_errno=True)
DETACH = 2


@pytest.fixture
def small(caller):  # noqa: F811
    """A state directory on a disk of its own, of some pages."""
    if os.geteuid() != 0:
        skip("needs root: it mounts a small disk")
    path = caller.directory()
    options = f"size=128k,mode=700,uid={caller.uid},gid={caller.uid}".encode()
    if LIBC.mount(b"small", bytes(path), b"tmpfs", 0, options) < 0:
        raise OSError(ctypes.get_errno(), "mount")
    yield path
    LIBC.umount2(bytes(path), DETACH)


def fill(path):
    """Takes all room of the disk."""
    with open(path / "filler", "wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                return


def keyed(server, key, body=None, **options):
    """A POST with an Idempotency-Key: the status, and whether it was a replay."""
    body = body or {"argv": ["true"]}
    status, _ = server.call("POST", "/v1/runs", body, Idempotency_Key=key, **options)
    return status, server.headers.get("Idempotency-Replayed") == "true"


def fill_journal(server, path):
    """Also the last page of the journal is full: a request is refused."""
    fill(path)
    for number in range(200):
        if keyed(server, f"fill-{number}")[0] == 503:
            return
    raise AssertionError("the journal has room")


def test_full_disk_refuses_promises_and_recovers(caller, small):  # noqa: F811
    with Server(caller, "--state", small) as server:
        fill_journal(server, small)
        for body, path in (
            ({"name": "box", "detached": True}, "/v1/sandboxes"),
            ({"ttl_s": 60, "durable": True}, "/v1/leases"),
        ):
            status, problem = server.call("POST", path, body)
            assert status == 503 and "journal" in problem["detail"], problem
        assert server.call("GET", "/v1/sandboxes")[1]["sandboxes"] == []
        assert server.call("POST", "/v1/runs", {"argv": ["true"]})[0] == 200
        assert not (small / "journal.new").exists()
        (small / "filler").unlink()
        until(lambda: b"is written again" in server.process.stderr.readline())
        assert keyed(server, "after") == (200, False)
        assert server.call("POST", "/v1/sandboxes", {"name": "box", "detached": True})[0] == 201
        server.process.kill()
        server.process.wait(DEADLINE)
        with Server(caller, "--state", small, directory=server.directory) as second:
            assert keyed(second, "after") == (200, True)
            assert second.call("DELETE", "/v1/sandboxes/box")[0] in (200, 204)
            second.stop()


def test_answer_that_found_no_room_is_kept_once_there_is_some(caller, small):  # noqa: F811
    mark = caller.directory() / "mark"
    mark.mkdir()
    caller.own(mark)
    body = {
        "argv": ["sh", "-c", f"touch {mark}/begun; until [ -e {mark}/end ]; do sleep 0.05; done"],
        "policy": {"fs_shared": [str(mark)]},
    }
    with Server(caller, "--state", small) as server:
        token, statuses = server.new_token("one", "run", "host"), []
        thread = threading.Thread(
            target=lambda: statuses.append(keyed(server, "long", body, token=token)[0])
        )
        thread.start()
        until((mark / "begun").exists)
        fill_journal(server, small)
        (mark / "end").touch()
        thread.join(DEADLINE)
        assert statuses == [200]
        (small / "filler").unlink()
        until(lambda: b"is written again" in server.process.stderr.readline())
        server.process.kill()
        server.process.wait(DEADLINE)
        with Server(caller, "--state", small, directory=server.directory) as second:
            assert keyed(second, "long", body, token=token) == (200, True)
            second.stop()


def test_server_starts_with_a_full_disk_and_has_its_answers(caller, small):  # noqa: F811
    with Server(caller, "--state", small) as server:
        assert keyed(server, "before") == (200, False)
        fill_journal(server, small)
        server.process.kill()
        server.process.wait(DEADLINE)
        with open(small / "journal", "r+b") as file:  # a torn last line
            file.truncate((small / "journal").stat().st_size - 1)
        with Server(caller, "--state", small, directory=server.directory) as second:
            assert keyed(second, "before") == (200, True)
            assert second.call("POST", "/v1/runs", {"argv": ["true"]})[0] == 200
            (small / "filler").unlink()
            until(lambda: keyed(second, "after")[0] == 200)
            second.stop()
