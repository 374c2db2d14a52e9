# SPDX-License-Identifier: Apache-2.0
"""A launcher that is slow to say what it has made: the sandbox runs already, and the engine does not know its init yet.

The model: the launcher is traced, and held right after the clone; its child continues at once, and
the launcher when the test says so. That is what a loaded machine does by itself, now and then.
"""

import asyncio
import contextlib
import ctypes
import os
import threading
from pathlib import Path

from harness import children, skip, until
from rollbox import AsyncSandbox, Engine, Sandbox

SEIZE, DETACH, EVENT_MESSAGE, CONTINUE = 0x4206, 17, 0x4201, 7
FORK, VFORK, CLONE = 1 << 1, 1 << 2, 1 << 3
WALL = 0x40000000


def is_first_of_a_namespace(pid):
    pids = next(
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("NSpid:")
    ).split()[1:]
    return len(pids) > 1 and pids[-1] == "1"


class Held:
    """A launcher, from the moment that it has made something (`child` is its pid then) until `go`."""

    def __init__(self, pid):
        self.pid, self.child, self.go, self.problem = pid, 0, threading.Event(), None
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self.thread = threading.Thread(
            target=self.trace, daemon=True
        )  # a tracer is a thread, and this one makes all requests
        self.ready = threading.Event()

    def ptrace(self, request, pid, data=None):
        if self.libc.ptrace(request, pid, None, data) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def trace(self):
        try:
            self.ptrace(SEIZE, self.pid, FORK | VFORK | CLONE)
        except OSError as problem:
            self.problem = problem
            return
        finally:
            self.ready.set()
        child = ctypes.c_ulong()
        while True:
            _, status = os.waitpid(self.pid, WALL)
            if not os.WIFSTOPPED(status):
                return          # it has made nothing, and is gone
            if not status >> 16:        # a signal, which it gets
                self.ptrace(CONTINUE, self.pid, os.WSTOPSIG(status))
                continue
            self.ptrace(EVENT_MESSAGE, self.pid, ctypes.addressof(child))
            os.waitpid(child.value, WALL)
            is_init = is_first_of_a_namespace(child.value)
            self.ptrace(DETACH, child.value)
            if is_init:
                break
            self.ptrace(CONTINUE, self.pid)     # a helper of its own
        self.child = child.value
        self.go.wait()
        self.ptrace(DETACH, self.pid)

    def __enter__(self):
        self.thread.start()
        self.ready.wait()
        if self.problem:
            self.thread.join()
            skip(f"what rollbox starts is not this caller's to trace: {self.problem}")
        return self

    def __exit__(self, *_):
        self.go.set()
        if self.child:
            self.thread.join()
        # Else it waits for the launcher's end, which is the engine's.


def holding(engine, stack):
    """All the launchers there are: whichever makes something next is held."""
    return [stack.enter_context(Held(pid)) for pid in children(engine.pid, "rollbox-launch")]


def waits_for_word(pid):
    """An init that has nothing to do any more, so has said that it is ready."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] in ("7", "271")      # poll, ppoll


def test_unready_box_is_not_used():
    async def run(first, launchers):
        fork = asyncio.ensure_future(first.fork(1))
        while not (made := [one.child for one in launchers if one.child]):
            await asyncio.sleep(0)
        until(lambda: waits_for_word(made[0]))
        await first.inspect()                   # what the engine heard and said before that is here as well
        await asyncio.sleep(0)
        assert not fork.done()
        for one in launchers:
            one.go.set()
        async with (await fork)[0] as kid:
            process = await kid.spawn(["sh", "-c", "echo up; read x; echo $x"])
            assert await process.stdout.read(3) == b"up\n"
            assert (await kid.inspect())["pid"] == made[0]
            return await kid.show(await kid.snapshot())

    with Engine() as engine, Sandbox(engine=engine) as first, contextlib.ExitStack() as stack:
        first.write_file("/tmp/a", b"1")        # no sandbox that was made before has that
        seen = asyncio.run(run(AsyncSandbox.of(first), holding(engine, stack)))
        assert [process["name"] for process in seen["processes"]] == ["sh"]
