# SPDX-License-Identifier: Apache-2.0
"""Graders with a user that the agent's user cannot touch: its processes, its files, its home."""

import asyncio
import os

import pytest
from archives import busybox, configuration, entry, layer, oci_blobs, write_oci
from many_users import ManyUsers
from stores import engine, store  # noqa: F401

from rollbox import AsyncSandbox, InvalidArgument, Policy, Sandbox

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: images with owners are made")

APPLETS = "sh ls cat mkdir chmod chown cp mv rm touch cmp test echo kill su id sleep env stat grep".split()
PASSWD = (
    b"root::0:0:root:/root:/bin/sh\nagent:x:1000:1000::/task:/bin/sh\ngrader:x:1001:1001::/grade:/bin/sh\n"
)
GROUP = b"root:x:0:\nagent:x:1000:\ngrader:x:1001:\nstaff:x:50:\n"
POLICY = {"image": "users", "users": "many", "user": "agent", "max_disk": "64M"}


@pytest.fixture
def image(engine, store, tmp_path):  # noqa: F811
    with open(busybox(), "rb") as program:
        whole = layer(
            entry("bin"),
            entry("bin/busybox", program.read(), mode=0o755),
            *(entry(f"bin/{name}", b"", link="busybox") for name in APPLETS),
            entry("etc"),
            entry("etc/passwd", PASSWD),
            entry("etc/group", GROUP),
            entry("tmp", mode=0o1777),
            entry("task", uid=1000, gid=1000),
        )
    config = configuration([whole])
    config["config"].update(WorkingDir="/task", Env=["PATH=/bin"], Entrypoint=[])
    archive = write_oci(tmp_path / "image.tar", oci_blobs([whole], config=config))
    ManyUsers("root", 0).rollbox(
        "image", "import", "--name", "users", archive, env={**os.environ, "ROLLBOX_STORE": str(store)}
    )
    return engine


@pytest.fixture
def box(image):
    with Sandbox(Policy(**POLICY), engine=image) as box:
        box.snapshot("task")
        yield box


SOLUTION = """#!/bin/sh
id -u
cat /verify/expected && echo READ
ls /verify/expected && cat /verify/../verify/expected && echo READ
for home in /tmp/.grade-*; do ls $home && echo READ; done
cat /proc/$PPID/environ && echo READ
cat /proc/$1/environ && echo READ
kill -9 $1 && echo KILLED
kill -STOP $1 && echo KILLED
echo x > /verify/expected && echo WRITTEN
rm /verify/expected && echo WRITTEN
exit 0
"""
VERIFIER = 'su agent -c "sh /task/solution $$" > /tmp/said 2>/dev/null; cat /tmp/said; cmp /task/out /verify/expected'


def test_program_of_the_agents_user_cannot_touch_the_grader(box):
    box.exec(["sh", "-c", "echo 42 > /task/out"], check=True)
    box.write_file("/task/solution", SOLUTION)
    grade = box.grade(
        {"/verify/expected": "42\n"}, VERIFIER, outputs=["/task/out", "/task/solution"], user="root", text=True
    )
    assert grade.ok, grade
    assert grade.stdout.startswith("1000\n")
    assert not {"READ", "KILLED", "WRITTEN"} & set(grade.stdout.split()), grade.stdout


def test_files_and_home_of_the_grader_belong_to_its_user(box):
    command = (
        "id -u && cat /verify/expected && stat -c '%U %a' /verify/expected $HOME"
        " && touch $HOME/f && echo 7 > /results/score"
    )
    grade = box.grade(
        {"/verify/expected": "42\n"}, command, outputs=["/task/out"], collect=["/results/score"],
        user="grader", text=True,
    )  # fmt: skip
    assert grade.ok, grade
    assert grade.stdout == "1001\n42\ngrader 400\ngrader 700\n"
    assert grade.files == {"/results/score": b"7\n"}


def test_without_a_user_the_graders_files_are_readable_as_before(box):
    grade = box.grade({"/verify/expected": "42\n"}, "stat -c %a /verify/expected", outputs=["/task/out"], text=True)
    assert grade.ok and grade.stdout == "444\n", grade


def test_agents_user_cannot_touch_a_process_of_another_user_in_its_sandbox(box):
    grader = box.spawn(["sh", "-c", "echo secret > /tmp/own && chmod 600 /tmp/own && echo $$ && sleep 1000"],
                       user="grader", env={"SECRET": "hidden"})  # fmt: skip
    pid = int(grader.stdout.readline())
    done = box.exec(
        ["sh", "-c", f"kill -9 {pid}; cat /proc/{pid}/environ /proc/{pid}/mem /tmp/own; ls /proc/{pid}/fd; id -u"],
        text=True,
    )
    assert done.stdout == "1000\n", done
    assert box.exec(["kill", "-0", str(pid)], user="grader").exit_code == 0
    box.exec(["kill", "-9", str(pid)], user="grader", check=True)


def test_shells_take_a_user_a_group_and_groups(box):
    with box.shell(user="agent", group="grader", groups=["staff", 77]) as shell:
        assert shell.run("id -u; id -g; id -G", text=True).stdout == "1000\n1001\n1001 50 77\n"
    with pytest.raises(InvalidArgument, match="need a user"):
        box.shell(group="staff")


def test_shells_and_graders_of_asyncio_take_users(image):
    async def calls():
        async with AsyncSandbox(Policy(**POLICY), engine=image) as box:
            shell = await box.shell(user="grader", groups=[50])
            assert (await shell.run("id -u; id -G", text=True)).stdout == "1001\n1001 50\n"
            await shell.close()
            grade = await box.grade({"/verify/f": "x"}, "id -u; cat /verify/f", outputs=["/task/out"],
                                    user="grader", text=True)  # fmt: skip
            assert grade.ok and grade.stdout == "1001\nx", grade

    asyncio.run(calls())
