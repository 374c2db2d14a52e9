#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""ruff and mypy --strict have nothing to say of python/rollbox and examples (pyproject.toml).

The two are in .venv-lint, in the versions that the Makefile names; `make check` and `make lint`
install them there.
"""

import os
import subprocess
import sys

from structure import ROOT, finish

TOOLS = ROOT / ".venv-lint/bin"
COMMANDS = [
    [TOOLS / "ruff", "check", "--no-cache", "--quiet", "--output-format=concise"],
    [TOOLS / "ruff", "format", "--no-cache", "--quiet", "--check", "python"],
    [TOOLS / "mypy", "--cache-dir", ROOT / "build/mypy-cache", "--no-error-summary"],
]
SKIPPED = 77


def main():
    if not (TOOLS / "mypy").exists():
        print("needs ruff and mypy: run make lint")
        sys.exit(1 if os.environ.get("ROLLBOX_MUST_WORK") == "1" else SKIPPED)
    problems = []
    for command in COMMANDS:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            problems += (done.stdout + done.stderr).splitlines()
    if problems:
        problems.append(
            "(make lint shows these; .venv-lint/bin/ruff format python lays out the code)"
        )
    finish(problems)


if __name__ == "__main__":
    main()
