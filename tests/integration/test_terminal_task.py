# SPDX-License-Identifier: Apache-2.0
"""examples/terminal_task/run.py: a task in Harbor's form is built, forked, solved and graded, and
forks of the result have its servers. The task of the same directory installs packages from Debian's
mirror; `make integrations` runs it. examples/web_task needs no network."""

import os
import shutil
import sys

import pytest
from built_images import Builds
from harness import TREE, binaries, place
from many_users import plain_callers

sys.path.insert(0, str(TREE / "tests" / "compatibility"))


def run(caller, store, *flags, timeout=900):
    """The example, copied to where every user can read it."""
    examples = place() / "examples"
    if not examples.exists():
        shutil.copytree(TREE / "examples", examples)
    env = caller.environment(
        ROLLBOX_STORE=str(store),
        ROLLBOX_LIBRARY=str(binaries() / "librollbox.so"),
        PYTHONPATH=str(TREE / "python"),
    )
    program = examples / "terminal_task" / "run.py"
    done = caller.call(sys.executable, program, *flags, env=env, timeout=timeout)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert b"[1.0, 1.0, 1.0, 1.0, 1.0]" in done.stdout
    return done.stdout.decode()


@pytest.mark.skipif(os.geteuid() != 0, reason="it makes the image as root")
@pytest.mark.parametrize("caller", plain_callers(), ids=repr)
def test_web_task_is_built_forked_solved_and_graded(caller):
    builds = Builds(caller)
    told = run(caller, builds.store.path, "--task", place() / "examples/web_task", "--base", "base", "--memory", "64M")
    assert "forked the environment 100 times" in told and "forked the result 100 times" in told


@pytest.mark.skipif(
    not os.environ.get("ROLLBOX_SOAK"), reason="takes minutes; make integrations runs it"
)
@pytest.mark.skipif(os.geteuid() != 0, reason="it makes the image by debootstrap as root")
@pytest.mark.skipif(not shutil.which("debootstrap"), reason="needs debootstrap")
@pytest.mark.parametrize("caller", plain_callers(), ids=repr)
def test_terminal_task_is_built_forked_solved_and_graded(caller):
    """nginx, sshd and a git user with a hook that deploys."""
    import distribution

    home = caller.directory(0o755)
    distribution.oci_layout(distribution.debian(), home / "oci")
    env = caller.environment(ROLLBOX_STORE=str(home / "store"))
    words = ["image", "import", "--name", "debian", home / "oci"]
    assert caller.rollbox(*words, env=env, timeout=300).returncode == 0
    mirror = distribution.MIRROR.split("/")[2]
    told = run(caller, home / "store", "--mirror", mirror)
    assert "forked the environment 100 times" in told and "forked the result 100 times" in told
