#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""clang-format changes no C file. `make format` is the mend.

Both run check_format.py, so both use one version: layouts differ between versions.

    tests/check_format.py [--write]
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from structure import ROOT, finish, name, sources

PROGRAM = "clang-format-14"
FILES_AT_ONCE = 25
SKIPPED = 77


def run(paths, write):
    """The files of `paths` that clang-format changes, or would change."""
    before = [path.read_bytes() for path in paths]
    if write:
        subprocess.run([PROGRAM, "-i", "--style=file", *paths], cwd=ROOT, check=True)
        return [path for path, text in zip(paths, before) if path.read_bytes() != text]
    command = [PROGRAM, "--dry-run", "--style=file", *paths]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    # A warning names its file at the beginning of a line.
    named = {line.split(":", 1)[0] for line in done.stderr.splitlines() if "warning:" in line}
    return [path for path in paths if str(path) in named]


def main():
    write = sys.argv[1:] == ["--write"]
    if not shutil.which(PROGRAM):
        print(f"needs clang_format: no {PROGRAM} on this machine; install it by tools/setup format")
        excused = os.environ.get("ROLLBOX_MUST_WORK_EXCEPT", "").split(",")
        must_work = os.environ.get("ROLLBOX_MUST_WORK") == "1" and "clang_format" not in excused
        sys.exit(1 if write or must_work else SKIPPED)
    paths = list(sources(".c", ".h"))
    parts = [paths[at : at + FILES_AT_ONCE] for at in range(0, len(paths), FILES_AT_ONCE)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        changed = sum(threads.map(lambda part: run(part, write), parts), [])
    if write:
        print(*(f"formatted {name(path)}" for path in changed), sep="\n", end="\n" if changed else "")
        return
    finish([f"{name(path)}: clang-format changes it: run make format" for path in changed])


if __name__ == "__main__":
    main()
