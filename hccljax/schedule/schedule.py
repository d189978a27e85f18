"""Schedule: everything a per-device function communicates, loops kept as loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hccljax.schedule.clock import PortClock, StepClock
from hccljax.schedule.event import Event, Loop
from hccljax.schedule.ranks import Ranks
from hccljax.schedule.replay import replay

_SHOWN = 8  # events that repr lists


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """The communications of a per-device function in program order, as ``hccljax.trace`` reads them.

    An event stands for every execution of one communication: one in a loop is stored once, with its ``trips``. Each
    event has what ``simulate``, ``verify`` and a reader need: ``kind``, ``label``, ``nbytes`` of a message, ``shape``
    and ``dtype``, ``pattern``, ``axes``, ``layout``, ``messages`` as an array of rank pairs, ``needs`` and ``carried``
    (the events it waits for), ``source`` (the line of your code), ``loop``, ``trips`` and ``stream``.

    A *stream* is a chain of dependent communications: an event goes on with the stream of the first event that it
    needs and that no other event has gone on with; if there is none, it opens a stream of its own. All trips of an
    event are in its stream. Streams are numbered from 0 in program order. The steps of a ring are one stream;
    all-reduces of two gradients that do not need each other are two, and so are the two directions of a double ring.

    Attributes:
      events: in program order.
      loops: those that communicate, outer ones before inner ones.
      ranks: the sizes of the mapped axes and the numbering of the n ranks.

    >>> swap = lambda x: jax.lax.ppermute(x, "rank", [(0, 1), (1, 0)])
    >>> schedule = hccljax.trace(lambda x: swap(x) + 1, jnp.zeros(256), axis_sizes={"rank": 2})
    >>> schedule.steps, schedule.events[0].pattern, schedule.events[0].messages.tolist(), schedule.bytes_sent
    (1, Shift(k=1), [[0, 1], [1, 0]], array([1024, 1024]))
    """

    events: tuple[Event, ...]
    loops: tuple[Loop, ...] = field(default=())
    ranks: Ranks = field(default_factory=lambda: Ranks({}))

    @property
    def n(self) -> int:
        """How many ranks there are: the sizes of all axes multiplied."""
        return self.ranks.n

    @cached_property
    def steps(self) -> int:
        """Communications on the longest chain in which each needs the one before; a full-mesh exchange is one."""
        clock = StepClock()
        replay(self.events, self.loops, clock)
        return int(clock.state.max())

    @cached_property
    def rounds(self) -> int:
        """When the last message ends, if each takes 1 and a rank sends one and receives one at a time.

        Messages start in program order, as soon as their sender has the value and both ports are free. A full-mesh
        exchange among p ranks takes p - 1.
        """
        clock = PortClock(self.n)
        replay(self.events, self.loops, clock)
        return int(clock.state.max(initial=0))

    @property
    def permutes(self) -> int:
        """Permutes executed, loop bodies times their trips."""
        return sum(event.trips for event in self.events if event.is_permute)

    @property
    def exchanges(self) -> int:
        """Full-mesh communications executed: all-to-all, all-gather, psum, …, loop bodies times their trips."""
        return sum(event.trips for event in self.events if not event.is_permute and event.is_communication)

    @cached_property
    def bytes_sent(self) -> np.ndarray:
        """Bytes that each rank sends, int64 [n]; what a rank sends to itself is free.

        ``psum`` and its like count as every rank sending its operand to every other: how XLA does it is not visible.
        """
        sent = np.zeros(self.n, np.int64)
        for event in filter(lambda event: event.is_communication, self.events):
            sent += event.sends * (event.nbytes * event.trips)
        sent.setflags(write=False)
        return sent

    @property
    def max_bytes_sent(self) -> int:
        """Bytes sent by the rank that sends most."""
        return int(self.bytes_sent.max())

    @property
    def flops(self) -> float:
        """Operations that each rank computes, of a schedule traced with ``compute=True``; else 0."""
        return sum(event.flops * event.trips for event in self.events)

    @property
    def streams(self) -> tuple[tuple[Event, ...], ...]:
        """The events of each stream, in program order."""
        found: dict[int, list[Event]] = {}
        for event in filter(lambda event: event.is_communication, self.events):
            found.setdefault(event.stream, []).append(event)
        return tuple(tuple(events) for events in found.values())

    def rows(self) -> list[dict[str, object]]:
        """One dict for each event, as a table takes them (``pandas.DataFrame(schedule.rows())``)."""
        return [
            {
                "event": event.index,
                "kind": event.kind,
                "label": event.label,
                "pattern": "" if event.pattern is None else str(event.pattern),
                "ranks": str(event.layout).removeprefix("Layout(").removesuffix(")"),
                "axes": ",".join(map(str, event.axes)),
                "trips": event.trips,
                "bytes": event.nbytes,
                "flops": event.flops,
                "dtype": "" if event.dtype is None else str(event.dtype),
                "shape": event.shape,
                "stream": event.stream,
                "needs": event.needs,
                "carried": event.carried,
                "source": "" if event.source is None else event.source.short,
            }
            for event in self.events
        ]

    def table(self, limit: int | None = None) -> str:
        """The events as a text table, a line each.

        Args:
          limit: show that many events at most; None for all of them.
        """
        head = ("", "kind", "label", "pattern", "trips", "bytes", "stream", "needs", "source")
        rows = [
            (
                str(event.index),
                event.kind,
                event.label,
                "" if event.pattern is None else str(event.pattern),
                f"{event.trips:,}",
                f"{event.nbytes:,}",
                str(event.stream),
                _needs(event),
                "" if event.source is None else event.source.short,
            )
            for event in self.events[:limit]
        ]
        left = len(self.events) - len(rows)
        return "\n".join([*_aligned([head, *rows]), *([f"… {left:,} more"] if left else [])])

    def __len__(self) -> int:
        """Events stored: one in a loop counts once. ``permutes`` and ``exchanges`` count executions."""
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        """The events in program order."""
        return iter(self.events)

    def __getitem__(self, index: int) -> Event:
        """The event of that index."""
        return self.events[index]

    def __repr__(self) -> str:
        axes = f" ({self.ranks})" if self.ranks.sizes else ""
        summary = (
            f"Schedule of {_counted(self.n, 'rank')}{axes}: {_counted(self.steps, 'step')}, "
            f"{_counted(self.permutes, 'permute')}, {_counted(self.exchanges, 'exchange')}, "
            f"{_counted(self.rounds, 'round')}; a rank sends up to {_counted(self.max_bytes_sent, 'byte')}"
        )
        lines = [f"  {event.index}: {event}" for event in self.events[:_SHOWN]]
        left = len(self.events) - len(lines)
        return "\n".join([summary, *lines, *([f"  … {_counted(left, 'event')} more: see table()"] if left else [])])


def _needs(event: Event) -> str:
    now = ", ".join(map(str, event.needs[-3:]))
    more = "… " if len(event.needs) > 3 else ""
    earlier = f"{', '.join(map(str, event.carried[-3:]))} of an earlier trip" if event.carried else ""
    return "; ".join(filter(None, [more + now, earlier]))


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns padded to their widest cell, those of figures to the right; empty ones are left out."""
    kept = [k for k in range(len(rows[0])) if k == 0 or any(row[k] for row in rows[1:])]
    widths = {k: max(len(row[k]) for row in rows) for k in kept}
    figures = {k for k in kept if rows[0][k] in ("", "trips", "bytes", "stream")}
    return [
        "  ".join(row[k].rjust(widths[k]) if k in figures else row[k].ljust(widths[k]) for k in kept).rstrip()
        for row in rows
    ]


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
