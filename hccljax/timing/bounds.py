"""Lower bounds: how long a collective takes at least on a topology, whatever the algorithm.

Bandwidth: the bytes that have to leave or reach a node, over what its ports carry together. A node is a single rank, or
all ranks of a server, or of a pod, with the ports that lead out of it; other cuts are not looked at. Sources: Patarasuk
and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009) for all_reduce; for the others
every byte that starts on one side of the cut and is needed on the other.

Latency: what one rank knows spreads to at most 1 + ports times as many nodes while one message starts and arrives; on
one port that is ceil(log2 p) steps, on a full mesh one. Over several levels the slowest one counts, not their sum, so
that it stays a bound for algorithms that use all levels at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hccljax.errors import ArgumentError, shown
from hccljax.numbers import MOST_BYTES, whole
from hccljax.topology import Topology, with_figures


@dataclass(frozen=True)
class Bound:
    """A lower bound for one operator, message size and topology.

    Attributes:
      bandwidth: seconds for the bytes alone.
      latency: seconds for the messages alone.
      cut: whose ports are the narrowest: ``"rank"``, or the name of the level whose groups' ports they are.
    """

    bandwidth: float
    latency: float
    cut: str

    @property
    def seconds(self) -> float:
        """No algorithm is faster: the larger of the two. (Their sum is a yardstick, but no bound.)"""
        return max(self.bandwidth, self.latency)

    @property
    def binds(self) -> str:
        """Which of the two it is, in words."""
        if self.bandwidth >= self.latency:
            return "bandwidth of a rank's ports" if self.cut == "rank" else f"bandwidth out of one {self.cut} group"
        return "latency"


def lower_bound(operator: str, nbytes: int, topology: str | Topology, root: int = 0) -> Bound:
    """How long an operator takes at least.

    Args:
      operator: such as ``"all_reduce"``.
      nbytes: bytes of one rank's message: the whole array for all_reduce, broadcast and reduce, all p blocks else.
      topology: such as ``"atlas-800t-a2:4x8"``; what is degraded counts as if it were whole, and one without figures is
        given those of atlas-800t-a2.
      root: of a rooted operator.

    Raises:
      ArgumentError: an operator that is not known, nbytes below 0, or a root that is no rank.

    >>> hccljax.lower_bound("all_reduce", 1 << 30, "atlas-800t-a2:4x8").bandwidth  # 2 · 3/4 GiB over 8 · 25 GB/s
    0.00805306368
    """
    if not isinstance(operator, str) or operator not in _CROSSING:
        raise ArgumentError(f"operator={shown(operator)}: expected one of {', '.join(_CROSSING)}")
    nbytes, topology = whole("nbytes", nbytes, 0, MOST_BYTES), with_figures(topology)
    root = whole("root", root, 0, topology.ranks - 1)
    if topology.ranks == 1:
        return Bound(0.0, 0.0, "rank")
    ports, places = _ports(topology), topology.places
    best, latency = (0.0, "rank"), 0.0
    node = np.arange(topology.ranks)  # the node that each rank belongs to: itself, its server, its pod
    for k in range(len(topology.levels)):
        names = np.unique(node)
        if len(names) > 1:
            members = np.bincount(node)
            outward = np.bincount(node, weights=(ports[:, k:] * _rates(topology)[k:]).sum(axis=1))
            busiest = _crossing(operator, float(nbytes), topology.ranks, members, outward, int(node[root]))
            best = max(best, (busiest, "rank" if k == 0 else topology.levels[k - 1].name), key=lambda one: one[0])
            ways = int(np.bincount(node, weights=ports[:, k:].sum(axis=1)).max())
            alpha = min(level.latency for level in topology.levels[k:] if level.size > 1)
            latency = max(latency, _doublings(len(names), ways) * alpha)
        outer = places[:, k + 1 :]
        node = np.unique(outer, axis=0, return_inverse=True)[1].reshape(-1) if outer.size else np.zeros_like(node)
    return Bound(best[0], latency, best[1])


def _ports(topology: Topology) -> np.ndarray:
    """[ranks, levels]: the ports of each rank on which different messages can leave at the same time."""
    ports = np.zeros((topology.ranks, len(topology.levels)))
    places = topology.places
    for k, level in enumerate(topology.levels):
        outer = np.unique(places[:, k + 1 :], axis=0, return_inverse=True)[1].reshape(-1)
        pairs = np.unique(np.stack([outer, places[:, k]], 1), axis=0)
        others = np.bincount(pairs[:, 0])[outer] - 1
        ports[:, k] = np.minimum(others, {"switch": 1, "ring": 2, "full_mesh": level.size}[level.links])
    return ports


def _rates(topology: Topology) -> np.ndarray:
    return np.array([level.rate for level in topology.levels])


def _crossing(operator: str, n: float, p: int, members: np.ndarray, outward: np.ndarray, root: int) -> float:
    """Seconds that the busiest node's ports need, and for all_reduce those of all nodes together."""
    if operator == "all_reduce":
        together = 2 * (len(members) - 1) * n / outward.sum()
        return float(max(together, (n / outward).max()))
    return float((_CROSSING[operator](n, p, members, root) / outward).max())


def _moved(n: float, p: int, members: np.ndarray, root: int) -> np.ndarray:
    return n / p * (p - members)


def _exchanged(n: float, p: int, members: np.ndarray, root: int) -> np.ndarray:
    return n / p * members * (p - members)


def _whole(n: float, p: int, members: np.ndarray, root: int) -> np.ndarray:
    return np.full(len(members), n)


def _rooted(n: float, p: int, members: np.ndarray, root: int) -> np.ndarray:
    own = n / p * members
    own[root] = n / p * (p - members[root])
    return own


_CROSSING = {
    "all_reduce": _whole,
    "all_gather": _moved,
    "reduce_scatter": _moved,
    "broadcast": _whole,
    "reduce": _whole,
    "scatter": _rooted,
    "gather": _rooted,
    "all_to_all": _exchanged,
}
"""Bytes that have to cross the ports of each node one way: (n, p, ranks of each node, the root's node) → [nodes]."""


def _doublings(nodes: int, ways: int) -> int:
    """Steps until one node's knowledge has reached all, each handing it on by all its ports at every step."""
    reached, steps = 1, 0
    while reached < nodes:
        reached, steps = reached * (1 + ways), steps + 1
    return steps
