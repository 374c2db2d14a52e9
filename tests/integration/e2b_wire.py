# SPDX-License-Identifier: Apache-2.0
"""E2B's interfaces without their packages: what these send, for tests of `rollbox serve`."""

import base64
import json
import struct

ENVD, CODE = 49983, 49999


def frame(message, flags=0):
    """A message of the Connect protocol."""
    data = json.dumps(message).encode()
    return struct.pack(">BI", flags, len(data)) + data


def frames(data):
    """The messages of an answer: (flags, JSON)."""
    while data:
        flags, length = struct.unpack(">BI", data[:5])
        yield flags, json.loads(data[5 : 5 + length])
        data = data[5 + length :]


class Box:
    """A sandbox of E2B's control plane."""

    def __init__(self, server, token=None, made=None, **body):
        self.server, self.token = server, token or server.token
        if made is None:
            status, made = self.control("POST", "/v2/sandboxes", {"templateID": "base", **body})
            assert status == 201, made
        self.id, self.access = made["sandboxID"], made["envdAccessToken"]

    def control(self, method, path, body=None, token=None, **headers):
        """A request to the control plane: (status, JSON or bytes)."""
        connection = self.server.connect()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers["X-API-KEY"] = token or self.token
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return self.take(connection)

    @staticmethod
    def take(connection):
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        is_json = answer.headers.get("Content-Type") == "application/json"
        return answer.status, json.loads(content) if is_json and content else content

    def begin(self, method, path, body=None, port=ENVD, access=None, **headers):
        """Sends a request to a port: the connection."""
        connection = self.server.connect()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers |= {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": str(port)}
        if access != "":
            headers["X-Access-Token"] = access or self.access
        connection.request(method, path, body, headers)
        return connection

    def ask(self, method, path, body=None, port=ENVD, access=None, **headers):
        if isinstance(body, dict):
            body = json.dumps(body)
        return self.take(self.begin(method, path, body, port, access, **headers))

    def call(self, name, **body):
        """A unary call of the Connect protocol."""
        return self.ask("POST", f"/{name}", body, Content_Type="application/json")

    def stream(self, name, **body):
        """A call whose answer is a stream: its messages."""
        status, data = self.ask(
            "POST", f"/{name}", frame(body), Content_Type="application/connect+json"
        )
        assert status == 200, data
        return list(frames(data))

    def start(self, command, **more):
        """The connection of a command's stream, and its number; the start is read."""
        connection = self.begin(
            "POST",
            "/process.Process/Start",
            frame({"process": {"cmd": "/bin/bash", "args": ["-c", command]}, **more}),
            Content_Type="application/connect+json",
        )
        answer = connection.getresponse()
        return connection, answer, next_message(answer)[1]["event"]["start"]["pid"]

    def run(self, command, **more):
        """(stdout, the last event or error) of a command."""
        messages = self.stream(
            "process.Process/Start",
            process={"cmd": "/bin/bash", "args": ["-c", command], **more},
        )
        return result_of(messages)

    def execute(self, code, **more):
        """The lines of a piece of code, without their time stamps."""
        status, data = self.ask("POST", "/execute", {"code": code, **more}, CODE)
        assert status == 200, data
        rows = [json.loads(line) for line in data.splitlines()]
        assert rows[0]["type"] == "number_of_executions" and rows[-1]["type"] == "end_of_execution"
        return rows[1:-1]


def next_message(answer):
    """The next message of a stream: (flags, JSON)."""
    flags, length = struct.unpack(">BI", answer.read(5))
    return flags, json.loads(answer.read(length))


def result_of(messages):
    output = b""
    for _, message in messages[:-1]:
        data = message.get("event", {}).get("data", {})
        output += base64.b64decode(data.get("stdout", "") or data.get("pty", ""))
    flags, last = messages[-1]
    assert flags == 2
    return output.decode(), last.get("error") or messages[-2][1]["event"]["end"]
