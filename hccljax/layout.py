"""Which ranks talk to each other: partitions of an axis into communicators, and patterns of permutes inside them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from hccljax.errors import ArgumentError, shown

Pair = tuple[int, int]


@dataclass(frozen=True)
class Shift:
    """Every rank r sends to r + k (mod p): one step of a ring."""

    k: int

    def pairs(self, p: int) -> np.ndarray:
        """The (source, destination) pairs among p ranks, [p, 2]."""
        ranks = np.arange(p)
        return np.stack([ranks, (ranks + self.k % p) % p], 1)

    def inverse(self) -> Shift:
        """The pattern that sends everything back."""
        return Shift(-self.k)


@dataclass(frozen=True)
class Xor:
    """Every rank r exchanges with r XOR mask, where that rank exists: one step of recursive halving."""

    mask: int

    def pairs(self, p: int) -> np.ndarray:
        """The (source, destination) pairs among p ranks, [m, 2]."""
        ranks = np.arange(p)
        pairs = np.stack([ranks, ranks ^ min(self.mask, 2 * p)], 1)  # a mask of 2p or more meets nobody either
        return pairs[pairs[:, 1] < p]

    def inverse(self) -> Xor:
        """The pattern that sends everything back: itself."""
        return self


@dataclass(frozen=True)
class Pairs:
    """Explicit (source, destination) pairs; ranks that are nobody's destination receive zeros."""

    explicit: tuple[Pair, ...]

    def pairs(self, p: int) -> np.ndarray:
        """The (source, destination) pairs among p ranks, [m, 2]."""
        return np.array(self.explicit, np.int64).reshape(-1, 2)

    def inverse(self) -> Pairs:
        """The pattern that sends everything back."""
        return Pairs(tuple((d, s) for s, d in self.explicit))

    def __repr__(self) -> str:
        first = ", ".join(f"{s}→{d}" for s, d in self.explicit[:4])
        return f"Pairs({first}{f', … {len(self.explicit)} in all' if len(self.explicit) > 4 else ''})"


Pattern = Shift | Xor | Pairs


def checked_pairs(pairs: Iterable[Sequence[int]], p: int, where: str = "this communicator") -> tuple[Pair, ...]:
    """The pairs as a tuple, once sources and destinations are known to be unique and inside ``range(p)``."""
    result: list[Pair] = []
    sources: dict[int, Pair] = {}
    destinations: dict[int, Pair] = {}
    try:
        given_pairs = list(pairs)
    except TypeError:
        raise ArgumentError(
            f"pairs={shown(pairs)}: expected a list of pairs of ranks, such as [(0, 1), (1, 0)]"
        ) from None
    for given in given_pairs:
        pair = _as_pair(given)
        for name, rank, seen in (("source", pair[0], sources), ("destination", pair[1], destinations)):
            if not 0 <= rank < p:
                raise ArgumentError(
                    f"pair {shown(pair)}: the {name} {shown(rank)} is not a rank of {where}; "
                    f"expected 0 to {p - 1} (ranks are counted inside the communicator)"
                )
            if rank in seen:
                raise ArgumentError(
                    f"pairs {seen[rank]} and {pair} have the same {name} {rank}; every rank can be the {name} of "
                    f"one pair at most: put the second one in another send_recv"
                )
            seen[rank] = pair
        result.append(pair)
    return tuple(result)


def _as_pair(given: object) -> Pair:
    try:
        source, destination = map(operator.index, given)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise ArgumentError(
            f"{shown(given)} is not a pair of ranks; expected (source, destination), two ints, such as (0, 1)"
        ) from None
    return source, destination


class Layout:
    """Disjoint communicators of p ranks each, on an axis of n indices.

    ``members[c, r]`` is the axis index of rank r of communicator c, shape [communicators, p]. A *partial* layout leaves
    indices out: they run the same program, but take part in no message, and what they compute means nothing.

    Attributes:
      members: the axis indices of all ranks.
      n: indices of the axis.
    """

    def __init__(self, members: np.ndarray, n: int | None = None):
        self.members = np.array(members, dtype=np.int32, order="C")
        self.members.flags.writeable = False  # layouts are cached
        self.n = int(self.members.size) if n is None else n
        self._key = (self.n, self.members.shape, self.members.tobytes())
        self._hash = hash(self._key)

    @property
    def p(self) -> int:
        """Ranks in each communicator."""
        return int(self.members.shape[1])

    @property
    def covers(self) -> bool:
        """True if every index of the axis is in a communicator."""
        return self.members.size == self.n

    @property
    def is_whole(self) -> bool:
        """True if one communicator holds every index (in any order): only then are results replicated."""
        return self.members.shape[0] == 1 and self.covers

    @cached_property
    def is_identity(self) -> bool:
        """True if rank r of the only communicator is axis index r."""
        return self.is_whole and bool((self.members[0] == np.arange(self.n)).all())

    @cached_property
    def ranks(self) -> np.ndarray:
        """Rank inside its communicator of each axis index, shape [n]; 0 for those that are in none."""
        table = np.zeros(self.n, np.int32)
        table[self.members] = np.arange(self.p, dtype=np.int32)
        return table

    @cached_property
    def positions(self) -> np.ndarray:
        """Where each axis index stands in ``members``, flattened, shape [n]; -1 for those that are in none."""
        table = np.full(self.n, -1, np.int32)
        table[self.members.reshape(-1)] = np.arange(self.members.size, dtype=np.int32)
        return table

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The communicators as tuples of axis indices, the form of ``axis_index_groups``."""
        return tuple(tuple(int(i) for i in row) for row in self.members)

    def expand(self, pattern: Pattern) -> list[Pair]:
        """The pattern's pairs in axis indices, for every communicator."""
        pairs = self.members[:, pattern.pairs(self.p)].reshape(-1, 2).tolist()
        return [(source, destination) for source, destination in pairs]

    def rotated(self, root: int) -> Layout:
        """The same communicators with rank ``root`` counted as rank 0."""
        return Layout(np.roll(self.members, -root, axis=1), self.n)

    def regrouped(self, members: np.ndarray) -> Layout:
        """Communicators inside these communicators: ``members`` [c, q] holds ranks, none of them twice."""
        return Layout(self.members[:, members].reshape(-1, members.shape[1]), self.n)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        if self.is_identity:
            return f"Layout({self.p} ranks)"
        return f"Layout({self.members.shape[0]} communicators of {self.p} ranks)"


@lru_cache(maxsize=256)
def whole(n: int) -> Layout:
    """One communicator of all n indices, in order."""
    return Layout(np.arange(n)[None])
