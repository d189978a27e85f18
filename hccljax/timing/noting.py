"""NotingClock: a clock that keeps every message and computation, for a timeline."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hccljax.schedule.event import Event
from hccljax.timing.clock import Round, TierClock
from hccljax.timing.timeline import Note, too_long


class NotingClock(TierClock):
    """A clock of one size that notes what it is asked; loops are to be run trip by trip.

    Attributes:
      notes: what there was, in program order.
      limit: messages and computations to note at most.
    """

    limit = 1_000_000

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.notes: list[Note] = []
        self._trips: Counter[int] = Counter()
        self._noted = 0

    def communicate(self, event: Event, operand: np.ndarray) -> np.ndarray:
        """As a clock does, counting the trips."""
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
        self._noted += len(sources)
        if self._noted > self.limit:
            raise too_long(self.limit)
        times = (each[0, 0].copy() for each in (start, end, combined))
        self.notes.append(Note(event, self._trips[event.index], sources, destinations, ports, *times))
