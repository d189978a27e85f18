"""The part of a topology that one communicator sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hccljax.topology import Topology
from hccljax.topology.faults import Fault
from hccljax.topology.level import Level


@dataclass(frozen=True)
class _Wired:
    """The wiring of a part.

    Attributes:
      levels: the innermost first.
      at: which of them stands for a level of the topology, by that one's number; of those on which ranks differ.
      own: the levels of the topology that are levels of the part by themselves.
    """

    levels: tuple[Level, ...]
    at: Mapping[int, int]
    own: frozenset[int]


def part(topology: Topology, places: Sequence[int]) -> Topology:
    """The tiers and the wiring between the ranks at places, in their order, with what is degraded among them.

    Ranks that follow each other in one server are a server of the part, servers that follow each other in one pod are a
    pod of it, and so on. Where the groups of a tier take turns or differ in size, the tier is one with the next outer
    one; servers of different size are ``Topology.servers``. A level of the wiring that is as irregular is one with the
    next outer level, whose figures stand for both; a level on which no two of the ranks differ is left out, and so is a
    degraded link that the part has not. What is lost is half as fast: others carry its messages.
    """
    if list(places) == list(range(topology.ranks)):
        return topology
    at = np.asarray(places, np.int64)
    sizes = [size for _, size in _regular(_tiers(topology)[at])]
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    servers = _runs(_tiers(topology)[at, 0])
    if servers is not None and len(set(servers)) > 1:
        tiers = Topology(servers=tuple(servers))
        wired = _around_servers(topology, at, servers)
    else:
        tiers = Topology(tuple(sizes))
        wired = _levels(topology, at)
    name = topology.name if wired.levels else ""
    return Topology(tiers.sizes, tiers.servers, wired.levels, name, _faults(topology, places, wired))


def _tiers(topology: Topology) -> np.ndarray:
    """The server of each rank, its pod, …, the whole: [ranks, tiers]."""
    ranks = np.arange(topology.ranks)
    if topology.servers is not None:
        server = np.repeat(np.arange(len(topology.servers)), topology.servers)
        return np.stack([server, np.zeros_like(ranks)], 1)
    return np.stack([ranks // inside for inside in np.cumprod(topology.sizes)], 1)


def _regular(groups: np.ndarray) -> list[tuple[int, int]]:
    """(tier, members of each of its groups) of the regular tiers, innermost first; the sizes multiply to the ranks.

    groups: [ranks, tiers], the group of each rank in each tier; in the last one all ranks are one group.
    """
    found, inside = [], 1
    for tier, column in enumerate(groups.T):
        runs = _runs(column)
        if runs is not None and len(set(runs)) == 1 and runs[0] % inside == 0:
            found.append((tier, runs[0] // inside))
            inside = runs[0]
    return found


def _runs(groups: np.ndarray) -> list[int] | None:
    """How many ranks in a row each group has; None if groups take turns."""
    starts = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    if len(np.unique(groups)) != len(starts):
        return None
    return [int(run) for run in np.diff([*starts, len(groups)])]


def _levels(topology: Topology, at: np.ndarray) -> _Wired:
    """The levels of the wiring on which the ranks differ."""
    levels: list[Level] = []
    found: dict[int, int] = {}
    own = set()
    first = 0
    for k, size in _regular(_groups(topology)[at]):
        if size > 1:
            found.update(dict.fromkeys(range(first, k + 1), len(levels)))
            levels.append(replace(topology.levels[k], size=size))
            own |= {k} if first == k else set()
        first = k + 1
    return _Wired(tuple(levels), found, frozenset(own))


def _around_servers(topology: Topology, at: np.ndarray, servers: Sequence[int]) -> _Wired:
    """The wiring of servers that differ in size: the slowest level inside them, and the one between them."""
    if not topology.levels:
        return _Wired((), {}, frozenset())
    starts = np.cumsum([0, *servers[:-1]])
    inside = max(_outermost(topology, at[start : start + size]) for start, size in zip(starts, servers, strict=True))
    between = _outermost(topology, at)
    levels = (
        replace(topology.levels[inside], size=max(servers)),
        replace(topology.levels[between], size=len(servers)),
    )
    return _Wired(levels, {k: int(k > inside) for k in range(between + 1)}, frozenset({inside, between}))


def _outermost(topology: Topology, at: np.ndarray) -> int:
    """The outermost level on which ranks differ; the innermost of all if there is one rank."""
    coordinates = topology.places[at]
    return int(np.flatnonzero((coordinates != coordinates[0]).any(axis=0)).max(initial=0))


def _groups(topology: Topology) -> np.ndarray:
    """The group of each rank on each level of the wiring, [ranks, levels]: ranks of a group differ in that level."""
    if not topology.levels:
        return np.zeros((topology.ranks, 0), np.int64)
    coordinates = topology.places
    inverse = [
        np.unique(coordinates[:, k + 1 :], axis=0, return_inverse=True)[1].reshape(-1)
        for k in range(coordinates.shape[1] - 1)
    ]
    return np.stack([*inverse, np.zeros(topology.ranks, np.int64)], 1)


def _faults(topology: Topology, places: Sequence[int], wired: _Wired) -> tuple[Fault, ...]:
    """What is degraded among the ranks at places, in their numbers and by the levels that are left."""
    ranks = {place: rank for rank, place in enumerate(places)}
    found = []
    for fault in topology.faults:
        named = fault.link or (() if fault.rank is None else (fault.rank,))
        if any(rank not in ranks for rank in named):
            continue
        if fault.link is not None:
            if not _stays(topology, fault.link, wired):
                continue
            fault = replace(fault, link=(ranks[fault.link[0]], ranks[fault.link[1]]))
        elif fault.rank is not None:
            fault = replace(fault, rank=ranks[fault.rank])
        if fault.level is not None and fault.level in wired.at:
            fault = replace(fault, level=wired.at[fault.level])
        elif fault.level is not None or not wired.levels:  # no message of the part goes there
            fault = replace(fault, level=None, factor=1.0)
        if fault.factor < 1 or fault.computing < 1:
            # The way round what is lost may lead outside the part: two hops, so half the speed.
            found.append(replace(fault, factor=fault.factor or 0.5))
    return tuple(found)


def _stays(topology: Topology, link: tuple[int, int], wired: _Wired) -> bool:
    """True if the link between two places is one of the part's too; its rings may join others."""
    k = int(np.flatnonzero(topology.places[link[0]] != topology.places[link[1]]).max())
    return k in wired.own and topology.levels[k].links == "full_mesh"
