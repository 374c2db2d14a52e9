#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The modules of python/rollbox import each other without a circle, and no private names.

Every import counts, also one inside a function or for type checkers alone. A private name is one
that begins with one underscore; private modules (`_session`) are shared within the package. What
aio/_calls.py has is what tools/gen_async.py makes.
"""

import ast
import subprocess
import sys

from structure import ROOT, finish, name, sources

PACKAGE = ROOT / "python/rollbox"


def module_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path, module, modules):
    """(line, imported module, name or None) of each import from the package."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name in modules:
                    yield node.lineno, one.name, None
        elif isinstance(node, ast.ImportFrom):
            base = (
                package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            )
            source = ".".join([*base, *([node.module] if node.module else [])])
            for one in node.names:
                if f"{source}.{one.name}" in modules:
                    yield node.lineno, f"{source}.{one.name}", None
                elif source in modules:
                    yield node.lineno, source, one.name


def circles(graph):
    """The strongly connected components of more than one module (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(part) > 1 or node in graph[node]:
                found.append(sorted(part))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def main():
    problems = []
    paths = {module_of(path): path for path in sources(".py", below=("python/rollbox",))}
    graph = {module: set() for module in paths}
    for module, path in paths.items():
        for line, source, imported in imports(path, module, paths):
            graph[module].add(source)
            where = f"{name(path)}:{line}"
            if imported and imported.startswith("_") and not imported.startswith("__"):
                problems.append(f"{where}: the private name {imported} of {source} is imported")
            if module.startswith("rollbox._core") and not source.startswith("rollbox._core"):
                problems.append(f"{where}: rollbox._core imports {source}, which is above it")
            if module.startswith("rollbox._") and source.startswith("rollbox.aio"):
                problems.append(f"{where}: {module} imports {source}, which is above it")
    problems += [
        f"python/rollbox: a circle of imports: {', '.join(circle)}" for circle in circles(graph)
    ]
    made = subprocess.run(
        [sys.executable, str(ROOT / "tools/gen_async.py"), "--check"],
        capture_output=True,
        text=True,
    )
    problems += made.stdout.splitlines() + made.stderr.splitlines()
    finish(problems)


if __name__ == "__main__":
    main()
