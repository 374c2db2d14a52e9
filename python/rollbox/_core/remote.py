# SPDX-License-Identifier: Apache-2.0
"""Remote: an engine behind `rollbox serve`, over HTTP.

A RemoteHandle has the calls of a Handle. It translates each function of the C library to a request,
so that the modules above need not know which kind they have. What the server does not offer yet
raises FeatureMissing, with the function's name.

A connection is kept for the next request of any thread, and only used again if the server has not
closed it. Requests that create something carry an Idempotency-Key and are repeated once if the
connection breaks. Runs and commands carry none, so that they end when this process does.
"""

from __future__ import annotations

import base64
import contextlib
import contextvars
import ctypes
import errno
import http.client
import json
import os
import select
import socket
import ssl
import threading
import time
import urllib.parse
import uuid
import weakref
from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

from . import errors, ffi, tracing, websocket
from .channel import Channel, Forwarder, RemoteConnection, RemotePending, RemoteRun, is_writer
from .connection import Connector
from .errors import EngineLost, FeatureMissing, InvalidArgument, RollboxError
from .handle import Handle
from .request import (
    NO_TURN,
    AttachRequest,
    ExecRequest,
    Request,
    SessionRequest,
    Turn,
    error_result,
)
from .result import OUTCOMES, Outcome, Result

_LEASE_S = 60
"""How long sandboxes outlive a program that was killed."""
_REFUSED_S = 30
"""How long a transfer is tried for which the sandbox has no room."""
_KILLED_MAX = 7
_SCHEMES = ("http://", "https://", "unix:")
# Codes of the server's own.
_CODES: dict[str, type[RollboxError]] = dict(
    quota_exceeded=errors.ResourceExhausted,
    draining=errors.ResourceExhausted,
    queue_full=errors.ResourceExhausted,
    queue_timeout=errors.ResourceExhausted,
    policy_forbidden=errors.PathDenied,
    scope_missing=errors.PathDenied,
    token_invalid=errors.PathDenied,
    idempotency_conflict=errors.Conflict,
    idempotency_expired=errors.NotFound,
    lease_expired=errors.NotFound,
    request_invalid=errors.InvalidArgument,
    too_large=errors.InvalidArgument,
)
_QUERIES = {
    ffi.QUERY_INSPECT: "",
    ffi.QUERY_PROCESSES: "/processes",
    ffi.QUERY_TREE: "/snapshots",
    ffi.QUERY_EXECS: "/execs",
    ffi.QUERY_STATS: "/stats",
    ffi.QUERY_NET_LOG: "/network-log",
}


def is_url(address: object) -> bool:
    """Whether this names a server and not an engine's socket."""
    return isinstance(address, str) and address.startswith(_SCHEMES)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        """Connects to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def _context(ca: Optional[str], certificate: Optional[tuple[str, Optional[str]]]) -> ssl.SSLContext:
    """TLS of a client: `ca` instead of the system's authorities."""
    try:
        context = ssl.create_default_context(cafile=ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if certificate is not None:
            context.load_cert_chain(*certificate)
    except OSError as problem:
        raise InvalidArgument(
            f"cannot use the certificates of the client: {problem}", stage="arguments"
        ) from problem
    return context


class Remote:
    """A server: its address, token and idle connections."""

    def __init__(
        self,
        url: str,
        token: Optional[str] = None,
        ca: Optional[str] = None,
        certificate: Optional[tuple[str, Optional[str]]] = None,
    ) -> None:
        self.url = url
        self._token = token
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._closed = False
        self._process = os.getpid()
        self._lease: Optional[str] = None
        self._stop = threading.Event()
        if not url.startswith("https:") and (ca or certificate):
            raise InvalidArgument(
                "ca and certificate are for an https:// address", stage="arguments"
            )
        self.connection = RemoteConnection()
        if url.startswith("unix:"):
            self._new: Callable[[], http.client.HTTPConnection] = lambda: _UnixConnection(url[5:])
            return
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname
        if not host or parts.path.strip("/") or parts.query or parts.username:
            raise InvalidArgument(
                f"the address of a server is http[s]://HOST[:PORT] or unix:PATH, not {url!r}",
                stage="arguments",
            )
        if parts.scheme == "https":
            context = _context(ca, certificate)
            self._new = lambda: http.client.HTTPSConnection(host, parts.port, context=context)
        else:
            self._new = lambda: http.client.HTTPConnection(host, parts.port or 7420)

    def lease(self) -> str:
        """The lease of this process's sandboxes, which ends with the process."""
        with self._lock:
            if self._lease is not None and self._process == os.getpid():
                return self._lease
        made: str = self.ask("POST", "/v1/leases", {"ttl_s": _LEASE_S}, repeatable=True)["id"]
        with self._lock:
            self._lease, self._stop = made, threading.Event()
        threading.Thread(
            target=_renew, args=(weakref.ref(self), made, self._stop), daemon=True
        ).start()
        return made

    def close(self) -> None:
        """Ends the sandboxes and closes the idle connections; later calls raise EngineLost."""
        lease, self._lease = self._lease, None
        self._stop.set()
        if lease is not None and self._process == os.getpid():
            with contextlib.suppress(RollboxError):
                self.ask("DELETE", f"/v1/leases/{lease}")
        self.connection.retired = True
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def after_fork(self) -> None:
        """Leaves the parent's connections and lease to it."""
        for connection in self._idle:
            if connection.sock is not None:
                os.close(connection.sock.detach())
        self._lock, self._idle, self._lease = threading.Lock(), [], None
        self._process, self._stop = os.getpid(), threading.Event()
        self.connection = RemoteConnection()

    def forget_lease(self, lease: str) -> None:
        """A lease has expired: the next sandbox gets another one."""
        with self._lock:
            if self._lease == lease:
                self._lease = None

    def _take(self) -> http.client.HTTPConnection:
        with self._lock:
            if self._closed:
                raise EngineLost("the engine is closed", stage="connect")
            if self._process != os.getpid():
                self._idle, self._process, self._lease = [], os.getpid(), None
            while self._idle:
                connection = self._idle.pop()
                # Readable while nothing was asked: the server has closed it.
                if connection.sock and not select.select([connection.sock], [], [], 0)[0]:
                    return connection
                connection.close()
        return self._new()

    def _give(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < 256:
                self._idle.append(connection)
                return
        connection.close()

    def _headers(self, **more: str) -> dict[str, str]:
        parent = tracing.current_parent()
        if self._token is not None:
            more["Authorization"] = f"Bearer {self._token}"
        if parent is not None:
            more["traceparent"] = parent
        return more

    def _once(
        self,
        method: str,
        path: str,
        body: Optional[bytes],
        headers: dict[str, str],
        pending: Optional[RemotePending] = None,
    ) -> tuple[int, str, bytes]:
        connection = self._take()
        try:
            connection.request(method, path, body, headers)
            if pending is not None:
                pending.use_socket(connection.sock)
            answer = connection.getresponse()
            content = answer.read()
        except BaseException:
            connection.close()  # the server ends what this request began
            raise
        if answer.will_close:
            connection.close()
        else:
            self._give(connection)
        return answer.status, answer.headers.get_content_type(), content

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        repeatable: bool = False,
        pending: Optional[RemotePending] = None,
    ) -> tuple[int, Any]:
        """One request: the status, and the answer's JSON or bytes.

        `repeatable`: the request is sent again if the connection breaks. Raises EngineLost.
        """
        headers = self._headers(Accept="application/json")
        if repeatable and method == "POST":
            headers["Idempotency-Key"] = uuid.uuid4().hex
        data = body if isinstance(body, bytes) else None
        if body is not None and data is None:
            data = json.dumps(body).encode("utf-8")
            headers["Content-Type"] = "application/json"
        for last in (not (repeatable or method in ("GET", "DELETE")), True):
            try:
                status, kind, content = self._once(method, path, data, headers, pending)
            except (OSError, http.client.HTTPException) as problem:
                if last:
                    why = str(problem) or type(problem).__name__
                    raise EngineLost(
                        f"the server {self.url} did not answer: {why}",
                        stage="connect",
                    ) from problem
                continue
            if kind.endswith("json") and content:
                return status, json.loads(content)
            return status, content
        raise AssertionError

    def ask(self, method: str, path: str, body: Any = None, *, repeatable: bool = False) -> Any:
        """One request whose problem is raised."""
        status, answer = self.request(method, path, body, repeatable=repeatable)
        if status >= 400:
            raise problem_error(answer, status)
        return answer

    def run(self, policy: str, request: Request, text: bool) -> Result[Any]:
        """Runs and waits for the end."""
        return _result(*self.request("POST", "/v1/runs", _run_body(policy, request)), text)

    def start(self, policy: str, request: Request, on_end: Callable[[Any], None]) -> RemotePending:
        """Starts a run that no thread of the caller's waits for."""
        return self.pending("POST", "/v1/runs", _run_body(policy, request), on_end)

    def pending(
        self, method: str, path: str, body: Any, on_end: Callable[[Any], None]
    ) -> RemotePending:
        """Asks for a result in a thread."""

        def ask(pending: RemotePending) -> Any:
            status, answer = self.request(method, path, body, pending=pending)
            while status == 202:
                status, answer = self.request(method, path, body, pending=pending)
            if status >= 400 and "result" not in answer:
                problem = problem_error(answer, status)
                return lambda text, id: error_result(problem, text, id)
            return lambda text, id: _result(status, answer, text, id)

        pending = RemotePending(self.connection, on_end, ask)
        thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(pending.run,),
            name="rollbox-request",
            daemon=True,
        )
        thread.start()
        return pending

    def download(self, path: str, write: Callable[[bytes], Any]) -> None:
        """Writes an answer as it comes. Raises EngineLost if it does not come whole."""
        headers = self._headers()
        connection = self._take()
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            if answer.status >= 400:
                raise problem_error(json.loads(answer.read()), answer.status)
            while True:
                piece = answer.read(1 << 18)
                if not piece:
                    return
                write(piece)
        except (OSError, http.client.HTTPException) as problem:
            if isinstance(problem, OSError) and problem.filename is not None:
                raise
            raise EngineLost(
                f"the server {self.url} did not send all: {problem}", stage="connect"
            ) from problem
        finally:
            connection.close()

    def open_channel(self, path: str, begin: dict[str, Any]) -> Channel:
        """A WebSocket connection whose first message is `begin`. Raises EngineLost."""
        with self._lock:
            if self._closed:
                raise EngineLost("the engine is closed", stage="connect")
        key = websocket.new_key()
        headers = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": "rollbox.v1",
            **self._headers(),
        }
        connection = self._new()
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            if answer.status != 101:
                content = answer.read()
                is_json = answer.headers.get_content_type().endswith("json")
                raise problem_error(json.loads(content) if is_json else {}, answer.status)
            if not websocket.is_accepted(key, answer.headers.get("Sec-WebSocket-Accept")):
                raise errors.ProtocolError("the server speaks no WebSocket", stage="connect")
            sock, connection.sock = connection.sock, None
            answer.close()
            return Channel(sock, begin)
        except (OSError, http.client.HTTPException) as problem:
            raise EngineLost(
                f"the server {self.url} did not answer: {problem}", stage="connect"
            ) from problem
        finally:
            connection.close()


def _renew(remote: weakref.ref[Remote], lease: str, stop: threading.Event) -> None:
    """Renews a lease until its Remote is closed or collected, or the lease has expired."""
    while not stop.wait(_LEASE_S / 4):
        one = remote()
        if one is None:
            return
        try:
            one.ask("PUT", f"/v1/leases/{lease}")
        except errors.NotFound:
            one.forget_lease(lease)
            return
        except RollboxError:
            pass  # the server may be back in time
        del one


def problem_error(answer: Any, status: int) -> RollboxError:
    """The exception for a problem of the server."""
    problem = answer if isinstance(answer, dict) else {}
    code = problem.get("code", "")
    cls = ffi.exception_class(code) or _CODES.get(code, errors.InternalError)
    return cls(
        problem.get("detail") or f"the server answered with status {status}",
        stage=problem.get("stage", "request"),
        errno=problem.get("errno") or None,
    )


def _result(status: int, answer: Any, text: bool, id: Any = None) -> Result[Any]:
    row = answer.get("result") if isinstance(answer, dict) and status >= 400 else answer
    if not isinstance(row, dict) or "outcome" not in row:
        raise problem_error(answer, status)
    streams: list[Any] = [
        base64.b64decode(row[name + "_base64"])
        if name + "_base64" in row
        else row[name].encode("utf-8")
        for name in ("stdout", "stderr")
    ]
    if text:
        streams = [stream.decode("utf-8", "replace") for stream in streams]
    outcome = Outcome(row["outcome"])
    return Result(
        outcome=outcome,
        exit_code=row["exit_code"],
        signal=row["signal"],
        stdout=streams[0],
        stderr=streams[1],
        stdout_truncated=row["stdout_truncated"],
        stderr_truncated=row["stderr_truncated"],
        wall_ms=row["wall_ms"],
        cpu_ms=row["cpu_ms"],
        peak_memory_bytes=row["peak_memory_bytes"],
        processes_peak=row["processes_peak"],
        isolation=row["isolation"] or {},
        error=problem_error(answer, status) if outcome is Outcome.ERROR else None,
        id=id,
        network=row.get("network"),
        queue_ms=row.get("queue_ms"),
    )


def _channel_result(message: dict[str, Any]) -> Result[bytes]:
    """Of a channel's last message."""
    problem = message.get("error")
    return _result(200, message, False) if problem is None else _error_result(problem)


def _error_result(problem: dict[str, Any]) -> Result[bytes]:
    if "result" in problem:
        return _result(problem.get("status", 500), problem, False)
    return error_result(problem_error(problem, problem.get("status", 500)))


# ---- from the C library's structures ----


def _text(what: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"{what} is not UTF-8, which a server's JSON needs: {raw!r}", stage="arguments"
        ) from None


def _strings(pointer: Any) -> list[bytes]:
    found: list[bytes] = []
    while pointer and pointer[len(found)] is not None:
        found.append(pointer[len(found)])
    return found


def _bytes_at(structure: Any, field: str, length: int) -> bytes:
    """A char pointer's bytes; ctypes itself would end them at the first NUL."""
    place = ctypes.addressof(structure) + getattr(type(structure), field).offset
    address = ctypes.c_void_p.from_address(place).value
    return ctypes.string_at(address, length) if address and length else b""


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _command(options: Union[ffi.RunOptions, ffi.ExecOptions]) -> dict[str, Any]:
    """The body of a command."""
    argv = [_text("an argument", one) for one in _strings(options.argv)]
    body: dict[str, Any] = {"argv": argv}
    if isinstance(options, ffi.RunOptions) and options.is_code and len(argv) == 3:
        body = {"code": argv[2]}
    if tracing.is_inside():
        body["trace"] = True
    if options.env:
        pairs = [_text("a variable", one).split("=", 1) for one in _strings(options.env)]
        body["env"] = dict(pairs)
    if options.cwd:
        body["cwd"] = _text("cwd", options.cwd)
    if options.stdin_length:
        body["stdin_base64"] = _encoded(_bytes_at(options, "stdin_data", options.stdin_length))
    if options.n_files:
        files = [options.files[i] for i in range(options.n_files)]
        body["files"] = {
            _text("a path", one.path): {"base64": _encoded(_bytes_at(one, "data", one.length))}
            for one in files
        }
    if options.timeout_ms > 0:
        body["timeout_ms"] = options.timeout_ms
    elif options.timeout_ms != -1:
        body["timeout_ms"] = None
    if options.output_limit >= 0:
        body["output_limit"] = options.output_limit
    return body


def _state(argument: Any) -> dict[str, Any]:
    """What a struct rollbox_state_options, passed by reference, says."""
    options = getattr(argument, "_obj", argument)
    return {"processes": "drop" if options.processes == ffi.PROCESSES["drop"] else "keep"}


def _named(key: str, name: Optional[bytes]) -> dict[str, str]:
    return {} if name is None else {key: name.decode("ascii")}


class RemoteHandle(Handle):
    """A sandbox of a server."""

    def __init__(self, remote: Remote, name: str, ours: bool) -> None:  # not Handle's: no C handle
        self.remote = remote
        self.ours = ours
        self.process = os.getpid()
        self.name = name
        self._closed = False
        self._address = None
        self.recording = None
        self.processes = weakref.WeakValueDictionary()
        self._ports: dict[int, Forwarder] = {}
        self._records: list[Channel] = []
        self._path = "/v1/sandboxes/" + urllib.parse.quote(name, safe="")

    @classmethod
    def make(
        cls, remote: Remote, policy: str, options: ffi.SandboxOptions, turn: Turn = NO_TURN
    ) -> RemoteHandle:
        """Makes a sandbox under a policy."""
        body: dict[str, Any] = {"policy": json.loads(policy), **_named("name", options.name)}
        body.update(turn.body())
        if tracing.current_labels():
            body["labels"] = tracing.current_labels()
        if options.detached:
            body["detached"] = True
        else:
            body["lease"] = remote.lease()
        for key in ("idle", "ttl", "lifetime", "hibernate"):
            milliseconds = getattr(options, key + "_ms")
            if milliseconds:
                body[key + "_s"] = -(-milliseconds // 1000)
        if options.auto_snapshots:
            body["auto_snapshots"] = options.auto_snapshots
        made = remote.ask("POST", "/v1/sandboxes", body, repeatable=True)
        return cls(remote, made["name"], not options.detached)

    @classmethod
    def find(cls, remote: Remote, name: str) -> RemoteHandle:
        """A sandbox that exists. Raises NotFound."""
        found = cls(remote, name, False)
        found._ask("GET", "")
        return found

    def _check(self) -> None:
        if self.process != os.getpid():
            raise EngineLost(
                f"sandbox {self.name} belongs to the process that this one was forked from; open "
                "one of your own",
                stage="connect",
            )
        if self._closed:
            raise errors.NotFound(f"sandbox {self.name} is closed", stage="arguments")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        self._check()
        return self.remote.ask(method, self._path + path, body, repeatable=True)

    def json(self, function: str, *arguments: Any) -> Any:
        """The request for a function of the C library; its JSON."""
        translate = _TRANSLATIONS.get(function)
        if translate is None:
            raise FeatureMissing(
                f"{function.replace('rollbox_', '')} is not offered by a server yet; use an engine "
                "of this machine",
                stage="arguments",
            )
        return translate(self, *arguments)

    def call(self, function: str, *arguments: Any) -> None:
        """The same for a function without an answer."""
        self.json(function, *arguments)

    def read_file(self, path: bytes, most: int) -> bytes:
        """The content of a file."""
        data: bytes = self._ask("GET", _file(path))
        if most and len(data) > most:
            raise InvalidArgument(
                f"{path!r} has {len(data)} bytes, more than {most}", stage="files", errno=27
            )
        return data

    def fork(self, snapshot: Optional[bytes], n: int, options: ffi.StateOptions) -> list[Handle]:
        """Makes n sandboxes in the state of a snapshot."""
        body = {"n": n, "same_seed": bool(options.same_seed), **_state(options)}
        made = self._ask("POST", "/fork", {**body, **_named("snapshot", snapshot)})
        forks = [RemoteHandle(self.remote, name, True) for name in made["sandboxes"]]
        for fork in forks:
            fork.processes = self.processes
        return list(forks)

    @staticmethod
    def fork_group(  # type: ignore[override]
        remote: Remote, handles: Sequence[Handle], n: int, same_seed: bool
    ) -> list[list[Handle]]:
        """Makes n sandboxes in the present state of each, at one moment."""
        names = []
        for handle in handles:
            if not isinstance(handle, RemoteHandle) or handle.remote is not remote:
                raise InvalidArgument("the sandboxes are not all of this server", stage="arguments")
            handle._check()
            names.append(handle.name)
        body = {"sandboxes": names, "n": n, "same_seed": same_seed}
        made = remote.ask("POST", "/v1/forks", body, repeatable=True)
        forks: list[list[Handle]] = []
        for handle, copies in zip(handles, made["sandboxes"]):
            forks.append([RemoteHandle(remote, name, True) for name in copies])
            for fork in forks[-1]:
                fork.processes = handle.processes
        return forks

    def _request_of(self, request: ExecRequest) -> tuple[str, str, dict[str, Any]]:
        """The method, path and body of a command without streams."""
        self._check()
        options = request.options
        method, path = "POST", self._path + "/execs"
        if options.operation_id:
            method = "PUT"
            path += "/" + urllib.parse.quote_from_bytes(options.operation_id, safe="")
        return method, path, _exec_body(options)

    def finish(self, request: SessionRequest, text: bool) -> Result[Any]:
        """Runs a command and waits for its end. The result may have outcome "error"."""
        if not isinstance(request, ExecRequest) or _has_streams(request.options):
            result: Optional[Result[Any]] = self.start(request).wait(None)
            assert result is not None
            return result
        return _result(*self.remote.request(*self._request_of(request)), text)

    def begin(self, request: SessionRequest, on_end: Callable[[Any], None]) -> Any:
        """Starts a command that no thread of the caller's waits for."""
        if isinstance(request, ExecRequest):
            return self.remote.pending(*self._request_of(request), on_end)
        id = request.options.operation_id or b""
        path = f"{self._path}/execs/{urllib.parse.quote_from_bytes(id, safe='')}?wait=3600"
        return self.remote.pending("GET", path, None, on_end)

    def start(self, request: SessionRequest) -> Any:
        """Starts a command, or attaches to one, with its streams."""
        options = request.options
        ins: dict[int, int] = {}
        outs: dict[int, int] = {}
        if options.input_fd >= 0:
            ins[0] = options.input_fd
        outs.update({1 + i: fd for i, fd in enumerate(options.stream_fds) if fd >= 0})
        body: dict[str, Any]
        if isinstance(options, ffi.ExecOptions):
            body = _exec_body(options)
            extra = [options.extra_fds[i] for i in range(options.n_extra_fds)]
            if extra:
                body["descriptors"] = ["out" if is_writer(fd) else "in" for fd in extra]
            for number, fd in enumerate(extra, 3):
                (outs if is_writer(fd) else ins)[number] = fd
            if options.terminal:
                size = options.terminal.contents
                body["tty"] = {"rows": size.rows, "columns": size.columns}
            body.update({name: True for name in ("detached", "no_trace") if getattr(options, name)})
        else:
            body = {}
        body["streams"] = [number for number in (*ins, *outs) if number < 3]
        if options.operation_id:
            body["id"] = _text("an id", options.operation_id)
        kind = "attach" if isinstance(request, AttachRequest) else "start"
        channel = self._open_channel({kind: body})
        answer = channel.start(
            {number: os.dup(fd) for number, fd in ins.items()},
            {number: os.dup(fd) for number, fd in outs.items()},
        )
        if "error" in answer:
            problem = answer["error"]
            if "result" not in problem:
                raise problem_error(problem, problem.get("status", 500))
        return RemoteRun(self.remote.connection, channel, _channel_result)

    def _open_channel(self, begin: dict[str, Any]) -> Channel:
        self._check()
        return self.remote.open_channel(self._path + "/channel", begin)

    def claim(self, id: str, *slots: int) -> list[int]:
        """The other ends of a restored command's pipes; the caller closes them."""
        channel = self._open_channel({"claim": {"id": id, "streams": list(slots)}})
        found = {}

        def pipes(answer: dict[str, Any]) -> tuple[dict[int, int], dict[int, int]]:
            ins, outs = {}, {}
            for text, direction in answer["streams"].items():
                reader, writer = os.pipe()
                number = int(text)
                if direction == "in":
                    ins[number], found[number] = reader, writer
                else:
                    outs[number], found[number] = writer, reader
            return ins, outs

        answer = channel.start_with(pipes)
        if "error" in answer:
            raise problem_error(answer["error"], answer["error"].get("status", 500))
        return [found.get(slot, -1) for slot in slots]

    def connect(self, port: int) -> int:
        """A socket that leads to a port of the sandbox."""
        here, there = socket.socketpair()
        try:
            self.forward(port, there.detach())
        except BaseException:
            here.close()
            raise
        return here.detach()

    def forward(self, port: int, take_fd: int) -> None:
        """Leads a socket to a port of the sandbox."""
        try:
            channel = self._open_channel({"connect": port})
        except BaseException:
            os.close(take_fd)
            raise
        answer = channel.start({0: take_fd}, {1: os.dup(take_fd)})
        if "error" in answer:
            raise problem_error(answer["error"], answer["error"].get("status", 500))

    def publish(self, port: int, listen: Optional[bytes]) -> dict[str, Any]:
        """Listens on this machine for a port of the sandbox."""
        if port and (port not in self._ports or listen is not None):
            try:
                made = Forwarder(
                    None if listen is None else os.fsdecode(listen), _Forward(self, port)
                )
            except (OSError, ValueError) as problem:
                raise errors.Conflict(
                    f"cannot listen for port {port}: {problem}", stage="publish"
                ) from problem
            old, self._ports[port] = self._ports.get(port), made
            if old is not None:
                old.close()
        rows = [
            {"port": one, "address": there.address, "url": there.url}
            for one, there in sorted(self._ports.items())
        ]
        return {"ports": rows}

    def start_record(self, options: ffi.RecordOptions) -> dict[str, Any]:
        """Has the trajectory written to the options' descriptor."""
        body: dict[str, Any] = {
            key: getattr(options, key)
            for key in ("stream_bytes", "file_bytes", "env_values", "files", "changes", "as_parent")
            if getattr(options, key)
        }
        for key in ("redact_names", "redact_patterns"):
            words = _strings(getattr(options, key))
            if words:
                body[key] = [_text(key, word) for word in words]
        channel = self._open_channel({"record": body})
        answer = channel.start({}, {1: os.dup(options.fd)})
        if "error" in answer:
            raise problem_error(answer["error"], answer["error"].get("status", 500))
        self._records.append(channel)
        return {"id": answer["id"]}

    def transfer(self, function: str, source: bytes, target: bytes, *more: Any) -> None:
        """An upload or download of the C library, whose agent is at the end of a channel."""
        end = time.monotonic() + _REFUSED_S
        killed = 0
        while True:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            fd = theirs.detach()
            try:
                channel = self._open_channel({"agent": {"alone": killed > 0}})
                answer = channel.start({0: fd}, {1: os.dup(fd)})
                fd = -1
            finally:
                if fd >= 0:
                    os.close(fd)
            if "error" in answer:
                raise problem_error(answer["error"], answer["error"].get("status", 500))
            error = ffi.Error()
            try:
                if (
                    getattr(ffi.lib(), function)(
                        ours.detach(), source, target, *more, ctypes.byref(error)
                    )
                    >= 0
                ):
                    return
            finally:
                channel.close()
            problem = channel.result
            if problem is not None and "error" in problem:
                raised = problem_error(problem["error"], problem["error"].get("status", 500))
            else:
                raised = ffi.exception(error)
            if isinstance(raised, errors.GuestInterfered) and killed < _KILLED_MAX:
                killed += 1
            elif raised.errno != errno.EUSERS or time.monotonic() > end:
                raise raised

    def close(self) -> None:
        """Ends the sandbox; nothing the second time, and when the server is gone."""
        if self._closed or self.process != os.getpid():
            return
        self._closed = True
        for one in self._ports.values():
            one.close()
        answer: Any = None
        with contextlib.suppress(errors.NotFound):
            try:
                answer = self.remote.ask("DELETE", self._path)
            except EngineLost:
                answer = {}
        for channel in self._records:
            channel.finished.wait(_REFUSED_S)
        if self.recording is not None:
            self.recording.end(answer if isinstance(answer, dict) else None)

    def leave(self) -> None:
        """Lets go of the sandbox without ending it."""
        self._closed = True

    def __del__(self) -> None:
        if getattr(self, "ours", False) and not getattr(self, "_closed", True):
            with contextlib.suppress(RollboxError):
                self.close()


class _Forward:
    """What a Forwarder calls, as long as the sandbox is in use."""

    def __init__(self, handle: RemoteHandle, port: int) -> None:
        self._handle = weakref.ref(handle)
        self._port = port

    def __call__(self, take_fd: int) -> bool:
        handle = self._handle()
        if handle is None:
            os.close(take_fd)
            return False
        handle.forward(self._port, take_fd)
        return True


def _has_streams(options: ffi.ExecOptions) -> bool:
    return bool(
        options.terminal
        or options.n_extra_fds
        or options.input_fd >= 0
        or any(fd >= 0 for fd in options.stream_fds)
        or options.detached
        or options.no_trace
    )


def _run_body(policy: str, request: Request) -> dict[str, Any]:
    body = _command(request.options)
    body["policy"] = json.loads(policy)
    body.update(request.turn.body())
    if tracing.current_labels():
        body["labels"] = tracing.current_labels()
    return body


def _exec_body(options: ffi.ExecOptions) -> dict[str, Any]:
    body = _command(options)
    if options.user:
        body["user"] = _text("user", options.user)
    return body


def _connect(handle: RemoteHandle, port: Any, descriptor: Any) -> Any:
    descriptor._obj.value = handle.connect(port.value)
    return {}


def _publish(handle: RemoteHandle, port: Any, listen: Optional[bytes]) -> Any:
    return handle.publish(getattr(port, "value", port), listen)


def _note_shell(handle: RemoteHandle, reference: Any) -> Any:
    note = reference._obj
    row = {
        "id": (note.operation_id or b"").decode("utf-8", "replace"),
        "outcome": OUTCOMES[note.outcome].value,
        **{
            key: _encoded(_bytes_at(note, field, length))
            for key, field, length in (
                ("command", "command", note.command_length),
                ("stdout", "stdout_data", note.stdout_length),
                ("stderr", "stderr_data", note.stderr_length),
            )
        },
    }
    for key in ("timeout_ms", "output_limit", "exit_code", "signal", "wall_ms"):
        row[key] = getattr(note, key)
    for key in ("stdout_truncated", "stderr_truncated", "ended"):
        row[key] = bool(getattr(note, key))
    return handle._ask("POST", "/notes", {"shell": row})


def _export(handle: RemoteHandle, snapshot: Optional[bytes], path: bytes, live: bool) -> Any:
    query = {**_named("snapshot", snapshot), **({"live": "1"} if live else {})}
    with contextlib.ExitStack() as stack:
        beside = path
        if not os.path.exists(path) or os.path.isfile(path):
            beside = b"%s.rollbox-%d" % (path, os.getpid())
        try:
            file = stack.enter_context(open(beside, "wb"))
        except OSError as problem:
            raise errors.IOFailed(f"cannot write {path!r}: {problem}", stage="arguments") from None
        try:
            handle.remote.download(
                handle._path + "/export?" + urllib.parse.urlencode(query), file.write
            )
            file.flush()
            if beside != path:
                os.fsync(file.fileno())
                os.rename(beside, path)
        except BaseException:
            if beside != path:
                os.unlink(beside)
            raise
    return {}


def _commit(handle: RemoteHandle, path: Optional[bytes], force: bool) -> Any:
    body = {} if path is None else {"path": _text("path", path)}
    return handle._ask("POST", "/commit", {**body, "force": bool(force)})


def _tally(handle: RemoteHandle, id: bytes) -> Any:
    return handle._ask("GET", f"/execs/{urllib.parse.quote_from_bytes(id, safe='')}/network")


def _resize(handle: RemoteHandle, id: bytes, size: Any) -> Any:
    path = "/execs/" + urllib.parse.quote_from_bytes(id, safe="") + "/resize"
    terminal = size._obj
    return handle._ask("POST", path, {"rows": terminal.rows, "columns": terminal.columns})


def _file(path: bytes, query: str = "") -> str:
    if not path.startswith(b"/"):
        raise InvalidArgument(f"the path is not absolute: {path!r}", stage="files", errno=22)
    return "/files/" + urllib.parse.quote_from_bytes(path.lstrip(b"/") or b".", safe="/") + query


def _write(handle: RemoteHandle, path: bytes, data: bytes, length: int, mode: int) -> Any:
    return handle._ask("PUT", _file(path, f"?mode={mode:o}"), bytes(data[:length]))


def _write_as(
    handle: RemoteHandle, path: bytes, data: bytes, length: int, options: ffi.FileOptions
) -> Any:
    query = {"mode": f"{options.mode:o}", **_named("user", options.user)}
    query.update(_named("owner", options.owner))
    place = _file(path, "?" + urllib.parse.urlencode(query))
    return handle._ask("PUT", place, bytes(data[:length]))


def _diff(handle: RemoteHandle, start: Optional[bytes], end: Optional[bytes], text: bool) -> Any:
    query = {**_named("from", start), **_named("to", end), **({"text": "1"} if text else {})}
    return handle._ask("GET", "/diff?" + urllib.parse.urlencode(query))


def _snapshot_path(snapshot: Optional[bytes]) -> str:
    if snapshot is None:
        raise FeatureMissing("name the snapshot: a server does not guess", stage="arguments")
    return "/snapshots/" + snapshot.decode("ascii")


def _signal(handle: RemoteHandle, id: Optional[bytes], number: int, scope: int) -> Any:
    scopes = {value: name for name, value in ffi.SCOPES.items()}
    path = "" if id is None else "/execs/" + urllib.parse.quote_from_bytes(id, safe="")
    path += "/signal"
    return handle._ask("POST", path, {"signal": number, "scope": scopes[scope]})


_TRANSLATIONS: dict[str, Callable[..., Any]] = {
    "rollbox_commit": _commit,
    "rollbox_connect": _connect,
    "rollbox_download": lambda handle, *arguments: handle.transfer(
        "rollbox_agent_download", *arguments
    ),
    "rollbox_export": lambda handle, snapshot, path: _export(handle, snapshot, path, False),
    "rollbox_export_live": lambda handle, snapshot, path: _export(handle, snapshot, path, True),
    "rollbox_net_set": lambda handle, policy: handle._ask("POST", "/network", json.loads(policy)),
    "rollbox_net_tally": _tally,
    "rollbox_note": lambda handle, note: handle._ask("POST", "/notes", {"note": json.loads(note)}),
    "rollbox_note_shell": _note_shell,
    "rollbox_record": lambda handle, options: handle.start_record(options._obj),
    "rollbox_upload": lambda handle, *arguments: handle.transfer(
        "rollbox_agent_upload", *arguments
    ),
    "rollbox_publish": _publish,
    "rollbox_resize": _resize,
    "rollbox_sandbox_query": lambda handle, query, *_: handle._ask("GET", _QUERIES[query]),
    "rollbox_pause": lambda handle: handle._ask("POST", "/pause"),
    "rollbox_resume": lambda handle: handle._ask("POST", "/resume"),
    "rollbox_hibernate": lambda handle, state: handle._ask("POST", "/hibernate", _state(state)),
    "rollbox_wake": lambda handle, state: handle._ask("POST", "/wake", _state(state)),
    "rollbox_snapshot": lambda handle, name, state: handle._ask(
        "POST", "/snapshots", {**_named("name", name), **_state(state)}
    ),
    "rollbox_reset": lambda handle, snapshot, state: handle._ask(
        "POST", "/reset", {**_named("snapshot", snapshot), **_state(state)}
    ),
    "rollbox_snapshot_drop": lambda handle, snapshot: handle._ask(
        "DELETE", _snapshot_path(snapshot)
    ),
    "rollbox_snapshot_show": lambda handle, snapshot: handle._ask("GET", _snapshot_path(snapshot)),
    "rollbox_snapshot_verify": lambda handle, snapshot: handle._ask(
        "GET", _snapshot_path(snapshot) + "?verify=1"
    ),
    "rollbox_diff": _diff,
    "rollbox_signal": _signal,
    "rollbox_file_write": _write,
    "rollbox_file_write_as": _write_as,
    "rollbox_file_list": lambda handle, path: handle._ask("GET", _file(path, "?list=1")),
    "rollbox_file_stat": lambda handle, path, follow: handle._ask(
        "GET", _file(path, "?stat=1" + ("" if follow else "&follow=0"))
    ),
    "rollbox_file_mkdir": lambda handle, path, mode: handle._ask(
        "PUT", _file(path, f"?mkdir=1&mode={mode:o}")
    ),
    "rollbox_file_remove": lambda handle, path, recursive: handle._ask(
        "DELETE", _file(path, "?recursive=1" if recursive else "")
    ),
}


def create_handle(
    remote: Optional[Remote],
    engine: Connector,
    policy: str,
    options: ffi.SandboxOptions,
    turn: Turn = NO_TURN,
) -> Handle:
    """A new sandbox, on a server or on an engine of this machine."""
    if remote is not None:
        return RemoteHandle.make(remote, policy, options, turn)
    turn.refuse_timeout()
    return Handle.create(engine, policy, options)


def open_handle(remote: Optional[Remote], engine: Connector, name: str) -> Handle:
    """A sandbox that exists, likewise."""
    if remote is not None:
        return RemoteHandle.find(remote, name)
    return Handle.open(engine, name.encode("utf-8", "surrogateescape"))
