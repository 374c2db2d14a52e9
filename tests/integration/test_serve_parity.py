# SPDX-License-Identifier: Apache-2.0
"""The tests of Sandbox, unchanged, with an engine behind `rollbox serve` (remote_engine.py).

DIFFERENCES has the tests that fail so, each with the reason that docs/how-to/serve.md names. `make
soak` runs all tests of MODULES, `make check` some of them.
"""

import os
import re
import subprocess
import sys

import pytest
import rollbox
from harness import TREE
from rollbox._core.remote import _TRANSLATIONS

HERE = TREE / "tests/integration"
MODULES = (
    "test_python_session",
    "test_python_run",
    "test_python_async",
    "test_python_batch",
    "test_shell",
    "test_session_files",
    "test_session_states",
    "test_grade",
    "test_connect",
    "test_live_terminals",
    "test_retries",
    "test_snapshot_show",
)
DIFFERENCES = {
    "test_python_session.py::test_name_is_unique": "a name that is taken raises `Conflict`",
    "test_python_session.py::test_detached_session_needs_a_shared_engine": "need a server with `--state`",
    "test_python_run.py::test_kinds_of_arguments": "arguments are UTF-8",
    "test_python_run.py::test_big_stdin": "at most 16 MiB together",
    "test_snapshot_show.py::test_python_shows_and_verifies": "need the snapshot's name",
}
SAMPLE = (
    "test_python_session.py::test_arguments_of_exec",
    "test_python_session.py::test_fork_of_the_process",
    "test_shell.py::test_state_is_kept",
    "test_session_files.py::test_trees_come_back_as_they_went",
    "test_session_files.py::test_progress_and_max_bytes_end_a_transfer",
)


def run_remote(*names):
    """Runs tests with a server's engine: (the failed ones, how many passed, what pytest printed)."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--tb=short",
            "-p",
            "no:cacheprovider",
            "-p",
            "remote_engine",
            *names,
        ],
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
    )
    failed = {
        line.split(" ")[1].rpartition("/")[2].partition("[")[0]
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    }
    passed = re.search(r"(\d+) passed", done.stdout)
    return failed, int(passed.group(1)) if passed else 0, done.stdout + done.stderr


def test_some_tests_of_sandbox_pass_against_a_server():
    names = [name for name in SAMPLE if (HERE / name.partition("::")[0]).exists()]
    failed, passed, output = run_remote(*names)
    assert not failed and passed >= 5, output


def test_documented_differences_are_those_of_the_tests():
    page = (TREE / "docs/how-to/serve.md").read_text()
    for reason in DIFFERENCES.values():
        assert reason in page, reason


def test_table_of_the_page_has_every_method_of_sandbox():
    """Both directions: a method that is new, and a name that is gone, are named here."""
    page = (TREE / "docs/how-to/serve.md").read_text()
    table = page[page.index("| offered | not offered yet (raises `FeatureMissing`)") :]
    rows = [row.split("|")[1:3] for row in table.partition("\n\n")[0].splitlines()[2:]]
    offered, refused = ({*re.findall(r"`(\w+)`", " ".join(column))} for column in zip(*rows))
    methods = {name for name in dir(rollbox.Sandbox) if not name.startswith("_")}
    # Names that are no methods: functions of the package or an engine, and arguments.
    others = {"run_many", "fork_group", "work_fn", "record", "template"}
    assert offered == methods | others
    assert not refused


def test_each_call_of_a_sandbox_has_its_request():
    """What the package asks a Handle for is translated, or is the engine's and not a sandbox's."""
    asked = set()
    for path in (TREE / "python/rollbox").rglob("*.py"):
        asked.update(re.findall(r"\.(?:json|call)\(\s*\"(rollbox_\w+)\"", path.read_text()))
    of_engine = {"rollbox_engine_debug", "rollbox_engine_status", "rollbox_sandbox_list"}
    by_methods = {"rollbox_sandbox_stats", "rollbox_fork", "rollbox_file_read", "rollbox_claim"}
    assert asked - of_engine - by_methods <= set(_TRANSLATIONS), asked - set(_TRANSLATIONS)


@pytest.mark.timeout_s(1800)
def test_all_tests_of_sandbox_pass_against_a_server_but_the_documented_ones():
    if os.environ.get("ROLLBOX_SOAK") != "1":
        pytest.skip("takes minutes: make soak runs it")
    failed, passed, output = run_remote(*(f"{name}.py" for name in MODULES))
    assert failed == set(DIFFERENCES), output
    assert passed > 400
