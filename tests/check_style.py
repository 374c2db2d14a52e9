#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What can be seen in one file: licence, length, open ends, functions that the house style rules out.

Some rules are broken by today's tree (style_rules.py): their counts, in tests/style_allowed.json,
may only shrink. `tests/check_style.py --update` writes lower counts down, and moves those of a file
that was renamed or split. It refuses to raise a count.
"""

import re
import subprocess
import sys

import style_rules
from structure import ROOT, finish, name, sources

MAX_LINES = 1500
MAX_TEST_LINES = 1200
# A helper that two test files use has a module (tests/integration/README.md).
TEST_IMPORT = re.compile(r"\s*(?:from|import) test_\w+(?: import .*)?$")
OPEN_END = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# Unbounded or locale-bound ones, and a shell where argv would do.
BANNED = re.compile(r"\b(strcpy|strcat|sprintf|vsprintf|gets|strtok|atoi|atol|atof|system|popen|alloca|strncpy)\s*\(")
FIXED_PATH = re.compile(r"\bchar\s+\w*path\w*\[(256|PATH_MAX|4096)\]")
HOME = re.compile(r"(?<![\w.])/(work|home/\w+|root)/")


def without_text(line):
    """A line of C without string literals and comments, roughly."""
    return re.sub(r'/\*.*?\*/|//.*|/\*.*|^\s*\*.*', "", re.sub(r'"(\\.|[^"\\])*"', '""', line))


def main():
    if sys.argv[1:] == ["--update"]:
        finish(style_rules.update())
    problems = list(style_rules.compare())
    for path in sources(".c", ".h", ".py", ".sh", ".build"):
        if path.name == "check_style.py":
            continue
        text = path.read_text()
        lines = text.splitlines()
        is_test = name(path).startswith("tests/integration/")
        most = MAX_TEST_LINES if is_test else MAX_LINES
        if len(lines) > most:
            problems.append(f"{name(path)}: {len(lines)} lines; over {most} is a design question")
        if lines and not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]):
            problems.append(f"{name(path)}:1: no SPDX-License-Identifier: Apache-2.0")
        if path.stem in ("utils", "util", "helpers", "misc", "common"):
            problems.append(f"{name(path)}: a helper lives with its topic")
        if text and not text.endswith("\n"):
            problems.append(f"{name(path)}: no newline at the end")
        for number, line in enumerate(lines, 1):
            where = f"{name(path)}:{number}"
            if is_test and path.suffix == ".py" and TEST_IMPORT.fullmatch(line.split("  #")[0]):
                problems.append(f"{where}: an import of another test file: {line.strip()}")
            if OPEN_END.search(line):
                problems.append(f"{where}: an open end: {line.strip()}")
            if line != line.rstrip():
                problems.append(f"{where}: white space at the end of the line")
            if path.suffix in (".c", ".h"):
                if "\t" in line:
                    problems.append(f"{where}: a tab")
            if path.suffix in (".c", ".h") and path.relative_to(ROOT).parts[0] in ("include", "src"):
                code = without_text(line)
                match = BANNED.search(code)
                if match:
                    problems.append(f"{where}: {match.group(1)} is not used here")
                if FIXED_PATH.search(code):
                    problems.append(f"{where}: a path of fixed length")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    for entry in tracked.stdout.split("\0") if tracked.returncode == 0 else []:
        path = ROOT / entry
        if (
            path.suffix
            in (".c", ".h", ".py", ".md", ".scd", ".build", ".toml", ".json", ".txt", ".sh")
            and path.is_file()
            and path.parts[-1] != "check_style.py"
        ):
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                match = HOME.search(line)
                if match and match.group(1).startswith("work"):
                    problems.append(f"{entry}:{number}: a path of one machine")
    finish(problems)


if __name__ == "__main__":
    main()
