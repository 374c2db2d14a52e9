# SPDX-License-Identifier: Apache-2.0
"""The requests of SandboxFusion's clients."""

import base64
import json

from harness import caller  # noqa: F401
from serving import server  # noqa: F401


def ask(server, path="/run_code", **body):  # noqa: F811
    """A POST with the token in the address, as its clients have it."""
    basic = base64.b64encode(f"any:{server.token}".encode()).decode()
    connection = server.connect()
    connection.request("POST", path, json.dumps(body), {"Authorization": f"Basic {basic}"})
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    return answer.status, content


def test_answers_have_the_fields_of_sandboxfusion(server):  # noqa: F811
    status, answer = ask(server, code="print('hi')", language="python", nosuch=1)
    assert status == 200 and set(answer) == {
        "status",
        "message",
        "compile_result",
        "run_result",
        "executor_pod_name",
        "files",
    }
    assert (answer["status"], answer["message"], answer["compile_result"]) == ("Success", "", None)
    run = answer["run_result"]
    assert (run["status"], run["return_code"], run["stdout"], run["stderr"]) == (
        "Finished",
        0,
        "hi\n",
        "",
    ) and run["execution_time"] >= 0
    connection = server.connect()
    connection.request("GET", "/v1/ping")
    assert connection.getresponse().read() == b'"pong"'


def test_failures_have_the_statuses_of_sandboxfusion(server):  # noqa: F811
    for code, fields in (
        ("import sys; sys.exit(7)", ("Failed", "Finished", 7)),
        ("import os; os.kill(os.getpid(), 9)", ("Failed", "Finished", -9)),
        ("syntax error", ("Failed", "Finished", 1)),
    ):
        answer = ask(server, code=code, language="python")[1]
        assert (
            answer["status"],
            answer["run_result"]["status"],
            answer["run_result"]["return_code"],
        ) == fields, code
    answer = ask(
        server, code="print('a', flush=True)\nwhile True: pass", language="python", run_timeout=0.5
    )[1]
    assert (
        answer["status"],
        answer["run_result"]["status"],
        answer["run_result"]["return_code"],
        answer["run_result"]["stdout"],
    ) == ("Failed", "TimeLimitExceeded", None, "a\n")
    assert ask(server, code="class A {}", language="junit")[1]["status"] == "SandboxError"


def test_input_files_and_modules_reach_the_program(server):  # noqa: F811
    module = base64.b64encode(b"x = 5").decode()
    answer = ask(
        server,
        code="import helper, sys; print(helper.x, sys.stdin.read())",
        language="python",
        stdin="in",
        files={"helper.py": module, "skipped": None},
    )[1]
    assert answer["run_result"]["stdout"] == "5 in\n", answer
    assert ask(server, code="echo $((1+1))", language="bash")[1]["run_result"]["stdout"] == "2\n"
    assert (
        ask(server, code="x = bytearray(400 << 20)", language="python", memory_limit_MB=64)[1][
            "status"
        ]
        == "Failed"
    )


def test_malformed_requests_are_422(server):  # noqa: F811
    for body in (
        {},
        {"code": "1"},
        {"code": "1", "language": "klingon"},
        {"code": 1, "language": "python"},
        {"code": "1", "language": "python", "run_timeout": "x"},
        {"code": "1", "language": "python", "files": {"a": "?"}},
    ):
        status, answer = ask(server, **body)
        assert status == 422 and answer["detail"], body


def test_compilation_and_run_have_results_of_their_own(server):  # noqa: F811
    code = "#include <stdio.h>\nint main(void) { int a; scanf(\"%d\", &a); printf(\"%d\", 2 * a); }"
    answer = ask(server, code=code, language="c", stdin="21", compile_timeout=60)[1]
    assert (answer["status"], answer["compile_result"]["return_code"]) == ("Success", 0), answer
    assert answer["run_result"]["stdout"] == "42"
    answer = ask(server, code="int main(void) {", language="c", compile_timeout=60)[1]
    assert (answer["status"], answer["run_result"]) == ("Failed", None)
    assert answer["compile_result"]["return_code"] == 1
    assert "error" in answer["compile_result"]["stderr"]
    code = "int main(void) { for (;;); }"
    answer = ask(server, code=code, language="c", compile_timeout=60, run_timeout=0.5)[1]
    assert answer["run_result"]["status"] == "TimeLimitExceeded"
    assert answer["compile_result"]["status"] == "Finished"


def test_language_without_its_compiler_is_a_sandbox_error(server):  # noqa: F811
    answer = ask(server, code="x", language="lean")[1]
    assert answer["status"] == "SandboxError" and "lean" in answer["message"]


def test_files_are_fetched(server):  # noqa: F811
    code = "import os; os.mkdir('d'); open('d/out', 'wb').write(b'\\0x'); raise SystemExit(3)"
    answer = ask(server, code=code, language="python", fetch_files=["d/out", "none", "d"])[1]
    assert (answer["status"], answer["run_result"]["return_code"]) == ("Failed", 3)
    assert answer["files"] == {"d/out": base64.b64encode(b"\0x").decode()}


def test_cells_share_their_state(server):  # noqa: F811
    cells = ["a = 5", "a", "print(a)", "1/0", "open('f', 'w').write('x'); print('after')"]
    answer = ask(server, "/run_jupyter", cells=cells, fetch_files=["f"])[1]
    assert (answer["status"], answer["driver"]["return_code"]) == ("Success", 0), answer
    first, second, third, fourth, last = answer["cells"]
    assert first == {"stdout": "", "stderr": "", "display": [], "error": []}
    assert second["display"] == [{"text/plain": "5"}] and third["stdout"] == "5\n"
    assert (fourth["error"][0]["ename"], last["stdout"]) == ("ZeroDivisionError", "after\n")
    assert answer["files"] == {"f": base64.b64encode(b"x").decode()}
    cells = ["print(1)", "while True: pass"]
    answer = ask(server, "/run_jupyter", cells=cells, total_timeout=1.5)[1]
    assert (answer["status"], answer["cells"]) == ("Failed", [])
    assert answer["driver"]["status"] == "TimeLimitExceeded"
    for body in ({}, {"cells": "x"}, {"cells": [1]}, {"cells": [], "kernel": "ir"}):
        assert ask(server, "/run_jupyter", **body)[0] == 422, body
