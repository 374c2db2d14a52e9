# SPDX-License-Identifier: Apache-2.0
"""Nothing is left: of a run, of many runs, of an engine or a client that was killed. Nothing grows
while an engine lives."""

import json
import os
import re
import signal
import subprocess
import threading
from pathlib import Path

from harness import (
    PYTHON,
    binaries,
    caller,
    descendants,
    engine_of,
    groups_of,
    pidfds,
    wait_gone,
    wait_groups_gone,
    wait_unmarked,
)  # noqa: F401
from engines import SharedEngine


def mounts():
    return Path("/proc/self/mountinfo").read_text().count("\n")


def open_files(pid):
    """The open files of an engine, by kind; numbers of pipes and sockets do not matter."""
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            kind = re.sub(r"\d+", "N", os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            continue
        found[kind] = found.get(kind, 0) + 1
    return found


def files_of(who):
    """Files left in the caller's TMPDIR, and in the run-time directories under a name of ours."""
    left = [str(path) for path in (who.home / "tmp").rglob("*")]
    for place in ("/tmp", "/dev/shm", "/run", "/var/tmp", f"/run/user/{who.uid}"):
        if os.path.isdir(place):
            left += [
                f"{place}/{name}"
                for name in os.listdir(place)
                if name.startswith("rollbox")
                and not name.startswith("rollbox-test")
                and os.lstat(f"{place}/{name}").st_uid == who.uid
            ]
    return set(left)


def test_one_run_leaves_nothing(caller):
    """After a run: no process, mount, cgroup or file."""
    before, mounted = files_of(caller), mounts()
    with caller.start("--", "sh", "-c", "setsid sleep 1000 & echo up; read line") as run:
        assert run.line() == "up"
        family, engine = run.family(), engine_of(run.process.pid)
        run.say()
        assert run.finish()[0] == 0
    wait_gone(family)
    assert groups_of(engine) == [] and files_of(caller) <= before and mounts() <= mounted


def test_runs_do_not_grow_the_engine(caller):
    """An engine after 400 runs of every outcome holds as many files, processes, mounts and groups
    as after 200, and little more memory."""
    path = caller.directory() / "engine"
    grant = caller.directory(0o755)
    home = caller.directory()
    kinds = [
        {"argv": ["true"]},
        {"argv": ["no-such-program"]},
        {"argv": ["sh", "-c", "kill -9 $$"]},
        {"argv": ["sh", "-c", "setsid sleep 1000 & exit 3"]},
        {"argv": ["yes"], "policy": {"max_output": 1000}},
        {"argv": ["sleep", "1000"], "timeout_s": 0.01},
        {"argv": ["cat"], "stdin": "x" * 100000},
        {"argv": ["sh", "-c", f"echo x > {grant}/x; echo y > /dev/shm/y"], "policy": {"fs_writable": [str(grant)]}},
        {"argv": ["true"], "files": {"a/b": "c"}},
        {"argv": ["true"], "cwd": "/no/such"},
    ]

    def run(name, n):
        jobs = [dict(kinds[i % len(kinds)], id=f"{name}{i}") for i in range(n)]
        source = caller.write(home / f"{name}.jsonl", "".join(json.dumps(job) + "\n" for job in jobs))
        done = caller.rollbox("batch", source, "-o", home / f"{name}.rows", "-j", "4", "--engine", path)
        assert done.returncode in (0, 1) and len((home / f"{name}.rows").read_text().splitlines()) == n, done

    def state():
        """When all is quiet: the sandboxes of the last runs are torn down a moment after their
        results are there, and each second the engine gives back
        what it kept for more."""
        step = threading.Event()
        last, same = None, 0
        for _ in range(400):
            status = json.loads(caller.rollbox("engine", "status", "--socket", path).stdout)
            pid = status["pid"]
            now = (
                open_files(pid),
                len(descendants(pid)),
                sum(len(os.listdir(g)) for g in groups_of(pid)),
                status.get("sandboxes"),
            )
            same = same + 1 if now == last and status.get("queued", 0) == 0 else 0
            if same == 15:
                break
            last = now
            step.wait(0.1)
        resident = int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])
        return now, resident

    mounted = mounts()
    with SharedEngine(caller, path) as engine:
        run("first", 200)
        (files, processes, groups, boxes), resident = state()
        run("second", 200)
        (files2, processes2, groups2, boxes2), resident2 = state()
        # Results are kept for a retry of their operation, large ones as memory files: that store is bounded by itself.
        grown = {
            kind: (files.get(kind, 0), n)
            for kind, n in files2.items()
            if n > files.get(kind, 0) + 4 and "rollbox-output" not in kind
        }
        assert not grown, grown
        assert processes2 <= processes + 4 and groups2 <= groups + 16 and boxes2 <= boxes + 4, (
            (processes, processes2),
            (groups, groups2),
            (boxes, boxes2),
        )
        assert resident2 <= resident + 4096, (resident, resident2)
        assert mounts() <= mounted
        family = pidfds(descendants(engine.process.pid))
        pid = engine.process.pid
    wait_gone(family)
    assert groups_of(pid) == []


def test_stopped_engine_leaves_nothing(caller):
    """`engine stop` with a run under way: the sandbox, the socket and the groups are gone when it returns."""
    path = caller.directory() / "engine"
    before = files_of(caller)
    with SharedEngine(caller, path) as engine:
        with caller.start("--engine", path, "--", "sh", "-c", "echo up; sleep 1000") as run:
            assert run.line() == "up"
            family = pidfds(descendants(engine.process.pid))
            assert len(family) >= 3
            assert caller.rollbox("engine", "stop", "--socket", path).returncode == 0
            assert run.finish()[0] == 125
            wait_gone(family)
        assert not path.exists() and groups_of(engine.process.pid) == [] and files_of(caller) <= before


def test_killed_engine_leaves_nothing(caller):
    """After kill -9 of the engine: no process, and the groups are gone as soon as the next engine
    is up, if not before."""
    before, mounted = files_of(caller), mounts()
    with caller.start(
        "--writable",
        caller.directory(0o755),
        "--",
        *PYTHON,
        "import os, signal\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        while True: signal.pause()\n"
        "print('up', flush=True)\nsignal.pause()",
        f"rollbox-marker-{os.getpid()}-leak",
    ) as run:
        assert run.line() == "up"
        family, engine = run.family(), engine_of(run.process.pid)
        os.kill(engine, signal.SIGKILL)
        assert run.finish()[0] == 125
        wait_gone(family, "processes of a killed engine")
        wait_unmarked(f"rollbox-marker-{os.getpid()}-leak")
    assert caller.run("--", "true").exit_code == 0
    wait_groups_gone(engine)
    assert files_of(caller) <= before and mounts() <= mounted


def test_killed_client_leaves_nothing(caller):
    """After kill -9 of the command: no process, no group, no file."""
    before, mounted = files_of(caller), mounts()
    with caller.start("--memory", "64M", "--", "sh", "-c", "echo up; sleep 1000 & sleep 1000") as run:
        assert run.line() == "up"
        family, engine = run.family(), engine_of(run.process.pid)
        run.process.kill()
        wait_gone(family)
    wait_groups_gone(engine)
    assert files_of(caller) <= before and mounts() <= mounted


def test_leftovers_of_killed_processes_are_swept(caller):
    """Engine and janitor killed together leave groups at most, and the next engine's first run sweeps them."""
    with caller.start("--", "sh", "-c", "echo up; sleep 1000") as run:
        assert run.line() == "up"
        family, engine = run.family(), engine_of(run.process.pid)
        for pid in family:
            if pid != run.process.pid:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        run.finish()
        wait_gone(family)
    done = caller.run("--", "true")
    assert done.exit_code == 0
    # Its own janitor may still be at it, so the next one is given the word.
    with caller.start("--", "sh", "-c", "echo up; read line") as run:
        assert run.line() == "up"
        assert groups_of(engine) == []
        run.say()
        run.finish()


def test_failed_setups_leave_nothing(caller):
    """Runs that fail in set-up, at every stage that a caller can reach, leave no process and no file."""
    before = files_of(caller)
    plain = caller.write(caller.directory(0o755) / "plain", "x")
    for arguments in (
        ["--readable", "/no/such", "--", "true"],
        ["--cwd", "/no/such", "--", "true"],
        ["--", "no-such"],
        ["--readable", plain.parent, "--", plain],
        ["--memory", "4M", "--", "true"],
        ["--readable", plain, "--", plain],
    ):
        caller.run(*arguments)
    assert files_of(caller) <= before
    wait_unmarked(str(plain))


def test_programs_of_a_batch_are_gone(caller):
    """When a batch has ended, its engine has ended."""
    home = caller.directory()
    source = caller.write(
        home / "jobs.jsonl",
        "".join(json.dumps({"id": str(i), "argv": ["true"]}) + "\n" for i in range(50)),
    )
    process = caller.popen(
        [binaries() / "rollbox", "batch", source, "-o", home / "rows.jsonl", "-j", "4"], stdout=subprocess.PIPE
    )
    family = {}
    while process.poll() is None and len(family) < 3:
        family = pidfds(descendants(process.pid))
    process.wait()
    process.stdout.close()
    wait_gone(family)
