# SPDX-License-Identifier: Apache-2.0
"""A guest that has the kernel hold memory for it which no limit counts is ended (out_of_memory),
and nobody else with it."""

import json
import os
import subprocess
import sys

import pytest
from harness import ORDINARY_UID, TREE, Caller, binaries, caller, guest, has_cgroup  # noqa: F401

SOAK = bool(os.environ.get("ROLLBOX_SOAK"))

# Charged to no control group, and to nobody but where there is a memory control group.
UNCHARGED = ["listing", "lock", "file_lock"]
UNGROUPED = ["mapping", "filter", "proc", "eventfd"]


def hoard(caller, kind, *, processes=8, memory="32M", flags=()):
    """The result of a sandbox that makes as much of a kind as it can, and would hold it for a minute."""
    program = guest("hoard")
    directory = caller.directory(0o755)
    policy = [
        "--memory",
        memory,
        "--net",
        "loopback",
        "--timeout",
        "60",
        "--readable",
        program.parent,
        "--writable",
        directory,
        "--env",
        f"HOARD_DIRECTORY={directory}",
        *flags,
    ]
    command = [binaries() / "rollbox", "run", "--json", *policy, "--", program, kind, str(processes), "50"]
    with caller.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        told = process.stdout.readline()        # stdin stays open meanwhile
        process.stdin.close()
    return json.loads(told)


@pytest.mark.parametrize("kind", UNCHARGED if SOAK else UNCHARGED[:2])
def test_uncharged_kernel_memory_ends_the_sandbox(caller, kind):
    """Lists of names that overlays keep for open directories, and locks."""
    assert hoard(caller, kind)["outcome"] == "out_of_memory"


@pytest.mark.parametrize("kind", UNGROUPED if SOAK else UNGROUPED[:2])
def test_kernel_memory_without_a_group_ends_the_sandbox(kind):
    """Mappings, filters of the guest's own, and open files count as its memory where no control group counts them."""
    if os.geteuid() not in (0, ORDINARY_UID):
        pytest.skip("needs root or the ordinary user of the tests")
    ordinary = Caller("user", ORDINARY_UID)
    if has_cgroup(ordinary.run("true")):
        pytest.skip("there is a memory control group here, which counts it")
    assert hoard(ordinary, kind, processes=16)["outcome"] == "out_of_memory"


@pytest.mark.parametrize("kind", ["opened", "mapped"] if SOAK else ["opened"])
def test_sandbox_has_its_share_of_open_files(caller, kind):
    """Not as many as all of its processes may have each, which are a tenth of what the kernel has
    for the host; those count that are only mapped."""
    assert hoard(caller, kind, processes=60, memory="512M")["outcome"] == "out_of_memory"


HEIRS = """
import os
files = [os.open('/dev/null', os.O_RDONLY) for _ in range(2000)]
for _ in range(60):
    if os.fork() == 0:
        os.read(0, 1)
        os._exit(0)
print('ready', flush=True)
os.read(0, 1)
"""


def test_inherited_descriptors_are_no_more_files(caller):
    """Sixty processes that have inherited the same 2,000 files, while another sandbox opens as many as it can."""
    with caller.start("--memory", "512M", "--", "python3", "-I", "-S", "-c", HEIRS) as started:
        assert started.line() == "ready"
        assert hoard(caller, "opened", processes=60, memory="512M")["outcome"] == "out_of_memory"
        assert started.finish()[0] == 0


BESIDE = """
import os, sys
from rollbox import Policy, Sandbox
directory, program = sys.argv[1:]
policy = Policy(max_memory='32M', fs_writable=[directory], fs_readable_extra=[os.path.dirname(program)], env={'HOARD_DIRECTORY': directory}, timeout=60)
honest = "import os\\nheld = [os.open(%r, os.O_RDONLY) for _ in range(3)]\\nprint('ready', flush=True)\\nos.read(0, 1)" % directory
with Sandbox(policy) as box:
    other = box.fork(1)[0]
    process = box.spawn(['python3', '-I', '-S', '-c', honest])
    assert process.stdout.readline() == b'ready\\n'
    print(other.exec(['sh', '-c', 'sleep 1000 | %s listing 8 50' % program]).outcome)
    process.stdin.close()
    print(process.wait().outcome)
"""


def test_sandbox_beside_a_hoarding_one_is_not_disturbed(caller):
    """It has open directories of an overlay, too, but fewer; the files of the one that is ended stay."""
    directory = caller.directory(0o755)
    environment = caller.environment(ROLLBOX_LIBRARY=str(binaries() / "librollbox.so"), PYTHONPATH=str(TREE / "python"))
    done = caller.call(sys.executable, "-c", BESIDE, directory, guest("hoard"), env=environment)
    assert done.stdout.split() == [b"out_of_memory", b"exit"], (done.stdout, done.stderr[-2000:])
