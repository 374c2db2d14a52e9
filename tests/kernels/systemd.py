#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Debian packages on a host with systemd: an emulated machine boots Debian 12 with them, starts
the shared engine as a service of
the system and of a user, and runs sandboxes in delegated cgroups. As root, after `tools/deb build`; some minutes.

    systemd.py [--kernel 6.1|6.12|newest] [--update]

The checks are in systemd_guest.sh. --update writes the table into docs/reference/compatibility.md.
The root file system is kept in build/kernels/systemd-root.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import run

PACKAGES = (
    "python3,python3-cloudpickle,libjansson4,libjansson-dev,libarchive13,libnettle8,libcurl4,libwslay1,"
    "openssl,systemd,systemd-sysv,libpam-systemd,dbus,dbus-user-session,procps"
)
UNIT = """[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /opt/systemd_guest.sh
ExecStopPost=/bin/systemctl poweroff --force --force
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
[Install]
WantedBy=default.target
"""
INIT = "#!/bin/bash\nexec /lib/systemd/systemd\n"


def make_root():
    base, tree, image = (run.CACHE / name for name in ("systemd-root", "systemd-tree", "systemd.img"))
    stamp = base.with_suffix(".packages")
    if not stamp.exists() or stamp.read_text() != PACKAGES:
        run.say("making the root file system with systemd (some minutes, once)")
        shutil.rmtree(base, ignore_errors=True)
        subprocess.run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(base), run.MIRROR],
                       check=True, stdout=subprocess.DEVNULL)
        stamp.write_text(PACKAGES)
    shutil.rmtree(tree, ignore_errors=True)
    subprocess.run(["cp", "-a", str(base), str(tree)], check=True)
    for path in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):
        shutil.rmtree(tree / path, ignore_errors=True)
    (tree / "opt").mkdir(exist_ok=True)
    (tree / "etc/systemd/system/check.service").write_text(UNIT)
    (tree / "etc/hostname").write_text("systemd-test\n")
    (tree / "etc/hosts").write_text("127.0.0.1 localhost systemd-test\n")
    commands = ("set -e; dpkg -i /tmp/*.deb >/dev/null; useradd -m -u 1000 ordinary; systemctl enable check.service; "
                "systemctl mask serial-getty@ttyS0.service getty@tty1.service")
    subprocess.run(
        [
            str(run.ROOT / "tools/in-root"),
            str(tree),
            str(run.ROOT / "dist"),
            "/bin/bash",
            "-c",
            commands,
        ],
        check=True,
    )
    run.make_image(image, tree, 1024)
    shutil.rmtree(tree)
    return image


def make_programs():
    tree, image = run.CACHE / "systemd-programs", run.CACHE / "systemd-programs.img"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    (tree / "guest-init").write_text(INIT)
    (tree / "guest-init").chmod(0o755)
    shutil.copy(Path(__file__).with_name("systemd_guest.sh"), tree)
    run.make_image(image, tree, 8)
    return image


def table(text, checks):
    release, systemd = re.search(r"kernel (\S+), systemd (\S+)", text).groups() if checks else ("no kernel", "none")
    lines = [f"| check | {release}, systemd {systemd} |", "|---|---|"]
    return "\n".join(lines + [f"| {name.replace('_', ' ')} | {status} |" for name, status, _ in checks])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", choices=list(run.KERNELS), default="newest")
    parser.add_argument("--update", action="store_true", help="write the table into docs/reference/compatibility.md")
    options = parser.parse_args()
    if not list((run.ROOT / "dist").glob("rollbox_*.deb")):
        sys.exit("systemd.py: there are no packages in dist; run tools/deb build first")
    run.CACHE.mkdir(parents=True, exist_ok=True)
    text = run.run_machine(options.kernel, [], make_root(), make_programs(), "systemd")
    checks = re.findall(r"check (\w+) (works|failed)(.*)", text)
    failures = [f"FAILED {name}{detail}" for name, status, detail in checks if status == "failed"]
    if "\ndone" not in text:
        failures.append(f"FAILED the machine did not come to its end; see {run.CACHE}/systemd.log")
    shown = table(text, checks)
    print(shown)
    if options.update:
        run.update_page(shown, "systemd")
    print(*failures, sep="\n")
    print(f"{len(checks) - len([row for row in checks if row[1] == 'failed'])} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
