"""Detours: what faults do to the routes of messages, and the ways round what is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hccljax.errors import UnreachableError

if TYPE_CHECKING:
    from hccljax.topology.wiring import Routes, Wiring


class Detours:
    """The faults of a topology, as they act on its ports.

    Attributes:
      wiring: of the topology.
      left: what faults leave of the bandwidth of each port, [ports]; 0 is lost.
    """

    def __init__(self, wiring: Wiring):
        self.wiring = wiring
        self.left = self._degraded()

    def _degraded(self) -> np.ndarray:
        """What faults leave of the bandwidth of each port, [ports]; 0 is lost."""
        left = np.ones(self.wiring.ports)
        for fault in self.wiring.topology.faults:
            if fault.factor == 1:
                continue
            if fault.link is not None:
                left[self._link(*fault.link)] *= fault.factor
                continue
            levels = range(len(self.wiring.first) - 1) if fault.level is None else [fault.level]
            for k in levels:
                left[self._of_rank(k, fault.rank)] *= fault.factor
        return left

    def _link(self, a: int, b: int) -> np.ndarray:
        """The ports of the link between two ranks, both ways."""
        both = self.wiring.plain(np.array([a, b]), np.array([b, a]))
        return both.ports[both.ports > 0]

    def _of_rank(self, k: int, rank: int | None) -> np.ndarray:
        """The ports of a rank at a level, outwards and inwards; those of all ranks for None."""
        first, n, level = self.wiring.first[k], self.wiring.topology.ranks, self.wiring.topology.levels[k]
        if rank is None:
            return np.arange(first, self.wiring.first[k + 1])
        if level.links == "switch":
            return first + np.array([rank, n + rank])
        if level.links == "full_mesh":
            places = np.arange(level.size)
            return np.concatenate([first + rank * level.size + places, first + (n + rank) * level.size + places])
        here, size, stride = (
            int(self.wiring.places[rank, k]),
            self.wiring.topology.members(k, rank),
            self.wiring.stride(k),
        )
        before, after = (rank + ((here + step) % size - here) * stride for step in (-1, 1))
        return first + np.array([2 * rank, 2 * rank + 1, 2 * before, 2 * after + 1])

    def routes(self, routes: Routes, sources: np.ndarray, destinations: np.ndarray) -> Routes:
        """The routes at the speed that is left, those that are lost replaced by others."""
        left = self.left
        lost = np.flatnonzero(left[routes.ports].min(axis=1) == 0)
        if len(lost):
            ways = [self._another(int(sources[m]), int(destinations[m]), int(routes.level[m])) for m in lost]
            width = max(routes.ports.shape[1], *(len(ports) for _, ports in ways))
            ports = np.zeros((len(sources), width), np.int64)
            ports[:, : routes.ports.shape[1]] = routes.ports
            latency = routes.latency.copy()
            for m, (hops, way) in zip(lost, ways, strict=True):
                ports[m] = 0
                ports[m, : len(way)] = way
                latency[m] = hops * self.wiring.topology.levels[routes.level[m]].latency
            load = np.bincount(ports.reshape(-1), minlength=self.wiring.ports)
            load[0] = 0
            shared = np.array([level.rate for level in self.wiring.topology.levels])[routes.level] / load[ports].max(
                axis=1
            )
            routes = replace(routes, latency=latency, rate=np.minimum(routes.rate, shared), ports=ports)
        return replace(routes, rate=routes.rate * left[routes.ports].min(axis=1))

    def _another(self, source: int, destination: int, k: int) -> tuple[int, list[int]]:
        """(hops, ports) of a way round a lost link: through a third member, or the other way round a ring."""
        level, places = self.wiring.topology.levels[k], self.wiring.places
        ways: list[tuple[int, list[int]]] = []
        if level.links == "ring":
            ways = [self._other_way(source, destination, k)]
        elif level.links == "full_mesh":
            same = (np.delete(places, k, 1) == np.delete(places[source], k)).all(1)
            between = [int(r) for r in np.flatnonzero(same) if places[r, k] != places[destination, k] and r != source]
            turn = (source + destination) % max(1, len(between))  # several lost links go through different members
            for r in between[turn:] + between[:turn]:
                hops = self.wiring.plain(np.array([source, r]), np.array([r, destination]))
                ways.append((2, [int(port) for port in hops.ports.reshape(-1) if port]))
        for way in ways:
            if self.left[way[1]].min() > 0:
                return way
        raise UnreachableError(
            f"rank {source} cannot reach rank {destination}: level {k} ({level.name}, {level.links}) between them "
            f"is lost, and there is no other way; expected ranks that can talk, or an algorithm in which these do not"
        )

    def _other_way(self, source: int, destination: int, k: int) -> tuple[int, list[int]]:
        """The longer way round a ring, as ``Wiring`` takes the shorter one."""
        here, there = (int(self.wiring.places[rank, k]) for rank in (source, destination))
        size, stride, first = self.wiring.topology.members(k, source), self.wiring.stride(k), self.wiring.first[k]
        ahead = (there - here) % size
        up = 2 * ahead > size
        hops, step = (ahead, 1) if up else (size - ahead, -1)
        at = [source + ((here + step * hop) % size - here) * stride for hop in range(hops)]
        arrival = destination + ((there - step) % size - there) * stride
        return hops, [first + 2 * rank + (not up) for rank in dict.fromkeys([*at, arrival])]
