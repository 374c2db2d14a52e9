# SPDX-License-Identifier: Apache-2.0
"""Tokens files that were edited by hand or damaged: they are refused, with the reason, and never taken in part."""

import json
import os

import pytest
from harness import DEADLINE, caller, until  # noqa: F401
from serving import Server


def changed(path, change):
    """The file's content after a change of its only token."""
    content = json.loads(path.read_text())
    change(content["tokens"][0])
    return json.dumps(content)


def damages():
    """Names, and functions that damage the content of a file."""
    return {
        "expires_is_text": lambda path: changed(path, lambda row: row.update(expires="2020-01-01")),
        "expires_is_real": lambda path: changed(path, lambda row: row.update(expires=1.5)),
        "expires_is_negative": lambda path: changed(path, lambda row: row.update(expires=-1)),
        "misspelt": lambda path: changed(path, lambda row: row.update(expire=1)),
        "scope": lambda path: changed(path, lambda row: row.update(scopes=["root"])),
        "scopes": lambda path: changed(path, lambda row: row.update(scopes="run")),
        "salt": lambda path: changed(path, lambda row: row.update(salt="00")),
        "count": lambda path: changed(path, lambda row: row.update(max_running=-1)),
        "weight": lambda path: '{"tokens": [], "tenants": {"one": {"weight": 4294967297}}}',
        "twice": lambda path: '{"tokens": [], "tokens": []}',
        "cut": lambda path: path.read_text()[:-20],
        "empty": lambda path: "",
        "binary": lambda path: "\0\x1b[31m\x7f",
        "deep": lambda path: "[" * 100_000,
        "huge": lambda path: '{"tokens": []}' + " " * (17 << 20),
    }


@pytest.fixture
def tokens(caller):  # noqa: F811
    """A tokens file with one token."""
    path = caller.directory() / "tokens"
    done = caller.rollbox("token", "create", "--tokens", path)
    assert done.returncode == 0
    return path


def refused(caller, path):  # noqa: F811
    """The one line of a server that does not start."""
    done = caller.rollbox("serve", "--listen", "127.0.0.1:0", "--tokens", path)
    assert done.returncode == 1 and done.stdout == b"", done
    assert done.stderr.count(b"\n") == 1 and b"\x1b" not in done.stderr, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", damages())
def test_damaged_tokens_file_is_refused(caller, tokens, name):  # noqa: F811
    tokens.write_text(damages()[name](tokens))
    assert b"tokens" in refused(caller, tokens)


def test_tokens_file_that_anybody_may_write_is_refused(caller, tokens):  # noqa: F811
    tokens.chmod(0o666)
    assert b"every user may write to it" in refused(caller, tokens)


@pytest.mark.parametrize("kind", ["pipe", "directory", "missing", "loop"])
def test_tokens_file_of_another_type_is_refused(caller, tokens, kind):  # noqa: F811
    tokens.unlink()
    if kind == "pipe":
        os.mkfifo(tokens)
    elif kind == "directory":
        tokens.mkdir()
    elif kind == "loop":
        tokens.symlink_to(tokens)
    refused(caller, tokens)


def test_tokens_file_by_a_link_is_read(caller, tokens):  # noqa: F811
    with Server(caller) as server:
        target = server.tokens.with_name("target")
        server.tokens.rename(target)
        server.tokens.symlink_to(target)
        assert server.call("POST", "/v1/runs", {"argv": ["true"]})[0] == 200


def test_pipe_in_the_place_of_the_tokens_file_stops_no_server(caller):  # noqa: F811
    """The server once opened it and waited for a writer."""
    with Server(caller) as server:
        server.tokens.rename(server.tokens.with_name("before"))
        os.mkfifo(server.tokens)
        os.chown(server.tokens, caller.uid, caller.uid)
        until(lambda: b"no regular file" in server.process.stderr.readline())
        assert server.call("POST", "/v1/runs", {"argv": ["true"]})[0] == 200
        server.process.terminate()
        assert server.process.wait(DEADLINE) == 0
