# SPDX-License-Identifier: Apache-2.0
"""rollbox policy check and plan."""

import json

BAD = """{
  "fs_readible": ["/usr"],
  "max_memory": "12Q",
  "net": "internet"
}
"""


def test_valid(cli, tmp_path):
    policy = tmp_path / "policy.json"
    policy.write_text('{"max_memory": "256M", "fs_readable": ["/usr"], "random_seed": 7}')
    done = cli("policy", "check", policy)
    assert (done.returncode, done.stdout) == (0, f"{policy}: valid\n".encode())
    assert cli.json("policy", "check", "--json", policy, status=0) == {"valid": True, "problems": []}


def test_options_extend_the_policy_file(cli, tmp_path):
    """Whichever form a file has it in, also where it says null; what is there already, by default
    or given before, is there once."""
    policy, grant = tmp_path / "policy.json", tmp_path / "grant"
    grant.mkdir()
    show = ["--", "sh", "-c", f"echo $A $B; ls -d {grant} /usr"]
    for text in (
        {},
        {"fs_readable": None, "env": None},
        {"env": ["A=0", "B=b"]},
        {"env": {"A": "0", "B": "b"}},
        {"fs_readable": ["/usr", "/bin", "/lib", "/lib64", str(grant)]},
    ):
        policy.write_text(json.dumps(text))
        done = cli(
            "run",
            "--policy",
            policy,
            "--readable",
            "/usr",
            "--readable",
            grant,
            "--readable",
            f"{grant}/.",
            "--env",
            "A=a",
            "--denied",
            "/opt/x",
            "--denied",
            "/opt/x",
            *show,
        )
        wanted = ["a", "b", "/usr", str(grant)] if text.get("env") else ["a", "/usr", str(grant)]
        assert done.returncode == 0 and sorted(done.stdout.decode().split()) == sorted(wanted), done


def test_all_problems_with_their_lines(cli, tmp_path):
    policy = tmp_path / "policy.json"
    policy.write_text(BAD)
    done = cli("policy", "check", policy)
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 1 and len(lines) == 3
    for number, key in ((2, "fs_readible"), (3, "max_memory"), (4, "net")):
        line = next(line for line in lines if line.startswith(f"{policy}:{number}: "))
        assert key in line
    assert "fs_readable" in next(line for line in lines if "fs_readible" in line)


def test_json(cli):
    report = cli.json("policy", "check", "--json", "-", input=BAD.encode(), status=1)
    assert not report["valid"] and [problem["line"] for problem in report["problems"]] == [2, 3, 4]
    assert all({"line", "key", "message", "hint"} <= set(problem) for problem in report["problems"])


def test_standard_input(cli):
    assert cli("policy", "check", "-", input=b"{}").stdout == b"<stdin>: valid\n"
    done = cli("policy", "check", "-", input=b"{ not json")
    assert done.returncode == 1 and done.stdout.startswith(b"<stdin>:1: ")
    assert cli("policy", "check", "-", input=b"").returncode == 1


def test_unreadable_file_is_reported(cli, tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        done = cli("policy", "check", path)
        assert done.returncode == 125 and str(path).encode() in done.stderr and done.stderr.count(b"\n") == 1


def test_plan(cli, tmp_path):
    done = cli("policy", "plan")
    assert done.returncode == 0 and done.stdout.count(b"\n") > 10, done.stderr
    tmp_path.chmod(0o755)
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"hostname": "planned"}))
    text = cli("policy", "plan", policy, "--readable", tmp_path).stdout.decode()
    assert str(tmp_path) in text


def test_plan_of_a_bad_policy(cli):
    done = cli("policy", "plan", "--memory", "12Q")
    assert done.returncode == 125 and b"--memory" in done.stderr
