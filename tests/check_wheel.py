#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A wheel for release: its tag, its files, and which C library they need. Argument: the wheel."""
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FLOOR = (2, 28)
PROGRAMS = (
    "data/libexec/rollbox/rollbox-build",
    "data/libexec/rollbox/rollbox-egress",
    "data/libexec/rollbox/rollbox-egress-tls",
    "data/libexec/rollbox/rollbox-engine",
    "data/libexec/rollbox/rollbox-init",
    "data/libexec/rollbox/rollbox-store",
    "scripts/rollbox",
)


def needs(path):
    """The versions of glibc that an ELF file names, and the libraries it loads."""
    symbols = subprocess.run(
        ["objdump", "-T", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout
    header = subprocess.run(["objdump", "-p", str(path)], stdout=subprocess.PIPE, text=True, check=True).stdout
    versions = {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([0-9.]+)", symbols)}
    return versions, re.findall(r"NEEDED +(\S+)", header)


def main():
    wheel = Path(sys.argv[1])
    problems = []
    if not re.fullmatch(r"rollbox-[^-]+-py3-none-manylinux_2_28_x86_64\.whl", wheel.name):
        problems.append(f"{wheel.name}: the tag is to be py3-none-manylinux_2_28_x86_64")
    with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
        names = archive.namelist()
        data = wheel.name.split("-py3")[0] + ".data/"
        for program in PROGRAMS:
            if data + program not in names:
                problems.append(f"{program} is missing")
                continue
            if not archive.getinfo(data + program).external_attr >> 16 & 0o100:
                problems.append(f"{program} is not executable")
            loads = needs(Path(directory, data + program))[1]
            if loads:
                problems.append(f"{program} is not static: it needs {', '.join(loads)}")
        for name in names:
            if ".so" in Path(name).name:
                newer = sorted(version for version in needs(Path(directory, name))[0] if version > FLOOR)
                if newer:
                    problems.append(f"{name} needs glibc {'.'.join(map(str, newer[-1]))}")
        if data + "data/share/man/man1/rollbox.1" not in names:
            problems.append("the man pages are missing: install scdoc")
    for problem in problems:
        print(f"{wheel.name}: {problem}")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
