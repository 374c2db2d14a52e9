# SPDX-License-Identifier: Apache-2.0
"""Images from Dockerfiles: the program `rollbox image build`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from ._core.policy import Policy
from ._core.program import program, run_program, run_program_async

PathLike = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class BuiltStep:
    """A step of a build.

    Attributes:
        stage: The number of its stage, from 0.
        instruction: "RUN", "COPY" and so on.
        line: Its line in the Dockerfile.
        image: The image of the store with the files after it; None: there are none yet.
        cached: It was taken from the store.
    """

    stage: int
    instruction: str
    line: int
    image: Optional[str]
    cached: bool


@dataclass(frozen=True)
class BuiltImage:
    """An image that was built.

    Attributes:
        name: Its name: the tag, or that of its last step.
        layers: The number of its layers.
        steps: What was carried out, in order.
    """

    name: str
    layers: int
    steps: tuple[BuiltStep, ...]


def _command(
    context: PathLike,
    tag: Optional[str],
    file: Optional[PathLike],
    build_args: Optional[Mapping[str, str]],
    target: Optional[str],
    no_cache: bool,
    secrets: Optional[Mapping[str, PathLike]],
    ssh: Optional[Mapping[str, PathLike]],
    pull: Optional[bool],
    allow: Sequence[str],
    policy: Optional[Policy],
    progress: bool,
) -> tuple[list[str], Optional[bytes]]:
    words = [program(), "image", "build", "--json"]
    words.append("--progress=plain" if progress else "--progress=quiet")
    if tag is not None:
        words.append(f"--tag={tag}")
    if file is not None:
        words.append(f"--file={os.fspath(file)}")
    if target is not None:
        words.append(f"--target={target}")
    if no_cache:
        words.append("--no-cache")
    words += [f"--build-arg={name}={value}" for name, value in (build_args or {}).items()]
    words += [f"--secret=id={name},src={os.fspath(path)}" for name, path in (secrets or {}).items()]
    words += [f"--ssh={name}={os.fspath(path)}" for name, path in (ssh or {}).items()]
    if pull is not None:
        words.append("--pull" if pull else "--no-pull")
    words += [f"--allow={host}" for host in allow]
    text = None if policy is None else policy.to_json().encode()
    if text is not None:
        words.append("--policy=-")
    return [*words, "--", os.fspath(context)], text


def _answer(text: bytes) -> BuiltImage:
    found: dict[str, Any] = json.loads(text)
    steps = tuple(BuiltStep(**step) for step in found["steps"])
    return BuiltImage(found["name"] or found["image"], found["layers"], steps)


def build_image(
    context: PathLike,
    *,
    tag: Optional[str] = None,
    file: Optional[PathLike] = None,
    build_args: Optional[Mapping[str, str]] = None,
    target: Optional[str] = None,
    no_cache: bool = False,
    secrets: Optional[Mapping[str, PathLike]] = None,
    ssh: Optional[Mapping[str, PathLike]] = None,
    pull: Optional[bool] = None,
    allow: Sequence[str] = (),
    policy: Optional[Policy] = None,
    progress: bool = False,
) -> BuiltImage:
    """Builds an image from a Dockerfile, into the store.

    Args:
        context: The directory whose files COPY takes.
        tag: The image's name in the store; without it only the steps are kept.
        file: The Dockerfile. Default: `Dockerfile` of the context.
        build_args: Values of ARG.
        target: The stage to build. Default: the last one.
        no_cache: Carry out all steps again.
        secrets: Files for `RUN --mount=type=secret,id=NAME`.
        ssh: Sockets of SSH agents for `RUN --mount=type=ssh`: {"default": path}.
        pull: True: ask registries for all images of FROM; False: for none. Default: for those that
            the store lacks.
        allow: Hosts that steps may reach. Default: none.
        policy: Limits and network of the steps.
        progress: Show the progress on standard error.

    Raises:
        RollboxError: The build has failed; the message has the file and line.

    Example:
        image = rollbox.build_image(".", tag="app", allow=["@pypi"])
    """
    words, text = _command(
        context,
        tag,
        file,
        build_args,
        target,
        no_cache,
        secrets,
        ssh,
        pull,
        allow,
        policy,
        progress,
    )
    lines: list[bytes] = []
    run_program(words, lines.append, data=text, shown=progress)
    return _answer(b"".join(lines))


async def build_image_async(
    context: PathLike,
    *,
    tag: Optional[str] = None,
    file: Optional[PathLike] = None,
    build_args: Optional[Mapping[str, str]] = None,
    target: Optional[str] = None,
    no_cache: bool = False,
    secrets: Optional[Mapping[str, PathLike]] = None,
    ssh: Optional[Mapping[str, PathLike]] = None,
    pull: Optional[bool] = None,
    allow: Sequence[str] = (),
    policy: Optional[Policy] = None,
    progress: bool = False,
) -> BuiltImage:
    """As build_image, for asyncio. A cancelled call kills the build."""
    words, text = _command(
        context,
        tag,
        file,
        build_args,
        target,
        no_cache,
        secrets,
        ssh,
        pull,
        allow,
        policy,
        progress,
    )
    lines: list[bytes] = []
    await run_program_async(words, lines.append, data=text, shown=progress)
    return _answer(b"".join(lines))
