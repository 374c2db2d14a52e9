# SPDX-License-Identifier: Apache-2.0
"""deploy/Containerfile: it builds from the wheel in dist/, and its image runs sandboxes with
Docker's default seccomp profile.

buildah builds without a daemon. No registry is asked: what stands for the base image is Debian's
Python of the same version, in
the root file system that `tools/dist root` makes. `make integrations` makes the wheel and runs this.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import containers
import pytest
from harness import TREE

FILE = TREE / "deploy" / "Containerfile"
BASE = re.search(r"^FROM (\S+)$", FILE.read_text(), re.MULTILINE).group(1)
# The names that programs have in an image of Python.
STAND_IN = "FROM scratch\nADD root.tar /\nRUN ln -sf python3 /usr/bin/python && ln -sf pip3 /usr/bin/pip\n"

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("ROLLBOX_SOAK"), reason="takes a minute; make integrations runs it"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: containers are made by it"),
    pytest.mark.skipif(
        not shutil.which("buildah") or not shutil.which("crun"), reason="needs buildah and crun"
    ),
    pytest.mark.skipif(
        not list((TREE / "dist").glob("*.whl")), reason="needs a wheel: tools/dist build makes it"
    ),
]


class Builder:
    def __init__(self, directory):
        self.directory = directory
        self.words = [
            "buildah",
            "--root",
            str(directory / "store"),
            "--runroot",
            str(directory / "run"),
            "--storage-driver",
            "vfs",
        ]

    def __call__(self, *words, **more):
        done = subprocess.run([*self.words, *words], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              env={**os.environ, "BUILDAH_ISOLATION": "chroot"}, **more)
        assert done.returncode == 0, f"buildah {' '.join(words)}: status {done.returncode}: {done.stdout}"
        return done.stdout.strip()


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """(the image's root file system, its configuration)"""
    directory = tmp_path_factory.mktemp("image")
    for parent in [directory, *directory.parents[:2]]:
        parent.chmod(parent.stat().st_mode | 0o011)
    build = Builder(directory)
    base = directory / "base"
    base.mkdir()
    (base / "Containerfile").write_text(STAND_IN)
    root = subprocess.run(
        [TREE / "tools" / "dist", "root", "trixie"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    subprocess.run(["tar", "-C", root, "--one-file-system", "--exclude=./proc/*", "--exclude=EXTERNALLY-MANAGED",
                    "-cf", str(base / "root.tar"), "."], check=True)
    build("build", "--quiet", "--network", "host", "--tag", BASE, str(base))
    build("build", "--quiet", "--pull-never", "--network", "host", "--file", str(FILE), "--tag", "rollbox", str(TREE))
    container = build("from", "--pull-never", "localhost/rollbox")
    config = json.loads(build("inspect", "--type", "image", "localhost/rollbox"))["OCIv1"]["config"]
    return build("mount", container), config


@pytest.fixture
def container(image, tmp_path):
    """Makes a container of the image, with Docker's defaults unless options of containers.Container say otherwise."""
    for parent in [tmp_path, *tmp_path.parents[:2]]:
        parent.chmod(parent.stat().st_mode | 0o011)
    root, config = image
    accounts = [line.split(":") for line in Path(root, "etc/passwd").read_text().splitlines()]
    user = next(int(account[2]) for account in accounts if account[0] == config["User"])

    def make(**options):
        return containers.Container(
            tmp_path / "container",
            None,
            user=user,
            image=root,
            home=config["WorkingDir"],
            **options,
        )

    return make


def test_image_starts_as_an_ordinary_user_and_its_command_is_doctor(image, container):
    assert image[1]["Cmd"] == ["rollbox", "doctor"]
    done = container().run(*image[1]["Cmd"])
    assert any(line.split()[:2] == ["ok", "process"] for line in done.stdout.splitlines()), done.stdout + done.stderr


def test_command_runs_with_dockers_default_profile(container):
    done = container().run("rollbox", "run", "--isolation", "process", "--", "python3", "-c", "print(6 * 7)")
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


def test_package_runs_with_dockers_default_profile(container):
    code = """from rollbox import Policy, Sandbox
result = Sandbox(Policy(isolation="process", timeout=60)).run_code("print(6 * 7)")
print(result.text, result.isolation["level"])
"""
    done = container().run("python", "-c", code)
    assert (done.returncode, done.stdout) == (0, "42\n process\n"), done.stderr


def test_sessions_and_forks_work_with_the_shipped_profile(container):
    code = """from rollbox import Policy, Sandbox
with Sandbox(Policy(timeout=60)) as box:
    box.write_file("/tmp/name", "a file")
    for child in box.fork(2):
        print(child.exec(["cat", "/tmp/name"]).text)
"""
    profile = json.loads((TREE / "deploy" / "seccomp.json").read_text())
    done = container(capabilities=[], new_privileges=False, masks=False, seccomp=profile).run("python", "-c", code)
    assert (done.returncode, done.stdout) == (0, "a file\na file\n"), done.stderr


def test_isolation_namespace_names_what_the_default_profile_refuses(container):
    done = container().run("rollbox", "run", "--", "true")
    assert (done.returncode, "mount_api is missing" in done.stderr) == (125, True), done.stderr
