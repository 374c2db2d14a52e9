# SPDX-License-Identifier: Apache-2.0
"""The calls that a pool makes to Ray: nodes, one actor a node, the object store, the autoscaler."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
from typing import Any, Callable, Optional

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .._core.errors import EngineLost
from ._node import NodeHost

NAMESPACE = "rollbox"
_GROUPS = {"control": 8, "exchange": 4, "calls": 200}
_CONTROL = ("describe", "status", "cancel", "drop", "renew", "stop")


@dataclasses.dataclass(frozen=True)
class NodeInfo:
    """A node of the cluster: its id, and its CPUs by Ray's count."""

    name: str
    cpus: int


def is_lost(error: BaseException) -> bool:
    """Whether an error of a call means that the actor is gone, or its engine is."""
    return isinstance(error, (ray.exceptions.RayError, EngineLost)) and not isinstance(
        error, ray.exceptions.RayTaskError
    )


def cause_of(error: BaseException) -> BaseException:
    """The error that a call raised on its node."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


class ActorHost:
    """An actor of NodeHost, by its name: it can be pickled to every process of the cluster."""

    def __init__(self, name: str, actor: Any = None) -> None:
        self.name, self._actor = name, actor

    def __reduce__(self) -> Any:
        return ActorHost, (self.name,)

    def _start(self, method: str, arguments: Any, returns: int = 1) -> Any:
        if self._actor is None:
            self._actor = _found(self.name)
        group = "control" if method in _CONTROL else "calls"
        group = "exchange" if method == "exchange" else group
        call = getattr(self._actor, method)
        return call.options(concurrency_group=group, num_returns=returns).remote(*arguments)

    def call(self, method: str, *arguments: Any) -> concurrent.futures.Future[Any]:
        """Starts a call. An error of an actor that is gone is EngineLost."""
        made: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future = self._start(method, arguments).future()
        except Exception as error:  # of Ray, which may be shut down
            made.set_exception(EngineLost(f"the node's actor is gone: {error}", stage="run"))
            return made
        future.add_done_callback(functools.partial(_pass_on, made))
        return made

    def export(self, *arguments: Any) -> tuple[Any, Any]:
        """Starts NodeHost.export: the future of its facts, and the object with the content."""
        facts, data = self._start("export", arguments, 2)
        made: concurrent.futures.Future[Any] = concurrent.futures.Future()
        facts.future().add_done_callback(functools.partial(_pass_on, made))
        return made, data

    def kill(self) -> None:
        """Ends the actor at once."""
        with contextlib.suppress(Exception):
            ray.kill(self._actor if self._actor is not None else _found(self.name))


def _found(name: str) -> Any:
    try:
        return ray.get_actor(name, NAMESPACE)
    except ValueError as error:
        raise EngineLost(f"the node's actor is gone: {error}", stage="run") from None


def _pass_on(made: concurrent.futures.Future[Any], done: Any) -> None:
    error = done.exception()
    if error is None:
        made.set_result(done.result())
    elif is_lost(error):
        made.set_exception(
            EngineLost(f"the node's actor is gone: {type(error).__name__}: {error}", stage="run")
        )
    else:
        made.set_exception(cause_of(error))


class RayCluster:
    """The Ray cluster that this process is connected to, or connects to now.

    Args:
        resource: The custom resource of nodes to use; None: every node.
        address: As for ray.init, if the process is not connected yet.
        runtime_env: As for ray.remote, of the actors.
    """

    def __init__(self, resource: Optional[str], address: Optional[str], runtime_env: Any) -> None:
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False)
        self.resource, self.runtime_env = resource, runtime_env
        self._actor = ray.remote(
            num_cpus=0, max_restarts=0, max_task_retries=0, concurrency_groups=_GROUPS
        )(NodeHost)

    def nodes(self) -> dict[str, NodeInfo]:
        """The nodes that are alive and offer the resource."""
        found = {}
        for node in ray.nodes():
            resources = node["Resources"]
            if node["Alive"] and (self.resource is None or resources.get(self.resource, 0) >= 1):
                name = node["NodeID"]
                found[name] = NodeInfo(name, int(resources.get("CPU", 0)))
        return found

    def start(self, node: str, name: str, arguments: tuple[Any, ...]) -> ActorHost:
        """Starts an actor on a node. It ends with this process."""
        options: dict[str, Any] = {
            "name": name,
            "namespace": NAMESPACE,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }
        if self.resource is not None:
            options["resources"] = {self.resource: 1}
        if self.runtime_env is not None:
            options["runtime_env"] = self.runtime_env
        return ActorHost(name, self._actor.options(**options).remote(*arguments))

    def put(self, data: bytes) -> Any:
        """An object of the store."""
        return ray.put(data)

    def get(self, ref: Any) -> Any:
        """The content of an object."""
        return ray.get(ref)

    def request_nodes(self, number: int) -> None:
        """Asks the autoscaler for so many nodes in all."""
        from ray.autoscaler.sdk import request_resources

        request_resources(bundles=[{self.resource or "CPU": 1}] * number)


Caller = Callable[..., concurrent.futures.Future[Any]]
