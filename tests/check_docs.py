#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Pages that people can read: their length, links that lead somewhere, and the sentences of README.

A page of docs/ has at most 250 lines. A line has at most 120 columns, except rows of tables and comments that
readers do not see. README has at most 150 lines, and no sentence of more than 30 words. Every link to a file of
the project, and to a heading, exists; so does every page that a source file or man page names. Lists of known
exceptions shrink: an entry that is no longer needed is an error.
"""

import re
import subprocess
import sys

from structure import ROOT, finish, name, sources

MAX_LINES = 250
MAX_COLUMNS = 120
README_LINES = 150
README_WORDS = 30
PROJECT = [
    "README.md",
    "HACKING.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "examples/README.md",
    "bench/README.md",
]
# Pages written before these rules: rewrite them, and remove their line.
TOO_LONG: set = set()
TOO_WIDE: set = set()


def prose(text):
    """Lines that are neither code nor a comment, with their numbers."""
    fence, comment = False, False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fence = not fence
        elif line.lstrip().startswith("<!--") or comment:
            comment = "-->" not in line
        elif not fence:
            yield number, line


def anchors(path):
    """The fragments of a page's headings, as GitHub makes them."""
    found = set()
    for _, line in prose(path.read_text()):
        if line.startswith("#"):
            slug = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
            while slug in found:
                slug += "-1"
            found.add(slug)
    return found


def check_links(path, problems):
    for number, line in prose(path.read_text()):
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, fragment = target.partition("#")
            place = path if not file else path.parent / file
            if not place.exists():
                problems.append(f"{name(path)}:{number}: the link to {target} leads nowhere")
            elif fragment and place.suffix == ".md" and fragment not in anchors(place):
                problems.append(f"{name(path)}:{number}: {file or 'this page'} has no heading #{fragment}")


def check_size(path, problems):
    text = path.read_text()
    lines = len(text.splitlines())
    if (lines > MAX_LINES) != (name(path) in TOO_LONG):
        known = name(path) in TOO_LONG
        problems.append(
            f"{name(path)}: {lines} lines; "
            + ("remove it from TOO_LONG" if known else f"split it: at most {MAX_LINES}")
        )
    wide, comment = [], False
    for number, line in enumerate(text.splitlines(), 1):
        comment = comment or line.startswith("<!--")
        if len(line) > MAX_COLUMNS and not comment and not line.lstrip().startswith("|"):
            wide.append(number)
        comment = comment and "-->" not in line
    if bool(wide) != (name(path) in TOO_WIDE):
        known = name(path) in TOO_WIDE
        problems.append(
            f"{name(path)}"
            + (": remove it from TOO_WIDE" if known else f":{wide[0]}: over {MAX_COLUMNS} columns")
        )


def check_readme(problems):
    path = ROOT / "README.md"
    text = path.read_text()
    if len(text.splitlines()) > README_LINES:
        problems.append(f"README.md: {len(text.splitlines())} lines; at most {README_LINES}")
    paragraph, begun = [], 0
    for number, line in [*prose(text), (0, "")]:
        whole = not line.strip() or line.startswith(("#", "|", "- ", "!["))
        if whole and paragraph:
            for sentence in re.split(r"(?<=[.!?:])\s+", " ".join(paragraph)):
                if len(sentence.split()) > README_WORDS:
                    problems.append(
                        f"README.md:{begun}: a sentence of {len(sentence.split())} words: {sentence[:60]}..."
                    )
            paragraph = []
        if line.strip() and not line.startswith(("#", "|", "![")):
            begun = begun if paragraph else number
            paragraph.append(line.removeprefix("- "))


def check_mentions(problems):
    """Pages that sources, man pages and other files name."""
    files = [*sources(".c", ".h", ".py", ".build", ".sh"), *sorted((ROOT / "man").glob("*.scd")), ROOT / "Makefile"]
    for path in files:
        for page in sorted(
            set(
                re.findall(
                    r"(?<![\w/])docs/[\w/.-]+\.(?:md|svg|json)",
                    path.read_text().replace("_docs/", "docs/"),
                )
            )
        ):
            if not (ROOT / page).exists():
                problems.append(f"{name(path)}: there is no {page}")


def main():
    problems = []
    pages = sorted((ROOT / "docs").rglob("*.md"))
    for path in pages:
        check_size(path, problems)
    for path in [*pages, *(ROOT / page for page in PROJECT)]:
        if path.exists() and name(path) != "CHANGELOG.md":
            check_links(path, problems)
    check_readme(problems)
    check_mentions(problems)
    chart = subprocess.run(
        [sys.executable, "-B", str(ROOT / "bench/chart.py"), "--check"],
        capture_output=True,
        text=True,
    )
    problems += chart.stdout.splitlines() + chart.stderr.splitlines()
    finish(problems)


if __name__ == "__main__":
    main()
