# SPDX-License-Identifier: Apache-2.0
"""The engine's protocol spoken by hand (src/engine/protocol.h): for what no well-behaved client says."""

import array
import json
import os
import socket
import struct

HELLO, WELCOME, PREPARE, PREPARED, EXPLAIN, STATUS, TEXT, RUN, RESULT, KILL, FAILED = range(1, 12)
NAMES = (
    "VERSION PID POLICY PLAN ISOLATION DEFAULT_TIMEOUT DEFAULT_OUTPUT TEXT_DATA OPERATION ARG ENV CWD TIMEOUT OUTPUT_LIMIT FILE_PATH FILE_MODE"
    " FILE_DATA STDIN STDIO TARGET OUTCOME EXIT_CODE SIGNAL STDOUT STDERR STDOUT_FD STDERR_FD STDOUT_TRUNCATED STDERR_TRUNCATED WALL_NS"
    " CPU_NS PEAK_MEMORY PROCESSES_PEAK ERROR_CODE ERROR_NUMBER ERROR_STAGE ERROR_MESSAGE"
).split()
TAGS = {name: number for number, name in enumerate(NAMES, 1)}
BYTES = ("STDOUT", "STDERR")
EXIT, SIGNAL, TIMEOUT, OUT_OF_MEMORY, OUTPUT_LIMIT, ERROR = range(6)


def field(name, value):
    if isinstance(value, int):
        value = struct.pack("Q", value)
    elif isinstance(value, str):
        value = value.encode() + b"\0"
    return struct.pack("II", TAGS[name], len(value)) + value + bytes(-len(value) % 8)


def parse(message):
    kind, _, serial = struct.unpack("IIQ", message[:16])
    answer, at = {"type": kind, "serial": serial}, 16
    while at < len(message):
        tag, length = struct.unpack("II", message[at : at + 8])
        name = NAMES[tag - 1] if tag <= len(NAMES) else str(tag)  # later ones have no name here
        value = message[at + 8 : at + 8 + length]
        at += 8 + length + -length % 8
        answer[name] = struct.unpack("Q", value)[0] if length == 8 and name not in BYTES else value
    return answer


class Client:
    """One connection. Answers come in any order: `wait` returns that of a serial."""

    def __init__(self, path, deadline=60):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(path))
        self.socket.settimeout(deadline)
        self.serial, self.answers = 0, {}
        assert self.ask(HELLO, VERSION=2)["type"] == WELCOME

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, kind, fields, fds=()):
        self.serial += 1
        message = struct.pack("IIQ", kind, 0, self.serial) + b"".join(field(name, value) for name, value in fields)
        self.socket.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
        return self.serial

    def wait(self, serial):
        while serial not in self.answers:
            message, rights, _, _ = self.socket.recvmsg(65536, 256)
            if not message:
                raise EOFError("the engine closed the connection")
            for _, _, data in rights:
                for fd in array.array("i", data[: len(data) // 4 * 4]):
                    os.close(fd)
            answer = parse(message)
            self.answers[answer["serial"]] = answer
        return self.answers.pop(serial)

    def ask(self, kind, **fields):
        return self.wait(self.send(kind, fields.items()))

    def prepare(self, **policy):
        answer = self.ask(PREPARE, POLICY=json.dumps(policy))
        assert answer["type"] == PREPARED, answer
        return answer["PLAN"]

    def run(self, plan, *argv, operation=None, **more):
        fields = [
            ("PLAN", plan),
            ("OPERATION", operation or os.urandom(16)),
            *(("ARG", word) for word in argv),
            *more.items(),
        ]
        return self.send(RUN, fields)

    def kill(self, serial, outcome=ERROR):
        self.send(KILL, [("TARGET", serial), ("OUTCOME", outcome)])

    def status(self):
        return json.loads(self.ask(STATUS)["TEXT_DATA"].rstrip(b"\0"))


EXEC, ATTACH, SANDBOX = 12, 13, 14
EXHAUSTED = 10
VERBS = (
    "CREATE OPEN INSPECT PROCESSES TREE PAUSE RESUME CLOSE LIST SIGNAL RESIZE FILES SNAPSHOT FORK"
    " RESET DROP DIFF COMMIT EXPORT"
).split()
MORE = (
    "SANDBOX VERB USER INPUT TERMINAL STREAM EXTRA DETACHED IDLE TTL LIFETIME EXEC NUMBER SCOPE NAME"
    " SNAPSHOT TO TEXTUAL PATH FORCE CODE MAX_STREAM MAX_FILE ENV_VALUES RULE_NAME RULE_PATTERN"
    " BYTES FILES DIGESTS SAME_SEED DROPS"
).split()
SESSION_TAGS = {**TAGS, **{name: number for number, name in enumerate(MORE, len(TAGS) + 1)}}


class SessionClient(Client):
    """A Client with the requests of sessions. `post`, `verb` and `exec` return without waiting."""

    def post(self, kind, *fields, fds=()):
        self.serial += 1
        message = struct.pack("IIQ", kind, 0, self.serial)
        for name, value in fields:
            if isinstance(value, int):
                value = struct.pack("Q", value)
            elif isinstance(value, str):
                value = value.encode() + b"\0"
            message += struct.pack("II", SESSION_TAGS[name], len(value)) + value + bytes(-len(value) % 8)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([message], rights)
        return self.serial

    def verb(self, verb, *fields, fds=()):
        return self.post(SANDBOX, ("VERB", VERBS.index(verb) + 1), *fields, fds=fds)

    def exec(self, name, *argv, more=(), fds=()):
        return self.post(EXEC, ("SANDBOX", name), *(("ARG", word) for word in argv), *more, fds=fds)

    def json(self, serial):
        answer = self.wait(serial)
        assert answer["type"] == TEXT, answer
        return json.loads(answer["TEXT_DATA"].rstrip(b"\0"))

    def create(self, plan):
        return self.json(self.verb("CREATE", ("PLAN", plan)))["name"]

    def init_of(self, name):
        return self.json(self.verb("INSPECT", ("SANDBOX", name)))["pid"]

    def output(self, name, *argv):
        answer = self.wait(self.exec(name, *argv))
        assert answer["OUTCOME"] == EXIT, answer
        return answer["STDOUT"]
