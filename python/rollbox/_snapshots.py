# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a session, the tree that they make, and the differences between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from ._core.errors import InvalidArgument
from ._core.shown import shown


@dataclass(frozen=True)
class Snapshot:
    """A state of a sandbox: its private files, and its processes.

    Wherever a snapshot is wanted, its id or name will do.

    Attributes:
        id: Its id.
        name: Its name, or None.
        parent: The id of the snapshot before it, or None.
        bytes: Size of the files that its parent does not have.
        files: Number of the files that its parent does not have.
        live: Whether processes were paused for it.
        processes: Number of its processes.
        memory_bytes: Memory of its processes.
        kind: As of Node.
        automatic: Whether auto_snapshot took it.
    """

    id: str
    name: Optional[str] = None
    parent: Optional[str] = None
    bytes: int = 0
    files: int = 0
    live: bool = False
    processes: int = 0
    memory_bytes: int = 0
    kind: str = "files"
    automatic: bool = False


@dataclass(frozen=True)
class Node:
    """A snapshot in a `Tree`.

    Attributes:
        id: Its id.
        name: Its name, or None.
        parent: The id of the snapshot before it, or None.
        bytes: Size of the files that its parent does not have.
        files: Number of the files that its parent does not have.
        created: Seconds since 1970, or None.
        sandboxes: Names of the sandboxes that are based on it.
        processes: Number of its processes.
        memory_bytes: Memory of its processes.
        kind: "files" (no processes), "live" (an image of processes), "warm" (processes kept ready
            to be forked, which takes their memory once more) or "asleep" (in the store).
        disk_bytes: Size in the store.
        automatic: Whether auto_snapshot took it.
    """

    id: str
    name: Optional[str]
    parent: Optional[str]
    bytes: int
    files: int
    created: Optional[float]
    sandboxes: Sequence[str]
    processes: int = 0
    memory_bytes: int = 0
    kind: str = "files"
    disk_bytes: int = 0
    automatic: bool = False


SnapshotLike = Union[Snapshot, Node, str]
"""A snapshot, or its id or name."""


class Tree(list[Node]):
    """Related snapshots, parents before their children. str() draws the tree."""

    def __str__(self) -> str:
        ids = {node.id for node in self}
        below: dict[Optional[str], list[Node]] = {}
        for node in self:
            below.setdefault(node.parent if node.parent in ids else None, []).append(node)
        lines: list[str] = []
        # Depth first without recursion: chains of snapshots are thousands deep.
        todo = [(node, "", i == 0) for i, node in enumerate(reversed(below.get(None, [])))]
        while todo:
            node, indent, last = todo.pop()
            root = node.parent not in ids
            name = f'{node.id} "{node.name}"' if node.name else node.id
            boxes = "  <- " + ", ".join(node.sandboxes) if node.sandboxes else ""
            lines.append(
                f"{indent}{'' if root else '`-- ' if last else '|-- '}{name}  {_size(node.bytes)}, "
                f"{node.files} file{'' if node.files == 1 else 's'}{_ran(node)}{boxes}"
            )
            deeper = indent + ("" if root else "    " if last else "|   ")
            todo += [
                (child, deeper, i == 0) for i, child in enumerate(reversed(below.get(node.id, [])))
            ]
        return "\n".join(shown(line, "") for line in lines)


def _ran(node: Node) -> str:
    text = (
        f"; {node.processes} process{'es' if node.processes > 1 else ''}, "
        f"{_size(node.memory_bytes)}"
        if node.processes
        else ""
    )
    words = [node.kind] if node.kind != "files" else []
    words += [f"{_size(node.disk_bytes)} on disk"] if node.disk_bytes else []
    words += ["automatic"] if node.automatic else []
    return text + "".join(f", {word}" for word in words)


def _size(count: float) -> str:
    """A size as the command line shows it: "512", "1.2K", "34M"."""
    units = ["", "K", "M", "G", "T", "P", "E"]
    while count >= 999.5 and len(units) > 1:
        count /= 1024
        del units[0]
    return (
        f"{count:.0f}"
        if units[0] == ""
        else f"{count:.1f}{units[0]}"
        if count < 9.95
        else f"{count:.0f}{units[0]}"
    )


@dataclass(frozen=True)
class Change:
    """A difference between two states.

    Attributes:
        path: The path; bytes that are not UTF-8 are as of os.fsdecode.
        change: "A" (added), "M" (modified) or "D" (deleted).
        type: "file", "directory", "symlink" and so on.
        size: Bytes now, or None.
        old_size: Bytes before, or None.
        diff: The unified diff of a text file, if that was asked for.
    """

    path: str
    change: str
    type: Optional[str] = None
    size: Optional[int] = None
    old_size: Optional[int] = None
    diff: Optional[str] = None


def snapshot_id(snapshot: Optional[SnapshotLike]) -> Optional[bytes]:
    """The id or name of a snapshot as the library takes it. Raises InvalidArgument."""
    if snapshot is None:
        return None
    id = snapshot.id if isinstance(snapshot, (Snapshot, Node)) else snapshot
    if not isinstance(id, str) or not id or "\0" in id:
        raise InvalidArgument(
            f"a snapshot is a Snapshot, or its id or name, not {snapshot!r}", stage="arguments"
        )
    return id.encode("utf-8", "surrogateescape")


def from_row(cls: Any, row: Mapping[str, Any], **more: Any) -> Any:
    """A dataclass from the keys of a JSON object that it knows."""
    return cls(
        **{key: row[key] for key in cls.__dataclass_fields__ if key in row and key not in more},
        **more,
    )


def parents_first(rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Rows of snapshots, in depth-first order."""
    ids = {row["id"] for row in rows}
    below: dict[Optional[str], list[Mapping[str, Any]]] = {}
    for row in rows:
        parent = row.get("parent")
        below.setdefault(parent if parent in ids else None, []).append(row)
    todo = list(reversed(below.get(None, [])))
    while todo:
        row = todo.pop()
        yield row
        todo += reversed(below.get(row["id"], []))
