"""Terms: where a value comes from, as a number. Equal runs of elements share a term, so that counting stays exact.

A value held by a rank is an int64 *code*: the term in the upper half, the index of the element it stands for in the
lower half. Terms 0 to 4 are no contribution, the next p are the contributions of the ranks, all others join two terms.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from hccljax.errors import UnsupportedError
from hccljax.reduction import Reduction

PADDING, UNRECEIVED, IDENTITY, CONSTANT, UNSET = range(5)
"""No contributions: a zero the kernel wrote, a zero of a permute that brought nothing, the neutral value of the
reduction, any other constant, memory that was never written."""

FIRST = 5
"""The term of rank 0's contribution."""

SPOKEN = {
    PADDING: "a constant zero",
    UNRECEIVED: "a zero that stands where nothing was received",
    IDENTITY: "the neutral value of the reduction",
    CONSTANT: "a constant",
    UNSET: "memory that was never written",
}

COMBINES = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
"""The primitive that combines two contributions, for each reduction."""

SHIFT = 32
INDEX = (1 << SHIFT) - 1
EXACT_UP_TO = 128
"""Ranks up to which contributors are counted one by one; beyond, a sum carries the sum of random 64-bit labels."""

_WRONG = np.uint8(1)  # joined by another operation, with something that is no contribution, or across elements


@dataclass(frozen=True)
class Contents:
    """What a value is made of.

    Attributes:
      contributions: how often each (contributor, element) is in it.
      others: the terms in it that are no contribution.
      operations: primitives that joined them and are not the reduction's.
    """

    contributions: Counter[tuple[int, int]] = field(default_factory=Counter)
    others: frozenset[int] = frozenset()
    operations: frozenset[str] = frozenset()


class Terms:
    """The terms of one proof; they only grow."""

    def __init__(self, p: int, op: Reduction | None):
        self.p, self.op = p, op
        self.primitive = None if op is None else COMBINES[op.name]
        self.counting = op is not None and op.name in ("sum", "prod")
        self.exact = not self.counting or p <= EXACT_UP_TO
        self.count = FIRST + p
        # Of a joined term: what it joins, how far right's element is from left's, and by which primitive.
        self._left, self._right, self._apart = (np.zeros(self.count, np.int64) for _ in range(3))
        self._by: list[tuple[int, str]] = []
        self._wrong = np.zeros(self.count, np.uint8)
        self._wrong[:FIRST] = _WRONG
        self._seen, self._twice = self._first_measures()

    def _first_measures(self) -> tuple[np.ndarray, np.ndarray]:
        """[terms, words]: contributors as bits (once, and more than once), or the labels that stand for them."""
        if not self.exact:
            seen = np.zeros((self.count, 1), np.uint64)
            seen[FIRST:, 0] = np.random.default_rng().integers(1, 1 << 64, self.p, np.uint64)
        else:
            seen = np.zeros((self.count, -(-self.p // 64)), np.uint64)
            ranks = np.arange(self.p)
            seen[FIRST + ranks, ranks // 64] = np.uint64(1) << (ranks % 64).astype(np.uint64)
        self.everybody = seen[FIRST:].sum(0, dtype=np.uint64)
        return seen, np.zeros_like(seen if self.exact else seen[:, :0])

    def constant(self, value: np.ndarray) -> np.ndarray:
        """The codes of values that the kernel wrote itself."""
        term = np.where(value == 0, PADDING, CONSTANT)
        identity = {"prod": 1, "max": -np.inf, "min": np.inf}.get("" if self.op is None else self.op.name)
        if identity is not None:
            largest = np.finfo(np.float32).max if np.isinf(identity) else 0
            neutral = (value == identity) | (bool(largest) & (value == np.sign(identity) * largest))
            term = np.where(neutral, IDENTITY, term)
        return term.astype(np.int64) << SHIFT

    def combine(self, left: np.ndarray, right: np.ndarray, primitive: str) -> np.ndarray:
        """The codes of primitive(left, right)."""
        try:
            left, right = np.broadcast_arrays(left, right)
        except ValueError:
            raise UnsupportedError(
                f"{primitive} of what a kernel holds and a value that depends on the rank cannot be followed; expected "
                f"it to select by the rank (jnp.where), not to reckon with it"
            ) from None
        one, two = left >> SHIFT, right >> SHIFT
        if not one.size or (one.min() >= FIRST and two.min() >= FIRST):
            return self._join(left, right, one, two, primitive)
        out = np.full(left.shape, -1, np.int64)
        zeros = (one <= UNRECEIVED) & (two <= UNRECEIVED)  # 0 + 0, 0 * 0, max(0, 0)
        out[zeros] = np.maximum(left, right)[zeros]
        for term, other in ((one, right), (two, left)):
            neutral = (out < 0) & self.is_neutral(term, primitive)
            out[neutral] = other[neutral]
        todo = out < 0
        out[todo] = self._join(left[todo], right[todo], one[todo], two[todo], primitive)
        return out

    def is_neutral(self, term: np.ndarray | int, primitive: str) -> np.ndarray:
        """True for terms that leave the other operand of primitive as it is; zero does under addition only."""
        term = np.asarray(term)
        return ((primitive == self.primitive) & (term == IDENTITY)) | ((primitive == "add") & (term <= UNRECEIVED))

    def _join(
        self, left: np.ndarray, right: np.ndarray, one: np.ndarray, two: np.ndarray, primitive: str
    ) -> np.ndarray:
        shape = left.shape
        left, right, one, two = (array.reshape(-1) for array in (left, right, one, two))
        index = np.where(one >= FIRST, left, right) & INDEX
        apart = np.where((one >= FIRST) & (two >= FIRST), (right & INDEX) - (left & INDEX), 0)
        lengths = None
        if one.size > 2048:  # whole blocks are alike: sort the runs, not the elements
            changes = (np.diff(one) != 0) | (np.diff(two) != 0) | (np.diff(apart) != 0)
            starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
            lengths = np.diff(starts, append=one.size)
            one, two, apart = one[starts], two[starts], apart[starts]
        key = one * self.count + two
        if apart.any():
            key = np.unique(key, return_inverse=True)[1]
            key = key * (2 * (INDEX + 1)) + apart + INDEX
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        terms = self._new(one[first], two[first], apart[first], primitive)[inverse]
        if lengths is not None:
            terms = np.repeat(terms, lengths)
        return ((terms << SHIFT) | index).reshape(shape)

    def _new(self, one: np.ndarray, two: np.ndarray, apart: np.ndarray, primitive: str) -> np.ndarray:
        first, self.count = self.count, self.count + len(one)
        if self.count > len(self._left):
            self._grow()
        new = slice(first, self.count)
        self._left[new], self._right[new], self._apart[new] = one, two, apart
        self._by.append((first, primitive))
        foreign = (apart != 0) | (primitive != self.primitive)
        self._wrong[new] = self._wrong[one] | self._wrong[two] | foreign * _WRONG
        seen = self._seen
        if not self.exact:
            seen[new] = seen[one] + seen[two]
            return np.arange(first, self.count)
        self._twice[new] = self._twice[one] | self._twice[two] | (seen[one] & seen[two])
        seen[new] = seen[one] | seen[two]
        return np.arange(first, self.count)

    def _grow(self) -> None:
        for name in ("_left", "_right", "_apart", "_wrong", "_seen", "_twice"):
            old = getattr(self, name)
            grown = np.zeros((2 * self.count, *old.shape[1:]), old.dtype)
            grown[: len(old)] = old
            setattr(self, name, grown)

    def complete(self, codes: np.ndarray) -> np.ndarray:
        """True where every rank has contributed: exactly once to a sum or product, at least once to max and min."""
        terms = codes >> SHIFT
        whole = (self._seen[terms] == self.everybody).all(-1) & (self._wrong[terms] == 0)
        return whole & (self._twice[terms] == 0).all(-1) if self.counting else whole

    def contents(self, code: int) -> Contents:
        """Everything in one value, counted exactly."""
        term, index = code >> SHIFT, code & INDEX
        reached, todo = {term}, [term]
        while todo:
            node = todo.pop()
            if node >= FIRST + self.p:
                children = {int(self._left[node]), int(self._right[node])} - reached
                reached |= children
                todo += children
        counted: dict[int, Counter[tuple[int, int]]] = {}
        for node in sorted(reached):  # a term is younger than those it joins
            counted[node] = Counter()
            if FIRST <= node < FIRST + self.p:
                counted[node][node - FIRST, 0] = 1
            elif node >= FIRST:
                counted[node].update(counted[int(self._left[node])])
                for (rank, offset), times in counted[int(self._right[node])].items():
                    counted[node][rank, offset + int(self._apart[node])] += times
        starts = [first for first, _ in self._by]
        joined = [np.searchsorted(starts, node, "right") - 1 for node in reached if node >= FIRST + self.p]
        return Contents(
            Counter({(rank, index + offset): times for (rank, offset), times in counted[term].items()}),
            frozenset(node for node in reached if node < FIRST),
            frozenset(self._by[k][1] for k in joined) - {self.primitive},
        )
