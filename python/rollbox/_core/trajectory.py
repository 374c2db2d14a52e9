# SPDX-License-Identifier: Apache-2.0
"""Trajectory: reads what was done in a sandbox and what came of it.

docs/reference/trajectories.md has the format. A file may have been cut off anywhere (its writer
killed, a full disk) or changed since. Complete steps are yielded one by one, however large the file
is; `complete`, `torn` and `changed_line` tell about the rest once everything was read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Optional, Union

from .errors import FeatureMissing, InvalidArgument

FORMAT = "rollbox-trajectory/1"

_MAX_LINE = 64 << 20
_KEPT = ("text", "base64", "truncated")


@dataclass(frozen=True)
class Content:
    """A stream or file of a step.

    Attributes:
        size: Bytes.
        sha256: The digest of all of it; None if it was withheld.
        data: What was kept of it: everything unless `truncated`.
        truncated: There is more than data has.
        withheld: Rules for secrets could not be applied to it, so nothing was kept.
    """

    size: int
    sha256: Optional[str]
    data: bytes
    truncated: bool = False
    withheld: bool = False

    @property
    def text(self) -> str:
        """The data as str, with invalid UTF-8 replaced."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class Action:
    """What was done. Attributes that the kind does not have are None or empty.

    Attributes:
        kind: "exec", "write_file", "mkdir", "remove", "upload", "snapshot", "files", "fork",
            "reset", "commit", "signal", "shell" or "note".
        argv: The arguments; bytes that are not UTF-8 are as of os.fsdecode.
        cwd: The working directory.
        env: Names of variables.
        env_values: Their values, if these were recorded.
        stdin: The standard input.
        files: Files that were written before the start, by path.
        timeout: Seconds.
        path: A path; bytes that are not UTF-8 are as of os.fsdecode.
        content: The content of a file.
        snapshot: The id of a snapshot.
        count: The number of forks.
        processes: "keep" or "drop".
        command: Of "shell": the command.
        exec: Of "shell": the step that started the shell.
        data: Of "note": its data.
        fields: All of the action as in the file.
    """

    kind: str
    argv: Sequence[str] = ()
    cwd: Optional[str] = None
    env: Sequence[str] = ()
    env_values: Optional[Mapping[str, str]] = None
    stdin: Optional[Content] = None
    files: Mapping[str, Content] = field(default_factory=dict)
    timeout: Optional[float] = None
    path: Optional[str] = None
    content: Optional[Content] = None
    snapshot: Optional[str] = None
    count: Optional[int] = None
    processes: Optional[str] = None
    command: Optional[Content] = None
    exec: Optional[int] = None
    data: Any = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Observation:
    """What came of an action.

    Attributes:
        outcome: Of a command as of a Result ("exit", "signal", "timeout", ...); else "done" or
            "error".
        exit_code: The exit status.
        signal: The signal's number.
        stdout: Standard output.
        stderr: Standard error.
        stdout_cut: There was more than the output limit.
        stderr_cut: There was more than the output limit.
        snapshot: The id of the snapshot that was taken.
        error: The code of an error.
        changes: Of "files": {"path", "change", "type", "size", "sha256", ...} of each file that is
            not as it was in the beginning.
    """

    outcome: str
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    stdout: Optional[Content] = None
    stderr: Optional[Content] = None
    stdout_cut: bool = False
    stderr_cut: bool = False
    snapshot: Optional[str] = None
    error: Optional[str] = None
    changes: Optional[Sequence[Mapping[str, Any]]] = None


@dataclass(frozen=True)
class Resources:
    """What a command used.

    Attributes:
        wall_ms: Milliseconds.
        cpu_ms: Milliseconds of processor time.
        peak_memory_bytes: The most memory at once.
        processes_peak: The most processes at once.
        read_bytes: Bytes that read and the like passed (files, pipes, sockets), by the command and
            the children that it waited for; None if unknown.
        written_bytes: Likewise, of write.
    """

    wall_ms: float
    cpu_ms: float
    peak_memory_bytes: int
    processes_peak: int
    read_bytes: Optional[int] = None
    written_bytes: Optional[int] = None


@dataclass(frozen=True)
class Chance:
    """Where the randomness of a command came from, under a policy with random_seed.

    Attributes:
        seed: The sandbox's seed.
        stream: The stream that the command began with, from 0; None if it never began.
    """

    seed: int
    stream: Optional[int]


@dataclass(frozen=True)
class Child:
    """A sandbox that a fork made.

    Attributes:
        id: Its id.
        name: Its name.
        random_seed: Its seed, if the policy has one.
    """

    id: str
    name: str
    random_seed: Optional[int] = None


@dataclass(frozen=True)
class Step:
    """One action with its observation.

    Steps are in the file, and are yielded, in the order of their ends.

    Attributes:
        sandbox: The id of the sandbox.
        number: Counts actions in the order of requests, from 1.
        begun_at: How many steps had ended when this one began.
        time: Its end, in seconds since 1970.
        action: What was done.
        observation: What came of it.
        resources: What it used, or None.
        children: The sandboxes that it made.
        message: An error's text, or None.
        digest: The digest of everything up to here: equal digests, equal histories.
        chance: Where its randomness came from, or None.
        after: Of an automatic snapshot, and of the files that a command has changed: the step of
            that command.
    """

    sandbox: str
    number: int
    begun_at: int
    time: float
    action: Action
    observation: Observation
    resources: Optional[Resources]
    children: Sequence[Child]
    message: Optional[str]
    digest: str
    chance: Optional[Chance] = None
    after: Optional[int] = None


@dataclass(frozen=True)
class Parent:
    """Where a fork came from.

    Attributes:
        id: The sandbox's id.
        step: The step that forked it, if that was recorded.
        snapshot: The snapshot.
        digest: The digest of the parent's record there.
        index: Which child of that fork it is, from 0.
    """

    id: str
    step: Optional[int]
    snapshot: Optional[str]
    digest: Optional[str]
    index: int = 0


@dataclass(frozen=True)
class Header:
    """The first line of a trajectory.

    Attributes:
        rollbox: The version that wrote it.
        id: The sandbox's id.
        name: The sandbox's name.
        parent: Where it was forked from, or None.
        from_beginning: Whether recording began with the sandbox.
        time: Seconds since 1970.
        policy: The policy, without values of variables unless these were asked for.
        policy_sha256: Its digest.
        image: The image, or None.
        image_sha256: Its digest.
        random_seed: The seed, or None.
        time_start: Where the clock began, or None.
        isolation: The isolation that was applied.
        digest: The digest of this line.
        fields: All of it as in the file.
    """

    rollbox: str
    id: str
    name: str
    parent: Optional[Parent]
    from_beginning: bool
    time: float
    policy: Mapping[str, Any]
    policy_sha256: str
    image: Optional[str]
    image_sha256: Optional[str]
    random_seed: Optional[int]
    time_start: Optional[str]
    isolation: Mapping[str, Any]
    digest: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class End:
    """The last line of a trajectory; without it, more may have happened.

    Attributes:
        reason: "closed", or why it ended early: "file_limit", "lost" (the recorder could not keep
            up) or "engine_lost".
        steps: How many steps there were.
    """

    reason: str
    steps: int


# Digests


def _hash_value(to: Any, value: Any) -> None:
    if value is None:
        to.update(b"n0;")
    elif isinstance(value, bool):
        to.update(b"b1;" if value else b"b0;")
    elif isinstance(value, int):
        to.update(b"i%d;" % value)
    elif isinstance(value, float):
        to.update(b"r%.12g;" % value)
    elif isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        to.update(b"s%d;" % len(data))
        to.update(data)
    elif isinstance(value, list):
        to.update(b"a%d;" % len(value))
        for item in value:
            _hash_value(to, item)
    else:
        skipped = _KEPT if "sha256" in value else ()
        keys = sorted(
            (key for key in value if key not in skipped),
            key=lambda key: key.encode("utf-8", "surrogatepass"),
        )
        to.update(b"o%d;" % len(keys))
        for key in keys:
            _hash_value(to, key)
            _hash_value(to, value[key])


def chain_begin(header: Mapping[str, Any]) -> str:
    """The digest that a trajectory with this header begins with."""
    chain = hashlib.sha256()
    image, parent = header.get("image") or {}, header.get("parent") or {}
    for part in (
        FORMAT,
        header["policy_sha256"],
        image.get("sha256") or "",
        parent.get("digest") or "",
    ):
        _hash_value(chain, part)
    return chain.hexdigest()


def chain_add(digest: str, action: Any, observation: Any) -> str:
    """The digest after a step with this action and observation, as they are in the file."""
    chain = hashlib.sha256()
    for part in (digest, action, observation):
        _hash_value(chain, part)
    return chain.hexdigest()


# Lines


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError("a key occurs twice")  # and readers may differ in which of them counts
    return row


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return base64.b64decode(value["base64"]).decode("utf-8", "surrogateescape")


def _content(value: Any) -> Optional[Content]:
    if not isinstance(value, dict) or "bytes" not in value:
        return None
    raw = (
        base64.b64decode(value["base64"])
        if "base64" in value
        else value.get("text", "").encode("utf-8", "surrogatepass")
    )
    return Content(
        value["bytes"],
        value.get("sha256"),
        raw,
        bool(value.get("truncated")),
        bool(value.get("withheld")),
    )


def _action(row: Mapping[str, Any]) -> Action:
    env, timeout, files = row.get("env", ()), row.get("timeout_ms"), {}
    for item in row.get("files", ()):
        content = _content(item.get("content"))
        if content is not None:
            files[_text(item["path"])] = content
    return Action(
        kind=row["kind"],
        argv=tuple(_text(word) for word in row.get("argv", ())),
        cwd=_text(row["cwd"]) if row.get("cwd") is not None else None,
        env=tuple(_text(name) for name in env),
        env_values={name: _text(value) for name, value in env.items()}
        if isinstance(env, dict)
        else None,
        stdin=_content(row.get("stdin")),
        files=files,
        timeout=timeout / 1000 if timeout is not None else None,
        path=_text(row["path"]) if row.get("path") is not None else None,
        content=_content(row.get("content")),
        snapshot=row.get("snapshot"),
        count=row.get("count"),
        processes=row.get("processes"),
        data=row.get("data"),
        command=_content(row.get("command")) if row["kind"] == "shell" else None,
        exec=row.get("exec"),
        fields=row,
    )


def _observation(row: Mapping[str, Any]) -> Observation:
    return Observation(
        outcome=row["outcome"],
        exit_code=row.get("exit_code"),
        signal=row.get("signal"),
        stdout=_content(row.get("stdout")),
        stderr=_content(row.get("stderr")),
        stdout_cut=bool(row.get("stdout_cut")),
        stderr_cut=bool(row.get("stderr_cut")),
        snapshot=row.get("snapshot"),
        error=(row.get("error") or {}).get("code"),
        changes=row.get("changes"),
    )


def _seed(value: Any) -> Any:
    """A seed; from 2**63 on, seeds are strings of digits, as in policies."""
    return int(value) if isinstance(value, str) else value


def _step(row: Mapping[str, Any], sandbox: str) -> Step:
    used, chance = row.get("resources"), row.get("chance")
    if (
        type(row["step"]) is not int
        or type(row["begun_at"]) is not int
        or not isinstance(row["digest"], str)
        or not isinstance(row["action"], dict)
    ):
        raise ValueError("a step's numbers, digest or action are not valid")
    return Step(
        sandbox=sandbox,
        number=row["step"],
        begun_at=row["begun_at"],
        time=row.get("time_ns", 0) / 1e9,
        action=_action(row["action"]),
        observation=_observation(row["observation"]),
        resources=Resources(
            used["wall_ms"],
            used["cpu_ms"],
            used["peak_memory_bytes"],
            used["processes_peak"],
            used.get("read_bytes"),
            used.get("written_bytes"),
        )
        if used
        else None,
        children=tuple(
            Child(child["id"], child["name"], _seed(child.get("random_seed")))
            for child in row.get("children", ())
        ),
        message=_text(row["message"]) if row.get("message") else None,
        digest=row["digest"],
        chance=Chance(_seed(chance["seed"]), chance.get("stream")) if chance else None,
        after=row.get("after"),
    )


def _header(row: Mapping[str, Any]) -> Header:
    parent, image = row.get("parent"), row.get("image") or {}
    return Header(
        rollbox=row.get("rollbox", ""),
        id=row["sandbox"]["id"],
        name=row["sandbox"]["name"],
        parent=Parent(
            parent["id"],
            parent.get("step"),
            parent.get("snapshot"),
            parent.get("digest"),
            parent.get("index", 0),
        )
        if parent
        else None,
        from_beginning=bool(row.get("from_beginning", True)),
        time=row.get("time_ns", 0) / 1e9,
        policy=row["policy"],
        policy_sha256=row["policy_sha256"],
        image=image.get("name"),
        image_sha256=image.get("sha256"),
        random_seed=_seed(row.get("random_seed")),
        time_start=row.get("time_start"),
        isolation=row.get("isolation") or {},
        digest=row["digest"],
        fields=row,
    )


_COLUMNS: tuple[tuple[str, str], ...] = (
    ("sandbox", "string"),
    ("step", "int64"),
    ("begun_at", "int64"),
    ("time", "float64"),
    ("kind", "string"),
    ("argv", "list"),
    ("cwd", "string"),
    ("path", "string"),
    ("snapshot", "string"),
    ("timeout", "float64"),
    ("stdin", "binary"),
    ("outcome", "string"),
    ("exit_code", "int64"),
    ("signal", "int64"),
    ("error", "string"),
    ("stdout", "binary"),
    ("stdout_bytes", "int64"),
    ("stdout_sha256", "string"),
    ("stderr", "binary"),
    ("stderr_bytes", "int64"),
    ("stderr_sha256", "string"),
    ("wall_ms", "float64"),
    ("cpu_ms", "float64"),
    ("peak_memory_bytes", "int64"),
    ("processes_peak", "int64"),
    ("read_bytes", "int64"),
    ("written_bytes", "int64"),
    ("children", "list"),
    ("digest", "string"),
    ("after", "int64"),
    ("seed", "string"),
    ("stream", "int64"),
    ("command", "binary"),
    ("data", "string"),
    ("changes", "string"),
    ("parent", "string"),
    ("policy_sha256", "string"),
    ("image_sha256", "string"),
)


def _json(value: Any) -> Optional[str]:
    return None if value is None else json.dumps(value, sort_keys=True, separators=(",", ":"))


def _row(step: Step, header: Header) -> dict[str, Any]:
    action, seen, used, chance = step.action, step.observation, step.resources, step.chance
    content = action.content if action.content is not None else action.stdin
    return {
        "sandbox": step.sandbox,
        "step": step.number,
        "begun_at": step.begun_at,
        "time": step.time,
        "kind": action.kind,
        "argv": list(action.argv),
        "cwd": action.cwd,
        "path": action.path,
        "snapshot": seen.snapshot or action.snapshot,
        "timeout": action.timeout,
        "stdin": content.data if content else None,
        "outcome": seen.outcome,
        "exit_code": seen.exit_code,
        "signal": seen.signal,
        "error": seen.error,
        "stdout": seen.stdout.data if seen.stdout else None,
        "stdout_bytes": seen.stdout.size if seen.stdout else None,
        "stdout_sha256": seen.stdout.sha256 if seen.stdout else None,
        "stderr": seen.stderr.data if seen.stderr else None,
        "stderr_bytes": seen.stderr.size if seen.stderr else None,
        "stderr_sha256": seen.stderr.sha256 if seen.stderr else None,
        "wall_ms": used.wall_ms if used else None,
        "cpu_ms": used.cpu_ms if used else None,
        "peak_memory_bytes": used.peak_memory_bytes if used else None,
        "processes_peak": used.processes_peak if used else None,
        "read_bytes": used.read_bytes if used else None,
        "written_bytes": used.written_bytes if used else None,
        "children": [child.id for child in step.children],
        "digest": step.digest,
        "after": step.after,
        "seed": str(chance.seed) if chance else None,
        "stream": chance.stream if chance else None,
        "command": action.command.data if action.command else None,
        "data": _json(action.data),
        "changes": _json(seen.changes),
        "parent": header.parent.id if header.parent else None,
        "policy_sha256": header.policy_sha256,
        "image_sha256": header.image_sha256,
    }


class Trajectory:
    """A trajectory, read from a binary file. Iterate over it for its steps.

    A second iteration needs a file that can seek. `header` is there at once, the other attributes
    once all steps were yielded.

    Attributes:
        header: The Header.
        end: The End; None: the file was cut off, and more may have happened.
        torn: Half a line at the end was left out.
        changed_line: The number of the first line whose digest does not match the lines up to it:
            the file was changed after it was written. None: there is none.

    Raises:
        InvalidArgument: A line is not one of a trajectory; the message has its number.
    """

    def __init__(self, file: IO[bytes], name: str = "trajectory") -> None:
        self._file = file
        self._name = name
        self._line = 0
        self.end: Optional[End] = None
        self.torn = False
        self.changed_line: Optional[int] = None
        self.header = self._read_header()
        self._fresh = True

    @classmethod
    def open(cls, path: Union[str, os.PathLike[str]]) -> Trajectory:
        """Opens a file. Use it in a `with`, or `close` it.

        Args:
            path: The file.

        Returns:
            The trajectory.

        Raises:
            InvalidArgument: The file is not a trajectory.
            OSError: The file cannot be read.
        """
        file = open(path, "rb")
        try:
            return cls(file, os.fspath(path))
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Trajectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def complete(self) -> bool:
        """Whether everything that happened is in it, unchanged. False until all was read."""
        return self.end is not None and self.end.reason == "closed" and self.changed_line is None

    def _wrong(self, what: str) -> InvalidArgument:
        return InvalidArgument(f"{self._name}:{max(self._line, 1)}: {what}", stage="arguments")

    def _next(self) -> Optional[dict[str, Any]]:
        line = self._file.readline(_MAX_LINE + 1)
        if len(line) > _MAX_LINE:
            self._line += 1
            raise self._wrong("a line is too long for a trajectory")
        if not line.endswith(b"\n"):
            self.torn = bool(line)
            return None
        self._line += 1
        try:
            row = json.loads(line, object_pairs_hook=_once)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise self._wrong("is not a JSON object")
        return row

    def _check(self, digest: str, now: str) -> None:
        if digest != now and self.changed_line is None:
            self.changed_line = self._line
        self._digest = digest

    def _read_header(self) -> Header:
        row = self._next()
        if row is None:
            raise self._wrong(
                "it has no complete line: it is empty, or its first line is truncated"
            )
        if row.get("format") != FORMAT:
            raise self._wrong(f"is not a trajectory of a format that this version reads ({FORMAT})")
        try:
            header = _header(row)
            self._check(header.digest, chain_begin(row))
        except (
            KeyError,
            TypeError,
            AttributeError,
            ValueError,
            ArithmeticError,
            RecursionError,
        ) as problem:
            raise self._wrong("is not the header of a trajectory") from problem
        return header

    def __iter__(self) -> Iterator[Step]:
        if not self._fresh:
            self._file.seek(0)
            self._line, self.end, self.torn, self.changed_line = 0, None, False, None
            self._read_header()
        self._fresh = False
        while True:
            row = self._next()
            if row is None:
                return
            if self.end is not None:
                raise self._wrong("comes after the end of the trajectory")
            try:
                if "end" in row:
                    self.end = End(row["end"]["reason"], row["end"]["steps"])
                    self._check(row["digest"], self._digest)
                    continue
                step = _step(row, self.header.id)
                self._check(step.digest, chain_add(self._digest, row["action"], row["observation"]))
            except (
                KeyError,
                TypeError,
                AttributeError,
                ValueError,
                ArithmeticError,
                RecursionError,
            ) as problem:
                raise self._wrong("is not a step of a trajectory") from problem
            yield step

    def steps(self) -> list[Step]:
        """Returns all steps, by their numbers."""
        return sorted(self, key=lambda step: step.number)

    # Tables

    def to_rows(self) -> list[dict[str, Any]]:
        """Returns a flat dict per step, with the same keys for each.

        What is a tree (`data` of a note, `changes`) is JSON text. Each row also has what the header
        says of the whole.
        """
        return [_row(step, self.header) for step in self]

    def to_arrow(self) -> Any:
        """Returns the rows as a pyarrow.Table.

        Raises:
            FeatureMissing: pyarrow is not installed.
        """
        pyarrow = _pyarrow()
        types = {
            "string": pyarrow.string(),
            "int64": pyarrow.int64(),
            "float64": pyarrow.float64(),
            "binary": pyarrow.large_binary(),
            "list": pyarrow.list_(pyarrow.string()),
        }
        rows = self.to_rows()
        for row in rows:  # Arrow's strings are UTF-8
            for key in ("cwd", "path"):
                row[key] = _as_utf8(row[key])
            row["argv"] = [_as_utf8(word) for word in row["argv"]]
        return pyarrow.Table.from_pylist(
            rows, schema=pyarrow.schema([(name, types[kind]) for name, kind in _COLUMNS])
        )

    def to_parquet(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the rows to a Parquet file.

        Args:
            path: The file.

        Raises:
            FeatureMissing: pyarrow is not installed.
        """
        table = self.to_arrow()
        import pyarrow.parquet

        pyarrow.parquet.write_table(table, os.fspath(path))


def _as_utf8(text: Optional[str]) -> Optional[str]:
    if text is None:
        return None
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:  # in a file that rollbox did not write
        return text.encode("utf-8", "replace").decode()


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as problem:
        raise FeatureMissing(
            "tables need pyarrow, which is not installed: pip install pyarrow (to_rows() works "
            "without)",
            stage="arguments",
        ) from problem
    return pyarrow
