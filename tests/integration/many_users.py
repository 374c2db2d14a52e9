# SPDX-License-Identifier: Apache-2.0
"""Sandboxes of many users: a caller whose runs have them, for suites that hold in both kinds, and an image with users, programs and owners."""

import os

import pytest
from harness import Caller, callers


class ManyUsers(Caller):
    """Its runs have `--users many`, so their programs are the sandbox's root, with capabilities."""

    has_many_users = True

    def __repr__(self):
        return f"{self.name}-many"

    def popen(self, argv, **options):
        argv = [str(a) for a in argv]
        if os.path.basename(argv[0]) == "rollbox" and argv[1:2] == ["run"]:
            if "process" in argv:
                pytest.skip("isolation process has no users of its own")
            argv[2:2] = ["--users", "many"]
        return super().popen(argv, **options)


def many_callers():
    return [ManyUsers(c.name, c.uid) for c in callers() if c.uid == 0]


@pytest.fixture(params=callers() + many_callers(), ids=repr, scope="session")
def caller(request):
    """A caller with one user in each sandbox, or with many."""
    return request.param
