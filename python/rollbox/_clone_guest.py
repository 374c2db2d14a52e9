# SPDX-License-Identifier: Apache-2.0
"""The interpreter of a sandbox that has a work_fn, and of a template; its text is what `python3 -c` runs there.

On descriptor 3 comes a message with the functions; init_fn runs; then the interpreter says so on descriptor 4 and waits for a line. It is while it waits that it is captured. Each clone gets a line of its own, which says which one
it is, runs work_fn, says on descriptor 4 what came of it, and ends at once: with its sandbox everything goes anyway. A message is its length in 8 bytes, and JSON.

What a clone does here each of a thousand does, and each page that it writes to is copied for it, at the cost of a page and of some microseconds. So it is a short way, through few objects, which was gone once before the capture: what is
written to by the first time only is written then.

A template (`rollbox template`) is the same with two programs in the place of the functions.

Nothing here is secret or trusted: what the functions do to it, they do to their own sandbox' word.
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
MOST = 1 << 16
FILLING = 4 << 20  # bytes at most, should the allocator be another
POOL_HEADER = 48
LINE = 1024  # bytes that a clone's line has at most: it is written, and read, at once
filler: List[object] = []


def take() -> Dict[str, Any]:
    def exactly(n: int) -> bytes:
        parts = []
        while n:
            part = os.read(CONTROL, min(n, 1 << 20))
            if not part:
                os._exit(0)  # nobody wants anything any more
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    message: Dict[str, Any] = json.loads(exactly(int.from_bytes(exactly(8), "big")))
    return message


def write(data: bytes, fd: int) -> None:
    data = len(data).to_bytes(8, "big") + data
    while data:
        data = data[os.write(fd, data) :]


def give(message: Dict[str, Any]) -> None:
    write(json.dumps(message).encode("ascii"), RESULTS)


def encoded(value: Any, encode: Callable[[Any], Any], most: int) -> bytes:
    """A number is its own text; the encoder, with all that it is made of, is for the others."""
    if type(value) is int and -1 << 63 < value < 1 << 63:
        data = b'{"value": %d}' % value
    elif type(value) is float and value - value == 0:
        data = b'{"value": %b}' % repr(value).encode("ascii")
    else:
        data = json.dumps({"value": encode(value)}).encode("ascii")
    if len(data) > most:
        raise ValueError(f"the value has {len(data)} bytes, and max_value is {most}")
    return data


def take_line(fd: int) -> Tuple[int, int, Optional[bytes]]:
    """Which clone this is, how long its value may be, and what its chance begins with."""
    line = os.read(fd, LINE)
    if not line:
        os._exit(0)  # nobody wants anything any more
    number, most, fresh = line.split()
    os.environ["CLONE_ID"] = number.decode("ascii")
    return int(number), int(most), None if fresh == b"-" else bytes.fromhex(fresh.decode("ascii"))


def told(problem: BaseException) -> Dict[str, str]:
    """What is said of an exception. Its own methods may fail, too."""
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
    return {"type": name[:MOST], "message": message[:MOST], "traceback": lines[-MOST:]}


class Sources(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Modules whose text came with the functions."""

    def __init__(self, texts: Dict[str, str]) -> None:
        self.texts = texts

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        return (
            importlib.util.spec_from_loader(name, self, is_package=self.is_package(name))
            if name in self.texts
            else None
        )

    def is_package(self, name: str) -> bool:
        return any(other.startswith(name + ".") for other in self.texts)

    def get_source(self, name: str) -> str:
        return self.texts[name]


def reseed(fresh: Optional[bytes]) -> None:
    """All clones have one memory, and with it the same state of every random generator. Those that everybody shares begin anew in each: with `fresh`, or with chance."""
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
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # replaced, or closed
            pass


def end(message: Dict[str, Any], status: int) -> NoReturn:
    flush()
    give(message)
    os._exit(status)


def fill() -> None:
    """Takes what is free in pages that are in use, so that what a clone makes lies side by side in few pages that nobody else needs a copy of. A pool of CPython's allocator is fresh when its first block is given."""
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
    # A collection would write to every object that there is, and so make a copy of its page in each clone.
    gc.collect()
    fill()
    gc.freeze()
    give({"ready": True})


def rehearse(encode: Callable[[Any], Any]) -> None:
    """The way of a clone, but for what can be told afterwards."""
    kept = os.environ.get("CLONE_ID")
    there, here = os.pipe()
    try:
        for value in (0, 0.0, None):
            os.write(here, b"0 1024 -\n")
            _, most, fresh = take_line(there)
            reseed(fresh)  # as every clone does, whatever it was before
            data = encoded(value, encode, most)
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
    from rollbox_safe_values import encode  # type: ignore[import-not-found]

    takes = setup["takes"]
    if "numpy" in sys.modules:
        importlib.import_module(
            "numpy.random"
        )  # numpy 2.4 does it when it is asked for: in a clone, after that has had its seed
    try:
        rehearse(encode)
    except Exception:  # what init_fn has done to this interpreter is each clone's to find out
        pass
    ready()
    number, most, fresh = take_line(CONTROL)
    try:
        reseed(fresh)
        data = encoded(work(*(number, state)[:takes]), encode, most)
        flush()
        write(data, RESULTS)
        os._exit(0)
    except BaseException as problem:
        status = 1
        if isinstance(problem, SystemExit):
            status = (
                problem.code if isinstance(problem.code, int) else 0 if problem.code is None else 1
            )
        end({"raised": told(problem)}, status & 0xFF)


def go_on(code: str) -> None:
    """Programs: one that is run here, and one in each clone, in the same `__main__`, which then ends as any."""
    space = types.ModuleType("__main__")
    sys.modules["__main__"] = space
    vars(space)["__builtins__"] = builtins
    try:
        exec(compile(code, "<template>", "exec", dont_inherit=True), vars(space))
    except BaseException as problem:
        end({"raised": told(problem)}, 1)
    ready()
    words = take()["argv"]
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
                    f"python3: can't open file {os.path.abspath(name)!r}: [Errno {problem.errno}] {problem.strerror}",
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
    for fd in (CONTROL, RESULTS):
        os.set_inheritable(fd, False)
    setup = take()
    if "code" in setup:
        go_on(setup["code"])
    else:
        work_on(setup)


main()
