#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make bench`: what an adapter adds to a step, and Harbor's oracle trial beside podman.

    frameworks.py [--steps N] [--trials N] [--only NAME...]

A step is the command `true` through a framework's adapter, beside the same call of the package
alone in the same sandbox; the two take turns. A trial is a whole trial of Harbor's oracle agent on
examples/web_task, with rollbox and with Harbor's own podman environment; the image is built before.
The frameworks' virtual environments are those of `make integrations`. Root runs all of it.

Results: bench/results/frameworks.json, docs/reference/benchmarks-frameworks.md.
"""

import argparse
import contextlib
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
sys.path[:0] = [str(PROJECT / "tests/compatibility"), str(PROJECT / "tests/integration")]
RESULTS = HERE / "results/frameworks.json"
PAGE = PROJECT / "docs/reference/benchmarks-frameworks.md"

STEPS = {
    "harbor": "Harbor: `exec`",
    "nemo_gym": "NeMo-Gym: `exec`",
    "verifiers": "verifiers: `run`",
    "ares": "ARES: `exec_run`",
    "verl": "verl: a tool's call by `ToolAgentLoop`",
    "inspect_ai": "inspect_ai: `exec`",
    "skyrl_gym": "SkyRL-Gym: `step`",
    "trl": "TRL: a tool of the environment",
    "mini_swe": "mini-swe-agent: `execute`",
}
MOST_OF_STEP = 1.10
MOST_OF_TRIAL = 0.2
APPLETS = "kill tail tr cut head date".split()  # besides those of built_images
# crun refuses hosts with both versions of cgroups, and limits above those of this process.
CONTAINERS = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
"""


def base_image(store):
    """Brings the image `base`, with bash, which Harbor's podman wants: the path of its archive."""
    from archives import entry, layer
    from built_images import base, base_config

    bash = shutil.which("bash")
    listed = subprocess.run(["ldd", bash], capture_output=True, text=True, check=True).stdout
    files = {word.lstrip("/"): word for word in listed.split() if word.startswith("/")}
    files["bin/bash"] = bash
    more = [entry(name, Path(path).read_bytes(), mode=0o755) for name, path in files.items()]
    more += [entry(f"bin/{name}", b"", link="busybox") for name in APPLETS]
    layers = [base(), layer(*more)]
    store.bring("base", *layers, config=base_config(layers))
    root, archive = store.home / "root", store.home / "base.tar"
    root.mkdir()
    for data in layers:
        subprocess.run(["tar", "-C", root, "-xpf", "-"], input=data, check=True)
    subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
    return archive


def programs(names):
    """{name: the Python of its virtual environment}; those without their Python are left out."""
    import adapters

    found = {}
    for one in adapters.ADAPTERS:
        python = adapters.find_python(one.python)
        if one.name in names and python is not None:
            found[one.name] = adapters.installed(python, one.name, one.packages, list(one.bare))
    return found


def steps(name, python, store, count):
    words = [python, "-B", HERE / "framework_steps.py", name, store, str(count)]
    done = subprocess.run(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    if done.returncode:
        sys.exit(f"frameworks: {name} failed")
    return json.loads(done.stdout.splitlines()[-1])


def seconds(part):
    begun, ended = (datetime.datetime.fromisoformat(part[key]) for key in ("started_at", "finished_at"))
    return (ended - begun).total_seconds()


class Trials:
    """Trials of Harbor's oracle agent, in rollbox and in podman."""

    def __init__(self, place, python, store, archive):
        self.place, self.harbor = place, str(Path(python).with_name("harbor"))
        self.jobs = 0
        conf = place / "containers.conf"
        conf.write_text(CONTAINERS)
        compose = place / "compose"
        subprocess.run([sys.executable, "-m", "venv", compose], check=True)
        pip = [compose / "bin/pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "podman-compose==1.6.0"], check=True)
        self.environment = {
            **os.environ,
            "CONTAINERS_CONF": str(conf),
            "HARBOR_TELEMETRY": "off",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "PATH": f"{compose}/bin:{os.environ['PATH']}",
            "ROLLBOX_STORE": str(store),
        }
        self.podman("import", "-c", "ENV PATH=/bin", "-c", "WORKDIR=/", archive, "localhost/base")
        self.tasks = {}
        for kind, base in (("rollbox", "base"), ("podman", "localhost/base")):
            task = self.tasks[kind] = place / f"{kind}-task"
            shutil.copytree(PROJECT / "examples/web_task", task)
            file = task / "environment/Dockerfile"
            file.write_text(file.read_text().replace("ARG BASE=base", f"ARG BASE={base}"))

    def podman(self, *words):
        words = ["podman", *words]
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip() or f"podman ended with {done.returncode}")
        return done.stdout

    def run(self, kind):
        """Seconds of a whole trial, and of it without the end of its container."""
        self.jobs += 1
        jobs = self.place / f"jobs{self.jobs}"
        environment = {"rollbox": "rollbox.integrations.harbor:RollboxEnvironment"}.get(kind, kind)
        words = [self.harbor, "run", "--quiet", "--path", self.tasks[kind], "--agent", "oracle"]
        words += ["--jobs-dir", jobs, "--env", environment]
        null = subprocess.DEVNULL
        subprocess.run(words, env=self.environment, stdin=null, stdout=null, check=True)
        (path,) = jobs.glob("*/*/result.json")
        result = json.loads(path.read_text())
        if result["exception_info"] or result["verifier_result"]["rewards"] != {"reward": 1.0}:
            raise RuntimeError(f"the trial in {kind} failed: {result['exception_info']}")
        until = {"started_at": result["started_at"], **{"finished_at": result["verifier"]["finished_at"]}}
        return {"trial": seconds(result), "until the reward": seconds(until)}

    def close(self):
        with contextlib.suppress(RuntimeError):
            self.podman("rmi", "--force", "localhost/base")


def compared(place, python, store, archive, count):
    """[{"rollbox": ..., "podman": ...}, ...], or the reason for none."""
    missing = [name for name in ("podman", "runc", "busybox") if not shutil.which(name)]
    if missing:
        return f"needs {', '.join(missing)}"
    try:
        trials = Trials(place, python, store, archive)
    except (RuntimeError, subprocess.CalledProcessError) as problem:
        return str(problem)
    rounds = []
    try:
        for kind in ("rollbox", "podman"):  # builds the images
            trials.run(kind)
        for number in range(count):
            rounds.append({kind: trials.run(kind) for kind in ("rollbox", "podman")})
            print(f"trial {number + 1}/{count}: {rounds[-1]}", file=sys.stderr)
    except RuntimeError as problem:
        return str(problem)
    finally:
        trials.close()
    return rounds


def quantiles(values):
    values = sorted(values)
    return statistics.median(values), values[min(len(values) - 1, int(len(values) * 0.99))]


def page(results):
    lines = [
        "<!-- Made by make bench (bench/frameworks.py); do not edit. -->",
        "# Benchmarks of the adapters",
        "",
        f"Measured {results['date']} on {results['cpus']} CPUs, Linux {results['kernel']}, load"
        f" {results['load_before']:.1f} before and {results['load_after']:.1f} after.",
        "",
        "## A step",
        "",
        "The command `true` through an adapter, beside the same call of the package alone in the same",
        "sandbox. The two take turns. The ratio is the median of the ratios within a pair; beside it is",
        f"that of the 99th percentiles. At most {MOST_OF_STEP:.2f} is wanted of the median.",
        "",
        "| step | pairs | adapter, p50 ms | package, p50 ms | ratio | ratio of p99 | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, pairs in results["steps"].items():
        adapter, alone = (quantiles([pair[place] for pair in pairs]) for place in (0, 1))
        ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
        told = "reached" if ratio <= MOST_OF_STEP else "**missed**"
        lines.append(
            f"| {STEPS[name]} | {len(pairs)} | {adapter[0]:.2f} | {alone[0]:.2f} | {ratio:.2f} "
            f"| {adapter[1] / alone[1]:.2f} | {told} |"
        )
    lines += ["", "## A trial of Harbor", ""]
    trials = results["trials"]
    if isinstance(trials, str):
        return "\n".join([*lines, f"Left out: {trials}."]) + "\n"
    lines += [
        "The oracle agent on `examples/web_task`, in rollbox and in Harbor's own podman environment",
        "(podman with podman-compose and runc). Both images are built before. Podman's container ends",
        "ten seconds after it is asked to, because its first process ignores the signal, as with Docker;",
        "the second row leaves out the end of the container. A ratio is the median within a round.",
        "",
        "| what | rounds | rollbox, p50 s | podman, p50 s | ratio | target | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for part in trials[0]["rollbox"]:
        ratio = statistics.median(one["rollbox"][part] / one["podman"][part] for one in trials)
        times = [statistics.median(one[kind][part] for one in trials) for kind in ("rollbox", "podman")]
        told = "reached" if ratio <= MOST_OF_TRIAL else "**missed**"
        title = {"trial": "a whole trial", "until the reward": "a trial until its reward"}[part]
        lines.append(
            f"| {title} | {len(trials)} | {times[0]:.2f} | {times[1]:.2f} | {ratio:.3f} "
            f"| at most {MOST_OF_TRIAL} | {told} |"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500, help="pairs for each framework")
    parser.add_argument("--trials", type=int, default=3, help="rounds of trials; 0: none")
    parser.add_argument("--only", nargs="*", default=list(STEPS), choices=list(STEPS))
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("frameworks: left out: needs root")
        return 0
    from built_images import Builds

    before = os.getloadavg()[0]
    python = programs({*options.only, "harbor"})
    builds = Builds()
    archive = base_image(builds.store)
    measured = {}
    for name in options.only:
        if name not in python:
            print(f"{name}: left out: its Python is not here", file=sys.stderr)
            continue
        measured[name] = steps(name, python[name], builds.store.path, options.steps)
        ratio = statistics.median(pair[0] / pair[1] for pair in measured[name])
        print(f"{name}: {ratio:.3f}", file=sys.stderr)
    trials = "they were not asked for"
    if options.trials and "harbor" in python:
        with tempfile.TemporaryDirectory(prefix="rollbox-frameworks-", dir="/var/tmp") as temporary:
            trials = compared(
                Path(temporary), python["harbor"], builds.store.path, archive, options.trials
            )
    results = {
        "date": datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
        "cpus": os.cpu_count(),
        "kernel": os.uname().release,
        "load_before": before,
        "load_after": os.getloadavg()[0],
        "steps": measured,
        "trials": trials,
    }
    RESULTS.write_text(json.dumps(results) + "\n")
    PAGE.write_text(page(results))
    print(page(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
