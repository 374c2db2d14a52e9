# SPDX-License-Identifier: Apache-2.0
"""POST .../grade: the verifier sees the named files, and nothing else of the graded code."""

import json

import pytest
from harness import caller, until  # noqa: F401
from serving import server  # noqa: F401

VERIFIER = {
    "files": {
        "/tmp/w/verify.py": "import sys; sys.path.insert(0, '/tmp/w')\nimport add\nassert add.add(2, 3) == 5\n"
    },
    "argv": ["python3", "/tmp/w/verify.py"],
    "outputs": ["/tmp/w/add.py"],
}
GOOD, BAD = "def add(a, b):\n    return a + b\n", "def add(a, b):\n    return a - b\n"


@pytest.fixture
def box(server):  # noqa: F811
    server.call("POST", "/v1/sandboxes", {"name": "box", "policy": {"max_memory": "256M"}})
    return "/v1/sandboxes/box"


def write(server, box, path, text):  # noqa: F811
    assert server.call("PUT", f"{box}/files{path}", text.encode())[0] == 204


def grade(server, box, **more):  # noqa: F811
    return server.call("POST", f"{box}/grade", {**VERIFIER, **more})


def names(server):  # noqa: F811
    return {row["name"] for row in server.call("GET", "/v1/sandboxes")[1]["sandboxes"]}


def test_honest_solution_passes_and_another_fails(server, box):  # noqa: F811
    for text, ok in ((BAD, False), (GOOD, True)):
        write(server, box, "/tmp/w/add.py", text)
        status, answer = grade(server, box)
        assert (status, answer["ok"], answer["missing"]) == (200, ok, []), answer
    until(lambda: names(server) == {"box"})


@pytest.mark.parametrize(
    "attack",
    [
        "echo 'import os; os._exit(0)' > /tmp/w/sitecustomize.py",
        "echo 'import os; os._exit(0)' > /tmp/w/verify.py",
        "mkdir -p ~/.local; echo 'import os; os._exit(0)' > ~/.local/x.pth; export PYTHONSTARTUP=x",
        "(while true; do echo 'import os; os._exit(0)' > /tmp/w/verify.py; done) >/dev/null 2>&1 &",
        "rm /tmp/w/add.py; ln -s /proc/self/environ /tmp/w/add.py",
        "rm /tmp/w/add.py; mkfifo /tmp/w/add.py",
        "rm /tmp/w/add.py; mkdir /tmp/w/add.py",
        "rm /tmp/w/add.py",
    ],
    ids=["site", "verifier", "home", "race", "link", "pipe", "directory", "gone"],
)
def test_attack_on_the_verifier_comes_to_nothing(server, box, attack):  # noqa: F811
    write(server, box, "/tmp/w/add.py", BAD)
    done = server.call("POST", f"{box}/execs", {"argv": ["sh", "-c", attack]})[1]
    assert done["exit_code"] == 0, done
    status, answer = grade(server, box)
    assert status == 200 and not answer["ok"], answer
    assert answer["missing"] == (["/tmp/w/add.py"] if "rm" in attack else [])
    # Also a verifier that would pass fails without an output.
    status, answer = grade(server, box, argv=["true"])
    assert answer["ok"] == ("rm" not in attack)


def test_requests_that_cannot_be_graded_are_refused(server, box):  # noqa: F811
    for outputs in ([], ["a"], ["/"], ["/tmp/"], ["/tmp/../x"], ["/tmp/.."], [1], "x", None):
        assert grade(server, box, outputs=outputs)[0] == 400, outputs
    write(server, box, "/tmp/w/add.py", GOOD)
    assert grade(server, box, argv=[])[0] == 400
    assert grade(server, box, policy={"fs_readable": ["/etc"]})[0] == 403
    assert server.call("POST", "/v1/sandboxes/none/grade", VERIFIER)[0] == 404
    until(lambda: names(server) == {"box"})


def test_client_that_leaves_ends_the_grading(server, box):  # noqa: F811
    write(server, box, "/tmp/w/add.py", GOOD)
    connection = server.connect()
    body = json.dumps({**VERIFIER, "argv": ["sleep", "1000"]})
    connection.request("POST", f"{box}/grade", body, {"Authorization": f"Bearer {server.token}"})
    until(lambda: len(names(server)) > 1)
    connection.close()
    until(lambda: names(server) == {"box"})
