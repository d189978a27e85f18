"""Timeline: every message and computation of a simulated schedule, and the chain of them that takes all the time."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from hccljax.errors import ArgumentError
from hccljax.schedule.event import Event
from hccljax.topology import Level


@dataclass(frozen=True)
class Interval:
    """One message, or one computation.

    Attributes:
      event: the event of the schedule.
      trip: which execution of the event it belongs to, from 0.
      source, destination: the ranks; the same one twice for a computation.
      level: the level of the wiring that it crosses; -1 for a computation.
      start, end: seconds.
      combined: seconds at which the receiver has combined it; the end where nothing is combined.
      nbytes: bytes.
    """

    event: Event
    trip: int
    source: int
    destination: int
    level: int
    start: float
    end: float
    combined: float
    nbytes: int

    @property
    def name(self) -> str:
        """What it is called in a picture."""
        return self.event.label or self.event.kind

    def __str__(self) -> str:
        times = f"{self.start * 1e6:,.3f} – {self.end * 1e6:,.3f} µs"
        if self.level < 0:
            return f"{times}: rank {self.source} computes"
        return f"{times}: {self.name}, {self.source} → {self.destination}, {self.nbytes:,} bytes"


@dataclass(frozen=True)
class Note:
    """The messages of one round, as a clock notes them: arrays [m], times in units."""

    event: Event
    trip: int
    sources: np.ndarray
    destinations: np.ndarray
    ports: np.ndarray
    start: np.ndarray
    end: np.ndarray
    combined: np.ndarray


class Timeline:
    """Every message and computation of one run, in program order.

    Attributes:
      seconds: the end of the last one.
      n: ranks.
      levels: those of the wiring.
    """

    def __init__(self, notes: list[Note], unit: float, n: int, levels: tuple[Level, ...], port_levels: np.ndarray):
        self.n, self.levels, self._notes, self._unit = n, levels, notes, unit
        self._port_levels = port_levels
        self._flat = {
            name: np.concatenate([getattr(note, name) for note in notes]) if notes else np.zeros(0, np.int64)
            for name in ("sources", "destinations", "start", "end", "combined")
        }
        self._first = np.cumsum([0, *(len(note.sources) for note in notes)])
        self.seconds = float(self._flat["combined"].max(initial=0) * unit)

    def __len__(self) -> int:
        """How many messages and computations there are."""
        return int(self._first[-1])

    def __getitem__(self, index: int) -> Interval:
        """The message or computation of that index."""
        index = range(len(self))[index]
        k = int(np.searchsorted(self._first, index, side="right")) - 1
        note, m = self._notes[k], index - int(self._first[k])
        level = int(self._port_levels[note.ports[m, 0]]) if note.ports.size else -1
        return Interval(
            note.event,
            note.trip,
            int(note.sources[m]),
            int(note.destinations[m]),
            level,
            float(note.start[m] * self._unit),
            float(note.end[m] * self._unit),
            float(note.combined[m] * self._unit),
            note.event.nbytes,
        )

    def of_rank(self, rank: int) -> list[Interval]:
        """What a rank sends, receives and computes, by start."""
        mine = np.flatnonzero((self._flat["sources"] == rank) | (self._flat["destinations"] == rank))
        return [self[index] for index in mine[np.argsort(self._flat["start"][mine], kind="stable")]]

    def to_chrome(self, path: str | PathLike[str]) -> Path:
        """Writes it as a trace that ui.perfetto.dev and chrome://tracing show; returns the path."""
        from hccljax.timing.chrome import to_chrome  # it reads timelines, and so imports this module

        return to_chrome(self, path)

    def critical_path(self) -> list[Interval]:
        """The chain of messages and computations, each starting when the one before it ends, that takes all the time.

        A message waits for the end of another one at its sender, its receiver or a port; where several end at the
        same moment, the one at its sender is taken first.
        """
        if not len(self):
            return []
        path = [int(np.argmax(self._flat["combined"]))]
        by_end = np.argsort(self._flat["combined"], kind="stable")
        ends = self._flat["combined"][by_end]
        while self._flat["start"][path[-1]] > 0:
            before = self._before(path[-1], by_end, ends)
            if before is None:
                break
            path.append(before)
        return [self[index] for index in reversed(path)]

    def _before(self, index: int, by_end: np.ndarray, ends: np.ndarray) -> int | None:
        start = self._flat["start"][index]
        low, high = np.searchsorted(ends, start, "left"), np.searchsorted(ends, start, "right")
        candidates = [int(c) for c in by_end[low:high] if c < index]
        source, destination = self._flat["sources"][index], self._flat["destinations"][index]

        def closeness(c: int) -> int:
            ends = (self._flat["sources"][c], self._flat["destinations"][c])
            return 3 if ends[1] == source else 2 if source in ends else 1 if destination in ends else 0

        return max(reversed(candidates), key=closeness, default=None)


def too_long(limit: int) -> ArgumentError:
    """The error for a timeline of more messages than are to be noted."""
    return ArgumentError(
        f"more than limit={limit:,} messages and computations; expected fewer: pass a larger limit=, or simulate one "
        f"call or fewer ranks"
    )
