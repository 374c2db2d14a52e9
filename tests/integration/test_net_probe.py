# SPDX-License-Identifier: Apache-2.0
"""rollbox net test and Policy.net_test: which rule of a policy decides about a URL."""

import json

import pytest
from rollbox import InvalidArgument, Policy

RULES = Policy(
    net_allow_hosts=["@pypi", "db.example.org:5432"],
    net_allow=[{"host": "api.example.org", "requests": [{"methods": ["GET"], "paths": ["/repos/*"]}]}],
)


@pytest.mark.parametrize(
    ("url", "method", "why"),
    [
        ("https://pypi.org/simple/", "GET", None),
        ("https://evil.example.org/", "GET", "name"),
        ("tcp://db.example.org:5432", "GET", None),
        ("tcp://db.example.org:5433", "GET", "port"),
        ("https://1.1.1.1/", "GET", "literal"),
        ("https://api.example.org/repos/x", "GET", None),
        ("https://api.example.org/repos/x", "POST", "method_path"),
        ("https://api.example.org/users", "GET", "method_path"),
    ],
)
def test_the_rule_and_the_reason(cli, url, method, why):
    test = RULES.net_test(url, method)
    assert (test["allowed"], test["why"]) == (why is None, why)
    done = cli("net", "test", "--json", "--policy", "-", "--method", method, url, input=RULES.to_json().encode())
    assert json.loads(done.stdout) == test
    assert done.returncode == (0 if why is None else 1)


def test_a_rule_of_a_set_names_it(cli):
    assert RULES.net_test("https://pypi.org/")["set"] == "@pypi"
    done = cli("net", "test", "--allow", "@pypi", "https://pypi.org/")
    assert (done.returncode, done.stdout) == (0, b"allowed by rule 0, pypi.org\n")


def test_text_without_scheme_is_refused(cli):
    with pytest.raises(InvalidArgument, match="not a URL"):
        RULES.net_test("pypi.org")
    assert cli("net", "test", "pypi.org").returncode == 125
