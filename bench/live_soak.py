# SPDX-License-Identifier: Apache-2.0
"""`make soak`, checkpoints: the corpus at random moments, a thousand forks that diverge, forks and
resets for as long as asked. Is everything as it was, and does anything grow?

A *moment* is a fork or a snapshot of a program of tests/integration/live_corpus.py at a random
time, every other one while the program is at work for a question: the copy, or copies, that are
made of it and the program itself must all know then that they are
what they were. From a program's second moment on both are most often of what has changed; a
snapshot that is gone back to for the second time is put together for the third. A snapshot that is
refused names what cannot be captured; that is counted, with its words, and is no failure, for it
changes nothing: the program is asked again. The last two parts measure the engine, its launcher and
its
zygotes with bench/soak.py's eyes. Writes bench/results/live.json and, after a run of the whole
corpus, docs/reference/live-corpus.md; ends with 1 if anything was wrong or grew.
"""
import argparse
import collections
import contextlib
import datetime
import json
import os
import platform
import random
import re
import select
import sys
import time
from pathlib import Path
from typing import Any, Counter, Dict, Iterator, List, Tuple

import soak

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
sys.path.insert(0, str(PROJECT / "tests/integration"))

from live_corpus import PROGRAMS, files, missing  # noqa: E402
from rollbox import Engine, RollboxError, Sandbox  # noqa: E402

POLICY = {"max_processes": 200, "max_memory": "1G", "net": "loopback"}
SILENCE_S = 120
WARM_UP = 1200  # rounds: the engine keeps the results of the last 1,024 runs
UNCHANGED = 10  # looks, two seconds: control groups wait for one to be used again
AT_ONCE = 250   # forks that exist at the same time, in the part about a thousand
# What keeps its own state and says what that is: "set N" and "get", answered by the number and a
# digest of what was there before.
DIVERGING = """
import hashlib, sys
common, own = [bytes([n % 256]) * 4096 for n in range(256)], None
print("ready", flush=True)
for line in sys.stdin:
    word, _, number = line.strip().partition(" ")
    if word == "set":
        own = int(number)
        common[own % 256] = b"%d" % own
    print(own, hashlib.sha256(b"".join(block for n, block in enumerate(common) if own is None or n != own % 256)).hexdigest() == hashlib.sha256(
        b"".join(bytes([n % 256]) * 4096 for n in range(256) if own is None or n != own % 256)).hexdigest(), flush=True)
"""


class Talk:
    """A program's two pipes, a line at a time; what it says is waited for, but not for ever."""

    def __init__(self, process: Any) -> None:
        self.process, self.said = process, b""

    def hear(self) -> str:
        fd, events = self.process.stdout.fileno(), select.poll()
        events.register(fd, select.POLLIN)
        while b"\n" not in self.said:
            if not events.poll(SILENCE_S * 1000):
                return "(silence)"
            more = os.read(fd, 4096)
            if not more:
                return "(its end)"
            self.said += more
        line, _, self.said = self.said.partition(b"\n")
        return line.decode("utf-8", "replace")

    def say(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            if self.process.stdin is None:      # it has ended already
                return
            os.write(self.process.stdin.fileno(), text.encode() + b"\n")

    def ask(self, text: str = "check") -> str:
        self.say(text)
        return self.hear()


def begin(box: Any, name: str) -> Talk:
    for path, content in files(name).items():
        box.write_file(path, content, mode=0o755)
    return Talk(box.spawn(PROGRAMS[name]))


@contextlib.contextmanager
def copies(box: Any, n: int) -> Iterator[Iterator[Any]]:
    """Of this moment, one after the other: by a fork, or by a snapshot from which n are made."""
    if not n:
        with box.fork(1)[0] as kid:
            yield iter([kid])
        return
    state = box.snapshot()

    def each() -> Iterator[Any]:
        for _ in range(n):
            with box.fork(1, snapshot=state)[0] as kid:
                yield kid

    with contextlib.closing(each()) as kids:
        yield kids
    box.drop(state)


def moment(box: Any, origin: Talk, source: random.Random, depth: int) -> Tuple[str, str]:
    """One; ("", "") or (what was refused, what was wrong)."""
    asked, n = source.random() < 0.5, source.choice([0, 0, 0, 1, 3])
    time.sleep(source.random() * 0.004)
    if asked:
        origin.say("check")
        time.sleep(source.random() * 0.002)
    refused, wrong = "", ""
    try:
        with copies(box, n) as kids:
            for kid in kids:
                copy = Talk(kid.process(origin.process.id))
                answer = copy.ask()
                if answer == "ok" and depth > 1:
                    refused, wrong = moment(kid, copy, source, depth - 1)
                elif answer != "ok":
                    wrong = f"the copy said {answer!r}"
                    if answer == "(its end)":
                        result = copy.process.wait(SILENCE_S)
                        wrong += f": {result.outcome} {result.exit_code} {result.signal} {result.stderr[-300:]!r}"
                if wrong:
                    break
    except RollboxError as problem:
        refused = str(problem)
    if asked and (answer := origin.hear()) != "ok":
        wrong = wrong or f"the program, asked before, said {answer!r}"
    if (answer := origin.ask()) != "ok":
        wrong = wrong or f"the program said {answer!r}"
    return refused, wrong


def moments(engine: Any, name: str, rounds: int, source: random.Random) -> Dict[str, Any]:
    refused: Counter[str] = collections.Counter()
    wrong: List[str] = []
    started = time.monotonic()
    with Sandbox(POLICY, engine=engine) as box:
        origin = begin(box, name)
        first = origin.hear()
        if first == "absent":
            return {"absent": "the sandbox has not what it is about"}
        if first != "ready":
            return {"rounds": 0, "refused": {}, "wrong": [f"it began with {first!r}"]}
        for n in range(rounds):
            # A refusal names a process and a number; what it is about is what counts.
            no, bad = moment(box, origin, source, 2 if n % 10 == 9 else 1)
            refused[no.partition("cannot be captured: ")[2].partition(";")[0] or no] += bool(no)
            if bad:
                wrong.append(f"moment {n}: {bad}")
            if "the program" in bad and ("silence" in bad or "end" in bad):
                break
    return {"rounds": rounds, "refused": dict(+refused), "wrong": wrong, "seconds": time.monotonic() - started}


def diverge(engine: Any, number: int) -> Dict[str, Any]:
    """Each fork gets a number of its own once all exist, and is asked for it once all have one."""
    wrong: List[str] = []
    done = 0
    with Sandbox({**POLICY, "max_memory": "256M"}, engine=engine) as box:
        origin = Talk(box.spawn(["python3", "-c", DIVERGING]))
        assert origin.hear() == "ready"
        snapshot = box.snapshot()
        while done < number:
            kids = box.fork(min(AT_ONCE, number - done), snapshot=snapshot)
            with contextlib.ExitStack() as stack:
                talks = [Talk(stack.enter_context(kid).process(origin.process.id)) for kid in kids]
                for n, talk in enumerate(talks, done):
                    talk.say(f"set {n}")
                told = [talk.hear() for talk in talks]
                kept = [talk.ask("get") for talk in talks]
                wrong += [
                    f"fork {n} said {a!r}, then {b!r}"
                    for n, (a, b) in enumerate(zip(told, kept), done)
                    if {a, b} != {f"{n} True"}
                ]
            done += len(kids)
        if (answer := origin.ask("get")) != "None True":
            wrong.append(f"what they were made of said {answer!r}")
    return {"forks": done, "at_once": min(AT_ONCE, number), "wrong": wrong}


def measure(engine: Any) -> Dict[str, int]:
    """Measures an empty engine, once its unused spares and zygotes have ended and the numbers no longer change."""
    pid, last, unchanged = engine.status()["pid"], None, 0
    for _ in range(200):
        now = soak.children(pid), soak.descriptors(pid)
        unchanged = unchanged + 1 if now == last and engine.status()["sessions"] == 0 and not soak.ending(pid) else 0
        if unchanged == UNCHANGED:
            break
        last = now
        time.sleep(0.2)
    launchers = [one for one in soak.children(pid) if "rollbox-launch" in Path(f"/proc/{one}/comm").read_text()]
    return soak.told(
        {
            "engine: descriptors": lambda: soak.descriptors(pid),
            "engine: resident memory, KiB": lambda: soak.resident_kib(pid),
            "engine: child processes": lambda: len(soak.children(pid)),
            "engine: mounts in its namespace": lambda: soak.mounts(pid),
            "launcher: descriptors": lambda: sum(soak.descriptors(one) for one in launchers),
            "launcher: resident memory, KiB": lambda: sum(
                soak.resident_kib(one) for one in launchers
            ),
            "launcher: mounts in its namespace": lambda: sum(soak.mounts(one) for one in launchers),
            "cgroup directories": lambda: soak.cgroup_directories(pid),
        }
    )


def fork_and_reset(engine: Any, rounds: int) -> List[str]:
    wrong: List[str] = []
    with Sandbox({**POLICY, "max_memory": "256M"}, engine=engine) as box:
        origin = Talk(box.spawn(["python3", "-c", DIVERGING]))
        assert origin.hear() == "ready"
        base, id = box.snapshot(), origin.process.id
        for n in range(rounds):
            for kid in box.fork(2):
                with kid:
                    talk = Talk(kid.process(id))
                    if (answer := talk.ask(f"set {n}")) != f"{n} True":
                        wrong.append(f"round {n}: a fork said {answer!r}")
            box.exec(["sh", "-c", f"echo {n} >/tmp/f{n}"])
            box.reset(base)
            origin = Talk(box.process(id))      # dropping the object closes its input
            if (answer := origin.ask("get")) != "None True":
                wrong.append(f"round {n}: after the reset it said {answer!r}")
    return wrong


def growth(engine: Any, warm_up: int, rounds: int) -> Dict[str, Any]:
    wrong = fork_and_reset(engine, warm_up)
    before, started = measure(engine), time.monotonic()
    wrong += fork_and_reset(engine, rounds)
    seconds, after = time.monotonic() - started, measure(engine)
    allowed = {"engine: resident memory, KiB": 512, "launcher: resident memory, KiB": 64}
    return {
        "rounds": rounds,
        "seconds": seconds,
        "wrong": wrong,
        "measures": {
            name: {
                "before": before[name],
                "after": after[name],
                "allowed": allowed.get(name, 0),
                "ok": after[name] - before[name] <= allowed.get(name, 0),
            }
            for name in before
        },
    }


def page(results: Dict[str, Any]) -> str:
    rows = [(name, row) for name, row in results["programs"].items() if "rounds" in row]
    total = sum(row["rounds"] for _, row in rows)
    wrong = sum(len(row["wrong"]) for _, row in rows)
    lines = [
        "# Snapshots of running programs: test corpus",
        "",
        "`make soak` (bench/live_soak.py) writes this page; do not edit it.",
        "",
        f"Date: {results['when']}. Kernel: Linux {results['kernel']}. Run by {results['by']}.",
        "",
        "Each program of `tests/integration/live_corpus.py` was snapshotted at random moments, every other time while it",
        "computed. Then the copy and the program itself checked all of their state. A tenth of the copies were copied again.",
        "",
        f"**{total} snapshots, {wrong} of them wrong.** *Intact* counts copies with the state of their origin. *Refused*",
        "counts snapshots that rollbox rejected; the reasons are below. [checkpoint-limits.md](checkpoint-limits.md) lists",
        "all reasons.",
        "",
        "| program | snapshots | intact | refused |",
        "|---|---|---|---|",
    ]
    for name, row in results["programs"].items():
        if "rounds" not in row:
            lines.append(f"| {name} | not run: {row['absent']} | | |")
            continue
        refused = sum(row["refused"].values())
        intact = row["rounds"] - refused - len(row["wrong"])
        lines.append(f"| {name} | {row['rounds']} | {intact} | {refused or ''} |")
    lines += ["", "## Refused snapshots", "", "| program | times | reason |", "|---|---|---|"]
    for name, row in rows:
        for why, times in row["refused"].items():
            lines.append(f"| {name} | {times} | {re.sub(r'socket:.[0-9]+.: ', '', why)} |")
    diverging, grown = results["diverging"], results["growth"]
    lines += [
        "",
        "## Forks that diverge",
        "",
        f"{diverging['forks']} forks of one snapshot, {diverging['at_once']} alive at once, each got different input.",
        f"{len(diverging['wrong'])} of them had a wrong state afterwards.",
        "",
        "## Resource growth",
        "",
        f"{grown['rounds']} rounds of two forks and a reset, {len(grown['wrong'])} wrong, in {grown['seconds']:.0f} s:",
        "",
        "| resource | before | after | allowed growth | result |",
        "|---|---|---|---|---|",
    ]
    for name, entry in grown["measures"].items():
        verdict = "no growth" if entry["ok"] else "**GROWS**"
        lines.append(f"| {name} | {entry['before']} | {entry['after']} | {entry['allowed']} | {verdict} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--moments", type=int, default=50, help="of each program")
    parser.add_argument("--forks", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1000, help="of forks and a reset")
    parser.add_argument("--seed", type=int, default=None, help="of the moments' times; told at the beginning")
    parser.add_argument(
        "--output",
        type=Path,
        help="results elsewhere than in bench/results/live.json; docs/reference/live-corpus.md is left alone then",
    )
    parser.add_argument("programs", nargs="*", help="these alone (docs/reference/live-corpus.md is left alone)")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    source, programs = random.Random(seed), {}
    print(f"seed {seed}", flush=True)
    with Engine() as engine:
        for name in arguments.programs or PROGRAMS:
            lacks = missing(name)
            row = programs[name] = (
                {"absent": f"{lacks} is not installed"}
                if lacks
                else moments(engine, name, arguments.moments, source)
            )
            print(
                name,
                row.get("absent")
                or f"{row['rounds']} moments, {len(row['wrong'])} wrong, refused {row['refused'] or 'none'}, {row.get('seconds', 0):.0f} s",
                *row.get("wrong", []),
                sep="\n    " if row.get("wrong") else ": ",
                flush=True,
            )
        diverging = diverge(engine, arguments.forks)
        print(
            f"{diverging['forks']} forks, {len(diverging['wrong'])} wrong",
            *diverging["wrong"][:10],
            sep="\n    ",
            flush=True,
        )
    with Engine() as engine:
        grown = growth(engine, max(arguments.rounds // 10, WARM_UP), arguments.rounds)
    print(
        f"{grown['rounds']} rounds of two forks and a reset, {grown['seconds']:.0f} s",
        *grown["wrong"][:10],
        sep="\n    ",
    )
    for name, entry in grown["measures"].items():
        print(f"{'ok' if entry['ok'] else 'GROWS':6} {name}: {entry['before']} -> {entry['after']}")
    results = {
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "by": "root" if os.geteuid() == 0 else "an ordinary user",
        "seed": seed,
        "programs": programs,
        "diverging": diverging,
        "growth": grown,
    }
    output = arguments.output or HERE / "results" / "live.json"
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps(results, indent=1) + "\n")
    if not arguments.output and not arguments.programs:
        (PROJECT / "docs" / "reference" / "live-corpus.md").write_text(page(results))
    bad = (
        any(row.get("wrong") for row in programs.values())
        or diverging["wrong"]
        or grown["wrong"]
        or not all(entry["ok"] for entry in grown["measures"].values())
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
