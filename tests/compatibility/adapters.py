#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of adapters whose packages need a Python of their own (`make integrations`).

Each package is installed from PyPI into .venv-adapter-NAME. An adapter whose Python is not on this
machine is left out, with the reason. Python 3.12 and 3.13 are looked for as python3.12 and
python3.13, and among those of pyenv.
"""

import argparse
import glob
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests/integration"

NEMO_GYM = """omegaconf hydra-core pydantic rich aiohttp httpx psutil openai fastapi uvicorn orjson
    requests tqdm devtools"""
COMMON = ["pytest", "opentelemetry-proto"]  # of the tests themselves
# Where opentelemetry-proto is, Ray wants the rest of OpenTelemetry, too.
RAY = ["ray==2.60.0", "opentelemetry-sdk", "opentelemetry-exporter-prometheus"]
EPISODES = "test_integration_episodes.py"
PAGE = ROOT / "docs/integrations.md"
BEGIN, END = "<!-- results: `make integrations` writes them -->", "<!-- results end -->"


class Adapter(NamedTuple):
    """A framework, and the tests that are run with its package.

    Attributes:
        name: Of its virtual environment.
        framework: For readers.
        python: The Python that it needs.
        packages: From PyPI; the first one is the framework.
        tests: Files in tests/integration.
        only: pytest's -k.
        bare: Packages without what they depend on.
        source: It is not on PyPI: the option that names a directory with its source.
    """

    name: str
    framework: str
    python: str
    packages: list
    tests: list
    only: str = ""
    bare: tuple = ()
    source: str = ""


ADAPTERS = [
    Adapter(
        "harbor", "Harbor", "3.12", ["harbor==0.26.0"], ["test_integration_harbor.py", EPISODES]
    ),
    # Its requirements name every server and trainer; these are enough for its sandbox API.
    Adapter(
        "nemo_gym",
        "NeMo-Gym",
        "3.13",
        NEMO_GYM.split(),
        ["test_integration_nemo_gym.py", EPISODES],
        bare=("nemo-gym==0.7.0",),
    ),
    Adapter(
        "verifiers",
        "verifiers (and prime-rl by it)",
        "3.12",
        ["verifiers==0.4.0"],
        ["test_integration_verifiers.py", EPISODES],
    ),
    Adapter(
        "openenv",
        "OpenEnv",
        "3.12",
        ["openenv==0.10.0"],
        ["test_integration_openenv.py", "test_integration_openenv_server.py", EPISODES],
    ),
    Adapter(
        "inspect_ai",
        "inspect_ai",
        "3.11",
        ["inspect-ai==0.3.285", *RAY],
        ["test_integration_inspect_ai.py", "test_integrations.py", EPISODES],
        "inspect",
    ),
    Adapter(
        "ares", "ARES", "3.12", ["martian-ares==0.1.0"], ["test_integrations.py", EPISODES], "ares"
    ),
    Adapter(
        "mini_swe",
        "mini-swe-agent",
        "3.11",
        ["mini-swe-agent==2.4.6", *RAY],
        ["test_integrations_mini_swe_agent.py", EPISODES],
    ),
    Adapter(
        "trl",
        "TRL",
        "3.11",
        ["trl==1.16.0", "transformers", "torch", "jmespath", *RAY, "cloudpickle"],
        ["test_integration_trl.py", "test_integrations_trl.py", EPISODES],
    ),
    Adapter(
        "verl",
        "verl",
        "3.11",
        ["verl[verl-core]==0.9.1", "torch", "cachetools", *RAY],
        ["test_integration_verl.py", EPISODES],
    ),
    Adapter(
        "skyrl_gym",
        "SkyRL (SkyRL-Gym)",
        "3.11",
        ["skyrl-gym==0.4.0"],
        ["test_integration_skyrl_gym.py", EPISODES],
    ),
    Adapter(
        "smolagents",
        "smolagents",
        "3.11",
        ["smolagents==1.26.0"],
        ["test_integration_smolagents.py", EPISODES],
    ),
    Adapter(
        "ray",
        "Ray",
        "3.11",
        [*RAY, "cloudpickle"],
        ["test_integration_ray.py"],
    ),
    Adapter(
        "rllm",
        "rLLM",
        "3.11",
        ["pydantic", "requests", "click", "rich", "PyYAML", "omegaconf"],
        ["test_integration_rllm.py", EPISODES],
        source="rllm",
    ),
    Adapter(
        "tinker",
        "tinker-cookbook",
        "3.11",
        # Not its dependencies: it wants tml-renderers 0.4, of which PyPI has 0.2.
        ["chz", "aiohttp"],
        ["test_integrations_tinker_cookbook.py", EPISODES],
        bare=("tinker-cookbook==0.6.1",),
    ),
    Adapter(
        "mcp", "MCP (the SDK)", "3.11", ["mcp==2.3.0", "jsonschema"], ["test_integration_mcp.py"]
    ),
    Adapter(
        "swe_rex",
        "SWE-ReX",
        "3.11",
        ["swe-rex==1.4.0", "aiohttp", "requests"],
        ["test_integration_swe_rex.py"],
    ),
    Adapter(
        "schemathesis",
        "the OpenAPI document (schemathesis)",
        "3.11",
        ["schemathesis==4.32.5"],
        ["test_integration_schemathesis.py"],
    ),
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
    packages = [*COMMON, *packages]
    wanted = repr((packages, bare))
    if not mark.exists() or mark.read_text() != wanted:
        subprocess.run([python, "-m", "venv", "--clear", place], check=True)
        subprocess.run([program, "-m", "pip", "install", "-q", "uv"], check=True)
        pip = [place / "bin/uv", "pip", "install", "-q", "--python", program]
        subprocess.run([*pip, *packages], check=True)
        if bare:
            pip = [program, "-m", "pip", "install", "-q", "--ignore-requires-python", "--no-deps"]
            subprocess.run([*pip, *bare], check=True)
        mark.write_text(wanted)
    # The package itself, which has no part for one Python alone, with its programs beside it.
    own = Path(sysconfig.get_path("platlib")) / "rollbox"
    theirs = next(place.glob("lib/python*/site-packages")) / "rollbox"
    shutil.rmtree(theirs, ignore_errors=True)
    shutil.copytree(own, theirs, ignore=shutil.ignore_patterns("__pycache__"))
    # A program that runs cannot be written to, but its name can be given to another file.
    shutil.rmtree(place / "libexec/rollbox", ignore_errors=True)
    shutil.copytree(f"{sys.prefix}/libexec/rollbox", place / "libexec/rollbox")
    (place / "bin/rollbox").unlink(missing_ok=True)
    shutil.copy(f"{sys.prefix}/bin/rollbox", place / "bin/rollbox")
    return program


def run(adapter, program, source=None):
    """(passed, failed, skipped) of the adapter's tests."""
    environment = {**os.environ, "EPISODES_OF": adapter.name}
    if source is not None:
        environment["PYTHONPATH"] = str(source)
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        words = [program, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        words += [f"--junitxml={report.name}", *(TESTS / test for test in adapter.tests)]
        words += ["-k", adapter.only] if adapter.only else []
        subprocess.run(words, cwd=ROOT, env=environment)
        try:
            suite = ElementTree.parse(report.name).getroot().find("testsuite")
        except ElementTree.ParseError:
            return 0, 1, 0
    total, skipped = int(suite.get("tests")), int(suite.get("skipped"))
    failed = int(suite.get("failures")) + int(suite.get("errors"))
    return total - failed - skipped, failed, skipped


def version_of(source):
    """The version that a source's pyproject.toml has."""
    text = (Path(source) / "pyproject.toml").read_text()
    return next(line.split('"')[1] for line in text.splitlines() if line.startswith("version"))


def write(rows):
    """Puts rows into the page's table; those of adapters that were not run stay."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    table = dict(
        (line.split("|")[1].strip(), line) for line in old.splitlines() if line.startswith("| ")
    )
    table.pop("framework", None)
    table.update(rows)
    head = "| framework | package | Python | checks passed | skipped |\n|---|---|---|---|---|"
    PAGE.write_text(
        "\n".join([before + BEGIN, "", head, *(table[name] for name in sorted(table, key=str.lower))])
        + "\n\n"
        + END
        + after
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="adapters to run; none: all")
    parser.add_argument("--update", action="store_true", help="write docs/integrations.md")
    parser.add_argument("--rllm", metavar="DIR", help="a directory with rLLM's source")
    options = parser.parse_args()
    failed = []
    for adapter in ADAPTERS:
        if options.names and adapter.name not in options.names:
            continue
        source = getattr(options, adapter.source) if adapter.source else None
        if adapter.source and not source:
            print(f"{adapter.name}: left out: not on PyPI; --{adapter.source} names its source")
            continue
        python = find_python(adapter.python)
        if python is None:
            print(f"{adapter.name}: left out: needs Python {adapter.python}")
            continue
        program = installed(python, adapter.name, adapter.packages, list(adapter.bare))
        package = (list(adapter.bare) or adapter.packages)[0]
        if source:
            package = f"{adapter.name}=={version_of(source)}"
        print(f"{adapter.name}: {package}, Python {adapter.python}", flush=True)
        passed, wrong, skipped = run(adapter, program, source)
        if wrong:
            failed.append(adapter.name)
        name, _, version = package.partition("==")
        counts = f"{passed} of {passed + wrong} | {skipped}"
        row = f"| {adapter.framework} | {name} {version} | {adapter.python} | {counts} |"
        if options.update:
            write({adapter.framework: row})
    if failed:
        print("failed:", ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
