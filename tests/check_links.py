#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every archive of src/ links with those of lower layers and lower directories alone, so a part
never needs one above it.

Arguments: the command of the compiler and its options, "--libraries" and the other libraries, "--archives" and the
archives as NAME=PATH. Each archive is linked as a whole, into a program without any code of its own.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from check_layers import DIRECTORIES, LEVEL
from structure import finish

# store_work is the part of src/store that rollbox-store and rollbox-build have, above the other
# one. rollbox-init has the guest
# layer, and the base layer compiled for it.
PARTS = {"store_work": ("store", 1), "guest_base": ("base", 0)}
IN_ONE_PROGRAM = {"store_work", "guest", "guest_base"}


def rank(name):
    """What orders an archive: the level of its layer, and the place of its directory."""
    layer, _, directory = name.partition("_")
    if name in PARTS:
        layer, place = PARTS[name]
        return LEVEL[layer], place
    if layer in DIRECTORIES and directory:
        return LEVEL[layer], DIRECTORIES[layer].index(directory)
    return LEVEL[name], 0


def is_below(name, other):
    """May the archive `name` use `other`? Layers of one level may not use each other."""
    if name == "guest" or other in IN_ONE_PROGRAM:
        return (name, other) in {("guest", "guest_base"), ("build", "store_work")}
    (level, place), (other_level, other_place) = rank(name), rank(other)
    is_same_layer = name.partition("_")[0] == other.partition("_")[0]
    return other_level < level or (is_same_layer and other_place < place)


def main():
    arguments = sys.argv[1:]
    at, then = arguments.index("--libraries"), arguments.index("--archives")
    compiler, libraries = arguments[:at], arguments[at + 1 : then]
    archives = dict(argument.split("=", 1) for argument in arguments[then + 1 :])
    problems = []
    with tempfile.TemporaryDirectory() as directory:
        empty = Path(directory) / "empty.c"
        empty.write_text("int main(void) { return 0; }\n")
        for name, path in archives.items():
            below = [other for other in archives if is_below(name, other)]
            below.sort(key=rank, reverse=True)
            whole = ["-Wl,--whole-archive", path, "-Wl,--no-whole-archive"]
            command = [*compiler, "-o", f"{directory}/{name}", str(empty), *whole]
            command += [*(archives[other] for other in below), "-Wl,--no-undefined", *libraries]
            done = subprocess.run(command, capture_output=True, text=True)
            missing = set(re.findall("undefined reference to (.*)", done.stderr))
            if done.returncode:
                why = ", ".join(sorted(missing)[:10]) or done.stderr[-500:]
                problems.append(f"{name} does not link with {', '.join(below)}: {why}")
    finish(problems)


if __name__ == "__main__":
    main()
