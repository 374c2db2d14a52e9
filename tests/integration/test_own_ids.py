# SPDX-License-Identifier: Apache-2.0
"""Run by root, every sandbox has an id of its own on the host: what the kernel counts by user, one
sandbox cannot use up for another.

The hog takes all of something and says how much; its neighbour, of the same policy, must find what
it finds beside nobody.
"""

import itertools
import os
import subprocess
from pathlib import Path

import pytest
from archives import busybox, entry, layer, oci_blobs, write_oci
from conftest import BUILD
from harness import Caller, processes, until
from launch import ID_BASE, Launcher, plan_of
from rollbox import Engine, Policy, Sandbox

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="an ordinary user has one id, which all sandboxes share")

PIPES = """
import fcntl, os
held = []
while True:
    held.append(os.pipe())
    if fcntl.fcntl(held[-1][1], 1032) < 65536:
        break
print("full", flush=True)
"""
RIGHTS = """
import os, socket
held = []
try:
    while True:
        held.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
        socket.send_fds(held[-1][0], [b"x"], [0] * 250)
except OSError as error:
    print("full" if error.errno == 109 else error, flush=True)
"""
NUMBERS = itertools.count()
HOGS = {"pipes": PIPES, "rights": RIGHTS}
NEIGHBOUR = """
import fcntl, os, socket
print(fcntl.fcntl(os.pipe()[1], 1032))
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
socket.send_fds(a, [b"x"], [0, 1])
"""


@pytest.fixture(scope="module")
def engine():
    with Engine() as engine:
        yield engine


def fill(box, kind):
    """The process holds what it took until the box is closed."""
    hog = box.spawn(["python3", "-c", HOGS[kind] + "\nimport signal\nsignal.pause()"])
    assert hog.stdout.readline() == b"full\n"


def look(run):
    result = run(["python3", "-c", NEIGHBOUR], timeout=60, text=True)
    assert (result.stdout, result.stderr) == ("65536\n", "")


@pytest.mark.parametrize("kind", HOGS)
def test_sessions_do_not_share_per_user_counts(engine, kind):
    with Sandbox(Policy(), engine=engine) as box, Sandbox(Policy(), engine=engine) as other:
        other.exec(["true"])
        fill(box, kind)
        look(other.exec)
        look(Sandbox(Policy(), engine=engine).run)


@pytest.mark.parametrize("kind", HOGS)
def test_forks_do_not_share_per_user_counts(engine, kind):
    with Sandbox(Policy(), engine=engine) as box:
        box.write_file("/tmp/file", b"of the parent")
        _living = box.spawn(["sleep", "1000"])
        kids = box.fork(2)
        fill(kids[0], kind)
        for one in (kids[1], box):
            look(one.exec)
            assert one.exec(["stat", "-c", "%u %g", "/tmp/file"]).stdout == one.exec("echo $(id -u) $(id -g)").stdout
            assert one.exec("echo more >> /tmp/file && chmod 600 /tmp/file && rm /tmp/file").exit_code == 0
        for kid in kids:
            kid.close()


def host_ids(boxes):
    """The user ids on the host of a process that runs in each box."""
    found = []
    for box in boxes:
        argv = ["sleep", f"{os.getpid()}.{next(NUMBERS)}"]
        box.spawn(argv)
        until(lambda argv=argv: processes(*argv))
        found += [os.stat(f"/proc/{pid}").st_uid for pid in processes(*argv)]
    return found


def test_every_sandbox_has_an_id_of_its_own(engine):
    boxes = [Sandbox(Policy(), engine=engine) for _ in range(3)]
    boxes[0].write_file("/tmp/file", b"")
    boxes += boxes[0].fork(2)
    ids = host_ids(boxes)
    assert len(set(ids)) == len(boxes) == len(ids) and not set(ids) & {0, 65534}
    for box in boxes:
        box.close()


# Policies whose guests see files of the host's file systems as their own.
ON_THE_HOST = ["fs_writable", "a_writable_file", "fs_shared", "disk_at", "snapshot", "all"]


def store_tool(*arguments):
    subprocess.run([BUILD / "rollbox", *arguments], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def granted(tmp_path_factory):
    """Directories of an ordinary user, in which another has a file, too; and a store with an image and a snapshot."""
    top = tmp_path_factory.mktemp("granted")
    for directory in (top, *top.parents[:-2]):
        directory.chmod(directory.stat().st_mode | 0o055)
    for name in ("writable", "shared"):
        (top / name).mkdir(mode=0o755)
        (top / name / "file").write_text("1")
        (top / name / "other").write_text("2")
        for path, owner in ((top / name, 1000), (top / name / "file", 1000), (top / name / "other", 77)):
            os.chown(path, owner, owner)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLBOX_STORE", str(top / "store"))
        with Engine() as engine, Sandbox(Policy(), engine=engine) as box:
            box.write_file("/tmp/file", b"1")
            box.export(str(top / "exported"))
        store_tool("import", str(top / "exported"), "--name", "left")
        write_oci(
            top / "image.tar",
            oci_blobs(
                [
                    layer(
                        entry("bin"),
                        entry("bin/busybox", Path(busybox()).read_bytes(), mode=0o755),
                        *(
                            entry(f"bin/{name}", b"", link="busybox")
                            for name in ("sh", "sleep", "id", "stat", "rm")
                        ),
                        entry("data"),
                        entry("tmp", mode=0o1777),
                        entry("tmp/file", b"1", uid=1000, gid=1000),
                    )
                ]
            ),
        )
        store_tool("image", "import", str(top / "image.tar"), "--name", "small")
        with Engine() as engine:
            yield top, engine


def policy_of(kind, top):
    """A policy of that kind, and a file of the host's in it that is the guest's."""
    writable, shared = str(top / "writable"), str(top / "shared")
    return {
        "fs_writable": (dict(fs_writable=[writable]), f"{writable}/file"),
        "a_writable_file": (dict(fs_writable=[f"{writable}/file"]), f"{writable}/file"),
        "fs_shared": (dict(fs_shared=[shared]), f"{shared}/file"),
        "disk_at": (dict(disk_at="store"), "/tmp/file"),
        "image": (dict(image="small"), "/tmp/file"),
        "snapshot": (dict(image="snapshot:left"), "/tmp/file"),
        "all": (dict(fs_writable=[writable], fs_shared=[shared], disk_at="store"), f"{shared}/file"),
    }[kind]


@pytest.mark.parametrize("policy", ON_THE_HOST)
@pytest.mark.parametrize("kind", HOGS)
def test_sandboxes_on_host_files_do_not_share_per_user_counts(granted, policy, kind):
    top, engine = granted
    keys, _ = policy_of(policy, top)
    with Sandbox(Policy(**keys), engine=engine) as box, Sandbox(Policy(**keys), engine=engine) as other:
        kid = other.fork(1)[0]
        fill(box, kind)
        for one in (other, kid):
            look(one.exec)
        look(Sandbox(Policy(**keys), engine=engine).run)
        kid.close()


@pytest.mark.parametrize("policy", [*ON_THE_HOST, "image"])
def test_host_files_are_the_guests_with_any_id(granted, policy):
    """The one that has the plan's id, others, their forks, and those that get an id again: all of
    them own and change their files."""
    top, engine = granted
    keys, path = policy_of(policy, top)
    script = f"stat -c '%u %g' {path}; echo $(id -u) $(id -g); echo more >> {path} && echo changed; : > /tmp/new && rm /tmp/new && echo made"
    for _ in range(2):
        boxes = [Sandbox(Policy(**keys), engine=engine) for _ in range(3)]
        for box in boxes:
            if path == "/tmp/file" and policy == "disk_at":
                box.write_file(path, b"1")
        kids = boxes[0].fork(2)
        kids += kids[0].fork(1)
        for box in boxes + kids:
            lines = box.exec(["sh", "-c", script], text=True).stdout.splitlines()
            assert lines[0] == lines[1] and lines[2:] == ["changed", "made"], lines
        ids = host_ids(boxes + kids)
        assert len(set(ids)) == len(ids) == 6 and not set(ids) & {0, 65534}
        for box in boxes + kids:
            box.close()


def test_files_of_other_owners_are_copied_up(granted):
    """A writable directory has files of others than its owner; a guest with any id may move them."""
    top, engine = granted
    keys, _ = policy_of("fs_writable", top)
    boxes = [Sandbox(Policy(**keys), engine=engine) for _ in range(2)]
    for box in boxes:
        assert (
            box.exec(["sh", "-c", f"cd {top}/writable && mv other moved && cat moved"], text=True)
            .check()
            .stdout
            == "2"
        )
        kid = box.fork(1)[0]
        assert (
            kid.exec(["sh", "-c", f"cd {top}/writable && mv moved again && cat again"], text=True)
            .check()
            .stdout
            == "2"
        )
        kid.close()
        box.close()
    assert (top / "writable" / "other").stat().st_uid == 77


def test_new_files_in_a_shared_directory_are_its_owners(granted):
    top, engine = granted
    keys, _ = policy_of("fs_shared", top)
    boxes = [Sandbox(Policy(**keys), engine=engine) for _ in range(3)]
    for number, box in enumerate(boxes):
        box.exec(["touch", f"{top}/shared/{number}"]).check()
        box.close()
    assert {(top / "shared" / str(number)).stat().st_uid for number in range(3)} == {1000}


def test_sandboxes_without_mounts_of_their_own_have_the_plans_id(granted):
    """Linux before 6.15 cannot make the mounts. Then the engine sends none, and the template shows
    the files as those of the plan's id."""
    top, _ = granted
    path, root = f"{top}/writable/file", Caller("root", 0)
    with Launcher(root, plan_of(root, "--writable", f"{top}/writable")) as launcher:
        for own_id in (0, 77):
            box = launcher.create(own_id=own_id)
            assert box.sh(
                f"stat -c '%u %g' {path}; id -u; id -g; echo more >> {path} && echo > /tmp/new && ls -n /tmp/new"
            ).split()[:4] == ["1000", "1000", "1000", "1000"]
            with open(f"/proc/{box.pid}/uid_map") as uids:
                assert uids.read().split() == ["1000", str(ID_BASE + 1), "1"]


def test_set_user_id_files_on_disk_are_of_no_user_of_the_host(granted, tmp_path):
    """disk_at store: what a guest marks so is stored as a file of an id of its template's range."""
    top, engine = granted
    boxes = [Sandbox(Policy(disk_at="store"), engine=engine) for _ in range(2)]
    for box in boxes:
        box.exec("cp /bin/true /tmp/marked && chmod 6755 /tmp/marked").check()
    found = [path.stat() for path in (top / "store" / "boxes").glob("*/*/p*/marked")]
    assert len(found) == 2 and all(
        st.st_mode & 0o6000 and min(st.st_uid, st.st_gid) >= 0x60000000 for st in found
    ), found
    for box in boxes:
        box.close()


def test_ids_stay_unique_after_many_sandboxes(engine):
    with Sandbox(Policy(), engine=engine) as box:
        (first,) = host_ids([box])
        for _ in range(40):
            with Sandbox(Policy(), engine=engine) as other:
                assert other.exec(["true"]).exit_code == 0
        with Sandbox(Policy(), engine=engine) as other:
            assert host_ids([other]) != [first]
