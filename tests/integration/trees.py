# SPDX-License-Identifier: Apache-2.0
"""Files and trees of a server's sandbox as plain requests, and archives for them."""

import io
import tarfile

import pytest
from serving import server  # noqa: F401

PIECE = bytes(range(256)) * 4096  # 1 MiB
FILE, DIRECTORY, LINK, HARD = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.fixture
def box(server):  # noqa: F811
    server.call(
        "POST", "/v1/sandboxes", {"name": "box", "policy": {"max_disk": "4G", "max_memory": "4G"}}
    )
    return "/v1/sandboxes/box"


def put(server, path, pieces, length=None):  # noqa: F811
    """PUT of pieces, chunked without a length: (status, body)."""
    connection = server.connect()
    headers = {"Authorization": f"Bearer {server.token}"}
    if length is not None:
        headers["Content-Length"] = str(length)
    try:
        connection.request("PUT", path, iter(pieces), headers, encode_chunked=length is None)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def get(server, path):  # noqa: F811
    """The answer, whose content is read by the caller."""
    connection = server.connect()
    connection.request("GET", path, headers={"Authorization": f"Bearer {server.token}"})
    return connection.getresponse()


def memory(server):  # noqa: F811
    """The most memory that the server had, in MiB."""
    pid = server.process.pid
    with open(f"/proc/{pid}/status") as status:
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) >> 10


def execute(server, box, command):  # noqa: F811
    return server.call("POST", f"{box}/execs", {"argv": ["sh", "-c", command]})[1]["stdout"]


def packed(*entries):
    """An archive of (name, type, content or target, mode)."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, content, mode in entries:
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.mtime = kind, mode, 1_000_000_000.5
            if kind == tarfile.REGTYPE:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content
                archive.addfile(info)
    return data.getvalue()
