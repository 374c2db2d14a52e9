# SPDX-License-Identifier: Apache-2.0
"""Pulling images: from a registry that behaves and from one that does not, and from files."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from archives import (
    ARCHITECTURE,
    configuration,
    docker_members,
    entry,
    layer,
    oci_blobs,
    write_layout,
    write_tar,
)
from harness import binaries, caller, place  # noqa: F401
from image_stores import BASE, store, system  # noqa: F401
from registries import MANIFEST, closed_registry, registry  # noqa: F401

ABOVE = layer(entry("etc/.wh.gone", b""), entry("dir/.wh..wh..opq", b""), entry("dir/n", b"n"))
BIG = layer(entry("big", os.urandom(300000), uid=5, gid=6, mode=0o600))


def events(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def pull(store, *arguments, **options):
    """The last event of a pull."""
    return events(store.call("image", "pull", *arguments, "--json", **options))[-1]


def refused(store, *arguments, code, **options):
    """The error's message; the store has no image, and nothing half-made."""
    done = store.call("image", "pull", *arguments, "--json", **options)
    assert done.returncode == 125, done.stdout
    error = json.loads(done.stderr)["error"]
    assert error["code"] == code, error
    store.clean()
    return error["message"]


def downloads(store):
    return sorted(os.listdir(store.path / "downloads"))


def test_pull_and_run(store, registry):
    """The image has its files, its configuration, and its name."""
    registry.put("app", "1", *system(), config=None)
    found = pull(store, registry.reference("app"))
    name = f"{registry.address}/app:1"
    assert found["event"] == "pulled" and found["name"] == name and found["fetched_layers"] == 2
    shown = store.json("image", "show", name)
    assert shown["config"]["cwd"] == "/data" and "NAME=value" in shown["config"]["env"]
    assert shown["source"]["digest"] == found["digest"]
    merged = store.merged(name)
    assert "gone" not in merged and merged["data/new"][2] == "new"
    assert downloads(store) == []
    environment = store.caller.environment(ROLLBOX_STORE=str(store.path))
    result = store.caller.run("--image", name, "--", "/bin/cat", "/data/new", env=environment)
    assert result.stdout == "new"


def test_known_layers_cost_no_request(store, registry):
    """The same image by another name costs its manifest; one with a new layer costs that layer."""
    registry.put("app", "1", BASE, ABOVE)
    pull(store, registry.reference("app"))
    registry.requests.clear()
    again = pull(store, "--name", "again", registry.reference("app"))
    assert again["fetched_layers"] == 0 and again["layers"] == 2
    assert registry.requests == [("GET", "/v2/"), ("GET", "/v2/app/manifests/1")]
    assert store.merged("again") == store.merged(f"{registry.address}/app:1")

    registry.put("app", "2", BASE, ABOVE, BIG)
    registry.requests.clear()
    more = pull(store, "--name", "more", registry.reference("app", "2"))
    assert (more["fetched_layers"], more["new_layers"]) == (1, 1)
    assert len(set(registry.gets("blobs"))) == 2  # the new layer, and the configuration
    assert store.layers("more")[:2] == store.layers("again")


def test_layers_of_an_imported_file_are_known(store, registry):
    """It does not matter from where the store has a layer."""
    registry.put("app", "1", BASE, ABOVE)
    store.bring("file", BASE, ABOVE)
    found = pull(store, "--name", "pulled", registry.reference("app"))
    assert found["fetched_layers"] == 0 and found["new_layers"] == 0
    assert len(registry.gets("blobs")) == 1  # the configuration


def test_by_digest(store, registry):
    wanted = registry.put("app", "1", BASE)
    name = f"{registry.address}/app@{wanted}"
    assert pull(store, f"docker://{name}")["digest"] == wanted
    assert store.json("image", "show", name)["kind"] == "image"
    other = f"docker://{registry.address}/app@sha256:{'0' * 64}"
    assert "no such" in refused(store, other, code="not_found")


def test_platform(store, registry):
    """Of an index the image of this machine, or the one that is asked for."""
    foreign = {"arm64": "amd64"}.get(ARCHITECTURE, "arm64")
    own = registry.put("app", "own", layer(entry("own", b"1")))
    config = configuration([BASE])
    other = registry.put("app", "other", BASE, config={**config, "architecture": foreign})
    registry.put_index("app", "1", {f"linux/{foreign}/v8": other, f"linux/{ARCHITECTURE}": own})
    assert pull(store, registry.reference("app"))["digest"] == own
    found = pull(store, "--platform", f"linux/{foreign}", "--name", "o", registry.reference("app"))
    assert found["digest"] == other and "will not run" in found["notes"][0]
    wrong = ["--platform", "linux/s390x", registry.reference("app")]
    message = refused(store, *wrong, code="not_found")
    assert f"linux/{foreign}/v8" in message and "linux/s390x" in message
    message = refused(store, "--platform", "linux/s390x", registry.reference("app", "own"), code="not_found")
    assert f"it has: linux/{ARCHITECTURE}" in message
    assert "must be OS/ARCH" in refused(store, "--platform", "x", "a", code="invalid_argument")


def test_credentials_come_from_files(store, closed_registry):
    """Without them there is a clear error. No process has them among its arguments."""
    closed_registry.put("app", "1", BASE)
    reference = closed_registry.reference("app")
    message = refused(store, reference, code="path_denied")
    assert "--authfile" in message
    creds = store.caller.write(store.home / "creds", "me:secret-word\n", 0o600)
    wrong = store.caller.write(store.home / "wrong", "me:other\n", 0o600)
    seen = []
    closed_registry.fault = lambda *_: seen.append(arguments_of_skopeo())
    assert pull(store, "--creds", creds, reference)["pulled"]
    assert any(seen) and "secret-word" not in str(seen)
    assert "cannot pull" in refused(store, "--creds", wrong, "--name", "b", reference, code="path_denied")
    assert pull(store, "--creds", "-", "--name", "c", reference, input=b"me:secret-word")["pulled"]
    shown = refused(store, "--creds", "me:secret-word", "--name", "d", reference, code="invalid_argument")
    assert "--creds takes a file" in shown and "secret-word" not in shown
    auth = json.dumps({"auths": {closed_registry.address: {"auth": "bWU6c2VjcmV0LXdvcmQ="}}})
    authfile = store.caller.write(store.home / "auth.json", auth, 0o600)
    assert pull(store, "--authfile", authfile, "--name", "e", reference)["pulled"]


def arguments_of_skopeo():
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if words.startswith(b"skopeo\0"):
            found.append(words + path.with_name("environ").read_bytes())
    return found


def test_nothing_of_the_callers_environment_reaches_skopeo(store, registry):
    registry.put("app", "1", BASE)
    seen = []
    registry.fault = lambda *_: seen.extend(arguments_of_skopeo())
    pull(store, registry.reference("app"), env={"AWS_SECRET_ACCESS_KEY": "hidden"})
    assert seen and b"AWS_SECRET" not in b"".join(seen)


def test_missing_image_and_registry(store, registry):
    registry.put("app", "1", BASE)
    assert "no such" in refused(store, registry.reference("app", "9"), code="not_found")
    assert "no such" in refused(store, registry.reference("other"), code="not_found")
    dead = refused(store, "docker://127.0.0.1:1/app:1", code="io")
    assert "nothing listens" in dead


def test_without_skopeo(store):
    """The message has the command that installs it. Files need no skopeo."""
    nowhere = {"PATH": "/nonexistent"}
    message = refused(store, "python:3.12", code="feature_missing", env=nowhere)
    assert "apt-get install skopeo" in message
    layout = write_layout(store.home / "layout", oci_blobs([BASE]))
    assert pull(store, "--name", "a", f"oci:{layout}", env=nowhere)["pulled"]


def test_next_pull_fetches_only_what_a_cut_pull_lacks(store, registry):
    """What had arrived is not fetched again."""
    registry.put("app", "1", BASE, BIG)
    big = largest(registry)
    registry.fault = lambda method, path: "cut" if big in path and method == "GET" else None
    message = refused(store, registry.reference("app"), code="io")
    assert "try again" in message
    kept = downloads(store)
    assert kept and big not in kept
    registry.fault = lambda method, path: None
    registry.requests.clear()
    found = pull(store, registry.reference("app"))
    assert found["fetched_layers"] == 1
    layers = [path for path in registry.gets("blobs") if config_of(registry) not in path]
    assert [path.rpartition(":")[2] for path in layers] == [big]
    assert downloads(store) == []


def manifest_of(registry):
    return json.loads(registry.call("GET", "/v2/app/manifests/1", Accept=MANIFEST)[1])


def largest(registry):
    """The digest of the largest layer of app:1."""
    return max(manifest_of(registry)["layers"], key=lambda row: row["size"])["digest"][7:]


def config_of(registry):
    return manifest_of(registry)["config"]["digest"][7:]


def test_lying_registry(store, registry):
    """Wrong bytes of a layer, of the configuration, and of the manifest are refused; none are kept."""
    wanted = registry.put("app", "1", BASE, BIG)
    big = largest(registry)
    registry.fault = lambda method, path: "lie" if big in path and method == "GET" else None
    assert "other data" in refused(store, registry.reference("app"), code="damaged")
    assert big not in downloads(store)
    config = config_of(registry)
    registry.fault = lambda method, path: "lie" if config in path and method == "GET" else None
    refused(store, registry.reference("app"), code="damaged")
    by_digest = f"docker://{registry.address}/app@{wanted}"
    registry.fault = lambda method, path: (lambda data: data + b" ") if "/manifests/" in path else None
    refused(store, by_digest, code="damaged")
    registry.fault = lambda method, path: None
    assert pull(store, by_digest)["pulled"]


def test_registry_that_stops_in_a_layer(store, registry):
    registry.put("app", "1", BASE, BIG)
    big = largest(registry)
    registry.fault = lambda method, path: "stall" if big in path and method == "GET" else None
    message = refused(store, "--stall", "1", registry.reference("app"), code="io")
    assert "nothing has arrived for 1 seconds" in message
    registry.released.set()


@pytest.mark.parametrize("point", ["pull_described", "pull_fetched", "layer_half", "manifest_written"])
def test_killed_pull_leaves_nothing_half_made(store, registry, point):
    """skopeo ends with its parent. The next pull uses the layers that were complete."""
    registry.put("app", "1", BASE, BIG)
    done = store.call("image", "pull", registry.reference("app"), env={"ROLLBOX_FAULT": point})
    assert done.returncode == -signal.SIGKILL
    assert store.json("image", "ls")["images"] == []
    registry.requests.clear()
    found = pull(store, registry.reference("app"))
    assert found["fetched_layers"] == (2 if point == "pull_described" else 0)
    store.clean()


def test_parallel_pulls_fetch_once(store, registry):
    """Of images with common layers, too."""
    registry.put("app", "1", BASE, BIG)
    registry.put("app", "2", BASE, BIG, ABOVE)
    store.json("store", "df")
    environment = store.caller.environment(ROLLBOX_STORE=str(store.path))
    jobs = [
        store.caller.popen(
            [binaries() / "rollbox", "image", "pull", "--missing", "--json", registry.reference("app", tag)],
            env=environment,
            stdout=subprocess.PIPE,
        )
        for tag in "1212121212"
    ]
    rows = [json.loads(job.communicate(timeout=120)[0].splitlines()[-1]) for job in jobs]
    assert sum(row["pulled"] for row in rows) == 2
    assert sum(row.get("new_layers", 0) for row in rows) == 3
    store.clean()


def test_many_runs_of_one_reference_pull_it_once(store, registry):
    registry.put("app", "1", *system())
    store.json("store", "df")
    environment = store.caller.environment(ROLLBOX_STORE=str(store.path))
    words = [binaries() / "rollbox", "run", "--image", registry.reference("app"), "--", "/bin/cat", "/data/new"]
    jobs = [store.caller.popen(words, env=environment, stdout=subprocess.PIPE) for _ in range(50)]
    assert [job.communicate(timeout=240)[0] for job in jobs] == [b"new"] * 50
    assert len(registry.gets("manifests")) <= 4


def test_files(store):
    """A layout with a tag, and docker's archive, as skopeo names them."""
    layout = write_layout(store.home / "layout", oci_blobs([BASE], tag="x"))
    assert pull(store, f"oci:{layout}:x")["name"] == "x"
    archive = write_tar(store.home / "d.tar", docker_members({"a:1": [BASE], "b:1": [ABOVE]}))
    store.caller.own(archive)
    assert pull(store, f"docker-archive:{archive}:a:1")["name"] == "a:1"
    assert "choose one" in refused(store, "--name", "n", f"docker-archive:{archive}", code="invalid_argument")
    assert "needs a name" in refused(store, f"oci:{layout}", code="invalid_argument")


@pytest.mark.parametrize("bad", ["", "docker://", "a b", "docker://x@md5:1", "-x", "a//b", "docker://u:p@h/x"])
def test_refused_references(store, bad):
    done = store.call("image", "pull", "--json", "--", bad)
    assert done.returncode == 125
    assert json.loads(done.stderr)["error"]["code"] == "invalid_argument"


def test_hostile_manifests(store, registry):
    """Sizes, digests and lists that no image has."""
    registry.put("app", "1", BASE)
    good = manifest_of(registry)

    def layers(**changes):
        return {**good, "layers": [{**good["layers"][0], **changes}]}

    for manifest, code in [
        (layers(size=1 << 62), "invalid_argument"),
        (layers(size=-1), "damaged"),
        (layers(digest="sha256:../../etc/passwd"), "damaged"),
        (layers(digest="md5:00"), "damaged"),
        ({**good, "layers": good["layers"] * 2}, "damaged"),
        ({**good, "layers": []}, "damaged"),
        ({**good, "config": {"digest": "sha256:x"}}, "damaged"),
        ({"schemaVersion": 1, "fsLayers": []}, "invalid_argument"),
        ([], "damaged"),
    ]:
        text = json.dumps(manifest).encode()
        registry.fault = lambda method, path: (lambda data: text) if "/manifests/" in path else None
        done = store.call("image", "pull", "--json", registry.reference("app"))
        assert done.returncode == 125, manifest
        assert json.loads(done.stderr)["error"]["code"] in (code, "io"), (manifest, done.stderr)
    store.clean()


def test_image_of_the_same_layer_twice(store, registry):
    """And one with a layer that has no entry, which is not stored."""
    registry.put("app", "1", BASE, ABOVE, bytes(1024), BASE)
    found = pull(store, "--name", "a", registry.reference("app"))
    # The second time its directories are those of the layers below, so it is another layer.
    assert found["layers"] == 3
    registry.put(
        "app",
        "2",
        BASE,
        ABOVE,
        bytes(1024),
        BASE,
        config={**configuration([BASE, ABOVE, bytes(1024), BASE]), "author": "x"},
    )
    assert pull(store, "--name", "b", registry.reference("app", "2"))["fetched_layers"] == 0
    # All but the number of links of merged directories.
    seen = [{path: row[:4] for path, row in store.merged(name).items()} for name in "ab"]
    assert seen[0] == seen[1]


def test_damaged_layer_is_fetched_again(store, registry):
    registry.put("app", "1", BASE, ABOVE)
    pull(store, "--name", "a", registry.reference("app"))
    base = store.layers("a")[0]
    store.file(base, "kept").write_bytes(b"other")
    assert store.json("store", "fsck", status=1)["damaged"]
    found = pull(store, "--missing", "--name", "a", registry.reference("app"))
    assert found["pulled"] and found["fetched_layers"] >= 1
    store.clean()


def test_full_disk(store, registry):
    """The store is on a file system without room for the layer: a clear error, and nothing half-made."""
    registry.put("app", "1", layer(entry("big", os.urandom(6 << 20))))
    if store.caller.uid:
        pytest.skip("only root makes a file system")
    image, mount = store.home / "disk", store.home / "mount"
    subprocess.run(["truncate", "-s", "5M", image], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-N", "500", image], check=True)
    mount.mkdir()
    script = f'mount -o loop {image} {mount} && mkdir -m 700 {mount}/store && exec "$@"'
    done = store.caller.call(
        "unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh",
        binaries() / "rollbox", "image", "pull", "--json", registry.reference("app"),
        env=store.caller.environment(ROLLBOX_STORE=f"{mount}/store"),
    )
    if b"mount:" in done.stderr:
        pytest.skip(f"needs a loop device: {done.stderr.decode()}")
    error = json.loads(done.stderr)["error"]
    assert error["code"] == "resource_exhausted" and "make room" in error["message"]
