#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a file as a C array: embed.py NAME FILE OUTPUT.

A Python program is wrapped: `python3 -c` runs it in a namespace and with builtins of its own, and
`space` is that of `__main__`.
"""

import sys
from pathlib import Path

name, source, output = sys.argv[1:]
text = Path(source).read_text()
program = (
    "import sys; before = frozenset(sys.modules); del sys; "
    f"exec(compile({text!r}, '<string>', 'exec'), {{'__builtins__': dict(vars(__builtins__)), 'space': globals()}})"
)
data = (program if source.endswith(".py") else text).encode() + b"\0"
lines = [", ".join(map(str, data[at : at + 24])) for at in range(0, len(data), 24)]
Path(output).write_text(
    f"/* Made of {Path(source).name} by tools/embed.py. */\nstatic const char {name}[] = {{\n    "
    + ",\n    ".join(lines)
    + "\n};\n"
)
