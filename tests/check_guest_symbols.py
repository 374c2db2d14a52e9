#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What the code that runs inside sandboxes, between clone and exec, calls from outside itself must
be in tests/guest_symbols.txt.

Arguments: the archives and objects of the guest layer. The list has the names that musl has;
glibc's "open64" is "open" there. A symbol that is listed
and no longer used is a problem too, so the list stays a true account.
"""

import subprocess
import sys

from structure import ROOT, finish

LIST = ROOT / "tests/guest_symbols.txt"


def symbols(*options):
    found = set()
    output = subprocess.run(
        ["nm", *options, "--format=posix", *sys.argv[1:]],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for line in output.splitlines():
        words = line.split()
        if len(words) >= 2 and not line.endswith(":"):
            found.add(words[0])
    return found


def main():
    listed = [line.partition("#") for line in LIST.read_text().splitlines()]
    allowed = {symbol.strip() for symbol, _, _ in listed} - {""}
    with_musl = {symbol.strip() for symbol, _, note in listed if note.strip() == "musl only"}
    used = symbols("--undefined-only") - symbols("--defined-only", "--extern-only")
    used = {symbol[:-2] if symbol.endswith("64") and symbol[:-2] in allowed else symbol for symbol in used}
    # What the compiler itself calls, depending on its version and its flags.
    used -= {"_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail", "memcpy", "memset", "memmove", "memcmp", "strlen"}
    # restore.c does nothing with glibc. What it refers to tells which of the two this is.
    uses_musl = bool(used & {"__ehdr_start"})
    problems = [
        f"tests/guest_symbols.txt: {symbol} is used by the guest layer but not allowed"
        for symbol in sorted(used - allowed)
    ]
    problems += [
        f"tests/guest_symbols.txt: {symbol} is listed but no longer used"
        for symbol in sorted(allowed - used)
        if symbol not in with_musl or uses_musl
    ]
    finish(problems)


if __name__ == "__main__":
    main()
