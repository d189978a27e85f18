"""A schedule on a topology, ready to be timed for any factor of its message sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hccljax.errors import ArgumentError, shown
from hccljax.numbers import real
from hccljax.schedule import Schedule
from hccljax.schedule.replay import replay
from hccljax.timing.clock import Speeds, Task, TierClock
from hccljax.timing.contention import contended
from hccljax.timing.noting import NotingClock
from hccljax.timing.rates import Rates
from hccljax.timing.rounds import Round, rounds_of
from hccljax.timing.timeline import Timeline
from hccljax.topology import Topology, as_topology, with_figures
from hccljax.topology.wiring import Wiring, wiring_of

MODES = ("ordered", "eager")


@dataclass(frozen=True)
class Tier:
    """What one level of the wiring had to do.

    Attributes:
      name: the level's.
      nbytes: bytes that crossed it, all ranks together.
      most: bytes that its busiest port carried.
      busy: seconds for which its busiest port was in use.
    """

    name: str
    nbytes: int
    most: int
    busy: float


@dataclass(frozen=True, eq=False)
class Settled:
    """A schedule on a topology: the checked arguments of ``simulate``, and what many runs share.

    Attributes:
      places: the place of each rank, [n].
      eager: True for pure dataflow.
      assumed: True if the topology was given without figures.
    """

    schedule: Schedule
    topology: Topology
    places: np.ndarray
    speeds: Speeds
    eager: bool
    assumed: bool = False

    @cached_property
    def wiring(self) -> Wiring:
        """The ports of the topology."""
        return wiring_of(self.topology)

    @cached_property
    def rounds(self) -> dict[int, list[Round]]:
        """The messages of each event, with their ways."""
        return rounds_of(self.schedule.events, self.wiring, self.places)

    @cached_property
    def cells(self) -> np.ndarray:
        """The number of each port among those that messages wait for, from 1 on; 0 for the others: [ports]."""
        waited_for = contended(self.schedule.events, self.rounds, self.wiring.ports, not self.eager)
        return np.where(waited_for, np.cumsum(waited_for), 0)

    def clock(self, scales: Sequence[float] | np.ndarray = (1.0,)) -> TierClock:
        """A clock for the schedule with all its messages so many times as long."""
        return TierClock(self.task, np.asarray(scales, float))

    @cached_property
    def task(self) -> Task:
        """What a clock carries out."""
        slowness = self.topology.slowness[self.places]
        return Task(self.schedule.events, self.rounds, self.cells, slowness, self.speeds, self.eager)

    @cached_property
    def tiers(self) -> tuple[Tier, ...]:
        """What each level of the wiring has to do, which does not depend on when it is done."""
        return _tiers(self)

    @property
    def most_bytes(self) -> tuple[int, ...]:
        """Bytes that the busiest port of each level carries."""
        return tuple(tier.most for tier in self.tiers)

    def timeline(self, limit: int) -> Timeline:
        """Every message and computation: all trips of all loops are run."""
        clock = NotingClock(self.task, limit)
        replay(self.schedule.events, self.schedule.loops, clock, jump=False)
        return Timeline(clock.notes, float(clock.units[0]), self.schedule.n, self.topology.levels, self.wiring.levels)


def settled(
    schedule: Schedule,
    topology: str | Topology,
    placement: Sequence[int] | None = None,
    gamma: float = 0.0,
    mode: str = "ordered",
    rates: Rates | None = None,
) -> Settled:
    """The arguments of ``simulate``, checked."""
    if not isinstance(schedule, Schedule):
        raise ArgumentError(f"simulate got {shown(schedule)}: expected a Schedule, as hccljax.trace gives it")
    if rates is not None and not isinstance(rates, Rates):
        raise ArgumentError(f"rates={shown(rates)}: expected hccljax.Rates(flops, bandwidth), or None")
    known = with_figures(topology)
    if mode not in MODES:
        raise ArgumentError(f"mode={shown(mode)}: expected one of {', '.join(MODES)}")
    gamma = real("gamma", gamma, 0.0, 1.0, unit="seconds a byte")
    places = np.arange(schedule.n) if placement is None else np.asarray(placement)
    if schedule.n > known.ranks:
        raise ArgumentError(
            f"a schedule of {schedule.n} ranks on a topology of {known.ranks} ({known}): expected one with as many"
        )
    if (
        places.shape != (schedule.n,)
        or places.dtype.kind not in "iu"
        or len(np.unique(places)) != len(places)
        or places.min() < 0
        or places.max() >= known.ranks
    ):
        raise ArgumentError(
            f"placement={shown(placement)}: expected a different place, 0 to {known.ranks - 1}, for each of the "
            f"{schedule.n} ranks"
        )
    given = as_topology(topology)
    assumed = given is not None and not given.levels
    return Settled(schedule, known, places, Speeds(gamma, rates), mode == "eager", assumed)


def makespans(run: Settled, scales: Sequence[float] | np.ndarray) -> np.ndarray:
    """Seconds until the last message has arrived, for each factor of the message sizes: [sizes]."""
    clock = run.clock(scales)
    replay(run.schedule.events, run.schedule.loops, clock)
    return clock.seconds(clock.state[0].max(axis=-1, initial=0))


def _tiers(run: Settled) -> tuple[Tier, ...]:
    levels, wiring = run.topology.levels, run.wiring
    carried, busy = np.zeros(wiring.ports), np.zeros(wiring.ports)
    crossed = np.zeros(len(levels))
    for event in run.schedule.events:
        for one in run.rounds[event.index]:
            lasts, times = one.seconds(np.array([float(event.nbytes)]))[0, one.kind], event.trips * one.repeats
            together = np.zeros(wiring.ports)  # messages that share a link of a ring are on it at the same time
            for column in one.ports.T:
                np.add.at(carried, column, float(event.nbytes * times))
                np.maximum.at(together, column, lasts)
            busy += together * times
            across = wiring.levels[one.ports[:, 0]]
            crossed += np.bincount(across, minlength=len(levels)) * float(event.nbytes * times)
    found = []
    for k, level in enumerate(levels):
        mine = wiring.levels == k
        most, longest = carried[mine].max(initial=0), busy[mine].max(initial=0)
        found.append(Tier(level.name, int(crossed[k]), int(most), float(longest)))
    return tuple(found)
