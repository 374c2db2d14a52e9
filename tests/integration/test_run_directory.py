# SPDX-License-Identifier: Apache-2.0
"""/run and /var/run, in which servers put sockets and process ids, are private and writable."""

from harness import caller  # noqa: F401


def test_servers_write_to_run(caller):
    result = caller.run(
        "--",
        "sh",
        "-c",
        "mkdir /run/server && echo 1 >/var/run/server/pid && cat /run/server/pid && ls /run",
    )
    assert (result.outcome, result.stdout) == ("exit", "1\nserver\n"), result.told


def test_grants_below_run_are_mounted(caller):
    """A socket of the host's in /run, say: then /run is a directory of the template, which nothing else is in."""
    result = caller.run("--readable", "/run", "--", "ls", "-ld", "/run")
    assert result.stdout.startswith("d"), result.told
