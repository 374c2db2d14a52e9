#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The unit harness reports what it must: failures of every kind, also in forked children; skips,
and when they are failures. Argument: unit-harness."""

import os
import subprocess
import sys

from structure import finish

BAD = {
    "bad_compare": "left == 42: 41 (0x29) == 42 (0x2a) does not hold",
    "bad_string": 'left is "left", right is "right"',
    "bad_errno": "-ENOENT returned -2: No such file or directory (ENOENT)",
    "bad_bytes": "first difference at byte 2: 63 against 64",
    "bad_in_a_forked_child": "7 == 8",
    "bad_signal": "killed by signal 11",
    "bad_exit": "exited with 3",
    "bad_timeout": "timed out after 1 s",
}


def run(case, **variables):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ROLLBOX_MUST_WORK")}
    done = subprocess.run(
        [sys.argv[1], case],
        capture_output=True,
        text=True,
        env={**environment, "HARNESS_BAD": "1", **variables},
    )
    return done.returncode, done.stdout


def main():
    problems = []

    def expect(what, got, status, *texts):
        for text in texts:
            if got[0] != status or text not in got[1]:
                problems.append(f"{what}: expected status {status} and {text!r}, got {got}")

    for case, text in BAD.items():
        expect(case, run(case), 1, f"not ok 1 - {case}", text, "1..1")
    expect("output", run("bad_signal"), 1, "# words before the end")
    expect("skip", run("bad_skip"), 0, "ok 1 - bad_skip # SKIP needs unicorn: there is none on earth")
    expect("must work", run("bad_skip", ROLLBOX_MUST_WORK="1"), 1, "not ok 1 - bad_skip", "would be skipped")
    expect("except", run("bad_skip", ROLLBOX_MUST_WORK="1", ROLLBOX_MUST_WORK_EXCEPT="horse,unicorn"), 0, "# SKIP")
    expect("not except", run("bad_skip", ROLLBOX_MUST_WORK="1", ROLLBOX_MUST_WORK_EXCEPT="unicorns"), 1, "not ok")
    expect("no such case", run("nothing"), 1, "1..0")
    finish(problems)


if __name__ == "__main__":
    main()
