"""CPU devices for the demo: forced ones, unless the user has forced some already."""

from __future__ import annotations

import os

import jax
from jax.sharding import Mesh

from hccljax.errors import ArgumentError

AXIS = "data"
DEFAULT, MOST = 8, 64

_FLAG = "--xla_force_host_platform_device_count"


def cpu_mesh(wanted: int | None) -> Mesh:
    """A mesh of CPU devices with the one axis "data"; call it before anything has started a JAX backend.

    Args:
      wanted: how many devices; None takes 8, or as many as there are if the user has forced fewer.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if _FLAG not in flags:  # read when the first backend starts, so that jax may be imported already
        os.environ["XLA_FLAGS"] = f"{flags} {_FLAG}={wanted or DEFAULT}".strip()
    jax.config.update("jax_platforms", "cpu")  # else a machine with an accelerator would train on that instead
    devices = jax.devices("cpu")
    count = min(DEFAULT, len(devices)) if wanted is None else wanted
    if not 2 <= count <= min(MOST, len(devices)):
        raise ArgumentError(
            f"devices={count}: expected 2 to {MOST}, and JAX has {len(devices)} of them "
            f"(XLA_FLAGS={os.environ['XLA_FLAGS']!r})"
        )
    return Mesh(devices[:count], (AXIS,))


def servers(count: int) -> str:
    """The tiers for algorithms that have levels: two servers where the number is even, else a flat one."""
    return f"2x{count // 2}" if count % 2 == 0 and count > 2 else str(count)
