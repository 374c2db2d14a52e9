# SPDX-License-Identifier: Apache-2.0
"""Images as the root of sandboxes with net "allow"."""

from harness import caller  # noqa: F401
from network_server import server  # noqa: F401
from image_stores import system, system_store as store  # noqa: F401


def test_image_reaches_hosts(store, server):  # noqa: F811
    """Resolvers without a resolv.conf, as in this image, ask 127.0.0.1. The sandbox's /etc/hosts
    hides that of the image."""
    path = server.policy(store.caller)
    script = "/bin/busybox wget -q -O - http://site.test/; echo; grep -c mine /etc/hosts; /bin/busybox wget -q -O - http://other.test/"
    result = store.caller.run(
        "--image",
        "system",
        "--policy",
        path,
        "--",
        "/bin/sh",
        "-c",
        script,
        env=store.caller.environment(ROLLBOX_STORE=str(store.path)),
    )
    assert (result.stdout, result.exit_code) == ("hello site.test\n0\n", 1), result
    assert [(row["host"], row["why"]) for row in result.network["refusals"]] == [
        ("other.test", "name")
    ]
