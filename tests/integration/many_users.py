# SPDX-License-Identifier: Apache-2.0
"""Sandboxes of many users: a caller whose runs have them, for suites that hold in both kinds, and
an image with users, programs and owners."""

import fcntl
import functools
import os
import pwd
import subprocess
from pathlib import Path

import pytest
from archives import busybox, entry, layer
from harness import ORDINARY_UID, Caller, callers, place

FIRST_ID = 100000  # as useradd begins
APPLETS = (
    "sh ls cat id touch mkdir rm chown chmod su stat grep echo env chroot sleep ping nc pwd".split()
)
PASSWD = (
    b"root::0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n"
    b"bob:x:1001:1001::/home/bob:/bin/sh\nhigh:x:65533:65533::/:/bin/sh\n"
)
GROUP = b"root:x:0:\nalice:x:1000:\nbob:x:1001:\nstaff:x:50:alice,bob\nwheel:x:10:alice\nhigh:x:65533:\n"


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
            if self.uid and {"--shared", "--writable"} & {*argv}:
                pytest.skip(
                    "directories of the host to write to are refused to an ordinary user's sandboxes of many users"
                )
            argv[2:2] = ["--users", "many"]
        return super().popen(argv, **options)


def _ends(path):
    """The first id of a file of ranges that is above them all, and the owners of its lines."""
    with open(path, "a+") as lines:
        lines.seek(0)
        rows = [line.split(":") for line in lines.read().splitlines() if line.count(":") == 2]
    return max([FIRST_ID, *(int(row[1]) + int(row[2]) for row in rows)]), [
        row[0] for row in rows if int(row[2]) >= 65536
    ]


def _ranges(path):
    """The names of a file of ranges that have ids enough."""
    with open(path) as lines:
        rows = [line.split(":") for line in lines.read().splitlines() if line.count(":") == 2]
    return [row[0] for row in rows if int(row[2]) >= 65536]


@functools.lru_cache(maxsize=None)
def give_ids():
    """As root: the ordinary user of the tests has an account and 65,536 ids, as an administrator gives them."""
    with open(place().parent / ".rollbox-test-ids", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            name = pwd.getpwuid(ORDINARY_UID).pw_name
        except KeyError:
            name = "rollbox-test"
            subprocess.run(
                ["useradd", "--no-create-home", "--uid", str(ORDINARY_UID), name], check=True
            )
        ends = {path: _ends(path) for path in ("/etc/subuid", "/etc/subgid")}
        first = max(end for end, _ in ends.values())
        for path, (_, owners) in ends.items():
            if name not in owners:
                with open(path, "a") as lines:
                    lines.write(f"{name}:{first}:65536\n")


def has_ids():
    """Whether newuidmap can give this ordinary user ids: it has an account, a range, and root's rights."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
        owners = [_ranges("/etc/subuid"), _ranges("/etc/subgid")]
    except (KeyError, OSError):
        return False
    with open("/proc/self/status") as status:
        bounds = next(int(line.split()[1], 16) for line in status if line.startswith("CapBnd"))
    return bool(bounds & 1 << 7) and all(name in names for names in owners)


def plain_callers():
    """Root and an ordinary user, who has the ids for it. Without ids: nobody."""
    if os.geteuid() == 0:
        give_ids()
    elif not has_ids():
        return []
    return callers()


def many_callers():
    return [ManyUsers(c.name, c.uid) for c in plain_callers()]


@pytest.fixture(params=callers() + many_callers(), ids=repr, scope="session")
def caller(request):
    """A caller with one user in each sandbox, or with many."""
    return request.param


def system_entries():
    program = Path(busybox()).read_bytes()
    homes = [
        entry("home/alice", mode=0o700, uid=1000, gid=1000),
        entry("home/bob", mode=0o700, uid=1001, gid=1001),
        entry("home/alice/secret", b"hers", mode=0o600, uid=1000, gid=1000),
    ]
    files = [
        entry("etc/passwd", PASSWD),
        entry("etc/group", GROUP),
        entry("etc/hosts", b""),
        entry("high", b"", uid=65533, gid=65533),
    ]
    programs = [entry("bin/busybox", program, mode=0o755)]
    programs += [entry(f"bin/{name}", b"", link="busybox") for name in APPLETS]
    programs.append(entry("setid/su", program, mode=0o4755))
    directories = [entry("bin"), entry("setid"), entry("etc"), entry("root", mode=0o700)]
    return [*directories, entry("tmp", mode=0o1777), *programs, *files, *homes]


def system():
    return layer(*system_entries())
