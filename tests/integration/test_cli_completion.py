# SPDX-License-Identifier: Apache-2.0
"""Completion of names of sandboxes, snapshots, images and templates: in an interactive shell, with
an engine and a store."""

import os
import pty
import select
import shutil
import subprocess
import time

import pytest
from archives import entry, layer, oci_blobs, write_oci
from harness import TREE, binaries, callers

from cli_sessions import Shared


@pytest.fixture(scope="module")
def place():
    """An engine with sandboxes, snapshots and templates, and a store with images."""
    who = callers()[-1]
    directory = who.directory()
    engine = Shared(who, directory / "rollbox.sock", directory / "store")
    assert engine.started.returncode == 0, engine.started
    archive = write_oci(directory / "image.tar", oci_blobs([layer(entry("file", b"x"))]))
    who.own(archive)
    engine.ok("image", "import", "--name", "debian-12", archive)
    engine.ok("image", "import", "--name", "app:1.0", archive)
    engine.ok("create", "--name", "solver")
    engine.ok("snapshot", "solver", "--as", "before")
    engine.ok("exec", "solver", "touch", "/tmp/file")
    engine.ok("snapshot", "solver", "--as", "installed")
    engine.ok("create", "--name", "other")
    engine.ok("template", "create", "numbers")
    yield engine
    engine("engine", "stop")


LINES = [
    ("inspect sol", "solver"),
    ("fork solver --from ins", "installed"),
    ("fork --drop-processes solver --from bef", "before"),
    ("restore solver ins", "installed"),
    ("reset solver bef", "before"),
    ("diff solver before ins", "installed"),
    ("snapshot show solver ins", "installed"),
    ("export solver --from ins", "installed"),
    ("image show deb", "debian-12"),
    ("image rm app:", "app:1.0"),
    ("run --image deb", "debian-12"),
    ("run --template num", "numbers"),
    ("template rm num", "numbers"),
]
STARTS = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        f"bind 'set bell-style none'; source {TREE}/completions/rollbox.bash",
    ),
    "zsh": (["zsh", "-f", "-i"], "unsetopt beep; autoload -U compinit; compinit -u -D"),
}


class Interactive:
    """A shell at a terminal."""

    def __init__(self, engine, shell, directory):
        command, set_up = STARTS[shell]
        functions = directory / "functions"
        functions.mkdir()
        shutil.copy(TREE / "completions" / "rollbox.zsh", functions / "_rollbox")
        environment = engine.environment(
            PATH=f"{binaries()}:/usr/bin:/bin",
            TERM="dumb",
            HOME=str(directory),
            FPATH=f"{functions}:{fpath()}" if shell == "zsh" else "",
        )
        self.master, terminal = pty.openpty()
        self.process = engine.who.popen(
            command,
            env=environment,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        os.close(terminal)
        self.type(f"{set_up}; PS1='re''ady> '\n")
        self.read_until("ready> ")

    def type(self, text):
        os.write(self.master, text.encode())

    def read_until(self, text):
        shown, end = "", time.monotonic() + 60
        while text not in shown:
            assert select.select([self.master], [], [], max(0, end - time.monotonic()))[0], shown
            shown += os.read(self.master, 4096).decode(errors="replace")
        return shown

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


def fpath():
    return subprocess.run(
        ["zsh", "-f", "-c", "echo $FPATH"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("shell", [shell for shell in STARTS if shutil.which(shell)])
def test_tab_completes_names(place, shell):
    directory = place.who.directory()
    typing = Interactive(place, shell, directory)
    try:
        for line, wanted in LINES:
            typing.type(f"rollbox {line}\t")
            typing.read_until(f"rollbox {line[:line.rindex(' ')]} {wanted}")
            typing.type("\x15")
    finally:
        typing.close()


@pytest.mark.skipif(not shutil.which("fish"), reason="only where there is fish")
def test_fish_completes_names(place):
    directory = place.who.directory()
    for line, wanted in LINES:
        script = f"source {TREE}/completions/rollbox.fish; complete -C 'rollbox {line}'"
        done = place.who.call(
            "fish",
            "--no-config",
            "-c",
            script,
            env=place.environment(PATH=f"{binaries()}:/usr/bin:/bin", HOME=str(directory)),
        )
        assert wanted in [row.split("\t")[0] for row in done.stdout.decode().splitlines()], (line, done)


def test_quiet_lists_have_names_alone(place):
    assert place.ok("image", "ls", "-q").split("\n") == ["app:1.0", "debian-12"]
    assert place.ok("template", "ls", "-q") == "numbers"
    assert place.ok("tree", "-q", "solver").split("\n") == ["before", "installed"]
