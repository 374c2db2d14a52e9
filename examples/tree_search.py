#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A tree search over a running shell.

    tree_search.py                 solve a sliding puzzle by A*, each node a state of a sandbox
    tree_search.py --moves 24      a harder one

The environment is a bash that keeps its state where programs keep it: in variables, functions and
an open file. It cannot undo anything. A node is a snapshot of its sandbox, processes and files.
Expanding a node forks it once per possible move, makes the move in the fork, and keeps the result.
Nothing runs twice, and every node is reached in the same time at any depth.

In the end the best path is repeated from the beginning in a fresh sandbox. Exit status: 0 if that
ends where the search did, and if the winning shell's journal says the same. The shell wrote this
journal, a line per move, through a file that was opened before the first fork.
"""

import argparse
import heapq
import random
import sys
import time
from typing import NamedTuple

from rollbox import Policy, Sandbox, Shell

POLICY = Policy(max_memory="64M", max_processes=8, max_disk="8M")
MOVES = {"up": -3, "down": 3, "left": -1, "right": 1}
SOLVED = "1 2 3 4 5 6 7 8 0"

# The board is an array, the hole is 0, and there is no way back but the moves themselves.
WORLD = """
exec 7>> /tmp/journal
show() { echo "${board[*]}"; }
move() {
    local to=$((hole + $2))
    (( to < 0 || to > 8 || ($2 * $2 == 1 && to / 3 != hole / 3) )) && return 1
    board[hole]=${board[to]} board[to]=0 hole=$to
    echo "$1" >&7
}
"""


class Node(NamedTuple):
    cost: int  # moves made, and those that are needed at the least
    order: int
    snapshot: str
    path: tuple[str, ...]


def scrambled(moves: int, seed: int) -> list[int]:
    board, rng, last = [int(n) for n in SOLVED.split()], random.Random(seed), 0
    while moves:
        hole = board.index(0)
        step = rng.choice(
            [
                step
                for step in MOVES.values()
                if step != -last
                and 0 <= hole + step < 9
                and (step * step > 1 or (hole + step) // 3 == hole // 3)
            ]
        )
        board[hole], board[hole + step], last, moves = board[hole + step], 0, step, moves - 1
    return board


def distance(shown: str) -> int:
    """Moves that are needed at the least."""
    where = {tile: divmod(i, 3) for i, tile in enumerate(SOLVED.split())}
    return sum(
        abs(i // 3 - where[tile][0]) + abs(i % 3 - where[tile][1])
        for i, tile in enumerate(shown.split())
        if tile != "0"
    )


def begin(box: Sandbox, board: list[int]) -> Shell:
    shell = box.shell()
    shell.run(f"{WORLD}\nboard=({' '.join(map(str, board))}) hole={board.index(0)}", check=True)
    return shell


def search(board: list[int]) -> tuple[tuple[str, ...], str, dict[str, int]]:
    """The best path, the journal of the shell that went it, and what it took."""
    counts = {"nodes": 0, "expanded": 0, "deepest": 0}
    with Sandbox(POLICY) as box:
        shell = begin(box, board)
        assert shell.id is not None
        seen = {" ".join(map(str, board)): 0}
        open_nodes = [Node(0, 0, box.snapshot().id, ())]
        while open_nodes:
            node = heapq.heappop(open_nodes)
            kids = box.fork(len(MOVES), snapshot=node.snapshot)
            counts["expanded"] += 1
            for kid, (name, step) in zip(kids, MOVES.items()):
                with kid, kid.shell(shell.id) as live:
                    moved = live.run(f"move {name} {step} && show", text=True)
                    counts["nodes"] += 1
                    shown, path = moved.stdout.strip(), (*node.path, name)
                    if moved.exit_code or seen.get(shown, len(path) + 1) <= len(path):
                        continue
                    seen[shown] = len(path)
                    counts["deepest"] = max(counts["deepest"], len(path))
                    if shown == SOLVED:
                        journal = kid.read_file("/tmp/journal").decode()
                        for other in kids:
                            other.close()
                        return path, journal, counts
                    heapq.heappush(
                        open_nodes,
                        Node(len(path) + distance(shown), counts["nodes"], kid.snapshot().id, path),
                    )
            box.drop(node.snapshot)  # nobody comes back to it, and its memory is given back
    raise SystemExit("the puzzle has no solution")


def replayed(board: list[int], path: tuple[str, ...]) -> tuple[str, str]:
    """Where the path leads in a sandbox of its own, and its journal."""
    with Sandbox(POLICY) as box, begin(box, board) as shell:
        for name in path:
            shell.run(f"move {name} {MOVES[name]}", check=True)
        return shell.run("show", text=True).stdout.strip(), box.read_file("/tmp/journal").decode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--moves", type=int, default=60, help="moves that the puzzle is scrambled by (default 60)"
    )
    parser.add_argument("--seed", type=int, default=4)
    options = parser.parse_args()

    board = scrambled(options.moves, options.seed)
    begun = time.monotonic()
    path, journal, counts = search(board)
    took = time.monotonic() - begun
    shown, again = replayed(board, path)
    right = shown == SOLVED and journal == again and journal.split() == list(path)
    print(f"{' '.join(map(str, board))}: solved in {len(path)} moves: {' '.join(path)}")
    print(
        f"{counts['nodes']} nodes ({counts['expanded']} expanded, {counts['deepest']} deep) in "
        f"{took:.1f} s, {took / counts['nodes'] * 1000:.1f} ms each"
    )
    print(
        f"replayed: {shown}, journal of {len(journal.split())} moves: "
        f"{'verified' if right else 'NOT THE SAME'}"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
