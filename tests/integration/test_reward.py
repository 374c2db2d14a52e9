# SPDX-License-Identifier: Apache-2.0
"""The example: right answers score 1, all others 0, hostile ones harm nothing, and an
infrastructure error is not a zero."""

import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import TREE, binaries, caller, place  # noqa: F401

EXAMPLES = TREE / "examples"


@pytest.fixture(scope="module")
def reward():
    spec = importlib.util.spec_from_file_location("reward", EXAMPLES / "reward.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example():
    """The example beside copies of the programs, where every caller can read it."""
    tree = place() / "example"
    shutil.copytree(EXAMPLES, tree / "examples", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "build").mkdir(exist_ok=True)
    for name in ("rollbox", "rollbox-engine", "rollbox-init"):
        shutil.copy(binaries() / name, tree / "build" / name)
    return tree / "examples"


def test_problems_are_sound():
    """The set has at least 30 problems and 200 answers of all kinds, and each problem's parts fit together."""
    problems = [json.loads(line) for line in (EXAMPLES / "problems.jsonl").read_text().splitlines()]
    kinds = {}
    for problem in problems:
        assert set(problem) == {"task_id", "prompt", "entry_point", "canonical_solution", "test", "answers"}
        compile(problem["prompt"] + problem["canonical_solution"] + problem["test"], problem["task_id"], "exec")
        for answer in problem["answers"]:
            kinds[answer["kind"]] = kinds.get(answer["kind"], 0) + 1
    assert len(problems) >= 30 and sum(kinds.values()) >= 200
    assert (
        set(kinds) == {"right", "wrong", "crash", "syntax", "looping", "memory", "flood", "hostile"}
        and kinds["hostile"] >= 50
    )
    assert len({problem["task_id"] for problem in problems}) == len(problems)


@pytest.mark.long
def test_all_answers_score_as_they_should(caller, example):
    """The whole demonstration: every right answer 1, every other 0, the bait unharmed, by the command."""
    done = caller.call(
        sys.executable if caller.uid == os.geteuid() else "/usr/bin/python3",
        "-S",
        example / "reward.py",
        "--json",
        "-j",
        "4",
        "--timeout",
        "2",
        timeout=300,
    )
    summary = json.loads(done.stdout)
    assert summary["surprises"] == [] and summary["harm"] == [], (summary["surprises"][:5], summary["harm"])
    assert done.returncode == 0 and summary["programs"] >= 200
    assert all(row["unscored"] == 0 for row in summary["kinds"].values())
    assert (
        set(summary["kinds"]["looping"]["outcomes"]) == {"timeout"}
        and "output_limit" in summary["kinds"]["flood"]["outcomes"]
    ), summary["kinds"]


def test_wrong_expectation_is_reported(caller, example):
    """A wrong answer that is called right, and a right one called wrong, both make the exit status 1 and are named."""
    problem = json.loads((EXAMPLES / "problems.jsonl").read_text().splitlines()[0])
    wrong = next(answer["code"] for answer in problem["answers"] if answer["kind"] == "wrong")
    right = problem["prompt"] + problem["canonical_solution"]
    problem["answers"] = [
        {"kind": "right", "code": wrong},
        {"kind": "wrong", "code": right},
        {"kind": "right", "code": right},
    ]
    path = caller.write(caller.directory() / "one.jsonl", json.dumps(problem))
    done = caller.call("/usr/bin/python3", "-S", example / "reward.py", "--problems", path)
    assert done.returncode == 1 and done.stdout.count(b"NOT AS EXPECTED") == 2, done


def test_canonical_answers_of_a_gz_file(caller, example):
    """A file in HumanEval's schema, gzipped and without `answers`: its canonical solutions score 1."""
    problems = [json.loads(line) for line in (EXAMPLES / "problems.jsonl").read_text().splitlines()]
    path = caller.directory() / "set.jsonl.gz"
    with gzip.open(path, "wt") as out:
        for problem in problems[:10]:
            problem.pop("answers")
            out.write(json.dumps(problem) + "\n")
    caller.own(path)
    done = caller.call("/usr/bin/python3", "-S", example / "reward.py", "--problems", path, "--json")
    summary = json.loads(done.stdout)
    assert done.returncode == 0 and summary["kinds"] == {
        "right": {"programs": 10, "reward_1": 10, "reward_0": 0, "unscored": 0, "outcomes": {"exit": 10}}
    }, summary


def test_humaneval(caller, example):
    """All 164 canonical solutions of HumanEval score 1, where HUMANEVAL names the file."""
    path = os.environ.get("HUMANEVAL")
    if not path or not Path(path).exists():
        pytest.skip("HUMANEVAL does not name the data set")
    copy = caller.directory() / Path(path).name
    shutil.copy(path, copy)
    caller.own(copy)
    done = caller.call(
        "/usr/bin/python3", "-S", example / "reward.py", "--problems", copy, "--json", "--timeout", "20", timeout=300
    )
    summary = json.loads(done.stdout)
    assert done.returncode == 0 and summary["kinds"]["right"]["reward_1"] == 164, summary["surprises"]


def row(reward, **changes):
    fields = dict(outcome="exit", exit_code=0, stdout="", stderr="", wall_ms=1.0, cpu_ms=1.0, error="")
    fields.update(changes)
    return reward.Row(**fields)


def test_only_the_token_scores(reward):
    """Exit status 0, a verdict without the token, with another's, or after the run was killed: no reward."""
    answer = reward.Answer({"task_id": "x"}, "right", "x", "", "secret")
    passed = 'secret {"passed": true, "why": ""}\n'
    assert reward.reward_of(answer, row(reward, stdout=passed)) == 1
    for changes in (
        {},
        {"stdout": '{"passed": true}\n'},
        {"stdout": "x " + passed},
        {"stdout": passed.replace("secret", "secreT")},
        {"stdout": passed, "exit_code": 1},
        {"stdout": passed, "outcome": "timeout", "exit_code": None},
        {"stdout": passed, "outcome": "output_limit", "exit_code": None},
        {"stdout": 'secret {"passed": 1, "why": ""}\n'},
        {"stdout": 'sécret {"passed": true}'},
    ):
        assert reward.reward_of(answer, row(reward, **changes)) == 0, changes


def test_error_is_not_a_zero(reward):
    """A job that rollbox could not run is unscored."""
    answer = reward.Answer({"task_id": "x"}, "right", "x", "", "secret")
    assert reward.reward_of(answer, row(reward, outcome="error", exit_code=None, error="the engine is lost")) is None


def test_checker_refuses_values_that_are_not_data(caller):
    """The checker by itself, with answers that need no sandbox: forged equality, patched exits and
    raised verdicts are 0."""
    problem = json.loads((EXAMPLES / "problems.jsonl").read_text().splitlines()[0])
    name = problem["entry_point"]
    for code in (
        "class E(list):\n    def __eq__(self, o): return True\n",
        "import os; os._exit(0)\n",
        "raise SystemExit(0)\n",
        "import sys; sys.modules['__main__'].judge = lambda *a: None\n",
    ):
        code += f"def {name}(x):\n    return E([1]) if 'E' in globals() else None\n"
        task = {"token": "secret", "answer": code, **{key: problem[key] for key in ("prompt", "entry_point", "test")}}
        done = caller.call(
            "/usr/bin/python3",
            "-I",
            "-c",
            (EXAMPLES / "checker.py").read_text(),
            input=json.dumps(task).encode(),
        )
        assert done.stdout.startswith(b"secret ") and json.loads(done.stdout[7:])["passed"] is False, (code, done)
    assert (
        subprocess.run(
            ["/usr/bin/python3", "-I", "-c", (EXAMPLES / "checker.py").read_text()], input=b"", capture_output=True
        ).returncode
        != 0
    )
