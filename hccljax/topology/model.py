"""Topology: how many members each tier has, inner tier first (level 0 inside a server, level 1 between servers)."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass

from hccljax.errors import ArgumentError, shown

_SPEC = re.compile(r"[1-9][0-9]{0,6}(x[1-9][0-9]{0,6})*")


@dataclass(frozen=True)
class Topology:
    """Tiers of equal servers; rank r sits at coordinate r mod sizes[0] of level 0, and so on outwards.

    Attributes:
      sizes: members of each level, level 0 (inside a server) first.
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", as_sizes(self.sizes, "Topology sizes"))

    @property
    def ranks(self) -> int:
        """Ranks in all."""
        return math.prod(self.sizes)

    def __str__(self) -> str:
        return "x".join(str(size) for size in reversed(self.sizes))


def as_sizes(sizes: Iterable[int], what: str) -> tuple[int, ...]:
    """Members of each level as ints; what names them in the error."""
    try:
        members = tuple(operator.index(size) for size in sizes if not isinstance(size, bool))
    except TypeError:
        members = ()
    if not members or min(members) < 1 or len(members) != len(tuple(sizes)):
        raise ArgumentError(f"{what} {shown(sizes)}: expected one positive int for each level, level 0 first")
    return members


def as_topology(spec: str | Topology | None) -> Topology | None:
    """A Topology from a spec, outer tier first: ``"4x8"`` is 4 servers of 8, ``"2x4x8"`` 2 super pods of those."""
    if spec is None or isinstance(spec, Topology):
        return spec
    if not isinstance(spec, str) or not _SPEC.fullmatch(spec):
        raise ArgumentError(
            f"topology {shown(spec)}: expected a spec such as '4x8' (4 servers of 8 ranks) or a hccljax.Topology"
        )
    return Topology(tuple(int(size) for size in reversed(spec.split("x"))))
