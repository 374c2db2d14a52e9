# SPDX-License-Identifier: Apache-2.0
"""Sets of hosts in a policy: what they stand for, and files that replace them."""

import json

import pytest
from rollbox import Policy, PolicyInvalid, Sandbox


def plan_of(cli, *flags, env=None):
    done = cli("policy", "plan", *flags, env=env)
    return done.returncode, done.stdout.decode() + done.stderr.decode()


def test_set_is_filled_in(cli):
    status, _ = plan_of(cli, "--allow", "@pypi", "--allow", "@github", "--allow", "example.org")
    assert status == 0


def test_unknown_set_names_those_that_exist(cli, tmp_path):
    status, text = plan_of(cli, "--allow", "@pipy")
    assert status == 125 and "there is no set @pipy" in text and "@pypi" in text
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"net_allow": ["@nothing"]}))
    done = cli("policy", "check", str(path))
    assert done.returncode == 1 and b"@nothing" in done.stdout + done.stderr


def test_file_replaces_a_set_or_adds_one(cli, tmp_path):
    (tmp_path / "ours.json").write_text(json.dumps({"allow": ["index.example.org:443"]}))
    env = {"ROLLBOX_NET_SETS": str(tmp_path)}
    assert plan_of(cli, "--allow", "@ours", env=env)[0] == 0
    (tmp_path / "ours.json").write_text("{]")
    status, text = plan_of(cli, "--allow", "@ours", env=env)
    assert status == 125 and "ours.json:1: not valid JSON" in text
    (tmp_path / "ours.json").write_text(json.dumps({"allow": ["https://wrong"]}))
    status, text = plan_of(cli, "--allow", "@ours", env=env)
    assert status == 125 and "is a URL, not a host" in text


def test_set_in_python():
    with pytest.raises(PolicyInvalid, match="there is no set @none"):
        Sandbox(Policy(net_allow_hosts=["@none"])).run(["true"])
