# SPDX-License-Identifier: Apache-2.0
"""rLLM: its Sandbox protocol, and the hooks by which it makes and boots snapshots.

    box = RollboxSandbox("task-17")             # create_rollbox_sandbox is rLLM's spelling
    hooks = SnapshotHooks(socket="/run/rollbox/engine")     # picklable

A snapshot is a detached sandbox that was set up and is idle; booting from it is a fork. Its
ref is its name on the engine. On a private engine (no socket) it lives as long as this process.
With a socket, each process joins the engine when it needs it.
"""

from __future__ import annotations

import logging
import os
import posixpath
from collections.abc import Mapping
from typing import Any, Callable, Optional

from .._core.errors import InvalidArgument, NotFound, RollboxError
from .._core.options import PolicyLike
from .._core.result import Outcome
from .._engine import Engine, default_engine
from .._sandbox import Sandbox
from ._common import HOST, EngineLike, engine_at, label, policy_for, remark_on, status_of

_log = logging.getLogger(__name__)


def _engine(engine: EngineLike, token: Optional[str] = None) -> Engine:
    """The engine, which each process opens once."""
    return engine_at(engine, token) or default_engine()


def _snapshot_not_found() -> Any:
    """RLLM's exception, or where it is not installed, one of that name."""
    try:
        from rllm.sandbox.protocol import SnapshotNotFound

        return SnapshotNotFound
    except ImportError:
        return SnapshotNotFoundError


class SnapshotNotFoundError(LookupError):
    """The snapshot that a sandbox was to begin from is gone."""


class CommandTimeout(RuntimeError, TimeoutError):
    """A command ran out of time."""


class RollboxSandbox:
    """A sandbox of rLLM.

    Threads may use it. It cannot be pickled, which its protocol does not ask for.
    """

    def __init__(
        self,
        name: str,
        image: str = HOST,
        *,
        policy: PolicyLike = None,
        images: Optional[Mapping[str, str]] = None,
        snapshot: Optional[str] = None,
        socket: EngineLike = None,
        workdir: Optional[str] = None,
        token: Optional[str] = None,
        labels: Optional[Mapping[str, Any]] = None,
        record: Any = None,
    ) -> None:
        """Makes the sandbox.

        Args:
            name: Its name for rLLM.
            image: An image of the store, by way of `images`; "host": the host's directories.
            policy: The policy.
            images: {rLLM's name: the store's}.
            snapshot: The ref of a snapshot to begin from, in place of an image.
            socket: The socket of a shared engine, or the address of a server; None: this process's
                private engine.
            workdir: The working directory; None: the policy's, else /tmp.
            token: The server's token; without one, the content of $ROLLBOX_TOKEN_FILE.
            labels: Names and values for the trajectory and for a server's costs.
            record: Where the trajectory goes, as for Sandbox; not with `snapshot`.

        Raises:
            SnapshotNotFound: The snapshot is gone (rLLM's exception).
        """
        self.name = name
        self.baked_install = ""
        engine = _engine(socket, token)
        if snapshot is None:
            made = policy_for(policy, image, images or {})
            self._box = Sandbox(made, engine=engine, record=record)
            self._box._enter()
        else:
            try:
                self._box = Sandbox.open(snapshot, engine=engine).fork(1)[0]
            except NotFound as problem:
                raise _snapshot_not_found()(f"snapshot {snapshot}: {problem}") from problem
        self._workdir = workdir or self._box.policy.cwd or "/tmp"
        label(self._box, {**(labels or {}), "name": name})

    @property
    def sandbox(self) -> Sandbox:
        """The session, for what rLLM has no call for."""
        return self._box

    def exec(
        self, command: str, timeout: Optional[float] = None, user: Optional[str] = None
    ) -> str:
        """Runs a line of `bash -c`.

        Returns:
            Its standard output.

        Raises:
            RuntimeError: It did not exit with status 0; the message ends with both streams.
            CommandTimeout: It ran out of time (also a RuntimeError).
        """
        argv = [self._box._shell_name(), "-c", command]
        result = self._box.exec(argv, timeout=timeout, user=user, cwd=self._workdir, text=True)
        if result.ok:
            return result.stdout
        ends = (
            f"{remark_on(result)}stdout ends: {result.stdout[-1000:]}\n"
            f"stderr ends: {result.stderr[-1000:]}"
        )
        if result.outcome is Outcome.TIMEOUT:
            raise CommandTimeout(
                f"the command reached its time-out of {timeout} s: {command[:200]}\n{ends}"
            )
        raise RuntimeError(f"the command ended with {status_of(result)}: {command[:200]}\n{ends}")

    def _path(self, path: str) -> str:
        return posixpath.join(self._workdir, path)

    def upload_file(self, local_path: str, remote_path: str) -> None:
        """Copies one file to its path; parents are made."""
        if not os.path.isfile(local_path):
            raise InvalidArgument(f"{local_path} is not a file", stage="arguments")
        self._box.upload(local_path, self._path(remote_path))

    def upload_dir(self, local_path: str, remote_path: str) -> None:
        """Copies a tree; what is at remote_path already stays."""
        if not os.path.isdir(local_path):
            raise InvalidArgument(f"{local_path} is not a directory", stage="arguments")
        self._box.upload(local_path, self._path(remote_path))

    def download_file(self, remote_path: str) -> bytes:
        """Returns a file's content. Raises FileNotFoundError."""
        try:
            return self._box.read_file(self._path(remote_path))
        except NotFound as problem:
            raise FileNotFoundError(2, str(problem), remote_path) from problem

    def start_agent_process(self, command: str, port: int) -> None:
        """Starts a program in the background; it ends with the sandbox."""
        self._box.spawn(
            [self._box._shell_name(), "-c", command],
            cwd=self._workdir,
            stdin=b"",
            env={"PORT": str(port)},
        )

    def get_endpoint(self, port: int) -> tuple[str, dict[str, str]]:
        """Returns the URL of a port, at 127.0.0.1 of this machine, and no headers.

        Raises:
            FeatureMissing: The policy has no network: it needs net "loopback", "allow" or "host".
        """
        if self._box.policy.net == "host":
            return f"http://127.0.0.1:{port}", {}
        url = self._box.url(port)
        return (url if "://" in url else f"http://{url}").rstrip("/"), {}

    def is_alive(self) -> bool:
        """Tells whether it answers. Never raises."""
        try:
            return bool(self._box.inspect())
        except Exception:
            return False

    def close(self) -> None:
        """Ends it. May be called twice."""
        self._box.close()

    def __enter__(self) -> RollboxSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def create_rollbox_sandbox(name: str, **options: Any) -> RollboxSandbox:
    """Makes a RollboxSandbox, as rLLM makes those of its backends."""
    return RollboxSandbox(name, **options)


class SnapshotHooks:
    """Makes, finds and deletes snapshots.

    Picklable if `setup` and `image` are.

    Args:
        socket: The socket of a shared engine, or the address of a server; None: this process's
            private engine.
        policy: The policy.
        images: {rLLM's name: the store's}.
        setup: setup(task) returns the shell commands that make a task's environment; None: none.
        image: image(task) returns a task's image; None: "host".
    """

    def __init__(
        self,
        socket: EngineLike = None,
        *,
        policy: PolicyLike = None,
        images: Optional[Mapping[str, str]] = None,
        setup: Optional[Callable[[Any], str]] = None,
        image: Optional[Callable[[Any], str]] = None,
    ) -> None:
        self.socket, self.policy, self.images, self.setup, self.image = (
            socket,
            policy,
            dict(images or {}),
            setup,
            image,
        )
        # On a private engine a sandbox ends with its last reference.
        self._kept: dict[str, Sandbox] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}}

    def create(self, name: str, snapshot: str) -> RollboxSandbox:
        """Makes a sandbox that begins from a snapshot. Raises SnapshotNotFound."""
        return RollboxSandbox(name, snapshot=snapshot, socket=self.socket, policy=self.policy)

    def build_snapshot(
        self,
        backend: str,
        task: Any,
        key: str,
        prior_ref: Optional[str] = None,
        *,
        force: bool = False,
        install_script: str = "",
    ) -> Optional[str]:
        """Makes the snapshot for a key, or finds the one that exists.

        Args:
            backend: Ignored.
            task: The task, for `setup` and `image`.
            key: The snapshot's name.
            prior_ref: The ref of an earlier one, which is used if it exists.
            force: Make a new one in any case.
            install_script: More shell commands.

        Returns:
            The ref; None if a command of the set-up fails, the end of whose output is logged.

        Raises:
            RollboxError: rollbox failed.
        """
        if prior_ref is not None and not force and not self._is_absent(prior_ref):
            return prior_ref
        if prior_ref is not None:
            self._delete(prior_ref)
        elif not self._is_absent(key):
            if not force:
                return key
            self._delete(key)
        image = HOST if self.image is None else self.image(task)
        box = Sandbox(
            policy_for(self.policy, image, self.images),
            engine=_engine(self.socket),
            name=key,
            detached=self.socket is not None,
        )
        try:
            for script in ("" if self.setup is None else self.setup(task), install_script):
                result = box.exec(script) if script else None
                if result is not None and not result.ok:
                    _log.warning(
                        "the set-up of snapshot %s ended with %d; its output ends: %s",
                        key,
                        status_of(result),
                        (result.stdout + result.stderr)[-2000:].decode("utf-8", "replace"),
                    )
                    box.close()
                    return None
            box.snapshot()
        except RollboxError:
            box.close()
            raise
        if self.socket is None:
            self._kept[key] = box
        return key

    def delete_snapshot(self, backend: str, ref: str) -> bool:
        """Deletes a snapshot.

        Returns:
            True once it is gone; False, with a warning, if the engine cannot be asked: rLLM tries
            again another time.
        """
        try:
            self._delete(ref)
        except RollboxError as problem:
            _log.warning("snapshot %s cannot be deleted: %s", ref, problem)
            return False
        return True

    def snapshot_absent(self, backend: str, ref: str) -> bool:
        """Tells whether the engine says that there is no such snapshot.

        Returns:
            False, with a warning, if the engine cannot be asked: rLLM then keeps what it knows.
        """
        try:
            return self._is_absent(ref)
        except RollboxError as problem:
            _log.warning("cannot find out whether snapshot %s exists: %s", ref, problem)
            return False

    def _delete(self, ref: str) -> None:
        kept = self._kept.pop(ref, None)
        try:
            (kept if kept is not None else Sandbox.open(ref, engine=_engine(self.socket))).close()
        except NotFound:
            pass

    def _is_absent(self, ref: str) -> bool:
        try:
            Sandbox.open(ref, engine=_engine(self.socket))._session().leave()
            return False
        except NotFound:
            return True
