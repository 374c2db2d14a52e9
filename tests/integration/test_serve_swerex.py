# SPDX-License-Identifier: Apache-2.0
"""The requests of SWE-ReX's clients: sessions, commands, files, and exceptions by their names."""

import http.client
import io
import json
import zipfile

import pytest
from harness import DEADLINE, caller, until  # noqa: F401
from serving import server  # noqa: F401


def ask(server, name, body=None, path="/swerex/one", **headers):  # noqa: F811
    """POST NAME with the client's header for its key: (status, answer)."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)
    head = {"X-API-Key": server.token, "Content-Type": "application/json", **headers}
    data = body if isinstance(body, bytes) else json.dumps(body or {})
    connection.request("POST", f"{path}/{name}", data, head)
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    return answer.status, content


def raised(answer):
    """The class of the exception."""
    status, content = answer
    assert status == 511, answer
    assert set(content["swerexception"]) == {"message", "class_path", "traceback", "extra_info"}
    return content["swerexception"]["class_path"].rpartition(".")[2]


class Shell:
    def __init__(self, server, **more):  # noqa: F811
        self.server = server
        status, answer = ask(
            server, "create_session", {"session": "s", "startup_timeout": 20, **more}
        )
        assert (status, answer["session_type"]) == (200, "bash"), answer

    def run(self, command, **more):
        body = {"session": "s", "action_type": "bash", "command": command, "timeout": 20, **more}
        return ask(self.server, "run_in_session", body)

    def output(self, command, **more):
        status, answer = self.run(command, **more)
        assert status == 200, answer
        return answer["output"]


def test_commands_are_executed(server):  # noqa: F811
    assert ask(server, "execute", {"command": ["printf", "%s|", "a b", "$HOME"]}) == (
        200,
        {"stdout": "a b|$HOME|", "stderr": "", "exit_code": 0},
    )
    shell = {"command": "echo out; echo err >&2; exit 3", "shell": True}
    assert ask(server, "execute", shell)[1] == {
        "stdout": "out\n",
        "stderr": "err\n",
        "exit_code": 3,
    }
    merged = ask(server, "execute", {**shell, "merge_output_streams": True})[1]
    assert (merged["stdout"], merged["stderr"]) == ("out\nerr\n", "")
    env = {"command": "/usr/bin/env; pwd", "shell": True, "env": {"A": "1"}, "cwd": "/usr"}
    lines = ask(server, "execute", env)[1]["stdout"].splitlines()
    assert {"A=1", "/usr"} <= set(lines) and not any(line.startswith("HOME=") for line in lines)
    assert ask(server, "execute", {"command": ["sh", "-c", "kill -9 $$"]})[1]["exit_code"] == -9
    assert ask(server, "execute", {"command": r"printf '\377a'", "shell": True})[1]["stdout"] == (
        r"\xffa"
    )


def test_exceptions_have_the_names_of_swerex(server):  # noqa: F811
    check = {"command": "echo why; exit 4", "shell": True, "check": True, "error_msg": "mine"}
    status, answer = ask(server, "execute", check)
    assert raised((status, answer)) == "NonZeroExitCodeError"
    assert "mine" in answer["swerexception"]["message"]
    assert "why" in answer["swerexception"]["message"]
    slow = {"command": "sleep 100", "shell": True, "timeout": 0.5}
    assert raised(ask(server, "execute", slow)) == "CommandTimeoutError"
    assert raised(ask(server, "execute", {"command": ["/no/such"]})) == "FileNotFoundError"
    assert raised(ask(server, "read_file", {"path": "/no/such"})) == "FileNotFoundError"
    assert raised(ask(server, "run_in_session", {"command": "true"})) == "SessionDoesNotExistError"
    for name, body in (
        ("execute", {"nothing": 1}),
        ("execute", {"command": []}),
        ("execute", {"command": "x", "timeout": "soon"}),
        ("read_file", {}),
        ("write_file", {"path": "/a"}),
        ("run_in_session", {"command": "x", "expect": ["(a|b)*a(a|b)c"]}),
        ("run_in_session", {"command": "x", "expect": ["[a"]}),
        ("run_in_session", {"command": "x", "expect": ["x" * 257]}),
    ):
        assert ask(server, name, body)[0] == 422, (name, body)
    wrong = ask(server, "execute", {"command": ["true"]}, **{"X-API-Key": "wrong"})
    assert wrong[0] == 401 and "token" in wrong[1]["detail"]


def test_session_keeps_its_state(server):  # noqa: F811
    shell = Shell(server)
    assert shell.output("cd /usr && export A=1") == ""
    assert shell.output("pwd; echo $A") == "/usr\n1\n"
    assert shell.run("(exit 5)", check="silent")[1]["exit_code"] == 5
    assert shell.output("echo $?") == "5\n"
    assert shell.run("(exit 5)", check="ignore")[1]["exit_code"] is None
    assert raised(shell.run("echo why; (exit 5)")) == "NonZeroExitCodeError"
    status, answer = shell.run("if then")
    assert raised((status, answer)) == "BashIncorrectSyntaxError"
    assert {"bash_stdout", "bash_stderr"} == set(answer["swerexception"]["extra_info"])
    assert raised(ask(server, "create_session", {"session": "s"})) == "SessionExistsError"
    assert ask(server, "close_session", {"session": "s"})[0] == 200
    assert raised(shell.run("true")) == "SessionDoesNotExistError"


@pytest.mark.parametrize(
    "command, output",
    [
        ("for i in 1 2\ndo\n  echo $i\ndone\necho end", "1\n2\nend\n"),
        ("cat <<'EOF'\nline 1\n  $HOME\t'\"\\\nEOF", "line 1\n  $HOME\t'\"\\\n"),
        ("# a comment", ""),
        ("echo 'ä!!' \"$(printf '\\003x')\"", "ä!! \x03x\n"),
        ("echo " + "x" * 100_000 + " | wc -c", "100001\n"),
    ],
    ids=["lines", "heredoc", "comment", "bytes", "long"],
)
def test_session_takes_every_command(server, command, output):  # noqa: F811
    assert Shell(server).output(command) == output


def test_session_survives_timeouts_and_interruptions(server):  # noqa: F811
    shell = Shell(server)
    status, answer = shell.run("echo par''tial; sleep 1000", timeout=1)
    assert raised((status, answer)) == "CommandTimeoutError"
    assert "partial" in answer["swerexception"]["message"]
    interrupt = {"session": "s", "action_type": "bash_interrupt", "timeout": 5}
    status, answer = ask(server, "run_in_session", interrupt)
    assert (status, answer["exit_code"]) == (200, 0)
    assert shell.output("echo back") == "back\n"
    # One that ignores the interruption is killed.
    assert (
        raised(
            shell.run(
                "python3 -c 'import signal, time\nsignal.signal(2, signal.SIG_IGN)\n"
                "time.sleep(1000)'",
                timeout=1,
            )
        )
        == "CommandTimeoutError"
    )
    status, answer = ask(server, "run_in_session", {**interrupt, "timeout": 1, "n_retry": 2})
    assert (status, answer.get("exit_code")) == (200, 0), answer
    assert shell.output("echo again") == "again\n"


def test_session_speaks_with_programs(server):  # noqa: F811
    shell = Shell(server)
    status, answer = shell.run("python3 -q", is_interactive_command=True, expect=[">>> "])
    assert (status, answer["expect_string"]) == (200, ">>> "), answer
    assert shell.output("print(20 + 1)", is_interactive_command=True, expect=[r">>>\s"]) == "21"
    status, answer = shell.run("quit()", is_interactive_quit=True)
    assert (status, answer["expect_string"]) == (200, "SHELLPS1PREFIX")
    assert shell.output("echo out of it") == "out of it\n"


def test_session_output_has_a_limit(server):  # noqa: F811
    """The engine keeps what a command writes, and a session lasts."""
    shell = Shell(server)
    assert raised(shell.run("yes", timeout=60, expect=["no[xyz]\\d"])) in (
        "EOF",
        "CommandTimeoutError",
    )
    assert server.call("GET", "/healthz")[0] == 200


def test_session_ends_with_its_shell(server):  # noqa: F811
    shell = Shell(server)
    assert raised(shell.run("echo last; exit 3")) == "EOF"
    assert raised(shell.run("true")) == "SessionDoesNotExistError"
    assert Shell(server).output("echo new") == "new\n"


def test_files_and_uploads(server):  # noqa: F811
    text = "ä\n" * 1000
    assert ask(server, "write_file", {"path": "/tmp/a/b c", "content": text}) == (200, {})
    assert ask(server, "read_file", {"path": "/tmp/a/b c"}) == (200, {"content": text})
    assert ask(server, "read_file", {"path": "/tmp/a/b c", "encoding": "latin-1"})[1] == {
        "content": text.encode().decode("latin-1")
    }
    assert raised(ask(server, "read_file", {"path": "/tmp/a/b c", "encoding": "ascii"})) == (
        "ValueError"
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("sub/x", "X")
    for name, content, unzip in (
        ("one", b"\r\n--b\r\n\0", "false"),
        ("tree", packed.getvalue(), "true"),
    ):
        body = (
            b'--bb\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n'
            b"Content-Type: application/octet-stream\r\n\r\n" + content + b"\r\n--bb\r\n"
            b'Content-Disposition: form-data; name="target_path"\r\n\r\n/tmp/up/'
            + name.encode()
            + b'\r\n--bb\r\nContent-Disposition: form-data; name="unzip"\r\n\r\n'
            + unzip.encode()
            + b"\r\n--bb--\r\n"
        )
        kind = {"Content-Type": "multipart/form-data; boundary=bb"}
        assert ask(server, "upload", body, **kind) == (200, {}), name
    assert ask(server, "execute", {"command": ["cat", "/tmp/up/tree/sub/x"]})[1]["stdout"] == "X"
    assert ask(server, "read_file", {"path": "/tmp/up/one"})[1]["content"] == "\r\n--b\r\n\0"


def test_request_with_the_same_id_gets_the_same_answer(server):  # noqa: F811
    body = {"command": "echo x >> /tmp/n; wc -l < /tmp/n", "shell": True}
    first = ask(server, "execute", body, **{"X-Request-ID": "r1"})
    assert first[1]["stdout"].strip() == "1"
    assert ask(server, "execute", body, **{"X-Request-ID": "r1"}) == first
    assert ask(server, "execute", body, **{"X-Request-ID": "r2"})[1]["stdout"].strip() == "2"


def test_close_ends_the_sandbox_that_it_made_and_no_other(server):  # noqa: F811
    server.call("POST", "/v1/sandboxes", {"name": "mine"})
    for name in ("mine", "theirs"):
        path = f"/swerex/{name}"
        assert ask(server, "create_session", {"startup_timeout": 20}, path)[0] == 200
        assert ask(server, "close", path=path) == (200, {})
        assert raised(ask(server, "run_in_session", {"command": "true"}, path)) == (
            "SessionDoesNotExistError"
        )
    assert server.call("GET", "/v1/sandboxes/mine")[0] == 200
    assert server.call("GET", "/v1/sandboxes/theirs")[0] == 404
    # Without a path it is the sandbox "swerex".
    assert ask(server, "execute", {"command": ["true"]}, "")[0] == 200
    assert server.call("GET", "/v1/sandboxes/swerex")[0] == 200


def test_closed_sandbox_ends_its_sessions(server):  # noqa: F811
    shell = Shell(server)
    assert server.call("DELETE", "/v1/sandboxes/one")[0] == 204
    until(lambda: shell.run("true")[0] == 511)
    assert raised(shell.run("true")) == "SessionDoesNotExistError"
