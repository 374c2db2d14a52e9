# SPDX-License-Identifier: Apache-2.0
"""rollbox verify does not call equal what never ran."""

import json
import subprocess

import pytest

from harness import DEADLINE, binaries
from rollbox import CommandNotFound, Sandbox


def rollbox(*arguments):
    return subprocess.run(
        [binaries() / "rollbox", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


def test_record_whose_command_could_not_be_started_is_not_equal(tmp_path):
    path = str(tmp_path / "record")
    assert rollbox("record", "-o", path, "--", "no-such-program").returncode == 127
    for words in ((path,), (path, path), ("--json", path)):
        done = rollbox("verify", *words)
        assert done.returncode == 125 and "equal" not in done.stdout and "command_not_found" in done.stderr, done


def test_unstarted_commands_are_reported(tmp_path):
    path = str(tmp_path / "record")
    with Sandbox(record=path) as box:
        box.exec(["true"])
        with pytest.raises(CommandNotFound):
            box.exec(["no-such-program"])
    done = rollbox("verify", "--json", path)
    assert (
        done.returncode == 0
        and json.loads(done.stdout)["whole"] is False
        and "1 of the equal steps could not be started" in done.stderr
    ), done
