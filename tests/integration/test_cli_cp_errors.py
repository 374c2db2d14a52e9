# SPDX-License-Identifier: Apache-2.0
"""rollbox cp that fails: the message names the path, its side and the cause; as each caller."""

import os
import socket

import pytest

from test_cli_session import Shared, own, shared, shell  # noqa: F401


@pytest.fixture
def place(shared):
    directory = shared.who.directory()
    (directory / "file").write_text("content\n")
    (directory / "large").write_bytes(bytes(5 << 20))
    os.mkfifo(directory / "fifo")
    for name in ("file", "large", "fifo"):
        (directory / name).chmod(0o644)
    return directory


@pytest.fixture
def small(shared):
    with shared.box("--disk", "1M") as box:
        shared.ok("exec", box, *shell("echo x > /tmp/file; mkfifo /tmp/fifo; mkdir -m 0 /tmp/closed"))
        yield box


def refused(shared, *arguments):
    done = shared("cp", *arguments, timeout=30)
    assert done.returncode == 125 and done.stderr.count(b"\n") == 1, done
    return done.stderr.decode()


def test_cp_in_onto_a_read_only_place(shared, small, place):
    assert 'cannot write "/usr/x" in the sandbox: Read-only file system' in refused(shared, place / "file", f"{small}:/usr/x")


def test_cp_in_without_space(shared, small, place):
    assert 'cannot write "/tmp/large" in the sandbox: No space left' in refused(shared, place / "large", f"{small}:/tmp/large")


def test_cp_in_into_a_closed_directory(shared, small, place):
    assert 'cannot write "/tmp/closed/x" in the sandbox: Permission denied' in refused(shared, place / "file", f"{small}:/tmp/closed/x")


def test_cp_in_of_a_missing_file(shared, small, place):
    assert f'cannot read "{place}/none" on the host: No such file' in refused(shared, place / "none", f"{small}:/tmp/x")


def test_cp_in_of_a_fifo(shared, small, place):
    assert f'cannot read "{place}/fifo" on the host: Invalid argument (it is no regular file' in refused(shared, place / "fifo", f"{small}:/tmp/x")


def test_cp_in_of_a_socket(shared, small, place):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "socket"))
        os.chmod(place / "socket", 0o777)
        assert f'cannot read "{place}/socket" on the host: Invalid argument (it is no regular file' in refused(shared, place / "socket", f"{small}:/tmp/x")


def test_cp_out_into_a_missing_directory(shared, small, place):
    assert f'cannot write "{place}/none/x" on the host: No such file' in refused(shared, f"{small}:/tmp/file", place / "none" / "x")


def test_cp_out_of_a_missing_file(shared, small, place):
    assert 'cannot read "/tmp/none" in the sandbox: No such file' in refused(shared, f"{small}:/tmp/none", place / "x")


def test_cp_out_of_a_closed_directory(shared, small, place):
    assert 'cannot read "/tmp/closed" in the sandbox: Permission denied' in refused(shared, f"{small}:/tmp/closed", place / "x")


def test_cp_out_of_a_fifo(shared, small, place):
    assert 'cannot read "/tmp/fifo" in the sandbox: Invalid argument (it is no regular file' in refused(shared, f"{small}:/tmp/fifo", place / "x")
