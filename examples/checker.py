# SPDX-License-Identifier: Apache-2.0
"""Judges one answer, inside a sandbox.

There are two processes. The checker is the sandbox's main program; the answer runs in a child of
it. Only plain data (numbers, text, lists, ...) passes between them, over two pipes. So an answer
can return a wrong value or none. It cannot hand over an object that is equal to everything, patch
the tests, read what they expect, or end the checker with status 0 and be believed.

A pass needs the token: a random word that reward.py sends with the task, printed together with the
verdict. The child is forked before the checker has read the token, and the checker is undumpable
by then, so no process of the same user can trace it, read its memory or open its descriptors.
Killing or stopping the checker only loses the reward.

Standard input: one JSON object {token, prompt, entry_point, test, answer}. Standard output: one
line, the token and {"passed": bool, "why": text}. What the answer prints goes to standard error.
"""

import sys

# Nothing that an answer leaves in the working directory is to be imported.
del sys.path[0]

import builtins  # noqa: E402
import ctypes  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
from typing import Any  # noqa: E402

PR_SET_DUMPABLE = 4
LONGEST_REPLY = 64 << 20


class Refused(Exception):
    """A value that is not plain data, or a reply that is not one of ours."""


def encode(value):
    """Plain data as JSON; an object stands for a type that JSON does not have.

    Types are compared exactly: a subclass of int may lie.
    """
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        return value if abs(value) < 1 << 53 else {"int": hex(value)}
    if kind is list:
        return [encode(item) for item in value]
    if kind in (tuple, set, frozenset):
        return {kind.__name__: [encode(item) for item in value]}
    if kind is dict:
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    if kind in (bytes, bytearray):
        return {kind.__name__: value.hex()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    raise Refused(f"a value of type {kind.__name__} is not plain data")


def decode(value):
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise Refused("not a reply of ours")
    ((kind, content),) = value.items()
    if kind == "int":
        return int(content, 16)
    if kind in ("tuple", "set", "frozenset"):
        return getattr(builtins, kind)(decode(content))
    if kind == "dict":
        return {decode(key): decode(item) for key, item in content}
    if kind in ("bytes", "bytearray"):
        return getattr(builtins, kind).fromhex(content)
    if kind in ("complex", "range"):
        return getattr(builtins, kind)(*content)
    raise Refused("not a reply of ours")


def raised(problem):
    """An exception as data: the nearest built-in kind, which the tests may know."""
    kind = next(base.__name__ for base in type(problem).__mro__ if base.__module__ == "builtins")
    return {"raised": kind, "message": f"{type(problem).__name__}: {problem}"[:200]}


def send(stream, message):
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def receive(stream):
    line = stream.readline(LONGEST_REPLY)
    if not line.endswith(b"\n"):
        raise EOFError
    return json.loads(line)


def run_answer(requests, replies):
    """The child: the checker's own code until the first request, and then the answer."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    order = receive(requests)
    try:
        namespace: dict[str, Any] = {"__name__": "answer"}
        exec(compile(order["answer"], "answer.py", "exec"), namespace)
        candidate = namespace[order["entry_point"]]
        send(replies, {"ready": True})
    except BaseException as problem:
        send(replies, raised(problem))
        return
    while True:
        call = receive(requests)
        try:
            reply = {
                "returned": encode(candidate(*decode(call["arguments"]), **decode(call["named"])))
            }
        except BaseException as problem:
            reply = raised(problem)
        send(replies, reply)


def outcome_of(reply):
    """The value of a reply, or an exception of a built-in kind, which a test may expect."""
    if not isinstance(reply, dict):
        raise Refused("not a reply of ours")
    if "raised" in reply:
        kind = getattr(builtins, str(reply["raised"]), None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(
            kind, (AssertionError, UnicodeError)
        ):
            kind = RuntimeError
        raise kind(reply.get("message", ""))
    return decode(reply.get("returned"))


def judge(task, requests, replies):
    send(requests, {"answer": task["answer"], "entry_point": task["entry_point"]})
    outcome_of(receive(replies))

    def candidate(*arguments, **named):
        send(requests, {"arguments": encode(arguments), "named": encode(named)})
        return outcome_of(receive(replies))

    candidate.__name__ = task["entry_point"]
    # Tests may use helpers that the prompt defines; the function asked for is the answer's alone.
    namespace: dict[str, Any] = {"__name__": "test"}
    exec(compile(task["prompt"], "prompt.py", "exec"), namespace)
    namespace[task["entry_point"]] = candidate
    exec(compile(task["test"], "test.py", "exec"), namespace)
    namespace["check"](candidate)


def main():
    to_child, to_parent = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(to_child[1])
        os.close(to_parent[0])
        status = 1
        try:
            run_answer(os.fdopen(to_child[0], "rb"), os.fdopen(to_parent[1], "wb"))
        except EOFError:
            status = 0
        finally:
            os._exit(status)
    os.close(to_child[0])
    os.close(to_parent[1])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        sys.exit(
            "checker: prctl(PR_SET_DUMPABLE) is refused: the token could not be kept from the "
            "answer"
        )
    task = json.load(sys.stdin.buffer)
    try:
        judge(task, os.fdopen(to_child[1], "wb"), os.fdopen(to_parent[0], "rb"))
        verdict = {"passed": True, "why": ""}
    except (EOFError, BrokenPipeError):
        verdict = {"passed": False, "why": "the answer ended its process"}
    except Exception as problem:
        verdict = {"passed": False, "why": f"{type(problem).__name__}: {problem}"[:300]}
    os.write(1, f"{task['token']} {json.dumps(verdict)}\n".encode())
    # Not sys.exit: an answer that left threads of output behind must not be waited for.
    os._exit(0)


main()
