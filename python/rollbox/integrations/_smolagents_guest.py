# SPDX-License-Identifier: Apache-2.0
"""The interpreter of an agent's steps, inside its sandbox: one JSON object a line in, one out.

Its standard output and error go to a file that is sent back as the step's logs, also what its
child processes write. It runs with the sandbox's Python, which may be an old one.
"""

import ast
import json
import os
import sys
import tempfile
import traceback

_LIMIT = 1 << 20


def main() -> None:
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    empty = os.open("/dev/null", os.O_RDONLY)
    os.dup2(empty, 0)
    scope = {"__name__": "__main__"}
    for line in requests:
        asked = json.loads(line.decode("utf-8"))
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            kind, value = run(asked["code"], scope, asked["final"])
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except (OSError, ValueError):
                    pass
            file.seek(0)
            logs = file.read(_LIMIT).decode("utf-8", "replace")
            if file.read(1):
                logs += f"\n[more output than {_LIMIT} bytes was left out]\n"
        answer = {"kind": kind, "value": value, "logs": logs}
        answers.write(json.dumps(answer).encode("utf-8") + b"\n")
        answers.flush()


def run(code: str, scope: dict, final: str) -> tuple:  # type: ignore[type-arg]
    """("value", the last expression's), ("final", the answer) or ("error", text)."""
    try:
        body = ast.parse(code, "<step>")
        last = None
        if body.body and isinstance(body.body[-1], ast.Expr):
            last = ast.Expression(body.body[-1].value)
            del body.body[-1]
        exec(compile(body, "<step>", "exec"), scope)
        value = None if last is None else eval(compile(last, "<step>", "eval"), scope)
    except BaseException as problem:
        if type(problem).__name__ == final:
            return "final", str(getattr(problem, "value", ""))
        lines = traceback.format_exception(type(problem), problem, problem.__traceback__)
        return "error", "".join(lines[:1] + lines[2:])
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        value = repr(value)
    return "value", value


if __name__ == "__main__":
    main()
