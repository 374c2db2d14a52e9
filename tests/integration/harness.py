# SPDX-License-Identifier: Apache-2.0
"""Callers, guests and waiting, for the tests of attacks, limits, bad input and leaks.

The model: a *caller* is who starts rollbox, root or an ordinary user; the fixture `caller` runs a
test as each that this process can be. A
caller's `run` is `rollbox run --json` and returns the result; its `start` leaves it running with
its streams in hand. Binaries are copied
to a place that every user may read, and so are the guests, C programs that are compiled once and
kept in the build directory.

Nothing here sleeps to wait for something: a test waits on a line of output, the end of a file, a
pidfd. Deadlines are long and end a
test as failed, never as passed.

ROLLBOX_BUILD names the build directory (default: build/ of this tree); ROLLBOX_TEST_UID the
ordinary user (default 1000).
"""

import atexit
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import pty
import re
import resource
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ROLLBOX_BUILD", TREE / "build"))
GUESTS = Path(__file__).resolve().parent / "guests"
ORDINARY_UID = int(os.environ.get("ROLLBOX_TEST_UID", "1000"))
DEADLINE = 60
PYTHON = ["python3", "-I", "-S", "-c"]

# What `rollbox verify` adds to "equal: N steps" where the records tell of no files.
NO_FILES = b" (files were not compared: they were not recorded)\n"


def repeat_count(whole, again, soak=None):
    """How often to repeat a random test: `whole` times, or `again` where another stage of
    tools/check has run it already.

    `soak` is the number for make soak.
    """
    if soak and os.environ.get("ROLLBOX_SOAK") == "1":
        return soak
    return again if os.environ.get("ROLLBOX_TEST_AGAIN") == "1" else whole


def sample_cases(cases):
    """All cases, or every third where another stage of tools/check has run them already.

    Only for cases that run the same code for every user.
    """
    return [*cases][:: repeat_count(1, 3)]


@contextlib.contextmanager
def limited(pid, what, most):
    """A process has so little of what RLIMIT_... says meanwhile."""
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, what, before)


def skip(reason):
    """A reason that begins with "needs WORD" fails where ROLLBOX_MUST_WORK=1 (see
    tests/conftest.py); another one says why the test does not apply."""
    pytest.skip(reason)


@functools.lru_cache(maxsize=None)
def place():
    """A directory that every user can read, gone at exit."""
    path = Path(tempfile.mkdtemp(prefix="rollbox-test-", dir="/var/tmp"))
    os.chmod(path, 0o755)
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@functools.lru_cache(maxsize=None)
def binaries():
    target = place() / "bin"
    target.mkdir()
    for name in (
        "rollbox",
        "rollbox-egress",
        "rollbox-egress-tls",
        "rollbox-engine",
        "rollbox-init",
        "rollbox-store",
        "rollbox-build",
    ):
        if not (BUILD / name).exists():
            pytest.fail(f"{BUILD / name} is not built")
        shutil.copy(BUILD / name, target / name)
        os.chmod(target / name, 0o755)
    # Built only where the sources of its HTTP parser are.
    for name in ("rollbox-serve", "rollbox-http", "rollbox-otlp"):
        if (BUILD / name).exists():
            shutil.copy(BUILD / name, target / name)
    for library in BUILD.glob("librollbox.so*"):
        if library.is_file():
            shutil.copy(library, target / library.name)
    return target


def compiled(command, source, **environment):
    """The path of a program that `command`, with -o PROGRAM SOURCE after it, makes of a source.
    Each is made once, and not by every worker, nor for root and an ordinary user again: it is
    beside the other programs, by a name that is another when the source, the command or the
    compiler is."""
    compiler = os.stat(shutil.which(command[0]) or command[0])
    digest = hashlib.sha256(
        repr((command, environment, compiler.st_size, compiler.st_mtime_ns)).encode()
        + source.read_bytes()
    ).hexdigest()
    kept = BUILD / "guests"
    if not os.access(kept if kept.exists() else BUILD, os.W_OK):
        kept = place() / "kept"                 # another user's build
    kept.mkdir(exist_ok=True)
    program = kept / f"{source.stem}-{digest[:16]}"
    with open(kept / f"{source.stem}.lock", "w") as lock, tempfile.TemporaryDirectory(dir=place()) as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)        # two who want it at once
        if not program.exists():
            new = kept / f"{source.stem}.new"
            subprocess.run(
                [*command, "-o", new, source],
                env={"HOME": scratch, **os.environ, "GOCACHE": f"{scratch}/cache", **environment},
                check=True,
            )
            os.rename(new, program)
    return program


@functools.lru_cache(maxsize=None)
def guest(name, *command, way=""):
    """The path of a compiled guest; the same inside a sandbox that gets `--readable` of its
    directory. Where a command is given, its program's name has the way added."""
    target = place() / "guests"
    target.mkdir(exist_ok=True)
    os.chmod(target, 0o755)
    program = target / (f"{name}-{way}" if way else name)
    shutil.copy(
        compiled(
            command
            or (*os.environ.get("CC", "gcc").split(), "-std=gnu17", "-O1", "-static", "-pthread"),
            GUESTS / f"{name}.c",
        ),
        program,
    )
    os.chmod(program, 0o755)
    return program


class Caller:
    has_many_users = False  # of its sandboxes (many_users.py)

    def __init__(self, name, uid):
        self.name, self.uid = name, uid
        self._home = None

    def __repr__(self):
        return self.name

    @property
    def home(self):
        """The caller's own directory (0700), which no sandbox is granted."""
        if self._home is None:
            self._home = self.directory()
        return self._home

    def directory(self, mode=0o700):
        path = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=place()))
        os.chown(path, self.uid, self.uid)
        os.chmod(path, mode)
        return path

    def own(self, *paths):
        for path in paths:
            os.chown(path, self.uid, self.uid, follow_symlinks=False)

    def write(self, path, text, mode=0o644):
        path = Path(path)
        path.write_text(text)
        self.own(path)
        os.chmod(path, mode)
        return path

    def environment(self, **more):
        temporary = self.home / "tmp"
        if not temporary.exists():
            temporary.mkdir()
            self.own(temporary)
        env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self.home),
            "TMPDIR": str(temporary),
            "LANG": "C.UTF-8",
        }
        env.update(
            {
                key: value
                for key, value in os.environ.items()
                if key.startswith("ROLLBOX_") or key.endswith("SAN_OPTIONS")
            }
        )
        env.update(more)
        return env

    def identity(self):
        if self.uid == os.geteuid():
            return {}
        return {"user": self.uid, "group": self.uid, "extra_groups": []}

    def popen(self, argv, **options):
        options.setdefault("env", self.environment())
        options.setdefault("cwd", "/")
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen([str(a) for a in argv], **self.identity(), **options)

    def call(self, *argv, input=None, timeout=DEADLINE, **options):
        """Any program as this caller: a CompletedProcess with bytes."""
        if input is not None:
            options["stdin"] = subprocess.PIPE
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        with self.popen(argv, **options) as process:
            try:
                out, err = process.communicate(input, timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def rollbox(self, *arguments, **options):
        """The command, without --json."""
        return self.call(binaries() / "rollbox", *arguments, **options)

    def run(self, *arguments, **options):
        """`rollbox run --json ARGUMENTS`: the result, with `status` (of the command) and `raw` added."""
        done = self.rollbox("run", "--json", *arguments, **options)
        try:
            result = json.loads(done.stdout)
        except ValueError:
            pytest.fail(
                f"no result: status {done.returncode}, stdout {done.stdout[:500]!r}, stderr {done.stderr[:2000]!r}"
            )
        assert done.stdout.count(b"\n") == 1, "the result is one line"
        return Result(result, done.returncode)

    def python(self, code, *flags, **options):
        return self.run(*flags, "--", *PYTHON, code, **options)

    def script(self, code, *values):
        """`code`, with the package's directory and `values` put into it, by a Python of this
        caller's: a CompletedProcess with bytes."""
        return self.call(
            sys.executable,
            "-I",
            "-c",
            code % (str(TREE / "python"), *values),
            env=self.environment(ROLLBOX_LIBRARY=str(binaries() / "librollbox.so")),
        )

    def guest(self, name, *arguments, flags=(), **options):
        program = guest(name)
        return self.run("--readable", program.parent, *flags, "--", program, *arguments, **options)

    def start(self, *arguments, **options):
        """`rollbox run` with pipes; a context manager that ends it if need be."""
        for stream in ("stdin", "stdout", "stderr"):
            options.setdefault(stream, subprocess.PIPE)
        return Started(self.popen([binaries() / "rollbox", "run", *arguments], **options))

    def batch(self, jobs, *flags, **options):
        """The rows of a batch, by id."""
        home = self.directory()
        source = self.write(home / "jobs.jsonl", "".join(json.dumps(job) + "\n" for job in jobs))
        done = self.rollbox("batch", source, "-o", home / "rows.jsonl", *flags, **options)
        assert done.returncode in (0, 1), done.stderr
        return {row["id"]: row for row in map(json.loads, (home / "rows.jsonl").read_text().splitlines())}


class Result:
    """A result's fields as attributes; `raw`, the object; `status`, the command's; `told`, all in a
    line for a failed assertion."""

    def __init__(self, raw, status):
        self.__dict__.update(raw)
        self.raw, self.status = raw, status

    @property
    def told(self):
        short = {
            key: value[:300] if isinstance(value, str) else value
            for key, value in self.raw.items()
            if key != "isolation"
        }
        return json.dumps(short) + f" status {self.status}"

    def __repr__(self):
        return self.told


class Started:
    """A running command with pipes; ends with its block."""

    def __init__(self, process):
        self.process = process

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        self.process.wait()

    def line(self):
        """The next line of the guest's output; fails the test if none comes."""
        text = b""
        fd = self.process.stdout.fileno()
        end = time.monotonic() + DEADLINE
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([fd], [], [], max(0, end - time.monotonic()))
            byte = os.read(fd, 1) if ready else b""
            if not byte:
                errors = b""
                if self.process.poll() is not None and self.process.stderr:
                    errors = self.process.stderr.read()
                pytest.fail(f"the guest said {text!r} and no more; {errors[-1000:]!r}")
            text += byte
        return text.decode().rstrip("\n")

    def say(self, text="go"):
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def finish(self):
        """Closes its input and waits: (status, rest of stdout, stderr)."""
        out, err = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, out, err

    def family(self):
        """pidfds of the command and all its descendants, by pid. The caller closes them."""
        return pidfds(descendants(self.process.pid))


def descendants(root):
    """Process ids of a process and all below it, in every pid namespace below ours."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = int(Path("/proc", entry, "stat").read_bytes().rpartition(b")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry))
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += children.get(pid, [])
    return found


def pidfds(pids):
    """A pidfd for each process that is still there."""
    found = {}
    for pid in pids:
        try:
            found[pid] = os.pidfd_open(pid)
        except ProcessLookupError:
            pass
    return found


def until(condition):
    """Polls until the condition is true, for events without a notification. Returns its value,
    which may be out of date."""
    end = time.monotonic() + DEADLINE
    while not (told := condition()):
        assert time.monotonic() < end, "it never came to be"
        select.select([], [], [], 0.005)
    return told


def serves(path):
    """Does an engine listen there by now? Its socket is there a moment before."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        return one.connect_ex(str(path)) == 0


def wait_gone(family, what="processes"):
    """Waits until every process is gone; fails the test on the deadline. Closes the pidfds."""
    end = time.monotonic() + DEADLINE
    left = []
    for pid, fd in family.items():
        ready, _, _ = select.select([fd], [], [], max(0, end - time.monotonic()))
        if not ready:
            left.append(pid)
        os.close(fd)
    assert not left, f"{what} still there: " + ", ".join(f"{pid} {command_line(pid)!r}" for pid in left)


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def processes(*argv):
    """Processes of the machine with just these arguments."""
    wanted = b"".join(os.fsencode(word) + b"\0" for word in argv)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes() == wanted:
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


def comm(pid):
    """A process's name; nothing of one that has ended since it was listed."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def children(pid, name):
    """The children of a process that have this name; none of one that has ended, or of a sandbox that sleeps."""
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split() if comm(child) == name]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def engine_of(root):
    """The engine among a running command's descendants."""
    found = [pid for pid in descendants(root) if comm(pid) == "rollbox-engine"]
    assert found, "the engine is not there"
    return found[0]


def groups_of(engine):
    """The directories of cgroups that an engine made: their name has its pid."""
    return [
        os.path.join(root, name)
        for root, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if re.fullmatch(rf"rollbox-\d+-{engine}-\d+", name)
    ]


def wait_groups_gone(engine):
    """The groups of a killed engine are removed. If not: each that is left, with its members."""
    try:
        until(lambda: not groups_of(engine))
    except AssertionError as problem:
        left = {}
        for top in groups_of(engine):
            for root, _, _ in os.walk(top):
                with contextlib.suppress(OSError):
                    pids = Path(root, "cgroup.procs").read_text().split()
                    left[root] = [(command_line(int(pid)), states_of(pid)) for pid in pids]
        raise AssertionError(f"groups are left: {left}") from problem


def states_of(pid):
    """The lines of its status that tell why it does not end."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return [line for line in lines if line.split(":")[0] in ("Pid", "Name", "State", "PPid", "TracerPid")]
    return []


def marked(marker):
    """Processes of the machine whose command line has the marker."""
    own = os.getpid()
    return [int(e) for e in os.listdir("/proc") if e.isdigit() and int(e) != own and marker in command_line(int(e))]


def wait_unmarked(marker):
    """Waits until no process has the marker in its command line."""
    wait_gone(pidfds(marked(marker)))
    assert not marked(marker)


def wait_writers_gone(fd):
    """Waits for the end of a FIFO or pipe: proof that every process that held its other end is gone."""
    end = time.monotonic() + DEADLINE
    seen = b""
    while True:
        ready, _, _ = select.select([fd], [], [], max(0, end - time.monotonic()))
        assert ready, "a process still holds the pipe"
        data = os.read(fd, 65536)
        if not data:
            return seen
        seen += data


def shown(start, rows=24, columns=120):
    """The text that a program shows on a terminal, to its end; `start`, a context manager, starts
    it with the given streams."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    with start(stdin=slave, stdout=slave, stderr=slave):
        os.close(slave)
        text = b""
        try:
            while data := os.read(master, 4096):
                text += data
        except OSError:  # EIO: the other side is closed
            pass
    os.close(master)
    return text


def callers():
    found = []
    if os.geteuid() == 0:
        found.append(Caller("root", 0))
        found.append(Caller("user", ORDINARY_UID))
    else:
        found.append(Caller("user", os.geteuid()))
    only = os.environ.get("ROLLBOX_TEST_CALLER")
    return [c for c in found if only in (None, "", c.name)]


@pytest.fixture(params=callers(), ids=repr, scope="session")
def caller(request):
    return request.param


def has_cgroup(result):
    """Whether memory was held by a cgroup; if not, by rlimits and the engine's watcher."""
    return result.isolation["limits"]["memory"] in ("v1", "v2")


__all__ = [name for name in dir() if not name.startswith("_")]
