#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make kernels`: every capability of rollbox on other kernels, as root and as an ordinary user, with cgroup v2.

    run.py [--kernel 6.1|6.12|newest] [--update] [NAME...]

QEMU emulates a machine for each kernel of Debian's: that of Debian 12, the one of its backports,
and the newest of Debian 13's
backports. The machine boots a small root file system (debootstrap, made once by root), runs
smoke.py for each caller, and
switches itself off. Kernels and root are kept in build/kernels. What is refused on a kernel is
written down in EXPECTED; any
other refusal or failure makes the exit status 1. --update writes the table into docs/reference/compatibility.md.
"""

import argparse
import gzip
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / "build" / "kernels"
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Name, suite, and what its version begins with.
KERNELS = {"6.1": ("bookworm", "6.1."), "6.12": ("bookworm-backports", "6.12."), "newest": ("trixie-backports", "")}
MODULES = [
    "virtio",
    "virtio_ring",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_blk",
    "overlay",
]
PACKAGES = "python3,procps,libjansson4,libarchive13,libnettle8,git,make,iproute2,busybox-static"
VM_TIMEOUT_S = 3000
BEFORE_6_15 = {"grade", "snapshot_and_reset_of_files", "fork_of_files", "live_fork_with_seed_and_virtual_time"}
EXPECTED = {
    ("6.1", "root"): BEFORE_6_15 | {"virtual_time", "serial"},
    ("6.1", "user"): BEFORE_6_15 | {"virtual_time", "serial", "isolation_process"},
    ("6.12", "root"): BEFORE_6_15,
    ("6.12", "user"): BEFORE_6_15,
    ("newest", "root"): set(),
    ("newest", "user"): set(),
}


def say(text):
    print(f"kernels: {text}", file=sys.stderr, flush=True)


def apt(directory, *words):
    return subprocess.run(
        ["apt-get" if words[0] in ("update", "download") else "apt-cache", *words],
        check=True,
        text=True,
        cwd=directory,
        stdout=subprocess.PIPE,
        env={**os.environ, "APT_CONFIG": str(CACHE / "apt.conf")},
    ).stdout


def begin_apt():
    for name in ("lists/partial", "cache/archives/partial"):
        (CACHE / "apt" / name).mkdir(parents=True, exist_ok=True)
    suites = sorted({suite for suite, _ in KERNELS.values()})
    (CACHE / "sources.list").write_text(
        "".join(f"deb [signed-by={KEYRING}] {MIRROR} {suite} main\n" for suite in suites)
    )
    (CACHE / "apt.conf").write_text(
        f'Dir::Etc::SourceList "{CACHE}/sources.list";\nDir::Etc::SourceParts "/dev/null";\n'
        f'Dir::State::Lists "{CACHE}/apt/lists";\nDir::Cache "{CACHE}/apt/cache";\n'
        'APT::Sandbox::User "root";\n'
    )
    apt(CACHE, "update")


def packages_of(prefix):
    """The newest cloud kernel whose version begins so: its image, or since 6.18 its binary and modules."""
    rows = [row.split("|") for row in apt(CACHE, "madison", "linux-image-cloud-amd64").splitlines()]
    version = next(row[1].strip() for row in rows if row[1].strip().startswith(prefix))
    shown = apt(CACHE, "show", f"linux-image-cloud-amd64={version}")
    release = re.search(r"linux-image-(\S+-cloud-amd64)", shown.split("Depends:")[1]).group(1)
    needs = apt(CACHE, "show", f"linux-image-{release}").split("Depends:")[1].split("\n")[0]
    parts = re.findall(r"linux-(?:binary|modules)-\S+-cloud-amd64", needs)
    return parts or [f"linux-image-{release}"]


def fetch_kernel(name):
    """vmlinuz and initrd of it, in the cache."""
    directory = CACHE / name
    if (directory / "initrd").exists():
        return directory
    if not (CACHE / "apt.conf").exists():
        begin_apt()
    shutil.rmtree(directory, ignore_errors=True)
    tree = directory / "tree"
    tree.mkdir(parents=True)
    for package in packages_of(KERNELS[name][1]):
        say(f"fetching {package}")
        apt(directory, "download", package)
    for file in directory.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(file), str(tree)], check=True)
        file.unlink()
    shutil.copy(next(path for path in tree.rglob("vmlinuz*")), directory / "vmlinuz")
    ram = directory / "ram"
    (ram / "bin").mkdir(parents=True)
    (ram / "modules").mkdir()
    shutil.copy("/bin/busybox", ram / "bin" / "busybox")
    shutil.copy(HERE / "first-init", ram / "init")
    (ram / "init").chmod(0o755)
    for module in MODULES:
        for file in tree.rglob(f"{module}.ko*"):
            data = file.read_bytes()
            (ram / "modules" / f"{module}.ko").write_bytes(lzma.decompress(data) if file.suffix == ".xz" else data)
    names = subprocess.run(["find", "."], cwd=ram, stdout=subprocess.PIPE, check=True).stdout
    archive = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"],
        input=names,
        cwd=ram,
        stdout=subprocess.PIPE,
        check=True,
    )
    (directory / "initrd").write_bytes(gzip.compress(archive.stdout, 1))
    shutil.rmtree(tree)
    shutil.rmtree(ram)
    return directory


def make_image(path, tree, megabytes):
    path.unlink(missing_ok=True)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", str(tree), str(path), f"{megabytes}M"], check=True)


def make_root():
    image = CACHE / "root.img"
    if image.exists():
        return image
    say("making the root file system (some minutes, once)")
    tree = CACHE / "root"
    shutil.rmtree(tree, ignore_errors=True)
    subprocess.run(
        [
            "debootstrap",
            "--variant=minbase",
            f"--include={PACKAGES}",
            "bookworm",
            str(tree),
            MIRROR,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    for path in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man"):
        shutil.rmtree(tree / path, ignore_errors=True)
    (tree / "opt").mkdir(exist_ok=True)
    make_image(image, tree, 1024)
    shutil.rmtree(tree)
    return image


def make_programs():
    tree = CACHE / "programs"
    shutil.rmtree(tree, ignore_errors=True)
    site = Path(sysconfig.get_path("platlib"))
    for name in ("rollbox", "cloudpickle"):
        shutil.copytree(site / name, tree / "site" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (
        "bin/rollbox",
        "libexec/rollbox/rollbox-engine",
        "libexec/rollbox/rollbox-init",
        "libexec/rollbox/rollbox-store",
    ):
        (tree / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "build" / Path(name).name, tree / "site" / name)
    for name in ("smoke.py", "guest-init"):
        shutil.copy(HERE / name, tree / name)
    subprocess.run(["chmod", "-R", "a+rX", str(tree)], check=True)
    (tree / "guest-init").chmod(0o755)
    image = CACHE / "programs.img"
    make_image(image, tree, 128)
    return image


def run_machine(name, names, root, programs, log=None):
    """One processor: emulated ones that run at once do not see each other's changes of kernel code
    in time. Without cmpxchg16b,
    which QEMU 7.2 emulates wrongly now and then."""
    kernel = fetch_kernel(name)
    disks = [word for path in (root, programs) for word in ("-drive", f"file={path},format=raw,if=virtio,snapshot=on")]
    command = [
        "qemu-system-x86_64",
        "-M",
        "q35",
        "-accel",
        "tcg",
        "-cpu",
        "max,-cx16",
        "-smp",
        "1",
        "-m",
        "2048",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
        "-serial",
        "stdio",
        "-kernel",
        str(kernel / "vmlinuz"),
        "-initrd",
        str(kernel / "initrd"),
        "-append",
        f"console=ttyS0 quiet panic=-1 reboot=t smoke={','.join(names)} ",
        *disks,
    ]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=VM_TIMEOUT_S,
    )
    text = done.stdout.decode(errors="replace").replace("\r", "")
    (CACHE / f"{log or name}.log").write_text(text)
    return text


def read_results(text):
    release, caller, rows, complaints = None, None, {}, None
    for line in text.splitlines():
        if line.startswith("kernel "):
            release = line.split()[1]
        elif line.startswith("caller "):
            caller = line.split()[1]
            rows[caller] = {}
        elif line.startswith("complaints "):
            complaints = int(line.split()[1])
        elif caller and line.startswith('{"name"'):
            row = json.loads(line)
            rows[caller][row["name"]] = row
    return release, rows, complaints


def table(releases, results, names):
    heads = [f"{releases[kernel]}, {caller}" for kernel in results for caller in results[kernel]]
    lines = ["| capability | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for name in names:
        cells = [
            results[kernel][caller].get(name, {}).get("status", "not run")
            for kernel in results
            for caller in results[kernel]
        ]
        lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def update_page(text, section="kernels"):
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    before, rest = PAGE.read_text().split(begin)
    PAGE.write_text(before + begin + "\n" + text + "\n" + end + rest.split(end)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", action="append", choices=list(KERNELS))
    parser.add_argument("--update", action="store_true", help="write the table into docs/reference/compatibility.md")
    parser.add_argument("names", nargs="*", help="capabilities (default: all)")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    import smoke
    names = options.names or list(smoke.CHECKS)
    CACHE.mkdir(parents=True, exist_ok=True)
    root, programs = make_root(), make_programs()
    releases, results, passed, failures = {}, {}, 0, []
    for kernel in options.kernel or KERNELS:
        say(f"running on {kernel}")
        text = run_machine(kernel, options.names, root, programs)
        releases[kernel], results[kernel], complaints = read_results(text)
        if complaints != 0:
            failures.append(
                f"{kernel}: the kernel complained, or the machine did not come to its end; see {CACHE}/{kernel}.log"
            )
        for caller in ("root", "user"):
            rows = results[kernel].get(caller, {})
            for name in names:
                row = rows.get(name, {"status": "not run", "detail": ""})
                wanted = {"works", "refused"} if name in EXPECTED[kernel, caller] else {"works"}
                if row["status"] in wanted:
                    passed += 1
                else:
                    failures.append(f"{kernel}, {caller}: {name} {row['status']}: {row['detail']}")
    shown = table(releases, results, names)
    print(shown)
    if options.update:
        update_page(shown)
    print(*failures, sep="\n")
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
