"""simulate: how long a schedule takes on a topology."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hccljax.numbers import whole
from hccljax.schedule import Schedule
from hccljax.schedule.collective import KINDS
from hccljax.schedule.event import COMPUTE
from hccljax.schedule.replay import replay
from hccljax.timing.rates import Rates
from hccljax.timing.settling import Settled, Tier, settled
from hccljax.timing.timeline import Timeline
from hccljax.topology import Topology

OPAQUE = tuple(kind for kind, collective in KINDS.items() if collective.opaque)
"""Kinds of collectives that XLA does in its own way."""


@dataclass(frozen=True)
class Simulation:
    """How long a schedule takes on a topology; ``print`` it for a summary.

    Attributes:
      seconds: until the last message has arrived and is combined, and the last computation is done.
      computing: seconds for which the busiest rank computes.
      tiers: what each level of the wiring had to do, the innermost first.
      assumptions: what the figures rest on, a sentence each.
    """

    seconds: float
    computing: float
    tiers: tuple[Tier, ...]
    assumptions: tuple[str, ...]
    _run: Settled = field(repr=False, compare=False)

    @property
    def exposed(self) -> float:
        """Seconds that communication adds to the computation: what is not hidden behind it."""
        return self.seconds - self.computing

    @property
    def communication_share(self) -> float:
        """The exposed communication as a part of the whole, 0 to 1."""
        return self.exposed / self.seconds if self.seconds else 0.0

    def busy_by_axes(self) -> dict[str, float]:
        """Seconds that the messages over each set of mapped axes take, one after another on the slowest way."""
        found: dict[str, float] = {}
        for event in self._run.schedule.events:
            if event.is_communication:
                one = np.array([float(event.nbytes)])
                longest = sum(
                    each.repeats * each.seconds(one).max(initial=0.0) for each in self._run.rounds[event.index]
                )
                name = ", ".join(event.axes)
                found[name] = found.get(name, 0.0) + float(event.trips * longest)
        return found

    def timeline(self, limit: int = 1_000_000) -> Timeline:
        """Every message and computation with its start and end; see ``Timeline``.

        Args:
          limit: raise rather than note more messages than this.
        """
        return self._run.timeline(whole("limit", limit, 1))

    def __str__(self) -> str:
        schedule = self._run.schedule
        lines = [
            f"{duration(self.seconds)} for {schedule.steps:,} steps of {schedule.n:,} ranks on {self._run.topology}"
        ]
        if self.computing:
            lines.append(
                f"  computation {duration(self.computing)}, communication not hidden behind it "
                f"{duration(self.exposed)} ({self.communication_share:.1%})"
            )
        for tier in self.tiers:
            share = tier.busy / self.seconds if self.seconds else 0.0
            lines.append(
                f"  {tier.name}: {tier.nbytes:,} bytes; the busiest port {tier.most:,} bytes, {duration(tier.busy)} "
                f"({share:.0%} of the time)"
            )
        return "\n".join([*lines, *(f"  assumes: {sentence}" for sentence in self.assumptions)])


def simulate(
    schedule: Schedule,
    topology: str | Topology,
    *,
    placement: Sequence[int] | None = None,
    gamma: float = 0.0,
    rates: Rates | None = None,
    mode: str = "ordered",
) -> Simulation:
    """How long a schedule takes on a topology.

    A message takes the latency of the level it crosses, on a ring for each link on its way, and its bytes over the
    bandwidth, or over its share of a link that others of the same step cross too; a port serves one message at a
    time, in program order. Each rank executes the communications of one stream (see ``Schedule``) in program order, as
    rendezvous: a message starts when the sender has the value, both ends are done with what came before it in the
    stream, and its ports are free. Streams run at the same time and compete for ports only.

    Args:
      schedule: what ``hccljax.trace`` gives.
      topology: such as ``"atlas-800t-a2:4x8"``; one without figures, ``"4x8"``, is given those of atlas-800t-a2.
      placement: the place of each rank in the topology, [n]; rank r is at place r if it is not given.
      gamma: seconds that a receiver needs to combine one byte with its own, for messages that are to be combined.
      rates: how fast a rank computes, for a schedule that was traced with ``compute=True``; without, computations take
        no time.
      mode: ``"ordered"`` as above; ``"eager"`` drops the order within a stream, so that a message waits for its value
        and its ports only.

    Raises:
      ArgumentError: a topology that has fewer ranks than the schedule, an exchange with too many messages, or a
        placement, gamma, rates or mode that is none.
      UnreachableError: what joins two ranks that talk is lost, and there is no other way.

    >>> ring = hccljax.trace(
    ...     lambda x: hccljax.all_reduce(x, "rank", algorithm="ring"), jnp.zeros(1 << 18), axis_sizes={"rank": 8}
    ... )
    >>> round(hccljax.simulate(ring, "atlas-800t-a2:8").seconds * 1e6, 1)  # 14 (1.5 µs + 128 KB / 56 GB/s)
    53.8
    """
    run = settled(schedule, topology, placement, gamma, mode, rates)
    clock = run.clock()
    replay(schedule.events, schedule.loops, clock)
    seconds = clock.seconds(clock.state[0].max(axis=-1, initial=0))
    return Simulation(float(seconds[0]), clock.computing(), run.tiers, _assumptions(run), run)


def _assumptions(run: Settled) -> tuple[str, ...]:
    levels = "; ".join(
        f"{level.name} {level.links} {level.bandwidth / 1e9:g} GB/s, {level.latency * 1e6:g} µs"
        f"{'' if level.oversubscription == 1 else f', {level.oversubscription:g} times oversubscribed'}"
        for level in run.topology.levels
    )
    of = f" ({run.topology.name})" if run.topology.name else ""
    found = [f"links: {levels}{of}"]
    if run.assumed:
        found.append(f"these figures: the topology was given as {run.topology.shape} alone")
    kinds = sorted({event.kind for event in run.schedule.events if event.kind in OPAQUE})
    if kinds:
        found.append(f"{', '.join(kinds)} of jax.lax: every rank sends to every other, as XLA's own way is not visible")
    if run.speeds.gamma == 0 and any(event.reduces for event in run.schedule.events):
        found.append("to combine what comes with one's own takes no time (gamma=0)")
    if run.speeds.rates is None and any(event.kind == COMPUTE for event in run.schedule.events):
        found.append("computations take no time (no rates were given)")
    found += [f"degraded: {fault}" for fault in run.topology.faults]
    if run.eager:
        found.append("messages are not ordered within a stream (mode='eager')")
    return tuple(found)


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    unit, scale = next((known for known in (("s", 1.0), ("ms", 1e-3)) if seconds >= known[1]), ("µs", 1e-6))
    return f"{seconds / scale:,.4g} {unit}"
