# SPDX-License-Identifier: Apache-2.0
"""The job that makes an image of layers of the store, new layers and a configuration."""

import json
import subprocess

from archives import BASE_CONFIG, entry, layer, oci_blobs
from harness import binaries, caller, place  # noqa: F401
from image_stores import BASE, store  # noqa: F401


def make(store, name, layers, config=None, files=()):
    """Runs the job; `files` are the tars that `layers` name."""
    directory = store.caller.directory()
    for leaf, data in files:
        (directory / leaf).write_bytes(data)
        store.caller.own(directory / leaf)
    job = {"layers": layers, "config": config or BASE_CONFIG}
    return store.program(
        "make-image", "--name", name, directory, input=json.dumps(job).encode()
    )


def test_image_of_a_known_and_a_new_layer(store):
    """A new layer deletes files of the layers below, wherever those come from."""
    store.bring("base", BASE)
    below = [{"id": one} for one in store.layers("base")]
    above = layer(entry("etc/.wh.gone", b""), entry("etc/new", b"new", uid=7), entry("kept", b"2"))
    config = {**BASE_CONFIG, "config": {"Env": ["A=1"], "Labels": {"x": "y"}}}
    done = make(store, "built", [*below, {"tar": "L"}], config, [("L", above)])
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["new_layers"] == 1 and answer["ids"] == store.layers("built")
    assert answer["ids"][0] == store.layers("base")[0]
    found = store.merged("built")
    assert "etc/gone" not in found and found["etc/new"][2] == "new" and found["kept"][2] == "2"
    assert store.json("image", "show", "built")["config"]["env"] == ["A=1"]
    manifest = json.loads((store.path / "images" / "built.json").read_text())
    assert manifest["oci"]["config"]["Labels"] == {"x": "y"}
    store.clean()


def test_same_layer_again_is_not_stored_again(store):
    store.bring("base", BASE)
    below = [{"id": one} for one in store.layers("base")]
    files = [("L", layer(entry("etc/.wh.gone", b""), entry("new", b"1")))]
    first = json.loads(make(store, "one", [*below, {"tar": "L"}], files=files).stdout)
    again = json.loads(make(store, "two", [*below, {"tar": "L"}], files=files).stdout)
    assert again["ids"] == first["ids"]
    assert len(list((store.path / "layers").iterdir())) == 2


def test_refused_jobs(store):
    """A layer that is missing, a name that leads out of the directory, and no configuration."""
    for layers, code, config in [
        ([{"id": "0" * 64}], "not_found", None),
        ([{"tar": "../x"}], "invalid_argument", None),
        ([{"tar": "missing"}], "invalid_argument", None),
        ([], "invalid_argument", None),
        ([{"id": "0" * 64, "tar": "x"}], "invalid_argument", None),
        ([{"tar": "x"}], "invalid_argument", {"config": {"Cmd": [1]}}),
    ]:
        done = make(store, "bad", layers, config, [("x", layer(entry("a", b"a")))])
        assert done.returncode == 125, layers
        if config is None:
            assert json.loads(done.stderr)["error"]["code"] == code
    assert store.json("image", "ls")["images"] == []
    store.clean()


def test_parallel_imports_unpack_a_layer_once(store):
    """Imports of one archive at the same time: one unpacks, and the others use its layer."""
    files = layer(*(entry(f"f{i}", b"x" * 1000) for i in range(300)))
    archive = store.archive(oci_blobs([files]))
    words = [binaries() / "rollbox-store", "import", "--json", "--name"]
    environment = store.caller.environment(ROLLBOX_STORE=str(store.path))
    store.json("store", "df")  # the store is there
    jobs = [
        store.caller.popen([*words, f"image{i}", archive], env=environment, stdout=subprocess.PIPE)
        for i in range(8)
    ]
    answers = [json.loads(job.communicate(timeout=120)[0]) for job in jobs]
    assert sum(answer["new_layers"] for answer in answers) == 1
