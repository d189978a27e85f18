"""Chrome's trace event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Source: "Trace Event Format", Google (2016). Ranks are processes; a rank's compute unit and its links and ports are
tracks. A message is a slice at its sender and one at its receiver, with an arrow between them.

Times are microseconds with three digits: Perfetto counts whole nanoseconds, and where it had to round a start and a
duration, one slice of a track would end inside the next (76 of 3,840 in a double tree on two servers).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from hccljax.timing.timeline import Interval, Timeline


def to_chrome(timeline: Timeline, path: str | PathLike[str]) -> Path:
    """Writes a timeline as a JSON trace; returns the path."""
    target = Path(path)
    with target.open("w", encoding="utf-8") as file:
        json.dump({"displayTimeUnit": "ns", "traceEvents": list(trace_events(timeline))}, file)
    return target


def trace_events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """The events of a trace: names of ranks and tracks, slices, arrows. Times are in microseconds."""
    tracks: dict[tuple[int, str], int] = {}
    for rank in range(timeline.n):
        yield _named("process_name", rank, 0, f"rank {rank}")
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    for index in range(len(timeline)):
        interval = timeline[index]
        for rank, track in _tracks(timeline, interval):
            if (rank, track) not in tracks:
                tracks[rank, track] = len(tracks) + 1
                yield _named("thread_name", rank, tracks[rank, track], track)
        yield from _slices(timeline, interval, index, tracks)


def _named(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}


def _tracks(timeline: Timeline, interval: Interval) -> list[tuple[int, str]]:
    """(rank, track) at either end of a message, or of the rank that computes."""
    if interval.level < 0:
        return [(interval.source, "compute")]
    level = timeline.levels[interval.level]
    alike = [other.name for other in timeline.levels].count(level.name) > 1
    name = f"{level.name} (level {interval.level})" if alike else level.name
    to, of = ("", "") if level.links == "switch" else (f" {interval.destination}", f" {interval.source}")
    return [(interval.source, f"{name} to{to}"), (interval.destination, f"{name} from{of}")]


def _slices(
    timeline: Timeline, interval: Interval, index: int, tracks: dict[tuple[int, str], int]
) -> Iterator[dict[str, Any]]:
    start, end = round(interval.start * 1e9), round(interval.end * 1e9)
    arguments: dict[str, Any] = {"event": interval.event.index, "trip": interval.trip}
    if interval.level >= 0:
        arguments |= {"from": interval.source, "to": interval.destination, "bytes": interval.nbytes}
    if interval.event.source is not None:
        arguments["source"] = interval.event.source.short
    ends = [{"pid": rank, "tid": tracks[rank, track]} for rank, track in _tracks(timeline, interval)]
    for at in ends:
        yield {"ph": "X", "name": interval.name, "cat": "hccljax", "ts": start / 1e3, "dur": (end - start) / 1e3, **at,
               "args": arguments}  # fmt: skip
    if len(ends) == 2:
        flow = {"name": "message", "cat": "hccljax", "id": index}
        yield {"ph": "s", "ts": start / 1e3, **flow, **ends[0]}
        yield {"ph": "f", "bp": "e", "ts": end / 1e3, **flow, **ends[1]}
