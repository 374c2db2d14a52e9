# SPDX-License-Identifier: Apache-2.0
"""Pool: jobs and sandboxes over the nodes of a Ray cluster.

A thread of the pool owns its state: the schedule and the nodes. Other threads send it messages.
Each node has one actor (_node.py) and one call under way that takes jobs and brings rows
("exchange"). A node is lost when a call says so, when it does not answer in time, or when Ray says
so; its actor is then killed, its jobs go to other nodes, and another actor is tried on it.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import itertools
import logging
import queue
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional, Union

from .._batch import Job, refuse_bare_text, refuse_one_job
from .._clones import CloneWork
from .._core.errors import (
    EngineLost,
    EngineStartFailed,
    InternalError,
    InvalidArgument,
    IOFailed,
    NotFound,
    RollboxError,
)
from .._core.options import PolicyLike, as_policy
from .._core.request import allowed_s, error_result
from .._core.result import Result
from .._core.schedule import OrderedQueue, ProgressBar, check_concurrency
from ._clones import PoolClones, clone_of
from ._sandbox import PoolSandbox, PoolSnapshot, Published
from ._schedule import Item, Schedule

_WAIT_S = 1.0
_LOOK_S = 1.0
_BACKOFF_S = (0.5, 30.0)

_log = logging.getLogger("rollbox")


class _Node:
    """A node of the cluster, as the pool knows it."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number
        self.host: Any = None
        self.ready = False
        self.lost = False
        self.asked: Optional[float] = None  # when the exchange under way was sent
        self.boxes = 0
        self._lock = threading.Lock()

    def count(self, change: int) -> None:
        """Counts sandboxes that this process has handles of."""
        with self._lock:
            self.boxes += change

    def adopt(self, box: PoolSandbox, pool: Pool) -> PoolSandbox:
        """Counts a sandbox until its handle is closed or collected."""
        self.count(1)
        return box._adopt_pool(pool, functools.partial(self.count, -1))


class Pool:
    """Runs jobs and sandboxes on the nodes of a Ray cluster, with one actor a node.

    Nodes may join and leave at any time. A node that dies costs retries, never a reward: its jobs
    run again on other nodes, perhaps for the second time, and each job has exactly one result. A
    sandbox of a lost node is gone; its calls raise EngineLost. Everything ends with this process,
    however it ends. Any number of threads may use a Pool.

    Args:
        policy: The policy of jobs, and of sandboxes that name no other.
        resource: The custom resource of Ray's nodes that run sandboxes, of which each pool takes
            one a node; None: every node.
        slots_per_node: How many jobs run on a node at a time; None: one per CPU.
        image: An image for the policy; each node's store must have it.
        setup: A line of shell, or a function of a Sandbox, that runs once on each node. Jobs and
            sandboxes without a policy of their own begin as forks of its result.
        min_nodes: Wait for so many nodes.
        engine: "private": each node's actor starts one; else the socket of an engine that runs on
            every node.
        start_timeout: Seconds to wait for min_nodes; and how long jobs wait for any node, when all
            are lost.
        node_timeout: Seconds without an answer after which a node is lost.
        address: As for ray.init, unless this process is connected already.
        runtime_env: As for Ray, of the actors.

    Raises:
        EngineStartFailed: There are not min_nodes nodes in time; the message has the reason.
    """

    def __init__(
        self,
        policy: PolicyLike = None,
        *,
        resource: Optional[str] = "rollbox",
        slots_per_node: Optional[int] = None,
        image: Optional[str] = None,
        setup: Union[str, Callable[[Any], Any], None] = None,
        min_nodes: int = 1,
        engine: str = "private",
        start_timeout: float = 60,
        node_timeout: float = 10,
        address: Optional[str] = None,
        runtime_env: Optional[dict[str, Any]] = None,
        _cluster: Any = None,
    ) -> None:
        made = as_policy(policy)
        self._policy = made if image is None else made.replace(image=image)
        if slots_per_node is not None:
            check_concurrency(slots_per_node)
        self._slots, self._engine, self._setup = slots_per_node, engine, setup
        self._resource, self._start_timeout = resource, start_timeout
        self._node_timeout = node_timeout
        if _cluster is None:
            from ._cluster import RayCluster

            _cluster = RayCluster(resource, address, runtime_env)
        self._cluster = _cluster
        self._id = uuid.uuid4().hex[:12]
        self._messages: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._schedule = Schedule()
        self._nodes: dict[str, _Node] = {}
        self._failures: dict[str, tuple[int, float, str]] = {}  # count, not before, why
        self._holders: dict[str, set[str]] = {}
        self._indices = itertools.count()
        self._closed = False
        self._changed = threading.Condition()
        self._without_nodes_since = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="rollbox-pool", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        try:
            self._wait_for_nodes(min_nodes)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a Pool belongs to its process; send its sandboxes, or make another Pool")

    # Jobs

    def map(
        self,
        jobs: Iterable[Job],
        *,
        ordered: bool = False,
        retries: int = 3,
        window: Optional[int] = None,
        progress: Optional[bool] = None,
        text: bool = False,
    ) -> Iterator[Result[Any]]:
        """Runs many jobs and yields each Result as it is there.

        Args:
            jobs: As for run_many. They are taken as they are needed, so this may be endless.
            ordered: Yield the results in the order of the jobs; else as they end.
            retries: How often a job is repeated whose node was lost, or that rollbox could not run.
            window: How many jobs may be without a result at a time; None: what the nodes can take.
            progress: Show a bar on stderr; None: if that is a terminal.
            text: Make stdout and stderr str.

        Returns:
            An iterator with one Result a job. Closing it kills the jobs that still run.

        Raises:
            InvalidArgument: The jobs are one job, or bare text; or an argument is wrong.
        """
        refuse_one_job(jobs)
        if window is not None:
            check_concurrency(window)

        def items(deliver: Callable[[int], Callable[[Any], None]]) -> Iterator[Item]:
            for number, job in enumerate(jobs):
                if number == 0:
                    refuse_bare_text(job)
                payload = (number, job, text)
                yield Item(next(self._indices), "run", payload, deliver(number), retries)

        def row(number: int, found: Any) -> Any:
            return error_result(found, text, number) if isinstance(found, RollboxError) else found

        return self._iterate(items, row, ordered, window, ProgressBar(progress, jobs))

    def run_many(self, jobs: Iterable[Job], **options: Any) -> list[Result[Any]]:
        """Runs many jobs and returns their Results, in the order of the jobs; see `map`."""
        return list(self.map(jobs, ordered=options.pop("ordered", True), **options))

    def submit(
        self, job: Job, *, retries: int = 3, text: bool = False
    ) -> concurrent.futures.Future[Result[Any]]:
        """Starts a job.

        Args:
            job: As of `map`.
            retries: As for `map`.
            text: As for `map`.

        Returns:
            The Future of its Result. Cancelling the Future kills the job.

        Raises:
            InvalidArgument: The job is bare text.
        """
        refuse_bare_text(job)
        self._check_open()
        future: concurrent.futures.Future[Result[Any]] = concurrent.futures.Future()
        index = next(self._indices)

        def deliver(found: Any) -> None:
            row = error_result(found, text) if isinstance(found, RollboxError) else found
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                future.set_result(row)

        def on_done(done: concurrent.futures.Future[Any]) -> None:
            if done.cancelled():
                self._messages.put(("cancel", [index]))

        future.add_done_callback(on_done)
        item = Item(index, "run", (None, job, text), deliver, retries)
        self._messages.put(("jobs", [item]))
        return future

    async def run_async(self, job: Job, *, retries: int = 3, text: bool = False) -> Result[Any]:
        """Runs a job. Cancelling the task kills it."""
        return await asyncio.wrap_future(self.submit(job, retries=retries, text=text))

    def clones(
        self,
        work_fn: Callable[..., Any],
        *,
        init_fn: Optional[Callable[[], Any]] = None,
        python: str = "python3",
        policy: PolicyLike = None,
    ) -> PoolClones:
        """A function, and interpreters on the nodes whose clones run it; see Sandbox.clones.

        Args:
            work_fn: A function of no argument, or of the clone's number.
            init_fn: A function that prepares the interpreter of each node, once.
            python: The interpreter's program in the sandbox.
            policy: The policy; None: the pool's.

        Returns:
            A PoolClones, whose `fork(n)` runs n clones over the cluster.
        """
        made = self._policy if policy is None else as_policy(policy)
        return PoolClones(self, CloneWork(work_fn, init_fn, python), made.to_json(), python)

    def _iterate_clones(
        self, clones: PoolClones, n: int, options: dict[str, Any], ordered: bool, progress: Any
    ) -> Iterator[Any]:
        retries = options.pop("retries")
        made = {
            "timeout": allowed_s(options["timeout"]),
            "seed": options["seed"],
            "max_value": options["max_value"],
        }

        def items(deliver: Callable[[int], Callable[[Any], None]]) -> Iterator[Item]:
            for number in range(n):
                payload = {"number": number, "options": made}
                yield Item(next(self._indices), clones.key, payload, deliver(number), retries)

        bar = ProgressBar(progress, range(n))
        return self._iterate(items, clone_of, ordered, None, bar)

    def _iterate(
        self,
        items: Callable[[Callable[[int], Callable[[Any], None]]], Iterator[Item]],
        row: Callable[[int, Any], Any],
        ordered: bool,
        window: Optional[int],
        bar: ProgressBar,
    ) -> Iterator[Any]:
        self._check_open()
        rows: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        pending: dict[int, int] = {}
        numbers = itertools.count()
        order = OrderedQueue(ordered)

        def deliver_of(number: int) -> Callable[[Any], None]:
            return lambda found: rows.put((number, found))

        source = items(deliver_of)
        try:
            exhausted = False
            while True:
                batch = []
                limit = window if window is not None else self._width()
                while not exhausted and len(pending) < limit:
                    item = next(source, None)
                    if item is None:
                        exhausted = True
                        break
                    pending[next(numbers)] = item.index
                    batch.append(item)
                if batch:
                    self._messages.put(("jobs", batch))
                if not pending:
                    return
                yield from self._take_rows(rows, pending, row, order, bar)
        finally:
            if pending:
                self._messages.put(("cancel", list(pending.values())))
            bar.close()

    def _take_rows(
        self, rows: Any, pending: dict[int, int], row: Any, order: OrderedQueue, bar: ProgressBar
    ) -> Iterator[Any]:
        while True:
            number, found = rows.get()
            pending.pop(number, None)
            made = row(number, found)
            bar.step(made)
            yield from order.put(number, made)
            if rows.empty():
                return

    def _width(self) -> int:
        """How many jobs of one call may be without a result: enough for every node's queue."""
        slots = sum(self._schedule.nodes.values())
        return max(256, 64 * slots)

    # Nodes

    def nodes(self) -> list[dict[str, Any]]:
        """Lists the nodes of the pool.

        Returns:
            For each a dict with node, pid, engine_pid, slots, sandboxes and snapshots. Nodes that
            do not answer are left out.
        """
        found = []
        for node in self._ready_nodes():
            with contextlib.suppress(RollboxError):
                found.append(node.host.call("status").result(self._node_timeout))
        return found

    def scale_hint(self) -> int:
        """Asks Ray's autoscaler for as many nodes as the jobs would fill.

        Returns:
            The number of nodes, at least 1.
        """
        slots = list(self._schedule.nodes.values())
        average = max(1, sum(slots) // len(slots)) if slots else self._slots or 1
        wanted = max(1, -(-len(self._schedule) // average))
        self._cluster.request_nodes(wanted)
        return wanted

    def _ready_nodes(self) -> list[_Node]:
        return [node for node in list(self._nodes.values()) if node.ready]

    def _wait_for_nodes(self, number: int) -> None:
        until = time.monotonic() + self._start_timeout
        with self._changed:
            while len(self._ready_nodes()) < number:
                left = until - time.monotonic()
                if left <= 0:
                    raise EngineStartFailed(self._why_too_few(number), stage="connect")
                self._changed.wait(min(left, 0.5))

    def _why_too_few(self, number: int) -> str:
        text = f"{len(self._ready_nodes())} of {number} nodes are ready"
        whys = [why for _, _, why in self._failures.values()]
        if whys:
            return f"{text}; a node's actor failed: {whys[-1]}"
        if not self._nodes and self._resource is not None:
            return (
                f'{text}: no node of the cluster offers "{self._resource}"; start Ray with '
                f"--resources '{{\"{self._resource}\": 1}}', or give resource=None"
            )
        return f"{text} after {self._start_timeout:g} s"

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument("the pool is closed", stage="arguments")

    # Sandboxes

    def sandbox(
        self,
        policy: PolicyLike = None,
        *,
        affinity: Union[str, PoolSandbox, PoolSnapshot, Published, None] = None,
        lease_ttl: float = 60,
        **options: Any,
    ) -> PoolSandbox:
        """Makes a sandbox on a node.

        Args:
            policy: Its policy; None: the pool's, with the pool's setup.
            affinity: Where: the id of a node; the node of a sandbox or of a snapshot's sandbox; a
                Published snapshot, of which the sandbox is a fork then, where it is. None:
                the node with the fewest sandboxes for its slots.
            lease_ttl: The sandbox ends so many seconds after the last process that has a handle of
                it ended.
            options: As for Sandbox: ttl, max_lifetime, hibernate_after and so on.

        Returns:
            A handle, which can be pickled. Also for `with`, and for `async with`.

        Raises:
            NotFound: The node is not in the pool.
            RollboxError: As for Sandbox.
        """
        self._check_open()
        if lease_ttl <= 0:
            raise InvalidArgument(
                f"lease_ttl must be positive, not {lease_ttl!r}", stage="arguments"
            )
        return self._create(policy, affinity, lease_ttl, options, 3)

    def _create(
        self, policy: PolicyLike, affinity: Any, lease_ttl: float, options: Any, attempts: int
    ) -> PoolSandbox:
        digest = None
        if isinstance(affinity, Published):
            if policy is not None or options:
                raise InvalidArgument(
                    "a fork of a snapshot has the snapshot's policy and no other options",
                    stage="arguments",
                )
            digest = affinity.digest
            node = self._node_with(affinity)
        elif affinity is None:
            node = self._freest()
        else:
            name = affinity if isinstance(affinity, str) else _node_of(affinity)
            node = self._node(name)
        text = None if policy is None else as_policy(policy).to_json()
        try:
            reference = node.host.call("create", text, digest, lease_ttl, options).result()
        except EngineLost as error:
            self._messages.put(("lost", node, str(error)))
            if isinstance(affinity, Published):
                self._holders.get(affinity.digest, set()).discard(node.name)
            if attempts <= 1 or isinstance(affinity, (str, PoolSandbox, PoolSnapshot)):
                raise
            return self._create(policy, affinity, lease_ttl, options, attempts - 1)
        return node.adopt(PoolSandbox(node.host, node.name, reference, lease_ttl), self)

    def _adopt_forks(self, boxes: list[PoolSandbox]) -> list[PoolSandbox]:
        for box in boxes:
            node = self._nodes.get(box.node)
            if node is not None:
                node.adopt(box, self)
        return boxes

    def publish(
        self,
        snapshot: Union[PoolSnapshot, PoolSandbox],
        *,
        store: str = "object",
        processes: str = "keep",
    ) -> Published:
        """Makes a snapshot available to all nodes.

        Args:
            snapshot: A snapshot of a sandbox, or a sandbox: its present state.
            store: "object": Ray's object store; else the path of a directory that all nodes share,
                or a URI for fsspec such as s3://bucket/path.
            processes: "drop": the files alone.

        Returns:
            A Published, for `warm`, and for the affinity of `sandbox`.

        Raises:
            FeatureMissing: A process has something that cannot be captured.
            IOFailed: The file cannot be written.
        """
        box = snapshot.box if isinstance(snapshot, PoolSnapshot) else snapshot
        id = snapshot.id if isinstance(snapshot, PoolSnapshot) else None
        future, ref = box._host.export(box._reference.target, id, processes)
        facts = future.result()
        if not facts:
            raise self._cluster.get(ref)
        source: Any = ref
        if store != "object":
            source = _write_snapshot(store, facts["digest"], self._cluster.get(ref))
        return Published(facts["digest"], facts["bytes"], source, processes, box.node)

    def warm(self, published: Published, nodes: Optional[Iterable[str]] = None) -> list[str]:
        """Brings a snapshot to nodes, so that forks of it take milliseconds there.

        Args:
            published: What `publish` returned.
            nodes: Ids of nodes; None: all.

        Returns:
            The ids of nodes that have it now.

        Raises:
            NotFound: A node is not in the pool.
            RollboxError: As of `rollbox import`: another kernel or processor, or no room.
        """
        ready = self._ready_nodes() if nodes is None else [self._node(name) for name in nodes]
        data = published.source
        if isinstance(data, str):
            data = self._cluster.put(_read_snapshot(data))
        calls = [
            (node, node.host.call("warm", published.digest, data, published.processes))
            for node in ready
        ]
        lost: Optional[RollboxError] = None
        for node, call in calls:
            try:
                call.result()
                self._holders.setdefault(published.digest, set()).add(node.name)
            except EngineLost as error:
                lost = error
        have = sorted(self._holding(published.digest))
        if not have and lost is not None:
            raise lost
        return have

    def _holding(self, digest: str) -> set[str]:
        ready = {node.name for node in self._ready_nodes()}
        return self._holders.get(digest, set()) & ready

    def _node_with(self, published: Published) -> _Node:
        names = self._holding(published.digest)
        if not names:
            names = set(self.warm(published, [self._freest().name]))
        return min((self._node(name) for name in names), key=self._fullness)

    def _fork_over_cluster(self, box: PoolSandbox, n: int, **options: Any) -> list[PoolSandbox]:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InvalidArgument(
                f"n must be a positive number of sandboxes, not {n!r}", stage="arguments"
            )
        snapshot = options.pop("snapshot", None)
        if options:
            raise InvalidArgument(
                f"a fork over the cluster takes no {', '.join(options)}", stage="arguments"
            )
        if isinstance(snapshot, PoolSnapshot):
            published = self.publish(snapshot)
        else:
            published = self.publish(box)
        try:
            return self._fork_published(box, n, published)
        finally:
            self._holders.pop(published.digest, None)
            for node in self._ready_nodes():
                node.host.call("forget_snapshot", published.digest)

    def _fork_published(self, box: PoolSandbox, n: int, published: Published) -> list[PoolSandbox]:
        names = self.warm(published)
        shares = _shares(n, {name: self._schedule.nodes.get(name, 1) for name in names})
        calls = []
        for name, share in shares.items():
            node = self._node(name)
            lease = box._lease_s
            calls.append((node, node.host.call("fork_snapshot", published.digest, share, lease)))
        made = []
        for node, call in calls:
            for reference in call.result():
                handle = PoolSandbox(node.host, node.name, reference, box._lease_s)
                made.append(node.adopt(handle, self))
        return made

    def _node(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None or not node.ready:
            raise NotFound(f"node {name} is not in the pool, or is lost", stage="connect")
        return node

    def _fullness(self, node: _Node) -> float:
        return node.boxes / max(1, self._schedule.nodes.get(node.name, 1))

    def _freest(self) -> _Node:
        self._wait_for_nodes(1)
        return min(self._ready_nodes(), key=self._fullness)

    def _drop_later(self, host: Any, target: int) -> None:
        self._messages.put(("drop", host, target))

    # The thread

    def _run(self) -> None:
        looked = 0.0
        while not self._closed:
            now = time.monotonic()
            try:
                if now - looked >= _LOOK_S:
                    looked = now
                    self._look()
                due = self._schedule.next_due()
                self._handle_messages(_LOOK_S if due is None else min(_LOOK_S, due - now))
                self._send()
            except Exception as error:  # callers must not wait for a thread that ended
                _log.exception("the pool's thread failed")
                self._schedule.fail_all(InternalError(f"the pool failed: {error!r}", stage="run"))

    def _handle_messages(self, wait_s: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._handle(self._messages.get(timeout=max(0.0, wait_s)))
            while True:  # what has arrived meanwhile
                self._handle(self._messages.get_nowait())

    def _handle(self, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        getattr(self, f"_on_{kind}")(*rest)

    def _on_jobs(self, items: list[Item]) -> None:
        for item in items:
            self._schedule.add(item)

    def _on_cancel(self, indices: list[int]) -> None:
        for name, running in self._schedule.cancel(indices).items():
            self._nodes[name].host.call("cancel", running)

    def _on_drop(self, host: Any, target: int) -> None:
        host.call("drop", [target])

    def _on_wake(self) -> None:
        pass

    def _on_lost(self, node: _Node, why: str) -> None:
        self._lose(node, why)

    def _on_started(self, node: _Node, future: concurrent.futures.Future[Any]) -> None:
        if node.lost:
            return
        error = future.exception()
        if error is not None:
            self._lose(node, str(error) or repr(error))
            return
        node.ready = True
        self._failures.pop(node.name, None)
        self._schedule.add_node(node.name, future.result()["slots"])
        _log.info("node %s of the pool is ready", node.name)
        with self._changed:
            self._changed.notify_all()

    def _on_rows(self, node: _Node, future: concurrent.futures.Future[Any]) -> None:
        if node.lost:
            return
        node.asked = None
        error = future.exception()
        if error is not None:
            self._lose(node, str(error) or repr(error))
            return
        now = time.monotonic()
        for index, row, seconds in future.result():
            self._schedule.finish(node.name, index, row, seconds, now)

    def _send(self) -> None:
        now = time.monotonic()
        sent = self._schedule.assign(now)
        for node in self._ready_nodes():
            items = sent.get(node.name, [])
            if node.asked is not None and not items:
                continue
            if node.asked is None and not items and not self._schedule.held(node.name):
                continue
            jobs = [(item.index, item.kind, item.payload) for item in items]
            kind = "rows" if node.asked is None else "pushed"
            if node.asked is None:
                node.asked = now
            self._exchange(kind, node, jobs, self._interpreters(node, items))

    def _exchange(self, kind: str, node: _Node, jobs: Any, interpreters: Any) -> None:
        wait_s = _WAIT_S if kind == "rows" else 0.0
        call = node.host.call("exchange", jobs, interpreters, wait_s)
        call.add_done_callback(lambda done: self._messages.put((kind, node, done)))

    def _on_pushed(self, node: _Node, future: concurrent.futures.Future[Any]) -> None:
        asked = node.asked
        self._on_rows(node, future)
        node.asked = asked if not node.lost else None

    def _interpreters(self, node: _Node, items: list[Item]) -> dict[str, Any]:
        """Facts about the interpreters of clones that the node is sent for the first time."""
        found = {}
        for key in {item.kind for item in items if item.kind != "run"}:
            clones = PoolClones.of(key)
            facts = clones.begin_on(node) if clones is not None else None
            if facts is not None:
                found[key] = facts
        return found

    def _look(self) -> None:
        """Finds nodes that joined, and nodes that are gone or do not answer."""
        now = time.monotonic()
        try:
            alive = self._cluster.nodes()
        except Exception as error:  # the cluster is busy or gone; calls will tell
            _log.warning("Ray does not list its nodes: %s", error)
            return
        for name, node in list(self._nodes.items()):
            if name not in alive:
                self._lose(node, "Ray says that it is dead")
            elif node.asked is not None and now - node.asked > _WAIT_S + self._node_timeout:
                self._lose(node, f"it did not answer for {self._node_timeout:g} s")
        for name in alive:
            _, not_before, _ = self._failures.get(name, (0, 0.0, ""))
            if name not in self._nodes and now >= not_before:
                self._start(name, alive[name].cpus)
        if self._nodes:
            self._without_nodes_since = now
        elif now - self._without_nodes_since > self._start_timeout and len(self._schedule):
            self._schedule.fail_all(EngineLost("the pool has no node left", stage="run"))

    def _start(self, name: str, cpus: int) -> None:
        count = self._failures.get(name, (0, 0.0, ""))[0]
        node = self._nodes[name] = _Node(name, count)
        slots = self._slots if self._slots is not None else max(1, cpus)
        actor = f"{self._id}-{name[:16]}-{uuid.uuid4().hex[:6]}"
        arguments = (self._policy.to_json(), slots, self._engine, self._setup, name)
        try:
            node.host = self._cluster.start(name, actor, arguments)
        except Exception as error:  # of Ray: it is tried again later
            self._lose(node, repr(error))
            return
        call = node.host.call("describe")
        call.add_done_callback(lambda done: self._messages.put(("started", node, done)))

    def _lose(self, node: _Node, why: str) -> None:
        if node.lost:
            return
        node.lost, node.ready = True, False
        if self._nodes.get(node.name) is node:
            del self._nodes[node.name]
        now = time.monotonic()
        count = self._failures.get(node.name, (0, 0.0, ""))[0] + 1
        delay = min(_BACKOFF_S[0] * 2 ** (count - 1), _BACKOFF_S[1])
        self._failures[node.name] = (count, now + delay, why)
        for holders in self._holders.values():
            holders.discard(node.name)
        PoolClones.forget_node(node)
        _log.warning("node %s of the pool is lost: %s", node.name, why)
        if node.host is not None:
            node.host.kill()
        self._schedule.drop_node(node.name, now, why)

    def close(self) -> None:
        """Kills what runs, and ends the actors with their engines. May be called twice."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._messages.put(("wake",))
        if threading.current_thread() is not self._thread:
            self._thread.join(10)
        self._schedule.fail_all(EngineLost("the pool was closed", stage="run"))
        nodes, self._nodes = list(self._nodes.values()), {}
        stops = [node.host.call("stop") for node in nodes if node.host is not None]
        concurrent.futures.wait(stops, timeout=10)
        for node in nodes:
            if node.host is not None:
                node.host.kill()


def _node_of(thing: Any) -> str:
    box = thing.box if isinstance(thing, PoolSnapshot) else thing
    if not isinstance(box, PoolSandbox):
        raise InvalidArgument(
            "affinity is the id of a node, a sandbox or a snapshot of the pool, or what publish "
            f"returned, not {thing!r}",
            stage="arguments",
        )
    return box.node


def _shares(n: int, slots: dict[str, int]) -> dict[str, int]:
    """The parts of n for nodes, by their slots."""
    total = sum(slots.values())
    shares = {name: n * own // total for name, own in slots.items()}
    left = n - sum(shares.values())
    for name in itertools.islice(itertools.cycle(sorted(slots)), left):
        shares[name] += 1
    return {name: share for name, share in shares.items() if share}


def _open_uri(path: str, mode: str) -> Any:
    if "://" not in path:
        return open(path, mode)
    import fsspec

    return fsspec.open(path, mode).open()


def _write_snapshot(store: str, digest: str, data: bytes) -> str:
    path = f"{store.rstrip('/')}/{digest}.live"
    try:
        with _open_uri(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise IOFailed(f"{path} cannot be written: {error}", stage="export") from None
    return path


def _read_snapshot(path: str) -> bytes:
    try:
        with _open_uri(path, "rb") as file:
            data: bytes = file.read()
            return data
    except OSError as error:
        raise IOFailed(f"{path} cannot be read: {error}", stage="import") from None
