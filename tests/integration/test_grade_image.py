# SPDX-License-Identifier: Apache-2.0
"""Grading in an image: nothing that the graded has put into its copy of the image runs for the verifier."""

import os
import subprocess

import pytest
from archives import busybox, configuration, entry, layer, oci_blobs, write_oci
from conftest import BUILD
from stores import engine, store  # noqa: F401

from rollbox import Policy, Sandbox

pytestmark = pytest.mark.filterwarnings("ignore::rollbox.UnsafeGrading")

APPLETS = "sh ls cat mkdir chmod cp mv rm touch cmp test".split()
PLANTED = "#!/bin/sh\ntouch /verify/ran\nexec /bin/busybox true\n"


@pytest.fixture
def box(engine, store, tmp_path):  # noqa: F811
    with open(busybox(), "rb") as program:
        whole = layer(
            entry("bin"),
            entry("bin/busybox", program.read(), mode=0o755),
            *(entry(f"bin/{name}", b"", link="busybox") for name in APPLETS),
            entry("tmp", mode=0o1777),
            entry("task"),
            entry("verify"),
        )
    config = configuration([whole])
    config["config"].update(User="root", WorkingDir="/task", Entrypoint=[])
    archive = write_oci(tmp_path / "image.tar", oci_blobs([whole], config=config))
    subprocess.run(
        [BUILD / "rollbox", "image", "import", "--name", "graded", archive],
        check=True,
        env={**os.environ, "ROLLBOX_STORE": str(store)},
        capture_output=True,
    )
    with Sandbox(Policy(image="graded", max_disk="64M", user="root"), engine=engine) as box:
        box.snapshot("task")
        yield box


def test_honest_output_passes_in_an_image(box):
    box.exec("echo 42 >/task/out", check=True)
    for outputs in (["/task/out"], None):
        assert box.grade({"/verify/expected": "42\n"}, "cmp /task/out /verify/expected", outputs=outputs).ok


@pytest.mark.parametrize("locked", [False, True], ids=["open", "locked"])
@pytest.mark.parametrize("program", ["chmod", "sh", "cmp", "bash"])
def test_replaced_image_program_does_not_run_in_the_verifier(box, program, locked):
    box.exec("echo 41 >/task/out", check=True)
    if locked:
        box.exec("chmod 500 /verify", check=True)
    if program != "bash":
        box.exec(["/bin/busybox", "rm", f"/bin/{program}"], check=True)
    box.write_file(f"/bin/{program}", PLANTED, mode=0o755)
    for outputs in (["/task/out"], None):
        result = box.grade(
            {"/verify/expected": "42\n"},
            "cmp /task/out /verify/expected",
            outputs=outputs,
            collect=["/verify/ran"],
        )
        assert not result.ok and result.exit_code == 1 and result.files == {}, result
        assert box.grade({}, "! test -e /verify/ran", outputs=outputs).ok


def test_removed_image_program_is_there_for_the_verifier(box):
    box.exec(["/bin/busybox", "sh", "-c", "echo 42 >/task/out; /bin/busybox rm /bin/cmp /bin/sh"], check=True)
    assert box.grade({"/verify/expected": "42\n"}, "cmp /task/out /verify/expected", outputs=["/task/out"]).ok
