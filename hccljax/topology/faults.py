"""Fault: a link, a port, a rank or a level that is slower than it should be, or lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hccljax.errors import ArgumentError, shown
from hccljax.numbers import real, whole

if TYPE_CHECKING:
    from hccljax.topology.model import Topology


LEAST_LEFT = 1e-9
"""The least part that may be left; what is slower counts as lost."""


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
        if link is not None and level is not None:
            raise ArgumentError(
                f"degrade(link={shown(link)}, level={shown(level)}): expected no level, as a link belongs to one"
            )
        left = real("degrade: factor", factor, LEAST_LEFT, 1)
        computing = real("degrade: computing", computing, LEAST_LEFT, 1)
        if lost and left < 1:
            raise ArgumentError(f"degrade(lost=True, factor={left:g}): expected one of them: lost leaves nothing")
        if not lost and left == computing == 1:
            raise ArgumentError(
                "degrade: nothing is slower; expected factor= (what is left of the bandwidth), lost=True, or "
                "computing= (what is left of a rank's speed)"
            )
        if computing < 1 and rank is None:
            raise ArgumentError(f"degrade(computing={computing:g}): expected the rank that computes slowly")
        if not topology.levels and (lost or left < 1 or level is not None):
            raise ArgumentError(
                f"topology {topology} says nothing of its links; expected one with figures, such as 'atlas-800t-a2:4x8'"
            )
        if link is not None and (not isinstance(link, tuple) or len(link) != 2):
            raise ArgumentError(f"degrade(link={shown(link)}): expected two different ranks")
        last = topology.ranks - 1
        one, other = (whole("degrade: rank", end, 0, last) for end in link or (0, last))
        if link is not None and one == other:
            raise ArgumentError(f"degrade(link={shown(link)}): expected two different ranks")
        where = None if level is None else whole("degrade: level", level, 0, len(topology.levels) - 1)
        who = None if rank is None else whole("degrade: rank", rank, 0, last)
        return cls(None if link is None else (one, other), who, where, 0.0 if lost else left, computing)

    def check(self, topology: Topology) -> None:
        """Raises an ArgumentError if the topology has no such link."""
        if self.link is None:
            return
        here, there = topology.places[list(self.link)]
        k = int(np.flatnonzero(here != there)[-1])
        level = topology.levels[k]
        ahead, size = there[k] - here[k], topology.members(k, self.link[0])
        beside = ahead % size in (1, size - 1) and (here[:k] == there[:k]).all()
        if level.links == "switch" or (level.links == "ring" and not beside):
            raise ArgumentError(
                f"degrade(link={self.link}): {level.name} ({level.links}) has no link between these ranks; expected "
                f"neighbours on a ring or members of a full mesh, or rank= for the port of one"
            )

    def __str__(self) -> str:
        what = f"link {self.link[0]}-{self.link[1]}" if self.link else "" if self.rank is None else f"rank {self.rank}"
        where = "" if self.level is None else f"level {self.level}"
        left = (
            "" if self.factor == 1 else "lost" if self.factor == 0 else f"at {_percent(self.factor)} of its bandwidth"
        )
        slow = "" if self.computing == 1 else f"computes at {_percent(self.computing)}"
        return " ".join(each for each in (what, where, left, slow) if each)


def _percent(part: float) -> str:
    return f"{100 * part:.3g}%"
