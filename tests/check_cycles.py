#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The files of one directory of src/ must not call each other in a circle, nor must the directories
of src/. A sub-directory uses those below it alone.

Arguments: the static archives, and the objects with main(). The graph comes from `nm`: file A
points to file B if A uses a global
symbol that B defines, and a sub-directory to that of B. An edge is part of a circle if there is
also a way back from B to A. Such edges fail, except those listed in
tests/cycles.txt. That list only gets shorter: an entry whose edge is gone, or is no longer part of a circle, fails too.
With --shrink as first argument (`ninja -C build shrink-cycles`) the check removes these entries
from the list. With --show
(`ninja -C build show-cycles`) it prints the circles of each directory.
"""

import re
import subprocess
import sys

import check_layers
from structure import ROOT, finish

LIST = ROOT / "tests/cycles.txt"
MEMBER = re.compile(r"(?:.*[\[/:])?(src_[a-z0-9_]+\.c)\.o\]?:?$")


def symbols(archives, *options):
    """Pairs of a source file and a symbol, from nm's listing of archives and objects."""
    output = subprocess.run(
        ["nm", *options, "--format=posix", "-A", *archives],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for line in output.splitlines():
        where, _, rest = line.partition(": ")
        match = MEMBER.match(where)
        if match:
            yield match.group(1), rest.split()[0]


def source_names():
    """Meson's flat object name -> the source's path. The path itself may contain underscores, so the tree decides."""
    return {
        str(path.relative_to(ROOT)).replace("/", "_"): str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*.c")
    }


def top_of(path):
    return "/".join(path.split("/")[:2])


def read_graphs(archives):
    """ "src/X" -> {file -> set of the files below src/X that it uses}; and "src" -> {"src/X" -> set
    of the other directories}."""
    names = source_names()
    owners, anywhere, graphs, layers = {}, {}, {}, {}
    for source, symbol in symbols(archives, "--defined-only", "--extern-only"):
        if source in names:
            path = names[source]
            owners.setdefault((top_of(path), symbol), path)
            anywhere.setdefault(symbol, set()).add(top_of(path))
            graphs.setdefault(top_of(path), {}).setdefault(path, set())
    for source, symbol in symbols(archives, "--undefined-only"):
        if source in names:
            path = names[source]
            top = top_of(path)
            owner = owners.get((top, symbol))
            if owner and owner != path:
                graphs.setdefault(top, {}).setdefault(path, set()).add(owner)
            # A name that several directories have is not told apart: these are never in one program.
            elif not owner and len(anywhere.get(symbol, ())) == 1:
                layers.setdefault(top, set()).update(anywhere[symbol])
    graphs["src"] = {top: layers.get(top, set()) for top in graphs}
    return graphs


def directory_graph(graph):
    """The same of the directories that the files are in."""
    directories = {}
    for path, others in graph.items():
        directory = path.rpartition("/")[0]
        directories.setdefault(directory, set()).update({other.rpartition("/")[0] for other in others} - {directory})
    return directories


def upward_edges(top, graph):
    """Edges to a directory above: an archive links with those below it alone (check_layers.py has the order)."""
    order = check_layers.DIRECTORIES.get(top.partition("/")[2])
    if not order:
        return
    for path, others in sorted(graph.items()):
        for other in sorted(others):
            own, target = ("/".join(name.split("/")[2:-1]) for name in (path, other))
            if order.index(target) > order.index(own):
                yield f"{path} uses {other}, of a directory above it"


def components(graph):
    """Tarjan's algorithm: the sets of files that all reach each other, of two files or more."""
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
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(set(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def main():
    arguments = sys.argv[1:]
    mode = arguments.pop(0) if arguments and arguments[0] in ("--shrink", "--show") else ""
    lines = LIST.read_text().splitlines()
    allowed = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    edges, problems = set(), []
    for top, files in sorted(read_graphs(arguments).items()):
        problems += upward_edges(top, files)
        for graph in (files, directory_graph(files)):
            for circle in components(graph):
                inside = {f"{node} -> {other}" for node in circle for other in graph[node] & circle}
                edges |= inside
                if mode == "--show":
                    print(
                        f"{top}: a circle of {len(circle)} of {len(graph)}, {len(inside)} edges: {' '.join(sorted(circle))}"
                    )
    if mode == "--show":
        return
    if mode == "--shrink":
        LIST.write_text("".join(line + "\n" for line in lines if line.strip() not in allowed or line.strip() in edges))
        return
    problems += [
        f"{edge}: this edge closes a circle (`ninja -C build show-cycles` lists the circles)"
        for edge in sorted(edges - allowed)
    ]
    problems += [
        f"tests/cycles.txt: {edge} is listed but is no longer part of a circle (`ninja -C build shrink-cycles` removes it)"
        for edge in sorted(allowed - edges)
    ]
    finish(problems)


if __name__ == "__main__":
    main()
