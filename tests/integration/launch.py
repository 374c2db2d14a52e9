# SPDX-License-Identifier: Apache-2.0
"""A launcher driven by hand (src/guest/guest.h), with a plan that a real engine compiled: for what
its sandboxes do with layers of files.

`plan_of` takes the plan from an engine that believes it starts a launcher. A Launcher has template
and sandboxes; a Box is one sandbox, whose `layer` is a descriptor of its private
file system. All of it ends with the process.
"""

import array
import os
import select
import signal
import socket
import struct
import subprocess
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from harness import DEADLINE, Caller, binaries, place

PLAN, CREATE, EXEC, _SESSION, _SIGNAL, _FREEZE, _THAW, _FILES, COPY = range(1, 10)
(
    TEMPLATE_READY,
    CREATED,
    CREATE_FAILED,
    BOX_READY,
    FAILED,
    STARTED,
    EXEC_FAILED,
    EXITED,
    _SIGNALLED,
    _FROZEN,
    _SERVED,
    COPIED,
) = range(1, 13)
ARG, ENV, CWD = 1, 2, 3
ID = 7
BYTES, ENTRIES = 15, 16
LAYERED, MAPS, SOURCES, LAYERS_SHIFT = 1 << 10, 1 << 14, 1 << 16, 18
ID_BASE = 0x70000000

CAPTURE = """#!/usr/bin/python3 -IS
import array, os, socket
with socket.socket(fileno=3) as engine:
    _, rights, _, _ = engine.recvmsg(65536, 64)
    fd = array.array("i", rights[0][2])[0]
    with open("@", "wb") as to:
        to.write(os.pread(fd, 1 << 26, 0))
"""


def plan_of(caller: Caller, *flags: str) -> bytes:
    """The plan that `rollbox run FLAGS` has its launcher carry out."""
    directory = caller.directory(0o755)
    program = caller.write(directory / "capture", CAPTURE.replace("@", str(directory / "plan")), 0o755)
    done = caller.rollbox("run", *flags, "--", "true", env=caller.environment(ROLLBOX_INIT=str(program)))
    assert (directory / "plan").exists(), done.stderr
    return (directory / "plan").read_bytes()


class Record:
    """An answer of the guest layer (struct guest_record), with its descriptors."""

    def __init__(self, message: bytes, fds: List[int]) -> None:
        (
            self.kind,
            self.stage,
            self.operation,
            self.error,
            self.serial,
            self.value,
            self.wall_ns,
            self.cpu_ns,
            self.rss,
            self.read,
            self.written,
        ) = struct.unpack("IIIiQQQQQQQ", message)
        self.fds = fds

    def __repr__(self) -> str:
        return f"kind {self.kind} stage {self.stage} operation {self.operation} error {self.error} ({os.strerror(self.error)}) value {self.value}"


def field(tag: int, value: object) -> bytes:
    data = (
        struct.pack("Q", value)
        if isinstance(value, int)
        else value
        if isinstance(value, bytes)
        else str(value).encode()
    )
    if not isinstance(value, int):
        data += b"\0"
    return struct.pack("II", tag, len(data)) + data + bytes(-len(data) % 8)


class Peer:
    """One end of a socket to a launcher or an init."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        end.settimeout(DEADLINE)

    def send(
        self,
        kind: int,
        fields: Sequence[Tuple[int, object]] = (),
        fds: Sequence[int] = (),
        flags: int = 0,
        serial: int = 0,
    ) -> None:
        message = struct.pack("IIQ", kind, flags, serial) + b"".join(field(tag, value) for tag, value in fields)
        self.socket.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])

    def receive(self) -> Record:
        message, rights, _, _ = self.socket.recvmsg(65536, 256)
        fds = [fd for _, _, data in rights for fd in array.array("i", data[: len(data) // 4 * 4])]
        assert message, "it has ended"
        return Record(message, fds)


class Box(Peer):
    """A sandbox."""

    def __init__(self, end: socket.socket, pid: int, pidfd: int) -> None:
        super().__init__(end)
        self.pid, self.pidfd = pid, pidfd
        self.layer: Optional[int] = None

    def __enter__(self) -> "Box":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it and waits until it is dead; its layer stays."""
        if self.pidfd < 0:
            return
        self.socket.close()
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL) if hasattr(
            signal, "pidfd_send_signal"
        ) else os.kill(self.pid, signal.SIGKILL)
        select.select([self.pidfd], [], [], DEADLINE)
        os.waitpid(self.pid, 0x40000000)  # __WALL: it has no exit signal
        os.close(self.pidfd)
        self.pidfd = -1

    def sh(self, text: str, check: bool = True) -> str:
        """Runs a shell command to its end; its output, both streams."""
        return self.run("/bin/sh", "-c", text, check=check)

    def run(self, *argv: str, check: bool = True) -> str:
        reader, writer = os.pipe()
        with open(os.devnull, "rb") as null, open(reader, "rb") as output:
            fields = [
                *((ARG, word) for word in argv),
                (ENV, "PATH=/usr/bin:/bin"),
                (ENV, "LANG=C.UTF-8"),
                (CWD, "/tmp"),
            ]
            self.send(EXEC, fields, [null.fileno(), writer, writer], serial=1)
            os.close(writer)
            answer = self.receive()
            assert answer.kind == STARTED, answer
            data = output.read()
            answer = self.receive()
        assert answer.kind == EXITED, answer
        if check:
            assert answer.value == 0, data
        return data.decode(errors="surrogateescape")


class Launcher(Peer):
    """A template and its sandboxes."""

    def __init__(self, caller: Caller, plan: bytes) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours)
        self.boxes: List[Box] = []
        program = str(binaries() / "rollbox-init")
        fd = theirs.fileno()

        def place_socket() -> None:
            os.dup2(fd, 3)
            os.set_inheritable(3, True)

        self.process = subprocess.Popen(
            [program, str(ID_BASE if caller.uid == 0 else 0), "late"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=True,
            pass_fds=[3, fd],
            preexec_fn=place_socket,
            cwd="/",
            **caller.identity(),
        )
        theirs.close()
        memory = os.memfd_create("plan", os.MFD_CLOEXEC)
        os.write(memory, plan)
        self.send(PLAN, fds=[memory])
        os.close(memory)
        ready = self.receive()
        assert ready.kind == TEMPLATE_READY, ready

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(self, *_: object) -> None:
        for box in self.boxes:
            box.close()
        self.socket.close()
        self.process.wait(DEADLINE)

    def create(
        self,
        layers: Sequence[int] = (),
        size: Optional[Tuple[int, int]] = None,
        expect: int = BOX_READY,
        own_id: int = 0,
    ) -> Box:
        """A sandbox on these layers, bottom first; `size`: bytes and entries of its files. With
        another `expect` the record is in `answer`. With `own_id` it is to have that id, but gets no
        mounts of host files for it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fields = [(BYTES, size[0]), (ENTRIES, size[1])] if size else []
        fds, flags = [theirs.fileno(), *layers], LAYERED | len(layers) << LAYERS_SHIFT
        promise, source = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if own_id:
            fields += [(ID, own_id)]
            fds.insert(1, source.fileno())
            flags |= MAPS | SOURCES
        self.send(CREATE, fields, fds, flags)
        promise.send(b"-")
        promise.close()
        source.close()
        theirs.close()
        created = self.receive()
        assert created.kind == CREATED, created
        box = Box(ours, created.value, created.fds[0])
        self.boxes.append(box)
        box.answer = box.receive()
        assert box.answer.kind == expect, box.answer
        if expect == BOX_READY:
            assert box.answer.value & 2, box.answer
            box.layer = box.answer.fds[-1]
        return box

    def copy(self, layers: Sequence[int], size: Tuple[int, int] = (1 << 30, 100000), error: int = 0) -> Record:
        """These layers in one: the answer, with the new one as its descriptor."""
        self.send(COPY, [(BYTES, size[0]), (ENTRIES, size[1])], layers, serial=7)
        answer = self.receive()
        assert answer.kind == COPIED and answer.error == error and answer.serial == 7, answer
        os.waitpid(-1, 0x40000000)
        return answer
