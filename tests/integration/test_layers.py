# SPDX-License-Identifier: Apache-2.0
"""Files in layers, as the guest layer makes them: sandboxes on what earlier ones left, merged
layers against the kernel's own overlays."""

import errno
import os
import stat

import pytest
from harness import caller, place  # noqa: F401
from launch import FAILED, Launcher, plan_of


@pytest.fixture
def launcher(caller):
    """Writable: /tmp, /var/tmp, a directory and a file of the caller's, and a directory below /tmp
    that is not there."""
    home = caller.directory(0o755)
    (home / "work" / "sub").mkdir(parents=True)
    caller.own(home / "work", home / "work" / "sub")
    caller.write(home / "work" / "old", "old\n")
    caller.write(home / "work" / "sub" / "deep", "deep\n")
    caller.write(home / "single", "first\n", 0o600)
    plan = plan_of(
        caller,
        "--writable",
        str(home / "work"),
        "--writable",
        str(home / "single"),
        "--writable",
        "/tmp/rollbox-missing",
    )
    with Launcher(caller, plan) as launcher:
        launcher.home, launcher.caller = home, caller
        yield launcher


def test_sandbox_on_layers(launcher):
    """The next sandbox has the files that one left, and its changes do not appear in the earlier one."""
    work, single = launcher.home / "work", launcher.home / "single"
    first = launcher.create()
    first.sh(
        f"echo 1 > /tmp/f; mkdir /tmp/d; echo 1 > /tmp/d/f; echo 1 > /var/tmp/f; echo 1 > {work}/new; rm {work}/old; echo 1 >> {single}; chmod 700 /var/tmp; chmod 711 {work}; touch /dev/shm/x"
    )
    first.close()
    second = launcher.create([first.layer])
    assert second.sh(
        f"cd /tmp; cat f d/f /var/tmp/f {work}/new {single}; ls {work}; ls /dev/shm; stat -c %a /tmp /var/tmp {work} {single}; ls -d /tmp/rollbox-missing"
    ) == ("1\n1\n1\n1\nfirst\n1\nnew\nsub\nx\n1777\n700\n711\n600\n/tmp/rollbox-missing\n")
    second.sh(
        f"rm /tmp/f; echo 2 >> /tmp/d/f; rm -r {work}/sub; mkdir {work}/sub; echo 2 > {work}/sub/g; echo 2 >> {single}; rmdir /tmp/rollbox-missing"
    )
    second.close()
    third = launcher.create([first.layer, second.layer])
    assert (
        third.sh(f"ls /tmp /tmp/d {work}/sub; cat /tmp/d/f {single}")
        == f"/tmp:\nd\n\n/tmp/d:\nf\n\n{work}/sub:\ng\n1\n2\nfirst\n1\n2\n"
    )
    again = launcher.create([first.layer])
    assert (
        again.sh(f"ls /tmp {work}/sub; cat /tmp/d/f {single}")
        == f"/tmp:\nd\nf\nrollbox-missing\n\n{work}/sub:\ndeep\n1\nfirst\n1\n"
    )
    assert (work / "old").exists() and single.read_text() == "first\n"


def test_deepest_chain(launcher):
    """As many layers as there may be, one of them with nothing in it."""
    layers = []
    for i in range(24):
        with launcher.create(layers) as box:
            box.sh(f"echo {i} > /tmp/f{i}" if i != 7 else ":")
            layers.append(box.layer)
    assert (
        launcher.create(layers).sh("cat /tmp/f* | sort -n | tr '\\n' ' '")
        == " ".join(str(i) for i in range(24) if i != 7) + " "
    )


def test_layers_are_invisible_to_the_guest(launcher):
    """A guest sees the same mounts on layers as without, and none of the descriptors."""
    with launcher.create() as box:
        plain = box.sh("cut -d' ' -f 5 /proc/self/mountinfo")
    with launcher.create([box.layer]) as upper:
        pass
    on = launcher.create([box.layer, upper.layer])
    assert on.sh("cut -d' ' -f 5 /proc/self/mountinfo") == plain
    assert on.sh("ls /proc/self/fd /dev/shm; ls /proc/1/fd 2>&1", check=False).count("\n") <= 9
    assert set(os.listdir(f"/proc/self/fd/{box.layer}")) == {"p0", "p1", "p2", "p3", "p4", "w"}


def test_size_of_the_request(launcher):
    """The engine's word on bytes and entries, in place of the plan's."""
    box = launcher.create(size=(1 << 20, 100))
    assert "No space left" in box.sh("dd if=/dev/zero of=/tmp/big bs=64k count=100 2>&1; rm /tmp/big", check=False)
    assert "No space left" in box.sh("cd /tmp; for i in $(seq 200); do : > $i || exit; done 2>&1", check=False)


def test_links_that_a_guest_leaves(launcher):
    """Mounts below a place appear nowhere else, even if a guest has put a link in the way."""
    home = launcher.home
    outer = place()
    with launcher.create() as box:
        box.sh(f"mv {outer} /var/tmp/moved; ln -s /usr {outer}")
    answer = launcher.create([box.layer], expect=FAILED).answer
    assert answer.error in (errno.ELOOP, errno.ENOTDIR), answer


# ---- merged layers
# ----------------------------------------------------------------------------------------------------

CHANGES = r"""
import os, random, socket, stat, sys
roots, seed, n = sys.argv[3:], int(sys.argv[1]), int(sys.argv[2])
r = random.Random(seed)
names = [b"a", b"b", b"c", b"d", b"\xff\n", b"-x", b"e" * 255]

def some_path():
    return os.path.join(os.fsencode(r.choice(roots)), *(r.choice(names) for _ in range(r.choice((1, 1, 2, 2, 3, 4)))))

def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        for name in os.listdir(path):
            remove(os.path.join(path, name))
        os.rmdir(path)
    else:
        os.unlink(path)

def write(path):
    with open(path, r.choice(("wb", "ab", "r+b")), opener=lambda p, f: os.open(p, f | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)) as f:
        f.seek(r.choice((0, 0, 0, 4096, 10**6)))
        f.write(r.randbytes(r.choice((0, 1, 100, 5000))))
        if r.random() < 0.1:
            f.truncate(r.choice((0, 10, 2 * 10**6)))

def bind(path):
    with socket.socket(socket.AF_UNIX) as s:
        os.chdir(os.path.dirname(path))
        try:
            s.bind(os.path.basename(path)[:90])
        finally:
            os.chdir("/")

actions = [
    (8, lambda p: write(p)), (8, lambda p: os.mkdir(p, r.choice((0o755, 0o700, 0o2775)))), (5, remove), (3, lambda p: os.rename(p, some_path())),
    (2, lambda p: os.symlink(r.choice((b"a", b"/etc/passwd", b"x" * 4000)), p)), (1, lambda p: os.mkfifo(p, 0o640)), (1, bind),
    (2, lambda p: os.chmod(p, r.choice((0o600, 0o4755, 0o1777, 0o555, 0o2755))) if not os.path.islink(p) else None),
    (2, lambda p: os.utime(p, ns=(r.randrange(2**60), r.randrange(2**60)), follow_symlinks=False)),
    (2, lambda p: os.setxattr(p, r.choice((b"user.a", b"user.b", b"user.overlay.opaque", b"user.overlay.x")), r.randbytes(r.randrange(200)), follow_symlinks=False)),
    (1, lambda p: os.removexattr(p, b"user.a", follow_symlinks=False)), (2, lambda p: os.link(p, some_path(), follow_symlinks=False)),
]
for _ in range(n):
    action = r.choices([a for _, a in actions], [w for w, _ in actions])[0]
    try:
        action(some_path())
    except OSError:
        pass
"""

# One line for each file: all that one can ask of it. Link counts and inode numbers are an overlay's own affair.
TREE = r"""
import hashlib, os, stat, sys

def tell(path):
    s = os.lstat(path)
    what = [oct(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns, s.st_size if not stat.S_ISDIR(s.st_mode) else 0]
    if stat.S_ISREG(s.st_mode):
        with open(path, "rb") as f:
            what.append(hashlib.sha1(f.read()).hexdigest())
    if stat.S_ISLNK(s.st_mode):
        what.append(os.readlink(path))
    if stat.S_ISREG(s.st_mode) or stat.S_ISDIR(s.st_mode):
        what += sorted((name, os.getxattr(path, name)) for name in os.listxattr(path))
    print(ascii(path), what)
    if stat.S_ISDIR(s.st_mode):
        for name in sorted(os.listdir(path)):
            tell(os.path.join(path, name))

for root in sys.argv[1:]:
    for a, _, _ in os.walk(root):
        os.chmod(a, os.lstat(a).st_mode | 0o500) if not os.access(a, os.R_OK | os.X_OK) else None
    os.chdir("/")
    tell(os.fsencode(root))
"""
PYTHON = ["/usr/bin/python3", "-IS", "-c"]


def tree(launcher, layers, roots):
    with launcher.create(layers) as box:
        found = box.run(*PYTHON, TREE, *roots)
        os.close(box.layer)
    return found


def merged(launcher, layers):
    return launcher.copy(layers).fds[0]


@pytest.mark.parametrize("seed", range(8))
def test_merge_shows_what_the_layers_show(launcher, seed):
    """Random histories: a sandbox on merged layers sees what one on the layers does, whichever of them are merged."""
    roots = ["/tmp", str(launcher.home / "work")]
    layers = []
    for i in range(6):
        with launcher.create(layers) as box:
            box.run(*PYTHON, CHANGES, str(seed * 100 + i), "60", *roots)
            layers.append(box.layer)
    wanted = tree(launcher, layers, roots)
    assert wanted.count("\n") > 3
    for first, last in ((0, 6), (0, 1), (5, 6), (0, 3), (3, 6), (1, 5)):
        one = merged(launcher, layers[first:last])
        stack = [*layers[:first], one, *layers[last:]]
        assert tree(launcher, stack, roots) == wanted, (first, last)
        os.close(one)
    twice = merged(launcher, [merged(launcher, layers[:4]), merged(launcher, layers[4:])])
    assert tree(launcher, [twice], roots) == wanted


def raw(directory, path=b""):
    """All that is in a layer as it is, by path."""
    found = {}
    for name in os.listdir(directory + path if path else directory):
        at = path + b"/" + name
        s = os.lstat(directory + at)
        whiteout = stat.S_ISCHR(s.st_mode)
        of_file = (
            (s.st_blocks, s.st_atime_ns) if stat.S_ISREG(s.st_mode) else ()
        )  # looking at other things is an access
        found[at] = (
            (stat.S_IFMT(s.st_mode),)
            if whiteout
            else (s.st_mode, s.st_uid, s.st_nlink, s.st_size, s.st_mtime_ns, *of_file)
        )
        if stat.S_ISREG(s.st_mode) or stat.S_ISDIR(s.st_mode):
            kept = {key: os.getxattr(directory + at, key) for key in os.listxattr(directory + at)}
            found[at] += tuple(
                sorted(
                    (key, value)
                    for key, value in kept.items()
                    if key
                    not in ("user.overlay.origin", "user.overlay.impure", "user.overlay.uuid")
                )
            )
        if stat.S_ISDIR(s.st_mode):
            found.update(raw(directory, at))
    return found


def parts(layer):
    return {i: raw(b"/proc/self/fd/%d/p%d" % (layer, i)) for i in (0, 1, 3)}


ACLS = r"""
import os, struct
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, mode, i) for tag, mode, i in ((1, 6, 2**32 - 1), (2, 4, 1000), (4, 0, 2**32 - 1), (0x10, 4, 2**32 - 1), (0x20, 0, 2**32 - 1)))
os.mkdir("/tmp/acl")
os.setxattr("/tmp/acl", "system.posix_acl_default", acl)
open("/tmp/acl/inherits", "w").close()
open("/tmp/acl/not", "w").close()
os.removexattr("/tmp/acl/not", "system.posix_acl_access")
os.setxattr("/tmp/acl", "system.posix_acl_access", acl.replace(struct.pack("<HH", 1, 6), struct.pack("<HH", 1, 7)))
"""


@pytest.mark.parametrize("seed", (1, 2))
def test_copy_of_one_layer_is_exact(launcher, seed):
    """Down to link counts, holes and times; the sandbox whose files they are still lives, and
    nothing of its is touched."""
    roots = ["/tmp", str(launcher.home / "work")]
    with launcher.create() as below:
        below.run(*PYTHON, CHANGES, str(seed), "200", *roots)
    with launcher.create([below.layer]) as box:
        box.run(*PYTHON, CHANGES, str(seed + 50), "200", *roots)
        box.run(*PYTHON, ACLS)
        box.sh(
            "cd /tmp; truncate -s 3M hole; echo x | dd of=hole bs=1 seek=1M conv=notrunc 2>/dev/null; for i in 1 2 3; do ln hole hole$i; done"
        )
        before = parts(box.layer)
        assert len(before[0]) > 10
        copy = merged(launcher, [box.layer])
        assert parts(box.layer) == before
        assert parts(copy) == before
        assert sorted(os.listdir(f"/proc/self/fd/{copy}")) == ["p0", "p1", "p2", "p3", "p4"]


def test_copy_of_many_files(launcher):
    """So many in one directory that two processes copy them, some with several names, some over others."""
    make = "import os\nos.makedirs('/tmp/d', exist_ok=True); os.chdir('/tmp/d')\nfor i in range({}):\n  open(f'{{i}}', 'w').write(f'{} {{i}}' * 100)\n  i % 7 or os.path.exists(f'x{{i}}') or os.link(f'{{i}}', f'x{{i}}')"
    with launcher.create() as first:
        first.run(*PYTHON, make.format(3000, "first"))
    with launcher.create([first.layer]) as second:
        second.run(*PYTHON, make.format(1000, "second"))
    assert parts(merged(launcher, [second.layer])) == parts(second.layer)
    one = merged(launcher, [first.layer, second.layer])
    assert tree(launcher, [one], ["/tmp/d"]) == tree(launcher, [first.layer, second.layer], ["/tmp/d"])


def test_copy_of_a_deep_tree(launcher):
    """As deep as a guest can make it. It is made from the inside out, because each step takes
    longer the deeper it is."""
    dig = "import os\nos.chdir('/tmp'); os.mkdir('d')\nfor i in range(10000):\n  os.mkdir('n'); open('n/f', 'w').write(str(i)); os.rename('d', 'n/d'); os.rename('n', 'd')"
    change = "import os\nos.chdir('/tmp')\nfor i in range(1000): os.chdir('d')\nopen('g', 'w'); os.unlink('f')"
    climb = "import os\nos.chdir('/tmp')\nfor i in range(10000):\n  os.chdir('d')\n  if i % 1000 == 999: print(sorted(os.listdir('.')))\nprint(os.path.exists('f'), os.listdir('d'))"
    with launcher.create() as first:
        first.run(*PYTHON, dig)
    with launcher.create([first.layer]) as second:
        second.run(*PYTHON, change)
    with launcher.create([merged(launcher, [first.layer, second.layer])]) as box:
        assert box.run(*PYTHON, climb).splitlines() == ["['d', 'g']"] + ["['d', 'f']"] * 9 + ["True []"]


def test_copy_that_does_not_fit(launcher):
    with launcher.create() as box:
        box.sh("head -c 1000000 /dev/zero > /tmp/big")
    launcher.copy([box.layer], (500000, 1000), error=errno.ENOSPC)
    with launcher.create() as box:
        box.run(
            *PYTHON,
            "import os\nos.chdir('/tmp')\nfor i in range(300): os.mknod(str(i)); os.mkdir('d'); os.chdir('d')",
        )
    launcher.copy([box.layer], (1 << 20, 10), error=errno.ENOSPC)
    assert (
        os.listdir(f"/proc/self/fd/{launcher.copy([]).fds[0]}") == []
    )  # of nothing: to be filled by who wakes a sandbox
    assert os.listdir(f"/proc/self/fd/{merged(launcher, [box.layer])}")
