# SPDX-License-Identifier: Apache-2.0
"""Session: the calls of a sandbox that stays.

The sandbox is made on entering the `with`, or by the first of these calls; `close` or leaving the
`with` ends it. The engine has all of its state. An object here has a handle (one sandbox, by name)
and the name of the shell that runs lines of shell, and nothing else. A fork is an object of its
own.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import threading
import weakref
from collections.abc import Sequence
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
from ._core.remote import create_handle, open_handle
from ._core.request import (
    RUN_TIMEOUT_S,
    Argv,
    Data,
    Environment,
    ExecRequest,
    Files,
    Priority,
    Timeout,
    Turn,
    full_user,
)
from ._core.result import Result
from ._core.schedule import patiently
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
        priority: Priority = None,
        queue_timeout: Optional[float] = None,
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
        self._turn = Turn(priority, queue_timeout)
        self._recorded: Optional[dict[str, Any]] = None
        self._handle: Optional[Handle] = None
        self._ended = False
        self._shell: Optional[str] = None
        self._first: Optional[str] = None  # the snapshot that was taken first
        self._opening = threading.Lock()
        _sessions.add(self)

    # Construction

    @property
    def policy(self) -> Policy:
        """The policy of every run and of the session."""
        return self._policy

    def _run_timeout(self, timeout: Timeout) -> Timeout:
        """The time-out of a run in a session, whose commands have none by default."""
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
        engine = self._get_engine()
        policy, turn = self._policy.to_json(), self._turn
        return patiently(lambda: create_handle(engine.remote, engine, policy, options, turn))

    def _create(self) -> Handle:
        """A new sandbox, recorded if it is to be."""
        handle = self._create_handle()
        if self._record is not None:
            handle.record(self._record)
        return handle

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._policy!r})"

    if not TYPE_CHECKING:  # type checkers would then allow any name

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

    # Life cycle

    @classmethod
    def open(cls: type[_Made], name: str, *, engine: Optional[Engine] = None) -> _Made:
        """Opens a session that exists, by its name.

        On a shared engine, this may be another process's session. Leaving its `with` does not end
        it; `close` does.

        Args:
            name: The session's name.
            engine: The engine; None: the one that this process shares.

        Returns:
            A Sandbox of this session.

        Raises:
            NotFound: The engine has no session of this name.
            EngineLost: The engine is gone.
        """
        engine = engine if engine is not None else default_engine()
        if not isinstance(name, str) or not name or "\0" in name:
            raise InvalidArgument(f"name must be a str, not {name!r}", stage="arguments")
        handle = open_handle(engine.remote, engine, name)
        policy = handle.json("rollbox_sandbox_query", ffi.QUERY_INSPECT).get("policy")
        made = cls(Policy().replace(**policy) if isinstance(policy, dict) else None, engine=engine)
        made._handle = handle
        return made

    def _session(self) -> Handle:
        """The session's handle; makes the sandbox if there is none yet."""
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
        """What is known here about this session's trajectory; None if it is not recorded.

        A dict with its `id`. After `close` also: `steps`; `written`, how many of them; `complete`,
        None if the session had ended before (its last line tells then); and the `error` if it is
        not complete. While the session is open, inspect()["record"] has more.
        """
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
        """Lets go of the session, also of one that another thread is just making."""
        with self._opening:
            handle, self._handle, self._ended = self._handle, None, True
        return handle

    def close(self) -> None:
        """Ends the session: kills its processes and drops its files.

        Snapshots stay as long as a fork needs them. `close` may be called twice, and for a session
        that never began. `run` works on.
        """
        handle = self._forget()
        if handle is not None:
            handle.close()

    @property
    def name(self) -> str:
        """The session's name on the engine."""
        return self._session().name

    # Commands

    def _shell_name(self) -> str:
        """The shell of the sandbox: "bash" if it has one, else "sh". Asked once."""
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
        group: Optional[User] = ...,
        groups: Optional[Sequence[User]] = ...,
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
        group: Optional[User] = ...,
        groups: Optional[Sequence[User]] = ...,
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
        group: Optional[User] = ...,
        groups: Optional[Sequence[User]] = ...,
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
        group: Optional[User] = ...,
        groups: Optional[Sequence[User]] = ...,
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
        group: Optional[User] = None,
        groups: Optional[Sequence[User]] = None,
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
        r"""Runs a command in the session and waits for the end of its main program.

        Its background processes continue. A time-out, too much output or an
        interrupt (Ctrl-C) ends only this command and its processes.

        Args:
            command: A list of arguments, or a str, a line for `bash -lc` (`sh -lc` if the sandbox
                has no bash).
            cwd: The working directory, over the policy's.
            env: {name: value}, over the policy's environment.
            user: A name or number of the sandbox's users, over the policy's; with users "many" also
                "USER:GROUP" or "USER:GROUP:GROUPS".
            group: A name or number, in place of the user's own group; needs user.
            groups: The supplementary groups, in place of the user's own; needs user.
            stdin: The standard input, str or bytes; None: empty.
            input: Another name of stdin, as in subprocess.
            timeout: Seconds of wall clock, over the policy's; "none" is no limit. Without either,
                none.
            text: Make stdout and stderr str, with invalid UTF-8 replaced.
            check: Raise RunFailed unless the command exits with status 0.
            max_output: Bytes per stream, over the policy's.
            files: {path: str or bytes} to write before the command starts.
            id: The command's id, 1 to 64 bytes. A second call with this id returns the first one's
                result.
            stream: Return a Stream instead.

        Returns:
            What the command did; with stream, an iterator over its output.

        Raises:
            NotFound: The session is closed.
            Cancelled: The session was reset or closed meanwhile.
            RunFailed: With check: the command failed.
            RollboxError: As for `run`.

        Example:
            >>> from rollbox import Sandbox
            >>> with Sandbox() as box:
            ...     _ = box.exec("cd /tmp && echo hello > greeting", check=True)
            ...     box.exec(["cat", "/tmp/greeting"], text=True).stdout
            'hello\n'
        """
        options = {
            "cwd": cwd,
            "env": env,
            "user": full_user(user, group, groups),
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
        group: Optional[User] = None,
        groups: Optional[Sequence[User]] = None,
        stdin: Optional[Data] = None,
        input: Optional[Data] = None,
        timeout: Timeout = None,
        text: bool = False,
        check: bool = False,
        max_output: Optional[int] = None,
        files: Optional[Files] = None,
    ) -> Stream:
        r"""Runs a command and returns its output as it comes.

        The same as exec(..., stream=True).

        Args:
            command: As for `exec`.
            cwd: As for `exec`.
            env: As for `exec`.
            user: As for `exec`.
            group: As for `exec`.
            groups: As for `exec`.
            stdin: As for `exec`.
            input: As for `exec`.
            timeout: As for `exec`.
            text: As for `exec`.
            check: As for `exec`, at the end of the stream.
            max_output: As for `exec`.
            files: As for `exec`.

        Returns:
            An iterator of (stream, data): ("stdout", b"...") or ("stderr", b"...").

        Raises:
            RollboxError: As for `exec`, at the latest at the end of the stream.

        Example:
            >>> from rollbox import Sandbox
            >>> with Sandbox() as box:
            ...     [data for stream, data in box.stream("echo hello")]
            [b'hello\n']
        """
        return self.exec(
            command,
            cwd=cwd,
            env=env,
            user=user,
            group=group,
            groups=groups,
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
        group: Optional[User] = None,
        groups: Optional[Sequence[User]] = None,
        stdin: Optional[Data] = None,
        timeout: Timeout = None,
        text: bool = False,
        max_output: Optional[int] = None,
        files: Optional[Files] = None,
        id: Optional[str] = None,
    ) -> Process:
        """Starts a command and returns at once.

        Args:
            command: As for `exec`.
            pty: Give it a terminal: True (24 rows of 80 columns) or (rows, columns).
            cwd: As for `exec`.
            env: As for `exec`.
            user: As for `exec`.
            group: As for `exec`.
            groups: As for `exec`.
            stdin: All of its input; None: the Process has a `stdin` to write to.
            timeout: As for `exec`.
            text: Make the results' streams str; the files of the Process are binary.
            max_output: As for `exec`.
            files: As for `exec`.
            id: As for `exec`.

        Returns:
            The Process. Its `wait` tells whether the command could be executed.

        Raises:
            NotFound: The session is closed.
            InvalidArgument: An argument is wrong.

        Example:
            >>> from rollbox import Sandbox
            >>> with Sandbox() as box:
            ...     process = box.spawn(["cat"])
            ...     _ = process.stdin.write(b"hello")
            ...     process.stdin.close()
            ...     process.wait().text
            'hello'
        """
        argv = self._argv(command)
        options = {
            "cwd": cwd,
            "env": env,
            "user": full_user(user, group, groups),
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
        """Finds a command that runs or has run, by its id.

        Any process may have started it. The streams of this Process begin with the command's first
        byte; `stdin` is None, unless the command has a terminal.

        In a fork and after a reset, this is the sandbox's own copy of a command that ran when the
        snapshot was taken. It has the same id, and streams of its own that begin with the copy's
        output. The first Process of a copy has its `stdin`, if the command had one.

        Args:
            id: The command's id.
            text: Make the results' streams str.

        Returns:
            The Process. For an unknown id, its `wait` raises NotFound.

        Raises:
            NotFound: The session is closed.
        """
        return Process.attach(self._session(), id, text)

    def shell(
        self,
        id: Optional[str] = None,
        *,
        cwd: Optional[Path] = None,
        env: Optional[Environment] = None,
        user: Optional[User] = None,
        group: Optional[User] = None,
        groups: Optional[Sequence[User]] = None,
    ) -> Shell:
        r"""Starts a shell that keeps variables, functions and its directory between calls.

        Args:
            id: The id of a shell that ran when the snapshot was taken that this sandbox is a fork
                of, or was reset to: its copy continues here. The first caller gets it; for others
                it is NotFound.
            cwd: The directory that the shell starts in.
            env: {name: value}, over the policy's environment.
            user: The shell's user, as for `exec`.
            group: As for `exec`.
            groups: As for `exec`.

        Returns:
            The Shell; `run` runs a command in it.

        Raises:
            NotFound: There is no such shell, or the session is closed.
            InvalidArgument: A copy was given cwd, env or user.

        Example:
            >>> from rollbox import Sandbox
            >>> with Sandbox() as box, box.shell() as shell:
            ...     _ = shell.run("cd /usr; x=5")
            ...     shell.run("echo $PWD $x", text=True).stdout
            '/usr 5\n'
        """
        limit = size_in_bytes(self._policy.max_output, _DEFAULT_OUTPUT)
        user = full_user(user, group, groups)
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

    # Snapshots

    def snapshot(self, name: Optional[str] = None, *, processes: Processes = "keep") -> Snapshot:
        """Keeps the session's state: files, and processes with their memory.

        All is of one moment. Processes pause for some milliseconds and then run on.

        Args:
            name: Another name of the snapshot's id, known to this session, its origin and its
                forks.
            processes: "drop": keep the files alone.

        Returns:
            The Snapshot.

        Raises:
            FeatureMissing: A process has something that cannot be captured; nothing has changed.
            ResourceExhausted: The disk is full.
            InvalidArgument: The name is not valid, or taken.

        Example:
            >>> from rollbox import Sandbox
            >>> with Sandbox() as box:
            ...     box.write_file("/tmp/a", "1")
            ...     base = box.snapshot("base")
            ...     box.write_file("/tmp/a", "2")
            ...     box.reset(base)
            ...     box.read_file("/tmp/a")
            b'1'
        """
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
        handle, id = self._session(), snapshot_id(snapshot)
        forks = self._adopt(patiently(lambda: handle.fork(id, n, options)), kept)
        if kept is not None:
            for fork in forks:
                fork._session().record(kept, child=record is True)
                fork._note_recording(fork._session())
        return forks

    def _adopt(self: _Made, handles: Sequence[Handle], record: Optional[Record]) -> list[_Made]:
        """Forks of this session that the engine has made."""
        forks = []
        for handle in handles:
            fork = type(self)(self._policy, engine=self._engine, record=record)
            fork._handle = handle
            fork._shell, fork._first = self._shell, self._first
            forks.append(fork)
        return forks

    def reset(
        self, snapshot: Optional[SnapshotLike] = None, *, processes: Processes = "keep"
    ) -> None:
        """Goes back to a snapshot.

        All processes of the session are killed, and commands that run raise Cancelled. The
        processes of the snapshot continue (`process(id)`, `shell(id)`).

        Args:
            snapshot: The snapshot; None: the latest one that this session is based on, or its
                beginning.
            processes: "drop": restore the files alone.

        Raises:
            NotFound: There is no such snapshot.
            SetupFailed: A process cannot be restored. The session then has the snapshot's files,
                and no processes.
        """
        self._session().call(
            "rollbox_reset", snapshot_id(snapshot), ctypes.byref(state_options(processes))
        )

    def discard(self) -> None:
        """Drops all changes since the last snapshot, or since the beginning: `reset()`."""
        self.reset()

    def drop(self, snapshot: SnapshotLike) -> None:
        """Deletes a snapshot. Its space is freed once nothing is based on it.

        Args:
            snapshot: The snapshot.

        Raises:
            NotFound: There is no such snapshot.
        """
        self._session().call("rollbox_snapshot_drop", snapshot_id(snapshot))

    def note(self, data: Any) -> None:
        """Adds a step of your own to the session's trajectory, such as a reward.

        Without a trajectory it does nothing.

        Args:
            data: Anything that json.dumps takes.

        Raises:
            InvalidArgument: JSON cannot express it.
        """
        try:
            text = json.dumps(data, allow_nan=False)
        except (TypeError, ValueError) as problem:
            raise InvalidArgument(
                f"a note must be something that JSON has: {problem}", stage="arguments"
            ) from None
        self._session().call("rollbox_note", text.encode("ascii"))

    def kill_all(self) -> None:
        """Kills every process of the session, also in the background; files stay.

        Commands that run end with signal 9.
        """
        self._session().call("rollbox_signal", None, int(signal.SIGKILL), ffi.SCOPES["tree"])

    def tree(self) -> Tree:
        """Lists the snapshots of this session, its origin and its forks.

        Returns:
            The snapshots, parents before their children; str() draws the tree.
        """
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
        """Tells what a snapshot contains.

        A hibernating session is not woken: "asleep" is true then, and "changes" None.

        Args:
            snapshot: The snapshot; None: the latest one that this session is based on.

        Returns:
            A dict with id, name, parent, bytes and files; commands; kernel, memory_bytes and
            processes (pid, parent, name, command, threads, memory_bytes, descriptors by kind);
            changes, the files that differ from the snapshot before it.

        Raises:
            NotFound: There is no such snapshot.
        """
        held: dict[str, Any] = self._session().json("rollbox_snapshot_show", snapshot_id(snapshot))
        return held

    def verify(self, snapshot: Optional[SnapshotLike] = None) -> dict[str, Any]:
        """Checks that a snapshot is intact and can be restored here.

        Its processes are made in a sandbox of their own, and do not run. For a hibernating session,
        the data on the disk is checked.

        Args:
            snapshot: The snapshot; None: the latest one that this session is based on.

        Returns:
            The dict of `show`, with sound (bool) and checks: [{"what", "ok", "why"}]. A damaged
            snapshot is no exception.

        Raises:
            NotFound: There is no such snapshot.
        """
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
        """Lists the files that differ between two states.

        Args:
            start: A snapshot; None: the beginning of the session.
            end: A snapshot; None: the present state.
            text: Include unified diffs of text files.

        Returns:
            The Changes, by path.

        Raises:
            NotFound: There is no such snapshot.

        Example:
            >>> from rollbox import Sandbox
            >>> with Sandbox() as box:
            ...     box.write_file("/tmp/a", "1")
            ...     [(one.change, one.path) for one in box.diff()]
            [('A', '/tmp/a')]
        """
        answer = self._session().json("rollbox_diff", snapshot_id(start), snapshot_id(end), text)
        return [from_row(Change, row, path=decode_name(row, "path")) for row in answer["changes"]]

    def commit(self, path: Optional[Path] = None, *, force: bool = False) -> list[dict[str, Any]]:
        """Publishes changed files on the host.

        Only paths below fs_writable are published. After a crash, each file is the old or the new
        one.

        Args:
            path: A granted fs_writable path; None: all of them.
            force: Replace files of the host even if they were changed meanwhile.

        Returns:
            [{"path", "changes"}], for each path.

        Raises:
            Conflict: The host's files were changed meanwhile.
        """
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
        """Writes a snapshot to one file of the host.

        `rollbox import` brings it into a store, where `image="snapshot:NAME"` uses its files. Of a
        session with an image, the file contains the image, and `image="NAME"` uses it. With
        processes="keep" the import makes a hibernating sandbox for a shared engine, also on another
        machine with the same kernel and processor. A hibernating session is not woken.

        Args:
            host_path: The file to write.
            snapshot: The snapshot; None: the present state.
            processes: "keep": include the processes.

        Raises:
            NotFound: There is no such snapshot.
            FeatureMissing: A process has something that cannot be captured.
            IOFailed: The file cannot be written.
        """
        live = state_options(processes).processes == ffi.PROCESSES["keep"]
        self._session().call(
            "rollbox_export_live" if live else "rollbox_export",
            snapshot_id(snapshot),
            os.fsencode(host_path),
        )

    # Network

    def connect(self, port: int) -> socket.socket:
        """Connects to a server that listens on a port inside the session.

        The policy needs net "loopback" or "allow". A snapshot, fork or hibernation of the session
        does not keep the connection.

        Args:
            port: 1 to 65535, of 127.0.0.1 or ::1 inside.

        Returns:
            The connected TCP socket, blocking.

        Raises:
            NotFound: Nothing listens on the port.
            FeatureMissing: The session has no network of its own.
        """
        descriptor = ctypes.c_int(-1)
        self._session().call("rollbox_connect", ctypes.c_uint(port), ctypes.byref(descriptor))
        connected = socket.socket(fileno=descriptor.value)
        connected.setblocking(True)
        return connected

    def url(self, port: int, listen: Optional[str] = None) -> str:
        """Publishes a port of the session on the host, and tells where.

        Connections to the address lead to a server that listens on the port inside; HTTP,
        WebSockets and everything else over TCP pass. A connection wakes a hibernated session. The
        address is closed with the session. Other users of the machine can connect to 127.0.0.1;
        a Unix socket is for its owner alone.

        The policy needs net "loopback" or "allow", or the key `publish`.

        Args:
            port: 1 to 65535, of 127.0.0.1 or ::1 inside.
            listen: Where to listen: "5000", "127.0.0.1:5000" or the absolute path of a Unix socket.
                By default the address that the port has already, or a free port of 127.0.0.1.

        Returns:
            Such as "http://127.0.0.1:41231". Of a Unix socket: "unix:" and its path.

        Raises:
            Conflict: Another process listens there already.
            FeatureMissing: The session has no network of its own.
        """
        answer = self._session().json(
            "rollbox_publish", ctypes.c_uint(port), None if listen is None else os.fsencode(listen)
        )
        row = answer["ports"][0]
        return str(row["url"] or f"unix:{row['address']}")

    def ports(self) -> list[dict[str, Any]]:
        """Lists the published ports.

        Returns:
            For each its port (inside), address and url (None of a Unix socket).
        """
        rows: list[dict[str, Any]] = self._session().json(
            "rollbox_publish", ctypes.c_uint(0), None
        )["ports"]
        return rows

    # State

    def pause(self) -> None:
        """Takes all processor time from the session, until `resume` or the next call."""
        self._session().call("rollbox_pause")

    def resume(self) -> None:
        """Ends a pause; harmless without one."""
        self._session().call("rollbox_resume")

    def hibernate(self, *, processes: Processes = "keep") -> None:
        """Moves the session's files and processes to the store on the disk.

        Neither processes nor memory of it are left until `wake` or the next call. Commands that run
        raise Cancelled here; in the session they continue after it wakes, where `process(id)` and
        `shell(id)` find them.

        Args:
            processes: "drop": keep the files alone.

        Raises:
            FeatureMissing: A process has something that cannot be captured; nothing has changed.
        """
        self._session().call("rollbox_hibernate", ctypes.byref(state_options(processes)))

    def wake(self, *, processes: Processes = "keep") -> None:
        """Ends hibernation; harmless without it.

        Args:
            processes: "drop": wake with the files alone.

        Raises:
            FeatureMissing: The processes come from another kernel or processor; the session still
                hibernates.
            Damaged: The store does not have the data that was written; the session still
                hibernates.
        """
        self._session().call("rollbox_wake", ctypes.byref(state_options(processes)))

    def inspect(self) -> dict[str, Any]:
        """Describes the session.

        Returns:
            A dict with name, state, policy, isolation, snapshot, execs, memory_bytes, disk_bytes
            and more.
        """
        report: dict[str, Any] = self._session().json("rollbox_sandbox_query", ffi.QUERY_INSPECT)
        return report

    def stats(self) -> dict[str, Any]:
        """Tells what the session uses now, as `rollbox stats` shows it.

        Returns:
            A dict with cpu_ms (all so far), memory_bytes, peak_memory_bytes, disk_bytes and
            processes; max_memory_bytes, max_disk_bytes and max_processes; name, state, age_s and
            more. What cannot be measured is None.
        """
        figures: dict[str, Any] = self._session().json("rollbox_sandbox_query", ffi.QUERY_STATS)
        return figures

    def net_log(self) -> list[dict[str, Any]]:
        """Tells what the session did in the network, with net "allow".

        Returns:
            An event each, oldest first: its time t, box, event and more. Events past the log's
            limit are only counted.
        """
        rows: list[dict[str, Any]] = self._session().json(
            "rollbox_sandbox_query", ffi.QUERY_NET_LOG
        )["log"]
        return rows

    def net_set(self, rules: Union[Policy, Sequence[Any]]) -> None:
        """Replaces what the session may reach, with net "allow".

        Connections that are not allowed any more are reset.

        Args:
            rules: Hosts and rules as of Policy(net_allow=...), or a Policy whose network keys
                count.
        """
        policy = rules if isinstance(rules, Policy) else Policy(net="allow", net_allow=rules)
        text = policy.to_json()
        self._session().call("rollbox_net_set", text.encode())

    def processes(self) -> list[dict[str, Any]]:
        """Lists the session's processes.

        Returns:
            For each its pid (inside), parent, state, command, cpu_ms, memory_bytes and exec (an
            id).
        """
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
