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
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Literal, Mapping, Optional, Sequence, Type, TypeVar, Union, overload

from . import _ffi
from ._base import AutoSnapshot, Base, Path, PolicyLike, RecordLike, one_input, size_in_bytes
from ._engine import Engine, default_engine
from ._errors import CommandNotFound, InvalidArgument, NotFound
from ._files import SessionFiles, _name
from ._grade import Grade, grade
from ._handle import Handle
from ._policy import Policy
from ._process import Process, Pty, Stream, conclude
from ._record import Record
from ._request import Argv, Data, Environment, ExecRequest, Files, Timeout
from ._result import Result
from ._shell import Shell

User = Union[str, int]
_Made = TypeVar("_Made", bound="Session")

_DEFAULT_OUTPUT = 10 << 20


@dataclass(frozen=True)
class Snapshot:
    """A state of a sandbox: its private files, and what ran.

    Attributes: `id`; `name` (or None); `parent`, the id of the one before (or None); `bytes` and `files`, what it has that its parent has
    not; `processes`, how many it has, and `memory_bytes`, what they take; `live`, whether processes stood still for it; `kind`, as of Node;
    `automatic`: it was taken by itself (auto_snapshot). Wherever a snapshot is wanted, its id or name does, too.
    """

    id: str
    name: Optional[str] = None
    parent: Optional[str] = None
    bytes: int = 0
    files: int = 0
    live: bool = False
    processes: int = 0
    memory_bytes: int = 0
    kind: str = "files"
    automatic: bool = False


SnapshotLike = Union[Snapshot, str]


@dataclass(frozen=True)
class Node:
    """A snapshot in a `Tree`: as Snapshot, with `created` (seconds since 1970, or None), `sandboxes`, the names of those that stand on it,
    and `kind`: "files" (alone), "live" (with processes, which a fork makes from their image), "warm" (they are held ready to be forked, which
    takes their memory once more) or "asleep" (in the store: `disk_bytes` there)."""

    id: str
    name: Optional[str]
    parent: Optional[str]
    bytes: int
    files: int
    created: Optional[float]
    sandboxes: Sequence[str]
    processes: int = 0
    memory_bytes: int = 0
    kind: str = "files"
    disk_bytes: int = 0
    automatic: bool = False


class Tree(List[Node]):
    """The snapshots of a family of sandboxes, parents before their children. str() draws it, as `rollbox tree` does."""

    def __str__(self) -> str:
        ids = {node.id for node in self}
        below: Dict[Optional[str], List[Node]] = {}
        for node in self:
            below.setdefault(node.parent if node.parent in ids else None, []).append(node)
        lines: List[str] = []
        # Depth first without recursion: chains of snapshots are thousands deep.
        todo = [(node, "", i == 0) for i, node in enumerate(reversed(below.get(None, [])))]
        while todo:
            node, indent, last = todo.pop()
            root = node.parent not in ids
            name = f'{node.id} "{node.name}"' if node.name else node.id
            boxes = "  <- " + ", ".join(node.sandboxes) if node.sandboxes else ""
            lines.append(f"{indent}{'' if root else '`-- ' if last else '|-- '}{name}  {_size(node.bytes)}, {node.files} file{'' if node.files == 1 else 's'}{_ran(node)}{boxes}")
            deeper = indent + ("" if root else "    " if last else "|   ")
            todo += [(child, deeper, i == 0) for i, child in enumerate(reversed(below.get(node.id, [])))]
        return "\n".join(lines)


def _ran(node: Node) -> str:
    text = f"; {node.processes} process{'es' if node.processes > 1 else ''}, {_size(node.memory_bytes)}" if node.processes else ""
    words = [node.kind] if node.kind != "files" else []
    words += [f"{_size(node.disk_bytes)} on disk"] if node.disk_bytes else []
    words += ["automatic"] if node.automatic else []
    return text + "".join(f", {word}" for word in words)


def _size(count: float) -> str:
    """As the command line shows it: "512", "1.2K", "34M"."""
    units = ["", "K", "M", "G", "T", "P", "E"]
    while count >= 1000 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.0f}" if units[0] == "" else f"{count:.1f}{units[0]}" if count < 9.95 else f"{count:.0f}{units[0]}"


@dataclass(frozen=True)
class Change:
    """A difference between two states: `path` (what is not UTF-8 in it is as os.fsdecode has it), `change` ("A" added, "M" modified, "D" deleted), `type` ("file", "directory",
    "symlink", ...), `size` and `old_size` in bytes (or None), `diff`, the unified diff of a text file if it was asked for."""

    path: str
    change: str
    type: Optional[str] = None
    size: Optional[int] = None
    old_size: Optional[int] = None
    diff: Optional[str] = None


def snapshot_id(snapshot: Optional[SnapshotLike]) -> Optional[bytes]:
    if snapshot is None:
        return None
    id = snapshot.id if isinstance(snapshot, (Snapshot, Node)) else snapshot
    if not isinstance(id, str) or not id or "\0" in id:
        raise InvalidArgument(f"a snapshot is a Snapshot, or its id or name, not {snapshot!r}", stage="arguments")
    return id.encode("utf-8", "surrogateescape")


Processes = Literal["keep", "drop"]


def _state(processes: Processes, same_seed: bool = False, attached: bool = False) -> _ffi.StateOptions:
    if processes not in _ffi.PROCESSES:
        raise InvalidArgument(f"processes must be \"keep\" or \"drop\", not {processes!r}", stage="arguments")
    return _ffi.StateOptions(size=ctypes.sizeof(_ffi.StateOptions), processes=_ffi.PROCESSES[processes], same_seed=same_seed, attached=attached)


def _fields(cls: Any, row: Mapping[str, Any], **more: Any) -> Any:
    return cls(**{key: row[key] for key in cls.__dataclass_fields__ if key in row and key not in more}, **more)


class Session(Base, SessionFiles):
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
        super().__init__(policy, engine=engine, name=name, detached=detached, idle=idle, ttl=ttl, max_lifetime=max_lifetime,
                         hibernate_after=hibernate_after, auto_snapshot=auto_snapshot, auto_keep=auto_keep, record=record)
        self._recorded: Optional[Dict[str, Any]] = None
        self._handle: Optional[Handle] = None
        self._ended = False
        self._shell: Optional[str] = None
        self._first: Optional[str] = None       # the snapshot that was taken first
        self._opening = threading.Lock()
        _sessions.add(self)

    # Its life

    @classmethod
    def open(cls: Type[_Made], name: str, *, engine: Optional[Engine] = None) -> _Made:
        """A session that exists, by its name; of a shared engine, other processes' too. Leaving its `with` does not end it; `close`
        does. Raises NotFound."""
        engine = engine if engine is not None else default_engine()
        if not isinstance(name, str) or not name or "\0" in name:
            raise InvalidArgument(f"name must be a str, not {name!r}", stage="arguments")
        handle = Handle.open(engine, name.encode("utf-8", "surrogateescape"))
        policy = handle.json("rollbox_sandbox_query", _ffi.QUERY_INSPECT).get("policy")
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
                        raise NotFound("the session is closed; `with` opens another", stage="arguments")
                    self._handle = self._create()
                    self._note_recording(self._handle)
                handle = self._handle
        return handle

    def _note_recording(self, handle: Handle) -> None:
        self._recorded = handle.recording.state if handle.recording is not None else None

    @property
    def recorded(self) -> Optional[Dict[str, Any]]:
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

    def _kin(self: _Made, record: RecordLike) -> _Made:
        """What a fork is."""
        return type(self)(self._policy, engine=self._engine, record=record)

    # Commands

    def _shell_name(self) -> str:
        """"bash" where the sandbox has one, else "sh"; found out once."""
        if self._shell is None:
            try:
                self._finish({"argv": ["bash", "-c", ":"], "timeout": 60}, False, False)
                self._shell = "bash"
            except CommandNotFound:
                self._shell = "sh"
        return self._shell

    def _argv(self, command: Argv) -> Argv:
        return [self._shell_name(), "-lc", command] if isinstance(command, str) else command

    def _finish(self, options: Dict[str, Any], text: bool, check: bool) -> Result[Any]:
        return conclude(self._session().finish(ExecRequest(**options), text), text, check)

    @overload
    def exec(self, command: Argv, *, cwd: Optional[Path] = ..., env: Optional[Environment] = ..., user: Optional[User] = ...,
             stdin: Optional[Data] = ..., input: Optional[Data] = ..., timeout: Timeout = ..., text: Literal[False] = ...,
             check: bool = ..., max_output: Optional[int] = ..., files: Optional[Files] = ..., id: Optional[str] = ...,
             stream: Literal[False] = ...) -> Result[bytes]: ...

    @overload
    def exec(self, command: Argv, *, cwd: Optional[Path] = ..., env: Optional[Environment] = ..., user: Optional[User] = ...,
             stdin: Optional[Data] = ..., input: Optional[Data] = ..., timeout: Timeout = ..., text: Literal[True],
             check: bool = ..., max_output: Optional[int] = ..., files: Optional[Files] = ..., id: Optional[str] = ...,
             stream: Literal[False] = ...) -> Result[str]: ...

    @overload
    def exec(self, command: Argv, *, cwd: Optional[Path] = ..., env: Optional[Environment] = ..., user: Optional[User] = ...,
             stdin: Optional[Data] = ..., input: Optional[Data] = ..., timeout: Timeout = ..., text: bool,
             check: bool = ..., max_output: Optional[int] = ..., files: Optional[Files] = ..., id: Optional[str] = ...,
             stream: Literal[False] = ...) -> Result[Any]: ...

    @overload
    def exec(self, command: Argv, *, cwd: Optional[Path] = ..., env: Optional[Environment] = ..., user: Optional[User] = ...,
             stdin: Optional[Data] = ..., input: Optional[Data] = ..., timeout: Timeout = ..., text: bool = ...,
             check: bool = ..., max_output: Optional[int] = ..., files: Optional[Files] = ..., id: Optional[str] = ...,
             stream: Literal[True]) -> Stream: ...

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
        options = {"cwd": cwd, "env": env, "user": user, "stdin": one_input(stdin, input), "timeout": timeout, "max_output": max_output,
                   "files": files}
        if stream:
            argv = self._argv(command)
            return Stream(self._session(), lambda **more: ExecRequest(argv, **{**options, **more}), text, check, id)
        if isinstance(command, str) and self._shell is None:
            try:
                result = self._finish({"argv": ["bash", "-lc", command], "id": id, **options}, text, False)
                self._shell = "bash"
                return result.check() if check else result
            except CommandNotFound:
                self._shell = "sh"
        return self._finish({"argv": self._argv(command), "id": id, **options}, text, check)

    def stream(self, command: Argv, *, cwd: Optional[Path] = None, env: Optional[Environment] = None, user: Optional[User] = None,
               stdin: Optional[Data] = None, input: Optional[Data] = None, timeout: Timeout = None, text: bool = False,
               check: bool = False, max_output: Optional[int] = None, files: Optional[Files] = None) -> Stream:
        """exec(..., stream=True): `for stream, data in box.stream("make"): ...`"""
        return self.exec(command, cwd=cwd, env=env, user=user, stdin=stdin, input=input, timeout=timeout, text=text, check=check,
                         max_output=max_output, files=files, stream=True)

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
        options = {"cwd": cwd, "env": env, "user": user, "stdin": stdin, "timeout": timeout, "max_output": max_output, "files": files}
        return Process.spawn(self._session(), lambda **more: ExecRequest(argv, **{**options, **more}), id, pty, stdin is None, text)

    def process(self, id: str, *, text: bool = False) -> Process:
        """Another Process of a command that runs or has run, by its id, started by whomever. Its streams begin with what it wrote first;
        `stdin` is None but for a terminal's. An id that is not known is told by `wait`, as NotFound.

        In a fork, and after a reset, this is the sandbox's own copy of a command that ran when the state was taken: it has the id that it
        had there, streams of its own that begin with what the copy writes, and, for whoever asks first, a `stdin` if it had one."""
        return Process.attach(self._session(), id, text)

    def shell(self, id: Optional[str] = None, *, cwd: Optional[Path] = None, env: Optional[Environment] = None,
              user: Optional[User] = None) -> Shell:
        """A shell that keeps variables, functions and its working directory between calls of its `run`. cwd, env and user are what it
        starts with.

        id: that of a shell which ran when the state was taken that this sandbox is a fork of, or was reset to: its copy goes on here. Of
        several who ask for one, the first gets it; the others get NotFound.
        """
        limit = size_in_bytes(self._policy.max_output, _DEFAULT_OUTPUT)
        if id is not None:
            if cwd is not None or env is not None or user is not None:
                raise InvalidArgument("shell: a copy has the cwd, env and user that it has", stage="arguments")
            return Shell.attach(self._session(), id, self._shell_name, limit, self._policy.timeout)
        return Shell(self._session(), self._shell_name, limit, self._policy.timeout, {"cwd": cwd, "env": env, "user": user})

    # Its states

    def snapshot(self, name: Optional[str] = None, *, processes: Processes = "keep") -> Snapshot:
        """Keeps its state: the private files, and the processes that run, with their memory, at one moment. They stand still meanwhile
        and run on. `name` is another name for its id among the forks and their origin. processes: "drop" keeps the files alone.

        Raises FeatureMissing for what cannot be captured (nothing was changed then), ResourceExhausted (disk full), InvalidArgument."""
        made: Snapshot = _fields(Snapshot, self._session().json("rollbox_snapshot", snapshot_id(name), ctypes.byref(_state(processes))))
        if self._first is None:
            self._first = made.id
        return made

    def fork(self: _Made, n: int = 1, *, snapshot: Optional[SnapshotLike] = None, processes: Processes = "keep",
             record: Union[RecordLike, bool] = True, same_seed: bool = False) -> List[_Made]:
        """n new sessions of the same policy in the state of a snapshot (None: of now), files and processes: each has a copy of what ran,
        whose commands have the ids that they have here (`process(id)`, `shell(id)`). They share nothing writable with this one or each
        other, and end on their own: close them, or use each in a `with`. All or none are made. processes: "drop" for the files alone. record:
        as of Sandbox (a path, descriptor or function alone: with this one's rules for secrets); True: as this one is, False: not. Under a policy with random_seed each has a seed of its own, which follows from this one's
        and from how many forks that had before it; with same_seed all have this one's; inspect() tells which. Commands that are started in the
        k-th, from 0, find CLONE_ID=k in their environment, unless they are given another. Raises as snapshot, and SetupFailed if a process
        cannot go on."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InvalidArgument(f"n must be a positive number of sandboxes, not {n!r}", stage="arguments")
        return self._forks(n, snapshot, _state(processes, same_seed), record)

    def _forks(self: _Made, n: int, snapshot: Optional[SnapshotLike], options: _ffi.StateOptions, record: Union[RecordLike, bool] = True) -> List[_Made]:
        kept = self._record if record is True else None if record is False else Record.of(record, rules_of=self._record)
        forks = []
        for handle in self._session().fork(snapshot_id(snapshot), n, options):
            fork = self._kin(kept)
            fork._handle = handle
            fork._shell, fork._first = self._shell, self._first
            forks.append(fork)
        if kept is not None:
            for fork in forks:
                fork._session().record(kept, child=record is True)
                fork._note_recording(fork._session())
        return forks

    def reset(self, snapshot: Optional[SnapshotLike] = None, *, processes: Processes = "keep") -> None:
        """Back to a snapshot (None: the latest of this session's line, or how it began). All its processes are killed, and commands under
        way raise Cancelled; those of the snapshot go on (`process(id)`, `shell(id)`), unless processes is "drop". Raises SetupFailed if
        one cannot: the session has the snapshot's files then, and no processes."""
        self._session().call("rollbox_reset", snapshot_id(snapshot), ctypes.byref(_state(processes)))

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
            raise InvalidArgument(f"a note must be something that JSON has: {problem}", stage="arguments") from None
        self._session().call("rollbox_note", text.encode("ascii"))

    def kill_all(self) -> None:
        """Kills every process of the session, background ones too; files stay. Commands under way end with signal 9."""
        self._session().call("rollbox_signal", None, int(signal.SIGKILL), _ffi.SCOPES["tree"])

    def tree(self) -> Tree:
        """The snapshots of this session, its origin and its forks; str(tree) draws them."""
        rows = self._session().json("rollbox_sandbox_query", _ffi.QUERY_TREE)["snapshots"]
        return Tree(
            Node(id=row["id"], name=row.get("name"), parent=row.get("parent"), bytes=row.get("bytes", 0), files=row.get("files", 0),
                 created=row.get("created"), sandboxes=tuple(row.get("sandboxes", ())), processes=row.get("processes", 0),
                 memory_bytes=row.get("memory_bytes", 0), kind=row.get("kind", "files"), disk_bytes=row.get("disk_bytes", 0),
                 automatic=row.get("automatic", False))
            for row in _parents_first(rows))

    def show(self, snapshot: Optional[SnapshotLike] = None) -> Dict[str, Any]:
        """What a snapshot (None: the latest of this session's line) holds: id, name, parent, bytes and files; commands; kernel, memory_bytes and
        processes (pid, parent, name, command, threads, memory_bytes, descriptors by kind); changes, the files, from the snapshot before it.
        A sleeping session is not woken: asleep is true, and changes None. Raises NotFound."""
        held: Dict[str, Any] = self._session().json("rollbox_snapshot_show", snapshot_id(snapshot))
        return held

    def verify(self, snapshot: Optional[SnapshotLike] = None) -> Dict[str, Any]:
        """The same, with sound, and checks: [{"what", "ok", "why"}]: whether it is what was kept, and what would refuse its processes here.
        They are made in a sandbox of their own, and do not go on. Of a sleeping session what is on the disk is checked. Raises NotFound;
        what is not sound is no exception."""
        checked: Dict[str, Any] = self._session().json("rollbox_snapshot_verify", snapshot_id(snapshot))
        return checked

    def diff(self, start: Optional[SnapshotLike] = None, end: Optional[SnapshotLike] = None, *, text: bool = False) -> List[Change]:
        """What differs from one state (None: how it began) to another (None: now), by path. text: unified diffs of text files, too."""
        answer = self._session().json("rollbox_diff", snapshot_id(start), snapshot_id(end), text)
        return [_fields(Change, row, path=_name(row, "path")) for row in answer["changes"]]

    def commit(self, path: Optional[Path] = None, *, force: bool = False) -> List[Dict[str, Any]]:
        """Publishes what was changed below a granted fs_writable path (None: below all of them) on the host; a crash leaves each old or
        new. Returns [{"path", "changes"}]. Raises Conflict if the host's files were changed meanwhile, unless `force`."""
        raw = None if path is None else os.fsencode(path)
        committed: List[Dict[str, Any]] = self._session().json("rollbox_commit", raw, force)["committed"]
        return committed

    def export(self, host_path: Path, snapshot: Optional[SnapshotLike] = None, *, processes: Processes = "drop") -> None:
        """Writes a snapshot (None: of now) as one file of the host: its files, which `rollbox import` brings into a store for
        `image="snapshot:NAME"`. processes="keep": with what runs, which `rollbox import` makes a sandbox of that sleeps, for a shared
        engine, perhaps of another machine with the same kernel and processor. A session that sleeps is not woken for that."""
        live = _state(processes).processes == _ffi.PROCESSES["keep"]
        self._session().call("rollbox_export_live" if live else "rollbox_export", snapshot_id(snapshot), os.fsencode(host_path))

    def grade(
        self,
        files: Mapping[str, Data],
        command: Argv,
        *,
        outputs: Optional[Sequence[str]] = None,
        base: Optional[SnapshotLike] = None,
        verifier: Optional[Policy] = None,
        distrust: Optional[Sequence[str]] = None,
        collect: Sequence[str] = (),
        unsafe_in_place: bool = False,
        policy: Union[Policy, Mapping[str, Any], None] = None,
        env: Optional[Environment] = None,
        cwd: Optional[Path] = None,
        user: Optional[User] = None,
        timeout: Timeout = None,
        text: bool = False,
        max_output: Optional[int] = None,
        trace: bool = False,
    ) -> Grade[Any]:
        """What a verifier's command says of the outputs as they are now. It runs in a new sandbox that has nothing of this session but the
        outputs, copied as plain files, and ends with the verdict. This session sees neither the verifier's files nor the verdict.

        files: {path: data} of the verifier, put in place of whatever is there. command: as for `exec`, but a str is for `bash -c`.
        outputs: the files and directories that the graded is to deliver. None: every file that it has changed since `base`, outside of
        the directories of programs; this is less safe, and warns once.
        base: the snapshot that the new sandbox begins with; by default the first that `snapshot` took in this session (or in the one that it is
        a fork of), or how it began if there is none. Take it after setting the task up and before the first step of the graded.
        verifier: a policy for the new sandbox, such as one with an image of the verifier's own, in place of `base`.
        distrust: name patterns of files that steer verifiers. In directories of outputs they are not taken, and stay what they are in
        `base`; a file that is itself named in outputs is. By default rollbox.VERIFIER_CONTROL_FILES.
        collect: paths that the command writes. Grade.files has those that are plain files when all that the command started is dead.
        unsafe_in_place: the command runs in a copy of this session's files instead. Less safe; warns once.
        policy: timeout, max_output, env, cwd, user for the command; other keys cannot differ from the session's.
        timeout: of the command in seconds; None: the policy's, else 300.
        trace: the command may trace processes (gdb, strace, LeakSanitizer). By default it and all that it starts may not, so that a
        program of the graded that it runs cannot trace it.

        What the graded causes (links and devices for outputs, too much, a process that fights the copy) is a Grade that has failed with a
        `reason`, never an exception. Raises what `exec` and `fork` raise for what rollbox could not do, and InvalidArgument.
        docs/verifiers.md tells how to write a verifier that the answer it runs cannot fool.
        """
        return grade(self, files, command, outputs=outputs, base=base, verifier=verifier, distrust=distrust, collect=collect,
                     unsafe_in_place=unsafe_in_place, policy=policy, env=env, cwd=cwd, user=user, timeout=timeout, text=text, max_output=max_output,
                     trace=trace)

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
        self._session().call("rollbox_hibernate", ctypes.byref(_state(processes)))

    def wake(self, *, processes: Processes = "keep") -> None:
        """Ends its sleep; harmless without one. processes="drop": with its files alone. Raises FeatureMissing if its processes were put to
        sleep under another kernel or processor, Damaged if the store has not what was written; it sleeps on then."""
        self._session().call("rollbox_wake", ctypes.byref(_state(processes)))

    def inspect(self) -> Dict[str, Any]:
        """name, state, policy, isolation, snapshot, execs, memory_bytes, disk_bytes and more."""
        report: Dict[str, Any] = self._session().json("rollbox_sandbox_query", _ffi.QUERY_INSPECT)
        return report

    def processes(self) -> List[Dict[str, Any]]:
        """pid (inside), parent, state, command, cpu_ms, memory_bytes and exec (an id) of each of its processes."""
        rows: List[Dict[str, Any]] = self._session().json("rollbox_sandbox_query", _ffi.QUERY_PROCESSES)["processes"]
        return rows


def _parents_first(rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    ids = {row["id"] for row in rows}
    below: Dict[Optional[str], List[Mapping[str, Any]]] = {}
    for row in rows:
        parent = row.get("parent")
        below.setdefault(parent if parent in ids else None, []).append(row)
    todo = list(reversed(below.get(None, [])))
    while todo:
        row = todo.pop()
        yield row
        todo += reversed(below.get(row["id"], []))


_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()


def _after_fork() -> None:
    for session in list(_sessions):
        session._opening = threading.Lock()     # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)
