# SPDX-License-Identifier: Apache-2.0
"""Text that guests choose reaches a terminal as text: no control character, no character that changes the order of what stands beside it, and no byte that is not UTF-8 is printed as it is."""

import json
import unicodedata

import pytest
from harness import caller  # noqa: F401
from rollbox import Policy, RollboxError, Sandbox
from test_cli_session import Shared

# An escape sequence, C1 in UTF-8 and as a byte, overrides and isolates, a line separator.
HOSTILE = "\x1b]0;x\x07\u009b31m\u202egpj.exe\u2066\u200f\u061c\u2028\u2029\x7f".encode() + b"\x9b31m\xff"
MAKE = f"import os; os.close(os.open(b'/tmp/' + {HOSTILE!r}, os.O_CREAT | os.O_WRONLY)); os.mkdir(b'/tmp/d' + {HOSTILE!r})"


def is_harmless(data):
    """Of output of rollbox' own, in which a line feed is the only control character."""
    text = data.decode()        # UTF-8
    return not [c for c in text if (unicodedata.category(c) == "Cc" and c != "\n") or unicodedata.bidirectional(c) in ("RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI", "B") and c != "\n" or c in "\u200f\u061c\u2028"]


@pytest.fixture(scope="module")
def shared(caller):
    engine = Shared(caller, caller.directory() / "engine.sock")
    yield engine
    engine("engine", "stop")


def test_names_in_what_commands_print(shared):
    """Names of files and processes in differences, lists, snapshots' names and errors, as text and as JSON."""
    name = shared.ok("create")
    shared.ok("exec", name, "--", "python3", "-c", MAKE)
    shared.ok("exec", "-d", name, "--", "python3", "-c", "import os, sys; os.execv('/bin/sleep', ['sleep' + sys.argv[1], '1000'])", HOSTILE)
    seen = 0
    for command in (["diff", name], ["diff", "--text", name], ["ps", name], ["inspect", name], ["tree", name], ["ps"]):
        for more in ([], ["--json"]):
            done = shared(*command, *more)
            if b"unknown option" in done.stderr or b"--json" in done.stderr:
                continue
            assert is_harmless(done.stdout) and is_harmless(done.stderr), done
            seen += b"gpj" in done.stdout
    assert seen >= 4
    for arguments in (["cp", name + ":/tmp/none" + HOSTILE.decode(errors="surrogateescape"), "/tmp/"], ["exec", name, "--", b"/none" + HOSTILE], ["run", "--", b"/none" + HOSTILE],
                      ["exec", "--cwd", b"/none" + HOSTILE, name, "true"], ["kill", b"none" + HOSTILE], ["inspect", b"none" + HOSTILE]):
        done = shared(*arguments)
        assert done.returncode and b"gpj" in done.stderr and is_harmless(done.stderr), done
    shared.ok("rm", name)


def test_json_means_what_it_meant(caller):
    """Escapes in JSON: the reader has the characters themselves."""
    done = caller.rollbox("run", "--json", "--", "printf", "%s", "a\u202eb\u009bc\x7f\u2066\ufeffd\u00e9")
    assert is_harmless(done.stdout)
    assert json.loads(done.stdout)["stdout"] == "a\u202eb\u009bc\x7f\u2066\ufeffd\u00e9"


def test_names_in_errors_of_the_library():
    """An exception's text, which a trace shows as it is."""
    with Sandbox(Policy()) as box, pytest.raises(RollboxError) as caught:
        box.read_file("/tmp/none\u202egpj.exe\u009b31m")
    assert "gpj" in str(caught.value) and is_harmless(str(caught.value).encode())
