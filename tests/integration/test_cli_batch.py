# SPDX-License-Identifier: Apache-2.0
"""rollbox batch: rows, order, resuming, wrong jobs, interruptions, and an engine that dies."""

import functools
import json
import os
import signal
import subprocess

import pytest
from harness import BUILD, engine_of, shown, skip


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_id(path):
    found = rows(path)
    assert len({json.dumps(row["id"]) for row in found}) == len(found), "one row an id"
    return {row["id"]: row for row in found}


def echo(id, text=None):
    return {"id": id, "argv": ["echo", text or str(id)]}


def test_rows(cli, jobs, tmp_path):
    out = tmp_path / "rows.jsonl"
    done = cli("batch", jobs(
        echo("a"),
        {"id": "b", "argv": ["sh", "-c", "cat; echo err >&2; exit 3"], "stdin": "given"},
        {"id": "c", "argv": ["sh", "-c", "kill -KILL $$"]},
        {"id": 4, "argv": ["sh", "-c", "while :; do :; done"], "timeout_s": 0.3},
    ), "-o", out, "-j", 2)
    assert done.returncode == 0, done.stderr
    found = by_id(out)
    assert list(found["a"])[:2] == ["id", "outcome"] and found["a"]["stdout"] == "a\n"
    assert (found["b"]["exit_code"], found["b"]["stdout"], found["b"]["stderr"]) == (3, "given", "err\n")
    assert (found["c"]["outcome"], found["c"]["signal"]) == ("signal", signal.SIGKILL)
    assert found[4]["outcome"] == "timeout"
    assert b"4 done" in done.stderr


def test_code(cli, jobs, tmp_path):
    out = tmp_path / "rows.jsonl"
    big = "x = '''" + "a" * 300_000 + "'''\nprint(len(x))"
    done = cli(
        "batch",
        jobs(
            {
                "id": "python",
                "language": "python",
                "code": "import helper, sys; print(helper.f(20), sys.stdin.read())",
                "files": {"helper.py": "def f(x): return x + 1"},
                "stdin": "in",
            },
            {"id": "big", "language": "python", "code": big},
            {"id": "bash", "language": "bash", "code": "a=(1 2 3); echo ${#a[@]}"},
            {"id": "sh", "language": "sh", "code": "echo $0"},
            {"id": "perl", "language": "perl", "code": "print 6*7"},
        ),
        "-o",
        out,
    )
    assert done.returncode == 0, done.stderr
    found = by_id(out)
    assert {id: row["stdout"].strip() for id, row in found.items() if id != "perl"} == {
        "python": "21 in",
        "big": "300000",
        "bash": "3",
        "sh": "main.sh",
    }


def test_job_files_go_to_relative_and_absolute_paths(cli, jobs, tmp_path):
    out = tmp_path / "rows.jsonl"
    done = cli(
        "batch",
        jobs(
            {
                "id": 1,
                "argv": ["sh", "-c", "pwd; echo $A $B; cat sub/file /tmp/other"],
                "files": {"sub/file": "rel\n", "/tmp/other": "abs\n"},
                "env": {"A": "job"},
            },
            {"id": 2, "argv": ["pwd"], "cwd": "/usr"},
            {"id": 3, "argv": ["uname", "-n"], "policy": {"hostname": "mine"}},
            {"id": 4, "argv": ["uname", "-n"]},
        ),
        "-o",
        out,
        "--env",
        "B=batch",
        "--hostname",
        "all",
    )
    assert done.returncode == 0, done.stderr
    assert {id: row["stdout"] for id, row in by_id(out).items()} == {
        1: "/tmp\njob batch\nrel\nabs\n",
        2: "/usr\n",
        3: "mine\n",
        4: "all\n",
    }


def test_null_field_counts_as_missing(cli, jobs, tmp_path):
    """The same as for a policy's key and in run_many, because programs write jobs with all fields.
    A null id is an id."""
    none = dict.fromkeys(["argv", "code", "language", "stdin", "files", "cwd", "env", "timeout_s", "policy"])
    out = tmp_path / "rows.jsonl"
    done = cli("batch", jobs(
        {"id": 1, **none, "argv": ["sh", "-c", "pwd; cat"]},
        {"id": 2, **none, "code": "print(2)", "language": "python"},
        {"id": 3, **none},
        {"id": 4, **none, "argv": ["true"], "unknown": None},
        {**none, "id": None, "argv": ["true"]},
    ), "-o", out)
    assert done.returncode == 1, done.stderr
    found = by_id(out)
    assert (found[1]["stdout"], found[2]["stdout"]) == ("/tmp\n", "2\n"), found
    assert [found[id]["error"]["code"] for id in (3, 4, None)] == ["invalid_argument"] * 3, found


def test_jobs_do_not_see_each_other(cli, jobs, tmp_path):
    out = tmp_path / "rows.jsonl"
    assert (
        cli(
            "batch",
            jobs(
                *(
                    {"id": i, "argv": ["sh", "-c", f"ls /tmp; echo {i} > /tmp/f{i}"]}
                    for i in range(20)
                )
            ),
            "-o",
            out,
            "-j",
            4,
        ).returncode
        == 0
    )
    assert {row["stdout"] for row in rows(out)} == {""}


def test_ordered(cli, jobs, tmp_path):
    """The first job of each pair takes far longer than the second: it burns CPU until it has counted."""
    out = tmp_path / "rows.jsonl"
    slow = "i=0; while [ $i -lt 30000 ]; do i=$((i + 1)); done"
    done = cli(
        "batch",
        jobs(*({"id": i, "argv": ["sh", "-c", slow if i % 2 == 0 else ":"]} for i in range(40))),
        "-o",
        out,
        "-j",
        8,
        "--ordered",
    )
    assert done.returncode == 0
    assert [row["id"] for row in rows(out)] == list(range(40))


def test_standard_streams(cli):
    text = "".join(json.dumps(echo(i)) + "\n" for i in range(5))
    done = cli("batch", "-", "-o", "-", "--ordered", input=text.encode())
    assert [json.loads(line)["stdout"] for line in done.stdout.splitlines()] == [f"{i}\n" for i in range(5)]


def test_jobs_that_come_one_by_one(cli):
    """A row is written before the next job is known: nothing waits for the end of the input."""
    with cli.start("batch", "-", "-j", 4) as process:
        for i in range(3):
            process.stdin.write(json.dumps(echo(i)).encode() + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == i
        process.stdin.close()
        assert process.wait() == 0


def test_no_newline_at_the_end_and_blank_lines(cli, tmp_path):
    source, out = tmp_path / "jobs.jsonl", tmp_path / "rows.jsonl"
    source.write_text("\n" + json.dumps(echo("a")) + "\n  \r\n" + json.dumps(echo("b")))
    assert cli("batch", source, "-o", out).returncode == 0
    assert set(by_id(out)) == {"a", "b"}


def test_no_jobs(cli, tmp_path):
    source, out = tmp_path / "jobs.jsonl", tmp_path / "rows.jsonl"
    source.write_text("")
    assert cli("batch", source, "-o", out).returncode == 0
    assert out.read_text() == ""


def test_summary_as_json(cli, jobs, tmp_path):
    summary = cli.json("batch", jobs(echo(1), echo(2)), "-o", tmp_path / "rows.jsonl", "--json", status=0)
    assert (
        summary["done"],
        summary["skipped"],
        summary["interrupted"],
        summary["outcomes"]["exit"],
    ) == (2, 0, False, 2)


# ---- jobs that are wrong
# ------------------------------------------------------------------------------------------------

WRONG = [
    ("{nonsense", "not JSON"),
    ("[1]", "object"),
    ('{"argv": ["true"]}', '"id"'),
    ('{"id": 1.5, "argv": ["true"]}', '"id"'),
    ('{"id": "x"}', '"argv"'),
    ('{"id": "x", "argv": []}', '"argv"'),
    ('{"id": "x", "argv": "true"}', '"argv"'),
    ('{"id": "x", "argv": ["a\\u0000b"]}', "NUL"),
    ('{"id": "x", "argv": ["true"], "code": "1", "language": "python"}', '"code"'),
    ('{"id": "x", "code": "1"}', '"language"'),
    ('{"id": "x", "code": "1", "language": "pyton"}', "python"),
    ('{"id": "x", "argv": ["true"], "timeout": 1}', "timeout_s"),
    ('{"id": "x", "argv": ["true"], "timeout_s": 0}', "timeout_s"),
    ('{"id": "x", "argv": ["true"], "timeout_s": "1"}', "timeout_s"),
    ('{"id": "x", "argv": ["true"], "env": {"A=B": "c"}}', '"env"'),
    ('{"id": "x", "argv": ["true"], "files": {"a": 1}}', '"files"'),
    ('{"id": "x", "argv": ["true"], "files": ["a"]}', '"files"'),
    ('{"id": "x", "argv": ["true"], "stdin": 7}', '"stdin"'),
    ('{"id": "x", "argv": ["true"], "policy": []}', '"policy"'),
    ('{"id": "x", "argv": ["true"], "policy": {"fs_readible": []}}', "fs_readible"),
    ('{"id": "x", "argv": ["true"], "id": "y"}', "duplicate"),
]


@pytest.mark.parametrize("line, word", WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_wrong_job_is_an_error_row(cli, jobs, tmp_path, line, word):
    out = tmp_path / "rows.jsonl"
    done = cli("batch", jobs(echo("good"), line, echo("fine")), "-o", out)
    assert done.returncode == 1
    bad = next(row for row in rows(out) if row["outcome"] == "error")
    assert bad["error"]["code"] in ("invalid_argument", "policy_invalid") and word in bad["error"]["message"]
    if bad["error"]["code"] == "invalid_argument":
        assert "line 2" in bad["error"]["message"]
    assert {row["id"] for row in rows(out) if row["outcome"] == "exit"} == {"good", "fine"}


def test_missing_program_is_an_error_row(cli, jobs, tmp_path):
    out = tmp_path / "rows.jsonl"
    assert cli("batch", jobs({"id": 1, "argv": ["no-such-program"]}), "-o", out).returncode == 1
    assert by_id(out)[1]["error"]["code"] == "command_not_found"


def test_duplicate_ids_are_found_before_anything_runs(cli, jobs, tmp_path):
    out = tmp_path / "rows.jsonl"
    done = cli("batch", jobs(echo("a"), echo("b"), echo("a")), "-o", out)
    assert done.returncode == 125 and b":3: " in done.stderr and b"line 1" in done.stderr and not out.exists()
    # 7 and "7" are two ids
    assert cli("batch", jobs(echo(7), echo("7")), "-o", out).returncode == 0


def test_duplicate_ids_in_a_pipe(cli, tmp_path):
    out = tmp_path / "rows.jsonl"
    text = "".join(json.dumps(job) + "\n" for job in (echo("a"), echo("a"), echo("b")))
    done = cli("batch", "-", "-o", out, "-j", 1, input=text.encode())
    assert done.returncode == 125 and b"<stdin>:2: " in done.stderr
    assert [row["id"] for row in rows(out)] == ["a"]


def test_wrong_calls(cli, jobs, tmp_path):
    good = jobs(echo(1))
    for arguments, word in (
        (["batch"], b"JOBS.jsonl"),
        (["batch", tmp_path / "missing"], b"missing"),
        (["batch", tmp_path], b"directory"),
        (["batch", good, "-j", "0"], b"--jobs"),
        (["batch", good, "-o", tmp_path / "no" / "such"], b"no/such"),
        (["batch", good, "--readable", "/no/such/path"], b"/no/such/path"),
        (["batch", good, "--memory", "12Q"], b"--memory"),
    ):
        done = cli(*arguments)
        assert done.returncode == 125 and word in done.stderr and done.stderr.count(b"\n") == 1, done.stderr


# ---- resuming
# -----------------------------------------------------------------------------------------------------------


def test_resume_skips_what_is_done(cli, jobs, tmp_path):
    out = tmp_path / "rows.jsonl"
    first = jobs(echo(1, "first"), echo(2, "first"))
    assert cli("batch", first, "-o", out).returncode == 0
    done = cli("batch", jobs(*(echo(i, "second") for i in range(5))), "-o", out)
    assert done.returncode == 0 and b"3 done" in done.stderr and b"2 done before" in done.stderr
    assert {id: row["stdout"].strip() for id, row in by_id(out).items()} == {
        0: "second",
        1: "first",
        2: "first",
        3: "second",
        4: "second",
    }


def test_resume_cuts_a_torn_line(cli, jobs, tmp_path):
    out = tmp_path / "rows.jsonl"
    source = jobs(echo("a"), echo("b"))
    assert cli("batch", source, "-o", out).returncode == 0
    whole = out.read_bytes()
    second = whole.index(b"\n") + 1
    for keep in (second + 1, second + 3, second + 20, len(whole) - 1):
        out.write_bytes(whole[:keep])
        assert cli("batch", source, "-o", out).returncode == 0
        assert set(by_id(out)) == {"a", "b"}


def test_resume_tries_errors_again(cli, jobs, tmp_path):
    out = tmp_path / "rows.jsonl"
    assert cli("batch", jobs(echo(1), {"id": 2, "argv": ["no-such-program"]}), "-o", out).returncode == 1
    inode = out.stat().st_ino
    assert cli("batch", jobs(echo(1), echo(2)), "-o", out).returncode == 0
    assert {id: row["outcome"] for id, row in by_id(out).items()} == {1: "exit", 2: "exit"}
    assert out.stat().st_ino != inode and sorted(path.name for path in tmp_path.iterdir()) == [
        "jobs.jsonl",
        "rows.jsonl",
    ]


@pytest.mark.parametrize(
    "content",
    ["precious notes\n", "precious notes", '{"id": 1}\n', '{"id": 1, "argv": ["true"]}\n'],
)
def test_foreign_output_file_is_left_alone(cli, jobs, tmp_path, content):
    out = tmp_path / "notes"
    out.write_text(content)
    done = cli("batch", jobs(echo(1)), "-o", out)
    assert done.returncode == 125 and b"not a result row" in done.stderr
    assert out.read_text() == content


def test_output_never_overwrites_the_jobs(cli, jobs):
    source = jobs(echo(1))
    before = source.read_text()
    assert cli("batch", source, "-o", source).returncode == 125
    assert source.read_text() == before


def test_two_batches_on_one_file(cli, jobs, tmp_path):
    out = tmp_path / "rows.jsonl"
    with cli.start("batch", "-", "-o", out) as first:
        first.stdin.write(json.dumps(echo(1)).encode() + b"\n")
        first.stdin.flush()
        while not (out.exists() and out.read_text().endswith("\n")):
            assert first.poll() is None
        done = cli("batch", jobs(echo(2)), "-o", out)
        assert done.returncode == 125 and b"another batch" in done.stderr
        first.stdin.close()
        assert first.wait() == 0
    assert set(by_id(out)) == {1}


# ---- bad luck
# -----------------------------------------------------------------------------------------------------------


def waiting(cli, out, flags=()):
    """A batch that has written its first row and whose second job never ends."""
    process = cli.start("batch", "-", "-o", out, "-j", 1, *flags)
    for job in (echo("first"), {"id": "second", "argv": ["sh", "-c", "while :; do :; done"]}, echo("third")):
        process.stdin.write(json.dumps(job).encode() + b"\n")
    process.stdin.flush()
    while not (out.exists() and out.read_text().endswith("\n")):
        assert process.poll() is None, process.stderr.read()
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_resumed(cli, jobs, tmp_path, number):
    out = tmp_path / "rows.jsonl"
    with waiting(cli, out) as process:
        process.send_signal(number)
        assert process.wait() == 128 + number
        assert b"interrupted" in process.stderr.read()
    assert set(by_id(out)) == {"first"}
    assert cli("batch", jobs(echo("first", "again"), echo("second"), echo("third")), "-o", out).returncode == 0
    assert {id: row["stdout"].strip() for id, row in by_id(out).items()} == {
        "first": "first",
        "second": "second",
        "third": "third",
    }


def test_killed_and_resumed(cli, jobs, tmp_path):
    out = tmp_path / "rows.jsonl"
    with waiting(cli, out) as process:
        process.kill()
        process.wait()
    done = cli("batch", jobs(echo("first", "again"), echo("second"), echo("third")), "-o", out)
    assert done.returncode == 0, done.stderr
    assert {id: row["stdout"].strip() for id, row in by_id(out).items()} == {
        "first": "first",
        "second": "second",
        "third": "third",
    }


def test_killed_engine_fails_no_job(cli, tmp_path):
    """The engine dies under a running job: a new one takes over and every job has its result."""
    out = tmp_path / "rows.jsonl"
    tmp_path.chmod(0o755)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    fifo = shared / "fifo"
    os.mkfifo(fifo)
    fifo.chmod(0o666)
    with cli.start("batch", "-", "-o", out, "-j", 2, "--shared", shared, "--json") as process:
        # In its first life the job says that it runs, and does not end; a directory tells it that this is the second.
        script = f"if mkdir {shared}/life; then echo up > {fifo}; while :; do :; done; else echo second; fi"
        process.stdin.write(json.dumps({"id": "a", "argv": ["sh", "-c", script]}).encode() + b"\n")
        process.stdin.flush()
        with open(fifo) as reader:
            assert reader.readline() == "up\n"
        os.kill(engine_of(process.pid), signal.SIGKILL)
        process.stdin.close()
        assert process.wait() == 0, process.stderr.read()
        summary = json.loads(process.stdout.read())
    assert by_id(out)["a"]["stdout"] == "second\n"
    assert summary["retried"] == 1


def test_lost_shared_engine_is_reported(cli, tmp_path):
    """Finished rows stay, and the batch ends with an error: the user has to start another engine."""
    out, path = tmp_path / "rows.jsonl", tmp_path / "engine"
    with cli.start("engine", "start", "--socket", path) as engine:
        while cli("engine", "status", "--socket", path).returncode:
            assert engine.poll() is None
        with waiting(cli, out, flags=("--engine", path)) as process:
            engine.kill()
            process.stdin.close()
            assert process.wait() == 125 and b"no engine serves" in process.stderr.read()
    assert set(by_id(out)) == {"first"}


def test_no_engine(cli, jobs, tmp_path):
    done = cli("batch", jobs(echo(1)), "-o", tmp_path / "rows.jsonl", env={"ROLLBOX_ENGINE": "/no/such/engine"})
    assert done.returncode == 125 and b"/no/such/engine" in done.stderr


def test_full_disk_is_reported(cli, jobs):
    done = cli("batch", jobs(echo(1)), "-o", "/dev/full")
    assert done.returncode == 125 and b"/dev/full" in done.stderr


@pytest.mark.long
@pytest.mark.once
def test_many_jobs_in_bounded_memory(cli):
    """Each job and each row is about a megabyte; the peak is read when all are through and the
    program waits for more."""
    if "asan" in BUILD.name:
        skip("does not apply: a sanitizer keeps memory that was freed")
    with cli.start("batch", "-", "-j", 4, stderr=subprocess.DEVNULL) as process:
        for i in range(100):
            process.stdin.write(json.dumps({"id": i, "argv": ["cat"], "stdin": "x" * 1_000_000}).encode() + b"\n")
            process.stdin.flush()
            assert len(process.stdout.readline()) > 1_000_000
        with open(f"/proc/{process.pid}/status") as status:
            peak_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
        process.stdin.close()
        assert process.wait() == 0
    assert peak_kib < 80_000        # all jobs or all rows would take 100 MB more than the few that are under way


def test_progress_on_a_terminal(cli, jobs, tmp_path):
    def on_terminal(*flags):
        return shown(functools.partial(cli.start, "batch", source, "-o", tmp_path / f"rows{len(flags)}.jsonl", *flags))

    source = jobs(*(echo(i) for i in range(10)))
    text = on_terminal()
    assert b"/10" in text and b"/s" in text and b"10 done" in text
    assert b"/10" not in on_terminal("--no-progress")
    assert b"/10" not in cli("batch", source, "-o", tmp_path / "other.jsonl").stderr
