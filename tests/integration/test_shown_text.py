# SPDX-License-Identifier: Apache-2.0
"""Text that guests choose reaches a terminal as text: no control character, no character that
changes the order of what stands beside it, and no byte that is not UTF-8 is printed as it is."""

import json
import traceback
import unicodedata

import pytest
from harness import caller  # noqa: F401
from rollbox import NotFound, Outcome, Policy, PolicyInvalid, Result, RollboxError, RunFailed, Sandbox, WorkFailed
from cli_sessions import Shared

# An escape sequence, C1 in UTF-8 and as a byte, overrides and isolates, a line separator.
HOSTILE = "\x1b]0;x\x07\u009b31m\u202egpj.exe\u2066\u200f\u061c\u2028\u2029\x7f".encode() + b"\x9b31m\xff"
MAKE = f"import os; os.close(os.open(b'/tmp/' + {HOSTILE!r}, os.O_CREAT | os.O_WRONLY)); os.mkdir(b'/tmp/d' + {HOSTILE!r})"


NO_JSON = frozenset()
"""Of the commands whose output is read here, those without --json: none."""


def is_harmless(data):
    """Whether rollbox's own output has no control character except line feeds."""
    text = data.decode()  # UTF-8
    return not [
        c
        for c in text
        if (unicodedata.category(c) == "Cc" and c != "\n")
        or unicodedata.bidirectional(c)
        in ("RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI", "B")
        and c != "\n"
        or c in "\u200f\u061c\u2028"
    ]


@pytest.fixture(scope="module")
def shared(caller):
    engine = Shared(caller, caller.directory() / "engine.sock")
    yield engine
    engine("engine", "stop")


def test_names_in_what_commands_print(shared):
    """Names of files and processes in differences, lists, snapshots' names and errors, as text and as JSON."""
    name = shared.ok("create")
    shared.ok("exec", name, "--", "python3", "-c", MAKE)
    shared.ok(
        "exec",
        "-d",
        name,
        "--",
        "python3",
        "-c",
        "import os, sys; os.execv('/bin/sleep', ['sleep' + sys.argv[1], '1000'])",
        HOSTILE,
    )
    seen = 0
    for command in (["diff", name], ["diff", "--text", name], ["ps", name], ["inspect", name], ["tree", name], ["ps"]):
        for more in ([], ["--json"]):
            done = shared(*command, *more)
            refuses = done.returncode != 0 and b"--json" in done.stderr
            assert refuses == (more == ["--json"] and command[0] in NO_JSON), done
            assert is_harmless(done.stdout) and is_harmless(done.stderr), done
            seen += b"gpj" in done.stdout
    assert seen >= 4
    for arguments in (
        ["cp", name + ":/tmp/none" + HOSTILE.decode(errors="surrogateescape"), "/tmp/"],
        ["exec", name, "--", b"/none" + HOSTILE],
        ["run", "--", b"/none" + HOSTILE],
        ["exec", "--cwd", b"/none" + HOSTILE, name, "true"],
        ["kill", b"none" + HOSTILE],
        ["inspect", b"none" + HOSTILE],
    ):
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


LETTERS = "\u202egpj.exe\u009b31m\u2066\x7f\u2028"


def test_names_in_errors_of_the_package():
    """Exceptions whose text Python made, not the engine."""
    for error in (
        NotFound(f"there is no {LETTERS}", stage="files"),
        WorkFailed(LETTERS, LETTERS, LETTERS),
        RunFailed(result_of(stderr=LETTERS.encode())),
        RunFailed(result_of(stderr=LETTERS)),
    ):
        assert "gpj" in str(error) and is_harmless(str(error).encode()), repr(error)
        assert is_harmless("".join(traceback.format_exception_only(type(error), error)).encode())
    assert "gpj" in repr(result_of(stderr=LETTERS)) and is_harmless(repr(result_of(stderr=LETTERS)).encode())


def result_of(stderr):
    return Result(outcome=Outcome.EXIT, exit_code=1, signal=None, stdout=stderr, stderr=stderr)


@pytest.mark.parametrize(
    "policy",
    [
        {LETTERS: 1},
        {"env": {LETTERS: 1}},
        {"net": LETTERS},
        {"fs_readable": [LETTERS]},
        {"max_memory": LETTERS},
        {"cwd": LETTERS},
        {"random_seed": LETTERS},
    ],
)
def test_policies_of_others(caller, policy):
    """A policy may come with a task. Error texts have its keys and values."""
    directory = caller.directory()
    path = directory / f"policy{LETTERS}.json"
    path.write_text(json.dumps(policy))
    path.chmod(0o644)
    for command in (["policy", "check", path], ["policy", "plan", path], ["run", "--policy", path, "--", "true"]):
        done = caller.rollbox(*command)
        assert (
            done.returncode
            and b"gpj" in done.stdout + done.stderr
            and is_harmless(done.stdout)
            and is_harmless(done.stderr)
        ), done
    with pytest.raises((PolicyInvalid, RollboxError)) as caught:
        Sandbox(Policy.from_json(path.read_text())).run(["true"])
    assert is_harmless(str(caught.value).encode())


def test_paths_in_plans(caller):
    directory = caller.directory()
    named = directory / f"d{LETTERS}\nforged"
    named.mkdir()
    path = directory / f"policy{LETTERS}.json"
    path.write_text(json.dumps({"fs_readable": ["/usr", str(named)]}))
    for one in (named, path):
        one.chmod(0o755)
    done = caller.rollbox("policy", "plan", path)
    assert done.returncode == 0 and b"gpj" in done.stdout and is_harmless(done.stdout), done
    assert not [line for line in done.stdout.splitlines() if line.startswith(b"forged")]
    done = caller.rollbox("policy", "check", path)
    assert done.returncode == 0 and b"gpj" in done.stdout and is_harmless(done.stdout), done
