# SPDX-License-Identifier: Apache-2.0
"""rollbox doctor: the table, the JSON, the exit status, and masked features."""

import functools
import json

from harness import shown


def test_json(cli):
    done = cli("doctor", "--json")
    report = json.loads(done.stdout)
    assert {"kernel", "ok", "isolation", "cgroup", "features"} <= set(report)
    assert done.returncode == (0 if report["isolation"]["namespace"] else 1)
    assert report["features"] and all({"name", "available", "needed_for", "hint"} <= set(feature) for feature in report["features"])


def test_table(cli):
    report = cli.json("doctor", "--json")
    done = cli("doctor")
    text = done.stdout.decode()
    assert done.returncode == (0 if report["isolation"]["namespace"] else 1)
    for feature in report["features"]:
        assert feature["name"] in text
    assert report["kernel"] in text and "\033" not in text


def test_masked_features(cli):
    """What is masked is missing, has a hint, and decides the exit status."""
    done = cli("doctor", "--json", env={"ROLLBOX_KFEAT": "-userns"})
    report = json.loads(done.stdout)
    userns = next(feature for feature in report["features"] if feature["name"] == "userns")
    assert not userns["available"] and userns["hint"]
    assert done.returncode == (0 if report["isolation"]["namespace"] else 1)
    assert userns["hint"] in cli("doctor", env={"ROLLBOX_KFEAT": "-userns"}).stdout.decode()


def test_colours_on_a_terminal_only(cli):
    assert b"\033[3" in shown(functools.partial(cli.start, "doctor", env={}))
    assert b"\033[" not in shown(functools.partial(cli.start, "doctor", env={"NO_COLOR": "1"}))
