# SPDX-License-Identifier: Apache-2.0
"""A command opens its standard streams by name: /dev/stdin, /dev/stdout, /dev/stderr, /dev/fd/N, /proc/self/fd/N.

Half of all judged programs do (`cat /dev/stdin`, `tee /dev/stderr`), so it has to work for every
way to start a command."""

import json

import pytest
from harness import caller  # noqa: F401

# Each name, for reading, writing, appending and both; and a pipe of the command's own.
COMMAND = r"""a=$(cat /dev/stdin) && echo "out:$a" >/dev/stdout && echo err >/dev/stderr &&
echo fd >/dev/fd/1 && echo proc >>/proc/self/fd/2 && (exec 3<>/dev/stderr; echo both >&3) && echo piped | tee /dev/stderr | cat /dev/fd/0"""
OUT, ERR = "out:%s\nfd\npiped\n", "err\nproc\nboth\npiped\n"
START = "import sys\nsys.path.insert(0, %r)\nimport json, os\nfrom rollbox import Policy, Sandbox, run_many\nCOMMAND = %r\n"


def told(caller, body):
    done = caller.script(START + body.replace("%", "%%"), COMMAND)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.parametrize("given", [b"5", b""], ids=["input", "no-input"])
@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--isolation", "process"],
        ["--seed", "1"],
        ["--time-start", "2025-01-01T00:00:00", "--time-mode", "virtual"],
    ],
    ids=lambda flags: "-".join(flags) or "plain",
)
def test_run_opens_its_streams_by_name(caller, flags, given):
    done = caller.rollbox("run", *flags, "--", "bash", "-c", COMMAND, input=given or None)
    assert (done.stdout.decode(), done.stderr.decode()) == (OUT % given.decode(), ERR)


@pytest.mark.parametrize("given", [b"5", None], ids=["input", "no-input"])
def test_python_calls_open_their_streams_by_name(caller, given):
    """One-shot runs, batch rows, commands and shells of a session."""
    body = f"""
given = {given!r}
code = "import subprocess\\nsubprocess.run(['bash', '-c', %r])" % COMMAND
results = [Sandbox().run(["bash", "-c", COMMAND], stdin=given), Sandbox().run_code(code, stdin=given)]
results += run_many([{{"id": 1, "language": "bash", "code": COMMAND, **({{"stdin": given.decode()}} if given else {{}})}}])
with Sandbox() as box:
    results += [box.exec(["bash", "-c", COMMAND], stdin=given), box.spawn(["bash", "-c", COMMAND], stdin=given or b"").wait()]
    if not given:
        results.append(box.shell().run(COMMAND))
text = lambda data: data.decode() if isinstance(data, bytes) else data
print(json.dumps([[text(r.stdout), text(r.stderr)] for r in results]))
"""
    for out, err in told(caller, body):
        assert (out, err) == (OUT % (given or b"").decode(), ERR)


def test_terminals_are_opened_by_name(caller):
    body = """
with Sandbox() as box:
    process = box.spawn(["bash", "-c", "read a </dev/stdin; echo out:$a >/dev/stdout; echo err >/dev/stderr"], pty=True)
    process.stdin.write(b"5\\n")
    process.stdin.flush()
    print(json.dumps(process.wait().stdout.decode()))
"""
    assert told(caller, body).endswith("out:5\r\nerr\r\n")


@pytest.mark.parametrize("way", ["fork", "reset", "wake"])
def test_copies_open_their_streams_by_name(caller, way):
    """So does a process that resumes in a fork, after a reset or a wake: its streams are new there,
    and so are the pipes between its processes."""
    body = f"""
with Sandbox() as box:
    process = box.spawn(["bash", "-c", "echo ready; (read x </proc/$$/fd/0; echo $x; read; echo late) | (read y; cat /dev/stdin; echo y:$y >/dev/stdout); " + COMMAND], id="p")
    assert process.stdout.readline() == b"ready\\n"
    kid = box
    if {way!r} == "fork":
        kid = box.fork(1)[0]
    elif {way!r} == "reset":
        box.reset(box.snapshot())
    else:
        box.hibernate()
    copy = kid.process("p")
    copy.stdin.write(b"1\\n2\\n5")
    copy.stdin.close()
    result = copy.wait()
    print(json.dumps([result.stdout.decode(), result.stderr.decode()]))
"""
    out, err = told(caller, body)
    assert out.removeprefix("ready\n") == "late\ny:1\n" + OUT % 5 and err == ERR


def test_files_given_as_streams_are_opened_by_name(caller):
    """Files of the caller's own (stdio_fds) too, for what their descriptors allow and no more. Ids
    decide as ever, so the files are for everybody."""
    home = caller.directory(0o755)
    source, out, log = (
        caller.write(home / name, text, 0o666)
        for name, text in (("in", "5"), ("out", "old"), ("log", "old\n"))
    )
    body = f"""
import ctypes
from rollbox._core import connection as _engine, ffi as _ffi, request as _request
fds = [os.open({str(source)!r}, os.O_RDONLY), os.open({str(out)!r}, os.O_WRONLY), os.open({str(log)!r}, os.O_WRONLY | os.O_APPEND)]
script = "cat /dev/stdin >/dev/stdout; (echo x >/dev/stdin); (cat /dev/stdout); (echo x >/proc/self/fd/2)"
request = _request.Request(["sh", "-c", script])
request.options.stdio_fds = (ctypes.c_int * 3)(*fds)
connection = _engine.Connection(None)
run = request.start(connection.handle, connection.plan("{{}}"))
print(json.dumps(connection.wait(run, False).outcome))
"""
    assert told(caller, body) == "exit"
    assert (source.read_text(), out.read_text()) == ("5", "5")
    assert log.read_text().startswith("old\n") and log.read_text().count("ermission denied") == 3
