# SPDX-License-Identifier: Apache-2.0
"""The commands of README, HACKING, docs and man pages' EXAMPLES do what the page says.

The model: a page is run from top to bottom in a fresh directory, with a HOME, store and engine of
its own. Its blocks are fenced and
name their language:

    sh       one script
    console  lines that begin with `$ ` are commands; the lines below are what they print, where
    `...` stands for anything
    python   executed; all blocks of a page share their names, and may use await
    c        compiled and run, if it has a main

Other languages (json, yaml, text, ...) are not run. Every command has to succeed. The blocks of sh
and console share variables and the
current directory; `exec -it` gets a terminal, whose prompt is answered with `exit`. Comments above
a block, which readers do not see:

    <!-- not run: REASON -->    the block is left out, and the reason is that of a skipped test
    <!-- before: CODE -->       is run before the block, in its language (c: sh)
    <!-- numbers vary -->       each number of the output may be another one, of another width

HOME has an archive of a small image, image.tar. In man pages the comments are lines: `; not run:
REASON`, `; before: CODE`.
"""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import archives
import pytest
from harness import DEADLINE, TREE, binaries, skip

RUN = ("sh", "console", "python", "c")
# Reads JSON strings of code, one a line, and answers each with a line: null, or the traceback.
PYTHON = """
import ast, asyncio, inspect, json, os, sys, traceback, types
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
main = types.ModuleType("__main__")
sys.modules["__main__"] = main
for line in sys.stdin:
    where, code = json.loads(line)
    problem = None
    try:
        compiled = compile(code, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(compiled, main.__dict__)
        if inspect.iscoroutine(value):
            async def whole(value=value):
                await value
            asyncio.run(whole())
    except BaseException:
        problem = traceback.format_exc()
    print(json.dumps(problem), file=answers, flush=True)
"""


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str
    not_run: str
    before: str
    numbers_vary: bool

    @property
    def where(self):
        return f"{self.page}:{self.line}"


def pages():
    files = [
        TREE / "README.md",
        TREE / "HACKING.md",
        *sorted((TREE / "docs").rglob("*.md")),
        *sorted((TREE / "man").rglob("*.scd")),
    ]
    return [str(path.relative_to(TREE)) for path in files]


def block(page, line, language, lines, comments):
    not_run = next((comment[8:].strip() for comment in comments if comment.startswith("not run:")), "")
    before = "\n".join(comment[7:].strip() for comment in comments if comment.startswith("before:"))
    return Block(page, line, language, "\n".join(lines), not_run, before, "numbers vary" in comments)


def markdown_blocks(page):
    lines = (TREE / page).read_text().splitlines()
    comments, at, above = [], 0, ""
    while at < len(lines):
        line, begun = lines[at], at
        if line.startswith("```"):
            end = lines.index("```", at + 1)
            yield block(page, at + 1, line[3:].strip(), lines[at + 1 : end], comments)
            comments, at, above = [], end + 1, ""
        elif line.startswith("<!--"):
            while "-->" not in lines[at]:
                at += 1
            comments.append("\n".join(lines[begun : at + 1])[4:].split("-->")[0].strip())
            at += 1
        elif line.startswith("    ") and begun and not lines[begun - 1] and not re.match(r"[-*\d ]", above):
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at]):
                at += 1
            text = [inside[4:] for inside in lines[begun:at]]
            yield block(page, begun + 1, "console" if text[0].startswith("$ ") else "", text, comments)
            comments, above = [], ""
        else:
            if line:
                comments, above = [], line
            at += 1


def manual_blocks(page):
    comments, lines = [], []
    section = ""
    for number, line in enumerate([*(TREE / page).read_text().splitlines(), "# END"], 1):
        if line.startswith("; "):
            comments.append(line[2:].strip())
        elif line.startswith("# "):
            section = line[2:]
        elif section == "EXAMPLES" and line:
            lines.append(re.sub(r"\\(.)", r"\1", line.strip().removesuffix("++")))
        if not line and lines:
            yield block(page, number - len(lines), "sh", lines, comments)
            comments, lines = [], []


def blocks(page):
    return list(markdown_blocks(page) if page.endswith(".md") else manual_blocks(page))


ALL = [found for page in pages() for found in blocks(page)]


class Place:
    """Where the blocks of a page run."""

    def __init__(self, directory):
        self.directory = directory
        directory.chmod(0o755)  # as people's directories are: sandboxes of root have another user
        (directory / "build").symlink_to(binaries())
        (directory / "home").mkdir()
        archives.write_oci(
            directory / "home" / "image.tar",
            archives.oci_blobs([archives.layer(archives.entry("etc/name", b"an image"))]),
        )
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("XDG_")},
            "PATH": f"{binaries()}:{os.environ['PATH']}",
            "HOME": str(directory / "home"),
            "ROLLBOX_SOCKET": str(directory / "rollbox.sock"),
            "ROLLBOX_STORE": str(directory / "store"),
            "ROLLBOX_LIBRARY": str(binaries() / "librollbox.so"),
        }
        self.state = directory / "home" / ".state"
        self.state.write_text("")
        self.python = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.python:
            self.python.kill()
            self.python.communicate()
        stop = [binaries() / "rollbox", "engine", "stop"]
        subprocess.run(stop, env=self.environment, capture_output=True, timeout=DEADLINE)

    def shell(self, where, script, at_once="set -e"):
        """What a script prints, on both streams. Variables and the directory are as the last script
        left them, and `at_once` says what to do about a failure within."""
        keep = f'declare -p | grep -v "^declare -[a-zA-Z]*r" >{self.state}; declare -p PWD | sed "s/.*=/cd /" >>{self.state}'
        whole = f". {self.state} 2>/dev/null\ntrap '{keep}' EXIT\n{at_once}\n{script}\n"
        done = self.terminal(whole) if " -it " in script else self.pipes(whole)
        assert done.returncode == 0, f"{where}: status {done.returncode} of {script!r}:\n{done.stdout}"
        return done.stdout

    def pipes(self, script):
        return subprocess.run(
            ["bash", "-c", script],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE,
        )

    def terminal(self, script):
        ours, theirs = pty.openpty()
        shown, deadline = b"", time.monotonic() + DEADLINE
        with subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.directory,
            env=self.environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        ) as process:
            os.close(theirs)
            try:
                while True:
                    if not select.select([ours], [], [], max(0, deadline - time.monotonic()))[0]:
                        process.kill()
                        pytest.fail(f"no end of {script!r}: {shown!r}")
                    more = os.read(ours, 4096)
                    shown += more
                    if re.search(rb"[$#] (\x1b\[[0-9;?]*[a-z])*$", shown):
                        os.write(ours, b"exit\n")
            except OSError:                             # EIO: nobody has the terminal any more
                pass
            finally:
                os.close(ours)
        return subprocess.CompletedProcess(script, process.returncode, shown.decode(errors="replace"))

    def execute(self, where, code):
        if not self.python:
            self.python = subprocess.Popen([sys.executable, "-c", PYTHON], cwd=self.directory, env=self.environment,
                                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.python.stdin.write(json.dumps([where, code]) + "\n")
        self.python.stdin.flush()
        assert select.select([self.python.stdout], [], [], DEADLINE)[0], f"{where}: no end after {DEADLINE} s"
        problem = json.loads(self.python.stdout.readline())
        assert problem is None, f"{where}: {problem}"

    def compile(self, where, text):
        (self.directory / "example.c").write_text(text)
        flags = f"-I{TREE}/include -L{binaries()} -Wl,-rpath,{binaries()}"
        self.shell(
            where,
            f"${{CC:-gcc}} -std=gnu17 -Wall -Wextra -Werror {flags} -o example example.c -lrollbox && ./example",
        )


def dialogue(text):
    """(command, the lines below it), in order. A command that ends with a backslash continues on the next line."""
    found = []
    for line in text.splitlines():
        if found and found[-1][0].endswith("\\") and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line}", [])
        elif line.startswith("$ "):
            found.append((line[2:], []))
        elif line:
            found[-1][1].append(line)
    return found


def pattern(printed, numbers_vary):
    """A pattern for the output. If numbers vary, so do their units and the spaces that align them."""
    vary = (
        {
            r"\b[0-9a-f]{12}\b": r"\b[0-9a-f]{12}\b",
            r"\d+(?:\.\d+)?[KMG]?": r"\d+(?:\.\d+)?[KMG]?",
            r" +": r" +",
        }
        if numbers_vary
        else {}
    )
    vary = {r"\s*\.\.\.\s*": ".*", **vary}
    whole, text, at = "", "\n".join(printed), 0
    for found in re.finditer("|".join(f"({part})" for part in vary), text):
        whole += re.escape(text[at : found.start()]) + [*vary.values()][found.lastindex - 1]
        at = found.end()
    return whole + re.escape(text[at:])


def run(place, found):
    if found.before:
        (place.execute if found.language == "python" else place.shell)(f"before {found.where}", found.before)
    if found.language == "sh":
        place.shell(found.where, found.text)
    elif found.language == "python":
        place.execute(found.where, found.text)
    elif found.language == "c":
        place.compile(found.where, found.text)
    else:
        for command, printed in dialogue(found.text):
            output = place.shell(found.where, command, at_once="").rstrip("\n")
            if printed:
                expected = pattern(printed, found.numbers_vary)
                assert re.fullmatch(expected, output, re.DOTALL), f"{found.where}: {command!r} printed:\n{output}"


def test_every_block_names_its_language():
    nameless = [found.where for found in ALL if not found.language]
    assert not nameless, (
        f"fence these blocks, as ```console, ```sh, ```python, ```c, or ```text where nothing is to be run: {nameless}"
    )
    assert {found.language for found in ALL} >= set(RUN) and len(ALL) > 40


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in pages()
        if any(found.language in RUN and not found.not_run for found in blocks(page))
    ],
)
def test_page_commands_work(page, tmp_path):
    with Place(tmp_path) as place:
        for found in blocks(page):
            if found.language in RUN and not found.not_run:
                run(place, found)


@pytest.mark.parametrize("found", [found for found in ALL if found.not_run], ids=lambda found: found.where)
def test_skipped_block_has_a_reason(found):
    skip(f"{found.where}: {found.not_run}")
