# SPDX-License-Identifier: Apache-2.0
"""Session: the calls of a sandbox that lives.

The sandbox is made on entering the `with`, or by the first of these calls; `close` or leaving the `with` ends it. All state is the
engine's: an object here is a handle (one sandbox, by name), the name of the shell that strings are for, and nothing else. A fork is
an object of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import threading
import weakref
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Optional,
    TypeVar,
    Union,
    overload,
)

from ._core import ffi
from ._core.errors import CommandNotFound, InvalidArgument, NotFound
from ._core.handle import Handle
from ._core.hints import no_attribute
from ._core.options import (
    AutoSnapshot,
    Path,
    PolicyLike,
    Processes,
    RecordLike,
    as_policy,
    auto_snapshot_count,
    duration_ms,
    one_input,
    size_in_bytes,
    state_options,
)
from ._core.policy import Policy
from ._core.record import Record
from ._core.request import RUN_TIMEOUT_S, Argv, Data, Environment, ExecRequest, Files, Timeout
from ._core.result import Result
from ._engine import Engine, default_engine
from ._files import SessionFiles, decode_name
from ._process import Process, Pty, Stream, finish_result
from ._shell import Shell
from ._snapshots import (
    Change,
    Node,
    Snapshot,
    SnapshotLike,
    Tree,
    from_row,
    parents_first,
    snapshot_id,
)

User = Union[str, int]
_Made = TypeVar("_Made", bound="Session")

_DEFAULT_OUTPUT = 10 << 20


class Session(SessionFiles):
    """The part of Sandbox that is about sessions."""

    def __init__(
        self,
        policy: PolicyLike = None,
        *,
        engine: Optional[Engine] = None,
        name: Optional[str] = None,
        detached: bool = False,
        idle: Optional[float] = None,
        ttl: Optional[float] = None,
        max_lifetime: Optional[float] = None,
        hibernate_after: Optional[float] = None,
        auto_snapshot: AutoSnapshot = None,
        auto_keep: Optional[int] = None,
        record: RecordLike = None,
    ) -> None:
        self._policy = as_policy(policy)
        self._engine = engine
        self._record = Record.of(record)
        self._plan: dict[str, Any] = {
            "name": name,
            "detached": bool(detached),
            "idle_ms": duration_ms("idle", idle),
            "ttl_ms": duration_ms("ttl", ttl),
            "lifetime_ms": duration_ms("max_lifetime", max_lifetime),
            "hibernate_ms": duration_ms("hibernate_after", hibernate_after),
            "auto_snapshots": auto_snapshot_count(auto_snapshot, auto_keep),
        }
        if name is not None and not isinstance(name, str):
            raise InvalidArgument(f"name must be a str, not {name!r}", stage="arguments")
        self._recorded: Optional[dict[str, Any]] = None
        self._handle: Optional[Handle] = None
        self._ended = False
        self._shell: Optional[str] = None
        self._first: Optional[str] = None  # the snapshot that was taken first
        self._opening = threading.Lock()
        _sessions.add(self)

    # What it is made with

    @property
    def policy(self) -> Policy:
        """The policy of every run and of the session."""
        return self._policy

    def _run_timeout(self, timeout: Timeout) -> Timeout:
        """That of a run which is a command of a session, for those have no default."""
        if timeout is not None:
            return timeout
        return self._policy.timeout if self._policy.timeout is not None else RUN_TIMEOUT_S

    def _get_engine(self) -> Engine:
        return self._engine if self._engine is not None else default_engine()

    def _create_handle(self) -> Handle:
        """A new sandbox of this policy on the engine."""
        name = self._plan["name"]
        options = ffi.SandboxOptions(
            size=ctypes.sizeof(ffi.SandboxOptions),
            **{**self._plan, "name": None if name is None else name.encode("utf-8", "replace")},
        )
        return Handle.create(self._get_engine(), self._policy.to_json(), options)

    def _create(self) -> Handle:
        handle = self._create_handle()
        if self._record is not None:
            handle.record(self._record)
        return handle

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._policy!r})"

    if not TYPE_CHECKING:  # type checkers would take it for leave to use any name

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name)

    def __reduce__(self) -> Any:
        self._refuse_pickling(type(self).__name__)
        return _rebuild, (type(self), self._policy, self._plan)

    def _refuse_pickling(self, kind: str) -> None:
        """Raises TypeError where another process could not use the copy."""
        if self._engine is not None:
            raise TypeError(f"a {kind} with an engine of its own cannot be pickled")
        if self._record is not None:
            raise TypeError(
                f"a {kind} that is recorded cannot be pickled: each process records to a file of "
                "its own"
            )
        if self._in_session():
            raise TypeError(
                f"a {kind} with an open session cannot be pickled; send its name, and open that on "
                "a shared engine"
            )

    # Its life

    @classmethod
    def open(cls: type[_Made], name: str, *, engine: Optional[Engine] = None) -> _Made:
        """A session that exists, by its name; of a shared engine, other processes' too. Leaving its `with` does not end it; `close`
        does. Raises NotFound."""
        engine = engine if engine is not None else default_engine()
        if not isinstance(name, str) or not name or "\0" in name:
            raise InvalidArgument(f"name must be a str, not {name!r}", stage="arguments")
        handle = Handle.open(engine, name.encode("utf-8", "surrogateescape"))
        policy = handle.json("rollbox_sandbox_query", ffi.QUERY_INSPECT).get("policy")
        made = cls(Policy().replace(**policy) if isinstance(policy, dict) else None, engine=engine)
        made._handle = handle
        return made

    def _session(self) -> Handle:
        """The session's handle; makes the sandbox if there is none yet. (For this package.)"""
        handle = self._handle
        if handle is None:
            with self._opening:
                if self._handle is None:
                    if self._ended:
                        raise NotFound(
                            "the session is closed; `with` opens another", stage="arguments"
                        )
                    self._handle = self._create()
                    self._note_recording(self._handle)
                handle = self._handle
        return handle

    def _note_recording(self, handle: Handle) -> None:
        self._recorded = handle.recording.state if handle.recording is not None else None

    @property
    def recorded(self) -> Optional[dict[str, Any]]:
        """What is known here of this session's trajectory: its `id`; after `close` also `steps`, how many of them were `written`, whether it is `complete` (None if the
        session had ended before: its last line tells), and the `error` if it is not. None: it is not recorded (from here). While it is open, inspect()["record"] tells."""
        return None if self._recorded is None else dict(self._recorded)

    def _in_session(self) -> bool:
        return self._handle is not None

    def _enter(self) -> None:
        if self._ended:
            self._ended, self._shell, self._first = False, None, None
        self._session()

    def _leave(self) -> None:
        handle = self._forget()
        if handle is not None:
            (handle.close if handle.ours else handle.leave)()

    def _forget(self) -> Optional[Handle]:
        """The session is none of ours from here on, also one that another thread is just making."""
        with self._opening:
            handle, self._handle, self._ended = self._handle, None, True
        return handle

    def close(self) -> None:
        """Ends the session: processes are killed, files dropped, snapshots kept only as long as a fork needs them. May be called twice,
        and on one that never began; `run` goes on working."""
        handle = self._forget()
        if handle is not None:
            handle.close()

    @property
    def name(self) -> str:
        """Its name on the engine."""
        return self._session().name

    # Commands

    def _shell_name(self) -> str:
        """ "bash" where the sandbox has one, else "sh"; found out once."""
        if self._shell is None:
            try:
                self._finish({"argv": ["bash", "-c", ":"], "timeout": 60}, False, False)
                self._shell = "bash"
            except CommandNotFound:
                self._shell = "sh"
        return self._shell

    def _argv(self, command: Argv) -> Argv:
        return [self._shell_name(), "-lc", command] if isinstance(command, str) else command

    def _finish(self, options: dict[str, Any], text: bool, check: bool) -> Result[Any]:
        return finish_result(self._session().finish(ExecRequest(**options), text), text, check)

    @overload
    def exec(
        self,
        command: Argv,
        *,
        cwd: Optional[Path] = ...,
        env: Optional[Environment] = ...,
        user: Optional[User] = ...,
        stdin: Optional[Data] = ...,
        input: Optional[Data] = ...,
        timeout: Timeout = ...,
        text: Literal[False] = ...,
        check: bool = ...,
        max_output: Optional[int] = ...,
        files: Optional[Files] = ...,
        id: Optional[str] = ...,
        stream: Literal[False] = ...,
    ) -> Result[bytes]: ...

    @overload
    def exec(
        self,
        command: Argv,
        *,
        cwd: Optional[Path] = ...,
        env: Optional[Environment] = ...,
        user: Optional[User] = ...,
        stdin: Optional[Data] = ...,
        input: Optional[Data] = ...,
        timeout: Timeout = ...,
        text: Literal[True],
        check: bool = ...,
        max_output: Optional[int] = ...,
        files: Optional[Files] = ...,
        id: Optional[str] = ...,
        stream: Literal[False] = ...,
    ) -> Result[str]: ...

    @overload
    def exec(
        self,
        command: Argv,
        *,
        cwd: Optional[Path] = ...,
        env: Optional[Environment] = ...,
        user: Optional[User] = ...,
        stdin: Optional[Data] = ...,
        input: Optional[Data] = ...,
        timeout: Timeout = ...,
        text: bool,
        check: bool = ...,
        max_output: Optional[int] = ...,
        files: Optional[Files] = ...,
        id: Optional[str] = ...,
        stream: Literal[False] = ...,
    ) -> Result[Any]: ...

    @overload
    def exec(
        self,
        command: Argv,
        *,
        cwd: Optional[Path] = ...,
        env: Optional[Environment] = ...,
        user: Optional[User] = ...,
        stdin: Optional[Data] = ...,
        input: Optional[Data] = ...,
        timeout: Timeout = ...,
        text: bool = ...,
        check: bool = ...,
        max_output: Optional[int] = ...,
        files: Optional[Files] = ...,
        id: Optional[str] = ...,
        stream: Literal[True],
    ) -> Stream: ...

    def exec(
        self,
        command: Argv,
        *,
        cwd: Optional[Path] = None,
        env: Optional[Environment] = None,
        user: Optional[User] = None,
        stdin: Optional[Data] = None,
        input: Optional[Data] = None,
        timeout: Timeout = None,
        text: bool = False,
        check: bool = False,
        max_output: Optional[int] = None,
        files: Optional[Files] = None,
        id: Optional[str] = None,
        stream: bool = False,
    ) -> Union[Result[Any], Stream]:
        """Runs a command in the session and blocks until its main program has ended; what that left running lives on.

        command: a list of arguments, or a str for `bash -lc` (`sh -lc` where the sandbox has no bash). user: a name or number of the
        sandbox. id: its id, 1 to 64 bytes; the same id again gives the first call's result. stream: returns a Stream instead. The rest is
        as for `run`. A time-out, an exceeded max_output or an interrupt (Ctrl-C) ends this command with all it started, and nothing else.

        What the command did is in the Result. Raised is what `run` raises, NotFound for a session that was closed, and Cancelled if it was
        reset or closed meanwhile.
        """
        options = {
            "cwd": cwd,
            "env": env,
            "user": user,
            "stdin": one_input(stdin, input),
            "timeout": timeout,
            "max_output": max_output,
            "files": files,
        }
        if stream:
            argv = self._argv(command)
            return Stream(
                self._session(),
                lambda **more: ExecRequest(argv, **{**options, **more}),
                text,
                check,
                id,
            )
        if isinstance(command, str) and self._shell is None:
            try:
                result = self._finish(
                    {"argv": ["bash", "-lc", command], "id": id, **options}, text, False
                )
                self._shell = "bash"
                return result.check() if check else result
            except CommandNotFound:
                self._shell = "sh"
        return self._finish({"argv": self._argv(command), "id": id, **options}, text, check)

    def stream(
        self,
        command: Argv,
        *,
        cwd: Optional[Path] = None,
        env: Optional[Environment] = None,
        user: Optional[User] = None,
        stdin: Optional[Data] = None,
        input: Optional[Data] = None,
        timeout: Timeout = None,
        text: bool = False,
        check: bool = False,
        max_output: Optional[int] = None,
        files: Optional[Files] = None,
    ) -> Stream:
        """exec(..., stream=True): `for stream, data in box.stream("make"): ...`"""
        return self.exec(
            command,
            cwd=cwd,
            env=env,
            user=user,
            stdin=stdin,
            input=input,
            timeout=timeout,
            text=text,
            check=check,
            max_output=max_output,
            files=files,
            stream=True,
        )

    def spawn(
        self,
        command: Argv,
        *,
        pty: Pty = False,
        cwd: Optional[Path] = None,
        env: Optional[Environment] = None,
        user: Optional[User] = None,
        stdin: Optional[Data] = None,
        timeout: Timeout = None,
        text: bool = False,
        max_output: Optional[int] = None,
        files: Optional[Files] = None,
        id: Optional[str] = None,
    ) -> Process:
        """Starts a command and returns a Process at once. Arguments are as for `exec`.

        pty: a terminal of its own, True (24 rows of 80 columns) or (rows, columns). stdin: all of its input; without, the Process has a
        `stdin` to write to. text: of the results' streams; the Process' files are binary. Whether it could be executed is told by `wait`.
        """
        argv = self._argv(command)
        options = {
            "cwd": cwd,
            "env": env,
            "user": user,
            "stdin": stdin,
            "timeout": timeout,
            "max_output": max_output,
            "files": files,
        }
        return Process.spawn(
            self._session(),
            lambda **more: ExecRequest(argv, **{**options, **more}),
            id,
            pty,
            stdin is None,
            text,
        )

    def process(self, id: str, *, text: bool = False) -> Process:
        """Another Process of a command that runs or has run, by its id, started by whomever. Its streams begin with what it wrote first;
        `stdin` is None but for a terminal's. An id that is not known is told by `wait`, as NotFound.

        In a fork, and after a reset, this is the sandbox's own copy of a command that ran when the state was taken: it has the id that it
        had there, streams of its own that begin with what the copy writes, and, for whoever asks first, a `stdin` if it had one."""
        return Process.attach(self._session(), id, text)

    def shell(
        self,
        id: Optional[str] = None,
        *,
        cwd: Optional[Path] = None,
        env: Optional[Environment] = None,
        user: Optional[User] = None,
    ) -> Shell:
        """A shell that keeps variables, functions and its working directory between calls of its `run`. cwd, env and user are what it
        starts with.

        id: that of a shell which ran when the state was taken that this sandbox is a fork of, or was reset to: its copy goes on here. Of
        several who ask for one, the first gets it; the others get NotFound.
        """
        limit = size_in_bytes(self._policy.max_output, _DEFAULT_OUTPUT)
        if id is not None:
            if cwd is not None or env is not None or user is not None:
                raise InvalidArgument(
                    "shell: a copy has the cwd, env and user that it has", stage="arguments"
                )
            return Shell.attach(self._session(), id, self._shell_name, limit, self._policy.timeout)
        return Shell(
            self._session(),
            self._shell_name,
            limit,
            self._policy.timeout,
            {"cwd": cwd, "env": env, "user": user},
        )

    # Its states

    def snapshot(self, name: Optional[str] = None, *, processes: Processes = "keep") -> Snapshot:
        """Keeps its state: the private files, and the processes that run, with their memory, at one moment. They stand still meanwhile
        and run on. `name` is another name for its id among the forks and their origin. processes: "drop" keeps the files alone.

        Raises FeatureMissing for what cannot be captured (nothing was changed then), ResourceExhausted (disk full), InvalidArgument."""
        made: Snapshot = from_row(
            Snapshot,
            self._session().json(
                "rollbox_snapshot", snapshot_id(name), ctypes.byref(state_options(processes))
            ),
        )
        if self._first is None:
            self._first = made.id
        return made

    def _fork_sessions(
        self: _Made,
        n: int,
        snapshot: Optional[SnapshotLike],
        processes: Processes,
        record: Union[RecordLike, bool],
        same_seed: bool = False,
    ) -> list[_Made]:
        """Sandbox.fork without a work_fn."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InvalidArgument(
                f"n must be a positive number of sandboxes, not {n!r}", stage="arguments"
            )
        return self._forks(n, snapshot, state_options(processes, same_seed), record)

    def _forks(
        self: _Made,
        n: int,
        snapshot: Optional[SnapshotLike],
        options: ffi.StateOptions,
        record: Union[RecordLike, bool] = True,
    ) -> list[_Made]:
        kept = (
            self._record
            if record is True
            else None
            if record is False
            else Record.of(record, rules_of=self._record)
        )
        forks = []
        for handle in self._session().fork(snapshot_id(snapshot), n, options):
            fork = type(self)(self._policy, engine=self._engine, record=kept)
            fork._handle = handle
            fork._shell, fork._first = self._shell, self._first
            forks.append(fork)
        if kept is not None:
            for fork in forks:
                fork._session().record(kept, child=record is True)
                fork._note_recording(fork._session())
        return forks

    def reset(
        self, snapshot: Optional[SnapshotLike] = None, *, processes: Processes = "keep"
    ) -> None:
        """Back to a snapshot (None: the latest of this session's line, or how it began). All its processes are killed, and commands under
        way raise Cancelled; those of the snapshot go on (`process(id)`, `shell(id)`), unless processes is "drop". Raises SetupFailed if
        one cannot: the session has the snapshot's files then, and no processes."""
        self._session().call(
            "rollbox_reset", snapshot_id(snapshot), ctypes.byref(state_options(processes))
        )

    def discard(self) -> None:
        """Drops what was changed since the last snapshot (or the beginning): reset()."""
        self.reset()

    def drop(self, snapshot: SnapshotLike) -> None:
        """Gives a snapshot's place back once nothing stands on it. Raises NotFound."""
        self._session().call("rollbox_snapshot_drop", snapshot_id(snapshot))

    def note(self, data: Any) -> None:
        """A step of your own in the session's trajectory, such as a reward: anything that json.dumps takes. Does nothing if it is not recorded."""
        try:
            text = json.dumps(data, allow_nan=False)
        except (TypeError, ValueError) as problem:
            raise InvalidArgument(
                f"a note must be something that JSON has: {problem}", stage="arguments"
            ) from None
        self._session().call("rollbox_note", text.encode("ascii"))

    def kill_all(self) -> None:
        """Kills every process of the session, background ones too; files stay. Commands under way end with signal 9."""
        self._session().call("rollbox_signal", None, int(signal.SIGKILL), ffi.SCOPES["tree"])

    def tree(self) -> Tree:
        """The snapshots of this session, its origin and its forks; str(tree) draws them."""
        rows = self._session().json("rollbox_sandbox_query", ffi.QUERY_TREE)["snapshots"]
        return Tree(
            Node(
                id=row["id"],
                name=row.get("name"),
                parent=row.get("parent"),
                bytes=row.get("bytes", 0),
                files=row.get("files", 0),
                created=row.get("created"),
                sandboxes=tuple(row.get("sandboxes", ())),
                processes=row.get("processes", 0),
                memory_bytes=row.get("memory_bytes", 0),
                kind=row.get("kind", "files"),
                disk_bytes=row.get("disk_bytes", 0),
                automatic=row.get("automatic", False),
            )
            for row in parents_first(rows)
        )

    def show(self, snapshot: Optional[SnapshotLike] = None) -> dict[str, Any]:
        """What a snapshot (None: the latest of this session's line) holds: id, name, parent, bytes and files; commands; kernel, memory_bytes and
        processes (pid, parent, name, command, threads, memory_bytes, descriptors by kind); changes, the files, from the snapshot before it.
        A sleeping session is not woken: asleep is true, and changes None. Raises NotFound."""
        held: dict[str, Any] = self._session().json("rollbox_snapshot_show", snapshot_id(snapshot))
        return held

    def verify(self, snapshot: Optional[SnapshotLike] = None) -> dict[str, Any]:
        """The same, with sound, and checks: [{"what", "ok", "why"}]: whether it is what was kept, and what would refuse its processes here.
        They are made in a sandbox of their own, and do not go on. Of a sleeping session what is on the disk is checked. Raises NotFound;
        what is not sound is no exception."""
        checked: dict[str, Any] = self._session().json(
            "rollbox_snapshot_verify", snapshot_id(snapshot)
        )
        return checked

    def diff(
        self,
        start: Optional[SnapshotLike] = None,
        end: Optional[SnapshotLike] = None,
        *,
        text: bool = False,
    ) -> list[Change]:
        """What differs from one state (None: how it began) to another (None: now), by path. text: unified diffs of text files, too."""
        answer = self._session().json("rollbox_diff", snapshot_id(start), snapshot_id(end), text)
        return [from_row(Change, row, path=decode_name(row, "path")) for row in answer["changes"]]

    def commit(self, path: Optional[Path] = None, *, force: bool = False) -> list[dict[str, Any]]:
        """Publishes what was changed below a granted fs_writable path (None: below all of them) on the host; a crash leaves each old or
        new. Returns [{"path", "changes"}]. Raises Conflict if the host's files were changed meanwhile, unless `force`."""
        raw = None if path is None else os.fsencode(path)
        committed: list[dict[str, Any]] = self._session().json("rollbox_commit", raw, force)[
            "committed"
        ]
        return committed

    def export(
        self,
        host_path: Path,
        snapshot: Optional[SnapshotLike] = None,
        *,
        processes: Processes = "drop",
    ) -> None:
        """Writes a snapshot (None: of now) as one file of the host: its files, which `rollbox import` brings into a store for
        `image="snapshot:NAME"`. processes="keep": with what runs, which `rollbox import` makes a sandbox of that sleeps, for a shared
        engine, perhaps of another machine with the same kernel and processor. A session that sleeps is not woken for that."""
        live = state_options(processes).processes == ffi.PROCESSES["keep"]
        self._session().call(
            "rollbox_export_live" if live else "rollbox_export",
            snapshot_id(snapshot),
            os.fsencode(host_path),
        )

    # Looking at it

    def pause(self) -> None:
        """Takes all processor time from it, until `resume` or the next call."""
        self._session().call("rollbox_pause")

    def resume(self) -> None:
        """Ends a pause; harmless without one."""
        self._session().call("rollbox_resume")

    def hibernate(self, *, processes: Processes = "keep") -> None:
        """Puts it to sleep: its files and processes go to the store on the disk, and neither processes nor memory are left of it, until
        `wake` or the next call. Commands under way raise Cancelled; in the session they go on when it wakes, and `process(id)` and
        `shell(id)` find them there. processes="drop": its files alone. Raises FeatureMissing if a process has what cannot be captured,
        and then nothing has changed."""
        self._session().call("rollbox_hibernate", ctypes.byref(state_options(processes)))

    def wake(self, *, processes: Processes = "keep") -> None:
        """Ends its sleep; harmless without one. processes="drop": with its files alone. Raises FeatureMissing if its processes were put to
        sleep under another kernel or processor, Damaged if the store has not what was written; it sleeps on then."""
        self._session().call("rollbox_wake", ctypes.byref(state_options(processes)))

    def inspect(self) -> dict[str, Any]:
        """name, state, policy, isolation, snapshot, execs, memory_bytes, disk_bytes and more."""
        report: dict[str, Any] = self._session().json("rollbox_sandbox_query", ffi.QUERY_INSPECT)
        return report

    def processes(self) -> list[dict[str, Any]]:
        """pid (inside), parent, state, command, cpu_ms, memory_bytes and exec (an id) of each of its processes."""
        rows: list[dict[str, Any]] = self._session().json(
            "rollbox_sandbox_query", ffi.QUERY_PROCESSES
        )["processes"]
        return rows


def _rebuild(cls: Any, policy: Policy, plan: dict[str, Any]) -> Any:
    made = cls(policy)
    made._plan = plan
    return made


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _after_fork() -> None:
    for session in list(_sessions):
        session._opening = threading.Lock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)
