# SPDX-License-Identifier: Apache-2.0
"""E2B's clients, by the requests that they send; test_integrations_e2b.py has the packages."""

import base64
import contextlib
import hashlib
import json
import socket

import pytest
from e2b_wire import CODE, ENVD, Box, frame, frames, next_message, result_of
from harness import DEADLINE, caller, until  # noqa: F401
from serving import server  # noqa: F401

FILESYSTEM, PROCESS = "filesystem.Filesystem", "process.Process"


def test_sandbox_is_created_listed_and_killed(server):  # noqa: F811
    box = Box(server, metadata={"a": "1"}, timeout=60)
    other = Box(server)
    status, row = box.control("GET", f"/sandboxes/{box.id}")
    assert (status, row["state"], row["metadata"]) == (200, "running", {"a": "1"})
    status, rows = box.control("GET", "/v2/sandboxes?metadata=a%3D1&state=running&limit=1")
    assert [row["sandboxID"] for row in rows] == [box.id]
    assert box.control("GET", "/v2/sandboxes?state=paused")[1] == []
    assert box.control("POST", f"/sandboxes/{box.id}/timeout", {"timeout": 600})[0] == 204
    assert box.control("POST", f"/v2/sandboxes/{box.id}/connect", {"timeout": 1})[0] == 200
    assert len(box.control("GET", f"/sandboxes/{box.id}/metrics")[1]) == 1
    assert box.control("DELETE", f"/sandboxes/{box.id}")[0] == 204
    status, problem = box.control("GET", f"/sandboxes/{box.id}")
    assert (status, problem["code"]) == (404, 404) and box.id in problem["message"]
    assert box.ask("GET", "/health")[0] == 502 and other.ask("GET", "/health")[0] == 204


def test_creation_is_refused_in_the_form_of_e2b(server):  # noqa: F811
    box = Box(server)
    for body, status in (
        ({"templateID": "no-such-image"}, 404),
        ({"timeout": -1}, 400),
        ({"timeout": "x"}, 400),
        ({"metadata": {"a": 1}}, 400),
        ({"envVars": []}, 400),
        ({"volumeMounts": [{"name": "v"}]}, 400),
        ({"allow_internet_access": True}, 403),
        ({"network": {"allowOut": ["example.org"]}}, 403),
    ):
        got, problem = box.control("POST", "/v2/sandboxes", body)
        assert (got, problem["code"]) == (status, status) and problem["message"], body
    assert box.control("POST", "/v2/sandboxes", {}, token="wrong")[0] == 401
    tight = server.new_token("tight", arguments=("--max-sandboxes", "1"))
    Box(server, tight)
    status, problem = box.control("POST", "/v2/sandboxes", {}, token=tight)
    assert (status, problem["code"]) == (429, 429) and "sandboxes" in problem["message"]


def test_no_port_of_a_sandbox_is_the_control_plane(server):  # noqa: F811
    box = Box(server)
    for port in ("0", "", "x", "-1", "000000", "65536", "99999", "4294967296"):
        for access in ("", box.access):
            for method, path in (("GET", "/v2/sandboxes"), ("POST", "/v2/sandboxes")):
                status, answer = box.ask(method, path, port=port, access=access)
                assert status == 400, (port, method, answer)
    assert len(box.control("GET", "/v2/sandboxes")[1]) == 1


def test_same_key_at_two_sandboxes_is_two_requests(server):  # noqa: F811
    boxes = Box(server), Box(server)
    for box in boxes:
        asked = box.ask("POST", "/files?path=/tmp/f", b"x", Idempotency_Key="k")
        assert asked[0] == 200
        assert box.ask("GET", "/files?path=/tmp/f") == (200, b"x")


def test_same_idempotency_key_gives_the_same_sandbox(server):  # noqa: F811
    box = Box(server)
    made = [
        box.control("POST", "/v2/sandboxes", {"timeout": 9}, Idempotency_Key="k")[1]
        for _ in range(2)
    ]
    assert made[0] == made[1] and made[0]["sandboxID"] != box.id


def test_another_tenant_and_a_wrong_token_reach_nothing(server):  # noqa: F811
    box, token = Box(server), server.new_token("two")
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/connect"),
        ("POST", "/timeout"),
        ("POST", "/pause"),
        ("POST", "/fork"),
        ("POST", "/snapshots"),
        ("GET", "/metrics"),
        ("PUT", "/network"),
    ):
        body = None if method in ("GET", "DELETE") else {}
        assert box.control(method, f"/sandboxes/{box.id}{path}", body, token)[0] == 404, path
    assert box.control("GET", "/v2/sandboxes", token=token)[1] == []
    other = Box(server, token)
    for access in ("", "wrong", other.access):
        for port in (ENVD, CODE):
            assert box.ask("GET", "/health", port=port, access=access)[0] == 401, access
    assert box.run("echo still")[0] == "still\n"


def test_revoked_token_ends_the_rights_of_its_sandboxes(server):  # noqa: F811
    token = server.new_token("gone")
    box = Box(server, token)
    rows = server.who.rollbox("token", "ls", "--tokens", server.tokens).stdout.splitlines()
    number = next(row["id"] for row in map(json.loads, rows) if row["tenant"] == "gone")
    server.who.rollbox("token", "rm", "--tokens", server.tokens, number)
    until(lambda: box.ask("GET", "/health")[0] == 401)
    # Its rights are those of the token that connects to it last.
    path = f"/sandboxes/{box.id}/connect"
    assert box.control("POST", path, {"timeout": 60}, token=server.new_token("gone"))[0] == 200
    until(lambda: box.ask("GET", "/health")[0] == 204)


def test_sandbox_ends_by_its_timeout(server):  # noqa: F811
    box = Box(server, timeout=1)
    connection, answer, _ = box.start("sleep 100")
    assert next_message(answer)[1]["error"]["code"] == "unavailable"
    connection.close()
    status, problem = box.ask("GET", "/health")
    assert status == 502 and "was not found" in problem["message"]


def test_commands_have_output_status_and_errors(server):  # noqa: F811
    box = Box(server, envVars={"GLOBAL": "g"})
    assert box.run("echo $GLOBAL $L; pwd", envs={"L": "l"}, cwd="/usr")[0] == "g l\n/usr\n"
    end = {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"}
    assert box.run("exit 3")[1] == end
    assert box.run("kill -9 $$")[1]["status"] == "signal: killed"
    assert box.run("true", cwd="/no/such")[1]["code"] == "invalid_argument"
    assert len(box.run("head -c 3000000 /dev/zero | tr '\\0' x")[0]) == 3000000
    messages = box.stream(
        f"{PROCESS}/Start", process={"cmd": "/no/such/program", "args": []}
    )
    assert messages[-1][1]["error"]["code"] == "invalid_argument"


def test_deadline_ends_a_command(server):  # noqa: F811
    box = Box(server)
    data = frame({"process": {"cmd": "/bin/bash", "args": ["-c", "echo a; sleep 100"]}})
    status, data = box.ask(
        "POST",
        f"/{PROCESS}/Start",
        data,
        Content_Type="application/connect+json",
        Connect_Timeout_Ms="700",
    )
    output, error = result_of(list(frames(data)))
    assert (output, error["code"]) == ("a\n", "deadline_exceeded")
    assert box.call(f"{PROCESS}/List")[1] == {"processes": []}


def test_ceiling_of_the_tenant_ends_a_command(server):  # noqa: F811
    ceiling = server.directory / "ceiling"
    ceiling.write_text('{"timeout": 1}')
    done = server.who.rollbox(
        "token", "tenant", "--tokens", server.tokens, "--ceiling", ceiling, "bounded"
    )
    assert done.returncode == 0, done.stderr
    box = Box(server, server.new_token("bounded"))
    messages = box.stream(f"{PROCESS}/Start", process={"cmd": "sleep", "args": ["1000"]})
    assert "end" in messages[-2][1]["event"] or "error" in messages[-1][1], messages


def test_process_lives_on_without_its_client(server):  # noqa: F811
    box = Box(server)
    connection, _, pid = box.start("read x; echo got $x", stdin=True)
    connection.close()
    selector = {"process": {"pid": pid}}
    assert [row["pid"] for row in box.call(f"{PROCESS}/List")[1]["processes"]] == [pid]
    follower = box.begin(
        "POST", f"/{PROCESS}/Connect", frame(selector), Content_Type="application/connect+json"
    )
    answer = follower.getresponse()
    assert next_message(answer)[1]["event"]["start"]["pid"] == pid
    line = base64.b64encode(b"line\n").decode()
    assert box.call(f"{PROCESS}/SendInput", **selector, input={"stdin": line}) == (200, {})
    assert base64.b64decode(next_message(answer)[1]["event"]["data"]["stdout"]) == b"got line\n"
    assert next_message(answer)[1]["event"]["end"]["exitCode"] == 0
    follower.close()
    for name in ("SendInput", "SendSignal", "CloseStdin"):
        status, problem = box.call(f"{PROCESS}/{name}", **selector)
        assert (status, problem["code"]) == (404, "not_found"), name


def test_terminal_has_a_size_and_takes_signals(server):  # noqa: F811
    box = Box(server)
    script = "stty size; while read line; do stty size; done"
    connection, answer, pid = box.start(script, pty={"size": {"rows": 7, "cols": 70}})
    assert b"7 70" in base64.b64decode(next_message(answer)[1]["event"]["data"]["pty"])
    selector = {"process": {"pid": pid}}
    shown = b""
    for rows in range(8, 18):
        # The answer comes when the terminal has the size.
        size = {"size": {"rows": rows, "cols": 80}}
        assert box.call(f"{PROCESS}/Update", **selector, pty=size) == (200, {})
        keys = {"pty": base64.b64encode(b"\n").decode()}
        assert box.call(f"{PROCESS}/SendInput", **selector, input=keys) == (200, {})
        while shown.count(b" 80") < rows - 7:
            shown += base64.b64decode(next_message(answer)[1]["event"]["data"]["pty"])
    assert shown.split() == [word for rows in range(8, 18) for word in (b"%d" % rows, b"80")]
    assert box.call(f"{PROCESS}/SendSignal", **selector, signal="SIGNAL_SIGKILL") == (200, {})
    assert next_message(answer)[1]["event"]["end"]["status"] == "signal: killed"
    connection.close()


def test_malformed_messages_of_the_connect_protocol_are_refused(server):  # noqa: F811
    box = Box(server)
    kind = {"Content_Type": "application/connect+json"}
    for data in (b"", b"x", b"\0\0\0\0\5{}", b"\1\0\0\0\2{}", b"\0\xff\0\0\0{}", frame([])):
        status, answer = box.ask("POST", f"/{PROCESS}/Start", data, **kind)
        error = list(frames(answer))[-1][1]["error"]
        assert (status, error["code"]) == (200, "invalid_argument"), data
    for body in ({}, {"process": {}}, {"process": {"cmd": 1}}, {"process": {"cmd": "a\0b"}}):
        messages = box.stream(f"{PROCESS}/Start", **body)
        assert messages[-1][1]["error"]["code"] == "invalid_argument", body
    assert box.ask("POST", f"/{PROCESS}/NoSuch", "{}")[0] == 404
    assert box.call(f"{FILESYSTEM}/Stat", path=5)[1]["code"] == "invalid_argument"
    status, answer = box.ask("POST", f"/{PROCESS}/StreamInput", frame({"data": {}}) + b"\0", **kind)
    assert list(frames(answer))[-1][1]["error"]["code"] == "invalid_argument"
    assert box.run("echo alive")[0] == "alive\n"


def test_files_are_written_read_listed_moved_and_removed(server):  # noqa: F811
    box = Box(server)
    form = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="d/one"\r\n\r\n1\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="/tmp/d/two"\r\n\r\n\r\n2\r\n'
        b"--b--\r\n"
    )
    kind = "multipart/form-data; boundary=b"
    status, rows = box.ask("POST", "/files", form, Content_Type=kind)
    assert status == 200 and [row["path"] for row in rows] == ["/home/user/d/one", "/tmp/d/two"]
    assert box.ask("GET", "/files?path=d/one") == (200, b"1")
    assert box.ask("GET", "/files?path=/tmp/d/two") == (200, b"\r\n2")
    kind = "application/octet-stream"
    assert box.ask("POST", "/files?path=/tmp/d/x/../e", b"\0" * 9, Content_Type=kind)[0] == 200
    entry = box.call(f"{FILESYSTEM}/Stat", path="/tmp/d/e")[1]["entry"]
    assert (entry["type"], entry["size"], entry["permissions"]) == (
        "FILE_TYPE_FILE",
        "9",
        "-rw-r--r--",
    )
    rows = box.call(f"{FILESYSTEM}/ListDir", path="/tmp", depth=2)[1]["entries"]
    assert {"/tmp/d", "/tmp/d/two", "/tmp/d/e"} <= {row["path"] for row in rows}
    moved = box.call(f"{FILESYSTEM}/Move", source="/tmp/d/e", destination="/tmp/f")
    assert moved[1]["entry"]["path"] == "/tmp/f"
    assert box.call(f"{FILESYSTEM}/MakeDir", path="/tmp/m")[0] == 200
    assert box.call(f"{FILESYSTEM}/MakeDir", path="/tmp/m")[1]["code"] == "already_exists"
    assert box.call(f"{FILESYSTEM}/Remove", path="/tmp/d")[0] == 200
    assert box.call(f"{FILESYSTEM}/Stat", path="/tmp/d")[1]["code"] == "not_found"
    assert box.call(f"{FILESYSTEM}/ListDir", path="/tmp/f")[1]["code"] == "invalid_argument"
    assert box.ask("GET", "/files?path=/no/such")[0] == 404
    assert box.ask("GET", "/files?path=/tmp")[0] == 400


def test_bad_uploads_are_refused(server):  # noqa: F811
    box = Box(server)
    kind = "multipart/form-data; boundary=b"
    for data in (b"", b"--b", b"--b\r\n", b"--b\r\n\r\nx", b"--c--", b'--b\r\nname="file"\r\n\r\n'):
        assert box.ask("POST", "/files", data, Content_Type=kind)[0] == 400, data
    assert box.ask("POST", "/files", b"x", Content_Type="text/plain")[0] == 400
    head = {"Content_Type": "application/octet-stream", "Content_Encoding": "br"}
    assert box.ask("POST", "/files?path=x", b"x", **head)[0] == 415
    assert box.ask("POST", "/files?path=x", b"x", Authorization=basic("nobody"))[0] == 401
    # The server reads no body of that size.
    connection = box.begin("POST", "/files?path=x", None, Content_Length=str(65 << 20))
    try:
        connection.send(b"x" * (65 << 20))
    except OSError:
        pass
    assert connection.getresponse().status == 413
    connection.close()


def basic(user):
    return "Basic " + base64.b64encode(f"{user}:".encode()).decode()


def test_signed_addresses_of_files_need_no_token(server):  # noqa: F811
    box = Box(server)
    box.run("echo signed > /tmp/s")

    def signature(*parts):
        digest = hashlib.sha256(":".join(parts).encode()).digest()
        return "v1_" + base64.b64encode(digest).decode().rstrip("=").replace("+", "%2B")

    good = signature("/tmp/s", "read", "", box.access)
    assert box.ask("GET", f"/files?path=/tmp/s&signature={good}", access="") == (200, b"signed\n")
    old = signature("/tmp/s", "read", "", box.access, "5")
    for query in (
        f"path=/etc/hostname&signature={good}",
        f"path=/tmp/s&signature={old}&signature_expiration=5",
        f"path=/tmp/s&signature={good}&signature_expiration=9999999999",
        "path=/tmp/s&signature=v1_",
    ):
        assert box.ask("GET", f"/files?{query}", access="")[0] == 401, query


def test_watchers_tell_renames_and_nothing_of_other_directories(server):  # noqa: F811
    box = Box(server)
    box.run("mkdir -p /tmp/w/sub; echo one > /tmp/w/one; echo two > /tmp/w/two")
    watcher = box.call(f"{FILESYSTEM}/CreateWatcher", path="/tmp/w")[1]["watcherId"]

    def events():
        rows = box.call(f"{FILESYSTEM}/GetWatcherEvents", watcherId=watcher)[1]["events"]
        return [(row["name"], row["type"].removeprefix("EVENT_TYPE_").lower()) for row in rows]

    box.run("mv /tmp/w/one /tmp/w/new; echo x > /tmp/w/sub/unseen")
    assert events() == [("one", "rename"), ("new", "create")]
    box.run("mkdir /tmp/w/dir; chmod 700 /tmp/w/sub")
    assert {("dir", "create"), ("sub", "chmod")} <= set(events())
    box.run("mv /tmp/w/new /tmp/w/three; rm /tmp/w/two")
    assert sorted(events()) == [("new", "rename"), ("three", "create"), ("two", "remove")]


def test_watchers_tell_what_has_changed(server):  # noqa: F811
    box = Box(server)
    box.run("mkdir /tmp/w; echo 1 > /tmp/w/old")
    watcher = box.call(f"{FILESYSTEM}/CreateWatcher", path="/tmp/w")[1]["watcherId"]
    box.run("rm /tmp/w/old; echo 1 > /tmp/w/new")
    events = box.call(f"{FILESYSTEM}/GetWatcherEvents", watcherId=watcher)[1]["events"]
    found = {(event["name"], event["type"]) for event in events}
    assert found >= {("old", "EVENT_TYPE_REMOVE"), ("new", "EVENT_TYPE_CREATE")}
    assert box.call(f"{FILESYSTEM}/GetWatcherEvents", watcherId=watcher)[1]["events"] == []
    assert box.call(f"{FILESYSTEM}/RemoveWatcher", watcherId=watcher) == (200, {})
    assert box.call(f"{FILESYSTEM}/GetWatcherEvents", watcherId=watcher)[0] == 404


def test_interpreter_keeps_its_state_and_reports_results(server):  # noqa: F811
    box = Box(server)
    assert box.execute("x = 20\nprint('out')")[0]["text"] == "out\n"
    (result,) = box.execute("x + 1")
    assert (result["text"], result["is_main_result"]) == ("21", True)
    (error,) = box.execute("1/0")
    assert error["name"] == "ZeroDivisionError" and "<cell 3>" in error["traceback"]
    picture = "class P:\n    def _repr_png_(self): return b'png'\n    def _repr_html_(self): return '<b>'\n"
    (result,) = box.execute(picture + "display(P())")
    assert (result["png"], result["html"]) == (base64.b64encode(b"png").decode(), "<b>")
    assert box.execute("{'a': [1]}")[0]["json"] == {"a": [1]}
    assert box.execute("import os; print(os.environ['V'])", env_vars={"V": "v"})[0]["text"] == "v\n"
    assert box.execute("b=5; cd /usr", language="bash") == []
    rows = box.execute("echo $b; pwd", language="bash")
    assert "".join(row["text"] for row in rows) == "5\n/usr\n"
    assert box.ask("POST", "/execute", {"code": "1", "language": "cobol"}, CODE)[0] == 400
    assert box.ask("POST", "/execute", {"code": 1}, CODE)[0] == 422


def test_contexts_have_their_own_state(server):  # noqa: F811
    box = Box(server)
    status, context = box.ask("POST", "/contexts", {"cwd": "/usr"}, CODE)
    assert (status, context["language"], context["cwd"]) == (200, "python", "/usr")
    box.execute("x = 1")
    mine = {"context_id": context["id"]}
    assert box.execute("'x' in globals(), __import__('os').getcwd()", **mine)[0]["text"] == (
        "(False, '/usr')"
    )
    assert len(box.ask("GET", "/contexts", port=CODE)[1]) == 2
    box.execute("y = 1", **mine)
    assert box.ask("POST", f"/contexts/{context['id']}/restart", port=CODE)[0] == 200
    assert box.execute("'y' in globals()", **mine)[0]["text"] == "False"
    assert box.ask("DELETE", f"/contexts/{context['id']}", port=CODE)[0] == 204
    assert box.ask("POST", "/execute", {"code": "1", **mine}, CODE)[0] == 404


def test_client_that_leaves_interrupts_its_code(server):  # noqa: F811
    box = Box(server)
    box.execute("x = 1")
    body = '{"code": "import time\\ntry:\\n    print(1)\\n    time.sleep(100)\\nfinally:\\n    x = 2"}'
    connection = box.begin("POST", "/execute", body, CODE)
    answer = connection.getresponse()
    assert b"number_of_executions" in answer.readline() and b"stdout" in answer.readline()
    answer.close()
    connection.close()
    assert box.execute("x")[0]["text"] == "2"


def test_interpreter_that_dies_tells_its_end_and_is_replaced(server):  # noqa: F811
    box = Box(server)
    (error,) = box.execute("import os, signal; os.kill(os.getpid(), 9)")
    assert error["name"] == "InterpreterEnded" and "killed" in error["value"]
    assert box.execute("6 * 7")[0]["text"] == "42"


def test_forks_and_snapshots_keep_interpreters_and_processes(server):  # noqa: F811
    box = Box(server)
    box.execute("x = 1")
    connection, _, pid = box.start("read x; echo $x > /tmp/read; sleep 100", stdin=True)
    connection.close()
    status, forks = box.control("POST", f"/sandboxes/{box.id}/fork", {"count": 2, "timeout": 60})
    assert status == 201
    kids = [Box(server, made=row["sandbox"]) for row in forks]
    for i, kid in enumerate(kids):
        assert kid.execute(f"x += {i}; x")[0]["text"] == str(1 + i)
        line = base64.b64encode(f"kid {i}\n".encode()).decode()
        selector = {"process": {"pid": pid}}
        assert kid.call(f"{PROCESS}/SendInput", **selector, input={"stdin": line})[0] == 200
        until(lambda kid=kid: kid.run("cat /tmp/read")[0] != "")
        assert kid.run("cat /tmp/read")[0] == f"kid {i}\n"
    status, made = box.control("POST", f"/sandboxes/{box.id}/snapshots", {})
    assert status == 201
    box.execute("x = 100")
    box.control("DELETE", f"/sandboxes/{box.id}")
    later = Box(server, templateID=made["snapshotID"])
    assert later.execute("x")[0]["text"] == "1"
    assert [row["snapshotID"] for row in box.control("GET", "/snapshots")[1]] == [
        made["snapshotID"]
    ]
    rows = box.control("GET", "/v2/sandboxes")[1]
    assert made["snapshotID"] not in [row["sandboxID"] for row in rows]
    assert box.control("DELETE", f"/templates/{made['snapshotID']}")[0] == 204
    assert box.control("DELETE", f"/templates/{made['snapshotID']}")[0] == 404


def test_paused_sandbox_continues_with_its_interpreter(server):  # noqa: F811
    box = Box(server)
    box.execute("x = 5")
    assert box.control("POST", f"/sandboxes/{box.id}/pause", {})[0] == 204
    assert box.ask("GET", "/health")[0] == 502
    assert box.control("POST", f"/sandboxes/{box.id}/pause", {})[0] == 409
    assert box.control("GET", f"/sandboxes/{box.id}")[1]["state"] == "paused"
    assert box.control("POST", f"/sandboxes/{box.id}/connect", {"timeout": 60})[0] == 201
    assert box.execute("x")[0]["text"] == "5"


def test_service_in_the_sandbox_is_reached_by_its_port(server):  # noqa: F811
    box = Box(server)
    status, problem = box.ask("GET", "/", port=4321, access="")
    assert status == 502 and "port is not open" in problem["message"]
    connection, _, _ = box.start("cd /tmp && echo hello > f && python3 -m http.server 8123")
    until(lambda: box.ask("GET", "/f", port=8123, access="")[0] == 200)
    assert box.ask("GET", "/f", port=8123)[1] == b"hello\n"
    connection.close()
    closed = Box(server, network={"allowPublicTraffic": False})
    assert closed.ask("GET", "/", port=4321, access="")[0] == 401
    assert closed.ask("GET", "/", port=4321)[0] == 502


def test_host_names_a_port_and_a_sandbox(server):  # noqa: F811
    box = Box(server)

    def status(host):
        head = f"GET /health HTTP/1.1\r\nHost: {host}\r\nX-Access-Token: {box.access}\r\n\r\n"
        return int(server.raw(head.encode()).split()[1])

    assert status(f"{ENVD}-{box.id}.localhost:{server.port}") == 204
    assert status(f"{ENVD}-none.localhost") == 502
    assert status(f"{ENVD}-{box.id}.example.org") == 421
    for host in (f"-{box.id}.localhost", f"99999-{box.id}.localhost", f"{ENVD}-.localhost"):
        assert status(host) == 421, host
    assert status("api.localhost") == 401


# Answers the first request, and keeps what comes after it in a file.
GREEDY_SERVICE = """
import socket
with socket.create_server(("127.0.0.1", 8124)) as listener:
    client, _ = listener.accept()
    with client:
        client.recv(65536)
        client.sendall(%r)
        rest = b"".join(iter(lambda: client.recv(65536), b""))
open("/tmp/rest", "wb").write(rest)
"""


def send_two_requests(server, box, answer, headers=""):  # noqa: F811
    """(what the client of a service that keeps its connection gets, what the service gets)."""
    connection, stream, _ = box.start(
        f"cat > /tmp/s.py <<'END'\n{GREEDY_SERVICE % answer}END\npython3 /tmp/s.py"
    )
    head = f"GET /%s HTTP/1.1\r\nHost: 8124-{box.id}.localhost\r\n{headers}%s\r\n"
    until(lambda: box.run("grep -c :1FBC /proc/net/tcp")[0] == "1\n")
    with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE) as client:
        client.sendall((head % ("1", "")).encode())
        got = client.recv(65536)
        client.sendall((head % ("2", "Authorization: Bearer of-another\r\n")).encode())
        client.shutdown(socket.SHUT_WR)
        # The second request is not read, so the kernel may reset the connection.
        with contextlib.suppress(ConnectionResetError):
            while piece := client.recv(65536):
                got += piece
    stream.read()
    connection.close()
    return got, box.ask("GET", "/files?path=/tmp/rest")[1]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ],
)
def test_no_second_request_of_a_connection_reaches_a_service(server, answer):  # noqa: F811
    got, rest = send_two_requests(server, Box(server), answer)
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and body == b"ok"
    assert head.lower().count(b"connection:") == 1 and b"\r\nConnection: close" in head
    assert rest == b""


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nok",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        b"ok\r\n\r\n",
    ],
)
def test_answer_that_is_no_answer_of_http_is_refused(server, answer):  # noqa: F811
    got, rest = send_two_requests(server, Box(server), answer)
    assert got.startswith(b"HTTP/1.1 502 ") and rest == b""


def test_refused_upgrade_ends_the_connection(server):  # noqa: F811
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    got, rest = send_two_requests(server, Box(server), answer, upgrade)
    assert b"\r\nConnection: close\r\n" in got and rest == b""


def test_slow_reader_of_one_execution_does_not_block_the_next(server):  # noqa: F811
    box = Box(server)
    # More than the server keeps for a client and the kernel for a connection, in one line: the end
    # of the execution comes with the last piece.
    code = "print('x' * 20000000)"
    begun = box.begin("POST", "/execute", json.dumps({"code": code}), CODE)
    until(lambda: box.run("true")[1]["exitCode"] == 0)
    assert len(begun.getresponse().read()) > 20000000
    begun.close()
    assert box.execute("print(1)")[0]["text"] == "1\n"


def test_accepted_upgrade_passes_bytes_both_ways(server):  # noqa: F811
    answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nok"
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    got, rest = send_two_requests(server, Box(server), answer, upgrade)
    assert got == answer and rest.startswith(b"GET /2 ")


def test_stream_of_a_watcher_tells_modes_and_sizes(server):  # noqa: F811
    box = Box(server)
    box.run("mkdir /tmp/w; echo 1 > /tmp/w/f")
    data = frame({"path": "/tmp/w"})
    kind = "application/connect+json"
    connection = box.begin("POST", f"/{FILESYSTEM}/WatchDir", data, Content_Type=kind)
    answer = connection.getresponse()
    assert next_message(answer)[1] == {"start": {}}
    for command, event in (("chmod 700", "CHMOD"), ("truncate -s 100", "WRITE"), ("rm", "REMOVE")):
        box.run(f"{command} /tmp/w/f")
        told = next_message(answer)[1]["filesystem"]
        assert told == {"name": "f", "type": f"EVENT_TYPE_{event}"}
    connection.close()


def test_refused_requests_use_nothing_of_their_freed_exchange(server):  # noqa: F811
    """Handlers once read members of a request that they had answered already."""
    box = Box(server)
    for name in ("SendSignal", "Update", "CloseStdin", "SendInput"):
        assert box.call(f"{PROCESS}/{name}", process={"pid": 1}, signal="x" * 99)[0] == 404
    started = box.stream(f"{PROCESS}/StreamInput", start={"process": {"pid": 1}})
    assert started[0][1]["error"]["code"] == "not_found"
    wrong = {"Authorization": "Basic " + base64.b64encode(b"nobody:").decode()}
    asked = box.ask("POST", f"/{FILESYSTEM}/CreateWatcher", {"path": "/tmp" * 99}, **wrong)
    assert asked[0] == 401
    assert box.ask("POST", "/contexts", {"language": "r", "cwd": "x" * 99}, CODE)[0] == 400
    assert box.run("echo still")[0] == "still\n"
