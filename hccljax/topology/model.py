"""Topology: how many members each tier has, inner tier first (level 0 inside a server, level 1 between servers)."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from hccljax.errors import ArgumentError, shown
from hccljax.topology.level import Level

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
      levels: how the tiers are wired, the innermost first; () where nothing is known of it. Wiring can be finer than
        ``sizes``: two meshes of 4 that make a server of 8 are two levels of wiring in one tier. Where servers differ in
        size, the last level is between servers, and those before it are inside the largest.
      name: the preset, or "".
    """

    sizes: tuple[int, ...] = ()
    servers: tuple[int, ...] | None = None
    levels: tuple[Level, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        self._settle_sizes()
        object.__setattr__(self, "levels", tuple(self.levels))
        for level in self.levels:
            if not isinstance(level, Level):
                raise ArgumentError(f"Topology levels hold {shown(level)}: expected hccljax.Level")
        if self.levels:
            self._check_levels()

    def _check_levels(self) -> None:
        sizes = [level.size for level in self.levels]
        if self.servers is not None:
            fits = math.prod(sizes[:-1]) >= max(self.servers) and sizes[-1] == len(self.servers)
        else:
            reached = set(accumulate(sizes, operator.mul))
            fits = math.prod(sizes) == self.ranks and reached >= set(accumulate(self.sizes, operator.mul))
        if not fits:
            raise ArgumentError(
                f"levels of {' x '.join(map(str, sizes))} members, innermost first, for {self} ranks: expected sizes "
                f"that multiply to those of the tiers, innermost first"
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
        return np.stack([*coordinates, *([server] if self.servers is not None else [])], axis=1)

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
