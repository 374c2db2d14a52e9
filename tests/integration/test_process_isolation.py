# SPDX-License-Identifier: Apache-2.0
"""Isolation `process`: Landlock, seccomp and rlimits alone, in the host's namespaces, hold the same
promises by other means."""

import os
import select
import socket
import subprocess
from pathlib import Path

import pytest
from harness import caller  # noqa: F401
from attempts import TRY, holds, process_isolation, refused

pytestmark = pytest.mark.masked


@pytest.mark.parametrize(
    "probe",
    [
        "unshare",
        "clone",
        "clone3",
        "mount",
        "chroot",
        "io_uring",
        "bpf",
        "keys",
        "int80",
        "x32",
        "odd_sockets",
        "raw_sockets",
        "descriptors",
        "rights",
    ],
)
def test_system_call(caller, probe):
    """The `process` isolation has the same filter."""
    holds(caller.guest("escape_probe", probe, flags=process_isolation()))


def test_files(caller):
    """Without namespaces Landlock alone holds the files: secrets, homes and writes outside grants."""
    secret = caller.write(caller.home / "secret5", "secret")
    grant = caller.directory(0o777)
    caller.write(grant / "file", "original", 0o666)
    refused(
        caller.python(
            TRY + f"for name in ('/etc/shadow', '{secret}', '/proc/1/environ', '/root/.bashrc', '/var/log/dpkg.log'):\n"
            "    if attempt(lambda: open(name).read(1)): print(name)\n"
            f"for name in ('{grant}/file', '{grant}/new', '/etc/x', '/usr/bin/x', '{caller.home}/x'):\n"
            "    try: open(name, 'w'); print('written', name)\n    except OSError: pass\n",
            *process_isolation(),
            "--readable",
            grant,
        )
    )
    assert (grant / "file").read_text() == "original"


def test_signals(caller):
    """Without a pid namespace the host's processes of the same user cannot be signalled all the same."""
    with caller.popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim:
        result = caller.python(
            f"import os\nfor pid in ({victim.pid}, os.getppid()):\n    try: os.kill(pid, 9); print('killed', pid)\n    except "
            f"OSError: pass",
            *process_isolation(),
        )
        victim.stdin.write(b"alive")
        victim.stdin.close()
        assert victim.stdout.read() == b"alive" and victim.wait() == 0
        assert "killed" not in result.stdout, result.told


def test_metadata(caller):
    """Landlock does not hold modes, times and attributes: the caller's own files, outside the
    grants and inside, keep theirs."""
    outside = caller.write(caller.home / "mine", "x", 0o600)
    grant = caller.directory(0o755)
    inside = caller.write(grant / "file", "x", 0o600)
    before = [
        (p.stat().st_mode, p.stat().st_mtime_ns, p.stat().st_uid, os.listxattr(p))
        for p in (outside, inside, caller.home, grant)
    ]
    caller.python(
        "import os\n"
        f"for p in ('{outside}', '{inside}', '{caller.home}', '{grant}'):\n"
        "    for f, a in ((os.chmod, (p, 0o777)), (os.utime, (p, (1, 1))), (os.chown, (p, 1, 1)), (os.setxattr, (p, 'user.x', b'1')),\n"
        "                 (os.truncate, (p, 0)), (os.unlink, (p,)), (os.rename, (p, p + '2')), (os.link, (p, '/tmp/hard'))):\n"
        "        try: f(*a)\n        except OSError: pass\n",
        *process_isolation(),
        "--readable",
        grant,
    )
    assert before == [
        (p.stat().st_mode, p.stat().st_mtime_ns, p.stat().st_uid, os.listxattr(p))
        for p in (outside, inside, caller.home, grant)
    ]


def test_attributes(caller):
    """Landlock does not hold the reading of attributes by name: those of files outside the grants
    tell nothing; of what may be opened they do."""
    grant = caller.directory(0o755)
    for file in (caller.write(caller.home / "mine", "x"), caller.write(grant / "file", "x")):
        try:
            os.setxattr(file, "user.token", b"secret")
        except OSError as e:
            pytest.skip(f"needs attributes: {e.strerror} at {file}")
    result = caller.python(
        "import os\n"
        f"for file in ('{caller.home}/mine', '{grant}/file'):\n"
        "    for follow in (True, False):\n"
        "        for what in (lambda: os.listxattr(file, follow_symlinks=follow), lambda: os.getxattr(file, 'user.token', follow_symlinks=follow)):\n"
        "            try: print(what())\n            except OSError: pass\n"
        f"print(os.getxattr(os.open('{grant}/file', os.O_RDONLY), 'user.token'))",
        *process_isolation(),
        "--readable",
        grant,
    )
    assert result.stdout == "b'secret'\n", result.told


def test_network(caller):
    """Without a network namespace the host's loopback, abstract and path sockets cannot be reached either."""
    flags = process_isolation()
    grant = caller.directory(0o777)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as path,
    ):
        port = server.getsockname()[1]
        datagrams.bind(("127.0.0.1", port))
        meeting = f"rollbox-meeting-{os.getpid()}"
        abstract.bind(f"\0{meeting}")
        path.bind(str(grant / "service"))
        os.chmod(grant / "service", 0o777)
        for listener in (abstract, path):
            listener.listen()
        holds(caller.guest("escape_probe", "netconnect", port, flags=flags))
        refused(
            caller.python(
                f"import socket\nfor name in ('\\0{meeting}', '{grant}/service'):\n    for kind in (1, 2, 5):\n"
                "        try: socket.socket(socket.AF_UNIX, kind).connect(name); print('met', name)\n        except OSError: pass\n"
                "a, b = socket.socketpair()\n"
                f"try: a.connect('\\0{meeting}'); print('a pair met')\nexcept OSError: pass\n",
                *flags,
            )
        )
        assert not select.select([server, datagrams, abstract, path], [], [], 0)[0], "something arrived"


def test_runs_share_no_files(caller):
    """Two runs do not meet in /tmp, /dev/shm or an IPC object, and leave nothing there."""
    flags = process_isolation()
    write = (
        "echo x > $HOME/mark; for d in /tmp /dev/shm /var/tmp; do echo x > $d/rollbox-mark; done 2>/dev/null; ipcmk -M 4096 "
        ">/dev/null 2>&1; echo up; read line"
    )
    with caller.start(*flags, "--", "sh", "-c", write) as first:
        assert first.line() == "up"
        result = caller.run(
            *flags,
            "--",
            "sh",
            "-c",
            "ls -A $HOME /tmp /dev/shm /var/tmp 2>/dev/null | grep mark; ipcs -m 2>/dev/null | grep -c 0x",
        )
        assert result.stdout.split() in ([], ["0"]), result.told
        first.say()
        first.finish()
    assert not any(Path(d, "rollbox-mark").exists() for d in ("/tmp", "/dev/shm", "/var/tmp"))
