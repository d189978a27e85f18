"""ComputingRecorder: a recorder that also notes what a rank computes between its communications."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jax.extend.core import Jaxpr, JaxprEqn

from hccljax.layout import whole
from hccljax.schedule.carries import Refs
from hccljax.schedule.event import COMPUTE, Event
from hccljax.schedule.ranks import Ranks
from hccljax.schedule.recorder import Recorder
from hccljax.schedule.source import Source
from hccljax.schedule.walk import Body, Branch
from hccljax.schedule.work import Work, traffic_of, work_of


class ComputingRecorder(Recorder):
    """Records computations as events of kind "compute".

    A rank has one compute unit, which takes the equations in program order. Each is an event here; ``coalesced`` joins
    those that nobody can tell apart. So what is computed early can be sent while the unit goes on.
    """

    def __init__(self, ranks: Ranks):
        super().__init__(ranks)
        self._moved: dict[int, float] = {}  # bytes of each equation, by its id
        self._kept: dict[int, Jaxpr] = {}  # so that ids stay those of their equations
        self._aside: Work | None = None  # inside branches: what they compute, all together
        self._outside = 0  # loops around those branches
        self._costliest = Work()

    def enter(self, jaxpr: Jaxpr) -> None:
        """Learns how much memory the equations of a jaxpr move."""
        if id(jaxpr) not in self._kept:
            self._kept[id(jaxpr)] = jaxpr
            self._moved.update(traffic_of(jaxpr))

    def local(self, equation: JaxprEqn, operands: Sequence[Refs]) -> Refs:
        """Adds the equation to the computation, if it is any work."""
        work, refs = work_of(equation, self._moved), self.join(operands)
        if not work.flops and not work.nbytes:
            return refs
        if self._aside is not None:
            trips = math.prod(loop.trips for loop in self._around[self._outside :])
            self._aside = self._aside.plus(work.times(trips))
            return refs
        return self._computed(work, refs)

    def _computed(self, work: Work, refs: Refs) -> Refs:
        self.events.append(self._event(work, refs))
        return frozenset({len(self.events) - 1})

    def _event(self, work: Work, refs: Refs) -> Event:
        return Event(
            index=len(self.events),
            kind=COMPUTE,
            primitive=COMPUTE,
            label="",
            operands=(),
            nbytes=round(work.nbytes),
            flops=work.flops,
            pattern=None,
            axes=(),
            layout=whole(1),
            ranks=self.ranks,
            loop=self._around[-1].index if self._around else None,
            trips=self._trips,
            inputs=refs,
        )

    @property
    def _trips(self) -> int:
        return math.prod(loop.trips for loop in self._around)

    def loop(self, trips: int, body: Body[Refs], carry: Sequence[Refs], stacked: int) -> list[Refs]:
        """A loop that only computes is one computation, all its trips together."""
        events, loops = len(self.events), len(self.loops)
        out = super().loop(trips, body, carry, stacked)
        found = self.events[events:]
        if not found or any(event.kind != COMPUTE for event in found):
            return out
        inside = {one.number for loop in self.loops[loops:] for one in loop.carries}
        del self.events[events:], self.loops[loops:]
        total = Work()
        for event in found:
            total = total.plus(Work(event.flops, event.nbytes).times(event.trips / self._trips))
        needed = frozenset(ref for event in found for ref in event.inputs if ref < events and ref not in inside)
        refs = self._computed(total, self.join([*carry, needed]))
        return [refs] * len(out)

    def alternatives(self, branches: Sequence[Branch[Refs]], source: Source | None) -> list[list[Refs]]:
        """Branches that communicate alike; what the costliest one computes follows its communications."""
        around, self._outside = self._outside, len(self._around)
        outer, self._aside = self._aside, Work()
        outputs = super().alternatives(branches, source)
        work, self._aside, self._outside = self._costliest, outer, around
        if outer is not None:
            self._aside = outer.plus(work)
        elif work.flops or work.nbytes:
            done = self._computed(work, self.join([ref for branch in outputs for ref in branch]))
            outputs = [[done] * len(branch) for branch in outputs]
        return outputs

    def _walked(self, branches: Sequence[Branch[Refs]], unrolling: bool) -> tuple[list[Recorder], list[list[Refs]]]:
        forks, outputs = super()._walked(branches, unrolling)
        self._costliest = max(fork._aside or Work() for fork in forks if isinstance(fork, ComputingRecorder))
        return forks, outputs
