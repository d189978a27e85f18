"""The part of a topology that one communicator sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from hccljax.topology import Topology


def part(topology: Topology, places: Sequence[int]) -> Topology:
    """The tiers between the ranks at places, in their order, with their wiring where that is as regular as they are.

    Ranks of one server that follow each other are a server of the part.
    """
    servers = [len(list(ranks)) for _, ranks in groupby(_servers(topology)[list(places)])]
    levels = _levels(topology, places)
    if len(set(_servers(topology)[list(places)])) != len(servers):
        return Topology((len(places),), levels=levels)  # servers take turns: no tiers that an algorithm could use
    tiers = Topology(servers=tuple(servers))
    # Of an uneven part only the tiers are kept: its wiring needs a level for the largest server.
    return tiers if tiers.servers is not None else Topology(tiers.sizes, levels=levels)


def _servers(topology: Topology) -> np.ndarray:
    """The server of each rank."""
    if topology.servers is not None:
        return np.repeat(np.arange(len(topology.servers)), topology.servers)
    return np.arange(topology.ranks) // topology.sizes[0]


def _levels(topology: Topology, places: Sequence[int]) -> tuple:  # type: ignore[type-arg]
    """The levels of the wiring on which the places differ, if they are all combinations of coordinates, in order."""
    if not topology.levels:
        return ()
    coordinates = topology.places[list(places)]
    sizes = [len(np.unique(column)) for column in coordinates.T]
    expected, inner = np.arange(len(places)), 1
    for column, size in zip(coordinates.T, sizes, strict=True):
        order = np.unique(column, return_inverse=True)[1].reshape(-1)
        if not np.array_equal(order, expected // inner % size):
            return ()
        inner *= size
    if inner != len(places):
        return ()
    return tuple(replace(level, size=size) for level, size in zip(topology.levels, sizes, strict=True) if size > 1)
