# SPDX-License-Identifier: Apache-2.0
"""Net "allow" together with warm interpreters, templates, batches, grades, shells and clocks.

make check runs this file as root and as an ordinary user.
"""

import json
import warnings

import pytest
from harness import caller  # noqa: F401
from network_server import server  # noqa: F401
from trajectory_files import shared_engine

import rollbox
from rollbox import FeatureMissing, InvalidArgument, Policy, Sandbox

GET = (
    "import urllib.request; print(urllib.request.urlopen('http://{}/', timeout=20).read().decode())"
)
SITE = GET.format("site.test")


def policy(server, *rules, **keys):  # noqa: F811
    return Policy(
        net_allow=list(rules) or [server.rule("site.test"), server.rule("*.wild.test")], **keys
    )


def reaches(result, host="site.test"):
    assert result.stdout == f"hello {host}\n", result
    assert [(row["host"], row["connections"]) for row in result.network["hosts"]] == [(host, 1)]


def test_single_runs_and_warm_interpreters(server):  # noqa: F811
    box = Sandbox(policy(server))
    reaches(box.run(["python3", "-c", SITE], text=True))
    for _ in range(3):  # from the second on by an interpreter that was started before
        reaches(box.run_code(SITE, text=True))


def test_batch(server):  # noqa: F811
    results = rollbox.run_many(
        [["python3", "-c", SITE], {"code": SITE, "language": "python"}] * 2,
        policy=policy(server),
        text=True,
    )
    for result in results:
        reaches(result)


def test_templates(caller, server):  # noqa: F811
    path = caller.write(
        caller.directory(0o755) / "policy.json", json.dumps(policy(server).to_dict())
    )
    with shared_engine(caller) as call:
        call(
            "template",
            "create",
            "--policy",
            path,
            "--python",
            SITE.replace("print", "first = "),
            "reaching",
        )
        for _ in range(2):
            row = json.loads(
                call(
                    "run",
                    "--json",
                    "--template",
                    "reaching",
                    "--",
                    "python3",
                    "-c",
                    f"{SITE}; print(first)",
                )
            )
            assert row["stdout"] == "hello site.test\nhello site.test\n", row
            assert [(one["host"], one["connections"]) for one in row["network"]["hosts"]] == [
                ("site.test", 1)
            ]


def test_grade_has_rules_of_its_own(server):  # noqa: F811
    files = {"/tmp/verifier/ask.py": GET.format("judge.test"), "/tmp/verifier/site.py": SITE}
    judge = {"net_allow": [server.rule("judge.test")]}
    with Sandbox(policy(server)) as box:
        box.exec("echo 42 >/tmp/answer").check()
        options = {"outputs": ["/tmp/answer"], "text": True}
        grade = box.grade(files, ["python3", "/tmp/verifier/site.py"], **options)
        assert not grade.ok and "Name or service not known" in grade.stderr, grade
        assert grade.network["connections"] == 0
        grade = box.grade(files, ["python3", "/tmp/verifier/ask.py"], policy=judge, **options)
        assert grade.ok
        reaches(grade, "judge.test")
        grade = box.grade(files, ["python3", "/tmp/verifier/site.py"], policy=judge, **options)
        assert not grade.ok
        reaches(box.exec(["python3", "-c", SITE], text=True))


def test_grade_in_place_has_no_network(server):  # noqa: F811
    with Sandbox(policy(server)) as box:
        box.exec("true")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            grade = box.grade(
                {"/tmp/v.py": SITE}, ["python3", "/tmp/v.py"], unsafe_in_place=True, text=True
            )
        assert not grade.ok and grade.network["connections"] == 0


def test_verifier_with_a_policy_of_its_own(server):  # noqa: F811
    with Sandbox(Policy()) as box:
        box.exec("echo 42 >/tmp/answer").check()
        grade = box.grade(
            {"/tmp/v.py": SITE},
            ["python3", "/tmp/v.py"],
            outputs=["/tmp/answer"],
            verifier=policy(server),
            text=True,
        )
        assert grade.ok
        reaches(grade)


def test_shell_results_tell_of_the_network(server):  # noqa: F811
    with Sandbox(policy(server)) as box, box.shell() as shell:
        assert shell.run("true").network["connections"] == 0
        for _ in range(2):
            reaches(shell.run(f'python3 -c "{SITE}"', text=True))
        assert shell.run("cd /").network["connections"] == 0
        network = shell.run(f'python3 -c "{GET.format("other.test")}"; exit 3', text=True).network
        assert network["refusals"] == [{"host": "other.test", "port": 0, "why": "name", "count": 1}]
        with box.fork(1)[0] as kid:
            reaches(kid.exec(["python3", "-c", SITE], text=True))
    with Sandbox() as box, box.shell() as shell:
        assert shell.run("true").network is None


def test_names_that_no_rule_allows_are_refusals(server):  # noqa: F811
    ask = "import socket\nfor n in range(40):\n try: socket.gethostbyname(f'n{n}.other.test')\n except OSError: pass\n"
    with Sandbox(policy(server)) as box:
        network = box.exec(
            [
                "python3",
                "-c",
                ask + "try: socket.create_connection(('192.0.2.1', 80))\nexcept OSError: pass",
            ],
            text=True,
        ).network
        names = [row for row in network["refusals"] if row["port"] == 0]
        # A part of the list: connections have room beside them.
        assert (
            len(names) == 16
            and {row["why"] for row in names} == {"name"}
            and network["refused"] == 1
        )
        assert [(row["host"], row["why"]) for row in network["refusals"] if row["port"]] == [
            ("192.0.2.1", "literal")
        ]
        assert "the network rules refused other.test (name)" in str(
            box.exec(["python3", "-c", GET.format("other.test")], text=True)
        )


def test_time_start_and_seeds(server):  # noqa: F811
    keys = {"time_start": "2001-02-03T04:05:06Z", "random_seed": 7}
    with Sandbox(policy(server, **keys)) as box:
        reaches(box.exec(["python3", "-c", SITE], text=True))
        assert box.exec("date +%Y", text=True).stdout == "2001\n"


def test_virtual_time_is_refused(server):  # noqa: F811
    with pytest.raises(FeatureMissing, match="time_mode virtual: net allow is not possible"):
        Sandbox(policy(server, time_start="2001-02-03T04:05:06Z", time_mode="virtual")).run(
            ["true"]
        )


def test_process_isolation_is_refused(server):  # noqa: F811
    with pytest.raises(
        FeatureMissing, match="isolation process: net allow needs a network namespace"
    ):
        Sandbox(policy(server, isolation="process")).run(["true"])


def test_rules_can_be_withdrawn_and_given_again(server):  # noqa: F811
    with Sandbox(policy(server)) as box:
        for nothing in [], Policy(net="loopback"):
            box.net_set(nothing)
            assert box.exec(["python3", "-c", SITE], text=True).network["connections"] == 0
            box.net_set([server.rule("site.test")])
            reaches(box.exec(["python3", "-c", SITE], text=True))
        with box.fork(1)[0] as kid:
            kid.net_set([server.rule("fork.test")])
            reaches(kid.exec(["python3", "-c", GET.format("fork.test")], text=True), "fork.test")


def test_new_rules_that_decrypt_need_a_sandbox_that_trusts(server):  # noqa: F811
    decrypts = {
        "host": "site.test",
        "ports": [443],
        "requests": [{"methods": ["GET"]}],
        "to": f"http://{server.address}",
    }
    with Sandbox(policy(server)) as box:
        with pytest.raises(InvalidArgument, match="was created without such a rule"):
            box.net_set([decrypts])
        reaches(box.exec(["python3", "-c", SITE], text=True))


def test_set_with_a_name_of_a_set(server):  # noqa: F811
    look = ["python3", "-c", "import socket; print(socket.gethostbyname('pypi.org'))"]
    with Sandbox(policy(server)) as box:
        box.net_set(["@pypi"])
        assert box.exec(look, text=True).stdout.startswith("198.18.")


def test_plan_shows_the_rules(caller):  # noqa: F811
    rules = [
        "example.org",
        {
            "host": "api.example.org",
            "ports": [443],
            "requests": [{"methods": ["GET"], "paths": ["/v1/*"]}],
            "to": "http://127.0.0.1:9000",
        },
        {"host": "*.example.net", "ports": ["8000-8010", "53/udp"], "tls": "raw", "private": True},
        "192.0.2.0/24:22",
    ]
    path = caller.write(caller.directory(0o755) / "policy.json", json.dumps({"net_allow": rules}))
    plan = caller.rollbox("policy", "plan", path).stdout.decode()
    assert "example.org port 80,443, the name in TLS is checked\n" in plan
    assert (
        "api.example.org port 443, decrypted, requests GET /v1/*, at 127.0.0.1 port 9000 without TLS\n"
        in plan
    )
    assert "*.example.net port 8000-8010,53/udp, any bytes, private addresses as well\n" in plan
    assert "192.0.2.0/24 port 22" in plan and "time_start" not in plan
    path = caller.write(
        caller.directory(0o755) / "policy.json",
        json.dumps({"net_allow": rules, "time_start": "2001-01-01T00:00:00Z"}),
    )
    assert (
        "Under time_start, programs check certificates"
        in caller.rollbox("policy", "plan", path).stdout.decode()
    )
    assert "# network" not in caller.rollbox("policy", "plan").stdout.decode()
