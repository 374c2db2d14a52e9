# SPDX-License-Identifier: Apache-2.0
# Made by tools/gen_async.py from the methods of Sandbox; do not edit.
"""AsyncCalls: the calls of AsyncSandbox that run in threads."""

from __future__ import annotations

import builtins
import socket
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
    """Methods of Sandbox, to be awaited. Those that move files use a thread meanwhile."""

    _box: Sandbox[Any]

    async def read_file(
        self,
        path: AnyPath,
        max_bytes: Optional[int] = None,
    ) -> bytes:
        """Reads a file in the sandbox.

        Args:
            path: An absolute path.
            max_bytes: The most to read; None: 1 GiB.

        Returns:
            The content.

        Raises:
            InvalidArgument: The file is larger (errno EFBIG), or is no regular file.
            NotFound: There is no such file.
            PathDenied: The guest may not read it.
        """
        return await run_in_loop_thread(self._box.read_file, path, max_bytes)

    async def write_file(
        self,
        path: AnyPath,
        data: Union[bytes, bytearray, memoryview, str],
        mode: int = 0o644,
        *,
        user: Optional[User] = None,
        owner: Optional[User] = None,
    ) -> None:
        """Creates or replaces a file, with missing parent directories.

        A reader sees all of the old or all of the new content. A link is replaced, not followed.

        Args:
            path: An absolute path.
            data: The content; a str is written as UTF-8.
            mode: Permission bits.
            user: With users "many": the user whose rights the call has, and whose the new files
                are, as for `exec`. Default: root.
            owner: With users "many": root writes, and gives new files and directories to
                "USER[:GROUP]".

        Raises:
            PathDenied: The guest may not write there.
            ResourceExhausted: There is no room.
        """
        await run_in_loop_thread(self._box.write_file, path, data, mode, user=user, owner=owner)

    async def list(
        self,
        path: AnyPath = "/",
    ) -> builtins.list[FileInfo]:
        """Lists a directory.

        Args:
            path: An absolute path.

        Returns:
            A FileInfo of each entry, by name.

        Raises:
            NotFound: There is no such directory.
            InvalidArgument: It is no directory.
        """
        return await run_in_loop_thread(self._box.list, path)

    async def stat(
        self,
        path: AnyPath,
        follow: bool = True,
    ) -> FileInfo:
        """Describes the file at a path.

        Args:
            path: An absolute path.
            follow: Follow a link at its end.

        Returns:
            The FileInfo.

        Raises:
            NotFound: Nothing is there.
        """
        return await run_in_loop_thread(self._box.stat, path, follow)

    async def exists(
        self,
        path: AnyPath,
    ) -> bool:
        """Tells whether something is at a path; a link counts, wherever it leads.

        Args:
            path: An absolute path.

        Returns:
            Whether something is there.

        Raises:
            PathDenied: The guest may not look there.
        """
        return await run_in_loop_thread(self._box.exists, path)

    async def mkdir(
        self,
        path: AnyPath,
        mode: int = 0o755,
    ) -> None:
        """Creates a directory with its parents; an existing one stays as it is.

        Args:
            path: An absolute path.
            mode: Permission bits.

        Raises:
            PathDenied: The guest may not write there.
            InvalidArgument: A file is in the way.
        """
        await run_in_loop_thread(self._box.mkdir, path, mode)

    async def remove(
        self,
        path: AnyPath,
        recursive: bool = False,
    ) -> None:
        """Removes a file, a link or an empty directory.

        Args:
            path: An absolute path.
            recursive: Remove a directory with all that is in it.

        Raises:
            NotFound: Nothing is there.
            PathDenied: The guest may not write there.
        """
        await run_in_loop_thread(self._box.remove, path, recursive)

    async def upload(
        self,
        host: AnyPath,
        guest: AnyPath,
        progress: Optional[Progress] = None,
        *,
        user: Optional[User] = None,
        owner: Optional[User] = None,
    ) -> None:
        """Copies a file or tree of the host into the sandbox.

        Into an existing directory go the entries of a directory, or a file under its name. Missing
        parents are made. Holes, links and times are kept.

        Args:
            host: A path on the host.
            guest: An absolute path in the sandbox.
            progress: Called now and then with the bytes and files copied so far; an exception of it
                ends the transfer and is raised.
            user: With users "many": the user whose rights the call has, and whose the new files
                are, as for `exec`. Default: root.
            owner: With users "many": root writes, and gives new files and directories to
                "USER[:GROUP]".

        Raises:
            PathDenied: Something could not be read; everything else was copied.
            ResourceExhausted: There is no room.
        """
        await run_in_loop_thread(self._box.upload, host, guest, progress, user=user, owner=owner)

    async def download(
        self,
        guest: AnyPath,
        host: AnyPath,
        progress: Optional[Progress] = None,
        max_bytes: Optional[int] = None,
    ) -> None:
        """Copies a file or tree of the sandbox to the host.

        Nothing is followed out of `host`. Set-id bits are dropped, and the umask applies. The guest
        decides how much it is: bound it.

        Args:
            guest: An absolute path in the sandbox.
            host: A path on the host.
            progress: As for `upload`.
            max_bytes: The most to copy, give or take a MiB.

        Raises:
            InvalidArgument: There is more than max_bytes (errno EFBIG).
            NotFound: Nothing is there.
            PathDenied: The guest may not read it.
        """
        await run_in_loop_thread(self._box.download, guest, host, progress, max_bytes)

    async def snapshot(
        self,
        name: Optional[str] = None,
        *,
        processes: Processes = "keep",
    ) -> Snapshot:
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
        """
        return await run_in_thread(self._box.snapshot, name, processes=processes)

    async def reset(
        self,
        snapshot: Optional[SnapshotLike] = None,
        *,
        processes: Processes = "keep",
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
        await run_in_thread(self._box.reset, snapshot, processes=processes)

    async def discard(self) -> None:
        """Drops all changes since the last snapshot, or since the beginning: `reset()`."""
        await run_in_thread(self._box.discard)

    async def drop(
        self,
        snapshot: SnapshotLike,
    ) -> None:
        """Deletes a snapshot. Its space is freed once nothing is based on it.

        Args:
            snapshot: The snapshot.

        Raises:
            NotFound: There is no such snapshot.
        """
        await run_in_thread(self._box.drop, snapshot)

    async def note(
        self,
        data: Any,
    ) -> None:
        """Adds a step of your own to the session's trajectory, such as a reward.

        Without a trajectory it does nothing.

        Args:
            data: Anything that json.dumps takes.

        Raises:
            InvalidArgument: JSON cannot express it.
        """
        await run_in_thread(self._box.note, data)

    async def kill_all(self) -> None:
        """Kills every process of the session, also in the background; files stay.

        Commands that run end with signal 9.
        """
        await run_in_thread(self._box.kill_all)

    async def tree(self) -> Tree:
        """Lists the snapshots of this session, its origin and its forks.

        Returns:
            The snapshots, parents before their children; str() draws the tree.
        """
        return await run_in_thread(self._box.tree)

    async def show(
        self,
        snapshot: Optional[SnapshotLike] = None,
    ) -> dict[str, Any]:
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
        return await run_in_thread(self._box.show, snapshot)

    async def verify(
        self,
        snapshot: Optional[SnapshotLike] = None,
    ) -> dict[str, Any]:
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
        return await run_in_thread(self._box.verify, snapshot)

    async def diff(
        self,
        start: Optional[SnapshotLike] = None,
        end: Optional[SnapshotLike] = None,
        *,
        text: bool = False,
    ) -> builtins.list[Change]:
        """Lists the files that differ between two states.

        Args:
            start: A snapshot; None: the beginning of the session.
            end: A snapshot; None: the present state.
            text: Include unified diffs of text files.

        Returns:
            The Changes, by path.

        Raises:
            NotFound: There is no such snapshot.
        """
        return await run_in_thread(self._box.diff, start, end, text=text)

    async def commit(
        self,
        path: Optional[Path] = None,
        *,
        force: bool = False,
    ) -> builtins.list[dict[str, Any]]:
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
        return await run_in_thread(self._box.commit, path, force=force)

    async def export(
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
        await run_in_thread(self._box.export, host_path, snapshot, processes=processes)

    async def connect(
        self,
        port: int,
    ) -> socket.socket:
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
        return await run_in_thread(self._box.connect, port)

    async def url(
        self,
        port: int,
        listen: Optional[str] = None,
    ) -> str:
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
        return await run_in_thread(self._box.url, port, listen)

    async def ports(self) -> builtins.list[dict[str, Any]]:
        """Lists the published ports.

        Returns:
            For each its port (inside), address and url (None of a Unix socket).
        """
        return await run_in_thread(self._box.ports)

    async def pause(self) -> None:
        """Takes all processor time from the session, until `resume` or the next call."""
        await run_in_thread(self._box.pause)

    async def resume(self) -> None:
        """Ends a pause; harmless without one."""
        await run_in_thread(self._box.resume)

    async def hibernate(
        self,
        *,
        processes: Processes = "keep",
    ) -> None:
        """Moves the session's files and processes to the store on the disk.

        Neither processes nor memory of it are left until `wake` or the next call. Commands that run
        raise Cancelled here; in the session they continue after it wakes, where `process(id)` and
        `shell(id)` find them.

        Args:
            processes: "drop": keep the files alone.

        Raises:
            FeatureMissing: A process has something that cannot be captured; nothing has changed.
        """
        await run_in_thread(self._box.hibernate, processes=processes)

    async def wake(
        self,
        *,
        processes: Processes = "keep",
    ) -> None:
        """Ends hibernation; harmless without it.

        Args:
            processes: "drop": wake with the files alone.

        Raises:
            FeatureMissing: The processes come from another kernel or processor; the session still
                hibernates.
            Damaged: The store does not have the data that was written; the session still
                hibernates.
        """
        await run_in_thread(self._box.wake, processes=processes)

    async def inspect(self) -> dict[str, Any]:
        """Describes the session.

        Returns:
            A dict with name, state, policy, isolation, snapshot, execs, memory_bytes, disk_bytes
            and more.
        """
        return await run_in_thread(self._box.inspect)

    async def stats(self) -> dict[str, Any]:
        """Tells what the session uses now, as `rollbox stats` shows it.

        Returns:
            A dict with cpu_ms (all so far), memory_bytes, peak_memory_bytes, disk_bytes and
            processes; max_memory_bytes, max_disk_bytes and max_processes; name, state, age_s and
            more. What cannot be measured is None.
        """
        return await run_in_thread(self._box.stats)

    async def net_log(self) -> builtins.list[dict[str, Any]]:
        """Tells what the session did in the network, with net "allow".

        Returns:
            An event each, oldest first: its time t, box, event and more. Events past the log's
            limit are only counted.
        """
        return await run_in_thread(self._box.net_log)

    async def net_set(
        self,
        rules: Union[Policy, Sequence[Any]],
    ) -> None:
        """Replaces what the session may reach, with net "allow".

        Connections that are not allowed any more are reset.

        Args:
            rules: Hosts and rules as of Policy(net_allow=...), or a Policy whose network keys
                count.
        """
        await run_in_thread(self._box.net_set, rules)

    async def processes(self) -> builtins.list[dict[str, Any]]:
        """Lists the session's processes.

        Returns:
            For each its pid (inside), parent, state, command, cpu_ms, memory_bytes and exec (an
            id).
        """
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
        docs/how-to/verifiers.md tells how to write a verifier that the graded code cannot fool.

        Args:
            files: {path: data} of the verifier, which replace entries at these paths.
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
            policy: Values of timeout, max_output, env, cwd and user for the command, and with net
                "allow" its own net_allow and net_allow_hosts (default: none). Other keys
                cannot differ from the session's.
            env: As for `exec`.
            cwd: As for `exec`.
            user: As for `exec`. With many users, no other user but root can read `files`.
            timeout: Seconds for the command; None: the policy's, else 300.
            text: As for `exec`.
            max_output: As for `exec`.
            trace: Let the command trace processes (gdb, strace, LeakSanitizer). By default neither
                it nor its children may, so that graded code which it runs cannot trace it.

        Returns:
            The verdict. A problem that the graded code causes (links and devices as outputs, too
            much output, a process that fights the copy) is a failed Grade with a `reason`.

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
