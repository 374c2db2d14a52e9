# SPDX-License-Identifier: Apache-2.0
"""Files in layers, as the guest layer makes them: sandboxes on what earlier ones left, merged layers against the kernel's own overlays."""

import errno
import os

import pytest
from harness import caller, place  # noqa: F401
from launch import FAILED, Launcher, plan_of


@pytest.fixture
def launcher(caller):
    """Writable: /tmp, /var/tmp, a directory and a file of the caller's, and a directory below /tmp that is not there."""
    home = caller.directory(0o755)
    (home / "work" / "sub").mkdir(parents=True)
    caller.own(home / "work", home / "work" / "sub")
    caller.write(home / "work" / "old", "old\n")
    caller.write(home / "work" / "sub" / "deep", "deep\n")
    caller.write(home / "single", "first\n", 0o600)
    plan = plan_of(caller, "--writable", str(home / "work"), "--writable", str(home / "single"), "--writable", "/tmp/rollbox-missing")
    with Launcher(caller, plan) as launcher:
        launcher.home, launcher.caller = home, caller
        yield launcher


def test_sandbox_on_layers(launcher):
    """What a sandbox leaves is there in the next, and what that does not in the one before."""
    work, single = launcher.home / "work", launcher.home / "single"
    first = launcher.create()
    first.sh(f"echo 1 > /tmp/f; mkdir /tmp/d; echo 1 > /tmp/d/f; echo 1 > /var/tmp/f; echo 1 > {work}/new; rm {work}/old; echo 1 >> {single}; chmod 700 /var/tmp; chmod 711 {work}; touch /dev/shm/x")
    first.close()
    second = launcher.create([first.layer])
    assert second.sh(f"cd /tmp; cat f d/f /var/tmp/f {work}/new {single}; ls {work}; ls /dev/shm; stat -c %a /tmp /var/tmp {work} {single}; ls -d /tmp/rollbox-missing") == (
        "1\n1\n1\n1\nfirst\n1\nnew\nsub\n1777\n700\n711\n600\n/tmp/rollbox-missing\n")
    second.sh(f"rm /tmp/f; echo 2 >> /tmp/d/f; rm -r {work}/sub; mkdir {work}/sub; echo 2 > {work}/sub/g; echo 2 >> {single}; rmdir /tmp/rollbox-missing")
    second.close()
    third = launcher.create([first.layer, second.layer])
    assert third.sh(f"ls /tmp /tmp/d {work}/sub; cat /tmp/d/f {single}") == f"/tmp:\nd\n\n/tmp/d:\nf\n\n{work}/sub:\ng\n1\n2\nfirst\n1\n2\n"
    again = launcher.create([first.layer])
    assert again.sh(f"ls /tmp {work}/sub; cat /tmp/d/f {single}") == f"/tmp:\nd\nf\nrollbox-missing\n\n{work}/sub:\ndeep\n1\nfirst\n1\n"
    assert (work / "old").exists() and single.read_text() == "first\n"


def test_deepest_chain(launcher):
    """As many layers as there may be, one of them with nothing in it."""
    layers = []
    for i in range(24):
        with launcher.create(layers) as box:
            box.sh(f"echo {i} > /tmp/f{i}" if i != 7 else ":")
            layers.append(box.layer)
    assert launcher.create(layers).sh("cat /tmp/f* | sort -n | tr '\\n' ' '") == " ".join(str(i) for i in range(24) if i != 7) + " "


def test_nothing_of_layers_is_seen(launcher):
    """A guest sees the same mounts on layers as without, and none of the descriptors."""
    with launcher.create() as box:
        plain = box.sh("cut -d' ' -f 5 /proc/self/mountinfo")
    with launcher.create([box.layer]) as upper:
        pass
    on = launcher.create([box.layer, upper.layer])
    assert on.sh("cut -d' ' -f 5 /proc/self/mountinfo") == plain
    assert on.sh("ls /proc/self/fd /dev/shm; ls /proc/1/fd 2>&1", check=False).count("\n") <= 9
    assert set(os.listdir(f"/proc/self/fd/{box.layer}")) == {"p0", "p1", "p2", "p3", "s", "w"}


def test_size_of_the_request(launcher):
    """The engine's word on bytes and entries, in place of the plan's."""
    box = launcher.create(size=(1 << 20, 100))
    assert "No space left" in box.sh("dd if=/dev/zero of=/tmp/big bs=64k count=100 2>&1; rm /tmp/big", check=False)
    assert "No space left" in box.sh("cd /tmp; for i in $(seq 200); do : > $i || exit; done 2>&1", check=False)


def test_links_that_a_guest_leaves(launcher):
    """What is mounted below a place is mounted nowhere else, though a guest has put a link in its way."""
    home = launcher.home
    outer = place()
    with launcher.create() as box:
        box.sh(f"mv {outer} /var/tmp/moved; ln -s /usr {outer}")
    answer = launcher.create([box.layer], expect=FAILED).answer
    assert answer.error in (errno.ELOOP, errno.ENOTDIR), answer
