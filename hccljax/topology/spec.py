"""Specs: topologies as short texts, such as ``"4x8"`` or ``"atlas-800t-a2:4x8"``."""

from __future__ import annotations

import re

from hccljax.errors import ArgumentError, nearest, shown
from hccljax.topology.model import Topology
from hccljax.topology.presets import DEFAULT, PRESETS, Preset, presets

_TIERS = re.compile(r"[1-9][0-9]{0,6}(x[1-9][0-9]{0,6})*")
_SERVERS = re.compile(r"[1-9][0-9]{0,6}(\+[1-9][0-9]{0,6})+")


def as_topology(spec: str | Topology | None) -> Topology | None:
    """A Topology from a spec; a Topology and None are what they are.

    Equal servers, outer tier first: ``"4x8"`` is 4 servers of 8, ``"2x4x8"`` 2 super pods of those. Servers of unequal
    size, in rank order: ``"5+3"``. A preset's figures: ``"atlas-800t-a2:4x8"``.

    Raises:
      ArgumentError: a text that is no spec, a preset that is not known, or servers that it cannot have.
    """
    if spec is None or isinstance(spec, Topology):
        return spec
    if not isinstance(spec, str):
        raise _bad(spec)
    name, colon, tiers = spec.rpartition(":")
    if not colon and spec in PRESETS:
        raise ArgumentError(
            f"topology {spec!r} says no sizes; expected them behind it, as in {PRESETS[spec].example!r}"
        )
    if _SERVERS.fullmatch(tiers):
        topology = Topology(servers=tuple(int(size) for size in tiers.split("+")))
    elif _TIERS.fullmatch(tiers):
        topology = Topology(tuple(int(size) for size in reversed(tiers.split("x"))))
    else:
        raise _bad(spec)
    return _preset(name).over(topology) if colon else topology


def with_figures(topology: str | Topology, preset: str = DEFAULT) -> Topology:
    """The topology itself if it has levels, else the same tiers with the figures of a preset.

    Ranks in one tier that do not fit into one server of the preset are wired as servers of the largest size, if that
    divides them, else each as a server of its own. A larger server beside others is wired as large as it has to be.
    Neither has the preset's name.

    Args:
      topology: such as ``"4x8"``, or that of a rank table.
      preset: such as ``"atlas-800t-a2"``.

    Raises:
      ArgumentError: no topology, a preset that is not known, or servers that it cannot have.
    """
    known = as_topology(topology)
    if known is None:
        raise _bad(topology)
    if known.levels:
        return known
    figures = _preset(preset)
    sizes, largest = known.sizes, figures.largest
    if max(known.servers or sizes[:1]) <= largest:
        return figures.over(known)
    if known.servers is None and len(sizes) == 1:
        inside = largest if sizes[0] % largest == 0 else 1
        sizes = (inside, sizes[0] // inside)
    # Without the preset's name: no spec of it has these servers.
    return Topology(known.sizes, known.servers, figures.wire(sizes, known.servers))


def _preset(name: str) -> Preset:
    if name not in PRESETS:
        raise ArgumentError(
            f"unknown topology preset {shown(name)}; expected one of {', '.join(presets())}{nearest(name, presets())}"
        )
    return PRESETS[name]


def _bad(spec: object) -> ArgumentError:
    return ArgumentError(
        f"topology {shown(spec)}: expected a spec such as '4x8' (4 servers of 8 ranks), '5+3' (servers of 5 and of 3 "
        f"ranks) or 'atlas-800t-a2:4x8' (with a preset's figures), or a hccljax.Topology"
    )
