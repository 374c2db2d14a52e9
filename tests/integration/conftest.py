# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the command line's tests.

The model: a test knows the program only from outside. `cli(ARGUMENT...)` runs it to its end and
returns the CompletedProcess (bytes); `cli.start`
leaves it running; `cli.json` parses what it printed. Waiting is for a line, an end of file or a
process, never for a time.

ROLLBOX_BUILD names the build directory (default: build/ of this tree).
"""

import json
import os
import pathlib
import subprocess

import pytest

TREE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ROLLBOX_BUILD", TREE / "build"))
DEADLINE = 120


class Cli:
    def __init__(self, program):
        self.program = str(program)

    def __call__(self, *arguments, input=None, timeout=DEADLINE, env=None, **options):
        if input is None:
            options.setdefault("stdin", subprocess.DEVNULL)
        else:
            options["input"] = input
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        return subprocess.run(
            [self.program, *map(str, arguments)],
            timeout=timeout,
            env=self.environment(env),
            **options,
        )

    def start(self, *arguments, env=None, **options):
        for stream in ("stdin", "stdout", "stderr"):
            options.setdefault(stream, subprocess.PIPE)
        return subprocess.Popen([self.program, *map(str, arguments)], env=self.environment(env), **options)

    def json(self, *arguments, status=None, **options):
        done = self(*arguments, **options)
        if status is not None:
            assert done.returncode == status, done.stderr
        return json.loads(done.stdout)

    @staticmethod
    def environment(more):
        env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        env.update(more or {})
        return env


@pytest.fixture(scope="session")
def cli():
    program = BUILD / "rollbox"
    if not program.exists():
        pytest.fail(f"{program} is not built: run make")
    return Cli(program)


@pytest.fixture
def jobs(tmp_path):
    """Writes jobs (objects, or text as it is) as a JOBS file and returns its path."""

    def write(*items, name="jobs.jsonl"):
        path = tmp_path / name
        path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in items))
        return path

    return write
