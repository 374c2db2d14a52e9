# SPDX-License-Identifier: Apache-2.0
"""Builds of images in a store that has the image `base`: busybox, and users."""

import json
import textwrap
from pathlib import Path

from archives import busybox, configuration, entry, layer
from harness import Caller, binaries
from image_stores import Store

APPLETS = (
    "sh ls cat id touch mkdir rm chown chmod stat grep echo env sleep ping pwd find sort readlink"
    " ln mkfifo wc cmp test true false cp mv sh tar"
).split()
PASSWD = b"root::0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n"
GROUP = b"root:x:0:\nalice:x:1000:\nstaff:x:50:alice\n"


def base():
    program = Path(busybox()).read_bytes()
    links = [entry(f"bin/{name}", b"", link="busybox") for name in APPLETS]
    return layer(
        entry("bin"), entry("bin/busybox", program, mode=0o755), *links,
        entry("root", mode=0o700), entry("tmp", mode=0o1777), entry("etc"),
        entry("etc/passwd", PASSWD), entry("etc/group", GROUP), entry("home"),
        entry("home/alice", mode=0o700, uid=1000, gid=1000), entry("home/bob"),
        entry("home/bob/file", b""), entry("high", b"", uid=65533, gid=65533),
    )  # fmt: skip


def base_config(layers):
    config = configuration(layers)
    config["config"] = {"Env": ["PATH=/bin"], "WorkingDir": "/", "Cmd": ["sh"]}
    return config


class Builds:
    """Builds in a store that has the image `base`."""

    def __init__(self, caller=None, name="base"):
        self.store = Store(caller or Caller("root", 0))
        layers = [base()]
        self.store.bring(name, *layers, config=base_config(layers))
        self.number = 0

    def context(self, dockerfile, files=None):
        self.number += 1
        place = self.store.home / f"context{self.number}"
        place.mkdir()
        (place / "Dockerfile").write_text(textwrap.dedent(dockerfile))
        self.store.caller.own(place, place / "Dockerfile")
        for name, text in (files or {}).items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return place

    def build(self, context, *flags, status=0, **options):
        done = self.store.call(
            "image", "build", "--json", "--progress=quiet", "-t", "made", *flags, context, **options
        )
        assert done.returncode == status, (done.stdout, done.stderr)
        return json.loads(done.stdout if not status else done.stderr)

    def made(self, dockerfile, files=None, *flags, **options):
        return self.build(self.context(dockerfile, files), *flags, **options)

    def refused(self, dockerfile, files=None, *flags, **options):
        context = self.context(dockerfile, files)
        return self.build(context, *flags, status=125, **options)["error"]

    def run(self, script, *flags, image="made"):
        env = self.store.caller.environment(ROLLBOX_STORE=str(self.store.path))
        words = ["--users", "many", "--image", image, *flags, "--", "/bin/sh", "-c", script]
        done = self.store.caller.run(*words, env=env)
        assert (done.outcome, done.exit_code) == ("exit", 0), done
        return done.stdout

    def config(self):
        return self.store.json("image", "show", "made")["config"]

    def program(self):
        return binaries() / "rollbox"

    def oci(self):
        """The whole OCI configuration."""
        return json.loads((self.store.path / "images" / "made.json").read_text())["oci"]
