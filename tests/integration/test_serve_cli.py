# SPDX-License-Identifier: Apache-2.0
"""The rollbox command with a server instead of an engine of this machine."""

import json
import os
import signal
import subprocess

import pytest
from harness import BUILD, DEADLINE, binaries, caller, skip, until  # noqa: F401
from serving import server  # noqa: F401
from serving_tls import certificates, serve  # noqa: F401


class Client:
    """The command of a caller, at a server."""

    def __init__(self, server, url=None):  # noqa: F811
        if not (BUILD / "rollbox-http").exists():
            skip("needs libcurl: rollbox-http is not built without libcurl4-openssl-dev")
        self.who = server.who
        self.url = url or f"http://127.0.0.1:{server.port}"
        self.token = server.directory / "my-token"
        self.token.write_text(server.token + "\n")
        self.token.chmod(0o644)

    def argv(self, *arguments):
        """The command and its first options."""
        first = ("--engine", self.url, "--token-file", self.token)
        return [binaries() / "rollbox", *first, *arguments]

    def __call__(self, *arguments, status=0, **options):
        """Its standard output."""
        done = self.who.call(*self.argv(*arguments), **options)
        assert done.returncode == status, (arguments, done)
        self.err = done.stderr.decode()
        return done.stdout.decode()


@pytest.fixture
def client(server):  # noqa: F811
    """A Client of the server."""
    return Client(server)


def test_run_has_input_output_and_status(client):
    script = "cat; echo bad >&2; exit 3"
    assert client("run", "--", "sh", "-c", script, status=3, input=b"a\0b") == "a\0b"
    assert client.err == "bad\n"
    row = json.loads(client("run", "--json", "--memory", "64M", "--", "echo", "hi"))
    assert (row["outcome"], row["stdout"]) == ("exit", "hi\n")
    client("run", "--timeout", "0.1", "--", "sleep", "100", status=124)
    client("run", "--", "no-such-program", status=127)
    client("run", "--readable", "/etc", "--", "true", status=125)
    assert "scope host" in client.err


def test_sandbox_is_used_by_the_same_commands_as_a_local_one(client, tmp_path):
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    assert client("create", "--name", "box", "--ttl", "300") == "box\n"
    assert client("exec", "box", "--", "sh", "-c", "echo out; echo err >&2; exit 5", status=5) == (
        "out\n"
    )
    assert client.err == "err\n"
    assert (
        client("exec", "-i", "--env", "A=1", "box", "sh", "-c", "cat; echo $A", input=b"x")
        == "x1\n"
    )
    (tmp_path / "file").write_bytes(b"\0data\xff")
    (tmp_path / "file").chmod(0o755)
    client("cp", tmp_path / "file", "box:/tmp/a b")
    assert client("exec", "box", "stat", "-c", "%a %s", "/tmp/a b") == "755 6\n"
    client("cp", "box:/tmp/a b", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"\0data\xff"
    assert client("cp", "-", "box:/tmp/c", input=b"piped") == ""
    assert client("cp", "box:/tmp/c", "-") == "piped"
    client("cp", "box:/tmp/none", tmp_path / "none", status=125)
    assert not list(tmp_path.glob("none*"))
    snapshot = client("snapshot", "--as", "base", "box").strip()
    client("exec", "box", "sh", "-c", "echo 2 > /tmp/c")
    assert "/tmp/c" in client("diff", "box", "base")
    assert "base" in client("tree", "box")
    forks = client("fork", "--from", "base", "--count", "2", "box").split()
    assert len(forks) == 2
    assert client("exec", forks[0], "cat", "/tmp/c") == "piped"
    client("reset", "box", snapshot)
    assert client("exec", "box", "cat", "/tmp/c") == "piped"
    assert json.loads(client("inspect", "box"))["name"] == "box"
    assert client("ps", "-q").split() == ["box", *forks] or set(client("ps", "-q").split()) == {
        "box",
        *forks,
    }
    assert "COMMAND" in client("ps", "box")
    client("pause", "box")
    client("resume", "box")
    client("rm", "box", *forks)
    assert client("ps", "-q") == ""
    client("inspect", "box", status=125)
    assert "no sandbox" in client.err


def test_output_comes_while_the_command_runs_and_a_signal_ends_it(client):
    client("create", "--name", "box")
    process = client.who.popen(
        client.argv("exec", "--id", "one", "box", "sh", "-c", "echo begun; sleep 1000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == -signal.SIGINT
        until(lambda: '"state": "running"' not in client("inspect", "box"))
    finally:
        process.kill()
        process.communicate()


def test_detached_command_is_named_and_killed(client):
    client("create", "--name", "box")
    assert client("exec", "-d", "--id", "one", "box", "sleep", "1000") == "one\n"
    client("kill", "--signal", "TERM", "box", "one")
    until(lambda: '"state": "running"' not in client("inspect", "box"))
    client("rm", "box")


def test_address_and_token_come_from_the_environment(client):
    environment = {
        **client.who.environment(),
        "ROLLBOX_ENGINE": client.url,
        "ROLLBOX_TOKEN_FILE": str(client.token),
    }

    def rollbox(*arguments):
        return client.who.rollbox(*arguments, env=environment)

    assert rollbox("run", "echo", "hi").stdout == b"hi\n"
    refused = rollbox("stats")
    assert refused.returncode == 125 and b"not offered by a server" in refused.stderr
    assert rollbox("net", "test", "--allow", "a.example", "https://a.example/").returncode == 0
    wrong = rollbox("--token-file", "/dev/null", "run", "true")
    assert wrong.returncode == 125 and b"/dev/null" in wrong.stderr


def test_image_of_a_registry_is_not_pulled_here_for_a_server(client):
    client("run", "--image", "docker://localhost:1/none", "true", status=125)
    assert "a server starts from images of its own store" in client.err


def test_priority_and_queue_timeout_reach_the_server(client):
    client("run", "--priority", "high", "--queue-timeout", "0.5", "true")
    client("create", "--priority", "low", "--queue-timeout", "5", "--name", "turn")
    client("rm", "turn")
    client("run", "--priority", "highest", "true", status=125)
    assert "high|normal|low" in client.err
    client("run", "--queue-timeout", "1000000", "true", status=125)
    assert "queue_timeout_ms" in client.err
    client.url = "/nonexistent.sock"
    client("run", "--priority", "high", "true", status=125)
    assert "need a server" in client.err


def test_policy_is_planned_by_the_server(client):
    lines = client("policy", "plan", "--memory", "64M").splitlines()
    assert json.loads(client("policy", "plan", "--json", "--memory", "64M"))["plan"] == lines
    assert any("MKDIR" in line for line in lines)
    client("policy", "plan", "--readable", "/etc", status=125)
    assert "scope host" in client.err


def test_several_sandboxes_are_forked_at_one_moment(client):
    for name in ("one", "two"):
        client("create", "--name", name)
        client("exec", name, "--", "sh", "-c", f"echo {name} > /tmp/name")
    lines = [line.split() for line in client("fork", "--count", "2", "one", "two").splitlines()]
    assert [len(line) for line in lines] == [2, 2]
    for line in lines:
        assert [client("exec", copy, "--", "cat", "/tmp/name") for copy in line] == ["one\n", "two\n"]
    client("fork", "one", "no-such-one", status=125)
    client("rm", "one", "two", *lines[0], *lines[1])


def test_templates_of_the_server(client):
    client("template", "create", "--python", "import json; x = 40", "base")
    assert client("template", "ls", "-q") == "base\n"
    assert json.loads(client("template", "ls", "--json"))["templates"][0]["name"] == "base"
    client("template", "create", "--python", "raise SystemExit(7)", "bad", status=125)
    client("template", "rm", "base")
    assert client("template", "ls", "-q") == ""
    client("template", "rm", "base", status=125)
    assert "base" in client.err


def test_images_and_volumes_of_the_server_need_the_scope(client):
    assert json.loads(client("image", "ls", "--json"))["images"] is not None
    client("image", "show", "no-such-image", status=125)
    for words in (("image", "pull", "busybox"), ("image", "rm", "x"), ("volume", "create", "x")):
        client(*words, status=125)
        assert "scope host" in client.err, client.err
    client("image", "pull", "--creds", "x", "busybox", status=125)
    assert "--creds is not offered" in client.err


def test_volumes_of_the_server(client, server):  # noqa: F811
    client.token.write_text(server.new_token("host", "run", "host") + "\n")
    name = f"data-{os.getpid()}"
    client("volume", "create", "--size", "1M", name)
    assert name in [line.split()[0] for line in client("volume", "ls").splitlines()]
    assert json.loads(client("volume", "inspect", "--json", name))["max_bytes"] == 1 << 20
    mounted = ("run", "--volume", f"{name}:/data", "--", "sh", "-c")
    client(*mounted, "echo kept > /data/file")
    assert client(*mounted, "cat /data/file") == "kept\n"
    client("volume", "rm", name)
    client("volume", "inspect", name, status=125)


def test_failures_name_the_server(client):
    client.url = "http://127.0.0.1:1"
    client("run", "true", status=125)
    assert "127.0.0.1:1" in client.err
    client.url = "ftp://127.0.0.1"
    client("run", "true", status=125)
    assert "http://" in client.err


def test_unix_socket_needs_no_token_of_its_own_user(server):  # noqa: F811
    client = Client(server, f"unix:{server.path}")
    done = client.who.rollbox("--engine", client.url, "run", "echo", "hi")
    assert done.stdout == b"hi\n", done.stderr


def test_certificate_of_the_server_is_checked(certificates):  # noqa: F811
    with serve(certificates) as server:  # noqa: F811
        client = Client(server, f"https://localhost:{server.port}")
        client("run", "true", status=125)
        assert "certificate" in client.err
        assert client("--ca", certificates.ca, "run", "echo", "hi") == "hi\n"
