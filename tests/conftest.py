# SPDX-License-Identifier: Apache-2.0
"""What all pytest tests have in common: which programs they test, time limits, and skips that must say what they need.

ROLLBOX_BUILD is the directory of the programs (default: build/). A skip whose reason begins with
"needs WORD" is for something that the machine lacks: with
ROLLBOX_MUST_WORK=1 it is a failure, unless the word is in ROLLBOX_MUST_WORK_EXCEPT, as for the unit
tests. Another skip says why a test does not apply.
"""

import faulthandler
import os
import re
import signal
from pathlib import Path

import pytest

TIMEOUT_S = 1800 if os.environ.get("ROLLBOX_SOAK") == "1" else 120
# Where an expired test waits again on its way out (the end of a `with`, a fixture), it expires again.
AGAIN_S = 10
TOGETHER = ("test_determinism.py", "test_determinism_stamps.py", "test_determinism_virtual.py")
BUILD = Path(os.environ.get("ROLLBOX_BUILD", Path(__file__).resolve().parent.parent / "build"))
os.environ.setdefault("ROLLBOX_BUILD", str(BUILD))


# standard error as it is while nothing is captured: what is captured is lost where a run ends at
# once
said_at_last = None


def pytest_configure(config):
    global said_at_last
    said_at_last = os.fdopen(os.dup(2), "w")
    config.addinivalue_line("markers", "timeout_s(seconds): a time limit other than the usual 120 s")
    config.addinivalue_line(
        "markers",
        "long: takes ten seconds or more, computing or waiting: workers begin with those, so that none of them is alone at the end",
    )
    config.addinivalue_line(
        "markers",
        "once: proves the same for each user and each mask; left out where ROLLBOX_TEST_AGAIN=1",
    )
    config.addinivalue_line("markers", "masked: runs again with kernel features masked")
    # A shell's background job ignores the first two and nohup's the third, and so would all that is
    # started here, to which some tests send them.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_modifyitems(config, items):
    if os.environ.get("ROLLBOX_TEST_AGAIN") == "1":
        repeated = [item for item in items if item.get_closest_marker("once")]
        config.hook.pytest_deselected(items=repeated)
        items[:] = [item for item in items if not item.get_closest_marker("once")]
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Gives each test to the next free worker. One worker gets all tests of a file of TOGETHER,
    because they share a fixture of hundreds of runs, which each worker would repeat."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            path = nodeid.split("::", 1)[0]
            return path if Path(path).name in TOGETHER else nodeid

        def remove_node(self, node):
            """What a dead worker has done already is no work: one that is given a unit without tests waits for ever."""
            self.assigned_work[node] = {
                scope: unit
                for scope, unit in self.assigned_work[node].items()
                if not all(unit.values())
            }
            return super().remove_node(node)

        def _reschedule(self, node):
            """Of two workers that take the places of dead ones, one is asked for before it knows its tests."""
            if node in self.registered_collections:
                super()._reschedule(node)

    return Scheduling(config, log)


def pytest_report_header():
    return f"rollbox: {BUILD}, uid {os.geteuid()}, ROLLBOX_KFEAT={os.environ.get('ROLLBOX_KFEAT', '')}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    marker = item.get_closest_marker("timeout_s")
    limit = marker.args[0] if marker else TIMEOUT_S

    def expired(*_):
        pytest.fail(f"timed out after {limit} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, limit, AGAIN_S)
    # A call into C that never returns is not interrupted by the handler above: show where everybody
    # is, and end the run.
    faulthandler.dump_traceback_later(limit + 60, exit=True, file=said_at_last)
    yield
    faulthandler.cancel_dump_traceback_later()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    need = re.match(r"(?:Skipped: )?needs ([\w-]+)", reason)
    excepted = os.environ.get("ROLLBOX_MUST_WORK_EXCEPT", "").split(",")
    if need and os.environ.get("ROLLBOX_MUST_WORK") == "1" and need.group(1) not in excepted:
        report.outcome = "failed"
        report.longrepr = f"would be skipped ({reason}), but ROLLBOX_MUST_WORK=1"
