# SPDX-License-Identifier: Apache-2.0
"""Whom a client takes for its engine: its own user's or root's, at a path that no other user can change.

The model: a stranger, another ordinary user, serves the socket, or may write to a directory on its
path. The client refuses with
`engine_untrusted`, and the stranger has got nothing. Run as each caller; what needs a second user
needs root to start the test.
"""

import os
import socket
import subprocess
import sys

import pytest

from harness import ORDINARY_UID, binaries, caller, skip, until  # noqa: F401

STRANGER = ORDINARY_UID + 1

# Serves argv[1] as an engine would, answers nothing, and tells at the end of its input what it was sent.
SERVER = """
import os, socket, sys
listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.umask(0)
listening.bind(sys.argv[1])
listening.listen()
print("up", flush=True)
got = b""
sys.stdin.read()
listening.settimeout(0)
try:
    while True:
        connection, _ = listening.accept()
        connection.settimeout(0)
        got += connection.recv(65536)
except BlockingIOError:
    pass
print(got)
"""

OPEN = """
import sys
sys.path.insert(0, %r)
from rollbox import Engine, EngineUntrusted
try:
    Engine(%r).close()
except EngineUntrusted as error:
    print(error.code, error.number)
"""


@pytest.fixture
def stranger(caller):
    """Serves a path as another user; what it was sent is checked at the end."""
    if os.geteuid():
        skip("a second user's program is started by root only")
    started = []

    def serve(path, uid=STRANGER):
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", SERVER, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            user=uid,
            group=uid,
            extra_groups=[],
        )
        assert process.stdout.readline() == b"up\n"
        started.append(process)

    yield serve
    for process in started:
        out, _ = process.communicate(timeout=60)
        assert out == b"b''\n", "the stranger was sent something"


def refused(caller, path, *words, **more):
    done = caller.rollbox("run", "--json", "--engine", path, "--", "/bin/true", env=caller.environment(**more))
    assert done.returncode == 125 and b'"code":"engine_untrusted"' in done.stdout, done
    for word in words:
        assert str(word).encode() in done.stdout, done
    done = caller.rollbox("ps", "--socket", path, env=caller.environment(**more))
    assert done.returncode == 125, done


def directory(caller, mode, uid=0):
    path = caller.directory(mode)
    os.chown(path, uid, uid)
    return path


def test_server_of_another_user_is_refused(caller, stranger):
    path = directory(caller, 0o1777) / "engine.sock"
    stranger(path)
    refused(caller, path, f"user {STRANGER}", f"ROLLBOX_TRUST_UID={STRANGER}")
    assert caller.script(OPEN, str(path)).stdout == b"engine_untrusted 22\n"


def test_server_behind_a_foreign_link_is_refused(caller, stranger):
    """The link's owner chooses what it leads to; here an engine of the caller's."""
    shared = directory(caller, 0o1777)
    with serving(caller) as path:
        os.symlink(path, shared / "link")
        os.chown(shared / "link", STRANGER, STRANGER, follow_symlinks=False)
        refused(caller, shared / "link", "link", STRANGER)
        os.symlink(path, shared / "root's")
        assert caller.rollbox("run", "--engine", shared / "root's", "--", "/bin/true").returncode == 0


class serving:
    """An engine of this caller's."""

    def __init__(self, caller, path=None):
        self.caller, self.path = caller, path or caller.directory() / "engine.sock"

    def __enter__(self):
        done = self.caller.rollbox("engine", "start", "--background", "--socket", self.path)
        assert done.returncode == 0, done
        return self.path

    def __exit__(self, *_):
        assert self.caller.rollbox("engine", "stop", "--socket", self.path).returncode == 0


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_directory_writable_by_others_is_refused(caller, mode):
    """By the engine and, where the directory is opened later, by clients; a sticky one is not."""
    path = caller.directory() / "open"
    path.mkdir()
    caller.own(path)
    path.chmod(mode)
    started = caller.rollbox("engine", "start", "--socket", path / "s")
    assert started.returncode == 125 and b"may be written to by other users" in started.stderr, started
    path.chmod(0o1777)
    with serving(caller, path / "s") as at:
        assert caller.rollbox("run", "--engine", at, "--", "/bin/true").returncode == 0
        path.chmod(mode)
        refused(caller, at, "chmod go-w", path)
        path.chmod(0o755)


def test_directory_of_another_user_is_refused(caller, stranger):
    path = directory(caller, 0o755, STRANGER)
    stranger(path / "s")
    refused(caller, path / "s")
    refused(caller, path / "s", path, ROLLBOX_TRUST_UID=str(STRANGER + 1))


def test_root_uses_an_engine_of_a_user_that_it_trusts(caller):
    if os.geteuid():
        skip("only root may connect to another user's engine")
    if caller.uid == 0:
        skip("it is the other user's engine that is served")
    root = type(caller)("root", 0)
    with serving(caller) as path:
        refused(root, path, f"user {caller.uid}")
        refused(root, path, ROLLBOX_TRUST_UID=str(STRANGER))
        for uids in (caller.uid, f"{STRANGER},{caller.uid}"):
            done = root.rollbox(
                "run",
                "--engine",
                path,
                "--",
                "/bin/true",
                env=root.environment(ROLLBOX_TRUST_UID=str(uids)),
            )
            assert done.returncode == 0, done
        for wrong in ("user", f",{caller.uid}", "-1", " 0", "99999999999"):
            done = root.rollbox(
                "run",
                "--json",
                "--engine",
                path,
                "--",
                "/bin/true",
                env=root.environment(ROLLBOX_TRUST_UID=wrong),
            )
            assert done.returncode == 125 and b"invalid_argument" in done.stdout, (wrong, done)


def test_server_without_an_id_in_the_user_namespace_is_refused(caller, stranger):
    """There the stranger, and any other user, has the overflow id."""
    path = directory(caller, 0o1777) / "engine.sock"
    stranger(path)
    inside = ["unshare", "--user", "--map-root-user"]
    if caller.call(*inside, "/bin/true").returncode:
        skip("needs userns: no user namespace can be made")
    done = caller.call(*inside, binaries() / "rollbox", "run", "--json", "--engine", path, "--", "/bin/true")
    assert done.returncode == 125 and b'"code":"engine_untrusted"' in done.stdout and b"user 65534" in done.stdout, done


def test_engine_names_the_owner_of_its_socket(caller, stranger):
    """A stranger's socket, or its lock, at the path that is to be served."""
    if caller.uid == 0:
        skip("root removes it")
    path = directory(caller, 0o1777)
    stranger(path / "taken")
    started = caller.rollbox("engine", "start", "--socket", path / "taken")
    assert started.returncode == 125 and b"another user has put a socket there" in started.stderr, started
    (path / "locked.lock").write_text("")
    os.chown(path / "locked.lock", STRANGER, STRANGER)
    os.chmod(path / "locked.lock", 0o666)
    started = caller.rollbox("engine", "start", "--socket", path / "locked")
    assert started.returncode == 125 and b"locked.lock" in started.stderr, started
