# SPDX-License-Identifier: Apache-2.0
"""Images from Dockerfiles: instructions, the cache of steps, and what is refused."""

import asyncio
import io
import json
import os
import resource
import tarfile

import pytest
import rollbox
from built_images import Builds
from harness import callers
from many_users import give_ids

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: images with owners are made")


@pytest.fixture(scope="module")
def builds():
    return Builds()


def tar_of(*entries):
    """A tar of (name, content or link target, settings)."""
    to = io.BytesIO()
    with tarfile.open(fileobj=to, mode="w:gz") as tar:
        for name, content, settings in entries:
            info = tarfile.TarInfo(name)
            for key, value in settings.items():
                setattr(info, key, value)
            if info.type == tarfile.REGTYPE:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if content else None)
    return to.getvalue()


def test_run_changes_are_in_the_image_with_their_owners(builds):
    builds.made("""\
        FROM base
        RUN echo one > /one && chown alice:staff /one && chmod 4755 /one && rm /etc/hosts /high || true
        RUN mkdir /shared && chmod 2775 /shared && chown :staff /shared && chmod g+s /shared
        RUN rm -rf /home/bob && mkdir /home/bob && ln -s one /link && mkfifo /fifo
        """)
    assert builds.run("stat -c '%u %g %a' /one /shared") == "1000 50 4755\n0 50 2775\n"
    assert builds.run("ls /home/bob; readlink /link; stat -c %F /fifo") == "one\nfifo\n"


def test_a_second_build_runs_nothing(builds):
    context = builds.context("FROM base\nWORKDIR /w\nCOPY a .\nRUN cat a > b\n", {"a": "x"})
    first = builds.build(context)
    assert [row["cached"] for row in first["steps"]] == [False] * 4
    os.utime(context / "a", (1, 1))
    again = builds.build(context)
    assert [row["cached"] for row in again["steps"]] == [False, True, True, True]
    (context / "a").write_text("y")
    changed = builds.build(context)
    assert [row["cached"] for row in changed["steps"]] == [False, True, False, False]
    assert builds.run("cat /w/b") == "y"
    assert not any(row["cached"] for row in builds.build(context, "--no-cache")["steps"])


def test_a_step_is_an_image_that_sandboxes_can_have(builds):
    made = builds.made("FROM base\nRUN echo 1 > /n\nRUN echo 2 > /n\n")
    first, second = (row["image"] for row in made["steps"][1:])
    assert builds.run("cat /n", image=first) == "1\n"
    assert builds.run("cat /n", image=second) == "2\n"


def test_a_step_is_forked_by_the_command_line_and_python(builds, monkeypatch):
    """As docs/how-to/build-images.md says."""
    context = builds.context("FROM base\nRUN echo 1 > /n\nRUN echo 2 > /n\n")
    step = next(row for row in builds.build(context)["steps"] if row["line"] == 2)["image"]
    env = {"ROLLBOX_SOCKET": str(builds.store.home / "socket")}
    assert builds.store.call("engine", "start", "--background", env=env).returncode == 0
    try:
        made = builds.store.call("create", "--users", "many", "--image", step, env=env)
        forks = builds.store.call("fork", "--count", "2", made.stdout.decode().strip(), env=env)
        assert len(forks.stdout.split()) == 2, forks
        for name in forks.stdout.decode().split():
            assert builds.store.call("exec", name, "--", "cat", "/n", env=env).stdout == b"1\n"
    finally:
        builds.store.call("engine", "stop", env=env)
    monkeypatch.setenv("ROLLBOX_STORE", str(builds.store.path))
    image = rollbox.build_image(context, tag="made")
    (found,) = [one.image for one in image.steps if one.line == 2]
    assert found == step
    policy = rollbox.Policy(image=found, users="many")
    with rollbox.Engine() as engine, rollbox.Sandbox(policy, engine=engine) as box:
        assert [kid.exec(["cat", "/n"]).text for kid in box.fork(2)] == ["1\n", "1\n"]


def test_variables_follow_their_scopes(builds):
    made = """\
        ARG BASE=base
        ARG GLOBAL=global
        FROM $BASE AS first
        ARG GLOBAL
        ARG GIVEN=default
        ARG LOCAL=local
        ENV SHOWN=${GIVEN}-${LOCAL:+set} HIDDEN="a b" ESCAPED=\\$LOCAL
        ARG HIDDEN=arg
        RUN echo "$GLOBAL $GIVEN $LOCAL $SHOWN $HIDDEN" > /first
        FROM first
        RUN echo "${GLOBAL:-none} ${LOCAL:-none} $SHOWN" > /second
        """
    builds.made(made, None, "--build-arg", "GIVEN=given")
    assert builds.run("cat /first /second") == "global given local given-set a b\nnone none given-set\n"
    assert "ESCAPED=$LOCAL" in builds.config()["env"]


def test_copy_places_files_as_docker_does(builds):
    files = {"a": "a", "d/b": "b", "d/e/c": "c", "x1": "1", "x2": "2"}
    builds.made(
        """\
        FROM base
        WORKDIR /w
        COPY a new
        COPY a /home/alice
        COPY d /into/here
        COPY x? many/
        COPY --chown=alice:staff --chmod=640 a owned
        COPY ["a", "with blank"]
        COPY d/e/c d2/
        COPY <<one <<"two" /docs/
        $HOME is ${PATH}
        one
        $HOME
        two
        """,
        files,
    )
    assert builds.run("cd /w; cat new /home/alice/a /into/here/b /into/here/e/c many/x1 many/x2 d2/c") == "aabc12c"
    assert builds.run("cd /w; stat -c '%u %g %a' owned new 'with blank'") == "1000 50 640\n0 0 644\n0 0 644\n"
    assert builds.run("cat /docs/one /docs/two; stat -c '%u %a' /home/alice") == " is /bin\n$HOME\n1000 700\n"


def test_stages_copy_from_each_other(builds):
    made = builds.made(
        """\
        FROM base AS builder
        RUN echo built > /out && chown alice /out && chmod 755 /out
        FROM base AS unused
        RUN exit 1
        FROM scratch
        COPY --from=builder /out /bin/busybox /
        COPY --from=0 /etc/passwd /etc/
        COPY --from=base /etc/group /etc/group
        """
    )
    assert [row["stage"] for row in made["steps"]] == [0, 0, 2, 2, 2, 2]
    env = builds.store.caller.environment(ROLLBOX_STORE=str(builds.store.path))
    words = ["--users", "many", "--image", "made", "--", "/busybox", "stat", "-c", "%u %a", "/out"]
    assert builds.store.caller.run(*words, env=env).stdout == "1000 755\n"


def test_the_configuration_is_kept(builds):
    builds.made("""\
        FROM base
        LABEL a=b "c d"='e f'
        EXPOSE 80 53/udp 8000-8001
        VOLUME /data ["x"]
        STOPSIGNAL SIGINT
        USER alice
        SHELL ["/bin/sh", "-e", "-c"]
        HEALTHCHECK --interval=1m30s --retries=2 CMD true
        ENTRYPOINT ["echo"]
        CMD run $PATH
        """)
    config = builds.config()
    assert config["user"] == "alice" and config["entrypoint"] == ["echo"]
    assert config["cmd"] == ["/bin/sh", "-e", "-c", "run $PATH"]
    oci = builds.oci()["config"]
    assert oci["Labels"] == {"a": "b", "c d": "e f"}
    assert sorted(oci["ExposedPorts"]) == ["53/udp", "80/tcp", "8000/tcp", "8001/tcp"]
    assert oci["Healthcheck"] == {"Test": ["CMD-SHELL", "true"], "Interval": 90 * 10**9, "Retries": 2}
    assert oci["StopSignal"] == "SIGINT" and oci["Shell"] == ["/bin/sh", "-e", "-c"]


def test_user_shell_and_working_directory_hold_in_run(builds):
    builds.made("""\
        FROM base
        WORKDIR /home/alice
        USER alice
        RUN pwd > where; id -u >> where; echo $HOME >> where
        RUN ["/bin/sh", "-c", "echo json >> where"]
        SHELL ["/bin/sh", "-x", "-c"]
        RUN <<EOF
        echo heredoc >> where
        EOF
        RUN cat <<EOF >> where
        $HOME
        EOF
        """)
    assert builds.run("cat where; stat -c %u where", "--user", "alice") == (
        "/home/alice\n1000\n/home/alice\njson\nheredoc\n/home/alice\n1000\n"
    )


def test_dockerignore_hides_files(builds):
    files = {
        ".dockerignore": "# comment\n*.log\nsecret\n!keep.log\n**/deep\ndir/*\n!dir/kept\n",
        "a.log": "", "keep.log": "", "secret/key": "", "x/y/deep": "", "x/y/shown": "", "dir/gone": "", "dir/kept": "",
    }  # fmt: skip
    builds.made("FROM base\nCOPY . /c\n", files)
    assert builds.run("cd /c; find . -type f | sort").split() == [
        "./.dockerignore", "./Dockerfile", "./dir/kept", "./keep.log", "./x/y/shown",
    ]  # fmt: skip
    message = builds.refused("FROM base\nCOPY a.log /\n", files)["message"]
    assert message.startswith("Dockerfile:2:") and ".dockerignore" in message


def test_add_unpacks_archives(builds):
    archive = tar_of(
        ("d/f", b"f", {"mode": 0o640, "uid": 1000}),
        ("d/l", None, {"type": tarfile.SYMTYPE, "linkname": "f"}),
        ("d/h", None, {"type": tarfile.LNKTYPE, "linkname": "d/f"}),
        ("d/null", None, {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
    )
    builds.made("FROM base\nADD x.tgz /to/\nADD plain /to/\nCOPY x.tgz /to/\n", {"x.tgz": archive, "plain": "text"})
    assert builds.run("cd /to; stat -c '%u %a %h' d/f; readlink d/l; ls d; cat plain; test -s x.tgz") == (
        "1000 640 2\nf\nf\nh\nl\ntext"
    )


def test_secrets_are_in_no_layer(builds):
    made = builds.made(
        "FROM base\nRUN --mount=type=secret,id=s cat /run/secrets/s > /len\nRUN --mount=type=secret,id=v,env=V echo $V > /v\n",
        {"s.txt": "top"},
        "--secret", f"id=s,src={builds.store.home / f'context{builds.number + 1}' / 's.txt'}", "--secret", "id=v,env=VALUE",
        env={"VALUE": "variable"},
    )  # fmt: skip
    assert made["steps"][1]["image"]
    assert builds.run("cat /len /v; ls /run/secrets 2>&1 || true").startswith("topvariable\n")
    assert "No such file" in builds.run("ls /run/secrets 2>&1 || true")
    error = builds.refused("FROM base\nRUN --mount=type=secret,id=none,required true\n")
    assert "--secret id=none" in error["message"]


@pytest.mark.parametrize(
    "text, line, words",
    [
        ("FROM base\nFOO x\n", 2, "no instruction"),
        ("RUN x\n", 1, "before the first FROM"),
        ("FROM base\nCOPY ../x /\n", 2, "No such file"),
        ("FROM base\nCOPY missing* /\n", 2, "matches no file"),
        ("FROM base\nCOPY a a b\n", 2, "must be a directory"),
        ("FROM base\nRUN exit 3\n", 2, "exit status 3"),
        ("FROM base\nRUN <<EOF\n", 2, "has no end"),
        ("FROM base\nENV A=${B\n", 2, "} is missing"),
        ("FROM base\n\n# c\nRUN --mount=type=npipe,target=/x true\n", 4, "not supported"),
        ("FROM base\nONBUILD RUN x\n", 2, "ONBUILD"),
        ("FROM build/none\n", 1, "not in the store"),
        ("FROM --platform=linux/s390x base\n", 1, "platform"),
        ("FROM base\nRUN --network=host true\n", 2, "--network=host"),
        ("FROM base\nEXPOSE http\n", 2, "not a port"),
        ("FROM base\nCOPY --chown=nobody1 a /\n", 2, "no user"),
        ("FROM base\nCOPY --what=1 a /\n", 2, "no flag"),
    ],
)
def test_errors_name_the_line(builds, text, line, words):
    message = builds.refused(text, {"a": "x"})["message"]
    assert message.startswith(f"Dockerfile:{line}: ") and words in message
    builds.store.clean()


def test_links_of_the_context_do_not_lead_out(builds):
    context = builds.context("FROM base\nCOPY out /\n")
    (context / "out").symlink_to("/etc/passwd")
    assert "No such file" in builds.build(context, status=125)["error"]["message"]
    (context / "dir").mkdir()
    (context / "dir" / "link").symlink_to("/etc/shadow")
    (context / "Dockerfile").write_text("FROM base\nCOPY dir /dir/\n")
    builds.build(context)
    assert builds.run("readlink /dir/link") == "/etc/shadow\n"


def test_links_of_the_image_do_not_lead_out(builds):
    """A destination behind a link is in the image, not on the host."""
    mark = builds.store.home / "outside"
    mark.mkdir()
    builds.made(f"FROM base\nRUN ln -s {mark} /l && ln -s /etc /e\nCOPY a /l/a\nCOPY a /e/\n", {"a": "x"})
    assert os.listdir(mark) == []
    assert builds.run(f"cat {mark}/a /etc/a; readlink /e") == "xx/etc\n"


def test_archives_that_lead_out_are_refused(builds):
    for entries in (
        [("../x", b"x", {})],
        [("l", None, {"type": tarfile.SYMTYPE, "linkname": "/etc"}), ("l/x", b"x", {})],
        [(".wh.etc", b"", {})],
        [("h", None, {"type": tarfile.LNKTYPE, "linkname": "../../etc/passwd"})],
    ):
        error = builds.refused("FROM base\nADD x.tgz /\n", {"x.tgz": tar_of(*entries)})
        assert error["message"].startswith("Dockerfile:2: ")
        builds.store.clean()


def test_archives_that_grow_too_much_are_refused(builds):
    bomb = tar_of(("zeros", bytes(8 << 20), {}))
    error = builds.refused("FROM base\nADD x.tgz /\n", {"x.tgz": bomb}, "--max-bytes", str(1 << 20))
    assert "--max-bytes" in error["message"]


@pytest.mark.parametrize("copy", ("COPY big /", "ADD big /", "COPY . /all/", "COPY big small /all/"))
def test_sparse_file_over_the_limit_is_refused_before_it_is_written(builds, copy):
    """Its holes would be written to the store's disk."""
    context = builds.context(f"FROM base\n{copy}\n", {"small": "x"})
    with open(context / "big", "wb") as big:
        big.truncate(1 << 40)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, limit[1]))
    try:
        error = builds.build(context, status=125)["error"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (error["code"], "--max-bytes" in error["message"]) == ("invalid_argument", True)


def test_add_copies_a_file_of_zeros(builds):
    builds.made("FROM base\nADD zeros /\n", {"zeros": bytes(20000)})
    assert builds.run("stat -c %s /zeros") == "20000\n"


def test_limits_of_a_step_count_all_its_files(builds):
    files = {f"d/{n}": b"x" * 60 for n in range(4)}
    error = builds.refused("FROM base\nCOPY d /d/\n", files, "--max-bytes", "200")
    assert "--max-bytes" in error["message"]
    error = builds.refused("FROM base\nCOPY d /d/\n", files, "--max-entries", "3")
    assert "--max-entries" in error["message"]
    error = builds.refused(f"FROM base\nCOPY <<A /a\n{'x' * 300}\nA\n", {}, "--max-bytes", "200")
    assert "--max-bytes" in error["message"]
    builds.store.clean()


def test_sparse_files_of_the_context_do_not_fill_the_disk(builds):
    context = builds.context("FROM base\nCOPY big /\n")
    with open(context / "big", "wb") as file:
        file.truncate(1 << 40)
    message = builds.build(context, status=125)["error"]["message"]
    assert message.startswith("Dockerfile:2: ") and "--max-bytes" in message


def test_processes_of_a_step_end_with_it(builds):
    builds.made(
        "FROM base\nRUN (while :; do echo x >> /grows; done) & sleep 0.1\nRUN wc -c < /grows > /a; wc -c < /grows > /b\n"
    )
    assert builds.run("cmp /a /b && echo same") == "same\n"


def test_steps_have_no_network(builds):
    builds.made("FROM base\nRUN ping -c 1 -W 1 192.0.2.1 && exit 1 || true\nRUN --network=none true\n")


def check_caches(builds):
    text = "FROM base\nRUN --mount=type=cache,target=/c{options} echo {n} >> /c/log; cat /c/log > /seen\n"
    builds.made(text.format(n=1, options=""))
    builds.made(text.format(n=2, options=",sharing=locked"))
    assert builds.run("cat /seen; ls /c 2>&1 || true").startswith("1\n2\nls: /c: No such file")
    builds.made(text.format(n=3, options=",id=other"))
    assert builds.run("cat /seen") == "3\n"


def test_caches_outlive_builds_and_are_in_no_layer(builds):
    check_caches(builds)


def test_caches_of_an_ordinary_users_builds():
    give_ids()
    user = next((caller for caller in callers() if caller.uid), None)
    if not user:
        pytest.skip("this run has root's sandboxes alone")
    check_caches(Builds(user))


def test_python_builds_images(builds, monkeypatch):
    monkeypatch.setenv("ROLLBOX_STORE", str(builds.store.path))
    context = builds.context("FROM base\nARG A\nRUN echo $A > /a\n")
    image = rollbox.build_image(context, tag="made", build_args={"A": "py"})
    assert image.name == "made" and image.steps[-1].instruction == "RUN"
    again = asyncio.run(rollbox.build_image_async(context, tag="made", build_args={"A": "py"}))
    assert again.steps[-1].cached
    with pytest.raises(rollbox.InvalidArgument, match="no stage none"):
        rollbox.build_image(context, target="none")
    assert builds.run("cat /a") == "py\n"


def test_builds_of_an_ordinary_user_keep_owners_or_are_refused():
    """Never another owner than that of the Dockerfile."""
    user = next((caller for caller in callers() if caller.uid), None)
    if not user:
        pytest.skip("this run has root's sandboxes alone")
    builds = Builds(user)
    context = builds.context("FROM base\nCOPY --chown=alice:staff a /a\n", {"a": "x"})
    builds.build(context)
    (context / "Dockerfile").write_text("FROM base\nRUN touch /o && chown alice:staff /o\n")
    done = builds.store.call("image", "build", "--json", "--progress=quiet", "-t", "made", context)
    if done.returncode:
        assert json.loads(done.stderr)["error"]["code"] == "feature_missing", done
    else:
        assert builds.run("stat -c '%u %g' /o") == "1000 50\n"


@pytest.mark.parametrize(
    "command",
    (
        "mv /run/secrets /run/old",
        "mv /run/secrets/s /kept && echo other > /run/secrets/s",
        "rm -rf /run; mkdir -p /etc/secrets; echo mine > /etc/secrets/s; ln -s /etc /run",
    ),
)
def test_secret_that_a_command_moves_is_in_no_layer(builds, tmp_path, command):
    (tmp_path / "s").write_text("hidden-word")
    flags = ("--secret", f"id=s,src={tmp_path / 's'}")
    error = builds.refused(f"FROM base\nRUN --mount=type=secret,id=s {command}\n", {}, *flags)
    assert (error["code"], "/run/secrets/s" in error["message"]) == ("conflict", True)
    builds.store.clean()


def test_user_of_the_image_reads_a_secret_that_is_removed(builds, tmp_path):
    (tmp_path / "s").write_text("hidden-word")
    text = "FROM base\nUSER alice\nRUN --mount=type=secret,id=s wc -c < /run/secrets/s > ~/size\n"
    builds.made(text, {}, "--secret", f"id=s,src={tmp_path / 's'}")
    assert builds.run("cat /home/alice/size") == "11\n"
    assert builds.run("ls /run/secrets 2>&1 || true").startswith("ls: ")


def test_secret_does_not_replace_a_file_of_the_image(builds, tmp_path):
    (tmp_path / "s").write_text("hidden-word")
    text = "FROM base\nRUN --mount=type=secret,id=s,target=/etc/passwd id\n"
    error = builds.refused(text, {}, "--secret", f"id=s,src={tmp_path / 's'}")
    assert (error["code"], "/etc/passwd" in error["message"]) == ("conflict", True)
