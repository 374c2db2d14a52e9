# SPDX-License-Identifier: Apache-2.0
"""RUN --mount: binds, caches that builds share or wait for, empty directories, and an SSH agent."""

import json
import os
import shutil
import socket
import struct
import subprocess
import threading

import pytest
from built_images import Builds
from harness import callers, until


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: images with owners are made")


@pytest.fixture(scope="module")
def builds():
    return Builds()


def files_of(builds, text):
    """All files of the store's layers that contain a text."""
    found = subprocess.run(
        ["grep", "-rl", text, builds.store.path / "layers"], capture_output=True, text=True
    )
    return found.stdout.split()


# ---- bind ----


def test_a_bind_mount_has_files_of_the_context_and_is_in_no_layer(builds):
    builds.made(
        """
        FROM base
        WORKDIR /app
        RUN --mount=type=bind,source=list.txt,target=/tmp/list.txt \\
            --mount=target=/src cat /tmp/list.txt /src/dir/a > out && ls /src > names
        """,
        {"list.txt": "listed-5417\n", "dir/a": "inside\n", ".dockerignore": "Dockerfile\n.dockerignore\n"},
    )
    assert builds.run("cat /app/out /app/names") == "listed-5417\ninside\ndir\nlist.txt\n"
    assert builds.run("ls -d /src /tmp/list.txt 2>/dev/null; true") == ""


def test_changes_below_a_bind_mount_are_dropped(builds):
    builds.made(
        """
        FROM base
        RUN mkdir /src && echo image > /src/of-the-image
        RUN --mount=type=bind,target=/src,rw echo new > /src/new && rm /src/a && echo b >> /src/b
        """,
        {"a": "1", "b": "2"},
    )
    assert builds.run("ls /src; cat /src/of-the-image") == "of-the-image\nimage\n"


def test_a_bind_mount_of_a_stage_makes_the_stage(builds):
    builds.made(
        """
        FROM base AS tools
        RUN mkdir /t && echo tool > /t/tool
        FROM base AS unused
        RUN false
        FROM base
        RUN --mount=from=tools,source=/t,target=/tools cat /tools/tool > /used
        """
    )
    assert builds.run("cat /used; ls -d /tools 2>/dev/null; true") == "tool\n"


def test_a_changed_file_of_a_bind_mount_runs_the_command_again(builds):
    text = "FROM base\nRUN --mount=source=f,target=/f cat /f > /out\n"
    context = builds.context(text, {"f": "1"})
    builds.build(context)
    assert builds.build(context)["cached"] == 1
    (context / "f").write_text("2")
    assert builds.build(context)["cached"] == 0
    assert builds.run("cat /out") == "2"


def test_a_bind_mount_does_not_follow_links_out_of_the_context(builds):
    context = builds.context("FROM base\nRUN --mount=source=out,target=/f true\n")
    (context / "out").symlink_to("/etc/passwd")
    assert "No such file" in builds.build(context, status=125)["error"]["message"]


# ---- tmpfs ----


def test_a_tmpfs_mount_is_empty_and_in_no_layer(builds):
    builds.made(
        """
        FROM base
        RUN mkdir /t && echo image > /t/f
        RUN --mount=type=tmpfs,target=/t,size=8M --mount=type=tmpfs,target=/new/t \\
            ls /t > /names && echo x > /t/g && echo y > /new/t/h
        """
    )
    assert builds.run("cat /names; ls /t; ls -d /new 2>/dev/null; true") == "f\n"


# ---- caches ----


def started(builds, dockerfile, *flags):
    """A build as a process of its own."""
    caller = builds.store.caller
    return subprocess.Popen(
        [str(builds.program()), "image", "build", "--progress=plain", *flags, str(builds.context(dockerfile))],
        env=caller.environment(ROLLBOX_STORE=str(builds.store.path)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def line_with(stream, words):
    for line in stream:
        if words in line:
            return line
    raise AssertionError(f"the build ended without {words}")


HOLDER = """
FROM base
RUN --mount=type=cache,id={id},target=/c,sharing={sharing} echo has-''it {salt}; \\
    while [ ! -e /c/go ]; do sleep 0.05; done; echo first >> /c/log
"""
OTHER = """
FROM base
RUN --mount=type=cache,id={id},target=/c,sharing={sharing} echo second {salt} >> /c/log; cat /c/log
"""


def cache_of(builds, *names):
    """The directories of caches with these files."""
    return [
        directory / "1"
        for directory in (builds.store.path / "volumes").glob("build-cache-*")
        if all((directory / "1" / name).exists() for name in names)
    ]


def test_a_locked_cache_waits_for_the_other_build(builds):
    first = started(builds, HOLDER.format(id="locked", sharing="locked", salt=1))
    line_with(first.stderr, "has-it 1")
    before = set((builds.store.path / "volumes").glob("build-cache-*"))
    second = started(builds, OTHER.format(id="locked", sharing="locked", salt=2))
    line_with(second.stderr, "waiting for the cache /c")
    assert second.poll() is None
    assert len(before) >= 1
    for volume in before:
        (volume / "1" / "go").write_text("")
    assert first.wait(60) == 0, first.stderr.read()
    out = second.stderr.read()
    assert second.wait(60) == 0, out
    assert "first" in out and out.index("first") < out.index("second 2")


def test_a_waiting_build_continues_when_the_other_is_killed(builds):
    first = started(builds, HOLDER.format(id="killed", sharing="locked", salt=3))
    line_with(first.stderr, "has-it 3")
    second = started(builds, OTHER.format(id="killed", sharing="locked", salt=4))
    line_with(second.stderr, "waiting for the cache /c")
    first.kill()
    first.wait()
    out = second.stderr.read()
    assert second.wait(60) == 0, out
    assert "second 4" in out


def test_a_private_cache_is_another_one_while_a_build_has_it(builds):
    first = started(builds, HOLDER.format(id="private", sharing="private", salt=5))
    line_with(first.stderr, "has-it 5")
    second = started(builds, OTHER.format(id="private", sharing="private", salt=6))
    out = second.stderr.read()
    assert second.wait(60) == 0, out
    (log,) = [c for c in cache_of(builds, "log") if "second 6" in (c / "log").read_text()]
    assert (log / "log").read_text() == "second 6\n"
    for volume in (builds.store.path / "volumes").glob("build-cache-*"):
        (volume / "1" / "go").write_text("")
    assert first.wait(60) == 0


def test_builds_share_a_cache_at_once(builds):
    first = started(builds, HOLDER.format(id="shared", sharing="shared", salt=7))
    line_with(first.stderr, "has-it 7")
    second = started(builds, OTHER.format(id="shared", sharing="shared", salt=8))
    out = second.stderr.read()
    assert second.wait(60) == 0, out
    for volume in (builds.store.path / "volumes").glob("build-cache-*"):
        (volume / "1" / "go").write_text("")
    assert first.wait(60) == 0


# ---- ssh ----


class Agent:
    """An SSH agent that answers each request with its own bytes, and says who asked."""

    def __init__(self, directory):
        self.path = str(directory / "agent.sock")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        os.chmod(self.path, 0o600)
        self.listener.listen()
        self.uids = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(peer,), daemon=True).start()

    def answer(self, peer):
        with peer:
            credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            self.uids.append(struct.unpack("3i", credentials)[1])
            while data := peer.recv(65536):
                peer.sendall(data)


def test_an_agent_is_reached_in_its_step_alone(builds, tmp_path):
    if not shutil.which("ssh-agent"):
        pytest.skip("needs ssh-agent")
    agent = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(tmp_path / "a")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: (tmp_path / "a").exists())
        result = builds.made(
            """
            FROM base
            RUN --mount=type=ssh [ -S "$SSH_AUTH_SOCK" ] && echo "$SSH_AUTH_SOCK" > /was
            RUN [ -z "$SSH_AUTH_SOCK" ] && [ ! -e "$(cat /was)" ]
            """,
            None,
            f"--ssh=default={tmp_path / 'a'}",
        )
        assert result["image"]
        place = builds.run("cat /was").strip()
        assert not os.path.exists(os.path.dirname(os.path.dirname(place)))
        assert builds.run("ls -d $(dirname $(dirname $(cat /was))) 2>/dev/null; true") == ""
    finally:
        agent.kill()
        agent.wait()


CLIENT = """
import os, socket, threading
peer = socket.socket(socket.AF_UNIX)
peer.connect(os.environ["SSH_AUTH_SOCK"])
data = b"x" * 300000
threading.Thread(target=peer.sendall, args=(data,)).start()
n = 0
while n < len(data):
    n += len(peer.recv(65536))
print("back", n)
"""


def test_bytes_of_a_command_reach_the_agent_and_come_back(builds, tmp_path):
    """The agent sees this user, as ssh-agent demands, and not one of the sandbox."""
    agent = Agent(tmp_path)
    relay = relay_of(builds, agent, CLIENT)
    assert "back 300000" in relay
    assert set(agent.uids) == {os.geteuid()}


def relay_of(builds, agent, script):
    """Runs a client of the host while a step holds the agent's socket open."""
    build = started(
        builds,
        'FROM base\nRUN --mount=type=ssh --mount=type=cache,id=hold,target=/h \\\n'
        'echo "a""t=$SSH_AUTH_SOCK"; while [ ! -e /h/go ]; do sleep 0.05; done\n',
        f"--ssh=default={agent.path}",
    )
    line = line_with(build.stderr, "at=/")
    client = subprocess.run(
        ["python3", "-c", script],
        env={**os.environ, "SSH_AUTH_SOCK": line.split("at=")[1].strip()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    for volume in (builds.store.path / "volumes").glob("build-cache-*"):
        (volume / "1" / "go").write_text("")
    assert build.wait(60) == 0, build.stderr.read()
    return client.stdout + client.stderr


def test_an_agent_is_no_part_of_the_cache_and_needed_only_if_required(builds, tmp_path):
    agent = Agent(tmp_path)
    context = builds.context("FROM base\nRUN --mount=type=ssh echo 1 > /f\n")
    builds.build(context, f"--ssh=default={agent.path}")
    assert builds.build(context)["cached"] == 1
    message = builds.refused("FROM base\nRUN --mount=type=ssh,required true\n")["message"]
    assert message.startswith("Dockerfile:2: ") and "--ssh default" in message
    builds.made("FROM base\nRUN --mount=type=ssh true\n")


@pytest.mark.parametrize(
    "mount, words",
    [
        ("type=bind", "needs target="),
        ("type=bind,target=/", "target /"),
        ("type=bind,target=/x,source=none", "No such file"),
        ("type=bind,target=/x,from=base,source=/none", "No such file"),
        ("type=tmpfs", "needs target="),
        ("type=tmpfs,target=/x,size=lots", "not a size"),
        ("type=cache", "needs target="),
        ("type=cache,target=/x,sharing=some", "sharing is"),
        ("type=cache,target=/x,what=1", "no option what"),
        ("type=ssh,target=/x,required=false,what", "no option what"),
        ("type=npipe,target=/x", "not supported"),
    ],
)
def test_mounts_that_cannot_be_fail_with_their_line(builds, mount, words):
    message = builds.refused(f"FROM base\nRUN --mount={mount} true\n")["message"]
    assert message.startswith("Dockerfile:2: ") and words in message, message


def test_mounts_of_an_ordinary_users_builds_hold(tmp_path):
    """Each kind, in one command."""
    user = next((caller for caller in callers() if caller.uid), None)
    if not user:
        pytest.skip("this run has root's sandboxes alone")
    builds = Builds(user)
    agent = Agent(builds.store.home)
    os.chown(agent.path, user.uid, user.uid)
    context = builds.context(
        """
        FROM base
        RUN --mount=source=f,target=/b/f --mount=type=tmpfs,target=/t --mount=type=ssh --mount=type=cache,target=/c \\
            touch /c/x && cat /b/f > /out && touch /t/x && ls -ln "$SSH_AUTH_SOCK" | grep -o "^s" >> /out
        """,
        {"f": "bound\n"},
    )
    done = builds.store.call(
        "image", "build", "--json", "--progress=quiet", "-t", "made", f"--ssh=default={agent.path}", context
    )
    if done.returncode and json.loads(done.stderr)["error"]["code"] == "feature_missing":
        pytest.skip("this user has no ids for sandboxes of many users")
    assert done.returncode == 0, done
    assert builds.run("cat /out; ls -d /b /t 2>/dev/null; true") == "bound\ns\n"
