# SPDX-License-Identifier: Apache-2.0
"""The commands of the README do what it prints: each line that begins with `$` runs in a scratch directory, and what stands below it is what comes of it (`...`: anything)."""

import os
import pathlib
import re
import subprocess

from harness import DEADLINE, binaries

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"

# Lines that are not run, by a part of them, and why.
NOT_RUN = {
    "exec -it": "takes a terminal",
}


def commands(text):
    """(command, what is printed below it), in order."""
    found = []
    for line in text.splitlines():
        if line.startswith("    $ "):
            found.append((line[6:], []))
        elif line.startswith("    ") and found and found[-1][1] is not None:
            found[-1][1].append(line[4:])
        elif found:
            found.append((None, None))
    return [(command, printed) for command, printed in found if command]


def test_the_readmes_commands_do_what_it_says(tmp_path):
    (tmp_path / "build").symlink_to(binaries())
    (tmp_path / "Makefile").write_text("test:\n\t@echo tested\n")
    environment = {**os.environ, "ROLLBOX_SOCKET": str(tmp_path / "socket"), "ROLLBOX_STORE": str(tmp_path / "store")}
    listed = commands(README.read_text())
    assert len(listed) >= 10
    box = ""
    try:
        for command, printed in listed:
            if any(part in command for part in NOT_RUN):
                command = "; ".join(part for part in command.split("; ") if not any(word in part for word in NOT_RUN))
            done = subprocess.run(["bash", "-c", f'box={box}\n{command}\nstatus=$?; echo "box=$box" >box; exit $status'], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE)
            box = (tmp_path / "box").read_text().strip()[4:]
            assert done.returncode == 0, (command, done)
            if printed:
                pattern = "".join(".*" if part == "..." else re.escape(part) for part in re.split(r"\s*(\.\.\.)\s*", "\n".join(printed)))
                assert re.fullmatch(pattern, done.stdout.rstrip("\n"), re.DOTALL), (command, printed, done.stdout)
    finally:
        subprocess.run([binaries() / "rollbox", "engine", "stop"], env=environment, capture_output=True, timeout=DEADLINE)
