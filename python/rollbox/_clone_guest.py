# SPDX-License-Identifier: Apache-2.0
"""The interpreter of a sandbox that has a work_fn, and of a template; its text is what `python3 -c` runs there.

On descriptor 3 comes a message with the functions; init_fn runs; then the interpreter says so on descriptor 4 and waits for another message. It is while it waits that it is captured. Each clone gets a message of its own, which says which one
it is, runs work_fn, says on descriptor 4 what came of it, and ends at once: with its sandbox everything goes anyway. A message is its length in 8 bytes, and JSON.

A template (`rollbox template`) is the same with two programs in the place of the functions.

Nothing here is secret or trusted: what the functions do to it, they do to their own sandbox' word.
"""

import base64
import builtins
import gc
import hashlib
import importlib.abc
import importlib.util
import json
import os
import pickle
import sys
import traceback
import types
from typing import Any, Dict, NoReturn, Optional

CONTROL, RESULTS = 3, 4
MOST = 1 << 16


def take() -> Dict[str, Any]:
    def exactly(n: int) -> bytes:
        parts = []
        while n:
            part = os.read(CONTROL, min(n, 1 << 20))
            if not part:
                os._exit(0)         # nobody wants anything any more
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    message: Dict[str, Any] = json.loads(exactly(int.from_bytes(exactly(8), "big")))
    return message


def give(message: Dict[str, Any], most: Optional[int] = None) -> None:
    data = json.dumps(message).encode("ascii")
    if most is not None and len(data) > most:
        raise ValueError(f"the value has {len(data)} bytes, and max_value is {most}")
    data = len(data).to_bytes(8, "big") + data
    while data:
        data = data[os.write(RESULTS, data):]


def told(problem: BaseException) -> Dict[str, str]:
    """What is said of an exception. Its own methods may fail, too."""
    kind = type(problem)
    try:
        message = str(problem)
    except Exception as another:
        message = f"<no message: {type(another).__name__}>"
    try:
        lines = "".join(traceback.format_exception(kind, problem, problem.__traceback__.tb_next if problem.__traceback__ else None))
    except Exception as another:
        lines = f"<no traceback: {type(another).__name__}>"
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    return {"type": name[:MOST], "message": message[:MOST], "traceback": lines[-MOST:]}


class Sources(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Modules whose text came with the functions."""

    def __init__(self, texts: Dict[str, str]) -> None:
        self.texts = texts

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self, is_package=self.is_package(name)) if name in self.texts else None

    def is_package(self, name: str) -> bool:
        return any(other.startswith(name + ".") for other in self.texts)

    def get_source(self, name: str) -> str:
        return self.texts[name]


def reseed(seed: Optional[int], number: int) -> None:
    """All clones have one memory, and with it the same state of every random generator. Those that everybody shares begin anew in each."""
    if seed is None:
        fresh = os.urandom(64)
    else:
        fresh = hashlib.sha512(f"{seed}:{number}".encode()).digest()
        import random  # noqa: F401
    if "random" in sys.modules:
        sys.modules["random"].seed(fresh)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed([int.from_bytes(fresh[i:i + 4], "big") for i in range(0, 32, 4)])
    if "_ssl" in sys.modules:
        sys.modules["_ssl"].RAND_add(os.urandom(64), 64.0)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):       # replaced, or closed
            pass


def end(message: Dict[str, Any], status: int) -> NoReturn:
    flush()
    give(message)
    os._exit(status)


def ready() -> Dict[str, Any]:
    """Is captured, and then told what it is for."""
    flush()
    # A collection would write to every object that there is, and so make a copy of its page in each clone.
    gc.collect()
    gc.freeze()
    give({"ready": True})
    return take()


def work_on(setup: Dict[str, Any]) -> NoReturn:
    """Functions: init_fn here, work_fn in each clone."""
    there = list(sys.version_info[:2])
    if setup["version"] != there:
        end({"version": there}, 1)
    sources = Sources(setup["modules"])
    sys.meta_path.insert(0, sources)
    try:
        init, work = pickle.loads(base64.b64decode(setup["functions"]))
        state = init() if init is not None else None
    except BaseException as problem:
        end({"raised": told(problem)}, 1)
    from rollbox_plain import encode  # type: ignore[import-not-found]

    start = ready()
    number = start["id"]
    os.environ["CLONE_ID"] = str(number)
    try:
        reseed(start["seed"], number)
        value = work(*(number, state)[:setup["takes"]])
        answer = {"value": encode(value)}
        flush()
        give(answer, start["most"])
        os._exit(0)
    except BaseException as problem:
        status = 1
        if isinstance(problem, SystemExit):
            status = problem.code if isinstance(problem.code, int) else 0 if problem.code is None else 1
        end({"raised": told(problem)}, status & 0xff)


def go_on(code: str) -> None:
    """Programs: one that is run here, and one in each clone, in the same `__main__`, which then ends as any."""
    space = types.ModuleType("__main__")
    sys.modules["__main__"] = space
    vars(space)["__builtins__"] = builtins
    try:
        exec(compile(code, "<template>", "exec", dont_inherit=True), vars(space))
    except BaseException as problem:
        end({"raised": told(problem)}, 1)
    words = ready()["argv"]
    os.close(CONTROL)
    os.close(RESULTS)
    reseed(None, 0)
    try:
        name = "<string>"
        if words[0] == "-c":
            sys.argv[:] = ["-c", *words[2:]]
            text = words[1].encode("utf-8", "surrogateescape")
        else:
            sys.argv[:], name = words, words[0]
            sys.path[0] = os.path.dirname(os.path.abspath(name))
            vars(space)["__file__"] = name
            try:
                with open(name, "rb") as file:
                    text = file.read()
            except OSError as problem:
                print(f"python3: can't open file {os.path.abspath(name)!r}: [Errno {problem.errno}] {problem.strerror}", file=sys.stderr)
                sys.exit(2)
        exec(compile(text, name, "exec", dont_inherit=True), vars(space))
    except SystemExit:
        raise
    except BaseException as problem:
        trace = problem.__traceback__.tb_next if problem.__traceback__ else None
        sys.excepthook(type(problem), problem.with_traceback(trace), trace)
        sys.exit(1)


def main() -> None:
    for fd in (CONTROL, RESULTS):
        os.set_inheritable(fd, False)
    setup = take()
    if "code" in setup:
        go_on(setup["code"])
    else:
        work_on(setup)


main()
