# SPDX-License-Identifier: Apache-2.0
"""tests/compatibility/run.py, which makes a table of other packages' suites, on a tiny suite and on what runners print."""

import importlib.util
import pathlib
import sys

import pytest

from harness import caller  # noqa: F401

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "compatibility" / "run.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("compatibility_run", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_counts_of_pytest_and_unittest_are_read(script):
    assert script.counts("..F\n1 failed, 2 passed, 3 warnings in 0.10s\n") == "1 failed, 2 passed"
    assert script.counts("Ran 5 tests in 0.1s\n\nFAILED (failures=1, skipped=2)\n") == "1 failures, 5 ran, 2 skipped"
    assert script.counts("Traceback\n") is None


@pytest.mark.parametrize("way", ["sandbox", "fork", "woken", "virtual"])
def test_a_tiny_suite_has_the_counts_that_it_has_bare(script, way, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "CACHE", tmp_path)
    pytest.importorskip("numpy", reason="numpy's wheel holds the tiny suite")
    argv = ["pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "--pyargs", "numpy.lib.tests.test__version"]
    bare = script.outcome("bare", sys.executable, argv)
    assert bare.endswith(" passed") and script.outcome(way, sys.executable, argv) == bare
