# SPDX-License-Identifier: Apache-2.0
"""AsyncSandbox and the asyncio batch: many runs in flight on one thread, cancellation, several loops."""

import asyncio
import os
import threading
import time

import pytest
from harness import processes

import rollbox
from rollbox import AsyncSandbox, InvalidArgument, Outcome, Policy, RunFailed, iter_many_async, run_many_async

BLOCK = ["sleep", f"86392.{os.getpid()}"]
"""A program that does not end by itself, and that no other run of the tests has."""


def blocked():
    """How many of our blocked programs are alive, seen from outside."""
    return len(processes(*BLOCK))


async def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def books():
    """The package's books before the test: a process that an earlier test forgot is in them until it is collected."""
    _before.clear()
    _before.update(rollbox._core.connection.pending_runs)


_before = {}


def idle():
    """No run of this test is left in the package's books."""
    return not rollbox._core.connection.pending_runs.keys() - _before.keys() and not rollbox.aio._runs._watches


def test_run_works():
    result = asyncio.run(
        AsyncSandbox().run(
            ["cat"], stdin="x", text=True, files={"a": "b"}, env={"A": "1"}, timeout=60
        )
    )
    assert result.ok and result.stdout == "x" and idle()


def test_thousand_runs_in_flight_work():
    async def main():
        sandbox = AsyncSandbox(Policy(max_memory="64M"))
        results = await asyncio.gather(*(sandbox.run(["echo", str(i)], text=True) for i in range(1000)))
        assert [int(result.stdout) for result in results] == list(range(1000))
    asyncio.run(main())
    assert idle()


def test_errors_are_raised():
    async def main():
        sandbox = AsyncSandbox()
        with pytest.raises(rollbox.CommandNotFound):
            await sandbox.run(["no-such-program"])
        with pytest.raises(InvalidArgument):
            await sandbox.run(["a\0"])
        with pytest.raises(RunFailed):
            await sandbox.run(["false"], check=True)
        with pytest.raises(rollbox.PolicyInvalid):
            await AsyncSandbox(Policy(max_memory="-5M")).run(["true"])
        assert (await sandbox.run("while :; do :; done", timeout=0.3)).outcome is Outcome.TIMEOUT
    asyncio.run(main())
    assert idle()


def test_cancellation_kills():
    async def main():
        before = blocked()
        tasks = [asyncio.ensure_future(AsyncSandbox().run(BLOCK)) for _ in range(5)]
        await until(lambda: blocked() == before + 5)
        for task in tasks[:3]:
            task.cancel()
        done = await asyncio.gather(*tasks[:3], return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in done)
        await until(lambda: blocked() == before + 2)
        assert not tasks[3].done() and not tasks[4].done()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(tasks[3], 0.01)
        tasks[4].cancel()
        await asyncio.gather(tasks[4], return_exceptions=True)
        await until(lambda: blocked() == before)
        assert (await AsyncSandbox().run(["true"])).ok
    asyncio.run(main())
    assert idle()


def test_cancelled_before_it_started():
    async def main():
        task = asyncio.ensure_future(AsyncSandbox(Policy(max_processes=61)).run(["true"]))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await AsyncSandbox(Policy(max_processes=61)).run(["true"])).ok
    asyncio.run(main())
    assert idle()


def test_loop_can_end_with_pending_runs():
    async def main():
        before = blocked()
        main.task = asyncio.ensure_future(AsyncSandbox().run(BLOCK))
        await until(lambda: blocked() == before + 1)
        return before
    before = asyncio.run(main())        # cancels what is left
    asyncio.run(until(lambda: blocked() == before))
    assert idle()


def test_loop_can_close_without_cancelling():
    loop = asyncio.new_event_loop()
    sandbox = AsyncSandbox()
    loop.run_until_complete(sandbox.run(["true"]))
    before = blocked()
    task = loop.create_task(sandbox.run(BLOCK))
    loop.run_until_complete(until(lambda: blocked() == before + 1))
    loop.close()
    task._log_destroy_pending = False
    assert asyncio.run(sandbox.run(["true"])).ok        # finds the closed loop
    asyncio.run(until(lambda: blocked() == before))
    assert idle()


def test_loops_in_threads_beside_blocking_calls():
    """Each loop's runs may be dispatched by any other thread."""
    problems = []

    def loop_thread(n):
        async def main():
            sandbox = AsyncSandbox()
            results = await asyncio.gather(*(sandbox.run(["echo", f"{n}-{i}"], text=True) for i in range(60)))
            assert [result.stdout for result in results] == [f"{n}-{i}\n" for i in range(60)]
        try:
            asyncio.run(main())
        except BaseException as problem:
            problems.append(problem)

    def blocking_thread(n):
        try:
            for i in range(30):
                assert rollbox.Sandbox().run(["echo", str(i)], text=True).stdout == f"{i}\n"
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=kind, args=(n,)) for n in range(4) for kind in (loop_thread, blocking_thread)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert idle()


def test_lost_engine_ends_every_run():
    async def main():
        engine = rollbox.Engine()
        sandbox = AsyncSandbox(engine=engine)
        before = blocked()
        tasks = [asyncio.ensure_future(sandbox.run(BLOCK)) for _ in range(4)]
        await until(lambda: blocked() == before + 4)
        os.kill(engine.pid, 9)
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, rollbox.EngineLost) for one in done)
        assert (await sandbox.run(["true"])).ok
        await until(lambda: blocked() == before)
        engine.close()
    asyncio.run(main())
    assert idle()


def test_closing_an_engine_ends_its_runs():
    async def main():
        before = blocked()
        with rollbox.Engine() as engine:
            task = asyncio.ensure_future(AsyncSandbox(engine=engine).run(BLOCK))
            await until(lambda: blocked() == before + 1)
        with pytest.raises((rollbox.Cancelled, rollbox.EngineLost)):
            await task
        await until(lambda: blocked() == before)
    asyncio.run(main())
    assert idle()


def test_uvloop():
    uvloop = pytest.importorskip("uvloop", reason="needs uvloop: it is not installed")

    async def main():
        sandbox = AsyncSandbox()
        results = await asyncio.gather(*(sandbox.run(["echo", str(i)], text=True) for i in range(100)))
        assert [int(result.stdout) for result in results] == list(range(100))
        before = blocked()
        task = asyncio.ensure_future(sandbox.run(BLOCK))
        await until(lambda: blocked() == before + 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: blocked() == before)
    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    assert idle()


def test_batch():
    async def main():
        jobs = [{"id": f"j{i}", "argv": ["echo", str(i)]} for i in range(50)] + [["no-such-program"]]
        results = await run_many_async(jobs, concurrency=8, text=True)
        assert [result.id for result in results] == [f"j{i}" for i in range(50)] + [50]
        assert [result.stdout for result in results[:50]] == [f"{i}\n" for i in range(50)]
        assert results[50].outcome is Outcome.ERROR and isinstance(results[50].error, rollbox.CommandNotFound)
        ids = [result.id async for result in iter_many_async(jobs, concurrency=8)]
        assert sorted(map(str, ids)) == sorted(str(result.id) for result in results)
    asyncio.run(main())
    assert idle()


def test_batch_left_early_kills_the_rest():
    async def main():
        before = blocked()
        rows = iter_many_async([["true"], BLOCK, BLOCK], concurrency=3)
        assert (await rows.__anext__()).ok
        await rows.aclose()
        await until(lambda: blocked() == before)
    asyncio.run(main())
    assert idle()


def test_batch_passes_on_what_its_jobs_raise():
    def jobs():
        yield ["true"]
        raise ZeroDivisionError

    async def main():
        with pytest.raises(ZeroDivisionError):
            await run_many_async(jobs(), concurrency=2)
    asyncio.run(main())
    assert idle()


def test_many_runs_in_flight_have_their_own_policies():
    async def main():
        results = await asyncio.gather(
            *(
                AsyncSandbox(Policy(hostname=f"h{i}")).run(["hostname"], text=True)
                for i in range(200)
            )
        )
        assert [result.stdout for result in results] == [f"h{i}\n" for i in range(200)]
    asyncio.run(main())
    assert idle()


class Struck:
    """The library, after some of whose calls a handler of a signal raises, once each."""

    def __init__(self, library, *functions):
        self.library, self.left = library, set(functions)

    def __getattr__(self, name):
        function = getattr(self.library, name)
        if name not in self.left:
            return function

        def strike(*arguments):
            answer = function(*arguments)
            if answer is not None or name != "rollbox_next_ended":
                self.left.discard(name)
                raise InterruptedError(name)
            return answer
        return strike


def test_results_are_not_lost_on_a_signal():
    """On the way from the library, which has told of an end, to who waits for it: for ever, otherwise."""
    engine = rollbox.Engine()
    struck = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: struck.append(str(context["exception"])))
        box = AsyncSandbox(engine=engine)
        await box.run(["true"])
        connection = engine._connection
        connection.library = Struck(connection.library, "rollbox_dispatch", "rollbox_next_ended", "rollbox_told")
        results = await asyncio.wait_for(asyncio.gather(*(box.run(["true"]) for _ in range(20))), 60)
        assert [result.exit_code for result in results] == [0] * 20

    asyncio.run(main())
    assert sorted(struck) == ["rollbox_dispatch", "rollbox_next_ended", "rollbox_told"]
    assert idle()
    engine.close()
