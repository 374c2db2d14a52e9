#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every source, test, fuzz target, man page and Python module is in the list of the meson.build
that builds or installs it; none is forgotten."""

from structure import ROOT, finish, name, sources

LISTS = [
    ("src", ".c", "meson.build", lambda path: name(path)),
    ("python/rollbox", ".py", "meson.build", lambda path: name(path)),
    ("man", ".scd", "man/meson.build", lambda path: path.name),
    (
        "tests/unit",
        ".c",
        "tests/meson.build",
        lambda path: path.stem.replace("test_", "") if path.stem != "test" else "unit/test.c",
    ),
    (
        "tests/fuzz",
        ".c",
        "tests/fuzz/meson.build",
        lambda path: path.stem.replace("fuzz_", "") if path.stem != "replay" else "replay.c",
    ),
]


def main():
    problems = []
    for below, suffix, build, entry in LISTS:
        text = (ROOT / build).read_text()
        for path in sources(suffix, below=(below,)):
            if f"'{entry(path)}'" not in text:
                problems.append(f"{build}: {name(path)} is missing")
    for path in sources(".c", below=("tests/fuzz",)):
        corpus = ROOT / "tests/fuzz/corpus" / path.stem.replace("fuzz_", "")
        if path.stem.startswith("fuzz_") and not (corpus.is_dir() and any(corpus.iterdir())):
            problems.append(f"{name(path)}: no corpus in {name(corpus)}")
    finish(problems)


if __name__ == "__main__":
    main()
