"""Tiers of a cluster: inside a server (HCCS), between servers (RoCE), between super pods; how they are wired."""

from hccljax.topology.level import Level
from hccljax.topology.mesh import from_mesh
from hccljax.topology.model import Topology, as_sizes
from hccljax.topology.presets import Preset, presets, register_preset
from hccljax.topology.spec import as_topology, with_figures

__all__ = [
    "Level",
    "Preset",
    "Topology",
    "as_sizes",
    "as_topology",
    "from_mesh",
    "presets",
    "register_preset",
    "with_figures",
]
