# SPDX-License-Identifier: Apache-2.0
"""The policy's own Python: `python` grants what an interpreter of a venv, of an installation
elsewhere or behind links needs; fs_readable_extra adds to what may be read; defaults that go
together."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import venv

import pytest

import rollbox
from harness import DEADLINE, binaries, caller  # noqa: F401
from rollbox import Policy, Sandbox, run_many

SHOW = "import sys, mine; print(mine.VALUE, sys.executable, sys.prefix)"


def package_in(prefix):
    places = list(pathlib.Path(prefix).glob("lib/python3*/site-packages")) or [
        pathlib.Path(prefix) / f"lib/python3.{sys.version_info[1]}/site-packages"
    ]
    places[0].mkdir(parents=True, exist_ok=True)
    (places[0] / "mine.py").write_text("VALUE = 42\n")


def installation(prefix):
    """A Python of its own, as conda's and pyenv's are: the program and the library that it finds beside itself."""
    name = f"python3.{sys.version_info[1]}"
    (prefix / "bin").mkdir(parents=True)
    real = os.path.realpath(os.path.join(sys.base_prefix, "bin", name))
    shutil.copy(real, prefix / "bin" / name)
    (prefix / "bin" / "python3").symlink_to(name)
    (prefix / "bin" / "python").symlink_to(name)
    skip = shutil.ignore_patterns(
        "test",
        "tests",
        "idlelib",
        "lib2to3",
        "__pycache__",
        "dist-packages",
        "config-*",
        "ensurepip",
    )
    shutil.copytree(
        sysconfig.get_path(
            "stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix}
        ),
        prefix / "lib" / name,
        ignore=skip,
    )
    package_in(prefix)
    # A distribution's Python (Debian's) calls the directory by another name.
    shutil.copytree(next(prefix.glob("lib/python3*/site-packages")), prefix / "lib" / name / "dist-packages")
    return prefix / "bin" / "python"


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Paths of interpreters by kind, all below a directory beside which there is a secret."""
    root = tmp_path_factory.mktemp("pythons")
    for directory in (root, *root.parents):
        if str(directory).startswith("/tmp/"):
            directory.chmod(0o755)
    (root / "secret").write_text("secret")
    venv.create(root / "venv", symlinks=True)
    package_in(root / "venv")
    found = {"venv": root / "venv" / "bin" / "python", "installation": installation(root / "conda")}
    # A venv made by an installation elsewhere, by a directory that is a link, as uv's and pyenv's are.
    (root / "link").symlink_to("conda")
    (root / "nested" / "bin").mkdir(parents=True)
    (root / "nested" / "bin" / "python3").symlink_to(root / "link" / "bin" / "python3")
    (root / "nested" / "pyvenv.cfg").write_text(f"home = {root}/link/bin\ninclude-system-site-packages = false\n")
    package_in(root / "nested")
    found["venv of an installation behind a link"] = root / "nested" / "bin" / "python3"
    return found


@pytest.mark.parametrize("kind", ["venv", "installation", "venv of an installation behind a link"])
def test_own_interpreter_finds_its_packages(places, kind):
    python = places[kind]
    prefix = str(python.parent.parent)
    policy = Policy(python=python)
    box = Sandbox(policy)
    for _ in range(3):          # the first starts it, later ones may have it kept started
        done = box.run_code(SHOW, text=True)
        assert done.ok and done.stdout.split()[0] == "42" and done.stdout.split()[2] == prefix, done
    assert run_many([{"code": SHOW, "language": "python"}], policy=policy, text=True)[0].stdout.split()[0] == "42"
    # The interpreter's own directory is granted by parts, and nothing beside it.
    assert not box.run(["cat", str(python.parent.parent.parent / "secret")]).ok
    with box:
        assert (
            box.run_code(SHOW, text=True).stdout.split()[0] == "42"
            and box.exec(["python3", "-c", SHOW], text=True).stdout.split()[0] == "42"
        )


def test_clones_run_in_the_policys_python(places):
    pytest.importorskip("cloudpickle")

    def look():
        import sys

        import mine
        return mine.VALUE, sys.prefix

    (clone,) = Sandbox({"python": str(places["venv"])}, work_fn=look).fork(1)
    assert clone.get() == (42, str(places["venv"].parent.parent))


def test_command_line_accepts_an_interpreter(places, tmp_path):
    def cli(*arguments, stdin=""):
        return subprocess.run(
            [binaries() / "rollbox", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )

    python = str(places["venv"])
    assert cli("run", "--python", python, "--", "python3", "-c", SHOW).stdout.split()[0] == "42"
    job = json.dumps({"id": 1, "code": SHOW, "language": "python"}) + "\n"
    assert json.loads(cli("batch", "--python", python, "-", stdin=job).stdout)["stdout"].split()[0] == "42"
    for wrong, why in ((str(tmp_path / "none"), "No such file"), (str(tmp_path), "is not a program")):
        done = cli("run", "--python", wrong, "--", "true")
        assert done.returncode == 125 and why in done.stderr and "python" in done.stderr, done


def test_readable_paths_are_added_or_replace_the_default_on_every_surface(tmp_path):
    (tmp_path / "data").write_text("data")
    for directory in (tmp_path, *tmp_path.parents):
        if str(directory).startswith("/tmp/"):
            directory.chmod(0o755)
    path = str(tmp_path)
    assert Sandbox(Policy(fs_readable_extra=[path])).run(["cat", f"{path}/data"]).stdout == b"data"
    assert (
        not Sandbox(
            Policy(fs_readable=["/usr", "/lib", "/lib64", "/bin"], fs_readable_extra=[path])
        )
        .run(["cat", "/etc/profile"])
        .ok
    )
    assert (
        Sandbox(
            Policy(fs_readable=["/usr", "/lib", "/lib64", "/bin"], fs_readable_extra=[path, "/usr"])
        )
        .run(["cat", f"{path}/data"])
        .stdout
        == b"data"
    )
    with pytest.raises(rollbox.CommandNotFound):
        Sandbox(Policy(fs_readable=[path])).run(["cat", f"{path}/data"])
    plan = subprocess.run(
        [
            binaries() / "rollbox",
            "run",
            "--readable",
            path,
            "--readable",
            "/usr",
            "--",
            "cat",
            f"{path}/data",
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert plan.stdout == "data", plan
    with pytest.raises(rollbox.PolicyInvalid, match=r"fs_readable_extra\[0\].*fs_denied"):
        Policy(fs_readable_extra=[path], fs_denied=[path]).check()


# ---- defaults
# ------------------------------------------------------------------------------------------------------------


def test_default_disk_fills_before_memory(caller):
    """600 MB of files under the default policy: an error that the program sees, not its end."""
    done = caller.run("--", "sh", "-c", "dd if=/dev/zero of=/tmp/f bs=1M count=600 2>&1; rm /tmp/f; echo works")
    assert done.exit_code == 0 and "No space left" in done.stdout and done.stdout.endswith("works\n"), done
    size = caller.run("--memory", "64M", "--", "df", "-k", "--output=size", "/tmp").stdout.split()[-1]
    assert int(size) == 48 << 10
    assert int(caller.run("--memory", "4G", "--", "df", "-k", "--output=size", "/tmp").stdout.split()[-1]) == 1 << 20
    assert (
        int(
            caller.run("--disk", "1G", "--", "df", "-k", "--output=size", "/tmp").stdout.split()[-1]
        )
        == 1 << 20
    ), "what is given stays"
