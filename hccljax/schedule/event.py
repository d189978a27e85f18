"""Event: one communication of a schedule, who sends how much to whom in it, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import jax
import numpy as np

from hccljax.layout import Layout, Pattern
from hccljax.schedule.collective import KINDS
from hccljax.schedule.ranks import Ranks
from hccljax.schedule.source import Source

COMPUTE = "compute"
"""The kind of an event that is no communication, but a computation of every rank."""

Ref = int
"""What a value depends on: an event by its index (0, 1, …), or a carry by its number (-1, -2, …)."""


@dataclass(frozen=True, eq=False)
class Event:
    """One communication, executed ``trips`` times: by every communicator of its layout at once.

    Attributes:
      index: its place in the program order.
      kind: "permute", "mesh_exchange", "mesh_gather", "psum", "all_gather", "all_to_all", ….
      primitive: JAX's name of the primitive.
      label: the algorithm's name for the step; "" where the primitive carries none.
      operands: shape and dtype of what one rank puts in.
      nbytes: bytes of each message; those that a computation moves in memory.
      flops: operations of a computation; 0 for a communication.
      pattern: who sends to whom inside a communicator, in its ranks; None if everybody does to everybody.
      axes: the axis names that are communicated over, in the order in which the layout numbers them.
      layout: the partition of the axes' indices into communicators.
      ranks: the numbering of all ranks.
      source: the line of the user's code; None if it is not known.
      loop: the index of the innermost loop it belongs to, or None.
      trips: how often it is executed: the trips of all loops around it multiplied.
      inputs: the events and carries whose results its operand is computed from, without what those needed.
      needs: the events whose results it uses, of the same trip, or executed before its loop.
      carried: the events whose results of an earlier trip it uses.
      stream: the chain of dependent communications that it belongs to (see ``Schedule``); -1 for a computation.
    """

    index: int
    kind: str
    primitive: str
    label: str
    operands: tuple[jax.ShapeDtypeStruct, ...]
    nbytes: int
    pattern: Pattern | None
    axes: tuple[str, ...]
    layout: Layout
    ranks: Ranks = field(repr=False)
    source: Source | None = None
    loop: int | None = None
    trips: int = 1
    inputs: frozenset[Ref] = frozenset()
    needs: tuple[int, ...] = ()
    carried: tuple[int, ...] = ()
    stream: int = 0
    flops: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first operand on one rank; () for a computation."""
        return tuple(self.operands[0].shape) if self.operands else ()

    @property
    def dtype(self) -> np.dtype | None:
        """The dtype of the first operand; None for a computation."""
        return self.operands[0].dtype if self.operands else None

    @property
    def is_communication(self) -> bool:
        """False for a computation."""
        return self.kind != COMPUTE

    @property
    def is_permute(self) -> bool:
        """True if a rank sends one message at most; False for a full-mesh exchange."""
        return self.pattern is not None

    @property
    def reduces(self) -> bool:
        """True if receivers combine what they get: by the kind, or by a label with ``reduce`` in it."""
        return "reduce" in self.label or (self.kind in KINDS and bool(KINDS[self.kind].reduction))

    @property
    def members(self) -> np.ndarray:
        """The ranks of each communicator, [communicators, p]."""
        along = self.ranks.along(self.axes)
        return along[:, self.layout.members].reshape(-1, self.layout.p)

    @property
    def messages(self) -> np.ndarray:
        """(source, destination) ranks [m, 2], what a rank sends to itself left out.

        A permute has at most one message from and to a rank; a full-mesh exchange has p - 1 of them.
        """
        return np.concatenate([np.zeros((0, 2), np.int64), *(np.stack(pair, 1) for pair in self.rounds())])

    def rounds(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(sources, destinations), each rank at most once in both: messages that can travel together."""
        if self.pattern is not None:
            pairs = self._pairs()
            moving = pairs[pairs[:, 0] != pairs[:, 1]]
            yield moving[:, 0], moving[:, 1]
        else:
            members = self.members
            for k in range(1, self.layout.p):
                yield members.reshape(-1), np.roll(members, -k, axis=1).reshape(-1)

    @cached_property
    def stays(self) -> np.ndarray:
        """The ranks that keep something of their own."""
        if self.pattern is None:
            return self.members.reshape(-1)
        pairs = self._pairs()
        return pairs[pairs[:, 0] == pairs[:, 1], 0]

    @property
    def sends(self) -> np.ndarray:
        """Messages that each rank sends in one execution, [n]."""
        if self.pattern is None:
            return np.bincount(self.members.reshape(-1), minlength=self.ranks.n) * (self.layout.p - 1)
        pairs = self._pairs()
        return np.bincount(pairs[pairs[:, 0] != pairs[:, 1], 0], minlength=self.ranks.n)

    def alike(self, other: Event) -> bool:
        """True if the other one is executed as often and sends the same messages by the same primitive."""
        if (self.primitive, self.nbytes, self.trips) != (other.primitive, other.nbytes, other.trips):
            return False
        if (self.axes, self.pattern, self.layout) == (other.axes, other.pattern, other.layout):
            return True
        if self.pattern is None or other.pattern is None:
            return self.pattern is other.pattern and np.array_equal(self.members, other.members)
        return np.array_equal(self._pairs(), other._pairs())

    def _pairs(self) -> np.ndarray:
        if self.pattern is None:
            return np.zeros((0, 2), np.int64)
        return self.members[:, self.pattern.pairs(self.layout.p)].reshape(-1, 2)

    def __str__(self) -> str:
        if not self.is_communication:
            return f"{'' if self.trips == 1 else f'{self.trips:,} × '}compute, {self.flops:,.0f} operations"
        times = "" if self.trips == 1 else f"{self.trips:,} × "
        label = f" {self.label}" if self.label else ""
        who = "" if self.pattern is None else f" {self.pattern}"
        where = "" if self.source is None else f", {self.source.short}"
        return f"{times}{self.kind}{label}{who}, {self.nbytes:,} bytes a message{where}"


@dataclass(frozen=True)
class Carry:
    """A value that a loop hands from one trip to the next, as what it depends on.

    Attributes:
      number: how events and other carries refer to it: below zero. Inside the loop it stands for the value at the
        start of the trip, after the loop for the value at the end.
      first: what it depends on before the first trip.
      update: what it depends on after each trip.
    """

    number: Ref
    first: frozenset[Ref]
    update: frozenset[Ref]


@dataclass(frozen=True)
class Loop:
    """A loop of known length that communicates.

    Attributes:
      index: its place among the loops of the schedule, outer loops before inner ones.
      trips: how often its body runs each time.
      parent: the index of the loop around it, or None.
      events: the indices of the events in its body, inner loops included.
      carries: the values it hands on.
    """

    index: int
    trips: int
    parent: int | None
    events: range
    carries: tuple[Carry, ...] = ()
