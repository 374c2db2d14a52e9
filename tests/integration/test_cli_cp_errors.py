# SPDX-License-Identifier: Apache-2.0
"""rollbox cp that fails: the message names the path, its side and the cause; as each caller."""

import os
import socket
import stat

import pytest

from cli_sessions import own, Shared, shared, shell  # noqa: F401


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
    assert 'cannot write "/usr/x" in the sandbox: Read-only file system' in refused(
        shared, place / "file", f"{small}:/usr/x"
    )


def test_cp_in_without_space(shared, small, place):
    assert 'cannot write "/tmp/large" in the sandbox: No space left' in refused(
        shared, place / "large", f"{small}:/tmp/large"
    )


def test_cp_in_into_a_closed_directory(shared, small, place):
    assert 'cannot write "/tmp/closed/x" in the sandbox: Permission denied' in refused(
        shared, place / "file", f"{small}:/tmp/closed/x"
    )


def test_cp_in_of_a_missing_file(shared, small, place):
    assert f'cannot read "{place}/none" on the host: No such file' in refused(shared, place / "none", f"{small}:/tmp/x")


def test_cp_in_of_a_fifo(shared, small, place):
    assert (
        f'cannot read "{place}/fifo" on the host: Invalid argument (it is neither a regular file'
        in refused(shared, place / "fifo", f"{small}:/tmp/x")
    )


def test_cp_in_of_a_socket(shared, small, place):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "socket"))
        os.chmod(place / "socket", 0o777)
        assert (
            f'cannot read "{place}/socket" on the host: Invalid argument (it is neither a regular file'
            in refused(shared, place / "socket", f"{small}:/tmp/x")
        )


def test_cp_out_into_a_missing_directory(shared, small, place):
    assert f'cannot write "{place}/none/x" on the host: No such file' in refused(
        shared, f"{small}:/tmp/file", place / "none" / "x"
    )


def test_cp_out_of_a_missing_file(shared, small, place):
    assert 'cannot read "/tmp/none" in the sandbox: No such file' in refused(shared, f"{small}:/tmp/none", place / "x")


def test_cp_out_of_a_closed_directory(shared, small, place):
    assert 'cannot read "/tmp/closed" in the sandbox: Permission denied' in refused(
        shared, f"{small}:/tmp/closed", place / "x"
    )


def test_cp_out_of_a_fifo(shared, small, place):
    assert (
        'cannot read "/tmp/fifo" in the sandbox: Invalid argument (it is neither a regular file'
        in refused(shared, f"{small}:/tmp/fifo", place / "x")
    )


def test_cp_of_a_directory_onto_a_file(shared, small, place):
    """It replaced the file of the sandbox."""
    (place / "directory").mkdir(mode=0o755)
    (place / "directory" / "inner").write_text("x")
    shared.who.own(place / "directory")
    assert 'cannot write "/tmp/file" in the sandbox: Not a directory' in refused(
        shared, place / "directory", f"{small}:/tmp/file"
    )
    assert shared.ok("exec", small, "cat", "/tmp/file") == "x"
    shared.ok("exec", small, *shell("mkdir -p /tmp/tree"))
    assert f'cannot write "{place}/file" on the host: Not a directory' in refused(
        shared, f"{small}:/tmp/tree", place / "file"
    )


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_cp_out_onto_a_special_file(shared, small, place, kind):
    """It took the file's place: root lost /dev/full by one command."""
    target = place / kind
    if kind == "device":
        if os.getuid() != 0:
            return                              # nobody else makes one
        os.mknod(target, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    before = os.lstat(target)
    assert (
        f'cannot write "{target}" on the host: Invalid argument (it is neither a regular file nor a directory)'
        in refused(shared, f"{small}:/tmp/file", target)
    )
    assert os.path.samestat(os.lstat(target), before)


def test_cp_out_of_a_tree_keeps_special_files_of_the_host(shared, small, place):
    shared.ok("exec", small, *shell("mkdir -p /tmp/tree; echo x > /tmp/tree/fifo"))
    assert f'cannot write "{place}/fifo" on the host: Invalid argument' in refused(
        shared, f"{small}:/tmp/tree/.", place
    )
    assert stat.S_ISFIFO(os.lstat(place / "fifo").st_mode)
