# SPDX-License-Identifier: Apache-2.0
"""A program that fails because it has no network: one line says that the sandbox has none."""

import pytest

from rollbox import Policy, RunFailed, Sandbox

HINT = "the sandbox has no network (net none)"
SERVER = "import socket; socket.socket().bind(('0.0.0.0', 8000))"
WANTING = [
    SERVER,
    "import socket; socket.create_connection(('127.0.0.1', 80))",
    "import socket; socket.getaddrinfo('name.invalid', 80)",
]
OTHERS = [
    "open('/etc/shadow', 'w')",
    "raise SystemExit(3)",
    "import sys; print('Network is unreachable', file=sys.stderr)",
]


@pytest.mark.parametrize("code", WANTING)
def test_cli_says_that_there_is_no_network(cli, code, tmp_path):
    with open(tmp_path / "stderr", "wb") as stderr:
        assert cli("run", "--", "python3", "-c", code, stderr=stderr).returncode == 1
    lines = (tmp_path / "stderr").read_text().splitlines()
    assert lines[-1].startswith(f"rollbox run: {HINT}") and HINT not in "".join(lines[:-1])


@pytest.mark.parametrize("code", OTHERS)
def test_cli_says_nothing_of_other_failures(cli, code, tmp_path):
    with open(tmp_path / "stderr", "wb") as stderr:
        cli("run", "--", "python3", "-c", code, stderr=stderr)
    assert HINT not in (tmp_path / "stderr").read_text()


def test_cli_says_nothing_where_there_is_a_network(cli, tmp_path):
    code = "import socket; socket.create_connection(('192.0.2.1', 80))"
    with open(tmp_path / "stderr", "wb") as stderr:
        assert cli("run", "--net", "loopback", "--", "python3", "-c", code, stderr=stderr).returncode == 1
    text = (tmp_path / "stderr").read_text()
    assert "unreachable" in text and HINT not in text


def test_cli_says_what_the_network_rules_refused(cli, tmp_path):
    code = "import socket; s = socket.create_connection(('192.0.2.1', 81)); s.recv(1)"
    with open(tmp_path / "stderr", "wb") as stderr:
        assert cli("run", "--allow", "pypi.org", "--", "python3", "-c", code, stderr=stderr).returncode == 1
    assert (
        (tmp_path / "stderr")
        .read_text()
        .endswith("\nrollbox run: the network rules refused 192.0.2.1:81 (literal)\n")
    )


@pytest.mark.parametrize("code", WANTING)
def test_python_says_that_there_is_no_network(code):
    result = Sandbox(Policy()).run(["python3", "-c", code])
    assert HINT in repr(result)
    with pytest.raises(RunFailed, match="the sandbox has no network"):
        result.check()


def test_python_says_what_the_network_rules_refused():
    code = "import socket; s = socket.create_connection(('192.0.2.1', 81)); s.recv(1)"
    result = Sandbox(Policy(net_allow=["pypi.org"])).run(["python3", "-c", code])
    assert "the network rules refused 192.0.2.1:81 (literal)" in repr(result)
    with pytest.raises(RunFailed, match="192.0.2.1:81"):
        result.check()


@pytest.mark.parametrize("code", OTHERS)
def test_python_says_nothing_of_other_failures(code):
    assert HINT not in repr(Sandbox(Policy()).run(["python3", "-c", code]))
