# SPDX-License-Identifier: Apache-2.0
"""rollbox.images: pull, push, export, df and gc from Python, synchronously and with asyncio."""

import asyncio
import sys

import pytest
from archives import entry, layer
from harness import caller, place  # noqa: F401
from image_stores import BASE, open_up, system
from registries import PASSWORD, closed_registry, registry  # noqa: F401

import rollbox
from rollbox import NotFound, build_image, build_image_async, images


@pytest.fixture
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLBOX_STORE", str(tmp_path / "store"))
    yield tmp_path / "store"
    open_up(tmp_path)


def test_pull_and_use(own_store, registry):
    registry.put("app", "1", *system())
    events = []
    found = images.pull(registry.reference("app"), name="app", progress=events.append)
    assert found.name == "app" and found.pulled and found.fetched_layers == 2
    assert {event["event"] for event in events} >= {"layer", "pulled"}
    assert images.pull(registry.reference("app"), name="app", missing=True).pulled is False
    with rollbox.Engine() as engine:  # the process may have a default engine with another store
        box = rollbox.Sandbox(rollbox.Policy(image="app"), engine=engine)
        assert box.run(["/bin/cat", "/data/new"]).text == "new"
    assert images.inspect("app")["source"]["digest"] == found.digest


def test_credentials_and_errors(own_store, closed_registry):
    closed_registry.put("app", "1", BASE)
    reference = closed_registry.reference("app")
    with pytest.raises(rollbox.PathDenied, match="--authfile"):
        images.pull(reference)
    creds = f"me:{PASSWORD}"
    assert images.pull(reference, name="app", creds=creds).layers == 1
    with pytest.raises(rollbox.NotFound):
        images.pull(closed_registry.reference("other"), creds=creds)
    pushed = images.push("app", closed_registry.reference("copy"), creds=creds)
    assert pushed.layers == 1 and pushed.digest.startswith("sha256:")
    with pytest.raises(rollbox.InvalidArgument):
        images.pull("a//b")


def test_asyncio_pulls_beside_each_other(own_store, registry):
    registry.put("app", "1", BASE)
    registry.put("app", "2", BASE, layer(entry("x", b"x")))

    async def both():
        return await asyncio.gather(
            images.pull_async(registry.reference("app"), name="a"),
            images.pull_async(registry.reference("app", "2"), name="b"),
        )

    found = asyncio.run(both())
    assert [one.layers for one in found] == [1, 2]
    assert sum(one.new_layers for one in found) == 2


def test_cancelled_pull_ends(own_store, registry):
    """The command and skopeo are killed; nothing is left."""
    registry.put("app", "1", BASE)
    started = asyncio.Event()

    async def cancelled():
        loop = asyncio.get_running_loop()

        def fault(method, path):
            if "blobs" in path:
                loop.call_soon_threadsafe(started.set)
                return "stall"
            return None

        registry.fault = fault
        task = asyncio.ensure_future(images.pull_async(registry.reference("app"), name="a"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    registry.released.set()
    registry.fault = lambda method, path: None
    assert images.df() == []
    assert images.pull(registry.reference("app"), name="a").pulled


def test_export_df_and_gc(own_store, registry, tmp_path):
    registry.put("app", "1", BASE, layer(entry("own", b"12345")))
    registry.put("app", "2", BASE)
    images.pull(registry.reference("app"), name="a")
    images.pull(registry.reference("app", "2"), name="b")
    exported = images.export("a", tmp_path / "a.tar", compression="zstd")
    assert asyncio.run(images.export_async("a", f"{tmp_path}/a/")).layers == exported.layers == 2
    rows = {row.name: row for row in images.df()}
    assert rows["a"].own_bytes == 5 and rows["b"].own_bytes == 0
    images.remove("a")
    assert images.gc()["removed_layers"] == 1
    assert images.gc(older="1d", keep="100G")["removed_images"] == []
    with pytest.raises(rollbox.NotFound):
        images.remove("a")


NOISY = """#!{python}
import json, sys
sys.stderr.write("noise\\n" * 200000)
sys.stderr.flush()
if "--fails" in sys.argv[-1]:
    sys.stderr.write(json.dumps({{"error": {{"code": "not_found", "message": "none", "stage": "store"}}}}) + "\\n")
    sys.exit(125)
sys.stdin.read()
print(json.dumps({{"name": "made", "image": "made", "layers": 1, "steps": []}}))
"""


@pytest.fixture
def noisy(tmp_path, monkeypatch):
    """A program that fills its standard error before it writes anything else."""
    place = tmp_path / "rollbox"
    place.write_text(NOISY.format(python=sys.executable))
    place.chmod(0o755)
    for module in (images, sys.modules["rollbox._build"]):
        monkeypatch.setattr(module, "program", lambda: str(place))


@pytest.mark.once
def test_a_full_standard_error_hangs_no_call(noisy):
    assert images.pull("x").name == "made"
    assert images.pull("x", creds="u:p").name == "made"
    assert build_image(".").name == "made"
    with pytest.raises(NotFound, match="none"):
        images.pull("--fails")
    with pytest.raises(NotFound, match="none"):
        build_image("--fails")


@pytest.mark.once
def test_a_full_standard_error_hangs_no_call_of_asyncio(noisy):
    async def calls():
        assert (await images.pull_async("x", creds="u:p")).name == "made"
        assert (await build_image_async(".")).name == "made"
        with pytest.raises(NotFound, match="none"):
            await images.pull_async("--fails")
        with pytest.raises(NotFound, match="none"):
            await build_image_async("--fails")

    asyncio.run(calls())
