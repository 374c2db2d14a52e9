# SPDX-License-Identifier: Apache-2.0
"""What the structure checks (check_*.py) share: the tree, and how to end. Standard library only:
they run before anything is installed."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A build, a virtual environment, a virtual environment's packages: not ours.
FOREIGN = {".git", ".venv", "build", "__pycache__", ".pytest_cache", "subprojects", "node_modules"}


def sources(*suffixes, below=("include", "src", "python", "tests", "bench", "tools", "examples")):
    """Every file of the project with one of the suffixes, sorted."""
    for top in below:
        for path in sorted((ROOT / top).rglob("*")):
            parts = path.relative_to(ROOT).parts
            if (
                path.suffix in suffixes
                and path.is_file()
                and not any(part in FOREIGN or part.startswith("build") for part in parts)
            ):
                yield path


def name(path):
    return str(path.relative_to(ROOT))


def finish(problems):
    """Prints the problems, one a line, and exits with 1 if there are any."""
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)
