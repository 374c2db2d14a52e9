# SPDX-License-Identifier: Apache-2.0
"""What the adapters share: from images and resources to policies, from Results to statuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from .._core.errors import FeatureMissing
from .._core.options import PolicyLike, as_policy
from .._core.policy import Policy
from .._core.result import Outcome, Result

HOST = "host"
"""The image that stands for the host's own directories, read-only: no image at all."""


def policy_for(policy: PolicyLike, image: Optional[str], images: Mapping[str, str]) -> Policy:
    """The policy with the image that `images` has for a framework's image.

    Without an entry it is the image of this name in the store. Nothing is fetched: the engine
    reports an image that the store does not have.
    """
    made = as_policy(policy)
    name = images.get(image, images.get("*", image)) if image is not None else made.image
    if name is None or name == HOST:
        return made.replace(image=None)
    return made.replace(image=name)


def with_resources(
    policy: Policy, cpu: Any = None, memory_gib: Any = None, disk_gib: Any = None, gpu: Any = None
) -> Policy:
    """The policy with a framework's limits, where it has any."""
    if gpu:
        raise FeatureMissing(f"{gpu} GPUs were asked for; sandboxes have none", stage="policy")
    changes = {"max_cpu": cpu, "max_memory": _gib(memory_gib), "max_disk": _gib(disk_gib)}
    return policy.replace(**{key: value for key, value in changes.items() if value is not None})


def _gib(value: Any) -> Optional[int]:
    return None if value is None else int(value * (1 << 30))


def status_of(result: Result[Any]) -> int:
    """The exit status that a shell would report.

    128 + n for signal n, 137 for what was killed at a limit, 124 for a time-out.
    """
    if result.exit_code is not None:
        return result.exit_code
    if result.outcome is Outcome.SIGNAL and result.signal is not None:
        return 128 + result.signal
    return 124 if result.outcome is Outcome.TIMEOUT else 137


def remark_on(result: Result[Any]) -> str:
    """A line for the output of what was ended by a limit; "" for everything else."""
    return {
        Outcome.OUT_OF_MEMORY: "\n[killed: out of memory]\n",
        Outcome.OUTPUT_LIMIT: "\n[killed: more output than its limit]\n",
        Outcome.TIMEOUT: "\n[killed: time-out]\n",
    }.get(result.outcome, "")
