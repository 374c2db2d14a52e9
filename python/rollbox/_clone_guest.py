# SPDX-License-Identifier: Apache-2.0
"""The interpreter of clones and templates; `python3 -c` runs its text in the sandbox.

A message with the functions comes on descriptor 3, and init_fn runs. Then the interpreter says so
on descriptor 4 and waits for a line; it is captured while it waits. Each clone gets a line of its
own, with its number. It runs work_fn, sends the result on descriptor 4, and ends at once, because
everything ends with its sandbox anyway. A message is its length in 8 bytes, and JSON.

What a clone does here, each of a thousand does, and each page that it writes to is copied for it,
which costs a page and some microseconds. So its code path is short, uses few objects, and is run
once before the capture: what only a first time writes to is written then.

A template (`rollbox template`) is the same with two programs in place of the functions.

Nothing here is secret or trusted: the functions can only harm the word of their own sandbox.
"""

import base64
import builtins
import gc
import importlib.abc
import importlib.util
import json
import os
import pickle
import sys
import traceback
import types
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

CONTROL, RESULTS = 3, 4
MAX_TEXT = 1 << 16
FILLING = 4 << 20  # bytes at most, for another allocator than CPython's
POOL_HEADER = 48
LINE = 1024  # bytes of a clone's line at most: one write and one read transfer it
filler: List[object] = []


def receive() -> Dict[str, Any]:
    """Reads a message."""

    def exactly(n: int) -> bytes:
        parts = []
        while n:
            part = os.read(CONTROL, min(n, 1 << 20))
            if not part:
                os._exit(0)  # the caller is gone
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    message: Dict[str, Any] = json.loads(exactly(int.from_bytes(exactly(8), "big")))
    return message


def write(data: bytes, fd: int) -> None:
    """Writes a message."""
    data = len(data).to_bytes(8, "big") + data
    while data:
        data = data[os.write(fd, data) :]


def send(message: Dict[str, Any]) -> None:
    """Sends a message as JSON."""
    write(json.dumps(message).encode("ascii"), RESULTS)


def encode_value(value: Any, encode: Callable[[Any], Any], max_bytes: int) -> bytes:
    """The text of a value. Numbers take a short cut past the encoder and its objects."""
    if type(value) is int and -1 << 63 < value < 1 << 63:
        data = b'{"value": %d}' % value
    elif type(value) is float and value - value == 0:
        data = b'{"value": %b}' % repr(value).encode("ascii")
    else:
        data = json.dumps({"value": encode(value)}).encode("ascii")
    if len(data) > max_bytes:
        raise ValueError(f"the value has {len(data)} bytes, and max_value is {max_bytes}")
    return data


def read_line(fd: int) -> Tuple[int, int, Optional[bytes]]:
    """The clone's number, the length that its value may have, and its seed."""
    line = os.read(fd, LINE)
    if not line:
        os._exit(0)  # the caller is gone
    number, max_bytes, fresh = line.split()
    os.environ["CLONE_ID"] = number.decode("ascii")
    return (
        int(number),
        int(max_bytes),
        None if fresh == b"-" else bytes.fromhex(fresh.decode("ascii")),
    )


def describe(problem: BaseException) -> Dict[str, str]:
    """The texts that are sent of an exception. Its own methods may fail, too."""
    kind = type(problem)
    try:
        message = str(problem)
    except Exception as another:
        message = f"<no message: {type(another).__name__}>"
    try:
        lines = "".join(
            traceback.format_exception(
                kind, problem, problem.__traceback__.tb_next if problem.__traceback__ else None
            )
        )
    except Exception as another:
        lines = f"<no traceback: {type(another).__name__}>"
    name = (
        kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    return {"type": name[:MAX_TEXT], "message": message[:MAX_TEXT], "traceback": lines[-MAX_TEXT:]}


class Sources(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Modules whose text came with the functions."""

    def __init__(self, texts: Dict[str, str]) -> None:
        self.texts = texts

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """The spec of such a module."""
        return (
            importlib.util.spec_from_loader(name, self, is_package=self.is_package(name))
            if name in self.texts
            else None
        )

    def is_package(self, name: str) -> bool:
        """Whether there are modules below it."""
        return any(other.startswith(name + ".") for other in self.texts)

    def get_source(self, name: str) -> str:
        """Its text."""
        return self.texts[name]


def reseed(fresh: Optional[bytes]) -> None:
    """Seeds the random generators that every program shares.

    All clones have one memory, and with it the same state of every generator. These start again in
    each, from `fresh` or from the kernel's randomness.
    """
    if fresh is not None:
        import random  # noqa: F401
    modules = sys.modules
    if "random" in modules:
        modules["random"].seed(fresh or os.urandom(64))
    numpy = modules.get("numpy.random")
    if numpy is not None:
        first = fresh or os.urandom(32)
        numpy.seed([int.from_bytes(first[i : i + 4], "big") for i in range(0, 32, 4)])
    if "_ssl" in modules:
        modules["_ssl"].RAND_add(os.urandom(64), 64.0)


def flush() -> None:
    """Writes out the standard streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # replaced, or closed
            pass


def end(message: Dict[str, Any], status: int) -> NoReturn:
    """Sends a last message and ends the process."""
    flush()
    send(message)
    os._exit(status)


def fill_free_blocks() -> None:
    """Takes the free blocks of pages that are in use.

    What a clone allocates then lies together in few pages. A pool of CPython's allocator is fresh
    when its first block is given.
    """
    pool = 1 << (14 if sys.version_info >= (3, 10) else 12)
    left = FILLING if sys.implementation.name == "cpython" else 0
    for size in range(16, 513, 16):
        while left > 0:
            left -= size
            filler.append(
                object() if size == 16 else 1 << 59 | left if size == 32 else bytes(size - 33)
            )
            if id(filler[-1]) & (pool - 1) == POOL_HEADER:
                break


def ready() -> None:
    """Says so, to be captured next."""
    flush()
    # A collection would write to every object, and so copy its page in each clone.
    gc.collect()
    fill_free_blocks()
    gc.freeze()
    send({"ready": True})


def rehearse(encode: Callable[[Any], Any]) -> None:
    """Runs a clone's code path once, except effects that would be visible afterwards."""
    kept = os.environ.get("CLONE_ID")
    there, here = os.pipe()
    try:
        for value in (0, 0.0, None):
            os.write(here, b"0 1024 -\n")
            _, max_bytes, fresh = read_line(there)
            reseed(fresh)
            data = encode_value(value, encode, max_bytes)
            flush()
            write(data, here)
            os.read(there, LINE)
    finally:
        os.close(there)
        os.close(here)
        if kept is None:
            os.environ.pop("CLONE_ID", None)
        else:
            os.environ["CLONE_ID"] = kept


def run_functions(setup: Dict[str, Any]) -> NoReturn:
    """Runs functions: init_fn here, work_fn in each clone."""
    there = list(sys.version_info[:2])
    if setup["version"] != there:
        end({"version": there}, 1)
    sources = Sources(setup["modules"])
    sys.meta_path.insert(0, sources)
    try:
        init, work = pickle.loads(base64.b64decode(setup["functions"]))
        state = init() if init is not None else None
    except BaseException as problem:
        end({"raised": describe(problem)}, 1)
    from rollbox_safe_values import encode  # type: ignore[import-not-found]

    takes = setup["takes"]
    if "numpy" in sys.modules:
        # numpy 2.4 imports it on first use, which would be in a clone, after the seeding.
        importlib.import_module("numpy.random")
    try:
        rehearse(encode)
    except Exception:  # each clone reports what init_fn has done to the interpreter
        pass
    ready()
    number, max_bytes, fresh = read_line(CONTROL)
    try:
        reseed(fresh)
        data = encode_value(work(*(number, state)[:takes]), encode, max_bytes)
        flush()
        write(data, RESULTS)
        os._exit(0)
    except BaseException as problem:
        status = 1
        if isinstance(problem, SystemExit):
            status = (
                problem.code if isinstance(problem.code, int) else 0 if problem.code is None else 1
            )
        end({"raised": describe(problem)}, status & 0xFF)


def run_programs(code: str) -> None:
    """Runs programs: one here, and one in each clone, in the same `__main__`."""
    space = types.ModuleType("__main__")
    sys.modules["__main__"] = space
    vars(space)["__builtins__"] = builtins
    try:
        exec(compile(code, "<template>", "exec", dont_inherit=True), vars(space))
    except BaseException as problem:
        end({"raised": describe(problem)}, 1)
    ready()
    words = receive()["argv"]
    os.close(CONTROL)
    os.close(RESULTS)
    reseed(None)
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
                print(
                    f"python3: can't open file {os.path.abspath(name)!r}: [Errno {problem.errno}] "
                    f"{problem.strerror}",
                    file=sys.stderr,
                )
                sys.exit(2)
        exec(compile(text, name, "exec", dont_inherit=True), vars(space))
    except SystemExit:
        raise
    except BaseException as problem:
        trace = problem.__traceback__.tb_next if problem.__traceback__ else None
        sys.excepthook(type(problem), problem.with_traceback(trace), trace)
        sys.exit(1)


def main() -> None:
    """Runs what the first message has."""
    for fd in (CONTROL, RESULTS):
        os.set_inheritable(fd, False)
    setup = receive()
    if "code" in setup:
        run_programs(setup["code"])
    else:
        run_functions(setup)


main()
