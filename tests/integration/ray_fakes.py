# SPDX-License-Identifier: Apache-2.0
"""A cluster without Ray for the tests of rollbox.ray: nodes are threads of this process."""

import concurrent.futures
import threading

from rollbox import EngineLost
from rollbox.ray._node import NodeHost


class FakeHost:
    """The host of a node: its calls run in threads, and fail once the node is dead."""

    def __init__(self, node, name, arguments):
        self.node, self.name = node, name
        self.pool = concurrent.futures.ThreadPoolExecutor(64)
        self.dead = False
        self.lock = threading.Lock()
        self.open = set()
        self.calls = []
        self.made = self.pool.submit(NodeHost, *arguments)

    def call(self, method, *arguments):
        self.calls.append(method)
        future = concurrent.futures.Future()
        with self.lock:
            if self.dead:
                future.set_exception(EngineLost("the node is dead"))
                return future
            self.open.add(future)

        def run():
            try:
                value = getattr(self.made.result(), method)(*arguments)
            except BaseException as error:
                self._end(future, None, error)
            else:
                self._end(future, value, None)

        self.pool.submit(run)
        return future

    def _end(self, future, value, error):
        with self.lock:
            if future not in self.open:
                return
            self.open.discard(future)
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    def export(self, *arguments):
        facts, data = self.made.result().export(*arguments)
        future = concurrent.futures.Future()
        future.set_result(facts)
        return future, data

    def kill(self):
        with self.lock:
            first, self.dead = not self.dead, True
            lost, self.open = self.open, set()
        for future in lost:
            future.set_exception(EngineLost("the node died"))
        if first:
            if self.made.exception() is None:
                self.made.result().stop()
            self.pool.shutdown(wait=False)


class FakeCluster:
    """Nodes that tests add and kill."""

    def __init__(self, **cpus):
        self.cpus = dict(cpus)
        self.hosts = {}
        self.asked = None

    def nodes(self):
        class Info:
            def __init__(self, cpus):
                self.cpus = cpus

        return {name: Info(cpus) for name, cpus in self.cpus.items()}

    def start(self, node, name, arguments):
        self.hosts[node] = FakeHost(node, name, arguments)
        return self.hosts[node]

    def kill(self, node):
        """Kills a node for good."""
        del self.cpus[node]
        self.hosts[node].kill()

    def put(self, data):
        return data

    def get(self, ref):
        return ref

    def request_nodes(self, number):
        self.asked = number
