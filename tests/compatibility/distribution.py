#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make integrations`: what a distribution needs, in a sandbox of many users and in a container of
the same root file system.

    distribution.py [--update]

The root file system is Debian's, made by debootstrap and kept in build/compatibility/debian. Commands run one after the
other in a sandbox that root runs, in one that an ordinary user with 65,536 ids runs (ROLLBOX_TEST_UID, 1000; the script
gives it an account and ids where it has none), and in a container that crun runs with Docker's default capabilities.
A command is the same if it ends with the same status in all. The exit status is 1 if a command differs and DIFFERENCES
does not explain it.
--update writes the table into docs/reference/distribution.md. Without root, debootstrap, crun or a mirror there is
nothing to compare, and the script says so.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration"))

from harness import ORDINARY_UID, Caller, binaries  # noqa: E402
from many_users import give_ids  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "distribution.md"
PLACE = ROOT / "build" / "compatibility"
PLACE_OF_COMMANDS = Path(__file__).resolve().parent / "distribution.sh"
MIRROR = os.environ.get("DIST_MIRROR", "http://deb.debian.org/debian")
SUITE = "bookworm"
# Package registries that commands install from, beside Debian's mirror.
REGISTRIES = (
    "pypi.org files.pythonhosted.org registry.npmjs.org index.crates.io static.crates.io crates.io"
).split()
TRUSTED = "/etc/ssl/certs/ca-certificates.crt"
TRUST = "CURL_CA_BUNDLE SSL_CERT_FILE NODE_EXTRA_CA_CERTS PIP_CERT CARGO_HTTP_CAINFO".split()
LONG_S = 3600
CAPABILITIES = (
    "CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE NET_RAW SYS_CHROOT MKNOD "
    "AUDIT_WRITE SETFCAP"
)


def commands():
    """The names and scripts of distribution.sh."""
    sections = (PLACE_OF_COMMANDS.read_text().split("\n### "))[1:]
    return [tuple(section.split("\n", 1)) for section in sections]


COMMANDS = commands()

CGROUP = "needs a memory cgroup: "
DIFFERENCES = {
    "mknod of a device": "a user namespace makes no devices",
    "raw socket": "ping needs none; other uses would forge packets",
    "unshare --user": "it would reach much more of the kernel; Docker's seccomp profile refuses it, too",
    "host name resolves": "crun alone writes no /etc/hosts; container engines do",
    "service nginx start": CGROUP + "nginx uses [sendfile](system-calls.md), and sends empty pages",
    "fakeroot": CGROUP + "queues of System V; fakeroot-tcp works",
    "System V IPC": CGROUP + "queues and semaphores of System V",
    "POSIX message queues": "the kernel counts them for a user of the host, not for a sandbox",
    "writing to /etc/hosts": "the file is the same for all sandboxes of a policy, so none can write to it",
    "rsyslog, logger": "/dev is read-only, so there is no /dev/log; other inputs of rsyslog work",
    "iptables": "both refuse it: a sandbox has no netfilter, and a container has no right to it",
}


def driver():
    lines = [
        "export DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root",
        "export " + " ".join(f"{name}=/etc/trusted.pem" for name in TRUST),
        "cd /root",
    ]
    for number, (_, command) in enumerate(COMMANDS):
        script = command.replace("'", "'\\''")
        lines += [
            f"timeout 600 bash -c '{script}' > /tmp/out.{number} 2>&1 < /dev/null",
            f"echo status {number} $?",
            f"{{ echo '#' {number}; tail -n 5 /tmp/out.{number}; }} >&2",
        ]
    return "\n".join(lines)


def statuses(text):
    return {
        int(n): int(status)
        for word, n, status in (
            line.split() for line in text.splitlines() if line.startswith("status ")
        )
        if word
    }


def debian():
    root = PLACE / "debian"
    if not (root / "etc/debian_version").exists():
        shutil.rmtree(root, ignore_errors=True)
        PLACE.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                "debootstrap",
                "--variant=minbase",
                "--include=iputils-ping,sudo,libcap2-bin,procps,tzdata",
                SUITE,
                root,
                MIRROR,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        subprocess.run(["chroot", root, "apt-get", "clean"], check=True)
    # The registries' certificates are those that this machine trusts.
    if Path(TRUSTED).exists():
        shutil.copy(TRUSTED, root / "etc/trusted.pem")
    return root


def oci_layout(root, place):
    """The root file system as an image of one layer."""
    blobs = place / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data, kind):
        name = hashlib.sha256(data).hexdigest()
        (blobs / name).write_bytes(data)
        return {
            "digest": "sha256:" + name,
            "size": len(data),
            "mediaType": "application/vnd.oci.image." + kind,
        }

    tar = subprocess.run(
        ["tar", "-C", root, "--xattrs", "--xattrs-include=security.capability", "-cf", "-", "."],
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    layer = blob(tar, "layer.v1.tar")
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [layer],
    }
    (place / "index.json").write_text(
        json.dumps(
            {
                "schemaVersion": 2,
                "manifests": [blob(json.dumps(manifest).encode(), "manifest.v1+json")],
            }
        )
    )
    (place / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return place


def in_rollbox(caller, layout):
    """As a caller, whose store is in its own directory."""
    program = binaries() / "rollbox"
    env = caller.environment(ROLLBOX_STORE=str(caller.home / "store"))
    hosts = [{"host": MIRROR.split("/")[2], "private": True, "ports": [80, 443]}]
    hosts += [{"host": name, "private": True, "ports": [443]} for name in REGISTRIES]
    policy = {
        "users": "many",
        "image": "debian",
        "max_memory": "6G",
        "max_disk": "4500M",
        "max_processes": 512,
        "timeout": "none",
        "max_output": "64M",
        "net_allow": hosts,
    }
    caller.write(caller.home / "policy.json", json.dumps(policy))
    importing = caller.call(
        program, "image", "import", "--name", "debian", layout, env=env, timeout=LONG_S
    )
    if importing.returncode != 0:
        sys.exit(f"distribution: {caller}: {importing.stderr.decode(errors='replace')}")
    with open(PLACE / f"{caller}.log", "wb") as log:
        done = caller.call(
            *(program, "run", "--policy", caller.home / "policy.json"),
            *("--", "bash", "-c", driver()),
            env=env,
            stderr=log,
            timeout=LONG_S,
        )
    return statuses(done.stdout.decode(errors="replace"))


def in_crun(root, place):
    bundle = place / "bundle"
    bundle.mkdir()
    subprocess.run(["cp", "-a", root, bundle / "rootfs"], check=True)
    shutil.copy("/etc/resolv.conf", bundle / "rootfs/etc/resolv.conf")
    subprocess.run(["crun", "spec"], cwd=bundle, check=True)
    spec = json.loads((bundle / "config.json").read_text())
    spec["process"].update(terminal=False, args=["bash", "-c", driver()], rlimits=[])
    names = ["CAP_" + name for name in CAPABILITIES.split()]
    spec["process"]["capabilities"] = {
        kind: names for kind in ("bounding", "effective", "permitted")
    }
    spec["process"]["noNewPrivileges"] = False
    spec["root"]["readonly"] = False
    spec["linux"]["namespaces"] = [
        n for n in spec["linux"]["namespaces"] if n["type"] not in ("network", "cgroup")
    ]
    spec["mounts"] = [m for m in spec["mounts"] if m["type"] != "cgroup"]
    (bundle / "config.json").write_text(json.dumps(spec))
    # crun refuses hosts with both versions of cgroups: in mounts of its own it sees one.
    see = "for m in $(grep ' cgroup' /proc/self/mounts | cut -d' ' -f2 | tac); do umount $m; done; mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null; "
    run = f"exec crun --cgroup-manager=disabled run --bundle {bundle} rollbox-{os.getpid()}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", see + run],
        stdout=subprocess.PIPE,
        stderr=open(PLACE / "crun.log", "wb"),
        text=True,
        check=False,
    )
    return statuses(done.stdout)


def word(status):
    return (
        "nothing"
        if status is None
        else "works"
        if status == 0
        else "refused"
        if status in (1, 32)
        else f"status {status}"
    )


def table(columns):
    lines = [
        "| command | root's sandbox | ordinary user's sandbox | crun | difference |",
        "|---|---|---|---|---|",
    ]
    for number, (name, _) in enumerate(COMMANDS):
        found = [column.get(number) for column in columns]
        told = "" if len({*found}) == 1 else DIFFERENCES.get(name, "not explained")
        lines.append(" | ".join([f"| {name}", *map(word, found), f"{told} |"]))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--update", action="store_true", help="write the table into docs/reference/distribution.md"
    )
    arguments = parser.parse_args()
    missing = [name for name in ("debootstrap", "crun") if not shutil.which(name)]
    if os.geteuid() != 0 or missing:
        print(f"distribution: left out: needs {'root' if os.geteuid() else ', '.join(missing)}")
        return 0
    give_ids()
    binaries()
    with tempfile.TemporaryDirectory(prefix="rollbox-distribution-", dir="/var/tmp") as temporary:
        os.chmod(temporary, 0o755)
        root, layout = debian(), Path(temporary) / "oci"
        oci_layout(root, layout)
        callers = [Caller("root", 0), Caller("user", ORDINARY_UID)]
        with ThreadPoolExecutor() as pool:
            runs = [pool.submit(in_rollbox, caller, layout) for caller in callers]
            runs.append(pool.submit(in_crun, root, Path(temporary)))
            columns = [run.result() for run in runs]
    text = table(columns)
    print(text)
    if arguments.update:
        page = PAGE.read_text()
        begin, end = "<!-- distribution: begin -->\n", "<!-- distribution: end -->"
        PAGE.write_text(
            page[: page.index(begin) + len(begin)] + text + "\n" + page[page.index(end) :]
        )
    return int("not explained" in text)


if __name__ == "__main__":
    sys.exit(main())
