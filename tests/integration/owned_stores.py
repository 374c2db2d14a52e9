# SPDX-License-Identifier: Apache-2.0
"""Stores of an ordinary user who has sandboxes of many users, an image for these, and what is left in such a store."""

import subprocess

from archives import busybox, configuration, entry, layer
from many_users import plain_callers

APPLETS = "sh ls cat id touch mkdir rm chown chmod su stat grep echo sleep".split()


def users():
    return [caller for caller in plain_callers() if caller.uid]


def bring(store, name="system", *more):
    with open(busybox(), "rb") as program:
        rows = [
            entry("bin"),
            entry("bin/busybox", program.read(), mode=0o755),
            *(entry(f"bin/{applet}", b"", link="busybox") for applet in APPLETS),
        ]
    rows += [
        entry("etc"),
        entry("etc/passwd", b"root::0:0::/:/bin/sh\nalice:x:1000:1000::/:/bin/sh\n"),
        entry("tmp", mode=0o1777),
    ]
    rows += [
        entry("home/alice", mode=0o700, uid=1000, gid=1000),
        entry("home/alice/secret", b"hers", mode=0o600, uid=1000, gid=1000),
        *more,
    ]
    config = configuration([layer(*rows)])
    config["config"].update(User="", WorkingDir="/")
    store.bring(name, layer(*rows), config=config)


def run(store, script, *flags, image="system"):
    return store.caller.run(
        "--users",
        "many",
        "--image",
        image,
        *flags,
        "--",
        "/bin/sh",
        "-c",
        script,
        env=store.caller.environment(ROLLBOX_STORE=str(store.path)),
    )


def leftovers(store):
    """What gc leaves when no image is there, and engines have ended."""
    for row in store.json("image", "ls")["images"] if store.path.exists() else []:
        store.json("image", "rm", row["name"])
    if store.path.exists():
        store.json("store", "gc")
    return sorted(
        str(path.relative_to(store.path))
        for part in ("layers", "tmp", "trash", "boxes")
        for path in (store.path / part).glob("*")
    )


def foreign_files(store):
    found = subprocess.run(
        ["find", store.path, "!", "-user", str(store.caller.uid)],
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.split()
