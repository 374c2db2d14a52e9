# SPDX-License-Identifier: Apache-2.0
"""A build that is killed, or finds the disk full, leaves no half of a step, and the cache intact."""

import os
import signal
import subprocess

import pytest
from built_images import Builds
from harness import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it fills a file system of its own")

STEPS = """\
FROM base
WORKDIR /w
COPY a .
RUN cat a a > b
RUN --mount=source=a,target=/m/a --mount=type=tmpfs,target=/t cat b b > c && cp /m/a /t/
ADD x.tar /w/
LABEL a=b
"""


@pytest.fixture
def builds():
    return Builds()


def context_of(builds):
    context = builds.context(STEPS, {"a": "x" * 100000})
    subprocess.run(["tar", "-cf", context / "x.tar", "-C", context, "a"], check=True)
    return context


def check_sound(builds, context):
    """The store has no damage, and a build without the fault succeeds."""
    builds.store.json("store", "gc")
    assert builds.store.json("store", "fsck")["damaged"] == []
    builds.build(context)
    assert builds.run("wc -c < /w/c; ls /w; ls -d /m /t 2>/dev/null; true") == "400000\na\nb\nc\n"
    assert all(row["cached"] for row in builds.build(context)["steps"][1:])
    builds.store.clean()


@pytest.mark.parametrize(
    "fault",
    ["work_made", "step_written", "step_exported", "meta_written", "layer_published", "manifest_written", "manifest_published"],
)  # fmt: skip
def test_a_killed_build_leaves_no_half_of_a_step(builds, fault):
    """The build is killed at the same point of each step in turn: each try comes one step further, or to the end."""
    context = context_of(builds)
    killed = 0
    for _ in range(16):
        done = builds.store.call(
            "image", "build", "-t", "made", context, env={"ROLLBOX_FAULT": fault}
        )
        if done.returncode == 0:
            break
        killed += 1
        assert done.returncode in (-signal.SIGKILL, 125, 137), done
        assert builds.store.json("store", "fsck")["damaged"] == []
    assert killed
    check_sound(builds, context)


def test_a_build_that_is_killed_in_a_command_leaves_nothing(builds):
    context = builds.context("FROM base\nRUN echo started > /dev/stderr; while :; do echo x >> /grows; done\n")
    env = builds.store.caller.environment(ROLLBOX_STORE=str(builds.store.path))
    process = builds.store.caller.popen(
        [builds.program(), "image", "build", "--progress=plain", context], env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )  # fmt: skip
    for line in process.stderr:
        if b"started" in line and b"RUN" not in line:
            break
    process.kill()
    process.wait()
    (context / "Dockerfile").write_text("FROM base\nRUN echo good > /good\n")
    builds.build(context)
    assert builds.run("cat /good; test -e /grows || echo none") == "good\nnone\n"
    until(lambda: not os.listdir(builds.store.path / "boxes") if (builds.store.path / "boxes").exists() else True)
    builds.store.clean()


def test_full_disk_fails_with_a_clear_error(builds):
    """The store lies on a small file system, which a step fills."""
    place = builds.store.path
    image = builds.store.home / "disk"
    with open(image, "wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    moved = builds.store.home / "moved"
    os.rename(place, moved)
    place.mkdir()
    made = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"needs loop: {made.stderr.decode()}")
    try:
        os.chmod(place, 0o700)
        os.rmdir(place / "lost+found")
        subprocess.run(["cp", "-a", f"{moved}/.", place], check=True)
        error = builds.refused("FROM base\nRUN head -c 90000000 /dev/zero > /big\n")
        assert error["message"].startswith("Dockerfile:2: "), error
        error = builds.refused("FROM base\nCOPY big /\n", {"big": b"x" * (70 << 20)})
        assert error["code"] == "resource_exhausted" and "No space left" in error["message"], error
        context = context_of(builds)
        check_sound(builds, context)
    finally:
        subprocess.run(["umount", "-l", place], check=True)
