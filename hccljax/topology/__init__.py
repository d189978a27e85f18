"""Tiers of a cluster: inside a server (HCCS), between servers (RoCE), between super pods."""

from hccljax.topology.level import Level
from hccljax.topology.model import Topology, as_sizes, as_topology

__all__ = ["Level", "Topology", "as_sizes", "as_topology"]
