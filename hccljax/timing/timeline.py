"""Timeline: every message and computation of a simulated schedule, and the chain of them that takes all the time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np

from hccljax.errors import ArgumentError
from hccljax.schedule.event import Event
from hccljax.topology import Level

WAITS = ("", "value", "stream", "port", "compute", "combine")
NOTHING, VALUE, STREAM, PORT, COMPUTED, COMBINED = range(len(WAITS))
"""What decides when something starts, as numbers of WAITS."""


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
      waited_for: what decided when it starts: ``"value"``, what is sent or computed with; ``"stream"``, messages before
        it in its stream at either end; ``"port"``, a port on its way; ``"compute"``, an earlier computation of the
        rank; ``""``, nothing. In a critical path also ``"combine"``: its receiver was still combining others.
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
    waited_for: str = ""

    @property
    def name(self) -> str:
        """What it is called in a picture."""
        return self.event.label or self.event.kind

    def __str__(self) -> str:
        times = f"{self.start * 1e6:,.3f} – {self.end * 1e6:,.3f} µs"
        if self.level < 0:
            return f"{times}: rank {self.source} computes"
        return f"{times}: {self.name}, {self.source} → {self.destination}, {self.nbytes:,} bytes"


@dataclass(frozen=True, eq=False)
class Note:
    """The messages of one round, as a clock notes them: arrays [m], times in units.

    Attributes:
      waited_for: numbers of WAITS.
      before: whose end each waited for: 0 for nobody, 2k + 1 for the end of number k, 2k + 2 for its combination.
      kept_busy: whose combination the combination of each waited for, in the same way.
    """

    event: Event
    trip: int
    sources: np.ndarray
    destinations: np.ndarray
    ports: np.ndarray
    start: np.ndarray
    end: np.ndarray
    combined: np.ndarray
    waited_for: np.ndarray
    before: np.ndarray
    kept_busy: np.ndarray


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
            for name in ("sources", "destinations", "start", "end", "combined", "before", "kept_busy")
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
            WAITS[note.waited_for[m]],
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

        Each says what it ``waited_for``, which the one before it was. Only what counts is in it: a message that held up
        a port or its sender ends when it arrives (``combined`` is then its ``end``), and one that had to wait until its
        receiver had combined others starts and ends when that is done. So from ``start`` to ``combined`` they add up to
        ``seconds``.
        """
        path: list[Interval] = []
        mark = 2 * int(np.argmax(self._flat["combined"])) + 2 if len(self) else 0
        while mark:
            index, combines = divmod(mark - 1, 2)
            interval, mark = self[index], int(self._flat["before"][index])
            if not combines:
                interval = replace(interval, combined=interval.end)
            elif others := int(self._flat["kept_busy"][index]):
                begun = float(self._flat["combined"][(others - 1) // 2] * self._unit)
                interval, mark = replace(interval, start=begun, end=begun, waited_for=WAITS[COMBINED]), others
            path.append(interval)
        return path[::-1]


def too_long(limit: int) -> ArgumentError:
    """The error for a timeline of more messages than are to be noted."""
    return ArgumentError(
        f"more than limit={limit:,} messages and computations; expected fewer: pass a larger limit=, or simulate one "
        f"call or fewer ranks"
    )
