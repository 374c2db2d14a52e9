#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A layer includes its own and lower layers only (see HACKING.md); what it includes from src/ is
named from there ("base/buf.h"), and exists."""

import re
import sys

from structure import ROOT, finish, name, sources

LEVEL = {
    "base": 0,
    "sys": 1,
    "loop": 1,
    "image": 1,
    "policy": 2,
    "trace": 2,
    "guest": 2,
    "net": 3,
    "store": 3,
    "dump": 3,
    "record": 3,
    "engine": 4,
    "egress_tls": 4,
    "egress": 4,
    "client": 5,
    "build": 6,
    "cli": 6,
    "http_client": 6,
    "otlp": 6,
    "serve": 6,
}

# The guest carries out what the policy compiled: the plan's format is the one thing that two layers of one level share.
ALSO = {"guest": {"policy/plan.h"}}

# The directories of a layer that has any, lowest first: a file includes from its own and those
# before it. The layer's own directory is
# the lowest, and all that other layers may include from.
DIRECTORIES = {
    "guest": ["", "det", "layers", "template", "restore", "init", "launcher"],
    "engine": [
        "", "core", "network", "store_job", "box", "command", "pool", "files", "checkpoint", "snapshot", "run", "session", "ops", "hibernate",
        "record", "server", "main",
    ],
}  # fmt: skip

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


def directory_problem(layer, parts, wanted):
    """What is wrong with including `wanted`, of a layer with directories, from the file at `parts`
    (below src/); None: nothing."""
    other, *middle = wanted.split("/")[:-1]
    if other not in DIRECTORIES:
        return None
    target = "/".join(middle)
    if target not in DIRECTORIES[other]:
        return f"src/{other}/{target} is not a directory that {__file__} knows"
    if other != layer:
        return f"{wanted} is not for other layers: they include from src/{other} alone" if target else None
    own = "/".join(parts[1:-1])
    order = DIRECTORIES[other]
    if own not in order:
        return f"src/{layer}/{own} is not a directory that {__file__} knows"
    return (
        f"src/{layer}/{own} includes {wanted}, of a directory above it"
        if order.index(target) > order.index(own)
        else None
    )


def main():
    problems = []
    for path in sources(".c", ".h", below=("src",)):
        parts = path.relative_to(ROOT / "src").parts
        layer = parts[0]
        if layer not in LEVEL:
            problems.append(f"{name(path)}: src/{layer} is not a layer that {__file__} knows")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            wanted = match.group(1)
            other = wanted.split("/")[0]
            if not (ROOT / "src" / wanted).is_file():
                problems.append(
                    f'{name(path)}:{number}: src/{wanted} does not exist (included files are named from src/)'
                )
            elif other != layer and LEVEL.get(other, 99) >= LEVEL[layer] and wanted not in ALSO.get(layer, ()):
                problems.append(
                    f"{name(path)}:{number}: {layer} (L{LEVEL[layer]}) includes {wanted} (L{LEVEL.get(other, 99)})"
                )
            elif problem := directory_problem(layer, parts, wanted):
                problems.append(f"{name(path)}:{number}: {problem}")
    for path in sources(".h", below=("include",)):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if INCLUDE.match(line):
                problems.append(f"{name(path)}:{number}: an installed header includes a file of the project")
    finish(problems)


if __name__ == "__main__":
    main()
