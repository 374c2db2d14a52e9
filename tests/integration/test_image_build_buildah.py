# SPDX-License-Identifier: Apache-2.0
"""A corpus of Dockerfiles, each of which becomes the same image here and by buildah: files, owners,
modes and configuration."""

import io
import json
import os
import shutil
import subprocess
import tarfile
import textwrap

import pytest
from built_images import Builds, base

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="buildah's chroot isolation needs root here"),
    pytest.mark.skipif(not shutil.which("buildah"), reason="needs buildah: install buildah"),
]


def archive():
    to = io.BytesIO()
    with tarfile.open(fileobj=to, mode="w:gz") as tar:
        # fmt: skip
        for name, mode, kind, link in (("t/x", 0o640, tarfile.REGTYPE, ""), ("t/l", 0o777, tarfile.SYMTYPE, "x"), ("t/h", 0o640, tarfile.LNKTYPE, "t/x")):
            info = tarfile.TarInfo(name)
            info.mode, info.type, info.linkname, info.uid, info.gid = mode, kind, link, 1000, 50
            info.size = 4 if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(b"text") if info.size else None)
    return to.getvalue()


FILES = {
    "a": "a\n",
    "b.txt": "b\n",
    "d/one": "1\n",
    "d/two.txt": "2\n",
    "d/e/deep": "d\n",
    "x.tgz": archive(),
    "script": "#!/bin/sh\necho ran > /ran\n",
}

CORPUS = {
    "run shell": "RUN echo hello > /hello",
    "run json": 'RUN ["/bin/sh", "-c", "echo json > /json"]',
    "run continues": "RUN echo a > /a && \\\n  # comment\n  echo b > /b",
    "run removes": "RUN rm -rf /home/bob /high && mkdir /home/bob",
    "run owners": "RUN touch /o && chown alice:staff /o && chmod 4751 /o && mkdir -m 1777 /sticky",
    "run links": "RUN ln -s /etc/passwd /l && mkfifo /p && echo x > /h1 && ln /h1 /h2",
    "run user": "USER alice\nWORKDIR /home/alice\nRUN id -u > id; echo $HOME > home",
    "run replaces a directory": "RUN rm -rf /home/bob && echo file > /home/bob",
    "env": 'ENV A=1 B="two words" C=$PATH:/x\nENV OLD form with blanks\nRUN echo "$A|$B|$C|$OLD" > /env',
    "arg": "ARG A=default\nARG B\nARG C=${A}x\nRUN echo $A-$B-$C > /arg",
    "arg before from": None,
    "workdir": "WORKDIR /one\nWORKDIR two\nWORKDIR ../three\nRUN pwd > where",
    "copy file": "COPY a /new/dir/name\nCOPY a /slash/\nCOPY a /",
    "copy directory": "COPY d /d\nCOPY d/ /d2/\nCOPY d/e d/one /both/",
    "copy patterns": "COPY *.txt /t/\nCOPY d/t*.tx? /u/",
    "copy chown": "COPY --chown=alice:staff d /owned\nCOPY --chown=12:34 a /numbers",
    "copy chmod": "COPY --chmod=751 script /script\nRUN /script",
    "copy onto files": "RUN echo old > /f && mkdir /dir && echo keep > /dir/keep && chmod 700 /dir\nCOPY a /f\nCOPY d /dir/",
    "copy into a linked directory": "RUN mkdir /real && ln -s /real /link\nCOPY a /link/\nCOPY d /link",
    "copy json": 'COPY ["a", "b.txt", "/with blank/"]',
    "copy variables": "ENV D=/var/v\nARG F=a\nCOPY ${F} ${D:-/none}/${MISSING:-name}",
    "add archive": "ADD x.tgz /in/\nADD a /in/",
    "stages": None,
    "configuration": 'LABEL a=b "c"="d e"\nEXPOSE 80 53/udp\nVOLUME /v\nSTOPSIGNAL SIGTERM\nUSER alice\nENTRYPOINT ["echo"]\nCMD ["a", "b"]',
    "entrypoint clears cmd": "ENTRYPOINT echo shell",
    "cmd shell": "CMD echo $PATH",
    "shell": 'SHELL ["/bin/sh", "-e", "-c"]\nRUN echo $0 > /shell',
    "healthcheck": "HEALTHCHECK --interval=30s --timeout=2s --retries=3 CMD test -e /",
    "dockerignore": "COPY . /all",
}
WHOLE = {
    "arg before from": "ARG B=localhost/base\nARG G=global\nFROM $B\nARG G\nRUN echo $G > /g\n",
    "stages": "FROM localhost/base AS one\nRUN echo 1 > /f && chown alice /f\nFROM localhost/base AS two\nCOPY --from=one /f /from-one\nFROM two\nCOPY --from=0 /f /etc/passwd /x/\n",
}
IGNORED = {"dockerignore": "*.txt\n!b.txt\nd/e\nDockerfile\n"}
# buildah's own places to mount something, and directories of it.
PLACES = {"dev", "proc", "sys", "run", "etc/hosts", "etc/resolv.conf", "etc/hostname"}


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    made = Builds(name="localhost/base")
    place = tmp_path_factory.mktemp("buildah")
    made.buildah = ["buildah", "--root", place / "root", "--runroot", place / "run", "--storage-driver", "vfs"]
    (place / "layer.tar").write_bytes(base())
    (place / "Dockerfile").write_text('FROM scratch\nADD layer.tar /\nENV PATH=/bin\nWORKDIR /\nCMD ["sh"]\n')
    words = ["bud", "-q", "--isolation", "chroot", "-t", "localhost/base", place]
    subprocess.run([*made.buildah, *words], capture_output=True, check=True)
    made.place = place
    yield made
    subprocess.run([*made.buildah, "rmi", "--all", "--force"], capture_output=True, check=False)


def of_buildah(builds, context, name):
    """The image that buildah makes, in the store."""
    path = builds.place / f"{name.replace(' ', '-')}.tar"
    done = subprocess.run(
        [*builds.buildah, "bud", "--isolation", "chroot", "-q", "--layers=false", "-t", "theirs", context],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    subprocess.run([*builds.buildah, "push", "-q", "theirs", f"oci-archive:{path}"], check=True)
    builds.store.json("image", "import", "--name", "theirs", path)


def files(builds, name):
    """{path: [kind, mode, content, owner, links]}; a directory's number of links depends on the layers."""
    found = builds.store.merged(name)
    return {
        path: row[: 4 if row[0] == "d" else 5]
        for path, row in found.items()
        if path not in PLACES and not (row[0] == "d" and path.startswith("run"))
    }


def configuration(builds, name):
    oci = json.loads((builds.store.path / "images" / f"{name}.json").read_text())["oci"]
    found = {key: value for key, value in oci["config"].items() if value}
    labels = {key: value for key, value in found.pop("Labels", {}).items() if not key.startswith("io.buildah")}
    found.pop("Shell", None)  # buildah keeps it in images of Docker's form alone, as it does Healthcheck
    found.pop("Healthcheck", None)
    return {**found, **({"Labels": labels} if labels else {})}


@pytest.mark.parametrize("name", CORPUS)
def test_an_image_is_that_of_buildah(builds, name):
    text = WHOLE.get(name) or "FROM localhost/base\n" + textwrap.dedent(CORPUS[name]) + "\n"
    context = builds.context(text, {**FILES, **({".dockerignore": IGNORED[name]} if name in IGNORED else {})})
    os.chmod(context / "script", 0o755)
    of_buildah(builds, context, name)
    builds.build(context)
    assert files(builds, "made") == files(builds, "theirs")
    assert configuration(builds, "made") == configuration(builds, "theirs")
