# SPDX-License-Identifier: Apache-2.0
"""rollbox doctor: the table, the JSON, the exit status, and masked features."""

import functools
import json
import os

import pytest
from harness import caller, shown  # noqa: F401


def test_json(cli):
    done = cli("doctor", "--json")
    report = json.loads(done.stdout)
    assert {"kernel", "ok", "isolation", "cgroup", "features"} <= set(report)
    assert done.returncode == (0 if report["isolation"]["namespace"] else 1)
    assert report["features"] and all(
        {"name", "available", "needed_for", "hint"} <= set(feature)
        for feature in report["features"]
    )


def test_table(cli):
    report = cli.json("doctor", "--json")
    done = cli("doctor")
    text = done.stdout.decode()
    assert done.returncode == (0 if report["isolation"]["namespace"] else 1)
    for feature in report["features"]:
        assert feature["name"] in text
    assert report["kernel"] in text and "\033" not in text


def test_masked_features(cli):
    """A masked feature is missing, has a hint, and decides the exit status."""
    done = cli("doctor", "--json", env={"ROLLBOX_KFEAT": "-userns"})
    report = json.loads(done.stdout)
    userns = next(feature for feature in report["features"] if feature["name"] == "userns")
    assert not userns["available"] and userns["hint"]
    assert done.returncode == (0 if report["isolation"]["namespace"] else 1)
    assert userns["hint"] in cli("doctor", env={"ROLLBOX_KFEAT": "-userns"}).stdout.decode()


@pytest.mark.parametrize("isolation", ["namespace", "process"])
def test_doctor_and_run_agree(caller, isolation):
    """With any single feature missing, run does what doctor says works, and refuses the rest by name."""
    given = os.environ.get("ROLLBOX_KFEAT", "")
    features = [feature["name"] for feature in json.loads(caller.rollbox("doctor", "--json").stdout)["features"]]
    for feature in features:
        env = caller.environment(ROLLBOX_KFEAT=",".join(filter(None, [given, "-" + feature])))
        told = json.loads(caller.rollbox("doctor", "--json", env=env).stdout)["isolation"][isolation]
        result = json.loads(caller.rollbox("run", "--json", "--isolation", isolation, "--", "true", env=env).stdout)
        if told:
            assert (result["outcome"], result["exit_code"]) == ("exit", 0), (feature, result)
        else:
            assert result["outcome"] == "error" and result["error"]["code"] == "feature_missing", (feature, result)


NEEDING = {
    "max_cpu": ["--cpus", "1"],
    "fs_writable": ["--writable"],
    "fs_shared": ["--shared"],
    "time_mode virtual": ["--time-start", "2025-01-01T00:00:00", "--time-mode", "virtual"],
}


@pytest.mark.parametrize("key", NEEDING)
def test_doctor_names_the_feature_a_key_needs(caller, key):
    """A key is refused for a feature that is missing only where doctor says that the feature is for
    it, or for all of the isolation; else it works."""
    flags = [*NEEDING[key], caller.directory()] if key.startswith("fs_") else NEEDING[key]
    given = os.environ.get("ROLLBOX_KFEAT", "")
    for feature in json.loads(caller.rollbox("doctor", "--json").stdout)["features"]:
        env = caller.environment(ROLLBOX_KFEAT=",".join(filter(None, [given, "-" + feature["name"]])))
        if not json.loads(caller.rollbox("doctor", "--json", env=env).stdout)["isolation"]["namespace"]:
            continue
        result = json.loads(caller.rollbox("run", "--json", *flags, "--", "true", env=env).stdout)
        if result["outcome"] == "error":
            assert result["error"]["code"] == "feature_missing" and key in feature["needed_for"], (feature, result)
        else:
            assert result["exit_code"] == 0, (feature, result)


def test_colours_on_a_terminal_only(cli):
    assert b"\033[3" in shown(functools.partial(cli.start, "doctor", env={}))
    assert b"\033[" not in shown(functools.partial(cli.start, "doctor", env={"NO_COLOR": "1"}))


@pytest.mark.parametrize("mask", ["", "-nft_tproxy"])
def test_doctor_and_run_agree_about_egress(caller, mask):
    env = caller.environment(ROLLBOX_KFEAT=",".join(filter(None, [os.environ.get("ROLLBOX_KFEAT", ""), mask])))
    told = json.loads(caller.rollbox("doctor", "--json", env=env).stdout)["egress"]
    result = caller.run("--allow", "a.test", "--", "true", env=env)
    assert told == (result.network["mode"] if result.outcome == "exit" else "none")
    assert mask == "" or told != "tproxy"
