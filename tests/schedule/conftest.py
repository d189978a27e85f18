"""Shared by the tests of schedules: tracing over one axis of four ranks, and the walk that takes every trip."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from hccljax import trace
from hccljax.schedule.ranks import Ranks
from hccljax.schedule.reading import event_of
from hccljax.schedule.walk import Walker


class FullWalk:
    """An interpretation that takes every trip of every loop, one message after the other; a value is (steps, times)."""

    def __init__(self, n):
        self.ranks, self.nothing = n, (0, (0,) * n.n)
        self.sending, self.receiving, self.sent = ([0] * n.n for _ in range(3))
        self.steps = self.permutes = self.exchanges = 0

    def enter(self, jaxpr):
        pass

    def local(self, equation, operands):
        return self.join(operands)

    def join(self, values):
        values = [self.nothing, *values]
        return max(steps for steps, _ in values), tuple(map(max, *(times for _, times in values), self.nothing[1]))

    def communicate(self, equation, operand, source):
        event, (steps, ready) = event_of(equation, self.ranks, index=0), operand
        times = [ready[rank] if rank in set(event.stays.tolist()) else 0 for rank in range(self.ranks.n)]
        for source_rank, destination in event.messages.tolist():
            end = max(ready[source_rank], self.sending[source_rank], self.receiving[destination]) + 1
            self.sending[source_rank] = self.receiving[destination] = end
            times[destination] = max(times[destination], end)
            self.sent[source_rank] += event.nbytes
        self.steps = max(self.steps, steps + 1)
        self.permutes, self.exchanges = self.permutes + event.is_permute, self.exchanges + (not event.is_permute)
        return steps + 1, tuple(times)

    def loop(self, trips, body, carry, stacked):
        carry, stacks = list(carry), [self.nothing] * stacked
        for _ in range(trips):
            out = body(carry)
            carry = out[: len(carry)]
            stacks = [self.join(pair) for pair in zip(stacks, out[len(carry) :], strict=True)]
        return [*carry, *stacks]

    def alternatives(self, branches, source):
        return [branches[0](self)]


@pytest.fixture(scope="session")
def full_walk():
    """(steps, permutes, exchanges, rounds, bytes of each rank) of a function, found without a Schedule."""

    def full_walk(fn, *args, axis_sizes):
        reading = FullWalk(Ranks(axis_sizes))
        jaxpr = jax.make_jaxpr(fn, axis_env=list(axis_sizes.items()))(*args).jaxpr
        Walker(reading, axis_sizes).walk(jaxpr, [reading.nothing] * len(jaxpr.invars), [True] * len(jaxpr.outvars))
        return reading.steps, reading.permutes, reading.exchanges, max(reading.sending), reading.sent

    return full_walk


@pytest.fixture(scope="session")
def figures():
    """The same figures of a schedule."""
    return lambda s: (s.steps, s.permutes, s.exchanges, s.rounds, s.bytes_sent.tolist())


@pytest.fixture(scope="session")
def traced():
    """The schedule of a function of six float32 (24 bytes) on four ranks, or of the arguments and axes given."""

    def traced(fn, *args, **axis_sizes):
        return trace(fn, *(args or (jax.ShapeDtypeStruct((6,), np.float32),)), axis_sizes=axis_sizes or {"r": 4})

    return traced
