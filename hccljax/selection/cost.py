"""Policy ``cost``, which ``algorithm="fastest"`` asks: the algorithm with the least predicted time on the topology.

Every registered algorithm that has the operator is a candidate, and one hierarchy: that of the fastest algorithm for
each tier. Times are those of ``hccljax.simulate``; those of mesh, star and pairwise on many ranks are closed forms.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hccljax.algorithm import Algorithm, base, hierarchy, registered
from hccljax.algorithm.base import COMPOSED, Cost
from hccljax.algorithm.hierarchical import serves
from hccljax.algorithm.slicing import fillings
from hccljax.errors import HcclError, UnreachableError
from hccljax.selection.policies import Question, register_policy
from hccljax.selection.substitute import lack
from hccljax.timing.exchange import EXCHANGES, LARGEST, exchange_seconds
from hccljax.timing.kernel import kernel_level_bytes, kernel_seconds
from hccljax.topology import Topology, with_figures

GRID = tuple(1 << k for k in range(8, 33))
"""Message sizes in bytes at which all candidates are timed once; in between, times are read off straight lines."""

CLOSE = 1.1
"""Candidates within this factor of the fastest on those lines are timed for the very size that is asked for."""


@dataclass(frozen=True)
class Field:
    """The candidates for one operator on one topology.

    Attributes:
      operator: such as ``"all_reduce"``.
      topology: with levels; all its ranks take part.
      buffer: bytes above which a message is sent in slices (HCCL_BUFFSIZE).
    """

    operator: str
    topology: Topology
    buffer: int

    @property
    def p(self) -> int:
        """Ranks."""
        return self.topology.ranks

    def flat(self) -> dict[str, Algorithm]:
        """The algorithms that work on all ranks together, by name."""
        found = {}
        for name in base.algorithms():
            record = registered(name)
            if name == "native" or lack(self.operator, record) is not None:
                continue
            if record.over is not None and len(self.topology.sizes) == 1 and self.topology.servers is None:
                continue  # on one level it is another algorithm of this list
            if record.over is not None and self.topology.servers is not None:
                if record.over_servers is None:
                    continue
                record = record.over_servers(self.topology.servers)
            elif record.over is not None:
                record = record.over(self.topology.sizes)
            found[name] = record
        return found

    def seconds(self, record: Algorithm, sizes: Sequence[int]) -> np.ndarray:
        """What an algorithm takes on all ranks for messages of several sizes: [sizes]; inf if it cannot run."""
        counts = [fillings(nbytes, self.buffer) for nbytes in sizes]
        parts = [-(-n // k) for n, k in zip(sizes, counts, strict=True)]
        try:
            return np.array(counts) * self._unsliced(record, parts)
        except HcclError:  # links that it needs are lost, or its kernel wants another number of ranks
            return np.full(len(sizes), np.inf)

    def _unsliced(self, record: Algorithm, sizes: Sequence[int]) -> np.ndarray:
        if record.name in EXCHANGES and self.p > LARGEST:
            return exchange_seconds(record.name, self.operator, self.p, sizes, self.topology)
        return kernel_seconds(record, self.operator, self.p, sizes, self.topology, self._tiers)

    def cost(self, record: Algorithm, nbytes: int) -> Cost:
        """Steps, and the most bytes that one rank sends, in all slices."""
        count = fillings(nbytes, self.buffer)
        steps, bytes_sent = record.cost(self.operator, self.p, -(-nbytes // count))
        return Cost(count * steps, count * bytes_sent)

    def level_bytes(self, record: Algorithm, nbytes: int) -> tuple[int, ...]:
        """The most bytes that one port carries at each level of the wiring; () where no trace tells."""
        if record.name in EXCHANGES and self.p > LARGEST:
            return ()
        count = fillings(nbytes, self.buffer)
        found = kernel_level_bytes(record, self.operator, self.p, -(-nbytes // count), self.topology, self._tiers)
        return tuple(count * most for most in found)

    @property
    def _tiers(self) -> tuple[int, ...] | None:
        return self.topology.sizes if self.topology.servers is None else None

    def hierarchies(self, sizes: Sequence[int]) -> list[Algorithm | None]:
        """For each size the hierarchy of the fastest algorithm on each tier; None on one tier."""
        tiers = self.topology.sizes
        if len(tiers) < 2 or self.topology.servers is not None:
            return [None] * len(sizes)
        best = [self._fastest_on(k, sizes) for k in range(len(tiers))]
        if not all(best):
            return [None] * len(sizes)
        return [hierarchy(levels, tiers) for levels in zip(*best, strict=True)]

    def _fastest_on(self, k: int, sizes: Sequence[int]) -> list[Algorithm]:
        tiers, top = self.topology.sizes, k == len(self.topology.sizes) - 1
        stride = math.prod(tiers[:k])
        wraps = self.operator in COMPOSED
        parts = COMPOSED[self.operator] if wraps and not top else (self.operator,)
        if self.operator == "all_to_all":
            seen = list(sizes)
        elif wraps:
            seen = [-(-nbytes // stride) for nbytes in sizes]
        else:
            seen = [-(-nbytes * stride * tiers[k] // self.p) for nbytes in sizes]
        times: dict[str, np.ndarray] = {}
        for name in base.algorithms():
            record = registered(name)
            quick = name != "native" and (name not in EXCHANGES or tiers[k] <= LARGEST)
            if quick and serves(record, self.operator, top) and all(record.supports(part) for part in parts):
                with suppress(HcclError):
                    run = [kernel_seconds(record, part, tiers[k], seen, self.topology, None, stride) for part in parts]
                    times[name] = np.sum(run, axis=0)
        if not times:
            return []
        names = list(times)
        return [registered(names[i]) for i in np.argmin(np.stack([times[name] for name in names]), axis=0)]


@dataclass(frozen=True, eq=False)
class Candidate:
    """An algorithm that could run an operator.

    Attributes:
      algorithm: its name, a hierarchy as ``"level0:mesh;level1:NHR"``.
      record: the Algorithm itself.
      seconds: predicted, [sizes].
    """

    algorithm: str
    record: Algorithm
    seconds: np.ndarray


def timed(field: Field, sizes: Sequence[int]) -> list[Candidate]:
    """All candidates with their times for several sizes: algorithms, and each hierarchy that is the one somewhere."""
    records = field.flat()
    records |= {record.name: record for record in field.hierarchies(sizes) if record is not None}
    return [Candidate(name, record, field.seconds(record, sizes)) for name, record in records.items()]


@lru_cache(maxsize=256)
def _table(field: Field, known: int) -> tuple[Candidate, ...]:
    return tuple(timed(field, GRID))


def table(field: Field) -> tuple[Candidate, ...]:
    """All candidates at the sizes of GRID; made once, and anew when algorithms have been registered."""
    return _table(field, base.registered_so_far())


def fastest(field: Field, nbytes: int) -> tuple[Candidate, float, Candidate | None]:
    """(the fastest candidate, its seconds, the next one); timed for this size where straight lines come close.

    Raises:
      UnreachableError: every candidate needs ranks to talk that cannot reach each other.
    """
    lines = sorted(((on_line(one.seconds, nbytes), one) for one in table(field)), key=lambda line: line[0])
    if not math.isfinite(lines[0][0]):
        raise UnreachableError(
            f"{field.operator} on {field.topology}: no algorithm can run, as every one needs ranks to talk that cannot "
            f"reach each other; expected links that connect all ranks"
        )
    near = [(seconds, one) for seconds, one in lines if seconds <= CLOSE * lines[0][0]]
    if len(near) > 1:
        near = [(float(field.seconds(one.record, [nbytes])[0]), one) for _, one in near]
        near.sort(key=lambda line: line[0])
    (seconds, best), *others = near
    others = others or lines[1:]
    return best, seconds, others[0][1] if others else None


def on_line(seconds: np.ndarray, nbytes: int) -> float:
    """The time for a size by the straight line between its neighbours on the grid; beyond the grid, the last line's."""
    k = min(max(bisect_left(GRID, nbytes), 1), len(GRID) - 1)
    low, high = GRID[k - 1], GRID[k]
    at_low, at_high = float(seconds[k - 1]), float(seconds[k])
    if not math.isfinite(at_low) or not math.isfinite(at_high):
        return math.inf
    return at_low + (at_high - at_low) * (nbytes - low) / (high - low)


def field_of(question: Question) -> Field:
    """The candidates for a question; tiers without figures are wired as those of the default preset."""
    return Field(question.operator, with_figures(question.tiers), question.settings.buffer)


@lru_cache(maxsize=4096)
def _chosen(field: Field, nbytes: int, known: int) -> tuple[str, str]:
    best, seconds, other = fastest(field, nbytes)
    against = "" if other is None else f", then {other.algorithm}"
    return best.algorithm, f"least predicted time on {field.topology}: {1e6 * seconds:,.4g} µs{against}"


def _least(question: Question) -> tuple[str | None, str]:
    return _chosen(field_of(question), question.nbytes, base.registered_so_far())


register_policy("cost", _least)
