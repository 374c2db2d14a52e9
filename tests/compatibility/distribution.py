#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make integrations`: what a distribution needs, in a sandbox of many users and in a container of
the same root file system.

    distribution.py [--update]

The root file system is Debian's, made by debootstrap and kept in build/compatibility/debian. Commands run one after the
other in one sandbox, and in one container that crun runs, which has Docker's default capabilities.
A command is the same
if it ends with the same status in both. The exit status is 1 if a command differs and DIFFERENCES does not explain it.
--update writes the table into docs/reference/compatibility.md. Without root, debootstrap, crun or a mirror there is
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

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
PLACE = ROOT / "build" / "compatibility"
BUILD = Path(os.environ.get("ROLLBOX_BUILD", ROOT / "build"))
MIRROR = os.environ.get("DIST_MIRROR", "http://deb.debian.org/debian")
SUITE = "bookworm"
PACKAGES = "nginx openssh-server openssh-client postgresql redis-server cron git tmux locales curl acl strace iproute2 python3-pip"
CAPABILITIES = "CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE NET_RAW SYS_CHROOT MKNOD AUDIT_WRITE SETFCAP"

# fmt: off
COMMANDS = (
    ("apt-get update", "apt-get update"),
    ("apt-get install", f"apt-get install -y --no-install-recommends {PACKAGES}"),
    ("apt-get remove", "apt-get remove -y tmux && apt-get install -y tmux"),
    ("dpkg-reconfigure", "dpkg-reconfigure -f noninteractive tzdata"),
    ("useradd", "useradd -m -s /bin/bash carol"),
    ("adduser, deluser", "adduser --disabled-password --gecos '' dave && deluser --remove-home dave"),
    ("groupadd, usermod, gpasswd", "groupadd -g 555 five && usermod -aG five carol && gpasswd -a carol mail && id -nG carol | grep -q 'five'"),
    ("chpasswd, passwd", "echo carol:secret | chpasswd && passwd -S carol"),
    ("su - USER -c", "su - carol -c 'test $(id -un) = carol && test $PWD = /home/carol'"),
    ("sudo", "echo 'carol ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/c && su carol -c 'test $(sudo id -u) = 0 && test $(sudo -u nobody id -un) = nobody'"),
    ("chown, chmod, install -o", "touch /root/f && chown carol:mail /root/f && install -o carol -g mail -m 640 /root/f /root/g && test $(stat -c %U:%G:%a /root/g) = carol:mail:640"),
    ("cp -a, tar keep owners", "cp -a /home/carol /root/copy && tar -C / -cf - home/carol | tar -C /root -xf - && test $(stat -c %U /root/home/carol) = carol"),
    ("others' files are closed", "install -m 600 /root/f /srv/f && ! su carol -c 'cat /srv/f'"),
    ("setuid program of a user", "cp /usr/bin/id /usr/local/bin/idu && chown carol /usr/local/bin/idu && chmod 4755 /usr/local/bin/idu && su nobody -s /bin/sh -c 'idu | grep -q euid'"),
    ("setcap, getcap", "setcap cap_net_bind_service+ep /usr/local/bin/idu && getcap /usr/local/bin/idu | grep -q bind && /usr/local/bin/idu"),
    ("setpriv", "setpriv --reuid carol --regid carol --init-groups id"),
    ("chroot --userspec", "test $(chroot --userspec=carol / id -un) = carol"),
    ("mkfifo", "mkfifo /tmp/fifo"),
    ("ping", "ping -c 1 127.0.0.1 && su carol -c 'ping -c 1 127.0.0.1'"),
    ("service nginx start", "service nginx start && curl -s http://127.0.0.1/ | grep -q nginx && ps -eo user,comm | grep -q '^www-data *nginx'"),
    ("service nginx stop", "service nginx stop"),
    ("sshd, login as a user", "su carol -c \"mkdir -m 700 ~/.ssh && ssh-keygen -q -N '' -t ed25519 -f ~/.ssh/id_ed25519 && cp ~/.ssh/id_ed25519.pub ~/.ssh/authorized_keys\" && service ssh start && su carol -c 'ssh -o StrictHostKeyChecking=no 127.0.0.1 id'"),
    ("sshd, login as root", "mkdir -p -m 700 /root/.ssh && cp /home/carol/.ssh/id_ed25519* /home/carol/.ssh/authorized_keys /root/.ssh/ && chown root /root/.ssh/* && ssh -o StrictHostKeyChecking=no root@127.0.0.1 true"),
    ("scp", "scp -o StrictHostKeyChecking=no /etc/passwd root@127.0.0.1:/tmp/p && cmp /tmp/p /etc/passwd"),
    ("git clone over ssh and file", "su - carol -c 'git init -q r && cd r && git -c user.email=a@b -c user.name=c commit -q --allow-empty -m x && git clone -q ssh://127.0.0.1/home/carol/r ~/r2 && git clone -q /home/carol/r ~/r3'"),
    ("crontab", "service cron start && echo '* * * * * true' | crontab - && crontab -l && echo '* * * * * true' | crontab -u carol -"),
    ("postgres initdb", "su postgres -c '/usr/lib/postgresql/*/bin/initdb -D /tmp/pg'"),
    ("service postgresql start, psql", "service postgresql start && sleep 3 && su postgres -c 'psql -c \"select 1\"'"),
    ("redis", "service redis-server start && sleep 1 && redis-cli ping | grep -q PONG"),
    ("tmux", "tmux new-session -d 'sleep 60' && tmux ls"),
    ("script, a terminal of another user", "script -qec \"su carol -c tty\" /dev/null"),
    ("locale-gen", "echo 'de_DE.UTF-8 UTF-8' > /etc/locale.gen && locale-gen"),
    ("update-alternatives", "update-alternatives --install /usr/bin/foo foo /bin/true 10"),
    ("ulimit", "ulimit -Sn 512 && ulimit -Sn $(ulimit -Hn)"),
    ("nice", "nice -n 5 true"),
    ("writing to /dev/stdout as a user", "su carol -c 'echo x > /dev/stdout' | cat"),
    ("host name resolves", "getent hosts $(hostname)"),
    ("/dev nodes", "for n in null zero full random urandom tty ptmx; do test -c /dev/$n || exit 3; done; head -c 4 /dev/urandom | wc -c | grep -q 4"),
    ("/dev/fd, stdin, stdout, stderr", "test \"$(echo a | cat /dev/stdin)\" = a && echo x > /dev/stderr && cat /dev/fd/3 3< /etc/passwd > /dev/stdout"),
    ("/dev/full", "cat /etc/passwd > /dev/full"),
    ("/dev/shm", "echo x > /dev/shm/f && df /dev/shm && su carol -c 'echo y > /dev/shm/g'"),
    ("a terminal of /dev/pts", "script -qec 'test -c $(tty)' /dev/null"),
    ("reading /proc/sys", "cd /proc/sys && cat kernel/osrelease kernel/pid_max kernel/shmmax kernel/random/uuid vm/overcommit_memory fs/file-max net/core/somaxconn"),
    ("the host name in /proc/sys", "cat /proc/sys/kernel/hostname"),
    ("writing to /proc/sys", "echo 65536 > /proc/sys/kernel/shmmax"),
    ("nproc, free, uptime, ps", "nproc && free && uptime && ps aux"),
    ("/etc/resolv.conf", "grep -q nameserver /etc/resolv.conf"),
    ("orphans are reaped", "(setsid sleep 0.1 &); sleep 1; ! ps -eo stat | grep -q ^Z"),
    ("start-stop-daemon", "start-stop-daemon --start --background --make-pidfile --pidfile /tmp/pid --exec /bin/sleep -- 100 && sleep 0.5 && start-stop-daemon --stop --pidfile /tmp/pid"),
    ("root kills a user's process", "(su carol -c 'exec sleep 100' &); sleep 1; pkill -u carol sleep"),
    ("a user cannot kill root's process", "sleep 100 & su carol -c \"kill $!\""),
    ("runuser", "test $(runuser -u carol -- id -un) = carol"),
    ("sudo -l", "sudo -l -U carol"),
    ("setfacl", "setfacl -m u:carol:r /root/g && getfacl /root/g | grep -q user:carol"),
    ("fallocate", "fallocate -l 1M /tmp/reserved"),
    ("strace", "strace -f -o /dev/null sh -c true"),
    ("ldconfig", "ldconfig"),
    ("python3 -m venv", "apt-get install -y --no-install-recommends python3-venv && python3 -m venv /tmp/venv && /tmp/venv/bin/pip --version"),
    ("pip install", "pip install --break-system-packages --no-index --no-deps /usr/share/python-wheels/setuptools-*.whl && pip list | grep -q setuptools"),
    ("ip addr", "ip -o addr show lo"),
    ("date -s", "date -s 2030-01-01"),
    ("mknod of a device", "mknod /tmp/null c 1 3"),
    ("mount", "mount -t tmpfs none /mnt"),
    ("unshare --user", "unshare -U true"),
    ("hostname NAME", "hostname other"),
    ("raw socket", "perl -MSocket -e 'socket(my $s, AF_INET, SOCK_RAW, 1) or exit 1'"),
    ("chattr +i", "touch /tmp/i && chattr +i /tmp/i"),
    ("systemctl", "systemctl status"),
)
# fmt: on

DIFFERENCES = {
    "mknod of a device": "a user namespace makes no devices",
    "raw socket": "ping needs none; other uses would forge packets",
    "unshare --user": "it would reach much more of the kernel; Docker's seccomp profile refuses it, too",
    "the host name in /proc/sys": "not there yet; hostname and uname tell it",
    "host name resolves": "crun alone writes no /etc/hosts; container engines do",
}


def driver():
    lines = [
        "export DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root",
        "cd /root",
    ]
    for number, (_, command) in enumerate(COMMANDS):
        script = command.replace("'", "'\\''")
        lines.append(
            f"timeout 300 bash -c '{script}' > /tmp/out.{number} 2>&1 < /dev/null; echo status {number} $?; tail -n 3 /tmp/out.{number} >&2"
        )
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


def in_rollbox(root, place):
    env = dict(os.environ, ROLLBOX_STORE=str(place / "store"))
    host = MIRROR.split("/")[2]
    policy = place / "policy.json"
    policy.write_text(
        json.dumps(
            {
                "users": "many",
                "image": "debian",
                "max_memory": "4G",
                "max_processes": 512,
                "timeout": "none",
                "max_output": "64M",
                "net_allow": [{"host": host, "private": True, "ports": [80, 443]}],
            }
        )
    )
    subprocess.run(
        [BUILD / "rollbox", "image", "import", "--name", "debian", oci_layout(root, place / "oci")],
        check=True,
        env=env,
        stdout=subprocess.DEVNULL,
    )
    done = subprocess.run(
        [BUILD / "rollbox", "run", "--policy", policy, "--", "bash", "-c", driver()],
        env=env,
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        text=True,
        check=False,
    )
    return statuses(done.stdout)


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
    spec["mounts"] = [m for m in spec["mounts"] if m["type"] not in ("cgroup", "sysfs")]
    (bundle / "config.json").write_text(json.dumps(spec))
    # crun refuses hosts with both versions of cgroups: in mounts of its own it sees one.
    see = "for m in $(grep ' cgroup' /proc/self/mounts | cut -d' ' -f2 | tac); do umount $m; done; mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null; "
    run = f"exec crun --cgroup-manager=disabled run --bundle {bundle} rollbox-{os.getpid()}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", see + run],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
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


def table(ours, theirs):
    lines = ["| command | sandbox of many users | crun | difference |", "|---|---|---|---|"]
    for number, (name, _) in enumerate(COMMANDS):
        a, b = ours.get(number), theirs.get(number)
        lines.append(
            f"| {name} | {word(a)} | {word(b)} | {'' if a == b else DIFFERENCES.get(name, 'not explained')} |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--update", action="store_true", help="write the table into docs/reference/compatibility.md"
    )
    arguments = parser.parse_args()
    missing = [name for name in ("debootstrap", "crun") if not shutil.which(name)]
    if os.geteuid() != 0 or missing:
        print(f"distribution: left out: needs {'root' if os.geteuid() else ', '.join(missing)}")
        return 0
    with tempfile.TemporaryDirectory(prefix="rollbox-distribution-", dir="/var/tmp") as temporary:
        root = debian()
        with ThreadPoolExecutor() as pool:
            runs = [pool.submit(run, root, Path(temporary)) for run in (in_rollbox, in_crun)]
            ours, theirs = (run.result() for run in runs)
    text = table(ours, theirs)
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
