"""Records the communications of a walk as events and loops, with what each of them depends on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import count

from jax.extend.core import Jaxpr, JaxprEqn

from hccljax.errors import ArgumentError
from hccljax.schedule.carries import Refs, last_values
from hccljax.schedule.event import Carry, Event, Loop, Ref
from hccljax.schedule.ranks import Ranks
from hccljax.schedule.reading import event_of
from hccljax.schedule.source import Source, at
from hccljax.schedule.walk import Body, Branch

_NOTHING: Refs = frozenset()
_LONGEST = 10_000  # events; branches with different loops are compared trip by trip, up to here


class Recorder:
    """An interpretation of a walk (see ``Interpretation``) that keeps loops as loops."""

    nothing = _NOTHING

    def __init__(self, ranks: Ranks):
        self.ranks = ranks
        self.events: list[Event] = []
        self.loops: list[Loop] = []
        self._around: list[Loop] = []
        self._numbers: Iterator[Ref] = count(-1, -1)  # shared with every fork: each carry has its own
        self._unrolling = False

    def enter(self, jaxpr: Jaxpr) -> None:
        """Nothing is to be learnt of a jaxpr."""

    def local(self, equation: JaxprEqn, operands: Sequence[Refs]) -> Refs:
        """What a rank computes takes no time: the result depends on all operands."""
        return self.join(operands)

    def join(self, values: Sequence[Refs]) -> Refs:
        """A local computation depends on all its operands."""
        distinct = {value for value in values if value}
        return next(iter(distinct)) if len(distinct) == 1 else _NOTHING.union(*distinct)

    def communicate(self, equation: JaxprEqn, operand: Refs, source: Source | None) -> Refs:
        """Records the event; its result depends on nothing else."""
        index, trips = len(self.events), math.prod(loop.trips for loop in self._around)
        loop = self._around[-1].index if self._around else None
        self.events.append(
            event_of(equation, self.ranks, index=index, source=source, loop=loop, trips=trips, inputs=operand)
        )
        return frozenset({index})

    def loop(self, trips: int, body: Body[Refs], carry: Sequence[Refs], stacked: int) -> list[Refs]:
        """Walks the body once, each carried value standing for itself; a silent loop leaves no trace."""
        if trips < 2:
            return body(list(carry)) if trips else [*carry, *[_NOTHING] * stacked]
        events, loops = len(self.events), len(self.loops)
        numbers = [next(self._numbers) for _ in range(len(carry) + stacked)]
        parent = self._around[-1].index if self._around else None
        self.loops.append(Loop(loops, trips, parent, range(events, events)))
        self._around.append(self.loops[-1])
        after = body([frozenset({number}) for number in numbers[: len(carry)]])
        self._around.pop()
        # A stacked output holds something of every trip: it depends on what it did before, and on this trip.
        stacks = zip(after[len(carry) :], numbers[len(carry) :], strict=True)
        after = [*after[: len(carry)], *(value | {number} for value, number in stacks)]
        first = [*carry, *[_NOTHING] * stacked]
        carries = tuple(Carry(*values) for values in zip(numbers, first, after, strict=True))
        if len(self.events) == events:
            del self.loops[loops:]
            return last_values(carries, trips)
        if self._unrolling:
            del self.events[events:], self.loops[loops:]
            return self._unrolled(trips, body, carry, stacked)
        self.loops[loops] = replace(self.loops[loops], events=range(events, len(self.events)), carries=carries)
        return [frozenset({number}) for number in numbers]

    def _unrolled(self, trips: int, body: Body[Refs], carry: Sequence[Refs], stacked: int) -> list[Refs]:
        values, stacks = list(carry), [_NOTHING] * stacked
        for _ in range(trips):
            out = body(values)
            values, stacks = out[: len(carry)], [a | b for a, b in zip(stacks, out[len(carry) :], strict=True)]
        return [*values, *stacks]

    def alternatives(self, branches: Sequence[Branch[Refs]], source: Source | None) -> list[list[Refs]]:
        """Records the branches as one: an event needs whatever it needs in any of them."""
        forks, outputs = self._walked(branches, self._unrolling)
        start = len(self.events)
        if any(not forks[0]._same_shape(fork, start) for fork in forks) and all(
            sum(event.trips for event in fork.events[start:]) <= _LONGEST for fork in forks
        ):
            forks, outputs = self._walked(branches, True)
        for k, fork in enumerate(forks):
            if not forks[0]._same_shape(fork, start):
                raise ArgumentError(self._difference(forks[0], k, fork, source))
        self.events = [_merged_events(same) for same in zip(*(fork.events for fork in forks), strict=True)]
        self.loops = [_merged_loops(same) for same in zip(*(fork.loops for fork in forks), strict=True)]
        return outputs

    def _walked(self, branches: Sequence[Branch[Refs]], unrolling: bool) -> tuple[list[Recorder], list[list[Refs]]]:
        forks = [copy(self) for _ in branches]
        for fork in forks:
            fork.events, fork.loops, fork._around = list(self.events), list(self.loops), list(self._around)
            fork._unrolling = unrolling
        return forks, [branch(fork) for branch, fork in zip(branches, forks, strict=True)]

    def _same_shape(self, other: Recorder, start: int) -> bool:
        """True if the events from start on, and the loops, are alike."""
        return (
            len(self.events) == len(other.events)
            and [(loop.trips, loop.parent, loop.events) for loop in self.loops]
            == [(loop.trips, loop.parent, loop.events) for loop in other.loops]
            and all(mine.alike(its) for mine, its in zip(self.events[start:], other.events[start:], strict=True))
        )

    def _difference(self, first: Recorder, k: int, other: Recorder, source: Source | None) -> str:
        start = len(self.events)
        names = [
            ", ".join(f"{event.primitive!r} ({event})" for event in fork.events[start : start + 5])
            + (f", … {len(fork.events) - start} in all" if len(fork.events) > start + 5 else "")
            for fork in (first, other)
        ]
        return (
            f"{at(source)}'cond' with branches that do not communicate alike: branch 0 runs {names[0] or 'nothing'}; "
            f"branch {k} runs {names[1] or 'nothing'}; expected the same communications in every branch, else ranks "
            f"that take different ones wait for each other: communicate outside lax.cond, and select the result"
        )


def _merged_events(same: tuple[Event, ...]) -> Event:
    inputs = _NOTHING.union(*(event.inputs for event in same))
    return same[0] if inputs == same[0].inputs else replace(same[0], inputs=inputs)


def _merged_loops(same: tuple[Loop, ...]) -> Loop:
    carries = {carry.number: carry for loop in same for carry in loop.carries}
    return replace(same[0], carries=tuple(carries.values()))
