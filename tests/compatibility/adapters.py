#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of adapters whose packages need a Python of their own (`make integrations`).

Each package is installed from PyPI into .venv-adapter-NAME. An adapter whose Python is not on this
machine is left out, with the reason. Python 3.12 and 3.13 are looked for as python3.12 and
python3.13, and among those of pyenv.
"""

import glob
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests/integration"

NEMO_GYM = """omegaconf hydra-core pydantic rich aiohttp httpx psutil openai fastapi uvicorn orjson
    requests tqdm devtools"""
# name, Python, packages, packages without what they depend on
ADAPTERS = [
    ("harbor", "3.12", ["harbor==0.26.0"], []),
    # Its requirements name every server and trainer; these are enough for its sandbox API.
    ("nemo_gym", "3.13", NEMO_GYM.split(), ["nemo-gym==0.7.0"]),
    ("verifiers", "3.12", ["verifiers==0.4.0"], []),
    ("openenv", "3.12", ["openenv==0.10.0"], []),
    ("ray", "3.11", ["ray==2.60.0", "cloudpickle"], []),
    ("mcp", "3.11", ["mcp==2.3.0", "jsonschema"], []),
    ("swe_rex", "3.11", ["swe-rex==1.4.0", "aiohttp", "requests"], []),
]


def find_python(version):
    """A Python of this version that has ssl and venv."""
    found = [f"/usr/bin/python{version}", shutil.which(f"python{version}") or ""]
    found += glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python{version}"))
    for program in found:
        if program and os.access(program, os.X_OK):
            done = subprocess.run([program, "-c", "import ssl, venv"], capture_output=True)
            if done.returncode == 0:
                return program
    return None


def installed(python, name, packages, bare):
    """The virtual environment's Python; its packages are fetched once."""
    place = ROOT / f".venv-adapter-{name}"
    program = place / "bin/python"
    mark = place / ".requirements"
    wanted = repr((packages, bare))
    if not mark.exists() or mark.read_text() != wanted:
        subprocess.run([python, "-m", "venv", "--clear", place], check=True)
        subprocess.run([program, "-m", "pip", "install", "-q", "uv"], check=True)
        pip = [place / "bin/uv", "pip", "install", "-q", "--python", program]
        subprocess.run([*pip, "pytest", *packages], check=True)
        if bare:
            pip = [program, "-m", "pip", "install", "-q", "--ignore-requires-python", "--no-deps"]
            subprocess.run([*pip, *bare], check=True)
        mark.write_text(wanted)
    # The package itself, which has no part for one Python alone, with its programs beside it.
    own = Path(sysconfig.get_path("platlib")) / "rollbox"
    theirs = next(place.glob("lib/python*/site-packages")) / "rollbox"
    shutil.rmtree(theirs, ignore_errors=True)
    shutil.copytree(own, theirs, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(f"{sys.prefix}/libexec/rollbox", place / "libexec/rollbox", dirs_exist_ok=True)
    shutil.copy(f"{sys.prefix}/bin/rollbox", place / "bin/rollbox")
    return program


def main():
    failed = []
    for name, version, packages, bare in ADAPTERS:
        python = find_python(version)
        if python is None:
            print(f"{name}: left out: needs Python {version}")
            continue
        program = installed(python, name, packages, bare)
        test = TESTS / f"test_integration_{name}.py"
        words = [program, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
        print(f"{name}: {' '.join(packages + bare)}, Python {version}", flush=True)
        if subprocess.run(words, cwd=ROOT).returncode != 0:
            failed.append(name)
    if failed:
        print("failed:", ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
