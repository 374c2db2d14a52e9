#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every public function, command, option, policy key and environment variable is in docs/ or man/;
what generates documents has been run."""

import re
import subprocess
import sys

from structure import ROOT, finish, name, sources

# Variables of the tests, the build and the examples are documented where those are.
DEVELOPERS = ["HACKING.md", "README.md"]


def read(*patterns):
    return "\n".join(path.read_text() for pattern in patterns for path in sorted(ROOT.glob(pattern)))


def main():
    problems = []
    manual = read("man/*.scd")
    users = manual + read("docs/**/*.md", "README.md")
    everybody = users + read(*DEVELOPERS)

    header = (ROOT / "include/rollbox/rollbox.h").read_text()
    for function in re.findall(r"^ROLLBOX_PUBLIC\b[^;]*?\b(rollbox_\w+)\(", header, re.MULTILINE):
        if not re.search(rf"\b{function}\b", users):
            problems.append(f"include/rollbox/rollbox.h: {function} is in no page of docs/ or man/")

    table = ROOT / "src/cli/options.c"
    if table.exists():
        text = table.read_text() + (ROOT / "src/cli/main.c").read_text()
        options = re.findall(r"\{ OPTION_\w+, [^,]+, \"([a-z0-9-]+)\"", text)
        commands = re.findall(r"^    \{ \"([a-z ]+)\", \"", text, re.MULTILINE)
        if not options or not commands:
            problems.append(
                f"{name(table)}, src/cli/main.c: no table of options or commands was found by {name(ROOT / 'tests/check_documented.py')}"
            )
        # scdoc: a literal - may be escaped
        plain = manual.replace("\\-", "-").replace("\\_", "_")
        for option in options:
            if not re.search(rf"--{option}(?![a-z0-9-])", plain):
                problems.append(f"{name(table)}: --{option} is in no page of man/")
        build = (ROOT / "man/meson.build").read_text()
        for command in commands:
            if not re.search(rf"\b{command}\b", plain):
                problems.append(f"{name(table)}: the command {command} is in no page of man/")
            # Of a pair of words the first one's page tells.
            first = command.split()[0]
            if first not in re.findall(r"rollbox-([a-z]+)\.1\.scd", build) + re.findall(
                r"'([a-z]+)'", build.partition("parts = {")[2]
            ):
                problems.append(f"{name(table)}: man rollbox-{first} finds no page; name it in man/meson.build")

    unescaped = everybody.replace("\\_", "_")
    seen = {}
    files = list(sources(".c", ".h", ".py", ".sh", ".build")) + [
        ROOT / "Makefile",
        ROOT / "tools/setup",
        ROOT / ".ci/run",
    ]
    for path in files:
        if path.exists() and path.name != "check_documented.py":
            text = path.read_text()
            for variable in re.findall(
                r"getenv\(\"(ROLLBOX_[A-Z_]+)\"\)|environ(?:\.get\(|\[)\"(ROLLBOX_[A-Z_]+)\"|\$[({]?(ROLLBOX_[A-Z_]+)|\b(?:export )(ROLLBOX_[A-Z_]+)",
                text,
            ):
                seen.setdefault(next(filter(None, variable)), path)
    for variable, path in sorted(seen.items()):
        if not re.search(rf"\b{variable}\b", unescaped):
            problems.append(f"{name(path)}: the environment variable {variable} is documented nowhere")

    generated = subprocess.run(
        [sys.executable, str(ROOT / "tools/gen_errors.py"), "--check"],
        capture_output=True,
        text=True,
    )
    problems += generated.stdout.splitlines() + generated.stderr.splitlines()
    finish(problems)


if __name__ == "__main__":
    main()
