# SPDX-License-Identifier: Apache-2.0
"""How the other sandboxing tools are called, so that they give what rollbox's default policy gives, as far as they can.

The same host directories, read-only; a private /tmp; /proc and /dev of its own; no network; no
capabilities; an empty environment. What a tool then still has not is in
its `lacks`, and goes into the report: a peer that does less is not slower for it.
"""
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Optional

DIRECTORIES = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt"]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def version(program: str) -> str:
    try:
        lines = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return lines[0] if lines else ""


def bwrap(argv: List[str]) -> Optional[List[str]]:
    program = shutil.which("bwrap")
    if not program:
        return None
    words = [program, "--unshare-all", "--die-with-parent", "--new-session"]
    for directory in DIRECTORIES:
        if os.path.islink(directory):
            words += ["--symlink", os.readlink(directory), directory]
        elif os.path.isdir(directory):
            words += ["--ro-bind", directory, directory]
    words += [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/tmp",
        "--chdir",
        "/tmp",
        "--clearenv",
        "--setenv",
        "PATH",
        PATH,
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--hostname",
        "bench",
        "--cap-drop",
        "ALL",
    ]
    return words + argv


def bwrap_alike(argv: List[str], plan: str, directory: Path) -> Optional[List[str]]:
    """The same with what rollbox's default policy has besides, as far as bubblewrap has it: the
    system-call filter, read from standard input, and nothing to be seen at the paths of /etc and
    /proc that are
    covered. plan: what `rollbox policy plan` prints. directory: for what covers them."""
    words = bwrap([])
    if not words:
        return None
    nothing, empty = directory / "nothing", directory / "empty"
    nothing.write_text("")
    empty.mkdir(exist_ok=True)
    for line in plan.splitlines():
        found = re.fullmatch(r" *\d+ COVER(?:_IF)? +(/(?:etc|proc)/\S+) <- (\S+).*", line)
        if found and Path(found[1]).exists():
            words += ["--ro-bind", str(empty if Path(found[1]).is_dir() else nothing), found[1]]
    return words + ["--seccomp", "0"] + argv


def bundle(directory: Path, argv: List[str], uid: int, gid: int, cgroup: str = "") -> Path:
    """An OCI bundle over the host's directories. Rootless (uid is not 0), it maps that one id; as root, a range."""
    root = directory / "rootfs"
    root.mkdir(parents=True, exist_ok=True)
    mounts: List[Dict[str, Any]] = []
    for name in ("proc", "dev", "tmp"):
        (root / name).mkdir(exist_ok=True)
    for path in DIRECTORIES:
        inside = root / path[1:]
        if os.path.islink(path):
            if not inside.is_symlink():
                inside.symlink_to(os.readlink(path))
        elif os.path.isdir(path):
            inside.mkdir(exist_ok=True)
            # Not recursively: a user namespace may not take a part of a mount tree, but rollbox's
            # recursive binds have nothing more here.
            mounts.append(
                {
                    "destination": path,
                    "type": "bind",
                    "source": path,
                    "options": ["rbind", "ro", "nosuid", "nodev"],
                }
            )
    mounts += [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
        },
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
        },
        {
            "destination": "/dev/shm",
            "type": "tmpfs",
            "source": "shm",
            "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"],
        },
        {
            "destination": "/tmp",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "nodev", "mode=1777", "size=1g"],
        },
    ]
    # As root a range of host ids, so that the guest is not the host's root either; inside it is uid
    # 1000. An ordinary user has one id to give, and runc
    # wants a root in its container: the guest is root inside, without capabilities.
    ids = (
        [{"containerID": 0, "hostID": 100000, "size": 65536}]
        if uid == 0
        else [{"containerID": 0, "hostID": uid, "size": 1}]
    )
    linux: Dict[str, Any] = {
        "namespaces": [
            {"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount", "user")
        ],
        "uidMappings": ids,
        "gidMappings": ids if uid == 0 else [{"containerID": 0, "hostID": gid, "size": 1}],
        "maskedPaths": [
            "/proc/acpi",
            "/proc/kcore",
            "/proc/keys",
            "/proc/latency_stats",
            "/proc/timer_list",
            "/proc/sched_debug",
            "/sys/firmware",
            "/proc/scsi",
        ],
        "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
    }
    if cgroup:
        linux["cgroupsPath"] = cgroup
    config = {
        "ociVersion": "1.0.2",
        "hostname": "bench",
        "process": {
            "terminal": False,
            "user": {"uid": 1000 if uid == 0 else 0, "gid": 1000 if uid == 0 else 0},
            "args": argv,
            "env": [f"PATH={PATH}"],
            "cwd": "/tmp",
            "noNewPrivileges": True,
            "capabilities": {
                kind: []
                for kind in ("bounding", "effective", "inheritable", "permitted", "ambient")
            },
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 4096, "soft": 4096}],
        },
        "root": {"path": "rootfs", "readonly": True},
        "mounts": mounts,
        "linux": linux,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    return directory


def crun(directory: Path, argv: List[str], uid: int, gid: int) -> Optional[List[str]]:
    program = shutil.which("crun")
    if not program:
        return None
    made = bundle(directory / "bundle", argv, uid, gid)
    return [program, "--root", str(directory / "state"), "--cgroup-manager=disabled", "run", "--bundle", str(made), "%"]


def runc(directory: Path, argv: List[str], uid: int, gid: int) -> Optional[List[str]]:
    program = shutil.which("runc") or (shutil.which("runc", path="/usr/sbin:/sbin"))
    if not program:
        return None
    made = bundle(directory / "bundle", argv, uid, gid)
    return [program, "--root", str(directory / "state"), "run", "--bundle", str(made), "%"]
