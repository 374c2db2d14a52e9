#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes python/rollbox/aio/_calls.py: the calls of Sandbox that asyncio has in threads.

    tools/gen_async.py             writes it
    tools/gen_async.py --check     writes nothing; exit status 1 if it is not what it would write

Each method has the parameters, the annotations and the docstring of its synchronous method. The
methods of AsyncSandbox that wait in the loop itself are written by hand in aio/_sandbox.py
(BY_HAND).
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python/rollbox"
TARGET = PACKAGE / "aio/_calls.py"
# The classes that make up Sandbox, and the function that calls a method of theirs in a thread.
CLASSES = [
    ("_files.py", "SessionFiles", "run_in_loop_thread"),
    ("_session.py", "Session", "run_in_thread"),
    ("_sandbox.py", "Sandbox", "run_in_thread"),
]
BY_HAND = {
    "open", "close", "exec", "stream", "spawn", "process", "shell",
    "run", "run_code", "fork", "iter_fork", "clones",
}  # fmt: skip
HEAD = '''# SPDX-License-Identifier: Apache-2.0
# Made by tools/gen_async.py from the methods of Sandbox; do not edit.
"""AsyncCalls: the calls of AsyncSandbox that run in threads."""

from __future__ import annotations

import builtins
import socket
{abc}
from typing import {typing}

{imports}


class AsyncCalls:
    """Methods of Sandbox, to be awaited. Those that move files use a thread meanwhile."""

    _box: Sandbox[Any]
'''


def is_property(method):
    return any(isinstance(one, ast.Name) and one.id == "property" for one in method.decorator_list)


def methods(name, cls):
    """(method, source) of each public method of a class that is no property."""
    source = (PACKAGE / name).read_text()
    body = next(
        node.body
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == cls
    )
    for node in body:
        if (
            isinstance(node, ast.FunctionDef)
            and not node.name.startswith("_")
            and not is_property(node)
        ):
            yield node, source


def docstring(method, source):
    """The docstring as it is in the source, without the example, which does not await."""
    text = ast.get_source_segment(source, method.body[0])
    return re.sub(r"\n\n +Example:\n.*(?=\n +\"\"\"$)", "", text, flags=re.DOTALL)


def async_method(method, source, call):
    """The source of an asynchronous method."""
    arguments = method.args
    assert not arguments.posonlyargs and arguments.vararg is None and arguments.kwarg is None, (
        method.name
    )
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
    parameters, passed = ["self"], []

    def add(argument, default, prefix):
        text = f"{argument.arg}: {ast.get_source_segment(source, argument.annotation)}"
        if default is not None:
            text += f" = {ast.get_source_segment(source, default)}"
        parameters.append(text)
        passed.append(prefix + argument.arg)

    for argument, default in list(zip(arguments.args, defaults))[1:]:
        add(argument, default, "")
    if arguments.kwonlyargs:
        parameters.append("*")
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults):
            add(argument, default, f"{argument.arg}=")
    # The class has a method of the name `list`.
    returns = re.sub(
        r"(?<![\w.])list\[", "builtins.list[", ast.get_source_segment(source, method.returns)
    )
    lines = [""]
    if len(parameters) == 1:
        lines.append(f"    async def {method.name}(self) -> {returns}:")
    else:
        lines.append(f"    async def {method.name}(")
        lines += [
            f"        {parameter}," if parameter != "*" else "        *,"
            for parameter in parameters
        ]
        lines.append(f"    ) -> {returns}:")
    lines.append("        " + docstring(method, source))
    start = "        " + ("" if returns == "None" else "return ") + f"await {call}("
    one_line = start + ", ".join([f"self._box.{method.name}", *passed]) + ")"
    if len(one_line) <= 100:
        lines.append(one_line)
    else:
        lines.append(start)
        lines += [f"            {one}," for one in [f"self._box.{method.name}", *passed]]
        lines.append("        )")
    return "\n".join(lines) + "\n"


def imports_of(body):
    """{module: names} of what the generated class uses."""
    homes = {
        "run_in_loop_thread": "._threads",
        "run_in_thread": "._threads",
        "Sandbox": ".._sandbox",
        "Any": "typing",
    }
    for name, _, _ in CLASSES:
        for node in ast.parse((PACKAGE / name).read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.level:
                homes.update((one.name, f".{'.' * node.level}{node.module}") for one in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module in ("typing", "collections.abc"):
                homes.update((one.name, node.module) for one in node.names)
            elif isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, ".." + name[:-3])
            elif isinstance(node, ast.Assign):
                names = [getattr(one, "id", "") for one in node.targets]
                homes.update((one, ".." + name[:-3]) for one in names if one and one not in homes)
    tree = ast.parse("class AsyncCalls:\n" + body)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {"Any", "Sandbox"}
    groups = {}
    for name in used & set(homes):
        groups.setdefault(homes[name], set()).add(name)
    return groups


def ordered(names):
    """As ruff sorts them: constants, then classes, then the rest."""
    return sorted(
        names, key=lambda one: (0 if one.isupper() else 1 if one[0].isupper() else 2, one)
    )


def import_line(module, names):
    line = f"from {module} import {', '.join(ordered(names))}"
    if len(line) <= 100:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in ordered(names)) + ")"


def make():
    body = "".join(
        async_method(method, source, call)
        for name, cls, call in CLASSES
        for method, source in methods(name, cls)
        if method.name not in BY_HAND
    )
    groups = imports_of(body)
    relative = sorted(
        (one for one in groups if one.startswith(".")),
        key=lambda one: (len(one.lstrip(".")) - len(one), one),
    )
    return (
        HEAD.format(
            abc=import_line("collections.abc", groups["collections.abc"]),
            typing=", ".join(ordered(groups["typing"])),
            imports="\n".join(import_line(module, groups[module]) for module in relative),
        )
        + body
    )


def main():
    text = make()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
        return 0
    if TARGET.exists() and TARGET.read_text() == text:
        return 0
    print(f"{TARGET.relative_to(ROOT)}: not current; run tools/gen_async.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
