#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""librollbox exports what rollbox.h declares, and nothing else. Argument: the shared library."""

import re
import subprocess
import sys

from structure import ROOT, finish

HEADER = ROOT / "include/rollbox/rollbox.h"


def main():
    declared = set(re.findall(r"^ROLLBOX_PUBLIC\b[^;]*?\b(rollbox_\w+)\(", HEADER.read_text(), re.MULTILINE))
    output = subprocess.run(
        ["nm", "-D", "--defined-only", "--format=posix", sys.argv[1]],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    # Sanitizers and coverage put symbols of their own into every object.
    exported = {
        word
        for word in (line.split()[0].split("@")[0] for line in output.splitlines())
        if not word.startswith(("__asan", "__ubsan", "__odr_asan", "__sancov", "_init", "_fini"))
    }
    problems = [
        f"include/rollbox/rollbox.h: {symbol} is declared but {sys.argv[1]} does not have it"
        for symbol in sorted(declared - exported)
    ]
    problems += [
        f"{sys.argv[1]}: exports {symbol}, which rollbox.h does not declare"
        for symbol in sorted(exported - declared)
    ]
    finish(problems)


if __name__ == "__main__":
    main()
