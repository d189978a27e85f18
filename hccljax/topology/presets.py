"""Presets: clusters whose figures are published, by name.

Bandwidths are bytes/s in each direction. Nowhere is a latency published as a measurement: 1.5 µs inside a server and
5 µs between servers are assumptions, here and wherever a preset is used. HCCL's own selector counts 60 µs a step, which
holds the launch of the operator too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from hccljax.errors import ArgumentError, shown
from hccljax.topology.level import Level
from hccljax.topology.model import Topology

HCCS_LATENCY, ROCE_LATENCY = 1.5e-6, 5e-6
"""Seconds; assumed."""

DEFAULT = "atlas-800t-a2"
"""Whose figures a bare spec such as "4x8" is given where figures are needed."""

Sizes = tuple[int, ...]
Wire = Callable[[Sizes, Sizes | None], tuple[Level, ...]]
"""(members of each tier, the innermost first; ranks of each server where they differ) → levels, the innermost first."""


@dataclass(frozen=True)
class Preset:
    """A cluster of servers.

    Attributes:
      name: what a spec calls it.
      source: where its figures come from.
      wire: its levels for given tiers.
      largest: ranks of its largest server.
      example: a spec of it.
    """

    name: str
    source: str
    wire: Wire
    largest: int
    example: str

    def over(self, topology: Topology) -> Topology:
        """The tiers of a topology with the preset's figures.

        Raises:
          ArgumentError: a server has more ranks than the preset's, or servers that it does not have.
        """
        servers = topology.servers or topology.sizes[:1]
        if max(servers) > self.largest:
            raise ArgumentError(
                f"a server of {max(servers)} ranks: one of {self.name} has up to {self.largest}; expected a spec such "
                f"as {self.example!r}"
            )
        return Topology(topology.sizes, topology.servers, self.wire(topology.sizes, topology.servers), self.name)


def tiered(inside: Callable[[int], tuple[Level, ...]], *outer: Level) -> Wire:
    """Wiring that follows the tiers.

    Args:
      inside: ranks of a server → its levels.
      outer: how servers, pods, … are wired, whatever their size is here; the last one also stands for tiers beyond.
    """

    def wire(sizes: Sizes, servers: Sizes | None) -> tuple[Level, ...]:
        beyond = sizes[1:] if servers is None else (len(servers),)
        links = (*outer, *outer[-1:] * len(beyond))
        return (
            *inside(sizes[0] if servers is None else max(servers)),
            *(replace(link, size=size) for link, size in zip(links, beyond, strict=False)),
        )

    return wire


def full_mesh(name: str, bandwidth: float) -> Callable[[int], tuple[Level, ...]]:
    """A link of that bandwidth for each pair of ranks of a server."""
    return lambda size: (Level(name, size, "full_mesh", bandwidth, HCCS_LATENCY),)


def _two_meshes(size: int) -> tuple[Level, ...]:
    """910: full meshes of 4, two of which make a server; a rank's way to the other one counts as one port."""
    if size <= 4:
        return full_mesh("HCCS", 10e9)(size)
    if size % 4:
        raise ArgumentError(
            f"a server of {size} ranks: those of atlas-800-910 are two full meshes of 4; expected up to 4, or 8, as in "
            f"'atlas-800-910:4x8'"
        )
    return (*full_mesh("HCCS", 10e9)(4), Level("HCCS joint", size // 4, "switch", 10e9, HCCS_LATENCY))


def _super_pod(sizes: Sizes, servers: Sizes | None) -> tuple[Level, ...]:
    """A3: two dies make an NPU; all NPUs of a super pod share one HCCS fabric, whatever their server; RoCE beyond."""
    roce = Level("RoCE", 1, "switch", 25e9, ROCE_LATENCY)
    if servers is not None:
        raise ArgumentError(
            f"servers of {'+'.join(map(str, servers))} ranks: one fabric joins all servers of a super pod of "
            f"atlas-900-a3, which servers of unequal size have no level for; expected equal ones, as in "
            f"'atlas-900-a3:2x16'"
        )
    inside, pods = math.prod(sizes[:2]), sizes[2:]
    dies = 2 - inside % 2
    return (
        Level("SIO", dies, "full_mesh", 204e9, HCCS_LATENCY),
        Level("HCCS", inside // dies, "switch", 196e9, HCCS_LATENCY),
        *(replace(roce, size=size) for size in pods),
    )


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "atlas-800-910",
            "Atlas 800 training server (910): two full meshes of 4 NPUs, HCCS 10 GB/s effective a link; RoCE 100 Gb/s "
            "an NPU, 10 GB/s effective (HCCL's own table)",
            tiered(_two_meshes, Level("RoCE", 1, "switch", 10e9, ROCE_LATENCY)),
            8,
            "atlas-800-910:4x8",
        ),
        Preset(
            "atlas-800t-a2",
            "Atlas 800T A2 (910B): HCCS full mesh of 8, 392 GB/s an NPU, so 56 GB/s a link, nominal (community "
            "figure); RoCE 200 Gb/s an NPU, 25 GB/s nominal",
            tiered(full_mesh("HCCS", 56e9), Level("RoCE", 1, "switch", 25e9, ROCE_LATENCY)),
            8,
            "atlas-800t-a2:4x8",
        ),
        Preset(
            "atlas-800t-a2-effective",
            "Atlas 800T A2 (910B) as HCCL reckons with it: HCCS 18.3 GB/s a link, RoCE 20 GB/s an NPU, effective "
            "(HCCL's own table)",
            tiered(full_mesh("HCCS", 18.3e9), Level("RoCE", 1, "switch", 20e9, ROCE_LATENCY)),
            8,
            "atlas-800t-a2-effective:4x8",
        ),
        Preset(
            "atlas-900-a3",
            "Atlas 900 A3 (910C): two dies an NPU, SIO 204 GB/s effective between them (HCCL's own table); HCCS inside "
            "the super pod, 196 GB/s a die nominal; RoCE 200 Gb/s a die between pods",
            _super_pod,
            16,
            "atlas-900-a3:2x24x16",
        ),
        Preset(
            "dgx-a100",
            "NVIDIA DGX A100: NVLink switch, 600 GB/s a GPU, so 300 GB/s each way; 8 InfiniBand ports of 200 Gb/s, 25 "
            "GB/s a GPU (data sheet)",
            tiered(
                lambda size: (Level("NVLink", size, "switch", 300e9, HCCS_LATENCY),),
                Level("InfiniBand", 1, "switch", 25e9, ROCE_LATENCY),
            ),
            8,
            "dgx-a100:4x8",
        ),
        Preset(
            "article",
            "the article this library starts from: an HCCS ring, 5 µs for each MB of 2^20 bytes, no latency; RoCE 200 "
            "Gb/s",
            tiered(
                lambda size: (Level("HCCS", size, "ring", (1 << 20) / 5e-6, 0.0),),
                Level("RoCE", 1, "switch", 25e9, 0.0),
            ),
            8,
            "article:4x8",
        ),
    )
}


def presets() -> tuple[str, ...]:
    """The names of all presets."""
    return tuple(PRESETS)


def register_preset(preset: Preset) -> Preset:
    """Makes a preset known under its name, for specs; returns it."""
    if not isinstance(preset, Preset):
        raise ArgumentError(f"register_preset got {shown(preset)}: expected a hccljax.topology.Preset")
    if PRESETS.setdefault(preset.name, preset) != preset:
        raise ArgumentError(f"a preset named {preset.name!r} is registered already: choose another name")
    return preset
