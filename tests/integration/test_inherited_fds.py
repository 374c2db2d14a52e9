# SPDX-License-Identifier: Apache-2.0
"""Properties of the caller that guests do not inherit: limits, ways of being scheduled,
personality, umask; and standard streams that are closed."""

import ctypes
import json
import os
import subprocess

import pytest
from harness import binaries, caller  # noqa: F401

LIMITS = [("v", 400000), ("d", 300000), ("t", 77), ("f", 5000), ("s", 4000)]
PR_SET_TIMERSLACK = 29
PERSONALITY = 0x8840000         # setarch -R -B -3


def under(who, setting, *argv, **options):
    """By a shell that has set this before."""
    return who.call("bash", "-c", f'{setting} || exit 99; exec "$@"', "-", binaries() / "rollbox", *argv, **options)


def low(who, setting):
    return {
        limit["command"]: limit["value"]
        for limit in json.loads(under(who, setting, "doctor", "--json").stdout)["low_limits"]
    }


@pytest.mark.parametrize("letter, value", LIMITS)
def test_limits_of_a_shell(caller, letter, value):
    guest = under(caller, f"ulimit -S -{letter} {value}", "run", "--", "bash", "-c", f"ulimit -S -{letter}")
    assert guest.stdout.decode().strip() == ("8192" if letter == "s" else "unlimited"), guest.stderr
    assert f"ulimit -{letter}" not in low(caller, f"ulimit -S -{letter} {value}")


@pytest.mark.parametrize("letter, value", LIMITS)
def test_hard_limits_are_reported_unless_they_can_be_raised(caller, letter, value):
    told = low(caller, f"ulimit -{letter} {value}")
    guest = (
        under(
            caller, f"ulimit -{letter} {value}", "run", "--", "bash", "-c", f"ulimit -S -{letter}"
        )
        .stdout.decode()
        .strip()
    )
    if f"ulimit -{letter}" in told:
        assert told[f"ulimit -{letter}"] == value and guest == str(value)
        assert f"ulimit -{letter} {value}\n" in under(caller, f"ulimit -{letter} {value}", "doctor").stdout.decode()
    else:
        assert os.geteuid() == 0 and guest == ("8192" if letter == "s" else "unlimited")


@pytest.mark.parametrize("isolation", ["namespace", "process"])
def test_ways_of_being_run(caller, isolation):
    """Slack of timers (a guest's sleep of a tenth of a second took two seconds), and what setarch(8) sets."""
    def change():
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_TIMERSLACK, 2000000000, 0, 0, 0)
        libc.personality(PERSONALITY)

    code = "import ctypes; libc = ctypes.CDLL(None); print(libc.prctl(30, 0, 0, 0, 0), libc.personality(0xffffffff))"
    done = caller.rollbox("run", "--isolation", isolation, "--", "python3", "-c", code, preexec_fn=change)
    assert done.stdout == b"50000 0\n", done


def test_real_time_priority(cli):
    """A hostile guest that has it starves the host."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except PermissionError:
        pytest.skip("this user may not have real-time priority")
    try:
        assert cli("run", "--", "python3", "-c", "import os; print(os.sched_getscheduler(0))").stdout == b"0\n"
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def test_priorities(caller):
    """Guests do not inherit raised ones. They inherit lowered ones: a user who lowers the engine's
    means its sandboxes."""
    for nice, guests in ((-5, 0), (7, 7)):
        done = subprocess.run(
            [
                "nice",
                "-n",
                str(nice),
                "setpriv",
                f"--reuid={caller.uid}",
                f"--regid={caller.uid}",
                "--clear-groups",
                binaries() / "rollbox",
                "run",
                "--",
                "nice",
            ],
            capture_output=True,
            env=caller.environment(),
            cwd="/",
        )
        if b"cannot set niceness" in done.stderr or b"setpriv" in done.stderr:
            pytest.skip("this user may not raise priorities, or become another user")
        assert done.stdout == b"%d\n" % guests, done


@pytest.mark.parametrize("umask", ["0777", "0700", "0300", "0177"])
@pytest.mark.parametrize("isolation", ["namespace", "process"])
def test_umask_without_owner_rights_works(caller, isolation, umask):
    done = under(
        caller,
        f"umask {umask}",
        "run",
        "--isolation",
        isolation,
        "--",
        "sh",
        "-c",
        "echo written > $HOME/x; cat $HOME/x; umask",
    )
    assert done.stdout == b"written\n0022\n", done


def test_closed_output_is_not_written_to_in_silence(caller):
    jobs = caller.write(caller.home / "jobs.jsonl", '{"id": 1, "argv": ["true"]}\n')
    for arguments in (["batch", jobs, "--no-progress"], ["run", "--", "echo", "x"], ["run", "--json", "--", "true"]):
        done = under(caller, "exec 1>&-", *arguments)
        assert done.returncode == 125 and b"standard output" in done.stderr, done
    assert under(caller, "exec 1>&-", "run", "--", "true").returncode == 0


def test_closed_input(caller):
    """It is no list of jobs that came to its end; a guest's is at its end."""
    done = under(caller, "exec 0<&-", "batch", "-", "--no-progress")
    assert done.returncode == 125 and b"<stdin>" in done.stderr, done
    assert under(caller, "exec 0<&-", "run", "--", "cat").returncode == 0


@pytest.mark.parametrize("options", [[], ["--seed", "7"]])
def test_process_1_shows_nothing_of_the_host(caller, options):
    """Its arguments had the first of the host's ids, another in each run."""
    done = caller.rollbox("run", *options, "--", "cat", "/proc/1/cmdline")
    assert done.stdout.rstrip(b"\0") == b"rollbox-init" and len(done.stdout) == 29, done


def test_full_host_disk_is_not_the_fault_of_the_job(caller):
    """Isolation process keeps private files there: what does not fit is no bad job, which nobody would try again."""
    if os.geteuid() or caller.uid:
        pytest.skip("only root can make a disk that is full here")
    job = caller.write(
        caller.home / "job.jsonl",
        json.dumps(
            {
                "id": 1,
                "argv": ["true"],
                "files": {"large": "x" * 300000},
                "policy": {"isolation": "process"},
            }
        )
        + "\n",
    )
    script = 'mount --make-rprivate / && mount -t tmpfs -o size=200k none /mnt && TMPDIR=/mnt exec "$0" batch --no-progress --retries 0 "$1"'
    done = caller.call("unshare", "-m", "sh", "-c", script, binaries() / "rollbox", job)
    row = json.loads(done.stdout)
    assert (
        row["outcome"] == "error"
        and row["error"]["code"] == "resource_exhausted"
        and "disk" in row["error"]["message"]
    ), row
