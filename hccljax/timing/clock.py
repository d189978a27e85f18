"""TierClock: when the messages of a schedule start and end on the ports of a topology.

Each rank executes the events of one stream in program order, as rendezvous: a message starts when its sender has the
value, both ends are done with their earlier events of that stream, and every port on its way is free. Streams compete
for ports only, which serve messages in program order.

Times are whole numbers of a unit that is chosen for each run, so small that rounding the durations to it (once for each
event) changes a result by less than 1e-15 of it: so loops can be carried on exactly (see ``schedule.clock``). The axis
after the rows is one of message sizes: a schedule is timed for several factors of its sizes at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hccljax.schedule.clock import StepClock, grown
from hccljax.schedule.event import COMPUTE, Event
from hccljax.timing.rates import Rates
from hccljax.topology.detours import Routes
from hccljax.topology.wiring import Wiring

_LONGEST = 2.0**60  # units of a whole run
_TOGETHER = 1 << 22  # messages of one full-mesh event that are looked at together


@dataclass(frozen=True)
class Speeds:
    """What ranks do besides sending: seconds to combine a byte, and how fast they compute (None: in no time)."""

    gamma: float = 0.0
    rates: Rates | None = None

    def seconds(self, event: Event) -> float:
        """How long one execution of a computation takes."""
        return 0.0 if self.rates is None else self.rates.seconds(event.flops, event.nbytes)


@dataclass(frozen=True)
class Round:
    """Messages of one event that can start together.

    Attributes:
      sources, destinations: the ranks of each message, [m].
      ports: the ports that each takes, [m, k]; 0 is none.
      kind: which of the ways each takes, [m].
      ways: (latency in seconds, bytes/s) of each kind of way, [kinds, 2].
      parts: slices of the messages in which each rank sends one at most, and receives one.
    """

    sources: np.ndarray
    destinations: np.ndarray
    ports: np.ndarray
    kind: np.ndarray
    ways: np.ndarray
    parts: tuple[slice, ...]

    def seconds(self, nbytes: np.ndarray) -> np.ndarray:
        """How long a message of each size takes on each kind of way, [sizes, kinds]."""
        latency, rate = self.ways.T
        return latency + nbytes[:, None] / rate


class TierClock(StepClock):
    """The clock of one run; times are [1 or 2, sizes, n].

    Attributes:
      units: seconds of one unit for each size, [sizes].
      rounds: the messages of each event, by its index.
    """

    def __init__(
        self,
        events: Sequence[Event],
        rounds: Mapping[int, list[Round]],
        wiring: Wiring,
        places: np.ndarray,
        scales: np.ndarray,
        speeds: Speeds,
        eager: bool,
    ):
        super().__init__()
        self.n, self.eager, self.wiring, self.rounds = len(places), eager, wiring, rounds
        self._events = events
        self._work: dict[int, np.ndarray] = {}
        self._slowness = wiring.topology.slowness[places]
        seconds, combining, total = {}, {}, np.zeros(len(scales))
        for event in events:
            mine, nbytes = rounds[event.index], event.nbytes * scales
            if event.kind == COMPUTE:
                self._work[event.index] = np.tile(speeds.seconds(event) * self._slowness, (len(scales), 1))
                total += event.trips * self._work[event.index].max(axis=1)
            seconds[event.index] = [one.seconds(nbytes) for one in mine]
            combining[event.index] = speeds.gamma * nbytes if event.reduces else 0 * nbytes
            received = sum(len(one.parts) for one in mine)
            longest = sum((each.max(axis=1, initial=0) for each in seconds[event.index]), np.zeros(len(scales)))
            total += event.trips * (longest + received * combining[event.index])
        self.units = np.where(total > 0, total, 1.0) / _LONGEST
        self._durations = {index: [self._whole(each) for each in found] for index, found in seconds.items()}
        self._combining = {index: self._whole(each) for index, each in combining.items()}
        self._work = {index: self._whole(each) for index, each in self._work.items()}
        streams = max((event.stream for event in events), default=-1) + 1
        # The state: ports; when each rank can combine again, and compute; how far each rank is in each stream.
        self._combine, self._compute = wiring.ports, wiring.ports + self.n
        self._streams = self._compute + self.n
        size = self._streams + (0 if eager else streams * self.n)
        self.state = np.zeros((1, len(scales), size), np.int64)
        self.nothing = np.zeros((1, len(scales), self.n), np.int64)

    def _whole(self, seconds: np.ndarray) -> np.ndarray:
        units = self.units[:, None] if seconds.ndim == 2 else self.units
        return np.rint(seconds / units).astype(np.int64)

    def seconds(self, times: np.ndarray) -> np.ndarray:
        """Times [sizes, …] in seconds."""
        return times * self.units.reshape(-1, *[1] * (times.ndim - 1))

    def computing(self) -> float:
        """Seconds for which the busiest rank computes, in the first size."""
        works = ((event.trips, self._work[event.index][0]) for event in self._events if event.kind == COMPUTE)
        executed = sum(trips * int(work.max()) for trips, work in works)
        return float(executed * self.units[0])

    def communicate(self, event: Event, operand: np.ndarray) -> np.ndarray:
        """When the result is there on each rank; one that receives nothing has its zeros from the start."""
        if len(operand) != len(self.state):
            operand, self.state = grown(operand), grown(self.state)
        if event.kind == COMPUTE:
            return self._computed(event, operand)
        state, own = self.state, self.stream_of(event)
        done = np.zeros_like(operand) if self.eager else state[..., own].copy()
        base = self.later(operand, done)
        stays = event.stays
        times = np.zeros_like(operand)
        times[..., stays] = operand[..., stays]
        after, combining = done.copy(), self._combining[event.index]
        combines = bool(combining.any())
        for one, durations in zip(self.rounds[event.index], self._durations[event.index], strict=True):
            start = self.later(base[..., one.sources], done[..., one.destinations])
            for column in one.ports.T:
                start = self.later(start, state[..., column])
            ends = self.after(start, durations[:, one.kind])
            for column in one.ports.T:
                used = column > 0
                state[..., column[used]] = self.later(state[..., column[used]], ends[..., used])
            for part in one.parts:
                sources, destinations = one.sources[part], one.destinations[part]
                there = self._combined(combining, destinations, ends[..., part]) if combines else ends[..., part]
                after[..., sources] = self.later(after[..., sources], ends[..., part])
                after[..., destinations] = self.later(after[..., destinations], there)
                times[..., destinations] = self.later(times[..., destinations], there)
                self.note(event, one, part, start[..., part], ends[..., part], there)
        if not self.eager:
            state[..., own] = after
        return times

    def stream_of(self, event: Event) -> slice:
        """Where the state says how far each rank is in the event's stream."""
        first = self._streams + event.stream * self.n
        return slice(first, first + self.n)

    def _combined(self, combining: np.ndarray, ranks: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """When the receivers have combined what came: one message after the other on each rank."""
        unit = self._combine + ranks
        ends = self.after(self.later(ends, self.state[..., unit]), combining[:, None])
        self.state[..., unit] = ends
        return ends

    def _computed(self, event: Event, operand: np.ndarray) -> np.ndarray:
        """When a computation is done on each rank, one after the other in program order."""
        unit = slice(self._compute, self._compute + self.n)
        start = self.later(operand, self.state[..., unit])
        ends = self.after(start, self._work[event.index])
        self.state[..., unit] = ends
        self.note(event, None, slice(None), start, ends, ends)
        return ends

    def after(self, start: np.ndarray, durations: np.ndarray) -> np.ndarray:
        """The ends of what takes so long: durations [sizes, m] of times [1 or 2, sizes, m]."""
        ends = start.copy()
        ends[0] += durations
        return ends

    def note(
        self, event: Event, one: Round | None, part: slice, start: np.ndarray, end: np.ndarray, combined: np.ndarray
    ) -> None:
        """Called for all messages of a part of a round, and for all ranks of a computation (None), with their times."""


def rounds_of(events: Sequence[Event], wiring: Wiring, places: np.ndarray) -> dict[int, list[Round]]:
    """The messages of each event, by its index; those of events that are alike are one object."""
    known: dict[Hashable, list[Round]] = {}
    found: dict[int, list[Round]] = {}
    for event in events:
        key = (event.axes, event.layout, event.pattern)
        if not event.is_communication:
            found[event.index] = []
            continue
        if key not in known:
            known[key] = list(_rounds(event, wiring, places))
        found[event.index] = known[key]
    return found


def _rounds(event: Event, wiring: Wiring, places: np.ndarray) -> Iterator[Round]:
    """The rounds of an event; those that share no port are one."""
    rounds = [(sources, destinations) for sources, destinations in event.rounds() if len(sources)]
    if len(rounds) > 1 and len(rounds) * len(places) <= _TOGETHER:
        sources, destinations = (np.concatenate(side) for side in zip(*rounds, strict=True))
        routes = wiring.routes(places[sources], places[destinations])
        used = routes.ports[routes.ports > 0]
        if len(np.unique(used)) == len(used):
            cuts = np.cumsum([0, *(len(each) for each, _ in rounds)])
            yield _round(sources, destinations, routes, tuple(map(slice, cuts[:-1], cuts[1:])))
            return
    for sources, destinations in rounds:
        yield _round(
            sources, destinations, wiring.routes(places[sources], places[destinations]), (slice(0, len(sources)),)
        )


def _round(sources: np.ndarray, destinations: np.ndarray, routes: Routes, parts: tuple[slice, ...]) -> Round:
    ways, kind = np.unique(np.stack([routes.latency, routes.rate], 1), axis=0, return_inverse=True)
    return Round(sources, destinations, _distinct(routes.ports), kind.reshape(-1), ways, parts)


def _distinct(ports: np.ndarray) -> np.ndarray:
    """The ports with no port twice in a column, where messages share one: the second one moves to a further column."""
    columns: list[np.ndarray] = []
    for column in ports.T:
        left = column
        while left.any():
            first = np.zeros_like(left)
            at = np.unique(left, return_index=True)[1]
            first[at] = left[at]
            columns.append(first)
            left = np.where(first > 0, 0, left)
    return np.stack(columns, 1) if columns else ports
