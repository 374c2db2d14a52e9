# SPDX-License-Identifier: Apache-2.0
"""The part of a pool on one node: an engine, the jobs it runs, and the sandboxes that stay.

It does not know Ray: a pool calls it through an actor. Every object that a call returns and that
cannot be sent (a sandbox, a process, a shell) stays here; the caller gets a number for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import select
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Optional, Union

from .._clone_result import WorkFailed
from .._clones import CloneWork
from .._core.errors import EngineLost, EngineStartFailed, InternalError, NotFound, RollboxError
from .._core.policy import Policy
from .._core.program import program, program_error
from .._core.request import error_result
from .._engine import Engine
from .._process import Process, Stream
from .._sandbox import Sandbox
from .._shell import Shell
from ._objects import Kept, Reference, Target
from ._runner import Row, Rows, Runner
from ._transfer import download, upload

# The engine ends, and its directory goes, when the pipe to this shell is closed, however the
# actor's process ends. The shell is no child of the actor: when an actor's process dies, Ray kills
# the children that it had, by SIGKILL and without theirs.
_SUPERVISOR = """
exec 3<&0 </dev/null
{
    "$0" engine start --socket "$1/engine" 3<&- & engine=$!
    read -r line <&3
    kill -TERM $engine
    wait $engine
    rm -rf "$1"
} &
"""
_START_S = 30
_REAP_S = 1.0


class OwnEngine:
    """A shared engine that ends with this process."""

    def __init__(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="rollbox-ray-")
        self.socket = os.path.join(self.directory, "engine")
        self._closed = False
        reader, self._pipe = os.pipe()
        try:
            subprocess.run(
                ["sh", "-c", _SUPERVISOR, program(), self.directory],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                check=True,
            )
            self.engine = self._connect()
            self._process = os.pidfd_open(self.engine.pid)
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(reader)

    def _connect(self) -> Engine:
        until = time.monotonic() + _START_S
        while True:
            try:
                return Engine(self.socket)
            except (EngineStartFailed, EngineLost):
                if time.monotonic() > until:
                    raise
            time.sleep(0.02)

    def has_ended(self, wait_s: float = 0) -> bool:
        """Whether the engine's process is gone, after up to wait_s seconds."""
        return self._closed or bool(select.select([self._process], [], [], wait_s)[0])

    def close(self) -> None:
        """Ends the engine with all of its sandboxes."""
        if not self._closed:
            os.close(self._pipe)
            self.has_ended(10)
            self._closed = True
            os.close(self._process)


class NodeHost:
    """The calls that a pool makes. `engine` is "private" or the socket of a shared engine."""

    def __init__(
        self, policy: str, slots: Optional[int], engine: str, setup: Any, node: str
    ) -> None:
        self.node = node
        self.policy = Policy.from_json(policy)
        self.slots = slots if slots is not None else len(os.sched_getaffinity(0))
        self._own = OwnEngine() if engine == "private" else None
        self.engine = self._own.engine if self._own is not None else Engine(engine)
        self.rows = Rows()
        self._lock = threading.Lock()
        self._objects: dict[int, Kept] = {}
        self._next = 0
        self._snapshots: dict[str, Sandbox[Any]] = {}
        self._clones: dict[str, _Interpreter] = {}
        self._clone_runs: set[Any] = set()
        self._closed = threading.Event()
        try:
            self._origin = self._set_up(setup) if setup is not None else None
        except BaseException:
            if self._own is not None:
                self._own.close()
            raise
        fork = None if self._origin is None else self._fork_origin
        self.runner = Runner(self.engine, self.policy, self.slots, self.rows, fork)
        threading.Thread(target=self._reap, name="rollbox-leases", daemon=True).start()

    def describe(self) -> dict[str, Any]:
        """The node's process, engine and width."""
        return {
            "node": self.node,
            "pid": os.getpid(),
            "engine_pid": self.engine.pid,
            "slots": self.slots,
        }

    def status(self) -> dict[str, Any]:
        """What the node has now."""
        with self._lock:
            boxes = sum(isinstance(kept.value, Sandbox) for kept in self._objects.values())
        return {**self.describe(), "sandboxes": boxes, "snapshots": sorted(self._snapshots)}

    def _set_up(self, setup: Any) -> Sandbox[Any]:
        box = Sandbox(self.policy, engine=self.engine)
        try:
            if callable(setup):
                setup(box)
            else:
                box.exec(setup).check()
            box.snapshot()
        except BaseException:
            box.close()
            raise
        return box

    def _fork_origin(self) -> Sandbox[Any]:
        assert self._origin is not None
        return self._origin.fork(1)[0]

    # Jobs

    def exchange(
        self,
        jobs: Sequence[tuple[int, str, Any]],
        interpreters: dict[str, tuple[str, bytes, str]],
        wait_s: float,
    ) -> list[Row]:
        """Takes jobs and gives the rows of those that ended; waits up to wait_s for one.

        `interpreters` has policy, functions and program of clones that come for the first time.
        """
        if self._own is not None and self._own.has_ended():
            raise EngineLost("the engine of this node has ended", stage="run")
        with self._lock:
            for key, (policy, functions, python) in interpreters.items():
                box: Sandbox[Any] = Sandbox(Policy.from_json(policy), engine=self.engine)
                self._clones[key] = _Interpreter(box, CloneWork.of_packed(functions, python))
        runs = [(index, *payload) for index, kind, payload in jobs if kind == "run"]
        if runs:
            self.runner.push(runs)
        kinds: dict[str, list[tuple[int, Any]]] = {}
        for index, kind, payload in jobs:
            if kind != "run":
                kinds.setdefault(kind, []).append((index, payload))
        for key, clones in kinds.items():
            self.rows.expect(len(clones))
            threading.Thread(target=self._run_clones, args=(key, clones), daemon=True).start()
        return self.rows.take(wait_s)

    def cancel(self, indices: Sequence[int]) -> None:
        """Kills jobs and clones whose results nobody wants."""
        self.runner.cancel(indices)
        unwanted = set(indices)
        with self._lock:
            runs = [run for run in self._clone_runs if run.wanted & unwanted]
        for run in runs:
            run.drop(unwanted)

    # Clones

    def close_clones(self, key: str) -> None:
        """Ends that interpreter."""
        with self._lock:
            found = self._clones.pop(key, None)
        if found is not None:
            found.close()

    def _run_clones(self, key: str, clones: Sequence[tuple[int, Any]]) -> None:
        indices = {payload["number"]: index for index, payload in clones}
        start = time.monotonic()
        run = None
        try:
            with self._lock:
                found = self._clones.get(key)
            if found is None:
                raise NotFound("the interpreter of the clones is closed", stage="run")
            run = _CloneRun(found.warm(), clones[0][1]["options"], indices, self.slots)
            with self._lock:
                self._clone_runs.add(run)
            for clone in run.clones:
                index = indices.pop(clone.id, None)
                if index is not None:
                    self.rows.put((index, clone, (time.monotonic() - start) / len(clones)))
        except (RollboxError, WorkFailed) as error:
            for index in indices.values():
                self.rows.put((index, error, 0))
            indices = {}
        except Exception as error:  # a row is owed for each clone
            for number, index in indices.items():
                problem = InternalError(repr(error), stage="run")
                self.rows.put((index, error_result(problem, False, number), 0))
            indices = {}
        finally:
            if run is not None:
                with self._lock:
                    self._clone_runs.discard(run)
            for _ in indices:
                self.rows.put(None)

    # Sandboxes

    def create(
        self, policy: Optional[str], snapshot: Optional[str], lease_s: float, options: Any
    ) -> Reference:
        """Makes a sandbox: of a policy, of the pool's, or a fork of a snapshot that is here."""
        box: Sandbox[Any]
        if snapshot is not None:
            box = self._holder(snapshot).fork(1)[0]
        elif policy is None and self._origin is not None and not options:
            box = self._fork_origin()
        else:
            made = self.policy if policy is None else Policy.from_json(policy)
            box = Sandbox(made, engine=self.engine, **options)
            box._enter()
        return self._keep(box, lease_s)

    def fork_snapshot(self, snapshot: str, n: int, lease_s: float) -> list[Reference]:
        """Makes forks of a snapshot that is here."""
        return [self._keep(box, lease_s) for box in self._holder(snapshot).fork(n)]

    def call(self, target: Target, name: str, arguments: Any, options: Any) -> tuple[bool, Any]:
        """Calls a method of an object, or reads an attribute; (False, exception) if it raised."""
        try:
            with self._using(target) as kept:
                value = getattr(kept.value, name)
                if callable(value):
                    value = value(*arguments, **options)
                elif arguments or options:
                    raise TypeError(f"{name} is not a method")
                return True, self._sendable(value, kept.lease_s)
        except Exception as error:  # goes to the caller as it is
            return False, error

    def upload(self, target: Target, data: bytes, guest: str, options: Any) -> tuple[bool, Any]:
        """Puts files of the caller's machine into a sandbox."""
        try:
            with self._using(target) as kept:
                upload(kept.value, data, guest, options)
                return True, None
        except Exception as error:  # goes to the caller as it is
            return False, error

    def download(self, target: Target, guest: str, max_bytes: Any) -> tuple[bool, Any]:
        """The files of a sandbox, for the caller's machine."""
        try:
            with self._using(target) as kept:
                return True, download(kept.value, guest, max_bytes)
        except Exception as error:  # goes to the caller as it is
            return False, error

    def drop(self, targets: Iterable[Target]) -> None:
        """Closes objects; unknown ones are fine."""
        for target in targets:
            with self._lock:
                kept = self._objects.pop(target, None)
            if kept is not None and hasattr(kept.value, "close"):
                with contextlib.suppress(RollboxError, OSError):
                    kept.value.close()

    def renew(self, targets: Iterable[Target]) -> None:
        """Renews the leases of objects."""
        now = time.monotonic()
        with self._lock:
            for target in targets:
                if target in self._objects:
                    self._objects[target].used = now

    def _keep(self, value: Any, lease_s: float) -> Reference:
        with self._lock:
            self._next += 1
            self._objects[self._next] = Kept(value, lease_s)
            return Reference(type(value).__name__, self._next)

    @contextlib.contextmanager
    def _using(self, target: Target) -> Any:
        with self._lock:
            kept = self._objects.get(target)
            if kept is None:
                raise NotFound(
                    "the sandbox is closed, or its lease has ended (lease_ttl)", stage="run"
                )
            kept.calls += 1
        try:
            yield kept
        finally:
            with self._lock:
                kept.calls -= 1
                kept.used = time.monotonic()

    def _sendable(self, value: Any, lease_s: float) -> Any:
        if isinstance(value, (Sandbox, Process, Shell, Stream)) or hasattr(value, "fileno"):
            return self._keep(value, lease_s)
        if isinstance(value, list) and value and isinstance(value[0], Sandbox):
            return [self._keep(one, lease_s) for one in value]
        return value

    def _reap(self) -> None:
        while not self._closed.wait(_REAP_S):
            now = time.monotonic()
            with self._lock:
                old = [target for target, kept in self._objects.items() if kept.has_expired(now)]
            self.drop(old)

    # Snapshots

    def export(
        self, target: Target, snapshot: Optional[str], processes: str
    ) -> tuple[dict[str, Any], Union[bytes, Exception]]:
        """A snapshot as the content of one file, and its digest and size."""
        with tempfile.TemporaryDirectory(prefix="rollbox-ray-") as place:
            path = os.path.join(place, "snapshot")
            try:
                with self._using(target) as kept:
                    kept.value.export(path, snapshot, processes="keep")
                data = pathlib.Path(path).read_bytes()
            except Exception as error:  # goes to the caller as it is
                return {}, error
        digest = hashlib.sha256(data).hexdigest()
        return {"digest": digest, "bytes": len(data), "processes": processes}, data

    def warm(self, digest: str, data: bytes, processes: str) -> None:
        """Imports a snapshot, of which sandboxes can then be forked here."""
        with self._lock:
            if digest in self._snapshots:
                return
        if hashlib.sha256(data).hexdigest() != digest:
            raise InternalError("the snapshot's content is not that of its digest", stage="import")
        name = f"ray-{digest[:16]}-{uuid.uuid4().hex[:8]}"
        with tempfile.NamedTemporaryFile(prefix="rollbox-ray-") as file:
            file.write(data)
            file.flush()
            words = [program(), "import", "--json", "--trust", "--name", name]
            words += ["--socket", self._socket()]
            words += ["--drop-processes"] if processes == "drop" else []
            done = subprocess.run([*words, file.name], capture_output=True)
        if done.returncode:
            raise program_error(done.stderr)
        box: Sandbox[Any] = Sandbox.open(name, engine=self.engine)
        box.wake()
        with self._lock:
            self._snapshots.setdefault(digest, box)
            kept = self._snapshots[digest]
        if kept is not box:
            box.close()

    def forget_snapshot(self, digest: str) -> None:
        """Closes what `warm` made."""
        with self._lock:
            box = self._snapshots.pop(digest, None)
        if box is not None:
            box.close()

    def _holder(self, digest: str) -> Sandbox[Any]:
        with self._lock:
            box = self._snapshots.get(digest)
        if box is None:
            raise NotFound(f"node {self.node} does not have the snapshot", stage="run")
        return box

    def _socket(self) -> str:
        if self._own is not None:
            return self._own.socket
        assert self.engine._socket is not None
        return os.fsdecode(self.engine._socket)

    def stop(self) -> None:
        """Ends everything."""
        self._closed.set()
        self.runner.close()
        with self._lock:
            boxes = [*self._snapshots.values(), *(one.box for one in self._clones.values())]
            targets = list(self._objects)
        for box in boxes:
            with contextlib.suppress(RollboxError):
                box.close()
        self.drop(targets)
        if self._origin is not None:
            with contextlib.suppress(RollboxError):
                self._origin.close()
        self.engine.close()
        if self._own is not None:
            self._own.close()


class _Interpreter:
    """The interpreter of clones, which starts with the first of them."""

    def __init__(self, box: Sandbox[Any], work: CloneWork[Any]) -> None:
        self.box, self.work = box, work

    def warm(self) -> _Interpreter:
        """Starts it; raises WorkFailed if init_fn fails."""
        self.work.warm(self.box)
        return self

    def close(self) -> None:
        """Ends it."""
        with contextlib.suppress(RollboxError):
            self.box.close()


class _CloneRun:
    """Clones of one push that run, and those of them whose results are wanted."""

    def __init__(
        self, origin: _Interpreter, options: dict[str, Any], indices: dict[int, int], slots: int
    ) -> None:
        self.wanted = set(indices.values())
        self.loop, self.clones = origin.work.start_numbers(
            origin.box,
            list(indices),
            timeout=options["timeout"],
            seed=options["seed"],
            concurrency=slots,
            max_value=options["max_value"],
        )

    def drop(self, indices: set[int]) -> None:
        """Stops when no result is wanted any more."""
        self.wanted -= indices
        if not self.wanted:
            self.loop.stop()
