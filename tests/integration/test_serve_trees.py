# SPDX-License-Identifier: Apache-2.0
"""Files of any size and trees as plain requests: streams, which need constant memory of the server."""

import io
import tarfile

import pytest
from harness import caller, repeat_count, until  # noqa: F401
from rollbox import Engine, Sandbox
from serving import server  # noqa: F401
from trees import (  # noqa: F401
    DIRECTORY,
    FILE,
    HARD,
    LINK,
    PIECE,
    box,
    execute,
    get,
    memory,
    packed,
    put,
)

def test_large_file_goes_through_in_constant_memory(server, box):  # noqa: F811
    n = repeat_count(96, 96, soak=1024)
    server.call("GET", "/healthz")
    before = memory(server)
    assert put(server, f"{box}/files/tmp/large?mode=600", [PIECE] * n, n << 20) == (204, b"")
    assert execute(server, box, "stat -c '%s %a' /tmp/large") == f"{n << 20} 600\n"
    answer = get(server, f"{box}/files/tmp/large")
    assert answer.status == 200
    for _ in range(n):
        assert answer.read(len(PIECE)) == PIECE
    assert answer.read() == b""
    archive = tarfile.open(fileobj=get(server, f"{box}/tree/tmp"), mode="r|")
    assert [(entry.name, entry.size) for entry in archive] == [("large", n << 20)]
    assert memory(server) - before < 48


def test_missing_file_is_404_and_a_directory_400(server, box):  # noqa: F811
    assert get(server, f"{box}/files/no/such").status == 404
    status, body = put(server, f"{box}/files/tmp", [PIECE] * 9, 9 << 20)
    assert status == 400 and b"/tmp" in body
    assert get(server, f"{box}/tree/no/such").status == 404
    assert server.call("GET", "/healthz")[0] == 200


def test_client_that_leaves_within_a_file_leaves_none(server, box):  # noqa: F811
    connection = server.connect()
    connection.putrequest("PUT", f"{box}/files/tmp/part")
    connection.putheader("Authorization", f"Bearer {server.token}")
    connection.putheader("Content-Length", str(64 << 20))
    connection.endheaders()
    connection.send(PIECE * 8)
    connection.close()
    until(lambda: execute(server, box, "ls -A /tmp") == "")


def test_recorded_sandbox_refuses_streams_that_its_trajectory_would_miss(server, tmp_path):  # noqa: F811
    with Engine(f"http://127.0.0.1:{server.port}", token=server.token) as engine:
        with Sandbox(engine=engine, record=tmp_path / "a.jsonl") as made:
            name = server.call("GET", "/v1/sandboxes")[1]["sandboxes"][0]["name"]
            box = f"/v1/sandboxes/{name}"  # noqa: F811
            for path, data in (
                ("files/tmp/large", PIECE * 9),
                ("tree/tmp", packed(("a", FILE, b"A", 0o644))),
            ):
                status, body = put(server, f"{box}/{path}", [data], len(data))
                assert status == 501 and b"trajectory" in body, (status, body)
            assert put(server, f"{box}/files/tmp/small", [PIECE], len(PIECE)) == (204, b"")
            assert made.exec("ls -A /tmp").stdout == b"small\n"


LONG = "long/" + "ä" * 70 + "/" + "x" * 200


def test_tree_goes_up_and_down(server, box):  # noqa: F811
    entries = [
        ("./", DIRECTORY, "", 0o755),
        ("a/", DIRECTORY, "", 0o750),
        ("a/b/c", FILE, b"C", 0o644),
        ("d", FILE, b"", 0o755),
        ("a/e", FILE, PIECE + b"end", 0o600),
        ("link", LINK, "/nowhere/" + "y" * 150, 0o777),
        (LONG, FILE, b"long", 0o644),
    ]
    data = packed(*entries)
    assert put(server, f"{box}/tree/tmp/up/new", [data], len(data)) == (204, b"")
    assert put(server, f"{box}/tree/tmp/up/new", [data[:700], data[700:]]) == (204, b"")
    seen = execute(
        server, box, "cd /tmp/up/new; stat -c '%a %s %Y' a a/b/c d a/e; readlink link; cat a/b/c"
    )
    lines = seen.splitlines()
    assert lines[0].split()[0] == "750" and lines[1] == "644 1 1000000000"
    assert lines[2] == "755 0 1000000000" and lines[3] == f"600 {len(PIECE) + 3} 1000000000"
    assert lines[4] == "/nowhere/" + "y" * 150 and lines[5] == "C"
    answer = get(server, f"{box}/tree/tmp/up/new")
    assert answer.headers["Content-Type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(answer.read())) as archive:
        found = {entry.name: entry for entry in archive}
        assert archive.extractfile("a/e").read() == PIECE + b"end"
        assert archive.extractfile(LONG).read() == b"long"
    assert set(found) == {
        "a",
        "a/b",
        "a/b/c",
        "a/e",
        "d",
        "link",
        "long",
        LONG.rpartition("/")[0],
        LONG,
    }
    assert (found["a"].mode, found["a/e"].mtime, found["link"].linkname) == (
        0o750,
        1_000_000_000.5,
        "/nowhere/" + "y" * 150,
    )
    # One file is an archive of one entry.
    with tarfile.open(
        fileobj=io.BytesIO(get(server, f"{box}/tree/tmp/up/new/a/b/c").read())
    ) as archive:
        assert archive.extractfile(archive.next()).read() == b"C"


@pytest.mark.parametrize(
    "data, word",
    [
        (packed(("a/../../x", FILE, b"", 0o644)), "outside"),
        (packed(("..", DIRECTORY, "", 0o755)), "outside"),
        (packed(("a", FILE, b"", 0o644), ("b", HARD, "a", 0o644)), "hard links"),
        (packed(("dev", tarfile.CHRTYPE, "", 0o644)), "dev"),
        (packed(("a", FILE, b"x" * 2000, 0o644))[:900], "stream"),
        (b"this is no archive" * 100, "malformed"),
        (b"", "stream"),
    ],
    ids=["up", "parent", "hard", "device", "cut", "text", "empty"],
)
def test_bad_archive_is_refused(server, box, data, word):  # noqa: F811
    execute(server, box, "mkdir -p /tmp/t/u")
    status, body = put(server, f"{box}/tree/tmp/t/u", [data], len(data))
    assert 400 <= status < 500 and word in body.decode(), (status, body)
    assert execute(server, box, "ls -A /tmp/t /tmp") == "/tmp:\nt\n\n/tmp/t:\nu\n"


def test_link_of_an_archive_leads_nowhere(server, box):  # noqa: F811
    """An entry below a link of the same archive does not follow it."""
    data = packed(("out", LINK, "/etc", 0o777), ("out/x", FILE, b"X", 0o644))
    execute(server, box, "mkdir -p /tmp/t")
    put(server, f"{box}/tree/tmp/t", [data], len(data))
    assert execute(server, box, "ls /etc/x 2>/dev/null") == ""
