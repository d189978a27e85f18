"""Counts what a per-device function communicates: steps, permutes and rounds are different figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params

from hccljax.errors import ArgumentError
from hccljax.schedule.messages import Messages, Ranks, messages_of
from hccljax.schedule.walk import Walker


@dataclass(frozen=True)
class Counts:
    """What a per-device function communicates, unused results left out.

    Attributes:
      steps: communications on the longest chain in which each needs the one before: what latency pays. A
        full-mesh exchange is one.
      permutes: permutes executed, loop bodies times their trips; each of several independent ones counts.
      exchanges: full-mesh communications executed: all-to-all, all-gather, psum, ….
      rounds: when the last message ends, if each takes 1 from the moment its sender has the value and both
        ports are free, in program order; a rank sends one and receives one at a time. A full-mesh exchange
        among p ranks takes p - 1.
      bytes_sent: bytes sent by the rank that sends most; what a rank sends to itself is free. ``psum`` and
        its like count as every rank sending its operand to every other: how XLA does it is not visible.
    """

    steps: int
    permutes: int
    exchanges: int
    rounds: int
    bytes_sent: int


def count(fn: Callable[..., Any], *args: Any, axis_sizes: Mapping[str, int]) -> Counts:
    """Counts the communication of a per-device function by tracing it; nothing runs and no device is needed.

    Args:
      fn: a function as it stands inside ``jax.shard_map``, or one that calls ``jax.shard_map`` itself. What
        ``jax.vmap`` maps inside fn stays on one device and does not count.
      args: its arguments: pytrees of arrays or ``jax.ShapeDtypeStruct``, with one device's shapes.
      axis_sizes: sizes of the mapped axes. Ranks are numbered by flattening them in this order, the last one
        changing fastest; a communication over some of them happens at once for every index of the others.

    Raises:
      ArgumentError: what is communicated is not known while tracing: by a while loop of unknown length, or by
        a ``cond`` whose branches do not communicate alike.

    >>> swap = lambda x: jax.lax.ppermute(x, "rank", [(0, 1), (1, 0)])
    >>> count(swap, jax.ShapeDtypeStruct((256,), "float32"), axis_sizes={"rank": 2})
    Counts(steps=1, permutes=1, exchanges=0, rounds=1, bytes_sent=1024)
    """
    sizes = _checked_sizes(axis_sizes)
    traced = jax.make_jaxpr(fn, axis_env=list(sizes.items()))(*args).jaxpr
    sizes = _with_inner_axes(traced, sizes)
    ports = _Ports(Ranks(sizes))
    Walker(ports, sizes).walk(traced, [ports.nothing] * len(traced.invars), [True] * len(traced.outvars))
    return ports.counts()


def _checked_sizes(axis_sizes: Mapping[str, int]) -> dict[str, int]:
    sizes = dict(axis_sizes) if isinstance(axis_sizes, Mapping) else {"": 0}
    if not all(isinstance(size, int) and size > 0 for size in sizes.values()):
        raise ArgumentError(f"axis_sizes={axis_sizes!r}: expected axis names and their sizes, such as {{'rank': 8}}")
    return sizes


def _with_inner_axes(jaxpr: Jaxpr, sizes: dict[str, int]) -> dict[str, int]:
    """The axis sizes with the axes of every shard_map inside added."""
    sizes = dict(sizes)
    for equation in jaxpr.eqns:
        if equation.primitive.name == "shard_map":
            shape, manual = equation.params["mesh"].shape, equation.params["newly_manual_axes"]
            for axis in (axis for axis in shape if axis in manual):
                if sizes.setdefault(axis, shape[axis]) != shape[axis]:
                    raise ArgumentError(
                        f"axis {axis!r} has size {shape[axis]} in a shard_map inside, else {sizes[axis]}; "
                        f"expected one size for each axis: leave out of axis_sizes what shard_map maps"
                    )
        for inner in jaxprs_in_params(equation.params):
            sizes = _with_inner_axes(inner, sizes)
    return sizes


@dataclass(frozen=True, eq=False)
class _Ready:
    """When a value is there: after how many dependent communications, and at which time on each rank [n]."""

    depth: int
    times: np.ndarray

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Ready):
            return NotImplemented
        return self is other or (self.depth == other.depth and np.array_equal(self.times, other.times))

    def later(self, other: _Ready) -> _Ready:
        """When both values are there."""
        return _Ready(max(self.depth, other.depth), np.maximum(self.times, other.times))


class _Ports:
    """Reads communications as messages of length 1 through one send and one receive port on each rank."""

    def __init__(self, ranks: Ranks):
        self.ranks = ranks
        self.nothing = _Ready(0, np.zeros(ranks.n, np.int64))
        self.history: list[Messages] = []
        self.steps = 0
        # When each rank's ports are free again, and the bytes that it has sent: [n] each.
        self.sending, self.receiving, self.sent = (np.zeros(ranks.n, np.int64) for _ in range(3))
        self.known: dict[int, tuple[JaxprEqn, Messages]] = {}

    def join(self, values: Sequence[_Ready]) -> _Ready:
        """Local computation takes no time and starts when the last operand is there."""
        distinct = {id(value): value for value in values if value is not self.nothing}
        return reduce(_Ready.later, distinct.values()) if distinct else self.nothing

    def communicate(self, equation: JaxprEqn, operand: _Ready) -> _Ready:
        """Sends every message as soon as the operand is at its sender and both ports are free."""
        messages = self._messages(equation)
        times = np.zeros_like(operand.times)  # a rank that receives nothing has its zeros from the start
        times[messages.stays] = operand.times[messages.stays]
        for sources, destinations in messages.rounds():
            ready = np.maximum(operand.times[sources], self.sending[sources])
            ends = np.maximum(ready, self.receiving[destinations]) + 1
            self.sending[sources] = self.receiving[destinations] = ends
            times[destinations] = np.maximum(times[destinations], ends)
            self.sent[sources] += messages.nbytes
        self.history.append(messages)
        self.steps = max(self.steps, operand.depth + 1)
        return _Ready(operand.depth + 1, times)

    def fork(self) -> _Ports:
        """A copy that goes on by itself."""
        other = copy(self)
        other.history = list(self.history)
        other.sending, other.receiving = self.sending.copy(), self.receiving.copy()
        other.sent = self.sent.copy()
        return other

    def counts(self) -> Counts:
        """The figures of everything so far."""
        permutes = sum(messages.members is None for messages in self.history)
        return Counts(
            steps=self.steps,
            permutes=permutes,
            exchanges=len(self.history) - permutes,
            rounds=int(self.sending.max()),
            bytes_sent=int(self.sent.max()),
        )

    def _messages(self, equation: JaxprEqn) -> Messages:
        # A loop's body is read once for each trip; the equation is kept, so that its id stays its own.
        if id(equation) not in self.known:
            self.known[id(equation)] = (equation, messages_of(equation, self.ranks))
        return self.known[id(equation)][1]
