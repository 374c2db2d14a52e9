# SPDX-License-Identifier: Apache-2.0
"""The first attempts of newcomers do what they look like, or fail with the right words to use: jobs
of text, runs in a session, code that never ends."""

import asyncio
import json
import os
import pathlib
import subprocess

import pytest

import rollbox
from harness import DEADLINE, binaries
from rollbox import (
    AsyncSandbox,
    InvalidArgument,
    Outcome,
    Policy,
    Sandbox,
    code_job,
    iter_many,
    run_many,
    run_many_async,
)

ANSWER = "def f():\n    return 42\nprint(f())"


def rollbox_cli(*arguments, stdin=""):
    return subprocess.run(
        [binaries() / "rollbox", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


# ---- jobs
# ----------------------------------------------------------------------------------------------------------------


def test_plain_text_job_is_refused_with_a_hint():
    """A shell's failure on a Python program would be scored as a wrong answer."""
    calls = (
        lambda: run_many([ANSWER]),
        lambda: run_many([ANSWER.encode()]),
        lambda: run_many(text for text in [ANSWER, ANSWER]),
        lambda: list(iter_many([ANSWER])),
        lambda: asyncio.run(run_many_async([ANSWER])),
    )
    for call in calls:
        with pytest.raises(InvalidArgument, match="code.*language.*python"):
            call()
    # Among other jobs it is that job's row, as every job that makes no sense.
    first, second = run_many([code_job(ANSWER), ANSWER])
    assert first.stdout == b"42\n" and second.outcome is Outcome.ERROR and "code_job" in second.error.message


def test_helper_makes_a_job_of_code():
    rows = run_many([code_job(ANSWER, id="p"), code_job("echo $A", "sh", id="s", env={"A": "1"})], text=True)
    assert [(row.id, row.stdout) for row in rows] == [("p", "42\n"), ("s", "1\n")]


def test_plain_text_row_is_refused_by_the_command_line():
    lines = [json.dumps(ANSWER), json.dumps({"id": "a", "argv": "echo hi"})]
    done = rollbox_cli("batch", "-", stdin="\n".join(lines) + "\n")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1 and len(rows) == 2
    for row in rows:
        assert (
            row["outcome"] == "error"
            and "code" in row["error"]["message"]
            and "language" in row["error"]["message"]
        ), row


# What a line is, and the id that its row has. A model's text cut in the middle of a pair of
# surrogates is the commonest.
REFUSED = [
    (r'{"id":"a","code":"print(1) # \ud83d","language":"python"}', "a"),
    (r'{"code":"x # \udc00 { [ \" \\","language":"python", "id" : "b c"}', "b c"),
    (r'{"id":7,"argv":["\ud800"]}', 7),
    (r'{"id":"x\ud83d","argv":["true"]}', "x\ufffd"),
    (r'{"id":"\ud83d\ude00\ud83d","argv":["true"]}', "\U0001f600\ufffd"),
    ('{"id":"twice","argv":["true"],"argv":["true"]}', "twice"),
    ('{"id":"first","id":"last","argv":["true"]}', "last"),
    ('{"id":"torn","argv":["tr', "torn"),
    ('{"id":"torn 2', None),
    ('{"id":"number","argv":["true"],"timeout_s":1e999}', "number"),
    ('{"id":99999999999999999999,"argv":["true"]}', "99999999999999999999"),
    ('{"id":"deep","argv":' + "[" * 5000 + "]" * 5000 + "}", "deep"),
    ('{"policy":{"id":"inner"},"argv":["id"],"id":"outer","x":\x01}', "outer"),
    ('{"argv":["id", ":", "none"], "files":{"id":"no"}, \x01', None),
    ('{"id":"unknown","argv":["true"],"timeout":3}', "unknown"),
    ('{"id":"type","argv":7}', "type"),
    (r'{"id":"nul","argv":["a\u0000"]}', "nul"),
    (r'{"id":"n\u0000l","argv":["true"]}', "n\0l"),
    ('{"id":1.5,"argv":["true"]}', 1.5),
    ('{"id":["l"],"argv":["true"]}', ["l"]),
    ('{"id":true,"argv":["true"]}', True),
    ('{"id":"raw \udcff","argv":["true"]}', "raw \ufffd"),
    ('{"id":"bytes","argv":["\udcff"]}', "bytes"),
]


def test_refused_row_keeps_its_id(tmp_path):
    jobs, rows = tmp_path / "jobs", tmp_path / "rows"
    jobs.write_bytes(
        "".join(
            line + "\n" for line, _ in [*REFUSED, ('{"id":"good","argv":["true"]}', "good")]
        ).encode("utf-8", "surrogateescape")
    )
    for _ in range(2):      # and when the batch is resumed
        assert rollbox_cli("batch", "--no-progress", "--ordered", "-o", str(rows), str(jobs)).returncode == 1
        results = {json.dumps(row["id"]): row["outcome"] for row in map(json.loads, rows.read_text().splitlines())}
        assert results.pop('"good"') == "exit" and set(results.values()) == {"error"}
        assert sorted(results) == sorted({json.dumps(id) for _, id in REFUSED})


def test_id_of_a_refused_row_is_used_up():
    done = rollbox_cli(
        "batch",
        "-",
        stdin='{"id":"a","code":"\\ud83d","language":"python"}\n{"id":"a","argv":["true"]}\n',
    )
    assert done.returncode == 125 and "was used on line 1" in done.stderr


def test_nul_in_code_is_named():
    with pytest.raises(InvalidArgument, match="^code has a NUL byte at offset 8"):
        Sandbox().run_code("print(1)\0")
    with pytest.raises(InvalidArgument, match=r"^args\[1\] has a NUL"):
        Sandbox().run_code("print(1)", ["a", "b\0"])
    with pytest.raises(InvalidArgument, match="^code has a NUL byte"):
        asyncio.run(AsyncSandbox().run_code("\0"))


# ---- runs in a session
# ---------------------------------------------------------------------------------------------------


def test_runs_in_an_open_session_act_in_it():
    with Sandbox() as box:
        box.write_file("/tmp/data", "1")
        assert box.run(["cat", "/tmp/data"]).stdout == b"1"
        assert box.run("echo 2 >/tmp/more; cat /tmp/data /tmp/more").stdout == b"12\n"
        assert box.run_code("open('/tmp/code', 'w').write(open('/tmp/data').read())").ok
        assert box.read_file("/tmp/code") == b"1" and box.exec(["cat", "/tmp/more"]).stdout == b"2\n"
        (kid,) = box.fork(1)
        with kid:
            assert kid.run(["cat", "/tmp/code"]).stdout == b"1"
        assert Sandbox.open(box.name).run(["cat", "/tmp/code"]).stdout == b"1"
        with pytest.raises(rollbox.RunFailed):
            box.run(["false"], check=True)
    assert not box.run(["cat", "/tmp/data"]).ok, "with the session's end a run has a sandbox of its own again"


def test_session_is_open_from_its_first_call_on():
    box = Sandbox()
    assert box.run("echo x >/tmp/x").ok and not box.run(["cat", "/tmp/x"]).ok
    box.write_file("/tmp/x", "y")
    assert (
        box.run(["cat", "/tmp/x"]).stdout == b"y"
        and box.run_code("print(open('/tmp/x').read())", text=True).stdout == "y\n"
    )
    box.close()
    assert not box.run(["cat", "/tmp/x"]).ok


def test_runs_in_an_open_session_act_in_it_for_asyncio():
    async def main():
        async with AsyncSandbox() as box:
            await box.write_file("/tmp/data", "1")
            assert (await box.run(["cat", "/tmp/data"])).stdout == b"1" and (
                await box.run("cat /tmp/data")
            ).stdout == b"1"
            assert (await box.run_code("print(open('/tmp/data').read())")).stdout == b"1\n"
            assert (await box.run("sleep 1000", timeout=0.2)).outcome is Outcome.TIMEOUT and (
                await box.exists("/tmp/data")
            )
        assert not (await box.run(["cat", "/tmp/data"])).ok

    asyncio.run(main())


def test_run_in_a_recorded_session_is_a_step_of_it(tmp_path):
    with Sandbox(record=str(tmp_path / "record")) as box:
        box.write_file("/tmp/data", "1")
        assert box.run(["cat", "/tmp/data"]).stdout == b"1"
    kinds = [json.loads(line).get("action", {}).get("kind") for line in (tmp_path / "record").read_text().splitlines()]
    assert [kind for kind in kinds if kind] == ["write_file", "exec"] or "exec" in kinds, kinds


# ---- the caller's environment
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["namespace", "process"])
def test_host_paths_are_not_inherited_in_the_environment(isolation, tmp_path):
    places = ("HOME", "TMPDIR", "TMP", "TEMP", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
    environment = {**os.environ, **{name: "/root/nowhere" for name in places}, "KEPT": "yes"}
    script = 'mktemp >/dev/null && git config --global user.name x && cd && touch f && python3 -c "import tempfile; tempfile.mkstemp()" && echo $KEPT; env | grep nowhere'
    done = subprocess.run(
        [
            binaries() / "rollbox",
            "run",
            "--no-clean-env",
            "--isolation",
            isolation,
            "--",
            "sh",
            "-c",
            script,
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.stdout == "yes\n", done


def test_granted_home_is_kept(tmp_path):
    environment = {**os.environ, "HOME": str(tmp_path)}
    tmp_path.chmod(0o755)
    done = subprocess.run(
        [
            binaries() / "rollbox",
            "run",
            "--no-clean-env",
            "--writable",
            str(tmp_path),
            "--",
            "sh",
            "-c",
            "echo $HOME; cd",
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.stdout == f"{tmp_path}\n" and done.returncode == 0, done


# ---- time-outs
# -----------------------------------------------------------------------------------------------------------


def timeouts(record):
    steps = [json.loads(line) for line in pathlib.Path(record).read_text().splitlines()]
    return [step["action"]["timeout_ms"] for step in steps if step.get("action", {}).get("kind") == "exec"]


def test_runs_have_a_default_timeout(tmp_path):
    """Recorded, for a record says what held: a run by itself, in a session, in a batch, from the command line."""
    Sandbox(record=str(tmp_path / "run")).run(["true"])
    assert timeouts(tmp_path / "run") == [300000]
    with Sandbox(record=str(tmp_path / "session")) as box:
        (
            box.run(["true"]),
            box.run_code("1"),
            box.run(["true"], timeout=7),
            box.exec(["true"]),
            box.run(["true"], timeout="none"),
        )
    assert timeouts(tmp_path / "session") == [300000, 300000, 7000, None, None]
    run_many([["true"]], record=str(tmp_path / "{id}.python"))
    assert timeouts(tmp_path / "0.python") == [300000]
    rollbox_cli(
        "batch",
        "--no-progress",
        "--record",
        str(tmp_path / "{id}.cli"),
        "-",
        stdin='{"id": "a", "argv": ["true"]}\n{"id": "b", "argv": ["true"], "timeout_s": "none"}\n',
    )
    assert timeouts(tmp_path / "a.cli") == [300000] and timeouts(tmp_path / "b.cli") == [None]
    for words, expected in (((), 300000), (("--timeout", "7"), 7000), (("--timeout", "none"), None)):
        out = tmp_path / f"record{expected}"
        assert rollbox_cli("record", "-o", str(out), *words, "--", "true").returncode == 0
        # A policy's own time is not repeated in the step.
        assert timeouts(out) == [expected], words


def test_timeout_none_disables_the_default():
    policy = Policy(timeout="none")
    policy.check()
    assert policy.timeout == "none" and Sandbox(policy).run(["true"]).ok
    assert Sandbox().run(["true"], timeout="none").ok and Sandbox().run_code("1", timeout="none").ok
    assert run_many([{"argv": ["true"], "timeout_s": "none"}])[0].ok
    for bad in (0, -1, "never", True):
        with pytest.raises(InvalidArgument, match="none"):
            Sandbox().run(["true"], timeout=bad)
    assert rollbox_cli("run", "--timeout", "none", "--", "echo", "hi").stdout == "hi\n"
    assert "none" in rollbox_cli("run", "--timeout", "0", "--", "true").stderr
    with Sandbox(Policy(timeout="none")) as box, box.shell() as shell:
        assert shell.run("echo hi").stdout == b"hi\n"


def test_call_timeout_overrides_policy_and_default():
    assert Sandbox({"timeout": 0.3}).run("while :; do :; done").outcome is Outcome.TIMEOUT
    assert Sandbox({"timeout": "none"}).run("while :; do :; done", timeout=0.3).outcome is Outcome.TIMEOUT
    with Sandbox({"timeout": 0.3}) as box:
        assert (
            box.run("while :; do :; done").outcome is Outcome.TIMEOUT
            and box.exec("while :; do :; done").outcome is Outcome.TIMEOUT
        )
