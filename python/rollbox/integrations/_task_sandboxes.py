# SPDX-License-Identifier: Apache-2.0
"""Sandboxes of tasks that name an image: engines, images, set-ups and shells.

The adapters to frameworks whose tasks have container images share these functions.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from .. import images as store_images
from .._core.errors import CommandNotFound, FeatureMissing
from .._core.options import PolicyLike
from .._core.policy import Policy
from .._core.record import Record
from .._core.result import Result
from .._engine import Engine
from .._sandbox import Sandbox
from ..aio._sandbox import AsyncSandbox
from ..aio._threads import run_in_thread
from ._common import HOST, policy_for

PUBLIC = ("*:1-65535", "0.0.0.0/0:1-65535", "[::/0]:1-65535")
"""Rules for the public Internet: TCP to every public address, and no private address."""

_lock = threading.Lock()


class _Setup:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.box: Optional[Sandbox[Any]] = None


_setups: dict[tuple[str, str, Optional[Engine]], _Setup] = {}


def _after_fork() -> None:
    # Connections and sessions belong to the parent process.
    global _lock
    _lock = threading.Lock()
    _setups.clear()


os.register_at_fork(after_in_child=_after_fork)


def _fork_of_setup(
    policy: Policy, setup: str, engine: Optional[Engine], record: Optional[Record]
) -> Sandbox[Any]:
    with _lock:
        made = _setups.setdefault((policy.to_json(), setup, engine), _Setup())
    with made.lock:
        if made.box is not None and made.box._session().connection.retired:
            made.box = None
        if made.box is None:
            box = Sandbox(policy, engine=engine)
            try:
                exec_shell(box, setup).check()
                box.snapshot()
            except BaseException:
                box.close()
                raise
            made.box = box
        return made.box.fork(1, record=record)[0]


async def open_box(
    policy: Policy,
    setup: Optional[str] = None,
    engine: Optional[Engine] = None,
    record: Optional[Record] = None,
    lifetime: Optional[float] = None,
) -> AsyncSandbox[Any]:
    """An open session: a new sandbox, or a fork of the one in which `setup` has run once.

    Args:
        policy: The policy.
        setup: A line of shell.
        engine: The engine; None: the shared one.
        record: Where the trajectory goes.
        lifetime: Seconds after which the session ends; not with `setup`.
    """
    if setup is None:
        box: AsyncSandbox[Any] = AsyncSandbox(
            policy, engine=engine, record=record, max_lifetime=lifetime
        )
    else:
        box = AsyncSandbox.of(await run_in_thread(_fork_of_setup, policy, setup, engine, record))
    return await box.__aenter__()


async def policy_with_image(
    policy: PolicyLike,
    image: Optional[str],
    images: Mapping[str, str],
    engine: Optional[Engine],
) -> Policy:
    """The policy with a task's image, which is pulled if the store of this machine lacks it.

    An image that `images` maps is not pulled. A server has its own store: it must have the image.
    """
    made = policy_for(policy, image, images)
    mapped = image is None or image in images or "*" in images
    if made.image is not None and not mapped and made.image != HOST:
        if engine is None or engine.remote is None:
            await store_images.pull_async(made.image, missing=True)
    return made


def refuse_remote_build(engine: Optional[Engine], what: str) -> None:
    """Raises FeatureMissing if an image would be built for an engine of another machine."""
    if engine is not None and engine.remote is not None:
        raise FeatureMissing(
            f"{what}: a Dockerfile is not built on a remote engine; build the image there with "
            "`rollbox image build`, and name it with `images`",
            stage="policy",
        )


def _argvs(command: str) -> Sequence[list[str]]:
    return [["bash", "-c", command], ["sh", "-c", command]]


def exec_shell(box: Sandbox[Any], command: str, **options: Any) -> Result[Any]:
    """Runs a command in bash, or in sh where the image has no bash."""
    for argv in _argvs(command):
        try:
            result: Result[Any] = box.exec(argv, **options)
            return result
        except CommandNotFound:
            if argv[0] == "sh":
                raise
    raise AssertionError


async def exec_shell_async(box: AsyncSandbox[Any], command: str, **options: Any) -> Result[Any]:
    """As exec_shell, for asyncio."""
    for argv in _argvs(command):
        try:
            result: Result[Any] = await box.exec(argv, **options)
            return result
        except CommandNotFound:
            if argv[0] == "sh":
                raise
    raise AssertionError
