"""Topologies of JAX meshes: the devices of one process are a server."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import jax
import numpy as np

from hccljax.errors import ArgumentError, shown
from hccljax.topology.model import Topology


def from_mesh(mesh: Any) -> Topology:
    """The servers of a ``jax.sharding.Mesh``, its ranks numbered as its axes flattened in order.

    Raises:
      ArgumentError: not a mesh of devices, or one whose ranks of one process do not follow each other.

    >>> from_mesh(jax.make_mesh((jax.device_count(),), ("rank",))).servers is None
    True
    """
    devices = None if isinstance(mesh, jax.sharding.AbstractMesh) else getattr(mesh, "devices", None)
    if not isinstance(devices, np.ndarray) or not devices.size:
        raise ArgumentError(f"from_mesh got {shown(mesh)}: expected a jax.sharding.Mesh of devices")
    processes = [device.process_index for device in devices.reshape(-1)]
    servers = [(process, len(list(ranks))) for process, ranks in groupby(processes)]
    if len({process for process, _ in servers}) != len(servers):
        raise ArgumentError(
            f"from_mesh: the ranks of one process do not follow each other (processes in rank order: "
            f"{shown(processes)}); expected a mesh whose devices are sorted by process"
        )
    return Topology(servers=tuple(size for _, size in servers))
