"""Level: one tier of a cluster, how its members are wired, and how fast."""

from __future__ import annotations

import math
import numbers
import operator
from dataclasses import dataclass

from hccljax.errors import ArgumentError, shown

LINKS = ("full_mesh", "ring", "switch")
"""A link for each pair of members; a link to either neighbour; a port for each member into a switch."""


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
      latency: seconds that every message takes besides its bytes (α).
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
        if isinstance(self.size, bool) or not hasattr(self.size, "__index__") or operator.index(self.size) < 1:
            raise ArgumentError(f"level {shown(self.name)}: size={shown(self.size)}; expected an int, 1 or more")
        object.__setattr__(self, "size", operator.index(self.size))
        if self.links not in LINKS:
            raise ArgumentError(f"level {shown(self.name)}: links={shown(self.links)}; expected one of {LINKS}")
        for name, expected in _FIGURES.items():
            value = getattr(self, name)
            number = _as_float(value)
            least = {"latency": 0.0, "oversubscription": 1.0}.get(name, 5e-324)
            if not least <= number < math.inf:
                raise ArgumentError(
                    f"level {shown(self.name)}: {name}={shown(value)}; expected a finite number, {expected}"
                )
            object.__setattr__(self, name, number)
        if self.oversubscription != 1 and self.links != "switch":
            raise ArgumentError(
                f"level {shown(self.name)}: oversubscription={self.oversubscription} with links={self.links!r}; "
                f"expected 'switch': other wirings have no core"
            )

    @property
    def rate(self) -> float:
        """Bytes/s that one message gets: the bandwidth, shared where the switch is oversubscribed."""
        return self.bandwidth / self.oversubscription


_FIGURES = {
    "bandwidth": "above 0, in bytes/s",
    "latency": "0 or more, in seconds",
    "oversubscription": "1 or more",
}


def _as_float(value: object) -> float:
    """The value as a float; not a number if it is none."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf
