# SPDX-License-Identifier: Apache-2.0
"""Denied and read-only paths below a grant stay so under every name."""

import os
import tempfile
from pathlib import Path

import pytest
from harness import caller, skip  # noqa: F401

# Also run with kernel features masked (ROLLBOX_KFEAT): where a promise has two layers, either must hold it.
pytestmark = pytest.mark.masked


@pytest.mark.parametrize("grant", ["--readable", "--shared", "--writable"])
def test_denied_path_is_not_readable_in_the_kept_grant(caller, grant):
    """A grant below /var/tmp is kept aside and mounted in each sandbox: its denied paths must not
    be open where it is kept."""
    top = caller.directory(0o755)
    (top / "private").mkdir()
    caller.own(top / "private")
    caller.write(top / "secret", "secret")
    caller.write(top / "private/file", "secret")
    result = caller.run(
        grant, top, "--denied", top / "secret", "--denied", top / "private", "--", "sh", "-c",
        "find / -xdev -name secret -o -path '*/private/file' 2>/dev/null; cat /.rollbox/*/secret /.rollbox/*/private/file",
    )  # fmt: skip
    assert "secret" not in result.stdout.replace(str(top / "secret"), ""), result.told
    assert "private/file" not in result.stdout, result.told


@pytest.mark.parametrize("kind", ["--denied", "--readable"])
@pytest.mark.parametrize("place", ["/var/tmp", "/opt"])
def test_parents_of_denied_paths_cannot_be_moved(caller, kind, place):
    """A parent directory of a denied path in a shared grant could be renamed.

    The path would be open under the new name in the next run, and replaced under the old one.
    """
    if place == "/opt" and not os.access("/opt", os.W_OK):
        skip("/opt cannot be written to")
    with tempfile.TemporaryDirectory(dir=place, prefix="rollbox-test-") as name:
        top = Path(name)
        (top / "a/b/c").mkdir(parents=True)
        caller.own(top, top / "a", top / "a/b", top / "a/b/c")
        caller.write(top / "a/b/c/file", "original")
        caller.write(top / "a/b/d", "also")
        flags = ["--shared", top, kind, top / "a/b/c/file", kind, top / "a/b/d"]
        moved = caller.python(
            f"import os\nos.chdir('{top}')\n"
            "for old, new in (('a', 'z'), ('a/b', 'z'), ('a/b', 'a/z'), ('a/b/c', 'a/b/z'), ('a/b/c/file', 'z'), ('a/b/d', 'a/b/z'), ('z', 'a/b/d')):\n"
            "    try: os.rename(old, new)\n    except OSError: pass\n"
            "for new in ('new', 'a/b/c/new'): open(new, 'w').write('fine')\n",
            *flags,
        )
        assert moved.exit_code == 0, moved.told
        assert sorted(str(p.relative_to(top)) for p in top.rglob("*")) == [
            "a",
            "a/b",
            "a/b/c",
            "a/b/c/file",
            "a/b/c/new",
            "a/b/d",
            "new",
        ], moved.told
        assert (top / "a/b/c/file").read_text() == "original" and (top / "a/b/c/new").read_text() == "fine"
