# SPDX-License-Identifier: Apache-2.0
"""The Python package against an HTTP server: the same calls as on an engine of this machine."""

import pytest
import rollbox
from harness import caller, until  # noqa: F401
from rollbox import Engine, Sandbox
from serving import Server, server  # noqa: F401


@pytest.fixture
def remote(server):  # noqa: F811
    """An Engine at the server."""
    with Engine(f"http://127.0.0.1:{server.port}", token=server.token) as engine:
        yield engine


def test_run_is_that_of_a_local_engine(remote):
    box = Sandbox({"max_memory": "128M"}, engine=remote)
    done = box.run(
        ["sh", "-c", "cat; printf '\\377' >&2; exit 3"], stdin=b"a\0b", env={"A": "1"}, cwd="/tmp"
    )
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"a\0b", b"\xff")
    assert box.run_code("import sys; print(sys.version_info[0])", text=True).stdout == "3\n"
    assert box.run(["sleep", "100"], timeout=0.05).outcome == "timeout"
    assert box.run(["cat", "f"], files={"f": b"\0\xff"}).stdout == b"\0\xff"
    with pytest.raises(rollbox.CommandNotFound):
        box.run(["no-such-program"])
    with pytest.raises(rollbox.PolicyInvalid):
        Sandbox({"max_memory": "1"}, engine=remote).run(["true"])
    with pytest.raises(rollbox.PathDenied):
        Sandbox({"fs_readable": ["/etc"]}, engine=remote).run(["true"])


def test_session_has_files_snapshots_forks_and_reset(remote):
    with Sandbox(engine=remote, name="box") as box:
        assert box.name == "box"
        box.write_file("/tmp/dir/a b", b"1\0")
        assert box.read_file("/tmp/dir/a b") == b"1\0"
        assert [info.name for info in box.list("/tmp/dir")] == ["a b"]
        assert (
            box.stat("/tmp/dir/a b").size == 2
            and box.exists("/tmp/dir")
            and not box.exists("/tmp/no")
        )
        base = box.snapshot("base")
        assert box.exec("rm -r /tmp/dir && echo done", text=True).stdout == "done\n"
        assert "D" in {one.change for one in box.diff(base)}
        kids = box.fork(2, snapshot=base)
        for number, kid in enumerate(kids):
            with kid:
                assert kid.read_file("/tmp/dir/a b") == b"1\0"
                assert kid.exec(["sh", "-c", "echo $CLONE_ID"], text=True).stdout == f"{number}\n"
        box.reset(base)
        assert box.read_file("/tmp/dir/a b") == b"1\0"
        assert {node.name for node in box.tree()} >= {"base"}
        assert box.inspect()["name"] == "box" and box.show(base)["name"] == "base"
        box.mkdir("/tmp/new/deep")
        box.remove("/tmp/new", recursive=True)
        assert not box.exists("/tmp/new")
        with pytest.raises(rollbox.NotFound):
            box.read_file("/tmp/no")
        with pytest.raises(rollbox.InvalidArgument):
            box.read_file("/tmp/dir/a b", max_bytes=1)
        with pytest.raises(rollbox.Conflict):
            Sandbox(engine=remote, name="box").snapshot()
        assert [row["name"] for row in remote.sandboxes()] == ["box"]
        with Sandbox.open("box", engine=remote) as same:
            assert same.read_file("/tmp/dir/a b") == b"1\0"
    assert remote.sandboxes() == []


def test_live_processes_are_forked_over_http(remote):
    with Sandbox(engine=remote) as box:
        box.exec(["sh", "-c", "(while :; do sleep 0.01; done) > /dev/null 2>&1 &"])
        (kid,) = box.fork()
        with kid:
            assert any("sleep" in p["command"] or "sh" in p["command"] for p in kid.processes())


def test_command_id_gives_the_first_result(remote):
    with Sandbox(engine=remote) as box:
        first = box.exec(["cat", "/proc/sys/kernel/random/uuid"], id="one")
        assert box.exec(["cat", "/proc/sys/kernel/random/uuid"], id="one").stdout == first.stdout


def test_collected_sandbox_ends_on_the_server(remote):
    box = Sandbox(engine=remote)
    box.write_file("/tmp/a", "1")
    del box
    until(lambda: remote.sandboxes() == [])


def test_wrong_token_and_absent_server_are_errors(server):  # noqa: F811
    with pytest.raises(rollbox.PathDenied, match="token"):
        Engine(f"http://127.0.0.1:{server.port}", token="rbx_a_b")
    with pytest.raises(rollbox.EngineLost):
        Engine("http://127.0.0.1:1", token=server.token)
    with pytest.raises(rollbox.InvalidArgument):
        Engine("http://127.0.0.1/path", token=server.token)
    with pytest.raises(rollbox.InvalidArgument):
        Engine("/tmp/socket", token=server.token)


def test_call_that_a_server_lacks_is_refused_by_name(remote):
    with Sandbox(engine=remote) as box:
        with pytest.raises(rollbox.FeatureMissing, match="name the snapshot"):
            box.show()


def test_lost_server_is_engine_lost(caller):  # noqa: F811
    with Server(caller) as one:
        engine = Engine(f"http://127.0.0.1:{one.port}", token=one.token)
        box = Sandbox(engine=engine)
        box.write_file("/tmp/a", "1")
        one.process.kill()
        one.process.wait()
        for call in (
            lambda: box.read_file("/tmp/a"),
            lambda: box.exec(["true"]),
            lambda: Sandbox(engine=engine).run(["true"]),
        ):
            with pytest.raises(rollbox.EngineLost):
                call()
        box.close()
