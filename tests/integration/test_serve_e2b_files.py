# SPDX-License-Identifier: Apache-2.0
"""Uploads, homes and metadata of files, by the requests that E2B's clients send."""

import base64
import gzip

from e2b_wire import Box, frame, frames, result_of
from harness import caller  # noqa: F401
from serving import server  # noqa: F401

FILESYSTEM = "filesystem.Filesystem"
KIND = "application/octet-stream"
FORM = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nform\r\n--b--\r\n'


def upload(box, path, data, **headers):
    return box.ask("POST", f"/files?path={path}", data, Content_Type=KIND, **headers)


def test_compressed_uploads_are_decompressed(server):  # noqa: F811
    box = Box(server)
    data = bytes(range(256)) * 5000
    assert upload(box, "/tmp/g", gzip.compress(data), Content_Encoding="gzip")[0] == 200
    assert box.ask("GET", "/files?path=/tmp/g") == (200, data)
    halves = gzip.compress(data[:1000]) + gzip.compress(data[1000:])
    assert upload(box, "/tmp/two", halves, Content_Encoding="GZIP")[0] == 200
    assert box.ask("GET", "/files?path=/tmp/two") == (200, data)
    kind = "multipart/form-data; boundary=b"
    status, rows = box.ask(
        "POST",
        "/files?path=/tmp/f",
        gzip.compress(FORM),
        Content_Type=kind,
        Content_Encoding="gzip",
    )
    assert (status, rows[0]["path"]) == (200, "/tmp/f")
    assert box.ask("GET", "/files?path=/tmp/f") == (200, b"form")
    assert upload(box, "/tmp/e", gzip.compress(b""), Content_Encoding="gzip")[0] == 200


def test_bad_and_endless_compressed_uploads_are_refused(server):  # noqa: F811
    box = Box(server)
    good = gzip.compress(b"x" * 100)
    for data in (b"", b"x", good[:-1], good[:-9], good + b"rest", b"\x1f\x8b" + b"\xff" * 50):
        status, problem = upload(box, "/tmp/bad", data, Content_Encoding="gzip")
        assert status == 400 and "gzip" in problem["message"], data
    bomb = gzip.compress(bytes(65 << 20))
    status, problem = upload(box, "/tmp/bad", bomb, Content_Encoding="gzip")
    assert status == 413 and "decompressed" in problem["message"]
    assert box.ask("GET", "/files?path=/tmp/bad")[0] == 404


def test_metadata_of_files_follows_what_clients_do(server):  # noqa: F811
    box = Box(server)
    status, (row,) = upload(box, "/tmp/m/a", b"x", X_Metadata_Key="value", X_Metadata_Other="2")
    wanted = {"key": "value", "other": "2"}
    assert (status, row["metadata"]) == (200, wanted)

    def of(path, of_box=box):
        return of_box.call(f"{FILESYSTEM}/Stat", path=path)[1]["entry"].get("metadata")

    assert of("/tmp/m/a") == wanted
    rows = box.call(f"{FILESYSTEM}/ListDir", path="/tmp/m")[1]["entries"]
    assert rows[0]["metadata"] == wanted
    (kid,) = box.control("POST", f"/sandboxes/{box.id}/fork", {"count": 1, "timeout": 60})[1]
    kid = Box(server, made=kid["sandbox"])
    moved = box.call(f"{FILESYSTEM}/Move", source="/tmp/m", destination="/tmp/n")[1]
    assert moved["entry"]["path"] == "/tmp/n" and of("/tmp/n/a") == wanted
    assert of("/tmp/m/a", kid) == wanted
    upload(box, "/tmp/n/a", b"y")
    assert of("/tmp/n/a") is None
    upload(box, "/tmp/n/a", b"y", X_Metadata_Key="again")
    box.call(f"{FILESYSTEM}/Remove", path="/tmp/n")
    upload(box, "/tmp/m/a", b"y")
    assert of("/tmp/m/a") is None


def test_users_have_homes(server):  # noqa: F811
    box = Box(server)

    def run(command, user):
        basic = "Basic " + base64.b64encode(f"{user}:".encode()).decode()
        body = {"process": {"cmd": "/bin/bash", "args": ["-c", command]}}
        status, data = box.ask(
            "POST",
            "/process.Process/Start",
            frame(body),
            Content_Type="application/connect+json",
            Authorization=basic,
        )
        assert status == 200
        return result_of(list(frames(data)))[0]

    assert (
        run("pwd; echo $HOME; echo x > f; stat -c %a .", "user") == "/home/user\n/home/user\n755\n"
    )
    assert run("pwd; echo $HOME; echo x > f; stat -c %a .", "root") == "/root\n/root\n700\n"
    status, (row,) = box.ask("POST", "/files?path=rel&username=root", b"x", Content_Type=KIND)
    assert (status, row["path"]) == (200, "/root/rel")
    status, (row,) = box.ask("POST", "/files?path=rel", b"x", Content_Type=KIND)
    assert (status, row["path"]) == (200, "/home/user/rel")
    box.control("POST", f"/sandboxes/{box.id}/pause")
    box.control("POST", f"/v2/sandboxes/{box.id}/connect", {"timeout": 60})
    assert box.ask("GET", "/files?path=/root/f") == (200, b"x\n")


def test_metadata_of_files_is_bounded(server):  # noqa: F811
    """It is in the server's memory, and each fork has a copy."""
    box = Box(server)
    long = {"X_Metadata_Key": "v" * 60_000}
    for name in "abcd":
        assert upload(box, f"/tmp/m/{name}", b"x", **long)[0] == 200
    status, problem = upload(box, "/tmp/m/e", b"x", **long)
    assert status == 507 and "no room" in problem["message"], problem
    assert box.ask("GET", "/files?path=/tmp/m/e") == (200, b"x")
    assert upload(box, "/tmp/m/a", b"x", **long)[0] == 200
    # Longer paths of a moved tree count, too.
    deep = "/tmp/" + "/".join(["d" * 250] * 12)
    for name in range(10):
        assert upload(box, f"/tmp/n/{name}", b"x", X_Metadata_Key="v" * 1900)[0] == 200
    assert box.call(f"{FILESYSTEM}/MakeDir", path=deep)[0] == 200
    moved = box.call(f"{FILESYSTEM}/Move", source="/tmp/n", destination=f"{deep}/n")
    assert moved[0] == 200, moved
    assert "metadata" not in box.call(f"{FILESYSTEM}/Stat", path=f"{deep}/n/1")[1]["entry"]


def test_metadata_of_a_sandbox_of_a_snapshot_is_bounded(server):  # noqa: F811
    box = Box(server)
    made = box.control("POST", f"/sandboxes/{box.id}/snapshots", {})[1]
    for metadata in ({"a": "b" * 600}, {str(i): "x" for i in range(65)}):
        body = {"templateID": made["snapshotID"], "metadata": metadata}
        assert box.control("POST", "/sandboxes", body)[0] == 400
