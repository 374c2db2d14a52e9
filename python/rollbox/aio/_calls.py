# SPDX-License-Identifier: Apache-2.0
# Made by tools/gen_async.py from the methods of Sandbox; do not edit.
"""AsyncCalls: the calls of AsyncSandbox that run in threads."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from .._core.options import Path, PolicyLike, Processes
from .._core.policy import Policy
from .._core.request import Argv, Data, Environment, Timeout
from .._files import AnyPath, FileInfo, Progress
from .._grade import Grade
from .._sandbox import Sandbox
from .._session import User
from .._snapshots import Change, Snapshot, SnapshotLike, Tree
from ._threads import run_in_loop_thread, run_in_thread


class AsyncCalls:
    """Twins of methods of Sandbox, to be awaited. Those that move files take a thread meanwhile."""

    _box: Sandbox[Any]

    async def read_file(
        self,
        path: AnyPath,
        max_bytes: Optional[int] = None,
    ) -> bytes:
        """The content of a file in the sandbox. Raises InvalidArgument (errno EFBIG) if it has more than max_bytes (1 GiB)."""
        return await run_in_loop_thread(self._box.read_file, path, max_bytes)

    async def write_file(
        self,
        path: AnyPath,
        data: Union[bytes, bytearray, memoryview, str],
        mode: int = 0o644,
    ) -> None:
        """Makes or replaces a file, a link included, with missing parents: who reads it sees all of the old or all of the new. A str is written as UTF-8."""
        await run_in_loop_thread(self._box.write_file, path, data, mode)

    async def list(
        self,
        path: AnyPath = "/",
    ) -> builtins.list[FileInfo]:
        """What is in a directory, by name."""
        return await run_in_loop_thread(self._box.list, path)

    async def stat(
        self,
        path: AnyPath,
        follow: bool = True,
    ) -> FileInfo:
        """What a path is; `follow` follows a link at its end."""
        return await run_in_loop_thread(self._box.stat, path, follow)

    async def exists(
        self,
        path: AnyPath,
    ) -> bool:
        """Whether something is at the path; a link counts, wherever it leads."""
        return await run_in_loop_thread(self._box.exists, path)

    async def mkdir(
        self,
        path: AnyPath,
        mode: int = 0o755,
    ) -> None:
        """Makes a directory with its parents; one that is there stays as it is."""
        await run_in_loop_thread(self._box.mkdir, path, mode)

    async def remove(
        self,
        path: AnyPath,
        recursive: bool = False,
    ) -> None:
        """Removes a file, a link or an empty directory; a whole tree if `recursive`."""
        await run_in_loop_thread(self._box.remove, path, recursive)

    async def upload(
        self,
        host: AnyPath,
        guest: AnyPath,
        progress: Optional[Progress] = None,
    ) -> None:
        """A file or tree of the host into the sandbox. Into a directory that is there go the entries of a directory, or a file by its name; parents are made.
        Holes, links and times are kept. What cannot be read is left out, and told by PathDenied when all else is done."""
        await run_in_loop_thread(self._box.upload, host, guest, progress)

    async def download(
        self,
        guest: AnyPath,
        host: AnyPath,
        progress: Optional[Progress] = None,
        max_bytes: Optional[int] = None,
    ) -> None:
        """A file or tree of the sandbox to the host, likewise. Nothing is followed out of `host`; set-id bits are dropped and the umask holds. The guest decides
        how much it is: `max_bytes` is a bound, give or take a MiB; more raises InvalidArgument (errno EFBIG)."""
        await run_in_loop_thread(self._box.download, guest, host, progress, max_bytes)

    async def snapshot(
        self,
        name: Optional[str] = None,
        *,
        processes: Processes = "keep",
    ) -> Snapshot:
        """Keeps its state: the private files, and the processes that run, with their memory, at one moment. They stand still meanwhile
        and run on. `name` is another name for its id among the forks and their origin. processes: "drop" keeps the files alone.

        Raises FeatureMissing for what cannot be captured (nothing was changed then), ResourceExhausted (disk full), InvalidArgument."""
        return await run_in_thread(self._box.snapshot, name, processes=processes)

    async def reset(
        self,
        snapshot: Optional[SnapshotLike] = None,
        *,
        processes: Processes = "keep",
    ) -> None:
        """Back to a snapshot (None: the latest of this session's line, or how it began). All its processes are killed, and commands under
        way raise Cancelled; those of the snapshot go on (`process(id)`, `shell(id)`), unless processes is "drop". Raises SetupFailed if
        one cannot: the session has the snapshot's files then, and no processes."""
        await run_in_thread(self._box.reset, snapshot, processes=processes)

    async def discard(self) -> None:
        """Drops what was changed since the last snapshot (or the beginning): reset()."""
        await run_in_thread(self._box.discard)

    async def drop(
        self,
        snapshot: SnapshotLike,
    ) -> None:
        """Gives a snapshot's place back once nothing stands on it. Raises NotFound."""
        await run_in_thread(self._box.drop, snapshot)

    async def note(
        self,
        data: Any,
    ) -> None:
        """A step of your own in the session's trajectory, such as a reward: anything that json.dumps takes. Does nothing if it is not recorded."""
        await run_in_thread(self._box.note, data)

    async def kill_all(self) -> None:
        """Kills every process of the session, background ones too; files stay. Commands under way end with signal 9."""
        await run_in_thread(self._box.kill_all)

    async def tree(self) -> Tree:
        """The snapshots of this session, its origin and its forks; str(tree) draws them."""
        return await run_in_thread(self._box.tree)

    async def show(
        self,
        snapshot: Optional[SnapshotLike] = None,
    ) -> dict[str, Any]:
        """What a snapshot (None: the latest of this session's line) holds: id, name, parent, bytes and files; commands; kernel, memory_bytes and
        processes (pid, parent, name, command, threads, memory_bytes, descriptors by kind); changes, the files, from the snapshot before it.
        A sleeping session is not woken: asleep is true, and changes None. Raises NotFound."""
        return await run_in_thread(self._box.show, snapshot)

    async def verify(
        self,
        snapshot: Optional[SnapshotLike] = None,
    ) -> dict[str, Any]:
        """The same, with sound, and checks: [{"what", "ok", "why"}]: whether it is what was kept, and what would refuse its processes here.
        They are made in a sandbox of their own, and do not go on. Of a sleeping session what is on the disk is checked. Raises NotFound;
        what is not sound is no exception."""
        return await run_in_thread(self._box.verify, snapshot)

    async def diff(
        self,
        start: Optional[SnapshotLike] = None,
        end: Optional[SnapshotLike] = None,
        *,
        text: bool = False,
    ) -> builtins.list[Change]:
        """What differs from one state (None: how it began) to another (None: now), by path. text: unified diffs of text files, too."""
        return await run_in_thread(self._box.diff, start, end, text=text)

    async def commit(
        self,
        path: Optional[Path] = None,
        *,
        force: bool = False,
    ) -> builtins.list[dict[str, Any]]:
        """Publishes what was changed below a granted fs_writable path (None: below all of them) on the host; a crash leaves each old or
        new. Returns [{"path", "changes"}]. Raises Conflict if the host's files were changed meanwhile, unless `force`."""
        return await run_in_thread(self._box.commit, path, force=force)

    async def export(
        self,
        host_path: Path,
        snapshot: Optional[SnapshotLike] = None,
        *,
        processes: Processes = "drop",
    ) -> None:
        """Writes a snapshot (None: of now) as one file of the host: its files, which `rollbox import` brings into a store for
        `image="snapshot:NAME"`. processes="keep": with what runs, which `rollbox import` makes a sandbox of that sleeps, for a shared
        engine, perhaps of another machine with the same kernel and processor. A session that sleeps is not woken for that."""
        await run_in_thread(self._box.export, host_path, snapshot, processes=processes)

    async def pause(self) -> None:
        """Takes all processor time from it, until `resume` or the next call."""
        await run_in_thread(self._box.pause)

    async def resume(self) -> None:
        """Ends a pause; harmless without one."""
        await run_in_thread(self._box.resume)

    async def hibernate(
        self,
        *,
        processes: Processes = "keep",
    ) -> None:
        """Puts it to sleep: its files and processes go to the store on the disk, and neither processes nor memory are left of it, until
        `wake` or the next call. Commands under way raise Cancelled; in the session they go on when it wakes, and `process(id)` and
        `shell(id)` find them there. processes="drop": its files alone. Raises FeatureMissing if a process has what cannot be captured,
        and then nothing has changed."""
        await run_in_thread(self._box.hibernate, processes=processes)

    async def wake(
        self,
        *,
        processes: Processes = "keep",
    ) -> None:
        """Ends its sleep; harmless without one. processes="drop": with its files alone. Raises FeatureMissing if its processes were put to
        sleep under another kernel or processor, Damaged if the store has not what was written; it sleeps on then."""
        await run_in_thread(self._box.wake, processes=processes)

    async def inspect(self) -> dict[str, Any]:
        """name, state, policy, isolation, snapshot, execs, memory_bytes, disk_bytes and more."""
        return await run_in_thread(self._box.inspect)

    async def processes(self) -> builtins.list[dict[str, Any]]:
        """pid (inside), parent, state, command, cpu_ms, memory_bytes and exec (an id) of each of its processes."""
        return await run_in_thread(self._box.processes)

    async def warm(self) -> None:
        """Runs init_fn and keeps the state, if that is not done yet. Needs a work_fn.

        Raises:
            InvalidArgument: The Sandbox has no work_fn.
            WorkFailed: init_fn failed.
            RollboxError: As for `fork`.
        """
        await run_in_thread(self._box.warm)

    async def grade(
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
        policy: PolicyLike = None,
        env: Optional[Environment] = None,
        cwd: Optional[Path] = None,
        user: Optional[User] = None,
        timeout: Timeout = None,
        text: bool = False,
        max_output: Optional[int] = None,
        trace: bool = False,
    ) -> Grade[Any]:
        """Runs a verifier's command on the session's outputs, in a new sandbox.

        The new sandbox has nothing of this session but the outputs, copied as plain files. It ends
        with the verdict. This session sees neither the verifier's files nor the verdict.
        docs/verifiers.md tells how to write a verifier that the graded code cannot fool.

        Args:
            files: {path: data} of the verifier, which replace whatever is at these paths.
            command: As for `exec`, but a str is a line for `bash -c`.
            outputs: The files and directories that the graded code is to deliver. None: every file
                that changed since `base`, outside of the directories of programs; this is less
                safe, and warns once.
            base: The snapshot that the new sandbox begins with. Default: the first that `snapshot`
                took in this session or in the one that it is a fork of; without one, the session's
                beginning. Take it after setting the task up and before the first graded step.
            verifier: A policy for the new sandbox, such as one with an image of the verifier's own,
                in place of `base`.
            distrust: Name patterns of files that steer verifiers. They are not taken from
                directories of outputs, and stay as in `base`; a file that is itself named in
                outputs is taken. Default: rollbox.VERIFIER_CONTROL_FILES.
            collect: Paths that the command writes. Grade.files has those that are plain files once
                everything that the command started is dead.
            unsafe_in_place: Run the command in a copy of this session's files instead. Less safe;
                warns once.
            policy: Values of timeout, max_output, env, cwd and user for the command. Other keys
                cannot differ from the session's.
            env: As for `exec`.
            cwd: As for `exec`.
            user: As for `exec`.
            timeout: Seconds for the command; None: the policy's, else 300.
            text: As for `exec`.
            max_output: As for `exec`.
            trace: Let the command trace processes (gdb, strace, LeakSanitizer). By default neither
                it nor its children may, so that graded code which it runs cannot trace it.

        Returns:
            The verdict. Whatever the graded code causes (links and devices as outputs, too much
            output, a process that fights the copy) is a failed Grade with a `reason`.

        Raises:
            InvalidArgument: An argument is wrong.
            RollboxError: rollbox failed, as for `exec` and `fork`.
        """
        return await run_in_thread(
            self._box.grade,
            files,
            command,
            outputs=outputs,
            base=base,
            verifier=verifier,
            distrust=distrust,
            collect=collect,
            unsafe_in_place=unsafe_in_place,
            policy=policy,
            env=env,
            cwd=cwd,
            user=user,
            timeout=timeout,
            text=text,
            max_output=max_output,
            trace=trace,
        )
