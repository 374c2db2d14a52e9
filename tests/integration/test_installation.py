# SPDX-License-Identifier: Apache-2.0
"""An installation: every file in its place, one version, and a command that finds its engine."""
import ctypes
import os
import re
import shutil
import subprocess
import sys

import pytest

import rollbox
from harness import BUILD, TREE

FILES = [
    "bin/rollbox",
    "libexec/rollbox/rollbox-engine",
    "libexec/rollbox/rollbox-init",
    "libexec/rollbox/rollbox-store",
    "include/rollbox/rollbox.h",
    "share/bash-completion/completions/rollbox",
    "lib/systemd/system/rollbox-engine.service",
    "lib/systemd/user/rollbox-engine.service",
    "lib/tmpfiles.d/rollbox.conf",
]


def project_version():
    return re.search(r"version: '([^']+)'", (TREE / "meson.build").read_text()).group(1)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    if os.geteuid() != 0 and not os.access(BUILD / "meson-private", os.W_OK):
        pytest.skip("needs root: meson install writes its log into the build directory")
    destination = tmp_path_factory.mktemp("installed")
    subprocess.run(["meson", "install", "-C", str(BUILD), "--no-rebuild", "--quiet", "--destdir", str(destination)],
                   check=True, stdout=subprocess.DEVNULL)
    return destination / "usr/local"


def test_install_puts_every_file_in_its_place(installed):
    assert [name for name in FILES if not (installed / name).is_file()] == []
    assert list(installed.glob("lib/**/rollbox.pc"))
    assert list(installed.glob("lib/**/librollbox.so.0"))


def test_installed_command_finds_its_engine(installed):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ROLLBOX_")}
    shown = subprocess.run(
        [str(installed / "bin/rollbox"), "run", "--", "echo", "hello"],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    assert shown.stdout == b"hello\n"


def test_installed_units_name_the_installed_engine(installed):
    for name in FILES[-3:-1]:
        text = (installed / name).read_text()
        assert "ExecStart=/usr/local/libexec/rollbox/rollbox-engine --socket " in text
        assert "Delegate=yes" in text and "@" not in text


def test_version_is_that_of_meson(installed):
    version = project_version()
    assert rollbox._core.ffi.VERSION == version
    for program in ("bin/rollbox", "libexec/rollbox/rollbox-engine"):
        shown = subprocess.run(
            [str(installed / program), "--version"], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        assert version in shown
    assert f"Version: {version}" in next(installed.glob("lib/**/rollbox.pc")).read_text()
    library = ctypes.CDLL(str(next(installed.glob(f"lib/**/librollbox.so.{version}"))))
    library.rollbox_version.restype = ctypes.c_char_p
    assert library.rollbox_version().decode() == version
    manual = installed / "share/man/man1/rollbox-run.1"
    assert not shutil.which("scdoc") or f'"rollbox {version}"' in manual.read_text()


def test_version_in_a_source_checkout_is_that_of_meson():
    code = "import sys; sys.path.insert(0, sys.argv[1]); from rollbox._core import ffi; print(ffi.VERSION)"
    shown = subprocess.run(
        [sys.executable, "-I", "-c", code, str(TREE / "python")],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == project_version()


def test_package_has_the_command_as_a_program():
    places = [place for place in rollbox._core.ffi.find_binary("rollbox") if place.is_file()]
    assert places and places[0].read_bytes()[:4] == b"\x7fELF"


def setup_error(directory, environment):
    shown = subprocess.run(
        ["meson", "setup", str(directory), str(TREE)],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert shown.returncode != 0
    return [line for line in shown.stdout.splitlines() if "ERROR: " in line]


def test_build_without_libraries_names_their_packages(tmp_path):
    lines = setup_error(tmp_path / "build", {**os.environ, "PKG_CONFIG_LIBDIR": "/nonexistent", "PKG_CONFIG_PATH": ""})
    assert len(lines) == 1
    assert (
        "apt-get install libjansson-dev libarchive-dev nettle-dev libc-ares-dev libssl-dev libnghttp2-dev libyaml-dev. "
        in lines[0]
    )


def test_build_without_a_compiler_names_all_packages(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("meson", "ninja", "python3"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    lines = setup_error(tmp_path / "build", {"PATH": str(tmp_path / "bin")})
    assert len(lines) == 1
    assert (
        "apt-get install gcc libc6-dev pkg-config libjansson-dev libarchive-dev nettle-dev libc-ares-dev libssl-dev libnghttp2-dev libyaml-dev. "
        in lines[0]
    )


def test_build_without_headers_names_all_packages(tmp_path):
    """A compiler without the C library's headers."""
    (tmp_path / "gcc").write_text(
        '#!/bin/sh\ncase "$*" in *--version*|*-dM*) exec gcc "$@" ;; esac\necho "no stdio.h" >&2\nexit 1\n'
    )
    (tmp_path / "gcc").chmod(0o755)
    lines = setup_error(tmp_path / "build", {**os.environ, "CC": str(tmp_path / "gcc")})
    assert len(lines) == 1
    assert (
        "apt-get install gcc libc6-dev libjansson-dev libarchive-dev nettle-dev libc-ares-dev libssl-dev libnghttp2-dev libyaml-dev. "
        in lines[0]
    )
