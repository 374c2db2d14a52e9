# SPDX-License-Identifier: Apache-2.0
"""Functions that run in clones of one interpreter, and templates by name.

The model: init_fn makes a state, each clone says what it finds of it, and what it did to it is seen
by nobody else. What guests answer by hand is
answered through descriptor 4, as the interpreter does it. make check runs this file as root and as an ordinary user.
"""

import asyncio
import contextlib
import datetime
import enum
import functools
import io
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import rollbox

from rollbox import (
    AsyncSandbox,
    AsyncWorkSandbox,
    Clone,
    CommandNotFound,
    Engine,
    EngineLost,
    FeatureMissing,
    InvalidArgument,
    NotFound,
    Outcome,
    Policy,
    RollboxError,
    RunFailed,
    Sandbox,
    WorkFailed,
    TemplateSandbox,
    WorkSandbox,
    _safe_values,
)
from rollbox._core.handle import Handle
from harness import DEADLINE, binaries, caller  # noqa: F401
from trajectory_files import shared_engine

state = None
SECRET = "trainer-" + os.urandom(16).hex()


def fill():
    global state
    state = {"n": 7, "seen": []}
    return "from init"


def look(number, given):
    state["seen"].append(number)
    return number, given, state, os.environ["CLONE_ID"]


def values(clones):
    return [clone.get() for clone in clones]


# What comes in, and what comes back

def test_clones_start_from_init_and_share_nothing():
    box = Sandbox(init_fn=fill, work_fn=look)
    assert type(box) is WorkSandbox
    clones = box.fork(5)
    assert values(clones) == [(i, "from init", {"n": 7, "seen": [i]}, str(i)) for i in range(5)]
    assert [clone.id for clone in clones] == list(range(5)) and all(
        clone.ok and clone.exit_code == 0 for clone in clones
    )
    assert state is None, "nothing happens here"


def test_init_runs_once_in_the_sandbox():
    def init():
        with open("/tmp/count", "a") as file:
            file.write("once\n")
        return os.getpid()

    def work(number, pid):
        with open("/tmp/count") as file:
            return pid == os.getpid(), file.read(), os.path.exists("/tmp/mine"), open("/tmp/mine", "w").write("x")

    with Sandbox(init_fn=init, work_fn=work) as box:
        box.write_file("/tmp/count", b"before\n")
        for _ in range(2):
            assert values(box.fork(3)) == [(True, "before\nonce\n", False, 1)] * 3


def test_work_fn_gets_as_many_arguments_as_it_takes():
    for work in (
        lambda: os.environ["CLONE_ID"],
        lambda number: str(number),
        lambda number, given: str(number),
        lambda number=99: os.environ["CLONE_ID"],
        functools.partial(lambda factor, number: str(number * factor), 1),
        lambda *more: os.environ["CLONE_ID"],
    ):
        assert values(Sandbox(work_fn=work).fork(2)) == ["0", "1"]
    for work in (lambda a, b, c: 0, lambda *, key: 0):
        with pytest.raises(InvalidArgument, match="at most two arguments"):
            Sandbox(work_fn=work)
    for options in ({"work_fn": 5}, {"init_fn": fill}, {"work_fn": fill, "init_fn": 5}):
        with pytest.raises((InvalidArgument, TypeError)):
            Sandbox(**options)


ODD = [
    None,
    True,
    False,
    0,
    -5,
    2**62,
    -(2**70),
    10**400,
    0.5,
    float("inf"),
    1 + 2j,
    "",
    "text \u20ac \x00",
    "\ud800",
    b"",
    bytes(range(256)),
    [],
    [1, [2, [3]]],
    (),
    (1, (2,)),
    {1, 2},
    frozenset("ab"),
    {},
    {"a": {"b": (1,)}},
    {1: 2, (1, 2): "t", None: b"x"},
    {"tuple": [1]},
    datetime.datetime(2025, 1, 2, 3, 4, 5, 6),
    datetime.datetime(2025, 1, 2, tzinfo=datetime.timezone.utc),
    datetime.date(2025, 1, 2),
    datetime.time(1, 2),
    datetime.timedelta(days=-1, microseconds=5),
]


def same(a, b):
    assert type(a) is type(b) and repr(a) == repr(b)


def test_plain_data_returns_unchanged():
    clone, = Sandbox(work_fn=lambda: ODD).fork(1)
    for got, sent in zip(clone.get(), ODD):
        if isinstance(sent, (set, frozenset)):
            assert type(got) is type(sent) and got == sent
        else:
            same(got, sent)
    assert len(clone.value) == len(ODD) and str(Sandbox(work_fn=lambda: float("nan")).fork(1)[0].get()) == "nan"


def test_other_values_are_refused_by_name():
    def work(number):
        return [{"a": [1, io.StringIO()]}, object(), lambda: 0, Path("/"), Exception("x")][number]

    clones = Sandbox(work_fn=work).fork(5)
    assert not any(clone.ok or clone.returned for clone in clones) and all(clone.exit_code == 1 for clone in clones)
    assert (
        clones[0].raised.type_name == "TypeError"
        and "the value['a'][1] is of type _io.StringIO" in clones[0].raised.message
    )


def test_subclasses_return_as_their_base_types():
    import collections
    import enum

    def work():
        return [
            collections.OrderedDict(a=1),
            collections.Counter("aab"),
            collections.namedtuple("P", "x y")(1, 2),
            enum.IntEnum("E", "one").one,
            collections.defaultdict(list, {1: [2]}),
        ]

    assert repr(Sandbox(work_fn=work).fork(1)[0].get()) == "[{'a': 1}, {'a': 2, 'b': 1}, (1, 2), 1, {1: [2]}]"


def numpy_policy():
    numpy = pytest.importorskip("numpy", reason="needs numpy: arrays are what this is about")
    there = Path(numpy.__file__).parents[1]
    return numpy, Policy(
        fs_readable=["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", there],
        env={"PYTHONPATH": str(there), "OPENBLAS_NUM_THREADS": "1"},
    )


class Loud(dict):
    def items(self):
        print("asked")
        return super().items()


def test_output_of_a_values_pickling_is_kept():
    clone, = Sandbox(work_fn=lambda: Loud(a=1)).fork(1)
    assert (clone.value, clone.stdout) == ({"a": 1}, b"asked\n")


def without_pipes():
    def pipe():
        raise OSError("no more")

    os.pipe = pipe


def test_init_may_change_its_interpreter():
    assert values(Sandbox(init_fn=without_pipes, work_fn=lambda number: number).fork(2)) == [0, 1]


def test_arrays():
    numpy, policy = numpy_policy()

    def init():
        import numpy
        numpy.random.seed(5)
        return numpy.arange(12, dtype="<i4").reshape(3, 4)

    def work(number, table):
        import numpy

        return [
            table * number,
            table.T,
            numpy.float32(0.5),
            numpy.array(["ab", "c"]),
            numpy.array(3),
            numpy.zeros((0, 3)),
            numpy.bool_(True),
            float(numpy.random.random()),
        ]

    clones = values(Sandbox(policy, init_fn=init, work_fn=work).fork(3))
    table = numpy.arange(12, dtype="<i4").reshape(3, 4)
    for i, (times, turned, scalar, words, point, empty, truth, _) in enumerate(clones):
        assert (
            times.dtype == table.dtype
            and (times == table * i).all()
            and (turned == table.T).all()
            and times.flags.writeable
        )
        assert (
            type(scalar) is float
            and scalar == 0.5
            and words.tolist() == ["ab", "c"]
            and point.shape == ()
            and empty.shape == (0, 3)
            and truth is True
        )
    assert len({row[-1] for row in clones}) == 3, "numpy.random has another seed in each"
    refused, = Sandbox(policy, work_fn=lambda: __import__("numpy").array([object()])).fork(1)
    assert "numpy.ndarray" in refused.raised.message


# What work_fn does wrong is its own

def misbehave(number):
    print("out", number, end="")
    print("err", number, end="", file=sys.stderr)
    if number == 1:
        raise KeyError("no such thing")
    if number == 2:
        os._exit(0)
    if number == 3:
        sys.exit(5)
    if number == 4:
        os.kill(os.getpid(), 9)
    if number == 5:
        time.sleep(1000)
    if number == 6:
        list(range(1 << 40))
    if number == 7:
        while True:
            print("x" * 10000)
    return number


def test_failing_clone_keeps_the_results_of_others():
    clones = Sandbox(Policy(max_memory="128M", max_output=1 << 20), work_fn=misbehave).fork(10, timeout=8)
    assert [clone.outcome for clone in clones] == [
        "exit",
        "exit",
        "exit",
        "exit",
        "signal",
        "timeout",
        "exit" if clones[6].raised else "out_of_memory",
        "output_limit",
        "exit",
        "exit",
    ]
    assert [clone.id for clone in clones if clone.ok] == [0, 8, 9] and not any(clone.error for clone in clones)
    assert [clone.text for clone in clones[:5]] == ["out 0", "out 1", "", "out 3", ""] and clones[1].stderr == b"err 1"
    raised = clones[1].raised
    assert (
        (raised.type_name, raised.message, raised.id) == ("KeyError", "'no such thing'", 1)
        and "in misbehave" in raised.traceback
        and "_clone_guest" not in raised.traceback
    )
    for i, kind, match in (
        (1, WorkFailed, "work_fn of clone 1: KeyError"),
        (2, WorkFailed, "before work_fn returned"),
        (3, WorkFailed, "SystemExit: 5"),
        (4, RunFailed, "signal 9"),
        (5, RunFailed, "time-out"),
    ):
        with pytest.raises(kind, match=match):
            clones[i].check()
        assert clones[i].value is None and not clones[i].ok
    assert clones[3].exit_code == 5
    assert type(pickle.loads(pickle.dumps(clones[1]))) is Clone and str(
        pickle.loads(pickle.dumps(raised))
    ) == str(raised)


def test_exception_of_init_is_raised():
    def leave():
        os._exit(3)

    def fail():
        raise ValueError("bad world")

    with pytest.raises(WorkFailed, match="init_fn: ValueError: bad world") as caught:
        Sandbox(init_fn=fail, work_fn=look).fork(3)
    assert caught.value.id is None and "in fail" in caught.value.traceback
    with pytest.raises(WorkFailed, match="exited with status 3"):
        Sandbox(init_fn=leave, work_fn=look).warm()
    with pytest.raises(WorkFailed, match="timeout of 1 s"):
        Sandbox(Policy(timeout=1), init_fn=lambda: time.sleep(1000), work_fn=look).fork(3)
    with pytest.raises(CommandNotFound):
        Sandbox(work_fn=look, python="/no/python").fork(3)


def test_classes_of_the_caller_enter_and_do_not_leave():
    class Mine:
        def __init__(self):
            self.x = 5

    made = Mine()
    good, bad = Sandbox(work_fn=lambda number: made if number else made.x).fork(2)
    assert good.get() == 5 and bad.raised.type_name == "TypeError"


def test_unpicklable_function_is_refused():
    lock = threading.Lock()
    with pytest.raises(InvalidArgument, match="cannot go to the sandbox.*lock"):
        Sandbox(work_fn=lambda: lock).fork(1)
    with pytest.raises(FeatureMissing, match="serial"):
        Sandbox(Policy(time_start="2025-01-01T00:00:00", time_mode="virtual", serial=True), work_fn=misbehave).fork(1)
    for options in (
        {"n": 0},
        {"n": True},
        {"n": 1, "seed": "x"},
        {"n": 1, "concurrency": 0},
        {"n": 1, "timeout": -1},
        {"n": 1, "max_value": 0},
        {"n": 1, "retries": -1},
    ):
        with pytest.raises(InvalidArgument):
            Sandbox(work_fn=misbehave).fork(**options)


def test_without_cloudpickle_it_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(FeatureMissing, match="pip install cloudpickle"):
        Sandbox(work_fn=misbehave).fork(1)


def test_other_python_version_is_refused():
    with Sandbox(work_fn=misbehave, python="/tmp/python") as box:
        box.write_file(
            "/tmp/python",
            b"#!/usr/bin/python3\nimport sys\nsys.version_info = (2, 7, 0)\nexec(sys.argv[2])\n",
            mode=0o755,
        )
        with pytest.raises(InvalidArgument, match="is Python 2.7, and this is 3.*python="):
            box.fork(1)


# Nothing of the caller goes in

def test_caller_memory_environment_and_files_are_not_shared(monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLBOX_TEST_SECRET", SECRET)
    kept = open(tmp_path / "kept", "w")
    os.set_inheritable(kept.fileno(), True)

    def work():
        import re
        found = 0
        with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb") as memory:
            for line in maps:
                low, high = (int(end, 16) for end in line.split()[0].split("-"))
                try:
                    memory.seek(low)
                    found += len(re.findall(rb"trainer-[0-9a-f]{32}", memory.read(high - low)))
                except (OSError, OverflowError, ValueError):       # nothing that can be read
                    pass
        mine = [
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")
        ]
        return found, "ROLLBOX_TEST_SECRET" in os.environ, [path for path in mine if "kept" in path]

    assert Sandbox(work_fn=work).fork(1)[0].get() == (0, False, [])
    marked = SECRET
    assert Sandbox(work_fn=lambda: marked and work()).fork(1)[0].get()[0] > 0, "it is found where it is"
    kept.close()


# Randomness

def draw():
    import random
    import ssl
    import uuid
    return random.random(), os.urandom(8), ssl.RAND_bytes(8), uuid.uuid4().hex


def drawn_before():
    import random
    import ssl
    random.seed(5)
    ssl.RAND_bytes(8)
    return random.random()


def test_clones_have_different_random_values():
    box = Sandbox(init_fn=drawn_before, work_fn=draw)
    rows = values(box.fork(8)) + values(box.fork(8))
    for column in zip(*rows):
        assert len(set(column)) == 16


def test_seeded_clones_repeat():
    box = Sandbox(init_fn=drawn_before, work_fn=lambda: (__import__("random").random(), os.urandom(8)))
    first, again, other = (values(box.fork(3, seed=seed)) for seed in (7, 7, 8))
    assert [row[0] for row in first] == [row[0] for row in again] and len({row[0] for row in first + other}) == 6
    assert len({row[1] for row in first + again}) == 6, "the system's own has no seed"


def test_with_a_seed_numpy_repeats_whenever_it_makes_its_generator():
    def load():
        import numpy
        return numpy

    box = Sandbox(numpy_policy()[1], init_fn=load, work_fn=lambda number, numpy: float(numpy.random.random()))
    first, again = (values(box.fork(3, seed=7)) for _ in range(2))
    assert first == again and len(set(first)) == 3


class Odd(int, enum.Enum):
    NUMBER = 1 << 20


def test_int_subclass_is_taken_as_its_number():
    box = Sandbox(work_fn=lambda: __import__("random").random())
    assert values(box.fork(2, seed=Odd.NUMBER, max_value=Odd.NUMBER)) == values(
        box.fork(2, seed=1 << 20, max_value=1 << 20)
    )
    assert box.fork(1, max_value=10 ** 2000)[0].ok


def test_with_a_policys_seed_the_systems_own_repeats_too():
    def run():
        return values(
            Sandbox(
                Policy(random_seed=5),
                init_fn=drawn_before,
                work_fn=lambda: (
                    __import__("random").random(),
                    os.urandom(8),
                    str(__import__("uuid").uuid4()),
                ),
            ).fork(3)
        )

    first = run()
    assert first == run() and len({row[1] for row in first}) == 3 and len({row[0] for row in first}) == 3


# Many

def test_more_clones_than_run_at_once():
    box = Sandbox(init_fn=fill, work_fn=lambda number: number * 2)
    assert values(box.fork(100, concurrency=3)) == [2 * i for i in range(100)]
    ended = list(box.iter_fork(20, concurrency=20))
    assert sorted(clone.id for clone in ended) == list(range(20))
    assert box.fork(10, reduce=lambda clones: sum(clone.get() for clone in clones)) == 90
    first = next(iter(box.iter_fork(50, concurrency=5)))
    assert first.ok


def test_reduction_that_stops_early_ends_the_others():
    with (
        Engine() as engine,
        Sandbox(
            work_fn=lambda number: time.sleep(1000 * (number > 0)) or number, engine=engine
        ) as box,
    ):
        assert box.fork(8, reduce=lambda clones: next(clones).get()) == 0
        assert len(engine.sandboxes()) == 1


def test_forked_caller_does_not_own_the_clones():
    """Both have one epoll."""
    with Sandbox(work_fn=lambda number: number) as box, contextlib.closing(box.iter_fork(20, concurrency=4)) as clones:
        ids = [next(clones).id]
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                try:
                    list(clones)
                except EngineLost:
                    os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert sorted(ids + [clone.id for clone in clones]) == list(range(20))


def test_interrupted_fork_closes_its_clones(monkeypatch):
    call = Handle.call

    def interrupted(self, function, *arguments):
        call(self, function, *arguments)
        if function == "rollbox_fork":
            raise KeyboardInterrupt     # as the handler of a signal that came meanwhile

    with Engine() as engine, Sandbox(engine=engine) as box:
        box.exec(["true"])
        monkeypatch.setattr(Handle, "call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            box.fork(3)
        assert len(engine.sandboxes()) == 1


def test_progress_bar_is_shown(capsys):
    Sandbox(work_fn=lambda: 0).fork(3, progress=True)
    assert "3/3 100%" in capsys.readouterr().err


def test_dead_engine_is_an_error():
    with Engine() as engine, Sandbox(work_fn=lambda number: time.sleep(1000 * number), engine=engine) as box:
        clones = box.iter_fork(3, ordered=True, concurrency=3)
        assert next(clones).ok
        os.kill(engine.pid, 9)
        left = list(clones)
        assert [clone.outcome for clone in left] == [Outcome.ERROR] * 2 and all(
            isinstance(clone.error, RollboxError) and clone.raised is None for clone in left
        )
        with pytest.raises(RollboxError):
            left[0].get()


def test_asyncio():
    async def go():
        async with AsyncSandbox(init_fn=fill, work_fn=look) as box:
            assert type(box) is AsyncWorkSandbox
            assert [clone.get()[0] for clone in await box.fork(4)] == [0, 1, 2, 3]
            assert await box.fork(4, reduce=lambda clones: sum(clone.get()[0] for clone in clones)) == 6
            assert sorted([clone.id async for clone in box.iter_fork(4)]) == [0, 1, 2, 3]
        with Engine() as engine:
            async with AsyncSandbox(work_fn=lambda: time.sleep(1000), engine=engine) as box:
                await box.warm()
                task = asyncio.ensure_future(box.fork(4))
                while len(engine.sandboxes()) < 5:
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert len(engine.sandboxes()) == 1

    asyncio.run(go())


def test_sandbox_with_functions_can_be_pickled():
    import cloudpickle
    box = pickle.loads(cloudpickle.dumps(Sandbox(Policy(max_memory="256M"), work_fn=lambda number: number)))
    assert type(box) is WorkSandbox and box.policy.max_memory == "256M" and values(box.fork(2)) == [0, 1]


# Programs that lie

def answer(data, length=None):
    raw = (len(data) if length is None else length).to_bytes(8, "big") + data
    while raw:
        raw = raw[os.write(4, raw):]


LIES = [
    b"",
    b"{",
    b"[]",
    b"5",
    b'{"value": ' + b"[" * 100000,
    b'{"value": ' + b"9" * 100000 + b"}",
    b'{"value": {"int": "x"}}',
    b'{"value": {"int": 5}}',
    b'{"value": {"object": []}}',
    b'{"value": {}}',
    b'{"value": {"a": 1, "b": 2}}',
    b'{"value": {"set": [[]]}}',
    b'{"value": {"items": [5]}}',
    b'{"value": {"items": 7}}',
    b'{"value": {"bytes": "\xff"}}',
    b'{"value": {"bytes": 5}}',
    b'{"value": {"datetime": "never"}}',
    b'{"value": {"timedelta": [1e400, 0, 0]}}',
    b'{"value": {"complex": ["x", 0]}}',
    b'{"value": {"array": ["|O8", [1], "AAAAAAAAAAA="]}}',
    b'{"value": {"array": ["<f8", [4611686018427387903, 2], ""]}}',
    b'{"value": {"array": ["<f8", [-1], ""]}}',
    b'{"value": {"array": "<f8"}}',
    b'{"value": {"set": [' + b",".join(b"%d" % (i * (2**61 - 1)) for i in range(8)) + b',1e999]}}',
    b'{"value": {"set": ['
    + b",".join(b'{"int": "0x%x"}' % (i * (2**61 - 1)) for i in range(50000))
    + b"]}}",
    b'{"raised": 5}',
    b'{"raised": {"type": 5}}',
    b'{"raised": {"message": [1]}}',
    b'\xff\xfe{}',
]


def test_forged_replies_are_data():
    def work(number):
        answer(LIES[number])
        os._exit(0)

    clones = Sandbox(work_fn=work).fork(len(LIES))
    assert [clone.id for clone in clones if clone.ok] == [23], "but the one that is a set"
    for clone in clones:
        if not clone.ok:
            with pytest.raises((WorkFailed, RunFailed)):
                clone.get()


def test_pickle_is_not_loaded():
    class Evil:
        def __reduce__(self):
            return os.system, ("touch /tmp/loaded",)

    def work(number):
        data = pickle.dumps(Evil())
        if number:
            answer(data)
            os._exit(0)
        return data

    as_bytes, as_answer = Sandbox(work_fn=work).fork(2)
    assert type(as_bytes.get()) is bytes and not as_answer.ok and not os.path.exists("/tmp/loaded")


def test_endless_reply_is_bounded():
    def work(number):
        if number == 0:
            return b"x" * (1 << 20)
        if number == 1:
            answer(b"x" * (1 << 16), 1 << 62)
        if number == 2:
            answer(b"x", 100)
            os.close(4)
        if number == 3:
            os.write(4, b"\0")
        time.sleep(1000 if number < 3 else 0)

    clones = Sandbox(work_fn=work).fork(4, max_value=1 << 19, timeout=5)
    assert clones[0].raised.type_name == "ValueError" and "max_value is 524288" in clones[0].raised.message
    assert "may have 524288" in clones[1].raised.message and clones[1].outcome == "signal"
    assert clones[2].outcome == "timeout" and not clones[2].ok
    assert not clones[3].ok


def test_invalid_ready_message_is_refused():
    def init():
        answer(json.dumps({"version": [3, ["x" * 100000]]}).encode())
        time.sleep(1000)

    with pytest.raises(InvalidArgument, match="is Python 3"):
        Sandbox(init_fn=init, work_fn=look).fork(1)

    def other():
        answer(b"\xff")
        time.sleep(1000)

    with pytest.raises(WorkFailed, match="cannot be read"):
        Sandbox(init_fn=other, work_fn=look).fork(1)


def test_plain_data_there_and_back_without_a_sandbox():
    for item in ODD:
        back = _safe_values.decode(_safe_values.loads(json.dumps(_safe_values.encode(item)).encode()))
        assert back == item and type(back) is type(item)


def test_clones_leave_nothing():
    with Engine() as engine:
        box = Sandbox(work_fn=misbehave, engine=engine)
        before = None
        for _ in range(5):
            box.fork(4, concurrency=2)
            now = len(os.listdir("/proc/self/fd")), len(engine.sandboxes())
            before = before or now
            assert now == before


# Templates by name

SETUP = "import json, random, sys\nrows = list(range(1000))\nrandom.seed(5)\nopen('/tmp/left', 'w').write('x')"


@pytest.fixture
def shared(caller, monkeypatch):
    # This process is root in part of the runs, and uses the ordinary user's engine from Python: it
    # has to say that it trusts it.
    monkeypatch.setenv("ROLLBOX_TRUST_UID", str(caller.uid))
    with shared_engine(caller) as call:
        yield call


def python(call, *words, status=0, **options):
    return call(
        "run",
        "--template",
        "base",
        *options.pop("more", ()),
        "--",
        "python3",
        *words,
        status=status,
        **options,
    )


def test_template_is_made_used_listed_and_removed(shared):
    shared("template", "create", "--memory", "128M", "--python", SETUP, "base")
    assert [row["name"] for row in json.loads(shared("template", "ls", "--json"))] == [
        "base"
    ] and "base" in shared("template", "ls")
    assert (
        python(
            shared,
            "-c",
            "print(sum(rows), sys.argv, __name__, open('/tmp/left').read(), sys.stdin.read())",
            "a",
            "b",
            input=b"in",
        )
        == "499500 ['-c', 'a', 'b'] __main__ x in"
    )
    assert (
        python(shared, "-c", "rows.clear(); print(rows)") == "[]"
        and python(shared, "-c", "print(len(rows))") == "1000"
    )
    assert len({python(shared, "-c", "print(random.random())") for _ in range(4)}) == 4
    shared("template", "create", "again")
    shared("template", "rm", "base", "again")
    assert json.loads(shared("template", "ls", "--json")) == [] and shared("ps", "-q") == ""
    python(shared, "-c", "1", status=125)


def test_how_a_program_in_a_template_ends(shared):
    shared("template", "create", "--python", SETUP, "base")
    python(shared, "-c", "sys.exit(7)", status=7)
    python(shared, "-c", "import os; os.kill(os.getpid(), 9)", status=137)
    python(shared, "-c", "import atexit; atexit.register(print, 'bye'); 1 / 0", status=1)
    python(shared, "-c", "while True: pass", status=124, more=("--timeout", "0.5"))
    python(shared, "/no/file", status=2)
    row = json.loads(python(shared, "-c", "import atexit; atexit.register(print, 'bye'); 1 / 0", more=("--json",)))
    assert (row["outcome"], row["exit_code"], row["stdout"]) == ("exit", 1, "bye\n")
    assert (
        row["stderr"]
        == 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\nZeroDivisionError: division by zero\n'
    )
    assert (
        json.loads(python(shared, "-c", "while True: pass", more=("--timeout", "0.5", "--json")))[
            "outcome"
        ]
        == "timeout"
    )
    assert json.loads(python(shared, "-c", "1 +", more=("--json",)))["stderr"].endswith("SyntaxError: invalid syntax\n")
    assert len(python(shared, "-c", "print('x' * 3000000)")) == 3000000
    assert python(shared, "-c", "print(len(sys.stdin.buffer.read()))", input=b"x" * 3000000) == "3000000"
    assert shared("ps", "-q") == "template.base", "no fork is left"


def test_template_file_is_used(shared, caller):
    script = caller.directory() / "script.py"
    script.write_text(
        "import sys, os\nprint(__name__, __file__ == sys.argv[0], sys.argv[1:], sys.path[0] == os.path.dirname(__file__), len(rows))\n"
    )
    script.parent.chmod(0o755)
    script.chmod(0o644)
    shared("template", "create", "--readable", str(script.parent), "--python", SETUP, "base")
    assert python(shared, str(script), "a") == "__main__ True ['a'] True 1000"


def test_policy_timeout_applies_to_each_run(shared, caller):
    shared("template", "create", "--timeout", "1.5", "--python", "import time; time.sleep(1)", "base")
    for _ in range(2):
        assert python(shared, "-c", "time.sleep(0.8); print('there')") == "there"
    python(shared, "-c", "time.sleep(1000)", status=124)


def test_unsupported_template_operations_are_refused(shared):
    shared("template", "create", "base")
    for words in (
        ["ls"],
        ["python3"],
        ["python3", "-m", "json"],
        ["python3", "-c"],
        ["python3", "-"],
        ["/usr/bin/python3", "-c", "1"],
    ):
        shared("run", "--template", "base", "--", *words, status=125)
    for option in (["--memory", "5M"], ["--env", "A=b"], ["--net", "host"]):
        shared("run", "--template", "base", *option, "--", "python3", "-c", "1", status=125)
    for code in ("1 / 0", "import os; os._exit(0)", "import sys; sys.exit(0)"):
        shared("template", "create", "--python", code, "bad", status=125)
    shared("template", "create", "base", status=125)
    shared("template", "create", "bad/name", status=125)
    shared("template", "rm", "bad", status=125)
    assert shared("ps", "-q") == "template.base"


def test_python_makes_a_template(shared):
    shared("template", "create", "--memory", "128M", "--python", SETUP, "base")
    with Engine(shared.env["ROLLBOX_SOCKET"]) as engine:
        box = Sandbox(template="base", engine=engine)
        assert type(box) is TemplateSandbox and box.policy.max_memory in ("128M", 128 << 20)
        assert box.run_code("print(sum(rows), sys.argv)", ["a"], text=True).stdout == "499500 ['-c', 'a']\n"
        assert box.run_code("print(len(sys.stdin.read()))", input="x" * 200000, text=True).stdout == "200000\n"
        assert (
            box.run_code("while True: pass", timeout=0.5).outcome == "timeout"
            and box.run_code("sys.exit(4)").exit_code == 4
        )
        with pytest.raises(RunFailed):
            box.run_code("1 / 0", check=True)
        with box:
            assert box.exec(["cat", "/tmp/left"], text=True).stdout == "x"
            assert type(box.fork(1)[0]) is Sandbox
        for call in (
            lambda: box.run(["ls"]),
            lambda: Sandbox(template="base"),
            lambda: Sandbox({}, template="base", engine=engine),
            lambda: Sandbox(template="base", engine=engine, name="x"),
        ):
            with pytest.raises(InvalidArgument):
                call()
        with pytest.raises(NotFound, match="no template other"):
            Sandbox(template="other", engine=engine)


def test_interrupted_template_is_removed(shared, caller):
    making = caller.popen(
        [
            binaries() / "rollbox",
            "template",
            "create",
            "--python",
            "import time; print('x'); time.sleep(1000)",
            "slow",
        ],
        env=shared.env,
    )
    while shared("ps", "-q") == "" or not json.loads(shared("inspect", "template.slow"))["execs"]:
        pass
    making.terminate()
    assert making.wait(DEADLINE) == -signal.SIGTERM
    assert shared("ps", "-q") == ""


def gone(shared, name):
    deadline = time.monotonic() + DEADLINE
    while name in shared("ps", "-q").split():
        assert time.monotonic() < deadline, "it is still there"


def test_killed_client_ends_its_clones_not_the_template(shared, caller):
    shared("template", "create", "base")
    running = caller.popen(
        [
            binaries() / "rollbox",
            "run",
            "--template",
            "base",
            "--",
            "python3",
            "-c",
            "print('x', flush=True); import time; time.sleep(1000)",
        ],
        env=shared.env,
        stdout=subprocess.PIPE,
    )
    assert running.stdout.read(2) == b"x\n"
    fork, = set(shared("ps", "-q").split()) - {"template.base"}
    running.kill()
    running.wait()
    gone(shared, fork)
    assert python(shared, "-c", "print(5)") == "5"


def test_clones_of_a_detached_session_end_with_their_client(shared):
    program = (
        f"import sys; sys.path.insert(0, {str(Path(rollbox.__file__).parents[1])!r})\n"
        "import time\nfrom rollbox import Engine, Sandbox\n"
        f"box = Sandbox(work_fn=lambda: time.sleep(1000), engine=Engine({shared.env['ROLLBOX_SOCKET']!r}), name='origin', detached=True)\n"
        "box.warm(); print('warm', flush=True); box.fork(3)\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert trainer.stdout.readline() == b"warm\n"
    while len(shared("ps", "-q").split()) < 4:
        assert trainer.poll() is None
    clones = set(shared("ps", "-q").split()) - {"origin"}
    trainer.kill()
    trainer.wait()
    for name in clones:
        gone(shared, name)
    assert shared("ps", "-q") == "origin"


def test_malformed_reply_raises_only_ValueError():
    pytest.importorskip("numpy", reason="needs numpy: arrays are part of it")
    rng = random.Random(11)
    seeds = [
        json.dumps(_safe_values.encode(ODD)).encode(),
        *LIES,
        b'{"array": ["<i4", [2, 3], "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"]}',
        b'{"items": [[{"tuple": [1]}, {"set": [1, {"frozenset": []}]}]]}',
    ]
    words = [
        b'{"tuple": [',
        b'{"set": [',
        b'{"items": [[',
        b'{"array": ["<U9", [0, 7], ""]}',
        b'{"int": "-0x',
        b'{"complex": [',
        b"]}",
        b"[",
        b"]",
        b'"',
        b"1e9",
        b"null",
        b",",
        b"-",
        b"NaN",
    ]
    for _ in range(20000):
        data = bytearray(rng.choice(seeds)[:2000])
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data) + 1)
            data[at : at + rng.choice((0, 0, 1, 4))] = (
                rng.choice(words) if rng.random() < 0.7 else bytes([rng.randrange(256)])
            )
        try:
            _safe_values.decode(_safe_values.loads(bytes(data)))
        except ValueError:
            pass


def test_example_works():
    example = Path(__file__).resolve().parents[2] / "examples/forks.py"
    done = subprocess.run(
        [sys.executable, str(example), "-n", "20", "-c", "10"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0 and "20 of 20 right, 20 different walks, 0 failed" in done.stdout
