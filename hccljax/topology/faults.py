"""Fault: a link, a port, a rank or a level that is slower than it should be, or lost."""

from __future__ import annotations

import numbers
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hccljax.errors import ArgumentError, shown

if TYPE_CHECKING:
    from hccljax.topology.model import Topology


@dataclass(frozen=True)
class Fault:
    """What ``Topology.degrade`` was told; its arguments have the same names.

    Attributes:
      link: two ranks, or None.
      rank: a rank, or None.
      level: a level of the wiring, or None for all of them.
      factor: what is left of the bandwidth; 0 if it is lost.
      computing: what is left of the rank's computing speed.
    """

    link: tuple[int, int] | None = None
    rank: int | None = None
    level: int | None = None
    factor: float = 1.0
    computing: float = 1.0

    @classmethod
    def of(
        cls,
        topology: Topology,
        link: tuple[int, int] | None,
        rank: int | None,
        level: int | None,
        factor: float,
        lost: bool,
        computing: float,
    ) -> Fault:
        """A fault of a topology, its arguments checked."""
        if (link is not None) + (rank is not None) > 1 or (link is None and rank is None and level is None):
            raise ArgumentError(
                f"degrade(link={shown(link)}, rank={shown(rank)}, level={shown(level)}): expected a link or a rank, or "
                f"a level alone"
            )
        for name, value in (("factor", factor), ("computing", computing)):
            number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if not number or not 0 < value <= 1:
                raise ArgumentError(
                    f"degrade({name}={shown(value)}): expected what is left, above 0 and up to 1; lost=True for nothing"
                )
        ranks = link if isinstance(link, tuple) else () if rank is None else (rank,)
        if link is not None and (len(ranks) != 2 or ranks[0] == ranks[1]):
            raise ArgumentError(f"degrade(link={shown(link)}): expected two different ranks")
        for one in ranks:
            if isinstance(one, bool) or not hasattr(one, "__index__") or not 0 <= operator.index(one) < topology.ranks:
                raise ArgumentError(f"degrade: rank {shown(one)}; expected 0 to {topology.ranks - 1}")
        if not topology.levels and (link is not None or level is not None or factor < 1 or lost):
            raise ArgumentError(
                f"topology {topology} says nothing of its links; expected one with figures, such as 'atlas-800t-a2:4x8'"
            )
        if level is not None and (isinstance(level, bool) or level not in range(len(topology.levels))):
            raise ArgumentError(f"degrade(level={shown(level)}): expected 0 to {len(topology.levels) - 1}")
        if computing != 1 and rank is None:
            raise ArgumentError(f"degrade(computing={computing}): expected the rank that computes slowly")
        link = None if link is None else (operator.index(link[0]), operator.index(link[1]))
        rank = None if rank is None else operator.index(rank)
        return cls(link, rank, level, 0.0 if lost else float(factor), float(computing))

    def __str__(self) -> str:
        what = f"link {self.link[0]}-{self.link[1]}" if self.link else "" if self.rank is None else f"rank {self.rank}"
        where = "" if self.level is None else f"level {self.level}"
        left = "" if self.factor == 1 else "lost" if self.factor == 0 else f"at {self.factor:.0%} of its bandwidth"
        slow = "" if self.computing == 1 else f"computes at {self.computing:.0%}"
        return " ".join(part for part in (what, where, left, slow) if part)
