"""TierClock: when the messages of a schedule start and end on the ports of a topology.

Each rank executes the events of one stream in program order, as rendezvous: a message starts when its sender has the
value, both ends are done with their earlier events of that stream, and every port on its way is free. Streams compete
for ports only, which serve messages in program order.

Times are whole numbers of a unit that is chosen for each run, so small that rounding the durations to it (once for each
event) changes a result by less than 1e-15 of it: so loops can be carried on exactly (see ``schedule.clock``). The axis
after the rows is one of message sizes: a schedule is timed for several factors of its sizes at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hccljax.schedule.clock import StepClock, grown
from hccljax.schedule.event import COMPUTE, Event
from hccljax.timing.rates import Rates
from hccljax.timing.rounds import Round

_LONGEST = 2.0**60  # units of a whole run


@dataclass(frozen=True)
class Speeds:
    """What ranks do besides sending: seconds to combine a byte, and how fast they compute (None: in no time)."""

    gamma: float = 0.0
    rates: Rates | None = None

    def seconds(self, event: Event) -> float:
        """How long one execution of a computation takes."""
        return 0.0 if self.rates is None else self.rates.seconds(event.flops, event.nbytes)


class Taken(NamedTuple):
    """Ports that the messages of a round take.

    Attributes:
      cells: where the state has the port of each message, [m]; 0 is none.
      used: which messages take one.
      theirs: the cells of those.
    """

    cells: np.ndarray
    used: np.ndarray | slice
    theirs: np.ndarray


@dataclass(frozen=True, eq=False)
class Task:
    """What a clock carries out.

    Attributes:
      events: those of a schedule.
      rounds: the messages of each event, by its index.
      cells: the number of each port among those that messages wait for, from 1 on; 0 for the others: [ports].
      slowness: how many times longer each rank computes than ``speeds`` says, [n].
      speeds: what ranks do besides sending.
      eager: True if messages do not wait for those before them in their stream.
    """

    events: Sequence[Event]
    rounds: Mapping[int, list[Round]]
    cells: np.ndarray
    slowness: np.ndarray
    speeds: Speeds
    eager: bool

    @cached_property
    def taken(self) -> dict[int, list[list[Taken]]]:
        """The ports that the messages of each event take, by its index and for each of its rounds."""
        return {index: [self.taken_by(one) for one in mine] for index, mine in self.rounds.items()}

    def taken_by(self, one: Round) -> list[Taken]:
        """The ports that a round's messages take, no port twice in one column."""
        columns = [column for column in self.cells[one.ports].T if column.any()]
        masks = [slice(None) if (column > 0).all() else column > 0 for column in columns]
        return [Taken(column, used, column[used]) for column, used in zip(columns, masks, strict=True)]


class TierClock(StepClock):
    """The clock of one run; times are [1 or 2, sizes, n].

    Attributes:
      task: what is carried out.
      n: ranks.
      units: seconds of one unit for each size, [sizes].
    """

    def __init__(self, task: Task, scales: np.ndarray):
        super().__init__()
        self.task, self.n = task, len(task.slowness)
        self._work: dict[int, np.ndarray] = {}
        events, rounds, speeds = task.events, task.rounds, task.speeds
        seconds, combining, total = {}, {}, np.zeros(len(scales))
        for event in events:
            mine, nbytes = rounds[event.index], event.nbytes * scales
            if event.kind == COMPUTE:
                self._work[event.index] = np.tile(speeds.seconds(event) * task.slowness, (len(scales), 1))
                total += event.trips * self._work[event.index].max(axis=1)
            seconds[event.index] = [one.seconds(nbytes) for one in mine]
            received = sum(one.repeats * len(one.parts) for one in mine)
            # What nobody receives is not combined, and does not count in the length of the run: its time might not fit.
            combining[event.index] = speeds.gamma * nbytes if event.reduces and received else 0 * nbytes
            longest = np.zeros(len(scales))
            for one, lasts in zip(mine, seconds[event.index], strict=True):
                longest += one.repeats * lasts.max(axis=1, initial=0)
            total += event.trips * (longest + received * combining[event.index])
        self.units = np.where(total > 0, total, 1.0) / _LONGEST
        self._durations = {index: [self._whole(each) for each in found] for index, found in seconds.items()}
        self._combining = {index: self._whole(each) for index, each in combining.items()}
        self._work = {index: self._whole(each) for index, each in self._work.items()}
        streams = max((event.stream for event in events), default=-1) + 1
        # The state: ports that messages wait for, the first of which is none and always free; when each rank can
        # combine again, and compute; how far each rank is in each stream.
        self._combine = int(task.cells.max()) + 1
        self._compute = self._combine + self.n
        self._streams = self._compute + self.n
        size = self._streams + (0 if task.eager else streams * self.n)
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
        works = ((event.trips, self._work[event.index][0]) for event in self.task.events if event.kind == COMPUTE)
        executed = sum(trips * int(work.max()) for trips, work in works)
        return float(executed * self.units[0])

    def communicate(self, event: Event, operand: np.ndarray) -> np.ndarray:
        """When the result is there on each rank; one that receives nothing has its zeros from the start."""
        if len(operand) != len(self.state):
            operand, self.state = grown(operand), grown(self.state)
        if event.kind == COMPUTE:
            return self._computed(event, operand)
        state, own = self.state, self.stream_of(event)
        done = np.zeros_like(operand) if self.task.eager else state[..., own].copy()
        base = self.later(operand, done)
        stays = event.stays
        times = np.zeros_like(operand)
        times[..., stays] = operand[..., stays]
        after = done.copy()
        found = (self.task.rounds[event.index], self.task.taken[event.index], self._durations[event.index])
        for one, taken, durations in zip(*found, strict=True):
            start = self._start(one, taken, base, done)
            if one.repeats == 1:
                self._send(event, one, taken, durations, start, after, times)
            elif self._level(one, start):
                self._send_together(event, one, taken, durations, start, after, times)
            else:
                for each in one.each():
                    taken = self.task.taken_by(each)
                    start = self._start(each, taken, base, done)
                    self._send(event, each, taken, durations, start, after, times)
        if not self.task.eager:
            state[..., own] = after
        return times

    def _start(self, one: Round, taken: Sequence[Taken], base: np.ndarray, done: np.ndarray) -> np.ndarray:
        """When the messages of a round start."""
        start = self.later(base[..., one.sources], done[..., one.destinations])
        for ports in taken:
            start = self.later(start, self.state[..., ports.cells])
        return start

    def _send(
        self,
        event: Event,
        one: Round,
        taken: Sequence[Taken],
        durations: np.ndarray,
        start: np.ndarray,
        after: np.ndarray,
        times: np.ndarray,
    ) -> None:
        """Carries out a round: ports are taken, ranks are further in their stream, and values are there."""
        combining, state = self._combining[event.index], self.state
        combines = bool(combining.any())
        ends = self.after(start, durations[:, one.kind])
        for ports in taken:
            state[..., ports.theirs] = self.later(state[..., ports.theirs], ends[..., ports.used])
        for part in one.parts:
            sources, destinations = one.sources[part], one.destinations[part]
            there = self._combined(combining, destinations, ends[..., part]) if combines else ends[..., part]
            after[..., sources] = self.later(after[..., sources], ends[..., part])
            after[..., destinations] = self.later(after[..., destinations], there)
            times[..., destinations] = self.later(times[..., destinations], there)
            self.note(event, one, part, start[..., part], ends[..., part], there)

    def _level(self, one: Round, start: np.ndarray) -> bool:
        """True if each communicator's ranks send and receive at one time: their rounds follow each other without gaps.

        Nobody then waits for anything but the round before: all else is over when the first one starts.
        """
        together = start.reshape(*start.shape[:-1], -1, one.repeats + 1)
        return bool((together == together[..., :1]).all())

    def _send_together(
        self,
        event: Event,
        one: Round,
        taken: Sequence[Taken],
        durations: np.ndarray,
        start: np.ndarray,
        after: np.ndarray,
        times: np.ndarray,
    ) -> None:
        """``_send`` for all rounds that one stands for."""
        state, ranks, duration = self.state, one.destinations, durations[:, one.kind]
        ends = self.after(start, one.repeats * duration)
        for ports in taken:
            state[..., ports.cells] = ends
        there, combining = ends, self._combining[event.index][:, None]
        if combining.any():
            # Combined at once from the first on, or without a gap since the rank was free, or as the last one arrives.
            unit, without_gap = self._combine + ranks, one.repeats * combining
            early = self.later(state[..., unit], self.after(start, duration))
            there = self.later(self.after(early, without_gap), self.after(ends, combining))
            state[..., unit] = there
        after[..., one.sources] = self.later(after[..., one.sources], ends)
        after[..., ranks] = self.later(after[..., ranks], there)
        times[..., ranks] = self.later(times[..., ranks], there)

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
