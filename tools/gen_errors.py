#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/reference/errors.md and python/rollbox/_core/errors.py from the table ROLLBOX_ERRORS
in include/rollbox/rollbox.h.

tools/gen_errors.py             writes both
tools/gen_errors.py --check     writes nothing; exit status 1 if one of them is not what it would write
"""

import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "include/rollbox/rollbox.h"
ROW = re.compile(r'X\((\w+),\s*(\d+),\s*(\d+),\s*(\w+),\s*"([^"]*)"\)')

# Standard exceptions that a Python program may already be catching for the same reason.
BASES = {
    "INVALID_ARGUMENT": "ValueError",
    "POLICY_INVALID": "ValueError",
    "PATH_NOT_FOUND": "FileNotFoundError",
    "PATH_DENIED": "PermissionError",
    "FEATURE_MISSING": "NotImplementedError",
    "COMMAND_NOT_FOUND": "FileNotFoundError",
    "NOT_EXECUTABLE": "PermissionError",
    "BAD_CWD": "FileNotFoundError",
    "RESOURCE_EXHAUSTED": "OSError",
    "HOST_OUT_OF_MEMORY": "MemoryError",
    "ENGINE_START": "OSError",
    "ENGINE_LOST": "ConnectionError",
    "NOT_FOUND": "LookupError",
    "IO": "OSError",
}

# What to do about it, for docs/reference/errors.md.
ADVICE = {
    "INVALID_ARGUMENT": "Correct the call; the message names the argument and its allowed values.",
    "POLICY_INVALID": "Correct the policy. `rollbox policy check FILE` lists the same problems.",
    "PATH_NOT_FOUND": (
        "Correct the path, or make the file first. rollbox looks it up when a client prepares the policy."
    ),
    "PATH_DENIED": (
        "Grant only paths that the user who runs rollbox may use; a sandbox never has more rights than "
        "its owner. A registry that refuses the credentials of `rollbox image pull` or `push` is this "
        "error, too: log in, or give `--authfile`."
    ),
    "FEATURE_MISSING": (
        "`rollbox doctor` shows which feature is missing and how to enable it. The code is also for a "
        "program of the host that is missing (skopeo), for keys of a policy that exclude each other, and "
        "for a process with a resource that no checkpoint can hold; the message names it. rollbox never "
        "continues with less isolation than the policy asks for."
    ),
    "COMMAND_NOT_FOUND": (
        "Look at `argv[0]`, at `PATH` inside the sandbox, and at whether `fs_readable` grants the "
        "program's directory."
    ),
    "NOT_EXECUTABLE": "Set the execute bit, or check the interpreter in the `#!` line and the program's architecture.",
    "BAD_CWD": "Grant the directory, or make it with `files`.",
    "SETUP_FAILED": (
        "The message names the operation, its object and the errno. Run `rollbox doctor`. The code also "
        "means that a process of rollbox was killed from outside. If that was the dump worker, and it was "
        "making a system call in a process of the sandbox, all processes of the sandbox are killed and "
        "its commands end with this error."
    ),
    "RESOURCE_EXHAUSTED": (
        "Try again later, or with fewer sandboxes at a time. `batch` and `run_many` retry by themselves."
    ),
    "HOST_OUT_OF_MEMORY": "Run fewer sandboxes at a time, or lower `max_memory`. Never score this error.",
    "ENGINE_START": "The message names the program that was tried; `ROLLBOX_ENGINE` names another one.",
    "ENGINE_LOST": (
        "Hibernated sessions in the store are kept. In Python the next call starts another engine, or "
        "connects to the engine that serves the socket then. Repeat a run if that is safe, and open a "
        "session again. In C, close the handle and open another."
    ),
    "ENGINE_BUSY": "Use the running engine, or choose another socket path.",
    "PROTOCOL": "Use the same version of library and engine; restart a shared engine after an upgrade.",
    "NOT_FOUND": (
        "Check the name or id. The engine forgets an ended operation or sandbox after a while. The code "
        "is also for an image or volume that the store does not have, and for an image, tag or platform "
        "that a registry does not have."
    ),
    "CANCELLED": "There is nothing to correct.",
    "IO": "The message names the file and the errno.",
    "INTERNAL": "Report the message, and try again meanwhile.",
    "CONFLICT": (
        "Look at the changes on the host; commit again with force to overwrite them. The code is also for "
        "a volume to which another sandbox writes, or which a sandbox uses while it is to be removed; for "
        "a name or address that is taken; and for a layer or file that changes while it is read. Nothing "
        "was done then: wait for the other one, or choose another name."
    ),
    "DAMAGED": "`rollbox store fsck` lists all damaged objects; import them or make them again.",
    "ENGINE_UNTRUSTED": (
        "Use a socket in a directory that is yours alone, or start an engine of your own. If you trust "
        "that user, set `ROLLBOX_TRUST_UID` to the user's id."
    ),
    "GUEST_INTERFERED": (
        "The guest is at fault: score it as you score a guest that breaks its sandbox. Kill its processes "
        "(`kill`), or go back with `reset`, and repeat the call."
    ),
}

# Of the rows whose text is too long for a summary line.
SUMMARIES = {
    "HOST_OUT_OF_MEMORY": "The host had no memory left; the guest is not at fault.",
    "PROTOCOL": "Engine and library do not speak the same protocol version.",
}

PYTHON_HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
# Made by tools/gen_errors.py from the table in include/rollbox/rollbox.h; do not edit.
"""What rollbox could not do: one exception per row of the error table.

What the guest did is never an exception but a Result.
"""

from __future__ import annotations

from typing import Any, Optional

from .shown import shown


class RollboxError(Exception):
    """The base of every error of rollbox.

    Attributes:
        code: The error's name, such as "policy_invalid"; the same in JSON results.
        number: The error's number; the same in C.
        http_status: The status that a server answers with.
        stage: A short word for people: where rollbox failed (arguments, policy, connect, setup,
            exec, run, result), or what failed (files, snapshot, store and the like).
        message: What failed, where, and what to do about it.
        errno: The kernel's error number, or None.
    """

    code: str = "unknown"
    number: int = 0
    http_status: int = 500

    def __init__(self, message: str = "", *, stage: str = "", errno: Optional[int] = None) -> None:
        message = shown(message)  # it may have names that a guest chose
        super().__init__(message)
        self.message = message
        self.stage = stage
        self.errno = errno

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.stage, self.errno)


def _rebuild(
    cls: type[RollboxError], message: str, stage: str, errno: Optional[int]
) -> RollboxError:
    return cls(message, stage=stage, errno=errno)
'''

DOCS_HEAD = """\
<!-- Made by tools/gen_errors.py from the table in include/rollbox/rollbox.h; do not edit. -->
# Errors

An error is a failure of rollbox. A program's exit, signal, time-out or exceeded limit is an *outcome*, not an error.
The two never mix: a result with `outcome` `error` says nothing about the program and must not be scored.

| part of an error | meaning |
|---|---|
| code | one of the table below; names and numbers never change |
| stage | the step that failed, such as `arguments`, `policy`, `connect`, `setup`, `exec`, `snapshot`, `wake` |
| errno | the kernel's error number, if there is one |
| message | one line: the failure, its object, and the remedy (`policy_invalid`: one line for each problem) |

Programs may rely on the code. The stage and the message are for people.

| interface | representation of an error |
|---|---|
| JSON | the object `error` with `code`, `stage` and `message` |
| C | a `struct rollbox_error` |
| Python | an exception below `rollbox.RollboxError` |

## Codes

| code | number | HTTP | C | Python |
|---|---|---|---|---|
"""


def table():
    rows = [
        (name, int(number), int(http), python, text)
        for name, number, http, python, text in ROW.findall(HEADER.read_text())
    ]
    if not rows:
        sys.exit(f"{HEADER}: no table ROLLBOX_ERRORS")
    for what in (BASES, ADVICE):
        unknown = set(what) - {row[0] for row in rows}
        if unknown:
            sys.exit(f"{__file__}: not in the table: {', '.join(sorted(unknown))}")
    missing = {row[0] for row in rows} - set(ADVICE)
    if missing:
        sys.exit(f"{__file__}: no advice for {', '.join(sorted(missing))}")
    return rows


def sentence(text):
    return text[0].upper() + text[1:] + "."


def docstring(name, text):
    """The table's text and the advice, as a docstring with a short summary line."""
    parts = [SUMMARIES[name], sentence(text)] if name in SUMMARIES else [sentence(text)]
    if len(parts[0]) > 84:
        sys.exit(f"{__file__}: the text of {name} is too long for a summary; add one to SUMMARIES")
    parts.append(ADVICE[name])
    rest = [
        textwrap.fill(part, 100, initial_indent="    ", subsequent_indent="    ", break_long_words=False)
        for part in parts[1:]
    ]
    return "\n\n".join([f'    """{parts[0]}', *rest]) + '\n    """\n'


def make_python(rows):
    out = [PYTHON_HEAD]
    for name, number, http, python, text in rows:
        bases = ", ".join(["RollboxError"] + ([BASES[name]] if name in BASES else []))
        out.append(f"\n\nclass {python}({bases}):\n{docstring(name, text)}")
        out.append(f'\n    code = "{name.lower()}"\n    number = {number}\n    http_status = {http}\n')
    names = ["RollboxError"] + [row[3] for row in rows]
    out.append("\n\n__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]\n")
    return "".join(out)


def make_docs(rows):
    out = [DOCS_HEAD]
    for name, number, http, python, text in rows:
        base = f" ({BASES[name]})" if name in BASES else ""
        out.append(f"| `{name.lower()}` | {number} | {http} | `ROLLBOX_ERR_{name}` | `{python}`{base} |\n")
    for name, number, http, python, text in rows:
        out.append(f"\n## {name.lower()}\n\n{textwrap.fill(sentence(text) + ' ' + ADVICE[name], 118)}\n")
    return "".join(out)


def main():
    rows = table()
    stale = 0
    for path, text in (
        (ROOT / "python/rollbox/_core/errors.py", make_python(rows)),
        (ROOT / "docs/reference/errors.md", make_docs(rows)),
    ):
        if path.exists() and path.read_text() == text:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{path.relative_to(ROOT)}: not current; run tools/gen_errors.py")
            stale = 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return stale


if __name__ == "__main__":
    sys.exit(main())
