#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make bench`: sandboxes of many users, installs and builds beside crun, podman and buildah.

    machines.py [--rounds N] [--only NAME...]

The model: contestants take turns, round by round, so that other load on the machine meets all
alike, and a ratio is the median of the ratios within a round. The root file system is Debian's,
made by debootstrap and kept in build/compatibility (tests/compatibility/distribution.py). It is
root that runs all of it. Containers run in mounts of their own that have cgroup v2 alone, because
crun refuses hosts with both versions. They have no cgroups; sandboxes have.

Results: bench/results/machines.json, docs/reference/benchmarks-machines.md.
"""

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
sys.path[:0] = [str(PROJECT / "tests" / "compatibility"), str(PROJECT / "tests" / "integration")]
RESULTS = HERE / "results" / "machines.json"
PAGE = PROJECT / "docs" / "reference" / "benchmarks-machines.md"

# Packages whose archives are in the image, so that no network is measured.
PACKAGES = (
    "bc bzip2 cpio dc ed file gawk git jq less lsof m4 make man-db nano netcat-openbsd patch "
    "pigz psmisc rsync screen socat sqlite3 strace time tmux tree unzip xxd zip"
).split()
INSTALL = (
    "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends --no-download "
    + " ".join(PACKAGES)
)
DOCKERFILE = """FROM debian
RUN mkdir -p /srv/app
COPY files /srv/app/files
RUN useradd -m -s /bin/bash app
RUN chown -R app:app /srv/app
ENV APP=/srv/app
WORKDIR /srv/app
RUN for i in $(seq 200); do echo $i > file$i; done
RUN tar -cf /srv/all.tar . && rm -f file1*
COPY --chown=app:app files/one /srv/app/one
RUN sort files/* > sorted && chmod 600 sorted
RUN ln -s sorted link && rm -rf /srv/all.tar
"""
ALONE = (
    "for m in $(grep ' cgroup' /proc/self/mounts | cut -d' ' -f2 | tac); do umount $m; done; "
    'mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null; exec "$@"'
)
WORKER = """
import json, subprocess, sys, time
for line in sys.stdin:
    argv = json.loads(line)
    began = time.monotonic()
    pipe, null, out = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
    done = subprocess.run(argv, stdin=null, stdout=pipe, stderr=out)
    ms = (time.monotonic() - began) * 1000
    said = done.stdout.decode(errors="replace")[-2000:]
    print(json.dumps([ms, done.returncode, said]), flush=True)
"""
TARGETS = (
    # row, contestant, of, at most
    ("start", "many users", "one user", 1.5),
    ("first exec", "rollbox", "crun", 0.2),
    ("first exec", "rollbox", "podman", 0.05),
    ("install", "rollbox", "crun", 1.1),
    ("build", "rollbox", "buildah", 1.0),
    ("fork", "installed environment", "1,000 files", 2.0),
)
TITLES = {
    "start": "`/bin/true` from an image, warm engine",
    "first exec": "create, first exec of `/bin/true`, end",
    "install": f"`apt-get install` of {len(PACKAGES)} packages, from archives in the image",
    "build": "a Dockerfile of 11 steps, without its cache",
    "second build": "the same again, from the cache",
    "fork": "50 forks of a sandbox's files",
}
SECOND_BUILD_MS = 50


class Containers:
    """Programs in mounts where cgroup v2 is alone."""

    def __init__(self):
        words = ["unshare", "--mount", "sh", "-c", ALONE, "sh", sys.executable, "-c", WORKER]
        self.worker = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ms(self, *argv):
        print(json.dumps([str(word) for word in argv]), file=self.worker.stdin, flush=True)
        ms, status, said = json.loads(self.worker.stdout.readline())
        if status:
            sys.exit(f"machines: {argv[:3]} failed with {status}: {said}")
        return ms

    def close(self):
        self.worker.stdin.close()
        self.worker.wait()


def timed(call):
    began = time.monotonic()
    call()
    return (time.monotonic() - began) * 1000


def prepare_root(place):
    """Debian with lists and archives of packages; an image of it."""
    import distribution

    root = place / "root"
    subprocess.run(["cp", "-a", distribution.debian(), root], check=True)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    script = "apt-get update -qq && apt-get install -qq -y --no-install-recommends --download-only "
    words = ["chroot", root, "sh", "-c", script + " ".join(PACKAGES)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    distribution.oci_layout(root, place / "oci")
    return root


class Machines:
    def __init__(self, place):
        import rollbox

        self.place, self.rollbox = place, rollbox
        os.environ["ROLLBOX_STORE"] = str(place / "store")
        self.root = prepare_root(place)
        self.program = PROJECT / "build" / "rollbox"
        words = [self.program, "image", "import", "--name", "debian", place / "oci"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        self.containers = Containers()
        self.engine = rollbox.Engine()
        self.number = 0
        self.context = place / "context"
        (self.context / "files").mkdir(parents=True)
        for name in ("one", "two", "three"):
            (self.context / "files" / name).write_text(f"{name}\n" * 1000)
        (self.context / "Dockerfile").write_text(DOCKERFILE)
        storage = ["--root", place / "buildah", "--runroot", place / "buildah-run"]
        self.buildah = ["buildah", *storage, "--storage-driver", "overlay"]
        self.podman = ["podman", *storage, "--storage-driver", "overlay"]

    def close(self):
        self.engine.close()
        self.containers.close()

    def policy(self, users="many", **keys):
        keys = {"max_memory": "2G", "max_processes": 256, "image": "debian", **keys}
        return self.rollbox.Policy(users=users, **keys)

    def container(self, command, upper="tmpfs"):
        """crun's, with the root file system as an overlay's lower layer, and Docker's rights."""
        self.number += 1
        bundle = self.place / f"bundle{self.number}"
        (bundle / "rootfs").mkdir(parents=True)
        subprocess.run(["crun", "spec"], cwd=bundle, check=True)
        spec = json.loads((bundle / "config.json").read_text())
        import distribution

        names = ["CAP_" + name for name in distribution.CAPABILITIES.split()]
        spec["process"].update(terminal=False, args=["sh", "-c", command], noNewPrivileges=False)
        spec["process"]["capabilities"] = {
            kind: names for kind in ("bounding", "effective", "permitted")
        }
        spec["process"]["rlimits"] = []
        spec["root"]["readonly"] = False
        spec["linux"]["namespaces"] = [
            n for n in spec["linux"]["namespaces"] if n["type"] != "cgroup"
        ]
        spec["mounts"] = [m for m in spec["mounts"] if m["type"] != "cgroup"]
        (bundle / "config.json").write_text(json.dumps(spec))
        mount = (
            f"mount -t {upper} none {bundle}/m && mkdir {bundle}/m/u {bundle}/m/w && "
            f"mount -t overlay -o lowerdir={self.root},upperdir={bundle}/m/u,workdir={bundle}/m/w "
            f"none {bundle}/rootfs"
        )
        (bundle / "m").mkdir()
        self.containers.ms("sh", "-c", mount)
        return bundle

    def crun(self, bundle):
        name = f"bench-{os.getpid()}-{self.number}"
        words = ["crun", "--root", self.place / "crun", "--cgroup-manager=disabled", "run"]
        ms = self.containers.ms(*words, "--bundle", bundle, name)
        self.containers.ms("sh", "-c", f"umount {bundle}/rootfs {bundle}/m")
        shutil.rmtree(bundle)
        return ms

    # ---- rows: each returns {contestant: milliseconds} of one round ----

    def start(self):
        def run(users):
            box = self.rollbox.Sandbox(self.policy(users), engine=self.engine)
            return timed(lambda: box.run(["/bin/true"]))

        times = {}
        for users, name in (("one", "one user"), ("many", "many users")):
            run(users)
            times[name] = statistics.median(run(users) for _ in range(10))
        return times

    def first_exec(self):
        def session():
            with self.rollbox.Sandbox(self.policy(), engine=self.engine) as box:
                box.exec(["/bin/true"])

        session()
        times = {"rollbox": statistics.median(timed(session) for _ in range(10))}
        times["crun"] = self.crun(self.container("exec /bin/true"))
        limits = ["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"]
        words = ["--cgroup-manager", "cgroupfs", "--runtime", "crun", "run", "--rm"]
        words += ["--cgroups=disabled", "--network=none", "--log-driver=none", *limits]
        times["podman"] = self.containers.ms(
            *self.podman, *words, "--rootfs", f"{self.root}:O", "/bin/true"
        )
        return times

    def install(self):
        with self.rollbox.Sandbox(self.policy(max_disk="1500M"), engine=self.engine) as box:
            box.exec(["/bin/true"])
            ours = timed(lambda: self.check(box.exec(INSTALL, timeout=600)))
        return {"rollbox": ours, "crun": self.crun(self.container(INSTALL))}

    @staticmethod
    def check(result):
        if result.exit_code != 0:
            sys.exit(f"machines: failed: {result.stdout[-2000:]!r} {result.stderr[-2000:]!r}")

    def build(self):
        def ours(*flags):
            words = [self.program, "image", "build", "--progress=quiet", "-t", "made", *flags]
            subprocess.run([*words, self.context], check=True, stdout=subprocess.DEVNULL)

        def theirs(*flags):
            words = ["bud", "-q", "--isolation", "chroot", "--layers", "-t", "made", *flags]
            return self.containers.ms(*self.buildah, *words, self.context)

        times = {"rollbox": timed(lambda: ours("--no-cache")), "buildah": theirs("--no-cache")}
        self.second = {"rollbox": timed(ours), "buildah": theirs()}
        return times

    def second_build(self):
        return self.second

    def fork(self):
        def once(box):
            copies = []
            ms = timed(lambda: copies.extend(box.fork(50)))
            for copy in copies:
                copy.close()
            return ms

        def forks(box):
            return statistics.median(once(box) for _ in range(5))

        plain = self.rollbox.Policy(max_memory="256M")
        write = "mkdir d; for i in $(seq 1000); do echo $i > d/$i; done"
        with self.rollbox.Sandbox(plain, engine=self.engine) as box:
            self.check(box.exec(write))
            files = forks(box)
        with self.rollbox.Sandbox(self.policy(max_memory="330M"), engine=self.engine) as box:
            self.check(box.exec(INSTALL, timeout=600))
            return {"installed environment": forks(box), "1,000 files": files}


def prepare_builds(machines):
    """The same root file system as an image of buildah's."""
    place = machines.place / "base"
    place.mkdir()
    subprocess.run(["tar", "-C", machines.root, "-cf", place / "root.tar", "."], check=True)
    (place / "Dockerfile").write_text(
        "FROM scratch\nADD root.tar /\nENV PATH=/usr/bin:/bin:/usr/sbin:/sbin\n"
    )
    words = ["bud", "-q", "--isolation", "chroot", "-t", "localhost/debian", place]
    machines.containers.ms(*machines.buildah, *words)


def measured(rounds, names):
    rows = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="rollbox-machines-", dir="/var/tmp") as temporary:
        machines = Machines(Path(temporary))
        try:
            if "build" in rows:
                prepare_builds(machines)
            for number in range(rounds):
                for name in names:
                    times = getattr(machines, name.replace(" ", "_"))()
                    rows[name].append(times)
                    told = ", ".join(f"{key} {ms:.1f} ms" for key, ms in times.items())
                    print(f"{number + 1}/{rounds} {name}: {told}", file=sys.stderr)
        finally:
            machines.close()
            for area in ("buildah/overlay", "buildah"):
                words = ["umount", Path(temporary) / area]
                subprocess.run(words, check=False, stderr=subprocess.DEVNULL)
    return rows


def ratio(rounds, contestant, of):
    return statistics.median(times[contestant] / times[of] for times in rounds)


def quantiles(rounds, contestant):
    values = sorted(times[contestant] for times in rounds)
    return statistics.median(values), values[min(len(values) - 1, int(len(values) * 0.99))]


def page(results):
    rows = results["rows"]
    lines = [
        "<!-- Made by make bench (bench/machines.py); do not edit. -->",
        "# Benchmarks of machines",
        "",
        "Sandboxes of many users, installs and builds, beside crun, podman and buildah; root runs all.",
        f"Measured {results['date']} on {results['cpus']} CPUs, Linux {results['kernel']}, load"
        f" {results['load_before']:.1f} before and {results['load_after']:.1f} after.",
        f"Versions: {results['versions']}.",
        "",
        "A ratio is the median of the ratios within a round, and contestants take turns. Containers have",
        "no cgroups here; sandboxes have a limit of memory. podman's root file system is an overlay on the",
        "disk; crun's is an overlay with its changed files in memory, as rollbox's are.",
        "",
        "| what | contestant | compared with | ratio | target | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for row, contestant, of, most in TARGETS:
        if row in rows:
            found = ratio(rows[row], contestant, of)
            told = "reached" if found <= most else "**missed**"
            title = TITLES[row]
            lines.append(
                f"| {title} | {contestant} | {of} | {found:.3f} | at most {most} | {told} |"
            )
    if "second build" in rows:
        found = quantiles(rows["second build"], "rollbox")[0]
        told = "reached" if found <= SECOND_BUILD_MS else "**missed**"
        lines.append(
            f"| {TITLES['second build']} | rollbox | p50, ms | {found:.1f} | at most {SECOND_BUILD_MS} | {told} |"
        )
    lines += ["", "| what | contestant | rounds | p50, ms | p99, ms |", "|---|---|---|---|---|"]
    for row, rounds in rows.items():
        for contestant in rounds[0]:
            p50, p99 = quantiles(rounds, contestant)
            lines.append(
                f"| {TITLES[row]} | {contestant} | {len(rounds)} | {p50:.1f} | {p99:.1f} |"
            )
    return "\n".join(lines) + "\n"


def versions():
    found = []
    for program in ("crun", "podman", "buildah"):
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        found.append(done.stdout.splitlines()[0])
    return ", ".join(line.split(" (")[0] for line in found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=list(TITLES), choices=list(TITLES))
    arguments = parser.parse_args()
    missing = [n for n in ("debootstrap", "crun", "podman", "buildah") if not shutil.which(n)]
    if os.geteuid() != 0 or missing:
        print(f"machines: left out: needs {'root' if os.geteuid() else ', '.join(missing)}")
        return 0
    before = os.getloadavg()[0]
    rows = measured(arguments.rounds, arguments.only)
    results = {
        "date": datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
        "cpus": os.cpu_count(),
        "kernel": os.uname().release,
        "load_before": before,
        "load_after": os.getloadavg()[0],
        "versions": versions(),
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results))
    print(page(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
