"""Partitions of an axis as users list them: communicators of one size, or a class of communicators for each size."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import NoReturn

import numpy as np

from hccljax.errors import ArgumentError, shown
from hccljax.layout import Layout, Pair, Pattern

Groups = tuple[tuple[int, ...], ...]


class Uneven:
    """A partition of the n indices of an axis into communicators of several sizes.

    One kernel cannot run on all of them: its loops and shapes depend on p. Communicators of one size are a *class*, a
    Layout of its own that leaves the other indices out.

    Attributes:
      groups: the communicators as tuples of axis indices, in the order given.
      n: indices of the axis.
      classes: one Layout for each size, the largest first.
    """

    is_whole = False
    is_identity = False

    def __init__(self, groups: Groups, n: int):
        self.groups, self.n = groups, n
        sizes = sorted({len(group) for group in groups}, reverse=True)
        self.classes = tuple(Layout(np.array([g for g in groups if len(g) == size]), n) for size in sizes)

    @property
    def p(self) -> NoReturn:
        """Raises: there is no one number of ranks."""
        raise ArgumentError(
            f"this group has communicators of {sizes_text(self)} ranks, so its size has no single value; expected a "
            f"group with communicators of one size here (group.classes are such groups, one for each size)"
        )

    @property
    def smallest(self) -> int:
        """Ranks of the smallest communicator."""
        return self.classes[-1].p

    @property
    def covers(self) -> bool:
        """True if every index of the axis is in a communicator."""
        return sum(len(group) for group in self.groups) == self.n

    @cached_property
    def ranks(self) -> np.ndarray:
        """Rank inside its communicator of each axis index, shape [n]."""
        return np.array(sum(layout.ranks for layout in self.classes), np.int32)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Ranks of the communicator of each axis index, shape [n]."""
        return np.array(sum(layout.p * (layout.positions >= 0) for layout in self.classes), np.int32)

    def expand(self, pattern: Pattern) -> list[Pair]:
        """The pattern's pairs in axis indices, for every communicator by its own size."""
        return [pair for layout in self.classes for pair in layout.expand(pattern)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Uneven) and (self.n, self.groups) == (other.n, other.groups)

    def __hash__(self) -> int:
        return hash((self.n, self.groups))

    def __repr__(self) -> str:
        return f"Uneven(communicators of {sizes_text(self)} ranks)"


def sizes_text(partition: Layout | Uneven) -> str:
    """The sizes of a partition's communicators, for messages: "4, 3 and 2"."""
    sizes = [str(layout.p) for layout in (partition.classes if isinstance(partition, Uneven) else (partition,))]
    return " and ".join(filter(None, [", ".join(sizes[:-1]), sizes[-1]]))


def of_groups(groups: Groups, n: int) -> Layout | Uneven:
    """The partition of checked groups on an axis of n indices."""
    if len({len(group) for group in groups}) > 1:
        return Uneven(groups, n)
    return Layout(np.array(groups), n)


def split(layout: Layout, parts: Layout | Uneven) -> Layout | Uneven:
    """Every communicator of layout split into parts, which hold its ranks."""
    if isinstance(parts, Layout):
        return layout.regrouped(parts.members)
    return Uneven(tuple(tuple(int(row[r]) for r in part) for row in layout.members for part in parts.groups), layout.n)


@lru_cache(maxsize=256)
def listed(groups: Groups) -> Layout | Uneven:
    """Communicators given as lists of axis indices; they must cover 0..n-1 exactly once."""
    if not groups or not all(groups):
        raise ArgumentError(f"groups={shown(groups)}: expected at least one group, none of them empty")
    n = sum(len(group) for group in groups)
    seen: set[int] = set()
    for group in groups:
        for rank in group:
            if not 0 <= rank < n:
                raise ArgumentError(
                    f"rank {shown(rank)} in groups is out of range; {n} ranks are listed, expected 0 to {n - 1}"
                )
            if rank in seen:
                raise ArgumentError(f"rank {rank} stands twice in groups; every rank belongs to exactly one group")
            seen.add(rank)
    return of_groups(groups, n)
