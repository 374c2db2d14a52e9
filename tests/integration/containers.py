# SPDX-License-Identifier: Apache-2.0
"""Containers to run rollbox in, by crun: what Docker's and Kubernetes' defaults let a program do.

The facts are Docker's default seccomp profile, its default capabilities, and the paths of /proc
that it masks; Kubernetes'
RuntimeDefault is the same profile. They are written here as what the profile refuses, of the calls that the kernel has.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

from harness import BUILD

# Refused with EPERM to everybody. Calls that the profile does not know yet are refused as well.
NEVER = """_sysctl acct add_key afs_syscall bpf create_module delete_module fanotify_init finit_module fsconfig fsmount fsopen
fspick get_kernel_syms getpmsg init_module ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind
migrate_pages mount mount_setattr move_mount move_pages nfsservctl open_by_handle_at open_tree perf_event_open
pidfd_getfd pivot_root process_madvise putpmsg query_module quotactl quotactl_fd reboot request_key security
set_mempolicy set_mempolicy_home_node setdomainname sethostname setns settimeofday clock_settime swapoff swapon syslog
tuxcall umount2 unshare uselib userfaultfd ustat vhangup vserver cachestat fchmodat2 map_shadow_stack futex_wake
futex_wait futex_requeue statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal setxattrat
getxattrat listxattrat removexattrat open_tree_attr file_getattr file_setattr get_mempolicy""".split()
# What the profile gives who has the capability.
BY_CAPABILITY = {
    "CAP_SYS_ADMIN": """bpf fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount mount_setattr move_mount
        open_tree perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog umount2 unshare""".split(),
    "CAP_SYS_PTRACE": ["kcmp", "pidfd_getfd", "process_madvise"],
    "CAP_SYS_NICE": ["get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node"],
}
NAMESPACES = 0x7E020000
PERSONALITIES = [0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF]
DOCKER_CAPABILITIES = """CAP_CHOWN CAP_DAC_OVERRIDE CAP_FSETID CAP_FOWNER CAP_MKNOD CAP_NET_RAW CAP_SETGID CAP_SETUID
CAP_SETFCAP CAP_SETPCAP CAP_NET_BIND_SERVICE CAP_SYS_CHROOT CAP_KILL CAP_AUDIT_WRITE""".split()
MASKED = """/proc/acpi /proc/asound /proc/interrupts /proc/kcore /proc/keys /proc/latency_stats /proc/timer_list
/proc/timer_stats /proc/sched_debug /proc/scsi /sys/firmware /sys/devices/virtual/powercap""".split()
READONLY = "/proc/bus /proc/fs /proc/irq /proc/sys /proc/sysrq-trigger".split()


# What deploy/seccomp.json lets pass besides, for isolation namespace with all that rollbox can do:
# namespaces and mounts,
# which the kernel then allows inside a user namespace alone; kcmp, for snapshots of what runs;
# userfaultfd, for those that are
# what has changed; pidfd_getfd, for clocks; and a process without random addresses, for seeds.
WANTED = """clone fsconfig fsmount fsopen kcmp mount mount_setattr move_mount open_tree pidfd_getfd pivot_root setdomainname
sethostname setns umount2 unshare userfaultfd""".split()
ADDR_NO_RANDOMIZE = 0x40000


PROGRAMS = ("build", "egress", "egress-tls", "engine", "http", "init", "otlp", "serve", "store")


def rule(names, action="SCMP_ACT_ALLOW", errno=None, args=()):
    row = {"names": list(names), "action": action, "args": list(args)}
    return row | ({"errnoRet": errno} if errno else {})


def known_calls():
    """By the headers that a program is compiled with: a profile does not know later ones either."""
    header = next(Path("/usr/include").glob("*/asm/unistd_64.h"))
    return re.findall(r"^#define __NR_(\w+) ", header.read_text(), re.MULTILINE)


def default_profile(capabilities, also=()):
    """`also`: calls that a profile of one's own lets pass besides."""
    given = {name for capability in capabilities for name in BY_CAPABILITY.get(capability, ())} | set(also)
    admin = "CAP_SYS_ADMIN" in capabilities
    special = {"socket", "personality", "clone", "clone3"}
    rules = [rule(name for name in known_calls() if name not in special and (name not in NEVER or name in given)),
             rule(["socket"], args=[{"index": 0, "value": 40, "op": "SCMP_CMP_NE"}]),
             *(rule(["personality"], args=[{"index": 0, "value": value, "op": "SCMP_CMP_EQ"}])
               for value in [*PERSONALITIES, *([ADDR_NO_RANDOMIZE] if "unshare" in also else [])])]
    if admin or "clone" in also:
        rules.append(rule(["clone"]))
    else:
        rules.append(
            rule(
                ["clone"],
                args=[{"index": 0, "value": NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
            )
        )
    rules.append(rule(["clone3"]) if admin or "clone3" in also else rule(["clone3"], "SCMP_ACT_ERRNO", 38))
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": rules,
    }


class Container:
    """A bundle with the host's /usr and /etc, and the programs under test at /rollbox, for any number of runs."""

    def __init__(self, directory, build, *, user=0, capabilities=DOCKER_CAPABILITIES, seccomp="default", masks=True,
                 new_privileges=True, ids=None, package=None, image=None, home="/tmp"):
        """`package`: the directory of site-packages, if Python's package is wanted at /rollbox/site.
        `image`: a root file system that has everything; there is no /rollbox then."""
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.root, own_mounts = (Path(image), []) if image else self.make_root(build, package)
        profile = (
            seccomp
            if isinstance(seccomp, dict)
            else default_profile(capabilities)
            if seccomp == "default"
            else None
        )
        mounts = [
            ("/proc", "proc", "proc", ["nosuid", "noexec", "nodev"]),
            ("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
            ("/dev/pts", "devpts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
            ("/dev/shm", "tmpfs", "shm", ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
            ("/sys", "bind", "/sys", ["rbind", "ro", "nosuid", "noexec", "nodev"]),
            ("/tmp", "tmpfs", "tmpfs", ["mode=1777"]),
            ("/run", "tmpfs", "tmpfs", ["mode=1777"]),
            *own_mounts,
        ]
        namespaces = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")]
        linux = {
            "namespaces": namespaces,
            "maskedPaths": MASKED if masks else [],
            "readonlyPaths": READONLY if masks else [],
        }
        if ids:
            namespaces.append({"type": "user"})
            linux["uidMappings"] = linux["gidMappings"] = [{"containerID": 0, "hostID": ids[0], "size": ids[1]}]
            self.directory.chmod(0o755)
            self.root.chmod(0o755)
            subprocess.run(["chown", "-R", "-h", f"{ids[0]}:{ids[0]}", str(self.root)], check=True)
        if profile:
            linux["seccomp"] = profile
        self.config = {
            "ociVersion": "1.0.2", "hostname": "pod", "root": {"path": str(image or "root")}, "linux": linux,
            "mounts": [{"destination": to, "type": kind, "source": source, "options": options}
                       for to, kind, source, options in mounts],
            "process": {
                "user": {"uid": user, "gid": user}, "cwd": "/", "noNewPrivileges": not new_privileges,
                "env": ["PATH=/usr/local/bin:/usr/bin:/bin", f"HOME={home}", "TMPDIR=/tmp",
                        *([] if image else ["PYTHONPATH=/rollbox/site"]), "PYTHONDONTWRITEBYTECODE=1"],
                "capabilities": {kind: capabilities if user == 0 or kind == "bounding" else []
                                 for kind in ("bounding", "effective", "permitted", "inheritable")},
            },
        }

    def make_root(self, build, package):
        """A root with nothing in it, and the mounts that fill it."""
        root, programs = self.directory / "root", self.directory / "programs"
        for name in ("usr", "etc", "opt", "proc", "sys", "dev", "tmp", "run", "var", "rollbox"):
            (root / name).mkdir(parents=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        programs.mkdir()
        for name in (None, *PROGRAMS):
            program = Path(build) / (f"rollbox-{name}" if name else "rollbox")
            if program.exists():
                shutil.copy(program, programs)
        for name in ("rollbox", "cloudpickle") if package else ():
            shutil.copytree(
                Path(package) / name,
                programs / "site" / name,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        for path in (self.directory, programs):
            path.chmod(0o755)
        bind = ["bind", "ro", "nosuid", "nodev"]
        return root, [
            ("/usr", "bind", "/usr", bind),
            ("/etc", "bind", "/etc", bind),
            ("/rollbox", "bind", str(programs), bind),
        ]

    def run(self, *argv, timeout=120):
        self.config["process"]["args"] = list(argv)
        (self.directory / "config.json").write_text(json.dumps(self.config))
        name = f"rollbox-test-{abs(hash(str(self.directory))):x}"
        # crun 1.8 refuses cgroups v1 beside a v2 mount with controllers, so it does not see that one.
        hide = "umount -l /sys/fs/cgroup/unified 2>/dev/null; exec \"$@\""
        words = ["crun", "--cgroup-manager=disabled", "run", "-b", str(self.directory), name]
        return subprocess.run(["unshare", "-m", "--propagation", "private", "sh", "-c", hide, "sh", *words],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout)


PROFILE = Path(__file__).resolve().parents[2] / "deploy" / "seccomp.json"
ADMIN = [*DOCKER_CAPABILITIES, "CAP_SYS_ADMIN"]
POD_IDS = (3000000, 65536)
# Each way to run a container: what process and namespace isolation come to, by the words of the refusal.
WAYS = {
    "docker, root": (dict(), None, "mount_api is missing"),
    "docker, user": (dict(user=1000), None, "mount_api is missing"),
    "kubernetes restricted": (
        dict(user=1000, capabilities=[], new_privileges=False),
        None,
        "mount_api is missing",
    ),
    "docker with SYS_ADMIN": (
        dict(capabilities=ADMIN, masks=False),
        None,
        "pivot_root is refused here",
    ),
    "pod with users of its own, root": (dict(ids=POD_IDS), None, "mount_api is missing"),
    "profile, user": (
        dict(user=1000, capabilities=[], new_privileges=False, masks=False, seccomp="deploy"),
        None,
        None,
    ),
    "profile, root": (dict(masks=False, seccomp="deploy"), None, "root without CAP_SYS_ADMIN"),
    "profile, masked /proc": (
        dict(user=1000, capabilities=[], seccomp="deploy"),
        None,
        "/proc unmasked",
    ),
    "profile, pod with users of its own": (
        dict(ids=POD_IDS, masks=False, seccomp="deploy"),
        None,
        None,
    ),
    "profile, pod with users of its own and SYS_ADMIN": (
        dict(ids=POD_IDS, capabilities=ADMIN, masks=False, seccomp="deploy"),
        None,
        None,
    ),
}


def container(directory, name, **more):
    options = {**WAYS[name][0], **more}
    if options.get("seccomp") == "deploy":
        options["seccomp"] = json.loads(PROFILE.read_text())
    directory.chmod(0o755)
    for parent in directory.parents[:2]:
        parent.chmod(parent.stat().st_mode | 0o011)
    return Container(directory / "container", BUILD, **options)
