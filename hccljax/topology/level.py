"""Level: one tier of a cluster, how its members are wired, and how fast."""

from __future__ import annotations

from dataclasses import dataclass

from hccljax.errors import ArgumentError, shown
from hccljax.numbers import real, whole

LINKS = ("full_mesh", "ring", "switch")
"""A link for each pair of members; a link to either neighbour; a port for each member into a switch."""


LEAST, LONGEST = 1e-6, 1e6
"""The least bandwidth in bytes/s and the longest latency in seconds: beyond them, times are no numbers any more."""


@dataclass(frozen=True)
class Level:
    """One tier: ``size`` members and the links between them.

    A member of level 0 is a rank. A member of a level above is a whole group of the level below, and each of its ranks
    has a link or port of its own here, which leads to the ranks in the same place of the other groups and, for other
    messages, to any rank there.

    Attributes:
      name: what it is, such as ``"HCCS"`` or ``"RoCE"``.
      size: members in a group of this level.
      links: ``"full_mesh"``, ``"ring"`` or ``"switch"``.
      bandwidth: bytes/s of one link or port in each direction.
      latency: seconds that every message takes besides its bytes (α); on a ring, for each link on its way.
      oversubscription: of a switch: how many times more its ports take in than its core carries. A message is slowed
        down by it as if all ports were busy.
    """

    name: str
    size: int
    links: str
    bandwidth: float
    latency: float
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        level = f"level {shown(self.name)}:"
        if not isinstance(self.name, str):
            raise ArgumentError(f"{level} expected a name, a str")
        object.__setattr__(self, "size", whole(f"{level} size", self.size, 1))
        if self.links not in LINKS:
            raise ArgumentError(f"{level} links={shown(self.links)}; expected one of {LINKS}")
        figures = {
            "bandwidth": real(f"{level} bandwidth", self.bandwidth, LEAST, unit="bytes/s"),
            "latency": real(f"{level} latency", self.latency, 0.0, LONGEST, unit="seconds"),
            "oversubscription": real(f"{level} oversubscription", self.oversubscription, 1.0, LONGEST),
        }
        for name, value in figures.items():
            object.__setattr__(self, name, value)
        if self.oversubscription != 1 and self.links != "switch":
            raise ArgumentError(
                f"{level} oversubscription={self.oversubscription} with links={self.links!r}; "
                f"expected 'switch': other wirings have no core"
            )

    @property
    def rate(self) -> float:
        """Bytes/s that one message gets: the bandwidth, shared where the switch is oversubscribed."""
        return self.bandwidth / self.oversubscription
