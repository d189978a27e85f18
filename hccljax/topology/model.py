"""Topology: how many members each tier has, inner tier first (level 0 inside a server, level 1 between servers)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hccljax.errors import ArgumentError, shown
from hccljax.numbers import whole
from hccljax.topology.faults import Fault
from hccljax.topology.level import Level

MOST_RANKS = 1 << 24
"""Ranks that a topology may have."""


@dataclass(frozen=True)
class Topology:
    """The tiers of a cluster, or its servers where they differ in size.

    With equal servers, rank r sits at coordinate r mod sizes[0] of level 0, and so on outwards. Servers of unequal size
    make no tiers: the ranks are one level, of which the first servers[0] are the first server, and so on.

    Attributes:
      sizes: members of each level, level 0 (inside a server) first; may be left out where servers says it.
      servers: ranks of each server, in rank order, where they differ; None where all are alike.
      levels: how the ranks are wired, the innermost first; () where nothing is known of it. Wiring need not follow the
        tiers: two meshes of 4 that make a server of 8 are two levels in one tier, and a fabric that joins the ranks of
        several servers alike is one level over two tiers. Where servers differ in size, the last level is between
        servers, and those before it are inside the largest.
      name: the preset, or "" where the levels are not those of one.
      faults: what is slower than it should be, or lost (see ``degrade``).
    """

    sizes: tuple[int, ...] = ()
    servers: tuple[int, ...] | None = None
    levels: tuple[Level, ...] = ()
    name: str = ""
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        self._settle_sizes()
        if self.ranks > MOST_RANKS:
            raise ArgumentError(f"Topology of {self.ranks:,} ranks: expected {MOST_RANKS:,} at most")
        object.__setattr__(self, "levels", tuple(self.levels))
        for level in self.levels:
            if not isinstance(level, Level):
                raise ArgumentError(f"Topology levels hold {shown(level)}: expected hccljax.Level")
        if self.levels:
            self._check_levels()
        for fault in self.faults:
            fault.check(self)

    def _check_levels(self) -> None:
        sizes = [level.size for level in self.levels]
        given = f"levels of {' x '.join(map(str, sizes))} members, innermost first"
        if self.servers is None:
            if math.prod(sizes) != self.ranks:
                raise ArgumentError(f"{given}, for {self.ranks} ranks: expected sizes that multiply to as many")
            return
        if math.prod(sizes[:-1]) < max(self.servers) or sizes[-1] != len(self.servers):
            raise ArgumentError(
                f"{given}, for servers of {self.shape} ranks: expected {len(self.servers)} members at the last level, "
                f"one a server, and room for {max(self.servers)} ranks in those before it"
            )
        # Who is beside whom follows from the sizes of the levels, which are those of the largest server.
        for k, level in enumerate(self.levels):
            if level.links == "ring" and (k, len(sizes)) != (0, 2):
                raise ArgumentError(
                    f"level {k} ({level.name}) is a ring, with servers of {self.shape} ranks: servers of unequal size "
                    f"cannot be joined by a ring, nor be several in one; expected 'switch' or 'full_mesh'"
                )

    def _settle_sizes(self) -> None:
        if self.servers is None:
            sizes = self.sizes
            if not sizes and self.levels:
                sizes = tuple(level.size for level in self.levels if isinstance(level, Level))
            object.__setattr__(self, "sizes", as_sizes(sizes, "Topology sizes"))
            return
        servers = as_sizes(self.servers, "Topology servers", "server, in rank order")
        alike = len(set(servers)) == 1
        tiers = (servers[0], *(len(servers),) * (len(servers) > 1)) if alike else (sum(servers),)
        if self.sizes and as_sizes(self.sizes, "Topology sizes") != tiers:
            raise ArgumentError(
                f"Topology sizes {shown(self.sizes)} with servers {shown(servers)}: expected {tiers}, or no sizes"
            )
        object.__setattr__(self, "sizes", tiers)
        object.__setattr__(self, "servers", None if alike else servers)

    @property
    def ranks(self) -> int:
        """Ranks in all."""
        return math.prod(self.sizes)

    @cached_property
    def places(self) -> np.ndarray:
        """[ranks, levels]: each rank's coordinate at each level of the wiring, the innermost first."""
        ranks = np.arange(self.ranks)
        coordinates = []
        if self.servers is not None:
            server = np.repeat(np.arange(len(self.servers)), self.servers)
            ranks = ranks - np.repeat(np.cumsum(self.servers) - self.servers, self.servers)
        for level in self.levels if self.servers is None else self.levels[:-1]:
            coordinates.append(ranks % level.size)
            ranks = ranks // level.size
        if self.servers is not None and self.levels:
            coordinates.append(server)
        return np.stack(coordinates, axis=1) if coordinates else np.zeros((self.ranks, 0), np.int64)

    def members(self, k: int, ranks: Any) -> Any:
        """Members of the group of each rank at level k: inside a smaller server than others, as many as it has."""
        if self.servers is None or k > 0 or len(self.levels) != 2:
            return self.levels[k].size
        return np.repeat(self.servers, self.servers)[ranks]

    def degrade(
        self,
        *,
        link: tuple[int, int] | None = None,
        rank: int | None = None,
        level: int | None = None,
        factor: float = 1.0,
        lost: bool = False,
        computing: float = 1.0,
    ) -> Topology:
        """The topology with something slower, or lost; faults add up. It is no longer called by its preset's name.

        Args:
          link: two ranks, for the link between them, both ways; where a switch is between them there is none.
          rank: a rank, for all its links and ports.
          level: which level of the wiring: for a rank, only its links there; alone, all links of the level.
          factor: what is left of the bandwidth, above 0 and up to 1.
          lost: True if it is gone. Messages go another way where there is one: on a full mesh through a third rank, on
            a ring the other way round; else ``hccljax.simulate`` raises an UnreachableError.
          computing: what is left of a rank's computing speed, above 0 and up to 1.

        Raises:
          ArgumentError: a rank, level or link that does not exist, or nothing that is slower.

        >>> slow = hccljax.topology.as_topology("atlas-800t-a2:4x8").degrade(rank=3, level=1, factor=0.5)
        >>> str(slow.faults[0])
        'rank 3 level 1 at 50% of its bandwidth'
        """
        fault = Fault.of(self, link, rank, level, factor, lost, computing)
        return replace(self, faults=(*self.faults, fault), name="")

    def with_level(self, k: int, **figures: Any) -> Topology:
        """The topology with other figures for one level of its wiring; it is no longer called by its preset's name.

        Args:
          k: the level, 0 for the innermost.
          figures: ``bandwidth``, ``latency``, ``links``, ``oversubscription`` or ``name``, as in ``Level``.

        >>> quick = hccljax.topology.as_topology("atlas-800t-a2:4x8").with_level(1, bandwidth=50e9)
        >>> quick.levels[1].bandwidth
        50000000000.0
        """
        if not self.levels:
            raise ArgumentError(
                f"with_level({shown(k)}): topology {self} has no levels; expected one with figures, such as "
                f"'atlas-800t-a2:4x8'"
            )
        k = whole("with_level: k", k, 0, len(self.levels) - 1)
        unknown = set(figures) - {"name", "links", "bandwidth", "latency", "oversubscription"}
        if unknown:
            raise ArgumentError(f"with_level({', '.join(sorted(unknown))}): expected figures of a Level, not its size")
        changed = replace(self.levels[k], **figures)
        levels = (*self.levels[:k], changed, *self.levels[k + 1 :])
        return replace(self, levels=levels, name=self.name if levels == self.levels else "")

    @property
    def slowness(self) -> np.ndarray:
        """How many times longer each rank computes than it should, [ranks]."""
        slow = np.ones(self.ranks)
        for fault in self.faults:
            if fault.computing != 1:
                slow[fault.rank] /= fault.computing
        return slow

    def __str__(self) -> str:
        """The spec of a preset's topology; of any other one its tiers alone, which say nothing of links and faults."""
        return f"{self.name}:{self.shape}" if self.name else self.shape

    @property
    def shape(self) -> str:
        """The tiers, or the servers, as in a spec: ``"4x8"``, ``"5+3"``."""
        if self.servers is not None:
            return "+".join(map(str, self.servers))
        return "x".join(str(size) for size in reversed(self.sizes))


def as_sizes(sizes: Iterable[int], what: str, each: str = "level, level 0 first") -> tuple[int, ...]:
    """Members of each level (or what each says) as ints; what names them in the error."""
    try:
        sizes = tuple(sizes)
        members = tuple(whole("size", size, 1) for size in sizes)
    except (TypeError, ArgumentError):
        members = ()
    if not members:
        raise ArgumentError(f"{what} {shown(sizes)}: expected one positive int for each {each}")
    return members
