# SPDX-License-Identifier: Apache-2.0
"""Grading: what an agent leaves behind to be graded better than it is, and that it comes to nothing.

The task is a module with a bug; the verifier is a plain Python test. An attack is what an agent
that did not mend the bug does instead: each must be
graded as failed, by both ways of grading where it is in the reach of both, and the honest solution must pass.
"""

import os
import textwrap

import pytest

from rollbox import DISTRUSTED, InvalidArgument, Outcome, Policy, RollboxError, Sandbox

REPO = {
    "/tmp/repo/calc.py": "def add(a, b):\n    return a - b\n",
    "/tmp/repo/tests/test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(0, 0) == 0\n",
    "/tmp/repo/setup.cfg": "[metadata]\nname = calc\n",
}
HIDDEN = {
    "/tmp/repo/tests/test_calc.py": "import runner\nfrom calc import add\n\nrunner.check(add(2, 3) == 5)\n",
    "/tmp/repo/tests/runner.py": "import sys\n\n\ndef check(passed):\n    print('PASSED' if passed else 'FAILED')\n    sys.exit(0 if passed else 1)\n",
}
COMMAND = "cd /tmp/repo && PYTHONPATH=/tmp/repo python3 tests/test_calc.py"
FIX = "sed -i 's/a - b/a + b/' /tmp/repo/calc.py"
OUTPUTS = ["/tmp/repo/calc.py"]


@pytest.fixture
def box():
    with Sandbox(Policy(max_disk="64M")) as box:
        for path, data in REPO.items():
            box.write_file(path, data)
        box.snapshot("task")
        yield box


def verdicts(box, **options):
    return [box.grade(HIDDEN, COMMAND, outputs=outputs, timeout=60, **options) for outputs in (None, OUTPUTS)]


def test_honest_solution_passes(box):
    box.exec(FIX, check=True)
    for result in verdicts(box):
        assert result.ok and result.stdout == b"PASSED\n", result
        assert result.reset == ()


def test_no_solution_fails(box):
    for result in verdicts(box):
        assert (result.exit_code, result.stdout) == (1, b"FAILED\n")


ATTACKS = {
    "patched test": "echo 'print(\"PASSED\")' >/tmp/repo/tests/test_calc.py",
    "test is a link": "ln -sf /tmp/mine.py /tmp/repo/tests/test_calc.py; echo 'print(\"PASSED\")' >/tmp/mine.py; chmod 444 /tmp/mine.py",
    "test is a dangling link": "ln -sf /tmp/none/x /tmp/repo/tests/test_calc.py",
    "test is a directory": "cd /tmp/repo/tests; rm test_calc.py; mkdir -p test_calc.py/deep; echo 'print(\"PASSED\")' >test_calc.py/__main__.py",
    "test is a read-only directory": "cd /tmp/repo/tests; rm test_calc.py; mkdir -p test_calc.py/deep; echo x >test_calc.py/deep/f; chmod 555 test_calc.py/deep test_calc.py",
    "test is a fifo": "cd /tmp/repo/tests; rm test_calc.py; mkfifo test_calc.py",
    "test is hard-linked": "cd /tmp/repo/tests; echo 'print(\"PASSED\")' >../x.py; ln -f ../x.py test_calc.py; chmod 444 ../x.py",
    "tests is a link": "cd /tmp/repo; mv tests real; ln -s real tests; echo 'print(\"PASSED\")' >real/test_calc.py",
    "tests is a link outside": "cd /tmp/repo; rm -r tests; mkdir /tmp/elsewhere; ln -s /tmp/elsewhere tests",
    "tests is a link to the root": "cd /tmp/repo; rm -r tests; ln -s / tests",
    "tests is a file": "cd /tmp/repo; rm -r tests; echo 'print(\"PASSED\")' >tests",
    "tests may not be entered": "chmod 000 /tmp/repo/tests",
    "repo may not be written": "chmod -R a-w /tmp/repo",
    "everything is a link": "mv /tmp/repo /tmp/other; ln -s /tmp/other /tmp/repo",
    "runner package": "mkdir /tmp/repo/tests/runner; echo 'check = lambda passed: print(\"PASSED\")' >/tmp/repo/tests/runner/__init__.py",
    "runner extension": "touch /tmp/repo/tests/runner.so /tmp/repo/tests/runner.abi3.so",
    "runner bytecode": """cd /tmp/repo/tests; echo 'check = lambda passed: print("PASSED")' >runner.py
        python3 -c 'import py_compile; py_compile.compile("runner.py", invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)'; rm runner.py""",
    "sitecustomize in the home": "cd ~; mkdir -p .local/lib/python3.11/site-packages; echo 'print(\"PASSED\"); import os; os._exit(0)' >.local/lib/python3.11/site-packages/usercustomize.py",
    "sitecustomize in the path": "echo 'print(\"PASSED\"); import os; os._exit(0)' >/tmp/repo/sitecustomize.py",
    "pth": "cd ~; mkdir -p .local/lib/python3.11/site-packages; echo 'import os; os._exit(0)' >.local/lib/python3.11/site-packages/x.pth",
    "shell start-up": "echo 'echo PASSED; exit 0' | tee ~/.bashrc ~/.profile ~/.bash_profile >/tmp/repo/.bashrc; export BASH_ENV=~/.bashrc ENV=~/.bashrc",
    "a waiting process": "(while :; do cp /tmp/mine.py /tmp/repo/tests/test_calc.py; done) >/dev/null 2>&1 & echo 'print(\"PASSED\")' >/tmp/mine.py",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_attack(box, attack):
    box.exec(textwrap.dedent(attack), check=True)
    for result in verdicts(box):
        assert not result.ok and b"PASSED" not in result.stdout, result
    box.exec("pkill -f mine.py; true")


def test_attack_beside_an_honest_solution_does_not_hurt_it(box):
    """Planted files are replaced, so they cannot make grading fail either."""
    for attack in (
        "tests is a link outside",
        "tests is a file",
        "test is a read-only directory",
        "runner package",
        "tests may not be entered",
    ):
        box.reset("task")
        box.exec(FIX + "; " + ATTACKS[attack], check=True)
        for result in verdicts(box):
            assert result.ok and result.stdout == b"PASSED\n", (attack, result)


def test_planted_files_are_named(box):
    box.exec(
        FIX
        + "; cd /tmp/repo; echo x >conftest.py; echo '[pytest]' >>setup.cfg; echo cheat >tests/test_calc.py; mkdir tests/runner",
        check=True,
    )
    result = box.grade(HIDDEN, COMMAND)
    assert result.ok
    assert result.reset == (
        "/tmp/repo/conftest.py",
        "/tmp/repo/setup.cfg",
        "/tmp/repo/tests/runner",
        "/tmp/repo/tests/test_calc.py",
    )


def test_verifier_control_files_are_reset(box):
    script = "cd /tmp/repo; cat setup.cfg; ls -A . .git/hooks 2>/dev/null; true"
    honest = box.grade({}, script, text=True).stdout
    box.exec(
        """cd /tmp/repo; echo evil >>setup.cfg; echo evil >conftest.py; echo evil >pytest.ini; echo evil >tox.ini; mkdir -p .git/hooks pkg
        echo evil >.git/hooks/pre-commit; echo evil >.git/config; echo evil >pkg/conftest.py; rm -r pkg/../.git/none 2>/dev/null; true""",
        check=True,
    )
    result = box.grade({}, script, text=True)
    assert "evil" not in result.stdout and sorted(
        set(result.stdout.split()) - {"pkg", ".git", ".git/hooks:", ".:"}
    ) == sorted(set(honest.split()) - {".:"}), (result.stdout, honest)
    kept = box.grade({}, script, text=True, distrust=[])
    assert "evil" in kept.stdout and kept.reset == ()
    box.exec("rm /tmp/repo/setup.cfg; mkdir /tmp/repo/setup.cfg", check=True)
    assert "name = calc" in box.grade({}, script, text=True).stdout
    assert "conftest.py" in DISTRUSTED


@pytest.mark.parametrize("evil", ["echo 'gitdir: /tmp/evil' >.git", "ln -s /tmp/evil .git", "mkfifo .git", ":"])
def test_invalid_git_directory_is_refused(evil):
    with Sandbox() as box:
        box.exec(
            "mkdir -p /tmp/repo/.git/hooks /tmp/evil; echo base >/tmp/repo/.git/config; echo evil >/tmp/evil/config",
            check=True,
        )
        box.snapshot()
        box.exec(f"cd /tmp/repo; rm -r .git; {evil}", check=True)
        result = box.grade({}, "test -d /tmp/repo/.git/hooks && ! test -L /tmp/repo/.git && cat /tmp/repo/.git/config")
        assert result.stdout == b"base\n", result
        box.reset()
        box.exec("mkdir -p /tmp/new/.git && echo mine >/tmp/new/.git/HEAD", check=True)
        assert box.grade({}, "cat /tmp/new/.git/HEAD").stdout == b"mine\n", (
            "a repository of one's own is nobody's business"
        )


def test_names_that_are_no_text(box):
    box.exec(
        [
            "python3",
            "-c",
            r"import os; os.makedirs(b'/tmp/repo/\xff\n'); open(b'/tmp/repo/\xff\n/conftest.py', 'w').write('evil')",
        ],
        check=True,
    )
    assert [change.path for change in box.diff("task")] == ["/tmp/repo/\udcff\n", "/tmp/repo/\udcff\n/conftest.py"]
    result = box.grade({}, "find /tmp/repo -name conftest.py")
    assert result.stdout == b"" and result.reset == ("/tmp/repo/\udcff\n/conftest.py",)


def test_forged_reward_file_is_ignored(box):
    path = "/tmp/logs/reward.txt"
    box.exec(f"mkdir -p /tmp/logs; echo 1.0 >{path}", check=True)
    for outputs in (None, [*OUTPUTS, "/tmp/logs"]):
        result = box.grade(HIDDEN, "exit 1", outputs=outputs, collect=[path])
        assert result.files == {} and path in result.reset
        result = box.grade(
            HIDDEN,
            f"mkdir -p /tmp/logs; echo 0.0 >{path}",
            outputs=outputs,
            collect=[path, "/tmp/none"],
        )
        assert result.files == {path: b"0.0\n"}
    box.exec(f"rm -r /tmp/logs; ln -s /tmp/repo /tmp/logs; ln -s /etc/passwd {path}", check=True)
    assert box.grade({}, "true", collect=[path]).files == {}
    assert box.grade({}, f"ln -s /etc/passwd {path}", collect=[path]).files == {}, "a link is no reward"


def test_verifier_files_are_hidden_from_the_graded_session(box):
    box.exec(FIX, check=True)
    watcher = box.spawn("while :; do sleep 0.01; done")
    before = box.exec("cd /tmp && find . | sort && cat repo/tests/test_calc.py").stdout
    assert box.grade(HIDDEN, COMMAND).ok
    assert box.exec("cd /tmp && find . | sort && cat repo/tests/test_calc.py").stdout == before
    assert watcher.poll() is None, "the processes in it still run"


def test_grading_leaves_nothing(box):
    names = {one["name"] for one in box._get_engine().sandboxes()}
    for result in verdicts(box):
        assert result.outcome is Outcome.EXIT
    assert {one["name"] for one in box._get_engine().sandboxes()} == names
    with pytest.raises(RollboxError):
        box.grade(HIDDEN, ["no-such-program"])
    assert {one["name"] for one in box._get_engine().sandboxes()} == names


def test_verifier_has_its_own_environment(box):
    box.exec("mkdir -p ~/.cache; echo x >~/.gitconfig; git config --global core.hooksPath /tmp/evil 2>/dev/null; true")
    seen = dict(
        line.split("=", 1)
        for line in box.grade({}, "env", text=True, env={"MINE": "1"}).stdout.splitlines()
        if "=" in line
    )
    assert seen["MINE"] == "1" and seen["PYTHONNOUSERSITE"] == "1" and seen["GIT_CONFIG_GLOBAL"] == "/dev/null"
    assert seen["HOME"] != box.exec("echo $HOME", text=True).stdout.strip()
    assert box.grade({}, "ls -A ~").stdout == b""


def test_outputs_alone_are_taken(box):
    box.exec(
        "cd /tmp/repo; mkdir -p out/deep; echo a >out/deep/a; ln -s /etc/passwd out/link; echo b >other; rm tests/test_calc.py",
        check=True,
    )
    result = box.grade(
        {},
        "cd /tmp/repo; find out other tests | sort; readlink out/link",
        outputs=["out", "/tmp/repo/missing"],
        cwd="/tmp/repo",
        text=True,
    )
    assert result.stdout == "out\nout/deep\nout/deep/a\ntests\ntests/test_calc.py\n"
    assert set(result.dropped) == {"/tmp/repo/out/link"} and result.reset == ()


def test_output_removed_by_the_agent_is_missing(box):
    box.exec("rm /tmp/repo/calc.py", check=True)
    assert box.grade({}, "test -e /tmp/repo/calc.py", outputs=["/tmp/repo"]).exit_code == 1


def test_outputs_carry_no_verifier_control_files(box):
    box.exec("cd /tmp/repo; echo evil >conftest.py; echo evil >>setup.cfg; echo x >new.py", check=True)
    result = box.grade({}, "cd /tmp/repo; cat setup.cfg; ls", outputs=["/tmp/repo"], text=True)
    assert "evil" not in result.stdout and "conftest.py" not in result.stdout and "new.py" in result.stdout
    assert result.reset == ("/tmp/repo/conftest.py", "/tmp/repo/setup.cfg")


def test_base_without_a_snapshot_is_the_start():
    with Sandbox() as box:
        box.exec("mkdir /tmp/repo; echo x >/tmp/repo/conftest.py; echo y >/tmp/repo/a", check=True)
        assert box.grade({}, "ls /tmp/repo").stdout == b"a\n"
        assert box.grade({}, "ls /tmp/repo 2>/dev/null").stdout == b"a\n", "the first fork is no base of the second"
        assert box.grade({}, "ls /tmp/repo", outputs=["/tmp/repo/a"]).stdout == b"a\n"


def test_explicit_base_snapshot(box):
    box.write_file("/tmp/repo/conftest.py", "legitimate")
    base = box.snapshot()
    assert box.grade({}, "cat /tmp/repo/conftest.py", base=base).stdout == b"legitimate"
    assert box.grade({}, "cat /tmp/repo/conftest.py").exit_code == 1
    kid, = box.fork()
    with kid:
        assert kid.grade({}, "cat /tmp/repo/conftest.py").exit_code == 1, "a fork has its origin's base"


def test_granted_directories(tmp_path):
    """A repository of the host, private to each sandbox."""
    os.chmod(tmp_path, 0o755)
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "calc.py").write_text(REPO["/tmp/repo/calc.py"])
    (repo / "conftest.py").write_text("legitimate")
    with Sandbox(Policy(fs_writable=[repo], cwd=repo)) as box:
        box.exec(
            "echo evil >conftest.py; sed -i 's/a - b/a + b/' calc.py; mkdir tests; echo evil >tests/t.py",
            check=True,
        )
        for outputs in (None, ["calc.py"]):
            result = box.grade(
                {
                    "tests/t.py": "from calc import add; print(add(2, 3)); print(open('conftest.py').read())"
                },
                "PYTHONPATH=. python3 tests/t.py",
                outputs=outputs,
                text=True,
            )
            assert result.stdout == "5\nlegitimate\n", result
    assert sorted(one.name for one in repo.iterdir()) == ["calc.py", "conftest.py"]


def test_limits_of_the_verdict(box):
    assert box.grade({}, "sleep 100", timeout=0.3).outcome is Outcome.TIMEOUT
    assert box.grade({}, "sleep 100", policy={"timeout": 0.3}).outcome is Outcome.TIMEOUT
    assert box.grade({}, "yes", policy={"max_output": "1K"}).outcome is Outcome.OUTPUT_LIMIT
    result = box.grade({}, "echo $A; pwd", policy=Policy(env={"A": "1"}, cwd="/usr", max_disk="64M"), env={"A": "2"})
    assert result.stdout == b"2\n/usr\n"
    with pytest.raises(InvalidArgument, match="max_memory"):
        box.grade({}, "true", policy={"max_memory": "1G"})


@pytest.mark.parametrize(
    "bad",
    [
        {"files": {"../x": ""}},
        {"files": {"/": ""}},
        {"files": {"a\0": ""}},
        {"files": {"": ""}},
        {"files": ["x"]},
        {"files": {"a": 3}},
        {"outputs": "/tmp"},
        {"outputs": ["/"]},
        {"outputs": ["/tmp/../etc"]},
        {"collect": "/tmp/x"},
        {"distrust": "x"},
        {"base": 3},
    ],
)
def test_bad_arguments(box, bad):
    with pytest.raises((InvalidArgument, TypeError, AttributeError)):
        box.grade(**{"files": {}, "command": "true", **bad})


def test_paths_that_cannot_be_written(box):
    with pytest.raises(RollboxError, match="/usr"):
        box.grade({"/usr/rollbox-test/x": ""}, "true")


def test_full_disk_does_not_prevent_grading(box):
    box.exec(FIX + "; head -c 70000000 /dev/zero >/tmp/fill", timeout=60)
    for result in verdicts(box):
        assert result.ok, result


def test_verdict_as_text(box):
    result = box.grade({}, ["sh", "-c", "echo é; exit 3"], text=True)
    assert result.stdout == "é\n" and result.exit_code == 3 and not result.ok
