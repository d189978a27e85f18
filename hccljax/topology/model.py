"""Topology: how many members each tier has, inner tier first (level 0 inside a server, level 1 between servers)."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass

from hccljax.errors import ArgumentError, shown

_SPEC = re.compile(r"[1-9][0-9]{0,6}(x[1-9][0-9]{0,6})*")
_SERVERS = re.compile(r"[1-9][0-9]{0,6}(\+[1-9][0-9]{0,6})+")


@dataclass(frozen=True)
class Topology:
    """The tiers of a cluster, or its servers where they differ in size.

    With equal servers, rank r sits at coordinate r mod sizes[0] of level 0, and so on outwards. Servers of unequal size
    make no tiers: the ranks are one level, of which the first servers[0] are the first server, and so on.

    Attributes:
      sizes: members of each level, level 0 (inside a server) first; may be left out where servers says it.
      servers: ranks of each server, in rank order, where they differ; None where all are alike.
    """

    sizes: tuple[int, ...] = ()
    servers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.servers is None:
            object.__setattr__(self, "sizes", as_sizes(self.sizes, "Topology sizes"))
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

    def __str__(self) -> str:
        if self.servers is not None:
            return "+".join(map(str, self.servers))
        return "x".join(str(size) for size in reversed(self.sizes))


def as_sizes(sizes: Iterable[int], what: str, each: str = "level, level 0 first") -> tuple[int, ...]:
    """Members of each level (or what each says) as ints; what names them in the error."""
    try:
        members = tuple(operator.index(size) for size in sizes if not isinstance(size, bool))
    except TypeError:
        members = ()
    if not members or min(members) < 1 or len(members) != len(tuple(sizes)):
        raise ArgumentError(f"{what} {shown(sizes)}: expected one positive int for each {each}")
    return members


def as_topology(spec: str | Topology | None) -> Topology | None:
    """A Topology from a spec.

    Equal servers, outer tier first: ``"4x8"`` is 4 servers of 8, ``"2x4x8"`` 2 super pods of those. Servers of unequal
    size, in rank order: ``"5+3"``.
    """
    if spec is None or isinstance(spec, Topology):
        return spec
    if isinstance(spec, str) and _SERVERS.fullmatch(spec):
        return Topology(servers=tuple(int(size) for size in spec.split("+")))
    if not isinstance(spec, str) or not _SPEC.fullmatch(spec):
        raise ArgumentError(
            f"topology {shown(spec)}: expected a spec such as '4x8' (4 servers of 8 ranks) or '5+3' (servers of 5 and "
            f"of 3 ranks), or a hccljax.Topology"
        )
    return Topology(tuple(int(size) for size in reversed(spec.split("x"))))
