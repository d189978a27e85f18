"""Wiring: the ports that a message occupies on its way, and what the way costs.

A message from one rank to another crosses the outermost level at which their places differ. A port or link carries one
message at a time in one direction:

- ``switch``: the sender's outward port and the receiver's inward port;
- ``full_mesh``: the link between the two, a port at either end;
- ``ring``: every link on the shorter way round, and the receiver's own link at its end. Messages that start together
  share the links that they have in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hccljax.errors import ArgumentError
from hccljax.topology.detours import Detours
from hccljax.topology.model import Topology

_MOST = 1 << 25  # ports: 0.3 GB for their levels, as much again for what faults leave of them


@dataclass(frozen=True, eq=False)
class Routes:
    """What m messages that start together need.

    Attributes:
      level: the level of the wiring that each crosses, [m].
      latency: seconds besides the bytes, [m].
      rate: bytes/s, [m].
      ports: the ports that each occupies, by number, [m, k]; 0 is none, and stands where a way is short.
    """

    level: np.ndarray
    latency: np.ndarray
    rate: np.ndarray
    ports: np.ndarray


class Wiring:
    """The numbered ports of a topology.

    Attributes:
      topology: with levels.
      places: those of its ranks, [ranks, levels].
      ports: how many there are, number 0 (none) included.
      first: the first port of each level, and one more.
      levels: the level of each port, [ports]; -1 for number 0.
    """

    def __init__(self, topology: Topology):
        self.topology = topology
        self.places = topology.places
        self.first = [1]
        for level in topology.levels:
            ways = {"switch": 2, "full_mesh": 2 * level.size, "ring": 2}[level.links]
            self.first.append(self.first[-1] + topology.ranks * ways)
        self.ports = self.first[-1]
        if self.ports > _MOST:
            raise ArgumentError(
                f"topology {topology} has {self.ports:,} links; expected {_MOST:,} at most: a full mesh of n ranks has "
                f"n² of them; wire so many ranks by a switch, or as full meshes of servers"
            )
        self.levels = np.repeat(np.arange(-1, len(topology.levels)), np.diff([0, *self.first]))
        self._detours = Detours(self) if topology.faults else None

    def routes(self, sources: np.ndarray, destinations: np.ndarray) -> Routes:
        """The routes of messages between different ranks, [m] each.

        Raises:
          UnreachableError: what joins two ranks is lost, and there is no other way.
        """
        routes = self.plain(sources, destinations)
        return routes if self._detours is None else self._detours.routes(routes, sources, destinations)

    @property
    def left(self) -> np.ndarray:
        """What faults leave of the bandwidth of each port, [ports]; 0 is lost."""
        return np.ones(self.ports) if self._detours is None else self._detours.left

    def plain(self, sources: np.ndarray, destinations: np.ndarray) -> Routes:
        """The routes where nothing is degraded."""
        differ = self.places[sources] != self.places[destinations]
        crossed = differ.shape[1] - 1 - np.argmax(differ[:, ::-1], axis=1)
        latency, rate = np.zeros(len(sources)), np.ones(len(sources))
        ways: list[tuple[np.ndarray, np.ndarray]] = []
        for k, level in enumerate(self.topology.levels):
            mine = np.flatnonzero(crossed == k)
            if len(mine):
                ports, hops, load = self._ways(k, sources[mine], destinations[mine])
                ways.append((mine, ports))
                latency[mine], rate[mine] = level.latency * hops, level.rate / load
        ports = np.zeros((len(sources), max((found.shape[1] for _, found in ways), default=1)), np.int64)
        for mine, found in ways:
            ports[mine, : found.shape[1]] = found
        return Routes(crossed, latency, rate, ports)

    def _ways(
        self, k: int, sources: np.ndarray, destinations: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | int, np.ndarray | int]:
        """(ports [m, k], hops, messages on the busiest link of each way) of messages that cross level k."""
        level, first, n = self.topology.levels[k], self.first[k], self.topology.ranks
        here, there = self.places[sources, k], self.places[destinations, k]
        if level.links == "switch":
            return np.stack([first + sources, first + n + destinations], 1), 1, 1
        if level.links == "full_mesh":
            out = first + sources * level.size + there
            return np.stack([out, first + (n + destinations) * level.size + here], 1), 1, 1
        return self._round(k, sources, destinations, here, there)

    def _round(
        self, k: int, sources: np.ndarray, destinations: np.ndarray, here: np.ndarray, there: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``_ways`` of a ring: the links of the sender's ring, and the one that reaches the receiver in its own."""
        first, stride, size = self.first[k], self.stride(k), self.topology.members(k, sources)
        ahead = (there - here) % size
        up = 2 * ahead <= size
        hops = np.where(up, ahead, size - ahead)
        step = np.where(up, 1, -1)
        ports = np.zeros((len(sources), int(hops.max()) + 1), np.int64)
        for hop in range(ports.shape[1] - 1):
            at = (here + step * hop) % size
            ports[:, hop] = np.where(hop < hops, first + 2 * (sources + (at - here) * stride) + ~up, 0)
        before = (there - step) % size
        last = first + 2 * (destinations + (before - there) * stride) + ~up
        ports[:, -1] = np.where((ports == last[:, None]).any(axis=1), 0, last)
        load = np.bincount(ports.reshape(-1))
        load[0] = 0
        return ports, hops, load[ports].max(axis=1)

    def stride(self, k: int) -> int:
        """Ranks between neighbours at level k, where its servers are alike."""
        stride = 1
        for level in self.topology.levels[:k]:
            stride *= level.size
        return stride


@lru_cache(maxsize=8)
def wiring_of(topology: Topology) -> Wiring:
    """The wiring of a topology, made once for all who ask."""
    return Wiring(topology)
