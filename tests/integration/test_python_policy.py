# SPDX-License-Identifier: Apache-2.0
"""Policy: its values, its text, what refuses it. No engine is needed but in the last tests."""

import copy
import datetime
import json
import pathlib
import pickle

import pytest

import rollbox
from rollbox import InvalidArgument, IOFailed, Policy, PolicyInvalid, RollboxError, Sandbox


def test_text_has_only_the_set_keys():
    policy = Policy(
        fs_readable=["/usr", pathlib.Path("/lib")],
        net_allow_hosts=[],
        max_memory="512M",
        max_processes=10,
        max_cpu=1.5,
        env={"A": "1"},
        random_seed=2**63 - 1,
        timeout=2.5,
        clean_env=True,
    )
    assert json.loads(policy.to_json()) == {
        "fs_readable": ["/usr", "/lib"],
        "net_allow_hosts": [],
        "max_memory": "512M",
        "max_processes": 10,
        "max_cpu": 1.5,
        "env": {"A": "1"},
        "random_seed": 2**63 - 1,
        "timeout": 2.5,
        "clean_env": True,
    }
    assert Policy().to_json() == "{}"
    assert policy.to_dict() == json.loads(policy.to_json())


def test_attributes():
    policy = Policy(fs_readable=["/usr"], env={"A": "1"}, max_processes=3)
    assert policy.fs_readable == ("/usr",)
    assert policy.max_processes == 3
    assert policy.max_disk is None
    policy.env["B"] = "2"           # a copy
    assert policy.env == {"A": "1"}
    with pytest.raises(AttributeError):
        policy.fs_readible


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_every_seed(seed):
    policy = Policy(random_seed=seed)
    policy.check()
    assert Policy.from_json(policy.to_json()) == policy
    assert Policy(random_seed=2**64).problems() and Policy(random_seed=-1).problems()


@pytest.mark.parametrize("given, text", [
    (datetime.datetime(2025, 1, 1), "2025-01-01T00:00:00Z"),
    (datetime.datetime(2025, 1, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2))), "2025-01-01T00:00:00Z"),
    ("2025-01-01T00:00:00", "2025-01-01T00:00:00"),
])
def test_time_start(given, text):
    policy = Policy(time_start=given)
    assert policy.time_start == text
    policy.check()


def test_immutable():
    policy = Policy(max_processes=3)
    with pytest.raises(AttributeError):
        policy.max_processes = 4
    with pytest.raises(AttributeError):
        del policy.max_processes
    assert policy == Policy(max_processes=3)


def test_equality_hash_pickle_copy():
    policy = Policy(fs_readable=["/usr"], max_memory="64M", env={"A": "1"}, time_start=datetime.datetime(2025, 1, 1))
    for other in (pickle.loads(pickle.dumps(policy)), copy.copy(policy), copy.deepcopy(policy), policy.replace()):
        assert other == policy and hash(other) == hash(policy) and other.to_json() == policy.to_json()
    assert policy != Policy(fs_readable=["/usr"]) and policy != 3
    assert len({policy, policy.replace(), Policy()}) == 2


def test_order_of_the_arguments_does_not_matter():
    assert Policy(user="root", cwd="/tmp") == Policy(cwd="/tmp", user="root")


def test_replace():
    policy = Policy(max_memory="64M", max_processes=3)
    assert policy.replace(max_memory=None) == Policy(max_processes=3)
    assert policy.replace(net="loopback") == Policy(max_memory="64M", max_processes=3, net="loopback")
    with pytest.raises(InvalidArgument, match="max_memroy"):
        policy.replace(max_memroy="1G")


def test_positional_and_unknown_arguments_are_refused():
    with pytest.raises(TypeError):
        Policy(["/usr"])
    with pytest.raises(TypeError):
        Policy(fs_readible=["/usr"])


@pytest.mark.parametrize(
    "values",
    [
        {"fs_readable": "/usr"},
        {"fs_readable": [3]},
        {"fs_shared": 3},
        {"fs_denied": [b"/x"]},
        {"env": ["A=1"]},
        {"max_memory": object()},
        {"max_cpu": float("nan")},
        {"max_cpu": float("inf")},
        {"fs_readable": ["/\udcff"]},
        {"cwd": 3},
        {"net_allow_hosts": "example.org"},
    ],
)
def test_values_outside_json_are_refused(values):
    with pytest.raises(InvalidArgument) as caught:
        Policy(**values)
    assert isinstance(caught.value, ValueError) and caught.value.message


def test_check_lists_every_problem():
    policy = Policy(max_memory="-5M", timeout=-1, net="wifi")
    with pytest.raises(PolicyInvalid) as caught:
        policy.check()
    problems = policy.problems()
    assert {problem["key"] for problem in problems} >= {"max_memory", "timeout", "net"}
    for problem in problems:
        assert problem["key"] in caught.value.message and problem["message"]
    assert isinstance(caught.value, (RollboxError, ValueError)) and caught.value.code == "policy_invalid"
    assert Policy(max_memory="5M").check() is None and Policy(max_memory="5M").problems() == []


def test_problem_list_is_not_truncated():
    text = json.dumps({f"unknown_key_number_{i}": 1 for i in range(90)})
    with pytest.raises(PolicyInvalid) as caught:
        Policy.from_json(text)
    assert all(f"unknown_key_number_{i}" in caught.value.message for i in range(90))


def test_from_json():
    assert Policy.from_json('{"max_memory": "64M", "fs_readable": ["/usr"]}') == Policy(
        max_memory="64M", fs_readable=["/usr"]
    )
    assert Policy.from_json(b"{}") == Policy()
    with pytest.raises(PolicyInvalid, match="line 2.*fs_readible"):
        Policy.from_json('{"max_memory": "64M",\n "fs_readible": []}')
    for bad in ("", "[]", "{", '{"max_memory": "64M",}', "\0", b"\xff"):
        with pytest.raises(PolicyInvalid):
            Policy.from_json(bad)


def test_from_file(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text('{"max_processes": 7}')
    assert Policy.from_file(path) == Policy(max_processes=7)
    path.write_text('{"max_processes": "seven"}')
    with pytest.raises(PolicyInvalid) as caught:
        Policy.from_file(str(path))
    assert str(path) in caught.value.message and "max_processes" in caught.value.message
    with pytest.raises(IOFailed, match="none.json"):
        Policy.from_file(tmp_path / "none.json")


def test_sandbox_takes_a_mapping():
    assert Sandbox({"max_processes": 7}).policy == Policy(max_processes=7)
    assert Sandbox().policy == Policy()
    with pytest.raises(InvalidArgument):
        Sandbox({"max_procs": 7})
    with pytest.raises(InvalidArgument):
        Sandbox("{}")


def test_run_refuses_an_invalid_policy():
    with pytest.raises(PolicyInvalid):
        Sandbox(Policy(max_memory="-5M")).run(["true"])


def test_run_names_a_granted_path_that_is_not_there():
    with pytest.raises(rollbox.PathNotFound, match="/nonexistent/place") as caught:
        Sandbox(Policy(fs_readable=["/usr", "/nonexistent/place"])).run(["true"])
    assert isinstance(caught.value, FileNotFoundError)
