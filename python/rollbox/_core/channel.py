# SPDX-License-Identifier: Apache-2.0
"""Channel: the streams of one command of a server, as descriptors of this process.

A channel is a WebSocket connection (docs/reference/http-api.md has its messages). A thread moves
bytes between it and pipes, so that what uses a command's pipes need not know where the command
runs. Each side may send a window of bytes of a stream that the other has not taken yet.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import stat
import threading
import time
from typing import Any, Callable, Optional

from . import websocket
from .errors import EngineLost, RollboxError
from .result import Result

WINDOW = 256 << 10
_STEP = WINDOW // 4
_PIECE = 32 << 10


_PACKET_MAX = 72 << 10
"""Of a files agent, whose socket keeps the bounds of packets."""


def _is_packet_socket(fd: int) -> bool:
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return False
    sock = socket.socket(fileno=os.dup(fd))
    try:
        return sock.type == socket.SOCK_SEQPACKET
    finally:
        sock.close()


class _Out:
    """A stream of the server, and the descriptor that gets it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
        self.pending = bytearray()
        self.packets: list[int] = []  # lengths of those in `pending`
        self.has_packets = _is_packet_socket(fd)
        self.taken = 0
        self.ended = False
        os.set_blocking(fd, False)


class _In:
    """A descriptor, and how much of it may be sent."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.credit = WINDOW
        self.most = _PACKET_MAX if _is_packet_socket(fd) else 1
        os.set_blocking(fd, False)


def is_writer(fd: int) -> bool:
    """Whether a descriptor is open for writing alone."""
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY


class Channel:
    """One connection. Descriptors given to it are its own.

    Its thread keeps it, and `close` ends it: its owner calls that when nobody uses the streams any
    more.
    """

    def __init__(self, sock: socket.socket, begin: dict[str, Any]) -> None:
        self._sock = sock
        self._in: dict[int, _In] = {}
        self._out: dict[int, _Out] = {}
        self._received = bytearray()
        self._unsent = bytearray()
        self._lock = threading.Lock()
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._closed = False
        self.answer: Optional[dict[str, Any]] = None  # the message "started"
        self.result: Optional[dict[str, Any]] = None  # "result", or {"error": problem}
        self.ended = threading.Event()
        self.finished = threading.Event()  # no more bytes are moved
        self._callbacks: list[Callable[[], None]] = []
        self._send(websocket.TEXT, json.dumps(begin).encode("ascii"))

    # Before the thread starts

    def start(self, ins: dict[int, int], outs: dict[int, int]) -> dict[str, Any]:
        """Waits for the server's answer, then moves bytes; the answer is {"error"} if it refuses.

        Raises EngineLost.
        """
        try:
            return self.start_with(lambda _: (ins, outs))
        except BaseException:
            for fd in (*ins.values(), *outs.values()):
                os.close(fd)
            raise

    def start_with(
        self, streams: Callable[[dict[str, Any]], tuple[dict[int, int], dict[int, int]]]
    ) -> dict[str, Any]:
        """The same with streams that depend on the answer."""
        try:
            while self.answer is None and self.result is None and not self._closed:
                self._flush(True)
                if not self._process():
                    self._take(blocking=True)
        except OSError as problem:
            self._abort()
            raise EngineLost(f"the server has left: {problem}", stage="connect") from problem
        except BaseException:
            self._abort()
            raise
        if self.answer is None and self.result is None:
            self._abort()
            raise EngineLost("the server has closed the connection", stage="connect")
        self.run(*streams(self.answer or {"streams": {}}))
        return self.answer or self.result or {}

    def run(self, ins: dict[int, int], outs: dict[int, int]) -> None:
        """Starts the thread."""
        self._in = {number: _In(fd) for number, fd in ins.items()}
        self._out.update({number: _Out(fd) for number, fd in outs.items()})
        self._sock.setblocking(False)
        threading.Thread(target=self._main, name="rollbox-channel", daemon=True).start()

    def _abort(self) -> None:
        self._sock.close()
        os.close(self._wake)
        os.close(self._waker)
        self._waker = -1

    # Of any thread

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message of text."""
        self._send(websocket.TEXT, json.dumps(message).encode("ascii"))
        self._poke()

    def close(self) -> None:
        """Ends the connection. May be called twice."""
        self._closed = True
        self._poke()

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Calls callback() once, from any thread, when the result is there or the channel ends."""
        with self._lock:
            if not self.ended.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def _poke(self) -> None:
        with self._lock:
            if self._waker >= 0:
                with contextlib.suppress(BlockingIOError):
                    os.write(self._waker, b"\0")

    def _send(self, kind: int, data: bytes) -> None:
        with self._lock:
            self._unsent += websocket.frame(kind, data)

    # The thread

    def _main(self) -> None:
        try:
            self._process()
            while not self._closed:
                self._once()
        except (OSError, RollboxError, ValueError):
            pass  # without a result, the end of the command is unknown
        finally:
            self._finish()

    def _once(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        pending = getattr(self._sock, "pending", lambda: 0)()
        with self._lock:
            unsent = len(self._unsent)
        poll.register(self._sock, select.POLLIN | (select.POLLOUT if unsent else 0))
        by_fd: dict[int, int] = {}
        for number, one in self._in.items():
            if one.credit >= one.most and unsent < WINDOW:
                poll.register(one.fd, select.POLLIN)
                by_fd[one.fd] = number
        for number, out in self._out.items():
            if out.fd >= 0:
                poll.register(out.fd, select.POLLOUT if out.pending else 0)
                by_fd[out.fd] = number
        for fd, events in poll.poll(0 if pending else None):
            if fd == self._wake:
                os.read(self._wake, 4096)
            elif fd in by_fd and by_fd[fd] in self._in and self._in[by_fd[fd]].fd == fd:
                self._read_input(by_fd[fd])
            elif fd in by_fd:
                if events & select.POLLOUT:
                    self._write_out(by_fd[fd])
                else:
                    self._break_out(by_fd[fd])
            elif events & ~select.POLLOUT:
                pending = 1
        self._flush(False)
        if pending:
            self._take(blocking=False)
            self._process()

    def _flush(self, blocking: bool) -> None:
        while True:
            with self._lock:
                piece = bytes(self._unsent[:_PIECE])
            if not piece:
                return
            try:
                n = self._sock.send(piece)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as problem:
                if is_want(problem) and not blocking:
                    return
                raise
            with self._lock:
                del self._unsent[:n]

    def _take(self, blocking: bool) -> None:
        try:
            data = self._sock.recv(1 << 18)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as problem:
            if is_want(problem) and not blocking:
                return
            raise
        if not data:
            self._closed = True
        self._received += data

    def _process(self) -> bool:
        """Takes what was received, up to the message "started"; False: that needs more."""
        before = self.answer
        while self.answer is before:
            message = websocket.take_message(self._received)
            if message is None:
                return False
            kind, content = message
            if kind == websocket.BINARY and content:
                self._take_bytes(content[0], content[1:])
            elif kind == websocket.TEXT:
                self._take_text(json.loads(content))
            elif kind == websocket.PING:
                self._send(websocket.PONG, content)
            elif kind == websocket.CLOSE:
                self._closed = True
        return True

    def _take_bytes(self, number: int, data: bytes) -> None:
        out = self._out.get(number)
        if out is None:
            return
        if not data:
            out.ended = True
            if not out.pending:
                self._end_out(out)
        elif out.fd < 0:
            self._taken(number, out, len(data))
        else:
            out.pending += data
            if out.has_packets:
                out.packets.append(len(data))
            self._write_out(number)

    def _take_text(self, message: dict[str, Any]) -> None:
        if "started" in message:
            self.answer = message["started"]
        elif "credit" in message:
            number, n = message["credit"]
            if number in self._in:
                self._in[number].credit += n
        elif "broken" in message:
            for number in message["broken"]:
                self._end_in(number)
        elif "result" in message or "error" in message:
            self.result = message.get("result") or {"error": message["error"]}
            self._tell()

    def _tell(self) -> None:
        with self._lock:
            self.ended.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def _read_input(self, number: int) -> None:
        one = self._in[number]
        try:
            data = os.read(one.fd, max(one.most, min(_PIECE, one.credit)))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        one.credit -= len(data)
        self._send(websocket.BINARY, bytes([number]) + data)
        if not data:
            self._end_in(number)

    def _end_in(self, number: int) -> None:
        one = self._in.pop(number, None)
        if one is not None:
            os.close(one.fd)

    def _write_out(self, number: int) -> None:
        out = self._out[number]
        try:
            while out.pending:
                n = os.write(out.fd, out.pending[: out.packets[0] if out.packets else _PIECE])
                del out.pending[:n]
                if out.packets:
                    out.packets.pop(0)
                self._taken(number, out, n)
        except BlockingIOError:
            return
        except OSError:
            self._break_out(number)
            return
        if out.ended:
            self._end_out(out)

    def _break_out(self, number: int) -> None:
        """Nobody reads the stream here: the server need not send it."""
        out = self._out[number]
        self._end_out(out)
        if not out.ended:
            self._send(websocket.TEXT, json.dumps({"close": number}).encode("ascii"))

    @staticmethod
    def _end_out(out: _Out) -> None:
        if out.fd >= 0 and out.is_socket:
            with contextlib.suppress(OSError), socket.socket(fileno=out.fd) as sock:
                sock.shutdown(socket.SHUT_WR)
        elif out.fd >= 0:
            os.close(out.fd)
        out.fd = -1
        out.pending.clear()

    def _taken(self, number: int, out: _Out, n: int) -> None:
        out.taken += n
        if out.taken >= _STEP:
            self._send(websocket.TEXT, json.dumps({"credit": [number, out.taken]}).encode("ascii"))
            out.taken = 0

    def _finish(self) -> None:
        for number in list(self._in):
            self._end_in(number)
        # What has arrived is still written, as long as somebody reads it.
        for out in self._out.values():
            if out.fd >= 0 and out.pending and self.result is not None:
                os.set_blocking(out.fd, True)
                with contextlib.suppress(OSError):
                    while out.pending:
                        length = out.packets.pop(0) if out.packets else _PIECE
                        del out.pending[: os.write(out.fd, out.pending[:length])]
            self._end_out(out)
        with contextlib.suppress(OSError):
            self._sock.close()
        with self._lock:
            os.close(self._wake)
            os.close(self._waker)
            self._waker = -1
        self.finished.set()
        self._tell()


def is_want(problem: OSError) -> bool:
    """Whether a TLS socket only waits."""
    return type(problem).__name__ in ("SSLWantReadError", "SSLWantWriteError")


class RemoteConnection:
    """What callers of runs expect of a connection: a server's runs end on threads of their own."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.retired = False
        self.fd, self._writer = os.pipe()

    def use(self) -> bool:
        """Whether it can be used."""
        return not self.retired

    def release(self) -> None:
        """Nothing: uses are not counted."""

    def dispatch(self) -> bool:
        """Nothing: the threads that learn of an end report it."""
        return not self.retired

    def __del__(self) -> None:
        os.close(self.fd)
        os.close(self._writer)


class RemoteRun:
    """A DetachedRun of a server. Forgetting it closes the channel."""

    def __init__(
        self,
        connection: RemoteConnection,
        channel: Channel,
        make_result: Callable[[dict[str, Any]], Result[bytes]],
    ) -> None:
        self.connection = connection
        self._channel = channel
        self._make = make_result
        self._result: Optional[Result[bytes]] = None

    def when_ended(self, callback: Callable[[], None]) -> None:
        """As DetachedRun's."""
        self._channel.when_ended(callback)

    def abandon(self) -> None:
        """As DetachedRun's."""

    def wait(self, timeout_s: Optional[float]) -> Optional[Result[bytes]]:
        """As DetachedRun's."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while self._result is None:
            left = 0.1 if end is None else max(0.0, min(0.1, end - time.monotonic()))
            if self._channel.ended.wait(left):
                if self._channel.result is None:
                    raise EngineLost(
                        "the server was closed or lost, and the end of this command is unknown",
                        stage="result",
                    )
                self._result = self._make(self._channel.result)
            elif end is not None and time.monotonic() >= end:
                break
        return self._result

    def __del__(self) -> None:
        self._channel.close()


class RemotePending:
    """A PendingRun of a server: a request in a thread."""

    def __init__(
        self, connection: RemoteConnection, on_end: Callable[[Any], None], ask: Callable[..., Any]
    ) -> None:
        self.connection = connection
        self._on_end = on_end
        self._ask = ask
        self._outcome: Any = None
        self._sock: Optional[socket.socket] = None
        self._abandoned = False

    def use_socket(self, sock: Optional[socket.socket]) -> None:
        """The socket that waits for the answer."""
        self._sock = sock
        if self._abandoned:
            self._shut()

    def run(self) -> None:
        """Asks, in a thread of its own."""
        try:
            self._outcome = self._ask(self)
        except BaseException as problem:
            self._outcome = problem
        if not self._abandoned:
            self._on_end(self)

    def collect(self, text: bool = False, id: Any = None) -> Result[Any]:
        """As PendingRun's."""
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        result: Result[Any] = self._outcome(text, id)
        return result

    def abandon(self) -> None:
        """As PendingRun's: the server ends what nobody waits for."""
        self._abandoned = True
        self._shut()

    def _shut(self) -> None:
        sock = self._sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class Forwarder:
    """Listens here, and leads each connection to a port of a sandbox."""

    def __init__(self, listen: Optional[str], connect: Callable[[int], bool]) -> None:
        self.path: Optional[str] = None
        if listen is not None and listen.startswith("/"):
            self._sock = socket.socket(socket.AF_UNIX)
            self.path = listen
            self._sock.bind(listen)
            self.address = listen
        else:
            host, _, port = (listen or "0").rpartition(":")
            family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
            self._sock = socket.socket(family)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sock.bind((host.strip("[]") or "127.0.0.1", int(port)))
            self.address = f"{host or '127.0.0.1'}:{self._sock.getsockname()[1]}"
        self._sock.listen(128)
        threading.Thread(target=_accept, args=(self._sock, connect), daemon=True).start()

    @property
    def url(self) -> Optional[str]:
        """The address of a TCP listener as a URL."""
        return None if self.path else f"http://{self.address}"

    def close(self) -> None:
        """Stops listening."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        if self.path:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def _accept(sock: socket.socket, connect: Callable[[int], bool]) -> None:
    while True:
        try:
            accepted, _ = sock.accept()
        except OSError:
            return
        with contextlib.suppress(RollboxError, OSError):
            if not connect(accepted.detach()):
                return
