"""NotingClock: a clock that keeps every message and computation, and what each has waited for, for a timeline."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hccljax.schedule.event import COMPUTE, Event
from hccljax.timing.clock import Task, TierClock
from hccljax.timing.rounds import Round
from hccljax.timing.timeline import COMPUTED, NOTHING, PORT, STREAM, VALUE, Note, too_long


class NotingClock(TierClock):
    """A clock of one size that notes what it is asked; loops are to be run trip by trip.

    Where other clocks have a second size, this one has who made the time: 0 for nobody, 2k + 1 for the arrival of
    message k (or the end of computation k), 2k + 2 for its combination at the receiver.

    Attributes:
      notes: what there was, in program order.
      limit: messages and computations to note at most.
    """

    def __init__(self, task: Task, limit: int):
        super().__init__(task, np.ones(2))
        self.notes: list[Note] = []
        self.limit = limit
        self._trips: Counter[int] = Counter()
        self._started = 0  # messages and computations so far
        self._waiting: tuple[np.ndarray, ...] = ()
        self._kept_busy = np.zeros(0, np.int64)

    def later(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """The later of two times with who made it; the first one where they are alike."""
        one, other = np.broadcast_arrays(one, other)
        return np.where(other[:, :1] > one[:, :1], other, one)

    def after(self, start: np.ndarray, durations: np.ndarray) -> np.ndarray:
        """The ends of the messages of a round, or of a computation on all ranks."""
        ends = start.copy()
        ends[0, 0] += durations[0]
        ends[0, 1] = 2 * (self._started + np.arange(start.shape[-1])) + 1
        self._started += start.shape[-1]
        if self._started > self.limit:
            raise too_long(self.limit)
        return ends

    def _combined(self, combining: np.ndarray, ranks: np.ndarray, ends: np.ndarray) -> np.ndarray:
        unit = self._combine + ranks
        begun = self.later(ends, self.state[..., unit])
        self._kept_busy = np.where(begun[0, 1] == ends[0, 1], 0, begun[0, 1])
        combined = begun.copy()
        combined[0, 0] += combining[0]
        combined[0, 1] = ends[0, 1] + 1
        self.state[..., unit] = combined
        return combined

    def _level(self, one: Round, start: np.ndarray) -> bool:
        """False: each round is noted."""
        return False

    def communicate(self, event: Event, operand: np.ndarray) -> np.ndarray:
        """As a clock does, counting the trips."""
        if event.kind == COMPUTE:
            self._waiting = (operand[0, 0],)
        else:
            own = self.stream_of(event)
            done = np.zeros(self.n, np.int64) if self.task.eager else self.state[0, 0, own].copy()
            self._waiting = (operand[0, 0], done)
        times = super().communicate(event, operand)
        self._trips[event.index] += 1
        return times

    def note(
        self, event: Event, one: Round | None, part: slice, start: np.ndarray, end: np.ndarray, combined: np.ndarray
    ) -> None:
        """Keeps the times of the messages of a round, or of a computation on all ranks."""
        ranks = np.arange(self.n)
        sources, destinations, ports = (
            (ranks, ranks, np.zeros((self.n, 0), np.int64))
            if one is None
            else (one.sources[part], one.destinations[part], one.ports[part])
        )
        busy = np.zeros(len(sources), np.int64) if (end[0, 0] == combined[0, 0]).all() else self._kept_busy
        self.notes.append(
            Note(
                event=event,
                trip=self._trips[event.index],
                sources=sources,
                destinations=destinations,
                ports=ports,
                start=start[0, 0].copy(),
                end=end[0, 0].copy(),
                combined=combined[0, 0].copy(),
                waited_for=self._causes(one, start[0, 0], sources, destinations),
                before=start[0, 1].copy(),
                kept_busy=busy,
            )
        )

    def _causes(
        self, one: Round | None, start: np.ndarray, sources: np.ndarray, destinations: np.ndarray
    ) -> np.ndarray:
        """What decided when each started: the first of its value, its stream, a port that was as late."""
        value = self._waiting[0][sources] == start
        if one is None:
            causes = np.where(value, VALUE, COMPUTED)
        else:
            done = self._waiting[1]
            stream = (done[sources] == start) | (done[destinations] == start)
            causes = np.select([value, stream], [VALUE, STREAM], PORT)
        return np.where(start > 0, causes, NOTHING)
