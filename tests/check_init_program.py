#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""rollbox-init can be executed where there is nothing but itself: whichever C library it was linked with, it is in it.

Argument: the program. It asks for no interpreter, no library and no symbol, is relocated by nobody
but itself (IRELATIVE: glibc's choice among variants of a
function, made by its own start-up), no part of it, nor its stack, is both writable and executable,
and it lies below other programs.
"""

import re
import subprocess
import sys

from structure import finish

HIGHEST = 0x300000  # IMAGE_FRAMES
ITS_OWN = r"R_\w+_IRELATIV(E)?"


def readelf(option):
    return subprocess.run(
        ["readelf", "--wide", option, sys.argv[1]], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def main():
    problems = []
    lines = [line.split() for line in readelf("--program-headers")]
    lines = [words for words in lines if len(words) >= 8 and words[1].startswith("0x")]
    segments = {(words[0], "".join(words[6:-1])) for words in lines}
    kinds = {kind for kind, _ in segments}
    if "LOAD" not in kinds or "GNU_STACK" not in kinds:
        problems.append(f"{sys.argv[1]}: no program headers were understood, or one of the stack is missing")
    problems += [
        f"{sys.argv[1]}: has a segment {kind}, so it is not static at a fixed address"
        for kind in sorted(kinds & {"INTERP", "DYNAMIC"})
    ]
    problems += [
        f"{sys.argv[1]}: a segment {kind} is writable and executable"
        for kind, flags in sorted(segments)
        if "W" in flags and "E" in flags
    ]
    for line in readelf("--relocs"):
        words = line.split()
        if len(words) >= 3 and words[2].startswith("R_") and not re.fullmatch(ITS_OWN, words[2]):
            problems.append(f"{sys.argv[1]}: it would have to be relocated: {line.strip()}")
    # With glibc's (only that has such relocations) it holds none.
    end = max((int(words[2], 16) + int(words[5], 16) for words in lines if words[0] == "LOAD"), default=0)
    if end > HIGHEST and not any("IRELATIV" in line for line in readelf("--relocs")):
        problems.append(
            f"{sys.argv[1]}: ends at {end:#x}, and must be below {HIGHEST:#x} to hold other programs' memory (src/guest/restore/restore.c)"
        )
    for line in readelf("--symbols"):
        words = line.split()
        if len(words) >= 8 and words[6] == "UND" and words[4] != "WEAK":
            problems.append(f"{sys.argv[1]}: {words[7]} is not in it")
    finish(problems)


if __name__ == "__main__":
    main()
