# SPDX-License-Identifier: Apache-2.0
"""A guest that kills every new process of its sandbox makes no call about files fail, and runs after it."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import guest, repeat_count

from rollbox import NotFound, Policy, Sandbox

PROGRAM = "/tmp/kill_all"


@pytest.fixture(params=["kill_all", "kill -1"])
def killing(request):
    """A sandbox with a guest that kills, and that guest's output, of which there is more as long as it runs."""
    with Sandbox(Policy(max_disk="64M", max_output="16G")) as box:
        box.upload(guest("kill_all"), PROGRAM)
        if request.param == "kill_all":
            process = box.spawn([PROGRAM, "2"])
        else:
            process = box.spawn(["sh", "-c", "while :; do kill -KILL -1; printf %01000d 1; done"])
        assert process.stdout.read(1)
        yield box, process
        process.kill()
        process.wait()


def still_runs(process):
    """Data in its pipe may be older, so it is read first."""
    assert len(process.stdout.read(100_000)) == 100_000


def test_two_hundred_files_are_written_and_read(killing):
    box, process = killing
    for i in range(200):
        text = b"%d" % i * (20_000 if i % 20 == 0 else 1)
        box.write_file(f"/tmp/file{i}", text)
        assert box.read_file(f"/tmp/file{i}") == text
    still_runs(process)


def test_every_call_about_files_succeeds(killing, tmp_path):
    box, process = killing
    source = tmp_path / "source"
    for i in range(20):
        (source / f"d{i}").mkdir(parents=True)
        (source / f"d{i}" / "file").write_bytes(b"%d" % i * 5000)
    for i in range(repeat_count(10, 3)):
        box.mkdir(f"/tmp/new{i}/below")
        assert box.stat(f"/tmp/new{i}/below").type == "directory"
        box.upload(source, f"/tmp/new{i}")
        assert len(box.list(f"/tmp/new{i}")) == 21
        box.download(f"/tmp/new{i}", tmp_path / f"back{i}")
        assert (tmp_path / f"back{i}" / "d19" / "file").read_bytes() == b"19" * 5000
        box.remove(f"/tmp/new{i}", recursive=True)
        with pytest.raises(NotFound):
            box.read_file(f"/tmp/new{i}/below")
    still_runs(process)


def test_calls_at_once_succeed(killing):
    box, process = killing

    def work(thread):
        for i in range(repeat_count(25, 3)):
            box.write_file(f"/tmp/{thread}", b"%d" % i)
            assert box.read_file(f"/tmp/{thread}") == b"%d" % i

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    still_runs(process)


@contextlib.contextmanager
def calls_meanwhile(box):
    """Calls about files, one after the other, in a thread."""
    stop, problems, n = threading.Event(), [], 0

    def work():
        nonlocal n
        try:
            while not stop.is_set():
                box.write_file("/tmp/meanwhile", b"x" * 200_000)
                n += 1
        except Exception as problem:
            problems.append(problem)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not problems and n, problems


def test_live_fork_meanwhile_has_no_stopped_process(killing):
    box, process = killing
    with calls_meanwhile(box):
        for _ in range(repeat_count(6, 3)):
            child = box.fork(1)[0]
            still_runs(child.process(process.id))
            child.close()
    still_runs(process)


def test_pause_and_snapshots_of_files_meanwhile(killing):
    box, process = killing
    with calls_meanwhile(box):
        for _ in range(repeat_count(6, 3)):
            box.pause()
            box.resume()
            box.snapshot(processes="drop")
    still_runs(process)
