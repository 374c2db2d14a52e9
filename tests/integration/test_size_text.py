# SPDX-License-Identifier: Apache-2.0
"""Python shows sizes as the command line does: the cases are the C test's."""

import re

from harness import TREE

from rollbox._snapshots import _size


def test_python_and_c_show_a_size_alike():
    cases = re.findall(r'\{ (\d+), "([^"]+)" \}', (TREE / "tests/unit/test_size_text.c").read_text())
    assert len(cases) > 10
    for size, text in cases:
        assert _size(int(size)) == text
