# SPDX-License-Identifier: Apache-2.0
"""Changes live files and lets an engine wake what they hold.

The model: a file that `rollbox export --live` wrote is taken apart; something in its record, a
layer or an image is changed; all digests are made right
again, as a forger of a file would. It gets to the engine in one of two ways: by `rollbox import`,
or by changing what was imported where it lies in the
store. Then a command is run in it. Each file must be refused in words, or work; the engine must
live, report nothing, and answer.

As a program: record_fuzz.py SEED SECONDS runs for so long and prints what was found. It uses the
engine of build-asan if that is there.
"""

import collections
import contextlib
import copy
import hashlib
import io
import json
import os
import random
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ROLLBOX_BUILD", TREE / "build"))
ASAN = TREE / "build-asan"
MAGIC = b"rollbox live 1\n\0"
PATIENCE = 60                   # seconds; far more than any of these takes

VALUES = [
    -1,
    0,
    1,
    2,
    3,
    255,
    2**31,
    2**32 - 1,
    2**32,
    2**53,
    2**63 - 1,
    -(2**63),
    1.5,
    True,
    False,
    None,
    "",
    "x" * 70,
    "../../etc",
    "2f" * 3000,
    "/etc/shadow",
    "00",
    "\x1b[31m",
    "‮",
    [],
    {},
    [[]] * 5,
    {"a": 1},
    "7f454c46",
]
WORDS = [0, 1, 2, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 4096, 2**47]
HEADER = 1200                   # bytes at the end of an image: its header
TABLES = 40000                  # and the tables before it


def members_of(path):
    content = Path(path).read_bytes()
    assert content.startswith(MAGIC)
    plain = subprocess.run(["zstd", "-dc"], input=content[len(MAGIC):], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def sealed(record):
    text = json.dumps(record, separators=(",", ":"))
    return f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n".encode()


def rows_of(whole, kind):
    """The rows of layer-N or image-N that are rows still."""
    rows = whole.get(kind + "s") if isinstance(whole, dict) else None
    return [(i, row) for i, row in enumerate(rows) if isinstance(row, dict)] if isinstance(rows, list) else []


class Case:
    """A file, taken apart, to be changed."""

    def __init__(self, members):
        self.whole = json.loads(members["record.json"].splitlines()[0])
        self.files = {name: content for name, content in members.items() if name != "record.json"}
        self.what = []

    def seal(self):
        for kind in ("layer", "image"):
            for i, row in rows_of(self.whole, kind):
                content = self.files.get(f"{kind}-{i}")
                if content is not None:
                    row["bytes"], row["sha256"] = len(content), hashlib.sha256(content).hexdigest()
        return sealed(self.whole)

    def write(self, path):
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name, content in [("record.json", self.seal()), *self.files.items()]:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        Path(path).write_bytes(MAGIC + plain.getvalue())
        return path


def places_in(value, path=()):
    if isinstance(value, dict):
        for key in value:
            yield from places_in(value[key], (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from places_in(item, (*path, i))
    if path:
        yield path


def at(value, path):
    for key in path:
        value = value[key]
    return value


def change_record(case, chance):
    record = case.whole["record"]
    place = chance.choice(list(places_in(record)))
    case.what.append(".".join(map(str, place)))
    owner, key, how = at(record, place[:-1]), place[-1], chance.randrange(6)
    if how == 1 and isinstance(owner, dict):
        del owner[key]
    elif how == 2 and isinstance(owner, list):
        owner.insert(chance.randrange(len(owner) + 1), copy.deepcopy(owner[key]))
    elif how == 3 and isinstance(owner[key], int) and not isinstance(owner[key], bool):
        owner[key] += chance.choice((-1, 1, 2, 100, -100))
    elif how == 4:              # what stands elsewhere
        owner[key] = copy.deepcopy(at(record, chance.choice(list(places_in(record)))))
    elif how == 5 and isinstance(owner, list):
        del owner[key]
    else:
        owner[key] = copy.deepcopy(chance.choice(VALUES))


def change_live(case, chance):
    """The lists whose rows belong together."""
    lives = case.whole["record"]["lives"]
    if not lives:
        return change_record(case, chance)
    live = chance.choice(lives)
    commands = live["commands"] if isinstance(live.get("commands"), list) else []
    kind = chance.choice(("commands", "pipes", "terminals"))
    case.what.append(f"lives.{kind}")
    if not isinstance(live.get(kind), list):
        return None
    if kind == "commands" and commands:
        row = {
            **copy.deepcopy(chance.choice(commands)),
            "pid": chance.randrange(2, 40),
            "operation": f"{chance.randrange(2**64):016x}",
            "terminal": chance.random() < 0.3,
        }
        row = {key: value for key, value in row.items() if chance.random() < 0.95}
    elif kind == "pipes":
        row = {
            "command": chance.randrange(-1, len(commands) + 1),
            "slot": chance.randrange(0, 12),
            "written": chance.random() < 0.7,
        }
    else:
        row = chance.randrange(-1, len(commands) + 1)
    live[kind].insert(chance.randrange(len(live[kind]) + 1), row)
    if chance.random() < 0.5:
        live["processes"] = len(commands) + 1
    return None


def change_bytes(case, chance, name, low, high):
    content = bytearray(case.files[name])
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        k, how = chance.randrange(max(low, 0), high), chance.randrange(4)
        if how == 0:
            content[k] ^= 1 << chance.randrange(8)
        elif how == 1:
            content[k] = chance.choice((0, 255, 1, 0x7F, 0x80))
        elif how == 2:
            k &= ~7
            content[k:k + 8] = struct.pack("<Q", chance.choice([*WORDS, chance.randrange(2**64)]))
        else:
            k &= ~3
            content[k:k + 4] = struct.pack("<I", chance.choice((0, 1, 2, 3, 2**31, 2**32 - 1, chance.randrange(64))))
        case.what.append(f"{name}:{k - len(content)}")
    case.files[name] = bytes(content[:high])


def change_layer(case, chance):
    names = [name for name in case.files if name.startswith("layer-")]
    if names:
        name = chance.choice(names)
        change_bytes(case, chance, name, 0, len(case.files[name]))


def change_image(case, chance):
    names = [name for name in case.files if name.startswith("image-")]
    if names:
        name = chance.choice(names)
        size = len(case.files[name])
        change_bytes(case, chance, name, size - chance.choice((HEADER, TABLES, TABLES, size)), size)


CHANGES = [
    change_record,
    change_record,
    change_record,
    change_live,
    change_live,
    change_layer,
    change_image,
    change_image,
]


def is_newer(program, other):
    """An engine does not speak with the init of another build."""
    return program.exists() and program.stat().st_mtime >= other.stat().st_mtime


class Engine:
    """An engine with the sanitizers, if it was built with them, and its store."""

    def __init__(self, directory, asan=True):
        self.directory = Path(directory)
        self.store, self.socket = self.directory / "store", str(self.directory / "socket")
        self.log = self.directory / "engine.log"
        self.programs = ASAN if asan and is_newer(ASAN / "rollbox-engine", BUILD / "rollbox-engine") else BUILD
        self.environment = {**os.environ, "ROLLBOX_STORE": str(self.store), "ROLLBOX_INIT": str(BUILD / "rollbox-init")}
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "rollbox-engine", "--socket", self.socket],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        while self("ps").returncode != 0:
            assert self.process.poll() is None, self.log.read_text()[-2000:]

    def __call__(self, command, *arguments):
        done = subprocess.run(
            [BUILD / "rollbox", command, "--socket", self.socket, *arguments],
            capture_output=True,
            text=True,
            errors="backslashreplace",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
        )
        return done

    def reports(self):
        text = self.log.read_text(errors="replace")
        return [
            line
            for line in text.splitlines()
            if "ERROR: AddressSanitizer" in line
            or "ERROR: LeakSanitizer" in line
            or "runtime error" in line
        ]

    def end(self):
        self.process.terminate()
        return self.process.wait(PATIENCE)


def make_files(engine):
    """Live files of an engine: with pipes, with a terminal and snapshots, and with a tree of processes."""
    def ok(command, *arguments):
        done = engine(command, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def ready(name, path):
        while engine("exec", name, "--", "test", "-e", path).returncode:
            pass

    files = []
    for name in ("pipes", "terminal", "tree"):
        ok("create", "--name", name)
        ok(
            "exec",
            name,
            "--",
            "sh",
            "-c",
            "mkdir /tmp/d; echo hello > /tmp/d/f; ln -s d/f /tmp/l; mkfifo /tmp/p; echo said",
        )
        if name == "terminal":
            ok("snapshot", name, "--as", "first")
            ok("exec", "--detach", "-t", name, "--", "sh", "-c", "touch /tmp/up; read x; sleep 100000")
        elif name == "tree":
            ok(
                "exec",
                "--detach",
                name,
                "--",
                "sh",
                "-c",
                "sleep 100001 | sleep 100002 & sleep 100003 & touch /tmp/up; wait",
            )
        if name != "tree":
            ok("exec", "--detach", name, "--", "sh", "-c", "sleep 100000 & touch /tmp/up2; wait")
            ready(name, "/tmp/up2")
        if name != "pipes":
            ready(name, "/tmp/up")
        if name == "terminal":
            ok("snapshot", name, "--as", "second")
        path = engine.directory / f"{name}.live"
        if name == "terminal":      # with all its snapshots, and what has ended
            ok("hibernate", name)
        ok("export", "--live", name, str(path))
        ok("rm", name)
        files.append(members_of(path))
    return files


class Fuzzer:
    def __init__(self, engine, seed):
        self.engine, self.chance = engine, random.Random(seed)
        self.files = make_files(engine)
        self.seen, self.bad, self.n = collections.Counter(), [], 0

    def fail(self, case, *why):
        kept = self.engine.directory / f"bad-{self.n}.live"
        case.write(kept)
        self.bad.append((self.n, ", ".join(case.what), *why, str(kept)))

    def is_refused(self, case, done):
        """In words, with the status of rollbox's own errors."""
        words = done.stderr.strip()
        if (
            done.returncode != 125
            or not words
            or any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c in "‪‫‬‭‮" for c in words)
        ):
            self.fail(case, "refused in an odd way", done.returncode, words[-300:])
        return words

    def tamper(self, case):
        """What is in the store is changed in its place."""
        (directory,) = (self.engine.store / "asleep").iterdir()
        case.whole["id"] = directory.name
        now = json.loads((directory / "record.json").read_bytes().splitlines()[0])["record"]
        for key in ("name", "socket", "detached"):      # or it is nobody's, which is tried by import
            if isinstance(case.whole.get("record"), dict):
                case.whole["record"][key] = now[key]
        for name, content in case.files.items():
            (directory / name).write_bytes(content)
        with open(directory / "record.json", "r+b") as record:
            content = case.seal()
            record.write(content)
            record.truncate()

    def one(self):
        self.n += 1
        members = self.chance.choice(self.files)
        case = Case(members)
        for _ in range(self.chance.choice((1, 1, 1, 2, 3))):
            with contextlib.suppress(
                AttributeError, TypeError, KeyError, IndexError
            ):  # what it looks for was changed away before
                self.chance.choice(CHANGES)(case, self.chance)
        path = self.engine.directory / "case.live"
        in_store = self.chance.random() < 0.4
        try:
            done = self.engine("import", "--name", "box", (Case(members) if in_store else case).write(path))
            outcome = "import: " + (self.is_refused(case, done)[:100] if done.returncode else "taken")
            if done.returncode == 0:
                if in_store:
                    self.tamper(case)
                done = self.engine("exec", "box", "--", "cat", "/tmp/d/f")
                outcome = f"{'store' if in_store else 'import'}, wake: " + (
                    self.is_refused(case, done)[:100]
                    if done.returncode == 125
                    else "works"
                    if done.stdout == "hello\n"
                    else f"status {done.returncode}"
                )
                for command in ("tree", "inspect", "ps"):
                    self.engine(command, *([] if command == "ps" else ["box"]))
                self.engine("rm", "box")
        except subprocess.TimeoutExpired as late:
            self.fail(case, "hangs", " ".join(map(str, late.cmd[1:2])))
            outcome = "hangs"
        self.seen[outcome] += 1
        if self.process_ended(case):
            return
        if list((self.engine.store / "asleep").glob("*")):
            for left in (self.engine.store / "asleep").iterdir():       # what `rm` could not name
                subprocess.run(["rm", "-rf", str(left)], check=True)

    def process_ended(self, case):
        if self.engine.process.poll() is None and not self.engine.reports():
            return False
        self.fail(case, "the engine ended or reported", self.engine.process.poll(), self.engine.reports()[:2])
        if self.engine.process.poll() is None:
            self.engine.process.kill()
            self.engine.process.wait()
        self.engine.log.rename(self.engine.directory / f"bad-{self.n}.log")
        self.engine.start()
        return True

    def works_still(self):
        """At the end, all is as it was: a file that nobody changed works, and nothing is left."""
        path = Case(self.files[0]).write(self.engine.directory / "case.live")
        assert self.engine("import", "--name", "box", path).returncode == 0
        done = self.engine("exec", "box", "--", "cat", "/tmp/d/f")
        assert done.stdout == "hello\n", done.stderr
        assert self.engine("rm", "box").returncode == 0


def main(seed, seconds):
    directory = tempfile.mkdtemp(prefix="rollbox-record-fuzz-")
    engine = Engine(directory)
    fuzzer = Fuzzer(engine, seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        fuzzer.one()
        if fuzzer.n % 200 == 0:
            print(f"{fuzzer.n} cases, {len(fuzzer.bad)} bad", flush=True)
    fuzzer.works_still()
    status = engine.end()
    for outcome, n in fuzzer.seen.most_common(80):
        print(n, outcome)
    for row in fuzzer.bad[:40]:
        print("BAD", *row)
    print(
        f"{fuzzer.n} cases with seed {seed} in {directory}, engine's status {status}, reports {engine.reports()}: {'FAIL' if fuzzer.bad or status or engine.reports() else 'PASS'}"
    )
    return bool(fuzzer.bad or status or engine.reports())


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2])))
