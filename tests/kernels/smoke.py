#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries every capability of rollbox once on the running kernel, and prints one JSON line for each.

    smoke.py [NAME...]      all capabilities, or those named

A line is {"name", "status", "detail"}: "works"; "refused", with the error that names what is missing; or "fails".
A capability works only if what it gave was checked. Nothing here depends on how fast the machine is: the time-outs
are for a processor that is emulated.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

import rollbox
from rollbox import Engine, Policy, Sandbox

# Beside the package, as run.py lays it out, or in the environment that runs this.
PLACES = [os.path.join(os.path.dirname(os.path.dirname(rollbox.__file__)), "bin"), os.path.dirname(sys.executable)]
ROLLBOX = os.environ.get("ROLLBOX") or shutil.which("rollbox", path=os.pathsep.join(PLACES))
PATIENCE = 300
REFUSED = {"feature_missing", "not_supported"}
# A process with a thread, an open file, a pipe and a running count, which answers on demand.
COUNTER = """
import sys, threading
numbers = [0]
def count():
    while True:
        numbers[0] += 1
        more.wait(0.01)
more = threading.Event()
threading.Thread(target=count, daemon=True).start()
print("up", flush=True)
name = "first"
for line in sys.stdin:
    if line.startswith("name "):
        name = line[5:].strip()
    before = numbers[0]
    while numbers[0] < before + 2:
        more.wait(0.01)
    print(name, "counts", flush=True)
"""
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def expect(what, got, wanted):
    assert got == wanted, f"{what}: {got!r} in place of {wanted!r}"


def cli(*arguments, input=None, status=0, environment=None):
    done = subprocess.run([ROLLBOX, *arguments], input=input, capture_output=True, text=True, timeout=PATIENCE,
                          env={**os.environ, **(environment or {})})
    if done.returncode != status and "is missing (needed for" in done.stderr:
        raise Refused(done.stderr.strip())
    assert done.returncode == status, f"status {done.returncode}: {done.stderr.strip()[-300:]}"
    return done.stdout


class Refused(Exception):
    pass


def ask(process, line, wanted):
    process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()
    expect("answer", process.stdout.readline().decode().strip(), wanted)


@contextlib.contextmanager
def counter(policy=None, **session):
    with Sandbox(policy or Policy(timeout=PATIENCE), **session) as box:
        process = box.spawn(["python3", "-c", COUNTER])
        expect("first line", process.stdout.readline(), b"up\n")
        ask(process, "name one", "one counts")
        yield box, process


@check
def run():
    expect("output", cli("run", "--", "sh", "-c", "echo hello; exit 0"), "hello\n")
    cli("run", "--", "sh", "-c", "exit 7", status=7)
    cli("run", "--", "sh", "-c", "kill -9 $$", status=137)


@check
def isolation_process():
    expect("output", cli("run", "--isolation", "process", "--", "echo", "hello"), "hello\n")


@check
def timeout():
    result = Sandbox().run(["sh", "-c", "echo before; sleep 1000"], timeout=3)
    expect("outcome", (result.outcome.value, result.stdout), ("timeout", b"before\n"))


@check
def max_memory():
    code = "x = [bytearray(1 << 20) for _ in range(400)]; print(len(x))"
    result = Sandbox(Policy(max_memory="100M", timeout=PATIENCE)).run(["python3", "-c", code])
    assert result.outcome == "out_of_memory" or b"MemoryError" in result.stderr, result


@check
def max_processes():
    script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1000 & done; echo all"
    result = Sandbox(Policy(max_processes=6, timeout=PATIENCE)).run(["bash", "-c", script])
    assert b"all" not in result.stdout or b"fork" in result.stderr, result


@check
def max_disk():
    result = Sandbox(Policy(max_disk="1M", timeout=PATIENCE)).run("head -c 4000000 /dev/zero > /tmp/x")
    assert b"No space left" in result.stderr, result


@check
def output_limit():
    expect("outcome", Sandbox(Policy(timeout=PATIENCE)).run("yes", max_output=10000).outcome, "output_limit")


@check
def max_cpu():
    result = Sandbox(Policy(max_cpu=0.5, timeout=PATIENCE)).run(["true"])
    expect("outcome", result.outcome, "exit")


@check
def net_none():
    code = "import socket; socket.create_connection(('127.0.0.1', 22), 2)"
    assert Sandbox(Policy(timeout=PATIENCE)).run(["python3", "-c", code]).exit_code == 1


@check
def net_loopback():
    code = ("import socket; s = socket.create_server(('127.0.0.1', 0));"
            "c = socket.create_connection(s.getsockname()); print('connected')")
    expect("output", Sandbox(Policy(net="loopback", timeout=PATIENCE)).run(["python3", "-c", code]).stdout,
           b"connected\n")


@check
def fs_writable():
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        with open(os.path.join(directory, "file"), "w") as file:
            file.write("old")
        policy = Policy(fs_writable=[directory], timeout=PATIENCE)
        result = Sandbox(policy).run(f"echo new > {directory}/file && cat {directory}/file")
        expect("inside", result.stdout, b"new\n")
        expect("outside", open(os.path.join(directory, "file")).read(), "old")


@check
def fs_shared():
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        result = Sandbox(Policy(fs_shared=[directory], timeout=PATIENCE)).run(f"echo new > {directory}/file")
        expect("status", (result.exit_code, result.stderr), (0, b""))
        expect("outside", open(os.path.join(directory, "file")).read(), "new\n")


@check
def run_code():
    for number in range(3):
        result = Sandbox(Policy(timeout=PATIENCE)).run_code(f"print({number} + 1)")
        expect("output", result.stdout, b"%d\n" % (number + 1))


@check
def batch():
    rows = "".join(json.dumps({"id": n, "code": f"print({n})", "language": "python"}) + "\n" for n in range(4))
    lines = cli("batch", "--ordered", "--no-progress", "-o", "-", "-", input=rows).splitlines()
    expect("rows", [json.loads(line)["stdout"] for line in lines], [f"{n}\n" for n in range(4)])


@check
def session():
    with Sandbox(Policy(timeout=PATIENCE)) as box:
        box.write_file("/tmp/a", "text")
        expect("output", box.exec("cat /tmp/a; echo b > /tmp/b").stdout, b"text")
        expect("file", box.read_file("/tmp/b"), b"b\n")


@check
def shell():
    with Sandbox(Policy(timeout=PATIENCE)) as box:
        shell = box.shell()
        shell.run("x=5; cd /tmp")
        expect("output", shell.run("echo $x $PWD").stdout, b"5 /tmp\n")


@check
def terminal():
    with Sandbox(Policy(timeout=PATIENCE)) as box:
        with box.spawn(["sh", "-c", "tty && stty size"], pty=(30, 100)) as process:
            assert b"30 100" in process.wait(PATIENCE).stdout


@check
def snapshot_and_reset_of_files():
    with Sandbox(Policy(timeout=PATIENCE)) as box:
        box.write_file("/tmp/a", "old")
        base = box.snapshot()
        box.write_file("/tmp/a", "new")
        box.reset(base)
        expect("file", box.read_file("/tmp/a"), b"old")


@check
def fork_of_files():
    with Sandbox(Policy(timeout=PATIENCE)) as box:
        box.write_file("/tmp/a", "a")
        kids = box.fork(3)
        expect("files", [kid.read_file("/tmp/a") for kid in kids], [b"a"] * 3)
        for kid in kids:
            kid.close()


@check
def live_snapshot_and_reset():
    with counter() as (box, process):
        base = box.snapshot()
        assert base.processes, base
        ask(process, "name two", "two counts")
        box.reset(base)
        ask(box.process(process.id), "", "one counts")


@check
def live_fork():
    with counter() as (box, process):
        kids = box.fork(2)
        for number, kid in enumerate(kids):
            ask(kid.process(process.id), f"name kid{number}", f"kid{number} counts")
        ask(process, "", "one counts")
        again = box.fork(1)[0]
        ask(again.process(process.id), "", "one counts")
        for kid in [*kids, again]:
            kid.close()


@check
def hibernate_and_wake():
    with counter() as (box, process):
        box.hibernate()
        box.wake()
        ask(box.process(process.id), "", "one counts")


@check
def diff_and_commit():
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        with Sandbox(Policy(fs_writable=[directory], timeout=PATIENCE)) as box:
            box.write_file(os.path.join(directory, "new"), "data")
            expect("diff", [(c.change, os.path.basename(c.path)) for c in box.diff()], [("A", "new")])
            box.commit()
        expect("outside", open(os.path.join(directory, "new")).read(), "data")


@check
def clones():
    import cloudpickle                                    # noqa: F401  clones need it

    def init():
        global numbers
        numbers = [1, 2, 3]

    def work(clone_id):
        return sum(numbers) + clone_id                    # noqa: F821  set by init

    values = [clone.get() for clone in Sandbox(Policy(timeout=PATIENCE), init_fn=init, work_fn=work).fork(3)]
    expect("values", values, [6, 7, 8])


@check
def grade():
    with Sandbox(Policy(timeout=PATIENCE)) as box:
        box.snapshot()
        box.write_file("/tmp/answer", "42")
        verdict = box.grade({"/tmp/check.sh": "test $(cat /tmp/answer) = 42"}, ["sh", "/tmp/check.sh"],
                            outputs=["/tmp/answer"])
        assert verdict.ok, verdict


def write_image(path, files):
    """An OCI layout in a directory, of one layer with programs: {path in the image: host's file}."""
    def put(data, media):
        digest = hashlib.sha256(data).hexdigest()
        with open(os.path.join(path, "blobs", "sha256", digest), "wb") as blob:
            blob.write(data)
        return {"mediaType": f"application/vnd.oci.image.{media}", "digest": f"sha256:{digest}", "size": len(data)}

    os.makedirs(os.path.join(path, "blobs", "sha256"))
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for name, source in files.items():
            archive.add(source, name)
    diff_id = "sha256:" + hashlib.sha256(layer.getvalue()).hexdigest()
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [diff_id]}}
    manifest = {"schemaVersion": 2, "config": put(json.dumps(config).encode(), "config.v1+json"),
                "layers": [put(layer.getvalue(), "layer.v1.tar")]}
    index = {"schemaVersion": 2, "manifests": [put(json.dumps(manifest).encode(), "manifest.v1+json")]}
    for name, value in (("index.json", index), ("oci-layout", {"imageLayoutVersion": "1.0.0"})):
        with open(os.path.join(path, name), "w") as file:
            json.dump(value, file)


@check
def image():
    with tempfile.TemporaryDirectory() as directory:
        layout, store = os.path.join(directory, "layout"), os.path.join(directory, "store")
        write_image(layout, {"bin/sh": "/bin/busybox"})
        os.mkdir(store, 0o700)
        environment = {"ROLLBOX_STORE": store}
        cli("image", "import", "--name", "small", layout, environment=environment)
        expect("output", cli("run", "--image", "small", "--", "/bin/sh", "-c", "echo inside; test ! -e /usr",
                             environment=environment), "inside\n")


@check
def random_seed():
    command = "head -c 8 /dev/urandom | od -An -tx1; python3 -c 'import uuid; print(uuid.uuid4())'"
    first, second = (Sandbox(Policy(random_seed=7, timeout=PATIENCE)).run(command).stdout for _ in range(2))
    assert first == second and first, (first, second)


@check
def time_start():
    result = Sandbox(Policy(time_start="2025-01-01T00:00:00", timeout=PATIENCE)).run("date -u +%Y-%m-%d")
    expect("output", result.stdout, b"2025-01-01\n")


@check
def virtual_time():
    policy = Policy(time_start="2025-01-01T00:00:00", time_mode="virtual", timeout=PATIENCE)
    before = time.monotonic()
    result = Sandbox(policy).run("date -u +%T; sleep 3600; date -u +%T")
    expect("output", result.stdout, b"00:00:00\n01:00:00\n")
    assert time.monotonic() - before < PATIENCE


@check
def serial():
    policy = Policy(random_seed=7, time_start="2025-01-01T00:00:00", time_mode="virtual", serial=True,
                    timeout=PATIENCE)
    command = "for i in 1 2 3; do (echo $i) & done; wait"
    first, second = (Sandbox(policy).run(command).stdout for _ in range(2))
    assert first == second and len(first) == 6, (first, second)


@check
def live_fork_with_seed_and_virtual_time():
    policy = Policy(random_seed=7, time_start="2025-01-01T00:00:00", time_mode="virtual", timeout=PATIENCE)
    with Sandbox(policy) as box:
        process = box.spawn(["python3", "-c", COUNTER])
        expect("first line", process.stdout.readline(), b"up\n")
        ask(process, "name one", "one counts")
        kid = box.fork(1)[0]
        ask(kid.process(process.id), "", "one counts")
        kid.close()


@check
def record_and_verify():
    with tempfile.TemporaryDirectory() as directory:
        file = os.path.join(directory, "run.jsonl")
        cli("record", "-o", file, "--", "sh", "-c", "echo recorded")
        assert "equal" in cli("verify", file)


@check
def shared_engine():
    with tempfile.TemporaryDirectory() as directory:
        environment = {"ROLLBOX_SOCKET": os.path.join(directory, "socket")}
        cli("engine", "start", "--background", environment=environment)
        try:
            box = cli("create", environment=environment).strip()
            expect("output", cli("exec", box, "--", "echo", "hello", environment=environment), "hello\n")
            cli("rm", box, environment=environment)
        finally:
            cli("engine", "stop", environment=environment)


@check
def many_files_open():
    """Live forks where the limit of open files cannot be raised, as for a process that pid 1 started."""
    import resource
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    code = f"""
import resource, sys
sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, {min(hard, 4096)}))
import smoke
smoke.live_fork()
print("forked")
"""
    drop = ["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-all"] if os.geteuid() == 0 else []
    done = subprocess.run([*drop, sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "forked\n", done.stderr[-400:]


def main():
    engine = Engine()
    engine.close()
    names = sys.argv[1:] or list(CHECKS)
    failed = 0
    for name in names:
        started = time.monotonic()
        try:
            CHECKS[name]()
            status, detail = "works", ""
        except Refused as refusal:
            status, detail = "refused", str(refusal)
        except rollbox.RollboxError as error:
            refused = getattr(error, "code", "") in REFUSED or type(error).__name__ == "FeatureMissing"
            status, detail = "refused" if refused else "fails", f"{type(error).__name__}: {error}"
        except Exception as error:                        # noqa: BLE001  after any failure the next one is tried
            status, detail = "fails", f"{type(error).__name__}: {error}"
        failed += status == "fails"
        print(json.dumps({"name": name, "status": status, "seconds": round(time.monotonic() - started, 1),
                          "detail": detail[:600]}), flush=True)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
