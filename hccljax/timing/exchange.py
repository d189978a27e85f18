"""Closed forms on tiers of the algorithms in which every rank talks to every other: their traces have p² messages.

All ranks start together and do the same, in p - 1 rounds: to the next rank, to the next but one, …. A message crosses
the outermost level at which two ranks differ. What a level costs in a round is what its messages cost there: one on a
switch or a full mesh; on a ring as many links as they cross, each of which carries as many messages.

- pairwise waits for each round: its time is the sum of the rounds, each as long as the slowest level that it crosses.
- mesh waits for ports alone, which each level has for itself: its time is that of the slowest level.
- star, and mesh where one rank sends or receives everything, wait for the ports of that rank.

Exact on one level, and on two of switches and full meshes; elsewhere no less than the simulated time. Where something
is degraded, all of a level counts as its worst part; up to IRREGULAR ranks such topologies are simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hccljax.algorithm import registered
from hccljax.algorithm.base import COMPOSED, ROOTED
from hccljax.timing.kernel import kernel_seconds
from hccljax.topology import Level, Topology
from hccljax.topology.wiring import wiring_of

EXCHANGES = ("mesh", "star", "pairwise")

LARGEST = 256
"""Up to here they are simulated like all others: 256 ranks on two tiers take 50 ms."""

IRREGULAR = 512
"""Up to here they are simulated where something is degraded, servers differ, or servers are joined by a ring: forms are
no less than these times, but not close. 512 ranks take up to 3 s."""


@dataclass(frozen=True)
class _Tier:
    """A level among p ranks: ``stride`` of them are a member, ``block`` of them a group; messages of [sizes] bytes."""

    level: Level
    stride: int
    block: int
    p: int

    def message(self, nbytes: np.ndarray, hops: np.ndarray | int = 1, load: np.ndarray | int = 1) -> np.ndarray:
        """Seconds of one message over so many links, the busiest of which carries so many."""
        return hops * self.level.latency + load * nbytes / self.level.rate

    def rooted(self, nbytes: np.ndarray) -> np.ndarray:
        """The busiest port of a rank that sends to all others, or hears from them: [sizes]."""
        if self.level.links != "ring":
            return (self.block - self.stride if self.level.links == "switch" else self.stride) * self.message(nbytes)
        farthest = self.level.size // 2
        return self.stride * self.message(nbytes, farthest * (farthest + 1) // 2, farthest)

    def rounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(links, load of the busiest one) of the messages that cross the level in each round, [p - 1]; 0 for none."""
        k = np.arange(1, self.p)
        if self.block < self.p:
            k = np.minimum(k, self.p - k)
        crossed = (k < self.block).astype(int)
        if self.level.links != "ring":
            return crossed, crossed
        # Places differ by ``ahead``, or by one more where the places inside the members carry over.
        ahead, over = np.divmod(k, self.stride)
        hops = np.maximum(self._shorter(ahead), np.where(over > 0, self._shorter(ahead + 1), 0)) * crossed
        # Who reaches another place inside its receiver's member also takes the last link of the receiver's ring.
        last = (over > 0) & ((ahead > 0) | (2 * over > self.stride))
        return hops, (hops + last) * crossed

    def _shorter(self, ahead: np.ndarray) -> np.ndarray:
        return np.minimum(ahead, self.level.size - ahead)

    def ports(self, nbytes: np.ndarray) -> np.ndarray:
        """The busiest port where all send to all and wait for nothing else, with who waits for whom there: [sizes]."""
        if self.level.links == "switch":
            return (self.block - 1) * self.message(nbytes)
        if self.level.links == "full_mesh":
            return (2 * self.stride - 1) * self.message(nbytes)
        seconds = self.message(nbytes[:, None], *self.rounds())
        if self.block < self.p:
            # Nobody inside a group goes round the others: what comes back takes the same links after what went.
            return 2 * seconds[:, : self.block // 2].sum(axis=1)
        ahead, over = np.divmod(np.arange(1, self.p), self.stride)
        up, down = 2 * (ahead + (ahead == 0)) <= self.level.size, 2 * (ahead + (over > 0)) > self.level.size
        return np.maximum((seconds * up).sum(axis=1), (seconds * down).sum(axis=1))


def exchange_seconds(name: str, operator: str, p: int, sizes: Sequence[int], topology: Topology) -> np.ndarray:
    """Seconds that mesh, star or pairwise takes on all p ranks of a topology for messages of several sizes: [sizes].

    Raises:
      UnreachableError: something is lost, and there is no other way.
    """
    rings = any(level.links == "ring" for level in topology.levels[1:])
    if p <= IRREGULAR and (topology.faults or topology.servers is not None or rings):
        return kernel_seconds(registered(name), operator, p, sizes, topology)
    n = np.asarray(sizes, float)
    if operator in COMPOSED and name == "mesh":
        return sum((exchange_seconds(name, part, p, sizes, topology) for part in COMPOSED[operator]), np.zeros(len(n)))
    nbytes = n if name == "star" and operator in ("broadcast", "reduce") else n / p
    tiers = list(_tiers(topology, p))
    if name == "pairwise":
        rounds = [tier.message(nbytes[:, None], *tier.rounds()) for tier in tiers]
        return np.max(rounds, axis=0).sum(axis=1) if rounds else np.zeros(len(n))
    each = [tier.rooted(nbytes) if operator in ROOTED else tier.ports(nbytes) for tier in tiers]
    return np.max(each, axis=0) if each else np.zeros(len(n))


def _tiers(topology: Topology, p: int) -> Iterator[_Tier]:
    stride, levels = 1, _worst(topology) if topology.faults else topology.levels
    for level in levels:
        block = min(stride * level.size, p)
        if block > stride:
            yield _Tier(level, stride, block, p)
        stride = block


def _worst(topology: Topology) -> list[Level]:
    """The levels as if every link of each were its worst one; the ways round a lost one share what is left."""
    wiring, ranks, levels = wiring_of(topology), np.arange(topology.ranks), []
    for k, level in enumerate(topology.levels):
        left = wiring.left[wiring.levels == k]
        share, hops = left[left > 0].min(initial=1.0), 1
        if left.min() == 0:
            # To the next member: no way round is left where this finds none.
            wiring.routes(ranks, np.roll(ranks, -wiring.stride(k)))
            share, hops = share / 2, level.size - 1 if level.links == "ring" else 2
        levels.append(replace(level, bandwidth=level.bandwidth * share, latency=level.latency * hops))
    return levels
